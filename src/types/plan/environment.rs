//! The environment of one rank.

use super::{Plan, PlannedHost, PlannedRank};
use crate::ids::{Generation, LocalRank, RunId};
use crate::variables;
use std::collections::BTreeMap;

/// What the user set for the ranks of a host: the experiment's `env`, then the host's own, without the
/// variables that identify a rank, and without those that take a value from the console.
pub fn user_environment(plan: &Plan, planned: &PlannedHost) -> BTreeMap<String, String> {
    let mut env = plan.experiment.launch.env.clone();
    env.extend(planned.host.env.clone());
    env.retain(|name, _| variables::reserved(name).is_none());
    env.into_iter().filter_map(|(name, value)| Some((name, variables::plain(&value)?))).collect()
}

/// Everything torchrun sets for one rank, and rankdeck's own identity variables. The agent adds paths
/// (`RANKDECK_STATUS_PAGE`, `RANKDECK_EVENTS`, `RANKDECK_RUN_DIR`), [`user_environment`] and
/// `LD_LIBRARY_PATH`.
///
/// Names and meanings are those of torch.distributed.elastic's local agent. `CUDA_VISIBLE_DEVICES` lists all
/// GPUs of the host's ranks in local_rank order, so that a script's `cuda:LOCAL_RANK` is the planned GPU.
/// Where ranks share GPUs, it is `cuda:(LOCAL_RANK % count)`. `RANKDECK_DEVICE` names the device: `cpu`, or
/// `cuda:INDEX` among the visible ones.
pub fn rank_environment(
    plan: &Plan,
    rank: &PlannedRank,
    generation: Generation,
    master_addr: &str,
    master_port: u16,
) -> BTreeMap<String, String> {
    let local_world = plan.ranks_of(rank.node_rank).count();
    // Hosts without ranks do not count (PLAN-4).
    let group_rank = plan.members().take_while(|host| host.node_rank < rank.node_rank).count();
    let mut env = BTreeMap::new();
    let mut set = |name: &str, value: String| {
        env.insert(name.to_owned(), value);
    };
    set("RANK", rank.rank.to_string());
    set("LOCAL_RANK", rank.local_rank.to_string());
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
    set("RANKDECK_GENERATION", generation.to_string());
    set("RANKDECK_NODE", rank.node_rank.to_string());
    if plan.experiment.watch.check_collectives {
        set("RANKDECK_CHECK_COLLECTIVES", "1".to_owned());
        // The same for PyTorch's own process groups.
        set("TORCH_DISTRIBUTED_DEBUG", "DETAIL".to_owned());
    }
    // Two runs on one host must not answer for each other.
    set("NCCL_RAS_ADDR", ras_address(&plan.run, rank.local_rank));
    env.extend(device_environment(plan, rank).into_iter().map(|(name, value)| (name.to_owned(), value)));
    if let Some(interface) = plan.hosts.get(rank.node_rank.index()).and_then(|host| host.interface.as_ref()) {
        for name in ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"] {
            env.insert(name.to_owned(), interface.clone());
        }
    }
    env
}

/// Which device a rank has, and which of its host's devices it sees.
fn device_environment(plan: &Plan, rank: &PlannedRank) -> Vec<(&'static str, String)> {
    let mut visible: Vec<u32> = Vec::new();
    for gpu in plan.ranks_of(rank.node_rank).filter_map(|rank| rank.gpu) {
        if !visible.contains(&gpu) {
            visible.push(gpu);
        }
    }
    let Some(index) = rank.gpu.and_then(|gpu| visible.iter().position(|shown| *shown == gpu)) else {
        return vec![("RANKDECK_DEVICE", "cpu".to_owned())];
    };
    let list: Vec<String> = visible.iter().map(u32::to_string).collect();
    let mut env = vec![
        ("CUDA_VISIBLE_DEVICES", list.join(",")),
        // NVML counts in PCI order; CUDA would put the fastest first.
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()),
        ("RANKDECK_DEVICE", format!("cuda:{index}")),
    ];
    let shared = plan.ranks_of(rank.node_rank).filter(|other| other.gpu == rank.gpu).count() > 1;
    if shared && plan.backend == "nccl" {
        // NCCL refuses two ranks on one GPU of one host; ranks that claim different hosts may share it.
        env.push(("NCCL_HOSTID", format!("{}-{}-{}", plan.run, rank.node_rank, rank.local_rank)));
    }
    env
}

