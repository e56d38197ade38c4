//! Soft actor-critic over all ranks: each rank plays its environments into its own replay and brings its share of every batch.
//!
//! Owner: the training loop. An iteration is `collect.num_steps` steps of every environment, then `updates_per_iteration` updates
//! ([`super::sac_learner`], SAC-1..3). Until `learning_starts` environment steps over all ranks, actions are even within their bounds. Reference:
//! CleanRL's sac_continuous_action.py.
//!
//! Truncation: a cut by a time limit goes on with the value of the true last observation, as in CleanRL (REPLAY-2).

use super::off_policy::{Common, Explore, OffPolicy, shares};
use super::sac_learner::{Noise, Part, SacLearned, SacLearner};
use super::{Algorithm, At, Learned, Parts};
use crate::config::experiment::Experiment;
use crate::config::learn::Sac as Settings;
use crate::proto::message::Phase;
use crate::trainer::collect::{Interval, Tally};
use crate::trainer::env::numpy_random::Generator;
use crate::trainer::env::{Observations, Spec};
use crate::trainer::error::TrainerError;
use crate::trainer::evaluate::Greedy;
use crate::trainer::policy::sac_networks::SacLayout;
use crate::trainer::replay::Mark;
use crate::trainer::rollout::ActionBuffer;
use crate::trainer::setup::Sizes;
use crate::trainer::state::{Array, MODEL, Restored, State, Words};
use std::path::Path;
use tch::{Device, TchError, Tensor};

/// SAC on one rank.
pub struct Sac {
    settings: Settings,
    off_policy: OffPolicy,
    player: Player,
    learned: SacLearned,
    fingerprint_every: u64,
}

/// The learner as it acts.
struct Player {
    learner: SacLearner,
    learning_starts: u64,
    device: Device,
}

impl Noise for Generator {
    fn normals(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.normal() as f32).collect()
    }
}

fn common(settings: &Settings) -> Common {
    let Settings { buffer_size, learning_starts, batch_size, gamma, .. } = *settings;
    Common { buffer_size, learning_starts, batch_size, n_step: 1, gamma }
}

/// Refuses what cannot work, before any rank is waited for.
pub fn check(
    settings: &Settings,
    experiment: &Experiment,
    spec: &Spec,
    sizes: &Sizes,
) -> Result<(), TrainerError> {
    shares(&common(settings), spec, sizes)?;
    SacLayout::new(spec, &experiment.policy).map(drop)
}

impl Sac {
    /// Collective: weights are copied from rank 0.
    pub fn new(settings: &Settings, parts: &Parts<'_>) -> Result<Sac, TrainerError> {
        let Parts { experiment, spec, seeds, device, group, .. } = parts;
        let layout = SacLayout::new(spec, &experiment.policy)?;
        let bucket = (experiment.distributed.bucket_mb.clamp(0.0, 4096.0) * 1024.0 * 1024.0) as usize;
        let learner = SacLearner::new(settings.clone(), layout, seeds, *device, group, bucket)?;
        let learned = SacLearned { alpha: learner.entropy_weight()?, ..SacLearned::default() };
        Ok(Sac {
            off_policy: OffPolicy::new(common(settings), parts)?,
            player: Player { learner, learning_starts: settings.learning_starts, device: *device },
            settings: settings.clone(),
            learned,
            fingerprint_every: experiment.distributed.fingerprint_every,
        })
    }
}

impl Player {
    fn input(&self, observations: Observations<'_>, rows: usize) -> Result<Tensor, TchError> {
        let numbers = observations.f32().unwrap_or_default();
        Tensor::f_from_slice(numbers)?.f_view([rows as i64, -1])?.f_to_device(self.device)
    }
}

