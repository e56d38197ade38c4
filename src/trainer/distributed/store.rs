//! The rendezvous store: small values under names, held by rank 0, for finding each other.
//!
//! Owner: the process group. Rank 0 serves it ([`super::store_server`]); every rank, rank 0 too, is its
//! client. Invariants:
//! - All keys carry the generation, so that a leftover of an earlier one cannot join.
//! - STORE-2: a second process with the same rank is refused.
//! - A client that got no answer asks nothing more, since the next answer might be the old one.

use super::channel::Channel;
use super::error::{BackendError, DistErrorKind};
use super::greeting::{self, Credentials, SessionKeys};
use super::reception::Reception;
use super::store_server::StoreServer;
use super::store_wire::{Answer, RECORD, Request};
use rankdeck_proto::secret::GroupSecret;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const POLL_FIRST: Duration = Duration::from_millis(2);
const POLL_LAST: Duration = Duration::from_millis(100);
/// Between looks for a refusal while ranks are awaited.
const SLICE: Duration = Duration::from_millis(250);
/// How long a failing rank 0 keeps the store for the others.
const LINGER: Duration = Duration::from_secs(2);

/// Where the store is.
#[derive(Debug)]
pub(super) struct StoreAddress {
    pub host: String,
    pub port: u16,
    /// The socket to serve it on, in the process that serves it.
    pub listener: Option<TcpListener>,
}

/// A connection to it; clones share the connection, and on rank 0 the server.
#[derive(Clone)]
pub(super) struct Store {
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
    _server: Option<StoreServer>,
}

/// What a rank joins a group with.
#[derive(Debug, Clone)]
pub(super) struct StoreIdentity {
    pub rank: u32,
    pub world_size: u32,
    pub generation: u32,
    pub secret: Option<GroupSecret>,
}

/// What every rank must agree on before anything else.
#[derive(Debug, Clone)]
pub(super) struct StoreMember {
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
pub(super) fn list(ranks: &[u32]) -> String {
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
    pub(super) fn open(
        address: StoreAddress,
        identity: &StoreIdentity,
        deadline: Instant,
    ) -> Result<Store, BackendError> {
        let place = format!("{}:{}", address.host, address.port);
        let StoreIdentity { rank, world_size, generation, secret } = identity.clone();
        let credentials = Credentials::new(secret.as_ref(), &format!("store of generation {generation}"));
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
            let reception = Reception::new(listener, credentials.clone(), 0, world_size).map_err(cannot)?;
            server = Some(StoreServer::start(reception, world_size).map_err(cannot)?);
        }
        let (stream, keys) = connect((&host, port), &credentials, rank, deadline)?;
        let channel = Mutex::new(Some(Channel::new(0, stream, keys, RECORD)?));
        let client = StoreClient { place, channel, limit, secret, _server: server };
        Ok(Store { client: Arc::new(client), prefix: format!("rankdeck/{generation}/") })
    }

    /// The same store with a namespace of its own.
    pub(super) fn within(&self, name: &str) -> Store {
        Store { client: Arc::clone(&self.client), prefix: format!("{}{name}/", self.prefix) }
    }

    /// What the connections of this namespace's group are made with.
    pub(super) fn credentials(&self) -> Credentials {
        Credentials::new(self.client.secret.as_ref(), &format!("mesh of {}", self.prefix))
    }

    /// Whether the ranks have a secret to know each other by.
    pub(super) fn has_secret(&self) -> bool {
        self.client.secret.is_some()
    }

