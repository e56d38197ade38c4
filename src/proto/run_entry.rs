//! Runs that a host knows, as `agent list` tells them.

use rankdeck_types::ids::{Generation, NodeRank, RunId, WallTime};
use serde::{Deserialize, Serialize};

/// One node of one run, as `rankdeck ps` shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunEntry {
    /// The run.
    pub run: RunId,
    /// Index of this host in the run.
    pub node_rank: NodeRank,
    /// Its name in hosts.toml.
    pub host: String,
    /// What it is in.
    pub state: RunState,
    /// Latest generation.
    pub generation: Generation,
    /// Ranks of the whole run.
    pub world_size: u32,
    /// Ranks of this host that live.
    pub ranks_alive: u32,
    /// Processes of the run on this host.
    pub pids: Vec<u32>,
    /// Socket of the agent; empty when there is none.
    pub socket: String,
    /// When the run began here, seconds since the epoch.
    pub started: WallTime,
    /// Name of the experiment.
    pub name: String,
    /// Folder of the run.
    pub run_dir: String,
    /// Hosts of the run.
    pub nnodes: u32,
    /// Their names in node_rank order.
    pub hosts: Vec<String>,
    /// The agent's process, 0 when there is none.
    #[serde(default)]
    pub agent_pid: u32,
}

/// State of a run on one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// Its agent lives and a generation is not over.
    Running,
    /// Nothing of it runs.
    Finished,
    /// Its agent is dead, but processes of it are left.
    Orphaned,
}
