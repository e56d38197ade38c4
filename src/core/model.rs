//! The model of a run: facts only. Built by `update`, read by the screen and by headless output.
//!
//! What only the reducer needs of a host or a rank is in the same element ([`HostModel::machine`],
//! [`RankModel::track`], [`RankModel::rate`]), and opaque outside this crate.
//!
//! Invariants:
//! - Nothing here is a guess about the present: every gauge carries when it arrived.
//! - CORE-2: every buffer is bounded; what was dropped is counted in [`DataLoss`].
//! - CORE-3: records are applied exactly once, in order, per host ([`HostModel::last_seq`]); duplicates
//!   change nothing.

mod log_ring;
mod media;
mod queries;

pub use log_ring::{HeldLine, LOG_LINES, LogPlace, LogRing, RECORDED_LINES, ReceivedLines, RingLimits};
pub use media::{Gallery, HistogramBucket, HistogramSeries, NAMES as MEDIA_NAMES, StoredImage};
pub(crate) use queries::theirs;
pub use queries::{
    LogSearchState, ProcessQueries, ProcessQuery, SearchResults, SearchState, SearchedHost, SentSignal,
};

use crate::card::RankEvidence;
use crate::end::RankEnd;
use crate::host::{HostMachine, HostStage};
use crate::membership::MembershipModel;
use crate::report::{
    FirstFailure, RankProgress, ResultsReport, RunOutcome, Severity, VerdictKind, VerdictReport,
};
use crate::series::{Place, Series};
use crate::watch::history::rank_history::RankHistory;
use rankdeck_proto::lineage::Lineage;
use rankdeck_proto::message::{
    CheckpointOrigin, Counters, Evaluation, Exception, Exit, FailureKind, HostSample, InnerRank, LaunchHash,
    Phase, RankSample, RunResults, StepSource, StopMode, Survivor, Work,
};
use rankdeck_proto::progress_bar::ShownProgress;
use rankdeck_proto::rate::SmoothedRate;
use rankdeck_proto::run_entry::SavedCheckpoint;
use rankdeck_proto::show::LiveFrame;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Probe;
use rankdeck_types::ids::{Generation, NodeRank, Rank, RunId, Timestamp, WallTime};
use rankdeck_types::link_state::{LinkState, Prompt};
use rankdeck_types::meaning::{Meaning, Meanings};
use rankdeck_types::plan::{Plan, PlannedRank};
use rankdeck_types::words;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Everything known about the run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Model {
    /// The plan, once known (at once for `run`, after the first snapshot for `attach`).
    pub plan: Option<Plan>,
    /// Life of the run.
    pub run: RunModel,
    /// Hosts in node_rank order.
    pub hosts: Vec<HostModel>,
    /// Ranks in rank order.
    pub ranks: Vec<RankModel>,
    /// Rank 0's latest all-reduced totals.
    pub latest: Option<LatestTotals>,
    /// Latest all-reduced totals with the ranks' own counters of the same iteration.
    pub progress: Option<TrainingProgress>,
    /// Metrics that a program without rankdeck.py prints.
    pub own: Option<OwnMetrics>,
    /// Where generations began: what of the earlier ones is the present line of training. What is not is in no
    /// figure here, and in charts behind the present line ([`Series::past`]).
    #[serde(default)]
    pub lineage: Lineage,
    /// The members of the process group, where ranks may be lost.
    #[serde(default)]
    pub membership: MembershipModel,
    /// Evaluations of the present line of training, oldest first.
    pub evals: VecDeque<Evaluation>,
    /// Checkpoints of the present line of training, oldest first. The last one is the latest that ranks have
    /// reported; if they report none, the latest that was found.
    pub checkpoints: VecDeque<CheckpointModel>,
    /// Charts: scalar name to values over global env_step. The console itself makes `charts/episodic_return`,
    /// `charts/eval_return` and `charts/SPS`.
    pub scalars: BTreeMap<String, Series>,
    /// Charts of what each rank does: the middle one of them, the least and the greatest. From this console's
    /// own gauges.
    pub spreads: BTreeMap<String, Series>,
    /// Histograms that the program logs, by name.
    #[serde(default)]
    pub histograms: BTreeMap<String, HistogramSeries>,
    /// Pictures that the program logs.
    #[serde(default)]
    pub gallery: Gallery,
    /// What happened at which step, for charts, oldest first, bounded.
    pub marks: VecDeque<ChartMark>,
    /// Present verdicts, worst first.
    pub verdicts: Vec<VerdictReport>,
    /// Live frames of rank 0's evaluation. Not recorded.
    #[serde(skip)]
    pub policy: PolicyView,
    /// Searches in the hosts' logs. Not recorded.
    #[serde(skip)]
    pub log_search: LogSearchState,
    /// Queries to processes. In no record (REACH-2).
    #[serde(skip)]
    pub process_queries: ProcessQueries,
    /// Weight fingerprints: latest comparison.
    pub fingerprint: Option<FingerprintModel>,
    /// Slow links between hosts, as measured before the launch.
    #[serde(default)]
    pub slow_links: Vec<SlowLink>,
    /// What happened, for the events pane, oldest first, bounded.
    pub history: VecDeque<HistoryLine>,
    /// Losses of information.
    pub drops: DataLoss,
    /// Grows with every change that a screen could show.
    pub revision: u64,
}

