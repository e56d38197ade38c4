//! Convolutional trunks that turn images into features: `nature` (Mnih et al. 2015), and `impala` (Espeholt
//! et al. 2018) as in CleanRL's ppg_procgen.py.
//!
//! Invariants:
//! - TRUNK-1: pixels are scaled to 0..1 here, by the weights of the first convolution and not pixel by pixel.
//!   That saves a pass over the largest tensor; results differ from scaled pixels by rounding only.
//! - TRUNK-2: on CPUs, and with `policy.channels_last` on GPUs too, images are laid out colors last, which
//!   libtorch's convolutions are a quarter faster with on CPUs; shapes stay `[rows, channels, height,
//!   width]`, and so does the order of the numbers that come out.
//! - TRUNK-3: with `policy.precision = "bf16"` images, weights and what lies between them are rounded to bf16
//!   where they are used. Parameters and their gradients are f32, and so is what the last layers get.
//! - TRUNK-4: with layer normalization, what a convolution gives is normalized in f32 over all its channels and
//!   pixels, before its ReLU.
//! - SEAM-1: both parts together give the gradients of one backward pass.

use crate::distributed::{Ddp, ProcessGroup, backward};
use crate::error::TrainerError;
use rankdeck_types::experiment::{NetworkKind, Policy, Precision};
use tch::{Device, Kind, TchError, Tensor};

/// One convolution: weight `[outputs, inputs, kernel, kernel]`, then bias `[outputs]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Convolution {
    /// PyTorch's name, without `.weight`.
    pub name: String,
    /// Channels of its input.
    pub inputs: usize,
    /// Channels of its output.
    pub outputs: usize,
    /// Width and height of its window.
    pub kernel: usize,
    /// Pixels from one window to the next.
    pub(super) stride: i64,
    /// Pixels of zero around the image.
    padding: i64,
}

impl Convolution {
    /// Shape of its weight.
    pub(crate) fn shape(&self) -> Vec<i64> {
        [self.outputs, self.inputs, self.kernel, self.kernel].map(|side| side as i64).to_vec()
    }

    fn run(&self, pair: &[Tensor], input: &Tensor, kind: Kind) -> Result<Tensor, TchError> {
        let weight = match input.kind() {
            Kind::Uint8 => pair[0].f_mul_scalar(1.0 / 255.0)?,
            _ => pair[0].shallow_clone(),
        };
        let (input, weight, bias) =
            (as_kind(input, kind)?, as_kind(&weight, kind)?, as_kind(&pair[1], kind)?);
        let square = |side| [side, side];
        input.f_conv2d(&weight, Some(&bias), square(self.stride), square(self.padding), [1, 1], 1)
    }
}

/// Window and stride of the convolutions of Mnih et al. 2015, and what CleanRL's networks have as channels.
const NATURE: [(usize, usize); 3] = [(8, 4), (4, 2), (3, 1)];
const NATURE_CHANNELS: [u32; 3] = [32, 64, 64];
/// Channels of the sequences of Espeholt et al. 2018.
const IMPALA_CHANNELS: [u32; 3] = [16, 32, 32];
/// Convolutions of a sequence: one in front, two in each of two residual blocks.
const SEQUENCE: usize = 5;

/// Convolutions, and how they are put together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trunk {
    /// In the order of their parameters.
    pub convolutions: Vec<Convolution>,
    residual: bool,
    rows: Rows,
    precision: Precision,
    /// Numbers that come out per image.
    pub outputs: usize,
    /// Index of the layer that follows, in the names of a `torch.nn.Sequential`.
    pub(crate) next_index: usize,
}

impl Trunk {
    /// The trunk of `policy` for observations of this shape; `None` for fully connected networks,
    /// which [`crate::env::fit`] gives flat ones. Refused when they do not fit.
    pub(crate) fn new(shape: &[usize], policy: &Policy) -> Result<Option<Trunk>, TrainerError> {
        match policy.network {
            NetworkKind::Mlp => Ok(None),
            NetworkKind::Nature | NetworkKind::Impala => Trunk::named("network", shape, policy).map(Some),
        }
    }

    /// The trunk of a `policy` for images, with this prefix in the names of its parameters.
    pub(crate) fn named(prefix: &str, shape: &[usize], policy: &Policy) -> Result<Trunk, TrainerError> {
        match policy.network {
            NetworkKind::Impala => Trunk::impala(prefix, shape, &channels(policy, &IMPALA_CHANNELS)?, policy),
            _ => Trunk::nature(prefix, shape, &channels(policy, &NATURE_CHANNELS)?, policy),
        }
    }

