//! The rendezvous store: small named values, served by rank 0 to every rank, itself included.
//!
//! One thread on rank 0 authenticates ranks and answers their requests, one record each way. The last clone
//! of rank 0's [`Store`] ends it.
//!
//! Invariants:
//! - All keys carry the generation, so that a leftover of an earlier one cannot join.
//! - STORE-1: nothing is read or written for a peer that has not proved that it is a rank of this run
//!   ([`super::auth_listener`]).
//! - STORE-2: a second process with the same rank is refused.
//! - STORE-3: keys, values and connections are bounded in number and size, also for ranks.
//! - A client that got no answer asks nothing more, since the next answer might be the old one.

use super::auth_listener::AuthListener;
use super::auth_listener::{self, Credentials};
use super::channel::{Channel, SessionKeys, subject, wait};
use super::error::{BackendError, DistErrorKind};
use crate::support::events::warn;
use rankdeck_proto::secret::GroupSecret;
use std::collections::HashMap;
use std::io::{self, ErrorKind, PipeReader, PipeWriter};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const POLL_FIRST: Duration = Duration::from_millis(2);
const POLL_LAST: Duration = Duration::from_millis(100);
/// Between checks for a refusal while ranks are awaited.
const SLICE: Duration = Duration::from_millis(250);
/// How long a failing rank 0 keeps the store for the others.
const LINGER: Duration = Duration::from_secs(2);

/// Where the store is.
#[derive(Debug)]
pub(crate) struct StoreAddress {
    pub host: String,
    pub port: u16,
    /// The socket to serve it on, in the process that serves it.
    pub listener: Option<TcpListener>,
}

/// A connection to it; clones share the connection, and on rank 0 the server.
#[derive(Clone)]
pub(crate) struct Store {
    client: Arc<StoreClient>,
    prefix: String,
}

struct StoreClient {
    place: String,
    /// `None` after a request that got no answer.
    channel: Mutex<Option<Channel>>,
    /// Of a request.
    limit: Duration,
    secret: Option<GroupSecret>,
    server: Option<StoreServer>,
}

/// What a rank joins a group with.
#[derive(Debug, Clone)]
pub(crate) struct StoreIdentity {
    pub rank: u32,
    pub world_size: u32,
    pub generation: u32,
    /// Tells groups of one generation apart: empty for the first one, else `/` and a name.
    pub scope: String,
    pub secret: Option<GroupSecret>,
}

/// What every rank must agree on before anything else.
#[derive(Debug, Clone)]
pub(crate) struct StoreMember {
    pub rank: u32,
    pub world_size: u32,
    pub backend: &'static str,
}

impl StoreMember {
    fn terms(&self) -> String {
        format!("world_size {}, backend {}", self.world_size, self.backend)
    }
}

/// "1, 3" or "1, 3, 4, ... (12 in all)".
pub(crate) fn list(ranks: &[u32]) -> String {
    const SHOWN: usize = 8;
    let names: Vec<String> = ranks.iter().take(SHOWN).map(u32::to_string).collect();
    if ranks.len() > SHOWN {
        format!("{}, ... ({} in all)", names.join(", "), ranks.len())
    } else {
        names.join(", ")
    }
}

impl Store {
    /// Serves the store where the address has a socket for that, and connects to it.
    pub(crate) fn open(
        address: StoreAddress,
        identity: &StoreIdentity,
        deadline: Instant,
    ) -> Result<Store, BackendError> {
        let place = format!("{}:{}", address.host, address.port);
        let StoreIdentity { rank, world_size, generation, scope, secret } = identity.clone();
        let credentials =
            Credentials::new(secret.as_ref(), &format!("store of generation {generation}{scope}"));
        let cannot = |error: std::io::Error| {
            let text = format!("cannot serve the store at {place}: {error}");
            BackendError::new(DistErrorKind::Failed, text)
        };
        let limit = deadline.saturating_duration_since(Instant::now()).max(POLL_FIRST);
        let (mut host, mut port, mut server) = (address.host, address.port, None);
        if let Some(listener) = address.listener {
            let own = listener.local_addr().map_err(cannot)?;
            // The address that others use may lead elsewhere from here.
            let ip = if own.ip().is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { own.ip() };
            (host, port) = (ip.to_string(), own.port());
            let listener = AuthListener::new(listener, credentials.clone(), 0, world_size).map_err(cannot)?;
            server = Some(StoreServer::start(listener, world_size).map_err(cannot)?);
        }
        let (stream, keys) = connect((&host, port), &credentials, rank, deadline)?;
        let channel = Mutex::new(Some(Channel::new(0, stream, keys, RECORD)?));
        let client = StoreClient { place, channel, limit, secret, server };
        Ok(Store { client: Arc::new(client), prefix: format!("rankdeck/{generation}{scope}/") })
    }