/// Files that ranks of a host have written where they work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostResults {
    pub node: NodeRank,
    pub host: String,
    #[serde(flatten)]
    pub results: RunResults,
}

impl RunModel {
    /// Results of all hosts.
    pub fn results(&self) -> Vec<ResultsReport> {
        ResultsReport::of(self.results.iter().map(|found| (&*found.host, &found.results)))
    }
}

/// Life of the run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RunModel {
    /// Name and time of the launch.
    pub id: Option<RunId>,
    /// The present generation.
    pub generation: Generation,
    /// The run's stage.
    pub state: RunState,
    /// A requested stop.
    pub stopping: Option<StopMode>,
    /// When the first launch was sent (console clock).
    pub started: Option<Timestamp>,
    /// Milliseconds for which an adopted run had been running when it was found, up to its end if it was over
    /// by then. Add them to the time since `started`.
    pub head_start_ms: u64,
    /// When it was over.
    pub ended: Option<Timestamp>,
    /// When it was over, seconds since the epoch: by the agents' clocks where it was over before this console
    /// came.
    pub ended_time: Option<WallTime>,
    /// When its first generation began, by the clock of the agent with the earliest.
    pub launched: Option<WallTime>,
    /// How it ended, once that is proved.
    pub outcome: Option<RunOutcome>,
    /// Exit code that the console will end with.
    pub exit_code: Option<u8>,
    /// One sentence about the end.
    pub reason: String,
    /// What the end left of the work; `None` before it, and if the run ended by itself.
    #[serde(default)]
    pub work: Option<Work>,
    /// What is odd about the end, though no failure; bounded.
    #[serde(default)]
    pub end_warnings: Vec<String>,
    /// What ranks have written where they work: one entry per host, in node-rank order.
    #[serde(default)]
    pub results: Vec<HostResults>,
    /// Global step goal, when there is one.
    pub total_steps: Option<u64>,
    /// `ADDRESS:PORT` of rank 0's store.
    pub master: String,
    /// What the present generation began from; `None`: from scratch.
    pub resumed: Option<String>,
    /// Packs that generations have run, each with the first generation of it; the latest few.
    #[serde(default)]
    pub codes: Vec<(Generation, String)>,
    /// Hash of the present launch.
    pub launch: Option<LaunchHash>,
    /// Names of the hosts on which something may be left, once the run is over.
    pub unverified: Vec<String>,
    /// Names of hosts that disagree with the others about the run.
    pub differing: Vec<String>,
    /// Found running rather than launched.
    pub adopted: bool,
    /// When the next generation begins, while the policy waits.
    pub restart_at: Option<Timestamp>,
    /// Restarts by policy so far.
    pub restarts: u32,
    /// Why the latest restart was refused.
    pub refused: Option<String>,
    /// Another console has ended the run since this one attached.
    #[serde(default)]
    pub stopped_elsewhere: bool,
    /// Names of the hosts that a requested restart waits for. Nothing is stopped before they respond.
    #[serde(default)]
    pub restart_awaits: Vec<String>,
    /// Warnings from before it began; bounded.
    pub warnings: Vec<String>,
    /// The failure that ended the present (or latest) generation.
    pub first_failure: Option<FirstFailure>,
}

