//! Experience replay: one rank's transitions, sampled evenly, with n-step returns.
//!
//! Replay never enters a collective: every rank fills and samples its own, and only decisions about it (is
//! there enough to begin?) are made together. All memory is taken at the start ([`ReplayShape::bytes`]); a new
//! transition replaces the oldest of its environment.
//!
//! Invariants:
//! - REPLAY-1: every observation is stored once, images as bytes; of stacked frames only the newest one.
//!   Reading gives the same bits.
//! - REPLAY-2: a transition's n-step return stops at the end of its episode and at the newest stored step.
//!   What follows counts with gamma to the number of rewards summed, or not at all where the task itself
//!   ended: after a cut by a time limit, the value of the true last observation counts. (DI-engine uses one
//!   power of gamma too few for the last transitions of every chunk.)
//! - REPLAY-3: no transition crosses a reset.
//! - REPLAY-4: every stored transition is equally likely, and which are drawn depends on the given generator
//!   alone.

mod env_buffer;
mod shard;
#[cfg(test)]
mod tests;

pub use shard::ReplayMark;
pub(crate) use shard::{
    ShardError, ShardReader, ShardWriter, load, replace_shard, save, shard_of, shard_path, unfinished_of,
    write_shard,
};

use crate::env::{ActionSpace, Actions, ObservationType, Observations, Spec, StepOutcome};
use env_buffer::EnvBuffer;
use rankdeck_kernel::numpy_random::Generator;

/// Sizes of a rank's replay.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ReplayShape {
    /// Environments of this rank.
    pub envs: usize,
    /// Transitions of this rank, all environments together.
    pub(crate) capacity: usize,
    /// Bytes of one element of an observation: 1 or 4.
    pub(crate) element: usize,
    /// Elements of one frame.
    pub frame: usize,
    /// Frames of one observation, newest last.
    pub stack: usize,
    /// Numbers of a continuous action; 0: actions are discrete.
    pub action: usize,
    /// Rewards that are summed before the bootstrap.
    pub n_step: usize,
    /// Discount.
    pub gamma: f32,
}

impl ReplayShape {
    /// For environments of this kind. Images `[stack, height, width]` are taken apart into frames.
    pub(crate) fn new(spec: &Spec, envs: usize, capacity: usize, n_step: usize, gamma: f64) -> ReplayShape {
        let stack = match (spec.observation_type, spec.observation_shape.as_slice()) {
            (ObservationType::U8, [stack, _, _]) => (*stack).max(1),
            _ => 1,
        };
        ReplayShape {
            envs,
            capacity,
            element: match spec.observation_type {
                ObservationType::F32 => 4,
                ObservationType::U8 => 1,
            },
            frame: spec.observation_len() / stack,
            stack,
            action: match &spec.actions {
                ActionSpace::Discrete { .. } | ActionSpace::MultiDiscrete { .. } => 0,
                ActionSpace::Continuous { low, .. } => low.len(),
            },
            n_step: n_step.max(1),
            gamma: gamma as f32,
        }
    }

    /// Transitions of the environment at this index; the first ones take what is left over.
    fn capacity_of(&self, env: usize) -> usize {
        let envs = self.envs.max(1);
        (self.capacity / envs + usize::from(env < self.capacity % envs)).max(1)
    }

    /// The most of them.
    fn env_capacity(&self) -> usize {
        self.capacity_of(0)
    }

    /// Frames of one environment: one per transition, and some more for the first and last observations of
    /// episodes. Where episodes are too short for these (below 8 steps per frame of an observation), fewer
    /// transitions are kept.
    fn env_frames(&self) -> usize {
        self.env_capacity() + self.env_capacity() / 8 + 2 * self.stack + 1
    }

    fn frame_bytes(&self) -> usize {
        self.frame * self.element
    }

    /// The memory of replay on this rank, in bytes; all of it is allocated at the start.
    pub(crate) fn bytes(&self) -> u64 {
        let frames = self.env_frames() as u64 * self.frame_bytes() as u64;
        let action = 4 * self.action.max(1) as u64;
        self.envs as u64 * (frames + self.env_capacity() as u64 * (8 + 4 + 1 + action))
    }
}

/// A sampled batch, overwritten by every [`Replay::sample`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReplayBatch {
    pub rows: usize,
    /// `[rows][observation]`, when observations are numbers.
    pub numbers: Pair<f32>,
    /// `[rows][observation]`, when observations are pixels.
    pub pixels: Pair<u8>,
    /// `[rows]`, when actions are discrete.
    pub choices: Vec<i64>,
    /// `[rows][action]`, when actions are continuous.
    pub actions: Vec<f32>,
    /// `[rows]`: sums of discounted rewards.
    pub rewards: Vec<f32>,
    /// `[rows]`: what the value of the next observation counts with; 0 where the task ended.
    pub discounts: Vec<f32>,
}

