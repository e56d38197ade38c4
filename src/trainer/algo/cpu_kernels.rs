//! On-policy updates by the native [kernels](rankdeck_kernel), over the flat buffers of parameters and
//! gradients.
//!
//! Epochs are those of [`super::batch::Batches`], and updates are the same up to rounding: averaging over the
//! ranks, clipping and stepping share their code. After the first iteration nothing is allocated.
//!
//! With `distributed.invariant`, a minibatch has as many transitions of each block of environments, drawn by the
//! block's own stream, and each block has a pass of its own, whose gradients and losses are added up in the order of
//! [`super::block_sums`].

use super::batch::{Batches, EnvOrder, advantage_sums, normalize, scale, shuffle};
use super::block_sums::{BlockGradients, sum_rows};
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
use rankdeck_kernel::seeds::{Purpose, Seeds};
use rankdeck_kernel::trace;
use rankdeck_types::blocks::BlockShare;
use rankdeck_types::experiment::{Env, Experiment, Kernel};
use rankdeck_types::learn::{NormAdv, ValueLoss};
use std::ops::{ControlFlow, Range};
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
        _ if experiment.distributed.invariant && spec.actions.sizes().len() > 1 => Err(TrainerError::usage(
            format!(
                "`distributed.invariant` cannot be kept: actions of {} parts are learned in libtorch, whose order of additions depends on the size of a rank's batch",
                spec.actions.sizes().len()
            ),
            "set distributed.invariant = false, or choose an env.id with actions of one part",
        )),
        _ => Ok(()),
    }
}

/// How updates are computed; the results are equal up to rounding.
#[expect(clippy::large_enum_variant, reason = "a rank has one of it")]
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
    blocks: Option<BlockPasses>,
}

/// How the blocks of this rank make an update.
struct BlockPasses {
    share: BlockShare,
    seeds: Seeds,
    /// Each block's transitions in the order of the epoch, and the stream that draws it.
    orders: Vec<(Vec<usize>, Generator)>,
    gradients: BlockGradients,
    /// Each block's part of the losses.
    losses: Vec<KernelLossStats>,
}

impl BlockPasses {
    fn new(share: BlockShare, seeds: Seeds) -> BlockPasses {
        BlockPasses {
            share,
            seeds,
            orders: Vec::new(),
            gradients: BlockGradients::new(share),
            losses: Vec::new(),
        }
    }

    /// Rows of a rollout of `rows` rows, `[steps][envs]`, block by block, and each block's stream.
    fn start_iteration(&mut self, iteration: u64, rows: usize) {
        let BlockShare { first, count, envs, .. } = self.share;
        let (each, all) = (envs as usize, (count * envs).max(1) as usize);
        let steps = rows / all;
        let order = |block: u32| {
            let from = (block - first) as usize * each;
            let rows: Vec<usize> =
                (0..steps).flat_map(|step| (0..each).map(move |env| step * all + from + env)).collect();
            (rows, self.seeds.generator(Purpose::Shuffle, block, iteration))
        };
        self.orders = (first..first + count).map(order).collect();
        self.losses = vec![KernelLossStats::default(); count as usize];
    }

    /// Draws an epoch and writes it, minibatch by minibatch and block by block.
    fn draw(&mut self, minibatches: usize, to: &mut Vec<usize>) {
        to.clear();
        if minibatches > 1 {
            self.orders.iter_mut().for_each(|(order, random)| shuffle(order, random));
        }
        for k in 0..minibatches {
            for (order, _) in &self.orders {
                let each = order.len() / minibatches;
                to.extend_from_slice(&order[k * each..(k + 1) * each]);
            }
        }
    }

