//! The processes of one rank between two looks: what changes at every moment is read at every look through descriptors that stay open, everything
//! else twice a second.
//!
//! Owner: the sampling thread. What a look costs was measured (docs/BENCHMARKS.md): listing children goes over every thread of every process,
//! and opening a file of `/proc` takes longer than reading it.

use super::inspect::cgroup;
use super::proc::{self, Again, Stat};
use super::sweep::Ident;
use crate::proto::message::{CgroupSample, ChildSample, RankSignals};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Between two looks at what changes slowly or says nothing by its moment: children, cgroup and storage traffic.
pub const SLOW_ROUND: Duration = Duration::from_millis(500);
/// Most children of a rank that are listed, and processes whose storage traffic is read.
const CHILDREN: usize = 64;
const IO_PROCESSES: usize = 16;

/// One rank's processes.
#[derive(Debug)]
pub struct Family {
    root: Ident,
    stat: Option<Again>,
    wchan: Option<Again>,
    schedule: Option<Again>,
    slow: Option<Slow>,
}

/// What is looked at twice a second.
#[derive(Debug, Default)]
struct Slow {
    at: Option<Instant>,
    below: Vec<Stat>,
    ticks: BTreeMap<Ident, u64>,
    percent: f32,
    groups: Option<cgroup::Groups>,
    cgroup: Option<CgroupSample>,
    io_bytes: u64,
}

/// A family at one moment.
#[derive(Debug, Clone, Default)]
pub struct Portrait {
    /// The rank's own process, `None` when it is gone.
    pub main: Option<Stat>,
    /// Pids of all that is there, the rank's own first.
    pub pids: Vec<u32>,
    /// Kernel function that the main thread waits in.
    pub wchan: String,
    /// Percent of one core of the whole family.
    pub cpu_percent: f32,
    /// Resident memory of the whole family, bytes.
    pub rss: u64,
    /// Processes below the rank's own.
    pub children: u32,
    /// The rest.
    pub signals: RankSignals,
}

impl Family {
    /// The family of a process.
    pub fn of(root: Ident) -> Family {
        let open = |file: &str| Again::open(format!("/proc/{}/{file}", root.pid));
        Family { root, stat: open("stat"), wchan: open("wchan"), schedule: open("schedstat"), slow: None }
    }

    /// Looks once.
    pub fn look(&mut self, mounts: &cgroup::Mounts) -> Portrait {
        let read = self.stat.as_mut().and_then(Again::text).and_then(proc::parse_stat);
        // A descriptor belongs to its process, a pid may be another one's by now.
        let Some(main) = read.filter(|main| main.start == self.root.start) else {
            self.slow = None;
            return Portrait::default();
        };
        let main = match main.state {
            // A close look holds a running process while it copies a stack, and on a busy host that is seen: this is no debugger.
            't' if is_own(proc::tracer(main.pid)) => Stat { state: 'R', ..main },
            _ => main,
        };
        let slow = self.slow.get_or_insert_default();
        if slow.at.is_none_or(|at| at.elapsed() >= SLOW_ROUND) {
            slow.look(&main, mounts);
        }
        let live = || slow.below.iter().filter(|process| !process.is_gone());
        let alive = !main.is_gone();
        let own_rss = if alive { main.rss } else { 0 };
        let signals = RankSignals {
            cpu_ms: milliseconds(main.cpu_ticks),
            delay_ms: self.schedule.as_mut().and_then(Again::text).and_then(delay_ms).unwrap_or(0),
            major_faults: main.major_faults,
            io_bytes: slow.io_bytes,
            children: slow.below.iter().take(CHILDREN).map(child).collect(),
            cgroup: slow.cgroup.clone(),
        };
        let wchan = self.wchan.as_mut().and_then(Again::text).map(str::trim).filter(|text| *text != "0");
        Portrait {
            pids: std::iter::once(main.pid).chain(slow.below.iter().map(|process| process.pid)).collect(),
            wchan: wchan.unwrap_or_default().to_owned(),
            cpu_percent: slow.percent,
            rss: own_rss + live().map(|process| process.rss).sum::<u64>(),
            children: live().count() as u32,
            main: Some(main),
            signals,
        }
    }
}

impl Slow {
    fn look(&mut self, main: &Stat, mounts: &cgroup::Mounts) {
        let now = Instant::now();
        let passed = self.at.replace(now).map(|at| now.duration_since(at).as_secs_f32());
        self.below = proc::descendants(main.pid).into_iter().filter_map(proc::stat).collect();
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
        self.io_bytes = all().take(IO_PROCESSES).filter_map(|process| proc::io_bytes(process.pid)).sum();
        self.ticks = ticks;
        // Containers and batch systems may move a process after it was made.
        self.groups = mounts.of(main.pid).or(self.groups.take());
        self.cgroup = self.groups.as_ref().map(cgroup::Groups::sample);
    }
}

/// A thread of this process.
fn is_own(tid: u32) -> bool {
    tid > 0 && std::path::Path::new(&format!("/proc/self/task/{tid}")).exists()
}

/// From `/proc/PID/schedstat` (Documentation/scheduler/sched-stats.rst): time on a core, time waiting for one, in nanoseconds.
fn delay_ms(text: &str) -> Option<u64> {
    Some(text.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()? / 1_000_000)
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
    use std::process::Command;

    #[test]
    fn a_process_that_this_one_holds_is_not_held_by_a_debugger() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id() as libc::pid_t;
        // SAFETY: ptrace with these requests takes no memory of ours; the child is this test's own.
        let trace = |request| unsafe { libc::ptrace(request, pid, 0usize, 0usize) };
        if trace(libc::PTRACE_SEIZE) == -1 {
            eprintln!("skipped: ptrace is not allowed here");
        } else {
            assert_ne!(trace(libc::PTRACE_INTERRUPT), -1);
            let begun = Instant::now();
            while proc::stat(child.id()).unwrap().state != 't' {
                assert!(begun.elapsed() < Duration::from_secs(20));
                std::thread::sleep(Duration::from_millis(5));
            }
            let stat = proc::stat(child.id()).unwrap();
            let mut family = Family::of(Ident { pid: stat.pid, start: stat.start });
            let seen = family.look(&cgroup::Mounts::read());
            assert_eq!(seen.main.unwrap().state, 'R');
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_time_without_a_core_is_the_second_number() {
        assert_eq!(delay_ms("223041826 58412202 969\n"), Some(58));
        assert_eq!((delay_ms(""), delay_ms("1 x 2")), (None, None));
    }

    #[test]
    fn a_family_is_seen_with_its_children_and_is_gone_when_its_root_is() {
        let mounts = cgroup::Mounts::read();
        let mut root = Command::new("sh")
            .args(["-c", "sleep 1000 & read line"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let stat = proc::stat(root.id()).unwrap();
        let mut family = Family::of(Ident { pid: stat.pid, start: stat.start });
        let begun = Instant::now();
        let seen = loop {
            let seen = family.look(&mounts);
            if seen.children == 1 && seen.signals.children[0].name == "sleep" {
                break seen;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{seen:?}");
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!((seen.pids.len(), seen.main.as_ref().map(|main| main.pid)), (2, Some(root.id())));
        assert!(seen.rss > 0);
        let child = seen.signals.children[0].pid;
        root.kill().unwrap();
        root.wait().unwrap();
        assert!(family.look(&mounts).main.is_none());
        // SAFETY: kill takes two integers; the sleeper is this test's own.
        unsafe { libc::kill(child as i32, libc::SIGKILL) };
    }
}