/// Where NCCL's RAS subsystem of a rank listens on its host. The ports of a run follow each other: where
/// ranks share one, the kernel chooses who answers, and a frozen rank may be chosen. They are below the range
/// that the kernel gives to clients, and differ from NCCL's default of 28028. When another program holds one,
/// NCCL continues without RAS.
pub fn ras_address(run: &RunId, local_rank: LocalRank) -> String {
    let hash =
        run.0.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("localhost:{}", 20_000 + (hash % 7_000) + local_rank.0 % 1_000)
}

#[cfg(test)]
mod tests {
    use super::super::resolve::tests::{draft, host, probe};
    use super::*;
    use crate::host::Gpus;

    fn environments(hosts: Vec<crate::host::Host>, gpus: &[u32]) -> Vec<BTreeMap<String, String>> {
        let probes: Vec<_> = gpus.iter().map(|count| probe(*count)).collect();
        let plan = draft(hosts, 64).resolve(&probes).unwrap();
        plan.ranks
            .iter()
            .map(|rank| rank_environment(&plan, rank, Generation(3), "10.0.0.1", 29500))
            .collect()
    }

    fn column<'a>(all: &'a [BTreeMap<String, String>], name: &str) -> Vec<&'a str> {
        all.iter().map(|env| env.get(name).map_or("-", String::as_str)).collect()
    }

    #[test]
    fn two_by_two() {
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
            ("RANKDECK_DEVICE", "cpu"),
            ("CUDA_VISIBLE_DEVICES", "-"),
            ("GLOO_SOCKET_IFNAME", "-"),
        ] {
            assert_eq!(column(&all, name), [value; 4], "{name}");
        }
    }

    #[test]
    fn a_script_that_takes_cuda_local_rank_gets_the_planned_gpu() {
        let mut only = host("a");
        only.gpus = Some(Gpus::List(vec![5, 2]));
        let all = environments(vec![only], &[8]);
        assert_eq!(column(&all, "CUDA_VISIBLE_DEVICES"), ["5,2", "5,2"]);
        assert_eq!(column(&all, "RANKDECK_DEVICE"), ["cuda:0", "cuda:1"]);
        assert_eq!(column(&all, "CUDA_DEVICE_ORDER"), ["PCI_BUS_ID"; 2]);
        assert_eq!(column(&all, "NCCL_HOSTID"), ["-"; 2]);
    }

    #[test]
    fn ranks_that_share_a_gpu_are_hosts_of_their_own_to_nccl() {
        let mut only = host("a");
        only.gpus = Some(Gpus::List(vec![4, 6]));
        only.nproc = Some(4);
        let all = environments(vec![only], &[8]);
        assert_eq!(column(&all, "RANKDECK_DEVICE"), ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]);
        let ids: std::collections::BTreeSet<&str> = column(&all, "NCCL_HOSTID").into_iter().collect();
        assert_eq!(ids.len(), 4);
        assert!(!ids.contains("-"));
    }

    #[test]
    fn runs_have_ras_ports_of_their_own() {
        let of = |run: &str, local_rank| ras_address(&RunId(run.into()), LocalRank(local_rank));
        let a = of("ppo-20260101-000000", 0);
        assert_ne!(a, of("ppo-20260101-000001", 0));
        assert_eq!(a, of("ppo-20260101-000000", 0));
        assert_ne!(a, of("ppo-20260101-000000", 1));
    }

    #[test]
    fn the_interface_goes_to_both_libraries() {
        let mut hosts = vec![host("a"), host("b")];
        hosts[1].interface = Some("eth7".into());
        let all = environments(hosts, &[]);
        assert_eq!(column(&all, "GLOO_SOCKET_IFNAME"), ["-", "eth7"]);
        assert_eq!(column(&all, "NCCL_SOCKET_IFNAME"), ["-", "eth7"]);
    }
}
