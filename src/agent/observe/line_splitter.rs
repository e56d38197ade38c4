//! Cuts the output of a rank into lines as a terminal would show them.
//!
//! A carriage return starts the line again, as progress bars do. "Cursor up" opens lines again that had ended:
//! bars below each other. From then on, the rows of that display are a window: a row is a line once it leaves the
//! window at its top, and overwritten rows are not lines. Without such sequences, each line is given at its newline.
//!
//! - SPLIT-1: a line has the number of its newline in the output, so numbers grow, and those of rows that were
//!   written over are left out.
//! - SPLIT-2: memory is bounded: [`ROWS`] rows of at most [`LINE_BYTES`].

use std::borrow::Cow;
use std::collections::VecDeque;

/// Longest line that is passed on, bytes; the rest of it is cut off.
pub(crate) const LINE_BYTES: usize = 4096;
/// Most rows of a display.
const ROWS: usize = 16;
/// Longest escape sequence that is understood.
const ESCAPE: usize = 16;
/// A display ends after this many newlines below it.
const CALM: usize = 8;

/// Cuts bytes into lines.
#[derive(Debug)]
pub(crate) struct LineSplitter {
    /// The unfinished line, or the rows of a display; never empty.
    rows: VecDeque<Row>,
    /// The row with the cursor.
    at: usize,
    newlines: u64,
    /// Lines up to here have their numbers.
    next: u64,
    /// An escape sequence that has begun.
    escape: Vec<u8>,
    /// Newlines at the bottom of the display since the cursor last moved up.
    calm: usize,
}

#[derive(Debug, Default)]
struct Row {
    text: Vec<u8>,
    /// What comes next starts it again.
    restart: bool,
    /// It was written over, or is about to be.
    rewritten: bool,
    /// It stands for a line that was given before the cursor came back to it.
    given: bool,
}

impl Default for LineSplitter {
    fn default() -> LineSplitter {
        LineSplitter {
            rows: [Row::default()].into(),
            at: 0,
            newlines: 0,
            next: 0,
            escape: Vec::new(),
            calm: 0,
        }
    }
}

impl LineSplitter {
    /// Feeds bytes; `each` gets every finished line with its number.
    pub fn push(&mut self, bytes: &[u8], mut each: impl FnMut(u64, String)) {
        let mut rest = bytes;
        while let Some(first) = rest.first() {
            if !self.escape.is_empty() {
                rest = if self.goes_on(*first) { &rest[1..] } else { rest };
                continue;
            }
            let end = memchr::memchr3(b'\n', b'\r', b'\x1b', rest).unwrap_or(rest.len());
            self.write(&rest[..end]);
            match rest.get(end) {
                Some(b'\n') => self.newline(&mut each),
                Some(b'\r') => self.restart(),
                Some(_) => self.escape.push(b'\x1b'),
                None => {}
            }
            rest = rest.get(end + 1..).unwrap_or_default();
        }
    }

    /// Number of the line that is being written: the count of newlines so far.
    pub fn newlines(&self) -> u64 {
        self.newlines
    }

    /// Counts lines that were not read. What is unfinished is forgotten.
    pub fn skip(&mut self, lines: u64) {
        let newlines = self.newlines + lines;
        *self = LineSplitter { newlines, next: self.next.max(newlines), ..LineSplitter::default() };
    }

    /// Gives the rows above the cursor: no display has written over them for long.
    pub fn settle(&mut self, mut each: impl FnMut(u64, String)) {
        let first = self.newlines.saturating_sub(self.at as u64);
        let above: Vec<Row> = self.rows.drain(..self.at).collect();
        for (number, row) in (first..).zip(above) {
            self.give(row, number, &mut each);
        }
        (self.at, self.calm) = (0, 0);
    }

    /// Whether [`LineSplitter::settle`] gives something.
    pub fn holds_lines(&self) -> bool {
        self.rows.iter().take(self.at).any(|row| !row.given)
    }

    /// Gives all that is left: it will not be finished.
    pub fn finish(&mut self, mut each: impl FnMut(u64, String)) {
        self.end_escape();
        self.settle(&mut each);
        let left = std::mem::replace(&mut self.rows, [Row::default()].into());
        for row in left.into_iter().filter(|row| !row.text.trim_ascii().is_empty()) {
            self.give(row, self.newlines, &mut each);
            self.newlines += 1;
        }
    }

    /// The rows that are not finished and not blank, at most `bytes` of each.
    pub fn unfinished(&self, bytes: usize) -> Vec<String> {
        let rows = self.rows.iter().filter(|row| !row.given && !row.text.trim_ascii().is_empty());
        rows.map(|row| decoded(&row.text[..row.text.len().min(bytes)]).into_owned()).collect()
    }

    /// The unfinished rows are a display that its program writes over.
    pub fn is_rewritten(&self) -> bool {
        self.rows.len() > 1 || self.rows.iter().any(|row| row.rewritten)
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some(row) = self.rows.get_mut(self.at).filter(|_| !bytes.is_empty()) {
            if std::mem::take(&mut row.restart) {
                row.text.clear();
            }
            let room = LINE_BYTES.saturating_sub(row.text.len()).min(bytes.len());
            row.text.extend_from_slice(&bytes[..room]);
            row.given = false;
        }
    }

