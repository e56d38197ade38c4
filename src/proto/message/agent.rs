//! What an agent tells a console.

use super::{Exit, HostSample, LaunchSpec, Record};
use crate::inspection::Inspection;
use crate::process::ReachOutcome;
use crate::search::LogFindings;
use crate::show::LiveFrame;
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::{Generation, NodeRank, Rank, RunId, WallTime};
use serde::{Deserialize, Serialize};

/// What an agent tells a console.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AgentMessage {
    /// First message of every connection.
    Hello {
        /// [`super::PROTOCOL`] of the agent.
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
        /// Names of variables of a console that the next ranks here would have without one.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        holds: Vec<String>,
    },
    /// Something that must not be lost.
    Record(Record),
    /// Gauges of this host, at least once a second; also the agent's heartbeat.
    Sample(Box<HostSample>),
    /// Log lines of one rank, oldest first.
    Log {
        /// The rank that wrote them.
        rank: Rank,
        /// Number of the first line in the rank's log file of this generation, from 0.
        first: u64,
        /// The lines, without newline, each cut at 4 KiB.
        lines: Vec<String>,
        /// When they were read, in their order; empty: not known.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        times: Vec<LinesRead>,
    },
    /// Answer to [`super::ConsoleMessage::ReservePort`].
    PortReserved {
        /// Echoed from the request.
        request: u64,
        /// A port that was free a moment ago.
        port: u16,
    },
    /// Answer to [`super::ConsoleMessage::Inspect`].
    Inspected {
        /// Echoed from the request.
        request: u64,
        /// One per rank that was asked for and is planned on this host.
        inspections: Vec<Inspection>,
    },
    /// Answer to [`super::ConsoleMessage::Ping`].
    Pong {
        /// Echoed from the request.
        sent_ms: u64,
        /// The agent's wall clock, from which the console learns how far the two clocks are apart.
        #[serde(default)]
        wall_time: Option<WallTime>,
    },
    /// What rank 0's policy sees and does in an evaluation; only while this console watches. Newer frames
    /// replace older ones.
    Frame {
        generation: Generation,
        /// How long ago the agent was told, ms.
        age_ms: u64,
        /// Frames that newer ones replaced before this console was sent them, since it watches.
        missed: u64,
        /// The moment.
        frame: Box<LiveFrame>,
    },
    /// Answer to [`super::ConsoleMessage::Search`]: at once, then as it goes on, and when it is over.
    Found {
        /// Echoed from the request.
        request: u64,
        /// What was found so far.
        findings: Box<LogFindings>,
    },
    /// Answer to [`super::ConsoleMessage::Reach`].
    Reached {
        /// Echoed from the request.
        request: u64,
        outcome: Box<ReachOutcome>,
    },
    /// An order could not be carried out; nothing was started.
    Refused(HintedError),
    /// The agent is about to close this connection.
    Bye {
        /// Why it closes.
        reason: String,
    },
    /// A kind this build does not know.
    #[serde(other)]
    Unknown,
}

/// State of one rank when a console attaches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankSnapshot {
    pub rank: Rank,
    /// Its process id on the host, `None` before it was spawned.
    pub pid: Option<u32>,
    /// How it ended, `None` while it runs.
    pub exit: Option<Exit>,
}

/// So many consecutive lines were read at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LinesRead {
    /// How many.
    pub lines: u32,
    /// When, by the host's clock, ms since 1970; 0: not known.
    pub time_ms: u64,
}

impl LinesRead {
    /// Adds a line to those in `all`.
    pub fn add(all: &mut Vec<LinesRead>, time_ms: u64) {
        match all.last_mut().filter(|last| last.time_ms == time_ms) {
            Some(last) => last.lines += 1,
            None => all.push(LinesRead { lines: 1, time_ms }),
        }
    }

    /// The time of each line, without end: 0 behind the last that is known.
    pub fn each(all: &[LinesRead]) -> impl Iterator<Item = u64> + '_ {
        let known = all.iter().flat_map(|some| std::iter::repeat_n(some.time_ms, some.lines as usize));
        known.chain(std::iter::repeat(0))
    }
}
