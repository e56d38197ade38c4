//! Running moments of observations and discounted returns, over all ranks.
//!
//! Gymnasium's wrappers keep moments per environment and never save them; here one set serves all ranks and
//! is part of the checkpoint. During a rollout every rank keeps its new moments separate; at its end they are
//! gathered in one collective and merged in rank order by Chan's formula (Chan, Golub and LeVeque 1979), so
//! that all ranks end with the same bits.
//!
//! Invariants:
//! - NORM-1: after a merge the moments are bit-equal on all ranks, and equal to those of one rank that saw
//!   everything, but for rounding (1e-12). With `distributed.invariant` they are kept per block of environments and
//!   merged in the order of the blocks: bit-equal for any number of ranks.
//! - Observations of a rollout are normalized by the moments as they were at its beginning, so that
//!   what is stored is what the policy saw; rewards by the moments that include the rollout, as they are not
//!   seen before learning.

use crate::distributed::{DistError, ProcessGroup};
use crate::env::{ObservationType, Observations, Spec};
use crate::error::TrainerError;
use rankdeck_types::experiment::Collect;
use tch::{Device, Kind, Tensor};

/// Gymnasium's start: a mean of 0 and a variance of 1 that weigh next to nothing.
const START_COUNT: f64 = 1e-4;
/// Gymnasium's guard against a variance of 0.
pub(crate) const EPSILON: f64 = 1e-8;

/// Count, means and sums of squared deviations of vectors.
#[derive(Debug, Clone, PartialEq)]
pub struct Moments {
    count: f64,
    mean: Vec<f64>,
    m2: Vec<f64>,
}

impl Moments {
    /// No vectors of `width` numbers yet.
    fn none(width: usize) -> Moments {
        Moments { count: 0.0, mean: vec![0.0; width], m2: vec![0.0; width] }
    }

    /// The start of a run: mean 0, variance 1.
    pub fn start(width: usize) -> Moments {
        Moments { count: START_COUNT, mean: vec![0.0; width], m2: vec![START_COUNT; width] }
    }

    /// Adds one vector.
    fn add(&mut self, values: impl Iterator<Item = f64>) {
        self.count += 1.0;
        for ((value, mean), m2) in values.zip(&mut self.mean).zip(&mut self.m2) {
            let before = value - *mean;
            *mean += before / self.count;
            *m2 += before * (value - *mean);
        }
    }

    /// Adds other moments.
    fn merge(&mut self, other: &Moments) {
        if other.count == 0.0 {
            return;
        }
        let count = self.count + other.count;
        let theirs = other.mean.iter().zip(&other.m2);
        for ((mean, m2), (their_mean, their_m2)) in self.mean.iter_mut().zip(&mut self.m2).zip(theirs) {
            let apart = their_mean - *mean;
            *mean += apart * other.count / count;
            *m2 += their_m2 + apart * apart * self.count * other.count / count;
        }
        self.count = count;
    }

    /// Population variance of number `i`.
    fn variance(&self, i: usize) -> f64 {
        self.m2[i] / self.count
    }

    fn numbers(&self) -> impl Iterator<Item = f64> + '_ {
        std::iter::once(self.count).chain(self.mean.iter().copied()).chain(self.m2.iter().copied())
    }

    fn from_numbers(numbers: &[f64]) -> Moments {
        let width = numbers.len().saturating_sub(1) / 2;
        let at = |from: usize| numbers.get(from..from + width).unwrap_or_default().to_vec();
        Moments { count: numbers.first().copied().unwrap_or(0.0), mean: at(1), m2: at(1 + width) }
    }
}

/// Moments over all ranks, and what this rank has seen since they were merged.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RunningMoments {
    all: Moments,
    /// Per block of environments.
    own: Vec<Moments>,
}

impl RunningMoments {
    /// Of vectors of `width` numbers, from environments in `blocks` blocks (at least one).
    pub(crate) fn new(width: usize, blocks: usize) -> RunningMoments {
        RunningMoments { all: Moments::start(width), own: vec![Moments::none(width); blocks.max(1)] }
    }

    /// Adds a vector of an environment in this block.
    pub(crate) fn note(&mut self, block: usize, values: impl Iterator<Item = f64>) {
        if let Some(own) = self.own.get_mut(block) {
            own.add(values);
        }
    }

    /// Writes `(x - mean) / deviation`, bounded to `-clip..=clip`.
    pub(crate) fn normalize(&self, values: &[f32], clip: f64, to: &mut [f32]) {
        for (i, (to, value)) in to.iter_mut().zip(values).enumerate() {
            *to = self.normalized(i, *value, clip);
        }
    }

    /// Number `i` of a vector, normalized.
    fn normalized(&self, i: usize, value: f32, clip: f64) -> f32 {
        let value = (f64::from(value) - self.all.mean[i]) / (self.all.variance(i) + EPSILON).sqrt();
        value.clamp(-clip, clip) as f32
    }

