//! Ranks that a script's rank has started itself (`torch.multiprocessing.spawn`, a launcher of its own): each process
//! group of them is watched as a run of its own, whose verdicts name the rank that has started the culprit.
//!
//! Two ranks of the plan may start parts of one group: ranks belong together if they join a group of the same size at
//! the same address. Invariants:
//! - INNER-1: a group is assessed while all of its ranks have a page: before that, some of them still prepare.
//! - INNER-2: its verdicts prove nothing, so that no policy acts on them: rankdeck has not started these ranks.
//! - At most [`GROUPS`] groups of at most [`RANKS`] ranks are watched.

use super::Detector;
use crate::card::{Advice, Card, ranges};
use crate::limits::TimeLimits;
use crate::model::{HostModel, Model, RankLife, RankModel};
use crate::reason::Confidence;
use crate::report::VerdictReport;
use crate::watch::history::inspections::InspectRequest;
use rankdeck_proto::inspection::{InnerTarget, Inspection};
use rankdeck_proto::message::{HostSample, InnerRankSample};
use rankdeck_types::ids::{LocalRank, NodeRank, Rank};
use rankdeck_types::plan::PlannedRank;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most groups, and ranks of each.
const GROUPS: usize = 16;
const RANKS: u32 = 64;

/// All groups, by what their ranks have in common.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct InnerRuns {
    groups: BTreeMap<String, InnerRun>,
}

/// One group.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct InnerRun {
    /// Its ranks; hosts only during an assessment.
    model: Model,
    /// The ranks that have started them, by their number.
    outer: BTreeMap<Rank, Rank>,
    watch: Box<Detector>,
}

impl InnerRuns {
    /// Takes the sample of a host of `model`.
    pub fn observe(&mut self, model: &Model, node: NodeRank, sample: &HostSample) {
        let is_here = |inner: &&InnerRankSample| {
            model.ranks.get(inner.outer.index()).is_some_and(|outer| outer.node == node)
        };
        let mut found: BTreeMap<String, Vec<&InnerRankSample>> = BTreeMap::new();
        for inner in sample.inner.iter().filter(is_here) {
            if let Some(name) = group_name(node, inner) {
                found.entry(name).or_default().push(inner);
            }
        }
        let none = Vec::new();
        for (name, group) in &mut self.groups {
            group.forget(node, found.get(name).unwrap_or(&none));
        }
        self.groups.retain(|_, group| !group.outer.is_empty());
        for (name, ranks) in found {
            if self.groups.len() < GROUPS || self.groups.contains_key(&name) {
                self.groups.entry(name).or_default().observe(model, node, sample, &ranks);
            }
        }
    }

    /// Takes the inspection of one of their processes.
    pub fn on_inspection(&mut self, pid: u32, inspection: Inspection) {
        for group in self.groups.values_mut() {
            let is_it = |rank: &&RankModel| {
                rank.pid == Some(pid) && group.outer.get(&rank.rank) == Some(&inspection.rank)
            };
            if let Some(rank) = group.model.ranks.iter().find(is_it).map(|rank| rank.rank) {
                return group.watch.on_inspection(Inspection { rank, inner_pid: None, ..inspection });
            }
        }
    }

    /// Assesses all groups; returns their verdicts, as those of `outer`, and the inspections to request.
    pub fn evaluate(
        &mut self,
        outer: &Model,
        awake_ms: u64,
        limits: &TimeLimits,
    ) -> (Vec<VerdictReport>, Vec<InspectRequest>) {
        let (mut verdicts, mut requests) = (Vec::new(), Vec::new());
        for group in self.groups.values_mut().filter(|group| group.is_whole()) {
            let (found, asked) = group.evaluate(outer, awake_ms, limits);
            verdicts.extend(found);
            requests.extend(asked);
        }
        (verdicts, requests)
    }
}

/// What the ranks of a group have in common: its size and its address. That of a local address is of one host.
fn group_name(node: NodeRank, inner: &InnerRankSample) -> Option<String> {
    let given = inner.sample.page.as_ref()?.group_arguments.as_ref()?;
    let size = given.world_size.filter(|size| (2..=RANKS).contains(size))?;
    let address = given.address.as_str();
    let is_local =
        address == "localhost" || address.starts_with("127.") || address.starts_with('/') || address == "::1";
    let of = match address {
        "" => format!(" of rank {}", inner.outer),
        _ if is_local => format!(" of host {}", node.index()),
        _ => String::new(),
    };
    (inner.sample.rank.0 < size)
        .then(|| format!("{size} at {address}:{}{of}", given.port.unwrap_or_default()))
}

/// A rank of which nothing is known yet.
fn pending(rank: Rank, node_rank: NodeRank, host: &str) -> RankModel {
    RankModel::pending(&PlannedRank { rank, local_rank: LocalRank(rank.0), node_rank, gpu: None }, host)
}

