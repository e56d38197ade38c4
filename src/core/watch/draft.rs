//! What a detector has found, and the verdict that is made from it. Pure.

use super::card_builder;
use super::rank_view::RankView;
use crate::card::Card;
use crate::model::Model;
use crate::reason::{self, Reason, SentenceForm, Severity};
use crate::report::{Confidence, VerdictReport};
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

    /// The verdict. `views` are the ranks as they are now, as far as somebody has looked.
    pub fn verdict(self, model: &Model, views: &[RankView<'_>]) -> VerdictReport {
        let card = card_builder::card(model, views, &self);
        let Judgement { severity, confidence, reason } = self.judged;
        VerdictReport {
            rank: self.rank,
            host: self.host,
            verdict: reason.kind(),
            severity,
            confidence,
            reason_code: reason,
            reason: reason::fill(reason.row().sentence(self.form), &self.words),
            latency_s: self.latency_ms as f64 / 1000.0,
            first_s: 0.0,
            card: Box::new(Card { facts: self.facts, observations: self.observations, ..card }),
        }
    }
}
