//! Samples: the host, its ranks with their process trees and status pages, its GPUs. A round is taken four
//! times a second, and half as often while every rank's page moves: each round takes CPU time from the ranks.
//! In a large world it is once a second then ([`calm_round`]).
//!
//! Owner: one thread, so that a slow `/proc` or page blocks nothing else. The loop sets the ranks; the newest
//! sample replaces the one before.

use crate::observe::gpu::{GpuUsers, GpuWatch, VisibleGpu, planned_gpu};
use crate::observe::host_signals::HostWatch;
use crate::observe::inner_ranks::{InnerRanks, is_of};
use crate::observe::live_lines::LiveLines;
use crate::observe::media_limiter::MediaLimiter;
use crate::observe::pages;
use crate::observe::printed_returns::ReturnBlocks;
use crate::observe::process_tree::{HostCache, ProcessTree, SampleDepth, TreeSample};
use crate::proc::{self, ProcessKey};
use crate::program;
use crate::timing::Timing;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::message::{
    GpuSample, HostSample, InnerRankSample, PageSample, RankSample, RankSignals, calm_round,
};
use rankdeck_proto::status_page::monotonic_ns;
use rankdeck_types::ids::{Generation, Rank};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Interval of slow counters: the host itself, children, cgroups
/// and storage traffic.
const SLOW_ROUND: Duration = Duration::from_millis(500);

/// Age in milliseconds up to which a page shows progress.
const RECENT_MS: u64 = 1_500;
/// Age of a script's latest sign from which its connections are counted.
const SIGN_MS: u64 = 1_000;

/// One rank.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SampledRank {
    pub rank: Rank,
    /// Its process.
    pub ident: ProcessKey,
    pub gpu: Option<u32>,
    /// Its status page, when it writes one.
    pub page: PathBuf,
    /// Its program is not a child of that process: a container's monitor starts it.
    pub elsewhere: bool,
}

/// Where the group meets: what the network interface to watch is found by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RendezvousAddr {
    /// Address of rank 0's store.
    pub master: String,
    /// The interface that `hosts.toml` names.
    pub interface: Option<String>,
}

/// What to sample.
#[derive(Debug, Clone, Default)]
struct Task {
    generation: Generation,
    meeting: RendezvousAddr,
    world_size: usize,
    targets: Vec<SampledRank>,
}

/// The ranks to sample.
#[derive(Debug, Clone, Default)]
pub(crate) struct SampledRanks {
    task: Arc<Mutex<Arc<Task>>>,
    sampler_thread: Arc<OnceLock<Thread>>,
}

impl SampledRanks {
    /// Replaces the list.
    pub fn set(
        &self,
        generation: Generation,
        meeting: RendezvousAddr,
        world_size: usize,
        targets: Vec<SampledRank>,
    ) {
        let is_in_use = |page: &Path, target: &SampledRank| target.page == page || is_of(page, &target.page);
        pages::keep(|page| targets.iter().any(|target| is_in_use(page, target)));
        let task = Arc::new(Task { generation, meeting, world_size, targets });
        *self.task.lock().unwrap_or_else(PoisonError::into_inner) = task;
    }

    /// Starts the next round at once: a rank's page may hold its last values.
    pub fn sample_now(&self) {
        if let Some(sampler_thread) = self.sampler_thread.get() {
            sampler_thread.unpark();
        }
    }

