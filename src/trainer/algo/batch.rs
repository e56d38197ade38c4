//! Minibatches of a rollout, shuffled by the rank's own stream, with normalized advantages.
//!
//! A rollout goes to the device once; minibatches are gathered there.
//!
//! Invariants:
//! - BATCH-1: every transition is in exactly one minibatch of an epoch.
//! - BATCH-2: for policies with memory, a minibatch has the whole rollouts of some environments, row by row
//!   `[steps][envs]`, and the states of their memory before the rollout, as in CleanRL's ppo_atari_lstm.py.
//! - With [`NormAdv::World`] the moments are those of the minibatch over all ranks: one collective
//!   per epoch, tag `advantages`.

use crate::collect::rollout::{ActionBuffer, Rollout};
use crate::distributed::memory::{upload, upload_slice};
use crate::distributed::{ProcessGroup, ReduceOp};
use crate::error::TrainerError;
use crate::policy::acting;
use crate::policy::actor_critic::PolicyInput;
use crate::policy::memory::Sequences;
use crate::policy::trunk::Rows;
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_types::learn::NormAdv;
use std::ops::Range;
use tch::{Device, Kind, TchError, Tensor};

/// A rollout on the device, `[n]` or `[n, ...]` each.
struct RolloutTensors {
    /// As [`Rows`] lays them out.
    observations: Tensor,
    actions: Tensor,
    /// `[n, choices]`, 0 where a choice was not allowed.
    masks: Option<Tensor>,
    log_probs: Tensor,
    values: Tensor,
    returns: Tensor,
    /// Absent when every row is a transition.
    weights: Option<Tensor>,
}

/// A part of a rollout: observations `[n, ...]`, actions `[n]` or `[n, width]`, masks `[n, choices]`, the rest `[n]`.
pub(crate) struct Minibatch {
    /// What the policy saw.
    pub observations: Tensor,
    /// What the policy did.
    pub actions: Tensor,
    /// What it was allowed to do, `[n, choices]`; absent without masks.
    pub(crate) masks: Option<Tensor>,
    /// Log-probability of the action when it was taken.
    pub(crate) log_probs: Tensor,
    /// The critic's value when the action was taken.
    pub values: Tensor,
    /// Advantages, normalized if so configured.
    pub advantages: Tensor,
    /// What the critic should learn.
    pub returns: Tensor,
    weights: Option<Tensor>,
    /// Absent without memory.
    sequences: Option<Sequences>,
}

impl Minibatch {
    /// What the policy is to be run on.
    pub(crate) fn input(&self) -> PolicyInput<'_> {
        let (masks, sequences) = (self.masks.as_ref(), self.sequences.as_ref());
        PolicyInput { observations: &self.observations, masks, sequences }
    }

    /// The mean over the minibatch. Rows that are not transitions count 0, and the divisor is still the size,
    /// as in ALF, so that all ranks have the same weight.
    pub(crate) fn mean(&self, values: &Tensor) -> Result<Tensor, TchError> {
        match &self.weights {
            Some(weights) => values.f_mul(weights)?.f_mean(None::<Kind>),
            None => values.f_mean(None::<Kind>),
        }
    }
}

/// The order of a rank's environments in an epoch, for policies with memory (BATCH-2).
pub(super) struct EnvOrder {
    steps: usize,
    envs: Vec<usize>,
}

impl EnvOrder {
    /// For rollouts of `steps` steps.
    pub(super) fn new(steps: usize) -> EnvOrder {
        EnvOrder { steps: steps.max(1), envs: Vec::new() }
    }

    /// Begins with a rollout of so many rows, in its own order.
    pub(super) fn restart(&mut self, rows: usize) {
        self.envs.clear();
        self.envs.extend(0..rows / self.steps);
    }

    /// Environments.
    pub(super) fn count(&self) -> usize {
        self.envs.len()
    }

    /// Draws an order of the environments, and writes that of the rows.
    pub(super) fn shuffle(&mut self, minibatch: usize, random: &mut Generator, rows: &mut Vec<usize>) {
        shuffle(&mut self.envs, random);
        let all = self.envs.len();
        rows.clear();
        for own in self.envs.chunks((minibatch / self.steps).max(1)) {
            rows.extend((0..self.steps).flat_map(|step| own.iter().map(move |env| step * all + env)));
        }
    }

