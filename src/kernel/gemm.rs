//! Matrix products for the sizes of small networks, and [`Matrix`]: a batch of rows, padded so that kernels need no
//! edge cases.
//!
//! `C[m, n] = start + sum over k of A[m, k] * B[k, n]`, B and C row by row with rows of whole [`SIMD_WIDTH`],
//! A by rows or by columns, so that one kernel serves the forward pass (A = inputs, B = transposed weights),
//! the gradient of the inputs (B = weights) and the gradient of the weights (A = transposed output gradients,
//! B = inputs).
//!
//! Invariants:
//! - GEMM-1: every other element is one chain of fused multiply-adds over ascending k. Its bits depend neither on
//!   the instruction set nor on the tile nor on the number of rows: a batch gives what its rows give one by
//!   one.
//! - GEMM-2: with few outputs ([`NARROW`]), every element is [`SIMD_WIDTH`] chains, of every [`SIMD_WIDTH`]-th k,
//!   added as a tree of fixed shape. The same holds for its bits.

use super::isa::{Isa, IsaKind, on_every_isa};

/// Rows of B and C are padded with zeros to a multiple of this: one AVX-512 register.
pub(crate) const SIMD_WIDTH: usize = 16;

/// Rounds up to whole [`SIMD_WIDTH`].
pub const fn padded(width: usize) -> usize {
    width.next_multiple_of(SIMD_WIDTH)
}

/// Depth of a block: as much of B as fits into the first-level cache with A.
const DEPTH: usize = 256;

/// What the sums start from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum InitialSum<'a> {
    /// The result replaces what the output holds.
    Zero,
    /// The same row, `[n]`, for every row of C: a bias.
    Row(&'a [f32]),
    /// What C holds.
    Sum,
}

/// The left factor of a product, which is not copied.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Factor<'a> {
    /// Row by row: element (row, k) is `data[row * stride + k]`.
    Rows {
        /// The elements, row by row.
        data: &'a [f32],
        /// Distance between rows.
        stride: usize,
    },
    /// The transpose of what is stored: element (row, k) is `data[k * stride + row]`.
    Columns {
        /// The elements, column by column.
        data: &'a [f32],
        /// Distance between columns; not less than the number of rows.
        stride: usize,
    },
}

/// `c = start + a b`: `c` is `[m][n]`, `b` is `[depth][n]`, `n` a multiple of [`SIMD_WIDTH`].
#[allow(clippy::too_many_arguments, reason = "plain data for an inner loop")]
pub fn multiply(
    isa: Isa,
    a: Factor<'_>,
    b: &[f32],
    start: InitialSum<'_>,
    c: &mut [f32],
    m: usize,
    depth: usize,
    n: usize,
) {
    debug_assert!(n.is_multiple_of(SIMD_WIDTH) && b.len() >= depth * n && c.len() >= m * n);
    // As many sums in flight as there are registers for.
    match isa.kind() {
        IsaKind::Avx512 => by_eight(isa, a, b, start, c, m, depth, n),
        _ => by_four(isa, a, b, start, c, m, depth, n),
    }
}

on_every_isa! {
    fn by_eight(a: Factor<'_>, b: &[f32], start: InitialSum<'_>, c: &mut [f32], m: usize, depth: usize, n: usize) {
        blocks::<8, { 2 * SIMD_WIDTH }>(a, b, start, c, m, depth, n);
    }
}

on_every_isa! {
    fn by_four(a: Factor<'_>, b: &[f32], start: InitialSum<'_>, c: &mut [f32], m: usize, depth: usize, n: usize) {
        blocks::<4, SIMD_WIDTH>(a, b, start, c, m, depth, n);
    }
}

/// Most outputs for which [`multiply_narrow`] takes less work than whole vectors of outputs.
pub(crate) const NARROW: usize = 4;

on_every_isa! {
    /// `c = bias + a b` for at most [`NARROW`] columns: vectors run along k. `a` is `[rows][width]` and `b` is
    /// `[columns][width]`, `width` a multiple of [`SIMD_WIDTH`] with zeros behind the depth; rows of `c` are `n`
    /// apart, and only their first `columns` are written.
    pub(crate) fn multiply_narrow(a: &[f32], b: &[f32], bias: &[f32], c: &mut [f32], columns: usize, n: usize) {
        let width = b.len() / columns.max(1);
        for (own, to) in a.chunks_exact(width.max(1)).zip(c.chunks_exact_mut(n)) {
            for ((line, bias), to) in b.chunks_exact(width.max(1)).zip(bias).zip(to) {
                let mut sums = [0.0_f32; SIMD_WIDTH];
                let (values, _) = own.as_chunks::<SIMD_WIDTH>();
                let (weights, _) = line.as_chunks::<SIMD_WIDTH>();
                for (values, weights) in values.iter().zip(weights) {
                    for lane in 0..SIMD_WIDTH {
                        sums[lane] = values[lane].mul_add(weights[lane], sums[lane]);
                    }
                }
                *to = bias + tree(sums);
            }
        }
    }
}

