//! Random numbers from the standard library's hash seeds.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// Returns a random number in [0, 1).
pub fn fraction() -> f64 {
    let bits = RandomState::new().build_hasher().finish();
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fraction_is_below_one() {
        assert!((0..100).all(|_| (0.0..1.0).contains(&fraction())));
    }
}
