//! Collects rollouts for the on-policy algorithms and keeps the rank's counters.
//!
//! Buffers are made once; a step of Rust environments allocates nothing. The environments are in one group,
//! or in two of which one steps while the policy runs on the other.
//!
//! Invariants:
//! - COLLECT-1: counters are this rank's own and exact: `env_step` and `samples` grow by the accepted
//!   actions, `episodes` by the episodes that ended, `duration_ns` by the time inside [`Collector::collect`].
//! - COLLECT-2: a rollout depends on weights, moments, environment states, base seed, iteration and global
//!   environment indices only. In how many groups the environments are changes nothing but what the policy's
//!   answers to fewer rows at once change: nothing where the hand-written passes give them.
//! - COLLECT-3: the state of a policy's memory is 0 before the first observation of an episode. It is part of
//!   [`Collector::save_envs`], so that a restored collector continues with the same bits.

pub mod normalize;
pub mod rollout;

use crate::env::{ActionSpace, EnvError, ObservationBuffer, Observations, Spec, StepOutcome, VectorEnv};
use crate::error::TrainerError;
use crate::inject;
use crate::policy::ActingPolicy;
use crate::policy::distribution::{
    most_probable, most_probable_parts, sample_categorical, sample_gaussian, sample_parts,
};
pub use crate::support::state::{Interval, RankCounters};
use normalize::RunningMoments;
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_kernel::seeds::{Purpose, Seeds};
use rankdeck_proto::show::{PolicyEstimate, ScoreKind};
use rankdeck_types::experiment::Collect;
use rollout::{ActionBuffer, Rollout, rows};
use std::ops::Range;
use std::time::Instant;

/// How rewards and ends of episodes count.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RewardConfig {
    /// `[collect]`.
    pub collect: Collect,
    /// Discount, for the normalization of rewards.
    pub gamma: f64,
    /// The value of a cut-off episode's last observation counts.
    pub bootstrap_truncated: bool,
}

/// A policy ready to act, with the logarithms of the deviations of continuous actions.
pub(crate) struct Actor {
    /// The networks.
    pub(crate) acting: ActingPolicy,
    /// Empty for discrete actions.
    pub log_std: Vec<f32>,
    /// The actions that the environment takes.
    pub space: ActionSpace,
}

/// A policy's scores and values for all environments in its latest pass.
#[derive(Default)]
pub(crate) struct PolicyEstimates {
    kind: ScoreKind,
    /// Scores per environment.
    each: usize,
    /// Of these, scores of each part of discrete actions.
    sizes: Vec<usize>,
    scores: Vec<f32>,
    values: Vec<f32>,
}

impl PolicyEstimates {
    /// Of one environment.
    pub(crate) fn of(&self, env: usize) -> Option<PolicyEstimate> {
        let mut scores = self.scores.chunks_exact(self.each.max(1)).nth(env)?.to_vec();
        if self.kind == ScoreKind::Probability {
            let mut rest = scores.as_mut_slice();
            for size in &self.sizes {
                let (part, others) = rest.split_at_mut_checked(*size)?;
                softmax(part);
                rest = others;
            }
        }
        let parts = match self.sizes.as_slice() {
            [_] => Vec::new(),
            sizes => sizes.iter().map(|size| *size as u32).collect(),
        };
        Some(PolicyEstimate { kind: self.kind, scores, parts, value: self.values.get(env).copied() })
    }

    /// Draws the actions of all environments by these estimates as training does, each from its own stream, as
    /// an environment takes them.
    pub(crate) fn sample(
        &self,
        actor: &Actor,
        masks: Option<&[u8]>,
        randoms: &mut [Generator],
        to: &mut ActionBuffer,
    ) {
        let (mut drawn, mut probabilities) = (to.clone(), Vec::new());
        let rows = self.scores.chunks_exact(self.each.max(1)).zip(randoms).enumerate();
        for (i, (scores, random)) in rows {
            let mask = mask_of(masks, self.each, i);
            match &mut drawn {
                ActionBuffer::Discrete(actions) => {
                    actions[i] = sample_categorical(scores, mask, &mut probabilities, random).0;
                }
                ActionBuffer::MultiDiscrete { width, values } => {
                    let own = &mut values[i * *width..(i + 1) * *width];
                    sample_parts(scores, (&self.sizes, mask), &mut probabilities, random, own);
                }
                ActionBuffer::Continuous { width, values } => {
                    let own = &mut values[i * *width..(i + 1) * *width];
                    sample_gaussian(scores, &actor.log_std, random, own);
                }
            }
        }
        clip(&drawn, &actor.space, to);
    }
}

/// Logits become probabilities.
fn softmax(logits: &mut [f32]) {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter_mut().for_each(|logit| *logit = (*logit - most).exp());
    let sum: f32 = logits.iter().sum();
    logits.iter_mut().for_each(|share| *share /= sum);
}

/// Environments that are stepped together, and buffers of one step of theirs.
struct EnvGroup {
    env: Box<dyn VectorEnv>,
    /// The rank's index of its first environment.
    first: usize,
    outcome: StepOutcome,
    scores: Vec<f32>,
    actions: ActionBuffer,
    clipped: ActionBuffer,
}

