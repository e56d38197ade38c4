//! Proximal policy optimisation (Schulman et al. 2017) with the details of CleanRL's ppo.py and ppo_continuous_action.py, over all ranks.
//!
//! Each rank shuffles its own rollout into minibatches of `local_batch / num_minibatches`; gradients are averaged over the ranks, then clipped,
//! then Adam steps. With equal local sizes the average of the ranks' gradients is the gradient of the mean over all samples, except that
//! advantages are normalised per rank and minibatch, as CleanRL does, unless `norm_adv_over = "world"`.
//!
//! Invariants:
//! - PPO-1: every rank makes the same number of updates: the target-KL decision uses the KL averaged over all ranks.
//! - PPO-2: the host waits for the device once per iteration, and once per epoch with a target KL, not in an update (but for its collectives, whose waits are bounded).

use super::batch::Minibatch;
use super::native::{Engine, Numbers};
use super::on_policy::{Common, OnPolicy, Played, Recipe};
use super::{At, Learned, Parts};
use crate::distributed::ReduceOp;
use crate::error::TrainerError;
use crate::policy::actor_critic::{Output, Pass};
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_types::learn::{NormAdv, Ppo as Settings, ValueLoss};
use tch::{Kind, Reduction, TchError, Tensor};

/// PPO.
pub struct Ppo {
    settings: Settings,
    objective: Objective,
    engine: Engine,
}

impl Ppo {
    /// Collective, as [`super::make`].
    pub fn new(settings: &Settings, parts: &Parts<'_>) -> Result<Played<Ppo>, TrainerError> {
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
        let objective = Objective {
            clip_coef: settings.clip_coef,
            clip_vloss: settings.clip_vloss,
            value_loss: settings.value_loss,
            ent_coef: settings.ent_coef,
            vf_coef: settings.vf_coef,
        };
        let minibatch = parts.sizes.local_batch / settings.num_minibatches.max(1) as usize;
        let normalise = NormAdv::of(settings.norm_adv, settings.norm_adv_over);
        let on = OnPolicy::new(common, parts)?;
        let engine = Engine::new(on.policy.layout(), parts, normalise, minibatch)?;
        Ok(Played { on, recipe: Ppo { engine, settings: settings.clone(), objective } })
    }

    fn by_libtorch(
        &mut self,
        on: &mut OnPolicy,
        at: &At<'_>,
        random: &mut Generator,
        learned: &mut Learned,
    ) -> Result<(), TrainerError> {
        let Ppo { engine: Engine::Libtorch(batches), settings, objective } = self else { return Ok(()) };
        batches.load(on.rollout(), &on.returns)?;
        let mut noted = Noted::default();
        for _ in 0..settings.update_epochs {
            batches.begin_epoch(&on.advantages, &on.rollout().weights, random, at.group)?;
            for k in 0..batches.count() {
                let batch = batches.get(k)?;
                let output = on.policy.forward(&batch.observations, Pass::PLAIN)?;
                let losses = objective.losses(&output, &batch)?;
                on.update(&losses.total, at, learned)?;
                noted.note(losses, settings.clip_coef)?;
            }
            if settings.target_kl > 0.0 && is_too_far(noted.approx_kl()?, settings, at)? {
                break;
            }
        }
        learned.losses = noted.losses()?;
        Ok(())
    }

    fn natively(
        &mut self,
        on: &mut OnPolicy,
        at: &At<'_>,
        random: &mut Generator,
        learned: &mut Learned,
    ) -> Result<(), TrainerError> {
        let Ppo { engine: Engine::Native(native), settings, objective } = self else { return Ok(()) };
        let mut numbers = Numbers::default();
        native.begin();
        for _ in 0..settings.update_epochs {
            native.begin_epoch(on.rollout(), &on.advantages, &on.returns, random, at.group)?;
            for k in 0..native.count() {
                native.update(k, (&*objective, true), on, at, learned, &mut numbers)?;
            }
            if settings.target_kl > 0.0 && is_too_far(numbers.approx_kl(), settings, at)? {
                break;
            }
        }
        learned.losses = numbers.losses();
        Ok(())
    }
}

/// The KL estimate, averaged over all ranks (PPO-1), is over its bound.
fn is_too_far(kl: f64, settings: &Settings, at: &At<'_>) -> Result<bool, TrainerError> {
    let mut kl = [kl];
    at.group.all_reduce_f64(&mut kl, ReduceOp::Avg, "target_kl")?;
    Ok(kl[0] > settings.target_kl)
}

impl Recipe for Ppo {
    fn learn(
        &mut self,
        on: &mut OnPolicy,
        at: &At<'_>,
        random: &mut Generator,
        learned: &mut Learned,
    ) -> Result<(), TrainerError> {
        learned.planned = u64::from(self.settings.update_epochs) * u64::from(self.settings.num_minibatches);
        match self.engine {
            Engine::Libtorch(_) => self.by_libtorch(on, at, random, learned),
            Engine::Native(_) => self.natively(on, at, random, learned),
        }
    }
}

