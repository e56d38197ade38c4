//! Facts about a machine: GPUs and who uses them, disks, limits, interfaces, what happens to processes
//! after a logout.
//!
//! Owner: one preflight; readers only, but for a file of a few bytes that is written to learn whether one can
//! be.
//!
//! Names, the way from this host to rank 0's store, and the interface for Gloo and NCCL.
//!
//! Invariants:
//! - ROUTE-1: where another machine takes part, no loopback interface is the way, whatever names mean here:
//!   Debian's own /etc/hosts has `127.0.1.1 NAME` for the host's name.

use super::program::nearest;
use crate::observe::gpu::visible_gpus;
use crate::observe::host_signals::{InterfaceAddress, interface_addresses};
use crate::observe::nvml::{self, Shares};
use crate::proc;
use nvml_wrapper::error::NvmlError;
use rankdeck_proto::examination::{
    Disk, GpuFinding, GpuProcess, HostQuestion, Interface, LoginSession, ProcessLimits, ResolvedNames, Route,
};
use rankdeck_proto::message::GpuInstance;
use rankdeck_proto::trust;
use rankdeck_types::error::HintedError;
use rustix::process::{Resource, getrlimit};
use std::io::Write;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};

/// Returns the driver's version, its GPUs, and why they are unknown although there is a driver.
pub(super) type GpuFindings = (Option<String>, Vec<GpuFinding>, Option<HintedError>);

pub(super) fn gpus() -> GpuFindings {
    let nvml = match nvml::open() {
        Ok(nvml) => nvml,
        Err(error) => return (None, Vec::new(), driver_error(&error)),
    };
    let all = nvml::sample(&nvml, &mut Shares::default());
    // Counted as the plan counts. A GPU that the user's list names twice is there twice.
    let found = visible_gpus(&all).into_iter().zip(0..).filter_map(|(given, place)| {
        let given = given?;
        let gpu = given.gpu(&all)?;
        let whole = GpuInstance {
            uuid: gpu.uuid.clone(),
            name: gpu.name.clone(),
            memory_used: gpu.memory_used,
            memory_total: gpu.memory_total,
            processes: gpu.processes.clone(),
        };
        let part = given.instance(gpu).cloned().unwrap_or(whole);
        Some(GpuFinding {
            index: place,
            name: part.name,
            uuid: part.uuid,
            memory_used: part.memory_used,
            memory_total: part.memory_total,
            processes: part.processes.iter().map(|(pid, bytes)| process(*pid, *bytes)).collect(),
            health: nvml::health(&nvml, gpu),
            lost: gpu.lost,
        })
    });
    let found = found.collect();
    (nvml.sys_driver_version().ok(), found, None)
}

/// Returns why NVML fails although there is a driver, and what helps.
fn driver_error(error: &NvmlError) -> Option<HintedError> {
    let (text, hint) = match error {
        NvmlError::LibloadingError(_) if !has_cuda() => return None,
        NvmlError::LibRmVersionMismatch => (
            "NVIDIA driver mismatch: kernel module and libraries have different versions".to_owned(),
            "the driver was updated while loaded: reboot the host",
        ),
        NvmlError::DriverNotLoaded => (
            "the NVIDIA driver is installed but not loaded".to_owned(),
            "run `sudo modprobe nvidia` on the host; for the cause: `dmesg | grep -i nvidia`",
        ),
        NvmlError::NoPermission => (
            "this user has no access to the NVIDIA driver".to_owned(),
            "check permissions with `ls -l /dev/nvidia*` on the host",
        ),
        error @ (NvmlError::LibloadingError(_) | NvmlError::FailedToLoadSymbol(_)) => (
            format!("the NVIDIA driver is present, but not NVML: {error}"),
            "install the driver's libnvidia-ml.so.1; in containers, set `NVIDIA_DRIVER_CAPABILITIES=compute,utility`",
        ),
        error => (
            format!("the NVIDIA driver is present, but NVML fails: {error}"),
            "run `nvidia-smi` on the host; for the cause: `dmesg | grep -i -e nvrm -e xid`",
        ),
    };
    Some(HintedError::new(text, hint))
}

/// The driver's library of CUDA is there.
fn has_cuda() -> bool {
    // SAFETY: the name ends in NUL; what the driver does when it is loaded is its own business, and it is
    // asked for nothing.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY) };
    if !library.is_null() {
        // SAFETY: it was opened above, and nothing of it is used.
        unsafe { libc::dlclose(library) };
    }
    !library.is_null()
}

