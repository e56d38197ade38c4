//! SAC's hyper-parameters.

use serde::{Deserialize, Serialize};

/// SAC's hyper-parameters; defaults are CleanRL's sac_continuous_action.py. Sizes are over all ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sac {
    /// Adam's learning rate of the actor.
    pub policy_lr: f64,
    /// Adam's learning rate of the critics and of alpha.
    pub q_lr: f64,
    /// Adam's epsilon.
    pub adam_eps: f64,
    /// Discount.
    pub gamma: f64,
    /// Transitions that replay holds.
    pub buffer_size: u64,
    /// Environment steps with random actions before the first update.
    pub learning_starts: u64,
    /// Transitions per update.
    pub batch_size: u32,
    /// Updates of the critics per training iteration.
    pub updates_per_iteration: u32,
    /// Critic updates between actor updates, which are then made up for.
    pub policy_every: u32,
    /// Share of the target networks that each update replaces.
    pub tau: f64,
    /// Learn the entropy weight; false: `alpha` stays.
    pub autotune: bool,
    /// Entropy weight, at the start when it is learnt.
    pub alpha: f64,
}

impl Default for Sac {
    fn default() -> Sac {
        Sac {
            policy_lr: 3e-4,
            q_lr: 1e-3,
            adam_eps: 1e-8,
            gamma: 0.99,
            buffer_size: 1_000_000,
            learning_starts: 5_000,
            batch_size: 256,
            updates_per_iteration: 1,
            policy_every: 2,
            tau: 0.005,
            autotune: true,
            alpha: 1.0,
        }
    }
}
