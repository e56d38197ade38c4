//! What the on-policy algorithms share: networks with one optimiser, rollouts, advantages, and the update
//! step.
//!
//! Owner: the algorithm, whose own file says what is learnt from a rollout: an [`Objective`].
//! [`OnPolicyAlgorithm`] is the rest of an [`Algorithm`].
//!
//! Invariant ONPOLICY-1: an update is zero gradients, backward, average over the ranks, clip, Adam, in this
//! order on all ranks. An iteration ends with the fingerprint.

use super::adam::Adam;
use super::batch::explained_variance;
use super::gae::Gae;
use super::ledger::Ledger;
use super::recording::WorkCut;
use super::{Algorithm, BuildContext, IterationStats, Stat, StepContext, own_loss};
use crate::collect::{Actor, Collector, Interval, RankCounters, RewardConfig, Thoughts};
use crate::distributed::{Ddp, Part, ProcessGroup};
use crate::env::{ActionSpace, ObservationType, Observations};
use crate::error::TrainerError;
use crate::evaluate::Greedy;
use crate::normalise;
use crate::policy::actor_critic::Layout;
use crate::policy::seam::{Seam, parted};
use crate::policy::{ActingPolicy, ActorCritic};
use crate::replay::ReplayMark;
use crate::rollout::{ActionBuffer, Rollout};
use crate::state::{Array, MODEL, RestoredState, State, Words};
use crate::stop_points::Work;
use rankdeck_kernel::Isa;
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_kernel::optimise::{clip_scale, sum_of_squares};
use rankdeck_kernel::seeds::{Purpose, Seeds};
use rankdeck_proto::message::Phase;
use rankdeck_proto::show::Thought;
use rankdeck_types::experiment::Collect;
use rankdeck_types::learn::{A2c, Ppg, Ppo};
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
pub struct OnPolicySettings {
    /// Updates of an iteration, at most.
    pub updates: u64,
    /// Adam's learning rate.
    pub learning_rate: f64,
    /// It falls to 0 over the run.
    pub anneal_lr: bool,
    pub adam_eps: f64,
    pub gamma: f64,
    pub gae_lambda: f64,
    /// Bound of the averaged gradient's global norm.
    pub max_grad_norm: f64,
    /// The value of a cut-off episode's last observation counts.
    pub bootstrap_truncated: bool,
    /// The networks have an auxiliary value head.
    pub aux: bool,
}

impl From<&Ppo> for OnPolicySettings {
    fn from(settings: &Ppo) -> OnPolicySettings {
        let updates = u64::from(settings.update_epochs) * u64::from(settings.num_minibatches);
        on_policy_settings!(settings, updates: updates, aux: false)
    }
}

impl From<&Ppg> for OnPolicySettings {
    fn from(settings: &Ppg) -> OnPolicySettings {
        let product = |epochs: u32, minibatches: u32| u64::from(epochs) * u64::from(minibatches);
        let updates = product(settings.update_epochs, settings.num_minibatches)
            + product(settings.aux_epochs, settings.aux_num_minibatches);
        on_policy_settings!(settings, updates: updates, aux: true)
    }
}

impl From<&A2c> for OnPolicySettings {
    fn from(settings: &A2c) -> OnPolicySettings {
        on_policy_settings!(settings, updates: 1, aux: false)
    }
}

/// Networks, optimiser, environments.
pub struct OnPolicy {
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
    ledger: Ledger,
    fingerprint_every: u64,
    /// The networks' device.
    pub device: Device,
    /// Of the latest greedy action.
    thoughts: Thoughts,
}