fn process(pid: u32, bytes: u64) -> GpuProcess {
    let environ = proc::environ(pid).unwrap_or_default();
    let run = proc::variable(&environ, "RANKDECK_RUN").map(|run| String::from_utf8_lossy(run).into_owned());
    GpuProcess { pid, bytes, command: proc::command_line(pid, 80), run }
}

/// Space of the file system of `path`, or of the nearest directory above it.
pub(super) fn space(path: &Path) -> Disk {
    let mut disk = Disk { path: path.display().to_string(), ..Disk::default() };
    match rustix::fs::statvfs(nearest(path)) {
        Ok(facts) => {
            disk.free = facts.f_bavail.saturating_mul(facts.f_frsize);
            disk.total = facts.f_blocks.saturating_mul(facts.f_frsize);
            // File systems without inodes report 0 of 0.
            disk.free_files = if facts.f_files == 0 { u64::MAX } else { facts.f_favail };
        }
        Err(error) => disk.error = Some(std::io::Error::from(error).to_string()),
    }
    disk
}

/// Also writes and removes a file in it, or in its nearest existing parent. No directory
/// is made: other checks, and those of other hosts of this machine, use the same path at the same moment,
/// and would fail when it disappears.
pub(super) fn disk(workdir: &Path) -> Disk {
    let mut disk = space(workdir);
    let there = workdir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let runs = workdir.join("runs");
    disk.distrust = trust::check_run(&runs, &runs).err();
    if disk.distrust.is_some() {
        return disk;
    }
    let file = there.join(format!(".rankdeck-check-{}", std::process::id()));
    let written = trust::create(&file).and_then(|mut file| file.write_all(&[b'x'; 4096]));
    let _ = std::fs::remove_file(&file);
    disk.error = disk.error.or(written.err().map(|error| error.to_string()));
    disk
}

/// Soft limits of this process.
pub(super) fn limits() -> ProcessLimits {
    ProcessLimits {
        open_files: getrlimit(Resource::Nofile).current,
        processes: getrlimit(Resource::Nproc).current,
        locked: getrlimit(Resource::Memlock).current,
        infiniband: std::fs::read_dir("/sys/class/infiniband")
            .is_ok_and(|mut inside| inside.next().is_some()),
    }
}

/// Returns the interfaces that are up and have an address.
pub(super) fn interfaces() -> Vec<Interface> {
    let mut found: Vec<Interface> = Vec::new();
    for InterfaceAddress { name, address, .. } in interface_addresses().into_iter().filter(|own| own.is_up) {
        match found.iter_mut().find(|interface| interface.name == name) {
            Some(interface) => interface.addresses.push(address),
            None => found.push(Interface { name, addresses: vec![address] }),
        }
    }
    found
}

/// The user's name, or number.
pub(super) fn user() -> String {
    trust::user_name(trust::own_uid())
}

/// Release of the kernel.
pub(super) fn kernel() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// Will ranks live on after the login that starts them?
pub(super) fn session() -> LoginSession {
    let error = if proc::stat(std::process::id()).is_none() {
        Some("no mounted /proc".to_owned())
    } else {
        crate::supervise::groups::pidfd(std::process::id()).err().map(|error| format!("pidfd_open: {error}"))
    };
    let systemd = Path::new("/run/systemd/system").is_dir();
    let lingers = Path::new("/var/lib/systemd/linger").join(user()).exists();
    LoginSession {
        killed_at_logout: systemd && kills_user_processes(Path::new("/etc/systemd")) && !lingers,
        error,
    }
}

