//! Compares gradients of whole networks and losses with libtorch's autograd and with finite differences.

use rankdeck_kernel::distribution::{Categorical, Gaussian};
use rankdeck_kernel::loss::{
    Distance, Goals, Surrogate, dueling, dueling_back, q_loss, surrogate, value_loss,
};
use rankdeck_kernel::mlp::Layer;
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_kernel::optimizer::{AdamStep, adam_step};
use rankdeck_kernel::seeds::{Purpose, Seeds};
use rankdeck_kernel::{Isa, LayerActivation, Matrix, Mlp};
use tch::nn::{self, OptimizerConfig};
use tch::{Device, Kind, Tensor};

/// Layers of these widths, from `offset` on in the flat buffer; returns the offset behind them.
fn layers(widths: &[usize], mut offset: usize) -> (Vec<Layer>, usize) {
    let layers = widths
        .windows(2)
        .map(|pair| {
            let (inputs, outputs, weight) = (pair[0], pair[1], offset);
            let bias = weight + inputs * outputs;
            offset = bias + outputs;
            Layer { inputs, outputs, weight, bias }
        })
        .collect();
    (layers, offset)
}

fn draw(random: &mut Generator, scale: f64, len: usize) -> Vec<f32> {
    (0..len).map(|_| (scale * random.normal()) as f32).collect()
}

/// The same network in libtorch, in f64 so that only the kernel's rounding counts.
fn reference(
    layers: &[Layer],
    flat: &Tensor,
    input: &Tensor,
    hidden: LayerActivation,
    last: LayerActivation,
) -> Tensor {
    layers.iter().enumerate().fold(input.shallow_clone(), |x, (i, layer)| {
        let part = |from: usize, len: usize| flat.narrow(0, from as i64, len as i64);
        let weight = part(layer.weight, layer.inputs * layer.outputs);
        let weight = weight.view([layer.outputs as i64, layer.inputs as i64]);
        let x = x.linear(&weight, Some(&part(layer.bias, layer.outputs)));
        match if i + 1 == layers.len() { last } else { hidden } {
            LayerActivation::Identity => x,
            LayerActivation::Tanh => x.tanh(),
            LayerActivation::Relu => x.relu(),
        }
    })
}

fn double(values: &[f32]) -> Tensor {
    Tensor::from_slice(values).to_kind(Kind::Double)
}

fn rows(values: &[f32], columns: usize) -> Tensor {
    double(values).view([-1, columns as i64])
}

fn unpadded(matrix: &Matrix) -> Vec<f32> {
    matrix.iter().flatten().copied().collect()
}

