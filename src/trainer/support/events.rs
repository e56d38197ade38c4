//! EventSender for the agent: JSON Lines of [`RankEvent`] on the event socket, and plain lines on stdout.
//!
//! The rank's training loop sends, one writer thread writes. Without `RANKDECK_EVENTS` events go nowhere.
//!
//! Invariants:
//! - EVENTS-1: sending never waits for the agent; the queue holds at most [`CAPACITY`] lines.
//! - EVENTS-2: in a full queue, superseded gauges make room first (counters are cumulative, so a later line
//!   supersedes an earlier one); every line that is lost is counted.
//! - EVENTS-3: each connection begins with `hello`; a line that could not be written whole is sent again on
//!   the next one.
//! - EVENTS-5: of frames of the policy at play, one waits, and a newer one replaces it; all other lines go
//!   first, and sending never waits for it. Another is requested at most every [`FRAME_EVERY`], and only while
//!   an agent is connected: the writer sets a flag, so that the evaluation reads no clock and takes no lock.
//! - EVENTS-4: [`EventSender::finish`] returns within its bound, whatever the agent does.

pub use rankdeck_envs::log::{print_line, warn};

use rankdeck_proto::message::RankEvent;
use rankdeck_proto::show::LiveFrame;
use rankdeck_proto::trust;
use rankdeck_types::ids::{Generation, Rank};
use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Lines kept while the agent does not read.
pub(crate) const CAPACITY: usize = 4096;
/// Longest frame, bytes: the agent takes lines of 64 KiB.
pub(crate) const FRAME_BYTES: usize = 60 << 10;
/// Minimum time between two requested frames.
pub(crate) const FRAME_EVERY: Duration = Duration::from_millis(250);
const RETRY: Duration = Duration::from_millis(250);

#[derive(Default)]
struct EventQueue {
    lines: VecDeque<EventLine>,
    writing: bool,
    closed: bool,
    lost: u64,
    frame: Option<LiveFrame>,
    /// No other frame is requested until then.
    frame_pause: Option<Instant>,
    /// Frames that were replaced, or too long.
    skipped: u64,
}

struct EventLine {
    text: String,
    gauge: bool,
}

struct SharedQueue {
    queue: Mutex<EventQueue>,
    changed: Condvar,
    /// Another frame would be sent.
    frame_requested: AtomicBool,
}

/// The flag of [`EventSender::silent`].
static NEVER_REQUESTED: AtomicBool = AtomicBool::new(false);

impl SharedQueue {
    fn new() -> SharedQueue {
        let frame_requested = AtomicBool::new(false);
        SharedQueue { queue: Mutex::default(), changed: Condvar::new(), frame_requested }
    }

    /// Requests a frame when one is due; returns the time to wait otherwise.
    fn request_frame(&self, queue: &mut EventQueue) -> Option<Duration> {
        let left = queue.frame_pause.map(|until| until.saturating_duration_since(Instant::now()));
        if let Some(left) = left.filter(|left| !left.is_zero()) {
            return Some(left);
        }
        queue.frame_pause = None;
        self.frame_requested.store(true, Ordering::Relaxed);
        None
    }

    fn lock(&self) -> MutexGuard<'_, EventQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sending end.
#[derive(Clone)]
pub struct EventSender {
    shared: Option<Arc<SharedQueue>>,
}

impl EventSender {
    /// Discards all events.
    pub fn silent() -> EventSender {
        EventSender { shared: None }
    }

    /// Sends to the socket at `path`, which may appear, break and come back at any time.
    pub fn to(path: &Path, rank: Rank, generation: Generation) -> EventSender {
        let shared = Arc::new(SharedQueue::new());
        let hello = line(&RankEvent::Hello { rank, generation });
        let (path, theirs) = (path.to_path_buf(), Arc::clone(&shared));
        let spawned =
            std::thread::Builder::new().name("events".into()).spawn(move || serve(&path, &hello, &theirs));
        match spawned {
            Ok(_) => EventSender { shared: Some(shared) },
            Err(error) => {
                warn(&format!("events disabled: cannot start the writer thread: {error}"));
                EventSender::silent()
            }
        }
    }