    fn nature(
        prefix: &str,
        shape: &[usize],
        channels: &[u32],
        policy: &Policy,
    ) -> Result<Trunk, TrainerError> {
        if channels.len() != NATURE.len() {
            return Err(TrainerError::usage(
                format!("invalid policy.channels = {channels:?}: expected {} positive counts", NATURE.len()),
                "set policy.channels, such as [32, 64, 64]",
            ));
        }
        let [mut inputs, mut height, mut width] = *shape else { return Err(refused(shape, "nature", 36)) };
        let mut convolutions = Vec::new();
        for (i, ((kernel, stride), outputs)) in NATURE.into_iter().zip(channels).enumerate() {
            if height < kernel || width < kernel {
                return Err(refused(shape, "nature", 36));
            }
            let (name, outputs) = (format!("{prefix}.{}", 2 * i), *outputs as usize);
            convolutions.push(Convolution {
                name,
                inputs,
                outputs,
                kernel,
                stride: stride as i64,
                padding: 0,
            });
            (inputs, height, width) =
                (outputs, (height - kernel) / stride + 1, (width - kernel) / stride + 1);
        }
        // Activations and the flattening take indices too.
        let next_index = 2 * convolutions.len() + 1;
        Ok(Trunk {
            convolutions,
            residual: false,
            rows: Rows::of(policy),
            precision: policy.precision,
            outputs: inputs * height * width,
            next_index,
        })
    }

    fn impala(
        prefix: &str,
        shape: &[usize],
        channels: &[u32],
        policy: &Policy,
    ) -> Result<Trunk, TrainerError> {
        let [mut inputs, mut height, mut width] = *shape else { return Err(refused(shape, "impala", 2)) };
        if height < 2 || width < 2 {
            return Err(refused(shape, "impala", 2));
        }
        let mut convolutions = Vec::new();
        for (i, outputs) in channels.iter().enumerate() {
            let outputs = *outputs as usize;
            let mut add = |name: &str, inputs: usize| {
                let name = format!("{prefix}.{i}.{name}");
                convolutions.push(Convolution { name, inputs, outputs, kernel: 3, stride: 1, padding: 1 });
            };
            add("conv", inputs);
            for block in ["res_block0", "res_block1"] {
                add(&format!("{block}.conv0"), outputs);
                add(&format!("{block}.conv1"), outputs);
            }
            (inputs, height, width) = (outputs, height.div_ceil(2), width.div_ceil(2));
        }
        // The flattening and the activation take indices too.
        let next_index = channels.len() + 2;
        Ok(Trunk {
            convolutions,
            residual: true,
            rows: Rows::of(policy),
            precision: policy.precision,
            outputs: inputs * height * width,
            next_index,
        })
    }

    /// Parameter tensors: a weight and a bias per convolution.
    pub(crate) fn parameters(&self) -> usize {
        2 * self.convolutions.len()
    }

    /// What each unit's weights begin with as their norm in CleanRL's ppg_procgen.py; `None` for networks
    /// that begin otherwise. `convolution` is the index of one of the trunk's.
    pub(crate) fn start_norm(&self, convolution: usize) -> Option<f64> {
        let sequences = (self.convolutions.len() / SEQUENCE) as f64;
        self.residual.then(|| match convolution % SEQUENCE {
            0 => 1.0,
            // A sequence's share is split over its two blocks, and a block's over its two convolutions.
            _ => (1.0 / (sequences * 2.0).sqrt()).sqrt(),
        })
    }

    /// Numbers `[rows, outputs]` of images `[rows, channels, height, width]`, f32 or u8 pixels, with
    /// gradients, in what the network computes in: [`linear`] continues with it (TRUNK-3).
    pub(crate) fn forward(&self, parameters: &[Tensor], images: &Tensor) -> Result<Tensor, TchError> {
        let mut value = self.rows.lay_out(images)?;
        let kind = match self.precision {
            Precision::F32 => Kind::Float,
            Precision::Bf16 => Kind::BFloat16,
        };
        let pairs = self.convolutions.iter().zip(parameters.chunks_exact(2));
        if !self.residual {
            for (convolution, pair) in pairs {
                value = convolution.run(pair, &value, kind)?.f_relu_()?;
            }
            return value.f_flatten(1, -1);
        }
        let layers: Vec<_> = pairs.collect();
        for sequence in layers.chunks_exact(SEQUENCE) {
            value = sequence[0].0.run(sequence[0].1, &value, kind)?;
            value = value.f_max_pool2d([3, 3], [2, 2], [1, 1], [1, 1], false)?;
            for block in sequence[1..].chunks_exact(2) {
                let inner = block[0].0.run(block[0].1, &value.f_relu()?, kind)?.f_relu_()?;
                value = block[1].0.run(block[1].1, &inner, kind)?.f_add_(&value)?;
            }
        }
        value.f_flatten(1, -1)?.f_relu_()
    }

