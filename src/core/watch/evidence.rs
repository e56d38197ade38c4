//! The words of verdicts: one sentence, the facts that support it, what to do.

use super::Key;
use super::frontier::{Finding, Why};
use crate::core::event::LinkState;
use crate::core::ids::Rank;
use crate::core::join::Joined;
use crate::core::model::{Model, RankModel};
use crate::core::report::{Confidence, Severity, VerdictKind, VerdictReport};
use crate::core::words::{self, seconds};
use crate::proto::message::Exit;

/// Most ranks that are named one by one.
const NAMED: usize = 4;
/// Most log lines in the evidence.
const LOG_LINES: usize = 6;

/// `rank 1 on bee`.
fn who(rank: &RankModel) -> String {
    format!("rank {} on {}", rank.rank, rank.host)
}

fn find(model: &Model, rank: Rank) -> Option<&RankModel> {
    model.ranks.get(rank.index())
}

fn run_name(model: &Model) -> String {
    model.run.id.as_ref().map(|run| run.to_string()).unwrap_or_default()
}

/// What the status page and the operating system show about a rank.
fn gauges(rank: &RankModel) -> Vec<String> {
    let Some(sample) = &rank.sample else { return Vec::new() };
    let mut facts = Vec::new();
    if let Some(page) = &sample.page {
        let collective = &page.collective;
        let place = match (collective.entered, collective.left < collective.entered) {
            (0, _) => "no collective yet".to_string(),
            (_, true) => format!(
                "inside {} for {} ({} bytes)",
                words::collective_name(collective),
                seconds(collective.age_ms),
                collective.bytes
            ),
            (_, false) => {
                format!("left {} {} ago", words::collective_name(collective), seconds(collective.age_ms))
            }
        };
        facts.push(format!(
            "rank {}: phase {} for {}, iteration {}, last sign of life {} ago, {place}",
            rank.rank,
            page.phase.name(),
            seconds(page.phase_age_ms),
            page.train_iter,
            seconds(page.heartbeat_age_ms),
        ));
    }
    let wchan = match sample.wchan.is_empty() {
        true => String::new(),
        false => format!(", waits in {}", sample.wchan),
    };
    facts.push(format!(
        "rank {}: pid {} is {} ({}), cpu {:.0} %{wchan}",
        rank.rank,
        sample.pid,
        words::state_text(sample.state),
        sample.state,
        sample.cpu_percent,
    ));
    facts
}

/// The ranks that wait, in a few lines.
fn waiters(model: &Model, ranks: &[Rank]) -> Vec<String> {
    let mut facts: Vec<String> = ranks
        .iter()
        .take(NAMED)
        .filter_map(|rank| {
            let rank = find(model, *rank)?;
            let page = rank.sample.as_ref()?.page.as_ref()?;
            let place = match page.collective.entered {
                0 => format!("waits for the process group for {}", seconds(page.phase_age_ms)),
                _ => format!(
                    "waits in {} for {}",
                    words::collective_name(&page.collective),
                    seconds(page.collective.age_ms)
                ),
            };
            Some(format!("{} {place}", who(rank)))
        })
        .collect();
    if ranks.len() > NAMED {
        facts.push(format!("and {} more ranks wait", ranks.len() - NAMED));
    }
    facts
}

/// Ranks inside a collective now, except `not`.
fn inside(model: &Model, not: Rank) -> Vec<Rank> {
    let is_inside = |rank: &&RankModel| {
        let page = rank.sample.as_ref().and_then(|sample| sample.page.as_ref());
        rank.rank != not && page.is_some_and(|page| page.collective.left < page.collective.entered)
    };
    model.ranks.iter().filter(is_inside).map(|rank| rank.rank).collect()
}

/// What the link says about its trouble.
pub(super) fn link(state: &LinkState) -> Option<String> {
    match state {
        LinkState::Lost { reason, .. } => Some(format!("link: {reason}")),
        LinkState::Failed { error, .. } => Some(format!("link: {error}")),
        LinkState::Idle
        | LinkState::Connecting { .. }
        | LinkState::Asking { .. }
        | LinkState::Uploading { .. }
        | LinkState::Starting
        | LinkState::Ready { .. }
        | LinkState::Closed => None,
    }
}

