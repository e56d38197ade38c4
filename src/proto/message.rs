//! What a console and an agent say to each other, and what a rank says to its agent.
//!
//! Owner: the wire. Three vocabularies:
//! - [`ConsoleMessage`]: console to agent, a handful of orders.
//! - [`AgentMessage`]: agent to console. [`Record`]s are durable: written to the agent's spool before they are sent,
//!   numbered without gaps, delivered at least once. Samples and log lines are gauges: they may be coalesced or
//!   dropped, and every drop is counted in [`HostSample::dropped`].
//! - [`RankEvent`]: JSON Lines on the agent's event socket, one object per line, from the rank itself. Any program may send them.
//!
//! Compatibility: fields are only ever added, with `#[serde(default)]`; kinds that a reader does not know decode to `Unknown`.

use crate::inspection::{Inspection, Pressure};
use rankdeck_types::ids::{Generation, LocalRank, NodeRank, Rank, RunId, WallTime};
use rankdeck_types::plan::Plan;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of this vocabulary; `attach` and `hello` carry it, and a mismatch ends the connection with a clear error.
pub const PROTOCOL: u32 = 1;

/// Orders from a console to an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ConsoleMessage {
    /// First message of every connection. The agent answers `hello`, `snapshot`, then every record after `after_seq`.
    Attach {
        /// [`PROTOCOL`] of the console.
        protocol: u32,
        /// Build of the console, for the agent's log.
        build: String,
        /// Number of the last record that this console has applied, 0 for none.
        after_seq: u64,
        /// How many lines of each rank's log to send at once.
        log_tail: u32,
    },
    /// Asks for a free TCP port on this host; answered with [`AgentMessage::PortReserved`].
    ReservePort {
        /// Echoed in the answer.
        request: u64,
    },
    /// Asks for a close look at some of this host's ranks; answered with [`AgentMessage::Inspected`] within two seconds, whatever state they are in.
    Inspect {
        /// Echoed in the answer.
        request: u64,
        /// Which; ranks of other hosts are left out of the answer. Empty for all of this host.
        ranks: Vec<Rank>,
    },
    /// Starts this host's share of a generation.
    Launch {
        /// Everything that the agent needs.
        spec: Box<LaunchSpec>,
    },
    /// Stops this host's ranks; answered by a `Stopped` record once nothing is left or the survivors are known.
    Stop {
        /// How hard.
        mode: StopMode,
        /// Milliseconds between SIGTERM and SIGKILL in [`StopMode::Terminate`]; bound of [`StopMode::Clean`].
        grace_ms: u64,
    },
    /// Heartbeat; the agent answers `pong`.
    Ping {
        /// Console's clock, echoed.
        sent_ms: u64,
    },
    /// The console leaves on purpose and the run goes on, whatever `on_disconnect` says.
    Detach,
    /// The run is over and this console has seen it all: the agent exits when nobody else is attached.
    Close,
    /// A kind this build does not know.
    #[serde(other)]
    Unknown,
}

/// How hard to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopMode {
    /// SIGTERM to the ranks themselves: they agree on an iteration, write a checkpoint and leave; then as `Kill`.
    Clean,
    /// SIGTERM to the ranks' sessions, the grace, then `Kill`.
    Terminate,
    /// SIGKILL to everything of this run on the host.
    Kill,
}

/// One host's share of one generation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaunchSpec {
    /// Which life of the run.
    pub generation: Generation,
    /// Which host of the plan this agent is.
    pub node_rank: NodeRank,
    /// Where rank 0's store listens.
    pub master_addr: String,
    /// Port of rank 0's store.
    pub master_port: u16,
    /// Checkpoint to start from; `None` starts afresh. A path on the host, or `latest`.
    #[serde(default)]
    pub resume: Option<String>,
    /// The whole plan: any one agent can tell a console everything about the run.
    pub plan: Plan,
}

