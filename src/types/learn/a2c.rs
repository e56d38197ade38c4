//! A2C's hyper-parameters (Mnih et al. 2016). Defaults are ours; the paper's are for RMSProp.

use super::{Over, ValueLoss, on_policy};
use crate::schema::keys;

on_policy! {
    /// Advantage actor-critic: one update per rollout, on all of it.
    pub struct A2c {
        learning_rate = 0.0007;
        anneal_lr = true;
        adam_eps = 0.00001;
        gamma = 0.99;
        gae_lambda = 1.0;
        norm_adv = false, "Normalise advantages over the rollout.";
        ent_coef = 0.0;
        bootstrap_truncated = true;
    }
    own {}
}
