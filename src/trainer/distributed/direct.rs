//! All-reduces of CPU tensors on the calling thread, over TCP connections of their own.
//!
//! Owner: Gloo's transport. Gloo hands each operation to a thread of libtorch and each message to a thread of
//! its own. For the gradients of a small network that takes longer than the transfer. Here the caller sends,
//! receives and adds.
//!
//! The algorithm is recursive doubling: in round k each rank exchanges its sum with the rank whose number
//! differs in bit k. Where the world size is not a power of two, the extra ranks send their values first and
//! receive the result last (R. Thakur, R. Rabenseifner, W. Gropp, Optimization of Collective Communication
//! Operations in MPICH, 2005, section 4.5).
//!
//! Invariants:
//! - Both ends of an exchange combine (value of the lower rank, value of the higher rank), so that
//!   all ranks end with the same bits.
//! - Every message begins with its sender's call. Data of another collective are not used, and the
//!   error names the sender.
//! - No wait exceeds its deadline, and the error names the rank that did not answer.

use super::collective::{CollectiveNote, WORDS, describe};
use super::error::{BackendError, DistErrorKind};
use super::ffi::RawReduce;
use std::cell::RefCell;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use tch::Kind;

/// Most bytes of one write, and most bytes that were read and are not added yet, so that they are still in
/// the cache. Each end may read this much more than it has sent, so one of the two can always continue.
const PIECE: usize = 256 << 10;
const HEAD: usize = 8 * (WORDS + 1);

/// The type of the elements, and how they are combined.
#[derive(Clone, Copy)]
pub(super) struct Reduction {
    pub op: RawReduce,
    pub kind: Kind,
}

impl Reduction {
    /// Whether this file implements it.
    pub(super) fn is_known(self) -> bool {
        matches!(self.kind, Kind::Float | Kind::Double | Kind::Int64)
    }

    /// Combines `other` into `own`; `lower`: `own` is the lower rank's value.
    fn combine(self, own: &mut [u8], other: &[u8], lower: bool) {
        match (self.kind, self.op) {
            (Kind::Float, RawReduce::Sum) => {
                each(own, other, lower, f32::from_ne_bytes, f32::to_ne_bytes, |a, b| a + b)
            }
            (Kind::Float, RawReduce::Min) => {
                each(own, other, lower, f32::from_ne_bytes, f32::to_ne_bytes, |a, b| {
                    if a < b || a.is_nan() { a } else { b }
                })
            }
            (Kind::Float, RawReduce::Max) => {
                each(own, other, lower, f32::from_ne_bytes, f32::to_ne_bytes, |a, b| {
                    if a > b || a.is_nan() { a } else { b }
                })
            }
            (Kind::Double, RawReduce::Sum) => {
                each(own, other, lower, f64::from_ne_bytes, f64::to_ne_bytes, |a, b| a + b)
            }
            (Kind::Double, RawReduce::Min) => {
                each(own, other, lower, f64::from_ne_bytes, f64::to_ne_bytes, |a, b| {
                    if a < b || a.is_nan() { a } else { b }
                })
            }
            (Kind::Double, RawReduce::Max) => {
                each(own, other, lower, f64::from_ne_bytes, f64::to_ne_bytes, |a, b| {
                    if a > b || a.is_nan() { a } else { b }
                })
            }
            (_, RawReduce::Sum) => {
                each(own, other, lower, i64::from_ne_bytes, i64::to_ne_bytes, i64::wrapping_add)
            }
            (_, RawReduce::Min) => each(own, other, lower, i64::from_ne_bytes, i64::to_ne_bytes, Ord::min),
            (_, RawReduce::Max) => each(own, other, lower, i64::from_ne_bytes, i64::to_ne_bytes, Ord::max),
        }
    }
}

fn each<T: Copy, const N: usize>(
    own: &mut [u8],
    other: &[u8],
    lower: bool,
    from: impl Fn([u8; N]) -> T,
    to: impl Fn(T) -> [u8; N],
    combine: impl Fn(T, T) -> T,
) {
    let pairs = own.as_chunks_mut::<N>().0.iter_mut().zip(other.as_chunks::<N>().0);
    if lower {
        pairs.for_each(|(own, other)| *own = to(combine(from(*own), from(*other))));
    } else {
        pairs.for_each(|(own, other)| *own = to(combine(from(*other), from(*own))));
    }
}