    fn get(&self) -> Arc<Task> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A sample and its number, from 1; a reader that sees a jump has missed some.
pub(crate) type NumberedSample = (u64, HostSample);

/// Starts the thread, which samples at the pace of `timing`; it ends with its receivers.
pub(crate) fn start(
    targets: SampledRanks,
    (live, returns): (LiveLines, ReturnBlocks),
    gpus: GpuWatch,
    malformed: Arc<AtomicU64>,
    gate: MediaLimiter,
    timing: Timing,
) -> std::io::Result<watch::Receiver<NumberedSample>> {
    let (sender, receiver) = watch::channel((0, HostSample::default()));
    let sampler_thread = targets.sampler_thread.clone();
    let thread = std::thread::Builder::new().name("sample".into()).spawn(move || {
        let mut sampler = Sampler { live, returns, ..Sampler::default() };
        let mut number = 0;
        loop {
            let task = targets.get();
            sampler.watch.aim(&task.meeting.master, task.meeting.interface.as_deref());
            let mut sample = sampler.sample(task.generation, &task.targets, &gpus);
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
    let _ = sampler_thread.set(thread.thread().clone());
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
pub(crate) fn all_get_on(sample: &HostSample) -> bool {
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
    inside: Option<(ProcessKey, ProcessTree)>,
    /// The newest process of the host at the last unsuccessful lookup.
    sought: Option<u32>,
    /// The process that writes the page, where that is one below the rank's own.
    program: Option<ProcessTree>,
    /// Name of that process, once it was resolved.
    writer: Option<u32>,
    /// The program itself reported progress at the latest sample.
    gives_signs: bool,
}

/// Remembers what differences are taken from.
#[derive(Default)]
pub(crate) struct Sampler {
    ticks: Option<(u64, u64)>,
    ranks: BTreeMap<ProcessKey, WatchedRank>,
    watch: HostWatch,
    cache: Option<HostCache>,
    host: Option<(Instant, HostSample)>,
    users: GpuUsers,
    live: LiveLines,
    returns: ReturnBlocks,
    inner: InnerRanks,
}

impl Sampler {
    /// Starts the interval of the first CPU utilization.
    pub fn start(&mut self) {
        self.cpu_percent();
    }

    /// Takes a sample.
    pub fn sample(&mut self, generation: Generation, targets: &[SampledRank], gpus: &GpuWatch) -> HostSample {
        let gpus = gpus.latest();
        let inner = self.inner.sampled(targets, Instant::now());
        let is_sampled = |ident: &ProcessKey| {
            targets.iter().chain(inner.iter().map(|(_, target)| target)).any(|target| target.ident == *ident)
        };
        self.ranks.retain(|ident, _| is_sampled(ident));
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
        let users = self.users.sample(&gpus, &ours.collect());
        let inner = inner
            .iter()
            .map(|(outer, target)| {
                let sample = self.rank(target, &gpus, thoroughly);
                // Its lines are those of the rank that has started it.
                let signals = RankSignals { returns: Vec::new(), ..sample.signals };
                let sample = RankSample { live: String::new(), signals, ..sample };
                InnerRankSample { outer: *outer, sample }
            })
            .collect();
        HostSample {
            mono_ms: monotonic_ns() / 1_000_000,
            wall_time: wall_time(),
            generation,
            ranks,
            inner,
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
            signals: self.watch.sample(),
            ..HostSample::default()
        }
    }

    fn cpu_percent(&mut self) -> f32 {
        let Some((busy, all)) = proc::cpu_ticks() else { return 0.0 };
        let (busy_before, all_before) = self.ticks.replace((busy, all)).unwrap_or((busy, all));
        let passed = all.saturating_sub(all_before);
        if passed == 0 { 0.0 } else { busy.saturating_sub(busy_before) as f32 * 100.0 / passed as f32 }
    }

    fn rank(&mut self, target: &SampledRank, gpus: &[GpuSample], thoroughly: bool) -> RankSample {
        let cache = self.cache.get_or_insert_with(HostCache::read);
        let watched = self.ranks.entry(target.ident).or_insert_with(|| WatchedRank::new(target.ident));
        let depth = SampleDepth { thorough: thoroughly, connections: !watched.gives_signs };
        let own = watched.tree.sample(cache, depth);
        let state = own.main.as_ref().map_or('X', |main| main.state);
        let ended = matches!(state, 'X' | 'Z');
        let seen = match target.elsewhere && !ended {
            true => watched.inside(target.ident, cache, depth, own),
            false => own,
        };
        let planned = target.gpu.and_then(|index| planned_gpu(index, gpus));
        let gpu = gpu_of(gpus, &seen.pids, planned.as_ref());
        let gpu_memory = gpu.and_then(|gpu| memory_of(gpu, &seen.pids, planned.as_ref()));
        let gpu_share = gpu.and_then(|gpu| share_of(gpu, &seen.pids, |pid| proc::stat(pid).is_some()));
        let page = watched.page(target, ended);
        watched.gives_signs = page.as_ref().is_some_and(gives_signs);
        // The first sample of a program has no differences yet, like that of its rank.
        let below = watched.program.as_mut().filter(|_| !ended);
        let program = below.map(|tree| tree.sample(cache, depth)).filter(|seen| seen.main.is_some());
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
            signals: RankSignals { returns: self.returns.of(target.rank), ..signals },
            live: self.live.newest(target.rank).unwrap_or_default(),
        }
    }
}

/// The GPU of a rank: the one on which its processes are. Before it uses one, and where the driver does not
/// show processes (in containers), that of the plan among those that this user sees.
pub(crate) fn gpu_of<'a>(
    gpus: &'a [GpuSample],
    pids: &[u32],
    planned: Option<&VisibleGpu>,
) -> Option<&'a GpuSample> {
    let used = |gpu: &&GpuSample| gpu.processes.iter().any(|(pid, _)| pids.contains(pid));
    gpus.iter().find(used).or_else(|| planned?.gpu(gpus))
}

/// Memory of a rank's processes on its GPU. Where the driver does not show them, all that is used of their
/// own instance; on a whole GPU the owner is unknown.
fn memory_of(gpu: &GpuSample, pids: &[u32], planned: Option<&VisibleGpu>) -> Option<u64> {
    let ours = |(pid, _): &&(u32, u64)| pids.contains(pid);
    let sum = || gpu.processes.iter().filter(ours).map(|(_, bytes)| bytes).sum();
    let is_shown = gpu.processes.iter().any(|process| ours(&process));
    let instance = || Some(planned?.instance(gpu)?.memory_used);
    if is_shown { Some(sum()) } else { instance() }
}

/// Share of a rank's processes of a GPU that others use, too, percent. Where the driver reports pids that
/// are not those of this container, the shares cannot be assigned.
fn share_of(gpu: &GpuSample, pids: &[u32], is_here: impl Fn(u32) -> bool) -> Option<u32> {
    let is_ours = |pid: &u32| pids.contains(pid);
    let mut on_it = gpu.processes.iter().map(|(pid, _)| pid);
    let others = on_it.clone().any(|pid| !is_ours(pid));
    let known = on_it.any(is_ours) || gpu.processes.iter().all(|(pid, _)| is_here(*pid));
    let ours = gpu.shares.iter().filter(|(pid, _)| is_ours(pid)).map(|(_, percent)| percent);
    (others && known && !gpu.shares.is_empty()).then(|| ours.sum::<u32>().min(100))
}

/// The main thread's activity need not be read: the program reports its phase, or has just shown progress.
fn gives_signs(page: &PageSample) -> bool {
    !page.by_hook || page.heartbeat_age_ms < SIGN_MS
}

impl WatchedRank {
    fn new(root: ProcessKey) -> WatchedRank {
        WatchedRank {
            tree: ProcessTree::new(root),
            inside: None,
            sought: None,
            program: None,
            writer: None,
            gives_signs: false,
        }
    }

    /// The processes of a program in a container, started by a client of which `own` was seen. While they
    /// are not found, the client's state does not stand for them.
    fn inside(
        &mut self,
        client: ProcessKey,
        cache: &mut HostCache,
        depth: SampleDepth,
        own: TreeSample,
    ) -> TreeSample {
        let newest = cache.newest();
        if self.inside.is_none() && depth.thorough && (self.sought.is_none() || self.sought != newest) {
            self.sought = newest;
            self.inside = program::in_container(client).map(|ident| (ident, ProcessTree::new(ident)));
        }
        let seen = self.inside.as_mut().map(|(_, tree)| tree.sample(cache, depth));
        match seen.filter(|seen| seen.main.as_ref().is_some_and(|main| !main.is_gone())) {
            Some(seen) => seen,
            None => {
                (self.inside, self.writer, self.program) = (None, None, None);
                TreeSample { pids: own.pids, main: own.main, ..TreeSample::default() }
            }
        }
    }

    fn page(&mut self, target: &SampledRank, ended: bool) -> Option<PageSample> {
        let view = pages::open(&target.page).ok()?.view().ok()?;
        let now_ns = monotonic_ns();
        let own = view.rank == target.rank.0;
        let found = self.inside.is_some() || !target.elsewhere;
        if own && !ended && found && self.writer != Some(view.pid) {
            self.writer = Some(view.pid);
            let first = self.inside.as_ref().map_or(target.ident, |(first, _)| *first);
            let program = program::writer(first, view.pid);
            self.program = (program != first).then(|| ProcessTree::new(program));
        }
        own.then(|| if ended { view.last_words(now_ns) } else { view.sample(now_ns) })
    }
}

/// Remembers what differences are taken from.
#[derive(Debug, Default)]
pub(crate) struct Starvation {
    at: u64,
    /// Time that each rank's main thread was ready and got no core, ms, by process.
    delays: BTreeMap<u32, u64>,
}

impl Starvation {
    /// Whether a rank has waited for a core for more than half of the time since the latest call.
    pub fn check(&mut self, sample: &HostSample) -> bool {
        let passed = sample.mono_ms.saturating_sub(self.at);
        let living = sample.ranks.iter().filter(|rank| !matches!(rank.state, 'X' | 'Z'));
        let delays: BTreeMap<u32, u64> = living.map(|rank| (rank.pid, rank.signals.delay_ms)).collect();
        let starves = |(pid, delay): (&u32, &u64)| {
            self.delays.get(pid).is_some_and(|before| 2 * delay.saturating_sub(*before) > passed)
        };
        let found = passed > 0 && delays.iter().any(starves);
        (self.at, self.delays) = (sample.mono_ms, delays);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::message::GpuInstance;

    #[test]
    fn host_whose_ranks_all_move_is_sampled_less_often() {
        let calm = |ages: &[Option<u64>]| is_calm(ages.iter().copied(), Duration::from_millis(500));
        assert!(calm(&[Some(0), Some(499)]));
        assert!(!calm(&[Some(0), Some(500)]), "one stands still");
        assert!(!calm(&[Some(0), None]), "one has no page");
        assert!(!calm(&[]), "no rank has started");
    }

    #[test]
    fn large_world_is_sampled_slowly_unless_stuck() {
        let timing = Timing::default();
        let moves = || [Some(0), Some(499)];
        assert_eq!(pause(moves(), 8, timing), Duration::from_millis(500));
        assert_eq!(pause(moves(), 1024, timing), Duration::from_secs(1));
        assert_eq!(pause([Some(0), Some(1000)], 1024, timing), timing.sample);
        let expected = Duration::from_millis(50);
        let timing = Timing { calm_sample: Some(expected), ..timing };
        assert_eq!(pause([Some(0)], 1024, timing), expected, "as tests set it");
    }

    #[test]
    fn gpu_share_is_reported_only_with_pids() {
        let gpu = |shares: &[(u32, u32)]| GpuSample {
            processes: shares.iter().map(|(pid, _)| (*pid, 1)).collect(),
            shares: shares.to_vec(),
            ..GpuSample::default()
        };
        let here = |pid: u32| pid < 100;
        let of = |shares: &[(u32, u32)]| share_of(&gpu(shares), &[7, 8], here);
        assert_eq!(of(&[(7, 30), (8, 20), (9, 40)]), Some(50));
        assert_eq!(of(&[(9, 40)]), Some(0), "another's only, so far");
        assert_eq!(of(&[(7, 30)]), None, "alone, the GPU's figure is its own");
        assert_eq!(of(&[(5007, 30), (5009, 40)]), None, "a container hides whose they are");
        assert_eq!(of(&[(7, 30), (5009, 40)]), Some(30), "that of another container");
    }

    #[test]
    fn connections_are_counted_of_scripts_that_give_no_sign() {
        let page = |by_hook, age| PageSample { by_hook, heartbeat_age_ms: age, ..PageSample::default() };
        assert!(gives_signs(&page(false, 60_000)), "its phase is reported");
        assert!(gives_signs(&page(true, 200)) && !gives_signs(&page(true, 3_000)));
        let watched = WatchedRank::new(ProcessKey { pid: 1, start: 1 });
        assert!(!watched.gives_signs, "a program without a page never does");
    }

    #[test]
    fn ranks_get_on_when_each_moves_or_waits_for_others() {
        let shown = |state: char, page: Option<PageSample>| RankSample {
            rank: Rank(0),
            pid: 1,
            state,
            cpu_percent: 0.0,
            rss: 0,
            children: 0,
            wchan: String::new(),
            gpu: None,
            gpu_memory: None,
            gpu_share: None,
            page,
            signals: Default::default(),
            live: String::new(),
        };
        let rank = |age: u64, waits: bool, state: char| {
            let mut page = PageSample { heartbeat_age_ms: age, ..PageSample::default() };
            page.collective.entered = u64::from(waits);
            shown(state, Some(page))
        };
        let all = |ranks: Vec<RankSample>| all_get_on(&HostSample { ranks, ..HostSample::default() });
        assert!(all(vec![rank(100, false, 'R'), rank(60_000, true, 'S')]));
        assert!(!all(vec![rank(100, false, 'R'), rank(60_000, false, 'S')]), "one hangs");
        assert!(!all(vec![rank(60_000, true, 'T')]), "one is frozen");
        assert!(all(vec![rank(100, false, 'R'), rank(60_000, false, 'Z')]), "one has ended");
        assert!(!all(vec![shown('S', None)]), "one has no page");
        assert!(!all(vec![]));
    }

    #[test]
    fn rank_has_the_gpu_that_its_processes_use() {
        let gpu = |index, pids: &[u32]| GpuSample {
            index,
            processes: pids.iter().map(|pid| (*pid, 1)).collect(),
            ..GpuSample::default()
        };
        let gpus = [gpu(0, &[7]), gpu(2, &[40, 41])];
        let of = |pid, planned: Option<u32>| {
            let planned = planned.map(|index| VisibleGpu { index, instance: None });
            gpu_of(&gpus, &[pid], planned.as_ref()).map(|gpu| gpu.index)
        };
        assert_eq!(of(41, Some(0)), Some(2), "Slurm gave it another one than the plan");
        assert_eq!(of(99, Some(0)), Some(0), "it uses none yet");
        assert_eq!(of(99, None), None);
    }

    #[test]
    fn memory_is_that_of_the_ranks_processes_or_of_their_instance() {
        let instance =
            |name: &str, used| GpuInstance { uuid: name.into(), memory_used: used, ..Default::default() };
        let instances = vec![instance("MIG-a", 3), instance("MIG-b", 5)];
        let divided = GpuSample { instances, processes: vec![(7, 2)], ..GpuSample::default() };
        let given = VisibleGpu { index: 0, instance: Some("MIG-b".into()) };
        assert_eq!(memory_of(&divided, &[7], Some(&given)), Some(2));
        assert_eq!(memory_of(&divided, &[8], Some(&given)), Some(5), "its pid is hidden");
        let whole = GpuSample { memory_used: 9, ..GpuSample::default() };
        assert_eq!(memory_of(&whole, &[8], Some(&VisibleGpu { index: 0, instance: None })), None);
    }

    /// Ends with the test.
    struct ProcessTreeGuard(std::process::Child);

    impl Drop for ProcessTreeGuard {
        fn drop(&mut self) {
            for below in proc::descendants(self.0.id()) {
                let start = proc::stat(below).map_or(0, |stat| stat.start);
                crate::supervise::groups::signal(below, start, libc::SIGKILL);
            }
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// A launcher's wait is not the wait of the program that it has started.
    #[test]
    fn program_behind_a_launcher_is_sampled() {
        let shell = std::process::Command::new("sh").args(["-c", "sleep 1000; true"]).spawn().unwrap();
        let shell = ProcessTreeGuard(shell);
        let begun = Instant::now();
        let soon = || assert!(begun.elapsed() < Duration::from_secs(60), "not within 60 s");
        let program = loop {
            match proc::descendants(shell.0.id()).first().and_then(|pid| proc::stat(*pid)) {
                Some(stat) if stat.comm == "sleep" => break stat,
                _ => soon(),
            }
        };
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("page");
        drop(rankdeck_proto::status_page::StatusPageWriter::create(&page, 4, 1).unwrap());
        // The page names its writer.
        let file = std::fs::File::options().write(true).open(&page).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &u64::from(program.pid).to_le_bytes(), 32).unwrap();
        let own = proc::stat(shell.0.id()).unwrap();
        let ident = ProcessKey { pid: own.pid, start: own.start };
        let target = SampledRank { rank: Rank(4), ident, gpu: None, page: page.clone(), elsewhere: false };
        crate::supervise::groups::signal(program.pid, program.start, libc::SIGSTOP);
        let mut sampler = Sampler::default();
        loop {
            let sample = sampler.sample(Generation(1), std::slice::from_ref(&target), &GpuWatch::default());
            let rank = &sample.ranks[0];
            if (rank.pid, rank.state) == (program.pid, 'T') {
                assert!(rank.page.is_some() && rank.children == 1, "the tree is that of the launcher");
                break;
            }
            soon();
        }
        let subject =
            crate::inspect::InspectTarget { rank: Rank(4), ident: Some(ident), page, ..Default::default() };
        let sample = crate::inspect::inspect(vec![subject]).remove(0);
        assert_eq!((sample.pid, sample.os.state), (Some(program.pid), 'T'));
    }

    #[test]
    fn sample_shows_this_process_as_a_rank() {
        let own = proc::stat(std::process::id()).unwrap();
        let target = SampledRank {
            rank: Rank(4),
            ident: ProcessKey { pid: own.pid, start: own.start },
            gpu: None,
            page: "/nonexistent".into(),
            elsewhere: false,
        };
        let gone = SampledRank { ident: ProcessKey { pid: own.pid, start: own.start + 1 }, ..target.clone() };
        let mut sampler = Sampler::default();
        let sample = sampler.sample(Generation(1), &[target, gone], &GpuWatch::default());
        assert_eq!((sample.generation, sample.ranks.len()), (Generation(1), 2));
        assert!(sample.memory_total > 0 && sample.cpu_count > 0);
        assert!(sample.ranks[0].rss > 0 && sample.ranks[0].state != 'X');
        assert_eq!((sample.ranks[1].state, sample.ranks[1].rss), ('X', 0));
        assert_eq!(sample.ranks[0].page, None);
    }

    #[test]
    fn rank_starves_when_most_of_its_time_goes_by_without_a_core() {
        let mut starvation = Starvation::default();
        let mut sample = |mono_ms: u64, delay_ms: u64| {
            let rank = serde_json::json!({
                "rank": 0, "pid": 7, "state": "R", "cpu_percent": 0.0, "rss": 0, "children": 0, "gpu": null,
                "gpu_memory": null, "page": null, "signals": { "delay_ms": delay_ms },
            });
            let mut sample = HostSample { mono_ms, ..HostSample::default() };
            sample.ranks = vec![serde_json::from_value(rank).unwrap_or_else(|error| panic!("{error}"))];
            starvation.check(&sample)
        };
        assert!(!sample(1_000, 900), "nothing to compare with");
        assert!(!sample(1_500, 1_100));
        assert!(sample(2_000, 1_400));
        assert!(!sample(2_000, 1_900), "no time has passed");
    }
}
