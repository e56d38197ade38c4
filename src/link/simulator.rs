//! Simulated hosts: links that end in no machine. For demonstrations, scale tests and tests of the screen.
//!
//! They speak exactly what agents speak, so that everything above a link cannot tell the difference. A [`World`] is what its hosts share: how far
//! training has come, which is a pure function of time ([`course`]); each host is one task ([`host`]) that turns it into records, samples and log lines.
//! Time is tokio's: pausing it pauses the world, and the same seed gives the same run.
//!
//! Owner of each task: its link; it ends on `Close`, or when nobody listens. No lock is held over an await.

mod course;
mod fault;
mod host;

pub use fault::{Fault, FaultKind, parse_fault};

use super::{LinkEvent, LinkHandle};
use course::Life;
use rankdeck_types::experiment::{
    Checkpoint, Collect, Distributed, Env, Eval, Experiment, Launch, Learn, Policy, Ppo, Run, Watch,
};
use rankdeck_types::host::{Gpus, Host, Transport};
use rankdeck_types::ids::{NodeRank, RunId};
use rankdeck_types::plan::PlanDraft;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// Environment steps of one rank per training iteration.
pub const STEPS_PER_ITERATION: u64 = 1024;
/// Environments per rank.
const ENVS_PER_RANK: u32 = 8;

/// What is simulated.
#[derive(Debug, Clone)]
pub struct Scene {
    /// Hosts.
    pub nnodes: u32,
    /// Ranks on each.
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
        }
    }

    fn host(&self, node: u32) -> Host {
        Host {
            name: host_name(node),
            address: format!("10.0.{}.{}", node / 250, node % 250 + 1),
            port: None,
            user: None,
            identity_file: None,
            proxy_jump: None,
            gpus: self.gpus.then_some(Gpus::Count(self.ranks_per_host)),
            nproc: Some(self.ranks_per_host),
            workdir: "/scratch/rankdeck".to_owned(),
            env: BTreeMap::new(),
            prelude: None,
            libtorch: Some("/opt/libtorch".to_owned()),
            transport: Transport::Local,
            interface: None,
        }
    }

    fn experiment(&self) -> Experiment {
        Experiment {
            run: Run { name: "simulated".to_owned(), seed: self.seed, total_steps: self.total_steps },
            launch: Launch::default(),
            distributed: Distributed::default(),
            env: Some(Env::new("CartPole-v1", ENVS_PER_RANK * self.world_size())),
            policy: Policy::default(),
            collect: Collect {
                num_steps: (STEPS_PER_ITERATION / u64::from(ENVS_PER_RANK)) as u32,
                ..Collect::default()
            },
            learn: Some(Learn::Ppo(Ppo::default())),
            eval: Eval { every: course::EVAL_EVERY, ..Eval::default() },
            checkpoint: Checkpoint { every: course::CHECKPOINT_EVERY, ..Checkpoint::default() },
            watch: Watch::default(),
            restart: Default::default(),
            metrics: Default::default(),
        }
    }
}

/// `sim-00`, `sim-01`, ...
fn host_name(node: u32) -> String {
    format!("sim-{node:02}")
}

/// What simulated hosts share.
#[derive(Debug)]
pub struct World {
    scene: Scene,
    run: RunId,
    life: Mutex<Life>,
}

impl World {
    /// Opens one link per simulated host.
    pub fn open(scene: &Scene, run: &RunId, events: &mpsc::Sender<(NodeRank, LinkEvent)>) -> Vec<LinkHandle> {
        let world =
            Arc::new(World { scene: scene.clone(), run: run.clone(), life: Mutex::new(Life::default()) });
        (0..scene.nnodes)
            .map(|node| {
                let (commands, orders) = mpsc::channel(64);
                tokio::spawn(host::serve(Arc::clone(&world), NodeRank(node), events.clone(), orders));
                LinkHandle { node: NodeRank(node), commands }
            })
            .collect()
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        // A poisoned lock means that another simulated host failed; the data is plain values and stays usable.
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A well-mixed number for `key` (splitmix64's finaliser), the only source of chance here.
fn mix(seed: u64, key: u64) -> u64 {
    let mut z =
        seed.wrapping_add(key.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number in 0..1 for `key`.
fn chance(seed: u64, key: u64) -> f64 {
    (mix(seed, key) >> 11) as f64 / (1u64 << 53) as f64
}
