//! The incidents of a generation: facts and conditions, and what of them has been told. Pure.

use super::SLOW_HOLD_MS;
use crate::reason::{OnVerdict, Reason};
use crate::report::{Confidence, Severity, VerdictKind, VerdictReport};
use rankdeck_types::ids::{NodeRank, Rank, WallTime};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Milliseconds for which a verdict about circumstances must hold before it is told.
const DOUBT_MS: u64 = 2_000;
/// The same for a rank that is late without a cause: longer than one sight of it is shown for.
const LATE_MS: u64 = 2 * SLOW_HOLD_MS;

/// What a verdict is about: its identity while its text changes.
pub(crate) type Key = (VerdictKind, Option<Rank>, Option<NodeRank>);

/// What happened to a verdict.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Change {
    /// The verdict, with [`Severity::Cleared`] when it is gone.
    pub verdict: VerdictReport,
    /// It is about a living rank and has become certain, so that the policy applies.
    pub acts: bool,
    /// When it happened; `None`: now.
    pub happened: Option<Occurrence>,
}

/// When something happened that a record tells.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Occurrence {
    /// By the clock of its agent.
    pub time: WallTime,
    /// Before this console looked.
    pub past: bool,
}

/// What of a verdict has been told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct ToldVerdict {
    verdict: VerdictReport,
    condition: bool,
}

/// All verdicts of a generation.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Incidents {
    facts: BTreeMap<Key, VerdictReport>,
    /// When those happened that records tell.
    #[serde(default)]
    happened: BTreeMap<Key, Occurrence>,
    conditions: BTreeMap<Key, VerdictReport>,
    told: BTreeMap<Key, ToldVerdict>,
    doubts: Doubts,
    /// The rank whose departure from the common order explains all deaths.
    root_of_deaths: Option<Rank>,
}

impl Incidents {
    /// A new generation: what was told is cleared by the next [`Incidents::changes`].
    pub fn reset(&mut self) {
        *self = Incidents { told: std::mem::take(&mut self.told), ..Incidents::default() };
    }

    /// A fact that stays until it is taken back.
    pub fn fact(&mut self, rank: Option<Rank>, mut verdict: VerdictReport, happened: Option<Occurrence>) {
        if let Some(root) = self.root_of_deaths {
            follow(&mut verdict, rank, root);
        }
        let key = (verdict.verdict, rank, None);
        self.happened.remove(&key);
        self.happened.extend(happened.map(|happened| (key, happened)));
        self.facts.insert(key, verdict);
    }

    /// A fact of a kind of which there is one at most. It replaces the former when it says something else.
    pub fn only_fact(&mut self, rank: Option<Rank>, verdict: VerdictReport) {
        let known = self.facts.get(&(verdict.verdict, rank, None));
        if known.is_none_or(|known| known.severity != verdict.severity || known.reason != verdict.reason) {
            self.take_back(verdict.verdict);
            self.fact(rank, verdict, None);
        }
    }

    /// Why there is a fact of this kind, if there is one.
    pub fn reason(&self, kind: VerdictKind) -> Option<Reason> {
        self.facts.iter().find(|(key, _)| key.0 == kind).map(|(_, fact)| fact.reason_code)
    }

    /// When the first rank died, of those that have.
    pub fn first_death(&self) -> Option<Occurrence> {
        let deaths = self.happened.iter().filter(|(key, _)| key.0 == VerdictKind::Dead);
        deaths.map(|(_, happened)| *happened).min_by(|a, b| a.time.total_cmp(&b.time))
    }

    /// Takes a kind of fact back.
    pub fn take_back(&mut self, kind: VerdictKind) {
        self.facts.retain(|key, _| key.0 != kind);
    }

    /// This rank had left the common order: deaths follow from that.
    pub fn deaths_follow_from(&mut self, root: Rank) {
        self.root_of_deaths = Some(root);
        self.facts.iter_mut().for_each(|(key, fact)| follow(fact, key.1, root));
    }

    /// The conditions that hold now, without those that have not held for long enough.
    pub fn hold(&mut self, mut found: BTreeMap<Key, VerdictReport>, awake_ms: u64) {
        self.doubts.sift(&mut found, &self.told, awake_ms);
        self.conditions = found;
    }

    /// The living rank that a red verdict blames. A rank that fails because of a wait is its victim.
    pub fn root(&self) -> Option<Rank> {
        let red = |told: &&ToldVerdict| told.condition && told.verdict.severity == Severity::Red;
        self.told.values().filter(red).find_map(|told| told.verdict.rank)
    }

