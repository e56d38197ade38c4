//! Actions of a Gaussian that `tanh` squashes into bounds, with their log-probabilities and gradients.
//!
//! Haarnoja et al. 2018 (arXiv 1812.05905, appendix C), with the bounded deviation of CleanRL's
//! sac_continuous_action.py: `u = mean + deviation * noise`, `action = tanh(u) * scale + bias`, and
//! `log p(action) = log N(u) - log(scale * (1 - tanh(u)^2) + epsilon)`, summed over the numbers of an action.
//!
//! Invariants:
//! - SQUASHED-1: actions, log-probabilities and gradients equal those of libtorch's autograd within 1e-5.

use super::gemm::Matrix;
use super::isa::{Isa, on_every_isa};
use super::math::{exp, ln, tanh, tanh_all};

/// Half of ln(2 pi).
const HALF_LN_TWO_PI: f32 = 0.918_938_5;

/// What is between the parameters of a distribution and its actions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SquashedShape {
    /// Bounds of the logarithm of the deviation, which the network's output moves between by `tanh`.
    pub log_std: (f32, f32),
    /// Added to the slope of the squashing, so that its logarithm is finite.
    pub epsilon: f32,
}

/// Draws of one batch, and what their gradients need.
pub struct SquashedGaussian {
    isa: Isa,
    shape: SquashedShape,
    /// Half the width of each action's range.
    scale: Vec<f32>,
    /// The middle of each action's range.
    bias: Vec<f32>,
    rows: RowBuffers,
}

/// `[rows][actions]` each, without padding.
#[derive(Default)]
struct RowBuffers {
    scale: Vec<f32>,
    bias: Vec<f32>,
    mean: Vec<f32>,
    /// The network's second output; after a draw, its `tanh`.
    spread: Vec<f32>,
    noise: Vec<f32>,
    /// Deviation times noise.
    step: Vec<f32>,
    /// `tanh(u)`.
    squashed: Vec<f32>,
    actions: Vec<f32>,
    /// Log-probability of each number.
    terms: Vec<f32>,
}

impl SquashedGaussian {
    /// For actions within `bias - scale` and `bias + scale`.
    pub fn new(scale: &[f32], bias: &[f32], shape: SquashedShape) -> SquashedGaussian {
        let (scale, bias) = (scale.to_vec(), bias.to_vec());
        SquashedGaussian { isa: Isa::best(), shape, scale, bias, rows: RowBuffers::default() }
    }

    /// Draws by these standard normal numbers, `[rows][actions]`; `means` and `spreads` are the network's outputs
    /// `[rows][actions]`. Returns the actions, `[rows][actions]`.
    pub fn draw(&mut self, means: &Matrix, spreads: &Matrix, noise: &[f32]) -> &[f32] {
        let SquashedGaussian { isa, shape, scale, bias, rows } = self;
        let count = means.rows() * scale.len();
        if rows.scale.len() != count {
            rows.scale = scale.iter().copied().cycle().take(count).collect();
            rows.bias = bias.iter().copied().cycle().take(count).collect();
        }
        for (to, from) in [(&mut rows.mean, means), (&mut rows.spread, spreads)] {
            to.clear();
            from.iter().for_each(|row| to.extend_from_slice(row));
        }
        rows.noise.clear();
        rows.noise.extend_from_slice(noise);
        rows.noise.resize(count, 0.0);
        for column in [&mut rows.step, &mut rows.squashed, &mut rows.actions, &mut rows.terms] {
            column.resize(count, 0.0);
        }
        draw_rows(*isa, rows, *shape, count);
        &rows.actions
    }

    /// Log-probabilities of the last draw's actions, one per row.
    pub fn log_probs(&self, to: &mut Vec<f32>) {
        to.clear();
        to.extend(
            self.rows.terms.chunks_exact(self.scale.len().max(1)).map(|terms| terms.iter().sum::<f32>()),
        );
    }

