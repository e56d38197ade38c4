//! Parallelized Q-learning (PQN): Q-learning from rollouts, without replay and without a target network.
//!
//! Gallici et al. 2024, "Simplifying Deep Temporal Difference Learning" (arXiv 2407.04811), algorithm 1. Layer
//! normalization in the network keeps the targets stable. All environments are stepped for `collect.num_steps`
//! steps, epsilon-greedily; the targets are Q(lambda) returns, computed once from the end of the rollout:
//!
//! `R[t] = r[t] + gamma * (lambda * R[t+1] + (1 - lambda) * max_a Q(s[t+1], a))`,
//!
//! and `R[t] = r[t]` where the episode ended. The network then learns from shuffled minibatches for some epochs, by
//! the mean squared error. Settings, network and optimizer (RAdam) are those of CleanRL's pqn.py and
//! pqn_atari_envpool.py, and the returns are those of mttga/purejaxql's pqn_gymnax.py: CleanRL's add the return of
//! the next episode where one ended.
//!
//! Epsilon falls with the environment steps over all ranks, so that it depends on experience and not on the world
//! size.
//!
//! Invariants:
//! - PQN-1: gradients are averaged over the ranks, then clipped: where all ranks make one minibatch of their
//!   rollouts, they learn what one rank would learn from the whole.
//! - PQN-2: every rank makes the same number of updates: it depends on settings only.
//! - PQN-3: actions that `env.action_masks` excludes are neither taken nor part of a target.

use super::batch::Batches;
use super::device_metrics::{self, DeviceMetrics};
use super::epsilon_greedy::{best_value, linear, mask_of, random_action};
use super::radam::RAdam;
use super::stop_points::WorkKind;
use super::{Algorithm, BuildContext, Greedy, IterationStats, ScalarStat, StepContext, bucket_bytes};
use crate::collect::normalize::{self, ObservationNorm, RunningMoments};
use crate::collect::rollout::{ActionBuffer, Rollout, rows};
use crate::collect::{Interval, RankCounters};
use crate::distributed::Ddp;
use crate::distributed::cuda::CapturedPass;
use crate::distributed::memory::upload;
use crate::env::{EnvError, ObservationBuffer, Observations, Spec, StepOutcome, VectorEnv};
use crate::error::TrainerError;
use crate::inject;
use crate::policy::acting;
use crate::policy::distribution::most_probable;
use crate::policy::normalized_q::NormalizedQLayout;
use crate::policy::parameters::{Parameters, initial};
use crate::policy::trunk::Rows;
use crate::support::state::{AlgorithmState, MODEL, NamedWords, RestoredState};
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_kernel::seeds::{Purpose, Seeds};
use rankdeck_proto::message::Phase;
use rankdeck_proto::show::{PolicyEstimate, ScoreKind};
use rankdeck_types::experiment::{Collect, Experiment};
use rankdeck_types::learn::{NormAdv, PqnConfig as Settings};
use std::time::Instant;
use tch::{Device, Kind, TchError, Tensor};

/// The network, and how it acts.
struct PqnNetwork {
    layout: NormalizedQLayout,
    parameters: Parameters,
    acting: CapturedPass,
    /// Of one observation.
    shape: Vec<i64>,
    device: Device,
}

impl PqnNetwork {
    /// Writes the Q-values of all actions, `[rows][actions]`.
    fn values(
        &mut self,
        observations: Observations<'_>,
        count: usize,
        q: &mut Vec<f32>,
    ) -> Result<(), TchError> {
        let input = upload(acting::batch(observations, count, &self.shape)?, self.device)?;
        let PqnNetwork { layout, parameters, acting, .. } = self;
        let values =
            tch::no_grad(|| acting.run(&input, |input| layout.forward(parameters.tensors(), input)))?;
        let values = values.f_to_device(Device::Cpu)?.f_contiguous()?;
        q.resize(values.numel(), 0.0);
        let len = q.len();
        values.f_copy_data(q, len)
    }
}

