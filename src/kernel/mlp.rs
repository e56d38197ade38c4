//! A dense network over the flat parameter buffer: batched forward with saved activations, and a hand-written
//! backward pass.
//!
//! [`Mlp::load`] reads parameters from the flat buffer and packs them for both passes (a copy of the weights,
//! small compared with a pass over a minibatch). Gradients are added to a flat buffer of the same layout, so that
//! averaging and stepping are independent of what computed them.
//!
//! Invariants:
//! - MLP-1: outputs and gradients equal libtorch's within 1e-5 of the largest magnitude.
//! - MLP-2: a row's output depends on that row and the weights only, bit by bit: neither on the other rows
//!   nor on the processor.
//! - Nothing is allocated once the largest batch was seen.

use super::gemm::Matrix;
use super::gemm::{Factor, InitialSum, NARROW, SIMD_WIDTH, add_rows, multiply, multiply_narrow, padded};
use super::isa::Isa;
use super::math::{relu_all, relu_back, tanh_all, tanh_back};
use super::trace;

/// One linear layer inside the flat buffer: weight `[outputs, inputs]` row by row, then bias `[outputs]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// Width of its input.
    pub inputs: usize,
    /// Width of its output.
    pub outputs: usize,
    /// Index of the first weight in the flat buffer.
    pub weight: usize,
    /// Index of the first bias in the flat buffer.
    pub bias: usize,
}

/// What follows a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerActivation {
    /// The layer's output is left as it is.
    Identity,
    /// Hyperbolic tangent.
    Tanh,
    /// max(x, 0).
    Relu,
}

impl LayerActivation {
    fn forward(self, isa: Isa, values: &mut [f32]) {
        match self {
            LayerActivation::Identity => {}
            LayerActivation::Tanh => tanh_all(isa, values),
            LayerActivation::Relu => relu_all(isa, values),
        }
    }

    /// All three can be undone from the output alone.
    fn backward(self, isa: Isa, gradient: &mut [f32], outputs: &[f32]) {
        match self {
            LayerActivation::Identity => {}
            LayerActivation::Tanh => tanh_back(isa, gradient, outputs),
            LayerActivation::Relu => relu_back(isa, gradient, outputs),
        }
    }
}

struct LayerBuffers {
    layer: Layer,
    activation: LayerActivation,
    /// `[inputs][padded outputs]`.
    forward: Vec<f32>,
    /// `[padded outputs]`.
    bias: Vec<f32>,
    /// `[outputs][padded inputs]`; for the forward pass, too, where there are few outputs.
    backward: Vec<f32>,
    output: Matrix,
}

/// A chain of dense layers.
pub struct Mlp {
    isa: Isa,
    layers: Vec<LayerBuffers>,
    /// The gradient of a stage's output and that of its input.
    gradients: [Vec<f32>; 2],
    /// One layer's weight gradient with padded rows.
    weights: Vec<f32>,
    /// One layer's bias gradient, padded.
    biases: Vec<f32>,
}

impl Mlp {
    /// `layers` are those of the flat buffer, `hidden` after each but the last, `last` after the last; room
    /// for `rows` rows.
    pub fn new(layers: &[Layer], hidden: LayerActivation, last: LayerActivation, rows: usize) -> Mlp {
        Mlp::on(Isa::best(), layers, hidden, last, rows)
    }

    /// As [`Mlp::new`], on the given instruction set: all of them give the same bits.
    pub fn on(
        isa: Isa,
        layers: &[Layer],
        hidden: LayerActivation,
        last: LayerActivation,
        rows: usize,
    ) -> Mlp {
        let stage = |(i, layer): (usize, &Layer)| LayerBuffers {
            layer: *layer,
            activation: if i + 1 == layers.len() { last } else { hidden },
            forward: vec![0.0; layer.inputs * padded(layer.outputs)],
            bias: vec![0.0; padded(layer.outputs)],
            backward: vec![0.0; layer.outputs * padded(layer.inputs)],
            output: Matrix::new(rows, layer.outputs),
        };
        Mlp {
            isa,
            layers: layers.iter().enumerate().map(stage).collect(),
            gradients: [Vec::new(), Vec::new()],
            weights: Vec::new(),
            biases: Vec::new(),
        }
    }

