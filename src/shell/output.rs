//! How a run is shown: on a screen, as lines, or not at all.

use super::headless::Printer;
use super::linear::LinearScreen;
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
    /// Lines on stdout, and words from stdin.
    Linear(Box<LinearScreen>),
    /// Nothing; the command says what there is to say.
    Quiet,
}

impl Output {
    /// The next input of the terminal, never without somebody who types; a typed line is a paste.
    /// Cancel-safe.
    pub async fn next_input(&mut self) -> Option<TermEvent> {
        match self {
            Output::Screen(screen) => screen.next_input().await,
            Output::Linear(linear) => Some(TermEvent::Paste(linear.next_line().await)),
            Output::Lines(_) | Output::Quiet => std::future::pending().await,
        }
    }

    /// Shows a report; a screen shows the model instead.
    pub fn report(&mut self, now: Timestamp, report: &Report, model: &Model) {
        match self {
            Output::Lines(printer) => printer.report(now, report, model),
            Output::Linear(linear) => linear.report(now, report, model),
            Output::Screen(_) | Output::Quiet => {}
        }
    }

    /// When a frame is due.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        match self {
            Output::Screen(screen) => screen.poll_timeout(),
            Output::Lines(_) | Output::Linear(_) | Output::Quiet => None,
        }
    }

    /// Somebody can look at a run that is over, and say when to leave.
    pub fn can_linger(&self) -> bool {
        match self {
            Output::Screen(_) => true,
            Output::Linear(linear) => !linear.is_deaf(),
            Output::Lines(_) | Output::Quiet => false,
        }
    }
}
