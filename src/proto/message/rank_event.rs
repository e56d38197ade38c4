//! What a rank says on the event socket: JSON Lines, from any program.

use super::collective::is_zero;
use crate::show::LiveFrame;
use rankdeck_types::ids::{Generation, Rank};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::ErrorKind;

/// What a rank says on the event socket; one JSON object per line. Sent with `{"kind": ...}` and the fields
/// below.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RankEvent {
    /// First line of each connection: which rank reports.
    Hello {
        /// The rank that speaks.
        rank: Rank,
        /// Its generation; an agent ignores others.
        generation: Generation,
    },
    /// The process group is up.
    Joined {
        /// Ranks in the group.
        world_size: u32,
        /// `tcp` or `nccl`, with the library's version.
        backend: String,
        /// `cpu`, `cuda:0`, ...
        device: String,
    },
    /// This rank's own counters at the end of iteration `train_iter`. Sent by every rank for the same
    /// iterations.
    Counters(Counters),
    /// The all-reduced counters of the same iteration. Sent by rank 0 only.
    Totals(Counters),
    /// Named values for charts (CleanRL's scalar names). Sent by rank 0 only.
    Scalars {
        train_iter: u64,
        /// Global environment steps.
        env_step: u64,
        /// Name to value.
        values: BTreeMap<String, f64>,
        /// Name to the number of values since the last such line that were not finite: JSON has no number for
        /// them.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        not_finite: BTreeMap<String, u64>,
    },
    /// How values were spread at one step. Sent by rank 0 only.
    Histogram(LoggedHistogram),
    /// A picture of the program's own. Sent by rank 0 only.
    Image(LoggedImage),
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
        train_iter: u64,
        /// Gradient updates so far.
        update: u64,
        /// Every rank's fingerprint, in rank order, in hexadecimal.
        values: Vec<String>,
        /// All ranks hold the same weights.
        equal: bool,
    },
    /// What the policy sees and does in the evaluation that goes on. Sent by rank 0 a few times per second;
    /// it is shown to who looks, and kept nowhere.
    Frame(Box<LiveFrame>),
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
        /// What kind of failure it is; `None`: its text has to tell.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<FailureKind>,
    },
    /// The rank is about to end because nobody caught this exception.
    Exception(Exception),
    /// The training loop has ended; the process will exit with code 0.
    Finished {
        /// Why it ended.
        reason: FinishReason,
    },
    /// A kind this build does not know.
    #[serde(other)]
    Unknown,
}

/// How values were spread at one step.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LoggedHistogram {
    pub name: String,
    #[serde(default)]
    pub train_iter: u64,
    /// Global environment steps.
    #[serde(default)]
    pub env_step: u64,
    /// Borders of its bins, rising.
    pub edges: Vec<f64>,
    /// How many values are in each bin.
    pub counts: Vec<f64>,
    /// Histograms and pictures since the last one that the program itself did not send.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped: u64,
}

/// A picture of the program's own.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LoggedImage {
    pub name: String,
    #[serde(default)]
    pub train_iter: u64,
    /// Global environment steps.
    #[serde(default)]
    pub env_step: u64,
    /// Its file, PNG or GIF, in base64.
    pub data: String,
    /// Histograms and pictures since the last one that the program itself did not send.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped: u64,
}

/// An exception that nobody caught, as the program's own language tells it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Exception {
    /// Its class with the modules: `KeyError`, `torch.OutOfMemoryError`.
    pub class: String,
    /// Names of the classes that it is derived from, without modules.
    pub bases: Vec<String>,
    /// Its text.
    pub message: String,
    /// Number of the system's error, its own or that of the exception that it was raised from.
    pub errno: Option<i32>,
    /// `FILE:LINE` of the innermost frame of the program's own code, empty when unknown.
    pub at: String,
    /// Name of the thread that it ended; empty for the main thread, with which the program ends.
    pub thread: String,
    /// What kind of failure it is, where its type tells; `None`: its text has to tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureKind>,
}

/// What kind of failure ends a rank. It decides what the end is called and who is blamed, whatever the text
/// says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// Another rank is gone, or did not come to a collective: that one is to blame.
    Connection,
    /// The ranks made different calls.
    Mismatch,
    /// The process group did not form.
    Rendezvous,
    /// A port belongs to another process.
    PortTaken,
    /// No space is left where it writes.
    DiskFull,
    /// No memory is left on the host or on the GPU.
    OutOfMemory,
    /// The GPU or its driver does not work any more.
    GpuFailed,
    /// An environment of this rank.
    Environment,
    /// A mistake of the user.
    Configuration,
    /// A number that nothing can be learnt from.
    Diverged,
    /// Anything else of this rank's own. A kind that this build does not know is read as this one.
    #[serde(other)]
    Other,
}

impl FailureKind {
    /// Of an error of the operating system.
    pub fn of_io(error: &std::io::Error) -> FailureKind {
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => FailureKind::DiskFull,
            ErrorKind::OutOfMemory => FailureKind::OutOfMemory,
            ErrorKind::AddrInUse => FailureKind::PortTaken,
            _ => FailureKind::Other,
        }
    }
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
    /// Mean return of the last 100 training episodes over all ranks, of fewer when there are not yet as many;
    /// in totals only.
    #[serde(default)]
    pub return_last_100: Option<f64>,
    /// No rank sends totals: the console adds the ranks' latest counters up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sum: bool,
}

impl Counters {
    /// With another rank's counts added, and as far as the slower of the two has come.
    #[must_use]
    pub fn plus(self, other: &Counters) -> Counters {
        Counters {
            train_iter: self.train_iter.min(other.train_iter),
            env_step: self.env_step.saturating_add(other.env_step),
            samples: self.samples.saturating_add(other.samples),
            episodes: self.episodes.saturating_add(other.episodes),
            duration_s: self.duration_s + other.duration_s,
            updates: self.updates.max(other.updates),
            ..self
        }
    }
}

/// Returns of finished episodes over an interval.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Returns {
    /// Sum of the values over ranks.
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
    pub train_iter: u64,
    /// Episodes played.
    pub episodes: u32,
    pub return_mean: f64,
    /// Standard deviation of the returns (population).
    pub return_std: f64,
    /// The smallest return of an episode.
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