/// What an agent tells a console.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AgentMessage {
    /// First message of every connection.
    Hello {
        /// [`PROTOCOL`] of the agent.
        protocol: u32,
        /// Build of the agent: crate version and content hash.
        build: String,
        /// Name of this host in `hosts.toml`.
        host: String,
        /// Index of this host.
        node_rank: NodeRank,
        /// The run that this agent serves.
        run: RunId,
        /// The agent's process id.
        pid: u32,
        /// The agent's wall clock, for showing skew.
        wall_time: WallTime,
        /// Folder of this run on this host.
        run_dir: String,
    },
    /// State at the moment of attaching.
    Snapshot {
        /// Latest launch, `None` before the first.
        spec: Option<Box<LaunchSpec>>,
        /// This host's ranks of that generation.
        ranks: Vec<RankSnapshot>,
        /// Number of the newest record; those after `after_seq` follow.
        last_seq: u64,
    },
    /// Something that must not be lost.
    Record(Record),
    /// Gauges of this host, at least once a second; also the agent's heartbeat.
    Sample(Box<HostSample>),
    /// Log lines of one rank, oldest first.
    Log {
        /// Whose.
        rank: Rank,
        /// Number of the first line in the rank's log file of this generation, from 0.
        first: u64,
        /// The lines, without newline, each cut at 4 KiB.
        lines: Vec<String>,
    },
    /// Answer to [`ConsoleMessage::ReservePort`].
    PortReserved {
        /// Echo.
        request: u64,
        /// A port that was free a moment ago.
        port: u16,
    },
    /// Answer to [`ConsoleMessage::Inspect`].
    Inspected {
        /// Echo.
        request: u64,
        /// One per rank that was asked for and is planned on this host.
        inspections: Vec<Inspection>,
    },
    /// Answer to [`ConsoleMessage::Ping`].
    Pong {
        /// Echo.
        sent_ms: u64,
        /// The agent's wall clock, from which the console learns how far the two clocks are apart.
        #[serde(default)]
        wall_time: Option<WallTime>,
    },
    /// An order could not be carried out; nothing was started.
    Refused {
        /// What failed, on this host.
        error: String,
        /// The command or change that helps.
        hint: String,
    },
    /// The agent is about to close this connection.
    Bye {
        /// Why.
        reason: String,
    },
    /// A kind this build does not know.
    #[serde(other)]
    Unknown,
}

/// State of one rank when a console attaches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankSnapshot {
    /// Which.
    pub rank: Rank,
    /// Its process id on the host, `None` before it was spawned.
    pub pid: Option<u32>,
    /// How it ended, `None` while it runs.
    pub exit: Option<Exit>,
}

/// A durable, numbered event of one agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// 1, 2, 3, ... without gaps over the life of the run on this host, agent restarts included.
    pub seq: u64,
    /// When the agent wrote it, by its wall clock.
    pub time: WallTime,
    /// The generation it belongs to.
    pub generation: Generation,
    /// What happened.
    pub event: RecordEvent,
}

