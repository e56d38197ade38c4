//! Resolves a draft and the probes of its hosts into a plan, or into errors; also for the next generation:
//! the same experiment on fewer, more or other hosts.

use super::limits::{self, size_problem, sizes};
use super::{Plan, PlanDraft, PlanError, PlannedBackend, PlannedHost, PlannedRank};
use crate::error::HintedError;
use crate::experiment::BackendChoice;
use crate::host::Probe;
use crate::host::{GpuSelection, Host};
use crate::ids::{LocalRank, NodeRank, Rank};
use crate::promise::Promise;
use std::collections::BTreeSet;

/// Most ranks of a group: far above what the console can show, far below what could exhaust memory.
const MAX_WORLD: u64 = 65_536;

/// The ranks of one host.
enum HostRanks {
    /// One entry per rank, in local_rank order: its GPU.
    Known(Vec<Option<u32>>),
    /// Known only to the host.
    Unknown {
        /// Every rank will have a GPU.
        gpus: bool,
    },
}

impl PlanDraft {
    /// Returns the number of ranks; `None` if it depends on a host's GPUs (`gpus = "all"`).
    pub fn world_size(&self) -> Option<u32> {
        let shares = self.members().map(|(_, host)| share(0, host, None));
        let counts = shares.map(|share| match share {
            Ok(HostRanks::Known(ranks)) => Some(ranks.len() as u32),
            _ => None,
        });
        counts.sum()
    }

