//! What happened: lines of the events pane, and marks on charts.

use crate::report::{Severity, VerdictKind, VerdictReport};
use crate::series::Place;
use rankdeck_types::ids::{Generation, Rank, Timestamp};
use serde::{Deserialize, Serialize};

/// Something that happened, on the axes of charts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// Step and time.
    pub place: Place,
    /// What happened.
    pub kind: MarkKind,
}

/// What a [`Mark`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MarkKind {
    /// A generation began after the first.
    Generation(Generation),
    /// The watch said something.
    Verdict(VerdictKind, Severity),
    /// A checkpoint is complete.
    Checkpoint,
}

/// One line of the events pane.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HistoryLine {
    /// Counts all lines, from 1.
    #[serde(default)]
    pub number: u64,
    /// When (console clock).
    pub at: Timestamp,
    /// Seconds since the epoch, as the source said.
    pub time: f64,
    /// How good or bad the news is.
    pub tone: Tone,
    /// One sentence.
    pub text: String,
    /// It comes again and again, as an evaluation does: the first to go when there are too many lines.
    #[serde(default)]
    pub routine: bool,
    /// What can be looked at behind it.
    #[serde(default)]
    pub subject: Option<Subject>,
}

impl HistoryLine {
    /// A line about nothing that could be opened.
    pub fn new(number: u64, at: Timestamp, tone: Tone, text: impl Into<String>) -> HistoryLine {
        HistoryLine { number, at, time: 0.0, tone, text: text.into(), routine: false, subject: None }
    }
}

/// What a line of the history is about, for who opens it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Subject {
    /// A verdict as it was told then, with its card.
    Verdict(Box<VerdictReport>),
    /// A checkpoint, by its path on rank 0's host.
    Checkpoint(String),
    Rank(Rank),
}

/// How good or bad the news of a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tone {
    /// It goes as planned.
    Info,
    /// Good news.
    Good,
    /// Something that may need attention.
    Warn,
    /// Bad news.
    Bad,
}