    /// The same store with a namespace of its own.
    pub(crate) fn within(&self, name: &str) -> Store {
        Store { client: Arc::clone(&self.client), prefix: format!("{}{name}/", self.prefix) }
    }

    /// What the connections of this namespace's group are made with.
    pub(crate) fn credentials(&self) -> Credentials {
        Credentials::new(self.client.secret.as_ref(), &format!("mesh of {}", self.prefix))
    }

    /// This process serves it.
    pub(crate) fn is_served_here(&self) -> bool {
        self.client.server.is_some()
    }

    /// Whether the ranks have a secret to know each other by.
    pub(crate) fn has_secret(&self) -> bool {
        self.client.secret.is_some()
    }

    fn request(&self, request: &StoreRequest<'_>) -> Result<Option<Vec<u8>>, BackendError> {
        let place = &self.client.place;
        let mut channel = self.client.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut client) = channel.take() else {
            let text = format!("the store at {place} was lost earlier");
            return Err(BackendError::new(DistErrorKind::Connection, text));
        };
        let answer =
            client.request(&request.encode(), Instant::now() + self.client.limit).map_err(|failure| {
                BackendError::new(failure.kind, format!("store at {place}: {}", failure.text))
            })?;
        *channel = Some(client);
        match StoreAnswer::decode(&answer) {
            Some(StoreAnswer::Value(value)) => Ok(Some(value)),
            Some(StoreAnswer::Absent) => Ok(None),
            _ => Err(BackendError::new(DistErrorKind::Failed, format!("the store at {place} is full"))),
        }
    }

    /// The key's full name.
    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    pub(crate) fn set(&self, key: &str, value: &[u8]) -> Result<(), BackendError> {
        self.request(&StoreRequest::Set(&self.key(key), value)).map(|_| ())
    }

    /// Waits for the key.
    pub(crate) fn get(&self, key: &str, deadline: Instant) -> Result<Vec<u8>, BackendError> {
        let name = self.key(key);
        let mut pause = POLL_FIRST;
        loop {
            if let Some(value) = self.request(&StoreRequest::Get(&name))? {
                return Ok(value);
            }
            if Instant::now() >= deadline {
                let text = format!("{key} was not set in the store at {} in time", self.client.place);
                return Err(BackendError::new(DistErrorKind::Timeout, text));
            }
            std::thread::sleep(pause.min(deadline.saturating_duration_since(Instant::now())));
            pause = (pause * 2).min(POLL_LAST);
        }
    }

    /// Adds and returns the sum; a missing key counts as 0.
    pub(crate) fn add(&self, key: &str, delta: i64) -> Result<i64, BackendError> {
        let sum = self.request(&StoreRequest::Add(&self.key(key), delta))?.unwrap_or_default();
        let sum = sum.try_into().map_err(|_| {
            BackendError::new(DistErrorKind::Mismatch, format!("{key} in the store is not a number"))
        })?;
        Ok(i64::from_le_bytes(sum))
    }

    pub(crate) fn check(&self, key: &str) -> Result<bool, BackendError> {
        Ok(self.request(&StoreRequest::Get(&self.key(key)))?.is_some())
    }

    /// Polls `add(key, 0)` until it reaches `expected`; returns the last count.
    pub(crate) fn wait_count(
        &self,
        key: &str,
        expected: i64,
        deadline: Instant,
        mut grown: impl FnMut(),
    ) -> Result<i64, BackendError> {
        let (mut pause, mut last) = (POLL_FIRST, -1);
        loop {
            let count = self.add(key, 0)?;
            if count > last {
                (last, pause) = (count, POLL_FIRST);
                grown();
            }
            if count >= expected || Instant::now() >= deadline {
                return Ok(count);
            }
            std::thread::sleep(pause.min(deadline.saturating_duration_since(Instant::now())));
            pause = (pause * 2).min(POLL_LAST);
        }
    }

    /// Joins and waits for all ranks; an error has the number that joined and lists the missing ones. A
    /// rank with `failure` joins only to report it to the others.
    pub(crate) fn join(
        &self,
        me: &StoreMember,
        failure: Option<BackendError>,
        deadline: Instant,
        moved: impl FnMut(),
    ) -> Result<(), BackendError> {
        let refused = match failure {
            None => match self.join_others(me, deadline, moved) {
                Ok(()) => return Ok(()),
                Err(refused) => refused,
            },
            Some(failure) => {
                self.claim(me)?;
                if me.rank == 0 {
                    self.set("terms", me.terms().as_bytes())?;
                }
                JoinRefusal { failure, already_reported: false }
            }
        };
        self.report_refusal(me, &refused);
        Err(refused.failure)
    }

    /// Passes a refusal on. The store ends with rank 0, so rank 0 stays until the others know.
    fn report_refusal(&self, me: &StoreMember, refused: &JoinRefusal) {
        let report = || -> Result<(), BackendError> {
            if !refused.already_reported {
                self.set("refused", refused.failure.to_wire().as_bytes())?;
            }
            if me.rank == 0 {
                let others = i64::from(me.world_size) - 1;
                self.wait_count("informed", others, Instant::now() + LINGER, || {}).map(|_| ())
            } else {
                self.add("informed", 1).map(|_| ())
            }
        };
        // Only the refusal matters. If the store is gone, the other ranks know already.
        let _ = report();
    }

    fn claim(&self, me: &StoreMember) -> Result<(), BackendError> {
        if self.add(&format!("rank/{}", me.rank), 1)? == 1 {
            return Ok(());
        }
        let text = format!("another process has already joined as rank {}", me.rank);
        Err(BackendError::new(DistErrorKind::Usage, text))
    }

    fn join_others(
        &self,
        me: &StoreMember,
        deadline: Instant,
        moved: impl FnMut(),
    ) -> Result<(), JoinRefusal> {
        // The second process with a rank's number ends alone: the others may be complete without it.
        self.claim(me).map_err(|failure| JoinRefusal { failure, already_reported: true })?;
        let (rank, mine) = (me.rank, me.terms());
        if rank == 0 {
            self.set("terms", mine.as_bytes())?;
        }
        let terms = self.get("terms", deadline).map_err(|failure| match failure.kind {
            DistErrorKind::Timeout => BackendError::new(
                failure.kind,
                format!("rank 0 has not joined; rank {rank} is waiting for it"),
            ),
            _ => failure,
        })?;
        if terms != mine.as_bytes() {
            let theirs = String::from_utf8_lossy(&terms);
            let text = format!("rank {rank} was started with {mine}, rank 0 with {theirs}");
            return Err(BackendError::new(DistErrorKind::Usage, text).into());
        }
        self.add("joined", 1)?;
        self.wait_for_all(me, deadline, moved)
    }

    fn wait_for_all(
        &self,
        me: &StoreMember,
        deadline: Instant,
        mut moved: impl FnMut(),
    ) -> Result<(), JoinRefusal> {
        let expected = i64::from(me.world_size);
        loop {
            let joined =
                self.wait_count("joined", expected, deadline.min(Instant::now() + SLICE), &mut moved)?;
            if joined >= expected {
                return Ok(());
            }
            if self.check("refused")? {
                let value = String::from_utf8_lossy(&self.get("refused", deadline)?).into_owned();
                return Err(JoinRefusal { failure: BackendError::from_wire(&value), already_reported: true });
            }
            if Instant::now() >= deadline {
                let text =
                    format!("{joined} of {expected} ranks joined in time; missing: {}", self.missing(me)?);
                return Err(BackendError::new(DistErrorKind::Timeout, text).into());
            }
        }
    }

    fn missing(&self, me: &StoreMember) -> Result<String, BackendError> {
        let mut missing = Vec::new();
        for rank in 0..me.world_size {
            if !self.check(&format!("rank/{rank}"))? {
                missing.push(rank);
            }
        }
        Ok(list(&missing))
    }
}

