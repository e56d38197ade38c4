//! Verdicts: which rank or host is in trouble, with evidence. Pure.
//!
//! Owner: `update`. Two sources: facts (a death, differing weights) that records bring, and conditions that
//! are looked at again at each tick.
//!
//! Map: `track` remembers ranks between samples, `pace` learns what is usual, `rank_view` is one rank now;
//! `waits` follows the frontier of every group to the guilty ranks, `disagree` finds the rank that left the
//! common order, `replicas` compares the weights of scripts, `cause` finds the reason, `obstacle` names what
//! it is blocked on, `shortage` tells ranks that get no core, and `weigh` decides what is said; `hosts`,
//! `network` and `slow` look at silent hosts, connections and stragglers, `quota` at CPU quotas; `devices` at
//! interfaces and GPUs; `looks` asks agents about suspects; `evidence` and `facts` put it into words, `draft`
//! is all of a verdict but its card, and `card_builder` makes that; `incidents` keeps what holds and what was
//! told, and `post_mortem` compares last words.
//!
//! Invariants:
//! - One incident per root: a death, a frozen process or a silent host explains the waits of the
//!   others.
//! - WATCH-2: only ages measured on one host's own clock decide; ages of different hosts are never
//!   subtracted.
//! - A verdict is told when it appears or changes its severity or reason, once more when a close
//!   look at its rank has come, and once more, `cleared`, when it is gone.
//! - WATCH-3: detection never acts. The policy is applied by `update`, to red verdicts on living ranks that
//!   are certain, as the row of their reason says. Certain is what the kernel or other ranks prove; silence
//!   alone is `likely` for ever, unless `watch.silence_is_stuck_s` says otherwise.
//! - Red needs two samples a second apart without any progress, except for hard facts and differing
//!   calls.
#![deny(clippy::wildcard_enum_match_arm)]

mod card_builder;
mod cause;
mod devices;
mod disagree;
mod draft;
mod evidence;
mod facts;
mod gauges;
mod hosts;
mod incidents;
mod learning;
mod looks;
mod movement;
mod network;
mod obstacle;
mod pace;
mod post_mortem;
mod program;
mod quota;
mod rank_view;
mod replicas;
mod shortage;
mod slow;
mod stages;
mod standstill;
pub(crate) mod track;
mod waits;
mod weigh;

pub(crate) use card_builder::seen;
pub(crate) use facts::{Death, dead, drift, totals_differ};
pub(crate) use incidents::{Change, Occurrence};
pub(crate) use looks::LookRequest;

use crate::limits::Limits;
use crate::model::{HostModel, Model, RankLife, RankModel};
use crate::pace_history::PaceHistory;
use crate::reason::{Bounds, Reason};
use crate::report::{Severity, VerdictKind, VerdictReport};
use devices::Devices;
use evidence::Snapshot;
use hosts::Beats;
use incidents::{Incidents, Key};
use looks::Looks;
use pace::Pace;
use post_mortem::PostMortem;
use rank_view::{HostView, RankView};
use rankdeck_proto::inspection::Inspection;
use rankdeck_proto::message::HostSample;
use rankdeck_types::ids::{NodeRank, Rank};
use replicas::Replicas;
use serde::{Deserialize, Serialize};
use slow::Straggler;
use standstill::Standstill;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use track::Track;

/// Milliseconds for which a process must be seen stopped, or a link down.
const FROZEN_MS: u64 = 1_000;
/// Milliseconds without a message after which a host's samples are too old to compare.
const FRESH_MS: u64 = 3_000;
/// Milliseconds for which a straggler is shown after it was last seen to be one.
const SLOW_HOLD_MS: u64 = 10_000;

/// All verdicts of a generation.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Watch {
    /// What is usual; kept over generations, so that a restart begins with what was learnt.
    pace: Pace,
    looks: Looks,
    incidents: Incidents,
    devices: Devices,
    beats: Beats,
    slow: Option<(Straggler, u64)>,
    standstill: Standstill,
    post_mortem: PostMortem,
    replicas: Replicas,
}

impl Watch {
    /// A new generation: what was told is cleared by the next [`Watch::changes`].
    pub fn reset(&mut self) {
        self.looks = Looks::default();
        self.incidents.reset();
        (self.devices, self.beats) = (Devices::default(), Beats::default());
        (self.slow, self.post_mortem) = (None, PostMortem::NobodyDied);
        (self.replicas, self.standstill) = (Replicas::default(), Standstill::default());
    }

