//! What was asked of processes of hosts, and what came back.

use rankdeck_proto::process::{Environment, ProcessAction, ProcessName, ReachOutcome};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::NodeRank;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Questions that are remembered.
const ASKED: usize = 16;

/// The latest questions. In no record.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reaches {
    /// The newest last, bounded.
    asked: VecDeque<ReachQuestion>,
    requests: u64,
    answers: u64,
}

/// One question.
#[derive(Debug, Clone, PartialEq)]
pub struct ReachQuestion {
    /// Its number.
    pub request: u64,
    pub node: NodeRank,
    /// Name of the host.
    pub host: String,
    pub process: ProcessName,
    pub action: ProcessAction,
    /// What came back, once it has.
    pub outcome: Option<ReachOutcome>,
    /// Which answer that was, in the order in which they came, from 1.
    pub answer: u64,
    /// When it was asked, in time that this console was awake.
    pub(crate) since: u64,
}

impl ReachQuestion {
    /// A question that is not asked yet.
    pub fn new(
        node: NodeRank,
        host: impl Into<String>,
        process: ProcessName,
        action: ProcessAction,
    ) -> ReachQuestion {
        ReachQuestion {
            request: 0,
            node,
            host: host.into(),
            process,
            action,
            outcome: None,
            answer: 0,
            since: 0,
        }
    }
}

impl Reaches {
    /// Notes a question; its number.
    pub fn ask(&mut self, asked: ReachQuestion) -> u64 {
        self.requests += 1;
        let answered = asked.outcome.is_some();
        if self.asked.len() == ASKED {
            self.asked.pop_front();
        }
        self.answers += u64::from(answered);
        let answer = if answered { self.answers } else { 0 };
        self.asked.push_back(ReachQuestion { request: self.requests, answer, ..asked });
        self.requests
    }

    /// Takes the answer for each open question that gets one; `true` when one did.
    pub fn settle(&mut self, mut answer: impl FnMut(&ReachQuestion) -> Option<ReachOutcome>) -> bool {
        let before = self.answers;
        for asked in self.asked.iter_mut().filter(|asked| asked.outcome.is_none()) {
            if let Some(outcome) = answer(asked) {
                self.answers += 1;
                (asked.answer, asked.outcome) = (self.answers, Some(outcome));
            }
        }
        self.answers > before
    }

    /// Something waits for an answer.
    pub(crate) fn is_waiting(&self) -> bool {
        self.asked.iter().any(|asked| asked.outcome.is_none())
    }

    /// How many answers have come.
    pub fn answers(&self) -> u64 {
        self.answers
    }

    /// Those whose answers came after that one.
    pub fn answered(&self, after: u64) -> impl Iterator<Item = (&ReachQuestion, &ReachOutcome)> {
        let told = self.asked.iter().filter_map(|asked| Some((asked, asked.outcome.as_ref()?)));
        told.filter(move |(asked, _)| asked.answer > after)
    }

    /// The latest answer about the environment of a process: `None` while there is none.
    pub fn environment(
        &self,
        node: NodeRank,
        process: ProcessName,
    ) -> Option<Result<&Environment, HintedError>> {
        let about = |asked: &&ReachQuestion| {
            (asked.node, asked.process, asked.action) == (node, process, ProcessAction::Environment)
        };
        match self.asked.iter().rev().find(about)?.outcome.as_ref()? {
            ReachOutcome::Environment(found) => Some(Ok(found)),
            ReachOutcome::Refused(error) => Some(Err(error.clone())),
            ReachOutcome::Signalled { .. } | ReachOutcome::Unknown => {
                Some(Err(HintedError::new("the agent gave another answer than was asked for", "")))
            }
        }
    }
}

/// A signal that a console had sent to a rank.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SentSignal {
    pub signal: i32,
    /// When, by the agent's clock, seconds since the epoch.
    pub time: f64,
}