/// Why a rank cannot join, and whether another rank reported it.
struct JoinRefusal {
    failure: BackendError,
    already_reported: bool,
}

impl From<BackendError> for JoinRefusal {
    fn from(failure: BackendError) -> JoinRefusal {
        JoinRefusal { failure, already_reported: false }
    }
}

/// Calls the store until it answers; its host may still be starting.
fn connect(
    (host, port): (&str, u16),
    credentials: &Credentials,
    rank: u32,
    deadline: Instant,
) -> Result<(TcpStream, SessionKeys), BackendError> {
    let place = format!("{host}:{port}");
    let mut pause = POLL_FIRST;
    loop {
        let resolved = (host, port).to_socket_addrs();
        let (kind, text) = match resolved.map(|found| found.collect::<Vec<SocketAddr>>()) {
            Ok(found) => {
                let mut last = String::from("its name does not resolve");
                for target in found {
                    match auth_listener::connect(
                        target,
                        credentials,
                        rank,
                        0,
                        deadline.max(Instant::now() + POLL_LAST),
                    ) {
                        Ok(connection) => return Ok(connection),
                        Err(error) if error.kind() == ErrorKind::InvalidData => {
                            let text = format!("the server at {place} is not rank 0's store: {error}");
                            return Err(BackendError::new(DistErrorKind::Forged, text));
                        }
                        Err(error) => last = error.to_string().to_lowercase(),
                    }
                }
                (DistErrorKind::Timeout, last)
            }
            Err(error) => (DistErrorKind::Connection, format!("cannot resolve its name: {error}")),
        };
        if Instant::now() >= deadline {
            return Err(BackendError::new(kind, format!("rank 0 does not respond at {place}: {text}")));
        }
        std::thread::sleep(pause.min(deadline.saturating_duration_since(Instant::now())));
        pause = (pause * 2).min(POLL_LAST);
    }
}

