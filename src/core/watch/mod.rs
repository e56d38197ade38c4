//! Verdicts: which rank or host is in trouble, with evidence. Pure.
//!
//! Owner: `update`. Two sources: facts (a death, differing weights) that records bring, and conditions that
//! are looked at again at each tick.
//!
//! Map: `track` remembers ranks between samples, `pace` learns what is usual, `rank_view` is one rank now;
//! `waits` follows the frontier of every group to the guilty ranks, `disagree` finds the rank that left the
//! common order, `cause` finds the reason and `weigh` decides what is said; `hosts`, `network` and `slow`
//! look at silent hosts, connections and stragglers; `looks` asks agents about suspects; `evidence` and
//! `facts` put it into words, `draft` makes the verdict of it, and `card_builder` its card.
//!
//! Invariants:
//! - One incident per root: a death, a frozen process or a silent host explains the waits of the
//!   others.
//! - WATCH-2: only ages measured on one host's own clock decide; ages of different hosts are never
//!   subtracted.
//! - A verdict is told when it appears or changes its severity or reason, once more when a close
//!   look at its rank has come, and once more, `cleared`, when it is gone.
//! - Detection never acts; the policy is applied by `update`, and never to a silent host.
//! - Red needs two samples a second apart without any progress, except for hard facts and differing
//!   calls.
#![deny(clippy::wildcard_enum_match_arm)]

mod card_builder;
mod cause;
mod disagree;
mod draft;
mod evidence;
mod facts;
mod gauges;
mod hosts;
mod looks;
mod network;
mod pace;
mod rank_view;
mod slow;
mod stages;
mod track;
mod waits;
mod weigh;

pub(crate) use facts::{dead, drift, is_victim, totals_differ};
pub(crate) use looks::LookRequest;
pub use track::Track;

use crate::model::{HostModel, Model, RankLife, RankModel};
use crate::pace_history::PaceHistory;
use crate::reason::Reason;
use crate::report::{Confidence, Severity, VerdictKind, VerdictReport};
use crate::session::Limits;
use evidence::{Late, Snapshot};
use hosts::Beats;
use looks::Looks;
use pace::Pace;
use rank_view::{HostView, RankView};
use rankdeck_proto::inspection::Inspection;
use rankdeck_proto::message::HostSample;
use rankdeck_types::ids::{NodeRank, Rank};
use slow::Straggler;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Milliseconds for which a process must be seen stopped, or a link down.
const FROZEN_MS: u64 = 1_000;
/// Milliseconds without a message after which a host's samples are too old to compare.
const FRESH_MS: u64 = 3_000;
/// Milliseconds for which a straggler is shown after it was last seen to be one.
const SLOW_HOLD_MS: u64 = 10_000;
/// Milliseconds after a death in which the last words of all ranks are compared.
const POST_MORTEM_MS: u64 = 5_000;

/// What a verdict is about: its identity while its text changes.
pub(crate) type Key = (VerdictKind, Option<Rank>, Option<NodeRank>);

/// What happened to a verdict.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Change {
    /// The verdict, with [`Severity::Cleared`] when it is gone.
    pub verdict: VerdictReport,
    /// It comes from a condition on a living rank and is new, so that the policy applies.
    pub living: bool,
}

/// What of a verdict has been told.
#[derive(Debug, Clone, PartialEq)]
struct Told {
    verdict: VerdictReport,
    condition: bool,
}

/// All verdicts of a generation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watch {
    /// What is usual; kept over generations, so that a restart begins with what was learnt.
    pace: Pace,
    looks: Looks,
    facts: BTreeMap<Key, VerdictReport>,
    conditions: BTreeMap<Key, VerdictReport>,
    told: BTreeMap<Key, Told>,
    /// Since when a host's interface has been seen down (its agent's clock), and that clock.
    links: BTreeMap<NodeRank, (u64, u64)>,
    beats: Beats,
    /// Errors of GPUs that are old news.
    xids: BTreeMap<(NodeRank, u32), Vec<u64>>,
    slow: Option<(Straggler, u64)>,
    post_mortem: PostMortem,
}

/// What is done about the last words of all ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum PostMortem {
    /// Nobody has died.
    #[default]
    NobodyDied,
    /// They are compared until this time on the awake clock.
    Open(u64),
    /// This rank had left the common order: deaths follow from that.
    Found(Rank),
}

