//! Proximal policy optimisation (Schulman et al. 2017) with the details of CleanRL's ppo.py and
//! ppo_continuous_action.py, over all ranks.
//!
//! Each rank shuffles its own rollout into minibatches of `local_batch / num_minibatches`; gradients are
//! averaged over the ranks, then clipped, then Adam steps. With equal local sizes the average of the ranks'
//! gradients is the gradient of the mean over all samples, except that advantages are normalised per rank and
//! minibatch, as CleanRL does, unless `norm_adv_over = "world"`.
//!
//! Invariants:
//! - Every rank makes the same number of updates: the target-KL decision uses the KL averaged over all
//!   ranks.
//! - The host waits for the device once per iteration, and once per epoch with a target KL. In an
//!   update it waits for collectives only, and those waits are bounded.

use super::batch::Batches;
use super::native::{Engine, Native, NativeLossStats};
use super::on_policy::{Objective, OnPolicy, OnPolicyAlgorithm};
use super::ppo_loss::{LossStats, PpoLoss};
use super::{BuildContext, IterationStats, StepContext};
use crate::distributed::ReduceOp;
use crate::error::TrainerError;
use crate::policy::actor_critic::Pass;
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_types::learn::{NormAdv, Ppo as Settings};
pub struct Ppo {
    settings: Settings,
    loss: PpoLoss,
    engine: Engine,
}

impl Ppo {
    /// Collective, as [`super::make`].
    pub fn new(
        settings: &Settings,
        build: &BuildContext<'_>,
    ) -> Result<OnPolicyAlgorithm<Ppo>, TrainerError> {
        let minibatch = build.sizes.local_batch / settings.num_minibatches.max(1) as usize;
        let normalise = NormAdv::of(settings.norm_adv, settings.norm_adv_over);
        let on = OnPolicy::new(settings.into(), build)?;
        let engine = Engine::new(on.policy.layout(), build, normalise, minibatch)?;
        let objective = Ppo { engine, settings: settings.clone(), loss: settings.into() };
        Ok(OnPolicyAlgorithm { on, objective })
    }
}

/// The settings and the loss of one [`Ppo::learn`], whichever engine computes it.
struct Epochs<'a> {
    settings: &'a Settings,
    loss: &'a PpoLoss,
}

impl Epochs<'_> {
    fn with_libtorch(
        &self,
        batches: &mut Batches,
        on: &mut OnPolicy,
        ctx: &StepContext<'_>,
        random: &mut Generator,
        stats: &mut IterationStats,
    ) -> Result<(), TrainerError> {
        batches.load(on.rollout(), &on.returns)?;
        let mut losses = LossStats::default();
        for _ in 0..self.settings.update_epochs {
            batches.begin_epoch(&on.advantages, &on.rollout().weights, random, ctx.group)?;
            for k in 0..batches.count() {
                let batch = batches.get(k)?;
                let output = on.policy.forward(&batch.observations, Pass::PLAIN)?;
                let minibatch = self.loss.losses(&output, &batch)?;
                on.update(&minibatch.total, ctx, stats)?;
                losses.add(minibatch, self.settings.clip_coef)?;
            }
            if self.settings.target_kl > 0.0 && self.is_too_far(losses.approx_kl()?, ctx)? {
                break;
            }
        }
        stats.losses = losses.stats()?;
        Ok(())
    }

    fn natively(
        &self,
        native: &mut Native,
        on: &mut OnPolicy,
        ctx: &StepContext<'_>,
        random: &mut Generator,
        stats: &mut IterationStats,
    ) -> Result<(), TrainerError> {
        let mut losses = NativeLossStats::default();
        native.begin();
        for _ in 0..self.settings.update_epochs {
            native.begin_epoch(on.rollout(), &on.advantages, &on.returns, random, ctx.group)?;
            for k in 0..native.count() {
                native.update(k, (self.loss, true), on, ctx, stats, &mut losses)?;
            }
            if self.settings.target_kl > 0.0 && self.is_too_far(losses.approx_kl(), ctx)? {
                break;
            }
        }
        stats.losses = losses.stats();
        Ok(())
    }

    /// The KL estimate, averaged over all ranks, is over its bound.
    fn is_too_far(&self, kl: f64, ctx: &StepContext<'_>) -> Result<bool, TrainerError> {
        let mut kl = [kl];
        ctx.group.all_reduce_f64(&mut kl, ReduceOp::Avg, "target_kl")?;
        Ok(kl[0] > self.settings.target_kl)
    }
}

impl Objective for Ppo {
    fn learn(
        &mut self,
        on: &mut OnPolicy,
        ctx: &StepContext<'_>,
        random: &mut Generator,
        stats: &mut IterationStats,
    ) -> Result<(), TrainerError> {
        let Ppo { settings, loss, engine } = self;
        stats.planned = u64::from(settings.update_epochs) * u64::from(settings.num_minibatches);
        let epochs = Epochs { settings, loss };
        match engine {
            Engine::Libtorch(batches) => epochs.with_libtorch(batches, on, ctx, random, stats),
            Engine::Native(native) => epochs.natively(native, on, ctx, random, stats),
        }
    }
}

#[cfg(test)]
#[path = "ppo_tests.rs"]
mod tests;
