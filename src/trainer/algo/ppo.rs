//! Proximal policy optimisation (Schulman et al. 2017) with the details of CleanRL's ppo.py, over all ranks.
//!
//! Owner: the training loop. Each rank shuffles its own rollout into minibatches of `local_batch / num_minibatches`; gradients are
//! averaged over the ranks, then clipped, then Adam steps. With equal local sizes the average of the ranks' gradients is the
//! gradient of the mean over all samples, except that advantages are normalised per rank and minibatch, as CleanRL does.
//!
//! Invariants:
//! - PPO-1: every rank makes the same number of updates: the target-KL decision uses the KL averaged over all ranks.
//! - PPO-2: weights stay equal bit by bit: [`Learned::chain`] is equal on all ranks if they were equal after every update it covers.

use super::adam::Adam;
use super::gae::Gae;
use crate::config::experiment::Ppo as Settings;
use crate::trainer::collect::Rollout;
use crate::trainer::dist::{Ddp, ProcessGroup, ReduceOp};
use crate::trainer::env::numpy_random::Generator;
use crate::trainer::error::TrainerError;
use crate::trainer::policy::ActorCritic;
use tch::{Device, Kind, TchError, Tensor};

/// What one iteration of learning did. Losses are those of the last minibatch, as CleanRL logs them.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Learned {
    /// Value loss.
    pub value_loss: f64,
    /// Clipped surrogate loss.
    pub policy_loss: f64,
    /// Mean entropy of the policy.
    pub entropy: f64,
    /// Mean of -log ratio.
    pub old_approx_kl: f64,
    /// Mean of ratio - 1 - log ratio (Schulman's low-variance estimate).
    pub approx_kl: f64,
    /// Share of clipped ratios, mean over all minibatches.
    pub clipfrac: f64,
    /// 1 - Var(return - value) / Var(return); NaN when returns do not vary.
    pub explained_variance: f64,
    /// Updates made.
    pub updates: u64,
    /// Hash over the weights' fingerprints after each covered update; 0 when none was covered.
    pub chain: u64,
}

impl Learned {
    /// CleanRL's scalar names with values, in a fixed order.
    pub fn losses(&self) -> [(&'static str, f64); 7] {
        [
            ("losses/value_loss", self.value_loss),
            ("losses/policy_loss", self.policy_loss),
            ("losses/entropy", self.entropy),
            ("losses/old_approx_kl", self.old_approx_kl),
            ("losses/approx_kl", self.approx_kl),
            ("losses/clipfrac", self.clipfrac),
            ("losses/explained_variance", self.explained_variance),
        ]
    }
}

/// What takes part in an update.
pub struct Parts<'a> {
    /// The networks.
    pub policy: &'a ActorCritic,
    /// The optimiser.
    pub adam: &'a mut Adam,
    /// Gradients over all ranks.
    pub ddp: &'a mut Ddp,
    /// The ranks.
    pub group: &'a ProcessGroup,
}

/// PPO's settings and buffers.
pub struct Ppo {
    settings: Settings,
    fingerprint_every: u64,
    minibatch: usize,
    width: usize,
    device: Device,
    advantages: Vec<f32>,
    returns: Vec<f32>,
    order: Vec<usize>,
    batch: Batch,
}

/// A whole rollout in the order of an epoch.
#[derive(Default)]
struct Batch {
    observations: Vec<f32>,
    actions: Vec<i64>,
    log_probs: Vec<f32>,
    values: Vec<f32>,
    advantages: Vec<f32>,
    returns: Vec<f32>,
}

/// A minibatch on the device: observations `[n, width]`, actions `[n, 1]`, the rest `[n]`.
struct Minibatch {
    observations: Tensor,
    actions: Tensor,
    log_probs: Tensor,
    values: Tensor,
    advantages: Tensor,
    returns: Tensor,
}

struct Losses {
    total: Tensor,
    policy: Tensor,
    value: Tensor,
    entropy: Tensor,
    log_ratio: Tensor,
}

