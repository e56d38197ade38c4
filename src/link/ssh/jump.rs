//! Sessions with jump hosts, shared by all links of this process.
//!
//! libssh2 needs a socket, so a tunnel is a `direct-tcpip` channel of the jump host's session and a socket
//! pair. One thread per jump session owns the session and copies all of its tunnels. Invariants:
//! - JUMP-1: a console logs in to a jump host once, because a login may need a one-time code: one link logs in,
//!   the others wait and share its session or its refusal.
//! - JUMP-2: a libssh2 call that has sent a part of a packet is repeated until complete; meanwhile every other
//!   call of the session fails with EAGAIN (`send_existing` in its transport.c).
//! - JUMP-3: libssh2 opens one channel at a time, and a jump host may take minutes to reach a dead host. A
//!   session that is [`STUCK`] in that gets no new tunnels; they get another session.
//! - A session without tunnels is closed after [`MAX_IDLE`].

use super::connection::{self, Connection};
use super::session::{self, EAGAIN, Interest};
use super::user_config::SshTarget;
use super::{SessionOwner, SshError, SshErrorKind};
use ssh2::{BlockDirections, Channel};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Timeout of opening a tunnel: the jump host connects to the next one meanwhile.
const OPENING: Duration = Duration::from_secs(15);
/// Time of opening one tunnel after which others use another session (JUMP-3).
const STUCK: Duration = Duration::from_secs(3);
/// Longest time without tunnels: hosts behind it may reboot meanwhile.
const MAX_IDLE: Duration = Duration::from_secs(15 * 60);
/// Interval of checks while a tunnel opens, and of looking for answers and orders to close.
const TICK: Duration = Duration::from_millis(200);
const POLL: Duration = Duration::from_millis(20);
/// Longest wait without an event, for the idle time.
const REST: Duration = Duration::from_secs(5);
/// Bytes that a direction of a tunnel buffers.
const BUFFER: usize = 64 << 10;
/// Attempts to open a tunnel if sessions end or are stuck meanwhile.
const ATTEMPTS: u32 = 8;

/// A jump host and the way to it: the nearest server first.
type JumpPath = [SshTarget];

/// Logs in to the last server of a path, over a tunnel if there is one.
pub(super) type LoginFn<'a> =
    &'a dyn Fn(&SshTarget, Option<OwnedFd>, &mut dyn SessionOwner) -> Result<Connection, SshError>;

/// Opens a tunnel through `path` to `next`; returns its socket.
pub(super) fn tunnel(
    path: &JumpPath,
    next: &SshTarget,
    login: LoginFn<'_>,
    owner: &mut dyn SessionOwner,
) -> Result<OwnedFd, SshError> {
    let Some(last) = path.last() else { return Err(SshError::permanent("no jump host", "")) };
    for _ in 0..ATTEMPTS {
        match acquire(path, login, owner)?.open(next, owner)? {
            Some(socket) => return Ok(socket),
            None if owner.closing() => return Err(SshError::closed()),
            None => {}
        }
    }
    Err(SshError::transient(format!("{}: the session with this jump host keeps ending", last.label), ""))
}

/// The outcome of a login that several links wait for. A canceled login has none: another link logs in.
#[derive(Default)]
struct SharedLogin(Mutex<Option<Result<(), Option<SshError>>>>);

impl SharedLogin {
    fn outcome(&self) -> Option<Result<(), Option<SshError>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

enum JumpState {
    LoggingIn(Arc<SharedLogin>),
    Open(JumpSession),
}

struct JumpEntry {
    path: Vec<SshTarget>,
    state: JumpState,
}

static JUMPS: Mutex<Vec<JumpEntry>> = Mutex::new(Vec::new());

fn jumps() -> MutexGuard<'static, Vec<JumpEntry>> {
    JUMPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends a login for the links that wait for it, also if it panics.
struct LoginTurn {
    login: Arc<SharedLogin>,
    outcome: Result<(), Option<SshError>>,
}

impl Drop for LoginTurn {
    fn drop(&mut self) {
        let mine = |entry: &JumpEntry| matches!(&entry.state, JumpState::LoggingIn(login) if Arc::ptr_eq(login, &self.login));
        jumps().retain(|entry| !mine(entry));
        *self.login.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.outcome.clone());
    }
}

