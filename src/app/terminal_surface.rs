//! The surface of a screen: the terminal with its input, and a scheduler that decides when a frame is drawn.
//!
//! Invariants of [`FrameScheduler`], which has no clock and no terminal:
//! - FRAME-1: after a frame, the next is due only when one is requested again.
//! - FRAME-2: two frames for user input are at least [`INPUT_MS`] apart; such a frame waits for no other one.
//!   A frame for data alone comes [`DATA_MS`] after the last frame at the earliest.
//! - FRAME-3: frames for data take at most one [`SHARE`]th of the time, down to one in [`REST_MS`].

use super::signals::ConsoleSignals;
use super::terminal::{self, Surface};
use crossterm::event::Event as TermEvent;
use futures_util::{Stream, StreamExt};
use rankdeck_types::ids::Timestamp;
use ratatui::Frame;
use ratatui::layout::Size;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Events of the terminal.
pub type Input = Pin<Box<dyn Stream<Item = io::Result<TermEvent>> + Send>>;

/// Longest wait for SIGCONT after stopping ourselves: reached only when the kernel ignored the stop.
const CONTINUE_WITHIN: Duration = Duration::from_millis(250);
/// Least time between frames after keys, mouse and resize: about 30 per second.
const INPUT_MS: u64 = 33;
/// Least time between frames for new data: 10 per second.
const DATA_MS: u64 = 100;
/// Longest time between frames while there is new data, however long one takes to draw.
const REST_MS: u64 = 400;
/// A run with thousands of ranks takes milliseconds to draw and changes constantly.
const SHARE: u32 = 100;

/// What every screen draws on.
pub(crate) struct TerminalSurface {
    pub(crate) terminal: Box<dyn Surface>,
    input: Option<Input>,
    pub(crate) scheduler: FrameScheduler,
    /// The content of the terminal is unknown: clear it before the next frame.
    pub(crate) repaint: bool,
    /// Another program has the terminal.
    lent: bool,
    /// When the current frame started.
    frame_started: Instant,
}

impl TerminalSurface {
    pub(crate) fn new(terminal: Box<dyn Surface>, input: Input) -> TerminalSurface {
        let (scheduler, frame_started) = (FrameScheduler::default(), Instant::now());
        TerminalSurface {
            terminal,
            input: Some(input),
            scheduler,
            repaint: false,
            lent: false,
            frame_started,
        }
    }

    /// Returns the next input. Cancel-safe. `None` once, when the terminal is gone; then it pends.
    pub(crate) async fn next_input(&mut self) -> Option<TermEvent> {
        let Some(input) = self.input.as_mut() else { return std::future::pending().await };
        match input.next().await {
            Some(Ok(event)) => Some(event),
            Some(Err(_)) | None => {
                self.input = None;
                None
            }
        }
    }

    /// Whether nothing can be drawn now: another program has the terminal, or it has not accepted the last
    /// frame yet.
    pub(crate) fn is_closed(&self) -> bool {
        self.lent || self.terminal.is_writing()
    }

    /// Notified when the terminal has accepted the last frame.
    pub(crate) fn wake(&self) -> Arc<Notify> {
        self.terminal.wake()
    }

    /// Starts a frame if one is due and can be drawn; returns its size.
    pub(crate) fn begin(&mut self, now: Timestamp) -> io::Result<Option<Size>> {
        if self.is_closed() || self.scheduler.due().is_none_or(|due| due > now) {
            return Ok(None);
        }
        self.frame_started = Instant::now();
        if std::mem::take(&mut self.repaint) {
            self.terminal.clear()?;
        }
        self.terminal.size().map(Some)
    }

    /// Draws the current frame; `revision` is that of the model.
    pub(crate) fn finish(
        &mut self,
        now: Timestamp,
        revision: u64,
        draw: &mut dyn FnMut(&mut Frame),
    ) -> io::Result<()> {
        self.terminal.draw(draw)?;
        self.scheduler.drawn(now, revision, self.frame_started.elapsed());
        Ok(())
    }

    /// Redraws everything as soon as possible.
    pub(crate) fn redraw(&mut self) {
        self.scheduler.request(FrameReason::Now);
        self.repaint = true;
    }

    /// Gives the terminal to another program: nothing is read or drawn.
    pub(crate) fn lend(&mut self) -> io::Result<()> {
        (self.input, self.lent) = (None, true);
        self.terminal.leave()
    }

    /// Takes the terminal back, with its input.
    pub(crate) fn take_back(&mut self, input: Input) -> io::Result<()> {
        (self.input, self.lent) = (Some(input), false);
        self.terminal.enter()?;
        self.redraw();
        Ok(())
    }

