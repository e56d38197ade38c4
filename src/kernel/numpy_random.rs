//! NumPy's default random generator, so that a seed means the same as in Gymnasium.
//!
//! `SeedSequence` (NEP 19; its mixing function follows M. O'Neill's `seed_seq` improvement) turns words into
//! a state, PCG64 (O'Neill 2014: 128-bit LCG, XSL-RR output) makes the numbers.
//!
//! Invariants:
//! - RNG-1: `Generator::from_words(words)` gives the doubles of `numpy.random.default_rng(words)`, bit by
//!   bit.
//! - RNG-2: the 32-bit words of an integer `n`, least significant first and without leading zeros, give those
//!   of `default_rng(n)`.

const POOL: usize = 4;
const MULTIPLIER: u128 = (2_549_297_995_355_413_924 << 64) | 4_865_540_595_714_422_341;

/// PCG64 with NumPy's seeding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generator {
    state: u128,
    increment: u128,
}

impl Generator {
    /// Seeded by 32-bit words, as `default_rng([w0, w1, ...])`; equal to `default_rng(n)` for `n = sum of w_i
    /// * 2^(32 i)` when the last word is not 0.
    pub fn from_words(words: &[u32]) -> Generator {
        let [a, b, c, d] = seed_state(words);
        let wide = |high: u64, low: u64| (u128::from(high) << 64) | u128::from(low);
        let increment = (wide(c, d) << 1) | 1;
        let mut generator = Generator { state: 0, increment };
        generator.advance();
        generator.state = generator.state.wrapping_add(wide(a, b));
        generator.advance();
        generator
    }

    fn advance(&mut self) {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.advance();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    /// The next double in [0, 1), 53 bits.
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }

    /// `uniform(low, high)`.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.next_f64()
    }

    /// An unbiased integer in `0..bound` (rejection on the largest multiple); not NumPy's stream of
    /// `integers`. 0 for `bound` 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 {
            return 0;
        }
        let limit = u64::MAX - (u64::MAX % bound + 1) % bound;
        loop {
            let bits = self.next_u64();
            if bits <= limit {
                return bits % bound;
            }
        }
    }

    /// A standard normal (Box and Muller, cosine half); not NumPy's stream of `standard_normal`.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.next_f64()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.next_f64()).cos()
    }

    /// Its whole state, for a checkpoint.
    pub fn to_state(&self) -> [u64; 4] {
        [(self.state >> 64) as u64, self.state as u64, (self.increment >> 64) as u64, self.increment as u64]
    }

    /// The generator with that state; an even increment, which no generator has, is made odd.
    pub fn from_state(words: [u64; 4]) -> Generator {
        let wide = |high: u64, low: u64| (u128::from(high) << 64) | u128::from(low);
        Generator { state: wide(words[0], words[1]), increment: wide(words[2], words[3]) | 1 }
    }
}

/// `SeedSequence(words).generate_state(4, uint64)`.
fn seed_state(entropy: &[u32]) -> [u64; 4] {
    const INIT_A: u32 = 0x43b0_d7e5;
    const MULT_A: u32 = 0x931e_8875;
    const INIT_B: u32 = 0x8b51_f9dd;
    const MULT_B: u32 = 0x58f3_8ded;
    let mut constant = INIT_A;
    let mut hash = |mut value: u32| {
        value ^= constant;
        constant = constant.wrapping_mul(MULT_A);
        value = value.wrapping_mul(constant);
        value ^ (value >> 16)
    };
    let mix = |x: u32, y: u32| {
        let mixed = 0xca01_f9dd_u32.wrapping_mul(x).wrapping_sub(0x4973_f715_u32.wrapping_mul(y));
        mixed ^ (mixed >> 16)
    };
    let mut pool = [0; POOL];
    for (i, slot) in pool.iter_mut().enumerate() {
        *slot = hash(entropy.get(i).copied().unwrap_or(0));
    }
    for source in 0..POOL {
        for target in 0..POOL {
            if source != target {
                pool[target] = mix(pool[target], hash(pool[source]));
            }
        }
    }
    for word in entropy.iter().skip(POOL) {
        for slot in &mut pool {
            *slot = mix(*slot, hash(*word));
        }
    }
    let mut constant = INIT_B;
    let mut word = |i: usize| {
        let mut value = pool[i % POOL] ^ constant;
        constant = constant.wrapping_mul(MULT_B);
        value = value.wrapping_mul(constant);
        u64::from(value ^ (value >> 16))
    };
    std::array::from_fn(|i| {
        let low = word(2 * i);
        low | (word(2 * i + 1) << 32)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of an integer, least significant first, as NumPy cuts it: one zero word for 0, no leading zeros
    /// otherwise.
    fn int_words(value: u64) -> Vec<u32> {
        match (value as u32, (value >> 32) as u32) {
            (low, 0) => vec![low],
            (low, high) => vec![low, high],
        }
    }

    #[test]
    fn rng_2_integer_seed_gives_numpys_numbers() {
        // numpy 2.4.6: default_rng(s).random(2), as bits.
        let recorded = RECORDED_INT;
        for (seed, bits) in recorded {
            let mut generator = Generator::from_words(&int_words(seed));
            assert_eq!([generator.next_f64().to_bits(), generator.next_f64().to_bits()], bits, "seed {seed}");
        }
    }

    #[test]
    fn rng_1_list_seed_gives_numpys_numbers() {
        // numpy 2.4.6: default_rng([1, 2, 3, 4, 5, 6]).random(2), as bits.
        let mut generator = Generator::from_words(&[1, 2, 3, 4, 5, 6]);
        assert_eq!([generator.next_f64().to_bits(), generator.next_f64().to_bits()], RECORDED_LIST);
    }

    #[test]
    fn restored_state_continues_the_stream() {
        let mut generator = Generator::from_words(&[7]);
        generator.next_u64();
        let mut copy = Generator::from_state(generator.to_state());
        assert_eq!(
            (0..5).map(|_| copy.next_u64()).collect::<Vec<_>>(),
            (0..5).map(|_| generator.next_u64()).collect::<Vec<_>>()
        );
    }

    #[test]
    fn below_covers_its_range_evenly() {
        let mut generator = Generator::from_words(&[3]);
        let mut seen = [0_u32; 7];
        (0..70_000).for_each(|_| seen[generator.below(7) as usize] += 1);
        assert!(seen.iter().all(|n| (9_500..10_500).contains(n)), "{seen:?}");
        assert_eq!(generator.below(1), 0);
    }

    #[test]
    fn normals_have_mean_0_and_variance_1() {
        let mut generator = Generator::from_words(&[5]);
        let values: Vec<f64> = (0..100_000).map(|_| generator.normal()).collect();
        let mean = values.iter().sum::<f64>() / 1e5;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
    }

    const RECORDED_INT: [(u64, [u64; 2]); 4] = [
        (0, [0x3fe461fd79fb3850, 0x3fd1442f7e20b674]),
        (1, [0x3fe060d7be6f245c, 0x3fee6a32d7782a55]),
        (42, [0x3fe8c43f79a2db24, 0x3fdc16959869e47e]),
        (9223372036854775813, [0x3fdebc23a2747c50, 0x3feceefd01860385]),
    ];
    const RECORDED_LIST: [u64; 2] = [0x3fe3e5d36f6dc4ca, 0x3fbe9114dcb6eb48];
}