    /// Queues `event`; returns at once.
    pub fn send(&self, event: &RankEvent) {
        let Some(shared) = &self.shared else { return };
        let gauge =
            matches!(event, RankEvent::Counters(_) | RankEvent::Totals(_) | RankEvent::Scalars { .. });
        let text = line(event);
        let mut queue = shared.lock();
        if queue.lines.len() >= CAPACITY {
            queue.lost += 1;
            match queue.lines.iter().position(|line| line.gauge) {
                Some(oldest) => drop(queue.lines.remove(oldest)),
                None => return,
            }
        }
        queue.lines.push_back(EventLine { text, gauge });
        shared.changed.notify_all();
    }

    /// Has a frame sent, unless a newer one comes before; returns at once.
    pub fn frame(&self, frame: LiveFrame) {
        let Some(shared) = &self.shared else { return };
        let mut queue = shared.lock();
        queue.skipped += u64::from(queue.frame.replace(frame).is_some());
        queue.frame_pause = Some(Instant::now() + FRAME_EVERY);
        shared.frame_requested.store(false, Ordering::Relaxed);
        shared.changed.notify_all();
    }

    /// Whether another frame is requested.
    pub(crate) fn frame_requested(&self) -> &AtomicBool {
        self.shared.as_ref().map_or(&NEVER_REQUESTED, |shared| &shared.frame_requested)
    }

    /// Lines lost so far.
    pub fn lost(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.lock().lost)
    }