/// Returns a session with the last server of `path`: an open one, or a new one (JUMP-1).
fn acquire(
    path: &JumpPath,
    login: LoginFn<'_>,
    owner: &mut dyn SessionOwner,
) -> Result<JumpSession, SshError> {
    let mut turn = loop {
        let other = {
            let mut jumps = jumps();
            jumps.retain(|entry| !matches!(&entry.state, JumpState::Open(session) if !session.is_alive()));
            let same = || jumps.iter().filter(|entry| entry.path == path);
            let open = same().find_map(|entry| match &entry.state {
                JumpState::Open(session) if !session.is_stuck() => Some(session.clone()),
                JumpState::Open(_) | JumpState::LoggingIn(_) => None,
            });
            if let Some(session) = open {
                return Ok(session);
            }
            let other = same().find_map(|entry| match &entry.state {
                JumpState::LoggingIn(login) => Some(login.clone()),
                JumpState::Open(_) => None,
            });
            match other {
                Some(other) => other,
                None => {
                    let login = Arc::new(SharedLogin::default());
                    let state = JumpState::LoggingIn(login.clone());
                    jumps.push(JumpEntry { path: path.to_vec(), state });
                    break LoginTurn { login, outcome: Err(None) };
                }
            }
        };
        match await_login(&other, owner)? {
            Ok(()) | Err(None) => {}
            Err(Some(error)) => return Err(error),
        }
    };
    let session = log_in(path, login, owner);
    match session {
        Ok(session) => {
            // Before the turn ends, so that no other link logs in.
            jumps().push(JumpEntry { path: path.to_vec(), state: JumpState::Open(session.clone()) });
            turn.outcome = Ok(());
            Ok(session)
        }
        Err(error) => {
            turn.outcome = Err(Some(error.clone()).filter(|error| error.kind != SshErrorKind::Closed));
            Err(error)
        }
    }
}

/// Waits for the login of another link.
fn await_login(
    login: &SharedLogin,
    owner: &mut dyn SessionOwner,
) -> Result<Result<(), Option<SshError>>, SshError> {
    loop {
        if let Some(outcome) = login.outcome() {
            return Ok(outcome);
        }
        if owner.closing() {
            return Err(SshError::closed());
        }
        // Polling is cheap compared with a login, and needs no second wake-up.
        thread::sleep(POLL);
    }
}

fn log_in(
    path: &JumpPath,
    login: LoginFn<'_>,
    owner: &mut dyn SessionOwner,
) -> Result<JumpSession, SshError> {
    let Some((last, before)) = path.split_last() else {
        return Err(SshError::permanent("no jump host", ""));
    };
    let over = if before.is_empty() { None } else { Some(tunnel(before, last, login, owner)?) };
    JumpSession::start(login(last, over, owner)?)
}

/// A request for a tunnel.
struct TunnelRequest {
    address: String,
    port: u16,
    answer: mpsc::Sender<Option<Result<UnixStream, SshError>>>,
    since: Instant,
}

/// A logged-in session with a jump host; its thread serves the tunnels.
#[derive(Clone)]
struct JumpSession {
    label: String,
    requests: mpsc::Sender<TunnelRequest>,
    bell: Arc<UnixStream>,
    alive: Arc<AtomicBool>,
    /// The start of opening the current tunnel.
    opening: Arc<Mutex<Option<Instant>>>,
}

