//! Time limits of the reducer's decisions, derived from the plan.

use rankdeck_types::plan::Plan;

/// Longest wait for ranks that were ordered to stop, milliseconds; agents wait no longer either.
const LONGEST_DRAIN_MS: u64 = 3_600_000;

/// Times that decide, ms, from the plan or its defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimeLimits {
    /// For each polite signal of a stop.
    pub grace: u64,
    /// What progress, and files that grow, may extend a stop to.
    pub stop: u64,
    /// Silence after which a host is lost.
    pub lost: u64,
    /// Wait after which a rank is behind.
    pub behind: u64,
    /// Start-up and rendezvous.
    pub init: u64,
    /// Evaluation and checkpoint without progress.
    pub rank0: u64,
    /// Silence that the user calls stuck.
    pub silence: Option<u64>,
}

impl TimeLimits {
    /// From a plan.
    pub fn of(plan: Option<&Plan>) -> TimeLimits {
        let ms = |seconds: f64| (seconds.max(0.0) * 1000.0) as u64;
        let (watch, launch) = match plan {
            Some(plan) => (plan.experiment.watch.clone(), plan.experiment.launch.clone()),
            None => Default::default(),
        };
        TimeLimits {
            grace: ms(launch.stop_grace_s),
            stop: ms(launch.stop_limit_s),
            lost: ms(watch.lost_after_s),
            behind: ms(watch.behind_after_s),
            init: ms(watch.init_budget_s),
            rank0: ms(watch.rank0_budget_s),
            silence: watch.silence_is_stuck_s.map(ms),
        }
    }

    /// How long a stop may take before a silent host counts as unreachable. The plan may come from a host,
    /// so it has a bound.
    pub fn drain(&self) -> u64 {
        self.grace.max(self.lost).min(LONGEST_DRAIN_MS).saturating_add(10_000)
    }

    /// The same while agents report that the stop makes progress.
    pub fn longest_stop(&self) -> u64 {
        self.stop.max(self.grace).min(LONGEST_DRAIN_MS).saturating_add(10_000)
    }
}
