//! Metrics from the files of rank 0's program: TensorBoard's event files, W&B's run files, CSV, JSON Lines and MLflow.
//!
//! Owner: the agent of rank 0's host, one thread. Files are those that the program's processes hold open, those that
//! grow where it works, and event files below the directory of `metrics.tensorboard`. Invariants:
//! - LOGGED-1: at most [`FILES`] files, and per file and poll [`STEPS`] records. A file whose content does not
//!   match its name is ignored.
//! - LOGGED-2: a value that a program writes to files of several kinds of rows is read from one kind.

use crate::observe::closed_logs::{self, ClosedLog, ClosedLogs};
use crate::observe::logged_media::LoggedMedia;
use crate::observe::media_limiter::MediaLimiter;
use crate::observe::metrics::{EVERY, PendingValues};
use crate::observe::open_logs::{self, FileKey, LogKind, OpenLog};
use crate::observe::row_files::RowReader;
use crate::open_files::OpenFileSlot;
use crate::proc::ProcessKey;
use crate::program;
use rankdeck_proto::message::RecordEvent;
use rankdeck_proto::progress_bar::ShownCounter;
use rankdeck_proto::regular;
use rankdeck_proto::tfrecord::{self, EventValue, Next};
use rankdeck_proto::wandb::{HistoryRow, RunFileReader};
use rankdeck_types::ids::Rank;
use rankdeck_types::meaning::{Meaning, Meanings};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant, SystemTime};

/// Most files that are followed.
const FILES: usize = 64;
/// Most names of values whose kind of file is known.
const NAMES: usize = 4096;
/// How deep directories are searched for event files.
const DEPTH: usize = 4;
/// Bytes read of one file at once.
const CHUNK: u64 = 1 << 20;
/// Most chunks of a run file in one poll.
const RUN_CHUNKS: usize = 4;
/// Most records of one file and poll.
const STEPS: usize = 20;
/// How long open files are looked for with every poll, and how often after that.
const SCANS: Duration = Duration::from_secs(60);
const LATER_SCANS: Duration = Duration::from_secs(10);
/// How long a script may write nothing before that is worth a word.
const SILENCE: Duration = Duration::from_secs(30);
/// Largest step: all integers up to it are exact.
const STEP: f64 = 9e15;

/// Which files are followed.
#[derive(Debug, Default)]
pub(crate) struct MetricSources {
    /// The directory of `metrics.tensorboard`.
    pub folder: Option<PathBuf>,
    /// The run's directory.
    pub run_dir: PathBuf,
    pub meanings: Meanings,
    pub gate: MediaLimiter,
}

/// Follows the files until dropped.
#[derive(Debug)]
pub(crate) struct MetricFileTailer {
    pace: Arc<FollowerPace>,
    thread: Thread,
}

#[derive(Debug, Default)]
struct FollowerPace {
    over: AtomicBool,
    /// Requested polls, and the number of the newest request that the latest complete poll covers.
    asked: AtomicU64,
    done: AtomicU64,
    /// When the program first gave a sign: before that it may be importing.
    expected: OnceLock<Instant>,
    /// Rank 0's process, and whether its program is started elsewhere.
    root: Mutex<Option<(ProcessKey, bool)>>,
}

impl Drop for MetricFileTailer {
    fn drop(&mut self) {
        self.pace.over.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}

impl MetricFileTailer {
    /// Starts the thread; files that are older than the launch are left alone. `record` is called on it. Without
    /// any event file in a declared directory, it reports that once, some time after the program's first sign
    /// ([`MetricFileTailer::expect_files`]).
    pub fn start(
        sources: MetricSources,
        record: impl Fn(RecordEvent) + Send + 'static,
    ) -> io::Result<MetricFileTailer> {
        MetricFileTailer::start_with(sources, SILENCE, record)
    }

