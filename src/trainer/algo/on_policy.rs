//! What the on-policy algorithms share: networks with one optimiser, rollouts, advantages, and the update
//! step.
//!
//! Owner: the algorithm, whose own file says what is learnt from a rollout: an [`Objective`].
//! [`OnPolicyAlgorithm`] is the rest of an [`Algorithm`].
//!
//! Invariant ONPOLICY-1: an update is zero gradients, backward, average over the ranks, clip, Adam,
//! fingerprint, in this order on all ranks.

use super::adam::Adam;
use super::batch::explained_variance;
use super::gae::Gae;
use super::{Algorithm, BuildContext, IterationStats, Stat, StepContext, shown};
use crate::collect::{Actor, Collector, Interval, RankCounters, RewardConfig};
use crate::distributed::Ddp;
use crate::env;
use crate::env::{ActionSpace, ObservationType, Observations};
use crate::error::TrainerError;
use crate::evaluate::Greedy;
use crate::normalise;
use crate::policy::actor_critic::Layout;
use crate::policy::{Acting, ActorCritic};
use crate::rollout::{ActionBuffer, Rollout};
use crate::setup;
use crate::state::{Array, MODEL, RestoredState, State, Words};
use rankdeck_kernel::Isa;
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_kernel::optimise::{clip_scale, sum_of_squares};
use rankdeck_kernel::seeds::{Purpose, Seeds};
use rankdeck_proto::message::Phase;
use rankdeck_types::experiment::Collect;
use rankdeck_types::learn::{A2c, Ppg, Ppo};
use tch::{Device, Tensor};