pub(super) fn frozen(model: &Model, rank: &RankModel, stopped_ms: u64) -> VerdictReport {
    let sample = rank.sample.as_ref();
    let (state, pid) = sample.map_or(('T', rank.pid.unwrap_or(0)), |sample| (sample.state, sample.pid));
    let mut evidence = gauges(rank);
    evidence.extend(waiters(model, &inside(model, rank.rank)));
    VerdictReport {
        rank: Some(rank.rank),
        host: Some(rank.host.clone()),
        verdict: VerdictKind::Frozen,
        severity: Severity::Red,
        confidence: Confidence::Certain,
        reason: format!("{} is {} (process state {state})", who(rank), words::state_text(state)),
        evidence,
        latency_s: stopped_ms as f64 / 1000.0,
        hint: match state {
            't' => format!("a debugger or tracer holds pid {pid} on {}; detach it", rank.host),
            _ => format!("continue it with `kill -CONT {pid}` on {}", rank.host),
        },
    }
}

pub(super) fn waiting(model: &Model, finding: &Finding) -> (Key, VerdictReport) {
    match finding {
        Finding::Behind { rank, also, waiters: waiting, severity, confidence, waited_ms, why } => {
            let guilty = find(model, *rank);
            let name = guilty.map_or_else(|| format!("rank {rank}"), who);
            let page = guilty.and_then(|rank| rank.sample.as_ref()).and_then(|sample| sample.page.as_ref());
            let phase = page.map_or("unknown", |page| page.phase.name());
            let awaited = waiting
                .first()
                .and_then(|rank| find(model, *rank)?.sample.as_ref()?.page.as_ref())
                .filter(|page| page.collective.entered > 0)
                .map_or("the process group".into(), |page| words::collective_name(&page.collective));
            let count = waiting.len();
            let others = if count == 1 { "1 rank waits".to_string() } else { format!("{count} ranks wait") };
            let reason = match why {
                Why::Silent => {
                    format!("{name} has not entered {awaited}: nothing moves in its phase {phase}; {others}")
                }
                Why::Working => format!("waiting for rank {rank}: {phase} ({others} in {awaited})"),
                Why::Left => {
                    format!("{name} left the training loop early (exit code 0); {others} in {awaited}")
                }
                Why::Inside => format!("{name} is still inside an earlier collective; {others} in {awaited}"),
            };
            let mut evidence = guilty.map(gauges).unwrap_or_default();
            evidence.extend(waiters(model, waiting));
            if !also.is_empty() {
                let list: Vec<String> = also.iter().take(16).map(|rank| rank.to_string()).collect();
                evidence.push(format!("also late: ranks {}", list.join(", ")));
            }
            let hint = match severity {
                Severity::Red => format!(
                    "look at its log: `rankdeck logs {} --rank {rank}`; restart from a checkpoint with `rankdeck restart {}`",
                    run_name(model),
                    run_name(model)
                ),
                Severity::Amber | Severity::Cleared => "nothing to do while it moves".into(),
            };
            let verdict = VerdictReport {
                rank: Some(*rank),
                host: guilty.map(|rank| rank.host.clone()),
                verdict: VerdictKind::Behind,
                severity: *severity,
                confidence: *confidence,
                reason,
                evidence,
                latency_s: *waited_ms as f64 / 1000.0,
                hint,
            };
            ((VerdictKind::Behind, Some(*rank), None), verdict)
        }
        Finding::Desync { rank, seq, waited_ms } => {
            let inside: Vec<Rank> = model.ranks.iter().map(|rank| rank.rank).collect();
            let reason = match rank.and_then(|rank| find(model, rank)) {
                Some(rank) => format!("{} is in another collective #{seq} than the others", who(rank)),
                None => format!("ranks are in different collectives #{seq}"),
            };
            let verdict = VerdictReport {
                rank: *rank,
                host: rank.and_then(|rank| find(model, rank)).map(|rank| rank.host.clone()),
                verdict: VerdictKind::Desync,
                severity: Severity::Red,
                confidence: if rank.is_some() { Confidence::Certain } else { Confidence::Likely },
                reason,
                evidence: waiters(model, &inside),
                latency_s: *waited_ms as f64 / 1000.0,
                hint: "all ranks must make the same collective calls in the same order; look for a branch on a local value"
                    .into(),
            };
            ((VerdictKind::Desync, *rank, None), verdict)
        }
        Finding::NoGroup { waited_ms } => {
            let all: Vec<Rank> = model.ranks.iter().map(|rank| rank.rank).collect();
            let verdict = VerdictReport {
                rank: None,
                host: None,
                verdict: VerdictKind::Behind,
                severity: Severity::Red,
                confidence: Confidence::Likely,
                reason: format!("no rank could join the process group within {}", seconds(*waited_ms)),
                evidence: waiters(model, &all),
                latency_s: *waited_ms as f64 / 1000.0,
                hint: format!(
                    "every host must reach {}; set `address` and `interface` in hosts.toml",
                    model.run.master
                ),
            };
            ((VerdictKind::Behind, None, None), verdict)
        }
    }
}

