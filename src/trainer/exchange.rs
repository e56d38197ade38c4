//! What the ranks tell each other between iterations: one small all-reduce of integers, and more only when a report is due.
//!
//! Invariants:
//! - EXCHANGE-1: totals are exact: counts and nanoseconds are summed as 64-bit integers.
//! - EXCHANGE-2: stop and report are decided by the sum, so all ranks decide alike, in the same iteration.
//! - EXCHANGE-3: every rank sees every rank's fingerprint chain: each adds its own in its own slot, zeros elsewhere, so that the
//!   comparison costs no collective of its own.

use super::collect::{Interval, Tally};
use super::dist::{DistError, ProcessGroup, ReduceOp};
use crate::proto::message::Returns;

/// What this rank brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Brought {
    /// A signal asked this rank to stop.
    pub stop: bool,
    /// This rank thinks that a report is due.
    pub report: bool,
    /// Its counters.
    pub tally: Tally,
    /// Its fingerprint chain of this iteration.
    pub chain: u64,
}

/// What all ranks know afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreed {
    /// At least one rank was asked to stop.
    pub stop: bool,
    /// At least one rank wants a report.
    pub report: bool,
    /// Counters over all ranks.
    pub totals: Tally,
    /// Every rank's chain, in rank order.
    pub chains: Vec<u64>,
}

impl Agreed {
    /// Every rank had the same weights after every covered update.
    pub fn equal(&self) -> bool {
        self.chains.windows(2).all(|pair| pair[0] == pair[1])
    }
}

const FLAGS: usize = 2;
const HEAD: usize = FLAGS + Tally::WORDS;

/// Tag `collect_stats`; every iteration.
pub fn exchange(group: &ProcessGroup, brought: Brought) -> Result<Agreed, DistError> {
    let mut words = vec![0_i64; HEAD + group.world_size() as usize];
    words[0] = i64::from(brought.stop);
    words[1] = i64::from(brought.report);
    for (word, value) in words[FLAGS..HEAD].iter_mut().zip(brought.tally.to_words()) {
        *word = value.cast_signed();
    }
    words[HEAD + group.rank() as usize] = brought.chain.cast_signed();
    group.all_reduce_i64(&mut words, ReduceOp::Sum, "collect_stats")?;
    let totals: Vec<u64> = words[FLAGS..HEAD].iter().map(|word| word.cast_unsigned()).collect();
    Ok(Agreed {
        stop: words[0] > 0,
        report: words[1] > 0,
        totals: Tally::from_words(&totals),
        chains: words[HEAD..].iter().map(|word| word.cast_unsigned()).collect(),
    })
}

/// Returns over all ranks, and means of other values over the ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Gathered {
    /// Returns and lengths of the episodes that ended since the last report.
    pub interval: Interval,
    /// Means, in the order given.
    pub means: Vec<f64>,
}

/// Tag `report`; in iterations that report. Two collectives.
pub fn gather(group: &ProcessGroup, own: &Interval, values: &[f64]) -> Result<Gathered, DistError> {
    let Returns { sum, count, min, max } = own.returns;
    // Counts of one interval are far below 2^53, so they are exact in f64.
    let mut sums: Vec<f64> =
        [sum, count as f64, own.length as f64].into_iter().chain(values.iter().copied()).collect();
    group.all_reduce_f64(&mut sums, ReduceOp::Sum, "report")?;
    let none = f64::NEG_INFINITY;
    let mut extremes = if count == 0 { [none, none] } else { [-min, max] };
    group.all_reduce_f64(&mut extremes, ReduceOp::Max, "report")?;
    let count = sums[1] as u64;
    let [min, max] = if count == 0 { [0.0, 0.0] } else { [-extremes[0], extremes[1]] };
    let world_size = f64::from(group.world_size());
    Ok(Gathered {
        interval: Interval { returns: Returns { sum: sums[0], count, min, max }, length: sums[2] as u64 },
        means: sums[3..].iter().map(|sum| sum / world_size).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_differing_chain_is_noticed() {
        let agreed = |chains: &[u64]| Agreed {
            stop: false,
            report: false,
            totals: Tally::default(),
            chains: chains.to_vec(),
        };
        assert!(agreed(&[7]).equal() && agreed(&[7, 7, 7]).equal());
        assert!(!agreed(&[7, 7, 8]).equal() && !agreed(&[8, 7, 7]).equal());
    }
}
