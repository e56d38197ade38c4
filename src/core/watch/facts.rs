//! Verdicts of facts: a process that ended, weights that differ, totals that are no sum. Pure.
#![allow(clippy::wildcard_enum_match_arm, reason = "a verdict looks at some ways to end only")]

use super::draft::{Draft, Judgement};
use super::gauges::{complaint, find, host_of, name};
use super::replicas::{Drift, Grounds, NotFinite};
use crate::card::{Advice, ranges};
use crate::join::JoinedIteration;
use crate::last_words::LastWords;
use crate::model::Model;
use crate::reason::{Reason, SentenceForm, Severity};
use crate::report::{Confidence, VerdictReport};
use rankdeck_proto::message::{Exit, FailureKind};
use rankdeck_types::ids::Rank;
use rankdeck_types::words;

/// Most log lines in the evidence.
const LOG_LINES: usize = 6;

/// How a process ended badly.
pub(crate) struct Death<'a> {
    pub exit: &'a Exit,
    /// What it said about it.
    pub said: &'a LastWords,
    /// The end of its log, oldest first.
    pub last_lines: &'a [String],
    /// It lost its connection to another rank.
    pub victim: bool,
    pub victim_of: Option<Rank>,
    /// The signal from a console that it ended by.
    pub sent: Option<i32>,
}

impl Death<'_> {
    fn reason(&self) -> Reason {
        let kind = self.said.kind();
        match self.exit {
            Exit::NotStarted { .. } => Reason::NotStarted,
            Exit::Signal { out_of_memory: true, .. } => Reason::OutOfMemory,
            _ if self.sent.is_some() => Reason::Killed,
            _ if kind == FailureKind::Mismatch => Reason::MismatchAbort,
            _ if kind == FailureKind::OutOfMemory => Reason::OutOfMemory,
            _ if kind == FailureKind::GpuFailed => Reason::GpuFailed,
            Exit::Signal { signal: 4 | 6 | 7 | 8 | 11, .. } => Reason::Crashed,
            Exit::Signal { .. } => Reason::Killed,
            Exit::Code { .. } if kind == FailureKind::DiskFull => Reason::DiskFull,
            Exit::Code { .. } if kind == FailureKind::PortTaken => Reason::PortTaken,
            Exit::Code { .. } if self.victim || self.victim_of.is_some() => Reason::ConnectionLost,
            // How a shell reports the signal that ended its child.
            Exit::Code { code: 132 | 134 | 135 | 136 | 139 } => Reason::Crashed,
            Exit::Code { code: 137 } => Reason::Killed,
            Exit::Code { .. } => Reason::Failed,
        }
    }
}

/// What the driver complains of about the rank's GPU.
fn gpu_complaint(model: &Model, rank: Rank) -> Option<String> {
    let rank = find(model, rank)?;
    let sample = model.hosts.get(rank.node.index())?.sample.as_ref()?;
    let gpu = sample.gpus.iter().find(|gpu| Some(gpu.index) == rank.gpu)?;
    (gpu.lost || !gpu.xids.is_empty()).then(|| complaint(gpu))
}

/// The verdict about a process that ended badly.
pub(crate) fn dead(model: &Model, rank: Rank, death: &Death<'_>) -> VerdictReport {
    let &Death { exit, said, last_lines, victim_of, sent, .. } = death;
    let found = find(model, rank);
    let mut ended = exit.predicate();
    match sent {
        Some(_) if matches!(exit, Exit::Signal { .. }) => ended.push_str(", which a console sent"),
        Some(signal) => ended.push_str(&format!(" after {} from a console", words::signal_name(signal))),
        None => {}
    }
    let last = || last_lines.iter().rev().map(String::as_str).find(|line| !line.trim().is_empty());
    let shown = if said.shown().is_empty() && matches!(exit, Exit::Code { .. }) {
        last().unwrap_or_default()
    } else {
        said.shown()
    };
    if !shown.is_empty() {
        ended.push_str(&format!(": {}", words::clip(&words::clean_output(shown), 300)));
    }
    let reason = death.reason();
    let usual = Judgement::usual(Confidence::Certain, reason);
    let victim = match victim_of {
        Some(rank) => Some(format!("rank {rank} was in trouble first; this one lost its peer")),
        None if reason == Reason::MismatchAbort => {
            Some("another rank called something else: one of the two is wrong".into())
        }
        None if usual.severity == Severity::Amber => {
            Some("its connection to another rank broke: that one was in trouble first".into())
        }
        None => None,
    };
    let severity = if victim.is_some() { Severity::Amber } else { usual.severity };
    let from = last_lines.len().saturating_sub(LOG_LINES);
    let log = last_lines
        .iter()
        .skip(from)
        .map(|line| format!("log: {}", words::clip(&words::clean_output(line), 200)));
    let draft = Draft {
        rank: Some(rank),
        host: host_of(model, Some(rank)),
        facts: victim.into_iter().chain(gpu_complaint(model, rank)).chain(log).collect(),
        ..Draft::new(Judgement { severity, ..usual }, vec![("who", name(model, rank)), ("ended", ended)])
    };
    let mut verdict = draft.verdict(model, &[]);
    let hint = found.and_then(|rank| rank.error.as_ref()).map(|error| &error.1);
    if let Some(hint) = hint.filter(|hint| !hint.is_empty()) {
        // The program knows best what to do.
        verdict.card.actions.insert(0, Advice { text: hint.clone(), command: String::new() });
    }
    verdict
}

