//! Counting: a rank's own counters, and the returns of its episodes.

use crate::proto::message::{Counters, Returns};

/// This rank's own counters since the run began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Environment steps: one per accepted action.
    pub env_step: u64,
    /// Transitions that training may use.
    pub samples: u64,
    /// Finished episodes.
    pub episodes: u64,
    /// Nanoseconds spent collecting; an integer, so that sums over ranks are exact.
    pub duration_ns: u64,
}

impl Tally {
    /// Words of [`Tally::to_words`].
    pub const WORDS: usize = 4;

    /// The form for collectives and checkpoints.
    pub fn to_words(self) -> [u64; Tally::WORDS] {
        [self.env_step, self.samples, self.episodes, self.duration_ns]
    }

    /// Back from [`Tally::to_words`]; missing words count 0.
    pub fn from_words(words: &[u64]) -> Tally {
        let at = |i: usize| words.get(i).copied().unwrap_or(0);
        Tally { env_step: at(0), samples: at(1), episodes: at(2), duration_ns: at(3) }
    }

    /// Both together.
    pub fn plus(self, other: Tally) -> Tally {
        let [a, b] = [self.to_words(), other.to_words()];
        Tally::from_words(&std::array::from_fn::<u64, { Tally::WORDS }, _>(|i| a[i].saturating_add(b[i])))
    }

    /// The form for events.
    pub fn counters(self, train_iter: u64, updates: u64, returns: Returns) -> Counters {
        Counters {
            train_iter,
            env_step: self.env_step,
            samples: self.samples,
            episodes: self.episodes,
            duration_s: self.duration_ns as f64 * 1e-9,
            updates,
            returns,
        }
    }
}

/// Returns and lengths of the episodes that ended since the last report.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Interval {
    /// Returns.
    pub returns: Returns,
    /// Sum of their lengths.
    pub length: u64,
}

impl Interval {
    /// Adds an episode.
    pub fn add(&mut self, episode_return: f64, length: u64) {
        let first = self.returns.count == 0;
        let pick = |old: f64, choose: fn(f64, f64) -> f64| {
            if first { episode_return } else { choose(old, episode_return) }
        };
        self.returns = Returns {
            sum: self.returns.sum + episode_return,
            count: self.returns.count + 1,
            min: pick(self.returns.min, f64::min),
            max: pick(self.returns.max, f64::max),
        };
        self.length += length;
    }
}
