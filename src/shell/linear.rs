//! A run as lines that are answered by typed words: for screen readers, and for terminals without a screen.
//!
//! Owner: the driver's loop. What happens is printed as [`super::headless`] prints it; what is typed goes to
//! [`rankdeck_tui::linear`]. stdin is read only when there is something, and not while a link asks the user:
//! who types a passphrase types it there.

use super::headless::{Form, Pace, Printer};
use rankdeck_core::model::Model;
use rankdeck_core::report::Report;
use rankdeck_tui::Action;
use rankdeck_tui::linear::Linear;
use rankdeck_types::ids::Timestamp;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Time between two lines of figures, unless `--every` says another, ms.
const FIGURES_MS: u64 = 30_000;
/// Longest line.
const LINE_BYTES: usize = 4096;

/// A console of lines.
pub struct LinearScreen {
    printer: Printer,
    /// What is being asked.
    pub words: Linear,
    typed: Option<TypedLines>,
    /// A link asks the user, who answers there.
    asked: bool,
}

impl LinearScreen {
    /// To stdout, from stdin.
    pub fn open(logs: bool, pace: Pace, read_only: bool) -> io::Result<LinearScreen> {
        let pace = Pace { every_ms: pace.every_ms.or(Some(FIGURES_MS)), ..pace };
        let mut words = Linear::default();
        words.view.steering.read_only = read_only;
        let printer = Printer::paced(Form::Plain { logs }, pace)?;
        printer.say("words: `status`, `ranks`, `log 0`, `stop`, `quit`; `help` lists them".to_owned());
        Ok(LinearScreen { printer, words, typed: TypedLines::open().ok(), asked: false })
    }

    /// Nobody can type any more.
    pub fn is_deaf(&self) -> bool {
        self.typed.is_none()
    }

    /// The next typed line; for ever without input. Cancel-safe.
    pub async fn next_line(&mut self) -> String {
        if let (false, Some(typed)) = (self.asked, &mut self.typed) {
            if let Some(line) = typed.next().await {
                return line;
            }
            self.typed = None;
            return String::new();
        }
        std::future::pending().await
    }

    /// Looks at what changed.
    pub fn look(&mut self, model: &Model) {
        self.asked = model.hosts.iter().any(|host| host.prompt.is_some());
    }

    /// Prints a report.
    pub fn report(&mut self, now: Timestamp, report: &Report, model: &Model) {
        self.printer.report(now, report, model);
    }

    /// A line was typed.
    pub fn hear(&mut self, typed: &str, model: &Model, now: Timestamp) -> Vec<Action> {
        let answer = self.words.hear(model, typed, now);
        answer.lines.into_iter().for_each(|line| self.printer.say(line));
        answer.actions
    }
}

/// Lines of stdin, as they come.
struct TypedLines {
    input: AsyncFd<OwnedFd>,
    begun: Vec<u8>,
}

impl TypedLines {
    fn open() -> io::Result<TypedLines> {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        // SAFETY: the descriptor is owned by what is registered, so nobody closes it before that is undone.
        let input = unsafe { AsyncFd::register_with_interest(input, Interest::READABLE) };
        Ok(TypedLines { input: input.map_err(|error| error.into_parts().1)?, begun: Vec::new() })
    }

    /// The next line, `None` at the end. Cancel-safe.
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.begun.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.begun.drain(..=end).collect();
                return Some(String::from_utf8_lossy(&line).trim().to_owned());
            }
            if self.begun.len() > LINE_BYTES {
                self.begun.clear();
            }
            let mut ready = self.input.readable().await.ok()?;
            // The terminal stays in the mode in which it was: a read may wait for somebody to type.
            if !is_readable(self.input.get_ref()) {
                ready.clear_ready();
                continue;
            }
            let mut bytes = [0; 1024];
            match read(self.input.get_ref(), &mut bytes) {
                Ok(0) => return None,
                Ok(count) => self.begun.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }
}

/// There is something to read, or the end.
fn is_readable(input: &OwnedFd) -> bool {
    let mut wanted = libc::pollfd { fd: input.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure, which lives longer than the call.
    unsafe { libc::poll(&mut wanted, 1, 0) > 0 }
}

fn read(input: &OwnedFd, into: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the buffer is as long as is said, and lives longer than the call.
    let count = unsafe { libc::read(input.as_raw_fd(), into.as_mut_ptr().cast(), into.len()) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}
