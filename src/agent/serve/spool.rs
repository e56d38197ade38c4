//! Durable records: an append-only file, a number for each record, and readers that start anywhere.
//!
//! Owner: the agent's loop appends; a thread writes; consoles read. Invariants:
//! - SPOOL-1: numbers are 1, 2, 3, ... without gaps, agent restarts included; a torn last line is cut off
//!   when the file is opened.
//! - A record is shown to readers after it was handed to the kernel, so that what a console has seen
//!   survives the agent.
//! - SPOOL-3: a disk that fails or hangs stops neither the agent nor its ranks: records wait in memory,
//!   bounded, and are shown from there. Only beyond that bound are records lost, and then they are counted.
//! - SPOOL-6: neither records nor the manifest wait for a disk to flush: a list of the host's runs
//!   (`rankdeck ps`) shows the agent's state. A manifest that was saved before a record was appended is in
//!   place before a reader is shown the record.
//! - SPOOL-4: memory is bounded: the newest records, and a sparse index into the file. So is the file
//!   ([`compaction`]).
//!
//! [`AgentJournal`] adds notices, and the agent's own log.

use crate::manifest;
use crate::paths::RunPaths;
use crate::serve::compaction::{self, ReadFrom};
use crate::serve::log_line;
use crate::serve::notifier::AgentNotifier;
use crate::supervise::lifecycle::Lifecycle;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::frame::MAX_FRAME;
use rankdeck_proto::message::{Record, RecordEvent};
use rankdeck_proto::trust;
use rankdeck_types::ids::Generation;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Bytes of recent records kept in memory.
const KEPT_BYTES: usize = 4 << 20;
/// Bytes of records kept in memory while the disk does not take them.
const WAITING_BYTES: usize = 32 << 20;
/// Most entries of the index; when it is full every other one is dropped.
const INDEX_ENTRIES: usize = 8192;
/// Between two attempts on a disk that fails.
const RETRY: Duration = Duration::from_millis(500);

/// One record as it stands in the file, without the newline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SpoolLine {
    /// Its number.
    pub seq: u64,
    pub json: Arc<str>,
}

/// Offsets of every n-th record in the file.
#[derive(Debug)]
struct Index {
    stride: u64,
    entries: Vec<(u64, u64)>,
}

impl Default for Index {
    fn default() -> Index {
        Index { stride: 16, entries: Vec::new() }
    }
}

impl Index {
    fn note(&mut self, seq: u64, offset: u64) {
        if seq % self.stride != 1 % self.stride {
            return;
        }
        if self.entries.len() >= INDEX_ENTRIES {
            self.stride *= 2;
            let stride = self.stride;
            self.entries.retain(|(seq, _)| seq % stride == 1);
        }
        self.entries.push((seq, offset));
    }

    /// Offset of a record at or before `seq`.
    fn before(&self, seq: u64) -> u64 {
        let at = self.entries.partition_point(|(entry, _)| *entry <= seq);
        at.checked_sub(1).and_then(|at| self.entries.get(at)).map_or(0, |(_, offset)| *offset)
    }
}

#[derive(Debug)]
struct SpoolState {
    recent: VecDeque<SpoolLine>,
    recent_bytes: usize,
    last: u64,
    on_disk: u64,
    failing: bool,
    lost: u64,
    /// The file, and the offsets of records in it: it may be replaced by a shorter one.
    file: Arc<File>,
    index: Index,
    /// Records that were left out of it so far.
    left_out: u64,
    manifest: Option<Vec<u8>>,
    closing: bool,
    idle: bool,
}

#[derive(Debug)]
struct SharedState {
    state: Mutex<SpoolState>,
    work: Condvar,
    visible: watch::Sender<u64>,
}

impl SharedState {
    fn lock(&self) -> MutexGuard<'_, SpoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The records of a node. Clones share one spool.
#[derive(Debug, Clone)]
pub(crate) struct Spool {
    shared: Arc<SharedState>,
}

impl Spool {
    /// Opens the spool of a node, repairs it, and hands every old record to `each`.
    pub fn open(paths: &RunPaths, each: impl FnMut(&Record)) -> io::Result<Spool> {
        Spool::flushed_by(Spool::file(paths)?, paths, each, File::sync_data)
    }

