//! Soft actor-critic over all ranks: each rank fills its own replay and contributes its share of every batch.
//!
//! Haarnoja et al. 2018 (arXiv 1812.05905) with the details of CleanRL's sac_continuous_action.py: twin
//! critics, a delayed actor that makes up for the delay, targets that follow after every critic update, and
//! the entropy weight learned as the exponential of a free number.
//!
//! An iteration is `collect.num_steps` steps of every environment, then `updates_per_iteration` updates
//! ([`SacLearner`]). Until `learning_starts` environment steps over all ranks, actions are uniform within
//! their bounds. After a cut by a time limit, the value of the true last observation counts, as in CleanRL
//! (REPLAY-2).
//!
//! Invariants:
//! - SAC-1: the order is fixed: critics; every `policy_every` updates the actor and then the entropy weight,
//!   `policy_every` times. Each has an optimizer and a flat gradient of its own, which is averaged over the
//!   ranks: one collective each. The count depends on the number of updates only.
//! - SAC-2: critics, targets, actor and entropy weight stay equal bit by bit over the ranks; all are
//!   broadcast at the start and covered by the fingerprint.
//! - The actor's loss changes no critic.

use super::adam::Adam;
use super::captured_update::{CapturableUpdate, CapturedUpdate, GraphCapture, GraphSplitter};
use super::device_metrics::{self, DeviceMetrics};
use super::off_policy::{Learner, OffPolicyAlgorithm, OffPolicySettings, shares};
use super::{BuildContext, Greedy, ScalarStat};
use crate::collect::rollout::ActionBuffer;
use crate::distributed::cuda::graph::CapturedPass;
use crate::distributed::memory::{HostValues, PackedUpload, upload};
use crate::distributed::{Ddp, ProcessGroup};
use crate::env::{Observations, Spec};
use crate::error::TrainerError;
use crate::policy::continuous::ContinuousLayout;
use crate::policy::q_network::follow;
use crate::policy::sac_networks::{self, SacNetworks};
use crate::replay::ReplayBatch;
use crate::startup::setup::Sizes;
use crate::support::state::{AlgorithmState, Array, MODEL, NamedWords, RestoredState};
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_kernel::seeds::Seeds;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::learn::SacConfig as Settings;
use tch::{Device, Kind, TchError, Tensor};

/// SAC on one rank: the learner and how it acts.
pub(crate) struct SacAlgorithm {
    learner: SacLearner,
    settings: Settings,
    device: Device,
    acting: CapturedPass,
}

impl Noise for Generator {
    fn normals(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.normal() as f32).collect()
    }
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
    sac_networks::layout(spec, &experiment.policy).map(drop)
}

impl SacAlgorithm {
    /// Collective: weights are copied from rank 0.
    pub(crate) fn new(
        settings: &Settings,
        build: &BuildContext<'_>,
    ) -> Result<OffPolicyAlgorithm<SacAlgorithm>, TrainerError> {
        let BuildContext { experiment, spec, seeds, device, group, .. } = build;
        let layout = sac_networks::layout(spec, &experiment.policy)?;
        let bucket = (experiment.distributed.bucket_mb.clamp(0.0, 4096.0) * 1024.0 * 1024.0) as usize;
        let learner = {
            let sizes = (bucket, GraphCapture(experiment.policy.cuda_graphs));
            SacLearner::new(settings.clone(), layout, seeds, *device, group, sizes)?
        };
        let sac = SacAlgorithm {
            learner,
            settings: settings.clone(),
            device: *device,
            acting: CapturedPass::new(*device, experiment.policy.cuda_graphs),
        };
        OffPolicyAlgorithm::new(off_policy_settings(settings), sac, build)
    }

    fn input(&self, observations: Observations<'_>, rows: usize) -> Result<Tensor, TchError> {
        let numbers = observations.f32().unwrap_or_default();
        Tensor::f_from_slice(numbers)?.f_view([rows as i64, -1])?.f_to_device(self.device)
    }
}

