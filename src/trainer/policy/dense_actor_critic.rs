//! The actor and the critic of a [`Layout`] in plain Rust, for acting and for learning.
//!
//! Owner: a collector, or a learner. It reads a snapshot of the flat parameter buffer
//! ([`DenseActorCritic::load`]), so it serves a policy that learns on a GPU as well, and adds gradients to a
//! flat buffer in the layout's order.
//!
//! The way of an update: `load`, `forward`, `log_probs`, then a loss writes [`DenseActorCritic::by_log_prob`]
//! and the gradient of the values ([`DenseActorCritic::losses`] has PPO's and A2C's), then `backward`.

use crate::env::Actions;
use crate::policy::layout::Layout;
use rankdeck_kernel::distribution::{Categorical, Gaussian};
use rankdeck_kernel::isa::Isa;
use rankdeck_kernel::loss::{Distance, Gain, Goals, Surrogate, policy_gradient, surrogate, value_loss};
use rankdeck_kernel::matrix::Matrix;
use rankdeck_kernel::mlp::{Activation, Mlp};
use rankdeck_types::experiment;

/// Actor and critic, with everything that a batch needs on its way forth and back.
pub struct DenseActorCritic {
    shared: Option<Mlp>,
    critic: Mlp,
    actor: Mlp,
    log_std: Vec<f32>,
    log_std_at: Option<usize>,
    categorical: Categorical,
    gaussian: Gaussian,
    input: Matrix,
    log_probs: Vec<f32>,
    /// The gradient of a loss with respect to each row's log-probability.
    pub by_log_prob: Vec<f32>,
    /// The gradient of a loss with respect to each row's value.
    pub by_value: Matrix,
    by_scores: Matrix,
    by_shared: [Matrix; 2],
    empty: Matrix,
}

/// A minibatch of PPO or A2C, one entry per row.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    /// How log-probabilities make a loss.
    pub gain: Gain<'a>,
    pub advantages: &'a [f32],
    /// What the values are compared with.
    pub goals: Goals<'a>,
    /// Clip range of the values.
    pub value_clip: Option<f32>,
    /// The distance of values from returns.
    pub distance: Distance,
    /// Weight of the value loss.
    pub value_weight: f32,
}

impl DenseActorCritic {
    /// For batches of up to `rows` rows (more are possible, and allocate); `None` where the layout has
    /// convolutions.
    pub fn new(layout: &Layout, rows: usize) -> Option<DenseActorCritic> {
        if !layout.is_dense() {
            return None;
        }
        let hidden = match layout.activation {
            experiment::Activation::Tanh => Activation::Tanh,
            experiment::Activation::Relu => Activation::Relu,
        };
        let network = |layers: &[_]| Mlp::new(layers, hidden, Activation::Identity, rows);
        let first = layout.shared.first().or(layout.actor.first()).map_or(0, |layer| layer.inputs);
        let width = layout.actor_width();
        let features = layout.shared.last().map_or(0, |layer| layer.outputs);
        Some(DenseActorCritic {
            shared: (!layout.shared.is_empty()).then(|| Mlp::new(&layout.shared, hidden, hidden, rows)),
            critic: network(&layout.critic),
            actor: network(&layout.actor),
            log_std: vec![0.0; if layout.log_std.is_some() { width } else { 0 }],
            log_std_at: layout.log_std,
            categorical: Categorical::new(width),
            gaussian: Gaussian::default(),
            input: Matrix::new(rows, first),
            log_probs: vec![0.0; rows],
            by_log_prob: vec![0.0; rows],
            by_value: Matrix::new(rows, 1),
            by_scores: Matrix::new(rows, width),
            by_shared: [Matrix::new(rows, features), Matrix::new(rows, features)],
            empty: Matrix::new(0, 1),
        })
    }

    /// Takes a snapshot of the flat parameter buffer.
    pub fn load(&mut self, flat: &[f32]) {
        self.shared.iter_mut().chain([&mut self.critic, &mut self.actor]).for_each(|part| part.load(flat));
        if let Some(at) = self.log_std_at {
            let len = self.log_std.len();
            self.log_std.copy_from_slice(&flat[at..at + len]);
        }
    }

