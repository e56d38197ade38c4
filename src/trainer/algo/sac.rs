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
//! - SACNET-1: an action is `tanh(u) * scale + bias` within the environment's bounds, for `u` drawn from the
//!   actor's Gaussian; its log-probability has the change of variables in it (Haarnoja et al. 2018, appendix
//!   C).
//! - The logarithm of the deviation stays within -5 and 2.

use super::BuildContext;
use super::off_policy::{OffPolicyAlgorithm, OffPolicySettings};
use super::twin_critics::{
    self, ACTOR, CRITICS, Optimizer, RuleScalar, TARGET, TrainedPart, TwinCriticLearner, TwinCriticRule,
    TwinCriticSettings, UpdateInputs, UpdateStage, targets,
};
use super::twin_kernels::{KernelStage, TwinKernels};
use crate::env::Spec;
use crate::error::TrainerError;
use crate::policy::continuous::ContinuousLayout;
use crate::policy::parameters::{ParameterEntry, Parameters, initial};
use crate::policy::q_network::follow;
use crate::startup::setup::Sizes;
use crate::support::state::MODEL;
use rankdeck_kernel::Matrix;
use rankdeck_kernel::seeds::Seeds;
use rankdeck_kernel::squashed::{SquashedGaussian, SquashedShape};
use rankdeck_types::experiment::{Activation, Experiment, Policy};
use rankdeck_types::learn::SacConfig as Settings;
use tch::{Device, Kind, TchError, Tensor};

/// Bounds of the logarithm of the deviation.
const LOG_STD: (f64, f64) = (-5.0, 2.0);
/// Keeps the logarithm of the squashing's slope finite.
const SLOPE_EPSILON: f64 = 1e-6;

/// The layout for `spec`. Refused when network and environment do not fit.
pub fn layout(spec: &Spec, policy: &Policy) -> Result<ContinuousLayout, TrainerError> {
    ContinuousLayout::new("sac", &["fc_mean", "fc_logstd"], spec, policy)
}

/// SAC's networks: an actor with a squashed Gaussian, two critics, and the critics' targets.
pub struct SacNetworks {
    layout: ContinuousLayout,
    pub actor: Parameters,
    /// Both critics.
    pub critics: Parameters,
    /// Both critics' targets; never have gradients.
    pub targets: Parameters,
    scale: Tensor,
    bias: Tensor,
}

/// Actions drawn by the actor.
pub(crate) struct ActionSample {
    /// `[rows, actions]`, as the environment takes them.
    pub actions: Tensor,
    /// Their log-probabilities, `[rows]`.
    pub(crate) log_probs: Tensor,
}

impl SacNetworks {
    /// Freshly initialized, targets equal to the critics.
    pub(crate) fn new(
        layout: ContinuousLayout,
        seeds: &Seeds,
        device: Device,
    ) -> Result<SacNetworks, TchError> {
        // One stream for all: the critics differ from each other and from the actor.
        let all: Vec<ParameterEntry> = layout.actor.iter().chain(&layout.critics).cloned().collect();
        let flat = initial(&all, seeds);
        let split = layout.actor.iter().map(|entry| entry.len).sum::<usize>();
        let targets = Parameters::new(&layout.critics, &flat[split..], device)?;
        for tensor in targets.tensors() {
            let _ = tensor.f_set_requires_grad(false)?;
        }
        Ok(SacNetworks {
            actor: Parameters::new(&layout.actor, &flat[..split], device)?,
            critics: Parameters::new(&layout.critics, &flat[split..], device)?,
            targets,
            scale: Tensor::f_from_slice(&layout.scale)?.f_to_device(device)?,
            bias: Tensor::f_from_slice(&layout.bias)?.f_to_device(device)?,
            layout,
        })
    }

    /// Where everything is.
    pub(crate) fn layout(&self) -> &ContinuousLayout {
        &self.layout
    }

    /// Means of `u` and logarithms of its deviations, each `[rows, actions]`.
    fn gaussian(&self, observations: &Tensor) -> Result<(Tensor, Tensor), TchError> {
        let (hidden, heads) = self.actor.tensors().split_at(2 * self.layout.hidden);
        let mut value = observations.shallow_clone();
        for pair in hidden.chunks_exact(2) {
            value = value.f_linear(&pair[0], Some(&pair[1]))?;
            value = match self.layout.activation {
                Activation::Tanh => value.f_tanh()?,
                Activation::Relu => value.f_relu()?,
            };
        }
        let mean = value.f_linear(&heads[0], Some(&heads[1]))?;
        let squashed = value.f_linear(&heads[2], Some(&heads[3]))?.f_tanh()?;
        let half = 0.5 * (LOG_STD.1 - LOG_STD.0);
        let log_std = squashed.f_add_scalar(1.0)?.f_mul_scalar(half)?.f_add_scalar(LOG_STD.0)?;
        Ok((mean, log_std))
    }

