//! Sessions and channels: the interface, and its implementation over libssh2, on the session's thread
//! (SSH-1). [`openssh`](super::openssh) implements it over the system's `ssh`.
//!
//! Waits for sockets. Every wait has a deadline and ends early if the owner closes the session.

use super::connection::Connection;
use super::exec::CommandOutput;
use super::user_config::SshTarget;
use super::{SessionOwner, SshError};
use ssh2::{BlockDirections, Channel, ErrorCode, Session};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A session with one host that runs one command at a time.
pub trait SshSession: Send {
    /// Returns its target.
    fn target(&self) -> &SshTarget;

    /// Starts a command.
    fn start(
        &self,
        owner: &mut dyn SessionOwner,
        command: &str,
        deadline: Instant,
    ) -> Result<Box<dyn SshChannel>, SshError>;

    /// Opens a stream to the socket `path` on the host; `None` if that needs a command.
    fn socket(
        &self,
        owner: &mut dyn SessionOwner,
        path: &str,
        deadline: Instant,
    ) -> Result<Option<Box<dyn SshChannel>>, SshError>;

    /// Returns the error of a command that was not started, if its output shows that.
    fn refusal(&self, output: &CommandOutput) -> Option<SshError>;

    /// Returns whether each command may log in again: the time until it starts reveals nothing about the login
    /// shell.
    fn logs_in_per_command(&self) -> bool {
        false
    }

    /// Returns how long a command whose output is complete may take to end. The session is reused only after that.
    fn parting(&self) -> Duration {
        PARTING
    }

    /// Releases the session for reuse.
    fn release(self: Box<Self>);

    /// Returns the equivalent `ssh` command, for hints.
    fn by_hand(&self) -> String {
        self.target().command()
    }

    /// Returns the name for messages.
    fn label(&self) -> &str {
        &self.target().label
    }
}

/// Output stream of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Stdout.
    Output,
    /// Stderr.
    Error,
}

/// A channel of a session: a running command, or a stream to a socket. Never blocks.
pub trait SshChannel {
    /// Reads available bytes; 0 at the end, `WouldBlock` if there are none.
    fn read(&mut self, stream: Stream, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes to stdin; `WouldBlock` if nothing fits.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Returns whether the last write was sent in part: it must be repeated until complete. libssh2 returns
    /// EAGAIN for any other call meanwhile, even if the socket is writable again (`send_existing` in its
    /// transport.c).
    fn is_half_sent(&self) -> bool {
        false
    }

    /// Closes stdin.
    fn end_input(&mut self, owner: &mut dyn SessionOwner, deadline: Instant) -> Result<(), BlockReason>;

    /// Returns whether all output was read.
    fn ended(&self) -> bool;

    /// Returns whether stdout has ended.
    fn over(&self) -> bool {
        self.ended()
    }

    /// Returns what to poll for; `pending`: bytes wait to be written.
    fn interest(&self, pending: bool) -> Interest;

    /// Waits for activity, until the deadline.
    fn pause(&self, owner: &mut dyn SessionOwner, deadline: Instant) -> Result<(), BlockReason>;

    /// Closes it and returns the exit code; `None` if killed by a signal.
    fn close(&mut self, owner: &mut dyn SessionOwner, deadline: Instant) -> Result<Option<i32>, BlockReason>;

    /// Closes it without waiting.
    fn abandon(&mut self);
}

/// Timeout of a command whose output is complete: a new login usually takes less.
const PARTING: Duration = Duration::from_millis(500);
/// The same if a new login asks the user for a password or a code.
const PROMPTED_PARTING: Duration = Duration::from_secs(10);

/// Time for a server to notice the end of the previous command: it counts commands (MaxSessions) until it has
/// reaped the process, not until the channel is closed.
const TURNING: Duration = Duration::from_secs(5);
/// `LIBSSH2_ERROR_CHANNEL_FAILURE`: the server rejects the channel.
const NO_CHANNEL: i32 = -21;

/// A channel of a session. Field order: the channel must be dropped before its session.
struct SessionChannel {
    channel: Channel,
    session: Session,
    socket: Arc<OwnedFd>,
    /// The last write sent a part of a packet.
    half_sent: bool,
}

impl SessionChannel {
    fn boxed(connection: &Connection, channel: Channel) -> Box<dyn SshChannel> {
        let (session, socket) = (connection.session.clone(), connection.socket.clone());
        Box::new(SessionChannel { channel, session, socket, half_sent: false })
    }

    fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl SshSession for Connection {
    fn target(&self) -> &SshTarget {
        &self.target
    }

    fn start(
        &self,
        owner: &mut dyn SessionOwner,
        command: &str,
        deadline: Instant,
    ) -> Result<Box<dyn SshChannel>, SshError> {
        let label = Connection::label(self);
        let patience = deadline.min(Instant::now() + TURNING);
        let mut channel = loop {
            let blocked = match self.until(owner, deadline, || self.session.channel_session()) {
                Ok(channel) => break channel,
                Err(blocked) => blocked,
            };
            let full = blocked.code() == NO_CHANNEL;
            if full && Instant::now() < patience && !owner.closing() {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            }
            let hint = match full {
                true => "raise MaxSessions in the server's sshd_config",
                false => "",
            };
            return Err(blocked.transient(&format!("{label}: cannot open a channel"), hint));
        };
        self.until(owner, deadline, || channel.exec(command)).map_err(|blocked| {
            blocked.transient(
                &format!("{label}: the server rejects commands"),
                &format!(
                    "try `{} true`; check the account's process limit (`ulimit -u`) on the host, and its sshd_config for ForceCommand",
                    self.by_hand()
                ),
            )
        })?;
        Ok(SessionChannel::boxed(self, channel))
    }

    fn socket(
        &self,
        owner: &mut dyn SessionOwner,
        path: &str,
        deadline: Instant,
    ) -> Result<Option<Box<dyn SshChannel>>, SshError> {
        match self.until(owner, deadline, || self.session.channel_direct_streamlocal(path, None)) {
            Ok(channel) => Ok(Some(SessionChannel::boxed(self, channel))),
            Err(BlockReason::Closed) => Err(SshError::closed()),
            // Forbidden (AllowStreamLocalForwarding no) or unsupported.
            Err(_) => Ok(None),
        }
    }

    fn refusal(&self, _output: &CommandOutput) -> Option<SshError> {
        None
    }

    fn parting(&self) -> Duration {
        if self.has_prompted { PROMPTED_PARTING } else { PARTING }
    }

    fn release(self: Box<Self>) {
        self.put_idle();
    }
}

impl SshChannel for SessionChannel {
    /// Reads nothing while a packet is half sent. A read may receive the server's request for new keys, which
    /// libssh2 cannot answer in the middle of a packet: no later write would succeed.
    fn read(&mut self, stream: Stream, buffer: &mut [u8]) -> io::Result<usize> {
        if self.half_sent {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.channel.stream(if stream == Stream::Output { 0 } else { 1 }).read(buffer)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.channel.stream(0).write(bytes);
        // A write that is blocked by the command's window has sent nothing, and waits only for reading.
        self.half_sent = written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            && matches!(self.session.block_directions(), BlockDirections::Outbound | BlockDirections::Both);
        written
    }

    fn is_half_sent(&self) -> bool {
        self.half_sent
    }

    fn end_input(&mut self, owner: &mut dyn SessionOwner, deadline: Instant) -> Result<(), BlockReason> {
        let (session, fd, channel) = (&self.session, self.socket.as_raw_fd(), &mut self.channel);
        wait_until(session, fd, owner, deadline, || channel.send_eof())
    }

    fn ended(&self) -> bool {
        self.channel.eof()
    }

    fn interest(&self, pending: bool) -> Interest {
        let mut interest = interest(&self.session, self.fd());
        interest.write |= pending || self.half_sent;
        interest.read &= !self.half_sent;
        interest
    }

    fn pause(&self, owner: &mut dyn SessionOwner, deadline: Instant) -> Result<(), BlockReason> {
        wait_briefly(&[self.interest(false)], owner, deadline)
    }

    fn close(&mut self, owner: &mut dyn SessionOwner, deadline: Instant) -> Result<Option<i32>, BlockReason> {
        let (session, fd, channel) = (&self.session, self.socket.as_raw_fd(), &mut self.channel);
        wait_until(session, fd, owner, deadline, || channel.close())?;
        wait_until(session, fd, owner, deadline, || channel.wait_close())?;
        // libssh2 reports exit status 0 for a command that was killed by a signal.
        let signalled = channel.exit_signal().is_ok_and(|signal| signal.exit_signal.is_some());
        Ok(channel.exit_status().ok().filter(|_| !signalled))
    }

    fn abandon(&mut self) {
        let _ = self.channel.close();
    }
}

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
            BlockReason::Failed(error) => error_code(error),
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
pub fn error_code(error: &ssh2::Error) -> i32 {
    match error.code() {
        ErrorCode::Session(error_code) | ErrorCode::SFTP(error_code) => error_code,
    }
}

/// Repeats a non-blocking call until it completes or fails, the deadline passes, or the owner closes the
/// session.
pub fn wait_until<T>(
    session: &Session,
    fd: RawFd,
    owner: &mut dyn SessionOwner,
    deadline: Instant,
    mut call: impl FnMut() -> Result<T, ssh2::Error>,
) -> Result<T, BlockReason> {
    loop {
        match call() {
            Ok(value) => return Ok(value),
            Err(error) if error_code(&error) == EAGAIN => {}
            Err(error) => return Err(BlockReason::Failed(error)),
        }
        wait_briefly(&[interest(session, fd)], owner, deadline)?;
    }
}

/// Waits for one of `interests` once, within the deadline.
pub fn wait_briefly(
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
