//! Hand-written passes of an actor and two critics, for dense networks on the CPU.
//!
//! At the sizes of classic control, libtorch spends most of an update on dispatching a few hundred operations.
//! [`TwinKernels`] has the networks of [`super::twin_critics`] as [`Mlp`]s: snapshots of the parameters, which are
//! taken again after each change. Averaging over the ranks and the optimizers' steps share their code with the
//! passes of libtorch, which stay the reference.
//!
//! Invariants:
//! - TWIN-1: an update equals libtorch's within 1e-6.
//! - The actor's loss computes no gradient of the critics' parameters.

use super::own_loss;
use super::twin_critics::{Optimizer, TrainingState};
use crate::distributed::ProcessGroup;
use crate::distributed::memory;
use crate::error::TrainerError;
use crate::policy::continuous::ContinuousLayout;
use crate::policy::parameters::{ParameterEntry, Parameters};
use crate::replay::ReplayBatch;
use rankdeck_kernel::mlp::Layer;
use rankdeck_kernel::{LayerActivation, Matrix, Mlp};
use rankdeck_types::experiment::{Activation, Kernel};
use tch::{Device, Tensor};

/// The networks, and buffers for one batch.
pub struct TwinKernels {
    /// The actor.
    pub(crate) actor: DenseActor,
    /// Its target, for rules that have one.
    pub(crate) target_actor: DenseActor,
    critics: [Mlp; 2],
    targets: [Mlp; 2],
    /// Observations of the batch.
    pub(crate) now: Matrix,
    /// Observations that the bootstrap uses.
    pub(crate) next: Matrix,
    /// An observation and an action per row.
    pair: Matrix,
    /// Gradients of the critics' outputs, and of their inputs.
    by_value: [Matrix; 2],
    by_pair: [Matrix; 2],
    by_action: Vec<f32>,
    goals: Vec<f32>,
    observation: usize,
    actions: usize,
}

/// An actor: hidden layers, and heads of one layer each.
pub(crate) struct DenseActor {
    body: Mlp,
    heads: Vec<Mlp>,
    by_hidden: Matrix,
    by_head: Matrix,
}

/// What a hand-written update works with besides the networks.
pub struct KernelStage<'a> {
    pub(crate) training: &'a mut TrainingState,
    pub(crate) batch: &'a ReplayBatch,
    pub(crate) group: &'a ProcessGroup,
}

fn gone() -> TrainerError {
    TrainerError::failure("the native kernels need networks on the CPU", "")
}

fn activation(activation: Activation) -> LayerActivation {
    match activation {
        Activation::Tanh => LayerActivation::Tanh,
        Activation::Relu => LayerActivation::Relu,
    }
}

/// Layers of entries that are pairs of weight and bias.
fn layers(entries: &[ParameterEntry]) -> Vec<Layer> {
    let width = |entry: &ParameterEntry, side: usize| entry.shape.get(side).map_or(0, |side| *side as usize);
    entries
        .chunks_exact(2)
        .map(|pair| Layer {
            inputs: width(&pair[0], 1),
            outputs: width(&pair[0], 0),
            weight: pair[0].offset,
            bias: pair[1].offset,
        })
        .collect()
}

/// Runs `load` with all parameters as numbers.
fn with_floats(parameters: &Parameters, load: impl FnOnce(&[f32])) -> Result<(), TrainerError> {
    // SAFETY: `load` copies the numbers; no tensor operation runs meanwhile.
    load(unsafe { parameters.floats() }.ok_or_else(gone)?);
    Ok(())
}

impl DenseActor {
    fn new(layout: &ContinuousLayout, rows: usize) -> DenseActor {
        let layers = layers(&layout.actor);
        let (body, heads) = layers.split_at(layout.hidden.min(layers.len()));
        let hidden = activation(layout.activation);
        let width = body.last().map_or(0, |layer| layer.outputs);
        let identity = LayerActivation::Identity;
        DenseActor {
            body: Mlp::new(body, hidden, hidden, rows),
            heads: heads.iter().map(|head| Mlp::new(&[*head], identity, identity, rows)).collect(),
            by_hidden: Matrix::new(rows, width),
            by_head: Matrix::new(rows, width),
        }
    }

