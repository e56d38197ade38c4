//! Acrobot-v1 as Gymnasium 1.x computes it (Sutton 1996; Sutton and Barto's book): two links, a motor between
//! them, swing the tip up.
//!
//! Fourth-order Runge-Kutta in f64. The state after a reset is rounded to f32, and its observation is made of
//! f32 sines and cosines; both are f64 after the first step. 500 steps.

use super::{ClassicTask, TaskStep, pow2};
use crate::ActionSpace;
use rankdeck_kernel::numpy_random::Generator;
use std::f64::consts::{FRAC_PI_2, PI};

const DT: f64 = 0.2;
const GRAVITY: f64 = 9.8;
const MAX_VELOCITY: [f64; 2] = [4.0 * PI, 9.0 * PI];

/// Angle of the first link from hanging (rad), of the second relative to the first, and their velocities.
#[derive(Debug, Clone)]
pub struct Acrobot {
    state: [f64; 4],
    /// No step was made since the reset.
    fresh: bool,
}

/// Time derivative of the state under a torque: the book's equations. Links are 1 m and 1 kg, their centers
/// of mass in the middle, their moments of inertia 1.
fn derivative([theta1, theta2, velocity1, velocity2]: [f64; 4], torque: f64) -> [f64; 4] {
    let (cos2, sin2) = (theta2.cos(), theta2.sin());
    let d1 = 0.25 + (1.25 + cos2) + 1.0 + 1.0;
    let d2 = (0.25 + 0.5 * cos2) + 1.0;
    let phi2 = 0.5 * GRAVITY * (theta1 + theta2 - FRAC_PI_2).cos();
    let phi1 = -0.5 * pow2(velocity2) * sin2 - velocity2 * velocity1 * sin2
        + 1.5 * GRAVITY * (theta1 - FRAC_PI_2).cos()
        + phi2;
    let acceleration2 =
        (torque + d2 / d1 * phi1 - 0.5 * pow2(velocity1) * sin2 - phi2) / (1.25 - pow2(d2) / d1);
    let acceleration1 = -(d2 * acceleration2 + phi1) / d1;
    [velocity1, velocity2, acceleration1, acceleration2]
}

fn add(state: [f64; 4], time: f64, slope: [f64; 4]) -> [f64; 4] {
    std::array::from_fn(|i| state[i] + time * slope[i])
}

/// Into -pi to pi, by whole turns one after the other.
fn wrap(mut angle: f64) -> f64 {
    while angle > PI {
        angle -= 2.0 * PI;
    }
    while angle < -PI {
        angle += 2.0 * PI;
    }
    angle
}

/// NumPy's f32 cosine on -pi/4 to pi/4, where it is one polynomial by fused multiply-adds
/// (numpy/_core/src/umath/ loops_trigonometric.dispatch). libm's `cosf` sometimes differs from it in the last
/// bit.
fn small_cos(x: f32) -> f32 {
    // 0x1.98e616p-16, -0x1.6c06dcp-10, 0x1.55553cp-5
    let [c8, c6, c4] = [0x37cc_730b, 0xbab6_036e, 0x3d2a_aa9e].map(f32::from_bits);
    let square = x * x;
    [c6, c4, -0.5, 1.0].into_iter().fold(c8, |sum: f32, next| sum.mul_add(square, next))
}
fn small_sin(x: f32) -> f32 {
    // 0x1.7d3bbcp-19, -0x1.a06bbap-13, 0x1.11119ap-7, -0x1.555556p-3
    let [c9, c7, c5, c3] = [0x363e_9dde, 0xb950_35dd, 0x3c08_88cd, 0xbe2a_aaab].map(f32::from_bits);
    let square = x * x;
    let sum = [c7, c5, c3].into_iter().fold(c9, |sum: f32, next| sum.mul_add(square, next));
    (sum * square).mul_add(x, x)
}

impl ClassicTask for Acrobot {
    type Action = i64;
    const OBSERVATION: usize = 6;
    const WORDS: usize = 5;

    fn actions() -> ActionSpace {
        ActionSpace::Discrete { n: 3 }
    }

    fn blank() -> Acrobot {
        Acrobot { state: [0.0; 4], fresh: true }
    }

    fn reset(&mut self, random: &mut Generator) {
        self.state = std::array::from_fn(|_| f64::from(random.uniform(-0.1, 0.1) as f32));
        self.fresh = true;
    }

    fn step(&mut self, action: i64) -> TaskStep {
        let torque = (action - 1) as f64;
        let k1 = derivative(self.state, torque);
        let k2 = derivative(add(self.state, DT / 2.0, k1), torque);
        let k3 = derivative(add(self.state, DT / 2.0, k2), torque);
        let k4 = derivative(add(self.state, DT, k3), torque);
        let slope = std::array::from_fn(|i| k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i]);
        let [theta1, theta2, velocity1, velocity2] = add(self.state, DT / 6.0, slope);
        let [max1, max2] = MAX_VELOCITY;
        self.state = [wrap(theta1), wrap(theta2), velocity1.clamp(-max1, max1), velocity2.clamp(-max2, max2)];
        self.fresh = false;
        let [theta1, theta2, ..] = self.state;
        let terminated = -theta1.cos() - (theta2 + theta1).cos() > 1.0;
        TaskStep { reward: if terminated { 0.0 } else { -1.0 }, terminated }
    }

    fn observe(&self, observation: &mut [f32]) {
        let [theta1, theta2, velocity1, velocity2] = self.state;
        let values = match self.fresh {
            true => {
                let (theta1, theta2) = (theta1 as f32, theta2 as f32);
                let cosines = [small_cos(theta1), small_sin(theta1), small_cos(theta2), small_sin(theta2)];
                [cosines[0], cosines[1], cosines[2], cosines[3], velocity1 as f32, velocity2 as f32]
            }
            false => [theta1.cos(), theta1.sin(), theta2.cos(), theta2.sin(), velocity1, velocity2]
                .map(|value| value as f32),
        };
        for (to, from) in observation.iter_mut().zip(values) {
            *to = from;
        }
    }

    fn save(&self, words: &mut Vec<u64>) {
        words.extend(self.state.map(f64::to_bits));
        words.push(u64::from(self.fresh));
    }

    fn restore(&mut self, words: &[u64]) {
        for (to, from) in self.state.iter_mut().zip(words) {
            *to = f64::from_bits(*from);
        }
        self.fresh = words[4] != 0;
    }
}