/// A rank's environments and buffers.
pub(crate) struct Collector {
    groups: Vec<EnvGroup>,
    envs: usize,
    seeds: Seeds,
    first_env: u32,
    reward_config: RewardConfig,
    rollout: Rollout,
    next_dones: Vec<f32>,
    /// Numbers of the memory's state of each environment; 0 without memory.
    state_len: usize,
    /// The states of all environments, before their observations now.
    states: Vec<f32>,
    /// Discounted returns so far of each environment, whose deviation scales rewards.
    discounted: Vec<f64>,
    /// Environments of each block whose moments are kept apart.
    block_envs: usize,
    observations: Option<RunningMoments>,
    returns: Option<RunningMoments>,
    counters: RankCounters,
    interval: Interval,
    scratch: StepBuffers,
}

/// Buffers of one environment's step.
struct StepBuffers {
    scores: Vec<f32>,
    probabilities: Vec<f32>,
    row: Vec<f32>,
    state: Vec<f32>,
}

impl EnvGroup {
    fn new(env: Box<dyn VectorEnv>, first: usize) -> EnvGroup {
        let (spec, envs) = (env.spec().clone(), env.len());
        let actions = ActionBuffer::new(&spec.actions, envs);
        EnvGroup {
            first,
            outcome: StepOutcome::new(&spec, envs),
            scores: vec![0.0; envs * spec.actions.width()],
            clipped: actions.clone(),
            actions,
            env,
        }
    }

    /// Its rows of the step that begins at this row of the rollout.
    fn rows(&self, step: usize) -> Range<usize> {
        step + self.first..step + self.first + self.env.len()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        // All together, before the first group is waited for.
        self.groups.iter_mut().for_each(|group| group.env.close());
    }
}

impl Collector {
    /// Collects `collect.num_steps` steps per environment and rollout, from one group of environments or
    /// more, all of the same shapes; `first_env` is the global index of the first environment.
    pub(crate) fn new(
        vectors: Vec<Box<dyn VectorEnv>>,
        spec: &Spec,
        reward_config: RewardConfig,
        seeds: Seeds,
        first_env: u32,
    ) -> Collector {
        let mut envs = 0;
        let group = |env: Box<dyn VectorEnv>| {
            let first = envs;
            envs += env.len();
            EnvGroup::new(env, first)
        };
        let groups: Vec<EnvGroup> = vectors.into_iter().map(group).collect();
        let masked = groups.first().is_some_and(|group| group.env.masks().is_some());
        let Collect { num_steps, normalise_observations, normalise_rewards, .. } = reward_config.collect;
        let mut rollout = Rollout::new(spec, num_steps as usize, envs, normalise_observations);
        if masked {
            rollout.masks = vec![1; rollout.len() * spec.actions.width()];
        }
        Collector {
            rollout,
            next_dones: vec![0.0; envs],
            state_len: 0,
            states: Vec::new(),
            discounted: vec![0.0; envs],
            block_envs: envs.max(1),
            observations: normalise_observations.then(|| RunningMoments::new(spec.observation_len(), 1)),
            returns: normalise_rewards.then(|| RunningMoments::new(1, 1)),
            scratch: StepBuffers {
                scores: vec![0.0; spec.actions.width()],
                probabilities: Vec::with_capacity(spec.actions.width()),
                row: vec![0.0; spec.observation_len()],
                state: Vec::new(),
            },
            groups,
            envs,
            seeds,
            first_env,
            reward_config,
            counters: RankCounters::default(),
            interval: Interval::default(),
        }
    }

    /// The same for policies whose memory has a state of `state_len` numbers per environment.
    #[must_use]
    pub(crate) fn with_memory(mut self, state_len: usize) -> Collector {
        self.state_len = state_len;
        self.states = vec![0.0; self.envs * state_len];
        self.scratch.state = vec![0.0; state_len];
        self.rollout.states = self.states.clone();
        self.rollout.resets = vec![false; if state_len == 0 { 0 } else { self.rollout.len() }];
        self
    }

    /// Keeps the moments of each block of `envs` environments apart until they are merged.
    pub(crate) fn in_blocks(mut self, envs: usize) -> Collector {
        self.block_envs = envs.max(1);
        let blocks = self.envs.div_ceil(self.block_envs);
        let width = self.rollout.width();
        if let Some(running) = &mut self.observations {
            *running = RunningMoments::new(width, blocks);
        }
        if let Some(running) = &mut self.returns {
            *running = RunningMoments::new(1, blocks);
        }
        self
    }

    /// Collects one rollout. `moved` is called after every step of all environments; it returns whether to
    /// continue; `false`: it was left. Rewards are not normalized yet: [`Collector::normalize_rewards`]
    /// does that once the moments are merged.
    pub(crate) fn collect(
        &mut self,
        actor: &mut Actor,
        iteration: u64,
        mut moved: impl FnMut(&RankCounters) -> Result<bool, TrainerError>,
    ) -> Result<bool, TrainerError> {
        let started = Instant::now();
        let mut randoms: Vec<_> = (self.first_env..)
            .take(self.envs)
            .map(|index| self.seeds.generator(Purpose::Action, index, iteration))
            .collect();
        self.rollout.final_values.fill(0.0);
        self.rollout.states.copy_from_slice(&self.states);
        self.rollout.resets.fill(false);
        let last = self.groups.len().saturating_sub(1);
        for step in 0..=self.rollout.steps {
            for group in 0..self.groups.len() {
                if let Some(before) = step.checked_sub(1) {
                    self.finish(group, (iteration, before), actor)?;
                    if group == last && !moved(&self.counters)? {
                        if step < self.rollout.steps {
                            self.rest(last)?;
                        }
                        return Ok(false);
                    }
                }
                if step < self.rollout.steps {
                    self.start_group_step(group, (iteration, step), actor, &mut randoms)?;
                }
            }
        }
        for group in 0..self.groups.len() {
            let seen = self.policy_input(group);
            let EnvGroup { env, first, scores, .. } = &mut self.groups[group];
            let envs = *first..*first + env.len();
            // The next rollout begins with these observations: they are not remembered yet.
            let mut states = self.states[envs.start * self.state_len..envs.end * self.state_len].to_vec();
            actor.acting.run(seen.view(), &mut states, scores, &mut self.rollout.next_values[envs])?;
        }
        self.rollout.next_dones.copy_from_slice(&self.next_dones);
        self.counters.duration_ns += started.elapsed().as_nanos() as u64;
        Ok(true)
    }

