//! The state that an algorithm saves and restores: named arrays and words.
//!
//! The algorithm makes and restores it, the loop gathers it from all ranks, a checkpoint stores it.
//!
//! Names that begin with `model.` are the networks' weights, which are exported for PyTorch too, without the
//! prefix.

use super::counters::RankCounters;
use crate::env::EnvError;
use tch::{Device, Kind, TchError, Tensor};

/// Prefix of the networks' weights.
pub(crate) const MODEL: &str = "model.";

/// A named array of f32, row by row.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Array {
    /// Unique within a state.
    pub name: String,
    /// Its shape; empty for a scalar.
    pub shape: Vec<i64>,
    /// Its elements.
    pub values: Vec<f32>,
}

impl Array {
    /// A copy of a tensor, whatever its device and float type.
    pub fn of(name: &str, tensor: &Tensor) -> Result<Array, TchError> {
        let on_host = tensor.f_detach()?.f_to_device(Device::Cpu)?.f_to_kind(Kind::Float)?.f_contiguous()?;
        let mut values = vec![0.0; on_host.numel()];
        let len = values.len();
        on_host.f_copy_data(&mut values, len)?;
        Ok(Array { name: name.into(), shape: tensor.size(), values })
    }

    /// Overwrites a tensor of as many elements.
    pub(crate) fn copy_to(&self, tensor: &mut Tensor) -> Result<(), TchError> {
        let values = Tensor::f_from_slice(&self.values)?.f_view(tensor.size().as_slice())?;
        tch::no_grad(|| tensor.f_detach()?.f_copy_(&values).map(drop))
    }
}

/// A named list of 64-bit words: counters, and the bits of f64 numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NamedWords {
    /// Unique within a state.
    pub name: String,
    /// The words.
    pub values: Vec<u64>,
}

/// The state of an algorithm on one rank.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AlgorithmState {
    /// Equal on all ranks: weights, targets, optimizers' moments.
    pub arrays: Vec<Array>,
    /// Equal on all ranks: step counts, normalizers.
    pub words: Vec<NamedWords>,
    /// This rank's environments, `words_per_env` words each, in order of their global indices; empty when
    /// they cannot be saved.
    pub envs: Vec<u64>,
    /// Words of each environment; 0 where environments of this kind cannot be saved.
    pub words_per_env: usize,
    /// Why these ones could not be saved now, although their kind can.
    pub unsaved: Option<EnvError>,
}

impl AlgorithmState {
    /// Adds the environments.
    pub(crate) fn add_envs(&mut self, saved: Result<Vec<u64>, EnvError>, words_per_env: usize) {
        self.words_per_env = words_per_env;
        match saved {
            Ok(envs) => self.envs = envs,
            Err(error) => self.unsaved = Some(error),
        }
    }
}

/// What a rank restores from a checkpoint.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RestoredState {
    /// As [`AlgorithmState::arrays`].
    pub arrays: Vec<Array>,
    /// As [`AlgorithmState::words`].
    pub(crate) words: Vec<NamedWords>,
    /// This rank's counters.
    pub counters: RankCounters,
    /// This rank's environments, when they can be taken over.
    pub envs: Option<Vec<u64>>,
}

impl RestoredState {
    /// An array by its name; [`crate::checkpoint::Checkpoint::fits`] has made sure that it is there.
    pub(crate) fn array(&self, name: &str) -> Option<&Array> {
        self.arrays.iter().find(|array| array.name == name)
    }

    /// Words by their name; empty when there are none.
    pub(crate) fn words(&self, name: &str) -> &[u64] {
        self.words.iter().find(|words| words.name == name).map_or(&[], |words| &words.values)
    }

    /// Overwrites each named tensor with the array `prefix` + name.
    pub(crate) fn copy_to(&self, prefix: &str, tensors: Vec<(String, Tensor)>) -> Result<(), TchError> {
        for (name, mut tensor) in tensors {
            if let Some(array) = self.array(&format!("{prefix}{name}")) {
                array.copy_to(&mut tensor)?;
            }
        }
        Ok(())
    }
}