/// What a record says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum RecordEvent {
    /// A generation was accepted and its ranks are being spawned.
    Launched {
        /// The launch, so that the spool alone tells the whole story.
        spec: Box<LaunchSpec>,
    },
    /// A rank's process exists.
    RankSpawned {
        /// Which.
        rank: Rank,
        /// Its index on this host.
        local_rank: LocalRank,
        /// Its process id on this host.
        pid: u32,
    },
    /// A rank's process ended and was reaped.
    RankExited {
        /// Which.
        rank: Rank,
        /// Its process id.
        pid: u32,
        /// How.
        exit: Exit,
        /// The last lines of its log, oldest first, at most 20.
        last_lines: Vec<String>,
        /// The agent had been ordered to stop before.
        stopping: bool,
        /// Milliseconds from its end to this record: its last words are waited for.
        #[serde(default)]
        ago_ms: u64,
        /// Nobody saw it end: its agent had died, and the guard or the next agent ended what that one had started.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        with_agent: bool,
    },
    /// A stop was ordered.
    StopOrdered {
        /// How hard.
        mode: StopMode,
        /// By whom or what: `console`, `lease`, `signal`, `rank 3 failed`.
        by: String,
    },
    /// No process of this generation is left on this host, or these are.
    Stopped {
        /// Empty when the stop is proved.
        survivors: Vec<Survivor>,
        /// Indices of this run's GPUs that hold no process of the run any more.
        gpus_free: Vec<u32>,
        /// Milliseconds from the order (or the last exit) to the proof.
        took_ms: u64,
    },
    /// The rank said this on the event socket.
    Rank {
        /// Which rank.
        rank: Rank,
        /// What.
        said: RankEvent,
    },
    /// Values that a program of the user gave without knowing rankdeck: one rank's own, not reduced over the ranks.
    Metrics {
        /// Whose.
        rank: Rank,
        /// `stdout` or `tensorboard`.
        source: String,
        /// Its environment steps, as far as it says.
        env_step: Option<u64>,
        /// Name to value.
        values: BTreeMap<String, f64>,
        /// Values since the previous record that were not told, because newer ones of the same name followed at once.
        skipped: u64,
    },
    /// The agent itself has something to tell: spool trouble, a refused client, a fallback in use.
    Notice {
        /// One sentence.
        text: String,
    },
    /// A kind this build does not know.
    #[serde(other)]
    Unknown,
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum Exit {
    /// It returned this code.
    Code {
        /// 0 to 255.
        code: i32,
    },
    /// A signal ended it.
    Signal {
        /// Number of the signal.
        signal: i32,
        /// The kernel's out-of-memory killer sent it (the cgroup's `oom_kill` counter moved).
        out_of_memory: bool,
    },
    /// It could not be started.
    NotStarted {
        /// The system's error, with the program's path.
        error: String,
    },
}

/// A process of the run that is still there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survivor {
    /// Process id on the host.
    pub pid: u32,
    /// The rank whose tree it belonged to, when known.
    pub rank: Option<Rank>,
    /// State letter of `/proc/PID/stat`.
    pub state: char,
    /// Start of its command line.
    pub command: String,
}

/// What a rank says on the event socket; one JSON object per line. Sent with `{"kind": ...}` and the fields below.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RankEvent {
    /// First line of each connection: who speaks.
    Hello {
        /// The rank.
        rank: Rank,
        /// Its generation; an agent ignores others.
        generation: Generation,
    },
    /// The process group is up.
    Joined {
        /// Ranks in the group.
        world_size: u32,
        /// `gloo` or `nccl`, with the library's version.
        backend: String,
        /// `cpu`, `cuda:0`, ...
        device: String,
    },
    /// This rank's own counters at the end of iteration `train_iter`. Sent by every rank for the same iterations.
    Counters(Counters),
    /// The all-reduced counters of the same iteration. Sent by rank 0 only.
    Totals(Counters),
    /// Named values for charts (CleanRL's scalar names). Sent by rank 0 only.
    Scalars {
        /// Training iteration.
        train_iter: u64,
        /// Global environment steps.
        env_step: u64,
        /// Name to value.
        values: BTreeMap<String, f64>,
    },
    /// An evaluation ended. Sent by rank 0 only.
    Eval(Evaluation),
    /// A checkpoint is complete on disk.
    Checkpoint {
        /// Path on rank 0's host.
        path: String,
        /// Global environment steps in it.
        env_step: u64,
        /// Training iteration in it.
        train_iter: u64,
        /// `latest`, `best`, `stop`, ...
        reason: String,
    },
    /// Weight fingerprints of all ranks were compared. Sent by rank 0; also at once when they differ.
    Fingerprint {
        /// Training iteration.
        train_iter: u64,
        /// Gradient updates so far.
        update: u64,
        /// Every rank's fingerprint, in rank order, in hexadecimal.
        values: Vec<String>,
        /// All equal.
        equal: bool,
    },
    /// The rank is about to end because of this.
    Error {
        /// What failed.
        message: String,
        /// What helps; may be empty.
        #[serde(default)]
        hint: String,
        /// A mistake in the configuration (exit code 2) rather than a failure (1).
        #[serde(default)]
        usage: bool,
    },
    /// The training loop has ended; the process will exit with code 0.
    Finished {
        /// Why.
        reason: FinishReason,
    },
    /// A kind this build does not know.
    #[serde(other)]
    Unknown,
}

