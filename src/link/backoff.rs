//! How long to wait before the next attempt. Pure.

use std::time::Duration;

/// The first wait.
pub const FIRST: Duration = Duration::from_millis(500);
/// The longest wait.
pub const LONGEST: Duration = Duration::from_secs(5);
/// A connection that lived this long was a good one: its end begins a new series.
pub const STEADY: Duration = Duration::from_secs(10);

/// The wait after `failures` failures in a row (from 1): half a second, doubling to five, less up to a fifth
/// by `random` (0.0..1.0), so that many links that broke together do not return together.
pub fn delay(failures: u32, random: f64) -> Duration {
    let doubled = FIRST.saturating_mul(1 << failures.saturating_sub(1).min(8));
    doubled.min(LONGEST).mul_f64(1.0 - 0.2 * random.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_limit_and_are_spread_below_it() {
        let plain: Vec<u128> = (1..=6).map(|failures| delay(failures, 0.0).as_millis()).collect();
        assert_eq!(plain, [500, 1000, 2000, 4000, 5000, 5000]);
        assert_eq!(delay(1, 1.0).as_millis(), 400);
        assert_eq!(delay(u32::MAX, 0.0), LONGEST);
    }
}
