//! DQN's hyper-parameters.

use serde::{Deserialize, Serialize};

/// DQN's hyper-parameters; defaults are CleanRL's dqn.py. Sizes are over all ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Dqn {
    /// Adam's learning rate.
    pub learning_rate: f64,
    /// Adam's epsilon.
    pub adam_eps: f64,
    /// Discount.
    pub gamma: f64,
    /// Transitions that replay holds.
    pub buffer_size: u64,
    /// Environment steps before the first update.
    pub learning_starts: u64,
    /// Transitions per update.
    pub batch_size: u32,
    /// Updates per training iteration.
    pub updates_per_iteration: u32,
    /// Updates between copies of the online network to the target network.
    pub target_every: u64,
    /// Share of the target network that a copy replaces; 1: all of it.
    pub tau: f64,
    /// Choose the next action by the online network (van Hasselt et al. 2016).
    pub double: bool,
    /// Split the network into state value and advantages (Wang et al. 2016).
    pub dueling: bool,
    /// Steps of reward before the bootstrap.
    pub n_step: u32,
    /// Probability of a random action at the start.
    pub epsilon_start: f64,
    /// Probability of a random action at the end.
    pub epsilon_end: f64,
    /// Environment steps over which epsilon falls: all of it for `linear`, the time constant for `exponential`.
    pub epsilon_steps: u64,
    /// How epsilon falls.
    pub epsilon_decay: EpsilonDecay,
    /// How TD errors count.
    pub loss: TdLoss,
    /// Bound of the averaged gradient's global norm; 0: none.
    pub max_grad_norm: f64,
}

/// How TD errors count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TdLoss {
    /// The mean square, not halved (CleanRL, DI-engine).
    #[default]
    Squared,
    /// Huber's loss with delta 1 (Mnih et al. 2015).
    Huber,
}

/// How epsilon falls with the environment steps over all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EpsilonDecay {
    /// Evenly, to its end after `epsilon_steps` (CleanRL).
    #[default]
    Linear,
    /// `end + (start - end) * exp(-steps / epsilon_steps)` (DI-engine).
    Exponential,
}

impl Default for Dqn {
    fn default() -> Dqn {
        Dqn {
            learning_rate: 2.5e-4,
            adam_eps: 1e-8,
            gamma: 0.99,
            buffer_size: 10_000,
            learning_starts: 10_000,
            batch_size: 128,
            updates_per_iteration: 1,
            target_every: 50,
            tau: 1.0,
            double: false,
            dueling: false,
            n_step: 1,
            epsilon_start: 1.0,
            epsilon_end: 0.05,
            epsilon_steps: 250_000,
            epsilon_decay: EpsilonDecay::Linear,
            loss: TdLoss::Squared,
            max_grad_norm: 0.0,
        }
    }
}