impl InnerRun {
    /// INNER-1
    fn is_whole(&self) -> bool {
        self.model.ranks.iter().all(|rank| rank.sample.is_some())
    }

    /// Ranks of a host that are not among `there` have ended.
    fn forget(&mut self, node: NodeRank, there: &[&InnerRankSample]) {
        let is_there = |rank: Rank| there.iter().any(|inner| inner.sample.rank == rank);
        for known in self.model.ranks.iter_mut().filter(|rank| rank.node == node && !is_there(rank.rank)) {
            self.outer.remove(&known.rank);
            *known = pending(known.rank, node, &known.host);
        }
    }

    fn observe(&mut self, outer: &Model, node: NodeRank, sample: &HostSample, ranks: &[&InnerRankSample]) {
        let given = ranks.iter().find_map(|inner| inner.sample.page.as_ref()?.group_arguments.as_ref());
        let size = given.and_then(|given| given.world_size).unwrap_or_default();
        for number in self.model.ranks.len() as u32..size {
            self.model.ranks.push(pending(Rank(number), node, ""));
        }
        for InnerRankSample { outer: starter, sample } in ranks.iter().copied() {
            let Some(known) = self.model.ranks.get_mut(sample.rank.index()) else { continue };
            if known.pid != Some(sample.pid) || known.node != node {
                let host = outer.ranks.get(starter.index()).map(|rank| rank.host.clone()).unwrap_or_default();
                let pid = sample.pid;
                let host = format!("{host} (of {size} inside rank {starter}'s process, pid {pid})");
                *known =
                    RankModel { pid: Some(pid), life: RankLife::Joined, ..pending(sample.rank, node, &host) };
            }
            known.sample = Some(sample.clone());
            self.outer.insert(sample.rank, *starter);
        }
        let own = HostSample {
            mono_ms: sample.mono_ms,
            wall_time: sample.wall_time,
            generation: sample.generation,
            ranks: ranks.iter().map(|inner| inner.sample.clone()).collect(),
            gpus: sample.gpus.clone(),
            ..HostSample::default()
        };
        self.watch.observe(&mut self.model, node, &own);
    }

    fn evaluate(
        &mut self,
        outer: &Model,
        awake_ms: u64,
        limits: &TimeLimits,
    ) -> (Vec<VerdictReport>, Vec<InspectRequest>) {
        self.model.hosts = outer.hosts.to_vec();
        self.model.run.id.clone_from(&outer.run.id);
        let requests = self.watch.evaluate(&self.model, awake_ms, limits);
        self.watch.changes();
        let verdicts = self.watch.current().into_iter().map(|verdict| self.outward(outer, verdict)).collect();
        self.model.hosts = Vec::<HostModel>::new();
        let target = |rank: Rank| {
            let pid = self.model.ranks.get(rank.index())?.pid?;
            Some(InnerTarget { outer: *self.outer.get(&rank)?, number: rank.0, pid })
        };
        let of_outer = |request: InspectRequest| InspectRequest {
            inner: request.ranks.iter().filter_map(|rank| target(*rank)).collect(),
            ranks: Vec::new(),
            ..request
        };
        (verdicts, requests.into_iter().map(of_outer).collect())
    }

    /// A verdict as one about the rank that has started the culprit (INNER-2).
    fn outward(&self, model: &Model, verdict: VerdictReport) -> VerdictReport {
        let starter = |rank: Rank| self.outer.get(&rank).copied();
        let only = || {
            let first = self.outer.values().next().copied();
            first.filter(|first| self.outer.values().all(|outer| outer == first))
        };
        let rank = verdict.rank.map_or_else(only, starter);
        let host = rank.and_then(|rank| model.ranks.get(rank.index())).map(|rank| rank.host.clone());
        let own = verdict.rank.map(|rank| format!(" --rank {rank}"));
        let named = |advice: Advice| {
            let command = own.as_ref().and_then(|own| advice.command.strip_suffix(own.as_str()));
            let command = command.zip(rank).map(|(command, rank)| format!("{command} --rank {rank}"));
            Advice { command: command.unwrap_or(advice.command), ..advice }
        };
        let card = *verdict.card;
        let others = card.others.iter().map(|group| match group.ranks.as_slice() {
            [] => group.text.clone(),
            ranks => format!("ranks {} of that group: {}", ranges(ranks), group.text),
        });
        let observations = card.observations.iter().cloned().chain(others).collect();
        VerdictReport {
            rank,
            host,
            proof: None,
            confidence: verdict.confidence.min(Confidence::Likely),
            card: Box::new(Card {
                observations,
                others: Vec::new(),
                actions: card.actions.into_iter().map(named).collect(),
                ..card
            }),
            ..verdict
        }
    }
}
