//! Synchronous advantage actor-critic (Mnih et al. 2016, without the asynchrony): the plain policy gradient with a critic.
//!
//! Every iteration makes one update on the whole rollout of all ranks: minus the mean of log-probability times advantage, plus the value loss, minus the
//! entropy bonus. With advantages that are not normalised, or normalised over the world, W ranks equal one.

use super::native::{Engine, Numbers};
use super::on_policy::{Common, OnPolicy, Played, Recipe};
use super::ppo::{Objective, value_error};
use super::{At, Learned, Parts};
use crate::error::TrainerError;
use crate::policy::actor_critic::Pass;
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_types::learn::{A2c as Settings, NormAdv};

/// A2C.
pub struct A2c {
    settings: Settings,
    pub(super) engine: Engine,
}

impl A2c {
    /// Collective, as [`super::make`].
    pub fn new(settings: &Settings, parts: &Parts<'_>) -> Result<Played<A2c>, TrainerError> {
        let common = Common {
            learning_rate: settings.learning_rate,
            anneal_lr: settings.anneal_lr,
            adam_eps: settings.adam_eps,
            gamma: settings.gamma,
            gae_lambda: settings.gae_lambda,
            max_grad_norm: settings.max_grad_norm,
            bootstrap_truncated: settings.bootstrap_truncated,
            aux: false,
        };
        let normalise = NormAdv::of(settings.norm_adv, settings.norm_adv_over);
        let on = OnPolicy::new(common, parts)?;
        let engine = Engine::new(on.policy.layout(), parts, normalise, parts.sizes.local_batch)?;
        Ok(Played { on, recipe: A2c { engine, settings: settings.clone() } })
    }
}

impl Recipe for A2c {
    fn learn(
        &mut self,
        on: &mut OnPolicy,
        at: &At<'_>,
        random: &mut Generator,
        learned: &mut Learned,
    ) -> Result<(), TrainerError> {
        learned.planned = 1;
        let batches = match &mut self.engine {
            Engine::Libtorch(batches) => batches,
            Engine::Native(native) => {
                let Settings { value_loss, ent_coef, vf_coef, .. } = self.settings;
                let objective =
                    Objective { clip_coef: 0.0, clip_vloss: false, value_loss, ent_coef, vf_coef };
                let mut numbers = Numbers::default();
                native.begin();
                native.begin_epoch(on.rollout(), &on.advantages, &on.returns, random, at.group)?;
                native.update(0, (&objective, false), on, at, learned, &mut numbers)?;
                learned.losses = numbers.terms().to_vec();
                return Ok(());
            }
        };
        batches.load(on.rollout(), &on.returns)?;
        batches.begin_epoch(&on.advantages, &on.rollout().weights, random, at.group)?;
        let batch = batches.get(0)?;
        let output = on.policy.forward(&batch.observations, Pass::PLAIN)?;
        let log_probs = output.distribution.log_prob(&batch.actions)?;
        let policy = batch.mean(&log_probs.f_mul(&batch.advantages)?)?.f_neg()?;
        let value = batch.mean(&value_error(self.settings.value_loss, &output.values, &batch.returns)?)?;
        let entropy = batch.mean(&output.distribution.entropy()?)?;
        let total = policy
            .f_sub(&entropy.f_mul_scalar(self.settings.ent_coef)?)?
            .f_add(&value.f_mul_scalar(self.settings.vf_coef)?)?;
        on.update(&total, at, learned)?;
        learned.losses = vec![
            ("losses/value_loss", value.f_double_value(&[])?),
            ("losses/policy_loss", policy.f_double_value(&[])?),
            ("losses/entropy", entropy.f_double_value(&[])?),
        ];
        Ok(())
    }
}