/// A rank's environments and its latest rollout.
struct PqnCollector {
    env: Box<dyn VectorEnv>,
    outcome: StepOutcome,
    actions: ActionBuffer,
    rollout: Rollout,
    /// `[steps][envs]`: an episode ended with this step.
    ends: Vec<bool>,
    /// What the network should learn, `[steps][envs]`.
    targets: Vec<f32>,
    norm: ObservationNorm,
    /// Moments of discounted returns, whose deviation scales rewards.
    returns: Option<RunningMoments>,
    /// Discounted return so far of each environment.
    discounted: Vec<f64>,
    collect: Collect,
    seeds: Seeds,
    first_env: u32,
    counters: RankCounters,
    interval: Interval,
}

/// PQN on one rank.
pub(crate) struct PqnAlgorithm {
    settings: Settings,
    network: PqnNetwork,
    optimizer: RAdam,
    ddp: Ddp,
    batches: Batches,
    metrics: DeviceMetrics,
    collector: PqnCollector,
    /// Q-values of the latest pass.
    q: Vec<f32>,
    fingerprint_every: u64,
}

/// Refuses what cannot work, before any rank is waited for.
pub(crate) fn check(experiment: &Experiment, spec: &Spec) -> Result<(), TrainerError> {
    NormalizedQLayout::new(spec, &experiment.policy).map(drop)
}

fn wrong_actions() -> TrainerError {
    TrainerError::failure("PQN supports discrete actions only", "")
}

impl PqnAlgorithm {
    /// Collective: weights are copied from rank 0.
    pub(crate) fn new(settings: &Settings, build: &BuildContext<'_>) -> Result<PqnAlgorithm, TrainerError> {
        let BuildContext { experiment, sizes, spec, seeds, device, group, .. } = build;
        let layout = NormalizedQLayout::new(spec, &experiment.policy)?;
        let parameters = Parameters::new(&layout.entries, &initial(&layout.entries, seeds), *device)?;
        let ddp = Ddp::new(parameters.named(), Vec::new(), group, bucket_bytes(experiment))?;
        let minibatch = sizes.local_batch / settings.num_minibatches.max(1) as usize;
        let updates = u64::from(settings.update_epochs) * u64::from(settings.num_minibatches);
        Ok(PqnAlgorithm {
            optimizer: RAdam::new(layout.len(), settings.adam_eps, *device)?,
            ddp,
            batches: Batches::new(NormAdv::Off, minibatch, *device, Rows::of(&experiment.policy)),
            metrics: DeviceMetrics::new(updates as usize, *device)?,
            collector: PqnCollector::new(build)?,
            network: PqnNetwork {
                layout,
                parameters,
                acting: CapturedPass::new(*device, experiment.policy.cuda_graphs),
                shape: spec.observation_shape.iter().map(|side| *side as i64).collect(),
                device: *device,
            },
            q: Vec::new(),
            fingerprint_every: experiment.distributed.fingerprint_every,
            settings: settings.clone(),
        })
    }

    /// The probability of a random action after `env_step` environment steps over all ranks.
    fn epsilon(&self, env_step: u64) -> f64 {
        let Settings { epsilon_start, epsilon_end, epsilon_steps, .. } = self.settings;
        linear(epsilon_start, epsilon_end, epsilon_steps, env_step)
    }

