//! What moved between two samples of a rank. Pure.

use crate::compact::nameless;
use rankdeck_proto::message::{ChildSample, MainThread, RankSample};
use serde::Deserialize;

/// CPU share below which a rank is idle.
pub(super) const IDLE: f64 = 0.05;
/// CPU share from which a child that the rank waits for works.
const WORKS: f64 = 0.01;
/// Bytes over two to three seconds from which storage or the network moves for the program: trackers move
/// less.
pub(super) const BULK: u64 = 1 << 20;

/// Bytes per second from which a process's connections carry a stream: an upload or a download in threads of
/// its own, where trackers send a few now and then.
const STREAM: u64 = 128 << 10;
/// How often per second a main thread that converses is given a core, and the share of its time that it then
/// runs. Whom it talks to by datagrams, local sockets or shared memory, no counter tells.
const TURNS: f64 = 20.0;
const TALKS: f64 = 0.005;

/// A descendant of a rank, as far as its differences matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub(super) struct Child {
    pub pid: u32,
    pub state: char,
    pub cpu_ms: u64,
    pub parent: u32,
    pub io_bytes: u64,
    pub net_bytes: Option<u64>,
}
nameless!(Child { pid, state, cpu_ms, parent, io_bytes, net_bytes });

impl From<&ChildSample> for Child {
    fn from(child: &ChildSample) -> Child {
        let ChildSample { pid, name: _, state, cpu_ms, parent, io_bytes, net_bytes } = *child;
        Child { pid, state, cpu_ms, parent, io_bytes, net_bytes }
    }
}

/// Counters whose differences matter.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Gauges {
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
    pub children: Vec<Child>,
    pub own_ms: Vec<u64>,
}
nameless!(Gauges {
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
pub(super) fn acted(before: &MainThread, now: &MainThread, passed_ms: u64, locked: bool) -> bool {
    let ran_us = now.cpu_us.saturating_sub(before.cpu_us) as f64;
    let turns = now.turns.saturating_sub(before.turns) as f64;
    let passed_ms = passed_ms.max(1) as f64;
    let share = |of: f64| ran_us >= of * 1000.0 * passed_ms;
    let converses = !locked && turns * 1000.0 >= TURNS * passed_ms && share(TALKS);
    share(IDLE) || converses || now.io_bytes != before.io_bytes
}

/// The connections of a process carried a stream over `passed_ms`.
pub(super) fn streamed(before: u64, now: u64, passed_ms: u64) -> bool {
    now.abs_diff(before).saturating_mul(1000) >= STREAM.saturating_mul(passed_ms.max(1))
}

/// The connections of a process carried something for its main thread: much, or anything while that was given
/// a core. `before` is the latest sample that told about them.
pub(super) fn carried(before: &MainThread, now: &MainThread) -> bool {
    let (Some(then), Some(bytes)) = (before.net_bytes, now.net_bytes) else { return false };
    let moved = bytes.abs_diff(then);
    moved >= BULK || (moved > 0 && now.turns != before.turns)
}

/// What one child did over some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ChildMovement {
    pub pid: u32,
    pub parent: u32,
    pub cpu_ms: u64,
    pub io_bytes: u64,
    /// Bytes by which what its connections have carried differs; 0 where one of the samples does not tell.
    pub net_bytes: u64,
    /// It was not there when the rank came to its last collective, or did anything where there are none.
    pub is_new: bool,
}

impl ChildMovement {
    /// From two samples of it.
    pub fn between(before: &Child, now: &Child, is_new: bool) -> ChildMovement {
        ChildMovement {
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

/// What moved over the latest two to three seconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Movement {
    /// Over how long, ms; 0 while there is only one sample.
    pub over_ms: u64,
    /// Own CPU share of one core, 0..; `None` when the agent does not tell.
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
    /// CPU share of its main thread alone; `None` when the agent does not tell.
    pub main_cpu: Option<f64>,
    /// Bytes that its main thread read and wrote.
    pub main_io_bytes: u64,
    /// CPU share of its children and of all threads beside the main one.
    pub helpers: f64,
    /// Bytes per second that its children read and wrote.
    pub helpers_io: f64,
    /// Children that were there all the time, or are new.
    pub children: Vec<ChildMovement>,
    /// Milliseconds in each phase, collectives excluded.
    pub own_ms: Vec<u64>,
}

/// Milliseconds without a sign of life from the program, `None` when it gives none.
pub(super) fn silence(sample: &RankSample) -> Option<u64> {
    sample.page.as_ref().map(|page| page.heartbeat_age_ms)
}
