//! Collecting experience: one rank's rollouts and its own counters.
//!
//! Owner: the rank. Buffers are made once; a step allocates nothing.
//!
//! Invariants:
//! - COLLECT-1: counters are this rank's own and exact: `env_step` and `samples` grow by `steps * envs` per rollout, `episodes` by the
//!   episodes that ended, `duration_ns` by the time inside [`Collector::collect`].
//! - COLLECT-2: a rollout depends on weights, environment states, base seed, iteration and global environment indices only.

use super::env::EnvError;
use super::env::vector::VectorEnv;
use super::policy::MlpFast;
use super::policy::actor_critic::Layout;
use super::seeds::{Purpose, Seeds};
use crate::proto::message::{Counters, Returns};
use crate::trainer::inject;
use std::time::Instant;

/// One rank's share of a rollout; everything `[steps][envs]`, observations with `[observation_len]` more.
#[derive(Debug, Clone, Default)]
pub struct Rollout {
    /// Environments.
    pub envs: usize,
    /// What the policy saw.
    pub observations: Vec<f32>,
    /// What it did.
    pub actions: Vec<i64>,
    /// Log-probabilities of the actions when they were taken.
    pub log_probs: Vec<f32>,
    /// The critic's values of the observations.
    pub values: Vec<f32>,
    /// Rewards of the actions.
    pub rewards: Vec<f32>,
    /// 1.0 where the observation begins an episode.
    pub dones: Vec<f32>,
    /// Values after the last step, `[envs]`.
    pub next_values: Vec<f32>,
    /// Flags after the last step, `[envs]`.
    pub next_dones: Vec<f32>,
}

impl Rollout {
    fn new(steps: usize, envs: usize, observation_len: usize) -> Rollout {
        let n = steps * envs;
        Rollout {
            envs,
            observations: vec![0.0; n * observation_len],
            actions: vec![0; n],
            log_probs: vec![0.0; n],
            values: vec![0.0; n],
            rewards: vec![0.0; n],
            dones: vec![0.0; n],
            next_values: vec![0.0; envs],
            next_dones: vec![0.0; envs],
        }
    }

    /// Transitions.
    pub fn len(&self) -> usize {
        self.actions.len()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }
}

/// This rank's own counters since the run began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Environment steps: one per accepted action.
    pub env_step: u64,
    /// Transitions that training may use.
    pub samples: u64,
    /// Finished episodes.
    pub episodes: u64,
    /// Nanoseconds spent collecting; an integer, so that sums over ranks are exact.
    pub duration_ns: u64,
}

impl Tally {
    /// Words of [`Tally::to_words`].
    pub const WORDS: usize = 4;

    /// The form for collectives and checkpoints.
    pub fn to_words(self) -> [u64; Tally::WORDS] {
        [self.env_step, self.samples, self.episodes, self.duration_ns]
    }

    /// Back from [`Tally::to_words`]; missing words count 0.
    pub fn from_words(words: &[u64]) -> Tally {
        let at = |i: usize| words.get(i).copied().unwrap_or(0);
        Tally { env_step: at(0), samples: at(1), episodes: at(2), duration_ns: at(3) }
    }

    /// Both together.
    pub fn plus(self, other: Tally) -> Tally {
        let [a, b] = [self.to_words(), other.to_words()];
        Tally::from_words(&std::array::from_fn::<u64, { Tally::WORDS }, _>(|i| a[i].saturating_add(b[i])))
    }

    /// The form for events.
    pub fn counters(self, train_iter: u64, updates: u64, returns: Returns) -> Counters {
        Counters {
            train_iter,
            env_step: self.env_step,
            samples: self.samples,
            episodes: self.episodes,
            duration_s: self.duration_ns as f64 * 1e-9,
            updates,
            returns,
        }
    }
}

/// Returns and lengths of the episodes that ended since the last report.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Interval {
    /// Returns.
    pub returns: Returns,
    /// Sum of their lengths.
    pub length: u64,
}