impl Ppo {
    /// For rollouts of `local_batch` transitions with observations of `width` numbers. Fingerprints are taken after every
    /// `fingerprint_every`th update, never when 0.
    pub fn new(
        settings: Settings,
        fingerprint_every: u64,
        local_batch: usize,
        width: usize,
        device: Device,
    ) -> Result<Ppo, TrainerError> {
        let minibatches = settings.num_minibatches as usize;
        if minibatches == 0 || !local_batch.is_multiple_of(minibatches) || local_batch / minibatches < 2 {
            return Err(TrainerError::usage(
                format!(
                    "a rollout of {local_batch} transitions per rank cannot be cut into {minibatches} minibatches"
                ),
                "choose learn.num_minibatches so that it divides env.num_envs / world_size * collect.num_steps",
            ));
        }
        Ok(Ppo {
            settings,
            fingerprint_every,
            minibatch: local_batch / minibatches,
            width,
            device,
            advantages: vec![0.0; local_batch],
            returns: vec![0.0; local_batch],
            order: (0..local_batch).collect(),
            batch: Batch::default(),
        })
    }

    /// All epochs over one rollout. `updates_before` counts the run's updates so far; `moved` is called after each update.
    pub fn learn(
        &mut self,
        rollout: &Rollout,
        parts: Parts,
        learning_rate: f64,
        mut random: Generator,
        updates_before: u64,
        mut moved: impl FnMut(u64),
    ) -> Result<Learned, TrainerError> {
        let Parts { policy, adam, ddp, group } = parts;
        Gae {
            rewards: &rollout.rewards,
            values: &rollout.values,
            dones: &rollout.dones,
            next_values: &rollout.next_values,
            next_dones: &rollout.next_dones,
            gamma: self.settings.gamma as f32,
            lambda: self.settings.gae_lambda as f32,
        }
        .run(&mut self.advantages, &mut self.returns);
        let mut learned = Learned {
            explained_variance: explained_variance(&rollout.values, &self.returns),
            ..Learned::default()
        };
        self.order.iter_mut().enumerate().for_each(|(i, slot)| *slot = i);
        let (mut clipped, mut seen) = (0_usize, 0_usize);
        for _ in 0..self.settings.update_epochs {
            shuffle(&mut self.order, &mut random);
            self.fill_batch(rollout);
            for start in (0..rollout.len()).step_by(self.minibatch) {
                let losses = self.losses(policy, &self.minibatch_at(start)?)?;
                ddp.zero_grad();
                losses.total.f_backward()?;
                ddp.reduce(group)?;
                ddp.clip_grad_norm(self.settings.max_grad_norm);
                adam.step(policy.parameters(), learning_rate)?;
                learned.updates += 1;
                let updates = updates_before + learned.updates;
                if self.fingerprint_every > 0 && updates.is_multiple_of(self.fingerprint_every) {
                    learned.chain = chain(learned.chain, ddp.fingerprint());
                }
                clipped += self.note(&losses, &mut learned)?;
                seen += self.minibatch;
                moved(updates);
            }
            if self.settings.target_kl > 0.0 {
                let mut kl = [learned.approx_kl];
                group.all_reduce_f64(&mut kl, ReduceOp::Avg, "target_kl")?;
                if kl[0] > self.settings.target_kl {
                    break;
                }
            }
        }
        learned.clipfrac = clipped as f64 / seen.max(1) as f64;
        Ok(learned)
    }

    fn fill_batch(&mut self, rollout: &Rollout) {
        let Ppo { order, batch, width, .. } = self;
        batch.observations.clear();
        for i in order.iter() {
            batch.observations.extend_from_slice(&rollout.observations[i * *width..(i + 1) * *width]);
        }
        batch.actions.clear();
        batch.actions.extend(order.iter().map(|i| rollout.actions[*i]));
        let columns = [
            (&mut batch.log_probs, &rollout.log_probs),
            (&mut batch.values, &rollout.values),
            (&mut batch.advantages, &self.advantages),
            (&mut batch.returns, &self.returns),
        ];
        for (to, from) in columns {
            to.clear();
            to.extend(order.iter().map(|i| from[*i]));
        }
        if self.settings.norm_adv {
            batch.advantages.chunks_mut(self.minibatch).for_each(normalise);
        }
    }

