//! One step of a collective: sends bytes to one peer and receives bytes from one, at the same time.
//!
//! Invariants:
//! - EXCHANGE-1: every message begins with its sender's call. Data of another collective are not used, and
//!   the error names the sender.
//! - EXCHANGE-2: no wait exceeds its deadline, and the error names the rank that did not respond.
//! - Both ends of an exchange combine (value of the lower rank, value of the higher rank), so that both end
//!   with the same bits.

use super::shared::PeerLink;
use crate::distributed::channel::{lost, subject, wait};
use crate::distributed::error::{BackendError, DistErrorKind};
use crate::distributed::ffi::ReduceKernel;
use crate::distributed::transport::{WORDS, describe};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::{Duration, Instant};
use tch::Kind;

/// Words that a message begins with: the call, and how it combines.
pub(crate) const HEAD_WORDS: usize = WORDS + 1;
const HEAD: usize = 8 * HEAD_WORDS;
/// Most bytes of a record: one is in the cache while it is sealed, opened and combined.
pub(crate) const RECORD: usize = 64 << 10;

/// What is done with the bytes that arrive.
#[derive(Clone, Copy)]
pub(crate) enum ReceiveMode {
    /// They replace the local ones.
    Copy,
    /// They are combined with the local ones.
    Combine(Reduction),
}

/// A collective that is under way.
pub(crate) struct ActiveExchange {
    pub head: [i64; HEAD_WORDS],
    pub deadline: Instant,
}

/// One rank's connections.
pub(crate) struct PeerConnections {
    rank: u32,
    links: RefCell<Vec<PeerLink>>,
    spinner: Spinner,
}

/// How long a rank polls shared memory before it sleeps: waking it up takes about 50 us.
const SPIN: Duration = Duration::from_micros(100);
/// After [`SPIN_MISSES`] longer waits in a row, only every [`SPIN_EVERY`]th wait starts with polling.
const SPIN_MISSES: u32 = 8;
const SPIN_EVERY: u32 = 16;

/// Decides whether a wait starts with polling. Where waits are longer than that, or where other work takes the
/// peer's core, it would only cost time.
struct Spinner {
    enabled: bool,
    misses: Cell<u32>,
}

impl Spinner {
    /// Asks until it is ready; `false`: not in time, or this wait does not ask.
    fn spin(&self, is_ready: impl Fn() -> bool) -> bool {
        let misses = self.misses.get();
        self.misses.set(misses.saturating_add(1));
        if !self.enabled || misses >= SPIN_MISSES && !misses.is_multiple_of(SPIN_EVERY) {
            return false;
        }
        let until = Instant::now() + SPIN;
        loop {
            for _ in 0..64 {
                if is_ready() {
                    self.misses.set(0);
                    return true;
                }
                std::hint::spin_loop();
            }
            if Instant::now() >= until {
                return false;
            }
        }
    }
}

/// One direction of a step.
pub(crate) struct StepTransfer {
    pub peer: u32,
    pub range: Range<usize>,
}

impl PeerConnections {
    /// Waits sleep at once.
    pub(crate) fn new(rank: u32, links: Vec<PeerLink>) -> PeerConnections {
        let spinner = Spinner { enabled: false, misses: Cell::new(0) };
        PeerConnections { rank, links: RefCell::new(links), spinner }
    }

    /// Whether ranks may ask shared memory for a moment before they sleep, since each has a core.
    pub(crate) fn set_spins(&mut self, spins: bool) {
        self.spinner.enabled = spins;
    }

