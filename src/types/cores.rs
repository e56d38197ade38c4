//! CPU cores of ranks (`launch.bind = "auto"`): the CPUs of a host that each of its ranks is bound to. Pure.
//!
//! The division is that of `torchrun --numa-binding exclusive` (torch/numa/binding.py of PyTorch), extended to NUMA nodes
//! without a GPU of the run, and to hosts without GPUs.
//!
//! - BIND-1: no two ranks share a physical core, and a core's hardware threads stay together.
//! - BIND-2: every rank has a core, or none is bound.
//! - BIND-3: if the NUMA node of every rank's GPU is known and has cores, a node's cores are split evenly across the ranks
//!   whose GPU is attached to it. Those of a node without such a rank are split across the ranks of its socket; without
//!   any, they stay free. Otherwise all cores are split evenly, in the order of nodes.

use crate::error::HintedError;
use crate::ids::{NodeRank, Rank};
use crate::plan::Plan;
use crate::words::plural;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// More CPUs than Linux supports on x86-64 (`NR_CPUS`): larger numbers are invalid.
pub const MOST_CPUS: u32 = 8192;

/// A set of CPUs, as Linux counts them. Its text is that of `Cpus_allowed_list` in `/proc/PID/status`: `0-3,8`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct CpuSet(BTreeSet<u32>);

impl CpuSet {
    /// Returns whether no CPU is in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns its CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    /// Returns whether the CPU is in it.
    pub fn has(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// Returns the CPUs that are in both.
    #[must_use]
    pub fn and(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.intersection(&other.0).copied().collect())
    }
}

impl FromIterator<u32> for CpuSet {
    /// CPUs from [`MOST_CPUS`] on are left out.
    fn from_iter<T: IntoIterator<Item = u32>>(cpus: T) -> CpuSet {
        CpuSet(cpus.into_iter().filter(|cpu| *cpu < MOST_CPUS).collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<u32> = self.iter().collect();
        let runs = all.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
            [one] => one.to_string(),
            [first, .., last] => format!("{first}-{last}"),
            [] => String::new(),
        });
        f.write_str(&runs.collect::<Vec<_>>().join(","))
    }
}

impl FromStr for CpuSet {
    type Err = String;

    fn from_str(text: &str) -> Result<CpuSet, String> {
        let mut all = BTreeSet::new();
        for part in text.trim().split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let number = |text: &str| text.parse::<u32>().ok().filter(|cpu| *cpu < MOST_CPUS);
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let range = number(first).zip(number(last)).filter(|(first, last)| first <= last);
            let (first, last) = range.ok_or_else(|| format!("invalid list of CPUs: `{part}`"))?;
            all.extend(first..=last);
        }
        Ok(CpuSet(all))
    }
}

impl From<CpuSet> for String {
    fn from(set: CpuSet) -> String {
        set.to_string()
    }
}

impl TryFrom<String> for CpuSet {
    type Error = String;

    fn try_from(text: String) -> Result<CpuSet, String> {
        text.parse()
    }
}

/// A physical core of a host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PhysicalCore {
    /// Its hardware threads that the ranks may use.
    pub cpus: CpuSet,
    /// Its NUMA node.
    pub node: u32,
    /// Its socket.
    pub socket: u32,
}

/// The cores of a host that its ranks may use, and where its GPUs are attached.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuTopology {
    pub cores: Vec<PhysicalCore>,
    /// NUMA nodes of GPUs, by the index that a plan uses; those with an unknown node are left out.
    pub gpu_nodes: BTreeMap<u32, u32>,
}

impl CpuTopology {
    /// Splits the cores across ranks, given the GPU of each.
    ///
    /// # Errors
    /// There are fewer cores than ranks (BIND-2).
    pub fn split(&self, gpus: &[Option<u32>]) -> Result<Vec<CpuSet>, HintedError> {
        if self.cores.len() < gpus.len() {
            let (ranks, cores) = (plural(gpus.len(), "rank"), plural(self.cores.len(), "physical core"));
            return Err(HintedError::new(
                format!("ranks are not bound to cores: {ranks} on {cores}"),
                "lower `nproc`, allow more cores, or set `launch.bind = \"none\"`",
            ));
        }
        Ok(self.near_gpus(gpus).unwrap_or_else(|| {
            let mut sets = vec![CpuSet::default(); gpus.len()];
            deal(&self.in_order(), &(0..gpus.len()).collect::<Vec<_>>(), &mut sets);
            sets
        }))
    }

