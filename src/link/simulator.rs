//! Simulated hosts for demonstrations, scale tests and tests of the screen.
//!
//! They send the same messages as agents. The hosts share a world: the progress of the training, a pure
//! function of time (`training`); each host is one task (`host`) that turns it into records, samples and log
//! lines. Time is tokio's: pausing it pauses the world, and the same seed gives the same run. A task ends on
//! `Close`, or when its events are no longer received. No lock is held across an await.
//!
//! Times of faults count from the time at which all ranks have joined; a fault belongs to one generation, so
//! that a restart clears it.

mod host;
mod training;

use super::{LinkEvent, LinkHandle};
use rankdeck_types::experiment::{CheckpointConfig, Collect, Env, Eval, Experiment, Learn, PpoConfig, Run};
use rankdeck_types::host::{GpuSelection, Host, Transport};
use rankdeck_types::ids::{Generation, NodeRank, RunId};
use rankdeck_types::plan::PlanDraft;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use training::SimGeneration;

/// Environment steps of one rank per training iteration.
const STEPS_PER_ITERATION: u64 = 1024;

/// Iterations between evaluations.
const EVAL_EVERY: u64 = 5;
/// Iterations between checkpoints.
const CHECKPOINT_EVERY: u64 = 20;
/// Environments per rank.
const ENVS_PER_RANK: u32 = 8;

/// A simulated cluster and the run on it.
#[derive(Debug, Clone)]
pub struct SimulatedCluster {
    /// Number of hosts.
    pub nnodes: u32,
    pub ranks_per_host: u32,
    /// Every rank has a GPU.
    pub gpus: bool,
    /// Random seed.
    pub seed: u64,
    /// Global environment steps after which training ends; 0: never.
    pub total_steps: u64,
    /// Time per training iteration.
    pub iteration: Duration,
    /// Faults to inject.
    pub faults: Vec<Fault>,
}

impl SimulatedCluster {
    /// Returns the number of ranks.
    pub fn world_size(&self) -> u32 {
        self.nnodes * self.ranks_per_host
    }

    /// Returns the draft of its run.
    pub fn draft(&self, run: RunId) -> PlanDraft {
        PlanDraft {
            run,
            experiment: self.experiment(),
            program: None,
            asked: Default::default(),
            hosts: (0..self.nnodes).map(|node| self.host(node)).collect(),
            excluded: Default::default(),
            resume: None,
            drill: false,
        }
    }

    fn host(&self, node: u32) -> Host {
        Host {
            name: host_name(node),
            address: format!("10.0.{}.{}", node / 250, node % 250 + 1),
            gpus: self.gpus.then_some(GpuSelection::Count(self.ranks_per_host)),
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
            learn: Some(Learn::Ppo(PpoConfig::default())),
            eval: Eval { every: EVAL_EVERY, ..Eval::default() },
            checkpoint: CheckpointConfig { every: CHECKPOINT_EVERY, ..CheckpointConfig::default() },
            ..Experiment::default()
        }
    }
}

/// Returns the name of a host: `sim-00`, `sim-01`, ...
pub fn host_name(node: u32) -> String {
    format!("sim-{node:02}")
}

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    pub kind: FaultKind,
    /// Rank, or host for `lose` and `survive`.
    pub target: u32,
    /// Start time.
    pub at: Duration,
    /// Duration; `None`: without end.
    pub lasts: Option<Duration>,
    pub generation: Generation,
}

/// Kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The rank is stopped (SIGSTOP).
    Freeze,
    /// The rank computes endlessly and never enters its next collective.
    Behind,
    /// The rank's environment does not respond.
    EnvStuck,
    /// The rank is slower than the others.
    Slow,
    /// The rank is killed (SIGKILL).
    Kill,
    /// The rank reports an error and exits with code 1.
    Fail,
    /// The rank's weights differ from the others'.
    Drift,
    /// The link to the host breaks.
    Lose,
    /// A process on the host outlives the stop.
    Survive,
}

impl FaultKind {
    /// Returns whether training stalls meanwhile.
    pub fn hangs(self) -> bool {
        match self {
            FaultKind::Freeze
            | FaultKind::Behind
            | FaultKind::EnvStuck
            | FaultKind::Kill
            | FaultKind::Fail => true,
            FaultKind::Slow | FaultKind::Drift | FaultKind::Lose | FaultKind::Survive => false,
        }
    }
}

