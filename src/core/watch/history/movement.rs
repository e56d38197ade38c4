//! Differences between samples of a rank: CPU time, bytes, children, and how much a CPU quota throttles it.
//!
//! A quota stops a rank inside its collectives, too: it then waits as long as the others, and there may be
//! few iterations to compare. The kernel counts for how long it has throttled a cgroup.

use crate::compact::nameless;
use rankdeck_proto::message::{CgroupSample, ChildSample, MainThread, RankSample};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// CPU share below which a rank is idle.
pub(crate) const IDLE: f64 = 0.05;
/// CPU share from which a child that the rank waits for works.
const WORKS: f64 = 0.01;
/// Bytes over two to three seconds from which storage or the network moves for the program: trackers move
/// less.
pub(crate) const BULK: u64 = 1 << 20;

/// Bytes per second from which a process's connections carry a stream: an upload or a download in threads of
/// its own, where trackers send a few now and then.
const STREAM: u64 = 128 << 10;
/// How often per second a main thread that converses is given a core, and the share of its time that it then
/// runs. No counter covers datagrams, local sockets and shared memory.
const TURNS: f64 = 20.0;
const TALKS: f64 = 0.005;

/// A descendant of a rank, as far as its differences matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ChildCounters {
    pub pid: u32,
    pub state: char,
    pub cpu_ms: u64,
    pub parent: u32,
    pub io_bytes: u64,
    pub net_bytes: Option<u64>,
}
nameless!(ChildCounters { pid, state, cpu_ms, parent, io_bytes, net_bytes });

impl From<&ChildSample> for ChildCounters {
    fn from(child: &ChildSample) -> ChildCounters {
        let ChildSample { pid, name: _, state, cpu_ms, parent, io_bytes, net_bytes } = *child;
        ChildCounters { pid, state, cpu_ms, parent, io_bytes, net_bytes }
    }
}

/// Counters whose differences matter.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct ProgressCounters {
    pub at: u64,
    pub cpu_ms: u64,
    pub delay_ms: u64,
    pub io_bytes: u64,
    pub faults: u64,
    pub periods: u64,
    pub throttled: u64,
    pub throttled_ms: u64,
    pub oom_kills: u64,
    pub memory_stall_ms: u64,
    pub limit_hits: u64,
    pub main: Option<MainThread>,
    pub children: Vec<ChildCounters>,
    pub own_ms: Vec<u64>,
}
nameless!(ProgressCounters {
    at,
    cpu_ms,
    delay_ms,
    io_bytes,
    faults,
    periods,
    throttled,
    throttled_ms,
    oom_kills,
    memory_stall_ms,
    limit_hits,
    main,
    children,
    own_ms
});

/// The main thread did something between two samples, the later one `passed_ms` after the other: it ran, it
/// moved bytes, or it converses. Being given a core for a moment is not enough: a thread that polls is given
/// one, too. `locked`: it waits for a lock, as one does that polls a queue of its own.
pub(crate) fn acted(before: &MainThread, now: &MainThread, passed_ms: u64, locked: bool) -> bool {
    let ran_us = now.cpu_us.saturating_sub(before.cpu_us) as f64;
    let turns = now.turns.saturating_sub(before.turns) as f64;
    let passed_ms = passed_ms.max(1) as f64;
    let share = |of: f64| ran_us >= of * 1000.0 * passed_ms;
    let converses = !locked && turns * 1000.0 >= TURNS * passed_ms && share(TALKS);
    share(IDLE) || converses || now.io_bytes != before.io_bytes
}

/// The connections of a process carried a stream over `passed_ms`.
pub(crate) fn streamed(before: u64, now: u64, passed_ms: u64) -> bool {
    now.abs_diff(before).saturating_mul(1000) >= STREAM.saturating_mul(passed_ms.max(1))
}

/// The connections of a process carried something for its main thread: much, or anything while that was given
/// a core. `before` is the latest sample with their counts.
pub(crate) fn carried(before: &MainThread, now: &MainThread) -> bool {
    let (Some(then), Some(bytes)) = (before.net_bytes, now.net_bytes) else { return false };
    let moved = bytes.abs_diff(then);
    moved >= BULK || (moved > 0 && now.turns != before.turns)
}

