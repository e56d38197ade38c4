//! PPO's hyper-parameters.

use super::{Over, ValueLoss};
use serde::{Deserialize, Serialize};

/// PPO's hyper-parameters; defaults are CleanRL's ppo.py.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ppo {
    /// Adam's learning rate.
    pub learning_rate: f64,
    /// Linear decay of the learning rate to 0 over `run.total_steps`.
    pub anneal_lr: bool,
    /// Adam's epsilon.
    pub adam_eps: f64,
    /// Discount.
    pub gamma: f64,
    /// GAE's lambda.
    pub gae_lambda: f64,
    /// Minibatches per epoch; must divide the rollout.
    pub num_minibatches: u32,
    /// Epochs over each rollout.
    pub update_epochs: u32,
    /// Normalise advantages per minibatch.
    pub norm_adv: bool,
    /// Whose moments normalise them.
    pub norm_adv_over: Over,
    /// Clip range of the probability ratio.
    pub clip_coef: f64,
    /// Clip the value loss with the same range.
    pub clip_vloss: bool,
    /// Loss of the value estimates.
    pub value_loss: ValueLoss,
    /// Weight of the entropy bonus.
    pub ent_coef: f64,
    /// Weight of the value loss.
    pub vf_coef: f64,
    /// Bound of the averaged gradient's global norm.
    pub max_grad_norm: f64,
    /// Leave the epoch loop when the all-reduced KL estimate exceeds this; 0: never.
    pub target_kl: f64,
    /// Where a time limit cut an episode, go on with the value of its last observation; false: as if it had ended, as CleanRL's PPO does.
    pub bootstrap_truncated: bool,
}

impl Default for Ppo {
    fn default() -> Ppo {
        Ppo {
            learning_rate: 2.5e-4,
            anneal_lr: true,
            adam_eps: 1e-5,
            gamma: 0.99,
            gae_lambda: 0.95,
            num_minibatches: 4,
            update_epochs: 4,
            norm_adv: true,
            norm_adv_over: Over::Rank,
            clip_coef: 0.2,
            clip_vloss: true,
            value_loss: ValueLoss::Squared,
            ent_coef: 0.01,
            vf_coef: 0.5,
            max_grad_norm: 0.5,
            target_kl: 0.0,
            bootstrap_truncated: false,
        }
    }
}
