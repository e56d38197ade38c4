//! What a thread is blocked on, where that has a name: a file lock and its holder, a FIFO, a name server, the
//! other end of a pipe or connection, a child.
//!
//! Owner: nobody keeps state. Sources: the arguments of the system call, `/proc/PID/fd` (links are read,
//! never followed), `/proc/locks`, the socket tables of the kernel. Only [`in_memory`] reads the memory of
//! the process.

use super::descriptors::{self, Target};
use super::memory;
use super::question;
use super::sockets::Tcp;
use super::syscall::{self, Call, Kind};
use crate::proc;
use rankdeck_proto::inspection::{Holder, Obstacle};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// Port of name servers.
const DNS: u16 = 53;
/// Most descriptors of one poll that are looked at.
const POLLED: usize = 16;
/// Most processes that are named.
const NAMED: usize = 4;
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
        let text = proc::text("/proc/locks").unwrap_or_default();
        let holders = lock_holders(&text, pid).into_iter().filter_map(holder).take(NAMED).collect();
        return Some(Obstacle::FileLock { path, holders });
    }
    match syscall::name(number).1 {
        kind @ (Kind::Read | Kind::Write | Kind::Connect) => on(pid, fd, kind != Kind::Write, tcp),
        Kind::Child => child(pid, fd),
        _ => None,
    }
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
    match syscall::name(number) {
        (_, Kind::Read) => on(pid, call.args[0] as i32, true, tcp)
            .filter(|found| matches!(found, Obstacle::NameServer { .. })),
        ("poll" | "ppoll", _) => {
            let count = (call.args[1] as usize).min(POLLED);
            let bytes = memory::read(pid, call.args[0], count * 8).ok()?;
            let fds = bytes
                .chunks_exact(8)
                .filter_map(|entry| Some(i32::from_ne_bytes(entry.get(..4)?.try_into().ok()?)));
            fds.filter(|fd| *fd >= 0).find_map(|fd| on(pid, fd, true, tcp))
        }
        ("epoll_wait" | "epoll_pwait", _) => {
            let text = proc::text(format!("/proc/{pid}/fdinfo/{}", call.args[0] as i32))?;
            let fds = text
                .lines()
                .filter_map(|line| line.strip_prefix("tfd:")?.split_whitespace().next()?.parse().ok());
            fds.take(POLLED).find_map(|fd| on(pid, fd, true, tcp))
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
        Target::Unix { peers } => Some(Obstacle::Pipe { ends: named(peers), reads }),
        Target::Inet { inode } => match tcp.iter().find(|tcp| tcp.inode == inode) {
            Some(found) => Some(connection(pid, &found.socket.peer, &found.socket.local, tcp)),
            None => name_server(pid, inode),
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
    let tables = ["tcp", "tcp6"].iter().filter_map(|table| proc::text(format!("/proc/{pid}/net/{table}")));
    let here =
        |at: &SocketAddr| at.port() == wanted.port() && (at.ip().is_unspecified() || at.ip() == wanted.ip());
    let found: Vec<(u64, SocketAddr)> =
        tables.flat_map(|text| text.lines().skip(1).filter_map(listening).collect::<Vec<_>>()).collect();
    found.into_iter().find(|(_, at)| here(at)).map(|(inode, _)| inode)
}

fn listening(line: &str) -> Option<(u64, SocketAddr)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
    (*state == "0A").then_some(())?;
    Some((inode.parse().ok()?, hex_address(local)?))
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

/// `0100007F:0035`, as the kernel writes addresses: words in the machine's order.
fn hex_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word =
        |at: usize| Some(u32::from_str_radix(address.get(at * 8..at * 8 + 8)?, 16).ok()?.to_ne_bytes());
    if address.len() == 8 {
        return Some(SocketAddr::from((Ipv4Addr::from(word(0)?), port)));
    }
    let mut bytes = [0; 16];
    for at in 0..4 {
        bytes.get_mut(at * 4..at * 4 + 4)?.copy_from_slice(&word(at)?);
    }
    Some(SocketAddr::new(Ipv6Addr::from(bytes).to_canonical(), port))
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

/// Who holds the locks that a process waits for, from `/proc/locks`: a lock that is waited for stands under
/// the number of the one that is held.
fn lock_holders(text: &str, waiter: u32) -> Vec<u32> {
    let mut holder: Option<(&str, u32)> = None;
    let mut found = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let waits = fields.get(1) == Some(&"->");
        let pid = fields.get(if waits { 5 } else { 4 }).and_then(|field| field.parse::<i64>().ok());
        let (Some(number), Some(pid)) = (fields.first(), pid) else { continue };
        match holder {
            _ if !waits => holder = u32::try_from(pid).ok().filter(|pid| *pid > 0).map(|pid| (*number, pid)),
            Some((held, by)) if held == *number && pid == i64::from(waiter) && !found.contains(&by) => {
                found.push(by)
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests;
