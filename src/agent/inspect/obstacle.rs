//! What a thread is blocked on, where that has a name: a file lock and its holder, a FIFO, a name server, the
//! other end of a pipe or connection, a client to connect, a child.
//!
//! Sources: the arguments of the system call, `/proc/PID/fd` (links are read,
//! never followed), the kernel's lists of locks and sockets. Only [`in_memory`] reads the memory of the
//! process.

use super::descriptors::{self, FdTarget};
use super::locks::{self, Family};
use super::sockets::{self, Tcp, hex_address};
use super::syscall::{self, SyscallWait, WaitKind};
use super::{awaited, memory};
use crate::proc;
use rankdeck_proto::inspection::{BlockingProcess, Obstacle};
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
pub(crate) fn find(pid: u32, call: &SyscallWait, tcp: &[Tcp]) -> Option<Obstacle> {
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
        kind @ (WaitKind::Read | WaitKind::Write | WaitKind::Connect) => {
            on(pid, fd, kind != WaitKind::Write, tcp)
        }
        WaitKind::Accept => descriptors::place(pid, fd).map(|at| Obstacle::Listener { at }),
        WaitKind::Child => child(pid, fd),
        _ => None,
    }
}

fn lock(path: String, holders: Vec<u32>) -> Obstacle {
    Obstacle::FileLock { path, holders: holders.into_iter().filter_map(holder).take(NAMED).collect() }
}

/// The same where arguments lie in its memory: several descriptors, a path that is being opened, and the name
/// that a name server was asked for.
pub(crate) fn in_memory(pid: u32, call: &SyscallWait, tcp: &[Tcp]) -> Option<Obstacle> {
    match waiting_for(pid, call, tcp)? {
        Obstacle::NameServer { server, .. } => {
            Some(Obstacle::NameServer { server, name: queried_name(pid, call) })
        }
        found => Some(found),
    }
}

