//! What turns images into numbers in front of the dense layers: the convolutions of Mnih et al. 2015
//! (`nature`), or the residual network of Espeholt et al. 2018 (`impala`) as CleanRL's ppg_procgen.py has it.
//!
//! Owner: the network whose parameters it uses, the first [`Trunk::parameters`] of them.
//!
//! Invariants:
//! - TRUNK-1: pixels are scaled to 0..1 here, by the weights of the first convolution and not pixel by pixel.
//!   That saves a pass over the largest tensor; results differ from scaled pixels by rounding only.
//! - TRUNK-2: on CPUs, and with `policy.channels_last` on GPUs too, images are laid out colours last, which
//!   libtorch's convolutions are a quarter faster with on CPUs; shapes stay `[rows, channels, height,
//!   width]`, and so does the order of the numbers that come out.
//! - TRUNK-3: with `policy.precision = "bf16"` images, weights and what lies between them are rounded to bf16
//!   where they are used. Parameters and their gradients are f32, and so is what the last layers get.

use crate::error::TrainerError;
use rankdeck_types::experiment::{Network, Policy, Precision};
use tch::{Device, Kind, TchError, Tensor};

/// One convolution: weight `[outputs, inputs, kernel, kernel]`, then bias `[outputs]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Convolution {
    /// PyTorch's name, without `.weight`.
    pub name: String,
    /// Channels of its input.
    pub inputs: usize,
    /// Channels of its output.
    pub outputs: usize,
    /// Width and height of its window.
    pub kernel: usize,
    /// Pixels from one window to the next.
    stride: i64,
    /// Pixels of zero around the image.
    padding: i64,
}

