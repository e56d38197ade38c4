//! The rendezvous store: small values under names, held by rank 0 (or by torchrun's agent), for finding each
//! other.
//!
//! Owner: the process group. Invariants:
//! - All keys carry the generation, so that a leftover of an earlier one cannot join.
//! - STORE-2: a second process with the same rank is refused.

use super::error::{BackendError, DistErrorKind};
use super::ffi::StoreHandle;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

const POLL_FIRST: Duration = Duration::from_millis(5);
const POLL_LAST: Duration = Duration::from_millis(100);
/// Between looks for a refusal while ranks are awaited.
const SLICE: Duration = Duration::from_millis(250);
/// How long a failing rank 0 keeps the store for the others.
const LINGER: Duration = Duration::from_secs(2);

/// Where the store is.
#[derive(Debug, Clone)]
pub(super) struct StoreAddress {
    pub host: String,
    pub port: u16,
    /// This process serves it.
    pub server: bool,
    /// A bound socket to serve it on.
    pub listen_fd: Option<i32>,
}

/// A connection to it; clones share the connection, and on rank 0 the server.
#[derive(Clone)]
pub(super) struct Store {
    handle: Arc<StoreHandle>,
    prefix: String,
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

fn millis(deadline: Instant) -> i64 {
    i64::try_from(deadline.saturating_duration_since(Instant::now()).as_millis()).unwrap_or(i64::MAX).max(1)
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
    /// Serves the store, or connects to it.
    pub(super) fn open(
        address: &StoreAddress,
        generation: u32,
        deadline: Instant,
    ) -> Result<Store, BackendError> {
        if !address.server {
            wait_for_server(address, deadline)?;
        }
        let handle = StoreHandle::open(
            &address.host,
            address.port,
            address.server,
            address.listen_fd,
            millis(deadline),
        )
        .map_err(|failure| {
            let place = format!("{}:{}", address.host, address.port);
            let text = match (failure.kind, address.server) {
                (DistErrorKind::AddressInUse, _) => format!("port {} is in use on this host", address.port),
                (_, true) => format!("cannot serve the store at {place}: {}", failure.text),
                (_, false) => format!("what answers at {place} is not rank 0's store: {}", failure.text),
            };
            BackendError::new(failure.kind, text)
        })?;
        Ok(Store { handle: Arc::new(handle), prefix: format!("rankdeck/{generation}/") })
    }

    /// The same store with a namespace of its own.
    pub(super) fn within(&self, name: &str) -> Store {
        Store { handle: Arc::clone(&self.handle), prefix: format!("{}{name}/", self.prefix) }
    }

    pub(super) fn handle(&self) -> &StoreHandle {
        &self.handle
    }

    /// The key's full name.
    pub(super) fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    pub(super) fn set(&self, key: &str, value: &[u8]) -> Result<(), BackendError> {
        self.handle.set(&self.key(key), value)
    }

    /// Waits for the key.
    pub(super) fn get(&self, key: &str, deadline: Instant) -> Result<Vec<u8>, BackendError> {
        self.handle.get(&self.key(key), millis(deadline))
    }

    /// Adds and returns the sum; a missing key counts as 0.
    pub(super) fn add(&self, key: &str, delta: i64) -> Result<i64, BackendError> {
        self.handle.add(&self.key(key), delta)
    }

    pub(super) fn check(&self, key: &str) -> Result<bool, BackendError> {
        self.handle.check(&self.key(key))
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
                Refused { failure, heard: false }
            }
        };
        self.tell(me, &refused);
        Err(refused.failure)
    }

    /// Passes a refusal on. The store ends with rank 0, so rank 0 stays until the others know.
    fn tell(&self, me: &StoreMember, refused: &Refused) {
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

    fn meet(&self, me: &StoreMember, deadline: Instant, moved: impl FnMut()) -> Result<(), Refused> {
        // The second process with a rank's number ends alone: the others may be complete without it.
        self.claim(me).map_err(|failure| Refused { failure, heard: true })?;
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
    ) -> Result<(), Refused> {
        let wanted = i64::from(me.world_size);
        loop {
            let joined =
                self.wait_count("joined", wanted, deadline.min(Instant::now() + SLICE), &mut moved)?;
            if joined >= wanted {
                return Ok(());
            }
            if self.check("refused")? {
                let value = String::from_utf8_lossy(&self.get("refused", deadline)?).into_owned();
                return Err(Refused { failure: BackendError::from_wire(&value), heard: true });
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
struct Refused {
    failure: BackendError,
    heard: bool,
}

impl From<BackendError> for Refused {
    fn from(failure: BackendError) -> Refused {
        Refused { failure, heard: false }
    }
}

/// Waits until something accepts connections there: libtorch's own retries back off past any limit.
fn wait_for_server(address: &StoreAddress, deadline: Instant) -> Result<(), BackendError> {
    const CONNECT: Duration = Duration::from_secs(5);
    let mut pause = POLL_FIRST;
    loop {
        let resolved = (address.host.as_str(), address.port).to_socket_addrs();
        let (kind, text) = match resolved.map(|found| found.collect::<Vec<SocketAddr>>()) {
            Ok(found) => {
                let mut last = String::from("its name has no address");
                for target in found {
                    let limit = deadline.saturating_duration_since(Instant::now()).min(CONNECT);
                    match TcpStream::connect_timeout(&target, limit.max(POLL_FIRST)) {
                        Ok(_) => return Ok(()),
                        Err(error) => last = error.to_string().to_lowercase(),
                    }
                }
                (DistErrorKind::Timeout, last)
            }
            Err(error) => (DistErrorKind::Connection, format!("its name cannot be resolved: {error}")),
        };
        if Instant::now() >= deadline {
            let text = format!("rank 0 does not answer at {}:{}: {text}", address.host, address.port);
            return Err(BackendError::new(kind, text));
        }
        std::thread::sleep(pause.min(deadline.saturating_duration_since(Instant::now())));
        pause = (pause * 2).min(POLL_LAST);
    }
}