impl Watch {
    /// A new generation: what was told is cleared by the next [`Watch::changes`].
    pub fn reset(&mut self) {
        self.looks = Looks::default();
        self.facts.clear();
        self.conditions.clear();
        self.links.clear();
        self.beats = Beats::default();
        self.xids.clear();
        (self.slow, self.post_mortem) = (None, PostMortem::NobodyDied);
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
        match sample.signals.link.as_ref().filter(|link| !link.up) {
            Some(_) => {
                self.links.entry(node).or_insert((sample.mono_ms, sample.mono_ms)).1 = sample.mono_ms;
            }
            None => {
                self.links.remove(&node);
            }
        }
        for gpu in &sample.gpus {
            self.xids.entry((node, gpu.index)).or_insert_with(|| gpu.xids.clone());
        }
    }

    /// What is usual in this run, as far as it was learnt.
    pub fn learnt(&self) -> PaceHistory {
        self.pace.history()
    }

    /// Takes over what an earlier console learnt about this run.
    pub fn recall(&mut self, history: &PaceHistory) {
        self.pace.recall(history);
    }

    /// A close look came back.
    pub fn looked(&mut self, inspection: Inspection) {
        self.looks.answered(inspection);
    }

    /// A fact that stays until it is taken back.
    pub fn fact(&mut self, rank: Option<Rank>, mut verdict: VerdictReport) {
        if let PostMortem::Found(root) = self.post_mortem {
            follow(&mut verdict, rank, root);
        }
        self.facts.insert((verdict.verdict, rank, None), verdict);
    }

    /// Takes a kind of fact back.
    pub fn take_back(&mut self, kind: VerdictKind) {
        self.facts.retain(|key, _| key.0 != kind);
    }

    /// The living rank that a red verdict blames. A rank that fails because of a wait is its victim.
    pub fn root(&self) -> Option<Rank> {
        let red = |told: &&Told| told.condition && told.verdict.severity == Severity::Red;
        self.told.values().filter(red).find_map(|told| told.verdict.rank)
    }

    /// The rank that left with exit code 0 and took `victim`'s connection with it: the root of the victim's
    /// death. Its verdict becomes a fact. The counters tell which rank it was. Without counters, it is one of
    /// a few ranks that ended well, if the other ranks are at least as many.
    pub fn left_early(&mut self, model: &Model, victim: Rank, limits: &Limits) -> Option<(Rank, String)> {
        let (rank, verdict) = {
            let views = self.views(model, &[], limits);
            let waits = views
                .iter()
                .find(|view| view.rank == victim)
                .and_then(|victim| victim.groups.iter().find(|group| group.inside));
            let counted = waits.and_then(|waits| {
                let behind = |view: &&RankView| {
                    view.left && view.group(waits.name).is_some_and(|group| group.entered < waits.entered)
                };
                Some((views.iter().find(behind)?.rank, waits.name, waits.entered, waits.age_ms))
            });
            let (rank, group, seq, waited_ms) = counted.or_else(|| Some((leaver(model)?, "", 0, 0)))?;
            let judged = draft::Judgement {
                severity: Severity::Red,
                confidence: if counted.is_some() { Confidence::Certain } else { Confidence::Likely },
                reason: Reason::LeftEarly,
            };
            let waiters = [victim];
            let late = Late { rank, also: &[], waiters: &waiters, group, seq, waited_ms, ahead: false };
            (rank, Snapshot { model, views: &views }.behind(&late, judged))
        };
        let text = verdict.reason.clone();
        self.fact(Some(rank), verdict);
        Some((rank, text))
    }

    /// A rank died: for a while, the last words of all ranks are compared.
    pub fn died(&mut self, awake_ms: u64) {
        if self.post_mortem == PostMortem::NobodyDied {
            self.post_mortem = PostMortem::Open(awake_ms.saturating_add(POST_MORTEM_MS));
        }
    }

