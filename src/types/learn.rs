//! `[learn]`: the hyper-parameters of each algorithm; `algorithm` picks the variant.
//!
//! Defaults are those of the reference that each algorithm names. Keys of several algorithms have the same
//! name where they mean the same, and are defined once.

use crate::schema::ValueKind::Integer;
use crate::schema::{
    ConfigKey, Fallback, KeyType, Keys, NOT_NEGATIVE, POSITIVE, SHARE, U32, U63, ValueKind, Variant, choices,
    keys,
};
use serde::{Deserialize, Serialize};

/// `[learn]`; `algorithm` picks the variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "algorithm", rename_all = "lowercase", deny_unknown_fields)]
pub enum Learn {
    /// Proximal policy optimization.
    Ppo(PpoConfig),
    /// Phasic policy gradient.
    Ppg(PpgConfig),
    /// Advantage actor-critic, the plain policy gradient with a critic.
    A2c(A2cConfig),
    /// Deep Q-learning, discrete actions.
    Dqn(DqnConfig),
    /// Soft actor-critic, continuous actions.
    Sac(SacConfig),
    /// Twin delayed deterministic policy gradient, continuous actions.
    Td3(Td3Config),
    /// Parallelized Q-learning, discrete actions.
    Pqn(PqnConfig),
}

/// The actions that an algorithm works with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActionKind {
    Any,
    Discrete,
    Continuous,
}

/// The keys that size the replay of an off-policy algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayConfig {
    /// Capacity over all ranks, in transitions.
    pub buffer_size: u64,
    /// Environment steps over all ranks before the first update.
    pub learning_starts: u64,
    /// Transitions per update over all ranks.
    pub batch_size: u32,
}

impl Learn {
    /// Its name in the file.
    pub fn name(&self) -> &'static str {
        match self {
            Learn::Ppo(_) => "ppo",
            Learn::Ppg(_) => "ppg",
            Learn::A2c(_) => "a2c",
            Learn::Dqn(_) => "dqn",
            Learn::Sac(_) => "sac",
            Learn::Td3(_) => "td3",
            Learn::Pqn(_) => "pqn",
        }
    }

    /// Returns the actions that it works with.
    pub fn actions(&self) -> ActionKind {
        match self {
            Learn::Ppo(_) | Learn::Ppg(_) | Learn::A2c(_) => ActionKind::Any,
            Learn::Dqn(_) | Learn::Pqn(_) => ActionKind::Discrete,
            Learn::Sac(_) | Learn::Td3(_) => ActionKind::Continuous,
        }
    }

    /// Returns the sizes of the replay, for algorithms that have one.
    pub fn replay(&self) -> Option<ReplayConfig> {
        let (buffer_size, learning_starts, batch_size) = match self {
            Learn::Ppo(_) | Learn::Ppg(_) | Learn::A2c(_) | Learn::Pqn(_) => return None,
            Learn::Dqn(dqn) => (dqn.buffer_size, dqn.learning_starts, dqn.batch_size),
            Learn::Sac(sac) => (sac.buffer_size, sac.learning_starts, sac.batch_size),
            Learn::Td3(td3) => (td3.buffer_size, td3.learning_starts, td3.batch_size),
        };
        Some(ReplayConfig { buffer_size, learning_starts, batch_size })
    }

    /// Shrinks the replay to one transition, for a policy that only acts.
    pub fn shrink_replay(&mut self) {
        let (buffer_size, batch_size) = match self {
            Learn::Ppo(_) | Learn::Ppg(_) | Learn::A2c(_) | Learn::Pqn(_) => return,
            Learn::Dqn(dqn) => (&mut dqn.buffer_size, &mut dqn.batch_size),
            Learn::Sac(sac) => (&mut sac.buffer_size, &mut sac.batch_size),
            Learn::Td3(td3) => (&mut td3.buffer_size, &mut td3.batch_size),
        };
        (*buffer_size, *batch_size) = (1, 1);
    }

    /// Returns the keys that all algorithms with a policy gradient have; `None` for other algorithms.
    pub fn on_policy(&self) -> Option<OnPolicyConfig> {
        match self {
            Learn::Ppo(ppo) => Some(ppo.on_policy()),
            Learn::Ppg(ppg) => Some(ppg.on_policy()),
            Learn::A2c(a2c) => Some(a2c.on_policy()),
            Learn::Dqn(_) | Learn::Sac(_) | Learn::Td3(_) | Learn::Pqn(_) => None,
        }
    }

    /// Returns whether the learning rate falls linearly to 0 over `run.total_steps`.
    pub fn anneals(&self) -> bool {
        match self {
            Learn::Pqn(pqn) => pqn.anneal_lr,
            _ => self.on_policy().is_some_and(|keys| keys.anneal_lr),
        }
    }

    /// Minibatches that each rank's rollout is split into; 1 for algorithms without epochs.
    pub fn num_minibatches(&self) -> u32 {
        match self {
            Learn::Ppo(ppo) => ppo.num_minibatches,
            Learn::Ppg(ppg) => ppg.num_minibatches,
            Learn::Pqn(pqn) => pqn.num_minibatches,
            Learn::A2c(_) | Learn::Dqn(_) | Learn::Sac(_) | Learn::Td3(_) => 1,
        }
    }

    /// Returns how advantages are normalized, for algorithms with advantages.
    pub fn norm_adv(&self) -> NormAdv {
        self.on_policy().map_or(NormAdv::Off, |keys| keys.norm_adv)
    }
}

