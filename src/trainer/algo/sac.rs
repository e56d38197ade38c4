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

use super::BuildContext;
use super::off_policy::{OffPolicyAlgorithm, OffPolicySettings};
use super::twin_critics::{
    self, ACTOR, CRITICS, Optimizer, RuleScalar, TARGET, TrainedPart, TwinCriticLearner, TwinCriticRule,
    TwinCriticSettings, UpdateInputs, UpdateStage, targets,
};
use crate::env::Spec;
use crate::error::TrainerError;
use crate::policy::continuous::ContinuousLayout;
use crate::policy::parameters::Parameters;
use crate::policy::q_network::follow;
use crate::policy::sac_networks::{self, SacNetworks};
use crate::startup::setup::Sizes;
use crate::support::state::MODEL;
use rankdeck_kernel::seeds::Seeds;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::learn::SacConfig as Settings;
use tch::{Device, Kind, TchError, Tensor};

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
    let layout = sac_networks::layout(spec, &experiment.policy);
    twin_critics::check(&shared_settings(settings), layout, (spec, sizes))
}

/// SAC with environments and replay. Collective: weights are copied from rank 0.
pub(crate) fn build(
    settings: &Settings,
    build: &BuildContext<'_>,
) -> Result<OffPolicyAlgorithm<SacLearner>, TrainerError> {
    let layout = sac_networks::layout(&build.spec, &build.experiment.policy)?;
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
        let networks = SacNetworks::new(layout, seeds, device)?;
        let start = settings.alpha.max(f64::MIN_POSITIVE).ln();
        let log_alpha =
            Tensor::f_from_slice(&[start as f32])?.f_to_device(device)?.f_set_requires_grad(true)?;
        Ok(Sac { settings, networks, log_alpha })
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
}