    /// The actions without noise, `[rows][actions]`.
    pub fn greedy(&mut self, means: &Matrix) -> &[f32] {
        let RowBuffers { actions, mean, .. } = &mut self.rows;
        mean.clear();
        means.iter().for_each(|row| mean.extend_from_slice(row));
        tanh_all(self.isa, mean);
        actions.clear();
        let bounds = self.scale.iter().zip(&self.bias).cycle();
        actions.extend(mean.iter().zip(bounds).map(|(mean, (scale, bias))| mean * scale + bias));
        actions
    }

    /// The gradients of a loss with respect to the network's outputs of the last draw, given that with respect to
    /// the actions (`[rows][actions]`) and that with respect to every row's log-probability.
    pub fn backward(
        &mut self,
        by_action: &[f32],
        by_log_prob: f32,
        by_mean: &mut Matrix,
        by_spread: &mut Matrix,
    ) {
        let SquashedGaussian { isa, shape, scale, rows, .. } = self;
        let (width, count) = (scale.len().max(1), rows.squashed.len());
        // The gradients take the places of means and terms, which nobody reads any more.
        draw_back(*isa, rows, *shape, by_action, by_log_prob, count);
        for (to, from) in [(by_mean, &rows.mean), (by_spread, &rows.terms)] {
            to.copy_rows(from);
            debug_assert_eq!(to.columns(), width);
        }
    }
}

on_every_isa! {
    #[allow(clippy::needless_range_loop, reason = "nine columns side by side")]
    fn draw_rows(rows: &mut RowBuffers, shape: SquashedShape, count: usize) {
        let (low, half) = (shape.log_std.0, 0.5 * (shape.log_std.1 - shape.log_std.0));
        let (scale, bias) = (&rows.scale[..count], &rows.bias[..count]);
        let (mean, noise) = (&rows.mean[..count], &rows.noise[..count]);
        let (spread, step) = (&mut rows.spread[..count], &mut rows.step[..count]);
        let (squashed, actions) = (&mut rows.squashed[..count], &mut rows.actions[..count]);
        let terms = &mut rows.terms[..count];
        for i in 0..count {
            let bent = tanh(spread[i]);
            let log_std = (bent + 1.0) * half + low;
            let moved = exp(log_std) * noise[i];
            let y = tanh(mean[i] + moved);
            let slope = (1.0 - y * y) * scale[i] + shape.epsilon;
            spread[i] = bent;
            step[i] = moved;
            squashed[i] = y;
            actions[i] = y * scale[i] + bias[i];
            terms[i] = -0.5 * noise[i] * noise[i] - log_std - HALF_LN_TWO_PI - ln(slope);
        }
    }
}

