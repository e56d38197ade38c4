//! How a run is shown: on a screen, as lines, or not at all.

use super::headless::{EndPatience, Printer};
use super::linear::LinearScreen;
use super::screen::TerminalScreen;
use super::signals::ConsoleSignals;
use crossterm::event::Event as TermEvent;
use rankdeck_core::model::Model;
use rankdeck_core::report::Report;
use rankdeck_types::ids::Timestamp;
use std::sync::Arc;
use tokio::sync::Notify;

/// The output of a console.
pub(crate) enum ConsoleOutput {
    /// The full-screen UI.
    Screen(Box<TerminalScreen>),
    /// Lines on stdout.
    Lines(Box<Printer>),
    /// Lines on stdout, and typed commands from stdin.
    Linear(Box<LinearScreen>),
    /// No output; the command prints its result.
    Quiet,
}

impl ConsoleOutput {
    /// Returns the next input of the terminal; pends without one. A typed line is a paste. Cancel-safe.
    pub(crate) async fn next_input(&mut self) -> Option<TermEvent> {
        match self {
            ConsoleOutput::Screen(screen) => screen.next_input().await,
            ConsoleOutput::Linear(linear) => Some(TermEvent::Paste(linear.next_line().await)),
            ConsoleOutput::Lines(_) | ConsoleOutput::Quiet => std::future::pending().await,
        }
    }

    /// Notified when a screen can draw again.
    pub(crate) fn wake(&self) -> Arc<Notify> {
        match self {
            ConsoleOutput::Screen(screen) => screen.wake(),
            ConsoleOutput::Lines(_) | ConsoleOutput::Linear(_) | ConsoleOutput::Quiet => Arc::default(),
        }
    }

    /// Prints a report; a screen shows the model instead.
    pub(crate) fn report(&mut self, now: Timestamp, report: &Report, model: &Model) {
        match self {
            ConsoleOutput::Lines(printer) => printer.report(now, report, model),
            ConsoleOutput::Linear(linear) => linear.report(now, report, model),
            ConsoleOutput::Screen(_) | ConsoleOutput::Quiet => {}
        }
    }

    /// Waits for the reader of lines; returns whether everything was read.
    pub(crate) async fn finish(
        &mut self,
        model: &Model,
        signals: &mut ConsoleSignals,
        patience: EndPatience,
    ) -> bool {
        match self {
            ConsoleOutput::Lines(printer) => printer.finish(model, signals, patience).await,
            ConsoleOutput::Linear(linear) => linear.finish(model, signals, patience).await,
            ConsoleOutput::Screen(_) | ConsoleOutput::Quiet => true,
        }
    }

    /// When the next frame is due.
    pub(crate) fn poll_timeout(&self) -> Option<Timestamp> {
        match self {
            ConsoleOutput::Screen(screen) => screen.poll_timeout(),
            ConsoleOutput::Lines(_) | ConsoleOutput::Linear(_) | ConsoleOutput::Quiet => None,
        }
    }

    /// Whether a user can stay after the end of the run.
    pub(crate) fn can_linger(&self) -> bool {
        match self {
            ConsoleOutput::Screen(_) => true,
            ConsoleOutput::Linear(linear) => !linear.is_input_closed(),
            ConsoleOutput::Lines(_) | ConsoleOutput::Quiet => false,
        }
    }
}
