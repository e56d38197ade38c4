//! Deep Q-learning over all ranks: each rank plays its environments into its own replay and brings its share
//! of every batch.
//!
//! Owner: [`OffPolicyAlgorithm`]. An iteration is `collect.num_steps` steps of every environment, then
//! `updates_per_iteration` updates ([`super::q_learner`]). Epsilon falls with the environment steps over all
//! ranks, so that it depends on experience and not on the world size. Reference: CleanRL's dqn.py and
//! dqn_atari.py (linear epsilon), DI-engine's dqn (exponential epsilon, double, dueling, n-step).
//!
//! Truncation: after a cut by a time limit, the value of the true last observation counts, as in CleanRL
//! (REPLAY-2).
//!
//! Invariant DQN-1: every rank makes the same number of updates in the same iterations (OFFPOLICY-1).

use super::off_policy::{Learner, OffPolicyAlgorithm, OffPolicySettings, shares};
use super::q_learner::{ComputePath, GraphCapture, QLearner};
use super::{BuildContext, Stat};
use crate::distributed::{Ddp, ProcessGroup};
use crate::env::{Observations, Spec};
use crate::error::TrainerError;
use crate::evaluate::Greedy;
use crate::policy::q_layout::QLayout;
use crate::replay::ReplayBatch;
use crate::rollout::ActionBuffer;
use crate::setup::Sizes;
use crate::state::{Array, MODEL, RestoredState, State, Words};
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_kernel::q::argmax;
use rankdeck_proto::show::{ScoreKind, Thought};
use rankdeck_types::experiment::Experiment;
use rankdeck_types::learn::Dqn as Settings;
use rankdeck_types::learn::dqn::EpsilonDecay;

/// DQN on one rank: the learner and how it acts.
pub struct Dqn {
    learner: QLearner,
    settings: Settings,
    actions: usize,
    q: Vec<f32>,
}

fn off_policy_settings(settings: &Settings) -> OffPolicySettings {
    let Settings { buffer_size, learning_starts, batch_size, n_step, gamma, updates_per_iteration, .. } =
        *settings;
    OffPolicySettings { buffer_size, learning_starts, batch_size, n_step, gamma, updates_per_iteration }
}

/// Refuses what cannot work, before any rank is waited for.
pub fn check(
    settings: &Settings,
    experiment: &Experiment,
    spec: &Spec,
    sizes: &Sizes,
) -> Result<(), TrainerError> {
    shares(&off_policy_settings(settings), spec, sizes)?;
    QLayout::new(spec, &experiment.policy, settings.dueling).map(drop)
}

/// The probability of a random action after `env_step` environment steps over all ranks.
pub fn epsilon(settings: &Settings, env_step: u64) -> f64 {
    let Settings { epsilon_start: start, epsilon_end: end, epsilon_steps, epsilon_decay, .. } = *settings;
    let share = env_step as f64 / epsilon_steps.max(1) as f64;
    match epsilon_decay {
        EpsilonDecay::Linear => start + (end - start) * share.min(1.0),
        EpsilonDecay::Exponential => end + (start - end) * (-share).exp(),
    }
}

impl Dqn {
    /// Collective: weights are copied from rank 0.
    pub fn new(
        settings: &Settings,
        build: &BuildContext<'_>,
    ) -> Result<OffPolicyAlgorithm<Dqn>, TrainerError> {
        let BuildContext { experiment, spec, seeds, device, group, .. } = build;
        let layout = QLayout::new(spec, &experiment.policy, settings.dueling)?;
        let actions = layout.actions();
        let bucket = (experiment.distributed.bucket_mb.clamp(0.0, 4096.0) * 1024.0 * 1024.0) as usize;
        let way = ComputePath::of(experiment, *device)?;
        let sizes = (bucket, GraphCapture(experiment.policy.cuda_graphs));
        let learner = QLearner::new(settings.clone(), (spec, layout), way, seeds, *device, group, sizes)?;
        let dqn = Dqn { learner, settings: settings.clone(), actions, q: Vec::new() };
        OffPolicyAlgorithm::new(off_policy_settings(settings), dqn, build)
    }

    fn look(&mut self, observations: Observations<'_>, rows: usize) -> Result<(), TrainerError> {
        let numbers = observations.f32().unwrap_or_default();
        let pixels = observations.u8().unwrap_or_default();
        Ok(self.learner.values(numbers, pixels, rows, &mut self.q)?)
    }
}

