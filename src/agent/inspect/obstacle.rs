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
/// Most processes below the agent whose environment is read.
const MARKED: usize = 16;
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

/// It is below this agent, or carries the same mark as its ranks: that of another agent of the run on this machine.
fn is_of_the_run(pid: u32) -> bool {
    let below = proc::descendants(std::process::id());
    let mark = |pid: u32| {
        let environ = proc::environ(pid)?;
        proc::variable(&environ, "RANKDECK_RUN").map(<[u8]>::to_vec)
    };
    let own = || below.iter().take(MARKED).find_map(|child| mark(*child));
    below.contains(&pid) || own().is_some_and(|own| mark(pid) == Some(own))
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
mod tests {
    use super::*;
    use crate::inspect::sockets;
    use crate::inspect::tests::Victim;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    fn python(code: &str, words: &[&Path]) -> Victim {
        let mut command = Command::new("python3");
        let child =
            command.arg("-c").arg(code).args(words).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        Victim(child.expect("python3"))
    }

    /// What the program's main thread is blocked on, as soon as that fits.
    fn obstacle(program: &Victim, fits: impl Fn(&Obstacle) -> bool) -> Obstacle {
        let (pid, begun) = (program.0.id(), Instant::now());
        let mut last = None;
        while begun.elapsed() < Duration::from_secs(20) {
            let call = syscall::call(pid, pid);
            last = call.and_then(|call| {
                let tcp = sockets::tcp().unwrap_or_default();
                find(pid, &call, &tcp).or_else(|| in_memory(pid, &call, &tcp))
            });
            if let Some(found) = last.as_ref().filter(|found| fits(found)) {
                return found.clone();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{last:?}, in {:?}", syscall::call(pid, pid))
    }

    #[test]
    fn file_lock_is_named_with_its_path_and_holder() {
        let folder = tempfile::tempdir().unwrap();
        for lock in ["fcntl.flock(f, fcntl.LOCK_EX)", "fcntl.lockf(f, fcntl.LOCK_EX)"] {
            let path = folder.path().join("data.lock");
            let code = format!(
                "import fcntl, sys, time\nf = open(sys.argv[1], 'w')\n{lock}\nprint('held', flush=True)\ntime.sleep(1000)"
            );
            let mut holder = python(&code, &[&path]);
            holder.0.stdout.as_mut().unwrap().read_exact(&mut [0; 5]).unwrap();
            let waiter = python(&code, &[&path]);
            let found = obstacle(&waiter, |found| matches!(found, Obstacle::FileLock { .. }));
            let Obstacle::FileLock { path: named, holders } = &found else { unreachable!() };
            assert_eq!(Path::new(named), path);
            assert_eq!(
                holders.iter().map(|holder| holder.pid).collect::<Vec<_>>(),
                [holder.0.id()],
                "{found:?}"
            );
        }
    }

    /// A worker of the program waits for a lock that another process holds, and the program waits for its worker.
    #[test]
    fn worker_obstacle_is_named_for_its_program() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.lock");
        let lock = "import fcntl, multiprocessing, sys, time\nf = open(sys.argv[1], 'w')";
        let hold =
            format!("{lock}\nfcntl.flock(f, fcntl.LOCK_EX)\nprint('held', flush=True)\ntime.sleep(1000)");
        let mut holder = python(&hold, &[&path]);
        holder.0.stdout.as_mut().unwrap().read_exact(&mut [0; 5]).unwrap();
        let ask = format!(
            "{lock}\nours, theirs = multiprocessing.Pipe()\nfork = multiprocessing.get_context('fork')\n\
         fork.Process(target=fcntl.flock, args=(f, fcntl.LOCK_EX), daemon=True).start()\nours.recv()"
        );
        let asker = python(&ask, &[&path]);
        let stat = proc::stat(asker.0.id()).unwrap();
        let subject = crate::inspect::InspectTarget {
            ident: Some(proc::ProcessKey { pid: stat.pid, start: stat.start }),
            ..Default::default()
        };
        let begun = Instant::now();
        loop {
            let found = crate::inspect::inspect(vec![subject.clone()]).remove(0);
            if let Some(Obstacle::FileLock { path: named, holders }) = &found.obstacle {
                assert_eq!(Path::new(named), path);
                assert_eq!(
                    holders.iter().map(|one| one.pid).collect::<Vec<_>>(),
                    [holder.0.id()],
                    "{found:?}"
                );
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "not within 60 s: {:?}", found.obstacle);
        }
        for child in proc::descendants(asker.0.id()) {
            let start = proc::stat(child).map_or(0, |stat| stat.start);
            crate::supervise::groups::signal(child, start, libc::SIGKILL);
        }
    }

    #[test]
    fn unopened_fifo_is_named_with_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("orders");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let reader = python("import sys; open(sys.argv[1])", &[&path]);
        let found = obstacle(&reader, |found| matches!(found, Obstacle::Fifo { .. }));
        assert_eq!(found, Obstacle::Fifo { path: path.display().to_string(), reads: true, opening: true });
        drop(reader);
        let code = "import os, sys; os.chdir(os.path.dirname(sys.argv[1])); open('orders', 'w')";
        let writer = python(code, &[&path]);
        let found = obstacle(&writer, |found| matches!(found, Obstacle::Fifo { .. }));
        assert_eq!(found, Obstacle::Fifo { path: path.display().to_string(), reads: false, opening: true });
        drop(writer);
        let reader = python("import os, sys; os.read(os.open(sys.argv[1], os.O_RDWR), 1)", &[&path]);
        let found = obstacle(&reader, |found| matches!(found, Obstacle::Fifo { .. }));
        assert_eq!(found, Obstacle::Fifo { path: path.display().to_string(), reads: true, opening: false });
    }

    #[test]
    fn server_of_this_host_is_named_with_its_process() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let code = "import socket, sys\nh, p = sys.argv[1].split(':')\ns = socket.create_connection((h, int(p)))\n\
                s.settimeout(float(sys.argv[2]) or None)\ns.recv(1)";
        // With a timeout Python polls; without one it receives. Not accepted, then accepted.
        for (patience, accepted) in [("0", false), ("1000", false), ("0", true), ("1000", true)] {
            let client = python(code, &[Path::new(&address), Path::new(patience)]);
            let _stream = accepted.then(|| listener.accept().unwrap());
            let found =
                obstacle(&client, |found| matches!(found, Obstacle::Connection { owner: Some(_), .. }));
            let Obstacle::Connection { peer, owner: Some(owner) } = &found else { unreachable!() };
            assert_eq!((peer, owner.pid), (&address, std::process::id()), "{found:?}");
            assert!(listener.as_raw_fd() > 0);
        }
    }

    /// The rank is a server, or talks to one by a local socket.
    #[test]
    fn waiting_listener_is_named_with_its_address() {
        let bind = "import socket, sys\ns = socket.socket(getattr(socket, sys.argv[2]))\n\
                s.bind(sys.argv[1] if sys.argv[2] == 'AF_UNIX' else ('127.0.0.1', 0))\ns.listen()\n\
                print(str(s.getsockname()[1]).zfill(5) if sys.argv[2] == 'AF_INET' else 'there', flush=True)\n";
        let folder = tempfile::tempdir().unwrap();
        for (number, wait) in ["s.accept()", "s.settimeout(1000); s.accept()"].into_iter().enumerate() {
            for family in ["AF_UNIX", "AF_INET"] {
                let path = folder.path().join(format!("orders{number}"));
                let mut server = python(&format!("{bind}{wait}"), &[&path, Path::new(family)]);
                let mut bytes = [0; 5];
                server.0.stdout.as_mut().unwrap().read_exact(&mut bytes).unwrap();
                let found = obstacle(&server, |found| matches!(found, Obstacle::Listener { .. }));
                let port = String::from_utf8_lossy(&bytes).trim_start_matches('0').to_owned();
                let place = if family == "AF_UNIX" {
                    path.display().to_string()
                } else {
                    format!("127.0.0.1:{port}")
                };
                assert_eq!(found.words(), format!("an incoming connection on {place}"));
            }
        }
    }

    /// Accepted or not, by a foreign process, and by one that the program has started.
    #[test]
    fn local_socket_server_is_named_with_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("orders");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let code = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
                s.settimeout(float(sys.argv[2]) or None)\ns.recv(1)";
        for (patience, accepted) in [("0", false), ("1000", false), ("0", true), ("1000", true)] {
            let client = python(code, &[&path, Path::new(patience)]);
            let _stream = accepted.then(|| listener.accept().unwrap());
            let found =
                obstacle(&client, |found| matches!(found, Obstacle::Connection { owner: Some(_), .. }));
            let Obstacle::Connection { peer, owner: Some(owner) } = &found else { unreachable!() };
            assert_eq!((Path::new(peer), owner.pid), (path.as_path(), std::process::id()), "{found:?}");
        }
        let code = "import os, socket, sys, time\nl = socket.socket(socket.AF_UNIX)\nl.bind(sys.argv[1])\nl.listen()\n\
                if os.fork() == 0:\n    c, _ = l.accept()\n    time.sleep(1000)\nl.close()\n\
                s = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\ns.recv(1)";
        let parent = python(code, &[&folder.path().join("own")]);
        let sleeps = |found: &Obstacle| match found {
            Obstacle::Connection { owner: Some(owner), .. } => owner.does.contains("nanosleep"),
            _ => false,
        };
        let found = obstacle(&parent, sleeps);
        let Obstacle::Connection { peer, owner: Some(owner) } = &found else { unreachable!() };
        assert_eq!(proc::descendants(parent.0.id()), [owner.pid]);
        assert!(peer.ends_with("/own"), "{peer}");
        crate::supervise::groups::signal(owner.pid, proc::stat(owner.pid).unwrap().start, libc::SIGKILL);
    }

    /// No list of the kernel shows who tries: as sqlite does, and programs that wait for a lock file.
    #[test]
    fn polled_lock_is_named_with_path_and_holder() {
        if std::fs::read_to_string("/proc/self/fdinfo/0").is_ok_and(|text| !text.contains("ino:")) {
            rankdeck_testkit::skip!("fdinfo has no inode before Linux 5.14");
        }
        let folder = tempfile::tempdir().unwrap();
        let begin = "import sqlite3, sys, time\nc = sqlite3.connect(sys.argv[1], timeout=1000, isolation_level=None)\n";
        let tries = "import fcntl, sys, time\nf = open(sys.argv[1], 'a')\n";
        let [ofd, whole] = [
        "import struct\ndef take(): fcntl.fcntl(f, 37, struct.pack('hhlli', fcntl.F_WRLCK, 0, 0, 0, 0))\n",
        "def take(): fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
    ]
    .map(|take| format!("{tries}{take}"));
        let again = "while True:\n    try:\n        take()\n        break\n    except OSError:\n        time.sleep(0.5)\n";
        let (held, stay) = ("print('held', flush=True)\n", "time.sleep(1000)");
        for (name, hold, wait) in [
            (
                "study.db",
                format!("{begin}c.execute('BEGIN EXCLUSIVE')\n{held}{stay}"),
                format!("{begin}c.execute('BEGIN')\nc.execute('CREATE TABLE a (b)')"),
            ),
            (
                "other.db",
                format!("{begin}c.execute('BEGIN IMMEDIATE')\n{held}{stay}"),
                format!("{begin}c.execute('BEGIN IMMEDIATE')"),
            ),
            ("whole.lock", format!("{whole}take()\n{held}{stay}"), format!("{whole}{again}")),
            ("ofd.lock", format!("{ofd}take()\n{held}{stay}"), format!("{ofd}{again}")),
            // Waited for in the kernel, which names no holder.
            (
                "waits.lock",
                format!("{ofd}take()\n{held}{stay}"),
                format!("{tries}fcntl.lockf(f, fcntl.LOCK_EX)"),
            ),
        ] {
            let path = folder.path().join(name);
            let mut holder = python(&hold, &[&path]);
            holder.0.stdout.as_mut().unwrap().read_exact(&mut [0; 5]).unwrap();
            let waiter = python(&wait, &[&path]);
            let found = obstacle(&waiter, |found| matches!(found, Obstacle::FileLock { .. }));
            let Obstacle::FileLock { path: named, holders } = &found else { unreachable!() };
            assert_eq!(Path::new(named), path);
            assert_eq!(
                holders.iter().map(|one| one.pid).collect::<Vec<_>>(),
                [holder.0.id()],
                "{name}: {found:?}"
            );
            assert!(holders[0].does.contains("clock_nanosleep"), "{found:?}");
        }
    }

    /// Two hosts of a run may be one machine, each with an agent.
    #[test]
    fn process_of_another_agent_is_of_the_run() {
        let marked = |run: &str| {
            let mut command = Command::new("sh");
            // The shell leaves it to another parent.
            command.args(["-c", "sleep 1000 >/dev/null 2>&1 & echo $!"]).env("RANKDECK_RUN", run);
            let output = command.output().unwrap();
            String::from_utf8_lossy(&output.stdout).trim().parse::<u32>().unwrap()
        };
        let mut own = Command::new("sleep");
        let _own = Victim(own.arg("1000").env("RANKDECK_RUN", "a-run").spawn().unwrap());
        let (theirs, other) = (marked("a-run"), marked("another-run"));
        let found = (is_of_the_run(theirs), is_of_the_run(other));
        for pid in [theirs, other] {
            let start = proc::stat(pid).map_or(0, |stat| stat.start);
            crate::supervise::groups::signal(pid, start, libc::SIGKILL);
        }
        assert_eq!(found, (true, false));
    }

    /// `flock FILE PROGRAM`, as in a crontab: the program has the descriptor through which the lock was taken.
    #[test]
    fn inherited_lock_blocks_others_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nightly.lock");
        let code = "import fcntl, subprocess, sys, time\nf = open(sys.argv[1], 'a')\nfcntl.flock(f, fcntl.LOCK_EX)\n\
                inner = 'import time\\nwhile True: time.sleep(0.5)'\n\
                child = subprocess.Popen([sys.executable, '-c', inner], pass_fds=[f.fileno()])\n\
                print(f'{child.pid:8}', flush=True)\nchild.wait()";
        let mut parent = python(code, &[&path]);
        let mut bytes = [0; 8];
        parent.0.stdout.as_mut().unwrap().read_exact(&mut bytes).unwrap();
        let pid: u32 = String::from_utf8_lossy(&bytes).trim().parse().unwrap();
        let begun = Instant::now();
        let call = loop {
            match syscall::call(pid, pid).filter(|call| pauses(pid, call)) {
                Some(call) => break call,
                None => assert!(begun.elapsed() < Duration::from_secs(60), "it never slept"),
            }
        };
        assert_eq!(in_memory(pid, &call, &[]), None);
        crate::supervise::groups::signal(pid, proc::stat(pid).unwrap().start, libc::SIGKILL);
    }

    /// Locks of others do not explain a sleep with a timer, nor a lock that is free again.
    #[test]
    fn program_sleeping_beside_a_locked_file_awaits_no_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.lock");
        let code = "import fcntl, sys, time\nf = open(sys.argv[1], 'a')\nfcntl.lockf(f, getattr(fcntl, sys.argv[2]))\n\
                print('held', flush=True)\nwhile True: time.sleep(float(sys.argv[3]))";
        let start = |lock: &str, pause: &str| {
            let mut program = python(code, &[&path, Path::new(lock), Path::new(pause)]);
            program.0.stdout.as_mut().unwrap().read_exact(&mut [0; 5]).unwrap();
            program
        };
        // Both sleep shortly, and neither keeps the other out; one that is kept out sleeps for long.
        let (reads, other) = (start("LOCK_UN", "0.5"), start("LOCK_UN", "0.5"));
        let named = |program: &Victim| {
            let pid = program.0.id();
            let call = syscall::call(pid, pid)?;
            find(pid, &call, &[]).or_else(|| in_memory(pid, &call, &[]))
        };
        for _ in 0..20 {
            assert_eq!((named(&reads), named(&other)), (None, None));
        }
        drop(other);
        let _holder = start("LOCK_EX", "1000");
        let code = "import sys, time\nf = open(sys.argv[1], 'a')\ntime.sleep(1000)";
        let sleeper = python(code, &[&path]);
        let begun = Instant::now();
        let number = || syscall::call(sleeper.0.id(), sleeper.0.id())?.number;
        while number() != Some(libc::SYS_clock_nanosleep) {
            assert!(begun.elapsed() < Duration::from_secs(20), "it does not sleep");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(named(&sleeper), None);
    }

    #[test]
    fn children_and_pipes_are_named() {
        let parent = python("import subprocess; subprocess.Popen(['sleep', '1000']).wait()", &[]);
        let found = obstacle(
            &parent,
            |found| matches!(found, Obstacle::Child { process } if process.name.starts_with("sleep")),
        );
        let Obstacle::Child { process } = found else { unreachable!() };
        assert_eq!(process.name, "sleep 1000");
        // SAFETY: the child of a child of this test.
        unsafe { libc::kill(process.pid as i32, libc::SIGKILL) };

        let code = "import subprocess, os\np = subprocess.Popen(['sleep', '1000'], stdin=subprocess.PIPE)\n\
                while True: os.write(p.stdin.fileno(), b'x' * 65536)";
        let writer = python(code, &[]);
        let found = obstacle(
            &writer,
            |found| matches!(found, Obstacle::Pipe { ends, reads: false } if !ends.is_empty()),
        );
        assert!(
            found.words().contains("sleep 1000") && found.words().ends_with("to read from a pipe"),
            "{}",
            found.words()
        );
        let Obstacle::Pipe { ends, .. } = found else { unreachable!() };
        // SAFETY: as above.
        unsafe { libc::kill(ends[0].pid as i32, libc::SIGKILL) };
    }

    #[test]
    fn silent_name_server_is_named() {
        let code = "import select, socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
                s.connect(('127.0.0.1', 53))\np = select.poll()\np.register(s, select.POLLIN)\np.poll(1000000)";
        let found = obstacle(&python(code, &[]), |found| matches!(found, Obstacle::NameServer { .. }));
        assert_eq!(found, Obstacle::NameServer { server: "127.0.0.1:53".into(), name: String::new() });
    }

    /// With the resolver of the C library, in a mount namespace with another resolv.conf.
    #[test]
    fn unresolved_name_is_named() {
        let Ok(_silent) = std::net::UdpSocket::bind("127.0.53.9:53") else {
            rankdeck_testkit::skip!("only root can listen on port 53");
        };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("resolv.conf");
        std::fs::write(&file, "nameserver 127.0.53.9\noptions timeout:1000 attempts:1\n").unwrap();
        let line = "mount --bind \"$0\" /etc/resolv.conf && exec python3 -c \"$1\"";
        let code = "import socket; socket.getaddrinfo('simulator.example.org', 80)";
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", line]).arg(&file).arg(code);
        if !Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|status| status.success()) {
            rankdeck_testkit::skip!("no mount namespaces here");
        }
        let child = Victim(command.spawn().unwrap());
        let found =
            obstacle(&child, |found| matches!(found, Obstacle::NameServer { name, .. } if !name.is_empty()));
        let (server, name) = ("127.0.53.9:53".into(), "simulator.example.org".into());
        assert_eq!(found, Obstacle::NameServer { server, name });
    }

    /// An event loop has descriptors of its own, a server of the program may be among them: what it waits for is
    /// the rest. With nothing but timers it sleeps.
    #[test]
    fn event_loop_waits_for_others_or_sleeps() {
        let program = |body: &str| {
            let code = format!(
                "import asyncio, sys\nasync def quiet(r, w): await asyncio.Event().wait()\nasync def go():\n{body}\nasyncio.run(go())"
            );
            python(&code, &[])
        };
        let timers = program("    while True: await asyncio.sleep(1.5)");
        let (pid, begun) = (timers.0.id(), Instant::now());
        loop {
            let call = syscall::call(pid, pid);
            let left = call.as_ref().and_then(|call| awaited::sleep_left_ms(pid, call));
            if left.is_some_and(|left| (1_000..=1_600).contains(&left)) {
                let found = in_memory(pid, call.as_ref().unwrap(), &[]);
                assert_eq!(found, None);
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{call:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        let child = program(
            "    p = await asyncio.create_subprocess_exec('sleep', '1000', stdout=-1)\n    await p.stdout.read()",
        );
        obstacle(
            &child,
            |found| matches!(found, Obstacle::Pipe { ends, .. } if ends.iter().any(|end| end.name.contains("sleep"))),
        );
        let served = "    s = await asyncio.start_server(quiet, '127.0.0.1', 0)\n    r, _ = await asyncio.open_connection(*s.sockets[0].getsockname())\n    await r.read(1)";
        obstacle(&program(served), |found| matches!(found, Obstacle::Connection { .. }));
    }

    fn query(name: &[u8]) -> Vec<u8> {
        [&[7, 7, 7, 0xab, 0xcd, 1, 0x20, 0, 1, 0, 0, 0, 0, 0, 1][..], name, &[0, 0, 28, 0, 1, 9, 9]].concat()
    }

    #[test]
    fn dns_query_is_found_among_other_bytes() {
        let bytes = query(b"\x03sim\x07example\x03org");
        assert_eq!(asked(&bytes).as_deref(), Some("sim.example.org"));
        let twice = [query(b"\x03s\x1bm\x03org"), bytes.clone()].concat();
        assert_eq!(
            asked(&twice).as_deref(),
            Some("sim.example.org"),
            "a name with terminal controls is invalid"
        );
        for cut in 0..bytes.len() - 2 {
            assert_eq!(asked(&bytes[..cut]), None, "{cut}");
        }
        assert_eq!(asked(&query(b"")), None);
        let long: Vec<u8> = (0..5).flat_map(|_| [&[60][..], &[b'a'; 60]].concat()).collect();
        assert_eq!(asked(&query(&long)), None);
        assert_eq!(asked(&vec![0; 4096]), None);
    }
}
