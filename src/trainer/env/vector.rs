//! Several environments stepped together, with autoreset in the same step.
//!
//! Owner: the collector of a rank. When an episode ends, the environment is reset at once and the observation that the policy sees
//! next is the first of the new episode, while reward and done flag belong to the old one: Gymnasium's SAME_STEP mode, which was the
//! only one in 0.29 and is what CleanRL's PPO was written and measured with. There is no dummy step: every call steps every
//! environment by one accepted action.
//!
//! Invariants:
//! - VECTOR-1: each `step` counts exactly `len()` environment steps; a reset counts none.
//! - VECTOR-2: save and restore between two steps change nothing in what follows.

use super::{EnvError, Environment, Spec, make};
use crate::trainer::seeds::{Purpose, Seeds};

/// A finished episode.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Episode {
    /// Sum of its rewards.
    pub episode_return: f64,
    /// Its steps.
    pub length: u64,
}

struct Slot {
    env: Box<dyn Environment>,
    episode_return: f64,
    length: u64,
}

/// A rank's environments.
pub struct VectorEnv {
    slots: Vec<Slot>,
    spec: Spec,
    observations: Vec<f32>,
}

impl VectorEnv {
    /// `count` environments `id`, reset, with the streams of the global indices `first..first + count`.
    /// `epoch` tells apart the lives of a run whose environments could not be restored; 0 in a fresh run.
    pub fn new(id: &str, count: usize, first: u32, seeds: &Seeds, epoch: u64) -> Result<VectorEnv, EnvError> {
        let slots = (0..count)
            .map(|_| Ok(Slot { env: make(id)?, episode_return: 0.0, length: 0 }))
            .collect::<Result<Vec<_>, EnvError>>()?;
        let spec = match slots.first() {
            Some(slot) => slot.env.spec(),
            None => make(id)?.spec(),
        };
        let mut this = VectorEnv { slots, spec, observations: vec![0.0; count * spec.observation_len] };
        for ((index, slot), observation) in
            (first..).zip(&mut this.slots).zip(this.observations.chunks_mut(spec.observation_len))
        {
            slot.env.reset(Some(&seeds.words(Purpose::Env, index, epoch)), observation);
        }
        Ok(this)
    }

    /// Environments.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Shapes of each.
    pub fn spec(&self) -> Spec {
        self.spec
    }

    /// What the policy sees now: `[len, observation_len]`, row by row.
    pub fn observations(&self) -> &[f32] {
        &self.observations
    }

    /// Steps every environment; writes rewards and done flags (1.0 or 0.0) and hands finished episodes to `finished`.
    pub fn step(
        &mut self,
        actions: &[i64],
        rewards: &mut [f32],
        dones: &mut [f32],
        mut finished: impl FnMut(Episode),
    ) {
        let rows = self.observations.chunks_mut(self.spec.observation_len);
        let outputs = rewards.iter_mut().zip(dones);
        for (((slot, observation), action), (reward, done)) in
            self.slots.iter_mut().zip(rows).zip(actions).zip(outputs)
        {
            let step = slot.env.step(*action as usize, observation);
            slot.episode_return += step.reward;
            slot.length += 1;
            *reward = step.reward as f32;
            *done = f32::from(u8::from(step.done()));
            if step.done() {
                finished(Episode { episode_return: slot.episode_return, length: slot.length });
                (slot.episode_return, slot.length) = (0.0, 0);
                slot.env.reset(None, observation);
            }
        }
    }

    /// Words per environment in [`VectorEnv::save`].
    pub fn words_per_env(&self) -> usize {
        self.slots.first().map_or(0, |slot| slot.env.words() + 2)
    }

    /// Every environment's state, in order, [`VectorEnv::words_per_env`] words each.
    pub fn save(&self) -> Vec<u64> {
        let mut words = Vec::with_capacity(self.len() * self.words_per_env());
        for slot in &self.slots {
            words.extend([slot.episode_return.to_bits(), slot.length]);
            slot.env.save(&mut words);
        }
        words
    }

    /// Takes over what [`VectorEnv::save`] gave for as many environments.
    pub fn restore(&mut self, words: &[u64]) -> Result<(), EnvError> {
        let each = self.words_per_env();
        let expected = each * self.len();
        if words.len() != expected {
            return Err(EnvError::State { expected, found: words.len() });
        }
        let rows = self.observations.chunks_mut(self.spec.observation_len);
        for ((slot, observation), words) in self.slots.iter_mut().zip(rows).zip(words.chunks(each.max(1))) {
            slot.episode_return = f64::from_bits(words[0]);
            slot.length = words[1];
            slot.env.restore(&words[2..], observation)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn play(env: &mut VectorEnv, steps: usize) -> (Vec<u32>, Vec<Episode>, u64) {
        let n = env.len();
        let (mut rewards, mut dones) = (vec![0.0; n], vec![0.0; n]);
        let (mut seen, mut episodes, mut done) = (Vec::new(), Vec::new(), 0);
        for step in 0..steps {
            let actions: Vec<i64> = (0..n).map(|i| ((step * 7 + i * 3) / 5 % 2) as i64).collect();
            env.step(&actions, &mut rewards, &mut dones, |episode| episodes.push(episode));
            done += dones.iter().sum::<f32>() as u64;
            seen.extend(env.observations().iter().map(|x| x.to_bits()));
        }
        (seen, episodes, done)
    }

    #[test]
    fn vector_1_every_step_counts_and_no_reset_does() {
        let mut env = VectorEnv::new("CartPole-v1", 3, 0, &Seeds::new(1), 0).unwrap();
        let (_, episodes, done) = play(&mut env, 400);
        assert_eq!(episodes.len() as u64, done);
        assert!(done > 10);
        let running: u64 = env.slots.iter().map(|slot| slot.length).sum();
        assert_eq!(episodes.iter().map(|e| e.length).sum::<u64>() + running, 3 * 400);
        assert!(episodes.iter().all(|e| e.episode_return == e.length as f64));
    }

    #[test]
    fn vector_2_a_restored_state_goes_on_alike() {
        let seeds = Seeds::new(4);
        let mut env = VectorEnv::new("CartPole-v1", 2, 0, &seeds, 0).unwrap();
        play(&mut env, 57);
        let mut copy = VectorEnv::new("CartPole-v1", 2, 9, &seeds, 0).unwrap();
        copy.restore(&env.save()).unwrap();
        assert_eq!(play(&mut copy, 300), play(&mut env, 300));
        assert!(copy.restore(&[1, 2, 3]).is_err());
    }

    #[test]
    fn an_environment_depends_on_its_global_index_only() {
        let seeds = Seeds::new(2);
        let all = VectorEnv::new("CartPole-v1", 4, 0, &seeds, 0).unwrap();
        let second_half = VectorEnv::new("CartPole-v1", 2, 2, &seeds, 0).unwrap();
        assert_eq!(all.observations()[8..], second_half.observations()[..]);
    }

    #[test]
    fn an_unknown_id_names_the_known_ones() {
        let error = make("CartPole-v7").err().unwrap().to_string();
        assert!(error.contains("CartPole-v7") && error.contains("CartPole-v1"), "{error}");
    }
}
