//! SAC's hyper-parameters.

use super::off_policy;
use crate::schema::Kind::Integer;
use crate::schema::{POSITIVE, keys};

off_policy! {
    /// Soft actor-critic, continuous actions; defaults as CleanRL's sac_continuous_action.py.
    pub struct Sac {
        buffer_size = 1_000_000;
        learning_starts = 5_000;
        batch_size = 256;
        tau = 0.005;
    }
    own {
        /// Adam's learning rate of the actor.
        policy_lr: f64 [POSITIVE] = 0.0003,
        /// Adam's learning rate of the critics and of alpha.
        q_lr: f64 [POSITIVE] = 0.001,
        /// Critic updates between actor updates, which are then made up for.
        policy_every: u32 [Integer(1..=10_000)] = 2,
        /// Learn the entropy weight; false: `alpha` stays.
        autotune: bool = true,
        /// Entropy weight, at the start when it is learnt.
        alpha: f64 [POSITIVE] = 1.0,
    }
}
