//! Adam (Kingma and Ba 2015) over a flat parameter buffer, equal to `torch.optim.Adam`.
//!
//! libtorch's own C++ optimizer does not show its moments through tch, so it cannot be put into a checkpoint;
//! this one keeps them in two flat tensors. On the CPU, one fused pass does the update (see
//! [`rankdeck_kernel::optimizer`]); on a GPU, libtorch's fused kernel does, for all parameters at once.
//!
//! Invariants:
//! - ADAM-1: parameters equal libtorch's Adam within 1e-6 after many steps.
//! - On a GPU, [`Adam::launch`] reads step count and learning rate there, so that a captured step
//!   ([`super::captured_update`]) counts and anneals.
//! - ADAM-2: a step in which a parameter has no gradient changes neither it nor its moments, and does not
//!   count in its bias correction.
//! - The result depends on parameters, gradients, moments, step count and learning rate only: ranks
//!   with equal gradients stay equal bit by bit, whatever their CPUs.

use crate::distributed::memory::{floats, floats_mut};
use crate::distributed::{AdamPart, AdamRate, fused_adam};
use crate::error::{TrainerError, gpu_error};
use crate::inject;
use crate::support::state::{Array, RestoredState};
use rankdeck_kernel::Isa;
use rankdeck_kernel::optimizer::{AdamStep, adam_step};
use tch::{Device, Kind, TchError, Tensor};

/// Why the optimizer cannot step.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdamError {
    /// libtorch refused an operation.
    #[error("optimizer operation failed in libtorch: {0}")]
    Torch(#[from] TchError),
    /// The flat step needs moments on the CPU.
    #[error("the optimizer moments are not on the CPU")]
    Device,
    /// A parameter has no gradient, or one of another shape, type or layout.
    #[error("the gradient of parameter {index} is missing or not a dense f32 tensor of its shape")]
    Gradient {
        /// Index of the parameter.
        index: usize,
    },
}

impl From<AdamError> for TrainerError {
    fn from(error: AdamError) -> TrainerError {
        let text = error.to_string();
        gpu_error(&text).unwrap_or_else(|| TrainerError::failure(text, ""))
    }
}

/// The optimizer's state.
pub(crate) struct Adam {
    /// First moments, flat, in the order of the parameters.
    pub first: Tensor,
    /// Second moments, flat.
    pub second: Tensor,
    /// Steps so far.
    pub steps: u64,
    /// Steps without a gradient, of each parameter; empty when none had any. Such a step leaves the parameter
    /// and its moments alone, as `torch.optim.Adam` does where `.grad` is none.
    pub missed: Vec<u64>,
    betas: (f64, f64),
    eps: f64,
    rate: f64,
    on_gpu: Option<GpuScalars>,
}

/// What a step on a GPU reads.
struct GpuScalars {
    steps: Tensor,
    rate: Tensor,
    /// What was put there last, and counted since.
    holds: (u64, f64),
}

impl GpuScalars {
    fn new(device: Device) -> Result<GpuScalars, TchError> {
        let scalar = || Tensor::f_zeros([0_i64; 0], (Kind::Float, device));
        Ok(GpuScalars { steps: scalar()?, rate: scalar()?, holds: (0, 0.0) })
    }
}

impl Adam {
    /// For `len` parameters in all on `device`; betas 0.9 and 0.999.
    pub(crate) fn new(len: usize, eps: f64, device: Device) -> Result<Adam, TchError> {
        let zeros = || Tensor::f_zeros([len as i64], (Kind::Float, device));
        let on_gpu = (device != Device::Cpu).then(|| GpuScalars::new(device)).transpose()?;
        Ok(Adam {
            first: zeros()?,
            second: zeros()?,
            steps: 0,
            missed: Vec::new(),
            betas: (0.9, 0.999),
            eps,
            rate: 0.0,
            on_gpu,
        })
    }

    /// Both moments for a checkpoint, named `prefix` + `first` and `second`.
    pub(crate) fn arrays(&self, prefix: &str) -> Result<[Array; 2], TchError> {
        let moment = |name: &str, tensor| Array::of(&format!("{prefix}{name}"), tensor);
        Ok([moment("first", &self.first)?, moment("second", &self.second)?])
    }

