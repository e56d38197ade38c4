//! Distributions over actions: categorical for discrete ones, independent normals for continuous ones.
//!
//! Two forms of the same mathematics: tensors with gradients for learning, and plain Rust with the rank's own
//! random streams for acting, so that what an environment is asked to do does not depend on the batch that it
//! is evaluated in.

use rankdeck_kernel::math;
use rankdeck_kernel::numpy_random::Generator;
use tch::{Kind, TchError, Tensor};

/// ln(2 pi) / 2.
const HALF_LN_TAU: f64 = 0.918_938_533_204_672_8;

/// Distributions of a batch.
pub enum Distribution {
    /// Logarithms of the probabilities, `[batch, actions]`.
    Categorical(Tensor),
    /// Independent normals.
    Gaussian {
        /// `[batch, actions]`.
        mean: Tensor,
        /// Logarithm of the standard deviation, `[batch, actions]` or `[1, actions]`.
        log_std: Tensor,
    },
}

impl Distribution {
    /// From logits `[batch, actions]`.
    pub(crate) fn categorical(logits: &Tensor) -> Result<Distribution, TchError> {
        Ok(Distribution::Categorical(logits.f_log_softmax(-1, None::<Kind>)?))
    }

    /// From means `[batch, actions]` and a state-independent logarithm of the standard deviation `[1,
    /// actions]`.
    pub(crate) fn gaussian(mean: Tensor, log_std: &Tensor) -> Result<Distribution, TchError> {
        Ok(Distribution::Gaussian { mean, log_std: log_std.shallow_clone() })
    }

    /// Logarithms of the probability (density) of the actions: i64 `[batch]`, or f32 `[batch, actions]`;
    /// returns `[batch]`.
    pub(crate) fn log_prob(&self, actions: &Tensor) -> Result<Tensor, TchError> {
        match self {
            Distribution::Categorical(log_all) => {
                log_all.f_gather(-1, &actions.f_unsqueeze(-1)?, false)?.f_squeeze_dim(-1)
            }
            Distribution::Gaussian { mean, log_std } => {
                let z = actions.f_sub(mean)?.f_mul(&log_std.f_neg()?.f_exp()?)?;
                let each = z.f_square()?.f_mul_scalar(-0.5)?.f_sub(log_std)?.f_sub_scalar(HALF_LN_TAU)?;
                each.f_sum_dim_intlist(-1, false, None::<Kind>)
            }
        }
    }

    /// Entropies, `[batch]` (or `[1]` where all are the same).
    pub fn entropy(&self) -> Result<Tensor, TchError> {
        match self {
            Distribution::Categorical(log_all) => {
                log_all.f_exp()?.f_mul(log_all)?.f_sum_dim_intlist(-1, false, None::<Kind>)?.f_neg()
            }
            Distribution::Gaussian { log_std, .. } => {
                log_std.f_add_scalar(0.5 + HALF_LN_TAU)?.f_sum_dim_intlist(-1, false, None::<Kind>)
            }
        }
    }

    /// KL divergence of `other` from this one, KL(self, other), `[batch]`.
    pub(crate) fn kl(&self, other: &Distribution) -> Result<Tensor, TchError> {
        match (self, other) {
            (Distribution::Categorical(old), Distribution::Categorical(new)) => {
                old.f_exp()?.f_mul(&old.f_sub(new)?)?.f_sum_dim_intlist(-1, false, None::<Kind>)
            }
            (
                Distribution::Gaussian { mean, log_std },
                Distribution::Gaussian { mean: new_mean, log_std: new_log_std },
            ) => {
                // ln(s2 / s1) + (s1^2 + (m1 - m2)^2) / (2 s2^2) - 1/2
                let spread = log_std.f_mul_scalar(2.0)?.f_exp()?.f_add(&mean.f_sub(new_mean)?.f_square()?)?;
                let scaled = spread.f_mul(&new_log_std.f_mul_scalar(-2.0)?.f_exp()?)?.f_mul_scalar(0.5)?;
                let each = new_log_std.f_sub(log_std)?.f_add(&scaled)?.f_sub_scalar(0.5)?;
                each.f_sum_dim_intlist(-1, false, None::<Kind>)
            }
            _ => Err(TchError::Torch("distributions of different kinds".into())),
        }
    }

