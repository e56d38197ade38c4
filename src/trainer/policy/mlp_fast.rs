//! Forward pass of small actor-critic MLPs in plain Rust, for rollouts and evaluations.
//!
//! Owner: the collector. At a batch of a few rows libtorch spends nearly all its time on overhead: this pass is about ten times as
//! fast for 64-64 networks and allocates nothing. It reads a snapshot of the flat parameter buffer, so it serves a policy that
//! learns on a GPU as well.
//!
//! Invariants:
//! - FAST-1: logits and values equal libtorch's within 1e-6 (relative to max(1, |value|)) for weights as networks have them.
//! - FAST-2: plain IEEE f32 operations in a fixed order: the same on every x86-64 machine.

use super::actor_critic::{Layer, Layout};
use crate::trainer::env::numpy_random::Generator;

struct FastLayer {
    inputs: usize,
    outputs: usize,
    /// `[inputs][outputs]`, so that the inner loop runs over outputs and vectorises without reordering sums.
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl FastLayer {
    fn new(layer: &Layer) -> FastLayer {
        FastLayer {
            inputs: layer.inputs,
            outputs: layer.outputs,
            weight: vec![0.0; layer.inputs * layer.outputs],
            bias: vec![0.0; layer.outputs],
        }
    }

    fn load(&mut self, layer: &Layer, flat: &[f32]) {
        for row in 0..self.outputs {
            for column in 0..self.inputs {
                self.weight[column * self.outputs + row] = flat[layer.weight + row * self.inputs + column];
            }
        }
        self.bias.copy_from_slice(&flat[layer.bias..layer.bias + layer.outputs]);
    }

    fn run(&self, input: &[f32], output: &mut [f32]) {
        let output = &mut output[..self.outputs];
        output.copy_from_slice(&self.bias);
        for (x, row) in input.iter().zip(self.weight.chunks_exact(self.outputs)) {
            for (y, w) in output.iter_mut().zip(row) {
                *y += x * w;
            }
        }
    }
}

struct Network {
    layers: Vec<FastLayer>,
    /// Two buffers, as wide as the widest layer.
    ping: Vec<f32>,
    pong: Vec<f32>,
}

impl Network {
    fn new(layers: &[Layer]) -> Network {
        let widest = layers.iter().map(|layer| layer.outputs.max(layer.inputs)).max().unwrap_or(0);
        Network {
            layers: layers.iter().map(FastLayer::new).collect(),
            ping: vec![0.0; widest],
            pong: vec![0.0; widest],
        }
    }

    fn run(&mut self, input: &[f32]) -> &[f32] {
        let last = self.layers.len().saturating_sub(1);
        let mut width = input.len();
        self.ping[..width].copy_from_slice(input);
        for (i, layer) in self.layers.iter().enumerate() {
            layer.run(&self.ping[..width], &mut self.pong);
            width = layer.outputs;
            if i < last {
                self.pong[..width].iter_mut().for_each(|y| *y = tanh(*y));
            }
            std::mem::swap(&mut self.ping, &mut self.pong);
        }
        &self.ping[..width]
    }
}

/// Actor and critic on the CPU.
pub struct MlpFast {
    layout: Layout,
    actor: Network,
    critic: Network,
    probabilities: Vec<f32>,
}

impl MlpFast {
    /// Networks of this layout, all zero until the first [`MlpFast::load`].
    pub fn new(layout: &Layout) -> MlpFast {
        MlpFast {
            actor: Network::new(&layout.actor),
            critic: Network::new(&layout.critic),
            probabilities: Vec::with_capacity(layout.actor.last().map_or(0, |layer| layer.outputs)),
            layout: layout.clone(),
        }
    }

    /// Takes a snapshot of the flat parameter buffer.
    pub fn load(&mut self, flat: &[f32]) {
        let pairs = [(&mut self.critic, &self.layout.critic), (&mut self.actor, &self.layout.actor)];
        for (network, layers) in pairs {
            for (fast, layer) in network.layers.iter_mut().zip(layers) {
                fast.load(layer, flat);
            }
        }
    }

    /// Logits of one observation.
    pub fn logits(&mut self, observation: &[f32]) -> &[f32] {
        self.actor.run(observation)
    }

    /// Value of one observation.
    pub fn value(&mut self, observation: &[f32]) -> f32 {
        self.critic.run(observation).first().copied().unwrap_or(0.0)
    }

    /// A sampled action and its log-probability. Draws one double.
    pub fn sample(&mut self, observation: &[f32], random: &mut Generator) -> (i64, f32) {
        let logits = self.actor.run(observation);
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        self.probabilities.clear();
        self.probabilities.extend(logits.iter().map(|logit| exp(logit - largest)));
        let total: f32 = self.probabilities.iter().sum();
        let mut left = random.next_f64() as f32 * total;
        let last = logits.len().saturating_sub(1);
        let mut action = last;
        for (i, probability) in self.probabilities.iter().enumerate().take(last) {
            left -= probability;
            if left < 0.0 {
                action = i;
                break;
            }
        }
        let log_probability = logits.get(action).copied().unwrap_or(0.0) - largest - total.ln();
        (action as i64, log_probability)
    }

