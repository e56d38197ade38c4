//! The cores that ranks of this host may use, the NUMA nodes of its GPUs, and the binding of a thread.
//!
//! From sysfs (Documentation/ABI/stable/sysfs-devices-system-cpu, sysfs-devices-node, sysfs-bus-pci). Without it, as in
//! some containers, each CPU counts as a core of node 0.
//!
//! - TOPOLOGY-1: CPUs outside of this process's affinity, which a cpuset of Slurm, of a container or `taskset` limits, do
//!   not exist.

use crate::examine::bounded;
use crate::observe::gpu;
use rankdeck_types::cores::{CpuSet, CpuTopology, MOST_CPUS, PhysicalCore};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

/// How long the driver of the GPUs may take.
const DRIVER: Duration = Duration::from_secs(10);

/// Words of an affinity mask, as the kernel reads it.
type Mask = [u64; MOST_CPUS as usize / 64];

/// Reads the topology of this host. `has_gpus`: where GPUs are attached matters.
pub(crate) fn of_this_host(has_gpus: bool) -> CpuTopology {
    let gpus = match has_gpus {
        true => bounded(DRIVER, gpu::pci_addresses).wait().unwrap_or_default(),
        false => Vec::new(),
    };
    read(Path::new("/sys"), &affinity(), &gpus)
}

/// TOPOLOGY-1. `gpus`: index in a plan, and PCI address.
fn read(sys: &Path, usable: &CpuSet, gpus: &[(u32, String)]) -> CpuTopology {
    let nodes = cpu_nodes(sys);
    let mut cores: Vec<PhysicalCore> = Vec::new();
    for cpu in usable.iter() {
        if cores.iter().any(|core| core.cpus.has(cpu)) {
            continue;
        }
        let folder = sys.join(format!("devices/system/cpu/cpu{cpu}/topology"));
        // The second one is its name before Linux 5.3.
        let siblings = ["core_cpus_list", "thread_siblings_list"]
            .iter()
            .find_map(|name| value::<CpuSet>(&folder.join(name)))
            .map(|all| all.and(usable))
            .filter(|all| all.has(cpu));
        cores.push(PhysicalCore {
            cpus: siblings.unwrap_or_else(|| CpuSet::from_iter([cpu])),
            node: nodes.get(&cpu).copied().unwrap_or_default(),
            socket: value(&folder.join("physical_package_id")).unwrap_or_default(),
        });
    }
    // It is -1 if the firmware does not report it.
    let node = |(index, address): &(u32, String)| {
        let path = sys.join("bus/pci/devices").join(address).join("numa_node");
        Some((*index, value::<u32>(&path)?))
    };
    CpuTopology { cores, gpu_nodes: gpus.iter().filter_map(node).collect() }
}

/// The NUMA node of each CPU.
fn cpu_nodes(sys: &Path) -> BTreeMap<u32, u32> {
    let folders = std::fs::read_dir(sys.join("devices/system/node")).into_iter().flatten().flatten();
    let of_node = |folder: std::fs::DirEntry| {
        let node: u32 = folder.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        let cpus = value::<CpuSet>(&folder.path().join("cpulist"))?;
        Some(cpus.iter().map(|cpu| (cpu, node)).collect::<Vec<_>>())
    };
    folders.filter_map(of_node).flatten().collect()
}

/// The value in a file of sysfs.
fn value<T: FromStr>(path: &Path) -> Option<T> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The CPUs that this thread may use; empty if the kernel does not report them.
fn affinity() -> CpuSet {
    let mut mask: Mask = [0; MOST_CPUS as usize / 64];
    // SAFETY: the kernel writes at most the given number of bytes, and every bit pattern is a value.
    let status = unsafe { libc::sched_getaffinity(0, size_of_val(&mask), mask.as_mut_ptr().cast()) };
    match status {
        0 => (0..MOST_CPUS).filter(|cpu| (mask[*cpu as usize / 64] >> (cpu % 64)) & 1 == 1).collect(),
        _ => CpuSet::default(),
    }
}

