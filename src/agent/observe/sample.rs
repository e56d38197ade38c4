//! Gauges: the host, its ranks with their process trees and status pages, its GPUs. A round is taken four
//! times a second, and half as often while every rank's page moves: each round takes CPU time from the ranks.
//! In a large world it is once a second then ([`calm_round`]).
//!
//! Owner: one thread, so that a slow `/proc` or page keeps nobody. The loop says whom to look at; the newest
//! sample replaces the one before.

use crate::containers;
use crate::observe::gpu_users::GpuUsers;
use crate::observe::{
    gate::Gate,
    gpu::Gpus,
    host_signals::HostWatch,
    pages,
    process_tree::{Depth, HostCache, ProcessTree, TreeSample},
    visible::{self, VisibleGpu},
};
use crate::proc::{self, Ident};
use crate::timing::Timing;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::message::{GpuSample, HostSample, PageSample, RankSample, calm_round};
use rankdeck_proto::status_page::monotonic_ns;
use rankdeck_types::ids::{Generation, Rank};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Between two looks at what changes slowly or says nothing by its moment: the host itself, children, cgroups
/// and storage traffic.
const SLOW_ROUND: Duration = Duration::from_millis(500);

/// A page that was written within so many milliseconds shows progress.
const RECENT_MS: u64 = 1_500;
/// Age of a script's latest sign from which its connections are counted.
const SIGN_MS: u64 = 1_000;

/// One rank to look at.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    pub rank: Rank,
    /// Its process.
    pub ident: Ident,
    pub gpu: Option<u32>,
    /// Its status page, when it writes one.
    pub page: PathBuf,
    /// Its program is no child of that process: a container's monitor starts it.
    pub elsewhere: bool,
}

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
    world_size: usize,
    targets: Vec<Target>,
}

/// Whom to look at.
#[derive(Debug, Clone, Default)]
pub struct Targets {
    task: Arc<Mutex<Arc<Task>>>,
    looker: Arc<OnceLock<Thread>>,
}

impl Targets {
    /// Replaces the list.
    pub fn set(&self, generation: Generation, meeting: Meeting, world_size: usize, targets: Vec<Target>) {
        pages::keep(|page| targets.iter().any(|target| target.page == page));
        let task = Arc::new(Task { generation, meeting, world_size, targets });
        *self.task.lock().unwrap_or_else(PoisonError::into_inner) = task;
    }

    /// The next round begins at once: a rank's page may have said its last.
    pub fn look_now(&self) {
        if let Some(looker) = self.looker.get() {
            looker.unpark();
        }
    }

    fn get(&self) -> Arc<Task> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A sample and its number, from 1; a reader that sees a jump has missed some.
pub type NumberedSample = (u64, HostSample);

/// Starts the thread, which looks at the pace of `timing`; it ends when nobody listens any more.
pub fn start(
    targets: Targets,
    gpus: Gpus,
    malformed: Arc<AtomicU64>,
    gate: Gate,
    timing: Timing,
) -> std::io::Result<watch::Receiver<NumberedSample>> {
    let (sender, receiver) = watch::channel((0, HostSample::default()));
    let looker = targets.looker.clone();
    let thread = std::thread::Builder::new().name("sample".into()).spawn(move || {
        let mut sampler = Sampler::default();
        let mut number = 0;
        loop {
            let task = targets.get();
            sampler.watch.aim(&task.meeting.master, task.meeting.interface.as_deref());
            let mut sample = sampler.look(task.generation, &task.targets, &gpus);
            sample.malformed = malformed.load(Ordering::Relaxed);
            sample.withheld = gate.withheld();
            number += 1;
            let heartbeats =
                sample.ranks.iter().map(|rank| rank.page.as_ref().map(|page| page.heartbeat_age_ms));
            let pause = pause(heartbeats, task.world_size, timing);
            if sender.send((number, sample)).is_err() {
                return;
            }
            std::thread::park_timeout(pause);
        }
    })?;
    let _ = looker.set(thread.thread().clone());
    Ok(receiver)
}

/// Until the next round; `heartbeats` as for [`is_calm`].
fn pause(heartbeats: impl IntoIterator<Item = Option<u64>>, world_size: usize, timing: Timing) -> Duration {
    let round = timing.calm_sample.unwrap_or(calm_round(world_size));
    if is_calm(heartbeats, round) { round } else { timing.sample }
}

/// Every rank has written to its status page within the last `round`; `heartbeats` are their ages in
/// milliseconds, `None` without a page.
fn is_calm(heartbeats: impl IntoIterator<Item = Option<u64>>, round: Duration) -> bool {
    let mut ages = heartbeats.into_iter().peekable();
    ages.peek().is_some() && ages.all(|age| age.is_some_and(|age| u128::from(age) < round.as_millis()))
}

/// Every rank that lives has moved within [`RECENT_MS`], or waits in a collective for others.
pub fn all_get_on(sample: &HostSample) -> bool {
    let mut living = sample.ranks.iter().filter(|rank| !matches!(rank.state, 'X' | 'Z')).peekable();
    living.peek().is_some()
        && living.all(|rank| {
            rank.page.as_ref().is_some_and(|page| {
                let waits = page.collective.entered > page.collective.left && rank.state != 'T';
                waits || page.heartbeat_age_ms < RECENT_MS
            })
        })
}

/// One rank's processes and its status page, once there is one.
struct WatchedRank {
    tree: ProcessTree,
    /// The program that was started elsewhere, once it is found.
    inside: Option<(Ident, ProcessTree)>,
    /// The newest process of the host when it was looked for in vain.
    sought: Option<u32>,
    /// The process that writes the page, where that is one below the rank's own.
    program: Option<ProcessTree>,
    /// What that process calls itself, when somebody has looked for it.
    writer: Option<u32>,
    /// The program itself told at the latest look that it moves.
    gives_signs: bool,
}

/// Remembers what differences are taken from.
#[derive(Default)]
pub struct Sampler {
    ticks: Option<(u64, u64)>,
    ranks: BTreeMap<Ident, WatchedRank>,
    watch: HostWatch,
    cache: Option<HostCache>,
    host: Option<(Instant, HostSample)>,
    users: GpuUsers,
}

impl Sampler {
    /// From here on the first look counts the use of CPUs.
    pub fn begin(&mut self) {
        self.cpu_percent();
    }

