//! Phasic policy gradient (Cobbe et al. 2021).
//!
//! PPO for `policy_iterations` iterations, then an auxiliary phase that distills the returns into the
//! policy's own layers while it keeps the policy close. Details follow CleanRL's ppg_procgen.py; ALF's are
//! settings.
//!
//! The phases train different parameters: the auxiliary head takes no part in the policy phase, and the
//! critic does not reach shared layers in it (unless `critic_trains_shared`). The flat gradient buffer has
//! the same layout in both, with zeros where nothing was learned, so all ranks exchange the same sizes in both
//! phases. The optimizer leaves a head without a gradient alone (ADAM-2).
//!
//! With `checkpoint.replay` the rollouts of the phase are the rank's shard of a checkpoint
//! ([`crate::replay`]): the magic, the length of a JSON head, the head, observations, returns, weights and masks
//! of each rollout in turn, and a checksum of everything before it. Nothing in a file is trusted: it must
//! be of exactly this checkpoint and have the sizes that this run expects.
//!
//! Invariants:
//! - PPG-1: an auxiliary phase follows every iteration whose number is a multiple of `policy_iterations`,
//!   however often the run was resumed.
//! - PPG-2: the auxiliary phase goes over the rollouts of the policy phase before it. They are part of a
//!   checkpoint with `checkpoint.replay` only: without it, a run that was resumed within a phase learns
//!   from those since then, and logs that.

use super::batch::{Batches, shuffle};
use super::on_policy::{Objective, OnPolicyAlgorithm, OnPolicyLearner};
use super::ppo_loss::{LossStats, PpoLoss, value_error};
use super::{BuildContext, IterationStats, ScalarStat, StepContext, device_metrics};
use crate::collect::rollout::Rollout;
use crate::distributed::memory::{upload, upload_slice};
use crate::error::TrainerError;
use crate::inject;
use crate::policy::acting;
use crate::policy::actor_critic::ForwardOptions;
use crate::policy::distribution::Distribution;
use crate::policy::trunk::Rows;
use crate::replay::{
    ReplayMark, ShardError, ShardReader, ShardWriter, replace_shard, shard_path, write_shard,
};
use crate::support::events::print_line;
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_types::learn::{NormAdv, PpgConfig as Settings};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufReader, Read};
use std::ops::ControlFlow;
use std::path::Path;
use tch::{Device, Kind, TchError, Tensor};

/// The objective of phasic policy gradient, with its auxiliary phase.
pub(crate) struct PpgObjective {
    settings: Settings,
    loss: PpoLoss,
    batches: Batches,
    rows: Rows,
    stored: Option<AuxRollouts>,
    envs: usize,
    steps: usize,
}