impl RunModel {
    /// Milliseconds since the launch, until the end.
    pub fn elapsed_ms(&self, now: Timestamp) -> Option<u64> {
        // A console that attached later gets the duration from the agents.
        let read =
            self.launched.zip(self.ended_time).filter(|_| self.adopted && self.state == RunState::Over);
        if let Some((launched, ended)) = read {
            return Some(((ended - launched).max(0.0) * 1000.0) as u64);
        }
        self.started.map(|started| self.head_start_ms + self.ended.unwrap_or(now).since(started))
    }
}

/// The stage of a run, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum RunState {
    /// Links are being opened.
    #[default]
    Connecting,
    /// A port is being reserved and launches are on their way.
    Launching,
    /// All ranks have been spawned.
    Running,
    /// A stop was ordered or a rank ended, and the others are on their way out.
    Draining,
    /// A new generation will follow.
    Restarting,
    /// Over; nothing is left, or the survivors are listed.
    Over,
}

/// A checkpoint, reported by a rank or found by an agent.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CheckpointModel {
    /// Path on the host that saved it.
    pub path: String,
    /// Global environment steps; 0: unknown.
    pub env_step: u64,
    pub train_iter: u64,
    /// Why it was written.
    pub reason: String,
    /// The generation that wrote it.
    #[serde(default)]
    pub generation: Generation,
    /// When it was complete, seconds since the epoch on the console's clock; 0: unknown.
    #[serde(default)]
    pub at: WallTime,
    /// How it is known.
    #[serde(default)]
    pub origin: CheckpointOrigin,
    /// Source of its steps, if no rank has reported them.
    #[serde(default)]
    pub step_from: Option<StepSource>,
    /// Size, of all files in it; `None`: unknown.
    #[serde(default)]
    pub bytes: Option<u64>,
    /// The host that saved it.
    #[serde(default)]
    pub node: NodeRank,
}

impl CheckpointModel {
    /// As lists of runs have it.
    pub fn saved(&self) -> SavedCheckpoint {
        let CheckpointModel { path, env_step, train_iter, reason, origin, bytes, .. } = self.clone();
        SavedCheckpoint { path, env_step, train_iter, reason, origin, bytes }
    }

    /// Its steps, if known.
    pub fn step(&self) -> Option<u64> {
        self.saved().step()
    }

    /// See [`SavedCheckpoint::remark`].
    pub fn remark(&self) -> String {
        self.saved().remark()
    }

    /// A file is this checkpoint, or a part of it.
    pub(crate) fn covers(&self, path: &str) -> bool {
        let below =
            |outer: &str, inner: &str| inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'));
        self.path == path || below(&self.path, path) || below(path, &self.path)
    }
}

/// Rank 0's evaluation at one moment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PolicyView {
    /// A screen shows it: agents send frames.
    pub watched: bool,
    /// When the frame was made, by the console's clock.
    pub at: Timestamp,
    /// Frames that newer ones replaced before they arrived, since a screen shows it.
    pub missed: u64,
    /// The newest one.
    pub frame: Option<Box<LiveFrame>>,
}

/// Latest comparison of weight fingerprints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FingerprintModel {
    pub train_iter: u64,
    /// Gradient updates so far.
    pub update: u64,
    /// All ranks had the same weights.
    pub equal: bool,
    /// How many comparisons so far.
    pub compared: u64,
}

/// A link between two hosts that `rankdeck check --measure` found slow, against the other links.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SlowLink {
    /// Names of the hosts.
    pub hosts: [String; 2],
    /// Bits per second.
    pub bps: f64,
    /// Bits per second of the usual link of these hosts.
    pub usual_bps: f64,
    /// The day of the measurement, for people.
    pub day: String,
}

/// Losses of information, shown when not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DataLoss {
    /// Gauges and log lines that agents dropped because the link was slow.
    pub by_agents: u64,
    /// Messages of kinds that are unknown to this build.
    pub unknown: u64,
    /// Log lines that fell out of rings here; their hosts have them all.
    pub log_lines: u64,
    /// Lines on event sockets that were not valid events.
    pub malformed: u64,
    /// Older records that agents no longer keep.
    pub omitted: u64,
    /// Records that were missed and requested again, or that an agent has lost.
    pub gaps: u64,
    /// Reporting iterations of which not all ranks' counters came.
    pub joins: u64,
    /// Lines of history, evaluations and checkpoints that fell out.
    pub history: u64,
    /// Charts that came after the table was full.
    pub charts: u64,
    /// Messages about ranks that are not on the host they came from.
    pub misplaced: u64,
    /// Texts and lists of agents that were longer than true ones are, and were cut.
    #[serde(default)]
    pub cut: u64,
    /// Histograms and pictures that were not passed on: too many, too large, or none.
    #[serde(default)]
    pub withheld: u64,
}