impl Learner for Dqn {
    fn explore(
        &mut self,
        observations: Observations<'_>,
        env_step: u64,
        randoms: &mut [Generator],
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError> {
        let ActionBuffer::Discrete(actions) = actions else { return Err(wrong_actions()) };
        let epsilon = epsilon(&self.settings, env_step);
        let rows = actions.len();
        let mut looked = false;
        for (i, (action, random)) in actions.iter_mut().zip(randoms).enumerate() {
            if random.next_f64() < epsilon {
                *action = random.below(self.actions as u64) as i64;
                continue;
            }
            // While all actions are random, the network is not needed.
            if !looked {
                self.look(observations, rows)?;
                looked = true;
            }
            *action = argmax(&self.q[i * self.actions..(i + 1) * self.actions]) as i64;
        }
        Ok(())
    }

    fn update(
        &mut self,
        batch: &ReplayBatch,
        _random: &mut Generator,
        group: &ProcessGroup,
    ) -> Result<(), TrainerError> {
        self.learner.update(batch, group)
    }

    fn close(
        &mut self,
        covered: bool,
        batch: &ReplayBatch,
        group: &ProcessGroup,
    ) -> Result<Option<u64>, TrainerError> {
        let QLearner { ledger, ddp, .. } = &mut self.learner;
        let covered: &[&Ddp] = if covered { &[ddp] } else { &[] };
        Ok(ledger.close(covered, group, || batch.largest())?.pop())
    }

    fn rate(&self) -> f64 {
        self.settings.learning_rate
    }

    fn losses(&mut self, env_step: u64) -> Result<Vec<Stat>, TrainerError> {
        let stats = self.learner.stats()?;
        Ok(vec![
            Stat::loss("losses/td_loss", stats.td_loss),
            Stat::other("losses/q_values", stats.q_values),
            Stat::other("charts/epsilon", epsilon(&self.settings, env_step)),
        ])
    }

    fn save(&self, state: &mut State) -> Result<(), TrainerError> {
        let QLearner { network, adam, .. } = &self.learner;
        state.arrays.extend(network.online.arrays(MODEL)?);
        state.arrays.extend(network.target.arrays("target.")?);
        state.arrays.push(Array::of("adam.first", &adam.first)?);
        state.arrays.push(Array::of("adam.second", &adam.second)?);
        state.words.push(Words { name: "adam.steps".into(), values: vec![adam.steps] });
        Ok(())
    }

    fn load(&mut self, restored: &RestoredState) -> Result<(), TrainerError> {
        let learner = &mut self.learner;
        restored.copy_to(MODEL, learner.network.online.named())?;
        restored.copy_to("target.", learner.network.target.named())?;
        let moments = [("first", &learner.adam.first), ("second", &learner.adam.second)];
        restored.copy_to(
            "adam.",
            moments.map(|(name, tensor)| (name.to_owned(), tensor.shallow_clone())).into(),
        )?;
        learner.adam.steps = restored.words("adam.steps").first().copied().unwrap_or(0);
        learner.loaded()
    }
}

fn wrong_actions() -> TrainerError {
    TrainerError::failure("DQN was asked for actions that are not discrete", "")
}

impl Greedy for Dqn {
    fn act(
        &mut self,
        observations: Observations<'_>,
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError> {
        let ActionBuffer::Discrete(actions) = actions else { return Err(wrong_actions()) };
        self.look(observations, actions.len())?;
        for (action, q) in actions.iter_mut().zip(self.q.chunks_exact(self.actions.max(1))) {
            *action = argmax(q) as i64;
        }
        Ok(())
    }

    fn thought(&self, env: usize) -> Option<Thought> {
        let scores = self.q.chunks_exact(self.actions.max(1)).nth(env)?.to_vec();
        let value = scores.iter().copied().reduce(f32::max);
        Some(Thought { kind: ScoreKind::Q, scores, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epsilon_falls_as_in_the_references() {
        let linear = Settings::default();
        // CleanRL: from 1 to 0.05 over half of 500,000 steps.
        for (step, wanted) in [(0, 1.0), (125_000, 0.525), (250_000, 0.05), (400_000, 0.05)] {
            assert!((epsilon(&linear, step) - wanted).abs() < 1e-12, "{step}");
        }
        let exponential = Settings {
            epsilon_start: 0.95,
            epsilon_end: 0.1,
            epsilon_steps: 10_000,
            epsilon_decay: EpsilonDecay::Exponential,
            ..Settings::default()
        };
        let decayed = 0.85 * (-1.0_f64).exp() + 0.1;
        for (step, wanted) in [(0, 0.95), (10_000, decayed), (10_000_000, 0.1)] {
            assert!((epsilon(&exponential, step) - wanted).abs() < 1e-12, "{step}");
        }
    }
}
