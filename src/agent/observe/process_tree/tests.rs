//! Families of processes: seen with their children, as held only by others, as gone when they are.

use super::*;
use rankdeck_testkit::skip;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

const FULL: Depth = Depth { thorough: true, connections: true };

#[test]
fn a_process_that_this_one_holds_is_not_held_by_a_debugger() {
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = child.id() as libc::pid_t;
    // SAFETY: ptrace with these requests takes no memory of ours; the child is this test's own.
    let trace = |request| unsafe { libc::ptrace(request, pid, 0usize, 0usize) };
    if trace(libc::PTRACE_SEIZE) == -1 {
        rankdeck_testkit::skipped("ptrace is not allowed here");
    } else {
        assert_ne!(trace(libc::PTRACE_INTERRUPT), -1);
        soon(|| (proc::stat(child.id())?.state == 't').then_some(()));
        let stat = proc::stat(child.id()).unwrap();
        let mut tree = ProcessTree::of(Ident { pid: stat.pid, start: stat.start });
        let seen = tree.look(&mut HostCache::read(), FULL);
        assert_eq!(seen.main.unwrap().state, 'R');
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_process_that_was_let_go_meanwhile_is_held_by_nobody() {
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    assert!(!is_held_by_another(child.id()));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!is_held_by_another(child.id()), "nor is one that is gone");
}

/// A stopped process and its parent, which traces it: a debugger as the agent meets one.
struct DebuggedProcess {
    debugger: libc::pid_t,
    held: u32,
}

impl DebuggedProcess {
    /// `None` where tracing is not allowed.
    fn new() -> Option<DebuggedProcess> {
        let (mut pids, report) = std::io::pipe().unwrap();
        // SAFETY: both children make async-signal-safe calls only, on integers and on what lies on their
        // own stacks.
        let debugger = unsafe {
            let ends_with_its_parent = || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            let debugger = libc::fork();
            if debugger == 0 {
                ends_with_its_parent();
                let held = libc::fork();
                if held == 0 {
                    ends_with_its_parent();
                    if libc::ptrace(libc::PTRACE_TRACEME, 0, 0usize, 0usize) == 0 {
                        libc::raise(libc::SIGSTOP);
                    }
                    libc::_exit(0);
                }
                if held < 0 {
                    libc::_exit(1);
                }
                libc::write(report.as_raw_fd(), held.to_ne_bytes().as_ptr().cast(), 4);
                let mut status = 0;
                while libc::waitpid(held, &mut status, 0) == held && libc::WIFSTOPPED(status) {}
                libc::_exit(0);
            }
            debugger
        };
        // Signals to -1 would go to everybody.
        assert!(debugger > 0, "no process for the debugger");
        drop(report);
        let mut held = [0; 4];
        pids.read_exact(&mut held).expect("no process to be held");
        let debugged = DebuggedProcess { debugger, held: u32::from_ne_bytes(held) };
        soon(|| match proc::stat(debugged.held) {
            Some(stat) if stat.state == 't' => Some(true),
            Some(stat) if !stat.is_gone() => None,
            Some(_) | None => Some(false),
        })
        .then_some(debugged)
    }
}

impl Drop for DebuggedProcess {
    fn drop(&mut self) {
        // SAFETY: kill and waitpid take integers and no pointer; both processes are this test's own, and
        // the debugger ends with what it holds.
        unsafe {
            libc::kill(self.held as libc::pid_t, libc::SIGKILL);
            libc::waitpid(self.debugger, std::ptr::null_mut(), 0);
        }
    }
}

#[test]
fn a_process_that_a_debugger_holds_is_shown_as_held() {
    let Some(debugged) = DebuggedProcess::new() else {
        skip!("ptrace is not allowed here");
    };
    assert!(is_held_by_another(debugged.held));
    let stat = proc::stat(debugged.held).unwrap();
    let mut tree = ProcessTree::of(Ident { pid: stat.pid, start: stat.start });
    let seen = tree.look(&mut HostCache::read(), FULL);
    assert_eq!(seen.main.unwrap().state, 't');
}

#[test]
fn the_time_without_a_core_is_the_second_number() {
    let schedule = Schedule { ran_ns: 223_041_826, delay_ns: 58_412_202, turns: 969 };
    assert_eq!(proc::parse_schedule("223041826 58412202 969\n"), Some(schedule));
    assert_eq!((proc::parse_schedule(""), proc::parse_schedule("1 x 2")), (None, None));
}

#[test]
fn a_family_is_seen_with_its_children_and_is_gone_when_its_root_is() {
    let mut cache = HostCache::read();
    let mut root = Command::new("sh")
        .args(["-c", "sleep 1000 & read line"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let stat = proc::stat(root.id()).unwrap();
    let mut tree = ProcessTree::of(Ident { pid: stat.pid, start: stat.start });
    let seen = soon(|| {
        cache.turn(proc::load().and_then(|load| load.newest));
        let seen = tree.look(&mut cache, FULL);
        (seen.children == 1 && seen.signals.children[0].name == "sleep").then_some(seen)
    });
    assert_eq!((seen.pids.len(), seen.main.as_ref().map(|main| main.pid)), (2, Some(root.id())));
    assert!(seen.rss > 0);
    let child = seen.signals.children[0].pid;
    root.kill().unwrap();
    root.wait().unwrap();
    assert!(tree.look(&mut cache, FULL).main.is_none());
    // SAFETY: kill takes two integers; the sleeper is this test's own.
    unsafe { libc::kill(child as i32, libc::SIGKILL) };
}

#[test]
fn a_birth_and_a_death_are_seen_by_the_next_thorough_look() {
    let mut cache = HostCache::read();
    let own = proc::stat(std::process::id()).unwrap();
    let mut tree = ProcessTree::of(Ident { pid: own.pid, start: own.start });
    let mut look = || {
        cache.turn(proc::load().and_then(|load| load.newest));
        tree.look(&mut cache, FULL)
    };
    look();
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    let seen = look();
    assert!(seen.pids.contains(&child.id()), "a new child: {seen:?}");
    assert!(look().pids.contains(&child.id()), "the list is kept or made again");
    child.kill().unwrap();
    child.wait().unwrap();
    let seen = look();
    assert!(!seen.pids.contains(&child.id()), "a child that is gone: {seen:?}");
}

/// Two forked children: one converses over a connection of its own, one has those of its parent and sleeps.
#[test]
fn what_connections_carry_is_told_of_the_process_that_has_made_them() {
    let code = "import os, socket, threading, time\n\
        server = socket.create_server(('127.0.0.1', 0))\n\
        def converse():\n\
        \x20   near = socket.create_connection(server.getsockname())\n\
        \x20   return near, server.accept()[0]\n\
        def talk(near, far):\n\
        \x20   while True: near.send(bytes(100)), far.recv(100), time.sleep(0.1)\n\
        if os.fork() == 0: talk(*converse())\n\
        ends = converse()\n\
        if os.fork() == 0: time.sleep(1000)\n\
        threading.Thread(target=talk, args=ends).start()\n\
        time.sleep(1000)";
    let mut parent = Command::new("python3");
    let parent = Parent(parent.args(["-c", code]).process_group(0).spawn().unwrap());
    let stat = proc::stat(parent.0.id()).unwrap();
    let mut tree = ProcessTree::of(Ident { pid: stat.pid, start: stat.start });
    let mut cache = HostCache::read();
    let mut carried = || {
        cache.turn(proc::load().and_then(|load| load.newest));
        let seen = tree.look(&mut cache, FULL);
        let main = seen.signals.main?.net_bytes?;
        let below: Option<Vec<u64>> = seen.signals.children.iter().map(|child| child.net_bytes).collect();
        Some((main, below.filter(|below| below.len() == 2)?))
    };
    let pause = || std::thread::sleep(Duration::from_millis(50));
    let first = soon(|| {
        pause();
        carried().filter(|(main, below)| *main > 0 && below.iter().any(|bytes| *bytes > 0))
    });
    let later = soon(|| {
        pause();
        carried().filter(|(main, below)| *main > first.0 && below.iter().max() > first.1.iter().max())
    });
    assert_eq!(later.1.iter().min(), Some(&0), "its connections are its parent's: {later:?}");
}

/// A shell that bears a sleeper for every line, in a group of its own, which goes with it.
struct Parent(std::process::Child);

impl Parent {
    fn new() -> Parent {
        let mut shell = Command::new("sh");
        shell.args(["-c", "while read word; do sleep 1000 & done"]).stdin(std::process::Stdio::piped());
        Parent(shell.process_group(0).spawn().unwrap())
    }

    fn bear(&mut self) -> u32 {
        let before = proc::descendants(self.0.id());
        self.0.stdin.as_mut().unwrap().write_all(b"one\n").unwrap();
        soon(|| proc::descendants(self.0.id()).into_iter().find(|pid| !before.contains(pid)))
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        // SAFETY: kill takes two integers; the group is this test's own.
        unsafe { libc::kill(-(self.0.id() as i32), libc::SIGKILL) };
        let _ = self.0.wait();
    }
}

fn soon<T>(mut comes: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = comes() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_list_is_kept_only_while_nobody_is_born_or_dies() {
    let mut parent = Parent::new();
    let root = parent.0.id();
    let mut slow = Slow::of(root);
    let now = Instant::now();
    let mut sees = |pid, at| {
        slow.below = slow.below(root, Some(7), at);
        slow.below.iter().any(|process| process.pid == pid)
    };
    let first = parent.bear();
    assert!(sees(first, now), "listed for the first time");
    let second = parent.bear();
    assert!(sees(first, now) && !sees(second, now), "the number stands still, which hides the second one");
    assert!(sees(second, now + LIST_ROUND), "for a while");
    for pid in [first, second] {
        // SAFETY: kill takes two integers; the sleepers are this test's own.
        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        soon(|| proc::stat(pid).is_none_or(|process| process.is_gone()).then_some(()));
    }
    slow.below = slow.below(root, Some(7), now + LIST_ROUND);
    assert!(
        slow.below.iter().all(Stat::is_gone),
        "the dead are not taken for alive whatever the number says"
    );
}