/// The table's keys depend on its `algorithm`.
impl KeyType for Learn {
    const KIND: ValueKind = ValueKind::Tagged {
        tag: "algorithm",
        variants: &[
            variant("ppo", &["ppo"], PpoConfig::DOC, PpoConfig::KEYS),
            variant("ppg", &["ppg"], PpgConfig::DOC, PpgConfig::KEYS),
            variant("a2c", &["a2c"], A2cConfig::DOC, A2cConfig::KEYS),
            variant("dqn", &["dqn"], DqnConfig::DOC, DqnConfig::KEYS),
            variant("sac", &["sac"], SacConfig::DOC, SacConfig::KEYS),
            variant("td3", &["td3"], Td3Config::DOC, Td3Config::KEYS),
            variant("pqn", &["pqn"], PqnConfig::DOC, PqnConfig::KEYS),
        ],
    };
}

const fn variant(
    word: &'static str,
    words: &'static [&'static str],
    doc: &'static str,
    keys: Keys,
) -> Variant {
    let tag =
        ConfigKey { name: "algorithm", kind: ValueKind::Choice(words), default: Fallback::Required, doc };
    Variant { tag, word, keys }
}

/// The keys that all on-policy algorithms have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OnPolicyConfig {
    /// Learning rate of Adam.
    pub learning_rate: f64,
    /// Decay the learning rate linearly to 0 over `run.total_steps`.
    pub anneal_lr: bool,
    /// Epsilon of Adam.
    pub adam_eps: f64,
    /// Discount factor.
    pub gamma: f64,
    pub gae_lambda: f64,
    /// How advantages are normalized.
    pub norm_adv: NormAdv,
    /// Loss of the value estimates.
    pub value_loss: ValueLoss,
    /// Weight of the entropy bonus.
    pub ent_coef: f64,
    /// Weight of the value loss.
    pub vf_coef: f64,
    /// Maximum global norm of the averaged gradient.
    pub max_grad_norm: f64,
    /// Bootstrap truncated episodes from the value of their last observation.
    pub bootstrap_truncated: bool,
}

choices! {
    /// Scope of the mean and variance that normalize advantages.
    pub enum AdvantageNormScope {
        /// The rank's share of the minibatch, as in CleanRL; results depend slightly on the world size.
        Rank = "rank",
        /// The whole minibatch over all ranks: results are independent of the world size; one small
        /// collective more per epoch.
        World = "world",
    }
}

/// `norm_adv` and `norm_adv_over` together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormAdv {
    /// Not normalized.
    Off,
    /// Over the rank's share.
    Rank,
    /// Over all ranks.
    World,
}

impl NormAdv {
    /// Combines the two keys of a file.
    pub fn from_keys(on: bool, over: AdvantageNormScope) -> NormAdv {
        match (on, over) {
            (false, _) => NormAdv::Off,
            (true, AdvantageNormScope::Rank) => NormAdv::Rank,
            (true, AdvantageNormScope::World) => NormAdv::World,
        }
    }
}

choices! {
    /// Loss of the value estimates.
    pub enum ValueLoss {
        /// Half the squared error.
        Squared = "squared",
        /// Huber loss with delta 1.
        Huber = "huber",
    }
}

