//! Networks for `Dict` observations with images: convolutions for each image, and fully connected layers for all other
//! values together, side by side, as `CombinedExtractor` in Stable-Baselines3's
//! `stable_baselines3/common/torch_layers.py`. The shared layers continue with all that comes out.
//!
//! An image's parameters are named by its key, `network.KEY.0.weight`, those for the other values
//! `network.vector.0.weight`, and the shared layers behind them `network.shared.0.weight`.

use super::trunk::{Trunk, as_kind};
use crate::env::{BYTE_SCALE, Branch, Spec};
use crate::error::TrainerError;
use rankdeck_types::experiment::{NetworkKind, Policy};
use tch::{Kind, TchError, Tensor};

/// Names below `network.` that no key may have.
const TAKEN: [&str; 2] = ["vector", "shared"];
/// Prefixes of the layers' names for other values, and behind all branches.
pub(crate) const VECTOR_LAYERS: &str = "network.vector";
pub(crate) const SHARED_LAYERS: &str = "network.shared";
/// Widths of the layers for other values, unless `policy.vector_hidden` is set.
const HIDDEN: u32 = 64;

/// The convolutions of one image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageBranch {
    pub(crate) trunk: Trunk,
    /// Its first number in the observation.
    start: i64,
    /// As the observation has it.
    shape: [i64; 3],
    last: bool,
    bytes: bool,
}

/// The branches of an observation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Branches {
    pub(crate) images: Vec<ImageBranch>,
    /// First number and count of the other values.
    others: Vec<(i64, i64)>,
    /// Widths of the layers for the other values; none without such values.
    pub(crate) hidden: Vec<usize>,
}

impl Branches {
    /// The branches of `spec`; `None` for other observations, and for fully connected networks, which take flat ones.
    /// Refused when they do not fit.
    pub(crate) fn new(spec: &Spec, policy: &Policy) -> Result<Option<Branches>, TrainerError> {
        let branches: &[Branch] = match policy.network {
            NetworkKind::Mlp => &[],
            NetworkKind::Nature | NetworkKind::Impala => &spec.branches,
        };
        let has_others = branches.iter().any(|branch| !branch.image);
        if policy.vector_hidden.is_some() && !has_others {
            return Err(TrainerError::usage(
                "policy.vector_hidden has no effect: observations are not a Dict of images and other values",
                "remove policy.vector_hidden",
            ));
        }
        if branches.is_empty() {
            return Ok(None);
        }
        let (mut images, mut others, mut start) = (Vec::new(), Vec::new(), 0);
        for branch in branches {
            let numbers = branch.numbers() as i64;
            match branch.image {
                true => images.push(ImageBranch::new(branch, start, policy)?),
                false => others.push((start, numbers)),
            }
            start += numbers;
        }
        let hidden = policy.vector_hidden.clone().unwrap_or_else(|| vec![HIDDEN]);
        let hidden = hidden.iter().filter(|_| has_others).map(|width| *width as usize).collect();
        Ok(Some(Branches { images, others, hidden }))
    }

    /// Other values of an observation.
    pub(crate) fn inputs(&self) -> usize {
        self.others.iter().map(|(_, count)| *count as usize).sum()
    }

    /// Numbers that come out per observation.
    pub(crate) fn outputs(&self) -> usize {
        let images: usize = self.images.iter().map(|image| image.trunk.outputs).sum();
        images + self.hidden.last().copied().unwrap_or(0)
    }

    /// Parameter tensors.
    pub(crate) fn parameters(&self) -> usize {
        self.images.iter().map(|image| image.trunk.parameters()).sum::<usize>() + 2 * self.hidden.len()
    }

    /// Numbers `[rows, outputs]` of flat observations `[rows, ...]`, with gradients.
    pub(crate) fn forward(&self, parameters: &[Tensor], observations: &Tensor) -> Result<Tensor, TchError> {
        let mut rest = parameters;
        let mut features = Vec::with_capacity(self.images.len() + 1);
        for image in &self.images {
            let (own, others) = rest.split_at(image.trunk.parameters());
            features.push(image.trunk.forward(own, &image.take(observations)?)?);
            rest = others;
        }
        if !self.others.is_empty() {
            let parts = self.others.iter().map(|(start, count)| observations.f_narrow(1, *start, *count));
            let mut value = Tensor::f_cat(&parts.collect::<Result<Vec<_>, _>>()?, 1)?;
            if value.kind() == Kind::Uint8 {
                value = scaled(&value)?;
            }
            for pair in rest.chunks_exact(2) {
                value = value.f_linear(&pair[0], Some(&pair[1]))?.f_relu()?;
            }
            let kind = features.first().map_or(Kind::Float, Tensor::kind);
            features.push(as_kind(&value, kind)?);
        }
        Tensor::f_cat(&features, 1)
    }
}