    /// Runs both networks on `[rows][observation_len]`; [`DenseActorCritic::scores`] and
    /// [`DenseActorCritic::values`] have the results.
    pub fn forward(&mut self, observations: &[f32]) {
        self.input.copy_rows(observations);
        let seen = match &mut self.shared {
            Some(shared) => shared.forward(&self.input),
            None => &self.input,
        };
        self.critic.forward(seen);
        self.actor.forward(seen);
    }

    /// Logits or means, `[rows][actor_width]`.
    pub fn scores(&self) -> &Matrix {
        self.actor.output().unwrap_or(&self.empty)
    }

    /// Values, `[rows][1]`.
    pub fn values(&self) -> &Matrix {
        self.critic.output().unwrap_or(&self.empty)
    }

    /// Log-probabilities of the actions of the rows that were run last, and the entropies' mean with these
    /// shares. Gaussian actions are meant as they were sampled, before any clipping.
    pub fn log_probs(&mut self, actions: Actions<'_>, shares: &[f32]) -> (&[f32], f64) {
        let rows = self.input.rows();
        self.log_probs.resize(rows, 0.0);
        self.by_log_prob.resize(rows, 0.0);
        let scores = self.actor.output().unwrap_or(&self.empty);
        let entropy = match actions {
            Actions::Discrete(actions) => {
                self.categorical.forward(scores, actions, shares, &mut self.log_probs)
            }
            Actions::Continuous(actions) => {
                self.gaussian.forward(scores, &self.log_std, actions, shares, &mut self.log_probs)
            }
        };
        (&self.log_probs, entropy)
    }

    /// Losses of the rows whose log-probabilities were taken last, and their gradients. Returns the policy's
    /// numbers (without a ratio: the loss only) and the value loss.
    pub fn losses(&mut self, batch: Terms<'_>) -> (Surrogate, f64) {
        let Terms { gain, advantages, goals, .. } = batch;
        let (shares, isa) = (goals.shares, Isa::best());
        let (log_probs, gradient) = (&self.log_probs, &mut self.by_log_prob);
        let numbers = match gain {
            Gain::Clipped { old_log_probs, clip } => {
                surrogate(isa, log_probs, old_log_probs, advantages, shares, clip, gradient)
            }
            Gain::Plain => {
                let loss = policy_gradient(isa, log_probs, advantages, shares, gradient);
                Surrogate { loss, ..Surrogate::default() }
            }
        };
        let values = self.critic.output().unwrap_or(&self.empty);
        let value = value_loss(
            values,
            goals,
            batch.distance,
            batch.value_clip,
            batch.value_weight,
            &mut self.by_value,
        );
        (numbers, value)
    }

    /// Adds the gradient of a loss to `flat`, from `by_log_prob`, `by_value`, and its gradient with respect
    /// to the mean entropy. `actions` and `shares` are those of the last [`DenseActorCritic::log_probs`].
    pub fn backward(&mut self, actions: Actions<'_>, shares: &[f32], by_entropy: f32, flat: &mut [f32]) {
        match actions {
            Actions::Discrete(actions) => {
                self.categorical.backward(
                    actions,
                    &self.by_log_prob,
                    shares,
                    by_entropy,
                    &mut self.by_scores,
                );
            }
            Actions::Continuous(_) => {
                let at = self.log_std_at.unwrap_or(flat.len());
                let by_log_std = &mut flat[at..at + self.log_std.len()];
                let (by_log_prob, gradient) = (&self.by_log_prob, &mut self.by_scores);
                let log_std = &self.log_std;
                self.gaussian.backward(log_std, by_log_prob, shares, by_entropy, gradient, by_log_std);
            }
        }
        let Some(shared) = &mut self.shared else {
            self.critic.backward(&self.input, &self.by_value, flat, None);
            self.actor.backward(&self.input, &self.by_scores, flat, None);
            return;
        };
        let [by_critic, by_actor] = &mut self.by_shared;
        let seen = shared.output().unwrap_or(&self.input);
        self.critic.backward(seen, &self.by_value, flat, Some(by_critic));
        self.actor.backward(seen, &self.by_scores, flat, Some(by_actor));
        by_critic.add(by_actor);
        shared.backward(&self.input, by_critic, flat, None);
    }
}
