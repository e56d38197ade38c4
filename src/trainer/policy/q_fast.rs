//! Q-networks in plain Rust, for dense networks on the CPU: forward for acting and learning, and the gradient
//! of the loss.
//!
//! Owner: DQN. Invariant QFAST-1: values and gradients equal libtorch's within 1e-5 of the largest magnitude
//! (tests compare both).

use super::q_layout::QLayout;
use rankdeck_kernel::q::{dueling, dueling_back};
use rankdeck_kernel::{Activation, Matrix, Mlp};
use rankdeck_types::experiment;

/// One network: a snapshot of parameters, and the activations of the last pass.
pub struct QFast {
    shared: Mlp,
    duel: Option<Duel>,
    /// Gradient of the shared layers' output.
    gradient: Matrix,
}

/// The heads of a dueling network.
struct Duel {
    value: Mlp,
    advantage: Mlp,
    q: Matrix,
    value_gradient: Matrix,
    advantage_gradient: Matrix,
    other: Matrix,
}

impl QFast {
    /// For a dense layout and batches of up to `rows`.
    pub fn new(layout: &QLayout, rows: usize) -> QFast {
        let between = match layout.activation {
            experiment::Activation::Tanh => Activation::Tanh,
            experiment::Activation::Relu => Activation::Relu,
        };
        let width = layout.head.first().map_or(0, |layer| layer.inputs);
        let duel = layout.is_dueling().then(|| Duel {
            value: Mlp::new(&layout.value, between, Activation::Identity, rows),
            advantage: Mlp::new(&layout.head, between, Activation::Identity, rows),
            q: Matrix::new(rows, layout.actions()),
            value_gradient: Matrix::new(rows, 1),
            advantage_gradient: Matrix::new(rows, layout.actions()),
            other: Matrix::new(rows, width),
        });
        let shared = match &duel {
            Some(_) => Mlp::new(&layout.shared, between, between, rows),
            None => {
                let layers: Vec<_> = layout.shared.iter().chain(&layout.head).copied().collect();
                Mlp::new(&layers, between, Activation::Identity, rows)
            }
        };
        QFast { shared, duel, gradient: Matrix::new(rows, width) }
    }

    /// Takes a snapshot of the flat parameters.
    pub fn load(&mut self, flat: &[f32]) {
        self.shared.load(flat);
        if let Some(duel) = &mut self.duel {
            duel.value.load(flat);
            duel.advantage.load(flat);
        }
    }

    /// Q-values of every row.
    pub fn forward<'a>(&'a mut self, input: &'a Matrix) -> &'a Matrix {
        let shared = self.shared.forward(input);
        let Some(duel) = &mut self.duel else { return shared };
        duel.advantage.forward(shared);
        let (Some(advantages), values) = (duel.advantage.output(), duel.value.forward(shared)) else {
            return shared;
        };
        dueling(values, advantages, &mut duel.q);
        &duel.q
    }

    /// Adds the gradient of a loss to `flat`, given that of the Q-values of the last pass over the same
    /// `input`.
    pub fn backward(&mut self, input: &Matrix, gradient: &Matrix, flat: &mut [f32]) {
        let Some(duel) = &mut self.duel else {
            self.shared.backward(input, gradient, flat, None);
            return;
        };
        dueling_back(gradient, &mut duel.value_gradient, &mut duel.advantage_gradient);
        let shared = self.shared.output().unwrap_or(input);
        duel.value.backward(shared, &duel.value_gradient, flat, Some(&mut self.gradient));
        duel.advantage.backward(shared, &duel.advantage_gradient, flat, Some(&mut duel.other));
        self.gradient.add(&duel.other);
        self.shared.backward(input, &self.gradient, flat, None);
    }
}