pub(super) fn dead(
    model: &Model,
    rank: Rank,
    exit: &Exit,
    last_lines: &[String],
    victim_of: Option<Rank>,
) -> VerdictReport {
    let found = find(model, rank);
    let name = found.map_or_else(|| format!("rank {rank}"), who);
    let said = found.and_then(|rank| rank.error.as_ref());
    let mut reason = format!("{name} {}", words::exit_text(exit));
    if let Some((message, _)) = said {
        reason.push_str(&format!(": {}", words::clip(message, 300)));
    } else if let (Exit::Code { .. }, Some(line)) =
        (exit, last_lines.iter().rev().find(|line| !line.trim().is_empty()))
    {
        reason.push_str(&format!(": {}", words::clip(line, 300)));
    }
    let mut evidence = Vec::new();
    if let Some(rank) = victim_of {
        evidence.push(format!("rank {rank} ended first; this one lost its peer"));
    }
    evidence.extend(found.map(gauges).unwrap_or_default());
    let from = last_lines.len().saturating_sub(LOG_LINES);
    evidence.extend(last_lines.iter().skip(from).map(|line| format!("log: {}", words::clip(line, 200))));
    let log = format!("look at its log: `rankdeck logs {} --rank {rank}`", run_name(model));
    let hint = match (said, exit) {
        (Some((_, hint)), _) if !hint.is_empty() => hint.clone(),
        (_, Exit::Signal { out_of_memory: true, .. }) => {
            "use fewer environments per rank (`env.num_envs`) or a host with more memory".into()
        }
        (_, Exit::NotStarted { .. }) => "check `launch.command`, `prelude` and `workdir` on that host".into(),
        (_, Exit::Code { .. } | Exit::Signal { .. }) => log,
    };
    VerdictReport {
        rank: Some(rank),
        host: found.map(|rank| rank.host.clone()),
        verdict: VerdictKind::Dead,
        severity: if victim_of.is_some() { Severity::Amber } else { Severity::Red },
        confidence: Confidence::Certain,
        reason,
        evidence,
        latency_s: 0.0,
        hint,
    }
}

pub(super) fn drift(model: &Model, train_iter: u64, values: &[String]) -> (Option<Rank>, VerdictReport) {
    let votes = |value: &String| values.iter().filter(|other| *other == value).count();
    let majority = values.iter().find(|value| votes(value) * 2 > values.len());
    let odd = majority.and_then(|most| values.iter().position(|value| value != most)).map(|i| Rank(i as u32));
    let reason = match odd.and_then(|rank| find(model, rank)) {
        Some(rank) => {
            format!("the weights of {} differ from the others' at iteration {train_iter}", who(rank))
        }
        None => format!("the ranks' weights differ at iteration {train_iter}"),
    };
    let evidence = values
        .iter()
        .take(16)
        .enumerate()
        .map(|(rank, value)| format!("rank {rank}: fingerprint {}", words::clip(value, 32)))
        .collect();
    let verdict = VerdictReport {
        rank: odd,
        host: odd.and_then(|rank| find(model, rank)).map(|rank| rank.host.clone()),
        verdict: VerdictKind::Drift,
        severity: Severity::Red,
        confidence: Confidence::Certain,
        reason,
        evidence,
        latency_s: 0.0,
        hint: "results after this point are not those of one model; restart from a checkpoint before it"
            .into(),
    };
    (odd, verdict)
}

pub(super) fn totals_differ(joined: &Joined) -> VerdictReport {
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
        verdict: VerdictKind::TotalsDiffer,
        severity: Severity::Red,
        confidence: Confidence::Certain,
        reason: format!(
            "all-reduced totals are not the sum of the ranks' own counters at iteration {}",
            joined.totals.train_iter
        ),
        evidence,
        latency_s: 0.0,
        hint: "do not trust step counts of this run; all ranks must report the same iterations".into(),
    }
}