    /// Draws actions with the given standard normal numbers `[rows, actions]`; gradients flow through both
    /// results.
    pub(crate) fn draw(&self, observations: &Tensor, noise: &Tensor) -> Result<ActionSample, TchError> {
        let (mean, log_std) = self.gaussian(observations)?;
        let u = mean.f_add(&log_std.f_exp()?.f_mul(noise)?)?;
        let squashed = u.f_tanh()?;
        let actions = squashed.f_mul(&self.scale)?.f_add(&self.bias)?;
        // log N(u) = -noise^2 / 2 - log_std - log sqrt(2 pi)
        let normal = noise
            .f_square()?
            .f_mul_scalar(-0.5)?
            .f_sub(&log_std)?
            .f_sub_scalar(0.5 * (2.0 * std::f64::consts::PI).ln())?;
        let slope = squashed.f_square()?.f_neg()?.f_add_scalar(1.0)?.f_mul(&self.scale)?;
        let log_slope = slope.f_add_scalar(SLOPE_EPSILON)?.f_log()?;
        let log_probs = normal.f_sub(&log_slope)?.f_sum_dim_intlist(1_i64, false, None::<Kind>)?;
        Ok(ActionSample { actions, log_probs })
    }

    /// The most probable `u`, squashed: what evaluations do.
    pub(crate) fn greedy(&self, observations: &Tensor) -> Result<Tensor, TchError> {
        let (mean, _) = self.gaussian(observations)?;
        mean.f_tanh()?.f_mul(&self.scale)?.f_add(&self.bias)
    }
}

/// SAC on one rank.
pub type SacLearner = TwinCriticLearner<Sac>;

/// Index of the entropy weight's optimizer.
const ALPHA: usize = 2;

/// Networks and losses of SAC.
pub struct Sac {
    settings: Settings,
    pub networks: SacNetworks,
    /// Logarithm of the entropy weight.
    pub log_alpha: Tensor,
    kernels: SacKernels,
}

/// What the hand-written passes keep besides the networks.
struct SacKernels {
    gaussian: SquashedGaussian,
    /// Log-probabilities, `[rows]`.
    log_probs: Vec<f32>,
    by_mean: Matrix,
    by_spread: Matrix,
}

impl SacKernels {
    fn new(layout: &ContinuousLayout) -> SacKernels {
        let shape =
            SquashedShape { log_std: (LOG_STD.0 as f32, LOG_STD.1 as f32), epsilon: SLOPE_EPSILON as f32 };
        SacKernels {
            gaussian: SquashedGaussian::new(&layout.scale, &layout.bias, shape),
            log_probs: Vec::new(),
            by_mean: Matrix::new(0, layout.actions),
            by_spread: Matrix::new(0, layout.actions),
        }
    }

    /// Mean log-probability of the last draw.
    fn mean_log_prob(&mut self) -> f64 {
        self.gaussian.log_probs(&mut self.log_probs);
        let sum: f64 = self.log_probs.iter().map(|log_prob| f64::from(*log_prob)).sum();
        sum / self.log_probs.len().max(1) as f64
    }
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
        learning_rate: settings.policy_lr,
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

/// SAC with environments and replay. Collective: weights are copied from rank 0.
pub(crate) fn build(
    settings: &Settings,
    build: &BuildContext<'_>,
) -> Result<OffPolicyAlgorithm<SacLearner>, TrainerError> {
    let layout = layout(&build.spec, &build.experiment.policy)?;
    TwinCriticLearner::build(Sac::new(settings.clone(), layout, &build.seeds, build.device)?, build)
}

impl Sac {
    /// Freshly initialized, targets equal to the critics.
    pub fn new(
        settings: Settings,
        layout: ContinuousLayout,
        seeds: &Seeds,
        device: Device,
    ) -> Result<Sac, TrainerError> {
        let kernels = SacKernels::new(&layout);
        let networks = SacNetworks::new(layout, seeds, device)?;
        let start = settings.alpha.max(f64::MIN_POSITIVE).ln();
        let log_alpha =
            Tensor::f_from_slice(&[start as f32])?.f_to_device(device)?.f_set_requires_grad(true)?;
        Ok(Sac { settings, networks, log_alpha, kernels })
    }

