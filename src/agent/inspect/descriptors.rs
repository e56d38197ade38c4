//! Descriptors of a process, resolved to what is at their other end: a pipe's peer process, a socket's peer,
//! a file and its mount.
//!
//! Links in `/proc/PID/fd` are read, never followed: following one could wait for
//! a file system that is stuck.

use super::sockets::{self, Tcp};
use crate::proc;
use rankdeck_proto::trust;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// Most processes searched for the other end of a pipe.
const SEARCHED: usize = 4096;
/// Most descriptors read of one process.
const DESCRIPTORS: usize = 4096;
/// Most other ends that are named.
const PEERS: usize = 4;

/// What a descriptor leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FdTarget {
    /// A pipe and the processes that hold its other end.
    Pipe {
        /// (pid, name, state) of each; empty when all have closed it.
        peers: Vec<(u32, String, char)>,
        /// Every process of this user was searched.
        searched_all: bool,
    },
    /// A unix socket and the processes that hold its other end.
    Unix {
        /// As for pipes.
        peers: Vec<(u32, String, char)>,
        /// Where they are reached; a pair of sockets has no such place.
        path: Option<String>,
    },
    /// A unix socket that listens at a path.
    Listener { path: String },
    /// A TCP socket, by its inode.
    Inet { inode: u64 },
    /// A file, with type and source of its mount.
    File {
        /// Path as the process sees it.
        path: String,
        /// `ext4 at /data`.
        mount: Option<String>,
    },
    /// Anything else, as the kernel names it.
    Other(String),
}

impl FdTarget {
    /// The other ends, in short: addresses of connections in `tcp`, processes of pipes and unix sockets.
    pub fn peers(&self, tcp: &[Tcp]) -> Vec<String> {
        match self {
            FdTarget::Pipe { peers, .. } | FdTarget::Unix { peers, .. } => {
                peers.iter().take(PEERS).map(|(pid, name, _)| format!("pid {pid} ({name})")).collect()
            }
            FdTarget::Inet { inode } => {
                let connection = tcp.iter().find(|tcp| tcp.inode == *inode);
                connection.map(|tcp| format!("TCP {}", tcp.socket.peer)).into_iter().collect()
            }
            FdTarget::Listener { .. } | FdTarget::File { .. } | FdTarget::Other(_) => Vec::new(),
        }
    }

    /// In words; TCP sockets are searched in `tcp`.
    pub fn describe(&self, tcp: &[Tcp]) -> String {
        let people = |peers: &[(u32, String, char)]| {
            let each: Vec<String> = peers
                .iter()
                .take(PEERS)
                .map(|(pid, name, state)| match super::state_words(*state) {
                    "runs" | "waits" => format!("pid {pid} ({name})"),
                    words => format!("pid {pid} ({name}, {words})"),
                })
                .collect();
            each.join(", ")
        };
        match self {
            FdTarget::Pipe { peers, searched_all } if peers.is_empty() => {
                if *searched_all {
                    "a pipe without another process at its other end".to_owned()
                } else {
                    "a pipe".to_owned()
                }
            }
            FdTarget::Pipe { peers, .. } => format!("a pipe from {}", people(peers)),
            FdTarget::Unix { peers, path } => {
                let to = if peers.is_empty() { String::new() } else { format!(" to {}", people(peers)) };
                let at = path.as_ref().map_or_else(String::new, |path| format!(" at {path}"));
                let a = if to.is_empty() { "a unix socket" } else { "a socket" };
                format!("{a}{to}{at}")
            }
            FdTarget::Listener { path } => format!("a socket listening at {path}"),
            FdTarget::Inet { inode } => match tcp.iter().find(|tcp| tcp.inode == *inode) {
                None => "a network socket".to_owned(),
                Some(tcp) => {
                    let socket = &tcp.socket;
                    let mut words = format!("TCP {}", socket.peer);
                    if socket.state != "ESTABLISHED" {
                        words += &format!(" in state {}", socket.state);
                    } else if socket.backoff > 0 {
                        words += &format!(
                            ": {} unacknowledged segments, {} retries",
                            socket.unacked, socket.backoff
                        );
                    } else {
                        let silent = f64::from(socket.last_received_ms) / 1000.0;
                        words += &format!(": nothing received for {silent:.1} s");
                    }
                    words
                }
            },
            FdTarget::File { path, mount: Some(mount) } => format!("{path} ({mount})"),
            FdTarget::File { path, mount: None } => path.clone(),
            FdTarget::Other(name) => name.clone(),
        }
    }
}

