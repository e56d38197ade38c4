//! Actor and critic as libtorch sees them, over one flat parameter buffer.
//!
//! Owner: the algorithm. Parameters are leaf tensors that are views of [`ActorCritic::flat`], in the order of
//! [`Layout::entries`]; optimiser, checkpoint and rollout work on the flat buffer, autograd on the views.

use super::distribution::Distribution;
pub use super::layout::{Layer, Layout};
use super::parameters::Parameters;
use super::seam::Seam;
use super::trunk;
use rankdeck_kernel::seeds::Seeds;
use rankdeck_types::experiment::Activation;
use tch::{Device, Kind, TchError, Tensor};

/// Actor and critic.
pub struct ActorCritic {
    layout: Layout,
    parameters: Parameters,
}

/// What the networks say about a batch of observations, with gradients.
pub struct PolicyOutput {
    /// Of the actions.
    pub distribution: Distribution,
    /// Values, `[batch]`.
    pub values: Tensor,
    /// Values of the auxiliary head, `[batch]`, when it was asked for.
    pub aux: Option<Tensor>,
}

/// Which parts of the networks take part, for algorithms that train them in phases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// The critic reads the shared layers without changing them.
    pub detached: bool,
    /// The auxiliary head takes part.
    pub aux: bool,
}

impl Pass {
    /// Everything but the auxiliary head, nothing detached.
    pub const PLAIN: Pass = Pass { detached: false, aux: false };
}

impl ActorCritic {
    /// Freshly initialised networks on `device`.
    pub fn new(layout: Layout, seeds: &Seeds, device: Device) -> Result<ActorCritic, TchError> {
        let parameters = Parameters::new(&layout.entries, &layout.initial(seeds), device)?;
        Ok(ActorCritic { layout, parameters })
    }

    /// The same networks: the parameters are shared.
    pub fn share(&self) -> ActorCritic {
        ActorCritic { layout: self.layout.clone(), parameters: self.parameters.share() }
    }

    /// Where everything is.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The parameters.
    pub fn all(&self) -> &Parameters {
        &self.parameters
    }

    /// All parameters, f32, one after the other.
    pub fn flat(&self) -> &Tensor {
        self.parameters.flat()
    }

    /// Leaf tensors, in the order of the layout's entries.
    pub fn parameters(&self) -> &[Tensor] {
        self.parameters.tensors()
    }

    /// Names and leaf tensors (shallow clones), for DDP.
    pub fn named_parameters(&self) -> Vec<(String, Tensor)> {
        self.parameters.named()
    }

    /// All parameters as numbers, to write.
    ///
    /// # Safety
    /// As for [`Parameters::floats_mut`].
    pub(crate) unsafe fn floats_mut(&mut self) -> Option<&mut [f32]> {
        // SAFETY: the caller's, word for word.
        unsafe { self.parameters.floats_mut() }
    }

    /// Copies all parameters to the host.
    pub fn copy_to(&self, flat: &mut [f32]) -> Result<(), TchError> {
        self.parameters.copy_to(flat)
    }

    /// Overwrites all parameters.
    pub fn copy_from(&mut self, flat: &[f32]) -> Result<(), TchError> {
        self.parameters.copy_from(flat)
    }

    /// Runs the networks on observations `[batch, ...]`: f32, or u8 pixels.
    pub fn forward(&self, observations: &Tensor, pass: Pass) -> Result<PolicyOutput, TchError> {
        self.forward_cut(observations, pass, false).map(|(output, _)| output)
    }

    /// The same, `cut` behind the convolutions.
    pub fn forward_cut(
        &self,
        observations: &Tensor,
        pass: Pass,
        cut: bool,
    ) -> Result<(PolicyOutput, Option<Seam>), TchError> {
        let mut at = 0;
        let mut take = |count: usize| {
            let taken = &self.parameters.tensors()[at..at + count];
            at += count;
            taken
        };
        let mut value = match &self.layout.trunk {
            Some(trunk) => trunk.forward(take(trunk.parameters()), observations)?,
            None => observations.shallow_clone(),
        };
        let mut seam = None;
        if cut && self.layout.trunk.is_some() {
            let (after, made) = Seam::cut(value)?;
            (value, seam) = (after, Some(made));
        }
        for _ in &self.layout.shared {
            let pair = take(2);
            value = self.activate(&trunk::linear(&value, pair)?)?;
        }
        let value = trunk::as_kind(&value, Kind::Float)?;
        let seen_by_critic = if pass.detached { value.f_detach()? } else { value.shallow_clone() };
        let critic = take(2 * self.layout.critic.len());
        let values = self.last(critic, &self.hidden(critic, &seen_by_critic)?)?.f_view([-1])?;
        let actor = take(2 * self.layout.actor.len());
        let hidden = self.hidden(actor, &value)?;
        let scores = self.last(actor, &hidden)?;
        let distribution = match self.layout.log_std {
            None => Distribution::categorical(&scores)?,
            Some(_) => Distribution::gaussian(scores, &take(1)[0])?,
        };
        let aux = match self.layout.aux {
            Some(_) if pass.aux => Some(self.last(take(2), &hidden)?.f_view([-1])?),
            _ => None,
        };
        Ok((PolicyOutput { distribution, values, aux }, seam))
    }

    fn activate(&self, value: &Tensor) -> Result<Tensor, TchError> {
        match self.layout.activation {
            Activation::Tanh => value.f_tanh(),
            Activation::Relu => value.f_relu(),
        }
    }

    /// All layers but the last.
    fn hidden(&self, parameters: &[Tensor], input: &Tensor) -> Result<Tensor, TchError> {
        let mut value = input.shallow_clone();
        for pair in parameters[..parameters.len().saturating_sub(2)].chunks_exact(2) {
            value = self.activate(&value.f_linear(&pair[0], Some(&pair[1]))?)?;
        }
        Ok(value)
    }

    /// The last layer, which is linear.
    fn last(&self, parameters: &[Tensor], hidden: &Tensor) -> Result<Tensor, TchError> {
        match parameters {
            [.., weight, bias] => hidden.f_linear(weight, Some(bias)),
            _ => Ok(hidden.shallow_clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Spec;
    use rankdeck_types::experiment::Policy;

    #[test]
    fn an_auxiliary_head_takes_part_only_when_asked_and_a_detached_critic_spares_the_shared_layers() {
        let policy = Policy { shared: true, hidden: vec![8], ..Policy::default() };
        let layout = Layout::new(&Spec::discrete(4, 2), &policy, true).unwrap();
        let net = ActorCritic::new(layout, &Seeds::new(0), Device::Cpu).unwrap();
        let observations = Tensor::from_slice(&[0.5_f32; 12]).view([3, 4]);
        let gradient = |name: &str| {
            let found = net.named_parameters().into_iter().find(|(known, _)| known == name).unwrap().1.grad();
            found.defined() && found.abs().sum(Kind::Float).double_value(&[]) > 0.0
        };
        let detached = net.forward(&observations, Pass { detached: true, aux: false }).unwrap();
        assert!(detached.aux.is_none());
        detached.values.sum(Kind::Float).backward();
        assert!(gradient("critic.weight") && !gradient("network.0.weight") && !gradient("aux_critic.weight"));
        net.forward(&observations, Pass::PLAIN).unwrap().values.sum(Kind::Float).backward();
        assert!(gradient("network.0.weight") && !gradient("aux_critic.weight"));
        net.forward(&observations, Pass { detached: false, aux: true })
            .unwrap()
            .aux
            .unwrap()
            .sum(Kind::Float)
            .backward();
        assert!(gradient("aux_critic.weight"));
    }
}