/// `KillUserProcesses` of logind.conf and its drop-ins, of which the last one wins.
fn kills_user_processes(folder: &Path) -> bool {
    let mut files = vec![folder.join("logind.conf")];
    let mut more: Vec<PathBuf> = std::fs::read_dir(folder.join("logind.conf.d"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path())
        .collect();
    more.sort();
    files.extend(more);
    let values = files.iter().filter_map(|file| std::fs::read_to_string(file).ok()).flat_map(|text| {
        let value = |line: &str| {
            let (key, value) = line.trim().split_once('=')?;
            (key.trim() == "KillUserProcesses").then(|| value.trim().to_ascii_lowercase())
        };
        text.lines().filter_map(value).collect::<Vec<_>>()
    });
    values.last().is_some_and(|value| ["yes", "true", "on", "1"].contains(&value.as_str()))
}

/// Identity of one machine, or of one container with its own network and processes.
pub(super) fn identity() -> String {
    let space = |kind: &str| {
        std::fs::read_link(format!("/proc/self/ns/{kind}"))
            .map(|link| link.display().to_string())
            .unwrap_or_default()
    };
    format!("{} {} {}", proc::boot_id(), space("net"), space("pid"))
}

/// What the host's own name means.
pub(super) fn host_names() -> ResolvedNames {
    ResolvedNames { own: resolve(&proc::hostname()).unwrap_or_default() }
}

/// The addresses of a name.
fn resolve(name: &str) -> Result<Vec<IpAddr>, String> {
    let mut found: Vec<IpAddr> = (name, 0u16)
        .to_socket_addrs()
        .map_err(|error| {
            let text = error.to_string();
            text.strip_prefix("failed to lookup address information: ").unwrap_or(&text).to_owned()
        })?
        .map(|address| address.ip())
        .collect();
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// The way to `master`; where that is this host itself, the interface that has its address, or the way to the
/// first other host.
pub(super) fn route(master: &str, question: &HostQuestion) -> Route {
    Network { interfaces: interfaces(), source: &source, resolve: &resolve }.route(master, question)
}

/// What this host's network answers.
struct Network<'a> {
    interfaces: Vec<Interface>,
    /// The address that packets to another one would carry.
    source: &'a dyn Fn(IpAddr) -> Option<IpAddr>,
    resolve: &'a dyn Fn(&str) -> Result<Vec<IpAddr>, String>,
}

impl Network<'_> {
    fn route(&self, master: &str, question: &HostQuestion) -> Route {
        let (addresses, unresolved) = match (self.resolve)(master) {
            Ok(addresses) => (addresses, None),
            // The interface is found by another address of rank 0's host.
            Err(error) => (Vec::new(), Some(error)),
        };
        let known = question.peers.iter().filter(|peer| peer.node == 0).flat_map(|peer| peer.others.clone());
        let known: Vec<IpAddr> = known.filter(|_| unresolved.is_some()).collect();
        let peers = || question.peers.iter().filter_map(|peer| (self.resolve)(&peer.address).ok()).flatten();
        // A host that is called but cannot call back has no address that reaches the callers.
        let one_sided = question.peers.is_empty() && question.expect > 0;
        let apart = one_sided || peers().any(|ip| !ip.is_loopback());
        let usable = |ip: &IpAddr| !apart || !ip.is_loopback();
        let holder = |ip: IpAddr| {
            let held = self.interfaces.iter().find(|interface| interface.addresses.contains(&ip))?;
            (!apart || !is_loopback(held)).then(|| held.name.clone())
        };
        let toward = |ip: IpAddr| (self.source)(ip).and_then(holder);
        let ways = || addresses.iter().chain(&known).copied().filter(usable);
        let others = || peers().filter(usable);
        let interface =
            ways().find_map(holder).or_else(|| ways().find_map(toward)).or_else(|| others().find_map(toward));
        let leads = || ways().chain(others()).any(|ip| (self.source)(ip).is_some());
        let error =
            unresolved.or_else(|| (interface.is_none() && !leads()).then(|| "no route to host".to_owned()));
        Route { addresses, interface, error }
    }
}

fn is_loopback(interface: &Interface) -> bool {
    interface.addresses.iter().any(IpAddr::is_loopback)
}

