//! Evaluation: whole episodes with the greedy policy, on rank 0, while the others wait in the broadcast that follows.
//!
//! Owner: rank 0. Every episode has its own fixed seed, the same in every evaluation and disjoint from training (SEEDS-4), and every
//! episode that was begun counts: no bias to short ones, and two evaluations differ by the policy only.

use super::env::{self, Actions, EnvError, Outcome, make_vector};
use super::policy::MlpFast;
use super::seeds::Seeds;
use crate::config::experiment::Env;
use crate::proto::message::Evaluation;
use std::time::Instant;

/// Plays `episodes` episodes, all at once; `moved` is called while something happens. `env_step`, `train_iter` and `stop` are left to the
/// caller.
pub fn evaluate(
    env: &Env,
    episodes: u32,
    policy: &mut MlpFast,
    seeds: &Seeds,
    mut moved: impl FnMut(),
) -> Result<Evaluation, EnvError> {
    let begun = Instant::now();
    let count = episodes as usize;
    let mut envs = make_vector(env, count, 0, seeds, 0, env::Purpose::Evaluate)?;
    let width = envs.spec().observation_len();
    let mut outcome = Outcome::new(envs.spec(), count);
    let mut actions = vec![0; count];
    // The first episode of each environment counts.
    let mut ended = vec![None; count];
    while ended.iter().any(Option::is_none) {
        let observations = envs.observations().f32().unwrap_or_default();
        for ((action, observation), _) in actions
            .iter_mut()
            .zip(observations.chunks_exact(width))
            .zip(&ended)
            .filter(|(_, ended)| ended.is_none())
        {
            *action = policy.greedy(observation);
        }
        envs.step(Actions::Discrete(&actions), &mut outcome)?;
        for episode in &outcome.episodes {
            ended[episode.env].get_or_insert((episode.episode_return, episode.length));
        }
        moved();
    }
    let (returns, lengths): (Vec<f64>, Vec<u64>) = ended.into_iter().flatten().unzip();
    let steps: u64 = lengths.iter().sum();
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
        let layout = Layout::new(&Spec::discrete(4, 2), &[]);
        let mut policy = MlpFast::new(&layout);
        let mut weights = vec![0.0; layout.len];
        let right = layout.actor[0].weight + 4;
        weights[right..right + 4].copy_from_slice(&[0.02, 0.1, 1.0, 0.5]);
        policy.load(&weights);
        let mut moves = 0;
        let mut play = |policy: &mut MlpFast| {
            let evaluation =
                evaluate(&Env::new("CartPole-v1", 1), 5, policy, &Seeds::new(1), || moves += 1).unwrap();
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