/// Why a training loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// Rank 0's evaluation reached the stop value.
    StopValue,
    /// `total_steps` or `--until` was reached.
    Budget,
    /// A signal asked all ranks to leave.
    Stopped,
}

/// Counters since the run began, resumed generations included. Integers are exact; `duration_s` is f64.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Training iteration these were taken at.
    pub train_iter: u64,
    /// Environment steps: one per accepted action, after frame skip; autoreset dummy steps excluded.
    pub env_step: u64,
    /// Transitions that training may use.
    pub samples: u64,
    /// Finished training episodes.
    pub episodes: u64,
    /// Seconds spent collecting.
    pub duration_s: f64,
    /// Optimiser updates.
    #[serde(default)]
    pub updates: u64,
    /// Sum, count, minimum and maximum of the returns of episodes finished since the last report.
    #[serde(default)]
    pub returns: Returns,
    /// Mean return of the last 100 training episodes over all ranks, of fewer when there are not yet as many; in totals only.
    #[serde(default)]
    pub return_last_100: Option<f64>,
}

/// Returns of finished episodes over an interval.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Returns {
    /// Sum.
    pub sum: f64,
    /// How many.
    pub count: u64,
    /// Smallest, 0 when there is none.
    pub min: f64,
    /// Largest, 0 when there is none.
    pub max: f64,
}

impl Returns {
    /// Of one episode.
    pub fn of(one: f64) -> Returns {
        Returns { sum: one, count: 1, min: one, max: one }
    }

    /// Of both intervals.
    pub fn plus(self, other: Returns) -> Returns {
        match (self.count, other.count) {
            (_, 0) => self,
            (0, _) => other,
            _ => Returns {
                sum: self.sum + other.sum,
                count: self.count.saturating_add(other.count),
                min: self.min.min(other.min),
                max: self.max.max(other.max),
            },
        }
    }
}

/// One evaluation by rank 0.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Evaluation {
    /// Global environment steps.
    pub env_step: u64,
    /// Training iteration.
    pub train_iter: u64,
    /// Episodes played.
    pub episodes: u32,
    /// Mean return.
    pub return_mean: f64,
    /// Standard deviation of the returns (population).
    pub return_std: f64,
    /// Smallest return.
    pub return_min: f64,
    /// Largest return.
    pub return_max: f64,
    /// Mean episode length.
    pub length_mean: f64,
    /// Seconds it took.
    pub duration_s: f64,
    /// The stop value was reached.
    pub stop: bool,
}

/// Gauges of one host at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HostSample {
    /// The agent's monotonic clock, ms.
    pub mono_ms: u64,
    /// The agent's wall clock.
    pub wall_time: WallTime,
    /// Generation that the ranks below belong to.
    pub generation: Generation,
    /// Busy share of all cores, percent 0..=100.
    pub cpu_percent: f32,
    /// Cores.
    pub cpu_count: u32,
    /// Memory in use, bytes.
    pub memory_used: u64,
    /// Memory in all, bytes.
    pub memory_total: u64,
    /// The kernel's 1-minute load.
    pub load1: f32,
    /// This host's ranks.
    pub ranks: Vec<RankSample>,
    /// This host's GPUs, empty where there are none.
    pub gpus: Vec<GpuSample>,
    /// Gauges and log lines that this connection has dropped so far. A sample that no connection has sent has none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped: u64,
    /// Lines on the event socket that were no valid event, so far.
    #[serde(default)]
    pub malformed: u64,
    /// Signals of the host as a whole that tell why a rank may be stuck or slow.
    #[serde(default)]
    pub signals: HostSignals,
}