/// The address that packets to `ip` would carry; nothing is sent.
fn source(ip: IpAddr) -> Option<IpAddr> {
    let any: SocketAddr = match ip {
        IpAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        IpAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect((ip, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::examination::Peer;

    #[test]
    fn disk_is_tried_and_left_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("a/b");
        let found = disk(&deep);
        assert!(found.error.is_none() && found.free > 0 && found.total >= found.free, "{found:?}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "what was made is removed");
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(disk(&file.join("below")).error.is_some(), "a file is not a directory");
    }

    #[test]
    fn disk_probe_leaves_no_temporary_directory() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("a/b");
        let end = std::sync::atomic::AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut seen = false;
                while !end.load(std::sync::atomic::Ordering::Relaxed) {
                    seen |= folder.path().join("a").exists();
                }
                seen
            });
            (0..2000).for_each(|_| assert!(disk(&deep).error.is_none()));
            end.store(true, std::sync::atomic::Ordering::Relaxed);
            watcher.join().unwrap()
        });
        assert!(!seen, "a program that is probed at that moment would start in a folder that is gone");
    }

    #[test]
    fn last_word_of_logind_counts() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        assert!(!kills_user_processes(folder.path()));
        write("logind.conf", "[Login]\n#KillUserProcesses=yes\nKillUserProcesses=no\n");
        assert!(!kills_user_processes(folder.path()));
        std::fs::create_dir(folder.path().join("logind.conf.d")).unwrap();
        write("logind.conf.d/50.conf", "[Login]\nKillUserProcesses = yes\n");
        assert!(kills_user_processes(folder.path()));
    }

    #[test]
    fn way_to_ourselves_is_the_loopback_interface() {
        let way = route("127.0.0.1", &HostQuestion::default());
        assert_eq!((way.interface.as_deref(), way.error), (Some("lo"), None));
        assert!(interfaces().iter().any(|interface| interface.name == "lo"));
        let nowhere = route("no-such-host.invalid", &HostQuestion::default());
        assert!(nowhere.error.is_some());
    }

    /// A host at 10.0.0.1 on eth0 and 172.17.0.1 on docker0; `own` is on `lo` as well.
    fn way(names: &[(&str, &str)], own: Option<&str>, master: &str, peers: &[&str], expect: u32) -> Route {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let interface = |name: &str, addresses: &[&str]| Interface {
            name: name.into(),
            addresses: addresses.iter().map(|text| ip(text)).collect(),
        };
        let mut lo = interface("lo", &["127.0.0.1", "::1"]);
        lo.addresses.extend(own.map(ip));
        let interfaces = vec![lo, interface("docker0", &["172.17.0.1"]), interface("eth0", &["10.0.0.1"])];
        let resolve = |name: &str| {
            let found: Vec<IpAddr> =
                names.iter().filter(|(known, _)| *known == name).map(|(_, text)| ip(text)).collect();
            let literal = name.parse::<IpAddr>().ok();
            match (found.is_empty(), literal) {
                (true, None) => Err("no such name".to_owned()),
                (true, Some(literal)) => Ok(vec![literal]),
                _ => Ok(found),
            }
        };
        let source = |to: IpAddr| match to.to_string().as_str() {
            text if text.starts_with("127.") => Some(ip("127.0.0.1")),
            "::1" => Some(to),
            text if text.starts_with("10.") => Some(ip(own.unwrap_or("10.0.0.1"))),
            _ => None,
        };
        let question = HostQuestion {
            peers: peers.iter().map(|name| Peer { address: (*name).into(), ..Peer::default() }).collect(),
            expect,
            ..HostQuestion::default()
        };
        Network { interfaces, source: &source, resolve: &resolve }.route(master, &question)
    }

    #[test]
    fn route_1_loopback_leads_to_no_other_machine() {
        for own in ["127.0.1.1", "127.0.0.1", "::1"] {
            let names = [("node0", own), ("node1", "10.0.0.2")];
            let found = way(&names, None, "node0", &["node1"], 1);
            assert_eq!((found.interface.as_deref(), found.error), (Some("eth0"), None), "{own}");
        }
        let both = [("node0", "127.0.1.1"), ("node0", "10.0.0.1"), ("node1", "10.0.0.2")];
        assert_eq!(way(&both, None, "node0", &["node1"], 1).interface.as_deref(), Some("eth0"));
        // The first peer is this machine again, the second is another one.
        let mixed = [("node0", "127.0.1.1"), ("self", "127.0.0.1"), ("node2", "10.0.0.3")];
        assert_eq!(way(&mixed, None, "node0", &["self", "node2"], 2).interface.as_deref(), Some("eth0"));
        // Others call this host, and have no address that it could call.
        let called = way(&[("node0", "127.0.1.1")], None, "node0", &[], 1);
        assert_eq!((called.interface, called.error.is_some()), (None, true));
    }

    #[test]
    fn hosts_that_are_one_machine_meet_on_its_loopback() {
        let names = [("a", "127.0.0.1"), ("b", "127.0.0.2")];
        assert_eq!(way(&names, None, "a", &["b"], 1).interface.as_deref(), Some("lo"));
        assert_eq!(way(&[], None, "127.0.0.1", &["127.0.0.1"], 1).interface.as_deref(), Some("lo"));
        assert_eq!(way(&[], None, "localhost.invalid", &[], 0).error.as_deref(), Some("no such name"));
    }

    /// Routers on the host announce an address that `lo` holds.
    #[test]
    fn route_1_loopback_address_has_no_interface() {
        let names = [("node0", "10.9.9.9"), ("node1", "10.0.0.2")];
        let found = way(&names, Some("10.9.9.9"), "node0", &["node1"], 1);
        assert_eq!((found.interface, found.error), (None, None));
    }

    #[test]
    fn way_to_another_host_is_the_interface_of_its_route() {
        let found = way(&[("node0", "10.0.0.7")], None, "node0", &["10.0.0.7"], 1);
        assert_eq!(found.interface.as_deref(), Some("eth0"));
        let lost = way(&[("node0", "192.0.2.1")], None, "node0", &["192.0.2.1"], 1);
        assert_eq!((lost.interface, lost.error.is_some()), (None, true));
    }
}
