//! Messages between a console and an agent, and a rank's events to its agent.
//!
//! ```text
//! this file     ConsoleMessage: a console's orders; AgentMessage: an agent's replies, records and samples
//! placement     CheckpointOrder, CheckpointReply: what a host has of a checkpoint, and pieces of its files
//! record        Record: durable events, written to the agent's spool before they are sent, numbered without
//!               gaps, delivered at least once
//! rank_event    RankEvent: JSON Lines on the agent's event socket, from the rank itself; any program may
//!               send them
//! sample        HostSample: periodic values of a host, and of its ranks with their status pages; they may be
//!               coalesced or dropped, and every drop is counted in `dropped`
//! ```
//!
//! Compatibility: fields are only ever added, with `#[serde(default)]`; unknown kinds decode to `Unknown`.

mod placement;
mod rank_event;
mod record;
mod sample;

pub use placement::{
    CHECKPOINT_FILES, CheckpointContent, CheckpointOrder, CheckpointReply, PIECE, PartFile, RelativePath,
};
pub use rank_event::{
    Counters, DeadChild, Evaluation, Exception, FailureKind, FinishReason, InnerRank, LoggedHistogram,
    LoggedImage, Membership, RankEvent, Returns,
};
pub use rankdeck_types::exit::Exit;
pub use record::{
    CheckpointFile, CheckpointOrigin, Record, RecordEvent, RunEnd, RunOutcome, RunResults, StepSource,
    Survivor, Work,
};
pub use sample::{
    Activity, CgroupSample, ChildSample, CollectiveCall, CollectiveSample, FingerprintPosition,
    FingerprintSample, GpuInstance, GpuSample, GroupArguments, GroupMembership, GroupSample, HostSample,
    HostSignals, InnerRankSample, InputKind, InputSample, IterationSample, LinkSample, MainThread,
    NORMALIZERS, PageSample, Phase, RankSample, RankSignals, RecentCollective, ReturnBlock, calm_round,
};

use crate::inspection::{InnerTarget, Inspection};
use crate::process::{ProcessAction, ProcessName, ReachOutcome};
use crate::search::{LogFindings, LogSearch};
use crate::secret::GroupSecret;
use crate::show::LiveFrame;
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{Generation, NodeRank, Rank, RunId, WallTime};
use rankdeck_types::plan::Plan;
use rankdeck_types::variables::PassedVariables;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;

/// Version of this vocabulary; `attach` and `hello` carry it, and a mismatch ends the connection with a clear
/// error.
pub const PROTOCOL: u32 = 1;

/// Orders from a console to an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ConsoleMessage {
    /// First message of every connection. The agent replies with `hello`, `snapshot`, then every record after
    /// `after_seq`.
    Attach {
        /// [`PROTOCOL`] of the console.
        protocol: u32,
        /// Build of the console, for the agent's log.
        build: String,
        /// Number of the last record that this console has applied, 0 for none.
        after_seq: u64,
        /// Number of the latest log lines of each rank to send at once.
        log_tail: u32,
    },
    /// Requests a free TCP port on this host; the reply is [`AgentMessage::PortReserved`].
    ReservePort {
        /// Echoed in the reply.
        request: u64,
    },
    /// Requests an inspection of some of this host's ranks; the reply is [`AgentMessage::Inspected`], within
    /// 2 s in any state of the ranks, or 9 s on a host whose cores are overloaded.
    Inspect {
        /// Echoed in the reply.
        request: u64,
        /// The ranks; those of other hosts are omitted from the reply. Empty, and `inner` is, too: all of this host.
        ranks: Vec<Rank>,
        /// Ranks that these have started themselves.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        inner: Vec<InnerTarget>,
    },
    /// Continues ranks of this host that a signal has stopped (SIGCONT); running ranks are not affected.
    Continue {
        /// The ranks; those of other hosts are ignored.
        ranks: Vec<Rank>,
    },
    /// Requests an action on one process of this host's user; the reply is [`AgentMessage::Reached`].
    Reach {
        /// Echoed in the reply.
        request: u64,
        process: ProcessName,
        action: ProcessAction,
    },
    /// Starts this host's share of a generation.
    Launch {
        /// The launch, without secrets.
        spec: Box<LaunchSpec>,
        /// Values that no record contains. The driver adds them, because the core has no secrets.
        #[serde(default, flatten)]
        private: LaunchSecrets,
        /// The console has read that the run was ended: it begins a new generation on purpose.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        after_end: bool,
    },
    /// Starts a lost rank of this host again, which joins the running process group. The reply is a `RankSpawned`
    /// record, or [`AgentMessage::Refused`].
    Rejoin {
        /// The rank.
        rank: Rank,
        /// The generation that it joins.
        generation: Generation,
        /// Latest known change of its members.
        epoch: u32,
        /// `ADDRESS:PORT` at which it joins; `None`: at the store of the launch.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        store: Option<String>,
        /// As of the launch, where this console has them. An agent that has launched the generation has its own.
        #[serde(default, flatten)]
        private: LaunchSecrets,
    },
    /// Stops this host's ranks; the reply is a `Stopped` record once no process is left or the leftover ones
    /// are known.
    Stop {
        /// Mode of the stop.
        mode: StopMode,
        /// Milliseconds between SIGTERM and SIGKILL in [`StopMode::Terminate`]; limit of [`StopMode::Clean`].
        grace_ms: u64,
        /// The order ends the run, for every console; it does not belong to a restart.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        ends: bool,
    },
    /// Starts or ends watching evaluations; rank 0's host replies with [`AgentMessage::Frame`]s while it
    /// evaluates.
    Watch {
        /// Whether to start.
        on: bool,
    },
    /// Searches the run's logs on this host; replaces an earlier search. The replies are
    /// [`AgentMessage::Found`], until the search is complete.
    Search {
        /// Echoed in the replies.
        request: u64,
        /// The search; `None` cancels the running one.
        #[serde(rename = "wanted")]
        search: Option<Box<LogSearch>>,
    },
    /// Requests what this host has of a checkpoint, or a piece of it; the reply is
    /// [`AgentMessage::Checkpoint`].
    Checkpoint {
        /// Echoed in the reply.
        request: u64,
        order: Box<CheckpointOrder>,
    },
    /// Heartbeat; the agent replies with `pong`.
    Ping {
        /// The console's clock; echoed.
        sent_ms: u64,
    },
    /// The user detaches the console: the run keeps running, whatever `on_disconnect` is.
    Detach,
    /// Reports how this generation ended, as assessed by the console that launched it; the agent records it.
    Ended {
        /// The generation that ended.
        generation: Generation,
        /// Its end.
        ending: Box<RunEnd>,
    },
    /// The run has ended, and this console has received everything: the agent exits if no other console is
    /// attached.
    Close,
    /// A kind unknown to this build.
    #[serde(other)]
    Unknown,
}

