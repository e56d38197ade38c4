//! The processes of one rank. Fast counters are read at every sample, through descriptors that
//! stay open; everything else is read twice a second.
//!
//! Owner: the sampling thread. The cost was measured (docs/benchmarks.md): listing children goes
//! over every thread of every process, so that it is repeated only where a process may have started or
//! ended; opening a file of `/proc` takes longer than reading it.

use crate::inspect::{descriptors, sockets};
use crate::observe::cgroup_stat;
use crate::proc::{self, ProcFile, ProcStat, ProcessKey, Schedule};
use crate::program;
use rankdeck_proto::message::{CgroupSample, ChildSample, MainThread, RankSignals};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Children are listed again after this time even if the kernel reports no new process: some containers
/// have a made-up list.
const LIST_ROUND: Duration = Duration::from_secs(5);
/// Most children of a rank that are listed, and whose traffic is read.
const CHILDREN: usize = 64;
/// Share of a core from which a main thread counts as active without reading its connections.
const RUNS: f32 = 0.05;

/// Depth of a sample.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SampleDepth {
    /// Also slow counters. The first sample always reads them.
    pub thorough: bool,
    /// With that, what the connections of a main thread that hardly runs have carried, and those of its
    /// children: a walk over all connections of the host. Not needed while the program itself shows
    /// life.
    pub connections: bool,
}

/// One rank's processes.
#[derive(Debug)]
pub(crate) struct ProcessTree {
    root: ProcessKey,
    stat: Option<ProcFile>,
    wchan: Option<ProcFile>,
    schedule: Option<ProcFile>,
    /// Where the main thread waits, and its time on a core when that was read.
    waits: (String, u64),
    slow: Option<SlowCounters>,
}

/// What ranks of one host have in common.
#[derive(Debug, Default)]
pub(crate) struct HostCache {
    mounts: cgroup_stat::Mounts,
    newest: Option<u32>,
    groups: Vec<(cgroup_stat::Groups, CgroupSample)>,
    /// Bytes of each TCP socket of the host, by inode; read once per round, on demand.
    carried: Option<BTreeMap<u64, u64>>,
}

impl HostCache {
    /// Reads what stays as it is while a run lives.
    pub fn read() -> HostCache {
        HostCache { mounts: cgroup_stat::Mounts::read(), ..HostCache::default() }
    }

    /// A new round starts. `newest` is the last process made on this host, read before the round.
    pub fn turn(&mut self, newest: Option<u32>) {
        self.newest = newest;
        self.groups.clear();
        self.carried = None;
    }

    /// The last process that was made on this host.
    pub fn newest(&self) -> Option<u32> {
        self.newest
    }

    /// What each TCP socket of the host has carried, by inode; `None` where that cannot be read.
    fn carried(&mut self) -> Option<&BTreeMap<u64, u64>> {
        if self.carried.is_none() {
            self.carried = Some(sockets::tcp().ok()?.iter().map(|tcp| (tcp.inode, tcp.carried)).collect());
        }
        self.carried.as_ref()
    }

    /// Ranks mostly share their groups: each is read once per round.
    fn sample(&mut self, groups: &cgroup_stat::Groups) -> CgroupSample {
        if let Some((_, sample)) = self.groups.iter().find(|(seen, _)| seen == groups) {
            return sample.clone();
        }
        let sample = groups.sample();
        self.groups.push((groups.clone(), sample.clone()));
        sample
    }
}

/// Slow counters: children, cgroup and storage traffic.
#[derive(Debug)]
struct SlowCounters {
    at: Option<Instant>,
    below: Vec<ProcStat>,
    /// The newest process of the host, and when, before `below` was listed.
    listed: Option<(u32, Instant)>,
    membership: Option<ProcFile>,
    io: Option<ProcFile>,
    main_io: Option<ProcFile>,
    /// Of the main thread: its counters at the latest sample, and the bytes moved since the process
    /// began.
    main: MainThread,
    ticks: BTreeMap<ProcessKey, u64>,
    percent: f32,
    groups: Option<cgroup_stat::Groups>,
    cgroup: Option<CgroupSample>,
    io_bytes: u64,
    io_below: BTreeMap<u32, proc::Io>,
    connections: Connections,
    net_below: BTreeMap<u32, u64>,
    only_core: Option<u32>,
}

/// A process tree at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct TreeSample {
    /// The rank's own process, `None` when it is gone.
    pub main: Option<ProcStat>,
    /// Pids of all that is there, the rank's own first.
    pub pids: Vec<u32>,
    /// Kernel function that the main thread waits in; for a thread that has run meanwhile, as of the last
    /// full sample.
    pub wchan: String,
    /// Percent of one core of the whole tree.
    pub cpu_percent: f32,
    /// Resident memory of the whole tree, bytes.
    pub rss: u64,
    /// Processes below the rank's own.
    pub children: u32,
    /// All other signals of the rank.
    pub signals: RankSignals,
}

