//! Commands and streams over a session of libssh2.
//!
//! Owner: the session's thread (SSH-1).

use super::connection::Connection;
use super::output::Output;
use super::session::{SshChannel, SshSession, Stream};
use super::user_config::SshTarget;
use super::wait::{self, Interest, Stall};
use super::{Operator, SshError, pool};
use ssh2::{BlockDirections, Channel, Session};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a server may take to notice that the command before has ended: it counts commands (MaxSessions),
/// and forgets one when it has collected the process, not when the channel is closed.
const TURNING: Duration = Duration::from_secs(5);
/// `LIBSSH2_ERROR_CHANNEL_FAILURE`: the server opens no channel.
const NO_CHANNEL: i32 = -21;

/// A channel of a session. The channel comes first: it must be dropped before its session.
struct SessionChannel {
    channel: Channel,
    session: Session,
    socket: Arc<OwnedFd>,
}

impl SessionChannel {
    fn of(connection: &Connection, channel: Channel) -> Box<dyn SshChannel> {
        let (session, socket) = (connection.session.clone(), connection.socket.clone());
        Box::new(SessionChannel { channel, session, socket })
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
        operator: &mut dyn Operator,
        command: &str,
        deadline: Instant,
    ) -> Result<Box<dyn SshChannel>, SshError> {
        let label = Connection::label(self);
        let patience = deadline.min(Instant::now() + TURNING);
        let mut channel = loop {
            let stall = match self.until(operator, deadline, || self.session.channel_session()) {
                Ok(channel) => break channel,
                Err(stall) => stall,
            };
            let full = stall.code() == NO_CHANNEL;
            if full && Instant::now() < patience && !operator.closing() {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            }
            let hint = match full {
                true => "the server allows no further channel: raise MaxSessions in its sshd_config",
                false => "",
            };
            return Err(stall.passing(&format!("{label}: cannot open a channel"), hint));
        };
        self.until(operator, deadline, || channel.exec(command)).map_err(|stall| {
            stall.passing(
                &format!("{label}: the server does not run commands"),
                "does its sshd_config force another command?",
            )
        })?;
        Ok(SessionChannel::of(self, channel))
    }

    fn socket(
        &self,
        operator: &mut dyn Operator,
        path: &str,
        deadline: Instant,
    ) -> Result<Option<Box<dyn SshChannel>>, SshError> {
        match self.until(operator, deadline, || self.session.channel_direct_streamlocal(path, None)) {
            Ok(channel) => Ok(Some(SessionChannel::of(self, channel))),
            Err(Stall::Closed) => Err(SshError::closed()),
            // Forbidden (AllowStreamLocalForwarding no) or unknown to this server.
            Err(_) => Ok(None),
        }
    }

    fn refusal(&self, _output: &Output) -> Option<SshError> {
        None
    }

    fn keep(self: Box<Self>) {
        pool::keep(*self);
    }
}

impl SshChannel for SessionChannel {
    fn read(&mut self, stream: Stream, buffer: &mut [u8]) -> io::Result<usize> {
        self.channel.stream(if stream == Stream::Output { 0 } else { 1 }).read(buffer)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.channel.stream(0).write(bytes)
    }

    /// A write that the window of the command stops leaves nothing half sent, and waits for reading only.
    fn is_half_sent(&self) -> bool {
        matches!(self.session.block_directions(), BlockDirections::Outbound | BlockDirections::Both)
    }

    fn end_input(&mut self, operator: &mut dyn Operator, deadline: Instant) -> Result<(), Stall> {
        let (session, fd, channel) = (&self.session, self.socket.as_raw_fd(), &mut self.channel);
        wait::until(session, fd, operator, deadline, || channel.send_eof())
    }

    fn ended(&self) -> bool {
        self.channel.eof()
    }

    fn interest(&self, pending: bool) -> Interest {
        let mut interest = wait::interest(&self.session, self.fd());
        interest.write |= pending;
        interest
    }

    fn pause(&self, operator: &mut dyn Operator, deadline: Instant) -> Result<(), Stall> {
        wait::pause(&[self.interest(false)], operator, deadline)
    }

    fn close(&mut self, operator: &mut dyn Operator, deadline: Instant) -> Result<Option<i32>, Stall> {
        let (session, fd, channel) = (&self.session, self.socket.as_raw_fd(), &mut self.channel);
        wait::until(session, fd, operator, deadline, || channel.close())?;
        wait::until(session, fd, operator, deadline, || channel.wait_close())?;
        // A signal ended it: libssh2 then reports exit status 0.
        let signalled = channel.exit_signal().is_ok_and(|signal| signal.exit_signal.is_some());
        Ok(channel.exit_status().ok().filter(|_| !signalled))
    }

    fn abandon(&mut self) {
        let _ = self.channel.close();
    }
}
