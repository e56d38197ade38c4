//! The agent's observations of its ranks: samples, log lines, metrics, events, inspections.
//!
//! Owner: the agent's loop. Every source has a thread or tasks of its own.

use crate::inspect;
use crate::observe::arbiter::{Arbiter, SeriesSource};
use crate::observe::extractor::MetricExtractor;
use crate::observe::gpu::{self, GpuWatch};
use crate::observe::inner_ranks;
use crate::observe::live_lines::LiveLines;
use crate::observe::logs::{self, LineBatch, Logs};
use crate::observe::metric_files::{MetricFileTailer, MetricSources};
use crate::observe::printed_returns::{PrintedReturns, ReturnBlocks};
use crate::observe::sample::{self, NumberedSample, RendezvousAddr, SampledRank, SampledRanks, gpu_of};
use crate::observe::secrets::LogSecrets;
use crate::paths::RunPaths;
use crate::paths::expand_in;
use crate::proc::{self, ProcessKey};
use crate::serve::console::ConsoleOrder;
use crate::serve::events::EventConnections;
use crate::serve::line_store::LineStore;
use crate::serve::log_line;
use crate::supervise::lifecycle::{HostRank, Lifecycle};
use crate::supervise::supervisor::TaskResult;
use crate::timing::Timing;
use rankdeck_proto::inspection::InnerTarget;
use rankdeck_proto::message::{AgentMessage, LaunchSpec, RankEvent, RecordEvent};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::Rank;
use rankdeck_types::meaning::Meanings;
use rankdeck_types::plan::{PlannedBackend, PlannedRank, ras_address};
use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};

/// Most inspections at once: each is a thread per rank.
const MOST_INSPECTIONS: usize = 4;
/// The last events and log lines of a rank may take this long to arrive. The least time is for a connection
/// that may not even be accepted yet.
const LAST_EVENTS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Time limit of the last poll of event files.
const LAST_FILES: Duration = Duration::from_secs(2);
/// How long the reader of a log file may take to reach its end.
const LAST_LINES: Duration = Duration::from_secs(2);
/// Longest wait for the logs at the end of an agent.
const SETTLE_LOGS: Duration = Duration::from_secs(60);
/// Lines of each log that an agent of a run that is over shows.
const REMEMBERED_LINES: usize = 1000;

/// Metrics are rank 0's, and the built-in trainer reports its own.
fn has_metrics(spec: &LaunchSpec) -> bool {
    let is_here = spec.plan.ranks.first().is_some_and(|rank| rank.node_rank == spec.node_rank);
    is_here && !spec.plan.is_builtin()
}

/// What observers send to the loop.
pub(crate) struct ObserverChannels {
    /// Log lines.
    pub lines: mpsc::Receiver<LineBatch>,
    /// Values from event files.
    pub metrics: mpsc::Receiver<RecordEvent>,
    /// Rounds of samples.
    pub samples: watch::Receiver<NumberedSample>,
}

/// Everything that observes the ranks.
pub(crate) struct Observers {
    logs: Logs,
    lines: Rc<RefCell<LineStore>>,
    lost_lines: Arc<AtomicU64>,
    targets: SampledRanks,
    events: EventConnections,
    gpus: GpuWatch,
    metrics: mpsc::Sender<RecordEvent>,
    live: LiveLines,
    /// Extracts metrics from rank 0's output, if rank 0 is on this host and not the built-in trainer.
    picker: Option<MetricExtractor>,
    /// Compares what the ranks of a script print, if there are several.
    printed: Option<PrintedReturns>,
    return_blocks: ReturnBlocks,
    /// The change of rank 0's live lines that was read last.
    live_seen: u64,
    /// Decides from which source a series of this generation comes.
    arbiter: Arbiter,
    /// The latest summary of what was found.
    summary: String,
    /// Follows the files in which rank 0 logs.
    follower: Option<MetricFileTailer>,
    /// One clone per running inspection.
    inspections: Arc<()>,
}

