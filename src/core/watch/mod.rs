//! Detects stuck, failed, slow and diverging ranks and explains each finding as a verdict.
//!
//! Data flows one way, through four stages; a stage imports only the stages before it:
//!
//! 1. [`history`] remembers each rank and host between samples, and shows each rank as it is now (a
//!    `RankView`: its history plus its latest sample, with lookups).
//! 2. [`patterns`] compares ranks: waits, differing calls and weights, stragglers, packet loss, a stall of
//!    the run.
//! 3. [`assess`] decides what is wrong: a `Finding` with reason, severity and confidence. It also names the
//!    ranks to inspect.
//! 4. [`report`] describes a finding: evidence, sentence, advice. The result is a [`VerdictReport`].
//!
//! [`Detector`] drives the stages at each tick, and [`verdict_store`] keeps the verdicts and returns what
//! changed. A verdict has one of two sources: facts (a death, differing weights) that records bring, and
//! conditions that are assessed again at each tick.
//!
//! Ranks that a rank has started itself are watched as a run of their own, by a detector of its own ([`inner`]).
//!
//! Invariants:
//! - One verdict per root cause: a death, a frozen process or a silent host explains the waits of the others.
//! - WATCH-2: only ages measured on one host's own clock decide; ages of different hosts are never
//!   subtracted.
//! - A verdict is reported when it appears or changes its severity or reason, again when an inspection of its
//!   rank has arrived, and again, `cleared`, when it no longer holds.
//! - WATCH-3: detection never acts. `update` applies the policy, to critical verdicts on live ranks that are
//!   certain, as the row of their reason defines. Certain is only what a [`Proof`](crate::reason::Proof) proves;
//!   silence stays `likely`, unless `watch.silence_is_stuck_s` is set or a lock has outlasted all waits at its
//!   line. The iterations of a script are a guess of its hook and prove nothing (DISAGREE-1).
//! - WATCH-4: a critical verdict that an inspection has confirmed stands until its rank makes a step, calls a
//!   collective, or another inspection shows another wait. Samples alone do not clear it.
//! - WATCH-5: a warning about a wait stands until its rank makes progress, or until it has not been found for 5 s: a
//!   program that sleeps in a loop computes in between.
//! - A critical verdict needs two samples a second apart without any progress, except for hard facts and
//!   differing calls.
#![deny(clippy::wildcard_enum_match_arm)]

mod assess;
pub(crate) mod history;
mod inner;
mod patterns;
mod report;
mod verdict_store;

pub(crate) use assess::finding::AbnormalExit;
pub(crate) use history::inspections::InspectRequest;
pub(crate) use patterns::group_arguments::separate_programs;
pub(crate) use report::builder::describe_inspection;
pub(crate) use report::facts::{dead, drift, lost, totals_differ};
pub(crate) use verdict_store::{RecordedTime, VerdictChange};

use crate::limits::TimeLimits;
use crate::model::Model;
use crate::reason::{Confidence, ConfidenceBounds, Reason, Severity, VerdictKind};
use crate::report::VerdictReport;
use assess::finding::Finding;
use assess::late_rank;
use assess::stages::{self, PostMortem};
use history::hosts::{DeviceHealth, HostHeartbeats};
use history::inspections::InspectionLog;
use history::movement;
use history::patience::Patience;
use history::rank_history::RankHistory;
use history::run_view::{Memory, RunView, fresh_hosts, living};
use history::silence::{PaceHistory, SilenceModel};
use inner::InnerRuns;
use patterns::input::InputHistory;
use patterns::learning::{self, ReturnComparison};
use patterns::normalizers::NormalizerComparison;
use patterns::replicas::Replicas;
use patterns::speed::SpeedHistory;
use patterns::stall::StallDetector;
use patterns::stragglers::{self, Straggler};
use rankdeck_proto::inspection::Inspection;
use rankdeck_proto::message::{Counters, HostSample};
use rankdeck_types::ids::{NodeRank, Rank};
use report::{evidence, facts};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use verdict_store::{VerdictKey, VerdictStore};

