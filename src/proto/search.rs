//! A search in the logs that a host keeps: what is asked, and what was found.

use rankdeck_types::ids::{Generation, NodeRank, Rank, WallTime};
use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

/// Where a line stands among those of all ranks: by generation, time, rank and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LinePlace {
    pub generation: Generation,
    /// About when it was written, by the host's clock, ms since 1970; 0: not known.
    pub time_ms: u64,
    /// The rank that wrote it.
    pub rank: Rank,
    /// Number in the rank's log of that generation, from 1.
    pub line: u64,
}

impl LinePlace {
    /// It is that line, whatever time each of them is said to have.
    pub fn is(&self, other: &LinePlace) -> bool {
        self.writes_with(other) && self.line == other.line
    }

    /// It stands before that line. Of one rank the number decides: times are those of looks at the log.
    pub fn is_before(&self, other: &LinePlace) -> bool {
        if self.writes_with(other) { self.line < other.line } else { self < other }
    }

    fn writes_with(&self, other: &LinePlace) -> bool {
        (self.generation, self.rank) == (other.generation, other.rank)
    }
}

/// Which lines are kept of more than are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    #[default]
    Newest,
    /// The newest of those before a place.
    Before(LinePlace),
    /// The oldest of those after a place.
    After(LinePlace),
    /// All lines around a place, of its generation, whatever is in them.
    Around(LinePlace),
}

/// What is looked for.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogSearch {
    /// A regular expression, as [`compile`] reads it.
    pub pattern: String,
    /// Only this node's ranks: hosts that share a disk have each other's logs, too.
    pub node: Option<NodeRank>,
    /// Lines are wanted that do not match.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub invert: bool,
    /// Only this rank.
    pub rank: Option<Rank>,
    /// Only these ranks; empty: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<Rank>,
    /// Only this generation; `None`: all.
    pub generation: Option<Generation>,
    /// Only lines that were read at this time or later, by the host's clock.
    pub since: Option<WallTime>,
    /// Only lines that were read by this time.
    pub until: Option<WallTime>,
    /// Lines shown before and after each hit.
    pub context: u32,
    /// Most hits of the host.
    pub limit: u32,
    /// Which of them are kept.
    pub part: Part,
}

/// A line that matches.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogHit {
    /// The rank that wrote it.
    pub rank: Rank,
    pub generation: Generation,
    /// Number in the rank's log of that generation, from 1; among the lines that the host keeps of it, where
    /// the file does not tell how many were before.
    pub line: u64,
    /// The line.
    pub text: String,
    /// When it was read, by the host's clock; `None`: not known.
    pub time: Option<WallTime>,
    /// About when it was written, ms, for merging; 0: not known.
    pub at_ms: u64,
    /// Lines before it, as far as they are in no hit before it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<String>,
    /// Lines after it, up to the next hit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
}

impl LogHit {
    /// Where it stands.
    pub fn place(&self) -> LinePlace {
        LinePlace { generation: self.generation, time_ms: self.at_ms, rank: self.rank, line: self.line }
    }
}

/// What was found on a host, so far.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogFindings {
    /// Hits, by their places; none before it is over.
    pub hits: Vec<LogHit>,
    /// Hits before those, which were too many.
    pub more: u64,
    /// Hits after those.
    pub newer: u64,
    /// Lines that were looked at.
    pub lines: u64,
    /// Lines of which no time is known, where times were asked for.
    pub untimed: u64,
    /// Bytes that were looked at.
    pub bytes: u64,
    /// How many there are.
    pub of_bytes: u64,
    /// Bytes that ranks had written before those, and that the host no longer keeps.
    pub gone_bytes: u64,
    /// Why some were not looked at; empty when all were.
    pub cut: String,
    /// Nothing more comes.
    pub over: bool,
}

/// A pattern as people type it: without capital letters, it matches in any case.
///
/// # Errors
/// What is wrong with it, in one line.
pub fn compile(pattern: &str) -> Result<Regex, String> {
    let any_case = !pattern.chars().any(char::is_uppercase);
    RegexBuilder::new(pattern).case_insensitive(any_case).build().map_err(|error| in_one_line(&error))
}

/// What is wrong with a pattern, without the drawing of it.
pub fn in_one_line(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_one_rank_are_in_the_order_of_their_numbers_whatever_their_times() {
        let place =
            |rank, time_ms, line| LinePlace { time_ms, rank: Rank(rank), line, ..LinePlace::default() };
        let (early, late) = (place(0, 2_000, 7), place(0, 1_500, 8));
        assert!(early.is_before(&late) && !late.is_before(&early) && late < early);
        assert!(early.is(&place(0, 0, 7)) && !early.is(&place(1, 2_000, 7)));
        assert!(late.is_before(&place(1, 1_600, 1)) && place(1, 1_400, 9).is_before(&late));
    }

    #[test]
    fn a_pattern_without_capital_letters_matches_in_any_case_and_a_wrong_one_is_named_in_one_line() {
        assert!(compile("nan|inf").unwrap().is_match("loss NaN"));
        assert!(!compile("NaN").unwrap().is_match("loss nan"));
        assert_eq!(compile("loss (nan").unwrap_err(), "unclosed group");
    }

    #[test]
    fn a_search_of_an_older_console_is_one_for_the_newest_lines() {
        let wanted: LogSearch = serde_json::from_str(r#"{"pattern":"x","limit":5}"#).unwrap();
        assert_eq!((wanted.part, wanted.invert, wanted.ranks.len()), (Part::Newest, false, 0));
        let part = Part::Around(LinePlace { line: 3, ..LinePlace::default() });
        let json = serde_json::to_string(&LogSearch { part, ..wanted.clone() }).unwrap();
        assert_eq!(serde_json::from_str::<LogSearch>(&json).unwrap(), LogSearch { part, ..wanted });
    }
}
