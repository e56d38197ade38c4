//! From a draft and what the hosts said to a plan, or to the reasons why there is none.

use super::limits;
use super::sizes::{size_problem, sizes};
use super::{Plan, PlanDraft, PlanError, PlannedHost, PlannedRank};
use crate::experiment::{Backend, Experiment};
use crate::host::{Gpus, Host, Transport};
use crate::ids::{LocalRank, NodeRank, Rank};
use crate::probe::Probe;

/// Ranks of a group, at most: far above what the console can show, far below what could exhaust memory.
const MAX_WORLD: u64 = 65_536;

/// The ranks of one host.
enum Share {
    /// One entry per rank, in local_rank order: its GPU.
    Known(Vec<Option<u32>>),
    /// Only the host can tell.
    Unknown {
        /// Every rank will have a GPU.
        gpus: bool,
    },
}

impl PlanDraft {
    /// Ranks in the group, `None` when a host has to be asked first (`gpus = "all"`).
    pub fn world_size(&self) -> Option<u32> {
        let shares = self.members().map(|(_, host)| share(0, host, None));
        let counts = shares.map(|share| match share {
            Ok(Share::Known(ranks)) => Some(ranks.len() as u32),
            _ => None,
        });
        counts.sum()
    }

    /// The plan, given what the links found (`probes` in node_rank order). Without probes there is a plan
    /// when [`PlanDraft::world_size`] is known.
    ///
    /// Errors: the first of [`PlanDraft::problems`], or a rank count that only the hosts know.
    pub fn resolve(&self, probes: &[Probe]) -> Result<Plan, PlanError> {
        if let Some(problem) = self.problems(probes).into_iter().next() {
            return Err(problem);
        }
        let mut ranks = Vec::new();
        for (node, host) in self.members() {
            let Share::Known(gpus) = share(node, host, probes.get(node))? else {
                return Err(PlanError::new(
                    format!("host.{node}.gpus"),
                    format!("only host `{}` can tell how many GPUs it has", host.name),
                    "connect to it first, or write a count: `gpus = 1`",
                ));
            };
            ranks.extend(gpus.into_iter().enumerate().map(|(local, gpu)| (node, local, gpu)));
        }
        let ranks: Vec<PlannedRank> = ranks
            .into_iter()
            .enumerate()
            .map(|(rank, (node, local, gpu))| PlannedRank {
                rank: Rank(rank as u32),
                local_rank: LocalRank(local as u32),
                node_rank: NodeRank(node as u32),
                gpu,
            })
            .collect();
        let backend = backend(&self.experiment, ranks.iter().all(|rank| rank.gpu.is_some()));
        let mut experiment = self.experiment.clone();
        experiment.distributed.backend = backend;
        Ok(Plan {
            run: self.run.clone(),
            hosts: self.planned_hosts(probes),
            backend: name(backend, &experiment).to_owned(),
            sizes: sizes(&experiment, ranks.len() as u64),
            ranks,
            experiment,
        })
    }

    /// Hosts that get ranks, with their index.
    fn members(&self) -> impl Iterator<Item = (usize, &Host)> {
        self.hosts.iter().enumerate().filter(|(_, host)| !self.excluded.contains(&host.name))
    }

    /// Everything that cannot work, in the order of hosts and then of the experiment's keys. Checks that need
    /// the number of ranks wait until it is known.
    pub fn problems(&self, probes: &[Probe]) -> Vec<PlanError> {
        let mut found = Vec::new();
        let mut problem = |error: String, hint: &str, key: String| {
            found.push(PlanError::new(key, error, hint));
        };
        if self.hosts.is_empty() {
            problem("no hosts".into(), "add a `[[host]]` to the hosts file", "host".into());
        } else if self.members().next().is_none() {
            problem("every host is excluded".into(), "leave at least one host in", "host".into());
        }
        if !probes.is_empty() && probes.len() != self.hosts.len() {
            let (known, all) = (probes.len(), self.hosts.len());
            problem(format!("{known} of {all} hosts have answered"), "wait for the others", "host".into());
        }
        let shares: Vec<(usize, Result<Share, PlanError>)> =
            self.members().map(|(node, host)| (node, share(node, host, probes.get(node)))).collect();
        let on_gpu = |share: &Result<Share, PlanError>| match share {
            Ok(Share::Known(ranks)) => ranks.iter().all(Option::is_some),
            Ok(Share::Unknown { gpus }) => *gpus,
            Err(_) => true,
        };
        if self.experiment.distributed.backend == Backend::Nccl
            && let Some((node, _)) = shares.iter().find(|(_, share)| !on_gpu(share))
        {
            let host = &self.hosts[*node].name;
            problem(
                format!(
                    "backend `nccl` needs a GPU for every rank, and the ranks of host `{host}` have none"
                ),
                "write `gpus` for that host, or `distributed.backend = \"auto\"`",
                "distributed.backend".into(),
            );
        }
        let in_container = |(_, host): &(usize, &Host)| host.setup.container.is_some();
        if let Some((node, host)) = self.members().find(in_container)
            && self.experiment.launch.command.is_empty()
        {
            problem(
                format!(
                    "host `{}` has a `container`, and the built-in trainer runs outside of one",
                    host.name
                ),
                "leave `container` out, or name a program of the image in `launch.command`",
                format!("host.{node}.container"),
            );
        }
        if let Some((node, other)) = self.unreachable_master() {
            let (host, other) = (&self.hosts[node].name, &self.hosts[other].name);
            problem(
                format!(
                    "rank 0 runs on host `{host}`, whose address `{}` does not lead there from host `{other}`",
                    self.hosts[node].address
                ),
                "write an `address` that every host can reach, or set `launch.master_addr`",
                format!("host.{node}.address"),
            );
        }
        let world = shares.iter().try_fold(0u64, |sum, (_, share)| match share {
            Ok(Share::Known(ranks)) => Some(sum + ranks.len() as u64),
            _ => None,
        });
        found.extend(shares.into_iter().filter_map(|(_, share)| share.err()));
        found.extend(limits::problems(&self.experiment));
        if let Some(world) = world.filter(|world| *world > 0) {
            found.extend(size_problem(&self.experiment, world));
        }
        found
    }

