//! What off-policy algorithms with an actor and two critics share: how they act, update, report and are saved.
//!
//! A [`TwinCriticRule`] has an algorithm's networks, its losses and the order of its update.
//! [`TwinCriticLearner`] makes a [`Learner`] of it: actions uniform within their bounds until `learning_starts`
//! environment steps over all ranks, then the actor's with noise; inputs of an update in one copy; updates that
//! are captured on a GPU; gradients averaged over the ranks, one collective for each step of an optimizer.
//!
//! Invariants:
//! - Critics are trained by every update, the actor by every `policy_every`-th: which ones an update trains
//!   depends on the number of updates only.
//! - An update draws its noise in a fixed order, before its work.

use super::adam::Adam;
use super::captured_update::{CapturableUpdate, CapturedUpdate, GraphCapture, GraphSplitter};
use super::device_metrics::{self, DeviceMetrics};
use super::off_policy::{Learner, OffPolicyAlgorithm, OffPolicySettings, shares};
use super::twin_kernels::{KernelStage, TwinKernels};
use super::{BuildContext, ScalarStat, bucket_bytes};
use crate::collect::rollout::ActionBuffer;
use crate::distributed::cuda::CapturedPass;
use crate::distributed::memory::{HostValues, PackedUpload, upload};
use crate::distributed::{Ddp, ProcessGroup};
use crate::env::{Observations, Spec};
use crate::error::TrainerError;
use crate::policy::continuous::ContinuousLayout;
use crate::policy::parameters::Parameters;
use crate::replay::{ReplayBatch, Shown};
use crate::startup::setup::Sizes;
use crate::support::state::{AlgorithmState, Array, NamedWords, RestoredState};
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_types::experiment::Kernel;
use tch::{Device, Kind, TchError, Tensor};

/// Prefix of targets in checkpoints and fingerprints.
pub(crate) const TARGET: &str = "target.";

/// Index of the critics' optimizer.
pub(crate) const CRITICS: usize = 0;
/// Index of the actor's optimizer.
pub(crate) const ACTOR: usize = 1;

/// Configuration keys that the algorithms share.
#[derive(Debug, Clone, Copy)]
pub struct TwinCriticSettings {
    pub(crate) off_policy: OffPolicySettings,
    /// The rate that is reported.
    pub(crate) learning_rate: f64,
    pub(crate) adam_eps: f64,
    /// Updates of the critics per update of the actor.
    pub(crate) policy_every: u32,
}

/// What one optimizer trains.
pub struct TrainedPart {
    /// In the names of its moments in checkpoints.
    pub(crate) name: &'static str,
    /// Name of its loss.
    pub(crate) loss: &'static str,
    pub(crate) parameters: Vec<(String, Tensor)>,
    /// Not trained, but equal on all ranks, too.
    pub(crate) targets: Vec<(String, Tensor)>,
}

/// Targets by their names in checkpoints.
pub(crate) fn targets(parameters: &Parameters) -> Vec<(String, Tensor)> {
    parameters.named().into_iter().map(|(name, tensor)| (format!("{TARGET}{name}"), tensor)).collect()
}

/// A number that a rule reports besides its losses.
pub struct RuleScalar {
    pub(crate) name: &'static str,
    /// On the device.
    pub(crate) tensor: Tensor,
    pub(crate) report: ScalarMap,
}

/// What is reported of a number.
pub type ScalarMap = fn(f64) -> f64;

/// An algorithm of an actor and two critics.
pub trait TwinCriticRule {
    /// In messages; in lower case, the first part of its names in checkpoints.
    const NAME: &'static str;