    /// Restores [`Adam::arrays`], and the count of steps where the checkpoint has one.
    pub(crate) fn restore(
        &mut self,
        prefix: &str,
        steps: Option<u64>,
        restored: &RestoredState,
    ) -> Result<(), TchError> {
        let moments = [("first", &self.first), ("second", &self.second)];
        let moments = moments.map(|(name, tensor)| (name.to_owned(), tensor.shallow_clone()));
        restored.copy_to(prefix, moments.into())?;
        self.steps = steps.unwrap_or(self.steps);
        Ok(())
    }

    /// Counts `steps` steps of [`Adam::launch`] before they are made or replayed, with this learning rate.
    pub(crate) fn count_steps(&mut self, steps: u64, learning_rate: f64) -> Result<(), AdamError> {
        self.rate = learning_rate;
        let Some(gpu) = &mut self.on_gpu else { return Ok(()) };
        (0..steps).for_each(|_| inject::here(inject::Hook::Learn));
        if gpu.holds != (self.steps, learning_rate) {
            let _ = gpu.steps.f_fill_(self.steps as f64)?;
            let _ = gpu.rate.f_fill_(learning_rate)?;
        }
        self.steps += steps;
        gpu.holds = (self.steps, learning_rate);
        Ok(())
    }

    /// A step that [`Adam::count_steps`] has counted, with each parameter's `.grad`: the same work each time.
    pub(crate) fn launch(&mut self, parameters: &[Tensor]) -> Result<(), AdamError> {
        let Some(gpu) = &mut self.on_gpu else { return self.step(parameters, self.rate) };
        let _ = gpu.steps.f_add_scalar_(1.0)?;
        let (steps, mut rate) = (gpu.steps.shallow_clone(), gpu.rate.shallow_clone());
        let mut offset = 0;
        let mut parts = Vec::new();
        for (index, parameter) in parameters.iter().enumerate() {
            let (gradient, len) = (gradient_of(parameter, index)?, parameter.numel() as i64);
            let moment = |all: &Tensor| all.f_narrow(0, offset, len)?.f_view_as(parameter);
            parts.push(AdamPart {
                parameters: parameter.shallow_clone(),
                gradients: gradient,
                first: moment(&self.first)?,
                second: moment(&self.second)?,
                steps: steps.shallow_clone(),
                missed: 0,
            });
            offset += len;
        }
        Ok(fused_adam(&mut parts, AdamRate::OnDevice(&mut rate), self.betas, self.eps)?)
    }

    /// One step with each parameter's `.grad`.
    pub(crate) fn step(&mut self, parameters: &[Tensor], learning_rate: f64) -> Result<(), AdamError> {
        self.step_first(parameters, parameters.len(), learning_rate)
    }

    /// One step of the first `used` parameters; the others have no gradient.
    pub(crate) fn step_first(
        &mut self,
        parameters: &[Tensor],
        used: usize,
        learning_rate: f64,
    ) -> Result<(), AdamError> {
        let all = self.next(learning_rate);
        if used < parameters.len() {
            self.missed.resize(parameters.len(), 0);
            self.missed[used..].iter_mut().for_each(|missed| *missed += 1);
        }
        let mut offset = 0;
        let mut parts = Vec::new();
        for (index, parameter) in parameters.iter().enumerate().take(used) {
            let missed = self.missed.get(index).copied().unwrap_or(0);
            let step = match missed {
                0 => all,
                missed => AdamStep::new(self.steps - missed, learning_rate, self.betas, self.eps, 0.0),
            };
            let gradient = gradient_of(parameter, index)?;
            let len = parameter.numel();
            let mut first = self.first.f_narrow(0, offset, len as i64)?;
            let mut second = self.second.f_narrow(0, offset, len as i64)?;
            offset += len as i64;
            let mut own = parameter.shallow_clone();
            // SAFETY: the four tensors share no storage with each other, and until the step is done no tensor
            // operation runs.
            let slices = unsafe {
                (floats_mut(&mut own), floats(&gradient), floats_mut(&mut first), floats_mut(&mut second))
            };
            match slices {
                (Some(own), Some(gradient), Some(first), Some(second)) => {
                    adam_step(Isa::best(), step, own, gradient, first, second);
                }
                _ => parts.push(self.part(parameter, gradient, first, second, missed, parts.last())?),
            }
        }
        if parts.is_empty() {
            return Ok(());
        }
        Ok(fused_adam(&mut parts, AdamRate::Number(learning_rate), self.betas, self.eps)?)
    }