/// Most bytes of a key and of a value.
const KEY_MAX: usize = 256;
const VALUE_MAX: usize = 8 << 10;
/// Most bytes of a request or an answer.
const RECORD: usize = 4 + KEY_MAX + VALUE_MAX;

/// A rank's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreRequest<'a> {
    /// Stores the value.
    Set(&'a str, &'a [u8]),
    /// Requests the value.
    Get(&'a str),
    /// Adds to a number, 0 at first, and requests the sum.
    Add(&'a str, i64),
}

/// The store's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreAnswer {
    /// The request is carried out; the value that was requested.
    Value(Vec<u8>),
    /// The key is absent.
    Absent,
    /// The store is full, or the request is invalid.
    Refused,
}

impl<'a> StoreRequest<'a> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, key, value) = match self {
            StoreRequest::Set(key, value) => (b'S', key, value.to_vec()),
            StoreRequest::Get(key) => (b'G', key, Vec::new()),
            StoreRequest::Add(key, delta) => (b'A', key, delta.to_le_bytes().to_vec()),
        };
        let mut bytes = vec![kind];
        bytes.extend((key.len() as u16).to_le_bytes());
        bytes.extend(key.as_bytes());
        bytes.extend(value);
        bytes
    }

    /// `None` for bytes that are not a valid request within the bounds.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<StoreRequest<'a>> {
        let (kind, rest) = bytes.split_first()?;
        let (length, rest) = rest.split_first_chunk::<2>()?;
        let (key, value) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        let key = std::str::from_utf8(key).ok().filter(|key| key.len() <= KEY_MAX)?;
        match kind {
            b'S' if value.len() <= VALUE_MAX => Some(StoreRequest::Set(key, value)),
            b'G' if value.is_empty() => Some(StoreRequest::Get(key)),
            b'A' => Some(StoreRequest::Add(key, i64::from_le_bytes(value.try_into().ok()?))),
            _ => None,
        }
    }
}

