//! How far the training has come: totals of all ranks, and what a program says that does not know rankdeck.

use crate::report::RankProgress;
use rankdeck_proto::message::Counters;
use rankdeck_types::ids::{Rank, Timestamp};
use serde::{Deserialize, Serialize};

/// Rank 0's latest all-reduced totals. [`Progress`] follows when every rank has told its own counters, which
/// may never happen: a host may be out of reach.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LatestTotals {
    /// Sums over all ranks.
    pub counters: Counters,
    /// Global steps per second of wall time, smoothed.
    pub steps_per_s: f64,
    /// When they came.
    pub at: Timestamp,
    /// How old they were by then, milliseconds: of a run that was found, they are read from records.
    #[serde(default)]
    pub age_ms: u64,
    /// Usual time between two reports, milliseconds: the longest of late.
    pub gap_ms: u64,
}

impl LatestTotals {
    /// The next ones; those of a generation that begins anew say nothing about the time between two.
    pub(crate) fn follow(
        before: Option<&LatestTotals>,
        counters: Counters,
        steps_per_s: f64,
        at: Timestamp,
        age_ms: u64,
    ) -> Self {
        let gap_ms = before
            .filter(|before| counters.train_iter > before.counters.train_iter)
            .map_or(0, |before| before.since(at).saturating_sub(age_ms).max(before.gap_ms / 8 * 7));
        LatestTotals { counters, steps_per_s, at, age_ms, gap_ms }
    }

    /// Milliseconds from when the ranks said them to `now`.
    pub fn since(&self, now: Timestamp) -> u64 {
        now.since(self.at).saturating_add(self.age_ms)
    }
}

/// All-reduced totals beside the ranks' own counters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Sums over all ranks, all-reduced by them.
    pub totals: Counters,
    /// Sum of the ranks' own counters of the same iteration.
    pub sum: Counters,
    /// Both agree exactly (integers).
    pub consistent: bool,
    /// The ranks all-reduced the totals; otherwise they are the sum.
    pub reduced: bool,
    /// Global steps per second of wall time, smoothed.
    pub steps_per_s: f64,
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

impl Progress {
    /// Milliseconds from when the ranks said it to `now`.
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
    /// How old it was by then, milliseconds.
    #[serde(default)]
    pub age_ms: u64,
}

impl OwnMetrics {
    /// Milliseconds from when the program said them to `now`.
    pub fn since(&self, now: Timestamp) -> u64 {
        now.since(self.at).saturating_add(self.age_ms)
    }
}
