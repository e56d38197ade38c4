//! Q-networks of DQN: the layout of their parameters in one flat buffer, online and target network in
//! libtorch, and dense networks in plain Rust.
//!
//! libtorch is the reference, and runs images and GPUs; [`DenseQNetwork`] is the same for small dense
//! networks on the CPU.
//!
//! Invariants:
//! - QNET-1: initial weights are those that `torch.nn.Linear` and `Conv2d` begin with, whose defaults CleanRL
//!   and DI-engine keep: weight and bias uniform in ±1/sqrt(inputs of a unit). They depend on the seed only.
//! - QNET-2: names and shapes without dueling are those of CleanRL's dqn.py and dqn_atari.py
//!   (`network.0.weight`). With dueling, `value.*` and `advantage.*` follow the shared `network.*`, each with
//!   one hidden layer as wide as what comes in (DI-engine's `DuelingHead`).
//! - With convolutions and dueling, the layer behind the convolutions is linear (DI-engine's
//!   `ConvEncoder`); elsewhere every hidden layer is followed by the activation: ReLU in both references.

use super::parameters::{ParameterEntry, Parameters, initial, pair};
use super::trunk::{self, BackwardSplit, Trunk};
use crate::env::{ActionSpace, Spec};
use crate::error::TrainerError;
use rankdeck_kernel::loss::{dueling, dueling_back};
use rankdeck_kernel::mlp::{Layer, LayerActivation};
use rankdeck_kernel::seeds::Seeds;
use rankdeck_kernel::{Matrix, Mlp};
use rankdeck_types::experiment::{Activation, Policy};
use tch::{Device, Kind, TchError, Tensor};

/// Where everything is in the flat buffer: the trunk's convolutions, shared layers, head of values (dueling),
/// head of advantages or Q-values.
#[derive(Debug, Clone, PartialEq)]
pub struct QLayout {
    /// Convolutions in front, for images.
    pub(crate) trunk: Option<Trunk>,
    /// Layers that the heads share.
    pub shared: Vec<Layer>,
    /// Between dense layers; convolutions have ReLU.
    pub activation: Activation,
    /// No activation behind the last shared layer.
    pub(crate) linear_end: bool,
    /// State value; empty without dueling.
    pub value: Vec<Layer>,
    /// Advantages, or Q-values without dueling.
    pub head: Vec<Layer>,
    /// Every parameter, in order.
    pub(crate) entries: Vec<ParameterEntry>,
    /// Elements in all.
    pub len: usize,
}

/// The number of actions of environments of this kind. Refused where they do not have one discrete action.
pub(super) fn discrete_actions(spec: &Spec, algorithm: &str) -> Result<usize, TrainerError> {
    match &spec.actions {
        ActionSpace::Discrete { n } => Ok(*n),
        ActionSpace::MultiDiscrete { sizes } => Err(TrainerError::usage(
            format!(
                "algorithm {algorithm} needs one discrete action, but this environment has {}",
                sizes.len()
            ),
            "set learn.algorithm = \"ppo\", or choose another env.id",
        )),
        ActionSpace::Continuous { .. } => Err(TrainerError::usage(
            format!("algorithm {algorithm} needs discrete actions, but this environment has continuous ones"),
            "set learn.algorithm = \"sac\", or choose another env.id",
        )),
    }
}

impl QLayout {
    /// The layout for `spec`. Refused when network and environment do not fit.
    pub fn new(spec: &Spec, policy: &Policy, dueling: bool) -> Result<QLayout, TrainerError> {
        let n = discrete_actions(spec, "dqn")?;
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
    pub(crate) fn is_dense(&self) -> bool {
        self.trunk.is_none()
    }

    /// There are two heads.
    pub(crate) fn is_dueling(&self) -> bool {
        !self.value.is_empty()
    }

    /// Actions.
    pub fn actions(&self) -> usize {
        self.head.last().map_or(0, |layer| layer.outputs)
    }
}

/// Online and target network.
pub struct QNetwork {
    layout: QLayout,
    /// The network that learns.
    pub online: Parameters,
    /// Follows the online network; never has gradients.
    pub target: Parameters,
}

impl QNetwork {
    /// Both alike, freshly initialized, on `device`.
    pub(crate) fn new(layout: QLayout, seeds: &Seeds, device: Device) -> Result<QNetwork, TchError> {
        let flat = initial(&layout.entries, seeds);
        let [online, target] = [(); 2].map(|()| Parameters::new(&layout.entries, &flat, device));
        let target = target?;
        for tensor in target.tensors() {
            let _ = tensor.f_set_requires_grad(false)?;
        }
        Ok(QNetwork { layout, online: online?, target })
    }

    /// Q-values `[batch, actions]` of observations `[batch, ...]`, f32 or u8 pixels.
    pub(crate) fn forward(&self, parameters: &[Tensor], observations: &Tensor) -> Result<Tensor, TchError> {
        forward(&self.layout, parameters, observations)
    }

    /// The same, `cut` behind the convolutions.
    pub(crate) fn forward_split(
        &self,
        parameters: &[Tensor],
        observations: &Tensor,
        cut: bool,
    ) -> Result<(Tensor, Option<BackwardSplit>), TchError> {
        forward_split(&self.layout, parameters, observations, cut)
    }