impl PpgObjective {
    /// Collective, as [`super::make`].
    pub(crate) fn new(
        settings: &Settings,
        build: &BuildContext<'_>,
    ) -> Result<OnPolicyAlgorithm<PpgObjective>, TrainerError> {
        let minibatch = build.sizes.local_batch / settings.num_minibatches.max(1) as usize;
        let rows = Rows::of(&build.experiment.policy);
        Ok(OnPolicyAlgorithm {
            on: OnPolicyLearner::new(settings.into(), build)?,
            objective: PpgObjective {
                // Advantages are normalized over the whole rollout, before it is cut.
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
        on: &mut OnPolicyLearner,
        ctx: &StepContext<'_>,
        stats: &mut IterationStats,
        random: &mut Generator,
    ) -> Result<ControlFlow<(), LossStats>, TrainerError> {
        let normalize = NormAdv::from_keys(self.settings.norm_adv, self.settings.norm_adv_over);
        let advantages =
            self.batches.normalized(normalize, &on.advantages, &on.rollout().weights, ctx.group)?;
        self.batches.load(on.rollout(), &on.returns, on.seen())?;
        let pass = ForwardOptions { detached: !self.settings.critic_trains_shared, aux: false };
        let mut losses = LossStats::default();
        for _ in 0..self.settings.update_epochs {
            self.batches.start_epoch(&advantages, &on.rollout().weights, random, ctx.group)?;
            for k in 0..self.batches.count() {
                let batch = self.batches.get(k)?;
                let output = on.policy.forward_masked(&batch.observations, batch.masks.as_ref(), pass)?;
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

    fn keep(&mut self, on: &OnPolicyLearner) -> Result<(), TchError> {
        let rollout = on.rollout();
        let observations = aux_observations(rollout, on.seen(), (on.device, self.rows))?;
        let most = self.phase() as usize;
        let stored = match &mut self.stored {
            Some(stored) => stored,
            made => made.insert(AuxRollouts::new(&observations, choices(rollout), most)?),
        };
        stored.add(&observations, (&on.returns, &rollout.weights), &rollout.masks)
    }

    /// Learns from all stored rollouts; returns the last auxiliary loss and divergence.
    fn aux_phase(
        &mut self,
        on: &mut OnPolicyLearner,
        ctx: &StepContext<'_>,
        stats: &mut IterationStats,
        random: &mut Generator,
    ) -> Result<ControlFlow<(), [f64; 2]>, TrainerError> {
        let Some(AuxRollouts { observations, returns, weights, masks, rollouts }) = &self.stored else {
            return Err(TrainerError::failure("auxiliary phase started before the first rollout", ""));
        };
        let filled = (rollouts * self.envs * self.steps) as i64;
        let (observations, returns) = (observations.f_narrow(0, 0, filled)?, returns.f_narrow(0, 0, filled)?);
        let weights = weights.f_narrow(0, 0, filled)?;
        let masks = masks.as_ref().map(|masks| masks.f_narrow(0, 0, filled)).transpose()?;
        let pass = ForwardOptions { detached: !self.settings.critic_trains_shared, aux: true };
        // A unit is one environment's part of one rollout.
        let mut units: Vec<usize> = (0..rollouts * self.envs).collect();
        let each = (units.len() / self.settings.aux_num_minibatches.max(1) as usize).max(1);
        // The phase must not move the policy away from what it is now. Computed in pieces of a minibatch,
        // because the activations of all images at once would not fit.
        let mut old = Vec::new();
        let piece = (each * self.steps) as i64;
        let mut allowed = match &masks {
            Some(masks) => masks.f_split(piece, 0)?,
            None => Vec::new(),
        }
        .into_iter();
        for rows in observations.f_split(piece, 0)? {
            let masks = allowed.next();
            let output =
                || on.policy.forward_masked(&self.rows.from(&rows)?, masks.as_ref(), ForwardOptions::PLAIN);
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
                let allowed = masks.as_ref().map(|masks| masks.f_index_select(0, &rows)).transpose()?;
                let output = on.policy.forward_masked(&seen, allowed.as_ref(), pass)?;
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
                let numbers = device_metrics::numbers(&last)?;
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

impl Objective for PpgObjective {
    fn is_long(&self, iteration: u64) -> bool {
        self.ends_phase(iteration)
    }

    fn save_own(
        &self,
        on: &OnPolicyLearner,
        folder: &Path,
        mark: &ReplayMark,
        keep: Option<u64>,
        moved: &mut dyn FnMut(u64, u64),
    ) -> Result<(), TrainerError> {
        let like = aux_observations(on.rollout(), None, (on.device, self.rows))?;
        // One may be of an iteration that was left.
        let count = self.stored.as_ref().map_or(0, |stored| stored.rollouts);
        let count = count.min((mark.train_iter % self.phase()) as usize);
        replace_shard(folder, mark, keep, |path| {
            save_rollouts(self.stored.as_ref(), (&like, choices(on.rollout()), count), mark, path, moved)
        })
    }

    fn load_own(&mut self, on: &OnPolicyLearner, folder: &Path, mark: &ReplayMark) -> Result<(), String> {
        let path = shard_path(folder, mark);
        let count = (mark.train_iter % self.phase()) as usize;
        let like = aux_observations(on.rollout(), None, (on.device, self.rows)).map_err(|e| e.to_string())?;
        let sizes = (count, self.phase() as usize);
        let loaded = load_rollouts((&like, choices(on.rollout())), sizes, mark, &path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        self.stored = Some(loaded);
        Ok(())
    }

    fn drop_own(&mut self) {
        self.stored = None;
    }

    fn learn(
        &mut self,
        on: &mut OnPolicyLearner,
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
                print_line(&format!(
                    "auxiliary phase after iteration {}: uses {rollouts} of {phase} rollouts, collected since the restart",
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
        stats
            .losses
            .extend([ScalarStat::other("losses/aux_value", aux), ScalarStat::other("losses/aux_kl", kl)]);
        Ok(ControlFlow::Continue(()))
    }
}

const MAGIC: &[u8; 8] = b"rdrollou";

/// The rollouts of a policy phase, on the device, one after the other: observations `[rows, ...]` as
/// [`Rows`] lays them out, masks `[rows, choices]`, the rest `[rows]`. The first rollout allocates the memory of the whole
/// phase.
struct AuxRollouts {
    observations: Tensor,
    returns: Tensor,
    weights: Tensor,
    masks: Option<Tensor>,
    rollouts: usize,
}

/// Header of a rollout file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct AuxHeader {
    mark: ReplayMark,
    rollouts: usize,
    /// Of one rollout's observations.
    shape: Vec<i64>,
    /// Bytes of one of their elements.
    element: usize,
    /// Bytes of a row's mask; 0 without masks.
    #[serde(default)]
    choices: usize,
}

/// Bytes of the mask of one row of a rollout; 0 without masks.
fn choices(rollout: &Rollout) -> usize {
    rollout.masks.len() / rollout.len().max(1)
}

/// A rollout's observations, in the layout in which they are kept.
fn aux_observations(
    rollout: &Rollout,
    seen: Option<&Tensor>,
    (device, rows): (Device, Rows),
) -> Result<Tensor, TchError> {
    let shape: Vec<i64> = rollout.shape.iter().map(|side| *side as i64).collect();
    let observations = match seen {
        Some(seen) => seen.shallow_clone(),
        // A tensor made from a slice is a copy.
        None => upload(acting::batch(rollout.observations.view(), rollout.len(), &shape)?, device)?,
    };
    rows.to(&observations)
}

impl AuxRollouts {
    /// Room for `most` rollouts with observations like these, and masks of so many choices.
    fn new(like: &Tensor, choices: usize, most: usize) -> Result<AuxRollouts, TchError> {
        let mut whole = like.size();
        let all = most as i64 * whole.first().copied().unwrap_or(0);
        if let Some(rows) = whole.first_mut() {
            *rows = all;
        }
        let column = || Tensor::f_zeros([all], (Kind::Float, like.device()));
        let masks = || Tensor::f_zeros([all, choices as i64], (Kind::Uint8, like.device()));
        Ok(AuxRollouts {
            observations: Tensor::f_empty(&whole, (like.kind(), like.device()))?,
            returns: column()?,
            weights: column()?,
            masks: (choices > 0).then(masks).transpose()?,
            rollouts: 0,
        })
    }

    /// Adds a rollout of as many rows as the others.
    fn add(
        &mut self,
        observations: &Tensor,
        (returns, weights): (&[f32], &[f32]),
        masks: &[u8],
    ) -> Result<(), TchError> {
        let device = self.returns.device();
        let (start, len) = ((self.rollouts * returns.len()) as i64, returns.len() as i64);
        self.observations.f_narrow(0, start, len)?.f_copy_(observations)?;
        self.returns.f_narrow(0, start, len)?.f_copy_(&upload_slice(returns, device)?)?;
        self.weights.f_narrow(0, start, len)?.f_copy_(&upload_slice(weights, device)?)?;
        if let Some(kept) = &self.masks {
            let masks = upload(Tensor::f_from_slice(masks)?.f_view([len, -1])?, device)?;
            kept.f_narrow(0, start, len)?.f_copy_(&masks)?;
        }
        self.rollouts += 1;
        Ok(())
    }
}

fn wrong(text: impl std::fmt::Display) -> ShardError {
    ShardError::Content(text.to_string())
}

fn bytes_of(tensor: &Tensor) -> Result<Vec<u8>, TchError> {
    let here = tensor.f_to_device(Device::Cpu)?.f_contiguous()?;
    let count = here.numel();
    let mut bytes = vec![0; count * here.f_kind()?.elt_size_in_bytes()];
    here.f_copy_data_u8(&mut bytes, count)?;
    Ok(bytes)
}

/// Writes the first `count` rollouts; `like` has the shape and type of one rollout's observations.
fn save_rollouts(
    stored: Option<&AuxRollouts>,
    (like, choices, count): (&Tensor, usize, usize),
    mark: &ReplayMark,
    path: &Path,
    moved: &mut dyn FnMut(u64, u64),
) -> Result<(), ShardError> {
    let head = AuxHeader {
        mark: mark.clone(),
        rollouts: count,
        shape: like.size(),
        element: like.kind().elt_size_in_bytes(),
        choices,
    };
    let head = serde_json::to_vec(&head).map_err(wrong)?;
    let rows = like.size().first().copied().unwrap_or(0);
    write_shard(path, |out: &mut ShardWriter<_>| {
        out.bytes(MAGIC)?;
        out.bytes(&(head.len() as u64).to_le_bytes())?;
        out.bytes(&head)?;
        for (stored, rollout) in stored.into_iter().flat_map(|stored| (0..count).map(move |i| (stored, i))) {
            let parts = [&stored.observations, &stored.returns, &stored.weights];
            for part in parts.into_iter().chain(&stored.masks) {
                let part = part.f_narrow(0, rollout as i64 * rows, rows).map_err(wrong)?;
                out.bytes(&bytes_of(&part).map_err(wrong)?)?;
            }
            moved(rollout as u64 + 1, count as u64);
        }
        Ok(())
    })
}

/// Reads what [`save_rollouts`] wrote for exactly this mark, `count` rollouts like this one; `most` is
/// their room.
fn load_rollouts(
    (like, choices): (&Tensor, usize),
    (count, most): (usize, usize),
    mark: &ReplayMark,
    path: &Path,
) -> Result<AuxRollouts, ShardError> {
    let mut from = ShardReader::new(BufReader::with_capacity(1 << 20, File::open(path)?));
    let head: AuxHeader = from.head(*MAGIC, "rollouts")?;
    if head.mark != *mark {
        return Err(wrong(format!("it belongs to {}, not to {mark}", head.mark)));
    }
    let element = like.kind().elt_size_in_bytes();
    if (head.rollouts, &head.shape, head.element, head.choices) != (count, &like.size(), element, choices) {
        return Err(wrong("its sizes differ from this run's"));
    }
    let rows = like.size().first().copied().unwrap_or(0) as usize;
    let mut stored = AuxRollouts::new(like, choices, most).map_err(wrong)?;
    let column = |from: &mut ShardReader<BufReader<File>>| -> Result<Vec<f32>, ShardError> {
        // As it was written, in one piece: the checksum goes over words.
        let mut bytes = vec![0; 4 * rows];
        from.bytes(&mut bytes)?;
        let number = |bytes: &[u8]| bytes.try_into().map_or(f32::NAN, f32::from_le_bytes);
        Ok(bytes.chunks_exact(4).map(number).collect())
    };
    let mut bytes = vec![0; like.numel() * element];
    let mut masks = vec![0; rows * choices];
    for _ in 0..count {
        from.bytes(&mut bytes)?;
        let seen = Tensor::f_from_data_size(&bytes, &like.size(), like.kind()).map_err(wrong)?;
        let (returns, weights) = (column(&mut from)?, column(&mut from)?);
        from.bytes(&mut masks)?;
        stored.add(&seen, (&returns, &weights), &masks).map_err(wrong)?;
    }
    let sum = from.sum();
    let mut found = [0; 8];
    from.bytes(&mut found)?;
    if u64::from_le_bytes(found) != sum {
        return Err(wrong("checksum mismatch"));
    }
    if from.rest().read(&mut [0])? != 0 {
        return Err(wrong("trailing data"));
    }
    Ok(stored)
}
