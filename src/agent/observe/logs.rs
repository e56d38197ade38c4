//! Tails the ranks' log files: lines with numbers, the last ones on request, and a bound on the disk they
//! take.
//!
//! Owner: one thread. Ranks write to files, not to pipes, so that a rank never waits for its monitor.
//! Invariants:
//! - LOG-1: every line has its number in the rank's log of this generation, whether it was delivered or
//!   dropped; those that were not even read, because a rank writes faster than they are passed on, are
//!   counted. What exceeds the bound [`FLOOD`] times is not read at all: its lines are estimated.
//!   Lines that a display of several rows has written over are neither: their numbers are left out.
//! - Memory per rank is bounded: unfinished rows, and the last [`LAST_LINES`].
//! - LOG-3: a log file grows to at most [`FILE_BYTES`] and what a rank writes in one round; then its last
//!   [`FILE_BYTES`] move to `rank<r>.log.1` and it starts empty. A round reads a bounded part of it however much a
//!   rank has written: what it cannot pass on is only counted, and of a flood, only what is passed on is kept. The
//!   same holds at the end of a rank, on a full disk, and on a machine that has no core for the agent.
//! - LOG-4: a failure to read or store is reported once when it starts and once when it is resolved.
//! - LOG-5: lines with the reason of an abort are among the last lines of a rank, although the dump of its
//!   threads follows them.

use super::line_splitter::LineSplitter;
use super::line_times::{self, LineTimesWriter};
use super::live_lines::{LiveLines, LivePace, ROW_BYTES};
use super::secrets::{self, LogSecrets};
use crate::transient_failure::TransientFailure;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::message::{AgentMessage, LinesRead};
use rankdeck_proto::trust;
use rankdeck_types::ids::{Generation, Rank};
use rustix::fs::FallocateFlags;
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Lines reported when a rank ends.
pub(crate) const LAST_LINES: usize = 20;
/// Reasons of an abort that are kept, and how many lines may follow them.
const REASONS: usize = 4;
const DUMP_LINES: u64 = 2000;
/// What C++, Python, the C library, PyTorch and CUDA print about an abort. A dump of all threads follows.
const ABORT_REASONS: [&str; 13] = [
    "terminate called",
    "what():",
    "Fatal Python error",
    "EnforceNotMet",
    "CUDA error",
    "device-side assert",
    "Assertion `",
    "Assertion failed",
    "Check failed:",
    "free(): ",
    "malloc(): ",
    "double free or corruption",
    "stack smashing detected",
];
/// Size at which a log file is moved away.
const FILE_BYTES: u64 = 64 << 20;
/// Read of one file in one round; lines before that are only counted.
const ROUND_BYTES: u64 = 4 << 20;
/// A file of this many times its bound is emptied: to read all of it would take longer than a rank takes to write as
/// much again.
const FLOOD: u64 = 4;
/// Lines of one batch, and about the bytes of it.
const BATCH_LINES: usize = 500;
const BATCH_BYTES: usize = 96 << 10;
/// Between two rounds while a rank writes more than is passed on: the file must not grow far over its bound.
const RUSH_ROUND: Duration = Duration::from_millis(20);
/// Between two rounds, and at most while nothing is written: every round takes time from the ranks' cores.
const ROUND: Duration = Duration::from_millis(200);
const CALM_ROUND: Duration = Duration::from_millis(500);
/// Rows of a display that nothing has overwritten for this long are lines.
const SETTLED: Duration = Duration::from_secs(2);

/// Consecutive lines of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LineBatch {
    /// The rank that wrote them.
    pub rank: Rank,
    pub generation: Generation,
    /// Number of the first line.
    pub first: u64,
    /// Numbers before it that no line has: a display has written over those lines.
    pub overwritten: u64,
    /// The lines, without newline.
    pub lines: Vec<String>,
    /// When they were read; empty: not known.
    pub times: Vec<LinesRead>,
}

impl LineBatch {
    /// Returns the message to consoles.
    pub fn message(self) -> AgentMessage {
        let LineBatch { rank, first, overwritten, lines, times, .. } = self;
        AgentMessage::Log { rank, first, overwritten, lines, times }
    }
}

enum TailCommand {
    Follow { rank: Rank, generation: Generation, path: PathBuf, secrets: Arc<LogSecrets> },
    Reopen { rank: Rank },
    Finish { rank: Rank, answer: Box<dyn FnOnce(Vec<String>) + Send> },
    Settle { done: Box<dyn FnOnce() + Send> },
}

/// The thread's other end.
#[derive(Clone)]
pub(crate) struct Logs {
    orders: mpsc::Sender<TailCommand>,
}

impl Logs {
    /// Starts the thread; `deliver` gets every batch, `lost` counts the lines that are in none, `live` gets what
    /// is not finished, and `report` failures to read or store.
    pub fn start(
        lost: Arc<AtomicU64>,
        live: LiveLines,
        deliver: impl FnMut(LineBatch) + Send + 'static,
        report: impl FnMut(String) + Send + 'static,
    ) -> io::Result<Logs> {
        let (orders, inbox) = mpsc::channel();
        std::thread::Builder::new()
            .name("logs".into())
            .spawn(move || run(&inbox, &lost, &live, deliver, report))?;
        Ok(Logs { orders })
    }

