//! Line mode: prints lines and reads typed commands, for screen readers and terminals without a screen.
//!
//! Owner: the driver's loop. Events are printed as in [`super::headless`]; typed commands go to
//! [`rankdeck_tui::linear`]. stdin is read only when there is input, and not while a link prompts the user.

use super::headless::{LineFormat, PrintRate, Printer};
use super::signals::ConsoleSignals;
use rankdeck_core::model::Model;
use rankdeck_core::report::Report;
use rankdeck_tui::ScreenAction;
use rankdeck_tui::linear::Linear;
use rankdeck_types::ids::Timestamp;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Default interval between two progress lines, ms (`--every`).
const FIGURES_MS: u64 = 30_000;
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
}

impl LinearScreen {
    /// Opens stdin and stdout.
    pub(crate) fn open(logs: bool, pace: PrintRate, read_only: bool) -> io::Result<LinearScreen> {
        let pace = PrintRate { every_ms: pace.every_ms.or(Some(FIGURES_MS)), ..pace };
        let mut words = Linear::default();
        words.view.steering.read_only = read_only;
        let printer = Printer::paced(LineFormat::Plain { logs }, pace)?;
        printer.print("commands: `status`, `ranks`, `log 0`, `stop`, `quit`; `help` lists all".to_owned());
        Ok(LinearScreen { printer, words, typed: TypedLines::open().ok(), asked: false })
    }

    /// Whether stdin is closed.
    pub(crate) fn is_input_closed(&self) -> bool {
        self.typed.is_none()
    }

    /// Returns the next typed line; pends without input. Cancel-safe.
    pub(crate) async fn next_line(&mut self) -> String {
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
        patient: bool,
    ) -> bool {
        self.printer.finish(model, signals, patient).await
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
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        // SAFETY: the registration owns the descriptor, so it stays open until deregistration.
        let input = unsafe { AsyncFd::register_with_interest(input, Interest::READABLE) };
        Ok(TypedLines { input: input.map_err(|error| error.into_parts().1)?, partial: Vec::new() })
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
            let mut ready = self.input.readable().await.ok()?;
            // The terminal keeps its mode: a read may wait for the user.
            if !is_readable(self.input.get_ref()) {
                ready.clear_ready();
                continue;
            }
            let mut bytes = [0; 1024];
            match read(self.input.get_ref(), &mut bytes) {
                Ok(0) => return None,
                Ok(count) => self.partial.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }
}

/// Whether there is input, or the end.
fn is_readable(input: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: input.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure, which lives longer than the call.
    unsafe { libc::poll(&mut poll, 1, 0) > 0 }
}

fn read(input: &OwnedFd, into: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the buffer has the given length and outlives the call.
    let count = unsafe { libc::read(input.as_raw_fd(), into.as_mut_ptr().cast(), into.len()) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}
