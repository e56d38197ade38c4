//! Twin delayed deterministic policy gradient over all ranks: each rank fills its own replay and contributes its
//! share of every batch.
//!
//! Fujimoto et al. 2018 (arXiv 1802.09477) with the details of CleanRL's td3_continuous_action.py: twin critics
//! whose target is the smaller of both at a noisy action of the target actor, and an actor and targets that
//! are updated after every second update of the critics.
//!
//! An iteration is `collect.num_steps` steps of every environment, then `updates_per_iteration` updates
//! ([`Td3Learner`]). Until `learning_starts` environment steps over all ranks, actions are uniform within
//! their bounds; later they are the actor's with Gaussian noise. After a cut by a time limit, the value of the
//! true last observation counts, as in CleanRL (REPLAY-2).
//!
//! Invariants:
//! - TD3-1: the order is fixed: critics; after every `policy_every` updates the actor, then all targets. Critics
//!   and actor have an optimizer and a flat gradient each, which is averaged over the ranks: one collective
//!   each. The count depends on the number of updates only.
//! - TD3-2: all networks and their targets stay equal bit by bit over the ranks; all are broadcast at the start
//!   and covered by the fingerprint.
//! - The actor's loss changes no critic.

use super::adam::Adam;
use super::captured_update::{CapturableUpdate, CapturedUpdate, GraphCapture, GraphSplitter};
use super::device_metrics::{self, DeviceMetrics};
use super::off_policy::{Learner, OffPolicyAlgorithm, OffPolicySettings, shares};
use super::sac::{Noise, Optimizer};
use super::{BuildContext, Greedy, ScalarStat};
use crate::collect::rollout::ActionBuffer;
use crate::distributed::cuda::graph::CapturedPass;
use crate::distributed::memory::{HostValues, PackedUpload, upload};
use crate::distributed::{Ddp, ProcessGroup};
use crate::env::{Observations, Spec};
use crate::error::TrainerError;
use crate::policy::continuous::ContinuousLayout;
use crate::policy::q_network::follow;
use crate::policy::td3_networks::{self, Td3Networks};
use crate::replay::ReplayBatch;
use crate::startup::setup::Sizes;
use crate::support::state::{AlgorithmState, Array, MODEL, NamedWords, RestoredState};
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_kernel::seeds::Seeds;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::learn::Td3Config as Settings;
use tch::{Device, Kind, TchError, Tensor};

/// TD3 on one rank: the learner and how it acts.
pub(crate) struct Td3Algorithm {
    learner: Td3Learner,
    settings: Settings,
    device: Device,
    acting: CapturedPass,
}

fn off_policy_settings(settings: &Settings) -> OffPolicySettings {
    let Settings { buffer_size, learning_starts, batch_size, gamma, updates_per_iteration, .. } = *settings;
    OffPolicySettings { buffer_size, learning_starts, batch_size, n_step: 1, gamma, updates_per_iteration }
}

/// Refuses what cannot work, before any rank is waited for.
pub(crate) fn check(
    settings: &Settings,
    experiment: &Experiment,
    spec: &Spec,
    sizes: &Sizes,
) -> Result<(), TrainerError> {
    shares(&off_policy_settings(settings), spec, sizes)?;
    td3_networks::layout(spec, &experiment.policy).map(drop)
}

impl Td3Algorithm {
    /// Collective: weights are copied from rank 0.
    pub(crate) fn new(
        settings: &Settings,
        build: &BuildContext<'_>,
    ) -> Result<OffPolicyAlgorithm<Td3Algorithm>, TrainerError> {
        let BuildContext { experiment, spec, seeds, device, group, .. } = build;
        let layout = td3_networks::layout(spec, &experiment.policy)?;
        let bucket = (experiment.distributed.bucket_mb.clamp(0.0, 4096.0) * 1024.0 * 1024.0) as usize;
        let learner = {
            let sizes = (bucket, GraphCapture(experiment.policy.cuda_graphs));
            Td3Learner::new(settings.clone(), layout, seeds, *device, group, sizes)?
        };
        let td3 = Td3Algorithm {
            learner,
            settings: settings.clone(),
            device: *device,
            acting: CapturedPass::new(*device, experiment.policy.cuda_graphs),
        };
        OffPolicyAlgorithm::new(off_policy_settings(settings), td3, build)
    }