    /// The observations of a group as the policy gets them now; the moments do not change.
    fn policy_input(&self, group: usize) -> ObservationBuffer {
        match (self.groups[group].env.observations(), &self.observations) {
            (Observations::U8(pixels), _) => ObservationBuffer::U8(pixels.to_vec()),
            (Observations::F32(values), None) => ObservationBuffer::F32(values.to_vec()),
            (Observations::F32(values), Some(running)) => {
                let width = self.rollout.width();
                let mut seen = vec![0.0; values.len()];
                for (to, from) in seen.chunks_exact_mut(width).zip(values.chunks_exact(width)) {
                    running.normalize(from, self.reward_config.collect.clip_observations, to);
                }
                ObservationBuffer::F32(seen)
            }
        }
    }

    /// The largest reward and observation of the rollout, for messages.
    pub(crate) fn largest(&self) -> String {
        let most = |values: &[f32]| values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        let seen = match &self.rollout.observations {
            ObservationBuffer::F32(values) => most(values),
            ObservationBuffer::U8(_) => {
                return format!("; largest reward {:e}", most(&self.rollout.rewards));
            }
        };
        format!("; largest reward {:e}, largest observation {seen:e}", most(&self.rollout.rewards))
    }

    /// This rank's moments, to be merged over all ranks.
    pub(crate) fn moments(&mut self) -> Vec<&mut RunningMoments> {
        self.observations.iter_mut().chain(self.returns.iter_mut()).collect()
    }

    /// Divides the rollout's rewards by the deviation of the discounted return, if so configured.
    pub(crate) fn normalize_rewards(&mut self) {
        let Some(returns) = &self.returns else { return };
        let (scale, clip) = (returns.scale(), self.reward_config.collect.clip_rewards);
        for reward in &mut self.rollout.rewards {
            *reward = (f64::from(*reward) * scale).clamp(-clip, clip) as f32;
        }
    }

    /// The rollout collected last.
    pub(crate) fn rollout(&self) -> &Rollout {
        &self.rollout
    }

    /// Counters so far.
    pub(crate) fn counters(&self) -> RankCounters {
        self.counters
    }

    /// Continues from the counters of a checkpoint.
    pub(crate) fn resume_counters(&mut self, counters: RankCounters) {
        self.counters = counters;
    }

    /// Episodes since the last call.
    pub(crate) fn take_interval(&mut self) -> Interval {
        std::mem::take(&mut self.interval)
    }

