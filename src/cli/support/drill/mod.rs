//! A drill: short runs of a program, each broken in its own way, and what is reported and left. What is seen of a
//! run and what follows from it is pure; `commands::drill` starts the consoles and gives the orders.
//!
//! - DRILL-3: a case has passed only if its fault was named, if no checkpoint that there was is lost, and if a scan of
//!   every host has found nothing of its run.
//! - DRILL-4: every wait of a case ends.

pub(crate) mod console;
pub(crate) mod events;
pub(crate) mod judge;
pub(crate) mod proved;

use crate::cli::args::DrillCase;
use rankdeck_types::words::duration;
use std::time::Duration;

/// Lines of steps after which a run is steady.
const STEADY_LINES: u32 = 3;

impl DrillCase {
    /// How long the report of the fault usually takes, seconds.
    fn usual_s(self) -> u64 {
        match self {
            DrillCase::Freeze | DrillCase::Kill | DrillCase::Exception | DrillCase::Console => 5,
            DrillCase::Agent | DrillCase::Stop => 10,
            DrillCase::Restart => 30,
            DrillCase::Slow => 60,
        }
    }

    /// How long the report is waited for (DRILL-4). `stop_s`: the longest clean stop.
    pub(crate) fn patience(self, stop_s: f64) -> Duration {
        let longest = Duration::from_secs(3600);
        let stop = Duration::try_from_secs_f64(stop_s).map_or(longest, |stop| stop.min(longest));
        match self {
            DrillCase::Freeze | DrillCase::Kill | DrillCase::Exception => Duration::from_secs(60),
            DrillCase::Console => Duration::from_secs(90),
            DrillCase::Slow | DrillCase::Agent => Duration::from_secs(150),
            DrillCase::Stop => stop.saturating_add(Duration::from_secs(60)),
            DrillCase::Restart => stop.saturating_add(Duration::from_secs(240)),
        }
    }

    /// Whether the fault comes only after a checkpoint, if there is one in time.
    fn awaits_checkpoint(self) -> bool {
        matches!(self, DrillCase::Kill | DrillCase::Agent | DrillCase::Restart)
    }

    /// Whether the run has trained for long enough: `trained_s` since all ranks are up.
    pub(crate) fn is_steady(self, events: &events::RunEvents, trained_s: f64, most_s: f64) -> bool {
        let learns = match self {
            // A straggler shows only against a usual pace.
            DrillCase::Slow => trained_s >= (most_s / 3.0).min(20.0),
            _ => true,
        };
        let steps = events.step_lines >= STEADY_LINES;
        let saved = events.checkpoint.is_some() || !self.awaits_checkpoint();
        trained_s >= most_s || learns && steps && saved
    }
}

/// Usual seconds from a launch until all ranks are up, and of a stop with its scans.
const AROUND_S: u64 = 20;

/// At most how long a drill of these cases takes, if all is well: for its first line.
pub(crate) fn expected_s(cases: &[DrillCase], train_s: u32) -> u64 {
    cases.iter().map(|case| AROUND_S + u64::from(train_s) + case.usual_s()).sum()
}

/// [`expected_s`] in words.
pub(crate) fn expected(cases: &[DrillCase], train_s: u32) -> String {
    duration(expected_s(cases, train_s) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use events::RunEvents;
    use serde_json::json;

    #[test]
    fn expected_duration_is_the_sum_of_the_cases() {
        let cases = [DrillCase::Freeze, DrillCase::Slow];
        assert_eq!(expected_s(&cases, 60), 25 + 80 + 120);
        let alone: u64 = DrillCase::ALL.iter().map(|case| expected_s(&[*case], 7)).sum();
        assert_eq!(expected_s(&DrillCase::ALL, 7), alone);
        assert_eq!(expected_s(&[], 60), 0);
    }

    /// DRILL-4
    #[test]
    fn drill_4_every_wait_ends() {
        for case in DrillCase::ALL {
            for stop_s in [0.0, 120.0, 1e12, f64::INFINITY, f64::NAN] {
                assert!(case.patience(stop_s) < Duration::from_secs(2 * 3600), "{case:?} {stop_s}");
            }
            assert!(case.is_steady(&RunEvents::default(), 60.0, 60.0), "a silent program, {case:?}");
        }
    }

    #[test]
    fn steady_run_makes_steps_and_has_saved_where_it_matters() {
        let mut events = RunEvents::default();
        let steady = |events: &RunEvents| {
            DrillCase::ALL.into_iter().filter(|case| case.is_steady(events, 5.0, 60.0)).collect::<Vec<_>>()
        };
        for step in 1..=STEADY_LINES {
            assert!(steady(&events).is_empty(), "before line {step}");
            events.on_line(0.0, &json!({"kind": "progress", "env_step": step}));
        }
        use DrillCase::{Console, Exception, Freeze, Stop};
        assert_eq!(steady(&events), [Freeze, Exception, Console, Stop]);
        events.on_line(0.0, &json!({"kind": "checkpoint", "path": "/c", "env_step": 8}));
        assert_eq!(steady(&events).len(), 7, "a straggler needs more time");
    }
}
