//! Deep Q-learning over all ranks: each rank fills its own replay and contributes its share of every batch.
//!
//! Mnih et al. 2015, with the choice of the next action by the online network (van Hasselt et al. 2016,
//! equation 4), n-step returns (REPLAY-2 makes them) and dueling networks (Wang et al. 2016, equation 9) as
//! options. The mean squared TD error without halving is CleanRL's and DI-engine's.
//!
//! An iteration is `collect.num_steps` steps of every environment, then `updates_per_iteration` updates
//! ([`QLearner`]). Epsilon falls with the environment steps over all ranks, so that it depends on
//! experience and not on the world size. Reference: CleanRL's dqn.py and dqn_atari.py (linear epsilon),
//! DI-engine's dqn (exponential epsilon, double, dueling, n-step).
//!
//! After a cut by a time limit, the value of the true last observation counts, as in CleanRL (REPLAY-2).
//!
//! Invariants:
//! - DQN-1: every rank makes the same number of updates in the same iterations (OFFPOLICY-1).
//! - QLEARN-1: gradients are averaged over the ranks, then clipped: with equal shares of a batch, the ranks
//!   learn what one rank would learn from the whole.
//! - QLEARN-2: plain Rust and libtorch give the same update within 1e-6.
//! - QLEARN-3: online and target networks stay equal bit by bit over the ranks; both are broadcast at the
//!   start and covered by the fingerprint.

use super::adam::Adam;
use super::captured_update::{CapturableUpdate, CapturedUpdate, GraphCapture, GraphSplitter};
use super::device_metrics::{self, DeviceMetrics};
use super::epsilon_greedy::{linear, mask_of, random_action};
use super::off_policy::{Learner, OffPolicyAlgorithm, OffPolicySettings, shares};
use super::{BuildContext, ScalarStat, bucket_bytes, own_loss};
use crate::collect::rollout::ActionBuffer;
use crate::distributed::cuda::CapturedPass;
use crate::distributed::memory::{HostValues, PackedUpload, upload};
use crate::distributed::{DataParallel, Ddp, ProcessGroup};
use crate::env::{Observations, Spec};
use crate::error::TrainerError;
use crate::policy::distribution::most_probable;
use crate::policy::parameters::Parameters;
use crate::policy::q_network::{DenseQNetwork, QLayout, QNetwork};
use crate::policy::trunk::{BackwardSplit, splits_backward};
use crate::replay::{ReplayBatch, Shown};
use crate::startup::setup::Sizes;
use crate::support::state::{AlgorithmState, MODEL, NamedWords, RestoredState};
use rankdeck_kernel::loss::{Distance, q_loss, q_targets};
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_kernel::optimizer::{clip_scale, sum_of_squares};
use rankdeck_kernel::seeds::Seeds;
use rankdeck_kernel::{Isa, Matrix};
use rankdeck_proto::show::{PolicyEstimate, ScoreKind};
use rankdeck_types::experiment::{Experiment, Kernel};
use rankdeck_types::learn::{DqnConfig as Settings, EpsilonDecay, TdLoss};
use tch::{Device, Kind, TchError, Tensor};

/// DQN on one rank: the learner and how it acts.
pub(crate) struct DqnAlgorithm {
    learner: QLearner,
    settings: Settings,
    actions: usize,
    q: Vec<f32>,
}

fn off_policy_settings(settings: &Settings) -> OffPolicySettings {
    let Settings { buffer_size, learning_starts, batch_size, n_step, gamma, updates_per_iteration, .. } =
        *settings;
    OffPolicySettings { buffer_size, learning_starts, batch_size, n_step, gamma, updates_per_iteration }
}

/// Refuses what cannot work, before any rank is waited for.
pub(crate) fn check(
    settings: &Settings,
    experiment: &Experiment,
    spec: &Spec,
    sizes: &Sizes,
) -> Result<(), TrainerError> {
    shares(&off_policy_settings(settings), spec, sizes)?;
    QLayout::new(spec, &experiment.policy, settings.dueling).map(drop)
}

