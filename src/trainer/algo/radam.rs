//! RAdam (Liu et al. 2020) over a flat parameter buffer, equal to `torch.optim.RAdam`.
//!
//! On the CPU, one fused pass does the update ([`AdamStep::rectified`]), so that its bits do not depend on the
//! processor; on a GPU, libtorch does it over all parameters at once.
//!
//! Invariants:
//! - RADAM-1: parameters equal libtorch's form of the same step within 1e-5 after many steps.

use crate::distributed::Ddp;
use crate::distributed::memory::floats_mut;
use crate::error::TrainerError;
use crate::inject;
use crate::policy::parameters::Parameters;
use crate::support::state::{Array, NamedWords, RestoredState};
use rankdeck_kernel::Isa;
use rankdeck_kernel::optimizer::{AdamStep, adam_step, clip_scale, sum_of_squares};
use tch::{Device, Kind, TchError, Tensor};

/// PyTorch's defaults.
const BETAS: (f64, f64) = (0.9, 0.999);

/// The optimizer's state.
pub(crate) struct RAdam {
    first: Tensor,
    second: Tensor,
    steps: u64,
    eps: f64,
}

impl RAdam {
    /// For `len` parameters in all on `device`.
    pub(crate) fn new(len: usize, eps: f64, device: Device) -> Result<RAdam, TchError> {
        let zeros = || Tensor::f_zeros([len as i64], (Kind::Float, device));
        Ok(RAdam { first: zeros()?, second: zeros()?, steps: 0, eps })
    }

    /// Clips the averaged gradients to a global norm of `max_norm` and makes a step. Returns the norm where it
    /// is still on a GPU.
    pub(crate) fn step(
        &mut self,
        parameters: &mut Parameters,
        ddp: &mut Ddp,
        (rate, max_norm): (f64, f64),
    ) -> Result<Option<Tensor>, TrainerError> {
        inject::here(inject::Hook::Learn);
        self.steps += 1;
        let step = AdamStep::rectified(self.steps, rate, BETAS, self.eps);
        // SAFETY: the four buffers are different ones, and no tensor operation runs until the step is done.
        let slices = unsafe {
            (
                parameters.floats_mut(),
                ddp.flat_gradients(),
                floats_mut(&mut self.first),
                floats_mut(&mut self.second),
            )
        };
        if let (Some(parameters), Some(gradients), Some(first), Some(second)) = slices {
            let isa = Isa::best();
            let scale = clip_scale(sum_of_squares(isa, gradients).sqrt(), max_norm);
            adam_step(isa, AdamStep { scale, ..step }, parameters, gradients, first, second);
            return Ok(None);
        }
        let norm = ddp.clip_grad_norm(max_norm);
        self.step_tensors(parameters, step)?;
        Ok(Some(norm))
    }

    /// The step over whole tensors.
    fn step_tensors(&mut self, parameters: &Parameters, step: AdamStep) -> Result<(), TchError> {
        let flat = |tensor: &Tensor| tensor.f_grad()?.f_reshape([-1]);
        let gradients = parameters.tensors().iter().map(flat).collect::<Result<Vec<_>, _>>()?;
        let gradients = Tensor::f_cat(&gradients, 0)?;
        let number = |value: f32| f64::from(value);
        tch::no_grad(|| {
            let _ = self.first.f_lerp_(&gradients, 1.0 - step.beta1)?;
            let squares = gradients.f_square()?.f_mul_scalar(1.0 - step.beta2)?;
            let _ = self.second.f_mul_scalar_(step.beta2)?.f_add_(&squares)?;
            let root = self.second.f_sqrt()?.f_mul_scalar(number(step.correction))?;
            let moved = self.first.f_div(&root.f_add_scalar(number(step.eps))?)?;
            let moved = moved.f_mul_scalar(number(step.step_size))?;
            parameters.flat().shallow_clone().f_sub_(&moved).map(drop)
        })
    }

    /// Both moments for a checkpoint.
    pub(crate) fn arrays(&self) -> Result<[Array; 2], TchError> {
        Ok([Array::of("radam.first", &self.first)?, Array::of("radam.second", &self.second)?])
    }

    /// The count of steps for a checkpoint.
    pub(crate) fn words(&self) -> NamedWords {
        NamedWords { name: "radam.steps".into(), values: vec![self.steps] }
    }

    /// Restores [`RAdam::arrays`] and [`RAdam::words`].
    pub(crate) fn restore(&mut self, restored: &RestoredState) -> Result<(), TchError> {
        let moments = [("first", &self.first), ("second", &self.second)];
        let moments = moments.map(|(name, tensor)| (name.to_owned(), tensor.shallow_clone()));
        restored.copy_to("radam.", moments.into())?;
        self.steps = restored.words("radam.steps").first().copied().unwrap_or(self.steps);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::parameters::{InitialValues, ParameterEntry};

    /// RADAM-1: past the steps in which the rate is not adaptive.
    #[test]
    fn radam_1_both_forms_take_the_same_steps() {
        let entry = |name: &str, shape: Vec<i64>, offset| {
            let len = shape.iter().product::<i64>() as usize;
            ParameterEntry { name: name.into(), shape, offset, len, start: InitialValues::Constant(0.0) }
        };
        let entries = [entry("a", vec![2, 3], 0), entry("b", vec![4], 6)];
        let start: Vec<f32> = (0..10).map(|i| i as f32 * 0.3 - 1.0).collect();
        let mut numbers = start.clone();
        let parameters = Parameters::new(&entries, &start, Device::Cpu).unwrap();
        let mut tensors = RAdam::new(10, 1e-8, Device::Cpu).unwrap();
        let (mut first, mut second) = (vec![0.0; 10], vec![0.0; 10]);
        for steps in 1..=200 {
            let step = AdamStep::rectified(steps, 1e-2, BETAS, 1e-8);
            let gradient: Vec<f32> = numbers.iter().map(|x| 2.0 * x + (steps as f32).sin()).collect();
            let whole = Tensor::from_slice(&gradient);
            for (tensor, (from, len)) in parameters.tensors().iter().zip([(0, 6), (6, 4)]) {
                let mut own = tensor.grad();
                if own.defined() {
                    let _ = own.zero_();
                }
                (tensor.flatten(0, -1) * whole.narrow(0, from, len)).sum(Kind::Float).backward();
            }
            adam_step(Isa::best(), step, &mut numbers, &gradient, &mut first, &mut second);
            tensors.step_tensors(&parameters, step).unwrap();
            let theirs = Vec::<f32>::try_from(parameters.flat()).unwrap();
            for (a, b) in numbers.iter().zip(&theirs) {
                assert!((a - b).abs() < 1e-5 * a.abs().max(1.0), "step {steps}: {a} {b}");
            }
        }
        assert!(numbers.iter().zip(&start).all(|(a, b)| (a - b).abs() > 1e-2));
    }
}
