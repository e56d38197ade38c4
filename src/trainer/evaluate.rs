//! Evaluation: whole episodes with the greedy policy, on rank 0, while the others wait in the broadcast that
//! follows.
//!
//! Owner: rank 0. Environment `i` has the stream of evaluation episode `i`, the same in every evaluation and
//! disjoint from training.
//!
//! Invariants:
//! - EVAL-1: two evaluations of one policy are equal: they differ by the policy only.
//! - EVAL-2: each environment plays a fixed number of episodes, the counts differ by at most one, and all of
//!   them count: no bias to short ones.

use super::env::{Observations, StepOutcome, VectorEnv};
use super::error::TrainerError;
use super::rollout::ActionBuffer;
use crate::inject;
use rankdeck_proto::message::Evaluation;
use std::time::Instant;

/// Most environments of an evaluation; more episodes are played one after the other.
pub const MAX_ENVS: u32 = 32;

/// A policy that gives its best actions.
pub trait Greedy {
    /// Writes the actions for the observations of all environments, as environments take them.
    fn act(&mut self, observations: Observations<'_>, actions: &mut ActionBuffer)
    -> Result<(), TrainerError>;
}

/// Plays `episodes` episodes from the beginning of the streams. `moved` gets the number of finished episodes
/// after every step. The caller fills in `env_step`, `train_iter` and `stop`.
pub fn evaluate(
    env: &mut dyn VectorEnv,
    episodes: u32,
    policy: &mut dyn Greedy,
    mut moved: impl FnMut(usize),
) -> Result<Evaluation, TrainerError> {
    let begun = Instant::now();
    env.reset()?;
    inject::here(inject::Hook::Episode);
    let envs = env.len();
    let mut left: Vec<usize> = (0..envs).map(|i| (episodes as usize + envs - 1 - i) / envs).collect();
    let mut outcome = StepOutcome::new(env.spec(), envs);
    let mut actions = ActionBuffer::new(&env.spec().actions, envs);
    let (mut returns, mut length) = (Vec::with_capacity(episodes as usize), 0);
    while left.iter().any(|left| *left > 0) {
        policy.act(env.observations(), &mut actions)?;
        env.step(actions.view(), &mut outcome)?;
        for episode in &outcome.episodes {
            if let Some(left) = left.get_mut(episode.env).filter(|left| **left > 0) {
                *left -= 1;
                returns.push(episode.episode_return);
                length += episode.length;
                inject::here(inject::Hook::Episode);
            }
        }
        moved(returns.len());
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
        length_mean: length as f64 / count,
        duration_s: begun.elapsed().as_secs_f64(),
        ..Evaluation::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{EnvPurpose, make_vector};
    use rankdeck_kernel::seeds::Seeds;
    use rankdeck_types::experiment::Env;

    /// Pushes to where the pole falls, or always to the left.
    struct Push {
        balances: bool,
    }

    impl Greedy for Push {
        fn act(&mut self, seen: Observations<'_>, actions: &mut ActionBuffer) -> Result<(), TrainerError> {
            let ActionBuffer::Discrete(actions) = actions else { panic!("discrete actions") };
            for (action, seen) in actions.iter_mut().zip(seen.f32().unwrap().chunks(4)) {
                let right = 0.02 * seen[0] + 0.1 * seen[1] + seen[2] + 0.5 * seen[3] > 0.0;
                *action = i64::from(right && self.balances);
            }
            Ok(())
        }
    }

    fn play(envs: usize, episodes: u32, balances: bool) -> Evaluation {
        let mut env =
            make_vector(&Env::new("CartPole-v1", 1), envs, 0, &Seeds::new(1), 0, EnvPurpose::Evaluate)
                .unwrap();
        let mut again = || {
            let mut moves = 0;
            let evaluation = evaluate(&mut *env, episodes, &mut Push { balances }, |_| moves += 1).unwrap();
            assert!(moves > 8);
            Evaluation { duration_s: 0.0, ..evaluation }
        };
        let first = again();
        assert_eq!(again(), first, "EVAL-1");
        first
    }

    #[test]
    fn an_evaluation_repeats_and_its_episodes_differ() {
        let good = play(5, 5, true);
        assert_eq!((good.return_mean, good.return_std, good.length_mean), (500.0, 0.0, 500.0));
        // A policy that always pushes left falls soon, after different numbers of steps.
        let bad = play(20, 20, false);
        assert!(bad.return_mean < 12.0 && bad.return_min < bad.return_max, "{bad:?}");
    }

    #[test]
    fn eval_2_every_environment_plays_its_share() {
        let seven = play(3, 7, false);
        assert_eq!(seven.episodes, 7);
        assert!(seven.length_mean > 7.0 && seven.length_mean == seven.return_mean);
    }
}