    /// Returns the plan for `probes`, in node-rank order. Without probes, [`PlanDraft::world_size`] must be
    /// known.
    ///
    /// # Errors
    /// The first of [`PlanDraft::problems`], or a rank count that only the hosts know.
    pub fn resolve(&self, probes: &[Probe]) -> Result<Plan, PlanError> {
        if let Some(problem) = self.problems(probes).into_iter().next() {
            return Err(problem);
        }
        let mut ranks = Vec::new();
        for (node, host) in self.members() {
            let HostRanks::Known(gpus) = share(node, host, probes.get(node))? else {
                return Err(PlanError::new(
                    format!("host.{node}.gpus"),
                    format!("GPU count of host `{}` is unknown until it connects", host.name),
                    "connect to it first, or set a count: `gpus = 1`",
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
        let mut plan = Plan {
            run: self.run.clone(),
            program: self.program.clone(),
            hosts: self.planned_hosts(probes),
            sizes: sizes(&self.experiment, ranks.len() as u64),
            ranks,
            experiment: self.experiment.clone(),
            drill: self.drill,
        };
        // A later generation on other hosts keeps the choice.
        plan.experiment.distributed.backend = match plan.backend() {
            PlannedBackend::Nccl => BackendChoice::Nccl,
            PlannedBackend::Tcp | PlannedBackend::Own => BackendChoice::Tcp,
        };
        if plan.world_size() > 1
            && let Some(set) = &mut plan.experiment.launch.rank_variables
        {
            *set = true;
        }
        Ok(plan)
    }

    /// Returns the hosts that get ranks, with their index.
    fn members(&self) -> impl Iterator<Item = (usize, &Host)> {
        self.hosts.iter().enumerate().filter(|(_, host)| !self.excluded.contains(&host.name))
    }

    /// Returns all errors, in the order of hosts and then of the experiment's keys. Checks that need the
    /// number of ranks are skipped until it is known.
    pub fn problems(&self, probes: &[Probe]) -> Vec<PlanError> {
        let mut found = Vec::new();
        let mut problem = |error: String, hint: &str, key: String| {
            found.push(PlanError::new(key, error, hint));
        };
        if self.hosts.is_empty() {
            problem("no hosts".into(), "add a `[[host]]` to the hosts file", "host".into());
        } else if self.members().next().is_none() {
            problem("every host is excluded".into(), "exclude fewer hosts", "host".into());
        }
        if !probes.is_empty() && probes.len() != self.hosts.len() {
            let (known, all) = (probes.len(), self.hosts.len());
            problem(
                format!("{known} of {all} hosts are connected"),
                "wait for the other hosts",
                "host".into(),
            );
        }
        let shares: Vec<(usize, Result<HostRanks, PlanError>)> =
            self.members().map(|(node, host)| (node, share(node, host, probes.get(node)))).collect();
        let on_gpu = |share: &Result<HostRanks, PlanError>| match share {
            Ok(HostRanks::Known(ranks)) => ranks.iter().all(Option::is_some),
            Ok(HostRanks::Unknown { gpus }) => *gpus,
            Err(_) => true,
        };
        if self.experiment.distributed.backend == BackendChoice::Nccl
            && let Some((node, _)) = shares.iter().find(|(_, share)| !on_gpu(share))
        {
            let host = &self.hosts[*node].name;
            problem(
                format!(
                    "backend `nccl` needs a GPU for every rank, but the ranks of host `{host}` have none"
                ),
                "set `gpus` for that host, or `distributed.backend = \"auto\"`",
                "distributed.backend".into(),
            );
        }
        if self.experiment.distributed.invariant
            && self.experiment.launch.command.is_empty()
            && self.experiment.distributed.backend == BackendChoice::Auto
            && !shares.is_empty()
            && shares.iter().all(|(_, share)| share.as_ref().is_ok_and(|_| on_gpu(share)))
        {
            problem(
                "`distributed.invariant` cannot be kept: every rank has a GPU, which adds in an order of its own"
                    .into(),
                "set `distributed.backend = \"tcp\"`",
                "distributed.backend".into(),
            );
        }
        let in_container = |(_, host): &(usize, &Host)| host.setup.container.is_some();
        if let Some((node, host)) = self.members().find(in_container)
            && self.experiment.launch.command.is_empty()
        {
            problem(
                format!(
                    "host `{}` has a `container`, but the built-in trainer does not run in containers",
                    host.name
                ),
                "remove `container`, or set `launch.command` to a program in the image",
                format!("host.{node}.container"),
            );
        }
        if let Some((node, other)) = self.unreachable_master() {
            let (host, other) = (&self.hosts[node].name, &self.hosts[other].name);
            problem(
                format!(
                    "rank 0 runs on host `{host}`, whose address `{}` is not reachable from host `{other}`",
                    self.hosts[node].address
                ),
                "set an `address` that every host can reach, or `launch.master_addr`",
                format!("host.{node}.address"),
            );
        }
        let world = shares.iter().try_fold(0u64, |sum, (_, share)| match share {
            Ok(HostRanks::Known(ranks)) => Some(sum + ranks.len() as u64),
            _ => None,
        });
        found.extend(shares.into_iter().filter_map(|(_, share)| share.err()));
        found.extend(limits::problems(&self.experiment));
        let asked: Vec<Promise> = self.asked.iter().copied().collect();
        if let Err(HintedError { error, hint }) = self.contract().demand(&asked) {
            found.push(PlanError::new("launch.command", error, hint));
        }
        if let Some(world) = world.filter(|world| *world > 0) {
            found.extend(size_problem(&self.experiment, world));
        }
        found
    }

    /// Returns the first host and one that cannot reach it, if its address is a loopback address.
    fn unreachable_master(&self) -> Option<(usize, usize)> {
        let (at, first) = self.members().next()?;
        let is_own = |host: &Host| {
            host.address == "localhost" || host.address == "::1" || host.address.starts_with("127.")
        };
        let (other, _) = self.members().find(|(_, host)| !is_own(host))?;
        (is_own(first) && self.experiment.launch.master_addr.is_none()).then_some((at, other))
    }

    fn planned_hosts(&self, probes: &[Probe]) -> Vec<PlannedHost> {
        self.hosts
            .iter()
            .enumerate()
            .map(|(node, host)| {
                let probe = probes.get(node);
                PlannedHost {
                    node_rank: NodeRank(node as u32),
                    host: host.clone(),
                    found_libtorch: probe.and_then(|probe| probe.libtorch.clone()),
                    trainer: probe.and_then(|probe| probe.trainer.clone()),
                }
            })
            .collect()
    }
}

/// Returns the ranks of one host and their GPUs: rank i has GPU `i % count`.
fn share(node: usize, host: &Host, probe: Option<&Probe>) -> Result<HostRanks, PlanError> {
    let error =
        |error: String, hint: String, key: &str| PlanError::new(format!("host.{node}.{key}"), error, hint);
    let present = probe.map(|probe| probe.gpu_count);
    let name = &host.name;
    let gpus: Vec<u32> = match (&host.gpus, present) {
        (None, _) => Vec::new(),
        // The number is unknown yet; checks that need it are repeated with the probes.
        (Some(GpuSelection::Word(_)), None) => return Ok(HostRanks::Unknown { gpus: true }),
        (Some(gpus), Some(0)) if gpus.is_auto() => Vec::new(),
        (Some(GpuSelection::Word(_)), Some(0)) => {
            return Err(error(
                format!("`gpus = \"all\"`, but host `{name}` has no visible GPU"),
                format!(
                    "check `nvidia-smi -L` on `{name}`, or replace `gpus` with `nproc = 1` to use its CPUs"
                ),
                "gpus",
            ));
        }
        (Some(GpuSelection::Word(_)), Some(count)) => (0..count).collect(),
        (Some(GpuSelection::Count(count)), Some(present)) if *count > present => {
            return Err(error(
                format!("`gpus = {count}`, but host `{name}` has {}", gpus_in_words(present)),
                format!("set `gpus = {present}`, or check `nvidia-smi -L` on `{name}`"),
                "gpus",
            ));
        }
        (Some(GpuSelection::Count(count)), _) => (0..*count).collect(),
        (Some(GpuSelection::List(list)), present) => {
            if let (Some(present), Some(index)) = (present, list.iter().max())
                && *index >= present
            {
                return Err(error(
                    format!("host `{name}` has no GPU {index} ({} found)", gpus_in_words(present)),
                    format!("indices start at 0; check `nvidia-smi -L` on `{name}`"),
                    "gpus",
                ));
            }
            list.clone()
        }
    };
    let count = match (host.nproc, gpus.len(), &host.gpus) {
        (Some(count), _, _) => u64::from(count),
        (None, 0, gpus) if gpus.as_ref().is_none_or(GpuSelection::is_auto) => 1,
        (None, gpus, _) => gpus as u64,
    };
    if count == 0 || count > MAX_WORLD {
        let why = format!("host `{name}` has {count} ranks, expected 1 to {MAX_WORLD}");
        return Err(error(why, "set the number of ranks: `nproc = 1`".into(), "gpus"));
    }
    let gpu_of = |local: u64| gpus.get(local as usize % gpus.len().max(1)).copied();
    Ok(HostRanks::Known((0..count).map(gpu_of).collect()))
}

fn gpus_in_words(count: u32) -> String {
    match count {
        0 => "no GPU".to_owned(),
        1 => "1 GPU".to_owned(),
        count => format!("{count} GPUs"),
    }
}

/// Returns the plan that follows `plan` without the hosts in `exclude` and with those in `add`.
///
/// Existing hosts keep their index, new ones come last. `probes` are in the node-rank order of the result;
/// hosts without ranks need none.
///
/// # Errors
/// Sizes that do not divide, hosts that cannot run their ranks, unknown names, each with the key to change.
pub fn replan(
    plan: &Plan,
    exclude: &BTreeSet<String>,
    add: &[Host],
    probes: &[Probe],
    resolve: impl Fn(&PlanDraft, &[Probe]) -> Result<Plan, PlanError>,
) -> Result<Plan, PlanError> {
    let mut draft = plan.draft();
    let refused = |error: String, hint: &str| PlanError::new("host", error, hint);
    for host in add {
        match draft.hosts.iter_mut().find(|known| known.name == host.name) {
            Some(_) if !draft.excluded.remove(&host.name) => {
                let error = format!("host `{}` already has ranks", host.name);
                return Err(refused(error, "add only hosts that have no ranks in this generation"));
            }
            Some(known) => *known = host.clone(),
            None => draft.hosts.push(host.clone()),
        }
    }
    for name in exclude {
        if !draft.hosts.iter().any(|host| host.name == *name) {
            let error = format!("unknown host `{name}`");
            return Err(refused(error, "list the hosts of each run with `rankdeck ps`"));
        }
        draft.excluded.insert(name.clone());
    }
    let mut all = probes.to_vec();
    all.resize(draft.hosts.len(), Probe::default());
    let mut next = resolve(&draft, &all)?;
    for planned in &mut next.hosts {
        // Files that an earlier launch found on the host are still there.
        let Some(known) = plan.hosts.get(planned.node_rank.index()) else { continue };
        planned.trainer = planned.trainer.take().or_else(|| known.trainer.clone());
        planned.found_libtorch =
            planned.found_libtorch.take().or_else(|| known.libtorch().map(str::to_owned));
    }
    if let Some(planned) = next.members().find(|planned| next.is_builtin() && planned.trainer.is_none()) {
        let error = format!("rankdeck-trainer not found on host `{}`", planned.host.name);
        return Err(refused(
            error,
            "build it next to this rankdeck (`cargo build --release --workspace`), or set `launch.command`",
        ));
    }
    Ok(next)
}

impl Plan {
    /// Returns the draft of this plan: hosts as the user described them, and those that this generation
    /// excludes.
    pub fn draft(&self) -> PlanDraft {
        let excluded = self.hosts.iter().filter(|planned| !self.has_ranks(planned.node_rank));
        PlanDraft {
            run: self.run.clone(),
            program: self.program.clone(),
            asked: BTreeSet::new(),
            experiment: self.experiment.clone(),
            excluded: excluded.map(|planned| planned.host.name.clone()).collect(),
            hosts: self.hosts.iter().map(|planned| planned.host.clone()).collect(),
            resume: None,
            drill: self.drill,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::experiment::{Distributed, Env, Learn, PpoConfig, Run};
    use crate::ids::{Generation, RunId};
    use crate::plan::{Experiment, RankContext, Transport, rank_environment};
    use crate::variables::PassedVariables;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::path::Path;

    pub fn host(name: &str) -> Host {
        Host {
            name: name.into(),
            address: name.into(),
            workdir: "rankdeck".into(),
            transport: Transport::Ssh,
            ..Host::default()
        }
    }

    pub fn probe(gpu_count: u32) -> Probe {
        Probe { gpu_count, cpu_count: 2, ..Probe::default() }
    }

    pub fn draft(hosts: Vec<Host>, num_envs: u32) -> PlanDraft {
        PlanDraft {
            run: RunId("test-20260101-000000".into()),
            program: None,
            asked: Default::default(),
            experiment: Experiment {
                run: Run { name: "test".into(), seed: 1, total_steps: 500_000, note: None },
                launch: Default::default(),
                args: Default::default(),
                distributed: Distributed::default(),
                env: Some(Env::new("CartPole-v1", num_envs)),
                policy: Default::default(),
                collect: Default::default(),
                learn: Some(Learn::Ppo(PpoConfig::default())),
                eval: Default::default(),
                checkpoint: Default::default(),
                watch: Default::default(),
                restart: Default::default(),
                metrics: Default::default(),
            },
            hosts,
            excluded: Default::default(),
            resume: None,
            drill: false,
        }
    }

    fn with(name: &str, gpus: Option<GpuSelection>, nproc: Option<u32>) -> Host {
        Host { gpus, nproc, ..host(name) }
    }

    fn all() -> Option<GpuSelection> {
        Some(GpuSelection::Word("all".into()))
    }

    fn layout(plan: &Plan) -> Vec<(u32, u32, u32, Option<u32>)> {
        plan.ranks.iter().map(|r| (r.rank.0, r.node_rank.0, r.local_rank.0, r.gpu)).collect()
    }

    #[test]
    fn contract_3_draft_without_a_promise_is_no_plan() {
        let mut own = draft(vec![host("a")], 4);
        own.asked.insert(Promise::Seed);
        assert!(own.resolve(&[probe(0)]).is_ok(), "the built-in trainer keeps it");
        own.experiment.launch.command = vec!["./simulate".into()];
        let refused = own.resolve(&[probe(0)]).unwrap_err();
        assert_eq!(refused.key, "launch.command");
        own.experiment.launch.command.push("{seed}".into());
        let plan = own.resolve(&[probe(0)]).unwrap();
        assert!(plan.contract().keeps(Promise::Seed) && plan.draft().asked.is_empty());
    }

    #[test]
    fn invariant_mode_on_gpus_names_the_backend() {
        let mut own = draft(vec![with("a", all(), None)], 12);
        own.experiment.distributed.invariant = true;
        if let Some(Learn::Ppo(ppo)) = &mut own.experiment.learn {
            ppo.norm_adv_over = crate::learn::AdvantageNormScope::World;
        }
        assert_eq!(own.resolve(&[probe(2)]).unwrap_err().key, "distributed.backend");
        own.experiment.distributed.backend = BackendChoice::Tcp;
        assert!(own.resolve(&[probe(2)]).is_ok());
    }

    #[test]
    fn facts_of_a_program_end_with_its_command() {
        let mut own = draft(vec![host("a")], 4);
        own.experiment.launch.command = vec!["./simulate".into()];
        own.program = Some(Default::default());
        let plan = own.resolve(&[probe(0)]).unwrap();
        let mut other = plan.experiment.clone();
        other.run.seed = 7;
        assert!(plan.clone().with_experiment(other.clone()).program.is_some());
        other.launch.command.push("x".into());
        assert_eq!(plan.with_experiment(other).program, None);
    }

    #[test]
    fn two_hosts_of_two_ranks_are_ordered_by_host() {
        let plan = draft(vec![with("a", None, Some(2)), with("b", None, Some(2))], 8).resolve(&[]).unwrap();
        assert_eq!(layout(&plan), [(0, 0, 0, None), (1, 0, 1, None), (2, 1, 0, None), (3, 1, 1, None)]);
        assert_eq!(plan.backend(), PlannedBackend::Tcp);
        assert_eq!(plan.experiment.distributed.backend, BackendChoice::Tcp);
        let sizes: Vec<(&str, u64, u64)> =
            plan.sizes.iter().map(|s| (s.name.as_str(), s.local, s.global)).collect();
        assert_eq!(
            sizes,
            [("num_envs", 2, 8), ("batch", 256, 1024), ("minibatch", 64, 256), ("iterations", 488, 488)]
        );
    }

    #[test]
    fn four_hosts_of_one_rank_are_ordered_by_host() {
        let hosts = ["a", "b", "c", "d"].map(host).to_vec();
        let plan = draft(hosts, 4).resolve(&[]).unwrap();
        assert_eq!(layout(&plan), [(0, 0, 0, None), (1, 1, 0, None), (2, 2, 0, None), (3, 3, 0, None)]);
        assert_eq!(plan.address(&plan.hosts[0]), "a");
    }

    #[test]
    fn all_gpus_need_probes() {
        let hosts = vec![
            with("a", all(), None),
            with("b", Some(GpuSelection::List(vec![3, 1])), None),
            with("c", Some(GpuSelection::Count(1)), None),
        ];
        let draft = draft(hosts, 10);
        assert_eq!(draft.world_size(), None);
        assert_eq!(draft.resolve(&[]).unwrap_err().key, "host.0.gpus");
        let plan = draft.resolve(&[probe(2), probe(4), probe(1)]).unwrap();
        assert_eq!(
            layout(&plan),
            [
                (0, 0, 0, Some(0)),
                (1, 0, 1, Some(1)),
                (2, 1, 0, Some(3)),
                (3, 1, 1, Some(1)),
                (4, 2, 0, Some(0))
            ]
        );
        assert_eq!(plan.backend(), PlannedBackend::Nccl);
    }

    #[test]
    fn one_cpu_rank_selects_the_tcp_backend() {
        let plan =
            draft(vec![with("a", Some(GpuSelection::Count(1)), None), host("b")], 4).resolve(&[]).unwrap();
        assert_eq!(plan.backend(), PlannedBackend::Tcp);
    }

    #[test]
    fn more_ranks_than_gpus_share_round_robin() {
        let plan =
            draft(vec![with("a", Some(GpuSelection::List(vec![2, 5])), Some(5))], 5).resolve(&[]).unwrap();
        let gpus: Vec<Option<u32>> = plan.ranks.iter().map(|rank| rank.gpu).collect();
        assert_eq!(gpus, [Some(2), Some(5), Some(2), Some(5), Some(2)]);
    }

    #[test]
    fn missing_gpus_name_the_host_and_its_key() {
        for (gpus, present) in [
            (all(), 0),
            (Some(GpuSelection::Count(4)), 2),
            (Some(GpuSelection::List(vec![0, 2])), 2),
            (Some(GpuSelection::Count(0)), 2),
            (Some(GpuSelection::List(vec![])), 2),
        ] {
            let error = draft(vec![host("a"), with("b", gpus, None)], 4)
                .resolve(&[probe(0), probe(present)])
                .unwrap_err();
            assert!(error.cause.error.contains("`b`"), "{error:?}");
            assert_eq!(error.key, "host.1.gpus");
            assert!(!error.cause.hint.is_empty());
        }
    }

    #[test]
    fn nccl_with_a_cpu_host_is_rejected_without_probes() {
        let mut draft = draft(vec![with("a", all(), None), host("b")], 4);
        draft.experiment.distributed.backend = BackendChoice::Nccl;
        let problems = draft.problems(&[]);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].cause.error.contains("`b`"), "{problems:?}");
        assert_eq!(problems[0].key, "distributed.backend");
    }

    #[test]
    fn indivisible_sizes_name_their_key() {
        let two = || vec![host("a"), host("b")];
        let error = draft(two(), 3).resolve(&[]).unwrap_err();
        assert_eq!(
            (error.key.as_str(), error.cause.hint.as_str()),
            ("env.num_envs", "set `env.num_envs` to a multiple of 2, such as 2 or 4")
        );
        let mut minibatches = draft(two(), 4);
        minibatches.experiment.learn =
            Some(Learn::Ppo(PpoConfig { num_minibatches: 5, ..PpoConfig::default() }));
        assert_eq!(minibatches.resolve(&[]).unwrap_err().key, "learn.num_minibatches");
        let mut single = draft(two(), 4);
        single.experiment.learn =
            Some(Learn::Ppo(PpoConfig { num_minibatches: 256, ..PpoConfig::default() }));
        assert_eq!(single.resolve(&[]).unwrap_err().key, "learn.num_minibatches");
        let mut short = draft(two(), 4);
        short.experiment.run.total_steps = 511;
        assert_eq!(short.resolve(&[]).unwrap_err().key, "run.total_steps");
        short.experiment.run.total_steps = 512;
        assert_eq!(short.resolve(&[]).unwrap().sizes[3].global, 1);
    }

    #[test]
    fn user_program_has_no_sizes() {
        let mut draft = draft(vec![host("a"), host("b")], 3);
        draft.experiment.launch.command = vec!["python3".into(), "train.py".into()];
        let plan = draft.resolve(&[]).unwrap();
        assert!(plan.sizes.is_empty() && !plan.is_builtin());
    }

    #[test]
    fn rendezvous_address_is_reachable_from_all_hosts() {
        let local =
            |name: &str| Host { transport: Transport::Local, address: "127.0.0.1".into(), ..host(name) };
        let plan = draft(vec![local("a"), local("b")], 4).resolve(&[]).unwrap();
        assert_eq!((plan.address(&plan.hosts[0]), plan.interface(&plan.hosts[0])), ("127.0.0.1", Some("lo")));
        let plan = draft(vec![host("alias")], 4).resolve(&[]).unwrap();
        assert_eq!(plan.address(&plan.hosts[0]), "127.0.0.1");
        let mut mixed = draft(vec![local("a"), host("b")], 4);
        assert_eq!(mixed.resolve(&[]).unwrap_err().key, "host.0.address");
        mixed.experiment.launch.master_addr = Some("10.1.1.1".into());
        let plan = mixed.resolve(&[]).unwrap();
        assert_eq!((plan.address(&plan.hosts[0]), plan.interface(&plan.hosts[0])), ("10.1.1.1", None));
        // Rank 0 elsewhere: the local host only dials out.
        assert!(draft(vec![host("b"), local("a")], 4).resolve(&[]).is_ok());
    }

    #[test]
    fn incomplete_probes_are_rejected() {
        assert!(draft(vec![host("a"), host("b")], 4).resolve(&[probe(0)]).is_err());
        assert!(draft(Vec::new(), 4).resolve(&[]).is_err());
    }

    #[test]
    fn host_env_overrides_experiment_env() {
        let mut one = host("a");
        one.env.insert("X".into(), "host".into());
        let mut draft = draft(vec![one], 4);
        draft.experiment.launch.env =
            [("X", "experiment"), ("Y", "experiment")].map(|(k, v)| (k.into(), v.into())).into();
        let plan = draft.resolve(&[]).unwrap();
        let env = environment(&plan, &plan.ranks[0]);
        assert_eq!((env["X"].as_str(), env["Y"].as_str()), ("host", "experiment"));
    }

    fn any_host() -> impl Strategy<Value = (Option<GpuSelection>, Option<u32>, u32)> {
        let gpus = prop_oneof![
            Just(None),
            Just(all()),
            (0u32..5).prop_map(|count| Some(GpuSelection::Count(count))),
            proptest::sample::subsequence(vec![0u32, 1, 2, 3], 0..4)
                .prop_map(|list| Some(GpuSelection::List(list))),
        ];
        (gpus, proptest::option::of(1u32..5), 0u32..5)
    }

    proptest! {
        /// PLAN-1, PLAN-2, PLAN-3.
        #[test]
        fn plan_1_2_3_hold_for_any_hosts(hosts in proptest::collection::vec(any_host(), 1..6), per_rank in 1u32..4, minibatches in 1u32..9, off in 0u32..2) {
            let probes: Vec<Probe> = hosts.iter().map(|(_, _, present)| probe(*present)).collect();
            let hosts: Vec<Host> = hosts.into_iter().enumerate().map(|(i, (gpus, nproc, _))| with(&format!("h{i}"), gpus, nproc)).collect();
            let mut draft = draft(hosts, 1);
            draft.experiment.launch.command = vec!["x".into()];
            let world = draft.resolve(&probes).map(|plan| plan.world_size());
            draft.experiment.launch.command.clear();
            if let (Ok(world), Some(env)) = (&world, draft.experiment.env.as_mut()) {
                env.num_envs = per_rank * world + off;
            }
            draft.experiment.learn = Some(Learn::Ppo(PpoConfig { num_minibatches: minibatches, ..PpoConfig::default() }));
            if let Ok(plan) = draft.resolve(&probes) {
                let world = plan.world_size();
                prop_assert!(world > 0);
                // PLAN-1
                let order: Vec<(u32, u32)> = plan.ranks.iter().map(|r| (r.node_rank.0, r.local_rank.0)).collect();
                prop_assert!(order.windows(2).all(|w| w[0] < w[1]));
                for (i, rank) in plan.ranks.iter().enumerate() {
                    prop_assert_eq!(rank.rank.index(), i);
                }
                for node in &plan.hosts {
                    let locals: Vec<u32> = plan.ranks_of(node.node_rank).map(|r| r.local_rank.0).collect();
                    prop_assert_eq!(locals.clone(), (0..locals.len() as u32).collect::<Vec<_>>());
                    prop_assert!(!locals.is_empty());
                }
                for rank in &plan.ranks {
                    prop_assert!(rank.gpu.is_none_or(|gpu| gpu < probes[rank.node_rank.index()].gpu_count));
                }
                // PLAN-2
                for size in plan.sizes.iter().filter(|size| size.name != "iterations") {
                    prop_assert_eq!(size.local * u64::from(world), size.global, "{}", size.name);
                }
                let local = |name: &str| plan.sizes.iter().find(|s| s.name == name).map(|s| s.local).unwrap();
                prop_assert_eq!(local("minibatch") * u64::from(minibatches), local("batch"));
                // PLAN-3
                let all_on_gpu = plan.ranks.iter().all(|rank| rank.gpu.is_some());
                let backend = if all_on_gpu { PlannedBackend::Nccl } else { PlannedBackend::Tcp };
                prop_assert_eq!(plan.backend(), backend);
            } else if let Ok(world) = world {
                // With a group, only sizes can stand in the way, and only those that do not split.
                let local = (per_rank * world + off) / world * 128;
                prop_assert!((per_rank * world + off) % world != 0 || local % minibatches != 0);
            }
        }
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    fn with_trainer(plan: Plan) -> Plan {
        let hosts = plan.hosts.iter().map(|host| PlannedHost { trainer: Some("/t".into()), ..host.clone() });
        Plan { hosts: hosts.collect(), ..plan.clone() }
    }

    fn three() -> Plan {
        with_trainer(draft(vec![host("a"), host("b"), host("c")], 12).resolve(&[]).unwrap())
    }

    fn environment(plan: &Plan, rank: &PlannedRank) -> BTreeMap<String, String> {
        let passed = PassedVariables::default();
        let context = RankContext::new(Generation(1), ("a", 1), Path::new("/w"), &passed);
        let text = |text: std::ffi::OsString| text.into_string().unwrap();
        rank_environment(plan, rank, context).into_iter().map(|(n, v)| (text(n), text(v))).collect()
    }

    fn column(plan: &Plan, name: &str) -> Vec<String> {
        plan.ranks.iter().map(|rank| environment(plan, rank)[name].clone()).collect()
    }

    #[test]
    fn drill_stays_one_over_restarts_and_the_wire() {
        let plan = Plan { drill: true, ..three() };
        assert!(replan(&plan, &names(&["b"]), &[], &[], PlanDraft::resolve).unwrap().drill);
        let sent = serde_json::to_value(&plan).unwrap();
        assert!(serde_json::from_value::<Plan>(sent).unwrap().drill);
        assert!(serde_json::to_value(three()).unwrap().get("drill").is_none(), "others are sent as before");
    }

    #[test]
    fn plan_4_excluded_host_keeps_its_index() {
        let next = replan(&three(), &names(&["b"]), &[], &[], PlanDraft::resolve).unwrap();
        assert_eq!(next.hosts.len(), 3);
        assert_eq!(next.ranks.iter().map(|rank| rank.node_rank.0).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(column(&next, "RANK"), ["0", "1"]);
        assert_eq!(column(&next, "NODE_RANK"), ["0", "1"]);
        assert_eq!(column(&next, "GROUP_WORLD_SIZE"), ["2", "2"]);
        assert_eq!(column(&next, "RANKDECK_NODE"), ["0", "2"]);
        assert_eq!(next.sizes.iter().find(|size| size.name == "num_envs").unwrap().local, 6);
        assert_eq!(next.hosts[2].trainer.as_deref(), Some("/t"));
    }

    #[test]
    fn readded_host_keeps_its_index_and_new_host_is_last() {
        let two = replan(&three(), &names(&["b"]), &[], &[], PlanDraft::resolve).unwrap();
        let again = replan(&two, &names(&[]), &[host("b")], &[], PlanDraft::resolve).unwrap();
        assert_eq!(again.ranks, three().ranks);
        let probes = vec![Probe { trainer: Some("/n".into()), ..Probe::default() }; 4];
        let more = replan(&two, &names(&[]), &[host("d")], &probes, PlanDraft::resolve).unwrap();
        assert_eq!(more.ranks.iter().map(|rank| rank.node_rank.0).collect::<Vec<_>>(), [0, 2, 3]);
    }

    #[test]
    fn indivisible_size_names_its_key() {
        let mut plan = three();
        plan.experiment.env.as_mut().unwrap().num_envs = 9;
        let refused = replan(&plan, &names(&["c"]), &[], &[], PlanDraft::resolve).unwrap_err();
        assert_eq!(refused.key, "env.num_envs");
        for (exclude, add) in [(vec!["x"], vec![]), (vec![], vec![host("a")]), (vec!["a", "b", "c"], vec![])]
        {
            assert!(replan(&three(), &names(&exclude), &add, &[], PlanDraft::resolve).is_err());
        }
    }

    #[test]
    fn second_host_replaces_the_loopback_address() {
        let one = with_trainer(draft(vec![host("a")], 12).resolve(&[]).unwrap());
        assert_eq!((one.address(&one.hosts[0]), one.interface(&one.hosts[0])), ("127.0.0.1", Some("lo")));
        let probes = vec![Probe { trainer: Some("/n".into()), ..Probe::default() }; 2];
        let two = replan(&one, &names(&[]), &[host("b")], &probes, PlanDraft::resolve).unwrap();
        assert_eq!((two.address(&two.hosts[0]), two.interface(&two.hosts[0])), ("a", None));
    }
}
