//! Where the parameters of a Q-network are in one flat buffer.
//!
//! Owner: the Q-network.
//!
//! Invariants:
//! - QNET-1: initial weights are those that `torch.nn.Linear` and `Conv2d` begin with, whose defaults CleanRL
//!   and DI-engine keep: weight and bias uniform in ±1/sqrt(inputs of a unit). They depend on the seed only.
//! - QNET-2: names and shapes without dueling are those of CleanRL's dqn.py and dqn_atari.py
//!   (`network.0.weight`). With dueling, `value.*` and `advantage.*` follow the shared `network.*`, each with
//!   one hidden layer as wide as what comes in (DI-engine's `DuelingHead`).
//! - With convolutions and dueling, the layer behind the convolutions is linear (DI-engine's
//!   `ConvEncoder`); elsewhere every hidden layer is followed by the activation: ReLU in both references.

use super::layout::{InitialValues, Layer, ParameterEntry};
use super::trunk::Trunk;
use crate::env::{ActionSpace, Spec};
use crate::error::TrainerError;
use rankdeck_types::experiment::{Activation, Policy};

/// Where everything is in the flat buffer: the trunk's convolutions, shared layers, head of values (dueling),
/// head of advantages or Q-values.
#[derive(Debug, Clone, PartialEq)]
pub struct QLayout {
    /// Convolutions in front, for images.
    pub trunk: Option<Trunk>,
    /// Layers that the heads share.
    pub shared: Vec<Layer>,
    /// Between dense layers; convolutions have ReLU.
    pub activation: Activation,
    /// No activation behind the last shared layer.
    pub linear_end: bool,
    /// State value; empty without dueling.
    pub value: Vec<Layer>,
    /// Advantages, or Q-values without dueling.
    pub head: Vec<Layer>,
    /// Every parameter, in order.
    pub entries: Vec<ParameterEntry>,
    /// Elements in all.
    pub len: usize,
}

impl QLayout {
    /// The layout for `spec`. Refused when network and environment do not fit.
    pub fn new(spec: &Spec, policy: &Policy, dueling: bool) -> Result<QLayout, TrainerError> {
        let ActionSpace::Discrete { n } = spec.actions else {
            return Err(TrainerError::usage(
                "algorithm dqn needs discrete actions, and this environment's are continuous",
                "set learn.algorithm = \"sac\", or choose another env.id",
            ));
        };
        let trunk = Trunk::new(&spec.observation_shape, policy)?;
        let mut layout = QLayout {
            shared: Vec::new(),
            activation: if trunk.is_some() { Activation::Relu } else { policy.activation },
            linear_end: trunk.is_some() && dueling,
            value: Vec::new(),
            head: Vec::new(),
            entries: Vec::new(),
            len: 0,
            trunk,
        };
        let (mut inputs, mut index) = (spec.observation_len(), 0);
        if let Some(trunk) = layout.trunk.clone() {
            for convolution in &trunk.convolutions {
                let window = convolution.inputs * convolution.kernel * convolution.kernel;
                layout.pair(&convolution.name, convolution.shape(), window);
            }
            (inputs, index) = (trunk.outputs, trunk.next_index);
        }
        for width in &policy.hidden {
            let layer = layout.linear(&format!("network.{index}"), inputs, *width as usize);
            layout.shared.push(layer);
            (inputs, index) = (*width as usize, index + 2);
        }
        if dueling {
            let mut head = |name: &str, outputs| {
                let hidden = layout.linear(&format!("{name}.0"), inputs, inputs);
                vec![hidden, layout.linear(&format!("{name}.2"), inputs, outputs)]
            };
            (layout.value, layout.head) = (head("value", 1), head("advantage", n));
        } else {
            layout.head = vec![layout.linear(&format!("network.{index}"), inputs, n)];
        }
        Ok(layout)
    }

    fn linear(&mut self, name: &str, inputs: usize, outputs: usize) -> Layer {
        let (weight, bias) = self.pair(name, vec![outputs as i64, inputs as i64], inputs);
        Layer { inputs, outputs, weight, bias }
    }

    fn pair(&mut self, name: &str, shape: Vec<i64>, inputs: usize) -> (usize, usize) {
        pair(&mut self.entries, &mut self.len, name, shape, inputs)
    }

    /// The plain-Rust passes can run it: dense layers only.
    pub fn is_dense(&self) -> bool {
        self.trunk.is_none()
    }

    /// There are two heads.
    pub fn is_dueling(&self) -> bool {
        !self.value.is_empty()
    }

    /// Actions.
    pub fn actions(&self) -> usize {
        self.head.last().map_or(0, |layer| layer.outputs)
    }
}

