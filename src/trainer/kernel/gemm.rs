//! Matrix products of the sizes that small networks have.
//!
//! `C[m, n] = start + sum over k of A[m, k] * B[k, n]`, B and C row by row with rows of whole [`LANES`], A with any two strides, so that one kernel
//! serves the forward pass (A = inputs, B = transposed weights), the gradient of the inputs (B = weights) and the gradient of the weights
//! (A = transposed output gradients, B = inputs).
//!
//! Invariants:
//! - GEMM-1: every element is one chain of fused multiply-adds over ascending k. Its bits depend on neither the road, nor the tile, nor the
//!   number of rows: a batch gives what its rows give one by one.

use super::road::on_every_road;

/// Rows of B and C are padded with zeros to a multiple of this: one AVX-512 register.
pub const LANES: usize = 16;

/// Rounds up to whole [`LANES`].
pub const fn padded(width: usize) -> usize {
    width.next_multiple_of(LANES)
}

/// Depth of a block: as much of B as the first-level cache holds beside A.
const DEPTH: usize = 256;

/// What the sums start from.
#[derive(Debug, Clone, Copy)]
pub enum Start<'a> {
    /// 0.
    Zero,
    /// The same row, `[n]`, for every row of C: a bias.
    Row(&'a [f32]),
    /// What C holds.
    Sum,
}

/// A, read as `data[row * row_stride + column * column_stride]`.
#[derive(Debug, Clone, Copy)]
pub struct Strided<'a> {
    /// Its elements.
    pub data: &'a [f32],
    /// Distance between rows.
    pub row_stride: usize,
    /// Distance between columns.
    pub column_stride: usize,
}

on_every_road! {
    /// `c = start + a b`: `c` is `[m][n]`, `b` is `[depth][n]`, `n` a multiple of [`LANES`].
    pub fn multiply(a: Strided<'_>, b: &[f32], start: Start<'_>, c: &mut [f32], m: usize, depth: usize, n: usize) {
        debug_assert!(n.is_multiple_of(LANES) && b.len() >= depth * n && c.len() >= m * n);
        let mut from = 0;
        loop {
            let to = depth.min(from + DEPTH);
            let start = if from == 0 { start } else { Start::Sum };
            block(a, b, start, c, m, from..to, n);
            from = to;
            if from >= depth {
                break;
            }
        }
    }
}

#[inline(always)]
fn block(
    a: Strided<'_>,
    b: &[f32],
    start: Start<'_>,
    c: &mut [f32],
    m: usize,
    depth: std::ops::Range<usize>,
    n: usize,
) {
    let mut column = 0;
    while column < n {
        let wide = n - column >= 2 * LANES;
        let mut row = 0;
        while row < m {
            let place = Place { row, column, n };
            row += match (wide, m - row) {
                (true, 4..) => tile::<4, { 2 * LANES }>(a, b, start, c, &depth, place),
                (true, 2..) => tile::<2, { 2 * LANES }>(a, b, start, c, &depth, place),
                (true, _) => tile::<1, { 2 * LANES }>(a, b, start, c, &depth, place),
                (false, 8..) => tile::<8, LANES>(a, b, start, c, &depth, place),
                (false, 4..) => tile::<4, LANES>(a, b, start, c, &depth, place),
                (false, _) => tile::<1, LANES>(a, b, start, c, &depth, place),
            };
        }
        column += if wide { 2 * LANES } else { LANES };
    }
}

#[derive(Clone, Copy)]
struct Place {
    row: usize,
    column: usize,
    n: usize,
}

/// `R` rows and `C` columns of the result, held in registers; returns `R`.
#[inline(always)]
fn tile<const R: usize, const C: usize>(
    a: Strided<'_>,
    b: &[f32],
    start: Start<'_>,
    c: &mut [f32],
    depth: &std::ops::Range<usize>,
    Place { row, column, n }: Place,
) -> usize {
    let mut sums = [[0.0_f32; C]; R];
    for (r, sums) in sums.iter_mut().enumerate() {
        let at = (row + r) * n + column;
        match start {
            Start::Zero => {}
            Start::Row(init) => sums.copy_from_slice(&init[column..column + C]),
            Start::Sum => sums.copy_from_slice(&c[at..at + C]),
        }
    }
    let count = depth.len();
    // One slice per row of A, cut to what is read.
    let lines: [&[f32]; R] = std::array::from_fn(|r| {
        let first = (row + r) * a.row_stride + depth.start * a.column_stride;
        let len = count.saturating_sub(1) * a.column_stride + usize::from(count > 0);
        a.data.get(first..first + len).unwrap_or_default()
    });
    let b = &b[depth.start * n..depth.end * n];
    for (k, line) in b.chunks_exact(n).enumerate() {
        let line: &[f32; C] = line[column..column + C].first_chunk().unwrap_or(&[0.0; C]);
        for r in 0..R {
            let scale = lines[r][k * a.column_stride];
            for j in 0..C {
                sums[r][j] = scale.mul_add(line[j], sums[r][j]);
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        c[(row + r) * n + column..(row + r) * n + column + C].copy_from_slice(sums);
    }
    R
}

on_every_road! {
    /// Adds every column's sum over the rows of `values` (`[rows][n]`) to `sums` (`[n]`), row after row.
    pub fn add_rows(values: &[f32], sums: &mut [f32]) {
        for row in values.chunks_exact(sums.len().max(1)) {
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::road::Road;
    use super::*;
    use crate::trainer::seeds::{Purpose, Seeds};

    /// GEMM-1.
    #[test]
    fn gemm_1_every_element_is_one_chain_on_every_road() {
        let mut random = Seeds::new(3).generator(Purpose::Model, 0, 0);
        for (m, depth, n) in [(1, 1, 16), (7, 5, 32), (13, 64, 48), (4, 600, 16), (9, 300, 80), (3, 0, 16)] {
            for transposed in [false, true] {
                let mut draw = |len: usize| (0..len).map(|_| random.normal() as f32).collect::<Vec<_>>();
                let (a, b, bias, old) = (draw(m * depth), draw(depth * n), draw(n), draw(m * n));
                let (row_stride, column_stride) = if transposed { (1, m) } else { (depth, 1) };
                let a = Strided { data: &a, row_stride, column_stride };
                for (start, first) in [
                    (Start::Zero, &(|_, _| 0.0_f32) as &dyn Fn(usize, usize) -> f32),
                    (Start::Row(&bias), &|_, column| bias[column]),
                    (Start::Sum, &|row, column| old[row * n + column]),
                ] {
                    let wanted: Vec<u32> = (0..m * n)
                        .map(|i| {
                            let (row, column) = (i / n, i % n);
                            (0..depth)
                                .fold(first(row, column), |sum, k| {
                                    a.data[row * row_stride + k * column_stride]
                                        .mul_add(b[k * n + column], sum)
                                })
                                .to_bits()
                        })
                        .collect();
                    for road in Road::all() {
                        let mut c = old.clone();
                        multiply(road, a, &b, start, &mut c, m, depth, n);
                        let got: Vec<u32> = c.iter().map(|x| x.to_bits()).collect();
                        assert_eq!(got, wanted, "{} {m} {depth} {n}", road.name());
                    }
                }
            }
        }
    }

    #[test]
    fn rows_are_added_up() {
        for road in Road::all() {
            let mut sums = vec![1.0; 16];
            let values: Vec<f32> = (0..48).map(|i| i as f32).collect();
            add_rows(road, &values, &mut sums);
            assert_eq!(sums[3], 1.0 + 3.0 + 19.0 + 35.0);
        }
    }
}