    fn input(&self, observations: Observations<'_>, rows: usize) -> Result<Tensor, TchError> {
        let numbers = observations.f32().unwrap_or_default();
        Tensor::f_from_slice(numbers)?.f_view([rows as i64, -1])?.f_to_device(self.device)
    }
}

impl Learner for Td3Algorithm {
    fn explore(
        &mut self,
        observations: Observations<'_>,
        env_step: u64,
        randoms: &mut [Generator],
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError> {
        let ActionBuffer::Continuous { width, values } = actions else { return Err(wrong_actions()) };
        if env_step < self.settings.learning_starts {
            self.learner.networks.layout().uniform_actions(*width, values, randoms);
            return Ok(());
        }
        let rows = randoms.len();
        let deviation = self.settings.exploration_noise as f32;
        // Observations, then noise, in one copy.
        let mut both = observations.f32().unwrap_or_default().to_vec();
        let split = both.len() as i64;
        both.extend(
            randoms.iter_mut().flat_map(|random| random.normals(*width)).map(|normal| normal * deviation),
        );
        let (rows, drawn) = (rows as i64, (rows * *width) as i64);
        let both = upload(Tensor::f_from_slice(&both)?, self.device)?;
        let Td3Algorithm { acting, learner, .. } = self;
        let networks = &learner.networks;
        let actions = tch::no_grad(|| {
            acting.run(&both, |both| {
                let input = both.f_narrow(0, 0, split)?.f_view([rows, -1])?;
                let noise = both.f_narrow(0, split, drawn)?.f_view([rows, -1])?;
                networks.with_noise(&networks.act(networks.actor.tensors(), &input)?, &noise)
            })
        })?;
        let len = values.len();
        Ok(actions.f_to_device(Device::Cpu)?.f_contiguous()?.f_copy_data(values, len)?)
    }

    fn update(
        &mut self,
        batch: &ReplayBatch,
        random: &mut Generator,
        group: &ProcessGroup,
    ) -> Result<(), TrainerError> {
        self.learner.update(batch, random, group)
    }

    fn close(
        &mut self,
        covered: bool,
        batch: &ReplayBatch,
        group: &ProcessGroup,
    ) -> Result<Option<u64>, TrainerError> {
        self.learner.close(covered, batch, group)
    }

    fn rate(&self) -> f64 {
        self.settings.learning_rate
    }

    fn losses(&mut self, _env_step: u64) -> Result<Vec<ScalarStat>, TrainerError> {
        let stats = self.learner.stats()?;
        Ok(vec![
            ScalarStat::loss("losses/qf_loss", stats.critic_loss),
            // Not every update has it; each was checked when it was made.
            ScalarStat::other("losses/actor_loss", stats.actor_loss),
            ScalarStat::other("losses/qf1_values", stats.q_values),
        ])
    }

    fn save(&self, state: &mut AlgorithmState) -> Result<(), TrainerError> {
        let Td3Learner { networks, .. } = &self.learner;
        state.arrays.extend(networks.actor.arrays(MODEL)?);
        state.arrays.extend(networks.critics.arrays(MODEL)?);
        state.arrays.extend(networks.target_actor.arrays("target.")?);
        state.arrays.extend(networks.targets.arrays("target.")?);
        for (name, Optimizer { adam, .. }) in optimizers(&self.learner) {
            state.arrays.push(Array::of(&format!("adam.{name}.first"), &adam.first)?);
            state.arrays.push(Array::of(&format!("adam.{name}.second"), &adam.second)?);
        }
        let steps = optimizers(&self.learner).map(|(_, part)| part.adam.steps);
        state.words.push(NamedWords { name: "adam.steps".into(), values: steps.to_vec() });
        state.words.push(NamedWords { name: "td3.updates".into(), values: vec![self.learner.updates()] });
        Ok(())
    }

    fn load(&mut self, restored: &RestoredState) -> Result<(), TrainerError> {
        let learner = &mut self.learner;
        restored.copy_to(MODEL, learner.networks.actor.named())?;
        restored.copy_to(MODEL, learner.networks.critics.named())?;
        restored.copy_to("target.", learner.networks.target_actor.named())?;
        restored.copy_to("target.", learner.networks.targets.named())?;
        for (name, Optimizer { adam, .. }) in optimizers(learner) {
            let moments = [("first", &adam.first), ("second", &adam.second)]
                .map(|(moment, tensor)| (format!("{name}.{moment}"), tensor.shallow_clone()));
            restored.copy_to("adam.", moments.into())?;
        }
        let steps = restored.words("adam.steps").to_vec();
        for (part, steps) in [&mut learner.critics, &mut learner.actor].into_iter().zip(steps) {
            part.adam.steps = steps;
        }
        learner.resume(restored.words("td3.updates").first().copied().unwrap_or(0));
        Ok(())
    }
}

fn wrong_actions() -> TrainerError {
    TrainerError::failure("TD3 supports continuous actions only", "")
}

impl Greedy for Td3Algorithm {
    fn act(
        &mut self,
        observations: Observations<'_>,
        _masks: Option<&[u8]>,
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError> {
        let ActionBuffer::Continuous { width, values } = actions else { return Err(wrong_actions()) };
        let len = values.len();
        let input = self.input(observations, len / (*width).max(1))?;
        let networks = &self.learner.networks;
        let best = tch::no_grad(|| networks.act(networks.actor.tensors(), &input))?;
        Ok(best.f_to_device(Device::Cpu)?.f_contiguous()?.f_copy_data(values, len)?)
    }
}

fn optimizers(learner: &Td3Learner) -> [(&'static str, &Optimizer); 2] {
    [("critics", &learner.critics), ("actor", &learner.actor)]
}

/// Statistics of an update, from this rank's share of the batch.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Td3Stats {
    /// Sum of both critics' mean squared errors. This and the others are NaN before the first update.
    critic_loss: f64,
    /// Loss of the latest actor update.
    actor_loss: f64,
    /// Mean value of the actions in the batch, by the first critic.
    q_values: f64,
}

/// Scalars of the latest update of each kind, still on the device.
#[derive(Default)]
struct LatestStats {
    critic_loss: Option<Tensor>,
    actor_loss: Option<Tensor>,
    q_values: Option<Tensor>,
}

/// The networks and what trains them.
pub struct Td3Learner {
    settings: Settings,
    pub networks: Td3Networks,
    /// Trains the critics; covers their targets.
    pub critics: Optimizer,
    /// Trains the actor; covers its target.
    pub actor: Optimizer,
    updates: u64,
    metrics: DeviceMetrics,
    latest: LatestStats,
    /// Inputs of updates of the critics alone, and of updates of all networks.
    packed: [PackedUpload; 2],
    /// Both kinds of updates; absent while one is made.
    recordings: Option<[CapturedUpdate; 2]>,
}

/// A batch and the noise of an update, on the device.
struct UpdateInputs {
    now: Tensor,
    next: Tensor,
    taken: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    noise: Tensor,
}

struct Td3Update<'a> {
    learner: &'a mut Td3Learner,
    columns: UpdateInputs,
    with_actor: bool,
    batch: &'a ReplayBatch,
}

impl CapturableUpdate for Td3Update<'_> {
    fn work(&mut self, cut: &mut GraphSplitter<'_>) -> Result<(), TrainerError> {
        let Td3Update { learner, columns, with_actor, batch } = self;
        let UpdateInputs { now, next, taken, rewards, discounts, noise } = columns;
        let goals = tch::no_grad(|| -> Result<Tensor, TchError> {
            let networks = &learner.networks;
            let best = networks.act(networks.target_actor.tensors(), next)?;
            let actions = networks.with_noise(&best, noise)?;
            let [first, second] = networks.layout().values(networks.targets.tensors(), next, &actions)?;
            rewards.f_add(&discounts.f_mul(&first.f_minimum(&second)?)?)
        })?;
        let seen = || batch.largest();
        learner.critic_step((now, taken, &goals), cut, &seen)?;
        if *with_actor {
            learner.actor_step(now, cut, &seen)?;
            let Td3Networks { actor, critics, target_actor, targets, .. } = &learner.networks;
            follow(actor.flat(), target_actor.flat(), learner.settings.tau)?;
            follow(critics.flat(), targets.flat(), learner.settings.tau)?;
        }
        Ok(learner.metrics.store()?)
    }