    /// After a death: the rank that left the common order, if the last words of all ranks tell. The rank is
    /// returned once. Its verdict becomes a fact, and the other dead ranks become its victims.
    pub fn last_words(&mut self, model: &Model, awake_ms: u64, limits: &Limits) -> Option<(Rank, String)> {
        matches!(self.post_mortem, PostMortem::Open(until) if awake_ms <= until).then_some(())?;
        let mut views = self.views(model, &[], limits);
        views.iter_mut().for_each(|view| view.died = true);
        let members: Vec<&RankView> = views.iter().collect();
        let mut names: Vec<&str> =
            views.iter().flat_map(|view| &view.groups).map(|group| group.name).collect();
        names.sort_unstable();
        names.dedup();
        let what = names.into_iter().find_map(|name| {
            let of: Vec<&RankView> =
                members.iter().copied().filter(|view| view.group(name).is_some()).collect();
            disagree::calls(&of, name)
        })?;
        let snapshot = Snapshot { model, views: &views };
        let verdict = snapshot.disagree(&what, 0);
        let rank = what.rank?;
        self.post_mortem = PostMortem::Found(rank);
        self.facts.iter_mut().for_each(|(key, fact)| follow(fact, key.1, rank));
        let text = verdict.reason.clone();
        self.fact(Some(rank), verdict);
        Some((rank, text))
    }