    /// The entropy weight.
    fn alpha(&self) -> Result<f64, TchError> {
        Ok(self.log_alpha.f_double_value(&[0])?.exp())
    }

    /// Steps of the actor in an update.
    fn actor_steps(&self, with_actor: bool) -> u64 {
        if with_actor { u64::from(self.settings.policy_every.max(1)) } else { 0 }
    }

    fn actor_step(
        &self,
        now: &Tensor,
        noise: &Tensor,
        stage: &mut UpdateStage<'_, '_>,
    ) -> Result<(), TrainerError> {
        // Gradients flow through the critics to the actions, and no further.
        let critics =
            self.networks.critics.tensors().iter().map(Tensor::f_detach).collect::<Result<Vec<_>, _>>()?;
        let drawn = self.networks.draw(now, noise)?;
        let [first, second] = self.layout().values(&critics, now, &drawn.actions)?;
        let alpha = self.log_alpha.f_detach()?.f_exp()?;
        let loss = drawn.log_probs.f_mul(&alpha)?.f_sub(&first.f_minimum(&second)?)?.f_mean(None::<Kind>)?;
        stage.step(ACTOR, &loss, self.networks.actor.tensors())
    }

    fn alpha_step(
        &self,
        now: &Tensor,
        noise: &Tensor,
        stage: &mut UpdateStage<'_, '_>,
    ) -> Result<(), TrainerError> {
        let log_probs = tch::no_grad(|| self.networks.draw(now, noise))?.log_probs;
        // The target entropy: one nat below uniform per action (Haarnoja et al. 2018).
        let target = -(self.layout().actions as f64);
        let lack = log_probs.f_add_scalar(target)?.f_neg()?;
        let loss = self.log_alpha.f_exp()?.f_mul(&lack)?.f_mean(None::<Kind>)?;
        stage.step(ALPHA, &loss, std::slice::from_ref(&self.log_alpha))
    }
}

impl TwinCriticRule for Sac {
    const NAME: &'static str = "SAC";

    fn settings(&self) -> TwinCriticSettings {
        shared_settings(&self.settings)
    }

    fn layout(&self) -> &ContinuousLayout {
        self.networks.layout()
    }

    fn trained(&self) -> Vec<TrainedPart> {
        let SacNetworks { actor, critics, .. } = &self.networks;
        let (name, loss, parameters) = ("critics", "losses/qf_loss", critics.named());
        let critics = TrainedPart { name, loss, parameters, targets: targets(&self.networks.targets) };
        let (name, loss, parameters) = ("actor", "losses/actor_loss", actor.named());
        let actor = TrainedPart { name, loss, parameters, targets: Vec::new() };
        let (name, loss, parameters) = ("alpha", "losses/alpha_loss", self.numbers());
        vec![critics, actor, TrainedPart { name, loss, parameters, targets: Vec::new() }]
    }

    fn networks(&self) -> Vec<(&'static str, &Parameters)> {
        let SacNetworks { actor, critics, targets, .. } = &self.networks;
        vec![(MODEL, actor), (MODEL, critics), (TARGET, targets)]
    }

    fn numbers(&self) -> Vec<(String, Tensor)> {
        vec![("log_alpha".into(), self.log_alpha.shallow_clone())]
    }

    fn scalar(&self) -> Result<Option<RuleScalar>, TchError> {
        let tensor = self.log_alpha.f_detach()?.f_view([0_i64; 0])?;
        Ok(Some(RuleScalar { name: "losses/alpha", tensor, report: f64::exp }))
    }

    fn most_losses(&self) -> usize {
        // Every update enters the critics' loss, and every `policy_every`-th two for each step of the actor.
        3 * self.settings.updates_per_iteration as usize + 2 * self.settings.policy_every as usize
    }

    fn explore(&self, observations: &Tensor, noise: &Tensor) -> Result<Tensor, TchError> {
        Ok(self.networks.draw(observations, noise)?.actions)
    }

    fn greedy(&self, observations: &Tensor) -> Result<Tensor, TchError> {
        self.networks.greedy(observations)
    }

