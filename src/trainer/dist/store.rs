//! The rendezvous store: small values under names, held by rank 0 (or by torchrun's agent), for finding each other.
//!
//! Owner: the process group. Invariants:
//! - STORE-1: all keys carry the generation, so that a leftover of an earlier one cannot join.
//! - STORE-2: no rank number is given twice; a second process with the same rank is refused.

use super::error::{DistErrorKind, Failure};
use super::ffi::StoreHandle;
use std::sync::Arc;
use std::time::{Duration, Instant};

const POLL_FIRST: Duration = Duration::from_millis(5);
const POLL_LAST: Duration = Duration::from_millis(100);

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
pub(super) struct Member {
    pub rank: u32,
    pub world_size: u32,
    pub backend: &'static str,
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
    pub(super) fn open(address: &StoreAddress, generation: u32, deadline: Instant) -> Result<Store, Failure> {
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
                (DistErrorKind::Timeout | DistErrorKind::Connection, false) => {
                    format!("rank 0 does not answer at {place}: {}", failure.text)
                }
                (_, true) => format!("cannot serve the store at {place}: {}", failure.text),
                (_, false) => format!("cannot reach the store at {place}: {}", failure.text),
            };
            Failure::new(failure.kind, text)
        })?;
        Ok(Store { handle: Arc::new(handle), prefix: format!("rankdeck/{generation}/") })
    }

    pub(super) fn handle(&self) -> &StoreHandle {
        &self.handle
    }

    /// The key's full name.
    pub(super) fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    pub(super) fn set(&self, key: &str, value: &[u8]) -> Result<(), Failure> {
        self.handle.set(&self.key(key), value)
    }

    /// Waits for the key.
    pub(super) fn get(&self, key: &str, deadline: Instant) -> Result<Vec<u8>, Failure> {
        self.handle.get(&self.key(key), millis(deadline))
    }

    /// Adds and returns the sum; a missing key counts as 0.
    pub(super) fn add(&self, key: &str, delta: i64) -> Result<i64, Failure> {
        self.handle.add(&self.key(key), delta)
    }

    pub(super) fn check(&self, key: &str) -> Result<bool, Failure> {
        self.handle.check(&self.key(key))
    }

    /// Polls `add(key, 0)` until it reaches `wanted`; returns the last count.
    pub(super) fn wait_count(
        &self,
        key: &str,
        wanted: i64,
        deadline: Instant,
        mut grown: impl FnMut(),
    ) -> Result<i64, Failure> {
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

    /// Joins and waits for all ranks; an error says how many came and which are missing.
    pub(super) fn join(&self, me: &Member, deadline: Instant, moved: impl FnMut()) -> Result<(), Failure> {
        let Member { rank, world_size, backend } = me;
        if self.add(&format!("rank/{rank}"), 1)? > 1 {
            return Err(Failure::new(
                DistErrorKind::Usage,
                format!("another process has already joined as rank {rank}"),
            ));
        }
        let mine = format!("world_size {world_size}, backend {backend}");
        if *rank == 0 {
            self.set("terms", mine.as_bytes())?;
        }
        let terms = self.get("terms", deadline).map_err(|failure| match failure.kind {
            DistErrorKind::Timeout => {
                Failure::new(failure.kind, format!("rank 0 has not joined, rank {rank} waits for it"))
            }
            _ => failure,
        })?;
        if terms != mine.as_bytes() {
            let theirs = String::from_utf8_lossy(&terms);
            let text = format!("rank {rank} was started with {mine}, rank 0 with {theirs}");
            self.set("refused", text.as_bytes())?;
            return Err(Failure::new(DistErrorKind::Usage, text));
        }
        self.add("joined", 1)?;
        self.wait_for_all(*world_size, deadline, moved)
    }

    fn wait_for_all(
        &self,
        world_size: u32,
        deadline: Instant,
        mut moved: impl FnMut(),
    ) -> Result<(), Failure> {
        const SLICE: Duration = Duration::from_millis(500);
        loop {
            let slice = deadline.min(Instant::now() + SLICE);
            let joined = self.wait_count("joined", i64::from(world_size), slice, &mut moved)?;
            if joined >= i64::from(world_size) {
                return Ok(());
            }
            if self.check("refused")? {
                let text = String::from_utf8_lossy(&self.get("refused", deadline)?).into_owned();
                return Err(Failure::new(DistErrorKind::Usage, text));
            }
            if Instant::now() >= deadline {
                let mut missing = Vec::new();
                for rank in 0..world_size {
                    if !self.check(&format!("rank/{rank}"))? {
                        missing.push(rank);
                    }
                }
                return Err(Failure::new(
                    DistErrorKind::Timeout,
                    format!("{joined} of {world_size} ranks joined in time; missing: {}", list(&missing)),
                ));
            }
        }
    }
}
