//! What the agent observes of its ranks: samples, log lines, metrics, events, inspections.
//!
//! Owner: the agent's loop. Every source has a thread or tasks of its own.

use crate::inspect;
use crate::observe::gpu::{self, GpuWatch};
use crate::observe::logs::{self, LineBatch, Logs};
use crate::observe::metrics::{EventFileTailer, MetricExtractor, SILENCE};
use crate::observe::sample::{self, NumberedSample, RendezvousAddr, SampledRank, SampledRanks, gpu_of};
use crate::observe::secrets::LogSecrets;
use crate::paths::RunPaths;
use crate::paths::expand_in;
use crate::serve::console::ConsoleOrder;
use crate::serve::events::EventConnections;
use crate::serve::line_store::LineStore;
use crate::serve::log_line;
use crate::supervise::launch_prep::ranks_folder;
use crate::supervise::lifecycle::{HostRank, Lifecycle};
use crate::supervise::supervisor::TaskResult;
use crate::timing::Timing;
use rankdeck_proto::message::{AgentMessage, LaunchSpec, RecordEvent};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::Rank;
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
    /// Extracts metrics from rank 0's lines, if rank 0 is on this host and the experiment enables it.
    picker: Option<MetricExtractor>,
    /// Follows rank 0's event files.
    follower: Option<EventFileTailer>,
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
        let logs = Logs::start(lost_lines.clone(), deliver, report)?;
        let (events, targets) = (EventConnections::default(), SampledRanks::default());
        let (malformed, gate) = (events.malformed.clone(), events.gate.clone());
        let samples = sample::start(targets.clone(), gpus.clone(), malformed, gate, timing)?;
        let observers = Observers {
            logs,
            lines: Rc::default(),
            lost_lines,
            targets,
            events,
            gpus,
            metrics: metrics_in,
            picker: None,
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

    /// Starts a generation. Returns what cannot be observed.
    pub fn start(
        &mut self,
        spec: &LaunchSpec,
        ranks: Vec<Rank>,
        paths: &RunPaths,
        workdir: &Path,
        secrets: LogSecrets,
    ) -> Option<String> {
        self.lines.borrow_mut().clear();
        let secrets = Arc::new(secrets);
        for rank in &ranks {
            let path = paths.rank_log(spec.generation, *rank);
            self.logs.follow(*rank, spec.generation, path, secrets.clone());
        }
        *self.events.expected.borrow_mut() = (spec.generation, ranks);
        self.events.gate.start();
        (self.picker, self.follower) = (None, None);
        // Metrics are rank 0's.
        if spec.plan.ranks.first().is_none_or(|rank| rank.node_rank != spec.node_rank) {
            return None;
        }
        let metrics = &spec.plan.experiment.metrics;
        self.picker = MetricExtractor::new(metrics);
        // Relative paths of a script start in its working directory.
        let begin = ranks_folder(paths, workdir, spec.plan.experiment.launch.code.as_ref());
        let folder = expand_in(metrics.tensorboard.as_ref()?, &begin);
        let (sender, gate) = (self.metrics.clone(), self.events.gate.clone());
        match EventFileTailer::start(folder, gate, SILENCE, move |event| drop(sender.blocking_send(event))) {
            Ok(follower) => {
                self.follower = Some(follower);
                None
            }
            Err(error) => Some(format!("cannot follow event files: {error}")),
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
        let targets = lifecycle.ranks().iter().filter_map(target).collect();
        self.targets.set(generation, meeting, world_size, targets);
    }

    /// Log lines of a rank have come.
    pub fn read(&mut self, batch: &LineBatch) {
        if let Some(picker) = self.picker.as_mut().filter(|_| batch.rank == Rank(0)) {
            batch.lines.iter().for_each(|line| picker.line(line));
        }
        self.lines.borrow_mut().push(batch);
    }

    /// Values that were picked from log lines and are due.
    pub fn due_metrics(&mut self) -> Option<RecordEvent> {
        self.picker.as_mut()?.due(Instant::now(), false)
    }

    /// All values that are left when a rank has ended.
    pub fn last_metrics(&mut self, rank: Rank) -> Option<RecordEvent> {
        self.picker.as_mut().filter(|_| rank == Rank(0))?.due(Instant::now(), true)
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
        let files_read = self.follower.as_ref().filter(|_| rank == Rank(0)).map(EventFileTailer::poll_now);
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

    /// Inspects some ranks, all of this host when none is named, and answers `order`.
    ///
    /// Errors: too many inspections are running.
    pub fn inspect(
        &self,
        request: u64,
        ranks: &[Rank],
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
        let subjects = self.subjects(ranks, lifecycle, paths);
        let (running, answers) = (self.inspections.clone(), order.answers.clone());
        tokio::task::spawn_blocking(move || {
            let inspections = inspect::inspect(subjects);
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
                last_line: lines.last(life.rank),
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
            if let Ok((first, lines, times)) =
                logs::tail(&paths.rank_log(generation, life.rank), REMEMBERED_LINES)
            {
                self.lines.borrow_mut().push(&LineBatch { rank: life.rank, generation, first, lines, times });
            }
        }
    }
}
