//! Parameters of any network: one flat f32 buffer, and leaf tensors that are views of it.
//!
//! Owner: the network. Everything that treats all parameters alike (optimiser, target copies, checkpoints)
//! works on the flat buffer.

use super::layout::ParameterEntry;
use crate::distributed::memory;
use crate::state::Array;
use tch::{Device, Kind, TchError, Tensor};

/// The parameters of a network.
pub struct Parameters {
    names: Vec<String>,
    flat: Tensor,
    tensors: Vec<Tensor>,
}

impl Parameters {
    /// Parameters with the values `flat` on `device`; leaf tensors that want gradients.
    pub fn new(entries: &[ParameterEntry], flat: &[f32], device: Device) -> Result<Parameters, TchError> {
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
    pub fn share(&self) -> Parameters {
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
    pub fn len(&self) -> usize {
        self.flat.numel()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Leaf tensors, in order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Names and leaf tensors (shallow clones).
    pub fn named(&self) -> Vec<(String, Tensor)> {
        self.names.iter().cloned().zip(self.tensors.iter().map(Tensor::shallow_clone)).collect()
    }

    /// Copies all to the host.
    pub fn copy_to(&self, flat: &mut [f32]) -> Result<(), TchError> {
        self.flat.f_to_device(Device::Cpu)?.f_copy_data(flat, self.len())
    }
    pub fn copy_from(&mut self, flat: &[f32]) -> Result<(), TchError> {
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
