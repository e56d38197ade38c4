//! Verdicts of facts: a process that ended, weights that differ, totals that are no sum. Pure.
#![allow(clippy::wildcard_enum_match_arm, reason = "a verdict looks at some ways to end only")]

use super::draft::{Draft, Judgement};
use super::gauges::{find, host_of, name};
use crate::card::Advice;
use crate::join::Joined;
use crate::model::Model;
use crate::reason::{Reason, SentenceForm, Severity};
use crate::report::{Confidence, VerdictReport};
use rankdeck_proto::message::Exit;
use rankdeck_types::ids::Rank;
use rankdeck_types::words;

/// Most log lines in the evidence.
const LOG_LINES: usize = 6;

/// Why a process ended, from how it ended and what it said last.
fn death(exit: &Exit, said: &str, victim: bool) -> Reason {
    let said = said.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
    match exit {
        Exit::NotStarted { .. } => Reason::NotStarted,
        Exit::Signal { out_of_memory: true, .. } => Reason::OutOfMemory,
        _ if has(&[
            "no space left on device",
            "errno 28",
            "os error 28",
            "enospc",
            "disk quota exceeded",
        ]) =>
        {
            Reason::DiskFull
        }
        _ if has(&["address already in use", "eaddrinuse"]) => Reason::PortTaken,
        _ if is_mismatch(&said) => Reason::MismatchAbort,
        Exit::Signal { signal: 4 | 6 | 7 | 8 | 11, .. } => Reason::Crashed,
        Exit::Signal { .. } => Reason::Killed,
        Exit::Code { .. } if victim => Reason::ConnectionLost,
        Exit::Code { .. } => Reason::Failed,
    }
}

/// Gloo aborts the receiver of a message of the wrong size: the sender is guilty, not the one that died. The
/// built-in trainer's direct all-reduce fails at both ends: either may be guilty, which only the calls of all
/// ranks tell.
fn is_mismatch(said: &str) -> bool {
    let said = said.to_lowercase();
    [
        "data size doesn't match",
        "preamble.length <= op.nbytes",
        "op.preamble.length",
        "detected mismatch between collectives",
        "another call came from rank",
    ]
    .iter()
    .any(|word| said.contains(word))
}

/// The verdict about a process that ended badly. `last_lines`: the end of its log, oldest first.
pub(crate) fn dead(
    model: &Model,
    rank: Rank,
    exit: &Exit,
    last_lines: &[String],
    victim: bool,
    victim_of: Option<Rank>,
) -> VerdictReport {
    let found = find(model, rank);
    let said = found.and_then(|rank| rank.error.as_ref());
    let mut ended = exit.predicate();
    if let Some((message, _)) = said {
        ended.push_str(&format!(": {}", words::clip(message, 300)));
    } else if let (Exit::Code { .. }, Some(line)) =
        (exit, last_lines.iter().rev().find(|line| !line.trim().is_empty()))
    {
        ended.push_str(&format!(": {}", words::clip(line, 300)));
    }
    let text = format!("{} {}", said.map(|said| said.0.as_str()).unwrap_or_default(), last_lines.join(" "));
    let reason = death(exit, &text, victim || victim_of.is_some());
    let usual = Judgement::usual(Confidence::Certain, reason);
    let victim = match victim_of {
        Some(rank) => Some(format!("rank {rank} was in trouble first; this one lost its peer")),
        None if usual.severity == Severity::Amber => {
            Some("its connection to another rank broke: that one was in trouble first".into())
        }
        None => None,
    };
    let severity = if victim.is_some() { Severity::Amber } else { usual.severity };
    let from = last_lines.len().saturating_sub(LOG_LINES);
    let log = last_lines.iter().skip(from).map(|line| format!("log: {}", words::clip(line, 200)));
    let draft = Draft {
        rank: Some(rank),
        host: host_of(model, Some(rank)),
        facts: victim.into_iter().chain(log).collect(),
        ..Draft::new(Judgement { severity, ..usual }, vec![("who", name(model, rank)), ("ended", ended)])
    };
    let mut verdict = draft.verdict(model, &[]);
    if let Some((_, hint)) = said.filter(|(_, hint)| !hint.is_empty()) {
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

/// The verdict about totals that are not the sum of the ranks' own counters.
pub(crate) fn totals_differ(model: &Model, joined: &Joined) -> VerdictReport {
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

/// Every process of a rank that ended because of another one's message: a victim, whatever signal ended it.
pub(crate) fn is_victim(exit: &Exit, said: &str) -> bool {
    death(exit, said, false) == Reason::MismatchAbort
}