    fn start_with(
        sources: MetricSources,
        silence: Duration,
        record: impl Fn(RecordEvent) + Send + 'static,
    ) -> io::Result<MetricFileTailer> {
        let pace = Arc::new(FollowerPace::default());
        let seen = pace.clone();
        let mut reported = false;
        let mut files = MetricFiles::new(sources, SystemTime::now() - Duration::from_secs(2));
        let thread = std::thread::Builder::new().name("metric-files".into()).spawn(move || {
            while !seen.over.load(Ordering::Relaxed) {
                let asked = seen.asked.load(Ordering::Acquire);
                let root = *seen.root.lock().unwrap_or_else(PoisonError::into_inner);
                files.poll(root, Instant::now()).into_iter().for_each(&record);
                seen.done.store(asked, Ordering::Release);
                if !reported && seen.expected.get().is_some_and(|since| since.elapsed() >= silence) {
                    reported = true;
                    files.complaint().into_iter().for_each(&record);
                }
                std::thread::park_timeout(EVERY);
            }
        })?;
        Ok(MetricFileTailer { pace, thread: thread.thread().clone() })
    }

    /// Sets rank 0's process; `elsewhere`: its program is started by a container's monitor.
    pub fn watch(&self, root: Option<ProcessKey>, elsewhere: bool) {
        *self.pace.root.lock().unwrap_or_else(PoisonError::into_inner) = root.map(|root| (root, elsewhere));
    }

    /// The program has given a sign: it is about to write files.
    pub fn expect_files(&self) {
        let _ = self.pace.expected.set(Instant::now());
    }

    /// Polls the files now: a program writes the last of them at its end. Returns
    /// a check whether that poll is complete.
    pub fn poll_now(&self) -> impl Fn() -> bool + use<> {
        let asked = self.pace.asked.fetch_add(1, Ordering::AcqRel) + 1;
        self.thread.unpark();
        let pace = self.pace.clone();
        move || pace.over.load(Ordering::Relaxed) || pace.done.load(Ordering::Acquire) >= asked
    }
}

/// A file, by name or held open.
#[derive(Debug)]
enum FollowedFile {
    Named(PathBuf),
    Held(File, #[allow(dead_code)] OpenFileSlot),
}

impl FollowedFile {
    fn open(&self) -> io::Result<File> {
        match self {
            FollowedFile::Named(path) => regular::open(path),
            FollowedFile::Held(file, _) => file.try_clone(),
        }
    }
}

/// How far a file has been read.
#[derive(Debug)]
enum MetricFileReader {
    /// The next byte of an event file.
    Events(u64),
    Rows(RowReader),
    Run(RunFileReader),
    /// It is not what its name says, or broken.
    Ended,
}

#[derive(Debug)]
struct FollowedLog {
    file: FollowedFile,
    kind: LogKind,
    reader: MetricFileReader,
    /// Its rows are about evaluations.
    of_evaluations: bool,
}

/// The values of a step or a row.
#[derive(Debug, Default)]
struct LoggedRow {
    values: PendingValues,
    counter: Option<ShownCounter>,
}

/// All files, and how far each has been read.
#[derive(Debug)]
struct MetricFiles {
    sources: MetricSources,
    launched: SystemTime,
    begun: Instant,
    scanned: Option<Instant>,
    logs: BTreeMap<FileKey, FollowedLog>,
    /// Files that may grow.
    closed: ClosedLogs,
    /// LOGGED-2. The kind of file that a value is read from.
    kinds: BTreeMap<String, &'static str>,
    media: LoggedMedia,
}

impl MetricFiles {
    fn new(sources: MetricSources, launched: SystemTime) -> MetricFiles {
        MetricFiles {
            sources,
            launched,
            begun: Instant::now(),
            scanned: None,
            logs: BTreeMap::new(),
            closed: ClosedLogs::default(),
            kinds: BTreeMap::new(),
            media: LoggedMedia::default(),
        }
    }