    /// Looks once.
    pub fn look(&mut self, generation: Generation, targets: &[Target], gpus: &Gpus) -> HostSample {
        let gpus = gpus.latest();
        self.ranks.retain(|ident, _| targets.iter().any(|target| target.ident == *ident));
        let thoroughly = self.host.as_ref().is_none_or(|(at, _)| at.elapsed() >= SLOW_ROUND);
        if thoroughly {
            self.host = Some((Instant::now(), self.host()));
        }
        let ranks: Vec<RankSample> =
            targets.iter().map(|target| self.rank(target, &gpus, thoroughly)).collect();
        let ours = ranks.iter().flat_map(|rank| {
            let children = rank.signals.children.iter().map(|child| child.pid);
            children.chain([rank.pid])
        });
        let users = self.users.look(&gpus, &ours.collect());
        HostSample {
            mono_ms: monotonic_ns() / 1_000_000,
            wall_time: wall_time(),
            generation,
            ranks,
            gpus,
            users,
            ..self.host.as_ref().map(|(_, host)| host.clone()).unwrap_or_default()
        }
    }

    /// The host itself.
    fn host(&mut self) -> HostSample {
        let load = proc::load();
        self.cache.get_or_insert_with(HostCache::read).turn(load.and_then(|load| load.newest));
        let (memory_used, memory_total) = proc::memory().unwrap_or_default();
        HostSample {
            cpu_percent: self.cpu_percent(),
            cpu_count: proc::cpu_count(),
            memory_used,
            memory_total,
            load1: load.map_or(0.0, |load| load.one_minute),
            signals: self.watch.look(),
            ..HostSample::default()
        }
    }

    fn cpu_percent(&mut self) -> f32 {
        let Some((busy, all)) = proc::cpu_ticks() else { return 0.0 };
        let (busy_before, all_before) = self.ticks.replace((busy, all)).unwrap_or((busy, all));
        let passed = all.saturating_sub(all_before);
        if passed == 0 { 0.0 } else { busy.saturating_sub(busy_before) as f32 * 100.0 / passed as f32 }
    }

    fn rank(&mut self, target: &Target, gpus: &[GpuSample], thoroughly: bool) -> RankSample {
        let cache = self.cache.get_or_insert_with(HostCache::read);
        let watched = self.ranks.entry(target.ident).or_insert_with(|| WatchedRank::of(target.ident));
        let depth = Depth { thorough: thoroughly, connections: !watched.gives_signs };
        let own = watched.tree.look(cache, depth);
        let state = own.main.as_ref().map_or('X', |main| main.state);
        let ended = matches!(state, 'X' | 'Z');
        let seen = match target.elsewhere && !ended {
            true => watched.inside(target.ident, cache, depth, own),
            false => own,
        };
        let planned = target.gpu.and_then(|index| visible::planned(index, gpus));
        let gpu = gpu_of(gpus, &seen.pids, planned.as_ref());
        let gpu_memory = gpu.and_then(|gpu| memory_of(gpu, &seen.pids, planned.as_ref()));
        let gpu_share = gpu.and_then(|gpu| share_of(gpu, &seen.pids, |pid| proc::stat(pid).is_some()));
        let page = watched.page(target, ended);
        watched.gives_signs = page.as_ref().is_some_and(gives_signs);
        // The first look at a program tells no differences yet, like that at its rank.
        let below = watched.program.as_mut().filter(|_| !ended);
        let program = below.map(|tree| tree.look(cache, depth)).filter(|seen| seen.main.is_some());
        let main = program.as_ref().or(Some(&seen)).and_then(|seen| seen.main.as_ref());
        let (pid, state) =
            main.filter(|_| !ended).map_or((target.ident.pid, state), |main| (main.pid, main.state));
        let (wchan, signals) = match program {
            Some(program) => (program.wchan, program.signals),
            None => (seen.wchan, seen.signals),
        };
        RankSample {
            rank: target.rank,
            pid,
            state,
            cpu_percent: seen.cpu_percent,
            rss: seen.rss,
            children: seen.children,
            wchan,
            // Without a driver nothing else is known of it.
            gpu: gpu.map(|gpu| gpu.index).or(target.gpu.filter(|_| gpus.is_empty())),
            gpu_memory,
            gpu_share,
            page,
            signals,
        }
    }
}

/// The GPU of a rank: the one on which its processes are. Before it uses one, and where the driver does not
/// show processes (in containers), that of the plan among those that this user sees.
pub fn gpu_of<'a>(
    gpus: &'a [GpuSample],
    pids: &[u32],
    planned: Option<&VisibleGpu>,
) -> Option<&'a GpuSample> {
    let used = |gpu: &&GpuSample| gpu.processes.iter().any(|(pid, _)| pids.contains(pid));
    gpus.iter().find(used).or_else(|| planned?.gpu(gpus))
}