    /// The first host and one that cannot reach it, when its address means the reader's own machine.
    fn unreachable_master(&self) -> Option<(usize, usize)> {
        let (at, first) = self.members().next()?;
        let is_own = |host: &Host| {
            host.address == "localhost" || host.address == "::1" || host.address.starts_with("127.")
        };
        let (other, _) = self.members().find(|(_, host)| !is_own(host))?;
        (is_own(first) && self.experiment.launch.master_addr.is_none()).then_some((at, other))
    }

    fn planned_hosts(&self, probes: &[Probe]) -> Vec<PlannedHost> {
        let is_one_machine =
            self.members().count() == 1 || self.members().all(|(_, host)| host.transport == Transport::Local);
        self.hosts
            .iter()
            .enumerate()
            .map(|(node, host)| {
                let probe = probes.get(node);
                let address = match (&self.experiment.launch.master_addr, node) {
                    (Some(address), 0) => address.clone(),
                    // An ssh alias or a public address need not lead from the host to itself.
                    _ if self.members().count() == 1 => "127.0.0.1".to_owned(),
                    _ => host.address.clone(),
                };
                PlannedHost {
                    node_rank: NodeRank(node as u32),
                    address,
                    libtorch: host
                        .libtorch
                        .clone()
                        .or_else(|| probe.and_then(|probe| probe.libtorch.clone())),
                    // Nothing leaves the machine then, so neither a firewall nor a host name can interfere.
                    interface: host.interface.clone().or_else(|| is_one_machine.then(|| "lo".to_owned())),
                    trainer: probe.and_then(|probe| probe.trainer.clone()),
                    host: host.clone(),
                }
            })
            .collect()
    }
}

/// The ranks of one host and their GPUs: rank i has GPU `i % count`.
fn share(node: usize, host: &Host, probe: Option<&Probe>) -> Result<Share, PlanError> {
    let error =
        |error: String, hint: String, key: &str| PlanError::new(format!("host.{node}.{key}"), error, hint);
    let present = probe.map(|probe| probe.gpu_count);
    let name = &host.name;
    let gpus: Vec<u32> = match (&host.gpus, present) {
        (None, _) => Vec::new(),
        // Nobody knows yet whether there are any; what needs them is checked again with the probes.
        (Some(Gpus::Word(_)), None) => return Ok(Share::Unknown { gpus: true }),
        (Some(gpus), Some(0)) if gpus.is_auto() => Vec::new(),
        (Some(Gpus::Word(_)), Some(0)) => {
            return Err(error(
                format!("host `{name}` has no GPU that its driver shows, and `gpus` asks for all"),
                format!(
                    "look at `nvidia-smi -L` on `{name}`, or replace `gpus` by `nproc = 1` to use its CPUs"
                ),
                "gpus",
            ));
        }
        (Some(Gpus::Word(_)), Some(count)) => (0..count).collect(),
        (Some(Gpus::Count(count)), Some(present)) if *count > present => {
            return Err(error(
                format!("host `{name}` has {}, and `gpus` asks for {count}", gpus_in_words(present)),
                format!("write `gpus = {present}`, or look at `nvidia-smi -L` on `{name}`"),
                "gpus",
            ));
        }
        (Some(Gpus::Count(count)), _) => (0..*count).collect(),
        (Some(Gpus::List(list)), present) => {
            if let (Some(present), Some(index)) = (present, list.iter().max())
                && *index >= present
            {
                return Err(error(
                    format!(
                        "host `{name}` has {}, and `gpus` asks for index {index}",
                        gpus_in_words(present)
                    ),
                    format!("indices begin at 0; look at `nvidia-smi -L` on `{name}`"),
                    "gpus",
                ));
            }
            list.clone()
        }
    };
    let count = match (host.nproc, gpus.len(), &host.gpus) {
        (Some(count), _, _) => u64::from(count),
        (None, 0, gpus) if gpus.as_ref().is_none_or(Gpus::is_auto) => 1,
        (None, gpus, _) => gpus as u64,
    };
    if count == 0 || count > MAX_WORLD {
        let why = format!("host `{name}` has {count} ranks, expected 1 to {MAX_WORLD}");
        return Err(error(why, "write how many ranks: `nproc = 1`".into(), "gpus"));
    }
    let gpu_of = |local: u64| gpus.get(local as usize % gpus.len().max(1)).copied();
    Ok(Share::Known((0..count).map(gpu_of).collect()))
}

fn gpus_in_words(count: u32) -> String {
    match count {
        0 => "no GPU".to_owned(),
        1 => "1 GPU".to_owned(),
        count => format!("{count} GPUs"),
    }
}

fn backend(experiment: &Experiment, all_on_gpu: bool) -> Backend {
    match (experiment.distributed.backend, all_on_gpu) {
        (Backend::Auto, true) => Backend::Nccl,
        (Backend::Auto, false) => Backend::Tcp,
        (chosen, _) => chosen,
    }
}

/// The word for people. A program of the user's on CPUs chooses for itself.
fn name(backend: Backend, experiment: &Experiment) -> &'static str {
    match backend {
        Backend::Nccl => "nccl",
        Backend::Tcp | Backend::Auto if experiment.launch.command.is_empty() => "tcp",
        Backend::Tcp | Backend::Auto => "own",
    }
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
pub(super) mod tests;