    /// Waits until everything is written, at most `within`; false when time is up.
    pub fn finish(&self, within: Duration) -> bool {
        let Some(shared) = &self.shared else { return true };
        let deadline = Instant::now() + within;
        let mut queue = shared.lock();
        queue.closed = true;
        shared.changed.notify_all();
        while !queue.lines.is_empty() || queue.writing {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            queue = shared.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

fn line(event: &RankEvent) -> String {
    let mut text = serde_json::to_string(event).unwrap_or_default();
    text.push('\n');
    text
}

/// The writer thread: ends when the queue is closed and empty; the process's end ends it otherwise.
fn serve(path: &PathBuf, hello: &str, shared: &SharedQueue) {
    loop {
        // The directory is made by an agent, maybe outside of this container: only its owner counts.
        let connection = UnixStream::connect(path)
            .and_then(|stream| trust::check_peer(&stream).map(|()| stream))
            .and_then(|mut stream| stream.write_all(hello.as_bytes()).map(|()| stream));
        if let Ok(stream) = connection
            && write_lines(stream, shared)
        {
            return;
        }
        let queue = shared.lock();
        if queue.closed && queue.lines.is_empty() {
            return;
        }
        drop(shared.changed.wait_timeout(queue, RETRY));
    }
}

/// Writes until the queue is closed and empty (true) or the connection breaks (false).
fn write_lines(mut stream: UnixStream, shared: &SharedQueue) -> bool {
    loop {
        let mut queue = shared.lock();
        loop {
            let rest = shared.request_frame(&mut queue);
            if !queue.lines.is_empty() || queue.frame.is_some() || queue.closed {
                break;
            }
            queue = match rest {
                Some(rest) => {
                    shared.changed.wait_timeout(queue, rest).unwrap_or_else(PoisonError::into_inner).0
                }
                None => shared.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
            };
        }
        let Some(line) = queue.lines.pop_front() else {
            let Some(frame) = queue.frame.take().filter(|_| !queue.closed) else { return true };
            let skipped = queue.skipped;
            drop(queue);
            let text = line(&RankEvent::Frame(Box::new(LiveFrame { skipped, ..frame })));
            match text.len() <= FRAME_BYTES {
                // Half a line would spoil the next one.
                true if stream.write_all(text.as_bytes()).is_err() => return false,
                true => {}
                false => shared.lock().skipped += 1,
            }
            continue;
        };
        queue.writing = true;
        drop(queue);
        let written = stream.write_all(line.text.as_bytes());
        let mut queue = shared.lock();
        queue.writing = false;
        if written.is_err() {
            queue.lines.push_front(line);
            return false;
        }
        shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::message::{Counters, Evaluation};
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    fn counters(env_step: u64) -> RankEvent {
        RankEvent::Counters(Counters { env_step, ..Counters::default() })
    }

    fn eval(train_iter: u64) -> RankEvent {
        RankEvent::Eval(Evaluation { train_iter, ..Evaluation::default() })
    }

    fn read(stream: UnixStream, lines: usize) -> Vec<RankEvent> {
        let lines = BufReader::new(stream).lines().take(lines);
        lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect()
    }

    #[test]
    fn events_3_new_connection_starts_with_hello_and_continues() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let events = EventSender::to(&path, Rank(3), Generation(1));
        let hello = RankEvent::Hello { rank: Rank(3), generation: Generation(1) };
        events.send(&eval(1));
        let first = read(listener.accept().unwrap().0, 2);
        assert_eq!(first, [hello.clone(), eval(1)]);
        // The first connection is closed now. What is sent goes to the next one; only what the kernel had
        // already taken may be missing.
        let sender = {
            let events = events.clone();
            std::thread::spawn(move || (2..200).for_each(|i| events.send(&eval(i))))
        };
        let second = read(listener.accept().unwrap().0, 2);
        assert_eq!(second[0], hello);
        assert!(matches!(&second[1], RankEvent::Eval(e) if e.train_iter >= 2));
        sender.join().unwrap();
        drop(listener);
    }

    #[test]
    fn events_1_and_2_silent_agent_drops_gauges_without_delay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let events = EventSender::to(&path, Rank(0), Generation(0));
        // Without a reader, the kernel's buffer and then the queue fill up.
        events.send(&eval(1));
        let sent = CAPACITY as u64 * 4;
        (0..sent).for_each(|i| events.send(&counters(i)));
        events.send(&eval(2));
        let lost = events.lost();
        assert!(lost > 0);
        assert!(!events.finish(Duration::from_millis(50)));
        let lines = read(listener.accept().unwrap().0, (1 + 2 + sent - lost) as usize);
        assert_eq!(lines[1], eval(1));
        assert_eq!(lines.last(), Some(&eval(2)));
        assert_eq!(lines[lines.len() - 2], counters(sent - 1));
        assert!(events.finish(Duration::from_secs(20)));
    }

    #[test]
    fn events_5_newest_frame_is_sent_and_others_are_counted() {
        use rankdeck_proto::show::{EnvImage, ShownStep};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.sock");
        let events = EventSender::to(&path, Rank(0), Generation(0));
        let expected = |events: &EventSender| events.frame_requested().load(Ordering::Relaxed);
        let frame = |ended| LiveFrame { ended, ..LiveFrame::default() };
        // No agent listens yet.
        (0..5).for_each(|i| events.frame(frame(i)));
        events.send(&eval(1));
        assert!(!expected(&events), "no agent is connected");
        let listener = UnixListener::bind(&path).unwrap();
        let mut received = BufReader::new(listener.accept().unwrap().0);
        let mut next = || {
            let mut line = String::new();
            received.read_line(&mut line).unwrap();
            (serde_json::from_str::<RankEvent>(&line).unwrap(), line.len())
        };
        assert!(matches!(next().0, RankEvent::Hello { .. }));
        assert_eq!(next().0, eval(1), "what must not be lost goes first");
        let newest = LiveFrame { skipped: 4, ..frame(4) };
        assert_eq!(next().0, RankEvent::Frame(Box::new(newest)));
        // A frame that exceeds the socket's line limit is dropped.
        let huge = EnvImage::of(640, 640, &vec![7; 640 * 640 * 3]);
        events
            .frame(LiveFrame { step: ShownStep { picture: Some(huge), ..ShownStep::default() }, ..frame(5) });
        while events.shared.as_ref().unwrap().lock().skipped < 5 {
            std::thread::sleep(Duration::from_millis(1));
        }
        events.frame(frame(6));
        let (last, length) = next();
        assert!(matches!(last, RankEvent::Frame(frame) if (frame.ended, frame.skipped) == (6, 5)));
        assert!(length <= FRAME_BYTES);
        events.frame(frame(7));
        assert!(events.finish(Duration::from_secs(20)), "finish does not wait for a frame");
    }

    #[test]
    fn events_4_finish_is_bounded_without_any_agent() {
        let events = EventSender::to(Path::new("/nonexistent/events.sock"), Rank(0), Generation(0));
        events.send(&eval(1));
        assert!(!events.finish(Duration::from_millis(30)));
        assert!(EventSender::silent().finish(Duration::ZERO));
    }
}