    /// Takes a host's gauges of the present generation.
    pub fn observe(&mut self, model: &mut Model, node: NodeRank, sample: &HostSample) {
        for rank in &sample.ranks {
            let known = model.ranks.get_mut(rank.rank.index()).filter(|known| known.node == node);
            let Some(track) = known.map(|known| &mut known.track) else { continue };
            track.observe(sample, rank, &mut self.pace);
            if track.still_ms() == 0 {
                self.looks.moved(rank.rank);
            }
        }
        self.beats.heard(node, sample.mono_ms);
        self.devices.observe(node, sample);
    }

    /// What is usual in this run, as far as it was learnt.
    pub fn learnt(&self) -> PaceHistory {
        self.pace.history()
    }

    /// Takes over what an earlier console learnt about this run.
    pub fn recall(&mut self, history: &PaceHistory) {
        self.pace.recall(history);
    }

    /// A fact that stays until it is taken back.
    pub fn fact(&mut self, rank: Option<Rank>, verdict: VerdictReport, happened: Occurrence) {
        self.incidents.fact(rank, verdict, Some(happened));
    }

    /// Looks at whether the run learns.
    pub fn learning(&mut self, model: &Model) {
        let verdict = learning::look(model);
        // The words of one that stands may change with every value; what was told at first stays.
        if self.incidents.reason(VerdictKind::Learning) != verdict.as_ref().map(|now| now.reason_code) {
            self.take_back(VerdictKind::Learning);
            if let Some(verdict) = verdict {
                self.incidents.fact(verdict.rank, verdict, None);
            }
        }
    }

    /// Takes a kind of fact back.
    pub fn take_back(&mut self, kind: VerdictKind) {
        self.incidents.take_back(kind);
    }

    /// The living rank that a red verdict blames. A rank that fails because of a wait is its victim.
    pub fn root(&self) -> Option<Rank> {
        self.incidents.root()
    }

    /// What changed since the last call, in the order to tell it: worst news first, cleared ones last.
    pub fn changes(&mut self) -> Vec<Change> {
        self.incidents.changes()
    }

    /// Present verdicts, worst first.
    pub fn present(&self) -> Vec<VerdictReport> {
        self.incidents.present()
    }

    /// A close look came back.
    pub fn looked(&mut self, inspection: Inspection) {
        self.looks.answered(inspection);
    }