/// Returns why a host refuses a launch: a console that launches it has not read that another one ended `run`.
pub fn end_refusal(run: &RunId) -> HintedError {
    let error = format!("run {run} was stopped by another console");
    HintedError::new(error, format!("`rankdeck restart {run}` starts it again"))
}

/// Mode of a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopMode {
    /// SIGTERM to the ranks: they agree on an iteration, save a checkpoint and exit; then as `Kill`.
    Clean,
    /// SIGTERM to the ranks' sessions, the grace period, then `Kill`.
    Terminate,
    /// SIGKILL to every process of the run on the host.
    Kill,
}

impl StopMode {
    /// Returns the mode's name.
    pub fn word(self) -> &'static str {
        match self {
            StopMode::Clean => "clean",
            StopMode::Terminate => "terminate",
            StopMode::Kill => "kill",
        }
    }
}

/// Values of a launch next to its [`LaunchSpec`], for the ranks' environment only (SECRET-1).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LaunchSecrets {
    /// The secret of this generation, the same for all of its hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<GroupSecret>,
    /// Variables of this host's ranks whose values come from the console.
    #[serde(skip_serializing_if = "PassedVariables::is_empty")]
    pub variables: PassedVariables,
    /// Notification settings while no console is attached; for rank 0's host only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub away: Option<AwayNotices>,
    /// Name of the directory in which ranks with uploaded code work, below `WORKDIR/work`; `None`: the run's
    /// own name. No secret, but no part of the plan either: trials of a sweep differ in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work: Option<String>,
}

/// Notification settings of an agent while no console is attached. `{:?}` hides them: a URL may be a secret.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AwayNotices {
    /// Events: `end`, `verdict`, `best`; empty: the first two.
    pub on: Vec<String>,
    /// URL to post to; empty: none.
    pub webhook: String,
    /// Program with its arguments; empty: none.
    pub command: Vec<String>,
}

impl fmt::Debug for AwayNotices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Away({:?})", self.on)
    }
}

/// One host's share of one generation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaunchSpec {
    /// Generation of the run.
    pub generation: Generation,
    /// Index of this host in the plan.
    pub node_rank: NodeRank,
    /// Address of rank 0's store.
    pub master_addr: String,
    /// Port of rank 0's store.
    pub master_port: u16,
    /// Checkpoint to start from; `None` starts from scratch. Its name for the run: a path, or `latest`.
    #[serde(default)]
    pub resume: Option<String>,
    /// Its path on this host, if that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_at: Option<String>,
    /// The plan, with the environment and setup of this host only (PLAN-5): any agent can send a console
    /// everything else about the run.
    pub plan: Plan,
}

/// Identifies a launch on all its hosts: SHA-256, in hexadecimal, of the equal parts of their specs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LaunchHash(pub String);

