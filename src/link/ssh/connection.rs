//! A logged-in session, and the count of those that are being made.
//!
//! Owner: the thread that made it. Invariants: SSH-5 of the parent module.

use super::Operator;
use super::user_config::SshTarget;
use super::wait::{self, Stall};
use ssh2::Session;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most handshakes in flight with one server, below sshd's default MaxStartups of 10.
pub const MAX_HANDSHAKES: usize = 8;

/// A logged-in session.
pub struct Connection {
    /// The session, non-blocking for good.
    pub session: Session,
    /// Where it leads.
    pub target: SshTarget,
    pub(super) socket: Arc<OwnedFd>,
    // After the session: its bytes go through these. The nearest server is last, so that the farthest tunnel
    // ends first.
    pub(super) relays: Vec<Relay>,
}

impl Connection {
    /// The socket, for `poll`.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// [`wait::until`] on this session.
    pub fn until<T>(
        &self,
        operator: &mut dyn Operator,
        deadline: Instant,
        call: impl FnMut() -> Result<T, ssh2::Error>,
    ) -> Result<T, Stall> {
        wait::until(&self.session, self.fd(), operator, deadline, call)
    }

    /// Name for messages.
    pub fn label(&self) -> &str {
        &self.target.label
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SSH-5. One try to say goodbye; it neither waits nor matters when it does not get through.
        let _ = self.session.disconnect(None, "done", None);
        // SAFETY: the descriptor is open: `self.socket` owns it and is still alive.
        unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

/// A handshake in flight.
#[derive(Debug)]
pub struct Permit(Server);

/// Address and port: what has one MaxStartups.
type Server = (String, u16);

static IN_FLIGHT: Mutex<BTreeMap<Server, usize>> = Mutex::new(BTreeMap::new());
static FREED: Condvar = Condvar::new();

impl Permit {
    /// Waits for a free place at the server of `target`; `None` when the operator closes meanwhile.
    pub(super) fn take(target: &SshTarget, operator: &mut dyn Operator) -> Option<Permit> {
        let server = (target.address.to_lowercase(), target.port);
        let mut counts = IN_FLIGHT.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let count = counts.entry(server.clone()).or_default();
            if *count < MAX_HANDSHAKES {
                *count += 1;
                return Some(Permit(server));
            }
            // Short turns, because the operator's wake-up does not reach a condition variable.
            counts = FREED
                .wait_timeout(counts, Duration::from_millis(50))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            if operator.closing() {
                return None;
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = IN_FLIGHT.lock().unwrap_or_else(PoisonError::into_inner);
        match counts.get_mut(&self.0) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(counts.remove(&self.0)),
        }
        // All of them: the first to wake may be waiting for another server.
        FREED.notify_all();
    }
}

/// A running tunnel; dropped, it ends once the far end of its socket pair is closed.
#[derive(Debug)]
pub struct Relay(Option<JoinHandle<()>>);

impl Relay {
    /// The tunnel that `thread` serves.
    pub(super) fn new(thread: JoinHandle<()>) -> Relay {
        Relay(Some(thread))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            let _ = thread.join();
        }
    }
}
