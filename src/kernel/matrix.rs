//! A batch of rows, padded so that kernels need no edge cases.

use super::gemm::{SIMD_WIDTH, padded};

/// Up to `capacity` rows of `columns` numbers; each row is padded with zeros to whole [`SIMD_WIDTH`], and
/// stays so.
#[derive(Debug, Clone)]
pub struct Matrix {
    rows: usize,
    columns: usize,
    stride: usize,
    data: Vec<f32>,
}

impl Matrix {
    /// No rows yet; memory for `capacity`.
    pub fn new(capacity: usize, columns: usize) -> Matrix {
        let stride = padded(columns.max(1));
        Matrix { rows: 0, columns, stride, data: vec![0.0; capacity * stride] }
    }

    /// Rows in use.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers per row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Distance between rows: a multiple of [`SIMD_WIDTH`].
    pub fn stride(&self) -> usize {
        debug_assert!(self.stride.is_multiple_of(SIMD_WIDTH));
        self.stride
    }

    /// Uses the first `rows` rows, whatever they hold; memory grows if needed.
    pub(crate) fn set_rows(&mut self, rows: usize) {
        if rows * self.stride > self.data.len() {
            self.data.resize(rows * self.stride, 0.0);
        }
        self.rows = rows;
    }

    /// A row without its padding.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.stride..row * self.stride + self.columns]
    }

    /// A row without its padding.
    pub(crate) fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.data[row * self.stride..row * self.stride + self.columns]
    }

    /// All rows in use, without padding.
    pub fn iter(&self) -> impl Iterator<Item = &[f32]> {
        self.padded().chunks_exact(self.stride).map(|row| &row[..self.columns])
    }

    /// All rows in use, without padding.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut [f32]> {
        let columns = self.columns;
        let stride = self.stride;
        self.padded_mut().chunks_exact_mut(stride).map(move |row| &mut row[..columns])
    }

    /// Copies rows from `[rows][columns]` numbers without gaps.
    pub fn copy_rows(&mut self, values: &[f32]) {
        self.set_rows(values.len().checked_div(self.columns).unwrap_or(0));
        let columns = self.columns.max(1);
        self.iter_mut().zip(values.chunks_exact(columns)).for_each(|(to, from)| to.copy_from_slice(from));
    }

    /// Adds another one of the same shape.
    pub fn add(&mut self, other: &Matrix) {
        self.padded_mut().iter_mut().zip(other.padded()).for_each(|(to, from)| *to += from);
    }

    /// Rows in use with their padding.
    pub(super) fn padded(&self) -> &[f32] {
        &self.data[..self.rows * self.stride]
    }

    /// Rows in use with their padding, which must stay 0.
    pub(super) fn padded_mut(&mut self) -> &mut [f32] {
        &mut self.data[..self.rows * self.stride]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrix_rows_round_trip_and_padding_stays_zero() {
        let mut matrix = Matrix::new(1, 3);
        matrix.copy_rows(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!((matrix.rows(), matrix.stride()), (2, 16));
        assert_eq!((matrix.row(0), matrix.row(1)), ([1.0, 2.0, 3.0].as_slice(), [4.0, 5.0, 6.0].as_slice()));
        assert_eq!(matrix.padded().iter().sum::<f32>(), 21.0);
        matrix.row_mut(1)[0] = 9.0;
        assert_eq!(matrix.iter().map(|row| row[0]).collect::<Vec<_>>(), [1.0, 9.0]);
        matrix.set_rows(1);
        assert_eq!(matrix.iter().count(), 1);
    }
}
