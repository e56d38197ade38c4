//! One step of a collective: sends bytes to one peer and receives bytes from one, at the same time.
//!
//! Invariants:
//! - EXCHANGE-1: every message begins with its sender's call. Data of another collective are not used, and
//!   the error names the sender.
//! - EXCHANGE-2: no wait exceeds its deadline, and the error names the rank that did not answer.
//! - Both ends of an exchange combine (value of the lower rank, value of the higher rank), so that both end
//!   with the same bits.

use crate::distributed::channel::{Channel, lost, wait};
use crate::distributed::error::{BackendError, DistErrorKind};
use crate::distributed::ffi::ReduceKernel;
use crate::distributed::transport::{WORDS, describe};
use std::cell::RefCell;
use std::ops::Range;
use std::time::Instant;
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
    channels: RefCell<Vec<Channel>>,
}

/// One direction of a step.
pub(crate) struct StepTransfer {
    pub peer: u32,
    pub range: Range<usize>,
}

impl PeerConnections {
    pub(crate) fn new(rank: u32, channels: Vec<Channel>) -> PeerConnections {
        PeerConnections { rank, channels: RefCell::new(channels) }
    }

    /// Sends `to` and takes `from`, which may be the same bytes of `data` or other ones.
    pub(crate) fn exchange(
        &self,
        call: &ActiveExchange,
        data: &mut [u8],
        to: Option<&StepTransfer>,
        from: Option<(&StepTransfer, ReceiveMode)>,
    ) -> Result<(), BackendError> {
        let mut channels = self.channels.borrow_mut();
        let index = |peer: u32| {
            channels
                .iter()
                .position(|channel| channel.peer == peer)
                .ok_or_else(|| lost(peer, "not connected"))
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
        let channels = channels.as_mut_slice();
        loop {
            let mut moved = false;
            let mut flushed = true;
            if let Some(sending) = &mut sending {
                moved |= sending.advance(call, channels, data)?;
                flushed = sending.is_done(channels);
            }
            if let Some(taking) = &mut taking
                && !taking.is_done()
            {
                let unsent = sending.as_ref().map_or(0..0, TransferSender::unsent);
                match taking.advance(call, self.rank, channels, data, &unsent) {
                    Ok(took) => moved |= took,
                    Err(failure) => {
                        if failure.kind == DistErrorKind::Mismatch && sending.is_none() {
                            send_op(call, &mut channels[taking.index]);
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
                sleep(call, channels, sending.as_ref(), taking.as_ref())?;
            }
        }
    }
}

/// Lets a rank that expects nothing from this one know which call this one is in, if the socket takes it.
fn send_op(call: &ActiveExchange, channel: &mut Channel) {
    if channel.is_flushed() && channel.put([&bytes(&call.head), &[]]).is_ok() {
        // The peer finds out by itself otherwise, later.
        let _ = channel.flush();
    }
}

fn bytes(words: &[i64; HEAD_WORDS]) -> [u8; HEAD] {
    let mut bytes = [0; HEAD];
    for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
    bytes
}

/// Sleeps until a transfer can continue.
fn sleep(
    call: &ActiveExchange,
    channels: &[Channel],
    sending: Option<&TransferSender<'_>>,
    taking: Option<&TransferReceiver<'_>>,
) -> Result<(), BackendError> {
    let taking = taking.filter(|taking| !taking.is_done());
    let sending = sending.filter(|sending| !sending.is_done(channels));
    let ready = match (sending, taking) {
        (Some(to), Some(from)) if to.index != from.index => {
            let subjects = &mut [channels[to.index].interest(false), channels[from.index].interest(true)];
            wait(subjects, Some(call.deadline))
        }
        (Some(same), other) => {
            wait(&mut [channels[same.index].interest(other.is_some())], Some(call.deadline))
        }
        (None, Some(from)) => wait(&mut [channels[from.index].interest(true)], Some(call.deadline)),
        (None, None) => true,
    };
    if ready {
        return Ok(());
    }
    let peer = taking
        .map(|taking| taking.transfer.peer)
        .or(sending.map(|sending| sending.transfer.peer))
        .unwrap_or(0);
    Err(BackendError::new(DistErrorKind::Timeout, format!("timed out waiting for rank {peer}")))
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

    fn is_done(&self, channels: &[Channel]) -> bool {
        self.put == self.whole() && channels[self.index].is_flushed()
    }

    /// What must not change yet.
    fn unsent(&self) -> Range<usize> {
        self.transfer.range.start + self.put.saturating_sub(HEAD)..self.transfer.range.end
    }

    fn advance(
        &mut self,
        call: &ActiveExchange,
        channels: &mut [Channel],
        data: &[u8],
    ) -> Result<bool, BackendError> {
        let channel = &mut channels[self.index];
        if channel.is_flushed() && self.put < self.whole() {
            let head = bytes(&call.head);
            let head = if self.put == 0 { &head[..] } else { &[] };
            let unsent = &data[self.unsent()];
            let piece = &unsent[..unsent.len().min(RECORD - head.len())];
            channel.put([head, piece])?;
            self.put += head.len() + piece.len();
        }
        channel.flush()
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
        channels: &mut [Channel],
        data: &mut [u8],
        unsent: &Range<usize>,
    ) -> Result<bool, BackendError> {
        let channel = &mut channels[self.index];
        let peer = self.transfer.peer;
        let filled = channel.fill()?;
        let Some(record) = channel.record()? else { return Ok(filled) };
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
        channel.consume();
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