/// The probability of a random action after `env_step` environment steps over all ranks.
fn epsilon(settings: &Settings, env_step: u64) -> f64 {
    let Settings { epsilon_start: start, epsilon_end: end, epsilon_steps, epsilon_decay, .. } = *settings;
    match epsilon_decay {
        EpsilonDecay::Linear => linear(start, end, epsilon_steps, env_step),
        EpsilonDecay::Exponential => {
            end + (start - end) * (-(env_step as f64) / epsilon_steps.max(1) as f64).exp()
        }
    }
}

impl DqnAlgorithm {
    /// Collective: weights are copied from rank 0.
    pub(crate) fn new(
        settings: &Settings,
        build: &BuildContext<'_>,
    ) -> Result<OffPolicyAlgorithm<DqnAlgorithm>, TrainerError> {
        let BuildContext { experiment, spec, seeds, device, group, .. } = build;
        let layout = QLayout::new(spec, &experiment.policy, settings.dueling)?;
        let actions = layout.actions();
        let way = ComputePath::of(experiment, *device)?;
        let sizes = (bucket_bytes(experiment), GraphCapture(experiment.policy.cuda_graphs));
        let learner = QLearner::new(settings.clone(), (spec, layout), way, seeds, *device, group, sizes)?;
        let dqn = DqnAlgorithm { learner, settings: settings.clone(), actions, q: Vec::new() };
        OffPolicyAlgorithm::new(off_policy_settings(settings), dqn, build)
    }

    /// Computes the Q-values of all actions for these observations.
    fn compute_q_values(&mut self, observations: Observations<'_>, rows: usize) -> Result<(), TrainerError> {
        let numbers = observations.f32().unwrap_or_default();
        let pixels = observations.u8().unwrap_or_default();
        Ok(self.learner.values(numbers, pixels, rows, &mut self.q)?)
    }
}