/// PPO's objective, which PPG's policy phase shares.
#[derive(Debug, Clone, PartialEq)]
pub struct Objective {
    /// Clip range of the probability ratio.
    pub clip_coef: f64,
    /// Clip the value loss with the same range.
    pub clip_vloss: bool,
    /// Loss of the value estimates.
    pub value_loss: ValueLoss,
    /// Weight of the entropy bonus.
    pub ent_coef: f64,
    /// Weight of the value loss.
    pub vf_coef: f64,
}

/// Scalars with gradients (`total`), and what is noted about them.
pub struct Losses {
    /// What is minimised.
    pub total: Tensor,
    policy: Tensor,
    value: Tensor,
    entropy: Tensor,
    log_ratio: Tensor,
}

/// Half the squared error, or Huber's loss, of each value.
pub fn value_error(kind: ValueLoss, values: &Tensor, goals: &Tensor) -> Result<Tensor, TchError> {
    match kind {
        ValueLoss::Squared => values.f_sub(goals)?.f_square()?.f_mul_scalar(0.5),
        ValueLoss::Huber => values.f_huber_loss(goals, Reduction::None, 1.0),
    }
}

impl Objective {
    /// Of one minibatch.
    pub fn losses(&self, output: &Output, batch: &Minibatch) -> Result<Losses, TchError> {
        let clip = self.clip_coef;
        let log_ratio = output.distribution.log_prob(&batch.actions)?.f_sub(&batch.log_probs)?;
        let ratio = log_ratio.f_exp()?;
        let gain = batch.advantages.f_mul(&ratio)?;
        let clipped_gain = batch.advantages.f_mul(&ratio.f_clamp(1.0 - clip, 1.0 + clip)?)?;
        let policy = batch.mean(&gain.f_minimum(&clipped_gain)?)?.f_neg()?;
        let error = value_error(self.value_loss, &output.values, &batch.returns)?;
        let error = if self.clip_vloss {
            let moved = output.values.f_sub(&batch.values)?.f_clamp(-clip, clip)?;
            error.f_maximum(&value_error(self.value_loss, &batch.values.f_add(&moved)?, &batch.returns)?)?
        } else {
            error
        };
        let value = batch.mean(&error)?;
        let entropy = batch.mean(&output.distribution.entropy()?)?;
        let total =
            policy.f_sub(&entropy.f_mul_scalar(self.ent_coef)?)?.f_add(&value.f_mul_scalar(self.vf_coef)?)?;
        Ok(Losses { total, policy, value, entropy, log_ratio })
    }
}

/// What is noted on the way: losses of the last minibatch, as CleanRL logs them, and the share of clipped ratios in all.
#[derive(Default)]
pub struct Noted {
    last: Option<Losses>,
    clipped: Option<Tensor>,
    count: u64,
}

impl Noted {
    /// Notes a minibatch; nothing is waited for (PPO-2).
    pub fn note(&mut self, losses: Losses, clip: f64) -> Result<(), TchError> {
        let share = tch::no_grad(|| {
            let apart = losses.log_ratio.f_exp()?.f_sub_scalar(1.0)?.f_abs()?;
            apart.f_gt(clip)?.f_to_kind(Kind::Float)?.f_mean(None::<Kind>)
        })?;
        self.clipped = Some(match self.clipped.take() {
            Some(sum) => sum.f_add(&share)?,
            None => share,
        });
        self.last = Some(losses);
        self.count += 1;
        Ok(())
    }

    /// Mean of ratio - 1 - log ratio (Schulman's low-variance estimate) over the last minibatch.
    pub fn approx_kl(&self) -> Result<f64, TchError> {
        let Some(last) = &self.last else { return Ok(0.0) };
        let log_ratio = last.log_ratio.f_detach()?;
        log_ratio.f_expm1()?.f_sub(&log_ratio)?.f_mean(None::<Kind>)?.f_double_value(&[])
    }

    /// CleanRL's names, in a fixed order.
    pub fn losses(&self) -> Result<Vec<(&'static str, f64)>, TchError> {
        let of = |pick: fn(&Losses) -> &Tensor| match &self.last {
            Some(last) => pick(last).f_double_value(&[]),
            None => Ok(f64::NAN),
        };
        let old_kl = match &self.last {
            Some(last) => -last.log_ratio.f_detach()?.f_mean(None::<Kind>)?.f_double_value(&[])?,
            None => f64::NAN,
        };
        let clipped = match &self.clipped {
            Some(sum) => sum.f_double_value(&[])? / self.count as f64,
            None => f64::NAN,
        };
        Ok(vec![
            ("losses/value_loss", of(|losses| &losses.value)?),
            ("losses/policy_loss", of(|losses| &losses.policy)?),
            ("losses/entropy", of(|losses| &losses.entropy)?),
            ("losses/old_approx_kl", old_kl),
            ("losses/approx_kl", self.approx_kl()?),
            ("losses/clipfrac", clipped),
        ])
    }
}

#[cfg(test)]
#[path = "ppo_tests.rs"]
mod tests;