    fn minibatch_at(&self, start: usize) -> Result<Minibatch, TchError> {
        let (rows, width) = (start..start + self.minibatch, self.width);
        let column = |values: &[f32]| Tensor::f_from_slice(&values[rows.clone()])?.f_to_device(self.device);
        let observations = &self.batch.observations[rows.start * width..rows.end * width];
        Ok(Minibatch {
            observations: Tensor::f_from_slice(observations)?
                .f_view([self.minibatch as i64, width as i64])?
                .f_to_device(self.device)?,
            actions: Tensor::f_from_slice(&self.batch.actions[rows.clone()])?
                .f_view([self.minibatch as i64, 1])?
                .f_to_device(self.device)?,
            log_probs: column(&self.batch.log_probs)?,
            values: column(&self.batch.values)?,
            advantages: column(&self.batch.advantages)?,
            returns: column(&self.batch.returns)?,
        })
    }

    fn losses(&self, policy: &ActorCritic, batch: &Minibatch) -> Result<Losses, TchError> {
        let clip = self.settings.clip_coef;
        let (logits, values) = policy.forward(&batch.observations)?;
        let log_all = logits.f_log_softmax(-1, None::<Kind>)?;
        let log_ratio = log_all.f_gather(-1, &batch.actions, false)?.f_view([-1])?.f_sub(&batch.log_probs)?;
        let ratio = log_ratio.f_exp()?;
        let gain = batch.advantages.f_mul(&ratio)?;
        let clipped_gain = batch.advantages.f_mul(&ratio.f_clamp(1.0 - clip, 1.0 + clip)?)?;
        let policy_loss = gain.f_minimum(&clipped_gain)?.f_mean(None::<Kind>)?.f_neg()?;
        let error = values.f_sub(&batch.returns)?.f_square()?;
        let error = if self.settings.clip_vloss {
            let moved = values.f_sub(&batch.values)?.f_clamp(-clip, clip)?;
            error.f_maximum(&batch.values.f_add(&moved)?.f_sub(&batch.returns)?.f_square()?)?
        } else {
            error
        };
        let value_loss = error.f_mean(None::<Kind>)?.f_mul_scalar(0.5)?;
        let rows = batch.actions.numel().max(1) as f64;
        let entropy = log_all.f_exp()?.f_mul(&log_all)?.f_sum(None::<Kind>)?.f_mul_scalar(-1.0 / rows)?;
        let total = policy_loss
            .f_sub(&entropy.f_mul_scalar(self.settings.ent_coef)?)?
            .f_add(&value_loss.f_mul_scalar(self.settings.vf_coef)?)?;
        Ok(Losses { total, policy: policy_loss, value: value_loss, entropy, log_ratio })
    }

    /// Notes a minibatch's numbers; returns how many ratios were clipped.
    fn note(&self, losses: &Losses, learned: &mut Learned) -> Result<usize, TchError> {
        let mut log_ratios = vec![0.0_f32; self.minibatch];
        losses
            .log_ratio
            .f_detach()?
            .f_to_device(Device::Cpu)?
            .f_copy_data(&mut log_ratios, self.minibatch)?;
        let n = self.minibatch as f64;
        let mean = |value: fn(f64) -> f64| log_ratios.iter().map(|l| value(f64::from(*l))).sum::<f64>() / n;
        learned.old_approx_kl = mean(|l| -l);
        learned.approx_kl = mean(|l| l.exp() - 1.0 - l);
        learned.policy_loss = losses.policy.f_double_value(&[])?;
        learned.value_loss = losses.value.f_double_value(&[])?;
        learned.entropy = losses.entropy.f_double_value(&[])?;
        let clip = self.settings.clip_coef;
        Ok(log_ratios.iter().filter(|l| (f64::from(**l).exp() - 1.0).abs() > clip).count())
    }
}