impl Learner for SacAlgorithm {
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
        // Observations, then noise, in one copy.
        let mut both = observations.f32().unwrap_or_default().to_vec();
        let split = both.len() as i64;
        both.extend(randoms.iter_mut().flat_map(|random| random.normals(*width)));
        let (rows, drawn) = (rows as i64, (rows * *width) as i64);
        let both = upload(Tensor::f_from_slice(&both)?, self.device)?;
        let SacAlgorithm { acting, learner, .. } = self;
        let actions = tch::no_grad(|| {
            acting.run(&both, |both| {
                let input = both.f_narrow(0, 0, split)?.f_view([rows, -1])?;
                let noise = both.f_narrow(0, split, drawn)?.f_view([rows, -1])?;
                Ok(learner.networks.draw(&input, &noise)?.actions)
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
        self.settings.policy_lr
    }

    fn losses(&mut self, _env_step: u64) -> Result<Vec<ScalarStat>, TrainerError> {
        let stats = self.learner.stats()?;
        Ok(vec![
            ScalarStat::loss("losses/qf_loss", stats.critic_loss),
            // Not every update has these; each was checked when it was made.
            ScalarStat::other("losses/actor_loss", stats.actor_loss),
            ScalarStat::other("losses/alpha_loss", stats.alpha_loss),
            ScalarStat::other("losses/alpha", stats.alpha),
            ScalarStat::other("losses/qf1_values", stats.q_values),
        ])
    }

    fn save(&self, state: &mut AlgorithmState) -> Result<(), TrainerError> {
        let learner = &self.learner;
        state.arrays.extend(learner.networks.actor.arrays(MODEL)?);
        state.arrays.extend(learner.networks.critics.arrays(MODEL)?);
        state.arrays.extend(learner.networks.targets.arrays("target.")?);
        state.arrays.push(Array::of("log_alpha", &learner.log_alpha)?);
        for (name, Optimizer { adam, .. }) in optimizers(learner) {
            state.arrays.push(Array::of(&format!("adam.{name}.first"), &adam.first)?);
            state.arrays.push(Array::of(&format!("adam.{name}.second"), &adam.second)?);
        }
        let steps = optimizers(learner).map(|(_, part)| part.adam.steps);
        state.words.push(NamedWords { name: "adam.steps".into(), values: steps.to_vec() });
        state.words.push(NamedWords { name: "sac.updates".into(), values: vec![learner.updates()] });
        Ok(())
    }

    fn load(&mut self, restored: &RestoredState) -> Result<(), TrainerError> {
        let learner = &mut self.learner;
        restored.copy_to(MODEL, learner.networks.actor.named())?;
        restored.copy_to(MODEL, learner.networks.critics.named())?;
        restored.copy_to("target.", learner.networks.targets.named())?;
        restored.copy_to("", vec![("log_alpha".into(), learner.log_alpha.shallow_clone())])?;
        for (name, Optimizer { adam, .. }) in optimizers(learner) {
            let moments = [("first", &adam.first), ("second", &adam.second)]
                .map(|(moment, tensor)| (format!("{name}.{moment}"), tensor.shallow_clone()));
            restored.copy_to("adam.", moments.into())?;
        }
        let steps = restored.words("adam.steps").to_vec();
        for (part, steps) in
            [&mut learner.critics, &mut learner.actor, &mut learner.alpha].into_iter().zip(steps)
        {
            part.adam.steps = steps;
        }
        learner.resume(restored.words("sac.updates").first().copied().unwrap_or(0));
        Ok(())
    }
}

fn wrong_actions() -> TrainerError {
    TrainerError::failure("SAC supports continuous actions only", "")
}

impl Greedy for SacAlgorithm {
    fn act(
        &mut self,
        observations: Observations<'_>,
        _masks: Option<&[u8]>,
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError> {
        let ActionBuffer::Continuous { width, values } = actions else { return Err(wrong_actions()) };
        let len = values.len();
        let input = self.input(observations, len / (*width).max(1))?;
        let best = tch::no_grad(|| self.learner.networks.greedy(&input))?;
        Ok(best.f_to_device(Device::Cpu)?.f_contiguous()?.f_copy_data(values, len)?)
    }
}

fn optimizers(learner: &SacLearner) -> [(&'static str, &Optimizer); 3] {
    [("critics", &learner.critics), ("actor", &learner.actor), ("alpha", &learner.alpha)]
}

/// Statistics of an update, from this rank's share of the batch.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct SacStats {
    /// Sum of both critics' mean squared errors. This and the others are NaN before the first update.
    critic_loss: f64,
    /// Loss of the latest actor update.
    actor_loss: f64,
    /// Loss of the latest update of the entropy weight.
    alpha_loss: f64,
    /// The entropy weight.
    alpha: f64,
    /// Mean value of the actions in the batch, by the first critic.
    q_values: f64,
}

/// Scalars of the latest update of each kind, still on the device.
#[derive(Default)]
struct LatestStats {
    critic_loss: Option<Tensor>,
    actor_loss: Option<Tensor>,
    alpha_loss: Option<Tensor>,
    q_values: Option<Tensor>,
}

/// A network's, or a number's, optimizer with its gradients.
pub struct Optimizer {
    /// The optimizer.
    pub(crate) adam: Adam,
    /// Gradients and equality over the ranks.
    pub ddp: Ddp,
}

/// The networks and what trains them.
pub struct SacLearner {
    settings: Settings,
    pub networks: SacNetworks,
    /// Logarithm of the entropy weight.
    pub log_alpha: Tensor,
    /// Trains the critics; covers the targets.
    pub critics: Optimizer,
    /// Trains the actor.
    pub actor: Optimizer,
    /// Trains the entropy weight.
    pub alpha: Optimizer,
    updates: u64,
    metrics: DeviceMetrics,
    latest: LatestStats,
    /// Inputs of updates of the critics alone, and of updates of actor and entropy weight, too.
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
    next_noise: Tensor,
    /// For each step of the actor, and for each of the entropy weight.
    noise: Vec<[Tensor; 2]>,
}

struct SacUpdate<'a> {
    learner: &'a mut SacLearner,
    columns: UpdateInputs,
    batch: &'a ReplayBatch,
}

impl CapturableUpdate for SacUpdate<'_> {
    fn work(&mut self, cut: &mut GraphSplitter<'_>) -> Result<(), TrainerError> {
        let SacUpdate { learner, columns, batch } = self;
        let UpdateInputs { now, next, taken, rewards, discounts, next_noise, noise } = columns;
        let goals = tch::no_grad(|| -> Result<Tensor, TchError> {
            let drawn = learner.networks.draw(next, next_noise)?;
            let [first, second] =
                learner.networks.layout().values(learner.networks.targets.tensors(), next, &drawn.actions)?;
            let entropy = drawn.log_probs.f_mul(&learner.log_alpha.f_exp()?)?;
            rewards.f_add(&discounts.f_mul(&first.f_minimum(&second)?.f_sub(&entropy)?)?)
        })?;
        let seen = || batch.largest();
        learner.critic_step((now, taken, &goals), cut, &seen)?;
        for [actor, alpha] in noise {
            learner.actor_step(now, actor, cut, &seen)?;
            if learner.settings.autotune {
                learner.alpha_step(now, alpha, cut)?;
            }
        }
        follow(learner.networks.critics.flat(), learner.networks.targets.flat(), learner.settings.tau)?;
        Ok(learner.metrics.store()?)
    }

    fn gradients(&mut self, index: usize) -> &mut Ddp {
        let SacLearner { critics, actor, alpha, .. } = &mut *self.learner;
        match index {
            CRITICS => &mut critics.ddp,
            ACTOR => &mut actor.ddp,
            _ => &mut alpha.ddp,
        }
    }

    fn metrics(&mut self) -> &mut DeviceMetrics {
        &mut self.learner.metrics
    }
}

/// Indices of the optimizers, for [`CapturableUpdate::gradients`].
const CRITICS: usize = 0;
const ACTOR: usize = 1;
const ALPHA: usize = 2;

/// Standard normal numbers for one update, `[rows][actions]` each.
pub trait Noise {
    /// The next ones; `count` numbers.
    fn normals(&mut self, count: usize) -> Vec<f32>;
}

impl SacLearner {
    /// Fresh networks, equal on all ranks. `bucket_bytes`: see [`Ddp::new`].
    pub fn new(
        settings: Settings,
        layout: ContinuousLayout,
        seeds: &Seeds,
        device: Device,
        group: &ProcessGroup,
        (bucket_bytes, GraphCapture(captured)): (usize, GraphCapture),
    ) -> Result<SacLearner, TrainerError> {
        let networks = SacNetworks::new(layout, seeds, device)?;
        let start = settings.alpha.max(f64::MIN_POSITIVE).ln();
        let log_alpha =
            Tensor::f_from_slice(&[start as f32])?.f_to_device(device)?.f_set_requires_grad(true)?;
        let eps = settings.adam_eps;
        let part = |parameters: Vec<(String, Tensor)>, buffers| -> Result<Optimizer, TrainerError> {
            let len = parameters.iter().map(|(_, tensor)| tensor.numel()).sum();
            Ok(Optimizer {
                adam: Adam::new(len, eps, device)?,
                ddp: Ddp::new(parameters, buffers, group, bucket_bytes)?,
            })
        };
        let targets =
            networks.targets.named().into_iter().map(|(name, tensor)| (format!("target.{name}"), tensor));
        let critics = part(networks.critics.named(), targets.collect())?;
        let actor = part(networks.actor.named(), Vec::new())?;
        let alpha = part(vec![("log_alpha".into(), log_alpha.shallow_clone())], Vec::new())?;
        let recording = |what| CapturedUpdate::new(what, device, captured);
        // Every update enters the critics' loss, and every `policy_every`-th two for each step of the actor.
        let most = 3 * settings.updates_per_iteration as usize + 2 * settings.policy_every as usize;
        Ok(SacLearner {
            metrics: DeviceMetrics::new(most, device)?,
            packed: [PackedUpload::new(device), PackedUpload::new(device)],
            recordings: Some([recording("an update of the critics"), recording("an update of all networks")]),
            settings,
            networks,
            log_alpha,
            critics,
            actor,
            alpha,
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
        let parts: &[&Ddp] =
            if covered { &[&self.critics.ddp, &self.actor.ddp, &self.alpha.ddp] } else { &[] };
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
        let every = u64::from(self.settings.policy_every.max(1));
        let with_actor = (self.updates + 1).is_multiple_of(every);
        let steps = if with_actor { every } else { 0 };
        let mut draw = || noise.normals((rows * actions) as usize);
        let next_noise = draw();
        let autotune = self.settings.autotune;
        let noise: Vec<[Vec<f32>; 2]> =
            (0..steps).map(|_| [draw(), if autotune { draw() } else { Vec::new() }]).collect();
        let kind = usize::from(with_actor);
        let columns = columns(&mut self.packed[kind], batch, actions, (&next_noise, &noise))?;
        let place = self.packed[kind].place();
        self.critics.adam.count_steps(1, self.settings.q_lr)?;
        self.actor.adam.count_steps(steps, self.settings.policy_lr)?;
        self.alpha.adam.count_steps(if autotune { steps } else { 0 }, self.settings.q_lr)?;
        self.updates += 1;
        let mut recordings = self.recordings.take();
        let mut update = SacUpdate { learner: self, columns, batch };
        let made = match &mut recordings {
            Some(recordings) => recordings[kind].run(&mut update, place, group),
            None => Err(TrainerError::failure("nested update", "")),
        };
        self.recordings = recordings;
        made
    }

    /// Statistics of the latest update, read from the device.
    fn stats(&self) -> Result<SacStats, TchError> {
        let LatestStats { critic_loss, actor_loss, alpha_loss, q_values } = &self.latest;
        let scalars = [critic_loss, actor_loss, alpha_loss, q_values];
        let there: Vec<Tensor> = scalars
            .iter()
            .filter_map(|scalar| scalar.as_ref().map(Tensor::shallow_clone))
            .chain([self.log_alpha.f_detach()?.f_view([0_i64; 0])?])
            .collect();
        let mut numbers = device_metrics::numbers(&there)?.into_iter();
        let mut next = |there: bool| if there { numbers.next().unwrap_or(f64::NAN) } else { f64::NAN };
        let [critic_loss, actor_loss, alpha_loss, q_values] = scalars.map(|scalar| next(scalar.is_some()));
        Ok(SacStats { critic_loss, actor_loss, alpha_loss, alpha: next(true).exp(), q_values })
    }

    fn critic_step(
        &mut self,
        (now, taken, goals): (&Tensor, &Tensor, &Tensor),
        cut: &mut GraphSplitter<'_>,
        seen: &dyn Fn() -> String,
    ) -> Result<(), TrainerError> {
        let [first, second] = self.networks.layout().values(self.networks.critics.tensors(), now, taken)?;
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
        noise: &Tensor,
        cut: &mut GraphSplitter<'_>,
        seen: &dyn Fn() -> String,
    ) -> Result<(), TrainerError> {
        // Gradients flow through the critics to the actions, and no further.
        let critics =
            self.networks.critics.tensors().iter().map(Tensor::f_detach).collect::<Result<Vec<_>, _>>()?;
        let drawn = self.networks.draw(now, noise)?;
        let [first, second] = self.networks.layout().values(&critics, now, &drawn.actions)?;
        let alpha = self.log_alpha.f_detach()?.f_exp()?;
        let loss = drawn.log_probs.f_mul(&alpha)?.f_sub(&first.f_minimum(&second)?)?.f_mean(None::<Kind>)?;
        self.metrics.loss("losses/actor_loss", &loss, seen)?;
        let Optimizer { adam, ddp } = &mut self.actor;
        ddp.differentiate(&loss)?;
        cut.reduce(ACTOR, ddp)?;
        adam.launch(self.networks.actor.tensors())?;
        self.latest.actor_loss = Some(loss.f_detach()?);
        Ok(())
    }

    fn alpha_step(
        &mut self,
        now: &Tensor,
        noise: &Tensor,
        cut: &mut GraphSplitter<'_>,
    ) -> Result<(), TrainerError> {
        let log_probs = tch::no_grad(|| self.networks.draw(now, noise))?.log_probs;
        // The target entropy: one nat below uniform per action (Haarnoja et al. 2018).
        let target = -(self.networks.layout().actions as f64);
        let lack = log_probs.f_add_scalar(target)?.f_neg()?;
        let loss = self.log_alpha.f_exp()?.f_mul(&lack)?.f_mean(None::<Kind>)?;
        self.metrics.loss("losses/alpha_loss", &loss, String::new)?;
        let Optimizer { adam, ddp } = &mut self.alpha;
        ddp.differentiate(&loss)?;
        cut.reduce(ALPHA, ddp)?;
        adam.launch(std::slice::from_ref(&self.log_alpha))?;
        self.latest.alpha_loss = Some(loss.f_detach()?);
        Ok(())
    }
}

/// Sends a batch and its noise to the device.
fn columns(
    packed: &mut PackedUpload,
    batch: &ReplayBatch,
    actions: i64,
    (next_noise, noise): (&[f32], &[[Vec<f32>; 2]]),
) -> Result<UpdateInputs, TchError> {
    let rows = batch.rows as i64;
    let drawn = vec![rows, actions];
    let mut parts = vec![
        (HostValues::F32(&batch.numbers.now), vec![rows, -1]),
        (HostValues::F32(&batch.numbers.next), vec![rows, -1]),
        (HostValues::F32(&batch.actions), drawn.clone()),
        (HostValues::F32(&batch.rewards), vec![rows]),
        (HostValues::F32(&batch.discounts), vec![rows]),
        (HostValues::F32(next_noise), drawn.clone()),
    ];
    let flat = noise.iter().flatten().filter(|numbers| !numbers.is_empty());
    parts.extend(flat.map(|numbers| (HostValues::F32(numbers), drawn.clone())));
    let mut sent = packed.send(&parts)?.into_iter();
    let mut next = || sent.next().ok_or_else(|| TchError::Torch("unexpected number of batch parts".into()));
    let (now, after, taken, rewards) = (next()?, next()?, next()?, next()?);
    let (discounts, next_noise) = (next()?, next()?);
    let noise = noise
        .iter()
        .map(|[_, alpha]| {
            let actor = next()?;
            let alpha = if alpha.is_empty() { actor.shallow_clone() } else { next()? };
            Ok([actor, alpha])
        })
        .collect::<Result<_, TchError>>()?;
    Ok(UpdateInputs { now, next: after, taken, rewards, discounts, next_noise, noise })
}
