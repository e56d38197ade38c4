//! Running statistics of normalizers (mean and variance of observations, for example) that differ across ranks while
//! the weights are equal.
//!
//! Their fingerprints come with those of the weights, at the same positions. Ranks may normalize by their own data on
//! purpose, so that a difference is never more than a warning, and it must last: statistics that were equal once
//! after they had changed are synchronized now and then, and are never reported. Rounding does not count.

use crate::watch::history::rank_history::RankHistory;
use rankdeck_proto::message::{FingerprintPosition, FingerprintSample};
use rankdeck_types::ids::Rank;
use serde::{Deserialize, Serialize};

/// Changes in a row after which all ranks must still differ: longer than programs that synchronize now and then
/// go without.
const LASTING: u32 = 64;
/// Difference of sums, relative to the sum of all magnitudes, up to which statistics may differ by rounding.
const ROUNDING: f64 = 1e-6;

/// Statistics that differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NormalizerDrift {
    /// The first step known at which they did.
    pub since: u64,
    pub ranks: Vec<Rank>,
    /// Steps compared at which they differed.
    pub steps: u32,
}

/// What is known of the normalizers of a generation.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NormalizerComparison {
    compared_upto: Option<FingerprintPosition>,
    /// Each rank's statistics at the position before.
    before: Vec<[u32; 8]>,
    since: Option<u64>,
    differed: u32,
    /// They were equal after they had changed.
    synchronized: bool,
    drift: Option<NormalizerDrift>,
}

impl NormalizerComparison {
    /// Compares what has come since the last call.
    pub fn compare(&mut self, living: &[(Rank, &RankHistory)]) {
        let Some((_, first)) = living.first().filter(|_| living.len() > 1) else { return };
        for position in first.normalizers(self.compared_upto) {
            let at: Option<Vec<&FingerprintSample>> =
                living.iter().map(|(_, history)| history.normalizers_at(position)).collect();
            if let Some(at) = at {
                self.compared_upto = Some(position);
                self.step(&at, living);
            }
        }
    }

    fn step(&mut self, at: &[&FingerprintSample], living: &[(Rank, &RankHistory)]) {
        let step = at.first().map_or(0, |first| first.step);
        // Other normalizers on some ranks are meant to differ.
        let comparable =
            at.windows(2).all(|two| two[0].shapes == two[1].shapes) && at.iter().all(|one| one.finite);
        let lanes: Vec<[u32; 8]> = at.iter().map(|one| one.lanes).collect();
        let before = std::mem::replace(&mut self.before, lanes);
        if !comparable || before.len() != at.len() {
            return;
        }
        let changed = at.iter().zip(&before).all(|(now, before)| now.lanes != *before);
        if !differ(at) {
            self.synchronized |= changed;
            (self.since, self.differed) = (None, 0);
            return;
        }
        if changed {
            self.differed += 1;
        }
        let since = *self.since.get_or_insert(step);
        if self.differed >= LASTING {
            let ranks = living.iter().map(|(rank, _)| *rank).collect();
            self.drift.get_or_insert(NormalizerDrift { since, ranks, steps: self.differed });
        }
    }

    /// The difference, if it is worth a warning.
    pub fn drift(&self) -> Option<&NormalizerDrift> {
        self.drift.as_ref().filter(|_| !self.synchronized)
    }
}

/// They differ by more than rounding.
fn differ(at: &[&FingerprintSample]) -> bool {
    let equal = at.windows(2).all(|two| two[0].lanes == two[1].lanes);
    let extent = |value: fn(&FingerprintSample) -> f64| {
        let values = at.iter().map(|one| value(one));
        let (low, high) =
            values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
        high - low
    };
    let scale = at.iter().map(|one| one.scale).fold(f64::MIN_POSITIVE, f64::max);
    !equal && extent(|one| one.sum).max(extent(|one| one.scale)) / scale > ROUNDING
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::message::NORMALIZERS;

    fn taken(step: u64, value: f64) -> FingerprintSample {
        let lane = (value.to_bits() >> 32 ^ value.to_bits()) as u32 | 1;
        FingerprintSample {
            optimizer: NORMALIZERS,
            step,
            lanes: [lane; 8],
            sum: value,
            scale: value.abs().max(1.0),
            finite: true,
            ..FingerprintSample::default()
        }
    }

    /// The drift between two ranks after `steps` steps; `value` returns the value of a rank at a step.
    fn found(steps: u64, value: impl Fn(u64, u64) -> f64) -> Option<NormalizerDrift> {
        let mut all = [RankHistory::default(), RankHistory::default()];
        let mut known = NormalizerComparison::default();
        for step in 0..steps {
            for (rank, history) in (0..).zip(&mut all) {
                history.taken(&taken(step, value(rank, step)));
            }
            known.compare(&[(Rank(0), &all[0]), (Rank(1), &all[1])]);
        }
        known.drift().cloned()
    }

    #[test]
    fn normalizers_that_always_differ_are_found() {
        let own = |rank: u64, step: u64| (step + 1) as f64 + rank as f64;
        assert_eq!(found(u64::from(LASTING), own), None, "not for long enough");
        let drift = found(80, own).unwrap();
        assert_eq!((drift.since, drift.ranks.len()), (1, 2));
    }

    #[test]
    fn synchronized_normalizers_are_not_found() {
        assert_eq!(found(200, |_, step| step as f64), None, "at every step");
        let at_times = |rank: u64, step: u64| {
            if step % 10 == 5 { step as f64 + 0.5 } else { step as f64 + rank as f64 }
        };
        assert_eq!(found(200, at_times), None, "now and then");
        let rounding = |rank: u64, step: u64| step as f64 * (1.0 + 1e-9 * rank as f64);
        assert_eq!(found(200, rounding), None);
    }

    /// Rank 1 makes twice as many steps between collectives: its statistics are equal at equal positions only.
    #[test]
    fn normalizers_are_compared_at_equal_positions() {
        let mut all = [RankHistory::default(), RankHistory::default()];
        let mut known = NormalizerComparison::default();
        for seq in 0..200 {
            for (rank, history) in (0..).zip(&mut all) {
                let position = Some(FingerprintPosition { seq, steps: 0 });
                let step = seq * (1 + rank);
                history.taken(&FingerprintSample { step, position, ..taken(0, seq as f64) });
            }
            known.compare(&[(Rank(0), &all[0]), (Rank(1), &all[1])]);
        }
        assert_eq!((known.drift(), known.synchronized), (None, true));
    }

    #[test]
    fn constant_or_other_normalizers_are_not_found() {
        assert_eq!(found(200, |rank, _| rank as f64), None, "constants of each rank");
        let mut all = [RankHistory::default(), RankHistory::default()];
        let mut known = NormalizerComparison::default();
        for step in 0..200 {
            for (rank, history) in (0..).zip(&mut all) {
                let value = f64::from(rank) + step as f64;
                history.taken(&FingerprintSample { shapes: rank, ..taken(step, value) });
            }
        }
        known.compare(&[(Rank(0), &all[0]), (Rank(1), &all[1])]);
        assert_eq!(known.drift(), None, "an evaluation's own on one rank");
    }
}