impl Convolution {
    /// Shape of its weight.
    pub fn shape(&self) -> Vec<i64> {
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
pub struct Trunk {
    /// In the order of their parameters.
    pub convolutions: Vec<Convolution>,
    residual: bool,
    rows: Rows,
    precision: Precision,
    /// Numbers that come out per image.
    pub outputs: usize,
    /// Index of the layer that follows, in the names of a `torch.nn.Sequential`.
    pub next_index: usize,
}

impl Trunk {
    /// What `policy` asks for in front of observations of this shape; `None` for fully connected networks,
    /// which [`crate::env::fit`] gives flat ones. Refused when they do not fit.
    pub fn new(shape: &[usize], policy: &Policy) -> Result<Option<Trunk>, TrainerError> {
        match policy.network {
            Network::Mlp => Ok(None),
            Network::Nature => Trunk::nature(shape, &channels(policy, &NATURE_CHANNELS)?, policy).map(Some),
            Network::Impala => Trunk::impala(shape, &channels(policy, &IMPALA_CHANNELS)?, policy).map(Some),
        }
    }

    fn nature(shape: &[usize], channels: &[u32], policy: &Policy) -> Result<Trunk, TrainerError> {
        if channels.len() != NATURE.len() {
            return Err(TrainerError::usage(
                format!("policy.channels = {channels:?} is not a list of {} counts", NATURE.len()),
                "set policy.channels, such as [32, 64, 64]",
            ));
        }
        let [mut inputs, mut height, mut width] = *shape else { return Err(refused(shape, "nature", 36)) };
        let mut convolutions = Vec::new();
        for (i, ((kernel, stride), outputs)) in NATURE.into_iter().zip(channels).enumerate() {
            if height < kernel || width < kernel {
                return Err(refused(shape, "nature", 36));
            }
            let (name, outputs) = (format!("network.{}", 2 * i), *outputs as usize);
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

    fn impala(shape: &[usize], channels: &[u32], policy: &Policy) -> Result<Trunk, TrainerError> {
        let [mut inputs, mut height, mut width] = *shape else { return Err(refused(shape, "impala", 2)) };
        if height < 2 || width < 2 {
            return Err(refused(shape, "impala", 2));
        }
        let mut convolutions = Vec::new();
        for (i, outputs) in channels.iter().enumerate() {
            let outputs = *outputs as usize;
            let mut add = |name: &str, inputs: usize| {
                let name = format!("network.{i}.{name}");
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
    pub fn parameters(&self) -> usize {
        2 * self.convolutions.len()
    }

    /// What each unit's weights begin with as their norm in CleanRL's ppg_procgen.py; `None` for networks
    /// that begin otherwise. `convolution` is the index of one of the trunk's.
    pub fn start_norm(&self, convolution: usize) -> Option<f64> {
        let sequences = (self.convolutions.len() / SEQUENCE) as f64;
        self.residual.then(|| match convolution % SEQUENCE {
            0 => 1.0,
            // A sequence's share is split over its two blocks, and a block's over its two convolutions.
            _ => (1.0 / (sequences * 2.0).sqrt()).sqrt(),
        })
    }

    /// Numbers `[rows, outputs]` of images `[rows, channels, height, width]`, f32 or u8 pixels, with
    /// gradients, in what the network computes in: [`linear`] goes on with it (TRUNK-3).
    pub fn forward(&self, parameters: &[Tensor], images: &Tensor) -> Result<Tensor, TchError> {
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
}

fn refused(shape: &[usize], network: &str, side: usize) -> TrainerError {
    TrainerError::usage(
        format!(
            "policy.network = \"{network}\" is for images of at least {side} by {side} pixels, and these observations are {shape:?}"
        ),
        "set policy.network = \"mlp\", which takes observations of any shape",
    )
}

fn channels(policy: &Policy, own: &[u32]) -> Result<Vec<u32>, TrainerError> {
    let channels = policy.channels.clone().unwrap_or_else(|| own.to_vec());
    if channels.is_empty() || channels.contains(&0) {
        return Err(TrainerError::usage(
            format!("policy.channels = {channels:?} is not a list of counts"),
            "set policy.channels, such as [16, 32, 32]",
        ));
    }
    Ok(channels)
}

/// The same tensor where it is of this kind.
pub fn as_kind(tensor: &Tensor, kind: Kind) -> Result<Tensor, TchError> {
    if tensor.kind() == kind { Ok(tensor.shallow_clone()) } else { tensor.f_to_kind(kind) }
}

/// A dense layer of weight and bias, in what its input is in (TRUNK-3).
pub fn linear(input: &Tensor, pair: &[Tensor]) -> Result<Tensor, TchError> {
    match input.kind() {
        Kind::Float => input.f_linear(&pair[0], Some(&pair[1])),
        kind => input.f_linear(&as_kind(&pair[0], kind)?, Some(&as_kind(&pair[1], kind)?)),
    }
}

/// The layout from which rows of observations are quickly picked and quickly convolved (TRUNK-2): images
/// `[rows, height, width, channels]` where colours are last, anything else as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// Also on a GPU.
    colours_last: bool,
}

impl Rows {
    /// What `policy` asks for.
    pub fn of(policy: &Policy) -> Rows {
        Rows { colours_last: policy.channels_last }
    }

    fn turns(self, observations: &Tensor) -> bool {
        observations.dim() == 4 && (self.colours_last || observations.device() == Device::Cpu)
    }

    /// It is another one than observations come in.
    pub fn turn(self, device: Device) -> bool {
        self.colours_last || device == Device::Cpu
    }

    /// Observations in that layout.
    pub fn to(self, observations: &Tensor) -> Result<Tensor, TchError> {
        match self.turns(observations) {
            true => observations.f_permute([0, 2, 3, 1])?.f_contiguous(),
            false => Ok(observations.shallow_clone()),
        }
    }

    /// The shape that they had before [`Rows::to`].
    pub fn from(self, rows: &Tensor) -> Result<Tensor, TchError> {
        if self.turns(rows) { rows.f_permute([0, 3, 1, 2]) } else { Ok(rows.shallow_clone()) }
    }

    /// Images in the layout that convolutions are fastest with; the same tensor where it has that layout.
    fn lay_out(self, images: &Tensor) -> Result<Tensor, TchError> {
        self.from(&self.to(images)?)
    }
}

#[cfg(test)]
#[path = "trunk_tests.rs"]
mod tests;
