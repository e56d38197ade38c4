//! CartPole-v0 and CartPole-v1 as Gymnasium 1.x computes them (Barto, Sutton, Anderson 1983; Euler steps of
//! 0.02 s).
//!
//! State is f64, observations are the state cast to f32, squares are `x * x` (Gymnasium writes `np.square`).
//! Limits: 200 steps in v0, 500 in v1.
//!
//! [`CartPoleNoVelocity`] is the same without the velocities in its observations, so that a policy needs memory.

use super::{ClassicTask, TaskStep};
use crate::ActionSpace;
use rankdeck_kernel::numpy_random::Generator;

const GRAVITY: f64 = 9.8;
const MASS_POLE: f64 = 0.1;
const TOTAL_MASS: f64 = MASS_POLE + 1.0;
const LENGTH: f64 = 0.5;
const POLE_MASS_LENGTH: f64 = MASS_POLE * LENGTH;
const FORCE: f64 = 10.0;
const TAU: f64 = 0.02;
const THETA_LIMIT: f64 = 12.0 * 2.0 * std::f64::consts::PI / 360.0;
const X_LIMIT: f64 = 2.4;

/// One cart with its pole: cart position (m), its velocity, pole angle (rad), its velocity.
#[derive(Debug, Clone)]
pub struct CartPole {
    state: [f64; 4],
}

impl ClassicTask for CartPole {
    type Action = i64;
    const OBSERVATION: usize = 4;
    const WORDS: usize = 4;

    fn actions() -> ActionSpace {
        ActionSpace::Discrete { n: 2 }
    }

    fn blank() -> CartPole {
        CartPole { state: [0.0; 4] }
    }

    fn reset(&mut self, random: &mut Generator) {
        self.state = std::array::from_fn(|_| random.uniform(-0.05, 0.05));
    }

    fn step(&mut self, action: i64) -> TaskStep {
        let [x, x_dot, theta, theta_dot] = self.state;
        let force = if action == 1 { FORCE } else { -FORCE };
        let (cos, sin) = (theta.cos(), theta.sin());
        let temp = (force + POLE_MASS_LENGTH * (theta_dot * theta_dot) * sin) / TOTAL_MASS;
        let theta_acc =
            (GRAVITY * sin - cos * temp) / (LENGTH * (4.0 / 3.0 - MASS_POLE * (cos * cos) / TOTAL_MASS));
        let x_acc = temp - POLE_MASS_LENGTH * theta_acc * cos / TOTAL_MASS;
        let [x, theta] = [x + TAU * x_dot, theta + TAU * theta_dot];
        self.state = [x, x_dot + TAU * x_acc, theta, theta_dot + TAU * theta_acc];
        let inside = (-X_LIMIT..=X_LIMIT).contains(&x) && (-THETA_LIMIT..=THETA_LIMIT).contains(&theta);
        TaskStep { reward: 1.0, terminated: !inside }
    }

    fn observe(&self, observation: &mut [f32]) {
        for (to, from) in observation.iter_mut().zip(self.state) {
            *to = from as f32;
        }
    }

    fn save(&self, words: &mut Vec<u64>) {
        words.extend(self.state.map(f64::to_bits));
    }

    fn restore(&mut self, words: &[u64]) {
        for (to, from) in self.state.iter_mut().zip(words) {
            *to = f64::from_bits(*from);
        }
    }
}

/// `rankdeck/CartPoleNoVelocity-v1`: CartPole-v1 that shows cart position and pole angle only.
#[derive(Debug, Clone)]
pub(crate) struct CartPoleNoVelocity(CartPole);

impl ClassicTask for CartPoleNoVelocity {
    type Action = i64;
    const OBSERVATION: usize = 2;
    const WORDS: usize = CartPole::WORDS;

    fn actions() -> ActionSpace {
        CartPole::actions()
    }

    fn blank() -> CartPoleNoVelocity {
        CartPoleNoVelocity(CartPole::blank())
    }

    fn reset(&mut self, random: &mut Generator) {
        self.0.reset(random);
    }

    fn step(&mut self, action: i64) -> TaskStep {
        self.0.step(action)
    }

    fn observe(&self, observation: &mut [f32]) {
        let [x, _, theta, _] = self.0.state;
        observation.copy_from_slice(&[x as f32, theta as f32]);
    }

    fn save(&self, words: &mut Vec<u64>) {
        self.0.save(words);
    }

    fn restore(&mut self, words: &[u64]) {
        self.0.restore(words);
    }
}