    /// A parameter's part of a fused step. Parameters that have missed as many steps as the one before share
    /// its count.
    fn part(
        &self,
        parameter: &Tensor,
        gradients: Tensor,
        first: Tensor,
        second: Tensor,
        missed: u64,
        before: Option<&AdamPart>,
    ) -> Result<AdamPart, TchError> {
        let steps = match before {
            Some(before) if before.missed == missed => before.steps.shallow_clone(),
            _ => Tensor::f_full([0_i64; 0], (self.steps - missed) as f64, (Kind::Float, parameter.device()))?,
        };
        let view = |tensor: Tensor| tensor.f_view_as(parameter);
        Ok(AdamPart {
            parameters: parameter.shallow_clone(),
            gradients,
            first: view(first)?,
            second: view(second)?,
            steps,
            missed,
        })
    }

    /// One step with all parameters and gradients in one piece, as the hand-written passes have them;
    /// gradients count `scale` times.
    pub(crate) fn step_flat(
        &mut self,
        parameters: &mut [f32],
        gradients: &[f32],
        learning_rate: f64,
        scale: f32,
    ) -> Result<(), AdamError> {
        let step = AdamStep { scale, ..self.next(learning_rate) };
        // SAFETY: the moments are two tensors of this optimizer's own, and no tensor operation runs during
        // the step.
        match unsafe { (floats_mut(&mut self.first), floats_mut(&mut self.second)) } {
            (Some(first), Some(second)) => adam_step(Isa::best(), step, parameters, gradients, first, second),
            _ => return Err(AdamError::Device),
        }
        Ok(())
    }

    fn next(&mut self, learning_rate: f64) -> AdamStep {
        inject::here(inject::Hook::Learn);
        self.steps += 1;
        AdamStep::new(self.steps, learning_rate, self.betas, self.eps, 0.0)
    }
}

