//! Runs a policy without gradients, for rollouts and evaluations: by native kernels where the network is
//! small and dense, else by libtorch.

use super::actor_critic::{ActorCritic, ForwardOptions};
use super::distribution::Distribution;
use crate::distributed::cuda::CapturedPass;
use crate::distributed::memory::upload;
use crate::env::Observations;
use rankdeck_types::experiment::{Kernel, Policy};
use tch::{Device, TchError, Tensor};

/// A policy ready to act.
#[expect(clippy::large_enum_variant, reason = "a rank has one of it")]
pub(crate) enum ActingPolicy {
    /// All observations at once in plain Rust, with a snapshot of the parameters. A row's result does not
    /// depend on the others.
    Fast {
        /// Actor and critic, without autograd.
        networks: super::actor_critic::DenseActorCritic,
        /// Scratch for the parameters.
        flat: Vec<f32>,
    },
    /// All observations at once, on the policy's device, with its own parameters.
    Torch {
        /// Shares its parameters with the policy that learns.
        policy: ActorCritic,
        /// Shape of one observation.
        shape: Vec<i64>,
        /// What the policy was shown of the rollout, on its GPU.
        seen: Option<Tensor>,
        /// The forward pass.
        pass: CapturedPass,
    },
}

impl ActingPolicy {
    /// For observations of this shape; pixels go through libtorch.
    pub(crate) fn new(
        policy: &ActorCritic,
        shape: &[usize],
        pixels: bool,
        settings: &Policy,
    ) -> ActingPolicy {
        let networks = super::actor_critic::DenseActorCritic::new(policy.layout(), 1);
        match networks.filter(|_| !pixels && settings.kernel != Kernel::Libtorch) {
            Some(networks) => ActingPolicy::Fast { networks, flat: vec![0.0; policy.layout().len] },
            None => {
                let shape = shape.iter().map(|side| *side as i64).collect();
                let pass = CapturedPass::new(policy.flat().device(), settings.cuda_graphs);
                ActingPolicy::Torch { policy: policy.share(), shape, seen: None, pass }
            }
        }
    }

    /// Copies the parameters of `policy`.
    pub(crate) fn load(&mut self, policy: &ActorCritic) -> Result<(), TchError> {
        if let ActingPolicy::Fast { networks, flat } = self {
            policy.copy_to(flat)?;
            networks.load(flat);
        }
        Ok(())
    }

    /// Logits or means `[rows][actor_width]` and values `[rows]` of the observations.
    pub(crate) fn run(
        &mut self,
        observations: Observations<'_>,
        scores: &mut [f32],
        values: &mut [f32],
    ) -> Result<(), TchError> {
        self.run_part(observations, None, scores, values)
    }

    /// [`ActingPolicy::run`] for rows of a rollout of `whole` rows, from row `first` on. A GPU keeps them for
    /// [`ActingPolicy::seen`].
    pub(crate) fn run_rollout(
        &mut self,
        observations: Observations<'_>,
        (first, whole): (usize, usize),
        scores: &mut [f32],
        values: &mut [f32],
    ) -> Result<(), TchError> {
        self.run_part(observations, Some((first, whole)), scores, values)
    }

    /// All observations of the rollout, where the policy acts on a GPU.
    pub(crate) fn seen(&self) -> Option<&Tensor> {
        match self {
            ActingPolicy::Torch { seen, .. } => seen.as_ref(),
            ActingPolicy::Fast { .. } => None,
        }
    }

    fn run_part(
        &mut self,
        observations: Observations<'_>,
        part: Option<(usize, usize)>,
        scores: &mut [f32],
        values: &mut [f32],
    ) -> Result<(), TchError> {
        let rows = values.len();
        match self {
            ActingPolicy::Fast { networks, .. } => {
                networks.forward(observations.f32().unwrap_or_default());
                let each = (scores.len() / rows.max(1)).max(1);
                let own = networks.scores().iter().zip(networks.values().iter());
                for ((to, value), (own, own_value)) in scores.chunks_exact_mut(each).zip(values).zip(own) {
                    to.copy_from_slice(own);
                    *value = own_value[0];
                }
                Ok(())
            }
            ActingPolicy::Torch { policy, shape, seen, pass } => tch::no_grad(|| {
                let device = policy.flat().device();
                let input = upload(batch(observations, rows, shape)?, device)?;
                if let Some((first, whole)) = part.filter(|_| device != Device::Cpu) {
                    let kept = match seen.take() {
                        Some(kept) if kept.size().first() == Some(&(whole as i64)) => kept,
                        _ => {
                            let mut size = input.size();
                            size[0] = whole as i64;
                            Tensor::f_empty(size, (input.kind(), device))?
                        }
                    };
                    kept.f_narrow(0, first as i64, rows as i64)?.f_copy_(&input)?;
                    *seen = Some(kept);
                }
                // One copy, one wait.
                let both = pass.run(&input, |input| {
                    let output = policy.forward(input, ForwardOptions::PLAIN)?;
                    // Log-probabilities serve as logits.
                    let own = match &output.distribution {
                        Distribution::Categorical(log_all)
                        | Distribution::MultiCategorical { log_all, .. } => log_all,
                        Distribution::Gaussian { mean, .. } => mean,
                    };
                    Tensor::f_cat(&[own.f_reshape([-1])?, output.values.f_reshape([-1])?], 0)
                })?;
                let both = Vec::<f32>::try_from(both.f_to_device(Device::Cpu)?)?;
                let (own, own_values) = both.split_at(scores.len());
                scores.copy_from_slice(own);
                values.copy_from_slice(own_values);
                Ok(())
            }),
        }
    }
}

/// Observations as a tensor `[rows, shape...]` on the CPU.
pub(crate) fn batch(observations: Observations<'_>, rows: usize, shape: &[i64]) -> Result<Tensor, TchError> {
    let flat = match observations {
        Observations::F32(values) => Tensor::f_from_slice(values)?,
        Observations::U8(pixels) => Tensor::f_from_slice(pixels)?,
    };
    let whole: Vec<i64> = std::iter::once(rows as i64).chain(shape.iter().copied()).collect();
    flat.f_view(whole.as_slice())
}