/// The algorithms' settings have these keys under the same names.
macro_rules! on_policy_settings {
    ($from:expr, aux: $aux:expr) => {
        OnPolicySettings {
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
        on_policy_settings!(settings, aux: false)
    }
}

impl From<&Ppg> for OnPolicySettings {
    fn from(settings: &Ppg) -> OnPolicySettings {
        on_policy_settings!(settings, aux: true)
    }
}

impl From<&A2c> for OnPolicySettings {
    fn from(settings: &A2c) -> OnPolicySettings {
        on_policy_settings!(settings, aux: false)
    }
}

/// Networks, optimiser, environments.
pub struct OnPolicy {
    settings: OnPolicySettings,
    pub policy: ActorCritic,
    adam: Adam,
    ddp: Ddp,
    collector: Collector,
    actor: Actor,
    /// Advantages of the rollout collected last, `[steps][envs]`.
    pub advantages: Vec<f32>,
    /// Advantage + value, `[steps][envs]`.
    pub returns: Vec<f32>,
    seeds: Seeds,
    fingerprint_every: u64,
    /// The networks' device.
    pub device: Device,
}

impl OnPolicy {
    /// Collective: weights are copied from rank 0.
    pub fn new(settings: OnPolicySettings, build: &BuildContext<'_>) -> Result<OnPolicy, TrainerError> {
        let BuildContext { experiment, sizes, spec, seeds, device, group, start_iteration } = build;
        let (env, _) = setup::parts(experiment)?;
        let layout = Layout::new(spec, &experiment.policy, settings.aux)?;
        let policy = ActorCritic::new(layout, seeds, *device)?;
        let adam = Adam::new(policy.all().len(), settings.adam_eps, *device)?;
        let bucket = (experiment.distributed.bucket_mb.clamp(0.0, 4096.0) * 1024.0 * 1024.0) as usize;
        let ddp = Ddp::new(policy.named_parameters(), Vec::new(), group, bucket)?;
        let envs = sizes.local_envs as usize;
        let mut env =
            env::make_vector(env, envs, sizes.first_env, seeds, *start_iteration, env::EnvPurpose::Train)?;
        env.watch(shown(group.page()));
        let reward_config = RewardConfig {
            collect: Collect { num_steps: sizes.num_steps, ..experiment.collect.clone() },
            gamma: settings.gamma,
            bootstrap_truncated: settings.bootstrap_truncated,
        };
        let pixels = spec.observation_type == ObservationType::U8;
        let actor = Actor {
            acting: Acting::new(&policy, &spec.observation_shape, pixels, experiment.policy.kernel),
            log_std: match &spec.actions {
                ActionSpace::Discrete { .. } => Vec::new(),
                ActionSpace::Continuous { low, .. } => vec![0.0; low.len()],
            },
            space: spec.actions.clone(),
        };
        Ok(OnPolicy {
            collector: Collector::new(env, reward_config, *seeds, sizes.first_env),
            settings,
            policy,
            adam,
            ddp,
            actor,
            advantages: vec![0.0; sizes.local_batch],
            returns: vec![0.0; sizes.local_batch],
            seeds: *seeds,
            fingerprint_every: experiment.distributed.fingerprint_every,
            device: *device,
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
    /// when there are any).
    fn collect(&mut self, ctx: &StepContext<'_>) -> Result<(), TrainerError> {
        ctx.phase(Phase::Rollout);
        self.load_actor()?;
        self.collector.collect(&mut self.actor, ctx.iteration, |counters| ctx.stepped(counters))?;
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
        Ok(())
    }

    /// The rollout collected last.
    pub fn rollout(&self) -> &Rollout {
        self.collector.rollout()
    }

    /// The stream of this rank's shuffles in this iteration.
    fn shuffles(&self, ctx: &StepContext<'_>) -> Generator {
        self.seeds.generator(Purpose::Shuffle, ctx.group.rank(), ctx.iteration)
    }

    /// The learning rate of this iteration.
    fn rate(&self, ctx: &StepContext<'_>) -> f64 {
        ctx.annealed(self.settings.learning_rate, self.settings.anneal_lr)
    }

    /// One update down the gradient of `loss` (ONPOLICY-1).
    pub fn update(
        &mut self,
        loss: &Tensor,
        ctx: &StepContext<'_>,
        stats: &mut IterationStats,
    ) -> Result<(), TrainerError> {
        self.ddp.zero_grad();
        loss.f_backward()?;
        self.ddp.reduce(ctx.group)?;
        let _ = self.ddp.clip_grad_norm(self.settings.max_grad_norm);
        self.adam.step(self.policy.parameters(), stats.learning_rate)?;
        self.updated(ctx, stats);
        Ok(())
    }

    /// One update by hand-written passes: `pass` gets the parameters, and adds to the gradients, which are 0
    /// (ONPOLICY-1).
    ///
    /// # Safety
    /// `pass` uses no tensor: what it gets is the memory of the parameters and of their gradients.
    pub(super) unsafe fn update_flat(
        &mut self,
        ctx: &StepContext<'_>,
        stats: &mut IterationStats,
        pass: impl FnOnce(&[f32], &mut [f32]),
    ) -> Result<(), TrainerError> {
        let gone = || TrainerError::failure("the hand-written passes need networks on the CPU", "");
        // SAFETY: `pass` uses no tensor; parameters and gradients are different buffers.
        let (parameters, gradients) = unsafe { (self.policy.all().floats(), self.ddp.flat_gradients()) };
        let gradients = gradients.ok_or_else(gone)?;
        gradients.fill(0.0);
        pass(parameters.ok_or_else(gone)?, gradients);
        self.ddp.reduce(ctx.group)?;
        // SAFETY: until the step is done, no tensor operation runs; parameters and gradients are different
        // buffers.
        let (parameters, gradients) = unsafe { (self.policy.floats_mut(), self.ddp.flat_gradients()) };
        let gradients = gradients.ok_or_else(gone)?;
        let norm = sum_of_squares(Isa::best(), gradients).sqrt();
        let scale = clip_scale(norm, self.settings.max_grad_norm);
        self.adam.step_flat(parameters.ok_or_else(gone)?, gradients, stats.learning_rate, scale)?;
        self.updated(ctx, stats);
        Ok(())
    }

    /// After an update: counters, fingerprint, status page.
    fn updated(&mut self, ctx: &StepContext<'_>, stats: &mut IterationStats) {
        stats.updates += 1;
        let updates = ctx.updates + stats.updates;
        if self.fingerprint_every > 0 && updates.is_multiple_of(self.fingerprint_every) {
            stats.cover(self.ddp.fingerprint());
        }
        ctx.updated(stats);
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
                words("moments.observations", observations),
                words("moments.returns", returns),
            ],
            envs: self.collector.save_envs(),
            words_per_env: self.collector.words_per_env(),
        })
    }

    /// Restores [`OnPolicy::state`].
    fn restore(&mut self, restored: &RestoredState) -> Result<(), TrainerError> {
        restored.copy_to(MODEL, self.policy.named_parameters())?;
        let moments = [("first", &self.adam.first), ("second", &self.adam.second)];
        let moments = moments.map(|(name, tensor)| (name.to_owned(), tensor.shallow_clone()));
        restored.copy_to("adam.", moments.into())?;
        self.adam.steps = restored.words("adam.steps").first().copied().unwrap_or(0);
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
    /// [`IterationStats::losses`].
    fn learn(
        &mut self,
        on: &mut OnPolicy,
        ctx: &StepContext<'_>,
        random: &mut Generator,
        stats: &mut IterationStats,
    ) -> Result<(), TrainerError>;
}

/// An on-policy algorithm.
pub struct OnPolicyAlgorithm<R> {
    /// Environments, networks, optimiser.
    pub on: OnPolicy,
    /// What is learnt.
    pub objective: R,
}

impl<R: Objective> Algorithm for OnPolicyAlgorithm<R> {
    fn iterate(&mut self, ctx: &StepContext<'_>) -> Result<IterationStats, TrainerError> {
        let OnPolicyAlgorithm { on, objective } = self;
        on.collect(ctx)?;
        let mut stats = IterationStats { learning_rate: on.rate(ctx), ..IterationStats::default() };
        objective.learn(on, ctx, &mut on.shuffles(ctx), &mut stats)?;
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
        self.collector.greedy(&mut self.actor, observations, actions)
    }
}
