//! Metrics of a program without the client module: extracted from rank 0's output lines, and read from
//! its TensorBoard event files.
//!
//! Owner: the agent of rank 0's host, one [`MetricExtractor`] per launch and one thread for event files. Invariants:
//! - METRICS-1: at most one record per second and source; of several values of one name the last is recorded (of
//!   `return` the mean) with their extremes, the others counted.
//! - At most [`NAMES`] names and [`FILES`] files; a file that is not an event file is left alone.
//! - Histograms and images of event files pass the [`MediaLimiter`], as those of the event socket do.

use crate::observe::media_limiter::{MediaKind, MediaLimiter};
use rankdeck_proto::media::{self, Histogram, ImageHeader};
use rankdeck_proto::message::{LoggedHistogram, LoggedImage, RankEvent, RecordEvent};
use rankdeck_proto::regular;
use rankdeck_proto::tfrecord::{self, EventValue, Next};
use rankdeck_types::experiment::Metrics;
use rankdeck_types::ids::Rank;
use rankdeck_types::metrics::compile;
use rankdeck_types::words;
use regex_lite::Regex;
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Between two records of one source.
const EVERY: Duration = Duration::from_secs(1);
/// Most names of values.
const NAMES: usize = 256;
/// Most event files that are followed.
const FILES: usize = 64;
/// How deep directories are searched for event files.
const DEPTH: usize = 4;
/// Bytes read of one file at once.
const CHUNK: u64 = 1 << 20;

/// What the charts are called that several programs have.
fn chart(name: &str) -> String {
    match name {
        "return" | "episodic_return" => "charts/episodic_return".into(),
        "SPS" | "sps" => "charts/SPS".into(),
        other => other.into(),
    }
}

/// Values of one name since the last record.
#[derive(Debug, Clone, Copy)]
struct MergedValue {
    /// The last one, or the mean of all.
    value: f64,
    count: u64,
    low: f64,
    high: f64,
    /// The mean is recorded.
    mean: bool,
}

impl MergedValue {
    /// With those that came before it.
    fn after(self, older: MergedValue) -> MergedValue {
        let count = self.count.saturating_add(older.count);
        let share = older.count as f64 / count.max(1) as f64;
        let value = if self.mean { self.value * (1.0 - share) + older.value * share } else { self.value };
        MergedValue { value, count, low: self.low.min(older.low), high: self.high.max(older.high), ..self }
    }
}

/// Values since the last record.
#[derive(Debug, Default)]
struct PendingValues {
    env_step: Option<u64>,
    values: BTreeMap<String, MergedValue>,
    skipped: u64,
    not_finite: BTreeMap<String, u64>,
}

impl PendingValues {
    fn add(&mut self, name: &str, value: f64) {
        let (name, mean) = (chart(name), matches!(name, "return" | "episodic_return"));
        let known = self.values.contains_key(&name) || self.not_finite.contains_key(&name);
        if self.values.len() + self.not_finite.len() >= NAMES && !known {
            self.skipped += 1;
            return;
        }
        if !value.is_finite() {
            // The latest failure counts: a number from before it would be recorded as the newest value.
            self.skipped += self.values.remove(&name).map_or(0, |_| 1);
            *self.not_finite.entry(name).or_default() += 1;
            return;
        }
        self.put(name, MergedValue { value, count: 1, low: value, high: value, mean });
    }

    /// Adds what came after all that is there.
    fn put(&mut self, name: String, newer: MergedValue) {
        match self.values.get_mut(&name) {
            Some(known) => {
                self.skipped += u64::from(!newer.mean);
                *known = newer.after(*known);
            }
            None => drop(self.values.insert(name, newer)),
        }
    }

