//! TCP to a server, and why it did not come about.
//!
//! Owner: the calling thread.

use super::user_config::SshTarget;
use super::{Operator, SshError};
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// What frees a write into a dead connection, unless longer silence is allowed; the agent's heartbeat is the
/// real detector.
const USER_TIMEOUT: Duration = Duration::from_secs(8);

/// Why TCP did not connect.
pub(super) enum DialFailure {
    /// The name has no address.
    Name(io::Error),
    /// No address answered; the last one's error.
    Connect(io::Error),
}

/// Connects over TCP. Name resolution and the connection happen on a thread of their own, so that the order
/// to close need not wait for either; that thread outlives it by the connection's own timeout at most.
pub(super) fn dial(target: &SshTarget, operator: &mut dyn Operator) -> Result<OwnedFd, SshError> {
    let (sender, dialled) = mpsc::channel();
    let (address, port, timeout) = (target.address.clone(), target.port, target.connect_timeout);
    let work = move || sender.send(dial_each(&address, port, timeout)).unwrap_or_default();
    let started = thread::Builder::new().name("ssh-dial".into()).spawn(work);
    started.map_err(|error| {
        SshError::passing(format!("{}: cannot start a thread: {error}", target.label), "raise `ulimit -u`")
    })?;
    loop {
        match dialled.recv_timeout(Duration::from_millis(20)) {
            Ok(Ok(stream)) => {
                tune(&stream, target.silence.unwrap_or_default().max(USER_TIMEOUT));
                return Ok(stream.into());
            }
            Ok(Err(why)) => return Err(undialled(target, why)),
            Err(RecvTimeoutError::Timeout) if operator.closing() => return Err(SshError::closed()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(undialled(target, DialFailure::Connect(io::ErrorKind::Other.into())));
            }
        }
    }
}

/// Tries each address of the name in turn.
pub(super) fn dial_each(address: &str, port: u16, timeout: Duration) -> Result<TcpStream, DialFailure> {
    let addresses = (address, port).to_socket_addrs().map_err(DialFailure::Name)?;
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(DialFailure::Connect(last))
}

fn undialled(target: &SshTarget, why: DialFailure) -> SshError {
    let (label, place) = (&target.label, target.place());
    let error = match why {
        DialFailure::Name(error) => {
            let said = error.to_string();
            let said = said.strip_prefix("failed to lookup address information: ").unwrap_or(&said);
            let hint = format!(
                "check `address` of this host in hosts.toml, or try `getent hosts {}`",
                super::quote::word(&target.address)
            );
            return SshError::passing(format!("{label}: no address for {:?}: {said}", target.address), hint);
        }
        DialFailure::Connect(error) => error,
    };
    let (what, hint) = match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            ("connection refused".to_string(), "is sshd running there, on this port? ")
        }
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => (
            format!("no answer within {} s", target.connect_timeout.as_secs()),
            "is the host up, and does a firewall let this port through? ",
        ),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            ("no route to it".into(), "is the network up? ")
        }
        _ => (error.to_string(), ""),
    };
    SshError::passing(
        format!("{label}: cannot connect to {place}: {what}"),
        format!("{hint}try `{}`", target.command()),
    )
}

/// Small messages at once; a dead peer is noticed. All of it is optional, so errors are not.
fn tune(stream: &TcpStream, dead_after: Duration) {
    let _ = stream.set_nodelay(true);
    let set = |level: libc::c_int, option: libc::c_int, value: libc::c_int| {
        let size = std::mem::size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the descriptor is open for the length of the call; the pointer is to a live integer of that
        // size.
        unsafe { libc::setsockopt(stream.as_raw_fd(), level, option, (&raw const value).cast(), size) };
    };
    set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 5);
    set(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 2);
    // With a user timeout, that one decides when probes have failed often enough.
    set(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3);
    let dead_after = i32::try_from(dead_after.as_millis()).unwrap_or(i32::MAX);
    set(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, dead_after);
}
