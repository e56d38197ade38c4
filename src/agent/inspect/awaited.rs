//! What a rank waits for, one step further: the processes at the other end, when one of them wakes by itself,
//! and whether anything of the rank wants a core and gets none.
//!
//! Owner: nobody keeps state but [`Cores`], which compares two moments of one look.

use super::syscall::{self, Call};
use super::{descriptors, memory, polled, sockets};
use crate::observe::cgroup_stat::Mounts;
use crate::observe::host_signals::clock_ms;
use crate::proc;
use rankdeck_proto::inspection::Obstacle;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

/// Most processes that are named.
const PROCESSES: usize = 64;
/// Most threads whose time on a core is compared.
const THREADS: usize = 256;
/// Share of the look from which a thread lacked a core.
const LACKS: f64 = 0.5;

/// The processes that a call waits for: a child, or those that hold the other ends of its descriptors.
pub(super) fn processes(pid: u32, call: &Call) -> Vec<u32> {
    let polled = || -> Option<Vec<i32>> {
        let (name, _) = syscall::name(call.number?);
        polled::of(pid, call).filter(|_| matches!(name, "poll" | "ppoll")).map(|polled| polled.fds)
    };
    let fds = syscall::descriptor(call).map(|fd| vec![fd]).or_else(polled).unwrap_or_default();
    let mut pids: Vec<u32> =
        fds.iter().flat_map(|fd| descriptors::peers(pid, *fd)).chain(syscall::child(call)).collect();
    pids.sort_unstable();
    pids.dedup();
    pids.truncate(PROCESSES);
    pids
}

/// Milliseconds until a thread that sleeps wakes by itself. A relative sleep counts in full: nothing tells
/// how much of it has passed. An event loop that has nothing but timers sleeps, too.
pub(super) fn sleep_left_ms(pid: u32, call: &Call) -> Option<u64> {
    by_clock_ms(pid, call).or_else(|| polled::timer_ms(pid, call))
}

fn by_clock_ms(pid: u32, call: &Call) -> Option<u64> {
    let (at, clock) = match call.number? {
        libc::SYS_nanosleep => (call.args[0], None),
        libc::SYS_clock_nanosleep => {
            let absolute = call.args[1] & libc::TIMER_ABSTIME as u64 != 0;
            (call.args[2], absolute.then_some(call.args[0] as libc::clockid_t))
        }
        _ => return None,
    };
    let bytes = memory::read(pid, at, 16).ok()?;
    let word = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let until_ms = word(0)?.saturating_mul(1000).saturating_add(word(8)? / 1_000_000);
    Some(until_ms.saturating_sub(clock.map_or(0, clock_ms)))
}

/// Milliseconds until the first of those that a rank waits for wakes by itself: a process, one below it, the
/// other end of a connection on this host, or a thread of the rank itself where that is the other end.
pub(super) fn sleep_ms(
    pid: u32,
    processes: &[u32],
    obstacle: Option<&Obstacle>,
    tcp: &[sockets::Tcp],
) -> Option<u64> {
    let owner = match obstacle {
        Some(Obstacle::Connection { owner: Some(owner), .. }) => Some(owner.pid),
        _ => None,
    };
    let named = processes.iter().copied().chain(owner);
    let below = named.flat_map(|process| std::iter::once(process).chain(proc::descendants(process)));
    let others = below.filter(|process| *process != pid).take(PROCESSES).map(|process| (process, process));
    let own = || threads(pid).into_iter().filter(|tid| *tid != pid).map(|tid| (pid, tid));
    let own: Vec<(u32, u32)> = if is_own(pid, obstacle, tcp) { own().collect() } else { Vec::new() };
    let mounts = Mounts::read();
    let wakes_in = |(pid, tid)| {
        let left = by_clock_ms(pid, &syscall::call(pid, tid)?)?;
        (!is_held(&mounts, pid, tid)).then_some(left)
    };
    others.chain(own).filter_map(wakes_in).min()
}

/// A signal, a tracer or its control group keeps it from running: its sleep ends, and it does not wake.
fn is_held(mounts: &Mounts, pid: u32, tid: u32) -> bool {
    let stat = proc::text(format!("/proc/{pid}/task/{tid}/stat"));
    let state = stat.and_then(|text| Some(proc::parse_stat(&text)?.state));
    matches!(state, Some('T' | 't')) || mounts.of(pid).is_some_and(|groups| groups.is_frozen())
}

/// Both ends of the connection belong to the process.
fn is_own(pid: u32, obstacle: Option<&Obstacle>, tcp: &[sockets::Tcp]) -> bool {
    let Some(Obstacle::Connection { peer, owner: None }) = obstacle else { return false };
    if peer.parse::<SocketAddr>().is_err() {
        let (own, all) = (descriptors::socket_inodes(pid), sockets::unix().unwrap_or_default());
        return all.iter().any(|unix| unix.path.as_ref() == Some(peer) && own.contains(&unix.inode));
    }
    let mut ends = tcp.iter().filter(|tcp| tcp.socket.local == *peer).peekable();
    ends.peek().is_some() && {
        let own = descriptors::socket_inodes(pid);
        ends.any(|tcp| own.contains(&tcp.inode))
    }
}