    /// Keys that the algorithms share.
    fn settings(&self) -> TwinCriticSettings;
    /// The place of the parameters.
    fn layout(&self) -> &ContinuousLayout;
    /// What is trained: critics, actor, and what else there is.
    fn trained(&self) -> Vec<TrainedPart>;
    /// Networks with the prefixes of their names in checkpoints, in the order of the file.
    fn networks(&self) -> Vec<(&'static str, &Parameters)>;
    /// Numbers in checkpoints besides the networks.
    fn numbers(&self) -> Vec<(String, Tensor)> {
        Vec::new()
    }
    /// Numbers to report besides the losses.
    fn scalar(&self) -> Result<Option<RuleScalar>, TchError> {
        Ok(None)
    }
    /// Most losses that the updates of an iteration enter.
    fn most_losses(&self) -> usize;
    /// Standard normal numbers are multiplied by this for [`TwinCriticRule::explore`].
    fn exploration_noise(&self) -> f32 {
        1.0
    }
    /// Actions to explore with, `[rows, actions]`, as the environment takes them.
    fn explore(&self, observations: &Tensor, noise: &Tensor) -> Result<Tensor, TchError>;
    /// The best actions, in the same form.
    fn greedy(&self, observations: &Tensor) -> Result<Tensor, TchError>;
    /// The noise of an update, `[rows][actions]` each, from calls of `draw`.
    fn noise(&self, with_actor: bool, draw: &mut dyn FnMut() -> Vec<f32>) -> Vec<Vec<f32>>;
    /// Counts the steps of the optimizers in an update, before it is made or replayed.
    fn count_steps(&self, with_actor: bool, optimizers: &mut [Optimizer]) -> Result<(), TrainerError>;
    /// Work of an update: the same each time for the same `with_actor`.
    fn work(
        &self,
        inputs: &UpdateInputs,
        with_actor: bool,
        stage: &mut UpdateStage<'_, '_>,
    ) -> Result<(), TrainerError>;
    /// Takes snapshots of all networks, after they were changed from outside.
    fn load_kernels(&self, kernels: &mut TwinKernels) -> Result<(), TrainerError>;
    /// [`TwinCriticRule::work`] by hand-written passes; `noise` as [`TwinCriticRule::noise`] gives it.
    fn kernel_work(
        &mut self,
        kernels: &mut TwinKernels,
        noise: &[Vec<f32>],
        with_actor: bool,
        stage: &mut KernelStage<'_>,
    ) -> Result<(), TrainerError>;
    /// The actions of [`TwinCriticRule::explore`] with this noise, or of [`TwinCriticRule::greedy`] without, for the
    /// observations in `kernels.now`.
    fn kernel_actions(
        &mut self,
        kernels: &mut TwinKernels,
        noise: Option<&[f32]>,
        actions: &mut [f32],
    ) -> Result<(), TrainerError>;
}

/// Standard normal numbers for one update, `[rows][actions]` each.
pub trait Noise {
    /// The next ones; `count` numbers.
    fn normals(&mut self, count: usize) -> Vec<f32>;
}

impl Noise for Generator {
    fn normals(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.normal() as f32).collect()
    }
}

/// A network's, or a number's, optimizer with its gradients.
pub struct Optimizer {
    name: &'static str,
    pub(crate) adam: Adam,
    /// Gradients and equality over the ranks.
    pub ddp: Ddp,
    loss: &'static str,
    /// The loss of its latest step, from this rank's share of the batch, still on the device.
    latest: Option<Tensor>,
}

impl Optimizer {
    /// Name of its loss.
    pub(crate) fn loss_name(&self) -> &'static str {
        self.loss
    }

    /// Notes the loss of its latest step.
    pub(crate) fn set_loss(&mut self, loss: f64) -> Result<(), TchError> {
        self.latest = Some(scalar(loss)?);
        Ok(())
    }
}

/// A number as libtorch's passes leave it.
fn scalar(number: f64) -> Result<Tensor, TchError> {
    Tensor::f_from_slice(&[number as f32])?.f_view([0_i64; 0])
}

/// What an update changes besides the networks.
pub struct TrainingState {
    optimizers: Vec<Optimizer>,
    metrics: DeviceMetrics,
    /// Mean value of the actions in the latest batch, by the first critic.
    q_values: Option<Tensor>,
}

impl TrainingState {
    /// The optimizer at an index.
    pub(crate) fn optimizer(&mut self, index: usize) -> Option<&mut Optimizer> {
        self.optimizers.get_mut(index)
    }