impl ImageBranch {
    fn new(branch: &Branch, start: i64, policy: &Policy) -> Result<ImageBranch, TrainerError> {
        let key = branch.key.as_str();
        // Names of parameters have dots.
        if key.is_empty() || key.contains('.') || TAKEN.contains(&key) {
            return Err(TrainerError::usage(
                format!("policy.network cannot take an image with the key {key:?} of a Dict observation"),
                "rename the key in a wrapper of env.wrappers",
            ));
        }
        let [first, second, third] = *branch.shape else {
            return Err(TrainerError::usage(
                format!("the image {key:?} of the Dict observation has the shape {:?}", branch.shape),
                "set policy.network = \"mlp\"",
            ));
        };
        let shape = if branch.last { [third, first, second] } else { [first, second, third] };
        let trunk = Trunk::named(&format!("network.{key}"), &shape, policy)?;
        Ok(ImageBranch {
            trunk,
            start,
            shape: [first, second, third].map(|side| side as i64),
            last: branch.last,
            bytes: branch.bytes,
        })
    }

    /// The images `[rows, channels, height, width]` in flat observations.
    fn take(&self, observations: &Tensor) -> Result<Tensor, TchError> {
        let [first, second, third] = self.shape;
        let own = observations.f_narrow(1, self.start, first * second * third)?;
        let images = own.f_reshape([-1, first, second, third])?;
        // Bytes are scaled by the convolutions (TRUNK-1).
        let images = if self.bytes && images.kind() != Kind::Uint8 { scaled(&images)? } else { images };
        if self.last { images.f_permute([0, 3, 1, 2]) } else { Ok(images) }
    }
}

