//! What a detector has found: all of a verdict but its card. Pure.

use crate::reason::{Confidence, Reason, SentenceForm, Severity};
use rankdeck_types::ids::Rank;

/// How bad it is, how sure, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Judgement {
    pub severity: Severity,
    pub confidence: Confidence,
    pub reason: Reason,
}

impl Judgement {
    /// As bad as the reason usually is.
    pub fn usual(confidence: Confidence, reason: Reason) -> Judgement {
        Judgement { severity: reason.row().severity, confidence, reason }
    }
}

/// The parts of a verdict that differ from detector to detector.
#[derive(Debug)]
pub(super) struct Draft {
    pub judged: Judgement,
    /// Which sentence of the reason's row.
    pub form: SentenceForm,
    /// Values for the `{word}`s of that sentence.
    pub words: Vec<(&'static str, String)>,
    /// The rank to blame.
    pub rank: Option<Rank>,
    pub host: Option<String>,
    /// A rank that waits for it.
    pub waiter: Option<Rank>,
    /// What is decisive and stands on no side of the card.
    pub facts: Vec<String>,
    /// What else supports it.
    pub observations: Vec<String>,
    pub latency_ms: u64,
    /// The calls of all ranks are equal up to this number.
    pub compared: Option<u64>,
}

impl Draft {
    pub fn new(judged: Judgement, words: Vec<(&'static str, String)>) -> Draft {
        Draft {
            judged,
            form: SentenceForm::Usual,
            words,
            rank: None,
            host: None,
            waiter: None,
            facts: Vec::new(),
            observations: Vec::new(),
            latency_ms: 0,
            compared: None,
        }
    }
}