    fn restart(&mut self) {
        if let Some(row) = self.rows.get_mut(self.at) {
            (row.restart, row.rewritten) = (true, true);
        }
    }

    fn newline(&mut self, each: &mut impl FnMut(u64, String)) {
        self.newlines += 1;
        if self.at + 1 < self.rows.len() {
            self.at += 1;
            self.restart();
            return;
        }
        // Those above the cursor have the numbers behind it.
        let number = self.newlines.saturating_sub(self.at as u64 + 1);
        if let Some(row) = self.rows.pop_front() {
            self.give(row, number, each);
        }
        self.rows.push_back(Row::default());
        self.calm += 1;
        if self.rows.len() > 1 && self.calm >= CALM {
            self.settle(each);
        }
    }

    /// Takes in the next byte of an escape sequence; false if the sequence has no part in moving the cursor.
    fn goes_on(&mut self, byte: u8) -> bool {
        match (self.escape.as_slice(), byte) {
            ([_], b'[') => self.escape.push(byte),
            ([_, b'[', ..], b'0'..=b'9') if self.escape.len() < ESCAPE => self.escape.push(byte),
            ([_, b'[', count @ ..], b'A' | b'B' | b'E' | b'F') => {
                let count = std::str::from_utf8(count).ok().and_then(|count| count.parse().ok()).unwrap_or(1);
                self.escape.clear();
                if matches!(byte, b'A' | b'F') {
                    self.up(count)
                } else {
                    self.down(count)
                }
                if matches!(byte, b'E' | b'F') {
                    self.restart();
                }
            }
            _ => {
                self.end_escape();
                return false;
            }
        }
        true
    }

    /// What has begun as an escape sequence is text.
    fn end_escape(&mut self) {
        let escape = std::mem::take(&mut self.escape);
        self.write(&escape);
    }

    /// Gives a finished row; sequences that move the cursor alone must not lead back to an earlier number.
    fn give(&mut self, row: Row, number: u64, each: &mut impl FnMut(u64, String)) {
        if !row.given {
            let number = number.max(self.next);
            self.next = number + 1;
            each(number, decoded(&row.text).into_owned());
        }
    }

    fn up(&mut self, rows: usize) {
        let missing = rows.saturating_sub(self.at).min(ROWS - self.rows.len().min(ROWS));
        for _ in 0..missing {
            self.rows.push_front(Row { given: true, ..Row::default() });
        }
        self.at = (self.at + missing).saturating_sub(rows);
        self.calm = 0;
    }

    fn down(&mut self, rows: usize) {
        self.at = self.at.saturating_add(rows).min(self.rows.len() - 1);
    }
}

/// The introducer of a control sequence (CSI) as a single byte.
const CSI: u8 = 0x9b;

