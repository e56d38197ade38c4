//! Parameters of a network: their places and initial values, one flat f32 buffer, and leaf tensors that are
//! views of it.
//!
//! Everything that treats all parameters alike (optimizer, target copies, checkpoints) works on the flat
//! buffer.

use crate::distributed::memory;
use crate::support::page;
use crate::support::state::Array;
use rankdeck_kernel::mlp::orthonormal;
use rankdeck_kernel::seeds::{Purpose, Seeds};
use tch::{Device, Kind, TchError, Tensor};

/// A parameter's place.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ParameterEntry {
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
pub(crate) enum InitialValues {
    /// Orthogonal with this gain; the first dimension against all others.
    Orthogonal(f64),
    /// Uniform, then scaled so that each slice along the first dimension has this norm.
    Normed(f64),
    /// All of this value.
    Constant(f64),
    /// Uniform between minus and plus this.
    Even(f64),
}

/// The parameters of a network.
pub struct Parameters {
    names: Vec<String>,
    flat: Tensor,
    tensors: Vec<Tensor>,
}

impl Parameters {
    /// Parameters with the values `flat` on `device`; leaf tensors that require gradients.
    pub(crate) fn new(
        entries: &[ParameterEntry],
        flat: &[f32],
        device: Device,
    ) -> Result<Parameters, TchError> {
        let flat = Tensor::f_from_slice(flat)?.f_to_device(device)?;
        let tensors = entries
            .iter()
            .map(|entry| {
                let view = flat.f_narrow(0, entry.offset as i64, entry.len as i64)?;
                view.f_view(entry.shape.as_slice())?.f_detach()?.f_set_requires_grad(true)
            })
            .collect::<Result<_, TchError>>()?;
        Ok(Parameters { names: entries.iter().map(|entry| entry.name.clone()).collect(), flat, tensors })
    }

    /// The same parameters, not copies.
    pub(crate) fn share(&self) -> Parameters {
        Parameters {
            names: self.names.clone(),
            flat: self.flat.shallow_clone(),
            tensors: self.tensors.iter().map(Tensor::shallow_clone).collect(),
        }
    }

    /// All of them, one after the other.
    pub fn flat(&self) -> &Tensor {
        &self.flat
    }

    /// All of them as numbers, for hand-written passes; `None` unless they are on the CPU.
    ///
    /// # Safety
    /// Until the slice is dropped, no tensor operation writes to the parameters: leaf tensors and
    /// [shares](Parameters::share) have the same memory.
    pub(crate) unsafe fn floats(&self) -> Option<&[f32]> {
        // SAFETY: the caller excludes writers.
        unsafe { memory::floats(&self.flat) }
    }

    /// All of them as numbers, to write; `None` unless they are on the CPU. No autograd graph over them may
    /// be alive.
    ///
    /// # Safety
    /// Until the slice is dropped, no tensor operation reads or writes the parameters: leaf tensors and
    /// [shares](Parameters::share) have the same memory.
    pub(crate) unsafe fn floats_mut(&mut self) -> Option<&mut [f32]> {
        // SAFETY: the caller excludes readers and writers.
        unsafe { memory::floats_mut(&mut self.flat) }
    }
    pub(crate) fn len(&self) -> usize {
        self.flat.numel()
    }

    /// Leaf tensors, in order.
    pub(crate) fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Names and leaf tensors (shallow clones).
    pub(crate) fn named(&self) -> Vec<(String, Tensor)> {
        self.names.iter().cloned().zip(self.tensors.iter().map(Tensor::shallow_clone)).collect()
    }

    /// Copies all to the host.
    pub(crate) fn copy_to(&self, flat: &mut [f32]) -> Result<(), TchError> {
        self.flat.f_to_device(Device::Cpu)?.f_copy_data(flat, self.len())
    }
    pub(crate) fn copy_from(&mut self, flat: &[f32]) -> Result<(), TchError> {
        tch::no_grad(|| self.flat.f_copy_(&Tensor::f_from_slice(flat)?.f_to_kind(Kind::Float)?)).map(drop)
    }

    /// For a checkpoint, with `prefix` before each name.
    pub fn arrays(&self, prefix: &str) -> Result<Vec<Array>, TchError> {
        self.names
            .iter()
            .zip(&self.tensors)
            .map(|(name, tensor)| Array::of(&format!("{prefix}{name}"), tensor))
            .collect()
    }
}

/// Initial values of parameters, one after the other, in their order; the stream is [`Purpose::Model`].
pub(crate) fn initial(entries: &[ParameterEntry], seeds: &Seeds) -> Vec<f32> {
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
fn orthogonal(rows: usize, columns: usize, mut normal: impl FnMut() -> f64) -> Vec<f64> {
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
