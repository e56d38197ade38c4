//! Collecting experience for the on-policy algorithms: one rank's rollouts and its own counters.
//!
//! Owner: the algorithm. Buffers are made once; a step of Rust environments allocates nothing. The
//! environments are in one group, or in two of which one steps while the policy looks at the other.
//!
//! Invariants:
//! - COLLECT-1: counters are this rank's own and exact: `env_step` and `samples` grow by the accepted
//!   actions, `episodes` by the episodes that ended, `duration_ns` by the time inside [`Collector::collect`].
//! - COLLECT-2: a rollout depends on weights, moments, environment states, base seed, iteration and global
//!   environment indices only. In how many groups the environments are changes nothing but what the policy's
//!   answers to fewer rows at once change: nothing where the hand-written passes give them.

mod step;

pub use super::counters::{Interval, RankCounters};
use super::env::{ActionSpace, EnvError, ObservationBuffer, Observations, Spec, StepOutcome, VectorEnv};
use super::error::TrainerError;
use super::normalise::RunningMoments;
use super::policy::ActingPolicy;
use super::policy::distribution::most_probable;
use super::rollout::{ActionBuffer, Rollout};
use rankdeck_kernel::seeds::{Purpose, Seeds};
use rankdeck_proto::show::{ScoreKind, Thought};
use rankdeck_types::experiment::Collect;
use std::ops::Range;
use std::time::Instant;

/// How rewards and ends of episodes count.
#[derive(Debug, Clone, PartialEq)]
pub struct RewardConfig {
    /// `[collect]`.
    pub collect: Collect,
    /// Discount, for the normalisation of rewards.
    pub gamma: f64,
    /// The value of a cut-off episode's last observation counts.
    pub bootstrap_truncated: bool,
}

/// A policy ready to act, with the logarithms of the deviations of continuous actions.
pub struct Actor {
    /// The networks.
    pub acting: ActingPolicy,
    /// Empty for discrete actions.
    pub log_std: Vec<f32>,
    /// The actions that the environment takes.
    pub space: ActionSpace,
}

/// What a policy thought of all environments at its latest look.
#[derive(Default)]
pub struct Thoughts {
    kind: ScoreKind,
    /// Scores per environment.
    each: usize,
    scores: Vec<f32>,
    values: Vec<f32>,
}