    fn views<'a>(&'a self, model: &'a Model, fresh: &[bool], limits: &Limits) -> Vec<RankView<'a>> {
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
            Some(RankView {
                rank: rank.rank,
                node: rank.node,
                sample,
                fresh: !gone && fresh.get(rank.node.index()).copied().unwrap_or(false),
                left,
                died,
                still_ms: track.still_ms(),
                halted_ms: track.stopped_ms().into_iter().chain(track.frozen_ms()).max(),
                blocked_ms: track.blocked_ms(),
                moved: track.moved(),
                threshold: self.pace.threshold(rank_view::silence_kind(sample), limits),
                groups: rank_view::groups(sample),
                host: host.map_or(HostView::default(), HostView::of),
                gpu: host.and_then(|host| host.gpus.iter().find(|gpu| Some(gpu.index) == rank.gpu)),
                look: self.looks.latest(rank.rank),
                function_before: self.looks.function_before(rank.rank),
                sockets_before: self.looks.before(rank.rank),
            })
        };
        model.ranks.iter().filter_map(view).collect()
    }

    /// Looks at all conditions, and says which ranks to look at closely.
    pub fn evaluate(&mut self, model: &Model, awake_ms: u64, limits: &Limits) -> Vec<LookRequest> {
        let fresh: Vec<bool> = model.hosts.iter().map(|host| is_fresh(host, awake_ms, limits)).collect();
        let living = living(model);
        let views = self.views(model, &fresh, limits);
        let snapshot = Snapshot { model, views: &views };
        let detections = self
            .silent_hosts(&snapshot, awake_ms, limits)
            .chain(self.dead_links(&snapshot))
            .chain(halted(&snapshot))
            .chain(self.broken_gpus(&snapshot))
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
        let slow = slow::look(&living, &views).map(|slow| (slow, awake_ms)).or_else(|| self.slow.clone());
        let slow = slow.filter(|(_, seen)| awake_ms.saturating_sub(*seen) < SLOW_HOLD_MS);
        if let Some((slow, _)) = &slow
            && !found.values().any(|verdict| verdict.severity == Severity::Red)
        {
            let verdict = snapshot.straggler(slow);
            found.insert((verdict.verdict, verdict.rank, None), verdict);
        }
        let wanted = answering(&snapshot, &suspects);
        self.slow = slow;
        self.conditions = found;
        self.looks.ask(&wanted, awake_ms)
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
            let others = snapshot.views.iter().any(|view| {
                view.node != host.node_rank
                    && view.fresh
                    && view.still_ms < limits.behind
                    && silence >= view.still_ms.saturating_add(hosts::ALIVE_MS)
                    && !view.groups.is_empty()
            });
            let starved = self.beats.is_starved(host);
            let verdict = hosts::lost(snapshot.model, host, awake_ms, limits, others, starved)?;
            Some(Detection { node: Some(host.node_rank), ..Detection::of(verdict) })
        })
    }

    /// Network interfaces of the group that are down.
    fn dead_links(&self, snapshot: &Snapshot<'_>) -> impl Iterator<Item = Detection> {
        self.links.iter().filter_map(|(node, (since, latest))| {
            let held = latest.saturating_sub(*since);
            let sample = snapshot.model.hosts.get(node.index())?.sample.as_ref()?;
            let link = sample.signals.link.as_ref().filter(|_| held >= FROZEN_MS)?;
            let verdict = snapshot.network(network::link(snapshot.model, *node, &link.name, held));
            Some(Detection { node: Some(*node), ..Detection::of(verdict) })
        })
    }

    /// GPUs that are gone, or report an error that is new.
    fn broken_gpus(&self, snapshot: &Snapshot<'_>) -> impl Iterator<Item = Detection> {
        snapshot.answering().filter_map(|view| {
            let gpu = view.gpu?;
            let known = self.xids.get(&(view.node, gpu.index));
            let new = !gpu.xids.is_empty() && known.is_some_and(|known| *known != gpu.xids);
            let rank = snapshot.model.ranks.get(view.rank.index()).filter(|_| gpu.lost || new)?;
            let reason = if gpu.lost { Reason::GpuLost } else { Reason::GpuFault };
            Some(Detection::of(snapshot.gpu(rank, gpu, reason)))
        })
    }

    /// What changed since the last call, in the order to tell it: worst news first, cleared ones last.
    pub fn changes(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut present: BTreeMap<Key, Told> = self
            .facts
            .iter()
            .map(|(key, verdict)| (*key, Told { verdict: verdict.clone(), condition: false }))
            .chain(
                self.conditions
                    .iter()
                    .map(|(key, verdict)| (*key, Told { verdict: verdict.clone(), condition: true })),
            )
            .collect();
        for (key, now) in &mut present {
            let known = self.told.get(key).map(|told| &told.verdict);
            let severity = known.map(|known| known.severity);
            let verdict = &mut now.verdict;
            let before = known.filter(|known| known.severity == verdict.severity);
            verdict.first_s = before.map_or(verdict.latency_s, |known| known.first_s);
            let verdict = &now.verdict;
            if severity != Some(verdict.severity) {
                let living = now.condition && verdict.verdict != VerdictKind::Lost;
                changes.push(Change { verdict: verdict.clone(), living });
            } else if known.is_some_and(|known| {
                known.reason_code != verdict.reason_code || (is_seen(verdict) && !is_seen(known))
            }) {
                changes.push(Change { verdict: verdict.clone(), living: false });
            }
        }
        changes.sort_by_key(|change| Reverse(change.verdict.severity));
        for (key, told) in &self.told {
            if !present.contains_key(key) {
                let verdict = VerdictReport { severity: Severity::Cleared, ..told.verdict.clone() };
                changes.push(Change { verdict, living: false });
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
    disagree::iterations(living).into_iter().map(|what| Detection {
        suspects: vec![what.odd.first().copied().unwrap_or_default(), what.other],
        ..Detection::of(snapshot.disagree(&what, 0))
    })
}

/// Those of the suspects that can be looked at, once each.
fn answering(snapshot: &Snapshot<'_>, suspects: &[Rank]) -> Vec<(NodeRank, Rank)> {
    let mut wanted: Vec<(NodeRank, Rank)> = Vec::new();
    for rank in suspects {
        let view = snapshot.answering().find(|view| view.rank == *rank);
        if let Some(view) = view.filter(|view| !wanted.contains(&(view.node, view.rank))) {
            wanted.push((view.node, view.rank));
        }
    }
    wanted
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

/// The rank that ended with exit code 0 with the fewest collectives, when at least as many ranks did not end
/// so.
fn leaver(model: &Model) -> Option<Rank> {
    let left = |rank: &&RankModel| matches!(&rank.life, RankLife::Exited(exit) if exit.is_success());
    let left: Vec<&RankModel> = model.ranks.iter().filter(left).collect();
    let entered = |rank: &&&RankModel| {
        let page = rank.sample.as_ref().and_then(|sample| sample.page.as_ref());
        page.map_or(0, |page| page.collective.entered)
    };
    let first = left.iter().min_by_key(entered)?.rank;
    (left.len() * 2 <= model.ranks.len()).then_some(first)
}

/// Its card shows what a close look brought.
fn is_seen(verdict: &VerdictReport) -> bool {
    verdict
        .card
        .guilty
        .as_ref()
        .is_some_and(|side| !side.stack.is_empty() || !side.at.is_empty() || !side.blocked_on.is_empty())
}

#[cfg(test)]
#[allow(clippy::wildcard_enum_match_arm)]
mod tests;
