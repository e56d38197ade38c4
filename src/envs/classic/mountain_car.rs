//! MountainCar-v0 and MountainCarContinuous-v0 as Gymnasium 1.x computes them (Moore 1990): a car too weak
//! for its hill takes a run-up.
//!
//! The discrete one is f64 throughout. The continuous one keeps its state in f32 after the first step, and
//! which terms are f32 follows NumPy's promotion rules: Python's own numbers take the width of the array
//! element that they meet, and a clipped force is a Python number while an unclipped one is an f32. Limits:
//! 200 and 999 steps.

use super::{ClassicTask, TaskStep, pow2};
use crate::ActionSpace;
use rankdeck_kernel::numpy_random::Generator;

const MIN_POSITION: f64 = -1.2;
const MAX_POSITION: f64 = 0.6;
const MAX_SPEED: f64 = 0.07;

/// Position and velocity of the car.
#[derive(Debug, Clone)]
pub struct MountainCar {
    position: f64,
    velocity: f64,
}

impl ClassicTask for MountainCar {
    type Action = i64;
    const OBSERVATION: usize = 2;
    const WORDS: usize = 2;

    fn actions() -> ActionSpace {
        ActionSpace::Discrete { n: 3 }
    }

    fn blank() -> MountainCar {
        MountainCar { position: 0.0, velocity: 0.0 }
    }

    fn reset(&mut self, random: &mut Generator) {
        (self.position, self.velocity) = (random.uniform(-0.6, -0.4), 0.0);
    }

    fn step(&mut self, action: i64) -> TaskStep {
        let acceleration = (action - 1) as f64 * 0.001 + (3.0 * self.position).cos() * -0.0025;
        let mut velocity = (self.velocity + acceleration).clamp(-MAX_SPEED, MAX_SPEED);
        let position = (self.position + velocity).clamp(MIN_POSITION, MAX_POSITION);
        if position == MIN_POSITION && velocity < 0.0 {
            velocity = 0.0;
        }
        (self.position, self.velocity) = (position, velocity);
        TaskStep { reward: -1.0, terminated: position >= 0.5 && velocity >= 0.0 }
    }

    fn observe(&self, observation: &mut [f32]) {
        for (to, from) in observation.iter_mut().zip([self.position, self.velocity]) {
            *to = from as f32;
        }
    }

    fn save(&self, words: &mut Vec<u64>) {
        words.extend([self.position.to_bits(), self.velocity.to_bits()]);
    }

    fn restore(&mut self, words: &[u64]) {
        (self.position, self.velocity) = (f64::from_bits(words[0]), f64::from_bits(words[1]));
    }
}

/// The same car with a motor of any force from -1 to 1.
#[derive(Debug, Clone)]
pub struct MountainCarContinuous {
    /// Holds f32 values once `fresh` is false.
    position: f64,
    velocity: f64,
    /// No step was made since the reset.
    fresh: bool,
}

const POWER: f64 = 0.0015;
const GOAL: f64 = 0.45;

impl ClassicTask for MountainCarContinuous {
    type Action = f32;
    const OBSERVATION: usize = 2;
    const WORDS: usize = 3;

    fn actions() -> ActionSpace {
        ActionSpace::Continuous { low: vec![-1.0], high: vec![1.0] }
    }

    fn blank() -> MountainCarContinuous {
        MountainCarContinuous { position: 0.0, velocity: 0.0, fresh: true }
    }

    fn reset(&mut self, random: &mut Generator) {
        (self.position, self.velocity, self.fresh) = (random.uniform(-0.6, -0.4), 0.0, true);
    }

    fn step(&mut self, action: f32) -> TaskStep {
        // The width of the state. An f64 holds the exact sum, difference or product of two f32, or enough
        // bits of it that rounding it to f32 gives what f32 arithmetic gives.
        let narrow = |x: f64| f64::from(x as f32);
        let round = |x: f64| if self.fresh { x } else { narrow(x) };
        let slope = 0.0025 * round(3.0 * self.position).cos();
        let acceleration = match action.abs() <= 1.0 {
            true => narrow(narrow(f64::from(action) * narrow(POWER)) - narrow(slope)),
            false => f64::from(action.signum()) * POWER - slope,
        };
        let max_speed = round(MAX_SPEED);
        let [min_position, max_position, goal] = [MIN_POSITION, MAX_POSITION, GOAL].map(round);
        let mut velocity = round(self.velocity + round(acceleration)).clamp(-max_speed, max_speed);
        let position = round(self.position + velocity).clamp(min_position, max_position);
        if position == min_position && velocity < 0.0 {
            velocity = 0.0;
        }
        let terminated = position >= goal && velocity >= 0.0;
        let prize = if terminated { 100.0 } else { 0.0 };
        (self.position, self.velocity, self.fresh) = (narrow(position), narrow(velocity), false);
        TaskStep { reward: prize - pow2(f64::from(action)) * 0.1, terminated }
    }

    fn observe(&self, observation: &mut [f32]) {
        for (to, from) in observation.iter_mut().zip([self.position, self.velocity]) {
            *to = from as f32;
        }
    }

    fn save(&self, words: &mut Vec<u64>) {
        words.extend([self.position.to_bits(), self.velocity.to_bits(), u64::from(self.fresh)]);
    }

    fn restore(&mut self, words: &[u64]) {
        (self.position, self.velocity) = (f64::from_bits(words[0]), f64::from_bits(words[1]));
        self.fresh = words[2] != 0;
    }
}
