//! The algorithms, one file each, behind one trait, and the parts that several of them share.
//!
//! The [loop](crate::training) owns identity, totals, stop, evaluation, checkpoints and reports. An algorithm
//! owns its environments, its networks and what an iteration does with them.
//!
//! Invariants of every algorithm:
//! - [`Algorithm::iterate`] makes the same collectives in the same order on all ranks: their number
//!   depends on settings, counters that are equal on all ranks, and reduced values only.
//! - Parameters, targets and everything else that must be equal on all ranks is copied from rank 0
//!   when the algorithm is made, and [`IterationStats::chain`] covers it.
//! - The result depends on state, seed and iteration only: a restored algorithm continues with the
//!   same bits, unless its file documents an exception.

pub(crate) mod a2c;
pub(crate) mod adam;
pub(crate) mod batch;
pub(crate) mod block_sums;
pub mod captured_update;
pub(crate) mod cpu_kernels;
pub(crate) mod device_metrics;
pub mod dqn;
mod epsilon_greedy;
#[cfg(test)]
mod kernel_tests;
pub mod off_policy;
pub(crate) mod on_policy;
pub(crate) mod ppg;
pub(crate) mod ppo;
pub(crate) mod ppo_loss;
pub(crate) mod pqn;
pub(crate) mod radam;
pub mod sac;
pub mod stop_points;
pub mod td3;
pub mod twin_critics;
pub mod twin_kernels;

use crate::collect::rollout::ActionBuffer;
use crate::collect::{Interval, RankCounters, normalize};
use crate::distributed::ProcessGroup;
use crate::env::{
    self, EnvError, EnvFactory, EnvPurpose, Observations, Spec, StepOutcome, VectorEnv, Watcher,
};
use crate::error::TrainerError;
use crate::policy::actor_critic::Layout;
use crate::replay::ReplayMark;
use crate::startup::setup::{self, Sizes};
use crate::support::page::StatusPage;
use crate::support::state::{AlgorithmState, RestoredState};
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_kernel::seeds::Seeds;
use rankdeck_proto::message::Phase;
use rankdeck_proto::show::PolicyEstimate;
use rankdeck_types::experiment::{Experiment, Learn};
use std::any::Any;
use std::path::Path;
use stop_points::{StopPoints, WorkKind};
use tch::Device;

/// What one iteration did.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct IterationStats {
    /// Updates made; equal on all ranks.
    pub updates: u64,
    /// Updates that the iteration is to make, for the status page; 0 when that is not known beforehand.
    pub planned: u64,
    /// Hash over the fingerprints after the updates; 0 when no update was covered.
    pub chain: u64,
    /// The optimizer's rate (the first one's).
    pub learning_rate: f64,
    /// Losses and other scalars: the same names in the same order on all ranks. Reports give means over the
    /// ranks.
    pub losses: Vec<ScalarStat>,
    /// All ranks left the iteration for a stop: what it changed is to be undone.
    pub left: bool,
}

/// A scalar of an iteration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalarStat {
    /// Its name in events and TensorBoard.
    pub name: &'static str,
    /// NaN where this iteration has none.
    pub value: f64,
    /// A loss must stay finite, or the run ends.
    pub(crate) is_loss: bool,
}

impl ScalarStat {
    /// A loss, which every iteration that learns has.
    pub fn loss(name: &'static str, value: f64) -> ScalarStat {
        ScalarStat { name, value, is_loss: true }
    }

    /// Any other scalar.
    pub fn other(name: &'static str, value: f64) -> ScalarStat {
        ScalarStat { name, value, is_loss: false }
    }
}

/// A rank's own loss before it is averaged: whose is not a finite number names itself, and no other rank
/// takes harm from it.
pub(crate) fn own_loss(name: &str, value: f64, seen: impl FnOnce() -> String) -> Result<(), TrainerError> {
    if value.is_finite() {
        return Ok(());
    }
    Err(TrainerError::diverged(
        format!("{name} of this rank is {value}{}", seen()),
        "check this rank's environments for large rewards or observations (collect.reward_scale, collect.normalise_observations); if there are none, lower the learning rate",
    ))
}

impl IterationStats {
    /// Whether every `every`-th update of the run is covered by a fingerprint, and one of them was made in
    /// this iteration; `before` were made before it. Equal on all ranks.
    pub(crate) fn covered(&self, before: u64, every: u64) -> bool {
        every > 0 && (before + self.updates) / every > before / every
    }

    /// Mixes a fingerprint into the chain.
    pub(crate) fn cover(&mut self, fingerprint: u64) {
        self.chain = (self.chain.rotate_left(5) ^ fingerprint).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    }
}

