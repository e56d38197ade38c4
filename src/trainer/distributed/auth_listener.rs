//! A listening socket that admits only ranks of this run.
//!
//! The thread that accepts (mesh or store) calls [`AuthListener::step`] when a socket is ready.
//!
//! Invariant RECEPTION-1: unverified connections cost a bounded number of descriptors and bytes, for a
//! bounded time, and never keep a rank out: beyond [`SPARE`] more than there are ranks, the one that has
//! waited longest is dropped, and a rank that loses its place connects again. Where the process may open
//! few files, they get only a part of what is left: checkpoints and environments need descriptors, too.
//!
//! Mutual authentication of two ranks when they connect.
//!
//! Four messages of fixed length:
//!
//! ```text
//! caller    magic, its rank, the rank that it calls, 32 random bytes
//! listener  32 random bytes, proof "listener"
//! caller    proof "caller"
//! listener  proof "accepted"
//! ```
//!
//! A proof is HMAC-SHA256 under the connection's key over a label and the first two messages. The key follows
//! from the generation's secret and a scope (which store, or the mesh of which group). The same key gives
//! each direction a key for its records ([`super::channel::Seal`]). Without a secret the key is the same for
//! everyone, which only distinguishes ranks from other programs, and records are not sealed.
//!
//! Invariants:
//! - GREET-1: a peer without the secret passes no handshake, in either role. Nothing sent in one
//!   handshake helps in another: proofs and keys depend on random bytes of both ends.
//! - GREET-2: proofs cover roles, ranks, scope and generation, so that a relay can connect ranks only as they
//!   meant to be connected, and then reads nothing.
//! - GREET-3: a listener never waits for one caller: greetings advance side by side, each within
//!   [`HANDSHAKE_PATIENCE`].

use super::channel::{Seal, SessionKeys, subject};
use crate::support::events::warn;
use rankdeck_proto::secret::GroupSecret;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Callers that are greeted at a time, besides one for each rank.
const SPARE: usize = 128;
/// They get one of this many unused descriptors.
const UNVERIFIED_SHARE: usize = 4;
/// Most connections that are accepted before pending handshakes advance again.
const BATCH: usize = 32;
/// How long no connection is accepted after the process ran out of descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections and runs their handshakes side by side.
pub(crate) struct AuthListener {
    listener: TcpListener,
    credentials: Credentials,
    rank: u32,
    handshakes: VecDeque<Handshake>,
    most: usize,
    rejected: RejectedConnections,
    /// Descriptors ran out: no connection is accepted until then.
    pause: Option<Instant>,
}

impl AuthListener {
    /// Greets as `rank`, one of `world_size`, whoever calls the listener.
    ///
    /// Errors: the socket cannot be set up.
    pub(crate) fn new(
        listener: TcpListener,
        credentials: Credentials,
        rank: u32,
        world_size: u32,
    ) -> io::Result<AuthListener> {
        listener.set_nonblocking(true)?;
        let rejected = RejectedConnections { rank, count: 0, logged: 0, last: None, logged_at: None };
        let handshakes = VecDeque::new();
        let most = (unused_descriptors() / UNVERIFIED_SHARE).min(SPARE) + world_size as usize;
        Ok(AuthListener { listener, credentials, rank, handshakes, most, rejected, pause: None })
    }

    /// Sockets to wait for.
    pub(crate) fn interests(&self, into: &mut Vec<libc::pollfd>) {
        if self.pause.is_none() {
            into.push(subject(self.listener.as_raw_fd(), libc::POLLIN));
        }
        into.extend(
            self.handshakes.iter().map(|handshake| subject(handshake.stream.as_raw_fd(), libc::POLLIN)),
        );
    }

