//! Runs on a host, as listed by `agent list`.
//!
//! Snapshots that a host streams for the fleet page: a sample of the host, users of its GPUs, its runs. The
//! host needs no run for that.

use crate::lineage::Lineage;
use crate::message::{
    CheckpointOrigin, Counters, Evaluation, FinishReason, HostSample, RunEnd, RunResults, Survivor,
};
use crate::process::GpuUser;
use crate::progress_bar::ShownProgress;
use rankdeck_types::error::HintedError;
use rankdeck_types::exit::Exit;
use rankdeck_types::ids::{Generation, NodeRank, Rank, RunId, WallTime};
use rankdeck_types::words;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The runs of a host, as replied by `agent list`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunList {
    pub runs: Vec<RunEntry>,
    /// Omitted entries, with reasons: those of other users, and directories that cannot be read.
    pub left_out: Vec<String>,
    /// The directory of all runs cannot be read: what runs is unknown.
    pub unreadable: Option<HintedError>,
    /// Runs of this user on this machine that have processes, in other working directories.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<RunElsewhere>,
}

/// A live run in another working directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunElsewhere {
    pub run: RunId,
    /// Directory of the run.
    pub run_dir: String,
}

/// One host of one run, as displayed by `rankdeck ps`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunEntry {
    /// The run's name.
    pub run: RunId,
    /// Index of this host in the run.
    pub node_rank: NodeRank,
    /// Its name in hosts.toml.
    pub host: String,
    /// State of the run on this host.
    pub state: HostRunState,
    /// Latest generation on this host.
    pub generation: Generation,
    /// Ranks of the whole run.
    pub world_size: u32,
    /// Live ranks of this host.
    pub ranks_alive: u32,
    /// Processes of the run on this host.
    pub pids: Vec<u32>,
    /// Socket of the agent; empty without an agent.
    pub socket: String,
    /// Start of the run on this host, seconds since the epoch.
    pub started: WallTime,
    /// Name of the experiment.
    pub name: String,
    /// Directory of the run.
    pub run_dir: String,
    /// Number of hosts of the run.
    pub nnodes: u32,
    /// Their names in node_rank order.
    pub hosts: Vec<String>,
    /// Process id of the agent; 0 without an agent.
    #[serde(default)]
    pub agent_pid: u32,
    /// Summary of its records.
    #[serde(default)]
    pub digest: NodeDigest,
}

/// Summary of a run from the records of one host. Counters, evaluations and checkpoints are those of the
/// present line of training, in the digest of rank 0's host; the other fields are about the latest generation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeDigest {
    /// Total duration of earlier generations on this host, seconds.
    pub seconds: f64,
    /// Start of the current generation; `None` if it has ended.
    pub since: Option<WallTime>,
    /// End of the latest generation on this host.
    pub ended: Option<WallTime>,
    /// Target environment steps; 0 without a target.
    pub total_steps: u64,
    /// `run.note`.
    pub note: String,
    /// The command line of the ranks.
    pub program: String,
    /// The pack that the ranks run in, by its hash.
    pub code: Option<String>,
    /// Whether it is the built-in trainer.
    pub builtin: bool,
    /// Whether it is a program that does not declare that it resumes from a checkpoint.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub may_not_resume: bool,
    /// GPUs of all hosts.
    pub gpus: u32,
    /// Checkpoint that it resumed from.
    pub resumed_from: Option<String>,
    /// Its end, as assessed by its console.
    pub ending: Option<RunEnd>,
    /// Reason why rank 0's training loop ended.
    pub finish: Option<FinishReason>,
    /// Source of the order to stop.
    pub stop: Option<String>,
    /// Ranks of this host that exited.
    pub exits: u32,
    /// Ranks that a stop killed with SIGKILL.
    pub killed: u32,
    /// Ranks that exited during a stop in a way that no stop causes.
    pub bad_exits: u32,
    /// A rank reported an error in the configuration.
    pub usage: bool,
    /// The first failure on this host.
    pub failure: Option<RankFailure>,
    /// Ranks of the latest generation without which the others continue, in rising order.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub lost: BTreeSet<Rank>,
    /// The stop is verified: the agent found no leftover process.
    pub proved: bool,
    /// Longest wait of the run's policy before another generation, milliseconds; `None`: it makes none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_wait_ms: Option<u64>,
    /// Where generations began, as far as this host knows.
    pub lineage: Lineage,
    /// The generation of the counters, the return and the speed below.
    pub reported: Generation,
    /// Latest totals.
    pub totals: Option<Counters>,
    /// Sum of the counters of this host's ranks, if no rank sends totals.
    pub counted: Option<Counters>,
    /// Environment steps per second of late.
    pub steps_per_s: Option<f64>,
    /// Latest mean return of training episodes.
    pub last_return: Option<f64>,
    /// The evaluation with the highest mean return.
    pub best: Option<Evaluation>,
    pub evals: u64,
    /// The latest checkpoint.
    pub checkpoint: Option<SavedCheckpoint>,
    /// Environment steps of a user's program that does not use the event socket.
    pub own_step: Option<u64>,
    /// How far such a program is, as it shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<NodeProgress>,
    /// What ranks of this host have written where they work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub results: Option<RunResults>,
}

