//! Connections between the ranks that exchange with each other ([`super::direct`]), made through the store.
//!
//! Owner: the transport for CPU tensors, while it opens. Invariants:
//! - The lower rank of two listens, the higher one connects. Listening ends when all have come.
//! - MESH-1: whatever strangers do at the listening port, the ranks connect ([`super::reception`]).

use super::channel::{Channel, wait};
use super::direct::partners;
use super::error::{BackendError, DistErrorKind};
use super::exchange::RECORD;
use super::greeting::{self, Credentials};
use super::reception::Reception;
use super::store::Store;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Between two calls to a rank that hung up.
const AGAIN: Duration = Duration::from_millis(20);
/// Between two looks whether this rank's own calls have failed, so that nobody needs to be awaited.
const LOOK: Duration = Duration::from_millis(250);

fn failed(text: String) -> BackendError {
    BackendError::new(DistErrorKind::Connection, text)
}

/// Connects `rank` with its partners; all ranks of the group must call it.
pub(super) fn open(
    store: &Store,
    rank: u32,
    world_size: u32,
    address: IpAddr,
    deadline: Instant,
) -> Result<Vec<Channel>, BackendError> {
    let credentials = store.credentials();
    let partners = partners(rank, world_size);
    let (callers, called): (BTreeSet<u32>, BTreeSet<u32>) = partners.iter().partition(|peer| **peer > rank);
    let reception = match callers.is_empty() {
        true => None,
        false => Some(listen(store, credentials.clone(), (rank, world_size), address)?),
    };
    let given_up = AtomicBool::new(false);
    let given_up = &given_up;
    std::thread::scope(|scope| {
        let accepting =
            reception.map(|reception| scope.spawn(move || accept(reception, callers, deadline, given_up)));
        let mut channels = Vec::with_capacity(partners.len());
        let calls = called.into_iter().try_for_each(|peer| {
            channels.push(call(store, &credentials, rank, peer, deadline)?);
            Ok(())
        });
        given_up.store(calls.is_err(), Ordering::Relaxed);
        if let Some(accepting) = accepting {
            let accepted = accepting.join().unwrap_or_else(|_| Err(failed("cannot accept".into())));
            calls?;
            channels.extend(accepted?);
        } else {
            calls?;
        }
        Ok(channels)
    })
}

fn listen(
    store: &Store,
    credentials: Credentials,
    (rank, world_size): (u32, u32),
    address: IpAddr,
) -> Result<Reception, BackendError> {
    let cannot = |error: std::io::Error| failed(format!("rank {rank} cannot listen at {address}: {error}"));
    let listener = TcpListener::bind((address, 0)).map_err(cannot)?;
    let place = listener.local_addr().map_err(cannot)?;
    let reception = Reception::new(listener, credentials, rank, world_size).map_err(cannot)?;
    store.set(&format!("direct/{rank}"), place.to_string().as_bytes())?;
    Ok(reception)
}

fn call(
    store: &Store,
    credentials: &Credentials,
    rank: u32,
    peer: u32,
    deadline: Instant,
) -> Result<Channel, BackendError> {
    let place = store.get(&format!("direct/{peer}"), deadline)?;
    let place = String::from_utf8_lossy(&place);
    let address: SocketAddr =
        place.parse().map_err(|_| failed(format!("rank {peer} is said to be at {place:?}")))?;
    loop {
        match greeting::call(address, credentials, rank, peer, deadline) {
            Ok((stream, keys)) => return Channel::new(peer, stream, keys, RECORD),
            Err(error) if error.kind() == ErrorKind::InvalidData || Instant::now() >= deadline => {
                return Err(failed(format!("rank {rank} cannot reach rank {peer} at {address}: {error}")));
            }
            // Many callers at once, or none listening yet: the next try may get in.
            Err(_) => std::thread::sleep(AGAIN),
        }
    }
}

fn accept(
    mut reception: Reception,
    mut callers: BTreeSet<u32>,
    deadline: Instant,
    given_up: &AtomicBool,
) -> Result<Vec<Channel>, BackendError> {
    let mut channels = Vec::with_capacity(callers.len());
    loop {
        let guests =
            reception.step().map_err(|error| failed(format!("cannot accept connections: {error}")))?;
        for guest in guests {
            if callers.remove(&guest.rank) {
                channels.push(Channel::new(guest.rank, guest.stream, guest.keys, RECORD)?);
            }
        }
        let Some(first) = callers.first() else { return Ok(channels) };
        if given_up.load(Ordering::Relaxed) {
            return Ok(channels);
        }
        let mut subjects = Vec::new();
        reception.interests(&mut subjects);
        let next = reception.next().unwrap_or(deadline).min(deadline).min(Instant::now() + LOOK);
        if !wait(&mut subjects, Some(next)) && Instant::now() >= deadline {
            let text = format!("rank {first} did not connect to this rank in time");
            return Err(BackendError::new(DistErrorKind::Timeout, text));
        }
    }
}
