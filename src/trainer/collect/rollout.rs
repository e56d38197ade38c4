//! Rollouts: the columns of the collected steps that learning uses.

use crate::env::{ActionSpace, ObservationBuffer, ObservationType, Observations, Spec};

/// Actions of several environments, owned.
#[derive(Debug, Clone, PartialEq)]
pub enum ActionBuffer {
    /// One index each.
    Discrete(Vec<i64>),
    /// `width` indices each.
    MultiDiscrete {
        /// Parts of one action.
        width: usize,
        /// Those of all environments, one after the other.
        values: Vec<i64>,
    },
    /// `width` numbers each.
    Continuous {
        /// Numbers of one action.
        width: usize,
        /// Those of all environments, one after the other.
        values: Vec<f32>,
    },
}

impl ActionBuffer {
    /// Room for `rows` actions.
    pub fn new(space: &ActionSpace, rows: usize) -> ActionBuffer {
        match space {
            ActionSpace::Discrete { .. } => ActionBuffer::Discrete(vec![0; rows]),
            ActionSpace::MultiDiscrete { sizes } => {
                ActionBuffer::MultiDiscrete { width: sizes.len(), values: vec![0; rows * sizes.len()] }
            }
            ActionSpace::Continuous { low, .. } => {
                ActionBuffer::Continuous { width: low.len(), values: vec![0.0; rows * low.len()] }
            }
        }
    }

    /// All of them, as an environment takes them.
    pub fn view(&self) -> crate::env::Actions<'_> {
        match self {
            ActionBuffer::Discrete(actions) => crate::env::Actions::Discrete(actions),
            ActionBuffer::MultiDiscrete { values, .. } => crate::env::Actions::Discrete(values),
            ActionBuffer::Continuous { values, .. } => crate::env::Actions::Continuous(values),
        }
    }

    /// Copies the first actions of `from` to the rows from `row` on.
    pub fn put(&mut self, row: usize, from: &ActionBuffer) {
        match (self, from) {
            (ActionBuffer::Discrete(to), ActionBuffer::Discrete(from)) => {
                to[row..row + from.len()].copy_from_slice(from);
            }
            (
                ActionBuffer::MultiDiscrete { width, values },
                ActionBuffer::MultiDiscrete { values: from, .. },
            ) => {
                values[row * *width..row * *width + from.len()].copy_from_slice(from);
            }
            (ActionBuffer::Continuous { width, values }, ActionBuffer::Continuous { values: from, .. }) => {
                values[row * *width..row * *width + from.len()].copy_from_slice(from);
            }
            _ => {}
        }
    }
}

/// One rank's share of a rollout; everything `[steps][envs]`, observations and continuous actions with their
/// own shape after that.
#[derive(Debug, Clone, PartialEq)]
pub struct Rollout {
    /// Steps of each environment.
    pub steps: usize,
    /// Environments.
    pub envs: usize,
    /// What the policy saw, normalized if so configured.
    pub observations: ObservationBuffer,
    /// Shape of one observation.
    pub shape: Vec<usize>,
    /// The policy's actions; continuous ones before they were clipped.
    pub actions: ActionBuffer,
    /// Which actions were allowed, `[steps][envs][choices]`, 0 where not; empty without masks.
    pub masks: Vec<u8>,
    /// Log-probabilities of the actions when they were taken.
    pub(crate) log_probs: Vec<f32>,
    /// The critic's values of the observations.
    pub values: Vec<f32>,
    /// Rewards of the actions, scaled and normalized if so configured.
    pub rewards: Vec<f32>,
    /// Values of the last observations of episodes that were cut off; else 0.
    pub(crate) final_values: Vec<f32>,
    /// 1.0 where the observation begins an episode.
    pub(crate) dones: Vec<f32>,
    /// 1.0 for transitions; 0.0 where an environment was only reset, which no loss uses.
    pub weights: Vec<f32>,
    /// Values after the last step, `[envs]`.
    pub(crate) next_values: Vec<f32>,
    /// Flags after the last step, `[envs]`.
    pub(crate) next_dones: Vec<f32>,
    /// States of the policy's memory before the first step, `[envs][state_len]`; empty without memory.
    pub(crate) states: Vec<f32>,
    /// The memory is reset before this observation, after the first step; empty without memory.
    pub(crate) resets: Vec<bool>,
}

impl Rollout {
    /// Room for `steps` steps of `envs` environments; observations are f32 where they are `normalized`.
    pub fn new(spec: &Spec, steps: usize, envs: usize, normalized: bool) -> Rollout {
        let n = steps * envs;
        let kind = if normalized { ObservationType::F32 } else { spec.observation_type };
        let spec = Spec { observation_type: kind, ..spec.clone() };
        Rollout {
            steps,
            envs,
            observations: ObservationBuffer::new(&spec, n),
            actions: ActionBuffer::new(&spec.actions, n),
            masks: Vec::new(),
            log_probs: vec![0.0; n],
            values: vec![0.0; n],
            rewards: vec![0.0; n],
            final_values: vec![0.0; n],
            dones: vec![0.0; n],
            weights: vec![1.0; n],
            next_values: vec![0.0; envs],
            next_dones: vec![0.0; envs],
            states: Vec::new(),
            resets: Vec::new(),
            shape: spec.observation_shape,
        }
    }
    /// Transitions.
    pub fn len(&self) -> usize {
        self.steps * self.envs
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Numbers of one observation.
    pub fn width(&self) -> usize {
        self.shape.iter().product()
    }

    /// The observations of rows `from..to`.
    pub fn rows(&self, from: usize, to: usize) -> Observations<'_> {
        rows(self.observations.view(), from * self.width()..to * self.width())
    }
}

/// A part of observations, by elements.
pub fn rows(observations: Observations<'_>, range: std::ops::Range<usize>) -> Observations<'_> {
    match observations {
        Observations::F32(values) => Observations::F32(&values[range]),
        Observations::U8(pixels) => Observations::U8(&pixels[range]),
    }
}
