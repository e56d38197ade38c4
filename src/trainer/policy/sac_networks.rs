//! SAC's networks: an actor with a squashed Gaussian, two critics, and the critics' targets.
//!
//! Invariants:
//! - SACNET-1: an action is `tanh(u) * scale + bias` within the environment's bounds, for `u` drawn from the
//!   actor's Gaussian; its log-probability has the change of variables in it (Haarnoja et al. 2018, appendix
//!   C).
//! - The logarithm of the deviation stays within -5 and 2.

use super::continuous::ContinuousLayout;
use super::parameters::{ParameterEntry, Parameters, initial};
use crate::env::Spec;
use crate::error::TrainerError;
use rankdeck_kernel::seeds::Seeds;
use rankdeck_types::experiment::{Activation, Policy};
use tch::{Device, Kind, TchError, Tensor};

const LOG_STD: (f64, f64) = (-5.0, 2.0);
/// Keeps the logarithm of the squashing's slope finite.
const SLOPE_EPSILON: f64 = 1e-6;

/// The layout for `spec`. Refused when network and environment do not fit.
pub fn layout(spec: &Spec, policy: &Policy) -> Result<ContinuousLayout, TrainerError> {
    ContinuousLayout::new("sac", &["fc_mean", "fc_logstd"], spec, policy)
}

/// The networks.
pub struct SacNetworks {
    layout: ContinuousLayout,
    pub actor: Parameters,
    /// Both critics.
    pub critics: Parameters,
    /// Both critics' targets; never have gradients.
    pub targets: Parameters,
    scale: Tensor,
    bias: Tensor,
}

/// Actions drawn by the actor.
pub(crate) struct ActionSample {
    /// `[rows, actions]`, as the environment takes them.
    pub actions: Tensor,
    /// Their log-probabilities, `[rows]`.
    pub(crate) log_probs: Tensor,
}

impl SacNetworks {
    /// Freshly initialized, targets equal to the critics.
    pub(crate) fn new(
        layout: ContinuousLayout,
        seeds: &Seeds,
        device: Device,
    ) -> Result<SacNetworks, TchError> {
        // One stream for all: the critics differ from each other and from the actor.
        let all: Vec<ParameterEntry> = layout.actor.iter().chain(&layout.critics).cloned().collect();
        let flat = initial(&all, seeds);
        let split = layout.actor.iter().map(|entry| entry.len).sum::<usize>();
        let targets = Parameters::new(&layout.critics, &flat[split..], device)?;
        for tensor in targets.tensors() {
            let _ = tensor.f_set_requires_grad(false)?;
        }
        Ok(SacNetworks {
            actor: Parameters::new(&layout.actor, &flat[..split], device)?,
            critics: Parameters::new(&layout.critics, &flat[split..], device)?,
            targets,
            scale: Tensor::f_from_slice(&layout.scale)?.f_to_device(device)?,
            bias: Tensor::f_from_slice(&layout.bias)?.f_to_device(device)?,
            layout,
        })
    }

    /// Where everything is.
    pub(crate) fn layout(&self) -> &ContinuousLayout {
        &self.layout
    }

    /// Means of `u` and logarithms of its deviations, each `[rows, actions]`.
    fn gaussian(&self, observations: &Tensor) -> Result<(Tensor, Tensor), TchError> {
        let (hidden, heads) = self.actor.tensors().split_at(2 * self.layout.hidden);
        let mut value = observations.shallow_clone();
        for pair in hidden.chunks_exact(2) {
            value = value.f_linear(&pair[0], Some(&pair[1]))?;
            value = match self.layout.activation {
                Activation::Tanh => value.f_tanh()?,
                Activation::Relu => value.f_relu()?,
            };
        }
        let mean = value.f_linear(&heads[0], Some(&heads[1]))?;
        let squashed = value.f_linear(&heads[2], Some(&heads[3]))?.f_tanh()?;
        let half = 0.5 * (LOG_STD.1 - LOG_STD.0);
        let log_std = squashed.f_add_scalar(1.0)?.f_mul_scalar(half)?.f_add_scalar(LOG_STD.0)?;
        Ok((mean, log_std))
    }