    /// How many peers there are, and how many of them are reached through shared memory.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let links = self.links.borrow();
        (links.len(), links.iter().filter(|link| link.is_shared()).count())
    }

    /// Sends `to` and takes `from`, which may be the same bytes of `data` or other ones.
    pub(crate) fn exchange(
        &self,
        call: &ActiveExchange,
        data: &mut [u8],
        to: Option<&StepTransfer>,
        from: Option<(&StepTransfer, ReceiveMode)>,
    ) -> Result<(), BackendError> {
        let mut links = self.links.borrow_mut();
        let index = |peer: u32| {
            links.iter().position(|link| link.peer() == peer).ok_or_else(|| lost(peer, "not connected"))
        };
        let mut sending = match to {
            None => None,
            Some(transfer) => Some(TransferSender { index: index(transfer.peer)?, transfer, put: 0 }),
        };
        let mut taking = match from {
            None => None,
            Some((transfer, mode)) => {
                Some(TransferReceiver { index: index(transfer.peer)?, transfer, mode, got: 0 })
            }
        };
        let links = links.as_mut_slice();
        loop {
            let mut moved = false;
            let mut flushed = true;
            if let Some(sending) = &mut sending {
                moved |= sending.advance(call, links, data)?;
                flushed = sending.is_done(links);
            }
            if let Some(taking) = &mut taking
                && !taking.is_done()
            {
                let unsent = sending.as_ref().map_or(0..0, TransferSender::unsent);
                match taking.advance(call, self.rank, links, data, &unsent) {
                    Ok(took) => moved |= took,
                    Err(failure) => {
                        if failure.kind == DistErrorKind::Mismatch && sending.is_none() {
                            send_op(call, &mut links[taking.index]);
                        }
                        return Err(failure);
                    }
                }
            }
            let taken = taking.as_ref().is_none_or(TransferReceiver::is_done);
            if flushed && taken {
                return Ok(());
            }
            if !moved {
                self.sleep(call, links, sending.as_ref(), taking.as_ref())?;
            }
        }
    }

    /// Sleeps until a transfer can continue.
    fn sleep(
        &self,
        call: &ActiveExchange,
        links: &mut [PeerLink],
        sending: Option<&TransferSender<'_>>,
        taking: Option<&TransferReceiver<'_>>,
    ) -> Result<(), BackendError> {
        let taking = taking.filter(|taking| !taking.is_done());
        let sending = sending.filter(|sending| !sending.is_done(links));
        let (to, from) = (sending.map(|sending| sending.index), taking.map(|taking| taking.index));
        let mut indices = [to, from.filter(|from| Some(*from) != to)];
        indices.sort_unstable_by_key(Option::is_none);
        let count = indices.iter().flatten().count();
        let waits = |index: usize| (from == Some(index), to == Some(index));
        let is_ready = |links: &[PeerLink]| {
            indices.iter().flatten().any(|index| {
                let (reads, writes) = waits(*index);
                links[*index].is_ready(reads, writes)
            })
        };
        if indices.iter().flatten().all(|index| links[*index].is_shared())
            && self.spinner.spin(|| is_ready(links))
        {
            return Ok(());
        }
        let mut subjects = [subject(-1, 0), subject(-1, 0)];
        for (subject, index) in subjects.iter_mut().zip(indices.iter().flatten()) {
            let (reads, writes) = waits(*index);
            *subject = links[*index].doze(reads, writes);
        }
        let ready = count == 0 || is_ready(links) || wait(&mut subjects[..count], Some(call.deadline));
        for index in indices.iter().flatten() {
            links[*index].rise();
        }
        if ready {
            return Ok(());
        }
        let peer = taking
            .map(|taking| taking.transfer.peer)
            .or(sending.map(|sending| sending.transfer.peer))
            .unwrap_or(0);
        Err(BackendError::new(DistErrorKind::Timeout, format!("timed out waiting for rank {peer}")))
    }
}

/// Lets a rank that expects nothing from this one know which call this one is in, if the connection takes it.
fn send_op(call: &ActiveExchange, link: &mut PeerLink) {
    if link.can_put() && link.put([&bytes(&call.head), &[]]).is_ok() {
        // The peer finds out by itself otherwise, later.
        let _ = link.flush();
    }
}

fn bytes(words: &[i64; HEAD_WORDS]) -> [u8; HEAD] {
    let mut bytes = [0; HEAD];
    for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
    bytes
}

struct TransferSender<'a> {
    index: usize,
    transfer: &'a StepTransfer,
    /// Bytes of head and data that are in records.
    put: usize,
}

impl TransferSender<'_> {
    fn whole(&self) -> usize {
        HEAD + self.transfer.range.len()
    }

    fn is_done(&self, links: &[PeerLink]) -> bool {
        self.put == self.whole() && links[self.index].is_flushed()
    }

    /// What must not change yet.
    fn unsent(&self) -> Range<usize> {
        self.transfer.range.start + self.put.saturating_sub(HEAD)..self.transfer.range.end
    }

    fn advance(
        &mut self,
        call: &ActiveExchange,
        links: &mut [PeerLink],
        data: &[u8],
    ) -> Result<bool, BackendError> {
        let link = &mut links[self.index];
        let puts = self.put < self.whole() && link.can_put();
        if puts {
            let head = bytes(&call.head);
            let head = if self.put == 0 { &head[..] } else { &[] };
            let unsent = &data[self.unsent()];
            let piece = &unsent[..unsent.len().min(link.most() - head.len())];
            link.put([head, piece])?;
            self.put += head.len() + piece.len();
        }
        Ok(link.flush()? || puts)
    }
}

struct TransferReceiver<'a> {
    index: usize,
    transfer: &'a StepTransfer,
    mode: ReceiveMode,
    /// Bytes of head and data that have been taken.
    got: usize,
}

