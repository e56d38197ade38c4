//! Random numbers for tests that kill processes: rounds (`RANKDECK_ORPHAN_ROUNDS`) and seed
//! (`RANKDECK_ORPHAN_SEED`).

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// SplitMix64.
pub struct Random(u64);

impl Random {
    /// Creates a generator for a kind of kill; prints the seed.
    pub fn new(kind: u64) -> Random {
        let seed = number("RANKDECK_ORPHAN_SEED", u64::from(std::process::id()));
        println!("seed {seed}");
        Random(seed ^ (kind << 32))
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

/// Returns the number of kills of each kind.
pub fn rounds() -> u64 {
    number("RANKDECK_ORPHAN_ROUNDS", 2)
}