impl JumpSession {
    fn start(connection: Connection) -> Result<JumpSession, SshError> {
        let label = connection.label().to_owned();
        let fault = |error: io::Error| {
            SshError::transient(
                format!("{label}: cannot set up tunnels: {error}"),
                "raise the limits of processes and open files with `ulimit -u` and `ulimit -n`",
            )
        };
        let (ringer, bell) = UnixStream::pair().map_err(fault)?;
        ringer.set_nonblocking(true).map_err(fault)?;
        bell.set_nonblocking(true).map_err(fault)?;
        let (sender, requests) = mpsc::channel();
        let session = JumpSession {
            label: label.clone(),
            requests: sender,
            bell: Arc::new(ringer),
            alive: Arc::new(AtomicBool::new(true)),
            opening: Arc::default(),
        };
        let server = JumpServer {
            tunnels: Vec::new(),
            opening: None,
            connection,
            requests,
            bell,
            waiting: VecDeque::new(),
            shared_opening: session.opening.clone(),
            alive: session.alive.clone(),
            repeat: None,
        };
        thread::Builder::new().name("ssh-jump".into()).spawn(move || server.serve()).map_err(fault)?;
        Ok(session)
    }

    fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    fn is_stuck(&self) -> bool {
        let opening = *self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        opening.is_some_and(|since| since.elapsed() >= STUCK)
    }

    /// Opens a tunnel to `next`; `None` if the session ended or is stuck.
    fn open(&self, next: &SshTarget, owner: &mut dyn SessionOwner) -> Result<Option<OwnedFd>, SshError> {
        let (sender, answer) = mpsc::channel();
        let request = TunnelRequest {
            address: next.address.clone(),
            port: next.port,
            answer: sender,
            since: Instant::now(),
        };
        if self.requests.send(request).is_err() {
            return Ok(None);
        }
        // If the socket is full, the bell is already pending.
        let _ = (&*self.bell).write(&[1]);
        loop {
            match answer.recv_timeout(POLL) {
                Ok(Some(Ok(socket))) => return Ok(Some(socket.into())),
                Ok(Some(Err(error))) => {
                    let SshError { kind, cause } = error;
                    let text = format!(
                        "{}: cannot reach {} through this jump host: {}",
                        self.label,
                        next.place(),
                        cause.error
                    );
                    let hint = format!(
                        "check that {} is reachable from the jump host and that its sshd allows TCP forwarding",
                        next.place()
                    );
                    return Err(SshError::new(kind, text, hint));
                }
                Ok(None) | Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) if owner.closing() => return Err(SshError::closed()),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
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

    fn is_done(&self) -> bool {
        self.ended && self.bytes.is_empty()
    }
}

/// An open tunnel. The end of one direction ends both: an ssh connection has no half-open state.
struct Tunnel {
    channel: Channel,
    /// `None`: the tunnel is closing.
    socket: Option<UnixStream>,
    up: TunnelDirection,
    down: TunnelDirection,
    closing_since: Option<Instant>,
}

/// A call of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionCall {
    Open,
    /// Of the tunnel with this index.
    Write(usize),
    Read(usize),
    Close(usize),
}

/// The thread of a session. Field order: channels must be dropped before their session.
struct JumpServer {
    tunnels: Vec<Tunnel>,
    /// The tunnel that is being opened; its request is answered at the latest after [`OPENING`].
    opening: Option<(TunnelRequest, bool)>,
    connection: Connection,
    requests: mpsc::Receiver<TunnelRequest>,
    bell: UnixStream,
    waiting: VecDeque<TunnelRequest>,
    shared_opening: Arc<Mutex<Option<Instant>>>,
    alive: Arc<AtomicBool>,
    /// The call that has sent a part of a packet (JUMP-2).
    repeat: Option<SessionCall>,
}

impl Drop for JumpServer {
    fn drop(&mut self) {
        self.alive.store(false, Ordering::Release);
    }
}

impl JumpServer {
    fn serve(mut self) {
        let mut used = Instant::now();
        loop {
            self.receive();
            let moved = match self.step() {
                Ok(moved) => moved,
                // The session is gone, and with it all tunnels.
                Err(()) => return,
            };
            let is_idle = self.tunnels.is_empty() && self.opening.is_none() && self.waiting.is_empty();
            if !is_idle {
                used = Instant::now();
            } else if used.elapsed() >= MAX_IDLE {
                return;
            }
            if !moved {
                self.wait();
                if self.repeat.is_none() && !connection::is_open(self.connection.fd()) && is_idle {
                    return;
                }
            }
        }
    }

