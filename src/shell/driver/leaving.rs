//! What speaks for leaving the console, and with which exit code.

use super::Why;
use rankdeck_core::report::ReportBody;
use rankdeck_types::ids::Timestamp;

/// How long a console that was told to detach waits for its last orders to leave.
const DETACH_MS: u64 = 2000;
/// Exit code of an interrupted console.
const INTERRUPTED: u8 = 130;

/// What has been said about the end so far.
#[derive(Debug, Default)]
pub(super) struct ExitState {
    /// The code with which the core is done.
    pub(super) exit: Option<u8>,
    /// The driver's own reason to leave at once.
    pub(super) leave: Option<Why>,
    /// Since when the console has been detaching.
    pub(super) detaching: Option<Timestamp>,
    /// The run's last report, while it is over.
    pub(super) finished: Option<ReportBody>,
    /// The user wants to launch another run like this one.
    pub(super) again: bool,
    /// Signals to stop so far.
    pub(super) stop_signals: u32,
}

impl ExitState {
    /// Why to leave now, if so.
    pub(super) fn why(&self, now: Timestamp) -> Option<Why> {
        let left = if self.finished.is_some() { Why::Done } else { Why::Detached };
        let done = self.exit.map(|_| if self.detaching.is_some() { left } else { Why::Done });
        let late = self.detaching.is_some_and(|since| now.since(since) >= DETACH_MS);
        self.leave.or(done).or(late.then_some(left))
    }

    /// When [`ExitState::why`] has to be asked again though nothing happened.
    pub(super) fn poll_timeout(&self) -> Option<Timestamp> {
        self.detaching.map(|since| since.plus(DETACH_MS))
    }

    /// The console's exit code; `of_run`: what the model says of the run.
    pub(super) fn code(&self, why: Why, of_run: Option<u8>) -> u8 {
        match why {
            // Without a code from the core nothing is known to have gone well.
            Why::Done => self.exit.or(of_run).unwrap_or(1),
            Why::Detached => self.exit.unwrap_or(0),
            Why::GaveUp => 3,
            Why::Cut => INTERRUPTED,
        }
    }
}
