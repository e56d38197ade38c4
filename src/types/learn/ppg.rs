//! PPG's hyper-parameters.

use super::{Over, ValueLoss};
use serde::{Deserialize, Serialize};

/// PPG's hyper-parameters; defaults are CleanRL's ppg_procgen.py.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ppg {
    /// Adam's learning rate, of both phases.
    pub learning_rate: f64,
    /// Linear decay of the learning rate to 0 over `run.total_steps`.
    pub anneal_lr: bool,
    /// Adam's epsilon.
    pub adam_eps: f64,
    /// Discount.
    pub gamma: f64,
    /// GAE's lambda.
    pub gae_lambda: f64,
    /// Training iterations (rollouts) of a policy phase; an auxiliary phase follows.
    pub policy_iterations: u32,
    /// Minibatches per epoch of the policy phase; must divide the rollout.
    pub num_minibatches: u32,
    /// Epochs over each rollout in the policy phase.
    pub update_epochs: u32,
    /// Normalise advantages over the whole rollout.
    pub norm_adv: bool,
    /// Whose moments normalise them.
    pub norm_adv_over: Over,
    /// Clip range of the probability ratio.
    pub clip_coef: f64,
    /// Clip the value loss with the same range.
    pub clip_vloss: bool,
    /// Loss of the value estimates, in both phases.
    pub value_loss: ValueLoss,
    /// Weight of the entropy bonus.
    pub ent_coef: f64,
    /// Weight of the value loss in the policy phase.
    pub vf_coef: f64,
    /// Bound of the averaged gradient's global norm.
    pub max_grad_norm: f64,
    /// Let the critic's loss change the shared layers in the policy phase too (ALF); false: it reads them detached (CleanRL).
    pub critic_trains_shared: bool,
    /// Epochs over everything that the policy phase collected.
    pub aux_epochs: u32,
    /// Minibatches per auxiliary epoch, of whole rollouts of single environments; must divide `policy_iterations` times the rank's environments.
    pub aux_num_minibatches: u32,
    /// Weight of the KL divergence from the policy before the auxiliary phase.
    pub beta_clone: f64,
    /// Where a time limit cut an episode, go on with the value of its last observation.
    pub bootstrap_truncated: bool,
}

impl Default for Ppg {
    fn default() -> Ppg {
        Ppg {
            learning_rate: 5e-4,
            anneal_lr: false,
            adam_eps: 1e-8,
            gamma: 0.999,
            gae_lambda: 0.95,
            policy_iterations: 32,
            num_minibatches: 8,
            update_epochs: 1,
            norm_adv: true,
            norm_adv_over: Over::Rank,
            clip_coef: 0.2,
            clip_vloss: true,
            value_loss: ValueLoss::Squared,
            ent_coef: 0.01,
            vf_coef: 0.5,
            max_grad_norm: 0.5,
            critic_trains_shared: false,
            aux_epochs: 6,
            aux_num_minibatches: 16,
            beta_clone: 1.0,
            bootstrap_truncated: false,
        }
    }
}