/// The largest power of two that is not above `world_size`.
fn doubled(world_size: u32) -> u32 {
    1 << world_size.max(1).ilog2()
}

/// The ranks that a rank exchanges with.
pub(super) fn partners(rank: u32, world_size: u32) -> Vec<u32> {
    let core = doubled(world_size);
    if rank >= core {
        return vec![rank - core];
    }
    let rounds = (0..core.ilog2()).map(|bit| rank ^ (1 << bit));
    rounds.chain(Some(rank + core).filter(|extra| *extra < world_size)).collect()
}

/// What one end of an exchange does with its message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// Sends its data, and adds the peer's.
    Both,
    /// Sends its data.
    Out,
    /// Adds the peer's data.
    In,
    /// Replaces its data by the peer's.
    Over,
}

struct PeerConnection {
    peer: u32,
    stream: TcpStream,
}

/// The connections of one rank.
pub(super) struct DirectAllReduce {
    rank: u32,
    world_size: u32,
    connections: Vec<PeerConnection>,
    /// [`PIECE`] bytes for received data.
    scratch: RefCell<Vec<u8>>,
}

impl DirectAllReduce {
    /// Uses these connections, one to each of the [`partners`].
    pub(super) fn over(
        rank: u32,
        world_size: u32,
        streams: Vec<(u32, TcpStream)>,
    ) -> Result<DirectAllReduce, BackendError> {
        let connections = streams
            .into_iter()
            .map(|(peer, stream)| {
                stream
                    .set_nodelay(true)
                    .and_then(|()| stream.set_nonblocking(true))
                    .map_err(|error| lost(peer, &error.to_string()))?;
                Ok(PeerConnection { peer, stream })
            })
            .collect::<Result<_, BackendError>>()?;
        Ok(DirectAllReduce { rank, world_size, connections, scratch: RefCell::new(vec![0; PIECE]) })
    }

    /// Reduces `data` in place on all ranks of the group.
    pub(super) fn all_reduce(
        &self,
        note: &CollectiveNote,
        data: &mut [u8],
        reduction: Reduction,
        limit_ms: i64,
    ) -> Result<(), BackendError> {
        let deadline = Instant::now() + Duration::from_millis(limit_ms.max(1).cast_unsigned());
        let mut head = [0; WORDS + 1];
        head[..WORDS].copy_from_slice(&note.words());
        head[WORDS] = reduction.op as i64;
        let mut go = |peer: u32, direction: Direction| {
            self.exchange(peer, direction, &head, data, reduction, deadline)
        };
        let core = doubled(self.world_size);
        if self.rank >= core {
            go(self.rank - core, Direction::Out)?;
            return go(self.rank - core, Direction::Over);
        }
        let extra = Some(self.rank + core).filter(|extra| *extra < self.world_size);
        if let Some(extra) = extra {
            go(extra, Direction::In)?;
        }
        for bit in 0..core.ilog2() {
            go(self.rank ^ (1 << bit), Direction::Both)?;
        }
        extra.map_or(Ok(()), |extra| go(extra, Direction::Out))
    }