/// Why the ranks of a host may be stuck or slow, as far as the host as a whole knows.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostSignals {
    /// Pressure-stall information; `None` on kernels without it.
    pub pressure: Option<Pressure>,
    /// The network interface that the group uses; `None` when unknown or local to the host.
    pub link: Option<LinkSample>,
    /// Milliseconds that the machine was suspended since the agent began (boot-time clock against monotonic clock).
    pub suspended_ms: u64,
}

/// One network interface.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkSample {
    /// Its name.
    pub name: String,
    /// It is switched on and sees its other end.
    pub up: bool,
    /// How often its carrier came or went since boot.
    pub carrier_changes: u64,
}

/// One rank as the operating system and its status page show it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankSample {
    /// Which.
    pub rank: Rank,
    /// Process id.
    pub pid: u32,
    /// State letter of `/proc/PID/stat`: `R S D T t Z`; `X` when gone.
    pub state: char,
    /// CPU use of the rank and its children, percent of one core.
    pub cpu_percent: f32,
    /// Resident memory of the rank and its children, bytes.
    pub rss: u64,
    /// Live descendants.
    pub children: u32,
    /// Kernel function it waits in, empty when unknown.
    #[serde(default)]
    pub wchan: String,
    /// Index of its GPU on this host.
    pub gpu: Option<u32>,
    /// Its memory on that GPU, bytes.
    pub gpu_memory: Option<u64>,
    /// Its status page, `None` for programs that write none.
    pub page: Option<PageSample>,
    /// Signals that tell why it may be stuck or slow.
    #[serde(default)]
    pub signals: RankSignals,
}

/// Why a rank may be stuck or slow. Counters only grow while the process lives; readers take differences between samples.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RankSignals {
    /// CPU time of all its own threads so far, ms; children not included.
    pub cpu_ms: u64,
    /// Time that its main thread was ready to run and did not get a core, so far, ms; 0 where the kernel does not tell.
    pub delay_ms: u64,
    /// Page faults that needed the disk, so far.
    pub major_faults: u64,
    /// Bytes that it and its children have caused to be read from and written to storage so far.
    pub io_bytes: u64,
    /// Its descendants, at most 64; `RankSample::children` counts them all.
    pub children: Vec<ChildSample>,
    /// Its cgroup; `None` where that cannot be read.
    pub cgroup: Option<CgroupSample>,
}

/// A descendant of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ChildSample {
    /// Process id.
    pub pid: u32,
    /// Name of its program, at most 15 bytes.
    pub name: String,
    /// State letter; `Z` for one that ended and was not waited for.
    pub state: char,
    /// CPU time so far, ms.
    pub cpu_ms: u64,
}

/// The cgroup of a rank: version 1 or 2.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CgroupSample {
    /// Path below the hierarchy's mount.
    pub path: String,
    /// It is frozen.
    pub frozen: bool,
    /// Periods of its CPU quota that have passed, 0 without a quota.
    pub periods: u64,
    /// Periods in which it was throttled.
    pub throttled: u64,
    /// Processes of it that the out-of-memory killer has ended.
    pub oom_kills: u64,
}

