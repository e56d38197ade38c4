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
//!   [`PATIENCE`].

use super::channel::{Seal, SessionKeys};
use rankdeck_proto::secret::GroupSecret;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How long a caller may take for its whole handshake.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

const MAGIC: &[u8; 8] = b"rankdk/1";
const RANDOM: usize = 32;
const PROOF: usize = 32;
const HELLO: usize = MAGIC.len() + 8 + RANDOM;

/// What one scope's connections are made with.
#[derive(Clone)]
pub(crate) struct Credentials {
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
pub(crate) fn connect(
    address: SocketAddr,
    credentials: &Credentials,
    rank: u32,
    listener: u32,
    deadline: Instant,
) -> io::Result<(TcpStream, SessionKeys)> {
    let deadline = deadline.min(Instant::now() + PATIENCE);
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
pub(crate) struct VerifiedPeer {
    pub rank: u32,
    pub stream: TcpStream,
    pub keys: SessionKeys,
}

/// How far a caller has come.
pub(crate) enum HandshakeStep {
    Pending,
    Verified(Box<VerifiedPeer>),
    /// It is not a rank of this run, or too slow.
    Rejected,
}

/// A caller that is being greeted.
pub(crate) struct Handshake {
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
        self.since + PATIENCE
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