    fn gradients(&mut self, index: usize) -> &mut Ddp {
        match index {
            CRITICS => &mut self.learner.critics.ddp,
            _ => &mut self.learner.actor.ddp,
        }
    }

    fn metrics(&mut self) -> &mut DeviceMetrics {
        &mut self.learner.metrics
    }
}

/// Indices of the optimizers, for [`CapturableUpdate::gradients`].
const CRITICS: usize = 0;
const ACTOR: usize = 1;

impl Td3Learner {
    /// Fresh networks, equal on all ranks. `bucket_bytes`: see [`Ddp::new`].
    pub fn new(
        settings: Settings,
        layout: ContinuousLayout,
        seeds: &Seeds,
        device: Device,
        group: &ProcessGroup,
        (bucket_bytes, GraphCapture(captured)): (usize, GraphCapture),
    ) -> Result<Td3Learner, TrainerError> {
        let networks = Td3Networks::new(layout, seeds, device)?;
        let eps = settings.adam_eps;
        let part = |parameters: Vec<(String, Tensor)>, target: Vec<(String, Tensor)>| {
            let len = parameters.iter().map(|(_, tensor)| tensor.numel()).sum();
            let target = target.into_iter().map(|(name, tensor)| (format!("target.{name}"), tensor));
            Ok::<_, TrainerError>(Optimizer {
                adam: Adam::new(len, eps, device)?,
                ddp: Ddp::new(parameters, target.collect(), group, bucket_bytes)?,
            })
        };
        let critics = part(networks.critics.named(), networks.targets.named())?;
        let actor = part(networks.actor.named(), networks.target_actor.named())?;
        let recording = |what| CapturedUpdate::new(what, device, captured);
        // Every update enters the critics' loss, and some the actor's.
        let most = 2 * settings.updates_per_iteration as usize;
        Ok(Td3Learner {
            metrics: DeviceMetrics::new(most, device)?,
            packed: [PackedUpload::new(device), PackedUpload::new(device)],
            recordings: Some([recording("an update of the critics"), recording("an update of all networks")]),
            settings,
            networks,
            critics,
            actor,
            updates: 0,
            latest: LatestStats::default(),
        })
    }

