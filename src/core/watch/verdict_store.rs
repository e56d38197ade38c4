//! Keeps the verdicts of a generation, facts and conditions, and returns what changed since they were last
//! reported.

use crate::reason::{OnVerdict, Proof, Reason};
use crate::report::{Severity, VerdictKind, VerdictReport};
use crate::watch::history::program;
use crate::watch::history::run_view::{RankView, RunView, SeenProgress, SeenWait};
use crate::watch::patterns::stragglers;
use rankdeck_types::ids::{NodeRank, Rank, WallTime};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Milliseconds for which a verdict about circumstances must hold before it is reported.
const DOUBT_MS: u64 = 2_000;
/// The same for a rank that is late without a cause: longer than one straggler is shown for.
const LATE_MS: u64 = 2 * stragglers::HOLD_MS;
/// The same for another reason of a warning.
const SWITCH_MS: u64 = 5_000;
/// Milliseconds for which a rank, or what it waits for, must work until a verdict that it is stuck is over.
const WORKS_MS: u64 = 5_000;

/// The identity of a verdict while its text changes.
pub(crate) type VerdictKey = (VerdictKind, Option<Rank>, Option<NodeRank>);

/// A change of a verdict.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct VerdictChange {
    /// The verdict, with [`Severity::Cleared`] if it no longer holds.
    pub verdict: VerdictReport,
    /// It is about a live rank and has become certain by this proof, so that the policy applies.
    pub acts: Option<Proof>,
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

/// A critical verdict that an inspection has confirmed (WATCH-4).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct ConfirmedVerdict {
    key: VerdictKey,
    wait: SeenWait,
    /// Since when the rank, or what it waits for, has worked at every tick.
    works_since: Option<u64>,
}

/// A warning about a wait (WATCH-5).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct StandingWarning {
    key: VerdictKey,
    progress: SeenProgress,
    /// Since when no tick has found it.
    absent_since: Option<u64>,
}

