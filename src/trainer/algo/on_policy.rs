//! What the on-policy algorithms share: networks with one optimiser, rollouts, advantages, and the update step.
//!
//! Owner: the algorithm, whose own file says what is learnt from a rollout: a [`Recipe`]. [`Played`] is the rest of an [`Algorithm`].
//!
//! Invariant ONPOLICY-1: an update is zero gradients, backward, average over the ranks, clip, Adam, fingerprint, in this order on all ranks.

use super::adam::Adam;
use super::batch::explained_variance;
use super::gae::Gae;
use super::{Algorithm, At, Learned, Parts, shown};
use crate::collect::{Actor, Collector, Interval, Tally, Treatment};
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
use crate::state::{Array, MODEL, Restored, State, Words};
use rankdeck_kernel::Road;
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_kernel::optimise::{clip_scale, sum_of_squares};
use rankdeck_kernel::seeds::{Purpose, Seeds};
use rankdeck_proto::message::Phase;
use rankdeck_types::experiment::Collect;
use tch::{Device, Tensor};

/// Settings that every on-policy algorithm has.
#[derive(Debug, Clone, PartialEq)]
pub struct Common {
    /// Adam's learning rate.
    pub learning_rate: f64,
    /// It falls to 0 over the run.
    pub anneal_lr: bool,
    /// Adam's epsilon.
    pub adam_eps: f64,
    /// Discount.
    pub gamma: f64,
    /// GAE's lambda.
    pub gae_lambda: f64,
    /// Bound of the averaged gradient's global norm.
    pub max_grad_norm: f64,
    /// The value of a cut-off episode's last observation counts.
    pub bootstrap_truncated: bool,
    /// The networks have an auxiliary value head.
    pub aux: bool,
}

/// Networks, optimiser, environments.
pub struct OnPolicy {
    common: Common,
    /// The networks.
    pub policy: ActorCritic,
    adam: Adam,
    ddp: Ddp,
    collector: Collector,
    actor: Actor,
    /// Of the rollout collected last, `[steps][envs]`.
    pub advantages: Vec<f32>,
    /// Advantage + value, `[steps][envs]`.
    pub returns: Vec<f32>,
    seeds: Seeds,
    fingerprint_every: u64,
    /// Where networks live.
    pub device: Device,
}

