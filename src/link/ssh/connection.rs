//! A logged-in session of libssh2: how it is made (TCP or a tunnel through jump hosts, handshake, host key, login), the
//! limit on handshakes in flight, and the pool of idle sessions (SSH-1, SSH-5 of the parent module).
//!
//! A launch connects to each host several times: preflight, upload, link. They share one login, because a
//! login may need a one-time code. Invariants:
//! - A session has one owner: a taken session is no longer in the pool.
//! - A session is idle for at most [`MAX_IDLE`], and only without open channels.

use super::known_hosts::{self, KnownHosts};
use super::session::{self, BlockReason};
use super::user_config::{AddressFamily, SshTarget};
use super::{SessionOwner, SshError, SshErrorKind, algorithms, auth, jump};
use rankdeck_types::link_state::Prompt;
use ssh2::Session;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

/// Most handshakes in flight per server, below sshd's default MaxStartups of 10.
pub(crate) const MAX_HANDSHAKES: usize = 8;

/// A logged-in session.
pub struct Connection {
    /// The session, always non-blocking.
    pub session: Session,
    pub target: SshTarget,
    pub(super) socket: Arc<OwnedFd>,
    /// The login has asked the user for a password or a code: another one asks again (RING-2 of `auth`).
    pub(super) has_prompted: bool,
}

impl Connection {
    /// Returns the socket, for `poll`.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Calls [`session::wait_until`] for this session.
    pub fn until<T>(
        &self,
        owner: &mut dyn SessionOwner,
        deadline: Instant,
        call: impl FnMut() -> Result<T, ssh2::Error>,
    ) -> Result<T, BlockReason> {
        session::wait_until(&self.session, self.fd(), owner, deadline, call)
    }

