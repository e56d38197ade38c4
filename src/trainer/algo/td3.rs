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

use super::BuildContext;
use super::off_policy::{OffPolicyAlgorithm, OffPolicySettings};
use super::twin_critics::{
    self, ACTOR, CRITICS, Optimizer, TARGET, TrainedPart, TwinCriticLearner, TwinCriticRule,
    TwinCriticSettings, UpdateInputs, UpdateStage, targets,
};
use super::twin_kernels::{KernelStage, TwinKernels};
use crate::env::Spec;
use crate::error::TrainerError;
use crate::policy::continuous::ContinuousLayout;
use crate::policy::parameters::{ParameterEntry, Parameters, initial};
use crate::policy::q_network::{dense, follow};
use crate::startup::setup::Sizes;
use crate::support::state::MODEL;
use rankdeck_kernel::Isa;
use rankdeck_kernel::Matrix;
use rankdeck_kernel::math::tanh_all;
use rankdeck_kernel::seeds::Seeds;
use rankdeck_types::experiment::{Experiment, Policy};
use rankdeck_types::learn::Td3Config as Settings;
use tch::{Device, Kind, TchError, Tensor};

/// The layout for `spec`. Refused when network and environment do not fit.
pub fn layout(spec: &Spec, policy: &Policy) -> Result<ContinuousLayout, TrainerError> {
    ContinuousLayout::new("td3", &["fc_mu"], spec, policy)
}

/// TD3's networks: an actor that gives one action, two critics, and the targets of all three.
pub struct Td3Networks {
    layout: ContinuousLayout,
    pub actor: Parameters,
    /// Both critics.
    pub critics: Parameters,
    /// The actor's target; never has gradients.
    pub target_actor: Parameters,
    /// Both critics' targets; never have gradients.
    pub targets: Parameters,
    scale: Tensor,
    bias: Tensor,
}

impl Td3Networks {
    /// Freshly initialized, targets equal to their networks.
    pub(crate) fn new(
        layout: ContinuousLayout,
        seeds: &Seeds,
        device: Device,
    ) -> Result<Td3Networks, TchError> {
        // One stream for all: the critics differ from each other and from the actor.
        let all: Vec<ParameterEntry> = layout.actor.iter().chain(&layout.critics).cloned().collect();
        let flat = initial(&all, seeds);
        let split = layout.actor.iter().map(|entry| entry.len).sum::<usize>();
        let target = |entries: &[ParameterEntry], flat: &[f32]| -> Result<Parameters, TchError> {
            let target = Parameters::new(entries, flat, device)?;
            for tensor in target.tensors() {
                let _ = tensor.f_set_requires_grad(false)?;
            }
            Ok(target)
        };
        Ok(Td3Networks {
            actor: Parameters::new(&layout.actor, &flat[..split], device)?,
            critics: Parameters::new(&layout.critics, &flat[split..], device)?,
            target_actor: target(&layout.actor, &flat[..split])?,
            targets: target(&layout.critics, &flat[split..])?,
            scale: Tensor::f_from_slice(&layout.scale)?.f_to_device(device)?,
            bias: Tensor::f_from_slice(&layout.bias)?.f_to_device(device)?,
            layout,
        })
    }

    /// Where everything is.
    pub(crate) fn layout(&self) -> &ContinuousLayout {
        &self.layout
    }

    /// The actions of an actor (or its target) with these parameters, `[rows, actions]`, as the environment takes
    /// them.
    pub(crate) fn act(&self, actor: &[Tensor], observations: &Tensor) -> Result<Tensor, TchError> {
        dense(self.layout.activation, actor, observations)?.f_tanh()?.f_mul(&self.scale)?.f_add(&self.bias)
    }

