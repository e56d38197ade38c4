//! Interfaces and GPUs of hosts: which are down, come and go, or are broken. Pure.

use super::evidence::Snapshot;
use super::{Detection, FROZEN_MS, network};
use crate::reason::Reason;
use rankdeck_proto::message::HostSample;
use rankdeck_types::ids::NodeRank;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Milliseconds for which an interface that came or went is remembered.
const FLAP_MS: u64 = 60_000;

/// What is remembered of the devices of all hosts.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Devices {
    /// Since when a host's interface has been seen down (its agent's clock), and that clock.
    links: BTreeMap<NodeRank, (u64, u64)>,
    /// How often each host's interface has come or gone, and when that was last seen to change (its agent's
    /// clock).
    carriers: BTreeMap<NodeRank, (u64, Option<u64>)>,
    /// Errors of GPUs that are old news.
    xids: BTreeMap<(NodeRank, u32), Vec<u64>>,
}

impl Devices {
    /// Takes a host's gauges.
    pub fn observe(&mut self, node: NodeRank, sample: &HostSample) {
        if let Some(link) = &sample.signals.link {
            let known = self.carriers.entry(node).or_insert((link.carrier_changes, None));
            if known.0 != link.carrier_changes {
                *known = (link.carrier_changes, Some(sample.mono_ms));
            }
        }
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

    /// The interface of a host has come or gone lately.
    pub fn flaps(&self, node: NodeRank, mono_ms: u64) -> bool {
        let changed = self.carriers.get(&node).and_then(|(_, changed)| *changed);
        changed.is_some_and(|at| mono_ms.saturating_sub(at) < FLAP_MS)
    }

    /// Network interfaces of the group that are down.
    pub fn dead_links(&self, snapshot: &Snapshot<'_>) -> impl Iterator<Item = Detection> {
        self.links.iter().filter_map(|(node, (since, latest))| {
            let held = latest.saturating_sub(*since);
            let sample = snapshot.model.hosts.get(node.index())?.sample.as_ref()?;
            let link = sample.signals.link.as_ref().filter(|_| held >= FROZEN_MS)?;
            let verdict = snapshot.network(network::link(snapshot.model, *node, &link.name, held));
            Some(Detection { node: Some(*node), ..Detection::of(verdict) })
        })
    }

    /// GPUs that are gone, or report an error that is new.
    pub fn broken_gpus(&self, snapshot: &Snapshot<'_>) -> impl Iterator<Item = Detection> {
        snapshot.answering().filter_map(|view| {
            let gpu = view.gpu?;
            let known = self.xids.get(&(view.node, gpu.index));
            let new = !gpu.xids.is_empty() && known.is_some_and(|known| *known != gpu.xids);
            let rank = snapshot.model.ranks.get(view.rank.index()).filter(|_| gpu.lost || new)?;
            let reason = if gpu.lost { Reason::GpuLost } else { Reason::GpuFault };
            Some(Detection::of(snapshot.gpu(rank, gpu, reason)))
        })
    }
}