    /// Critic updates so far.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Continues from the critic updates of a checkpoint.
    pub fn resume(&mut self, updates: u64) {
        self.updates = updates;
    }

    /// Ends the updates of an iteration; see [`super::off_policy::Learner::close`].
    pub fn close(
        &mut self,
        covered: bool,
        batch: &ReplayBatch,
        group: &ProcessGroup,
    ) -> Result<Option<u64>, TrainerError> {
        let parts: &[&Ddp] = if covered { &[&self.critics.ddp, &self.actor.ddp] } else { &[] };
        let prints = self.metrics.finish_iteration(parts, group, || batch.largest())?;
        Ok(covered.then(|| prints.into_iter().fold(0, |sum: u64, print| sum.rotate_left(17) ^ print)))
    }

    /// One update from this rank's share of a batch.
    pub fn update(
        &mut self,
        batch: &ReplayBatch,
        noise: &mut dyn Noise,
        group: &ProcessGroup,
    ) -> Result<(), TrainerError> {
        let (rows, actions) = (batch.rows as i64, self.networks.layout().actions as i64);
        let with_actor = (self.updates + 1).is_multiple_of(u64::from(self.settings.policy_every.max(1)));
        let (deviation, clip) = (self.settings.policy_noise as f32, self.settings.noise_clip as f32);
        let mut drawn = noise.normals((rows * actions) as usize);
        drawn.iter_mut().for_each(|number| *number = (*number * deviation).clamp(-clip, clip));
        let kind = usize::from(with_actor);
        let columns = columns(&mut self.packed[kind], batch, actions, &drawn)?;
        let place = self.packed[kind].place();
        let rate = self.settings.learning_rate;
        self.critics.adam.count_steps(1, rate)?;
        self.actor.adam.count_steps(u64::from(with_actor), rate)?;
        self.updates += 1;
        let mut recordings = self.recordings.take();
        let mut update = Td3Update { learner: self, columns, with_actor, batch };
        let made = match &mut recordings {
            Some(recordings) => recordings[kind].run(&mut update, place, group),
            None => Err(TrainerError::failure("nested update", "")),
        };
        self.recordings = recordings;
        made
    }

