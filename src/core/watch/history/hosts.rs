//! Hosts between samples: heartbeats of their agents, lost links, how busy they are, and their network
//! interfaces and GPUs.

use crate::model::{HostModel, Model};
use rankdeck_proto::message::{GpuSample, HostSample};
use rankdeck_types::ids::NodeRank;
use rankdeck_types::link_state::LinkState;
use rankdeck_types::words::clip;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Milliseconds between two samples from which the second is late (agents send one per second at least), and
/// how long that is remembered.
const LATE_MS: u64 = 1_750;
const LATE_HOLD_MS: u64 = 30_000;

/// Most characters of why a link was lost.
const REASON_CHARS: usize = 200;

/// The gauges of a host that explain its ranks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HostView {
    /// Busy share of all cores, percent.
    pub cpu_percent: f32,
    /// Pressure, percent: CPU some, memory full.
    pub pressure: Option<(f32, f32)>,
    /// Its interface went up or down recently.
    pub flaps: bool,
    /// Runnable tasks per core.
    pub crowd: f64,
}

impl HostView {
    /// Takes them from a sample.
    pub fn new(sample: &HostSample) -> HostView {
        let pressure = sample.signals.pressure.map(|pressure| (pressure.cpu, pressure.memory_full));
        let crowd = f64::from(sample.load1) / f64::from(sample.cpu_count.max(1));
        HostView { cpu_percent: sample.cpu_percent, pressure, flaps: false, crowd }
    }

    /// Its cores are oversubscribed: a rank there may be late through no fault of its own.
    pub fn is_busy(&self) -> bool {
        self.cpu_percent >= 95.0 || self.pressure.is_some_and(|(cpu, _)| cpu >= 60.0)
    }
}

/// Why the link to a host is down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkLoss {
    /// No data came over it.
    Silence,
    /// It failed with this error.
    Error(String),
    Unknown,
}

/// When each host's agent sampled, and which links are down.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct HostHeartbeats {
    /// The agent's clock at its latest sample, and at the latest sample that was late.
    hosts: BTreeMap<NodeRank, (u64, Option<u64>)>,
    /// Hosts whose link is up while their agent is silent, and when the agent was last seen.
    silent: BTreeMap<NodeRank, u64>,
    /// Why the latest link to a host was lost, until another one is up.
    lost: BTreeMap<NodeRank, String>,
}

impl HostHeartbeats {
    /// Takes a sample, made at `mono_ms` of its host's clock.
    pub fn record_heartbeat(&mut self, node: NodeRank, mono_ms: u64) {
        let (before, late) = self.hosts.entry(node).or_insert((mono_ms, None));
        if mono_ms.saturating_sub(*before) >= LATE_MS {
            *late = Some(mono_ms);
        }
        *before = mono_ms;
    }

    /// Takes the state of a link. While a link that was closed for its silence is reopened, nothing shows yet
    /// that the network is down.
    pub fn record_link(&mut self, host: &HostModel) {
        if host.machine.is_connected() {
            self.lost.remove(&host.node_rank);
        } else if let LinkState::Lost { reason, .. } = &host.link {
            let own = format!("{}: ", host.name);
            let reason = clip(reason.strip_prefix(&own).unwrap_or(reason), REASON_CHARS);
            self.lost.insert(host.node_rank, reason);
        }
        if host.machine.is_connected() || host.link.fell_silent() {
            self.silent.insert(host.node_rank, host.machine.last_message_awake_ms);
        } else if matches!(host.link, LinkState::Lost { .. } | LinkState::Failed(_) | LinkState::Closed) {
            self.silent.remove(&host.node_rank);
        }
    }

    /// Returns why the link to a host is down.
    pub fn link_loss(&self, host: &HostModel) -> LinkLoss {
        match self.lost.get(&host.node_rank) {
            _ if self.is_unbroken(host) => LinkLoss::Silence,
            Some(reason) => LinkLoss::Error(reason.clone()),
            None => LinkLoss::Unknown,
        }
    }

    /// Nothing shows that the network to it is down.
    fn is_unbroken(&self, host: &HostModel) -> bool {
        self.silent.get(&host.node_rank) == Some(&host.machine.last_message_awake_ms)
    }

    /// Its cores were oversubscribed, and its agent was late or its link is still up: the agent may be silent
    /// for lack of a core.
    pub fn is_starved(&self, host: &HostModel) -> bool {
        let busy = host.sample.as_ref().is_some_and(|sample| HostView::new(sample).is_busy());
        let answers = self.is_unbroken(host);
        let late = self.hosts.get(&host.node_rank).is_some_and(|(latest, late)| {
            late.is_some_and(|late| latest.saturating_sub(late) < LATE_HOLD_MS)
        });
        busy && (late || answers)
    }
}

/// Milliseconds for which a flap of an interface is remembered.
const FLAP_MS: u64 = 60_000;

/// The devices of all hosts.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct DeviceHealth {
    /// Since when a host's interface has been seen down, and the latest sample, by its agent's clock.
    links: BTreeMap<NodeRank, (u64, u64)>,
    /// How often each host's interface went up or down, and when that was last seen to change, by its agent's
    /// clock.
    carriers: BTreeMap<NodeRank, (u64, Option<u64>)>,
    /// Errors of GPUs from before the run.
    xids: BTreeMap<(NodeRank, u32), Vec<u64>>,
}

impl DeviceHealth {
    /// Takes a host's sample.
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

    /// The interface of a host went up or down recently.
    pub fn flaps(&self, node: NodeRank, mono_ms: u64) -> bool {
        let changed = self.carriers.get(&node).and_then(|(_, changed)| *changed);
        changed.is_some_and(|at| mono_ms.saturating_sub(at) < FLAP_MS)
    }

    /// Network interfaces of the process group that are down: their hosts, names, and for how long, ms.
    pub fn down_links<'a>(&'a self, model: &'a Model) -> impl Iterator<Item = (NodeRank, &'a str, u64)> {
        self.links.iter().filter_map(|(node, (since, latest))| {
            let sample = model.hosts.get(node.index())?.sample.as_ref()?;
            let link = sample.signals.link.as_ref()?;
            Some((*node, link.name.as_str(), latest.saturating_sub(*since)))
        })
    }

    /// The GPU reports an error that it did not report before the run.
    pub fn has_new_error(&self, node: NodeRank, gpu: &GpuSample) -> bool {
        let known = self.xids.get(&(node, gpu.index));
        !gpu.xids.is_empty() && known.is_some_and(|known| *known != gpu.xids)
    }
}