    /// The places in this order of the environments of minibatch `k` of so many rows.
    pub(super) fn own(&self, k: usize, minibatch: usize) -> Range<usize> {
        let each = (minibatch / self.steps).max(1);
        k * each..(k + 1) * each
    }

    /// Writes the states before the rollout in this order, `[envs][state_len]`.
    pub(super) fn gather(&self, rollout: &Rollout, to: &mut Vec<f32>) {
        let each = rollout.states.len() / self.envs.len().max(1);
        to.clear();
        self.envs.iter().for_each(|env| to.extend_from_slice(&rollout.states[env * each..(env + 1) * each]));
    }
}

/// The rollouts of a rank's environments, as a policy with memory learns from them.
struct SequenceColumns {
    order: EnvOrder,
    /// States before the first step, `[envs, state_len]`, on the device, in the rollout's order.
    states: Tensor,
    /// As [`Rollout::resets`].
    resets: Vec<bool>,
}

impl SequenceColumns {
    /// The sequences of minibatch `k` of so many rows, which are `rows` of the rollout.
    fn get(&self, k: usize, minibatch: usize, rows: &[usize]) -> Result<Sequences, TchError> {
        let own = &self.order.envs[self.order.own(k, minibatch)];
        let indices: Vec<i64> = own.iter().map(|env| *env as i64).collect();
        let states = self.states.f_index_select(0, &upload_slice(&indices, self.states.device())?)?;
        let resets: Vec<bool> = rows.iter().map(|row| self.resets[*row]).collect();
        Sequences::new(states, &resets)
    }
}

/// Cuts rollouts into minibatches.
pub(crate) struct Batches {
    normalize: NormAdv,
    minibatch: usize,
    device: Device,
    rows: Rows,
    order: Vec<usize>,
    columns: Option<RolloutTensors>,
    /// Of policies with memory.
    sequences: Option<SequenceColumns>,
    /// Order and advantages of the current epoch.
    epoch: Option<(Tensor, Tensor)>,
    /// The number of the next minibatch on the device. With it, a rollout takes the memory of the one before,
    /// and [`Batches::next`] is the same work each time.
    at: Option<Tensor>,
}

impl Batches {
    /// Minibatches of `minibatch` of the rank's transitions.
    pub(crate) fn new(normalize: NormAdv, minibatch: usize, device: Device, rows: Rows) -> Batches {
        Batches {
            normalize,
            minibatch: minibatch.max(1),
            device,
            rows,
            order: Vec::new(),
            columns: None,
            sequences: None,
            epoch: None,
            at: None,
        }
    }

    /// Minibatches that come one after the other, without a number from the host.
    pub(crate) fn in_turn(&mut self) -> Result<(), TchError> {
        self.at = Some(Tensor::f_zeros([1], (Kind::Int64, self.device))?);
        Ok(())
    }

    /// They do.
    pub(crate) fn are_in_turn(&self) -> bool {
        self.at.is_some()
    }

    /// Changes when a rollout lies elsewhere than the one before.
    pub(crate) fn place(&self) -> u64 {
        self.columns.as_ref().map_or(0, |columns| columns.observations.data_ptr().addr() as u64)
    }

