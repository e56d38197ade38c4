//! Environments: what they offer, and which exist.

pub mod cartpole;
pub mod numpy_random;
pub mod vector;

use cartpole::CartPole;

/// Shapes of an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spec {
    /// Numbers (f32) in an observation.
    pub observation_len: usize,
    /// Discrete actions, `0..num_actions`.
    pub num_actions: usize,
}

/// What one action led to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Reward.
    pub reward: f64,
    /// The task itself ended.
    pub terminated: bool,
    /// A limit from outside, such as time, ended the episode.
    pub truncated: bool,
}

impl Step {
    /// The episode is over, for whichever reason.
    pub fn done(&self) -> bool {
        self.terminated || self.truncated
    }
}

/// Why an environment cannot be made or restored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// No such id.
    #[error("unknown environment {id:?}; known: {}", KNOWN.join(", "))]
    Unknown {
        /// As configured.
        id: String,
    },
    /// A saved state of another kind.
    #[error("saved environment state has {found} words instead of {expected}")]
    State {
        /// Words of this environment.
        expected: usize,
        /// Words found.
        found: usize,
    },
}

/// One environment with discrete actions and flat observations. Deterministic given its seed and actions.
pub trait Environment {
    /// Its shapes.
    fn spec(&self) -> Spec;
    /// Begins an episode and writes its first observation; `seed` (32-bit words, see [`numpy_random`]) restarts the random stream.
    fn reset(&mut self, seed: Option<&[u32]>, observation: &mut [f32]);
    /// Applies `action` and writes the observation that follows; the last one of the episode when [`Step::done`].
    fn step(&mut self, action: usize, observation: &mut [f32]) -> Step;
    /// Words that [`Environment::save`] appends.
    fn words(&self) -> usize;
    /// Appends the whole state, random stream included.
    fn save(&self, words: &mut Vec<u64>);
    /// Takes a saved state over and writes the observation that belongs to it.
    fn restore(&mut self, words: &[u64], observation: &mut [f32]) -> Result<(), EnvError>;
}

/// Ids that [`make`] knows.
pub const KNOWN: [&str; 2] = ["CartPole-v0", "CartPole-v1"];

/// The environment `id`, to be reset with a seed before its first step.
pub fn make(id: &str) -> Result<Box<dyn Environment>, EnvError> {
    match id {
        "CartPole-v0" => Ok(Box::new(CartPole::new(200))),
        "CartPole-v1" => Ok(Box::new(CartPole::new(500))),
        _ => Err(EnvError::Unknown { id: id.into() }),
    }
}