    fn file(paths: &RunPaths) -> io::Result<File> {
        let mut how = OpenOptions::new();
        trust::open(&paths.spool(), how.read(true).write(true).create(true).truncate(false))
    }

    fn flushed_by(
        file: File,
        paths: &RunPaths,
        mut each: impl FnMut(&Record),
        flush: impl Fn(&File) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Spool> {
        let (mut index, file) = (Index::default(), Arc::new(file));
        let (last, length) = scan(&file, |record, offset| {
            index.note(record.seq, offset);
            each(record);
        })?;
        if file.metadata()?.len() != length {
            file.set_len(length)?;
        }
        let (visible, _) = watch::channel(last);
        let state = SpoolState {
            recent: VecDeque::new(),
            recent_bytes: 0,
            last,
            on_disk: last,
            failing: false,
            lost: 0,
            file: file.clone(),
            index,
            left_out: 0,
            manifest: None,
            closing: false,
            idle: true,
        };
        let shared = Arc::new(SharedState { state: Mutex::new(state), work: Condvar::new(), visible });
        let rewrite_at = compaction::FILE_BYTES;
        let (shared_too, paths, flusher) = (shared.clone(), paths.clone(), Flusher::start(flush)?);
        let writer = SpoolWriter { shared: shared_too, file, length, rewrite_at, paths, flusher };
        std::thread::Builder::new().name("spool".into()).spawn(move || writer.run())?;
        Ok(Spool { shared })
    }

    /// Adds a record and returns its number; the disk is written to by another thread.
    pub fn append(&self, generation: Generation, event: RecordEvent) -> u64 {
        let mut state = self.shared.lock();
        let seq = state.last + 1;
        let mut record = Record { seq, time: wall_time(), generation, event };
        let mut json = serde_json::to_string(&record).unwrap_or_default();
        if json.is_empty() || json.len() > MAX_FRAME - 64 {
            let text = format!("a record of {} bytes was too long and was dropped", json.len());
            record.event = RecordEvent::Notice { text };
            json = serde_json::to_string(&record).unwrap_or_default();
        }
        state.last = seq;
        state.recent_bytes += json.len();
        state.recent.push_back(SpoolLine { seq, json: json.into() });
        trim(&mut state);
        let (failing, idle) = (state.failing, state.idle);
        drop(state);
        // A busy writer checks again before it waits.
        if idle {
            self.shared.work.notify_all();
        }
        if failing {
            self.shared.visible.send_replace(seq);
        }
        seq
    }

    /// Has the manifest written soon; the latest wins.
    pub fn save_manifest(&self, bytes: Vec<u8>) {
        self.shared.lock().manifest = Some(bytes);
        self.shared.work.notify_all();
    }

    /// Number of the newest record that readers may see; changes wake readers.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.shared.visible.subscribe()
    }

    /// There are records that readers may not see yet.
    pub fn is_behind(&self) -> bool {
        *self.shared.visible.borrow() < self.shared.lock().last
    }

    /// Records lost because the disk did not take them for too long.
    pub fn lost(&self) -> u64 {
        self.shared.lock().lost
    }

    /// Records that were left out of the file since it was opened, so that it stays small.
    pub fn left_out(&self) -> u64 {
        self.shared.lock().left_out
    }

    /// The disk does not take records at the moment.
    pub fn is_failing(&self) -> bool {
        self.shared.lock().failing
    }

