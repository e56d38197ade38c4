//! Decides whether a wait pattern becomes a finding, an inspection request, or nothing.

use crate::limits::TimeLimits;
use crate::reason::{Reason, Severity};
use crate::watch::assess::finding::{Assessment, Finding, LateRank};
use crate::watch::assess::late_rank;
use crate::watch::history::inspections::{self, INSPECTION_MS};
use crate::watch::history::rank_history::RankHistory;
use crate::watch::history::run_view::{RankView, RunView};
use crate::watch::patterns::network;
use crate::watch::patterns::waits::WaitPattern;
use rankdeck_types::ids::Rank;

/// Iterations and updates without a collective.
const ALONE: u64 = 3;
/// Milliseconds for which all ranks are inside one collective before their connections are inspected.
const INSIDE_MS: u64 = 2_000;

/// Returns the ranks to inspect because of a pattern, most suspicious first.
pub(crate) fn suspects(run: &RunView<'_>, pattern: &WaitPattern) -> Vec<Rank> {
    match pattern {
        // The late rank waits too: the cause is between the ranks.
        WaitPattern::Behind { rank, also, waiters, .. }
            if run.view(*rank).is_some_and(|view| view.waiting().is_some()) =>
        {
            let all = std::iter::once(rank).chain(also).chain(waiters);
            all.copied().take(inspections::MOST).collect()
        }
        WaitPattern::Behind { rank, also, waiters, .. } => {
            let one = std::iter::once(*rank).chain(waiters.first().copied());
            one.chain(also.iter().copied().take(3)).collect()
        }
        WaitPattern::Disagree { what, .. } => what.odd.iter().copied().take(3).chain([what.other]).collect(),
        WaitPattern::Ring { ring, .. } => {
            ring.iter().map(|(rank, _)| *rank).take(inspections::MOST).collect()
        }
        WaitPattern::Inside { members, waited_ms, .. } if *waited_ms >= INSIDE_MS => {
            members.iter().copied().take(inspections::MOST).collect()
        }
        WaitPattern::Inside { .. } => Vec::new(),
    }
}

/// Assesses a pattern; `None` while there is nothing to report. `dead`: a rank has died, which explains the
/// waits.
pub(crate) fn assess(
    run: &RunView<'_>,
    pattern: &WaitPattern,
    limits: &TimeLimits,
    dead: bool,
) -> Option<Finding> {
    match pattern {
        WaitPattern::Behind { .. } | WaitPattern::Ring { .. } | WaitPattern::Inside { .. } if dead => None,
        WaitPattern::Behind { rank, also, waiters, group, seq, waited_ms, ahead } => {
            let late = LateRank {
                rank: *rank,
                also: also.clone(),
                waiters: waiters.clone(),
                group: group.clone(),
                seq: *seq,
                waited_ms: *waited_ms,
                ahead: *ahead,
            };
            behind(run, late, limits)
        }
        WaitPattern::Disagree { what, waited_ms } => {
            Some(Finding::Mismatch { mismatch: what.clone(), waited_ms: *waited_ms })
        }
        WaitPattern::Ring { ring, waited_ms } => {
            let (ring, waited_ms) = (ring.clone(), *waited_ms);
            let is_due = waited_ms >= limits.behind;
            let is_proved = ring.iter().all(|(rank, _)| run.view(*rank).is_some_and(is_seen_waiting));
            is_due.then_some(Finding::OrderDeadlock { ring, waited_ms, is_proved })
        }
        WaitPattern::Inside { members, seq, waited_ms, .. } => {
            let (seq, waited_ms) = (*seq, *waited_ms);
            if run.views.iter().any(|view| view.halted_ms().is_some()) {
                return None;
            }
            if let Some(fault) = network::stuck_connections(run, members, waited_ms)
                && waited_ms >= limits.behind
            {
                return Some(Finding::Network(fault));
            }
            let severity = if waited_ms >= limits.init { Severity::Red } else { Severity::Amber };
            (waited_ms >= late_rank::AMBER_MS).then(|| Finding::InsideCollective {
                members: members.clone(),
                seq,
                waited_ms,
                severity,
            })
        }
    }
}

/// The rank is blocked in its collective: by its own page, or in a script by an inspection. The hook counts an
/// asynchronous collective as entered while the program keeps running.
fn is_seen_waiting(view: &RankView<'_>) -> bool {
    let is_blocked = || view.inspection().is_some_and(inspections::is_in_collective);
    view.waiting().is_some() && (view.phase().is_some() || is_blocked())
}