    /// Draws actions with the given standard normal numbers `[rows, actions]`; gradients flow through both
    /// results.
    pub(crate) fn draw(&self, observations: &Tensor, noise: &Tensor) -> Result<ActionSample, TchError> {
        let (mean, log_std) = self.gaussian(observations)?;
        let u = mean.f_add(&log_std.f_exp()?.f_mul(noise)?)?;
        let squashed = u.f_tanh()?;
        let actions = squashed.f_mul(&self.scale)?.f_add(&self.bias)?;
        // log N(u) = -noise^2 / 2 - log_std - log sqrt(2 pi)
        let normal = noise
            .f_square()?
            .f_mul_scalar(-0.5)?
            .f_sub(&log_std)?
            .f_sub_scalar(0.5 * (2.0 * std::f64::consts::PI).ln())?;
        let slope = squashed.f_square()?.f_neg()?.f_add_scalar(1.0)?.f_mul(&self.scale)?;
        let log_slope = slope.f_add_scalar(SLOPE_EPSILON)?.f_log()?;
        let log_probs = normal.f_sub(&log_slope)?.f_sum_dim_intlist(1_i64, false, None::<Kind>)?;
        Ok(ActionSample { actions, log_probs })
    }

    /// The most probable `u`, squashed: what evaluations do.
    pub(crate) fn greedy(&self, observations: &Tensor) -> Result<Tensor, TchError> {
        let (mean, _) = self.gaussian(observations)?;
        mean.f_tanh()?.f_mul(&self.scale)?.f_add(&self.bias)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::continuous::tests::{policy, spec};

    fn networks() -> SacNetworks {
        let layout = layout(&spec(), &policy()).unwrap();
        SacNetworks::new(layout, &Seeds::new(2), Device::Cpu).unwrap()
    }

    #[test]
    fn names_and_shapes_are_cleanrls() {
        let layout = layout(&spec(), &policy()).unwrap();
        let names: Vec<_> = layout.actor.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(
            names[4..],
            ["actor.fc_mean.weight", "actor.fc_mean.bias", "actor.fc_logstd.weight", "actor.fc_logstd.bias"]
        );
        assert_eq!(
            (layout.critics[6].name.as_str(), &layout.critics[6].shape),
            ("qf2.fc1.weight", &vec![16, 5])
        );
        assert_eq!(
            (layout.scale.as_slice(), layout.bias.as_slice()),
            ([2.0, 5.0].as_slice(), [0.0, 5.0].as_slice())
        );
        let networks = networks();
        assert_eq!(networks.critics.flat(), networks.targets.flat());
        let [first, second] = networks
            .layout
            .values(
                networks.critics.tensors(),
                &Tensor::from_slice(&[0.3f32; 6]).view([2, 3]),
                &Tensor::from_slice(&[0.1f32; 4]).view([2, 2]),
            )
            .unwrap();
        assert_ne!(first, second, "twins learn nothing from each other");
    }

    /// SACNET-1: the density of the squashed action, against the change of variables done numerically.
    #[test]
    fn log_probability_includes_the_squashing() {
        let networks = networks();
        let observations = Tensor::from_slice(&[0.5f32, -0.2, 1.0]).view([1, 3]);
        let (mean, log_std) = networks.gaussian(&observations).unwrap();
        for noise in [[0.0f32, 0.0], [1.0, -0.5], [-1.5, 0.7]] {
            let drawn = networks.draw(&observations, &Tensor::from_slice(&noise).view([1, 2])).unwrap();
            let mut expected = 0.0;
            for i in 0..2_i64 {
                let (m, s) = (mean.double_value(&[0, i]), log_std.double_value(&[0, i]).exp());
                let scale = f64::from(networks.layout.scale[i as usize]);
                let bias = f64::from(networks.layout.bias[i as usize]);
                let action = drawn.actions.double_value(&[0, i]);
                assert!((-5.0..=2.0).contains(&s.ln()) && (action - bias).abs() <= scale);
                let inverse = |action: f64| ((action - bias) / scale).atanh();
                let density =
                    |u: f64| (-0.5 * ((u - m) / s).powi(2)).exp() / (s * (2.0 * std::f64::consts::PI).sqrt());
                let h = 1e-4 * scale;
                let slope = (inverse(action + h) - inverse(action - h)) / (2.0 * h);
                expected += (density(inverse(action)) * slope).ln();
            }
            let got = drawn.log_probs.double_value(&[0]);
            assert!((got - expected).abs() < 1e-3, "{got} {expected}");
        }
    }
}
