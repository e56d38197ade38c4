//! Phasic policy gradient (Cobbe et al. 2021): PPO for `policy_iterations` iterations, then an auxiliary
//! phase that distils the returns into the policy's own layers while it holds the policy where it is. Details
//! as CleanRL's ppg_procgen.py; ALF's are settings.
//!
//! The phases train different parameters: the auxiliary head takes no part in the policy phase, and the
//! critic does not reach shared layers in it (unless `critic_trains_shared`). The flat gradient buffer has
//! the same layout in both, with zeros where nothing was learnt, so all ranks exchange the same sizes in both
//! phases.
//!
//! Invariants:
//! - Phases follow from counters that are equal on all ranks.
//! - The auxiliary phase goes over exactly the rollouts of the policy phase before it. They are not
//!   part of a checkpoint: a resumed run begins a new policy phase.

use super::batch::{Batches, shuffle};
use super::on_policy::{Objective, OnPolicy, OnPolicyAlgorithm};
use super::ppo_loss::{LossStats, PpoLoss, value_error};
use super::{BuildContext, IterationStats, Stat, StepContext};
use crate::distributed::upload::{upload, upload_slice};
use crate::error::TrainerError;
use crate::inject;
use crate::policy::actor_critic::Pass;
use crate::policy::distribution::Distribution;
use crate::policy::{acting, trunk};
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_types::learn::{NormAdv, Ppg as Settings};
use tch::{Device, Kind, TchError, Tensor};

/// The rollouts of a policy phase, on the device, one after the other: observations `[rows, ...]` as
/// [`trunk::to_rows`] lays them out, the rest `[rows]`. The first rollout allocates the memory of the whole
/// phase.
struct AuxRollouts {
    observations: Tensor,
    returns: Tensor,
    weights: Tensor,
    rollouts: usize,
}
pub struct Ppg {
    settings: Settings,
    loss: PpoLoss,
    batches: Batches,
    stored: Option<AuxRollouts>,
    envs: usize,
    steps: usize,
}

impl Ppg {
    /// Collective, as [`super::make`].
    pub fn new(
        settings: &Settings,
        build: &BuildContext<'_>,
    ) -> Result<OnPolicyAlgorithm<Ppg>, TrainerError> {
        let minibatch = build.sizes.local_batch / settings.num_minibatches.max(1) as usize;
        Ok(OnPolicyAlgorithm {
            on: OnPolicy::new(settings.into(), build)?,
            objective: Ppg {
                // Advantages are normalised over the whole rollout, before it is cut.
                batches: Batches::new(NormAdv::Off, minibatch, build.device),
                settings: settings.clone(),
                loss: settings.into(),
                stored: None,
                envs: build.sizes.local_envs as usize,
                steps: build.sizes.num_steps as usize,
            },
        })
    }

    fn policy_phase(
        &mut self,
        on: &mut OnPolicy,
        ctx: &StepContext<'_>,
        stats: &mut IterationStats,
        random: &mut Generator,
    ) -> Result<LossStats, TrainerError> {
        let normalise = NormAdv::of(self.settings.norm_adv, self.settings.norm_adv_over);
        let advantages =
            self.batches.normalised(normalise, &on.advantages, &on.rollout().weights, ctx.group)?;
        self.batches.load(on.rollout(), &on.returns)?;
        let pass = Pass { detached: !self.settings.critic_trains_shared, aux: false };
        let mut losses = LossStats::default();
        for _ in 0..self.settings.update_epochs {
            self.batches.begin_epoch(&advantages, &on.rollout().weights, random, ctx.group)?;
            for k in 0..self.batches.count() {
                let batch = self.batches.get(k)?;
                let output = on.policy.forward(&batch.observations, pass)?;
                let minibatch = self.loss.losses(&output, &batch)?;
                on.update(&minibatch.total, ctx, stats)?;
                losses.add(minibatch, self.settings.clip_coef)?;
            }
        }
        Ok(losses)
    }

    fn keep(&mut self, on: &OnPolicy) -> Result<(), TchError> {
        let rollout = on.rollout();
        let shape: Vec<i64> = rollout.shape.iter().map(|side| *side as i64).collect();
        let column = |values: &[f32]| upload_slice(values, on.device);
        let observations = acting::batch(rollout.observations.view(), rollout.len(), &shape)?;
        // A tensor made from a slice is a copy.
        let observations = trunk::to_rows(&upload(observations, on.device)?)?;
        let stored = match &mut self.stored {
            Some(stored) => stored,
            made => {
                let all = (self.settings.policy_iterations as usize * rollout.len()) as i64;
                let mut whole = observations.size();
                whole[0] = all;
                let column = || Tensor::f_zeros([all], (Kind::Float, on.device));
                made.insert(AuxRollouts {
                    observations: Tensor::f_empty(&whole, (observations.kind(), on.device))?,
                    returns: column()?,
                    weights: column()?,
                    rollouts: 0,
                })
            }
        };
        let (start, len) = ((stored.rollouts * rollout.len()) as i64, rollout.len() as i64);
        stored.observations.f_narrow(0, start, len)?.f_copy_(&observations)?;
        stored.returns.f_narrow(0, start, len)?.f_copy_(&column(&on.returns)?)?;
        stored.weights.f_narrow(0, start, len)?.f_copy_(&column(&rollout.weights)?)?;
        stored.rollouts += 1;
        Ok(())
    }

