//! Random streams of a run: every stream has a name, and no two names share a seed.
//!
//! A stream's seed is the list of its name's words `[epoch low, epoch high, index, base low, base high,
//! purpose]`, handed to NumPy's `SeedSequence` ([`crate::numpy_random`]). Since `purpose` is never 0, the
//! list equals the integer with these 32-bit digits, so Gymnasium gets the same stream from
//! `env.reset(seed=that_integer)`.
//!
//! Invariants:
//! - SEEDS-1: different (base, purpose, index, epoch) give different lists: the map is injective, so streams
//!   never coincide, whatever the number of ranks and environments. (Adding the rank to a base seed, as
//!   CleanRL does, makes most environments of neighboring ranks twins.)
//! - [`Purpose::Model`] does not depend on the rank: all ranks begin with equal weights.
//! - Environment and action streams are named by the *global* environment index, `rank *
//!   local_num_envs + i`: an environment's randomness does not depend on how many ranks share the work.
//! - Evaluation episodes have their own purpose: fixed, distinct, and disjoint from training.

use crate::numpy_random::Generator;

/// What a stream is for; the number is part of the seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Purpose {
    /// Initial weights. Index 0, epoch 0.
    Model = 1,
    /// A training environment. Index: global environment index. Epoch: iteration at which environments were
    /// made again.
    Env = 2,
    /// Sampling of actions. Index: global environment index. Epoch: training iteration.
    Action = 3,
    /// Order of samples in minibatches. Index: rank. Epoch: training iteration.
    Shuffle = 4,
    /// Which transitions replay gives. Index: rank. Epoch: number of the update.
    Replay = 6,
    /// An evaluation episode. Index: number of the episode within its evaluation. Epoch 0; epoch 1 for actions
    /// that are drawn, with the index of the environment.
    Eval = 5,
}

/// The streams of one base seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seeds {
    base: u64,
}

impl Seeds {
    /// The streams of `run.seed`.
    pub fn new(base: u64) -> Seeds {
        Seeds { base }
    }

    /// The seed of a stream, least significant word first.
    pub fn words(&self, purpose: Purpose, index: u32, epoch: u64) -> [u32; 6] {
        [
            epoch as u32,
            (epoch >> 32) as u32,
            index,
            self.base as u32,
            (self.base >> 32) as u32,
            purpose as u32,
        ]
    }

    /// A generator at the beginning of a stream.
    pub fn generator(&self, purpose: Purpose, index: u32, epoch: u64) -> Generator {
        Generator::from_words(&self.words(purpose, index, epoch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const PURPOSES: [Purpose; 6] =
        [Purpose::Model, Purpose::Env, Purpose::Action, Purpose::Shuffle, Purpose::Eval, Purpose::Replay];

    #[test]
    fn seeds_1_streams_share_no_seed_and_no_first_number() {
        let (mut words, mut firsts, mut count) = (HashSet::new(), HashSet::new(), 0);
        for base in [0, 1, 2, 1 << 32] {
            for purpose in PURPOSES {
                for index in 0..40 {
                    for epoch in [0, 1, 2, 40, 1 << 32] {
                        let seeds = Seeds::new(base);
                        words.insert(seeds.words(purpose, index, epoch));
                        firsts.insert(seeds.generator(purpose, index, epoch).next_u64());
                        count += 1;
                    }
                }
            }
        }
        assert_eq!((words.len(), firsts.len()), (count, count));
    }
}
