//! Recurrent layers over the flat parameter buffer: forward passes over sequences of several environments, with resets
//! inside of them, and hand-written backward passes through time.
//!
//! Rows are `[steps][envs]`. A reset sets an environment's state to 0 before its row is taken in, and no gradient passes
//! it; nor does one leave the first step.
//!
//! Invariants:
//! - RECURRENT-1: outputs and gradients equal libtorch's within 1e-5 of the largest magnitude.
//! - RECURRENT-2: an environment's outputs depend on its own rows and the weights only, bit by bit: neither on the other
//!   environments, nor on how many steps are taken at once, nor on the processor.
//! - Nothing is allocated once the largest batch was seen.

use super::gemm::Matrix;
use super::isa::{Isa, on_every_isa};
use super::math::{exp, tanh};
use super::mlp::{Layer, LayerActivation, Mlp};

/// Kind of a recurrent layer, with its linear layers in the flat buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecurrentCell {
    /// Long short-term memory with PyTorch's gates: input, forget, cell, output.
    Lstm {
        /// From the inputs to the gates.
        input: Layer,
        /// From the output before to the gates.
        recurrent: Layer,
    },
    /// The minGRU of Feng et al. 2024: `(1 - z) * state + z * candidate`, `z` the sigmoid of the update gate.
    MinGru {
        /// From the inputs to the update gate.
        update: Layer,
        /// From the inputs to the candidate.
        candidate: Layer,
    },
}

/// A recurrent layer.
pub struct Recurrent {
    isa: Isa,
    is_lstm: bool,
    size: usize,
    /// The layers of [`RecurrentCell`], in their order.
    first: Mlp,
    second: Mlp,
    resets: Vec<bool>,
    envs: usize,
    /// State before each row, which is also the output before; `[rows][size]`.
    before: Matrix,
    output: Matrix,
    /// Of an LSTM: its cell before each row, and the hyperbolic tangent of the one after it.
    cells: Matrix,
    squashed: Matrix,
    /// After their activation: four of an LSTM, else the update gate, whose padding is not 0: no product reads it.
    gates: Matrix,
    /// Now: states of all environments, and cells of an LSTM.
    state: Matrix,
    cell: Matrix,
    by_first: Matrix,
    by_second: Matrix,
    by_input: Matrix,
}

impl Recurrent {
    /// Of this kind, with room for `rows` rows.
    pub fn new(cell: RecurrentCell, rows: usize) -> Recurrent {
        Recurrent::on(Isa::best(), cell, rows)
    }

    /// As [`Recurrent::new`], on the given instruction set: all of them give the same bits.
    pub fn on(isa: Isa, cell: RecurrentCell, rows: usize) -> Recurrent {
        let (is_lstm, [first, second]) = match cell {
            RecurrentCell::Lstm { input, recurrent } => (true, [input, recurrent]),
            RecurrentCell::MinGru { update, candidate } => (false, [update, candidate]),
        };
        let size = if is_lstm { second.inputs } else { second.outputs };
        let linear =
            |layer: Layer| Mlp::on(isa, &[layer], LayerActivation::Identity, LayerActivation::Identity, rows);
        let matrix = |columns: usize| Matrix::new(rows, columns);
        Recurrent {
            isa,
            is_lstm,
            size,
            first: linear(first),
            second: linear(second),
            resets: Vec::new(),
            envs: 1,
            before: matrix(size),
            output: matrix(size),
            cells: matrix(size),
            squashed: matrix(size),
            gates: matrix(first.outputs),
            state: matrix(size),
            cell: matrix(size),
            by_first: matrix(first.outputs),
            by_second: matrix(if is_lstm { 0 } else { size }),
            by_input: matrix(first.inputs),
        }
    }

    /// Numbers of an environment's state: of an LSTM its output and its cell.
    pub fn state_len(&self) -> usize {
        if self.is_lstm { 2 * self.size } else { self.size }
    }

    /// Takes a snapshot of the parameters in `flat`.
    pub fn load(&mut self, flat: &[f32]) {
        self.first.load(flat);
        self.second.load(flat);
    }

    /// Outputs of every row of `input`, kept for [`Recurrent::backward`]. `states` `[envs][state_len]` are those before
    /// the first step, and then those after the last one. `resets` has a flag per row, or is empty.
    pub fn forward(&mut self, input: &Matrix, states: &mut [f32], resets: &[bool]) -> &Matrix {
        let (rows, len) = (input.rows(), self.state_len().max(1));
        self.envs = (states.len() / len).max(1);
        self.resets.clear();
        self.resets.extend_from_slice(resets);
        self.resets.resize(rows, false);
        for matrix in
            [&mut self.before, &mut self.output, &mut self.cells, &mut self.squashed, &mut self.gates]
        {
            matrix.set_rows(rows);
        }
        self.state.set_rows(self.envs);
        self.cell.set_rows(self.envs);
        self.state.padded_mut().fill(0.0);
        self.cell.padded_mut().fill(0.0);
        let stride = self.state.stride();
        for (env, state) in states.chunks(len).enumerate() {
            let (output, cell) = state.split_at(self.size);
            self.state.padded_mut()[env * stride..][..self.size].copy_from_slice(output);
            self.cell.padded_mut()[env * stride..][..cell.len()].copy_from_slice(cell);
        }
        self.first.forward(input);
        if !self.is_lstm {
            self.second.forward(input);
        }
        for step in 0..rows / self.envs {
            self.step(step * self.envs);
        }
        for (env, state) in states.chunks_mut(len).enumerate() {
            let (output, cell) = state.split_at_mut(self.size);
            output.copy_from_slice(&self.state.padded()[env * stride..][..self.size]);
            cell.copy_from_slice(&self.cell.padded()[env * stride..][..cell.len()]);
        }
        &self.output
    }

