//! All lines around a moment: of each log some before it and some after it, and of those only where the lines
//! of every log are complete.

use super::log_stream::{KeptStream, Log, LogChunk, shown};
use super::{SearchLine, hit_bytes, hit_of};
use crate::observe::logs::line_ends;
use rankdeck_proto::search::{LinePlace, LogFindings, LogHit, LogSearch};
use std::collections::VecDeque;

/// Fewest and most lines of a log on each side.
const LEAST: usize = 3;
const MOST: usize = 500;

/// Finds them.
pub(super) fn search_around(logs: &[Log], query: &LogSearch, place: LinePlace, room: usize) -> LogFindings {
    let side = (query.limit as usize / logs.len().max(1) / 2).clamp(LEAST, MOST);
    let (mut findings, mut windows) = (LogFindings { over: true, ..LogFindings::default() }, Vec::new());
    for log in logs {
        let kept = log.open();
        let mut window = Window::new(log, &kept, place, side);
        if let Err(error) = kept.read(&mut |piece| window.piece(piece)) {
            findings.cut = format!("{}: {error}", log.path.display());
        }
        windows.push(window.taken());
    }
    let first = windows
        .iter()
        .filter(|taken| taken.older > 0)
        .filter_map(|taken| taken.lines.first())
        .map(LogHit::place)
        .max();
    let last = windows
        .iter()
        .filter(|taken| taken.newer)
        .filter_map(|taken| taken.lines.last())
        .map(LogHit::place)
        .min();
    let older: u64 = windows.iter().map(|taken| taken.older).sum();
    let newer = windows.iter().any(|taken| taken.newer);
    let all = windows.into_iter().flat_map(|taken| taken.lines);
    let mut lines: Vec<LogHit> = all
        .filter(|line| first.is_none_or(|first| line.place() >= first))
        .filter(|line| last.is_none_or(|last| line.place() <= last))
        .collect();
    lines.sort_by_key(LogHit::place);
    let (lines, cut_before, cut_after) = nearest(lines, place, room);
    findings.more = older + cut_before;
    findings.newer = u64::from(newer) + cut_after;
    findings.lines = lines.len() as u64;
    findings.hits = lines;
    findings
}

/// Those lines that are nearest and have room, and how many are left out on each side.
fn nearest(lines: Vec<LogHit>, place: LinePlace, room: usize) -> (Vec<LogHit>, u64, u64) {
    let middle = lines.partition_point(|line| line.place().is_before(&place));
    let (mut begin, mut end, mut bytes) = (middle, middle, 0);
    loop {
        let before = begin.checked_sub(1).filter(|_| middle - begin <= end - middle || end == lines.len());
        let next = before.or((end < lines.len()).then_some(end));
        let Some(next) = next else { break };
        bytes += hit_bytes(&lines[next]);
        if bytes > room {
            break;
        }
        (begin, end) = (begin.min(next), end.max(next + 1));
    }
    let cut = (begin as u64, (lines.len() - end) as u64);
    (lines.into_iter().skip(begin).take(end - begin).collect(), cut.0, cut.1)
}

/// What is taken of one log.
struct LogExcerpt {
    lines: Vec<LogHit>,
    /// Lines before those.
    older: u64,
    /// There are lines after those.
    newer: bool,
}

/// The lines next to the place, while a log is read.
struct Window<'a> {
    log: &'a Log,
    kept: &'a KeptStream,
    place: LinePlace,
    /// Most lines on each side.
    side: usize,
    before: VecDeque<LogHit>,
    after: Vec<LogHit>,
    /// Lines before those.
    older: u64,
    /// There are lines after those.
    newer: bool,
}

impl<'a> Window<'a> {
    fn new(log: &'a Log, kept: &'a KeptStream, place: LinePlace, side: usize) -> Window<'a> {
        Window { log, kept, place, side, before: VecDeque::new(), after: Vec::new(), older: 0, newer: false }
    }

    fn taken(self) -> LogExcerpt {
        let lines = self.before.into_iter().chain(self.after).collect();
        LogExcerpt { lines, older: self.older, newer: self.newer }
    }

    fn piece(&mut self, piece: LogChunk<'_>) -> bool {
        if let Some(end) = piece.long_end {
            let text = String::from_utf8_lossy(piece.bytes);
            return self.line(&SearchLine { number: piece.first, end, text: &text });
        }
        let unfinished = u64::from(piece.bytes.last().is_some_and(|byte| *byte != b'\n'));
        let last = piece.first + line_ends(piece.bytes) + unfinished - 1;
        let end = piece.begin + piece.bytes.len() as u64;
        let last = hit_of(self.log, self.kept, &SearchLine { number: last, end, text: "" }).place();
        // Of a piece that is wholly before, only the end can count.
        let from = if last.is_before(&self.place) { last_lines(piece.bytes, self.side) } else { 0 };
        let skipped = line_ends(&piece.bytes[..from]);
        if skipped > 0 {
            self.older += skipped + self.before.len() as u64;
            self.before.clear();
        }
        let (mut end, mut number) = (piece.begin + from as u64, piece.first + skipped);
        for raw in piece.bytes[from..].split_inclusive(|byte| *byte == b'\n') {
            end += raw.len() as u64;
            let text = shown(raw.strip_suffix(b"\n").unwrap_or(raw));
            if !self.line(&SearchLine { number, end, text: &text }) {
                return false;
            }
            number += 1;
        }
        true
    }

    /// Takes a line; `false` when the context is complete.
    fn line(&mut self, line: &SearchLine<'_>) -> bool {
        let hit = LogHit { text: line.text.to_owned(), ..hit_of(self.log, self.kept, line) };
        if hit.place().is_before(&self.place) {
            if self.before.len() == self.side {
                self.before.pop_front();
                self.older += 1;
            }
            self.before.push_back(hit);
            return true;
        }
        self.newer = self.after.len() > self.side;
        if !self.newer {
            self.after.push(hit);
        }
        !self.newer
    }
}

/// Where the last `most` lines start.
fn last_lines(bytes: &[u8], most: usize) -> usize {
    let ends = bytes.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    ends.filter(|end| *end < bytes.len()).nth(most - 1).unwrap_or(0)
}