    /// What rewards are multiplied by: 1 / deviation of number 0.
    pub(crate) fn scale(&self) -> f64 {
        1.0 / (self.all.variance(0) + EPSILON).sqrt()
    }

    /// The merged moments, for a checkpoint: count, means, sums of squares, as bits.
    pub(crate) fn words(&self) -> Vec<u64> {
        self.all.numbers().map(f64::to_bits).collect()
    }

    /// Restores [`RunningMoments::words`].
    pub(crate) fn restore(&mut self, words: &[u64]) {
        let numbers: Vec<f64> = words.iter().map(|bits| f64::from_bits(*bits)).collect();
        if numbers.len() == 1 + 2 * self.all.mean.len() {
            self.all = Moments::from_numbers(&numbers);
        }
    }
}

/// Refuses to normalize observations that are bytes.
pub(crate) fn check(collect: &Collect, spec: &Spec) -> Result<(), TrainerError> {
    match spec.observation_type {
        ObservationType::U8 if collect.normalise_observations => Err(TrainerError::usage(
            "collect.normalise_observations needs observations of numbers; this environment returns images of bytes",
            "remove collect.normalise_observations, or set policy.network = \"mlp\"",
        )),
        _ => Ok(()),
    }
}

/// Normalizes observations by their running moments over all ranks, where `collect.normalise_observations` is set.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ObservationNorm {
    moments: Option<RunningMoments>,
    clip: f64,
    width: usize,
    seen: Vec<f32>,
}

impl ObservationNorm {
    /// For observations of this kind.
    pub(crate) fn new(collect: &Collect, spec: &Spec) -> ObservationNorm {
        let width = spec.observation_len();
        ObservationNorm {
            moments: collect.normalise_observations.then(|| RunningMoments::new(width, 1)),
            clip: collect.clip_observations,
            width: width.max(1),
            seen: Vec::new(),
        }
    }

    /// Adds what the policy acts on to this rank's moments; they count from the next [`merge`] on.
    pub(crate) fn note(&mut self, observations: Observations<'_>) {
        if let (Some(moments), Observations::F32(values)) = (&mut self.moments, observations) {
            for row in values.chunks_exact(self.width) {
                moments.note(0, row.iter().map(|x| f64::from(*x)));
            }
        }
    }

    /// Normalizes whole observations in place.
    pub(crate) fn apply(&self, values: &mut [f32]) {
        let Some(moments) = &self.moments else { return };
        for row in values.chunks_exact_mut(self.width) {
            for (i, value) in row.iter_mut().enumerate() {
                *value = moments.normalized(i, *value, self.clip);
            }
        }
    }

    /// Observations as the networks get them.
    pub(crate) fn view<'a>(&'a mut self, observations: Observations<'a>) -> Observations<'a> {
        match observations {
            Observations::F32(values) if self.moments.is_some() => {
                let mut seen = std::mem::take(&mut self.seen);
                seen.clear();
                seen.extend_from_slice(values);
                self.apply(&mut seen);
                self.seen = seen;
                Observations::F32(&self.seen)
            }
            other => other,
        }
    }

    /// The moments, to be merged over all ranks.
    pub(crate) fn moments(&mut self) -> Option<&mut RunningMoments> {
        self.moments.as_mut()
    }

    /// The merged moments, as words; `None` where none are kept.
    pub(crate) fn words(&self) -> Option<Vec<u64>> {
        self.moments.as_ref().map(RunningMoments::words)
    }

    /// Restores [`ObservationNorm::words`].
    pub(crate) fn restore(&mut self, words: &[u64]) {
        if let Some(moments) = &mut self.moments {
            moments.restore(words);
        }
    }
}

/// Means and population variances of [`RunningMoments::words`]; `None` where none are kept.
pub(crate) fn mean_and_variance(words: &[u64]) -> Option<(Vec<f64>, Vec<f64>)> {
    let numbers: Vec<f64> = words.iter().map(|bits| f64::from_bits(*bits)).collect();
    let moments = Moments::from_numbers(&numbers);
    let variances = (0..moments.mean.len()).map(|i| moments.variance(i)).collect();
    (!words.is_empty()).then_some((moments.mean, variances))
}

