//! The reasons that a verdict may give: one table, from which verdicts, cards, JSON and documents are made.
//!
//! A row holds all that is said about a reason: its name in JSON (`reason_code`, which never changes), the
//! kind of its verdicts, how bad it usually is, when `watch.on_stuck` acts on it, a sentence for documents
//! (the doc comment), the sentences of verdicts, and advice. The watch fills in each `{word}` of a sentence
//! or an advice.

mod table;
#[cfg(test)]
mod tests;

pub(crate) use table::RESTART;
pub use table::Reason;

use serde::{Deserialize, Serialize};
use table::ROWS;

/// How sure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// An outlier only.
    Possible,
    /// Stale marker and matching evidence.
    Likely,
    /// A hard fact.
    Certain,
}

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    /// The process ended, by an exit code or a signal.
    Dead,
    /// The host says nothing.
    Lost,
    /// The process is stopped (SIGSTOP, debugger).
    Frozen,
    /// Others wait in a collective that this rank has not entered.
    Behind,
    /// Ranks are in different collectives of the same number, or make none.
    Desync,
    /// The network between hosts.
    Network,
    /// A GPU is broken.
    Gpu,
    /// Its environment does not answer.
    EnvStuck,
    /// Slow, not stuck.
    Straggler,
    /// Weights differ between ranks.
    Drift,
    /// All-reduced totals are not the sum of the ranks' own counters.
    TotalsDiffer,
    /// The run does not learn, or unlearns.
    Learning,
}

impl VerdictKind {
    /// The word in JSON and on screens.
    pub fn name(self) -> &'static str {
        match self {
            VerdictKind::Dead => "dead",
            VerdictKind::Lost => "lost",
            VerdictKind::Frozen => "frozen",
            VerdictKind::Behind => "behind",
            VerdictKind::Desync => "desync",
            VerdictKind::Network => "network",
            VerdictKind::Gpu => "gpu",
            VerdictKind::EnvStuck => "env_stuck",
            VerdictKind::Straggler => "straggler",
            VerdictKind::Drift => "drift",
            VerdictKind::TotalsDiffer => "totals_differ",
            VerdictKind::Learning => "learning",
        }
    }
}

/// How much a verdict matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// It is over.
    Cleared,
    /// Worth knowing; nothing has to be done now.
    Amber,
    /// Act.
    Red,
}

/// Milliseconds after which a process that is held, stopped or frozen is not held for a moment.
const HELD_MS: u64 = 60_000;

/// When `watch.on_stuck` acts on a red verdict about a living rank. It acts only on what is certain: a
/// healthy rank may be silent for a while, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OnVerdict {
    /// As soon as it is certain.
    AtOnce,
    /// When it has lasted for a minute: whoever has stopped a process for a look or a snapshot lets it go on.
    Held,
    /// When it is proved and has lasted `watch.rank0_budget_s`. Silence is no proof, however long it lasts.
    Lasting,
    /// It does not: the run may be well, or `[restart]` is for it.
    Never,
}

impl OnVerdict {
    /// The words in documents.
    pub fn name(self) -> &'static str {
        match self {
            OnVerdict::AtOnce => "at once",
            OnVerdict::Held => "after a minute",
            OnVerdict::Lasting => "proved: after `rank0_budget_s`; silent: after `silence_is_stuck_s`",
            OnVerdict::Never => "never",
        }
    }

    /// How sure a verdict is that has lasted for `lasted_ms`. Time makes nothing certain that was not found
    /// to be so: a healthy rank may be silent for as long as it likes, unless the user has set a limit to
    /// that.
    pub fn confidence(self, found: Confidence, lasted_ms: u64, bounds: Bounds) -> Confidence {
        let enough_ms = match self {
            OnVerdict::Never => return found,
            OnVerdict::AtOnce => 0,
            OnVerdict::Held => HELD_MS.min(bounds.budget_ms),
            OnVerdict::Lasting => bounds.budget_ms,
        };
        if bounds.silence_ms.is_some_and(|limit_ms| bounds.silent_ms.min(lasted_ms) >= limit_ms) {
            Confidence::Certain
        } else if lasted_ms >= enough_ms {
            found
        } else {
            found.min(Confidence::Likely)
        }
    }
}

/// Times that decide how sure a verdict is, ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// For how long a rank may be silent without a word about it: `watch.rank0_budget_s`.
    pub budget_ms: u64,
    /// For how long it has been silent.
    pub silent_ms: u64,
    /// Silence that the user calls stuck: `watch.silence_is_stuck_s`.
    pub silence_ms: Option<u64>,
}

/// The case that a sentence is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SentenceForm {
    /// Every case that has no sentence of its own.
    Usual,
    /// It may be harmless.
    Doubtful,
    /// Nothing tells which rank is the one to blame.
    Unnamed,
    /// The rank waits alone in a call that no other rank makes.
    Alone,
}

/// Something to do, with `{word}`s to fill in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdviceRow {
    /// What it does.
    pub text: &'static str,
    /// The command, empty when there is none.
    pub command: &'static str,
}

/// All that is said about one reason.
#[derive(Debug, Clone, Copy)]
pub struct ReasonRow {
    pub reason: Reason,
    /// The word in JSON.
    pub name: &'static str,
    /// The kind of its verdicts.
    pub kind: VerdictKind,
    /// How bad it is, unless the watch has grounds to say otherwise.
    pub severity: Severity,
    /// When `watch.on_stuck` acts on it.
    pub policy: OnVerdict,
    /// One sentence for documents.
    pub doc: &'static str,
    /// The sentences of verdicts. The first one is for [`SentenceForm::Usual`].
    pub sentences: &'static [(SentenceForm, &'static str)],
    /// What to do, the best first.
    pub advice: &'static [AdviceRow],
}

impl ReasonRow {
    /// The sentence for a case.
    pub fn sentence(&self, form: SentenceForm) -> &'static str {
        let own = self.sentences.iter().find(|(case, _)| *case == form);
        own.or(self.sentences.first()).map_or("", |(_, text)| text)
    }
}

/// All rows, for documents and tests.
pub fn reasons() -> impl Iterator<Item = &'static ReasonRow> {
    ROWS.iter()
}

impl Reason {
    /// What is said about it.
    pub fn row(self) -> &'static ReasonRow {
        &ROWS[self as usize]
    }

    /// The word in JSON.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The kind of verdict that this reason belongs to.
    pub fn kind(self) -> VerdictKind {
        self.row().kind
    }
}

/// `template` with each `{word}` replaced by its value.
pub(crate) fn fill(template: &str, words: &[(&str, String)]) -> String {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (word, tail) = after.split_once('}').unwrap_or((after, ""));
        let value = words.iter().find(|(name, _)| *name == word);
        debug_assert!(value.is_some(), "no value for {{{word}}} in {template:?}");
        text.push_str(before);
        text.push_str(value.map_or("", |(_, value)| value));
        rest = tail;
    }
    text + rest
}