    /// What changed since the last call, in the order to tell it: worst news first, cleared ones last.
    pub fn changes(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut present: BTreeMap<Key, ToldVerdict> = self
            .facts
            .iter()
            .map(|(key, verdict)| (*key, ToldVerdict { verdict: verdict.clone(), condition: false }))
            .chain(
                self.conditions
                    .iter()
                    .map(|(key, verdict)| (*key, ToldVerdict { verdict: verdict.clone(), condition: true })),
            )
            .collect();
        for (key, now) in &mut present {
            let known = self.told.get(key).map(|told| &told.verdict);
            let severity = known.map(|known| known.severity);
            let verdict = &mut now.verdict;
            let before = known.filter(|known| known.severity == verdict.severity);
            verdict.first_s = before.map_or(verdict.latency_s, |known| known.first_s);
            let verdict = &now.verdict;
            let acts = now.condition && is_certain(verdict) && !known.is_some_and(is_certain);
            let differs = severity != Some(verdict.severity)
                || known.is_some_and(|known| {
                    known.reason_code != verdict.reason_code || (is_seen(verdict) && !is_seen(known))
                });
            if differs || acts {
                let happened = self.happened.get(key).filter(|_| !now.condition).copied();
                changes.push(Change { verdict: verdict.clone(), acts, happened });
            }
        }
        changes.sort_by_key(|change| Reverse(change.verdict.severity));
        for (key, told) in &self.told {
            if !present.contains_key(key) {
                let verdict = VerdictReport { severity: Severity::Cleared, ..told.verdict.clone() };
                changes.push(Change { verdict, acts: false, happened: None });
            }
        }
        self.told = present;
        changes
    }

    /// Present verdicts, worst first.
    pub fn present(&self) -> Vec<VerdictReport> {
        let mut all: Vec<VerdictReport> = self.told.values().map(|told| told.verdict.clone()).collect();
        all.sort_by_key(|verdict| (Reverse(verdict.severity), verdict.verdict, verdict.rank));
        all
    }
}

/// Verdicts about the circumstances of a rank, which may change from one second to the next: they are told
/// when they have held for [`DOUBT_MS`] or [`LATE_MS`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Doubts {
    since: BTreeMap<(Key, Reason), u64>,
}

impl Doubts {
    /// Takes out of `found` what has not held for long enough. What replaces something told is told at once.
    fn sift(
        &mut self,
        found: &mut BTreeMap<Key, VerdictReport>,
        told: &BTreeMap<Key, ToldVerdict>,
        awake_ms: u64,
    ) {
        let before = std::mem::take(&mut self.since);
        found.retain(|key, verdict| {
            let doubtful = matches!(
                verdict.reason_code,
                Reason::HostOverloaded
                    | Reason::Thrashing
                    | Reason::CpuPressure
                    | Reason::Throttled
                    | Reason::Late
            );
            if !doubtful || told.contains_key(key) {
                return true;
            }
            let place = (*key, verdict.reason_code);
            let since = *self.since.entry(place).or_insert(before.get(&place).copied().unwrap_or(awake_ms));
            let bound_ms = if verdict.reason_code == Reason::Late { LATE_MS } else { DOUBT_MS };
            awake_ms.saturating_sub(since) >= bound_ms
        });
    }
}

/// Rank `root` left the common order: no other death is an incident of its own, and neither is its own end by
/// an error.
fn follow(fact: &mut VerdictReport, rank: Option<Rank>, root: Rank) {
    let own = rank == Some(root);
    let follows = fact.verdict == VerdictKind::Dead && (!own || fact.reason_code == Reason::Failed);
    if follows && fact.severity == Severity::Red {
        fact.severity = Severity::Amber;
        let what = if own { "its end follows from that" } else { "this one is its victim" };
        fact.card.facts.insert(0, format!("rank {root} left the common order; {what}"));
    }
}

/// The policy may act on it.
fn is_certain(verdict: &VerdictReport) -> bool {
    verdict.severity == Severity::Red
        && verdict.confidence == Confidence::Certain
        && verdict.reason_code.row().policy != OnVerdict::Never
}

/// Its card shows what a close look brought.
fn is_seen(verdict: &VerdictReport) -> bool {
    verdict
        .card
        .guilty
        .as_ref()
        .is_some_and(|side| !side.stack.is_empty() || !side.at.is_empty() || !side.blocked_on.is_empty())
}
