//! PPO's hyper-parameters.

use super::{Over, ValueLoss, clipped, on_policy};
use crate::schema::{NOT_NEGATIVE, keys};

clipped! {
    /// Proximal policy optimisation; defaults as CleanRL's ppo.py.
    pub struct Ppo {
        learning_rate = 0.00025;
        anneal_lr = true;
        adam_eps = 0.00001;
        gamma = 0.99;
        gae_lambda = 0.95;
        norm_adv = true, "Normalise advantages per minibatch.";
        ent_coef = 0.01;
        bootstrap_truncated = false;
    }
    minibatches { num_minibatches = 4; update_epochs = 4; }
    own {
        /// Leave the epoch loop when the all-reduced KL estimate exceeds this; 0: never.
        target_kl: f64 [NOT_NEGATIVE] = 0.0,
    }
}
