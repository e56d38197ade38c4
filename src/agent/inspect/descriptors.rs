//! Descriptors of a process, resolved to what is at their other end: a pipe's peer process, a socket's peer,
//! a file and its mount.
//!
//! Owner: nobody keeps state. Links in `/proc/PID/fd` are read, never followed: following one could wait for
//! a file system that is stuck.

use super::listeners;
use super::sockets::{self, Tcp};
use crate::paths;
use crate::proc;
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
pub enum Target {
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

impl Target {
    /// In words; TCP sockets are looked up in `tcp`.
    pub fn words(&self, tcp: &[Tcp]) -> String {
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
            Target::Pipe { peers, searched_all } if peers.is_empty() => {
                if *searched_all {
                    "a pipe whose other end nobody else holds".to_owned()
                } else {
                    "a pipe".to_owned()
                }
            }
            Target::Pipe { peers, .. } => format!("a pipe from {}", people(peers)),
            Target::Unix { peers, path } => {
                let to = if peers.is_empty() { String::new() } else { format!(" to {}", people(peers)) };
                let at = path.as_ref().map_or_else(String::new, |path| format!(" at {path}"));
                let a = if to.is_empty() { "a unix socket" } else { "a socket" };
                format!("{a}{to}{at}")
            }
            Target::Listener { path } => format!("a socket that listens at {path}"),
            Target::Inet { inode } => match tcp.iter().find(|tcp| tcp.inode == *inode) {
                None => "a network socket".to_owned(),
                Some(tcp) => {
                    let socket = &tcp.socket;
                    let mut words = format!("TCP {}", socket.peer);
                    if socket.state != "ESTABLISHED" {
                        words += &format!(" in state {}", socket.state);
                    } else if socket.backoff > 0 {
                        words +=
                            &format!(": {} segments unanswered, {} retries", socket.unacked, socket.backoff);
                    } else {
                        let silent = f64::from(socket.last_received_ms) / 1000.0;
                        words += &format!(": nothing received for {silent:.1} s");
                    }
                    words
                }
            },
            Target::File { path, mount: Some(mount) } => format!("{path} ({mount})"),
            Target::File { path, mount: None } => path.clone(),
            Target::Other(name) => name.clone(),
        }
    }
}

/// The processes at the other end of a pipe or a unix socket.
pub fn peers(pid: u32, fd: i32) -> Vec<u32> {
    match target(pid, fd) {
        Some(Target::Pipe { peers, .. } | Target::Unix { peers, .. }) => {
            peers.into_iter().map(|(pid, _, _)| pid).collect()
        }
        Some(Target::Listener { .. } | Target::Inet { .. } | Target::File { .. } | Target::Other(_))
        | None => Vec::new(),
    }
}

/// Both ends of a pipe or of a pair of sockets belong to the process, and to nobody else.
pub fn is_own_wake_up(pid: u32, fd: i32) -> bool {
    match target(pid, fd) {
        Some(Target::Pipe { peers, searched_all: true }) => peers.is_empty(),
        Some(Target::Unix { peers, path: None }) => peers.is_empty(),
        Some(Target::Other(name)) => name.contains("[eventfd]"),
        _ => false,
    }
}

/// What a descriptor of a process leads to; `None` when it is closed or not ours to see.
pub fn target(pid: u32, fd: i32) -> Option<Target> {
    let link = fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok()?;
    let name = link.to_string_lossy().into_owned();
    if let Some(inode) = bracketed(&name, "pipe:") {
        let reads = may_read(&format!("/proc/{pid}/fd/{fd}"));
        let (peers, searched_all) = pipe_peers(pid, inode, reads);
        return Some(Target::Pipe { peers, searched_all });
    }
    if let Some(inode) = bracketed(&name, "socket:") {
        return Some(unix(pid, inode).unwrap_or(Target::Inet { inode }));
    }
    if name.starts_with('/') {
        return Some(Target::File { mount: mount_of(pid, &name), path: name });
    }
    Some(Target::Other(name))
}

fn unix(pid: u32, inode: u64) -> Option<Target> {
    let all = sockets::unix().unwrap_or_default();
    let own = all.iter().find(|socket| socket.inode == inode)?;
    if own.listens {
        return own.path.clone().map(|path| Target::Listener { path });
    }
    // Before it is accepted, its other end belongs to nobody but the one who listens.
    let other = match own.peer? {
        0 => all.iter().find(|socket| socket.waiting.contains(&inode)),
        peer => all.iter().find(|socket| socket.inode == peer),
    };
    let peers = other.map(|other| holders(&format!("socket:[{}]", other.inode), pid, |_| true).0);
    let path = other.and_then(|other| other.path.clone()).or_else(|| own.path.clone());
    Some(Target::Unix { peers: peers.unwrap_or_default(), path })
}

/// Where a socket listens, in words.
pub fn place(pid: u32, fd: i32) -> Option<String> {
    match target(pid, fd)? {
        Target::Listener { path } => Some(path),
        Target::Inet { inode } => listeners::place(pid, inode),
        Target::Pipe { .. } | Target::Unix { .. } | Target::File { .. } | Target::Other(_) => None,
    }
}

/// Path of the file that a descriptor leads to, as the process sees it.
pub fn path(pid: u32, fd: i32) -> Option<String> {
    let link = fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok()?;
    Some(link.to_string_lossy().into_owned()).filter(|name| name.starts_with('/'))
}

/// A process, other than `pid`, that has the socket of this inode.
pub fn socket_owner(pid: u32, inode: u64) -> Option<u32> {
    holders(&format!("socket:[{inode}]"), pid, |_| true).0.first().map(|(owner, ..)| *owner)
}

/// The descriptors of a process.
pub fn numbers(pid: u32) -> Vec<i32> {
    let Ok(folder) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    folder.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).take(DESCRIPTORS).collect()
}

/// Inodes of all sockets of a process.
pub fn socket_inodes(pid: u32) -> Vec<u64> {
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

/// The link's own mode tells how the descriptor was opened.
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
        let own = entry.metadata().is_ok_and(|data| data.uid() == paths::own_uid());
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
pub fn mount_of(pid: u32, path: &str) -> Option<String> {
    let text = proc::text(format!("/proc/{pid}/mountinfo"))?;
    let mut best: Option<(usize, String)> = None;
    for line in text.lines() {
        let (left, right) = line.split_once(" - ")?;
        let at = left.split(' ').nth(4)?.replace("\\040", " ");
        let kind = right.split(' ').next()?;
        let below = at == "/"
            || path.strip_prefix(at.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if below && best.as_ref().is_none_or(|(length, _)| at.len() >= *length) {
            best = Some((at.len(), format!("{kind} at {at}")));
        }
    }
    best.map(|(_, words)| words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_file_is_named_with_its_mount() {
        let file = fs::File::open("/proc/self/status").unwrap();
        let target = target(std::process::id(), file.as_raw_fd()).unwrap();
        let words = target.words(&[]);
        assert!(words.ends_with("/status (proc at /proc)"), "{words}");
    }

    #[test]
    fn a_tcp_socket_that_hears_nothing_says_so() {
        let socket = rankdeck_proto::inspection::Socket {
            peer: "10.0.0.11:4711".into(),
            state: "ESTABLISHED".into(),
            last_received_ms: 12_040,
            ..Default::default()
        };
        let tcp = [Tcp { inode: 9, carried: 0, socket }];
        assert_eq!(Target::Inet { inode: 9 }.words(&tcp), "TCP 10.0.0.11:4711: nothing received for 12.0 s");
        assert_eq!(Target::Inet { inode: 8 }.words(&tcp), "a network socket");
    }
}
