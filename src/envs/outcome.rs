//! What a step of several environments led to.
//!
//! Owner: the collector, which makes one [`StepOutcome`] and has it overwritten by every step, so that a step
//! allocates nothing.

use super::{ObservationType, Observations, Spec};

/// A finished episode: a whole game, however training cuts it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Episode {
    /// Local index of the environment.
    pub env: usize,
    /// Sum of its rewards, unclipped.
    pub episode_return: f64,
    /// Its steps.
    pub length: u64,
}

/// `[envs][observation_shape]`, owned.
#[derive(Debug, Clone, PartialEq)]
pub enum ObservationBuffer {
    /// Feature vectors.
    F32(Vec<f32>),
    /// Pixels.
    U8(Vec<u8>),
}

impl ObservationBuffer {
    /// Room for the observations of `envs` environments, filled with 0.
    pub fn new(spec: &Spec, envs: usize) -> ObservationBuffer {
        let len = envs * spec.observation_len();
        match spec.observation_type {
            ObservationType::F32 => ObservationBuffer::F32(vec![0.0; len]),
            ObservationType::U8 => ObservationBuffer::U8(vec![0; len]),
        }
    }

    /// All of it.
    pub fn view(&self) -> Observations<'_> {
        match self {
            ObservationBuffer::F32(values) => Observations::F32(values),
            ObservationBuffer::U8(values) => Observations::U8(values),
        }
    }
}

/// What one step led to, per environment.
#[derive(Debug, Clone, PartialEq)]
pub struct StepOutcome {
    /// Rewards for learning (of Atari games clipped, if so configured).
    pub rewards: Vec<f32>,
    /// The task itself ended: nothing follows, so no value is added.
    pub terminated: Vec<bool>,
    /// A limit from outside, such as time, ended the episode: the value of its final observation still
    /// counts.
    pub truncated: Vec<bool>,
    /// False: the environment was only reset. Not a transition, not counted, not to be stored.
    pub valid: Vec<bool>,
    /// Row `i` is the last observation of environment `i`'s episode where `terminated[i]` or `truncated[i]`;
    /// other rows are undefined.
    pub final_observations: ObservationBuffer,
    /// Episodes that ended in this step, in order of their environments.
    pub episodes: Vec<Episode>,
}

impl StepOutcome {
    /// Room for the steps of `envs` environments.
    pub fn new(spec: &Spec, envs: usize) -> StepOutcome {
        StepOutcome {
            rewards: vec![0.0; envs],
            terminated: vec![false; envs],
            truncated: vec![false; envs],
            valid: vec![true; envs],
            final_observations: ObservationBuffer::new(spec, envs),
            episodes: Vec::with_capacity(envs),
        }
    }

    /// Environment `i`'s episode is over for the learner, for any reason.
    pub fn done(&self, i: usize) -> bool {
        self.terminated[i] || self.truncated[i]
    }
}