impl Observers {
    /// Starts the threads that sample and read logs.
    ///
    /// Errors: a thread cannot be started.
    pub fn new(timing: Timing, gpus: GpuWatch) -> io::Result<(Observers, ObserverChannels)> {
        let (lines_in, lines) = mpsc::channel::<LineBatch>(256);
        let (metrics_in, metrics) = mpsc::channel(1024);
        let lost_lines = Arc::new(AtomicU64::new(0));
        let lost = lost_lines.clone();
        let deliver = move |batch| {
            if let Err(mpsc::error::TrySendError::Full(batch)) = lines_in.try_send(batch) {
                lost.fetch_add(batch.lines.len() as u64, Ordering::Relaxed);
            }
        };
        let notices = metrics_in.clone();
        let report = move |text: String| {
            log_line(&text);
            // If the channel is full, the agent's log has it.
            let _ = notices.try_send(RecordEvent::Notice { text });
        };
        let live = LiveLines::default();
        let logs = Logs::start(lost_lines.clone(), live.clone(), deliver, report)?;
        let (events, targets) = (EventConnections::default(), SampledRanks::default());
        let (malformed, gate) = (events.malformed.clone(), events.gate.clone());
        let return_blocks = ReturnBlocks::default();
        let shown = (live.clone(), return_blocks.clone());
        let samples = sample::start(targets.clone(), shown, gpus.clone(), malformed, gate, timing)?;
        let observers = Observers {
            logs,
            lines: Rc::default(),
            lost_lines,
            targets,
            events,
            gpus,
            metrics: metrics_in,
            live,
            picker: None,
            printed: None,
            return_blocks,
            live_seen: 0,
            arbiter: Arbiter::default(),
            summary: String::new(),
            follower: None,
            inspections: Arc::default(),
        };
        Ok((observers, ObserverChannels { lines, metrics, samples }))
    }

    /// Log lines, for consoles.
    pub fn lines(&self) -> Rc<RefCell<LineStore>> {
        self.lines.clone()
    }

    /// Connections of ranks on the event socket.
    pub fn events(&self) -> EventConnections {
        self.events.clone()
    }

    /// Starts a generation.
    pub fn start(&mut self, spec: &LaunchSpec, ranks: Vec<Rank>, paths: &RunPaths, secrets: LogSecrets) {
        self.lines.borrow_mut().clear();
        let secrets = Arc::new(secrets);
        for rank in &ranks {
            let path = paths.rank_log(spec.generation, *rank);
            self.logs.follow(*rank, spec.generation, path, secrets.clone());
        }
        *self.events.expected.borrow_mut() = (spec.generation, ranks);
        self.events.reporters.borrow_mut().clear();
        self.events.gate.start();
        (self.picker, self.follower) = (None, None);
        let compares = !spec.plan.is_builtin() && spec.plan.ranks.len() > 1;
        let blocks = self.return_blocks.clone();
        self.printed = compares.then(|| PrintedReturns::new(&spec.plan.experiment.metrics, blocks));
        if !has_metrics(spec) {
            return;
        }
        let metrics = &spec.plan.experiment.metrics;
        self.picker = Some(MetricExtractor::new(metrics));
        self.arbiter = Arbiter::new(Meanings::new(&metrics.names));
    }

    /// A rank starts again, and appends to its log.
    pub fn reopen_log(&self, rank: Rank) {
        self.logs.reopen(rank);
    }

    /// Ranks are about to start in `begin`, where relative paths of a script begin. Returns what cannot be
    /// observed.
    pub fn follow_files(&mut self, spec: &LaunchSpec, begin: &Path, run_dir: &Path) -> Option<String> {
        if !has_metrics(spec) {
            return None;
        }
        let metrics = &spec.plan.experiment.metrics;
        let sources = MetricSources {
            folder: metrics.tensorboard.as_ref().map(|folder| expand_in(folder, begin)),
            run_dir: run_dir.to_owned(),
            meanings: Meanings::new(&metrics.names),
            gate: self.events.gate.clone(),
        };
        let sender = self.metrics.clone();
        match MetricFileTailer::start(sources, move |event| drop(sender.blocking_send(event))) {
            Ok(follower) => {
                self.follower = Some(follower);
                None
            }
            Err(error) => Some(format!("cannot follow metric files: {error}")),
        }
    }

    /// Sets the processes that the sampling thread samples.
    pub fn aim(&self, lifecycle: &Lifecycle, paths: &RunPaths) {
        let generation = lifecycle.generation();
        let elsewhere = lifecycle.starts_elsewhere();
        let target = |life: &HostRank| {
            Some(SampledRank {
                rank: life.rank,
                ident: life.ident.filter(|ident| ident.start > 0)?,
                gpu: life.gpu,
                page: paths.page(generation, life.rank),
                elsewhere,
            })
        };
        let meeting = lifecycle.spec().map_or_else(RendezvousAddr::default, |spec| RendezvousAddr {
            master: spec.master_addr.clone(),
            interface: spec
                .plan
                .hosts
                .iter()
                .find(|host| host.node_rank == spec.node_rank)
                .and_then(|host| spec.plan.interface(host).map(str::to_owned)),
        });
        let world_size = lifecycle.spec().map_or(0, |spec| spec.plan.ranks.len());
        let targets: Vec<SampledRank> = lifecycle.ranks().iter().filter_map(target).collect();
        if let Some(follower) = &self.follower {
            let first = targets.iter().find(|target| target.rank == Rank(0));
            follower.watch(first.map(|target| target.ident), elsewhere);
        }
        self.targets.set(generation, meeting, world_size, targets);
    }

