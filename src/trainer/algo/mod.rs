//! The algorithms, one file each, behind one trait, and what several of them share.
//!
//! The [loop](crate::train) owns identity, totals, stop, evaluation, checkpoints and reports. An algorithm
//! owns its environments, its networks and what an iteration does with them.
//!
//! Invariants of every algorithm:
//! - [`Algorithm::iterate`] makes the same collectives in the same order on all ranks: their number
//!   depends on settings, counters that are equal on all ranks, and reduced values only.
//! - Parameters, targets and everything else that must be equal on all ranks is copied from rank 0
//!   when the algorithm is made, and [`IterationStats::chain`] covers it.
//! - The result depends on state, seed and iteration only: a restored algorithm continues with the
//!   same bits, unless its file says otherwise.

pub(crate) mod a2c;
pub(crate) mod adam;
pub(crate) mod batch;
pub(crate) mod dqn;
pub(crate) mod gae;
pub(crate) mod native;
pub mod off_policy;
pub(crate) mod on_policy;
pub(crate) mod ppg;
pub(crate) mod ppo;
pub(crate) mod ppo_loss;
pub mod q_learner;
pub(crate) mod sac;
pub mod sac_learner;

use super::collect::{Interval, RankCounters};
use super::distributed::ProcessGroup;
use super::env::{Spec, Watcher};
use super::error::TrainerError;
use super::evaluate::Greedy;
use super::page::Page;
use super::policy::actor_critic::Layout;
use super::replay::ReplayMark;
use super::setup::{self, Sizes};
use super::state::{RestoredState, State};
use rankdeck_kernel::seeds::Seeds;
use rankdeck_proto::message::Phase;
use rankdeck_types::experiment::{Experiment, Learn};
use rankdeck_types::learn::NormAdv;
use std::path::Path;
use tch::Device;

/// What one iteration did.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct IterationStats {
    /// Updates made; equal on all ranks.
    pub updates: u64,
    /// Updates that the iteration is to make, for the status page; 0 when that is not known beforehand.
    pub planned: u64,
    /// Hash over the fingerprints after each covered update; 0 when none was covered.
    pub chain: u64,
    /// The optimiser's rate (the first one's).
    pub learning_rate: f64,
    /// Losses and other scalars: the same names in the same order on all ranks. Reports give means over the
    /// ranks.
    pub losses: Vec<Stat>,
}

/// A scalar of an iteration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stat {
    /// Its name in events and TensorBoard.
    pub name: &'static str,
    /// NaN where this iteration has none.
    pub value: f64,
    /// A loss must stay finite, or the run ends.
    pub is_loss: bool,
}

impl Stat {
    /// A loss, which every iteration that learns has.
    pub fn loss(name: &'static str, value: f64) -> Stat {
        Stat { name, value, is_loss: true }
    }

    /// Any other scalar.
    pub fn other(name: &'static str, value: f64) -> Stat {
        Stat { name, value, is_loss: false }
    }
}

impl IterationStats {
    /// Mixes the fingerprint after an update into the chain.
    pub fn cover(&mut self, fingerprint: u64) {
        self.chain = (self.chain.rotate_left(5) ^ fingerprint).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    }
}

/// Where the run is, and what an iteration may use.
pub struct StepContext<'a> {
    /// The ranks.
    pub group: &'a ProcessGroup,
    /// The status page.
    pub page: &'a Page,
    /// Iterations done before this one.
    pub iteration: u64,
    /// Iterations in all; `None` without a limit.
    pub num_iterations: Option<u64>,
    /// Updates made before this iteration.
    pub updates: u64,
    /// Environment steps over all ranks before this iteration.
    pub env_step: u64,
}

