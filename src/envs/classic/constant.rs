//! `rankdeck/Constant-v0`: one observation, reward 1 for every step, ended by the time limit only (10 steps).
//!
//! A learner that bootstraps truncated episodes finds the value `1 / (1 - gamma)`; one that takes truncation
//! for termination finds a value bounded by the limit. It is not one of Gymnasium's.

use super::{ClassicTask, TaskStep};
use crate::ActionSpace;
use rankdeck_kernel::numpy_random::Generator;

/// Its id.
pub const ID: &str = "rankdeck/Constant-v0";

/// It has no state.
#[derive(Debug, Clone)]
pub struct Constant;

impl ClassicTask for Constant {
    type Action = i64;
    const OBSERVATION: usize = 1;
    const WORDS: usize = 0;

    fn actions() -> ActionSpace {
        ActionSpace::Discrete { n: 2 }
    }

    fn blank() -> Constant {
        Constant
    }

    fn reset(&mut self, _: &mut Generator) {}

    fn step(&mut self, _: i64) -> TaskStep {
        TaskStep { reward: 1.0, terminated: false }
    }

    fn observe(&self, observation: &mut [f32]) {
        observation.fill(1.0);
    }

    fn save(&self, _: &mut Vec<u64>) {}

    fn restore(&mut self, _: &[u64]) {}
}
