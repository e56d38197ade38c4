//! What a host keeps of one rank's log, as one stream of lines: `rank<r>.log.1`, then `rank<r>.log`.
//!
//! When a log is moved away, whole blocks are cut off its front, and its last bytes are in both files. The
//! stream has each byte once. Memory is bounded by one piece.

use crate::observe::line_times::{Read, Times};
use crate::observe::logs::{LINE_BYTES, Splitter, line_ends};
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
pub(super) struct Piece<'a> {
    /// Whole lines with their ends; the last of all may have none.
    pub bytes: &'a [u8],
    /// Where they begin among all bytes that the rank has written.
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
    times: Times,
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
        let times = Times::of(&self.path);
        let open = |path: &Path| {
            let file = File::open(path).ok()?;
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
    pub fn time(&self, end: u64) -> Option<Read> {
        self.times.at(end)
    }

    /// Files were moved away since this was opened: what was read may be of two moments.
    pub fn is_moved(&self, log: &Log) -> bool {
        Times::of(&log.path).begins() != self.times.begins()
    }

    /// Gives `each` one piece after the other; `false` when it wants no more.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(&self, each: &mut dyn FnMut(Piece<'_>) -> bool) -> io::Result<bool> {
        let mut reading =
            Reading { buf: vec![0; PIECE], filled: 0, begin: 0, number: self.first, long: None, each };
        for span in &self.spans {
            if span.begin != reading.begin + reading.filled as u64 {
                if !reading.finish() {
                    return Ok(false);
                }
                reading.begin = span.begin;
            }
            let (mut at, end) = (span.from, span.from + span.len);
            while at < end {
                let want = (PIECE - reading.filled).min((end - at) as usize);
                let into = &mut reading.buf[reading.filled..reading.filled + want];
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
struct Reading<'a> {
    buf: Vec<u8>,
    filled: usize,
    /// Where the buffer begins among all bytes of the rank.
    begin: u64,
    /// Number of the line with which it begins.
    number: u64,
    /// The line that began before the buffer: it is longer than one.
    long: Option<Splitter>,
    each: &'a mut dyn FnMut(Piece<'_>) -> bool,
}

impl Reading<'_> {
    /// The buffer is full: gives its whole lines, and keeps the rest.
    fn give(&mut self) -> bool {
        if self.long.is_some() {
            return self.end_long();
        }
        let data = &self.buf[..self.filled];
        match data.iter().rposition(|byte| *byte == b'\n') {
            Some(last) => self.lines(last + 1),
            None => {
                let mut long = Splitter::default();
                long.push(data, |_| {});
                self.long = Some(long);
                self.drop_front(self.filled);
                true
            }
        }
    }

    /// Gives the first bytes of the buffer, which are whole lines.
    fn lines(&mut self, len: usize) -> bool {
        let bytes = &self.buf[..len];
        let goes_on = (self.each)(Piece { bytes, begin: self.begin, first: self.number, long_end: None });
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
        long.push(&data[..taken], |line| whole = Some(line));
        self.drop_front(taken);
        whole.is_none_or(|line| self.long(&line))
    }

    fn long(&mut self, line: &str) -> bool {
        self.long = None;
        let (bytes, long_end) = (line.as_bytes(), Some(self.begin));
        let goes_on = (self.each)(Piece { bytes, begin: self.begin, first: self.number, long_end });
        self.number += 1;
        goes_on
    }

    /// Gives what is left; the last line has no end.
    fn finish(&mut self) -> bool {
        if !self.end_long() || (self.filled > 0 && !self.lines(self.filled)) {
            return false;
        }
        let last = self.long.take().and_then(|mut long| long.finish());
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
    String::from_utf8_lossy(&line[..line.len().min(LINE_BYTES)])
}

/// How many lines end in a part of a file.
fn count(file: &File, from: u64, len: u64) -> Option<u64> {
    let mut chunk = vec![0; PIECE];
    let (mut at, mut ends) = (from, 0);
    while at < from + len {
        let want = chunk.len().min((from + len - at) as usize);
        let read = file.read_at(&mut chunk[..want], at).ok().filter(|read| *read > 0)?;
        ends += line_ends(&chunk[..read]);
        at += read as u64;
    }
    Some(ends)
}

#[cfg(test)]
mod tests;
