//! What is known about one host.

use crate::host::{HostMachine, HostStage};
use rankdeck_proto::message::{HostSample, Survivor};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{NodeRank, Timestamp};
use rankdeck_types::link_state::{LinkState, Prompt};
use rankdeck_types::probe::Probe;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// What is known about one host.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct HostModel {
    /// Index in [`Model::hosts`].
    pub node_rank: NodeRank,
    /// Name in hosts.toml.
    pub name: String,
    /// State of the connection to its agent.
    pub link: LinkState,
    /// When the link last changed.
    pub link_since: Timestamp,
    /// What the link found.
    pub probe: Option<Probe>,
    /// The agent's pid and build, after `hello`.
    pub agent: Option<(u32, String)>,
    /// Wall clock of the agent minus ours, seconds.
    pub clock_offset_s: f64,
    /// [`HostModel::clock_offset_s`] is right within this, seconds: half the round trip that it was measured
    /// with.
    pub clock_bound_s: f64,
    /// When it was measured.
    pub clock_at: Timestamp,
    /// Why it has no ranks in this generation; `None` when it has some.
    pub excluded: Option<String>,
    /// Number of the last record applied.
    pub last_seq: u64,
    /// Its latest gauges.
    pub sample: Option<HostSample>,
    /// Use of its GPUs over time, percent, by index, newest last, bounded.
    #[serde(default)]
    pub gpu_history: BTreeMap<u32, VecDeque<f32>>,
    /// When anything last came from the agent.
    pub heard: Option<Timestamp>,
    /// Question for the user, while the link waits for the answer.
    pub prompt: Option<Prompt>,
    /// Processes of the run that are left: `None` until the agent has verified the stop of its latest
    /// generation.
    pub stopped: Option<Vec<Survivor>>,
    /// GPUs that are free again, from the same record.
    pub gpus_free: Vec<u32>,
    /// Folder of the run on this host, after `hello`.
    pub run_dir: String,
    /// Milliseconds to the agent and back, at the latest heartbeat.
    pub rtt_ms: Option<u64>,
    /// Names of variables of a console that the next ranks here would have without one; `None` until the
    /// agent has told.
    #[serde(default)]
    pub holds: Option<Vec<String>>,
    /// State of the connection, for the reducer.
    pub machine: HostMachine,
}

impl HostModel {
    /// Orders reach the host.
    pub(crate) fn is_live(&self) -> bool {
        self.machine.is_live()
    }

    /// Nothing of the run is left on the host, whatever generation ran there last: its agent said so.
    pub(crate) fn is_clear(&self) -> bool {
        let replays = self.is_live() && !self.caught_up() && self.machine.knows_nothing();
        self.machine.is_over() && !replays && self.stopped.as_ref().is_none_or(Vec::is_empty)
    }

    /// Why its link cannot work.
    pub(crate) fn link_error(&self) -> Option<String> {
        let closed = (self.link == LinkState::Closed).then(|| format!("{}: closed", self.name));
        closed.or_else(|| self.link.failure().map(HintedError::with_hint))
    }

    /// The host is live, and everything that had happened before is applied.
    pub(crate) fn caught_up(&self) -> bool {
        matches!(self.machine.stage, HostStage::Live { target } if self.last_seq >= target)
    }

    /// A host of which nothing is known but its place and name.
    pub fn new(node_rank: NodeRank, name: impl Into<String>) -> HostModel {
        HostModel { node_rank, name: name.into(), ..HostModel::default() }
    }
}