impl StoreAnswer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            StoreAnswer::Value(value) => [b"V", &value[..]].concat(),
            StoreAnswer::Absent => b"N".to_vec(),
            StoreAnswer::Refused => b"R".to_vec(),
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<StoreAnswer> {
        match bytes.split_first()? {
            (b'V', value) => Some(StoreAnswer::Value(value.to_vec())),
            (b'N', []) => Some(StoreAnswer::Absent),
            (b'R', []) => Some(StoreAnswer::Refused),
            _ => None,
        }
    }
}

/// Most bytes of all keys and values.
const BYTES_MAX: usize = 16 << 20;
/// Counted for each key besides its own bytes.
const KEY_COST: usize = 64;
/// Connections that are kept, for each rank and besides.
const EACH: usize = 4;
const BESIDES: usize = 16;

/// The running server; dropping it ends it.
struct StoreServer {
    wake: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl StoreServer {
    /// Serves the peers that the listener verifies.
    ///
    /// Errors: no thread or no pipe can be made.
    fn start(auth_listener: AuthListener, world_size: u32) -> io::Result<StoreServer> {
        let (woken, wake) = io::pipe()?;
        let most = EACH * world_size as usize + BESIDES;
        let thread = std::thread::Builder::new().name("store".into()).spawn(move || {
            StoreService { auth_listener, clients: Vec::new(), most, values: StoreValues::default() }
                .run(&woken)
        })?;
        Ok(StoreServer { wake: Some(wake), thread: Some(thread) })
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        // The other end of the pipe becomes readable.
        self.wake.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct StoreService {
    auth_listener: AuthListener,
    clients: Vec<Channel>,
    most: usize,
    values: StoreValues,
}

impl StoreService {
    fn run(mut self, woken: &PipeReader) {
        loop {
            let mut subjects = vec![subject(woken.as_raw_fd(), libc::POLLIN)];
            subjects.extend(self.clients.iter().map(|client| client.interest(true)));
            self.auth_listener.interests(&mut subjects);
            wait(&mut subjects, self.auth_listener.next());
            if subjects[0].revents != 0 {
                return;
            }
            // Ranks see a closed connection and report it with the store's address.
            let Ok(peers) = self.auth_listener.step() else { return };
            for peer in peers {
                if self.clients.len() < self.most
                    && let Ok(client) = Channel::new(peer.rank, peer.stream, peer.keys, RECORD)
                {
                    self.clients.push(client);
                }
            }
            let values = &mut self.values;
            self.clients.retain_mut(|client| match serve(client, values) {
                Ok(()) => true,
                Err(failure) => {
                    // Ranks hang up when they leave; a forged record is nothing that a rank does.
                    if failure.kind == DistErrorKind::Forged {
                        warn(&format!("rank 0's store: {}; connection closed", failure.text));
                    }
                    false
                }
            });
        }
    }
}

/// Answers what has arrived. An error ends the connection.
fn serve(client: &mut Channel, values: &mut StoreValues) -> Result<(), BackendError> {
    client.flush()?;
    client.fill()?;
    while client.is_flushed() {
        let Some(request) = client.record()? else { return Ok(()) };
        let answer =
            StoreRequest::decode(request).map_or(StoreAnswer::Refused, |request| values.answer(&request));
        client.consume();
        client.put([&answer.encode(), &[]])?;
        client.flush()?;
    }
    Ok(())
}

/// What is stored.
#[derive(Default)]
pub(crate) struct StoreValues {
    values: HashMap<String, Vec<u8>>,
    bytes: usize,
}

impl StoreValues {
    pub(crate) fn answer(&mut self, request: &StoreRequest<'_>) -> StoreAnswer {
        match request {
            StoreRequest::Get(key) => {
                self.values.get(*key).map_or(StoreAnswer::Absent, |value| StoreAnswer::Value(value.clone()))
            }
            StoreRequest::Set(key, value) => self.set(key, value.to_vec(), Vec::new()),
            StoreRequest::Add(key, delta) => {
                let number = match self.values.get(*key).map(|value| <[u8; 8]>::try_from(&value[..])) {
                    None => 0,
                    Some(Ok(bytes)) => i64::from_le_bytes(bytes),
                    Some(Err(_)) => return StoreAnswer::Refused,
                };
                // Reading an absent number stores nothing.
                if *delta == 0 {
                    return StoreAnswer::Value(number.to_le_bytes().to_vec());
                }
                let sum = number.wrapping_add(*delta).to_le_bytes().to_vec();
                self.set(key, sum.clone(), sum)
            }
        }
    }

    fn set(&mut self, key: &str, value: Vec<u8>, answer: Vec<u8>) -> StoreAnswer {
        let before = self.values.get(key).map_or(0, |old| KEY_COST + key.len() + old.len());
        let bytes = self.bytes - before + KEY_COST + key.len() + value.len();
        if bytes > BYTES_MAX {
            return StoreAnswer::Refused;
        }
        self.bytes = bytes;
        self.values.insert(key.into(), value);
        StoreAnswer::Value(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_messages_round_trip() {
        for request in
            [StoreRequest::Set("a/b", b"\0\xff"), StoreRequest::Get(""), StoreRequest::Add("n", -7)]
        {
            assert_eq!(StoreRequest::decode(&request.encode()), Some(request));
        }
        for answer in [
            StoreAnswer::Value(vec![]),
            StoreAnswer::Value(vec![3]),
            StoreAnswer::Absent,
            StoreAnswer::Refused,
        ] {
            assert_eq!(StoreAnswer::decode(&answer.encode()), Some(answer));
        }
    }

    #[test]
    fn store_request_of_invalid_bytes_is_rejected() {
        let long = StoreRequest::Set("k", &[0; VALUE_MAX + 1]).encode();
        let key = StoreRequest::Get(&"k".repeat(KEY_MAX + 1)).encode();
        for bytes in [&b""[..], b"S", b"S\x05\0ab", b"G\x01\0ab", b"A\x01\0a123", b"G\x01\0\xff", &long, &key]
        {
            assert_eq!(StoreRequest::decode(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn numbers_are_added_and_values_replaced() {
        let mut values = StoreValues::default();
        let number = |n: i64| StoreAnswer::Value(n.to_le_bytes().to_vec());
        assert_eq!(values.answer(&StoreRequest::Add("n", 0)), number(0));
        assert_eq!(values.answer(&StoreRequest::Get("n")), StoreAnswer::Absent);
        assert_eq!(values.answer(&StoreRequest::Add("n", 3)), number(3));
        assert_eq!(values.answer(&StoreRequest::Add("n", -1)), number(2));
        assert_eq!(values.answer(&StoreRequest::Set("t", b"x")), StoreAnswer::Value(vec![]));
        assert_eq!(values.answer(&StoreRequest::Add("t", 1)), StoreAnswer::Refused);
        assert_eq!(values.answer(&StoreRequest::Set("t", b"yy")), StoreAnswer::Value(vec![]));
        assert_eq!(values.answer(&StoreRequest::Get("t")), StoreAnswer::Value(b"yy".to_vec()));
    }

    #[test]
    fn store_3_is_bounded_in_bytes() {
        let mut values = StoreValues::default();
        let value = [0; 8 << 10];
        let taken = (0..).take_while(|i| {
            values.answer(&StoreRequest::Set(&i.to_string(), &value)) != StoreAnswer::Refused
        });
        assert!((1000..2100).contains(&taken.count()));
        assert_eq!(
            values.answer(&StoreRequest::Set("0", b"")),
            StoreAnswer::Value(vec![]),
            "smaller is welcome"
        );
    }
}
