//! A search in the logs of a host: the query and its findings.

use rankdeck_types::ids::{Generation, NodeRank, Rank, WallTime};
use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

/// Position of a line among those of all ranks: by generation, time, rank and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LinePlace {
    pub generation: Generation,
    /// Approximate time of writing, by the host's clock, ms since 1970; 0: unknown.
    pub time_ms: u64,
    /// The rank that wrote it.
    pub rank: Rank,
    /// Number in the rank's log of that generation, from 1.
    pub line: u64,
}

impl LinePlace {
    /// Returns whether both are the same line, whatever their times.
    pub fn is(&self, other: &LinePlace) -> bool {
        self.writes_with(other) && self.line == other.line
    }

    /// Returns whether it precedes the other line. Within one rank the number decides, because times are
    /// those of polls of the log.
    pub fn is_before(&self, other: &LinePlace) -> bool {
        if self.writes_with(other) { self.line < other.line } else { self < other }
    }

    fn writes_with(&self, other: &LinePlace) -> bool {
        (self.generation, self.rank) == (other.generation, other.rank)
    }
}

/// Selects the matches to return if there are more than requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HitSelection {
    /// The newest matches.
    #[default]
    Newest,
    /// The newest matches before a line.
    Before(LinePlace),
    /// The oldest matches after a line.
    After(LinePlace),
    /// All lines around a line, of its generation, whether they match or not.
    Around(LinePlace),
}

/// A query.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogSearch {
    /// Regular expression for [`compile`].
    pub pattern: String,
    /// Only ranks of this host: hosts that share a disk also have each other's logs.
    pub node: Option<NodeRank>,
    /// Selects lines that do not match.
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
    /// Lines of context before and after each match.
    pub context: u32,
    /// Most matches of the host.
    pub limit: u32,
    /// Which matches to return.
    pub part: HitSelection,
}

/// A matching line.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogHit {
    /// The rank that wrote it.
    pub rank: Rank,
    pub generation: Generation,
    /// Number in the rank's log of that generation, from 1; counts only the lines that the host still has if
    /// the number of earlier ones is unknown.
    pub line: u64,
    /// The line.
    pub text: String,
    /// Time at which it was read, by the host's clock; `None`: unknown.
    pub time: Option<WallTime>,
    /// Approximate time of writing, ms, for merging; 0: unknown.
    pub at_ms: u64,
    /// Lines before it that are not in an earlier match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<String>,
    /// Lines after it, up to the next match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
}

impl LogHit {
    /// Returns its position.
    pub fn place(&self) -> LinePlace {
        LinePlace { generation: self.generation, time_ms: self.at_ms, rank: self.rank, line: self.line }
    }
}

/// Findings on a host so far.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogFindings {
    /// Matches in order; empty until the search is complete.
    pub hits: Vec<LogHit>,
    /// Number of earlier matches beyond the limit.
    pub more: u64,
    /// Number of later matches beyond the limit.
    pub newer: u64,
    /// Number of searched lines.
    pub lines: u64,
    /// Lines of unknown time, if the query has times.
    pub untimed: u64,
    /// Number of searched bytes.
    pub bytes: u64,
    /// Number of bytes to search.
    pub of_bytes: u64,
    /// Earlier bytes of the ranks that the host no longer has.
    pub gone_bytes: u64,
    /// Why some lines were not searched; empty if all were.
    pub cut: String,
    /// The search is complete.
    pub over: bool,
}

/// Compiles a typed pattern with smart case: without capital letters, it ignores case.
///
/// # Errors
/// The error in one line.
pub fn compile(pattern: &str) -> Result<Regex, String> {
    let any_case = !pattern.chars().any(char::is_uppercase);
    RegexBuilder::new(pattern).case_insensitive(any_case).build().map_err(|error| in_one_line(&error))
}

/// Returns the error of a pattern without the lines that point at its position.
pub fn in_one_line(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_one_rank_are_ordered_by_number() {
        let place =
            |rank, time_ms, line| LinePlace { time_ms, rank: Rank(rank), line, ..LinePlace::default() };
        let (early, late) = (place(0, 2_000, 7), place(0, 1_500, 8));
        assert!(early.is_before(&late) && !late.is_before(&early) && late < early);
        assert!(early.is(&place(0, 0, 7)) && !early.is(&place(1, 2_000, 7)));
        assert!(late.is_before(&place(1, 1_600, 1)) && place(1, 1_400, 9).is_before(&late));
    }

    #[test]
    fn pattern_is_smart_case_and_errors_are_one_line() {
        assert!(compile("nan|inf").unwrap().is_match("loss NaN"));
        assert!(!compile("NaN").unwrap().is_match("loss nan"));
        assert_eq!(compile("loss (nan").unwrap_err(), "unclosed group");
    }

    #[test]
    fn query_of_an_older_console_selects_the_newest_lines() {
        let query: LogSearch = serde_json::from_str(r#"{"pattern":"x","limit":5}"#).unwrap();
        assert_eq!((query.part, query.invert, query.ranks.len()), (HitSelection::Newest, false, 0));
        let part = HitSelection::Around(LinePlace { line: 3, ..LinePlace::default() });
        let json = serde_json::to_string(&LogSearch { part, ..query.clone() }).unwrap();
        assert_eq!(serde_json::from_str::<LogSearch>(&json).unwrap(), LogSearch { part, ..query });
    }
}
