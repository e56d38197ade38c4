//! What networks of off-policy algorithms for continuous actions share: bounds, places of parameters, twin
//! critics.

use super::parameters::{self, ParameterEntry};
use super::q_network::dense;
use crate::env::{ActionSpace, Spec};
use crate::error::TrainerError;
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_types::experiment::{Activation, NetworkKind, Policy};
use tch::{TchError, Tensor};

/// The place of the parameters of an actor and two critics.
#[derive(Debug, Clone, PartialEq)]
pub struct ContinuousLayout {
    /// Between layers.
    pub activation: Activation,
    /// Hidden layers of each network.
    pub hidden: usize,
    /// Numbers of an action.
    pub actions: usize,
    /// The actor: hidden layers, then its heads.
    pub(crate) actor: Vec<ParameterEntry>,
    /// Both critics, one after the other.
    pub(crate) critics: Vec<ParameterEntry>,
    /// Half the width of each action's range.
    pub scale: Vec<f32>,
    /// The middle of each action's range.
    pub(crate) bias: Vec<f32>,
}

impl ContinuousLayout {
    /// Draws actions uniformly within their bounds: `width` values for each environment, by its own generator.
    pub(crate) fn uniform_actions(&self, width: usize, values: &mut [f32], randoms: &mut [Generator]) {
        for (row, random) in values.chunks_exact_mut(width.max(1)).zip(randoms) {
            for (value, (scale, bias)) in row.iter_mut().zip(self.scale.iter().zip(&self.bias)) {
                *value = bias + scale * (2.0 * random.next_f64() - 1.0) as f32;
            }
        }
    }

    /// The layout of `algorithm` for `spec`, with these heads of the actor. Refused when network and environment
    /// do not fit.
    pub(crate) fn new(
        algorithm: &str,
        heads: &[&str],
        spec: &Spec,
        policy: &Policy,
    ) -> Result<ContinuousLayout, TrainerError> {
        let refused =
            |text: &str, hint: &str| TrainerError::usage(format!("algorithm {algorithm} {text}"), hint);
        let ActionSpace::Continuous { low, high } = &spec.actions else {
            return Err(refused(
                "needs continuous actions, but this environment has discrete ones",
                match &spec.actions {
                    ActionSpace::MultiDiscrete { .. } => {
                        "set learn.algorithm = \"ppo\", or choose another env.id"
                    }
                    _ => "set learn.algorithm = \"dqn\", or choose another env.id",
                },
            ));
        };
        if low.iter().chain(high).any(|bound| !bound.is_finite()) {
            return Err(refused(
                "needs actions with finite bounds",
                "choose another env.id, or wrap the environment so that its actions are bounded",
            ));
        }
        if policy.network != NetworkKind::Mlp {
            return Err(refused(
                "supports fully connected networks only",
                "set policy.network = \"mlp\", which takes observations of any shape",
            ));
        }
        if policy.hidden.is_empty() {
            return Err(refused("needs at least one hidden layer", "set policy.hidden, such as [256, 256]"));
        }
        let (observation, actions) = (spec.observation_len(), low.len());
        let mut entries: [Vec<ParameterEntry>; 2] = [Vec::new(), Vec::new()];
        let mut chain = |which: usize, prefix: &str, mut inputs: usize, heads: &[&str], outputs: usize| {
            let list = &mut entries[which];
            let mut total = list.iter().map(|entry| entry.len).sum();
            for (i, width) in policy.hidden.iter().enumerate() {
                let shape = vec![i64::from(*width), inputs as i64];
                parameters::pair(list, &mut total, &format!("{prefix}fc{}", i + 1), shape, inputs);
                inputs = *width as usize;
            }
            for name in heads {
                let shape = vec![outputs as i64, inputs as i64];
                parameters::pair(list, &mut total, &format!("{prefix}{name}"), shape, inputs);
            }
        };
        chain(0, "actor.", observation, heads, actions);
        let last = format!("fc{}", policy.hidden.len() + 1);
        for critic in ["qf1.", "qf2."] {
            chain(1, critic, observation + actions, &[&last], 1);
        }
        let [actor, critics] = entries;
        Ok(ContinuousLayout {
            activation: policy.activation,
            hidden: policy.hidden.len(),
            actions,
            actor,
            critics,
            scale: low.iter().zip(high).map(|(low, high)| high / 2.0 - low / 2.0).collect(),
            bias: low.iter().zip(high).map(|(low, high)| high / 2.0 + low / 2.0).collect(),
        })
    }

    /// Values of the two networks in `parameters` (critics or targets), each `[rows]`.
    pub(crate) fn values(
        &self,
        parameters: &[Tensor],
        observations: &Tensor,
        actions: &Tensor,
    ) -> Result<[Tensor; 2], TchError> {
        let (first, second) = parameters.split_at(parameters.len() / 2);
        let input = Tensor::f_cat(&[observations, actions], 1)?;
        let value = |own| dense(self.activation, own, &input)?.f_view([-1]);
        Ok([value(first)?, value(second)?])
    }

    /// Values of one critic with these parameters, `[rows]`.
    pub(crate) fn value(
        &self,
        critic: &[Tensor],
        observations: &Tensor,
        actions: &Tensor,
    ) -> Result<Tensor, TchError> {
        dense(self.activation, critic, &Tensor::f_cat(&[observations, actions], 1)?)?.f_view([-1])
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn spec() -> Spec {
        let actions = ActionSpace::Continuous { low: vec![-2.0, 0.0], high: vec![2.0, 10.0] };
        Spec { actions, ..Spec::discrete(3, 1) }
    }

    pub(crate) fn policy() -> Policy {
        Policy { hidden: vec![16, 8], activation: Activation::Relu, ..Policy::default() }
    }

    #[test]
    fn unsuitable_settings_name_their_key() {
        let unbounded = ActionSpace::Continuous { low: vec![f32::NEG_INFINITY], high: vec![1.0] };
        for (spec, policy, key) in [
            (Spec::discrete(3, 2), policy(), "learn.algorithm"),
            (Spec { actions: unbounded, ..spec() }, policy(), "env.id"),
            (spec(), Policy { network: NetworkKind::Nature, ..policy() }, "policy.network"),
            (spec(), Policy { hidden: Vec::new(), ..policy() }, "policy.hidden"),
        ] {
            let error = ContinuousLayout::new("sac", &["fc_mean"], &spec, &policy).unwrap_err();
            assert!(error.usage && error.hint().contains(key), "{error:?}");
        }
    }
}
