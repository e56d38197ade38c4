//! Ranks that a CPU quota holds back, by the kernel's own counters. Pure.
//!
//! A quota stops a rank inside its collectives, too, so that it waits as long as the others and comes last
//! into nothing; and it may stop it for so long that there are few iterations to compare. The kernel counts
//! for how long it has held a group back.

use rankdeck_proto::message::CgroupSample;
use rankdeck_types::words;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Least time between two remembered counts, ms. Differences are taken over ten to twenty seconds, so that
/// moments in which everything waits for something else weigh little.
const STEP_MS: u64 = 1_000;
const LEAST_MS: u64 = 10_000;
const MOST_MS: u64 = 20_000;
/// Share of throttled periods from which a quota slows a rank down, and from which it alone tells which rank
/// is slow.
pub(super) const THROTTLED: f64 = 0.25;
const HELD: f64 = 0.5;
/// Share of the time for which the kernel must have held it, where it counts that: a period counts as
/// throttled however short that was, and only periods in which anything ran are counted.
const HELD_TIME: f64 = 0.3;

/// What a group's counters were at a moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct QuotaCounters {
    at_ms: u64,
    periods: u64,
    throttled: u64,
    throttled_ms: u64,
}

/// The counters of late.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct QuotaHistory {
    past: VecDeque<QuotaCounters>,
}

/// What a quota has done to a rank of late.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Quota {
    pub over_ms: u64,
    /// Share of throttled periods.
    pub share: f64,
    /// For how long the kernel has held it, ms; `None` where nobody tells.
    held_ms: Option<u64>,
}

impl QuotaHistory {
    /// Takes the counters of a moment.
    pub fn count(&mut self, at_ms: u64, cgroup: Option<&CgroupSample>) {
        let CgroupSample { periods, throttled, throttled_ms, .. } = cgroup.cloned().unwrap_or_default();
        let now = QuotaCounters { at_ms, periods, throttled, throttled_ms };
        if periods == 0 {
            // No quota yet, or none any more: there is nothing to remember but that.
            self.past.clear();
        }
        let before = self.past.back().copied().unwrap_or_default();
        if periods < before.periods || throttled_ms < before.throttled_ms {
            // It was moved to another group.
            self.past.clear();
        }
        // The newest count is always kept. The next one replaces it while it is too close to the one before.
        let close = match (self.past.back(), self.past.iter().rev().nth(1)) {
            (Some(last), Some(before)) => last.at_ms.saturating_sub(before.at_ms) < STEP_MS,
            _ => false,
        };
        if close {
            self.past.pop_back();
        }
        self.past.push_back(now);
        while self.past.get(1).is_some_and(|next| at_ms.saturating_sub(next.at_ms) >= MOST_MS) {
            self.past.pop_front();
        }
    }

    /// Over the latest ten to twenty seconds; `None` without a quota, or before that time has passed.
    pub fn of_late(&self) -> Option<Quota> {
        let (old, new) = (self.past.front()?, self.past.back()?);
        let over_ms = new.at_ms.saturating_sub(old.at_ms);
        let periods = new.periods.saturating_sub(old.periods);
        let held_ms = (new.throttled_ms > 0).then(|| new.throttled_ms.saturating_sub(old.throttled_ms));
        let share = new.throttled.saturating_sub(old.throttled) as f64 / periods.max(1) as f64;
        (over_ms >= LEAST_MS && periods > 0).then_some(Quota { over_ms, share, held_ms })
    }
}

impl Quota {
    /// It alone tells that the rank is slow.
    pub fn holds(&self) -> bool {
        let long = |ms: u64| ms as f64 >= HELD_TIME * self.over_ms as f64;
        self.share >= HELD && self.held_ms.is_none_or(long)
    }

    /// What the kernel has counted, in words.
    pub fn facts(&self) -> Vec<String> {
        let time = self.held_ms.map(|ms| {
            // Each core by itself: of several, the sum may be more than the time that has passed.
            let ms = words::duration_ms(ms.min(self.over_ms));
            format!("the kernel held it back for {ms} of the latest {}", words::duration_ms(self.over_ms))
        });
        let periods = format!("its CPU quota was used up in {:.0} % of the periods", self.share * 100.0);
        std::iter::once(periods).chain(time).collect()
    }
}

/// A share of the time without quota in words.
pub(super) fn used_up(share: f64) -> String {
    format!("its CPU quota was used up {:.0} % of the time", share * 100.0)
}