    /// As [`Trunk::forward`] of `nature`, with layer normalization behind each convolution (TRUNK-4): its weight and
    /// bias follow those of the convolution. Numbers are f32.
    pub(super) fn forward_normalized(
        &self,
        parameters: &[Tensor],
        images: &Tensor,
    ) -> Result<Tensor, TchError> {
        let mut value = self.rows.lay_out(images)?;
        let kind = match self.precision {
            Precision::F32 => Kind::Float,
            Precision::Bf16 => Kind::BFloat16,
        };
        for (convolution, own) in self.convolutions.iter().zip(parameters.chunks_exact(4)) {
            let convolved = convolution.run(&own[..2], &value, kind)?;
            value = layer_norm(&as_kind(&convolved, Kind::Float)?, &own[2..])?.f_relu_()?;
        }
        value.f_flatten(1, -1)
    }
}

/// The epsilon of `torch.nn.LayerNorm`.
const NORM_EPSILON: f64 = 1e-5;

/// Layer normalization (Ba et al. 2016) of each row of f32, by a weight and a bias of a row's shape.
pub(super) fn layer_norm(rows: &Tensor, pair: &[Tensor]) -> Result<Tensor, TchError> {
    rows.f_layer_norm(pair[0].size(), Some(&pair[0]), Some(&pair[1]), NORM_EPSILON, false)
}

fn refused(shape: &[usize], network: &str, side: usize) -> TrainerError {
    TrainerError::usage(
        format!(
            "policy.network = \"{network}\" needs images of at least {side}x{side} pixels; observations have shape {shape:?}"
        ),
        "set policy.network = \"mlp\", which takes observations of any shape",
    )
}

fn channels(policy: &Policy, own: &[u32]) -> Result<Vec<u32>, TrainerError> {
    let channels = policy.channels.clone().unwrap_or_else(|| own.to_vec());
    if channels.is_empty() || channels.contains(&0) {
        return Err(TrainerError::usage(
            format!("invalid policy.channels = {channels:?}: expected positive counts"),
            "set policy.channels, such as [16, 32, 32]",
        ));
    }
    Ok(channels)
}

/// The same tensor where it is of this kind.
pub(crate) fn as_kind(tensor: &Tensor, kind: Kind) -> Result<Tensor, TchError> {
    if tensor.kind() == kind { Ok(tensor.shallow_clone()) } else { tensor.f_to_kind(kind) }
}

/// A dense layer of weight and bias, in what its input is in (TRUNK-3).
pub(crate) fn linear(input: &Tensor, pair: &[Tensor]) -> Result<Tensor, TchError> {
    match input.kind() {
        Kind::Float => input.f_linear(&pair[0], Some(&pair[1])),
        kind => input.f_linear(&as_kind(&pair[0], kind)?, Some(&as_kind(&pair[1], kind)?)),
    }
}

/// The layout from which rows of observations are quickly picked and quickly convolved (TRUNK-2): images
/// `[rows, height, width, channels]` where colors are last, anything else as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rows {
    /// Also on a GPU.
    colours_last: bool,
}

impl Rows {
    /// As `policy` sets them.
    pub(crate) fn of(policy: &Policy) -> Rows {
        Rows { colours_last: policy.channels_last }
    }

    fn turns(self, observations: &Tensor) -> bool {
        observations.dim() == 4 && (self.colours_last || observations.device() == Device::Cpu)
    }

    /// It is another one than observations come in.
    pub(crate) fn turn(self, device: Device) -> bool {
        self.colours_last || device == Device::Cpu
    }

    /// Observations in that layout.
    pub(crate) fn to(self, observations: &Tensor) -> Result<Tensor, TchError> {
        match self.turns(observations) {
            true => observations.f_permute([0, 2, 3, 1])?.f_contiguous(),
            false => Ok(observations.shallow_clone()),
        }
    }

