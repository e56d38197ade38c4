//! What a worker writes on standard error: passed on to the rank's log line by line, the last lines kept for
//! error messages.
//!
//! Owner: a thread per worker, which ends when the last process that holds the pipe's other end does.
//! Bounded: [`KEPT`] lines of at most [`LONGEST`] bytes; longer lines are cut into several.

use crate::log::warn;
use std::collections::VecDeque;
use std::io::Read;
use std::process::ChildStderr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

const KEPT: usize = 60;
const LONGEST: usize = 2000;

/// The last lines.
pub(super) struct LogTail {
    lines: Mutex<LastLines>,
    changed: Condvar,
}

#[derive(Default)]
struct LastLines {
    last: VecDeque<String>,
    /// Lines since the start.
    count: u64,
    ended: bool,
}

impl LogTail {
    /// Follows a pipe until its end.
    pub(super) fn follow(pipe: ChildStderr) -> Arc<LogTail> {
        let tail = Arc::new(LogTail { lines: Mutex::default(), changed: Condvar::new() });
        let theirs = Arc::clone(&tail);
        let thread = std::thread::Builder::new().name("env-log".into());
        if thread.spawn(move || theirs.run(pipe)).is_err() {
            tail.lock().ended = true;
        }
        tail
    }

    fn run(&self, mut pipe: ChildStderr) {
        let (mut rest, mut chunk) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = pipe.read(&mut chunk) {
            for byte in &chunk[..count] {
                if *byte != b'\n' {
                    rest.push(*byte);
                }
                if *byte == b'\n' || rest.len() >= LONGEST {
                    self.add(&rest);
                    rest.clear();
                }
            }
        }
        if !rest.is_empty() {
            self.add(&rest);
        }
        self.lock().ended = true;
        self.changed.notify_all();
    }

    fn add(&self, line: &[u8]) {
        let line = String::from_utf8_lossy(line).trim_end().to_string();
        warn(&format!("env worker: {line}"));
        let mut lines = self.lock();
        if lines.last.len() == KEPT {
            lines.last.pop_front();
        }
        lines.last.push_back(line);
        lines.count += 1;
        drop(lines);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, LastLines> {
        self.lines.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Lines so far.
    pub(super) fn count(&self) -> u64 {
        self.lock().count
    }

    /// The last line that is not empty.
    pub(super) fn last(&self) -> Option<String> {
        self.lock().last.iter().rev().find(|line| !line.is_empty()).cloned()
    }

    /// All lines that are kept.
    pub(super) fn text(&self) -> String {
        self.lock().last.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// Waits until the pipe has ended.
    pub(super) fn wait_for_end(&self, within: Duration) {
        let lines = self.lock();
        let _unused = self.changed.wait_timeout_while(lines, within, |lines| !lines.ended);
    }

    /// The lines after the first `before` ones, once Python's stack of the main thread, which comes last, is
    /// among them.
    pub(super) fn stack_after(&self, before: u64, within: Duration) -> Vec<String> {
        let deadline = Instant::now() + within;
        // The end of a stack is not marked; it is complete when no line follows its first frames for a while.
        const PAUSE: Duration = Duration::from_millis(100);
        let mut lines = self.lock();
        loop {
            let new = (lines.count - before).min(lines.last.len() as u64) as usize;
            let added: Vec<String> = lines.last.iter().skip(lines.last.len() - new).cloned().collect();
            let begun = added.iter().position(|line| line.starts_with("Current thread"));
            let is_whole = begun.is_some_and(|at| added.len() > at + 1);
            let wait = if is_whole { PAUSE } else { deadline.saturating_duration_since(Instant::now()) };
            let count = lines.count;
            let (guard, timeout) =
                match self.changed.wait_timeout_while(lines, wait, |l| l.count == count && !l.ended) {
                    Ok(waited) => waited,
                    Err(_) => return added,
                };
            lines = guard;
            if timeout.timed_out() || lines.ended && lines.count == count || Instant::now() >= deadline {
                return begun.map_or(added.clone(), |at| added[at..].to_vec());
            }
        }
    }
}
