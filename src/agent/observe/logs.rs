//! Tails the ranks' log files: lines with numbers, the last ones on request, and a bound on the disk they
//! take.
//!
//! Owner: one thread. Ranks write to files, not to pipes, so that a rank never waits for its monitor.
//! Invariants:
//! - LOG-1: every line has its number in the rank's log of this generation, whether it was delivered or
//!   dropped.
//! - Memory per rank is bounded: one unfinished line, and the last [`LAST_LINES`].
//! - LOG-3: a log file grows to at most [`FILE_BYTES`]; then its content moves to `rank<r>.log.1` and it
//!   begins anew.

use rankdeck_types::ids::{Generation, Rank};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

/// Longest line that is passed on, bytes; the rest of it is cut off.
pub const LINE_BYTES: usize = 4096;
/// Lines told when a rank ends.
pub const LAST_LINES: usize = 20;
/// Size at which a log file is moved away.
const FILE_BYTES: u64 = 64 << 20;
/// Read of one file in one round.
const ROUND_BYTES: u64 = 4 << 20;
/// Lines of one batch, and about the bytes of it.
const BATCH_LINES: usize = 500;
const BATCH_BYTES: usize = 96 << 10;
/// Between two rounds, and at most while nobody writes: every round takes a moment from the ranks' cores.
const ROUND: Duration = Duration::from_millis(200);
const CALM_ROUND: Duration = Duration::from_millis(500);

/// Consecutive lines of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The rank that wrote them.
    pub rank: Rank,
    /// Of which generation.
    pub generation: Generation,
    /// Number of the first line.
    pub first: u64,
    /// The lines, without newline.
    pub lines: Vec<String>,
}

/// Cuts bytes into lines as a terminal would show them: a carriage return begins the line again, as progress
/// bars do.
#[derive(Debug, Default)]
pub struct Splitter {
    line: Vec<u8>,
    restart: bool,
}

impl Splitter {
    /// Feeds bytes; `each` gets every finished line.
    pub fn push(&mut self, bytes: &[u8], mut each: impl FnMut(String)) {
        for byte in bytes {
            match byte {
                b'\n' => each(self.take()),
                b'\r' => self.restart = true,
                byte => {
                    if std::mem::take(&mut self.restart) {
                        self.line.clear();
                    }
                    if self.line.len() < LINE_BYTES {
                        self.line.push(*byte);
                    }
                }
            }
        }
    }

    /// The unfinished line, when there is one.
    pub fn finish(&mut self) -> Option<String> {
        (!self.line.is_empty()).then(|| self.take())
    }

    fn take(&mut self) -> String {
        self.restart = false;
        let text = String::from_utf8_lossy(&self.line).into_owned();
        self.line.clear();
        text
    }
}

enum Order {
    Follow { rank: Rank, generation: Generation, path: PathBuf },
    Finish { rank: Rank, answer: Box<dyn FnOnce(Vec<String>) + Send> },
}

/// The thread's other end.
#[derive(Clone)]
pub struct Logs {
    orders: mpsc::Sender<Order>,
}

impl Logs {
    /// Starts the thread; `deliver` gets every batch.
    pub fn start(deliver: impl FnMut(Batch) + Send + 'static) -> io::Result<Logs> {
        let (orders, inbox) = mpsc::channel();
        std::thread::Builder::new().name("logs".into()).spawn(move || run(&inbox, deliver))?;
        Ok(Logs { orders })
    }

    /// Follows a file from its begin; the rank's former file is forgotten.
    pub fn follow(&self, rank: Rank, generation: Generation, path: PathBuf) {
        let _ = self.orders.send(Order::Follow { rank, generation, path });
    }

    /// The rank has ended: reads to the end, then hands over the last lines.
    pub fn finish(&self, rank: Rank, answer: impl FnOnce(Vec<String>) + Send + 'static) {
        let _ = self.orders.send(Order::Finish { rank, answer: Box::new(answer) });
    }
}

