//! What each process uses of a GPU. The driver keeps the samples of a process that has stopped using it: only
//! those count that are new.

use std::collections::BTreeMap;

/// A sample that has been the latest of its process for more rounds than this is of the past.
const ROUNDS: u32 = 2;

/// The latest samples of each GPU, by its unique name.
#[derive(Debug, Default)]
pub struct Shares(BTreeMap<String, BTreeMap<u32, Share>>);

#[derive(Debug, Clone, Copy, PartialEq)]
struct Share {
    time: u64,
    percent: u32,
    /// Rounds since it was new.
    rounds: u32,
}

impl Shares {
    /// The latest share of each process that still gets new ones, (pid, percent), from what the driver tells
    /// in this round: (pid, time, percent) in any order.
    pub fn latest(&mut self, gpu: &str, mut told: Vec<(u32, u64, u32)>) -> Vec<(u32, u32)> {
        told.sort_unstable();
        let told: BTreeMap<u32, (u64, u32)> =
            told.into_iter().map(|(pid, time, percent)| (pid, (time, percent))).collect();
        let known = self.0.entry(gpu.to_owned()).or_default();
        // A process that the driver tells nothing of any more is no news.
        known.retain(|pid, _| told.contains_key(pid));
        for (pid, (time, percent)) in told {
            let share = known.entry(pid).or_insert(Share { time, percent, rounds: 0 });
            share.rounds = if share.time == time { share.rounds + 1 } else { 1 };
            (share.time, share.percent) = (time, percent);
        }
        let fresh = known.iter().filter(|(_, share)| share.rounds <= ROUNDS);
        fresh.map(|(pid, share)| (*pid, share.percent)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_share_of_a_process_counts() {
        let told = vec![(7, 20, 4), (7, 10, 90), (8, 5, 1)];
        assert_eq!(Shares::default().latest("a", told), [(7, 4), (8, 1)]);
    }

    #[test]
    fn a_share_that_does_not_become_new_is_dropped_and_comes_back() {
        let mut shares = Shares::default();
        let busy = |time| vec![(7, 10, 90), (8, time, 30)];
        assert_eq!(shares.latest("a", busy(10)), [(7, 90), (8, 30)]);
        assert_eq!(shares.latest("a", busy(20)), [(7, 90), (8, 30)], "a round may come early");
        assert_eq!(shares.latest("a", busy(30)), [(8, 30)], "7 is idle");
        assert_eq!(shares.latest("b", busy(30)), [(7, 90), (8, 30)], "another GPU");
        assert_eq!(shares.latest("a", vec![(7, 40, 50), (8, 40, 30)]), [(7, 50), (8, 30)]);
        assert!(shares.latest("a", vec![]).is_empty());
    }
}
