//! Soft actor-critic over all ranks: each rank plays its environments into its own replay and brings its
//! share of every batch.
//!
//! Owner: [`OffPolicyAlgorithm`]. An iteration is `collect.num_steps` steps of every environment, then
//! `updates_per_iteration` updates ([`super::sac_learner`], SAC-1..3). Until `learning_starts` environment
//! steps over all ranks, actions are uniform within their bounds. Reference: CleanRL's
//! sac_continuous_action.py.
//!
//! Truncation: after a cut by a time limit, the value of the true last observation counts, as in CleanRL
//! (REPLAY-2).

use super::off_policy::{Learner, OffPolicyAlgorithm, OffPolicySettings, shares};
use super::q_learner::GraphCapture;
use super::sac_learner::{Noise, Optimiser, SacLearner};
use super::{BuildContext, Stat};
use crate::distributed::ProcessGroup;
use crate::distributed::upload::upload;
use crate::env::{Observations, Spec};
use crate::error::TrainerError;
use crate::evaluate::Greedy;
use crate::policy::captured::CapturedPass;
use crate::policy::sac_networks::SacLayout;
use crate::replay::ReplayBatch;
use crate::rollout::ActionBuffer;
use crate::setup::Sizes;
use crate::state::{Array, MODEL, RestoredState, State, Words};
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::learn::Sac as Settings;
use tch::{Device, TchError, Tensor};

/// SAC on one rank: the learner and how it acts.
pub struct Sac {
    learner: SacLearner,
    settings: Settings,
    device: Device,
    acting: CapturedPass,
}

impl Noise for Generator {
    fn normals(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.normal() as f32).collect()
    }
}

fn off_policy_settings(settings: &Settings) -> OffPolicySettings {
    let Settings { buffer_size, learning_starts, batch_size, gamma, updates_per_iteration, .. } = *settings;
    OffPolicySettings { buffer_size, learning_starts, batch_size, n_step: 1, gamma, updates_per_iteration }
}

/// Refuses what cannot work, before any rank is waited for.
pub fn check(
    settings: &Settings,
    experiment: &Experiment,
    spec: &Spec,
    sizes: &Sizes,
) -> Result<(), TrainerError> {
    shares(&off_policy_settings(settings), spec, sizes)?;
    SacLayout::new(spec, &experiment.policy).map(drop)
}

impl Sac {
    /// Collective: weights are copied from rank 0.
    pub fn new(
        settings: &Settings,
        build: &BuildContext<'_>,
    ) -> Result<OffPolicyAlgorithm<Sac>, TrainerError> {
        let BuildContext { experiment, spec, seeds, device, group, .. } = build;
        let layout = SacLayout::new(spec, &experiment.policy)?;
        let bucket = (experiment.distributed.bucket_mb.clamp(0.0, 4096.0) * 1024.0 * 1024.0) as usize;
        let learner = {
            let sizes = (bucket, GraphCapture(experiment.policy.cuda_graphs));
            SacLearner::new(settings.clone(), layout, seeds, *device, group, sizes)?
        };
        let sac = Sac {
            learner,
            settings: settings.clone(),
            device: *device,
            acting: CapturedPass::new(*device, experiment.policy.cuda_graphs),
        };
        OffPolicyAlgorithm::new(off_policy_settings(settings), sac, build)
    }

    fn input(&self, observations: Observations<'_>, rows: usize) -> Result<Tensor, TchError> {
        let numbers = observations.f32().unwrap_or_default();
        Tensor::f_from_slice(numbers)?.f_view([rows as i64, -1])?.f_to_device(self.device)
    }
}