/// CleanRL's annealing: `1 - done / num_iterations` of the rate, where `done` iterations came before.
pub fn annealed(settings: &Settings, done: u64, num_iterations: Option<u64>) -> f64 {
    match num_iterations {
        Some(all) if settings.anneal_lr => settings.learning_rate * (1.0 - done as f64 / all.max(1) as f64),
        _ => settings.learning_rate,
    }
}

fn chain(before: u64, fingerprint: u64) -> u64 {
    (before.rotate_left(5) ^ fingerprint).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

fn shuffle(order: &mut [usize], random: &mut Generator) {
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i as u64 + 1) as usize);
    }
}

/// To mean 0 and (unbiased) standard deviation 1, with CleanRL's 1e-8.
fn normalise(values: &mut [f32]) {
    let n = values.len() as f64;
    let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
    let variance = values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let scale = 1.0 / (variance.sqrt() + 1e-8);
    values.iter_mut().for_each(|v| *v = ((f64::from(*v) - mean) * scale) as f32);
}

fn explained_variance(values: &[f32], returns: &[f32]) -> f64 {
    let variance = |values: &mut dyn Iterator<Item = f64>| {
        let values: Vec<f64> = values.collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n
    };
    let all = variance(&mut returns.iter().map(|r| f64::from(*r)));
    let left = variance(&mut returns.iter().zip(values).map(|(r, v)| f64::from(*r) - f64::from(*v)));
    if all == 0.0 { f64::NAN } else { 1.0 - left / all }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainer::env::Spec;
    use crate::trainer::policy::MlpFast;
    use crate::trainer::policy::actor_critic::Layout;
    use crate::trainer::seeds::{Purpose, Seeds};

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-5 * b.abs().max(1.0)
    }

    /// The losses, term by term in f64, from the definition.
    #[test]
    fn losses_equal_their_definition() {
        let layout = Layout::new(&Spec::discrete(4, 2), &[16]);
        let seeds = Seeds::new(2);
        let mut random = seeds.generator(Purpose::Shuffle, 0, 0);
        let weights: Vec<f32> = (0..layout.len).map(|_| 0.5 * random.normal() as f32).collect();
        let mut policy = ActorCritic::new(layout.clone(), &seeds, Device::Cpu).unwrap();
        policy.copy_from(&weights).unwrap();
        let mut fast = MlpFast::new(&layout);
        fast.load(&weights);
        let n = 64;
        let mut draw = |scale: f64, count: usize| -> Vec<f32> {
            (0..count).map(|_| (scale * random.normal()) as f32).collect()
        };
        let (observations, old_log, old_values, advantages, returns) =
            (draw(1.0, 4 * n), draw(0.4, n), draw(0.5, n), draw(1.0, n), draw(1.0, n));
        let old_log: Vec<f32> = old_log.iter().map(|l| l - 0.7).collect();
        let actions: Vec<i64> = (0..n as i64).map(|i| i % 2).collect();
        for clip_vloss in [true, false] {
            let settings = Settings { clip_vloss, num_minibatches: 1, ..Settings::default() };
            let ppo = Ppo::new(settings.clone(), 0, n, 4, Device::Cpu).unwrap();
            let minibatch = Minibatch {
                observations: Tensor::from_slice(&observations).view([n as i64, 4]),
                actions: Tensor::from_slice(&actions).view([n as i64, 1]),
                log_probs: Tensor::from_slice(&old_log),
                values: Tensor::from_slice(&old_values),
                advantages: Tensor::from_slice(&advantages),
                returns: Tensor::from_slice(&returns),
            };
            let losses = ppo.losses(&policy, &minibatch).unwrap();
            let (mut surrogate, mut value, mut entropy, mut kl, mut clipped) = (0.0, 0.0, 0.0, 0.0, 0);
            for i in 0..n {
                let observation = &observations[4 * i..4 * i + 4];
                let logits: Vec<f64> = fast.logits(observation).iter().map(|l| f64::from(*l)).collect();
                let total = logits.iter().map(|l| l.exp()).sum::<f64>().ln();
                let log_ratio = logits[actions[i] as usize] - total - f64::from(old_log[i]);
                let (ratio, advantage) = (log_ratio.exp(), f64::from(advantages[i]));
                surrogate += (-advantage * ratio).max(-advantage * ratio.clamp(0.8, 1.2));
                kl += ratio - 1.0 - log_ratio;
                clipped += usize::from((ratio - 1.0).abs() > 0.2);
                let (new, old, goal) =
                    (f64::from(fast.value(observation)), f64::from(old_values[i]), f64::from(returns[i]));
                let unclipped = (new - goal).powi(2);
                let limited = (old + (new - old).clamp(-0.2, 0.2) - goal).powi(2);
                value += if clip_vloss { unclipped.max(limited) } else { unclipped };
                entropy -= logits.iter().map(|l| (l - total).exp() * (l - total)).sum::<f64>();
            }
            let n = n as f64;
            let (surrogate, value, entropy) = (surrogate / n, 0.5 * value / n, entropy / n);
            assert!(close(losses.policy.double_value(&[]), surrogate));
            assert!(close(losses.value.double_value(&[]), value));
            assert!(close(losses.entropy.double_value(&[]), entropy));
            assert!(close(losses.total.double_value(&[]), surrogate - 0.01 * entropy + 0.5 * value));
            let mut learned = Learned::default();
            assert_eq!(ppo.note(&losses, &mut learned).unwrap(), clipped);
            assert!(clipped > 5 && close(learned.approx_kl, kl / n));
        }
    }

    #[test]
    fn normalisation_uses_the_unbiased_deviation() {
        let mut values = [1.0, 2.0, 3.0, 4.0];
        normalise(&mut values);
        // Deviation of 1..4 with n - 1 is 1.2909944.
        for (value, wanted) in values.iter().zip([-1.161_895, -0.387_298_35, 0.387_298_35, 1.161_895]) {
            assert!((value - wanted).abs() < 1e-6);
        }
    }

    #[test]
    fn a_shuffle_is_a_permutation_that_differs_per_iteration() {
        let seeds = Seeds::new(0);
        let shuffled = |epoch| {
            let mut order: Vec<usize> = (0..100).collect();
            shuffle(&mut order, &mut seeds.generator(Purpose::Shuffle, 0, epoch));
            order
        };
        let (first, second) = (shuffled(0), shuffled(1));
        assert_ne!(first, second);
        assert_eq!(first, shuffled(0));
        let mut sorted = first;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn the_rate_is_annealed_as_in_cleanrl() {
        let settings = Settings::default();
        assert_eq!(annealed(&settings, 0, Some(976)), 2.5e-4);
        assert!((annealed(&settings, 488, Some(976)) - 1.25e-4).abs() < 1e-18);
        assert!(annealed(&settings, 975, Some(976)) > 0.0);
        assert_eq!(annealed(&settings, 488, None), 2.5e-4);
        assert_eq!(annealed(&Settings { anneal_lr: false, ..settings }, 488, Some(976)), 2.5e-4);
    }

    #[test]
    fn explained_variance_of_a_perfect_and_a_useless_critic() {
        assert_eq!(explained_variance(&[1.0, 2.0], &[1.0, 2.0]), 1.0);
        assert_eq!(explained_variance(&[0.0, 0.0], &[1.0, 2.0]), 0.0);
        assert!(explained_variance(&[0.0, 1.0], &[1.0, 1.0]).is_nan());
    }

    #[test]
    fn a_chain_notices_one_differing_update() {
        let run = |fingerprints: &[u64]| fingerprints.iter().fold(0, |c, f| chain(c, *f));
        assert_eq!(run(&[5, 6, 7]), run(&[5, 6, 7]));
        assert_ne!(run(&[5, 6, 7]), run(&[5, 9, 7]));
        assert_ne!(run(&[5, 6, 7]), run(&[6, 5, 7]));
    }

    #[test]
    fn sizes_that_do_not_divide_are_refused() {
        let settings = Settings { num_minibatches: 3, ..Settings::default() };
        let error = Ppo::new(settings, 0, 128, 4, Device::Cpu).err().unwrap();
        assert!(error.usage && error.hint.contains("num_minibatches"));
    }
}