    /// When [`AuthListener::step`] has something to do even if no socket is ready.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.handshakes.iter().map(Handshake::until).chain(self.pause).min()
    }

    /// Advances all handshakes; returns the peers that were just verified.
    ///
    /// Errors: the listening socket is unusable.
    pub(crate) fn step(&mut self) -> io::Result<Vec<VerifiedPeer>> {
        self.accept()?;
        let mut peers = Vec::new();
        for handshake in std::mem::take(&mut self.handshakes) {
            let from = handshake.stream.peer_addr().ok().map(|address| address.ip());
            match handshake.step(&self.credentials, self.rank) {
                (_, HandshakeStep::Verified(peer)) => peers.push(*peer),
                (_, HandshakeStep::Rejected) => self.rejected.add(from),
                (pending, HandshakeStep::Pending) => self.handshakes.extend(pending),
            }
        }
        self.rejected.log();
        Ok(peers)
    }

    fn accept(&mut self) -> io::Result<()> {
        if self.pause.is_some_and(|until| Instant::now() < until) {
            return Ok(());
        }
        self.pause = None;
        for _ in 0..BATCH {
            match self.listener.accept() {
                Ok((stream, address)) => {
                    if self.handshakes.len() >= self.most {
                        self.drop_oldest();
                    }
                    match Handshake::new(stream) {
                        Ok(handshake) => self.handshakes.push_back(handshake),
                        Err(_) => self.rejected.add(Some(address.ip())),
                    }
                }
                Err(error) => match (error.kind(), error.raw_os_error()) {
                    (ErrorKind::WouldBlock, _) => break,
                    (_, Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)) => {
                        self.drop_oldest();
                        self.pause = Some(Instant::now() + PAUSE);
                        break;
                    }
                    (_, Some(libc::EBADF | libc::EINVAL | libc::ENOTSOCK | libc::EOPNOTSUPP)) => {
                        return Err(error);
                    }
                    // A connection that broke before it was accepted concerns only its caller.
                    _ => {}
                },
            }
        }
        Ok(())
    }

    fn drop_oldest(&mut self) {
        if let Some(oldest) = self.handshakes.pop_front() {
            self.rejected.add(oldest.stream.peer_addr().ok().map(|address| address.ip()));
        }
    }
}

/// How many more files this process may open.
fn unused_descriptors() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    usize::try_from(crate::open_files()).unwrap_or(usize::MAX).saturating_sub(open)
}

/// Counts rejected connections; logged at first, then at most once a minute, and at the end.
struct RejectedConnections {
    rank: u32,
    count: u64,
    logged: u64,
    last: Option<IpAddr>,
    logged_at: Option<Instant>,
}

impl RejectedConnections {
    const EVERY: Duration = Duration::from_secs(60);

    fn add(&mut self, from: Option<IpAddr>) {
        self.count += 1;
        self.last = from.or(self.last);
    }

    fn log(&mut self) {
        if self.count == self.logged || self.logged_at.is_some_and(|at| at.elapsed() < Self::EVERY) {
            return;
        }
        self.logged = self.count;
        self.logged_at = Some(Instant::now());
        let from = self.last.map_or_else(String::new, |address| format!(", the last from {address}"));
        let connections = if self.count == 1 { "connection" } else { "connections" };
        warn(&format!(
            "rank {}: rejected {} {connections} from outside this run{from}",
            self.rank, self.count
        ));
    }
}

impl Drop for RejectedConnections {
    fn drop(&mut self) {
        self.logged_at = None;
        self.log();
    }
}

/// How long a caller may take for its whole handshake.
pub(super) const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(5);

const MAGIC: &[u8; 8] = b"rankdk/1";
const RANDOM: usize = 32;
const PROOF: usize = 32;
const HELLO: usize = MAGIC.len() + 8 + RANDOM;

/// What one scope's connections are made with.
#[derive(Clone)]
pub(super) struct Credentials {
    key: hmac::Key,
    sealed: bool,
}

impl Credentials {
    /// Of this scope, such as `store` or the prefix of a group.
    pub(crate) fn new(secret: Option<&GroupSecret>, scope: &str) -> Credentials {
        let root = hmac::Key::new(hmac::HMAC_SHA256, secret.map_or(&[][..], |secret| secret.bytes()));
        let key = hmac::sign(&root, format!("rankdeck connection\n{scope}").as_bytes());
        Credentials { key: hmac::Key::new(hmac::HMAC_SHA256, key.as_ref()), sealed: secret.is_some() }
    }

    fn tag(&self, label: &str, transcript: &[u8]) -> hmac::Tag {
        hmac::sign(&self.key, &[label.as_bytes(), b"\n", transcript].concat())
    }

