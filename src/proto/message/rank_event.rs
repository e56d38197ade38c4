//! What a rank says on the event socket: JSON Lines, from any program.

use crate::show::LiveFrame;
use rankdeck_types::ids::{Generation, Rank};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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
        /// Training iteration.
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
    /// Training iteration.
    pub train_iter: u64,
    /// Episodes played.
    pub episodes: u32,
    /// Mean return.
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