impl Learner for DqnAlgorithm {
    fn explore(
        &mut self,
        Shown { observations, masks }: Shown<'_>,
        env_step: u64,
        randoms: &mut [Generator],
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError> {
        let ActionBuffer::Discrete(actions) = actions else { return Err(wrong_actions()) };
        let epsilon = epsilon(&self.settings, env_step);
        let rows = actions.len();
        let mut has_values = false;
        for (i, (action, random)) in actions.iter_mut().zip(randoms).enumerate() {
            if random.next_f64() < epsilon {
                *action = random_action(self.actions, mask_of(masks, self.actions, i), random);
                continue;
            }
            // While all actions are random, the network is not needed.
            if !has_values {
                self.compute_q_values(observations, rows)?;
                has_values = true;
            }
            let q = &self.q[i * self.actions..(i + 1) * self.actions];
            *action = most_probable(q, mask_of(masks, self.actions, i));
        }
        Ok(())
    }

    fn exploit(
        &mut self,
        Shown { observations, masks }: Shown<'_>,
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError> {
        let ActionBuffer::Discrete(actions) = actions else { return Err(wrong_actions()) };
        self.compute_q_values(observations, actions.len())?;
        for (i, (action, q)) in actions.iter_mut().zip(self.q.chunks_exact(self.actions.max(1))).enumerate() {
            *action = most_probable(q, mask_of(masks, self.actions, i));
        }
        Ok(())
    }

    fn estimate(&self, env: usize) -> Option<PolicyEstimate> {
        let scores = self.q.chunks_exact(self.actions.max(1)).nth(env)?.to_vec();
        let value = scores.iter().copied().reduce(f32::max);
        Some(PolicyEstimate { kind: ScoreKind::Q, scores, value, ..PolicyEstimate::default() })
    }

    fn update(
        &mut self,
        batch: &ReplayBatch,
        _random: &mut Generator,
        group: &ProcessGroup,
    ) -> Result<(), TrainerError> {
        self.learner.update(batch, group)
    }

    fn close(
        &mut self,
        covered: bool,
        batch: &ReplayBatch,
        group: &ProcessGroup,
    ) -> Result<Option<u64>, TrainerError> {
        let QLearner { metrics, ddp, .. } = &mut self.learner;
        let covered: &[&Ddp] = if covered { &[ddp] } else { &[] };
        Ok(metrics.finish_iteration(covered, group, || batch.largest())?.pop())
    }

    fn rate(&self) -> f64 {
        self.settings.learning_rate
    }

    fn losses(&mut self, env_step: u64) -> Result<Vec<ScalarStat>, TrainerError> {
        let stats = self.learner.stats()?;
        Ok(vec![
            ScalarStat::loss("losses/td_loss", stats.td_loss),
            ScalarStat::other("losses/q_values", stats.q_values),
            ScalarStat::other("charts/epsilon", epsilon(&self.settings, env_step)),
        ])
    }

    fn save(&self, state: &mut AlgorithmState) -> Result<(), TrainerError> {
        let QLearner { network, adam, .. } = &self.learner;
        state.arrays.extend(network.online.arrays(MODEL)?);
        state.arrays.extend(network.target.arrays("target.")?);
        state.arrays.extend(adam.arrays("adam.")?);
        state.words.push(NamedWords { name: "adam.steps".into(), values: vec![adam.steps] });
        Ok(())
    }

    fn load(&mut self, restored: &RestoredState) -> Result<(), TrainerError> {
        let learner = &mut self.learner;
        restored.copy_to(MODEL, learner.network.online.named())?;
        restored.copy_to("target.", learner.network.target.named())?;
        let steps = restored.words("adam.steps").first().copied();
        learner.adam.restore("adam.", steps, restored)?;
        learner.loaded()
    }
}

fn wrong_actions() -> TrainerError {
    TrainerError::failure("DQN supports discrete actions only", "")
}

/// Statistics of an update, from this rank's share of the batch.
#[derive(Debug, Clone, Copy, PartialEq)]
struct QStats {
    /// Mean TD loss of this rank's share.
    td_loss: f64,
    /// Mean Q-value of the actions taken.
    q_values: f64,
}

/// The networks, the optimizer and the way to run them.
pub struct QLearner {
    settings: Settings,
    /// Online and target.
    pub network: QNetwork,
    /// Over the online network.
    pub(crate) adam: Adam,
    /// Gradients and equality over the ranks.
    pub ddp: Ddp,
    data_parallel: Option<DataParallel>,
    /// Gradients travel in two parts.
    parts: bool,
    fast: Option<Box<QKernels>>,
    /// The updates of the iteration.
    pub(crate) metrics: DeviceMetrics,
    latest: LatestLoss,
    shape: Vec<i64>,
    device: Device,
    packed: PackedUpload,
    acting: CapturedPass,
    /// The update; absent while it is made.
    recording: Option<CapturedUpdate>,
}

/// A batch on the device.
struct BatchTensors {
    now: Tensor,
    next: Tensor,
    choices: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    /// Which actions are allowed next, `[rows, actions]`; absent without masks.
    masks: Option<Tensor>,
}

/// An update by libtorch.
struct DqnUpdate<'a> {
    learner: &'a mut QLearner,
    columns: BatchTensors,
    batch: &'a ReplayBatch,
}

impl CapturableUpdate for DqnUpdate<'_> {
    fn work(&mut self, cut: &mut GraphSplitter<'_>) -> Result<(), TrainerError> {
        let (loss, taken, split) = self.learner.gradient(&self.columns)?;
        let QLearner { settings, network, adam, ddp, metrics, .. } = self.learner;
        metrics.loss("losses/td_loss", &loss, || self.batch.largest())?;
        cut.reduce_split(0, split, ddp)?;
        if settings.max_grad_norm > 0.0 {
            metrics.norm(ddp.clip_grad_norm(settings.max_grad_norm));
        }
        adam.launch(network.online.tensors())?;
        if settings.target_every <= 1 {
            network.follow(settings.tau)?;
        }
        metrics.store()?;
        self.learner.latest = LatestLoss::Tensors(loss, taken);
        Ok(())
    }

