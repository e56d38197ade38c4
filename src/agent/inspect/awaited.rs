//! Follows a wait to the process on the other end (pipe, socket, lock, child): when it wakes by itself,
//! and whether a thread of the rank is short of CPU.
//!
//! The only state is [`CoreUsage`], which compares two moments of one inspection.
//!
//! Follows a main thread that waits for another thread of its process: a future, a pool, a queue, a join.
//!
//! Which thread will end such a wait cannot be seen. Candidates are the threads that run code of the program, and
//! those that take the results of a pool's workers: trackers and writers run code of libraries only. A lock that
//! the program takes itself is not followed: its holder may be any thread.

use super::syscall::{self, SyscallWait};
use super::{descriptors, memory, obstacle, sockets};
use crate::observe::cgroup_stat::Mounts;
use crate::observe::host_signals::clock_ms;
use crate::proc;
use rankdeck_proto::inspection::FrameOwner;
use rankdeck_proto::inspection::{Obstacle, StackMethod, ThreadStack};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

/// Most processes that are named.
const PROCESSES: usize = 64;
/// Most threads whose time on a core is compared.
const THREADS: usize = 256;
/// Share of the inspection from which a thread counts as short of CPU.
const LACKS: f64 = 0.5;

/// The processes that a call waits for: a child, or those that hold the other ends of its descriptors.
pub(super) fn processes(pid: u32, call: &SyscallWait) -> Vec<u32> {
    let polled = || -> Option<Vec<i32>> {
        let (name, _) = syscall::name(call.number?);
        poll_call(pid, call).filter(|_| matches!(name, "poll" | "ppoll")).map(|polled| polled.fds)
    };
    let fds = syscall::descriptor(call).map(|fd| vec![fd]).or_else(polled).unwrap_or_default();
    let mut pids: Vec<u32> =
        fds.iter().flat_map(|fd| descriptors::peers(pid, *fd)).chain(syscall::child(call)).collect();
    pids.sort_unstable();
    pids.dedup();
    pids.truncate(PROCESSES);
    pids
}

/// Returns the milliseconds until a sleeping thread wakes by itself. A relative sleep counts in full:
/// the elapsed part is unknown. An event loop that has only timers sleeps, too.
pub(super) fn sleep_left_ms(pid: u32, call: &SyscallWait) -> Option<u64> {
    by_clock_ms(pid, call).or_else(|| timer_ms(pid, call))
}

/// Waits for Python's interpreter lock time out after 5 ms and do not count as sleep.
const INTERPRETER_LOCK_MS: u64 = 5;

/// The same of a wait for a lock that is given up after a while, as one for the next item of a queue is.
pub(super) fn lock_left_ms(pid: u32, call: &SyscallWait) -> Option<u64> {
    if call.number? != libc::SYS_futex || call.args[3] == 0 {
        return None;
    }
    let operation = call.args[1] as i32;
    let realtime = operation & libc::FUTEX_CLOCK_REALTIME != 0;
    let clock = match operation & libc::FUTEX_CMD_MASK {
        libc::FUTEX_WAIT => None,
        libc::FUTEX_WAIT_BITSET if realtime => Some(libc::CLOCK_REALTIME),
        libc::FUTEX_WAIT_BITSET => Some(libc::CLOCK_MONOTONIC),
        _ => return None,
    };
    let left_ms = time_ms(pid, call.args[3])?.saturating_sub(clock.map_or(0, clock_ms));
    Some(left_ms).filter(|left_ms| *left_ms > INTERPRETER_LOCK_MS)
}

/// A `struct timespec` in the memory of the process.
fn time_ms(pid: u32, at: u64) -> Option<u64> {
    let bytes = memory::read(pid, at, 16).ok()?;
    let word = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    Some(word(0)?.saturating_mul(1000).saturating_add(word(8)? / 1_000_000))
}