    /// Takes a snapshot of the parameters in `flat`.
    pub fn load(&mut self, flat: &[f32]) {
        for LayerBuffers { layer, forward, bias, backward, .. } in &mut self.layers {
            let (out_stride, in_stride) = (padded(layer.outputs), padded(layer.inputs));
            let weights = &flat[layer.weight..layer.weight + layer.inputs * layer.outputs];
            let rows = weights.chunks_exact(layer.inputs.max(1));
            for (to, from) in backward.chunks_exact_mut(in_stride).zip(rows) {
                to[..layer.inputs].copy_from_slice(from);
            }
            // The transpose, in bands of rows, so that writes are contiguous.
            let bands = weights.chunks((SIMD_WIDTH * layer.inputs).max(1));
            for (band, weights) in bands.enumerate() {
                for (column, to) in forward.chunks_exact_mut(out_stride).enumerate() {
                    let from = weights[column..].iter().step_by(layer.inputs);
                    to[band * SIMD_WIDTH..].iter_mut().zip(from).for_each(|(to, from)| *to = *from);
                }
            }
            bias[..layer.outputs].copy_from_slice(&flat[layer.bias..layer.bias + layer.outputs]);
        }
    }

    /// Outputs of every row of `input`, kept for [`Mlp::backward`].
    pub fn forward<'a>(&'a mut self, input: &'a Matrix) -> &'a Matrix {
        for i in 0..self.layers.len() {
            let (before, from) = self.layers.split_at_mut(i);
            let input = before.last().map_or(input, |stage| &stage.output);
            let Some(LayerBuffers { layer, activation, forward, bias, backward, output }) = from.first_mut()
            else {
                break;
            };
            output.set_rows(input.rows());
            let (rows, stride) = (input.rows(), output.stride());
            let place = output.padded_mut();
            if layer.outputs <= NARROW {
                multiply_narrow(self.isa, input.padded(), backward, bias, place, layer.outputs, stride);
            } else {
                let a = Factor::Rows { data: input.padded(), stride: input.stride() };
                multiply(self.isa, a, forward, InitialSum::Row(bias), place, rows, layer.inputs, stride);
            }
            trace::record(|| format!("layer {i} product"), place);
            activation.forward(self.isa, place);
            trace::record(|| format!("layer {i} activation"), place);
        }
        self.output().unwrap_or(input)
    }

    /// Writes the gradient of the inputs of a single linear layer, given that of its outputs: `rows` rows with their
    /// padding.
    pub(crate) fn layer_input_gradient(&self, output_gradient: &[f32], rows: usize, to: &mut Matrix) {
        let Some(LayerBuffers { layer, backward, .. }) = self.layers.first() else { return };
        let a = Factor::Rows { data: output_gradient, stride: padded(layer.outputs) };
        to.set_rows(rows);
        let stride = to.stride();
        multiply(self.isa, a, backward, InitialSum::Zero, to.padded_mut(), rows, layer.outputs, stride);
    }

    /// What the last [`Mlp::forward`] gave; `None` without layers.
    pub fn output(&self) -> Option<&Matrix> {
        self.layers.last().map(|stage| &stage.output)
    }

    /// Adds the gradient of a loss to `flat`, given that of the outputs of the last forward pass over the
    /// same `input`; writes that of the inputs into `input_gradient` if given.
    pub fn backward(
        &mut self,
        input: &Matrix,
        output_gradient: &Matrix,
        flat: &mut [f32],
        input_gradient: Option<&mut Matrix>,
    ) {
        self.backward_through(input, output_gradient, Some(flat), input_gradient);
    }

    /// Writes the gradient of the inputs of the last forward pass over `input`, given that of the outputs; that of
    /// the parameters is not computed.
    pub fn input_gradient(&mut self, input: &Matrix, output_gradient: &Matrix, to: &mut Matrix) {
        self.backward_through(input, output_gradient, None, Some(to));
    }

    fn backward_through(
        &mut self,
        input: &Matrix,
        output_gradient: &Matrix,
        mut flat: Option<&mut [f32]>,
        input_gradient: Option<&mut Matrix>,
    ) {
        let (isa, rows) = (self.isa, input.rows());
        let [gradient, next] = &mut self.gradients;
        gradient.clear();
        gradient.extend_from_slice(output_gradient.padded());
        for i in (0..self.layers.len()).rev() {
            let LayerBuffers { layer, activation, backward, output, .. } = &self.layers[i];
            let (out_stride, in_stride) = (padded(layer.outputs), padded(layer.inputs));
            activation.backward(isa, gradient, output.padded());
            trace::record(|| format!("layer {i} gradient of the product"), gradient);
            let input = if i == 0 { input } else { &self.layers[i - 1].output };
            if let Some(flat) = flat.as_deref_mut() {
                self.biases.clear();
                self.biases.resize(out_stride, 0.0);
                add_rows(isa, gradient, &mut self.biases);
                let place = &mut flat[layer.bias..layer.bias + layer.outputs];
                place.iter_mut().zip(&self.biases).for_each(|(to, from)| *to += from);
                weight_gradient(isa, layer, gradient, input, &mut self.weights, flat);
                let weights = layer.weight..layer.weight + layer.inputs * layer.outputs;
                trace::record(|| format!("layer {i} gradient of the weights"), &flat[weights]);
                let biases = layer.bias..layer.bias + layer.outputs;
                trace::record(|| format!("layer {i} gradient of the biases"), &flat[biases]);
            }
            if i == 0 && input_gradient.is_none() {
                break;
            }
            next.resize(rows * in_stride, 0.0);
            let a = Factor::Rows { data: gradient, stride: out_stride };
            multiply(isa, a, backward, InitialSum::Zero, next, rows, layer.outputs, in_stride);
            std::mem::swap(gradient, next);
        }
        if let Some(to) = input_gradient {
            to.set_rows(rows);
            let place = to.padded_mut();
            let len = place.len();
            place.copy_from_slice(&gradient[..len]);
        }
    }
}