    /// BIND-3; `None` if a GPU's node is unknown or has too few cores.
    fn near_gpus(&self, gpus: &[Option<u32>]) -> Option<Vec<CpuSet>> {
        let socket_of = |node: u32| self.cores.iter().find(|core| core.node == node).map(|core| core.socket);
        let place = |gpu: &Option<u32>| {
            let node = *self.gpu_nodes.get(&(*gpu)?)?;
            Some((node, socket_of(node)?))
        };
        let places: Vec<(u32, u32)> = gpus.iter().map(place).collect::<Option<_>>()?;
        let ranks = |fits: &dyn Fn(&(u32, u32)) -> bool| -> Vec<usize> {
            places.iter().enumerate().filter(|(_, place)| fits(place)).map(|(rank, _)| rank).collect()
        };
        let mut sets = vec![CpuSet::default(); gpus.len()];
        for cores in self.in_order().chunk_by(|a, b| a.node == b.node) {
            let Some(PhysicalCore { node, socket, .. }) = cores.first() else { continue };
            let mut owners = ranks(&|(own, _)| own == node);
            if owners.is_empty() {
                owners = ranks(&|(_, own)| own == socket);
            }
            deal(cores, &owners, &mut sets);
        }
        sets.iter().all(|set| !set.is_empty()).then_some(sets)
    }

    /// The cores by node and first CPU.
    fn in_order(&self) -> Vec<&PhysicalCore> {
        let mut cores: Vec<&PhysicalCore> = self.cores.iter().collect();
        cores.sort_by_key(|core| (core.node, core.cpus.iter().next()));
        cores
    }

    /// Returns the CPUs that no rank has.
    pub fn unused<'a>(&self, sets: impl Iterator<Item = &'a CpuSet>) -> CpuSet {
        let used: BTreeSet<u32> = sets.flat_map(CpuSet::iter).collect();
        self.cores.iter().flat_map(|core| core.cpus.iter()).filter(|cpu| !used.contains(cpu)).collect()
    }
}

/// Splits cores evenly, in order: the shares differ by at most one core.
fn deal(cores: &[&PhysicalCore], owners: &[usize], sets: &mut [CpuSet]) {
    let at = |share: usize| cores.len() * share / owners.len().max(1);
    for (share, owner) in owners.iter().enumerate() {
        let own = cores.get(at(share)..at(share + 1)).unwrap_or_default();
        if let Some(set) = sets.get_mut(*owner) {
            set.0.extend(own.iter().flat_map(|core| core.cpus.iter()));
        }
    }
}

