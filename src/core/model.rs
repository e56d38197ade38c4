//! Everything known about the run: facts only. Built by `update`, read by the screen and by headless output.
//!
//! What only the reducer needs of a host or a rank is in the same element ([`HostModel::machine`],
//! [`RankModel::track`], [`RankModel::rate`]), and opaque outside this crate.
//!
//! Owner: [`crate::Core`]. Invariants:
//! - Nothing here is a guess about the present: every gauge carries when it arrived.
//! - CORE-2: every buffer is bounded; what was dropped is counted in [`Drops`].
//! - CORE-3: records are applied exactly once, in order, per host ([`HostModel::last_seq`]); duplicates
//!   change nothing.

mod history;
mod host;
mod log_ring;
mod media;
mod progress;
mod rank;
mod reach;
mod search;

pub use history::{HistoryLine, Mark, MarkKind, Subject, Tone};
pub use host::HostModel;
pub use log_ring::{Arrival, HeldLine, LOG_LINES, LogPlace, LogRing, RECORDED_LINES, Room};
pub use media::{Column, Gallery, HistogramSeries, NAMES as MEDIA_NAMES, Picture};
pub use progress::{LatestTotals, OwnMetrics, Progress};
pub use rank::{Look, RankLife, RankModel};
pub use reach::{ReachQuestion, Reaches, SentSignal};
pub(crate) use search::theirs;
pub use search::{Finder, Search, SearchState, SearchedHost};

use crate::report::{FirstFailure, Outcome, VerdictReport};
use crate::series::Series;
use rankdeck_proto::message::{Evaluation, LaunchHash, StopMode};
use rankdeck_proto::show::LiveFrame;
use rankdeck_types::ids::{Generation, RunId, Timestamp, WallTime};
use rankdeck_types::plan::Plan;
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
    pub progress: Option<Progress>,
    /// What a program that does not know rankdeck prints about itself.
    pub own: Option<OwnMetrics>,
    /// Evaluations, oldest first.
    pub evals: VecDeque<Evaluation>,
    /// Checkpoints, oldest first.
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
    pub marks: VecDeque<Mark>,
    /// Present verdicts, worst first.
    pub verdicts: Vec<VerdictReport>,
    /// Rank 0's evaluation as it is shown to who looks. In no record.
    #[serde(skip)]
    pub policy: PolicyView,
    /// What was looked for in the hosts' logs. In no record.
    #[serde(skip)]
    pub finder: Finder,
    /// What was asked of processes. In no record (REACH-2).
    #[serde(skip)]
    pub reaches: Reaches,
    /// Weight fingerprints: latest comparison.
    pub fingerprint: Option<FingerprintModel>,
    /// What happened, for the events pane, oldest first, bounded.
    pub history: VecDeque<HistoryLine>,
    /// Losses of information.
    pub drops: Drops,
    /// Grows with every change that a screen could show.
    pub revision: u64,
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
    /// A stop that was asked for.
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
    /// When its first generation began, by the clock of the agent that says the earliest.
    pub launched: Option<WallTime>,
    /// How it ended, once that is proved.
    pub outcome: Option<Outcome>,
    /// Exit code that the console will end with.
    pub exit_code: Option<u8>,
    /// One sentence about the end.
    pub reason: String,
    /// Global step goal, when there is one.
    pub total_steps: Option<u64>,
    /// `ADDRESS:PORT` of rank 0's store.
    pub master: String,
    /// Hash of the present launch.
    pub launch: Option<LaunchHash>,
    /// Names of the hosts on which something may be left, once the run is over.
    pub unverified: Vec<String>,
    /// Names of hosts that tell something else about the run than the others do.
    pub differing: Vec<String>,
    /// Found running rather than launched.
    pub adopted: bool,
    /// When the next generation begins, while the policy waits.
    pub restart_at: Option<Timestamp>,
    /// Restarts by policy so far.
    pub restarts: u32,
    /// Why the latest restart was refused.
    pub refused: Option<String>,
    /// Warnings from before it began; bounded.
    pub warnings: Vec<String>,
    /// The failure that ended the present (or latest) generation.
    pub first_failure: Option<FirstFailure>,
}

impl RunModel {
    /// Milliseconds since the launch, until the end.
    pub fn elapsed_ms(&self, now: Timestamp) -> Option<u64> {
        // A console that came later has not seen how long it took: the agents say so.
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

/// A checkpoint on rank 0's host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckpointModel {
    /// Path on rank 0's host.
    pub path: String,
    /// Global environment steps.
    pub env_step: u64,
    pub train_iter: u64,
    /// Why it was written.
    pub reason: String,
}

/// Rank 0's evaluation at one moment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PolicyView {
    /// Somebody looks at it: agents are asked for frames.
    pub watched: bool,
    /// When the frame was made, by the console's clock.
    pub at: Timestamp,
    /// Frames that never came here since somebody looks, because newer ones replaced them.
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

/// Losses of information, shown when not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Drops {
    /// Gauges and log lines that agents dropped because the link was slow.
    pub by_agents: u64,
    /// Messages of kinds that this build does not know.
    pub unknown: u64,
    /// Log lines that fell out of rings here; their hosts have them all.
    pub log_lines: u64,
    /// Lines on event sockets that were not valid events.
    pub malformed: u64,
    /// Older records that agents no longer keep.
    pub omitted: u64,
    /// Records that were missed and asked for again, or that an agent has lost.
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

impl Drops {
    /// What nobody can read any more. Gauges and lines that a slow link skipped ([`Drops::by_agents`]) were
    /// replaced by newer ones or are on their hosts, as are lines that left a ring here; a record that was
    /// missed is asked for again.
    pub fn lost(&self) -> u64 {
        [self.unknown, self.malformed, self.misplaced, self.charts, self.cut]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

/// What is left of a rank, where its life does not tell: its agent told no end of it, or told processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remains {
    /// Its host has looked and found processes of it.
    LeftOver,
    /// The run is over, and its host has not said that nothing is left.
    Unproved,
    /// The run is over, and its host has found nothing of it.
    Gone,
}

impl Model {
    /// What is left of a rank as far as its life does not tell it.
    pub fn remains(&self, rank: &RankModel) -> Option<Remains> {
        let host = self.hosts.get(rank.node.index())?;
        if host.stopped.iter().flatten().any(|survivor| survivor.rank == Some(rank.rank)) {
            return Some(Remains::LeftOver);
        }
        if self.run.state != RunState::Over || matches!(rank.life, RankLife::Exited(_)) {
            return None;
        }
        if self.run.unverified.contains(&host.name) {
            return Some(Remains::Unproved);
        }
        // A rank that was never started has not gone, either.
        (rank.life != RankLife::Pending).then_some(Remains::Gone)
    }

    /// Every chart by name: what the run says, what its ranks do, and its histograms by their means.
    pub fn charts(&self) -> impl Iterator<Item = (&String, &Series)> {
        let histograms = self.histograms.iter().map(|(name, histogram)| (name, histogram.summary()));
        self.scalars.iter().chain(&self.spreads).chain(histograms)
    }

    /// The chart of this name.
    pub fn chart(&self, name: &str) -> Option<&Series> {
        let histogram = || self.histograms.get(name).map(HistogramSeries::summary);
        self.scalars.get(name).or_else(|| self.spreads.get(name)).or_else(histogram)
    }
}
