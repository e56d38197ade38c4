//! The plan: hosts and an experiment resolved into ranks, sizes and environments.
//!
//! The console that launches a generation makes its plan. Every launch contains it, so that any agent can
//! send it to any console. Invariants:
//! - PLAN-1: ranks are `0..world_size`, contiguous, ordered by (node_rank, local_rank).
//! - PLAN-2: every global size is divisible by its divisor; otherwise an error names the key.
//! - PLAN-3: nothing is stored that follows from the rest: backend, addresses and interfaces are methods, and
//!   none of them is left open. They are written into the plan's serialized form.
//! - PLAN-4: a host without ranks is excluded from the generation. It keeps its index, so that agents,
//!   directories and links keep their numbers over all generations; `NODE_RANK` counts only hosts with ranks.

mod environment;
pub mod limits;
mod resolve;
mod wire;

pub use environment::{
    DRILL_VARIABLE, RankContext, is_inheritable, rank_command, rank_environment, ras_address, visible_devices,
};
pub use limits::{block_share, size_problem};
pub use resolve::replan;

use crate::error::HintedError;
use crate::experiment::{BackendChoice, Experiment, OnRankLoss};
use crate::hidden;
use crate::host::{Host, Transport};
use crate::ids::{LocalRank, NodeRank, Rank, RunId};
use crate::promise::{Contract, ProgramFacts, Promise};
use crate::variables::RequestedVariables;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// A run as requested, checked as far as possible without the hosts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanDraft {
    /// Name and time of the launch.
    pub run: RunId,
    /// The resolved experiment.
    pub experiment: Experiment,
    /// What is known about the program; `None`: not read yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<ProgramFacts>,
    /// Promises that the options need (CONTRACT-3).
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub asked: BTreeSet<Promise>,
    /// Hosts in node_rank order.
    pub hosts: Vec<Host>,
    /// Names of hosts that get no ranks.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub excluded: BTreeSet<String>,
    /// Checkpoint to resume from, on rank 0's host; `None`: start from scratch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<String>,
    /// Launched by `rankdeck drill`, see [`Plan::drill`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drill: bool,
}

/// An error in a draft.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub struct PlanError {
    pub cause: HintedError,
    /// The dotted key: `env.num_envs`, or `host.1.gpus` for the second host.
    pub key: String,
}

impl StopGoal {
    /// Its word in `--until`.
    pub fn name(self) -> &'static str {
        match self {
            StopGoal::Steps(_) => "steps",
            StopGoal::Iters(_) => "iters",
            StopGoal::Evals(_) => "evals",
            StopGoal::Seconds(_) => "seconds",
        }
    }
}

impl PlanDraft {
    /// Returns which promises the program keeps.
    pub fn contract(&self) -> Contract {
        Contract::of(&self.experiment, self.program.as_ref().unwrap_or(&ProgramFacts::default()))
    }
}

impl PlanError {
    /// Creates an error about a key.
    pub fn new(key: impl Into<String>, error: impl Into<String>, hint: impl Into<String>) -> PlanError {
        PlanError { cause: HintedError::new(error, hint), key: key.into() }
    }
}

/// A target besides the experiment's own: `--until KIND=N`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopGoal {
    /// `steps=N`: global environment steps.
    Steps(u64),
    /// `iters=N`: training iterations.
    Iters(u64),
    /// `evals=N`: evaluations.
    Evals(u64),
    /// `seconds=N`: wall time since the launch.
    Seconds(u64),
}

/// A resolved run.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Plan {
    /// Name and time of the launch.
    pub run: RunId,
    /// The resolved experiment.
    pub experiment: Experiment,
    /// What was known about the program before the launch; `None` in older records.
    #[serde(default)]
    pub program: Option<ProgramFacts>,
    /// Hosts in node_rank order.
    pub hosts: Vec<PlannedHost>,
    /// Ranks in rank order.
    pub ranks: Vec<PlannedRank>,
    /// Sizes that are split over the ranks, for display.
    pub sizes: Vec<PlannedSize>,
    /// Launched by `rankdeck drill`: its ranks may be broken on purpose. No file sets it.
    #[serde(default)]
    pub drill: bool,
}