    /// Log lines of a rank have come.
    pub fn read(&mut self, batch: &LineBatch) {
        if let Some(picker) = self.picker.as_mut().filter(|_| batch.rank == Rank(0)) {
            picker.lines(&batch.lines, Instant::now());
            self.show_sign();
        }
        if let Some(printed) = &mut self.printed {
            printed.lines(batch.rank, &batch.lines, Instant::now());
        }
        self.lines.borrow_mut().push(batch);
    }

    /// Takes in what a rank reports itself.
    pub fn reported(&mut self, rank: Rank, event: &RankEvent) {
        if rank == Rank(0) && self.picker.is_some() {
            self.arbiter.reported(event, Instant::now());
            self.show_sign();
        }
    }

    /// Rank 0 has shown that its program runs.
    fn show_sign(&mut self) {
        self.arbiter.has_sign(Instant::now());
        self.follower.iter().for_each(MetricFileTailer::expect_files);
    }

    /// Takes in an event of an observer of its own thread; returns what is to be recorded.
    pub fn admit(&mut self, event: RecordEvent) -> Vec<RecordEvent> {
        let source = match &event {
            RecordEvent::Metrics { source, .. } => SeriesSource::of_file(source),
            _ => SeriesSource::Declared,
        };
        self.arbiter.admit(event, |_| source, Instant::now())
    }

    /// What was picked from the output and is due.
    pub fn due_metrics(&mut self) -> Vec<RecordEvent> {
        self.take_metrics(false)
    }

    /// All values that are left when a rank has ended.
    pub fn last_metrics(&mut self, rank: Rank) -> Vec<RecordEvent> {
        if rank == Rank(0) { self.take_metrics(true) } else { Vec::new() }
    }

    fn take_metrics(&mut self, last: bool) -> Vec<RecordEvent> {
        let Some(picker) = &mut self.picker else { return Vec::new() };
        let now = Instant::now();
        if let Some(rows) = self.live.changed(Rank(0), &mut self.live_seen) {
            picker.live(&rows, now);
        }
        let record = picker.due(now, last);
        if let Some((meaning, name)) = picker.counted_by() {
            self.arbiter.counts_by(meaning, &name, picker.source("env_step"), now);
        }
        let admitted = record.map(|record| self.arbiter.admit(record, |name| picker.source(name), now));
        let mut events = admitted.unwrap_or_default();
        events.extend(self.arbiter.decided_evaluations(now, last));
        if let Some(text) = self.arbiter.summary(now, last).filter(|text| *text != self.summary) {
            self.summary.clone_from(&text);
            events.push(RecordEvent::Notice { text });
        }
        events
    }

    /// Has the event connections read what is there.
    pub fn turn(&self) {
        self.events.turn();
    }

    /// Updates, for consoles, the number of lines that were lost before they reached the store.
    pub fn count_lost_lines(&self) {
        self.lines.borrow_mut().dropped = self.lost_lines.load(Ordering::Relaxed);
    }

