use super::*;
use crate::env::{ActionSpace, ObservationType, Spec};
use crate::policy::actor_critic::{ActorCritic, Layout, Pass};
use crate::policy::q_layout::QLayout;
use crate::policy::q_network::QNetwork;
use rankdeck_kernel::numpy_random::Generator;
use rankdeck_kernel::seeds::Seeds;

fn images(shape: [usize; 3], n: usize) -> Spec {
    Spec {
        observation_shape: shape.to_vec(),
        observation_type: ObservationType::U8,
        actions: ActionSpace::Discrete { n },
    }
}

fn policy(network: Network, hidden: u32) -> Policy {
    Policy { network, hidden: vec![hidden], ..Policy::default() }
}

fn net(network: Network, spec: &Spec, hidden: u32) -> ActorCritic {
    let layout = Layout::new(spec, &policy(network, hidden), true).unwrap();
    ActorCritic::new(layout, &Seeds::new(0), Device::Cpu).unwrap()
}

fn pixels(rows: i64, [channels, height, width]: [usize; 3]) -> Tensor {
    let count = rows as usize * channels * height * width;
    let values: Vec<u8> = (0..count).map(|i| (i * 7 % 251) as u8).collect();
    Tensor::from_slice(&values).view([rows, channels as i64, height as i64, width as i64])
}

fn noisy(rows: i64, [channels, height, width]: [usize; 3], mut random: Generator) -> Tensor {
    let count = rows as usize * channels * height * width;
    let values: Vec<u8> = (0..count).map(|_| random.below(256) as u8).collect();
    Tensor::from_slice(&values).view([rows, channels as i64, height as i64, width as i64])
}

fn largest(a: &Tensor, b: &Tensor) -> f64 {
    (a - b).abs().max().double_value(&[])
}

/// Sizes of CleanRL's ppg_procgen.py on Procgen (15 actions), counted there by torch.
#[test]
fn impala_has_cleanrls_names_shapes_and_count() {
    let layout = Layout::new(&images([3, 64, 64], 15), &policy(Network::Impala, 256), true).unwrap();
    assert_eq!(layout.len, 626_513);
    let trunk = layout.trunk.unwrap();
    assert_eq!((trunk.convolutions.len(), trunk.outputs), (15, 2048));
    let shape = |name: &str| {
        layout.entries.iter().find(|entry| entry.name == name).map(|entry| entry.shape.clone()).unwrap()
    };
    assert_eq!(shape("network.0.conv.weight"), [16, 3, 3, 3]);
    assert_eq!(shape("network.1.res_block1.conv0.weight"), [32, 32, 3, 3]);
    assert_eq!(shape("network.5.weight"), [256, 2048]);
    assert_eq!(shape("aux_critic.weight"), [1, 256]);
}

#[test]
fn impala_weights_begin_with_the_norms_of_ppg_procgen() {
    let net = net(Network::Impala, &images([3, 16, 16], 5), 32);
    for (name, tensor) in net.named_parameters() {
        if name.ends_with("bias") {
            assert_eq!(tensor.abs().max().double_value(&[]), 0.0, "{name}");
            continue;
        }
        let wanted = match name.as_str() {
            "actor.weight" | "critic.weight" | "aux_critic.weight" => 0.1,
            "network.5.weight" => 1.4,
            _ if name.ends_with(".conv.weight") => 1.0,
            // sqrt(1 / sqrt(3) / sqrt(2))
            _ => 0.638_943,
        };
        let norms = tensor.flatten(1, -1).square().sum_dim_intlist(1_i64, false, Kind::Float).sqrt();
        assert!((norms - wanted).abs().max().double_value(&[]) < 1e-5, "{name}");
    }
}

/// TRUNK-1.
#[test]
fn pixels_are_scaled_in_the_network() {
    for (network, shape) in [(Network::Nature, [4, 84, 84]), (Network::Impala, [3, 21, 18])] {
        let net = net(network, &images(shape, 6), 32);
        let pixels = pixels(2, shape);
        let scaled = pixels.to_kind(Kind::Float) / 255.0;
        let [a, b] = [pixels, scaled].map(|input| net.forward(&input, Pass::PLAIN).unwrap());
        assert_eq!(a.values.size(), [2]);
        assert!(largest(&a.values, &b.values) < 1e-6);
    }
}