    /// The same with what came after it.
    fn then(mut self, newer: PendingValues) -> PendingValues {
        self.env_step = newer.env_step.or(self.env_step);
        self.skipped += newer.skipped;
        for (name, count) in newer.not_finite {
            self.skipped += self.values.remove(&name).map_or(0, |_| 1);
            *self.not_finite.entry(name).or_default() += count;
        }
        newer.values.into_iter().for_each(|(name, value)| self.put(name, value));
        self
    }

    fn take(&mut self, source: &str, rank: Rank) -> Option<RecordEvent> {
        if self.values.is_empty() && self.not_finite.is_empty() {
            return None;
        }
        let taken = std::mem::take(self);
        self.env_step = taken.env_step;
        Some(RecordEvent::Metrics {
            rank,
            source: source.into(),
            env_step: taken.env_step,
            spread: taken
                .values
                .iter()
                .filter(|(_, value)| value.low < value.high)
                .map(|(name, value)| (name.clone(), (value.low, value.high)))
                .collect(),
            values: taken.values.into_iter().map(|(name, value)| (name, value.value)).collect(),
            skipped: taken.skipped,
            not_finite: taken.not_finite,
        })
    }
}

/// Picks values from lines.
#[derive(Debug)]
pub(crate) struct MetricExtractor {
    patterns: Vec<Regex>,
    gathered: PendingValues,
    reported_at: Option<Instant>,
}

impl MetricExtractor {
    /// Returns the extractor of an experiment; `None` without patterns, or with patterns that this build
    /// cannot read (the console has checked it).
    pub fn new(metrics: &Metrics) -> Option<MetricExtractor> {
        let patterns = compile(metrics).ok().filter(|patterns| !patterns.is_empty())?;
        Some(MetricExtractor { patterns, gathered: PendingValues::default(), reported_at: None })
    }

    /// Extracts the values of a line; of a value that several patterns pick, the first
    /// pattern's counts.
    pub fn line(&mut self, line: &str) {
        let found = self.patterns.iter().filter_map(|pattern| Some((pattern, pattern.captures(line)?)));
        let values = found.flat_map(|(pattern, found)| {
            let texts = pattern.capture_names().flatten();
            texts.filter_map(move |name| Some((name, found.name(name)?.as_str()))).collect::<Vec<_>>()
        });
        let mut picked: Vec<&str> = Vec::new();
        for (name, text) in values {
            if picked.contains(&name) {
                continue;
            }
            picked.push(name);
            match (name, text.replace('_', "").parse::<f64>()) {
                ("env_step" | "global_step", Ok(step)) if (0.0..9e15).contains(&step) => {
                    self.gathered.env_step = Some(step as u64);
                }
                (name, Ok(value)) => self.gathered.add(name, value),
                (_, Err(_)) => self.gathered.skipped += 1,
            }
        }
    }

    /// Returns the record that is due (METRICS-1); `last`: at once.
    pub fn due(&mut self, now: Instant, last: bool) -> Option<RecordEvent> {
        if !last && self.reported_at.is_some_and(|at| now.duration_since(at) < EVERY) {
            return None;
        }
        let record = self.gathered.take("stdout", Rank(0))?;
        self.reported_at = Some(now);
        Some(record)
    }
}

/// How long a script may write nothing before that is worth a word.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);

/// Follows event files below a directory until dropped.
#[derive(Debug)]
pub(crate) struct EventFileTailer {
    pace: Arc<FollowerPace>,
    thread: Thread,
}

#[derive(Debug, Default)]
struct FollowerPace {
    over: AtomicBool,
    /// Requested polls, and the number of the newest request that the latest complete poll covers.
    asked: AtomicU64,
    done: AtomicU64,
}

