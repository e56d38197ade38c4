//! A search in the logs that a host keeps: what is asked, and what was found.

use rankdeck_types::ids::{Generation, Rank, WallTime};
use serde::{Deserialize, Serialize};

/// What is looked for.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogSearch {
    /// A regular expression. Without capital letters, it matches in any case.
    pub pattern: String,
    /// Only this rank.
    pub rank: Option<Rank>,
    /// Only this generation; `None`: all.
    pub generation: Option<Generation>,
    /// Only lines that were read at this time or later, by the host's clock.
    pub since: Option<WallTime>,
    /// Only lines that were read by this time.
    pub until: Option<WallTime>,
    /// Lines shown before and after each hit.
    pub context: u32,
    /// Most hits of the host; the newest are kept.
    pub limit: u32,
}

/// A line that matches.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogHit {
    /// The rank that wrote it.
    pub rank: Rank,
    /// Of which generation.
    pub generation: Generation,
    /// Number among the lines that the host keeps of that rank and generation, from 1.
    pub line: u64,
    /// The line.
    pub text: String,
    /// When it was read, by the host's clock; `None`: not known.
    pub time: Option<WallTime>,
    /// Lines before it, as far as they are in no hit before it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<String>,
    /// Lines after it, up to the next hit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
}

/// What was found on a host.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogFindings {
    /// Hits, by generation, rank and line.
    pub hits: Vec<LogHit>,
    /// Hits beside those, which were too many.
    pub more: u64,
    /// Lines that were looked at.
    pub lines: u64,
    /// Lines of which no time is known, where times were asked for.
    pub untimed: u64,
    /// Why some were not; empty when all were.
    pub cut: String,
}