/// All verdicts of a generation, and what is remembered to find them.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Detector {
    /// How long a silence is usual; kept over generations, so that a restart starts with what was learned.
    #[serde(rename = "pace")]
    silence: SilenceModel,
    /// How long waits at each line are usual; kept as well.
    #[serde(default)]
    patience: Patience,
    #[serde(rename = "looks")]
    inspections: InspectionLog,
    #[serde(rename = "incidents")]
    verdicts: VerdictStore,
    devices: DeviceHealth,
    #[serde(rename = "beats")]
    heartbeats: HostHeartbeats,
    /// The latest straggler, and when it was seen on the awake clock.
    #[serde(rename = "slow")]
    straggler: Option<(Straggler, u64)>,
    #[serde(rename = "standstill")]
    stall: StallDetector,
    post_mortem: PostMortem,
    replicas: Replicas,
    #[serde(default)]
    returns: ReturnComparison,
    #[serde(default)]
    speed: SpeedHistory,
    #[serde(default)]
    input: InputHistory,
    #[serde(default)]
    normalizers: NormalizerComparison,
    /// The groups of ranks that ranks have started themselves.
    #[serde(default)]
    inner: InnerRuns,
}

impl Detector {
    /// Starts a new generation; the next [`Detector::changes`] clears the reported verdicts.
    pub fn reset(&mut self) {
        let silence = std::mem::take(&mut self.silence);
        let patience = std::mem::take(&mut self.patience);
        let mut verdicts = std::mem::take(&mut self.verdicts);
        verdicts.reset();
        *self = Detector { silence, patience, verdicts, ..Detector::default() };
    }

    /// Takes a host's sample of the current generation.
    pub fn observe(&mut self, model: &mut Model, node: NodeRank, sample: &HostSample) {
        for rank in &sample.ranks {
            let known = model.ranks.get_mut(rank.rank.index()).filter(|known| known.node == node);
            let Some(history) = known.map(|known| &mut known.watch_history) else { continue };
            let paused_since = history.paused_since();
            history.observe(sample, rank, &mut self.silence);
            self.learn_waits(rank.rank, history, paused_since);
        }
        self.heartbeats.record_heartbeat(node, sample.mono_ms);
        self.devices.observe(node, sample);
        self.inner.observe(model, node, sample);
    }

    /// Learns how long the rank has waited where the inspections saw it, once it does something (PATIENCE-2);
    /// `paused_since`: since when it had done nothing.
    fn learn_waits(&mut self, rank: Rank, history: &RankHistory, paused_since: Option<u64>) {
        let passed_ms = |since: u64| history.mono_ms.saturating_sub(since);
        if let Some(since) = paused_since.filter(|since| history.paused_since() != Some(*since))
            && let Some(site) = self.inspections.site_since(rank, since)
        {
            self.patience.learn_wait(site, passed_ms(since));
        }
        if history.still_ms() == 0
            && let Some(stay) = self.inspections.on_progress(rank)
            && stay.naps > 0
            && paused_since.is_some()
        {
            self.patience.learn_polling(&stay.site, passed_ms(stay.since_ms));
        }
    }

    /// Takes the reply to an inspection request.
    pub fn on_inspection(&mut self, inspection: Inspection) {
        match inspection.inner_pid {
            Some(pid) => self.inner.on_inspection(pid, inspection),
            None => self.inspections.on_reply(inspection),
        }
    }

    /// Returns what was learned about usual silences.
    pub fn pace_history(&self) -> PaceHistory {
        PaceHistory { lines: self.patience.lines(), ..self.silence.history() }
    }

    /// Takes over what an earlier console learned about this run.
    pub fn recall(&mut self, history: &PaceHistory) {
        self.silence.recall(history);
        self.patience.recall(&history.lines);
    }

    /// Adds a fact that stays until it is withdrawn.
    pub fn add_fact(&mut self, rank: Option<Rank>, verdict: VerdictReport, happened: RecordedTime) {
        self.verdicts.add_fact(rank, verdict, Some(happened));
    }

    /// Withdraws all facts of a kind.
    pub fn withdraw(&mut self, kind: VerdictKind) {
        self.verdicts.withdraw(kind);
    }

    /// Withdraws the fact of a kind about a rank.
    pub fn withdraw_about(&mut self, kind: VerdictKind, rank: Rank) {
        self.verdicts.withdraw_about(kind, rank);
    }

    /// The ranks have formed another group: what was remembered about all of them together is of the former one.
    pub fn reform(&mut self) {
        self.straggler = None;
        self.stall = StallDetector::default();
        self.post_mortem = PostMortem::default();
        self.replicas = Replicas::default();
        self.returns = ReturnComparison::default();
        self.speed = SpeedHistory::default();
        self.normalizers = NormalizerComparison::default();
        self.verdicts.withdraw(VerdictKind::TotalsDiffer);
    }

    /// Takes the counters of all ranks at one iteration.
    pub fn on_counters(&mut self, own: &[Counters]) {
        self.returns.compare(own);
    }

