//! Random numbers for tests that kill: how many (`RANKDECK_ORPHAN_ROUNDS`) and which
//! (`RANKDECK_ORPHAN_SEED`).

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// SplitMix64: enough to pick a time and a victim.
pub struct Random(u64);

impl Random {
    /// For one kind of kill; prints the seed.
    pub fn new(kind: u64) -> Random {
        let seed = number("RANKDECK_ORPHAN_SEED", u64::from(std::process::id()));
        println!("seed {seed}");
        Random(seed ^ (kind << 32))
    }

    /// A number from 0 to below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

/// Kills of each kind.
pub fn rounds() -> u64 {
    number("RANKDECK_ORPHAN_ROUNDS", 2)
}
