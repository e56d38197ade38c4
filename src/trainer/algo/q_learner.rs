//! What DQN learns from a batch: targets, loss, averaged gradient, step, target copy.
//!
//! Owner: [`super::dqn`]. Mnih et al. 2015, with the choice of the next action by the online network (van
//! Hasselt et al. 2016, equation 4), n-step returns (REPLAY-2 makes them) and dueling networks (Wang et al.
//! 2016, equation 9) as options. The mean squared TD error without halving is CleanRL's and DI-engine's.
//!
//! Invariants:
//! - QLEARN-1: gradients are averaged over the ranks, then clipped: with equal shares of a batch, the ranks
//!   learn what one rank would learn from the whole.
//! - QLEARN-2: plain Rust and libtorch give the same update within 1e-6.
//! - QLEARN-3: online and target networks stay equal bit by bit over the ranks; both are broadcast at the
//!   start and covered by the fingerprint.

use super::adam::Adam;
use super::ledger::{self, Ledger};
use super::own_loss;
use super::packed::{PackedParts, Values};
use super::recording::{GraphWork, Recording, WorkCut};
use crate::distributed::upload::upload;
use crate::distributed::{DataParallel, Ddp, Part, ProcessGroup};
use crate::env::Spec;
use crate::error::TrainerError;
use crate::policy::captured::CapturedPass;
use crate::policy::parameters::Parameters;
use crate::policy::q_fast::QFast;
use crate::policy::q_layout::QLayout;
use crate::policy::q_network::QNetwork;
use crate::policy::seam::{Seam, parted};
use crate::replay::ReplayBatch;
use rankdeck_kernel::loss::Distance;
use rankdeck_kernel::optimise::{clip_scale, sum_of_squares};
use rankdeck_kernel::q::{q_loss, q_targets};
use rankdeck_kernel::seeds::Seeds;
use rankdeck_kernel::{Isa, Matrix};
use rankdeck_types::experiment::{Experiment, Kernel};
use rankdeck_types::learn::Dqn as Settings;
use rankdeck_types::learn::dqn::TdLoss;
use tch::{Device, Kind, TchError, Tensor};

/// Statistics of an update, from this rank's share of the batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QStats {
    /// Mean TD loss of this rank's share.
    pub td_loss: f64,
    /// Mean Q-value of the actions taken.
    pub q_values: f64,
}

/// The networks, the optimiser and the way to run them.
pub struct QLearner {
    settings: Settings,
    /// Online and target.
    pub network: QNetwork,
    /// Over the online network.
    pub adam: Adam,
    /// Gradients and equality over the ranks.
    pub ddp: Ddp,
    data_parallel: Option<DataParallel>,
    /// Gradients travel in two parts.
    parts: bool,
    fast: Option<Box<NativeQ>>,
    /// The updates of the iteration.
    pub ledger: Ledger,
    latest: LatestLoss,
    shape: Vec<i64>,
    device: Device,
    packed: PackedParts,
    acting: CapturedPass,
    /// The update; absent while it is made.
    recording: Option<Recording>,
}

/// Whether updates are captured as CUDA graphs where they can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphCapture(pub bool);

/// A batch on the device.
struct Columns {
    now: Tensor,
    next: Tensor,
    choices: Tensor,
    rewards: Tensor,
    discounts: Tensor,
}

/// An update by libtorch.
struct Update<'a> {
    learner: &'a mut QLearner,
    columns: Columns,
    batch: &'a ReplayBatch,
}