impl DataLoss {
    /// Messages lost. Gauges and lines that a slow link skipped ([`DataLoss::by_agents`]) were
    /// replaced by newer ones or are on their hosts, as are lines that left a ring here; a record that was
    /// missed is requested again.
    pub fn lost(&self) -> u64 {
        [self.unknown, self.malformed, self.misplaced, self.charts, self.cut]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

/// What is left of a rank, if its life does not show it: its agent reported no exit, or leftover processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftoverState {
    /// Its host has scanned and found processes of it.
    LeftOver,
    /// The run is over, and its host has not verified that no process is left.
    Unproved,
    /// The run is over, and its host has found nothing of it.
    Gone,
}

impl Model {
    /// Every host that is not `excluded` reports the same stage of the run: all of its ranks are started, or
    /// nothing is left of them.
    pub fn is_settled_without(&self, excluded: &[String]) -> bool {
        let counts =
            |node: NodeRank| self.hosts.get(node.index()).is_none_or(|host| !excluded.contains(&host.name));
        let mut ranks = self.ranks.iter().filter(|rank| counts(rank.node));
        match self.run.state {
            RunState::Over => true,
            // Hosts that do not respond may not have started theirs.
            RunState::Launching | RunState::Running => ranks.all(|rank| rank.life != RankLife::Pending),
            RunState::Draining => {
                ranks.all(|rank| self.hosts.get(rank.node.index()).is_some_and(HostModel::is_clear))
            }
            RunState::Connecting | RunState::Restarting => false,
        }
    }

    /// Names of the hosts with ranks in the present generation; of all hosts until its plan is known.
    pub fn member_names(&self) -> Vec<String> {
        let has_ranks =
            |host: &&HostModel| self.plan.as_ref().is_none_or(|plan| plan.has_ranks(host.node_rank));
        self.hosts.iter().filter(has_ranks).map(|host| host.name.clone()).collect()
    }

    /// Why no restart can be requested now; `None`: it can. `changes`: of the hosts or the plan, which is possible
    /// only while nothing is being stopped.
    pub fn restart_obstacle(&self, changes: bool) -> Option<&'static str> {
        match self.run.state {
            RunState::Connecting | RunState::Launching => Some("the run has not started yet"),
            RunState::Restarting if self.run.restart_at.is_some() => None,
            RunState::Restarting => Some("already restarting"),
            RunState::Draining if changes => Some("the run is shutting down"),
            RunState::Running | RunState::Draining | RunState::Over => None,
        }
    }

    /// Number of hosts whose agents have verified the stop. A host that was never asked is not among them.
    pub fn verified_hosts(&self) -> usize {
        self.hosts.iter().filter(|host| host.is_verified()).count()
    }

    /// Number of live ranks that have reached the rendezvous. A script without a page has not called
    /// `init_process_group`.
    pub fn arrived_ranks(&self) -> usize {
        let arrived = |rank: &&RankModel| {
            let page = rank.sample.as_ref().and_then(|sample| sample.page.as_ref());
            !matches!(rank.life, RankLife::Exited(_)) && page.is_some_and(|page| page.phase != Phase::Init)
        };
        self.ranks.iter().filter(arrived).count()
    }

    /// What is left of a rank, if its life does not show it.
    pub fn remains(&self, rank: &RankModel) -> Option<LeftoverState> {
        let host = self.hosts.get(rank.node.index())?;
        if host.stopped.iter().flatten().any(|survivor| survivor.rank == Some(rank.rank)) {
            return Some(LeftoverState::LeftOver);
        }
        if self.run.state != RunState::Over || matches!(rank.life, RankLife::Exited(_)) {
            return None;
        }
        if self.run.unverified.contains(&host.name) {
            return Some(LeftoverState::Unproved);
        }
        // A rank that was never started has not gone, either.
        (rank.life != RankLife::Pending).then_some(LeftoverState::Gone)
    }

    /// Every chart by name: series of the run and of its ranks, and histograms by their means.
    pub fn charts(&self) -> impl Iterator<Item = (&String, &Series)> {
        let histograms = self.histograms.iter().map(|(name, histogram)| (name, histogram.summary()));
        self.scalars.iter().chain(&self.spreads).chain(histograms)
    }

