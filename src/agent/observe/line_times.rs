//! When the bytes of a rank's log were read, beside the log: `rank<r>.log.times`.
//!
//! Owner: the thread that tails the log. A program's lines have no times of their own, and a file has only
//! one. Places count all bytes that the rank has ever written, so that they stay right when the front of the
//! file is cut off. Invariants:
//! - LINES-1: the file and the memory behind it are bounded: of [`MARKS`] places, every second one of the
//!   older half goes. The newest keep [`EVERY_MS`].
//! - A time is that of a look that had seen the line: late by a second at most, and never early.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Most places kept.
const MARKS: usize = 8192;
/// Places that are nearer than this in time are one.
const EVERY_MS: u64 = 1000;
/// Most bytes of a file that are read back.
const MOST_BYTES: u64 = 1 << 20;

/// What is known of one log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Times {
    /// Bytes, and by when they had been read; both grow.
    marks: Vec<(u64, u64)>,
    /// Where `rank<r>.log.1` begins.
    older: u64,
    /// Where `rank<r>.log` begins.
    newer: u64,
    /// Line ends before that, where they are known.
    newer_lines: Option<u64>,
}

/// When a line was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// When the look was over that saw it, ms.
    pub seen_ms: u64,
    /// About when it was written, ms: within the look's second, by how far behind the look's first byte it
    /// is.
    pub about_ms: u64,
}

impl Times {
    /// What is known of the log at `path`; nothing, when there is no such file.
    pub fn of(path: &Path) -> Times {
        let path = beside(path);
        let small = std::fs::metadata(&path).is_ok_and(|file| file.len() <= MOST_BYTES);
        let text = if small { std::fs::read_to_string(path).unwrap_or_default() } else { String::new() };
        let mut times = Times::default();
        for line in text.lines() {
            let mut words = line.split(' ');
            let what = words.next();
            let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
            match (what, number(), number()) {
                (Some("read"), Some(bytes), Some(ms)) => times.marks.push((bytes, ms)),
                (Some("older"), Some(bytes), None) => times.older = bytes,
                (Some("newer"), Some(bytes), lines) => (times.newer, times.newer_lines) = (bytes, lines),
                // The last line may be cut short.
                _ => {}
            }
        }
        times
    }

    /// Where `rank<r>.log.1` and `rank<r>.log` begin, among all bytes that the rank has ever written.
    pub fn begins(&self) -> (u64, u64) {
        (self.older, self.newer)
    }

    /// How many lines end before `rank<r>.log` begins; `None`: not known.
    pub fn lines_before(&self) -> Option<u64> {
        if self.newer == 0 { Some(0) } else { self.newer_lines }
    }

    /// When the line was read that ends at this byte of all.
    pub fn at(&self, end: u64) -> Option<Read> {
        let index = self.marks.partition_point(|(bytes, _)| *bytes < end);
        let (mark, seen_ms) = *self.marks.get(index).or(self.marks.last())?;
        let (before, before_ms) =
            index.checked_sub(1).and_then(|i| self.marks.get(i)).copied().unwrap_or((0, 0));
        // A look comes at most that long after what it sees.
        let from_ms = before_ms.max(seen_ms.saturating_sub(EVERY_MS)).min(seen_ms);
        let (all, part) = (mark.saturating_sub(before).max(1), end.saturating_sub(before));
        let gone = (seen_ms - from_ms) as u128 * u128::from(part.min(all)) / u128::from(all);
        Some(Read { seen_ms, about_ms: from_ms + gone as u64 })
    }

    fn text(&self) -> String {
        let lines = self.newer_lines.map_or(String::new(), |lines| format!(" {lines}"));
        let mut text = format!("older {}\nnewer {}{lines}\n", self.older, self.newer);
        for (bytes, ms) in &self.marks {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "read {bytes} {ms}");
        }
        text
    }
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.to_owned().into_os_string();
    name.push(".times");
    name.into()
}

/// Writes them, while the log is read.
#[derive(Debug)]
pub struct LineTimes {
    path: PathBuf,
    times: Times,
    /// A place that may still become later.
    pending: Option<(u64, u64)>,
    /// Why the file could not be written the last time.
    pub error: Option<String>,
}

impl LineTimes {
    /// Of the log at `path`, which begins.
    pub fn new(path: &Path) -> LineTimes {
        LineTimes { path: beside(path), times: Times::default(), pending: None, error: None }
    }