impl GraphWork for Update<'_> {
    fn work(&mut self, cut: &mut WorkCut<'_>) -> Result<(), TrainerError> {
        let (loss, taken, seam) = self.learner.gradient(&self.columns)?;
        let QLearner { settings, network, adam, ddp, ledger, .. } = self.learner;
        ledger.loss("losses/td_loss", &loss, || self.batch.largest())?;
        cut.reduce_by(0, seam, ddp)?;
        if settings.max_grad_norm > 0.0 {
            ledger.norm(ddp.clip_grad_norm(settings.max_grad_norm));
        }
        adam.launch(network.online.tensors())?;
        if settings.target_every <= 1 {
            network.follow(settings.tau)?;
        }
        ledger.put()?;
        self.learner.latest = LatestLoss::Tensors(loss, taken);
        Ok(())
    }

    fn reduce(&mut self, _which: usize, part: Part, group: &ProcessGroup) -> Result<(), TrainerError> {
        Ok(self.learner.ddp.reduce_part(part, group)?)
    }

    fn ledger(&mut self) -> &mut Ledger {
        &mut self.learner.ledger
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
struct NativeQ {
    online: QFast,
    target: QFast,
    now: Matrix,
    next: Matrix,
    gradient: Matrix,
    targets: Vec<f32>,
    shares: Vec<f32>,
    errors: Vec<f32>,
}

impl NativeQ {
    /// Puts the gradient of the batch's loss into the flat buffer, in plain Rust.
    fn gradient(
        &mut self,
        settings: &Settings,
        batch: &ReplayBatch,
        ddp: &mut Ddp,
    ) -> Result<QStats, TrainerError> {
        let NativeQ { online, target, now, next, gradient, targets, shares, errors } = self;
        targets.resize(batch.rows, 0.0);
        errors.resize(batch.rows, 0.0);
        next.copy_rows(&batch.numbers.next);
        let following = target.forward(next);
        let chooser = if settings.double { online.forward(next) } else { following };
        q_targets(following, chooser, &batch.rewards, &batch.discounts, targets);
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
    TrainerError::failure("the hand-written passes need networks on the CPU", "")
}

/// Takes a snapshot of parameters.
fn load(network: &mut QFast, parameters: &Parameters) -> Result<(), TrainerError> {
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
    /// What the experiment asks for: `distributed.data_parallel` devices of this process, from `device` on,
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
                    "distributed.data_parallel = {count} needs GPU {index}, and this process sees {there}"
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
                "policy.kernel = \"native\" is for fully connected networks on the CPU",
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
            Box::new(NativeQ {
                online: QFast::new(&layout, rows),
                target: QFast::new(&layout, rows),
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
        let parts = one_device && parted(&mut ddp, layout.trunk.as_ref(), device, group);
        let mut learner = QLearner {
            adam: Adam::new(layout.len, settings.adam_eps, device)?,
            ledger: Ledger::new(settings.updates_per_iteration as usize, device)?,
            packed: PackedParts::new(device),
            acting: CapturedPass::new(device, captured),
            recording: Some(Recording::new("an update", device, captured)),
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
            self.adam.begin(1, self.settings.learning_rate)?;
            let place = self.packed.place();
            let mut recording = self.recording.take();
            let mut update = Update { learner: self, columns, batch };
            let made = match &mut recording {
                Some(recording) => recording.run(&mut update, place, group),
                None => Err(TrainerError::failure("an update inside an update", "")),
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
    pub fn stats(&self) -> Result<QStats, TchError> {
        match &self.latest {
            LatestLoss::Nothing => Ok(QStats { td_loss: f64::NAN, q_values: f64::NAN }),
            LatestLoss::Numbers(stats) => Ok(*stats),
            LatestLoss::Tensors(loss, taken) => {
                let read = ledger::numbers(&[loss.shallow_clone(), taken.f_mean(None::<Kind>)?])?;
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
    fn columns(&mut self, batch: &ReplayBatch) -> Result<Columns, TchError> {
        let rows = batch.rows as i64;
        let shape: Vec<i64> = std::iter::once(rows).chain(self.shape.iter().copied()).collect();
        let observations = |numbers, pixels| match batch.numbers.now.is_empty() {
            true => Values::U8(pixels),
            false => Values::F32(numbers),
        };
        let sent = self.packed.send(&[
            (observations(&batch.numbers.now, &batch.pixels.now), shape.clone()),
            (observations(&batch.numbers.next, &batch.pixels.next), shape),
            (Values::I64(&batch.choices), vec![rows, 1]),
            (Values::F32(&batch.rewards), vec![rows]),
            (Values::F32(&batch.discounts), vec![rows]),
        ])?;
        match <[Tensor; 5]>::try_from(sent) {
            Ok([now, next, choices, rewards, discounts]) => {
                Ok(Columns { now, next, choices, rewards, discounts })
            }
            Err(_) => Err(TchError::Torch("a batch of other parts".into())),
        }
    }

    /// The gradient of the batch's loss with libtorch, up to the seam where there is one; returns the loss,
    /// and the Q-values of the actions taken.
    fn gradient(&mut self, columns: &Columns) -> Result<(Tensor, Tensor, Option<Seam>), TchError> {
        let Columns { now, next, choices, rewards, discounts } = columns;
        let targets = tch::no_grad(|| -> Result<Tensor, TchError> {
            let following = self.network.forward(self.network.target.tensors(), next)?;
            let chosen = match self.settings.double {
                true => self.network.forward(self.network.online.tensors(), next)?,
                false => following.shallow_clone(),
            };
            let values = following.f_gather(1, &chosen.f_argmax(1, true)?, false)?.f_view([-1])?;
            rewards.f_add(&discounts.f_mul(&values)?)
        })?;
        let online = self.network.online.tensors();
        let (q, seam) = match &self.data_parallel {
            Some(devices) => {
                (devices.forward(online, [now], |own, [rows]| self.network.forward(own, &rows))?, None)
            }
            None => self.network.forward_cut(online, now, self.parts)?,
        };
        let taken = q.f_gather(1, choices, false)?.f_view([-1])?;
        let loss = match self.settings.loss {
            TdLoss::Squared => taken.f_sub(&targets)?.f_square()?.f_mean(None::<Kind>)?,
            TdLoss::Huber => taken.f_smooth_l1_loss(&targets, tch::Reduction::Mean, 1.0)?,
        };
        self.ddp.differentiate(&loss)?;
        Ok((loss.f_detach()?, taken.f_detach()?, seam))
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
