//! Exchanges counters between iterations: one small all-reduce of integers, and more only when a report is
//! due.
//!
//! Invariants:
//! - Totals are exact: counts and nanoseconds are summed as 64-bit integers.
//! - Stop and report are decided by the sum, so all ranks decide alike, in the same iteration.
//! - Every rank sees every rank's fingerprint chain: each adds its own in its own slot, zeros
//!   elsewhere, so that the comparison costs no collective of its own.

use crate::distributed::{DistError, ProcessGroup, ReduceOp};
use crate::support::state::{EpisodeEnd, Interval, RankCounters, push_bounded};
use rankdeck_proto::message::Returns;

/// This rank's part of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Contribution {
    /// A signal asked this rank to stop.
    pub stop: bool,
    /// A report is due by this rank's clock.
    pub report: bool,
    /// Its last iteration took long.
    pub long: bool,
    /// A snapshot is due by this rank's clock.
    pub snapshot: bool,
    /// A rank asks this one to be taken into the group.
    pub joins: bool,
    pub counters: RankCounters,
    /// Its fingerprint chain of this iteration.
    pub chain: u64,
}

/// What all ranks know after an exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Consensus {
    /// At least one rank was asked to stop.
    pub stop: bool,
    /// A report is due on at least one rank.
    pub report: bool,
    /// The last iteration took long on at least one rank.
    pub long: bool,
    /// A snapshot is due on at least one rank.
    pub snapshot: bool,
    /// A rank asks to be taken in.
    pub joins: bool,
    /// Counters over all ranks.
    pub totals: RankCounters,
    /// Every rank's chain, in rank order.
    pub chains: Vec<u64>,
}

impl Consensus {
    /// Every rank had the same weights after every covered update.
    pub(crate) fn equal(&self) -> bool {
        self.chains.windows(2).all(|pair| pair[0] == pair[1])
    }
}

const FLAGS: usize = 5;
const HEAD: usize = FLAGS + RankCounters::WORDS;

/// Tag `collect_stats`; every iteration.
pub(crate) fn exchange(group: &ProcessGroup, contribution: Contribution) -> Result<Consensus, DistError> {
    let mut words = vec![0_i64; HEAD + group.world_size() as usize];
    words[0] = i64::from(contribution.stop);
    words[1] = i64::from(contribution.report);
    words[2] = i64::from(contribution.long);
    words[3] = i64::from(contribution.snapshot);
    words[4] = i64::from(contribution.joins);
    for (word, value) in words[FLAGS..HEAD].iter_mut().zip(contribution.counters.to_words()) {
        *word = value.cast_signed();
    }
    words[HEAD + group.rank() as usize] = contribution.chain.cast_signed();
    group.all_reduce_i64(&mut words, ReduceOp::Sum, "collect_stats")?;
    let totals: Vec<u64> = words[FLAGS..HEAD].iter().map(|word| word.cast_unsigned()).collect();
    Ok(Consensus {
        stop: words[0] > 0,
        report: words[1] > 0,
        long: words[2] > 0,
        snapshot: words[3] > 0,
        joins: words[4] > 0,
        totals: RankCounters::from_words(&totals),
        chains: words[HEAD..].iter().map(|word| word.cast_unsigned()).collect(),
    })
}

/// Episodes of all ranks, and means of other values over the ranks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct IntervalReport {
    /// The episodes that ended since the last report.
    pub interval: Interval,
    /// Means, in the order given.
    pub means: Vec<f64>,
}

/// Tag `report`; in iterations that report. One collective, with the same number of words from each rank; all
/// ranks end with the same bits.
pub(crate) fn gather(
    group: &ProcessGroup,
    own: &Interval,
    values: &[f64],
) -> Result<IntervalReport, DistError> {
    let ranks = group.all_gather_words(&to_words(own, values), "report")?;
    Ok(merge(ranks.iter().map(|words| from_words(words)).collect()))
}

const INTERVAL: usize = 6 + 2 * Interval::LATEST;

fn to_words(interval: &Interval, values: &[f64]) -> Vec<u64> {
    let Interval { returns: Returns { sum, count, min, max }, length, latest } = interval;
    let mut words = vec![sum.to_bits(), *count, min.to_bits(), max.to_bits(), *length, latest.len() as u64];
    words.extend(latest.iter().flat_map(|ended| [ended.step, ended.episode_return.to_bits()]));
    words.resize(INTERVAL, 0);
    words.extend(values.iter().map(|value| value.to_bits()));
    words
}

