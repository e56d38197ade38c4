//! The shared part of on-policy algorithms: networks, optimizer, rollouts, advantages and the update step.
//!
//! An [`Objective`] defines what an algorithm learns from a rollout. [`OnPolicyAlgorithm`] is the rest of an
//! [`Algorithm`].
//!
//! Invariant ONPOLICY-1: an update is zero gradients, backward, average over the ranks, clip, Adam, in this
//! order on all ranks. An iteration ends with the fingerprint.

use super::adam::Adam;
use super::batch::explained_variance;
use super::block_sums::{self, BlockGradients, sum_rows};
use super::device_metrics::DeviceMetrics;
use super::stop_points::WorkKind;
use super::{Algorithm, BuildContext, Greedy, IterationStats, ScalarStat, StepContext, own_loss};
use crate::collect::rollout::{ActionBuffer, Rollout};
use crate::collect::{Actor, Collector, Interval, PolicyEstimates, RankCounters, RewardConfig, normalize};
use crate::distributed::memory::floats;
use crate::distributed::{Ddp, ProcessGroup};
use crate::env::{ActionSpace, ObservationType, Observations, StepOutcome};
use crate::error::TrainerError;
use crate::policy::actor_critic::Layout;
use crate::policy::trunk::splits_backward;
use crate::policy::{ActingPolicy, ActorCritic};
use crate::replay::ReplayMark;
use crate::support::state::{AlgorithmState, Array, MODEL, NamedWords, RestoredState};
use rankdeck_kernel::Isa;
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_kernel::optimizer::{clip_scale, sum_of_squares};
use rankdeck_kernel::seeds::{Purpose, Seeds};
use rankdeck_kernel::trace::{self, Stage};
use rankdeck_proto::message::Phase;
use rankdeck_proto::show::PolicyEstimate;
use rankdeck_types::blocks::BlockShare;
use rankdeck_types::experiment::Collect;
use rankdeck_types::learn::{A2cConfig, PpgConfig, PpoConfig};
use std::ops::ControlFlow;
use std::path::Path;
use tch::{Device, Tensor};

/// The algorithms' settings have these keys under the same names.
macro_rules! on_policy_settings {
    ($from:expr, updates: $updates:expr, aux: $aux:expr) => {
        OnPolicySettings {
            updates: $updates,
            learning_rate: $from.learning_rate,
            anneal_lr: $from.anneal_lr,
            adam_eps: $from.adam_eps,
            gamma: $from.gamma,
            gae_lambda: $from.gae_lambda,
            max_grad_norm: $from.max_grad_norm,
            bootstrap_truncated: $from.bootstrap_truncated,
            aux: $aux,
        }
    };
}

/// Settings that every on-policy algorithm has.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OnPolicySettings {
    /// Updates of an iteration, at most.
    pub updates: u64,
    /// Adam's learning rate.
    pub learning_rate: f64,
    /// It falls to 0 over the run.
    pub anneal_lr: bool,
    pub(crate) adam_eps: f64,
    pub gamma: f64,
    pub gae_lambda: f64,
    /// Bound of the averaged gradient's global norm.
    pub max_grad_norm: f64,
    /// The value of a cut-off episode's last observation counts.
    pub bootstrap_truncated: bool,
    /// The networks have an auxiliary value head.
    pub aux: bool,
}

impl From<&PpoConfig> for OnPolicySettings {
    fn from(settings: &PpoConfig) -> OnPolicySettings {
        let updates = u64::from(settings.update_epochs) * u64::from(settings.num_minibatches);
        on_policy_settings!(settings, updates: updates, aux: false)
    }
}

impl From<&PpgConfig> for OnPolicySettings {
    fn from(settings: &PpgConfig) -> OnPolicySettings {
        let product = |epochs: u32, minibatches: u32| u64::from(epochs) * u64::from(minibatches);
        let updates = product(settings.update_epochs, settings.num_minibatches)
            + product(settings.aux_epochs, settings.aux_num_minibatches);
        on_policy_settings!(settings, updates: updates, aux: true)
    }
}

impl From<&A2cConfig> for OnPolicySettings {
    fn from(settings: &A2cConfig) -> OnPolicySettings {
        on_policy_settings!(settings, updates: 1, aux: false)
    }
}

