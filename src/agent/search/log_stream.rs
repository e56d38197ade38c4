//! What a host keeps of one rank's log, as one stream of lines: `rank<r>.log.1`, then `rank<r>.log`.
//!
//! When a log is moved away, whole blocks are cut off its front, and its last bytes are in both files. The
//! stream has each byte once. Memory is bounded by one piece.

use crate::observe::line_splitter::{LINE_BYTES, LineSplitter, decoded};
use crate::observe::line_times::{LineTime, LineTimes};
use crate::observe::logs::line_ends;
use rankdeck_proto::regular;
use rankdeck_types::ids::{Generation, Rank};
use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of a piece.
pub(super) const PIECE: usize = 1 << 20;
/// A rank's log of one generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Log {
    pub generation: Generation,
    pub rank: Rank,
    pub path: PathBuf,
}

/// Consecutive lines.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogChunk<'a> {
    /// Whole lines with their ends; the last of all may have none.
    pub bytes: &'a [u8],
    /// Where they start among all bytes that the rank has written.
    pub begin: u64,
    /// Number of the first, from 1.
    pub first: u64,
    /// Where the only one ends, when it was longer than a piece; `bytes` are what is shown of it.
    pub long_end: Option<u64>,
}

/// A part of the stream: bytes of a file.
struct Span {
    file: File,
    from: u64,
    len: u64,
    /// Where they are among all bytes that the rank has written.
    begin: u64,
}

/// The stream.
pub(super) struct KeptStream {
    spans: Vec<Span>,
    times: LineTimes,
    /// Number of the first line.
    first: u64,
}

impl Log {
    fn older(&self) -> PathBuf {
        let mut older = self.path.clone().into_os_string();
        older.push(".1");
        older.into()
    }

    /// Opens what is there now.
    pub fn open(&self) -> KeptStream {
        let times = LineTimes::open(&self.path);
        let open = |path: &Path| {
            let file = regular::open(path).ok()?;
            let len = file.metadata().ok()?.len();
            Some((file, len))
        };
        // One that is moved away meanwhile is not there.
        let (older, newer) = (open(&self.older()), open(&self.path));
        let (at_older, mut at_newer) = times.begins();
        let mut spans = Vec::new();
        let mut first = times.lines_before().filter(|_| older.is_none() || at_newer > 0);
        if let Some((file, len)) = older {
            let end = at_older + len;
            if at_newer == 0 {
                // An agent that knew no places: one follows the other.
                at_newer = end;
            }
            let both = newer.as_ref().map_or(0, |(_, len)| end.saturating_sub(at_newer).min(*len));
            if let (Some(before), Some((newer, _))) = (first, &newer) {
                let ends = count(&file, 0, len).zip(count(newer, 0, both));
                first = ends.map(|(older, both)| (before + both).saturating_sub(older));
            }
            spans.push(Span { file, from: 0, len, begin: at_older });
            if let Some((file, len)) = newer {
                spans.push(Span { file, from: both, len: len - both, begin: at_newer + both });
            }
        } else if let Some((file, len)) = newer {
            spans.push(Span { file, from: 0, len, begin: at_newer });
        }
        KeptStream { spans, times, first: first.unwrap_or(0) + 1 }
    }
}

impl KeptStream {
    /// Bytes that are kept.
    pub fn bytes(&self) -> u64 {
        self.spans.iter().map(|span| span.len).sum()
    }

    /// Bytes that the rank had written before those.
    pub fn gone(&self) -> u64 {
        self.spans.first().map_or(0, |span| span.begin)
    }

    /// When the line that ends there was read.
    pub fn time(&self, end: u64) -> Option<LineTime> {
        self.times.at(end)
    }

    /// Files were moved away since this was opened: what was read may be of two moments.
    pub fn is_moved(&self, log: &Log) -> bool {
        LineTimes::open(&log.path).begins() != self.times.begins()
    }

    /// Calls `each` with one chunk after the other; `false` when it stops.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(&self, each: &mut dyn FnMut(LogChunk<'_>) -> bool) -> io::Result<bool> {
        let mut reading =
            ChunkBuffer { buf: vec![0; PIECE], filled: 0, begin: 0, number: self.first, long: None, each };
        for span in &self.spans {
            if span.begin != reading.begin + reading.filled as u64 {
                if !reading.finish() {
                    return Ok(false);
                }
                reading.begin = span.begin;
            }
            let (mut at, end) = (span.from, span.from + span.len);
            while at < end {
                let length = (PIECE - reading.filled).min((end - at) as usize);
                let into = &mut reading.buf[reading.filled..reading.filled + length];
                let read = span.file.read_at(into, at)?;
                if read == 0 {
                    break;
                }
                at += read as u64;
                reading.filled += read;
                if reading.filled == PIECE && !reading.give() {
                    return Ok(false);
                }
            }
        }
        Ok(reading.finish())
    }
}

