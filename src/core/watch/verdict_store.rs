//! Keeps the verdicts of a generation, facts and conditions, and returns what changed since they were last
//! reported.

use crate::reason::{OnVerdict, Reason};
use crate::report::{Confidence, Severity, VerdictKind, VerdictReport};
use crate::watch::patterns::stragglers;
use rankdeck_types::ids::{NodeRank, Rank, WallTime};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Milliseconds for which a verdict about circumstances must hold before it is reported.
const DOUBT_MS: u64 = 2_000;
/// The same for a rank that is late without a cause: longer than one straggler is shown for.
const LATE_MS: u64 = 2 * stragglers::HOLD_MS;

/// The identity of a verdict while its text changes.
pub(crate) type VerdictKey = (VerdictKind, Option<Rank>, Option<NodeRank>);

/// A change of a verdict.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct VerdictChange {
    /// The verdict, with [`Severity::Cleared`] if it no longer holds.
    pub verdict: VerdictReport,
    /// It is about a live rank and has become certain, so that the policy applies.
    pub acts: bool,
    /// When it happened; `None`: now.
    pub happened: Option<RecordedTime>,
}

/// When something recorded happened.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct RecordedTime {
    /// By the clock of its agent.
    pub time: WallTime,
    /// Before this console attached.
    pub past: bool,
}

/// A verdict as it was last reported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct ReportedVerdict {
    verdict: VerdictReport,
    condition: bool,
}

/// All verdicts of a generation.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct VerdictStore {
    facts: BTreeMap<VerdictKey, VerdictReport>,
    /// When recorded facts happened.
    #[serde(default)]
    happened: BTreeMap<VerdictKey, RecordedTime>,
    conditions: BTreeMap<VerdictKey, VerdictReport>,
    #[serde(rename = "told")]
    reported: BTreeMap<VerdictKey, ReportedVerdict>,
    #[serde(rename = "doubts")]
    debounce: Debounce,
    /// The rank whose departure from the common order explains all deaths.
    root_of_deaths: Option<Rank>,
}

impl VerdictStore {
    /// Starts a new generation; the next [`VerdictStore::changes`] clears the reported verdicts.
    pub fn reset(&mut self) {
        *self = VerdictStore { reported: std::mem::take(&mut self.reported), ..VerdictStore::default() };
    }

    /// Adds a fact that stays until it is withdrawn.
    pub fn add_fact(
        &mut self,
        rank: Option<Rank>,
        mut verdict: VerdictReport,
        happened: Option<RecordedTime>,
    ) {
        if let Some(root) = self.root_of_deaths {
            follow(&mut verdict, rank, root);
        }
        let key = (verdict.verdict, rank, None);
        self.happened.remove(&key);
        self.happened.extend(happened.map(|happened| (key, happened)));
        self.facts.insert(key, verdict);
    }

    /// Adds the only fact of its kind. It replaces the former one if it differs.
    pub fn only_fact(&mut self, rank: Option<Rank>, verdict: VerdictReport) {
        let known = self.facts.get(&(verdict.verdict, rank, None));
        if known.is_none_or(|known| known.severity != verdict.severity || known.reason != verdict.reason) {
            self.withdraw(verdict.verdict);
            self.add_fact(rank, verdict, None);
        }
    }

    /// Returns the reason of the fact of this kind.
    pub fn reason(&self, kind: VerdictKind) -> Option<Reason> {
        self.facts.iter().find(|(key, _)| key.0 == kind).map(|(_, fact)| fact.reason_code)
    }

    /// Returns when the first rank died.
    pub fn first_death(&self) -> Option<RecordedTime> {
        let deaths = self.happened.iter().filter(|(key, _)| key.0 == VerdictKind::Dead);
        deaths.map(|(_, happened)| *happened).min_by(|a, b| a.time.total_cmp(&b.time))
    }

    /// Withdraws all facts of a kind.
    pub fn withdraw(&mut self, kind: VerdictKind) {
        self.facts.retain(|key, _| key.0 != kind);
    }

    /// This rank left the common order of collectives first: deaths are secondary failures.
    pub fn deaths_follow_from(&mut self, root: Rank) {
        self.root_of_deaths = Some(root);
        self.facts.iter_mut().for_each(|(key, fact)| follow(fact, key.1, root));
    }

    /// Takes the conditions that hold now, without those that have not held for long enough.
    pub fn hold(&mut self, mut found: BTreeMap<VerdictKey, VerdictReport>, awake_ms: u64) {
        self.debounce.filter(&mut found, &self.reported, awake_ms);
        self.conditions = found;
    }