    /// For the next actions, then for each step of the actor and of the entropy weight.
    fn noise(&self, with_actor: bool, draw: &mut dyn FnMut() -> Vec<f32>) -> Vec<Vec<f32>> {
        let each = 1 + u64::from(self.settings.autotune);
        (0..1 + self.actor_steps(with_actor) * each).map(|_| draw()).collect()
    }

    fn count_steps(&self, with_actor: bool, optimizers: &mut [Optimizer]) -> Result<(), TrainerError> {
        let Settings { q_lr, policy_lr, autotune, .. } = self.settings;
        let steps = self.actor_steps(with_actor);
        optimizers[CRITICS].adam.count_steps(1, q_lr)?;
        optimizers[ACTOR].adam.count_steps(steps, policy_lr)?;
        Ok(optimizers[ALPHA].adam.count_steps(if autotune { steps } else { 0 }, q_lr)?)
    }

    fn work(
        &self,
        inputs: &UpdateInputs,
        _with_actor: bool,
        stage: &mut UpdateStage<'_, '_>,
    ) -> Result<(), TrainerError> {
        let UpdateInputs { now, next, rewards, discounts, noise, .. } = inputs;
        let SacNetworks { critics, targets, .. } = &self.networks;
        let Some((next_noise, noise)) = noise.split_first() else { return Ok(()) };
        let goals = tch::no_grad(|| -> Result<Tensor, TchError> {
            let drawn = self.networks.draw(next, next_noise)?;
            let [first, second] = self.layout().values(targets.tensors(), next, &drawn.actions)?;
            let entropy = drawn.log_probs.f_mul(&self.log_alpha.f_exp()?)?;
            rewards.f_add(&discounts.f_mul(&first.f_minimum(&second)?.f_sub(&entropy)?)?)
        })?;
        stage.critic_step(self.layout(), critics, inputs, &goals)?;
        for drawn in noise.chunks(1 + usize::from(self.settings.autotune)) {
            self.actor_step(now, &drawn[0], stage)?;
            if let Some(alpha) = drawn.get(1) {
                self.alpha_step(now, alpha, stage)?;
            }
        }
        Ok(follow(critics.flat(), targets.flat(), self.settings.tau)?)
    }

    fn load_kernels(&self, kernels: &mut TwinKernels) -> Result<(), TrainerError> {
        kernels.actor.load(&self.networks.actor)?;
        kernels.load_critics(&self.networks.critics)?;
        kernels.load_targets(&self.networks.targets)
    }

    fn kernel_work(
        &mut self,
        kernels: &mut TwinKernels,
        noise: &[Vec<f32>],
        _with_actor: bool,
        stage: &mut KernelStage<'_>,
    ) -> Result<(), TrainerError> {
        let Some((next_noise, noise)) = noise.split_first() else { return Ok(()) };
        let Settings { q_lr, policy_lr, autotune, tau, .. } = self.settings;
        let share = 1.0 / stage.batch.rows.max(1) as f32;
        kernels.start(stage.batch);
        kernels.actor.forward(&kernels.next);
        let alpha = self.alpha()? as f32;
        let own = &mut self.kernels;
        let next = own.gaussian.draw(kernels.actor.head(0)?, kernels.actor.head(1)?, next_noise).to_vec();
        own.gaussian.log_probs(&mut own.log_probs);
        own.log_probs.iter_mut().for_each(|log_prob| *log_prob *= alpha);
        kernels.set_goals(stage.batch, &next, &own.log_probs);
        kernels.critic_step(&mut self.networks.critics, (CRITICS, q_lr), stage)?;
        for drawn in noise.chunks(1 + usize::from(autotune)) {
            let alpha = self.alpha()?;
            let own = &mut self.kernels;
            kernels.actor.forward(&kernels.now);
            let actions =
                own.gaussian.draw(kernels.actor.head(0)?, kernels.actor.head(1)?, &drawn[0]).to_vec();
            let log_prob = own.mean_log_prob();
            let (value, by_action) = kernels.value_of(stage.batch, &actions, false);
            let SacKernels { gaussian, by_mean, by_spread, .. } = own;
            gaussian.backward(by_action, alpha as f32 * share, by_mean, by_spread);
            let loss = alpha * log_prob - value;
            stage.step((ACTOR, policy_lr), loss, &mut self.networks.actor, |flat| {
                kernels.actor.backward(&kernels.now, &[by_mean, by_spread], flat);
            })?;
            kernels.actor.load(&self.networks.actor)?;
            if let Some(noise) = drawn.get(1) {
                kernels.actor.forward(&kernels.now);
                own.gaussian.draw(kernels.actor.head(0)?, kernels.actor.head(1)?, noise);
                // The target entropy: one nat below uniform per action (Haarnoja et al. 2018). The weight is the
                // exponential of its logarithm, so that loss and gradient are the same number.
                let lack = self.networks.layout.actions as f64 - own.mean_log_prob();
                let loss = alpha * lack;
                stage.step_number((ALPHA, q_lr), loss, &mut self.log_alpha, loss as f32)?;
            }
        }
        follow(self.networks.critics.flat(), self.networks.targets.flat(), tau)?;
        kernels.load_targets(&self.networks.targets)
    }

