//! Where the parameters of an actor and a critic are in one flat buffer.
//!
//! Owner: the policy. Everything that works on parameters (optimiser, checkpoint, plain-Rust passes,
//! autograd) finds them through this.
//!
//! Invariants:
//! - POLICY-1: initial weights depend on the seed only: orthogonal with gain sqrt 2 (heads: actor 0.01,
//!   critic 1, auxiliary value 1), biases 0. `impala` begins as in CleanRL's ppg_procgen.py: the weights of
//!   each unit have a norm (dense layers 1.4, heads 0.1), directions as PyTorch's.
//! - POLICY-2: names and shapes are those that `state_dict()` of CleanRL's networks has in PyTorch:
//!   `critic.0.weight` and `actor.0.weight` `[out, in]` (`actor_mean.0.weight` and `actor_logstd` for
//!   continuous actions); shared layers are `network.0.weight`.

use super::trunk::Trunk;
use crate::env::{ActionSpace, Spec};
use crate::error::TrainerError;
use crate::page;
pub use rankdeck_kernel::mlp::Layer;
use rankdeck_kernel::orthogonal::orthonormal;
use rankdeck_kernel::seeds::{Purpose, Seeds};
use rankdeck_types::experiment::{Activation, Network, Policy};

/// A parameter's place.
#[derive(Debug, Clone, PartialEq)]
pub struct ParameterEntry {
    /// PyTorch's name.
    pub name: String,
    /// PyTorch's shape.
    pub shape: Vec<i64>,
    /// Index of its first element.
    pub offset: usize,
    /// Elements.
    pub len: usize,
    pub start: InitialValues,
}

/// Initial values of a parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum InitialValues {
    /// Orthogonal with this gain; the first dimension against all others.
    Orthogonal(f64),
    /// Uniform, then scaled so that each slice along the first dimension has this norm.
    Normed(f64),
    /// All of this value.
    Constant(f64),
    /// Uniform between minus and plus this.
    Even(f64),
}

/// Initial weights of dense layers (POLICY-1).
struct Starts {
    hidden: InitialValues,
    actor: InitialValues,
    critic: InitialValues,
}

impl Starts {
    fn of(network: Network) -> Starts {
        let (hidden, [actor, critic]): (_, [InitialValues; 2]) = match network {
            Network::Impala => (InitialValues::Normed(1.4), [0.1, 0.1].map(InitialValues::Normed)),
            _ => (InitialValues::Orthogonal(2.0_f64.sqrt()), [0.01, 1.0].map(InitialValues::Orthogonal)),
        };
        Starts { hidden, actor, critic }
    }
}

/// The place of every parameter in the flat buffer.
///
/// The order of the entries: critic, actor (with `actor_logstd`), auxiliary value head; before them, when
/// there are any, the trunk's convolutions and shared layers.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    /// Convolutions in front, for images.
    pub trunk: Option<Trunk>,
    /// Layers that actor and critic share, each followed by the activation.
    pub shared: Vec<Layer>,
    /// Layers of the critic, input first; its last one is linear.
    pub critic: Vec<Layer>,
    /// Layers of the actor, input first; its last one is linear: logits, or means.
    pub actor: Vec<Layer>,
    /// Index of `actor_logstd` in the flat buffer, for continuous actions.
    pub log_std: Option<usize>,
    /// A second value head beside the actor's last layer, which only PPG's auxiliary phase trains.
    pub aux: Option<Layer>,
    /// Between layers.
    pub activation: Activation,
    /// Every parameter, in order.
    pub entries: Vec<ParameterEntry>,
    /// Elements in all.
    pub len: usize,
}