/// How an optimizer step is made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum OptimizerStep {
    /// With the step count and the learning rate of [`OnPolicyLearner::count_step`]: the same device work each time,
    /// so that it can be captured.
    Counted,
    /// Counts itself; the last `idle` parameters have no gradient.
    Tensors {
        /// Adam's learning rate.
        learning_rate: f64,
        /// Parameters without a gradient.
        idle: usize,
    },
    /// On the flat CPU buffers, without libtorch.
    Flat {
        /// Adam's learning rate.
        learning_rate: f64,
    },
}

fn not_on_cpu() -> TrainerError {
    TrainerError::failure("the native kernels need networks on the CPU", "")
}

/// Networks, optimizer, environments.
pub(crate) struct OnPolicyLearner {
    settings: OnPolicySettings,
    pub policy: ActorCritic,
    adam: Adam,
    ddp: Ddp,
    /// Gradients of updates that may be cut travel in two parts.
    pub parts: bool,
    collector: Collector,
    actor: Actor,
    /// Advantages of the rollout collected last, `[steps][envs]`.
    pub advantages: Vec<f32>,
    /// Advantage + value, `[steps][envs]`.
    pub returns: Vec<f32>,
    seeds: Seeds,
    metrics: DeviceMetrics,
    fingerprint_every: u64,
    /// With `distributed.invariant`.
    blocks: Option<BlockShare>,
    /// The networks' device.
    pub device: Device,
    /// Of the latest greedy action.
    estimates: PolicyEstimates,
    /// States of the memory in an evaluation, `[envs][state_len]`.
    greedy_states: Vec<f32>,
}

impl OnPolicyLearner {
    /// Collective: weights are copied from rank 0.
    pub(crate) fn new(
        settings: OnPolicySettings,
        build: &BuildContext<'_>,
    ) -> Result<OnPolicyLearner, TrainerError> {
        let BuildContext { experiment, sizes, spec, seeds, device, group, .. } = build;
        block_sums::check_device(sizes.blocks, *device)?;
        let layout = Layout::new(spec, &experiment.policy, settings.aux)?;
        let policy = ActorCritic::new(layout, seeds, *device)?;
        let adam = Adam::new(policy.all().len(), settings.adam_eps, *device)?;
        let bucket = super::bucket_bytes(experiment);
        let mut ddp = Ddp::new(policy.named_parameters(), Vec::new(), group, bucket)?;
        let parts = splits_backward(&mut ddp, policy.layout().trunk.as_ref(), *device, group);
        let groups = super::groups(build)?;
        let reward_config = RewardConfig {
            collect: Collect { num_steps: sizes.num_steps, ..experiment.collect.clone() },
            gamma: settings.gamma,
            bootstrap_truncated: settings.bootstrap_truncated,
        };
        let pixels = spec.observation_type == ObservationType::U8;
        let actor = Actor {
            acting: ActingPolicy::new(&policy, &spec.observation_shape, pixels, &experiment.policy),
            log_std: match &spec.actions {
                ActionSpace::Discrete { .. } | ActionSpace::MultiDiscrete { .. } => Vec::new(),
                ActionSpace::Continuous { low, .. } => vec![0.0; low.len()],
            },
            space: spec.actions.clone(),
        };
        let metrics = DeviceMetrics::new(settings.updates as usize, *device)?;
        let mut collector = Collector::new(groups, spec, reward_config, *seeds, sizes.first_env)
            .with_memory(policy.layout().state_len());
        if let Some(share) = sizes.blocks {
            collector = collector.in_blocks(share.envs as usize);
        }
        Ok(OnPolicyLearner {
            collector,
            blocks: sizes.blocks,
            settings,
            policy,
            adam,
            ddp,
            parts,
            actor,
            advantages: vec![0.0; sizes.local_batch],
            returns: vec![0.0; sizes.local_batch],
            seeds: *seeds,
            metrics,
            fingerprint_every: experiment.distributed.fingerprint_every,
            device: *device,
            estimates: PolicyEstimates::default(),
            greedy_states: Vec::new(),
        })
    }

    /// Copies the learned parameters to the actor.
    fn load_actor(&mut self) -> Result<(), TrainerError> {
        self.actor.acting.load(&self.policy)?;
        if let Some(start) = self.policy.layout().log_std {
            let len = self.actor.log_std.len();
            let log_std = self.policy.flat().f_narrow(0, start as i64, len as i64)?;
            log_std.f_to_device(Device::Cpu)?.f_copy_data(&mut self.actor.log_std, len)?;
        }
        Ok(())
    }

