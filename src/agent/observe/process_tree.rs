//! The processes of one rank. What changes at every moment is read at every look, through descriptors that
//! stay open; everything else is read twice a second.
//!
//! Owner: the sampling thread. What a look costs was measured (docs/BENCHMARKS.md): listing children goes
//! over every thread of every process, so that it is done again only where somebody may have been born or has
//! died; opening a file of `/proc` takes longer than reading it.

use crate::observe::cgroup_stat;
use crate::proc::{self, Again, Ident, Stat};
use rankdeck_proto::message::{CgroupSample, ChildSample, RankSignals};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Children are listed again after this time even where the kernel tells of no new process: some containers
/// are shown a list of their own making.
const LIST_ROUND: Duration = Duration::from_secs(5);
/// Most children of a rank that are listed, and processes whose storage traffic is read.
const CHILDREN: usize = 64;
const IO_PROCESSES: usize = 16;

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
    ticks: BTreeMap<Ident, u64>,
    percent: f32,
    groups: Option<cgroup_stat::Groups>,
    cgroup: Option<CgroupSample>,
    io_bytes: u64,
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
    /// The rest.
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

    /// Looks once; with `thoroughly` also at what changes slowly, which the first look does anyway.
    pub fn look(&mut self, cache: &mut HostCache, thoroughly: bool) -> TreeSample {
        let read = self.stat.as_mut().and_then(Again::text).and_then(proc::parse_stat);
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
        let slow = self.slow.get_or_insert_with(|| Slow::of(main.pid));
        let thoroughly = thoroughly || slow.at.is_none();
        if thoroughly {
            slow.look(&main, cache);
        }
        let schedule = self.schedule.as_mut().and_then(Again::text).and_then(parse_schedule);
        let Schedule { ran_ns, delay_ms } = schedule.unwrap_or_default();
        // Where a thread waits that has run meanwhile is a matter of the moment, and costs a walk over its
        // kernel stack.
        if thoroughly || self.waits.1 == ran_ns {
            let wchan = self.wchan.as_mut().and_then(Again::text).map(str::trim).filter(|text| *text != "0");
            wchan.unwrap_or_default().clone_into(&mut self.waits.0);
        }
        self.waits.1 = ran_ns;
        let live = || slow.below.iter().filter(|process| !process.is_gone());
        let alive = !main.is_gone();
        let own_rss = if alive { main.rss } else { 0 };
        let signals = RankSignals {
            cpu_ms: milliseconds(main.cpu_ticks),
            delay_ms,
            major_faults: main.major_faults,
            io_bytes: slow.io_bytes,
            children: slow.below.iter().take(CHILDREN).map(child).collect(),
            cgroup: slow.cgroup.clone(),
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
            ticks: BTreeMap::new(),
            percent: 0.0,
            groups: None,
            cgroup: None,
            io_bytes: 0,
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

    fn look(&mut self, main: &Stat, cache: &mut HostCache) {
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
        let own = self.io.as_mut().and_then(Again::text).and_then(proc::parse_io).unwrap_or(0);
        let others = self.below.iter().filter(|process| !process.is_gone()).take(IO_PROCESSES);
        self.io_bytes = own + others.filter_map(|process| proc::io_bytes(process.pid)).sum::<u64>();
        self.ticks = ticks;
        // Containers and batch systems may move a process after it was made.
        let membership = self.membership.as_mut().and_then(Again::text);
        self.groups = membership.and_then(|text| cache.mounts.locate(text)).or(self.groups.take());
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

/// Of a main thread: nanoseconds on a core, milliseconds that it waited for one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Schedule {
    ran_ns: u64,
    delay_ms: u64,
}

/// From `/proc/PID/schedstat` (Documentation/scheduler/sched-stats.rst): both in nanoseconds.
fn parse_schedule(text: &str) -> Option<Schedule> {
    let mut fields = text.split_ascii_whitespace().map_while(|field| field.parse::<u64>().ok());
    Some(Schedule { ran_ns: fields.next()?, delay_ms: fields.next()? / 1_000_000 })
}

fn milliseconds(ticks: u64) -> u64 {
    ticks * 1000 / proc::ticks_per_second()
}

fn child(stat: &Stat) -> ChildSample {
    ChildSample {
        pid: stat.pid,
        name: stat.comm.clone(),
        state: stat.state,
        cpu_ms: milliseconds(stat.cpu_ticks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_testkit::skip;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

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
            let seen = tree.look(&mut HostCache::read(), true);
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
    struct Debugged {
        debugger: libc::pid_t,
        held: u32,
    }

    impl Debugged {
        /// `None` where tracing is not allowed.
        fn new() -> Option<Debugged> {
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
            let debugged = Debugged { debugger, held: u32::from_ne_bytes(held) };
            soon(|| match proc::stat(debugged.held) {
                Some(stat) if stat.state == 't' => Some(true),
                Some(stat) if !stat.is_gone() => None,
                Some(_) | None => Some(false),
            })
            .then_some(debugged)
        }
    }

    impl Drop for Debugged {
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
        let Some(debugged) = Debugged::new() else {
            skip!("ptrace is not allowed here");
        };
        assert!(is_held_by_another(debugged.held));
        let stat = proc::stat(debugged.held).unwrap();
        let mut tree = ProcessTree::of(Ident { pid: stat.pid, start: stat.start });
        let seen = tree.look(&mut HostCache::read(), true);
        assert_eq!(seen.main.unwrap().state, 't');
    }

    #[test]
    fn the_time_without_a_core_is_the_second_number() {
        let schedule = Schedule { ran_ns: 223_041_826, delay_ms: 58 };
        assert_eq!(parse_schedule("223041826 58412202 969\n"), Some(schedule));
        assert_eq!((parse_schedule(""), parse_schedule("1 x 2")), (None, None));
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
            let seen = tree.look(&mut cache, true);
            (seen.children == 1 && seen.signals.children[0].name == "sleep").then_some(seen)
        });
        assert_eq!((seen.pids.len(), seen.main.as_ref().map(|main| main.pid)), (2, Some(root.id())));
        assert!(seen.rss > 0);
        let child = seen.signals.children[0].pid;
        root.kill().unwrap();
        root.wait().unwrap();
        assert!(tree.look(&mut cache, true).main.is_none());
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
            tree.look(&mut cache, true)
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
            slow.below.iter().all(Stat::is_gone),
            "the dead are not taken for alive whatever the number says"
        );
    }
}
