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
use super::ledger::{self, Ledger};
use super::packed::{PackedParts, Values};
use super::q_learner::GraphCapture;
use super::recording::{GraphWork, Recording, WorkCut};
use crate::distributed::{Ddp, Part, ProcessGroup};
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
    /// Sum of both critics' mean squared errors. This and the others are NaN while nothing is learnt.
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
    ledger: Ledger,
    latest: LatestStats,
    /// What updates of the critics need, and what those need that go on with actor and entropy weight.
    packed: [PackedParts; 2],
    /// Both kinds of updates; absent while one is made.
    recordings: Option<[Recording; 2]>,
}

/// A batch and the noise of an update, on the device.
struct Columns {
    now: Tensor,
    next: Tensor,
    taken: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    next_noise: Tensor,
    /// For each step of the actor, and for each of the entropy weight.
    noise: Vec<[Tensor; 2]>,
}

struct Update<'a> {
    learner: &'a mut SacLearner,
    columns: Columns,
    batch: &'a ReplayBatch,
}

impl GraphWork for Update<'_> {
    fn work(&mut self, cut: &mut WorkCut<'_>) -> Result<(), TrainerError> {
        let Update { learner, columns, batch } = self;
        let Columns { now, next, taken, rewards, discounts, next_noise, noise } = columns;
        let goals = tch::no_grad(|| -> Result<Tensor, TchError> {
            let drawn = learner.networks.draw(next, next_noise)?;
            let [first, second] =
                learner.networks.values(learner.networks.targets.tensors(), next, &drawn.actions)?;
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
        Ok(learner.ledger.put()?)
    }

    fn reduce(&mut self, which: usize, _part: Part, group: &ProcessGroup) -> Result<(), TrainerError> {
        let SacLearner { critics, actor, alpha, .. } = self.learner;
        let ddp = match which {
            CRITICS => &mut critics.ddp,
            ACTOR => &mut actor.ddp,
            _ => &mut alpha.ddp,
        };
        Ok(ddp.reduce(group)?)
    }

    fn ledger(&mut self) -> &mut Ledger {
        &mut self.learner.ledger
    }
}

/// Numbers of the optimisers, for [`GraphWork::reduce`].
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
        layout: SacLayout,
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
        let recording = |what| Recording::new(what, device, captured);
        // Every update enters the critics' loss, and every `policy_every`-th two for each step of the actor.
        let most = 3 * settings.updates_per_iteration as usize + 2 * settings.policy_every as usize;
        Ok(SacLearner {
            ledger: Ledger::new(most, device)?,
            packed: [PackedParts::new(device), PackedParts::new(device)],
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
        let prints = self.ledger.close(parts, group, || batch.largest())?;
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
        self.critics.adam.begin(1, self.settings.q_lr)?;
        self.actor.adam.begin(steps, self.settings.policy_lr)?;
        self.alpha.adam.begin(if autotune { steps } else { 0 }, self.settings.q_lr)?;
        self.updates += 1;
        let mut recordings = self.recordings.take();
        let mut update = Update { learner: self, columns, batch };
        let made = match &mut recordings {
            Some(recordings) => recordings[kind].run(&mut update, place, group),
            None => Err(TrainerError::failure("an update inside an update", "")),
        };
        self.recordings = recordings;
        made
    }

    /// Statistics of the latest update, read from the device.
    pub fn stats(&self) -> Result<SacStats, TchError> {
        let LatestStats { critic_loss, actor_loss, alpha_loss, q_values } = &self.latest;
        let scalars = [critic_loss, actor_loss, alpha_loss, q_values];
        let there: Vec<Tensor> = scalars
            .iter()
            .filter_map(|scalar| scalar.as_ref().map(Tensor::shallow_clone))
            .chain([self.log_alpha.f_detach()?.f_view([0_i64; 0])?])
            .collect();
        let mut numbers = ledger::numbers(&there)?.into_iter();
        let mut next = |there: bool| if there { numbers.next().unwrap_or(f64::NAN) } else { f64::NAN };
        let [critic_loss, actor_loss, alpha_loss, q_values] = scalars.map(|scalar| next(scalar.is_some()));
        Ok(SacStats { critic_loss, actor_loss, alpha_loss, alpha: next(true).exp(), q_values })
    }

    fn critic_step(
        &mut self,
        (now, taken, goals): (&Tensor, &Tensor, &Tensor),
        cut: &mut WorkCut<'_>,
        seen: &dyn Fn() -> String,
    ) -> Result<(), TrainerError> {
        let [first, second] = self.networks.values(self.networks.critics.tensors(), now, taken)?;
        let squares = |values: &Tensor| values.f_sub(goals)?.f_square()?.f_mean(None::<Kind>);
        let loss = squares(&first)?.f_add(&squares(&second)?)?;
        self.ledger.loss("losses/qf_loss", &loss, seen)?;
        let Optimiser { adam, ddp } = &mut self.critics;
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
        cut: &mut WorkCut<'_>,
        seen: &dyn Fn() -> String,
    ) -> Result<(), TrainerError> {
        // Gradients flow through the critics to the actions, and no further.
        let critics =
            self.networks.critics.tensors().iter().map(Tensor::f_detach).collect::<Result<Vec<_>, _>>()?;
        let drawn = self.networks.draw(now, noise)?;
        let [first, second] = self.networks.values(&critics, now, &drawn.actions)?;
        let alpha = self.log_alpha.f_detach()?.f_exp()?;
        let loss = drawn.log_probs.f_mul(&alpha)?.f_sub(&first.f_minimum(&second)?)?.f_mean(None::<Kind>)?;
        self.ledger.loss("losses/actor_loss", &loss, seen)?;
        let Optimiser { adam, ddp } = &mut self.actor;
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
        cut: &mut WorkCut<'_>,
    ) -> Result<(), TrainerError> {
        let log_probs = tch::no_grad(|| self.networks.draw(now, noise))?.log_probs;
        // The target entropy: one nat below uniform per action (Haarnoja et al. 2018).
        let target = -(self.networks.layout().actions as f64);
        let lack = log_probs.f_add_scalar(target)?.f_neg()?;
        let loss = self.log_alpha.f_exp()?.f_mul(&lack)?.f_mean(None::<Kind>)?;
        self.ledger.loss("losses/alpha_loss", &loss, String::new)?;
        let Optimiser { adam, ddp } = &mut self.alpha;
        ddp.differentiate(&loss)?;
        cut.reduce(ALPHA, ddp)?;
        adam.launch(std::slice::from_ref(&self.log_alpha))?;
        self.latest.alpha_loss = Some(loss.f_detach()?);
        Ok(())
    }

    /// The entropy weight.
    pub fn entropy_weight(&self) -> Result<f64, TchError> {
        Ok(self.log_alpha.f_double_value(&[0])?.exp())
    }
}

/// Sends a batch and its noise to the device.
fn columns(
    packed: &mut PackedParts,
    batch: &ReplayBatch,
    actions: i64,
    (next_noise, noise): (&[f32], &[[Vec<f32>; 2]]),
) -> Result<Columns, TchError> {
    let rows = batch.rows as i64;
    let drawn = vec![rows, actions];
    let mut parts = vec![
        (Values::F32(&batch.numbers.now), vec![rows, -1]),
        (Values::F32(&batch.numbers.next), vec![rows, -1]),
        (Values::F32(&batch.actions), drawn.clone()),
        (Values::F32(&batch.rewards), vec![rows]),
        (Values::F32(&batch.discounts), vec![rows]),
        (Values::F32(next_noise), drawn.clone()),
    ];
    let flat = noise.iter().flatten().filter(|numbers| !numbers.is_empty());
    parts.extend(flat.map(|numbers| (Values::F32(numbers), drawn.clone())));
    let mut sent = packed.send(&parts)?.into_iter();
    let mut next = || sent.next().ok_or_else(|| TchError::Torch("a batch of other parts".into()));
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
    Ok(Columns { now, next: after, taken, rewards, discounts, next_noise, noise })
}