    /// The parameters as one tensor without gradients, to be taken apart by [`Distribution::from_saved`]:
    /// log-probabilities, or means and logarithms of deviations side by side.
    pub fn saved(&self) -> Result<Tensor, TchError> {
        match self {
            Distribution::Categorical(log_all) => log_all.f_detach(),
            Distribution::Gaussian { mean, log_std } => {
                Tensor::f_cat(&[mean.f_detach()?, log_std.f_detach()?.f_expand_as(mean)?], -1)
            }
        }
    }

    /// The inverse of [`Distribution::saved`].
    pub(crate) fn from_saved(saved: &Tensor, continuous: bool) -> Result<Distribution, TchError> {
        if !continuous {
            return Ok(Distribution::Categorical(saved.shallow_clone()));
        }
        let width = saved.size().last().copied().unwrap_or(0) / 2;
        Ok(Distribution::Gaussian {
            mean: saved.f_narrow(-1, 0, width)?,
            log_std: saved.f_narrow(-1, width, width)?,
        })
    }
}

/// An action by its logits, and its log-probability. Draws one double; `probabilities` is scratch.
pub(crate) fn sample_categorical(
    logits: &[f32],
    probabilities: &mut Vec<f32>,
    random: &mut Generator,
) -> (i64, f32) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    probabilities.clear();
    probabilities.extend(logits.iter().map(|logit| math::exp(logit - largest)));
    let total: f32 = probabilities.iter().sum();
    let mut left = random.next_f64() as f32 * total;
    let last = logits.len().saturating_sub(1);
    let mut action = last;
    for (i, probability) in probabilities.iter().enumerate().take(last) {
        left -= probability;
        if left < 0.0 {
            action = i;
            break;
        }
    }
    let log_probability = logits.get(action).copied().unwrap_or(0.0) - largest - math::ln(total);
    (action as i64, log_probability)
}

/// Draws an action around `mean` into `action`; returns its log-density. Draws one normal per number.
pub(crate) fn sample_gaussian(
    mean: &[f32],
    log_std: &[f32],
    random: &mut Generator,
    action: &mut [f32],
) -> f32 {
    let mut log_density = 0.0;
    for ((to, mean), log_std) in action.iter_mut().zip(mean).zip(log_std) {
        *to = mean + log_std.exp() * random.normal() as f32;
        // From the rounded action, as the learner will see it.
        let z = f64::from(*to - mean) / f64::from(*log_std).exp();
        log_density -= 0.5 * z * z + f64::from(*log_std) + HALF_LN_TAU;
    }
    log_density as f32
}

