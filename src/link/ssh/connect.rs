//! From a target to a logged-in session: TCP (or jumps), handshake, host key, login.
//!
//! Owner: the calling thread, which then owns the [`Connection`]. Invariants: SSH-1, SSH-5 of the parent module.

use super::connection::{Connection, Permit};
use super::known_hosts::{self, HostKeyCheck, KnownHosts};
use super::user_config::SshTarget;
use super::wait::{self, Stall};
use super::{Operator, SshError, SshErrorKind, auth, jump};
use rankdeck_types::link_state::Prompt;
use ssh2::{MethodType, Session};
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// How often we come back to a server that turned us away before the handshake.
const RETURNS: u32 = 6;

/// Bound from the first byte to the end of the key exchange.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// What frees a write into a dead connection, unless longer silence is allowed; the agent's heartbeat is the real detector.
const USER_TIMEOUT: Duration = Duration::from_secs(8);

/// Host key types we accept, best first; `ssh-rsa` keys sign with SHA-2 only.
const HOST_KEYS: [&str; 6] = [
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
];
/// What libssh2 may negotiate; it would offer group1, 3des, cbc, md5 and SHA-1 signatures by itself.
const ALGORITHMS: [(MethodType, &str); 5] = [
    (
        MethodType::Kex,
        "curve25519-sha256,curve25519-sha256@libssh.org,ecdh-sha2-nistp256,ecdh-sha2-nistp384,ecdh-sha2-nistp521,\
         diffie-hellman-group-exchange-sha256,diffie-hellman-group16-sha512,diffie-hellman-group18-sha512,diffie-hellman-group14-sha256",
    ),
    (MethodType::CryptCs, CIPHERS),
    (MethodType::CryptSc, CIPHERS),
    (MethodType::MacCs, MACS),
    (MethodType::MacSc, MACS),
];
const CIPHERS: &str = "aes256-gcm@openssh.com,aes128-gcm@openssh.com,chacha20-poly1305@openssh.com,aes256-ctr,aes192-ctr,aes128-ctr";
const MACS: &str = "hmac-sha2-256-etm@openssh.com,hmac-sha2-512-etm@openssh.com,hmac-sha2-256,hmac-sha2-512";
/// Signatures for our own keys.
const SIGNATURES: &str = "rsa-sha2-512,rsa-sha2-256";

/// Connects to `target`, through its jumps, and logs in everywhere on the way.
pub fn connect(target: &SshTarget, operator: &mut dyn Operator) -> Result<Connection, SshError> {
    for turned_away in 0.. {
        match attempt(target, operator) {
            Err(error) if error.kind == SshErrorKind::Busy && turned_away < RETURNS => {
                rest(come_back(turned_away, crate::random::fraction()), operator)?;
            }
            Err(error) if error.kind == SshErrorKind::Busy => {
                return Err(SshError { kind: SshErrorKind::Passing, ..error });
            }
            other => return other,
        }
    }
    Err(SshError::closed())
}

/// Wait before coming back: up to a quarter of a second, doubling to four seconds, and anything between half and all of
/// it, so that links that were turned away together do not come back together.
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

/// One attempt.
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
    let stream = match stream {
        Some(stream) => stream,
        None => dial(target, operator)?,
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
    restrict(&session, &known.key_types(&name)).map_err(fault)?;
    let mut connection = Connection { session, target: target.clone(), socket, relays: Vec::new() };
    handshake(&mut connection, operator)?;
    check_host_key(&connection, &known, &name, &mut permit, operator)?;
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

/// Why TCP did not connect.
enum Undialled {
    /// The name has no address.
    Name(io::Error),
    /// No address answered; the last one's error.
    Connect(io::Error),
}

/// Connects over TCP. Name resolution and the connection happen on a thread of their own, so that the order to close need not wait for
/// either; that thread outlives it by the connection's own timeout at most.
fn dial(target: &SshTarget, operator: &mut dyn Operator) -> Result<OwnedFd, SshError> {
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
                return Err(undialled(target, Undialled::Connect(io::ErrorKind::Other.into())));
            }
        }
    }
}

/// Tries each address of the name in turn.
fn dial_each(address: &str, port: u16, timeout: Duration) -> Result<TcpStream, Undialled> {
    let addresses = (address, port).to_socket_addrs().map_err(Undialled::Name)?;
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(Undialled::Connect(last))
}