    fn gradients(&mut self, _index: usize) -> &mut Ddp {
        &mut self.learner.ddp
    }

    fn metrics(&mut self) -> &mut DeviceMetrics {
        &mut self.learner.metrics
    }
}

/// The latest update's statistics, wherever they are.
enum LatestLoss {
    Nothing,
    Numbers(QStats),
    /// Loss and Q-values of the actions taken, still on the device.
    Tensors(Tensor, Tensor),
}

/// Networks and buffers of the plain-Rust path.
struct QKernels {
    online: DenseQNetwork,
    target: DenseQNetwork,
    now: Matrix,
    next: Matrix,
    gradient: Matrix,
    targets: Vec<f32>,
    shares: Vec<f32>,
    errors: Vec<f32>,
}

impl QKernels {
    /// Puts the gradient of the batch's loss into the flat buffer, in plain Rust.
    fn gradient(
        &mut self,
        settings: &Settings,
        batch: &ReplayBatch,
        ddp: &mut Ddp,
    ) -> Result<QStats, TrainerError> {
        let QKernels { online, target, now, next, gradient, targets, shares, errors } = self;
        targets.resize(batch.rows, 0.0);
        errors.resize(batch.rows, 0.0);
        next.copy_rows(&batch.numbers.next);
        let following = target.forward(next);
        let chooser = if settings.double { online.forward(next) } else { following };
        let next = (batch.rewards.as_slice(), batch.discounts.as_slice());
        q_targets(following, chooser, &batch.next_masks, next, targets);
        now.copy_rows(&batch.numbers.now);
        let q = online.forward(now);
        let (distance, share) = match settings.loss {
            // The kernel's `Squared` is halved; DQN's loss is not.
            TdLoss::Squared => (Distance::Squared, 2.0),
            TdLoss::Huber => (Distance::Huber, 1.0),
        };
        shares.clear();
        shares.resize(batch.rows, share / batch.rows.max(1) as f32);
        let loss = q_loss(q, &batch.choices, targets, shares, distance, errors, gradient);
        // error = q - target
        let sum: f64 = errors.iter().zip(targets.iter()).map(|(e, t)| f64::from(*e) + f64::from(*t)).sum();
        // SAFETY: the backward pass runs no tensor operation.
        let flat = unsafe { ddp.flat_gradients() }.ok_or_else(gone)?;
        flat.fill(0.0);
        online.backward(now, gradient, flat);
        Ok(QStats { td_loss: loss, q_values: sum / batch.rows.max(1) as f64 })
    }
}

fn gone() -> TrainerError {
    TrainerError::failure("the native kernels need networks on the CPU", "")
}

/// Takes a snapshot of parameters.
fn load(network: &mut DenseQNetwork, parameters: &Parameters) -> Result<(), TrainerError> {
    // SAFETY: `load` copies the numbers; no tensor operation runs meanwhile.
    network.load(unsafe { parameters.floats() }.ok_or_else(gone)?);
    Ok(())
}

/// What computes updates.
#[derive(Debug, Clone, PartialEq)]
pub enum ComputePath {
    /// Plain Rust where the network is dense and the device a CPU, else libtorch.
    Best,
    /// libtorch.
    Torch,
    /// libtorch over several devices of this process.
    DataParallel(DataParallel),
}