/// The keys of all algorithms with a policy gradient and a critic of state values, and the algorithm's `own`.
macro_rules! on_policy {
    (
        #[doc = $about:literal]
        pub struct $name:ident {
            learning_rate = $learning_rate:expr;
            anneal_lr = $anneal_lr:expr;
            adam_eps = $adam_eps:expr;
            gamma = $gamma:expr;
            gae_lambda = $gae_lambda:expr;
            norm_adv = $norm_adv:expr, $norm_adv_doc:literal;
            ent_coef = $ent_coef:expr;
            bootstrap_truncated = $bootstrap_truncated:expr;
        }
        own { $($own:tt)* }
    ) => {
        keys! {
            #[doc = $about]
            #[serde(default)]
            pub struct $name {
                /// Learning rate of Adam.
                learning_rate: f64 [crate::schema::POSITIVE] = $learning_rate,
                /// Decay the learning rate linearly to 0 over `run.total_steps`.
                anneal_lr: bool = $anneal_lr,
                /// Epsilon of Adam.
                adam_eps: f64 [crate::schema::POSITIVE] = $adam_eps,
                /// Discount factor.
                gamma: f64 [crate::schema::SHARE] = $gamma,
                /// Lambda of GAE; 1: returns up to the end of the rollout.
                gae_lambda: f64 [crate::schema::SHARE] = $gae_lambda,
                #[doc = $norm_adv_doc]
                norm_adv: bool = $norm_adv,
                /// Normalize advantages over the rank's share (`rank`, as in CleanRL) or over all ranks
                /// (`world`, independent of the world size).
                norm_adv_over: AdvantageNormScope = AdvantageNormScope::Rank,
                /// Loss of the value estimates: half the squared error, or the Huber loss with delta 1.
                value_loss: ValueLoss = ValueLoss::Squared,
                /// Weight of the entropy bonus.
                ent_coef: f64 [crate::schema::NOT_NEGATIVE] = $ent_coef,
                /// Weight of the value loss.
                vf_coef: f64 [crate::schema::NOT_NEGATIVE] = 0.5,
                /// Maximum global norm of the averaged gradient.
                max_grad_norm: f64 [crate::schema::POSITIVE] = 0.5,
                /// Bootstrap truncated episodes from the value of their last observation; if false, they
                /// count as terminated, as in CleanRL's PPO.
                bootstrap_truncated: bool = $bootstrap_truncated,
                $($own)*
            }
        }

        impl $name {
            /// Returns the keys that all on-policy algorithms have.
            pub fn on_policy(&self) -> OnPolicyConfig {
                OnPolicyConfig {
                    learning_rate: self.learning_rate,
                    anneal_lr: self.anneal_lr,
                    adam_eps: self.adam_eps,
                    gamma: self.gamma,
                    gae_lambda: self.gae_lambda,
                    norm_adv: NormAdv::from_keys(self.norm_adv, self.norm_adv_over),
                    value_loss: self.value_loss,
                    ent_coef: self.ent_coef,
                    vf_coef: self.vf_coef,
                    max_grad_norm: self.max_grad_norm,
                    bootstrap_truncated: self.bootstrap_truncated,
                }
            }
        }
    };
}

/// The keys of the on-policy algorithms that clip the probability ratio and make several epochs.
macro_rules! clipped {
    (
        #[doc = $about:literal]
        pub struct $name:ident { $($on_policy:tt)* }
        minibatches { num_minibatches = $num_minibatches:expr; update_epochs = $update_epochs:expr; }
        own { $($own:tt)* }
    ) => {
        on_policy! {
            #[doc = $about]
            pub struct $name { $($on_policy)* }
            own {
                /// Minibatches per epoch; must divide each rank's rollout.
                num_minibatches: u32 [crate::schema::ValueKind::Integer(1..=crate::schema::U32)] = $num_minibatches,
                /// Epochs per rollout.
                update_epochs: u32 [crate::schema::ValueKind::Integer(1..=crate::schema::U32)] = $update_epochs,
                /// Clip range of the probability ratio.
                clip_coef: f64 [crate::schema::POSITIVE_SHARE] = 0.2,
                /// Clip the value loss with the same range.
                clip_vloss: bool = true,
                $($own)*
            }
        }
    };
}

