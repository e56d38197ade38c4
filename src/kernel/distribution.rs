//! Log-probability and entropy of action distributions per row, with their gradients.
//!
//! The way of every policy loss: [`Categorical::forward`] or [`Gaussian::forward`] gives `log_probs` and the
//! mean entropy, a loss gives its gradient with respect to each row's log-probability ([`super::loss`]), and
//! `backward` turns that into the gradient of logits or means.

use super::gemm::Matrix;
use super::isa::{Isa, on_every_isa};
use super::math::{exp, ln};

/// Half of ln(2 pi).
const HALF_LN_TWO_PI: f32 = 0.918_938_5;

/// Discrete actions, from logits.
pub struct Categorical {
    isa: Isa,
    /// Normalized log-probabilities of all actions, of the last forward pass.
    log_all: Matrix,
    /// Each row's entropy.
    entropies: Vec<f32>,
}

impl Categorical {
    /// For `actions` actions.
    pub fn new(actions: usize) -> Categorical {
        Categorical { isa: Isa::best(), log_all: Matrix::new(0, actions), entropies: Vec::new() }
    }

    /// Writes each row's log-probability of its action; returns the entropies' mean with these shares. An
    /// action that does not exist counts as the last.
    pub fn forward(
        &mut self,
        logits: &Matrix,
        actions: &[i64],
        shares: &[f32],
        log_probs: &mut [f32],
    ) -> f64 {
        self.log_all.set_rows(logits.rows());
        self.entropies.resize(logits.rows(), 0.0);
        let (columns, stride) = (logits.columns(), logits.stride());
        let log_all = self.log_all.padded_mut();
        log_softmax(self.isa, logits.padded(), columns, stride, log_all, &mut self.entropies);
        let last = columns.saturating_sub(1);
        for ((row, action), to) in self.log_all.iter().zip(actions).zip(log_probs) {
            *to = row[(*action as usize).min(last)];
        }
        self.entropies
            .iter()
            .zip(shares)
            .map(|(entropy, share)| f64::from(*entropy) * f64::from(*share))
            .sum()
    }

    /// Log-probabilities of all actions, of the last forward pass.
    pub fn log_all(&self) -> &Matrix {
        &self.log_all
    }

    /// The gradient of a loss with respect to the logits, given that with respect to each row's
    /// log-probability and to the mean entropy: `d log p_a / d logit_j = [j = a] - p_j`, `d H / d logit_j =
    /// -p_j (log p_j + H)`.
    pub fn backward(
        &self,
        actions: &[i64],
        by_log_prob: &[f32],
        shares: &[f32],
        by_entropy: f32,
        gradient: &mut Matrix,
    ) {
        gradient.set_rows(self.log_all.rows());
        let (columns, stride) = (self.log_all.columns(), self.log_all.stride());
        let logs = self.log_all.padded();
        let place = gradient.padded_mut();
        softmax_back(
            self.isa,
            logs,
            columns,
            stride,
            &self.entropies,
            by_log_prob,
            shares,
            by_entropy,
            place,
        );
        let last = columns.saturating_sub(1);
        for ((row, action), by_log_prob) in gradient.iter_mut().zip(actions).zip(by_log_prob) {
            row[(*action as usize).min(last)] += by_log_prob;
        }
    }
}

on_every_isa! {
    fn log_softmax(logits: &[f32], columns: usize, stride: usize, log_all: &mut [f32], entropies: &mut [f32]) {
        let rows = logits.chunks_exact(stride).zip(log_all.chunks_exact_mut(stride));
        for ((from, to), entropy) in rows.zip(entropies) {
            let (from, to) = (&from[..columns], &mut to[..columns]);
            let largest = from.iter().copied().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a });
            let mut total = 0.0;
            for logit in from {
                total += exp(logit - largest);
            }
            // Not `largest + ln(total)`: that would lose the logarithm next to a large logit.
            let total = ln(total);
            *entropy = 0.0;
            for (to, logit) in to.iter_mut().zip(from) {
                *to = logit - largest - total;
                *entropy -= exp(*to) * *to;
            }
        }
    }
}

on_every_isa! {
    fn softmax_back(
        log_all: &[f32],
        columns: usize,
        stride: usize,
        entropies: &[f32],
        by_log_prob: &[f32],
        shares: &[f32],
        by_entropy: f32,
        gradient: &mut [f32],
    ) {
        let rows = log_all.chunks_exact(stride).zip(gradient.chunks_exact_mut(stride));
        for (((logs, to), (entropy, by_log_prob)), share) in rows.zip(entropies.iter().zip(by_log_prob)).zip(shares) {
            let by_entropy = by_entropy * share;
            for (to, log) in to[..columns].iter_mut().zip(&logs[..columns]) {
                *to = -exp(*log) * (by_log_prob + by_entropy * (log + entropy));
            }
        }
    }
}