    /// The records after `after`, at most about `bytes` of them; empty when there are none yet. Reads the
    /// file when they are old: call it where blocking is allowed.
    pub fn read(&self, after: u64, bytes: usize) -> Vec<SpoolLine> {
        let (file, offset, upto) = {
            let state = self.shared.lock();
            let visible = *self.shared.visible.borrow();
            if visible <= after {
                return Vec::new();
            }
            let first_recent = state.recent.front().map_or(u64::MAX, |line| line.seq);
            if first_recent <= after + 1 || state.on_disk <= after {
                let lines = state.recent.iter().filter(|line| line.seq > after && line.seq <= visible);
                return without_gap(after, cut(lines.cloned(), bytes));
            }
            (state.file.clone(), state.index.before(after + 1), state.on_disk)
        };
        let lines = BufReader::with_capacity(1 << 16, ReadFrom { file, offset })
            .lines()
            .map_while(Result::ok)
            .filter_map(|json| Some(SpoolLine { seq: number(&json)?, json: json.into() }))
            .skip_while(|line| line.seq <= after)
            .take_while(|line| line.seq <= upto);
        let lines = match cut(lines, bytes) {
            // The file is damaged: the records in memory are better than nothing.
            none if none.is_empty() => {
                cut(self.shared.lock().recent.iter().filter(|line| line.seq > after).cloned(), bytes)
            }
            lines => lines,
        };
        without_gap(after, lines)
    }

    /// `after` is recent enough to be read without the disk.
    pub fn is_recent(&self, after: u64) -> bool {
        let state = self.shared.lock();
        state.recent.front().map_or(state.last <= after, |line| line.seq <= after + 1)
    }