    /// These actions with noise `[rows, actions]` in units of half an action's range, within their bounds.
    pub(crate) fn with_noise(&self, actions: &Tensor, noise: &Tensor) -> Result<Tensor, TchError> {
        let noisy = actions.f_add(&noise.f_mul(&self.scale)?)?;
        noisy.f_maximum(&self.bias.f_sub(&self.scale)?)?.f_minimum(&self.bias.f_add(&self.scale)?)
    }
}

/// TD3 on one rank.
pub type Td3Learner = TwinCriticLearner<Td3>;

/// Networks and losses of TD3.
pub struct Td3 {
    settings: Settings,
    pub networks: Td3Networks,
    /// Of the hand-written passes: gradient of the actor's output.
    by_output: Matrix,
}

/// The actions of an actor's outputs `[rows][actions]`, within their bounds, and the squashed outputs; `noise` is in
/// units of half an action's range.
fn bounded(layout: &ContinuousLayout, outputs: &Matrix, noise: Option<&[f32]>) -> (Vec<f32>, Vec<f32>) {
    let mut squashed: Vec<f32> = outputs.iter().flatten().copied().collect();
    tanh_all(Isa::best(), &mut squashed);
    let bounds = layout.scale.iter().zip(&layout.bias).cycle();
    let actions = squashed.iter().zip(bounds).enumerate().map(|(i, (value, (scale, bias)))| {
        match noise.and_then(|noise| noise.get(i)) {
            Some(noise) => {
                let (noisy, low, high) = (value * scale + bias + noise * scale, bias - scale, bias + scale);
                // NaN stays NaN.
                if noisy < low {
                    low
                } else if noisy > high {
                    high
                } else {
                    noisy
                }
            }
            None => value * scale + bias,
        }
    });
    (actions.collect(), squashed)
}

fn shared_settings(settings: &Settings) -> TwinCriticSettings {
    let Settings { buffer_size, learning_starts, batch_size, gamma, updates_per_iteration, .. } = *settings;
    TwinCriticSettings {
        off_policy: OffPolicySettings {
            buffer_size,
            learning_starts,
            batch_size,
            n_step: 1,
            gamma,
            updates_per_iteration,
        },
        learning_rate: settings.learning_rate,
        adam_eps: settings.adam_eps,
        policy_every: settings.policy_every,
    }
}

/// Refuses what cannot work, before any rank is waited for.
pub(crate) fn check(
    settings: &Settings,
    experiment: &Experiment,
    spec: &Spec,
    sizes: &Sizes,
) -> Result<(), TrainerError> {
    let layout = layout(spec, &experiment.policy);
    twin_critics::check(&shared_settings(settings), layout, (spec, sizes))
}

/// TD3 with environments and replay. Collective: weights are copied from rank 0.
pub(crate) fn build(
    settings: &Settings,
    build: &BuildContext<'_>,
) -> Result<OffPolicyAlgorithm<Td3Learner>, TrainerError> {
    let layout = layout(&build.spec, &build.experiment.policy)?;
    TwinCriticLearner::build(Td3::new(settings.clone(), layout, &build.seeds, build.device)?, build)
}

impl Td3 {
    /// Freshly initialized, targets equal to their networks.
    pub fn new(
        settings: Settings,
        layout: ContinuousLayout,
        seeds: &Seeds,
        device: Device,
    ) -> Result<Td3, TrainerError> {
        let by_output = Matrix::new(0, layout.actions);
        Ok(Td3 { settings, networks: Td3Networks::new(layout, seeds, device)?, by_output })
    }

    fn actor_step(&self, now: &Tensor, stage: &mut UpdateStage<'_, '_>) -> Result<(), TrainerError> {
        let networks = &self.networks;
        // Gradients flow through the first critic to the actions, and no further.
        let critics = networks.critics.tensors();
        let first =
            critics[..critics.len() / 2].iter().map(Tensor::f_detach).collect::<Result<Vec<_>, _>>()?;
        let actions = networks.act(networks.actor.tensors(), now)?;
        let loss = self.layout().value(&first, now, &actions)?.f_mean(None::<Kind>)?.f_neg()?;
        stage.step(ACTOR, &loss, networks.actor.tensors())
    }
}