    /// New values, one record for each step or row that was written, the latest [`STEPS`] of them.
    fn poll(&mut self, root: Option<(ProcessKey, bool)>, now: Instant) -> Vec<RecordEvent> {
        self.find_declared();
        self.find_open(root, now);
        self.find_closed(root, now);
        let mut all = Vec::new();
        for log in self.logs.values_mut() {
            let Ok(mut file) = log.file.open() else { continue };
            let rows = match &mut log.reader {
                MetricFileReader::Events(at) => {
                    let (next, rows) = read_events(&mut file, *at, &mut self.media);
                    log.reader = next.map_or(MetricFileReader::Ended, MetricFileReader::Events);
                    rows
                }
                MetricFileReader::Rows(reader) => {
                    let mut rows = Vec::new();
                    let (meanings, kinds, kind) = (&self.sources.meanings, &mut self.kinds, log.kind);
                    let of_evaluations = log.of_evaluations;
                    let read = reader.read(&file, |mut values| {
                        if of_evaluations {
                            values.iter_mut().for_each(|(name, _)| name_evaluation(name, meanings));
                        }
                        // Without a name: the step.
                        values.retain(|(name, _)| {
                            name.is_empty()
                                || meanings.of(name).is_some_and(Meaning::is_count)
                                || is_read_from(name, kind, kinds)
                        });
                        rows.push(match kind {
                            LogKind::Mlflow => LoggedRow::of_metric(values, meanings),
                            _ => LoggedRow::of(&values, meanings),
                        });
                    });
                    if matches!(read, Ok(false)) {
                        log.reader = MetricFileReader::Ended;
                    }
                    rows
                }
                MetricFileReader::Run(reader) => {
                    let mut rows = Vec::new();
                    let meanings = &self.sources.meanings;
                    if !read_run(&mut file, reader, |row| rows.push(LoggedRow::of_run(row, meanings))) {
                        log.reader = MetricFileReader::Ended;
                    }
                    rows
                }
                MetricFileReader::Ended => continue,
            };
            let records = thinned(rows).into_iter().filter_map(|mut row| {
                let mut record = row.values.take(log.kind.source(), Rank(0))?;
                if let RecordEvent::Metrics { counter, .. } = &mut record {
                    *counter = row.counter;
                }
                Some(record)
            });
            all.extend(records);
        }
        all.extend(self.media.take(&self.sources.gate, now));
        all
    }

    /// Event files below the declared directory.
    fn find_declared(&mut self) {
        let mut found = Vec::new();
        if let Some(folder) = &self.sources.folder {
            search(folder, DEPTH, self.launched, &mut found);
        }
        for (key, path) in found {
            self.follow(key, FollowedFile::Named(path), LogKind::Events, 0, false);
        }
    }

    /// Files that the program holds open.
    fn find_open(&mut self, root: Option<(ProcessKey, bool)>, now: Instant) {
        let Some((root, elsewhere)) = root else { return };
        let is_early = now.saturating_duration_since(self.begun) < SCANS;
        let is_due = self.scanned.is_none_or(|at| now.saturating_duration_since(at) >= LATER_SCANS);
        if !is_early && !is_due || self.logs.len() >= FILES {
            return;
        }
        self.scanned = Some(now);
        let root = if elsewhere { program::in_container(root) } else { Some(root) };
        let Some(root) = root else { return };
        for log in open_logs::find(root, |key| self.logs.contains_key(&key), self.launched) {
            let OpenLog { key, kind, file, slot, begin, of_evaluations } = log;
            self.follow(key, FollowedFile::Held(file, slot), kind, begin, of_evaluations);
        }
    }

    /// Files that the program opens for each row only.
    fn find_closed(&mut self, root: Option<(ProcessKey, bool)>, now: Instant) {
        if self.logs.len() >= FILES {
            return;
        }
        // A container has files of its own.
        let root = root.filter(|(_, elsewhere)| !elsewhere).map(|(root, _)| root);
        let (logs, run_dir) = (&self.logs, &self.sources.run_dir);
        let is_known = |key: FileKey| logs.contains_key(&key);
        for log in self.closed.find(root, run_dir, self.launched, now, is_known) {
            let ClosedLog { key, path, kind, begin } = log;
            let of_evaluations =
                kind != LogKind::Mlflow && LogKind::is_of_evaluations(&path.to_string_lossy());
            self.follow(key, FollowedFile::Named(path), kind, begin, of_evaluations);
        }
    }

    fn follow(&mut self, key: FileKey, file: FollowedFile, kind: LogKind, begin: u64, of_evaluations: bool) {
        if self.logs.len() < FILES {
            let reader = match kind {
                LogKind::Events => MetricFileReader::Events(begin),
                LogKind::Csv | LogKind::JsonLines => MetricFileReader::Rows(RowReader::new(kind, begin)),
                LogKind::Wandb => MetricFileReader::Run(RunFileReader::new(begin)),
                LogKind::Mlflow => {
                    let name = match &file {
                        FollowedFile::Named(path) => closed_logs::mlflow_name(path),
                        FollowedFile::Held(..) => None,
                    };
                    MetricFileReader::Rows(RowReader::of_metric(name.unwrap_or_default(), begin))
                }
            };
            self.logs.entry(key).or_insert(FollowedLog { file, kind, reader, of_evaluations });
        }
    }