impl ComputePath {
    /// The path that the experiment sets: `distributed.data_parallel` devices of this process, from `device` on,
    /// or `policy.kernel`.
    pub fn of(experiment: &Experiment, device: Device) -> Result<ComputePath, TrainerError> {
        let count = experiment.distributed.data_parallel as usize;
        let devices = match device {
            Device::Cuda(first) => (first..first + count).map(Device::Cuda).collect(),
            other => vec![other; count],
        };
        let there = tch::Cuda::device_count().max(0) as usize;
        if let Some(Device::Cuda(index)) = devices.last().filter(|_| count > 1)
            && *index >= there
        {
            return Err(TrainerError::usage(
                format!(
                    "distributed.data_parallel = {count} needs GPU {index}; {there} visible to this process"
                ),
                "lower distributed.data_parallel, or start fewer ranks on this host",
            ));
        }
        if let Some(devices) = DataParallel::new(devices) {
            return Ok(ComputePath::DataParallel(devices));
        }
        match (experiment.policy.kernel, device) {
            (Kernel::Libtorch, _) => Ok(ComputePath::Torch),
            (Kernel::Native, Device::Cpu) | (Kernel::Auto, _) => Ok(ComputePath::Best),
            (Kernel::Native, _) => Err(TrainerError::usage(
                "policy.kernel = \"native\" needs fully connected networks on the CPU",
                "set policy.kernel = \"auto\"",
            )),
        }
    }
}

impl QLearner {
    /// Fresh networks, equal on all ranks. `bucket_bytes`: see [`Ddp::new`].
    pub fn new(
        settings: Settings,
        (spec, layout): (&Spec, QLayout),
        way: ComputePath,
        seeds: &Seeds,
        device: Device,
        group: &ProcessGroup,
        (bucket_bytes, GraphCapture(captured)): (usize, GraphCapture),
    ) -> Result<QLearner, TrainerError> {
        let network = QNetwork::new(layout.clone(), seeds, device)?;
        let named = |prefix: &str, named: Vec<(String, Tensor)>| -> Vec<(String, Tensor)> {
            named.into_iter().map(|(name, tensor)| (format!("{prefix}{name}"), tensor)).collect()
        };
        let mut ddp =
            Ddp::new(network.online.named(), named("target.", network.target.named()), group, bucket_bytes)?;
        let fast = (way == ComputePath::Best && layout.is_dense() && device == Device::Cpu).then(|| {
            let rows = (settings.batch_size / group.world_size().max(1)) as usize;
            Box::new(QKernels {
                online: DenseQNetwork::new(&layout, rows),
                target: DenseQNetwork::new(&layout, rows),
                now: Matrix::new(rows, spec.observation_len()),
                next: Matrix::new(rows, spec.observation_len()),
                gradient: Matrix::new(rows, layout.actions()),
                targets: vec![0.0; rows],
                shares: Vec::with_capacity(rows),
                errors: vec![0.0; rows],
            })
        });
        let one_device = !matches!(way, ComputePath::DataParallel(_));
        let captured = captured && one_device;
        let parts = one_device && splits_backward(&mut ddp, layout.trunk.as_ref(), device, group);
        let mut learner = QLearner {
            adam: Adam::new(layout.len, settings.adam_eps, device)?,
            metrics: DeviceMetrics::new(settings.updates_per_iteration as usize, device)?,
            packed: PackedUpload::new(device),
            acting: CapturedPass::new(device, captured),
            recording: Some(CapturedUpdate::new("an update", device, captured)),
            settings,
            network,
            ddp,
            data_parallel: if let ComputePath::DataParallel(devices) = way { Some(devices) } else { None },
            parts,
            fast,
            latest: LatestLoss::Nothing,
            shape: spec.observation_shape.iter().map(|side| *side as i64).collect(),
            device,
        };
        learner.loaded()?;
        Ok(learner)
    }

    /// Call after the parameters were changed from outside.
    pub fn loaded(&mut self) -> Result<(), TrainerError> {
        if let Some(fast) = &mut self.fast {
            load(&mut fast.target, &self.network.target)?;
            load(&mut fast.online, &self.network.online)?;
        }
        Ok(())
    }