/// Returns the CPUs of each rank of a host.
///
/// # Errors
/// The ranks cannot be bound.
pub fn of_ranks(
    plan: &Plan,
    node: NodeRank,
    topology: &CpuTopology,
) -> Result<BTreeMap<Rank, CpuSet>, HintedError> {
    let host = plan.hosts.iter().find(|host| host.node_rank == node);
    if host.is_some_and(|host| host.host.setup.starts_elsewhere()) {
        return Err(HintedError::new(
            "ranks are not bound to cores: the container tool starts them",
            "add `--cpuset-cpus` to `container`, or set `launch.bind = \"none\"`",
        ));
    }
    let ranks: Vec<_> = plan.ranks_of(node).collect();
    let gpus: Vec<Option<u32>> = ranks.iter().map(|rank| rank.gpu).collect();
    let sets = topology.split(&gpus)?;
    Ok(ranks.iter().map(|rank| rank.rank).zip(sets).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `nodes`: socket and lists of the CPUs of each core, by node. `gpus`: node of each GPU.
    fn topology(nodes: &[(u32, &[&str])], gpus: &[u32]) -> CpuTopology {
        let cores = nodes.iter().zip(0..).flat_map(|((socket, cores), node)| {
            let core = move |cpus: &&str| PhysicalCore { cpus: cpus.parse().unwrap(), node, socket: *socket };
            cores.iter().map(core)
        });
        CpuTopology { cores: cores.collect(), gpu_nodes: (0..).zip(gpus.iter().copied()).collect() }
    }

    fn split(topology: &CpuTopology, gpus: &[Option<u32>]) -> Vec<String> {
        topology.split(gpus).unwrap().iter().map(CpuSet::to_string).collect()
    }

    const CPU: Option<u32> = None;
    const FOUR: [Option<u32>; 4] = [Some(0), Some(1), Some(2), Some(3)];

    #[test]
    fn bind_3_cores_are_split_by_the_nodes_of_gpus() {
        let names: Vec<String> = (0..16).map(|cpu: u32| cpu.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let two = |gpus: &[u32]| topology(&[(0, &names[..8]), (1, &names[8..])], gpus);
        for (what, topology, gpus, expected) in [
            ("2 GPUs per socket", two(&[0, 0, 1, 1]), &FOUR[..], &["0-3", "4-7", "8-11", "12-15"][..]),
            ("in another order", two(&[1, 0, 1, 0]), &FOUR, &["8-11", "0-3", "12-15", "4-7"]),
            ("GPUs of one socket", two(&[1, 1]), &FOUR[..2], &["8-11", "12-15"]),
            ("ranks share a GPU", two(&[1]), &[Some(0), Some(0)], &["8-11", "12-15"]),
            ("unknown node of a GPU", two(&[1]), &FOUR[..2], &["0-7", "8-15"]),
            ("a rank without a GPU", two(&[1]), &[Some(0), CPU], &["0-7", "8-15"]),
            ("CPU ranks", two(&[]), &[CPU; 4], &["0-3", "4-7", "8-11", "12-15"]),
            ("an odd number", two(&[]), &[CPU; 3], &["0-4", "5-9", "10-15"]),
            ("one rank", two(&[]), &[CPU], &["0-15"]),
            ("one rank with a GPU", two(&[1]), &[Some(0)], &["8-15"]),
        ] {
            assert_eq!(split(&topology, gpus), expected, "{what}");
        }
        let one = two(&[1, 1]);
        let sets = one.split(&FOUR[..2]).unwrap();
        assert_eq!(one.unused(sets.iter()).to_string(), "0-7");
    }

    #[test]
    fn bind_3_nodes_without_gpus_serve_their_socket() {
        // Four nodes on two sockets; GPUs are attached to nodes 1 and 2.
        let quarters =
            topology(&[(0, &["0", "1"]), (0, &["2", "3"]), (1, &["4", "5"]), (1, &["6", "7"])], &[1, 1, 2]);
        assert_eq!(split(&quarters, &FOUR[..3]), ["0,2", "1,3", "4-7"]);
        assert_eq!(split(&quarters, &[Some(2)]), ["4-7"]);
    }

    #[test]
    fn bind_1_hardware_threads_stay_together() {
        let threads = topology(&[(0, &["0,4", "1,5", "2,6", "3,7"])], &[]);
        assert_eq!(split(&threads, &[CPU; 2]), ["0-1,4-5", "2-3,6-7"]);
        assert_eq!(split(&threads, &[CPU; 4]), ["0,4", "1,5", "2,6", "3,7"]);
        assert!(threads.split(&[CPU; 5]).is_err(), "threads are not cores");
    }

    #[test]
    fn bind_2_too_few_cores_bind_no_rank() {
        let three = topology(&[(0, &["1"]), (1, &["9", "17"])], &[0, 1, 1, 1]);
        assert!(three.split(&FOUR).unwrap_err().error.contains("4 ranks on 3 physical cores"));
        assert_eq!(split(&three, &FOUR[..3]), ["1", "9", "17"]);
        // Node 0 has one core for two GPUs.
        let crowded = CpuTopology { gpu_nodes: [(0, 0), (1, 0), (2, 1)].into(), ..three };
        assert_eq!(split(&crowded, &FOUR[..3]), ["1", "9", "17"]);
        assert!(CpuTopology::default().split(&[CPU]).is_err());
    }

    #[test]
    fn shares_are_even_and_disjoint_for_any_size() {
        for cores in 1..40_u32 {
            let names: Vec<String> = (0..cores).map(|cpu| cpu.to_string()).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let topology = topology(&[(0, &names)], &[]);
            for ranks in 1..=cores as usize {
                let sets = topology.split(&vec![CPU; ranks]).unwrap();
                let sizes: Vec<usize> = sets.iter().map(|set| set.iter().count()).collect();
                assert_eq!(sizes.iter().sum::<usize>(), cores as usize, "{ranks} on {cores}");
                assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
                assert!(topology.unused(sets.iter()).is_empty());
            }
        }
    }

    #[test]
    fn list_of_cpus_is_that_of_linux() {
        for text in ["", "0", "0-3", "0-1,4,6-8"] {
            assert_eq!(text.parse::<CpuSet>().unwrap().to_string(), text);
        }
        assert_eq!("3,1,2\n".parse::<CpuSet>().unwrap().to_string(), "1-3");
        for bad in ["a", "3-1", "0-9999999", "1-", "-1", "4294967296"] {
            assert!(bad.parse::<CpuSet>().is_err(), "{bad}");
        }
        let json = serde_json::to_string(&topology(&[(0, &["0,2"])], &[0])).unwrap();
        assert_eq!(serde_json::from_str::<CpuTopology>(&json).unwrap(), topology(&[(0, &["0,2"])], &[0]));
    }
}
