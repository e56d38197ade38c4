//! Losses of actor-critic algorithms and of Q-learning, with their gradients by log-probability, value and
//! Q-value.
//!
//! A loss is a weighted mean over rows: `shares` is the weight of each row, 1/n each for a plain mean, 0 for
//! a row that does not count.
//!
//! Invariants:
//! - LOSS-1: value and gradient equal those of the same terms under libtorch's autograd within 1e-5.

use super::gemm::Matrix;
use super::isa::on_every_isa;
use super::math::exp;

/// PPO's clipped surrogate over a minibatch (Schulman et al. 2017, equation 7, as CleanRL's ppo.py computes
/// it); all are means.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Surrogate {
    /// The whole loss, averaged over the minibatch.
    pub loss: f64,
    /// -log ratio.
    pub old_approx_kl: f64,
    /// ratio - 1 - log ratio.
    pub approx_kl: f64,
    /// Share of ratios further than `clip` from 1.
    pub clipped: f64,
}

on_every_isa! {
    /// The loss, and its gradient with respect to each row's log-probability. The clipped branch has no
    /// gradient outside of the range, and the same as the other one inside.
    pub fn surrogate(
        log_probs: &[f32],
        old_log_probs: &[f32],
        advantages: &[f32],
        shares: &[f32],
        clip: f32,
        gradient: &mut [f32],
    ) -> Surrogate {
        let mut means = Surrogate::default();
        let (low, high) = (1.0 - clip, 1.0 + clip);
        let rows = log_probs.iter().zip(old_log_probs).zip(advantages.iter().zip(shares));
        for (((log_prob, old), (advantage, share)), to) in rows.zip(gradient) {
            let log_ratio = log_prob - old;
            let ratio = exp(log_ratio);
            let limited = if ratio < low { low } else if ratio > high { high } else { ratio };
            let (gain, limited_gain) = (advantage * ratio, advantage * limited);
            // NaN stays NaN in both branches.
            let cut = limited_gain < gain;
            let wide = f64::from(*share);
            means.loss -= f64::from(if cut { limited_gain } else { gain }) * wide;
            *to = if cut { 0.0 } else { -gain * share };
            means.old_approx_kl -= f64::from(log_ratio) * wide;
            means.approx_kl += (f64::from(ratio) - 1.0 - f64::from(log_ratio)) * wide;
            means.clipped += if (ratio - 1.0).abs() > clip { wide } else { 0.0 };
        }
        means
    }
}

/// How log-probabilities make a loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Gain<'a> {
    /// PPO: by the ratio to those of the time when the actions were taken, within a range around 1.
    Clipped {
        /// Log-probabilities when the actions were taken.
        old_log_probs: &'a [f32],
        /// Clip range of the ratio.
        clip: f32,
    },
    /// The plain policy gradient (Williams 1992): as they are.
    Plain,
}

on_every_isa! {
    /// Minus the mean of log-probability times advantage, and its gradient with respect to each row's
    /// log-probability.
    pub fn policy_gradient(log_probs: &[f32], advantages: &[f32], shares: &[f32], gradient: &mut [f32]) -> f64 {
        let mut loss = 0.0;
        for (((log_prob, advantage), share), to) in log_probs.iter().zip(advantages).zip(shares).zip(gradient) {
            loss -= f64::from(log_prob * advantage) * f64::from(*share);
            *to = -advantage * share;
        }
        loss
    }
}

/// How far a value is from its goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distance {
    /// Half the squared error.
    Squared,
    /// Half the squared error up to 1, linear from there (PyTorch's `smooth_l1_loss`).
    Huber,
}

impl Distance {
    /// Loss and slope at an error.
    #[inline(always)]
    pub fn of(self, error: f32) -> (f32, f32) {
        match self {
            Distance::Huber if error.abs() >= 1.0 => (error.abs() - 0.5, error.signum()),
            _ => (0.5 * error * error, error),
        }
    }
}

/// What a value loss compares values with, one number per row.
#[derive(Debug, Clone, Copy)]
pub struct Goals<'a> {
    /// Values when the rollout was made.
    pub old_values: &'a [f32],
    /// Targets of the value function, one per sample.
    pub returns: &'a [f32],
    /// What each row counts.
    pub shares: &'a [f32],
}

/// The mean distance of the values (`[rows][1]`) from the returns; with `clip`, of the value or of the value
/// moved by at most `clip` from the old one, whichever loses more (CleanRL's `clip_vloss`). Writes the
/// gradient, times `weight`; returns the loss without it.
pub fn value_loss(
    values: &Matrix,
    goals: Goals<'_>,
    distance: Distance,
    clip: Option<f32>,
    weight: f32,
    gradient: &mut Matrix,
) -> f64 {
    gradient.set_rows(values.rows());
    let mut sum = 0.0;
    let rows = values.iter().zip(gradient.iter_mut()).zip(goals.old_values.iter().zip(goals.returns));
    for (((value, to), (old, goal)), share) in rows.zip(goals.shares) {
        let (Some(value), Some(to)) = (value.first(), to.first_mut()) else { continue };
        let (mut loss, mut slope) = distance.of(value - goal);
        if let Some(clip) = clip {
            let moved = value - old;
            let (limited, limited_slope) = distance.of(old + moved.clamp(-clip, clip) - goal);
            if limited > loss {
                (loss, slope) = (limited, if moved.abs() <= clip { limited_slope } else { 0.0 });
            }
        }
        sum += f64::from(loss) * f64::from(*share);
        *to = slope * weight * share;
    }
    sum
}

