//! The only writer to stderr. Removes control characters from untrusted text.
//!
//! Errors, hints and prompts contain text of hosts: output of a login shell, replies of an agent, prompts of
//! a server. Clippy (`clippy.toml`) rejects other ways to stderr. Invariants:
//! - TERM-1: no escape sequence and no control character gets through.
//! - TERM-2: one call writes one line, so that text of a host cannot pass for one of our lines.
//!
//! - TERM-3: a stuck reader delays its caller once by [`WITHIN`], and not again until it reads: the loop of a
//!   run also writes here. [`WAITING_BYTES`] wait; more are dropped and counted, and the count is written
//!   when there is room.
//!
//! A closed stderr is ignored: nothing here fails.

use rankdeck_types::words::{clean, plural};
use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a caller waits for its text to be written, so that other output follows it.
const WITHIN: Duration = Duration::from_millis(200);
/// How long the end of the program waits for queued text.
const AT_END: Duration = Duration::from_secs(2);
/// Most bytes that wait.
const WAITING_BYTES: usize = 1 << 20;

/// Writes one line.
pub(crate) fn line(text: &str) {
    put(&format!("{}\n", clean(text)));
}

/// Writes a line that the next status overwrites.
pub(crate) fn status(text: &str) {
    put(&format!("\r{}\x1b[K", clean(text)));
}

/// Keeps the line of [`status`].
pub(crate) fn end_status() {
    put("\n");
}

/// Removes a line of [`status`].
pub(crate) fn clear_status() {
    put("\r\x1b[K");
}

/// Writes the rows of a list and moves back to the first, so that the next list overwrites it.
pub(crate) fn list(rows: &[String]) {
    let rows: Vec<String> = rows.iter().map(|row| clean(row)).collect();
    let up = match rows.len() {
        0 | 1 => String::new(),
        more => format!("\x1b[{}A", more - 1),
    };
    put(&format!("\r\x1b[J{}{up}\r", rows.join("\r\n")));
}

/// Removes a list.
pub(crate) fn clear_list() {
    put("\r\x1b[J");
}

/// Whether stderr is a terminal.
pub(crate) fn is_terminal() -> bool {
    #[expect(clippy::disallowed_methods, reason = "queries, and writes nothing")]
    io::stderr().is_terminal()
}

/// Waits for queued text, for a limited time, before the program ends.
pub(crate) fn finish() {
    wait(QUEUE.state(), AT_END);
}

fn put(text: &str) {
    if let Some(state) = QUEUE.push(text)
        && !state.stuck
    {
        wait(state, WITHIN);
    }
}

/// The queued text, and the thread that writes it.
struct StderrQueue {
    state: Mutex<PendingTexts>,
    more: Condvar,
    written: Condvar,
}

struct PendingTexts {
    texts: VecDeque<String>,
    bytes: usize,
    writing: bool,
    /// A caller has waited without success.
    stuck: bool,
    /// Texts dropped since they were counted.
    dropped: usize,
    thread: bool,
}

static QUEUE: StderrQueue = StderrQueue::new();

impl StderrQueue {
    const fn new() -> StderrQueue {
        let state = PendingTexts {
            texts: VecDeque::new(),
            bytes: 0,
            writing: false,
            stuck: false,
            dropped: 0,
            thread: false,
        };
        StderrQueue { state: Mutex::new(state), more: Condvar::new(), written: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, PendingTexts> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a text for the thread, if there is room.
    fn push(&'static self, text: &str) -> Option<MutexGuard<'static, PendingTexts>> {
        let mut state = self.state();
        if !state.thread {
            let started = std::thread::Builder::new().name("stderr".to_owned()).spawn(|| self.work());
            // Without a thread, a write could block.
            state.thread = started.is_ok();
            if !state.thread {
                return None;
            }
        }
        if state.bytes + text.len() > WAITING_BYTES {
            state.dropped += 1;
            return None;
        }
        if state.dropped > 0 && state.bytes <= WAITING_BYTES / 2 {
            let lost = plural(std::mem::take(&mut state.dropped), "line");
            state.add(format!("warning: stderr was not read: {lost} lost\n"));
        }
        state.add(text.to_owned());
        self.more.notify_all();
        Some(state)
    }

    fn work(&self) {
        loop {
            let mut state = self.state();
            let text = loop {
                match state.texts.pop_front() {
                    Some(text) => break text,
                    None => state = self.more.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            };
            state.writing = true;
            drop(state);
            write(&text);
            let mut state = self.state();
            state.writing = false;
            state.bytes -= text.len();
            if state.is_idle() {
                state.stuck = false;
                self.written.notify_all();
            }
        }
    }
}

impl PendingTexts {
    fn is_idle(&self) -> bool {
        self.texts.is_empty() && !self.writing
    }

    fn add(&mut self, text: String) {
        self.bytes += text.len();
        self.texts.push_back(text);
    }
}

fn wait(mut state: MutexGuard<'static, PendingTexts>, within: Duration) {
    let deadline = Instant::now() + within;
    while !state.is_idle() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            state.stuck = true;
            return;
        }
        let waited = QUEUE.written.wait_timeout(state, left);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn write(text: &str) {
    #[expect(clippy::disallowed_methods, reason = "the only writer")]
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}