    /// Takes a rollout to the device, all but the observations that are there: `seen`.
    pub(crate) fn load(
        &mut self,
        rollout: &Rollout,
        returns: &[f32],
        seen: Option<&Tensor>,
    ) -> Result<(), TchError> {
        let n = rollout.len();
        let column = |values: &[f32]| upload_slice(values, self.device);
        let actions = match &rollout.actions {
            ActionBuffer::Discrete(actions) => Tensor::f_from_slice(actions)?,
            ActionBuffer::MultiDiscrete { width, values } => {
                Tensor::f_from_slice(values)?.f_view([n as i64, *width as i64])?
            }
            ActionBuffer::Continuous { width, values } => {
                Tensor::f_from_slice(values)?.f_view([n as i64, *width as i64])?
            }
        };
        let shape: Vec<i64> = rollout.shape.iter().map(|side| *side as i64).collect();
        let all = rollout.weights.iter().all(|weight| *weight == 1.0);
        let observations = match seen {
            Some(seen) => seen.shallow_clone(),
            None => upload(acting::batch(rollout.observations.view(), n, &shape)?, self.device)?,
        };
        let all = all && self.at.is_none();
        let masks = match rollout.masks.as_slice() {
            [] => None,
            masks => Some(upload(Tensor::f_from_slice(masks)?.f_view([n as i64, -1])?, self.device)?),
        };
        let new = RolloutTensors {
            observations: self.rows.to(&observations)?,
            actions: upload(actions, self.device)?,
            masks,
            log_probs: column(&rollout.log_probs)?,
            values: column(&rollout.values)?,
            returns: column(returns)?,
            weights: if all { None } else { Some(column(&rollout.weights)?) },
        };
        match &mut self.columns {
            Some(columns) if self.at.is_some() => {
                let there = seen.is_some() && !self.rows.turn(self.device);
                columns.replace(new, there)?;
            }
            columns => *columns = Some(new),
        }
        self.sequences = match rollout.states.as_slice() {
            [] => None,
            states => {
                let mut order = EnvOrder::new(rollout.steps);
                order.restart(n);
                let states = Tensor::f_from_slice(states)?.f_view([rollout.envs as i64, -1])?;
                let (states, resets) = (upload(states, self.device)?, rollout.resets.clone());
                Some(SequenceColumns { order, states, resets })
            }
        };
        self.order.clear();
        self.order.extend(0..n);
        Ok(())
    }

    /// Begins an epoch: draws its order, unless there is only one minibatch, and normalizes the advantages.
    pub(crate) fn start_epoch(
        &mut self,
        advantages: &[f32],
        weights: &[f32],
        random: &mut Generator,
        group: &ProcessGroup,
    ) -> Result<(), TrainerError> {
        if self.minibatch < self.order.len() {
            match &mut self.sequences {
                None => shuffle(&mut self.order, random),
                Some(all) => all.order.shuffle(self.minibatch, random, &mut self.order),
            }
        }
        let mut own: Vec<f32> = self.order.iter().map(|i| advantages[*i]).collect();
        let own_weights: Vec<f32> = self.order.iter().map(|i| weights[*i]).collect();
        normalize(self.normalize, &mut own, &own_weights, self.minibatch, group)?;
        let order: Vec<i64> = self.order.iter().map(|i| *i as i64).collect();
        let new = (upload_slice(&order, self.device)?, upload_slice(&own, self.device)?);
        match (&mut self.epoch, &mut self.at) {
            (Some((order, advantages)), Some(_)) => {
                order.f_copy_(&new.0)?;
                advantages.f_copy_(&new.1)?;
            }
            (epoch, _) => *epoch = Some(new),
        }
        if let Some(at) = &mut self.at {
            let _ = at.f_zero_()?;
        }
        Ok(())
    }

    /// Advantages normalized over the whole rollout instead of per minibatch.
    pub(crate) fn normalized(
        &self,
        how: NormAdv,
        advantages: &[f32],
        weights: &[f32],
        group: &ProcessGroup,
    ) -> Result<Vec<f32>, TrainerError> {
        let mut own = advantages.to_vec();
        normalize(how, &mut own, weights, advantages.len().max(1), group)?;
        Ok(own)
    }

    /// Minibatches of the epoch.
    pub(crate) fn count(&self) -> usize {
        self.order.len() / self.minibatch
    }

    /// Minibatch `k` of the epoch.
    pub(crate) fn get(&self, k: usize) -> Result<Minibatch, TchError> {
        let (Some(columns), Some((order, advantages))) = (&self.columns, &self.epoch) else {
            return Err(TchError::Torch("no rollout is loaded".into()));
        };
        let (start, len) = ((k * self.minibatch) as i64, self.minibatch as i64);
        let rows = order.f_narrow(0, start, len)?;
        let mut batch = columns.pick(&rows, advantages.f_narrow(0, start, len)?, self.rows)?;
        if let Some(sequences) = &self.sequences {
            let own = k * self.minibatch..(k + 1) * self.minibatch;
            batch.sequences = Some(sequences.get(k, self.minibatch, &self.order[own])?);
        }
        Ok(batch)
    }

