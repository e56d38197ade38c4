//! On-policy updates by the native [kernels](rankdeck_kernel), over the flat buffers of parameters and
//! gradients.
//!
//! Epochs are those of [`super::batch::Batches`], and updates are the same up to rounding: averaging over the
//! ranks, clipping and stepping share their code. After the first iteration nothing is allocated.

use super::batch::{Batches, EnvOrder, normalize, shuffle};
use super::on_policy::OnPolicyLearner;
use super::ppo_loss::PpoLoss;
use super::{BuildContext, IterationStats, ScalarStat, StepContext};
use crate::collect::rollout::{ActionBuffer, Rollout};
use crate::distributed::ProcessGroup;
use crate::env::{Actions, ObservationType, Observations, Spec};
use crate::error::TrainerError;
use crate::policy::actor_critic::{DenseActorCritic, Layout, Terms};
use crate::policy::trunk::Rows;
use rankdeck_kernel::loss::{Distance, Gain, Goals, Surrogate};
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_types::experiment::{Env, Experiment, Kernel};
use rankdeck_types::learn::{NormAdv, ValueLoss};
use std::ops::ControlFlow;
use tch::Device;

fn unsupported() -> TrainerError {
    TrainerError::usage(
        "policy.kernel = \"native\" needs fully connected networks on the CPU, actions of one part and no action masks",
        "set policy.kernel = \"auto\"",
    )
}

/// Refuses actions for which the native kernels are forced and do not exist.
pub(crate) fn check(experiment: &Experiment, spec: &Spec) -> Result<(), TrainerError> {
    match experiment.policy.kernel {
        Kernel::Native if spec.actions.sizes().len() > 1 => Err(unsupported()),
        _ => Ok(()),
    }
}

/// How updates are computed; the results are equal up to rounding.
pub(crate) enum Engine {
    /// Autograd: any network, any device.
    Libtorch(Batches),
    /// Hand-written passes.
    CpuKernels(Box<CpuKernels>),
}

impl Engine {
    /// Selects the native kernels where they are supported and enabled; see [`CpuKernels::new`].
    pub(crate) fn new(
        layout: &Layout,
        build: &BuildContext<'_>,
        normalize: NormAdv,
        minibatch: usize,
    ) -> Result<Engine, TrainerError> {
        Ok(match CpuKernels::new(layout, build, normalize, minibatch)? {
            Some(native) => Engine::CpuKernels(Box::new(native)),
            None => Engine::Libtorch(Batches::new(
                normalize,
                minibatch,
                build.device,
                Rows::of(&build.experiment.policy),
            )),
        })
    }
}

/// Networks, and one epoch of a rollout in its order.
pub(crate) struct CpuKernels {
    networks: DenseActorCritic,
    normalize: NormAdv,
    minibatch: usize,
    order: Vec<usize>,
    /// Of policies with memory.
    envs: Option<EnvOrder>,
    epoch: Epoch,
}

/// Columns of a rollout in the order of an epoch.
#[derive(Default)]
struct Epoch {
    width: usize,
    observations: Vec<f32>,
    actions: Option<ActionBuffer>,
    log_probs: Vec<f32>,
    values: Vec<f32>,
    advantages: Vec<f32>,
    returns: Vec<f32>,
    weights: Vec<f32>,
    /// What each row counts in its minibatch's mean.
    shares: Vec<f32>,
    /// Of policies with memory: states before the first step, `[envs][state_len]`, and resets of each row.
    states: Vec<f32>,
    resets: Vec<bool>,
}

/// Numbers of one minibatch, as CleanRL logs them.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct KernelLossStats {
    surrogate: Surrogate,
    value_loss: f64,
    entropy: f64,
    /// Sum of the clipped shares of all minibatches.
    clipped: f64,
    count: u64,
}

