//! Losses of actor-critic algorithms: their value, and their gradient with respect to log-probabilities and values.
//!
//! Invariants:
//! - LOSS-1: value and gradient equal those of the same terms under libtorch's autograd within 1e-5.

use super::math::exp;
use super::matrix::Matrix;
use super::road::on_every_road;

/// PPO's clipped surrogate over a minibatch (Schulman et al. 2017, equation 7, as CleanRL's ppo.py computes it), all sums, not means.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Surrogate {
    /// Sum of the loss.
    pub loss: f64,
    /// Sum of -log ratio.
    pub old_approx_kl: f64,
    /// Sum of ratio - 1 - log ratio.
    pub approx_kl: f64,
    /// Ratios further than `clip` from 1.
    pub clipped: usize,
}

on_every_road! {
    /// The loss's sums, and the gradient of its mean with respect to each row's log-probability. The clipped branch has no gradient outside
    /// of the range, and the same as the other one inside.
    pub fn surrogate(
        log_probs: &[f32],
        old_log_probs: &[f32],
        advantages: &[f32],
        clip: f32,
        gradient: &mut [f32],
    ) -> Surrogate {
        let mut sums = Surrogate::default();
        let weight = 1.0 / log_probs.len().max(1) as f32;
        let rows = log_probs.iter().zip(old_log_probs).zip(advantages);
        for (((log_prob, old), advantage), to) in rows.zip(gradient) {
            let log_ratio = log_prob - old;
            let ratio = exp(log_ratio);
            let (low, high) = (1.0 - clip, 1.0 + clip);
            let limited = if ratio < low { low } else if ratio > high { high } else { ratio };
            let (gain, limited_gain) = (advantage * ratio, advantage * limited);
            // Written so that NaN stays NaN in both.
            let cut = limited_gain < gain;
            sums.loss -= f64::from(if cut { limited_gain } else { gain });
            *to = if cut { 0.0 } else { -gain * weight };
            sums.old_approx_kl -= f64::from(log_ratio);
            sums.approx_kl += f64::from(ratio) - 1.0 - f64::from(log_ratio);
            sums.clipped += usize::from((ratio - 1.0).abs() > clip);
        }
        sums
    }
}

/// Half of the mean squared error of the values, or of the larger of that and the error of the value moved by at most `clip` from the old
/// one (CleanRL's `clip_vloss`). Writes the gradient, multiplied by `weight`; returns the loss without it.
pub fn value_loss(
    values: &Matrix,
    old_values: &[f32],
    returns: &[f32],
    clip: Option<f32>,
    weight: f32,
    gradient: &mut Matrix,
) -> f64 {
    gradient.set_rows(values.rows());
    let weight = weight / values.rows().max(1) as f32;
    let mut sum = 0.0;
    let rows = values.iter().zip(gradient.iter_mut()).zip(old_values.iter().zip(returns));
    for ((value, to), (old, goal)) in rows {
        let (Some(value), Some(to)) = (value.first(), to.first_mut()) else { continue };
        let mut error = value - goal;
        let mut slope = error;
        if let Some(clip) = clip {
            let moved = value - old;
            let limited = old + moved.clamp(-clip, clip) - goal;
            if limited * limited > error * error {
                error = limited;
                slope = if moved.abs() <= clip { limited } else { 0.0 };
            }
        }
        sum += f64::from(error) * f64::from(error);
        *to = slope * weight;
    }
    0.5 * sum / values.rows().max(1) as f64
}

/// To mean 0 and (unbiased) standard deviation 1, with CleanRL's 1e-8.
pub fn normalise(values: &mut [f32]) {
    let n = values.len() as f64;
    let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
    let variance = values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let scale = 1.0 / (variance.sqrt() + 1e-8);
    values.iter_mut().for_each(|v| *v = ((f64::from(*v) - mean) * scale) as f32);
}
