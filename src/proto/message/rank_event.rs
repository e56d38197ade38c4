//! Events on the event socket: JSON Lines, from any program.

use super::sample::is_zero;
use crate::show::LiveFrame;
use rankdeck_types::exit::Exit;
use rankdeck_types::ids::{Generation, Rank};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::ErrorKind;

/// An event on the event socket: one JSON object per line, `{"kind": ...}` with the fields below.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RankEvent {
    /// First line of each connection: the rank that sends it.
    Hello {
        /// The sender.
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
    /// A histogram of values at one step. Sent by rank 0 only.
    Histogram(LoggedHistogram),
    /// An image. Sent by rank 0 only.
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
    /// Comparison of all ranks' weight fingerprints. Sent by rank 0; at once if they differ.
    Fingerprint {
        train_iter: u64,
        /// Gradient updates so far.
        update: u64,
        /// Fingerprint of each rank, in rank order, in hexadecimal.
        values: Vec<String>,
        /// Whether all ranks have the same weights.
        equal: bool,
    },
    /// A step of the running evaluation. Sent by rank 0 a few times per second, forwarded to watching
    /// consoles and not stored.
    Frame(Box<LiveFrame>),
    /// An error that ends the rank.
    Error {
        /// The error.
        message: String,
        /// The hint; may be empty.
        #[serde(default)]
        hint: String,
        /// A mistake in the configuration (exit code 2) rather than a failure (1).
        #[serde(default)]
        usage: bool,
        /// Kind of the failure; `None`: unknown, derived from the text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<FailureKind>,
    },
    /// An uncaught exception that ends the rank.
    Exception(Exception),
    /// The exceptions reported before have not ended the rank: a shell has started another program.
    Survived,
    /// The main program has returned without an exception and without another exit code than 0. What follows
    /// is the exit of its interpreter.
    Returned,
    /// A process below the rank begins to form a process group of its own, which is not that of the plan.
    InnerRank(InnerRank),
    /// The process group has other members: ranks were lost, or have joined again. Sent by its lowest rank.
    Membership(Membership),
    /// The training loop has ended; the process will exit with code 0.
    Finished {
        /// The reason.
        reason: FinishReason,
    },
    /// A kind unknown to this build.
    #[serde(other)]
    Unknown,
}

/// A histogram of values at one step.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LoggedHistogram {
    pub name: String,
    #[serde(default)]
    pub train_iter: u64,
    /// Global environment steps.
    #[serde(default)]
    pub env_step: u64,
    /// Edges of the bins, increasing.
    pub edges: Vec<f64>,
    /// Number of values in each bin.
    pub counts: Vec<f64>,
    /// Histograms and images since the last one that the program itself did not send.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped: u64,
}

/// An image of a program.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LoggedImage {
    pub name: String,
    #[serde(default)]
    pub train_iter: u64,
    /// Global environment steps.
    #[serde(default)]
    pub env_step: u64,
    /// PNG or GIF file in base64.
    pub data: String,
    /// Histograms and images since the last one that the program itself did not send.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped: u64,
}

/// An uncaught exception, as the program's language prints it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Exception {
    /// Class with its modules: `KeyError`, `torch.OutOfMemoryError`.
    pub class: String,
    /// Names of its base classes, without modules.
    pub bases: Vec<String>,
    /// The message.
    pub message: String,
    /// `errno` of the exception, or of the one that it was raised from.
    pub errno: Option<i32>,
    /// `FILE:LINE` of the innermost frame of the program's own code, empty if unknown.
    pub at: String,
    /// Name of the thread that it ended; empty for the main thread, whose end is that of the program.
    pub thread: String,
    /// Kind of the failure, by its class; `None`: unknown, derived from the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureKind>,
    /// The rank may continue: the exception was caught, or it ended a child program. The exit code then
    /// decides whether the rank failed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub survivable: bool,
    /// Class and message of the first exception of its chain: the one that it was raised from, or while that
    /// was handled. Empty without one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cause: String,
    /// The child whose death it reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child: Option<DeadChild>,
}

/// A process that a rank has started as a rank of its own process group.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct InnerRank {
    /// Process id, in the pid namespace of the process.
    pub pid: u32,
    /// Its number in that group.
    pub rank: Option<u32>,
    pub world_size: Option<u32>,
    /// `gloo`, `nccl`, ...; empty for several, and where PyTorch chooses.
    pub backend: String,
    /// `FILE:LINE` of the call; empty if unknown.
    pub at: String,
}