    /// The meanings of the program's names.
    pub fn meanings(&self) -> Meanings {
        let plan = self.plan.as_ref();
        plan.map(|plan| Meanings::new(&plan.experiment.metrics.names)).unwrap_or_default()
    }

    /// The series of the run with a meaning, the best one if there are several.
    pub fn series(&self, meaning: Meaning) -> Option<(&str, &Series)> {
        let names = self.scalars.iter().filter(|(_, series)| !series.points().is_empty());
        let name = self.meanings().best(meaning, names.map(|(name, _)| name.as_str()))?;
        Some((name, self.scalars.get(name)?))
    }

    /// The chart of this name.
    pub fn chart(&self, name: &str) -> Option<&Series> {
        let histogram = || self.histograms.get(name).map(HistogramSeries::summary);
        self.scalars.get(name).or_else(|| self.spreads.get(name)).or_else(histogram)
    }
}

/// Something that happened, on the axes of charts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ChartMark {
    /// Step and time.
    pub place: Place,
    /// What happened.
    pub kind: ChartMarkKind,
}

/// What a [`ChartMark`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChartMarkKind {
    /// A generation began after the first.
    Generation(Generation),
    /// A verdict.
    Verdict(VerdictKind, Severity),
    /// A checkpoint is complete.
    Checkpoint,
    /// Ranks were lost, or have joined again.
    Membership { members: u32, world: u32 },
}

/// One line of the events pane.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HistoryLine {
    /// Counts all lines, from 1.
    #[serde(default)]
    pub number: u64,
    /// When (console clock).
    pub at: Timestamp,
    /// Seconds since the epoch, as the source reported.
    pub time: f64,
    /// How good or bad the news is.
    pub tone: EventTone,
    /// One sentence.
    pub text: String,
    /// It comes again and again, as an evaluation does: the first to go when there are too many lines.
    #[serde(default)]
    pub routine: bool,
    /// What it is about.
    #[serde(default)]
    pub subject: Option<EventSubject>,
}

impl HistoryLine {
    /// A line about nothing that could be opened.
    pub fn new(number: u64, at: Timestamp, tone: EventTone, text: impl Into<String>) -> HistoryLine {
        HistoryLine { number, at, time: 0.0, tone, text: text.into(), routine: false, subject: None }
    }
}

/// What a line of the history is about, for who opens it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum EventSubject {
    /// A verdict as it was reported then, with its evidence.
    Verdict(Box<VerdictReport>),
    /// A checkpoint, by its path on rank 0's host.
    Checkpoint(String),
    Rank(Rank),
}

/// How good or bad the news of a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventTone {
    /// It goes as planned.
    Info,
    /// Good news.
    Good,
    /// Something that may need attention.
    Warn,
    /// Bad news.
    Bad,
}

/// What is known about one host.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct HostModel {
    /// Index in [`Model::hosts`].
    pub node_rank: NodeRank,
    /// Name in hosts.toml.
    pub name: String,
    /// State of the connection to its agent.
    pub link: LinkState,
    /// When the link last changed.
    pub link_since: Timestamp,
    /// What the link found.
    pub probe: Option<Probe>,
    /// The agent's pid and build, after `hello`.
    pub agent: Option<(u32, String)>,
    /// Wall clock of the agent minus ours, seconds.
    pub clock_offset_s: f64,
    /// [`HostModel::clock_offset_s`] is right within this, seconds: half the round trip that it was measured
    /// with.
    pub clock_bound_s: f64,
    /// When it was measured.
    pub clock_at: Timestamp,
    /// Why it has no ranks in this generation; `None` when it has some.
    pub excluded: Option<String>,
    /// Number of the last record applied.
    pub last_seq: u64,
    /// Its latest gauges.
    pub sample: Option<HostSample>,
    /// Use of its GPUs over time, percent, by index, newest last, bounded.
    #[serde(default)]
    pub gpu_history: BTreeMap<u32, VecDeque<f32>>,
    /// When anything last came from the agent.
    #[serde(rename = "heard")]
    pub last_message_at: Option<Timestamp>,
    /// Question for the user, while the link waits for the answer.
    pub prompt: Option<Prompt>,
    /// Processes of the run that are left: `None` until the agent has verified the stop of its latest
    /// generation.
    pub stopped: Option<Vec<Survivor>>,
    /// GPUs that are free again, from the same record.
    pub gpus_free: Vec<u32>,
    /// Folder of the run on this host, after `hello`.
    pub run_dir: String,
    /// Milliseconds to the agent and back, at the latest heartbeat.
    pub rtt_ms: Option<u64>,
    /// Names of variables of a console that the next ranks here would have without one; `None` until the
    /// agent has reported.
    #[serde(default)]
    pub holds: Option<Vec<String>>,
    /// State of the connection, for the reducer.
    pub machine: HostMachine,
}

