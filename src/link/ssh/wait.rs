//! Waiting for sockets: the only place that calls `poll`.
//!
//! Owner: the calling thread. Everything is bounded by a deadline and ends early when the operator closes.

use super::{Operator, SshError};
use ssh2::{BlockDirections, ErrorCode, Session};
use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// `LIBSSH2_ERROR_EAGAIN`.
pub const EAGAIN: i32 = -37;

/// How often an operator is looked at who cannot ring.
pub const GLANCE: Duration = Duration::from_millis(200);

/// One descriptor to wait for.
#[derive(Debug, Clone, Copy)]
pub struct Interest {
    /// The descriptor.
    pub fd: RawFd,
    /// Wait for bytes to read.
    pub read: bool,
    /// Wait for room to write.
    pub write: bool,
}

/// Waits until one of `interests` is ready (or broken) or `timeout` has passed; an interrupted wait returns
/// early.
pub fn poll(interests: &[Interest], timeout: Duration) -> io::Result<()> {
    let mut fds: Vec<libc::pollfd> = interests
        .iter()
        .map(|interest| libc::pollfd {
            fd: interest.fd,
            events: if interest.read { libc::POLLIN } else { 0 }
                | if interest.write { libc::POLLOUT } else { 0 },
            revents: 0,
        })
        .collect();
    // Rounded up: a wait of 0 ms would spin until the deadline's last fraction is over.
    let timeout = timeout.as_millis().saturating_add(1).min(60_000) as i32;
    // SAFETY: `fds` is a live, initialised array of exactly `fds.len()` entries for the length of the call.
    let count = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
    match count {
        -1 => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        },
        _ => Ok(()),
    }
}

/// What a session waits for, as `poll` wants it.
pub fn interest(session: &Session, fd: RawFd) -> Interest {
    let write = matches!(session.block_directions(), BlockDirections::Outbound | BlockDirections::Both);
    // Always reading, too: the peer's closing must wake a writer.
    Interest { fd, read: true, write }
}

/// Why a call did not succeed.
#[derive(Debug)]
pub enum Stall {
    /// The operator closed.
    Closed,
    /// The deadline passed.
    TimedOut,
    /// libssh2 refused.
    Failed(ssh2::Error),
}

impl Stall {
    /// The other end is gone.
    pub fn lost() -> Stall {
        Stall::Failed(ssh2::Error::new(ErrorCode::Session(-43), "connection lost"))
    }

    /// libssh2's error code, 0 for the others.
    pub fn code(&self) -> i32 {
        match self {
            Stall::Failed(error) => code(error),
            _ => 0,
        }
    }

    /// In words, without a full stop.
    pub fn text(&self) -> String {
        match self {
            Stall::Closed => "closed".into(),
            Stall::TimedOut => "no answer in time".into(),
            Stall::Failed(error) => error.message().to_string(),
        }
    }

    /// As a failure that may heal.
    pub fn passing(&self, what: &str, hint: &str) -> SshError {
        match self {
            Stall::Closed => SshError::closed(),
            _ => SshError::passing(format!("{what}: {}", self.text()), hint),
        }
    }
}

/// libssh2's number of an error.
pub fn code(error: &ssh2::Error) -> i32 {
    match error.code() {
        ErrorCode::Session(code) | ErrorCode::SFTP(code) => code,
    }
}

/// Repeats a non-blocking call until it is through, fails, the deadline passes or the operator closes.
pub fn until<T>(
    session: &Session,
    fd: RawFd,
    operator: &mut dyn Operator,
    deadline: Instant,
    mut call: impl FnMut() -> Result<T, ssh2::Error>,
) -> Result<T, Stall> {
    loop {
        match call() {
            Ok(value) => return Ok(value),
            Err(error) if code(&error) == EAGAIN => {}
            Err(error) => return Err(Stall::Failed(error)),
        }
        pause(&[interest(session, fd)], operator, deadline)?;
    }
}

/// Waits for one of `interests` once, within the deadline.
pub fn pause(interests: &[Interest], operator: &mut dyn Operator, deadline: Instant) -> Result<(), Stall> {
    if operator.closing() {
        return Err(Stall::Closed);
    }
    let now = Instant::now();
    if now >= deadline {
        return Err(Stall::TimedOut);
    }
    let mut interests = interests.to_vec();
    let bell = operator.wake_fd();
    interests.extend(bell.map(|fd| Interest { fd, read: true, write: false }));
    let patience = if bell.is_some() { deadline - now } else { GLANCE.min(deadline - now) };
    // A failing poll means a bad descriptor; the session's next call names the trouble better than we could.
    let _ = poll(&interests, patience);
    Ok(())
}
