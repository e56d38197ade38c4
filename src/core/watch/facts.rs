//! Verdicts of facts: a process that ended, weights that differ, totals that are no sum. Pure.
#![allow(clippy::wildcard_enum_match_arm, reason = "a verdict looks at some ways to end only")]

use super::gauges::{find, gauges, host_of, name, who};
use super::portrait::{self, Subject};
use crate::card::Card;
use crate::join::Joined;
use crate::model::Model;
use crate::reason::Reason;
use crate::report::{Confidence, Severity, VerdictReport};
use crate::words;
use rankdeck_proto::message::Exit;
use rankdeck_types::ids::Rank;

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

/// Gloo aborts the receiver of a message of the wrong size: the sender is guilty, not the one that died. The built-in trainer's lanes end both
/// ends of an exchange: either may be guilty, which the calls of all ranks tell and not these words.
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
    let name = name(model, rank);
    let said = found.and_then(|rank| rank.error.as_ref());
    let mut reason = format!("{name} {}", words::exit_text(exit));
    if let Some((message, _)) = said {
        reason.push_str(&format!(": {}", words::clip(message, 300)));
    } else if let (Exit::Code { .. }, Some(line)) =
        (exit, last_lines.iter().rev().find(|line| !line.trim().is_empty()))
    {
        reason.push_str(&format!(": {}", words::clip(line, 300)));
    }
    let text = format!("{} {}", said.map(|said| said.0.as_str()).unwrap_or_default(), last_lines.join(" "));
    let code = death(exit, &text, victim || victim_of.is_some());
    let victim = victim_of.is_some() || matches!(code, Reason::ConnectionLost | Reason::MismatchAbort);
    let mut evidence = Vec::new();
    if let Some(rank) = victim_of {
        evidence.push(format!("rank {rank} was in trouble first; this one lost its peer"));
    } else if victim {
        evidence.push("its connection to another rank broke: that one was in trouble first".into());
    }
    evidence.extend(found.map(gauges).unwrap_or_default());
    let from = last_lines.len().saturating_sub(LOG_LINES);
    evidence.extend(last_lines.iter().skip(from).map(|line| format!("log: {}", words::clip(line, 200))));
    let subject = Subject { guilty: Some(rank), waiter: None, reason: code, compared: None, seats: &[] };
    let mut card = portrait::card(model, &subject);
    let mut facts: Vec<String> = evidence.iter().take(usize::from(victim)).cloned().collect();
    facts.extend(last_lines.iter().skip(from).map(|line| format!("log: {}", words::clip(line, 200))));
    card.facts = facts;
    let log = || {
        let run = model.run.id.as_ref().map(|run| run.to_string()).unwrap_or_default();
        format!("look at its log: `rankdeck logs {run} --rank {rank}`")
    };
    let hint = match (said, code) {
        (Some((_, hint)), _) if !hint.is_empty() => hint.clone(),
        (_, Reason::Killed | Reason::Crashed | Reason::Failed | Reason::ConnectionLost) => log(),
        _ => portrait::hint(&card.actions),
    };
    VerdictReport {
        rank: Some(rank),
        host: found.map(|rank| rank.host.clone()),
        verdict: code.kind(),
        severity: if victim { Severity::Amber } else { Severity::Red },
        confidence: Confidence::Certain,
        reason_code: code,
        reason,
        evidence,
        latency_s: 0.0,
        first_s: 0.0,
        hint,
        card: Some(card),
    }
}

/// The verdict about differing weights.
pub(crate) fn drift(model: &Model, train_iter: u64, values: &[String]) -> (Option<Rank>, VerdictReport) {
    let votes = |value: &String| values.iter().filter(|other| *other == value).count();
    let majority = values.iter().find(|value| votes(value) * 2 > values.len());
    let odd = majority.and_then(|most| values.iter().position(|value| value != most)).map(|i| Rank(i as u32));
    let reason = match odd.and_then(|rank| find(model, rank)) {
        Some(rank) => {
            format!("the weights of {} differ from the others' at iteration {train_iter}", who(rank))
        }
        None => format!("the ranks' weights differ at iteration {train_iter}"),
    };
    let evidence: Vec<String> = values
        .iter()
        .take(16)
        .enumerate()
        .map(|(rank, value)| format!("rank {rank}: fingerprint {}", words::clip(value, 32)))
        .collect();
    let evidence_of = evidence.clone();
    let subject =
        Subject { guilty: odd, waiter: None, reason: Reason::WeightsDiffer, compared: None, seats: &[] };
    let verdict = VerdictReport {
        rank: odd,
        host: host_of(model, odd),
        verdict: Reason::WeightsDiffer.kind(),
        severity: Severity::Red,
        confidence: Confidence::Certain,
        reason_code: Reason::WeightsDiffer,
        reason,
        evidence,
        latency_s: 0.0,
        first_s: 0.0,
        hint: "results after this point are not those of one model; restart from a checkpoint before it"
            .into(),
        card: Some(Box::new(Card { facts: evidence_of, ..*portrait::card(model, &subject) })),
    };
    (odd, verdict)
}

/// The verdict about totals that are not the sum of the ranks' own counters.
pub(crate) fn totals_differ(joined: &Joined) -> VerdictReport {
    let pairs = [
        ("env_step", joined.totals.env_step, joined.sum.env_step),
        ("samples", joined.totals.samples, joined.sum.samples),
        ("episodes", joined.totals.episodes, joined.sum.episodes),
    ];
    let mut evidence: Vec<String> = pairs
        .iter()
        .filter(|(_, total, sum)| total != sum)
        .map(|(name, total, sum)| format!("{name}: all-reduced {total}, sum of the ranks {sum}"))
        .collect();
    if evidence.is_empty() {
        let (total, sum) = (joined.totals.duration_s, joined.sum.duration_s);
        evidence.push(format!("duration_s: all-reduced {total}, sum of the ranks {sum}"));
    }
    VerdictReport {
        rank: None,
        host: None,
        verdict: Reason::TotalsDiffer.kind(),
        severity: Severity::Red,
        confidence: Confidence::Certain,
        reason_code: Reason::TotalsDiffer,
        reason: format!(
            "all-reduced totals are not the sum of the ranks' own counters at iteration {}",
            joined.totals.train_iter
        ),
        evidence,
        latency_s: 0.0,
        first_s: 0.0,
        hint: "do not trust step counts of this run; all ranks must report the same iterations".into(),
        card: None,
    }
}

/// Every process of a rank that ended because of another one's message: a victim, whatever signal ended it.
pub(crate) fn is_victim(exit: &Exit, said: &str) -> bool {
    death(exit, said, false) == Reason::MismatchAbort
}
