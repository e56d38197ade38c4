//! Synchronous advantage actor-critic (Mnih et al. 2016, without the asynchrony): the plain policy gradient with a critic.
//!
//! Every iteration makes one update on the whole rollout of all ranks: minus the mean of log-probability times advantage, plus the value loss, minus the
//! entropy bonus. With advantages that are not normalised, or normalised over the world, W ranks equal one.

use super::batch::{Batches, explained_variance};
use super::on_policy::{Common, OnPolicy};
use super::ppo::value_error;
use super::{Algorithm, At, Learned, Parts};
use crate::config::learn::{A2c as Settings, NormAdv};
use crate::trainer::collect::{Interval, Tally};
use crate::trainer::error::TrainerError;
use crate::trainer::evaluate::Greedy;
use crate::trainer::policy::actor_critic::Pass;
use crate::trainer::state::{Restored, State};

/// A2C.
pub struct A2c {
    settings: Settings,
    on: OnPolicy,
    batches: Batches,
}

impl A2c {
    /// Collective, as [`super::make`].
    pub fn new(settings: &Settings, parts: &Parts<'_>) -> Result<A2c, TrainerError> {
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
        Ok(A2c {
            on: OnPolicy::new(common, parts)?,
            batches: Batches::new(normalise, parts.sizes.local_batch, parts.device),
            settings: settings.clone(),
        })
    }
}

impl Algorithm for A2c {
    fn iterate(&mut self, at: &At<'_>) -> Result<Learned, TrainerError> {
        self.on.collect(at)?;
        let mut learned = Learned { learning_rate: self.on.rate(at), planned: 1, ..Learned::default() };
        let mut random = self.on.shuffles(at);
        self.batches.load(self.on.rollout(), &self.on.returns)?;
        let weights = &self.on.rollout().weights;
        self.batches.begin_epoch(&self.on.advantages, weights, &mut random, at.group)?;
        let batch = self.batches.get(0)?;
        let output = self.on.policy.forward(&batch.observations, Pass::PLAIN)?;
        let log_probs = output.distribution.log_prob(&batch.actions)?;
        let policy = batch.mean(&log_probs.f_mul(&batch.advantages)?)?.f_neg()?;
        let value = batch.mean(&value_error(self.settings.value_loss, &output.values, &batch.returns)?)?;
        let entropy = batch.mean(&output.distribution.entropy()?)?;
        let total = policy
            .f_sub(&entropy.f_mul_scalar(self.settings.ent_coef)?)?
            .f_add(&value.f_mul_scalar(self.settings.vf_coef)?)?;
        self.on.update(&total, at, &mut learned)?;
        learned.losses = vec![
            ("losses/value_loss", value.f_double_value(&[])?),
            ("losses/policy_loss", policy.f_double_value(&[])?),
            ("losses/entropy", entropy.f_double_value(&[])?),
            ("losses/explained_variance", explained_variance(&self.on.rollout().values, &self.on.returns)),
        ];
        Ok(learned)
    }

    fn tally(&self) -> Tally {
        self.on.tally()
    }

    fn take_interval(&mut self) -> Interval {
        self.on.take_interval()
    }

    fn greedy(&mut self) -> Result<&mut dyn Greedy, TrainerError> {
        self.on.greedy()
    }

    fn state(&self) -> Result<State, TrainerError> {
        self.on.state()
    }

    fn restore(&mut self, restored: &Restored) -> Result<(), TrainerError> {
        self.on.restore(restored)
    }
}
