//! Actor and critic: the layout of their parameters in one flat buffer, the networks in libtorch and, where
//! they are dense, in plain Rust.
//!
//! Parameters are leaf tensors that are views of [`ActorCritic::flat`], in the order of
//! [`Layout::entries`]; optimizer, checkpoint and rollout work on the flat buffer, autograd on the views.
//!
//! Invariants:
//! - POLICY-1: initial weights depend on the seed only: orthogonal with gain sqrt 2 (heads: actor 0.01,
//!   critic 1, auxiliary value 1; memory 1), biases 0 (minGRU's gates -3 to 3). `impala` begins as in
//!   CleanRL's ppg_procgen.py: the weights of each unit have a norm (dense layers 1.4, heads 0.1), directions
//!   as PyTorch's.
//! - POLICY-2: names and shapes are those that `state_dict()` of CleanRL's networks has in PyTorch:
//!   `critic.0.weight` and `actor.0.weight` `[out, in]` (`actor_mean.0.weight` and `actor_logstd` for
//!   continuous actions); shared layers are `network.0.weight`, an LSTM behind them `lstm.weight_ih_l0`.

use super::branches::{self, Branches};
use super::distribution::Distribution;
use super::memory::{self, Memory, Sequences};
use super::parameters::{InitialValues, ParameterEntry, Parameters, initial};
use super::trunk::{self, BackwardSplit, Trunk};
use crate::env::{ActionSpace, Actions, Spec};
use crate::error::TrainerError;
use rankdeck_kernel::Matrix;
use rankdeck_kernel::distribution::{Categorical, Gaussian};
use rankdeck_kernel::isa::Isa;
use rankdeck_kernel::loss::{Distance, Gain, Goals, Surrogate, policy_gradient, surrogate, value_loss};
pub use rankdeck_kernel::mlp::Layer;
use rankdeck_kernel::mlp::{LayerActivation, Mlp};
use rankdeck_kernel::recurrent::{Recurrent, RecurrentCell};
use rankdeck_kernel::seeds::Seeds;
use rankdeck_kernel::trace;
use rankdeck_types::experiment::{Activation, NetworkKind, Policy};
use tch::{Device, Kind, TchError, Tensor};

/// Initial weights of dense layers (POLICY-1).
struct WeightInit {
    hidden: InitialValues,
    actor: InitialValues,
    critic: InitialValues,
}

impl WeightInit {
    fn of(network: NetworkKind) -> WeightInit {
        let (hidden, [actor, critic]): (_, [InitialValues; 2]) = match network {
            NetworkKind::Impala => (InitialValues::Normed(1.4), [0.1, 0.1].map(InitialValues::Normed)),
            _ => (InitialValues::Orthogonal(2.0_f64.sqrt()), [0.01, 1.0].map(InitialValues::Orthogonal)),
        };
        WeightInit { hidden, actor, critic }
    }
}

/// The place of every parameter in the flat buffer.
///
/// The order of the entries: critic, actor (with `actor_logstd`), auxiliary value head; before them, when
/// there are any, the trunk's convolutions, shared layers and memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    /// Convolutions in front, for images.
    pub(crate) trunk: Option<Trunk>,
    /// In front, for observations with images and other values.
    pub(crate) branches: Option<Branches>,
    /// Layers that actor and critic share, each followed by the activation.
    pub shared: Vec<Layer>,
    /// Behind the shared layers.
    pub(crate) memory: Option<Memory>,
    /// The memory for the native kernels.
    pub(crate) cell: Option<RecurrentCell>,
    /// Layers of the critic, input first; its last one is linear.
    pub critic: Vec<Layer>,
    /// Layers of the actor, input first; its last one is linear: logits, or means.
    pub actor: Vec<Layer>,
    /// Choices of each part of discrete actions; empty for continuous ones.
    pub(crate) sizes: Vec<usize>,
    /// Index of `actor_logstd` in the flat buffer, for continuous actions.
    pub log_std: Option<usize>,
    /// A second value head next to the actor's last layer, which only PPG's auxiliary phase trains.
    pub aux: Option<Layer>,
    /// Between layers.
    pub activation: Activation,
    /// Every parameter, in order.
    pub(crate) entries: Vec<ParameterEntry>,
    /// Elements in all.
    pub len: usize,
}

