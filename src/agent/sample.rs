//! Gauges: the host, its ranks with their trees and status pages, its GPUs; four times a second.
//!
//! Owner: one thread, so that a slow `/proc` or page keeps nobody. The loop says whom to look at; the newest sample replaces the one before.

use super::gpu::Gpus;
use super::inspect::cgroup;
use super::inspect::signals::HostWatch;
use super::proc;
use super::sweep::Ident;
use super::wall_time;
use crate::core::ids::{Generation, Rank};
use crate::proto::message::{CgroupSample, ChildSample, HostSample, RankSample, RankSignals};
use crate::proto::status_page::{Reader, monotonic_ns};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// One rank to look at.
#[derive(Debug, Clone, PartialEq)]
pub struct Subject {
    /// Which.
    pub rank: Rank,
    /// Its process.
    pub ident: Ident,
    /// Its GPU.
    pub gpu: Option<u32>,
    /// Its status page, when it writes one.
    pub page: PathBuf,
}

/// Most children of a rank that are listed, and those whose storage traffic is read.
const CHILDREN: usize = 64;
const IO_PROCESSES: usize = 16;

/// Between two looks at what changes slowly or says nothing by its moment: cgroup and storage traffic.
const SLOW_ROUND: Duration = Duration::from_millis(500);

/// Where the group meets: what the network interface to watch is found by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Meeting {
    /// Address of rank 0's store.
    pub master: String,
    /// The interface that `hosts.toml` names.
    pub interface: Option<String>,
}

/// What to look at.
#[derive(Debug, Clone, Default)]
struct Task {
    generation: Generation,
    meeting: Meeting,
    subjects: Vec<Subject>,
}

/// Whom to look at.
#[derive(Debug, Clone, Default)]
pub struct Subjects {
    task: Arc<Mutex<Task>>,
}

impl Subjects {
    /// Replaces the list.
    pub fn set(&self, generation: Generation, meeting: Meeting, subjects: Vec<Subject>) {
        *self.task.lock().unwrap_or_else(PoisonError::into_inner) = Task { generation, meeting, subjects };
    }