/// The most probable action; the first of equals.
pub(crate) fn most_probable(logits: &[f32]) -> i64 {
    let best = logits
        .iter()
        .enumerate()
        .fold((0, f32::NEG_INFINITY), |best, (i, logit)| if *logit > best.1 { (i, *logit) } else { best });
    best.0 as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_kernel::seeds::{Purpose, Seeds};

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-5 * b.abs().max(1.0)
    }

    #[test]
    fn actions_follow_their_probabilities() {
        let logits = [0.0, 1.0, -1.0];
        let mut random = Seeds::new(1).generator(Purpose::Action, 0, 0);
        let (mut counts, mut scratch) = ([0_u32; 3], Vec::new());
        let total = 1.0 + 1_f32.exp() + (-1_f32).exp();
        for _ in 0..100_000 {
            let (action, log_probability) = sample_categorical(&logits, &mut scratch, &mut random);
            counts[action as usize] += 1;
            assert!((log_probability - (logits[action as usize] - total.ln())).abs() < 1e-6);
        }
        for (count, probability) in
            counts.iter().zip([1.0 / total, 1_f32.exp() / total, (-1_f32).exp() / total])
        {
            assert!((*count as f32 / 1e5 - probability).abs() < 0.01);
        }
        assert_eq!(most_probable(&logits), 1);
    }

    #[test]
    fn gaussian_sample_density_equals_log_prob() {
        let (mean, log_std) = ([0.3_f32, -1.0], [-0.5_f32, 0.25]);
        let mut random = Seeds::new(2).generator(Purpose::Action, 0, 0);
        let mut action = [0.0_f32; 2];
        let (mut sum, mut squares) = ([0.0; 2], [0.0; 2]);
        let n = 20_000;
        for _ in 0..n {
            let log_density = sample_gaussian(&mean, &log_std, &mut random, &mut action);
            for i in 0..2 {
                sum[i] += f64::from(action[i]);
                squares[i] += f64::from(action[i]).powi(2);
            }
            let distribution = Distribution::gaussian(
                Tensor::from_slice(&mean).view([1, 2]),
                &Tensor::from_slice(&log_std).view([1, 2]),
            )
            .unwrap();
            let expected =
                distribution.log_prob(&Tensor::from_slice(&action).view([1, 2])).unwrap().double_value(&[0]);
            assert!(close(f64::from(log_density), expected), "{log_density} {expected}");
        }
        for i in 0..2 {
            let mean_seen = sum[i] / f64::from(n);
            let deviation = (squares[i] / f64::from(n) - mean_seen.powi(2)).sqrt();
            assert!((mean_seen - f64::from(mean[i])).abs() < 0.05);
            assert!((deviation - f64::from(log_std[i]).exp()).abs() < 0.05);
        }
    }

    #[test]
    fn entropies_and_divergences_follow_their_definitions() {
        let logits = Tensor::from_slice(&[0.0_f32, 1.0, -1.0]).view([1, 3]);
        let other = Tensor::from_slice(&[0.5_f32, 0.0, 0.0]).view([1, 3]);
        let [p, q] = [&logits, &other].map(|logits| Distribution::categorical(logits).unwrap());
        let probabilities = |logits: &[f64]| {
            let total: f64 = logits.iter().map(|l| l.exp()).sum();
            logits.iter().map(|l| l.exp() / total).collect::<Vec<_>>()
        };
        let (a, b) = (probabilities(&[0.0, 1.0, -1.0]), probabilities(&[0.5, 0.0, 0.0]));
        let entropy = -a.iter().map(|p| p * p.ln()).sum::<f64>();
        let kl: f64 = a.iter().zip(&b).map(|(a, b)| a * (a / b).ln()).sum();
        assert!(close(p.entropy().unwrap().double_value(&[0]), entropy));
        assert!(close(p.kl(&q).unwrap().double_value(&[0]), kl));
        let normal = |mean: f32, log_std: f32| {
            let [mean, log_std] = [mean, log_std].map(|x| Tensor::from_slice(&[x]).view([1, 1]));
            Distribution::gaussian(mean, &log_std).unwrap()
        };
        // N(0, 1) and N(1, 2^2): ln 2 + (1 + 1) / 8 - 1/2; entropy of N(0, 1): ln(2 pi e) / 2.
        let (p, q) = (normal(0.0, 0.0), normal(1.0, 2.0_f32.ln()));
        assert!(close(p.kl(&q).unwrap().double_value(&[0]), 2.0_f64.ln() + 0.25 - 0.5));
        assert!(close(p.entropy().unwrap().double_value(&[0]), 1.418_938_533));
        let again = Distribution::from_saved(&q.saved().unwrap(), true).unwrap();
        assert!(close(p.kl(&again).unwrap().double_value(&[0]), 2.0_f64.ln() + 0.25 - 0.5));
        assert!(p.kl(&Distribution::categorical(&logits).unwrap()).is_err());
    }
}
