//! What a main thread waits for, as its call and its memory say: both of the same wait.
//!
//! Owner: nobody keeps state. A thread that polls begins one wait after the other, and on a busy host a look
//! is slow enough for the call of one and the memory of the next.

use super::syscall::{self, Call, Kind};
use super::{awaited, descriptors, memory, obstacle, sockets};
use crate::proc;
use rankdeck_proto::inspection::Obstacle;
use std::time::{Duration, Instant};

/// How often it is read while the thread goes on meanwhile, and the pause between.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(10);

/// One wait.
#[derive(Debug)]
pub(super) struct Wait {
    pub call: Call,
    /// Milliseconds until it wakes by itself.
    pub sleep_left_ms: Option<u64>,
    /// The processes that it waits for.
    pub awaits: Vec<u32>,
    /// The call and the path that is one of its arguments, in words.
    pub path: Option<String>,
    /// What it is blocked on, as far as only its memory tells.
    pub obstacle: Option<Obstacle>,
    /// It had no core while this was read: what is not here, it does not wait for.
    pub is_whole: bool,
}

impl Wait {
    /// Reads until the thread has had no core meanwhile, a few times at most; `None` when the kernel does not
    /// tell its call.
    pub fn read(pid: u32, tcp: &[sockets::Tcp], deadline: Instant) -> Option<Wait> {
        let mut wait = Wait::once(pid, tcp)?;
        for _ in 1..TRIES {
            if wait.is_whole || Instant::now() + PAUSE >= deadline {
                break;
            }
            std::thread::sleep(PAUSE);
            wait = Wait::once(pid, tcp)?;
        }
        Some(wait)
    }

    fn once(pid: u32, tcp: &[sockets::Tcp]) -> Option<Wait> {
        let turns = || proc::schedule(pid, pid).map(|had| had.turns);
        let before = turns();
        let call = syscall::call(pid, pid)?;
        let wait = Wait {
            call,
            sleep_left_ms: awaited::sleep_left_ms(pid, &call),
            awaits: awaited::processes(pid, &call),
            path: path_argument(pid, &call),
            obstacle: obstacle::in_memory(pid, &call, tcp),
            is_whole: false,
        };
        // Where the kernel does not count turns, the call alone tells.
        let is_same = turns() == before && syscall::call(pid, pid) == Some(call);
        Some(Wait { is_whole: is_same && !call.is_awake(), ..wait })
    }

    /// It tells nothing, and need not be all.
    pub fn is_between(&self) -> bool {
        let tells = self.sleep_left_ms.is_some() || self.path.is_some() || self.obstacle.is_some();
        !self.is_whole && !tells && self.awaits.is_empty()
    }
}

/// The path that a call waits for, when it is one of its arguments.
fn path_argument(pid: u32, call: &Call) -> Option<String> {
    let number = call.number?;
    let (name, kind) = syscall::name(number);
    let at = match (name, kind) {
        ("openat" | "unlinkat" | "renameat2", Kind::Other) => call.args[1],
        ("open" | "stat" | "rename" | "mkdir", Kind::Other) => call.args[0],
        _ => return None,
    };
    let path = memory::text(pid, at)?;
    let mount = descriptors::mount_of(pid, &path).map_or_else(String::new, |mount| format!(" ({mount})"));
    Some(format!("{name} of {path}{mount}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::inspect::victim::Victim;

    fn read(victim: &Victim) -> Option<Wait> {
        Wait::read(victim.pid(), &[], Instant::now() + Duration::from_secs(1))
    }

    /// It polls two pipes in turn: whoever mixes two waits finds nobody at the other end.
    #[test]
    fn a_thread_that_polls_one_after_the_other_is_seen_in_one_wait_or_in_none() {
        let code = "import multiprocessing as m, time\n\
            ends = [m.Pipe(False) for _ in range(2)]\n\
            for n, (r, w) in enumerate(ends):\n\
            \x20   m.Process(target=time.sleep, args=(500,), daemon=True).start()\n\
            while True:\n\
            \x20   for r, w in ends: r.poll(0.02)";
        let program = Victim::start("python3", &["-c", code]);
        program.until("it polls", || {
            read(&program).is_some_and(|wait| wait.is_whole && !wait.awaits.is_empty())
        });
        let mut whole = 0;
        for _ in 0..300 {
            let wait = read(&program).unwrap();
            if wait.is_whole {
                assert!(!wait.call.is_awake() && !wait.awaits.is_empty(), "{wait:?}");
                whole += 1;
            } else {
                assert!(wait.is_between() || !wait.awaits.is_empty(), "{wait:?}");
            }
        }
        assert!(whole > 0);
    }

    #[test]
    fn a_thread_that_computes_is_between_two_waits() {
        let program = Victim::start("python3", &["-c", "while True: pass"]);
        let computes = |wait: Wait| wait.call.is_awake() && !wait.is_whole && wait.is_between();
        program.until("it computes", || read(&program).is_some_and(computes));
    }
}