impl Layout {
    /// The layout for `spec`; `aux`: with an auxiliary value head. Refused when network and observations do
    /// not fit.
    pub fn new(spec: &Spec, policy: &Policy, aux: bool) -> Result<Layout, TrainerError> {
        let trunk = Trunk::new(&spec.observation_shape, policy)?;
        let mut layout = Layout {
            shared: Vec::new(),
            critic: Vec::new(),
            actor: Vec::new(),
            log_std: None,
            aux: None,
            activation: if trunk.is_some() { Activation::Relu } else { policy.activation },
            entries: Vec::new(),
            len: 0,
            trunk,
        };
        let starts = Starts::of(policy.network);
        let mut inputs = spec.observation_len();
        if let Some(trunk) = layout.trunk.clone() {
            for (i, convolution) in trunk.convolutions.iter().enumerate() {
                let start = trunk.start_norm(i).map_or(starts.hidden, InitialValues::Normed);
                layout.entry(&format!("{}.weight", convolution.name), convolution.shape(), start);
                let outputs = vec![convolution.outputs as i64];
                layout.entry(&format!("{}.bias", convolution.name), outputs, InitialValues::Constant(0.0));
            }
            inputs = trunk.outputs;
        }
        let mut hidden: &[u32] = &policy.hidden;
        if policy.shared || layout.trunk.is_some() {
            let mut index = layout.trunk.as_ref().map_or(0, |trunk| trunk.next_index);
            for width in hidden {
                let layer =
                    layout.linear(&format!("network.{index}"), inputs, *width as usize, starts.hidden);
                layout.shared.push(layer);
                // The activation takes an index too.
                (inputs, index) = (*width as usize, index + 2);
            }
            hidden = &[];
        }
        // CleanRL's single layers are not a Sequential: their names have no index.
        layout.critic = layout.network("critic", inputs, hidden, 1, (starts.hidden, starts.critic));
        let actor = match spec.actions {
            ActionSpace::Discrete { .. } => "actor",
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
        if hidden.is_empty() && !self.shared.is_empty() {
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

    /// The plain-Rust passes can run it: dense layers only.
    pub fn is_dense(&self) -> bool {
        self.trunk.is_none()
    }

    /// Numbers that the actor gives per observation: logits or means.
    pub fn actor_width(&self) -> usize {
        self.actor.last().map_or(0, |layer| layer.outputs)
    }

    /// Initial weights (POLICY-1).
    pub fn initial(&self, seeds: &Seeds) -> Vec<f32> {
        initial(&self.entries, seeds)
    }
}

/// Initial values of parameters, one after the other, in their order; the stream is [`Purpose::Model`].
pub fn initial(entries: &[ParameterEntry], seeds: &Seeds) -> Vec<f32> {
    let mut random = seeds.generator(Purpose::Model, 0, 0);
    let mut flat = Vec::with_capacity(entries.iter().map(|entry| entry.len).sum());
    for entry in entries {
        match entry.start {
            InitialValues::Even(bound) => {
                flat.extend((0..entry.len).map(|_| (bound * (2.0 * random.next_f64() - 1.0)) as f32));
            }
            InitialValues::Normed(norm) => {
                let each = entry.len / entry.shape.first().map_or(1, |rows| *rows as usize).max(1);
                for _ in 0..entry.len / each.max(1) {
                    let row: Vec<f64> = (0..each).map(|_| 2.0 * random.next_f64() - 1.0).collect();
                    let scale = norm / row.iter().map(|x| x * x).sum::<f64>().sqrt();
                    flat.extend(row.iter().map(|x| (scale * x) as f32));
                }
            }
            InitialValues::Constant(value) => flat.resize(flat.len() + entry.len, value as f32),
            InitialValues::Orthogonal(gain) => {
                let rows = entry.shape.first().map_or(1, |rows| *rows as usize);
                let weights = orthogonal(rows, entry.len / rows.max(1), || random.normal());
                flat.extend(weights.into_iter().map(|weight| (gain * weight) as f32));
            }
        }
    }
    flat
}

/// A `rows` by `columns` matrix with orthonormal rows or columns, whichever are fewer, uniformly distributed
/// (Gram and Schmidt on normal vectors), row by row.
pub fn orthogonal(rows: usize, columns: usize, mut normal: impl FnMut() -> f64) -> Vec<f64> {
    let (count, len) = (rows.min(columns), rows.max(columns));
    let mut basis: Vec<Vec<f64>> = Vec::with_capacity(count);
    while basis.len() < count {
        let mut vector: Vec<f64> = (0..len).map(|_| normal()).collect();
        if orthonormal(&basis, &mut vector) {
            basis.push(vector);
            // Of the widest layers it takes seconds.
            page::moved();
        }
    }
    let at =
        |row: usize, column: usize| if rows <= columns { basis[row][column] } else { basis[column][row] };
    (0..rows * columns).map(|i| at(i / columns, i % columns)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::ObservationType;

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
            actions: ActionSpace::Discrete { n: 4 },
        };
        let nature = Policy { network: Network::Nature, ..policy(&[512]) };
        let layout = Layout::new(&spec, &nature, false).unwrap();
        assert_eq!(layout.len, 1_686_693);
        assert_eq!(
            names(&layout)[4..8],
            ["network.4.weight", "network.4.bias", "network.7.weight", "network.7.bias"]
        );
        assert_eq!(names(&layout)[8..], ["critic.weight", "critic.bias", "actor.weight", "actor.bias"]);
    }

    #[test]
    fn networks_that_do_not_fit_the_observations_are_refused_with_the_key() {
        let nature = Policy { network: Network::Nature, ..policy(&[512]) };
        let small = Spec { observation_shape: vec![4, 20, 20], ..Spec::discrete(1, 2) };
        for (spec, policy) in [(&Spec::discrete(4, 2), &nature), (&small, &nature)] {
            let error = Layout::new(spec, policy, false).unwrap_err();
            assert!(error.usage && error.hint().contains("policy.network"), "{error:?}");
        }
    }

    #[test]
    fn policy_1_weights_are_orthogonal_with_their_gain_and_biases_are_zero() {
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
                    let wanted = if a == b { gain * gain } else { 0.0 };
                    assert!((dot - wanted).abs() < 1e-5 * gain.max(1.0), "{a} {b} {dot} {wanted}");
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
}