    /// The most probable actions for `observations` that `masks` allow, as an environment takes them, and the
    /// estimates behind them. Observations are normalized as in training. `states` of the memory are kept from one
    /// call to the next; for another number of environments they begin with 0.
    pub(crate) fn greedy(
        &self,
        actor: &mut Actor,
        (observations, masks): (Observations<'_>, Option<&[u8]>),
        states: &mut Vec<f32>,
        to: &mut ActionBuffer,
        estimates: &mut PolicyEstimates,
    ) -> Result<(), TrainerError> {
        let width = self.rollout.width();
        let normalized = match (observations, &self.observations) {
            (Observations::F32(values), Some(running)) => {
                let mut seen = vec![0.0; values.len()];
                for (to, from) in seen.chunks_exact_mut(width).zip(values.chunks_exact(width)) {
                    running.normalize(from, self.reward_config.collect.clip_observations, to);
                }
                Some(seen)
            }
            _ => None,
        };
        let observations = normalized.as_deref().map_or(observations, Observations::F32);
        let len = match observations {
            Observations::F32(values) => values.len(),
            Observations::U8(pixels) => pixels.len(),
        };
        let count = len / width.max(1);
        let each = actor.space.width();
        let (mut scores, mut values) = (vec![0.0; count * each], vec![0.0; count]);
        if states.len() != count * self.state_len {
            states.clear();
            states.resize(count * self.state_len, 0.0);
        }
        actor.acting.run(observations, states, &mut scores, &mut values)?;
        let sizes = actor.space.sizes().to_vec();
        let (kind, mut scores) = match to {
            ActionBuffer::Discrete(actions) => {
                let rows = scores.chunks_exact(each.max(1)).enumerate();
                for (action, (i, scores)) in actions.iter_mut().zip(rows) {
                    *action = most_probable(scores, mask_of(masks, each, i));
                }
                (ScoreKind::Probability, scores)
            }
            ActionBuffer::MultiDiscrete { width, values } => {
                let rows = scores.chunks_exact(each.max(1)).enumerate();
                for (actions, (i, scores)) in values.chunks_exact_mut((*width).max(1)).zip(rows) {
                    most_probable_parts(scores, (&sizes, mask_of(masks, each, i)), actions);
                }
                (ScoreKind::Probability, scores)
            }
            ActionBuffer::Continuous { .. } => {
                let means = ActionBuffer::Continuous { width: each, values: scores };
                clip(&means, &actor.space, to);
                let ActionBuffer::Continuous { values: scores, .. } = means else { return Ok(()) };
                (ScoreKind::Mean, scores)
            }
        };
        for (score, allowed) in scores.iter_mut().zip(masks.unwrap_or_default()) {
            if *allowed == 0 {
                *score = f32::NEG_INFINITY;
            }
        }
        *estimates = PolicyEstimates { kind, each, sizes, scores, values };
        Ok(())
    }

    /// The merged moments: of observations and of returns, as words; empty where they are not kept.
    pub(crate) fn moment_words(&self) -> [Vec<u64>; 2] {
        [&self.observations, &self.returns]
            .map(|running| running.as_ref().map_or(Vec::new(), RunningMoments::words))
    }

    /// Restores [`Collector::moment_words`].
    pub(crate) fn restore_moments(&mut self, words: [&[u64]; 2]) {
        for (running, words) in [&mut self.observations, &mut self.returns].into_iter().zip(words) {
            if let Some(running) = running {
                running.restore(words);
            }
        }
    }

    /// Words per environment in [`Collector::save_envs`]; 0 when environments cannot be saved.
    pub(crate) fn words_per_env(&self) -> usize {
        let words = self.groups.first().and_then(|group| group.env.words_per_env());
        words.map_or(0, |words| words + self.own_words())
    }

    /// Words per environment that the collector adds to the environment's own.
    fn own_words(&self) -> usize {
        2 + self.state_len
    }

    /// Every environment's state, done flag, discounted return and memory, [`Collector::words_per_env`] words each.
    pub(crate) fn save_envs(&self) -> Result<Vec<u64>, EnvError> {
        let each = self.words_per_env().saturating_sub(self.own_words());
        if each == 0 {
            return Ok(Vec::new());
        }
        let saved = self.groups.iter().map(|group| Ok(group.env.save()?.unwrap_or_default()));
        let states = saved.collect::<Result<Vec<_>, EnvError>>()?;
        let own = self.next_dones.iter().zip(&self.discounted);
        Ok(states
            .iter()
            .flat_map(|states| states.chunks(each))
            .zip(own)
            .enumerate()
            .flat_map(|(env, (state, (done, discounted)))| {
                let memory = &self.states[env * self.state_len..(env + 1) * self.state_len];
                let memory = memory.iter().map(|number| u64::from(number.to_bits()));
                let own = [u64::from(done.to_bits()), discounted.to_bits()];
                state.iter().copied().chain(own).chain(memory)
            })
            .collect())
    }

    /// Restores [`Collector::save_envs`] of the same number of environments.
    pub(crate) fn restore_envs(&mut self, words: &[u64]) -> Result<(), EnvError> {
        let (each, added) = (self.words_per_env(), self.own_words());
        if each == 0 || words.len() != each * self.envs {
            return Err(EnvError::State { expected: each * self.envs, found: words.len() });
        }
        for EnvGroup { env, first, .. } in &mut self.groups {
            let own = words.chunks(each).skip(*first).take(env.len());
            let states: Vec<u64> = own.flat_map(|chunk| &chunk[..each - added]).copied().collect();
            env.restore(&states)?;
        }
        let own = self.next_dones.iter_mut().zip(&mut self.discounted);
        for ((done, discounted), chunk) in own.zip(words.chunks(each)) {
            *done = f32::from_bits(chunk[each - added] as u32);
            *discounted = f64::from_bits(chunk[each - added + 1]);
        }
        let memory = words.chunks(each).flat_map(|chunk| &chunk[each - self.state_len..]);
        self.states.iter_mut().zip(memory).for_each(|(to, word)| *to = f32::from_bits(*word as u32));
        Ok(())
    }
}

/// The mask of one environment, among those of all, `each` numbers each.
fn mask_of(masks: Option<&[u8]>, each: usize, env: usize) -> Option<&[u8]> {
    masks.and_then(|masks| masks.get(env * each..(env + 1) * each))
}

/// Bounds continuous actions to what the environment takes.
fn clip(actions: &ActionBuffer, space: &ActionSpace, to: &mut ActionBuffer) {
    match (actions, space, &mut *to) {
        (
            ActionBuffer::Continuous { values, .. },
            ActionSpace::Continuous { low, high },
            ActionBuffer::Continuous { values: to, .. },
        ) => {
            let bounds = low.iter().zip(high).cycle();
            for ((to, value), (low, high)) in to.iter_mut().zip(values).zip(bounds) {
                // Not `clamp`: it panics on bounds that are NaN.
                *to = value.max(*low).min(*high);
            }
        }
        _ => to.put(0, actions),
    }
}

impl Collector {
    /// Lets the policy act on what a group shows, and begins its step.
    fn start_group_step(
        &mut self,
        group: usize,
        (iteration, step): (u64, usize),
        actor: &mut Actor,
        randoms: &mut [Generator],
    ) -> Result<(), TrainerError> {
        let own = self.groups[group].rows(step * self.envs);
        self.observe(group, own.clone())?;
        let (width, whole) = (self.rollout.width(), self.rollout.len());
        let EnvGroup { env, first, scores, actions, .. } = &mut self.groups[group];
        let seen = rows(self.rollout.observations.view(), own.start * width..own.end * width);
        let envs = *first..*first + own.len();
        let states = &mut self.states[envs.start * self.state_len..envs.end * self.state_len];
        let values = &mut self.rollout.values[own.clone()];
        actor.acting.run_rollout(seen, (own.start, whole), states, scores, values)?;
        self.rollout.dones[own.clone()].copy_from_slice(&self.next_dones[envs.clone()]);
        let each = actor.space.width();
        let masks = env.masks();
        if let Some(masks) = masks {
            self.rollout.masks[own.start * each..own.end * each].copy_from_slice(masks);
        }
        let scores = scores.chunks_exact(each.max(1));
        for (i, (scores, random)) in scores.zip(&mut randoms[envs]).enumerate() {
            self.rollout.log_probs[own.start + i] = match actions {
                ActionBuffer::Discrete(actions) => {
                    let mask = mask_of(masks, each, i);
                    let (action, log_prob) =
                        sample_categorical(scores, mask, &mut self.scratch.probabilities, random);
                    actions[i] = action;
                    log_prob
                }
                ActionBuffer::MultiDiscrete { width, values } => sample_parts(
                    scores,
                    (actor.space.sizes(), mask_of(masks, each, i)),
                    &mut self.scratch.probabilities,
                    random,
                    &mut values[i * *width..(i + 1) * *width],
                ),
                ActionBuffer::Continuous { width, values } => {
                    let action = &mut values[i * *width..(i + 1) * *width];
                    sample_gaussian(scores, &actor.log_std, random, action)
                }
            };
        }
        self.rollout.actions.put(own.start, actions);
        self.refuse_broken_policy(own, iteration * self.rollout.steps as u64 + step as u64)?;
        let EnvGroup { env, outcome, actions, clipped, .. } = &mut self.groups[group];
        clip(actions, &actor.space, clipped);
        inject::here(inject::Hook::EnvStep);
        Ok(env.start_step(clipped.view(), outcome)?)
    }

