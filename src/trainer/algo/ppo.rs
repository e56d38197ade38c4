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
//! - The host waits for the device at the end of an iteration, and of an epoch with a target KL, and not in
//!   an update. Before it waits for the device, it waits for the collectives that it began, which is bounded.

use super::batch::Batches;
use super::ledger::Ledger;
use super::native::{Engine, Native, NativeLossStats};
use super::on_policy::{Objective, OnPolicy, OnPolicyAlgorithm};
use super::ppo_loss::{LossStats, PpoLoss};
use super::recording::{GraphWork, Recording, WorkCut};
use super::{BuildContext, IterationStats, StepContext};
use crate::distributed::{Part, ProcessGroup, ReduceOp};
use crate::error::TrainerError;
use crate::policy::actor_critic::Pass;
use crate::stop_points::Work;
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_types::learn::{NormAdv, Ppo as Settings};
use std::ops::ControlFlow;

/// The objective of proximal policy optimisation.
pub struct Ppo {
    settings: Settings,
    loss: PpoLoss,
    engine: Engine,
    recording: Recording,
    stats: LossStats,
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
        let mut engine = Engine::new(on.policy.layout(), build, normalise, minibatch)?;
        let recording = Recording::new("an update", build.device, build.experiment.policy.cuda_graphs);
        if let Engine::Libtorch(batches) = &mut engine
            && recording.is_wanted()
        {
            batches.in_turn()?;
        }
        let objective = Ppo {
            engine,
            settings: settings.clone(),
            loss: settings.into(),
            recording,
            stats: LossStats::default(),
        };
        Ok(OnPolicyAlgorithm { on, objective })
    }
}

/// An update by libtorch.
struct Update<'a> {
    batches: &'a Batches,
    /// The number of the minibatch, where they do not come in turn.
    k: usize,
    on: &'a mut OnPolicy,
    loss: &'a PpoLoss,
    clip: f64,
    stats: &'a mut LossStats,
}

impl GraphWork for Update<'_> {
    fn work(&mut self, cut: &mut WorkCut<'_>) -> Result<(), TrainerError> {
        let Update { batches, on, .. } = self;
        let batch = if batches.are_in_turn() { batches.next()? } else { batches.get(self.k)? };
        let (output, seam) = on.policy.forward_cut(&batch.observations, Pass::PLAIN, on.parts)?;
        let minibatch = self.loss.losses(&output, &batch)?;
        on.backward(&minibatch.total)?;
        on.reduce_in(seam, cut)?;
        on.step()?;
        Ok(self.stats.add(&minibatch, self.clip)?)
    }

    fn reduce(&mut self, _which: usize, part: Part, group: &ProcessGroup) -> Result<(), TrainerError> {
        self.on.reduce(part, group)
    }

    fn ledger(&mut self) -> &mut Ledger {
        self.on.ledger()
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
        (batches, recording, losses): (&mut Batches, &mut Recording, &mut LossStats),
        on: &mut OnPolicy,
        ctx: &StepContext<'_>,
        random: &mut Generator,
        stats: &mut IterationStats,
    ) -> Result<ControlFlow<()>, TrainerError> {
        batches.load(on.rollout(), &on.returns, on.seen())?;
        losses.restart()?;
        for _ in 0..self.settings.update_epochs {
            batches.begin_epoch(&on.advantages, &on.rollout().weights, random, ctx.group)?;
            for k in 0..batches.count() {
                on.begin_step(stats.learning_rate)?;
                let clip = self.settings.clip_coef;
                let mut update = Update { batches, k, on, loss: self.loss, clip, stats: losses };
                recording.run(&mut update, batches.place(), ctx.group)?;
                losses.count();
                if on.updated(ctx, stats, Work::Update)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            if self.settings.target_kl > 0.0 {
                ctx.group.settle()?;
            }
            if self.settings.target_kl > 0.0 && self.is_too_far(losses.approx_kl()?, ctx)? {
                break;
            }
        }
        ctx.group.settle()?;
        stats.losses = losses.stats()?;
        Ok(ControlFlow::Continue(()))
    }

    fn natively(
        &self,
        native: &mut Native,
        on: &mut OnPolicy,
        ctx: &StepContext<'_>,
        random: &mut Generator,
        stats: &mut IterationStats,
    ) -> Result<ControlFlow<()>, TrainerError> {
        let mut losses = NativeLossStats::default();
        native.begin();
        for _ in 0..self.settings.update_epochs {
            native.begin_epoch(on.rollout(), &on.advantages, &on.returns, random, ctx.group)?;
            for k in 0..native.count() {
                if native.update(k, (self.loss, true), on, ctx, stats, &mut losses)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            if self.settings.target_kl > 0.0 && self.is_too_far(losses.approx_kl(), ctx)? {
                break;
            }
        }
        stats.losses = losses.stats();
        Ok(ControlFlow::Continue(()))
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
    ) -> Result<ControlFlow<()>, TrainerError> {
        let Ppo { settings, loss, engine, recording, stats: losses } = self;
        stats.planned = u64::from(settings.update_epochs) * u64::from(settings.num_minibatches);
        let epochs = Epochs { settings, loss };
        match engine {
            Engine::Libtorch(batches) => {
                epochs.with_libtorch((batches, recording, losses), on, ctx, random, stats)
            }
            Engine::Native(native) => epochs.natively(native, on, ctx, random, stats),
        }
    }
}

#[cfg(test)]
#[path = "ppo_tests.rs"]
mod tests;
