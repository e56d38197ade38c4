//! Phasic policy gradient (Cobbe et al. 2021): PPO for `policy_iterations` iterations, then an auxiliary
//! phase that distils the returns into the policy's own layers while it holds the policy where it is. Details
//! as CleanRL's ppg_procgen.py; ALF's are settings.
//!
//! The phases train different parameters: the auxiliary head takes no part in the policy phase, and the
//! critic does not reach shared layers in it (unless `critic_trains_shared`). The flat gradient buffer has
//! the same layout in both, with zeros where nothing was learnt, so all ranks exchange the same sizes in both
//! phases. The optimiser leaves a head without a gradient alone (ADAM-2).
//!
//! Invariants:
//! - PPG-1: an auxiliary phase follows every iteration whose number is a multiple of `policy_iterations`,
//!   however often the run was resumed.
//! - PPG-2: the auxiliary phase goes over the rollouts of the policy phase before it. They are part of a
//!   checkpoint with `checkpoint.replay` only: without it, a run that was resumed within a phase learns
//!   from those since then, and says so.

use super::aux_rollouts::{self, AuxRollouts};
use super::batch::{Batches, shuffle};
use super::ledger;
use super::on_policy::{Objective, OnPolicy, OnPolicyAlgorithm};
use super::ppo_loss::{LossStats, PpoLoss, value_error};
use super::{BuildContext, IterationStats, Stat, StepContext};
use crate::distributed::upload::upload_slice;
use crate::error::TrainerError;
use crate::events::say;
use crate::inject;
use crate::policy::actor_critic::Pass;
use crate::policy::distribution::Distribution;
use crate::policy::trunk::Rows;
use crate::replay::{ReplayMark, replace_shard, shard_path};
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_types::learn::{NormAdv, Ppg as Settings};
use std::ops::ControlFlow;
use std::path::Path;
use tch::{Device, Kind, TchError, Tensor};