/// The verdict about differing weights.
pub(crate) fn drift(model: &Model, train_iter: u64, values: &[String]) -> (Option<Rank>, VerdictReport) {
    let votes = |value: &String| values.iter().filter(|other| *other == value).count();
    let majority = values.iter().find(|value| votes(value) * 2 > values.len());
    let odd = majority.and_then(|most| values.iter().position(|value| value != most)).map(|i| Rank(i as u32));
    let fingerprint =
        |(rank, value): (usize, &String)| format!("rank {rank}: fingerprint {}", words::clip(value, 32));
    let words = vec![
        ("who", odd.map(|rank| name(model, rank)).unwrap_or_default()),
        ("iteration", train_iter.to_string()),
    ];
    let draft = Draft {
        form: if odd.is_some() { SentenceForm::Usual } else { SentenceForm::Unnamed },
        rank: odd,
        host: host_of(model, odd),
        facts: values.iter().take(16).enumerate().map(fingerprint).collect(),
        ..Draft::new(Judgement::usual(Confidence::Certain, Reason::WeightsDiffer), words)
    };
    (odd, draft.verdict(model, &[]))
}

/// The verdict about replicas of a script whose weights differ.
pub(super) fn replicas_differ(model: &Model, drift: &Drift) -> VerdictReport {
    let (severity, confidence, why) = match drift.grounds {
        Grounds::KeptEqual => (Severity::Red, Confidence::Certain, "the program kept them equal before"),
        Grounds::NeverEqual => (
            Severity::Red,
            Confidence::Likely,
            "they began equal and have not been equal after a step: gradients are not synchronised",
        ),
        Grounds::Rounding => (
            Severity::Amber,
            Confidence::Possible,
            "they differ by rounding only, as on hosts with different processors",
        ),
        Grounds::InPart => (
            Severity::Amber,
            Confidence::Possible,
            "other weights stay equal: these may be meant to differ, or nobody synchronises them",
        ),
        Grounds::BeganApart if drift.differ_at == 0 => {
            (Severity::Amber, Confidence::Likely, "they began with different ones, and never agreed")
        }
        Grounds::BeganApart => {
            (Severity::Amber, Confidence::Likely, "they are changed by the same updates, and never agreed")
        }
    };
    let odd = drift.odd();
    let rank = odd.first().copied();
    let (before, after, optimizer) = (drift.equal_at, drift.differ_at, drift.optimizer);
    let sides = drift.sides.iter().take(8).map(|side| format!("ranks {} agree", ranges(side)));
    let never = drift.grounds == Grounds::BeganApart;
    let places = if never {
        format!(
            "optimiser {optimizer}: different at every step from {after} on, changed alike at each of them"
        )
    } else {
        format!("optimiser {optimizer}: equal after step {before}, different after step {after}")
    };
    let mut facts = vec![places, why.to_owned()];
    facts.extend(sides.filter(|_| drift.sides.iter().any(|side| side.len() > 1)));
    let words = vec![
        ("who", rank.map(|rank| name(model, rank)).unwrap_or_default()),
        ("iteration", after.to_string()),
        ("why", why.to_owned()),
    ];
    let form = match (severity, rank) {
        (Severity::Amber, _) => SentenceForm::Doubtful,
        (_, Some(_)) => SentenceForm::Usual,
        (_, None) => SentenceForm::Unnamed,
    };
    let judged = Judgement { severity, confidence, reason: Reason::WeightsDiffer };
    let host = host_of(model, rank);
    let mut verdict = Draft { form, rank, host, facts, ..Draft::new(judged, words) }.verdict(model, &[]);
    if never {
        // Averaged gradients keep equal what is equal, and no more.
        let text = "let rank 0 send its weights to the others before the first step, as DDP does, or seed all ranks \
            equally until the model is built; load a checkpoint on every rank";
        verdict.card.actions.insert(0, Advice { text: text.into(), command: String::new() });
    }
    verdict
}

/// The verdict about weights of a script that are no numbers any more.
pub(super) fn not_finite(model: &Model, found: &NotFinite) -> VerdictReport {
    let rank = if let [rank] = found.ranks.as_slice() { Some(*rank) } else { None };
    let words = vec![
        ("who", rank.map(|rank| name(model, rank)).unwrap_or_default()),
        ("ranks", ranges(&found.ranks)),
        ("step", found.step.to_string()),
    ];
    let draft = Draft {
        form: if rank.is_some() { SentenceForm::Usual } else { SentenceForm::Unnamed },
        rank,
        host: host_of(model, rank),
        facts: vec![format!("optimiser {}: {} of {} ranks", found.optimizer, found.ranks.len(), found.of)],
        ..Draft::new(Judgement::usual(Confidence::Certain, Reason::WeightsNotFinite), words)
    };
    draft.verdict(model, &[])
}

/// The verdict about totals that are not the sum of the ranks' own counters.
pub(crate) fn totals_differ(model: &Model, joined: &JoinedIteration) -> VerdictReport {
    let pairs = [
        ("env_step", joined.totals.env_step, joined.sum.env_step),
        ("samples", joined.totals.samples, joined.sum.samples),
        ("episodes", joined.totals.episodes, joined.sum.episodes),
    ];
    let mut facts: Vec<String> = pairs
        .iter()
        .filter(|(_, total, sum)| total != sum)
        .map(|(name, total, sum)| format!("{name}: all-reduced {total}, sum of the ranks {sum}"))
        .collect();
    if facts.is_empty() {
        let (total, sum) = (joined.totals.duration_s, joined.sum.duration_s);
        facts.push(format!("duration_s: all-reduced {total}, sum of the ranks {sum}"));
    }
    let words = vec![("iteration", joined.totals.train_iter.to_string())];
    let judged = Judgement::usual(Confidence::Certain, Reason::TotalsDiffer);
    Draft { facts, ..Draft::new(judged, words) }.verdict(model, &[])
}