impl Explore for Player {
    fn explore(
        &mut self,
        observations: Observations<'_>,
        env_step: u64,
        randoms: &mut [Generator],
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError> {
        let ActionBuffer::Continuous { width, values } = actions else { return Ok(()) };
        if env_step < self.learning_starts {
            let layout = self.learner.networks.layout();
            for (row, random) in values.chunks_exact_mut((*width).max(1)).zip(randoms) {
                for (value, (scale, bias)) in row.iter_mut().zip(layout.scale.iter().zip(&layout.bias)) {
                    *value = bias + scale * (2.0 * random.next_f64() - 1.0) as f32;
                }
            }
            return Ok(());
        }
        let rows = randoms.len();
        let noise: Vec<f32> = randoms.iter_mut().flat_map(|random| random.normals(*width)).collect();
        let input = self.input(observations, rows)?;
        let drawn = tch::no_grad(|| {
            let noise = Tensor::f_from_slice(&noise)?.f_view([rows as i64, -1])?.f_to_device(self.device)?;
            self.learner.networks.draw(&input, &noise)
        })?;
        let len = values.len();
        Ok(drawn.actions.f_to_device(Device::Cpu)?.f_contiguous()?.f_copy_data(values, len)?)
    }
}

impl Greedy for Player {
    fn act(
        &mut self,
        observations: Observations<'_>,
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError> {
        let ActionBuffer::Continuous { width, values } = actions else { return Ok(()) };
        let len = values.len();
        let input = self.input(observations, len / (*width).max(1))?;
        let best = tch::no_grad(|| self.learner.networks.greedy(&input))?;
        Ok(best.f_to_device(Device::Cpu)?.f_contiguous()?.f_copy_data(values, len)?)
    }
}

impl Algorithm for Sac {
    fn iterate(&mut self, at: &At<'_>) -> Result<Learned, TrainerError> {
        at.phase(Phase::Rollout);
        self.off_policy.collect(&mut self.player, at)?;
        at.phase(Phase::Learn);
        let mut learned = Learned {
            learning_rate: self.settings.policy_lr,
            planned: self.settings.updates_per_iteration.into(),
            ..Learned::default()
        };
        if self.off_policy.ready(at)? {
            for _ in 0..self.settings.updates_per_iteration {
                let mut random = self.off_policy.sample(at.updates + learned.updates, at.group.rank());
                self.learned = self.player.learner.update(&self.off_policy.batch, &mut random, at.group)?;
                learned.updates += 1;
                let updates = at.updates + learned.updates;
                if self.fingerprint_every > 0 && updates.is_multiple_of(self.fingerprint_every) {
                    learned.cover(self.player.learner.fingerprint());
                }
                at.updated(&learned);
            }
            self.learned.alpha = self.player.learner.entropy_weight()?;
        }
        learned.losses = vec![
            ("losses/qf_loss", self.learned.critic_loss),
            ("losses/actor_loss", self.learned.actor_loss),
            ("losses/alpha_loss", self.learned.alpha_loss),
            ("losses/alpha", self.learned.alpha),
            ("losses/qf1_values", self.learned.q_values),
        ];
        Ok(learned)
    }

    fn tally(&self) -> Tally {
        self.off_policy.tally()
    }

    fn take_interval(&mut self) -> Interval {
        self.off_policy.take_interval()
    }

    fn plan(&self) -> Option<String> {
        Some(self.off_policy.plan())
    }

    fn save_own(&self, folder: &Path, mark: &Mark) -> Result<(), TrainerError> {
        self.off_policy.save_replay(folder, mark)
    }

    fn load_own(&mut self, folder: &Path, mark: &Mark) -> Result<(), String> {
        self.off_policy.load_replay(folder, mark)
    }

    fn greedy(&mut self) -> Result<&mut dyn Greedy, TrainerError> {
        Ok(&mut self.player)
    }

    /// Networks, entropy weight, moments, step counts, environments.
    fn state(&self) -> Result<State, TrainerError> {
        let learner = &self.player.learner;
        let mut state = State { arrays: learner.networks.actor.arrays(MODEL)?, ..State::default() };
        state.arrays.extend(learner.networks.critics.arrays(MODEL)?);
        state.arrays.extend(learner.networks.targets.arrays("target.")?);
        state.arrays.push(Array::of("log_alpha", &learner.log_alpha)?);
        for (name, Part { adam, .. }) in optimisers(learner) {
            state.arrays.push(Array::of(&format!("adam.{name}.first"), &adam.first)?);
            state.arrays.push(Array::of(&format!("adam.{name}.second"), &adam.second)?);
        }
        let steps = optimisers(learner).map(|(_, part)| part.adam.steps);
        state.words.push(Words { name: "adam.steps".into(), values: steps.to_vec() });
        state.words.push(Words { name: "sac.updates".into(), values: vec![learner.updates()] });
        self.off_policy.state(&mut state);
        Ok(state)
    }

    fn restore(&mut self, restored: &Restored) -> Result<(), TrainerError> {
        let learner = &mut self.player.learner;
        restored.copy_to(MODEL, learner.networks.actor.named())?;
        restored.copy_to(MODEL, learner.networks.critics.named())?;
        restored.copy_to("target.", learner.networks.targets.named())?;
        restored.copy_to("", vec![("log_alpha".into(), learner.log_alpha.shallow_clone())])?;
        for (name, Part { adam, .. }) in optimisers(learner) {
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
        self.learned.alpha = learner.entropy_weight()?;
        self.off_policy.restore(restored)
    }
}

fn optimisers(learner: &SacLearner) -> [(&'static str, &Part); 3] {
    [("critics", &learner.critics), ("actor", &learner.actor), ("alpha", &learner.alpha)]
}
