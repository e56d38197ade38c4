//! From a target to a logged-in session: TCP (or jumps), handshake, host key, login.
//!
//! Owner: the calling thread, which then owns the [`Connection`]. Invariants: SSH-1, SSH-5 of the parent
//! module.

use super::connection::{Connection, Permit};
use super::known_hosts::{self, KnownHosts};
use super::user_config::SshTarget;
use super::wait::{self, Stall};
use super::{Operator, SshError, SshErrorKind, algorithms, auth, dial, host_key, jump};
use ssh2::Session;
use std::borrow::Cow;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How often we come back to a server that turned us away before the handshake.
const RETURNS: u32 = 6;

/// Bound from the first byte to the end of the key exchange.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Connects to `wanted`, through its jumps, and logs in everywhere on the way.
pub fn connect(wanted: &SshTarget, operator: &mut dyn Operator) -> Result<Connection, SshError> {
    let mut target = Cow::Borrowed(wanted);
    let mut turned_away = 0;
    loop {
        match attempt(&target, operator) {
            // AUTH-1: once more, with the configured keys alone.
            Err(error) if error.kind == SshErrorKind::TooManyKeys && !target.identities_only => {
                let only = |target: &SshTarget| SshTarget { identities_only: true, ..target.clone() };
                let jumps = target.jumps.iter().map(only).collect();
                target = Cow::Owned(SshTarget { jumps, ..only(&target) });
            }
            Err(error) if error.kind == SshErrorKind::Busy && turned_away < RETURNS => {
                rest(come_back(turned_away, crate::random::fraction()), operator)?;
                turned_away += 1;
            }
            Err(error) if error.kind == SshErrorKind::Busy => {
                return Err(SshError { kind: SshErrorKind::Passing, ..error });
            }
            Err(error) if error.kind == SshErrorKind::TooManyKeys => {
                return Err(SshError { kind: SshErrorKind::Lasting, ..error });
            }
            // The narrower offer was for this login; whoever compares targets wants what was asked for.
            other => {
                return other.map(|mut connection| {
                    connection.target = wanted.clone();
                    connection
                });
            }
        }
    }
}

/// Wait before coming back: up to a quarter of a second, doubling to four seconds, and anything between half
/// and all of it, so that links that were turned away together do not come back together.
fn come_back(turned_away: u32, random: f64) -> Duration {
    let most = Duration::from_millis(250).saturating_mul(1 << turned_away.min(4));
    most.mul_f64(0.5 + 0.5 * random.clamp(0.0, 1.0))
}

/// Waits, unless the operator closes.
fn rest(time: Duration, operator: &mut dyn Operator) -> Result<(), SshError> {
    let deadline = Instant::now() + time;
    loop {
        if operator.closing() {
            return Err(SshError::closed());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(Duration::from_millis(50)));
    }
}

fn attempt(target: &SshTarget, operator: &mut dyn Operator) -> Result<Connection, SshError> {
    let mut relays = Vec::new();
    let mut stream: Option<OwnedFd> = None;
    for (index, hop) in target.jumps.iter().enumerate() {
        let connection = login(hop, stream.take(), operator)?;
        let next = target.jumps.get(index + 1).unwrap_or(target);
        let (end, relay) = jump::tunnel(connection, next, operator)?;
        stream = Some(end);
        relays.push(relay);
    }
    let mut connection = login(target, stream, operator)?;
    relays.reverse();
    connection.relays = relays;
    Ok(connection)
}

/// One server: over `stream` when a tunnel leads there, over TCP otherwise.
fn login(
    target: &SshTarget,
    stream: Option<OwnedFd>,
    operator: &mut dyn Operator,
) -> Result<Connection, SshError> {
    let mut permit = Some(Permit::take(target, operator).ok_or_else(SshError::closed)?);
    let direct = stream.is_none();
    let stream = match stream {
        Some(stream) => stream,
        None => dial::dial(target, operator)?,
    };
    let fault = |error: ssh2::Error| {
        SshError::passing(format!("{}: ssh session: {}", target.label, error.message()), "")
    };
    let mut session = Session::new().map_err(fault)?;
    let socket = Arc::new(stream);
    session.set_tcp_stream(socket.clone());
    session.set_blocking(false);
    let name = record_name(target);
    let known = KnownHosts::load(&[target.known_hosts.clone(), target.global_known_hosts.clone()].concat());
    algorithms::restrict(&session, target, &known.key_types(&name))?;
    let mut connection = Connection { session, target: target.clone(), socket, relays: Vec::new() };
    handshake(&mut connection, direct, operator)?;
    host_key::check(&connection, &known, &name, &mut permit, operator)?;
    auth::login(&connection, &mut permit, operator)?;
    Ok(connection)
}

/// The name that this target's key goes by in known_hosts.
fn record_name(target: &SshTarget) -> String {
    match &target.host_key_alias {
        Some(alias) => alias.to_lowercase(),
        None => known_hosts::record_name(&target.address, target.port),
    }
}

/// `direct`: the server is reached by TCP from here.
fn handshake(connection: &mut Connection, direct: bool, operator: &mut dyn Operator) -> Result<(), SshError> {
    let deadline = Instant::now() + HANDSHAKE;
    let mut session = connection.session.clone();
    let fd = connection.fd();
    wait::until(&connection.session, fd, operator, deadline, || session.handshake()).map_err(|stall| {
        let target = &connection.target;
        let (label, place) = (&target.label, target.place());
        match (&stall, stall.code()) {
            (Stall::TimedOut, _) => SshError::passing(
                format!("{label}: {place} accepted the connection but does not speak: no ssh handshake within {} s", HANDSHAKE.as_secs()),
                "is the host frozen or overloaded, or is this not an ssh port?",
            ),
            // Disconnected while waiting for the banner: what MaxStartups does.
            (_, -13 | -43 | -2) => SshError::new(
                SshErrorKind::Busy,
                format!("{label}: {place} closed the connection before the handshake: {}", stall.text()),
                "sshd drops bursts of logins (MaxStartups) and blocks some addresses (fail2ban, hosts.deny)",
            ),
            (_, -5 | -8) => algorithms::mismatch(target, direct, &stall),
            _ => stall.passing(&format!("{label}: ssh handshake with {place}"), &format!("try `{}`", target.command())),
        }
    })
}