/// Returns the milliseconds until a thread wakes that sleeps by the clock.
pub(super) fn by_clock_ms(pid: u32, call: &SyscallWait) -> Option<u64> {
    let (at, clock) = match call.number? {
        libc::SYS_nanosleep => (call.args[0], None),
        libc::SYS_clock_nanosleep => {
            let absolute = call.args[1] & libc::TIMER_ABSTIME as u64 != 0;
            (call.args[2], absolute.then_some(call.args[0] as libc::clockid_t))
        }
        _ => return None,
    };
    Some(time_ms(pid, at)?.saturating_sub(clock.map_or(0, clock_ms)))
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
struct ThreadTimes {
    ran: u64,
    delayed: u64,
    ready: bool,
}

/// The threads of a process and the processes below it, and what they had of the cores.
#[derive(Debug)]
pub(super) struct CoreUsage {
    at: Instant,
    threads: BTreeMap<(u32, u32), ThreadTimes>,
}

impl CoreUsage {
    /// What they have had so far.
    pub fn read(pid: u32) -> CoreUsage {
        let own = threads(pid).into_iter().map(|tid| (pid, tid));
        let below = proc::descendants(pid).into_iter().map(|child| (child, child));
        let threads = own.chain(below).take(THREADS);
        CoreUsage {
            at: Instant::now(),
            threads: threads.filter_map(|place| Some((place, times(place)?))).collect(),
        }
    }

    /// Returns whether one of them was ready for most of the time since without a core. The kernel counts a wait only when
    /// it ends: a thread that gets no core at all is merely seen ready.
    pub fn lacked(&self) -> bool {
        let passed = self.at.elapsed().as_nanos() as f64;
        let lacks = |(place, before): (&(u32, u32), &ThreadTimes)| {
            let Some(now) = times(*place) else { return false };
            let share = |ns: u64| ns as f64 / passed.max(1.0);
            let all_the_time = before.ready && now.ready && share(now.ran.saturating_sub(before.ran)) < LACKS;
            all_the_time || share(now.delayed.saturating_sub(before.delayed)) >= LACKS
        };
        self.threads.iter().any(lacks)
    }
}

fn times((pid, tid): (u32, u32)) -> Option<ThreadTimes> {
    let had = proc::schedule(pid, tid)?;
    let state = proc::parse_stat(&proc::text(format!("/proc/{pid}/task/{tid}/stat"))?)?.state;
    Some(ThreadTimes { ran: had.ran_ns, delayed: had.delay_ns, ready: state == 'R' })
}

/// Most descriptors of one call.
const POLLED: usize = 16;

/// The descriptors, and milliseconds until it gives up; `None` for as long as it takes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PollCall {
    pub fds: Vec<i32>,
    pub timeout_ms: Option<u64>,
}

/// Of poll(2) and epoll_wait(2).
pub(super) fn poll_call(pid: u32, call: &SyscallWait) -> Option<PollCall> {
    let (name, _) = syscall::name(call.number?);
    let (fds, limit) = match name {
        "poll" | "ppoll" => {
            // struct pollfd: descriptor, events, returned events.
            let count = (call.args[1] as usize).min(POLLED);
            let bytes = memory::read(pid, call.args[0], count * 8).ok()?;
            let fds = bytes
                .chunks_exact(8)
                .filter_map(|entry| Some(i32::from_ne_bytes(entry.get(..4)?.try_into().ok()?)));
            (fds.filter(|fd| *fd >= 0).collect(), (name == "poll").then_some(call.args[2]))
        }
        "epoll_wait" | "epoll_pwait" => {
            let text = proc::text(format!("/proc/{pid}/fdinfo/{}", call.args[0] as i32))?;
            let fds = text
                .lines()
                .filter_map(|line| line.strip_prefix("tfd:")?.split_whitespace().next()?.parse().ok());
            (fds.take(POLLED).collect(), Some(call.args[3]))
        }
        _ => return None,
    };
    Some(PollCall { fds, timeout_ms: limit.and_then(|limit| u64::try_from(limit as i32).ok()) })
}

/// Returns the milliseconds after which an event loop wakes that waits only for its own threads. How
/// much of them has passed is unknown. An event loop has its own pipe or socket pair for wake-ups: one that waits
/// for nothing else, with a time limit, has a timer to run.
pub(super) fn timer_ms(pid: u32, call: &SyscallWait) -> Option<u64> {
    let PollCall { fds, timeout_ms } = poll_call(pid, call)?;
    // All of a full list may not be all that it waits for.
    let is_all = !fds.is_empty() && fds.len() < POLLED;
    timeout_ms.filter(|_| is_all && fds.iter().all(|fd| descriptors::is_own_wake_up(pid, *fd)))
}

/// Parts of Python's library in which a thread waits for others of its process.
const WAITS: [&str; 5] =
    ["/concurrent/futures/", "/multiprocessing/pool.py", "/threading.py", "/queue.py", "/asyncio/"];
/// Where the thread of a pool waits that takes the results of its workers.
const RESULTS: (&str, &str) = ("/multiprocessing/pool.py", "_handle_results");

