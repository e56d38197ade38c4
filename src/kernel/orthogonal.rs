//! Orthogonal initial weights.

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