    /// Brings each minibatch's advantages to mean 0 and deviation 1, over the blocks of all ranks.
    fn normalize(
        &self,
        values: &mut [f32],
        weights: &[f32],
        minibatch: usize,
        group: &ProcessGroup,
    ) -> Result<(), TrainerError> {
        let each = (minibatch / (self.share.count as usize).max(1)).max(1);
        let mut rows = vec![Vec::new(); self.share.count as usize];
        let parts = values.chunks(each).zip(weights.chunks(each)).map(advantage_sums);
        parts.enumerate().for_each(|(i, sums)| rows[i % self.share.count as usize].extend(sums));
        let sums = sum_rows(self.share, &rows, group, "advantages")?;
        for (values, sums) in values.chunks_mut(minibatch).zip(sums.as_chunks::<3>().0) {
            scale(values, *sums);
        }
        Ok(())
    }
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
                blocks: build.sizes.blocks.map(|share| BlockPasses::new(share, build.seeds)),
            })),
            None if kernel == Kernel::Native => Err(unsupported()),
            _ if build.sizes.blocks.is_some() => Err(TrainerError::usage(
                "`distributed.invariant` cannot be kept: the native kernels do not support these networks",
                "set distributed.invariant = false, or policy.network = \"mlp\"",
            )),
            _ => Ok(None),
        }
    }

    /// Begins an iteration: what follows depends on this iteration's stream only.
    pub(crate) fn start_iteration(&mut self, iteration: u64) {
        self.order.iter_mut().enumerate().for_each(|(i, slot)| *slot = i);
        if let Some(envs) = &mut self.envs {
            envs.restart(self.order.len());
        }
        if let Some(blocks) = &mut self.blocks {
            blocks.start_iteration(iteration, self.order.len());
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
        let minibatches = self.count();
        match (&mut self.blocks, &mut self.envs) {
            (Some(blocks), _) => blocks.draw(minibatches, &mut self.order),
            (None, Some(envs)) if minibatches > 1 => {
                envs.shuffle(self.minibatch, random, &mut self.order);
            }
            (None, None) if minibatches > 1 => shuffle(&mut self.order, random),
            _ => {}
        }
        let CpuKernels { order, envs, epoch, blocks, .. } = self;
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
        // The ranks' means are averaged; sums over blocks are not.
        let ranks = blocks.as_ref().map_or(1, |blocks| blocks.share.world() as usize);
        let rows = (self.minibatch * ranks) as f32;
        epoch.shares.extend(epoch.weights.iter().map(|weight| weight / rows));
        match blocks {
            Some(_) if self.normalize == NormAdv::Off => Ok(()),
            Some(blocks) => blocks.normalize(&mut epoch.advantages, &epoch.weights, self.minibatch, group),
            None => normalize(self.normalize, &mut epoch.advantages, &epoch.weights, self.minibatch, group),
        }
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
        let CpuKernels { networks, epoch, minibatch, envs, blocks, .. } = self;
        let start = k * *minibatch;
        match blocks {
            None => {
                let rows = start..start + *minibatch;
                let (mut states, mut resets) = (Vec::new(), 0..0);
                if let Some(envs) = envs {
                    let each = epoch.states.len() / envs.count().max(1);
                    let own = envs.own(k, *minibatch);
                    states.extend_from_slice(&epoch.states[own.start * each..own.end * each]);
                    resets = rows.clone();
                }
                let pass = |parameters: &[f32], gradient: &mut [f32]| {
                    networks.load(parameters);
                    let memory = (states.as_mut_slice(), &epoch.resets[resets]);
                    epoch.pass(rows, (loss, clipped), networks, memory, losses, gradient)
                };
                // SAFETY: the hand-written pass knows no tensors.
                unsafe { on.update_flat(ctx, stats, pass) }
            }
            Some(BlockPasses { share, gradients, losses, .. }) => {
                let each = *minibatch / (share.count as usize).max(1);
                let pass = |block: usize, parameters: &[f32], gradient: &mut [f32]| {
                    if block == 0 {
                        networks.load(parameters);
                    }
                    let rows = start + block * each..start + (block + 1) * each;
                    epoch.pass(rows, (loss, clipped), networks, (&mut [], &[]), &mut losses[block], gradient)
                };
                // SAFETY: the hand-written pass knows no tensors.
                unsafe { on.update_blocks(ctx, stats, gradients, share.count as usize, pass) }
            }
        }
    }

    /// The KL estimate of the last minibatch over the blocks of all ranks (one collective, tag `target_kl`);
    /// `None` without blocks.
    pub(crate) fn approx_kl_over_blocks(&self, group: &ProcessGroup) -> Result<Option<f64>, TrainerError> {
        let Some(blocks) = &self.blocks else { return Ok(None) };
        let rows: Vec<Vec<f64>> = blocks.losses.iter().map(|losses| vec![losses.approx_kl()]).collect();
        Ok(sum_rows(blocks.share, &rows, group, "target_kl")?.first().copied())
    }

    /// The numbers of an iteration: with blocks, those of all ranks (one collective, tag `losses`), else
    /// `own`.
    pub(crate) fn losses(
        &self,
        own: KernelLossStats,
        group: &ProcessGroup,
    ) -> Result<KernelLossStats, TrainerError> {
        let Some(blocks) = &self.blocks else { return Ok(own) };
        let rows: Vec<Vec<f64>> = blocks.losses.iter().map(|losses| losses.numbers().to_vec()).collect();
        let count = blocks.losses.first().map_or(0, |losses| losses.count);
        Ok(KernelLossStats::from_numbers(&sum_rows(blocks.share, &rows, group, "losses")?, count))
    }
}