impl ProcessTree {
    /// The tree below a process.
    pub fn new(root: ProcessKey) -> ProcessTree {
        let open = |file: &str| ProcFile::open(format!("/proc/{}/{file}", root.pid));
        ProcessTree {
            root,
            stat: open("stat"),
            wchan: open("wchan"),
            schedule: open("schedstat"),
            waits: Default::default(),
            slow: None,
        }
    }

    /// Takes a sample.
    pub fn sample(&mut self, cache: &mut HostCache, depth: SampleDepth) -> TreeSample {
        let read = self.stat.as_mut().and_then(ProcFile::text).and_then(|text| proc::parse_stat(&text));
        // A descriptor belongs to its process, a pid may be another one's by now.
        let Some(main) = read.filter(|main| main.start == self.root.start) else {
            self.slow = None;
            return TreeSample::default();
        };
        let main = match main.state {
            // An inspection stops a running process while it copies a stack, which is visible on a busy host:
            // it is not a debugger.
            't' if !is_held_by_another(main.pid) => ProcStat { state: 'R', ..main },
            'T' => ProcStat { state: state(&main), ..main },
            _ => main,
        };
        let schedule =
            self.schedule.as_mut().and_then(ProcFile::text).and_then(|text| proc::parse_schedule(&text));
        // A kernel without these statistics reports nothing.
        let schedule = schedule.filter(|schedule| schedule.ran_ns > 0);
        let slow = self.slow.get_or_insert_with(|| SlowCounters::read(main.pid));
        let thoroughly = depth.thorough || slow.at.is_none();
        if thoroughly {
            slow.sample(&main, schedule, depth, cache);
        }
        let Schedule { ran_ns, delay_ns, turns } = schedule.unwrap_or_default();
        // Where a thread waits that has run meanwhile is a matter of the moment, and costs a walk over its
        // kernel stack.
        if thoroughly || self.waits.1 == ran_ns {
            let wchan = self.wchan.as_mut().and_then(ProcFile::text).unwrap_or_default();
            Some(wchan.trim()).filter(|text| *text != "0").unwrap_or_default().clone_into(&mut self.waits.0);
        }
        self.waits.1 = ran_ns;
        let live = || slow.below.iter().filter(|process| !process.is_gone());
        let alive = !main.is_gone();
        let own_rss = if alive { main.rss } else { 0 };
        let signals = RankSignals {
            cpu_ms: milliseconds(main.cpu_ticks),
            delay_ms: delay_ns / 1_000_000,
            major_faults: main.major_faults,
            io_bytes: slow.io_bytes,
            children: slow.below.iter().take(CHILDREN).map(|stat| slow.child(stat)).collect(),
            cgroup: slow.cgroup.clone(),
            main: schedule.map(|_| MainThread { cpu_us: ran_ns / 1000, turns, ..slow.main }),
            only_core: slow.only_core,
            returns: Vec::new(),
        };
        TreeSample {
            pids: std::iter::once(main.pid).chain(slow.below.iter().map(|process| process.pid)).collect(),
            wchan: self.waits.0.clone(),
            cpu_percent: slow.percent,
            rss: own_rss + live().map(|process| process.rss).sum::<u64>(),
            children: live().count() as u32,
            main: Some(main),
            signals,
        }
    }
}

impl SlowCounters {
    fn read(pid: u32) -> SlowCounters {
        let open = |file: &str| ProcFile::open(format!("/proc/{pid}/{file}"));
        SlowCounters {
            at: None,
            below: Vec::new(),
            listed: None,
            membership: open("cgroup"),
            io: open("io"),
            main_io: ProcFile::open(format!("/proc/{pid}/task/{pid}/io")),
            main: MainThread::default(),
            ticks: BTreeMap::new(),
            percent: 0.0,
            groups: None,
            cgroup: None,
            io_bytes: 0,
            io_below: BTreeMap::new(),
            connections: Connections::default(),
            net_below: BTreeMap::new(),
            only_core: None,
        }
    }

