//! When the bytes of a rank's log were read, next to the log: `rank<r>.log.times`.
//!
//! Owner: the thread that tails the log. A program's lines have no times of their own, and a file has only
//! one. Places count all bytes that the rank has ever written, so that they stay right when the front of the
//! file is cut off. Invariants:
//! - LINES-1: the file and the memory behind it are bounded: of [`MARKS`] places, every second one of the
//!   older half goes. The newest keep [`EVERY_MS`].
//! - A time is that of the poll that read the line: late by a second at most, and never early.

use rankdeck_proto::regular;
use rankdeck_proto::trust;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Most places kept.
const MARKS: usize = 8192;
/// Places that are nearer than this in time are one.
const EVERY_MS: u64 = 1000;
/// Most bytes of a file that are read back.
const MOST_BYTES: u64 = 1 << 20;

/// What is known of one log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LineTimes {
    /// Bytes, and by when they had been read; both grow.
    marks: Vec<(u64, u64)>,
    /// Where `rank<r>.log.1` starts.
    older: u64,
    /// Where `rank<r>.log` starts.
    newer: u64,
    /// Line ends before that, where they are known.
    newer_lines: Option<u64>,
}

/// When a line was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LineTime {
    /// End of the poll that read it, ms.
    pub seen_ms: u64,
    /// Estimated time of writing, ms: interpolated within the poll's second by its distance from the poll's first byte
    pub about_ms: u64,
}

impl LineTimes {
    /// Opens the times of the log at `path`; empty without such a file.
    pub fn open(path: &Path) -> LineTimes {
        let path = times_path(path);
        let bytes = regular::read(&path, MOST_BYTES).unwrap_or_default();
        let text = String::from_utf8(bytes).unwrap_or_default();
        let mut times = LineTimes::default();
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

    /// Where `rank<r>.log.1` and `rank<r>.log` start, among all bytes that the rank has ever written.
    pub fn begins(&self) -> (u64, u64) {
        (self.older, self.newer)
    }

    /// How many lines end before `rank<r>.log` starts; `None`: not known.
    pub fn lines_before(&self) -> Option<u64> {
        if self.newer == 0 { Some(0) } else { self.newer_lines }
    }

    /// When the line was read that ends at this byte of all.
    pub fn at(&self, end: u64) -> Option<LineTime> {
        let index = self.marks.partition_point(|(bytes, _)| *bytes < end);
        let (mark, seen_ms) = *self.marks.get(index).or(self.marks.last())?;
        let (before, before_ms) =
            index.checked_sub(1).and_then(|i| self.marks.get(i)).copied().unwrap_or((0, 0));
        // A poll comes at most this long after the write.
        let from_ms = before_ms.max(seen_ms.saturating_sub(EVERY_MS)).min(seen_ms);
        let (all, part) = (mark.saturating_sub(before).max(1), end.saturating_sub(before));
        let gone = (seen_ms - from_ms) as u128 * u128::from(part.min(all)) / u128::from(all);
        Some(LineTime { seen_ms, about_ms: from_ms + gone as u64 })
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

fn times_path(path: &Path) -> PathBuf {
    let mut name = path.to_owned().into_os_string();
    name.push(".times");
    name.into()
}

/// Writes them, while the log is read.
#[derive(Debug)]
pub(crate) struct LineTimesWriter {
    path: PathBuf,
    times: LineTimes,
    /// A place that may still become later.
    pending: Option<(u64, u64)>,
    /// Why the file could not be written the last time.
    pub error: Option<String>,
}

impl LineTimesWriter {
    /// Of the log at `path`, which starts.
    pub fn new(path: &Path) -> LineTimesWriter {
        LineTimesWriter { path: times_path(path), times: LineTimes::default(), pending: None, error: None }
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

    /// The file starts at this byte now; `lines` lines end before it.
    pub fn begins_at(&mut self, bytes: u64, lines: u64) {
        (self.times.newer, self.times.newer_lines) = (bytes, Some(lines));
        self.append(&format!("newer {bytes} {lines}\n"));
    }

    /// What was moved away starts at this byte.
    pub fn older_begins_at(&mut self, bytes: u64) {
        self.times.older = bytes;
        self.append(&format!("older {bytes}\n"));
    }

    /// Appends times. If that fails, they are missing later; the log itself is not affected.
    fn append(&mut self, text: &str) {
        let file = trust::open(&self.path, OpenOptions::new().append(true).create(true));
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        self.error = written.err().map(|error| error.to_string());
    }

    fn write_all(&mut self) {
        let file = trust::open(&self.path, OpenOptions::new().write(true).create(true).truncate(true));
        let written = file.and_then(|mut file| file.write_all(self.times.text().as_bytes()));
        self.error = written.err().map(|error| error.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_the_time_of_the_poll_that_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("rank0.log");
        assert_eq!(LineTimes::open(&log).at(10), None);
        let mut times = LineTimesWriter::new(&log);
        times.read(100, 5_000);
        times.read(150, 5_200);
        times.round(5_900);
        times.round(6_100);
        times.read(200, 3_600_000);
        times.finish();
        let read = LineTimes::open(&log);
        let seen = |times: &LineTimes, end| times.at(end).map(|read| read.seen_ms);
        let at = |end| seen(&read, end);
        assert_eq!((at(1), at(100), at(101), at(150)), (Some(5_000), Some(5_000), Some(5_200), Some(5_200)));
        assert_eq!((at(151), at(999)), (Some(3_600_000), Some(3_600_000)));
        times.older_begins_at(50);
        assert_eq!(LineTimes::open(&log).lines_before(), Some(0));
        times.begins_at(120, 7);
        let read = LineTimes::open(&log);
        assert_eq!((read.begins(), read.lines_before()), ((50, 120), Some(7)));
        std::fs::write(times_path(&log), "newer 120\nread 150 5200\n").unwrap();
        assert_eq!(LineTimes::open(&log).lines_before(), None, "an older agent counted none");
    }

    #[test]
    fn lines_of_one_poll_are_spread_over_its_second_in_order() {
        let marks = vec![(100, 10_000), (300, 11_000), (500, 60_000)];
        let times = LineTimes { marks, ..LineTimes::default() };
        let about: Vec<u64> =
            [101, 200, 300, 301, 400, 500, 600].map(|end| times.at(end).unwrap().about_ms).into();
        assert_eq!(about, [10_005, 10_500, 11_000, 59_005, 59_500, 60_000, 60_000]);
        assert_eq!(times.at(1).unwrap(), LineTime { seen_ms: 10_000, about_ms: 9_010 });
    }

    #[test]
    fn lines_1_of_a_long_run_the_newest_times_stay_exact() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("rank0.log");
        let mut times = LineTimesWriter::new(&log);
        let last = 3 * MARKS as u64;
        for second in 1..=last {
            times.read(second * 10, second * 1000);
        }
        times.finish();
        let read = LineTimes::open(&log);
        assert!(read.marks.len() < MARKS, "{}", read.marks.len());
        assert!(std::fs::metadata(times_path(&log)).unwrap().len() < MOST_BYTES);
        for second in [last, last - 1, last - 1000] {
            assert_eq!(read.at(second * 10).unwrap().seen_ms, second * 1000);
        }
        let early = read.at(100 * 10).unwrap().seen_ms;
        assert!((100_000..600_000).contains(&early), "{early}");
    }
}
