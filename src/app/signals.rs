//! Signals of the system: SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT.
//!
//! - SIGNAL-1: SIGINT and SIGTERM that arrive together are one stop request; a later one is the next.
//!   `timeout` signals its child and then its whole group, and an ending shell may do both.

use std::io;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

/// Signals within this time after the first one belong to the same request. A user does not react to the
/// first signal any sooner.
const ONE_REQUEST: Duration = Duration::from_millis(500);

/// Separates stop requests (SIGNAL-1).
#[derive(Debug, Default)]
pub(crate) struct StopRequests {
    since: Option<Instant>,
}

impl StopRequests {
    /// Whether a signal at this time is a new request.
    pub(crate) fn is_new(&mut self, now: Instant) -> bool {
        let new = self.since.is_none_or(|since| now.duration_since(since) >= ONE_REQUEST);
        if new {
            self.since = Some(now);
        }
        new
    }
}

/// A signal that the console handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConsoleSignal {
    /// SIGINT or SIGTERM: stop the run; harder each time.
    Stop,
    /// SIGHUP: the terminal is gone; leave the run unchanged.
    HangUp,
    /// SIGTSTP from outside: give the terminal back and stop.
    Suspend,
    /// SIGCONT: after a stop.
    Continue,
}

/// The streams of all signals.
#[derive(Debug)]
pub(crate) struct ConsoleSignals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    suspend: Option<Signal>,
    resume: Signal,
    requests: StopRequests,
}

impl ConsoleSignals {
    /// Installs the handlers. SIGTSTP only `with_screen`: without one, default job control is right.
    pub(crate) fn new(with_screen: bool) -> io::Result<ConsoleSignals> {
        Ok(ConsoleSignals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            suspend: with_screen.then(|| signal(SignalKind::from_raw(libc::SIGTSTP))).transpose()?,
            resume: signal(SignalKind::from_raw(libc::SIGCONT))?,
            requests: StopRequests::default(),
        })
    }

    /// Returns the next signal. Cancel-safe.
    pub(crate) async fn next(&mut self) -> ConsoleSignal {
        loop {
            let signal = self.any().await;
            if signal != ConsoleSignal::Stop || self.requests.is_new(Instant::now()) {
                return signal;
            }
        }
    }

    async fn any(&mut self) -> ConsoleSignal {
        let suspend = async {
            match self.suspend.as_mut() {
                Some(stream) => stream.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(()) = self.interrupt.recv() => ConsoleSignal::Stop,
            Some(()) = self.terminate.recv() => ConsoleSignal::Stop,
            Some(()) = self.hang_up.recv() => ConsoleSignal::HangUp,
            Some(()) = suspend => ConsoleSignal::Suspend,
            Some(()) = self.resume.recv() => ConsoleSignal::Continue,
            else => std::future::pending().await,
        }
    }

    /// Waits for SIGCONT, at most `bound`; earlier ones are forgotten.
    pub(crate) async fn continued(&mut self, bound: std::time::Duration) {
        let _ = tokio::time::timeout(bound, self.resume.recv()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_1_simultaneous_signals_are_one_request() {
        let started = Instant::now();
        let mut requests = StopRequests::default();
        let mut is_new = |ms: u64| requests.is_new(started + Duration::from_millis(ms));
        assert_eq!([0, 0, 3, 499].map(&mut is_new), [true, false, false, false]);
        // Counted from the first signal on, so that holding the keys down works as well.
        assert_eq!([500, 700, 1_000].map(&mut is_new), [true, false, true]);
    }
}
