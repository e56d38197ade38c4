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

use crate::host::HostMachine;
use crate::join::Rate;
use crate::report::{FirstFailure, Outcome, RankProgress, VerdictReport};
use crate::series::Series;
use crate::watch::Track;
use rankdeck_proto::message::{Counters, Evaluation, Exit, HostSample, RankSample, StopMode, Survivor};
use rankdeck_types::ids::{Generation, NodeRank, Rank, RunId, Timestamp};
use rankdeck_types::link_state::{LinkState, Prompt};
use rankdeck_types::plan::{Plan, PlannedRank};
use rankdeck_types::probe::Probe;
use std::collections::{BTreeMap, VecDeque};

/// Everything known about the run.
#[derive(Debug, Clone, Default)]
pub struct Model {
    /// The plan, once known (at once for `run`, after the first snapshot for `attach`).
    pub plan: Option<Plan>,
    /// Life of the run.
    pub run: RunModel,
    /// Hosts in node_rank order.
    pub hosts: Vec<HostModel>,
    /// Ranks in rank order.
    pub ranks: Vec<RankModel>,
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
    /// Present verdicts, worst first.
    pub verdicts: Vec<VerdictReport>,
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
#[derive(Debug, Clone, Default)]
pub struct RunModel {
    /// Name and time of the launch.
    pub id: Option<RunId>,
    /// The present generation.
    pub generation: Generation,
    /// Its stage.
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

/// The stage of a run, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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

/// What is known about one host.
#[derive(Debug, Clone, Default)]
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
    /// When anything last came from the agent.
    pub heard: Option<Timestamp>,
    /// Question for the user, while the link waits for the answer.
    pub prompt: Option<Prompt>,
    /// Processes of this generation that are left: `None` until the agent has verified its stop.
    pub stopped: Option<Vec<Survivor>>,
    /// GPUs that are free again, from the same record.
    pub gpus_free: Vec<u32>,
    /// Folder of the run on this host, after `hello`.
    pub run_dir: String,
    /// Milliseconds to the agent and back, at the latest heartbeat.
    pub rtt_ms: Option<u64>,
    /// State of the connection, for the reducer.
    pub machine: HostMachine,
}

/// What is known about one rank.
#[derive(Debug, Clone)]
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
    /// `cpu`, `cuda:0`, as it said when it joined.
    pub device: String,
    /// Process id on its host.
    pub pid: Option<u32>,
    /// Its latest gauges.
    pub sample: Option<RankSample>,
    /// When those arrived.
    pub sampled: Option<Timestamp>,
    /// Own environment steps per second, smoothed.
    pub steps_per_s: f64,
    /// Own counters of the latest reporting iterations, newest last, bounded; joined with totals by
    /// `train_iter`.
    pub counters: VecDeque<Counters>,
    /// Last error it reported before it ended.
    pub error: Option<(String, String)>,
    /// The end of its log.
    pub log: LogRing,
    /// CPU use over time, percent, for the sparkline.
    pub cpu_history: VecDeque<f32>,
    /// GPU use over time, percent, for the sparkline.
    pub gpu_history: VecDeque<f32>,
    /// What the watch remembers of this generation's samples.
    pub track: Track,
    /// Smooths [`RankModel::steps_per_s`]; its times are those of the agent's monotonic clock.
    pub rate: Rate,
}

/// The life of a rank in one generation.
#[derive(Debug, Clone, PartialEq, Default)]
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

/// All-reduced totals beside the ranks' own counters.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Sums over all ranks, all-reduced by them.
    pub totals: Counters,
    /// Sum of the ranks' own counters of the same iteration.
    pub sum: Counters,
    /// Both agree exactly (integers).
    pub consistent: bool,
    /// Global steps per second of wall time, smoothed.
    pub steps_per_s: f64,
    /// Mean return of the training episodes of the last reports.
    pub return_mean: Option<f64>,
    /// Seconds to the goal.
    pub eta_s: Option<f64>,
    /// When it came.
    pub at: Timestamp,
    /// Per rank, same iteration.
    pub per_rank: Vec<RankProgress>,
}

/// Latest values of a program's own output or event files: one rank's, not reduced over the ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct OwnMetrics {
    /// The rank whose output it is from.
    pub rank: Rank,
    /// `stdout` or `tensorboard`.
    pub source: String,
    /// Environment steps, as far as it says.
    pub env_step: Option<u64>,
    /// Steps per second, as it says.
    pub steps_per_s: Option<f64>,
    /// Mean return of its latest episodes.
    pub return_mean: Option<f64>,
    /// Records so far.
    pub records: u64,
    /// When the latest came.
    pub at: Timestamp,
}

