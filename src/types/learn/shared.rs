//! Keys that several algorithms share, each defined once; their defaults differ.

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
                /// Adam's learning rate.
                learning_rate: f64 [crate::schema::POSITIVE] = $learning_rate,
                /// Linear decay of the learning rate to 0 over `run.total_steps`.
                anneal_lr: bool = $anneal_lr,
                /// Adam's epsilon.
                adam_eps: f64 [crate::schema::POSITIVE] = $adam_eps,
                /// Discount of future rewards.
                gamma: f64 [crate::schema::SHARE] = $gamma,
                /// GAE's lambda; 1: returns up to the end of the rollout.
                gae_lambda: f64 [crate::schema::SHARE] = $gae_lambda,
                #[doc = $norm_adv_doc]
                norm_adv: bool = $norm_adv,
                /// Whose moments normalise advantages: the rank's share, as CleanRL does, or all ranks',
                /// which makes the result independent of the world size.
                norm_adv_over: Over = Over::Rank,
                /// Loss of the value estimates: half the squared error, or Huber's with delta 1.
                value_loss: ValueLoss = ValueLoss::Squared,
                /// Weight of the entropy bonus.
                ent_coef: f64 [crate::schema::NOT_NEGATIVE] = $ent_coef,
                /// Weight of the value loss.
                vf_coef: f64 [crate::schema::NOT_NEGATIVE] = 0.5,
                /// Bound of the averaged gradient's global norm.
                max_grad_norm: f64 [crate::schema::POSITIVE] = 0.5,
                /// Where a time limit cut an episode, go on with the value of its last observation; false: as
                /// if it had ended, as CleanRL's PPO does.
                bootstrap_truncated: bool = $bootstrap_truncated,
                $($own)*
            }
        }

        impl $name {
            /// The keys that all on-policy algorithms have.
            pub fn on_policy(&self) -> super::OnPolicy {
                super::OnPolicy {
                    learning_rate: self.learning_rate,
                    anneal_lr: self.anneal_lr,
                    adam_eps: self.adam_eps,
                    gamma: self.gamma,
                    gae_lambda: self.gae_lambda,
                    norm_adv: super::NormAdv::of(self.norm_adv, self.norm_adv_over),
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
                num_minibatches: u32 [crate::schema::Kind::Integer(1..=crate::schema::U32)] = $num_minibatches,
                /// Epochs over each rollout.
                update_epochs: u32 [crate::schema::Kind::Integer(1..=crate::schema::U32)] = $update_epochs,
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
                /// Adam's epsilon.
                adam_eps: f64 [crate::schema::POSITIVE] = 0.00000001,
                /// Discount of future rewards.
                gamma: f64 [crate::schema::SHARE] = 0.99,
                /// Transitions that replay holds, over all ranks.
                buffer_size: u64 [crate::schema::Kind::Integer(1..=1_000_000_000)] = $buffer_size,
                /// Environment steps over all ranks before the first update.
                learning_starts: u64 = $learning_starts,
                /// Transitions per update, over all ranks; must be divisible by the world size.
                batch_size: u32 [crate::schema::Kind::Integer(1..=10_000_000)] = $batch_size,
                /// Updates after each `collect.num_steps` steps.
                updates_per_iteration: u32 [crate::schema::Kind::Integer(1..=crate::schema::U32)] = 1,
                /// Share of a target network that its update replaces.
                tau: f64 [crate::schema::POSITIVE_SHARE] = $tau,
                $($own)*
            }
        }
    };
}

pub(super) use {clipped, off_policy, on_policy};
