//! `configs/*.toml`: one experiment.
//!
//! Owner: the user. Sizes that are per rank begin with `local_`; all others are global. Unknown keys are errors.
//! The resolved form (defaults filled in, `--set` applied) is written to the run directory and read by the trainer.

pub use super::learn::{A2c, Dqn, Learn, Ppg, Ppo, Sac};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Environments that are computed in Rust.
pub const BUILTIN_ENVS: [&str; 6] =
    ["CartPole-v0", "CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0"];

/// A whole experiment file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// `[run]`.
    pub run: Run,
    /// `[launch]`.
    #[serde(default)]
    pub launch: Launch,
    /// `[distributed]`.
    #[serde(default)]
    pub distributed: Distributed,
    /// `[env]`; required for the built-in trainer.
    pub env: Option<Env>,
    /// `[policy]`.
    #[serde(default)]
    pub policy: Policy,
    /// `[collect]`.
    #[serde(default)]
    pub collect: Collect,
    /// `[learn]`; required for the built-in trainer.
    pub learn: Option<Learn>,
    /// `[eval]`.
    #[serde(default)]
    pub eval: Eval,
    /// `[checkpoint]`.
    #[serde(default)]
    pub checkpoint: Checkpoint,
    /// `[watch]`.
    #[serde(default)]
    pub watch: Watch,
    /// `[restart]`.
    #[serde(default)]
    pub restart: Restart,
    /// `[metrics]`.
    #[serde(default)]
    pub metrics: Metrics,
}

/// `[run]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Name of the run; the run directory is `runs/NAME-TIMESTAMP`. Letters, digits, `-`, `_`, `.`.
    pub name: String,
    /// Base seed; rank and environment streams are derived from it without overlap.
    #[serde(default)]
    pub seed: u64,
    /// Global environment steps after which the run ends; 0: no limit.
    #[serde(default)]
    pub total_steps: u64,
}

/// `[launch]`: what each rank runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Launch {
    /// A torchrun-style program; empty: the built-in trainer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Folder of code that is copied to every host, and that ranks run in; relative to the experiment file. A console replaces it by
    /// `sha256:HASH` before it launches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Patterns of files below `code` that stay behind.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Environment of the ranks; `hosts.toml` wins.
    pub env: BTreeMap<String, String>,
    /// Threads per rank (`OMP_NUM_THREADS`), 1 as torchrun sets it.
    pub threads: u32,
    /// What happens when the console is gone.
    pub on_disconnect: OnDisconnect,
    /// Seconds without a console after which `on_disconnect = "stop"` stops the run.
    pub lease_s: f64,
    /// Seconds between the polite and the hard signal.
    pub stop_grace_s: f64,
    /// Address of rank 0's store as the other hosts reach it; absent: the first host's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master_addr: Option<String>,
    /// Port of rank 0's store; 0: a free one is chosen on the first host.
    pub master_port: u16,
}

impl Default for Launch {
    fn default() -> Launch {
        Launch {
            command: Vec::new(),
            code: None,
            exclude: Vec::new(),
            env: BTreeMap::new(),
            threads: 1,
            on_disconnect: OnDisconnect::Keep,
            lease_s: 30.0,
            stop_grace_s: 10.0,
            master_addr: None,
            master_port: 0,
        }
    }
}

/// What happens to a run when its console is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDisconnect {
    /// Training goes on and any console can adopt it.
    #[default]
    Keep,
    /// The agents stop it after `lease_s`.
    Stop,
}

/// `[distributed]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Distributed {
    /// Which library carries the collectives.
    pub backend: Backend,
    /// Seconds after which a collective, or the rendezvous, gives up.
    pub timeout_s: f64,
    /// MiB per gradient bucket.
    pub bucket_mb: f64,
    /// Updates between comparisons of the ranks' weight fingerprints; 0: never.
    pub fingerprint_every: u64,
    /// Devices of each rank that a batch of `dqn` is split over, from the rank's own on.
    pub data_parallel: u32,
}

impl Default for Distributed {
    fn default() -> Distributed {
        Distributed {
            backend: Backend::Auto,
            timeout_s: 600.0,
            bucket_mb: 25.0,
            fingerprint_every: 1,
            data_parallel: 1,
        }
    }
}

/// Which library carries the collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// NCCL where every rank has a GPU, else Gloo.
    #[default]
    Auto,
    /// NCCL, for CUDA tensors.
    Nccl,
    /// Gloo, for CPU tensors.
    Gloo,
}