    fn kernel_actions(
        &mut self,
        kernels: &mut TwinKernels,
        noise: Option<&[f32]>,
        actions: &mut [f32],
    ) -> Result<(), TrainerError> {
        kernels.actor.forward(&kernels.now);
        let gaussian = &mut self.kernels.gaussian;
        let drawn = match noise {
            Some(noise) => gaussian.draw(kernels.actor.head(0)?, kernels.actor.head(1)?, noise),
            None => gaussian.greedy(kernels.actor.head(0)?),
        };
        actions.iter_mut().zip(drawn).for_each(|(to, from)| *to = *from);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::continuous::tests::{policy, spec};

    fn networks() -> SacNetworks {
        let layout = layout(&spec(), &policy()).unwrap();
        SacNetworks::new(layout, &Seeds::new(2), Device::Cpu).unwrap()
    }

    #[test]
    fn names_and_shapes_are_cleanrls() {
        let layout = layout(&spec(), &policy()).unwrap();
        let names: Vec<_> = layout.actor.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(
            names[4..],
            ["actor.fc_mean.weight", "actor.fc_mean.bias", "actor.fc_logstd.weight", "actor.fc_logstd.bias"]
        );
        assert_eq!(
            (layout.critics[6].name.as_str(), &layout.critics[6].shape),
            ("qf2.fc1.weight", &vec![16, 5])
        );
        assert_eq!(
            (layout.scale.as_slice(), layout.bias.as_slice()),
            ([2.0, 5.0].as_slice(), [0.0, 5.0].as_slice())
        );
        let networks = networks();
        assert_eq!(networks.critics.flat(), networks.targets.flat());
        let [first, second] = networks
            .layout
            .values(
                networks.critics.tensors(),
                &Tensor::from_slice(&[0.3f32; 6]).view([2, 3]),
                &Tensor::from_slice(&[0.1f32; 4]).view([2, 2]),
            )
            .unwrap();
        assert_ne!(first, second, "twins learn nothing from each other");
    }

    /// SACNET-1: the density of the squashed action, against the change of variables done numerically.
    #[test]
    fn log_probability_includes_the_squashing() {
        let networks = networks();
        let observations = Tensor::from_slice(&[0.5f32, -0.2, 1.0]).view([1, 3]);
        let (mean, log_std) = networks.gaussian(&observations).unwrap();
        for noise in [[0.0f32, 0.0], [1.0, -0.5], [-1.5, 0.7]] {
            let drawn = networks.draw(&observations, &Tensor::from_slice(&noise).view([1, 2])).unwrap();
            let mut expected = 0.0;
            for i in 0..2_i64 {
                let (m, s) = (mean.double_value(&[0, i]), log_std.double_value(&[0, i]).exp());
                let scale = f64::from(networks.layout.scale[i as usize]);
                let bias = f64::from(networks.layout.bias[i as usize]);
                let action = drawn.actions.double_value(&[0, i]);
                assert!((-5.0..=2.0).contains(&s.ln()) && (action - bias).abs() <= scale);
                let inverse = |action: f64| ((action - bias) / scale).atanh();
                let density =
                    |u: f64| (-0.5 * ((u - m) / s).powi(2)).exp() / (s * (2.0 * std::f64::consts::PI).sqrt());
                let h = 1e-4 * scale;
                let slope = (inverse(action + h) - inverse(action - h)) / (2.0 * h);
                expected += (density(inverse(action)) * slope).ln();
            }
            let got = drawn.log_probs.double_value(&[0]);
            assert!((got - expected).abs() < 1e-3, "{got} {expected}");
        }
    }
}
