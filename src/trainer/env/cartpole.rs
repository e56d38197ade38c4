//! CartPole-v0 and CartPole-v1 as Gymnasium 1.x computes them (Barto, Sutton, Anderson 1983; Euler steps of 0.02 s).
//!
//! Owner: the vector environment that steps it. State is f64, observations are the state cast to f32.
//! Invariants:
//! - CARTPOLE-1: states, observations, rewards, ends and resets are bit-equal to `gymnasium.make(id)`: same order of operations,
//!   squares as `x * x`, no fused multiply-add.
//! - CARTPOLE-2: the time limit truncates at exactly `limit` steps; a fall in that very step is both terminated and truncated.

use super::numpy_random::Generator;
use super::{EnvError, Environment, Spec, Step};

const GRAVITY: f64 = 9.8;
const MASS_POLE: f64 = 0.1;
const TOTAL_MASS: f64 = MASS_POLE + 1.0;
const LENGTH: f64 = 0.5;
const POLE_MASS_LENGTH: f64 = MASS_POLE * LENGTH;
const FORCE: f64 = 10.0;
const TAU: f64 = 0.02;
const THETA_LIMIT: f64 = 12.0 * 2.0 * std::f64::consts::PI / 360.0;
const X_LIMIT: f64 = 2.4;
const WORDS: usize = 10;

/// One cart with its pole.
#[derive(Debug, Clone)]
pub struct CartPole {
    state: [f64; 4],
    elapsed: u64,
    fallen: bool,
    limit: u64,
    random: Generator,
}

impl CartPole {
    /// A cart whose episodes are cut after `limit` steps: 200 in v0, 500 in v1. Unusable before its first seeded reset.
    pub fn new(limit: u64) -> CartPole {
        CartPole { state: [0.0; 4], elapsed: 0, fallen: false, limit, random: Generator::from_words(&[0]) }
    }

    /// Cart position (m), its velocity, pole angle (rad), its velocity.
    pub fn state(&self) -> [f64; 4] {
        self.state
    }

    fn observe(&self, observation: &mut [f32]) {
        for (to, from) in observation.iter_mut().zip(self.state) {
            *to = from as f32;
        }
    }
}

impl Environment for CartPole {
    fn spec(&self) -> Spec {
        Spec { observation_len: 4, num_actions: 2 }
    }

    fn reset(&mut self, seed: Option<&[u32]>, observation: &mut [f32]) {
        if let Some(words) = seed {
            self.random = Generator::from_words(words);
        }
        self.state = std::array::from_fn(|_| self.random.uniform(-0.05, 0.05));
        self.elapsed = 0;
        self.fallen = false;
        self.observe(observation);
    }

    fn step(&mut self, action: usize, observation: &mut [f32]) -> Step {
        let [x, x_dot, theta, theta_dot] = self.state;
        let force = if action == 1 { FORCE } else { -FORCE };
        let (cos, sin) = (theta.cos(), theta.sin());
        let temp = (force + POLE_MASS_LENGTH * (theta_dot * theta_dot) * sin) / TOTAL_MASS;
        let theta_acc =
            (GRAVITY * sin - cos * temp) / (LENGTH * (4.0 / 3.0 - MASS_POLE * (cos * cos) / TOTAL_MASS));
        let x_acc = temp - POLE_MASS_LENGTH * theta_acc * cos / TOTAL_MASS;
        let [x, theta] = [x + TAU * x_dot, theta + TAU * theta_dot];
        self.state = [x, x_dot + TAU * x_acc, theta, theta_dot + TAU * theta_acc];
        self.elapsed += 1;
        self.observe(observation);
        let terminated = !(-X_LIMIT..=X_LIMIT).contains(&x) || !(-THETA_LIMIT..=THETA_LIMIT).contains(&theta);
        let reward = if terminated && self.fallen { 0.0 } else { 1.0 };
        self.fallen |= terminated;
        Step { reward, terminated, truncated: self.elapsed >= self.limit }
    }

    fn words(&self) -> usize {
        WORDS
    }

    fn save(&self, words: &mut Vec<u64>) {
        words.extend(self.state.map(f64::to_bits));
        words.extend([self.elapsed, u64::from(self.fallen)]);
        words.extend(self.random.to_state());
    }

    fn restore(&mut self, words: &[u64], observation: &mut [f32]) -> Result<(), EnvError> {
        let Ok(words) = <[u64; WORDS]>::try_from(words) else {
            return Err(EnvError::State { expected: WORDS, found: words.len() });
        };
        self.state = std::array::from_fn(|i| f64::from_bits(words[i]));
        self.elapsed = words[4];
        self.fallen = words[5] != 0;
        self.random = Generator::from_state([words[6], words[7], words[8], words[9]]);
        self.observe(observation);
        Ok(())
    }
}