/// Adds `sum over rows of gradient^T input` to the weight's place in `flat`; vectors run along the longer
/// side of the weight.
fn weight_gradient(
    isa: Isa,
    layer: &Layer,
    gradient: &[f32],
    input: &Matrix,
    scratch: &mut Vec<f32>,
    flat: &mut [f32],
) {
    let (rows, inputs, outputs) = (input.rows(), layer.inputs, layer.outputs);
    let (out_stride, in_stride) = (padded(outputs), padded(inputs));
    let place = &mut flat[layer.weight..layer.weight + inputs * outputs];
    if outputs * in_stride <= inputs * out_stride {
        let a = Factor::Columns { data: gradient, stride: out_stride };
        if inputs == in_stride {
            // Rows without padding: the sums continue from what is there.
            multiply(isa, a, input.padded(), InitialSum::Sum, place, outputs, rows, in_stride);
            return;
        }
        scratch.resize(outputs * in_stride, 0.0);
        multiply(isa, a, input.padded(), InitialSum::Zero, scratch, outputs, rows, in_stride);
        for (to, from) in place.chunks_exact_mut(inputs.max(1)).zip(scratch.chunks_exact(in_stride)) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        }
    } else {
        scratch.resize(inputs * out_stride, 0.0);
        let a = Factor::Columns { data: input.padded(), stride: in_stride };
        multiply(isa, a, gradient, InitialSum::Zero, scratch, inputs, rows, out_stride);
        for (i, to) in place.iter_mut().enumerate() {
            *to += scratch[i % inputs * out_stride + i / inputs];
        }
    }
}

/// Makes a vector orthogonal to those of `basis`, which are orthonormal and as long as it, and of length 1.
/// `false` if almost nothing of it is left, so that it has no direction of its own.
///
/// Modified Gram-Schmidt, a second time where much of the vector was in the span of the others and what is
/// left is inaccurate, by the criterion of Daniel, Gragg, Kaufman and Stewart ("Reorthogonalization and
/// stable algorithms for updating the Gram-Schmidt QR factorization", 1976).
pub fn orthonormal(basis: &[Vec<f64>], vector: &mut [f64]) -> bool {
    let mut length = dot(vector, vector).sqrt();
    for _ in 0..2 {
        for other in basis {
            let along = dot(vector, other);
            vector.iter_mut().zip(other).for_each(|(a, b)| *a -= along * b);
        }
        let before = std::mem::replace(&mut length, dot(vector, vector).sqrt());
        if length > before * std::f64::consts::FRAC_1_SQRT_2 {
            break;
        }
    }
    vector.iter_mut().for_each(|a| *a /= length);
    length > 1e-6
}

/// The sum of the products, in eight sums side by side: one waits for each addition before the next.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (whole, rest) = a.as_chunks::<8>();
    let (others, other_rest) = b.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for (a, b) in whole.iter().zip(others) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f64>() + rest.iter().zip(other_rest).map(|(a, b)| a * b).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependent_vectors_are_rejected() {
        let mut basis: Vec<Vec<f64>> = Vec::new();
        for start in [[1.0, 2.0, 3.0], [3.0, -1.0, 0.5], [0.0, 1.0, 1e-3]] {
            let mut vector = start.to_vec();
            assert!(orthonormal(&basis, &mut vector));
            basis.push(vector);
        }
        for (i, a) in basis.iter().enumerate() {
            for (j, b) in basis.iter().enumerate() {
                let dot: f64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
                assert!((dot - f64::from(u8::from(i == j))).abs() < 1e-12, "{i} {j}: {dot}");
            }
        }
        assert!(!orthonormal(&basis, &mut [1.0, 1.0, 1.0]));
        assert!(!orthonormal(&[], &mut [0.0; 3]));
    }
}