    /// Waits until everything is on disk, at most `within`; `false` when it is not.
    pub fn flush(&self, within: Duration) -> bool {
        let state = self.shared.lock();
        let (state, _) = self
            .shared
            .work
            .wait_timeout_while(state, within, |s| {
                !s.failing && (s.on_disk < s.last || s.manifest.is_some() || !s.idle)
            })
            .unwrap_or_else(PoisonError::into_inner);
        state.on_disk == state.last && state.manifest.is_none()
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        // The writer holds one reference; when this is the last other one, it has nothing to wait for.
        if Arc::strong_count(&self.shared) <= 2 {
            self.shared.lock().closing = true;
            self.shared.work.notify_all();
        }
    }
}

fn cut(lines: impl Iterator<Item = SpoolLine>, bytes: usize) -> Vec<SpoolLine> {
    let mut size = 0;
    lines
        .take_while(|line| {
            let first = size == 0;
            size += line.json.len();
            first || size <= bytes
        })
        .collect()
}

/// Puts a record before `lines` that stands for those between `after` and them, where there are such.
fn without_gap(after: u64, mut lines: Vec<SpoolLine>) -> Vec<SpoolLine> {
    let Some(first) = lines.first() else { return lines };
    let begins = span(&first.json).map_or(first.seq, |(begins, _)| begins);
    if begins > after + 1 {
        let line = gap_line(after + 1, begins - 1, &first.json);
        lines.insert(0, line);
    }
    lines
}

/// The record that stands for records that memory could not hold; `next` is the one after them.
fn gap_line(first: u64, last: u64, next: &str) -> SpoolLine {
    let next = serde_json::from_str::<Record>(next).ok();
    let (time, generation) = next.map_or((wall_time(), Generation(0)), |next| (next.time, next.generation));
    let record = compaction::omitted(first, last, time, generation);
    SpoolLine { seq: last, json: serde_json::to_string(&record).unwrap_or_default().into() }
}

fn trim(state: &mut SpoolState) {
    while let Some(first) = state.recent.front() {
        let written = first.seq <= state.on_disk;
        let over = if written { KEPT_BYTES } else { WAITING_BYTES };
        if state.recent_bytes <= over {
            return;
        }
        state.recent_bytes -= first.json.len();
        if !written {
            state.lost += 1;
        }
        state.recent.pop_front();
    }
}

fn number(json: &str) -> Option<u64> {
    span(json).map(|(_, last)| last)
}

/// The first and the last number that a record stands for.
fn span(json: &str) -> Option<(u64, u64)> {
    #[derive(serde::Deserialize)]
    struct NumberedRecord {
        seq: u64,
        event: First,
    }
    #[derive(serde::Deserialize)]
    struct First {
        #[serde(default)]
        event: String,
        #[serde(default)]
        first: Option<u64>,
    }
    let NumberedRecord { seq, event } = serde_json::from_str(json).ok()?;
    Some((event.first.filter(|_| event.event == "omitted").unwrap_or(seq), seq))
}

/// Reads all whole lines; returns the last number and the length up to the last whole, readable line's end.
fn scan(file: &Arc<File>, mut each: impl FnMut(&Record, u64)) -> io::Result<(u64, u64)> {
    let mut reader = BufReader::with_capacity(1 << 16, ReadFrom { file: file.clone(), offset: 0 });
    let (mut last, mut offset, mut line) = (0, 0, Vec::new());
    loop {
        line.clear();
        let read = reader.by_ref().take(2 * MAX_FRAME as u64).read_until(b'\n', &mut line)? as u64;
        if read == 0 || line.last() != Some(&b'\n') {
            return Ok((last, offset));
        }
        if let Ok(record) = serde_json::from_slice::<Record>(&line) {
            last = last.max(record.seq);
            each(&record, offset);
        }
        offset += read;
    }
}

struct SpoolWriter {
    shared: Arc<SharedState>,
    file: Arc<File>,
    length: u64,
    /// Length at which the file is rewritten.
    rewrite_at: u64,
    paths: RunPaths,
    flusher: Flusher,
}

impl SpoolWriter {
    fn run(mut self) {
        loop {
            let (lines, manifest, closing) = {
                let mut state = self.shared.lock();
                while state.on_disk == state.last && state.manifest.is_none() && !state.closing {
                    state.idle = true;
                    self.shared.work.notify_all();
                    state = self.shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                state.idle = false;
                let from = state.on_disk;
                let lines: Vec<SpoolLine> =
                    state.recent.iter().filter(|line| line.seq > from).cloned().collect();
                (lines, state.manifest.take(), state.closing)
            };
            let saved = manifest.as_ref().map_or(Ok(()), |bytes| {
                manifest::replace(&self.paths, bytes).map(|file| self.flusher.flush(file))
            });
            let wrote = self.write(lines);
            if self.length >= self.rewrite_at {
                self.rewrite();
            }
            let mut state = self.shared.lock();
            if let (Err(_), Some(bytes)) = (&saved, manifest)
                && state.manifest.is_none()
            {
                state.manifest = Some(bytes);
            }
            state.failing = wrote.is_err() || saved.is_err();
            trim(&mut state);
            let failing = state.failing;
            let visible = if failing { state.last } else { state.on_disk };
            drop(state);
            self.shared.visible.send_replace(visible);
            if closing {
                return;
            }
            if failing {
                std::thread::sleep(RETRY);
            }
        }
    }

    /// SPOOL-5. Without room for a second file nothing changes, and it is tried again when the file has
    /// grown.
    fn rewrite(&mut self) {
        let rewritten = compaction::rewrite(&self.file, self.length, &self.paths.spool()).and_then(|new| {
            let (mut index, file) = (Index::default(), Arc::new(new.file));
            let (_, length) = scan(&file, |record, offset| index.note(record.seq, offset))?;
            Ok((file, length, index, new.left_out))
        });
        match rewritten {
            Ok((file, length, index, left_out)) => {
                let mut state = self.shared.lock();
                (self.file, self.length) = (file.clone(), length);
                (state.file, state.index) = (file, index);
                state.left_out += left_out;
                self.rewrite_at = compaction::FILE_BYTES.max(length + compaction::FILE_BYTES / 4);
            }
            Err(error) => {
                log_line(&format!("{} cannot be rewritten: {error}", self.paths.spool().display()));
                self.rewrite_at = self.length + compaction::FILE_BYTES / 4;
            }
        }
    }

    fn write(&mut self, mut lines: Vec<SpoolLine>) -> io::Result<()> {
        // Numbers that memory could not hold; `lost` has counted them.
        let on_disk = self.shared.lock().on_disk;
        lines = without_gap(on_disk, lines);
        let Some(last) = lines.last() else { return Ok(()) };
        let bytes: Vec<u8> =
            lines.iter().flat_map(|line| [line.json.as_bytes(), b"\n"]).flatten().copied().collect();
        let written = self.file.write_all_at(&bytes, self.length);
        if let Err(error) = written {
            // Half a line must not stay between whole ones.
            let _ = self.file.set_len(self.length);
            return Err(error);
        }
        let mut state = self.shared.lock();
        let mut offset = self.length;
        for line in &lines {
            state.index.note(line.seq, offset);
            offset += line.json.len() as u64 + 1;
        }
        state.on_disk = last.seq;
        self.length = offset;
        Ok(())
    }
}

#[cfg(test)]
/// Returns every record of a spool without a writer, for tests and finished runs.
fn records(path: &std::path::Path) -> io::Result<Vec<Record>> {
    let mut records = Vec::new();
    scan(&Arc::new(File::open(path)?), |record, _| records.push(record.clone()))?;
    Ok(records)
}

/// A thread that flushes the newest file that it was given. It ends with its owner, or, where the disk holds
/// it, with the process.
#[derive(Debug)]
pub(crate) struct Flusher {
    slot: Arc<FlushSlot>,
}

#[derive(Debug, Default)]
struct FlushSlot {
    /// The file that waits, and whether the owner is gone.
    state: Mutex<(Option<File>, bool)>,
    changed: Condvar,
}

impl Flusher {
    pub(crate) fn start(flush: impl Fn(&File) -> io::Result<()> + Send + 'static) -> io::Result<Flusher> {
        let slot = Arc::new(FlushSlot::default());
        let theirs = slot.clone();
        std::thread::Builder::new().name("flush".into()).spawn(move || {
            while let Some(file) = theirs.next() {
                if let Err(error) = flush(&file) {
                    log_line(&format!("cannot flush the manifest to disk: {error}"));
                }
            }
        })?;
        Ok(Flusher { slot })
    }

