//! The shared part of off-policy algorithms: collecting into replay, counting, and when learning starts.
//!
//! A [`Learner`] defines how an algorithm acts and learns. [`OffPolicyAlgorithm`] is the rest of an
//! [`Algorithm`].
//!
//! Invariants:
//! - OFFPOLICY-1: learning begins on all ranks in the same iteration: when all ranks together have made
//!   enough environment steps and *every* rank's replay holds a batch. Until then, one small all-reduce per
//!   iteration (tag `replay_ready`) decides it.
//! - OFFPOLICY-2: the transitions of an update come from a stream named by rank and number of the update: it
//!   needs no saving.
//! - OFFPOLICY-3: with `collect.normalise_observations`, replay holds observations as they are. They are normalized
//!   where a network gets them, by moments that are merged over all ranks after each collection (NORM-1): one
//!   collective per iteration, tag `normalise`. The moments count what was acted on, once.
//! - `env_step` and `samples` count accepted actions; dummy steps across a reset count nowhere.

use super::{Algorithm, BuildContext, Greedy, IterationStats, ScalarStat, StepContext};
use crate::collect::normalize::{self, ObservationNorm};
use crate::collect::rollout::ActionBuffer;
use crate::collect::{Interval, RankCounters};
use crate::distributed::{ProcessGroup, ReduceOp};
use crate::env::{Observations, Spec, StepOutcome, VectorEnv};
use crate::error::TrainerError;
use crate::replay::{self, Replay, ReplayBatch, ReplayMark, ReplayShape, Shown};
use crate::startup::setup::Sizes;
use crate::support::state::{AlgorithmState, NamedWords, RestoredState};
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_kernel::seeds::{Purpose, Seeds};
use rankdeck_proto::message::Phase;
use rankdeck_proto::show::PolicyEstimate;
use std::any::Any;
use std::path::Path;
use std::time::Instant;
use tch::Device;

/// Sizes of replay and of updates; all over all ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct OffPolicySettings {
    /// Transitions that replay holds.
    pub buffer_size: u64,
    /// Environment steps before the first update.
    pub learning_starts: u64,
    /// Transitions per update.
    pub batch_size: u32,
    /// Rewards summed before the bootstrap.
    pub n_step: u32,
    /// Discount.
    pub gamma: f64,
    /// Updates after each collection.
    pub(crate) updates_per_iteration: u32,
}

/// Memory and transitions of a rank's replay; larger numbers are more likely typing mistakes.
const MAX_BYTES: u64 = 1 << 42;
const MAX_TRANSITIONS: usize = 1 << 40;

/// This rank's share of replay and batch, or what to change.
pub(crate) fn shares(
    settings: &OffPolicySettings,
    spec: &Spec,
    sizes: &Sizes,
) -> Result<(ReplayShape, usize), TrainerError> {
    let world = (sizes.batch / sizes.local_batch.max(1) as u64).max(1) as u32;
    let rows = (settings.batch_size / world) as usize;
    let rank = u64::from(sizes.first_env / sizes.local_envs.max(1));
    let (each, more) = (settings.buffer_size / u64::from(world), settings.buffer_size % u64::from(world));
    let capacity = usize::try_from(each + u64::from(rank < more)).unwrap_or(usize::MAX);
    let envs = sizes.local_envs as usize;
    let shape =
        ReplayShape::new(spec, envs, capacity.min(MAX_TRANSITIONS), settings.n_step as usize, settings.gamma);
    if shape.bytes() > MAX_BYTES {
        return Err(TrainerError::usage(
            format!(
                "a replay of {} transitions needs {} GiB per rank",
                settings.buffer_size,
                shape.bytes() >> 30
            ),
            "lower learn.buffer_size",
        ));
    }
    Ok((shape, rows))
}

/// A rank's environments and replay.
struct OffPolicy {
    env: Box<dyn VectorEnv>,
    outcome: StepOutcome,
    norm: ObservationNorm,
    device: Device,
    replay: Replay,
    /// The batch of the current update.
    batch: ReplayBatch,
    actions: ActionBuffer,
    settings: OffPolicySettings,
    rows: usize,
    ready: bool,
    /// The run was restored without replay; the same on all ranks.
    refills: bool,
    /// This rank's environment steps when replay was last empty.
    empty_at: u64,
    reward_scale: f32,
    num_steps: u32,
    seeds: Seeds,
    first_env: u32,
    counters: RankCounters,
    interval: Interval,
}