/// Decodes output like [`String::from_utf8_lossy`], except that a [`CSI`] byte outside of valid UTF-8 becomes U+009B:
/// readers then remove its whole sequence. The other bytes of C1 are letters in common code pages, where a control
/// string without an end would hide the rest of the line.
pub(crate) fn decoded(bytes: &[u8]) -> Cow<'_, str> {
    if !bytes.contains(&CSI) {
        return String::from_utf8_lossy(bytes);
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        // `E9 9B` begins a letter that does not follow: also Latin-1, a letter before a sequence.
        let (before, has_csi) = match chunk.invalid() {
            [before @ .., CSI] => (before, true),
            invalid => (invalid, false),
        };
        text.extend((!before.is_empty()).then_some(char::REPLACEMENT_CHARACTER));
        text.extend(has_csi.then_some(char::from(CSI)));
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(parts: &[&[u8]]) -> Vec<String> {
        numbered(parts).into_iter().map(|(_, line)| line).collect()
    }

    fn numbered(parts: &[&[u8]]) -> Vec<(u64, String)> {
        let (mut splitter, mut lines) = (LineSplitter::default(), Vec::new());
        for part in parts {
            splitter.push(part, |number, line| lines.push((number, line)));
        }
        splitter.finish(|number, line| lines.push((number, line)));
        lines
    }

    #[test]
    fn lines_are_shown_as_on_a_terminal() {
        assert_eq!(split(&[b"a\nb", b"c\n\nd"]), ["a", "bc", "", "d"]);
        assert_eq!(split(&[b"10%\r20%\r", b"30%\ndone\r\n"]), ["30%", "done"]);
        assert_eq!(split(&[b"\xff\n"]), ["\u{fffd}"]);
        let long = vec![b'x'; LINE_BYTES * 3];
        assert_eq!(split(&[&long, b"\ny\n"]), [&"x".repeat(LINE_BYTES), "y"]);
        assert_eq!(
            split(&[b"\x1b[1;31mred\x1b[0m\n\x1b", b"[2Kx\n\x1b"]),
            ["\x1b[1;31mred\x1b[0m", "\x1b[2Kx", "\x1b"]
        );
    }

    #[test]
    fn control_sequence_of_a_latin_1_program_is_removed() {
        let shown = |bytes: &[u8]| rankdeck_types::words::clean(&decoded(bytes));
        assert_eq!(shown(b"\x9b1;31mred\x9b0m"), "red");
        assert_eq!(shown(b"caf\xe9\x9b31m!"), "caf\u{fffd}!");
        assert_eq!(split(&[b"a\x9b31", b"mb\n"]), ["a\u{9b}31mb"]);
        // The byte within letters of UTF-8, and bytes that are letters elsewhere.
        for text in ["\u{26d4}x", "\u{15b}"] {
            assert!(text.as_bytes().contains(&CSI));
            assert_eq!(decoded(text.as_bytes()), text);
        }
        assert_eq!(shown(b"\x9eena \x9b0m"), "\u{fffd}ena ");
        for bytes in [&b"\xff\xfe"[..], b"a\xf0\x9f\x92b"] {
            let lossy = String::from_utf8_lossy(bytes).into_owned();
            assert_eq!(decoded(&[bytes, b"\x9b"].concat()), lossy + "\u{9b}");
        }
    }

    /// Two bars of tqdm below each other, in whatever pieces they are read.
    #[test]
    fn split_1_bars_below_each_other_are_few_lines() {
        let mut output = b"start\n\router 0".to_vec();
        for step in 0..100 {
            output.extend(format!("\n\rinner {step}\x1b[A").bytes());
        }
        output.extend(b"\n\r        \r\x1b[A\router 1\nafter\nlast\n");
        for size in [1, 3, 7, output.len()] {
            let lines = numbered(&output.chunks(size).collect::<Vec<_>>());
            let texts: Vec<&str> = lines.iter().map(|(_, text)| text.trim()).collect();
            assert_eq!(texts, ["start", "outer 0", "outer 1", "after", "last"], "{size}");
            let newlines = output.iter().filter(|byte| **byte == b'\n').count() as u64;
            assert_eq!(lines.iter().map(|(number, _)| *number).max(), Some(newlines - 1));
            assert!(lines.is_sorted_by(|one, next| one.0 < next.0), "{lines:?}");
        }
    }

    #[test]
    fn display_is_over_after_lines_below_it() {
        let (mut splitter, mut lines) = (LineSplitter::default(), Vec::new());
        let mut push = |splitter: &mut LineSplitter, text: String| {
            splitter.push(text.as_bytes(), |number, line| lines.push((number, line)));
            lines.len()
        };
        push(&mut splitter, "a\nb\x1b[A\ra\nb\n".into());
        assert!(splitter.is_rewritten() && splitter.holds_lines());
        let before = push(&mut splitter, String::new());
        for n in 0..20 {
            push(&mut splitter, format!("line {n}\n"));
        }
        assert!(!splitter.holds_lines() && !splitter.is_rewritten());
        assert_eq!(push(&mut splitter, String::new()), before + 21, "b, and 20 lines");
        assert_eq!(lines.last().map(|(number, line)| (*number, line.as_str())), Some((22, "line 19")));
    }

    #[test]
    fn settled_display_gives_the_rows_above_the_cursor() {
        let mut splitter = LineSplitter::default();
        let mut lines = Vec::new();
        splitter.push(b"a\nb\x1b[A\ra\nb\nc", |number, line| lines.push((number, line)));
        lines.clear();
        splitter.settle(|number, line| lines.push((number, line)));
        assert_eq!(lines, [(2, "b".to_owned())]);
        assert_eq!((splitter.unfinished(10), splitter.newlines()), (vec!["c".to_owned()], 3));
    }

    #[test]
    fn unfinished_rows_are_those_that_may_change() {
        let mut splitter = LineSplitter::default();
        splitter.push(b"done\npart", |_, _| {});
        assert_eq!((splitter.unfinished(3), splitter.is_rewritten()), (vec!["par".to_owned()], false));
        splitter.push(b"\r10%", |_, _| {});
        assert_eq!((splitter.unfinished(9), splitter.is_rewritten()), (vec!["10%".to_owned()], true));
        splitter.push(b"\r   ", |_, _| {});
        assert!(splitter.unfinished(9).is_empty());
    }

    #[test]
    fn split_2_odd_moves_are_bounded_and_keep_numbers_rising() {
        let odd = b"\x1b[999999A\x1b[5Bx\x1b[3A\n\x1b[Fy\n\n\n\x1b[2E\x1b[0Az\x1b[99999999999999999999A\n\x1b[B\x1b[12\n";
        let lines = numbered(&[&odd.repeat(50)]);
        assert!(lines.is_sorted_by(|one, next| one.0 < next.0), "{lines:?}");
        let mut splitter = LineSplitter::default();
        splitter.push(&odd.repeat(50), |_, _| {});
        assert!(splitter.rows.len() <= ROWS);
    }
}