    /// Collects a rollout and computes its advantages; the moments are merged over all ranks (one collective,
    /// when there are any). Breaks where the iteration is left.
    fn collect(&mut self, ctx: &StepContext<'_>) -> Result<ControlFlow<()>, TrainerError> {
        ctx.phase(Phase::Rollout);
        self.trace_weights(Stage::Start);
        self.load_actor()?;
        let whole = self.collector.collect(&mut self.actor, ctx.iteration, |counters| {
            ctx.stepped(counters);
            Ok(!ctx.leaves(WorkKind::Step)?)
        })?;
        if !whole {
            return Ok(ControlFlow::Break(()));
        }
        ctx.phase(Phase::Learn);
        normalize::merge(&mut self.collector.moments(), ctx.group, self.device)?;
        self.collector.normalize_rewards();
        let rollout = self.collector.rollout();
        Gae {
            rewards: &rollout.rewards,
            values: &rollout.values,
            final_values: &rollout.final_values,
            dones: &rollout.dones,
            next_values: &rollout.next_values,
            next_dones: &rollout.next_dones,
            gamma: self.settings.gamma as f32,
            lambda: self.settings.gae_lambda as f32,
        }
        .run(&mut self.advantages, &mut self.returns);
        self.trace_rollout(ctx.group.rank());
        Ok(ControlFlow::Continue(()))
    }

    /// The rollout collected last.
    pub(crate) fn rollout(&self) -> &Rollout {
        self.collector.rollout()
    }

    /// Its observations, where the GPU has them already.
    pub(crate) fn seen(&self) -> Option<&Tensor> {
        self.actor.acting.seen()
    }

    /// The stream of this rank's shuffles in this iteration.
    fn shuffles(&self, ctx: &StepContext<'_>) -> Generator {
        self.seeds.generator(Purpose::Shuffle, ctx.group.rank(), ctx.iteration)
    }

    /// The learning rate of this iteration.
    fn rate(&self, ctx: &StepContext<'_>) -> f64 {
        ctx.annealed(self.settings.learning_rate, self.settings.anneal_lr)
    }

    /// Computes the gradients of `loss`. Averaging [`OnPolicyLearner::gradients`] and applying them completes an
    /// update (ONPOLICY-1).
    pub(crate) fn backward(&mut self, loss: &Tensor) -> Result<(), TrainerError> {
        self.metrics.loss("the loss", loss, || self.collector.largest())?;
        Ok(self.ddp.differentiate(loss)?)
    }

    /// The gradients of the latest backward pass, to average over the ranks.
    pub(crate) fn gradients(&mut self) -> &mut Ddp {
        &mut self.ddp
    }

    /// Clips the averaged gradients to their global norm and makes the optimizer step.
    pub(crate) fn apply_gradients(&mut self, step: OptimizerStep) -> Result<(), TrainerError> {
        let max_norm = self.settings.max_grad_norm;
        self.trace_gradients();
        self.step(step, max_norm)?;
        self.trace_weights(Stage::Step);
        trace::finish_update();
        Ok(())
    }

    fn step(&mut self, step: OptimizerStep, max_norm: f64) -> Result<(), TrainerError> {
        match step {
            OptimizerStep::Counted => {
                self.metrics.norm(self.ddp.clip_grad_norm(max_norm));
                self.adam.launch(self.policy.parameters())?;
                Ok(self.metrics.store()?)
            }
            OptimizerStep::Tensors { learning_rate, idle } => {
                self.metrics.norm(self.ddp.clip_grad_norm(max_norm));
                let parameters = self.policy.parameters();
                self.adam.step_first(parameters, parameters.len() - idle, learning_rate)?;
                Ok(self.metrics.store()?)
            }
            OptimizerStep::Flat { learning_rate } => {
                // SAFETY: until the step is done, no tensor operation runs; parameters and gradients are
                // different buffers.
                let (parameters, gradients) =
                    unsafe { (self.policy.floats_mut(), self.ddp.flat_gradients()) };
                let (Some(parameters), Some(gradients)) = (parameters, gradients) else {
                    return Err(not_on_cpu());
                };
                let norm = sum_of_squares(Isa::best(), gradients).sqrt();
                let scale = clip_scale(norm, max_norm);
                trace::record(
                    || "norm, clip factor, learning rate".into(),
                    &[norm as f32, scale, learning_rate as f32],
                );
                Ok(self.adam.step_flat(parameters, gradients, learning_rate, scale)?)
            }
        }
    }