    fn exchange(
        &self,
        peer: u32,
        direction: Direction,
        head: &[i64; WORDS + 1],
        data: &mut [u8],
        reduction: Reduction,
        deadline: Instant,
    ) -> Result<(), BackendError> {
        let Some(connection) = self.connections.iter().find(|connection| connection.peer == peer) else {
            return Err(lost(peer, "there is no connection"));
        };
        let mut scratch = self.scratch.borrow_mut();
        let mut out = [0; HEAD];
        for (to, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(head) {
            *to = word.to_le_bytes();
        }
        let whole = HEAD + data.len();
        let (sends, takes) =
            (matches!(direction, Direction::Both | Direction::Out), direction != Direction::Out);
        let (mut sent, mut got) = (if sends { 0 } else { whole }, if takes { 0 } else { whole });
        // `data[..combined]` is done; scratch begins with the received bytes that follow.
        let (mut theirs, mut consensus, mut combined) = ([0; HEAD], false, 0);
        while sent < whole || got < whole {
            let before = sent + got;
            if sent < whole {
                sent += write(connection, &out, data, sent)?;
            }
            let kept = got.saturating_sub(HEAD) - combined;
            let room = got < whole && (direction == Direction::Over || kept < PIECE);
            if room {
                let into = match direction {
                    Direction::Over => &mut data[combined + kept..],
                    _ => &mut scratch[kept..PIECE.min(whole - HEAD - combined)],
                };
                got += read(connection, &mut theirs, got, into)?;
                if got >= HEAD && !consensus {
                    agree(head, &theirs, peer)?;
                    consensus = true;
                }
            }
            if matches!(direction, Direction::Both | Direction::In) {
                // What has not been sent yet must not change.
                let ready = sent.min(got).saturating_sub(HEAD);
                let ready = ready - ready % reduction.kind.elt_size_in_bytes();
                if ready > combined {
                    let added = ready - combined;
                    reduction.combine(&mut data[combined..ready], &scratch[..added], self.rank < peer);
                    scratch.copy_within(added..got - HEAD - combined, 0);
                    combined = ready;
                }
            }
            if sent + got == before {
                wait(connection, sent < whole, room, deadline)?;
            }
        }
        Ok(())
    }
}

fn lost(peer: u32, text: &str) -> BackendError {
    BackendError::new(DistErrorKind::Connection, format!("rank {peer}: {text}"))
}

/// Writes from byte `sent` of head and data on; 0 when the socket takes nothing now.
fn write(
    connection: &PeerConnection,
    head: &[u8; HEAD],
    data: &[u8],
    sent: usize,
) -> Result<usize, BackendError> {
    let from = sent.saturating_sub(HEAD);
    let piece = &data[from..data.len().min(from + PIECE)];
    let parts = [IoSlice::new(&head[sent.min(HEAD)..]), IoSlice::new(piece)];
    moved((&connection.stream).write_vectored(&parts), connection.peer)
}

/// Reads from byte `got` of head and data on, the data to `into`; 0 when nothing has arrived.
fn read(
    connection: &PeerConnection,
    head: &mut [u8; HEAD],
    got: usize,
    into: &mut [u8],
) -> Result<usize, BackendError> {
    let mut parts = [IoSliceMut::new(&mut head[got.min(HEAD)..]), IoSliceMut::new(into)];
    match (&connection.stream).read_vectored(&mut parts) {
        Ok(0) => Err(lost(connection.peer, "it closed its connection")),
        result => moved(result, connection.peer),
    }
}

fn moved(result: std::io::Result<usize>, peer: u32) -> Result<usize, BackendError> {
    match result {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        result => result.map_err(|error| lost(peer, &error.to_string().to_lowercase())),
    }
}

/// Sleeps until the connection can be written or read. It does not spin first: on shared cores, the scheduler
/// puts a rank that has spun behind the others. Spinning for 50 us doubled both CPU time and latency there
/// (136 kB, load 14 on two cores), and made no difference on an idle machine.
fn wait(connection: &PeerConnection, out: bool, into: bool, deadline: Instant) -> Result<(), BackendError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        let text = format!("timed out waiting for rank {}", connection.peer);
        return Err(BackendError::new(DistErrorKind::Timeout, text));
    }
    let events = if out { libc::POLLOUT } else { 0 } | if into { libc::POLLIN } else { 0 };
    let mut subject = libc::pollfd { fd: connection.stream.as_raw_fd(), events, revents: 0 };
    let limit = i32::try_from(left.as_millis().max(1)).unwrap_or(i32::MAX);
    // SAFETY: `subject` is one live pollfd for the length of the call. The next read or write finds out what
    // happened.
    unsafe { libc::poll(&mut subject, 1, limit) };
    Ok(())
}

fn agree(mine: &[i64; WORDS + 1], theirs: &[u8; HEAD], peer: u32) -> Result<(), BackendError> {
    let mut words = [0; WORDS + 1];
    for (to, from) in words.iter_mut().zip(theirs.as_chunks::<8>().0) {
        *to = i64::from_le_bytes(*from);
    }
    if words == *mine {
        return Ok(());
    }
    let how = |words: &[i64; WORDS + 1]| {
        let (note, reduction) = words.split_at(WORDS);
        let name = match reduction {
            [0] => "sum",
            [1] => "min",
            _ => "max",
        };
        format!("{} ({name})", describe(note))
    };
    // The watch knows these words (core/watch/facts.rs): a rank that ends with them need not be the one that
    // differs.
    let text = format!(
        "another call came from rank {peer}: this rank is in {}, but rank {peer} in {}",
        how(mine),
        how(&words)
    );
    Err(BackendError::new(DistErrorKind::Mismatch, text))
}

#[cfg(test)]
#[path = "direct_tests.rs"]
mod tests;