/// What a rank's processes have on its GPU. Where the driver does not show them, all that is used of their
/// own instance; of a whole GPU nobody knows whose it is.
fn memory_of(gpu: &GpuSample, pids: &[u32], planned: Option<&VisibleGpu>) -> Option<u64> {
    let ours = |(pid, _): &&(u32, u64)| pids.contains(pid);
    let sum = || gpu.processes.iter().filter(ours).map(|(_, bytes)| bytes).sum();
    let is_shown = gpu.processes.iter().any(|process| ours(&process));
    let instance = || Some(planned?.instance(gpu)?.memory_used);
    if is_shown { Some(sum()) } else { instance() }
}

/// What a rank's processes use of a GPU that others are on, too, percent. Where the driver tells pids that
/// are not those of this container, nobody knows whose share is whose.
fn share_of(gpu: &GpuSample, pids: &[u32], is_here: impl Fn(u32) -> bool) -> Option<u32> {
    let is_ours = |pid: &u32| pids.contains(pid);
    let mut on_it = gpu.processes.iter().map(|(pid, _)| pid);
    let others = on_it.clone().any(|pid| !is_ours(pid));
    let known = on_it.any(is_ours) || gpu.processes.iter().all(|(pid, _)| is_here(*pid));
    let ours = gpu.shares.iter().filter(|(pid, _)| is_ours(pid)).map(|(_, percent)| percent);
    (others && known && !gpu.shares.is_empty()).then(|| ours.sum::<u32>().min(100))
}

/// What the main thread does besides is no news: the program tells its phase, or has just given a sign.
fn gives_signs(page: &PageSample) -> bool {
    !page.by_hook || page.heartbeat_age_ms < SIGN_MS
}

impl WatchedRank {
    fn of(root: Ident) -> WatchedRank {
        WatchedRank {
            tree: ProcessTree::of(root),
            inside: None,
            sought: None,
            program: None,
            writer: None,
            gives_signs: false,
        }
    }

    /// The processes of a program that was started elsewhere, by a client of which `own` was seen. While they
    /// are not found, what the client does says nothing about them.
    fn inside(&mut self, client: Ident, cache: &mut HostCache, depth: Depth, own: TreeSample) -> TreeSample {
        let newest = cache.newest();
        if self.inside.is_none() && depth.thorough && (self.sought.is_none() || self.sought != newest) {
            self.sought = newest;
            self.inside = containers::program(client).map(|ident| (ident, ProcessTree::of(ident)));
        }
        let seen = self.inside.as_mut().map(|(_, tree)| tree.look(cache, depth));
        match seen.filter(|seen| seen.main.as_ref().is_some_and(|main| !main.is_gone())) {
            Some(seen) => seen,
            None => {
                (self.inside, self.writer, self.program) = (None, None, None);
                TreeSample { pids: own.pids, main: own.main, ..TreeSample::default() }
            }
        }
    }

    fn page(&mut self, target: &Target, ended: bool) -> Option<PageSample> {
        let view = pages::open(&target.page).ok()?.view().ok()?;
        let now_ns = monotonic_ns();
        let own = view.rank == target.rank.0;
        let found = self.inside.is_some() || !target.elsewhere;
        if own && !ended && found && self.writer != Some(view.pid) {
            self.writer = Some(view.pid);
            let first = self.inside.as_ref().map_or(target.ident, |(first, _)| *first);
            let program = proc::program(first, view.pid);
            self.program = (program != first).then(|| ProcessTree::of(program));
        }
        own.then(|| if ended { view.last_words(now_ns) } else { view.sample(now_ns) })
    }
}

#[cfg(test)]
mod tests;