impl StepContext<'_> {
    /// Shows a phase on the status page.
    pub fn phase(&self, phase: Phase) {
        self.page.borrow_mut().phase(phase);
    }

    /// Shows a step of all environments.
    pub fn stepped(&self, counters: &RankCounters) {
        self.page.borrow_mut().update(|body| {
            body.phase_progress += 1;
            (body.env_step, body.samples, body.episodes) =
                (counters.env_step, counters.samples, counters.episodes);
        });
    }

    /// Shows the number of updates in this iteration.
    pub fn updated(&self, stats: &IterationStats) {
        self.page.borrow_mut().update(|body| {
            body.phase_progress += 1;
            body.updates = self.updates + stats.updates;
            (body.done, body.total) = (stats.updates, stats.planned);
        });
    }

    /// CleanRL's annealing: `1 - done / num_iterations` of the rate, where `done` iterations came before.
    pub fn annealed(&self, rate: f64, anneal: bool) -> f64 {
        match self.num_iterations {
            Some(all) if anneal => rate * (1.0 - self.iteration as f64 / all.max(1) as f64),
            _ => rate,
        }
    }
}

/// A learner with its environments.
pub trait Algorithm {
    /// One training iteration: collects and learns.
    fn iterate(&mut self, ctx: &StepContext<'_>) -> Result<IterationStats, TrainerError>;
    /// This rank's own counters since the run began.
    fn counters(&self) -> RankCounters;
    /// Episodes of this rank since the last call.
    fn take_interval(&mut self) -> Interval;
    /// The policy as it is now, for an evaluation.
    fn greedy(&mut self) -> Result<&mut dyn Greedy, TrainerError>;
    /// A line about this algorithm's own sizes, printed at the start.
    fn plan(&self) -> Option<String> {
        None
    }
    /// Writes what only this rank owns and what is too large for a checkpoint (replay) into `folder`.
    fn save_own(&self, _folder: &Path, _mark: &ReplayMark) -> Result<(), TrainerError> {
        Ok(())
    }
    /// Restores what [`Algorithm::save_own`] wrote for exactly this checkpoint; the error says why it cannot.
    /// Called after [`Algorithm::restore`].
    fn load_own(&mut self, _folder: &Path, _mark: &ReplayMark) -> Result<(), String> {
        Ok(())
    }
    /// Everything that a checkpoint must hold. Names, shapes and counts of arrays and words depend on the
    /// settings only.
    fn state(&self) -> Result<State, TrainerError>;
    /// Restores the state of a checkpoint, which has the names and shapes of [`Algorithm::state`]. Called
    /// before the first iteration.
    fn restore(&mut self, restored: &RestoredState) -> Result<(), TrainerError>;
}

/// Shows on the status page what slow environments do, and that they make progress.
pub fn shown(page: &Page) -> Watcher {
    let page = Page::clone(page);
    Box::new(move |activity| {
        let mut page = page.borrow_mut();
        if page.body().activity == activity as u64 {
            page.progress();
        } else {
            page.activity(activity);
        }
    })
}

/// What an algorithm is made from.
pub struct BuildContext<'a> {
    /// The experiment.
    pub experiment: &'a Experiment,
    /// Sizes of this rank.
    pub sizes: Sizes,
    /// Shapes of the environment.
    pub spec: Spec,
    /// Random streams.
    pub seeds: Seeds,
    /// Where networks live.
    pub device: Device,
    /// The ranks.
    pub group: &'a ProcessGroup,
    /// Iterations that earlier generations of the run completed. It names the random streams of environments
    /// that cannot be restored.
    pub start_iteration: u64,
}

/// Makes the algorithm of the experiment: environments reset, parameters equal on all ranks (collective, tag
/// `weights`).
pub fn make(build: &BuildContext<'_>) -> Result<Box<dyn Algorithm>, TrainerError> {
    let (_, learn) = setup::parts(build.experiment)?;
    match learn {
        Learn::Ppo(settings) => Ok(Box::new(ppo::Ppo::new(settings, build)?)),
        Learn::Ppg(settings) => Ok(Box::new(ppg::Ppg::new(settings, build)?)),
        Learn::A2c(settings) => Ok(Box::new(a2c::A2c::new(settings, build)?)),
        Learn::Dqn(settings) => Ok(Box::new(dqn::Dqn::new(settings, build)?)),
        Learn::Sac(settings) => Ok(Box::new(sac::Sac::new(settings, build)?)),
    }
}