    /// Takes a snapshot of the parameters.
    pub(crate) fn load(&mut self, parameters: &Parameters) -> Result<(), TrainerError> {
        with_floats(parameters, |flat| {
            self.body.load(flat);
            self.heads.iter_mut().for_each(|head| head.load(flat));
        })
    }

    /// Runs all heads; see [`DenseActor::head`].
    pub(crate) fn forward(&mut self, input: &Matrix) {
        let hidden = self.body.forward(input);
        for head in &mut self.heads {
            head.forward(hidden);
        }
    }

    /// Outputs `[rows][actions]` of one head in the last pass.
    pub(crate) fn head(&self, index: usize) -> Result<&Matrix, TrainerError> {
        self.heads.get(index).and_then(Mlp::output).ok_or_else(gone)
    }

    /// Adds the gradient of a loss to `flat`, given that of each head's outputs in the last pass over `input`.
    pub(crate) fn backward(&mut self, input: &Matrix, by_heads: &[&Matrix], flat: &mut [f32]) {
        let DenseActor { body, heads, by_hidden, by_head } = self;
        let hidden = body.output().unwrap_or(input);
        for (index, (head, by_output)) in heads.iter_mut().zip(by_heads).enumerate() {
            if index == 0 {
                head.backward(hidden, by_output, flat, Some(by_hidden));
            } else {
                head.backward(hidden, by_output, flat, Some(by_head));
                by_hidden.add(by_head);
            }
        }
        body.backward(input, by_hidden, flat, None);
    }
}

impl TwinKernels {
    /// For batches of about `rows`; `None` for other devices than the CPU, and where `kernel` is libtorch.
    pub(crate) fn new(
        layout: &ContinuousLayout,
        kernel: Kernel,
        device: Device,
        rows: usize,
    ) -> Option<Box<TwinKernels>> {
        if device != Device::Cpu || kernel == Kernel::Libtorch {
            return None;
        }
        let all = layers(&layout.critics);
        let (first, second) = all.split_at(all.len() / 2);
        let (hidden, identity) = (activation(layout.activation), LayerActivation::Identity);
        let twins = || [first, second].map(|layers| Mlp::new(layers, hidden, identity, rows));
        let width = first.first().map_or(0, |layer| layer.inputs);
        let observation = width.saturating_sub(layout.actions);
        Some(Box::new(TwinKernels {
            actor: DenseActor::new(layout, rows),
            target_actor: DenseActor::new(layout, rows),
            critics: twins(),
            targets: twins(),
            now: Matrix::new(rows, observation),
            next: Matrix::new(rows, observation),
            pair: Matrix::new(rows, width),
            by_value: [(); 2].map(|()| Matrix::new(rows, 1)),
            by_pair: [(); 2].map(|()| Matrix::new(rows, width)),
            by_action: Vec::new(),
            goals: Vec::new(),
            observation,
            actions: layout.actions,
        }))
    }

    /// Takes a snapshot of both critics.
    pub(crate) fn load_critics(&mut self, critics: &Parameters) -> Result<(), TrainerError> {
        with_floats(critics, |flat| self.critics.iter_mut().for_each(|critic| critic.load(flat)))
    }

    /// Takes a snapshot of both critics' targets.
    pub(crate) fn load_targets(&mut self, targets: &Parameters) -> Result<(), TrainerError> {
        with_floats(targets, |flat| self.targets.iter_mut().for_each(|target| target.load(flat)))
    }

    /// Brings the observations of a batch into place.
    pub(crate) fn start(&mut self, batch: &ReplayBatch) {
        self.now.copy_rows(&batch.numbers.now);
        self.next.copy_rows(&batch.numbers.next);
    }