    /// Takes new requests; drains the bell.
    fn receive(&mut self) {
        let mut rung = [0; 64];
        while matches!(self.bell.read(&mut rung), Ok(count) if count == rung.len()) {}
        self.waiting.extend(self.requests.try_iter());
        let Some((opening, answered)) = &mut self.opening else { return };
        let stuck = opening.since.elapsed();
        if stuck >= OPENING && !std::mem::replace(answered, true) {
            let error = SshError::transient(format!("no response within {} s", OPENING.as_secs()), "");
            let _ = opening.answer.send(Some(Err(error)));
        }
        if stuck >= STUCK {
            for request in self.waiting.drain(..) {
                let _ = request.answer.send(None);
            }
        }
    }

    /// Calls the session once for everything that may move; returns whether something moved. Errors: the
    /// session is gone.
    fn step(&mut self) -> Result<bool, ()> {
        if let Some(call) = self.repeat {
            return self.call(call);
        }
        let mut moved = self.call(SessionCall::Open)?;
        let mut index = 0;
        while index < self.tunnels.len() {
            for call in [SessionCall::Write(index), SessionCall::Read(index), SessionCall::Close(index)] {
                moved |= self.call(call)?;
                if self.repeat.is_some() {
                    return Ok(moved);
                }
            }
            let tunnel = &self.tunnels[index];
            let closed = tunnel.socket.is_none() && tunnel.closing_since.is_none();
            if closed {
                drop(self.tunnels.swap_remove(index));
            } else {
                index += 1;
            }
        }
        Ok(moved)
    }

    /// Makes one call; returns whether something moved.
    fn call(&mut self, call: SessionCall) -> Result<bool, ()> {
        let moved = match call {
            SessionCall::Open => self.open()?,
            SessionCall::Write(index) | SessionCall::Read(index) => {
                let Some(tunnel) = self.tunnels.get_mut(index) else { return Ok(false) };
                let copied = match call {
                    SessionCall::Write(_) => tunnel.copy_up(),
                    _ => tunnel.copy_down(),
                };
                match copied {
                    Ok(moved) => moved,
                    Err(_) if !connection::is_open(self.connection.fd()) => return Err(()),
                    Err(_) => tunnel.end(),
                }
            }
            SessionCall::Close(index) => match self.tunnels.get_mut(index) {
                Some(tunnel) => tunnel.close(&self.connection),
                None => false,
            },
        };
        self.repeat = Some(call).filter(|call| is_half_sent(&self.connection) && self.is_under_way(*call));
        Ok(moved)
    }

    /// Returns whether a call has something to do.
    fn is_under_way(&self, call: SessionCall) -> bool {
        match call {
            SessionCall::Open => self.opening.is_some(),
            SessionCall::Write(index) => {
                self.tunnels.get(index).is_some_and(|tunnel| !tunnel.up.bytes.is_empty())
            }
            SessionCall::Read(index) => self
                .tunnels
                .get(index)
                .is_some_and(|tunnel| tunnel.socket.is_some() && tunnel.down.bytes.is_empty()),
            SessionCall::Close(index) => {
                self.tunnels.get(index).is_some_and(|tunnel| tunnel.closing_since.is_some())
            }
        }
    }