    /// Gives the terminal back, stops for job control, and takes it again.
    pub(crate) async fn suspend(&mut self, signals: &mut ConsoleSignals) -> io::Result<()> {
        self.terminal.leave()?;
        terminal::stop_process_group();
        signals.continued(CONTINUE_WITHIN).await;
        self.terminal.enter()?;
        self.redraw();
        Ok(())
    }
}

/// Why a frame is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FrameReason {
    /// The model changed.
    Data,
    /// User input.
    Input,
    /// The screen was cleared.
    Now,
}

/// Coalesces frame requests.
#[derive(Debug, Clone, Default)]
pub(crate) struct FrameScheduler {
    requested: Option<FrameReason>,
    drawn_at: Option<Timestamp>,
    /// When the last frame for user input was drawn.
    input_at: Option<Timestamp>,
    /// Least time to the next frame for data alone, ms.
    rest_ms: u64,
    drawn_revision: Option<u64>,
}

impl FrameScheduler {
    /// Requests a frame; the most urgent request counts.
    pub(crate) fn request(&mut self, reason: FrameReason) {
        self.requested = self.requested.max(Some(reason));
    }

    /// Requests a frame if the model's revision was not drawn yet.
    pub(crate) fn note_revision(&mut self, revision: u64) {
        if self.drawn_revision != Some(revision) {
            self.request(FrameReason::Data);
        }
    }

    /// When the next frame is due; `None`: nothing to draw.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        let next = |at: Option<Timestamp>, gap: u64| at.map_or(Timestamp(0), |at| at.plus(gap));
        Some(match self.requested? {
            FrameReason::Data => next(self.drawn_at, self.rest_ms),
            FrameReason::Input => next(self.input_at, INPUT_MS),
            FrameReason::Now => Timestamp(0),
        })
    }

    /// A frame of `revision` was drawn at `now` in `took`.
    pub(crate) fn drawn(&mut self, now: Timestamp, revision: u64, took: Duration) {
        let rest_ms = (took.saturating_mul(SHARE).as_millis() as u64).clamp(DATA_MS, REST_MS);
        let input_at = if self.requested > Some(FrameReason::Data) { Some(now) } else { self.input_at };
        *self = FrameScheduler {
            requested: None,
            drawn_at: Some(now),
            drawn_revision: Some(revision),
            input_at,
            rest_ms,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Duration = Duration::from_micros(300);

    #[test]
    fn frame_1_nothing_is_due_without_a_change() {
        let mut scheduler = FrameScheduler::default();
        scheduler.note_revision(7);
        assert_eq!(scheduler.due(), Some(Timestamp(0)));
        scheduler.drawn(Timestamp(1000), 7, FAST);
        scheduler.note_revision(7);
        assert_eq!(scheduler.due(), None);
    }

    #[test]
    fn frame_2_input_does_not_wait_for_data() {
        let mut scheduler = FrameScheduler::default();
        scheduler.drawn(Timestamp(1000), 1, FAST);
        scheduler.note_revision(2);
        assert_eq!(scheduler.due(), Some(Timestamp(1100)));
        scheduler.request(FrameReason::Input);
        assert_eq!(scheduler.due(), Some(Timestamp(0)), "at once");
        scheduler.drawn(Timestamp(1005), 2, FAST);
        scheduler.request(FrameReason::Input);
        assert_eq!(scheduler.due(), Some(Timestamp(1038)));
        scheduler.note_revision(3);
        assert_eq!(scheduler.due(), Some(Timestamp(1038)), "data never postpones input");
        scheduler.request(FrameReason::Now);
        assert!(scheduler.due().is_some_and(|due| due <= Timestamp(1005)));
    }

    #[test]
    fn frame_3_slow_frames_are_rare_but_keys_do_not_wait() {
        for (took_ms, rest_ms) in [(0, 100), (1, 100), (3, 300), (50, 400)] {
            let mut scheduler = FrameScheduler::default();
            scheduler.drawn(Timestamp(1000), 1, Duration::from_millis(took_ms));
            scheduler.note_revision(2);
            assert_eq!(scheduler.due(), Some(Timestamp(1000 + rest_ms)), "{took_ms}");
            scheduler.request(FrameReason::Input);
            assert_eq!(scheduler.due(), Some(Timestamp(0)));
        }
    }

    #[test]
    fn burst_of_changes_is_one_frame() {
        let mut scheduler = FrameScheduler::default();
        scheduler.drawn(Timestamp(0), 0, FAST);
        (1..1000).for_each(|revision| scheduler.note_revision(revision));
        assert_eq!(scheduler.due(), Some(Timestamp(100)));
        scheduler.drawn(Timestamp(100), 999, FAST);
        assert_eq!(scheduler.due(), None);
    }
}