    fn views<'a>(&'a self, model: &'a Model, fresh: &[bool], limits: &Limits) -> Vec<RankView<'a>> {
        let mut on_gpus: BTreeMap<(NodeRank, u32), usize> = BTreeMap::new();
        for rank in &model.ranks {
            rank.gpu.into_iter().for_each(|gpu| *on_gpus.entry((rank.node, gpu)).or_default() += 1);
        }
        let mut usual = self.pace.thresholds(limits);
        let view = |rank: &'a RankModel| {
            let track = &rank.track;
            let (left, died) = match &rank.life {
                RankLife::Exited(exit) if exit.is_success() => (true, false),
                RankLife::Exited(_) => (false, true),
                RankLife::Pending => return None,
                RankLife::Spawned | RankLife::Joined | RankLife::Finished => (false, false),
            };
            let sample = rank.sample.as_ref()?;
            let host = model.hosts.get(rank.node.index()).and_then(|host| host.sample.as_ref());
            let gone = left || died;
            let look = self.looks.latest(rank.rank);
            let began_ms = look.map(|look| look.began_ms).filter(|at| *at > 0);
            let view = RankView {
                rank: rank.rank,
                node: rank.node,
                sample,
                fresh: !gone && fresh.get(rank.node.index()).copied().unwrap_or(false),
                left,
                died,
                still_ms: track.still_ms(),
                halted_ms: track.stopped_ms().into_iter().chain(track.frozen_ms()).max(),
                blocked_ms: track.blocked_ms(),
                idle_ms: track.idle_ms(),
                longest_pause_ms: track.longest_pause_ms(),
                ended_before: track.ended_before(),
                usual_helpers: track.usual_helpers(),
                usual_io: track.usual_io(),
                track,
                movement: OnceCell::new(),
                threshold: usual.of(rank_view::silence_kind(sample)),
                groups: rank_view::groups(sample),
                host: host.map_or(HostView::default(), |host| HostView {
                    flaps: self.devices.flaps(rank.node, host.mono_ms),
                    ..HostView::of(host)
                }),
                gpu: host.and_then(|host| host.gpus.iter().find(|gpu| Some(gpu.index) == rank.gpu)),
                gpu_is_shared: rank.gpu.is_some_and(|gpu| on_gpus.get(&(rank.node, gpu)) > Some(&1)),
                look,
                look_age_ms: began_ms.map_or(0, |at| track.mono_ms.saturating_sub(at)),
                function_before: self.looks.function_before(rank.rank),
                storage_before: self.looks.storage_before(rank.rank),
                latest: look,
                sockets_before: self.looks.before(rank.rank),
            };
            Some(view.or_earlier(self.looks.waiting(rank.rank)))
        };
        model.ranks.iter().filter_map(view).collect()
    }

    /// Looks at all conditions, and says which ranks to look at closely.
    pub fn evaluate(&mut self, model: &Model, awake_ms: u64, limits: &Limits) -> Vec<LookRequest> {
        let fresh: Vec<bool> = model.hosts.iter().map(|host| is_fresh(host, awake_ms, limits)).collect();
        let living = living(model);
        self.replicas.compare(&living);
        model.hosts.iter().for_each(|host| self.beats.look(host));
        self.weights(model);
        let mut standstill = std::mem::take(&mut self.standstill);
        let views = self.views(model, &fresh, limits);
        let snapshot = Snapshot { model, views: &views };
        let detections = self
            .silent_hosts(&snapshot, awake_ms, limits)
            .chain(self.devices.dead_links(&snapshot))
            .chain(halted(&snapshot))
            .chain(self.devices.broken_gpus(&snapshot))
            .chain(waits(&snapshot, limits))
            .chain(shifted(&snapshot, &living))
            .chain(weigh::alone(&snapshot, &living, model.ranks.len()).map(Detection::of))
            .chain(stages::look(&snapshot, model, &fresh, limits));
        let mut found: BTreeMap<Key, VerdictReport> = BTreeMap::new();
        let mut suspects: Vec<Rank> = Vec::new();
        for detection in detections {
            suspects.extend(detection.suspects);
            if let Some(verdict) = detection.verdict {
                found.insert((verdict.verdict, verdict.rank, detection.node), verdict);
            }
        }
        if found.is_empty() {
            let detection = standstill.look(&snapshot, awake_ms, limits).unwrap_or_default();
            suspects.extend(detection.suspects);
            found.extend(detection.verdict.map(|verdict| ((verdict.verdict, verdict.rank, None), verdict)));
        } else {
            standstill.interrupt();
        }
        let slow = slow::look(&living, &views).map(|slow| (slow, awake_ms)).or_else(|| self.slow.clone());
        let slow = slow.filter(|(_, seen)| awake_ms.saturating_sub(*seen) < SLOW_HOLD_MS);
        if let Some((slow, _)) = &slow
            && !found.values().any(|verdict| verdict.severity == Severity::Red)
        {
            let verdict = snapshot.straggler(slow);
            // Of a rank that is late right now, that is told.
            found.entry((verdict.verdict, verdict.rank, None)).or_insert(verdict);
        }
        let wanted = answering(&snapshot, &suspects);
        let old: Vec<Rank> =
            views.iter().filter(|view| cause::wants_look(view, limits)).map(|view| view.rank).collect();
        for verdict in found.values_mut() {
            let lasted_ms = (verdict.latency_s * 1000.0) as u64;
            let silent_ms = verdict.card.guilty.as_ref().and_then(|side| side.silent_ms).unwrap_or(lasted_ms);
            let bounds = Bounds { budget_ms: limits.rank0, silent_ms, silence_ms: limits.silence };
            let policy = verdict.reason_code.row().policy;
            verdict.confidence = policy.confidence(verdict.confidence, lasted_ms, bounds);
        }
        self.slow = slow;
        self.standstill = standstill;
        self.incidents.hold(found, awake_ms);
        old.iter().for_each(|rank| self.looks.again(*rank));
        self.looks.ask(&wanted, awake_ms)
    }

    /// Weights of scripts that differ or are no numbers: facts, as for the built-in trainer.
    fn weights(&mut self, model: &Model) {
        let odd = |ranks: &[Rank]| if let [rank] = ranks { Some(*rank) } else { None };
        if let Some(found) = self.replicas.not_finite().cloned() {
            self.incidents.only_fact(odd(&found.ranks), facts::not_finite(model, &found));
        } else if let Some(drift) = self.replicas.drift() {
            self.incidents.only_fact(drift.odd().first().copied(), facts::replicas_differ(model, &drift));
        }
    }

    /// Hosts that say nothing.
    fn silent_hosts(
        &self,
        snapshot: &Snapshot<'_>,
        awake_ms: u64,
        limits: &Limits,
    ) -> impl Iterator<Item = Detection> {
        snapshot.model.hosts.iter().filter_map(move |host| {
            // The other ranks moved lately, and long after this host was heard last.
            let silence = awake_ms.saturating_sub(host.machine.heard);
            let moves = |view: &RankView<'_>| {
                view.node != host.node_rank
                    && view.fresh
                    && view.still_ms < limits.behind
                    && silence >= view.still_ms.saturating_add(hosts::ALIVE_MS)
                    && !view.groups.is_empty()
            };
            let others = silence >= hosts::ALIVE_MS && snapshot.views.iter().any(moves);
            let verdict = hosts::lost(snapshot, host, awake_ms, limits, others, &self.beats)?;
            Some(Detection { node: Some(host.node_rank), ..Detection::of(verdict) })
        })
    }
}