    /// Has it flushed; one that still waits for its turn was replaced by this one.
    pub(crate) fn flush(&self, file: File) {
        self.slot.state.lock().unwrap_or_else(PoisonError::into_inner).0 = Some(file);
        self.slot.changed.notify_one();
    }
}

impl FlushSlot {
    fn next(&self) -> Option<File> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match std::mem::take(&mut state.0) {
                Some(file) => return Some(file),
                None if state.1 => return None,
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.slot.state.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.slot.changed.notify_one();
    }
}

/// How long a slow disk may hold up the end of an agent.
const LAST_RECORDS: Duration = Duration::from_secs(5);

/// Records, notices and the log of the agent.
pub(super) struct AgentJournal {
    lifecycle: Rc<RefCell<Lifecycle>>,
    spool: Spool,
    path: PathBuf,
    failing: bool,
    left_out: u64,
    /// Notifications about some records.
    pub notifier: RefCell<AgentNotifier>,
}

impl AgentJournal {
    /// A journal that writes to `spool`, whose file is `path`.
    pub fn new(
        lifecycle: Rc<RefCell<Lifecycle>>,
        spool: Spool,
        path: PathBuf,
        notifier: AgentNotifier,
    ) -> AgentJournal {
        AgentJournal { lifecycle, spool, path, failing: false, left_out: 0, notifier: RefCell::new(notifier) }
    }

    /// Records an event of the latest generation.
    pub fn record(&self, event: RecordEvent) {
        self.record_of(self.lifecycle.borrow().generation(), event);
    }

    /// Records an event of any generation.
    pub fn record_of(&self, generation: Generation, event: RecordEvent) {
        self.notifier.borrow_mut().on_record(&event);
        self.spool.append(generation, event);
    }

    /// Records a notice of the agent.
    pub fn notice(&self, text: String) {
        log_line(&text);
        self.record(RecordEvent::Notice { text });
    }

