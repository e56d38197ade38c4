//! A logged-in session of libssh2, the limit on handshakes in flight, and the pool of idle sessions (SSH-1,
//! SSH-5 of the parent module).
//!
//! A launch connects to each host several times: preflight, upload, link. They share one login, because a
//! login may need a one-time code. Invariants:
//! - A session has one owner: a taken session is no longer in the pool.
//! - A session is idle for at most [`MAX_IDLE`], and only without open channels.

use super::SessionOwner;
use super::user_config::SshTarget;
use super::wait::{self, BlockReason};
use ssh2::Session;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Most handshakes in flight per server, below sshd's default MaxStartups of 10.
pub(crate) const MAX_HANDSHAKES: usize = 8;

/// A logged-in session.
pub struct Connection {
    /// The session, always non-blocking.
    pub session: Session,
    pub target: SshTarget,
    pub(super) socket: Arc<OwnedFd>,
    /// The login has asked the user for a password or a code: another one asks again (RING-2 of `auth`).
    pub(super) has_prompted: bool,
}

impl Connection {
    /// Returns the socket, for `poll`.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Calls [`wait::until`] for this session.
    pub fn until<T>(
        &self,
        owner: &mut dyn SessionOwner,
        deadline: Instant,
        call: impl FnMut() -> Result<T, ssh2::Error>,
    ) -> Result<T, BlockReason> {
        wait::until(&self.session, self.fd(), owner, deadline, call)
    }

    /// Returns the name for messages.
    pub fn label(&self) -> &str {
        &self.target.label
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SSH-5. One attempt to disconnect cleanly; it does not block and may fail.
        let _ = self.session.disconnect(None, "done", None);
        // SAFETY: the descriptor is open: `self.socket` owns it and is still alive.
        unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

/// Permit for a handshake in flight.
#[derive(Debug)]
pub struct Permit(Server);

/// Address and port, the scope of MaxStartups.
type Server = (String, u16);

static IN_FLIGHT: Mutex<BTreeMap<Server, usize>> = Mutex::new(BTreeMap::new());
static FREED: Condvar = Condvar::new();

impl Permit {
    /// Waits for a free slot of the server of `target`; `None` if the owner closes the session.
    pub(super) fn take(target: &SshTarget, owner: &mut dyn SessionOwner) -> Option<Permit> {
        let server = (target.address.to_lowercase(), target.port);
        let mut counts = IN_FLIGHT.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let count = counts.entry(server.clone()).or_default();
            if *count < MAX_HANDSHAKES {
                *count += 1;
                return Some(Permit(server));
            }
            // Short waits, because the owner's bell does not wake a condition variable.
            counts = FREED
                .wait_timeout(counts, Duration::from_millis(50))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            if owner.closing() {
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
        // All waiters: the first one may wait for another server.
        FREED.notify_all();
    }
}

/// Longest idle time of a session; the user may read a prompt meanwhile.
const MAX_IDLE: Duration = Duration::from_secs(60);
/// Interval of checks for sessions that were idle too long.
const REAP_INTERVAL: Duration = Duration::from_secs(1);

struct IdleConnection {
    connection: Connection,
    since: Instant,
}

#[derive(Default)]
struct Pool {
    idle: Vec<IdleConnection>,
    /// A thread closes sessions that were idle too long.
    has_reaper: bool,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { idle: Vec::new(), has_reaper: false });

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    /// Takes an idle session to exactly this target, unless its server has closed it.
    pub(crate) fn take_idle(target: &SshTarget) -> Option<Connection> {
        loop {
            let connection = {
                let idle = &mut pool().idle;
                let at = idle.iter().position(|one| one.connection.target == *target)?;
                idle.swap_remove(at).connection
            };
            if is_open(connection.fd()) {
                return Some(connection);
            }
        }
    }

    /// Puts the session into the pool.
    pub(crate) fn put_idle(self) {
        let needs_reaper = {
            let mut pool = pool();
            pool.idle.push(IdleConnection { connection: self, since: Instant::now() });
            !std::mem::replace(&mut pool.has_reaper, true)
        };
        if needs_reaper && thread::Builder::new().name("ssh-pool".into()).spawn(reap).is_err() {
            // Without a reaper, sessions are not pooled.
            let gone = {
                let mut pool = pool();
                pool.has_reaper = false;
                std::mem::take(&mut pool.idle)
            };
            drop(gone);
        }
    }

    /// Closes the idle sessions to this target.
    pub(crate) fn close_idle(target: &SshTarget) {
        let gone: Vec<IdleConnection> = {
            let mut pool = pool();
            let (ended, others) =
                std::mem::take(&mut pool.idle).into_iter().partition(|one| one.connection.target == *target);
            pool.idle = others;
            ended
        };
        drop(gone);
    }
}

/// Closes sessions that were idle too long, until the pool is empty.
fn reap() {
    loop {
        thread::sleep(REAP_INTERVAL);
        // Close sessions without the lock: it may take a moment.
        let (gone, empty) = {
            let mut pool = pool();
            let (old, fresh) =
                std::mem::take(&mut pool.idle).into_iter().partition(|one| one.since.elapsed() >= MAX_IDLE);
            pool.idle = fresh;
            pool.has_reaper = !pool.idle.is_empty();
            let gone: Vec<IdleConnection> = old;
            (gone, !pool.has_reaper)
        };
        drop(gone);
        if empty {
            return;
        }
    }
}

/// Returns whether the peer has not closed this socket; unread bytes may remain.
pub(super) fn is_open(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: `poll` is one live entry for the length of the call, which does not wait.
    let count = unsafe { libc::poll(&raw mut poll, 1, 0) };
    count == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn closed_session_is_not_reused() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(is_open(ours.as_raw_fd()));
        std::io::Write::write_all(&mut &theirs, b"x").unwrap();
        assert!(is_open(ours.as_raw_fd()), "unread bytes are not an end");
        drop(theirs);
        assert!(!is_open(ours.as_raw_fd()));
    }
}