/// `[env]`. Absent options of Atari games take the values of [`Env::atari`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Env {
    /// Environment id, such as `CartPole-v1`.
    pub id: String,
    /// Environments over all ranks; must be divisible by the world size.
    pub num_envs: u32,
    /// Where environments are computed.
    #[serde(default)]
    pub worker: EnvWorker,
    /// Interpreter of the Python worker: a path, or a name that is looked up in `PATH`.
    #[serde(default = "default_python")]
    pub python: String,
    /// Threads of each rank's Atari emulators; absent: `OMP_NUM_THREADS`, else 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_threads: Option<u32>,
    /// Seconds after which a Python worker that does not answer is given up.
    #[serde(default = "default_worker_timeout_s")]
    pub worker_timeout_s: f64,
    /// Steps after which an episode is cut off, instead of the environment's own limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_episode_steps: Option<u32>,
    /// Atari: see [`Atari::frame_skip`](super::atari::Atari::frame_skip).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frame_skip: Option<u32>,
    /// Atari: see [`Atari::repeat_action_probability`](super::atari::Atari::repeat_action_probability).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeat_action_probability: Option<f64>,
    /// Atari: see [`Atari::noop_max`](super::atari::Atari::noop_max).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noop_max: Option<u32>,
    /// Atari: see [`Atari::episodic_life`](super::atari::Atari::episodic_life).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub episodic_life: Option<bool>,
    /// Atari: see [`Atari::clip_rewards`](super::atari::Atari::clip_rewards).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_rewards: Option<bool>,
    /// Atari: see [`Atari::frame_stack`](super::atari::Atari::frame_stack).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frame_stack: Option<u32>,
    /// Atari: see [`Atari::image_size`](super::atari::Atari::image_size).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_size: Option<u32>,
}

impl Env {
    /// `num_envs` environments `id`, everything else as it is by default.
    pub fn new(id: impl Into<String>, num_envs: u32) -> Env {
        Env {
            id: id.into(),
            num_envs,
            worker: EnvWorker::Auto,
            python: default_python(),
            worker_threads: None,
            worker_timeout_s: default_worker_timeout_s(),
            max_episode_steps: None,
            frame_skip: None,
            repeat_action_probability: None,
            noop_max: None,
            episodic_life: None,
            clip_rewards: None,
            frame_stack: None,
            image_size: None,
        }
    }
}

fn default_python() -> String {
    "python3".into()
}

fn default_worker_timeout_s() -> f64 {
    60.0
}

/// Where environments are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EnvWorker {
    /// In Rust where the id is known there, else in Python.
    #[default]
    Auto,
    /// In this process.
    Rust,
    /// In a Python process beside each rank.
    Python,
}

/// `[policy]`: the networks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Kind of network.
    pub network: Network,
    /// Widths of the hidden layers; for images those after the convolutions.
    pub hidden: Vec<u32>,
    /// Channels of the three convolutions of `nature`, or of the sequences of `impala`; absent: the papers'.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channels: Option<Vec<u32>>,
    /// Between the layers of `mlp`; the others have ReLU.
    pub activation: Activation,
    /// Actor and critic share the hidden layers; networks for images always do.
    pub shared: bool,
    /// Logarithm of the actions' standard deviation at the start, for continuous actions.
    pub log_std: f64,
    /// What runs the networks.
    pub kernel: Kernel,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            network: Network::Mlp,
            hidden: vec![64, 64],
            channels: None,
            activation: Activation::Tanh,
            shared: false,
            log_std: 0.0,
            kernel: Kernel::Auto,
        }
    }
}

/// Kind of network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// Fully connected layers, for flat observations.
    #[default]
    Mlp,
    /// The three convolutions of Mnih et al. 2015, for images.
    Nature,
    /// The residual network of Espeholt et al. 2018, for images.
    Impala,
}

/// What runs the networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kernel {
    /// The hand-written passes where they exist: fully connected networks on the CPU; libtorch elsewhere.
    #[default]
    Auto,
    /// The hand-written passes only.
    Native,
    /// libtorch only.
    Libtorch,
}

/// Between layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// Hyperbolic tangent.
    #[default]
    Tanh,
    /// Rectified linear unit.
    Relu,
}

/// `[collect]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Collect {
    /// Steps of each environment per rollout.
    pub num_steps: u32,
    /// Normalise observations by their running moments over all ranks (on-policy algorithms).
    pub normalise_observations: bool,
    /// Bound of normalised observations.
    pub clip_observations: f64,
    /// Divide rewards by the running deviation of the discounted return over all ranks (on-policy algorithms).
    pub normalise_rewards: bool,
    /// Bound of normalised rewards.
    pub clip_rewards: f64,
    /// Factor of the rewards that the learner sees.
    pub reward_scale: f64,
}