/// What the threads wait for that a main thread waits for.
#[derive(Debug, Default)]
pub(super) struct ThreadWait {
    /// The first of them: its name and line.
    pub thread: String,
    /// Processes at the other ends.
    pub processes: Vec<u32>,
    /// Milliseconds until the first of them wakes by itself.
    pub sleep_ms: Option<u64>,
    pub obstacles: Vec<Obstacle>,
}

/// Follows the wait of the main thread of `pid` by the stacks of its threads; `None` if it waits for no thread.
pub(super) fn follow(pid: u32, stacks: &[ThreadStack], tcp: &[sockets::Tcp]) -> Option<ThreadWait> {
    let main = syscall::call(pid, pid).filter(|call| call.number == Some(libc::SYS_futex))?;
    let python = || stacks.iter().filter(|stack| stack.how == StackMethod::Python);
    let waits = |stack: &ThreadStack| {
        let innermost = stack.frames.iter().take_while(|frame| frame.owner() == FrameOwner::System);
        innermost
            .filter_map(|frame| frame.file.as_deref())
            .any(|file| WAITS.iter().any(|part| file.contains(part)))
    };
    python().find(|stack| stack.tid == pid && waits(stack))?;
    let mut found = ThreadWait::default();
    for stack in python().filter(|stack| stack.tid != pid && is_candidate(stack)) {
        // Stacks of child processes are among them.
        let Some(call) = syscall::call(pid, stack.tid).filter(|call| *call != main) else { continue };
        found.add(pid, stack, &call, tcp);
    }
    (!found.thread.is_empty()).then_some(found)
}

/// The thread may end the wait: it runs code of the program, or takes the results of a pool.
fn is_candidate(stack: &ThreadStack) -> bool {
    stack.frames.iter().any(|frame| {
        let file = frame.file.as_deref().unwrap_or_default();
        frame.owner() == FrameOwner::Program
            || (file.ends_with(RESULTS.0) && frame.function.ends_with(RESULTS.1))
    })
}

