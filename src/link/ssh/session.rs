//! Sessions and channels: the interface, and its implementation over libssh2, on the session's thread
//! (SSH-1). [`openssh`](super::openssh) implements it over the system's `ssh`.

use super::connection::Connection;
use super::output::CommandOutput;
use super::user_config::SshTarget;
use super::wait::{self, BlockReason, Interest};
use super::{SessionOwner, SshError};
use ssh2::{BlockDirections, Channel, Session};
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
        wait::until(session, fd, owner, deadline, || channel.send_eof())
    }

    fn ended(&self) -> bool {
        self.channel.eof()
    }

    fn interest(&self, pending: bool) -> Interest {
        let mut interest = wait::interest(&self.session, self.fd());
        interest.write |= pending || self.half_sent;
        interest.read &= !self.half_sent;
        interest
    }

    fn pause(&self, owner: &mut dyn SessionOwner, deadline: Instant) -> Result<(), BlockReason> {
        wait::pause(&[self.interest(false)], owner, deadline)
    }

    fn close(&mut self, owner: &mut dyn SessionOwner, deadline: Instant) -> Result<Option<i32>, BlockReason> {
        let (session, fd, channel) = (&self.session, self.socket.as_raw_fd(), &mut self.channel);
        wait::until(session, fd, owner, deadline, || channel.close())?;
        wait::until(session, fd, owner, deadline, || channel.wait_close())?;
        // libssh2 reports exit status 0 for a command that was killed by a signal.
        let signalled = channel.exit_signal().is_ok_and(|signal| signal.exit_signal.is_some());
        Ok(channel.exit_status().ok().filter(|_| !signalled))
    }

    fn abandon(&mut self) {
        let _ = self.channel.close();
    }
}
