//! Connects to a server over TCP.

use super::user_config::{AddressFamily, SshTarget};
use super::{SessionOwner, SshError, SshErrorKind};
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// TCP user timeout for writes to a dead connection, unless longer silence is allowed; the agent's heartbeat
/// detects it earlier.
const USER_TIMEOUT: Duration = Duration::from_secs(8);

/// Why a connection failed.
pub(super) enum DialFailure {
    /// Name resolution failed.
    Name(io::Error),
    /// No address responded; error of the last one.
    Connect(io::Error),
}

/// Connects over TCP. Name resolution and connection run on another thread, so that closing need not wait for
/// them; that thread ends with the connection's timeout.
pub(super) fn dial(target: &SshTarget, owner: &mut dyn SessionOwner) -> Result<OwnedFd, SshError> {
    let (sender, dialled) = mpsc::channel();
    let (address, port, timeout) = (target.address.clone(), target.port, target.connect_timeout);
    let family = target.family;
    let work = move || sender.send(dial_each(&address, port, family, timeout)).unwrap_or_default();
    let started = thread::Builder::new().name("ssh-dial".into()).spawn(work);
    started.map_err(|error| {
        SshError::transient(format!("{}: cannot start a thread: {error}", target.label), "raise `ulimit -u`")
    })?;
    loop {
        match dialled.recv_timeout(Duration::from_millis(20)) {
            Ok(Ok(stream)) => {
                tune(&stream, target.silence.unwrap_or_default().max(USER_TIMEOUT));
                return Ok(stream.into());
            }
            Ok(Err(why)) => return Err(dial_error(target, why)),
            Err(RecvTimeoutError::Timeout) if owner.closing() => return Err(SshError::closed()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(dial_error(target, DialFailure::Connect(io::ErrorKind::Other.into())));
            }
        }
    }
}

/// Tries each address of the name in turn.
pub(super) fn dial_each(
    address: &str,
    port: u16,
    family: AddressFamily,
    timeout: Duration,
) -> Result<TcpStream, DialFailure> {
    let addresses = (address, port).to_socket_addrs().map_err(DialFailure::Name)?;
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "no address of the allowed AddressFamily");
    for address in addresses.filter(|address| family.allows(address.ip())) {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(DialFailure::Connect(last))
}

fn dial_error(target: &SshTarget, why: DialFailure) -> SshError {
    let (label, place) = (&target.label, target.place());
    let error = match why {
        DialFailure::Name(error) => {
            let reason = error.to_string();
            let reason = reason.strip_prefix("failed to lookup address information: ").unwrap_or(&reason);
            let hint = format!(
                "check `address` of this host in hosts.toml, and `getent hosts {}`",
                super::quote::word(&target.address)
            );
            let kind = if may_pass(&error) { SshErrorKind::Transient } else { SshErrorKind::UnknownName };
            return SshError::new(
                kind,
                format!("{label}: cannot resolve {:?}: {reason}", target.address),
                hint,
            );
        }
        DialFailure::Connect(error) => error,
    };
    let (what, hint) = match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            ("connection refused".to_string(), "check that sshd runs on this port; ")
        }
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => (
            format!("no response within {} s", target.connect_timeout.as_secs()),
            "check that the host is up and that no firewall blocks the port; ",
        ),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            ("no route to host".into(), "check the network; ")
        }
        _ => (error.to_string(), ""),
    };
    SshError::transient(
        format!("{label}: cannot connect to {place}: {what}"),
        format!("{hint}try `{}`{}", target.command(), target.ignored_hint()),
    )
}

/// Returns whether a failed name resolution may succeed on retry: the name server did not respond, or the
/// system failed. The standard library drops the code of getaddrinfo and keeps its text (glibc; musl).
fn may_pass(error: &io::Error) -> bool {
    let text = error.to_string();
    error.raw_os_error().is_some()
        || ["Temporary failure", "Try again", "Memory", "System error"]
            .iter()
            .any(|words| text.contains(words))
}

/// Disables Nagle's algorithm and enables keepalive. Both are optional, so errors are ignored.
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
    // The user timeout overrides the probe count.
    set(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3);
    let dead_after = i32::try_from(dead_after.as_millis()).unwrap_or(i32::MAX);
    set(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, dead_after);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_name_is_not_retried() {
        let failure =
            |reason: &str| io::Error::other(format!("failed to lookup address information: {reason}"));
        for reason in
            ["Name or service not known", "No address associated with hostname", "Name does not resolve"]
        {
            assert!(!may_pass(&failure(reason)), "{reason}");
        }
        for reason in ["Temporary failure in name resolution", "Try again", "Memory allocation failure"] {
            assert!(may_pass(&failure(reason)), "{reason}");
        }
        assert!(may_pass(&io::Error::from_raw_os_error(libc::EMFILE)));
    }
}
