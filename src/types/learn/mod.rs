//! `[learn]`: one file per algorithm with its hyper-parameters; `algorithm` picks the variant.
//!
//! Defaults are those of the reference that each file names. Keys of several algorithms have the same name
//! where they mean the same, and are defined once, in `shared.rs`.

mod shared;

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

use crate::schema::{Fallback, Key, KeyType, Keys, Kind, Variant, choices};
use serde::{Deserialize, Serialize};
use shared::{clipped, off_policy, on_policy};

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

    /// The keys that all on-policy algorithms have; `None` for the others.
    pub fn on_policy(&self) -> Option<OnPolicy> {
        match self {
            Learn::Ppo(ppo) => Some(ppo.on_policy()),
            Learn::Ppg(ppg) => Some(ppg.on_policy()),
            Learn::A2c(a2c) => Some(a2c.on_policy()),
            Learn::Dqn(_) | Learn::Sac(_) => None,
        }
    }

    /// The learning rate falls linearly to 0 over `run.total_steps`.
    pub fn anneals(&self) -> bool {
        self.on_policy().is_some_and(|keys| keys.anneal_lr)
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
        self.on_policy().map_or(NormAdv::Off, |keys| keys.norm_adv)
    }
}

/// The table's keys depend on its `algorithm`.
impl KeyType for Learn {
    const KIND: Kind = Kind::Tagged {
        tag: "algorithm",
        variants: &[
            variant("ppo", &["ppo"], Ppo::DOC, Ppo::KEYS),
            variant("ppg", &["ppg"], Ppg::DOC, Ppg::KEYS),
            variant("a2c", &["a2c"], A2c::DOC, A2c::KEYS),
            variant("dqn", &["dqn"], Dqn::DOC, Dqn::KEYS),
            variant("sac", &["sac"], Sac::DOC, Sac::KEYS),
        ],
    };
}

const fn variant(
    word: &'static str,
    words: &'static [&'static str],
    doc: &'static str,
    keys: Keys,
) -> Variant {
    let tag = Key { name: "algorithm", kind: Kind::Choice(words), default: Fallback::Required, doc };
    Variant { tag, word, keys }
}

/// The keys that all on-policy algorithms have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OnPolicy {
    /// Adam's learning rate.
    pub learning_rate: f64,
    /// Linear decay of the learning rate to 0 over `run.total_steps`.
    pub anneal_lr: bool,
    /// Adam's epsilon.
    pub adam_eps: f64,
    /// Discount of future rewards.
    pub gamma: f64,
    /// GAE's lambda.
    pub gae_lambda: f64,
    /// How advantages are normalised.
    pub norm_adv: NormAdv,
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

choices! {
    /// Whose moments normalise the advantages of a minibatch.
    pub enum Over {
        /// The rank's share of the minibatch, as CleanRL does: the result depends a little on the world size.
        Rank = "rank",
        /// The whole minibatch over all ranks: the result does not depend on the world size; one small
        /// collective more per epoch.
        World = "world",
    }
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

choices! {
    /// How far a value estimate is from its goal.
    pub enum ValueLoss {
        /// Half the squared error.
        Squared = "squared",
        /// Huber's loss with delta 1: squared near 0, linear beyond, as ALF's `td_loss`.
        Huber = "huber",
    }
}