    fn get(&self) -> Task {
        self.task.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A sample and its number, from 1: who sees a jump has missed some.
pub type Numbered = (u64, HostSample);

/// Starts the thread, which looks once per `round`; it ends when nobody listens any more.
pub fn start(
    subjects: Subjects,
    gpus: Gpus,
    malformed: Arc<AtomicU64>,
    round: Duration,
) -> std::io::Result<watch::Receiver<Numbered>> {
    let (sender, receiver) = watch::channel((0, HostSample::default()));
    std::thread::Builder::new().name("sample".into()).spawn(move || {
        let mut sampler = Sampler::default();
        let mut number = 0;
        loop {
            let Task { generation, meeting, subjects } = subjects.get();
            sampler.host.aim(&meeting.master, meeting.interface.as_deref());
            let mut sample = sampler.look(generation, &subjects, &gpus);
            sample.malformed = malformed.load(Ordering::Relaxed);
            number += 1;
            if sender.send((number, sample)).is_err() {
                return;
            }
            std::thread::sleep(round);
        }
    })?;
    Ok(receiver)
}

/// Remembers what differences are taken from.
#[derive(Default)]
pub struct Sampler {
    cpu: Option<(u64, u64)>,
    trees: BTreeMap<Ident, Tree>,
    pages: BTreeMap<PathBuf, Reader>,
    host: HostWatch,
    mounts: Option<cgroup::Mounts>,
    slow: BTreeMap<Ident, Slow>,
}

/// What is looked at less often.
#[derive(Debug, Clone)]
struct Slow {
    at: Instant,
    groups: Option<cgroup::Groups>,
    cgroup: Option<CgroupSample>,
    io_bytes: u64,
}

#[derive(Debug, Clone)]
struct Tree {
    at: Instant,
    ticks: BTreeMap<Ident, u64>,
}

impl Sampler {
    /// Looks once.
    pub fn look(&mut self, generation: Generation, subjects: &[Subject], gpus: &Gpus) -> HostSample {
        let (memory_used, memory_total) = proc::memory().unwrap_or_default();
        let gpus = gpus.latest();
        self.trees.retain(|ident, _| subjects.iter().any(|subject| subject.ident == *ident));
        self.slow.retain(|ident, _| subjects.iter().any(|subject| subject.ident == *ident));
        self.pages.retain(|path, _| subjects.iter().any(|subject| subject.page == *path));
        HostSample {
            mono_ms: monotonic_ns() / 1_000_000,
            wall_time: wall_time(),
            generation,
            cpu_percent: self.cpu_percent(),
            cpu_count: proc::cpu_count(),
            memory_used,
            memory_total,
            load1: proc::load1(),
            ranks: subjects
                .iter()
                .map(|subject| {
                    let processes = self.processes(subject);
                    let gpu = gpus.iter().find(|gpu| Some(gpu.index) == subject.gpu);
                    let gpu_memory = gpu.map(|gpu| {
                        let ours = |(pid, _): &&(u32, u64)| processes.iter().any(|p| p.pid == *pid);
                        gpu.processes.iter().filter(ours).map(|(_, bytes)| bytes).sum()
                    });
                    RankSample { gpu_memory, ..self.rank(subject, &processes) }
                })
                .collect(),
            gpus,
            dropped: 0,
            malformed: 0,
            signals: self.host.look(),
        }
    }

    fn cpu_percent(&mut self) -> f32 {
        let Some((busy, all)) = proc::cpu_ticks() else { return 0.0 };
        let (busy_before, all_before) = self.cpu.replace((busy, all)).unwrap_or((busy, all));
        let passed = all.saturating_sub(all_before);
        if passed == 0 { 0.0 } else { busy.saturating_sub(busy_before) as f32 * 100.0 / passed as f32 }
    }

    fn processes(&self, subject: &Subject) -> Vec<proc::Stat> {
        let Some(root) = proc::stat(subject.ident.pid).filter(|root| root.start == subject.ident.start)
        else {
            return Vec::new();
        };
        let below = proc::descendants(root.pid);
        std::iter::once(root).chain(below.into_iter().filter_map(proc::stat)).collect()
    }

    fn rank(&mut self, subject: &Subject, processes: &[proc::Stat]) -> RankSample {
        let live: Vec<&proc::Stat> = processes.iter().filter(|process| !process.is_gone()).collect();
        let main = processes.first();
        let (io_bytes, cgroup) = match main {
            Some(_) => {
                let slow = self.slow(subject.ident, &live);
                (slow.io_bytes, slow.cgroup.clone())
            }
            None => (0, None),
        };
        let signals = RankSignals {
            cpu_ms: main.map_or(0, |main| milliseconds(main.cpu_ticks)),
            major_faults: main.map_or(0, |main| main.major_faults),
            io_bytes,
            children: processes.iter().skip(1).take(CHILDREN).map(child).collect(),
            cgroup,
        };
        RankSample {
            rank: subject.rank,
            pid: subject.ident.pid,
            state: main.map_or('X', |main| main.state),
            cpu_percent: self.tree_percent(subject.ident, &live),
            rss: live.iter().map(|process| process.rss).sum(),
            children: live.iter().filter(|process| process.pid != subject.ident.pid).count() as u32,
            wchan: main.map(|main| proc::wchan(main.pid)).unwrap_or_default(),
            gpu: subject.gpu,
            gpu_memory: None,
            page: self.page(subject),
            signals,
        }
    }

    /// Percent of one core since the look before; a process that is new counts with all it has used so far.
    fn tree_percent(&mut self, root: Ident, processes: &[&proc::Stat]) -> f32 {
        let now = Instant::now();
        let ident = |process: &proc::Stat| Ident { pid: process.pid, start: process.start };
        let ticks: BTreeMap<Ident, u64> = processes.iter().map(|p| (ident(p), p.cpu_ticks)).collect();
        let Some(before) = self.trees.insert(root, Tree { at: now, ticks: ticks.clone() }) else {
            return 0.0;
        };
        let used: u64 = ticks
            .iter()
            .map(|(ident, ticks)| ticks.saturating_sub(before.ticks.get(ident).copied().unwrap_or(0)))
            .sum();
        let seconds = now.duration_since(before.at).as_secs_f32();
        if seconds <= 0.0 { 0.0 } else { used as f32 * 100.0 / proc::ticks_per_second() as f32 / seconds }
    }

    /// Cgroup and storage traffic. Where the groups lie is read again, since containers and batch systems may move a process later.
    fn slow(&mut self, ident: Ident, live: &[&proc::Stat]) -> &Slow {
        let mounts = self.mounts.get_or_insert_with(cgroup::Mounts::read);
        let due = self.slow.get(&ident).is_none_or(|slow| slow.at.elapsed() >= SLOW_ROUND);
        let slow = self.slow.entry(ident).or_insert_with(|| Slow {
            at: Instant::now(),
            groups: None,
            cgroup: None,
            io_bytes: 0,
        });
        if due {
            slow.at = Instant::now();
            slow.groups = mounts.of(ident.pid).or(slow.groups.take());
            slow.cgroup = slow.groups.as_ref().map(cgroup::Groups::sample);
            slow.io_bytes =
                live.iter().take(IO_PROCESSES).filter_map(|process| proc::io_bytes(process.pid)).sum();
        }
        slow
    }

    fn page(&mut self, subject: &Subject) -> Option<crate::proto::message::PageSample> {
        if !self.pages.contains_key(&subject.page) {
            let reader = Reader::open(&subject.page).ok()?;
            self.pages.insert(subject.page.clone(), reader);
        }
        let view = self.pages.get(&subject.page)?.view();
        (view.rank == subject.rank.0).then(|| view.sample(monotonic_ns()))
    }
}

fn milliseconds(ticks: u64) -> u64 {
    ticks * 1000 / proc::ticks_per_second()
}

fn child(stat: &proc::Stat) -> ChildSample {
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

    #[test]
    fn a_sample_shows_this_process_as_a_rank() {
        let own = proc::stat(std::process::id()).unwrap();
        let subject = Subject {
            rank: Rank(4),
            ident: Ident { pid: own.pid, start: own.start },
            gpu: None,
            page: "/nonexistent".into(),
        };
        let gone = Subject { ident: Ident { pid: own.pid, start: own.start + 1 }, ..subject.clone() };
        let mut sampler = Sampler::default();
        let sample = sampler.look(Generation(1), &[subject, gone], &Gpus::default());
        assert_eq!((sample.generation, sample.ranks.len()), (Generation(1), 2));
        assert!(sample.memory_total > 0 && sample.cpu_count > 0);
        assert!(sample.ranks[0].rss > 0 && sample.ranks[0].state != 'X');
        assert_eq!((sample.ranks[1].state, sample.ranks[1].rss), ('X', 0));
        assert_eq!(sample.ranks[0].page, None);
    }
}