/// Where the run is, and what an iteration may use.
pub struct StepContext<'a> {
    /// The ranks.
    pub group: &'a ProcessGroup,
    /// The status page.
    pub page: &'a StatusPage,
    /// Iterations done before this one.
    pub iteration: u64,
    /// Iterations in all; `None` without a limit.
    pub num_iterations: Option<u64>,
    /// Updates made before this iteration.
    pub updates: u64,
    /// Environment steps over all ranks before this iteration.
    pub env_step: u64,
    /// Where the iteration may be left.
    pub stop: &'a StopPoints,
}

impl StepContext<'_> {
    /// Shows a phase on the status page.
    pub fn phase(&self, phase: Phase) {
        self.page.lock().phase(phase);
    }

    /// Shows a step of all environments.
    pub fn stepped(&self, counters: &RankCounters) {
        self.page.lock().update(|body| {
            body.phase_progress += 1;
            (body.env_step, body.samples, body.episodes) =
                (counters.env_step, counters.samples, counters.episodes);
        });
    }

    /// Shows the number of updates in this iteration.
    pub(crate) fn updated(&self, stats: &IterationStats) {
        self.page.lock().update(|body| {
            body.phase_progress += 1;
            body.updates = self.updates + stats.updates;
            (body.done, body.total) = (stats.updates, stats.planned);
        });
    }

    /// All ranks leave the iteration here, after this work.
    ///
    /// Errors: the group is given up, since a rank is lost.
    pub(crate) fn leaves(&self, work: WorkKind) -> Result<bool, TrainerError> {
        self.group.check_members()?;
        Ok(self.stop.leave(self.group, work)?)
    }

    /// CleanRL's annealing: `1 - done / num_iterations` of the rate, where `done` iterations came before.
    pub(crate) fn annealed(&self, rate: f64, anneal: bool) -> f64 {
        match self.num_iterations {
            Some(all) if anneal => rate * (1.0 - self.iteration as f64 / all.max(1) as f64),
            _ => rate,
        }
    }
}

/// A learner with its environments.
pub trait Algorithm {
    /// Whether this iteration may be left for a stop ([`IterationStats::left`]). Then the loop restores the
    /// state before it. `long`: the one before took long.
    fn can_be_left(&self, _iteration: u64, _long: bool) -> bool {
        false
    }
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
    /// Writes what only this rank owns and what is too large for a checkpoint (replay, rollouts) into
    /// `folder`, next to that of iteration `keep`, whose checkpoint is complete. `moved` gets the bytes
    /// written and their sum.
    fn save_own(
        &self,
        _folder: &Path,
        _mark: &ReplayMark,
        _keep: Option<u64>,
        _moved: &mut dyn FnMut(u64, u64),
    ) -> Result<(), TrainerError> {
        Ok(())
    }
    /// Restores what [`Algorithm::save_own`] wrote for exactly this checkpoint; the error is the cause.
    /// Called after [`Algorithm::restore`].
    fn load_own(&mut self, _folder: &Path, _mark: &ReplayMark) -> Result<(), String> {
        Ok(())
    }
    /// Forgets what [`Algorithm::load_own`] restored: another rank has lost its own.
    fn drop_own(&mut self) {}
    /// Takes out what only this rank owns, before it continues in another group; `None`: nothing.
    fn take_own(&mut self) -> Option<Box<dyn Any>> {
        None
    }
    /// Takes over what [`Algorithm::take_own`] gave, as far as it fits; what that is, in words. Called after
    /// [`Algorithm::restore`].
    fn adopt_own(&mut self, _own: Box<dyn Any>) -> Option<String> {
        None
    }
    /// Everything that a checkpoint must hold. Names, shapes and counts of arrays and words depend on the
    /// settings only.
    fn state(&self) -> Result<AlgorithmState, TrainerError>;
    /// Restores the state of a checkpoint, which has the names and shapes of [`Algorithm::state`]. Called
    /// before the first iteration.
    fn restore(&mut self, restored: &RestoredState) -> Result<(), TrainerError>;
}

