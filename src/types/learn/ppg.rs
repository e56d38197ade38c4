//! PPG's hyper-parameters.

use super::{Over, ValueLoss, clipped, on_policy};
use crate::schema::Kind::Integer;
use crate::schema::{NOT_NEGATIVE, U32, keys};

clipped! {
    /// Phasic policy gradient; defaults as CleanRL's ppg_procgen.py.
    pub struct Ppg {
        learning_rate = 0.0005;
        anneal_lr = false;
        adam_eps = 0.00000001;
        gamma = 0.999;
        gae_lambda = 0.95;
        norm_adv = true, "Normalise advantages over the whole rollout.";
        ent_coef = 0.01;
        bootstrap_truncated = false;
    }
    minibatches { num_minibatches = 8; update_epochs = 1; }
    own {
        /// Training iterations (rollouts) of a policy phase; an auxiliary phase follows.
        policy_iterations: u32 [Integer(1..=100_000)] = 32,
        /// Let the critic's loss change the shared layers in the policy phase too (ALF); false: it reads them
        /// detached (CleanRL).
        critic_trains_shared: bool = false,
        /// Epochs over everything that the policy phase collected.
        aux_epochs: u32 [Integer(1..=U32)] = 6,
        /// Minibatches per auxiliary epoch, of whole rollouts of single environments; must divide
        /// `policy_iterations` times the rank's environments.
        aux_num_minibatches: u32 [Integer(1..=U32)] = 16,
        /// Weight of the KL divergence from the policy before the auxiliary phase.
        beta_clone: f64 [NOT_NEGATIVE] = 1.0,
    }
}
