//! Points at which all ranks may leave an iteration for a stop: after a step of all environments, and after
//! an update.
//!
//! The loop undoes the iteration that is left. The ranks meet in a small collective (tag `stop`), often
//! enough that a stop is noticed within seconds and seldom enough that no rank is slowed down. Only iterations
//! that take long have such places: others are sooner ended than left.
//!
//! Invariant LEAVE-1: how many places pass between two meetings follows from reduced values, so all ranks
//! meet and leave at the same one.

use crate::distributed::{DistError, ProcessGroup, ReduceOp};
use crate::support::signals;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Between two meetings, about.
const EVERY: Duration = Duration::from_secs(2);
/// The pause between two meetings grows by so much at most.
const GROWTH: u64 = 16;

/// What the ranks have just done; each kind has a pace of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkKind {
    /// A step of all environments.
    Step,
    Update,
    /// An update of an auxiliary phase.
    AuxUpdate,
}

/// The places since the latest meeting.
#[derive(Debug, Clone, Copy)]
struct VoteInterval {
    /// Places from one meeting to the next.
    stride: u64,
    passed: u64,
    spent: Duration,
}

/// Decides at each point whether the ranks vote on leaving the iteration.
#[derive(Debug)]
pub struct StopPoints {
    open: Cell<bool>,
    paces: [Cell<VoteInterval>; 3],
    latest: Cell<Instant>,
}

impl Default for StopPoints {
    fn default() -> StopPoints {
        let pace = || Cell::new(VoteInterval { stride: 1, passed: 0, spent: Duration::ZERO });
        StopPoints {
            open: Cell::new(false),
            paces: [pace(), pace(), pace()],
            latest: Cell::new(Instant::now()),
        }
    }
}

impl StopPoints {
    /// An iteration begins; whether it can be left is the same on all ranks.
    pub fn start_iteration(&self, open: bool) {
        self.open.set(open);
        self.latest.set(Instant::now());
    }

    /// All ranks leave the iteration here. Collective at some of the calls, the same on all ranks (LEAVE-1).
    pub(crate) fn leave(&self, group: &ProcessGroup, work: WorkKind) -> Result<bool, DistError> {
        if !self.open.get() {
            return Ok(false);
        }
        if group.world_size() == 1 {
            return Ok(signals::stop_requested());
        }
        let now = Instant::now();
        let slot = &self.paces[work as usize];
        let mut pace = slot.get();
        pace.passed += 1;
        pace.spent += now.duration_since(self.latest.replace(now));
        if pace.passed < pace.stride {
            slot.set(pace);
            return Ok(false);
        }
        let spent = i64::try_from(pace.spent.as_nanos()).unwrap_or(i64::MAX / 1_000_000);
        let mut words = [i64::from(signals::stop_requested()), spent];
        group.all_reduce_i64(&mut words, ReduceOp::Sum, "stop")?;
        let places = pace.passed * u64::from(group.world_size());
        slot.set(VoteInterval {
            stride: stride(pace.passed, Duration::from_nanos(words[1].max(0).unsigned_abs() / places)),
            passed: 0,
            spent: Duration::ZERO,
        });
        Ok(words[0] > 0)
    }
}

/// Places to the next meeting, where `passed` lay before this one and each took `each`.
fn stride(passed: u64, each: Duration) -> u64 {
    let target = EVERY.as_nanos() / each.as_nanos().max(1);
    u64::try_from(target).unwrap_or(u64::MAX).clamp(1, passed.saturating_mul(GROWTH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leave_1_votes_are_two_seconds_apart_and_grow_slowly() {
        let ms = Duration::from_millis;
        assert_eq!(stride(1, ms(3_000)), 1, "slower than the pause: at each place");
        assert_eq!(stride(10, ms(100)), 20);
        assert_eq!(stride(1, Duration::from_micros(30)), 16, "one quick point is not representative");
        assert_eq!(stride(1_000_000, Duration::ZERO), 16_000_000);
    }
}
