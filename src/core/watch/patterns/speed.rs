//! Compares the speed of a run with its own past: iterations per minute.
//!
//! An evaluation or a checkpoint makes a minute slow, so that only several in a row count. Slow minutes do not
//! become part of the past: a run that stays slow is reported for as long as it is.

use crate::model::{Model, RankLife, RankModel};
use rankdeck_proto::message::PageSample;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Length of an interval, ms.
const INTERVAL_MS: u64 = 60_000;
/// Intervals that must be slow in a row.
const LATEST: usize = 3;
/// Intervals that make a past, and how many of them are remembered.
const ENOUGH: usize = 5;
const MOST: usize = 60;
/// Share of the usual speed below which a run is slow.
const SLOW: f64 = 0.5;

/// A run that is slower than it was.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SlowRun {
    /// Iterations per minute: usually, and of late.
    pub before: f64,
    pub now: f64,
}

/// Iterations per minute of a generation.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SpeedHistory {
    /// When the present interval began, on the awake clock, and at which iteration.
    began: Option<(u64, u64)>,
    /// Of the intervals that are not among the latest ones.
    past: VecDeque<f64>,
    latest: VecDeque<f64>,
}

impl SpeedHistory {
    /// Takes the run now.
    pub fn observe(&mut self, model: &Model, awake_ms: u64) -> Option<SlowRun> {
        let Some(iteration) = iteration(model) else {
            *self = SpeedHistory::default();
            return None;
        };
        let (since, first) = *self.began.get_or_insert((awake_ms, iteration));
        let passed_ms = awake_ms.saturating_sub(since);
        if iteration < first {
            *self = SpeedHistory::default();
        } else if passed_ms >= INTERVAL_MS {
            self.began = Some((awake_ms, iteration));
            self.add((iteration - first) as f64 * INTERVAL_MS as f64 / passed_ms as f64);
        }
        self.slow()
    }

    fn add(&mut self, rate: f64) {
        self.latest.push_back(rate);
        if self.latest.len() <= LATEST {
            return;
        }
        let oldest = self.latest.pop_front().unwrap_or_default();
        if self.usual().is_none_or(|usual| oldest >= usual * SLOW) {
            self.past.push_back(oldest);
            if self.past.len() > MOST {
                self.past.pop_front();
            }
        }
    }

    fn usual(&self) -> Option<f64> {
        let mut past: Vec<f64> = self.past.iter().copied().collect();
        past.sort_by(f64::total_cmp);
        past.get(past.len() / 2).copied().filter(|_| past.len() >= ENOUGH)
    }

    fn slow(&self) -> Option<SlowRun> {
        let before = self.usual().filter(|_| self.latest.len() == LATEST)?;
        let now = self.latest.iter().copied().fold(0.0, f64::max);
        (now < before * SLOW).then_some(SlowRun { before, now })
    }
}

/// The iteration that most live ranks have reached, as they count themselves or by the steps of their optimizers.
fn iteration(model: &Model) -> Option<u64> {
    let lives = |rank: &&RankModel| !rank.lost && !matches!(rank.life, RankLife::Exited(_));
    let live = model.ranks.iter().filter(lives);
    let page = live.map(|rank| rank.sample.as_ref()?.page.as_ref().and_then(PageSample::iteration));
    let mut all: Vec<u64> = page.collect::<Option<Vec<u64>>>()?;
    all.sort_unstable();
    all.get(all.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(rates: &[f64]) -> Option<SlowRun> {
        let mut speed = SpeedHistory::default();
        rates.iter().for_each(|rate| speed.add(*rate));
        speed.slow()
    }

    #[test]
    fn lasting_slowdown_is_found_and_stays() {
        let usual = [100.0; 10];
        let with = |slow: &[f64]| after(&[&usual[..], slow].concat());
        assert_eq!(with(&[40.0, 30.0]), None, "too short");
        assert_eq!(with(&[40.0, 30.0, 45.0]), Some(SlowRun { before: 100.0, now: 45.0 }));
        assert_eq!(with(&[40.0; 200]), Some(SlowRun { before: 100.0, now: 40.0 }));
        assert_eq!(with(&[40.0, 40.0, 40.0, 90.0]), None, "it is over");
    }

    #[test]
    fn evaluations_and_short_runs_are_not_slow() {
        let evaluates: Vec<f64> = (0..60).map(|i| if i % 10 > 7 { 0.0 } else { 100.0 }).collect();
        assert_eq!(after(&evaluates), None);
        assert_eq!(after(&[100.0, 100.0, 100.0, 10.0, 10.0, 10.0]), None);
    }
}
