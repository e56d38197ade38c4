//! Finds stragglers: the rank that enters the collectives of most iterations last, and the cause.
//!
//! All members leave a synchronizing collective nearly together, so the rank that waited least arrived last:
//! no clocks need to agree. An iteration is the unit, over windows of [`WINDOW`]. The median lateness of a
//! throttled rank may be tiny although it is last most of the time, so the share of being last decides
//! together with the lost time, and both halves of the window must agree (persistence, as in FALCON).
//!
//! The kernel's counters ([`CpuThrottling`]) show a rank that its CPU quota throttles, whether it is last or
//! not.

use crate::reason::Reason;
use crate::watch::history::movement::{CpuThrottling, THROTTLED};
use crate::watch::history::rank_history::RankHistory;
use crate::watch::history::run_view::{self, RankView};
use rankdeck_proto::message::Phase;
use rankdeck_types::ids::Rank;
use rankdeck_types::words;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Intervals that are compared.
const WINDOW: usize = 32;
/// Intervals that a straggler needs.
const ENOUGH: usize = 16;
/// Share of its time that a rank must spend more than the others in a phase.
const MORE: f64 = 0.05;
/// Share of lost time from which a straggler is reported.
const LOST: f64 = 0.1;
/// Share of their time that the others must have waited for a throttled rank.
const WAITED: f64 = 0.3;
/// A rank that waited less than this part of the slow one's wait is the one that the others wait for.
const LESS: f64 = 0.5;

/// A rank that slows the run in most iterations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Straggler {
    pub rank: Rank,
    /// Share of the others' time that they lost by waiting for it.
    pub lost: f64,
    pub reason: Reason,
    /// Evidence for the rank and the reason.
    pub facts: Vec<String>,
    /// Over how long, ms.
    pub over_ms: u64,
}

/// Waits of all ranks in intervals between the latest iterations that all have started, oldest first, and the
/// length of each; empty if they are too few. Goes rank by rank, since the history of one rank is contiguous.
fn intervals(histories: &[(Rank, &RankHistory)]) -> Vec<(Vec<u64>, u64)> {
    let Some((_, base)) = histories.first() else { return Vec::new() };
    let mut common: Vec<u64> = base.iterations.iter().rev().map(|started| started.train_iter).collect();
    for (_, history) in histories {
        let mut theirs = history.iterations.iter().rev().map(|started| started.train_iter).peekable();
        common.retain(|iteration| {
            while theirs.next_if(|newer| newer > iteration).is_some() {}
            theirs.peek() == Some(iteration)
        });
        if common.len() <= ENOUGH {
            return Vec::new();
        }
    }
    common.truncate(WINDOW + 1);
    if !are_in_step(histories, &common) {
        return Vec::new();
    }
    let mut intervals = vec![(Vec::with_capacity(histories.len()), 0); common.len().saturating_sub(1)];
    for (_, history) in histories {
        let mut all = history.iterations.iter().rev();
        let mut begun =
            common.iter().filter_map(|iteration| all.find(|started| started.train_iter == *iteration));
        let mut after = begun.next();
        for ((waits, length), before) in intervals.iter_mut().zip(begun) {
            let Some(later) = after.replace(before) else { break };
            if waits.is_empty() {
                *length = later.at_ms.saturating_sub(before.at_ms);
            }
            waits.push(later.wait_us.saturating_sub(before.wait_us));
        }
    }
    intervals.reverse();
    intervals
}

/// Whether these iterations are the same ones on all ranks. A script's are steps of its optimizers, of which each
/// rank may make as many as it likes: they must have begun after the same number of collectives everywhere.
fn are_in_step(histories: &[(Rank, &RankHistory)], common: &[u64]) -> bool {
    let begun = |history: &RankHistory| -> Vec<u64> {
        let mut all = history.iterations.iter().rev();
        let seq =
            |iteration: &u64| all.find(|started| started.train_iter == *iteration).map(|found| found.seq);
        common.iter().filter_map(seq).collect()
    };
    let mut guessed = histories.iter().filter(|(_, history)| history.counted_iterations().is_none());
    let Some((_, first)) = guessed.next() else { return true };
    let first = begun(first);
    guessed.all(|(_, history)| begun(history) == first)
}

fn last(waits: &[u64]) -> Option<usize> {
    let least = waits.iter().min()?;
    // If two waited equally little, no rank was last.
    let mut who = waits.iter().enumerate().filter(|(_, wait)| *wait == least);
    let first = who.next()?.0;
    who.next().is_none().then_some(first)
}

/// How long a straggler is shown after it was last seen, ms.
pub(crate) const HOLD_MS: u64 = 10_000;

