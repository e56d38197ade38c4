//! Orthonormal vectors, for weights to begin with.

/// Makes a vector orthogonal to those of `basis`, which are orthonormal and as long as it, and of length 1
/// (Gram and Schmidt, twice for accuracy). `false` where next to nothing of it is left, which is no direction
/// of its own.
pub fn orthonormal(basis: &[Vec<f64>], vector: &mut [f64]) -> bool {
    for _ in 0..2 {
        for other in basis {
            let dot: f64 = vector.iter().zip(other).map(|(a, b)| a * b).sum();
            vector.iter_mut().zip(other).for_each(|(a, b)| *a -= dot * b);
        }
    }
    let norm = vector.iter().map(|a| a * a).sum::<f64>().sqrt();
    vector.iter_mut().for_each(|a| *a /= norm);
    norm > 1e-6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_become_orthonormal_and_what_the_basis_spans_is_refused() {
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