    /// Checks whether the run learns.
    pub fn check_learning(&mut self, model: &Model) {
        self.returns.compare_printed(model);
        let issue = learning::find_issue(model, &self.returns);
        // The words of an issue may change with every value; those first reported stay.
        if self.verdicts.reason(VerdictKind::Learning) != issue.as_ref().map(|issue| issue.reason) {
            self.withdraw(VerdictKind::Learning);
            if let Some(issue) = issue {
                let verdict = facts::learning(model, issue);
                self.verdicts.add_fact(verdict.rank, verdict, None);
            }
        }
    }

    /// Returns the critical verdict about what stands still, one that names a rank if there is one.
    pub fn critical(&self) -> Option<&VerdictReport> {
        self.verdicts.critical()
    }

    /// Returns the warning about a live rank that `victim` or other ranks wait for.
    pub fn late_rank(&self, victim: Rank) -> Option<&VerdictReport> {
        self.verdicts.late_rank(victim)
    }

    /// Returns what changed since the last call, in the order to report it: most severe first, cleared ones
    /// last.
    pub fn changes(&mut self) -> Vec<VerdictChange> {
        self.verdicts.changes()
    }

    /// Returns the current verdicts, most severe first.
    pub fn current(&self) -> Vec<VerdictReport> {
        self.verdicts.current()
    }

    /// Assesses all conditions and returns the inspections to request.
    pub fn evaluate(&mut self, model: &Model, awake_ms: u64, limits: &TimeLimits) -> Vec<InspectRequest> {
        let (inner, inner_requests) = self.inner.evaluate(model, awake_ms, limits);
        let inner_stands = inner.iter().any(|verdict| verdict.severity == Severity::Red);
        // History.
        let histories = living(model);
        self.replicas.compare(&histories);
        self.normalizers.compare(&histories);
        model.hosts.iter().for_each(|host| self.heartbeats.record_link(host));
        self.check_weights(model);
        let memory = Memory {
            silence: &self.silence,
            patience: &self.patience,
            inspections: &self.inspections,
            devices: &self.devices,
        };
        let run = RunView::new(model, memory, fresh_hosts(model, awake_ms, limits), limits);
        // Patterns and findings.
        let mut findings = assess::assess(&run, &self.heartbeats, &self.devices, awake_ms, limits);
        if findings.found.iter().all(Finding::is_advice) && !inner_stands {
            if let Some(stall) = self.stall.observe(&run, awake_ms, limits) {
                let stalled = assess::stall(&run, stall);
                findings.found.extend(stalled.found);
                findings.suspects.extend(stalled.suspects);
            }
        } else {
            self.stall.interrupt();
        }
        let straggler = stragglers::find_straggler(&histories, &run.views);
        self.straggler = straggler
            .map(|straggler| (straggler, awake_ms))
            .or_else(|| self.straggler.take())
            .filter(|(_, seen)| awake_ms.saturating_sub(*seen) < stragglers::HOLD_MS);
        let slow = self.speed.observe(model, awake_ms).map(Finding::SlowRun);
        let slow = slow.into_iter().chain(self.input.observe(model, awake_ms).map(Finding::InputBound));
        // Verdicts.
        let mut verdicts: BTreeMap<VerdictKey, VerdictReport> = BTreeMap::new();
        for finding in findings.found {
            let verdict = evidence::verdict(&run, &finding);
            let key = (verdict.verdict, verdict.rank, finding.node());
            if verdicts.get(&key).is_none_or(|known| known.severity <= verdict.severity) {
                verdicts.insert(key, verdict);
            }
        }
        let is_critical = verdicts.values().any(|verdict| verdict.severity == Severity::Red);
        let straggler = self.straggler.as_ref().map(|(straggler, _)| Finding::Straggler(straggler.clone()));
        for finding in straggler.into_iter().chain(slow).filter(|_| !is_critical) {
            let verdict = evidence::verdict(&run, &finding);
            // A verdict that the rank is late right now wins.
            verdicts.entry((verdict.verdict, verdict.rank, None)).or_insert(verdict);
        }
        self.verdicts.keep_confirmed(&mut verdicts, &run, awake_ms);
        self.verdicts.keep_warned(&mut verdicts, &run, awake_ms);
        verdicts.values_mut().for_each(|verdict| apply_policy(&run, verdict, limits));
        for verdict in inner {
            let key = (verdict.verdict, verdict.rank, None);
            if verdicts.get(&key).is_none_or(|known| known.severity <= verdict.severity) {
                verdicts.insert(key, verdict);
            }
        }
        let suspects = run.inspectable(&findings.suspects);
        let stale: Vec<Rank> = run
            .views
            .iter()
            .filter(|view| late_rank::needs_inspection(view, limits))
            .map(|view| view.rank)
            .collect();
        self.verdicts.hold(verdicts, awake_ms);
        stale.iter().for_each(|rank| self.inspections.expire(*rank));
        let mut requests = self.inspections.request(&suspects, awake_ms);
        requests.extend(inner_requests);
        requests
    }