    /// Waits for a group's step, and takes what came of it.
    fn finish(
        &mut self,
        group: usize,
        (iteration, step): (u64, usize),
        actor: &mut Actor,
    ) -> Result<(), TrainerError> {
        let EnvGroup { env, outcome, .. } = &mut self.groups[group];
        env.finish(outcome)?;
        self.note(group, (iteration * self.rollout.steps as u64 + step as u64, step), actor)
    }

    /// Ends the steps that groups before `last` have begun: the rollout is left.
    fn rest(&mut self, last: usize) -> Result<(), TrainerError> {
        for EnvGroup { env, outcome, .. } in &mut self.groups[..last] {
            env.finish(outcome)?;
        }
        Ok(())
    }

    /// Writes what the policy sees of a group into these rows of the rollout.
    fn observe(&mut self, group: usize, own: Range<usize>) -> Result<(), TrainerError> {
        let (width, first) = (self.rollout.width(), self.groups[group].first);
        let range = own.start * width..own.end * width;
        match (&mut self.rollout.observations, self.groups[group].env.observations()) {
            (ObservationBuffer::F32(to), Observations::F32(from)) => match &mut self.observations {
                None => to[range].copy_from_slice(from),
                Some(running) => {
                    let clip = self.reward_config.collect.clip_observations;
                    let rows = to[range].chunks_exact_mut(width).zip(from.chunks_exact(width));
                    for (env, (to, from)) in (first..).zip(rows) {
                        running.note(env / self.block_envs, from.iter().map(|x| f64::from(*x)));
                        running.normalize(from, clip, to);
                    }
                }
            },
            (ObservationBuffer::U8(to), Observations::U8(from)) => to[range].copy_from_slice(from),
            _ => {
                return Err(TrainerError::failure(
                    "the environments changed the type of their observations",
                    "",
                ));
            }
        }
        Ok(())
    }

    /// Takes the outcome of a group's step, which is step `number` of the run and `step` of the rollout, into
    /// rollout and counters.
    fn note(
        &mut self,
        group: usize,
        (number, step): (u64, usize),
        actor: &mut Actor,
    ) -> Result<(), TrainerError> {
        let width = self.rollout.width();
        let RewardConfig { collect, gamma, bootstrap_truncated } = &self.reward_config;
        let own = self.groups[group].rows(step * self.envs);
        let EnvGroup { outcome, first, .. } = &self.groups[group];
        for (i, row) in own.enumerate() {
            let (env, valid, done) = (first + i, outcome.valid[i], outcome.done(i));
            self.rollout.weights[row] = f32::from(u8::from(valid));
            let reward = f64::from(outcome.rewards[i]) * collect.reward_scale;
            self.rollout.rewards[row] = reward as f32;
            if let Some(returns) = self.returns.as_mut().filter(|_| valid) {
                self.discounted[env] = self.discounted[env] * gamma + reward;
                returns.note(env / self.block_envs, std::iter::once(self.discounted[env]));
                self.discounted[env] *= f64::from(u8::from(!done));
            }
            self.next_dones[env] = f32::from(u8::from(done));
            self.counters.env_step += u64::from(valid);
            self.counters.samples += u64::from(valid);
            if *bootstrap_truncated && valid && outcome.truncated[i] && !outcome.terminated[i] {
                let last = rows(outcome.final_observations.view(), i * width..(i + 1) * width);
                let last = match (&self.observations, last) {
                    (Some(running), Observations::F32(values)) => {
                        running.normalize(values, collect.clip_observations, &mut self.scratch.row);
                        Observations::F32(&self.scratch.row)
                    }
                    _ => last,
                };
                let value = &mut self.rollout.final_values[row..=row];
                let state = &mut self.scratch.state;
                state.copy_from_slice(&self.states[env * self.state_len..(env + 1) * self.state_len]);
                actor.acting.run(last, state, &mut self.scratch.scores, value)?;
            }
            // What an environment that was only reset has shown belongs to the episode before (COLLECT-3).
            if self.state_len > 0 && (done || !valid) {
                self.states[env * self.state_len..(env + 1) * self.state_len].fill(0.0);
                if let Some(reset) = self.rollout.resets.get_mut(row + self.envs) {
                    *reset = true;
                }
            }
        }
        for episode in &outcome.episodes {
            self.interval.add(number, episode.episode_return, episode.length);
            self.counters.episodes += 1;
        }
        Ok(())
    }