    /// What the critics are trained towards: `reward + discount * (smaller target value - cost)`, at these actions
    /// `[rows][actions]` for the next observations. `costs` has one number per row, or none.
    pub(crate) fn set_goals(&mut self, batch: &ReplayBatch, actions: &[f32], costs: &[f32]) {
        let TwinKernels { pair, targets: [first, second], goals, .. } = self;
        pair.copy_columns(0, self.observation, &batch.numbers.next);
        pair.copy_columns(self.observation, self.actions, actions);
        let (first, second) = (first.forward(pair), second.forward(pair));
        goals.clear();
        goals.extend(first.iter().zip(second.iter()).enumerate().map(|(row, (first, second))| {
            let cost = costs.get(row).copied().unwrap_or(0.0);
            batch.rewards[row] + batch.discounts[row] * (smaller(first[0], second[0]).0 - cost)
        }));
    }

    /// One step of both critics towards the goals, by the sum of their mean squared errors.
    pub(crate) fn critic_step(
        &mut self,
        critics: &mut Parameters,
        (index, rate): (usize, f64),
        stage: &mut KernelStage<'_>,
    ) -> Result<(), TrainerError> {
        let batch = stage.batch;
        let TwinKernels { pair, critics: own, by_value, goals, .. } = self;
        pair.copy_columns(0, self.observation, &batch.numbers.now);
        pair.copy_columns(self.observation, self.actions, &batch.actions);
        let share = 1.0 / goals.len().max(1) as f32;
        let (mut loss, mut sum) = (0.0, 0.0);
        for (which, (critic, to)) in own.iter_mut().zip(by_value.iter_mut()).enumerate() {
            let values = critic.forward(pair);
            let errors: Vec<f32> =
                values.iter().zip(goals.iter()).map(|(value, goal)| value[0] - goal).collect();
            loss += errors.iter().map(|error| f64::from(*error).powi(2)).sum::<f64>() * f64::from(share);
            if which == 0 {
                sum = values.iter().map(|value| f64::from(value[0])).sum::<f64>() * f64::from(share);
            }
            let slopes: Vec<f32> = errors.iter().map(|error| 2.0 * error * share).collect();
            to.copy_rows(&slopes);
        }
        stage.step((index, rate), loss, critics, |flat| {
            for (critic, by_value) in own.iter_mut().zip(by_value.iter()) {
                critic.backward(pair, by_value, flat, None);
            }
        })?;
        stage.training.set_q_values(sum)?;
        self.load_critics(critics)
    }

    /// The mean of the smaller value of both critics (or, `first_only`, of the first's) at these actions for the
    /// observations of the batch, and the gradient of minus that mean with respect to the actions, `[rows][actions]`.
    pub(crate) fn value_of(
        &mut self,
        batch: &ReplayBatch,
        actions: &[f32],
        first_only: bool,
    ) -> (f64, &[f32]) {
        let TwinKernels { pair, critics, by_value, by_pair, by_action, .. } = self;
        pair.copy_columns(0, self.observation, &batch.numbers.now);
        pair.copy_columns(self.observation, self.actions, actions);
        let count = if first_only { 1 } else { 2 };
        let [first, second] = critics;
        let first_values = first.forward(pair);
        let share = 1.0 / pair.rows().max(1) as f32;
        let mut sum = 0.0;
        let mut slopes = [Vec::with_capacity(pair.rows()), Vec::with_capacity(pair.rows())];
        if first_only {
            for value in first_values.iter() {
                sum += f64::from(value[0]);
                slopes[0].push(-share);
            }
        } else {
            for (one, other) in first_values.iter().zip(second.forward(pair).iter()) {
                let (value, of_first) = smaller(one[0], other[0]);
                sum += f64::from(value);
                slopes[0].push(-share * of_first);
                slopes[1].push(-share * (1.0 - of_first));
            }
        }
        by_action.clear();
        by_action.resize(pair.rows() * self.actions, 0.0);
        let critics = [first, second].into_iter().zip(by_value).zip(by_pair).zip(&slopes);
        for (((critic, by_value), by_pair), slopes) in critics.take(count) {
            by_value.copy_rows(slopes);
            critic.input_gradient(pair, by_value, by_pair);
            let rows = by_action.chunks_exact_mut(self.actions.max(1)).zip(by_pair.iter());
            for (to, from) in rows {
                to.iter_mut().zip(&from[self.observation..]).for_each(|(to, from)| *to += from);
            }
        }
        (sum * f64::from(share), &self.by_action)
    }
}

