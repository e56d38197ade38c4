//! A step of one group of environments, from what the policy sees to what came of it.

use super::{Actor, Collector, Group, RewardConfig, clip};
use crate::env::{ObservationBuffer, Observations};
use crate::error::TrainerError;
use crate::inject;
use crate::policy::distribution::{sample_categorical, sample_gaussian};
use crate::rollout::{ActionBuffer, rows};
use rankdeck_kernel::numpy_random::Generator;
use std::ops::Range;

impl Collector {
    /// Lets the policy act on what a group shows, and begins its step.
    pub(super) fn begin(
        &mut self,
        group: usize,
        (iteration, step): (u64, usize),
        actor: &mut Actor,
        randoms: &mut [Generator],
    ) -> Result<(), TrainerError> {
        let own = self.groups[group].rows(step * self.envs);
        self.observe(group, own.clone())?;
        let (width, whole) = (self.rollout.width(), self.rollout.len());
        let Group { first, scores, actions, .. } = &mut self.groups[group];
        let seen = rows(self.rollout.observations.view(), own.start * width..own.end * width);
        actor.acting.run_rollout(seen, (own.start, whole), scores, &mut self.rollout.values[own.clone()])?;
        let envs = *first..*first + own.len();
        self.rollout.dones[own.clone()].copy_from_slice(&self.next_dones[envs.clone()]);
        let scores = scores.chunks_exact(actor.space.width().max(1));
        for (i, (scores, random)) in scores.zip(&mut randoms[envs]).enumerate() {
            self.rollout.log_probs[own.start + i] = match actions {
                ActionBuffer::Discrete(actions) => {
                    let (action, log_prob) =
                        sample_categorical(scores, &mut self.scratch.probabilities, random);
                    actions[i] = action;
                    log_prob
                }
                ActionBuffer::Continuous { width, values } => {
                    let action = &mut values[i * *width..(i + 1) * *width];
                    sample_gaussian(scores, &actor.log_std, random, action)
                }
            };
        }
        self.rollout.actions.put(own.start, actions);
        self.refuse_broken_policy(own, iteration * self.rollout.steps as u64 + step as u64)?;
        let Group { env, outcome, actions, clipped, .. } = &mut self.groups[group];
        clip(actions, &actor.space, clipped);
        inject::here(inject::Hook::EnvStep);
        Ok(env.begin(clipped.view(), outcome)?)
    }

    /// Waits for a group's step, and takes what came of it.
    pub(super) fn finish(
        &mut self,
        group: usize,
        (iteration, step): (u64, usize),
        actor: &mut Actor,
    ) -> Result<(), TrainerError> {
        let Group { env, outcome, .. } = &mut self.groups[group];
        env.finish(outcome)?;
        self.note(group, (iteration * self.rollout.steps as u64 + step as u64, step), actor)
    }

    /// Ends the steps that groups before `last` have begun: the rollout is left.
    pub(super) fn rest(&mut self, last: usize) -> Result<(), TrainerError> {
        for Group { env, outcome, .. } in &mut self.groups[..last] {
            env.finish(outcome)?;
        }
        Ok(())
    }

    /// Writes what the policy sees of a group into these rows of the rollout.
    pub(super) fn observe(&mut self, group: usize, own: Range<usize>) -> Result<(), TrainerError> {
        let width = self.rollout.width();
        let range = own.start * width..own.end * width;
        match (&mut self.rollout.observations, self.groups[group].env.observations()) {
            (ObservationBuffer::F32(to), Observations::F32(from)) => match &mut self.observations {
                None => to[range].copy_from_slice(from),
                Some(running) => {
                    let clip = self.reward_config.collect.clip_observations;
                    for (to, from) in to[range].chunks_exact_mut(width).zip(from.chunks_exact(width)) {
                        running.note(from.iter().map(|x| f64::from(*x)));
                        running.normalise(from, clip, to);
                    }
                }
            },
            (ObservationBuffer::U8(to), Observations::U8(from)) => to[range].copy_from_slice(from),
            _ => return Err(TrainerError::failure("the environments' observations changed their type", "")),
        }
        Ok(())
    }

    /// Takes the outcome of a group's step, which is step `number` of the run and `step` of the rollout, into
    /// rollout and counters.
    fn note(
        &mut self,
        group: usize,
        (number, step): (u64, usize),
        actor: &mut Actor,
    ) -> Result<(), TrainerError> {
        let width = self.rollout.width();
        let RewardConfig { collect, gamma, bootstrap_truncated } = &self.reward_config;
        let own = self.groups[group].rows(step * self.envs);
        let Group { outcome, first, .. } = &self.groups[group];
        for (i, row) in own.enumerate() {
            let (env, valid, done) = (first + i, outcome.valid[i], outcome.done(i));
            self.rollout.weights[row] = f32::from(u8::from(valid));
            let reward = f64::from(outcome.rewards[i]) * collect.reward_scale;
            self.rollout.rewards[row] = reward as f32;
            if let Some(returns) = self.returns.as_mut().filter(|_| valid) {
                self.discounted[env] = self.discounted[env] * gamma + reward;
                returns.note(std::iter::once(self.discounted[env]));
                self.discounted[env] *= f64::from(u8::from(!done));
            }
            self.next_dones[env] = f32::from(u8::from(done));
            self.counters.env_step += u64::from(valid);
            self.counters.samples += u64::from(valid);
            if *bootstrap_truncated && valid && outcome.truncated[i] && !outcome.terminated[i] {
                let last = rows(outcome.final_observations.view(), i * width..(i + 1) * width);
                let last = match (&self.observations, last) {
                    (Some(running), Observations::F32(values)) => {
                        running.normalise(values, collect.clip_observations, &mut self.scratch.row);
                        Observations::F32(&self.scratch.row)
                    }
                    _ => last,
                };
                let value = &mut self.rollout.final_values[row..=row];
                actor.acting.run(last, &mut self.scratch.scores, value)?;
            }
        }
        for episode in &outcome.episodes {
            self.interval.add(number, episode.episode_return, episode.length);
            self.counters.episodes += 1;
        }
        Ok(())
    }

    /// The policy must say something about every observation of these rows.
    fn refuse_broken_policy(&self, own: Range<usize>, number: u64) -> Result<(), TrainerError> {
        let envs = self.first_env + (own.start % self.envs.max(1)) as u32..;
        let said = self.rollout.values[own.clone()].iter().zip(&self.rollout.log_probs[own]);
        match said.zip(envs).find(|((value, log_prob), _)| !(*value + *log_prob).is_finite()) {
            None => Ok(()),
            Some(((value, log_prob), env)) => Err(TrainerError::diverged(
                format!(
                    "the policy's answer to environment {env} in step {number} of the run is not finite: value {value}, \
                     log-probability {log_prob}"
                ),
                "the weights are broken: resume from an earlier checkpoint, with a lower learning rate",
            )),
        }
    }
}