    /// Refuses policy outputs that are not finite.
    fn refuse_broken_policy(&self, own: Range<usize>, number: u64) -> Result<(), TrainerError> {
        let envs = self.first_env + (own.start % self.envs.max(1)) as u32..;
        let message = self.rollout.values[own.clone()].iter().zip(&self.rollout.log_probs[own]);
        match message.zip(envs).find(|((value, log_prob), _)| !(*value + *log_prob).is_finite()) {
            None => Ok(()),
            Some(((value, log_prob), env)) => Err(TrainerError::diverged(
                format!(
                    "the policy output for environment {env} in step {number} of the run is not finite: value {value}, log-probability {log_prob}"
                ),
                "resume from an earlier checkpoint, with a lower learning rate",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{self, make_vector};
    use crate::policy::ActorCritic;
    use crate::policy::actor_critic::{ForwardOptions, Layout, PolicyInput};
    use crate::policy::memory::Sequences;
    use rankdeck_types::experiment::{Env, Kernel, MemoryKind, Policy};
    use tch::{Device, Kind, Tensor};

    fn reward_config(num_steps: u32) -> RewardConfig {
        RewardConfig {
            collect: Collect { num_steps, ..Collect::default() },
            gamma: 0.99,
            bootstrap_truncated: false,
        }
    }

    /// Environments that fail on a request inside a step, and on the end of a step that was not started.
    struct Strict {
        inner: Box<dyn VectorEnv>,
        started: bool,
    }

    impl VectorEnv for Strict {
        fn spec(&self) -> &Spec {
            self.inner.spec()
        }
        fn len(&self) -> usize {
            self.inner.len()
        }
        fn observations(&self) -> Observations<'_> {
            assert!(!self.started, "observations inside a step");
            self.inner.observations()
        }
        fn step(&mut self, actions: env::Actions<'_>, outcome: &mut StepOutcome) -> Result<(), EnvError> {
            self.start_step(actions, outcome)?;
            self.finish(outcome)
        }
        fn start_step(
            &mut self,
            actions: env::Actions<'_>,
            outcome: &mut StepOutcome,
        ) -> Result<(), EnvError> {
            assert!(!std::mem::replace(&mut self.started, true), "a step inside a step");
            self.inner.start_step(actions, outcome)
        }
        fn finish(&mut self, outcome: &mut StepOutcome) -> Result<(), EnvError> {
            assert!(std::mem::replace(&mut self.started, false), "the end of no step");
            self.inner.finish(outcome)
        }
        fn reset(&mut self) -> Result<(), EnvError> {
            assert!(!self.started, "a reset inside a step");
            self.inner.reset()
        }
        fn words_per_env(&self) -> Option<usize> {
            self.inner.words_per_env()
        }
        fn save(&self) -> Result<Option<Vec<u64>>, EnvError> {
            self.inner.save()
        }
        fn restore(&mut self, words: &[u64]) -> Result<(), EnvError> {
            self.inner.restore(words)
        }
    }

    fn with(id: &str, envs: usize, first: u32, reward_config: RewardConfig) -> (Collector, Actor) {
        grouped(id, &[envs], first, reward_config)
    }

    /// With as many groups as there are counts.
    fn grouped(id: &str, counts: &[usize], first: u32, reward_config: RewardConfig) -> (Collector, Actor) {
        let policy = Policy { hidden: vec![16], ..Policy::default() };
        with_policy(id, counts, first, (reward_config, &policy))
    }

    fn with_policy(
        id: &str,
        counts: &[usize],
        first: u32,
        (reward_config, settings): (RewardConfig, &Policy),
    ) -> (Collector, Actor) {
        let seeds = Seeds::new(5);
        let mut from = first;
        let vector = |count: &usize| {
            let env = make_vector(&Env::new(id, 1), *count, from, &seeds, 0, env::EnvPurpose::Train).unwrap();
            from += *count as u32;
            Box::new(Strict { inner: env, started: false }) as Box<dyn VectorEnv>
        };
        let vectors: Vec<_> = counts.iter().map(vector).collect();
        let spec = vectors[0].spec().clone();
        let layout = Layout::new(&spec, settings, false).unwrap();
        let policy = ActorCritic::new(layout, &seeds, Device::Cpu).unwrap();
        let mut acting = ActingPolicy::new(&policy, &spec.observation_shape, false, settings);
        acting.load(&policy).unwrap();
        let log_std = match &spec.actions {
            ActionSpace::Discrete { .. } | ActionSpace::MultiDiscrete { .. } => Vec::new(),
            ActionSpace::Continuous { low, .. } => vec![0.0; low.len()],
        };
        let collector = Collector::new(vectors, &spec, reward_config, seeds, first);
        let collector = collector.with_memory(policy.layout().state_len());
        (collector, Actor { acting, log_std, space: spec.actions })
    }

    fn collector(envs: usize, first: u32, steps: u32) -> (Collector, Actor) {
        with("CartPole-v1", envs, first, reward_config(steps))
    }

    /// Continues.
    fn counted(calls: &mut u32) -> Result<bool, TrainerError> {
        *calls += 1;
        Ok(true)
    }

    fn observations(rollout: &Rollout) -> &[f32] {
        rollout.observations.view().f32().unwrap()
    }

    #[test]
    fn collect_1_counters_are_exact() {
        let (mut collector, mut actor) = collector(3, 0, 200);
        let mut calls = 0;
        collector.collect(&mut actor, 0, |_| counted(&mut calls)).unwrap();
        collector.collect(&mut actor, 1, |_| counted(&mut calls)).unwrap();
        let counters = collector.counters();
        assert_eq!((counters.env_step, counters.samples, calls), (1200, 1200, 400));
        let interval = collector.take_interval();
        assert_eq!(interval.returns.count, counters.episodes);
        assert!(counters.episodes > 10 && counters.duration_ns > 0);
        assert_eq!(interval.returns.sum, interval.length as f64);
        assert!(interval.returns.min >= 8.0 && interval.returns.max > interval.returns.min);
        assert_eq!(collector.take_interval(), Interval::default());
    }

    #[test]
    fn dones_mark_first_observations() {
        let (mut collector, mut actor) = collector(2, 0, 300);
        collector.collect(&mut actor, 0, |_| Ok(true)).unwrap();
        let rollout = collector.rollout();
        let begins = rollout.dones.iter().chain(&rollout.next_dones).filter(|done| **done == 1.0).count();
        assert_eq!(begins as u64, collector.counters().episodes);
        for (done, first) in rollout.dones.iter().zip(observations(rollout).chunks(4)) {
            if *done == 1.0 {
                assert!(first.iter().all(|x| x.abs() <= 0.05), "a reset state: {first:?}");
            }
        }
    }

    #[test]
    fn collect_2_two_ranks_collect_what_one_would() {
        let (mut whole, mut actor) = collector(4, 0, 50);
        let (mut second, mut their_actor) = collector(2, 2, 50);
        whole.collect(&mut actor, 3, |_| Ok(true)).unwrap();
        second.collect(&mut their_actor, 3, |_| Ok(true)).unwrap();
        let (ActionBuffer::Discrete(all), ActionBuffer::Discrete(half)) =
            (&whole.rollout().actions, &second.rollout().actions)
        else {
            panic!("discrete actions")
        };
        let columns: Vec<i64> = all.chunks(4).flat_map(|row| &row[2..]).copied().collect();
        assert_eq!(*half, columns);
    }

    /// COLLECT-2: with everything that is carried from step to step.
    #[test]
    fn collect_2_two_groups_collect_what_one_does() {
        for id in ["CartPole-v0", "Pendulum-v1"] {
            let mut settings = RewardConfig { bootstrap_truncated: true, ..reward_config(450) };
            settings.collect.normalise_observations = true;
            settings.collect.normalise_rewards = true;
            let (mut whole, mut actor) = with(id, 6, 0, settings.clone());
            let (mut halves, mut their_actor) = grouped(id, &[3, 3], 0, settings);
            for iteration in 0..3 {
                let mut seen = [Vec::new(), Vec::new()];
                for ((collector, actor), seen) in
                    [(&mut whole, &mut actor), (&mut halves, &mut their_actor)].into_iter().zip(&mut seen)
                {
                    let counters = |counters: &RankCounters| {
                        seen.push((counters.env_step, counters.episodes));
                        Ok(true)
                    };
                    assert!(collector.collect(actor, iteration, counters).unwrap());
                }
                assert_eq!(seen[0], seen[1]);
                assert_eq!(whole.rollout(), halves.rollout());
                assert_eq!(whole.discounted, halves.discounted);
                assert_eq!(whole.moment_words(), halves.moment_words());
                assert_eq!(whole.save_envs(), halves.save_envs());
                assert_eq!(whole.take_interval(), halves.take_interval());
            }
        }
    }

    /// A rollout that is left in the middle leaves no step of a group begun, and another one can follow.
    #[test]
    fn two_groups_can_be_left_after_any_step() {
        for left_after in [1, 7, 20] {
            let (mut halves, mut actor) = grouped("CartPole-v1", &[2, 2], 0, reward_config(20));
            let mut steps = 0;
            let whole = halves.collect(&mut actor, 0, |_| {
                steps += 1;
                Ok(steps < left_after)
            });
            assert!(!whole.unwrap());
            assert!(halves.collect(&mut actor, 1, |_| Ok(true)).unwrap());
        }
    }

    #[test]
    fn restored_collector_continues_bit_exactly() {
        let mut settings = reward_config(77);
        settings.collect.normalise_observations = true;
        settings.collect.normalise_rewards = true;
        let (mut original, mut actor) = with("CartPole-v1", 2, 0, settings.clone());
        original.collect(&mut actor, 0, |_| Ok(true)).unwrap();
        let (mut copy, _) = with("CartPole-v1", 2, 0, settings);
        copy.restore_envs(&original.save_envs().unwrap()).unwrap();
        let words = original.moment_words();
        copy.restore_moments([&words[0], &words[1]]);
        original.collect(&mut actor, 1, |_| Ok(true)).unwrap();
        copy.collect(&mut actor, 1, |_| Ok(true)).unwrap();
        assert_eq!(copy.rollout(), original.rollout());
        assert_eq!(copy.discounted, original.discounted);
        assert!(copy.restore_envs(&[0; 3]).is_err());
    }

    fn remembering(memory: MemoryKind) -> Policy {
        let kernel = Kernel::Libtorch;
        Policy { hidden: vec![8], memory: Some(memory), memory_size: Some(4), kernel, ..Policy::default() }
    }

    const KINDS: [MemoryKind; 2] = [MemoryKind::Lstm, MemoryKind::MinGru];

    /// COLLECT-3. An environment that shows the same at every step, in episodes of 10 steps: a value tells how many
    /// steps of its episode the memory has seen.
    #[test]
    fn collect_3_memory_is_reset_after_the_final_value() {
        for kind in KINDS {
            let settings = RewardConfig { bootstrap_truncated: true, ..reward_config(25) };
            let policy = remembering(kind);
            let (mut collector, mut actor) =
                with_policy("rankdeck/Constant-v0", &[1, 1], 0, (settings, &policy));
            let ActingPolicy::Torch { policy: net, .. } = &actor.acting else { panic!("not by libtorch") };
            let observations = Tensor::ones([16, 1], (Kind::Float, Device::Cpu));
            let state = Tensor::zeros([1, collector.state_len as i64], (Kind::Float, Device::Cpu));
            let sequences = Sequences::new(state, &[false; 16]).unwrap();
            let input = PolicyInput { observations: &observations, masks: None, sequences: Some(&sequences) };
            let (output, _) = net.forward_split(input, ForwardOptions::PLAIN, false).unwrap();
            let expected = Vec::<f32>::try_from(output.values).unwrap();
            for iteration in 0..3 {
                collector.collect(&mut actor, iteration, |_| Ok(true)).unwrap();
                let rollout = collector.rollout();
                let close = |found: f32, seen: usize| {
                    assert!((found - expected[seen]).abs() < 1e-6, "{kind:?} {seen}: {found} {expected:?}");
                };
                let before = 25 * iteration as usize;
                for step in 0..25 {
                    let seen = (before + step) % 10;
                    for env in 0..2 {
                        close(rollout.values[2 * step + env], seen);
                        match rollout.final_values[2 * step + env] {
                            value if seen == 9 => close(value, 10),
                            value => assert_eq!(value, 0.0),
                        }
                        assert_eq!(rollout.resets[2 * step + env], step > 0 && seen == 0);
                    }
                }
                rollout.next_values.iter().for_each(|value| close(*value, (before + 25) % 10));
            }
            let apart = |a: usize, b: usize| (expected[a] - expected[b]).abs();
            assert!(
                apart(0, 10) > 1e-3 && apart(0, 1) > 1e-3 && apart(1, 2) > 1e-4,
                "{kind:?}: {expected:?}"
            );
        }
    }

    #[test]
    fn collect_3_restored_memory_continues_bit_exactly() {
        for kind in KINDS {
            let made = || {
                let policy = remembering(kind);
                with_policy("rankdeck/CartPoleNoVelocity-v1", &[3], 0, (reward_config(33), &policy))
            };
            let ((mut original, mut actor), (mut copy, mut their_actor)) = (made(), made());
            original.collect(&mut actor, 0, |_| Ok(true)).unwrap();
            let words = original.save_envs().unwrap();
            assert_eq!(words.len(), 3 * original.words_per_env());
            copy.restore_envs(&words).unwrap();
            assert_eq!(copy.states, original.states);
            assert!(copy.states.iter().any(|number| *number != 0.0));
            original.collect(&mut actor, 1, |_| Ok(true)).unwrap();
            copy.collect(&mut their_actor, 1, |_| Ok(true)).unwrap();
            assert_eq!(copy.rollout(), original.rollout());
        }
    }

    /// CartPole-v0 cuts episodes after 200 steps: a policy that balances is cut, one that falls is not.
    #[test]
    fn final_value_needs_truncation_and_its_setting() {
        for bootstrap_truncated in [true, false] {
            let (mut collector, mut actor) =
                with("CartPole-v0", 2, 0, RewardConfig { bootstrap_truncated, ..reward_config(900) });
            // Linear control that balances: push to where the pole falls, almost surely.
            let policy = Policy { hidden: vec![], ..Policy::default() };
            let layout = Layout::new(collector.groups[0].env.spec(), &policy, false).unwrap();
            let mut net = ActorCritic::new(layout.clone(), &Seeds::new(1), Device::Cpu).unwrap();
            let mut weights = vec![0.0; layout.len];
            let right = layout.actor[0].weight + 4;
            weights[right..right + 4].copy_from_slice(&[2.0, 10.0, 100.0, 50.0]);
            weights[layout.critic[0].bias] = 7.0;
            net.copy_from(&weights).unwrap();
            actor.acting = ActingPolicy::new(&net, &[4], false, &Policy::default());
            actor.acting.load(&net).unwrap();
            collector.collect(&mut actor, 0, |_| Ok(true)).unwrap();
            let rollout = collector.rollout();
            let cut = rollout.final_values.iter().filter(|value| **value == 7.0).count();
            let other = rollout.final_values.iter().filter(|value| **value != 0.0).count();
            let episodes = collector.counters().episodes as usize;
            assert!(episodes >= 6, "{episodes}");
            assert_eq!((cut, other), if bootstrap_truncated { (episodes, episodes) } else { (0, 0) });
        }
    }

    #[test]
    fn observations_use_the_moments_before_the_rollout() {
        let mut settings = reward_config(20);
        settings.collect.reward_scale = 0.01;
        settings.collect.normalise_observations = true;
        let (mut normalizing, mut actor) = with("CartPole-v1", 2, 0, settings);
        normalizing.collect(&mut actor, 0, |_| Ok(true)).unwrap();
        let rollout = normalizing.rollout();
        assert!(rollout.rewards.iter().all(|reward| *reward == 0.01));
        let (mut plain, _) = collector(2, 0, 1);
        plain.observe(0, 0..2).unwrap();
        for (seen, raw) in observations(rollout)[..8].iter().zip(observations(plain.rollout())) {
            assert!((seen - raw).abs() < 1e-6, "the first moments change nothing");
        }
        assert_eq!(normalizing.moments().len(), 1);
    }
}