fn run(inbox: &mpsc::Receiver<Order>, mut deliver: impl FnMut(Batch)) {
    let mut tails: Vec<Tail> = Vec::new();
    let mut pause = ROUND;
    loop {
        match inbox.recv_timeout(pause) {
            Ok(Order::Follow { rank, generation, path }) => {
                tails.retain(|tail| tail.rank != rank && tail.generation == generation);
                tails.push(Tail::new(rank, generation, path));
            }
            Ok(Order::Finish { rank, answer }) => {
                let tail = tails.iter_mut().find(|tail| tail.rank == rank);
                answer(tail.map_or(Vec::new(), |tail| tail.finish(&mut deliver)));
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
        let mut grown = false;
        for tail in tails.iter_mut() {
            grown |= tail.round(&mut deliver);
        }
        pause = if grown { ROUND } else { CALM_ROUND };
    }
}

struct Tail {
    rank: Rank,
    generation: Generation,
    path: PathBuf,
    file: Option<File>,
    offset: u64,
    splitter: Splitter,
    next: u64,
    last: VecDeque<String>,
    limit: u64,
}

impl Tail {
    fn new(rank: Rank, generation: Generation, path: PathBuf) -> Tail {
        Tail {
            rank,
            generation,
            path,
            file: None,
            offset: 0,
            splitter: Splitter::default(),
            next: 0,
            last: VecDeque::new(),
            limit: FILE_BYTES,
        }
    }

    /// Reads what is new; `false` when there was nothing.
    fn round(&mut self, deliver: &mut impl FnMut(Batch)) -> bool {
        let before = self.offset;
        let _ = self.read(ROUND_BYTES, deliver);
        let grown = self.offset != before;
        if self.offset >= self.limit {
            let _ = self.rotate(deliver);
        }
        grown
    }

    fn finish(&mut self, deliver: &mut impl FnMut(Batch)) -> Vec<String> {
        let _ = self.read(FILE_BYTES, deliver);
        if let Some(line) = self.splitter.finish() {
            self.send(vec![line], deliver);
        }
        self.last.iter().cloned().collect()
    }

    fn read(&mut self, most: u64, deliver: &mut impl FnMut(Batch)) -> io::Result<()> {
        if self.file.is_none() {
            self.file = Some(OpenOptions::new().read(true).write(true).open(&self.path)?);
        }
        let Some(file) = self.file.as_mut() else { return Ok(()) };
        let length = file.metadata()?.len();
        if length < self.offset {
            // Somebody emptied it: what is there now is new.
            self.offset = 0;
        }
        let mut left = most.min(length - self.offset);
        if left == 0 {
            return Ok(());
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let mut chunk = vec![0; 1 << 16];
        let mut lines = Vec::new();
        while left > 0 {
            let Some(file) = self.file.as_mut() else { break };
            let want = chunk.len().min(left as usize);
            let read = file.read(&mut chunk[..want])?;
            if read == 0 {
                break;
            }
            left -= read as u64;
            self.offset += read as u64;
            self.splitter.push(&chunk[..read], |line| lines.push(line));
            self.send(std::mem::take(&mut lines), deliver);
        }
        Ok(())
    }

    fn send(&mut self, lines: Vec<String>, deliver: &mut impl FnMut(Batch)) {
        for line in lines.iter().rev().take(LAST_LINES).rev() {
            if self.last.len() == LAST_LINES {
                self.last.pop_front();
            }
            self.last.push_back(line.clone());
        }
        let mut batch = Vec::new();
        let mut bytes = 0;
        for line in lines {
            if batch.len() >= BATCH_LINES || bytes + line.len() > BATCH_BYTES {
                self.flush(std::mem::take(&mut batch), deliver);
                bytes = 0;
            }
            bytes += line.len();
            batch.push(line);
        }
        self.flush(batch, deliver);
    }

    fn flush(&mut self, lines: Vec<String>, deliver: &mut impl FnMut(Batch)) {
        if !lines.is_empty() {
            let first = self.next;
            self.next += lines.len() as u64;
            deliver(Batch { rank: self.rank, generation: self.generation, first, lines });
        }
    }

    /// Copies the file away and empties it (LOG-3). The rank appends, so it goes on at the new begin; a line
    /// written between the two steps is lost.
    fn rotate(&mut self, deliver: &mut impl FnMut(Batch)) -> io::Result<()> {
        let mut old = self.path.clone().into_os_string();
        old.push(".1");
        std::fs::copy(&self.path, &old)?;
        self.read(u64::MAX, deliver)?;
        if let Some(file) = &self.file {
            file.set_len(0)?;
        }
        self.offset = 0;
        Ok(())
    }
}

/// The last `most` lines of a finished log file and the number of the first of them.
pub fn tail(path: &std::path::Path, most: usize) -> io::Result<(u64, Vec<String>)> {
    let mut file = File::open(path)?;
    let mut splitter = Splitter::default();
    let mut kept: VecDeque<String> = VecDeque::new();
    let mut count = 0;
    let mut keep = |line: String| {
        count += 1;
        if kept.len() == most {
            kept.pop_front();
        }
        if most > 0 {
            kept.push_back(line);
        }
    };
    let mut chunk = vec![0; 1 << 16];
    loop {
        let read = file.read(&mut chunk)?;
        if read == 0 {
            break;
        }
        splitter.push(&chunk[..read], &mut keep);
    }
    if let Some(line) = splitter.finish() {
        keep(line);
    }
    Ok((count - kept.len() as u64, kept.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn split(parts: &[&[u8]]) -> Vec<String> {
        let mut splitter = Splitter::default();
        let mut lines = Vec::new();
        for part in parts {
            splitter.push(part, |line| lines.push(line));
        }
        lines.extend(splitter.finish());
        lines
    }

    #[test]
    fn lines_look_as_on_a_terminal() {
        assert_eq!(split(&[b"a\nb", b"c\n\nd"]), ["a", "bc", "", "d"]);
        assert_eq!(split(&[b"10%\r20%\r", b"30%\ndone\r\n"]), ["30%", "done"]);
        assert_eq!(split(&[b"\xff\n"]), ["\u{fffd}"]);
        let long = vec![b'x'; LINE_BYTES * 3];
        assert_eq!(split(&[&long, b"\ny\n"]), [&"x".repeat(LINE_BYTES), "y"]);
    }

    #[test]
    fn log_1_every_line_has_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank0.log");
        let mut file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let mut tail = Tail::new(Rank(0), Generation(0), path.clone());
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
        assert_eq!(super::tail(&path, 2).unwrap(), (999, vec!["line 999".into(), "unfinished".into()]));
    }

    #[test]
    fn log_3_a_file_over_the_bound_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank0.log");
        let mut file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let mut tail = Tail::new(Rank(0), Generation(0), path.clone());
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
}
