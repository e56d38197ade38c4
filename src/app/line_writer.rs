//! Writes lines to stdout on its own thread: a slow or stuck reader delays no policy, detector or link.
//!
//! Owner: the thread owns stdout until the last line is written. Invariants:
//! - LINES-1: queuing a line never blocks. [`QUEUE_BYTES`] of lines wait for the reader, [`GAUGE_BYTES`]
//!   including gauges; the rest is dropped and counted. The last lines always fit.
//! - LINES-2: the count is printed as soon as there is room again ([`LineWriter::take_dropped`]).
//! - LINES-3: the end waits for a reader that reads, however slowly, and [`PATIENCE`] for one that does not:
//!   [`HURRY`] if a signal asks for the end.
//!
//! After a failed write (the reader is gone) all later lines are dropped: the exit code must still be right.

use super::stderr;
use rankdeck_types::words::plural;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Most bytes that wait for the reader.
const QUEUE_BYTES: usize = 16 << 20;
/// Most bytes that wait when a gauge arrives; newer gauges replace it.
const GAUGE_BYTES: usize = 4 << 20;
/// Bytes of one write, so that a slow reader is not mistaken for a stuck one.
const WRITE_BYTES: usize = 4096;
/// Memory of a line besides its text.
const LINE_BYTES: usize = 64;
/// How long the end waits for a reader that does not read.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The same after a signal.
pub(crate) const HURRY: Duration = Duration::from_secs(1);

/// The sending end.
#[derive(Debug)]
pub(crate) struct LineWriter {
    shared: Arc<LineQueue>,
    /// Whether the end no longer waits.
    given_up: bool,
}

#[derive(Debug, Default)]
struct LineQueue {
    state: Mutex<PendingLines>,
    /// There is a line, or no more will come.
    more: Condvar,
    /// The reader has read something.
    moved: Condvar,
    /// The same for the event loop.
    wake: Notify,
}

#[derive(Debug, Default)]
struct PendingLines {
    lines: VecDeque<String>,
    /// Bytes of these lines, and of the one that is being written.
    bytes: usize,
    /// Lines that the reader has not received yet.
    unread: usize,
    /// Writes so far.
    writes: u64,
    /// Lines dropped since they were counted.
    dropped: u64,
    closed: bool,
    gone: bool,
}

impl LineQueue {
    fn state(&self) -> MutexGuard<'_, PendingLines> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LineWriter {
    /// Starts the thread; `writer` is stdout outside tests.
    pub(crate) fn new(writer: impl Write + Send + 'static) -> io::Result<LineWriter> {
        let shared = Arc::<LineQueue>::default();
        let own = Arc::clone(&shared);
        std::thread::Builder::new().name("stdout".to_owned()).spawn(move || write_lines(writer, &own))?;
        Ok(LineWriter { shared, given_up: false })
    }

    /// Queues a line; dropped and counted if the reader is far behind.
    pub(crate) fn line(&self, line: String) {
        self.push(line, QUEUE_BYTES);
    }

    /// Queues a line that a newer one replaces; dropped and counted sooner.
    pub(crate) fn gauge(&self, line: String) {
        self.push(line, GAUGE_BYTES);
    }

    /// Queues a line that is never dropped: the outcome, and the number of dropped lines.
    pub(crate) fn last_words(&self, line: String) {
        self.push(line, usize::MAX);
    }

    /// Returns how many lines were dropped, once there is room to print it.
    pub(crate) fn take_dropped(&self) -> Option<u64> {
        let mut state = self.shared.state();
        let room = state.bytes <= GAUGE_BYTES / 2;
        (state.dropped > 0 && room).then(|| std::mem::take(&mut state.dropped))
    }

    /// The same at the end, where it is always printed.
    pub(crate) fn take_all_dropped(&self) -> Option<u64> {
        let dropped = std::mem::take(&mut self.shared.state().dropped);
        (dropped > 0).then_some(dropped)
    }