impl HostModel {
    /// Orders reach the host.
    pub(crate) fn is_live(&self) -> bool {
        self.machine.is_live()
    }

    /// No process of the run is left on the host, whatever generation ran there last, as its agent verified.
    pub(crate) fn is_clear(&self) -> bool {
        let replays = self.is_live() && !self.caught_up() && self.machine.has_no_launch();
        self.machine.is_over() && !replays && self.stopped.as_ref().is_none_or(Vec::is_empty)
    }

    /// Its agent has verified that no process of its latest generation is left, or of any if it has none.
    pub fn is_verified(&self) -> bool {
        let latest = self.machine.generation.max(self.machine.launch_open);
        let stopped = self.machine.proved >= latest && self.stopped.as_ref().is_some_and(Vec::is_empty);
        stopped || self.machine.has_no_launch() && self.machine.searched
    }

    /// Why its link cannot work.
    pub(crate) fn link_error(&self) -> Option<String> {
        let closed = (self.link == LinkState::Closed).then(|| format!("{}: closed", self.name));
        closed.or_else(|| self.link.failure().map(HintedError::with_hint))
    }

    /// The host is live, and everything that had happened before is applied.
    pub(crate) fn caught_up(&self) -> bool {
        matches!(self.machine.stage, HostStage::Live { target } if self.last_seq >= target)
    }

    /// Its agent has answered, and is still sending what had happened before.
    pub fn is_replaying(&self) -> bool {
        matches!(self.machine.stage, HostStage::Greeted { .. }) || self.is_live() && !self.caught_up()
    }

    /// A host of which nothing is known but its place and name.
    pub fn new(node_rank: NodeRank, name: impl Into<String>) -> HostModel {
        HostModel { node_rank, name: name.into(), ..HostModel::default() }
    }
}

/// Rank 0's latest all-reduced totals. [`TrainingProgress`] follows when every rank has reported its own counters,
/// which may never happen: a host may be out of reach.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LatestTotals {
    /// Sums over all ranks.
    pub counters: Counters,
    /// The generation that made them.
    #[serde(default)]
    pub generation: Generation,
    /// Global steps per second of wall time, smoothed; `None` before they are measured.
    pub steps_per_s: Option<f64>,
    /// When they came.
    pub at: Timestamp,
    /// How old they were by then, milliseconds: of a run that was found, they are read from records.
    #[serde(default)]
    pub age_ms: u64,
    /// Usual time between two reports, milliseconds: the longest of late.
    pub gap_ms: u64,
}

impl LatestTotals {
    /// The next ones; those of a restarted generation do not measure the time between two.
    pub(crate) fn follow(
        before: Option<&LatestTotals>,
        (generation, counters): (Generation, Counters),
        steps_per_s: Option<f64>,
        at: Timestamp,
        age_ms: u64,
    ) -> Self {
        let gap_ms = before
            .filter(|before| {
                before.generation == generation && counters.train_iter > before.counters.train_iter
            })
            .map_or(0, |before| before.since(at).saturating_sub(age_ms).max(before.gap_ms / 8 * 7));
        LatestTotals { counters, generation, steps_per_s, at, age_ms, gap_ms }
    }

    /// Milliseconds from when the ranks reported them to `now`.
    pub fn since(&self, now: Timestamp) -> u64 {
        now.since(self.at).saturating_add(self.age_ms)
    }
}

/// All-reduced totals next to the ranks' own counters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainingProgress {
    /// Sums over all ranks, all-reduced by them.
    pub totals: Counters,
    /// Sum of the ranks' own counters of the same iteration.
    pub sum: Counters,
    /// Both agree exactly (integers).
    pub consistent: bool,
    /// The ranks all-reduced the totals; otherwise they are the sum.
    pub reduced: bool,
    /// The generation that made them.
    #[serde(default)]
    pub generation: Generation,
    /// Global steps per second of wall time, smoothed; `None` before they are measured.
    pub steps_per_s: Option<f64>,
    /// Mean return of the training episodes of the last reports.
    pub return_mean: Option<f64>,
    /// Seconds to the goal.
    pub eta_s: Option<f64>,
    /// When it came.
    pub at: Timestamp,
    /// How old it was by then, milliseconds.
    #[serde(default)]
    pub age_ms: u64,
    /// Per rank, same iteration.
    pub per_rank: Vec<RankProgress>,
}