fn waiting_for(pid: u32, call: &SyscallWait, tcp: &[Tcp]) -> Option<Obstacle> {
    let number = call.number?;
    if pauses(pid, call) {
        return locks::contended(pid).map(|(path, holders)| lock(path, holders));
    }
    match syscall::name(number) {
        (_, WaitKind::Read) => on(pid, call.args[0] as i32, true, tcp)
            .filter(|found| matches!(found, Obstacle::NameServer { .. })),
        ("poll" | "ppoll" | "epoll_wait" | "epoll_pwait", _) => {
            if awaited::timer_ms(pid, call).is_some() {
                return None;
            }
            let fds = awaited::poll_call(pid, call)?.fds;
            fds.into_iter().filter_map(|fd| on(pid, fd, true, tcp)).min_by_key(explains_little)
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
fn explains_little(found: &Obstacle) -> u8 {
    match found {
        Obstacle::Pipe { ends, .. } if ends.is_empty() => 2,
        Obstacle::Listener { .. } => 1,
        _ => 0,
    }
}

/// It sleeps for so short a time that it may be about to try something again.
fn pauses(pid: u32, call: &SyscallWait) -> bool {
    let polls_nothing = call.number.is_some_and(|number| matches!(syscall::name(number).0, "poll"))
        && call.args[1] == 0
        && u64::try_from(call.args[2] as i32).is_ok_and(|ms| ms <= PAUSE_MS);
    polls_nothing || awaited::sleep_left_ms(pid, call).is_some_and(|ms| ms <= PAUSE_MS)
}

fn below_its_folder(pid: u32, call: &SyscallWait, at: usize, path: &str) -> String {
    let folder = if at == 1 && call.args[0] as i32 != libc::AT_FDCWD {
        descriptors::path(pid, call.args[0] as i32)
    } else {
        std::fs::read_link(format!("/proc/{pid}/cwd")).ok().map(|link| link.to_string_lossy().into_owned())
    };
    folder.map_or_else(|| path.to_owned(), |folder| format!("{folder}/{path}"))
}

/// What a descriptor leads to, where it explains a wait.
fn on(pid: u32, fd: i32, reads: bool, tcp: &[Tcp]) -> Option<Obstacle> {
    let named = |peers: Vec<(u32, String, char)>| -> Vec<BlockingProcess> {
        peers.into_iter().take(NAMED).filter_map(|(pid, ..)| holder(pid)).collect()
    };
    match descriptors::target(pid, fd)? {
        FdTarget::Pipe { peers, .. } => Some(Obstacle::Pipe { ends: named(peers), reads }),
        FdTarget::Unix { peers, path: None } => Some(Obstacle::Pipe { ends: named(peers), reads }),
        FdTarget::Unix { peers, path: Some(peer) } => {
            Some(Obstacle::Connection { peer, owner: named(peers).into_iter().next() })
        }
        FdTarget::Listener { path } => Some(Obstacle::Listener { at: path }),
        FdTarget::Inet { inode } => match tcp.iter().find(|tcp| tcp.inode == inode) {
            Some(found) => Some(connection(pid, &found.socket.peer, &found.socket.local, tcp)),
            None => {
                let listens = sockets::listening_at(pid, inode).map(|at| Obstacle::Listener { at });
                listens.or_else(|| name_server(pid, inode))
            }
        },
        FdTarget::File { path, .. } => {
            let wchan = proc::wchan(pid);
            let fifo = wchan.contains("pipe_read") || wchan.contains("pipe_write");
            fifo.then_some(Obstacle::Fifo { path, reads, opening: false })
        }
        FdTarget::Other(_) => None,
    }
}

fn connection(pid: u32, peer: &str, local: &str, tcp: &[Tcp]) -> Obstacle {
    if port(peer) == Some(DNS) {
        return Obstacle::NameServer { server: peer.to_owned(), name: String::new() };
    }
    let other = tcp.iter().find(|tcp| tcp.socket.local == peer && tcp.socket.peer == local);
    // Before it is accepted, a connection belongs to the listener.
    let inode = other.map(|tcp| tcp.inode).filter(|inode| *inode > 0).or_else(|| listener(pid, peer));
    let owner = inode.and_then(|inode| descriptors::socket_owner(pid, inode)).and_then(holder);
    Obstacle::Connection { peer: peer.to_owned(), owner }
}

/// Inode of the socket that listens at an address of this host.
fn listener(pid: u32, address: &str) -> Option<u64> {
    let target: SocketAddr = address.parse().ok()?;
    let here =
        |at: &SocketAddr| at.port() == target.port() && (at.ip().is_unspecified() || at.ip() == target.ip());
    sockets::listening(pid).into_iter().find(|(_, at)| here(at)).map(|(inode, _)| inode)
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
fn holder(pid: u32) -> Option<BlockingProcess> {
    let stat = proc::stat(pid)?;
    let does = match stat.state {
        'S' => syscall::call(pid, pid).and_then(|call| syscall::in_short(&call)).unwrap_or_default(),
        state => super::state_words(state).to_owned(),
    };
    Some(BlockingProcess {
        pid,
        name: proc::command(&stat),
        state: stat.state,
        does,
        ours: is_of_the_run(pid),
    })
}

/// It carries the same mark as the ranks of this agent.
fn is_of_the_run(pid: u32) -> bool {
    let mark = |environ: &[u8]| proc::variable(environ, "RANKDECK_RUN").map(<[u8]>::to_vec);
    let own = std::env::var_os("RANKDECK_RUN").map(|run| run.to_string_lossy().into_owned().into_bytes());
    let theirs = proc::environ(pid).and_then(|environ| mark(&environ));
    let below_us = || proc::descendants(std::process::id()).contains(&pid);
    (own.is_some() && theirs == own) || below_us()
}

/// Bytes of the stack to search, from the waiting call upwards.
const STACK: usize = 64 << 10;
const HEAD: usize = 12;
const LONGEST: usize = 253;

/// Returns the host name of the DNS query that this call waits for; empty when there is none on the stack. The C
/// library's resolver keeps its query (RFC 1035, section 4.1) on the stack of the waiting thread, in any language.
fn queried_name(pid: u32, call: &SyscallWait) -> String {
    memory::read(pid, call.sp, STACK).ok().and_then(|stack| asked(&stack)).unwrap_or_default()
}

/// The name in the first query of these bytes.
fn asked(stack: &[u8]) -> Option<String> {
    stack.windows(HEAD).enumerate().filter(|(_, head)| is_query(head)).find_map(|(at, _)| {
        let mut rest = stack.get(at + HEAD..)?;
        let mut name = String::new();
        loop {
            let (length, after) = rest.split_first()?;
            if *length == 0 {
                rest = after;
                break;
            }
            let label = after.get(..usize::from(*length))?;
            let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            if *length > 63 || !label.iter().all(plain) || name.len() + label.len() >= LONGEST {
                return None;
            }
            let dot = if name.is_empty() { "" } else { "." };
            name = format!("{name}{dot}{}", String::from_utf8_lossy(label));
            rest = after.get(label.len()..)?;
        }
        // The class is that of the internet.
        (!name.is_empty() && rest.get(2..4)? == [0, 1]).then_some(name)
    })
}

/// A question for a recursive answer, alone, with or without an additional record.
fn is_query(head: &[u8]) -> bool {
    head[2] == 1 && head[3] & 0b1100_1111 == 0 && head[4..11] == [0, 1, 0, 0, 0, 0, 0] && head[11] <= 1
}

#[cfg(test)]
mod tests;
