//! Synchronous advantage actor-critic (Mnih et al. 2016, without the asynchrony): the plain policy gradient
//! with a critic.
//!
//! Every iteration makes one update on the whole rollout of all ranks: minus the mean of log-probability
//! times advantage, plus the value loss, minus the entropy bonus. Unless advantages are normalized per rank,
//! W ranks learn what one rank would.

use super::cpu_kernels::{Engine, KernelLossStats};
use super::on_policy::{Objective, OnPolicyAlgorithm, OnPolicyLearner};
use super::ppo_loss::{PpoLoss, value_error};
use super::{BuildContext, IterationStats, ScalarStat, StepContext, device_metrics};
use crate::error::TrainerError;
use crate::policy::actor_critic::ForwardOptions;
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_types::learn::{A2cConfig as Settings, NormAdv};
use std::ops::ControlFlow;

/// The loss of advantage actor-critic, on rollouts.
pub(crate) struct A2cObjective {
    settings: Settings,
    pub(super) engine: Engine,
}

impl A2cObjective {
    /// Collective, as [`super::make`].
    pub(crate) fn new(
        settings: &Settings,
        build: &BuildContext<'_>,
    ) -> Result<OnPolicyAlgorithm<A2cObjective>, TrainerError> {
        let normalize = NormAdv::from_keys(settings.norm_adv, settings.norm_adv_over);
        let on = OnPolicyLearner::new(settings.into(), build)?;
        let engine = Engine::new(on.policy.layout(), build, normalize, build.sizes.local_batch)?;
        Ok(OnPolicyAlgorithm { on, objective: A2cObjective { engine, settings: settings.clone() } })
    }
}

impl Objective for A2cObjective {
    fn learn(
        &mut self,
        on: &mut OnPolicyLearner,
        ctx: &StepContext<'_>,
        random: &mut Generator,
        stats: &mut IterationStats,
    ) -> Result<ControlFlow<()>, TrainerError> {
        stats.planned = 1;
        let batches = match &mut self.engine {
            Engine::Libtorch(batches) => batches,
            Engine::CpuKernels(native) => {
                let Settings { value_loss, ent_coef, vf_coef, .. } = self.settings;
                let loss = PpoLoss { clip_coef: 0.0, clip_vloss: false, value_loss, ent_coef, vf_coef };
                let mut losses = KernelLossStats::default();
                native.start_iteration(ctx.iteration);
                native.start_epoch(on.rollout(), &on.advantages, &on.returns, random, ctx.group)?;
                let flow = native.update(0, (&loss, false), on, ctx, stats, &mut losses)?;
                stats.losses = native.losses(losses, ctx.group)?.terms().to_vec();
                return Ok(flow);
            }
        };
        batches.load(on.rollout(), &on.returns, on.seen())?;
        batches.start_epoch(&on.advantages, &on.rollout().weights, random, ctx.group)?;
        let batch = batches.get(0)?;
        let (output, _) = on.policy.forward_split(batch.input(), ForwardOptions::PLAIN, false)?;
        let log_probs = output.distribution.log_prob(&batch.actions)?;
        let policy = batch.mean(&log_probs.f_mul(&batch.advantages)?)?.f_neg()?;
        let value = batch.mean(&value_error(self.settings.value_loss, &output.values, &batch.returns)?)?;
        let entropy = batch.mean(&output.distribution.entropy()?)?;
        let total = policy
            .f_sub(&entropy.f_mul_scalar(self.settings.ent_coef)?)?
            .f_add(&value.f_mul_scalar(self.settings.vf_coef)?)?;
        let flow = on.update((&total, false), ctx, stats)?;
        ctx.group.settle()?;
        let numbers = device_metrics::numbers(&[value, policy, entropy])?;
        stats.losses = vec![
            ScalarStat::loss("losses/value_loss", numbers[0]),
            ScalarStat::loss("losses/policy_loss", numbers[1]),
            ScalarStat::other("losses/entropy", numbers[2]),
        ];
        Ok(flow)
    }
}
