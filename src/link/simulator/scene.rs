//! What is simulated, as a launch.

use super::fault::Fault;
use rankdeck_types::experiment::{Checkpoint, Collect, Env, Eval, Experiment, Learn, Ppo, Run};
use rankdeck_types::host::{Gpus, Host, Transport};
use rankdeck_types::ids::RunId;
use rankdeck_types::plan::PlanDraft;
use std::time::Duration;

/// Environment steps of one rank per training iteration.
pub const STEPS_PER_ITERATION: u64 = 1024;

/// Iterations between evaluations.
pub const EVAL_EVERY: u64 = 5;
/// Iterations between checkpoints.
pub const CHECKPOINT_EVERY: u64 = 20;
/// Environments per rank.
const ENVS_PER_RANK: u32 = 8;

/// What is simulated.
#[derive(Debug, Clone)]
pub struct Scene {
    /// Hosts.
    pub nnodes: u32,
    pub ranks_per_host: u32,
    /// Every rank has a GPU.
    pub gpus: bool,
    /// Same seed, same run.
    pub seed: u64,
    /// Global environment steps after which training ends; 0: never.
    pub total_steps: u64,
    /// Time per training iteration.
    pub iteration: Duration,
    /// What goes wrong.
    pub faults: Vec<Fault>,
}

impl Scene {
    /// Ranks in all.
    pub fn world_size(&self) -> u32 {
        self.nnodes * self.ranks_per_host
    }

    /// The launch that fits the scene.
    pub fn draft(&self, run: RunId) -> PlanDraft {
        PlanDraft {
            run,
            experiment: self.experiment(),
            hosts: (0..self.nnodes).map(|node| self.host(node)).collect(),
            excluded: Default::default(),
            resume: None,
        }
    }

    fn host(&self, node: u32) -> Host {
        Host {
            name: host_name(node),
            address: format!("10.0.{}.{}", node / 250, node % 250 + 1),
            gpus: self.gpus.then_some(Gpus::Count(self.ranks_per_host)),
            nproc: Some(self.ranks_per_host),
            workdir: "/scratch/rankdeck".to_owned(),
            libtorch: Some("/opt/libtorch".to_owned()),
            transport: Transport::Local,
            ..Host::default()
        }
    }

    fn experiment(&self) -> Experiment {
        Experiment {
            run: Run {
                name: "simulated".to_owned(),
                seed: self.seed,
                total_steps: self.total_steps,
                note: None,
            },
            env: Some(Env::new("CartPole-v1", ENVS_PER_RANK * self.world_size())),
            collect: Collect {
                num_steps: (STEPS_PER_ITERATION / u64::from(ENVS_PER_RANK)) as u32,
                ..Collect::default()
            },
            learn: Some(Learn::Ppo(Ppo::default())),
            eval: Eval { every: EVAL_EVERY, ..Eval::default() },
            checkpoint: Checkpoint { every: CHECKPOINT_EVERY, ..Checkpoint::default() },
            ..Experiment::default()
        }
    }
}

/// `sim-00`, `sim-01`, ...
pub fn host_name(node: u32) -> String {
    format!("sim-{node:02}")
}