impl TrainingProgress {
    /// Milliseconds from when the ranks reported it to `now`.
    pub fn since(&self, now: Timestamp) -> u64 {
        now.since(self.at).saturating_add(self.age_ms)
    }
}

/// Latest values of a program's own output or event files: one rank's, not reduced over the ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OwnMetrics {
    /// The rank whose output it is from.
    pub rank: Rank,
    /// `stdout` or `tensorboard`.
    pub source: String,
    /// The generation that reported them.
    #[serde(default)]
    pub generation: Generation,
    /// Environment steps, if it reports them.
    pub env_step: Option<u64>,
    /// Steps per second, as it reports; those of a program that reports steps only are measured.
    pub steps_per_s: Option<f64>,
    /// Mean return of its latest episodes.
    pub return_mean: Option<f64>,
    /// Records with values so far.
    pub records: u64,
    /// Place of the latest values: steps, or what the program counts instead, else their number.
    #[serde(default)]
    pub x: f64,
    /// How far it is, by its progress bar or a counter with an end.
    #[serde(default)]
    pub progress: Option<OwnProgress>,
    /// When the latest came.
    pub at: Timestamp,
    /// How old it was by then, milliseconds.
    #[serde(default)]
    pub age_ms: u64,
}

/// Progress as a program shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OwnProgress {
    pub shown: ShownProgress,
    /// When it came.
    pub at: Timestamp,
    /// How old it was by then, milliseconds.
    #[serde(default)]
    pub age_ms: u64,
}

impl OwnProgress {
    /// Milliseconds from when the program showed it to `now`.
    pub fn since(&self, now: Timestamp) -> u64 {
        now.since(self.at).saturating_add(self.age_ms)
    }

    /// Seconds to the end.
    pub fn eta_s(&self, now: Timestamp) -> Option<f64> {
        self.shown.eta_after(self.since(now) as f64 / 1000.0)
    }
}

impl OwnMetrics {
    /// Milliseconds from when the program reported them to `now`.
    pub fn since(&self, now: Timestamp) -> u64 {
        now.since(self.at).saturating_add(self.age_ms)
    }
}

/// What is known about one rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RankModel {
    /// Index in [`Model::ranks`].
    pub rank: Rank,
    /// Index of its host.
    pub node: NodeRank,
    /// Index on its host.
    pub local_rank: u32,
    /// Name of its host.
    pub host: String,
    /// Its planned GPU on that host.
    pub gpu: Option<u32>,
    /// How far its life has come.
    pub life: RankLife,
    /// `cpu`, `cuda:0`, as it reported when it joined.
    pub device: String,
    /// Process id on its host.
    pub pid: Option<u32>,
    /// Its latest gauges.
    pub sample: Option<RankSample>,
    /// When those arrived.
    pub sampled: Option<Timestamp>,
    /// Own environment steps per second, smoothed; `None` before they are measured.
    pub steps_per_s: Option<f64>,
    /// Its own counters of the latest iteration that it has reported.
    #[serde(default)]
    pub own: Option<Counters>,
    /// Last error it reported before it ended.
    pub error: Option<(String, String)>,
    /// What kind of failure that was, as it reported.
    #[serde(default)]
    pub failure: Option<FailureKind>,
    /// The exception that it reported as its end.
    pub exception: Option<Exception>,
    /// An exception ended its main program, whatever exit code follows.
    #[serde(default)]
    pub raised: bool,
    /// Its main program has returned: what follows is the exit of its interpreter.
    #[serde(default)]
    pub returned: bool,
    /// The ranks that it has started itself, of a process group of their own, in their order.
    #[serde(default)]
    pub inner: Vec<InnerRank>,
    /// How it ended.
    #[serde(default)]
    pub end: Option<RankEnd>,
    /// The others continue without it, or are forming a group without it.
    #[serde(default)]
    pub lost: bool,
    /// The latest signal that a console had sent to it in this generation.
    #[serde(default)]
    pub signalled: Option<SentSignal>,
    /// Its latest inspection.
    #[serde(default)]
    #[serde(rename = "look")]
    pub inspection: Option<Box<RankInspection>>,
    /// The end of its log.
    pub log: LogRing,
    /// CPU use over time, percent, for the sparkline.
    #[serde(with = "crate::compact::floats")]
    pub cpu_history: VecDeque<f32>,
    /// GPU use over time, percent, for the sparkline.
    #[serde(with = "crate::compact::floats")]
    pub gpu_history: VecDeque<f32>,
    /// The samples of this generation, as the watch remembers them.
    #[serde(rename = "track")]
    pub watch_history: RankHistory,
    /// Smooths [`RankModel::steps_per_s`]: from its status page, on the agent's monotonic clock; from its counters,
    /// on the agent's wall clock, if they are read from records or it has no page of its own.
    pub rate: SmoothedRate,
}