    /// Notes the mean value of the actions in the latest batch, by the first critic.
    pub(crate) fn set_q_values(&mut self, mean: f64) -> Result<(), TchError> {
        self.q_values = Some(scalar(mean)?);
        Ok(())
    }
}

/// A batch and the noise of an update, on the device.
pub struct UpdateInputs {
    pub(crate) now: Tensor,
    pub(crate) next: Tensor,
    pub(crate) taken: Tensor,
    pub(crate) rewards: Tensor,
    pub(crate) discounts: Tensor,
    /// As [`TwinCriticRule::noise`] gives it, `[rows, actions]` each.
    pub(crate) noise: Vec<Tensor>,
}

/// What an update works with.
pub struct UpdateStage<'a, 'b> {
    training: &'a mut TrainingState,
    cut: &'a mut GraphSplitter<'b>,
    batch: &'a ReplayBatch,
}

impl UpdateStage<'_, '_> {
    /// One step of the optimizer at `index` down this loss, by its gradient averaged over the ranks.
    #[track_caller]
    pub(crate) fn step(
        &mut self,
        index: usize,
        loss: &Tensor,
        parameters: &[Tensor],
    ) -> Result<(), TrainerError> {
        let UpdateStage { training, cut, batch } = self;
        let optimizer = &mut training.optimizers[index];
        training.metrics.loss(optimizer.loss, loss, || batch.largest())?;
        optimizer.ddp.differentiate(loss)?;
        cut.reduce(index, &mut optimizer.ddp)?;
        optimizer.adam.launch(parameters)?;
        optimizer.latest = Some(loss.f_detach()?);
        Ok(())
    }

    /// One step of both critics towards these goals, `[rows]`, by the sum of their mean squared errors.
    #[track_caller]
    pub(crate) fn critic_step(
        &mut self,
        layout: &ContinuousLayout,
        critics: &Parameters,
        inputs: &UpdateInputs,
        goals: &Tensor,
    ) -> Result<(), TrainerError> {
        let [first, second] = layout.values(critics.tensors(), &inputs.now, &inputs.taken)?;
        let squares = |values: &Tensor| values.f_sub(goals)?.f_square()?.f_mean(None::<Kind>);
        let loss = squares(&first)?.f_add(&squares(&second)?)?;
        self.step(CRITICS, &loss, critics.tensors())?;
        self.training.q_values = Some(first.f_detach()?.f_mean(None::<Kind>)?);
        Ok(())
    }
}

/// A rule on one rank, and how it acts.
pub struct TwinCriticLearner<R> {
    /// Networks and losses.
    pub rule: R,
    settings: TwinCriticSettings,
    training: TrainingState,
    /// Updates of the critics so far.
    updates: u64,
    /// Inputs of updates of the critics alone, and of updates of all networks.
    packed: [PackedUpload; 2],
    /// Both kinds of updates.
    recordings: [CapturedUpdate; 2],
    acting: CapturedPass,
    /// Hand-written passes, where they exist.
    kernels: Option<Box<TwinKernels>>,
    device: Device,
}

struct TwinCriticUpdate<'a, R> {
    rule: &'a R,
    training: &'a mut TrainingState,
    inputs: UpdateInputs,
    with_actor: bool,
    batch: &'a ReplayBatch,
}

impl<R: TwinCriticRule> CapturableUpdate for TwinCriticUpdate<'_, R> {
    fn work(&mut self, cut: &mut GraphSplitter<'_>) -> Result<(), TrainerError> {
        let mut stage = UpdateStage { training: self.training, cut, batch: self.batch };
        self.rule.work(&self.inputs, self.with_actor, &mut stage)?;
        Ok(self.training.metrics.store()?)
    }

    fn gradients(&mut self, index: usize) -> &mut Ddp {
        &mut self.training.optimizers[index].ddp
    }

    fn metrics(&mut self) -> &mut DeviceMetrics {
        &mut self.training.metrics
    }
}

/// Refuses what cannot work, before any rank is waited for. `layout` is that of the rule.
pub(crate) fn check(
    settings: &TwinCriticSettings,
    layout: Result<ContinuousLayout, TrainerError>,
    (spec, sizes): (&Spec, &Sizes),
) -> Result<(), TrainerError> {
    shares(&settings.off_policy, spec, sizes)?;
    layout.map(drop)
}

