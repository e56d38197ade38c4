//! Q-networks with layer normalization, of PQN: the layout of their parameters in one flat buffer, and their
//! forward pass in libtorch.
//!
//! Invariants:
//! - NORMQ-1: names, shapes and initial values are those of CleanRL's pqn.py and pqn_atari_envpool.py: weights are
//!   orthogonal with a gain of sqrt(2), biases 0; a layer normalization (weights 1, biases 0) and the
//!   activation follow every layer but the last. They depend on the seed only.

use super::parameters::{InitialValues, ParameterEntry};
use super::q_network::{activate, discrete_actions};
use super::trunk::{Trunk, layer_norm};
use crate::env::Spec;
use crate::error::TrainerError;
use rankdeck_types::experiment::{Activation, NetworkKind, Policy};
use tch::{TchError, Tensor};

/// Parameter tensors of a layer with its normalization.
const EACH: usize = 4;

/// Where everything is in the flat buffer: convolutions, hidden layers, Q-values.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NormalizedQLayout {
    /// Convolutions in front, for images.
    pub(crate) trunk: Option<Trunk>,
    /// Behind hidden layers; convolutions have ReLU.
    activation: Activation,
    actions: usize,
    /// Every parameter, in order.
    pub(crate) entries: Vec<ParameterEntry>,
}

impl NormalizedQLayout {
    /// The layout for `spec`. Refused when network and environment do not fit.
    pub(crate) fn new(spec: &Spec, policy: &Policy) -> Result<NormalizedQLayout, TrainerError> {
        let actions = discrete_actions(spec, "pqn")?;
        if policy.network == NetworkKind::Impala {
            return Err(TrainerError::usage(
                "algorithm pqn has no impala network with layer normalization",
                "set policy.network = \"nature\"",
            ));
        }
        let trunk = Trunk::new(&spec.observation_shape, policy)?;
        let mut layout = NormalizedQLayout {
            activation: if trunk.is_some() { Activation::Relu } else { policy.activation },
            actions,
            entries: Vec::new(),
            trunk,
        };
        // In a `torch.nn.Sequential`, each layer, its normalization and its activation take an index.
        let (mut inputs, mut index) = (spec.observation_len(), 0);
        if let (Some(trunk), [_, height, width]) = (layout.trunk.clone(), spec.observation_shape.as_slice()) {
            let (mut height, mut width) = (*height as i64, *width as i64);
            for convolution in &trunk.convolutions {
                let side = |side: i64| (side - convolution.kernel as i64) / convolution.stride + 1;
                (height, width) = (side(height), side(width));
                let rows = vec![convolution.outputs as i64, height, width];
                index = layout.normalized(index, convolution.shape(), rows);
            }
            // The flattening takes one, too.
            (inputs, index) = (trunk.outputs, index + 1);
        }
        for width in &policy.hidden {
            let outputs = i64::from(*width);
            index = layout.normalized(index, vec![outputs, inputs as i64], vec![outputs]);
            inputs = *width as usize;
        }
        layout.layer(index, vec![actions as i64, inputs as i64]);
        Ok(layout)
    }

    /// Adds a layer and its normalization over `rows`; returns the index of the next layer.
    fn normalized(&mut self, index: usize, shape: Vec<i64>, rows: Vec<i64>) -> usize {
        self.layer(index, shape);
        self.entry(index + 1, "weight", rows.clone(), InitialValues::Constant(1.0));
        self.entry(index + 1, "bias", rows, InitialValues::Constant(0.0));
        index + 3
    }

    fn layer(&mut self, index: usize, shape: Vec<i64>) {
        let outputs = shape.iter().copied().take(1).collect();
        self.entry(index, "weight", shape, InitialValues::Orthogonal(std::f64::consts::SQRT_2));
        self.entry(index, "bias", outputs, InitialValues::Constant(0.0));
    }

    fn entry(&mut self, index: usize, part: &str, shape: Vec<i64>, start: InitialValues) {
        let (offset, len) = (self.len(), shape.iter().product::<i64>() as usize);
        self.entries.push(ParameterEntry {
            name: format!("network.{index}.{part}"),
            shape,
            offset,
            len,
            start,
        });
    }

    /// Elements in all.
    pub(crate) fn len(&self) -> usize {
        self.entries.last().map_or(0, |entry| entry.offset + entry.len)
    }

    /// Actions.
    pub(crate) fn actions(&self) -> usize {
        self.actions
    }

