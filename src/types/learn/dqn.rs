//! DQN's hyper-parameters.

use super::off_policy;
use crate::schema::Kind::Integer;
use crate::schema::{NOT_NEGATIVE, POSITIVE, SHARE, U63, choices, keys};

off_policy! {
    /// Deep Q-learning, discrete actions; defaults as CleanRL's dqn.py.
    pub struct Dqn {
        buffer_size = 10_000;
        learning_starts = 10_000;
        batch_size = 128;
        tau = 1.0;
    }
    own {
        /// Adam's learning rate.
        learning_rate: f64 [POSITIVE] = 0.00025,
        /// Updates between copies of the online network to the target network.
        target_every: u64 [Integer(1..=U63)] = 50,
        /// Choose the next action by the online network.
        // Van Hasselt et al. 2016.
        double: bool = false,
        /// Split the network into state value and advantages.
        // Wang et al. 2016.
        dueling: bool = false,
        /// Steps of reward before the bootstrap.
        n_step: u32 [Integer(1..=10_000)] = 1,
        /// Probability of a random action at the start.
        epsilon_start: f64 [SHARE] = 1.0,
        /// Probability of a random action at the end.
        epsilon_end: f64 [SHARE] = 0.05,
        /// Environment steps over all ranks over which epsilon falls: all of it for `linear`, the time
        /// constant for `exponential`.
        epsilon_steps: u64 [Integer(1..=U63)] = 250_000,
        /// How epsilon falls: evenly (CleanRL), or as `end + (start - end) * exp(-steps / epsilon_steps)`
        /// (DI-engine).
        epsilon_decay: EpsilonDecay = EpsilonDecay::Linear,
        /// Of TD errors: their mean square (CleanRL, DI-engine), or Huber's loss with delta 1 (Mnih et al.
        /// 2015).
        loss: TdLoss = TdLoss::Squared,
        /// Bound of the averaged gradient's global norm; 0: none.
        max_grad_norm: f64 [NOT_NEGATIVE] = 0.0,
    }
}

choices! {
    /// How TD errors count.
    pub enum TdLoss {
        /// The mean square, not halved (CleanRL, DI-engine).
        Squared = "squared",
        /// Huber's loss with delta 1 (Mnih et al. 2015).
        Huber = "huber",
    }
}

choices! {
    /// How epsilon falls with the environment steps over all ranks.
    pub enum EpsilonDecay {
        /// Evenly, to its end after `epsilon_steps` (CleanRL).
        Linear = "linear",
        /// `end + (start - end) * exp(-steps / epsilon_steps)` (DI-engine).
        Exponential = "exponential",
    }
}