    /// What the main thread has done. Only where it has hardly run and moved nothing are connections counted,
    /// its own and those of the processes below.
    fn sample_main(
        &mut self,
        main: &ProcStat,
        schedule: Schedule,
        seconds: f32,
        connections: bool,
        cache: &mut HostCache,
    ) {
        let io = self
            .main_io
            .as_mut()
            .and_then(ProcFile::text)
            .and_then(|text| proc::parse_io(&text))
            .unwrap_or_default();
        let io_bytes = io.calls.saturating_add(io.storage);
        let cpu_us = schedule.ran_ns / 1000;
        let ran = cpu_us.saturating_sub(self.main.cpu_us) as f32 / 1e6;
        let moves = io_bytes != self.main.io_bytes || ran >= seconds * RUNS;
        let asked = connections && !moves;
        let net = if asked { self.count_connections(main, cache) } else { None };
        let net_bytes = net.as_ref().map(|net| net.main);
        self.main = MainThread { cpu_us, turns: schedule.turns, io_bytes, net_bytes };
        self.net_below = net.map(|net| net.below).unwrap_or_default();
    }

    fn count_connections(&mut self, main: &ProcStat, cache: &mut HostCache) -> Option<NetBytes> {
        let carried = cache.carried()?;
        let live: Vec<&ProcStat> =
            self.below.iter().filter(|process| !process.is_gone()).take(CHILDREN).collect();
        Some(self.connections.count(main, &live, carried))
    }

    fn child(&self, stat: &ProcStat) -> ChildSample {
        ChildSample {
            pid: stat.pid,
            name: stat.comm.clone(),
            state: state(stat),
            cpu_ms: milliseconds(stat.cpu_ticks),
            parent: stat.ppid,
            io_bytes: self.io_below.get(&stat.pid).map_or(0, |io| io.calls.saturating_add(io.storage)),
            net_bytes: self.net_below.get(&stat.pid).copied(),
        }
    }

    /// The processes below, cached where none can have started or ended.
    fn below(&mut self, root: u32, newest: Option<u32>, now: Instant) -> Vec<ProcStat> {
        let unchanged =
            self.listed.is_some_and(|(last, at)| Some(last) == newest && now.duration_since(at) < LIST_ROUND);
        let again = |known: &ProcStat| {
            proc::stat(known.pid).filter(|process| process.start == known.start && !process.is_gone())
        };
        let known: Option<Vec<ProcStat>> =
            if unchanged { self.below.iter().map(again).collect() } else { None };
        known.unwrap_or_else(|| {
            self.listed = newest.map(|newest| (newest, now));
            proc::descendants(root).into_iter().filter_map(proc::stat).collect()
        })
    }

    fn sample(
        &mut self,
        main: &ProcStat,
        schedule: Option<Schedule>,
        depth: SampleDepth,
        cache: &mut HostCache,
    ) {
        let now = Instant::now();
        let passed = self.at.replace(now).map(|at| now.duration_since(at).as_secs_f32());
        self.below = self.below(main.pid, cache.newest, now);
        let all = || std::iter::once(main).chain(&self.below).filter(|process| !process.is_gone());
        let ident = |process: &ProcStat| ProcessKey { pid: process.pid, start: process.start };
        let ticks: BTreeMap<ProcessKey, u64> =
            all().map(|process| (ident(process), process.cpu_ticks)).collect();
        // A process that is new counts with all it has used so far.
        let before = |ident: &ProcessKey| self.ticks.get(ident).copied().unwrap_or(0);
        let used: u64 = ticks.iter().map(|(ident, ticks)| ticks.saturating_sub(before(ident))).sum();
        self.percent = match passed {
            Some(seconds) if seconds > 0.0 => used as f32 * 100.0 / proc::ticks_per_second() as f32 / seconds,
            Some(_) | None => 0.0,
        };
        let own = self
            .io
            .as_mut()
            .and_then(ProcFile::text)
            .and_then(|text| proc::parse_io(&text))
            .unwrap_or_default();
        let others = self.below.iter().filter(|process| !process.is_gone()).take(CHILDREN);
        let io_below: BTreeMap<u32, proc::Io> =
            others.filter_map(|process| Some((process.pid, proc::io(process.pid)?))).collect();
        self.io_bytes = own.storage + io_below.values().map(|io| io.storage).sum::<u64>();
        self.io_below = io_below;
        self.ticks = ticks;
        let seconds = passed.unwrap_or(0.0);
        self.sample_main(main, schedule.unwrap_or_default(), seconds, depth.connections, cache);
        // Containers and batch systems may move a process after it was made.
        let membership = self.membership.as_mut().and_then(ProcFile::text);
        self.groups = membership.and_then(|text| cache.mounts.locate(&text)).or(self.groups.take());
        self.cgroup = self.groups.as_ref().map(|groups| cache.sample(groups));
        self.only_core = proc::only_core(main.pid);
    }
}