    /// Waits until few lines are queued. For programs without other work: a replay.
    pub(crate) fn wait_for_room(&self) {
        let mut state = self.shared.state();
        while state.bytes > GAUGE_BYTES / 2 && !state.gone {
            state = self.shared.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until everything is read, however long that takes.
    pub(crate) fn wait(&self) {
        let mut state = self.shared.state();
        while state.unread > 0 && !state.gone {
            state = self.shared.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until everything is read, or nothing was read for this long. Cancel-safe.
    pub(crate) async fn written(&self, patience: Duration) {
        loop {
            let moved = self.shared.wake.notified();
            {
                let state = self.shared.state();
                if state.unread == 0 || state.gone {
                    return;
                }
            }
            if tokio::time::timeout(patience, moved).await.is_err() {
                return;
            }
        }
    }

    /// Stops waiting; returns how many lines are lost by that.
    pub(crate) fn give_up(&mut self) -> usize {
        self.given_up = true;
        let state = self.shared.state();
        if state.gone { 0 } else { state.unread }
    }

    fn push(&self, line: String, most: usize) {
        let mut state = self.shared.state();
        if state.gone {
            return;
        }
        let bytes = line.len() + LINE_BYTES;
        if state.bytes.saturating_add(bytes) > most {
            state.dropped += 1;
            return;
        }
        state.bytes += bytes;
        state.unread += 1;
        state.lines.push_back(line);
        self.shared.more.notify_all();
    }
}

impl Drop for LineWriter {
    /// Waits for the reader (LINES-3), unless that was done before.
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.closed = true;
        self.shared.more.notify_all();
        while !self.given_up && state.unread > 0 && !state.gone {
            let before = state.writes;
            let waited = self.shared.moved.wait_timeout(state, PATIENCE);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if state.writes == before && !state.gone && state.unread > 0 {
                let lost = plural(state.unread, "line");
                drop(state);
                return stderr::line(&format!("warning: stdout was not read: {lost} lost"));
            }
        }
    }
}

/// Writes the queue, a few lines or a part of one at a time.
fn write_lines(mut writer: impl Write, shared: &LineQueue) {
    let mut text: Vec<u8> = Vec::new();
    loop {
        let (mut taken, mut bytes) = (0, 0);
        {
            let mut state = shared.state();
            while state.lines.is_empty() && !state.closed {
                state = shared.more.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.lines.is_empty() {
                return;
            }
            while text.len() < WRITE_BYTES
                && let Some(line) = state.lines.pop_front()
            {
                (taken, bytes) = (taken + 1, bytes + line.len() + LINE_BYTES);
                text.extend_from_slice(line.as_bytes());
                text.push(b'\n');
            }
        }
        let parts = text.len().div_ceil(WRITE_BYTES);
        for (number, part) in text.chunks(WRITE_BYTES).enumerate() {
            let written = writer.write_all(part).and_then(|()| writer.flush());
            let mut state = shared.state();
            state.writes += 1;
            if number + 1 == parts {
                state.unread -= taken;
                state.bytes -= bytes;
            }
            if written.is_err() {
                state.gone = true;
                (state.lines, state.bytes) = (VecDeque::new(), 0);
            }
            let gone = state.gone;
            drop(state);
            shared.moved.notify_all();
            shared.wake.notify_one();
            if gone {
                return;
            }
        }
        text.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Sink {
        fn lines(&self) -> Vec<String> {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap().lines().map(str::to_owned).collect()
        }
    }

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Signals the start of a write, and blocks until released.
    struct BlockedSink {
        started: Sender<()>,
        gate: Receiver<()>,
        sink: Sink,
    }

    impl Write for BlockedSink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.started.send(());
            let _ = self.gate.recv();
            self.sink.write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_3_everything_is_written_before_the_end() {
        let sink = Sink::default();
        let output = LineWriter::new(sink.clone()).unwrap();
        (0..10_000).for_each(|n| output.line(n.to_string()));
        output.line("x".repeat(3 * WRITE_BYTES));
        drop(output);
        let lines = sink.lines();
        assert_eq!(lines.len(), 10_001);
        assert_eq!((lines[9_999].as_str(), lines[10_000].len()), ("9999", 3 * WRITE_BYTES));
    }

    /// LINES-1, LINES-2.
    #[test]
    fn lines_1_blocked_reader_drops_and_counts_lines() {
        let ((open, gate), (started, begins)) = (channel(), channel());
        let sink = Sink::default();
        let output = LineWriter::new(BlockedSink { started, gate, sink: sink.clone() }).unwrap();
        // Dropped before `output`, which waits for its thread, even when an assertion fails.
        let open = open;
        output.line("first".to_owned());
        begins.recv_timeout(Duration::from_secs(60)).expect("it writes");
        let text = "x".repeat(1 << 16);
        // More than may wait: none of these calls blocks.
        (0..400).for_each(|_| output.gauge(text.clone()));
        (0..400).for_each(|_| output.line(text.clone()));
        output.last_words("the end".to_owned());
        assert_eq!(output.take_dropped(), None, "there is no room to print it");
        drop(open);
        output.wait();
        let dropped = output.take_dropped().expect("lines were dropped") as usize;
        assert_eq!(output.take_dropped(), None, "counted once");
        let lines = sink.lines();
        assert_eq!(lines.len() + dropped, 1 + 800 + 1);
        assert_eq!(lines.last().map(String::as_str), Some("the end"));
        assert!(lines.len() * text.len() <= QUEUE_BYTES + text.len());
    }

    #[tokio::test]
    async fn lines_3_end_after_a_signal_waits_for_a_slow_reader_only() {
        let ((open, gate), (started, _begins)) = (channel(), channel());
        let sink = Sink::default();
        let mut output = LineWriter::new(BlockedSink { started, gate, sink: sink.clone() }).unwrap();
        (0..4).for_each(|_| output.line("x".repeat(WRITE_BYTES)));
        let reader = std::thread::spawn(move || {
            // Two writes for each; together they take longer than the end waits for one.
            for _ in 0..8 {
                std::thread::sleep(HURRY / 2);
                open.send(()).unwrap();
            }
            open
        });
        output.written(HURRY * 3).await;
        assert_eq!((sink.lines().len(), output.give_up()), (4, 0));
        let _open = reader.join().unwrap();
        output.line("unread".to_owned());
        let began = std::time::Instant::now();
        output.written(Duration::from_millis(50)).await;
        assert!(began.elapsed() < PATIENCE);
        assert_eq!(output.give_up(), 1);
    }

    #[test]
    fn lines_3_end_after_giving_up_does_not_wait() {
        let ((open, gate), (started, _begins)) = (channel::<()>(), channel());
        let mut output = LineWriter::new(BlockedSink { started, gate, sink: Sink::default() }).unwrap();
        (0..3).for_each(|n| output.line(n.to_string()));
        assert_eq!(output.give_up(), 3);
        drop(output);
        drop(open);
    }

    #[tokio::test]
    async fn closed_reader_is_ignored() {
        struct ClosedSink;
        impl Write for ClosedSink {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let output = LineWriter::new(ClosedSink).unwrap();
        (0..10_000).for_each(|n| output.line(n.to_string()));
        output.written(PATIENCE).await;
    }
}
