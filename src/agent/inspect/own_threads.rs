//! Follows a main thread that waits for another thread of its process: a future, a pool, a queue, a join.
//!
//! Which thread will end such a wait cannot be seen. Candidates are the threads that run code of the program, and
//! those that take the results of a pool's workers: trackers and writers run code of libraries only. A lock that
//! the program takes itself is not followed: its holder may be any thread.

use super::syscall::{self, SyscallWait};
use super::{awaited, obstacle, sockets};
use rankdeck_proto::inspection::{Obstacle, StackMethod, ThreadStack};
use rankdeck_proto::stack_frames::FrameOwner;

/// Parts of Python's library in which a thread waits for others of its process.
const WAITS: [&str; 5] =
    ["/concurrent/futures/", "/multiprocessing/pool.py", "/threading.py", "/queue.py", "/asyncio/"];
/// Where the thread of a pool waits that takes the results of its workers.
const RESULTS: (&str, &str) = ("/multiprocessing/pool.py", "_handle_results");

/// What the threads wait for that a main thread waits for.
#[derive(Debug, Default)]
pub(super) struct ThreadWait {
    /// The first of them: its name and line.
    pub thread: String,
    /// Processes at the other ends.
    pub processes: Vec<u32>,
    /// Milliseconds until the first of them wakes by itself.
    pub sleep_ms: Option<u64>,
    pub obstacles: Vec<Obstacle>,
}

/// Follows the wait of the main thread of `pid` by the stacks of its threads; `None` if it waits for no thread.
pub(super) fn follow(pid: u32, stacks: &[ThreadStack], tcp: &[sockets::Tcp]) -> Option<ThreadWait> {
    let main = syscall::call(pid, pid).filter(|call| call.number == Some(libc::SYS_futex))?;
    let python = || stacks.iter().filter(|stack| stack.how == StackMethod::Python);
    let waits = |stack: &ThreadStack| {
        let innermost = stack.frames.iter().take_while(|frame| frame.owner() == FrameOwner::System);
        innermost
            .filter_map(|frame| frame.file.as_deref())
            .any(|file| WAITS.iter().any(|part| file.contains(part)))
    };
    python().find(|stack| stack.tid == pid && waits(stack))?;
    let mut found = ThreadWait::default();
    for stack in python().filter(|stack| stack.tid != pid && is_candidate(stack)) {
        // Stacks of child processes are among them.
        let Some(call) = syscall::call(pid, stack.tid).filter(|call| *call != main) else { continue };
        found.add(pid, stack, &call, tcp);
    }
    (!found.thread.is_empty()).then_some(found)
}

/// The thread may end the wait: it runs code of the program, or takes the results of a pool.
fn is_candidate(stack: &ThreadStack) -> bool {
    stack.frames.iter().any(|frame| {
        let file = frame.file.as_deref().unwrap_or_default();
        frame.owner() == FrameOwner::Program
            || (file.ends_with(RESULTS.0) && frame.function.ends_with(RESULTS.1))
    })
}

impl ThreadWait {
    fn add(&mut self, pid: u32, stack: &ThreadStack, call: &SyscallWait, tcp: &[sockets::Tcp]) {
        let processes = awaited::processes(pid, call);
        let obstacle = obstacle::find(pid, call, tcp).or_else(|| obstacle::in_memory(pid, call, tcp));
        let sleep_ms = awaited::by_clock_ms(pid, call);
        if processes.is_empty() && obstacle.is_none() && sleep_ms.is_none() {
            return;
        }
        if self.thread.is_empty() {
            let frame = stack.frames.iter().find(|frame| frame.owner() != FrameOwner::System);
            let at = frame.map(|frame| format!(" at {}", frame.place())).unwrap_or_default();
            self.thread = format!("{}{at}", if stack.name.is_empty() { "?" } else { &stack.name });
        }
        self.processes.extend(processes.into_iter().filter(|process| *process != pid));
        self.processes.sort_unstable();
        self.processes.dedup();
        self.sleep_ms = self.sleep_ms.into_iter().chain(sleep_ms).min();
        self.obstacles.extend(obstacle);
    }
}

#[cfg(test)]
mod tests {
    use crate::inspect::tests::Victim;
    use rankdeck_proto::inspection::{Obstacle, StackMethod};

    #[test]
    fn wait_for_a_future_ends_at_its_connection() {
        let code = "import socket\nfrom concurrent.futures import ThreadPoolExecutor\n\
            server = socket.create_server(('127.0.0.1', 0))\n\
            client = socket.create_connection(server.getsockname())\n\
            def judge(): return client.recv(1)\n\
            ThreadPoolExecutor(1).submit(judge).result()";
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("judge.py");
        std::fs::write(&script, code).unwrap();
        let victim = Victim::start("python3", &[script.to_str().unwrap()]);
        victim.until("the connection is named", || {
            matches!(victim.inspection().obstacle, Some(Obstacle::Connection { .. }))
        });
        let words = victim.inspection().blocked_on.unwrap_or_default();
        assert!(words.contains("judge.py:5"), "{words}");
    }

    #[test]
    fn wait_for_a_pool_ends_at_its_sleeping_worker() {
        let code = "import multiprocessing, time\nmultiprocessing.Pool(2).map(time.sleep, [500, 500])";
        let victim = Victim::start("python3", &["-c", code]);
        let mut left = None;
        victim.until("a worker sleeps", || {
            left = victim.inspection().awaited_sleep_ms;
            left.is_some()
        });
        assert!(left.is_some_and(|left| left <= 500_000), "{left:?}");
        assert!(!victim.inspection().awaits.is_empty());
    }

    #[test]
    fn lock_of_the_program_is_not_followed() {
        let code = "import threading, time\n\
            def work(): time.sleep(500)\n\
            threading.Thread(target=work, daemon=True).start()\n\
            lock = threading.Lock()\nlock.acquire()\nlock.acquire()";
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("lock.py");
        std::fs::write(&script, code).unwrap();
        let victim = Victim::start("python3", &[script.to_str().unwrap()]);
        let mut found = victim.inspection();
        victim.until("it waits for the lock", || {
            found = victim.inspection();
            let python = found.threads.iter().filter(|stack| stack.how == StackMethod::Python);
            found.os.syscall.as_deref() == Some("futex") && python.count() == 2
        });
        assert_eq!((found.awaited_sleep_ms, found.obstacle), (None, None));
    }
}
