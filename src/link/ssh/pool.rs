//! Logged-in sessions between two uses.
//!
//! A launch goes to each host several times: the preflight, the code, the link. One login serves them all,
//! because a login may cost the user a code that is valid once. Owner: this module, while a session waits;
//! whoever takes it owns it. Invariants:
//! - A session has one owner: what is taken is no longer here.
//! - A session waits [`WAITING`] at most, and only when no channel of it is open.

use super::connection::Connection;
use super::user_config::SshTarget;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a session waits for its next use; the user may read a question between two.
const WAITING: Duration = Duration::from_secs(60);
/// Between two looks for sessions that have waited too long.
const LOOKS: Duration = Duration::from_secs(1);

struct IdleConnection {
    connection: Connection,
    since: Instant,
}

#[derive(Default)]
struct Pool {
    idle: Vec<IdleConnection>,
    /// A thread looks for those that have waited too long.
    watched: bool,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { idle: Vec::new(), watched: false });

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A session to exactly this target, when one waits that its server has not closed.
pub fn take(target: &SshTarget) -> Option<Connection> {
    loop {
        let connection = {
            let idle = &mut pool().idle;
            let at = idle.iter().position(|one| one.connection.target == *target)?;
            idle.swap_remove(at).connection
        };
        if open(connection.fd()) {
            return Some(connection);
        }
    }
}

/// Keeps a session for its next use.
pub fn keep(connection: Connection) {
    let unwatched = {
        let mut pool = pool();
        pool.idle.push(IdleConnection { connection, since: Instant::now() });
        !std::mem::replace(&mut pool.watched, true)
    };
    if unwatched && thread::Builder::new().name("ssh-pool".into()).spawn(watch).is_err() {
        // Nobody would end it: it is not kept.
        let gone = {
            let mut pool = pool();
            pool.watched = false;
            std::mem::take(&mut pool.idle)
        };
        drop(gone);
    }
}

/// Ends what waits too long, until nothing waits.
fn watch() {
    loop {
        thread::sleep(LOOKS);
        // Sessions end without the lock: their last words may take a moment.
        let (gone, empty) = {
            let mut pool = pool();
            let (old, fresh) =
                std::mem::take(&mut pool.idle).into_iter().partition(|one| one.since.elapsed() >= WAITING);
            pool.idle = fresh;
            pool.watched = !pool.idle.is_empty();
            let gone: Vec<IdleConnection> = old;
            (gone, !pool.watched)
        };
        drop(gone);
        if empty {
            return;
        }
    }
}

/// Ends the sessions to this target.
pub fn end(target: &SshTarget) {
    let gone: Vec<IdleConnection> = {
        let mut pool = pool();
        let (ended, kept) =
            std::mem::take(&mut pool.idle).into_iter().partition(|one| one.connection.target == *target);
        pool.idle = kept;
        ended
    };
    drop(gone);
}

/// The peer has not closed this socket, as far as is known here; what it said before that end may still wait.
fn open(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: `poll` is one live entry for the length of the call, which does not wait.
    let count = unsafe { libc::poll(&raw mut poll, 1, 0) };
    count == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_session_that_its_server_has_closed_is_not_used_again() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(open(ours.as_raw_fd()));
        std::io::Write::write_all(&mut &theirs, b"x").unwrap();
        assert!(open(ours.as_raw_fd()), "what waits to be read is no end");
        drop(theirs);
        assert!(!open(ours.as_raw_fd()));
    }
}
