//! The processes of one rank. What changes at every moment is read at every look, through descriptors that
//! stay open; everything else is read twice a second.
//!
//! Owner: the sampling thread. What a look costs was measured (docs/BENCHMARKS.md): listing children goes
//! over every thread of every process, so that it is done again only where somebody may have been born or has
//! died; opening a file of `/proc` takes longer than reading it.

mod connections;

use crate::inspect::sockets;
use crate::observe::cgroup_stat;
use crate::proc::{self, Again, Ident, Schedule, Stat};
use connections::{Connections, NetBytes};
use rankdeck_proto::message::{CgroupSample, ChildSample, MainThread, RankSignals};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Children are listed again after this time even where the kernel tells of no new process: some containers
/// are shown a list of their own making.
const LIST_ROUND: Duration = Duration::from_secs(5);
/// Most children of a rank that are listed, and whose traffic is read.
const CHILDREN: usize = 64;
/// Share of a core from which a main thread is seen to work without a look at its connections.
const RUNS: f32 = 0.05;

/// How much a look reads.
#[derive(Debug, Clone, Copy)]
pub struct Depth {
    /// Also what changes slowly. The first look does anyway.
    pub thorough: bool,
    /// With that, what the connections of a main thread that hardly runs have carried, and those of its
    /// children: a walk over all connections of the host. Nobody asks while the program itself gives signs of
    /// life.
    pub connections: bool,
}

/// One rank's processes.
#[derive(Debug)]
pub struct ProcessTree {
    root: Ident,
    stat: Option<Again>,
    wchan: Option<Again>,
    schedule: Option<Again>,
    /// Where the main thread waits, and its time on a core when that was read.
    waits: (String, u64),
    slow: Option<Slow>,
}

/// What ranks of one host have in common.
#[derive(Debug, Default)]
pub struct HostCache {
    mounts: cgroup_stat::Mounts,
    newest: Option<u32>,
    groups: Vec<(cgroup_stat::Groups, CgroupSample)>,
    /// What each TCP socket of the host has carried, by inode; read once per round, when somebody asks.
    carried: Option<BTreeMap<u64, u64>>,
}

impl HostCache {
    /// Reads what stays as it is while a run lives.
    pub fn read() -> HostCache {
        HostCache { mounts: cgroup_stat::Mounts::read(), ..HostCache::default() }
    }

    /// A new round begins. `newest` is the last process made on this host, read before the round.
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

    /// Ranks mostly share their groups: each is looked at once per round.
    fn sample(&mut self, groups: &cgroup_stat::Groups) -> CgroupSample {
        if let Some((_, sample)) = self.groups.iter().find(|(seen, _)| seen == groups) {
            return sample.clone();
        }
        let sample = groups.sample();
        self.groups.push((groups.clone(), sample.clone()));
        sample
    }
}

/// What changes slowly or says nothing by its moment: children, cgroup and storage traffic.
#[derive(Debug)]
struct Slow {
    at: Option<Instant>,
    below: Vec<Stat>,
    /// The newest process of the host, and when, before `below` was listed.
    listed: Option<(u32, Instant)>,
    membership: Option<Again>,
    io: Option<Again>,
    main_io: Option<Again>,
    /// Of the main thread: what it had done at the latest look, and what it has moved since the process
    /// began.
    main: MainThread,
    ticks: BTreeMap<Ident, u64>,
    percent: f32,
    groups: Option<cgroup_stat::Groups>,
    cgroup: Option<CgroupSample>,
    io_bytes: u64,
    io_below: BTreeMap<u32, proc::Io>,
    connections: Connections,
    net_below: BTreeMap<u32, u64>,
}

/// A process tree at one moment.
#[derive(Debug, Clone, Default)]
pub struct TreeSample {
    /// The rank's own process, `None` when it is gone.
    pub main: Option<Stat>,
    /// Pids of all that is there, the rank's own first.
    pub pids: Vec<u32>,
    /// Kernel function that the main thread waits in; for a thread that has run meanwhile, as of the last
    /// thorough look.
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
    pub fn of(root: Ident) -> ProcessTree {
        let open = |file: &str| Again::open(format!("/proc/{}/{file}", root.pid));
        ProcessTree {
            root,
            stat: open("stat"),
            wchan: open("wchan"),
            schedule: open("schedstat"),
            waits: Default::default(),
            slow: None,
        }
    }

