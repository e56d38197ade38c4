//! The only source of chance in a simulated world: the same seed gives the same run.

/// A well-mixed number for `key` (splitmix64's finaliser).
pub fn mix(seed: u64, key: u64) -> u64 {
    let mut z =
        seed.wrapping_add(key.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number in 0..1 for `key`.
pub fn chance(seed: u64, key: u64) -> f64 {
    (mix(seed, key) >> 11) as f64 / (1u64 << 53) as f64
}
