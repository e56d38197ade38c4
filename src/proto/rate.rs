//! How fast a counter grows: the one estimator of steps per second.
//!
//! Steps and seconds are summed up, and both sums decay with time; the rate is their quotient, as in tqdm
//! (`_ema_dn() / _ema_dt()` in `tqdm/std.py`). A mean of quotients, in contrast, is dominated by two values
//! that come together. The decay is the backward exponential one of Cormode, Shkapenyuk, Srivastava and Xu,
//! "Forward Decay: A Practical Time Decay Model for Streaming Systems", ICDE 2009.

use serde::{Deserialize, Serialize};

/// Seconds after which a value weighs a third (1/e).
const DECAY_S: f64 = 3.0;
/// Seconds that must have been measured before there is a rate.
const LEAST_S: f64 = 1.0;
/// Longest time between two values that counts; a longer one is a clock that was set.
const LONGEST_S: f64 = 3600.0;

/// A rate of a counter over time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SmoothedRate {
    last: Option<(f64, u64)>,
    /// Decayed sum of steps.
    steps: f64,
    /// Decayed sum of seconds.
    seconds: f64,
    /// Seconds that were measured, without decay.
    measured: f64,
}

impl SmoothedRate {
    /// Takes `count` at `time` (seconds on any one clock) and returns the rate. Time that stands still or
    /// goes back, and counters that go back, do not make it jump. A counter at 0 has not begun: a resumed run
    /// does not begin there.
    pub fn update(&mut self, time: f64, count: u64) -> Option<f64> {
        if let Some((then, before)) = self.last {
            let elapsed = time - then;
            if elapsed == 0.0 {
                return self.get();
            }
            if elapsed > 0.0 && elapsed < LONGEST_S && count >= before && before > 0 {
                let keep = (-elapsed / DECAY_S).exp();
                self.steps = self.steps * keep + (count - before) as f64;
                self.seconds = self.seconds * keep + elapsed;
                self.measured += elapsed;
            }
        }
        self.last = Some((time, count));
        self.get()
    }

    /// Continues from a rate that was measured elsewhere.
    pub fn start_at(&mut self, time: f64, count: u64, rate: f64) {
        let (last, steps) = (Some((time, count)), rate * DECAY_S);
        *self = SmoothedRate { last, steps, seconds: DECAY_S, measured: self.measured.max(LEAST_S) };
    }

    /// The rate; `None` before enough was measured.
    pub fn get(&self) -> Option<f64> {
        let rate = self.steps / self.seconds;
        (self.measured >= LEAST_S && rate.is_finite()).then_some(rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_survives_clock_jumps() {
        let mut estimator = SmoothedRate::default();
        let mut rate = |time, count| estimator.update(time, count).map(f64::round);
        assert_eq!(rate(9.0, 0), None);
        assert_eq!(rate(10.0, 1_000_000), None, "a resumed run has not made them in this second");
        assert_eq!(rate(11.0, 1_000_500), Some(500.0));
        assert_eq!(rate(5.0, 1_000_600), Some(500.0), "the clock went back");
        assert_eq!(rate(6.0, 1_001_100), Some(500.0));
        assert_eq!(rate(9999.0, 1_001_200), Some(500.0), "the clock jumped");
        assert_eq!(rate(10_000.0, 3), Some(500.0), "the counter went back");
    }

    #[test]
    fn rate_is_unknown_before_a_second_is_measured() {
        let mut rate = SmoothedRate::default();
        rate.update(1.0, 1_000);
        assert_eq!(rate.update(1.000_3, 900_000), None);
        assert_eq!(rate.update(1.9, 900_500), None);
        assert!(rate.update(2.1, 900_600).is_some());
    }

    /// The second record of a pair comes 0.3 ms after the first.
    #[test]
    fn records_that_come_together_do_not_multiply_the_rate() {
        let mut rate = SmoothedRate::default();
        let (mut time, mut count) = (100.0, 1_000_000);
        for _ in 0..60 {
            rate.update(time, count);
            (time, count) = (time + 0.000_3, count + 500_000);
            let found = rate.update(time, count);
            (time, count) = (time + 0.999_7, count + 500_000);
            assert!(found.is_none_or(|rate| (0.5e6..1.6e6).contains(&rate)), "{found:?}");
        }
    }

    /// An agent that was starved for ten seconds sends what it owes at once.
    #[test]
    fn burst_after_a_pause_keeps_the_rate() {
        let mut rate = SmoothedRate::default();
        (0..20).for_each(|second| {
            rate.update(f64::from(second), 1_000 + 100 * second as u64);
        });
        for late in 0..10u64 {
            rate.update(29.0 + late as f64 * 0.000_3, 1_000 + 100 * (20 + late));
        }
        let found = rate.get().unwrap();
        assert!((95.0..105.0).contains(&found), "{found}");
    }

    #[test]
    fn rate_follows_a_change_of_speed() {
        let mut rate = SmoothedRate::default();
        (0..20).for_each(|second| {
            rate.update(f64::from(second), 1 + 100 * second as u64);
        });
        let found = (20..35).fold(0.0, |_, second| rate.update(f64::from(second), 1_901).unwrap_or(0.0));
        assert!(found < 2.0, "a stall is not a speed: {found}");
    }

    #[test]
    fn rate_continues_from_one_that_was_measured_elsewhere() {
        let mut rate = SmoothedRate::default();
        rate.start_at(100.0, 1_000, 50.0);
        assert_eq!(rate.get(), Some(50.0));
        let found = rate.update(101.0, 1_050).unwrap();
        assert!((found - 50.0).abs() < 0.1, "{found}");
    }

    #[test]
    fn earlier_recordings_are_read() {
        let old: SmoothedRate = serde_json::from_str(r#"{"last":[1.0,5],"smooth":7.0}"#).unwrap();
        assert_eq!(old.get(), None);
    }
}
