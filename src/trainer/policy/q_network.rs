//! Q-networks as libtorch sees them, with a target copy.
//!
//! Owner: DQN. This is the reference, and runs images and GPUs; [`super::q_fast`] is the same for small dense
//! networks on the CPU.

use super::layout::initial;
use super::parameters::Parameters;
use super::q_layout::QLayout;
use super::seam::Seam;
use super::trunk;
use rankdeck_kernel::seeds::Seeds;
use rankdeck_types::experiment::Activation;
use tch::{Device, Kind, TchError, Tensor};

/// Online and target network.
pub struct QNetwork {
    layout: QLayout,
    /// The network that learns.
    pub online: Parameters,
    /// Follows the online network; never has gradients.
    pub target: Parameters,
}

impl QNetwork {
    /// Both alike, freshly initialised, on `device`.
    pub fn new(layout: QLayout, seeds: &Seeds, device: Device) -> Result<QNetwork, TchError> {
        let flat = initial(&layout.entries, seeds);
        let [online, target] = [(); 2].map(|()| Parameters::new(&layout.entries, &flat, device));
        let target = target?;
        for tensor in target.tensors() {
            let _ = tensor.f_set_requires_grad(false)?;
        }
        Ok(QNetwork { layout, online: online?, target })
    }

    /// Where everything is.
    pub fn layout(&self) -> &QLayout {
        &self.layout
    }

    /// Q-values `[batch, actions]` of observations `[batch, ...]`, f32 or u8 pixels.
    pub fn forward(&self, parameters: &[Tensor], observations: &Tensor) -> Result<Tensor, TchError> {
        forward(&self.layout, parameters, observations)
    }

    /// The same, `cut` behind the convolutions.
    pub fn forward_cut(
        &self,
        parameters: &[Tensor],
        observations: &Tensor,
        cut: bool,
    ) -> Result<(Tensor, Option<Seam>), TchError> {
        forward_cut(&self.layout, parameters, observations, cut)
    }

    /// Moves the target by this share towards the online network; 1 copies it.
    pub fn follow(&mut self, share: f64) -> Result<(), TchError> {
        follow(self.online.flat(), self.target.flat(), share)
    }
}

/// Moves `target` by this share towards `online`; 1 copies it.
pub(crate) fn follow(online: &Tensor, target: &Tensor, share: f64) -> Result<(), TchError> {
    tch::no_grad(|| {
        let mut target = target.shallow_clone();
        if share >= 1.0 {
            return target.f_copy_(online);
        }
        target.f_lerp_(online, share).map(drop)
    })
}

/// [`QNetwork::forward`] without a network.
pub fn forward(layout: &QLayout, parameters: &[Tensor], observations: &Tensor) -> Result<Tensor, TchError> {
    forward_cut(layout, parameters, observations, false).map(|(q, _)| q)
}

fn forward_cut(
    layout: &QLayout,
    parameters: &[Tensor],
    observations: &Tensor,
    cut: bool,
) -> Result<(Tensor, Option<Seam>), TchError> {
    let mut at = 0;
    let mut take = |count: usize| {
        let taken = &parameters[at..at + count];
        at += count;
        taken
    };
    let mut value = match &layout.trunk {
        Some(trunk) => trunk.forward(take(trunk.parameters()), observations)?,
        None => observations.shallow_clone(),
    };
    let mut seam = None;
    if cut && layout.trunk.is_some() {
        let (after, made) = Seam::cut(value)?;
        (value, seam) = (after, Some(made));
    }
    for i in 0..layout.shared.len() {
        let pair = take(2);
        value = trunk::linear(&value, pair)?;
        if !(layout.linear_end && i + 1 == layout.shared.len()) {
            value = activate(layout.activation, &value)?;
        }
    }
    let value = trunk::as_kind(&value, Kind::Float)?;
    let states = layout
        .is_dueling()
        .then(|| dense(layout.activation, take(2 * layout.value.len()), &value))
        .transpose()?;
    let head = dense(layout.activation, take(2 * layout.head.len()), &value)?;
    let q = match states {
        None => head,
        Some(states) => {
            let mean = head.f_mean_dim(-1_i64, true, None::<Kind>)?;
            states.f_add(&head.f_sub(&mean)?)?
        }
    };
    Ok((q, seam))
}

fn activate(activation: Activation, value: &Tensor) -> Result<Tensor, TchError> {
    match activation {
        Activation::Tanh => value.f_tanh(),
        Activation::Relu => value.f_relu(),
    }
}

/// Dense layers with the activation between them; the last is linear.
pub(super) fn dense(
    activation: Activation,
    parameters: &[Tensor],
    input: &Tensor,
) -> Result<Tensor, TchError> {
    let last = parameters.len().saturating_sub(2);
    let mut value = input.shallow_clone();
    for (i, pair) in parameters.chunks_exact(2).enumerate() {
        value = value.f_linear(&pair[0], Some(&pair[1]))?;
        if 2 * i < last {
            value = activate(activation, &value)?;
        }
    }
    Ok(value)
}