    /// Collects a rollout and computes its targets; false: the iteration is left.
    fn collect(&mut self, ctx: &StepContext<'_>) -> Result<bool, TrainerError> {
        let started = Instant::now();
        let steps = self.collector.rollout.steps;
        let envs = self.collector.env.len();
        let actions = self.network.layout.actions();
        let mut randoms: Vec<_> = (self.collector.first_env..)
            .take(envs)
            .map(|index| self.collector.seeds.generator(Purpose::Action, index, ctx.iteration))
            .collect();
        // All ranks make the same number of steps.
        let all_envs = envs as u64 * u64::from(ctx.group.world_size());
        self.collector.rollout.final_values.fill(0.0);
        for step in 0..steps {
            let epsilon = self.epsilon(ctx.env_step + step as u64 * all_envs);
            let PqnAlgorithm { collector, network, q, .. } = self;
            collector.observe(step)?;
            let seen = collector.rollout.rows(step * envs, (step + 1) * envs);
            network.values(seen, envs, q)?;
            collector.refuse_broken(q, step)?;
            collector.act(step, (q.as_slice(), actions), epsilon, &mut randoms)?;
            inject::here(inject::Hook::EnvStep);
            collector.env.step(collector.actions.view(), &mut collector.outcome)?;
            let number = ctx.iteration * steps as u64 + step as u64;
            self.note((number, step))?;
            ctx.stepped(&self.collector.counters);
            if ctx.leaves(WorkKind::Step)? {
                return Ok(false);
            }
        }
        let PqnAlgorithm { collector, network, q, .. } = self;
        network.values(collector.norm.view(collector.env.observations()), envs, q)?;
        let masks = collector.env.masks();
        for (env, (value, q)) in
            collector.rollout.next_values.iter_mut().zip(q.chunks_exact(actions.max(1))).enumerate()
        {
            *value = best_value(q, mask_of(masks, actions, env));
        }
        collector.counters.duration_ns += started.elapsed().as_nanos() as u64;
        Ok(true)
    }

    /// Takes the outcome of a step, which is step `number` of the run and `step` of the rollout.
    fn note(&mut self, (number, step): (u64, usize)) -> Result<(), TrainerError> {
        let PqnAlgorithm { collector, network, settings, q, .. } = self;
        let PqnCollector {
            outcome,
            rollout,
            ends,
            returns,
            discounted,
            collect,
            norm,
            counters,
            interval,
            ..
        } = collector;
        let (envs, width, actions) = (rollout.envs, rollout.width(), network.layout.actions());
        for (env, discounted) in discounted.iter_mut().enumerate().take(envs) {
            let (row, valid, done) = (step * envs + env, outcome.valid[env], outcome.done(env));
            rollout.weights[row] = f32::from(u8::from(valid));
            ends[row] = done;
            let reward = f64::from(outcome.rewards[env]) * collect.reward_scale;
            rollout.rewards[row] = reward as f32;
            if let Some(returns) = returns.as_mut().filter(|_| valid) {
                *discounted = *discounted * settings.gamma + reward;
                returns.note(0, std::iter::once(*discounted));
                *discounted *= f64::from(u8::from(!done));
            }
            counters.env_step += u64::from(valid);
            counters.samples += u64::from(valid);
            let cut = outcome.truncated[env] && !outcome.terminated[env];
            if settings.bootstrap_truncated && valid && cut {
                let last = rows(outcome.final_observations.view(), env * width..(env + 1) * width);
                network.values(norm.view(last), 1, q)?;
                let mask = mask_of(Some(outcome.final_masks.as_slice()), actions, env);
                rollout.final_values[row] = best_value(q, mask);
            }
        }
        for episode in &outcome.episodes {
            interval.add(number, episode.episode_return, episode.length);
            counters.episodes += 1;
        }
        Ok(())
    }

    /// All epochs; false: the iteration is left.
    fn learn(
        &mut self,
        ctx: &StepContext<'_>,
        random: &mut Generator,
        stats: &mut IterationStats,
    ) -> Result<bool, TrainerError> {
        let (mut last, mut made) = (None, 0);
        self.batches.load(&self.collector.rollout, &self.collector.targets, None)?;
        for _ in 0..self.settings.update_epochs {
            let PqnCollector { rollout, targets, .. } = &self.collector;
            self.batches.start_epoch(targets, &rollout.weights, random, ctx.group)?;
            for k in 0..self.batches.count() {
                last = Some(self.update(k, ctx, stats.learning_rate)?);
                made += 1;
                stats.updates = made;
                ctx.updated(stats);
                if ctx.leaves(WorkKind::Update)? {
                    return Ok(false);
                }
            }
        }
        ctx.group.settle()?;
        let numbers = match last {
            Some(last) => device_metrics::numbers(&last)?,
            None => vec![f64::NAN; 2],
        };
        stats.losses = vec![
            ScalarStat::loss("losses/td_loss", numbers[0]),
            ScalarStat::other("losses/q_values", numbers[1]),
            ScalarStat::other("charts/epsilon", self.epsilon(ctx.env_step)),
        ];
        Ok(true)
    }