impl<R: TwinCriticRule> TwinCriticLearner<R> {
    /// The networks of `rule` become equal on all ranks. Collective. `bucket_bytes`: see [`Ddp::new`].
    pub fn new(
        rule: R,
        device: Device,
        group: &ProcessGroup,
        (bucket_bytes, GraphCapture(captured)): (usize, GraphCapture),
        kernel: Kernel,
    ) -> Result<TwinCriticLearner<R>, TrainerError> {
        let settings = rule.settings();
        let rows = (settings.off_policy.batch_size / group.world_size().max(1)) as usize;
        let kernels = TwinKernels::new(rule.layout(), kernel, device, rows);
        if kernels.is_none() && kernel == Kernel::Native {
            return Err(TrainerError::usage(
                "policy.kernel = \"native\" needs fully connected networks on the CPU",
                "set policy.kernel = \"auto\"",
            ));
        }
        let optimizer = |TrainedPart { name, loss, parameters, targets }| -> Result<Optimizer, TrainerError> {
            let len = parameters.iter().map(|(_, tensor)| tensor.numel()).sum();
            let adam = Adam::new(len, settings.adam_eps, device)?;
            let ddp = Ddp::new(parameters, targets, group, bucket_bytes)?;
            Ok(Optimizer { name, adam, ddp, loss, latest: None })
        };
        let optimizers = rule.trained().into_iter().map(optimizer).collect::<Result<Vec<_>, _>>()?;
        let recording = |what| CapturedUpdate::new(what, device, captured);
        let metrics = DeviceMetrics::new(rule.most_losses(), device)?;
        let mut learner = TwinCriticLearner {
            training: TrainingState { optimizers, metrics, q_values: None },
            packed: [PackedUpload::new(device), PackedUpload::new(device)],
            recordings: [recording("an update of the critics"), recording("an update of all networks")],
            acting: CapturedPass::new(device, captured),
            rule,
            settings,
            updates: 0,
            kernels,
            device,
        };
        learner.loaded()?;
        Ok(learner)
    }

    /// Call after the networks were changed from outside.
    fn loaded(&mut self) -> Result<(), TrainerError> {
        match &mut self.kernels {
            Some(kernels) => self.rule.load_kernels(kernels),
            None => Ok(()),
        }
    }

    /// With environments and replay.
    pub(crate) fn build(
        rule: R,
        build: &BuildContext<'_>,
    ) -> Result<OffPolicyAlgorithm<TwinCriticLearner<R>>, TrainerError> {
        let BuildContext { experiment, device, group, .. } = build;
        let sizes = (bucket_bytes(experiment), GraphCapture(experiment.policy.cuda_graphs));
        let learner = TwinCriticLearner::new(rule, *device, group, sizes, experiment.policy.kernel)?;
        OffPolicyAlgorithm::new(learner.settings.off_policy, learner, build)
    }

    /// The optimizers: the critics', the actor's, and what else there is.
    pub fn optimizers(&self) -> &[Optimizer] {
        &self.training.optimizers
    }

    /// One update from this rank's share of a batch.
    pub fn learn(
        &mut self,
        batch: &ReplayBatch,
        noise: &mut dyn Noise,
        group: &ProcessGroup,
    ) -> Result<(), TrainerError> {
        let every = u64::from(self.settings.policy_every.max(1));
        let with_actor = (self.updates + 1).is_multiple_of(every);
        let actions = self.rule.layout().actions;
        let noise = self.rule.noise(with_actor, &mut || noise.normals(batch.rows * actions));
        if let Some(kernels) = &mut self.kernels {
            self.updates += 1;
            let mut stage = KernelStage { training: &mut self.training, batch, group };
            return self.rule.kernel_work(kernels, &noise, with_actor, &mut stage);
        }
        let kind = usize::from(with_actor);
        let inputs = inputs(&mut self.packed[kind], batch, actions as i64, &noise)?;
        let place = self.packed[kind].place();
        self.rule.count_steps(with_actor, &mut self.training.optimizers)?;
        self.updates += 1;
        let TwinCriticLearner { rule, training, recordings, .. } = self;
        let mut update = TwinCriticUpdate { rule, training, inputs, with_actor, batch };
        recordings[kind].run(&mut update, place, group)
    }