impl TransferReceiver<'_> {
    fn is_done(&self) -> bool {
        self.got == HEAD + self.transfer.range.len()
    }

    fn advance(
        &mut self,
        call: &ActiveExchange,
        rank: u32,
        links: &mut [PeerLink],
        data: &mut [u8],
        unsent: &Range<usize>,
    ) -> Result<bool, BackendError> {
        let link = &mut links[self.index];
        let peer = self.transfer.peer;
        let filled = link.fill()?;
        let Some(record) = link.record()? else { return Ok(filled) };
        let piece = if self.got == 0 {
            let Some((head, piece)) = record.split_first_chunk::<HEAD>() else {
                return Err(lost(peer, "protocol mismatch: it may run another build"));
            };
            agree(&call.head, head, peer)?;
            piece
        } else {
            record
        };
        let at = self.transfer.range.start + self.got.saturating_sub(HEAD);
        let into = at..at + piece.len();
        if into.end > self.transfer.range.end || (self.got > 0 && piece.is_empty()) {
            return Err(lost(peer, "it sent an unexpected amount of data"));
        }
        if into.start < unsent.end && unsent.start < into.end {
            return Ok(filled);
        }
        match self.mode {
            ReceiveMode::Copy => data[into].copy_from_slice(piece),
            ReceiveMode::Combine(reduction) => reduction.combine(&mut data[into], piece, rank < peer),
        }
        self.got = self.got.max(HEAD) + piece.len();
        link.consume();
        Ok(true)
    }
}

fn agree(mine: &[i64; HEAD_WORDS], theirs: &[u8; HEAD], peer: u32) -> Result<(), BackendError> {
    let mut words = [0; HEAD_WORDS];
    for (to, from) in words.iter_mut().zip(theirs.as_chunks::<8>().0) {
        *to = i64::from_le_bytes(*from);
    }
    if words == *mine {
        return Ok(());
    }
    // `ExitMessage::is_mismatch` in core matches these words: a rank that ends with them need not be the one that
    // differs.
    let text = format!(
        "another call came from rank {peer}: this rank is in {}, but rank {peer} in {}",
        describe(mine),
        describe(&words)
    );
    Err(BackendError::new(DistErrorKind::Mismatch, text))
}

/// The type of the elements, and how they are combined.
#[derive(Clone, Copy)]
pub(crate) struct Reduction {
    pub op: ReduceKernel,
    pub kind: Kind,
}

impl Reduction {
    /// Whether this file implements it.
    pub(crate) fn is_known(self) -> bool {
        matches!(self.kind, Kind::Float | Kind::Double | Kind::Int64 | Kind::Uint8 | Kind::Int8)
    }

    /// Combines `other` into `own`; `lower`: `own` is the lower rank's value.
    pub(crate) fn combine(self, own: &mut [u8], other: &[u8], lower: bool) {
        match (self.kind, self.op) {
            (Kind::Float, ReduceKernel::Sum) => {
                each(own, other, lower, f32::from_ne_bytes, f32::to_ne_bytes, |a, b| a + b)
            }
            (Kind::Float, ReduceKernel::Min) => {
                each(own, other, lower, f32::from_ne_bytes, f32::to_ne_bytes, |a, b| {
                    if a < b || a.is_nan() { a } else { b }
                })
            }
            (Kind::Float, ReduceKernel::Max) => {
                each(own, other, lower, f32::from_ne_bytes, f32::to_ne_bytes, |a, b| {
                    if a > b || a.is_nan() { a } else { b }
                })
            }
            (Kind::Double, ReduceKernel::Sum) => {
                each(own, other, lower, f64::from_ne_bytes, f64::to_ne_bytes, |a, b| a + b)
            }
            (Kind::Double, ReduceKernel::Min) => {
                each(own, other, lower, f64::from_ne_bytes, f64::to_ne_bytes, |a, b| {
                    if a < b || a.is_nan() { a } else { b }
                })
            }
            (Kind::Double, ReduceKernel::Max) => {
                each(own, other, lower, f64::from_ne_bytes, f64::to_ne_bytes, |a, b| {
                    if a > b || a.is_nan() { a } else { b }
                })
            }
            (Kind::Uint8, ReduceKernel::Sum) => {
                each(own, other, lower, u8::from_ne_bytes, u8::to_ne_bytes, u8::wrapping_add)
            }
            (Kind::Uint8, ReduceKernel::Min) => {
                each(own, other, lower, u8::from_ne_bytes, u8::to_ne_bytes, Ord::min)
            }
            (Kind::Uint8, ReduceKernel::Max) => {
                each(own, other, lower, u8::from_ne_bytes, u8::to_ne_bytes, Ord::max)
            }
            (Kind::Int8, ReduceKernel::Sum) => {
                each(own, other, lower, i8::from_ne_bytes, i8::to_ne_bytes, i8::wrapping_add)
            }
            (Kind::Int8, ReduceKernel::Min) => {
                each(own, other, lower, i8::from_ne_bytes, i8::to_ne_bytes, Ord::min)
            }
            (Kind::Int8, ReduceKernel::Max) => {
                each(own, other, lower, i8::from_ne_bytes, i8::to_ne_bytes, Ord::max)
            }
            (_, ReduceKernel::Sum) => {
                each(own, other, lower, i64::from_ne_bytes, i64::to_ne_bytes, i64::wrapping_add)
            }
            (_, ReduceKernel::Min) => each(own, other, lower, i64::from_ne_bytes, i64::to_ne_bytes, Ord::min),
            (_, ReduceKernel::Max) => each(own, other, lower, i64::from_ne_bytes, i64::to_ne_bytes, Ord::max),
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