/// Progress that a program shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeProgress {
    pub shown: ShownProgress,
    /// When it was recorded.
    pub time: WallTime,
}

/// A checkpoint of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SavedCheckpoint {
    /// Path on the host that saved it.
    pub path: String,
    /// Global environment steps; 0: unknown.
    pub env_step: u64,
    pub train_iter: u64,
    /// Reason of the checkpoint.
    pub reason: String,
    /// How it is known.
    #[serde(default, skip_serializing_if = "CheckpointOrigin::is_reported")]
    pub origin: CheckpointOrigin,
    /// Size, of all files in it; `None`: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

impl SavedCheckpoint {
    /// Reason of one that was found.
    pub const FOUND: &str = "found";

    /// Returns what a list adds to the path of one that no rank has reported: ` (found, 141K)`.
    pub fn remark(&self) -> String {
        let size = self.bytes.map(|bytes| format!(", {}", words::bytes(bytes)));
        match self.origin {
            CheckpointOrigin::Reported => String::new(),
            CheckpointOrigin::Found => format!(" (found{})", size.unwrap_or_default()),
        }
    }

    /// Returns its steps, if known.
    pub fn step(&self) -> Option<u64> {
        Some(self.env_step).filter(|step| *step > 0 || self.origin.is_reported())
    }
}

/// A rank that failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankFailure {
    /// The rank that failed.
    pub rank: Rank,
    /// Time by its host's clock.
    pub time: WallTime,
    /// Exit of its process; `None` while it runs.
    pub exit: Option<Exit>,
    /// Its message, else the last line of its log; empty if a signal from outside ended it.
    pub text: String,
    /// It reported an error in the configuration.
    pub usage: bool,
}

/// Traces of one run on a host, as printed by `agent traces`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunTraces {
    /// Whether the run has a directory on this host. Without one, an empty [`RunTraces::alive`] does not
    /// prove that no process is left: the directory or the machine may differ from those of the launch.
    pub known: bool,
    /// Live processes of the run on this host, wherever its directory is.
    pub alive: Vec<Survivor>,
}

/// State of a run on one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostRunState {
    /// Its agent is alive, and its generation has not ended.
    Running,
    /// None of its processes runs.
    Finished,
    /// It has leftover processes without an agent.
    Orphaned,
}

/// Marker before each [`HostSnapshot`]; the reply of the command follows at its end.
pub const SNAPSHOT_MARKER: &str = "rankdeck-fleet";
/// Largest cost of the command, as a share of one core, for samples and for lists of runs each.
pub const SNAPSHOT_SHARE: f64 = 0.005;

/// State of a host at one time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostSnapshot {
    /// Sample of the host and its GPUs, without ranks.
    pub sample: HostSample,
    /// GPUs or MIG instances that are visible to this user's programs, as a plan counts them.
    pub given: Vec<GivenGpu>,
    /// Processes on its GPUs.
    pub users: Vec<GpuUser>,
    /// Runs; `None`: unchanged since they were last sent.
    pub runs: Option<RunList>,
    /// CPU time of the command so far, milliseconds.
    pub cost_ms: u64,
    /// Milliseconds until the next sample.
    pub next_ms: u64,
}

/// A GPU that a rank could use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GivenGpu {
    /// Bytes in use.
    pub memory_used: u64,
    /// Bytes in all; 0 if unknown.
    pub memory_total: u64,
    /// Compute processes on it.
    pub processes: u32,
    /// The driver does not show it.
    pub lost: bool,
}