impl Interval {
    fn add(&mut self, episode_return: f64, length: u64) {
        let first = self.returns.count == 0;
        let pick = |old: f64, choose: fn(f64, f64) -> f64| {
            if first { episode_return } else { choose(old, episode_return) }
        };
        self.returns = Returns {
            sum: self.returns.sum + episode_return,
            count: self.returns.count + 1,
            min: pick(self.returns.min, f64::min),
            max: pick(self.returns.max, f64::max),
        };
        self.length += length;
    }
}

/// A rank's environments, the policy's fast form, and buffers.
pub struct Collector {
    env: VectorEnv,
    fast: MlpFast,
    seeds: Seeds,
    first_env: u32,
    steps: usize,
    rollout: Rollout,
    next_dones: Vec<f32>,
    tally: Tally,
    interval: Interval,
}

impl Collector {
    /// Collects `steps` steps per environment and rollout; `first_env` is the global index of the first environment.
    pub fn new(env: VectorEnv, layout: &Layout, seeds: Seeds, first_env: u32, steps: usize) -> Collector {
        Collector {
            rollout: Rollout::new(steps, env.len(), env.spec().observation_len),
            next_dones: vec![0.0; env.len()],
            fast: MlpFast::new(layout),
            env,
            seeds,
            first_env,
            steps,
            tally: Tally::default(),
            interval: Interval::default(),
        }
    }

    /// Plays one rollout with the policy `weights` (flat parameter buffer); `moved` is called after every step of all environments.
    pub fn collect(&mut self, weights: &[f32], iteration: u64, mut moved: impl FnMut(&Tally)) -> &Rollout {
        let begun = Instant::now();
        self.fast.load(weights);
        let mut randoms: Vec<_> = (self.first_env..)
            .take(self.env.len())
            .map(|index| self.seeds.generator(Purpose::Action, index, iteration))
            .collect();
        let (envs, width) = (self.env.len(), self.env.spec().observation_len);
        let Collector { env, fast, rollout, next_dones, tally, interval, .. } = self;
        for step in 0..self.steps {
            let row = step * envs..(step + 1) * envs;
            rollout.observations[row.start * width..row.end * width].copy_from_slice(env.observations());
            rollout.dones[row.clone()].copy_from_slice(next_dones);
            for (i, (observation, random)) in
                row.clone().zip(env.observations().chunks_exact(width).zip(&mut randoms))
            {
                rollout.values[i] = fast.value(observation);
                (rollout.actions[i], rollout.log_probs[i]) = fast.sample(observation, random);
            }
            let rewards = &mut rollout.rewards[row.clone()];
            inject::here(inject::Place::EnvStep);
            env.step(&rollout.actions[row], rewards, next_dones, |episode| {
                interval.add(episode.episode_return, episode.length);
                tally.episodes += 1;
            });
            tally.env_step += envs as u64;
            tally.samples += envs as u64;
            moved(tally);
        }
        for (value, observation) in rollout.next_values.iter_mut().zip(env.observations().chunks_exact(width))
        {
            *value = fast.value(observation);
        }
        rollout.next_dones.copy_from_slice(next_dones);
        tally.duration_ns += begun.elapsed().as_nanos() as u64;
        rollout
    }

    /// The rollout collected last.
    pub fn rollout(&self) -> &Rollout {
        &self.rollout
    }

    /// Counters so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Counters of an earlier life.
    pub fn resume_tally(&mut self, tally: Tally) {
        self.tally = tally;
    }

    /// Episodes since the last call.
    pub fn take_interval(&mut self) -> Interval {
        std::mem::take(&mut self.interval)
    }

    /// Words per environment in [`Collector::save_envs`].
    pub fn words_per_env(&self) -> usize {
        self.env.words_per_env() + 1
    }

