//! A2C's hyper-parameters.

use super::{Over, ValueLoss};
use serde::{Deserialize, Serialize};

/// Hyper-parameters of the synchronous advantage actor-critic (Mnih et al. 2016): one update per rollout, on all of it.
/// Defaults are ours; the paper's are for RMSProp.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct A2c {
    /// Adam's learning rate.
    pub learning_rate: f64,
    /// Linear decay of the learning rate to 0 over `run.total_steps`.
    pub anneal_lr: bool,
    /// Adam's epsilon.
    pub adam_eps: f64,
    /// Discount.
    pub gamma: f64,
    /// GAE's lambda; 1: returns up to the end of the rollout.
    pub gae_lambda: f64,
    /// Normalise advantages over the rollout.
    pub norm_adv: bool,
    /// Whose moments normalise them.
    pub norm_adv_over: Over,
    /// Loss of the value estimates.
    pub value_loss: ValueLoss,
    /// Weight of the entropy bonus.
    pub ent_coef: f64,
    /// Weight of the value loss.
    pub vf_coef: f64,
    /// Bound of the averaged gradient's global norm.
    pub max_grad_norm: f64,
    /// Where a time limit cut an episode, go on with the value of its last observation.
    pub bootstrap_truncated: bool,
}

impl Default for A2c {
    fn default() -> A2c {
        A2c {
            learning_rate: 7e-4,
            anneal_lr: true,
            adam_eps: 1e-5,
            gamma: 0.99,
            gae_lambda: 1.0,
            norm_adv: false,
            norm_adv_over: Over::Rank,
            value_loss: ValueLoss::Squared,
            ent_coef: 0.0,
            vf_coef: 0.5,
            max_grad_norm: 0.5,
            bootstrap_truncated: true,
        }
    }
}