    fn is_proof(&self, label: &str, transcript: &[u8], proof: &[u8]) -> bool {
        hmac::verify(&self.key, &[label.as_bytes(), b"\n", transcript].concat(), proof).is_ok()
    }

    fn keys(&self, transcript: &[u8], caller: bool) -> SessionKeys {
        let seal = |label| self.sealed.then(|| Seal::new(self.tag(label, transcript).as_ref())).flatten();
        let (to_listener, to_caller) = (seal("records to listener"), seal("records to caller"));
        if caller {
            SessionKeys { sends: to_listener, receives: to_caller }
        } else {
            SessionKeys { sends: to_caller, receives: to_listener }
        }
    }
}

fn random() -> io::Result<[u8; RANDOM]> {
    let mut bytes = [0; RANDOM];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| io::Error::other("cannot read random bytes from the kernel"))?;
    Ok(bytes)
}

/// Connects to a listener as `rank`.
///
/// Errors: `InvalidData` when what answers is not that rank of this run; others when nothing answers, or not
/// in time, after which another try may succeed.
pub(super) fn connect(
    address: SocketAddr,
    credentials: &Credentials,
    rank: u32,
    listener: u32,
    deadline: Instant,
) -> io::Result<(TcpStream, SessionKeys)> {
    let deadline = deadline.min(Instant::now() + HANDSHAKE_PATIENCE);
    let mut stream = TcpStream::connect_timeout(&address, left(deadline))?;
    stream.set_nodelay(true)?;
    let mut transcript = MAGIC.to_vec();
    transcript.extend(rank.to_le_bytes());
    transcript.extend(listener.to_le_bytes());
    transcript.extend(random()?);
    stream.write_all(&transcript)?;
    let mut answer = [0; RANDOM + PROOF];
    read_by(&mut stream, &mut answer, deadline)?;
    let (theirs, proof) = answer.split_at(RANDOM);
    transcript.extend(theirs);
    let rejected = || io::Error::new(ErrorKind::InvalidData, "it does not have this run's secret");
    if !credentials.is_proof("listener", &transcript, proof) {
        return Err(rejected());
    }
    stream.write_all(credentials.tag("caller", &transcript).as_ref())?;
    let mut accepted = [0; PROOF];
    read_by(&mut stream, &mut accepted, deadline)?;
    if !credentials.is_proof("accepted", &transcript, &accepted) {
        return Err(rejected());
    }
    Ok((stream, credentials.keys(&transcript, true)))
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

/// Reads all of `into` by the deadline, however slowly the bytes come.
fn read_by(stream: &mut TcpStream, mut into: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !into.is_empty() {
        if Instant::now() >= deadline {
            return Err(io::Error::new(ErrorKind::TimedOut, "the handshake timed out"));
        }
        stream.set_read_timeout(Some(left(deadline)))?;
        match stream.read(into) {
            Ok(0) => {
                return Err(io::Error::new(
                    ErrorKind::ConnectionReset,
                    "it closed the connection during the handshake",
                ));
            }
            Ok(count) => into = &mut into[count..],
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A rank that has proved itself.
pub(super) struct VerifiedPeer {
    pub rank: u32,
    pub stream: TcpStream,
    pub keys: SessionKeys,
}

/// How far a caller has come.
pub(super) enum HandshakeStep {
    Pending,
    Verified(Box<VerifiedPeer>),
    /// It is not a rank of this run, or too slow.
    Rejected,
}

/// A caller that is being greeted.
pub(super) struct Handshake {
    pub stream: TcpStream,
    since: Instant,
    received: Vec<u8>,
    /// The first two messages, once ours is sent.
    transcript: Option<Vec<u8>>,
}

impl Handshake {
    /// Errors: the socket cannot be set up.
    pub(crate) fn new(stream: TcpStream) -> io::Result<Handshake> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Handshake { stream, since: Instant::now(), received: Vec::new(), transcript: None })
    }

    /// When it is given up.
    pub(crate) fn until(&self) -> Instant {
        self.since + HANDSHAKE_PATIENCE
    }

    /// Processes what has arrived; never waits.
    pub(crate) fn step(self, credentials: &Credentials, rank: u32) -> (Option<Handshake>, HandshakeStep) {
        let mut handshake = self;
        match handshake.advance(credentials, rank) {
            Ok(Some((caller, transcript))) => {
                let keys = credentials.keys(&transcript, false);
                (
                    None,
                    HandshakeStep::Verified(Box::new(VerifiedPeer {
                        rank: caller,
                        stream: handshake.stream,
                        keys,
                    })),
                )
            }
            Ok(None) if Instant::now() < handshake.until() => (Some(handshake), HandshakeStep::Pending),
            Ok(None) | Err(_) => (None, HandshakeStep::Rejected),
        }
    }

    /// The caller's rank and the transcript once the handshake is complete.
    fn advance(&mut self, credentials: &Credentials, rank: u32) -> io::Result<Option<(u32, Vec<u8>)>> {
        let rejected = || io::Error::from(ErrorKind::InvalidData);
        if self.transcript.is_none() {
            let Some(hello) = self.receive(HELLO)? else { return Ok(None) };
            if hello[..8] != *MAGIC || hello[12..16] != rank.to_le_bytes() {
                return Err(rejected());
            }
            let mut transcript = hello;
            transcript.extend(random()?);
            let answer = [&transcript[HELLO..], credentials.tag("listener", &transcript).as_ref()].concat();
            self.send(&answer)?;
            self.transcript = Some(transcript);
        }
        let Some(proof) = self.receive(PROOF)? else { return Ok(None) };
        let transcript = self.transcript.take().unwrap_or_default();
        if !credentials.is_proof("caller", &transcript, &proof) {
            return Err(rejected());
        }
        self.send(credentials.tag("accepted", &transcript).as_ref())?;
        let caller = transcript[8..12].try_into().map_or(0, u32::from_le_bytes);
        Ok(Some((caller, transcript)))
    }

    /// The next message of this length, once it is complete. Reads nothing beyond it.
    fn receive(&mut self, length: usize) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = [0; HELLO];
        while self.received.len() < length {
            match self.stream.read(&mut bytes[..length - self.received.len()]) {
                Ok(0) => return Err(ErrorKind::ConnectionReset.into()),
                Ok(count) => self.received.extend(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Some(std::mem::take(&mut self.received)))
    }

    /// A few bytes always fit into a socket that nothing was written to; one that takes less is rejected.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.stream.write(bytes)? == bytes.len() { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distributed::channel::Channel;
    use crate::distributed::error::DistErrorKind;
    use rankdeck_proto::secret::GroupSecret;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::sync::atomic::{AtomicBool, Ordering};

    const RANKS: u32 = 4;

    fn credentials(byte: u8) -> Credentials {
        Credentials::new(GroupSecret::from_hex(&format!("{byte:02x}").repeat(32)).as_ref(), "test")
    }

    /// Runs an authenticating listener as rank 0 while `body` talks to it; who got in.
    fn receive(body: impl FnOnce(SocketAddr)) -> (Vec<u32>, u64) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut listener = AuthListener::new(listener, credentials(7), 0, RANKS).unwrap();
        let over = AtomicBool::new(false);
        let over = &over;
        std::thread::scope(|scope| {
            let serving = scope.spawn(move || {
                let mut ranks = Vec::new();
                while !over.load(Ordering::SeqCst) || !listener.handshakes.is_empty() {
                    ranks.extend(listener.step().unwrap().iter().map(|peer| peer.rank));
                    assert!(listener.handshakes.len() <= listener.most);
                    let mut subjects = Vec::new();
                    listener.interests(&mut subjects);
                    let soon = Instant::now() + Duration::from_millis(20);
                    crate::distributed::channel::wait(&mut subjects, Some(soon));
                }
                (ranks, listener.rejected.count)
            });
            body(address);
            over.store(true, Ordering::SeqCst);
            serving.join().unwrap()
        })
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// As a rank does: again after every failure but a wrong proof.
    fn persistent(address: SocketAddr, byte: u8, rank: u32) -> std::io::Result<TcpStream> {
        loop {
            match connect(address, &credentials(byte), rank, 0, soon()) {
                Ok((stream, _)) => return Ok(stream),
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData => return Err(error),
                Err(_) => {}
            }
        }
    }

    #[test]
    fn greet_1_only_peers_with_the_secret_are_admitted() {
        let (ranks, strangers) = receive(|address| {
            persistent(address, 7, 3).unwrap();
            let refused = persistent(address, 8, 2).unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::InvalidData, "{refused}");
            let elsewhere = Credentials::new(GroupSecret::from_hex(&"07".repeat(32)).as_ref(), "other scope");
            assert!(connect(address, &elsewhere, 2, 0, soon()).is_err(), "another scope");
            assert!(connect(address, &credentials(7), 2, 1, soon()).is_err(), "another rank was expected");
        });
        assert_eq!((ranks, strangers), (vec![3], 3));
    }

    /// GREET-1: a replayed handshake is rejected.
    #[test]
    fn replayed_handshake_is_rejected() {
        let overheard = std::sync::Mutex::new(Vec::new());
        let (ranks, strangers) = receive(|address| {
            // A relay that records what the caller sends.
            let relay = TcpListener::bind("127.0.0.1:0").unwrap();
            let place = relay.local_addr().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let (mut caller, mut there) =
                        (relay.accept().unwrap().0, TcpStream::connect(address).unwrap());
                    for (from_caller, length) in [(true, 48), (false, 64), (true, 32), (false, 32)] {
                        let mut bytes = vec![0; length];
                        let (from, to) =
                            if from_caller { (&mut caller, &mut there) } else { (&mut there, &mut caller) };
                        from.read_exact(&mut bytes).unwrap();
                        to.write_all(&bytes).unwrap();
                        if from_caller {
                            overheard.lock().unwrap().extend(bytes);
                        }
                    }
                });
                connect(place, &credentials(7), 1, 0, soon()).unwrap();
            });
            let mut again = TcpStream::connect(address).unwrap();
            again.write_all(&overheard.lock().unwrap()).unwrap();
            let mut rest = Vec::new();
            let _ = again.read_to_end(&mut rest);
            assert_eq!(rest.len(), 64, "the listener's own challenge, then nothing");
        });
        assert_eq!((ranks, strangers), (vec![1], 1));
    }

    /// GREET-2: a listener's answer does not serve as a caller's.
    #[test]
    fn reflected_proof_is_rejected() {
        let (ranks, strangers) = receive(|address| {
            let mut stream = TcpStream::connect(address).unwrap();
            let hello = [b"rankdk/1", &3u32.to_le_bytes()[..], &0u32.to_le_bytes(), &[9; 32]].concat();
            stream.write_all(&hello).unwrap();
            let mut answer = [0; 64];
            stream.read_exact(&mut answer).unwrap();
            stream.write_all(&answer[32..]).unwrap();
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
            assert!(rest.is_empty());
        });
        assert_eq!((ranks, strangers), (vec![], 1));
    }

    /// RECEPTION-1, GREET-3: garbage, silence, drops of bytes and a flood, and ranks get in anyway.
    #[test]
    fn unauthenticated_peers_keep_no_rank_out() {
        let started = Instant::now();
        let (mut ranks, strangers) = receive(|address| {
            // Silent ones that stay, more than are kept.
            let silent: Vec<_> = (0..200).filter_map(|_| TcpStream::connect(address).ok()).collect();
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                // One that sends a byte at a time.
                scope.spawn(|| {
                    let mut slow = TcpStream::connect(address).unwrap();
                    while !over.load(Ordering::SeqCst) {
                        let _ = slow.write_all(b"r");
                        std::thread::sleep(Duration::from_millis(10));
                    }
                });
                scope.spawn(|| {
                    for round in 0..600 {
                        let Ok(mut stream) = TcpStream::connect(address) else { continue };
                        let garbage: Vec<u8> = (0..round % 97).map(|i| (i * 31 + round) as u8).collect();
                        let _ = stream.write_all(&garbage);
                    }
                });
                let ranks: Vec<_> = (1..RANKS)
                    .map(|rank| scope.spawn(move || persistent(address, 7, rank).unwrap()))
                    .collect();
                let streams: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
                over.store(true, Ordering::SeqCst);
                drop(streams);
            });
            drop(silent);
        });
        ranks.sort_unstable();
        ranks.dedup();
        assert_eq!(ranks, [1, 2, 3]);
        assert!(strangers >= 500, "{strangers}");
        assert!(
            started.elapsed() < 12 * HANDSHAKE_PATIENCE,
            "one stranger's patience after the other: {:?}",
            started.elapsed()
        );
    }

    /// Two ends of a connection with an attacker in between, who applies this to each record: `None` drops
    /// it.
    fn tampered(
        tamper: impl Fn(usize, Vec<u8>) -> Vec<Vec<u8>> + Send,
    ) -> Result<Vec<Vec<u8>>, DistErrorKind> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut listener = AuthListener::new(listener, credentials(7), 0, 2).unwrap();
        let relay = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = relay.local_addr().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (mut caller, mut there) =
                    (relay.accept().unwrap().0, TcpStream::connect(address).unwrap());
                for (from_caller, length) in [(true, 48), (false, 64), (true, 32), (false, 32)] {
                    let mut bytes = vec![0; length];
                    let (from, to) =
                        if from_caller { (&mut caller, &mut there) } else { (&mut there, &mut caller) };
                    from.read_exact(&mut bytes).unwrap();
                    to.write_all(&bytes).unwrap();
                }
                for number in 0.. {
                    let mut record = vec![0; 4 + 16 + 100];
                    if caller.read_exact(&mut record).is_err() {
                        return;
                    }
                    for record in tamper(number, record) {
                        let _ = there.write_all(&record);
                    }
                }
            });
            let sending = scope.spawn(move || {
                let (stream, keys) = connect(place, &credentials(7), 1, 0, soon()).unwrap();
                let mut channel = Channel::new(0, stream, keys, 100).unwrap();
                for byte in 0..3u8 {
                    channel.put([&[byte; 60], &[byte; 40]]).unwrap();
                    while !channel.is_flushed() {
                        channel.flush().unwrap();
                    }
                }
            });
            let peer = loop {
                if let Some(peer) = listener.step().unwrap().pop() {
                    break peer;
                }
                std::thread::sleep(Duration::from_millis(1));
            };
            let mut channel = Channel::new(1, peer.stream, peer.keys, 100).unwrap();
            sending.join().unwrap();
            let mut records = Vec::new();
            while records.len() < 3 {
                channel.fill().map_err(|failure| failure.kind)?;
                while let Some(record) = channel.record().map_err(|failure| failure.kind)? {
                    records.push(record.to_vec());
                    channel.consume();
                }
            }
            Ok(records)
        })
    }

    /// SEAL-1, CHANNEL-1, CHANNEL-2: an attacker between two ranks can end their connection, and change
    /// nothing.
    #[test]
    fn nothing_between_two_ranks_can_be_changed() {
        let honest = tampered(|_, record| vec![record]).unwrap();
        assert_eq!(honest, [vec![0; 100], vec![1; 100], vec![2; 100]]);
        let again = std::sync::Mutex::new(Vec::new());
        type Tamper<'a> = Box<dyn Fn(usize, Vec<u8>) -> Vec<Vec<u8>> + Send + 'a>;
        let attacks: Vec<(&str, Tamper<'_>)> = vec![
            (
                "one bit",
                Box::new(|number, mut record| {
                    record[50] ^= u8::from(number == 1);
                    vec![record]
                }),
            ),
            (
                "repeated",
                Box::new(
                    |number, record| if number == 0 { vec![record.clone(), record] } else { vec![record] },
                ),
            ),
            ("left out", Box::new(|number, record| if number == 1 { vec![] } else { vec![record] })),
            (
                "swapped",
                Box::new(|number, record| {
                    if number == 0 {
                        again.lock().unwrap().push(record);
                        vec![]
                    } else {
                        let held = again.lock().unwrap().pop();
                        [Some(record), held].into_iter().flatten().collect()
                    }
                }),
            ),
            (
                "shorter",
                Box::new(|_, mut record| {
                    record[0] = 99;
                    vec![record]
                }),
            ),
            (
                "4 GiB",
                Box::new(|_, mut record| {
                    record[..4].fill(0xff);
                    vec![record]
                }),
            ),
        ];
        for (name, attack) in attacks {
            assert_eq!(tampered(attack), Err(DistErrorKind::Forged), "{name}");
        }
        let cut =
            tampered(|number, record| if number < 2 { vec![record] } else { vec![record[..70].to_vec()] });
        assert_eq!(cut, Err(DistErrorKind::Connection), "cut off");
    }
}