/// The status page of one rank; ages are computed by the agent on the rank's own clock.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PageSample {
    /// What the rank is doing.
    pub phase: Phase,
    /// Milliseconds since the phase began.
    pub phase_age_ms: u64,
    /// Moves while something happens inside the phase.
    pub phase_progress: u64,
    /// Milliseconds since anything on the page changed.
    pub heartbeat_age_ms: u64,
    /// Training iteration.
    pub train_iter: u64,
    /// This rank's own environment steps.
    pub env_step: u64,
    /// This rank's own samples.
    pub samples: u64,
    /// This rank's own finished episodes.
    pub episodes: u64,
    /// Optimiser updates.
    pub updates: u64,
    /// The collective that was entered last.
    pub collective: CollectiveSample,
    /// The hook in a Python rank writes the page: it knows collectives and steps of optimisers, but no phases.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_hook: bool,
    /// What it does inside the phase.
    #[serde(default)]
    pub activity: Activity,
    /// Milliseconds since the activity began, 0 when there is none.
    #[serde(default)]
    pub activity_age_ms: u64,
    /// How much of a phase of known length is done.
    #[serde(default)]
    pub done: u64,
    /// How much there is to do, 0 when unknown.
    #[serde(default)]
    pub total: u64,
    /// Groups (communicators), the group of all ranks first; empty on old pages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupSample>,
    /// Beginnings of some of the latest iterations, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub iterations: Vec<IterationSample>,
    /// Milliseconds in each phase so far (indices of [`Phase::ALL`]), time inside collectives excluded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own_ms: Vec<u64>,
    /// The latest collectives, oldest first; only while the page is silent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recent: Vec<RecentCollective>,
}

impl PageSample {
    /// Training iterations done; `None` for a script whose optimisers, if it has any, have made no step: the hook counts those.
    pub fn iteration(&self) -> Option<u64> {
        (!self.by_hook || self.train_iter > 0).then_some(self.train_iter)
    }
}

/// Counters of one group of ranks (communicator).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GroupSample {
    /// Its name, equal on all members.
    pub name: String,
    /// Members, 0 when unknown.
    pub size: u32,
    /// Number of the collective entered last in it.
    pub entered: u64,
    /// Number of the collective left last in it.
    pub left: u64,
    /// Hash over what its members must agree on, of all collectives entered in it.
    pub chain: u64,
}

/// The beginning of an iteration in counters of the group of all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct IterationSample {
    /// Its number.
    pub train_iter: u64,
    /// Collectives entered before it.
    pub seq: u64,
    /// Chain hash at that moment.
    pub chain: u64,
    /// Milliseconds since it began.
    pub age_ms: u64,
    /// Microseconds spent inside collectives before it.
    pub wait_us: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// One collective out of a page's ring, or several in a row that differ in nothing but their number.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RecentCollective {
    /// Name of its group, empty when unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Number within its group; the first one's.
    pub seq: u64,
    /// How many more like it follow.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u64,
    /// `all_reduce`, `broadcast`, ...
    pub op: String,
    /// Purpose.
    pub tag: String,
    /// Elements per rank.
    pub count: u64,
    /// Element type.
    pub dtype: String,
    /// Rank that a broadcast comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<u32>,
    /// Chain hash of the group with this collective; the last one's.
    pub chain: u64,
    /// Training iteration it was entered in.
    pub train_iter: u64,
    /// `FILE:LINE` of the call, empty when unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub site: String,
}

/// What a rank does inside a phase; numbers are the status page's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u32)]
pub enum Activity {
    /// Nothing special.
    #[default]
    None = 0,
    /// An environment is being reset.
    EnvReset = 1,
    /// Environments are being stepped.
    EnvStep = 2,
    /// Actions are being computed.
    Act = 3,
    /// A batch is being drawn from memory.
    Sample = 4,
    /// Forward pass of a loss.
    Forward = 5,
    /// Backward pass.
    Backward = 6,
    /// The optimiser steps.
    Optimize = 7,
    /// A file is being written.
    Save = 8,
    /// A file is being read.
    Load = 9,
    /// Code is being compiled.
    Compile = 10,
}

impl Activity {
    /// All activities, in the order of their numbers.
    pub const ALL: [Activity; 11] = [
        Activity::None,
        Activity::EnvReset,
        Activity::EnvStep,
        Activity::Act,
        Activity::Sample,
        Activity::Forward,
        Activity::Backward,
        Activity::Optimize,
        Activity::Save,
        Activity::Load,
        Activity::Compile,
    ];

