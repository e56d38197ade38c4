//! The state that an algorithm saves and restores: named arrays and words; and the counters of a
//! rank.
//!
//! The algorithm makes and restores it, the loop gathers it from all ranks, a checkpoint stores it.
//!
//! Names that begin with `model.` are the networks' weights, which are exported for PyTorch too, without the
//! prefix.

use crate::env::EnvError;
use rankdeck_proto::message::{Counters, Returns};
use std::collections::VecDeque;
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

/// This rank's own counters since the run began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RankCounters {
    /// Environment steps: one per accepted action.
    pub env_step: u64,
    /// Transitions that training may use.
    pub samples: u64,
    /// Finished episodes.
    pub episodes: u64,
    /// Nanoseconds spent collecting; an integer, so that sums over ranks are exact.
    pub(crate) duration_ns: u64,
}

impl RankCounters {
    /// Words of [`RankCounters::to_words`].
    pub const WORDS: usize = 4;

    /// The form for collectives and checkpoints.
    pub(crate) fn to_words(self) -> [u64; RankCounters::WORDS] {
        [self.env_step, self.samples, self.episodes, self.duration_ns]
    }

    /// The inverse of [`RankCounters::to_words`]; missing words count 0.
    pub fn from_words(words: &[u64]) -> RankCounters {
        let at = |i: usize| words.get(i).copied().unwrap_or(0);
        RankCounters { env_step: at(0), samples: at(1), episodes: at(2), duration_ns: at(3) }
    }

    /// The sum of both.
    pub fn plus(self, other: RankCounters) -> RankCounters {
        let [a, b] = [self.to_words(), other.to_words()];
        RankCounters::from_words(&std::array::from_fn::<u64, { RankCounters::WORDS }, _>(|i| {
            a[i].saturating_add(b[i])
        }))
    }

    /// What is left without `other`, which is part of it.
    pub(crate) fn minus(self, other: RankCounters) -> RankCounters {
        let [a, b] = [self.to_words(), other.to_words()];
        RankCounters::from_words(&std::array::from_fn::<u64, { RankCounters::WORDS }, _>(|i| {
            a[i].saturating_sub(b[i])
        }))
    }

    /// The form for events; `return_last_100` is known of all ranks together only.
    pub(crate) fn to_event(self, train_iter: u64, updates: u64, returns: Returns) -> Counters {
        Counters {
            train_iter,
            env_step: self.env_step,
            samples: self.samples,
            episodes: self.episodes,
            duration_s: self.duration_ns as f64 * 1e-9,
            updates,
            returns,
            return_last_100: None,
            sum: false,
        }
    }
}

/// Episodes ended since the last report.
///
/// COUNTERS-1: [`Interval::latest`] holds the last [`Interval::LATEST`] episodes in the order in which they
/// ended: by step, then by environment. Every rank keeps as many as are needed of all ranks together. Merged
/// by step and rank, their ends are therefore the last episodes of the whole run, however the episodes are
/// spread over the ranks.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Interval {
    pub returns: Returns,
    /// Sum of their lengths.
    pub length: u64,
    /// The last episodes.
    pub(crate) latest: VecDeque<EpisodeEnd>,
}

/// An episode that ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct EpisodeEnd {
    /// The step in which it ended, counted from the beginning of the run. All ranks make the same number of
    /// steps.
    pub step: u64,
    pub episode_return: f64,
}

impl Interval {
    /// Episodes kept in [`Interval::latest`]: what CleanRL and rlops average over.
    pub(crate) const LATEST: usize = 100;

    /// Adds an episode that ended in `step`.
    pub(crate) fn add(&mut self, step: u64, episode_return: f64, length: u64) {
        self.returns = self.returns.plus(Returns::of(episode_return));
        self.length += length;
        push_bounded(&mut self.latest, EpisodeEnd { step, episode_return });
    }
}

/// Appends, and drops the oldest beyond [`Interval::LATEST`].
pub(crate) fn push_bounded<T>(latest: &mut VecDeque<T>, one: T) {
    if latest.len() >= Interval::LATEST {
        latest.pop_front();
    }
    latest.push_back(one);
}

/// The mean; `None` when there is nothing.
pub(crate) fn mean<'a>(values: impl ExactSizeIterator<Item = &'a f64>) -> Option<f64> {
    let count = values.len();
    (count > 0).then(|| values.sum::<f64>() / count as f64)
}