/// The same as [`Trunk::forward`], from scaled images with the layout they come in, step by step as CleanRL's
/// modules.
fn reference(trunk: &Trunk, parameters: &[Tensor], images: &Tensor) -> Tensor {
    let conv = |i: usize, value: &Tensor| {
        let (stride, padding) = (trunk.convolutions[i].stride, trunk.convolutions[i].padding);
        let bias = Some(&parameters[2 * i + 1]);
        value.conv2d(&parameters[2 * i], bias, [stride; 2], [padding; 2], [1; 2], 1)
    };
    let mut value = images.shallow_clone();
    if !trunk.residual {
        for i in 0..3 {
            value = conv(i, &value).relu();
        }
        return value.flatten(1, -1);
    }
    for first in (0..trunk.convolutions.len()).step_by(5) {
        value = conv(first, &value).max_pool2d([3; 2], [2; 2], [1; 2], [1; 2], false);
        for block in [first + 1, first + 3] {
            value = conv(block + 1, &conv(block, &value.relu()).relu()) + value;
        }
    }
    value.flatten(1, -1).relu()
}

/// TRUNK-2: another layout in memory, the same numbers in the same order, and the same gradients.
#[test]
fn colours_last_change_neither_results_nor_gradients() {
    for (network, shape) in [(Network::Nature, [4, 44, 40]), (Network::Impala, [3, 21, 18])] {
        let net = net(network, &images(shape, 4), 16);
        let trunk = net.layout().trunk.clone().unwrap();
        let parameters = &net.parameters()[..trunk.parameters()];
        let pixels = pixels(3, shape);
        let weights = Tensor::linspace(-1.0, 1.0, trunk.outputs as i64, (Kind::Float, Device::Cpu));
        let gradients = |output: &Tensor| {
            net.parameters().iter().for_each(|parameter| {
                let mut gradient = parameter.grad();
                if gradient.defined() {
                    let _ = gradient.zero_();
                }
            });
            (output * &weights).sum(Kind::Float).backward();
            parameters.iter().map(|parameter| parameter.grad().copy()).collect::<Vec<_>>()
        };
        let ours = trunk.forward(parameters, &pixels).unwrap();
        let own_gradients = gradients(&ours);
        let theirs = reference(&trunk, parameters, &(pixels.to_kind(Kind::Float) / 255.0));
        assert_eq!(ours.size(), [3, trunk.outputs as i64]);
        assert!(largest(&ours, &theirs) < 1e-5, "{network:?}");
        for ((own, their), convolution) in own_gradients
            .iter()
            .zip(gradients(&theirs))
            .zip(trunk.convolutions.iter().flat_map(|convolution| [convolution, convolution]))
        {
            let size = their.abs().max().double_value(&[]);
            assert!(largest(own, &their) < 1e-4 * size.max(1.0), "{network:?} {}", convolution.name);
        }
    }
}

#[test]
fn rows_come_back_as_they_went() {
    let images = pixels(4, [3, 5, 6]);
    let layout = Rows::of(&Policy::default());
    let rows = layout.to(&images).unwrap();
    assert_eq!((rows.size().as_slice(), rows.is_contiguous()), ([4, 5, 6, 3].as_slice(), true));
    let picked = layout.from(&rows.index_select(0, &Tensor::from_slice(&[2_i64, 0]))).unwrap();
    assert_eq!(picked, images.index_select(0, &Tensor::from_slice(&[2_i64, 0])));
    let flat = Tensor::from_slice(&[1.0_f32, 2.0]).view([2, 1]);
    assert_eq!(layout.from(&layout.to(&flat).unwrap()).unwrap(), flat);
}