/// Communication library of a generation's ranks. Unlike [`experiment::Backend`](crate::experiment::Backend),
/// it is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PlannedBackend {
    /// NCCL, for CUDA tensors.
    Nccl,
    /// The built-in trainer's own, for CPU tensors.
    Tcp,
    /// The command chooses a library itself.
    Own,
}

impl fmt::Display for PlannedBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PlannedBackend::Nccl => "nccl",
            PlannedBackend::Tcp => "tcp",
            PlannedBackend::Own => "own",
        })
    }
}

/// One host of a plan: its description by the user, and the link's findings.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "wire::ReceivedHost")]
pub struct PlannedHost {
    /// Index in [`Plan::hosts`].
    pub node_rank: NodeRank,
    /// The host as in hosts.toml.
    pub host: Host,
    /// libtorch that the link found on the host.
    pub found_libtorch: Option<String>,
    /// Path of `rankdeck-trainer` on the host, as the link found or deployed it.
    pub trainer: Option<String>,
}

/// One rank of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedRank {
    /// Index over all hosts.
    pub rank: Rank,
    /// Index on its host.
    pub local_rank: LocalRank,
    /// Index of its host.
    pub node_rank: NodeRank,
    /// Its GPU on that host.
    pub gpu: Option<u32>,
}

/// A size that is split over ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedSize {
    /// Its name: `num_envs`, `batch` and `minibatch` (transitions of a rollout and of an update); with replay
    /// `collected` (transitions per iteration) and `batch` (of an update); `iterations` (the same for every
    /// rank).
    pub name: String,
    /// Share of one rank.
    pub local: u64,
    /// Sum over all ranks.
    pub global: u64,
}

impl PlannedSize {
    /// Returns the size as text: `batch 256 of 1,024`, per rank and over all ranks if that differs.
    pub fn text(&self) -> String {
        let (local, global) = (crate::words::count(self.local), crate::words::count(self.global));
        if local == global {
            format!("{} {local}", self.name)
        } else {
            format!("{} {local} of {global}", self.name)
        }
    }
}

impl PlannedHost {
    /// Creates a host without findings.
    pub fn new(node_rank: NodeRank, host: Host) -> PlannedHost {
        PlannedHost { node_rank, host, found_libtorch: None, trainer: None }
    }

    /// Returns libtorch on the host: the one in hosts.toml, else the one that the link found.
    pub fn libtorch(&self) -> Option<&str> {
        self.host.libtorch.as_deref().or(self.found_libtorch.as_deref())
    }
}

impl Plan {
    /// Returns the number of ranks.
    pub fn world_size(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// Returns the ranks of one host, in local-rank order.
    pub fn ranks_of(&self, node: NodeRank) -> impl Iterator<Item = &PlannedRank> {
        self.ranks.iter().filter(move |rank| rank.node_rank == node)
    }

    /// Returns whether the host has ranks in this generation (PLAN-4).
    pub fn has_ranks(&self, node: NodeRank) -> bool {
        // Ranks are in the order of their hosts (PLAN-1).
        self.ranks.binary_search_by_key(&node, |rank| rank.node_rank).is_ok()
    }

    /// Returns the hosts with ranks, in node-rank order; the first one has rank 0.
    pub fn members(&self) -> impl Iterator<Item = &PlannedHost> {
        self.hosts.iter().filter(|host| self.has_ranks(host.node_rank))
    }

    /// Returns the communication library (PLAN-3).
    pub fn backend(&self) -> PlannedBackend {
        let all_on_gpu = || self.ranks.iter().all(|rank| rank.gpu.is_some());
        match self.experiment.distributed.backend {
            BackendChoice::Nccl => PlannedBackend::Nccl,
            BackendChoice::Auto if all_on_gpu() => PlannedBackend::Nccl,
            BackendChoice::Tcp | BackendChoice::Auto if self.is_builtin() => PlannedBackend::Tcp,
            BackendChoice::Tcp | BackendChoice::Auto => PlannedBackend::Own,
        }
    }

    /// Returns the address at which the other hosts of this generation reach a host.
    pub fn address<'a>(&'a self, planned: &'a PlannedHost) -> &'a str {
        match &self.experiment.launch.master_addr {
            Some(address) if planned.node_rank == NodeRank(0) => address,
            // An ssh alias or a public address need not lead from the host to itself.
            _ if self.members().nth(1).is_none() => "127.0.0.1",
            _ => planned.host.peer_address(),
        }
    }

    /// Returns the interface of a host for rendezvous and collectives.
    pub fn interface<'a>(&'a self, planned: &'a PlannedHost) -> Option<&'a str> {
        planned.host.interface.as_deref().or_else(|| self.loopback())
    }

    /// Returns the interface of ranks that are all on one machine: no traffic leaves it, so neither a
    /// firewall nor a host name can interfere.
    fn loopback(&self) -> Option<&'static str> {
        let is_one_machine = self.members().nth(1).is_none()
            || self.members().all(|planned| planned.host.transport == Transport::Local);
        is_one_machine.then_some("lo")
    }