    /// Takes in the rows of all environments from `row` on.
    fn step(&mut self, row: usize) {
        let Recurrent {
            isa, size, envs, resets, before, output, cells, squashed, gates, state, cell, ..
        } = self;
        let stride = state.stride();
        for (env, _) in resets[row..row + *envs].iter().enumerate().filter(|(_, reset)| **reset) {
            state.padded_mut()[env * stride..(env + 1) * stride].fill(0.0);
            cell.padded_mut()[env * stride..(env + 1) * stride].fill(0.0);
        }
        let own = row * stride..(row + *envs) * stride;
        before.padded_mut()[own.clone()].copy_from_slice(state.padded());
        let Some(first) = self.first.output() else { return };
        if !self.is_lstm {
            let Some(candidate) = self.second.output() else { return };
            let (update, candidate) = (&first.padded()[own.clone()], &candidate.padded()[own.clone()]);
            let gates = &mut gates.padded_mut()[own.clone()];
            min_gru_step(*isa, update, candidate, gates, state.padded_mut());
            output.padded_mut()[own].copy_from_slice(state.padded());
            return;
        }
        cells.padded_mut()[own.clone()].copy_from_slice(cell.padded());
        let recurrent = self.second.forward(state);
        let wide = gates.stride();
        for env in 0..*envs {
            let at = (row + env) * wide..(row + env + 1) * wide;
            let narrow = env * stride..env * stride + *size;
            lstm_step(
                *isa,
                &first.padded()[at.clone()],
                &recurrent.padded()[env * wide..(env + 1) * wide],
                &mut gates.padded_mut()[at],
                &mut cell.padded_mut()[narrow.clone()],
                &mut squashed.padded_mut()[(row + env) * stride..][..*size],
                &mut output.padded_mut()[(row + env) * stride..][..*size],
            );
        }
        state.padded_mut().copy_from_slice(&output.padded()[own]);
    }

    /// What the last [`Recurrent::forward`] gave.
    pub fn output(&self) -> &Matrix {
        &self.output
    }

    /// Adds the gradient of a loss to `flat`, given that of the outputs of the last forward pass over the same `input`;
    /// writes that of the inputs into `input_gradient` if given.
    pub fn backward(
        &mut self,
        input: &Matrix,
        output_gradient: &Matrix,
        flat: &mut [f32],
        input_gradient: Option<&mut Matrix>,
    ) {
        let rows = input.rows();
        self.by_first.set_rows(rows);
        self.state.set_rows(self.envs);
        self.cell.set_rows(self.envs);
        // From here on, the gradients of states and cells after the rows.
        self.state.padded_mut().fill(0.0);
        self.cell.padded_mut().fill(0.0);
        if !self.is_lstm {
            self.by_second.set_rows(rows);
        }
        for step in (0..rows / self.envs).rev() {
            self.step_back(step * self.envs, output_gradient);
        }
        let Recurrent { first, second, by_first, by_second, by_input, before, .. } = self;
        if self.is_lstm {
            second.backward(before, by_first, flat, None);
            first.backward(input, by_first, flat, input_gradient);
            return;
        }
        match input_gradient {
            None => {
                first.backward(input, by_first, flat, None);
                second.backward(input, by_second, flat, None);
            }
            Some(to) => {
                first.backward(input, by_first, flat, Some(&mut *to));
                second.backward(input, by_second, flat, Some(&mut *by_input));
                to.add(by_input);
            }
        }
    }

