//! What a thread is blocked on, where that has a name: a file lock and its holder, a FIFO, a name server, the
//! other end of a pipe or connection, somebody who connects, a child.
//!
//! Owner: nobody keeps state. Sources: the arguments of the system call, `/proc/PID/fd` (links are read,
//! never followed), the kernel's lists of locks and sockets. Only [`in_memory`] reads the memory of the
//! process.

use super::descriptors::{self, Target};
use super::listeners::{self, hex_address};
use super::locks::{self, Family};
use super::sockets::Tcp;
use super::syscall::{self, Call, Kind};
use super::{awaited, memory, polled, question};
use crate::proc;
use rankdeck_proto::inspection::{Holder, Obstacle};
use std::net::SocketAddr;

/// Port of name servers.
const DNS: u16 = 53;
/// Most processes that are named.
const NAMED: usize = 4;
/// A sleep up to this long may be the pause between two tries, ms.
const PAUSE_MS: u64 = 2_000;
/// Commands of fcntl(2) that wait for a lock.
const WAITING_LOCKS: [u64; 2] = [libc::F_SETLKW as u64, libc::F_OFD_SETLKW as u64];

/// What the main thread of `pid` is blocked on, by what can be read without its memory.
pub fn of(pid: u32, call: &Call, tcp: &[Tcp]) -> Option<Obstacle> {
    let number = call.number?;
    let fd = call.args[0] as i32;
    let waits_for_lock =
        number == libc::SYS_flock || (number == libc::SYS_fcntl && WAITING_LOCKS.contains(&call.args[1]));
    if waits_for_lock {
        let path = descriptors::path(pid, fd).unwrap_or_default();
        let family = if number == libc::SYS_flock { Family::Whole } else { Family::Ranges };
        return Some(lock(path, locks::awaited(pid, fd, family)));
    }
    match syscall::name(number).1 {
        kind @ (Kind::Read | Kind::Write | Kind::Connect) => on(pid, fd, kind != Kind::Write, tcp),
        Kind::Accept => descriptors::place(pid, fd).map(|at| Obstacle::Listener { at }),
        Kind::Child => child(pid, fd),
        _ => None,
    }
}

fn lock(path: String, holders: Vec<u32>) -> Obstacle {
    Obstacle::FileLock { path, holders: holders.into_iter().filter_map(holder).take(NAMED).collect() }
}

/// The same where arguments lie in its memory: several descriptors, a path that is being opened, and the name
/// that a name server was asked for.
pub fn in_memory(pid: u32, call: &Call, tcp: &[Tcp]) -> Option<Obstacle> {
    match waiting_for(pid, call, tcp)? {
        Obstacle::NameServer { server, .. } => {
            Some(Obstacle::NameServer { server, name: question::of(pid, call) })
        }
        found => Some(found),
    }
}

fn waiting_for(pid: u32, call: &Call, tcp: &[Tcp]) -> Option<Obstacle> {
    let number = call.number?;
    if pauses(pid, call) {
        return locks::contended(pid).map(|(path, holders)| lock(path, holders));
    }
    match syscall::name(number) {
        (_, Kind::Read) => on(pid, call.args[0] as i32, true, tcp)
            .filter(|found| matches!(found, Obstacle::NameServer { .. })),
        ("poll" | "ppoll" | "epoll_wait" | "epoll_pwait", _) => {
            if polled::timer_ms(pid, call).is_some() {
                return None;
            }
            let fds = polled::of(pid, call)?.fds;
            fds.into_iter().filter_map(|fd| on(pid, fd, true, tcp)).min_by_key(says_little)
        }
        ("openat" | "open", _) => {
            let wchan = proc::wchan(pid);
            if !["fifo_open", "wait_for_partner"].iter().any(|name| wchan.contains(name)) {
                return None;
            }
            let at = if number == libc::SYS_openat { 1 } else { 0 };
            let path = memory::text(pid, call.args[at])?;
            let flags = *call.args.get(at + 1)? as i32;
            let path = if path.starts_with('/') { path } else { below_its_folder(pid, call, at, &path) };
            Some(Obstacle::Fifo { path, reads: flags & libc::O_ACCMODE == libc::O_RDONLY, opening: true })
        }
        _ => None,
    }
}

/// How little one of several descriptors explains a wait: a server of the program's own waits for as long as
/// it lives, and a pipe that only its own threads write to wakes its event loop.
fn says_little(found: &Obstacle) -> u8 {
    match found {
        Obstacle::Pipe { ends, .. } if ends.is_empty() => 2,
        Obstacle::Listener { .. } => 1,
        _ => 0,
    }
}

/// It sleeps for so short a time that it may be about to try something again.
fn pauses(pid: u32, call: &Call) -> bool {
    let polls_nothing = call.number.is_some_and(|number| matches!(syscall::name(number).0, "poll"))
        && call.args[1] == 0
        && u64::try_from(call.args[2] as i32).is_ok_and(|ms| ms <= PAUSE_MS);
    polls_nothing || awaited::sleep_left_ms(pid, call).is_some_and(|ms| ms <= PAUSE_MS)
}