    /// Statistics of the latest update, read from the device.
    fn stats(&self) -> Result<Td3Stats, TchError> {
        let LatestStats { critic_loss, actor_loss, q_values } = &self.latest;
        let scalars = [critic_loss, actor_loss, q_values];
        let there: Vec<Tensor> =
            scalars.iter().filter_map(|scalar| scalar.as_ref().map(Tensor::shallow_clone)).collect();
        if there.is_empty() {
            return Ok(Td3Stats { critic_loss: f64::NAN, actor_loss: f64::NAN, q_values: f64::NAN });
        }
        let mut numbers = device_metrics::numbers(&there)?.into_iter();
        let mut next = |there: bool| if there { numbers.next().unwrap_or(f64::NAN) } else { f64::NAN };
        let [critic_loss, actor_loss, q_values] = scalars.map(|scalar| next(scalar.is_some()));
        Ok(Td3Stats { critic_loss, actor_loss, q_values })
    }

    fn critic_step(
        &mut self,
        (now, taken, goals): (&Tensor, &Tensor, &Tensor),
        cut: &mut GraphSplitter<'_>,
        seen: &dyn Fn() -> String,
    ) -> Result<(), TrainerError> {
        let networks = &self.networks;
        let [first, second] = networks.layout().values(networks.critics.tensors(), now, taken)?;
        let squares = |values: &Tensor| values.f_sub(goals)?.f_square()?.f_mean(None::<Kind>);
        let loss = squares(&first)?.f_add(&squares(&second)?)?;
        self.metrics.loss("losses/qf_loss", &loss, seen)?;
        let Optimizer { adam, ddp } = &mut self.critics;
        ddp.differentiate(&loss)?;
        cut.reduce(CRITICS, ddp)?;
        adam.launch(self.networks.critics.tensors())?;
        self.latest.critic_loss = Some(loss.f_detach()?);
        self.latest.q_values = Some(first.f_detach()?.f_mean(None::<Kind>)?);
        Ok(())
    }

    fn actor_step(
        &mut self,
        now: &Tensor,
        cut: &mut GraphSplitter<'_>,
        seen: &dyn Fn() -> String,
    ) -> Result<(), TrainerError> {
        let networks = &self.networks;
        // Gradients flow through the first critic to the actions, and no further.
        let critics = networks.critics.tensors();
        let first =
            critics[..critics.len() / 2].iter().map(Tensor::f_detach).collect::<Result<Vec<_>, _>>()?;
        let actions = networks.act(networks.actor.tensors(), now)?;
        let loss = networks.layout().value(&first, now, &actions)?.f_mean(None::<Kind>)?.f_neg()?;
        self.metrics.loss("losses/actor_loss", &loss, seen)?;
        let Optimizer { adam, ddp } = &mut self.actor;
        ddp.differentiate(&loss)?;
        cut.reduce(ACTOR, ddp)?;
        adam.launch(self.networks.actor.tensors())?;
        self.latest.actor_loss = Some(loss.f_detach()?);
        Ok(())
    }
}

/// Sends a batch and its noise to the device.
fn columns(
    packed: &mut PackedUpload,
    batch: &ReplayBatch,
    actions: i64,
    noise: &[f32],
) -> Result<UpdateInputs, TchError> {
    let rows = batch.rows as i64;
    let drawn = vec![rows, actions];
    let parts = [
        (HostValues::F32(&batch.numbers.now), vec![rows, -1]),
        (HostValues::F32(&batch.numbers.next), vec![rows, -1]),
        (HostValues::F32(&batch.actions), drawn.clone()),
        (HostValues::F32(&batch.rewards), vec![rows]),
        (HostValues::F32(&batch.discounts), vec![rows]),
        (HostValues::F32(noise), drawn),
    ];
    let sent: Result<[Tensor; 6], _> = packed.send(&parts)?.try_into();
    let [now, next, taken, rewards, discounts, noise] =
        sent.map_err(|_| TchError::Torch("unexpected number of batch parts".into()))?;
    Ok(UpdateInputs { now, next, taken, rewards, discounts, noise })
}