impl ThreadWait {
    fn add(&mut self, pid: u32, stack: &ThreadStack, call: &SyscallWait, tcp: &[sockets::Tcp]) {
        let processes = processes(pid, call);
        let obstacle = obstacle::find(pid, call, tcp).or_else(|| obstacle::in_memory(pid, call, tcp));
        let sleep_ms = by_clock_ms(pid, call);
        if processes.is_empty() && obstacle.is_none() && sleep_ms.is_none() {
            return;
        }
        if self.thread.is_empty() {
            let frame = stack.frames.iter().find(|frame| frame.owner() != FrameOwner::System);
            let at = frame.map(|frame| format!(" at {}", frame.place())).unwrap_or_default();
            self.thread = format!("{}{at}", if stack.name.is_empty() { "?" } else { &stack.name });
        }
        self.processes.extend(processes.into_iter().filter(|process| *process != pid));
        self.processes.sort_unstable();
        self.processes.dedup();
        self.sleep_ms = self.sleep_ms.into_iter().chain(sleep_ms).min();
        self.obstacles.extend(obstacle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::tests::Victim;
    use rankdeck_proto::inspection::{Obstacle, StackMethod};
    use std::time::Duration;

    #[test]
    fn sleep_of_an_awaited_worker_is_reported() {
        let code = "import multiprocessing, time\nours, theirs = multiprocessing.Pipe()\n\
            multiprocessing.Process(target=time.sleep, args=(500,), daemon=True).start()\nours.recv()";
        let victim = Victim::start("python3", &["-c", code]);
        let mut left = None;
        victim.until("it waits for its worker, which sleeps", || {
            left = victim.inspection().awaited_sleep_ms;
            left.is_some()
        });
        assert!(left.is_some_and(|left| (400_000..=500_000).contains(&left)), "{left:?}");
    }

    /// Without the signal, this worker would be reported as one that wakes by itself.
    #[test]
    fn sleep_of_a_stopped_worker_is_not_counted() {
        let code = "import multiprocessing, time\nours, theirs = multiprocessing.Pipe()\n\
            multiprocessing.Process(target=time.sleep, args=(500,), daemon=True).start()\nours.recv()";
        let victim = Victim::start("python3", &["-c", code]);
        victim.until("it waits for its worker, which sleeps", || {
            victim.inspection().awaited_sleep_ms.is_some()
        });
        for child in proc::descendants(victim.0.id()) {
            let start = proc::stat(child).map_or(0, |stat| stat.start);
            crate::supervise::groups::signal(child, start, libc::SIGSTOP);
        }
        victim.until("its worker is stopped", || victim.inspection().awaited_sleep_ms.is_none());
        assert!(!victim.inspection().awaits.is_empty(), "it waits for the worker all the same");
    }

    #[test]
    fn sleep_of_a_server_thread_is_reported() {
        let code = "import socket, threading, time\nserver = socket.create_server(('127.0.0.1', 0))\n\
            client = socket.create_connection(server.getsockname())\nother, _ = server.accept()\n\
            threading.Thread(target=time.sleep, args=(500,), daemon=True).start()\nclient.recv(1)";
        let victim = Victim::start("python3", &["-c", code]);
        let mut left = None;
        victim.until("it waits for its own thread, which sleeps", || {
            left = victim.inspection().awaited_sleep_ms;
            left.is_some()
        });
        assert!(left.is_some_and(|left| (400_000..=500_000).contains(&left)), "{left:?}");
    }

    #[test]
    fn rank_lacks_a_core_only_when_ready() {
        let sleeper = Victim::start("sleep", &["1000"]);
        let cores = CoreUsage::read(sleeper.0.id());
        std::thread::sleep(Duration::from_millis(50));
        assert!(!cores.lacked());

        // Many threads share one core.
        let code = "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: pass";
        let crowd: Vec<Victim> = (0..8).map(|_| Victim::start("python3", &["-c", code])).collect();
        crowd[0].until("one of many lacks a core", || {
            let cores = CoreUsage::read(crowd[0].0.id());
            std::thread::sleep(Duration::from_millis(200));
            cores.lacked()
        });
    }

    #[test]
    fn wait_for_a_future_ends_at_its_connection() {
        let code = "import socket\nfrom concurrent.futures import ThreadPoolExecutor\n\
            server = socket.create_server(('127.0.0.1', 0))\n\
            client = socket.create_connection(server.getsockname())\n\
            def judge(): return client.recv(1)\n\
            ThreadPoolExecutor(1).submit(judge).result()";
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("judge.py");
        std::fs::write(&script, code).unwrap();
        let victim = Victim::start("python3", &[script.to_str().unwrap()]);
        victim.until("the connection is named", || {
            matches!(victim.inspection().obstacle, Some(Obstacle::Connection { .. }))
        });
        let words = victim.inspection().blocked_on.unwrap_or_default();
        assert!(words.contains("judge.py:5"), "{words}");
    }

    #[test]
    fn wait_for_a_pool_ends_at_its_sleeping_worker() {
        let code = "import multiprocessing, time\nmultiprocessing.Pool(2).map(time.sleep, [500, 500])";
        let victim = Victim::start("python3", &["-c", code]);
        let mut left = None;
        victim.until("a worker sleeps", || {
            left = victim.inspection().awaited_sleep_ms;
            left.is_some()
        });
        assert!(left.is_some_and(|left| left <= 500_000), "{left:?}");
        assert!(!victim.inspection().awaits.is_empty());
    }

    #[test]
    fn lock_of_several_processes_is_told_from_one_of_threads() {
        for (lock, shared) in [("multiprocessing.Lock", true), ("threading.Lock", false)] {
            let code = format!("import multiprocessing, threading\nl = {lock}()\nl.acquire(), l.acquire()");
            let victim = Victim::start("python3", &["-c", &code]);
            let mut found = victim.inspection();
            victim.until("it waits for the lock", || {
                found = victim.inspection();
                found.os.syscall.as_deref() == Some("futex")
            });
            assert_eq!(found.os.shared_lock, shared, "{lock}");
        }
    }

    #[test]
    fn lock_of_the_program_is_not_followed() {
        let code = "import threading, time\n\
            def work(): time.sleep(500)\n\
            threading.Thread(target=work, daemon=True).start()\n\
            lock = threading.Lock()\nlock.acquire()\nlock.acquire()";
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("lock.py");
        std::fs::write(&script, code).unwrap();
        let victim = Victim::start("python3", &[script.to_str().unwrap()]);
        let mut found = victim.inspection();
        victim.until("it waits for the lock", || {
            found = victim.inspection();
            let python = found.threads.iter().filter(|stack| stack.how == StackMethod::Python);
            found.os.syscall.as_deref() == Some("futex") && python.count() == 2
        });
        assert_eq!((found.awaited_sleep_ms, found.obstacle), (None, None));
    }
}
