//! What agents say, with as little as will do.

use super::{Cluster, NAMES, RUN};
use rankdeck_proto::message::{AgentMessage, Exit, PROTOCOL};
use rankdeck_types::ids::{NodeRank, RunId};

/// The greeting of an agent whose clock shows this.
pub(crate) fn hello(node: usize, wall_time: f64) -> AgentMessage {
    AgentMessage::Hello {
        protocol: PROTOCOL,
        build: "test".into(),
        host: NAMES[node].into(),
        node_rank: NodeRank(node as u32),
        run: RunId(RUN.into()),
        pid: 77,
        wall_time,
        run_dir: format!("/w/runs/{RUN}"),
    }
}

pub(crate) fn killed() -> Exit {
    Exit::Signal { signal: 9, out_of_memory: false }
}

impl Cluster {
    /// What an agent's clock shows now, seconds since the epoch.
    pub fn wall_time(&self, node: usize) -> f64 {
        1_000.0 + self.now.0 as f64 / 1000.0 + self.agents[node].wall_skew_s
    }

    /// What an agent's monotonic clock shows now.
    pub fn mono_ms(&self, node: usize) -> u64 {
        5_000_000 * (node as u64 + 1) + self.now.0 + self.agents[node].skew_ms
    }
}
