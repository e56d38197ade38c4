//! The plan: hosts and an experiment resolved into ranks, sizes and environments. Pure.
//!
//! Owner: the console that launches a generation makes its plan. Every launch carries it, so that any agent
//! can tell it to any console. Invariants:
//! - PLAN-1: ranks are `0..world_size`, contiguous, ordered by (node_rank, local_rank).
//! - PLAN-2: every global size is divisible by what splits it. Otherwise there is an error that names the
//!   key.
//! - PLAN-3: a plan leaves nothing open: the backend is `tcp`, `nccl` or a program's `own`, also in
//!   `experiment.distributed.backend`, which the trainer reads.
//! - PLAN-4: a host without ranks is excluded from the generation. It keeps its index, so that agents,
//!   folders and links keep their numbers over all generations; `NODE_RANK` counts only hosts with ranks.

mod environment;
pub mod limits;
mod replan;
mod resolve;
mod sizes;
mod told;

pub use environment::{rank_environment, ras_address, user_environment};
pub use replan::replan;
pub use sizes::size_problem;

use crate::error::HintedError;
use crate::experiment::Experiment;
use crate::host::Host;
use crate::ids::{LocalRank, NodeRank, Rank, RunId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A run as typed, checked as far as that is possible without asking the hosts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanDraft {
    /// Name and time of the launch.
    pub run: RunId,
    /// The resolved experiment.
    pub experiment: Experiment,
    /// Hosts in node_rank order.
    pub hosts: Vec<Host>,
    /// Names of hosts that get no ranks.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub excluded: BTreeSet<String>,
    /// Checkpoint that it begins from, on rank 0's host; `None`: from the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<String>,
}

/// Why a draft does not become a plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub struct PlanError {
    /// What cannot work, and what to change.
    pub cause: HintedError,
    /// The key that it is about, dotted: `env.num_envs`, or `host.1.gpus` for the second host.
    pub key: String,
}

impl PlanError {
    /// An error about a key.
    pub fn new(key: impl Into<String>, error: impl Into<String>, hint: impl Into<String>) -> PlanError {
        PlanError { cause: HintedError::new(error, hint), key: key.into() }
    }
}

/// A goal besides the experiment's own: `--until KIND=N`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Until {
    /// `steps=N`: global environment steps.
    Steps(u64),
    /// `iters=N`: training iterations.
    Iters(u64),
    /// `evals=N`: evaluations.
    Evals(u64),
    /// `seconds=N`: wall time since the launch.
    Seconds(u64),
}

/// A run that can work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Name and time of the launch.
    pub run: RunId,
    /// The resolved experiment.
    pub experiment: Experiment,
    /// Hosts in node_rank order.
    pub hosts: Vec<PlannedHost>,
    /// Ranks in rank order.
    pub ranks: Vec<PlannedRank>,
    /// Library of the collectives, never `auto`.
    pub backend: String,
    /// Sizes that are split over ranks, for people.
    pub sizes: Vec<PlannedSize>,
}

/// One host of a plan: the host as the user described it, and what the plan decided about it.
///
/// Both are needed. Agents work with the decisions; any console can make the next generation's plan from the
/// description.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlannedHost {
    /// Index in [`Plan::hosts`].
    pub node_rank: NodeRank,
    /// The host as in hosts.toml.
    pub host: Host,
    /// Address by which the other hosts of this generation reach it.
    pub address: String,
    /// libtorch on the host: what hosts.toml says, else what the link found.
    pub libtorch: Option<String>,
    /// Interface for rendezvous and collectives.
    pub interface: Option<String>,
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
    /// `batch 256 of 1,024`: of one rank, and of all of them where that differs.
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
    /// A host about which the plan decides nothing beyond what hosts.toml says.
    pub fn new(node_rank: NodeRank, host: Host) -> PlannedHost {
        PlannedHost {
            node_rank,
            address: host.address.clone(),
            libtorch: host.libtorch.clone(),
            interface: host.interface.clone(),
            trainer: None,
            host,
        }
    }
}

impl Plan {
    /// Ranks in the group.
    pub fn world_size(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// The ranks of one host, in local_rank order.
    pub fn ranks_of(&self, node: NodeRank) -> impl Iterator<Item = &PlannedRank> {
        self.ranks.iter().filter(move |rank| rank.node_rank == node)
    }

    /// The host takes part in this generation (PLAN-4).
    pub fn has_ranks(&self, node: NodeRank) -> bool {
        // Ranks are in the order of their hosts (PLAN-1).
        self.ranks.binary_search_by_key(&node, |rank| rank.node_rank).is_ok()
    }

    /// Hosts that take part, in node_rank order; the first one holds rank 0.
    pub fn members(&self) -> impl Iterator<Item = &PlannedHost> {
        self.hosts.iter().filter(|host| self.has_ranks(host.node_rank))
    }

    /// What each rank runs, as people read it, with what comes before it on each host.
    pub fn command_line(&self) -> String {
        let command = &self.experiment.launch.command;
        let words =
            command.iter().map(|word| match word.chars().all(|c| c.is_ascii_graphic() && c != '\'') {
                true => word.clone(),
                false => format!("{word:?}"),
            });
        let what = match self.is_builtin() {
            true => "rankdeck-trainer".to_string(),
            false => words.collect::<Vec<_>>().join(" "),
        };
        let preludes = self
            .members()
            .filter(|planned| !planned.host.setup.is_empty())
            .map(|planned| format!("; before it on {}: {}", planned.host.name, planned.host.setup.shown()));
        let launch = &self.experiment.launch;
        let names: Vec<&str> = launch.env.keys().chain(&launch.pass_env).map(String::as_str).collect();
        let env = if names.is_empty() { String::new() } else { format!("; with {}", names.join(", ")) };
        format!("{what}{env}{}", preludes.collect::<String>())
    }

    /// The built-in trainer runs, rather than a program of the user.
    pub fn is_builtin(&self) -> bool {
        self.experiment.launch.command.is_empty()
    }
}
