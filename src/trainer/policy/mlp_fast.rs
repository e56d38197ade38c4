//! Forward pass of small dense actor-critic networks in plain Rust, for rollouts and evaluations.
//!
//! Owner: whoever acts ([`super::acting`]). At a batch of a few rows libtorch spends nearly all its time on overhead: this pass is about ten times as
//! fast for 64-64 networks and allocates nothing. It reads a snapshot of the flat parameter buffer, so it serves a policy that
//! learns on a GPU as well.
//!
//! Invariants:
//! - FAST-1: logits and values equal libtorch's within 1e-6 (relative to max(1, |value|)) for weights as networks have them.
//! - FAST-2: plain IEEE f32 operations in a fixed order: the same on every x86-64 machine.

use super::layout::{Layer, Layout};
use crate::config::experiment::Activation;

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
    activation: Activation,
    /// The last layer is followed by the activation too.
    is_trunk: bool,
    /// Two buffers, as wide as the widest layer.
    ping: Vec<f32>,
    pong: Vec<f32>,
}

impl Network {
    fn new(layers: &[Layer], activation: Activation, is_trunk: bool) -> Network {
        let widest = layers.iter().map(|layer| layer.outputs.max(layer.inputs)).max().unwrap_or(0);
        Network {
            layers: layers.iter().map(FastLayer::new).collect(),
            activation,
            is_trunk,
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
            if i < last || self.is_trunk {
                match self.activation {
                    Activation::Tanh => self.pong[..width].iter_mut().for_each(|y| *y = tanh(*y)),
                    Activation::Relu => self.pong[..width].iter_mut().for_each(|y| *y = y.max(0.0)),
                }
            }
            std::mem::swap(&mut self.ping, &mut self.pong);
        }
        &self.ping[..width]
    }
}

/// Actor and critic on the CPU.
pub struct MlpFast {
    layout: Layout,
    shared: Network,
    actor: Network,
    critic: Network,
}

impl MlpFast {
    /// Networks of this layout, which must be dense; all zero until the first [`MlpFast::load`].
    pub fn new(layout: &Layout) -> MlpFast {
        let network = |layers, is_trunk| Network::new(layers, layout.activation, is_trunk);
        MlpFast {
            shared: network(&layout.shared, true),
            actor: network(&layout.actor, false),
            critic: network(&layout.critic, false),
            layout: layout.clone(),
        }
    }

    /// Takes a snapshot of the flat parameter buffer.
    pub fn load(&mut self, flat: &[f32]) {
        let pairs = [
            (&mut self.shared, &self.layout.shared),
            (&mut self.critic, &self.layout.critic),
            (&mut self.actor, &self.layout.actor),
        ];
        for (network, layers) in pairs {
            for (fast, layer) in network.layers.iter_mut().zip(layers) {
                fast.load(layer, flat);
            }
        }
    }

    /// What the actor gives for one observation (logits or means), and the critic's value.
    pub fn both(&mut self, observation: &[f32]) -> (&[f32], f32) {
        let seen = if self.shared.layers.is_empty() { observation } else { self.shared.run(observation) };
        let value = self.critic.run(seen).first().copied().unwrap_or(0.0);
        (self.actor.run(seen), value)
    }

    /// What the actor gives for one observation: logits or means.
    pub fn scores(&mut self, observation: &[f32]) -> &[f32] {
        let seen = if self.shared.layers.is_empty() { observation } else { self.shared.run(observation) };
        self.actor.run(seen)
    }
}

/// e^x for x <= 0 by range reduction to +-ln 2 / 2 and a Taylor polynomial; no branch and no call, so loops over it vectorise.
pub(super) fn exp(x: f32) -> f32 {
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
    use crate::config::experiment::Policy;
    use crate::trainer::env::Spec;
    use crate::trainer::policy::ActorCritic;
    use crate::trainer::policy::actor_critic::Pass;
    use crate::trainer::policy::distribution::Distribution;
    use crate::trainer::seeds::{Purpose, Seeds};
    use tch::{Device, Kind, Tensor};

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
        let spec = Spec::discrete(4, 3);
        for (hidden, shared, activation) in [
            (vec![], false, Activation::Tanh),
            (vec![8], true, Activation::Relu),
            (vec![64, 64], false, Activation::Tanh),
            (vec![32, 16, 8], true, Activation::Tanh),
            (vec![100], false, Activation::Relu),
        ] {
            let policy = Policy { hidden, shared, activation, ..Policy::default() };
            let layout = Layout::new(&spec, &policy, false).unwrap();
            let mut random = Seeds::new(9).generator(Purpose::Model, 1, 0);
            let flat: Vec<f32> = (0..layout.len).map(|_| 0.15 * random.normal() as f32).collect();
            let mut policy = ActorCritic::new(layout.clone(), &Seeds::new(1), Device::Cpu).unwrap();
            policy.copy_from(&flat).unwrap();
            let mut fast = MlpFast::new(&layout);
            fast.load(&flat);
            let rows: Vec<f32> = (0..4 * 200).map(|_| 2.0 * random.normal() as f32).collect();
            let output = policy.forward(&Tensor::from_slice(&rows).view([200, 4]), Pass::PLAIN).unwrap();
            let Distribution::Categorical(log_all) = output.distribution else { panic!("discrete actions") };
            for (i, row) in rows.chunks(4).enumerate() {
                let close = |a: f64, b: f64| (a - b).abs() < 2e-6 * b.abs().max(1.0);
                let wanted = output.values.double_value(&[i as i64]);
                let (logits, value) = fast.both(row);
                assert!(close(f64::from(value), wanted), "{value} {wanted}");
                let own = Tensor::from_slice(logits).log_softmax(-1, None::<Kind>);
                for j in 0..logits.len() as i64 {
                    let wanted = log_all.double_value(&[i as i64, j]);
                    assert!(close(own.double_value(&[j]), wanted), "{wanted}");
                }
                let both = logits.to_vec();
                assert_eq!(fast.scores(row), both);
            }
        }
    }
}