/// The processes at the other end of a pipe or a unix socket.
pub(crate) fn peers(pid: u32, fd: i32) -> Vec<u32> {
    match target(pid, fd) {
        Some(FdTarget::Pipe { peers, .. } | FdTarget::Unix { peers, .. }) => {
            peers.into_iter().map(|(pid, _, _)| pid).collect()
        }
        Some(
            FdTarget::Listener { .. } | FdTarget::Inet { .. } | FdTarget::File { .. } | FdTarget::Other(_),
        )
        | None => Vec::new(),
    }
}

/// Whether both ends of a pipe or of a socket pair belong to this process only.
pub(crate) fn is_own_wake_up(pid: u32, fd: i32) -> bool {
    match target(pid, fd) {
        Some(FdTarget::Pipe { peers, searched_all: true }) => peers.is_empty(),
        Some(FdTarget::Unix { peers, path: None }) => peers.is_empty(),
        Some(FdTarget::Other(name)) => name.contains("[eventfd]"),
        _ => false,
    }
}

/// What a descriptor of a process leads to; `None` when it is closed or not ours to see.
pub(crate) fn target(pid: u32, fd: i32) -> Option<FdTarget> {
    let link = fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok()?;
    let name = link.to_string_lossy().into_owned();
    if let Some(inode) = bracketed(&name, "pipe:") {
        let reads = may_read(&format!("/proc/{pid}/fd/{fd}"));
        let (peers, searched_all) = pipe_peers(pid, inode, reads);
        return Some(FdTarget::Pipe { peers, searched_all });
    }
    if let Some(inode) = bracketed(&name, "socket:") {
        return Some(unix(pid, inode).unwrap_or(FdTarget::Inet { inode }));
    }
    if name.starts_with('/') {
        return Some(FdTarget::File { mount: mount_of(pid, &name), path: name });
    }
    Some(FdTarget::Other(name))
}

fn unix(pid: u32, inode: u64) -> Option<FdTarget> {
    let all = sockets::unix().unwrap_or_default();
    let own = all.iter().find(|socket| socket.inode == inode)?;
    if own.listens {
        return own.path.clone().map(|path| FdTarget::Listener { path });
    }
    // Before it is accepted, its other end belongs to the listener.
    let other = match own.peer? {
        0 => all.iter().find(|socket| socket.waiting.contains(&inode)),
        peer => all.iter().find(|socket| socket.inode == peer),
    };
    let peers = other.map(|other| holders(&format!("socket:[{}]", other.inode), pid, |_| true).0);
    let path = other.and_then(|other| other.path.clone()).or_else(|| own.path.clone());
    Some(FdTarget::Unix { peers: peers.unwrap_or_default(), path })
}

/// Where a socket listens, in words.
pub(crate) fn place(pid: u32, fd: i32) -> Option<String> {
    match target(pid, fd)? {
        FdTarget::Listener { path } => Some(path),
        FdTarget::Inet { inode } => sockets::listening_at(pid, inode),
        FdTarget::Pipe { .. } | FdTarget::Unix { .. } | FdTarget::File { .. } | FdTarget::Other(_) => None,
    }
}

/// Path of the file that a descriptor leads to, as the process sees it.
pub(crate) fn path(pid: u32, fd: i32) -> Option<String> {
    let link = fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok()?;
    Some(link.to_string_lossy().into_owned()).filter(|name| name.starts_with('/'))
}

/// A process, other than `pid`, that has the socket of this inode.
pub(crate) fn socket_owner(pid: u32, inode: u64) -> Option<u32> {
    holders(&format!("socket:[{inode}]"), pid, |_| true).0.first().map(|(owner, ..)| *owner)
}

/// The descriptors of a process.
pub(crate) fn numbers(pid: u32) -> Vec<i32> {
    let Ok(folder) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    folder.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).take(DESCRIPTORS).collect()
}

/// Inodes of all sockets of a process.
pub(crate) fn socket_inodes(pid: u32) -> Vec<u64> {
    let Ok(folder) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    folder
        .flatten()
        .take(DESCRIPTORS)
        .filter_map(|entry| bracketed(&fs::read_link(entry.path()).ok()?.to_string_lossy(), "socket:"))
        .collect()
}

fn bracketed(name: &str, kind: &str) -> Option<u64> {
    name.strip_prefix(kind)?.strip_prefix('[')?.strip_suffix(']')?.parse().ok()
}

/// The link's own mode is that of the descriptor.
fn may_read(link: &str) -> bool {
    fs::symlink_metadata(link).is_ok_and(|data| data.permissions().mode() & 0o400 != 0)
}

