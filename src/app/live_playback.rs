//! Playback of a run that this console follows. A thread reads and decodes segments; the loop of the run takes
//! the latest frame, and waits for nothing.
//!
//! Owner: the driver. A thread that hangs in a disk access is abandoned, together with its cursor.
//!
//! Invariants:
//! - BACK-1: at most [`MOVES`] moves wait; further ones are refused.

use super::clock::Clock;
use super::playback::{PlaybackCursor, behind, latest, marks};
use super::record::reader::RecordError;
use rankdeck_core::model::{Model, RunState};
use rankdeck_tui::time::{TimeCursor, TimeMove, TimelineMark};
use rankdeck_types::ids::Timestamp;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Most moves that wait.
const MOVES: usize = 64;
/// How long a move waits for the recording on disk.
const PATIENCE: Duration = Duration::from_secs(2);

/// A moment of the run.
pub(crate) struct PlaybackFrame {
    pub(crate) model: Model,
    pub(crate) cursor: TimeCursor,
}

/// A move, and how far the recording reaches.
struct PlaybackRequest {
    to: TimeMove,
    end: Timestamp,
    marks: Vec<TimelineMark>,
    /// Disconnected or notified once the recording is on disk.
    written: Option<Receiver<()>>,
}

/// The latest frame that the loop has not taken, or why there is none.
type FrameSlot = Arc<Mutex<Option<Result<PlaybackFrame, String>>>>;

/// The position in the recording that is shown instead of the live state.
pub(crate) struct LivePlayback {
    moves: SyncSender<PlaybackRequest>,
    fresh: FrameSlot,
    shown: Option<PlaybackFrame>,
}

fn put(slot: &FrameSlot, frame: Result<PlaybackFrame, String>) {
    *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(frame);
}

impl LivePlayback {
    /// Starts the thread for the recording in `folder`; `wake` is notified of frames.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(folder: PathBuf, clock: Clock, wake: Arc<Notify>) -> io::Result<LivePlayback> {
        let (moves, inbox) = sync_channel(MOVES);
        let fresh = FrameSlot::default();
        let slot = Arc::clone(&fresh);
        std::thread::Builder::new().name("playback".to_owned()).spawn(move || {
            if let Err(error) = work(folder, clock, &inbox, &slot, &wake) {
                put(&slot, Err(error.to_string()));
                wake.notify_one();
            }
        })?;
        Ok(LivePlayback { moves, fresh, shown: None })
    }

    /// Requests a move; returns whether it was accepted.
    pub(crate) fn request(
        &self,
        to: TimeMove,
        now: Timestamp,
        model: &Model,
        written: Option<Receiver<()>>,
    ) -> bool {
        let request = PlaybackRequest { to, end: latest(model, now), marks: marks(model), written };
        self.moves.try_send(request).is_ok()
    }

    /// Takes a frame that has arrived; returns whether there was one.
    ///
    /// # Errors
    /// The recording cannot be read.
    pub(crate) fn take(&mut self) -> Result<bool, String> {
        let fresh = self.fresh.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(frame) = fresh.transpose()? else { return Ok(false) };
        self.shown = Some(frame);
        Ok(true)
    }

    /// The cursor for the view, with the live state and the clock.
    pub(crate) fn cursor(&self, model: &Model, now: Timestamp) -> Option<TimeCursor> {
        let cursor = self.shown.as_ref()?.cursor.clone();
        // In whole seconds, so that nothing is drawn for less.
        let end = Timestamp(latest(model, now).0 / 1000 * 1000).max(cursor.at);
        Some(TimeCursor { end, over: model.run.state == RunState::Over, behind: behind(model), ..cursor })
    }

    /// The frame to draw, once one has arrived.
    pub(crate) fn shown(&self) -> Option<&PlaybackFrame> {
        self.shown.as_ref()
    }
}

