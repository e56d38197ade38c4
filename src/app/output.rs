//! How a run is shown: on a screen, as lines, or not at all.
//!
//! Line mode: prints lines and reads typed commands, for screen readers and terminals without a screen.
//!
//! Owner: the driver's loop. Events are printed as in [`super::headless`]; typed commands go to
//! [`rankdeck_tui::linear`]. stdin is read only when there is input, and not while a link prompts the user or
//! a restart reads files.

use super::headless::{EndPatience, LineFormat, PrintRate, Printer};
use super::screen::TerminalScreen;
use super::signals::ConsoleSignals;
use super::terminal_input;
use crossterm::event::Event as TermEvent;
use rankdeck_core::model::Model;
use rankdeck_core::report::Report;
use rankdeck_tui::ScreenAction;
use rankdeck_tui::linear::Linear;
use rankdeck_tui::restart_draft::FileAnswer;
use rankdeck_types::ids::Timestamp;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::time::Instant;

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

/// Default interval between two progress lines, ms (`--every`).
const FIGURES_MS: u64 = 30_000;
/// How long typed lines wait for a restart that reads files: its question comes first.
const READING_WITHIN: Duration = Duration::from_secs(2);
/// The same while code is uploaded, which ends by itself.
const UPLOADED_WITHIN: Duration = Duration::from_secs(600);
/// Longest line.
const LINE_BYTES: usize = 4096;

/// A console in line mode.
pub(crate) struct LinearScreen {
    printer: Printer,
    /// The interpreter of typed commands.
    pub(crate) words: Linear,
    typed: Option<TypedLines>,
    /// A link prompts the user.
    asked: bool,
    /// Until when a restart is waited for that reads files.
    held: Option<Instant>,
}

impl LinearScreen {
    /// Opens stdin and stdout.
    pub(crate) fn open(logs: bool, pace: PrintRate, read_only: bool) -> io::Result<LinearScreen> {
        let pace = PrintRate { every_ms: pace.every_ms.or(Some(FIGURES_MS)), ..pace };
        let mut words = Linear::default();
        words.view.steering.read_only = read_only;
        let printer = Printer::paced(LineFormat::Plain { logs }, pace)?;
        printer.print("commands: `status`, `ranks`, `log 0`, `stop`, `quit`; `help` lists all".to_owned());
        Ok(LinearScreen { printer, words, typed: TypedLines::open().ok(), asked: false, held: None })
    }

    /// Whether stdin is closed.
    pub(crate) fn is_input_closed(&self) -> bool {
        self.typed.is_none()
    }

    /// Returns the next typed line; pends without input. Cancel-safe.
    pub(crate) async fn next_line(&mut self) -> String {
        if let Some(until) = self.held {
            tokio::time::sleep_until(until).await;
        }
        if let (false, Some(typed)) = (self.asked, &mut self.typed) {
            if let Some(line) = typed.next().await {
                return line;
            }
            self.typed = None;
            return String::new();
        }
        std::future::pending().await
    }

    /// Updates the state after a change of the model.
    pub(crate) fn observe(&mut self, model: &Model) {
        self.asked = model.hosts.iter().any(|host| host.prompt.is_some());
        let within = if self.words.is_uploading() { UPLOADED_WITHIN } else { READING_WITHIN };
        let until = || self.held.unwrap_or_else(|| Instant::now() + within);
        self.held = self.words.is_waiting().then(until);
    }

    /// Files of the launch have been read.
    pub(crate) fn answer_files(&mut self, answer: FileAnswer, model: &Model) {
        let answer = self.words.answer_files(model, answer);
        answer.lines.into_iter().for_each(|line| self.printer.print(line));
    }

    /// Prints a report.
    pub(crate) fn report(&mut self, now: Timestamp, report: &Report, model: &Model) {
        self.printer.report(now, report, model);
    }

    /// Prints the last lines; returns whether everything was read.
    pub(crate) async fn finish(
        &mut self,
        model: &Model,
        signals: &mut ConsoleSignals,
        patience: EndPatience,
    ) -> bool {
        self.printer.finish(model, signals, patience).await
    }

    /// Handles a typed line.
    pub(crate) fn handle_line(&mut self, typed: &str, model: &Model, now: Timestamp) -> Vec<ScreenAction> {
        let answer = self.words.handle_line(model, typed, now);
        answer.lines.into_iter().for_each(|line| self.printer.print(line));
        answer.actions
    }
}

/// Reads lines from stdin.
struct TypedLines {
    input: AsyncFd<OwnedFd>,
    partial: Vec<u8>,
}

impl TypedLines {
    fn open() -> io::Result<TypedLines> {
        Ok(TypedLines { input: terminal_input::stdin()?, partial: Vec::new() })
    }

    /// The next line, `None` at the end. Cancel-safe.
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.partial.drain(..=end).collect();
                return Some(String::from_utf8_lossy(&line).trim().to_owned());
            }
            if self.partial.len() > LINE_BYTES {
                self.partial.clear();
            }
            self.partial.extend(terminal_input::next_bytes(&self.input).await.ok()?);
        }
    }
}
