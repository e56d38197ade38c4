//! Distributions over actions: categorical for discrete ones, independent normals for continuous ones.
//!
//! Actions of several discrete parts have an independent categorical distribution for each part: log-probabilities
//! and entropies are sums over the parts, as in `MultiCategoricalDistribution` of Stable-Baselines3
//! (`stable_baselines3/common/distributions.py`). Its `BernoulliDistribution` of `MultiBinary` actions is the one with
//! two choices per part. Actions that are not allowed get a constant in place of their logit, so that they have
//! neither probability nor gradient (Huang & Ontañón 2020, "A Closer Look at Invalid Action Masking in Policy
//! Gradient Algorithms"; `sb3_contrib/common/maskable/distributions.py`).
//!
//! Two forms of the same mathematics: tensors with gradients for learning, and plain Rust with the rank's own
//! random streams for acting, so that what an environment is asked to do does not depend on the batch that it
//! is evaluated in.

use rankdeck_kernel::numpy_random::Generator;
use rankdeck_kernel::{Isa, distribution};
use tch::{Kind, TchError, Tensor};

/// ln(2 pi) / 2.
const HALF_LN_TAU: f64 = 0.918_938_533_204_672_8;

/// The logit of actions that are not allowed: its exponential is 0, and it stays finite times 0.
const FORBIDDEN: f64 = -1e8;

/// Distributions of a batch.
pub enum Distribution {
    /// Logarithms of the probabilities, `[batch, actions]`.
    Categorical(Tensor),
    /// Of independent parts.
    MultiCategorical {
        /// Logarithms of the probabilities of all parts' choices, one after the other, `[batch, choices]`.
        log_all: Tensor,
        /// Choices of each part.
        sizes: Vec<usize>,
    },
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

    /// From logits `[batch, choices]` of actions with parts of these sizes; `masks` `[batch, choices]` are 0 where a
    /// choice is not allowed.
    pub(crate) fn discrete(
        logits: &Tensor,
        sizes: &[usize],
        masks: Option<&Tensor>,
    ) -> Result<Distribution, TchError> {
        let masked = masks.map(|masks| logits.f_masked_fill(&masks.f_eq(0)?, FORBIDDEN)).transpose()?;
        let logits = masked.as_ref().unwrap_or(logits);
        if sizes.len() == 1 {
            return Distribution::categorical(logits);
        }
        let parts = parts(logits, sizes)?;
        let parts: Result<Vec<_>, _> =
            parts.iter().map(|part| part.f_log_softmax(-1, None::<Kind>)).collect();
        Ok(Distribution::MultiCategorical { log_all: Tensor::f_cat(&parts?, -1)?, sizes: sizes.to_vec() })
    }

    /// From means `[batch, actions]` and a state-independent logarithm of the standard deviation `[1,
    /// actions]`.
    pub(crate) fn gaussian(mean: Tensor, log_std: &Tensor) -> Result<Distribution, TchError> {
        Ok(Distribution::Gaussian { mean, log_std: log_std.shallow_clone() })
    }