/// Moves until the loop is not interested any more.
fn work(
    folder: PathBuf,
    clock: Clock,
    inbox: &Receiver<PlaybackRequest>,
    slot: &FrameSlot,
    wake: &Notify,
) -> Result<(), RecordError> {
    let mut cursor: Option<PlaybackCursor> = None;
    loop {
        let now = clock.now();
        let due = cursor.as_ref().and_then(|cursor| cursor.poll_timeout(now));
        let next = match due {
            Some(due) => inbox.recv_timeout(Duration::from_millis(due.since(now))),
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match next {
            Ok(request) => {
                perform(&mut cursor, request, &folder, clock)?;
                // Only the last of them is drawn.
                while let Ok(request) = inbox.try_recv() {
                    perform(&mut cursor, request, &folder, clock)?;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        if let Some(cursor) = &mut cursor {
            cursor.advance(clock.now());
            put(slot, Ok(PlaybackFrame { model: cursor.model().clone(), cursor: cursor.shown() }));
            wake.notify_one();
        }
    }
}

fn perform(
    cursor: &mut Option<PlaybackCursor>,
    request: PlaybackRequest,
    folder: &std::path::Path,
    clock: Clock,
) -> Result<(), RecordError> {
    let PlaybackRequest { to, end, marks, written } = request;
    if let Some(written) = written {
        // A hanging disk never replies: then the existing files must do.
        let _ = written.recv_timeout(PATIENCE);
    }
    let moved = match cursor {
        Some(cursor) => {
            cursor.extend(end, marks)?;
            cursor
        }
        None => cursor.insert(PlaybackCursor::live(folder, clock.now(), end, marks)?),
    };
    moved.seek(to, clock.now());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::record::segments::{RecordingLimits, SegmentRing};
    use rankdeck_core::event::Event;
    use rankdeck_core::{Core, Goal};
    use rankdeck_types::ids::RunId;
    use std::sync::mpsc::channel;

    fn recorded(folder: &std::path::Path) -> Core {
        let goal = Goal::Attach { run: RunId("r".into()), hosts: vec!["a".into()] };
        let limits = RecordingLimits { segments: 1 << 20, logs: 1 << 20, events: 500, states: 0, lines: 500 };
        let mut core = Core::new(goal, Vec::new(), Timestamp(0));
        let mut ring = SegmentRing::new(None, folder.into(), limits, Timestamp(0), 100.0).unwrap();
        for n in 0..100 {
            let event = Event::Noticed { text: n.to_string() };
            ring.event(Timestamp(n * 1000), &event, &core);
            core.handle(Timestamp(n * 1000), event);
        }
        ring.finish();
        core
    }

    /// The disk does not respond, or only late: requests return at once.
    #[tokio::test]
    async fn back_1_slow_disk_blocks_no_request_and_moves_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let core = recorded(folder.path());
        let (wake, now) = (Arc::new(Notify::new()), Timestamp(99_000));
        let mut playback =
            LivePlayback::start(folder.path().into(), Clock::new(), Arc::clone(&wake)).unwrap();
        let (disk, written) = channel();
        let to = TimeMove::To(Timestamp(10_000));
        assert!(playback.request(to, now, core.model(), Some(written)));
        let accepted = (0..MOVES * 2).filter(|_| playback.request(to, now, core.model(), None)).count();
        assert!((MOVES - 1..=MOVES + 1).contains(&accepted), "{accepted}");
        assert!(!playback.take().unwrap() && playback.shown().is_none(), "the live state is still shown");
        disk.send(()).unwrap();
        while !playback.take().unwrap() {
            wake.notified().await;
        }
        let shown = playback.shown().unwrap();
        assert_eq!((shown.cursor.at, shown.model.history.len()), (Timestamp(10_000), 11));
    }

    #[tokio::test]
    async fn unreadable_recording_is_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let wake = Arc::new(Notify::new());
        let mut playback =
            LivePlayback::start(folder.path().into(), Clock::new(), Arc::clone(&wake)).unwrap();
        assert!(playback.request(TimeMove::Step(-1000), Timestamp(5), &Model::default(), None));
        let failure = loop {
            match playback.take() {
                Ok(_) => wake.notified().await,
                Err(failure) => break failure,
            }
        };
        assert!(failure.contains("no recording"), "{failure}");
    }
}