impl Layout {
    /// The layout for `spec`; `aux`: with an auxiliary value head. Refused when network and observations do
    /// not fit.
    pub fn new(spec: &Spec, policy: &Policy, aux: bool) -> Result<Layout, TrainerError> {
        let branches = Branches::new(spec, policy)?;
        let trunk = match branches {
            Some(_) => None,
            None => Trunk::new(&spec.observation_shape, policy)?,
        };
        let for_images = trunk.is_some() || branches.is_some();
        let mut layout = Layout {
            shared: Vec::new(),
            memory: None,
            cell: None,
            critic: Vec::new(),
            actor: Vec::new(),
            sizes: spec.actions.sizes().to_vec(),
            log_std: None,
            aux: None,
            activation: if for_images { Activation::Relu } else { policy.activation },
            entries: Vec::new(),
            len: 0,
            trunk,
            branches,
        };
        let starts = WeightInit::of(policy.network);
        let mut inputs = spec.observation_len();
        let (mut prefix, mut index) = ("network", 0);
        if let Some(trunk) = layout.trunk.clone() {
            layout.convolutions(&trunk, starts.hidden);
            (inputs, index) = (trunk.outputs, trunk.next_index);
        }
        if let Some(all) = layout.branches.clone() {
            all.images.iter().for_each(|image| layout.convolutions(&image.trunk, starts.hidden));
            let mut width = all.inputs();
            for (i, hidden) in all.hidden.iter().enumerate() {
                let name = format!("{}.{}", branches::VECTOR_LAYERS, 2 * i);
                layout.linear(&name, width, *hidden, starts.hidden);
                width = *hidden;
            }
            (inputs, prefix) = (all.outputs(), branches::SHARED_LAYERS);
        }
        let mut hidden: &[u32] = &policy.hidden;
        if policy.shared || for_images || policy.memory.is_some() {
            for width in hidden {
                let layer =
                    layout.linear(&format!("{prefix}.{index}"), inputs, *width as usize, starts.hidden);
                layout.shared.push(layer);
                // The activation takes an index too.
                (inputs, index) = (*width as usize, index + 2);
            }
            hidden = &[];
        }
        if let Some(memory) = Memory::new(policy, inputs) {
            let places = memory.parameters().map(|(name, shape, start)| layout.entry(&name, shape, start));
            inputs = memory.size;
            layout.cell = Some(memory.cell(places));
            layout.memory = Some(memory);
        }
        // CleanRL's single layers are not a Sequential: their names have no index.
        layout.critic = layout.network("critic", inputs, hidden, 1, (starts.hidden, starts.critic));
        let actor = match spec.actions {
            ActionSpace::Discrete { .. } | ActionSpace::MultiDiscrete { .. } => "actor",
            ActionSpace::Continuous { .. } => "actor_mean",
        };
        layout.actor =
            layout.network(actor, inputs, hidden, spec.actions.width(), (starts.hidden, starts.actor));
        if let ActionSpace::Continuous { low, .. } = &spec.actions {
            let shape = vec![1, low.len() as i64];
            layout.log_std =
                Some(layout.entry("actor_logstd", shape, InitialValues::Constant(policy.log_std)));
        }
        if aux {
            let inputs = layout.actor.last().map_or(inputs, |layer| layer.inputs);
            layout.aux = Some(layout.linear("aux_critic", inputs, 1, starts.critic));
        }
        Ok(layout)
    }

    fn network(
        &mut self,
        name: &str,
        inputs: usize,
        hidden: &[u32],
        outputs: usize,
        (between, head): (InitialValues, InitialValues),
    ) -> Vec<Layer> {
        if hidden.is_empty() && (!self.shared.is_empty() || self.memory.is_some()) {
            return vec![self.linear(name, inputs, outputs, head)];
        }
        let widths: Vec<usize> = std::iter::once(inputs)
            .chain(hidden.iter().map(|width| *width as usize))
            .chain(std::iter::once(outputs))
            .collect();
        let last = widths.len() - 2;
        widths
            .windows(2)
            .enumerate()
            .map(|(i, pair)| {
                let start = if i == last { head } else { between };
                self.linear(&format!("{name}.{}", 2 * i), pair[0], pair[1], start)
            })
            .collect()
    }

