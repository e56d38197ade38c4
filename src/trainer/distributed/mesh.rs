//! Connections between the ranks that exchange with each other ([`super::direct`]), made through the store.
//!
//! Owner: Gloo's transport, while it opens. Invariants:
//! - The lower rank of two listens, the higher one connects, on the addresses that Gloo uses as well.
//! - A connecting rank shows a token from the store. Connections without it are closed.

use super::direct::{DirectAllReduce, partners};
use super::error::{BackendError, DistErrorKind};
use super::store::Store;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

const TOKEN: usize = 16;
/// How long a caller may take to send its token.
const GREETING: Duration = Duration::from_secs(5);

fn failed(text: String) -> BackendError {
    BackendError::new(DistErrorKind::Connection, text)
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

/// Connects `rank` with its partners; all ranks of the group must call it.
pub(super) fn open(
    store: &Store,
    rank: u32,
    world_size: u32,
    address: IpAddr,
    deadline: Instant,
) -> Result<DirectAllReduce, BackendError> {
    let partners = partners(rank, world_size);
    let (callers, called): (BTreeSet<u32>, BTreeSet<u32>) = partners.iter().partition(|peer| **peer > rank);
    let mut streams = Vec::with_capacity(partners.len());
    let listener = match callers.is_empty() {
        true => None,
        false => Some(listen(store, rank, address)?),
    };
    for peer in called {
        streams.push((peer, call(store, rank, peer, deadline)?));
    }
    if let Some((listener, token)) = listener {
        accept(&listener, &token, callers, deadline, &mut streams)?;
    }
    DirectAllReduce::over(rank, world_size, streams)
}

fn listen(store: &Store, rank: u32, address: IpAddr) -> Result<(TcpListener, [u8; TOKEN]), BackendError> {
    let cannot = |error: std::io::Error| failed(format!("rank {rank} cannot listen at {address}: {error}"));
    let listener = TcpListener::bind((address, 0)).map_err(cannot)?;
    let port = listener.local_addr().map_err(cannot)?.port();
    let mut token = [0; TOKEN];
    std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut token)).map_err(cannot)?;
    let mut value = token.to_vec();
    value.extend(SocketAddr::new(address, port).to_string().bytes());
    store.set(&format!("direct/{rank}"), &value)?;
    Ok((listener, token))
}

fn call(store: &Store, rank: u32, peer: u32, deadline: Instant) -> Result<TcpStream, BackendError> {
    let value = store.get(&format!("direct/{peer}"), deadline)?;
    let (token, place) = value.split_at(TOKEN.min(value.len()));
    let place = String::from_utf8_lossy(place);
    let address: SocketAddr =
        place.parse().map_err(|_| failed(format!("rank {peer} is said to be at {place:?}")))?;
    let cannot =
        |error: std::io::Error| failed(format!("rank {rank} cannot reach rank {peer} at {address}: {error}"));
    let mut stream = TcpStream::connect_timeout(&address, left(deadline)).map_err(cannot)?;
    stream.write_all(token).and_then(|()| stream.write_all(&rank.to_le_bytes())).map_err(cannot)?;
    Ok(stream)
}

fn accept(
    listener: &TcpListener,
    token: &[u8; TOKEN],
    mut callers: BTreeSet<u32>,
    deadline: Instant,
    streams: &mut Vec<(u32, TcpStream)>,
) -> Result<(), BackendError> {
    let cannot = |error: std::io::Error| failed(format!("cannot accept connections: {error}"));
    listener.set_nonblocking(true).map_err(cannot)?;
    while let Some(first) = callers.first() {
        match listener.accept() {
            Ok((stream, _)) => {
                if let Some((caller, stream)) = greeted(stream, token, deadline)
                    && callers.remove(&caller)
                {
                    streams.push((caller, stream));
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if Instant::now() >= deadline {
                    let text = format!("rank {first} did not connect to this rank in time");
                    return Err(BackendError::new(DistErrorKind::Timeout, text));
                }
                let mut subject = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                let limit = i32::try_from(left(deadline).as_millis()).unwrap_or(i32::MAX).max(1);
                // SAFETY: `subject` is one live pollfd for the length of the call; the next accept finds out
                // what is.
                unsafe { libc::poll(&mut subject, 1, limit) };
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(cannot(error)),
        }
    }
    Ok(())
}

/// The rank that connected, if its token is right.
fn greeted(mut stream: TcpStream, token: &[u8; TOKEN], deadline: Instant) -> Option<(u32, TcpStream)> {
    let (mut theirs, mut rank) = ([0; TOKEN], [0; 4]);
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(left(deadline).min(GREETING))).ok()?;
    stream.read_exact(&mut theirs).and_then(|()| stream.read_exact(&mut rank)).ok()?;
    (theirs == *token).then(|| (u32::from_le_bytes(rank), stream))
}