    /// The name shown to people, empty for none.
    pub fn name(self) -> &'static str {
        match self {
            Activity::None => "",
            Activity::EnvReset => "env reset",
            Activity::EnvStep => "env step",
            Activity::Act => "act",
            Activity::Sample => "sample",
            Activity::Forward => "forward",
            Activity::Backward => "backward",
            Activity::Optimize => "optimise",
            Activity::Save => "save",
            Activity::Load => "load",
            Activity::Compile => "compile",
        }
    }
}

/// The latest collective of a rank.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CollectiveSample {
    /// Number of the collective entered last, from 1; 0 before the first.
    pub entered: u64,
    /// Number of the collective left last.
    pub left: u64,
    /// `all_reduce`, `broadcast`, ...
    pub op: String,
    /// Purpose: `grad`, `collect_stats`, `eval`, `fingerprint`, ...
    pub tag: String,
    /// Bytes per rank.
    pub bytes: u64,
    /// Element type.
    pub dtype: String,
    /// Milliseconds since it was entered (while inside), else since it was left.
    pub age_ms: u64,
    /// Elements per rank.
    #[serde(default)]
    pub count: u64,
    /// Rank that a broadcast comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<u32>,
    /// Name of its group, empty when unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Its number within its group, 0 when unknown.
    #[serde(default)]
    pub group_seq: u64,
    /// `FILE:LINE` of the call, empty when unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub site: String,
}

/// What a rank is doing; numbers are the status page's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u32)]
pub enum Phase {
    /// Starting up.
    #[default]
    Init = 0,
    /// Waiting for the other ranks to form the group.
    Rendezvous = 1,
    /// Collecting experience.
    Rollout = 2,
    /// Computing losses, gradients, updates.
    Learn = 3,
    /// Exchanging statistics between iterations.
    Sync = 4,
    /// Evaluating (rank 0).
    Eval = 5,
    /// Writing a checkpoint.
    Checkpoint = 6,
    /// Leaving.
    Teardown = 7,
    /// The loop has ended.
    Done = 8,
}

impl Phase {
    /// All phases, in the order of their numbers.
    pub const ALL: [Phase; 9] = [
        Phase::Init,
        Phase::Rendezvous,
        Phase::Rollout,
        Phase::Learn,
        Phase::Sync,
        Phase::Eval,
        Phase::Checkpoint,
        Phase::Teardown,
        Phase::Done,
    ];

    /// The name shown to people; also the JSON form.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Init => "init",
            Phase::Rendezvous => "rendezvous",
            Phase::Rollout => "rollout",
            Phase::Learn => "learn",
            Phase::Sync => "sync",
            Phase::Eval => "eval",
            Phase::Checkpoint => "checkpoint",
            Phase::Teardown => "teardown",
            Phase::Done => "done",
        }
    }
}

/// One GPU as NVML shows it; `None` where the driver does not tell.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct GpuSample {
    /// NVML index on the host.
    pub index: u32,
    /// Product name.
    pub name: String,
    /// Share of time with a kernel running, percent.
    pub utilization: Option<u32>,
    /// Bytes.
    pub memory_used: u64,
    /// Bytes.
    pub memory_total: u64,
    /// Watts.
    pub power_w: Option<f32>,
    /// Watts.
    pub power_limit_w: Option<f32>,
    /// Degrees Celsius.
    pub temperature_c: Option<u32>,
    /// Streaming-multiprocessor clock, MHz.
    pub sm_clock_mhz: Option<u32>,
    /// Memory clock, MHz.
    pub memory_clock_mhz: Option<u32>,
    /// Reasons why clocks are held down, in words; empty when none.
    #[serde(default)]
    pub throttle: Vec<String>,
    /// Processes on it: (pid, bytes).
    #[serde(default)]
    pub processes: Vec<(u32, u64)>,
    /// The driver's latest error reports (Xid numbers), oldest first, at most 8.
    #[serde(default)]
    pub xids: Vec<u64>,
    /// It was there before and the driver has lost it.
    #[serde(default)]
    pub lost: bool,
}
