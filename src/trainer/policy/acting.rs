//! Runs a policy without gradients, for rollouts and evaluations: by native kernels where the network is
//! small and dense, else by libtorch.

use super::actor_critic::{ActorCritic, ForwardOptions, PolicyInput};
use super::distribution::Distribution;
use super::memory::Sequences;
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
                // A captured pass takes in nothing but observations.
                let captured = settings.cuda_graphs && policy.layout().memory.is_none();
                let pass = CapturedPass::new(policy.flat().device(), captured);
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

    /// Logits or means `[rows][actor_width]` and values `[rows]` of the observations. `states` `[rows][state_len]` of
    /// the memory are those before the observations, and then those after them; empty without memory.
    pub(crate) fn run(
        &mut self,
        observations: Observations<'_>,
        states: &mut [f32],
        scores: &mut [f32],
        values: &mut [f32],
    ) -> Result<(), TchError> {
        self.run_part(observations, None, states, (scores, values))
    }

    /// [`ActingPolicy::run`] for rows of a rollout of `whole` rows, from row `first` on. A GPU keeps them for
    /// [`ActingPolicy::seen`].
    pub(crate) fn run_rollout(
        &mut self,
        observations: Observations<'_>,
        (first, whole): (usize, usize),
        states: &mut [f32],
        scores: &mut [f32],
        values: &mut [f32],
    ) -> Result<(), TchError> {
        self.run_part(observations, Some((first, whole)), states, (scores, values))
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
        states: &mut [f32],
        (scores, values): (&mut [f32], &mut [f32]),
    ) -> Result<(), TchError> {
        let rows = values.len();
        match self {
            ActingPolicy::Fast { networks, .. } => {
                networks.forward(observations.f32().unwrap_or_default(), states, &[]);
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
                let sequences = match policy.layout().memory {
                    None => None,
                    Some(_) => {
                        let states = Tensor::f_from_slice(states)?.f_view([rows as i64, -1])?;
                        Some(Sequences::step(upload(states, device)?))
                    }
                };
                // One copy, one wait.
                let all = pass.run(&input, |observations| {
                    let input = PolicyInput { observations, masks: None, sequences: sequences.as_ref() };
                    let (output, _) = policy.forward_split(input, ForwardOptions::PLAIN, false)?;
                    // Log-probabilities serve as logits.
                    let own = match &output.distribution {
                        Distribution::Categorical(log_all)
                        | Distribution::MultiCategorical { log_all, .. } => log_all,
                        Distribution::Gaussian { mean, .. } => mean,
                    };
                    let mut parts = vec![own.f_reshape([-1])?, output.values.f_reshape([-1])?];
                    parts.extend(output.state.map(|state| state.f_reshape([-1])).transpose()?);
                    Tensor::f_cat(&parts, 0)
                })?;
                let all = Vec::<f32>::try_from(all.f_to_device(Device::Cpu)?)?;
                let (own, rest) = all.split_at(scores.len());
                let (own_values, own_states) = rest.split_at(rows);
                scores.copy_from_slice(own);
                values.copy_from_slice(own_values);
                states.copy_from_slice(own_states);
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