    /// Reports when records cannot be written to disk, and when they can be again.
    pub fn check_disk(&mut self) {
        let left_out = self.spool.left_out();
        if left_out > self.left_out {
            let text = format!("{}: {left_out} older records were dropped so far", self.path.display());
            // One is enough for a run of weeks; consoles count what they do not get.
            if self.left_out == 0 {
                self.notice(text)
            } else {
                log_line(&text)
            }
            self.left_out = left_out;
        }
        let failing = self.spool.is_failing();
        if failing == self.failing {
            return;
        }
        self.failing = failing;
        self.notice(if failing {
            format!("cannot write {}; records are kept in memory", self.path.display())
        } else {
            format!("records are written to disk again; {} were lost", self.spool.lost())
        });
    }

    /// Writes the manifest soon.
    pub fn save_manifest(&self, bytes: Vec<u8>) {
        self.spool.save_manifest(bytes);
    }

    /// Waits until everything is on disk; `false` when the disk takes too long.
    pub fn flush(&self) -> bool {
        self.spool.flush(LAST_RECORDS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_types::ids::NodeRank;
    use std::io::Write;

    fn place() -> (tempfile::TempDir, RunPaths) {
        let folder = tempfile::tempdir().unwrap();
        let paths = RunPaths { run_dir: folder.path().into(), node: NodeRank(0) };
        std::fs::create_dir(paths.node_dir()).unwrap();
        (folder, paths)
    }

    fn notice(text: &str) -> RecordEvent {
        RecordEvent::Notice { text: text.into() }
    }

    fn numbers(lines: &[SpoolLine]) -> Vec<u64> {
        lines.iter().map(|line| line.seq).collect()
    }

    fn wait_until_visible(spool: &Spool, seq: u64) {
        let begun = std::time::Instant::now();
        while *spool.watch().borrow() < seq {
            assert!(begun.elapsed() < Duration::from_secs(20), "record {seq} never became visible");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn spool_1_numbers_go_on_after_a_restart_and_a_torn_line() {
        let (_folder, paths) = place();
        let spool = Spool::open(&paths, |_| panic!("nothing there yet")).unwrap();
        assert_eq!(
            (spool.append(Generation(0), notice("a")), spool.append(Generation(0), notice("b"))),
            (1, 2)
        );
        assert!(spool.flush(Duration::from_secs(20)));
        drop(spool);
        let mut file = OpenOptions::new().append(true).open(paths.spool()).unwrap();
        file.write_all(br#"{"seq":3,"time":0,"gener"#).unwrap();
        let mut seen = Vec::new();
        let spool = Spool::open(&paths, |record| seen.push(record.seq)).unwrap();
        assert_eq!(seen, [1, 2]);
        assert_eq!(spool.append(Generation(1), notice("c")), 3);
        assert!(spool.flush(Duration::from_secs(20)));
        let all = records(&paths.spool()).unwrap();
        assert_eq!(all.iter().map(|record| record.seq).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(all[2].event, notice("c"));
    }

    #[test]
    fn readers_start_anywhere_whether_from_memory_or_from_the_file() {
        let (_folder, paths) = place();
        let spool = Spool::open(&paths, |_| {}).unwrap();
        let long = "x".repeat(40_000);
        for _ in 0..300 {
            spool.append(Generation(0), notice(&long));
        }
        assert!(spool.flush(Duration::from_secs(60)));
        assert!(!spool.is_recent(0), "twelve megabytes do not stay in memory");
        let mut after = 0;
        let mut seen = Vec::new();
        loop {
            let lines = spool.read(after, 100_000);
            let Some(last) = lines.last() else { break };
            after = last.seq;
            seen.extend(numbers(&lines));
        }
        assert_eq!(seen, (1..=300).collect::<Vec<_>>());
        assert_eq!(numbers(&spool.read(154, 1)), [155]);
        assert_eq!(numbers(&spool.read(299, 1 << 20)), [300]);
        assert_eq!(spool.read(300, 1 << 20), []);
        drop(spool);
        let again = Spool::open(&paths, |_| {}).unwrap();
        assert_eq!(numbers(&again.read(298, 1 << 20)), [299, 300]);
    }

    /// A disk without space.
    fn full() -> File {
        OpenOptions::new().read(true).write(true).open("/dev/full").unwrap()
    }

    #[test]
    fn spool_3_full_disk_costs_nothing_but_durability() {
        let (_folder, paths) = place();
        let spool = Spool::flushed_by(full(), &paths, |_| {}, File::sync_data).unwrap();
        for i in 1..=20 {
            assert_eq!(spool.append(Generation(0), notice("n")), i);
        }
        wait_until_visible(&spool, 20);
        assert!(spool.is_failing() && spool.lost() == 0);
        assert_eq!(numbers(&spool.read(0, 1 << 20)), (1..=20).collect::<Vec<_>>());
        assert_eq!(numbers(&spool.read(15, 1 << 20)), [16, 17, 18, 19, 20]);
        assert!(!spool.flush(Duration::from_millis(10)));
    }

    #[test]
    fn spool_4_memory_stays_bounded_and_losses_are_counted() {
        let mut index = Index { stride: 1, entries: Vec::new() };
        for seq in 1..=100_000 {
            index.note(seq, seq * 10);
        }
        assert!(index.entries.len() <= INDEX_ENTRIES);
        for seq in [1, 2, 4_999, 100_000] {
            let offset = index.before(seq);
            assert!(offset <= seq * 10 && offset + index.stride * 10 > seq * 10, "record {seq} at {offset}");
        }
        let (_folder, paths) = place();
        let spool = Spool::flushed_by(full(), &paths, |_| {}, File::sync_data).unwrap();
        let long = "x".repeat(1_000_000);
        for _ in 0..40 {
            spool.append(Generation(0), notice(&long));
        }
        assert!(spool.lost() >= 5, "lost {}", spool.lost());
        let kept = spool.shared.lock().recent_bytes;
        assert!(kept <= WAITING_BYTES, "kept {kept}");
    }

    #[test]
    fn record_too_long_for_a_frame_becomes_a_notice() {
        let (_folder, paths) = place();
        let spool = Spool::open(&paths, |_| {}).unwrap();
        spool.append(Generation(0), notice(&"x".repeat(MAX_FRAME)));
        assert!(spool.flush(Duration::from_secs(20)));
        assert!(spool.read(0, 1)[0].json.len() < 300);
    }

    /// SPOOL-6: a disk that does not return from a flush, as a busy one for seconds and a broken one forever.
    #[test]
    fn spool_6_records_and_manifest_are_visible_during_a_flush() {
        let (_folder, paths) = place();
        let (held, hold) = std::sync::mpsc::channel::<()>();
        let spool = Spool::flushed_by(
            Spool::file(&paths).unwrap(),
            &paths,
            |_| {},
            move |_| {
                let _ = hold.recv();
                Ok(())
            },
        )
        .unwrap();
        for world_size in 1..=20 {
            let manifest = manifest::Manifest { world_size, ..manifest::Manifest::default() };
            spool.save_manifest(manifest.bytes());
            let seq = spool.append(Generation(0), notice("a"));
            assert!(spool.flush(Duration::from_secs(20)));
            assert_eq!(manifest::Manifest::load(&paths.manifest()), Some(manifest));
            wait_until_visible(&spool, seq);
        }
        drop(held);
    }

    /// SPOOL-6: what a console has seen happen, another console finds in the manifest.
    #[test]
    fn spool_6_manifest_is_written_before_later_records() {
        let (_folder, paths) = place();
        let spool = Spool::open(&paths, |_| {}).unwrap();
        for world_size in 1..=200 {
            let manifest = manifest::Manifest { world_size, ..manifest::Manifest::default() };
            spool.save_manifest(manifest.bytes());
            wait_until_visible(&spool, spool.append(Generation(0), notice("a")));
            assert_eq!(manifest::Manifest::load(&paths.manifest()), Some(manifest));
        }
    }
}
