//! Chance without a generator of its own: the standard library's hash seeds.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// A random number from 0 to 1, without 1.
pub fn fraction() -> f64 {
    let bits = RandomState::new().build_hasher().finish();
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_stay_below_one() {
        assert!((0..100).all(|_| (0.0..1.0).contains(&fraction())));
    }
}