    /// Logarithms of the probability (density) of the actions: i64 `[batch]` or `[batch, parts]`, or f32 `[batch,
    /// actions]`; returns `[batch]`.
    pub(crate) fn log_prob(&self, actions: &Tensor) -> Result<Tensor, TchError> {
        match self {
            Distribution::Categorical(log_all) => {
                log_all.f_gather(-1, &actions.f_unsqueeze(-1)?, false)?.f_squeeze_dim(-1)
            }
            Distribution::MultiCategorical { log_all, sizes } => {
                let mut each = Vec::with_capacity(sizes.len());
                for (i, part) in parts(log_all, sizes)?.iter().enumerate() {
                    each.push(part.f_gather(-1, &actions.f_narrow(-1, i as i64, 1)?, false)?);
                }
                Tensor::f_cat(&each, -1)?.f_sum_dim_intlist(-1, false, None::<Kind>)
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
            Distribution::Categorical(log_all) | Distribution::MultiCategorical { log_all, .. } => {
                log_all.f_exp()?.f_mul(log_all)?.f_sum_dim_intlist(-1, false, None::<Kind>)?.f_neg()
            }
            Distribution::Gaussian { log_std, .. } => {
                log_std.f_add_scalar(0.5 + HALF_LN_TAU)?.f_sum_dim_intlist(-1, false, None::<Kind>)
            }
        }
    }

    /// Logarithms of the probabilities of all choices; `None` for continuous actions.
    pub(crate) fn log_all(&self) -> Option<&Tensor> {
        match self {
            Distribution::Categorical(log_all) | Distribution::MultiCategorical { log_all, .. } => {
                Some(log_all)
            }
            Distribution::Gaussian { .. } => None,
        }
    }

    /// KL divergence of `other` from this one, KL(self, other), `[batch]`.
    pub(crate) fn kl(&self, other: &Distribution) -> Result<Tensor, TchError> {
        if let (Some(old), Some(new)) = (self.log_all(), other.log_all()) {
            return old.f_exp()?.f_mul(&old.f_sub(new)?)?.f_sum_dim_intlist(-1, false, None::<Kind>);
        }
        match (self, other) {
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
            Distribution::Categorical(log_all) | Distribution::MultiCategorical { log_all, .. } => {
                log_all.f_detach()
            }
            Distribution::Gaussian { mean, log_std } => {
                Tensor::f_cat(&[mean.f_detach()?, log_std.f_detach()?.f_expand_as(mean)?], -1)
            }
        }
    }

    /// The inverse of [`Distribution::saved`], for [`Distribution::kl`]: without the sizes of discrete parts.
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

/// The columns of each part.
fn parts(all: &Tensor, sizes: &[usize]) -> Result<Vec<Tensor>, TchError> {
    let sizes: Vec<i64> = sizes.iter().map(|size| *size as i64).collect();
    all.f_split_with_sizes(&sizes, -1)
}

/// A choice of each part by its logits and mask, and the log-probability of all. Draws one double per part;
/// `probabilities` is scratch.
pub(crate) fn sample_parts(
    logits: &[f32],
    (sizes, mask): (&[usize], Option<&[u8]>),
    probabilities: &mut Vec<f32>,
    random: &mut Generator,
    actions: &mut [i64],
) -> f32 {
    let (mut start, mut sum) = (0, 0.0);
    for (action, size) in actions.iter_mut().zip(sizes) {
        let own = start..start + size;
        start = own.end;
        let mask = mask.map(|mask| &mask[own.clone()]);
        let (chosen, log_probability) = sample_categorical(&logits[own], mask, probabilities, random);
        *action = chosen;
        sum += log_probability;
    }
    sum
}

/// The most probable choice of each part that its mask allows; the first of equals.
pub(crate) fn most_probable_parts(
    logits: &[f32],
    (sizes, mask): (&[usize], Option<&[u8]>),
    actions: &mut [i64],
) {
    let mut start = 0;
    for (action, size) in actions.iter_mut().zip(sizes) {
        let own = start..start + size;
        start = own.end;
        *action = most_probable(&logits[own.clone()], mask.map(|mask| &mask[own]));
    }
}

/// An action by its logits, among those that its mask allows, and its log-probability. Draws one double;
/// `probabilities` is scratch.
pub(crate) fn sample_categorical(
    logits: &[f32],
    mask: Option<&[u8]>,
    probabilities: &mut Vec<f32>,
    random: &mut Generator,
) -> (i64, f32) {
    let uniform = random.next_f64() as f32;
    let (action, log_probability) =
        distribution::sample_categorical(Isa::best(), logits, mask, uniform, probabilities);
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

/// The most probable action that its mask allows; the first of equals.
pub(crate) fn most_probable(logits: &[f32], mask: Option<&[u8]>) -> i64 {
    let allowed = |i: usize| mask.is_none_or(|mask| mask[i] != 0);
    let first = mask.and_then(|mask| mask.iter().position(|allowed| *allowed != 0)).unwrap_or(0);
    let best = logits.iter().enumerate().filter(|(i, _)| allowed(*i)).fold(
        (first, f32::NEG_INFINITY),
        |best, (i, logit)| if *logit > best.1 { (i, *logit) } else { best },
    );
    best.0 as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_kernel::seeds::{Purpose, Seeds};
    use tch::Device;

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
            let (action, log_probability) = sample_categorical(&logits, None, &mut scratch, &mut random);
            counts[action as usize] += 1;
            assert!((log_probability - (logits[action as usize] - total.ln())).abs() < 1e-6);
        }
        for (count, probability) in
            counts.iter().zip([1.0 / total, 1_f32.exp() / total, (-1_f32).exp() / total])
        {
            assert!((*count as f32 / 1e5 - probability).abs() < 0.01);
        }
        assert_eq!(most_probable(&logits, None), 1);
    }

    /// Probabilities of what is allowed make up 1, in sampling, in greedy actions and in tensors.
    #[test]
    fn masked_actions_are_never_taken_and_have_no_gradient() {
        let (sizes, mask) = ([3, 2, 4], [1_u8, 0, 1, 0, 1, 0, 1, 1, 0]);
        let logits = [0.0_f32, 9.0, 1.0, 9.0, -3.0, 9.0, 0.5, -0.5, 9.0];
        let leaf = Tensor::from_slice(&logits).view([1, 9]).set_requires_grad(true);
        let masks = Tensor::from_slice(&mask).view([1, 9]);
        let distribution = Distribution::discrete(&leaf, &sizes, Some(&masks)).unwrap();
        let mut random = Seeds::new(4).generator(Purpose::Action, 0, 0);
        let (mut scratch, mut actions) = (Vec::new(), [0; 3]);
        let mut counts = [0_u32; 9];
        for _ in 0..20_000 {
            let sampled =
                sample_parts(&logits, (&sizes, Some(&mask)), &mut scratch, &mut random, &mut actions);
            for (place, start) in actions.iter().zip([0, 3, 5]) {
                counts[start + *place as usize] += 1;
            }
            if counts[0] < 50 {
                let tensor = Tensor::from_slice(&actions).view([1, 3]);
                let expected = distribution.log_prob(&tensor).unwrap().double_value(&[0]);
                assert!(close(f64::from(sampled), expected), "{sampled} {expected}");
            }
        }
        assert!(counts.iter().zip(mask).all(|(count, allowed)| (*count > 0) == (allowed == 1)), "{counts:?}");
        let softmax = |logit: f64, other: f64| 1.0 / (1.0 + (other - logit).exp());
        let (first, third) = (softmax(0.0, 1.0), softmax(0.5, -0.5));
        assert!((f64::from(counts[0]) / 2e4 - first).abs() < 0.02, "{counts:?}");
        most_probable_parts(&logits, (&sizes, Some(&mask)), &mut actions);
        assert_eq!(actions, [2, 1, 1]);
        most_probable_parts(&logits, (&sizes, None), &mut actions);
        assert_eq!(actions, [1, 0, 0]);
        let h = |p: f64| -p * p.ln() - (1.0 - p) * (1.0 - p).ln();
        let entropy = distribution.entropy().unwrap();
        assert!(close(entropy.double_value(&[0]), h(first) + h(third)));
        let firsts = Tensor::zeros([1, 3], (Kind::Int64, Device::Cpu));
        (entropy + distribution.log_prob(&firsts).unwrap()).sum(Kind::Float).backward();
        let gradient = Vec::<f32>::try_from(leaf.grad().view([9])).unwrap();
        for (gradient, allowed) in gradient.iter().zip(mask) {
            assert!(gradient.is_finite() && (allowed == 1 || *gradient == 0.0), "{gradient}");
        }
        let other =
            Distribution::discrete(&Tensor::zeros([1, 9], (Kind::Float, Device::Cpu)), &sizes, Some(&masks));
        let saved = Distribution::from_saved(&distribution.saved().unwrap(), false).unwrap();
        let kl = saved.kl(&other.unwrap()).unwrap().double_value(&[0]);
        assert!(close(kl, 2.0 * 2.0_f64.ln() - h(first) - h(third)), "{kl}");
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