/// A replay on its way from one group to the next.
struct OwnReplay {
    /// Global index of its first environment.
    first_env: u32,
    replay: Replay,
}

/// What one algorithm does with its environments and its batches. Observations are normalized already.
pub(crate) trait Learner {
    /// Writes the actions, as the environments take them, for what all environments show; `env_step` counts over
    /// all ranks.
    fn explore(
        &mut self,
        now: Shown<'_>,
        env_step: u64,
        randoms: &mut [Generator],
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError>;
    /// Writes the best actions.
    fn exploit(&mut self, now: Shown<'_>, actions: &mut ActionBuffer) -> Result<(), TrainerError>;
    /// Its estimate for environment `env` in the latest [`Learner::exploit`] or [`Learner::explore`].
    fn estimate(&self, _env: usize) -> Option<PolicyEstimate> {
        None
    }
    /// One update from this rank's share of a batch; `random` is the update's stream, after the draws of the
    /// batch. Nothing is read back from the device.
    fn update(
        &mut self,
        batch: &ReplayBatch,
        random: &mut Generator,
        group: &ProcessGroup,
    ) -> Result<(), TrainerError>;
    /// Ends the updates of an iteration: refuses losses that are not finite, and gives a hash of everything
    /// that is replicated when that is `covered`.
    fn close(
        &mut self,
        covered: bool,
        batch: &ReplayBatch,
        group: &ProcessGroup,
    ) -> Result<Option<u64>, TrainerError>;
    /// The optimizer's rate (the first one's).
    fn rate(&self) -> f64;
    /// Statistics of the latest update, for [`IterationStats::losses`]; `env_step` counts over all ranks.
    fn losses(&mut self, env_step: u64) -> Result<Vec<ScalarStat>, TrainerError>;
    /// Adds networks and optimizers.
    fn save(&self, state: &mut AlgorithmState) -> Result<(), TrainerError>;
    /// Back from [`Learner::save`].
    fn load(&mut self, restored: &RestoredState) -> Result<(), TrainerError>;
}

/// An off-policy algorithm.
pub(crate) struct OffPolicyAlgorithm<L> {
    off: OffPolicy,
    learner: L,
    fingerprint_every: u64,
}

impl<L: Learner> OffPolicyAlgorithm<L> {
    /// Environments reset, replay empty.
    pub(crate) fn new(
        settings: OffPolicySettings,
        learner: L,
        build: &BuildContext<'_>,
    ) -> Result<OffPolicyAlgorithm<L>, TrainerError> {
        Ok(OffPolicyAlgorithm {
            off: OffPolicy::new(settings, build)?,
            learner,
            fingerprint_every: build.experiment.distributed.fingerprint_every,
        })
    }
}

impl<L: Learner> Algorithm for OffPolicyAlgorithm<L> {
    fn iterate(&mut self, ctx: &StepContext<'_>) -> Result<IterationStats, TrainerError> {
        ctx.phase(Phase::Rollout);
        self.off.collect(&mut self.learner, ctx)?;
        ctx.phase(Phase::Learn);
        self.off.merge_moments(ctx.group)?;
        let planned = self.off.settings.updates_per_iteration.into();
        let mut stats =
            IterationStats { learning_rate: self.learner.rate(), planned, ..IterationStats::default() };
        if self.off.ready(ctx)? {
            for _ in 0..self.off.settings.updates_per_iteration {
                let mut random = self.off.sample(ctx.updates + stats.updates, ctx.group.rank());
                self.learner.update(&self.off.batch, &mut random, ctx.group)?;
                stats.updates += 1;
                ctx.updated(&stats);
            }
            let covered = stats.covered(ctx.updates, self.fingerprint_every);
            if let Some(print) = self.learner.close(covered, &self.off.batch, ctx.group)? {
                stats.cover(print);
            }
        }
        stats.losses = self.learner.losses(ctx.env_step)?;
        Ok(stats)
    }

    fn counters(&self) -> RankCounters {
        self.off.counters
    }

    fn take_interval(&mut self) -> Interval {
        std::mem::take(&mut self.off.interval)
    }

    fn plan(&self) -> Option<String> {
        Some(self.off.plan())
    }

    fn save_own(
        &self,
        folder: &Path,
        mark: &ReplayMark,
        keep: Option<u64>,
        moved: &mut dyn FnMut(u64, u64),
    ) -> Result<(), TrainerError> {
        self.off.save_replay(folder, mark, keep, moved)
    }

    fn drop_own(&mut self) {
        self.off.empty();
    }

    fn load_own(&mut self, folder: &Path, mark: &ReplayMark) -> Result<(), String> {
        self.off.load_replay(folder, mark)
    }

    fn take_own(&mut self) -> Option<Box<dyn Any>> {
        Some(Box::new(self.off.take_replay()))
    }

    fn adopt_own(&mut self, own: Box<dyn Any>) -> Option<String> {
        self.off.adopt_replay(*own.downcast().ok()?)
    }

    fn greedy(&mut self) -> Result<&mut dyn Greedy, TrainerError> {
        Ok(self)
    }

    /// Networks, moments, step counts, environments.
    fn state(&self) -> Result<AlgorithmState, TrainerError> {
        let mut state = AlgorithmState::default();
        self.learner.save(&mut state)?;
        self.off.state(&mut state);
        Ok(state)
    }

    fn restore(&mut self, restored: &RestoredState) -> Result<(), TrainerError> {
        self.learner.load(restored)?;
        self.off.restore(restored)
    }
}

impl<L: Learner> Greedy for OffPolicyAlgorithm<L> {
    fn act(
        &mut self,
        observations: Observations<'_>,
        masks: Option<&[u8]>,
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError> {
        let observations = self.off.norm.view(observations);
        self.learner.exploit(Shown { observations, masks }, actions)
    }

    /// As at the end of the schedules of exploration.
    fn sample(
        &mut self,
        observations: Observations<'_>,
        masks: Option<&[u8]>,
        randoms: &mut [Generator],
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError> {
        let observations = self.off.norm.view(observations);
        self.learner.explore(Shown { observations, masks }, u64::MAX, randoms, actions)
    }

    fn estimate(&self, env: usize) -> Option<PolicyEstimate> {
        self.learner.estimate(env)
    }
}

impl OffPolicy {
    /// Environments reset, replay empty.
    fn new(settings: OffPolicySettings, build: &BuildContext<'_>) -> Result<OffPolicy, TrainerError> {
        let BuildContext { experiment, sizes, spec, seeds, device, .. } = build;
        let (shape, rows) = shares(&settings, spec, sizes)?;
        let envs = sizes.local_envs as usize;
        let env = super::environments(build)?;
        let mut replay = Replay::new(match env.masks() {
            Some(_) => shape.with_masks(spec.actions.width()),
            None => shape,
        });
        replay.start(shown(&*env));
        Ok(OffPolicy {
            outcome: StepOutcome::new(spec, envs),
            norm: ObservationNorm::new(&experiment.collect, spec),
            device: *device,
            actions: ActionBuffer::new(&spec.actions, envs),
            env,
            replay,
            batch: ReplayBatch::default(),
            settings,
            rows,
            ready: false,
            refills: false,
            empty_at: 0,
            reward_scale: experiment.collect.reward_scale as f32,
            num_steps: sizes.num_steps,
            seeds: *seeds,
            first_env: sizes.first_env,
            counters: RankCounters::default(),
            interval: Interval::default(),
        })
    }

    /// Replay's sizes, for [`Algorithm::plan`].
    fn plan(&self) -> String {
        let shape = self.replay.shape();
        format!(
            "replay: {} transitions per rank (at most {:.1} MiB), {} sampled per update and rank",
            shape.capacity,
            shape.bytes() as f64 / f64::from(1 << 20),
            self.rows
        )
    }

    /// Steps all environments `collect.num_steps` times.
    fn collect(&mut self, explorer: &mut dyn Learner, ctx: &StepContext<'_>) -> Result<(), TrainerError> {
        let started = Instant::now();
        let envs = self.env.len();
        let mut randoms: Vec<_> = (self.first_env..)
            .take(envs)
            .map(|index| self.seeds.generator(Purpose::Action, index, ctx.iteration))
            .collect();
        // All ranks make the same number of steps. Where some are dummies, this is slightly ahead within an
        // iteration.
        let all_envs = envs as u64 * u64::from(ctx.group.world_size());
        for step in 0..u64::from(self.num_steps) {
            let env_step = ctx.env_step + step * all_envs;
            let number = ctx.iteration * u64::from(self.num_steps) + step;
            self.norm.note(self.env.observations());
            let now =
                Shown { observations: self.norm.view(self.env.observations()), masks: self.env.masks() };
            explorer.explore(now, env_step, &mut randoms, &mut self.actions)?;
            self.env.step(self.actions.view(), &mut self.outcome)?;
            if self.reward_scale != 1.0 {
                self.outcome.rewards.iter_mut().for_each(|reward| *reward *= self.reward_scale);
            }
            self.replay.add(self.actions.view(), &self.outcome, shown(&*self.env));
            let accepted = self.outcome.valid.iter().filter(|valid| **valid).count() as u64;
            self.counters.env_step += accepted;
            self.counters.samples += accepted;
            for episode in &self.outcome.episodes {
                self.interval.add(number, episode.episode_return, episode.length);
                self.counters.episodes += 1;
            }
            ctx.stepped(&self.counters);
            ctx.group.check_members()?;
        }
        self.counters.duration_ns += started.elapsed().as_nanos() as u64;
        Ok(())
    }

    /// Merges what all ranks have observed (OFFPOLICY-3); no collective where nothing is normalized.
    fn merge_moments(&mut self, group: &ProcessGroup) -> Result<(), TrainerError> {
        let mut moments: Vec<_> = self.norm.moments().into_iter().collect();
        Ok(normalize::merge(&mut moments, group, self.device)?)
    }

    /// Whether to learn in this iteration (OFFPOLICY-1). After a restart with an empty replay, it is filled
    /// again as at the start, as far as it holds.
    fn ready(&mut self, ctx: &StepContext<'_>) -> Result<bool, TrainerError> {
        if !self.ready {
            let OffPolicySettings { learning_starts, buffer_size, .. } = self.settings;
            let enough = if self.refills { learning_starts.min(buffer_size) } else { learning_starts };
            let steps = self.counters.env_step.saturating_sub(self.empty_at);
            self.ready = may_learn(ctx.group, steps, self.replay.len() >= self.rows, enough)?;
        }
        Ok(self.ready)
    }

    /// Draws this rank's share of a batch for update number `update` of the run; returns its stream,
    /// positioned after the draws.
    fn sample(&mut self, update: u64, rank: u32) -> Generator {
        let mut random = self.seeds.generator(Purpose::Replay, rank, update);
        self.replay.sample(self.rows, &mut random, &mut self.batch);
        let pair = &mut self.batch.numbers;
        self.norm.apply(&mut pair.now);
        self.norm.apply(&mut pair.next);
        random
    }

    /// Adds the environments, the moments of observations and the decision to learn.
    fn state(&self, state: &mut AlgorithmState) {
        if let Some(values) = self.norm.words() {
            state.words.push(NamedWords { name: "moments.observations".into(), values });
        }
        state.words.push(NamedWords { name: "replay.ready".into(), values: vec![u64::from(self.ready)] });
        let saved = self.env.save().map(Option::unwrap_or_default);
        state.add_envs(saved, self.env.words_per_env().unwrap_or(0));
    }

    /// Restores [`OffPolicy::state`]. Replay begins empty.
    fn restore(&mut self, restored: &RestoredState) -> Result<(), TrainerError> {
        self.counters = restored.counters;
        self.norm.restore(restored.words("moments.observations"));
        if let Some(envs) = &restored.envs {
            self.env.restore(envs)?;
        }
        self.empty();
        Ok(())
    }

    fn empty(&mut self) {
        self.replay = Replay::new(self.replay.shape().clone());
        self.replay.start(shown(&*self.env));
        (self.ready, self.refills, self.empty_at) = (false, true, self.counters.env_step);
    }

    /// The replay, which leaves nothing here.
    fn take_replay(&mut self) -> OwnReplay {
        let nothing = Replay::new(ReplayShape { envs: 0, ..self.replay.shape().clone() });
        OwnReplay { first_env: self.first_env, replay: std::mem::replace(&mut self.replay, nothing) }
    }

    /// Continues with the transitions of environments that this rank keeps. All ranks then decide together when to
    /// learn again, as with an empty replay; what is here counts as collected.
    fn adopt_replay(&mut self, own: OwnReplay) -> Option<String> {
        self.replay.adopt(self.first_env, own.replay, own.first_env);
        self.replay.start(shown(&*self.env));
        let kept = self.replay.len();
        self.empty_at = self.counters.env_step.saturating_sub(kept as u64);
        (kept > 0).then(|| format!("replay continues with {kept} transitions"))
    }

    /// Writes this rank's replay next to the checkpoints (`checkpoint.replay`), under the name of its
    /// iteration: until the checkpoint is complete, the one before it keeps its own.
    fn save_replay(
        &self,
        folder: &Path,
        mark: &ReplayMark,
        keep: Option<u64>,
        moved: &mut dyn FnMut(u64, u64),
    ) -> Result<(), TrainerError> {
        replay::replace_shard(folder, mark, keep, |path| replay::save(&self.replay, mark, path, moved))
    }

    /// Restores this rank's replay from its shard; the error is why the shard does not match.
    fn load_replay(&mut self, folder: &Path, mark: &ReplayMark) -> Result<(), String> {
        let path = replay::shard_path(folder, mark);
        let mut loaded = replay::load(self.replay.shape(), mark, &path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        loaded.start(shown(&*self.env));
        (self.replay, self.refills, self.empty_at) = (loaded, false, 0);
        Ok(())
    }
}

/// What environments show now.
fn shown(env: &dyn VectorEnv) -> Shown<'_> {
    Shown { observations: env.observations(), masks: env.masks() }
}

/// Whether learning begins now (OFFPOLICY-1).
pub fn may_learn(
    group: &ProcessGroup,
    env_step: u64,
    enough: bool,
    learning_starts: u64,
) -> Result<bool, TrainerError> {
    let mut sums = [env_step.cast_signed(), i64::from(enough)];
    group.all_reduce_i64(&mut sums, ReduceOp::Sum, "replay_ready")?;
    Ok(sums[0].cast_unsigned() >= learning_starts && sums[1] == i64::from(group.world_size()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{ActionSpace, Actions, ObservationType};

    /// `learn.buffer_size` is what all ranks hold together, also where it cannot be split evenly.
    #[test]
    fn replay_shares_add_up_to_buffer_size() {
        let spec = Spec {
            observation_shape: vec![1],
            observation_type: ObservationType::F32,
            branches: Vec::new(),
            actions: ActionSpace::Discrete { n: 2 },
        };
        for (buffer_size, world, envs) in [(1001, 3, 2), (1000, 3, 2), (17, 2, 5), (64, 1, 3)] {
            let settings = OffPolicySettings {
                buffer_size,
                learning_starts: 0,
                batch_size: world,
                n_step: 1,
                gamma: 0.99,
                updates_per_iteration: 1,
            };
            let mut held = 0;
            for rank in 0..world {
                let sizes = Sizes {
                    local_envs: envs,
                    first_env: rank * envs,
                    num_steps: 1,
                    local_batch: envs as usize,
                    batch: u64::from(world * envs),
                    num_iterations: None,
                    blocks: None,
                };
                let (shape, _) = shares(&settings, &spec, &sizes).unwrap();
                let mut replay = Replay::new(shape);
                let seen = |step: u64| vec![step as f32; envs as usize];
                replay.start(Observations::F32(&seen(0)));
                let (actions, outcome) = (vec![0; envs as usize], StepOutcome::new(&spec, envs as usize));
                for step in 1..=buffer_size {
                    replay.add(Actions::Discrete(&actions), &outcome, Observations::F32(&seen(step)));
                }
                held += replay.len() as u64;
            }
            assert_eq!(held, buffer_size, "{world} ranks with {envs} environments each");
        }
    }
}
