//! The environment of one rank: the only author of its identity and device variables.

use super::{Plan, PlannedBackend, PlannedHost, PlannedRank};
use crate::ids::{Generation, LocalRank, RunId};
use crate::{template, variables};
use std::collections::BTreeMap;

/// Returns the user's variables for the ranks of a host: the experiment's `env`, then the host's, without
/// reserved names and without variables that take a value from the console.
pub fn user_environment(plan: &Plan, planned: &PlannedHost) -> BTreeMap<String, String> {
    let mut env = plan.experiment.filled_launch().env;
    env.extend(planned.host.env.clone());
    env.retain(|name, _| variables::reserved(name).is_none());
    env.into_iter().filter_map(|(name, value)| Some((name, variables::plain(&value)?))).collect()
}

/// Returns torchrun's variables for one rank, and rankdeck's identity variables. The agent adds paths
/// (`RANKDECK_STATUS_PAGE`, `RANKDECK_EVENTS`, `RANKDECK_RUN_DIR`), [`user_environment`] and
/// `LD_LIBRARY_PATH`.
///
/// Names and meanings are those of torch.distributed.elastic's local agent. `visible` is the agent's own
/// `CUDA_VISIBLE_DEVICES`, which Slurm or the user set; the plan's GPU indices count within that list.
///
/// `CUDA_VISIBLE_DEVICES` lists all GPUs of the host's ranks in local_rank order, so that a script's
/// `cuda:LOCAL_RANK` is the planned GPU. Where ranks share GPUs, it is `cuda:(LOCAL_RANK % count)`. A rank on
/// a MIG instance gets that instance alone and `LOCAL_RANK=0`, since a process can use only one.
/// `RANKDECK_DEVICE` is `cpu`, or `cuda:INDEX` within the list.
pub fn rank_environment(
    plan: &Plan,
    rank: &PlannedRank,
    generation: Generation,
    master_addr: &str,
    master_port: u16,
    visible: Option<&str>,
) -> BTreeMap<String, String> {
    let device = Device::of_rank(plan, rank, visible);
    let local_rank = match &device {
        Some(device) if device.is_instance => LocalRank(0),
        _ => rank.local_rank,
    };
    let local_world = plan.ranks_of(rank.node_rank).count();
    // Hosts without ranks do not count (PLAN-4).
    let group_rank = plan.members().take_while(|host| host.node_rank < rank.node_rank).count();
    let mut env = BTreeMap::new();
    let mut set = |name: &str, value: String| {
        env.insert(name.to_owned(), value);
    };
    set("RANK", rank.rank.to_string());
    set("LOCAL_RANK", local_rank.to_string());
    set("WORLD_SIZE", plan.world_size().to_string());
    set("LOCAL_WORLD_SIZE", local_world.to_string());
    set("NODE_RANK", group_rank.to_string());
    set("GROUP_RANK", group_rank.to_string());
    set("GROUP_WORLD_SIZE", plan.members().count().to_string());
    set("ROLE_RANK", rank.rank.to_string());
    set("ROLE_WORLD_SIZE", plan.world_size().to_string());
    set("ROLE_NAME", "default".to_owned());
    set("MASTER_ADDR", master_addr.to_owned());
    set("MASTER_PORT", master_port.to_string());
    set("TORCHELASTIC_RESTART_COUNT", generation.to_string());
    // The console makes restarts, each as a new generation; a rank must not expect one.
    set("TORCHELASTIC_MAX_RESTARTS", "0".to_owned());
    set("TORCHELASTIC_RUN_ID", plan.run.to_string());
    set("TORCHELASTIC_USE_AGENT_STORE", "False".to_owned());
    set("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1".to_owned());
    set("OMP_NUM_THREADS", plan.experiment.launch.threads.to_string());
    // A log file is not a terminal: without this, Python holds back kilobytes of output.
    set("PYTHONUNBUFFERED", "1".to_owned());
    set("RANKDECK_RUN", plan.run.to_string());
    set(template::SEED_VARIABLE, plan.experiment.run.seed.to_string());
    set("RANKDECK_GENERATION", generation.to_string());
    set("RANKDECK_NODE", rank.node_rank.to_string());
    if plan.experiment.watch.check_collectives {
        set("RANKDECK_CHECK_COLLECTIVES", "1".to_owned());
        // The same for PyTorch's own process groups.
        set("TORCH_DISTRIBUTED_DEBUG", "DETAIL".to_owned());
    }
    if plan.experiment.launch.slurm_env {
        for (name, value) in task_variables(plan, rank, local_rank, group_rank) {
            set(name, value);
        }
    }
    // Two runs on one host must not answer for each other.
    set("NCCL_RAS_ADDR", ras_address(&plan.run, rank.local_rank));
    match device {
        None => set("RANKDECK_DEVICE", "cpu".to_owned()),
        Some(device) => {
            set("RANKDECK_DEVICE", format!("cuda:{}", device.index));
            set("CUDA_VISIBLE_DEVICES", device.list);
            // NVML counts in PCI order; CUDA would put the fastest first.
            set("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned());
            if device.is_instance || device.is_shared && plan.backend() == PlannedBackend::Nccl {
                // NCCL refuses two ranks on one GPU of one host, and counts all MIG instances of a GPU as
                // that GPU. Ranks that claim different hosts may share it.
                set("NCCL_HOSTID", format!("{}-{}-{}", plan.run, rank.node_rank, rank.local_rank));
            }
        }
    }
    if let Some(interface) = plan.hosts.get(rank.node_rank.index()).and_then(|host| plan.interface(host)) {
        for name in ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"] {
            env.insert(name.to_owned(), interface.to_owned());
        }
    }
    env
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
        plan.ranks
            .iter()
            .map(|rank| rank_environment(&plan, rank, Generation(3), "10.0.0.1", 29500, visible))
            .collect()
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
        let all: Vec<_> = plan
            .ranks
            .iter()
            .map(|rank| rank_environment(&plan, rank, Generation(0), "a", 1, None))
            .collect();
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
