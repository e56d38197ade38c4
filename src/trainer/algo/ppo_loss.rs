//! The PPO loss, shared with the policy phase of PPG, and its statistics.
//!
//! [`super::cpu_kernels`] computes the same loss without libtorch.

use super::batch::Minibatch;
use super::{ScalarStat, device_metrics};
use crate::policy::actor_critic::PolicyOutput;
use rankdeck_types::learn::{PpgConfig, PpoConfig, ValueLoss};
use tch::{Kind, Reduction, TchError, Tensor};

/// The coefficients of the loss.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PpoLoss {
    /// Clip range of the probability ratio.
    pub(crate) clip_coef: f64,
    /// Clip the value loss with the same range.
    pub(crate) clip_vloss: bool,
    /// Loss of the value estimates.
    pub value_loss: ValueLoss,
    /// Weight of the entropy bonus.
    pub(crate) ent_coef: f64,
    /// Weight of the value loss.
    pub vf_coef: f64,
}

/// The loss of one minibatch (`total`, with gradients) and its terms.
pub(crate) struct Losses {
    /// What is minimized.
    pub total: Tensor,
    pub(super) policy: Tensor,
    pub(super) value: Tensor,
    pub(super) entropy: Tensor,
    pub(super) log_ratio: Tensor,
}

/// Half the squared error, or Huber's loss, of each value.
pub(crate) fn value_error(kind: ValueLoss, values: &Tensor, goals: &Tensor) -> Result<Tensor, TchError> {
    match kind {
        ValueLoss::Squared => values.f_sub(goals)?.f_square()?.f_mul_scalar(0.5),
        ValueLoss::Huber => values.f_huber_loss(goals, Reduction::None, 1.0),
    }
}

impl From<&PpoConfig> for PpoLoss {
    fn from(settings: &PpoConfig) -> PpoLoss {
        let PpoConfig { clip_coef, clip_vloss, value_loss, ent_coef, vf_coef, .. } = *settings;
        PpoLoss { clip_coef, clip_vloss, value_loss, ent_coef, vf_coef }
    }
}

impl From<&PpgConfig> for PpoLoss {
    fn from(settings: &PpgConfig) -> PpoLoss {
        let PpgConfig { clip_coef, clip_vloss, value_loss, ent_coef, vf_coef, .. } = *settings;
        PpoLoss { clip_coef, clip_vloss, value_loss, ent_coef, vf_coef }
    }
}

impl PpoLoss {
    /// The loss of one minibatch.
    pub(crate) fn losses(&self, output: &PolicyOutput, batch: &Minibatch) -> Result<Losses, TchError> {
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

/// What CleanRL logs: the losses of the last minibatch, and the share of clipped ratios in all minibatches.
#[derive(Default)]
pub(crate) struct LossStats {
    last: Option<Losses>,
    /// Sum of the clipped shares.
    clipped: Option<Tensor>,
    count: u64,
}

impl LossStats {
    /// Forgets the minibatches so far.
    pub(crate) fn restart(&mut self) -> Result<(), TchError> {
        self.count = 0;
        if let Some(sum) = &mut self.clipped {
            let _ = sum.f_zero_()?;
        }
        Ok(())
    }

    /// Counts a minibatch that [`LossStats::add`] takes in.
    pub(crate) fn count(&mut self) {
        self.count += 1;
    }

    /// Takes in a minibatch without waiting for the device. The same work each time: what it leaves lies
    /// where it lay before when it is replayed.
    pub(crate) fn add(&mut self, losses: &Losses, clip: f64) -> Result<(), TchError> {
        let share = tch::no_grad(|| {
            let apart = losses.log_ratio.f_exp()?.f_sub_scalar(1.0)?.f_abs()?;
            apart.f_gt(clip)?.f_to_kind(Kind::Float)?.f_mean(None::<Kind>)
        })?;
        if self.clipped.is_none() {
            self.clipped = Some(share.f_zeros_like()?);
        }
        if let Some(sum) = &mut self.clipped {
            let _ = sum.f_add_(&share)?;
        }
        let Losses { total, policy, value, entropy, log_ratio } = losses;
        let [total, policy, value, entropy, log_ratio] =
            [total, policy, value, entropy, log_ratio].map(Tensor::f_detach);
        self.last = Some(Losses {
            total: total?,
            policy: policy?,
            value: value?,
            entropy: entropy?,
            log_ratio: log_ratio?,
        });
        Ok(())
    }

    /// Mean of ratio - 1 - log ratio (Schulman's low-variance estimate) over the last minibatch.
    pub(crate) fn approx_kl(&self) -> Result<f64, TchError> {
        let Some(last) = &self.last else { return Ok(0.0) };
        let log_ratio = last.log_ratio.f_detach()?;
        log_ratio.f_expm1()?.f_sub(&log_ratio)?.f_mean(None::<Kind>)?.f_double_value(&[])
    }

    /// CleanRL's names, in a fixed order.
    pub(crate) fn stats(&self) -> Result<Vec<ScalarStat>, TchError> {
        let values = match (&self.last, &self.clipped) {
            (Some(last), Some(clipped)) if self.count > 0 => {
                let log_ratio = last.log_ratio.f_detach()?;
                let old_kl = log_ratio.f_mean(None::<Kind>)?;
                let kl = log_ratio.f_expm1()?.f_sub(&log_ratio)?.f_mean(None::<Kind>)?;
                let terms = [&last.value, &last.policy, &last.entropy, &old_kl, &kl, clipped];
                device_metrics::numbers(&terms.map(Tensor::shallow_clone))?
            }
            _ => vec![f64::NAN; 6],
        };
        let [value, policy, entropy, old_kl, kl, clipped] = values[..] else { return Ok(Vec::new()) };
        Ok(vec![
            ScalarStat::loss("losses/value_loss", value),
            ScalarStat::loss("losses/policy_loss", policy),
            ScalarStat::other("losses/entropy", entropy),
            ScalarStat::other("losses/old_approx_kl", -old_kl),
            ScalarStat::other("losses/approx_kl", kl),
            ScalarStat::other("losses/clipfrac", clipped / self.count as f64),
        ])
    }
}