    /// Weights of scripts that differ or contain NaN or Inf, and normalizers that differ: facts, as for the built-in
    /// trainer.
    fn check_weights(&mut self, model: &Model) {
        let odd = |ranks: &[Rank]| if let [rank] = ranks { Some(*rank) } else { None };
        if let Some(found) = self.replicas.not_finite().cloned() {
            self.verdicts.only_fact(odd(&found.ranks), facts::not_finite(model, &found));
        } else if let Some(drift) = self.replicas.drift() {
            self.verdicts.only_fact(drift.odd().first().copied(), facts::replicas_differ(model, &drift));
        } else if let Some(drift) = self.normalizers.drift().filter(|_| self.replicas.agree()) {
            self.verdicts.only_fact(None, facts::normalizers_differ(model, drift));
        } else if self.verdicts.reason(VerdictKind::Drift) == Some(Reason::NormalizersDiffer) {
            self.verdicts.withdraw(VerdictKind::Drift);
        }
    }

    fn memory(&self) -> Memory<'_> {
        let Detector { silence, patience, inspections, devices, .. } = self;
        Memory { silence, patience, inspections, devices }
    }

    fn run_after_exit<'a>(&'a self, model: &'a Model, limits: &TimeLimits) -> RunView<'a> {
        let memory = self.memory();
        RunView::new(model, memory, Vec::new(), limits)
    }

    /// Finds the rank that exited with code 0 and broke `victim`'s connection; its verdict becomes a fact.
    pub fn left_early(
        &mut self,
        model: &Model,
        victim: Rank,
        limits: &TimeLimits,
        happened: RecordedTime,
    ) -> Option<(Rank, String)> {
        let run = self.run_after_exit(model, limits);
        let verdict = evidence::verdict(&run, &stages::left_early(&run, victim)?);
        let (rank, text) = (verdict.rank?, verdict.reason.clone());
        self.verdicts.add_fact(Some(rank), verdict, Some(happened));
        Some((rank, text))
    }

    /// A rank died: for a while, the last calls of all ranks are compared.
    pub fn on_death(&mut self, awake_ms: u64) {
        self.post_mortem.on_death(awake_ms);
    }

    /// After a death: finds the rank that was the first to call a different collective, by the last calls of all
    /// ranks. It is returned once. Its verdict becomes a fact, and the other deaths become secondary
    /// failures.
    pub fn post_mortem(
        &mut self,
        model: &Model,
        awake_ms: u64,
        limits: &TimeLimits,
    ) -> Option<(Rank, String)> {
        self.post_mortem.is_open(awake_ms).then_some(())?;
        let mut run = self.run_after_exit(model, limits);
        run.views.iter_mut().for_each(|view| view.died = true);
        let mismatch = stages::first_mismatch(&run)?;
        let rank = mismatch.rank?;
        let verdict = evidence::verdict(&run, &Finding::Mismatch { mismatch, waited_ms: 0 });
        self.post_mortem = PostMortem::Found;
        self.verdicts.deaths_follow_from(rank);
        let text = verdict.reason.clone();
        let death = self.verdicts.first_death();
        self.verdicts.add_fact(Some(rank), verdict, death);
        Some((rank, text))
    }
}

/// Sets how sure a verdict is, by how long it has lasted and how long its culprit has been silent.
fn apply_policy(run: &RunView<'_>, verdict: &mut VerdictReport, limits: &TimeLimits) {
    let lasted_ms = (verdict.latency_s * 1000.0) as u64;
    let sample = verdict.rank.and_then(|rank| run.model.ranks.get(rank.index())?.sample.as_ref());
    let silent_ms = sample.and_then(movement::silence).unwrap_or(lasted_ms);
    let bounds = ConfidenceBounds { budget_ms: limits.rank0, silent_ms, silence_ms: limits.silence };
    let policy = verdict.reason_code.row().policy;
    verdict.proof = policy.proof(verdict.proof, lasted_ms, bounds);
    verdict.confidence = match verdict.proof {
        Some(_) => Confidence::Certain,
        None => verdict.confidence.min(Confidence::Likely),
    };
}

#[cfg(test)]
#[allow(clippy::wildcard_enum_match_arm)]
mod tests;