fn threads(pid: u32) -> Vec<u32> {
    let folder = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    folder.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).take(THREADS).collect()
}

/// One thread's times in nanoseconds, and whether it is ready to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Times {
    ran: u64,
    delayed: u64,
    ready: bool,
}

/// The threads of a process and the processes below it, and what they had of the cores.
#[derive(Debug)]
pub(super) struct Cores {
    at: Instant,
    threads: BTreeMap<(u32, u32), Times>,
}

impl Cores {
    /// What they have had so far.
    pub fn of(pid: u32) -> Cores {
        let own = threads(pid).into_iter().map(|tid| (pid, tid));
        let below = proc::descendants(pid).into_iter().map(|child| (child, child));
        let threads = own.chain(below).take(THREADS);
        Cores {
            at: Instant::now(),
            threads: threads.filter_map(|place| Some((place, times(place)?))).collect(),
        }
    }

    /// One of them wanted a core for most of the time since, and got none. The kernel counts a wait only when
    /// it is over: a thread that gets no core at all is merely seen ready.
    pub fn lacked(&self) -> bool {
        let passed = self.at.elapsed().as_nanos() as f64;
        let lacks = |(place, before): (&(u32, u32), &Times)| {
            let Some(now) = times(*place) else { return false };
            let share = |ns: u64| ns as f64 / passed.max(1.0);
            let all_the_time = before.ready && now.ready && share(now.ran.saturating_sub(before.ran)) < LACKS;
            all_the_time || share(now.delayed.saturating_sub(before.delayed)) >= LACKS
        };
        self.threads.iter().any(lacks)
    }
}

fn times((pid, tid): (u32, u32)) -> Option<Times> {
    let had = proc::schedule(pid, tid)?;
    let state = proc::parse_stat(&proc::text(format!("/proc/{pid}/task/{tid}/stat"))?)?.state;
    Some(Times { ran: had.ran_ns, delayed: had.delay_ns, ready: state == 'R' })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::victim::Victim;
    use std::time::Duration;

    #[test]
    fn the_sleep_of_a_worker_that_a_rank_waits_for_is_told() {
        let code = "import multiprocessing, time\nours, theirs = multiprocessing.Pipe()\n\
            multiprocessing.Process(target=time.sleep, args=(500,), daemon=True).start()\nours.recv()";
        let victim = Victim::start("python3", &["-c", code]);
        let mut left = None;
        victim.until("it waits for its worker, which sleeps", || {
            left = victim.looked_at().awaited_sleep_ms;
            left.is_some()
        });
        assert!(left.is_some_and(|left| (400_000..=500_000).contains(&left)), "{left:?}");
    }

    /// Without the signal, this worker would be told as one that wakes by itself.
    #[test]
    fn the_sleep_of_a_worker_that_is_stopped_is_no_promise() {
        let code = "import multiprocessing, time\nours, theirs = multiprocessing.Pipe()\n\
            multiprocessing.Process(target=time.sleep, args=(500,), daemon=True).start()\nours.recv()";
        let victim = Victim::start("python3", &["-c", code]);
        victim
            .until("it waits for its worker, which sleeps", || victim.looked_at().awaited_sleep_ms.is_some());
        for child in proc::descendants(victim.0.id()) {
            let start = proc::stat(child).map_or(0, |stat| stat.start);
            crate::supervise::groups::signal(child, start, libc::SIGSTOP);
        }
        victim.until("its worker is stopped", || victim.looked_at().awaited_sleep_ms.is_none());
        assert!(!victim.looked_at().awaits.is_empty(), "it waits for the worker all the same");
    }

    #[test]
    fn the_sleep_of_a_server_in_a_thread_of_the_program_itself_is_told() {
        let code = "import socket, threading, time\nserver = socket.create_server(('127.0.0.1', 0))\n\
            client = socket.create_connection(server.getsockname())\nother, _ = server.accept()\n\
            threading.Thread(target=time.sleep, args=(500,), daemon=True).start()\nclient.recv(1)";
        let victim = Victim::start("python3", &["-c", code]);
        let mut left = None;
        victim.until("it waits for its own thread, which sleeps", || {
            left = victim.looked_at().awaited_sleep_ms;
            left.is_some()
        });
        assert!(left.is_some_and(|left| (400_000..=500_000).contains(&left)), "{left:?}");
    }

    #[test]
    fn a_rank_that_sleeps_lacks_no_core_and_one_whose_core_another_has_does() {
        let sleeper = Victim::start("sleep", &["1000"]);
        let cores = Cores::of(sleeper.0.id());
        std::thread::sleep(Duration::from_millis(50));
        assert!(!cores.lacked());

        // Many that want one core: each gets a part of it.
        let code = "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: pass";
        let crowd: Vec<Victim> = (0..8).map(|_| Victim::start("python3", &["-c", code])).collect();
        crowd[0].until("one of many lacks a core", || {
            let cores = Cores::of(crowd[0].0.id());
            std::thread::sleep(Duration::from_millis(200));
            cores.lacked()
        });
    }
}