fn below_its_folder(pid: u32, call: &Call, at: usize, path: &str) -> String {
    let folder = if at == 1 && call.args[0] as i32 != libc::AT_FDCWD {
        descriptors::path(pid, call.args[0] as i32)
    } else {
        std::fs::read_link(format!("/proc/{pid}/cwd")).ok().map(|link| link.to_string_lossy().into_owned())
    };
    folder.map_or_else(|| path.to_owned(), |folder| format!("{folder}/{path}"))
}

/// What a descriptor leads to, where it explains a wait.
fn on(pid: u32, fd: i32, reads: bool, tcp: &[Tcp]) -> Option<Obstacle> {
    let named = |peers: Vec<(u32, String, char)>| -> Vec<Holder> {
        peers.into_iter().take(NAMED).filter_map(|(pid, ..)| holder(pid)).collect()
    };
    match descriptors::target(pid, fd)? {
        Target::Pipe { peers, .. } => Some(Obstacle::Pipe { ends: named(peers), reads }),
        Target::Unix { peers, path: None } => Some(Obstacle::Pipe { ends: named(peers), reads }),
        Target::Unix { peers, path: Some(peer) } => {
            Some(Obstacle::Connection { peer, owner: named(peers).into_iter().next() })
        }
        Target::Listener { path } => Some(Obstacle::Listener { at: path }),
        Target::Inet { inode } => match tcp.iter().find(|tcp| tcp.inode == inode) {
            Some(found) => Some(connection(pid, &found.socket.peer, &found.socket.local, tcp)),
            None => {
                let listens = listeners::place(pid, inode).map(|at| Obstacle::Listener { at });
                listens.or_else(|| name_server(pid, inode))
            }
        },
        Target::File { path, .. } => {
            let wchan = proc::wchan(pid);
            let fifo = wchan.contains("pipe_read") || wchan.contains("pipe_write");
            fifo.then_some(Obstacle::Fifo { path, reads, opening: false })
        }
        Target::Other(_) => None,
    }
}

fn connection(pid: u32, peer: &str, local: &str, tcp: &[Tcp]) -> Obstacle {
    if port(peer) == Some(DNS) {
        return Obstacle::NameServer { server: peer.to_owned(), name: String::new() };
    }
    let other = tcp.iter().find(|tcp| tcp.socket.local == peer && tcp.socket.peer == local);
    // Before it is accepted, a connection belongs to nobody but the one who listens.
    let inode = other.map(|tcp| tcp.inode).filter(|inode| *inode > 0).or_else(|| listener(pid, peer));
    let owner = inode.and_then(|inode| descriptors::socket_owner(pid, inode)).and_then(holder);
    Obstacle::Connection { peer: peer.to_owned(), owner }
}

/// Inode of the socket that listens at an address of this host.
fn listener(pid: u32, address: &str) -> Option<u64> {
    let wanted: SocketAddr = address.parse().ok()?;
    let here =
        |at: &SocketAddr| at.port() == wanted.port() && (at.ip().is_unspecified() || at.ip() == wanted.ip());
    listeners::all(pid).into_iter().find(|(_, at)| here(at)).map(|(inode, _)| inode)
}

/// A datagram socket that is connected to a name server.
fn name_server(pid: u32, inode: u64) -> Option<Obstacle> {
    for table in ["udp", "udp6"] {
        let text = proc::text(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let own = fields.get(9).and_then(|field| field.parse().ok()) == Some(inode);
            let server = fields.get(2).filter(|_| own).and_then(|address| hex_address(address));
            if let Some(server) = server.filter(|server| server.port() == DNS) {
                return Some(Obstacle::NameServer { server: server.to_string(), name: String::new() });
            }
        }
    }
    None
}

fn port(address: &str) -> Option<u16> {
    address.rsplit_once(':')?.1.parse().ok()
}

/// The child that it waits for: the one that it names, or the only one.
fn child(pid: u32, named: i32) -> Option<Obstacle> {
    let below = proc::descendants(pid);
    let lives = |child: &u32| proc::stat(*child).is_some_and(|stat| stat.ppid == pid && !stat.is_gone());
    let found = if named > 0 { Some(named as u32) } else { below.iter().copied().find(lives) };
    found.and_then(holder).map(|process| Obstacle::Child { process })
}

/// A process in words: what it is and what it waits for.
fn holder(pid: u32) -> Option<Holder> {
    let stat = proc::stat(pid)?;
    let does = match stat.state {
        'S' => syscall::call(pid, pid).and_then(|call| syscall::in_short(&call)).unwrap_or_default(),
        state => super::state_words(state).to_owned(),
    };
    Some(Holder { pid, name: proc::command(&stat), state: stat.state, does, ours: is_of_the_run(pid) })
}

/// It carries the same mark as the ranks of this agent.
fn is_of_the_run(pid: u32) -> bool {
    let mark = |environ: &[u8]| proc::variable(environ, "RANKDECK_RUN").map(<[u8]>::to_vec);
    let own = std::env::var_os("RANKDECK_RUN").map(|run| run.to_string_lossy().into_owned().into_bytes());
    let theirs = proc::environ(pid).and_then(|environ| mark(&environ));
    let below_us = || proc::descendants(std::process::id()).contains(&pid);
    (own.is_some() && theirs == own) || below_us()
}

#[cfg(test)]
mod tests;