    fn convolutions(&mut self, trunk: &Trunk, dense: InitialValues) {
        for (i, convolution) in trunk.convolutions.iter().enumerate() {
            let start = trunk.start_norm(i).map_or(dense, InitialValues::Normed);
            self.entry(&format!("{}.weight", convolution.name), convolution.shape(), start);
            let outputs = vec![convolution.outputs as i64];
            self.entry(&format!("{}.bias", convolution.name), outputs, InitialValues::Constant(0.0));
        }
    }

    fn linear(&mut self, name: &str, inputs: usize, outputs: usize, start: InitialValues) -> Layer {
        let shape = vec![outputs as i64, inputs as i64];
        Layer {
            inputs,
            outputs,
            weight: self.entry(&format!("{name}.weight"), shape, start),
            bias: self.entry(&format!("{name}.bias"), vec![outputs as i64], InitialValues::Constant(0.0)),
        }
    }

    fn entry(&mut self, name: &str, shape: Vec<i64>, start: InitialValues) -> usize {
        let (offset, len) = (self.len, shape.iter().product::<i64>() as usize);
        self.entries.push(ParameterEntry { name: name.into(), shape, offset, len, start });
        self.len += len;
        offset
    }

    /// The plain-Rust passes can run it: no convolutions.
    pub(crate) fn is_dense(&self) -> bool {
        self.trunk.is_none() && self.branches.is_none()
    }

    /// Numbers of the memory's state of one environment; 0 without memory.
    pub(crate) fn state_len(&self) -> usize {
        self.memory.as_ref().map_or(0, Memory::state_len)
    }

    /// Numbers that the actor gives per observation: logits or means.
    pub(crate) fn actor_width(&self) -> usize {
        self.actor.last().map_or(0, |layer| layer.outputs)
    }

    /// Initial weights (POLICY-1).
    fn initial(&self, seeds: &Seeds) -> Vec<f32> {
        initial(&self.entries, seeds)
    }
}

/// Actor and critic.
pub struct ActorCritic {
    layout: Layout,
    parameters: Parameters,
}

/// Output of the networks for a batch of observations, with gradients.
pub struct PolicyOutput {
    /// Of the actions.
    pub distribution: Distribution,
    /// Values, `[batch]`.
    pub values: Tensor,
    /// Values of the auxiliary head, `[batch]`, when it was requested.
    pub aux: Option<Tensor>,
    /// States of the memory after the last step, `[envs, state_len]`, of networks that have one.
    pub(crate) state: Option<Tensor>,
}

/// A batch for the networks.
#[derive(Clone, Copy)]
pub(crate) struct PolicyInput<'a> {
    /// `[batch, ...]`: f32, or u8 pixels.
    pub(crate) observations: &'a Tensor,
    /// `[batch, choices]`, 0 where a choice is not allowed.
    pub(crate) masks: Option<&'a Tensor>,
    /// The sequences that the batch consists of; networks with memory need them.
    pub(crate) sequences: Option<&'a Sequences>,
}

/// Which parts of the networks take part, for algorithms that train them in phases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardOptions {
    /// The critic reads the shared layers without changing them.
    pub detached: bool,
    /// The auxiliary head takes part.
    pub aux: bool,
}

impl ForwardOptions {
    /// Everything but the auxiliary head, nothing detached.
    pub const PLAIN: ForwardOptions = ForwardOptions { detached: false, aux: false };
}

