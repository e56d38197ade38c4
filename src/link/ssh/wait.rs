//! Waits for sockets. Every wait has a deadline and ends early if the owner closes the session.

use super::{SessionOwner, SshError};
use ssh2::{BlockDirections, ErrorCode, Session};
use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// `LIBSSH2_ERROR_EAGAIN`.
pub const EAGAIN: i32 = -37;

/// Interval of polling an owner without a wake descriptor.
pub(crate) const OWNER_POLL: Duration = Duration::from_millis(200);

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

/// Waits until one of `interests` is ready or broken, or `timeout` has passed; returns early on a signal.
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
    // Rounded up: a timeout of 0 ms would spin until the deadline.
    let timeout = timeout.as_millis().saturating_add(1).min(60_000) as i32;
    // SAFETY: `fds` is a live, initialized array of exactly `fds.len()` entries for the length of the call.
    let count = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
    match count {
        -1 => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        },
        _ => Ok(()),
    }
}

/// Returns what a session waits for.
pub fn interest(session: &Session, fd: RawFd) -> Interest {
    let write = matches!(session.block_directions(), BlockDirections::Outbound | BlockDirections::Both);
    // Also for reading: a closing peer must wake a writer.
    Interest { fd, read: true, write }
}

/// Why a call did not complete.
#[derive(Debug)]
pub enum BlockReason {
    /// The owner closed the session.
    Closed,
    /// The deadline passed.
    TimedOut,
    /// libssh2 failed.
    Failed(ssh2::Error),
}

impl BlockReason {
    /// Creates the error of a lost connection.
    pub fn lost() -> BlockReason {
        BlockReason::Failed(ssh2::Error::new(ErrorCode::Session(-43), "connection lost"))
    }

    /// Returns libssh2's error code, 0 for the others.
    pub fn code(&self) -> i32 {
        match self {
            BlockReason::Failed(error) => code(error),
            _ => 0,
        }
    }

    /// Returns the reason as text.
    pub fn text(&self) -> String {
        match self {
            BlockReason::Closed => "closed".into(),
            BlockReason::TimedOut => "timed out".into(),
            BlockReason::Failed(error) => error.message().to_string(),
        }
    }

    /// Converts to a transient failure.
    pub fn transient(&self, what: &str, hint: &str) -> SshError {
        match self {
            BlockReason::Closed => SshError::closed(),
            _ => SshError::transient(format!("{what}: {}", self.text()), hint),
        }
    }
}

/// Returns libssh2's code of an error.
pub fn code(error: &ssh2::Error) -> i32 {
    match error.code() {
        ErrorCode::Session(code) | ErrorCode::SFTP(code) => code,
    }
}

/// Repeats a non-blocking call until it completes or fails, the deadline passes, or the owner closes the
/// session.
pub fn until<T>(
    session: &Session,
    fd: RawFd,
    owner: &mut dyn SessionOwner,
    deadline: Instant,
    mut call: impl FnMut() -> Result<T, ssh2::Error>,
) -> Result<T, BlockReason> {
    loop {
        match call() {
            Ok(value) => return Ok(value),
            Err(error) if code(&error) == EAGAIN => {}
            Err(error) => return Err(BlockReason::Failed(error)),
        }
        pause(&[interest(session, fd)], owner, deadline)?;
    }
}

/// Waits for one of `interests` once, within the deadline.
pub fn pause(
    interests: &[Interest],
    owner: &mut dyn SessionOwner,
    deadline: Instant,
) -> Result<(), BlockReason> {
    if owner.closing() {
        return Err(BlockReason::Closed);
    }
    let now = Instant::now();
    if now >= deadline {
        return Err(BlockReason::TimedOut);
    }
    let mut interests = interests.to_vec();
    let bell = owner.wake_fd();
    interests.extend(bell.map(|fd| Interest { fd, read: true, write: false }));
    let patience = if bell.is_some() { deadline - now } else { OWNER_POLL.min(deadline - now) };
    // A failing poll means a bad descriptor; the session's next call returns a better error.
    let _ = poll(&interests, patience);
    Ok(())
}