    /// Looks once.
    pub fn look(&mut self, cache: &mut HostCache, depth: Depth) -> TreeSample {
        let read = self.stat.as_mut().and_then(Again::text).and_then(|text| proc::parse_stat(&text));
        // A descriptor belongs to its process, a pid may be another one's by now.
        let Some(main) = read.filter(|main| main.start == self.root.start) else {
            self.slow = None;
            return TreeSample::default();
        };
        let main = match main.state {
            // A close look holds a running process while it copies a stack, and on a busy host that is seen:
            // it is not a debugger.
            't' if !is_held_by_another(main.pid) => Stat { state: 'R', ..main },
            _ => main,
        };
        let schedule =
            self.schedule.as_mut().and_then(Again::text).and_then(|text| proc::parse_schedule(&text));
        // A kernel that keeps no such statistics tells nothing.
        let schedule = schedule.filter(|schedule| schedule.ran_ns > 0);
        let slow = self.slow.get_or_insert_with(|| Slow::of(main.pid));
        let thoroughly = depth.thorough || slow.at.is_none();
        if thoroughly {
            slow.look(&main, schedule, depth, cache);
        }
        let Schedule { ran_ns, delay_ns, turns } = schedule.unwrap_or_default();
        // Where a thread waits that has run meanwhile is a matter of the moment, and costs a walk over its
        // kernel stack.
        if thoroughly || self.waits.1 == ran_ns {
            let wchan = self.wchan.as_mut().and_then(Again::text).unwrap_or_default();
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

impl Slow {
    fn of(pid: u32) -> Slow {
        let open = |file: &str| Again::open(format!("/proc/{pid}/{file}"));
        Slow {
            at: None,
            below: Vec::new(),
            listed: None,
            membership: open("cgroup"),
            io: open("io"),
            main_io: Again::open(format!("/proc/{pid}/task/{pid}/io")),
            main: MainThread::default(),
            ticks: BTreeMap::new(),
            percent: 0.0,
            groups: None,
            cgroup: None,
            io_bytes: 0,
            io_below: BTreeMap::new(),
            connections: Connections::default(),
            net_below: BTreeMap::new(),
        }
    }

    /// What the main thread has done. Only where it has hardly run and moved nothing are connections counted,
    /// its own and those of the processes below.
    fn look_at_main(
        &mut self,
        main: &Stat,
        schedule: Schedule,
        seconds: f32,
        connections: bool,
        cache: &mut HostCache,
    ) {
        let io = self
            .main_io
            .as_mut()
            .and_then(Again::text)
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

    fn count_connections(&mut self, main: &Stat, cache: &mut HostCache) -> Option<NetBytes> {
        let carried = cache.carried()?;
        let live: Vec<&Stat> =
            self.below.iter().filter(|process| !process.is_gone()).take(CHILDREN).collect();
        Some(self.connections.count(main, &live, carried))
    }

    fn child(&self, stat: &Stat) -> ChildSample {
        ChildSample {
            pid: stat.pid,
            name: stat.comm.clone(),
            state: stat.state,
            cpu_ms: milliseconds(stat.cpu_ticks),
            parent: stat.ppid,
            io_bytes: self.io_below.get(&stat.pid).map_or(0, |io| io.calls.saturating_add(io.storage)),
            net_bytes: self.net_below.get(&stat.pid).copied(),
        }
    }

    /// The processes below, as known where nobody can have come or gone.
    fn below(&mut self, root: u32, newest: Option<u32>, now: Instant) -> Vec<Stat> {
        let unchanged =
            self.listed.is_some_and(|(last, at)| Some(last) == newest && now.duration_since(at) < LIST_ROUND);
        let again = |known: &Stat| {
            proc::stat(known.pid).filter(|process| process.start == known.start && !process.is_gone())
        };
        let known: Option<Vec<Stat>> = if unchanged { self.below.iter().map(again).collect() } else { None };
        known.unwrap_or_else(|| {
            self.listed = newest.map(|newest| (newest, now));
            proc::descendants(root).into_iter().filter_map(proc::stat).collect()
        })
    }

    fn look(&mut self, main: &Stat, schedule: Option<Schedule>, depth: Depth, cache: &mut HostCache) {
        let now = Instant::now();
        let passed = self.at.replace(now).map(|at| now.duration_since(at).as_secs_f32());
        self.below = self.below(main.pid, cache.newest, now);
        let all = || std::iter::once(main).chain(&self.below).filter(|process| !process.is_gone());
        let ident = |process: &Stat| Ident { pid: process.pid, start: process.start };
        let ticks: BTreeMap<Ident, u64> = all().map(|process| (ident(process), process.cpu_ticks)).collect();
        // A process that is new counts with all it has used so far.
        let before = |ident: &Ident| self.ticks.get(ident).copied().unwrap_or(0);
        let used: u64 = ticks.iter().map(|(ident, ticks)| ticks.saturating_sub(before(ident))).sum();
        self.percent = match passed {
            Some(seconds) if seconds > 0.0 => used as f32 * 100.0 / proc::ticks_per_second() as f32 / seconds,
            Some(_) | None => 0.0,
        };
        let own =
            self.io.as_mut().and_then(Again::text).and_then(|text| proc::parse_io(&text)).unwrap_or_default();
        let others = self.below.iter().filter(|process| !process.is_gone()).take(CHILDREN);
        let io_below: BTreeMap<u32, proc::Io> =
            others.filter_map(|process| Some((process.pid, proc::io(process.pid)?))).collect();
        self.io_bytes = own.storage + io_below.values().map(|io| io.storage).sum::<u64>();
        self.io_below = io_below;
        self.ticks = ticks;
        let seconds = passed.unwrap_or(0.0);
        self.look_at_main(main, schedule.unwrap_or_default(), seconds, depth.connections, cache);
        // Containers and batch systems may move a process after it was made.
        let membership = self.membership.as_mut().and_then(Again::text);
        self.groups = membership.and_then(|text| cache.mounts.locate(&text)).or(self.groups.take());
        self.cgroup = self.groups.as_ref().map(|groups| cache.sample(groups));
    }
}

/// A process that is not this one traces it. The thread of a close look ends with the look, and is then no
/// thread of this process any more, so that it is asked for once more who traces.
fn is_held_by_another(pid: u32) -> bool {
    let tracer = proc::tracer(pid);
    let is_own = || std::path::Path::new(&format!("/proc/self/task/{tracer}")).exists();
    tracer > 0 && !is_own() && proc::tracer(pid) == tracer
}

fn milliseconds(ticks: u64) -> u64 {
    ticks * 1000 / proc::ticks_per_second()
}

#[cfg(test)]
mod tests;
