//! Connects to a target: TCP or a tunnel through its jump hosts, handshake, host key, login (SSH-1, SSH-5 of
//! the parent module).

use super::connection::{Connection, Permit};
use super::known_hosts::{self, KnownHosts};
use super::session::{self, BlockReason};
use super::user_config::{AddressFamily, SshTarget};
use super::{SessionOwner, SshError, SshErrorKind, algorithms, auth, jump, known_hosts};
use ssh2::Session;
use std::borrow::Cow;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{io, thread};

/// Retries after the server dropped the connection before the handshake.
const RETRIES: u32 = 6;

/// Timeout from the first byte to the end of the key exchange.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Connects to `requested` through its jumps, and logs in to each server.
pub fn connect(requested: &SshTarget, owner: &mut dyn SessionOwner) -> Result<Connection, SshError> {
    let mut target = Cow::Borrowed(requested);
    let mut dropped = 0;
    loop {
        match attempt(&target, owner) {
            // AUTH-1: once more, with the configured keys alone.
            Err(error) if error.kind == SshErrorKind::TooManyKeys && !target.identities_only => {
                target = Cow::Owned(only_configured_keys(&target));
            }
            Err(error) if error.kind == SshErrorKind::Busy && dropped < RETRIES => {
                sleep(retry_delay(dropped, crate::random_fraction()), owner)?;
                dropped += 1;
            }
            Err(error) if error.kind == SshErrorKind::Busy => {
                return Err(SshError { kind: SshErrorKind::Transient, ..error });
            }
            Err(error) if error.kind == SshErrorKind::TooManyKeys => {
                return Err(SshError { kind: SshErrorKind::Permanent, ..error });
            }
            // The narrower offer was for this login only; the pool compares the requested targets.
            other => {
                return other.map(|mut connection| {
                    connection.target = requested.clone();
                    connection
                });
            }
        }
    }
}

/// Returns the delay before a retry: up to a quarter of a second, doubling to four seconds, with jitter down
/// to half of it, so that links that were dropped together do not reconnect together.
fn retry_delay(dropped: u32, random: f64) -> Duration {
    let most = Duration::from_millis(250).saturating_mul(1 << dropped.min(4));
    most.mul_f64(0.5 + 0.5 * random.clamp(0.0, 1.0))
}

/// Waits, unless the owner closes the session.
fn sleep(time: Duration, owner: &mut dyn SessionOwner) -> Result<(), SshError> {
    let deadline = Instant::now() + time;
    loop {
        if owner.closing() {
            return Err(SshError::closed());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(Duration::from_millis(50)));
    }
}

fn attempt(target: &SshTarget, owner: &mut dyn SessionOwner) -> Result<Connection, SshError> {
    let stream = match target.jumps.as_slice() {
        [] => None,
        jumps => {
            let tunnel = jump::tunnel(jumps, target, &log_in_to_jump, owner);
            Some(tunnel.map_err(|error| error.on(&target.label))?)
        }
    };
    login(target, stream, owner)
}

/// Logs in to a jump host (AUTH-1).
fn log_in_to_jump(
    target: &SshTarget,
    stream: Option<OwnedFd>,
    owner: &mut dyn SessionOwner,
) -> Result<Connection, SshError> {
    // A tunnel carries one login.
    let is_direct = stream.is_none();
    match login(target, stream, owner) {
        Err(error) if error.kind == SshErrorKind::TooManyKeys && is_direct && !target.identities_only => {
            login(&only_configured_keys(target), None, owner)
        }
        other => other,
    }
}

/// Returns a target without the agent's other keys (AUTH-1).
fn only_configured_keys(target: &SshTarget) -> SshTarget {
    SshTarget { identities_only: true, ..target.clone() }
}

/// Logs in to one server, over `stream` if there is a tunnel, else over TCP.
fn login(
    target: &SshTarget,
    stream: Option<OwnedFd>,
    owner: &mut dyn SessionOwner,
) -> Result<Connection, SshError> {
    let mut permit = Some(Permit::take(target, owner).ok_or_else(SshError::closed)?);
    let direct = stream.is_none();
    let stream = match stream {
        Some(stream) => stream,
        None => dial(target, owner)?,
    };
    let fault = |error: ssh2::Error| {
        SshError::transient(format!("{}: ssh session: {}", target.label, error.message()), "")
    };
    let mut session = Session::new().map_err(fault)?;
    let socket = Arc::new(stream);
    session.set_tcp_stream(socket.clone());
    session.set_blocking(false);
    let name = record_name(target);
    let known = KnownHosts::load(&[target.known_hosts.clone(), target.global_known_hosts.clone()].concat());
    algorithms::restrict(&session, target, &known.key_types(&name))?;
    let mut connection = Connection { session, target: target.clone(), socket };
    handshake(&mut connection, direct, owner)?;
    known_hosts::check(&connection, &known, &name, &mut permit, owner)?;
    auth::login(&connection, &mut permit, owner)?;
    Ok(connection)
}

/// Returns the name of a target in known_hosts.
fn record_name(target: &SshTarget) -> String {
    match &target.host_key_alias {
        Some(alias) => alias.to_lowercase(),
        None => known_hosts::record_name(&target.address, target.port),
    }
}

/// Shakes hands with the server. `direct`: it is reached by TCP from this machine.
fn handshake(
    connection: &mut Connection,
    direct: bool,
    owner: &mut dyn SessionOwner,
) -> Result<(), SshError> {
    let deadline = Instant::now() + HANDSHAKE;
    let mut session = connection.session.clone();
    let fd = connection.fd();
    session::wait_until(&connection.session, fd, owner, deadline, || session.handshake()).map_err(|blocked| {
        let target = &connection.target;
        let (label, place) = (&target.label, target.place());
        match (&blocked, blocked.code()) {
            (BlockReason::TimedOut, _) => SshError::transient(
                format!(
                    "{label}: {place} accepted the connection but sent no ssh handshake within {} s",
                    HANDSHAKE.as_secs()
                ),
                "check that the host is responsive and that this is its ssh port",
            ),
            // Disconnected while waiting for the banner: what MaxStartups does.
            (_, -13 | -43 | -2) => SshError::new(
                SshErrorKind::Busy,
                format!("{label}: {place} closed the connection before the handshake: {}", blocked.text()),
                "check MaxStartups in sshd_config, fail2ban and hosts.deny on the server",
            ),
            (_, -5 | -8) => algorithms::mismatch(target, direct, &blocked),
            _ => blocked.transient(
                &format!("{label}: ssh handshake with {place}"),
                &format!("try `{}`", target.command()),
            ),
        }
    })
}

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
