//! Pendulum-v1 as Gymnasium 1.x computes it: swing up and hold a pendulum that hangs from a motor too weak to
//! lift it at once.
//!
//! State is f64. The action is f32, so the terms made of it alone are computed in f32 and then widened, as
//! NumPy's promotion rules require. `x**2` of NumPy scalars is `pow`, see [`super::pow2`]. 200 steps.

use super::{ClassicTask, TaskStep, pow2, pow2_f32};
use crate::ActionSpace;
use rankdeck_kernel::numpy_random::Generator;
use std::f64::consts::PI;

const MAX_SPEED: f64 = 8.0;
const MAX_TORQUE: f32 = 2.0;
const DT: f64 = 0.05;
/// `3 * g / (2 * l)` with g = 10, l = 1.
const PULL: f64 = 15.0;
/// `3 / (m * l**2)`.
const PUSH: f32 = 3.0;

/// Angle from upright (rad, not wrapped) and its velocity.
#[derive(Debug, Clone)]
pub struct Pendulum {
    angle: f64,
    velocity: f64,
}

/// Python's `x % y` for `y` above 0.
fn modulo(x: f64, y: f64) -> f64 {
    let rest = x % y;
    if rest == 0.0 {
        0.0
    } else if rest < 0.0 {
        rest + y
    } else {
        rest
    }
}

impl ClassicTask for Pendulum {
    type Action = f32;
    const OBSERVATION: usize = 3;
    const WORDS: usize = 2;

    fn actions() -> ActionSpace {
        ActionSpace::Continuous { low: vec![-MAX_TORQUE], high: vec![MAX_TORQUE] }
    }

    fn blank() -> Pendulum {
        Pendulum { angle: 0.0, velocity: 0.0 }
    }

    fn reset(&mut self, random: &mut Generator) {
        self.angle = random.uniform(-PI, PI);
        self.velocity = random.uniform(-1.0, 1.0);
    }

    fn step(&mut self, action: f32) -> TaskStep {
        let torque = action.clamp(-MAX_TORQUE, MAX_TORQUE);
        let normal = modulo(self.angle + PI, 2.0 * PI) - PI;
        let cost = pow2(normal) + 0.1 * pow2(self.velocity) + f64::from(0.001_f32 * pow2_f32(torque));
        let acceleration = PULL * self.angle.sin() + f64::from(PUSH * torque);
        self.velocity = (self.velocity + acceleration * DT).clamp(-MAX_SPEED, MAX_SPEED);
        self.angle += self.velocity * DT;
        TaskStep { reward: -cost, terminated: false }
    }

    fn observe(&self, observation: &mut [f32]) {
        let values = [self.angle.cos(), self.angle.sin(), self.velocity];
        for (to, from) in observation.iter_mut().zip(values) {
            *to = from as f32;
        }
    }

    fn save(&self, words: &mut Vec<u64>) {
        words.extend([self.angle.to_bits(), self.velocity.to_bits()]);
    }

    fn restore(&mut self, words: &[u64]) {
        (self.angle, self.velocity) = (f64::from_bits(words[0]), f64::from_bits(words[1]));
    }
}