/// What a detector has found.
#[derive(Debug, Default)]
struct Detection {
    /// The host that the verdict is about, where it is about one.
    node: Option<NodeRank>,
    verdict: Option<VerdictReport>,
    /// Ranks that are worth a close look, in order of weight.
    suspects: Vec<Rank>,
}

impl Detection {
    fn of(verdict: VerdictReport) -> Detection {
        Detection { verdict: Some(verdict), ..Detection::default() }
    }
}

/// Ranks whose processes run and have been heard of.
fn living(model: &Model) -> Vec<(Rank, &Track)> {
    let lives = |rank: &&RankModel| {
        !matches!(rank.life, RankLife::Exited(_) | RankLife::Pending) && rank.track.mono_ms > 0
    };
    model.ranks.iter().filter(lives).map(|rank| (rank.rank, &rank.track)).collect()
}

/// The host was heard of lately.
fn is_fresh(host: &HostModel, awake_ms: u64, limits: &Limits) -> bool {
    host.is_live() && awake_ms.saturating_sub(host.machine.heard) < FRESH_MS.min(limits.lost.max(1))
}

/// Processes that are stopped, held or frozen.
fn halted(snapshot: &Snapshot<'_>) -> impl Iterator<Item = Detection> {
    snapshot.answering().filter_map(|view| {
        let ms = view.halted_ms.filter(|ms| *ms >= FROZEN_MS)?;
        let rank = snapshot.model.ranks.get(view.rank.index())?;
        let reason = match view.sample.state {
            't' => Reason::Debugger,
            'T' => Reason::Stopped,
            _ => Reason::CgroupFrozen,
        };
        let verdict = snapshot.halted(rank, reason, ms);
        Some(Detection { suspects: vec![view.rank], ..Detection::of(verdict) })
    })
}

/// Who holds up whom.
fn waits(snapshot: &Snapshot<'_>, limits: &Limits) -> impl Iterator<Item = Detection> {
    // A death explains every wait that follows from it.
    let dead = snapshot.views.iter().any(|view| view.died);
    waits::look(snapshot.views).into_iter().map(move |finding| Detection {
        node: None,
        verdict: weigh::waiting(snapshot, &finding, limits, dead),
        suspects: weigh::suspicious(snapshot, &finding),
    })
}

/// Ranks whose iterations begin at another number of collectives than the others'.
fn shifted(snapshot: &Snapshot<'_>, living: &[(Rank, &Track)]) -> impl Iterator<Item = Detection> {
    let what = disagree::iterations(living).or_else(|| disagree::missed_steps(snapshot.views, living));
    what.into_iter().map(|what| Detection {
        suspects: vec![what.odd.first().copied().unwrap_or_default(), what.other],
        ..Detection::of(snapshot.disagree(&what, 0))
    })
}

/// Those of the suspects that can be looked at, once each.
fn answering(snapshot: &Snapshot<'_>, suspects: &[Rank]) -> Vec<(NodeRank, Rank)> {
    let mut wanted: Vec<(NodeRank, Rank)> = Vec::new();
    for rank in suspects {
        let view = snapshot.view(*rank).filter(|view| view.fresh && view.alive());
        if let Some(view) = view.filter(|view| !wanted.contains(&(view.node, view.rank))) {
            wanted.push((view.node, view.rank));
        }
    }
    wanted
}

#[cfg(test)]
#[allow(clippy::wildcard_enum_match_arm)]
mod tests;
