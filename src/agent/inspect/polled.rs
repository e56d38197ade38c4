//! What a call that waits for several descriptors waits for, and until when.
//!
//! An event loop has a pipe or a pair of sockets of its own by which its threads wake it. A loop that waits
//! for nothing else, with a time limit, has a timer to run: it sleeps.

use super::syscall::{self, Call};
use super::{descriptors, memory};
use crate::proc;

/// Most descriptors of one call that are looked at.
const POLLED: usize = 16;

/// The descriptors, and milliseconds until it gives up; `None` for as long as it takes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PollCall {
    pub fds: Vec<i32>,
    pub timeout_ms: Option<u64>,
}

/// Of poll(2) and epoll_wait(2).
pub(super) fn of(pid: u32, call: &Call) -> Option<PollCall> {
    let (name, _) = syscall::name(call.number?);
    let (fds, limit) = match name {
        "poll" | "ppoll" => {
            // struct pollfd: descriptor, events, returned events.
            let count = (call.args[1] as usize).min(POLLED);
            let bytes = memory::read(pid, call.args[0], count * 8).ok()?;
            let fds = bytes
                .chunks_exact(8)
                .filter_map(|entry| Some(i32::from_ne_bytes(entry.get(..4)?.try_into().ok()?)));
            (fds.filter(|fd| *fd >= 0).collect(), (name == "poll").then_some(call.args[2]))
        }
        "epoll_wait" | "epoll_pwait" => {
            let text = proc::text(format!("/proc/{pid}/fdinfo/{}", call.args[0] as i32))?;
            let fds = text
                .lines()
                .filter_map(|line| line.strip_prefix("tfd:")?.split_whitespace().next()?.parse().ok());
            (fds.take(POLLED).collect(), Some(call.args[3]))
        }
        _ => return None,
    };
    Some(PollCall { fds, timeout_ms: limit.and_then(|limit| u64::try_from(limit as i32).ok()) })
}

/// Milliseconds after which an event loop wakes that waits for nobody but its own threads. Nothing tells how
/// much of them has passed.
pub(super) fn timer_ms(pid: u32, call: &Call) -> Option<u64> {
    let PollCall { fds, timeout_ms } = of(pid, call)?;
    // All of a full list may not be all that it waits for.
    let is_all = !fds.is_empty() && fds.len() < POLLED;
    timeout_ms.filter(|_| is_all && fds.iter().all(|fd| descriptors::is_own_wake_up(pid, *fd)))
}