/// SEAM-1. Also of the networks of DQN, which have two heads.
#[test]
fn seam_1_backward_in_two_parts_gives_the_gradients_of_one_pass() {
    let shape = [4, 44, 40];
    let (spec, pixels) = (images(shape, 4), pixels(3, shape));
    let actor_critic = || net(Network::Nature, &spec, 16);
    let q = || {
        let layout = QLayout::new(&spec, &policy(Network::Nature, 16), true).unwrap();
        QNetwork::new(layout, &Seeds::new(0), Device::Cpu).unwrap()
    };
    let gradients = |parameters: &[Tensor]| -> Vec<Vec<f32>> {
        let filled = |parameter: &Tensor| {
            let gradient = parameter.grad();
            if gradient.defined() { Vec::try_from(gradient.flatten(0, -1)).unwrap() } else { Vec::new() }
        };
        parameters.iter().map(filled).collect()
    };
    let run = |cut: bool| {
        let (policy, q) = (actor_critic(), q());
        let (output, first) = policy.forward_cut(&pixels, Pass::PLAIN, cut).unwrap();
        (&output.values * 2.0 + output.distribution.entropy().unwrap()).sum(Kind::Float).backward();
        let (values, second) = q.forward_cut(q.online.tensors(), &pixels, cut).unwrap();
        values.square().sum(Kind::Float).backward();
        let all = || [gradients(policy.parameters()), gradients(q.online.tensors())];
        let before = all();
        assert_eq!((first.is_some(), second.is_some()), (cut, cut));
        first.into_iter().chain(second).for_each(|seam| seam.backward().unwrap());
        (before, all())
    };
    let ((_, whole), (before, parts)) = (run(false), run(true));
    assert_eq!(whole, parts);
    for (before, after) in before.iter().zip(&parts) {
        assert!(before[..6].iter().all(Vec::is_empty), "backward has not come to the convolutions");
        assert_eq!(before[6..], after[6..], "the dense layers are done");
    }
}

/// TRUNK-3. Two digits and a half, and gradients that are those of f32 but for that. With few images or
/// units a rounded activation that changes its sign is a large part of a gradient.
#[test]
fn in_bf16_results_are_rounded_and_parameters_and_gradients_are_f32() {
    for (network, shape) in [(Network::Nature, [4, 44, 40]), (Network::Impala, [3, 21, 18])] {
        let spec = images(shape, 4);
        let noise = Generator::from_words(&[7, 0, 0, 0, 0, 0]);
        let pixels = noisy(32, shape, noise);
        let learnt = |precision| {
            let layout = Layout::new(&spec, &Policy { precision, ..policy(network, 64) }, false).unwrap();
            let net = ActorCritic::new(layout, &Seeds::new(0), Device::Cpu).unwrap();
            let output = net.forward(&pixels, Pass::PLAIN).unwrap();
            assert_eq!(output.values.kind(), Kind::Float);
            output.values.sum(Kind::Float).backward();
            let gradients: Vec<_> =
                net.parameters().iter().map(Tensor::grad).filter(Tensor::defined).collect();
            (output.values, gradients)
        };
        let ((own, gradients), (theirs, wanted)) = (learnt(Precision::Bf16), learnt(Precision::F32));
        let apart = largest(&own, &theirs);
        let size = theirs.abs().max().double_value(&[]);
        assert!(apart > 0.0 && apart < 0.05 * size.max(1.0), "{network:?}: {apart} of {size}");
        assert_eq!(gradients.len(), wanted.len());
        for (own, wanted) in gradients.iter().zip(&wanted) {
            assert_eq!(own.kind(), Kind::Float);
            // Rounding adds up over fifteen layers, and turns and stretches a gradient a little: one that is
            // wrong points elsewhere, or has another scale.
            let norm = |tensor: &Tensor| tensor.norm().double_value(&[]);
            let (one, other) = (norm(own), norm(wanted));
            let along = (own * wanted).sum(Kind::Double).double_value(&[]) / (one * other).max(1e-12);
            assert!(along > 0.99, "{network:?} {:?}: {along}", own.size());
            assert!((0.95..1.05).contains(&(one / other)), "{network:?} {:?}: {one} {other}", own.size());
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_with_the_key() {
    let channels =
        |network, channels: &[u32]| Policy { channels: Some(channels.to_vec()), ..policy(network, 8) };
    for (shape, policy, key) in [
        (&[4][..], policy(Network::Nature, 8), "policy.network"),
        (&[4], policy(Network::Impala, 8), "policy.network"),
        (&[4, 20, 20], policy(Network::Nature, 8), "policy.network"),
        (&[4, 84, 84], channels(Network::Nature, &[1, 2]), "policy.channels"),
        (&[4, 84, 84], channels(Network::Nature, &[1, 0, 1]), "policy.channels"),
        (&[4, 84, 84], channels(Network::Impala, &[]), "policy.channels"),
    ] {
        let error = Trunk::new(shape, &policy).unwrap_err();
        assert!(error.usage && error.hint().contains(key), "{error:?}");
    }
}