/// One rank is behind the others.
fn behind(run: &RunView<'_>, late: LateRank, limits: &TimeLimits) -> Option<Finding> {
    let assessment = late_rank::assess(run.view(late.rank)?, late.waited_ms, limits)?;
    if assessment.reason == Reason::InsideEarlier {
        // It entered a collective that the others have left: what they sent may be lost on the way.
        let members: Vec<Rank> =
            std::iter::once(&late.rank).chain(&late.also).chain(&late.waiters).copied().collect();
        if let Some(fault) = network::stuck_connections(run, &members, late.waited_ms) {
            return Some(Finding::Network(fault));
        }
        if let Some(place) = network::lossy_place(run, &members) {
            let LateRank { waiters, group, seq, waited_ms, .. } = late;
            return Some(Finding::LossyNetwork { place, waiters, group, seq, waited_ms });
        }
        let inspected = |member: &Rank| run.view(*member).is_some_and(|view| view.inspection().is_some());
        // The state of the connections decides whether a rank is the culprit at all.
        let seen = inspected(&late.rank) && late.waiters.iter().any(inspected);
        if !seen && late.waited_ms < limits.behind.saturating_add(INSPECTION_MS) {
            return None;
        }
    }
    // Every call is once the first of its kind: in a script, the others may still be on their way to it.
    let is_counted = run.view(late.rank).is_some_and(|view| view.phase().is_some());
    let may_come = !is_counted && late.waited_ms < limits.init;
    if late.ahead && assessment.severity == Severity::Red && !may_come {
        // The rank that waits alone is early; the others have never seen its call.
        let early = *late.waiters.first()?;
        let late = LateRank { rank: early, also: Vec::new(), waiters: vec![late.rank], ..late };
        let assessment = Assessment { reason: Reason::ExtraCall, ..assessment };
        return Some(Finding::LateRank { late, assessment });
    }
    Some(Finding::LateRank { late: LateRank { ahead: false, ..late }, assessment })
}

/// Collectives without an optimizer step after which a rank no longer trains, and up to which one does.
const IDLE_COLLECTIVES: u64 = 256;
const BUSY_COLLECTIVES: u64 = 64;
/// Steps that the others must have made more.
const AHEAD_STEPS: u64 = 64;

/// A rank of a script whose optimizer makes no steps any more, while those of all others do. Ranks that never made one
/// have other work.
pub(crate) fn idle_optimizer(run: &RunView<'_>, living: &[(Rank, &RankHistory)]) -> Option<Finding> {
    let counts = living.iter().map(|(rank, history)| {
        let page = run.view(*rank).filter(|view| view.fresh)?.page()?;
        let (steps, at) = history.stepped;
        (page.by_hook && steps > 0).then_some((*rank, steps, page.collective.entered.saturating_sub(at)))
    });
    let counts: Vec<(Rank, u64, u64)> = counts.collect::<Option<_>>()?;
    let mut idle = counts.iter().filter(|(_, _, since)| *since >= IDLE_COLLECTIVES);
    let (rank, own, collectives) = *idle.next()?;
    let mut others = counts.iter().filter(|(other, ..)| *other != rank);
    let theirs = others.clone().map(|(_, steps, _)| *steps).min()?;
    let all_train = others.all(|(_, _, since)| *since <= BUSY_COLLECTIVES);
    let is_behind = theirs >= own.saturating_add(AHEAD_STEPS);
    (all_train && is_behind).then_some(Finding::OptimizerIdle { rank, own, theirs, collectives })
}

/// Ranks that train without exchanging anything.
pub(crate) fn no_collectives(run: &RunView<'_>, living: &[(Rank, &RankHistory)]) -> Option<Finding> {
    if run.model.member_count() < 2 {
        return None;
    }
    let since = |rank: &Rank, history: &RankHistory| {
        let page = run.view(*rank).filter(|view| view.fresh)?.page()?;
        // A script's optimizer may make any number of steps.
        if page.by_hook {
            return None;
        }
        let (iteration, updates) = history.at_collective;
        let past = (page.train_iter.saturating_sub(iteration), page.updates.saturating_sub(updates));
        (past.0 >= ALONE && past.1 >= ALONE).then_some(past)
    };
    let ranks: Vec<(Rank, (u64, u64))> =
        living.iter().filter_map(|(rank, history)| Some((*rank, since(rank, history)?))).collect();
    let (iterations, updates) = ranks.iter().map(|(_, past)| *past).max()?;
    let ranks = ranks.iter().map(|(rank, _)| *rank).collect();
    Some(Finding::NoCollectives { ranks, updates, iterations })
}
