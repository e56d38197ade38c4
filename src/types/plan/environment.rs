//! The environment of one rank, with its only author: [`rank_environment`].
//!
//! Layers, later ones win: what the agent inherits; torchrun's variables and the device; the user's (experiment,
//! host, console); then, where they are unset, defaults; then lists that the host extends; and rankdeck's
//! own variables, which only rankdeck sets.
//!
//! - PLAIN-1: a run of one rank that is to be an ordinary process has none of torchrun's variables. A run that
//!   shrinks to one rank keeps them.

use super::{Plan, PlannedBackend, PlannedRank};
use crate::ids::{Generation, LocalRank, Rank, RunId};
use crate::template::{self, RankValues};
use crate::variables::{self, PassedVariables, RequestedVariables};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// What the ranks of a drill have, and no others.
pub const DRILL_VARIABLE: &str = "RANKDECK_DRILL";
/// Threads of each rank's libraries.
const THREADS: &str = "OMP_NUM_THREADS";

/// What a host knows about a rank besides the plan.
#[derive(Debug)]
pub struct RankContext<'a> {
    pub generation: Generation,
    /// Address and port of rank 0's store.
    pub master: (&'a str, u16),
    /// The agent's own environment. Variables of other launchers and ranks are left out.
    pub inherited: BTreeMap<OsString, OsString>,
    /// Values of the console's variables.
    pub passed: &'a PassedVariables,
    /// `WORKDIR/runs/RUN`.
    pub run_dir: &'a Path,
    /// The checkpoint from which the generation resumes, on this host.
    pub resume: Option<&'a str>,
    /// Directory with libtorch's libraries, if the rank needs it.
    pub libraries: Option<PathBuf>,
    /// Directory of the hook for Python ranks.
    pub hook: Option<&'a Path>,
    /// Variables that are set unless the user does.
    pub defaults: Vec<(&'static str, OsString)>,
    /// Further variables of rankdeck: paths, the resume source, secrets.
    pub own: Vec<(&'static str, OsString)>,
}

impl<'a> RankContext<'a> {
    /// Creates a context without anything of the host.
    pub fn new(
        generation: Generation,
        master: (&'a str, u16),
        run_dir: &'a Path,
        passed: &'a PassedVariables,
    ) -> Self {
        RankContext {
            generation,
            master,
            inherited: BTreeMap::new(),
            passed,
            run_dir,
            resume: None,
            libraries: None,
            hook: None,
            defaults: Vec::new(),
            own: Vec::new(),
        }
    }
}

/// Returns whether ranks inherit this variable: it does not describe the process of another rank or launcher.
pub fn is_inheritable(name: &str) -> bool {
    !name.starts_with("RANKDECK_") && !variables::is_of_launcher(name) && !variables::is_identity(name)
}

/// Returns the environment of a rank.
///
/// Names and meanings of torchrun's variables are those of torch.distributed.elastic's local agent. The agent's
/// own `CUDA_VISIBLE_DEVICES`, which Slurm or the user set, is among the inherited variables; the plan's GPU
/// indices count within that list.
///
/// `CUDA_VISIBLE_DEVICES` lists all GPUs of the host's ranks in local_rank order, so that a script's
/// `cuda:LOCAL_RANK` is the planned GPU. Where ranks share GPUs, it is `cuda:(LOCAL_RANK % count)`. A rank on
/// a MIG instance gets that instance alone and `LOCAL_RANK=0`, since a process can use only one.
/// `RANKDECK_DEVICE` is `cpu`, or `cuda:INDEX` within the list.
pub fn rank_environment(
    plan: &Plan,
    rank: &PlannedRank,
    context: RankContext<'_>,
) -> BTreeMap<OsString, OsString> {
    let mut env = context.inherited;
    env.retain(|name, _| is_inheritable(&name.to_string_lossy()));
    let visible = env.get(OsStr::new("CUDA_VISIBLE_DEVICES")).map(|list| list.to_string_lossy().into_owned());
    let device = Device::of_rank(plan, rank, visible.as_deref().filter(|list| !list.is_empty()));
    let local_rank = device.as_ref().map_or(rank.local_rank, |device| device.local_rank(rank));
    let mut layer = |name: &str, value: OsString| {
        env.insert(name.into(), value);
    };
    if !plan.is_plain() {
        for (name, value) in group_variables(plan, rank, local_rank, context.generation, context.master) {
            layer(name, value.into());
        }
    }
    let device_name = device.as_ref().map_or("cpu".to_owned(), |device| format!("cuda:{}", device.index));
    for (name, value) in process_variables(plan, rank, device) {
        layer(name, value.into());
    }
    let values = rank_values(plan, rank, local_rank, (context.run_dir, context.resume));
    for (name, value) in user_variables(plan, rank, &values, context.passed) {
        layer(&name, value.into());
    }
    let mut defaults = context.defaults;
    if plan.ranks_of(rank.node_rank).nth(1).is_some() || plan.is_builtin() {
        // Ranks share the cores.
        defaults.push((THREADS, "1".into()));
    }
    for (name, value) in defaults {
        env.entry(name.into()).or_insert(value);
    }
    if let Some(folder) = &context.libraries {
        prepend(&mut env, "LD_LIBRARY_PATH", folder);
    }
    if let Some(folder) = context.hook {
        prepend(&mut env, "PYTHONPATH", folder);
    }
    for (name, value) in own_variables(plan, rank, context.generation, &device_name) {
        env.insert(name.into(), value.into());
    }
    env.extend(context.own.into_iter().map(|(name, value)| (name.into(), value)));
    env
}

/// Returns the command of a rank, with all templates filled. `visible`: GPUs that the agent may use, as
/// `CUDA_VISIBLE_DEVICES` lists them. `resume`: the checkpoint from which the generation resumes, which has the
/// words of `launch.resume` appended.
pub fn rank_command(
    plan: &Plan,
    rank: &PlannedRank,
    visible: Option<&str>,
    run_dir: &Path,
    resume: Option<&str>,
) -> Vec<String> {
    let device = Device::of_rank(plan, rank, visible);
    let local_rank = device.as_ref().map_or(rank.local_rank, |device| device.local_rank(rank));
    let values = rank_values(plan, rank, local_rank, (run_dir, resume));
    let launch = plan.experiment.filled_launch();
    let appended = launch.resume.iter().filter(|_| resume.is_some());
    launch.command.iter().chain(appended).map(|word| values.filled(word)).collect()
}

fn rank_values<'a>(
    plan: &'a Plan,
    rank: &PlannedRank,
    local_rank: LocalRank,
    (run_dir, resume): (&'a Path, Option<&'a str>),
) -> RankValues<'a> {
    let (rank, world_size) = (rank.rank, plan.world_size());
    RankValues { run: &plan.run, rank, local_rank, world_size, run_dir, resume }
}

/// The user's variables: the experiment's `env`, then the host's, then those with values of the console. Reserved
/// names are left out.
fn user_variables(
    plan: &Plan,
    rank: &PlannedRank,
    values: &RankValues<'_>,
    passed: &PassedVariables,
) -> BTreeMap<String, String> {
    let launch = plan.experiment.filled_launch();
    let host = plan.hosts.iter().find(|planned| planned.node_rank == rank.node_rank);
    let mut env = launch.env.clone();
    env.extend(host.map(|planned| planned.host.env.clone()).unwrap_or_default());
    env.retain(|name, _| variables::reserved(name).is_none());
    let plain = env.into_iter().filter_map(|(name, value)| Some((name, variables::plain(&value)?)));
    let mut all: BTreeMap<String, String> =
        plain.map(|(name, value)| (name, values.filled(&value))).collect();
    let requested = host.map(|planned| RequestedVariables::new(&launch, &planned.host)).unwrap_or_default();
    for (name, value) in passed.reveal() {
        // A value from the console is not a template; the text around it is.
        let value = if requested.is_per_rank(name) { values.filled(value) } else { value.to_owned() };
        all.insert(name.to_owned(), value);
    }
    all
}

/// torchrun's variables, and Slurm's where they are requested.
fn group_variables(
    plan: &Plan,
    rank: &PlannedRank,
    local_rank: LocalRank,
    generation: Generation,
    (master_addr, master_port): (&str, u16),
) -> Vec<(&'static str, String)> {
    let local_world = plan.ranks_of(rank.node_rank).count();
    // Hosts without ranks do not count (PLAN-4).
    let group_rank = plan.members().take_while(|host| host.node_rank < rank.node_rank).count();
    let mut all = vec![
        ("RANK", rank.rank.to_string()),
        ("LOCAL_RANK", local_rank.to_string()),
        ("WORLD_SIZE", plan.world_size().to_string()),
        ("LOCAL_WORLD_SIZE", local_world.to_string()),
        ("NODE_RANK", group_rank.to_string()),
        ("GROUP_RANK", group_rank.to_string()),
        ("GROUP_WORLD_SIZE", plan.members().count().to_string()),
        ("ROLE_RANK", rank.rank.to_string()),
        ("ROLE_WORLD_SIZE", plan.world_size().to_string()),
        ("ROLE_NAME", "default".to_owned()),
        ("MASTER_ADDR", master_addr.to_owned()),
        ("MASTER_PORT", master_port.to_string()),
        ("TORCHELASTIC_RESTART_COUNT", generation.to_string()),
        // The console makes restarts, each as a new generation; a rank must not expect one.
        ("TORCHELASTIC_MAX_RESTARTS", "0".to_owned()),
        ("TORCHELASTIC_RUN_ID", plan.run.to_string()),
        ("TORCHELASTIC_USE_AGENT_STORE", "False".to_owned()),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1".to_owned()),
        // Two runs on one host must not answer for each other.
        ("NCCL_RAS_ADDR", ras_address(&plan.run, rank.local_rank)),
    ];
    if plan.experiment.watch.check_collectives {
        // For PyTorch's own process groups.
        all.push(("TORCH_DISTRIBUTED_DEBUG", "DETAIL".to_owned()));
    }
    if plan.experiment.launch.slurm_env {
        all.extend(task_variables(plan, rank, local_rank, group_rank));
    }
    if let Some(interface) = plan.hosts.get(rank.node_rank.index()).and_then(|host| plan.interface(host)) {
        all.extend(["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"].map(|name| (name, interface.to_owned())));
    }
    all
}

/// Variables of a rank as a process: its device and threads.
fn process_variables(plan: &Plan, rank: &PlannedRank, device: Option<Device>) -> Vec<(&'static str, String)> {
    // A log file is not a terminal: without this, Python holds back kilobytes of output.
    let mut all = vec![("PYTHONUNBUFFERED", "1".to_owned())];
    all.extend(plan.experiment.launch.threads.map(|threads| (THREADS, threads.to_string())));
    let Some(device) = device else { return all };
    all.push(("CUDA_VISIBLE_DEVICES", device.list));
    // NVML counts in PCI order; CUDA would put the fastest first.
    all.push(("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()));
    if device.is_instance || device.is_shared && plan.backend() == PlannedBackend::Nccl {
        // NCCL refuses two ranks on one GPU of one host, and counts all MIG instances of a GPU as that GPU.
        // Ranks that claim different hosts may share it.
        all.push(("NCCL_HOSTID", format!("{}-{}-{}", plan.run, rank.node_rank, rank.local_rank)));
    }
    all
}

/// rankdeck's variables that follow from the plan.
fn own_variables(
    plan: &Plan,
    rank: &PlannedRank,
    generation: Generation,
    device: &str,
) -> Vec<(&'static str, String)> {
    let seed = plan.experiment.run.seed;
    let mut all = vec![
        ("RANKDECK_RUN", plan.run.to_string()),
        ("RANKDECK_GENERATION", generation.to_string()),
        ("RANKDECK_NODE", rank.node_rank.to_string()),
        ("RANKDECK_RANK", rank.rank.to_string()),
        (template::SEED_VARIABLE, seed.to_string()),
        (template::RANK_SEED_VARIABLE, rank_seed(seed, rank.rank).to_string()),
        ("RANKDECK_DEVICE", device.to_owned()),
    ];
    if plan.experiment.watch.check_collectives {
        all.push(("RANKDECK_CHECK_COLLECTIVES", "1".to_owned()));
    }
    if !plan.experiment.watch.fingerprint_weights {
        all.push(("RANKDECK_FINGERPRINTS", "0".to_owned()));
    }
    if plan.drill {
        // DRILL-1: the agent breaks no rank without it. Trackers get no run of a drill.
        all.extend([(DRILL_VARIABLE, "1".to_owned()), ("WANDB_MODE", "offline".to_owned())]);
    }
    all
}

/// Returns a rank's own seed: 31 bits of a mix of seed and rank. The sum of both would make most ranks of
/// neighboring seeds twins.
pub fn rank_seed(seed: u64, rank: Rank) -> u32 {
    // SplitMix64: each step is a bijection of 64 bits.
    let mix = |state: u64| {
        let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    (mix(mix(seed).wrapping_add(u64::from(rank.0))) >> 33) as u32
}

/// Puts a directory at the front of a variable that lists directories.
fn prepend(env: &mut BTreeMap<OsString, OsString>, name: &str, folder: &Path) {
    let mut list = folder.as_os_str().to_owned();
    if let Some(rest) = env.get(OsStr::new(name)).filter(|rest| !rest.is_empty()) {
        list.push(":");
        list.push(rest);
    }
    env.insert(name.into(), list);
}

/// Returns Slurm's variables for one rank, as `srun` sets them for a step with exactly the ranks of the plan.
fn task_variables(
    plan: &Plan,
    rank: &PlannedRank,
    local_rank: LocalRank,
    group_rank: usize,
) -> Vec<(&'static str, String)> {
    let tasks: Vec<usize> = plan.members().map(|host| plan.ranks_of(host.node_rank).count()).collect();
    let nodes: Vec<&str> = plan.members().map(|host| host.host.name.as_str()).collect();
    let local: Vec<String> = plan.ranks_of(rank.node_rank).map(|rank| rank.rank.to_string()).collect();
    let (world, tasks, count, nodes) =
        (plan.world_size().to_string(), task_counts(&tasks), tasks.len().to_string(), nodes.join(","));
    vec![
        ("SLURM_PROCID", rank.rank.to_string()),
        ("SLURM_LOCALID", local_rank.to_string()),
        ("SLURM_NODEID", group_rank.to_string()),
        ("SLURM_GTIDS", local.join(",")),
        ("SLURM_NTASKS", world.clone()),
        ("SLURM_NPROCS", world.clone()),
        ("SLURM_STEP_NUM_TASKS", world),
        ("SLURM_TASKS_PER_NODE", tasks.clone()),
        ("SLURM_STEP_TASKS_PER_NODE", tasks),
        ("SLURM_NNODES", count.clone()),
        ("SLURM_JOB_NUM_NODES", count.clone()),
        ("SLURM_STEP_NUM_NODES", count),
        ("SLURM_NODELIST", nodes.clone()),
        ("SLURM_JOB_NODELIST", nodes.clone()),
        ("SLURM_STEP_NODELIST", nodes),
        ("SLURM_STEP_ID", "0".to_owned()),
        ("SLURM_STEPID", "0".to_owned()),
    ]
}

/// Writes `[2, 2, 1]` as Slurm does: `2(x2),1`.
fn task_counts(counts: &[usize]) -> String {
    let same = counts.chunk_by(|a, b| a == b).map(|same| match same {
        [one] => one.to_string(),
        _ => format!("{}(x{})", same.first().copied().unwrap_or_default(), same.len()),
    });
    same.collect::<Vec<_>>().join(",")
}

/// The device of a rank.
struct Device {
    /// `CUDA_VISIBLE_DEVICES` of the rank.
    list: String,
    /// Index of the device in that list.
    index: usize,
    /// A MIG instance.
    is_instance: bool,
    /// Other ranks of the host use the same GPU.
    is_shared: bool,
}

impl Device {
    /// A process on a MIG instance sees that instance alone.
    fn local_rank(&self, rank: &PlannedRank) -> LocalRank {
        if self.is_instance { LocalRank(0) } else { rank.local_rank }
    }

    /// Returns the device of a rank, `None` for the CPU.
    fn of_rank(plan: &Plan, rank: &PlannedRank, visible: Option<&str>) -> Option<Device> {
        let mut gpus: Vec<u32> = Vec::new();
        for gpu in plan.ranks_of(rank.node_rank).filter_map(|rank| rank.gpu) {
            if !gpus.contains(&gpu) {
                gpus.push(gpu);
            }
        }
        let index = gpus.iter().position(|gpu| Some(*gpu) == rank.gpu)?;
        let is_shared = plan.ranks_of(rank.node_rank).filter(|other| other.gpu == rank.gpu).count() > 1;
        let mut names = visible_devices(&gpus, visible);
        if names.iter().any(|name| name.starts_with("MIG-")) {
            return Some(Device { list: names.swap_remove(index), index: 0, is_instance: true, is_shared });
        }
        Some(Device { list: names.join(","), index, is_instance: false, is_shared })
    }
}

/// Returns the names of a plan's GPUs: entries of `visible`, a `CUDA_VISIBLE_DEVICES` list, or the indices
/// themselves without one. `0,2` of `4,5,6` is `4,6`. An index beyond the list stays as it is, so that the
/// driver refuses it.
pub fn visible_devices(gpus: &[u32], visible: Option<&str>) -> Vec<String> {
    let visible: Vec<&str> = visible.unwrap_or_default().split(',').map(str::trim).collect();
    let name = |gpu: &u32| match visible.get(*gpu as usize) {
        Some(name) if !name.is_empty() => (*name).to_owned(),
        _ => gpu.to_string(),
    };
    gpus.iter().map(name).collect()
}

/// Returns the address of NCCL's RAS subsystem for a rank. Each rank of a run has its own port: with a shared
/// port the kernel chooses which rank answers, perhaps a frozen one. The ports are below the kernel's
/// ephemeral range and differ from NCCL's default of 28028. If another program holds the port, NCCL continues
/// without RAS.
pub fn ras_address(run: &RunId, local_rank: LocalRank) -> String {
    let hash =
        run.0.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("localhost:{}", 20_000 + (hash % 7_000) + local_rank.0 % 1_000)
}

#[cfg(test)]
mod tests {
    use super::super::resolve::tests::{draft, host, probe};
    use super::super::{PlanDraft, replan};
    use super::*;
    use crate::host::{GpuSelection, Host};

    fn environments(hosts: Vec<Host>, gpus: &[u32]) -> Vec<BTreeMap<String, String>> {
        visible_environments(hosts, gpus, None)
    }

    fn visible_environments(
        hosts: Vec<Host>,
        gpus: &[u32],
        visible: Option<&str>,
    ) -> Vec<BTreeMap<String, String>> {
        let probes: Vec<_> = gpus.iter().map(|count| probe(*count)).collect();
        let plan = draft(hosts, 64).resolve(&probes).unwrap();
        plan.ranks.iter().map(|rank| environment(&plan, rank, visible)).collect()
    }

    /// The environment of a rank whose agent has this list of GPUs.
    fn environment(plan: &Plan, rank: &PlannedRank, visible: Option<&str>) -> BTreeMap<String, String> {
        let visible = visible.map(|list| ("CUDA_VISIBLE_DEVICES".into(), list.into()));
        with_inherited(plan, rank, visible.into_iter().collect())
    }

    fn with_inherited(
        plan: &Plan,
        rank: &PlannedRank,
        inherited: BTreeMap<OsString, OsString>,
    ) -> BTreeMap<String, String> {
        let passed = PassedVariables::default();
        let context = RankContext {
            inherited,
            ..RankContext::new(Generation(3), ("10.0.0.1", 29500), Path::new("/w/runs/t"), &passed)
        };
        let text = |text: OsString| text.into_string().unwrap();
        rank_environment(plan, rank, context).into_iter().map(|(n, v)| (text(n), text(v))).collect()
    }

    /// A plan of a program with `ranks` ranks on one host.
    fn program(ranks: u32, change: impl Fn(&mut crate::experiment::LaunchConfig)) -> Plan {
        let mut draft = draft(vec![Host { nproc: Some(ranks), ..host("a") }], 8);
        draft.experiment.launch.command = vec!["t".into()];
        change(&mut draft.experiment.launch);
        draft.resolve(&[]).unwrap()
    }

    #[test]
    fn plain_1_single_rank_has_no_variable_of_torchrun() {
        let plain = program(1, |launch| launch.rank_variables = Some(false));
        let env = environment(&plain, &plain.ranks[0], None);
        let of_torchrun: Vec<&String> = env
            .keys()
            .filter(|name| {
                variables::is_identity(name)
                    || ["TORCH", "NCCL_", "GLOO_", "OMP_"].iter().any(|p| name.starts_with(p))
            })
            .collect();
        assert!(of_torchrun.is_empty(), "{of_torchrun:?}");
        assert_eq!((env["RANKDECK_RANK"].as_str(), env["RANKDECK_DEVICE"].as_str()), ("0", "cpu"));
        for asked in [Some(true), None] {
            let plan = program(1, |launch| launch.rank_variables = asked);
            assert_eq!(environment(&plan, &plan.ranks[0], None)["RANK"], "0", "{asked:?}");
        }
    }

    #[test]
    fn drill_1_only_ranks_of_a_drill_have_its_variables() {
        let mut ordinary = program(2, |launch| {
            launch.env.insert("WANDB_MODE".into(), "online".into());
            launch.env.insert(DRILL_VARIABLE.into(), "1".into());
        });
        let of = |plan: &Plan| {
            // An agent that a drill's rank started inherits nothing from it.
            let env = with_inherited(plan, &plan.ranks[0], [(DRILL_VARIABLE.into(), "1".into())].into());
            (env.get(DRILL_VARIABLE).cloned(), env["WANDB_MODE"].clone())
        };
        assert_eq!(of(&ordinary), (None, "online".to_owned()));
        ordinary.drill = true;
        assert_eq!(of(&ordinary), (Some("1".to_owned()), "offline".to_owned()));
    }

    #[test]
    fn plain_1_run_that_shrinks_to_one_rank_keeps_its_variables() {
        let mut draft = draft(vec![host("a"), host("b")], 8);
        draft.experiment.launch.command = vec!["t".into()];
        draft.experiment.launch.rank_variables = Some(false);
        let two = draft.resolve(&[]).unwrap();
        let one = replan(&two, &["b".to_owned()].into(), &[], &[], PlanDraft::resolve).unwrap();
        assert_eq!(environment(&one, &one.ranks[0], None)["WORLD_SIZE"], "1");
    }

    #[test]
    fn threads_are_limited_only_for_ranks_that_share_a_host() {
        let threads = |plan: &Plan, inherited: &[(&str, &str)]| {
            let inherited = inherited.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect();
            with_inherited(plan, &plan.ranks[0], inherited).get(THREADS).cloned()
        };
        let (one, two) = (program(1, |_| {}), program(2, |_| {}));
        assert_eq!((threads(&one, &[]), threads(&two, &[])), (None, Some("1".into())));
        assert_eq!(threads(&two, &[(THREADS, "7")]), Some("7".into()), "the host's");
        assert_eq!(threads(&one, &[(THREADS, "7")]), Some("7".into()));
        let asked = program(2, |launch| launch.threads = Some(4));
        assert_eq!(threads(&asked, &[(THREADS, "7")]), Some("4".into()));
        let own = program(2, |launch| {
            launch.env.insert(THREADS.into(), "3".into());
        });
        assert_eq!(threads(&own, &[(THREADS, "7")]), Some("3".into()), "the user's");
    }

    #[test]
    fn resume_words_are_appended_only_by_a_resumed_generation() {
        let plan = program(2, |launch| {
            launch.resume = ["--resume", "{resume}", "--rank={rank}"].map(str::to_owned).into();
            launch.env.insert("FROM".into(), "[{resume}]".into());
        });
        for (resume, words, value) in [
            (None, &["t"][..], "[]"),
            (Some("/b/ck.pt"), &["t", "--resume", "/b/ck.pt", "--rank=1"], "[/b/ck.pt]"),
        ] {
            assert_eq!(rank_command(&plan, &plan.ranks[1], None, Path::new("/w"), resume), words);
            let passed = PassedVariables::default();
            let context =
                RankContext { resume, ..RankContext::new(Generation(1), ("a", 1), Path::new("/w"), &passed) };
            let env = rank_environment(&plan, &plan.ranks[1], context);
            assert_eq!(env[OsStr::new("FROM")], *value);
        }
    }

    #[test]
    fn rank_templates_are_filled_in_command_and_env() {
        let plan = program(2, |launch| {
            launch.command = ["t", "--out={run_dir}/{rank}", "{local_rank}/{world_size}", "{seed}"]
                .map(str::to_owned)
                .into();
            launch.env.insert("OUT".into(), "{run}-{rank}".into());
            launch.env.insert("HERE".into(), "${HOME}/{rank}".into());
            launch.env.insert("TOKEN".into(), "${TOKEN}".into());
        });
        let command = rank_command(&plan, &plan.ranks[1], None, Path::new("/w"), None);
        assert_eq!(command, ["t", "--out=/w/1", "1/2", "1"]);
        let host = plan.hosts[0].host.clone();
        let requested = RequestedVariables::new(&plan.experiment.filled_launch(), &host);
        let (passed, _) = requested.fill(&|name| Some(format!("<{name}{{rank}}>")));
        let context = RankContext::new(Generation(0), ("a", 1), Path::new("/w"), &passed);
        let env = rank_environment(&plan, &plan.ranks[1], context);
        let value = |name: &str| env[OsStr::new(name)].to_str().unwrap().to_owned();
        assert_eq!(value("OUT"), "test-20260101-000000-1");
        assert_eq!(value("HERE"), "<HOME1>/1");
        assert_eq!(value("TOKEN"), "<TOKEN{rank}>", "a console's value is passed as it is");
    }

    #[test]
    fn rank_seeds_differ_and_follow_seed_and_rank() {
        let all: std::collections::BTreeSet<u32> =
            (0..8).flat_map(|seed| (0..64).map(move |rank| rank_seed(seed, Rank(rank)))).collect();
        assert_eq!(all.len(), 8 * 64);
        assert!(all.iter().all(|seed| *seed < 1 << 31));
        assert_eq!(rank_seed(7, Rank(3)), rank_seed(7, Rank(3)));
    }

    fn with_gpus(gpus: &[u32]) -> Host {
        Host { gpus: Some(GpuSelection::List(gpus.to_vec())), ..host("a") }
    }

    fn column<'a>(all: &'a [BTreeMap<String, String>], name: &str) -> Vec<&'a str> {
        all.iter().map(|env| env.get(name).map_or("-", String::as_str)).collect()
    }

    #[test]
    fn two_hosts_of_two_ranks_get_torchrun_variables() {
        let mut hosts = vec![host("a"), host("b")];
        for host in &mut hosts {
            host.nproc = Some(2);
        }
        let all = environments(hosts, &[]);
        assert_eq!(column(&all, "RANK"), ["0", "1", "2", "3"]);
        assert_eq!(column(&all, "ROLE_RANK"), ["0", "1", "2", "3"]);
        assert_eq!(column(&all, "LOCAL_RANK"), ["0", "1", "0", "1"]);
        assert_eq!(column(&all, "NODE_RANK"), ["0", "0", "1", "1"]);
        assert_eq!(column(&all, "GROUP_RANK"), ["0", "0", "1", "1"]);
        assert_eq!(column(&all, "RANKDECK_NODE"), ["0", "0", "1", "1"]);
        for (name, value) in [
            ("WORLD_SIZE", "4"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("GROUP_WORLD_SIZE", "2"),
            ("ROLE_WORLD_SIZE", "4"),
            ("ROLE_NAME", "default"),
            ("MASTER_ADDR", "10.0.0.1"),
            ("MASTER_PORT", "29500"),
            ("TORCHELASTIC_RESTART_COUNT", "3"),
            ("TORCHELASTIC_MAX_RESTARTS", "0"),
            ("TORCHELASTIC_RUN_ID", "test-20260101-000000"),
            ("TORCHELASTIC_USE_AGENT_STORE", "False"),
            ("OMP_NUM_THREADS", "1"),
            ("RANKDECK_RUN", "test-20260101-000000"),
            ("RANKDECK_GENERATION", "3"),
            ("RANKDECK_SEED", "1"),
            ("RANKDECK_DEVICE", "cpu"),
            ("CUDA_VISIBLE_DEVICES", "-"),
            ("GLOO_SOCKET_IFNAME", "-"),
        ] {
            assert_eq!(column(&all, name), [value; 4], "{name}");
        }
    }

    #[test]
    fn slurm_env_gives_each_rank_its_own_task() {
        let mut hosts = vec![host("a"), host("b"), host("c")];
        hosts[0].nproc = Some(2);
        hosts[1].nproc = Some(2);
        let mut draft = draft(hosts, 70);
        draft.experiment.launch.slurm_env = true;
        let plan = draft.resolve(&[]).unwrap();
        let all: Vec<_> = plan.ranks.iter().map(|rank| environment(&plan, rank, None)).collect();
        assert_eq!(column(&all, "SLURM_PROCID"), ["0", "1", "2", "3", "4"]);
        assert_eq!(column(&all, "SLURM_LOCALID"), ["0", "1", "0", "1", "0"]);
        assert_eq!(column(&all, "SLURM_NODEID"), ["0", "0", "1", "1", "2"]);
        assert_eq!(column(&all, "SLURM_GTIDS"), ["0,1", "0,1", "2,3", "2,3", "4"]);
        for (name, value) in [
            ("SLURM_NTASKS", "5"),
            ("SLURM_NPROCS", "5"),
            ("SLURM_NNODES", "3"),
            ("SLURM_TASKS_PER_NODE", "2(x2),1"),
            ("SLURM_STEP_NODELIST", "a,b,c"),
        ] {
            assert_eq!(column(&all, name), [value; 5], "{name}");
        }
        assert_eq!(column(&environments(vec![host("a")], &[]), "SLURM_PROCID"), ["-"]);
    }

    #[test]
    fn cuda_local_rank_is_the_planned_gpu() {
        let all = environments(vec![with_gpus(&[5, 2])], &[8]);
        assert_eq!(column(&all, "CUDA_VISIBLE_DEVICES"), ["5,2", "5,2"]);
        assert_eq!(column(&all, "RANKDECK_DEVICE"), ["cuda:0", "cuda:1"]);
        assert_eq!(column(&all, "CUDA_DEVICE_ORDER"), ["PCI_BUS_ID"; 2]);
        assert_eq!(column(&all, "NCCL_HOSTID"), ["-"; 2]);
    }

    #[test]
    fn ranks_sharing_a_gpu_get_separate_nccl_host_ids() {
        let all = environments(vec![Host { nproc: Some(4), ..with_gpus(&[4, 6]) }], &[8]);
        assert_eq!(column(&all, "RANKDECK_DEVICE"), ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]);
        let ids: std::collections::BTreeSet<&str> = column(&all, "NCCL_HOSTID").into_iter().collect();
        assert_eq!(ids.len(), 4);
        assert!(!ids.contains("-"));
    }

    #[test]
    fn planned_indices_count_within_the_visible_list() {
        let named = |gpus: &[u32], visible| {
            let all = visible_environments(vec![with_gpus(gpus)], &[8], Some(visible));
            column(&all, "CUDA_VISIBLE_DEVICES")[0].to_owned()
        };
        assert_eq!(named(&[0, 2], "4,5,6"), "4,6");
        assert_eq!(named(&[0], "GPU-8932f937"), "GPU-8932f937");
        assert_eq!(named(&[3], "4,5"), "3", "the driver refuses an index beyond the list");
        assert_eq!(named(&[0, 2], ""), "0,2");
        let all = visible_environments(vec![with_gpus(&[0, 2])], &[8], Some("4,5,6"));
        assert_eq!(column(&all, "RANKDECK_DEVICE"), ["cuda:0", "cuda:1"]);
        assert_eq!(column(&all, "LOCAL_RANK"), ["0", "1"]);
        assert_eq!(column(&all, "NCCL_HOSTID"), ["-"; 2]);
    }

    #[test]
    fn rank_on_a_mig_instance_gets_only_that_instance() {
        let all = visible_environments(vec![with_gpus(&[0, 1])], &[8], Some("MIG-a, MIG-b"));
        assert_eq!(column(&all, "CUDA_VISIBLE_DEVICES"), ["MIG-a", "MIG-b"]);
        assert_eq!(column(&all, "RANKDECK_DEVICE"), ["cuda:0"; 2]);
        assert_eq!(column(&all, "LOCAL_RANK"), ["0"; 2], "a script uses cuda:LOCAL_RANK");
        assert_eq!(column(&all, "LOCAL_WORLD_SIZE"), ["2"; 2]);
        let ids = column(&all, "NCCL_HOSTID");
        assert!(ids[0] != "-" && ids[0] != ids[1], "{ids:?}");
    }

    #[test]
    fn ras_ports_differ_by_run_and_local_rank() {
        let of = |run: &str, local_rank| ras_address(&RunId(run.into()), LocalRank(local_rank));
        let a = of("ppo-20260101-000000", 0);
        assert_ne!(a, of("ppo-20260101-000001", 0));
        assert_eq!(a, of("ppo-20260101-000000", 0));
        assert_ne!(a, of("ppo-20260101-000000", 1));
    }

    #[test]
    fn interface_is_set_for_gloo_and_nccl() {
        let mut hosts = vec![host("a"), host("b")];
        hosts[1].interface = Some("eth7".into());
        let all = environments(hosts, &[]);
        assert_eq!(column(&all, "GLOO_SOCKET_IFNAME"), ["-", "eth7"]);
        assert_eq!(column(&all, "NCCL_SOCKET_IFNAME"), ["-", "eth7"]);
    }
}