    /// Learns from all stored rollouts; returns the last auxiliary loss and divergence.
    fn aux_phase(
        &mut self,
        on: &mut OnPolicy,
        ctx: &StepContext<'_>,
        stats: &mut IterationStats,
        random: &mut Generator,
    ) -> Result<[f64; 2], TrainerError> {
        let Some(AuxRollouts { observations, returns, weights, rollouts }) = &self.stored else {
            return Err(TrainerError::failure("an auxiliary phase before the first rollout", ""));
        };
        let pass = Pass { detached: !self.settings.critic_trains_shared, aux: true };
        // A unit is one environment's part of one rollout.
        let mut units: Vec<usize> = (0..rollouts * self.envs).collect();
        let each = (units.len() / self.settings.aux_num_minibatches.max(1) as usize).max(1);
        // The phase must not move the policy away from what it is now. Computed in pieces of a minibatch,
        // because the activations of all images at once would not fit.
        let mut old = Vec::new();
        for rows in observations.f_split((each * self.steps) as i64, 0)? {
            let output = || on.policy.forward(&trunk::from_rows(&rows)?, Pass::PLAIN);
            old.push(tch::no_grad(|| output()?.distribution.saved())?);
        }
        let old = Tensor::f_cat(&old, 0)?;
        let continuous = on.policy.layout().log_std.is_some();
        let mut last = None;
        for _ in 0..self.settings.aux_epochs {
            shuffle(&mut units, random);
            for units in units.chunks_exact(each) {
                let rows = self.rows(units, on.device)?;
                inject::here(inject::Hook::Gather);
                let seen = trunk::from_rows(&observations.f_index_select(0, &rows)?)?;
                let output = on.policy.forward(&seen, pass)?;
                let (goals, weights) = (returns.f_index_select(0, &rows)?, weights.f_index_select(0, &rows)?);
                let mean = |values: &Tensor| values.f_mul(&weights)?.f_mean(None::<Kind>);
                let Some(own) = &output.aux else {
                    return Err(TrainerError::failure("the network has no auxiliary head", ""));
                };
                let kind = self.settings.value_loss;
                let aux = mean(&value_error(kind, own, &goals)?)?;
                let value = mean(&value_error(kind, &output.values, &goals)?)?;
                let old = Distribution::from_saved(&old.f_index_select(0, &rows)?, continuous)?;
                let kl = mean(&old.kl(&output.distribution)?)?;
                let total = aux.f_add(&kl.f_mul_scalar(self.settings.beta_clone)?)?.f_add(&value)?;
                on.update(&total, ctx, stats)?;
                last = Some([aux, kl]);
            }
        }
        match last {
            Some([aux, kl]) => Ok([aux.f_double_value(&[])?, kl.f_double_value(&[])?]),
            None => Ok([f64::NAN; 2]),
        }
    }

    /// Rows of the stored rollouts that belong to these units.
    fn rows(&self, units: &[usize], device: Device) -> Result<Tensor, TchError> {
        let rows: Vec<i64> = units
            .iter()
            .flat_map(|unit| {
                let (rollout, env) = (unit / self.envs, unit % self.envs);
                (0..self.steps).map(move |step| ((rollout * self.steps + step) * self.envs + env) as i64)
            })
            .collect();
        upload_slice(&rows, device)
    }
}

impl Objective for Ppg {
    fn learn(
        &mut self,
        on: &mut OnPolicy,
        ctx: &StepContext<'_>,
        random: &mut Generator,
        stats: &mut IterationStats,
    ) -> Result<(), TrainerError> {
        let rollouts = self.stored.as_ref().map_or(0, |stored| stored.rollouts);
        let aux_due = rollouts + 1 >= self.settings.policy_iterations as usize;
        let product = |epochs: u32, minibatches: u32| u64::from(epochs) * u64::from(minibatches);
        stats.planned = product(self.settings.update_epochs, self.settings.num_minibatches);
        if aux_due {
            stats.planned += product(self.settings.aux_epochs, self.settings.aux_num_minibatches);
        }
        let losses = self.policy_phase(on, ctx, stats, random)?;
        self.keep(on)?;
        let [aux, kl] = if aux_due {
            let last = self.aux_phase(on, ctx, stats, random)?;
            if let Some(stored) = &mut self.stored {
                stored.rollouts = 0;
            }
            last
        } else {
            [f64::NAN; 2]
        };
        stats.losses = losses.stats()?;
        // Most iterations have no value for these.
        stats.losses.extend([Stat::other("losses/aux_value", aux), Stat::other("losses/aux_kl", kl)]);
        Ok(())
    }
}