fn from_words(words: &[u64]) -> (Interval, Vec<f64>) {
    let at = |i: usize| words.get(i).copied().unwrap_or(0);
    let float = |i: usize| f64::from_bits(at(i));
    let returns = Returns { sum: float(0), count: at(1), min: float(2), max: float(3) };
    let kept = (at(5) as usize).min(Interval::LATEST);
    let latest =
        (0..kept).map(|i| EpisodeEnd { step: at(6 + 2 * i), episode_return: float(7 + 2 * i) }).collect();
    let values = words.iter().skip(INTERVAL).map(|word| f64::from_bits(*word)).collect();
    (Interval { returns, length: at(4), latest }, values)
}

/// Merges the ranks' reports, which are in rank order.
fn merge(ranks: Vec<(Interval, Vec<f64>)>) -> IntervalReport {
    let world_size = ranks.len() as f64;
    let mut means = vec![0.0; ranks.first().map_or(0, |(_, values)| values.len())];
    // A number that all ranks share is its own mean, to the bit.
    let shared: Vec<Option<f64>> = (0..means.len())
        .map(|i| {
            let mut bits = ranks.iter().map(|(_, values)| values.get(i).map(|value| value.to_bits()));
            let first = bits.next().flatten();
            first.filter(|first| bits.all(|other| other == Some(*first))).map(f64::from_bits)
        })
        .collect();
    let mut all = Interval::default();
    let mut ended = Vec::new();
    for (own, values) in ranks {
        means.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        ended.extend(own.latest);
        all.length += own.length;
        all.returns = all.returns.plus(own.returns);
    }
    // Stable: what ended in the same step stays in rank order.
    ended.sort_by_key(|one| one.step);
    ended.into_iter().for_each(|one| push_bounded(&mut all.latest, one));
    means.iter_mut().zip(shared).for_each(|(sum, shared)| *sum = shared.unwrap_or(*sum / world_size));
    IntervalReport { interval: all, means }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn one_differing_chain_is_unequal() {
        let consensus = |chains: &[u64]| Consensus {
            stop: false,
            report: false,
            long: false,
            snapshot: false,
            joins: false,
            totals: RankCounters::default(),
            chains: chains.to_vec(),
        };
        assert!(consensus(&[7]).equal() && consensus(&[7, 7, 7]).equal());
        assert!(!consensus(&[7, 7, 8]).equal() && !consensus(&[8, 7, 7]).equal());
    }

    /// What `merge` must give, in one list: every episode as (step, rank, return).
    #[test]
    fn last_episodes_over_all_ranks_are_exact() {
        // Rank 0 ends an episode in every step, rank 1 in every third one, rank 2 two in one step and then
        // none.
        let ended = |rank: u64, step: u64| match rank {
            0 => 1,
            1 => u64::from(step.is_multiple_of(3)),
            _ => 2 * u64::from(step == 350),
        };
        let (mut every, mut window) = (Vec::new(), VecDeque::new());
        let mut step = 0;
        // Few and many episodes between two reports, and none at all.
        for steps in [5, 0, 300, 1, 90, 4] {
            let mut ranks = vec![(Interval::default(), vec![1.0, 2.0]); 3];
            let before = every.len();
            for step in step..step + steps {
                for rank in 0..3 {
                    for _ in 0..ended(rank, step) {
                        let episode_return = (every.len() + 1) as f64;
                        every.push(episode_return);
                        ranks[rank as usize].0.add(step, episode_return, 2);
                    }
                }
            }
            step += steps;
            let ranks: Vec<_> =
                ranks.iter().map(|(own, values)| from_words(&to_words(own, values))).collect();
            let IntervalReport { interval, means } = merge(ranks);
            assert_eq!(means, [1.0, 2.0]);
            let new = &every[before..];
            assert_eq!((interval.returns.count, interval.length), (new.len() as u64, 2 * new.len() as u64));
            assert_eq!(interval.returns.sum, new.iter().sum::<f64>());
            assert_eq!(interval.returns.min, new.first().copied().unwrap_or(0.0));
            assert_eq!(interval.returns.max, new.last().copied().unwrap_or(0.0));
            interval.latest.iter().for_each(|one| push_bounded(&mut window, one.episode_return));
            let last: Vec<f64> = every.iter().rev().take(100).rev().copied().collect();
            assert_eq!(Vec::from(window.clone()), last);
        }
        assert!(every.len() > 400);
    }
}