/// All verdicts of a generation.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct VerdictStore {
    facts: BTreeMap<VerdictKey, VerdictReport>,
    /// When recorded facts happened.
    #[serde(default)]
    happened: BTreeMap<VerdictKey, RecordedTime>,
    conditions: BTreeMap<VerdictKey, VerdictReport>,
    /// By culprit.
    #[serde(default)]
    confirmed: BTreeMap<Rank, ConfirmedVerdict>,
    /// By culprit.
    #[serde(default)]
    warned: BTreeMap<Rank, StandingWarning>,
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

    /// Withdraws the fact of a kind about a rank.
    pub fn withdraw_about(&mut self, kind: VerdictKind, rank: Rank) {
        self.facts.remove(&(kind, Some(rank), None));
        self.happened.remove(&(kind, Some(rank), None));
    }

    /// This rank was the first to call a different collective: deaths are secondary failures.
    pub fn deaths_follow_from(&mut self, root: Rank) {
        self.root_of_deaths = Some(root);
        self.facts.iter_mut().for_each(|(key, fact)| follow(fact, key.1, root));
    }

    /// Puts back the critical verdicts that an inspection has confirmed and nothing has ended since, in place of
    /// whatever the latest samples of the same ranks look like; and remembers new ones.
    pub fn keep_confirmed(
        &mut self,
        found: &mut BTreeMap<VerdictKey, VerdictReport>,
        run: &RunView<'_>,
        awake_ms: u64,
    ) {
        let died = run.views.iter().any(|view| view.died);
        let conditions = &self.conditions;
        self.confirmed.retain(|rank, confirmed| {
            let stands =
                |view: &&RankView<'_>| view.fresh && view.alive() && view.halted_ms().is_none() && !died;
            let Some(view) = run.view(*rank).filter(stands) else { return false };
            let since = confirmed.works_since.filter(|_| program::works(view));
            confirmed.works_since = since.or(program::works(view).then_some(awake_ms));
            let works = confirmed.works_since.is_some_and(|since| awake_ms.saturating_sub(since) >= WORKS_MS);
            let Some(before) = conditions.get(&confirmed.key).filter(|_| !works) else { return false };
            if view.seen_wait().as_ref() != Some(&confirmed.wait) {
                return false;
            }
            let is_of_rank = |key: &VerdictKey| key.1 == Some(*rank) && is_about_a_wait(key.0);
            let more = |now: &VerdictReport| {
                let known = before.reason_code == now.reason_code || before.reason_code == Reason::Unknown;
                now.severity == Severity::Red && (known || now.proof.is_some())
            };
            let now = found.iter().find(|(key, now)| is_of_rank(key) && more(now)).map(|(key, _)| *key);
            found.retain(|key, _| !is_of_rank(key) || Some(*key) == now);
            match now {
                Some(key) => confirmed.key = key,
                None => {
                    let latency_s = before.latency_s.max(view.still_ms() as f64 / 1000.0);
                    found.insert(confirmed.key, VerdictReport { latency_s, ..before.clone() });
                }
            }
            true
        });
        for (key, verdict) in found.iter() {
            let critical = verdict.severity == Severity::Red && is_about_a_wait(key.0);
            if let Some(rank) = key.1.filter(|rank| critical && !self.confirmed.contains_key(rank))
                && let Some(wait) = run.view(rank).and_then(RankView::seen_wait)
            {
                self.confirmed.insert(rank, ConfirmedVerdict { key: *key, wait, works_since: None });
            }
        }
    }

    /// Puts back warnings about waits that a single sample does not show while their rank makes no progress, and
    /// remembers new ones (WATCH-5).
    pub fn keep_warned(
        &mut self,
        found: &mut BTreeMap<VerdictKey, VerdictReport>,
        run: &RunView<'_>,
        awake_ms: u64,
    ) {
        let conditions = &self.conditions;
        self.warned.retain(|rank, warned| {
            let stands = |view: &&RankView<'_>| view.fresh && view.alive() && view.halted_ms().is_none();
            let Some(view) = run.view(*rank).filter(stands) else { return false };
            if found.keys().any(|key| key.1 == Some(*rank) && is_about_a_wait(key.0)) {
                return false;
            }
            let absent_since = *warned.absent_since.get_or_insert(awake_ms);
            let is_over = awake_ms.saturating_sub(absent_since) >= SWITCH_MS;
            let Some(before) = conditions.get(&warned.key).filter(|_| !is_over) else { return false };
            if view.seen_progress() != warned.progress {
                return false;
            }
            let latency_s = before.latency_s.max(view.still_ms() as f64 / 1000.0);
            found.insert(warned.key, VerdictReport { latency_s, ..before.clone() });
            true
        });
        for (key, verdict) in found.iter() {
            if let Some(rank) =
                key.1.filter(|_| verdict.severity == Severity::Amber && is_about_a_wait(key.0))
                && !self.warned.contains_key(&rank)
                && let Some(progress) = run.view(rank).map(RankView::seen_progress)
            {
                self.warned.insert(rank, StandingWarning { key: *key, progress, absent_since: None });
            }
        }
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

    /// Returns the warning about a rank, other than `victim`, that ranks wait for: one that `victim` itself is
    /// known to wait for if there is one, else the one that has lasted longest. Warnings about speed, input or
    /// learning name no rank that a collective waits for, and neither does one about a run that stands still.
    pub fn late_rank(&self, victim: Rank) -> Option<&VerdictReport> {
        let late = |verdict: &&VerdictReport| {
            let kind = is_about_a_wait(verdict.verdict) || verdict.verdict == VerdictKind::Frozen;
            verdict.severity == Severity::Amber
                && kind
                && verdict.reason_code != Reason::Standstill
                && verdict.rank.is_some_and(|rank| rank != victim)
                && verdict.card.waiter.is_some()
        };
        let waits = |verdict: &VerdictReport| {
            verdict.card.waiter.as_ref().is_some_and(|waiter| waiter.rank == victim)
        };
        let conditions = self.reported.values().filter(|one| one.condition).map(|one| &one.verdict);
        conditions
            .filter(late)
            .max_by(|a, b| waits(a).cmp(&waits(b)).then(a.latency_s.total_cmp(&b.latency_s)))
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
            let is_new = now.condition && is_certain(verdict) && !known.is_some_and(is_certain);
            let acts = verdict.proof.filter(|_| is_new);
            let differs = severity != Some(verdict.severity)
                || known.is_some_and(|known| {
                    known.reason_code != verdict.reason_code || inspected(verdict) > inspected(known)
                });
            if differs || is_new {
                let happened = self.happened.get(key).filter(|_| !now.condition).copied();
                changes.push(VerdictChange { verdict: verdict.clone(), acts, happened });
            }
        }
        changes.sort_by_key(|change| Reverse(change.verdict.severity));
        for (key, before) in &self.reported {
            if !present.contains_key(key) {
                let verdict = VerdictReport { severity: Severity::Cleared, ..before.verdict.clone() };
                changes.push(VerdictChange { verdict, acts: None, happened: None });
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
    /// Removes from `found` what has not held for long enough. What replaces a reported verdict stays, but a
    /// warning keeps its reason until another one has held for [`SWITCH_MS`].
    fn filter(
        &mut self,
        found: &mut BTreeMap<VerdictKey, VerdictReport>,
        reported: &BTreeMap<VerdictKey, ReportedVerdict>,
        awake_ms: u64,
    ) {
        let before = std::mem::take(&mut self.since);
        for (key, verdict) in found.iter_mut() {
            let known = reported.get(key).filter(|known| known.condition).map(|known| &known.verdict);
            let is_warning = |verdict: &VerdictReport| verdict.severity == Severity::Amber;
            let Some(known) = known.filter(|known| is_warning(known) && is_warning(verdict)) else {
                continue;
            };
            if known.reason_code != verdict.reason_code {
                let place = (*key, verdict.reason_code);
                let since = before.get(&place).copied().unwrap_or(awake_ms);
                if awake_ms.saturating_sub(since) < SWITCH_MS {
                    self.since.insert(place, since);
                    *verdict = known.clone();
                }
            }
        }
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

/// Rank `root` was the first to call a different collective: other deaths are secondary failures, and so is its
/// own end by an error.
fn follow(fact: &mut VerdictReport, rank: Option<Rank>, root: Rank) {
    let own = rank == Some(root);
    let follows = fact.verdict == VerdictKind::Dead && (!own || fact.reason_code == Reason::Failed);
    if follows && fact.severity == Severity::Red {
        fact.severity = Severity::Amber;
        let what = if own { "consequence" } else { "secondary failure" };
        fact.card
            .facts
            .insert(0, format!("{what}: rank {root} was the first to call a different collective"));
    }
}

/// Whether a verdict of this kind reports a stuck rank or environment.
fn is_about_a_wait(kind: VerdictKind) -> bool {
    matches!(kind, VerdictKind::Behind | VerdictKind::EnvStuck)
}

/// The policy may act on it.
fn is_certain(verdict: &VerdictReport) -> bool {
    verdict.severity == Severity::Red
        && verdict.proof.is_some()
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
    match verdict.card.culprit.as_ref().or(verdict.card.opposite.as_ref()) {
        Some(side) if !side.stack.is_empty() || !side.at.is_empty() => Inspected::Stack,
        Some(side) if !side.blocked_on.is_empty() => Inspected::Wait,
        _ => Inspected::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::card::{Card, RankEvidence};
    use crate::reason::{Confidence, all_reasons};

    /// What the store reports as the late rank that rank `victim` waited for, with one standing condition about
    /// rank 1 that rank 2 waits for.
    fn late(reason: Reason, severity: Severity, waited: bool, victim: u32) -> Option<Rank> {
        let waiter = waited.then(|| RankEvidence { rank: Rank(2), ..RankEvidence::default() });
        let verdict = VerdictReport {
            rank: Some(Rank(1)),
            host: None,
            verdict: reason.kind(),
            severity,
            confidence: Confidence::Likely,
            proof: None,
            reason_code: reason,
            reason: String::new(),
            latency_s: 9.0,
            first_s: 9.0,
            card: Box::new(Card { waiter, ..Card::default() }),
        };
        let found = BTreeMap::from([((reason.kind(), Some(Rank(1)), None), verdict)]);
        let mut store = VerdictStore::default();
        store.hold(found.clone(), 0);
        store.hold(found, LATE_MS);
        store.changes();
        store.late_rank(Rank(victim)).and_then(|verdict| verdict.rank)
    }

    #[test]
    fn late_rank_is_one_that_a_warning_says_ranks_wait_for() {
        for row in all_reasons() {
            let kind = matches!(row.kind, VerdictKind::Behind | VerdictKind::EnvStuck | VerdictKind::Frozen);
            let expected = (kind && row.reason != Reason::Standstill).then_some(Rank(1));
            assert_eq!(late(row.reason, Severity::Amber, true, 2), expected, "{}", row.name);
        }
        for unrelated in [Reason::InputBound, Reason::NoLearning, Reason::Late, Reason::SlowRun] {
            assert_eq!(late(unrelated, Severity::Amber, true, 2), None, "{unrelated:?}");
        }
    }

    #[test]
    fn late_rank_is_not_the_victim_and_has_a_waiting_rank() {
        let amber = |waited, victim| late(Reason::WaitsForPeer, Severity::Amber, waited, victim);
        assert_eq!(amber(true, 3), Some(Rank(1)), "the warning shows only one of those that wait");
        assert_eq!(amber(true, 1), None);
        assert_eq!(amber(false, 2), None);
        assert_eq!(late(Reason::WaitsForPeer, Severity::Red, true, 2), None, "it is critical");
    }
}
