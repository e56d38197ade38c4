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
    let child = command.arg("-c").arg(code).args(words).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
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
        assert_eq!(holders.iter().map(|holder| holder.pid).collect::<Vec<_>>(), [holder.0.id()], "{found:?}");
    }
}

/// A worker of the program waits for a lock that another process holds, and the program waits for its worker.
#[test]
fn worker_obstacle_is_named_for_its_program() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.lock");
    let lock = "import fcntl, multiprocessing, sys, time\nf = open(sys.argv[1], 'w')";
    let hold = format!("{lock}\nfcntl.flock(f, fcntl.LOCK_EX)\nprint('held', flush=True)\ntime.sleep(1000)");
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
            assert_eq!(holders.iter().map(|one| one.pid).collect::<Vec<_>>(), [holder.0.id()], "{found:?}");
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
        let found = obstacle(&client, |found| matches!(found, Obstacle::Connection { owner: Some(_), .. }));
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
            let place =
                if family == "AF_UNIX" { path.display().to_string() } else { format!("127.0.0.1:{port}") };
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
        let found = obstacle(&client, |found| matches!(found, Obstacle::Connection { owner: Some(_), .. }));
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
    let begin =
        "import sqlite3, sys, time\nc = sqlite3.connect(sys.argv[1], timeout=1000, isolation_level=None)\n";
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
        ("waits.lock", format!("{ofd}take()\n{held}{stay}"), format!("{tries}fcntl.lockf(f, fcntl.LOCK_EX)")),
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
    let found =
        obstacle(&writer, |found| matches!(found, Obstacle::Pipe { ends, reads: false } if !ends.is_empty()));
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
    assert_eq!(asked(&twice).as_deref(), Some("sim.example.org"), "a name with terminal controls is invalid");
    for cut in 0..bytes.len() - 2 {
        assert_eq!(asked(&bytes[..cut]), None, "{cut}");
    }
    assert_eq!(asked(&query(b"")), None);
    let long: Vec<u8> = (0..5).flat_map(|_| [&[60][..], &[b'a'; 60]].concat()).collect();
    assert_eq!(asked(&query(&long)), None);
    assert_eq!(asked(&vec![0; 4096]), None);
}