/// Where a reader is.
struct ChunkBuffer<'a> {
    buf: Vec<u8>,
    filled: usize,
    /// Where the buffer starts among all bytes of the rank.
    begin: u64,
    /// Number of the line with which it starts.
    number: u64,
    /// The line that began before the buffer: it is longer than one.
    long: Option<LineSplitter>,
    each: &'a mut dyn FnMut(LogChunk<'_>) -> bool,
}

impl ChunkBuffer<'_> {
    /// The buffer is full: gives its whole lines, and keeps the rest.
    fn give(&mut self) -> bool {
        if self.long.is_some() {
            return self.end_long();
        }
        let data = &self.buf[..self.filled];
        match data.iter().rposition(|byte| *byte == b'\n') {
            Some(last) => self.lines(last + 1),
            None => {
                let mut long = LineSplitter::default();
                long.push(data, |_, _| {});
                self.long = Some(long);
                self.drop_front(self.filled);
                true
            }
        }
    }

    /// Gives the first bytes of the buffer, which are whole lines.
    fn lines(&mut self, len: usize) -> bool {
        let bytes = &self.buf[..len];
        let goes_on = (self.each)(LogChunk { bytes, begin: self.begin, first: self.number, long_end: None });
        self.number += line_ends(bytes);
        self.drop_front(len);
        goes_on
    }

    /// Takes in what the buffer has of the long line.
    fn end_long(&mut self) -> bool {
        let Some(long) = &mut self.long else { return true };
        let data = &self.buf[..self.filled];
        let end = data.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(data.len(), |end| end + 1);
        let mut whole = None;
        long.push(&data[..taken], |_, line| whole = Some(line));
        self.drop_front(taken);
        whole.is_none_or(|line| self.long(&line))
    }

    fn long(&mut self, line: &str) -> bool {
        self.long = None;
        let (bytes, long_end) = (line.as_bytes(), Some(self.begin));
        let goes_on = (self.each)(LogChunk { bytes, begin: self.begin, first: self.number, long_end });
        self.number += 1;
        goes_on
    }

    /// Gives what is left; the last line has no end.
    fn finish(&mut self) -> bool {
        if !self.end_long() || (self.filled > 0 && !self.lines(self.filled)) {
            return false;
        }
        let mut last = None;
        if let Some(mut long) = self.long.take() {
            long.finish(|_, line| last = Some(line));
        }
        last.is_none_or(|line| self.long(&line))
    }

    fn drop_front(&mut self, len: usize) {
        self.buf.copy_within(len..self.filled, 0);
        self.filled -= len;
        self.begin += len as u64;
    }
}

/// A line as a terminal would show it, cut as the agent cuts lines.
pub(super) fn shown(raw: &[u8]) -> Cow<'_, str> {
    let mut line = raw;
    if raw.contains(&b'\r') {
        let end = raw.iter().rposition(|byte| *byte != b'\r').map_or(0, |last| last + 1);
        let begin = raw[..end].iter().rposition(|byte| *byte == b'\r').map_or(0, |last| last + 1);
        line = &raw[begin..end];
    }
    decoded(&line[..line.len().min(LINE_BYTES)])
}