/// The smaller of two values, and the first one's part of the gradient: half of it where both are equal, as in
/// `torch.minimum`.
fn smaller(first: f32, second: f32) -> (f32, f32) {
    if first < second {
        (first, 1.0)
    } else if first > second {
        (second, 0.0)
    } else if first == second {
        (first, 0.5)
    } else {
        (f32::NAN, 0.5)
    }
}

impl KernelStage<'_> {
    /// One step of the optimizer at an index, with a learning rate, by the gradient that `backward` adds to the flat
    /// buffer, averaged over the ranks.
    #[track_caller]
    pub(crate) fn step(
        &mut self,
        (index, rate): (usize, f64),
        loss: f64,
        parameters: &mut Parameters,
        backward: impl FnOnce(&mut [f32]),
    ) -> Result<(), TrainerError> {
        let optimizer = self.gradient(index, loss, backward)?;
        // SAFETY: until the step is done, no tensor operation runs.
        let gradients = unsafe { optimizer.ddp.flat_gradients() }.ok_or_else(gone)?;
        // SAFETY: as above; parameters and gradients are different buffers.
        let parameters = unsafe { parameters.floats_mut() }.ok_or_else(gone)?;
        Ok(optimizer.adam.step_flat(parameters, gradients, rate, 1.0)?)
    }

    /// The same for one number, whose gradient is given.
    #[track_caller]
    pub(crate) fn step_number(
        &mut self,
        (index, rate): (usize, f64),
        loss: f64,
        number: &mut Tensor,
        gradient: f32,
    ) -> Result<(), TrainerError> {
        let optimizer = self.gradient(index, loss, |flat| flat.iter_mut().for_each(|to| *to += gradient))?;
        // SAFETY: until the step is done, no tensor operation runs.
        let gradients = unsafe { optimizer.ddp.flat_gradients() }.ok_or_else(gone)?;
        // SAFETY: as above; the number and its gradient are different buffers.
        let number = unsafe { memory::floats_mut(number) }.ok_or_else(gone)?;
        Ok(optimizer.adam.step_flat(number, gradients, rate, 1.0)?)
    }

    #[track_caller]
    fn gradient(
        &mut self,
        index: usize,
        loss: f64,
        backward: impl FnOnce(&mut [f32]),
    ) -> Result<&mut Optimizer, TrainerError> {
        let batch = self.batch;
        let optimizer = self.training.optimizer(index).ok_or_else(gone)?;
        own_loss(optimizer.loss_name(), loss, || batch.largest())?;
        // SAFETY: the hand-written pass runs no tensor operation.
        let flat = unsafe { optimizer.ddp.flat_gradients() }.ok_or_else(gone)?;
        flat.fill(0.0);
        backward(flat);
        optimizer.ddp.reduce(self.group)?;
        optimizer.set_loss(loss)?;
        Ok(optimizer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaller_value_is_as_torch_minimum() {
        assert_eq!((smaller(1.0, 2.0), smaller(2.0, 1.0)), ((1.0, 1.0), (1.0, 0.0)));
        assert_eq!(smaller(3.0, 3.0), (3.0, 0.5));
        assert!(smaller(f32::NAN, 1.0).0.is_nan() && smaller(1.0, f32::NAN).0.is_nan());
    }
}