/// Parses `KIND:TARGET@SECONDS[+DURATION]`.
///
/// # Errors
/// The expected form.
pub fn parse_fault(text: &str) -> Result<Fault, String> {
    let expected = "expected KIND:TARGET@SECONDS[+DURATION], such as freeze:2@5 or lose:1@3+10";
    let (kind, rest) = text.split_once(':').ok_or(expected)?;
    let (target, when) = rest.split_once('@').ok_or(expected)?;
    let (at, lasts) = when.split_once('+').map_or((when, None), |(at, lasts)| (at, Some(lasts)));
    let kind = match kind {
        "freeze" => FaultKind::Freeze,
        "behind" => FaultKind::Behind,
        "env" => FaultKind::EnvStuck,
        "slow" => FaultKind::Slow,
        "kill" => FaultKind::Kill,
        "fail" => FaultKind::Fail,
        "drift" => FaultKind::Drift,
        "lose" => FaultKind::Lose,
        "survive" => FaultKind::Survive,
        _ => return Err("kinds are freeze, behind, env, slow, kill, fail, drift, lose, survive".to_owned()),
    };
    let seconds = |text: &str| {
        text.parse::<f64>()
            .ok()
            .and_then(|s| Duration::try_from_secs_f64(s).ok())
            .ok_or_else(|| expected.to_owned())
    };
    Ok(Fault {
        kind,
        target: target.parse().map_err(|_| expected.to_owned())?,
        at: seconds(at)?,
        lasts: lasts.map(seconds).transpose()?,
        generation: Generation(0),
    })
}

/// Opens one link per simulated host.
pub fn open(
    cluster: &SimulatedCluster,
    run: &RunId,
    events: &mpsc::Sender<(NodeRank, LinkEvent)>,
) -> Vec<LinkHandle> {
    open_with_injector(cluster, run, events).0
}

/// Opens one link per simulated host, and returns a handle to inject faults.
pub fn open_with_injector(
    cluster: &SimulatedCluster,
    run: &RunId,
    events: &mpsc::Sender<(NodeRank, LinkEvent)>,
) -> (Vec<LinkHandle>, FaultInjector) {
    let world = Arc::new(SimulatedWorld::new(cluster, run));
    let links = (0..cluster.nnodes)
        .map(|node| {
            let (commands, orders) = mpsc::channel(64);
            tokio::spawn(host::serve(Arc::clone(&world), NodeRank(node), events.clone(), orders));
            LinkHandle { node: NodeRank(node), commands }
        })
        .collect();
    (links, FaultInjector(world))
}

/// A simulated cluster and the state of its training.
#[derive(Debug)]
struct SimulatedWorld {
    cluster: SimulatedCluster,
    run: RunId,
    sim: Mutex<SimGeneration>,
}

impl SimulatedWorld {
    /// Creates a world without a launch.
    fn new(cluster: &SimulatedCluster, run: &RunId) -> SimulatedWorld {
        let sim = SimGeneration { faults: cluster.faults.clone(), ..SimGeneration::default() };
        SimulatedWorld { cluster: cluster.clone(), run: run.clone(), sim: Mutex::new(sim) }
    }

    /// Returns the current generation.
    fn sim(&self) -> MutexGuard<'_, SimGeneration> {
        // A poisoned lock means that another simulated host failed; its plain data stays usable.
        self.sim.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Injects faults into a running world.
#[derive(Debug, Clone)]
pub struct FaultInjector(Arc<SimulatedWorld>);

impl FaultInjector {
    /// Starts a fault now, of a rank in the middle or of the last host. Returns false before all ranks have
    /// joined.
    pub fn start(&self, kind: FaultKind, lasts: Option<Duration>) -> bool {
        let cluster = &self.0.cluster;
        let target = match kind {
            FaultKind::Lose | FaultKind::Survive => cluster.nnodes.saturating_sub(1),
            _ => cluster.world_size() / 2,
        };
        let mut sim = self.0.sim();
        let Some(at) = sim.joined.and_then(|joined| Instant::now().checked_duration_since(joined)) else {
            return false;
        };
        let generation = sim.generation;
        sim.faults.push(Fault { kind, target, at, lasts, generation });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_is_parsed_or_rejected() {
        let fault = parse_fault("lose:1@3.5+10").unwrap();
        assert_eq!((fault.kind, fault.target), (FaultKind::Lose, 1));
        assert_eq!((fault.at, fault.lasts), (Duration::from_millis(3500), Some(Duration::from_secs(10))));
        for bad in
            ["", "freeze", "freeze:1", "melt:1@2", "freeze:x@1", "freeze:1@-1", "freeze:1@NaN", "kill:1@2+x"]
        {
            assert!(parse_fault(bad).is_err(), "{bad}");
        }
    }
}