    /// Q-values `[batch, actions]` of observations `[batch, ...]`, f32 or u8 pixels.
    pub(crate) fn forward(&self, parameters: &[Tensor], observations: &Tensor) -> Result<Tensor, TchError> {
        let convolutions = self.trunk.as_ref().map_or(0, |trunk| EACH * trunk.convolutions.len());
        let (front, dense) = parameters.split_at(convolutions);
        let (hidden, head) = dense.split_at(dense.len().saturating_sub(2));
        let mut value = match &self.trunk {
            Some(trunk) => trunk.forward_normalized(front, observations)?,
            None => observations.shallow_clone(),
        };
        for layer in hidden.chunks_exact(EACH) {
            let rows = value.f_linear(&layer[0], Some(&layer[1]))?;
            value = activate(self.activation, &layer_norm(&rows, &layer[2..])?)?;
        }
        value.f_linear(&head[0], Some(&head[1]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{ActionSpace, ObservationType};
    use crate::policy::parameters::{Parameters, initial};
    use rankdeck_kernel::seeds::Seeds;
    use tch::{Device, Kind};

    fn images(n: usize) -> Spec {
        Spec {
            observation_shape: vec![4, 84, 84],
            observation_type: ObservationType::U8,
            actions: ActionSpace::Discrete { n },
            branches: Vec::new(),
        }
    }

    fn made(spec: &Spec, network: NetworkKind, hidden: &[u32]) -> (NormalizedQLayout, Parameters) {
        let policy =
            Policy { network, hidden: hidden.to_vec(), activation: Activation::Relu, ..Policy::default() };
        let layout = NormalizedQLayout::new(spec, &policy).unwrap();
        let flat = initial(&layout.entries, &Seeds::new(3));
        let parameters = Parameters::new(&layout.entries, &flat, Device::Cpu).unwrap();
        (layout, parameters)
    }

    /// NORMQ-1. Counts as torch gives them for CleanRL's modules.
    #[test]
    fn normq_1_names_and_counts_are_cleanrls() {
        let (layout, _) = made(&Spec::discrete(4, 2), NetworkKind::Mlp, &[120, 84]);
        let names: Vec<&str> = layout.entries.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "network.0.weight",
                "network.0.bias",
                "network.1.weight",
                "network.1.bias",
                "network.3.weight",
                "network.3.bias",
                "network.4.weight",
                "network.4.bias",
                "network.6.weight",
                "network.6.bias"
            ]
        );
        // 4 * 120 + 120 + 2 * 120 + 120 * 84 + 84 + 2 * 84 + 84 * 2 + 2
        assert_eq!((layout.len(), layout.actions()), (11_342, 2));
        let (atari, _) = made(&images(4), NetworkKind::Nature, &[512]);
        let named = |name: &str| atari.entries.iter().find(|entry| entry.name == name).unwrap().shape.clone();
        assert_eq!(named("network.1.weight"), [32, 20, 20]);
        assert_eq!(named("network.7.bias"), [64, 7, 7]);
        assert_eq!((named("network.10.weight"), named("network.13.weight")), (vec![512, 3136], vec![4, 512]));
        // 1,686,180 of the network without normalization, and twice each normalized shape.
        assert_eq!(atari.len(), 1_686_180 + 2 * (32 * 400 + 64 * 81 + 64 * 49 + 512));
    }

    /// By the definition, number by number.
    #[test]
    fn forward_normalizes_each_row_before_the_activation() {
        let (layout, parameters) = made(&Spec::discrete(3, 2), NetworkKind::Mlp, &[5]);
        let x = [0.3_f32, -1.2, 0.7, 2.0, 0.1, -0.4];
        let q = layout.forward(parameters.tensors(), &Tensor::from_slice(&x).view([2, 3])).unwrap();
        let numbers = |i: usize| Vec::<f32>::try_from(parameters.tensors()[i].flatten(0, -1)).unwrap();
        let (weight, head) = (numbers(0), numbers(4));
        for (row, x) in x.chunks(3).enumerate() {
            let hidden: Vec<f32> =
                weight.chunks(3).map(|w| w.iter().zip(x).map(|(w, x)| w * x).sum()).collect();
            let mean = hidden.iter().sum::<f32>() / 5.0;
            let variance = hidden.iter().map(|h| (h - mean).powi(2)).sum::<f32>() / 5.0;
            let active: Vec<f32> =
                hidden.iter().map(|h| ((h - mean) / (variance + 1e-5).sqrt()).max(0.0)).collect();
            for (action, w) in head.chunks(5).enumerate() {
                let expected: f32 = w.iter().zip(&active).map(|(w, a)| w * a).sum();
                let got = q.double_value(&[row as i64, action as i64]) as f32;
                assert!((got - expected).abs() < 1e-5, "{got} {expected}");
            }
        }
    }

    /// TRUNK-4: of pixels too, with a gradient for every parameter.
    #[test]
    fn normalized_convolutions_take_pixels_and_learn() {
        let (layout, parameters) = made(&images(3), NetworkKind::Nature, &[16]);
        let pixels: Vec<u8> = (0..2 * 4 * 84 * 84).map(|i| (i * 7 % 251) as u8).collect();
        let pixels = Tensor::from_slice(&pixels).view([2, 4, 84, 84]);
        let scaled = pixels.to_kind(Kind::Float) / 255.0;
        let [a, b] = [pixels, scaled].map(|x| layout.forward(parameters.tensors(), &x).unwrap());
        assert_eq!(a.size(), [2, 3]);
        assert!((&a - b).abs().max().double_value(&[]) < 1e-4);
        a.square().sum(Kind::Float).backward();
        for (name, tensor) in parameters.named() {
            assert!(tensor.grad().abs().max().double_value(&[]) > 0.0, "{name}");
        }
    }

    #[test]
    fn unsuitable_settings_name_their_key() {
        let pendulum = Spec {
            actions: ActionSpace::Continuous { low: vec![-1.0], high: vec![1.0] },
            ..Spec::discrete(3, 1)
        };
        let policy = |network| Policy { network, ..Policy::default() };
        for (spec, policy, key) in [
            (&pendulum, policy(NetworkKind::Mlp), "learn.algorithm"),
            (&Spec::discrete(4, 2), policy(NetworkKind::Nature), "policy.network"),
            (&images(4), policy(NetworkKind::Impala), "policy.network"),
        ] {
            let error = NormalizedQLayout::new(spec, &policy).unwrap_err();
            assert!(error.usage && error.hint().contains(key), "{error:?}");
        }
    }
}
