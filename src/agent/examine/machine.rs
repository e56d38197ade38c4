//! Facts about a machine: GPUs and who uses them, disks, limits, interfaces, names, what happens to processes
//! after a logout.
//!
//! Owner: one preflight; readers only, but for a file of a few bytes that is written to learn whether one can
//! be.

use crate::observe::nvml;
use crate::observe::shares::Shares;
use crate::observe::visible::visible;
use crate::proc;

use super::program::nearest;
use nvml_wrapper::error::NvmlError;
use rankdeck_proto::examination::{
    Disk, GpuFinding, GpuProcess, Interface, Limits, Names, Question, Route, Session,
};
use rankdeck_proto::message::GpuInstance;
use rankdeck_types::error::HintedError;
use std::ffi::{CStr, CString};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The driver's version, its GPUs, and why nobody tells of any though there is a driver.
pub(super) type Gpus = (Option<String>, Vec<GpuFinding>, Option<HintedError>);

pub(super) fn gpus() -> Gpus {
    let nvml = match nvml::open() {
        Ok(nvml) => nvml,
        Err(error) => return (None, Vec::new(), untold(&error)),
    };
    let all = nvml::look(&nvml, &mut Shares::default());
    // Counted as the plan counts. A GPU that the user's list names twice is there twice.
    let found = visible(&all).into_iter().zip(0..).filter_map(|(given, place)| {
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

/// Why NVML tells nothing of a driver that is there, and what helps.
fn untold(error: &NvmlError) -> Option<HintedError> {
    let (text, hint) = match error {
        NvmlError::LibloadingError(_) if !has_cuda() => return None,
        NvmlError::LibRmVersionMismatch => (
            "the NVIDIA driver's module in the kernel and its libraries are of different versions".to_owned(),
            "the driver was updated while it was loaded: reboot that host",
        ),
        NvmlError::DriverNotLoaded => (
            "the NVIDIA driver is installed, and not loaded".to_owned(),
            "`sudo modprobe nvidia` there; `dmesg | grep -i nvidia` says why it was not",
        ),
        NvmlError::NoPermission => {
            ("this user may not use the NVIDIA driver".to_owned(), "`ls -l /dev/nvidia*` there shows who may")
        }
        error => (
            format!("there is an NVIDIA driver, and its library NVML does not work: {error}"),
            "install its libnvidia-ml.so.1; containers get it by `NVIDIA_DRIVER_CAPABILITIES=compute,utility`",
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
    let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let command: String =
        String::from_utf8_lossy(&read("cmdline")).replace('\0', " ").trim().chars().take(80).collect();
    let environ = read("environ");
    let run = environ
        .split(|&byte| byte == 0)
        .find_map(|entry| entry.strip_prefix(b"RANKDECK_RUN="))
        .map(|run| String::from_utf8_lossy(run).into_owned());
    GpuProcess { pid, bytes, command, run }
}

/// Space of the file system of `path`, or of the nearest folder above it.
pub(super) fn space(path: &Path) -> Disk {
    let mut disk = Disk { path: path.display().to_string(), ..Disk::default() };
    let folder = nearest(path);
    let Ok(name) = CString::new(folder.as_os_str().as_bytes()) else { return disk };
    // SAFETY: `facts` is plain data for which zeros are valid, `name` ends in NUL, and both live for the
    // length of the call.
    let facts = unsafe {
        let mut facts: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(name.as_ptr(), &mut facts) == 0).then_some(facts)
    };
    match facts {
        Some(facts) => {
            disk.free = facts.f_bavail.saturating_mul(facts.f_frsize);
            disk.total = facts.f_blocks.saturating_mul(facts.f_frsize);
            // File systems without a table of files say 0 of 0.
            disk.free_files = if facts.f_files == 0 { u64::MAX } else { facts.f_favail };
        }
        None => disk.error = Some(std::io::Error::last_os_error().to_string()),
    }
    disk
}

/// The same, and a file is written there, or in what is there of the way to it, and removed again. No folder
/// is made: other checks, and those of other hosts of this machine, look at the same path at the same moment,
/// and would find a folder that is gone when they use it.
pub(super) fn disk(workdir: &Path) -> Disk {
    let mut disk = space(workdir);
    let there = workdir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let file = there.join(format!(".rankdeck-check-{}", std::process::id()));
    let written = std::fs::write(&file, [b'x'; 4096]);
    let _ = std::fs::remove_file(&file);
    disk.error = disk.error.or(written.err().map(|error| error.to_string()));
    disk
}

/// Soft limits of this process.
pub(super) fn limits() -> Limits {
    let soft = |resource| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is a live, writable struct for the length of the call.
        let got = unsafe { libc::getrlimit(resource, &mut limit) } == 0;
        (got && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
    };
    Limits {
        open_files: soft(libc::RLIMIT_NOFILE),
        processes: soft(libc::RLIMIT_NPROC),
        locked: soft(libc::RLIMIT_MEMLOCK),
        infiniband: std::fs::read_dir("/sys/class/infiniband")
            .is_ok_and(|mut inside| inside.next().is_some()),
    }
}

/// Interfaces that are up and have an address.
pub(super) fn interfaces() -> Vec<Interface> {
    let mut found: Vec<Interface> = Vec::new();
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs fills `list` or fails.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return found;
    }
    let mut at = list;
    while !at.is_null() {
        // SAFETY: `at` is an element of the list that getifaddrs made, which is freed only below; its name is
        // a NUL-terminated string, and its address, where it is not null, is a socket address of the family
        // that it says.
        let (name, up, address) = unsafe {
            let entry = &*at;
            at = entry.ifa_next;
            let name = CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned();
            let address = match entry.ifa_addr.as_ref().map(|address| i32::from(address.sa_family)) {
                Some(libc::AF_INET) => {
                    let address = &*entry.ifa_addr.cast::<libc::sockaddr_in>();
                    Some(IpAddr::from(address.sin_addr.s_addr.to_ne_bytes()))
                }
                Some(libc::AF_INET6) => {
                    let address = &*entry.ifa_addr.cast::<libc::sockaddr_in6>();
                    Some(IpAddr::from(address.sin6_addr.s6_addr))
                }
                _ => None,
            };
            (name, entry.ifa_flags & libc::IFF_UP as u32 != 0, address)
        };
        let Some(address) = address.filter(|_| up) else { continue };
        match found.iter_mut().find(|interface| interface.name == name) {
            Some(interface) => interface.addresses.push(address),
            None => found.push(Interface { name, addresses: vec![address] }),
        }
    }
    // SAFETY: `list` came from getifaddrs and is freed once.
    unsafe { libc::freeifaddrs(list) };
    found
}

fn resolve(name: &str) -> Result<Vec<IpAddr>, String> {
    let mut found: Vec<IpAddr> = (name, 0u16)
        .to_socket_addrs()
        .map_err(|error| {
            let said = error.to_string();
            said.strip_prefix("failed to lookup address information: ").unwrap_or(&said).to_owned()
        })?
        .map(|address| address.ip())
        .collect();
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// The way to `master`; where that is this host itself, the interface that has its address, or the way to the
/// first other host.
pub(super) fn route(master: &str, question: &Question) -> Route {
    let addresses = match resolve(master) {
        Ok(addresses) => addresses,
        Err(error) => return Route { error: Some(error), ..Route::default() },
    };
    let interfaces = interfaces();
    let holder = |ip: IpAddr| {
        interfaces
            .iter()
            .find(|interface| interface.addresses.contains(&ip))
            .map(|interface| interface.name.clone())
    };
    let own = addresses.iter().find_map(|ip| holder(*ip));
    let toward = |ip: IpAddr| source(ip).and_then(holder);
    let others =
        || question.peers.iter().filter_map(|peer| resolve(&peer.address).ok()).flatten().find_map(toward);
    let interface = own.or_else(|| addresses.iter().find_map(|ip| toward(*ip))).or_else(others);
    let error = interface.is_none().then(|| "no route to it".to_owned());
    Route { addresses, interface, error }
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

/// What the host's own name means.
pub(super) fn names() -> Names {
    Names { own: resolve(&proc::hostname()).unwrap_or_default() }
}

/// The user's name, or number.
pub(super) fn user() -> String {
    proc::user_name(crate::paths::own_uid())
}

/// Release of the kernel.
pub(super) fn kernel() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// Will ranks live on after the login that starts them?
pub(super) fn session() -> Session {
    let error = if proc::stat(std::process::id()).is_none() {
        Some("no mounted /proc".to_owned())
    } else {
        crate::supervise::groups::pidfd(std::process::id()).err().map(|error| format!("pidfd_open: {error}"))
    };
    let systemd = Path::new("/run/systemd/system").is_dir();
    let lingers = Path::new("/var/lib/systemd/linger").join(user()).exists();
    Session {
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

/// What only one machine, or one container with a network and processes of its own, says of itself.
pub(super) fn identity() -> String {
    let space = |kind: &str| {
        std::fs::read_link(format!("/proc/self/ns/{kind}"))
            .map(|link| link.display().to_string())
            .unwrap_or_default()
    };
    format!("{} {} {}", proc::boot_id(), space("net"), space("pid"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_tried_and_left_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("a/b");
        let found = disk(&deep);
        assert!(found.error.is_none() && found.free > 0 && found.total >= found.free, "{found:?}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "what was made is removed");
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(disk(&file.join("below")).error.is_some(), "a file is no folder");
    }

    #[test]
    fn no_folder_is_there_for_a_moment_only() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("a/b");
        let end = std::sync::atomic::AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            let looking = scope.spawn(|| {
                let mut seen = false;
                while !end.load(std::sync::atomic::Ordering::Relaxed) {
                    seen |= folder.path().join("a").exists();
                }
                seen
            });
            (0..2000).for_each(|_| assert!(disk(&deep).error.is_none()));
            end.store(true, std::sync::atomic::Ordering::Relaxed);
            looking.join().unwrap()
        });
        assert!(
            !seen,
            "the program that is looked for at that moment would be started in a folder that is gone"
        );
    }

    #[test]
    fn the_way_to_ourselves_is_the_loopback_interface() {
        let way = route("127.0.0.1", &Question::default());
        assert_eq!((way.interface.as_deref(), way.error), (Some("lo"), None));
        assert!(interfaces().iter().any(|interface| interface.name == "lo"));
        let nowhere = route("no-such-host.invalid", &Question::default());
        assert!(nowhere.error.is_some());
    }

    #[test]
    fn the_last_word_of_logind_counts() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        assert!(!kills_user_processes(folder.path()));
        write("logind.conf", "[Login]\n#KillUserProcesses=yes\nKillUserProcesses=no\n");
        assert!(!kills_user_processes(folder.path()));
        std::fs::create_dir(folder.path().join("logind.conf.d")).unwrap();
        write("logind.conf.d/50.conf", "[Login]\nKillUserProcesses = yes\n");
        assert!(kills_user_processes(folder.path()));
    }
}
