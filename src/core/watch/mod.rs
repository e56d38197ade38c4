//! Verdicts: which rank or host is in trouble, with evidence. Pure.
//!
//! Owner: `update`. Two sources: facts (a death, differing weights) that records bring, and conditions that hold or do not at each tick.
//! Invariants:
//! - WATCH-1: one incident per root: a death, a frozen process or a silent host explains the waits of the others.
//! - WATCH-2: only ages measured on one host's own clock decide; ages of different hosts are never subtracted.
//! - WATCH-3: a verdict is told when it appears or changes its severity, and once more, `cleared`, when it is gone.
//! - WATCH-4: detection never acts; the policy is applied by `update`, and never to a silent host.
#![deny(clippy::wildcard_enum_match_arm)]

mod evidence;
mod frontier;
mod track;

use crate::core::host::{HostMachine, HostStage};
use crate::core::ids::{NodeRank, Rank};
use crate::core::model::{HostModel, Model, RankLife};
use crate::core::report::{Confidence, Severity, VerdictKind, VerdictReport};
use crate::core::session::Limits;
use crate::core::words;
use crate::proto::message::HostSample;
use frontier::Seat;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use track::Track;

/// Milliseconds for which a process must be seen stopped.
const FROZEN_MS: u64 = 1_000;
/// Milliseconds without a message after which a host's samples are too old to compare.
const FRESH_MS: u64 = 3_000;

/// What a verdict is about: its identity while its text changes.
pub(crate) type Key = (VerdictKind, Option<Rank>, Option<NodeRank>);

/// What happened to a verdict.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Change {
    /// The verdict, with [`Severity::Cleared`] when it is gone.
    pub verdict: VerdictReport,
    /// It comes from a condition on a living rank, so that the policy applies.
    pub living: bool,
}

/// All verdicts of a generation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watch {
    tracks: Vec<Track>,
    facts: BTreeMap<Key, VerdictReport>,
    conditions: BTreeMap<Key, VerdictReport>,
    told: BTreeMap<Key, VerdictReport>,
}

impl Watch {
    /// A new generation: what was told is cleared by the next [`Watch::changes`].
    pub fn reset(&mut self, world_size: usize) {
        self.tracks = vec![Track::default(); world_size];
        self.facts.clear();
        self.conditions.clear();
    }

    /// Takes a host's gauges of the present generation.
    pub fn observe(&mut self, sample: &HostSample, of_host: impl Fn(Rank) -> bool) {
        for rank in sample.ranks.iter().filter(|rank| of_host(rank.rank)) {
            if let Some(track) = self.tracks.get_mut(rank.rank.index()) {
                track.observe(sample.mono_ms, rank);
            }
        }
    }

    /// A fact that stays until it is taken back.
    pub fn fact(&mut self, rank: Option<Rank>, verdict: VerdictReport) {
        self.facts.insert((verdict.verdict, rank, None), verdict);
    }

    /// Takes a kind of fact back.
    pub fn take_back(&mut self, kind: VerdictKind) {
        self.facts.retain(|key, _| key.0 != kind);
    }

    /// Looks at all conditions.
    pub fn evaluate(&mut self, model: &Model, hosts: &[HostMachine], awake_ms: u64, limits: &Limits) {
        let mut found = BTreeMap::new();
        let fresh = |node: NodeRank| {
            hosts.get(node.index()).is_some_and(|host| {
                host.is_live() && awake_ms.saturating_sub(host.heard) < FRESH_MS.min(limits.lost.max(1))
            })
        };
        for (host, machine) in model.hosts.iter().zip(hosts) {
            if let Some(verdict) = lost(host, machine, awake_ms, limits) {
                found.insert((VerdictKind::Lost, None, Some(host.node_rank)), verdict);
            }
        }
        for (rank, track) in model.ranks.iter().zip(&self.tracks) {
            let alive = !matches!(rank.life, RankLife::Exited(_) | RankLife::Pending);
            let stopped = track.stopped_ms().filter(|ms| *ms >= FROZEN_MS);
            if let (true, true, Some(ms)) = (alive, fresh(rank.node), stopped) {
                found.insert((VerdictKind::Frozen, Some(rank.rank), None), evidence::frozen(model, rank, ms));
            }
        }
        let seats: Vec<Seat> = model
            .ranks
            .iter()
            .zip(&self.tracks)
            .filter_map(|(rank, track)| {
                let left = match &rank.life {
                    RankLife::Exited(exit) if words::is_success(exit) => true,
                    RankLife::Pending | RankLife::Exited(_) => return None,
                    RankLife::Spawned | RankLife::Joined | RankLife::Finished => false,
                };
                Some(Seat {
                    rank: rank.rank,
                    page: rank.sample.as_ref()?.page.as_ref()?,
                    fresh: fresh(rank.node) && !left,
                    still_ms: track.still_ms(),
                    stopped: track.stopped_ms().is_some(),
                    left,
                    usual_quiet_ms: track.usual_quiet_ms(),
                })
            })
            .collect();
        if let Some(finding) = frontier::look(&seats, limits) {
            let (key, verdict) = evidence::waiting(model, &finding);
            found.insert(key, verdict);
        }
        self.conditions = found;
    }