/// The sum of the lanes: halves are added until one is left.
#[inline(always)]
fn tree(sums: [f32; SIMD_WIDTH]) -> f32 {
    let mut half = SIMD_WIDTH / 2;
    let mut sums = sums;
    while half > 0 {
        for lane in 0..half {
            sums[lane] += sums[lane + half];
        }
        half /= 2;
    }
    sums[0]
}

/// Tiles of `R` rows and `C` columns, smaller ones at the edges; panels of B of up to [`DEPTH`] rows stay in
/// the first-level cache.
#[inline(always)]
fn blocks<const R: usize, const C: usize>(
    a: Factor<'_>,
    b: &[f32],
    start: InitialSum<'_>,
    c: &mut [f32],
    m: usize,
    depth: usize,
    n: usize,
) {
    let mut from = 0;
    loop {
        let to = depth.min(from + DEPTH);
        let start = if from == 0 { start } else { InitialSum::Sum };
        let b = &b[from * n..to * n];
        let mut column = 0;
        while column < n {
            let wide = C > SIMD_WIDTH && n - column >= C;
            let mut row = 0;
            while row < m {
                let place = TilePlace { row, column, n, from, to };
                row += match (wide, m - row) {
                    (true, left) if left >= R => tile::<R, C>(a, b, start, c, place),
                    (true, 4..) => tile::<4, C>(a, b, start, c, place),
                    (true, _) => tile::<1, C>(a, b, start, c, place),
                    (false, left) if left >= R => tile::<R, SIMD_WIDTH>(a, b, start, c, place),
                    (false, 4..) => tile::<4, SIMD_WIDTH>(a, b, start, c, place),
                    (false, _) => tile::<1, SIMD_WIDTH>(a, b, start, c, place),
                };
            }
            column += if wide { C } else { SIMD_WIDTH };
        }
        from = to;
        if from >= depth {
            break;
        }
    }
}

/// Where a tile is in C, the width of B and C, and the part of the depth that `b` has.
#[derive(Clone, Copy)]
struct TilePlace {
    row: usize,
    column: usize,
    n: usize,
    from: usize,
    to: usize,
}

