//! stdout on a thread of its own, so that a slow reader cannot delay the driver.
//!
//! Owner: the thread owns stdout until the last sender is gone. The queue is bounded; when it is full, gauges
//! are dropped and counted, and everything else waits. After a failed write (the reader is gone) all later
//! lines are swallowed: the exit code must still tell the truth.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

const QUEUE: usize = 4096;
/// About the bytes of one write.
const BURST_BYTES: usize = 64 << 10;

/// Lines on their way to stdout.
#[derive(Debug)]
pub struct LineWriter {
    lines: Option<SyncSender<String>>,
    thread: Option<JoinHandle<()>>,
    dropped: Arc<AtomicU64>,
}

impl LineWriter {
    /// Starts the thread; `writer` is stdout outside tests.
    pub fn new(writer: impl Write + Send + 'static) -> std::io::Result<LineWriter> {
        let (lines, queue) = sync_channel(QUEUE);
        let thread =
            std::thread::Builder::new().name("stdout".to_owned()).spawn(move || write_all(writer, &queue))?;
        Ok(LineWriter { lines: Some(lines), thread: Some(thread), dropped: Arc::default() })
    }

    /// A line that must get through; waits while the queue is full.
    pub fn line(&self, line: String) {
        if let Some(lines) = &self.lines {
            let _ = lines.send(line);
        }
    }

    /// A line that a newer one will replace; dropped and counted while the queue is full.
    pub fn gauge(&self, line: String) {
        if let Some(lines) = &self.lines
            && let Err(TrySendError::Full(_)) = lines.try_send(line)
        {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lines dropped so far.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Drop for LineWriter {
    /// Waits until everything is written.
    fn drop(&mut self) {
        self.lines = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Writes what waits in one go, so that a burst of lines is one write.
fn write_all(mut writer: impl Write, queue: &Receiver<String>) {
    let mut open = true;
    while let Ok(first) = queue.recv() {
        let mut text = first + "\n";
        while text.len() < BURST_BYTES
            && let Ok(line) = queue.try_recv()
        {
            text += &line;
            text.push('\n');
        }
        if open {
            open = writer.write_all(text.as_bytes()).and_then(|()| writer.flush()).is_ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::Mutex;
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Says that it has begun to write, and waits until it may.
    struct BlockedSink {
        begun: Sender<()>,
        gate: Receiver<()>,
        sink: Sink,
    }

    impl Write for BlockedSink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.begun.send(());
            let _ = self.gate.recv();
            self.sink.write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn everything_is_written_before_the_end() {
        let sink = Sink::default();
        let output = LineWriter::new(sink.clone()).unwrap();
        (0..10_000).for_each(|n| output.line(n.to_string()));
        drop(output);
        let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 10_000);
        assert_eq!(text.lines().last(), Some("9999"));
    }

    #[test]
    fn a_blocked_reader_costs_gauges_not_time() {
        let ((open, gate), (begun, begins)) = (channel(), channel());
        let sink = Sink::default();
        let output = LineWriter::new(BlockedSink { begun, gate, sink: sink.clone() }).unwrap();
        // Dropped before `output`, which waits for its thread, also when an assertion fails.
        let open = open;
        output.gauge("first".to_owned());
        begins.recv_timeout(Duration::from_secs(20)).expect("it writes");
        (0..QUEUE + 100).for_each(|n| output.gauge(n.to_string()));
        assert_eq!(output.dropped(), 100);
        drop(open);
        drop(output);
        let written = sink.0.lock().unwrap().iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(written, 1 + QUEUE);
    }

    #[test]
    fn a_closed_reader_is_no_error() {
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
        (0..QUEUE * 2).for_each(|n| output.line(n.to_string()));
    }
}