    /// What changed since the last call, in the order to tell it: worst news first, cleared ones last.
    pub fn changes(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        let present =
            || self.facts.iter().map(|f| (f, false)).chain(self.conditions.iter().map(|c| (c, true)));
        for ((key, verdict), condition) in present() {
            let known = self.told.get(key).map(|told| told.severity);
            if known != Some(verdict.severity) {
                let living = condition && verdict.verdict != VerdictKind::Lost;
                changes.push(Change { verdict: verdict.clone(), living });
            }
        }
        changes.sort_by_key(|change| Reverse(change.verdict.severity));
        let now: BTreeMap<Key, VerdictReport> = present().map(|((key, v), _)| (*key, v.clone())).collect();
        for (key, verdict) in &self.told {
            if !now.contains_key(key) {
                let verdict = VerdictReport { severity: Severity::Cleared, ..verdict.clone() };
                changes.push(Change { verdict, living: false });
            }
        }
        self.told = now;
        changes
    }

    /// Present verdicts, worst first.
    pub fn present(&self) -> Vec<VerdictReport> {
        let mut all: Vec<VerdictReport> = self.told.values().cloned().collect();
        all.sort_by_key(|verdict| (Reverse(verdict.severity), verdict.verdict, verdict.rank));
        all
    }
}

/// Is this host silent?
fn lost(host: &HostModel, machine: &HostMachine, awake_ms: u64, limits: &Limits) -> Option<VerdictReport> {
    if host.stopped.is_some() {
        return None;
    }
    let silence = awake_ms.saturating_sub(machine.heard);
    let why = match machine.stage {
        HostStage::Linking | HostStage::Closed => return None,
        HostStage::Failed => "it cannot be reached",
        HostStage::Away { .. } if silence >= limits.lost => "the link is broken and is being mended",
        HostStage::Attaching { .. } | HostStage::Greeted { .. } | HostStage::Live { .. }
            if silence >= limits.lost =>
        {
            "the link stands but its agent says nothing"
        }
        HostStage::Attaching { .. }
        | HostStage::Greeted { .. }
        | HostStage::Live { .. }
        | HostStage::Away { .. } => return None,
    };
    let mut facts = vec![format!("last message {} ago", words::seconds(silence))];
    facts.extend(evidence::link(&host.link));
    facts.push("its ranks may well be running: other verdicts about them wait until it answers".into());
    Some(VerdictReport {
        rank: None,
        host: Some(host.name.clone()),
        verdict: VerdictKind::Lost,
        severity: Severity::Red,
        confidence: Confidence::Certain,
        reason: format!("nothing heard from {} for {}: {why}", host.name, words::seconds(silence)),
        evidence: facts,
        latency_s: silence as f64 / 1000.0,
        hint: format!(
            "try `ssh {}`; the run goes on there and is found again when the host answers",
            host.name
        ),
    })
}

/// The verdict about a process that ended badly. `last_lines`: the end of its log, oldest first.
pub(crate) fn dead(
    model: &Model,
    rank: Rank,
    exit: &crate::proto::message::Exit,
    last_lines: &[String],
    victim_of: Option<Rank>,
) -> VerdictReport {
    evidence::dead(model, rank, exit, last_lines, victim_of)
}

/// The verdict about differing weights.
pub(crate) fn drift(model: &Model, train_iter: u64, values: &[String]) -> (Option<Rank>, VerdictReport) {
    evidence::drift(model, train_iter, values)
}

/// The verdict about totals that are not the sum of the ranks' own counters.
pub(crate) fn totals_differ(joined: &crate::core::join::Joined) -> VerdictReport {
    evidence::totals_differ(joined)
}

#[cfg(test)]
#[allow(clippy::wildcard_enum_match_arm)]
mod tests;