    /// All bytes before `upto` have been read.
    pub fn read(&mut self, upto: u64, now_ms: u64) {
        // A clock that goes back would turn the order round.
        self.pending = Some((upto, now_ms.max(self.latest())));
        self.round(now_ms);
    }

    fn latest(&self) -> u64 {
        self.times.marks.last().map_or(0, |(_, ms)| *ms)
    }

    /// Time has passed.
    pub fn round(&mut self, now_ms: u64) {
        if now_ms.saturating_sub(self.latest()) >= EVERY_MS {
            self.finish();
        }
    }

    /// Nothing more comes.
    pub fn finish(&mut self) {
        let Some(mark) = self.pending.take() else { return };
        self.times.marks.push(mark);
        if self.times.marks.len() >= MARKS {
            let mut index = 0;
            self.times.marks.retain(|_| {
                index += 1;
                index > MARKS / 2 || index % 2 == 0
            });
            self.write_all();
        } else {
            self.append(&format!("read {} {}\n", mark.0, mark.1));
        }
    }

    /// The file begins at this byte now; so many lines end before it.
    pub fn begins_at(&mut self, bytes: u64, lines: u64) {
        (self.times.newer, self.times.newer_lines) = (bytes, Some(lines));
        self.append(&format!("newer {bytes} {lines}\n"));
    }

    /// What was moved away begins at this byte.
    pub fn older_begins_at(&mut self, bytes: u64) {
        self.times.older = bytes;
        self.append(&format!("older {bytes}\n"));
    }

    /// What cannot be written is not known later; the log itself does not suffer.
    fn append(&mut self, text: &str) {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        self.error = written.err().map(|error| error.to_string());
    }

    fn write_all(&mut self) {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&self.path);
        let written = file.and_then(|mut file| file.write_all(self.times.text().as_bytes()));
        self.error = written.err().map(|error| error.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_time_of_the_look_that_saw_it() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("rank0.log");
        assert_eq!(Times::of(&log).at(10), None);
        let mut times = LineTimes::new(&log);
        times.read(100, 5_000);
        times.read(150, 5_200);
        times.round(5_900);
        times.round(6_100);
        times.read(200, 3_600_000);
        times.finish();
        let read = Times::of(&log);
        let seen = |times: &Times, end| times.at(end).map(|read| read.seen_ms);
        let at = |end| seen(&read, end);
        assert_eq!((at(1), at(100), at(101), at(150)), (Some(5_000), Some(5_000), Some(5_200), Some(5_200)));
        assert_eq!((at(151), at(999)), (Some(3_600_000), Some(3_600_000)));
        times.older_begins_at(50);
        assert_eq!(Times::of(&log).lines_before(), Some(0));
        times.begins_at(120, 7);
        let read = Times::of(&log);
        assert_eq!((read.begins(), read.lines_before()), ((50, 120), Some(7)));
        std::fs::write(beside(&log), "newer 120\nread 150 5200\n").unwrap();
        assert_eq!(Times::of(&log).lines_before(), None, "an older agent counted none");
    }

    #[test]
    fn lines_of_one_look_are_spread_over_its_second_in_their_order() {
        let marks = vec![(100, 10_000), (300, 11_000), (500, 60_000)];
        let times = Times { marks, ..Times::default() };
        let about: Vec<u64> =
            [101, 200, 300, 301, 400, 500, 600].map(|end| times.at(end).unwrap().about_ms).into();
        assert_eq!(about, [10_005, 10_500, 11_000, 59_005, 59_500, 60_000, 60_000]);
        assert_eq!(times.at(1).unwrap(), Read { seen_ms: 10_000, about_ms: 9_010 });
    }

    #[test]
    fn lines_1_of_a_long_run_the_newest_times_stay_exact() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("rank0.log");
        let mut times = LineTimes::new(&log);
        let last = 3 * MARKS as u64;
        for second in 1..=last {
            times.read(second * 10, second * 1000);
        }
        times.finish();
        let read = Times::of(&log);
        assert!(read.marks.len() < MARKS, "{}", read.marks.len());
        assert!(std::fs::metadata(beside(&log)).unwrap().len() < MOST_BYTES);
        for second in [last, last - 1, last - 1000] {
            assert_eq!(read.at(second * 10).unwrap().seen_ms, second * 1000);
        }
        let early = read.at(100 * 10).unwrap().seen_ms;
        assert!((100_000..600_000).contains(&early), "{early}");
    }
}