    /// The minibatch after the last one of the epoch; only for those [in turn](Batches::in_turn).
    pub(crate) fn next(&self) -> Result<Minibatch, TchError> {
        let (Some(columns), Some((order, advantages)), Some(at)) = (&self.columns, &self.epoch, &self.at)
        else {
            return Err(TchError::Torch("no rollout is loaded".into()));
        };
        let len = self.minibatch as i64;
        let count = self.count() as i64;
        let own = |all: &Tensor| {
            all.f_narrow(0, 0, count * len)?.f_view([count, len])?.f_index_select(0, at)?.f_view([len])
        };
        let batch = columns.pick(&own(order)?, own(advantages)?, self.rows)?;
        let _ = at.shallow_clone().f_add_scalar_(1)?;
        Ok(batch)
    }
}

impl RolloutTensors {
    /// Takes another rollout of the same shape into the same memory. Observations that the device has already
    /// are where they were.
    fn replace(&mut self, new: RolloutTensors, seen: bool) -> Result<(), TchError> {
        let RolloutTensors { observations, actions, masks, log_probs, values, returns, weights } = self;
        if seen {
            *observations = new.observations;
        } else {
            observations.f_copy_(&new.observations)?;
        }
        actions.f_copy_(&new.actions)?;
        if let (Some(masks), Some(new)) = (masks, &new.masks) {
            masks.f_copy_(new)?;
        }
        log_probs.f_copy_(&new.log_probs)?;
        values.f_copy_(&new.values)?;
        returns.f_copy_(&new.returns)?;
        match (weights, new.weights) {
            (Some(weights), Some(new)) => weights.f_copy_(&new),
            (weights, new) => {
                *weights = new;
                Ok(())
            }
        }
    }

    /// The rows of this order, with their advantages.
    fn pick(&self, order: &Tensor, advantages: Tensor, rows: Rows) -> Result<Minibatch, TchError> {
        let pick = |column: &Tensor| column.f_index_select(0, order);
        Ok(Minibatch {
            observations: rows.from(&pick(&self.observations)?)?,
            actions: pick(&self.actions)?,
            masks: self.masks.as_ref().map(pick).transpose()?,
            log_probs: pick(&self.log_probs)?,
            values: pick(&self.values)?,
            returns: pick(&self.returns)?,
            advantages,
            weights: self.weights.as_ref().map(pick).transpose()?,
            sequences: None,
        })
    }
}

/// The shuffle of Fisher and Yates.
pub(crate) fn shuffle(order: &mut [usize], random: &mut Generator) {
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i as u64 + 1) as usize);
    }
}

/// Brings each run of `each` values to mean 0 and deviation 1; rows of weight 0 do not count.
pub(super) fn normalize(
    how: NormAdv,
    values: &mut [f32],
    weights: &[f32],
    each: usize,
    group: &ProcessGroup,
) -> Result<(), TrainerError> {
    if how == NormAdv::Off {
        return Ok(());
    }
    let mut all: Vec<f64> = values.chunks(each).zip(weights.chunks(each)).flat_map(advantage_sums).collect();
    if how == NormAdv::World {
        group.all_reduce_f64(&mut all, ReduceOp::Sum, "advantages")?;
    }
    for (values, sums) in values.chunks_mut(each).zip(all.as_chunks::<3>().0) {
        scale(values, *sums);
    }
    Ok(())
}

/// Count, sum and sum of squares of values with these weights.
pub(super) fn advantage_sums((values, weights): (&[f32], &[f32])) -> [f64; 3] {
    values.iter().zip(weights).fold([0.0; 3], |sums, (value, weight)| {
        let (value, weight) = (f64::from(*value), f64::from(*weight));
        [sums[0] + weight, sums[1] + weight * value, sums[2] + weight * value * value]
    })
}

/// To mean 0 and (unbiased) standard deviation 1, with CleanRL's 1e-8; `[n, sum, sum of squares]` may cover
/// more than these values.
pub(super) fn scale(values: &mut [f32], [n, sum, squares]: [f64; 3]) {
    let mean = sum / n;
    let variance = ((squares - sum * mean) / (n - 1.0)).max(0.0);
    let scale = 1.0 / (variance.sqrt() + 1e-8);
    values.iter_mut().for_each(|v| *v = ((f64::from(*v) - mean) * scale) as f32);
}