/// A policy that acts in evaluations: by its best actions, or as training does (`eval.greedy`).
pub trait Greedy {
    /// Writes the actions for the observations of all environments, as environments take them, among those that
    /// `masks` allow ([`VectorEnv::masks`]); algorithms without masks are refused before.
    fn act(
        &mut self,
        observations: Observations<'_>,
        masks: Option<&[u8]>,
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError>;
    /// Writes actions as training takes them, drawn from the streams of the environments: from the policy's
    /// distribution, with exploration noise, or at random with the last epsilon. A policy that draws nothing acts
    /// as ever.
    fn sample(
        &mut self,
        observations: Observations<'_>,
        masks: Option<&[u8]>,
        _randoms: &mut [Generator],
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError> {
        self.act(observations, masks, actions)
    }
    /// All environments have been reset: a policy with memory forgets what it has seen.
    fn start_episodes(&mut self) {}
    /// A policy with memory forgets what it has seen of the environments whose episode ended in this step.
    fn end_episodes(&mut self, _outcome: &StepOutcome) {}
    /// Its estimate for environment `env` in the latest [`Greedy::act`] or [`Greedy::sample`].
    fn estimate(&self, _env: usize) -> Option<PolicyEstimate> {
        None
    }
}

/// Shows on the status page what slow environments do, and that they make progress.
pub fn shown(page: &StatusPage) -> Watcher {
    let page = StatusPage::clone(page);
    Box::new(move |activity| {
        let mut page = page.lock();
        if page.body().activity == activity as u64 {
            page.progress();
        } else {
            page.activity(activity);
        }
    })
}

/// What an algorithm is made from.
pub struct BuildContext<'a> {
    pub experiment: &'a Experiment,
    /// Sizes of this rank.
    pub sizes: Sizes,
    /// Makes this rank's environments.
    pub envs: &'a EnvFactory,
    /// Their shapes, as the networks see them.
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

/// Bytes of a bucket of gradients (`distributed.bucket_mb`).
fn bucket_bytes(experiment: &Experiment) -> usize {
    (experiment.distributed.bucket_mb.clamp(0.0, 4096.0) * 1024.0 * 1024.0) as usize
}

/// This rank's environments, reset. Where a stop was requested before they had started, stand-ins: all ranks
/// make the collectives that follow, and the [loop](crate::training) ends before anything is stepped.
fn environments(build: &BuildContext<'_>) -> Result<Box<dyn VectorEnv>, TrainerError> {
    Ok(vectors(build, &[build.sizes.local_envs])?.remove(0))
}

/// The same in one group, or with `collect.double_buffer` in two.
fn groups(build: &BuildContext<'_>) -> Result<Vec<Box<dyn VectorEnv>>, TrainerError> {
    let all = build.sizes.local_envs;
    match build.experiment.collect.double_buffer && all > 1 {
        true => vectors(build, &[all / 2, all - all / 2]),
        false => vectors(build, &[all]),
    }
}

/// This rank's environments in vectors of so many each.
fn vectors(build: &BuildContext<'_>, counts: &[u32]) -> Result<Vec<Box<dyn VectorEnv>>, TrainerError> {
    let BuildContext { experiment, sizes, envs, spec, seeds, group, start_iteration, .. } = build;
    let counts: Vec<usize> = counts.iter().map(|count| *count as usize).collect();
    match envs.make_groups(&counts, sizes.first_env, seeds, *start_iteration, EnvPurpose::Train) {
        Ok(vectors) => {
            let prepare = |vector| {
                let mut vector = env::fit(vector, experiment.policy.network);
                vector.watch(shown(group.page()));
                vector
            };
            Ok(vectors.into_iter().map(prepare).collect())
        }
        Err(EnvError::Abandoned) => {
            Ok(counts.into_iter().map(|count| env::unstarted(spec.clone(), count)).collect())
        }
        Err(error) => Err(error.into()),
    }
}

/// Makes the algorithm of the experiment: environments reset, parameters equal on all ranks (collective, tag
/// `weights`).
pub fn make(build: &BuildContext<'_>) -> Result<Box<dyn Algorithm>, TrainerError> {
    let (_, learn) = setup::parts(build.experiment)?;
    match learn {
        Learn::Ppo(settings) => Ok(Box::new(ppo::PpoObjective::new(settings, build)?)),
        Learn::Ppg(settings) => Ok(Box::new(ppg::PpgObjective::new(settings, build)?)),
        Learn::A2c(settings) => Ok(Box::new(a2c::A2cObjective::new(settings, build)?)),
        Learn::Dqn(settings) => Ok(Box::new(dqn::DqnAlgorithm::new(settings, build)?)),
        Learn::Sac(settings) => Ok(Box::new(sac::build(settings, build)?)),
        Learn::Td3(settings) => Ok(Box::new(td3::build(settings, build)?)),
        Learn::Pqn(settings) => Ok(Box::new(pqn::PqnAlgorithm::new(settings, build)?)),
    }
}

/// Refuses what cannot work with an environment of these shapes, before this rank waits for others. What
/// needs no environment is refused with the [sizes](Sizes::resolve).
pub fn check(experiment: &Experiment, spec: &Spec, sizes: &Sizes) -> Result<(), TrainerError> {
    let (_, learn) = setup::parts(experiment)?;
    normalize::check(&experiment.collect, spec)?;
    if !spec.branches.is_empty() && experiment.collect.normalise_observations {
        return Err(TrainerError::usage(
            "collect.normalise_observations does not support the images of a Dict observation",
            "set collect.normalise_observations = false, or policy.network = \"mlp\"",
        ));
    }
    match learn {
        Learn::Ppo(_) | Learn::A2c(_) => {
            cpu_kernels::check(experiment, spec)?;
            Layout::new(spec, &experiment.policy, false).map(drop)
        }
        Learn::Ppg(_) => Layout::new(spec, &experiment.policy, true).map(drop),
        Learn::Dqn(dqn) => dqn::check(dqn, experiment, spec, sizes),
        Learn::Sac(sac) => sac::check(sac, experiment, spec, sizes),
        Learn::Td3(td3) => td3::check(td3, experiment, spec, sizes),
        Learn::Pqn(_) => pqn::check(experiment, spec),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonfinite_loss_reports_its_largest_inputs() {
        assert!(own_loss("losses/value_loss", 1e30, || unreachable!("only of a broken one")).is_ok());
        for value in [f64::NAN, f64::INFINITY] {
            let error = own_loss("losses/value_loss", value, || "; rewards up to 1e38".into()).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("losses/value_loss"), "{text}");
            assert!(text.ends_with("rewards up to 1e38") && !error.usage, "{text}");
        }
    }

    #[test]
    fn iteration_is_covered_if_one_update_is() {
        let covered = |before, updates, every| {
            IterationStats { updates, ..IterationStats::default() }.covered(before, every)
        };
        assert!(covered(0, 1, 1) && covered(16, 16, 1) && covered(90, 16, 100));
        assert!(!covered(0, 16, 0) && !covered(16, 0, 1) && !covered(100, 16, 100));
    }

    #[test]
    fn chain_changes_with_one_differing_update() {
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
    fn unsupported_settings_name_their_key() {
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
            let error = Sizes::resolve(&experiment, 0, 1)
                .and_then(|sizes| check(&experiment, &Spec::discrete(4, 2), &sizes))
                .unwrap_err();
            assert!(error.usage && error.hint().contains(key), "{error:?}");
        }
    }

    #[test]
    fn invariant_mode_refuses_actions_of_several_parts() {
        let actions = env::ActionSpace::MultiDiscrete { sizes: vec![3, 2] };
        let spec = Spec { actions, ..Spec::discrete(4, 1) };
        let text = "[run]\nname = 'x'\ntotal_steps = 50000\n[env]\nid = 'module:Any-v0'\nnum_envs = 12\n\
                    [learn]\nalgorithm = 'a2c'\n[distributed]\ninvariant = true\n";
        let experiment: Experiment = toml::from_str(text).unwrap();
        let sizes = Sizes::resolve(&experiment, 0, 1).unwrap();
        let error = check(&experiment, &spec, &sizes).unwrap_err();
        assert!(error.usage && error.hint().contains("distributed.invariant"), "{error:?}");
        assert!(check(&experiment, &Spec::discrete(4, 2), &sizes).is_ok());
    }

    #[test]
    fn several_actions_are_refused_by_the_key_to_change() {
        let actions = env::ActionSpace::MultiDiscrete { sizes: vec![3, 2] };
        let spec = Spec { actions, ..Spec::discrete(4, 1) };
        for (rest, key) in [
            ("[learn]\nalgorithm = 'dqn'", Some("learn.algorithm")),
            ("[learn]\nalgorithm = 'sac'", Some("learn.algorithm")),
            ("[learn]\nalgorithm = 'td3'", Some("learn.algorithm")),
            ("[learn]\nalgorithm = 'pqn'", Some("learn.algorithm")),
            ("[policy]\nkernel = 'native'\n[learn]\nalgorithm = 'a2c'", Some("policy.kernel")),
            ("[learn]\nalgorithm = 'ppo'", None),
            ("[learn]\nalgorithm = 'a2c'", None),
            ("[learn]\nalgorithm = 'ppg'", None),
        ] {
            let text = format!(
                "[run]\nname = 'x'\ntotal_steps = 50000\n[env]\nid = 'module:Any-v0'\nnum_envs = 4\n{rest}\n"
            );
            let experiment: Experiment = toml::from_str(&text).unwrap();
            let sizes = Sizes::resolve(&experiment, 0, 1).unwrap();
            let checked = check(&experiment, &spec, &sizes);
            let hint = checked.as_ref().err().map(TrainerError::hint);
            assert_eq!(hint.is_some(), key.is_some(), "{rest}: {checked:?}");
            assert!(hint.is_none_or(|hint| hint.contains(key.unwrap_or_default())), "{rest}: {checked:?}");
        }
    }
}
