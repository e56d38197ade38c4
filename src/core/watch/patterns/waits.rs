//! Builds the wait-for graph between ranks and process groups and finds the ranks that block it.
//!
//! For a group, let F be the highest collective that any member has entered. Members inside F wait; members
//! that have not entered F hold them up. If such a member itself waits in another group, the chain continues
//! with the members that hold up that group; the ranks at which it ends are the culprits. If it never ends,
//! groups are used in different orders. Process states cannot distinguish these cases; the counters can. (The
//! "wavefront" of NVIDIA's resiliency extension and the frontier of PyTorch's flight-recorder analyzer are
//! the same idea, offline.)
//!
//! Invariants:
//! - A group has no finding while any member of it moved within [`STILL_MS`], or while the host of a member
//!   that may be the culprit is silent.
//! - WAITS-2: the result does not depend on the order of ranks or hosts, except for the choice among equals,
//!   which is by rank.

use crate::watch::history::run_view::{self, RankView, WORLD};
use crate::watch::patterns::mismatch::{self, CollectiveMismatch};
use rankdeck_types::ids::Rank;
use std::collections::{BTreeMap, BTreeSet};

/// Milliseconds without any advance, between at least two samples, before a pattern is found.
pub(crate) const STILL_MS: u64 = 1_000;

/// A pattern of waits.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum WaitPattern {
    /// `rank` holds up `waiters`.
    Behind {
        /// The one that has been silent longest.
        rank: Rank,
        /// Others that hold the same ranks up.
        also: Vec<Rank>,
        /// Ranks that wait for it, directly or through others.
        waiters: Vec<Rank>,
        /// Group in which it is missing.
        group: String,
        /// Number it has not entered.
        seq: u64,
        /// Longest wait, ms.
        waited_ms: u64,
        /// Only a minority waits, in a call that the majority has never made.
        ahead: bool,
    },
    /// Members of a group called different things.
    Disagree {
        what: CollectiveMismatch,
        /// Longest wait, ms; 0 while no rank waits.
        waited_ms: u64,
    },
    /// Ranks wait for each other in a ring of groups.
    Ring {
        /// Each rank and the group it waits in.
        ring: Vec<(Rank, String)>,
        /// Longest wait, ms.
        waited_ms: u64,
    },
    /// All members are inside the same collective.
    Inside {
        /// The ranks of the group.
        members: Vec<Rank>,
        group: String,
        /// Number.
        seq: u64,
        /// Longest wait, ms.
        waited_ms: u64,
    },
}

/// A group without progress.
struct StalledGroup {
    frontier: u64,
    waiters: Vec<usize>,
    behind: Vec<usize>,
    waited_ms: u64,
}

