//! What agents say, with as little as will do.

use super::{NAMES, RUN};
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