/// To mean 0 and (unbiased) standard deviation 1, with CleanRL's 1e-8.
pub fn normalize(values: &mut [f32]) {
    let n = values.len() as f64;
    let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
    let variance = values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let scale = 1.0 / (variance.sqrt() + 1e-8);
    values.iter_mut().for_each(|v| *v = ((f64::from(*v) - mean) * scale) as f32);
}

/// The sum over all rows of the distance of `q[row][action]` from its target times the row's share: 1/n for a
/// mean, times importance weights, or times 2 for the mean square (CleanRL's dqn.py, `F.mse_loss`). Writes
/// the gradient with respect to all of `q`, and the errors. An action that does not exist counts as the last.
pub fn q_loss(
    q: &Matrix,
    actions: &[i64],
    targets: &[f32],
    shares: &[f32],
    distance: Distance,
    errors: &mut [f32],
    gradient: &mut Matrix,
) -> f64 {
    gradient.set_rows(q.rows());
    gradient.padded_mut().fill(0.0);
    let last = q.columns().saturating_sub(1);
    let mut sum = 0.0;
    for (i, ((row, action), (target, share))) in
        q.iter().zip(actions).zip(targets.iter().zip(shares)).enumerate()
    {
        let action = (*action as usize).min(last);
        errors[i] = row[action] - target;
        let (loss, slope) = distance.of(errors[i]);
        sum += f64::from(loss) * f64::from(*share);
        gradient.row_mut(i)[action] = slope * share;
    }
    sum
}

/// One-step or n-step targets: `reward + discount * value` where the episode went on; the value is the target
/// network's for the action that `chooser` values most (van Hasselt et al. 2016), or the largest where the
/// chooser is the target network itself. Of equal ones the first. `masks` are 0 where an action is not allowed
/// next, `[rows][actions]`; empty without masks.
pub fn q_targets(
    target: &Matrix,
    chooser: &Matrix,
    masks: &[u8],
    (rewards, discounts): (&[f32], &[f32]),
    to: &mut [f32],
) {
    let rows = target.iter().zip(chooser.iter()).zip(rewards.iter().zip(discounts));
    let actions = target.columns();
    for (i, (((values, chosen), (reward, discount)), to)) in rows.zip(to).enumerate() {
        let best = match masks.get(i * actions..(i + 1) * actions) {
            Some(mask) => allowed_argmax(chosen, mask),
            None => argmax(chosen),
        };
        *to = reward + discount * values.get(best).copied().unwrap_or(0.0);
    }
}

/// The index of the largest value whose place in `mask` is not 0; the first of equals.
fn allowed_argmax(values: &[f32], mask: &[u8]) -> usize {
    let each = values.iter().zip(mask).enumerate().filter(|(_, (_, allowed))| **allowed != 0);
    let better = |best: Option<(usize, f32)>, (i, (value, _)): (usize, (&f32, &u8))| match best {
        Some((_, most)) if *value <= most => best,
        _ => Some((i, *value)),
    };
    each.fold(None, better).map_or(0, |(i, _)| i)
}

/// The index of the largest value; the first of equals.
pub fn argmax(values: &[f32]) -> usize {
    let best = values
        .iter()
        .enumerate()
        .fold((0, f32::NEG_INFINITY), |best, (i, value)| if *value > best.1 { (i, *value) } else { best });
    best.0
}

/// The dueling network's Q-values: `value + advantage - mean of advantages` (Wang et al. 2016, equation 9).
pub fn dueling(values: &Matrix, advantages: &Matrix, q: &mut Matrix) {
    q.set_rows(values.rows());
    for ((value, advantages), q) in values.iter().zip(advantages.iter()).zip(q.iter_mut()) {
        let mean = advantages.iter().sum::<f32>() / advantages.len().max(1) as f32;
        q.iter_mut().zip(advantages).for_each(|(q, advantage)| *q = value[0] + (advantage - mean));
    }
}

/// The gradients of [`dueling`]'s inputs from that of its output.
pub fn dueling_back(gradient: &Matrix, values: &mut Matrix, advantages: &mut Matrix) {
    values.set_rows(gradient.rows());
    advantages.set_rows(gradient.rows());
    for ((gradient, value), advantages) in gradient.iter().zip(values.iter_mut()).zip(advantages.iter_mut()) {
        let sum: f32 = gradient.iter().sum();
        let mean = sum / gradient.len().max(1) as f32;
        value[0] = sum;
        advantages.iter_mut().zip(gradient).for_each(|(to, from)| *to = from - mean);
    }
}