    /// Shows weights and moments to the observer of operations.
    fn trace_weights(&self, stage: Stage) {
        if stage == Stage::Start {
            trace::enter(stage, 0);
        }
        if trace::is_active() {
            for entry in &self.policy.layout().entries {
                // SAFETY: nothing writes to the parameters meanwhile.
                let Some(parameters) = (unsafe { self.policy.all().floats() }) else { continue };
                let values = &parameters[entry.offset..entry.offset + entry.len];
                trace::record(|| format!("weights {}", entry.name), values);
            }
            for (name, moments) in [("first", &self.adam.first), ("second", &self.adam.second)] {
                // SAFETY: nothing writes to the moments meanwhile.
                let values = unsafe { floats(moments) };
                trace::record(|| format!("Adam's {name} moments"), values.unwrap_or_default());
            }
        }
        trace::leave();
    }

    /// Shows the gradients that the ranks have exchanged.
    fn trace_gradients(&mut self) {
        trace::enter(Stage::Step, 0);
        if trace::is_active() {
            // SAFETY: nothing reads or writes the gradients meanwhile.
            let gradients = unsafe { self.ddp.flat_gradients() };
            trace::record(|| "gradient over all ranks".into(), gradients.unwrap_or_default());
        }
    }

    /// Shows the rollout, block by block, or that of the whole rank.
    fn trace_rollout(&self, rank: u32) {
        trace::enter(Stage::Rollout, rank);
        if !trace::is_active() {
            return;
        }
        let rollout = self.collector.rollout();
        let (envs, width) = (rollout.envs.max(1), rollout.width());
        let (first, each) = match self.blocks {
            Some(share) => (share.first, (share.envs as usize).max(1)),
            None => (rank, envs),
        };
        for (block, from) in (first..).zip((0..envs).step_by(each)) {
            let column = |values: &[f32], width: usize| -> Vec<f32> {
                let rows = values.chunks_exact((envs * width).max(1));
                rows.flat_map(|row| &row[from * width..(from + each).min(envs) * width]).copied().collect()
            };
            let actions: (usize, Vec<f32>) = match &rollout.actions {
                ActionBuffer::Discrete(actions) => (1, actions.iter().map(|action| *action as f32).collect()),
                ActionBuffer::MultiDiscrete { width, values } => {
                    (*width, values.iter().map(|action| *action as f32).collect())
                }
                ActionBuffer::Continuous { width, values } => (*width, values.clone()),
            };
            trace::enter(Stage::Rollout, block);
            if let Observations::F32(observations) = rollout.observations.view() {
                trace::record(|| "observations".into(), &column(observations, width));
            }
            trace::record(|| "actions".into(), &column(&actions.1, actions.0));
            for (name, values) in [
                ("log-probabilities", &rollout.log_probs),
                ("values", &rollout.values),
                ("rewards", &rollout.rewards),
                ("starts of episodes", &rollout.dones),
            ] {
                trace::record(|| name.into(), &column(values, 1));
            }
            trace::enter(Stage::Advantages, block);
            trace::record(|| "advantages".into(), &column(&self.advantages, 1));
            trace::record(|| "returns".into(), &column(&self.returns, 1));
        }
        trace::leave();
    }

    /// Counts a step that [`OptimizerStep::Counted`] makes.
    pub(crate) fn count_step(&mut self, learning_rate: f64) -> Result<(), TrainerError> {
        Ok(self.adam.count_steps(1, learning_rate)?)
    }

    /// What updates leave on the device.
    pub(crate) fn metrics(&mut self) -> &mut DeviceMetrics {
        &mut self.metrics
    }

    /// One update down the gradient of `loss`, which reaches the auxiliary head when `aux` (ONPOLICY-1).
    /// Breaks where the iteration is left.
    pub(crate) fn update(
        &mut self,
        (loss, aux): (&Tensor, bool),
        ctx: &StepContext<'_>,
        stats: &mut IterationStats,
    ) -> Result<ControlFlow<()>, TrainerError> {
        self.metrics.start_update();
        self.backward(loss)?;
        self.ddp.reduce(ctx.group)?;
        // The head's weight and bias are the last ones.
        let idle = if self.policy.layout().aux.is_some() && !aux { 2 } else { 0 };
        self.apply_gradients(OptimizerStep::Tensors { learning_rate: stats.learning_rate, idle })?;
        self.metrics.finish_update();
        self.updated(ctx, stats, if aux { WorkKind::AuxUpdate } else { WorkKind::Update })
    }

