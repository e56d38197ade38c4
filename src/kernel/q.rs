//! Q-learning's loss: its value, each row's error, and the gradient with respect to the Q-values.

use super::loss::Distance;
use super::matrix::Matrix;

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
/// chooser is the target network itself. Of equal ones the first.
pub fn q_targets(target: &Matrix, chooser: &Matrix, rewards: &[f32], discounts: &[f32], to: &mut [f32]) {
    let rows = target.iter().zip(chooser.iter()).zip(rewards.iter().zip(discounts));
    for (((values, chosen), (reward, discount)), to) in rows.zip(to) {
        *to = reward + discount * values.get(argmax(chosen)).copied().unwrap_or(0.0);
    }
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
