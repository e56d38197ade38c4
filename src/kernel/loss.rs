//! Losses of actor-critic algorithms: their value, and their gradient with respect to log-probabilities and
//! values.
//!
//! A loss is a weighted mean over rows: `shares` says what each row counts, 1/n each for a plain mean, 0 for
//! a row that does not count.
//!
//! Invariants:
//! - LOSS-1: value and gradient equal those of the same terms under libtorch's autograd within 1e-5.

use super::isa::on_every_isa;
use super::math::exp;
use super::matrix::Matrix;

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
pub fn normalise(values: &mut [f32]) {
    let n = values.len() as f64;
    let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
    let variance = values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let scale = 1.0 / (variance.sqrt() + 1e-8);
    values.iter_mut().for_each(|v| *v = ((f64::from(*v) - mean) * scale) as f32);
}
