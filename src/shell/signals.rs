//! What the system says: SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT.

use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A signal that the console acts upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signalled {
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
        })
    }

    /// The next one. Cancel-safe.
    pub async fn next(&mut self) -> Signalled {
        let suspend = async {
            match self.suspend.as_mut() {
                Some(stream) => stream.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(()) = self.interrupt.recv() => Signalled::Stop,
            Some(()) = self.terminate.recv() => Signalled::Stop,
            Some(()) = self.hang_up.recv() => Signalled::HangUp,
            Some(()) = suspend => Signalled::Suspend,
            Some(()) = self.resume.recv() => Signalled::Continue,
            else => std::future::pending().await,
        }
    }

    /// Waits for SIGCONT, at most `bound`; forgets earlier ones that wait.
    pub async fn continued(&mut self, bound: std::time::Duration) {
        let _ = tokio::time::timeout(bound, self.resume.recv()).await;
    }
}