    /// One update by hand-written passes: `pass` gets the parameters, adds to the gradients, which are 0, and
    /// returns the loss (ONPOLICY-1).
    ///
    /// # Safety
    /// `pass` uses no tensor: what it gets is the memory of the parameters and of their gradients.
    pub(super) unsafe fn update_flat(
        &mut self,
        ctx: &StepContext<'_>,
        stats: &mut IterationStats,
        pass: impl FnOnce(&[f32], &mut [f32]) -> f64,
    ) -> Result<ControlFlow<()>, TrainerError> {
        // SAFETY: `pass` uses no tensor; parameters and gradients are different buffers.
        let (parameters, gradients) = unsafe { (self.policy.all().floats(), self.ddp.flat_gradients()) };
        let (Some(parameters), Some(gradients)) = (parameters, gradients) else { return Err(not_on_cpu()) };
        gradients.fill(0.0);
        trace::enter(Stage::Pass, ctx.group.rank());
        let loss = pass(parameters, gradients);
        trace::leave();
        own_loss("the loss", loss, || self.collector.largest())?;
        self.ddp.reduce(ctx.group)?;
        self.apply_gradients(OptimizerStep::Flat { learning_rate: stats.learning_rate })?;
        self.updated(ctx, stats, WorkKind::Update)
    }

    /// As [`OnPolicyLearner::update_flat`], with a pass for each of the `count` blocks of this rank. It adds to zeros,
    /// and the sum over the blocks of all ranks is made in the order of [`BlockGradients`].
    ///
    /// # Safety
    /// As for [`OnPolicyLearner::update_flat`].
    pub(super) unsafe fn update_blocks(
        &mut self,
        ctx: &StepContext<'_>,
        stats: &mut IterationStats,
        sums: &mut BlockGradients,
        count: usize,
        mut pass: impl FnMut(usize, &[f32], &mut [f32]) -> f64,
    ) -> Result<ControlFlow<()>, TrainerError> {
        let len = self.policy.layout().len;
        for block in 0..count {
            let mut gradient = sums.zeros(len);
            // SAFETY: `pass` uses no tensor.
            let Some(parameters) = (unsafe { self.policy.all().floats() }) else { return Err(not_on_cpu()) };
            trace::enter(Stage::Pass, self.blocks.map_or(0, |share| share.first) + block as u32);
            let loss = pass(block, parameters, &mut gradient);
            trace::leave();
            own_loss("the loss", loss, || self.collector.largest())?;
            sums.push(block as u32, gradient);
        }
        // SAFETY: the sum is made in other memory than the gradients', which no tensor operation uses meanwhile.
        let Some(gradients) = (unsafe { self.ddp.flat_gradients() }) else { return Err(not_on_cpu()) };
        sums.finish(ctx.group, gradients)?;
        self.apply_gradients(OptimizerStep::Flat { learning_rate: stats.learning_rate })?;
        self.updated(ctx, stats, WorkKind::Update)
    }

    /// Share of the returns' variance that values explain. With blocks, of all ranks (one collective, tag
    /// `explained`), else of this rank.
    fn explained_variance(&self, group: &ProcessGroup) -> Result<f64, TrainerError> {
        let rollout = self.collector.rollout();
        let Some(share) = self.blocks else { return Ok(explained_variance(&rollout.values, &self.returns)) };
        let mut rows = vec![vec![0.0; 5]; share.count as usize];
        for (i, (value, goal)) in rollout.values.iter().zip(&self.returns).enumerate() {
            let (goal, left) = (f64::from(*goal), f64::from(*goal) - f64::from(*value));
            let block = i % rollout.envs.max(1) / (share.envs as usize).max(1);
            let Some(sums) = rows.get_mut(block) else { continue };
            let terms = [1.0, goal, goal * goal, left, left * left];
            sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
        }
        let sums = sum_rows(share, &rows, group, "explained")?;
        let [n, sum, squares, left, left_squares] = sums.as_slice() else { return Ok(f64::NAN) };
        let variance = |sum: f64, squares: f64| squares / n - (sum / n).powi(2);
        let all = variance(*sum, *squares);
        Ok(if all <= 0.0 { f64::NAN } else { 1.0 - variance(*left, *left_squares) / all })
    }

