//! Separate actor and critic MLPs with tanh, as in CleanRL's ppo.py, over one flat parameter buffer.
//!
//! Owner: the training loop. Parameters are leaf tensors that are views of [`ActorCritic::flat`], in the order of [`Layout::entries`];
//! optimiser, checkpoint and rollout work on the flat buffer, autograd on the views.
//!
//! Invariants:
//! - POLICY-1: initial weights depend on the seed only: orthogonal with gain sqrt 2 (heads: actor 0.01, critic 1), biases 0.
//! - POLICY-2: names and shapes are those that `state_dict()` of the same networks has in PyTorch (`critic.0.weight`, `[out, in]`).

use crate::trainer::env::Spec;
use crate::trainer::seeds::{Purpose, Seeds};
use tch::{Device, Kind, TchError, Tensor};

/// One linear layer inside the flat buffer: weight `[outputs, inputs]` row by row, then bias `[outputs]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// Width of its input.
    pub inputs: usize,
    /// Width of its output.
    pub outputs: usize,
    /// Index of the first weight in the flat buffer.
    pub weight: usize,
    /// Index of the first bias in the flat buffer.
    pub bias: usize,
}

/// A parameter's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// PyTorch's name.
    pub name: String,
    /// PyTorch's shape.
    pub shape: Vec<i64>,
    /// Index of its first element.
    pub offset: usize,
    /// Elements.
    pub len: usize,
}

/// Where everything is in the flat buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Layers of the critic, input first.
    pub critic: Vec<Layer>,
    /// Layers of the actor, input first.
    pub actor: Vec<Layer>,
    /// Every parameter, in order.
    pub entries: Vec<Entry>,
    /// Elements in all.
    pub len: usize,
}

impl Layout {
    /// The layout for `spec` with hidden layers of these widths.
    pub fn new(spec: &Spec, hidden: &[u32]) -> Layout {
        let mut layout = Layout { critic: Vec::new(), actor: Vec::new(), entries: Vec::new(), len: 0 };
        layout.critic = layout.network("critic", spec.observation_len(), hidden, 1);
        layout.actor = layout.network("actor", spec.observation_len(), hidden, spec.actions.width());
        layout
    }

    fn network(&mut self, name: &str, inputs: usize, hidden: &[u32], outputs: usize) -> Vec<Layer> {
        let widths: Vec<usize> = std::iter::once(inputs)
            .chain(hidden.iter().map(|width| *width as usize))
            .chain(std::iter::once(outputs))
            .collect();
        // Activations take the odd indices, as in torch.nn.Sequential.
        widths
            .windows(2)
            .enumerate()
            .map(|(i, pair)| Layer {
                inputs: pair[0],
                outputs: pair[1],
                weight: self.entry(format!("{name}.{}.weight", 2 * i), vec![pair[1] as i64, pair[0] as i64]),
                bias: self.entry(format!("{name}.{}.bias", 2 * i), vec![pair[1] as i64]),
            })
            .collect()
    }

    fn entry(&mut self, name: String, shape: Vec<i64>) -> usize {
        let (offset, len) = (self.len, shape.iter().product::<i64>() as usize);
        self.entries.push(Entry { name, shape, offset, len });
        self.len += len;
        offset
    }

    /// Initial weights (POLICY-1).
    pub fn initial(&self, seeds: &Seeds) -> Vec<f32> {
        let mut random = seeds.generator(Purpose::Model, 0, 0);
        let mut flat = vec![0.0; self.len];
        for (layers, head_gain) in [(&self.critic, 1.0), (&self.actor, 0.01)] {
            for (i, layer) in layers.iter().enumerate() {
                let gain = if i + 1 == layers.len() { head_gain } else { 2.0_f64.sqrt() };
                let weights = orthogonal(layer.outputs, layer.inputs, || random.normal());
                let place = &mut flat[layer.weight..layer.weight + weights.len()];
                place.iter_mut().zip(weights).for_each(|(to, from)| *to = (gain * from) as f32);
            }
        }
        flat
    }
}

/// A `rows` by `columns` matrix with orthonormal rows or columns, whichever are fewer, uniformly distributed (Gram and Schmidt on
/// normal vectors, twice for accuracy), row by row.
fn orthogonal(rows: usize, columns: usize, mut normal: impl FnMut() -> f64) -> Vec<f64> {
    let (count, len) = (rows.min(columns), rows.max(columns));
    let mut basis: Vec<Vec<f64>> = Vec::with_capacity(count);
    while basis.len() < count {
        let mut vector: Vec<f64> = (0..len).map(|_| normal()).collect();
        for _ in 0..2 {
            for other in &basis {
                let dot: f64 = vector.iter().zip(other).map(|(a, b)| a * b).sum();
                vector.iter_mut().zip(other).for_each(|(a, b)| *a -= dot * b);
            }
        }
        let norm = vector.iter().map(|a| a * a).sum::<f64>().sqrt();
        if norm > 1e-6 {
            vector.iter_mut().for_each(|a| *a /= norm);
            basis.push(vector);
        }
    }
    let at =
        |row: usize, column: usize| if rows <= columns { basis[row][column] } else { basis[column][row] };
    (0..rows * columns).map(|i| at(i / columns, i % columns)).collect()
}