impl Thoughts {
    /// Of one environment.
    pub fn of(&self, env: usize) -> Option<Thought> {
        let mut scores = self.scores.chunks_exact(self.each.max(1)).nth(env)?.to_vec();
        if self.kind == ScoreKind::Probability {
            softmax(&mut scores);
        }
        Some(Thought { kind: self.kind, scores, value: self.values.get(env).copied() })
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
struct Group {
    env: Box<dyn VectorEnv>,
    /// The rank's index of its first environment.
    first: usize,
    outcome: StepOutcome,
    scores: Vec<f32>,
    actions: ActionBuffer,
    clipped: ActionBuffer,
}

/// A rank's environments and buffers.
pub struct Collector {
    groups: Vec<Group>,
    envs: usize,
    seeds: Seeds,
    first_env: u32,
    reward_config: RewardConfig,
    rollout: Rollout,
    next_dones: Vec<f32>,
    /// Discounted returns so far of each environment, whose deviation scales rewards.
    discounted: Vec<f64>,
    observations: Option<RunningMoments>,
    returns: Option<RunningMoments>,
    counters: RankCounters,
    interval: Interval,
    scratch: Scratch,
}

/// Buffers of one environment's step.
struct Scratch {
    scores: Vec<f32>,
    probabilities: Vec<f32>,
    row: Vec<f32>,
}

impl Group {
    fn new(env: Box<dyn VectorEnv>, first: usize) -> Group {
        let (spec, envs) = (env.spec().clone(), env.len());
        let actions = ActionBuffer::new(&spec.actions, envs);
        Group {
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

impl Collector {
    /// Collects `collect.num_steps` steps per environment and rollout, from one group of environments or
    /// more, all of the same shapes; `first_env` is the global index of the first environment.
    pub fn new(
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
            Group::new(env, first)
        };
        let groups = vectors.into_iter().map(group).collect();
        let Collect { num_steps, normalise_observations, normalise_rewards, .. } = reward_config.collect;
        Collector {
            rollout: Rollout::new(spec, num_steps as usize, envs, normalise_observations),
            next_dones: vec![0.0; envs],
            discounted: vec![0.0; envs],
            observations: normalise_observations.then(|| RunningMoments::new(spec.observation_len())),
            returns: normalise_rewards.then(|| RunningMoments::new(1)),
            scratch: Scratch {
                scores: vec![0.0; spec.actions.width()],
                probabilities: Vec::with_capacity(spec.actions.width()),
                row: vec![0.0; spec.observation_len()],
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

    /// Plays one rollout. `moved` is called after every step of all environments and says whether to go on;
    /// `false`: it was left. Rewards are not normalised yet: [`Collector::normalise_rewards`] does that
    /// once the moments are merged.
    pub fn collect(
        &mut self,
        actor: &mut Actor,
        iteration: u64,
        mut moved: impl FnMut(&RankCounters) -> Result<bool, TrainerError>,
    ) -> Result<bool, TrainerError> {
        let begun = Instant::now();
        let mut randoms: Vec<_> = (self.first_env..)
            .take(self.envs)
            .map(|index| self.seeds.generator(Purpose::Action, index, iteration))
            .collect();
        self.rollout.final_values.fill(0.0);
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
                    self.begin(group, (iteration, step), actor, &mut randoms)?;
                }
            }
        }
        for group in 0..self.groups.len() {
            let seen = self.look(group);
            let Group { env, first, scores, .. } = &mut self.groups[group];
            let values = &mut self.rollout.next_values[*first..*first + env.len()];
            actor.acting.run(seen.view(), scores, values)?;
        }
        self.rollout.next_dones.copy_from_slice(&self.next_dones);
        self.counters.duration_ns += begun.elapsed().as_nanos() as u64;
        Ok(true)
    }

    /// What the policy would see of a group now; the moments do not change.
    fn look(&self, group: usize) -> ObservationBuffer {
        match (self.groups[group].env.observations(), &self.observations) {
            (Observations::U8(pixels), _) => ObservationBuffer::U8(pixels.to_vec()),
            (Observations::F32(values), None) => ObservationBuffer::F32(values.to_vec()),
            (Observations::F32(values), Some(running)) => {
                let width = self.rollout.width();
                let mut seen = vec![0.0; values.len()];
                for (to, from) in seen.chunks_exact_mut(width).zip(values.chunks_exact(width)) {
                    running.normalise(from, self.reward_config.collect.clip_observations, to);
                }
                ObservationBuffer::F32(seen)
            }
        }
    }

    /// The largest reward and observation of the rollout, for messages.
    pub fn largest(&self) -> String {
        let most = |values: &[f32]| values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        let seen = match &self.rollout.observations {
            ObservationBuffer::F32(values) => most(values),
            ObservationBuffer::U8(_) => {
                return format!("; rewards are up to {:e}", most(&self.rollout.rewards));
            }
        };
        format!("; rewards are up to {:e}, observations up to {seen:e}", most(&self.rollout.rewards))
    }

    /// This rank's moments, to be merged over all ranks.
    pub fn moments(&mut self) -> Vec<&mut RunningMoments> {
        self.observations.iter_mut().chain(self.returns.iter_mut()).collect()
    }

    /// Divides the rollout's rewards by the deviation of the discounted return, if so configured.
    pub fn normalise_rewards(&mut self) {
        let Some(returns) = &self.returns else { return };
        let (scale, clip) = (returns.scale(), self.reward_config.collect.clip_rewards);
        for reward in &mut self.rollout.rewards {
            *reward = (f64::from(*reward) * scale).clamp(-clip, clip) as f32;
        }
    }

    /// The rollout collected last.
    pub fn rollout(&self) -> &Rollout {
        &self.rollout
    }

    /// Counters so far.
    pub fn counters(&self) -> RankCounters {
        self.counters
    }

    /// Continues from the counters of a checkpoint.
    pub fn resume_counters(&mut self, counters: RankCounters) {
        self.counters = counters;
    }

    /// Episodes since the last call.
    pub fn take_interval(&mut self) -> Interval {
        std::mem::take(&mut self.interval)
    }

    /// The most probable actions for `observations`, as an environment takes them, and what was thought.
    /// Observations are normalised as in training.
    pub fn greedy(
        &self,
        actor: &mut Actor,
        observations: Observations<'_>,
        to: &mut ActionBuffer,
        thoughts: &mut Thoughts,
    ) -> Result<(), TrainerError> {
        let width = self.rollout.width();
        let normalised = match (observations, &self.observations) {
            (Observations::F32(values), Some(running)) => {
                let mut seen = vec![0.0; values.len()];
                for (to, from) in seen.chunks_exact_mut(width).zip(values.chunks_exact(width)) {
                    running.normalise(from, self.reward_config.collect.clip_observations, to);
                }
                Some(seen)
            }
            _ => None,
        };
        let observations = normalised.as_deref().map_or(observations, Observations::F32);
        let len = match observations {
            Observations::F32(values) => values.len(),
            Observations::U8(pixels) => pixels.len(),
        };
        let count = len / width.max(1);
        let each = actor.space.width();
        let (mut scores, mut values) = (vec![0.0; count * each], vec![0.0; count]);
        actor.acting.run(observations, &mut scores, &mut values)?;
        let (kind, scores) = match to {
            ActionBuffer::Discrete(actions) => {
                for (action, scores) in actions.iter_mut().zip(scores.chunks_exact(each.max(1))) {
                    *action = most_probable(scores);
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
        *thoughts = Thoughts { kind, each, scores, values };
        Ok(())
    }

    /// The merged moments: of observations and of returns, as words; empty where they are not kept.
    pub fn moment_words(&self) -> [Vec<u64>; 2] {
        [&self.observations, &self.returns]
            .map(|running| running.as_ref().map_or(Vec::new(), RunningMoments::words))
    }

    /// Restores [`Collector::moment_words`].
    pub fn restore_moments(&mut self, words: [&[u64]; 2]) {
        for (running, words) in [&mut self.observations, &mut self.returns].into_iter().zip(words) {
            if let Some(running) = running {
                running.restore(words);
            }
        }
    }

    /// Words per environment in [`Collector::save_envs`]; 0 when environments cannot be saved.
    pub fn words_per_env(&self) -> usize {
        let words = self.groups.first().and_then(|group| group.env.words_per_env());
        words.map_or(0, |words| words + 2)
    }

    /// Every environment's state, done flag and discounted return, [`Collector::words_per_env`] words each.
    pub fn save_envs(&self) -> Vec<u64> {
        let each = self.words_per_env().saturating_sub(2).max(1);
        let saved: Option<Vec<Vec<u64>>> = self.groups.iter().map(|group| group.env.save()).collect();
        let Some(states) = saved.filter(|_| self.words_per_env() > 0) else { return Vec::new() };
        let own = self.next_dones.iter().zip(&self.discounted);
        states
            .iter()
            .flat_map(|states| states.chunks(each))
            .zip(own)
            .flat_map(|(state, (done, discounted))| {
                state.iter().copied().chain([u64::from(done.to_bits()), discounted.to_bits()])
            })
            .collect()
    }

    /// Restores [`Collector::save_envs`] of the same number of environments.
    pub fn restore_envs(&mut self, words: &[u64]) -> Result<(), EnvError> {
        let each = self.words_per_env();
        if each == 0 || words.len() != each * self.envs {
            return Err(EnvError::State { expected: each * self.envs, found: words.len() });
        }
        for Group { env, first, .. } in &mut self.groups {
            let own = words.chunks(each).skip(*first).take(env.len());
            let states: Vec<u64> = own.flat_map(|chunk| &chunk[..each - 2]).copied().collect();
            env.restore(&states)?;
        }
        let own = self.next_dones.iter_mut().zip(&mut self.discounted);
        for ((done, discounted), chunk) in own.zip(words.chunks(each)) {
            *done = f32::from_bits(chunk[each - 2] as u32);
            *discounted = f64::from_bits(chunk[each - 1]);
        }
        Ok(())
    }
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

#[cfg(test)]
#[path = "collect_tests.rs"]
mod tests;