    /// Moves the target by this share towards the online network; 1 copies it.
    pub(crate) fn follow(&mut self, share: f64) -> Result<(), TchError> {
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
pub(crate) fn forward(
    layout: &QLayout,
    parameters: &[Tensor],
    observations: &Tensor,
) -> Result<Tensor, TchError> {
    forward_split(layout, parameters, observations, false).map(|(q, _)| q)
}

fn forward_split(
    layout: &QLayout,
    parameters: &[Tensor],
    observations: &Tensor,
    cut: bool,
) -> Result<(Tensor, Option<BackwardSplit>), TchError> {
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
    let mut split = None;
    if cut && layout.trunk.is_some() {
        let (after, made) = BackwardSplit::at(value)?;
        (value, split) = (after, Some(made));
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
    Ok((q, split))
}

pub(super) fn activate(activation: Activation, value: &Tensor) -> Result<Tensor, TchError> {
    match activation {
        Activation::Tanh => value.f_tanh(),
        Activation::Relu => value.f_relu(),
    }
}

/// Dense layers with the activation between them; the last is linear.
pub(crate) fn dense(
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

/// One network: a snapshot of parameters, and the activations of the last pass.
pub(crate) struct DenseQNetwork {
    shared: Mlp,
    duel: Option<DuelingHeads>,
    /// Gradient of the shared layers' output.
    gradient: Matrix,
}

/// The heads of a dueling network.
struct DuelingHeads {
    value: Mlp,
    advantage: Mlp,
    q: Matrix,
    value_gradient: Matrix,
    advantage_gradient: Matrix,
    other: Matrix,
}

impl DenseQNetwork {
    /// For a dense layout and batches of up to `rows`.
    pub(crate) fn new(layout: &QLayout, rows: usize) -> DenseQNetwork {
        let between = match layout.activation {
            Activation::Tanh => LayerActivation::Tanh,
            Activation::Relu => LayerActivation::Relu,
        };
        let width = layout.head.first().map_or(0, |layer| layer.inputs);
        let duel = layout.is_dueling().then(|| DuelingHeads {
            value: Mlp::new(&layout.value, between, LayerActivation::Identity, rows),
            advantage: Mlp::new(&layout.head, between, LayerActivation::Identity, rows),
            q: Matrix::new(rows, layout.actions()),
            value_gradient: Matrix::new(rows, 1),
            advantage_gradient: Matrix::new(rows, layout.actions()),
            other: Matrix::new(rows, width),
        });
        let shared = match &duel {
            Some(_) => Mlp::new(&layout.shared, between, between, rows),
            None => {
                let layers: Vec<_> = layout.shared.iter().chain(&layout.head).copied().collect();
                Mlp::new(&layers, between, LayerActivation::Identity, rows)
            }
        };
        DenseQNetwork { shared, duel, gradient: Matrix::new(rows, width) }
    }

    /// Takes a snapshot of the flat parameters.
    pub(crate) fn load(&mut self, flat: &[f32]) {
        self.shared.load(flat);
        if let Some(duel) = &mut self.duel {
            duel.value.load(flat);
            duel.advantage.load(flat);
        }
    }

    /// Q-values of every row.
    pub(crate) fn forward<'a>(&'a mut self, input: &'a Matrix) -> &'a Matrix {
        let shared = self.shared.forward(input);
        let Some(duel) = &mut self.duel else { return shared };
        duel.advantage.forward(shared);
        let (Some(advantages), values) = (duel.advantage.output(), duel.value.forward(shared)) else {
            return shared;
        };
        dueling(values, advantages, &mut duel.q);
        &duel.q
    }

    /// Adds the gradient of a loss to `flat`, given that of the Q-values of the last pass over the same
    /// `input`.
    pub(crate) fn backward(&mut self, input: &Matrix, gradient: &Matrix, flat: &mut [f32]) {
        let Some(duel) = &mut self.duel else {
            self.shared.backward(input, gradient, flat, None);
            return;
        };
        dueling_back(gradient, &mut duel.value_gradient, &mut duel.advantage_gradient);
        let shared = self.shared.output().unwrap_or(input);
        duel.value.backward(shared, &duel.value_gradient, flat, Some(&mut self.gradient));
        duel.advantage.backward(shared, &duel.advantage_gradient, flat, Some(&mut duel.other));
        self.gradient.add(&duel.other);
        self.shared.backward(input, &self.gradient, flat, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::ObservationType;
    use rankdeck_kernel::seeds::Seeds;
    use rankdeck_types::experiment::NetworkKind;

    fn mlp(hidden: &[u32]) -> Policy {
        Policy { hidden: hidden.to_vec(), ..Policy::default() }
    }

    fn nature(channels: [u32; 3]) -> Policy {
        Policy {
            network: NetworkKind::Nature,
            hidden: vec![512],
            channels: Some(channels.to_vec()),
            ..Policy::default()
        }
    }

    fn images(n: usize) -> Spec {
        Spec {
            observation_shape: vec![4, 84, 84],
            observation_type: ObservationType::U8,
            branches: Vec::new(),
            actions: ActionSpace::Discrete { n },
        }
    }

    /// Counts as the references have them (DI-engine's CartPole and Pong, CleanRL's CartPole and Breakout).
    #[test]
    fn qnet_2_names_and_counts_equal_the_references() {
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
    fn unsuitable_settings_name_their_key() {
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