impl LaunchSpec {
    /// Returns the hash, which is the same on all hosts of this launch.
    pub fn hash(&self) -> LaunchHash {
        let common =
            LaunchSpec { node_rank: NodeRank(0), resume_at: None, plan: self.plan.common(), ..self.clone() };
        // Maps are ordered and all keys are strings, so equal launches have equal JSON, and serialization
        // cannot fail.
        let json = serde_json::to_vec(&common).unwrap_or_default();
        LaunchHash(rankdeck_types::words::hex(&Sha256::digest(&json)))
    }

    /// Returns the checkpoint to start from as this host's ranks name it.
    pub fn resume_path(&self) -> Option<&str> {
        self.resume_at.as_deref().or(self.resume.as_deref())
    }
}

/// A message from an agent to a console.
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
        /// The agent's wall clock, to display clock skew.
        wall_time: WallTime,
        /// Directory of this run on this host.
        run_dir: String,
    },
    /// State at attach time.
    Snapshot {
        /// Latest launch, `None` before the first.
        spec: Option<Box<LaunchSpec>>,
        /// This host's ranks of that generation.
        ranks: Vec<RankSnapshot>,
        /// Number of the newest record; those after `after_seq` follow.
        last_seq: u64,
        /// Names of the console's variables whose values this host retains for its next ranks.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        holds: Vec<String>,
    },
    /// A durable event.
    Record(Record),
    /// Sample of this host, at least once per second; also the agent's heartbeat.
    Sample(Box<HostSample>),
    /// Log lines of one rank, oldest first.
    Log {
        /// The rank that wrote them.
        rank: Rank,
        /// Number of the first line in the rank's log file of this generation, from 0.
        first: u64,
        /// Numbers before it that no line has: the rank has written over those lines, as progress bars below
        /// each other do.
        #[serde(default, skip_serializing_if = "sample::is_zero")]
        overwritten: u64,
        /// The lines, without newline, each cut at 4 KiB.
        lines: Vec<String>,
        /// Times at which they were read, in order; empty: unknown.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        times: Vec<LinesRead>,
    },
    /// Reply to [`ConsoleMessage::ReservePort`].
    PortReserved {
        /// Echoed from the request.
        request: u64,
        /// A port that was free when it was chosen.
        port: u16,
    },
    /// Reply to [`ConsoleMessage::Inspect`].
    Inspected {
        /// Echoed from the request.
        request: u64,
        /// One per requested rank of this host.
        inspections: Vec<Inspection>,
    },
    /// Reply to [`ConsoleMessage::Ping`].
    Pong {
        /// Echoed from the request.
        sent_ms: u64,
        /// The agent's wall clock, from which the console computes the clock skew.
        #[serde(default)]
        wall_time: Option<WallTime>,
    },
    /// Observation and action of rank 0's policy in an evaluation; only while this console watches. Newer
    /// frames replace older ones.
    Frame {
        generation: Generation,
        /// Time since the agent received it, ms.
        age_ms: u64,
        /// Frames that newer ones replaced before they were sent to this console, since it started watching.
        missed: u64,
        /// The frame.
        frame: Box<LiveFrame>,
    },
    /// Reply to [`ConsoleMessage::Search`]: at once, then as the search progresses, and at its end.
    Found {
        /// Echoed from the request.
        request: u64,
        /// Findings so far.
        findings: Box<LogFindings>,
    },
    /// Reply to [`ConsoleMessage::Reach`].
    Reached {
        /// Echoed from the request.
        request: u64,
        outcome: Box<ReachOutcome>,
    },
    /// Reply to [`ConsoleMessage::Checkpoint`].
    Checkpoint {
        /// Echoed from the request.
        request: u64,
        reply: Box<CheckpointReply>,
    },
    /// An order failed; nothing was started.
    Refused(HintedError),
    /// The agent is about to close this connection.
    Bye {
        /// The reason.
        reason: String,
    },
    /// A kind unknown to this build.
    #[serde(other)]
    Unknown,
}

/// State of one rank when a console attaches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankSnapshot {
    pub rank: Rank,
    /// Process id on the host; `None` before it was spawned.
    pub pid: Option<u32>,
    /// Its exit; `None` while it runs.
    pub exit: Option<Exit>,
}

/// Number of consecutive lines that were read at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LinesRead {
    /// Number of lines.
    pub lines: u32,
    /// Time by the host's clock, ms since 1970; 0: unknown.
    pub time_ms: u64,
}

impl LinesRead {
    /// Adds a line to `all`.
    pub fn add(all: &mut Vec<LinesRead>, time_ms: u64) {
        match all.last_mut().filter(|last| last.time_ms == time_ms) {
            Some(last) => last.lines += 1,
            None => all.push(LinesRead { lines: 1, time_ms }),
        }
    }

    /// Returns the time of each line, then 0 without end.
    pub fn each(all: &[LinesRead]) -> impl Iterator<Item = u64> + '_ {
        let known = all.iter().flat_map(|some| std::iter::repeat_n(some.time_ms, some.lines as usize));
        known.chain(std::iter::repeat(0))
    }
}