    /// Describes missing event files of the declared directory.
    fn complaint(&self) -> Option<RecordEvent> {
        let folder = self.sources.folder.as_ref()?;
        if self.logs.values().any(|log| log.kind == LogKind::Events) {
            return None;
        }
        let what = match folder.is_dir() {
            true => "no event file newer than the launch in",
            false => "directory not found:",
        };
        Some(RecordEvent::Notice {
            text: format!(
                "metrics.tensorboard: {what} {}, {} s after the first output; relative paths start in the ranks' directory on rank 0's host",
                folder.display(),
                SILENCE.as_secs()
            ),
        })
    }
}

impl LoggedRow {
    /// The values of a row with named columns.
    fn of(values: &[(String, f64)], meanings: &Meanings) -> LoggedRow {
        let names = || values.iter().map(|(name, _)| name.as_str());
        let counted = |meaning: Meaning| {
            let name = meanings.best(meaning, names())?;
            let (_, at) = values.iter().find(|(known, _)| known == name)?;
            (0.0..STEP).contains(at).then_some((meaning, *at))
        };
        let step = counted(Meaning::Step);
        let counter =
            counted(Meaning::Epoch).or_else(|| counted(Meaning::Iteration)).filter(|_| step.is_none());
        let counter = counter.map(|(meaning, at)| ShownCounter { unit: meaning.key().to_owned(), at });
        let mut row = LoggedRow { counter, ..LoggedRow::default() };
        row.values.env_step = step.map(|(_, at)| at as u64);
        for (name, value) in values {
            if !meanings.of(name).is_some_and(Meaning::is_count) {
                row.values.add(name, *value);
            }
        }
        row
    }

    /// The values of a row of W&B's history. Its own step counts calls unless the program passes one: a step among the
    /// values is better.
    fn of_run(history: HistoryRow, meanings: &Meanings) -> LoggedRow {
        let mut row = LoggedRow::of(&history.values, meanings);
        if row.values.env_step.is_none() && row.counter.is_none() {
            let step = history.step.map(|step| step as f64).filter(|step| *step < STEP);
            row.counter = step.map(|at| ShownCounter { unit: Meaning::Step.key().to_owned(), at });
        }
        row
    }

    /// A value of MLflow, after its step. That is 0 unless the program passes one.
    fn of_metric(mut values: Vec<(String, f64)>, meanings: &Meanings) -> LoggedRow {
        let step = values.first().map_or(0.0, |(_, step)| *step);
        values.retain(|(name, _)| !name.is_empty());
        let step = (1.0..STEP).contains(&step).then_some(step as u64);
        LoggedRow::of_run(HistoryRow { step, values }, meanings)
    }