impl Drop for EventFileTailer {
    fn drop(&mut self) {
        self.pace.over.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}

impl EventFileTailer {
    /// Starts the thread; files that are older than the launch are left alone. `record` is called on it.
    /// After `silence` without any file it reports that, once.
    pub fn start(
        folder: PathBuf,
        gate: MediaLimiter,
        silence: Duration,
        record: impl Fn(RecordEvent) + Send + 'static,
    ) -> std::io::Result<EventFileTailer> {
        let pace = Arc::new(FollowerPace::default());
        let seen = pace.clone();
        let (begun, mut reported) = (Instant::now(), false);
        let mut files = EventFiles::new(folder, gate, std::time::SystemTime::now() - Duration::from_secs(2));
        let thread = std::thread::Builder::new().name("event-files".into()).spawn(move || {
            while !seen.over.load(Ordering::Relaxed) {
                let asked = seen.asked.load(Ordering::Acquire);
                files.poll().into_iter().for_each(&record);
                seen.done.store(asked, Ordering::Release);
                if !reported && begun.elapsed() >= silence {
                    reported = true;
                    files.complaint().into_iter().for_each(&record);
                }
                std::thread::park_timeout(EVERY);
            }
        })?;
        Ok(EventFileTailer { pace, thread: thread.thread().clone() })
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

/// Event files and how far each has been read.
#[derive(Debug)]
struct EventFiles {
    folder: PathBuf,
    since: std::time::SystemTime,
    /// Path to next byte; `None`: no event file, or broken.
    read: BTreeMap<PathBuf, Option<u64>>,
    gate: MediaLimiter,
    logged: LoggedMedia,
}

impl EventFiles {
    fn new(folder: PathBuf, gate: MediaLimiter, since: std::time::SystemTime) -> EventFiles {
        EventFiles { folder, since, read: BTreeMap::new(), gate, logged: LoggedMedia::default() }
    }

    /// New values, one record for each step that was written, the latest [`STEPS`] of them.
    fn poll(&mut self) -> Vec<RecordEvent> {
        let mut found = Vec::new();
        search(&self.folder, DEPTH, self.since, &mut found);
        for path in found {
            if self.read.len() < FILES {
                self.read.entry(path).or_insert(Some(0));
            }
        }
        let mut steps: BTreeMap<u64, PendingValues> = BTreeMap::new();
        for (path, at) in &mut self.read {
            let Some(from) = *at else { continue };
            *at = follow(path, from, |part| match part {
                EventRecord::Long(bytes) => self.logged.too_long(bytes),
                EventRecord::Values(step, values) => {
                    values.into_iter().for_each(|(name, value)| match value {
                        EventValue::Scalar(value) => {
                            let gathered = steps.entry(step).or_default();
                            gathered.env_step = Some(step);
                            gathered.add(&name, value);
                        }
                        EventValue::Histogram(bins) => self.logged.histogram(name, step, bins),
                        EventValue::Picture(file) => self.logged.picture(name, step, file),
                        EventValue::Wrong(why) => self.logged.refuse("histogram", &name, step, &why),
                    });
                }
            });
        }
        // A burst (a whole file at the start of a console, many short episodes) becomes a bounded number of
        // records.
        while steps.len() > STEPS {
            let (all, stride) = (steps.len(), steps.len().div_ceil(STEPS));
            let mut before = PendingValues::default();
            for (n, (step, gathered)) in std::mem::take(&mut steps).into_iter().enumerate() {
                before = before.then(gathered);
                if (n + 1) % stride == 0 || n + 1 == all {
                    steps.insert(step, std::mem::take(&mut before));
                }
            }
        }
        let scalars = steps.values_mut().filter_map(|gathered| gathered.take("tensorboard", Rank(0)));
        let mut all: Vec<RecordEvent> = scalars.collect();
        all.extend(self.logged.take(&self.gate, Instant::now()));
        all
    }
}

impl EventFiles {
    /// Describes missing event files.
    fn complaint(&self) -> Option<RecordEvent> {
        if !self.read.is_empty() {
            return None;
        }
        let folder = self.folder.display();
        let what = match self.folder.is_dir() {
            true => "no event file newer than the launch in",
            false => "directory not found:",
        };
        Some(RecordEvent::Notice {
            text: format!(
                "metrics.tensorboard: {what} {folder}, {} s after the launch; relative paths start in the ranks' directory on rank 0's host",
                SILENCE.as_secs()
            ),
        })
    }
}

/// Most records of one poll.
const STEPS: usize = 20;

fn search(folder: &Path, depth: usize, since: std::time::SystemTime, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten().take(4096) {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() && depth > 0 {
            search(&entry.path(), depth - 1, since, found);
        } else if kind.is_file() && entry.file_name().to_string_lossy().contains("events.out.tfevents") {
            let fresh = entry.metadata().and_then(|data| data.modified()).is_ok_and(|time| time >= since);
            if fresh && found.len() < FILES {
                found.push(entry.path());
            }
        }
    }
}

/// What stands in a file.
enum EventRecord<'a> {
    /// Values of a step.
    Values(u64, Vec<(String, EventValue<'a>)>),
    /// A record that is not read, and its bytes.
    Long(u64),
}

/// Reads whole records from byte `from`; returns the next offset, `None` for an unusable file.
fn follow(path: &Path, from: u64, mut each: impl FnMut(EventRecord<'_>)) -> Option<u64> {
    let Ok(mut file) = regular::open(path) else { return Some(from) };
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

/// Most histograms of a name that wait.
const HISTOGRAMS: usize = 16;
/// Most images of a name that wait.
const PICTURES: usize = 4;
/// Most names of either kind.
const MEDIA_NAMES: usize = 64;
/// Most reports of invalid ones; the others are only counted.
const REPORTED: u32 = 8;

/// Histograms and images from event files that wait to be sent. Of each name a few are kept, spread over the steps,
/// the newest among them; what is not passed on is counted, and invalid ones are reported a few times.
#[derive(Debug, Default)]
struct LoggedMedia {
    histograms: PendingMedia<Histogram>,
    pictures: PendingMedia<Vec<u8>>,
    wrong: Vec<String>,
    reported: u32,
    dropped: u64,
}

/// What waits under each name.
#[derive(Debug)]
struct PendingMedia<T>(BTreeMap<String, ThinnedSeries<T>>);

/// The newest of a name with its step, and of those before it one in `stride`.
#[derive(Debug)]
struct ThinnedSeries<T> {
    newest: (u64, T),
    before: Vec<(u64, T)>,
    stride: u64,
    seen: u64,
}

impl<T> ThinnedSeries<T> {
    /// Returns how many gave way; `most`, an even number, is for those before the newest.
    fn add(&mut self, step: u64, one: T, most: usize) -> u64 {
        let former = std::mem::replace(&mut self.newest, (step, one));
        self.seen += 1;
        if !self.seen.is_multiple_of(self.stride) {
            return 1;
        }
        let length = self.before.len();
        if length + 1 >= most {
            let mut at = 0;
            self.before.retain(|_| {
                at += 1;
                at % 2 == 0
            });
            self.stride *= 2;
        }
        let gone = length - self.before.len();
        self.before.push(former);
        gone as u64
    }
}

impl<T> Default for PendingMedia<T> {
    fn default() -> PendingMedia<T> {
        PendingMedia(BTreeMap::new())
    }
}

impl<T> PendingMedia<T> {
    /// Returns how many gave way.
    fn add(&mut self, name: String, step: u64, one: T, most: usize) -> u64 {
        if self.0.len() >= MEDIA_NAMES && !self.0.contains_key(&name) {
            return 1;
        }
        match self.0.get_mut(&name) {
            Some(kept) => kept.add(step, one, most),
            None => {
                let kept = ThinnedSeries { newest: (step, one), before: Vec::new(), stride: 1, seen: 0 };
                self.0.insert(name, kept);
                0
            }
        }
    }

    /// Of each name as many as there is room for, spread over those that wait; and how many there was none
    /// for.
    fn take(&mut self, room: impl Fn(&str) -> usize) -> (Vec<(String, u64, T)>, u64) {
        let (mut taken, mut gone) = (Vec::new(), 0);
        for (name, ThinnedSeries { newest, before, .. }) in std::mem::take(&mut self.0) {
            let (count, room) = (before.len() + 1, room(&name));
            let chosen: Vec<usize> = match room {
                _ if room >= count => (0..count).collect(),
                0 => Vec::new(),
                1 => vec![count - 1],
                _ => (0..room).map(|i| i * (count - 1) / (room - 1)).collect(),
            };
            gone += (count - chosen.len()) as u64;
            let kept = before.into_iter().chain([newest]).enumerate().filter(|(at, _)| chosen.contains(at));
            taken.extend(kept.map(|(_, (step, one))| (name.clone(), step, one)));
        }
        (taken, gone)
    }
}

impl LoggedMedia {
    fn histogram(&mut self, name: String, step: u64, bins: Histogram) {
        match media::check_name(&name) {
            Ok(()) => self.dropped += self.histograms.add(name, step, bins, HISTOGRAMS),
            Err(why) => self.refuse("histogram", &name, step, &why),
        }
    }

    fn picture(&mut self, name: String, step: u64, file: &[u8]) {
        match media::check_name(&name).and_then(|()| ImageHeader::of(file)) {
            Ok(_) => self.dropped += self.pictures.add(name, step, file.to_vec(), PICTURES),
            Err(why) => self.refuse("image", &name, step, &why),
        }
    }

    /// Counts an invalid one, and reports it within the limit.
    fn refuse(&mut self, kind: &str, name: &str, step: u64, why: &str) {
        self.dropped += 1;
        self.reported += 1;
        if self.reported > REPORTED {
            return;
        }
        let rest = if self.reported == REPORTED { "; further problems are only counted" } else { "" };
        let name = words::clip(name, 80);
        self.wrong.push(format!("metrics.tensorboard: {kind} `{name}` at step {step}: {why}{rest}"));
    }

    /// A record of the file is longer than any that is read.
    fn too_long(&mut self, bytes: u64) {
        let why = format!("a record of {} was skipped", words::bytes(bytes));
        self.refuse("summary", "", 0, &why);
    }

    /// What is to be recorded now.
    fn take(&mut self, gate: &MediaLimiter, now: Instant) -> Vec<RecordEvent> {
        gate.withhold(std::mem::take(&mut self.dropped));
        let mut all: Vec<RecordEvent> =
            std::mem::take(&mut self.wrong).into_iter().map(|text| RecordEvent::Notice { text }).collect();
        let mut report = |event| all.push(RecordEvent::Rank { rank: Rank(0), event });
        let (histograms, gone) = self.histograms.take(|name| gate.room(MediaKind::Histogram, name, now));
        gate.withhold(gone);
        for (name, env_step, bins) in histograms {
            let Histogram { edges, counts } = bins;
            let one = LoggedHistogram { name, env_step, edges, counts, ..LoggedHistogram::default() };
            // It was checked when it was read.
            if let Ok(Some(one)) = gate.histogram(one, now) {
                report(RankEvent::Histogram(one));
            }
        }
        let (pictures, gone) = self.pictures.take(|name| gate.room(MediaKind::Picture, name, now));
        gate.withhold(gone);
        for (name, env_step, file) in pictures {
            let one = LoggedImage { name, env_step, data: media::encoded(&file), ..LoggedImage::default() };
            if let Ok(Some(one)) = gate.picture(one, now) {
                report(RankEvent::Image(one));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::tfrecord::{field_bytes, frame, varint};
    use std::fs::File;
    use std::io::Write;

    #[test]
    fn non_finite_values_are_reported_by_name_and_count() {
        let mut gathered = PendingValues::default();
        for (name, value) in
            [("loss", 0.5), ("loss", f64::NAN), ("kl", f64::INFINITY), ("kl", 0.25), ("loss", f64::NAN)]
        {
            gathered.add(name, value);
        }
        let Some(RecordEvent::Metrics { values, not_finite, .. }) = gathered.take("stdout", Rank(0)) else {
            panic!("no record")
        };
        assert_eq!(values, BTreeMap::from([("kl".into(), 0.25)]), "a number is the newest of kl only");
        assert_eq!(not_finite, BTreeMap::from([("loss".into(), 2), ("kl".into(), 1)]));
    }

    #[test]
    fn missing_event_files_are_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let start = |path: PathBuf, sender: std::sync::mpsc::Sender<RecordEvent>| {
            EventFileTailer::start(path, MediaLimiter::default(), Duration::ZERO, move |event| {
                drop(sender.send(event))
            })
            .unwrap()
        };
        let follower = start(folder.path().join("runs"), sender.clone());
        let Ok(RecordEvent::Notice { text }) = receiver.recv_timeout(Duration::from_secs(60)) else {
            panic!()
        };
        assert!(text.contains(&*folder.path().join("runs").to_string_lossy()), "{text}");
        drop(follower);
        std::fs::write(folder.path().join("events.out.tfevents.1"), "").unwrap();
        let mut files =
            EventFiles::new(folder.path().into(), MediaLimiter::default(), std::time::SystemTime::UNIX_EPOCH);
        files.poll();
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

    #[test]
    fn metrics_1_lines_become_one_record_a_second() {
        let metrics = Metrics {
            presets: vec!["cleanrl".into()],
            stdout: vec!["loss (?P<loss>[-0-9.]+)".into()],
            tensorboard: None,
        };
        let mut picker = MetricExtractor::new(&metrics).unwrap();
        for line in [
            "global_step=100, episodic_return=10.0",
            "noise",
            "global_step=180, episodic_return=[30.]",
            "SPS: 512",
            "loss 0.5",
            "loss 0.25",
            "loss .-.",
        ] {
            picker.line(line);
        }
        let now = Instant::now();
        let (step, values, skipped) = values_of(picker.due(now, false));
        assert_eq!(step, Some(180));
        let expected = [("charts/SPS", 512.0), ("charts/episodic_return", 20.0), ("loss", 0.25)];
        assert_eq!(values, expected.map(|(name, value)| (name.to_owned(), value)));
        assert_eq!(skipped, 2, "one loss was overtaken, one is not a number");
        for loss in ["0.5", "1000000", "0.25"] {
            picker.line(&format!("loss {loss}"));
        }
        let Some(RecordEvent::Metrics { values, spread, .. }) = picker.due(now, true) else { panic!() };
        assert_eq!(values["loss"], 0.25, "the last is recorded");
        assert_eq!(spread, BTreeMap::from([("loss".into(), (0.25, 1e6))]), "and the spike is not lost");
        picker.line("SPS: 600");
        assert_eq!(picker.due(now + Duration::from_millis(900), false), None);
        let (step, values, _) = values_of(picker.due(now + Duration::from_millis(1100), false));
        assert_eq!((step, values[0].1), (Some(180), 600.0), "the step is the last one known");
        assert_eq!(picker.due(now + Duration::from_secs(9), true), None, "nothing is recorded twice");
    }

    #[test]
    fn line_gives_all_of_its_values_once() {
        let patterns = ["step (?P<env_step>[0-9]+)", "loss (?P<loss>[-0-9.]+)", "return (?P<return>[0-9.]+)"];
        let metrics = Metrics {
            stdout: patterns.iter().chain(&["(?P<loss>[0-9]+)"]).map(|text| (*text).to_owned()).collect(),
            ..Metrics::default()
        };
        let mut picker = MetricExtractor::new(&metrics).unwrap();
        picker.line("step 30 loss 0.5 return 7");
        let (step, values, skipped) = values_of(picker.due(Instant::now(), false));
        assert_eq!((step, skipped), (Some(30), 0));
        let expected = [("charts/episodic_return", 7.0), ("loss", 0.5)];
        assert_eq!(values, expected.map(|(name, value)| (name.to_owned(), value)));
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
        let below = folder.path().join("run/a");
        std::fs::create_dir_all(&below).unwrap();
        let mut file = File::create(below.join("events.out.tfevents.1.h")).unwrap();
        File::create(below.join("events.out.tfevents.2.h"))
            .unwrap()
            .write_all(b"this is none at all")
            .unwrap();
        let mut files =
            EventFiles::new(folder.path().into(), MediaLimiter::default(), std::time::SystemTime::UNIX_EPOCH);
        file.write_all(&event(5, "losses/value", 0.5)).unwrap();
        let second = event(7, "charts/SPS", 100.0);
        file.write_all(&second[..9]).unwrap();
        let mut records = files.poll();
        assert_eq!(values_of(records.pop()), (Some(5), vec![("losses/value".into(), 0.5)], 0));
        assert!(records.is_empty() && files.poll().is_empty(), "the second record is not whole");
        file.write_all(&second[9..]).unwrap();
        assert_eq!(values_of(files.poll().pop()), (Some(7), vec![("charts/SPS".into(), 100.0)], 0));
        for step in 0..1000 {
            let value = if step == 333 { -9e6 } else { step as f32 };
            file.write_all(&event(step, "x", value)).unwrap();
        }
        let burst = files.poll();
        let low = |record: &RecordEvent| match record {
            RecordEvent::Metrics { spread, .. } => spread["x"].0,
            other => panic!("{other:?}"),
        };
        assert_eq!(burst.iter().map(low).fold(0.0, f64::min), -9e6, "a spike between the recorded steps");
        assert!(burst.len() <= STEPS, "{}", burst.len());
        let skipped: u64 = burst.iter().map(|record| values_of(Some(record.clone())).2).sum();
        assert_eq!(skipped as usize + burst.len(), 1000, "every value is recorded or counted");
        let old = EventFiles::new(
            folder.path().into(),
            MediaLimiter::default(),
            std::time::SystemTime::now() + Duration::from_secs(60),
        )
        .poll();
        assert!(old.is_empty(), "files of earlier runs are left alone");
    }

    fn steps(events: &[RecordEvent]) -> Vec<u64> {
        let step = |event: &RecordEvent| match event {
            RecordEvent::Rank { event: RankEvent::Histogram(one), .. } => Some(one.env_step),
            _ => None,
        };
        events.iter().filter_map(step).collect()
    }

    #[test]
    fn many_steps_are_thinned_and_the_rest_counted() {
        let (gate, mut logged, now) = (MediaLimiter::default(), LoggedMedia::default(), Instant::now());
        let bins = Histogram { edges: vec![0.0, 1.0], counts: vec![1.0] };
        (0..1000).for_each(|step| logged.histogram("w".into(), step, bins.clone()));
        let reported = steps(&logged.take(&gate, now));
        assert!((8..=12).contains(&reported.len()), "{reported:?}");
        assert_eq!((reported.last(), reported.len() as u64 + gate.withheld()), (Some(&999), 1000));
        assert!(reported[0] < 300, "spread over all: {reported:?}");
    }

    #[test]
    fn invalid_media_are_reported_a_few_times_and_counted() {
        let (gate, mut logged) = (MediaLimiter::default(), LoggedMedia::default());
        (0..20).for_each(|step| logged.picture("seen".into(), step, b"text"));
        logged.picture("n".repeat(300), 0, b"GIF89a\x05\0\x04\0");
        let reported = logged.take(&gate, Instant::now());
        assert_eq!((reported.len(), gate.withheld()), (REPORTED as usize, 21));
        let RecordEvent::Notice { text } = &reported[0] else { panic!("{reported:?}") };
        assert!(text.contains("`seen`") && text.ends_with(&ImageHeader::of(b"text").unwrap_err()), "{text}");
    }
}