    /// The way back through the rows of all environments from `row` on.
    fn step_back(&mut self, row: usize, output_gradient: &Matrix) {
        let Recurrent { isa, size, envs, resets, before, cells, squashed, gates, state, cell, .. } = self;
        let stride = state.stride();
        let own = row * stride..(row + *envs) * stride;
        if self.is_lstm {
            let wide = gates.stride();
            for env in 0..*envs {
                let at = (row + env) * wide..(row + env + 1) * wide;
                let narrow = (row + env) * stride..(row + env) * stride + *size;
                let now = env * stride..env * stride + *size;
                lstm_back(
                    *isa,
                    &output_gradient.padded()[narrow.clone()],
                    &state.padded()[now.clone()],
                    &gates.padded()[at.clone()],
                    &cells.padded()[narrow.clone()],
                    &squashed.padded()[narrow],
                    &mut cell.padded_mut()[now],
                    &mut self.by_first.padded_mut()[at],
                );
            }
            let by_gates = &self.by_first.padded()[row * wide..(row + *envs) * wide];
            self.second.layer_input_gradient(by_gates, *envs, state);
        } else {
            let Some(candidate) = self.second.output() else { return };
            min_gru_back(
                *isa,
                &output_gradient.padded()[own.clone()],
                &gates.padded()[own.clone()],
                &candidate.padded()[own.clone()],
                &before.padded()[own.clone()],
                state.padded_mut(),
                &mut self.by_first.padded_mut()[own.clone()],
                &mut self.by_second.padded_mut()[own],
            );
        }
        for (env, _) in resets[row..row + *envs].iter().enumerate().filter(|(_, reset)| **reset) {
            state.padded_mut()[env * stride..(env + 1) * stride].fill(0.0);
            cell.padded_mut()[env * stride..(env + 1) * stride].fill(0.0);
        }
    }
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

on_every_isa! {
    /// One step of minGRU: writes the update gate and the next state.
    fn min_gru_step(update: &[f32], candidate: &[f32], gates: &mut [f32], state: &mut [f32]) {
        for (((update, candidate), gate), state) in update.iter().zip(candidate).zip(gates).zip(state) {
            let z = sigmoid(*update);
            *gate = z;
            *state = z.mul_add(*candidate - *state, *state);
        }
    }
}

on_every_isa! {
    /// The gradients of update gate (before its activation) and candidate; `carried` is that of the state after the step,
    /// then of the one before it.
    fn min_gru_back(
        by_output: &[f32],
        gates: &[f32],
        candidate: &[f32],
        before: &[f32],
        carried: &mut [f32],
        by_update: &mut [f32],
        by_candidate: &mut [f32],
    ) {
        let saved = gates.iter().zip(candidate).zip(before);
        let to = carried.iter_mut().zip(by_update).zip(by_candidate);
        for ((by_output, ((z, candidate), before)), ((carried, by_update), by_candidate)) in
            by_output.iter().zip(saved).zip(to)
        {
            let gradient = *by_output + *carried;
            *by_update = gradient * (*candidate - *before) * (*z * (1.0 - *z));
            *by_candidate = gradient * *z;
            *carried = gradient * (1.0 - *z);
        }
    }
}

on_every_isa! {
    /// One step of an LSTM for one environment: writes the activated gates, the next cell, its hyperbolic tangent and the
    /// output. Gates follow each other in their rows.
    fn lstm_step(
        inputs: &[f32],
        recurrent: &[f32],
        gates: &mut [f32],
        cell: &mut [f32],
        squashed: &mut [f32],
        output: &mut [f32],
    ) {
        let size = cell.len();
        for ((gate, input), recurrent) in gates[..4 * size].iter_mut().zip(inputs).zip(recurrent) {
            *gate = *input + *recurrent;
        }
        let (write, rest) = gates[..4 * size].split_at_mut(size);
        let (keep, rest) = rest.split_at_mut(size);
        let (new, show) = rest.split_at_mut(size);
        for part in [&mut *write, &mut *keep, &mut *show] {
            for gate in part {
                *gate = sigmoid(*gate);
            }
        }
        for gate in &mut *new {
            *gate = tanh(*gate);
        }
        let gates = write.iter().zip(keep.iter()).zip(new.iter()).zip(show.iter());
        let to = cell.iter_mut().zip(squashed).zip(output);
        for ((((write, keep), new), show), ((cell, squashed), output)) in gates.zip(to) {
            *cell = keep.mul_add(*cell, *write * *new);
            *squashed = tanh(*cell);
            *output = *show * *squashed;
        }
    }
}

on_every_isa! {
    #[allow(clippy::needless_range_loop, reason = "twelve slices of one length")]
    /// The gradients of the gates before their activation; `by_cell` is that of the cell after the step, then of the one
    /// before it.
    fn lstm_back(
        by_output: &[f32],
        carried: &[f32],
        gates: &[f32],
        cells: &[f32],
        squashed: &[f32],
        by_cell: &mut [f32],
        by_gates: &mut [f32],
    ) {
        let size = cells.len();
        let (write, rest) = gates[..4 * size].split_at(size);
        let (keep, rest) = rest.split_at(size);
        let (new, show) = rest.split_at(size);
        let (by_write, rest) = by_gates[..4 * size].split_at_mut(size);
        let (by_keep, rest) = rest.split_at_mut(size);
        let (by_new, by_show) = rest.split_at_mut(size);
        let (by_output, carried) = (&by_output[..size], &carried[..size]);
        let (squashed, by_cell) = (&squashed[..size], &mut by_cell[..size]);
        for i in 0..size {
            let by_state = by_output[i] + carried[i];
            let by = (by_state * show[i]).mul_add(squashed[i].mul_add(-squashed[i], 1.0), by_cell[i]);
            by_write[i] = by * new[i] * (write[i] * (1.0 - write[i]));
            by_keep[i] = by * cells[i] * (keep[i] * (1.0 - keep[i]));
            by_new[i] = by * write[i] * new[i].mul_add(-new[i], 1.0);
            by_show[i] = by_state * squashed[i] * (show[i] * (1.0 - show[i]));
            by_cell[i] = by * keep[i];
        }
    }
}
