//! What SAC learns from a batch: critics, then actor, then the entropy weight.
//!
//! Owner: [`super::sac`]. Haarnoja et al. 2018 (arXiv 1812.05905) with the details of CleanRL's
//! sac_continuous_action.py: twin critics, a delayed actor that makes up for the delay, targets that follow
//! after every critic update, and the entropy weight learnt as the exponential of a free number.
//!
//! Invariants:
//! - SAC-1: the order is fixed: critics; every `policy_every` updates the actor and then the entropy weight,
//!   `policy_every` times. Each has an optimiser and a flat gradient of its own, which is averaged over the
//!   ranks: one collective each. The count depends on the number of updates only.
//! - SAC-2: critics, targets, actor and entropy weight stay equal bit by bit over the ranks; all are
//!   broadcast at the start and covered by the fingerprint.
//! - The actor's loss changes no critic.

use super::adam::Adam;
use crate::distributed::upload::upload_slice;
use crate::distributed::{Ddp, ProcessGroup};
use crate::error::TrainerError;
use crate::policy::q_network::follow;
use crate::policy::sac_networks::{SacLayout, SacNetworks};
use crate::replay::ReplayBatch;
use rankdeck_kernel::seeds::Seeds;
use rankdeck_types::learn::Sac as Settings;
use tch::{Device, Kind, TchError, Tensor};

/// Statistics of an update, from this rank's share of the batch.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SacStats {
    /// Sum of both critics' mean squared errors.
    pub critic_loss: f64,
    /// Loss of the latest actor update.
    pub actor_loss: f64,
    /// Loss of the latest update of the entropy weight.
    pub alpha_loss: f64,
    /// The entropy weight.
    pub alpha: f64,
    /// Mean value of the actions in the batch, by the first critic.
    pub q_values: f64,
}

/// Scalars of the latest update of each kind, still on the device.
#[derive(Default)]
struct LatestStats {
    critic_loss: Option<Tensor>,
    actor_loss: Option<Tensor>,
    alpha_loss: Option<Tensor>,
    q_values: Option<Tensor>,
}

/// A network's, or a number's, optimiser with its gradients.
pub struct Optimiser {
    /// The optimiser.
    pub adam: Adam,
    /// Gradients and equality over the ranks.
    pub ddp: Ddp,
}

/// The networks and what trains them.
pub struct SacLearner {
    settings: Settings,
    /// The networks.
    pub networks: SacNetworks,
    /// Logarithm of the entropy weight.
    pub log_alpha: Tensor,
    /// Trains the critics; covers the targets.
    pub critics: Optimiser,
    /// Trains the actor.
    pub actor: Optimiser,
    /// Trains the entropy weight.
    pub alpha: Optimiser,
    updates: u64,
    latest: LatestStats,
    device: Device,
}

/// Standard normal numbers for one update, `[rows][actions]` each.
pub trait Noise {
    /// The next ones; `count` numbers.
    fn normals(&mut self, count: usize) -> Vec<f32>;
}

