//! `configs/*.toml`: one experiment.
//!
//! Owner: the user. Sizes that are per rank begin with `local_`; all others are global. Unknown keys are errors.
//! The resolved form (defaults filled in, `--set` applied) is written to the run directory and read by the trainer.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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
}

impl Default for Distributed {
    fn default() -> Distributed {
        Distributed { backend: Backend::Auto, timeout_s: 600.0, bucket_mb: 25.0, fingerprint_every: 1 }
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

/// `[env]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Env {
    /// Environment id, such as `CartPole-v1`.
    pub id: String,
    /// Environments over all ranks; must be divisible by the world size.
    pub num_envs: u32,
}

/// `[policy]`: the networks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Widths of the hidden layers of actor and critic.
    pub hidden: Vec<u32>,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy { hidden: vec![64, 64] }
    }
}

/// `[collect]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Collect {
    /// Steps of each environment per rollout.
    pub num_steps: u32,
}

impl Default for Collect {
    fn default() -> Collect {
        Collect { num_steps: 128 }
    }
}

/// `[learn]`; `algorithm` picks the variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "algorithm", rename_all = "lowercase", deny_unknown_fields)]
pub enum Learn {
    /// Proximal policy optimisation, discrete actions.
    Ppo(Ppo),
}

/// PPO's hyper-parameters; defaults are CleanRL's ppo.py.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ppo {
    /// Adam's learning rate.
    pub learning_rate: f64,
    /// Linear decay of the learning rate to 0 over `run.total_steps`.
    pub anneal_lr: bool,
    /// Adam's epsilon.
    pub adam_eps: f64,
    /// Discount.
    pub gamma: f64,
    /// GAE's lambda.
    pub gae_lambda: f64,
    /// Minibatches per epoch; must divide the rollout.
    pub num_minibatches: u32,
    /// Epochs over each rollout.
    pub update_epochs: u32,
    /// Normalise advantages per minibatch (over the rank's share, as CleanRL does).
    pub norm_adv: bool,
    /// Clip range of the probability ratio.
    pub clip_coef: f64,
    /// Clip the value loss with the same range.
    pub clip_vloss: bool,
    /// Weight of the entropy bonus.
    pub ent_coef: f64,
    /// Weight of the value loss.
    pub vf_coef: f64,
    /// Bound of the averaged gradient's global norm.
    pub max_grad_norm: f64,
    /// Leave the epoch loop when the all-reduced KL estimate exceeds this; 0: never.
    pub target_kl: f64,
}

impl Default for Ppo {
    fn default() -> Ppo {
        Ppo {
            learning_rate: 2.5e-4,
            anneal_lr: true,
            adam_eps: 1e-5,
            gamma: 0.99,
            gae_lambda: 0.95,
            num_minibatches: 4,
            update_epochs: 4,
            norm_adv: true,
            clip_coef: 0.2,
            clip_vloss: true,
            ent_coef: 0.01,
            vf_coef: 0.5,
            max_grad_norm: 0.5,
            target_kl: 0.0,
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
}

impl Default for Checkpoint {
    fn default() -> Checkpoint {
        Checkpoint { every: 0, best: true }
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