    fn input(&self, observations: Observations<'_>, rows: usize) -> Result<Tensor, TchError> {
        let numbers = observations.f32().unwrap_or_default();
        Tensor::f_from_slice(numbers)?.f_view([rows as i64, -1])?.f_to_device(self.device)
    }

    fn updates_name() -> String {
        format!("{}.updates", R::NAME.to_lowercase())
    }
}

fn wrong_actions(name: &str) -> TrainerError {
    TrainerError::failure(format!("{name} supports continuous actions only"), "")
}

impl<R: TwinCriticRule> Learner for TwinCriticLearner<R> {
    fn explore(
        &mut self,
        Shown { observations, .. }: Shown<'_>,
        env_step: u64,
        randoms: &mut [Generator],
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError> {
        let ActionBuffer::Continuous { width, values } = actions else { return Err(wrong_actions(R::NAME)) };
        if env_step < self.settings.off_policy.learning_starts {
            self.rule.layout().uniform_actions(*width, values, randoms);
            return Ok(());
        }
        let rows = randoms.len();
        let deviation = self.rule.exploration_noise();
        let noise: Vec<f32> = randoms
            .iter_mut()
            .flat_map(|random| random.normals(*width))
            .map(|normal| normal * deviation)
            .collect();
        if let Some(kernels) = &mut self.kernels {
            kernels.now.copy_rows(observations.f32().unwrap_or_default());
            return self.rule.kernel_actions(kernels, Some(&noise), values);
        }
        // Observations, then noise, in one copy.
        let mut both = observations.f32().unwrap_or_default().to_vec();
        let split = both.len() as i64;
        both.extend(noise);
        let (rows, drawn) = (rows as i64, (rows * *width) as i64);
        let both = upload(Tensor::f_from_slice(&both)?, self.device)?;
        let TwinCriticLearner { acting, rule, .. } = self;
        let actions = tch::no_grad(|| {
            acting.run(&both, |both| {
                let input = both.f_narrow(0, 0, split)?.f_view([rows, -1])?;
                let noise = both.f_narrow(0, split, drawn)?.f_view([rows, -1])?;
                rule.explore(&input, &noise)
            })
        })?;
        let len = values.len();
        Ok(actions.f_to_device(Device::Cpu)?.f_contiguous()?.f_copy_data(values, len)?)
    }

    fn exploit(
        &mut self,
        Shown { observations, .. }: Shown<'_>,
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError> {
        let ActionBuffer::Continuous { width, values } = actions else { return Err(wrong_actions(R::NAME)) };
        if let Some(kernels) = &mut self.kernels {
            kernels.now.copy_rows(observations.f32().unwrap_or_default());
            return self.rule.kernel_actions(kernels, None, values);
        }
        let len = values.len();
        let input = self.input(observations, len / (*width).max(1))?;
        let best = tch::no_grad(|| self.rule.greedy(&input))?;
        Ok(best.f_to_device(Device::Cpu)?.f_contiguous()?.f_copy_data(values, len)?)
    }

    fn update(
        &mut self,
        batch: &ReplayBatch,
        random: &mut Generator,
        group: &ProcessGroup,
    ) -> Result<(), TrainerError> {
        self.learn(batch, random, group)
    }

    fn close(
        &mut self,
        covered: bool,
        batch: &ReplayBatch,
        group: &ProcessGroup,
    ) -> Result<Option<u64>, TrainerError> {
        let TrainingState { optimizers, metrics, .. } = &mut self.training;
        let parts: Vec<&Ddp> = optimizers.iter().filter(|_| covered).map(|part| &part.ddp).collect();
        let prints = metrics.finish_iteration(&parts, group, || batch.largest())?;
        Ok(covered.then(|| prints.into_iter().fold(0, |sum: u64, print| sum.rotate_left(17) ^ print)))
    }

    fn rate(&self) -> f64 {
        self.settings.learning_rate
    }

    fn losses(&mut self, _env_step: u64) -> Result<Vec<ScalarStat>, TrainerError> {
        let TrainingState { optimizers, q_values, .. } = &self.training;
        let share = |tensor: &Option<Tensor>| tensor.as_ref().map(Tensor::shallow_clone);
        let same: ScalarMap = |number| number;
        let mut scalars: Vec<(&str, Option<Tensor>, ScalarMap)> =
            optimizers.iter().map(|part| (part.loss, share(&part.latest), same)).collect();
        if let Some(RuleScalar { name, tensor, report }) = self.rule.scalar()? {
            scalars.push((name, Some(tensor), report));
        }
        scalars.push(("losses/qf1_values", share(q_values), same));
        let there: Vec<Tensor> = scalars.iter().filter_map(|(_, tensor, _)| share(tensor)).collect();
        let mut numbers = device_metrics::numbers(&there)?.into_iter();
        let stats = scalars.into_iter().enumerate().map(|(index, (name, tensor, report))| {
            // NaN before the first update.
            let number = tensor.and_then(|_| numbers.next()).map_or(f64::NAN, report);
            match index {
                CRITICS => ScalarStat::loss(name, number),
                // Not every update has these; each was checked when it was made.
                _ => ScalarStat::other(name, number),
            }
        });
        Ok(stats.collect())
    }

    fn save(&self, state: &mut AlgorithmState) -> Result<(), TrainerError> {
        for (prefix, network) in self.rule.networks() {
            state.arrays.extend(network.arrays(prefix)?);
        }
        for (name, number) in self.rule.numbers() {
            state.arrays.push(Array::of(&name, &number)?);
        }
        for Optimizer { name, adam, .. } in &self.training.optimizers {
            state.arrays.extend(adam.arrays(&format!("adam.{name}."))?);
        }
        let steps = self.training.optimizers.iter().map(|part| part.adam.steps).collect();
        state.words.push(NamedWords { name: "adam.steps".into(), values: steps });
        let updates = NamedWords { name: Self::updates_name(), values: vec![self.updates] };
        state.words.push(updates);
        Ok(())
    }

    fn load(&mut self, restored: &RestoredState) -> Result<(), TrainerError> {
        for (prefix, network) in self.rule.networks() {
            restored.copy_to(prefix, network.named())?;
        }
        restored.copy_to("", self.rule.numbers())?;
        let steps = restored.words("adam.steps");
        for (index, Optimizer { name, adam, .. }) in self.training.optimizers.iter_mut().enumerate() {
            adam.restore(&format!("adam.{name}."), steps.get(index).copied(), restored)?;
        }
        self.updates = restored.words(&Self::updates_name()).first().copied().unwrap_or(0);
        self.loaded()
    }
}

/// Sends a batch and its noise to the device.
fn inputs(
    packed: &mut PackedUpload,
    batch: &ReplayBatch,
    actions: i64,
    noise: &[Vec<f32>],
) -> Result<UpdateInputs, TchError> {
    let rows = batch.rows as i64;
    let drawn = vec![rows, actions];
    let mut parts = vec![
        (HostValues::F32(&batch.numbers.now), vec![rows, -1]),
        (HostValues::F32(&batch.numbers.next), vec![rows, -1]),
        (HostValues::F32(&batch.actions), drawn.clone()),
        (HostValues::F32(&batch.rewards), vec![rows]),
        (HostValues::F32(&batch.discounts), vec![rows]),
    ];
    parts.extend(noise.iter().map(|numbers| (HostValues::F32(numbers), drawn.clone())));
    let mut sent = packed.send(&parts)?.into_iter();
    let mut part = || sent.next().ok_or_else(|| TchError::Torch("unexpected number of batch parts".into()));
    let (now, next, taken, rewards, discounts) = (part()?, part()?, part()?, part()?, part()?);
    Ok(UpdateInputs { now, next, taken, rewards, discounts, noise: sent.collect() })
}