/// Refuses what cannot work before this rank waits for others: networks that do not fit, sizes that do not
/// divide.
pub fn check(experiment: &Experiment, spec: &Spec, sizes: &Sizes) -> Result<(), TrainerError> {
    let (_, learn) = setup::parts(experiment)?;
    match learn {
        Learn::Ppo(_) | Learn::A2c(_) => {}
        Learn::Ppg(ppg) => {
            let rollouts = ppg.policy_iterations as usize * sizes.local_envs as usize;
            let minibatches = ppg.aux_num_minibatches as usize;
            if minibatches == 0 || !rollouts.is_multiple_of(minibatches) {
                return Err(TrainerError::usage(
                    format!(
                        "the {rollouts} rollouts of single environments that a rank collects in a policy phase cannot be split into {minibatches} minibatches"
                    ),
                    format!("set learn.aux_num_minibatches to a divisor of {rollouts}"),
                ));
            }
        }
        Learn::Dqn(dqn) => return dqn::check(dqn, experiment, spec, sizes),
        Learn::Sac(sac) => return sac::check(sac, experiment, spec, sizes),
    }
    let aux = matches!(learn, Learn::Ppg(_));
    Layout::new(spec, &experiment.policy, aux)?;
    let minibatches = learn.num_minibatches() as usize;
    if minibatches == 0 || !sizes.local_batch.is_multiple_of(minibatches) {
        return Err(TrainerError::usage(
            format!(
                "the rollout of {} transitions per rank cannot be split into {minibatches} minibatches",
                sizes.local_batch
            ),
            "change learn.num_minibatches, env.num_envs or collect.num_steps",
        ));
    }
    if learn.norm_adv() != NormAdv::Off && sizes.local_batch / minibatches < 2 {
        return Err(TrainerError::usage(
            "a minibatch of 1 transition per rank cannot be normalised",
            "lower learn.num_minibatches, or set learn.norm_adv = false",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_notices_one_differing_update() {
        let run = |fingerprints: &[u64]| {
            let mut stats = IterationStats::default();
            fingerprints.iter().for_each(|fingerprint| stats.cover(*fingerprint));
            stats.chain
        };
        assert_eq!(run(&[5, 6, 7]), run(&[5, 6, 7]));
        assert_ne!(run(&[5, 6, 7]), run(&[5, 9, 7]));
        assert_ne!(run(&[5, 6, 7]), run(&[6, 5, 7]));
        assert_ne!(run(&[0]), 0);
    }

    #[test]
    fn what_cannot_work_is_refused_with_the_key_to_change() {
        let experiment = |id: &str, rest: &str| -> Experiment {
            let text =
                format!("[run]\nname = 'x'\ntotal_steps = 5000\n[env]\nid = '{id}'\nnum_envs = 4\n{rest}\n");
            toml::from_str(&text).unwrap()
        };
        for (rest, key) in [
            ("[learn]\nalgorithm = 'ppo'\nnum_minibatches = 3", "learn.num_minibatches"),
            ("[learn]\nalgorithm = 'ppo'\nnum_minibatches = 512", "learn.norm_adv"),
            ("[learn]\nalgorithm = 'ppg'\naux_num_minibatches = 3", "learn.aux_num_minibatches"),
            ("[policy]\nnetwork = 'nature'\n[learn]\nalgorithm = 'a2c'", "policy.network"),
        ] {
            let experiment = experiment("CartPole-v1", rest);
            let sizes = Sizes::resolve(&experiment, 0, 1).unwrap();
            let error = check(&experiment, &Spec::discrete(4, 2), &sizes).unwrap_err();
            assert!(error.usage && error.hint().contains(key), "{error:?}");
        }
    }
}
