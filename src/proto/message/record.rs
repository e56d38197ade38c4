//! Durable, numbered events of an agent.

use super::{Ending, LaunchSpec, RankEvent, StopMode};
use rankdeck_types::exit::Exit;
use rankdeck_types::ids::{Generation, LocalRank, Rank, WallTime};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A durable, numbered event of one agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// 1, 2, 3, ... without gaps over the life of the run on this host, agent restarts included.
    pub seq: u64,
    /// When the agent wrote it, by its wall clock.
    pub time: WallTime,
    /// The generation it belongs to.
    pub generation: Generation,
    /// What the agent recorded.
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
        /// The rank that was spawned.
        rank: Rank,
        /// Its index on this host.
        local_rank: LocalRank,
        /// Its process id on this host.
        pid: u32,
    },
    /// A rank's process ended and was reaped.
    RankExited {
        /// The rank that ended.
        rank: Rank,
        /// Its process id.
        pid: u32,
        /// How it ended.
        exit: Exit,
        /// The last lines of its log, oldest first, at most 20.
        last_lines: Vec<String>,
        /// The agent had been ordered to stop before.
        stopping: bool,
        /// Milliseconds from its end to this record: its last words are waited for.
        #[serde(default)]
        ago_ms: u64,
        /// Nobody saw it end: its agent had died, and the guard or the next agent ended what that one had
        /// started.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        with_agent: bool,
    },
    /// A console had a signal sent to a process.
    Signalled {
        /// The rank that it is, if it is one.
        rank: Option<Rank>,
        /// Its process id.
        pid: u32,
        signal: i32,
    },
    /// A stop was ordered.
    StopOrdered {
        /// How hard to stop.
        mode: StopMode,
        /// By whom or what: `console`, `lease`, `signal`, `rank 3 failed`.
        by: String,
    },
    /// No process of this generation is left on this host, or these are.
    Stopped {
        /// Empty when the stop is verified.
        survivors: Vec<Survivor>,
        /// Indices of this run's GPUs that hold no process of the run any more.
        gpus_free: Vec<u32>,
        /// Milliseconds from the order (or the last exit) to the end of the search.
        took_ms: u64,
    },
    /// The run has ended, and its console calls that end so.
    Ended {
        /// The end.
        ending: Box<Ending>,
    },
    /// The rank said this on the event socket.
    Rank {
        /// The rank that reports it.
        rank: Rank,
        /// The event as the rank sent it.
        said: RankEvent,
    },
    /// Values that a program of the user gave without knowing rankdeck: one rank's own, not reduced over the
    /// ranks.
    Metrics {
        /// The rank that gave them.
        rank: Rank,
        /// `stdout` or `tensorboard`.
        source: String,
        /// Its environment steps, as far as it says.
        env_step: Option<u64>,
        /// Name to value.
        values: BTreeMap<String, f64>,
        /// Values since the previous record that were not told, because newer ones of the same name followed
        /// at once.
        skipped: u64,
        /// Name to the number of values since the previous record that were not finite: JSON has no number
        /// for them.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        not_finite: BTreeMap<String, u64>,
        /// Name to the least and the greatest of several values since the previous record, that which is told
        /// included.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        spread: BTreeMap<String, (f64, f64)>,
    },
    /// The agent itself has something to tell: spool trouble, a refused client, a fallback in use.
    Notice {
        /// One sentence.
        text: String,
    },
    /// The records from `first` up to this one's number were left out, so that a long run's file stays small,
    /// or were lost while the disk took none.
    Omitted {
        /// Number of the first.
        first: u64,
    },
    /// A kind this build does not know.
    #[serde(other)]
    Unknown,
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