impl Default for Collect {
    fn default() -> Collect {
        Collect {
            num_steps: 128,
            normalise_observations: false,
            clip_observations: 10.0,
            normalise_rewards: false,
            clip_rewards: 10.0,
            reward_scale: 1.0,
        }
    }
}

/// `[eval]`: rank 0 plays whole episodes with the greedy policy while the others wait.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Eval {
    /// Training iterations between evaluations; 0: never.
    pub every: u64,
    /// Episodes per evaluation, each with its own fixed seed.
    pub episodes: u32,
    /// The run ends when the mean return reaches this; absent: never.
    pub stop_value: Option<f64>,
}

impl Default for Eval {
    fn default() -> Eval {
        Eval { every: 0, episodes: 20, stop_value: None }
    }
}

/// `[checkpoint]`: written by rank 0 into the run directory, atomically.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Checkpoint {
    /// Training iterations between checkpoints; 0: only best and last.
    pub every: u64,
    /// Also keep the checkpoint with the best evaluation.
    pub best: bool,
    /// Also write every rank's replay, with each `latest`.
    pub replay: bool,
}

impl Default for Checkpoint {
    fn default() -> Checkpoint {
        Checkpoint { every: 0, best: true, replay: false }
    }
}

/// `[watch]`: stuck-rank detection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Watch {
    /// What to do about a red verdict on a living rank.
    pub on_stuck: OnStuck,
    /// Seconds without a sample after which a host is `lost`.
    pub lost_after_s: f64,
    /// Seconds that others must have waited in a collective before the rank that has not entered it is `behind`.
    pub behind_after_s: f64,
    /// Seconds allowed for start-up and rendezvous before `behind` may be said about them.
    pub init_budget_s: f64,
    /// Seconds allowed for an evaluation or a checkpoint that shows no progress.
    pub rank0_budget_s: f64,
    /// Ranks compare every collective before they begin it.
    pub check_collectives: bool,
    /// Show the process groups of Python ranks through a `sitecustomize` on `PYTHONPATH`.
    pub python_hook: bool,
}

impl Default for Watch {
    fn default() -> Watch {
        Watch {
            on_stuck: OnStuck::Report,
            lost_after_s: 5.0,
            behind_after_s: 5.0,
            init_budget_s: 120.0,
            rank0_budget_s: 600.0,
            check_collectives: false,
            python_hook: true,
        }
    }
}

/// What to do about a stuck rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnStuck {
    /// Say so.
    #[default]
    Report,
    /// Stop the run; exit code 4.
    Stop,
    /// Restart from the latest checkpoint.
    Restart,
}

/// `[restart]`: what the console that launched a run does when a generation fails.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Restart {
    /// Restarts by policy over the life of the run; absent: none after a failed rank, [`Restart::ASKED`] where another policy asks for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_restarts: Option<u32>,
    /// Seconds before the first restart; doubled with each one that made no progress.
    pub backoff_s: f64,
    /// Longest wait, seconds.
    pub backoff_max_s: f64,
    /// Restarts in a row without a new checkpoint or training iteration after which the policy gives up.
    pub no_progress: u32,
    /// What to do about a host that gives no proof of its stop after a failure.
    pub lost_host: LostHost,
}

impl Default for Restart {
    fn default() -> Restart {
        Restart {
            max_restarts: None,
            backoff_s: 1.0,
            backoff_max_s: 60.0,
            no_progress: 2,
            lost_host: LostHost::Stop,
        }
    }
}

impl Restart {
    /// Restarts where `watch.on_stuck` or `lost_host` asks for them and `max_restarts` says nothing.
    pub const ASKED: u32 = 3;

    /// Milliseconds before a restart that follows `barren` restarts without progress.
    pub fn delay_ms(&self, barren: u32) -> u64 {
        let seconds = self.backoff_s * f64::from(2_u32.saturating_pow(barren));
        (seconds.min(self.backoff_max_s).max(0.0) * 1000.0) as u64
    }
}

/// What to do about a host that was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LostHost {
    /// The run ends.
    #[default]
    Stop,
    /// The next generation does without it.
    Exclude,
}

/// `[metrics]`: values that a program of the user gives without knowing rankdeck; rank 0's own, not reduced over the ranks.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Shipped sets of patterns, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub presets: Vec<String>,
    /// Regular expressions for the lines of rank 0's output; each named group is a value.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stdout: Vec<String>,
    /// Folder of TensorBoard event files that rank 0 writes, on its host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensorboard: Option<String>,
}