impl ActorCritic {
    /// Freshly initialized networks on `device`.
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
    pub(crate) fn named_parameters(&self) -> Vec<(String, Tensor)> {
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
    pub(crate) fn copy_to(&self, flat: &mut [f32]) -> Result<(), TchError> {
        self.parameters.copy_to(flat)
    }

    /// Overwrites all parameters.
    pub fn copy_from(&mut self, flat: &[f32]) -> Result<(), TchError> {
        self.parameters.copy_from(flat)
    }

    /// Runs the networks on observations `[batch, ...]`: f32, or u8 pixels.
    pub fn forward(&self, observations: &Tensor, pass: ForwardOptions) -> Result<PolicyOutput, TchError> {
        self.forward_masked(observations, None, pass)
    }

    /// The same; `masks` `[batch, choices]` are 0 where a choice is not allowed.
    pub(crate) fn forward_masked(
        &self,
        observations: &Tensor,
        masks: Option<&Tensor>,
        pass: ForwardOptions,
    ) -> Result<PolicyOutput, TchError> {
        let input = PolicyInput { observations, masks, sequences: None };
        self.forward_split(input, pass, false).map(|(output, _)| output)
    }

    /// The same with masks and sequences, `cut` behind the convolutions.
    pub(crate) fn forward_split(
        &self,
        input: PolicyInput<'_>,
        pass: ForwardOptions,
        cut: bool,
    ) -> Result<(PolicyOutput, Option<BackwardSplit>), TchError> {
        let PolicyInput { observations, masks, sequences } = input;
        let mut at = 0;
        let mut take = |count: usize| {
            let taken = &self.parameters.tensors()[at..at + count];
            at += count;
            taken
        };
        let mut value = match (&self.layout.trunk, &self.layout.branches) {
            (Some(trunk), _) => trunk.forward(take(trunk.parameters()), observations)?,
            (None, Some(branches)) => branches.forward(take(branches.parameters()), observations)?,
            (None, None) => observations.shallow_clone(),
        };
        let mut split = None;
        if cut && self.layout.trunk.is_some() {
            let (after, made) = BackwardSplit::at(value)?;
            (value, split) = (after, Some(made));
        }
        for _ in &self.layout.shared {
            let pair = take(2);
            value = self.activate(&trunk::linear(&value, pair)?)?;
        }
        let mut value = trunk::as_kind(&value, Kind::Float)?;
        let mut state = None;
        if let Some(memory) = &self.layout.memory {
            let Some(sequences) = sequences else {
                return Err(TchError::Torch("a policy with memory needs sequences".into()));
            };
            let (outputs, last) = memory.forward(take(memory::PARAMETERS), &value, sequences)?;
            (value, state) = (outputs, Some(last));
        }
        let seen_by_critic = if pass.detached { value.f_detach()? } else { value.shallow_clone() };
        let critic = take(2 * self.layout.critic.len());
        let values = self.last(critic, &self.hidden(critic, &seen_by_critic)?)?.f_view([-1])?;
        let actor = take(2 * self.layout.actor.len());
        let hidden = self.hidden(actor, &value)?;
        let scores = self.last(actor, &hidden)?;
        let distribution = match self.layout.log_std {
            None => Distribution::discrete(&scores, &self.layout.sizes, masks)?,
            Some(_) => Distribution::gaussian(scores, &take(1)[0])?,
        };
        let aux = match self.layout.aux {
            Some(_) if pass.aux => Some(self.last(take(2), &hidden)?.f_view([-1])?),
            _ => None,
        };
        Ok((PolicyOutput { distribution, values, aux, state }, split))
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

/// Actor and critic in plain Rust, for acting and for learning, with everything that a batch needs on its
/// way.
///
/// It reads a snapshot of the flat parameter buffer ([`DenseActorCritic::load`]), so it serves a policy that
/// learns on a GPU as well, and adds gradients to a flat buffer in the layout's order.
///
/// The way of an update: `load`, `forward`, `log_probs`, then a loss writes [`DenseActorCritic::by_log_prob`]
/// and the gradient of the values ([`DenseActorCritic::losses`] has PPO's and A2C's), then `backward`.
pub(crate) struct DenseActorCritic {
    shared: Option<Mlp>,
    memory: Option<Recurrent>,
    critic: Mlp,
    actor: Mlp,
    log_std: Vec<f32>,
    log_std_at: Option<usize>,
    categorical: Categorical,
    gaussian: Gaussian,
    input: Matrix,
    log_probs: Vec<f32>,
    /// The gradient of a loss with respect to each row's log-probability.
    pub(crate) by_log_prob: Vec<f32>,
    /// The gradient of a loss with respect to each row's value.
    pub(crate) by_value: Matrix,
    by_scores: Matrix,
    /// The gradient of what critic and actor see, by each of them.
    by_seen: [Matrix; 2],
    /// That of the shared layers' output, where a memory is between.
    by_shared: Matrix,
    empty: Matrix,
}

/// A minibatch of PPO or A2C, one entry per row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms<'a> {
    /// How log-probabilities make a loss.
    pub(crate) gain: Gain<'a>,
    pub advantages: &'a [f32],
    /// What the values are compared with.
    pub(crate) goals: Goals<'a>,
    /// Clip range of the values.
    pub(crate) value_clip: Option<f32>,
    /// The distance of values from returns.
    pub distance: Distance,
    /// Weight of the value loss.
    pub(crate) value_weight: f32,
}

impl DenseActorCritic {
    /// For batches of up to `rows` rows (more are possible, and allocate); `None` where the layout has
    /// convolutions.
    pub(crate) fn new(layout: &Layout, rows: usize) -> Option<DenseActorCritic> {
        if !layout.is_dense() {
            return None;
        }
        let hidden = match layout.activation {
            Activation::Tanh => LayerActivation::Tanh,
            Activation::Relu => LayerActivation::Relu,
        };
        let network = |layers: &[_]| Mlp::new(layers, hidden, LayerActivation::Identity, rows);
        let inputs = |layers: &[Layer]| layers.first().map_or(0, |layer| layer.inputs);
        let width = layout.actor_width();
        let features = layout.shared.last().map_or(0, |layer| layer.outputs);
        // Nothing is before separate networks that could take a gradient.
        let (first, seen) = match (layout.shared.first(), &layout.memory) {
            (Some(layer), _) => (layer.inputs, inputs(&layout.actor)),
            (None, Some(memory)) => (memory.inputs, inputs(&layout.actor)),
            (None, None) => (inputs(&layout.actor), 0),
        };
        Some(DenseActorCritic {
            memory: layout.cell.map(|cell| Recurrent::new(cell, rows)),
            shared: (!layout.shared.is_empty()).then(|| Mlp::new(&layout.shared, hidden, hidden, rows)),
            critic: network(&layout.critic),
            actor: network(&layout.actor),
            log_std: vec![0.0; if layout.log_std.is_some() { width } else { 0 }],
            log_std_at: layout.log_std,
            categorical: Categorical::new(width),
            gaussian: Gaussian::default(),
            input: Matrix::new(rows, first),
            log_probs: vec![0.0; rows],
            by_log_prob: vec![0.0; rows],
            by_value: Matrix::new(rows, 1),
            by_scores: Matrix::new(rows, width),
            by_seen: [Matrix::new(rows, seen), Matrix::new(rows, seen)],
            by_shared: Matrix::new(rows, features),
            empty: Matrix::new(0, 1),
        })
    }

    /// Takes a snapshot of the flat parameter buffer.
    pub(crate) fn load(&mut self, flat: &[f32]) {
        self.shared.iter_mut().chain([&mut self.critic, &mut self.actor]).for_each(|part| part.load(flat));
        self.memory.iter_mut().for_each(|memory| memory.load(flat));
        if let Some(at) = self.log_std_at {
            let len = self.log_std.len();
            self.log_std.copy_from_slice(&flat[at..at + len]);
        }
    }

    /// Runs both networks on `[rows][observation_len]`; [`DenseActorCritic::scores`] and
    /// [`DenseActorCritic::values`] have the results. With memory, rows are `[steps][envs]`, `states` `[envs][state_len]`
    /// are those before the first step and then those after the last one, and `resets` has a flag per row or is empty.
    pub(crate) fn forward(&mut self, observations: &[f32], states: &mut [f32], resets: &[bool]) {
        self.input.copy_rows(observations);
        trace::part("shared");
        let mut seen = match &mut self.shared {
            Some(shared) => shared.forward(&self.input),
            None => &self.input,
        };
        if let Some(memory) = &mut self.memory {
            seen = memory.forward(seen, states, resets);
        }
        trace::part("critic");
        self.critic.forward(seen);
        trace::part("actor");
        self.actor.forward(seen);
        trace::part("");
    }

    /// Logits or means, `[rows][actor_width]`.
    pub(crate) fn scores(&self) -> &Matrix {
        self.actor.output().unwrap_or(&self.empty)
    }

    /// Values, `[rows][1]`.
    pub(crate) fn values(&self) -> &Matrix {
        self.critic.output().unwrap_or(&self.empty)
    }

    /// Log-probabilities of the actions of the rows that were run last, and the entropies' mean with these
    /// shares. Gaussian actions are meant as they were sampled, before any clipping.
    pub(crate) fn log_probs(&mut self, actions: Actions<'_>, shares: &[f32]) -> (&[f32], f64) {
        let rows = self.input.rows();
        self.log_probs.resize(rows, 0.0);
        self.by_log_prob.resize(rows, 0.0);
        let scores = self.actor.output().unwrap_or(&self.empty);
        let entropy = match actions {
            Actions::Discrete(actions) => {
                self.categorical.forward(scores, actions, shares, &mut self.log_probs)
            }
            Actions::Continuous(actions) => {
                self.gaussian.forward(scores, &self.log_std, actions, shares, &mut self.log_probs)
            }
        };
        trace::record(|| "log-probabilities".into(), &self.log_probs);
        trace::record(|| "entropy".into(), &[entropy as f32]);
        (&self.log_probs, entropy)
    }

    /// Losses of the rows whose log-probabilities were taken last, and their gradients. Returns the policy's
    /// numbers (without a ratio: the loss only) and the value loss.
    pub(crate) fn losses(&mut self, batch: Terms<'_>) -> (Surrogate, f64) {
        let Terms { gain, advantages, goals, .. } = batch;
        let (shares, isa) = (goals.shares, Isa::best());
        let (log_probs, gradient) = (&self.log_probs, &mut self.by_log_prob);
        let numbers = match gain {
            Gain::Clipped { old_log_probs, clip } => {
                surrogate(isa, log_probs, old_log_probs, advantages, shares, clip, gradient)
            }
            Gain::Plain => {
                let loss = policy_gradient(isa, log_probs, advantages, shares, gradient);
                Surrogate { loss, ..Surrogate::default() }
            }
        };
        let values = self.critic.output().unwrap_or(&self.empty);
        let value = value_loss(
            values,
            goals,
            batch.distance,
            batch.value_clip,
            batch.value_weight,
            &mut self.by_value,
        );
        trace::record(|| "policy loss".into(), &[numbers.loss as f32]);
        trace::record(|| "value loss".into(), &[value as f32]);
        trace::record(|| "gradient of the log-probabilities".into(), &self.by_log_prob);
        (numbers, value)
    }

    /// Adds the gradient of a loss to `flat`, from `by_log_prob`, `by_value`, and its gradient with respect
    /// to the mean entropy. `actions` and `shares` are those of the last [`DenseActorCritic::log_probs`].
    pub(crate) fn backward(
        &mut self,
        actions: Actions<'_>,
        shares: &[f32],
        by_entropy: f32,
        flat: &mut [f32],
    ) {
        match actions {
            Actions::Discrete(actions) => {
                self.categorical.backward(
                    actions,
                    &self.by_log_prob,
                    shares,
                    by_entropy,
                    &mut self.by_scores,
                );
            }
            Actions::Continuous(_) => {
                let at = self.log_std_at.unwrap_or(flat.len());
                let by_log_std = &mut flat[at..at + self.log_std.len()];
                let (by_log_prob, gradient) = (&self.by_log_prob, &mut self.by_scores);
                let log_std = &self.log_std;
                self.gaussian.backward(log_std, by_log_prob, shares, by_entropy, gradient, by_log_std);
            }
        }
        let DenseActorCritic { shared, memory, critic, actor, input, by_value, by_scores, .. } = self;
        if shared.is_none() && memory.is_none() {
            trace::part("critic");
            critic.backward(input, by_value, flat, None);
            trace::part("actor");
            actor.backward(input, by_scores, flat, None);
            trace::part("");
            return;
        }
        let features = shared.as_ref().and_then(Mlp::output).unwrap_or(input);
        let seen = memory.as_ref().map_or(features, Recurrent::output);
        let [by_critic, by_actor] = &mut self.by_seen;
        trace::part("critic");
        critic.backward(seen, by_value, flat, Some(&mut *by_critic));
        trace::part("actor");
        actor.backward(seen, by_scores, flat, Some(&mut *by_actor));
        by_critic.add(by_actor);
        trace::part("shared");
        let mut by_features = &*by_critic;
        if let Some(memory) = memory {
            let to = shared.is_some().then_some(&mut self.by_shared);
            memory.backward(features, by_critic, flat, to);
            by_features = &self.by_shared;
        }
        if let Some(shared) = shared {
            shared.backward(input, by_features, flat, None);
        }
        trace::part("");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{ObservationType, Spec};
    use rankdeck_types::experiment::{MemoryKind, Policy};

    fn policy(hidden: &[u32]) -> Policy {
        Policy { hidden: hidden.to_vec(), ..Policy::default() }
    }

    fn names(layout: &Layout) -> Vec<&str> {
        layout.entries.iter().map(|entry| entry.name.as_str()).collect()
    }

    #[test]
    fn policy_2_cleanrls_names_shapes_and_count() {
        let layout = Layout::new(&Spec::discrete(4, 2), &policy(&[64, 64]), false).unwrap();
        assert_eq!(layout.len, 9155);
        assert_eq!(names(&layout)[..3], ["critic.0.weight", "critic.0.bias", "critic.2.weight"]);
        assert_eq!(names(&layout)[6], "actor.0.weight");
        assert_eq!(layout.entries[10].shape, [2, 64]);
        // ppo_continuous_action.py on HalfCheetah: 17 numbers, 6 actions.
        let actions = ActionSpace::Continuous { low: vec![-1.0; 6], high: vec![1.0; 6] };
        let spec = Spec { actions, ..Spec::discrete(17, 1) };
        let layout = Layout::new(&spec, &policy(&[64, 64]), false).unwrap();
        assert_eq!(layout.len, 11_085);
        assert_eq!(names(&layout)[11..], ["actor_mean.4.bias", "actor_logstd"]);
        assert_eq!(layout.entries[12].shape, [1, 6]);
        // ppo_atari.py on Breakout.
        let spec = Spec {
            observation_shape: vec![4, 84, 84],
            observation_type: ObservationType::U8,
            branches: Vec::new(),
            actions: ActionSpace::Discrete { n: 4 },
        };
        let nature = Policy { network: NetworkKind::Nature, ..policy(&[512]) };
        let layout = Layout::new(&spec, &nature, false).unwrap();
        assert_eq!(layout.len, 1_686_693);
        assert_eq!(
            names(&layout)[4..8],
            ["network.4.weight", "network.4.bias", "network.7.weight", "network.7.bias"]
        );
        assert_eq!(names(&layout)[8..], ["critic.weight", "critic.bias", "actor.weight", "actor.bias"]);
    }

    /// The names and sizes of CleanRL's ppo_atari_lstm.py, with as many frames as it stacks there: one.
    #[test]
    fn policy_2_memory_follows_the_shared_layers() {
        let spec = Spec {
            observation_shape: vec![1, 84, 84],
            observation_type: ObservationType::U8,
            branches: Vec::new(),
            actions: ActionSpace::Discrete { n: 4 },
        };
        let lstm = Policy {
            network: NetworkKind::Nature,
            memory: Some(MemoryKind::Lstm),
            memory_size: Some(128),
            ..policy(&[512])
        };
        let layout = Layout::new(&spec, &lstm, false).unwrap();
        assert_eq!(
            names(&layout)[6..],
            [
                "network.7.weight",
                "network.7.bias",
                "lstm.weight_ih_l0",
                "lstm.weight_hh_l0",
                "lstm.bias_ih_l0",
                "lstm.bias_hh_l0",
                "critic.weight",
                "critic.bias",
                "actor.weight",
                "actor.bias"
            ]
        );
        assert_eq!(layout.entries[8].shape, [512, 512]);
        assert_eq!(layout.entries[14].shape, [4, 128]);
        assert_eq!((layout.state_len(), layout.is_dense()), (256, false));
        assert!(layout.cell.is_some());
        let mingru = Policy { memory: Some(MemoryKind::MinGru), memory_size: Some(16), ..policy(&[]) };
        let layout = Layout::new(&Spec::discrete(4, 2), &mingru, false).unwrap();
        assert_eq!(names(&layout)[0], "mingru.linear_z.weight");
        assert_eq!(names(&layout)[4..6], ["critic.weight", "critic.bias"]);
        assert_eq!((layout.entries[0].shape.as_slice(), layout.state_len()), ([16, 4].as_slice(), 16));
    }

    #[test]
    fn unsuitable_network_names_its_key() {
        let nature = Policy { network: NetworkKind::Nature, ..policy(&[512]) };
        let small = Spec { observation_shape: vec![4, 20, 20], ..Spec::discrete(1, 2) };
        for (spec, policy) in [(&Spec::discrete(4, 2), &nature), (&small, &nature)] {
            let error = Layout::new(spec, policy, false).unwrap_err();
            assert!(error.usage && error.hint().contains("policy.network"), "{error:?}");
        }
    }

    #[test]
    fn policy_1_weights_are_orthogonal_and_biases_are_zero() {
        let layout = Layout::new(&Spec::discrete(4, 2), &policy(&[64, 64]), false).unwrap();
        let flat = layout.initial(&Seeds::new(3));
        let check = |layer: &Layer, gain: f64| {
            let at = |r: usize, c: usize| f64::from(flat[layer.weight + r * layer.inputs + c]);
            let (rows, columns) = (layer.outputs, layer.inputs);
            let count = rows.min(columns);
            for a in 0..count {
                for b in 0..count {
                    let dot: f64 = if rows <= columns {
                        (0..columns).map(|c| at(a, c) * at(b, c)).sum()
                    } else {
                        (0..rows).map(|r| at(r, a) * at(r, b)).sum()
                    };
                    let expected = if a == b { gain * gain } else { 0.0 };
                    assert!((dot - expected).abs() < 1e-5 * gain.max(1.0), "{a} {b} {dot} {expected}");
                }
            }
            assert!(flat[layer.bias..layer.bias + layer.outputs].iter().all(|b| *b == 0.0));
        };
        for (layers, head) in [(&layout.critic, 1.0), (&layout.actor, 0.01)] {
            check(&layers[0], 2.0_f64.sqrt());
            check(&layers[1], 2.0_f64.sqrt());
            check(&layers[2], head);
        }
        assert_eq!(flat, layout.initial(&Seeds::new(3)));
        assert_ne!(flat, layout.initial(&Seeds::new(4)));
    }

    #[test]
    fn detached_critic_and_unused_aux_head_get_no_gradient() {
        let policy = Policy { shared: true, hidden: vec![8], ..Policy::default() };
        let layout = Layout::new(&Spec::discrete(4, 2), &policy, true).unwrap();
        let net = ActorCritic::new(layout, &Seeds::new(0), Device::Cpu).unwrap();
        let observations = Tensor::from_slice(&[0.5_f32; 12]).view([3, 4]);
        let gradient = |name: &str| {
            let found = net.named_parameters().into_iter().find(|(known, _)| known == name).unwrap().1.grad();
            found.defined() && found.abs().sum(Kind::Float).double_value(&[]) > 0.0
        };
        let detached = net.forward(&observations, ForwardOptions { detached: true, aux: false }).unwrap();
        assert!(detached.aux.is_none());
        detached.values.sum(Kind::Float).backward();
        assert!(gradient("critic.weight") && !gradient("network.0.weight") && !gradient("aux_critic.weight"));
        net.forward(&observations, ForwardOptions::PLAIN).unwrap().values.sum(Kind::Float).backward();
        assert!(gradient("network.0.weight") && !gradient("aux_critic.weight"));
        net.forward(&observations, ForwardOptions { detached: false, aux: true })
            .unwrap()
            .aux
            .unwrap()
            .sum(Kind::Float)
            .backward();
        assert!(gradient("aux_critic.weight"));
    }
}
