//! Jump hosts: a session through another session.
//!
//! libssh2 reads and writes a socket and nothing else, so a tunnel is a `direct-tcpip` channel of the jump
//! host's session, a pair of sockets, and a thread that copies between the two. Owner: that thread owns the
//! jump host's connection; [`Relay`] ends and joins it.

use super::connection::{Connection, Relay};
use super::user_config::SshTarget;
use super::wait::{self, Interest};
use super::{Operator, SshError};
use ssh2::Channel;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

/// Bound of opening the tunnel: the jump host connects to the next one meanwhile.
const OPENING: Duration = Duration::from_secs(15);
const BUFFER: usize = 64 << 10;

/// Opens a tunnel from the server of `connection` to `next`; the socket returned leads there.
pub fn tunnel(
    connection: Connection,
    next: &SshTarget,
    operator: &mut dyn Operator,
) -> Result<(OwnedFd, Relay), SshError> {
    let deadline = Instant::now() + OPENING;
    let label = connection.label().to_string();
    let channel = connection
        .until(operator, deadline, || connection.session.channel_direct_tcpip(&next.address, next.port, None))
        .map_err(|stall| {
            let hint =
                format!("is {} reachable from there, and does its sshd allow TCP forwarding?", next.place());
            stall.passing(&format!("{label}: cannot reach {} through this jump host", next.place()), &hint)
        })?;
    let fault =
        |error: io::Error| SshError::passing(format!("{label}: cannot set up the tunnel: {error}"), "");
    let (ours, theirs) = UnixStream::pair().map_err(fault)?;
    ours.set_nonblocking(true).map_err(fault)?;
    let thread = thread::Builder::new()
        .name("ssh-jump".into())
        .spawn(move || copy(connection, channel, ours))
        .map_err(fault)?;
    Ok((theirs.into(), Relay::new(thread)))
}

/// One direction's bytes on their way.
#[derive(Default)]
struct Half {
    bytes: Vec<u8>,
    sent: usize,
    ended: bool,
}

impl Half {
    /// Takes more from `from` when nothing waits; `true` when something moved.
    fn fill(&mut self, from: &mut dyn Read) -> io::Result<bool> {
        if !self.bytes.is_empty() || self.ended {
            return Ok(false);
        }
        self.bytes.resize(BUFFER, 0);
        let read = from.read(&mut self.bytes);
        self.bytes.truncate(*read.as_ref().unwrap_or(&0));
        match read {
            Ok(count) => {
                self.ended = count == 0;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Gives what waits to `to`; `true` when something moved.
    fn empty(&mut self, to: &mut dyn Write) -> io::Result<bool> {
        let mut moved = false;
        while self.sent < self.bytes.len() {
            match to.write(&self.bytes[self.sent..]) {
                Ok(0) => break,
                Ok(count) => {
                    self.sent += count;
                    moved = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        }
        Ok(moved)
    }

    fn done(&self) -> bool {
        self.ended && self.bytes.is_empty()
    }
}

/// One turn in both directions. A write into the session that is under way is finished before the session is
/// read again: libssh2 refuses to send anything else (a window adjustment, say) in the middle of a packet.
fn turn(up: &mut Half, down: &mut Half, channel: &mut Channel, socket: &mut UnixStream) -> io::Result<bool> {
    let mut moved = up.fill(socket)?;
    moved |= up.empty(&mut channel.stream(0))?;
    if up.bytes.is_empty() {
        moved |= down.fill(&mut channel.stream(0))?;
    }
    moved |= down.empty(socket)?;
    Ok(moved)
}

/// Copies until either side ends. The end of one direction ends both: an ssh connection has no half-open
/// state.
fn copy(connection: Connection, mut channel: Channel, mut socket: UnixStream) {
    let (mut up, mut down) = (Half::default(), Half::default());
    loop {
        match turn(&mut up, &mut down, &mut channel, &mut socket) {
            Err(_) => break,
            Ok(_) if down.done() || up.done() => break,
            Ok(true) => continue,
            Ok(false) => {}
        }
        let ours =
            Interest { fd: socket.as_raw_fd(), read: up.bytes.is_empty(), write: !down.bytes.is_empty() };
        let _ = wait::poll(
            &[wait::interest(&connection.session, connection.fd()), ours],
            Duration::from_secs(60),
        );
    }
    // The channel first, then its session: the order in which they depend on each other.
    let _ = channel.close();
    drop(channel);
    drop(connection);
}