/// Compares all ranks.
pub(crate) fn find_straggler(
    histories: &[(Rank, &RankHistory)],
    views: &[RankView<'_>],
) -> Option<Straggler> {
    if histories.len() < 2 {
        return None;
    }
    match most_often_last(histories, views) {
        Some(found) if found.reason == Reason::Throttled => Some(found),
        other => throttled(histories, views).or(other),
    }
}

/// The rank that comes last into the collectives of most iterations.
fn most_often_last(histories: &[(Rank, &RankHistory)], views: &[RankView<'_>]) -> Option<Straggler> {
    let intervals = intervals(histories);
    if intervals.len() < ENOUGH {
        return None;
    }
    let lasts: Vec<Option<usize>> = intervals.iter().map(|(waits, _)| last(waits)).collect();
    let share = |who: usize, part: &[Option<usize>]| {
        part.iter().filter(|last| **last == Some(who)).count() as f64 / part.len().max(1) as f64
    };
    let length: u64 = intervals.iter().map(|(_, length)| length).sum();
    // Well above the share that chance gives: 1 of N.
    let needed = (1.0 / histories.len() as f64 + 0.27).max(0.5);
    let (first, second) = lasts.split_at(lasts.len() / 2);
    let candidates: BTreeSet<usize> = lasts.iter().flatten().copied().collect();
    let who = candidates
        .into_iter()
        .find(|who| [first, second, &lasts].iter().all(|part| share(*who, part) > needed))?;
    // What the median of the others waited longer than this rank did, over the whole window.
    let lost_us: u64 = intervals
        .iter()
        .map(|(waits, _)| {
            let mut others: Vec<u64> =
                waits.iter().enumerate().filter(|(index, _)| *index != who).map(|(_, wait)| *wait).collect();
            others.sort_unstable();
            let median = others.get(others.len() / 2).copied().unwrap_or(0);
            median.saturating_sub(waits.get(who).copied().unwrap_or(0))
        })
        .sum();
    let lost = lost_us as f64 / 1000.0 / (length.max(1) as f64);
    let rank = histories.get(who)?.0;
    let view = run_view::of(views, rank)?;
    if lost <= LOST {
        return None;
    }
    let (reason, fact) = cause(view, views);
    if is_expected(view, views) || (reason == Reason::Late && is_hasty(rank, intervals.len())) {
        return None;
    }
    let last = format!("it was last in {:.0}% of the latest iterations", share(who, &lasts) * 100.0);
    Some(Straggler { rank, lost, reason, facts: vec![last, fact], over_ms: length })
}

/// Share of its recent time that a rank has waited in collectives: since the iteration that started before
/// `over_ms`, the current wait included.
fn waited(history: &RankHistory, view: &RankView<'_>, over_ms: u64) -> f64 {
    let now = history.mono_ms;
    let began = |ms: u64| history.iterations.iter().rev().find(|started| started.at_ms <= ms);
    let first = began(now.saturating_sub(over_ms)).or(history.iterations.front());
    let since = |at_ms: u64| now.saturating_sub(at_ms);
    let inside_ms = view.waiting().map_or(0, |group| group.age_ms);
    let (past_ms, passed_ms, present_ms) = match (first, history.iterations.back()) {
        (Some(first), Some(last)) => (
            last.wait_us.saturating_sub(first.wait_us) / 1000,
            since(first.at_ms),
            inside_ms.min(since(last.at_ms)),
        ),
        _ => (0, over_ms.max(inside_ms), inside_ms),
    };
    ((past_ms + present_ms) as f64 / passed_ms.max(1) as f64).min(1.0)
}

/// The rank that its quota throttles most of the time, while most others are not throttled and all of them
/// wait.
fn throttled(histories: &[(Rank, &RankHistory)], views: &[RankView<'_>]) -> Option<Straggler> {
    let quotas: Vec<Option<CpuThrottling>> =
        histories.iter().map(|(_, history)| history.quota.of_late()).collect();
    let share = |quota: &Option<CpuThrottling>| quota.map_or(0.0, |quota| quota.share);
    let (who, quota) = quotas
        .iter()
        .enumerate()
        .filter_map(|(who, quota)| Some((who, quota.filter(CpuThrottling::holds)?)))
        .max_by(|a, b| a.1.share.total_cmp(&b.1.share))?;
    let free = quotas.iter().filter(|quota| share(quota) < THROTTLED).count();
    if free * 2 < histories.len() {
        return None;
    }
    let wait = |(rank, history): &(Rank, &RankHistory)| {
        let view = run_view::of(views, *rank)?;
        Some(waited(history, view, quota.over_ms))
    };
    let waits: Vec<f64> = histories.iter().map(wait).collect::<Option<_>>()?;
    let own = waits.get(who).copied()?;
    let mut others = waits;
    others.remove(who);
    others.sort_by(f64::total_cmp);
    let lost = others.get(others.len() / 2).copied()?;
    // If one of the others hardly waits, all wait for that one, and this one may be spinning.
    let for_it = others.first().is_some_and(|least| *least >= own * LESS);
    (lost >= WAITED && for_it).then(|| {
        let alike = "all ranks wait equally long: it is throttled inside its collectives too".to_owned();
        let alike = Some(alike).filter(|_| own >= lost * LESS);
        Straggler {
            rank: histories.get(who).map(|(rank, _)| *rank).unwrap_or_default(),
            lost,
            reason: Reason::Throttled,
            facts: throttling_facts(&quota).into_iter().chain(alike).collect(),
            over_ms: quota.over_ms,
        }
    })
}

/// Its share of the time in a phase, and how much more that is than the others'.
fn share_of(view: &RankView<'_>, views: &[RankView<'_>], phase: Phase) -> PhaseShare {
    let own = |view: &RankView<'_>| {
        let spent = view.moved().own_ms.get(phase as usize).copied().unwrap_or(0) as f64;
        spent / view.moved().over_ms.max(1) as f64
    };
    let mut others: Vec<f64> = views.iter().filter(|other| other.rank != view.rank).map(own).collect();
    others.sort_by(f64::total_cmp);
    let median = others.get(others.len() / 2).copied().unwrap_or(0.0);
    PhaseShare { more: own(view) - median, own: own(view), median }
}

#[derive(Debug, Clone, Copy)]
struct PhaseShare {
    more: f64,
    own: f64,
    median: f64,
}

/// Whether it evaluates and saves for all: it is expected to be slower.
fn is_expected(view: &RankView<'_>, views: &[RankView<'_>]) -> bool {
    [Phase::Eval, Phase::Checkpoint].iter().map(|phase| share_of(view, views, *phase).more).sum::<f64>()
        > MORE
}