    /// The same with what came after it.
    fn then(self, newer: LoggedRow) -> LoggedRow {
        LoggedRow { values: self.values.then(newer.values), counter: newer.counter.or(self.counter) }
    }
}

/// Names a value of a file about evaluations: `eval/reward` of `reward`. Its steps are those of training.
fn name_evaluation(name: &mut String, meanings: &Meanings) {
    let is_count = meanings.of(name).is_some_and(Meaning::is_count);
    if !(name.is_empty() || is_count || name.starts_with("eval")) {
        name.insert_str(0, "eval/");
    }
}

/// LOGGED-2. The first kind that has a value keeps it.
fn is_read_from(name: &str, kind: LogKind, kinds: &mut BTreeMap<String, &'static str>) -> bool {
    match kinds.get(name) {
        Some(known) => *known == kind.source(),
        None => {
            if kinds.len() < NAMES {
                kinds.insert(name.to_owned(), kind.source());
            }
            true
        }
    }
}

/// A burst (a whole file at the start, many short episodes) becomes a bounded number of records.
fn thinned(rows: Vec<LoggedRow>) -> Vec<LoggedRow> {
    let stride = rows.len().div_ceil(STEPS).max(1);
    let mut thinned: Vec<LoggedRow> = Vec::new();
    for (n, row) in rows.into_iter().enumerate() {
        match thinned.last_mut().filter(|_| n % stride != 0) {
            Some(before) => *before = std::mem::take(before).then(row),
            None => thinned.push(row),
        }
    }
    thinned
}

/// Event files below a directory that are not older than `since`.
fn search(folder: &Path, depth: usize, since: SystemTime, found: &mut Vec<(FileKey, PathBuf)>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten().take(4096) {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() && depth > 0 {
            search(&entry.path(), depth - 1, since, found);
        } else if kind.is_file() && entry.file_name().to_string_lossy().contains("events.out.tfevents") {
            let Ok(data) = entry.metadata() else { continue };
            if data.modified().is_ok_and(|time| time >= since) && found.len() < FILES {
                found.push(((data.dev(), data.ino()), entry.path()));
            }
        }
    }
}

/// Reads the new rows of a run file, at most [`RUN_CHUNKS`] chunks; returns whether it can be read on.
fn read_run(file: &mut File, reader: &mut RunFileReader, mut each: impl FnMut(HistoryRow)) -> bool {
    for _ in 0..RUN_CHUNKS {
        let (at, mut bytes) = (reader.at(), Vec::new());
        let read =
            file.seek(SeekFrom::Start(at)).and_then(|_| file.by_ref().take(CHUNK).read_to_end(&mut bytes));
        if read.is_err() {
            return true;
        }
        if !reader.read(&bytes, &mut each) {
            return false;
        }
        if (bytes.len() as u64) < CHUNK || reader.at() == at {
            return true;
        }
    }
    true
}

/// What stands in a file.
enum EventRecord<'a> {
    /// Values of a step.
    Values(u64, Vec<(String, EventValue<'a>)>),
    /// A record that is not read, and its bytes.
    Long(u64),
}

/// Reads the values of an event file from byte `from`; returns the next byte, `None` for an unusable file.
fn read_events(file: &mut File, from: u64, media: &mut LoggedMedia) -> (Option<u64>, Vec<LoggedRow>) {
    let mut steps: BTreeMap<u64, LoggedRow> = BTreeMap::new();
    let next = follow(file, from, |part| match part {
        EventRecord::Long(bytes) => media.too_long(bytes),
        EventRecord::Values(step, values) => {
            values.into_iter().for_each(|(name, value)| match value {
                EventValue::Scalar(value) => {
                    let row = steps.entry(step).or_default();
                    row.values.env_step = Some(step);
                    row.values.add(&name, value);
                }
                EventValue::Histogram(bins) => media.histogram(name, step, bins),
                EventValue::Picture(file) => media.picture(name, step, file),
                EventValue::Wrong(why) => media.refuse("histogram", &name, step, &why),
            });
        }
    });
    (next, steps.into_values().collect())
}

/// Reads whole records from byte `from`; returns the next offset, `None` for an unusable file.
fn follow(file: &mut File, from: u64, mut each: impl FnMut(EventRecord<'_>)) -> Option<u64> {
    let mut at = from;
    loop {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(at)).ok()?;
        if file.by_ref().take(CHUNK).read_to_end(&mut bytes).is_err() {
            return Some(at);
        }
        let mut rest = bytes.as_slice();
        let begun = at;
        loop {
            match tfrecord::next(rest) {
                Next::Record(data, taken) => {
                    if let Some((step, values)) = tfrecord::values(data) {
                        each(EventRecord::Values(step, values));
                    }
                    at += taken as u64;
                    rest = &rest[taken..];
                }
                Next::Partial => break,
                Next::Broken if tfrecord::length(rest).is_some_and(|long| long > CHUNK) => break,
                Next::Broken => return None,
            }
        }
        if at == begun {
            if bytes.len() < CHUNK as usize {
                return Some(at);
            }
            // Nothing whole in a full chunk: a record that is longer than those that are read.
            let long = tfrecord::length(&bytes).filter(|long| *long > CHUNK)?;
            let whole = file.metadata().is_ok_and(|data| data.len() >= at.saturating_add(long));
            if !whole {
                return Some(at);
            }
            each(EventRecord::Long(long));
            at += long;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc;
    use rankdeck_proto::tfrecord::{field_bytes, frame, varint};
    use std::io::Write;

    fn below(folder: &Path, launched: SystemTime) -> MetricFiles {
        let sources = MetricSources { folder: Some(folder.into()), ..MetricSources::default() };
        MetricFiles::new(sources, launched)
    }

    fn poll(files: &mut MetricFiles) -> Vec<RecordEvent> {
        files.poll(None, Instant::now())
    }

    #[test]
    fn missing_event_files_are_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let start = |path: PathBuf, sender: std::sync::mpsc::Sender<RecordEvent>| {
            let sources = MetricSources { folder: Some(path), ..MetricSources::default() };
            MetricFileTailer::start_with(sources, Duration::ZERO, move |event| drop(sender.send(event)))
                .unwrap()
        };
        let follower = start(folder.path().join("runs"), sender.clone());
        for _ in 0..2 {
            let is_polled = follower.poll_now();
            while !is_polled() {
                std::thread::yield_now();
            }
        }
        assert!(receiver.try_recv().is_err(), "a program that imports has written nothing yet");
        follower.expect_files();
        let Ok(RecordEvent::Notice { text }) = receiver.recv_timeout(Duration::from_secs(60)) else {
            panic!()
        };
        assert!(text.contains(&*folder.path().join("runs").to_string_lossy()), "{text}");
        drop(follower);
        std::fs::write(folder.path().join("events.out.tfevents.1"), "").unwrap();
        let mut files = below(folder.path(), SystemTime::UNIX_EPOCH);
        poll(&mut files);
        assert_eq!(files.complaint(), None);
    }

    fn values_of(record: Option<RecordEvent>) -> (Option<u64>, Vec<(String, f64)>, u64) {
        match record {
            Some(RecordEvent::Metrics { env_step, values, skipped, .. }) => {
                (env_step, values.into_iter().collect(), skipped)
            }
            other => panic!("{other:?}"),
        }
    }

    fn event(step: u64, tag: &str, value: f32) -> Vec<u8> {
        let mut entry = Vec::new();
        field_bytes(&mut entry, 1, tag.as_bytes());
        varint(&mut entry, 2 << 3 | 5);
        entry.extend(value.to_le_bytes());
        let (mut summary, mut bytes) = (Vec::new(), Vec::new());
        field_bytes(&mut summary, 1, &entry);
        varint(&mut bytes, 2 << 3);
        varint(&mut bytes, step);
        field_bytes(&mut bytes, 5, &summary);
        frame(&bytes)
    }

    #[test]
    fn event_files_are_followed_as_they_grow() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("run/a");
        std::fs::create_dir_all(&inner).unwrap();
        let mut file = File::create(inner.join("events.out.tfevents.1.h")).unwrap();
        File::create(inner.join("events.out.tfevents.2.h"))
            .unwrap()
            .write_all(b"this is none at all")
            .unwrap();
        let mut files = below(folder.path(), SystemTime::UNIX_EPOCH);
        file.write_all(&event(5, "losses/value", 0.5)).unwrap();
        let second = event(7, "charts/SPS", 100.0);
        file.write_all(&second[..9]).unwrap();
        let mut records = poll(&mut files);
        assert_eq!(values_of(records.pop()), (Some(5), vec![("losses/value".into(), 0.5)], 0));
        assert!(records.is_empty() && poll(&mut files).is_empty(), "the second record is not whole");
        file.write_all(&second[9..]).unwrap();
        assert_eq!(values_of(poll(&mut files).pop()), (Some(7), vec![("charts/SPS".into(), 100.0)], 0));
        for step in 0..1000 {
            let value = if step == 333 { -9e6 } else { step as f32 };
            file.write_all(&event(step, "x", value)).unwrap();
        }
        let burst = poll(&mut files);
        let low = |record: &RecordEvent| match record {
            RecordEvent::Metrics { spread, .. } => spread["x"].0,
            other => panic!("{other:?}"),
        };
        assert_eq!(burst.iter().map(low).fold(0.0, f64::min), -9e6, "a spike between the recorded steps");
        assert!(burst.len() <= STEPS, "{}", burst.len());
        let skipped: u64 = burst.iter().map(|record| values_of(Some(record.clone())).2).sum();
        assert_eq!(skipped as usize + burst.len(), 1000, "every value is recorded or counted");
        let old = poll(&mut below(folder.path(), SystemTime::now() + Duration::from_secs(60)));
        assert!(old.is_empty(), "files of earlier runs are left alone");
    }

    /// LOGGED-1: of whatever directory, and without a race with other runs.
    #[test]
    fn logged_1_files_that_the_program_holds_open_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = File::create(folder.path().join("events.out.tfevents.1.h")).unwrap();
        let mut rows = File::create(folder.path().join("progress.csv")).unwrap();
        std::fs::write(folder.path().join("events.out.tfevents.2.other"), event(9, "other/run", 1.0))
            .unwrap();
        events.write_all(&event(5, "held/by_this", 0.5)).unwrap();
        rows.write_all(b"time/total_timesteps,held/rows,time/iterations\n2048,21.5,1\n").unwrap();
        let pid = std::process::id();
        let root = ProcessKey { pid, start: proc::stat(pid).unwrap().start };
        let mut files = MetricFiles::new(MetricSources::default(), SystemTime::UNIX_EPOCH);
        let records = files.poll(Some((root, false)), Instant::now());
        let of = |records: &[RecordEvent], name: &str| {
            records.iter().find_map(|record| match record {
                RecordEvent::Metrics { source, env_step, values, .. } if values.contains_key(name) => {
                    Some((source.clone(), *env_step, values[name]))
                }
                _ => None,
            })
        };
        assert_eq!(of(&records, "held/by_this"), Some(("tensorboard".into(), Some(5), 0.5)));
        assert_eq!(of(&records, "held/rows"), Some(("csv".into(), Some(2048), 21.5)));
        assert_eq!(of(&records, "other/run"), None);
        assert_eq!(of(&records, "time/iterations"), None, "it is counted");
        drop(rows);
        std::fs::OpenOptions::new()
            .append(true)
            .open(folder.path().join("progress.csv"))
            .and_then(|mut file| file.write_all(b"4096,22.5,2\n"))
            .unwrap();
        let records = files.poll(None, Instant::now());
        assert_eq!(of(&records, "held/rows"), Some(("csv".into(), Some(4096), 22.5)), "the rest at the end");
    }

    /// A record of a run file: it begins a block, or follows another one in it.
    fn run_record(step: u64, items: &[(&str, &str)]) -> Vec<u8> {
        let (mut history, mut number, mut data) = (Vec::new(), Vec::new(), Vec::new());
        for (name, json) in items {
            let mut item = Vec::new();
            field_bytes(&mut item, 1, name.as_bytes());
            field_bytes(&mut item, 16, json.as_bytes());
            field_bytes(&mut history, 1, &item);
        }
        varint(&mut number, 1 << 3);
        varint(&mut number, step);
        field_bytes(&mut history, 2, &number);
        field_bytes(&mut data, 2, &history);
        // CRC-32 of the type, 1, and the data.
        let crc = !std::iter::once(&1).chain(&data).fold(!0_u32, |crc, byte| {
            (0..8)
                .fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
        });
        let mut bytes = crc.to_le_bytes().to_vec();
        bytes.extend((data.len() as u16).to_le_bytes());
        bytes.push(1);
        bytes.extend(data);
        bytes
    }

    fn held(files: &mut MetricFiles) -> Vec<RecordEvent> {
        let pid = std::process::id();
        let root = ProcessKey { pid, start: proc::stat(pid).unwrap().start };
        let records = files.poll(Some((root, false)), Instant::now()).into_iter();
        records
            .filter(|record| matches!(record, RecordEvent::Metrics { source, .. } if source == "wandb"))
            .collect()
    }

    #[test]
    fn logged_1_run_file_of_wandb_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let mut run = File::create(folder.path().join("run-ab12cd34.wandb")).unwrap();
        run.write_all(b":W&B\xe1\xbe\0").unwrap();
        run.write_all(&run_record(3, &[("held/loss", "0.5"), ("_runtime", "2")])).unwrap();
        let later = run_record(4, &[("held/loss", "0.25"), ("global_step", "4096")]);
        run.write_all(&later[..9]).unwrap();
        let mut files = MetricFiles::new(MetricSources::default(), SystemTime::UNIX_EPOCH);
        let mut records = held(&mut files);
        let Some(RecordEvent::Metrics { env_step: None, values, counter: Some(counter), .. }) = records.pop()
        else {
            panic!("{records:?}")
        };
        assert_eq!((values["held/loss"], values.len(), counter.at), (0.5, 1, 3.0));
        assert!(records.is_empty() && held(&mut files).is_empty(), "the second row is not whole");
        run.write_all(&later[9..]).unwrap();
        let step = (Some(4096), vec![("held/loss".into(), 0.25)], 0);
        assert_eq!(values_of(held(&mut files).pop()), step, "a step that the program logs is better");
    }

