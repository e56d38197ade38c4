//! The gradient's norm and Adam's step over flat slices, one pass each.
//!
//! Invariants:
//! - OPTIMISE-1: bits do not depend on the processor: ranks on different hosts with equal gradients clip by
//!   the same factor and take the same step. There is no fused multiply-add here, and sums are made in a
//!   fixed order.
//! - OPTIMISE-2: steps equal `torch.optim.Adam`, `torch.optim.AdamW` and `torch.optim.RAdam` within 1e-6 after many.

use super::isa::on_every_isa;

/// Sums in flight. The number is fixed, so that the order of additions is.
const SUMS: usize = 16;

on_every_isa! {
    /// The sum of squares, in f64.
    pub fn sum_of_squares(values: &[f32]) -> f64 {
        let mut sums = [0.0_f64; SUMS];
        let chunks = values.chunks_exact(SUMS);
        let rest = chunks.remainder();
        for chunk in chunks {
            for (sum, value) in sums.iter_mut().zip(chunk) {
                *sum += f64::from(*value) * f64::from(*value);
            }
        }
        for (sum, value) in sums.iter_mut().zip(rest) {
            *sum += f64::from(*value) * f64::from(*value);
        }
        sums.iter().sum()
    }
}

/// What the norm of the gradients is multiplied by so that it is at most `max_norm`: PyTorch's
/// `clip_grad_norm_`, with its 1e-6. A NaN norm gives NaN.
pub fn clip_scale(norm: f64, max_norm: f64) -> f32 {
    let scale = max_norm / (norm + 1e-6);
    if scale < 1.0 || scale.is_nan() { scale as f32 } else { 1.0 }
}

/// One step's numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamStep {
    /// The rate over the first moment's bias correction.
    pub step_size: f32,
    /// 1 over the root of the second moment's bias correction.
    pub correction: f32,
    /// Added to the root.
    pub eps: f32,
    /// Decay of the first moment, in `[0, 1)`.
    pub beta1: f64,
    /// Second beta.
    pub beta2: f64,
    /// What parameters are multiplied by before the step: 1, or `1 - rate * weight_decay` for AdamW.
    pub decay: f32,
    /// What gradients are multiplied by: [`clip_scale`].
    pub scale: f32,
}

impl AdamStep {
    /// Step number `steps`, counted from 1 (Kingma and Ba 2015, algorithm 1; decay as Loshchilov and Hutter
    /// 2019).
    pub fn new(steps: u64, rate: f64, (beta1, beta2): (f64, f64), eps: f64, weight_decay: f64) -> AdamStep {
        AdamStep {
            step_size: (rate / (1.0 - power(beta1, steps))) as f32,
            correction: (1.0 / (1.0 - power(beta2, steps)).sqrt()) as f32,
            eps: eps as f32,
            beta1,
            beta2,
            decay: (1.0 - rate * weight_decay) as f32,
            scale: 1.0,
        }
    }

    /// Step number `steps` of RAdam, counted from 1 (Liu et al. 2020, "On the Variance of the Adaptive Learning Rate and
    /// Beyond", algorithm 2; `torch.optim.RAdam`). In the first steps, in which the variance of the adaptive rate
    /// is intractable, the first moment is not divided by the root of the second.
    pub fn rectified(steps: u64, rate: f64, betas: (f64, f64), eps: f64) -> AdamStep {
        let adam = AdamStep::new(steps, rate, betas, eps, 0.0);
        let decayed = power(betas.1, steps);
        let most = 2.0 / (1.0 - betas.1) - 1.0;
        let length = most - 2.0 * steps as f64 * decayed / (1.0 - decayed);
        if length <= 5.0 {
            return AdamStep { correction: 0.0, eps: 1.0, ..adam };
        }
        let share = (length - 4.0) * (length - 2.0) * most / ((most - 4.0) * (most - 2.0) * length);
        AdamStep {
            step_size: (rate * share.sqrt() / (1.0 - power(betas.0, steps))) as f32,
            // PyTorch adds it before the correction.
            eps: (eps / (1.0 - decayed).sqrt()) as f32,
            ..adam
        }
    }
}

/// By squaring: the C library's `pow` may give other bits on another processor (OPTIMISE-1).
fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut product = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            product *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    product
}

/// 0 instead of a subnormal number, which processors compute with many times slower. The moments of units
/// that no longer get a gradient (ReLU's) fall that low, and the first moment would stay there: the smallest
/// subnormal times 0.9 rounds to itself.
#[inline(always)]
fn whole(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { 0.0 } else { value }
}