    /// Waits for a rank's last events and log lines, and reports them.
    pub fn collect_exit_info(&self, rank: Rank, outcomes: mpsc::Sender<TaskResult>) {
        // Its page's last words are to be sampled before its end is recorded.
        self.targets.sample_now();
        let (events, logs) = (self.events.clone(), self.logs.clone());
        let files_read = self.follower.as_ref().filter(|_| rank == Rank(0)).map(MetricFileTailer::poll_now);
        tokio::task::spawn_local(async move {
            let begun = Instant::now();
            while begun.elapsed() < LAST_EVENTS.0
                || (events.open_of(rank) > 0 && begun.elapsed() < LAST_EVENTS.1)
            {
                events.turn();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            while files_read.as_ref().is_some_and(|read| !read()) && begun.elapsed() < LAST_FILES {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let (answer, lines) = oneshot::channel();
            logs.finish(rank, move |lines| drop(answer.send(lines)));
            let lines = tokio::time::timeout(LAST_LINES, lines).await;
            let lines = lines.ok().and_then(Result::ok).unwrap_or_default();
            let _ = outcomes.send(TaskResult::ExitInfo(rank, lines)).await;
        });
    }

    /// Waits until the logs of ended ranks are within their bound.
    pub async fn settle_logs(&self) {
        let (done, settled) = oneshot::channel();
        self.logs.settle(move || {
            let _ = done.send(());
        });
        let _ = tokio::time::timeout(SETTLE_LOGS, settled).await;
    }

    /// Inspects some ranks and some that these have started themselves, all ranks of this host when none is named, and
    /// answers `order`.
    ///
    /// Errors: too many inspections are running.
    pub fn inspect(
        &self,
        request: u64,
        (ranks, inner): (&[Rank], &[InnerTarget]),
        order: &ConsoleOrder,
        lifecycle: &Lifecycle,
        paths: &RunPaths,
    ) -> Result<(), HintedError> {
        if Arc::strong_count(&self.inspections) > MOST_INSPECTIONS {
            return Err(HintedError::new(
                format!("{MOST_INSPECTIONS} inspections are already running on this host"),
                "try again in two seconds",
            ));
        }
        let mut subjects = match (ranks, inner) {
            ([], [_, ..]) => Vec::new(),
            _ => self.subjects(ranks, lifecycle, paths),
        };
        let own = subjects.len();
        let below = |target: &InnerTarget| Some((*target, inner_subject(target, lifecycle, paths)?));
        let (inner, more): (Vec<InnerTarget>, Vec<_>) = inner.iter().filter_map(below).unzip();
        subjects.extend(more);
        let (running, answers) = (self.inspections.clone(), order.answers.clone());
        tokio::task::spawn_blocking(move || {
            let mut inspections = inspect::inspect(subjects);
            for (inspection, target) in inspections.iter_mut().skip(own).zip(inner) {
                (inspection.rank, inspection.inner_pid) = (target.outer, Some(target.pid));
            }
            // A console that has left misses its answer and nothing else.
            let _ = answers.blocking_send(AgentMessage::Inspected { request, inspections });
            drop(running);
        });
        Ok(())
    }

    fn subjects(
        &self,
        ranks: &[Rank],
        lifecycle: &Lifecycle,
        paths: &RunPaths,
    ) -> Vec<inspect::InspectTarget> {
        let (lines, gpus) = (self.lines.borrow(), self.gpus.latest());
        let nccl = lifecycle.spec().filter(|spec| spec.plan.backend() == PlannedBackend::Nccl);
        let lives = lifecycle.ranks();
        let ras = |own: Rank| -> Vec<String> {
            let Some(spec) = nccl else { return Vec::new() };
            let (others, own): (Vec<_>, Vec<_>) = spec.plan.ranks.iter().partition(|rank| rank.rank != own);
            let here = |rank: &&PlannedRank| lives.iter().any(|life| life.rank == rank.rank);
            let address = |rank: &PlannedRank| ras_address(&spec.plan.run, rank.local_rank);
            // One that answers is enough.
            others.into_iter().filter(here).take(3).chain(own).map(address).collect()
        };
        lives
            .iter()
            .filter(|life| ranks.is_empty() || ranks.contains(&life.rank))
            .map(|life| inspect::InspectTarget {
                rank: life.rank,
                ident: life.ident.filter(|ident| ident.start > 0 && life.exit.is_none()),
                page: paths.page(lifecycle.generation(), life.rank),
                elsewhere: lifecycle.starts_elsewhere(),
                last_line: self.live.newest(life.rank).or_else(|| lines.last(life.rank)),
                gpu: {
                    let planned = life.gpu.and_then(|index| gpu::planned_gpu(index, &gpus));
                    gpu_of(&gpus, &[life.ident.map_or(0, |ident| ident.pid)], planned.as_ref()).cloned()
                },
                ras: ras(life.rank),
            })
            .collect()
    }

    /// Reads the last lines of the logs of a run that is over, so that a console can show them.
    pub fn remember_logs(&self, lifecycle: &Lifecycle, paths: &RunPaths) {
        let generation = lifecycle.generation();
        for life in lifecycle.ranks() {
            let log = paths.rank_log(generation, life.rank);
            let batches = logs::tail(&log, (life.rank, generation), REMEMBERED_LINES).unwrap_or_default();
            let mut lines = self.lines.borrow_mut();
            batches.iter().for_each(|batch| lines.push(batch));
        }
    }
}
/// A rank that a rank of this host has started itself; `None` once its process is gone.
fn inner_subject(
    target: &InnerTarget,
    lifecycle: &Lifecycle,
    paths: &RunPaths,
) -> Option<inspect::InspectTarget> {
    let life = lifecycle.ranks().iter().find(|life| life.rank == target.outer && life.exit.is_none())?;
    let stat = proc::stat(target.pid).filter(|stat| !stat.is_gone())?;
    let is_below = proc::descendants(life.ident?.pid).contains(&target.pid);
    (is_below || lifecycle.starts_elsewhere()).then(|| inspect::InspectTarget {
        rank: Rank(target.number),
        ident: Some(ProcessKey { pid: stat.pid, start: stat.start }),
        page: inner_ranks::page(&paths.page(lifecycle.generation(), target.outer), target.number),
        ..inspect::InspectTarget::default()
    })
}