/// The keys of all algorithms with experience replay, and the algorithm's `own`.
macro_rules! off_policy {
    (
        #[doc = $about:literal]
        pub struct $name:ident {
            buffer_size = $buffer_size:expr;
            learning_starts = $learning_starts:expr;
            batch_size = $batch_size:expr;
            tau = $tau:expr;
        }
        own { $($own:tt)* }
    ) => {
        keys! {
            #[doc = $about]
            #[serde(default)]
            pub struct $name {
                /// Epsilon of Adam.
                adam_eps: f64 [crate::schema::POSITIVE] = 0.00000001,
                /// Discount factor.
                gamma: f64 [crate::schema::SHARE] = 0.99,
                /// Capacity of the replay buffers over all ranks, in transitions.
                buffer_size: u64 [crate::schema::ValueKind::Integer(1..=1_000_000_000)] = $buffer_size,
                /// Environment steps over all ranks before the first update.
                learning_starts: u64 = $learning_starts,
                /// Transitions per update over all ranks; must be divisible by the world size.
                batch_size: u32 [crate::schema::ValueKind::Integer(1..=10_000_000)] = $batch_size,
                /// Updates after each `collect.num_steps` steps.
                updates_per_iteration: u32 [crate::schema::ValueKind::Integer(1..=crate::schema::U32)] = 1,
                /// Fraction of a target network that its update replaces.
                tau: f64 [crate::schema::POSITIVE_SHARE] = $tau,
                $($own)*
            }
        }
    };
}

clipped! {
    /// Proximal policy optimization; defaults of CleanRL's ppo.py.
    pub struct PpoConfig {
        learning_rate = 0.00025;
        anneal_lr = true;
        adam_eps = 0.00001;
        gamma = 0.99;
        gae_lambda = 0.95;
        norm_adv = true, "Normalize advantages per minibatch.";
        ent_coef = 0.01;
        bootstrap_truncated = false;
    }
    minibatches { num_minibatches = 4; update_epochs = 4; }
    own {
        /// Stop the epochs of an update when the all-reduced KL estimate exceeds this; 0: never.
        target_kl: f64 [NOT_NEGATIVE] = 0.0,
    }
}

clipped! {
    /// Phasic policy gradient; defaults of CleanRL's ppg_procgen.py.
    pub struct PpgConfig {
        learning_rate = 0.0005;
        anneal_lr = false;
        adam_eps = 0.00000001;
        gamma = 0.999;
        gae_lambda = 0.95;
        norm_adv = true, "Normalize advantages over the whole rollout.";
        ent_coef = 0.01;
        bootstrap_truncated = false;
    }
    minibatches { num_minibatches = 8; update_epochs = 1; }
    own {
        /// Training iterations (rollouts) of a policy phase; an auxiliary phase follows.
        policy_iterations: u32 [Integer(1..=100_000)] = 32,
        /// Let the critic's loss train the shared layers in the policy phase, too (ALF); if false, it reads
        /// them detached (CleanRL).
        critic_trains_shared: bool = false,
        /// Epochs over all rollouts of the policy phase.
        aux_epochs: u32 [Integer(1..=U32)] = 6,
        /// Minibatches per auxiliary epoch, of whole rollouts of single environments; must divide
        /// `policy_iterations` times the rank's environments.
        aux_num_minibatches: u32 [Integer(1..=U32)] = 16,
        /// Weight of the KL divergence from the policy before the auxiliary phase.
        beta_clone: f64 [NOT_NEGATIVE] = 1.0,
    }
}

// Mnih et al. 2016; the paper's defaults are for RMSProp.
on_policy! {
    /// Advantage actor-critic: one update per rollout.
    pub struct A2cConfig {
        learning_rate = 0.0007;
        anneal_lr = true;
        adam_eps = 0.00001;
        gamma = 0.99;
        gae_lambda = 1.0;
        norm_adv = false, "Normalize advantages over the rollout.";
        ent_coef = 0.0;
        bootstrap_truncated = true;
    }
    own {}
}

off_policy! {
    /// Deep Q-learning, discrete actions; defaults of CleanRL's dqn.py.
    pub struct DqnConfig {
        buffer_size = 10_000;
        learning_starts = 10_000;
        batch_size = 128;
        tau = 1.0;
    }
    own {
        /// Learning rate of Adam.
        learning_rate: f64 [POSITIVE] = 0.00025,
        /// Updates between copies of the online network to the target network.
        target_every: u64 [Integer(1..=U63)] = 50,
        /// Choose the next action with the online network (double DQN).
        // Van Hasselt et al. 2016.
        double: bool = false,
        /// Split the network into state value and advantages (dueling DQN).
        // Wang et al. 2016.
        dueling: bool = false,
        /// Steps of reward before the bootstrap.
        n_step: u32 [Integer(1..=10_000)] = 1,
        /// Initial probability of a random action.
        epsilon_start: f64 [SHARE] = 1.0,
        /// Final probability of a random action.
        epsilon_end: f64 [SHARE] = 0.05,
        /// Environment steps over all ranks of the epsilon decay: its length for `linear`, its time
        /// constant for `exponential`.
        epsilon_steps: u64 [Integer(1..=U63)] = 250_000,
        /// Decay of epsilon: linear (CleanRL), or `end + (start - end) * exp(-steps / epsilon_steps)`
        /// (DI-engine).
        epsilon_decay: EpsilonDecay = EpsilonDecay::Linear,
        /// Loss of the TD error: mean squared (CleanRL, DI-engine), or the Huber loss with delta 1 (Mnih et
        /// al. 2015).
        loss: TdLoss = TdLoss::Squared,
        /// Maximum global norm of the averaged gradient; 0: unlimited.
        max_grad_norm: f64 [NOT_NEGATIVE] = 0.0,
    }
}