    /// Every environment's state and done flag, [`Collector::words_per_env`] words each.
    pub fn save_envs(&self) -> Vec<u64> {
        let states = self.env.save();
        states
            .chunks(self.env.words_per_env().max(1))
            .zip(&self.next_dones)
            .flat_map(|(state, done)| state.iter().copied().chain([u64::from(done.to_bits())]))
            .collect()
    }

    /// Takes over what [`Collector::save_envs`] gave for as many environments.
    pub fn restore_envs(&mut self, words: &[u64]) -> Result<(), EnvError> {
        let each = self.words_per_env();
        if words.len() != each * self.env.len() {
            return Err(EnvError::State { expected: each * self.env.len(), found: words.len() });
        }
        let states: Vec<u64> = words.chunks(each).flat_map(|chunk| &chunk[..each - 1]).copied().collect();
        self.env.restore(&states)?;
        for (done, chunk) in self.next_dones.iter_mut().zip(words.chunks(each)) {
            *done = f32::from_bits(chunk[each - 1] as u32);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collector(envs: usize, first: u32, steps: usize) -> (Collector, Vec<f32>) {
        let seeds = Seeds::new(5);
        let env = VectorEnv::new("CartPole-v1", envs, first, &seeds, 0).unwrap();
        let layout = Layout::new(env.spec(), &[16]);
        let weights = layout.initial(&seeds);
        (Collector::new(env, &layout, seeds, first, steps), weights)
    }

    #[test]
    fn collect_1_counters_are_exact() {
        let (mut collector, weights) = collector(3, 0, 200);
        let mut calls = 0;
        collector.collect(&weights, 0, |_| calls += 1);
        collector.collect(&weights, 1, |_| calls += 1);
        let tally = collector.tally();
        assert_eq!((tally.env_step, tally.samples, calls), (1200, 1200, 400));
        let interval = collector.take_interval();
        assert_eq!(interval.returns.count, tally.episodes);
        assert!(tally.episodes > 10 && tally.duration_ns > 0);
        assert_eq!(interval.returns.sum, interval.length as f64);
        assert!(interval.returns.min >= 8.0 && interval.returns.max > interval.returns.min);
        assert_eq!(collector.take_interval(), Interval::default());
    }

    #[test]
    fn dones_mark_first_observations() {
        let (mut collector, weights) = collector(2, 0, 300);
        let rollout = collector.collect(&weights, 0, |_| {}).clone();
        let begins = rollout.dones.iter().chain(&rollout.next_dones).filter(|done| **done == 1.0).count();
        assert_eq!(begins as u64, collector.tally().episodes);
        for (i, done) in rollout.dones.iter().enumerate() {
            if *done == 1.0 {
                let first = &rollout.observations[i * 4..i * 4 + 4];
                assert!(first.iter().all(|x| x.abs() <= 0.05), "a reset state: {first:?}");
            }
        }
    }

    #[test]
    fn collect_2_two_ranks_collect_what_one_would() {
        let (mut whole, weights) = collector(4, 0, 50);
        let (mut second, _) = collector(2, 2, 50);
        let whole = whole.collect(&weights, 3, |_| {}).clone();
        let half = second.collect(&weights, 3, |_| {});
        let columns: Vec<i64> = whole.actions.chunks(4).flat_map(|row| &row[2..]).copied().collect();
        assert_eq!(half.actions, columns);
    }

    #[test]
    fn a_restored_collector_goes_on_alike() {
        let (mut original, weights) = collector(2, 0, 77);
        original.collect(&weights, 0, |_| {});
        let (mut copy, _) = collector(2, 0, 77);
        copy.restore_envs(&original.save_envs()).unwrap();
        let wanted = original.collect(&weights, 1, |_| {}).clone();
        let got = copy.collect(&weights, 1, |_| {});
        assert_eq!((&got.observations, &got.dones), (&wanted.observations, &wanted.dones));
        assert!(copy.restore_envs(&[0; 3]).is_err());
    }
}