/// What one child did over some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ChildDelta {
    pub pid: u32,
    pub parent: u32,
    pub cpu_ms: u64,
    pub io_bytes: u64,
    /// Bytes by which what its connections have carried differs; 0 if one of the samples has no count.
    pub net_bytes: u64,
    /// It was not there when the rank came to its last collective, or was last active without collectives.
    pub is_new: bool,
}

impl ChildDelta {
    /// From two samples of it.
    pub fn between(before: &ChildCounters, now: &ChildCounters, is_new: bool) -> ChildDelta {
        ChildDelta {
            pid: now.pid,
            parent: now.parent,
            cpu_ms: now.cpu_ms.saturating_sub(before.cpu_ms),
            io_bytes: now.io_bytes.saturating_sub(before.io_bytes),
            net_bytes: now.net_bytes.zip(before.net_bytes).map_or(0, |(now, then)| now.abs_diff(then)),
            is_new,
        }
    }

    pub fn moves(&self, over_ms: u64) -> bool {
        self.io_bytes > 0 || self.net_bytes > 0 || self.cpu_ms as f64 >= WORKS * over_ms.max(1) as f64
    }
}

/// What changed over the latest two to three seconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ProgressDelta {
    /// Over how long, ms; 0 while there is only one sample.
    pub over_ms: u64,
    /// Own CPU share of one core, 0..; `None` if the agent does not report it.
    pub cpu: Option<f64>,
    /// Share of the time in which its main thread waited for a core, 0 to 1.
    pub delayed: f64,
    /// Bytes read from and written to storage.
    pub io_bytes: u64,
    /// Share of the time in which all of its cgroup waited for memory.
    pub memory_stalled: f64,
    /// How often its cgroup met its limit of memory, per second.
    pub limit_hits_per_s: f64,
    /// Major page faults per second.
    pub faults_per_s: f64,
    /// Share of the time, or of the periods, in which its CPU quota was used up; `None` without a quota.
    pub throttled: Option<f64>,
    /// Out-of-memory kills in its cgroup.
    pub oom_kills: u64,
    /// CPU share of its main thread alone; `None` if the agent does not report it.
    pub main_cpu: Option<f64>,
    /// Bytes that its main thread read and wrote.
    pub main_io_bytes: u64,
    /// CPU share of its children and of all other threads.
    pub helpers: f64,
    /// Bytes per second that its children read and wrote.
    pub helpers_io: f64,
    /// Children that were there all the time, or are new.
    pub children: Vec<ChildDelta>,
    /// Milliseconds in each phase, collectives excluded.
    pub own_ms: Vec<u64>,
}

/// Milliseconds without a sign of life from the program, `None` when it gives none.
pub(crate) fn silence(sample: &RankSample) -> Option<u64> {
    sample.page.as_ref().map(|page| page.heartbeat_age_ms)
}

/// Least time between two remembered counts, ms. Differences are taken over ten to twenty seconds, so that
/// moments in which everything waits for something else weigh little.
const STEP_MS: u64 = 1_000;
const LEAST_MS: u64 = 10_000;
const MOST_MS: u64 = 20_000;
/// Share of throttled periods from which a quota slows a rank down, and from which it alone shows which rank
/// is slow.
pub(crate) const THROTTLED: f64 = 0.25;
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
pub(crate) struct QuotaHistory {
    past: VecDeque<QuotaCounters>,
}

/// What a quota has done to a rank of late.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CpuThrottling {
    pub over_ms: u64,
    /// Share of throttled periods.
    pub share: f64,
    /// For how long the kernel has throttled it, ms; `None` if the kernel does not count it.
    pub held_ms: Option<u64>,
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
    pub fn of_late(&self) -> Option<CpuThrottling> {
        let (old, new) = (self.past.front()?, self.past.back()?);
        let over_ms = new.at_ms.saturating_sub(old.at_ms);
        let periods = new.periods.saturating_sub(old.periods);
        let held_ms = (new.throttled_ms > 0).then(|| new.throttled_ms.saturating_sub(old.throttled_ms));
        let share = new.throttled.saturating_sub(old.throttled) as f64 / periods.max(1) as f64;
        (over_ms >= LEAST_MS && periods > 0).then_some(CpuThrottling { over_ms, share, held_ms })
    }
}

impl CpuThrottling {
    /// It alone shows that the rank is slow.
    pub fn holds(&self) -> bool {
        let long = |ms: u64| ms as f64 >= HELD_TIME * self.over_ms as f64;
        self.share >= HELD && self.held_ms.is_none_or(long)
    }
}