on_every_isa! {
    /// `d u = d action * scale * (1 - y^2) + d log p * 2 scale y (1 - y^2) / slope`; the mean has the gradient of
    /// `u`, the logarithm of the deviation that times deviation times noise, less `d log p`.
    #[allow(clippy::needless_range_loop, reason = "six columns side by side")]
    fn draw_back(rows: &mut RowBuffers, shape: SquashedShape, by_action: &[f32], by_log_prob: f32, count: usize) {
        let half = 0.5 * (shape.log_std.1 - shape.log_std.0);
        let (scale, squashed) = (&rows.scale[..count], &rows.squashed[..count]);
        let (spread, step) = (&rows.spread[..count], &rows.step[..count]);
        let by_action = &by_action[..count];
        let (by_mean, by_spread) = (&mut rows.mean[..count], &mut rows.terms[..count]);
        for i in 0..count {
            let y = squashed[i];
            let bend = scale[i] * (1.0 - y * y);
            let by_u = by_action[i] * bend + by_log_prob * 2.0 * y * bend / (bend + shape.epsilon);
            by_mean[i] = by_u;
            by_spread[i] = (by_u * step[i] - by_log_prob) * half * (1.0 - spread[i] * spread[i]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds::{Purpose, Seeds};

    const SHAPE: SquashedShape = SquashedShape { log_std: (-5.0, 2.0), epsilon: 1e-6 };

    fn matrix(values: &[f32], columns: usize) -> Matrix {
        let mut matrix = Matrix::new(0, columns);
        matrix.copy_rows(values);
        matrix
    }

    /// The loss `sum(action * weight) + 0.3 * sum(log p)` in f64, by its definition.
    fn loss(mean: &[f64], spread: &[f64], noise: &[f32], weight: &[f32], scale: &[f32]) -> f64 {
        (0..mean.len())
            .map(|i| {
                let scale = f64::from(scale[i % scale.len()]);
                let noise = f64::from(noise[i]);
                let log_std = (spread[i].tanh() + 1.0) * 3.5 - 5.0;
                let y = (mean[i] + log_std.exp() * noise).tanh();
                let log_prob = -0.5 * noise * noise
                    - log_std
                    - 0.5 * (2.0 * std::f64::consts::PI).ln()
                    - (scale * (1.0 - y * y) + 1e-6).ln();
                y * scale * f64::from(weight[i]) + 0.3 * log_prob
            })
            .sum()
    }

    /// SQUASHED-1, against finite differences.
    #[test]
    fn squashed_1_gradients_equal_finite_differences() {
        let mut random = Seeds::new(7).generator(Purpose::Model, 0, 0);
        let mut draw = |len: usize| (0..len).map(|_| random.normal() as f32).collect::<Vec<f32>>();
        let (scale, bias) = ([2.0_f32, 0.5, 1.0], [0.0_f32, 1.0, -3.0]);
        let (mean, mut spread, noise, weight) = (draw(21), draw(21), draw(21), draw(21));
        // Deviations around 0.3: where tanh is nearly 1, a slope in f32 has few digits left.
        spread.iter_mut().for_each(|value| *value = 0.1 * *value - 0.2);
        let mut gaussian = SquashedGaussian::new(&scale, &bias, SHAPE);
        gaussian.draw(&matrix(&mean, 3), &matrix(&spread, 3), &noise);
        let (mut by_mean, mut by_spread) = (Matrix::new(7, 3), Matrix::new(7, 3));
        gaussian.backward(&weight, 0.3, &mut by_mean, &mut by_spread);
        let wide = |values: &[f32]| values.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
        let (means, spreads) = (wide(&mean), wide(&spread));
        for i in 0..21 {
            let at = |which: usize, h: f64| {
                let (mut mean, mut spread) = (means.clone(), spreads.clone());
                if which == 0 {
                    mean[i] += h
                } else {
                    spread[i] += h
                }
                loss(&mean, &spread, &noise, &weight, &scale)
            };
            for (which, got) in [(0, by_mean.row(i / 3)[i % 3]), (1, by_spread.row(i / 3)[i % 3])] {
                let expected = (at(which, 1e-5) - at(which, -1e-5)) / 2e-5;
                let bound = 1e-4 * expected.abs().max(1.0);
                assert!((f64::from(got) - expected).abs() < bound, "{which} {i}: {got} {expected}");
            }
        }
    }

    #[test]
    fn log_probabilities_and_actions_follow_the_definition() {
        let (mean, spread, noise) = ([0.3_f32, -1.0], [0.2_f32, -0.4], [0.5_f32, -1.5]);
        let mut gaussian = SquashedGaussian::new(&[2.0, 5.0], &[0.0, 5.0], SHAPE);
        let actions = gaussian.draw(&matrix(&mean, 2), &matrix(&spread, 2), &noise).to_vec();
        assert!(actions[0].abs() <= 2.0 && (0.0..=10.0).contains(&actions[1]));
        let mut log_probs = Vec::new();
        gaussian.log_probs(&mut log_probs);
        let wide = |values: [f32; 2]| values.map(f64::from);
        let expected = loss(&wide(mean), &wide(spread), &noise, &[0.0, 0.0], &[2.0, 5.0]) / 0.3;
        assert!((f64::from(log_probs[0]) - expected).abs() < 1e-5, "{log_probs:?} {expected}");
        let greedy = gaussian.greedy(&matrix(&mean, 2)).to_vec();
        assert!((greedy[0] - 2.0 * 0.3_f32.tanh()).abs() < 1e-6);
        assert!((greedy[1] - (5.0 + 5.0 * (-1.0_f32).tanh())).abs() < 1e-5);
    }
}