/// 1 - Var(return - value) / Var(return); NaN when returns do not vary.
pub(crate) fn explained_variance(values: &[f32], returns: &[f32]) -> f64 {
    let variance = |values: &mut dyn Iterator<Item = f64>| {
        let values: Vec<f64> = values.collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n
    };
    let all = variance(&mut returns.iter().map(|r| f64::from(*r)));
    let left = variance(&mut returns.iter().zip(values).map(|(r, v)| f64::from(*r) - f64::from(*v)));
    if all == 0.0 { f64::NAN } else { 1.0 - left / all }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_kernel::seeds::{Purpose, Seeds};

    #[test]
    fn normalization_uses_the_unbiased_deviation() {
        let mut values = [1.0, 2.0, 3.0, 4.0];
        scale(&mut values, [4.0, 10.0, 30.0]);
        // Deviation of 1..4 with n - 1 is 1.2909944.
        for (value, expected) in values.iter().zip([-1.161_895, -0.387_298_35, 0.387_298_35, 1.161_895]) {
            assert!((value - expected).abs() < 1e-6);
        }
    }

    #[test]
    fn batch_1_shuffle_is_another_permutation_per_iteration() {
        let seeds = Seeds::new(0);
        let shuffled = |epoch| {
            let mut order: Vec<usize> = (0..100).collect();
            shuffle(&mut order, &mut seeds.generator(Purpose::Shuffle, 0, epoch));
            order
        };
        let (first, second) = (shuffled(0), shuffled(1));
        assert_ne!(first, second);
        assert_eq!(first, shuffled(0));
        let mut sorted = first;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn batch_2_minibatch_has_whole_rollouts_of_some_environments() {
        let (steps, envs, minibatch) = (3, 6, 6);
        let mut order = EnvOrder::new(steps);
        order.restart(steps * envs);
        let mut rows: Vec<usize> = (0..steps * envs).collect();
        order.shuffle(minibatch, &mut Seeds::new(0).generator(Purpose::Shuffle, 0, 0), &mut rows);
        let mut all = rows.clone();
        all.sort_unstable();
        assert_eq!(all, (0..steps * envs).collect::<Vec<_>>(), "BATCH-1");
        assert_ne!(order.envs, (0..envs).collect::<Vec<_>>());
        let mut rollout = Rollout::new(&crate::env::Spec::discrete(1, 2), steps, envs, false);
        rollout.states = (0..2 * envs).map(|i| i as f32).collect();
        let mut gathered = Vec::new();
        order.gather(&rollout, &mut gathered);
        let sequences = SequenceColumns {
            states: Tensor::from_slice(&rollout.states).view([envs as i64, 2]),
            resets: (0..steps * envs).map(|row| row == envs + 4).collect(),
            order,
        };
        for (k, rows) in rows.chunks(minibatch).enumerate() {
            let own = sequences.order.envs[sequences.order.own(k, minibatch)].to_vec();
            for (step, row) in rows.chunks(2).enumerate() {
                assert_eq!(row, [step * envs + own[0], step * envs + own[1]]);
            }
            let found = sequences.get(k, minibatch, rows).unwrap();
            let states = Vec::<f32>::try_from(found.state().flatten(0, -1)).unwrap();
            let expected: Vec<f32> =
                own.iter().flat_map(|env| [2.0, 2.0].map(|by| by * *env as f32)).collect();
            assert_eq!(states, [expected[0], expected[1] + 1.0, expected[2], expected[3] + 1.0]);
            assert_eq!(states, gathered[4 * k..4 * (k + 1)]);
            assert_eq!(found.has_resets(), own.contains(&4));
        }
    }

    #[test]
    fn explained_variance_is_1_if_perfect_0_if_useless() {
        assert_eq!(explained_variance(&[1.0, 2.0], &[1.0, 2.0]), 1.0);
        assert_eq!(explained_variance(&[0.0, 0.0], &[1.0, 2.0]), 0.0);
        assert!(explained_variance(&[0.0, 1.0], &[1.0, 1.0]).is_nan());
    }
}