/// How many lines end in a part of a file.
fn count(file: &File, from: u64, len: u64) -> Option<u64> {
    let mut chunk = vec![0; PIECE];
    let (mut at, mut ends) = (from, 0);
    while at < from + len {
        let length = chunk.len().min((from + len - at) as usize);
        let read = file.read_at(&mut chunk[..length], at).ok().filter(|read| *read > 0)?;
        ends += line_ends(&chunk[..read]);
        at += read as u64;
    }
    Some(ends)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// All lines of a log: number, end, text.
    fn lines(log: &Log) -> Vec<(u64, u64, String)> {
        let mut all = Vec::new();
        let kept = log.open();
        let read = kept.read(&mut |piece| {
            if let Some(end) = piece.long_end {
                all.push((piece.first, end, String::from_utf8_lossy(piece.bytes).into_owned()));
                return true;
            }
            let mut end = piece.begin;
            for (number, raw) in (piece.first..).zip(piece.bytes.split_inclusive(|byte| *byte == b'\n')) {
                end += raw.len() as u64;
                let text = raw.strip_suffix(b"\n").unwrap_or(raw);
                all.push((number, end, shown(text).into_owned()));
            }
            true
        });
        assert!(read.unwrap());
        all
    }

    fn log(folder: &Path, parts: &[(&str, &[u8])]) -> Log {
        for (ending, bytes) in parts {
            std::fs::write(folder.join(format!("rank0.log{ending}")), bytes).unwrap();
        }
        Log { generation: Generation(0), rank: Rank(0), path: folder.join("rank0.log") }
    }

    #[test]
    fn bytes_in_both_files_count_once() {
        let folder = tempfile::tempdir().unwrap();
        // All that was written: "0\n1\n22\n3 goes on\n4\n5"; the first 2 bytes are gone, 4 are in both.
        let log = log(
            folder.path(),
            &[("", b"\n3 goes on\n4\n5"), (".1", b"1\n22\n3 go"), (".times", b"older 2\nnewer 6 2\n")],
        );
        let texts = |log: &Log| -> Vec<(u64, u64, String)> { lines(log) };
        let expected = [(2, 4, "1"), (3, 7, "22"), (4, 17, "3 goes on"), (5, 19, "4"), (6, 20, "5")];
        assert_eq!(texts(&log), expected.map(|(number, end, text)| (number, end, text.to_owned())));
        let kept = log.open();
        assert_eq!((kept.bytes(), kept.gone()), (18, 2));
    }

    #[test]
    fn separate_files_each_start_with_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let log = log(folder.path(), &[("", b"c\nd\n"), (".1", b"a\nb"), (".times", b"older 0\nnewer 9\n")]);
        let texts: Vec<String> = lines(&log).into_iter().map(|(_, _, text)| text).collect();
        assert_eq!(texts, ["a", "b", "c", "d"]);
    }

    #[test]
    fn line_numbers_of_an_older_agent_count_kept_lines() {
        let folder = tempfile::tempdir().unwrap();
        let log = log(folder.path(), &[("", b"c\n"), (".1", b"a\nb\n")]);
        assert_eq!(lines(&log), [(1, 2, "a".into()), (2, 4, "b".into()), (3, 6, "c".into())]);
    }

    #[test]
    fn line_longer_than_a_chunk_is_cut() {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = b"first\n".to_vec();
        bytes.extend(vec![b'x'; 3 * PIECE]);
        bytes.extend(b"\rshown at the end\nlast\n");
        bytes.extend(vec![b'y'; PIECE + 7]);
        let log = log(folder.path(), &[("", &bytes)]);
        let found = lines(&log);
        let ends: Vec<(u64, u64)> = found.iter().map(|(number, end, _)| (*number, *end)).collect();
        let long = 6 + 3 * PIECE as u64 + 18;
        assert_eq!(ends, [(1, 6), (2, long), (3, long + 5), (4, bytes.len() as u64)]);
        assert_eq!(
            (found[0].2.as_str(), found[1].2.as_str(), found[2].2.as_str()),
            ("first", "shown at the end", "last")
        );
        assert_eq!(found[3].2, "y".repeat(LINE_BYTES));
    }

    #[test]
    fn line_is_shown_as_the_lines_that_consoles_get() {
        let long = [b"x\r".as_slice(), &[b'y'; 9000]].concat();
        let samples: [&[u8]; 9] =
            [b"", b"a", b"10%\r20%", b"done\r", b"a\r\rb\r\r", b"\r", b"\xff\xfe a", b"\x9b1ma", &long];
        for raw in samples {
            let mut splitter = LineSplitter::default();
            let mut line = None;
            splitter.push(&[raw, b"\n"].concat(), |_, text| line = Some(text));
            assert_eq!(Some(shown(raw).into_owned()), line, "{raw:?}");
        }
    }

    /// LOG-1: a line has the same number here and at the console, whatever was moved away.
    #[test]
    fn log_1_numbers_are_those_of_the_lines_that_were_delivered() {
        let folder = tempfile::tempdir().unwrap();
        let log = log(folder.path(), &[("", b"")]);
        let mut file = std::fs::OpenOptions::new().append(true).open(&log.path).unwrap();
        let mut tail = crate::observe::logs::tail_for_test(&log.path, 100_000);
        let mut delivered = Vec::new();
        for i in 0..30_000 {
            writeln!(file, "line {i}").unwrap();
            if i % 100 == 0 {
                tail(&mut |batch| delivered.extend((batch.first + 1..).zip(batch.lines)));
            }
        }
        tail(&mut |batch| delivered.extend((batch.first + 1..).zip(batch.lines)));
        let found: Vec<(u64, String)> =
            lines(&log).into_iter().map(|(number, _, text)| (number, text)).collect();
        assert!(found.len() > 5_000 && found.len() < 25_000, "{}", found.len());
        let kept = &delivered[delivered.len() - found.len()..];
        // The first may be cut.
        assert_eq!(found[1..], kept[1..]);
        assert_eq!(found[0].0, kept[0].0);
    }
}