    /// The most probable action; the first of equals.
    pub fn greedy(&mut self, observation: &[f32]) -> i64 {
        let logits = self.actor.run(observation);
        let best = logits.iter().enumerate().fold((0, f32::NEG_INFINITY), |best, (i, logit)| {
            if *logit > best.1 { (i, *logit) } else { best }
        });
        best.0 as i64
    }
}

/// e^x for x <= 0 by range reduction to +-ln 2 / 2 and a Taylor polynomial; no branch and no call, so loops over it vectorise.
fn exp(x: f32) -> f32 {
    // Adding and subtracting 1.5 * 2^23 rounds to an integer.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts, so that the reduction is exact to f32.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.0, 0.0);
    let n = x * std::f32::consts::LOG2_E + ROUND - ROUND;
    let r = x - n * LN2_HIGH - n * LN2_LOW;
    let mut sum = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = sum * r + coefficient;
    }
    sum * f32::from_bits(((n as i32 + 127) as u32) << 23)
}

/// Hyperbolic tangent, absolute error below 2e-7.
fn tanh(x: f32) -> f32 {
    let t = exp(-2.0 * x.abs());
    ((1.0 - t) / (1.0 + t)).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainer::env::Spec;
    use crate::trainer::policy::ActorCritic;
    use crate::trainer::seeds::{Purpose, Seeds};
    use tch::{Device, Tensor};

    #[test]
    fn tanh_and_exp_are_accurate() {
        for i in -200_000..=200_000 {
            let x = i as f32 * 1e-4;
            assert!((f64::from(tanh(x)) - f64::from(x).tanh()).abs() < 2e-7, "tanh {x}");
            let (got, wanted) = (f64::from(exp(-x.abs())), (-f64::from(x.abs())).exp());
            assert!((got - wanted).abs() <= 3e-7 * wanted, "exp {x}");
        }
        assert_eq!((tanh(f32::INFINITY), tanh(f32::NEG_INFINITY), tanh(0.0)), (1.0, -1.0, 0.0));
        assert!(exp(-1000.0) >= 0.0);
    }

    #[test]
    fn fast_1_it_equals_libtorch() {
        for hidden in [vec![], vec![8], vec![64, 64], vec![32, 16, 8]] {
            let spec = Spec::discrete(4, 3);
            let layout = Layout::new(&spec, &hidden);
            let mut random = Seeds::new(9).generator(Purpose::Model, 1, 0);
            let flat: Vec<f32> = (0..layout.len).map(|_| 0.15 * random.normal() as f32).collect();
            let mut policy = ActorCritic::new(layout.clone(), &Seeds::new(1), Device::Cpu).unwrap();
            policy.copy_from(&flat).unwrap();
            let mut fast = MlpFast::new(&layout);
            fast.load(&flat);
            let rows: Vec<f32> = (0..4 * 200).map(|_| 2.0 * random.normal() as f32).collect();
            let (logits, values) = policy.forward(&Tensor::from_slice(&rows).view([200, 4])).unwrap();
            for (i, row) in rows.chunks(4).enumerate() {
                let close = |a: f64, b: f64| (a - b).abs() < 1e-6 * b.abs().max(1.0);
                let wanted = values.double_value(&[i as i64]);
                assert!(close(f64::from(fast.value(row)), wanted), "{} {wanted}", fast.value(row));
                for (j, logit) in fast.logits(row).iter().enumerate() {
                    let wanted = logits.double_value(&[i as i64, j as i64]);
                    assert!(close(f64::from(*logit), wanted), "{logit} {wanted}");
                }
            }
        }
    }

    #[test]
    fn actions_follow_their_probabilities() {
        let layout = Layout::new(&Spec::discrete(1, 3), &[]);
        let mut flat = vec![0.0; layout.len];
        let bias = layout.actor[0].bias;
        flat[bias..bias + 3].copy_from_slice(&[0.0, 1.0, -1.0]);
        let mut fast = MlpFast::new(&layout);
        fast.load(&flat);
        let mut random = Seeds::new(1).generator(Purpose::Action, 0, 0);
        let mut counts = [0_u32; 3];
        let total = 1.0 + 1_f32.exp() + (-1_f32).exp();
        for _ in 0..100_000 {
            let (action, log_probability) = fast.sample(&[0.0], &mut random);
            counts[action as usize] += 1;
            let wanted = ([0.0, 1.0, -1.0][action as usize]) - total.ln();
            assert!((log_probability - wanted).abs() < 1e-6);
        }
        for (count, probability) in
            counts.iter().zip([1.0 / total, 1_f32.exp() / total, (-1_f32).exp() / total])
        {
            assert!((*count as f32 / 1e5 - probability).abs() < 0.01);
        }
        assert_eq!(fast.greedy(&[0.0]), 1);
    }
}
