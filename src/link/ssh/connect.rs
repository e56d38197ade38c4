//! Connects to a target: TCP or a tunnel through its jump hosts, handshake, host key, login (SSH-1, SSH-5 of
//! the parent module).

use super::connection::{Connection, Permit};
use super::known_hosts::{self, KnownHosts};
use super::user_config::SshTarget;
use super::wait::{self, BlockReason};
use super::{SessionOwner, SshError, SshErrorKind, algorithms, auth, dial, host_key, jump};
use rankdeck_types::link_state::Prompt;
use ssh2::Session;
use std::borrow::Cow;
use std::os::fd::{OwnedFd, RawFd};
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
    let mut asking = AskingOwner { owner, has_asked: false };
    loop {
        let owner = &mut asking;
        match attempt(&target, owner) {
            // AUTH-1: once more, with the configured keys alone.
            Err(error) if error.kind == SshErrorKind::TooManyKeys && !target.identities_only => {
                target = Cow::Owned(only_configured_keys(&target));
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
                    connection.has_prompted = asking.has_asked;
                    connection
                });
            }
        }
    }
}

/// Notes whether a login asks for a password or a code.
struct AskingOwner<'a> {
    owner: &'a mut dyn SessionOwner,
    has_asked: bool,
}

impl SessionOwner for AskingOwner<'_> {
    fn interactive(&self) -> bool {
        self.owner.interactive()
    }

    fn ask(&mut self, prompt: &Prompt) -> Option<String> {
        self.has_asked |= matches!(prompt, Prompt::Password { .. });
        self.owner.ask(prompt)
    }

    fn closing(&mut self) -> bool {
        self.owner.closing()
    }

    fn progress(&mut self, what: &str, done: u64, total: u64) {
        self.owner.progress(what, done, total);
    }

    fn starting(&mut self) {
        self.owner.starting();
    }

    fn begun(&mut self) {
        self.owner.begun();
    }

    fn wake_fd(&self) -> Option<RawFd> {
        self.owner.wake_fd()
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
    let mut connection = Connection { session, target: target.clone(), socket, has_prompted: false };
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
