//! Connects to a target: TCP or a tunnel through its jump hosts, handshake, host key, login (SSH-1, SSH-5 of
//! the parent module).
//!
//! libssh2 needs a socket, so a tunnel is a `direct-tcpip` channel of the jump host's session, a socket pair,
//! and a thread that copies between the two. The thread owns the jump host's connection; [`Relay`] ends and
//! joins it.

use super::connection::{Connection, Permit, Relay};
use super::known_hosts::{self, KnownHosts};
use super::user_config::SshTarget;
use super::wait::{self, BlockReason, Interest};
use super::{SessionOwner, SshError, SshErrorKind, algorithms, auth, dial, host_key};
use ssh2::{Channel, Session};
use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

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
                let only = |target: &SshTarget| SshTarget { identities_only: true, ..target.clone() };
                let jumps = target.jumps.iter().map(only).collect();
                target = Cow::Owned(SshTarget { jumps, ..only(&target) });
            }
            Err(error) if error.kind == SshErrorKind::Busy && dropped < RETRIES => {
                sleep(retry_delay(dropped, crate::random::fraction()), owner)?;
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
    let mut relays = Vec::new();
    let mut stream: Option<OwnedFd> = None;
    for (index, hop) in target.jumps.iter().enumerate() {
        let connection = login(hop, stream.take(), owner)?;
        let next = target.jumps.get(index + 1).unwrap_or(target);
        let (end, relay) = tunnel(connection, next, owner)?;
        stream = Some(end);
        relays.push(relay);
    }
    let mut connection = login(target, stream, owner)?;
    relays.reverse();
    connection.relays = relays;
    Ok(connection)
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
        None => dial::dial(target, owner)?,
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
    let mut connection = Connection { session, target: target.clone(), socket, relays: Vec::new() };
    handshake(&mut connection, direct, owner)?;
    host_key::check(&connection, &known, &name, &mut permit, owner)?;
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
    wait::until(&connection.session, fd, owner, deadline, || session.handshake()).map_err(|blocked| {
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

/// Timeout of opening the tunnel: the jump host connects to the next one meanwhile.
const OPENING: Duration = Duration::from_secs(15);
const BUFFER: usize = 64 << 10;

/// Opens a tunnel from the server of `connection` to `next`; returns its socket.
fn tunnel(
    connection: Connection,
    next: &SshTarget,
    owner: &mut dyn SessionOwner,
) -> Result<(OwnedFd, Relay), SshError> {
    let deadline = Instant::now() + OPENING;
    let label = connection.label().to_string();
    let channel = connection
        .until(owner, deadline, || connection.session.channel_direct_tcpip(&next.address, next.port, None))
        .map_err(|blocked| {
            let hint = format!(
                "check that {} is reachable from the jump host and that its sshd allows TCP forwarding",
                next.place()
            );
            blocked
                .transient(&format!("{label}: cannot reach {} through this jump host", next.place()), &hint)
        })?;
    let fault =
        |error: io::Error| SshError::transient(format!("{label}: cannot set up the tunnel: {error}"), "");
    let (ours, theirs) = UnixStream::pair().map_err(fault)?;
    ours.set_nonblocking(true).map_err(fault)?;
    let thread = thread::Builder::new()
        .name("ssh-jump".into())
        .spawn(move || copy(connection, channel, ours))
        .map_err(fault)?;
    Ok((theirs.into(), Relay::new(thread)))
}

/// Buffered bytes of one direction.
#[derive(Default)]
struct TunnelDirection {
    bytes: Vec<u8>,
    sent: usize,
    ended: bool,
}

impl TunnelDirection {
    /// Reads from `from` if the buffer is empty; returns whether bytes moved.
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

    /// Writes the buffer to `to`; returns whether bytes moved.
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

/// Copies once in both directions. A started write into the session is finished before the session is read
/// again: libssh2 sends nothing else (such as a window adjustment) in the middle of a packet.
fn copy_once(
    up: &mut TunnelDirection,
    down: &mut TunnelDirection,
    channel: &mut Channel,
    socket: &mut UnixStream,
) -> io::Result<bool> {
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
    let (mut up, mut down) = (TunnelDirection::default(), TunnelDirection::default());
    loop {
        match copy_once(&mut up, &mut down, &mut channel, &mut socket) {
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
    // The channel must be dropped before its session.
    let _ = channel.close();
    drop(channel);
    drop(connection);
}
