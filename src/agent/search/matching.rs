//! Which lines match: a whole piece is looked through at once, and each line that may match is looked at as
//! it is shown.

use super::Line;
use super::kept::{Piece, shown};
use crate::observe::logs::line_ends;
use rankdeck_proto::search::{LogSearch, compile};
use regex::Regex;
use regex::bytes;

/// What is looked for.
#[derive(Debug, Clone)]
pub(super) struct Matching {
    line: Regex,
    invert: bool,
    /// Finds the begin of what may match in many lines; `None`: line by line.
    many: Option<bytes::Regex>,
}

impl Matching {
    /// # Errors
    /// What is wrong with the pattern.
    pub fn new(wanted: &LogSearch) -> Result<Matching, String> {
        let line = compile(&wanted.pattern)?;
        Ok(Matching { line, invert: wanted.invert, many: many(&wanted.pattern).filter(|_| !wanted.invert) })
    }

    /// This line is wanted.
    pub fn wants(&self, text: &str) -> bool {
        self.line.is_match(text) != self.invert
    }

    /// Gives `each` the lines of a piece that are wanted; how many lines it has.
    pub fn each(&self, piece: Piece<'_>, mut each: impl FnMut(&Line<'_>)) -> u64 {
        let bytes = piece.bytes;
        let many = self.many.as_ref().filter(|_| std::str::from_utf8(bytes).is_ok());
        let (mut at, mut number) = (0, piece.first);
        while at < bytes.len() {
            let begin = match many {
                None => at,
                Some(many) => {
                    let Some(found) = many.find_at(bytes, at) else { break };
                    let before = &bytes[at..found.start()];
                    number += line_ends(before);
                    at + before.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1)
                }
            };
            if begin == bytes.len() {
                // All lines before are counted.
                at = begin;
                break;
            }
            let rest = &bytes[begin..];
            let len = rest.iter().position(|byte| *byte == b'\n');
            let next = begin + len.map_or(rest.len(), |len| len + 1);
            let text = shown(&rest[..len.unwrap_or(rest.len())]);
            if self.wants(&text) {
                each(&Line { number, end: piece.begin + next as u64, text: &text });
            }
            (at, number) = (next, number + 1);
        }
        // One without an end is a line, too.
        number - piece.first
            + line_ends(&bytes[at..])
            + u64::from(at < bytes.len() && bytes.last() != Some(&b'\n'))
    }
}

/// The pattern for many lines at once. It must find whatever one line has: none, where a pattern can tell the
/// begin of a line from that of the text.
fn many(pattern: &str) -> Option<bytes::Regex> {
    if pattern.is_empty() || ["\\A", "\\z", "(?"].iter().any(|special| pattern.contains(special)) {
        return None;
    }
    let any_case = !pattern.chars().any(char::is_uppercase);
    bytes::RegexBuilder::new(pattern).case_insensitive(any_case).multi_line(true).crlf(true).build().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pattern: &str, text: &[u8]) -> (Vec<(u64, u64, String)>, u64) {
        let matching = Matching::new(&LogSearch { pattern: pattern.into(), ..LogSearch::default() }).unwrap();
        let mut all = Vec::new();
        let piece = Piece { bytes: text, begin: 100, first: 7, long_end: None };
        let lines = matching.each(piece, |line| all.push((line.number, line.end, line.text.to_owned())));
        (all, lines)
    }

    /// As `grep` would do it: line by line.
    fn expected(pattern: &str, text: &[u8]) -> (Vec<(u64, u64, String)>, u64) {
        let one = compile(pattern).unwrap();
        let (mut all, mut number, mut end) = (Vec::new(), 7, 100);
        for raw in text.split_inclusive(|byte| *byte == b'\n') {
            end += raw.len() as u64;
            let line = shown(raw.strip_suffix(b"\n").unwrap_or(raw)).into_owned();
            if one.is_match(&line) {
                all.push((number, end, line));
            }
            number += 1;
        }
        (all, number - 7)
    }

    #[test]
    fn many_lines_at_once_give_what_each_line_gives() {
        let texts: [&[u8]; 6] = [
            b"loss 0.5\nloss NaN\n\nloss inf\nend",
            b"10% nan\r20%\r30% fine\nnan\r\nx\rnan\n",
            b"a\nb\na b\n\n\nab\n",
            b"\n",
            b"\xff nan\nn\xffan nan\nfine\n",
            "épisode 5\nÉPISODE 6\nstraße\n".as_bytes(),
        ];
        let patterns = [
            "nan|inf", "^loss", "nan$", "^$", r"a\s+b", r"a[^x]*b", "x*", ".", "^.{8}$", r"\bnan\b", r"\d+%",
            "NaN", r"(?m)^a", r"\Aa", r"fine\z", "é", r"\w+ 5", "[^a]", r"\s", r"e\n?",
        ];
        for text in texts {
            for pattern in patterns {
                assert_eq!(found(pattern, text), expected(pattern, text), "{pattern} in {text:?}");
            }
        }
    }
}