    /// One update from this rank's share of a batch.
    pub fn update(&mut self, batch: &ReplayBatch, group: &ProcessGroup) -> Result<(), TrainerError> {
        self.latest = if let Some(fast) = &mut self.fast {
            let stats = fast.gradient(&self.settings, batch, &mut self.ddp)?;
            own_loss("losses/td_loss", stats.td_loss, || batch.largest())?;
            self.ddp.reduce(group)?;
            self.step_fast()?;
            LatestLoss::Numbers(stats)
        } else {
            let columns = self.columns(batch)?;
            self.adam.count_steps(1, self.settings.learning_rate)?;
            let place = self.packed.place();
            let mut recording = self.recording.take();
            let mut update = DqnUpdate { learner: self, columns, batch };
            let made = match &mut recording {
                Some(recording) => recording.run(&mut update, place, group),
                None => Err(TrainerError::failure("nested update", "")),
            };
            self.recording = recording;
            made?;
            std::mem::replace(&mut self.latest, LatestLoss::Nothing)
        };
        let follow = self.adam.steps.is_multiple_of(self.settings.target_every.max(1));
        // With every update, libtorch's updates do it themselves.
        if follow && (self.fast.is_some() || self.settings.target_every > 1) {
            self.network.follow(self.settings.tau)?;
        }
        if let Some(fast) = &mut self.fast {
            if follow {
                load(&mut fast.target, &self.network.target)?;
            }
            load(&mut fast.online, &self.network.online)?;
        }
        Ok(())
    }

    /// Statistics of the latest update, read from the device.
    fn stats(&self) -> Result<QStats, TchError> {
        match &self.latest {
            LatestLoss::Nothing => Ok(QStats { td_loss: f64::NAN, q_values: f64::NAN }),
            LatestLoss::Numbers(stats) => Ok(*stats),
            LatestLoss::Tensors(loss, taken) => {
                let read = device_metrics::numbers(&[loss.shallow_clone(), taken.f_mean(None::<Kind>)?])?;
                Ok(QStats { td_loss: read[0], q_values: read[1] })
            }
        }
    }

    /// Clips the averaged gradient and steps, without libtorch.
    fn step_fast(&mut self) -> Result<(), TrainerError> {
        // SAFETY: until the step is done, no tensor operation runs.
        let gradients = unsafe { self.ddp.flat_gradients() }.ok_or_else(gone)?;
        let scale = match self.settings.max_grad_norm {
            most if most > 0.0 => clip_scale(sum_of_squares(Isa::best(), gradients).sqrt(), most),
            _ => 1.0,
        };
        // SAFETY: as above; parameters and gradients are different buffers.
        let parameters = unsafe { self.network.online.floats_mut() }.ok_or_else(gone)?;
        Ok(self.adam.step_flat(parameters, gradients, self.settings.learning_rate, scale)?)
    }

    /// The batch on the device.
    fn columns(&mut self, batch: &ReplayBatch) -> Result<BatchTensors, TchError> {
        let rows = batch.rows as i64;
        let shape: Vec<i64> = std::iter::once(rows).chain(self.shape.iter().copied()).collect();
        let observations = |numbers, pixels| match batch.numbers.now.is_empty() {
            true => HostValues::U8(pixels),
            false => HostValues::F32(numbers),
        };
        let mut parts = vec![
            (observations(&batch.numbers.now, &batch.pixels.now), shape.clone()),
            (observations(&batch.numbers.next, &batch.pixels.next), shape),
            (HostValues::I64(&batch.choices), vec![rows, 1]),
            (HostValues::F32(&batch.rewards), vec![rows]),
            (HostValues::F32(&batch.discounts), vec![rows]),
        ];
        if !batch.next_masks.is_empty() {
            parts.push((HostValues::U8(&batch.next_masks), vec![rows, -1]));
        }
        let mut sent = self.packed.send(&parts)?.into_iter();
        let mut part =
            || sent.next().ok_or_else(|| TchError::Torch("unexpected number of batch parts".into()));
        let (now, next, choices, rewards, discounts) = (part()?, part()?, part()?, part()?, part()?);
        Ok(BatchTensors { now, next, choices, rewards, discounts, masks: sent.next() })
    }

