//! How a run is shown: on a screen, as lines, or not at all.

use super::headless::Printer;
use super::screen::Screen;
use crossterm::event::Event as TermEvent;
use rankdeck_core::model::Model;
use rankdeck_core::report::Report;
use rankdeck_types::ids::Timestamp;

/// Where a console shows its run.
pub enum Output {
    /// A terminal that shows the full screen.
    Screen(Box<Screen>),
    /// Lines on stdout.
    Lines(Box<Printer>),
    /// Nothing; the command says what there is to say.
    Quiet,
}

impl Output {
    /// The next input of the terminal, never without a screen. Cancel-safe.
    pub async fn next_input(&mut self) -> Option<TermEvent> {
        match self {
            Output::Screen(screen) => screen.next_input().await,
            Output::Lines(_) | Output::Quiet => std::future::pending().await,
        }
    }

    /// Shows a report; a screen shows the model instead.
    pub fn report(&mut self, now: Timestamp, report: &Report, model: &Model) {
        if let Output::Lines(printer) = self {
            printer.report(now, report, model);
        }
    }

    /// When a frame is due.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        match self {
            Output::Screen(screen) => screen.poll_timeout(),
            Output::Lines(_) | Output::Quiet => None,
        }
    }
}