impl TwinCriticRule for Td3 {
    const NAME: &'static str = "TD3";

    fn settings(&self) -> TwinCriticSettings {
        shared_settings(&self.settings)
    }

    fn layout(&self) -> &ContinuousLayout {
        self.networks.layout()
    }

    fn trained(&self) -> Vec<TrainedPart> {
        let Td3Networks { actor, critics, target_actor, .. } = &self.networks;
        let (name, loss, parameters) = ("critics", "losses/qf_loss", critics.named());
        let critics = TrainedPart { name, loss, parameters, targets: targets(&self.networks.targets) };
        let (name, loss, parameters) = ("actor", "losses/actor_loss", actor.named());
        vec![critics, TrainedPart { name, loss, parameters, targets: targets(target_actor) }]
    }

    fn networks(&self) -> Vec<(&'static str, &Parameters)> {
        let Td3Networks { actor, critics, target_actor, targets, .. } = &self.networks;
        vec![(MODEL, actor), (MODEL, critics), (TARGET, target_actor), (TARGET, targets)]
    }

    fn most_losses(&self) -> usize {
        // Every update enters the critics' loss, and some the actor's.
        2 * self.settings.updates_per_iteration as usize
    }

    fn exploration_noise(&self) -> f32 {
        self.settings.exploration_noise as f32
    }

    fn explore(&self, observations: &Tensor, noise: &Tensor) -> Result<Tensor, TchError> {
        self.networks.with_noise(&self.greedy(observations)?, noise)
    }

    fn greedy(&self, observations: &Tensor) -> Result<Tensor, TchError> {
        self.networks.act(self.networks.actor.tensors(), observations)
    }

    /// For the target actor's actions.
    fn noise(&self, _with_actor: bool, draw: &mut dyn FnMut() -> Vec<f32>) -> Vec<Vec<f32>> {
        let (deviation, clip) = (self.settings.policy_noise as f32, self.settings.noise_clip as f32);
        let mut drawn = draw();
        drawn.iter_mut().for_each(|number| *number = (*number * deviation).clamp(-clip, clip));
        vec![drawn]
    }

    fn count_steps(&self, with_actor: bool, optimizers: &mut [Optimizer]) -> Result<(), TrainerError> {
        let rate = self.settings.learning_rate;
        optimizers[CRITICS].adam.count_steps(1, rate)?;
        Ok(optimizers[ACTOR].adam.count_steps(u64::from(with_actor), rate)?)
    }

    fn work(
        &self,
        inputs: &UpdateInputs,
        with_actor: bool,
        stage: &mut UpdateStage<'_, '_>,
    ) -> Result<(), TrainerError> {
        let UpdateInputs { now, next, rewards, discounts, noise, .. } = inputs;
        let Td3Networks { actor, critics, target_actor, targets, .. } = &self.networks;
        let Some(noise) = noise.first() else { return Ok(()) };
        let goals = tch::no_grad(|| -> Result<Tensor, TchError> {
            let best = self.networks.act(target_actor.tensors(), next)?;
            let actions = self.networks.with_noise(&best, noise)?;
            let [first, second] = self.layout().values(targets.tensors(), next, &actions)?;
            rewards.f_add(&discounts.f_mul(&first.f_minimum(&second)?)?)
        })?;
        stage.critic_step(self.layout(), critics, inputs, &goals)?;
        if with_actor {
            self.actor_step(now, stage)?;
            follow(actor.flat(), target_actor.flat(), self.settings.tau)?;
            follow(critics.flat(), targets.flat(), self.settings.tau)?;
        }
        Ok(())
    }

    fn load_kernels(&self, kernels: &mut TwinKernels) -> Result<(), TrainerError> {
        kernels.actor.load(&self.networks.actor)?;
        kernels.target_actor.load(&self.networks.target_actor)?;
        kernels.load_critics(&self.networks.critics)?;
        kernels.load_targets(&self.networks.targets)
    }