    /// The shape that they had before [`Rows::to`].
    pub(crate) fn from(self, rows: &Tensor) -> Result<Tensor, TchError> {
        if self.turns(rows) { rows.f_permute([0, 3, 1, 2]) } else { Ok(rows.shallow_clone()) }
    }

    /// Images in the layout that convolutions are fastest with; the same tensor where it has that layout.
    fn lay_out(self, images: &Tensor) -> Result<Tensor, TchError> {
        self.from(&self.to(images)?)
    }
}

/// Whether the gradients of dense layers travel while backward is in the convolutions in front of them:
/// between GPUs, where there are more gradients than a bucket holds. Equal on all ranks.
pub(crate) fn splits_backward(
    ddp: &mut Ddp,
    trunk: Option<&Trunk>,
    device: Device,
    group: &ProcessGroup,
) -> bool {
    let between_gpus = matches!(device, Device::Cuda(_)) && group.world_size() > 1;
    between_gpus && trunk.is_some_and(|trunk| ddp.split_at(trunk.parameters()))
}

/// The place of the cut.
pub(crate) struct BackwardSplit {
    before: Tensor,
    after: Tensor,
}

impl BackwardSplit {
    /// Cuts behind this value; what follows is computed from the one that is returned.
    pub(crate) fn at(before: Tensor) -> Result<(Tensor, BackwardSplit), TchError> {
        let after = before.f_detach()?.f_set_requires_grad(true)?;
        Ok((after.shallow_clone(), BackwardSplit { before, after }))
    }