/// Who holds the end of a pipe that the asker does not.
fn pipe_peers(pid: u32, inode: u64, reads: bool) -> (Vec<(u32, String, char)>, bool) {
    holders(&format!("pipe:[{inode}]"), pid, move |link| may_read(link) != reads)
}

/// Processes other than `pid` with a descriptor of that name; relatives come first, since they are the likely
/// ones.
fn holders(name: &str, pid: u32, fits: impl Fn(&str) -> bool) -> (Vec<(u32, String, char)>, bool) {
    let mut todo = proc::descendants(pid);
    let ancestors =
        std::iter::successors(proc::stat(pid), |stat| proc::stat(stat.ppid).filter(|up| up.pid > 1));
    todo.extend(ancestors.map(|stat| stat.pid).skip(1));
    let relatives = todo.len();
    let others = fs::read_dir("/proc").into_iter().flatten().flatten();
    todo.extend(others.filter_map(|entry| {
        let own = entry.metadata().is_ok_and(|data| data.uid() == trust::own_uid());
        entry.file_name().to_str()?.parse::<u32>().ok().filter(|_| own)
    }));
    let mut found: Vec<(u32, String, char)> = Vec::new();
    for (index, other) in todo.iter().enumerate().take(SEARCHED) {
        if index >= relatives && !found.is_empty() {
            return (found, false);
        }
        if *other == pid || found.iter().any(|(known, ..)| known == other) {
            continue;
        }
        let Ok(folder) = fs::read_dir(format!("/proc/{other}/fd")) else { continue };
        let holds = folder.flatten().take(DESCRIPTORS).any(|entry| {
            fs::read_link(entry.path()).is_ok_and(|link| link == Path::new(name))
                && fits(&entry.path().to_string_lossy())
        });
        if holds && let Some(stat) = proc::stat(*other) {
            found.push((*other, stat.comm, stat.state));
        }
    }
    (found, todo.len() <= SEARCHED)
}

/// Type and place of the mount that holds `path`, for file systems whose trouble is worth naming.
pub(crate) fn mount_of(pid: u32, path: &str) -> Option<String> {
    let mount = mount(&proc::text(format!("/proc/{pid}/mountinfo"))?, path)?;
    Some(format!("{} at {}", mount.kind, mount.at))
}

/// A mounted file system.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileMount {
    /// Numbers of its device, as `254:0`.
    pub device: String,
    pub at: String,
    /// Its type, as `ext4`.
    pub kind: String,
}

/// The mount that holds a path, from the text of a `mountinfo`.
pub(super) fn mount(mountinfo: &str, path: &str) -> Option<FileMount> {
    let holds = |at: &str| {
        at == "/" || path.strip_prefix(at).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let parsed = mountinfo.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(2);
        let (device, at) = (left.next()?.to_owned(), left.nth(1)?.replace("\\040", " "));
        Some(FileMount { device, at, kind: right.split(' ').next()?.to_owned() })
    });
    // Of two at one place, the later one hides the other.
    parsed.filter(|mount| holds(&mount.at)).max_by_key(|mount| mount.at.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn file_is_named_with_its_mount() {
        let file = fs::File::open("/proc/self/status").unwrap();
        let target = target(std::process::id(), file.as_raw_fd()).unwrap();
        let words = target.describe(&[]);
        assert!(words.ends_with("/status (proc at /proc)"), "{words}");
    }

    #[test]
    fn silent_tcp_socket_is_described() {
        let socket = rankdeck_proto::inspection::Socket {
            peer: "10.0.0.11:4711".into(),
            state: "ESTABLISHED".into(),
            last_received_ms: 12_040,
            ..Default::default()
        };
        let tcp = [Tcp { inode: 9, carried: 0, socket }];
        assert_eq!(
            FdTarget::Inet { inode: 9 }.describe(&tcp),
            "TCP 10.0.0.11:4711: nothing received for 12.0 s"
        );
        assert_eq!(FdTarget::Inet { inode: 8 }.describe(&tcp), "a network socket");
    }

    #[test]
    fn mount_of_a_path_is_the_innermost_and_latest_one() {
        let mountinfo = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 22 0:52 / /data rw,relatime shared:3 - nfs4 server:/data rw
41 22 7:3 / /data/new\\040one rw - ext4 /dev/loop3 rw
";
        let of = |path: &str| mount(mountinfo, path).map(|mount| (mount.device, mount.kind));
        assert_eq!(of("/data/run/latest.pt"), Some(("0:52".into(), "nfs4".into())));
        assert_eq!(of("/data/new one/x"), Some(("7:3".into(), "ext4".into())));
        assert_eq!(of("/database/x"), Some(("254:0".into(), "ext4".into())));
    }
}