/// Whether there is too little data to name a rank without a cause: rank 0 prints, logs and saves for all,
/// and the first iterations are not typical.
fn is_hasty(rank: Rank, intervals: usize) -> bool {
    rank.0 == 0 || intervals < WINDOW
}

/// Why it is slow: the measurement that differs from the other ranks.
fn cause(view: &RankView<'_>, views: &[RankView<'_>]) -> (Reason, String) {
    let moved = view.moved();
    if let Some(share) = moved.throttled.filter(|share| *share >= THROTTLED) {
        return (Reason::Throttled, used_up(share));
    }
    let throttle = view.gpu.map(|gpu| gpu.throttle.join(", ")).unwrap_or_default();
    if !throttle.is_empty() && !throttle.contains("idle") {
        return (Reason::GpuThrottled, format!("its GPU clocks are throttled: {throttle}"));
    }
    if moved.faults_per_s > 200.0 || view.host.pressure.is_some_and(|(_, memory)| memory > 5.0) {
        let fact = format!("{:.0} major page faults per second", moved.faults_per_s);
        return (Reason::MemoryPressure, fact);
    }
    let (env, learn) = (share_of(view, views, Phase::Rollout), share_of(view, views, Phase::Learn));
    let fact = |name: &str, PhaseShare { own, median, .. }: PhaseShare| {
        format!("{name} takes {:.0}% of its time, {:.0}% of the others'", own * 100.0, median * 100.0)
    };
    let pressed = |view: &RankView| {
        view.host.pressure.is_some_and(|(cpu, _)| cpu >= 40.0) || view.host.cpu_percent >= 98.0
    };
    // If all hosts are busy, that does not make this rank slower than the others.
    if pressed(view) && views.iter().any(|other| other.node != view.node && !pressed(other)) {
        return (Reason::CpuPressure, format!("its host is {:.0}% busy", view.host.cpu_percent));
    }
    match (env.more, learn.more) {
        (env_more, learn_more) if env_more > MORE && env_more >= learn_more => {
            (Reason::SlowEnvironment, fact("rollout", env))
        }
        (_, learn_more) if learn_more > MORE => (Reason::SlowCompute, fact("learning", learn)),
        _ => (Reason::Late, "no measured difference from other ranks".into()),
    }
}

/// Returns what the kernel has counted, in words.
fn throttling_facts(quota: &CpuThrottling) -> Vec<String> {
    let time = quota.held_ms.map(|ms| {
        // Each core by itself: of several, the sum may exceed the time that has passed.
        let ms = words::duration_ms(ms.min(quota.over_ms));
        format!("the kernel throttled it for {ms} of the latest {}", words::duration_ms(quota.over_ms))
    });
    let periods = format!("its CPU quota was used up in {:.0}% of the periods", quota.share * 100.0);
    std::iter::once(periods).chain(time).collect()
}

/// Returns a share of the time without quota in words.
pub(crate) fn used_up(share: f64) -> String {
    format!("its CPU quota was used up {:.0}% of the time", share * 100.0)
}