on_every_isa! {
    /// The action whose share of the probabilities `uniform` (in [0, 1)) falls into, among those that the mask
    /// allows, and its log-probability. `probabilities` is scratch.
    pub fn sample_categorical(
        logits: &[f32],
        mask: Option<&[u8]>,
        uniform: f32,
        probabilities: &mut Vec<f32>,
    ) -> (usize, f32) {
        probabilities.clear();
        let mut last = logits.len().saturating_sub(1);
        let largest;
        match mask {
            None => {
                largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                probabilities.extend(logits.iter().map(|logit| exp(logit - largest)));
            }
            Some(mask) => {
                let allowed = logits.iter().zip(mask).filter(|(_, allowed)| **allowed != 0);
                largest = allowed.map(|(logit, _)| *logit).fold(f32::NEG_INFINITY, f32::max);
                let each = logits.iter().zip(mask);
                probabilities.extend(each.map(|(logit, allowed)| match allowed {
                    0 => 0.0,
                    _ => exp(logit - largest),
                }));
                last = mask.iter().rposition(|allowed| *allowed != 0).unwrap_or(last);
            }
        }
        let total: f32 = probabilities.iter().sum();
        let mut left = uniform * total;
        let mut action = last;
        for (i, probability) in probabilities.iter().enumerate().take(last) {
            left -= probability;
            if left < 0.0 {
                action = i;
                break;
            }
        }
        (action, logits.get(action).copied().unwrap_or(0.0) - largest - ln(total))
    }
}

/// Continuous actions: means from the network, one logarithm of the standard deviation per action dimension
/// that does not depend on the observation (CleanRL's ppo_continuous_action.py).
#[derive(Default)]
pub struct Gaussian {
    /// (action - mean) / deviation, of the last forward pass.
    scaled: Vec<f32>,
}

impl Gaussian {
    /// Writes each row's joint log-probability of its action (`[rows][dimensions]`, not squashed); returns
    /// the entropies' mean with these shares.
    pub fn forward(
        &mut self,
        means: &Matrix,
        log_std: &[f32],
        actions: &[f32],
        shares: &[f32],
        log_probs: &mut [f32],
    ) -> f64 {
        let width = means.columns().max(1);
        self.scaled.clear();
        for ((means, actions), to) in means.iter().zip(actions.chunks_exact(width)).zip(log_probs) {
            *to = 0.0;
            for ((mean, action), log_std) in means.iter().zip(actions).zip(log_std) {
                let scaled = (action - mean) * exp(-log_std);
                *to -= 0.5 * scaled * scaled + log_std + HALF_LN_TWO_PI;
                self.scaled.push(scaled);
            }
        }
        let entropy: f64 = log_std.iter().map(|log_std| f64::from(0.5 + HALF_LN_TWO_PI + log_std)).sum();
        entropy * total(shares)
    }

    /// The gradient of a loss with respect to the means, given that with respect to each row's
    /// log-probability and to the mean entropy; adds that with respect to `log_std` to `by_log_std`. `d log p
    /// / d mean = z / std`, `d log p / d log_std = z^2 - 1`, `d H / d log_std = 1`.
    pub fn backward(
        &self,
        log_std: &[f32],
        by_log_prob: &[f32],
        shares: &[f32],
        by_entropy: f32,
        gradient: &mut Matrix,
        by_log_std: &mut [f32],
    ) {
        gradient.set_rows(by_log_prob.len());
        let width = log_std.len().max(1);
        for ((to, scaled), by_log_prob) in
            gradient.iter_mut().zip(self.scaled.chunks_exact(width)).zip(by_log_prob)
        {
            for (i, (to, z)) in to.iter_mut().zip(scaled).enumerate() {
                *to = by_log_prob * z * exp(-log_std[i]);
                by_log_std[i] += by_log_prob * (z * z - 1.0);
            }
        }
        let by_entropy = by_entropy * total(shares) as f32;
        by_log_std.iter_mut().for_each(|to| *to += by_entropy);
    }
}

fn total(shares: &[f32]) -> f64 {
    shares.iter().map(|share| f64::from(*share)).sum()
}
