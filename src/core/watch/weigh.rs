//! What a finding about waits is worth: a verdict, a close look, or nothing. Pure.

use super::cause;
use super::draft::Judgement;
use super::evidence::{LateRank, Snapshot};
use super::track::Track;
use super::waits::Finding;
use super::{looks, network};
use crate::limits::Limits;
use crate::reason::Reason;
use crate::report::{Severity, VerdictReport};
use rankdeck_types::ids::Rank;

/// Iterations and updates without a collective.
const ALONE: u64 = 3;
/// Wait of all ranks inside one collective after which their connections are looked at, ms.
const INSIDE_MS: u64 = 2_000;

/// Ranks that a finding makes worth a close look, in order of weight.
pub(super) fn suspicious(snapshot: &Snapshot<'_>, finding: &Finding) -> Vec<Rank> {
    match finding {
        // The late rank waits too: what matters is between the ranks.
        Finding::Behind { rank, also, waiters, .. }
            if snapshot.view(*rank).is_some_and(|view| view.waiting().is_some()) =>
        {
            let all = std::iter::once(rank).chain(also).chain(waiters);
            all.copied().take(looks::MOST).collect()
        }
        Finding::Behind { rank, also, waiters, .. } => {
            let one = std::iter::once(*rank).chain(waiters.first().copied());
            one.chain(also.iter().copied().take(3)).collect()
        }
        Finding::Disagree { what, .. } => what.odd.iter().copied().take(3).chain([what.other]).collect(),
        Finding::Ring { ring, .. } => ring.iter().map(|(rank, _)| *rank).take(4).collect(),
        Finding::Inside { members, waited_ms, .. } if *waited_ms >= INSIDE_MS => {
            members.iter().copied().take(looks::MOST).collect()
        }
        Finding::Inside { .. } => Vec::new(),
    }
}

/// The verdict of a finding; `None` while nothing should be said.
pub(super) fn waiting(
    snapshot: &Snapshot<'_>,
    finding: &Finding,
    limits: &Limits,
    dead: bool,
) -> Option<VerdictReport> {
    match finding {
        Finding::Behind { .. } | Finding::Ring { .. } | Finding::Inside { .. } if dead => None,
        Finding::Behind { rank, also, waiters, group, seq, waited_ms, ahead } => {
            let (waited_ms, seq, ahead) = (*waited_ms, *seq, *ahead);
            let view = snapshot.view(*rank)?;
            let judged = cause::judge(view, waited_ms, limits)?;
            if judged.reason == Reason::InsideEarlier {
                // It entered what the others have left: what they sent it may be lost on the way.
                let members: Vec<Rank> = std::iter::once(rank).chain(also).chain(waiters).copied().collect();
                if let Some(trouble) = network::sockets(snapshot.model, snapshot.views, &members, waited_ms) {
                    return Some(snapshot.network(trouble));
                }
                if let Some(place) = network::doubtful(snapshot.model, snapshot.views, &members) {
                    return Some(snapshot.losses(place, waiters, group, seq, waited_ms));
                }
                let looked = |member: &Rank| snapshot.view(*member).is_some_and(|view| view.look.is_some());
                // What the connections look like decides whether a rank is to blame at all.
                let seen = looked(rank) && waiters.iter().any(looked);
                if !seen && waited_ms < limits.behind.saturating_add(cause::LOOK_MS) {
                    return None;
                }
            }
            if ahead && judged.severity == Severity::Red {
                // The one that waits alone is early; those who are late have never heard of its call.
                let early = *waiters.first()?;
                let late =
                    LateRank { rank: early, also: &[], waiters: &[*rank], group, seq, waited_ms, ahead };
                return Some(snapshot.behind(&late, Judgement { reason: Reason::ExtraCall, ..judged }));
            }
            Some(snapshot.behind(
                &LateRank { rank: *rank, also, waiters, group, seq, waited_ms, ahead: false },
                judged,
            ))
        }
        Finding::Disagree { what, waited_ms } => Some(snapshot.disagree(what, *waited_ms)),
        Finding::Ring { ring, waited_ms } => {
            (*waited_ms >= limits.behind).then(|| snapshot.ring(ring, *waited_ms))
        }
        Finding::Inside { members, seq, waited_ms, .. } => {
            let halted = snapshot.views.iter().any(|view| view.halted_ms.is_some());
            if halted {
                return None;
            }
            if let Some(trouble) = network::sockets(snapshot.model, snapshot.views, members, *waited_ms)
                && *waited_ms >= limits.behind
            {
                return Some(snapshot.network(trouble));
            }
            let severity = if *waited_ms >= limits.init { Severity::Red } else { Severity::Amber };
            (*waited_ms >= cause::AMBER_MS).then(|| snapshot.everywhere(members, *seq, *waited_ms, severity))
        }
    }
}

/// Ranks that train without exchanging anything.
pub(super) fn alone(
    snapshot: &Snapshot<'_>,
    living: &[(Rank, &Track)],
    world_size: usize,
) -> Option<VerdictReport> {
    if world_size < 2 {
        return None;
    }
    let since = |rank: &Rank, track: &Track| {
        let page = snapshot.view(*rank).filter(|view| view.fresh)?.page()?;
        // A script's optimiser may make as many steps as it likes.
        if page.by_hook {
            return None;
        }
        let (iteration, updates) = track.at_collective;
        let past = (page.train_iter.saturating_sub(iteration), page.updates.saturating_sub(updates));
        (past.0 >= ALONE && past.1 >= ALONE).then_some(past)
    };
    let ranks: Vec<(Rank, (u64, u64))> =
        living.iter().filter_map(|(rank, track)| Some((*rank, since(rank, track)?))).collect();
    let (iterations, updates) = ranks.iter().map(|(_, past)| *past).max()?;
    let ranks: Vec<Rank> = ranks.iter().map(|(rank, _)| *rank).collect();
    Some(snapshot.alone(&ranks, updates, iterations))
}