    /// Continues backward, which has reached the split.
    pub(crate) fn backward(mut self) -> Result<(), TchError> {
        backward(&mut self.before, &mut self.after.grad())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{ActionSpace, ObservationType, Spec};
    use crate::policy::actor_critic::{ActorCritic, ForwardOptions, Layout, PolicyInput};
    use crate::policy::q_network::{QLayout, QNetwork};
    use rankdeck_kernel::numpy_random::Generator;
    use rankdeck_kernel::seeds::Seeds;

    fn images(shape: [usize; 3], n: usize) -> Spec {
        Spec {
            observation_shape: shape.to_vec(),
            observation_type: ObservationType::U8,
            branches: Vec::new(),
            actions: ActionSpace::Discrete { n },
        }
    }

    fn policy(network: NetworkKind, hidden: u32) -> Policy {
        Policy { network, hidden: vec![hidden], ..Policy::default() }
    }

    fn net(network: NetworkKind, spec: &Spec, hidden: u32) -> ActorCritic {
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
        let layout = Layout::new(&images([3, 64, 64], 15), &policy(NetworkKind::Impala, 256), true).unwrap();
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
        let net = net(NetworkKind::Impala, &images([3, 16, 16], 5), 32);
        for (name, tensor) in net.named_parameters() {
            if name.ends_with("bias") {
                assert_eq!(tensor.abs().max().double_value(&[]), 0.0, "{name}");
                continue;
            }
            let expected = match name.as_str() {
                "actor.weight" | "critic.weight" | "aux_critic.weight" => 0.1,
                "network.5.weight" => 1.4,
                _ if name.ends_with(".conv.weight") => 1.0,
                // sqrt(1 / sqrt(3) / sqrt(2))
                _ => 0.638_943,
            };
            let norms = tensor.flatten(1, -1).square().sum_dim_intlist(1_i64, false, Kind::Float).sqrt();
            assert!((norms - expected).abs().max().double_value(&[]) < 1e-5, "{name}");
        }
    }

    /// TRUNK-1.
    #[test]
    fn pixels_are_scaled_in_the_network() {
        for (network, shape) in [(NetworkKind::Nature, [4, 84, 84]), (NetworkKind::Impala, [3, 21, 18])] {
            let net = net(network, &images(shape, 6), 32);
            let pixels = pixels(2, shape);
            let scaled = pixels.to_kind(Kind::Float) / 255.0;
            let [a, b] = [pixels, scaled].map(|input| net.forward(&input, ForwardOptions::PLAIN).unwrap());
            assert_eq!(a.values.size(), [2]);
            assert!(largest(&a.values, &b.values) < 1e-6);
        }
    }

    /// The same as [`Trunk::forward`], from scaled images with the layout they come in, step by step as
    /// CleanRL's modules.
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
    fn channels_last_keeps_results_and_gradients() {
        for (network, shape) in [(NetworkKind::Nature, [4, 44, 40]), (NetworkKind::Impala, [3, 21, 18])] {
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
    fn rows_round_trip() {
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
    fn seam_1_split_backward_gives_the_same_gradients() {
        let shape = [4, 44, 40];
        let (spec, pixels) = (images(shape, 4), pixels(3, shape));
        let actor_critic = || net(NetworkKind::Nature, &spec, 16);
        let q = || {
            let layout = QLayout::new(&spec, &policy(NetworkKind::Nature, 16), true).unwrap();
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
            let input = PolicyInput { observations: &pixels, masks: None, sequences: None };
            let (output, first) = policy.forward_split(input, ForwardOptions::PLAIN, cut).unwrap();
            (&output.values * 2.0 + output.distribution.entropy().unwrap()).sum(Kind::Float).backward();
            let (values, second) = q.forward_split(q.online.tensors(), &pixels, cut).unwrap();
            values.square().sum(Kind::Float).backward();
            let all = || [gradients(policy.parameters()), gradients(q.online.tensors())];
            let before = all();
            assert_eq!((first.is_some(), second.is_some()), (cut, cut));
            first.into_iter().chain(second).for_each(|split| split.backward().unwrap());
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
    fn bf16_rounds_results_and_keeps_f32_parameters() {
        for (network, shape) in [(NetworkKind::Nature, [4, 44, 40]), (NetworkKind::Impala, [3, 21, 18])] {
            let spec = images(shape, 4);
            let noise = Generator::from_words(&[7, 0, 0, 0, 0, 0]);
            let pixels = noisy(32, shape, noise);
            let gradients_of = |precision| {
                let layout = Layout::new(&spec, &Policy { precision, ..policy(network, 64) }, false).unwrap();
                let net = ActorCritic::new(layout, &Seeds::new(0), Device::Cpu).unwrap();
                let output = net.forward(&pixels, ForwardOptions::PLAIN).unwrap();
                assert_eq!(output.values.kind(), Kind::Float);
                output.values.sum(Kind::Float).backward();
                let gradients: Vec<_> =
                    net.parameters().iter().map(Tensor::grad).filter(Tensor::defined).collect();
                (output.values, gradients)
            };
            let ((own, gradients), (theirs, expected)) =
                (gradients_of(Precision::Bf16), gradients_of(Precision::F32));
            let apart = largest(&own, &theirs);
            let size = theirs.abs().max().double_value(&[]);
            assert!(apart > 0.0 && apart < 0.05 * size.max(1.0), "{network:?}: {apart} of {size}");
            assert_eq!(gradients.len(), expected.len());
            for (own, expected) in gradients.iter().zip(&expected) {
                assert_eq!(own.kind(), Kind::Float);
                // Rounding adds up over fifteen layers, and turns and stretches a gradient a little: one that is
                // wrong points elsewhere, or has another scale.
                let norm = |tensor: &Tensor| tensor.norm().double_value(&[]);
                let (one, other) = (norm(own), norm(expected));
                let along = (own * expected).sum(Kind::Double).double_value(&[]) / (one * other).max(1e-12);
                assert!(along > 0.99, "{network:?} {:?}: {along}", own.size());
                assert!((0.95..1.05).contains(&(one / other)), "{network:?} {:?}: {one} {other}", own.size());
            }
        }
    }

    #[test]
    fn unsuitable_settings_name_their_key() {
        let channels =
            |network, channels: &[u32]| Policy { channels: Some(channels.to_vec()), ..policy(network, 8) };
        for (shape, policy, key) in [
            (&[4][..], policy(NetworkKind::Nature, 8), "policy.network"),
            (&[4], policy(NetworkKind::Impala, 8), "policy.network"),
            (&[4, 20, 20], policy(NetworkKind::Nature, 8), "policy.network"),
            (&[4, 84, 84], channels(NetworkKind::Nature, &[1, 2]), "policy.channels"),
            (&[4, 84, 84], channels(NetworkKind::Nature, &[1, 0, 1]), "policy.channels"),
            (&[4, 84, 84], channels(NetworkKind::Impala, &[]), "policy.channels"),
        ] {
            let error = Trunk::new(shape, &policy).unwrap_err();
            assert!(error.usage && error.hint().contains(key), "{error:?}");
        }
    }
}