fn set_affinity(cpus: &CpuSet) -> io::Result<()> {
    let mut mask: Mask = [0; MOST_CPUS as usize / 64];
    for cpu in cpus.iter() {
        mask[cpu as usize / 64] |= 1 << (cpu % 64);
    }
    // SAFETY: the kernel reads the given number of bytes of a live array.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&mask), mask.as_ptr().cast()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// This thread is bound to CPUs while this lives, and so are the processes that it starts meanwhile, for good. Memory that
/// they touch comes from the NUMA node of their cores, by the kernel's default policy.
#[derive(Debug)]
pub(crate) struct ThreadBinding {
    before: CpuSet,
}

impl ThreadBinding {
    /// Binds this thread.
    ///
    /// # Errors
    /// None of the CPUs may be used.
    pub fn new(cpus: &CpuSet) -> io::Result<ThreadBinding> {
        let before = affinity();
        set_affinity(cpus)?;
        Ok(ThreadBinding { before })
    }
}

impl Drop for ThreadBinding {
    fn drop(&mut self) {
        let _ = set_affinity(&self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A sysfs with so many CPUs per socket, each socket a node, and two hardware threads per core: CPU N and N + half.
    fn sysfs(sockets: u32, cpus: u32) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: String, text: String| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text + "\n").unwrap();
        };
        let cores = cpus / 2;
        let socket = |cpu: u32| cpu % cores / (cores / sockets);
        for cpu in 0..cpus {
            let topology = format!("devices/system/cpu/cpu{cpu}/topology");
            let core = cpu % cores;
            write(format!("{topology}/thread_siblings_list"), format!("{core},{}", core + cores));
            write(format!("{topology}/physical_package_id"), socket(cpu).to_string());
        }
        for node in 0..sockets {
            let own: CpuSet = (0..cpus).filter(|cpu| socket(*cpu) == node).collect();
            write(format!("devices/system/node/node{node}/cpulist"), own.to_string());
        }
        write("devices/system/node/possible".into(), "0-1".into());
        write("bus/pci/devices/0000:3b:00.0/numa_node".into(), "1".into());
        write("bus/pci/devices/0000:5e:00.0/numa_node".into(), "-1".into());
        folder
    }

    fn cores(topology: &CpuTopology) -> Vec<(String, u32, u32)> {
        topology.cores.iter().map(|core| (core.cpus.to_string(), core.node, core.socket)).collect()
    }

    fn gpus() -> Vec<(u32, String)> {
        let addresses = ["0000:3b:00.0", "0000:5e:00.0", "0000:ff:00.0"];
        (0..).zip(addresses.map(str::to_owned)).collect()
    }

    #[test]
    fn cores_and_nodes_are_read_from_sysfs() {
        let sys = sysfs(2, 8);
        let all = read(sys.path(), &"0-7".parse().unwrap(), &gpus());
        let expected = [("0,4", 0), ("1,5", 0), ("2,6", 1), ("3,7", 1)];
        assert_eq!(cores(&all), expected.map(|(cpus, node)| (cpus.to_owned(), node, node)));
        assert_eq!(all.gpu_nodes, BTreeMap::from([(0, 1)]), "the others are unknown");
    }

    #[test]
    fn topology_1_cpus_outside_of_the_affinity_are_left_out() {
        let sys = sysfs(2, 8);
        let some = read(sys.path(), &"1-2,6".parse().unwrap(), &[]);
        assert_eq!(cores(&some), [("1".to_owned(), 0, 0), ("2,6".to_owned(), 1, 1)]);
    }

    #[test]
    fn without_sysfs_each_cpu_is_a_core() {
        let empty = tempfile::tempdir().unwrap();
        let found = read(empty.path(), &"0,3".parse().unwrap(), &gpus());
        assert_eq!(cores(&found), [("0".to_owned(), 0, 0), ("3".to_owned(), 0, 0)]);
        assert!(found.gpu_nodes.is_empty());
    }

    #[test]
    fn bound_thread_starts_bound_processes() {
        let allowed = || {
            let output = Command::new("cat").arg("/proc/self/status").output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            line.unwrap().trim().parse::<CpuSet>().unwrap()
        };
        std::thread::spawn(move || {
            let all = affinity();
            assert_eq!(allowed(), all);
            let one: CpuSet = all.iter().take(1).collect();
            let binding = ThreadBinding::new(&one).unwrap();
            assert_eq!(allowed(), one);
            drop(binding);
            assert_eq!(allowed(), all);
            assert!(ThreadBinding::new(&CpuSet::from_iter([MOST_CPUS - 1])).is_err());
        })
        .join()
        .unwrap();
    }
}