impl SacLearner {
    /// Fresh networks, equal on all ranks. `bucket_bytes`: see [`Ddp::new`].
    pub fn new(
        settings: Settings,
        layout: SacLayout,
        seeds: &Seeds,
        device: Device,
        group: &ProcessGroup,
        bucket_bytes: usize,
    ) -> Result<SacLearner, TrainerError> {
        let networks = SacNetworks::new(layout, seeds, device)?;
        let start = settings.alpha.max(f64::MIN_POSITIVE).ln();
        let log_alpha =
            Tensor::f_from_slice(&[start as f32])?.f_to_device(device)?.f_set_requires_grad(true)?;
        let eps = settings.adam_eps;
        let part = |parameters: Vec<(String, Tensor)>, buffers| -> Result<Optimiser, TrainerError> {
            let len = parameters.iter().map(|(_, tensor)| tensor.numel()).sum();
            Ok(Optimiser {
                adam: Adam::new(len, eps, device)?,
                ddp: Ddp::new(parameters, buffers, group, bucket_bytes)?,
            })
        };
        let targets =
            networks.targets.named().into_iter().map(|(name, tensor)| (format!("target.{name}"), tensor));
        let critics = part(networks.critics.named(), targets.collect())?;
        let actor = part(networks.actor.named(), Vec::new())?;
        let alpha = part(vec![("log_alpha".into(), log_alpha.shallow_clone())], Vec::new())?;
        Ok(SacLearner {
            settings,
            networks,
            log_alpha,
            critics,
            actor,
            alpha,
            updates: 0,
            latest: LatestStats::default(),
            device,
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

    /// A hash of everything that is replicated.
    pub fn fingerprint(&self) -> u64 {
        [&self.critics, &self.actor, &self.alpha]
            .iter()
            .fold(0, |sum: u64, part| sum.rotate_left(17) ^ part.ddp.fingerprint())
    }

    /// One update from this rank's share of a batch.
    pub fn update(
        &mut self,
        batch: &ReplayBatch,
        noise: &mut dyn Noise,
        group: &ProcessGroup,
    ) -> Result<(), TrainerError> {
        let (rows, actions) = (batch.rows as i64, self.networks.layout().actions);
        let host = |values: &[f32]| upload_slice(values, self.device);
        let now = host(&batch.numbers.now)?.f_view([rows, -1])?;
        let next = host(&batch.numbers.next)?.f_view([rows, -1])?;
        let taken = host(&batch.actions)?.f_view([rows, actions as i64])?;
        let (rewards, discounts) = (host(&batch.rewards)?, host(&batch.discounts)?);
        let device = self.device;
        let mut draw = || -> Result<Tensor, TchError> {
            let numbers = noise.normals(batch.rows * actions);
            upload_slice(&numbers, device)?.f_view([rows, actions as i64])
        };
        let next_noise = draw()?;
        let goals = tch::no_grad(|| -> Result<Tensor, TchError> {
            let drawn = self.networks.draw(&next, &next_noise)?;
            let [first, second] =
                self.networks.values(self.networks.targets.tensors(), &next, &drawn.actions)?;
            let entropy = drawn.log_probs.f_mul(&self.log_alpha.f_exp()?)?;
            rewards.f_add(&discounts.f_mul(&first.f_minimum(&second)?.f_sub(&entropy)?)?)
        })?;
        self.critic_step((&now, &taken, &goals), group)?;
        self.updates += 1;
        let every = u64::from(self.settings.policy_every.max(1));
        if self.updates.is_multiple_of(every) {
            for _ in 0..every {
                self.actor_step(&now, &draw()?, group)?;
                if self.settings.autotune {
                    self.alpha_step(&now, &draw()?, group)?;
                }
            }
        }
        follow(self.networks.critics.flat(), self.networks.targets.flat(), self.settings.tau)?;
        Ok(())
    }

    /// Statistics of the latest update, read from the device.
    pub fn stats(&self) -> Result<SacStats, TchError> {
        let read = |scalar: &Option<Tensor>| scalar.as_ref().map_or(Ok(0.0), |t| t.f_double_value(&[]));
        Ok(SacStats {
            critic_loss: read(&self.latest.critic_loss)?,
            actor_loss: read(&self.latest.actor_loss)?,
            alpha_loss: read(&self.latest.alpha_loss)?,
            alpha: self.entropy_weight()?,
            q_values: read(&self.latest.q_values)?,
        })
    }

    fn critic_step(
        &mut self,
        (now, taken, goals): (&Tensor, &Tensor, &Tensor),
        group: &ProcessGroup,
    ) -> Result<(), TrainerError> {
        let [first, second] = self.networks.values(self.networks.critics.tensors(), now, taken)?;
        let squares = |values: &Tensor| values.f_sub(goals)?.f_square()?.f_mean(None::<Kind>);
        let loss = squares(&first)?.f_add(&squares(&second)?)?;
        let Optimiser { adam, ddp } = &mut self.critics;
        ddp.zero_grad();
        loss.f_backward()?;
        ddp.reduce(group)?;
        adam.step(self.networks.critics.tensors(), self.settings.q_lr)?;
        self.latest.critic_loss = Some(loss.f_detach()?);
        self.latest.q_values = Some(first.f_detach()?.f_mean(None::<Kind>)?);
        Ok(())
    }

    fn actor_step(&mut self, now: &Tensor, noise: &Tensor, group: &ProcessGroup) -> Result<(), TrainerError> {
        // Gradients flow through the critics to the actions, and no further.
        let critics =
            self.networks.critics.tensors().iter().map(Tensor::f_detach).collect::<Result<Vec<_>, _>>()?;
        let drawn = self.networks.draw(now, noise)?;
        let [first, second] = self.networks.values(&critics, now, &drawn.actions)?;
        let alpha = self.log_alpha.f_detach()?.f_exp()?;
        let loss = drawn.log_probs.f_mul(&alpha)?.f_sub(&first.f_minimum(&second)?)?.f_mean(None::<Kind>)?;
        let Optimiser { adam, ddp } = &mut self.actor;
        ddp.zero_grad();
        loss.f_backward()?;
        ddp.reduce(group)?;
        adam.step(self.networks.actor.tensors(), self.settings.policy_lr)?;
        self.latest.actor_loss = Some(loss.f_detach()?);
        Ok(())
    }

    fn alpha_step(&mut self, now: &Tensor, noise: &Tensor, group: &ProcessGroup) -> Result<(), TrainerError> {
        let log_probs = tch::no_grad(|| self.networks.draw(now, noise))?.log_probs;
        // The target entropy: one nat below uniform per action (Haarnoja et al. 2018).
        let target = -(self.networks.layout().actions as f64);
        let lack = log_probs.f_add_scalar(target)?.f_neg()?;
        let loss = self.log_alpha.f_exp()?.f_mul(&lack)?.f_mean(None::<Kind>)?;
        let Optimiser { adam, ddp } = &mut self.alpha;
        ddp.zero_grad();
        loss.f_backward()?;
        ddp.reduce(group)?;
        adam.step(std::slice::from_ref(&self.log_alpha), self.settings.q_lr)?;
        self.latest.alpha_loss = Some(loss.f_detach()?);
        Ok(())
    }

    /// The entropy weight.
    pub fn entropy_weight(&self) -> Result<f64, TchError> {
        Ok(self.log_alpha.f_double_value(&[0])?.exp())
    }
}