/// The state of a process. A shell that a stop holds waits for its command as before.
fn state(stat: &ProcStat) -> char {
    let held = stat.state == 'T' && program::is_held(ProcessKey { pid: stat.pid, start: stat.start });
    if held { 'S' } else { stat.state }
}

/// Whether another process traces it. The thread of an inspection ends with it, and is then no
/// thread of this process any more, so the tracer is read twice.
fn is_held_by_another(pid: u32) -> bool {
    let tracer = proc::tracer(pid);
    let is_own = || std::path::Path::new(&format!("/proc/self/task/{tracer}")).exists();
    tracer > 0 && !is_own() && proc::tracer(pid) == tracer
}

fn milliseconds(ticks: u64) -> u64 {
    ticks * 1000 / proc::ticks_per_second()
}

/// Bytes that open connections have carried.
#[derive(Debug, Default)]
struct NetBytes {
    /// Of the rank's own process.
    pub main: u64,
    /// Of each process below it, without the connections that its parent has, too: who is forked has them,
    /// and what the parent does with them does not count as its own.
    pub below: BTreeMap<u32, u64>,
}

/// The sockets of one process.
#[derive(Debug)]
struct ProcessSockets {
    /// CPU time that it had used before they were listed, ns; `None` where the kernel does not report it.
    cpu_ns: Option<u64>,
    inodes: Vec<u64>,
}

/// The sockets of one rank's processes. Walking the descriptors of a process is the most expensive read here, so
/// it is repeated only when the process has run since: one that waits opens and closes nothing.
#[derive(Debug, Default)]
struct Connections {
    known: BTreeMap<ProcessKey, ProcessSockets>,
}

impl Connections {
    /// Counts; `carried` has the bytes of each socket of the host, by inode.
    pub fn count(&mut self, root: &ProcStat, below: &[&ProcStat], carried: &BTreeMap<u64, u64>) -> NetBytes {
        let ident = |process: &ProcStat| ProcessKey { pid: process.pid, start: process.start };
        let all = || std::iter::once(root).chain(below.iter().copied());
        let mut before = std::mem::take(&mut self.known);
        self.known = all().map(|process| (ident(process), sockets(ident(process), &mut before))).collect();
        let by_pid: BTreeMap<u32, &[u64]> =
            self.known.iter().map(|(ident, opened)| (ident.pid, opened.inodes.as_slice())).collect();
        let of = |pid: &u32| by_pid.get(pid).copied().unwrap_or_default();
        let own = |process: &&ProcStat| {
            let own = of(&process.pid).iter().filter(|inode| !of(&process.ppid).contains(inode));
            (process.pid, own.filter_map(|inode| carried.get(inode)).sum())
        };
        NetBytes {
            main: of(&root.pid).iter().filter_map(|inode| carried.get(inode)).sum(),
            below: below.iter().map(own).collect(),
        }
    }
}