/// The objective of phasic policy gradient, with its auxiliary phase.
pub struct Ppg {
    settings: Settings,
    loss: PpoLoss,
    batches: Batches,
    rows: Rows,
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
        let rows = Rows::of(&build.experiment.policy);
        Ok(OnPolicyAlgorithm {
            on: OnPolicy::new(settings.into(), build)?,
            objective: Ppg {
                // Advantages are normalised over the whole rollout, before it is cut.
                batches: Batches::new(NormAdv::Off, minibatch, build.device, rows),
                rows,
                settings: settings.clone(),
                loss: settings.into(),
                stored: None,
                envs: build.sizes.local_envs as usize,
                steps: build.sizes.num_steps as usize,
            },
        })
    }

    /// Iterations from one auxiliary phase to the next.
    fn phase(&self) -> u64 {
        u64::from(self.settings.policy_iterations.max(1))
    }

    /// An auxiliary phase follows this iteration (PPG-1).
    fn ends_phase(&self, iteration: u64) -> bool {
        (iteration + 1).is_multiple_of(self.phase())
    }

    fn policy_phase(
        &mut self,
        on: &mut OnPolicy,
        ctx: &StepContext<'_>,
        stats: &mut IterationStats,
        random: &mut Generator,
    ) -> Result<ControlFlow<(), LossStats>, TrainerError> {
        let normalise = NormAdv::of(self.settings.norm_adv, self.settings.norm_adv_over);
        let advantages =
            self.batches.normalised(normalise, &on.advantages, &on.rollout().weights, ctx.group)?;
        self.batches.load(on.rollout(), &on.returns, on.seen())?;
        let pass = Pass { detached: !self.settings.critic_trains_shared, aux: false };
        let mut losses = LossStats::default();
        for _ in 0..self.settings.update_epochs {
            self.batches.begin_epoch(&advantages, &on.rollout().weights, random, ctx.group)?;
            for k in 0..self.batches.count() {
                let batch = self.batches.get(k)?;
                let output = on.policy.forward(&batch.observations, pass)?;
                let minibatch = self.loss.losses(&output, &batch)?;
                if on.update((&minibatch.total, false), ctx, stats)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                losses.add(&minibatch, self.settings.clip_coef)?;
                losses.count();
            }
        }
        Ok(ControlFlow::Continue(losses))
    }

    fn keep(&mut self, on: &OnPolicy) -> Result<(), TchError> {
        let rollout = on.rollout();
        let observations = aux_rollouts::observations(rollout, on.seen(), (on.device, self.rows))?;
        let most = self.phase() as usize;
        let stored = match &mut self.stored {
            Some(stored) => stored,
            made => made.insert(AuxRollouts::new(&observations, most)?),
        };
        stored.add(&observations, &on.returns, &rollout.weights)
    }

    /// Learns from all stored rollouts; returns the last auxiliary loss and divergence.
    fn aux_phase(
        &mut self,
        on: &mut OnPolicy,
        ctx: &StepContext<'_>,
        stats: &mut IterationStats,
        random: &mut Generator,
    ) -> Result<ControlFlow<(), [f64; 2]>, TrainerError> {
        let Some(AuxRollouts { observations, returns, weights, rollouts }) = &self.stored else {
            return Err(TrainerError::failure("an auxiliary phase before the first rollout", ""));
        };
        let filled = (rollouts * self.envs * self.steps) as i64;
        let (observations, returns) = (observations.f_narrow(0, 0, filled)?, returns.f_narrow(0, 0, filled)?);
        let weights = weights.f_narrow(0, 0, filled)?;
        let pass = Pass { detached: !self.settings.critic_trains_shared, aux: true };
        // A unit is one environment's part of one rollout.
        let mut units: Vec<usize> = (0..rollouts * self.envs).collect();
        let each = (units.len() / self.settings.aux_num_minibatches.max(1) as usize).max(1);
        // The phase must not move the policy away from what it is now. Computed in pieces of a minibatch,
        // because the activations of all images at once would not fit.
        let mut old = Vec::new();
        for rows in observations.f_split((each * self.steps) as i64, 0)? {
            let output = || on.policy.forward(&self.rows.from(&rows)?, Pass::PLAIN);
            old.push(tch::no_grad(|| output()?.distribution.saved())?);
        }
        let old = Tensor::f_cat(&old, 0)?;
        let continuous = on.policy.layout().log_std.is_some();
        let mut last = None;
        for _ in 0..self.settings.aux_epochs {
            shuffle(&mut units, random);
            for units in units.chunks_exact(each).take(self.settings.aux_num_minibatches as usize) {
                let rows = self.rows(units, on.device)?;
                inject::here(inject::Hook::Gather);
                let seen = self.rows.from(&observations.f_index_select(0, &rows)?)?;
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
                if on.update((&total, true), ctx, stats)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                last = Some([aux, kl]);
            }
        }
        match last {
            Some(last) => {
                ctx.group.settle()?;
                let numbers = ledger::numbers(&last)?;
                Ok(ControlFlow::Continue([numbers[0], numbers[1]]))
            }
            None => Ok(ControlFlow::Continue([f64::NAN; 2])),
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
    fn is_long(&self, iteration: u64) -> bool {
        self.ends_phase(iteration)
    }

    fn save_own(
        &self,
        on: &OnPolicy,
        folder: &Path,
        mark: &ReplayMark,
        keep: Option<u64>,
        moved: &mut dyn FnMut(u64, u64),
    ) -> Result<(), TrainerError> {
        let like = aux_rollouts::observations(on.rollout(), None, (on.device, self.rows))?;
        // One may be of an iteration that was left.
        let count = self.stored.as_ref().map_or(0, |stored| stored.rollouts);
        let count = count.min((mark.train_iter % self.phase()) as usize);
        replace_shard(folder, mark, keep, |path| {
            aux_rollouts::save(self.stored.as_ref(), (&like, count), mark, path, moved)
        })
    }

    fn load_own(&mut self, on: &OnPolicy, folder: &Path, mark: &ReplayMark) -> Result<(), String> {
        let path = shard_path(folder, mark);
        let count = (mark.train_iter % self.phase()) as usize;
        let like = aux_rollouts::observations(on.rollout(), None, (on.device, self.rows))
            .map_err(|e| e.to_string())?;
        let loaded = aux_rollouts::load(&like, (count, self.phase() as usize), mark, &path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        self.stored = Some(loaded);
        Ok(())
    }

    fn drop_own(&mut self) {
        self.stored = None;
    }

    fn learn(
        &mut self,
        on: &mut OnPolicy,
        ctx: &StepContext<'_>,
        random: &mut Generator,
        stats: &mut IterationStats,
    ) -> Result<ControlFlow<()>, TrainerError> {
        let (phase, aux_due) = (self.phase(), self.ends_phase(ctx.iteration));
        let product = |epochs: u32, minibatches: u32| u64::from(epochs) * u64::from(minibatches);
        stats.planned = product(self.settings.update_epochs, self.settings.num_minibatches);
        if aux_due {
            stats.planned += product(self.settings.aux_epochs, self.settings.aux_num_minibatches);
        }
        let ControlFlow::Continue(losses) = self.policy_phase(on, ctx, stats, random)? else {
            return Ok(ControlFlow::Break(()));
        };
        self.keep(on)?;
        let [aux, kl] = if aux_due {
            let rollouts = self.stored.as_ref().map_or(0, |stored| stored.rollouts) as u64;
            if rollouts < phase && ctx.group.rank() == 0 {
                say(&format!(
                    "auxiliary phase after iteration {}: on {rollouts} of {phase} rollouts, those since the restart",
                    ctx.iteration + 1
                ));
            }
            let ControlFlow::Continue(last) = self.aux_phase(on, ctx, stats, random)? else {
                return Ok(ControlFlow::Break(()));
            };
            if let Some(stored) = &mut self.stored {
                stored.rollouts = 0;
            }
            last
        } else {
            [f64::NAN; 2]
        };
        ctx.group.settle()?;
        stats.losses = losses.stats()?;
        // Most iterations have no value for these.
        stats.losses.extend([Stat::other("losses/aux_value", aux), Stat::other("losses/aux_kl", kl)]);
        Ok(ControlFlow::Continue(()))
    }
}