fn undialled(target: &SshTarget, why: Undialled) -> SshError {
    let (label, place) = (&target.label, target.place());
    let error = match why {
        Undialled::Name(error) => {
            let said = error.to_string();
            let said = said.strip_prefix("failed to lookup address information: ").unwrap_or(&said);
            let hint = format!(
                "check `address` of this host in hosts.toml, or try `getent hosts {}`",
                target.address
            );
            return SshError::passing(format!("{label}: no address for {:?}: {said}", target.address), hint);
        }
        Undialled::Connect(error) => error,
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
        // SAFETY: the descriptor is open for the length of the call, and the pointer is to a live integer of the size given.
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

/// Allows strong algorithms only, and asks for the key types on record first.
fn restrict(session: &Session, known: &[String]) -> Result<(), ssh2::Error> {
    for (method, list) in ALGORITHMS {
        session.method_pref(method, list)?;
    }
    session.method_pref(MethodType::SignAlgo, SIGNATURES)?;
    session.method_pref(MethodType::HostKey, &host_key_order(known).join(","))
}

/// Our host key types, those on record first: else the server would show a key that we cannot compare.
fn host_key_order(known: &[String]) -> Vec<&'static str> {
    let listed = |kind: &&'static str| match *kind {
        "rsa-sha2-512" | "rsa-sha2-256" => known.iter().any(|known| known == "ssh-rsa"),
        kind => known.iter().any(|known| known == kind),
    };
    let (mut first, rest): (Vec<_>, Vec<_>) = HOST_KEYS.into_iter().partition(listed);
    first.extend(rest);
    first
}

fn handshake(connection: &mut Connection, operator: &mut dyn Operator) -> Result<(), SshError> {
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
            (_, -5 | -8) => SshError::lasting(
                format!("{label}: no common algorithm with {place}: {}", stall.text()),
                format!("rankdeck refuses SHA-1, CBC, 3DES and MD5; compare with `ssh -vv -p {} {}`", target.port, target.address),
            ),
            _ => stall.passing(&format!("{label}: ssh handshake with {place}"), &format!("try `{}`", target.command())),
        }
    })
}

/// On `yes` the key is remembered.
fn check_host_key(
    connection: &Connection,
    known: &KnownHosts,
    name: &str,
    permit: &mut Option<Permit>,
    operator: &mut dyn Operator,
) -> Result<(), SshError> {
    let target = &connection.target;
    let label = &target.label;
    let key = connection.session.host_key().map(|(key, _)| key.to_vec()).unwrap_or_default();
    let (kind, shown) = (known_hosts::key_type(&key), known_hosts::fingerprint(&key));
    let file = |place: &known_hosts::Place| format!("{}:{}", place.file.display(), place.line);
    match known.check(name, &key) {
        _ if key.is_empty() => Err(SshError::passing(format!("{label}: the server showed no host key"), "")),
        HostKeyCheck::Match => Ok(()),
        HostKeyCheck::Revoked { place } => Err(SshError::lasting(
            format!("{label}: host key {shown} of {name} is revoked in {}", file(&place)),
            "do not connect; ask whoever runs this host",
        )),
        HostKeyCheck::Changed { place, key_type, fingerprint } => Err(SshError::lasting(
            format!(
                "{label}: host key of {name} has changed: now {kind} {shown}, on record {key_type} {fingerprint} ({})",
                file(&place)
            ),
            format!(
                "somebody may be listening; if the host was reinstalled: `ssh-keygen -R '{name}' -f {}`, then connect again",
                place.file.display()
            ),
        )),
        HostKeyCheck::Unknown => {
            let scan = format!("ssh-keyscan -p {} {} | ssh-keygen -lf -", target.port, target.address);
            let refused = |why: &str| {
                SshError::lasting(
                    format!("{label}: host key of {name} is unknown ({kind} {shown}){why}"),
                    format!(
                        "compare the fingerprint (`{scan}` from a place you trust), then accept it with `{}`",
                        target.command()
                    ),
                )
            };
            if target.strict {
                return Err(refused(" and StrictHostKeyChecking is yes"));
            }
            if !operator.interactive() {
                return Err(refused(""));
            }
            // The server keeps this connection open meanwhile, but others need not wait for the user.
            permit.take();
            let prompt = Prompt::UnknownHostKey {
                host: name.into(),
                key_type: kind.clone(),
                fingerprint: shown.clone(),
            };
            let answer = operator.ask(&prompt);
            if operator.closing() {
                return Err(SshError::closed());
            }
            match answer.as_deref().map(str::trim) {
                Some("yes") => {}
                Some(typed) if typed == shown => {}
                _ => return Err(refused(" and was not accepted")),
            }
            if let Some(file) = target.known_hosts.first() {
                // Not remembering is a nuisance, not a danger: the user has accepted this key and will be asked again.
                if let Err(error) = known_hosts::append(file, name, &key) {
                    tracing::warn!(host = %label, file = %file.display(), %error, "cannot remember the host key");
                }
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_types_on_record_are_asked_for_first() {
        assert_eq!(host_key_order(&[]), HOST_KEYS);
        assert_eq!(host_key_order(&["ssh-rsa".into()])[..2], ["rsa-sha2-512", "rsa-sha2-256"]);
        assert_eq!(host_key_order(&["ecdsa-sha2-nistp256".into()])[0], "ecdsa-sha2-nistp256");
        assert_eq!(host_key_order(&["unheard-of".into()]).len(), HOST_KEYS.len());
    }

    #[test]
    fn libssh2_knows_every_algorithm_that_we_name() {
        let session = Session::new().unwrap();
        for (method, list) in ALGORITHMS {
            let kind = method as i32;
            session.method_pref(method, list).unwrap_or_else(|error| panic!("{kind}: {error}"));
        }
        restrict(&session, &[]).unwrap();
    }
}