choices! {
    /// Loss of the TD error.
    pub enum TdLoss {
        /// Mean squared, not halved (CleanRL, DI-engine).
        Squared = "squared",
        /// Huber loss with delta 1 (Mnih et al. 2015).
        Huber = "huber",
    }
}

choices! {
    /// Decay of epsilon with the environment steps over all ranks.
    pub enum EpsilonDecay {
        /// Linear, reaching its end after `epsilon_steps` (CleanRL).
        Linear = "linear",
        /// `end + (start - end) * exp(-steps / epsilon_steps)` (DI-engine).
        Exponential = "exponential",
    }
}

off_policy! {
    /// Soft actor-critic, continuous actions; defaults of CleanRL's sac_continuous_action.py.
    pub struct SacConfig {
        buffer_size = 1_000_000;
        learning_starts = 5_000;
        batch_size = 256;
        tau = 0.005;
    }
    own {
        /// Learning rate of the actor.
        policy_lr: f64 [POSITIVE] = 0.0003,
        /// Learning rate of the critics and of alpha.
        q_lr: f64 [POSITIVE] = 0.001,
        /// Critic updates per actor update; the actor then makes as many updates.
        policy_every: u32 [Integer(1..=10_000)] = 2,
        /// Learn the entropy weight; if false, `alpha` stays fixed.
        autotune: bool = true,
        /// Entropy weight; the initial value if it is learned.
        alpha: f64 [POSITIVE] = 1.0,
    }
}

off_policy! {
    /// Twin delayed deterministic policy gradient; defaults of CleanRL's td3_continuous_action.py.
    pub struct Td3Config {
        buffer_size = 1_000_000;
        learning_starts = 25_000;
        batch_size = 256;
        tau = 0.005;
    }
    own {
        /// Learning rate of the actor and the critics.
        learning_rate: f64 [POSITIVE] = 0.0003,
        /// Critic updates per update of the actor and of all target networks.
        policy_every: u32 [Integer(1..=10_000)] = 2,
        /// Standard deviation of exploration noise, as a fraction of half the width of an action's range.
        exploration_noise: f64 [NOT_NEGATIVE] = 0.1,
        /// The same of the noise in the target's actions.
        policy_noise: f64 [NOT_NEGATIVE] = 0.2,
        /// Largest noise in the target's actions, in the same unit.
        noise_clip: f64 [NOT_NEGATIVE] = 0.5,
    }
}

// Gallici et al. 2024.
keys! {
    /// Parallelized Q-learning, discrete actions; defaults of CleanRL's pqn.py.
    #[serde(default)]
    pub struct PqnConfig {
        /// Learning rate of RAdam.
        learning_rate: f64 [POSITIVE] = 0.00025,
        /// Decay the learning rate linearly to 0 over `run.total_steps`.
        anneal_lr: bool = true,
        /// Epsilon of RAdam.
        adam_eps: f64 [POSITIVE] = 0.00000001,
        /// Discount factor.
        gamma: f64 [SHARE] = 0.99,
        /// Lambda of the Q(lambda) returns; 0: one-step targets, 1: returns up to the end of the rollout.
        q_lambda: f64 [SHARE] = 0.65,
        /// Minibatches per epoch; must divide each rank's rollout.
        num_minibatches: u32 [Integer(1..=U32)] = 4,
        /// Epochs per rollout.
        update_epochs: u32 [Integer(1..=U32)] = 4,
        /// Initial probability of a random action.
        epsilon_start: f64 [SHARE] = 1.0,
        /// Final probability of a random action.
        epsilon_end: f64 [SHARE] = 0.05,
        /// Environment steps over all ranks until epsilon reaches its end, linearly.
        epsilon_steps: u64 [Integer(1..=U63)] = 250_000,
        /// Maximum global norm of the averaged gradient.
        max_grad_norm: f64 [POSITIVE] = 10.0,
        /// Bootstrap truncated episodes from the value of their last observation; if false, they
        /// count as terminated, as in CleanRL.
        bootstrap_truncated: bool = false,
    }
}