impl OnPolicy {
    /// Collective: weights are copied from rank 0.
    pub fn new(settings: OnPolicySettings, build: &BuildContext<'_>) -> Result<OnPolicy, TrainerError> {
        let BuildContext { experiment, sizes, spec, seeds, device, group, .. } = build;
        let layout = Layout::new(spec, &experiment.policy, settings.aux)?;
        let policy = ActorCritic::new(layout, seeds, *device)?;
        let adam = Adam::new(policy.all().len(), settings.adam_eps, *device)?;
        let bucket = (experiment.distributed.bucket_mb.clamp(0.0, 4096.0) * 1024.0 * 1024.0) as usize;
        let mut ddp = Ddp::new(policy.named_parameters(), Vec::new(), group, bucket)?;
        let parts = parted(&mut ddp, policy.layout().trunk.as_ref(), *device, group);
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
                ActionSpace::Discrete { .. } => Vec::new(),
                ActionSpace::Continuous { low, .. } => vec![0.0; low.len()],
            },
            space: spec.actions.clone(),
        };
        let ledger = Ledger::new(settings.updates as usize, *device)?;
        Ok(OnPolicy {
            collector: Collector::new(groups, spec, reward_config, *seeds, sizes.first_env),
            settings,
            policy,
            adam,
            ddp,
            parts,
            actor,
            advantages: vec![0.0; sizes.local_batch],
            returns: vec![0.0; sizes.local_batch],
            seeds: *seeds,
            ledger,
            fingerprint_every: experiment.distributed.fingerprint_every,
            device: *device,
            thoughts: Thoughts::default(),
        })
    }

    /// Copies the learnt parameters to the actor.
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
        self.load_actor()?;
        let whole = self.collector.collect(&mut self.actor, ctx.iteration, |counters| {
            ctx.stepped(counters);
            Ok(!ctx.leaves(Work::Step)?)
        })?;
        if !whole {
            return Ok(ControlFlow::Break(()));
        }
        ctx.phase(Phase::Learn);
        normalise::merge(&mut self.collector.moments(), ctx.group, self.device)?;
        self.collector.normalise_rewards();
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
        Ok(ControlFlow::Continue(()))
    }

    /// The rollout collected last.
    pub fn rollout(&self) -> &Rollout {
        self.collector.rollout()
    }

    /// Its observations, where the GPU has them already.
    pub fn seen(&self) -> Option<&Tensor> {
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

    /// The gradient of `loss`. With [`OnPolicy::reduce`] and [`OnPolicy::step`] it is an update (ONPOLICY-1),
    /// of the same work each time.
    pub fn backward(&mut self, loss: &Tensor) -> Result<(), TrainerError> {
        self.ledger.loss("the loss", loss, || self.collector.largest())?;
        Ok(self.ddp.differentiate(loss)?)
    }

    /// Averages a part of it over the ranks.
    pub fn reduce(&mut self, part: Part, group: &ProcessGroup) -> Result<(), TrainerError> {
        Ok(self.ddp.reduce_part(part, group)?)
    }

    /// Averages all of it where an update may be cut; backward goes on where it came to a `seam`.
    pub fn reduce_in(&mut self, seam: Option<Seam>, cut: &mut WorkCut<'_>) -> Result<(), TrainerError> {
        cut.reduce_by(0, seam, &mut self.ddp)
    }

    /// Clips it, and steps; [`OnPolicy::begin_step`] has counted it.
    pub fn step(&mut self) -> Result<(), TrainerError> {
        self.ledger.norm(self.ddp.clip_grad_norm(self.settings.max_grad_norm));
        self.adam.launch(self.policy.parameters())?;
        Ok(self.ledger.put()?)
    }

    /// Counts a step that is about to be made.
    pub fn begin_step(&mut self, learning_rate: f64) -> Result<(), TrainerError> {
        Ok(self.adam.begin(1, learning_rate)?)
    }

    /// What updates leave on the device.
    pub fn ledger(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// One update down the gradient of `loss`, which reaches the auxiliary head when `aux` (ONPOLICY-1).
    /// Breaks where the iteration is left.
    pub fn update(
        &mut self,
        (loss, aux): (&Tensor, bool),
        ctx: &StepContext<'_>,
        stats: &mut IterationStats,
    ) -> Result<ControlFlow<()>, TrainerError> {
        self.ledger.begin();
        self.backward(loss)?;
        self.ddp.reduce(ctx.group)?;
        self.ledger.norm(self.ddp.clip_grad_norm(self.settings.max_grad_norm));
        let parameters = self.policy.parameters();
        // The head's weight and bias are the last ones.
        let idle = if self.policy.layout().aux.is_some() && !aux { 2 } else { 0 };
        self.adam.step_first(parameters, parameters.len() - idle, stats.learning_rate)?;
        self.ledger.put()?;
        self.ledger.end();
        self.updated(ctx, stats, if aux { Work::AuxUpdate } else { Work::Update })
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
        let gone = || TrainerError::failure("the hand-written passes need networks on the CPU", "");
        // SAFETY: `pass` uses no tensor; parameters and gradients are different buffers.
        let (parameters, gradients) = unsafe { (self.policy.all().floats(), self.ddp.flat_gradients()) };
        let gradients = gradients.ok_or_else(gone)?;
        gradients.fill(0.0);
        let loss = pass(parameters.ok_or_else(gone)?, gradients);
        own_loss("the loss", loss, || self.collector.largest())?;
        self.ddp.reduce(ctx.group)?;
        // SAFETY: until the step is done, no tensor operation runs; parameters and gradients are different
        // buffers.
        let (parameters, gradients) = unsafe { (self.policy.floats_mut(), self.ddp.flat_gradients()) };
        let gradients = gradients.ok_or_else(gone)?;
        let norm = sum_of_squares(Isa::best(), gradients).sqrt();
        let scale = clip_scale(norm, self.settings.max_grad_norm);
        self.adam.step_flat(parameters.ok_or_else(gone)?, gradients, stats.learning_rate, scale)?;
        self.updated(ctx, stats, Work::Update)
    }

    /// After an update: counters, status page, and whether the iteration is left.
    pub(super) fn updated(
        &mut self,
        ctx: &StepContext<'_>,
        stats: &mut IterationStats,
        work: Work,
    ) -> Result<ControlFlow<()>, TrainerError> {
        stats.updates += 1;
        ctx.updated(stats);
        Ok(if ctx.leaves(work)? { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    /// After the updates of an iteration: what they left on the device, and the fingerprint.
    fn close(&mut self, ctx: &StepContext<'_>, stats: &mut IterationStats) -> Result<(), TrainerError> {
        let covered: &[&Ddp] =
            if stats.covered(ctx.updates, self.fingerprint_every) { &[&self.ddp] } else { &[] };
        let prints = self.ledger.close(covered, ctx.group, || self.collector.largest())?;
        prints.into_iter().for_each(|print| stats.cover(print));
        Ok(())
    }

    /// Weights, moments, step count, normalisers, environments.
    fn state(&self) -> Result<State, TrainerError> {
        let mut arrays = self.policy.all().arrays(MODEL)?;
        arrays.push(Array::of("adam.first", &self.adam.first)?);
        arrays.push(Array::of("adam.second", &self.adam.second)?);
        let words = |name: &str, values: Vec<u64>| Words { name: name.into(), values };
        let [observations, returns] = self.collector.moment_words();
        Ok(State {
            arrays,
            words: vec![
                words("adam.steps", vec![self.adam.steps]),
                words("adam.missed", self.missed()),
                words("moments.observations", observations),
                words("moments.returns", returns),
            ],
            envs: self.collector.save_envs(),
            words_per_env: self.collector.words_per_env(),
        })
    }

    /// Steps that each parameter has missed; empty for networks whose parameters miss none.
    fn missed(&self) -> Vec<u64> {
        let len = if self.policy.layout().aux.is_some() { self.policy.parameters().len() } else { 0 };
        self.adam.missed.iter().copied().chain(std::iter::repeat(0)).take(len).collect()
    }

    /// Restores [`OnPolicy::state`].
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
pub trait Objective {
    /// Learns from the rollout collected last, with the rank's stream for shuffles; fills in
    /// [`IterationStats::losses`]. Breaks where the iteration is left.
    fn learn(
        &mut self,
        on: &mut OnPolicy,
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
        _on: &OnPolicy,
        _folder: &Path,
        _mark: &ReplayMark,
        _keep: Option<u64>,
        _moved: &mut dyn FnMut(u64, u64),
    ) -> Result<(), TrainerError> {
        Ok(())
    }
    /// As [`Algorithm::load_own`].
    fn load_own(&mut self, _on: &OnPolicy, _folder: &Path, _mark: &ReplayMark) -> Result<(), String> {
        Ok(())
    }
    /// As [`Algorithm::drop_own`].
    fn drop_own(&mut self) {}
}

/// An algorithm that learns from its latest rollouts, by its own objective.
pub struct OnPolicyAlgorithm<R> {
    /// Environments, networks, optimiser.
    pub on: OnPolicy,
    /// What is learnt.
    pub objective: R,
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
        let explained = explained_variance(&on.rollout().values, &on.returns);
        stats.losses.push(Stat::other("losses/explained_variance", explained));
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

    fn state(&self) -> Result<State, TrainerError> {
        self.on.state()
    }

    fn restore(&mut self, restored: &RestoredState) -> Result<(), TrainerError> {
        self.on.restore(restored)
    }
}

impl Greedy for OnPolicy {
    fn act(
        &mut self,
        observations: Observations<'_>,
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError> {
        self.collector.greedy(&mut self.actor, observations, actions, &mut self.thoughts)
    }

    fn thought(&self, env: usize) -> Option<Thought> {
        self.thoughts.of(env)
    }
}
