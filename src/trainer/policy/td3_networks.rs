//! TD3's networks: an actor that gives one action, two critics, and the targets of all three.

use super::continuous::ContinuousLayout;
use super::parameters::{ParameterEntry, Parameters, initial};
use super::q_network::dense;
use crate::env::Spec;
use crate::error::TrainerError;
use rankdeck_kernel::seeds::Seeds;
use rankdeck_types::experiment::Policy;
use tch::{Device, TchError, Tensor};

/// The layout for `spec`. Refused when network and environment do not fit.
pub fn layout(spec: &Spec, policy: &Policy) -> Result<ContinuousLayout, TrainerError> {
    ContinuousLayout::new("td3", &["fc_mu"], spec, policy)
}

/// The networks.
pub struct Td3Networks {
    layout: ContinuousLayout,
    pub actor: Parameters,
    /// Both critics.
    pub critics: Parameters,
    /// The actor's target; never has gradients.
    pub target_actor: Parameters,
    /// Both critics' targets; never have gradients.
    pub targets: Parameters,
    scale: Tensor,
    bias: Tensor,
}

impl Td3Networks {
    /// Freshly initialized, targets equal to their networks.
    pub(crate) fn new(
        layout: ContinuousLayout,
        seeds: &Seeds,
        device: Device,
    ) -> Result<Td3Networks, TchError> {
        // One stream for all: the critics differ from each other and from the actor.
        let all: Vec<ParameterEntry> = layout.actor.iter().chain(&layout.critics).cloned().collect();
        let flat = initial(&all, seeds);
        let split = layout.actor.iter().map(|entry| entry.len).sum::<usize>();
        let target = |entries: &[ParameterEntry], flat: &[f32]| -> Result<Parameters, TchError> {
            let target = Parameters::new(entries, flat, device)?;
            for tensor in target.tensors() {
                let _ = tensor.f_set_requires_grad(false)?;
            }
            Ok(target)
        };
        Ok(Td3Networks {
            actor: Parameters::new(&layout.actor, &flat[..split], device)?,
            critics: Parameters::new(&layout.critics, &flat[split..], device)?,
            target_actor: target(&layout.actor, &flat[..split])?,
            targets: target(&layout.critics, &flat[split..])?,
            scale: Tensor::f_from_slice(&layout.scale)?.f_to_device(device)?,
            bias: Tensor::f_from_slice(&layout.bias)?.f_to_device(device)?,
            layout,
        })
    }

    /// Where everything is.
    pub(crate) fn layout(&self) -> &ContinuousLayout {
        &self.layout
    }

    /// The actions of an actor (or its target) with these parameters, `[rows, actions]`, as the environment takes
    /// them.
    pub(crate) fn act(&self, actor: &[Tensor], observations: &Tensor) -> Result<Tensor, TchError> {
        dense(self.layout.activation, actor, observations)?.f_tanh()?.f_mul(&self.scale)?.f_add(&self.bias)
    }

    /// These actions with noise `[rows, actions]` in units of half an action's range, within their bounds.
    pub(crate) fn with_noise(&self, actions: &Tensor, noise: &Tensor) -> Result<Tensor, TchError> {
        let noisy = actions.f_add(&noise.f_mul(&self.scale)?)?;
        noisy.f_maximum(&self.bias.f_sub(&self.scale)?)?.f_minimum(&self.bias.f_add(&self.scale)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::continuous::tests::{policy, spec};

    #[test]
    fn names_are_cleanrls_and_targets_begin_equal() {
        let networks =
            Td3Networks::new(layout(&spec(), &policy()).unwrap(), &Seeds::new(2), Device::Cpu).unwrap();
        let names: Vec<_> = networks.layout.actor.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names[4..], ["actor.fc_mu.weight", "actor.fc_mu.bias"]);
        assert_eq!(networks.actor.flat(), networks.target_actor.flat());
        assert_eq!(networks.critics.flat(), networks.targets.flat());
    }

    #[test]
    fn noisy_actions_stay_within_their_bounds() {
        let networks =
            Td3Networks::new(layout(&spec(), &policy()).unwrap(), &Seeds::new(2), Device::Cpu).unwrap();
        let observations = Tensor::from_slice(&[0.5f32, -0.2, 1.0]).view([1, 3]);
        let actions = tch::no_grad(|| networks.act(networks.actor.tensors(), &observations)).unwrap();
        let noisy = |noise: [f32; 2]| {
            let noise = Tensor::from_slice(&noise).view([1, 2]);
            Vec::<f32>::try_from(networks.with_noise(&actions, &noise).unwrap().view([-1])).unwrap()
        };
        assert_eq!(noisy([9.0, -9.0]), [2.0, 0.0]);
        assert_eq!(noisy([-9.0, 9.0]), [-2.0, 10.0]);
        let (still, moved) = (noisy([0.0, 0.0]), noisy([0.1, 0.1]));
        assert!((moved[0] - still[0] - 0.2).abs() < 1e-5 && (moved[1] - still[1] - 0.5).abs() < 1e-5);
    }
}