    /// Returns the name for messages.
    pub fn label(&self) -> &str {
        &self.target.label
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SSH-5. One attempt to disconnect cleanly; it does not block and may fail.
        let _ = self.session.disconnect(None, "done", None);
        // SAFETY: the descriptor is open: `self.socket` owns it and is still alive.
        unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

/// Permit for a handshake in flight.
#[derive(Debug)]
pub struct Permit(Server);

/// Address and port, the scope of MaxStartups.
type Server = (String, u16);

static IN_FLIGHT: Mutex<BTreeMap<Server, usize>> = Mutex::new(BTreeMap::new());
static FREED: Condvar = Condvar::new();

impl Permit {
    /// Waits for a free slot of the server of `target`; `None` if the owner closes the session.
    pub(super) fn take(target: &SshTarget, owner: &mut dyn SessionOwner) -> Option<Permit> {
        let server = (target.address.to_lowercase(), target.port);
        let mut counts = IN_FLIGHT.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let count = counts.entry(server.clone()).or_default();
            if *count < MAX_HANDSHAKES {
                *count += 1;
                return Some(Permit(server));
            }
            // Short waits, because the owner's bell does not wake a condition variable.
            counts = FREED
                .wait_timeout(counts, Duration::from_millis(50))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            if owner.closing() {
                return None;
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = IN_FLIGHT.lock().unwrap_or_else(PoisonError::into_inner);
        match counts.get_mut(&self.0) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(counts.remove(&self.0)),
        }
        // All waiters: the first one may wait for another server.
        FREED.notify_all();
    }
}

/// Longest idle time of a session; the user may read a prompt meanwhile.
const MAX_IDLE: Duration = Duration::from_secs(60);
/// Interval of checks for sessions that were idle too long.
const REAP_INTERVAL: Duration = Duration::from_secs(1);

struct IdleConnection {
    connection: Connection,
    since: Instant,
}

#[derive(Default)]
struct Pool {
    idle: Vec<IdleConnection>,
    /// A thread closes sessions that were idle too long.
    has_reaper: bool,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { idle: Vec::new(), has_reaper: false });

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    /// Takes an idle session to exactly this target, unless its server has closed it.
    pub(crate) fn take_idle(target: &SshTarget) -> Option<Connection> {
        loop {
            let connection = {
                let idle = &mut pool().idle;
                let at = idle.iter().position(|one| one.connection.target == *target)?;
                idle.swap_remove(at).connection
            };
            if is_open(connection.fd()) {
                return Some(connection);
            }
        }
    }

    /// Puts the session into the pool.
    pub(crate) fn put_idle(self) {
        let needs_reaper = {
            let mut pool = pool();
            pool.idle.push(IdleConnection { connection: self, since: Instant::now() });
            !std::mem::replace(&mut pool.has_reaper, true)
        };
        if needs_reaper && thread::Builder::new().name("ssh-pool".into()).spawn(reap).is_err() {
            // Without a reaper, sessions are not pooled.
            let gone = {
                let mut pool = pool();
                pool.has_reaper = false;
                std::mem::take(&mut pool.idle)
            };
            drop(gone);
        }
    }

    /// Closes the idle sessions to this target.
    pub(crate) fn close_idle(target: &SshTarget) {
        let gone: Vec<IdleConnection> = {
            let mut pool = pool();
            let (ended, others) =
                std::mem::take(&mut pool.idle).into_iter().partition(|one| one.connection.target == *target);
            pool.idle = others;
            ended
        };
        drop(gone);
    }
}

/// Closes sessions that were idle too long, until the pool is empty.
fn reap() {
    loop {
        thread::sleep(REAP_INTERVAL);
        // Close sessions without the lock: it may take a moment.
        let (gone, empty) = {
            let mut pool = pool();
            let (old, fresh) =
                std::mem::take(&mut pool.idle).into_iter().partition(|one| one.since.elapsed() >= MAX_IDLE);
            pool.idle = fresh;
            pool.has_reaper = !pool.idle.is_empty();
            let gone: Vec<IdleConnection> = old;
            (gone, !pool.has_reaper)
        };
        drop(gone);
        if empty {
            return;
        }
    }
}

/// Returns whether the peer has not closed this socket; unread bytes may remain.
pub(super) fn is_open(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: `poll` is one live entry for the length of the call, which does not wait.
    let count = unsafe { libc::poll(&raw mut poll, 1, 0) };
    count == 0
}

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
    let mut connection = Connection { session, target: target.clone(), socket, has_prompted: false };
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
            (BlockReason::TimedOut, _) => {
                no_handshake(label, &place, connection.session.banner_bytes().is_some())
            }
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

/// The error of a handshake that took too long. `has_banner`: the server's first line, a small packet, has arrived; the
/// lists of algorithms behind it fill whole packets.
fn no_handshake(label: &str, place: &str, has_banner: bool) -> SshError {
    let limit = HANDSHAKE.as_secs();
    match has_banner {
        true => SshError::transient(
            format!("{label}: {place} sent its ssh banner but no keys within {limit} s"),
            "check that the host is responsive; if small packets arrive and large ones do not (`ping -M do -s 1400` \
             fails, `-s 500` works), lower the MTU of the interface or tunnel",
        ),
        false => SshError::transient(
            format!("{label}: {place} accepted the connection but sent no ssh handshake within {limit} s"),
            "check that the host is responsive and that this is its ssh port",
        ),
    }
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
    use std::os::unix::net::UnixStream;

    #[test]
    fn closed_session_is_not_reused() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(is_open(ours.as_raw_fd()));
        std::io::Write::write_all(&mut &theirs, b"x").unwrap();
        assert!(is_open(ours.as_raw_fd()), "unread bytes are not an end");
        drop(theirs);
        assert!(!is_open(ours.as_raw_fd()));
    }

    #[test]
    fn handshake_that_stalls_after_the_banner_hints_at_mtu() {
        let hint = |has_banner| no_handshake("h", "h:22", has_banner).cause.hint;
        assert!(hint(true).contains("MTU") && !hint(false).contains("MTU"));
    }

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