/// Appends weight and bias of a layer that begins as PyTorch's do; `inputs` is what feeds one unit. Returns
/// their places.
pub(super) fn pair(
    entries: &mut Vec<ParameterEntry>,
    total: &mut usize,
    name: &str,
    shape: Vec<i64>,
    inputs: usize,
) -> (usize, usize) {
    let start = InitialValues::Even(1.0 / (inputs.max(1) as f64).sqrt());
    let outputs = shape.first().copied().unwrap_or(0);
    let weight = *total;
    let len = shape.iter().product::<i64>() as usize;
    entries.push(ParameterEntry { name: format!("{name}.weight"), shape, offset: weight, len, start });
    let bias = weight + len;
    let len = outputs as usize;
    entries.push(ParameterEntry {
        name: format!("{name}.bias"),
        shape: vec![outputs],
        offset: bias,
        len,
        start,
    });
    *total = bias + len;
    (weight, bias)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::ObservationType;
    use crate::policy::layout::initial;
    use rankdeck_kernel::seeds::Seeds;
    use rankdeck_types::experiment::Network;

    fn mlp(hidden: &[u32]) -> Policy {
        Policy { hidden: hidden.to_vec(), ..Policy::default() }
    }

    fn nature(channels: [u32; 3]) -> Policy {
        Policy {
            network: Network::Nature,
            hidden: vec![512],
            channels: Some(channels.to_vec()),
            ..Policy::default()
        }
    }

    fn images(n: usize) -> Spec {
        Spec {
            observation_shape: vec![4, 84, 84],
            observation_type: ObservationType::U8,
            actions: ActionSpace::Discrete { n },
        }
    }

    /// Counts as the references have them (DI-engine's CartPole and Pong, CleanRL's CartPole and Breakout).
    #[test]
    fn qnet_2_names_and_counts_of_the_references() {
        let cleanrl = QLayout::new(&Spec::discrete(4, 2), &mlp(&[120, 84]), false).unwrap();
        let names: Vec<_> = cleanrl.entries.iter().map(|e| e.name.as_str()).collect();
        assert_eq!(cleanrl.len, 10_934);
        assert_eq!(names[..2], ["network.0.weight", "network.0.bias"]);
        assert_eq!(names[4..], ["network.4.weight", "network.4.bias"]);
        let dizoo = QLayout::new(&Spec::discrete(4, 2), &mlp(&[128, 128, 64]), true).unwrap();
        assert_eq!(dizoo.len, 33_923);
        assert!(dizoo.is_dueling() && dizoo.is_dense() && dizoo.actions() == 2);
        let atari = QLayout::new(&images(4), &nature([32, 64, 64]), false).unwrap();
        assert_eq!(atari.len, 1_686_180);
        assert_eq!(atari.entries[8].name, "network.9.weight");
        let pong = QLayout::new(&images(6), &nature([128, 128, 512]), true).unwrap();
        assert_eq!(pong.len, 14_259_975);
        assert!(pong.linear_end && !pong.is_dense());
    }

    #[test]
    fn qnet_1_weights_and_biases_are_even_within_pytorchs_bound() {
        let layout = QLayout::new(&Spec::discrete(4, 2), &mlp(&[120, 84]), false).unwrap();
        let flat = initial(&layout.entries, &Seeds::new(5));
        for (entry, inputs) in layout.entries.iter().zip([4, 4, 120, 120, 84, 84]) {
            let bound = 1.0 / f64::from(inputs).sqrt();
            let values = &flat[entry.offset..entry.offset + entry.len];
            assert!(values.iter().all(|v| f64::from(v.abs()) <= bound));
            let square = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / entry.len as f64;
            if entry.len > 100 {
                assert!((square / (bound * bound / 3.0) - 1.0).abs() < 0.2, "{}: {square}", entry.name);
            }
        }
        assert_ne!(flat, initial(&layout.entries, &Seeds::new(6)));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_key() {
        let pendulum = Spec {
            actions: ActionSpace::Continuous { low: vec![-1.0], high: vec![1.0] },
            ..Spec::discrete(3, 1)
        };
        for (spec, policy, key) in [
            (&pendulum, mlp(&[8]), "learn.algorithm"),
            (&Spec::discrete(4, 2), nature([1, 1, 1]), "policy.network"),
            (&images(4), nature([1, 0, 1]), "policy.channels"),
        ] {
            let error = QLayout::new(spec, &policy, false).unwrap_err();
            assert!(error.usage && error.hint().contains(key), "{error:?}");
        }
    }
}