impl CpuKernels {
    /// `None` where `policy.kernel` is `libtorch`, and where the passes do not exist: on GPUs, with
    /// convolutions, for pixels, for actions of several parts, with masks. An error where they do not exist and
    /// `policy.kernel` is `native`.
    fn new(
        layout: &Layout,
        build: &BuildContext<'_>,
        normalize: NormAdv,
        minibatch: usize,
    ) -> Result<Option<CpuKernels>, TrainerError> {
        let kernel = build.experiment.policy.kernel;
        let pixels = build.spec.observation_type == ObservationType::U8;
        let masked = build.experiment.env.as_ref().is_some_and(Env::uses_masks);
        let exists = build.device == Device::Cpu && !pixels && !masked && layout.sizes.len() <= 1;
        let networks = DenseActorCritic::new(layout, minibatch).filter(|_| exists);
        match networks {
            Some(networks) if kernel != Kernel::Libtorch => Ok(Some(CpuKernels {
                networks,
                normalize,
                minibatch: minibatch.max(1),
                order: (0..build.sizes.local_batch).collect(),
                envs: layout.memory.is_some().then(|| EnvOrder::new(build.sizes.num_steps as usize)),
                epoch: Epoch::default(),
            })),
            None if kernel == Kernel::Native => Err(unsupported()),
            _ => Ok(None),
        }
    }

    /// Begins an iteration: what follows depends on this iteration's stream only.
    pub(crate) fn start_iteration(&mut self) {
        self.order.iter_mut().enumerate().for_each(|(i, slot)| *slot = i);
        if let Some(envs) = &mut self.envs {
            envs.restart(self.order.len());
        }
    }

    /// Minibatches of the epoch.
    pub(crate) fn count(&self) -> usize {
        self.order.len() / self.minibatch
    }

    /// Begins an epoch: draws its order as [`super::batch::Batches::start_epoch`] does, and brings the
    /// rollout into it.
    pub(crate) fn start_epoch(
        &mut self,
        rollout: &Rollout,
        advantages: &[f32],
        returns: &[f32],
        random: &mut Generator,
        group: &ProcessGroup,
    ) -> Result<(), TrainerError> {
        if self.minibatch < self.order.len() {
            match &mut self.envs {
                None => shuffle(&mut self.order, random),
                Some(envs) => envs.shuffle(self.minibatch, random, &mut self.order),
            }
        }
        let CpuKernels { order, envs, epoch, .. } = self;
        if let Some(envs) = envs {
            envs.gather(rollout, &mut epoch.states);
            epoch.resets.clear();
            epoch.resets.extend(order.iter().map(|i| rollout.resets[*i]));
        }
        let width = rollout.width();
        epoch.width = width;
        epoch.observations.clear();
        let Observations::F32(rows) = rollout.observations.view() else {
            return Err(TrainerError::failure("the native kernels do not support pixels", ""));
        };
        for i in order.iter() {
            epoch.observations.extend_from_slice(&rows[i * width..(i + 1) * width]);
        }
        gather_actions(&mut epoch.actions, &rollout.actions, order);
        let columns = [
            (&mut epoch.log_probs, rollout.log_probs.as_slice()),
            (&mut epoch.values, &rollout.values),
            (&mut epoch.advantages, advantages),
            (&mut epoch.returns, returns),
            (&mut epoch.weights, &rollout.weights),
        ];
        for (to, from) in columns {
            to.clear();
            to.extend(order.iter().map(|i| from[*i]));
        }
        epoch.shares.clear();
        epoch.shares.extend(epoch.weights.iter().map(|weight| weight / self.minibatch as f32));
        normalize(self.normalize, &mut epoch.advantages, &epoch.weights, self.minibatch, group)
    }