    fn ask(&self, request: &Request<'_>) -> Result<Option<Vec<u8>>, BackendError> {
        let place = &self.client.place;
        let mut channel = self.client.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut client) = channel.take() else {
            let text = format!("the store at {place} was lost earlier");
            return Err(BackendError::new(DistErrorKind::Connection, text));
        };
        let answer =
            client.ask(&request.encode(), Instant::now() + self.client.limit).map_err(|failure| {
                BackendError::new(failure.kind, format!("store at {place}: {}", failure.text))
            })?;
        *channel = Some(client);
        match Answer::decode(&answer) {
            Some(Answer::Value(value)) => Ok(Some(value)),
            Some(Answer::Absent) => Ok(None),
            _ => Err(BackendError::new(DistErrorKind::Failed, format!("the store at {place} takes no more"))),
        }
    }

    /// The key's full name.
    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    pub(super) fn set(&self, key: &str, value: &[u8]) -> Result<(), BackendError> {
        self.ask(&Request::Set(&self.key(key), value)).map(|_| ())
    }

    /// Waits for the key.
    pub(super) fn get(&self, key: &str, deadline: Instant) -> Result<Vec<u8>, BackendError> {
        let name = self.key(key);
        let mut pause = POLL_FIRST;
        loop {
            if let Some(value) = self.ask(&Request::Get(&name))? {
                return Ok(value);
            }
            if Instant::now() >= deadline {
                let text = format!("nobody has set {key} in the store at {}", self.client.place);
                return Err(BackendError::new(DistErrorKind::Timeout, text));
            }
            std::thread::sleep(pause.min(deadline.saturating_duration_since(Instant::now())));
            pause = (pause * 2).min(POLL_LAST);
        }
    }

    /// Adds and returns the sum; a missing key counts as 0.
    pub(super) fn add(&self, key: &str, delta: i64) -> Result<i64, BackendError> {
        let sum = self.ask(&Request::Add(&self.key(key), delta))?.unwrap_or_default();
        let sum = sum.try_into().map_err(|_| {
            BackendError::new(DistErrorKind::Mismatch, format!("{key} in the store is no number"))
        })?;
        Ok(i64::from_le_bytes(sum))
    }

    pub(super) fn check(&self, key: &str) -> Result<bool, BackendError> {
        Ok(self.ask(&Request::Get(&self.key(key)))?.is_some())
    }

    /// Polls `add(key, 0)` until it reaches `wanted`; returns the last count.
    pub(super) fn wait_count(
        &self,
        key: &str,
        wanted: i64,
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
            if count >= wanted || Instant::now() >= deadline {
                return Ok(count);
            }
            std::thread::sleep(pause.min(deadline.saturating_duration_since(Instant::now())));
            pause = (pause * 2).min(POLL_LAST);
        }
    }

    /// Joins and waits for all ranks; an error says how many came and which are missing. A rank with
    /// `trouble` joins only to tell the others.
    pub(super) fn join(
        &self,
        me: &StoreMember,
        trouble: Option<BackendError>,
        deadline: Instant,
        moved: impl FnMut(),
    ) -> Result<(), BackendError> {
        let refused = match trouble {
            None => match self.meet(me, deadline, moved) {
                Ok(()) => return Ok(()),
                Err(refused) => refused,
            },
            Some(failure) => {
                self.claim(me)?;
                if me.rank == 0 {
                    self.set("terms", me.terms().as_bytes())?;
                }
                JoinRefusal { failure, heard: false }
            }
        };
        self.tell(me, &refused);
        Err(refused.failure)
    }

    /// Passes a refusal on. The store ends with rank 0, so rank 0 stays until the others know.
    fn tell(&self, me: &StoreMember, refused: &JoinRefusal) {
        let report = || -> Result<(), BackendError> {
            if !refused.heard {
                self.set("refused", refused.failure.to_wire().as_bytes())?;
            }
            if me.rank == 0 {
                let others = i64::from(me.world_size) - 1;
                self.wait_count("told", others, Instant::now() + LINGER, || {}).map(|_| ())
            } else {
                self.add("told", 1).map(|_| ())
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

    fn meet(&self, me: &StoreMember, deadline: Instant, moved: impl FnMut()) -> Result<(), JoinRefusal> {
        // The second process with a rank's number ends alone: the others may be complete without it.
        self.claim(me).map_err(|failure| JoinRefusal { failure, heard: true })?;
        let (rank, mine) = (me.rank, me.terms());
        if rank == 0 {
            self.set("terms", mine.as_bytes())?;
        }
        let terms = self.get("terms", deadline).map_err(|failure| match failure.kind {
            DistErrorKind::Timeout => {
                BackendError::new(failure.kind, format!("rank 0 has not joined, rank {rank} waits for it"))
            }
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
        let wanted = i64::from(me.world_size);
        loop {
            let joined =
                self.wait_count("joined", wanted, deadline.min(Instant::now() + SLICE), &mut moved)?;
            if joined >= wanted {
                return Ok(());
            }
            if self.check("refused")? {
                let value = String::from_utf8_lossy(&self.get("refused", deadline)?).into_owned();
                return Err(JoinRefusal { failure: BackendError::from_wire(&value), heard: true });
            }
            if Instant::now() >= deadline {
                let text =
                    format!("{joined} of {wanted} ranks joined in time; missing: {}", self.missing(me)?);
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

/// Why a rank cannot join, and whether another rank told it so.
struct JoinRefusal {
    failure: BackendError,
    heard: bool,
}

impl From<BackendError> for JoinRefusal {
    fn from(failure: BackendError) -> JoinRefusal {
        JoinRefusal { failure, heard: false }
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
                let mut last = String::from("its name has no address");
                for target in found {
                    match greeting::call(
                        target,
                        credentials,
                        rank,
                        0,
                        deadline.max(Instant::now() + POLL_LAST),
                    ) {
                        Ok(connection) => return Ok(connection),
                        Err(error) if error.kind() == ErrorKind::InvalidData => {
                            let text = format!("what answers at {place} is not rank 0's store: {error}");
                            return Err(BackendError::new(DistErrorKind::Forged, text));
                        }
                        Err(error) => last = error.to_string().to_lowercase(),
                    }
                }
                (DistErrorKind::Timeout, last)
            }
            Err(error) => (DistErrorKind::Connection, format!("its name cannot be resolved: {error}")),
        };
        if Instant::now() >= deadline {
            return Err(BackendError::new(kind, format!("rank 0 does not answer at {place}: {text}")));
        }
        std::thread::sleep(pause.min(deadline.saturating_duration_since(Instant::now())));
        pause = (pause * 2).min(POLL_LAST);
    }
}
