//! Evaluation: whole episodes with the greedy policy, on rank 0, while the others wait in the broadcast that follows.
//!
//! Owner: rank 0. Every episode has its own fixed seed, the same in every evaluation and disjoint from training (SEEDS-4), and every
//! episode that was begun counts: no bias to short ones, and two evaluations differ by the policy only.

use super::env::{EnvError, make};
use super::policy::MlpFast;
use super::seeds::{Purpose, Seeds};
use crate::proto::message::Evaluation;
use crate::trainer::inject;
use std::time::Instant;

/// Steps between two calls of `moved`.
const MOVED_EVERY: u64 = 64;

/// Plays `episodes` episodes of `id`; `moved` is called while something happens. `env_step`, `train_iter` and `stop` are left to the caller.
pub fn evaluate(
    id: &str,
    episodes: u32,
    policy: &mut MlpFast,
    seeds: &Seeds,
    mut moved: impl FnMut(),
) -> Result<Evaluation, EnvError> {
    let begun = Instant::now();
    let mut env = make(id)?;
    let mut observation = vec![0.0; env.spec().observation_len];
    let (mut returns, mut steps) = (Vec::with_capacity(episodes as usize), 0_u64);
    for episode in 0..episodes {
        inject::here(inject::Place::Episode);
        env.reset(Some(&seeds.words(Purpose::Eval, episode, 0)), &mut observation);
        let mut total = 0.0;
        loop {
            let step = env.step(policy.greedy(&observation) as usize, &mut observation);
            total += step.reward;
            steps += 1;
            if steps.is_multiple_of(MOVED_EVERY) {
                moved();
            }
            if step.done() {
                break;
            }
        }
        moved();
        returns.push(total);
    }
    let count = returns.len().max(1) as f64;
    let mean = returns.iter().sum::<f64>() / count;
    let variance = returns.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / count;
    Ok(Evaluation {
        episodes,
        return_mean: mean,
        return_std: variance.sqrt(),
        return_min: returns.iter().copied().reduce(f64::min).unwrap_or(0.0),
        return_max: returns.iter().copied().reduce(f64::max).unwrap_or(0.0),
        length_mean: steps as f64 / count,
        duration_s: begun.elapsed().as_secs_f64(),
        ..Evaluation::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainer::env::Spec;
    use crate::trainer::policy::actor_critic::Layout;

    #[test]
    fn an_evaluation_repeats_and_its_episodes_differ() {
        // A linear policy that balances: push to where the pole falls.
        let layout = Layout::new(Spec { observation_len: 4, num_actions: 2 }, &[]);
        let mut policy = MlpFast::new(&layout);
        let mut weights = vec![0.0; layout.len];
        let right = layout.actor[0].weight + 4;
        weights[right..right + 4].copy_from_slice(&[0.02, 0.1, 1.0, 0.5]);
        policy.load(&weights);
        let mut moves = 0;
        let mut play = |policy: &mut MlpFast| {
            let evaluation = evaluate("CartPole-v1", 5, policy, &Seeds::new(1), || moves += 1).unwrap();
            Evaluation { duration_s: 0.0, ..evaluation }
        };
        let good = play(&mut policy);
        assert_eq!((good.return_mean, good.return_std, good.length_mean), (500.0, 0.0, 500.0));
        // A policy that always pushes left falls soon, after different numbers of steps.
        policy.load(&vec![0.0; layout.len]);
        let bad = play(&mut policy);
        assert_eq!(play(&mut policy), bad);
        assert!(bad.return_mean < 12.0 && bad.return_min < bad.return_max, "{bad:?}");
        assert!(moves > 40);
    }
}