/// Most ranks of its own that are kept of a rank.
const INNER_RANKS: usize = 64;

impl RankModel {
    /// A planned rank of which nothing is known yet.
    pub fn pending(planned: &PlannedRank, host: &str) -> RankModel {
        RankModel {
            rank: planned.rank,
            node: planned.node_rank,
            local_rank: planned.local_rank.0,
            host: host.into(),
            gpu: planned.gpu,
            life: RankLife::Pending,
            device: String::new(),
            pid: None,
            sample: None,
            sampled: None,
            steps_per_s: None,
            own: None,
            error: None,
            failure: None,
            exception: None,
            raised: false,
            returned: false,
            inner: Vec::new(),
            end: None,
            lost: false,
            signalled: None,
            inspection: None,
            log: LogRing::default(),
            cpu_history: VecDeque::new(),
            gpu_history: VecDeque::new(),
            watch_history: RankHistory::default(),
            rate: SmoothedRate::default(),
        }
    }

    /// Takes one of the ranks that it has started itself; a later one replaces that of the same number. Returns
    /// whether the number is new.
    pub(crate) fn add_inner(&mut self, inner: InnerRank) -> bool {
        let is_full = self.inner.len() >= INNER_RANKS;
        let known = self.inner.iter_mut().find(|known| known.rank == inner.rank);
        let is_new = known.is_none();
        match known {
            Some(known) => *known = inner,
            None if !is_full => self.inner.push(inner),
            None => return false,
        }
        self.inner.sort_by_key(|inner| inner.rank);
        is_new
    }

    /// `4 ranks in its own group: world 4, backend gloo`; `None` without any.
    pub fn inner_ranks(&self) -> Option<String> {
        let first = self.inner.first()?;
        let world = first.world_size.map_or("unknown".to_owned(), |size| size.to_string());
        let backend =
            Some(&first.backend).filter(|backend| !backend.is_empty()).map_or("default", String::as_str);
        let count = words::plural(self.inner.len(), "rank");
        Some(format!("{count} in its own group: world {world}, backend {}", words::clean(backend)))
    }

    /// Its process ended by a failure; what a stop causes does not count.
    pub fn failed(&self) -> bool {
        match (&self.life, self.end) {
            (RankLife::Exited(_), Some(end)) => end.is_failure(),
            (RankLife::Exited(exit), None) => !self.ended_well() && !exit.is_stop_signal(),
            (RankLife::Pending | RankLife::Spawned | RankLife::Joined | RankLife::Finished, _) => false,
        }
    }

    /// Its process ended, and its work is done.
    pub fn ended_well(&self) -> bool {
        match (&self.life, self.end) {
            (RankLife::Exited(_), Some(end)) => end.is_good(),
            (RankLife::Exited(exit), None) => exit.is_success() && !self.raised,
            (RankLife::Pending | RankLife::Spawned | RankLife::Joined | RankLife::Finished, _) => false,
        }
    }
}

/// An inspection of a rank.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RankInspection {
    /// When the reply came.
    pub at: Timestamp,
    /// What it shows, as in the evidence of a verdict.
    pub side: RankEvidence,
    /// NCCL's report about the run, then what could not be read, and why; bounded.
    pub notes: Vec<String>,
}

/// The life of a rank in one generation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub enum RankLife {
    /// Not spawned in this generation.
    #[default]
    Pending,
    /// Its process exists.
    Spawned,
    /// It is in the process group.
    Joined,
    /// Its loop has ended; the process is about to leave.
    Finished,
    /// It is gone.
    Exited(Exit),
}