    /// One update on minibatch `k`; returns its loss and the mean Q-value of its actions.
    fn update(&mut self, k: usize, ctx: &StepContext<'_>, rate: f64) -> Result<[Tensor; 2], TrainerError> {
        let PqnAlgorithm { settings, network, optimizer, ddp, batches, metrics, collector, .. } = self;
        let batch = batches.get(k)?;
        metrics.start_update();
        let q = network.layout.forward(network.parameters.tensors(), &batch.observations)?;
        let taken = q.f_gather(1, &batch.actions.f_unsqueeze(-1)?, false)?.f_view([-1])?;
        let loss = batch.mean(&taken.f_sub(&batch.returns)?.f_square()?)?;
        metrics.loss("losses/td_loss", &loss, || collector.largest())?;
        ddp.differentiate(&loss)?;
        ddp.reduce(ctx.group)?;
        if let Some(norm) = optimizer.step(&mut network.parameters, ddp, (rate, settings.max_grad_norm))? {
            metrics.norm(norm);
        }
        metrics.store()?;
        metrics.finish_update();
        Ok([loss.f_detach()?, taken.f_detach()?.f_mean(None::<Kind>)?])
    }
}

impl PqnCollector {
    /// Environments reset.
    fn new(build: &BuildContext<'_>) -> Result<PqnCollector, TrainerError> {
        let BuildContext { experiment, sizes, spec, seeds, .. } = build;
        let env = super::environments(build)?;
        let (collect, envs) = (experiment.collect.clone(), sizes.local_envs as usize);
        let mut rollout = Rollout::new(spec, sizes.num_steps as usize, envs, collect.normalise_observations);
        if env.masks().is_some() {
            rollout.masks = vec![1; rollout.len() * spec.actions.width()];
        }
        Ok(PqnCollector {
            outcome: StepOutcome::new(spec, envs),
            actions: ActionBuffer::new(&spec.actions, envs),
            ends: vec![false; rollout.len()],
            targets: vec![0.0; rollout.len()],
            norm: ObservationNorm::new(&collect, spec),
            returns: collect.normalise_rewards.then(|| RunningMoments::new(1, 1)),
            discounted: vec![0.0; envs],
            seeds: *seeds,
            first_env: sizes.first_env,
            counters: RankCounters::default(),
            interval: Interval::default(),
            env,
            rollout,
            collect,
        })
    }