/// Finds the wait patterns of all ranks.
pub(crate) fn find_wait_patterns(views: &[RankView<'_>]) -> Vec<WaitPattern> {
    let mut names: BTreeSet<&str> = BTreeSet::new();
    for view in views {
        names.extend(view.groups.iter().filter(|group| group.entered > 0).map(|group| group.name));
    }
    let mut stalled: BTreeMap<&str, StalledGroup> = BTreeMap::new();
    let mut findings = Vec::new();
    for name in names {
        let members = members(views, name);
        let Some(group) = stall(views, &members, name) else { continue };
        let compared: Vec<&RankView> = members.iter().filter_map(|index| views.get(*index)).collect();
        if let Some(what) = mismatch::calls(&compared, name) {
            findings.push(WaitPattern::Disagree { what, waited_ms: group.waited_ms });
            continue;
        }
        stalled.insert(name, group);
    }
    // A difference of order explains every wait that follows from it.
    if findings.is_empty() {
        findings = follow(views, &stalled);
    }
    findings
}

/// Indices of the members of a group: the ranks that count it. In the group of all ranks, every rank with a
/// page is a member; of a pair, both are, whether or not they have called anything.
fn members(views: &[RankView<'_>], name: &str) -> Vec<usize> {
    let counts = |view: &RankView| view.group(name).is_some();
    let size = views.iter().filter_map(|view| view.group(name)).map(|group| group.size as usize).max();
    let all = name == WORLD || size == Some(views.len());
    let pair = run_view::pair(name);
    let talks = |view: &RankView| view.sample.page.is_some();
    let paired = |view: &RankView| talks(view) && pair.is_some_and(|pair| pair.contains(&view.rank));
    (0..views.len())
        .filter(|index| {
            views
                .get(*index)
                .is_some_and(|view| counts(view) || paired(view) || (all && pair.is_none() && talks(view)))
        })
        .collect()
}

/// The group as one that stands still; `None` while it moves, or while nothing is certain about it.
fn stall(views: &[RankView<'_>], members: &[usize], name: &str) -> Option<StalledGroup> {
    let members: Vec<(usize, &RankView)> =
        members.iter().filter_map(|index| Some((*index, views.get(*index)?))).collect();
    let entered = members.iter().filter(|(_, view)| view.fresh).map(|(_, view)| view.entered(name));
    let frontier = entered.max().filter(|frontier| *frontier > 0)?;
    let waits = |view: &RankView| view.fresh && view.waits_in(name) && view.entered(name) == frontier;
    let waiters: Vec<(usize, &RankView)> = members.iter().copied().filter(|(_, view)| waits(view)).collect();
    let waited_ms = waiters.iter().filter_map(|(_, view)| view.waiting()).map(|group| group.age_ms).max()?;
    let alive = || members.iter().map(|(_, view)| view).filter(|view| view.alive());
    let still = alive().all(|view| !view.fresh || view.still_ms() >= STILL_MS);
    if !still || waited_ms < STILL_MS {
        return None;
    }
    let behind: Vec<(usize, &RankView)> =
        members.iter().copied().filter(|(_, view)| view.entered(name) < frontier).collect();
    // A member on a silent host may be the culprit; the silence of its host is a verdict of its own. So may a
    // member that never counted.
    let unreachable = behind.iter().any(|(_, view)| view.alive() && !view.fresh);
    let size = members.iter().filter_map(|(_, view)| view.group(name)).map(|group| group.size).max();
    let missing = size.is_some_and(|size| size as usize > members.len());
    let unreachable_inside = behind.is_empty() && alive().any(|view| !view.fresh);
    let dead = behind.iter().any(|(_, view)| view.died);
    let indices = |ranks: &[(usize, &RankView)]| ranks.iter().map(|(index, _)| *index).collect();
    (!unreachable && !missing && !unreachable_inside && !dead).then(|| StalledGroup {
        frontier,
        waiters: indices(&waiters),
        behind: indices(&behind),
        waited_ms,
    })
}

/// Where the waits of a stalled group end.
struct WaitChain {
    /// All ranks on the way that wait.
    waiters: BTreeSet<usize>,
    /// All ranks on the way that hold others up.
    late: BTreeSet<usize>,
    /// Those of them that wait for no other rank.
    sinks: BTreeSet<usize>,
    /// It leads to a group in which all members wait.
    everywhere: bool,
}

impl WaitChain {
    fn follow(
        views: &[RankView<'_>],
        stalled: &BTreeMap<&str, StalledGroup>,
        group: &StalledGroup,
    ) -> WaitChain {
        // The group in which a rank waits; `None` if it waits in none, or in one that is not stalled.
        let next = |index: usize| {
            let view = views.get(index).filter(|view| view.alive())?;
            let group = stalled.get(view.waiting()?.name)?;
            group.waiters.contains(&index).then_some(group)
        };
        let mut chain = WaitChain {
            waiters: group.waiters.iter().copied().collect(),
            late: BTreeSet::new(),
            sinks: BTreeSet::new(),
            everywhere: group.behind.is_empty(),
        };
        let mut open = group.behind.clone();
        while let Some(index) = open.pop() {
            if !chain.late.insert(index) {
                continue;
            }
            match next(index) {
                Some(other) if other.behind.is_empty() => chain.everywhere = true,
                Some(other) => {
                    chain.waiters.extend(other.waiters.iter().copied());
                    open.extend(other.behind.iter().copied());
                }
                None => {
                    chain.sinks.insert(index);
                }
            }
        }
        chain
    }

    /// The sinks, without those that wait in some collective where others are outside.
    fn culprits(&self, views: &[RankView<'_>]) -> Vec<usize> {
        let is_outside =
            |index: &usize| views.get(*index).is_some_and(|view| view.left || view.waiting().is_none());
        let outside: Vec<usize> = self.sinks.iter().copied().filter(is_outside).collect();
        if outside.is_empty() { self.sinks.iter().copied().collect() } else { outside }
    }
}

/// Follows the waits from every stalled group to where they end.
fn follow(views: &[RankView<'_>], stalled: &BTreeMap<&str, StalledGroup>) -> Vec<WaitPattern> {
    let mut findings: Vec<WaitPattern> = Vec::new();
    let mut named: BTreeSet<Rank> = BTreeSet::new();
    let rank = |index: usize| views.get(index).map(|view| view.rank).unwrap_or_default();
    let gravity = |index: &usize| {
        // The silence of a process that has exited means nothing.
        let silence = |view: &RankView| if view.left { 0 } else { view.silence_ms() };
        views
            .get(*index)
            .map(|view| (view.left, view.halted_ms().is_some(), silence(view), u32::MAX - view.rank.0))
    };
    for (name, group) in stalled {
        let chain = WaitChain::follow(views, stalled, group);
        let culprits = chain.culprits(views);
        match culprits.iter().copied().max_by_key(|index| gravity(index)) {
            Some(primary) => {
                if !named.insert(rank(primary)) {
                    continue;
                }
                let others = |indices: &mut dyn Iterator<Item = usize>| {
                    indices.map(rank).filter(|other| *other != rank(primary)).collect()
                };
                let (group_name, seq) = missing_in(views, stalled, primary, name, group.frontier);
                findings.push(WaitPattern::Behind {
                    rank: rank(primary),
                    also: others(&mut culprits.iter().copied()),
                    waiters: others(&mut chain.waiters.iter().copied()),
                    group: group_name,
                    seq,
                    waited_ms: group.waited_ms,
                    ahead: is_ahead(views, group, name),
                });
            }
            None if chain.everywhere && group.behind.is_empty() => findings.push(WaitPattern::Inside {
                members: group.waiters.iter().copied().map(rank).collect(),
                group: name.to_string(),
                seq: group.frontier,
                waited_ms: group.waited_ms,
            }),
            // The group at its end has the pattern.
            None if chain.everywhere => {}
            None => {
                let all: BTreeSet<usize> = chain.late.union(&chain.waiters).copied().collect();
                if all.iter().any(|index| !named.insert(rank(*index))) {
                    continue;
                }
                let place = |index: &usize| {
                    let view = views.get(*index)?;
                    Some((view.rank, view.waiting()?.name.to_string()))
                };
                let ring = all.iter().filter_map(place).collect();
                findings.push(WaitPattern::Ring { ring, waited_ms: group.waited_ms });
            }
        }
    }
    findings
}

/// The group and number in which a culprit is missing: where it holds others up directly.
fn missing_in(
    views: &[RankView<'_>],
    stalled: &BTreeMap<&str, StalledGroup>,
    index: usize,
    name: &str,
    frontier: u64,
) -> (String, u64) {
    let direct = stalled.iter().find(|(_, group)| group.behind.contains(&index));
    let known = stalled.get(name).filter(|group| group.behind.contains(&index));
    match (known, direct, views.get(index)) {
        (None, Some((name, group)), Some(_)) => (name.to_string(), group.frontier),
        _ => (name.to_string(), frontier),
    }
}

/// A strict minority waits in a call that none of the others ever made: the minority is early, the others are
/// not late.
fn is_ahead(views: &[RankView<'_>], group: &StalledGroup, name: &str) -> bool {
    if group.waiters.len() * 2 >= group.waiters.len() + group.behind.len() {
        return false;
    }
    let call = |index: &usize| views.get(*index)?.waiting_call();
    let Some(call) = group.waiters.first().and_then(call) else { return false };
    let late = group.behind.iter().filter_map(|index| views.get(*index));
    let mut known = late.clone().map(|view| view.recent(name)).filter(|recent| !recent.is_empty()).peekable();
    known.peek().is_some()
        && known.all(|recent| {
            recent.iter().all(|other| (&other.call.op, &other.call.tag) != (&call.call.op, &call.call.tag))
        })
}
