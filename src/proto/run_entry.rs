//! Runs that a host knows, as `agent list` tells them.

use crate::message::{Counters, Ending, Evaluation, FinishReason, Survivor};
use rankdeck_types::exit::Exit;
use rankdeck_types::ids::{Generation, NodeRank, Rank, RunId, WallTime};
use serde::{Deserialize, Serialize};

/// One node of one run, as `rankdeck ps` shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunEntry {
    /// The run's name.
    pub run: RunId,
    /// Index of this host in the run.
    pub node_rank: NodeRank,
    /// Its name in hosts.toml.
    pub host: String,
    /// What it is in.
    pub state: RunState,
    /// The latest generation that this host has seen.
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
    /// What its records say.
    #[serde(default)]
    pub digest: NodeDigest,
}

/// What the records of one node say of its run as a whole. Counters, evaluations and checkpoints are those of
/// all generations, and stand in the digest of rank 0's host; the rest is about the latest generation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeDigest {
    /// Seconds that generations have lasted here, without the present one.
    pub seconds: f64,
    /// When the present generation began; `None` when it is over.
    pub since: Option<WallTime>,
    /// When the latest generation ended here.
    pub ended: Option<WallTime>,
    /// The goal in environment steps, 0 without one.
    pub total_steps: u64,
    /// `run.note`.
    pub note: String,
    /// The command line of the ranks.
    pub program: String,
    /// That is the built-in trainer.
    pub builtin: bool,
    /// GPUs of all hosts.
    pub gpus: u32,
    /// Checkpoint that it began from.
    pub resumed_from: Option<String>,
    /// How its console called the end.
    pub ending: Option<Ending>,
    /// Why the loop of rank 0 ended.
    pub finish: Option<FinishReason>,
    /// Who ordered a stop.
    pub stop: Option<String>,
    /// Ranks of this host that ended.
    pub exits: u32,
    /// Those that a stop ended by SIGKILL.
    pub killed: u32,
    /// Those that ended while they were being stopped, in a way that no stop causes.
    pub bad_exits: u32,
    /// A rank named a mistake in the configuration.
    pub usage: bool,
    /// The first failure on this host.
    pub failure: Option<RankFailure>,
    /// The agent found nothing left.
    pub proved: bool,
    /// Latest totals.
    pub totals: Option<Counters>,
    /// Sum of this host's ranks' own counters, where no rank sends totals.
    pub counted: Option<Counters>,
    /// Latest mean return of training episodes.
    pub last_return: Option<f64>,
    /// The evaluation with the highest mean return.
    pub best: Option<Evaluation>,
    pub evals: u64,
    /// The latest checkpoint.
    pub checkpoint: Option<SavedCheckpoint>,
    /// Environment steps that a program of the user told without the event socket.
    pub own_step: Option<u64>,
}

/// A checkpoint on rank 0's host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedCheckpoint {
    /// Path there.
    pub path: String,
    /// Global environment steps.
    pub env_step: u64,
    pub train_iter: u64,
    /// Why it was written.
    pub reason: String,
}

/// A rank that failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankFailure {
    /// The rank that failed.
    pub rank: Rank,
    /// When, by its host's clock.
    pub time: WallTime,
    /// How its process ended, once it has.
    pub exit: Option<Exit>,
    /// What it said, else the last line of its log.
    pub text: String,
    /// It named a mistake in the configuration.
    pub usage: bool,
}

/// What a host tells of one run, as `agent traces` answers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Traces {
    /// A node of the run has its folder here. Without one, no survivor does not mean that none is left: the
    /// folder, or the machine, may be another one than that of the launch.
    pub known: bool,
    /// What lives of the run on this host, wherever its folder is.
    pub alive: Vec<Survivor>,
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
