//! `[learn]`: one file per algorithm with its hyper-parameters; `algorithm` picks the variant.
//!
//! Defaults are those of the reference that each file names. Keys of several algorithms have the same name where they mean the same.

pub mod a2c;
pub mod dqn;
pub mod ppg;
pub mod ppo;
pub mod sac;

pub use a2c::A2c;
pub use dqn::Dqn;
pub use ppg::Ppg;
pub use ppo::Ppo;
pub use sac::Sac;

use serde::{Deserialize, Serialize};

/// `[learn]`; `algorithm` picks the variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "algorithm", rename_all = "lowercase", deny_unknown_fields)]
pub enum Learn {
    /// Proximal policy optimisation.
    Ppo(Ppo),
    /// Phasic policy gradient.
    Ppg(Ppg),
    /// Advantage actor-critic, the plain policy gradient with a critic.
    A2c(A2c),
    /// Deep Q-learning, discrete actions.
    Dqn(Dqn),
    /// Soft actor-critic, continuous actions.
    Sac(Sac),
}

impl Learn {
    /// The word in the file.
    pub fn name(&self) -> &'static str {
        match self {
            Learn::Ppo(_) => "ppo",
            Learn::Ppg(_) => "ppg",
            Learn::A2c(_) => "a2c",
            Learn::Dqn(_) => "dqn",
            Learn::Sac(_) => "sac",
        }
    }

    /// The learning rate falls linearly to 0 over `run.total_steps`.
    pub fn anneals(&self) -> bool {
        match self {
            Learn::Ppo(ppo) => ppo.anneal_lr,
            Learn::Ppg(ppg) => ppg.anneal_lr,
            Learn::A2c(a2c) => a2c.anneal_lr,
            Learn::Dqn(_) | Learn::Sac(_) => false,
        }
    }

    /// Minibatches that each rank's rollout is split into; 1 for algorithms without epochs.
    pub fn num_minibatches(&self) -> u32 {
        match self {
            Learn::Ppo(ppo) => ppo.num_minibatches,
            Learn::Ppg(ppg) => ppg.num_minibatches,
            Learn::A2c(_) | Learn::Dqn(_) | Learn::Sac(_) => 1,
        }
    }

    /// How advantages are normalised, for the algorithms that have them.
    pub fn norm_adv(&self) -> NormAdv {
        match self {
            Learn::Ppo(ppo) => NormAdv::of(ppo.norm_adv, ppo.norm_adv_over),
            Learn::Ppg(ppg) => NormAdv::of(ppg.norm_adv, ppg.norm_adv_over),
            Learn::A2c(a2c) => NormAdv::of(a2c.norm_adv, a2c.norm_adv_over),
            Learn::Dqn(_) | Learn::Sac(_) => NormAdv::Off,
        }
    }
}

/// Whose moments normalise the advantages of a minibatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Over {
    /// The rank's share of the minibatch, as CleanRL does: the result depends a little on the world size.
    #[default]
    Rank,
    /// The whole minibatch over all ranks: the result does not depend on the world size; one small collective more per epoch.
    World,
}

/// `norm_adv` and `norm_adv_over` together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormAdv {
    /// Advantages stay as they are.
    Off,
    /// With the moments of the rank's share.
    Rank,
    /// With the moments over all ranks.
    World,
}

impl NormAdv {
    /// Of a file's two keys.
    pub fn of(on: bool, over: Over) -> NormAdv {
        match (on, over) {
            (false, _) => NormAdv::Off,
            (true, Over::Rank) => NormAdv::Rank,
            (true, Over::World) => NormAdv::World,
        }
    }
}

/// How far a value estimate is from its goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ValueLoss {
    /// Half the squared error.
    #[default]
    Squared,
    /// Huber's loss with delta 1: squared near 0, linear beyond, as ALF's `td_loss`.
    Huber,
}