impl OnPolicy {
    /// Collective: weights are copied from rank 0.
    pub fn new(common: Common, parts: &Parts<'_>) -> Result<OnPolicy, TrainerError> {
        let Parts { experiment, sizes, spec, seeds, device, group, life } = parts;
        let (env, _) = setup::parts(experiment)?;
        let layout = Layout::new(spec, &experiment.policy, common.aux)?;
        let policy = ActorCritic::new(layout, seeds, *device)?;
        let adam = Adam::new(policy.all().len(), common.adam_eps, *device)?;
        let bucket = (experiment.distributed.bucket_mb.clamp(0.0, 4096.0) * 1024.0 * 1024.0) as usize;
        let ddp = Ddp::new(policy.named_parameters(), Vec::new(), group, bucket)?;
        let envs = sizes.local_envs as usize;
        let mut env = env::make_vector(env, envs, sizes.first_env, seeds, *life, env::Purpose::Train)?;
        env.watch(shown(group.page()));
        let treatment = Treatment {
            collect: Collect { num_steps: sizes.num_steps, ..experiment.collect.clone() },
            gamma: common.gamma,
            bootstrap_truncated: common.bootstrap_truncated,
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
            collector: Collector::new(env, treatment, *seeds, sizes.first_env),
            common,
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

    /// The actor takes over what was learnt.
    fn load_actor(&mut self) -> Result<(), TrainerError> {
        self.actor.acting.load(&self.policy)?;
        if let Some(start) = self.policy.layout().log_std {
            let len = self.actor.log_std.len();
            let log_std = self.policy.flat().f_narrow(0, start as i64, len as i64)?;
            log_std.f_to_device(Device::Cpu)?.f_copy_data(&mut self.actor.log_std, len)?;
        }
        Ok(())
    }

    /// Collects a rollout and computes its advantages; the moments are merged over all ranks (one collective, when there are any).
    fn collect(&mut self, at: &At<'_>) -> Result<(), TrainerError> {
        at.phase(Phase::Rollout);
        self.load_actor()?;
        self.collector.collect(&mut self.actor, at.iteration, |tally| at.stepped(tally))?;
        at.phase(Phase::Learn);
        normalise::merge(&mut self.collector.moments(), at.group, self.device)?;
        self.collector.normalise_rewards();
        let rollout = self.collector.rollout();
        Gae {
            rewards: &rollout.rewards,
            values: &rollout.values,
            final_values: &rollout.final_values,
            dones: &rollout.dones,
            next_values: &rollout.next_values,
            next_dones: &rollout.next_dones,
            gamma: self.common.gamma as f32,
            lambda: self.common.gae_lambda as f32,
        }
        .run(&mut self.advantages, &mut self.returns);
        Ok(())
    }

    /// The rollout collected last.
    pub fn rollout(&self) -> &Rollout {
        self.collector.rollout()
    }

    /// The stream of this rank's shuffles in this iteration.
    fn shuffles(&self, at: &At<'_>) -> Generator {
        self.seeds.generator(Purpose::Shuffle, at.group.rank(), at.iteration)
    }

    /// The learning rate of this iteration.
    fn rate(&self, at: &At<'_>) -> f64 {
        at.annealed(self.common.learning_rate, self.common.anneal_lr)
    }

    /// One update down the gradient of `loss` (ONPOLICY-1).
    pub fn update(&mut self, loss: &Tensor, at: &At<'_>, learned: &mut Learned) -> Result<(), TrainerError> {
        self.ddp.zero_grad();
        loss.f_backward()?;
        self.ddp.reduce(at.group)?;
        let _ = self.ddp.clip_grad_norm(self.common.max_grad_norm);
        self.adam.step(self.policy.parameters(), learned.learning_rate)?;
        self.updated(at, learned);
        Ok(())
    }

    /// One update by hand-written passes: `pass` gets the parameters, and adds to the gradients, which are 0 (ONPOLICY-1).
    ///
    /// # Safety
    /// `pass` uses no tensor: what it gets is the memory of the parameters and of their gradients.
    pub(super) unsafe fn update_flat(
        &mut self,
        at: &At<'_>,
        learned: &mut Learned,
        pass: impl FnOnce(&[f32], &mut [f32]),
    ) -> Result<(), TrainerError> {
        let gone = || TrainerError::failure("the hand-written passes need networks on the CPU", "");
        // SAFETY: `pass` uses no tensor; parameters and gradients are different buffers.
        let (parameters, gradients) = unsafe { (self.policy.all().floats(), self.ddp.flat_gradients()) };
        let gradients = gradients.ok_or_else(gone)?;
        gradients.fill(0.0);
        pass(parameters.ok_or_else(gone)?, gradients);
        self.ddp.reduce(at.group)?;
        // SAFETY: until the step is done, no tensor operation runs; parameters and gradients are different buffers.
        let (parameters, gradients) = unsafe { (self.policy.floats_mut(), self.ddp.flat_gradients()) };
        let gradients = gradients.ok_or_else(gone)?;
        let norm = sum_of_squares(Road::best(), gradients).sqrt();
        let scale = clip_scale(norm, self.common.max_grad_norm);
        self.adam.step_flat(parameters.ok_or_else(gone)?, gradients, learned.learning_rate, scale)?;
        self.updated(at, learned);
        Ok(())
    }

    /// What follows an update: counters, fingerprint, status page.
    fn updated(&mut self, at: &At<'_>, learned: &mut Learned) {
        learned.updates += 1;
        let updates = at.updates + learned.updates;
        if self.fingerprint_every > 0 && updates.is_multiple_of(self.fingerprint_every) {
            learned.cover(self.ddp.fingerprint());
        }
        at.updated(learned);
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

    /// Back from [`OnPolicy::state`].
    fn restore(&mut self, restored: &Restored) -> Result<(), TrainerError> {
        restored.copy_to(MODEL, self.policy.named_parameters())?;
        let moments = [("first", &self.adam.first), ("second", &self.adam.second)];
        let moments = moments.map(|(name, tensor)| (name.to_owned(), tensor.shallow_clone()));
        restored.copy_to("adam.", moments.into())?;
        self.adam.steps = restored.words("adam.steps").first().copied().unwrap_or(0);
        self.collector
            .restore_moments([restored.words("moments.observations"), restored.words("moments.returns")]);
        self.collector.resume_tally(restored.tally);
        if let Some(envs) = &restored.envs {
            self.collector.restore_envs(envs)?;
        }
        Ok(())
    }
}

/// What one algorithm learns from a rollout.
pub trait Recipe {
    /// Learns from the rollout collected last, with the rank's stream for shuffles; fills in [`Learned::losses`].
    fn learn(
        &mut self,
        on: &mut OnPolicy,
        at: &At<'_>,
        random: &mut Generator,
        learned: &mut Learned,
    ) -> Result<(), TrainerError>;
}

/// An on-policy algorithm.
pub struct Played<R> {
    /// Environments, networks, optimiser.
    pub on: OnPolicy,
    /// What is learnt.
    pub recipe: R,
}

impl<R: Recipe> Algorithm for Played<R> {
    fn iterate(&mut self, at: &At<'_>) -> Result<Learned, TrainerError> {
        let Played { on, recipe } = self;
        on.collect(at)?;
        let mut learned = Learned { learning_rate: on.rate(at), ..Learned::default() };
        recipe.learn(on, at, &mut on.shuffles(at), &mut learned)?;
        let explained = explained_variance(&on.rollout().values, &on.returns);
        learned.losses.push(("losses/explained_variance", explained));
        Ok(learned)
    }

    fn tally(&self) -> Tally {
        self.on.collector.tally()
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

    fn restore(&mut self, restored: &Restored) -> Result<(), TrainerError> {
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