    /// The format, as the library writes it.
    #[test]
    fn run_file_of_an_installed_wandb_is_read() {
        let Some(python) = rankdeck_testkit::python_of("RANKDECK_TEST_DING", "wandb") else { return };
        let folder = tempfile::tempdir().unwrap();
        let program = "import wandb\nwith wandb.init(mode='offline', project='p') as run:\n    \
                       for step in range(40): run.log({'loss': step / 2, 'nested': {'a': step}})";
        let output = std::process::Command::new(python)
            .args(["-c", program])
            .current_dir(folder.path())
            .env("WANDB_SILENT", "true")
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let mut found = Vec::new();
        let runs = std::fs::read_dir(folder.path().join("wandb")).unwrap().flatten();
        for run in runs.filter(|run| run.file_name().to_string_lossy().starts_with("offline-run-")) {
            let files = std::fs::read_dir(run.path()).unwrap().flatten();
            found.extend(
                files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|e| e == "wandb")),
            );
        }
        let mut rows = Vec::new();
        let mut file = File::open(found.pop().expect("a run file")).unwrap();
        assert!(read_run(&mut file, &mut RunFileReader::new(0), |row| rows.push(row)));
        assert_eq!(rows.iter().filter_map(|row| row.step).collect::<Vec<_>>(), (0..40).collect::<Vec<_>>());
        let last = &rows[39].values;
        let of = |name: &str| last.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
        assert_eq!((of("loss"), of("nested/a").or(of("nested.a"))), (Some(19.5), Some(39.0)), "{last:?}");
    }

    #[test]
    fn logged_2_value_in_two_kinds_of_files_is_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            path
        };
        let csv = put("metrics.csv", "step,twice/loss\n7,0.5\n");
        let metric = put("mlruns/0/ab/metrics/twice/loss", "1 0.5 7\n");
        let other = put("mlruns/0/ab/metrics/once", "1 2.5 7\n");
        let mut files = MetricFiles::new(MetricSources::default(), SystemTime::UNIX_EPOCH);
        files.follow((0, 1), FollowedFile::Named(csv), LogKind::Csv, 0, false);
        files.follow((0, 2), FollowedFile::Named(metric), LogKind::Mlflow, 0, false);
        files.follow((0, 3), FollowedFile::Named(other), LogKind::Mlflow, 0, false);
        let found: Vec<(String, Option<u64>, Option<f64>)> = poll(&mut files)
            .into_iter()
            .filter_map(|record| match record {
                RecordEvent::Metrics { source, env_step, counter, .. } => {
                    Some((source, env_step, counter.map(|counter| counter.at)))
                }
                _ => None,
            })
            .collect();
        assert_eq!(found, [("csv".to_owned(), Some(7), None), ("mlflow".to_owned(), None, Some(7.0))]);
    }

    /// `train.csv` and `eval.csv` have the same columns.
    #[test]
    fn rows_of_an_evaluation_file_are_evaluations() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = MetricFiles::new(MetricSources::default(), SystemTime::UNIX_EPOCH);
        for (inode, name, value) in [(1, "train.csv", 1.5), (2, "eval.csv", 2.5)] {
            let path = folder.path().join(name);
            std::fs::write(&path, format!("step,episode_reward\n7,{value}\n")).unwrap();
            let of_evaluations = LogKind::is_of_evaluations(&path.to_string_lossy());
            files.follow((0, inode), FollowedFile::Named(path), LogKind::Csv, 0, of_evaluations);
        }
        let found: Vec<_> = poll(&mut files).into_iter().map(|record| values_of(Some(record))).collect();
        let row = |name: &str, value: f64| (Some(7), vec![(name.to_owned(), value)], 0);
        assert_eq!(found, [row("episode_reward", 1.5), row("eval/episode_reward", 2.5)]);
    }

    #[test]
    fn many_rows_are_merged_into_few_records() {
        let rows = (0..1000).map(|step| {
            LoggedRow::of(&[("step".into(), f64::from(step)), ("a".into(), 1.0)], &Meanings::default())
        });
        let thinned = thinned(rows.collect());
        assert_eq!((thinned.len(), thinned.last().unwrap().values.env_step), (STEPS, Some(999)));
        assert!(super::thinned(Vec::new()).is_empty());
    }
}