    /// Writes what the network sees into these rows of the rollout.
    fn observe(&mut self, step: usize) -> Result<(), TrainerError> {
        let PqnCollector { env, norm, rollout, .. } = self;
        let (envs, width) = (rollout.envs, rollout.width());
        let range = step * envs * width..(step + 1) * envs * width;
        norm.note(env.observations());
        match (&mut rollout.observations, norm.view(env.observations())) {
            (ObservationBuffer::F32(to), Observations::F32(from)) => to[range].copy_from_slice(from),
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

    /// Chooses the actions of a step by these Q-values, and notes them with the largest value of each row.
    fn act(
        &mut self,
        step: usize,
        (q, count): (&[f32], usize),
        epsilon: f64,
        randoms: &mut [Generator],
    ) -> Result<(), TrainerError> {
        let PqnCollector { env, actions, rollout, .. } = self;
        let masks = env.masks();
        let first = step * rollout.envs;
        if let Some(masks) = masks {
            rollout.masks[first * count..first * count + masks.len()].copy_from_slice(masks);
        }
        let ActionBuffer::Discrete(chosen) = actions else { return Err(wrong_actions()) };
        let each = chosen.iter_mut().zip(q.chunks_exact(count.max(1))).zip(randoms);
        for (env, ((action, q), random)) in each.enumerate() {
            let mask = mask_of(masks, count, env);
            rollout.values[first + env] = best_value(q, mask);
            *action = match random.next_f64() < epsilon {
                true => random_action(count, mask, random),
                false => most_probable(q, mask),
            };
        }
        rollout.actions.put(first, actions);
        Ok(())
    }

    /// Refuses Q-values that are not finite.
    fn refuse_broken(&self, q: &[f32], step: usize) -> Result<(), TrainerError> {
        match q.iter().find(|value| !value.is_finite()) {
            None => Ok(()),
            Some(value) => Err(TrainerError::diverged(
                format!("a Q-value in step {step} of the rollout is not finite: {value}"),
                "resume from an earlier checkpoint, with a lower learning rate",
            )),
        }
    }

    /// The largest reward and observation of the rollout, for messages.
    fn largest(&self) -> String {
        let most = |values: &[f32]| values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        let rewards = most(&self.rollout.rewards);
        match &self.rollout.observations {
            ObservationBuffer::F32(values) => {
                format!("; largest reward {rewards:e}, largest observation {:e}", most(values))
            }
            ObservationBuffer::U8(_) => format!("; largest reward {rewards:e}"),
        }
    }

    /// Divides the rollout's rewards by the deviation of the discounted return, if so configured, and computes
    /// the targets.
    fn finish(&mut self, settings: &Settings) {
        if let Some(returns) = &self.returns {
            let (scale, clip) = (returns.scale(), self.collect.clip_rewards);
            for reward in &mut self.rollout.rewards {
                *reward = (f64::from(*reward) * scale).clamp(-clip, clip) as f32;
            }
        }
        let (gamma, lambda) = (settings.gamma as f32, settings.q_lambda as f32);
        q_lambda(&self.rollout, &self.ends, (gamma, lambda), &mut self.targets);
    }

    /// Words per environment in a checkpoint; 0 when environments cannot be saved.
    fn words_per_env(&self) -> usize {
        self.env.words_per_env().map_or(0, |words| words + 1)
    }

    /// Every environment's state and discounted return.
    fn save_envs(&self) -> Result<Vec<u64>, EnvError> {
        let each = self.words_per_env().saturating_sub(1);
        let states = self.env.save()?.unwrap_or_default();
        if self.words_per_env() == 0 || states.len() != each * self.discounted.len() {
            return Ok(Vec::new());
        }
        let mut words = Vec::with_capacity(states.len() + self.discounted.len());
        for (env, discounted) in self.discounted.iter().enumerate() {
            words.extend_from_slice(&states[env * each..(env + 1) * each]);
            words.push(discounted.to_bits());
        }
        Ok(words)
    }

    /// Restores [`PqnCollector::save_envs`] of the same number of environments.
    fn restore_envs(&mut self, words: &[u64]) -> Result<(), EnvError> {
        let each = self.words_per_env();
        if each == 0 || words.len() != each * self.discounted.len() {
            return Err(EnvError::State { expected: each * self.discounted.len(), found: words.len() });
        }
        let states: Vec<u64> = words.chunks(each).flat_map(|own| &own[..each - 1]).copied().collect();
        self.env.restore(&states)?;
        for (discounted, own) in self.discounted.iter_mut().zip(words.chunks(each)) {
            *discounted = f64::from_bits(own[each - 1]);
        }
        Ok(())
    }
}

/// Writes the Q(lambda) returns of a rollout, `[steps][envs]`. Where an episode ended, nothing follows but what
/// `final_values` has.
fn q_lambda(rollout: &Rollout, ends: &[bool], (gamma, lambda): (f32, f32), targets: &mut [f32]) {
    let envs = rollout.envs;
    for env in 0..envs {
        // Behind the last step there is no return but the value.
        let (mut value, mut follows) = (rollout.next_values[env], rollout.next_values[env]);
        for step in (0..rollout.steps).rev() {
            let i = step * envs + env;
            let next = match ends[i] {
                true => rollout.final_values[i],
                false => lambda * follows + (1.0 - lambda) * value,
            };
            targets[i] = rollout.rewards[i] + gamma * next;
            (value, follows) = (rollout.values[i], targets[i]);
        }
    }
}

impl Algorithm for PqnAlgorithm {
    fn can_be_left(&self, _iteration: u64, long: bool) -> bool {
        long
    }

    fn iterate(&mut self, ctx: &StepContext<'_>) -> Result<IterationStats, TrainerError> {
        let Settings { learning_rate, anneal_lr, update_epochs, num_minibatches, .. } = self.settings;
        let mut stats = IterationStats {
            learning_rate: ctx.annealed(learning_rate, anneal_lr),
            planned: u64::from(update_epochs) * u64::from(num_minibatches),
            ..IterationStats::default()
        };
        let left = IterationStats { left: true, ..IterationStats::default() };
        ctx.phase(Phase::Rollout);
        if !self.collect(ctx)? {
            ctx.group.settle()?;
            return Ok(left);
        }
        ctx.phase(Phase::Learn);
        let PqnCollector { norm, returns, .. } = &mut self.collector;
        let mut moments: Vec<&mut RunningMoments> =
            norm.moments().into_iter().chain(returns.as_mut()).collect();
        normalize::merge(&mut moments, ctx.group, self.network.device)?;
        self.collector.finish(&self.settings);
        let mut random = self.collector.seeds.generator(Purpose::Shuffle, ctx.group.rank(), ctx.iteration);
        if !self.learn(ctx, &mut random, &mut stats)? {
            ctx.group.settle()?;
            return Ok(left);
        }
        let covered: &[&Ddp] =
            if stats.covered(ctx.updates, self.fingerprint_every) { &[&self.ddp] } else { &[] };
        let prints = self.metrics.finish_iteration(covered, ctx.group, || self.collector.largest())?;
        prints.into_iter().for_each(|print| stats.cover(print));
        Ok(stats)
    }

    fn counters(&self) -> RankCounters {
        self.collector.counters
    }

    fn take_interval(&mut self) -> Interval {
        std::mem::take(&mut self.collector.interval)
    }

    fn greedy(&mut self) -> Result<&mut dyn Greedy, TrainerError> {
        Ok(self)
    }

    /// Weights, moments, step count, normalizers, environments.
    fn state(&self) -> Result<AlgorithmState, TrainerError> {
        let mut state = AlgorithmState::default();
        state.arrays.extend(self.network.parameters.arrays(MODEL)?);
        state.arrays.extend(self.optimizer.arrays()?);
        let PqnCollector { norm, returns, .. } = &self.collector;
        let words = |name: &str, values: Option<Vec<u64>>| NamedWords {
            name: name.into(),
            values: values.unwrap_or_default(),
        };
        state.words = vec![
            self.optimizer.words(),
            words("moments.observations", norm.words()),
            words("moments.returns", returns.as_ref().map(RunningMoments::words)),
        ];
        state.add_envs(self.collector.save_envs(), self.collector.words_per_env());
        Ok(state)
    }

    fn restore(&mut self, restored: &RestoredState) -> Result<(), TrainerError> {
        restored.copy_to(MODEL, self.network.parameters.named())?;
        self.optimizer.restore(restored)?;
        let collector = &mut self.collector;
        collector.norm.restore(restored.words("moments.observations"));
        if let Some(returns) = &mut collector.returns {
            returns.restore(restored.words("moments.returns"));
        }
        collector.counters = restored.counters;
        if let Some(envs) = &restored.envs {
            collector.restore_envs(envs)?;
        }
        Ok(())
    }
}

impl PqnAlgorithm {
    /// Chooses actions for all environments: random ones with this probability, else the best.
    fn choose(
        &mut self,
        (observations, masks): (Observations<'_>, Option<&[u8]>),
        epsilon: f64,
        randoms: Option<&mut [Generator]>,
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError> {
        let ActionBuffer::Discrete(actions) = actions else { return Err(wrong_actions()) };
        let PqnAlgorithm { network, collector, q, .. } = self;
        let count = network.layout.actions();
        network.values(collector.norm.view(observations), actions.len(), q)?;
        let mut randoms = randoms.map(|randoms| randoms.iter_mut());
        for (env, (action, q)) in actions.iter_mut().zip(q.chunks_exact(count.max(1))).enumerate() {
            let mask = mask_of(masks, count, env);
            let mut random = randoms.as_mut().and_then(Iterator::next);
            let explores = random.as_mut().is_some_and(|random| random.next_f64() < epsilon);
            *action = match random {
                Some(random) if explores => random_action(count, mask, random),
                _ => most_probable(q, mask),
            };
        }
        Ok(())
    }
}

impl Greedy for PqnAlgorithm {
    fn act(
        &mut self,
        observations: Observations<'_>,
        masks: Option<&[u8]>,
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError> {
        self.choose((observations, masks), 0.0, None, actions)
    }

    /// With the last epsilon.
    fn sample(
        &mut self,
        observations: Observations<'_>,
        masks: Option<&[u8]>,
        randoms: &mut [Generator],
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError> {
        self.choose((observations, masks), self.settings.epsilon_end, Some(randoms), actions)
    }

    fn estimate(&self, env: usize) -> Option<PolicyEstimate> {
        let scores = self.q.chunks_exact(self.network.layout.actions().max(1)).nth(env)?.to_vec();
        let value = scores.iter().copied().reduce(f32::max);
        Some(PolicyEstimate { kind: ScoreKind::Q, scores, value, ..PolicyEstimate::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rollout(steps: usize, envs: usize) -> Rollout {
        Rollout::new(&Spec::discrete(1, 2), steps, envs, false)
    }

    /// By hand, with gamma 0.5 and lambda 0.5, from the end.
    #[test]
    fn q_lambda_returns_equal_values_computed_by_hand() {
        let mut made = rollout(3, 1);
        made.rewards = vec![1.0, 2.0, 4.0];
        made.values = vec![9.0, 3.0, 6.0];
        made.next_values = vec![8.0];
        let mut targets = [0.0; 3];
        // t=2: 4 + 0.5 * 8 = 8; t=1: 2 + 0.5 * (0.5 * 8 + 0.5 * 6) = 5.5; t=0: 1 + 0.5 * (0.5 * 5.5 + 0.5 * 3) = 3.125
        q_lambda(&made, &[false; 3], (0.5, 0.5), &mut targets);
        assert_eq!(targets, [3.125, 5.5, 8.0]);
        // An episode ends with the second step: nothing of the next one is part of its return.
        q_lambda(&made, &[false, true, false], (0.5, 0.5), &mut targets);
        assert_eq!(targets, [1.0 + 0.5 * (0.5 * 2.0 + 0.5 * 3.0), 2.0, 8.0]);
        // It was cut off: its last observation has a value.
        made.final_values[1] = 10.0;
        q_lambda(&made, &[false, true, false], (0.5, 0.5), &mut targets);
        assert_eq!(targets[1], 7.0);
        // One-step targets, and returns up to the end of the rollout.
        q_lambda(&made, &[false; 3], (0.5, 0.0), &mut targets);
        assert_eq!(targets, [2.5, 5.0, 8.0]);
        q_lambda(&made, &[false; 3], (0.5, 1.0), &mut targets);
        assert_eq!(targets, [4.0, 6.0, 8.0]);
    }

    #[test]
    fn environments_do_not_mix() {
        let mut both = rollout(2, 2);
        both.rewards = vec![1.0, -1.0, 2.0, 0.0];
        both.values = vec![0.5, 1.5, 0.25, 2.0];
        both.next_values = vec![3.0, -2.0];
        let mut targets = [0.0; 4];
        q_lambda(&both, &[false; 4], (0.9, 0.8), &mut targets);
        for env in 0..2 {
            let column = |values: &[f32]| values.iter().copied().skip(env).step_by(2).collect::<Vec<f32>>();
            let mut one = rollout(2, 1);
            (one.rewards, one.values) = (column(&both.rewards), column(&both.values));
            one.next_values = vec![both.next_values[env]];
            let mut own = [0.0; 2];
            q_lambda(&one, &[false; 2], (0.9, 0.8), &mut own);
            assert_eq!(own.to_vec(), column(&targets));
        }
    }
}
