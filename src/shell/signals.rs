//! What the system says: SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT.
//!
//! - SIGNAL-1: SIGINT and SIGTERM that come at once are one request to stop; one that comes later is the
//!   next. `timeout` signals its child and then its whole group, and a shell that ends may do both.

use std::io;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

/// What comes within this time after the first signal of a request belongs to it. Nobody reads what a first
/// signal did and sends another one sooner.
pub const ONE_REQUEST: Duration = Duration::from_millis(500);

/// Tells requests to stop apart (SIGNAL-1).
#[derive(Debug, Default)]
pub struct StopRequests {
    since: Option<Instant>,
}

impl StopRequests {
    /// Whether a signal at this moment is a request of its own.
    pub fn is_new(&mut self, now: Instant) -> bool {
        let new = self.since.is_none_or(|since| now.duration_since(since) >= ONE_REQUEST);
        if new {
            self.since = Some(now);
        }
        new
    }
}

/// A signal that the console acts upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsoleSignal {
    /// SIGINT or SIGTERM: stop the run; harder each time.
    Stop,
    /// SIGHUP: the terminal is gone; leave the run alone.
    HangUp,
    /// SIGTSTP from outside: give the terminal back and stop.
    Suspend,
    /// SIGCONT: after a stop.
    Continue,
}

/// The streams of all of them.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    suspend: Option<Signal>,
    resume: Signal,
    requests: StopRequests,
}

impl Signals {
    /// Takes them over. SIGTSTP only `with_screen`: without one the system's own job control is right.
    pub fn new(with_screen: bool) -> io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            suspend: with_screen.then(|| signal(SignalKind::from_raw(libc::SIGTSTP))).transpose()?,
            resume: signal(SignalKind::from_raw(libc::SIGCONT))?,
            requests: StopRequests::default(),
        })
    }

    /// The next one. Cancel-safe.
    pub async fn next(&mut self) -> ConsoleSignal {
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

    /// Waits for SIGCONT, at most `bound`; forgets earlier ones that wait.
    pub async fn continued(&mut self, bound: std::time::Duration) {
        let _ = tokio::time::timeout(bound, self.resume.recv()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_1_what_comes_at_once_is_one_request_and_what_comes_later_the_next() {
        let begun = Instant::now();
        let mut requests = StopRequests::default();
        let mut heard = |ms: u64| requests.is_new(begun + Duration::from_millis(ms));
        assert_eq!([0, 0, 3, 499].map(&mut heard), [true, false, false, false]);
        // From its first signal on: whoever presses the keys all the time is heard.
        assert_eq!([500, 700, 1_000].map(&mut heard), [true, false, true]);
    }
}