/// The gradient of a parameter, as a step takes it.
fn gradient_of(parameter: &Tensor, index: usize) -> Result<Tensor, AdamError> {
    let gradient = parameter.f_grad()?;
    let fits = gradient.defined()
        && gradient.numel() == parameter.numel()
        && gradient.kind() == Kind::Float
        && gradient.is_contiguous()
        && gradient.device() == parameter.device();
    if fits { Ok(gradient) } else { Err(AdamError::Gradient { index }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::nn::{self, OptimizerConfig};

    /// Ways to make a step.
    #[derive(Clone, Copy)]
    enum How {
        Flat,
        Fused,
        /// As on a GPU, with count and rate in tensors.
        Counted,
    }

    /// Trains a small quadratic-like problem with libtorch's Adam and with ours on equal gradients.
    fn race(how: How) -> f64 {
        let store = nn::VarStore::new(Device::Cpu);
        let theirs = store.root().var("w", &[40], nn::Init::Const(0.0));
        let start: Vec<f32> = (0..40).map(|i| (i as f32 * 0.7).sin()).collect();
        tch::no_grad(|| theirs.shallow_clone().copy_(&Tensor::from_slice(&start)));
        let ours = Tensor::from_slice(&start).set_requires_grad(true);
        let mut reference = nn::Adam { eps: 1e-5, ..nn::Adam::default() }.build(&store, 1e-2).unwrap();
        let mut adam = Adam::new(40, 1e-5, Device::Cpu).unwrap();
        let target = Tensor::from_slice(&(0..40).map(|i| i as f32 / 40.0).collect::<Vec<_>>());
        for i in 0..300 {
            // The rate changes on the way, as annealing changes it.
            let rate = 1e-2 * (1.0 - f64::from(i) / 300.0);
            let loss = |w: &Tensor| ((w - &target) * (w * 3.0).cos()).square().sum(Kind::Float);
            reference.set_lr(rate);
            reference.backward_step(&loss(&theirs));
            ours.grad().defined().then(|| ours.grad().zero_());
            loss(&ours).backward();
            match how {
                How::Flat => adam.step(std::slice::from_ref(&ours), rate).unwrap(),
                How::Fused => {
                    adam.next(rate);
                    let (first, second) = (adam.first.shallow_clone(), adam.second.shallow_clone());
                    let part = adam.part(&ours, ours.grad(), first, second, 0, None).unwrap();
                    fused_adam(&mut [part], AdamRate::Number(rate), adam.betas, adam.eps).unwrap();
                }
                How::Counted => {
                    if i % 50 == 0 {
                        // As after a restore: what is there is not what the host counts.
                        adam.on_gpu = Some(GpuScalars::new(Device::Cpu).unwrap());
                    }
                    adam.count_steps(1, rate).unwrap();
                    adam.launch(std::slice::from_ref(&ours)).unwrap();
                }
            }
        }
        let moved = (&ours - Tensor::from_slice(&start)).abs().max().double_value(&[]);
        assert!(moved > 0.05, "the problem must move the weights: {moved}");
        (&ours - &theirs).abs().max().double_value(&[])
    }

    #[test]
    fn adam_1_all_forms_equal_libtorchs() {
        for how in [How::Flat, How::Fused, How::Counted] {
            let apart = race(how);
            assert!(apart < 1e-6, "{apart}");
        }
    }

    /// Several steps that are counted at once are the steps that were counted one by one.
    #[test]
    fn steps_are_counted_beforehand() {
        let ends = [1_u64, 2].map(|at_once| {
            let ours = Tensor::from_slice(&[1.0_f32, -2.0]).set_requires_grad(true);
            let mut adam = Adam::new(2, 1e-5, Device::Cpu).unwrap();
            adam.on_gpu = Some(GpuScalars::new(Device::Cpu).unwrap());
            for i in 0..8 {
                if i % at_once == 0 {
                    adam.count_steps(at_once, 0.1).unwrap();
                }
                ours.grad().defined().then(|| ours.grad().zero_());
                ours.square().sum(Kind::Float).backward();
                adam.launch(std::slice::from_ref(&ours)).unwrap();
            }
            (adam.steps, Vec::<f32>::try_from(&ours).unwrap())
        });
        assert_eq!(ends[0], ends[1]);
    }

    /// ADAM-2: against libtorch's, which is only stepped where there is a gradient.
    #[test]
    fn adam_2_missing_gradient_skips_parameter_and_step() {
        let store = nn::VarStore::new(Device::Cpu);
        let theirs = store.root().var("w", &[3], nn::Init::Const(0.5));
        let mut reference = nn::Adam { eps: 1e-5, ..nn::Adam::default() }.build(&store, 1e-2).unwrap();
        let first = Tensor::from_slice(&[1.0_f32, 2.0]).set_requires_grad(true);
        let head = Tensor::from_slice(&[0.5_f32; 3]).set_requires_grad(true);
        let parameters = [first.shallow_clone(), head.shallow_clone()];
        let mut adam = Adam::new(5, 1e-5, Device::Cpu).unwrap();
        let loss =
            |w: &Tensor, i: i32| ((w - 0.1 * f64::from(i)) * (w * 3.0).cos()).square().sum(Kind::Float);
        for i in 0..40 {
            for tensor in &parameters {
                tensor.grad().defined().then(|| tensor.grad().zero_());
            }
            loss(&first, i).backward();
            let used = if i % 8 == 7 { 2 } else { 1 };
            if used == 2 {
                loss(&head, i).backward();
                reference.backward_step(&loss(&theirs, i));
            }
            let before = Vec::<f32>::try_from(&head).unwrap();
            adam.step_first(&parameters, used, 1e-2).unwrap();
            assert_eq!(used == 1, before == Vec::<f32>::try_from(&head).unwrap(), "{i}");
        }
        assert_eq!((adam.steps, adam.missed.clone()), (40, vec![0, 35]));
        assert!((&head - &theirs).abs().max().double_value(&[]) < 1e-6);
    }

    #[test]
    fn parameter_without_gradient_is_an_error() {
        let parameter = Tensor::from_slice(&[1.0_f32]).set_requires_grad(true);
        let mut adam = Adam::new(1, 1e-5, Device::Cpu).unwrap();
        assert!(matches!(adam.step(&[parameter], 0.1), Err(AdamError::Gradient { index: 0 })));
    }
}