fn sockets(of: ProcessKey, before: &mut BTreeMap<ProcessKey, ProcessSockets>) -> ProcessSockets {
    let cpu_ns = proc::cpu_ns(of.pid);
    match before.remove(&of) {
        Some(known) if known.cpu_ns == cpu_ns && cpu_ns.is_some() => known,
        _ => ProcessSockets { cpu_ns, inodes: descriptors::socket_inodes(of.pid) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_testkit::skip;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    const FULL: SampleDepth = SampleDepth { thorough: true, connections: true };

    #[test]
    fn process_held_by_the_agent_is_not_held_by_a_debugger() {
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
            let mut tree = ProcessTree::new(ProcessKey { pid: stat.pid, start: stat.start });
            let seen = tree.sample(&mut HostCache::read(), FULL);
            assert_eq!(seen.main.unwrap().state, 'R');
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn released_process_is_not_held() {
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
    fn process_that_a_debugger_holds_is_shown_as_held() {
        let Some(debugged) = DebuggedProcess::new() else {
            skip!("ptrace is not allowed here");
        };
        assert!(is_held_by_another(debugged.held));
        let stat = proc::stat(debugged.held).unwrap();
        let mut tree = ProcessTree::new(ProcessKey { pid: stat.pid, start: stat.start });
        let seen = tree.sample(&mut HostCache::read(), FULL);
        assert_eq!(seen.main.unwrap().state, 't');
    }

    #[test]
    fn time_without_a_core_is_the_second_number() {
        let schedule = Schedule { ran_ns: 223_041_826, delay_ns: 58_412_202, turns: 969 };
        assert_eq!(proc::parse_schedule("223041826 58412202 969\n"), Some(schedule));
        assert_eq!((proc::parse_schedule(""), proc::parse_schedule("1 x 2")), (None, None));
    }

    #[test]
    fn tree_has_its_children_and_ends_with_its_root() {
        let mut cache = HostCache::read();
        let mut root = Command::new("sh")
            .args(["-c", "sleep 1000 & read line"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let stat = proc::stat(root.id()).unwrap();
        let mut tree = ProcessTree::new(ProcessKey { pid: stat.pid, start: stat.start });
        let seen = soon(|| {
            cache.turn(proc::load().and_then(|load| load.newest));
            let seen = tree.sample(&mut cache, FULL);
            (seen.children == 1 && seen.signals.children[0].name == "sleep").then_some(seen)
        });
        assert_eq!((seen.pids.len(), seen.main.as_ref().map(|main| main.pid)), (2, Some(root.id())));
        assert!(seen.rss > 0);
        let child = seen.signals.children[0].pid;
        root.kill().unwrap();
        root.wait().unwrap();
        assert!(tree.sample(&mut cache, FULL).main.is_none());
        // SAFETY: kill takes two integers; the sleeper is this test's own.
        unsafe { libc::kill(child as i32, libc::SIGKILL) };
    }

    #[test]
    fn next_thorough_sample_has_births_and_deaths() {
        let mut cache = HostCache::read();
        let own = proc::stat(std::process::id()).unwrap();
        let mut tree = ProcessTree::new(ProcessKey { pid: own.pid, start: own.start });
        let mut sample = || {
            cache.turn(proc::load().and_then(|load| load.newest));
            tree.sample(&mut cache, FULL)
        };
        sample();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let seen = sample();
        assert!(seen.pids.contains(&child.id()), "a new child: {seen:?}");
        assert!(sample().pids.contains(&child.id()), "the list is kept or made again");
        child.kill().unwrap();
        child.wait().unwrap();
        let seen = sample();
        assert!(!seen.pids.contains(&child.id()), "a child that is gone: {seen:?}");
    }

    /// Two forked children: one converses over a connection of its own, one has those of its parent and sleeps.
    #[test]
    fn traffic_counts_for_the_process_that_opened_it() {
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
        let mut tree = ProcessTree::new(ProcessKey { pid: stat.pid, start: stat.start });
        let mut cache = HostCache::read();
        let mut carried = || {
            cache.turn(proc::load().and_then(|load| load.newest));
            let seen = tree.sample(&mut cache, FULL);
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
    fn process_list_is_kept_only_without_births_and_deaths() {
        let mut parent = Parent::new();
        let root = parent.0.id();
        let mut slow = SlowCounters::read(root);
        let now = Instant::now();
        let mut sees = |pid, at| {
            slow.below = slow.below(root, Some(7), at);
            slow.below.iter().any(|process| process.pid == pid)
        };
        let first = parent.bear();
        assert!(sees(first, now), "listed for the first time");
        let second = parent.bear();
        assert!(
            sees(first, now) && !sees(second, now),
            "the number stands still, which hides the second one"
        );
        assert!(sees(second, now + LIST_ROUND), "for a while");
        for pid in [first, second] {
            // SAFETY: kill takes two integers; the sleepers are this test's own.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
            soon(|| proc::stat(pid).is_none_or(|process| process.is_gone()).then_some(()));
        }
        slow.below = slow.below(root, Some(7), now + LIST_ROUND);
        assert!(
            slow.below.iter().all(ProcStat::is_gone),
            "the dead are not taken for alive whatever the number is"
        );
    }

    #[test]
    fn idle_process_keeps_its_cached_connections() {
        let own = proc::stat(std::process::id()).unwrap();
        let ident = ProcessKey { pid: own.pid, start: own.start };
        let mut connections = Connections::default();
        connections.count(&own, &[], &BTreeMap::new());
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let _near = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let before = connections.known[&ident].inodes.len();
        connections.count(&own, &[], &BTreeMap::new());
        assert!(connections.known[&ident].inodes.len() >= before + 2);

        let mut sleeper = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while proc::stat(sleeper.id()).unwrap().state != 'S' || proc::wchan(sleeper.id()).is_empty() {
            assert!(std::time::Instant::now() < deadline);
            std::thread::yield_now();
        }
        let stat = proc::stat(sleeper.id()).unwrap();
        let ident = ProcessKey { pid: stat.pid, start: stat.start };
        connections.count(&stat, &[], &BTreeMap::new());
        // What was known of it is taken as it is.
        connections.known.get_mut(&ident).unwrap().inodes = vec![7];
        let seen = connections.count(&stat, &[], &BTreeMap::from([(7, 100)]));
        assert_eq!(seen.main, 100);
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }
}