/// A change of the members of a process group (`distributed.on_rank_loss = "shrink"`), as its lowest rank reports it
/// once the ranks have agreed on it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Membership {
    /// Changes since the launch, this one included.
    pub epoch: u32,
    /// The members from now on, in rising order.
    pub ranks: Vec<Rank>,
    /// Former members that are not in it any more, in rising order.
    pub lost: Vec<Rank>,
    /// Members that have joined, in rising order.
    pub joined: Vec<Rank>,
    /// Last iteration that the members have in common; they continue after it.
    pub iteration: u64,
    /// Global environment steps at that place.
    pub steps: u64,
    /// Global environment steps of the lost ranks that are not in the totals any more, and of an iteration that was
    /// given up.
    pub steps_lost: u64,
    /// Duration from the notice of the loss, or the request to join, to the new group, in seconds.
    pub seconds: f64,
    /// `ADDRESS:PORT` at which a rank may join from now on; `None`: where the generation's store was launched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
}

/// A child process of a rank that died.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadChild {
    /// Process id on its host.
    pub pid: u32,
    /// Name of its program.
    #[serde(default)]
    pub name: String,
    pub exit: Exit,
}

impl Exception {
    /// Returns whether it ends the rank, whatever the exit code.
    pub fn ends_rank(&self) -> bool {
        self.thread.is_empty() && !self.survivable
    }
}

/// Kind of a failure that ends a rank. It decides the reason and the culprit, whatever the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// Another rank is gone, or did not enter a collective; that rank is the culprit.
    Connection,
    /// The ranks called different collectives.
    Mismatch,
    /// The process group did not form.
    Rendezvous,
    /// A port belongs to another process.
    PortTaken,
    /// The disk is full.
    DiskFull,
    /// The host or the GPU is out of memory.
    OutOfMemory,
    /// The GPU or its driver has failed.
    GpuFailed,
    /// An environment of this rank failed.
    Environment,
    /// An error of the user.
    Configuration,
    /// A loss or gradient is not finite.
    Diverged,
    /// Any other failure of this rank, and unknown kinds.
    #[serde(other)]
    Other,
}

impl FailureKind {
    /// Returns the kind of an I/O error.
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
    /// A signal requested a stop of all ranks.
    Stopped,
}

/// Counters since the start of the run, across resumed generations. Integers are exact; `duration_s` is f64.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Training iteration of these counters.
    pub train_iter: u64,
    /// Environment steps: one per accepted action, after frame skip; autoreset dummy steps excluded.
    pub env_step: u64,
    /// Transitions that training may use.
    pub samples: u64,
    /// Finished training episodes.
    pub episodes: u64,
    /// Seconds spent collecting.
    pub duration_s: f64,
    /// Optimizer updates.
    #[serde(default)]
    pub updates: u64,
    /// Sum, count, minimum and maximum of the returns of episodes finished since the last report.
    #[serde(default)]
    pub returns: Returns,
    /// Mean return of the last 100 training episodes over all ranks, or of all if there are fewer; in totals
    /// only.
    #[serde(default)]
    pub return_last_100: Option<f64>,
    /// Sum of the ranks' latest counters by the console, because no rank sends totals.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sum: bool,
}

impl Counters {
    /// Returns the sum with another rank's counters, at the iteration of the slower of the two.
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
    /// Number of returns.
    pub count: u64,
    /// Smallest return; 0 without any.
    pub min: f64,
    /// Largest return; 0 without any.
    pub max: f64,
}

impl Returns {
    /// Returns the statistics of one episode.
    pub fn of(one: f64) -> Returns {
        Returns { sum: one, count: 1, min: one, max: one }
    }

    /// Returns the statistics of both intervals.
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
    /// Episodes played; 0 if unknown.
    pub episodes: u32,
    pub return_mean: f64,
    /// Standard deviation of the returns (population).
    pub return_std: f64,
    /// Smallest return.
    pub return_min: f64,
    /// Largest return.
    pub return_max: f64,
    /// Mean length of the episodes.
    pub length_mean: f64,
    /// Duration in seconds.
    pub duration_s: f64,
    /// The stop value was reached.
    pub stop: bool,
    /// Actions were taken as in training instead of the best ones (`eval.greedy = false`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sampled: bool,
    /// The generation that made it, as the reader of its record knows; 0 in what a rank sends.
    #[serde(default, skip_serializing_if = "is_first")]
    pub generation: Generation,
    /// The series that it was read from, of a program that reports no evaluations: only its mean return is
    /// known, and at most its mean length. Empty for one that was reported.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub series: String,
}

impl Evaluation {
    /// Returns the evaluation of which a program's series has the mean return.
    pub fn of_series(series: &str, env_step: u64, return_mean: f64, length_mean: f64) -> Evaluation {
        let (return_min, return_max, series) = (return_mean, return_mean, series.to_owned());
        Evaluation {
            env_step,
            return_mean,
            return_min,
            return_max,
            length_mean,
            series,
            ..Evaluation::default()
        }
    }

    /// Returns whether only its mean return is known.
    pub fn is_of_series(&self) -> bool {
        !self.series.is_empty()
    }
}

fn is_first(generation: &Generation) -> bool {
    *generation == Generation(0)
}