/// `R` rows and `C` columns of the result, held in registers; returns `R`.
#[inline(always)]
fn tile<const R: usize, const C: usize>(
    a: Factor<'_>,
    b: &[f32],
    start: InitialSum<'_>,
    c: &mut [f32],
    TilePlace { row, column, n, from, to }: TilePlace,
) -> usize {
    // One check here instead of one per row.
    assert!(column + C <= n, "a tile fits into its row");
    let mut sums = [[0.0_f32; C]; R];
    for (r, sums) in sums.iter_mut().enumerate() {
        let at = (row + r) * n + column;
        match start {
            InitialSum::Zero => {}
            InitialSum::Row(init) => sums.copy_from_slice(&init[column..column + C]),
            InitialSum::Sum => sums.copy_from_slice(&c[at..at + C]),
        }
    }
    let lines = b.chunks_exact(n);
    match a {
        Factor::Rows { data, stride } => {
            let count = to - from;
            let own: [&[f32]; R] = std::array::from_fn(|r| &data[(row + r) * stride + from..][..count]);
            for (k, line) in (0..count).zip(lines) {
                add::<R, C>(&mut sums, std::array::from_fn(|r| own[r][k]), line, column);
            }
        }
        Factor::Columns { data, stride } => {
            let own = data[from * stride..].chunks(stride);
            for (own, line) in own.zip(lines) {
                let scales = own[row..].first_chunk().copied().unwrap_or([0.0; R]);
                add::<R, C>(&mut sums, scales, line, column);
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        c[(row + r) * n + column..(row + r) * n + column + C].copy_from_slice(sums);
    }
    R
}

#[inline(always)]
fn add<const R: usize, const C: usize>(
    sums: &mut [[f32; C]; R],
    scales: [f32; R],
    line: &[f32],
    column: usize,
) {
    let mut values = [0.0; C];
    values.copy_from_slice(&line[column..column + C]);
    for (sums, scale) in sums.iter_mut().zip(scales) {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum = scale.mul_add(value, *sum);
        }
    }
}

on_every_isa! {
    /// Adds every column's sum over the rows of `values` (`[rows][n]`) to `sums` (`[n]`), row after row.
    pub(crate) fn add_rows(values: &[f32], sums: &mut [f32]) {
        for row in values.chunks_exact(sums.len().max(1)) {
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += value;
            }
        }
    }
}

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

    /// Copies `[rows][width]` numbers into the columns from `first` on, of all rows.
    pub fn copy_columns(&mut self, first: usize, width: usize, values: &[f32]) {
        self.set_rows(values.len().checked_div(width).unwrap_or(0));
        let rows = self.iter_mut().zip(values.chunks_exact(width.max(1)));
        rows.for_each(|(to, from)| to[first..first + width].copy_from_slice(from));
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
    use crate::seeds::{Purpose, Seeds};

    /// GEMM-1.
    #[test]
    fn gemm_1_every_element_is_one_chain_on_every_instruction_set() {
        let mut random = Seeds::new(3).generator(Purpose::Model, 0, 0);
        for (m, depth, n) in
            [(1, 1, 16), (7, 5, 32), (13, 64, 48), (4, 600, 16), (9, 300, 80), (23, 70, 96), (3, 0, 16)]
        {
            for transposed in [false, true] {
                let mut draw = |len: usize| (0..len).map(|_| random.normal() as f32).collect::<Vec<_>>();
                let (a, b, bias, old) = (draw(m * depth), draw(depth * n), draw(n), draw(m * n));
                let (row_stride, column_stride) = if transposed { (1, m) } else { (depth, 1) };
                let factor = match transposed {
                    true => Factor::Columns { data: &a, stride: m },
                    false => Factor::Rows { data: &a, stride: depth },
                };
                for (start, first) in [
                    (InitialSum::Zero, &(|_, _| 0.0_f32) as &dyn Fn(usize, usize) -> f32),
                    (InitialSum::Row(&bias), &|_, column| bias[column]),
                    (InitialSum::Sum, &|row, column| old[row * n + column]),
                ] {
                    let expected: Vec<u32> = (0..m * n)
                        .map(|i| {
                            let (row, column) = (i / n, i % n);
                            (0..depth)
                                .fold(first(row, column), |sum, k| {
                                    a[row * row_stride + k * column_stride].mul_add(b[k * n + column], sum)
                                })
                                .to_bits()
                        })
                        .collect();
                    for isa in Isa::all() {
                        let mut c = old.clone();
                        multiply(isa, factor, &b, start, &mut c, m, depth, n);
                        let got: Vec<u32> = c.iter().map(|x| x.to_bits()).collect();
                        assert_eq!(got, expected, "{} {m} {depth} {n}", isa.name());
                    }
                }
            }
        }
    }

    /// GEMM-2.
    #[test]
    fn gemm_2_narrow_products_are_equal_on_every_instruction_set() {
        let mut random = Seeds::new(5).generator(Purpose::Model, 0, 0);
        for (rows, depth, columns) in [(1, 1, 1), (5, 16, 2), (9, 70, 3), (3, 200, 4), (0, 8, 1)] {
            let (mut a, mut b) = (Matrix::new(rows, depth), Matrix::new(columns, depth));
            for (matrix, count) in [(&mut a, rows), (&mut b, columns)] {
                let values: Vec<f32> = (0..count * depth).map(|_| random.normal() as f32).collect();
                matrix.copy_rows(&values);
            }
            let bias: Vec<f32> = (0..columns).map(|_| random.normal() as f32).collect();
            let mut first: Option<Vec<u32>> = None;
            for isa in Isa::all() {
                let mut c = vec![7.0; rows * 16];
                multiply_narrow(isa, a.padded(), b.padded(), &bias, &mut c, columns, 16);
                for (row, values) in a.iter().zip(c.chunks_exact(16)) {
                    for (column, (weights, got)) in b.iter().zip(values).enumerate() {
                        let products = row.iter().zip(weights).map(|(x, w)| f64::from(*x) * f64::from(*w));
                        let expected = f64::from(bias[column]) + products.sum::<f64>();
                        assert!((f64::from(*got) - expected).abs() < 1e-4, "{got} {expected}");
                    }
                    assert_eq!(values[columns..], [7.0; 16][columns..]);
                }
                let bits: Vec<u32> = c.iter().map(|x| x.to_bits()).collect();
                assert_eq!(*first.get_or_insert_with(|| bits.clone()), bits, "{}", isa.name());
            }
        }
    }

    #[test]
    fn rows_are_added_up() {
        for isa in Isa::all() {
            let mut sums = vec![1.0; 16];
            let values: Vec<f32> = (0..48).map(|i| i as f32).collect();
            add_rows(isa, &values, &mut sums);
            assert_eq!(sums[3], 1.0 + 3.0 + 19.0 + 35.0);
        }
    }

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