    /// After an update: counters, status page, and whether the iteration is left.
    pub(super) fn updated(
        &mut self,
        ctx: &StepContext<'_>,
        stats: &mut IterationStats,
        work: WorkKind,
    ) -> Result<ControlFlow<()>, TrainerError> {
        stats.updates += 1;
        ctx.updated(stats);
        Ok(if ctx.leaves(work)? { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    /// After the updates of an iteration: what they left on the device, and the fingerprint.
    fn close(&mut self, ctx: &StepContext<'_>, stats: &mut IterationStats) -> Result<(), TrainerError> {
        let covered: &[&Ddp] =
            if stats.covered(ctx.updates, self.fingerprint_every) { &[&self.ddp] } else { &[] };
        let prints = self.metrics.finish_iteration(covered, ctx.group, || self.collector.largest())?;
        prints.into_iter().for_each(|print| stats.cover(print));
        Ok(())
    }

    /// Weights, moments, step count, normalizers, environments.
    fn state(&self) -> Result<AlgorithmState, TrainerError> {
        let mut arrays = self.policy.all().arrays(MODEL)?;
        arrays.push(Array::of("adam.first", &self.adam.first)?);
        arrays.push(Array::of("adam.second", &self.adam.second)?);
        let words = |name: &str, values: Vec<u64>| NamedWords { name: name.into(), values };
        let [observations, returns] = self.collector.moment_words();
        let mut state = AlgorithmState {
            arrays,
            words: vec![
                words("adam.steps", vec![self.adam.steps]),
                words("adam.missed", self.missed()),
                words("moments.observations", observations),
                words("moments.returns", returns),
            ],
            ..AlgorithmState::default()
        };
        state.add_envs(self.collector.save_envs(), self.collector.words_per_env());
        Ok(state)
    }

    /// Steps that each parameter has missed; empty for networks whose parameters miss none.
    fn missed(&self) -> Vec<u64> {
        let len = if self.policy.layout().aux.is_some() { self.policy.parameters().len() } else { 0 };
        self.adam.missed.iter().copied().chain(std::iter::repeat(0)).take(len).collect()
    }

    /// Restores [`OnPolicyLearner::state`].
    fn restore(&mut self, restored: &RestoredState) -> Result<(), TrainerError> {
        restored.copy_to(MODEL, self.policy.named_parameters())?;
        let moments = [("first", &self.adam.first), ("second", &self.adam.second)];
        let moments = moments.map(|(name, tensor)| (name.to_owned(), tensor.shallow_clone()));
        restored.copy_to("adam.", moments.into())?;
        self.adam.steps = restored.words("adam.steps").first().copied().unwrap_or(0);
        self.adam.missed = restored.words("adam.missed").to_vec();
        self.collector
            .restore_moments([restored.words("moments.observations"), restored.words("moments.returns")]);
        self.collector.resume_counters(restored.counters);
        if let Some(envs) = &restored.envs {
            self.collector.restore_envs(envs)?;
        }
        Ok(())
    }
}

/// What one algorithm learns from a rollout.
pub(crate) trait Objective {
    /// Learns from the rollout collected last, with the rank's stream for shuffles; fills in
    /// [`IterationStats::losses`]. Breaks where the iteration is left.
    fn learn(
        &mut self,
        on: &mut OnPolicyLearner,
        ctx: &StepContext<'_>,
        random: &mut Generator,
        stats: &mut IterationStats,
    ) -> Result<ControlFlow<()>, TrainerError>;
    /// This iteration takes much longer than most.
    fn is_long(&self, _iteration: u64) -> bool {
        false
    }
    /// As [`Algorithm::save_own`].
    fn save_own(
        &self,
        _on: &OnPolicyLearner,
        _folder: &Path,
        _mark: &ReplayMark,
        _keep: Option<u64>,
        _moved: &mut dyn FnMut(u64, u64),
    ) -> Result<(), TrainerError> {
        Ok(())
    }
    /// As [`Algorithm::load_own`].
    fn load_own(&mut self, _on: &OnPolicyLearner, _folder: &Path, _mark: &ReplayMark) -> Result<(), String> {
        Ok(())
    }
    /// As [`Algorithm::drop_own`].
    fn drop_own(&mut self) {}
}

/// An algorithm that learns from its latest rollouts, by its own objective.
pub(crate) struct OnPolicyAlgorithm<R> {
    /// Environments, networks, optimizer.
    pub on: OnPolicyLearner,
    /// What the algorithm minimizes.
    pub(crate) objective: R,
}

impl<R: Objective> Algorithm for OnPolicyAlgorithm<R> {
    fn can_be_left(&self, iteration: u64, long: bool) -> bool {
        long || self.objective.is_long(iteration)
    }

    fn iterate(&mut self, ctx: &StepContext<'_>) -> Result<IterationStats, TrainerError> {
        let OnPolicyAlgorithm { on, objective } = self;
        let mut stats = IterationStats { learning_rate: on.rate(ctx), ..IterationStats::default() };
        let left = on.collect(ctx)?.is_break()
            || objective.learn(on, ctx, &mut on.shuffles(ctx), &mut stats)?.is_break();
        if left {
            ctx.group.settle()?;
            return Ok(IterationStats { left, ..IterationStats::default() });
        }
        on.close(ctx, &mut stats)?;
        let explained = on.explained_variance(ctx.group)?;
        stats.losses.push(ScalarStat::other("losses/explained_variance", explained));
        Ok(stats)
    }

    fn counters(&self) -> RankCounters {
        self.on.collector.counters()
    }

    fn take_interval(&mut self) -> Interval {
        self.on.collector.take_interval()
    }

    fn save_own(
        &self,
        folder: &Path,
        mark: &ReplayMark,
        keep: Option<u64>,
        moved: &mut dyn FnMut(u64, u64),
    ) -> Result<(), TrainerError> {
        self.objective.save_own(&self.on, folder, mark, keep, moved)
    }

    fn load_own(&mut self, folder: &Path, mark: &ReplayMark) -> Result<(), String> {
        self.objective.load_own(&self.on, folder, mark)
    }

    fn drop_own(&mut self) {
        self.objective.drop_own();
    }

    fn greedy(&mut self) -> Result<&mut dyn Greedy, TrainerError> {
        self.on.load_actor()?;
        Ok(&mut self.on)
    }

    fn state(&self) -> Result<AlgorithmState, TrainerError> {
        self.on.state()
    }

    fn restore(&mut self, restored: &RestoredState) -> Result<(), TrainerError> {
        self.on.restore(restored)
    }
}

impl Greedy for OnPolicyLearner {
    fn act(
        &mut self,
        observations: Observations<'_>,
        masks: Option<&[u8]>,
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError> {
        let OnPolicyLearner { collector, actor, estimates, greedy_states, .. } = self;
        collector.greedy(actor, (observations, masks), greedy_states, actions, estimates)
    }

    fn start_episodes(&mut self) {
        self.greedy_states.clear();
    }

    fn end_episodes(&mut self, outcome: &StepOutcome) {
        let each = self.policy.layout().state_len().max(1);
        for (env, state) in self.greedy_states.chunks_mut(each).enumerate() {
            if outcome.done(env) || !outcome.valid[env] {
                state.fill(0.0);
            }
        }
    }

    fn sample(
        &mut self,
        observations: Observations<'_>,
        masks: Option<&[u8]>,
        randoms: &mut [Generator],
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError> {
        self.act(observations, masks, actions)?;
        self.estimates.sample(&self.actor, masks, randoms, actions);
        Ok(())
    }

    fn estimate(&self, env: usize) -> Option<PolicyEstimate> {
        self.estimates.of(env)
    }
}

/// Generalized advantage estimation (Schulman et al. 2016), with CleanRL's convention for episode ends.
///
/// `dones[t]` means that the observation *at* `t` is the first of a new episode, that is, that the action at
/// `t - 1` ended one; the flag after the last step is a separate argument. Both termination and truncation
/// cut the chain of advantages. Whether the value of a truncated episode's last observation counts is up to
/// the caller: it is in `final_values`, which are 0 where nothing follows. CleanRL's PPO leaves them all 0,
/// and its published CartPole returns were made that way.
///
/// The fields are a rollout's numbers, each `[steps][envs]`, and what follows its last step, `[envs]`.
#[derive(Debug, Clone, Copy)]
struct Gae<'a> {
    /// Rewards of the actions.
    rewards: &'a [f32],
    /// Values of the observations.
    values: &'a [f32],
    /// Values of the last observations of the episodes that the actions cut off; 0 where nothing was cut off,
    /// or where it must not count.
    final_values: &'a [f32],
    /// 1.0 where the observation begins an episode.
    dones: &'a [f32],
    /// Values after the last step.
    next_values: &'a [f32],
    /// Flags after the last step.
    next_dones: &'a [f32],
    gamma: f32,
    lambda: f32,
}

impl Gae<'_> {
    /// Writes advantages and returns (advantage + value), `[steps][envs]`.
    fn run(&self, advantages: &mut [f32], returns: &mut [f32]) {
        let envs = self.next_values.len();
        let steps = self.rewards.len().checked_div(envs).unwrap_or(0);
        for env in 0..envs {
            let (mut later, mut next_value, mut next_done) =
                (0.0, self.next_values[env], self.next_dones[env]);
            for step in (0..steps).rev() {
                let i = step * envs + env;
                let continues = 1.0 - next_done;
                let follows = next_value * continues + self.final_values[i];
                let delta = self.rewards[i] + self.gamma * follows - self.values[i];
                later = delta + self.gamma * self.lambda * continues * later;
                advantages[i] = later;
                returns[i] = later + self.values[i];
                (next_value, next_done) = (self.values[i], self.dones[i]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gae_equals_values_computed_by_hand() {
        // One environment, gamma 0.5, lambda 0.5; the second action ends an episode. By hand, from the end:
        // t=2: delta = 4 + 0.5*8*1 - 3 = 5,    adv = 5
        // t=1: delta = 2 + 0 - 2       = 0,    adv = 0           (ends: no bootstrap, no later advantage)
        // t=0: delta = 1 + 0.5*2 - 1   = 1,    adv = 1 + 0.25*0 = 1
        let gae = Gae {
            rewards: &[1.0, 2.0, 4.0],
            values: &[1.0, 2.0, 3.0],
            final_values: &[0.0; 3],
            dones: &[0.0, 0.0, 1.0],
            next_values: &[8.0],
            next_dones: &[0.0],
            gamma: 0.5,
            lambda: 0.5,
        };
        let (mut advantages, mut returns) = ([0.0; 3], [0.0; 3]);
        gae.run(&mut advantages, &mut returns);
        assert_eq!((advantages, returns), ([1.0, 0.0, 5.0], [2.0, 2.0, 8.0]));
        // The last action ends an episode: the value after it must not count.
        Gae { next_dones: &[1.0], ..gae }.run(&mut advantages, &mut returns);
        assert_eq!(advantages, [1.0, 0.0, 1.0]);
    }

    /// A task that gives reward 1 at every step, cut off every 10 steps. With the value 1 / (1 - gamma)
    /// everywhere, all advantages are 0 if and only if the values behind the cuts count.
    #[test]
    fn truncated_episode_is_bootstrapped_by_its_final_value() {
        let value = 1.0 / (1.0 - 0.9);
        let (rewards, values) = ([1.0; 30], [value; 30]);
        let dones: Vec<f32> = (0..30).map(|step| f32::from(u8::from(step % 10 == 0))).collect();
        let final_values: Vec<f32> = (0..30).map(|step| if step % 10 == 9 { value } else { 0.0 }).collect();
        let largest = |final_values: &[f32]| {
            let (mut advantages, mut returns) = ([0.0; 30], [0.0; 30]);
            let (next_values, next_dones) = ([value], [1.0]);
            let gae = Gae {
                rewards: &rewards,
                values: &values,
                final_values,
                dones: &dones,
                next_values: &next_values,
                next_dones: &next_dones,
                gamma: 0.9,
                lambda: 0.95,
            };
            gae.run(&mut advantages, &mut returns);
            advantages.iter().fold(0.0_f32, |largest, advantage| largest.max(advantage.abs()))
        };
        assert!(largest(&final_values) < 1e-5);
        assert!(largest(&[0.0; 30]) > 5.0);
    }

    #[test]
    fn environments_do_not_mix() {
        let column = |rewards: [f32; 2], values: [f32; 2], next: f32| {
            let (mut advantages, mut returns) = ([0.0; 2], [0.0; 2]);
            let (dones, ends) = ([0.0; 2], [0.0]);
            let gae = Gae {
                rewards: &rewards,
                values: &values,
                final_values: &[0.0; 2],
                dones: &dones,
                next_values: &[next],
                next_dones: &ends,
                gamma: 0.9,
                lambda: 0.8,
            };
            gae.run(&mut advantages, &mut returns);
            advantages
        };
        let (a, b) = (column([1.0, 2.0], [0.5, 0.25], 3.0), column([-1.0, 0.0], [1.5, 2.0], -2.0));
        let (mut advantages, mut returns) = ([0.0; 4], [0.0; 4]);
        Gae {
            rewards: &[1.0, -1.0, 2.0, 0.0],
            values: &[0.5, 1.5, 0.25, 2.0],
            final_values: &[0.0; 4],
            dones: &[0.0; 4],
            next_values: &[3.0, -2.0],
            next_dones: &[0.0; 2],
            gamma: 0.9,
            lambda: 0.8,
        }
        .run(&mut advantages, &mut returns);
        assert_eq!(advantages, [a[0], b[0], a[1], b[1]]);
    }
}