    /// The gradient of the batch's loss with libtorch, up to the split where there is one; returns the loss,
    /// and the Q-values of the actions taken.
    fn gradient(
        &mut self,
        columns: &BatchTensors,
    ) -> Result<(Tensor, Tensor, Option<BackwardSplit>), TchError> {
        let BatchTensors { now, next, choices, rewards, discounts, masks } = columns;
        let targets = tch::no_grad(|| -> Result<Tensor, TchError> {
            let following = self.network.forward(self.network.target.tensors(), next)?;
            let chosen = match self.settings.double {
                true => self.network.forward(self.network.online.tensors(), next)?,
                false => following.shallow_clone(),
            };
            let chosen = match masks {
                Some(masks) => chosen.f_masked_fill(&masks.f_eq(0)?, f64::NEG_INFINITY)?,
                None => chosen,
            };
            let values = following.f_gather(1, &chosen.f_argmax(1, true)?, false)?.f_view([-1])?;
            rewards.f_add(&discounts.f_mul(&values)?)
        })?;
        let online = self.network.online.tensors();
        let (q, split) = match &self.data_parallel {
            Some(devices) => {
                (devices.forward(online, [now], |own, [rows]| self.network.forward(own, &rows))?, None)
            }
            None => self.network.forward_split(online, now, self.parts)?,
        };
        let taken = q.f_gather(1, choices, false)?.f_view([-1])?;
        let loss = match self.settings.loss {
            TdLoss::Squared => taken.f_sub(&targets)?.f_square()?.f_mean(None::<Kind>)?,
            TdLoss::Huber => taken.f_smooth_l1_loss(&targets, tch::Reduction::Mean, 1.0)?,
        };
        self.ddp.differentiate(&loss)?;
        Ok((loss.f_detach()?, taken.f_detach()?, split))
    }

    fn observations(&self, numbers: &[f32], pixels: &[u8], rows: i64) -> Result<Tensor, TchError> {
        let flat =
            if numbers.is_empty() { Tensor::f_from_slice(pixels)? } else { Tensor::f_from_slice(numbers)? };
        let whole: Vec<i64> = std::iter::once(rows).chain(self.shape.iter().copied()).collect();
        upload(flat.f_view(whole.as_slice())?, self.device)
    }

    /// Q-values `[rows][actions]` of observations, for acting.
    pub fn values(
        &mut self,
        numbers: &[f32],
        pixels: &[u8],
        rows: usize,
        q: &mut Vec<f32>,
    ) -> Result<(), TchError> {
        q.clear();
        if let Some(fast) = &mut self.fast {
            fast.now.copy_rows(numbers);
            fast.online.forward(&fast.now).iter().for_each(|row| q.extend_from_slice(row));
            return Ok(());
        }
        let input = self.observations(numbers, pixels, rows as i64)?;
        let QLearner { network, acting, .. } = self;
        let values =
            tch::no_grad(|| acting.run(&input, |input| network.forward(network.online.tensors(), input)))?;
        let values = values.f_to_device(Device::Cpu)?.f_contiguous()?;
        q.resize(values.numel(), 0.0);
        let len = q.len();
        values.f_copy_data(q, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epsilon_falls_as_in_the_references() {
        let linear = Settings::default();
        // CleanRL: from 1 to 0.05 over half of 500,000 steps.
        for (step, expected) in [(0, 1.0), (125_000, 0.525), (250_000, 0.05), (400_000, 0.05)] {
            assert!((epsilon(&linear, step) - expected).abs() < 1e-12, "{step}");
        }
        let exponential = Settings {
            epsilon_start: 0.95,
            epsilon_end: 0.1,
            epsilon_steps: 10_000,
            epsilon_decay: EpsilonDecay::Exponential,
            ..Settings::default()
        };
        let decayed = 0.85 * (-1.0_f64).exp() + 0.1;
        for (step, expected) in [(0, 0.95), (10_000, decayed), (10_000_000, 0.1)] {
            assert!((epsilon(&exponential, step) - expected).abs() < 1e-12, "{step}");
        }
    }
}