impl Epoch {
    /// Runs the networks, which have the parameters, on some rows, adds to the gradient, and returns the loss. `states`
    /// and `resets` are those of [`DenseActorCritic::forward`].
    fn pass(
        &self,
        rows: Range<usize>,
        (loss, clipped): (&PpoLoss, bool),
        networks: &mut DenseActorCritic,
        (states, resets): (&mut [f32], &[bool]),
        losses: &mut KernelLossStats,
        gradient: &mut [f32],
    ) -> f64 {
        let actions = match &self.actions {
            Some(ActionBuffer::Discrete(actions)) => Actions::Discrete(&actions[rows.clone()]),
            Some(ActionBuffer::MultiDiscrete { width, values }) => {
                Actions::Discrete(&values[rows.start * width..rows.end * width])
            }
            Some(ActionBuffer::Continuous { width, values }) => {
                Actions::Continuous(&values[rows.start * width..rows.end * width])
            }
            // Before the first epoch of a rollout there are no rows either.
            None => Actions::Discrete(&[]),
        };
        let shares = &self.shares[rows.clone()];
        let clip = loss.clip_coef as f32;
        let old_log_probs = &self.log_probs[rows.clone()];
        let batch = Terms {
            gain: if clipped { Gain::Clipped { old_log_probs, clip } } else { Gain::Plain },
            advantages: &self.advantages[rows.clone()],
            goals: Goals {
                old_values: &self.values[rows.clone()],
                returns: &self.returns[rows.clone()],
                shares,
            },
            value_clip: loss.clip_vloss.then_some(clip),
            distance: match loss.value_loss {
                ValueLoss::Squared => Distance::Squared,
                ValueLoss::Huber => Distance::Huber,
            },
            value_weight: loss.vf_coef as f32,
        };
        let observations = &self.observations[rows.start * self.width..rows.end * self.width];
        trace::record(|| "observations of the minibatch".into(), observations);
        trace::record(|| "advantages of the minibatch".into(), &self.advantages[rows]);
        networks.forward(observations, states, resets);
        let (_, entropy) = networks.log_probs(actions, shares);
        let (surrogate, value_loss) = networks.losses(batch);
        networks.backward(actions, shares, -loss.ent_coef as f32, gradient);
        losses.clipped += surrogate.clipped;
        losses.count += 1;
        (losses.surrogate, losses.value_loss, losses.entropy) = (surrogate, value_loss, entropy);
        surrogate.loss + value_loss + entropy
    }
}

impl KernelLossStats {
    /// What is added up over blocks.
    fn numbers(&self) -> [f64; 6] {
        let Surrogate { loss, old_approx_kl, approx_kl, .. } = self.surrogate;
        [loss, old_approx_kl, approx_kl, self.value_loss, self.entropy, self.clipped]
    }

    /// The inverse of [`KernelLossStats::numbers`], after `count` minibatches.
    fn from_numbers(numbers: &[f64], count: u64) -> KernelLossStats {
        let at = |i: usize| numbers.get(i).copied().unwrap_or(f64::NAN);
        let surrogate =
            Surrogate { loss: at(0), old_approx_kl: at(1), approx_kl: at(2), ..Surrogate::default() };
        KernelLossStats { surrogate, value_loss: at(3), entropy: at(4), clipped: at(5), count }
    }

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