    /// Follows a file from its start; the rank's former file is forgotten.
    pub fn follow(&self, rank: Rank, generation: Generation, path: PathBuf, secrets: Arc<LogSecrets>) {
        let _ = self.orders.send(TailCommand::Follow { rank, generation, path, secrets });
    }

    /// The rank starts again, and appends to its file.
    pub fn reopen(&self, rank: Rank) {
        let _ = self.orders.send(TailCommand::Reopen { rank });
    }

    /// Calls `done` when the files of all ranks that have ended are as they stay.
    pub fn settle(&self, done: impl FnOnce() + Send + 'static) {
        let _ = self.orders.send(TailCommand::Settle { done: Box::new(done) });
    }

    /// The rank has ended: reads to the end, then hands over the last lines.
    pub fn finish(&self, rank: Rank, answer: impl FnOnce(Vec<String>) + Send + 'static) {
        let _ = self.orders.send(TailCommand::Finish { rank, answer: Box::new(answer) });
    }
}

fn run(
    inbox: &mpsc::Receiver<TailCommand>,
    lost: &Arc<AtomicU64>,
    live: &LiveLines,
    mut deliver: impl FnMut(LineBatch),
    mut report: impl FnMut(String),
) {
    let mut tails: Vec<LogTailer> = Vec::new();
    let mut pause = ROUND;
    loop {
        match inbox.recv_timeout(pause) {
            Ok(TailCommand::Follow { rank, generation, path, secrets }) => {
                tails.retain(|tail| tail.rank != rank && tail.generation == generation);
                let tail = LogTailer::new(rank, generation, path, lost.clone());
                live.set(rank, Vec::new());
                tails.push(LogTailer { secrets, live: live.clone(), ..tail });
            }
            Ok(TailCommand::Reopen { rank }) => {
                tails.iter_mut().filter(|tail| tail.rank == rank).for_each(LogTailer::reopen);
            }
            Ok(TailCommand::Finish { rank, answer }) => {
                let tail = tails.iter_mut().find(|tail| tail.rank == rank);
                answer(tail.map_or(Vec::new(), |tail| tail.finish(&mut deliver)));
            }
            // The round after an end has moved what was too long.
            Ok(TailCommand::Settle { done }) => done(),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
        let grown = tails.iter_mut().map(|tail| tail.round(&mut deliver)).max().unwrap_or(0);
        tails.iter_mut().flat_map(|tail| tail.news.drain(..)).for_each(&mut report);
        pause = match grown {
            0 => CALM_ROUND,
            some if some < ROUND_BYTES => ROUND,
            _ => RUSH_ROUND,
        };
    }
}

struct LogTailer {
    rank: Rank,
    generation: Generation,
    path: PathBuf,
    file: Option<File>,
    offset: u64,
    splitter: LineSplitter,
    /// Numbers before this one are delivered, lost, or those of lines that were written over.
    next: u64,
    live: LiveLines,
    pace: LivePace,
    /// When the file last grew.
    grown_at: Instant,
    last: VecDeque<String>,
    /// LOG-5: the first and the latest reasons, with their numbers.
    reasons: VecDeque<(u64, String)>,
    limit: u64,
    lost: Arc<AtomicU64>,
    /// SECRET-2.
    secrets: Arc<LogSecrets>,
    /// The rank has ended: what it has started to write is all.
    over: bool,
    /// What lies before this in the file was not read.
    unread: u64,
    /// Lines have been left out because of that.
    flooded: bool,
    times: LineTimesWriter,
    /// Bytes that were cut off the front of the file so far.
    cut: u64,
    reading: TransientFailure,
    keeping: TransientFailure,
    timing: TransientFailure,
    /// LOG-4: failures to report.
    news: Vec<String>,
}

impl LogTailer {
    fn new(rank: Rank, generation: Generation, path: PathBuf, lost: Arc<AtomicU64>) -> LogTailer {
        LogTailer {
            rank,
            generation,
            times: LineTimesWriter::new(&path),
            cut: 0,
            path,
            file: None,
            offset: 0,
            splitter: LineSplitter::default(),
            next: 0,
            live: LiveLines::default(),
            pace: LivePace::default(),
            grown_at: Instant::now(),
            last: VecDeque::new(),
            reasons: VecDeque::new(),
            limit: FILE_BYTES,
            lost,
            secrets: Arc::default(),
            over: false,
            unread: 0,
            flooded: false,
            reading: TransientFailure::default(),
            keeping: TransientFailure::default(),
            timing: TransientFailure::default(),
            news: Vec::new(),
        }
    }

    /// Reads what is new; how many bytes that were.
    fn round(&mut self, deliver: &mut impl FnMut(LineBatch)) -> u64 {
        let grown = self.read_on(deliver);
        let now = Instant::now();
        if grown > 0 {
            self.grown_at = now;
        } else if self.splitter.holds_lines() && now.duration_since(self.grown_at) >= SETTLED {
            let mut lines = Vec::new();
            self.splitter.settle(|number, line| lines.push((number, line)));
            self.send(lines, deliver);
        }
        self.show_live(now);
        self.times.round(wall_ms());
        if self.offset >= self.limit {
            let error = self.rotate(deliver).err().map(|error| error.to_string());
            let what = || format!("cannot keep older lines of {}", self.path.display());
            self.news.extend(self.keeping.tried(what, error.as_deref()));
        }
        let what = || format!("cannot keep line times of {}", self.path.display());
        self.news.extend(self.timing.tried(what, self.times.error.as_deref()));
        grown
    }

    /// LIVE-1.
    fn show_live(&mut self, now: Instant) {
        let rows = self.splitter.unfinished(ROW_BYTES);
        let state = (self.splitter.newlines(), self.splitter.is_rewritten());
        if let Some(rows) = self.pace.turn(rows, state, now) {
            self.live.set(self.rank, rows);
        }
    }

    /// Reads on; how many bytes.
    fn read_on(&mut self, deliver: &mut impl FnMut(LineBatch)) -> u64 {
        let read = self.read(deliver);
        let error = match &read {
            // The rank has not started.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            read => read.as_ref().err().map(io::Error::to_string),
        };
        let what = || format!("cannot read lines of {}", self.path.display());
        self.news.extend(self.reading.tried(what, error.as_deref()));
        read.unwrap_or(0)
    }

    /// The last lines of a rank that starts again are those of its new process.
    fn reopen(&mut self) {
        self.over = false;
        self.last.clear();
        self.reasons.clear();
    }

    fn finish(&mut self, deliver: &mut impl FnMut(LineBatch)) -> Vec<String> {
        self.over = true;
        self.read_on(deliver);
        let mut lines = Vec::new();
        self.splitter.finish(|number, line| lines.push((number, line)));
        self.send(lines, deliver);
        self.show_live(Instant::now());
        self.times.finish();
        self.last_lines()
    }

    /// LOG-5. The last lines, behind the reasons that they have pushed out.
    fn last_lines(&self) -> Vec<String> {
        let first = self.next.saturating_sub(self.last.len() as u64);
        let is_pushed_out =
            |(number, _): &&(u64, String)| *number < first && number.saturating_add(DUMP_LINES) >= self.next;
        let reasons: Vec<&String> = self.reasons.iter().filter(is_pushed_out).map(|(_, line)| line).collect();
        let skipped = (reasons.len() + self.last.len()).saturating_sub(LAST_LINES);
        reasons.into_iter().chain(self.last.iter().skip(skipped)).cloned().collect()
    }

    /// Takes in what is there now; of more than [`ROUND_BYTES`], the last.
    fn read(&mut self, deliver: &mut impl FnMut(LineBatch)) -> io::Result<u64> {
        if self.file.is_none() {
            self.file = Some(trust::open(&self.path, OpenOptions::new().read(true).write(true))?);
        }
        let Some(file) = self.file.as_ref() else { return Ok(0) };
        let length = file.metadata()?.len();
        if length < self.offset {
            // The file was truncated: its content is new.
            self.cut += self.offset;
            (self.offset, self.unread) = (0, 0);
            self.times.begins_at(self.cut, self.splitter.newlines());
        }
        let begun = self.offset;
        let mut chunk = vec![0; if length == begun { 0 } else { 1 << 16 }];
        if length - begun > FLOOD.saturating_mul(self.limit) {
            self.leave_out(length, &mut chunk, deliver)?;
        }
        if length - self.offset > ROUND_BYTES {
            self.skip(length, &mut chunk, deliver)?;
        }
        let mut lines = Vec::new();
        while self.offset < length {
            let read = self.piece(length, self.offset, &mut chunk)?;
            if read == 0 {
                break;
            }
            let is_last = self.offset + read as u64 >= length;
            let whole = self.hide(self.offset, &mut chunk[..read], is_last && self.over);
            self.offset += whole as u64;
            self.splitter.push(&chunk[..whole], |number, line| lines.push((number, line)));
            self.send(std::mem::take(&mut lines), deliver);
            if is_last && whole < read {
                break;
            }
        }
        if self.offset > begun {
            self.times.read(self.cut + self.offset, wall_ms());
        }
        Ok(self.offset - begun)
    }

    /// LOG-1, LOG-3. Continues at a line among the last [`ROUND_BYTES`]; the lines before it are not read. Secrets in
    /// them stay in the file until this round empties it, and nothing copies them.
    fn leave_out(
        &mut self,
        length: u64,
        chunk: &mut [u8],
        deliver: &mut impl FnMut(LineBatch),
    ) -> io::Result<()> {
        let from = length - ROUND_BYTES.min(self.limit);
        let read = self.piece(length, from, chunk)?;
        let ends = line_ends(&chunk[..read]);
        let begin = memchr::memchr(b'\n', &chunk[..read]).map_or(0, |end| end as u64 + 1);
        // As long as those behind them.
        let count = (from - self.offset).saturating_mul(ends) / (read as u64).max(1);
        let mut lines = Vec::new();
        self.splitter.settle(|number, line| lines.push((number, line)));
        self.send(lines, deliver);
        self.splitter.skip(count);
        (self.offset, self.unread) = (from + begin, from + begin);
        self.next = self.next.max(self.splitter.newlines());
        self.lost.fetch_add(count, Ordering::Relaxed);
        if !std::mem::replace(&mut self.flooded, true) {
            let path = self.path.display();
            self.news.push(format!(
                "lines of {path} were skipped: they are written faster than this host can read"
            ));
        }
        Ok(())
    }

    fn piece(&self, end: u64, offset: u64, chunk: &mut [u8]) -> io::Result<usize> {
        let Some(file) = self.file.as_ref() else { return Ok(0) };
        let length = chunk.len().min((end - offset) as usize);
        file.read_at(&mut chunk[..length], offset)
    }

    /// SECRET-2. Hides secrets in what lies at `offset` of the file, there as well; how many bytes may be
    /// passed on. What may be the beginning of a secret waits for the rest of it, unless that never comes.
    fn hide(&self, offset: u64, bytes: &mut [u8], is_all: bool) -> usize {
        for range in self.secrets.hide(bytes) {
            let place = offset + range.start as u64;
            // Where it cannot be written it is still in no line.
            let _ = self.file.as_ref().map(|file| file.write_all_at(&bytes[range], place));
        }
        bytes.len() - if is_all { 0 } else { self.secrets.open_end(bytes) }
    }

    /// LOG-1. Counts the lines before the last [`ROUND_BYTES`], and continues behind the last of them. A line
    /// that is longer than all that is cut short as every long line.
    fn skip(&mut self, length: u64, chunk: &mut [u8], deliver: &mut impl FnMut(LineBatch)) -> io::Result<()> {
        let end = length - ROUND_BYTES;
        // This round cuts off what is before; a secret may begin there.
        let kept = length.saturating_sub(self.limit + 2 * secrets::MOST as u64);
        let (mut count, mut behind, mut at) = (0, self.offset, self.offset);
        while at < end {
            let is_cut = at < kept;
            let read = self.piece(if is_cut { kept.min(end) } else { end }, at, chunk)?;
            if read == 0 {
                break;
            }
            let read = match if is_cut { read } else { self.hide(at, &mut chunk[..read], false) } {
                0 => read,
                whole => whole,
            };
            if let Some(last) = memchr::memrchr(b'\n', &chunk[..read]) {
                count += line_ends(&chunk[..read]);
                behind = at + last as u64 + 1;
            }
            at += read as u64;
        }
        if count > 0 {
            let mut lines = Vec::new();
            self.splitter.settle(|number, line| lines.push((number, line)));
            self.send(lines, deliver);
            self.splitter.skip(count);
            self.offset = behind;
            self.next = self.next.max(self.splitter.newlines());
            self.lost.fetch_add(count, Ordering::Relaxed);
        }
        Ok(())
    }

    fn send(&mut self, lines: Vec<(u64, String)>, deliver: &mut impl FnMut(LineBatch)) {
        for (number, line) in lines.iter().filter(|(_, line)| is_abort_reason(line)) {
            if self.reasons.len() == REASONS {
                self.reasons.remove(1);
            }
            self.reasons.push_back((*number, line.clone()));
        }
        for (_, line) in lines.iter().rev().take(LAST_LINES).rev() {
            if self.last.len() == LAST_LINES {
                self.last.pop_front();
            }
            self.last.push_back(line.clone());
        }
        let (mut batch, mut first, mut bytes) = (Vec::new(), 0, 0);
        for (number, line) in lines {
            let is_next = number == first + batch.len() as u64;
            if !is_next || batch.len() >= BATCH_LINES || bytes + line.len() > BATCH_BYTES {
                self.flush(first, std::mem::take(&mut batch), deliver);
                bytes = 0;
            }
            if batch.is_empty() {
                first = number;
            }
            bytes += line.len();
            batch.push(line);
        }
        self.flush(first, batch, deliver);
    }

    fn flush(&mut self, first: u64, lines: Vec<String>, deliver: &mut impl FnMut(LineBatch)) {
        if !lines.is_empty() {
            let overwritten = first.saturating_sub(self.next);
            self.next = first + lines.len() as u64;
            let times = vec![LinesRead { lines: lines.len() as u32, time_ms: wall_ms() }];
            let (rank, generation) = (self.rank, self.generation);
            deliver(LineBatch { rank, generation, first, overwritten, lines, times });
        }
    }

    /// LOG-3. The rank appends, so it continues at the file's new end.
    fn rotate(&mut self, deliver: &mut impl FnMut(LineBatch)) -> io::Result<()> {
        let mut old = self.path.clone().into_os_string();
        old.push(".1");
        let upto = self.offset;
        let kept = |tail: &LogTailer| tail.offset.saturating_sub(tail.limit).max(tail.unread)..tail.offset;
        let mut copied = self.copy(kept(self), &old);
        // A large file takes seconds to cut and none to empty. Nothing is lost once the rank has ended, and of a
        // flood no line is exact.
        let empties = self.over || self.unread > 0;
        match self.file.as_ref().filter(|_| !empties).and_then(|file| cut_front(file, upto)) {
            Some(cut) => {
                self.offset -= cut;
                self.cut += cut;
            }
            None => {
                // What came meanwhile is read, and copied as well.
                self.read(deliver)?;
                if self.offset > upto {
                    copied = self.copy(kept(self), &old);
                }
                self.file.as_ref().map_or(Ok(()), |file| file.set_len(0))?;
                self.cut += self.offset;
                (self.offset, self.unread) = (0, 0);
            }
        }
        if copied.is_err() {
            // The disk is full: the log may fill it, the copy must not.
            let _ = std::fs::remove_file(&old);
        }
        let Some(file) = self.file.as_ref() else { return Ok(()) };
        // Less than a block is left of what was read.
        let mut left = vec![0; self.offset as usize];
        let read = file.read_exact_at(&mut left, 0);
        let ends = read.map_or(0, |()| line_ends(&left));
        self.times.begins_at(self.cut, self.splitter.newlines().saturating_sub(ends));
        copied
    }

    /// Copies a part of the file that has been read: the rest may hold secrets.
    fn copy(&mut self, part: Range<u64>, to: &OsStr) -> io::Result<()> {
        let Some(file) = self.file.as_ref() else { return Ok(()) };
        let mut from = file.try_clone()?;
        from.seek(SeekFrom::Start(part.start))?;
        let mut copy = trust::open(to.as_ref(), OpenOptions::new().write(true).create(true).truncate(true))?;
        io::copy(&mut from.take(part.end - part.start), &mut copy)?;
        self.times.older_begins_at(self.cut + part.start);
        Ok(())
    }
}

fn is_abort_reason(line: &str) -> bool {
    ABORT_REASONS.iter().any(|reason| line.contains(reason))
}

/// How many lines end in these bytes.
pub(crate) fn line_ends(bytes: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', bytes).count() as u64
}

/// Cuts whole blocks off the front of a file, so that what is appended meanwhile stays; how many bytes.
/// `None` where the file system cannot: there a line that is written while the file is emptied is lost.
fn cut_front(file: &File, upto: u64) -> Option<u64> {
    let block = file.metadata().ok()?.blksize().max(1);
    let cut = upto / block * block;
    if cut == 0 {
        return None;
    }
    rustix::fs::fallocate(file, FallocateFlags::COLLAPSE_RANGE, 0, cut).ok().map(|()| cut)
}

/// The last `most` lines of the finished log file of a rank.
pub(crate) fn tail(
    path: &std::path::Path,
    (rank, generation): (Rank, Generation),
    most: usize,
) -> io::Result<Vec<LineBatch>> {
    let mut file = File::open(path)?;
    let times = line_times::LineTimes::open(path);
    let (_, begin) = times.begins();
    let before = times.lines_before().unwrap_or(0);
    let mut splitter = LineSplitter::default();
    let mut kept: VecDeque<(u64, String, u64)> = VecDeque::new();
    let mut keep = |number: u64, line: String, end: u64| {
        if kept.len() == most {
            kept.pop_front();
        }
        if most > 0 {
            kept.push_back((number, line, end));
        }
    };
    let mut offset = 0;
    let mut chunk = vec![0; 1 << 16];
    loop {
        let read = file.read(&mut chunk)?;
        if read == 0 {
            break;
        }
        for part in chunk[..read].split_inclusive(|byte| *byte == b'\n') {
            offset += part.len() as u64;
            splitter.push(part, |number, line| keep(number, line, offset));
        }
    }
    splitter.finish(|number, line| keep(number, line, offset));
    let is_timed = kept.iter().any(|(_, _, end)| times.at(begin + end).is_some_and(|read| read.seen_ms > 0));
    let mut batches: Vec<LineBatch> = Vec::new();
    for (number, line, end) in kept {
        let first = before + number;
        let next = batches.last().map(|batch| batch.first + batch.lines.len() as u64);
        if next != Some(first) {
            let overwritten = next.map_or(0, |next| first.saturating_sub(next));
            let (lines, times) = (Vec::new(), Vec::new());
            batches.push(LineBatch { rank, generation, first, overwritten, lines, times });
        }
        if let Some(batch) = batches.last_mut() {
            batch.lines.push(line);
            if is_timed {
                LinesRead::add(&mut batch.times, times.at(begin + end).map_or(0, |read| read.seen_ms));
            }
        }
    }
    Ok(batches)
}

/// Follows a log of rank 0 that is moved away at `limit` bytes, a round with each call.
#[cfg(test)]
pub(crate) fn tail_for_test(path: &std::path::Path, limit: u64) -> impl FnMut(&mut dyn FnMut(LineBatch)) {
    let tail = LogTailer::new(Rank(0), Generation(0), path.to_owned(), Arc::default());
    let mut tail = LogTailer { limit, ..tail };
    move |deliver| {
        tail.round(&mut |batch| deliver(batch));
    }
}

/// The wall clock, ms.
fn wall_ms() -> u64 {
    (wall_time() * 1000.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn without_folder(text: &str, folder: &tempfile::TempDir) -> String {
        text.replace(&*folder.path().to_string_lossy(), "DIR")
    }

    fn tail_of(path: &std::path::Path) -> LogTailer {
        LogTailer::new(Rank(0), Generation(0), path.to_owned(), Arc::default())
    }

    #[test]
    fn log_5_abort_reason_outlives_the_dump_of_threads() {
        let end = |text: &str| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("rank0.log");
            std::fs::write(&path, text).unwrap();
            let mut tail = tail_of(&path);
            tail.round(&mut |_| {});
            tail.finish(&mut |_| {})
        };
        let what = "  what():  [enforce fail at pair.cc:446] op.preamble.length <= op.nbytes. 8 vs 4";
        let abort = format!("terminate called after throwing an instance of 'gloo::EnforceNotMet'\n{what}\n");
        let dump = |frames: usize| "  File \"/w/t.py\", line 3 in f\n".repeat(frames);
        let last = end(&format!("step 1\n{abort}Fatal Python error: Aborted\n{}last\n", dump(300)));
        assert_eq!((last.len(), last[1].as_str(), last[19].as_str()), (LAST_LINES, what, "last"));
        assert!(last[0].starts_with("terminate called") && last[2].starts_with("Fatal"), "{last:?}");
        // One that is among the last lines is not repeated, and an old one is not the reason of this end.
        let last = end(&format!("{abort}{}", dump(3)));
        assert_eq!(last.iter().filter(|line| line.contains("what()")).count(), 1);
        assert!(end(&format!("{abort}{}", dump(3000))).iter().all(|line| !line.contains("what()")));
        // Of many, the first and the latest.
        let asserts = "block: [0,0,0] Assertion `index out of bounds` failed.\n".repeat(1000);
        let last = end(&format!("{abort}{asserts}{}", dump(40)));
        assert!(last[0].contains("terminate called") && last[3].contains("Assertion"), "{last:?}");
    }

    /// LOG-1, LOG-3: as fast as this machine writes.
    #[test]
    fn log_3_flood_is_bounded_and_every_line_counted() {
        const LINES: u64 = 1_500_000;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank0.log");
        let mut file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let mut tail = tail_of(&path);
        tail.limit = 16 << 20;
        let cuts = {
            let probe = folder.path().join("probe");
            std::fs::write(&probe, vec![0; 1 << 20]).unwrap();
            cut_front(&OpenOptions::new().write(true).open(&probe).unwrap(), 1 << 19).is_some()
        };
        let writer = std::thread::spawn(move || {
            let mut block = String::new();
            for number in 0..LINES {
                block += &format!("line {number:08} {}\n", "x".repeat(85));
                if block.len() > 60_000 || number + 1 == LINES {
                    file.write_all(block.as_bytes()).unwrap();
                    block.clear();
                }
            }
        });
        let (mut delivered, mut largest, mut grown, mut flooded) = (0, 0, 1, false);
        while grown > 0 || !writer.is_finished() {
            let before = tail.next;
            let mut batches = Vec::new();
            grown = tail.round(&mut |batch: LineBatch| batches.push(batch));
            // A machine without a free core: nothing was read for too long, and the numbers are estimated.
            flooded |= tail.flooded;
            assert!(tail.next >= before);
            for batch in batches {
                delivered += batch.lines.len() as u64;
                // A line that is there is whole, and has its number.
                for (number, line) in (batch.first..).zip(&batch.lines) {
                    let is_its_own = !cuts || flooded || line.starts_with(&format!("line {number:08} "));
                    assert!(line.len() == 99 && is_its_own, "{number}: {line}");
                }
            }
            largest = largest.max(std::fs::metadata(&path).unwrap().len());
        }
        writer.join().unwrap();
        tail.finish(&mut |batch: LineBatch| delivered += batch.lines.len() as u64);
        let lost = tail.lost.load(Ordering::Relaxed);
        let all = std::fs::metadata(&path).unwrap().len()
            + std::fs::metadata(folder.path().join("rank0.log.1")).unwrap().len();
        assert!(all <= 2 * tail.limit + ROUND_BYTES, "{all} bytes are left of 150 MB");
        assert_eq!(delivered + lost, tail.next);
        let cuts = cuts && !flooded;
        assert!(!cuts || tail.next == LINES, "{} lines of {LINES}, {lost} of them lost", tail.next);
        println!("largest {largest}, delivered {delivered}, lost {lost}");
    }

    /// A rank that has written more than a round passes on, and then ends.
    #[test]
    fn log_3_end_of_a_flood_is_bounded_and_hidden() {
        for finishes in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("rank0.log");
            let secrets = Arc::new(LogSecrets::new(["s3cret-value".to_owned()].into_iter()));
            let mut tail = LogTailer { secrets, limit: 12 << 20, ..tail_of(&path) };
            let lines = (40 << 20) / 32;
            std::fs::write(&path, "x s3cret-value and more of it..\n".repeat(lines)).unwrap();
            let mut deliver = |batch: LineBatch| {
                assert!(batch.lines.iter().all(|line| !line.contains("s3cret")));
            };
            if finishes {
                assert_eq!(tail.finish(&mut deliver).len(), LAST_LINES);
            }
            tail.round(&mut deliver);
            let texts =
                ["rank0.log", "rank0.log.1"].map(|name| std::fs::read(folder.path().join(name)).unwrap());
            assert!(texts[0].len() < 1 << 20 && texts[1].len() <= 12 << 20);
            assert!(texts[1].len() > 11 << 20, "the end is kept");
            assert!(!texts.concat().windows(6).any(|bytes| bytes == b"s3cret"));
            assert_eq!(tail.next, lines as u64);
        }
    }

    /// The agent had no core for long: gigabytes are there, and more comes. Holes stand for what was written.
    #[test]
    fn log_3_flood_on_a_starved_machine_is_not_read() {
        for finishes in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("rank0.log");
            let secrets = Arc::new(LogSecrets::new(["s3cret-value".to_owned()].into_iter()));
            let mut tail = LogTailer { secrets, limit: 6 << 20, ..tail_of(&path) };
            let line = "x s3cret-value and more of it..\n";
            let mut file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
            file.write_all(line.as_bytes()).unwrap();
            let mut lines = Vec::new();
            tail.round(&mut |batch: LineBatch| lines.extend(batch.lines));
            let length = 1 << 40;
            file.set_len(length).unwrap();
            file.write_all(line.repeat(1 << 18).as_bytes()).unwrap();
            let began = std::time::Instant::now();
            if finishes {
                assert_eq!(tail.finish(&mut |batch: LineBatch| lines.extend(batch.lines)).len(), LAST_LINES);
            }
            tail.round(&mut |batch: LineBatch| lines.extend(batch.lines));
            assert!(began.elapsed() < Duration::from_secs(60), "a terabyte is not read");
            assert!(lines.len() > 100_000 && lines.iter().all(|line| line.len() == 31), "whole lines");
            let texts =
                ["rank0.log", "rank0.log.1"].map(|name| std::fs::read(folder.path().join(name)).unwrap());
            assert!(texts[0].len() < 1 << 20 && (3 << 20..=6 << 20).contains(&texts[1].len()));
            assert!(!texts.concat().windows(6).any(|bytes| bytes == b"s3cret"));
            // About as many lines as these bytes hold.
            let expected = length / line.len() as u64;
            assert!((expected / 2..expected * 2).contains(&tail.next), "{} of {expected}", tail.next);
            assert_eq!(
                (tail.lost.load(Ordering::Relaxed) + lines.len() as u64, tail.news.len()),
                (tail.next, 1)
            );
            // The next lines are numbered behind them.
            file.write_all(b"after\n").unwrap();
            let mut next = Vec::new();
            tail.round(&mut |batch: LineBatch| next.push((batch.first, batch.lines)));
            assert_eq!(next, [(tail.next - 1, vec!["after".to_owned()])]);
        }
    }

    #[test]
    fn log_3_copy_that_cannot_be_made_does_not_keep_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank0.log");
        std::fs::create_dir(folder.path().join("rank0.log.1")).unwrap();
        std::fs::write(&path, "line\n".repeat(1000)).unwrap();
        let mut tail = tail_of(&path);
        tail.limit = 2000;
        let mut count = 0;
        tail.round(&mut |batch| count += batch.lines.len());
        assert_eq!(count, 1000);
        assert!(std::fs::metadata(&path).unwrap().len() < 1000);
        let [news] = &tail.news[..] else { panic!("LOG-4: {:?}", tail.news) };
        insta::assert_snapshot!("log_failure_to_keep_older_lines", without_folder(news, &folder));
    }

    #[test]
    fn log_4_read_failure_is_reported_once_and_when_resolved() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank0.log");
        let mut tail = tail_of(&path);
        let mut lines = Vec::new();
        let mut round = |tail: &mut LogTailer| {
            tail.round(&mut |batch| lines.extend(batch.lines));
            std::mem::take(&mut tail.news)
        };
        assert_eq!(round(&mut tail), [""; 0], "the rank has not begun");
        std::fs::create_dir(&path).unwrap();
        let mut reports = round(&mut tail);
        assert_eq!(round(&mut tail), [""; 0], "once");
        std::fs::remove_dir(&path).unwrap();
        std::fs::write(&path, "line\n").unwrap();
        reports.extend(round(&mut tail));
        // Times cannot be written next to it.
        std::fs::remove_file(folder.path().join("rank0.log.times")).unwrap();
        std::fs::create_dir(folder.path().join("rank0.log.times")).unwrap();
        tail.times.begins_at(0, 0);
        reports.extend(round(&mut tail));
        insta::assert_snapshot!("log_failures_and_their_end", without_folder(&reports.join("\n"), &folder));
        assert_eq!(lines, ["line"]);
    }

    #[test]
    fn log_1_every_line_has_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank0.log");
        let mut file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let mut tail = tail_of(&path);
        let mut batches = Vec::new();
        for i in 0..1000 {
            writeln!(file, "line {i}").unwrap();
        }
        tail.round(&mut |batch| batches.push(batch));
        write!(file, "unfinished").unwrap();
        let last = tail.finish(&mut |batch| batches.push(batch));
        assert_eq!(
            (last.len(), last[18].as_str(), last[19].as_str()),
            (LAST_LINES, "line 999", "unfinished")
        );
        let mut next = 0;
        for batch in &batches {
            assert_eq!(batch.first, next);
            next += batch.lines.len() as u64;
        }
        assert_eq!(next, 1001);
        let last = super::tail(&path, (Rank(0), Generation(0)), 2).unwrap();
        let [LineBatch { first, lines, times, .. }] = &last[..] else { panic!("{last:?}") };
        assert_eq!((*first, &lines[..]), (999, &["line 999".to_owned(), "unfinished".to_owned()][..]));
        let (read, all) = (batches.last().unwrap(), times.iter().map(|some| some.lines).sum::<u32>());
        assert_eq!((all, times.last().unwrap().time_ms / 10_000), (2, read.times[0].time_ms / 10_000));
    }

    /// LOG-1, LIVE-1: bars below each other, which write over each other with every step.
    #[test]
    fn log_1_overwritten_lines_are_left_out_of_the_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank0.log");
        let mut file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let mut tail = tail_of(&path);
        let mut batches = Vec::new();
        write!(file, "start\n\router 0%").unwrap();
        for step in 0..100 {
            write!(file, "\n\rinner {step}%\x1b[A").unwrap();
        }
        tail.round(&mut |batch| batches.push(batch));
        assert_eq!(batches.iter().map(|batch| batch.lines.len()).sum::<usize>(), 2, "{batches:?}");
        assert_eq!(tail.live.newest(Rank(0)).as_deref(), Some("inner 99%"));
        write!(file, "\router 1%\nafter\nlast\n").unwrap();
        tail.finish(&mut |batch| batches.push(batch));
        let lines: Vec<&str> = batches.iter().flat_map(|batch| &batch.lines).map(String::as_str).collect();
        assert_eq!(lines, ["start", "outer 0%", "outer 1%", "after", "last"]);
        let numbers = |batches: &[LineBatch]| -> Vec<u64> {
            batches.iter().flat_map(|batch| (batch.first..).take(batch.lines.len())).collect()
        };
        assert_eq!(numbers(&batches), [0, 1, 101, 102, 103]);
        assert_eq!(batches.iter().map(|batch| batch.overwritten).sum::<u64>(), 99);
        assert_eq!(tail.live.newest(Rank(0)), None);
        let remembered = super::tail(&path, (Rank(0), Generation(0)), 3).unwrap();
        assert_eq!(numbers(&remembered), [101, 102, 103], "the same numbers in the finished file");
    }

    #[test]
    fn rows_above_the_cursor_become_lines_when_nothing_moves() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank0.log");
        std::fs::write(&path, "a\nb\x1b[A\ra\nb\nprompt").unwrap();
        let mut tail = tail_of(&path);
        let mut lines = Vec::new();
        tail.round(&mut |batch| lines.extend(batch.lines));
        tail.grown_at -= SETTLED;
        tail.round(&mut |batch| lines.extend(batch.lines));
        assert_eq!(lines, ["a", "a", "b"]);
        assert_eq!(tail.live.newest(Rank(0)).as_deref(), Some("prompt"));
    }

    #[test]
    fn log_3_file_over_the_bound_starts_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank0.log");
        let mut file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let mut tail = tail_of(&path);
        tail.limit = 1000;
        let mut lines = Vec::new();
        for i in 0..500 {
            writeln!(file, "line {i}").unwrap();
            tail.round(&mut |batch| lines.extend(batch.lines));
        }
        assert_eq!(lines, (0..500).map(|i| format!("line {i}")).collect::<Vec<_>>());
        assert!(std::fs::metadata(&path).unwrap().len() <= 1010);
        assert!(folder.path().join("rank0.log.1").exists());
    }

    /// SECRET-2: in one write or in several, in what is passed on and in the file.
    #[test]
    fn secret_2_secret_leaves_the_file_and_is_in_no_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank0.log");
        let secrets = Arc::new(LogSecrets::new(["s3cret-value".to_owned()].into_iter()));
        let mut tail = LogTailer { secrets, ..tail_of(&path) };
        let mut file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let mut lines = Vec::new();
        for part in ["key=s3cret-value\nhalf s3cr", "et-value end\n", "s3cret-", "other\nlast s3cret-val"] {
            file.write_all(part.as_bytes()).unwrap();
            tail.round(&mut |batch: LineBatch| lines.extend(batch.lines));
        }
        // More than one round takes in is counted only, and hidden anyway.
        let flood = "x s3cret-value\n".repeat(600_000);
        file.write_all(b"\n").unwrap();
        file.write_all(flood.as_bytes()).unwrap();
        tail.round(&mut |batch: LineBatch| lines.extend(batch.lines));
        tail.finish(&mut |batch: LineBatch| lines.extend(batch.lines));
        assert_eq!(lines[..3], ["key=************", "half ************ end", "s3cret-other"]);
        assert!(lines.iter().all(|line| !line.contains("s3cret-value")));
        let left = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            (left.matches("s3cret-value").count(), left.len()),
            (0, 68 + flood.len()),
            "{}",
            &left[..80]
        );
    }
}