    /// Opens the next tunnel; returns whether it was opened or refused.
    fn open(&mut self) -> Result<bool, ()> {
        if self.opening.is_none() {
            self.opening = self
                .waiting
                .pop_front()
                .map(|request| (TunnelRequest { since: Instant::now(), ..request }, false));
            let since = self.opening.as_ref().map(|(request, _)| request.since);
            *self.shared_opening.lock().unwrap_or_else(PoisonError::into_inner) = since;
        }
        let Some((request, _)) = &self.opening else { return Ok(false) };
        let opened = self.connection.session.channel_direct_tcpip(&request.address, request.port, None);
        let answer = match opened {
            Err(error) if session::error_code(&error) == EAGAIN => return Ok(false),
            Err(_) if !connection::is_open(self.connection.fd()) => return Err(()),
            Err(error) => Err(SshError::transient(error.message(), "")),
            Ok(channel) => socket_pair().map(|(ours, theirs)| {
                self.tunnels.push(Tunnel {
                    channel,
                    socket: Some(ours),
                    up: TunnelDirection::default(),
                    down: TunnelDirection::default(),
                    closing_since: None,
                });
                theirs
            }),
        };
        *self.shared_opening.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if let Some((request, answered)) = self.opening.take()
            && !answered
        {
            // A receiver that is gone drops the socket, which ends the tunnel.
            let _ = request.answer.send(Some(answer));
        }
        Ok(true)
    }

    /// Waits for an event.
    fn wait(&self) {
        let mut session = session::interest(&self.connection.session, self.connection.fd());
        session.write &= self.repeat.is_some();
        // If no tunnel has room for more, its bytes stay in the session's socket.
        let has_room = |tunnel: &Tunnel| tunnel.socket.is_none() || tunnel.down.bytes.is_empty();
        session.read &= self.repeat.is_none()
            && (self.opening.is_some() || self.tunnels.is_empty() || self.tunnels.iter().any(has_room));
        let mut interests = vec![session, Interest { fd: self.bell.as_raw_fd(), read: true, write: false }];
        if self.repeat.is_none() {
            interests.extend(self.tunnels.iter().filter_map(|tunnel| {
                let fd = tunnel.socket.as_ref()?.as_raw_fd();
                let (read, write) = (tunnel.up.bytes.is_empty(), !tunnel.down.bytes.is_empty());
                (read || write).then_some(Interest { fd, read, write })
            }));
        }
        let is_pending =
            self.opening.is_some() || self.tunnels.iter().any(|tunnel| tunnel.closing_since.is_some());
        // A failing poll means a bad descriptor; the next call returns a better error.
        let _ = session::poll(&interests, if is_pending { TICK } else { REST });
    }
}

impl Tunnel {
    /// Copies from the socket to the channel.
    fn copy_up(&mut self) -> io::Result<bool> {
        let Some(socket) = &mut self.socket else { return Ok(false) };
        let mut moved = self.up.fill(socket)?;
        moved |= self.up.empty(&mut self.channel.stream(0))?;
        if self.up.is_done() {
            moved |= self.end();
        }
        Ok(moved)
    }

    /// Copies from the channel to the socket.
    fn copy_down(&mut self) -> io::Result<bool> {
        let Some(socket) = &mut self.socket else { return Ok(false) };
        let mut moved = self.down.fill(&mut self.channel.stream(0))?;
        moved |= self.down.empty(socket)?;
        if self.down.is_done() {
            moved |= self.end();
        }
        Ok(moved)
    }

    /// Starts to close the tunnel.
    fn end(&mut self) -> bool {
        self.closing_since = self.socket.take().map(|_| Instant::now()).or(self.closing_since);
        true
    }

    /// Closes the channel, if the tunnel has ended; returns whether it is closed. A server that does not confirm
    /// is not waited for.
    fn close(&mut self, connection: &Connection) -> bool {
        let Some(since) = self.closing_since else { return false };
        let is_pending = matches!(self.channel.close(), Err(error) if session::error_code(&error) == EAGAIN);
        if !is_pending || (since.elapsed() >= STUCK && !is_half_sent(connection)) {
            self.closing_since = None;
        }
        self.closing_since.is_none()
    }
}

/// Returns whether the session's last call that would block has sent a part of a packet.
fn is_half_sent(connection: &Connection) -> bool {
    matches!(connection.session.block_directions(), BlockDirections::Outbound | BlockDirections::Both)
}

fn socket_pair() -> Result<(UnixStream, UnixStream), SshError> {
    let pair = UnixStream::pair().and_then(|(ours, theirs)| {
        ours.set_nonblocking(true)?;
        Ok((ours, theirs))
    });
    pair.map_err(|error| SshError::transient(error.to_string(), ""))
}