    /// One update on minibatch `k` of the epoch; `clipped`: by PPO's ratio, else the plain policy gradient.
    /// Breaks where the iteration is left.
    pub(crate) fn update(
        &mut self,
        k: usize,
        (loss, clipped): (&PpoLoss, bool),
        on: &mut OnPolicyLearner,
        ctx: &StepContext<'_>,
        stats: &mut IterationStats,
        losses: &mut KernelLossStats,
    ) -> Result<ControlFlow<()>, TrainerError> {
        let CpuKernels { networks, epoch, minibatch, envs, .. } = self;
        let rows = k * *minibatch..(k + 1) * *minibatch;
        let actions = match &epoch.actions {
            Some(ActionBuffer::Discrete(actions)) => Actions::Discrete(&actions[rows.clone()]),
            Some(ActionBuffer::MultiDiscrete { width, values }) => {
                Actions::Discrete(&values[rows.start * width..rows.end * width])
            }
            Some(ActionBuffer::Continuous { width, values }) => {
                Actions::Continuous(&values[rows.start * width..rows.end * width])
            }
            None => {
                return Err(TrainerError::failure("update called before the first epoch of a rollout", ""));
            }
        };
        let shares = &epoch.shares[rows.clone()];
        let clip = loss.clip_coef as f32;
        let old_log_probs = &epoch.log_probs[rows.clone()];
        let batch = Terms {
            gain: if clipped { Gain::Clipped { old_log_probs, clip } } else { Gain::Plain },
            advantages: &epoch.advantages[rows.clone()],
            goals: Goals {
                old_values: &epoch.values[rows.clone()],
                returns: &epoch.returns[rows.clone()],
                shares,
            },
            value_clip: loss.clip_vloss.then_some(clip),
            distance: match loss.value_loss {
                ValueLoss::Squared => Distance::Squared,
                ValueLoss::Huber => Distance::Huber,
            },
            value_weight: loss.vf_coef as f32,
        };
        let observations = &epoch.observations[rows.start * epoch.width..rows.end * epoch.width];
        let (mut states, mut resets): (Vec<f32>, &[bool]) = (Vec::new(), &[]);
        if let Some(envs) = envs {
            let each = epoch.states.len() / envs.count().max(1);
            let own = envs.own(k, *minibatch);
            states.extend_from_slice(&epoch.states[own.start * each..own.end * each]);
            resets = &epoch.resets[rows];
        }
        let pass = |parameters: &[f32], gradient: &mut [f32]| {
            networks.load(parameters);
            networks.forward(observations, &mut states, resets);
            let (_, entropy) = networks.log_probs(actions, shares);
            let (surrogate, value_loss) = networks.losses(batch);
            networks.backward(actions, shares, -loss.ent_coef as f32, gradient);
            losses.clipped += surrogate.clipped;
            losses.count += 1;
            (losses.surrogate, losses.value_loss, losses.entropy) = (surrogate, value_loss, entropy);
            surrogate.loss + value_loss + entropy
        };
        // SAFETY: the hand-written pass knows no tensors.
        unsafe { on.update_flat(ctx, stats, pass) }
    }
}

impl KernelLossStats {
    /// Mean of ratio - 1 - log ratio over the last minibatch.
    pub(crate) fn approx_kl(&self) -> f64 {
        self.surrogate.approx_kl
    }

    /// Value loss, policy loss and entropy of the last minibatch, by CleanRL's names.
    pub(crate) fn terms(&self) -> [ScalarStat; 3] {
        [
            ScalarStat::loss("losses/value_loss", self.value_loss),
            ScalarStat::loss("losses/policy_loss", self.surrogate.loss),
            ScalarStat::other("losses/entropy", self.entropy),
        ]
    }

    /// The names and order of [`super::ppo_loss::LossStats::stats`].
    pub(crate) fn stats(&self) -> Vec<ScalarStat> {
        let ratios = [
            ScalarStat::other("losses/old_approx_kl", self.surrogate.old_approx_kl),
            ScalarStat::other("losses/approx_kl", self.surrogate.approx_kl),
            ScalarStat::other("losses/clipfrac", self.clipped / self.count.max(1) as f64),
        ];
        self.terms().into_iter().chain(ratios).collect()
    }
}

fn gather_actions(to: &mut Option<ActionBuffer>, from: &ActionBuffer, order: &[usize]) {
    match (to.as_mut(), from) {
        (Some(ActionBuffer::Discrete(to)), ActionBuffer::Discrete(from)) => {
            to.clear();
            to.extend(order.iter().map(|i| from[*i]));
        }
        (Some(ActionBuffer::Continuous { values: to, .. }), ActionBuffer::Continuous { width, values }) => {
            to.clear();
            order.iter().for_each(|i| to.extend_from_slice(&values[i * width..(i + 1) * width]));
        }
        (
            Some(ActionBuffer::MultiDiscrete { values: to, .. }),
            ActionBuffer::MultiDiscrete { width, values },
        ) => {
            to.clear();
            order.iter().for_each(|i| to.extend_from_slice(&values[i * width..(i + 1) * width]));
        }
        _ => {
            *to = Some(match from {
                ActionBuffer::Discrete(_) => ActionBuffer::Discrete(Vec::new()),
                ActionBuffer::MultiDiscrete { width, .. } => {
                    ActionBuffer::MultiDiscrete { width: *width, values: Vec::new() }
                }
                ActionBuffer::Continuous { width, .. } => {
                    ActionBuffer::Continuous { width: *width, values: Vec::new() }
                }
            });
            gather_actions(to, from, order);
        }
    }
}