/// Actor and critic.
pub struct ActorCritic {
    layout: Layout,
    flat: Tensor,
    parameters: Vec<Tensor>,
}

impl ActorCritic {
    /// Freshly initialised networks on `device`.
    pub fn new(layout: Layout, seeds: &Seeds, device: Device) -> Result<ActorCritic, TchError> {
        let flat = Tensor::f_from_slice(&layout.initial(seeds))?.f_to_device(device)?;
        let parameters = layout
            .entries
            .iter()
            .map(|entry| {
                let view = flat.f_narrow(0, entry.offset as i64, entry.len as i64)?;
                view.f_view(entry.shape.as_slice())?.f_detach()?.f_set_requires_grad(true)
            })
            .collect::<Result<_, TchError>>()?;
        Ok(ActorCritic { layout, flat, parameters })
    }

    /// Where everything is.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// All parameters, f32, one after the other.
    pub fn flat(&self) -> &Tensor {
        &self.flat
    }

    /// Leaf tensors, in the order of the layout's entries.
    pub fn parameters(&self) -> &[Tensor] {
        &self.parameters
    }

    /// Names and leaf tensors (shallow clones), for DDP.
    pub fn named_parameters(&self) -> Vec<(String, Tensor)> {
        let names = self.layout.entries.iter().map(|entry| entry.name.clone());
        names.zip(self.parameters.iter().map(Tensor::shallow_clone)).collect()
    }

    /// Logits `[batch, actions]` and values `[batch]` for observations `[batch, observation_len]`, with gradients.
    pub fn forward(&self, observations: &Tensor) -> Result<(Tensor, Tensor), TchError> {
        let critic = 2 * self.layout.critic.len();
        let values = run(&self.parameters[..critic], observations)?;
        let logits = run(&self.parameters[critic..], observations)?;
        Ok((logits, values.f_view([-1])?))
    }

    /// Copies all parameters to the host.
    pub fn copy_to(&self, flat: &mut [f32]) -> Result<(), TchError> {
        self.flat.f_to_device(Device::Cpu)?.f_copy_data(flat, self.layout.len)
    }

    /// Overwrites all parameters.
    pub fn copy_from(&mut self, flat: &[f32]) -> Result<(), TchError> {
        tch::no_grad(|| self.flat.f_copy_(&Tensor::f_from_slice(flat)?.f_to_kind(Kind::Float)?)).map(drop)
    }
}

fn run(parameters: &[Tensor], input: &Tensor) -> Result<Tensor, TchError> {
    let last = parameters.len().saturating_sub(2);
    let mut value = input.shallow_clone();
    for (i, pair) in parameters.chunks_exact(2).enumerate() {
        value = value.f_linear(&pair[0], Some(&pair[1]))?;
        if 2 * i < last {
            value = value.f_tanh()?;
        }
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cartpole() -> Spec {
        Spec::discrete(4, 2)
    }

    #[test]
    fn policy_2_cleanrls_names_shapes_and_count() {
        let layout = Layout::new(&cartpole(), &[64, 64]);
        assert_eq!(layout.len, 9155);
        let names: Vec<&str> = layout.entries.iter().map(|e| e.name.as_str()).collect();
        assert_eq!(names[..3], ["critic.0.weight", "critic.0.bias", "critic.2.weight"]);
        assert_eq!(names[6], "actor.0.weight");
        assert_eq!(layout.entries[10].shape, [2, 64]);
    }

    #[test]
    fn policy_1_weights_are_orthogonal_with_their_gain_and_biases_are_zero() {
        let layout = Layout::new(&cartpole(), &[64, 64]);
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

    #[test]
    fn parameters_are_views_of_the_flat_buffer() {
        let layout = Layout::new(&cartpole(), &[8]);
        let mut policy = ActorCritic::new(layout.clone(), &Seeds::new(0), Device::Cpu).unwrap();
        let values: Vec<f32> = (0..layout.len).map(|i| i as f32).collect();
        policy.copy_from(&values).unwrap();
        let bias = &policy.parameters()[1];
        assert!(bias.is_leaf() && bias.requires_grad());
        assert_eq!(bias.double_value(&[0]), layout.entries[1].offset as f64);
        let mut back = vec![0.0; layout.len];
        policy.copy_to(&mut back).unwrap();
        assert_eq!(back, values);
    }
}