impl Learner for Sac {
    fn explore(
        &mut self,
        observations: Observations<'_>,
        env_step: u64,
        randoms: &mut [Generator],
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError> {
        let ActionBuffer::Continuous { width, values } = actions else { return Err(wrong_actions()) };
        if env_step < self.settings.learning_starts {
            let layout = self.learner.networks.layout();
            for (row, random) in values.chunks_exact_mut((*width).max(1)).zip(randoms) {
                for (value, (scale, bias)) in row.iter_mut().zip(layout.scale.iter().zip(&layout.bias)) {
                    *value = bias + scale * (2.0 * random.next_f64() - 1.0) as f32;
                }
            }
            return Ok(());
        }
        let rows = randoms.len();
        // Observations, then noise, in one copy.
        let mut both = observations.f32().unwrap_or_default().to_vec();
        let split = both.len() as i64;
        both.extend(randoms.iter_mut().flat_map(|random| random.normals(*width)));
        let (rows, drawn) = (rows as i64, (rows * *width) as i64);
        let both = upload(Tensor::f_from_slice(&both)?, self.device)?;
        let Sac { acting, learner, .. } = self;
        let actions = tch::no_grad(|| {
            acting.run(&both, |both| {
                let input = both.f_narrow(0, 0, split)?.f_view([rows, -1])?;
                let noise = both.f_narrow(0, split, drawn)?.f_view([rows, -1])?;
                Ok(learner.networks.draw(&input, &noise)?.actions)
            })
        })?;
        let len = values.len();
        Ok(actions.f_to_device(Device::Cpu)?.f_contiguous()?.f_copy_data(values, len)?)
    }

    fn update(
        &mut self,
        batch: &ReplayBatch,
        random: &mut Generator,
        group: &ProcessGroup,
    ) -> Result<(), TrainerError> {
        self.learner.update(batch, random, group)
    }

    fn close(
        &mut self,
        covered: bool,
        batch: &ReplayBatch,
        group: &ProcessGroup,
    ) -> Result<Option<u64>, TrainerError> {
        self.learner.close(covered, batch, group)
    }

    fn rate(&self) -> f64 {
        self.settings.policy_lr
    }

    fn losses(&mut self, _env_step: u64) -> Result<Vec<Stat>, TrainerError> {
        let stats = self.learner.stats()?;
        Ok(vec![
            Stat::loss("losses/qf_loss", stats.critic_loss),
            // Not every update has these; each was looked at when it was made.
            Stat::other("losses/actor_loss", stats.actor_loss),
            Stat::other("losses/alpha_loss", stats.alpha_loss),
            Stat::other("losses/alpha", stats.alpha),
            Stat::other("losses/qf1_values", stats.q_values),
        ])
    }

    fn save(&self, state: &mut State) -> Result<(), TrainerError> {
        let learner = &self.learner;
        state.arrays.extend(learner.networks.actor.arrays(MODEL)?);
        state.arrays.extend(learner.networks.critics.arrays(MODEL)?);
        state.arrays.extend(learner.networks.targets.arrays("target.")?);
        state.arrays.push(Array::of("log_alpha", &learner.log_alpha)?);
        for (name, Optimiser { adam, .. }) in optimisers(learner) {
            state.arrays.push(Array::of(&format!("adam.{name}.first"), &adam.first)?);
            state.arrays.push(Array::of(&format!("adam.{name}.second"), &adam.second)?);
        }
        let steps = optimisers(learner).map(|(_, part)| part.adam.steps);
        state.words.push(Words { name: "adam.steps".into(), values: steps.to_vec() });
        state.words.push(Words { name: "sac.updates".into(), values: vec![learner.updates()] });
        Ok(())
    }

    fn load(&mut self, restored: &RestoredState) -> Result<(), TrainerError> {
        let learner = &mut self.learner;
        restored.copy_to(MODEL, learner.networks.actor.named())?;
        restored.copy_to(MODEL, learner.networks.critics.named())?;
        restored.copy_to("target.", learner.networks.targets.named())?;
        restored.copy_to("", vec![("log_alpha".into(), learner.log_alpha.shallow_clone())])?;
        for (name, Optimiser { adam, .. }) in optimisers(learner) {
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
        Ok(())
    }
}

fn wrong_actions() -> TrainerError {
    TrainerError::failure("SAC was asked for actions that are not continuous", "")
}

impl Greedy for Sac {
    fn act(
        &mut self,
        observations: Observations<'_>,
        actions: &mut ActionBuffer,
    ) -> Result<(), TrainerError> {
        let ActionBuffer::Continuous { width, values } = actions else { return Err(wrong_actions()) };
        let len = values.len();
        let input = self.input(observations, len / (*width).max(1))?;
        let best = tch::no_grad(|| self.learner.networks.greedy(&input))?;
        Ok(best.f_to_device(Device::Cpu)?.f_contiguous()?.f_copy_data(values, len)?)
    }
}

fn optimisers(learner: &SacLearner) -> [(&'static str, &Optimiser); 3] {
    [("critics", &learner.critics), ("actor", &learner.actor), ("alpha", &learner.alpha)]
}
