//! Adam (Kingma and Ba 2015) over a flat parameter buffer, step by step as `torch.optim.Adam` computes it.
//!
//! Owner: the training loop. libtorch's own C++ optimiser does not show its moments through tch, so it cannot
//! be put into a checkpoint; this one keeps them in two flat tensors. On the CPU, one fused pass does the
//! update (see [`rankdeck_kernel::optimise`]); on other devices, tensor operations do.
//!
//! Invariants:
//! - ADAM-1: parameters equal libtorch's Adam within 1e-6 after many steps.
//! - The result depends on parameters, gradients, moments, step count and learning rate only: ranks
//!   with equal gradients stay equal bit by bit, whatever their CPUs.

use crate::distributed::memory::{floats, floats_mut};
use crate::inject;
use rankdeck_kernel::Isa;
use rankdeck_kernel::optimise::{AdamStep, adam_step};
use tch::{Device, Kind, TchError, Tensor};

/// Why the optimiser cannot step.
#[derive(Debug, thiserror::Error)]
pub enum AdamError {
    /// libtorch refused an operation.
    #[error("libtorch refused an operation of the optimiser: {0}")]
    Torch(#[from] TchError),
    /// The flat step needs moments on the CPU.
    #[error("the optimiser's moments are not on the CPU")]
    Device,
    /// A parameter has no gradient, or one of another shape, type or layout.
    #[error("parameter {index} has no dense f32 gradient of its shape")]
    Gradient {
        /// Index of the parameter.
        index: usize,
    },
}

/// The optimiser's state.
pub struct Adam {
    /// First moments, flat, in the order of the parameters.
    pub first: Tensor,
    /// Second moments, flat.
    pub second: Tensor,
    /// Steps so far.
    pub steps: u64,
    betas: (f64, f64),
    eps: f64,
}

impl Adam {
    /// For `len` parameters in all on `device`; betas 0.9 and 0.999.
    pub fn new(len: usize, eps: f64, device: Device) -> Result<Adam, TchError> {
        let zeros = || Tensor::f_zeros([len as i64], (Kind::Float, device));
        Ok(Adam { first: zeros()?, second: zeros()?, steps: 0, betas: (0.9, 0.999), eps })
    }

    /// One step with each parameter's `.grad`.
    pub fn step(&mut self, parameters: &[Tensor], learning_rate: f64) -> Result<(), AdamError> {
        let step = self.next(learning_rate);
        let mut offset = 0;
        for (index, parameter) in parameters.iter().enumerate() {
            let gradient = parameter.f_grad()?;
            let len = parameter.numel();
            let fits = gradient.defined()
                && gradient.numel() == len
                && gradient.kind() == Kind::Float
                && gradient.is_contiguous()
                && gradient.device() == parameter.device();
            if !fits {
                return Err(AdamError::Gradient { index });
            }
            let mut first = self.first.f_narrow(0, offset, len as i64)?;
            let mut second = self.second.f_narrow(0, offset, len as i64)?;
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
                _ => self.tensors(parameter, &gradient, first, second, step)?,
            }
            offset += len as i64;
        }
        Ok(())
    }

    /// One step with all parameters and gradients in one piece, as the hand-written passes have them;
    /// gradients count `scale` times.
    pub fn step_flat(
        &mut self,
        parameters: &mut [f32],
        gradients: &[f32],
        learning_rate: f64,
        scale: f32,
    ) -> Result<(), AdamError> {
        let step = AdamStep { scale, ..self.next(learning_rate) };
        // SAFETY: the moments are two tensors of this optimiser's own, and no tensor operation runs during
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

    fn tensors(
        &self,
        parameter: &Tensor,
        gradient: &Tensor,
        mut first: Tensor,
        mut second: Tensor,
        step: AdamStep,
    ) -> Result<(), TchError> {
        let ((beta1, beta2), step_size) = (self.betas, f64::from(step.step_size));
        tch::no_grad(|| {
            let gradient = gradient.f_view([-1])?;
            let _ = first.f_lerp_(&gradient, 1.0 - beta1)?;
            let squares = gradient.f_mul(&gradient)?.f_mul_scalar_(1.0 - beta2)?;
            let _ = second.f_mul_scalar_(beta2)?.f_add_(&squares)?;
            let denominator =
                second.f_sqrt()?.f_mul_scalar_(f64::from(step.correction))?.f_add_scalar_(self.eps)?;
            let change = first.f_div(&denominator)?.f_mul_scalar_(-step_size)?;
            let _ = parameter.f_view([-1])?.f_add_(&change)?;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::nn::{self, OptimizerConfig};

    /// Trains a small quadratic-like problem with libtorch's Adam and with ours on equal gradients.
    fn race(fused: bool) -> f64 {
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
            if fused {
                adam.step(std::slice::from_ref(&ours), rate).unwrap();
            } else {
                let step = adam.next(rate);
                let (first, second) = (adam.first.shallow_clone(), adam.second.shallow_clone());
                adam.tensors(&ours, &ours.grad(), first, second, step).unwrap();
            }
        }
        let moved = (&ours - Tensor::from_slice(&start)).abs().max().double_value(&[]);
        assert!(moved > 0.05, "the problem must move the weights: {moved}");
        (&ours - &theirs).abs().max().double_value(&[])
    }

    #[test]
    fn adam_1_both_forms_equal_libtorchs() {
        let (fused, tensors) = (race(true), race(false));
        assert!(fused < 1e-6, "{fused}");
        assert!(tensors < 1e-6, "{tensors}");
    }

    #[test]
    fn a_parameter_without_gradient_is_an_error() {
        let parameter = Tensor::from_slice(&[1.0_f32]).set_requires_grad(true);
        let mut adam = Adam::new(1, 1e-5, Device::Cpu).unwrap();
        assert!(matches!(adam.step(&[parameter], 0.1), Err(AdamError::Gradient { index: 0 })));
    }
}