/// A checkpoint on rank 0's host.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointModel {
    /// Path on rank 0's host.
    pub path: String,
    /// Global environment steps.
    pub env_step: u64,
    /// Training iteration.
    pub train_iter: u64,
    /// Why it was written.
    pub reason: String,
}

/// Latest comparison of weight fingerprints.
#[derive(Debug, Clone, PartialEq)]
pub struct FingerprintModel {
    /// Training iteration.
    pub train_iter: u64,
    /// Gradient updates so far.
    pub update: u64,
    /// All ranks had the same weights.
    pub equal: bool,
    /// How many comparisons so far.
    pub compared: u64,
}

/// One line of the events pane.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryLine {
    /// When (console clock).
    pub at: Timestamp,
    /// Seconds since the epoch, as the source said.
    pub time: f64,
    /// How good or bad the news is.
    pub tone: Tone,
    /// One sentence.
    pub text: String,
}

/// How good or bad the news of a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// It goes as planned.
    Info,
    /// Good news.
    Good,
    /// Something that may need attention.
    Warn,
    /// Bad news.
    Bad,
}

/// A bounded ring of log lines.
#[derive(Debug, Clone, Default)]
pub struct LogRing {
    /// Lines, oldest first, with the global order in which they arrived (for the merged view).
    pub lines: VecDeque<(u64, String)>,
    /// Number, in the rank's file, of the line after the newest one held.
    pub next: u64,
    /// Lines that fell out of the ring or were never sent.
    pub dropped: u64,
}

/// Losses of information, shown when not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drops {
    /// Gauges and log lines that agents dropped because the link was slow.
    pub by_agents: u64,
    /// Messages of kinds that this build does not know.
    pub unknown: u64,
    /// Log lines that fell out of rings here.
    pub log_lines: u64,
    /// Lines on event sockets that were not valid events.
    pub malformed: u64,
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
}

/// Most log lines kept per rank.
pub const LOG_LINES: usize = 2000;

impl LogRing {
    /// Adds those of `lines` that are new; the first is number `first` in the rank's file. Returns the new
    /// ones, and how many old ones fell out. `order` numbers lines over all ranks.
    pub fn extend(&mut self, first: u64, lines: Vec<String>, order: &mut u64) -> (Vec<String>, u64) {
        let known = usize::try_from(self.next.saturating_sub(first)).unwrap_or(usize::MAX);
        let end = first.saturating_add(lines.len() as u64);
        let fresh: Vec<String> = lines.into_iter().skip(known).collect();
        if fresh.is_empty() {
            return (fresh, 0);
        }
        self.dropped += first.saturating_sub(self.next);
        self.next = end;
        for line in &fresh {
            *order += 1;
            self.lines.push_back((*order, line.clone()));
        }
        let over = self.lines.len().saturating_sub(LOG_LINES);
        self.lines.drain(..over);
        self.dropped += over as u64;
        (fresh, over as u64)
    }
}

impl HostModel {
    /// A host of which nothing is known but its place and name.
    pub fn new(node_rank: NodeRank, name: impl Into<String>) -> HostModel {
        HostModel { node_rank, name: name.into(), ..HostModel::default() }
    }
}

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
            steps_per_s: 0.0,
            counters: VecDeque::new(),
            error: None,
            log: LogRing::default(),
            cpu_history: VecDeque::new(),
            gpu_history: VecDeque::new(),
            track: Track::default(),
            rate: Rate::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(count: usize) -> Vec<String> {
        (0..count).map(|i| i.to_string()).collect()
    }

    #[test]
    fn log_lines_come_once_and_holes_are_counted() {
        let (mut ring, mut order) = (LogRing::default(), 0);
        assert_eq!(ring.extend(0, lines(3), &mut order).0.len(), 3);
        assert_eq!(ring.extend(1, lines(4), &mut order).0, ["2", "3"]);
        assert_eq!(ring.extend(0, lines(5), &mut order).0, Vec::<String>::new());
        assert_eq!(ring.extend(9, lines(1), &mut order).0.len(), 1);
        assert_eq!((ring.next, ring.dropped, order), (10, 4, 6));
    }

    #[test]
    fn core_2_the_ring_is_bounded_and_counts() {
        let (mut ring, mut order) = (LogRing::default(), 0);
        let (_, over) = ring.extend(0, lines(LOG_LINES + 10), &mut order);
        assert_eq!((ring.lines.len(), over, ring.dropped), (LOG_LINES, 10, 10));
        assert!(
            ring.extend(u64::MAX, lines(2), &mut order).0.len() <= 2,
            "numbers from outside never overflow"
        );
    }
}