    /// Returns the critical verdict about what stands still, one that names a rank if there is one. A rank
    /// that fails because of a wait is a secondary failure of that rank's.
    pub fn critical(&self) -> Option<&VerdictReport> {
        let critical = |one: &&ReportedVerdict| one.condition && one.verdict.severity == Severity::Red;
        let all = self.reported.values().filter(critical).map(|one| &one.verdict);
        all.min_by_key(|verdict| verdict.rank.is_none())
    }

    /// Returns what changed since the last call, in the order to report it: most severe first, cleared ones
    /// last.
    pub fn changes(&mut self) -> Vec<VerdictChange> {
        let mut changes = Vec::new();
        let mut present: BTreeMap<VerdictKey, ReportedVerdict> =
            self.facts
                .iter()
                .map(|(key, verdict)| (*key, ReportedVerdict { verdict: verdict.clone(), condition: false }))
                .chain(self.conditions.iter().map(|(key, verdict)| {
                    (*key, ReportedVerdict { verdict: verdict.clone(), condition: true })
                }))
                .collect();
        for (key, now) in &mut present {
            let known = self.reported.get(key).map(|before| &before.verdict);
            let severity = known.map(|known| known.severity);
            let verdict = &mut now.verdict;
            let before = known.filter(|known| known.severity == verdict.severity);
            verdict.first_s = before.map_or(verdict.latency_s, |known| known.first_s);
            let verdict = &now.verdict;
            let acts = now.condition && is_certain(verdict) && !known.is_some_and(is_certain);
            let differs = severity != Some(verdict.severity)
                || known.is_some_and(|known| {
                    known.reason_code != verdict.reason_code || inspected(verdict) > inspected(known)
                });
            if differs || acts {
                let happened = self.happened.get(key).filter(|_| !now.condition).copied();
                changes.push(VerdictChange { verdict: verdict.clone(), acts, happened });
            }
        }
        changes.sort_by_key(|change| Reverse(change.verdict.severity));
        for (key, before) in &self.reported {
            if !present.contains_key(key) {
                let verdict = VerdictReport { severity: Severity::Cleared, ..before.verdict.clone() };
                changes.push(VerdictChange { verdict, acts: false, happened: None });
            }
        }
        self.reported = present;
        changes
    }

    /// Returns the current verdicts, most severe first.
    pub fn current(&self) -> Vec<VerdictReport> {
        let mut all: Vec<VerdictReport> = self.reported.values().map(|one| one.verdict.clone()).collect();
        all.sort_by_key(|verdict| (Reverse(verdict.severity), verdict.verdict, verdict.rank));
        all
    }
}

/// Debounces verdicts about the circumstances of a rank, which may change from one second to the next: they
/// are reported when they have held for [`DOUBT_MS`] or [`LATE_MS`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Debounce {
    since: BTreeMap<(VerdictKey, Reason), u64>,
}

impl Debounce {
    /// Removes from `found` what has not held for long enough. What replaces a reported verdict stays.
    fn filter(
        &mut self,
        found: &mut BTreeMap<VerdictKey, VerdictReport>,
        reported: &BTreeMap<VerdictKey, ReportedVerdict>,
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
            if !doubtful || reported.contains_key(key) {
                return true;
            }
            let place = (*key, verdict.reason_code);
            let since = *self.since.entry(place).or_insert(before.get(&place).copied().unwrap_or(awake_ms));
            let bound_ms = if verdict.reason_code == Reason::Late { LATE_MS } else { DOUBT_MS };
            awake_ms.saturating_sub(since) >= bound_ms
        });
    }
}

/// Rank `root` left the common order of collectives first: other deaths are secondary failures, and so is its
/// own end by an error.
fn follow(fact: &mut VerdictReport, rank: Option<Rank>, root: Rank) {
    let own = rank == Some(root);
    let follows = fact.verdict == VerdictKind::Dead && (!own || fact.reason_code == Reason::Failed);
    if follows && fact.severity == Severity::Red {
        fact.severity = Severity::Amber;
        let what = if own { "consequence" } else { "secondary failure" };
        fact.card.facts.insert(0, format!("{what}: rank {root} left the common order of collectives first"));
    }
}

/// The policy may act on it.
fn is_certain(verdict: &VerdictReport) -> bool {
    verdict.severity == Severity::Red
        && verdict.confidence == Confidence::Certain
        && verdict.reason_code.row().policy != OnVerdict::Never
}

/// What an inspection has added to its evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Inspected {
    Nothing,
    /// What the rank waits for.
    Wait,
    /// A stack, too. On a busy host the first inspection may end before it has one.
    Stack,
}

fn inspected(verdict: &VerdictReport) -> Inspected {
    match &verdict.card.culprit {
        Some(side) if !side.stack.is_empty() || !side.at.is_empty() => Inspected::Stack,
        Some(side) if !side.blocked_on.is_empty() => Inspected::Wait,
        _ => Inspected::Nothing,
    }
}