/// Observations, and those that the bootstrap uses.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pair<T> {
    /// The observations.
    pub now: Vec<T>,
    /// The observations n steps later.
    pub next: Vec<T>,
}

/// One rank's replay.
#[derive(Debug)]
pub struct Replay {
    shape: ReplayShape,
    buffers: Vec<EnvBuffer>,
}

impl Replay {
    /// Takes all memory. Call [`Replay::start`] before the first [`Replay::add`].
    pub(crate) fn new(shape: ReplayShape) -> Replay {
        Replay {
            buffers: (0..shape.envs).map(|env| EnvBuffer::new(&shape, shape.capacity_of(env))).collect(),
            shape,
        }
    }

    /// Its sizes.
    pub(crate) fn shape(&self) -> &ReplayShape {
        &self.shape
    }

    /// Transitions that can be sampled.
    pub fn len(&self) -> usize {
        self.buffers.iter().map(EnvBuffer::len).sum()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Continues with what the environments show now. In a resumed run, an episode continues where its
    /// environment shows what it showed last, and is cut elsewhere.
    pub fn start(&mut self, observations: Observations<'_>) {
        let Replay { shape, buffers } = self;
        let mut row = Vec::new();
        for (i, buffer) in buffers.iter_mut().enumerate() {
            bytes_of(observations, i, shape, &mut row);
            buffer.start(&row, shape);
        }
    }

    /// Stores one step of all environments: what was done, what it led to, and what the environments show
    /// now.
    pub fn add(&mut self, actions: Actions<'_>, outcome: &StepOutcome, now: Observations<'_>) {
        let Replay { shape, buffers } = self;
        let mut row = Vec::with_capacity(shape.stack * shape.frame_bytes());
        for (i, buffer) in buffers.iter_mut().enumerate() {
            if !outcome.valid[i] {
                bytes_of(now, i, shape, &mut row);
                buffer.start(&row, shape);
                continue;
            }
            let done = outcome.done(i);
            let next = if done { outcome.final_observations.view() } else { now };
            bytes_of(next, i, shape, &mut row);
            let action = match actions {
                Actions::Discrete(choices) => env_buffer::StoredAction::Choice(choices[i]),
                Actions::Continuous(values) => {
                    env_buffer::StoredAction::Numbers(&values[i * shape.action..(i + 1) * shape.action])
                }
            };
            // Both flags: the task itself ended.
            let end = match (outcome.terminated[i], outcome.truncated[i]) {
                (true, _) => env_buffer::StepEnd::Terminated,
                (false, true) => env_buffer::StepEnd::Truncated,
                (false, false) => env_buffer::StepEnd::None,
            };
            buffer.add(action, outcome.rewards[i], end, &row, shape);
            if done {
                bytes_of(now, i, shape, &mut row);
                buffer.start(&row, shape);
            }
        }
    }

    /// Draws `rows` transitions, with replacement; none while there are none.
    pub fn sample(&self, rows: usize, random: &mut Generator, batch: &mut ReplayBatch) {
        batch.clear();
        let total = self.len() as u64;
        if total == 0 {
            return;
        }
        for _ in 0..rows {
            let mut index = random.below(total) as usize;
            for buffer in &self.buffers {
                if index < buffer.len() {
                    buffer.read(index, &self.shape, batch);
                    break;
                }
                index -= buffer.len();
            }
            batch.rows += 1;
        }
    }
}

impl ReplayBatch {
    /// The largest reward and observation, for messages.
    pub fn largest(&self) -> String {
        let most = |values: &[f32]| values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        let rewards = most(&self.rewards);
        match self.numbers.now.is_empty() {
            true => format!("; the batch has rewards up to {rewards:e}"),
            false => format!(
                "; largest reward {rewards:e}, largest observation {:e}",
                most(&self.numbers.now).max(most(&self.numbers.next))
            ),
        }
    }

    fn clear(&mut self) {
        self.rows = 0;
        for pair in [&mut self.numbers.now, &mut self.numbers.next] {
            pair.clear();
        }
        for pair in [&mut self.pixels.now, &mut self.pixels.next] {
            pair.clear();
        }
        self.choices.clear();
        self.actions.clear();
        self.rewards.clear();
        self.discounts.clear();
    }
}

/// Row `i` as bytes.
fn bytes_of(observations: Observations<'_>, i: usize, shape: &ReplayShape, row: &mut Vec<u8>) {
    let len = shape.stack * shape.frame;
    row.clear();
    match observations {
        Observations::F32(values) => {
            row.extend(values[i * len..(i + 1) * len].iter().flat_map(|value| value.to_ne_bytes()));
        }
        Observations::U8(values) => row.extend_from_slice(&values[i * len..(i + 1) * len]),
    }
}