/// Within 1e-5 of the largest magnitude, or of 0.1 where all is smaller: means of terms of both signs.
fn assert_close(got: &[f32], expected: &Tensor, what: &str) {
    let expected = Vec::<f64>::try_from(expected.contiguous().view([-1])).unwrap();
    assert_eq!(got.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(0.1_f64, |a, b| a.max(b.abs()));
    for (i, (a, b)) in got.iter().zip(&expected).enumerate() {
        assert!((f64::from(*a) - b).abs() <= 1e-5 * scale, "{what}[{i}]: {a}, autograd {b}, scale {scale}");
    }
}

/// MLP-1 and MLP-2 over random shapes, with the gradient of the inputs.
#[test]
fn mlp_1_outputs_and_gradients_equal_autograds() {
    let mut random = Seeds::new(17).generator(Purpose::Model, 0, 0);
    for case in 0..40_usize {
        let mut below = |n: u64| random.below(n) as usize;
        let depth = 1 + below(4);
        let widths: Vec<usize> =
            (0..=depth).map(|_| 1 + below(if case % 5 == 0 { 150 } else { 40 })).collect();
        let (count, offset) = (1 + below(70), below(10));
        let all = [LayerActivation::Tanh, LayerActivation::Relu, LayerActivation::Identity];
        let (hidden, last) = (all[below(3)], all[below(3)]);
        let (layers, len) = layers(&widths, offset);
        // So that a layer neither blows rounding errors up nor damps them.
        let scale = 1.0 / (widths.iter().max().copied().unwrap_or(1) as f64).sqrt();
        let flat = draw(&mut random, scale, len);
        let input = draw(&mut random, 1.0, count * widths[0]);
        let expected = draw(&mut random, 1.0, count * widths[depth]);
        let x = rows(&input, widths[0]).set_requires_grad(true);
        let w = double(&flat).set_requires_grad(true);
        let y = reference(&layers, &w, &x, hidden, last);
        (&y * rows(&expected, widths[depth])).sum(Kind::Double).backward();

        let (mut from, mut by_output) = (Matrix::new(1, widths[0]), Matrix::new(1, widths[depth]));
        from.copy_rows(&input);
        by_output.copy_rows(&expected);
        let mut first: Option<Vec<u32>> = None;
        for isa in Isa::all() {
            let mut mlp = Mlp::on(isa, &layers, hidden, last, 1);
            mlp.load(&flat);
            assert_close(&unpadded(mlp.forward(&from)), &y, "output");
            // Gradients are added to what is there.
            let mut gradient = vec![1.0; len];
            let mut by_input = Matrix::new(1, widths[0]);
            mlp.backward(&from, &by_output, &mut gradient, Some(&mut by_input));
            let own: Vec<f32> = gradient.iter().map(|g| g - 1.0).collect();
            let largest = w.grad().abs().max().double_value(&[]).max(1.0);
            for (a, b) in own.iter().zip(Vec::<f64>::try_from(w.grad()).unwrap()) {
                assert!((f64::from(*a) - b).abs() <= 1e-5 * largest, "{a} {b} {largest} {widths:?}");
            }
            assert_close(&unpadded(&by_input), &x.grad(), "input gradient");
            // The same bits on every instruction set, and for a single row as for the batch.
            let bits = gradient.iter().chain(&unpadded(&by_input)).map(|g| g.to_bits()).collect::<Vec<_>>();
            assert_eq!(first.get_or_insert_with(|| bits.clone()), &bits, "{}", isa.name());
            let whole = unpadded(mlp.forward(&from));
            let mut one = Matrix::new(1, widths[0]);
            one.copy_rows(&input[(count - 1) * widths[0]..]);
            let alone = unpadded(mlp.forward(&one));
            assert_eq!(alone, whole[(count - 1) * widths[depth]..]);
        }
    }
}

/// PPO's terms in libtorch. Gives (policy loss, value loss).
fn reference_ppo(
    log_prob: &Tensor,
    values: &Tensor,
    batch: &Batch,
    clip: f64,
    clip_vloss: bool,
    distance: Distance,
) -> [Tensor; 2] {
    let ratio = (log_prob - double(&batch.old_log)).exp();
    let advantages = double(&batch.advantages);
    let policy = (&advantages * &ratio).minimum(&(&advantages * ratio.clamp(1.0 - clip, 1.0 + clip)));
    let (old, returns) = (double(&batch.old_values), double(&batch.returns));
    let error = penalty(&(values - &returns), distance);
    let error = if clip_vloss {
        error.maximum(&penalty(&(&old + (values - &old).clamp(-clip, clip) - &returns), distance))
    } else {
        error
    };
    let shares = double(&batch.shares);
    [-(policy * &shares).sum(Kind::Double), (error * shares).sum(Kind::Double)]
}

/// Log-probabilities of the actions taken, and the entropy.
fn reference_categorical(outputs: &Tensor, taken: &[i64], shares: &Tensor) -> (Tensor, Tensor) {
    let log_all = outputs.log_softmax(-1, Kind::Double);
    let index = Tensor::from_slice(taken).view([-1, 1]);
    let each = (log_all.exp() * &log_all).sum_dim_intlist(-1, false, Kind::Double);
    (log_all.gather(-1, &index, false).view([-1]), -(each * shares).sum(Kind::Double))
}

/// The same of a Gaussian policy.
fn reference_gaussian(
    outputs: &Tensor,
    log_std: &Tensor,
    moves: &Tensor,
    shares: &Tensor,
) -> (Tensor, Tensor) {
    let z = (moves - outputs) / log_std.exp();
    let half = 0.5 * (2.0 * std::f64::consts::PI).ln();
    let log_prob = (z.square() * -0.5 - log_std - half).sum_dim_intlist(-1, false, Kind::Double);
    (log_prob, (log_std + 0.5 + half).sum(Kind::Double) * shares.sum(Kind::Double))
}

/// Actions as a Gaussian policy samples them.
fn sampled(random: &mut Generator, outputs: &Matrix, log_std: &[f32]) -> Vec<f32> {
    let means = unpadded(outputs);
    let noise = draw(random, 1.0, means.len());
    let std: Vec<f32> = log_std.iter().map(|log_std| log_std.exp()).collect();
    means
        .iter()
        .zip(&noise)
        .zip(std.iter().cycle().chain(&[1.0]))
        .map(|((mean, noise), std)| mean + std * noise)
        .collect()
}

fn penalty(error: &Tensor, distance: Distance) -> Tensor {
    match distance {
        Distance::Squared => error.square() * 0.5,
        Distance::Huber => error.smooth_l1_loss(&Tensor::zeros_like(error), tch::Reduction::None, 1.0),
    }
}

/// Shares of `n` rows, some of them 0.
fn shares(random: &mut Generator, n: usize) -> Vec<f32> {
    (0..n).map(|i| if i % 7 == 3 { 0.0 } else { (0.5 + random.next_f64() as f32) / n as f32 }).collect()
}

struct Batch {
    shares: Vec<f32>,
    old_log: Vec<f32>,
    old_values: Vec<f32>,
    advantages: Vec<f32>,
    returns: Vec<f32>,
}

impl Batch {
    fn new(random: &mut Generator, n: usize, near: &[f32], values: &[f32]) -> Batch {
        let around = |random: &mut Generator, centre: &[f32], spread| {
            draw(random, spread, n).iter().zip(centre).map(|(a, b)| a + b).collect()
        };
        Batch {
            shares: shares(random, n),
            // Ratios on both sides of the clipping range, and inside.
            old_log: around(random, near, 0.3),
            old_values: around(random, values, 0.3),
            advantages: draw(random, 1.0, n),
            returns: draw(random, 1.0, n),
        }
    }

    fn surrogate(&self, log_probs: &[f32], clip: f32, by_log_prob: &mut [f32]) -> Surrogate {
        let Batch { old_log, advantages, shares, .. } = self;
        surrogate(Isa::best(), log_probs, old_log, advantages, shares, clip, by_log_prob)
    }
}

/// LOSS-1 for both kinds of policy: the whole of PPO's loss, through both networks.
#[test]
fn loss_1_ppos_gradient_equals_autograds() {
    let mut random = Seeds::new(23).generator(Purpose::Model, 0, 0);
    for case in 0..24_usize {
        let (discrete, clip_vloss) = (case % 2 == 0, case % 4 < 2);
        let (inputs, n, actions) = (3 + case % 4, 16 + case, 2 + case % 5);
        let (critic_layers, at) = layers(&[inputs, 12, 9, 1], 0);
        let (actor_layers, at) = layers(&[inputs, 20, actions], at);
        let (std_at, len) = (at, if discrete { at } else { at + actions });
        let flat = draw(&mut random, 0.5, len);
        let input = draw(&mut random, 1.0, n * inputs);
        let taken: Vec<i64> = (0..n).map(|_| random.below(actions as u64) as i64).collect();
        let tanh = (LayerActivation::Tanh, LayerActivation::Identity);

        let mut x = Matrix::new(1, inputs);
        x.copy_rows(&input);
        let [mut critic, mut actor] =
            [&critic_layers, &actor_layers].map(|layers| Mlp::new(layers, tanh.0, tanh.1, n));
        for network in [&mut critic, &mut actor] {
            network.load(&flat);
            network.forward(&x);
        }
        let (values, outputs) = (critic.output().unwrap(), actor.output().unwrap());
        let moves = sampled(&mut random, outputs, &flat[std_at..]);
        let (mut categorical, mut gaussian) = (Categorical::new(actions), Gaussian::default());
        let mut forward = |shares: &[f32], log_probs: &mut [f32]| match discrete {
            true => categorical.forward(outputs, &taken, shares, log_probs),
            false => gaussian.forward(outputs, &flat[std_at..], &moves, shares, log_probs),
        };
        let mut log_probs = vec![0.0; n];
        forward(&[], &mut log_probs);
        let batch = Batch::new(&mut random, n, &log_probs, &unpadded(values));
        let entropy = forward(&batch.shares, &mut log_probs);
        let (clip, entropy_weight, value_weight) = (0.2_f32, 0.05_f32, 0.5_f32);
        let (mut by_log_prob, mut by_value, mut by_output) =
            (vec![0.0; n], Matrix::new(1, 1), Matrix::new(1, actions));
        let sums = batch.surrogate(&log_probs, clip, &mut by_log_prob);
        let goals = Goals { old_values: &batch.old_values, returns: &batch.returns, shares: &batch.shares };
        let distance = if case % 3 == 0 { Distance::Huber } else { Distance::Squared };
        let vclip = clip_vloss.then_some(clip);
        let value = value_loss(values, goals, distance, vclip, value_weight, &mut by_value);
        let (by_entropy, mut gradient) = (-entropy_weight, vec![0.0; len]);
        if discrete {
            categorical.backward(&taken, &by_log_prob, &batch.shares, by_entropy, &mut by_output);
        } else {
            let (log_std, by_log_std) = (&flat[std_at..], &mut gradient[std_at..]);
            gaussian.backward(log_std, &by_log_prob, &batch.shares, by_entropy, &mut by_output, by_log_std);
        }
        critic.backward(&x, &by_value, &mut gradient, None);
        actor.backward(&x, &by_output, &mut gradient, None);

        let (w, x) = (double(&flat).set_requires_grad(true), rows(&input, inputs));
        let their_values = reference(&critic_layers, &w, &x, tanh.0, tanh.1).view([-1]);
        let outputs = reference(&actor_layers, &w, &x, tanh.0, tanh.1);
        let their_shares = double(&batch.shares);
        let (log_prob, their_entropy) = if discrete {
            reference_categorical(&outputs, &taken, &their_shares)
        } else {
            let log_std = w.narrow(0, std_at as i64, actions as i64);
            reference_gaussian(&outputs, &log_std, &rows(&moves, actions), &their_shares)
        };
        let [policy, their_value] =
            reference_ppo(&log_prob, &their_values, &batch, f64::from(clip), clip_vloss, distance);
        let (ew, vw) = (f64::from(entropy_weight), f64::from(value_weight));
        (&policy - ew * &their_entropy + vw * &their_value).backward();
        assert_close(&log_probs, &log_prob, "log-probability");
        assert_close(&[sums.loss as f32], &policy, "policy loss");
        assert_close(&[value as f32], &their_value, "value loss");
        assert_close(&[entropy as f32], &their_entropy, "entropy");
        assert_close(&gradient, &w.grad(), "gradient");
        let ratio = (&log_prob - double(&batch.old_log)).exp();
        let outside = (ratio - 1.0).abs().gt(f64::from(clip)).to_kind(Kind::Double);
        let outside = (outside * their_shares).sum(Kind::Double).double_value(&[]);
        assert!((sums.clipped - outside).abs() < 1e-9 && outside > 0.05 && outside < 0.95, "{outside}");
    }
}

/// DQN's loss through a dueling network with a shared trunk, against autograd.
#[test]
fn q_losses_equal_autograds() {
    let mut random = Seeds::new(29).generator(Purpose::Model, 0, 0);
    for case in 0..12_usize {
        let distance = if case % 2 == 0 { Distance::Huber } else { Distance::Squared };
        let (n, actions) = (20 + case, 2 + case % 4);
        let (trunk_layers, at) = layers(&[5, 18, 11], 0);
        let (value_layers, at) = layers(&[11, 7, 1], at);
        let (advantage_layers, len) = layers(&[11, 6, actions], at);
        let flat = draw(&mut random, 0.6, len);
        let input = draw(&mut random, 1.0, n * 5);
        let taken: Vec<i64> = (0..n).map(|_| random.below(actions as u64) as i64).collect();
        let targets = draw(&mut random, 2.0, n);
        let shares = shares(&mut random, n);
        let (relu, identity) = (LayerActivation::Relu, LayerActivation::Identity);

        let mut x = Matrix::new(1, 5);
        x.copy_rows(&input);
        let mut trunk = Mlp::new(&trunk_layers, relu, relu, n);
        let mut value = Mlp::new(&value_layers, relu, identity, n);
        let mut advantage = Mlp::new(&advantage_layers, relu, identity, n);
        for part in [&mut trunk, &mut value, &mut advantage] {
            part.load(&flat);
        }
        let features = trunk.forward(&x).clone();
        let mut q = Matrix::new(n, actions);
        dueling(value.forward(&features), advantage.forward(&features), &mut q);
        let (mut errors, mut by_q) = (vec![0.0; n], Matrix::new(n, actions));
        let loss = q_loss(&q, &taken, &targets, &shares, distance, &mut errors, &mut by_q);
        let (mut by_value, mut by_advantage) = (Matrix::new(n, 1), Matrix::new(n, actions));
        dueling_back(&by_q, &mut by_value, &mut by_advantage);
        let mut gradient = vec![0.0; len];
        let (mut one, mut two) = (Matrix::new(n, 11), Matrix::new(n, 11));
        value.backward(&features, &by_value, &mut gradient, Some(&mut one));
        advantage.backward(&features, &by_advantage, &mut gradient, Some(&mut two));
        for (a, b) in one.iter_mut().zip(two.iter()) {
            a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
        }
        trunk.backward(&x, &one, &mut gradient, None);

        let w = double(&flat).set_requires_grad(true);
        let features = reference(&trunk_layers, &w, &rows(&input, 5), relu, relu);
        let values = reference(&value_layers, &w, &features, relu, identity);
        let advantages = reference(&advantage_layers, &w, &features, relu, identity);
        let theirs = values + &advantages - advantages.mean_dim(-1, true, Kind::Double);
        let index = Tensor::from_slice(&taken).view([-1, 1]);
        let error = theirs.gather(-1, &index, false).view([-1]) - double(&targets);
        let their_loss = (penalty(&error, distance) * double(&shares)).sum(Kind::Double);
        their_loss.backward();
        assert_close(&unpadded(&q), &theirs, "q");
        assert_close(&errors, &error, "error");
        assert_close(&[loss as f32], &their_loss, "loss");
        assert_close(&gradient, &w.grad(), "gradient");
        assert_eq!(w.device(), Device::Cpu);
    }
}

/// Independent of libtorch: the slope of the loss along random directions, in f64 differences of f32 losses.
#[test]
fn gradients_equal_finite_differences() {
    let mut random = Seeds::new(31).generator(Purpose::Model, 0, 0);
    let (layers, len) = layers(&[4, 16, 16, 3], 0);
    let flat = draw(&mut random, 0.4, len);
    let mut x = Matrix::new(8, 4);
    x.copy_rows(&draw(&mut random, 1.0, 32));
    let taken: Vec<i64> = (0..8).map(|i| i % 3).collect();
    let mut mlp = Mlp::new(&layers, LayerActivation::Tanh, LayerActivation::Identity, 8);
    let mut categorical = Categorical::new(3);
    let mut log_probs = [0.0; 8];
    // loss = mean over rows of -log p, less a tenth of the entropy.
    let mut loss = |flat: &[f32], gradient: Option<&mut [f32]>| {
        mlp.load(flat);
        let entropy = categorical.forward(mlp.forward(&x), &taken, &[1.0 / 8.0; 8], &mut log_probs);
        if let Some(gradient) = gradient {
            let mut by_logits = Matrix::new(8, 3);
            categorical.backward(&taken, &[-1.0 / 8.0; 8], &[1.0 / 8.0; 8], -0.1, &mut by_logits);
            mlp.backward(&x, &by_logits, gradient, None);
        }
        -log_probs.iter().map(|l| f64::from(*l)).sum::<f64>() / 8.0 - 0.1 * entropy
    };
    let mut gradient = vec![0.0; len];
    loss(&flat, Some(&mut gradient));
    for _ in 0..20 {
        let direction = draw(&mut random, 1.0, len);
        let step = 2e-3;
        let mut at = |t: f32| {
            let moved: Vec<f32> = flat.iter().zip(&direction).map(|(w, d)| w + t * d).collect();
            loss(&moved, None)
        };
        let slope = (at(step) - at(-step)) / (2.0 * f64::from(step));
        let expected: f64 = gradient.iter().zip(&direction).map(|(g, d)| f64::from(g * d)).sum();
        assert!((slope - expected).abs() < 2e-3 * expected.abs().max(0.5), "{slope} {expected}");
    }
}

#[test]
fn targets_follow_the_chooser() {
    let mut matrices = [Matrix::new(2, 2), Matrix::new(2, 2)];
    matrices[0].copy_rows(&[1.0, 2.0, 3.0, 4.0]);
    matrices[1].copy_rows(&[9.0, 0.0, 0.0, 0.0]);
    let [target, chooser] = &matrices;
    let mut to = [0.0; 2];
    rankdeck_kernel::loss::q_targets(target, target, &[], (&[10.0, 20.0], &[0.5, 0.0]), &mut to);
    assert_eq!(to, [11.0, 20.0]);
    rankdeck_kernel::loss::q_targets(target, chooser, &[], (&[10.0, 20.0], &[0.5, 1.0]), &mut to);
    assert_eq!(to, [10.5, 23.0]);
    let next: (&[f32], &[f32]) = (&[10.0, 20.0], &[0.5, 1.0]);
    rankdeck_kernel::loss::q_targets(target, target, &[1, 0, 0, 1], next, &mut to);
    assert_eq!(to, [10.5, 24.0], "only what is allowed");
    rankdeck_kernel::loss::q_targets(target, chooser, &[0, 1, 1, 1], next, &mut to);
    assert_eq!(to, [11.0, 23.0]);
}

/// OPTIMISE-2: against libtorch's own optimizers on a problem whose gradients change, with a rate that
/// changes too.
#[test]
fn optimise_2_steps_equal_libtorchs() {
    for decay in [0.0, 0.1] {
        let store = nn::VarStore::new(Device::Cpu);
        let theirs = store.root().var("w", &[41], nn::Init::Const(0.0));
        let start: Vec<f32> = (0..41).map(|i| (i as f32 * 0.7).sin()).collect();
        tch::no_grad(|| theirs.shallow_clone().copy_(&Tensor::from_slice(&start)));
        let mut reference = if decay == 0.0 {
            nn::Adam { eps: 1e-5, ..nn::Adam::default() }.build(&store, 1e-2).unwrap()
        } else {
            nn::AdamW { eps: 1e-5, wd: decay, ..nn::AdamW::default() }.build(&store, 1e-2).unwrap()
        };
        let (mut ours, mut first, mut second) = (start.clone(), vec![0.0; 41], vec![0.0; 41]);
        let target = Tensor::from_slice(&(0..41).map(|i| i as f32 / 40.0).collect::<Vec<_>>());
        let loss = |w: &Tensor| ((w - &target) * (w * 3.0).cos()).square().sum(Kind::Float);
        for i in 0..300_u64 {
            let rate = 1e-2 * (1.0 - i as f64 / 300.0);
            reference.set_lr(rate);
            reference.backward_step(&loss(&theirs));
            let w = Tensor::from_slice(&ours).set_requires_grad(true);
            loss(&w).backward();
            let gradient = Vec::<f32>::try_from(w.grad()).unwrap();
            let step = AdamStep::new(i + 1, rate, (0.9, 0.999), 1e-5, decay);
            adam_step(Isa::best(), step, &mut ours, &gradient, &mut first, &mut second);
        }
        let theirs = Vec::<f32>::try_from(theirs).unwrap();
        let moved = ours.iter().zip(&start).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(moved > 0.05, "the problem must move the weights: {moved}");
        for (a, b) in ours.iter().zip(&theirs) {
            assert!((a - b).abs() < 1e-6, "{a} {b} with decay {decay}");
        }
    }
}