on_every_isa! {
    /// One step of Adam, in place; all slices are equally long.
    pub fn adam_step(step: AdamStep, parameters: &mut [f32], gradients: &[f32], first: &mut [f32], second: &mut [f32]) {
        let AdamStep { step_size, correction, eps, decay, scale, .. } = step;
        let (weight1, beta2, weight2) = ((1.0 - step.beta1) as f32, step.beta2 as f32, (1.0 - step.beta2) as f32);
        for (((p, g), m), v) in parameters.iter_mut().zip(gradients).zip(first).zip(second) {
            let g = g * scale;
            *m = whole(*m + weight1 * (g - *m));
            *v = whole(*v * beta2 + weight2 * g * g);
            *p = *p * decay - step_size * (*m / (v.sqrt() * correction + eps));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::isa::Isa;
    use super::*;
    use crate::seeds::{Purpose, Seeds};

    /// OPTIMISE-1.
    #[test]
    fn optimise_1_every_instruction_set_takes_the_same_step() {
        let mut random = Seeds::new(5).generator(Purpose::Model, 0, 0);
        for len in [0, 1, 15, 16, 17, 1000, 9155] {
            let mut draw = || (0..len).map(|_| random.normal() as f32).collect::<Vec<_>>();
            let (start, gradient) = (draw(), draw());
            let run = |isa| {
                let norm = sum_of_squares(isa, &gradient).sqrt();
                let (mut parameters, mut first, mut second) = (start.clone(), vec![0.1; len], vec![0.2; len]);
                for steps in 1..10 {
                    let step = AdamStep {
                        scale: clip_scale(norm, 0.5),
                        ..AdamStep::new(steps, 1e-2, (0.9, 0.999), 1e-5, 0.01)
                    };
                    adam_step(isa, step, &mut parameters, &gradient, &mut first, &mut second);
                }
                let bits = parameters.iter().chain(&first).chain(&second).map(|x| x.to_bits());
                (norm.to_bits(), bits.collect::<Vec<_>>())
            };
            let all: Vec<_> = Isa::all().into_iter().map(run).collect();
            assert!(all.iter().all(|bits| *bits == all[0]), "{len}");
            let expected: f64 = gradient.iter().map(|g| f64::from(*g).powi(2)).sum();
            assert!((f64::from_bits(all[0].0).powi(2) - expected).abs() <= 1e-12 * expected);
        }
    }

    /// OPTIMISE-2, as PyTorch's documentation of `torch.optim.RAdam` defines it, in f64.
    #[test]
    fn optimise_2_rectified_steps_follow_their_definition() {
        let (rate, beta1, beta2, eps) = (1e-2, 0.9_f64, 0.999_f64, 1e-8);
        let (mut parameters, mut first, mut second) = ([0.5_f32, -1.0], [0.0; 2], [0.0; 2]);
        let (mut x, mut m, mut v) = ([0.5_f64, -1.0], [0.0_f64; 2], [0.0_f64; 2]);
        let most = 2.0 / (1.0 - beta2) - 1.0;
        let mut adaptive = 0;
        for t in 1..=300 {
            let gradient = [0.3 * x[0] + 0.1, x[1].sin()];
            let powers = (beta1.powi(t), beta2.powi(t));
            let length = most - 2.0 * f64::from(t) * powers.1 / (1.0 - powers.1);
            for i in 0..2 {
                m[i] = beta1 * m[i] + (1.0 - beta1) * gradient[i];
                v[i] = beta2 * v[i] + (1.0 - beta2) * gradient[i] * gradient[i];
                let corrected = m[i] / (1.0 - powers.0);
                let factor = if length > 5.0 {
                    let share =
                        (length - 4.0) * (length - 2.0) * most / ((most - 4.0) * (most - 2.0) * length);
                    adaptive += 1;
                    share.sqrt() * (1.0 - powers.1).sqrt() / (v[i].sqrt() + eps)
                } else {
                    1.0
                };
                x[i] -= rate * corrected * factor;
            }
            let step = AdamStep::rectified(t as u64, rate, (beta1, beta2), eps);
            let gradient = gradient.map(|g| g as f32);
            adam_step(Isa::best(), step, &mut parameters, &gradient, &mut first, &mut second);
            for (own, expected) in parameters.iter().zip(x) {
                assert!((f64::from(*own) - expected).abs() < 1e-5, "step {t}: {own} {expected}");
            }
        }
        assert_eq!(adaptive, 2 * (300 - 5), "the first five steps are not adaptive");
    }

    /// Moments without gradients fall to 0, not to what processors are slow with.
    #[test]
    fn moments_are_never_denormal() {
        for isa in Isa::all() {
            let (mut parameters, mut first, mut second) = ([1.0; 40], [1e-4; 40], [1e-30; 40]);
            for steps in 1..30_000 {
                let step = AdamStep::new(steps, 1e-3, (0.9, 0.999), 1e-8, 0.0);
                adam_step(isa, step, &mut parameters, &[0.0; 40], &mut first, &mut second);
                assert!(
                    first.iter().chain(&second).all(|value| !value.is_subnormal()),
                    "after {steps} steps"
                );
            }
            assert_eq!((first[0], second[0]), (0.0, 0.0));
        }
    }

    #[test]
    fn clipping_follows_pytorch() {
        assert_eq!(clip_scale(5.0, 10.0), 1.0);
        assert_eq!(clip_scale(5.0, 0.5), (0.5 / (5.0 + 1e-6)) as f32);
        assert!(clip_scale(f64::NAN, 0.5).is_nan());
        assert_eq!(clip_scale(f64::INFINITY, 0.5), 0.0);
    }

    #[test]
    fn powers_are_right() {
        for exponent in [0, 1, 2, 7, 100, 12_345] {
            let expected = 0.999_f64.powf(exponent as f64);
            assert!((power(0.999, exponent) - expected).abs() < 1e-12);
        }
        assert_eq!(power(0.9, u64::MAX), 0.0);
    }
}
