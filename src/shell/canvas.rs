//! A terminal that is drawn on: what it sends, and when its next frame is due.

use super::frames::{FrameReason, Pacer};
use super::signals::Signals;
use super::terminal::{self, Surface};
use crossterm::event::Event as TermEvent;
use futures_util::{Stream, StreamExt};
use rankdeck_types::ids::Timestamp;
use ratatui::Frame;
use ratatui::layout::Size;
use std::io;
use std::pin::Pin;
use std::time::{Duration, Instant};

/// What the terminal sends.
pub type Input = Pin<Box<dyn Stream<Item = io::Result<TermEvent>> + Send>>;

/// Longest wait for SIGCONT after stopping ourselves: reached only when the kernel ignored the stop.
const CONTINUE_WITHIN: Duration = Duration::from_millis(250);

/// What every screen draws on.
pub(super) struct Canvas {
    pub(super) surface: Box<dyn Surface>,
    input: Option<Input>,
    pub(super) pacer: Pacer,
    /// What is on the terminal is not known: clear it before the next frame.
    pub(super) repaint: bool,
    /// Somebody else has the terminal.
    pub(super) lent: bool,
    /// When the present frame began.
    begun: Instant,
}

impl Canvas {
    pub(super) fn new(surface: Box<dyn Surface>, input: Input) -> Canvas {
        let (pacer, begun) = (Pacer::default(), Instant::now());
        Canvas { surface, input: Some(input), pacer, repaint: false, lent: false, begun }
    }

    /// The next input. Cancel-safe. `None` once: the terminal is gone; then never again.
    pub(super) async fn next_input(&mut self) -> Option<TermEvent> {
        let Some(input) = self.input.as_mut() else { return std::future::pending().await };
        match input.next().await {
            Some(Ok(event)) => Some(event),
            Some(Err(_)) | None => {
                self.input = None;
                None
            }
        }
    }

    /// Begins a frame if one is due; gives its size then.
    pub(super) fn begin(&mut self, now: Timestamp) -> io::Result<Option<Size>> {
        if self.lent || self.pacer.due().is_none_or(|due| due > now) {
            return Ok(None);
        }
        self.begun = Instant::now();
        if std::mem::take(&mut self.repaint) {
            self.surface.clear()?;
        }
        self.surface.size().map(Some)
    }

    /// Draws the frame that has begun; `revision`: of what it shows.
    pub(super) fn finish(
        &mut self,
        now: Timestamp,
        revision: u64,
        draw: &mut dyn FnMut(&mut Frame),
    ) -> io::Result<()> {
        self.surface.draw(draw)?;
        self.pacer.drawn(now, revision, self.begun.elapsed());
        Ok(())
    }

    /// Draws all of it anew as soon as possible.
    pub(super) fn redraw(&mut self) {
        self.pacer.want(FrameReason::Now);
        self.repaint = true;
    }

    /// Leaves the terminal to somebody else: nothing is read from it or drawn on it.
    pub(super) fn lend(&mut self) -> io::Result<()> {
        (self.input, self.lent) = (None, true);
        self.surface.leave()
    }

    /// Takes the terminal again, and what it sends.
    pub(super) fn take_back(&mut self, input: Input) -> io::Result<()> {
        (self.input, self.lent) = (Some(input), false);
        self.surface.enter()?;
        self.redraw();
        Ok(())
    }

    /// Gives the terminal back, stops as job control wants it, and takes it again.
    pub(super) async fn suspend(&mut self, signals: &mut Signals) -> io::Result<()> {
        self.surface.leave()?;
        terminal::stop_process_group();
        signals.continued(CONTINUE_WITHIN).await;
        self.surface.enter()?;
        self.redraw();
        Ok(())
    }
}