    fn kernel_work(
        &mut self,
        kernels: &mut TwinKernels,
        noise: &[Vec<f32>],
        with_actor: bool,
        stage: &mut KernelStage<'_>,
    ) -> Result<(), TrainerError> {
        let Some(noise) = noise.first() else { return Ok(()) };
        let Settings { learning_rate: rate, tau, .. } = self.settings;
        let Td3Networks { layout, actor, critics, target_actor, targets, .. } = &mut self.networks;
        kernels.start(stage.batch);
        kernels.target_actor.forward(&kernels.next);
        let (next, _) = bounded(layout, kernels.target_actor.head(0)?, Some(noise));
        kernels.set_goals(stage.batch, &next, &[]);
        kernels.critic_step(critics, (CRITICS, rate), stage)?;
        if with_actor {
            kernels.actor.forward(&kernels.now);
            let (actions, squashed) = bounded(layout, kernels.actor.head(0)?, None);
            let (value, by_action) = kernels.value_of(stage.batch, &actions, true);
            let slopes = squashed.iter().zip(layout.scale.iter().cycle());
            let by_output: Vec<f32> =
                by_action.iter().zip(slopes).map(|(by, (y, scale))| by * scale * (1.0 - y * y)).collect();
            self.by_output.copy_rows(&by_output);
            stage.step((ACTOR, rate), -value, actor, |flat| {
                kernels.actor.backward(&kernels.now, &[&self.by_output], flat);
            })?;
            kernels.actor.load(actor)?;
            follow(actor.flat(), target_actor.flat(), tau)?;
            follow(critics.flat(), targets.flat(), tau)?;
            kernels.target_actor.load(target_actor)?;
            kernels.load_targets(targets)?;
        }
        Ok(())
    }

    fn kernel_actions(
        &mut self,
        kernels: &mut TwinKernels,
        noise: Option<&[f32]>,
        actions: &mut [f32],
    ) -> Result<(), TrainerError> {
        kernels.actor.forward(&kernels.now);
        let (drawn, _) = bounded(self.layout(), kernels.actor.head(0)?, noise);
        actions.iter_mut().zip(drawn).for_each(|(to, from)| *to = from);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::continuous::tests::{policy, spec};

    #[test]
    fn names_are_cleanrls_and_targets_begin_equal() {
        let networks =
            Td3Networks::new(layout(&spec(), &policy()).unwrap(), &Seeds::new(2), Device::Cpu).unwrap();
        let names: Vec<_> = networks.layout.actor.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names[4..], ["actor.fc_mu.weight", "actor.fc_mu.bias"]);
        assert_eq!(networks.actor.flat(), networks.target_actor.flat());
        assert_eq!(networks.critics.flat(), networks.targets.flat());
    }

    #[test]
    fn noisy_actions_stay_within_their_bounds() {
        let networks =
            Td3Networks::new(layout(&spec(), &policy()).unwrap(), &Seeds::new(2), Device::Cpu).unwrap();
        let observations = Tensor::from_slice(&[0.5f32, -0.2, 1.0]).view([1, 3]);
        let actions = tch::no_grad(|| networks.act(networks.actor.tensors(), &observations)).unwrap();
        let noisy = |noise: [f32; 2]| {
            let noise = Tensor::from_slice(&noise).view([1, 2]);
            Vec::<f32>::try_from(networks.with_noise(&actions, &noise).unwrap().view([-1])).unwrap()
        };
        assert_eq!(noisy([9.0, -9.0]), [2.0, 0.0]);
        assert_eq!(noisy([-9.0, 9.0]), [-2.0, 10.0]);
        let (still, moved) = (noisy([0.0, 0.0]), noisy([0.1, 0.1]));
        assert!((moved[0] - still[0] - 0.2).abs() < 1e-5 && (moved[1] - still[1] - 0.5).abs() < 1e-5);
    }
}