/// Values from 0 to 255 as numbers from 0 to 1.
fn scaled(bytes: &Tensor) -> Result<Tensor, TchError> {
    as_kind(bytes, Kind::Float)?.f_mul_scalar(1.0 / f64::from(BYTE_SCALE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::ObservationType;
    use crate::policy::ActorCritic;
    use crate::policy::actor_critic::{ForwardOptions, Layout};
    use rankdeck_kernel::seeds::Seeds;
    use tch::Device;

    /// Two images, and three other values before and between them.
    fn spec() -> Spec {
        let part = |key: &str, shape: &[usize], last: bool| Branch {
            key: key.into(),
            shape: shape.to_vec(),
            image: shape.len() == 3,
            last,
            bytes: key == "camera",
        };
        let branches = vec![
            part("arm", &[1], false),
            part("camera", &[12, 10, 3], true),
            part("goal", &[2], false),
            part("map", &[1, 9, 9], false),
        ];
        let len = branches.iter().map(Branch::numbers).sum();
        Spec { branches, ..Spec::discrete(len, 4) }
    }

    fn policy() -> Policy {
        Policy {
            network: NetworkKind::Impala,
            channels: Some(vec![2]),
            hidden: vec![8],
            vector_hidden: Some(vec![6, 5]),
            ..Policy::default()
        }
    }

    #[test]
    fn parameters_are_named_by_branch() {
        let layout = Layout::new(&spec(), &policy(), false).unwrap();
        let shape = |name: &str| {
            let found = layout.entries.iter().find(|entry| entry.name == name);
            found.unwrap_or_else(|| panic!("{name}: {:?}", layout.entries)).shape.clone()
        };
        assert_eq!(shape("network.camera.0.conv.weight"), [2, 3, 3, 3]);
        assert_eq!(shape("network.map.0.res_block1.conv1.bias"), [2]);
        assert_eq!(shape("network.vector.0.weight"), [6, 3]);
        assert_eq!(shape("network.vector.2.weight"), [5, 6]);
        // Halves of 12 x 10 and 9 x 9, two channels each.
        assert_eq!(shape("network.shared.0.weight"), [8, 2 * 6 * 5 + 2 * 5 * 5 + 5]);
        assert_eq!(shape("actor.weight"), [4, 8]);
        assert!(!layout.is_dense() && layout.trunk.is_none());
    }

    /// Every value of the observation reaches the output, images in the layout that their key has.
    #[test]
    fn features_are_those_of_single_branches() {
        let (spec, policy) = (spec(), policy());
        let layout = Layout::new(&spec, &policy, false).unwrap();
        let branches = layout.branches.clone().unwrap();
        let net = ActorCritic::new(layout, &Seeds::new(3), Device::Cpu).unwrap();
        let rows = 4;
        let len = spec.observation_len() as i64;
        let observations =
            Tensor::arange(rows * len, (Kind::Float, Device::Cpu)).remainder(251.0).view([rows, len]);
        let own = branches.forward(&net.parameters()[..branches.parameters()], &observations).unwrap();
        assert_eq!(own.size(), [rows, branches.outputs() as i64]);
        let camera = observations.narrow(1, 1, 360).reshape([rows, 12, 10, 3]).permute([0, 3, 1, 2]) / 255.0;
        let map = observations.narrow(1, 363, 81).reshape([rows, 1, 9, 9]);
        let mut at = 0;
        let mut features = Vec::new();
        for (image, input) in branches.images.iter().zip([camera, map]) {
            let count = image.trunk.parameters();
            features.push(image.trunk.forward(&net.parameters()[at..at + count], &input).unwrap());
            at += count;
        }
        let others = Tensor::cat(&[observations.narrow(1, 0, 1), observations.narrow(1, 361, 2)], 1);
        let pair = |value: &Tensor, at: usize| {
            value.linear(&net.parameters()[at], Some(&net.parameters()[at + 1])).relu()
        };
        features.push(pair(&pair(&others, at), at + 2));
        let expected = Tensor::cat(&features, 1);
        let size = expected.abs().max().double_value(&[]);
        assert!((own - &expected).abs().max().double_value(&[]) < 1e-5 * size.max(1.0));
        let output = net.forward(&observations, ForwardOptions::PLAIN).unwrap();
        output.values.sum(Kind::Float).backward();
        for (name, parameter) in net.named_parameters() {
            let is_reached =
                parameter.grad().defined() && parameter.grad().abs().sum(Kind::Float).double_value(&[]) > 0.0;
            // ReLUs may be off for all rows; weights of actions are not asked.
            assert!(is_reached || name.starts_with("actor") || name.contains("res_block"), "{name}");
        }
    }

    #[test]
    fn bytes_are_those_of_scaled_numbers() {
        let mut spec = spec();
        spec.branches.remove(3);
        spec.branches[1].bytes = true;
        let len = 363;
        spec.observation_shape = vec![len];
        let layout = Layout::new(&spec, &policy(), false).unwrap();
        let net = ActorCritic::new(layout, &Seeds::new(3), Device::Cpu).unwrap();
        let bytes: Vec<u8> = (0..2 * len).map(|i| (i * 7 % 251) as u8).collect();
        let bytes = Tensor::from_slice(&bytes).view([2, len as i64]);
        let mut numbers = bytes.to_kind(Kind::Float);
        // As numbers, only images of bytes are scaled.
        for (start, count) in [(0, 1), (361, 2)] {
            let mut other = numbers.narrow(1, start, count);
            let _ = other.f_mul_scalar_(1.0 / 255.0).unwrap();
        }
        numbers = numbers.contiguous();
        spec.observation_type = ObservationType::U8;
        let [a, b] = [bytes, numbers].map(|input| net.forward(&input, ForwardOptions::PLAIN).unwrap().values);
        assert!((a - b).abs().max().double_value(&[]) < 1e-5);
    }

    #[test]
    fn unsuitable_branches_name_the_key_to_change() {
        let named = |key: &str| {
            let mut spec = spec();
            spec.branches[1].key = key.into();
            spec
        };
        let images = Spec { observation_shape: vec![3, 16, 16], ..Spec::discrete(1, 2) };
        let nature = Policy { network: NetworkKind::Nature, channels: None, ..policy() };
        for (spec, policy, key) in [
            (named("vector"), policy(), "env.wrappers"),
            (named("shared"), policy(), "env.wrappers"),
            (named("a.b"), policy(), "env.wrappers"),
            (images, policy(), "policy.vector_hidden"),
            (spec(), nature, "policy.network"),
        ] {
            let error = Layout::new(&spec, &policy, false).unwrap_err();
            assert!(error.usage && error.hint().contains(key), "{error:?}");
        }
    }
}
