//! How long iterations of a program take, from what its ranks say: a clean stop waits for the one under way.

use rankdeck_types::ids::Rank;
use std::collections::{BTreeMap, VecDeque};

/// Intervals that are remembered. An evaluation or a checkpoint now and then is among so many.
const KEPT: usize = 64;

/// What was heard of the iterations of a generation.
#[derive(Debug, Default)]
pub(super) struct Rhythm {
    /// Latest iteration of each rank, and when it was told, ms.
    latest: BTreeMap<Rank, (u64, u64)>,
    /// Milliseconds between an iteration and the one told after it.
    intervals: VecDeque<u64>,
}

impl Rhythm {
    /// A rank has told its iteration.
    pub(super) fn heard(&mut self, rank: Rank, iteration: u64, now: u64) {
        let Some((before, at)) = self.latest.get(&rank).copied() else {
            self.latest.insert(rank, (iteration, now));
            return;
        };
        if iteration <= before {
            return;
        }
        self.latest.insert(rank, (iteration, now));
        if self.intervals.len() == KEPT {
            self.intervals.pop_front();
        }
        self.intervals.push_back(now.saturating_sub(at) / (iteration - before));
    }

    /// The longest iteration lately, ms; `None` while none has been seen from its beginning to its end.
    pub(super) fn longest(&self) -> Option<u64> {
        self.intervals.iter().copied().max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iterations_are_timed_per_rank_and_the_longest_counts() {
        let mut rhythm = Rhythm::default();
        rhythm.heard(Rank(0), 7, 1_000);
        rhythm.heard(Rank(1), 7, 1_100);
        assert_eq!(rhythm.longest(), None, "nothing is known of the first one");
        rhythm.heard(Rank(0), 7, 2_000);
        rhythm.heard(Rank(0), 8, 21_000);
        assert_eq!(rhythm.longest(), Some(20_000), "repeated counters begin no iteration");
        rhythm.heard(Rank(1), 11, 25_100);
        assert_eq!(rhythm.longest(), Some(20_000), "four in 24 s");
        for iteration in 9..9 + KEPT as u64 {
            rhythm.heard(Rank(0), iteration, 21_000 + 10 * iteration);
        }
        assert!(rhythm.longest().is_some_and(|longest| longest < 1_000), "long ago");
    }
}