    /// Returns the command of each rank as text, with the setup of each host.
    pub fn command_line(&self) -> String {
        let command = hidden::command(&self.experiment);
        let words =
            command.iter().map(|word| match word.chars().all(|c| c.is_ascii_graphic() && c != '\'') {
                true => word.clone(),
                false => format!("{word:?}"),
            });
        let what = match self.is_builtin() {
            true => "rankdeck-trainer".to_string(),
            false => words.collect::<Vec<_>>().join(" "),
        };
        let preludes = self.members().filter(|planned| !planned.host.setup.is_empty()).map(|planned| {
            format!("; setup on {}: {}", planned.host.name, hidden::line(&planned.host.setup.shown()))
        });
        let launch = &self.experiment.launch;
        let names: Vec<&str> = launch.env.keys().chain(&launch.pass_env).map(String::as_str).collect();
        let env = if names.is_empty() { String::new() } else { format!("; with {}", names.join(", ")) };
        format!("{what}{env}{}", preludes.collect::<String>())
    }

    /// Returns the console's variables whose values the ranks get, with this experiment in place of the plan's.
    pub fn console_variables(&self, next: Option<&Experiment>) -> BTreeSet<String> {
        let launch = next.unwrap_or(&self.experiment).filled_launch();
        self.members()
            .flat_map(|planned| RequestedVariables::new(&launch, &planned.host).console_names())
            .collect()
    }

    /// Returns whether the only rank is an ordinary process, without torchrun's variables (PLAIN-1).
    pub fn is_plain(&self) -> bool {
        self.world_size() == 1 && self.experiment.launch.rank_variables == Some(false) && !self.is_builtin()
    }

    /// Returns whether the ranks get the secret of their generation.
    pub fn shares_secret(&self) -> bool {
        self.is_builtin() || self.experiment.launch.group_secret == Some(true)
    }

    /// Returns which promises the program keeps.
    pub fn contract(&self) -> Contract {
        Contract::of(&self.experiment, self.program.as_ref().unwrap_or(&ProgramFacts::default()))
    }

    /// Returns which promises the program of the next generation keeps, with this experiment in place of the plan's.
    pub fn next_contract(&self, next: Option<&Experiment>) -> Contract {
        let is_same = next.is_none_or(|next| next.launch.command == self.experiment.launch.command);
        let unknown = ProgramFacts::default();
        let facts = self.program.as_ref().filter(|_| is_same).unwrap_or(&unknown);
        Contract::of(next.unwrap_or(&self.experiment), facts)
    }

    /// Returns whether the program of the next generation may not read the checkpoint that it gets: it does not declare
    /// that it resumes. Plans of earlier versions do not record that.
    pub fn may_not_resume(&self, next: Option<&Experiment>) -> bool {
        self.program.is_some() && !self.next_contract(next).keeps(Promise::Resume)
    }

    /// Returns the plan with another experiment. Facts of another program do not apply to it.
    pub fn with_experiment(self, experiment: Experiment) -> Plan {
        let is_same = experiment.launch.command == self.experiment.launch.command;
        let program = self.program.filter(|_| is_same);
        Plan { experiment, program, ..self }
    }

    /// Returns whether the other ranks continue if one is lost.
    pub fn shrinks(&self) -> bool {
        self.experiment.distributed.on_rank_loss == OnRankLoss::Shrink
    }

    /// Returns whether the built-in trainer runs, not a program of the user.
    pub fn is_builtin(&self) -> bool {
        self.experiment.launch.command.is_empty()
    }
}