/// Merges what all ranks saw into each of `running` (NORM-1). One collective for all of them, none without
/// any; tag `normalize`. `device` is where the group's tensors live.
pub(crate) fn merge(
    running: &mut [&mut RunningMoments],
    group: &ProcessGroup,
    device: Device,
) -> Result<(), DistError> {
    if running.is_empty() {
        return Ok(());
    }
    let own: Vec<f64> = running.iter().flat_map(|each| each.own.iter().flat_map(Moments::numbers)).collect();
    let gathered = group.all_gather(&Tensor::from_slice(&own).to_device(device), "normalise")?;
    for tensor in &gathered {
        let mut numbers = vec![0.0_f64; own.len()];
        let len = numbers.len();
        tensor.to_device(Device::Cpu).to_kind(Kind::Double).copy_data(&mut numbers, len);
        let mut rest = numbers.as_slice();
        for each in running.iter_mut() {
            for _ in 0..each.own.len() {
                let (block, later) = rest.split_at(1 + 2 * each.all.mean.len());
                each.all.merge(&Moments::from_numbers(block));
                rest = later;
            }
        }
    }
    for each in running {
        let none = Moments::none(each.all.mean.len());
        each.own.fill(none);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(n: usize) -> Vec<[f64; 2]> {
        (0..n).map(|i| [1e3 + (i as f64 * 0.7).sin(), (i * i % 17) as f64]).collect()
    }

    #[test]
    fn norm_1_merged_moments_equal_those_of_the_whole() {
        let all = values(1000);
        let mut whole = Moments::start(2);
        all.iter().for_each(|row| whole.add(row.iter().copied()));
        let mut merged = Moments::start(2);
        for part in all.chunks(137) {
            let mut own = Moments::none(2);
            part.iter().for_each(|row| own.add(row.iter().copied()));
            merged.merge(&own);
        }
        merged.merge(&Moments::none(2));
        for (a, b) in whole.numbers().zip(merged.numbers()) {
            assert!((a - b).abs() <= 1e-9 * a.abs().max(1.0), "{a} {b}");
        }
        let mean = all.iter().map(|row| row[0]).sum::<f64>() / 1000.0;
        let variance = all.iter().map(|row| (row[0] - mean).powi(2)).sum::<f64>() / 1000.0;
        assert!(
            (merged.mean[0] - mean).abs() < 1e-3 * mean && (merged.variance(0) / variance - 1.0).abs() < 0.5
        );
    }

    #[test]
    fn values_are_normalized_and_clipped() {
        let mut running = RunningMoments::new(2, 1);
        values(5000).iter().for_each(|row| running.note(0, row.iter().copied()));
        let own = running.own[0].clone();
        running.all = Moments::none(2);
        running.all.merge(&own);
        let mut normalized = Vec::new();
        for row in values(5000) {
            let mut to = [0.0; 2];
            running.normalize(&row.map(|x| x as f32), 1.5, &mut to);
            normalized.push(f64::from(to[1]));
        }
        assert!(normalized.iter().sum::<f64>().abs() / 5000.0 < 0.1);
        assert!(normalized.iter().all(|x| x.abs() <= 1.5) && normalized.iter().any(|x| *x > 1.0));
        let mut copy = RunningMoments::new(2, 1);
        copy.restore(&running.words());
        assert_eq!(copy.all, running.all);
    }

    #[test]
    fn observations_are_normalized_by_merged_moments_only() {
        let collect = Collect { normalise_observations: true, clip_observations: 2.0, ..Collect::default() };
        let spec = Spec::discrete(2, 2);
        let mut norm = ObservationNorm::new(&collect, &spec);
        let rows: Vec<f32> = values(200).iter().flatten().map(|x| *x as f32).collect();
        norm.note(Observations::F32(&rows));
        let first = norm.view(Observations::F32(&[1.0, -1.0, 9.0, 0.5])).f32().unwrap().to_vec();
        assert!((first[0] - 1.0).abs() < 1e-6 && first[2] == 2.0, "not merged yet: {first:?}");
        let moments = norm.moments().unwrap();
        let own = std::mem::replace(&mut moments.own[0], Moments::none(2));
        moments.all.merge(&own);
        let (mean, variance) = mean_and_variance(&norm.words().unwrap()).unwrap();
        let mut applied = [1e3, 5.0];
        norm.apply(&mut applied);
        for (i, (got, raw)) in applied.iter().zip([1e3, 5.0]).enumerate() {
            let expected = ((raw - mean[i]) / (variance[i] + EPSILON).sqrt()).clamp(-2.0, 2.0);
            assert!((f64::from(*got) - expected).abs() < 1e-6, "{got} {expected}");
        }
        let mut off = ObservationNorm::new(&Collect::default(), &spec);
        off.note(Observations::F32(&rows));
        assert_eq!(off.view(Observations::F32(&[7.0, 8.0])), Observations::F32(&[7.0, 8.0]));
        assert_eq!(off.words(), None);
        let bytes = Spec { observation_type: ObservationType::U8, ..spec };
        assert!(
            check(&collect, &bytes).is_err_and(|error| error.usage)
                && check(&collect, &Spec::discrete(2, 2)).is_ok()
        );
    }

    #[test]
    fn first_moments_change_nothing() {
        let mut to = [0.0; 2];
        RunningMoments::new(2, 1).normalize(&[0.5, -2.0], 10.0, &mut to);
        assert!((to[0] - 0.5).abs() < 1e-6 && (to[1] + 2.0).abs() < 1e-6);
    }
}
