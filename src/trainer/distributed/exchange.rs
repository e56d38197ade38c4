//! One step of a collective: a rank sends bytes to one peer and takes bytes from one, at the same time.
//!
//! Owner: direct collectives. Invariants:
//! - EXCHANGE-1: every message begins with its sender's call. Data of another collective are not used, and
//!   the error names the sender.
//! - EXCHANGE-2: no wait exceeds its deadline, and the error names the rank that did not answer.
//! - Both ends of an exchange combine (value of the lower rank, value of the higher rank), so that both end
//!   with the same bits.

use super::channel::{Channel, lost, wait};
use super::collective::describe;
use super::error::{BackendError, DistErrorKind};
use super::reduction::Reduction;
use std::cell::RefCell;
use std::ops::Range;
use std::time::Instant;

/// Words that a message begins with: the call, and how it combines.
pub(super) const HEAD_WORDS: usize = super::collective::WORDS + 1;
const HEAD: usize = 8 * HEAD_WORDS;
/// Most bytes of a record: one is in the cache while it is sealed, opened and combined.
pub(super) const RECORD: usize = 64 << 10;

/// What is done with the bytes that arrive.
#[derive(Clone, Copy)]
pub(super) enum TakeMode {
    /// They replace one's own.
    Copy,
    /// They are combined with one's own.
    Combine(Reduction),
}

/// A collective that is under way.
pub(super) struct Call {
    pub head: [i64; HEAD_WORDS],
    pub deadline: Instant,
}

/// One rank's connections.
pub(super) struct Exchanges {
    rank: u32,
    channels: RefCell<Vec<Channel>>,
}

/// One direction of a step.
pub(super) struct Leg {
    pub peer: u32,
    pub range: Range<usize>,
}

impl Exchanges {
    pub(super) fn new(rank: u32, channels: Vec<Channel>) -> Exchanges {
        Exchanges { rank, channels: RefCell::new(channels) }
    }

    /// Sends `to` and takes `from`, which may be the same bytes of `data` or other ones.
    pub(super) fn exchange(
        &self,
        call: &Call,
        data: &mut [u8],
        to: Option<&Leg>,
        from: Option<(&Leg, TakeMode)>,
    ) -> Result<(), BackendError> {
        let mut channels = self.channels.borrow_mut();
        let index = |peer: u32| {
            channels
                .iter()
                .position(|channel| channel.peer == peer)
                .ok_or_else(|| lost(peer, "there is no connection"))
        };
        let mut sending = match to {
            None => None,
            Some(leg) => Some(LegSender { index: index(leg.peer)?, leg, put: 0 }),
        };
        let mut taking = match from {
            None => None,
            Some((leg, take)) => Some(LegReceiver { index: index(leg.peer)?, leg, take, got: 0 }),
        };
        let channels = channels.as_mut_slice();
        loop {
            let mut moved = false;
            let mut flushed = true;
            if let Some(sending) = &mut sending {
                moved |= sending.go_on(call, channels, data)?;
                flushed = sending.is_done(channels);
            }
            if let Some(taking) = &mut taking
                && !taking.is_done()
            {
                let unsent = sending.as_ref().map_or(0..0, LegSender::unsent);
                match taking.go_on(call, self.rank, channels, data, &unsent) {
                    Ok(took) => moved |= took,
                    Err(failure) => {
                        if failure.kind == DistErrorKind::Mismatch && sending.is_none() {
                            tell(call, &mut channels[taking.index]);
                        }
                        return Err(failure);
                    }
                }
            }
            let taken = taking.as_ref().is_none_or(LegReceiver::is_done);
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
fn tell(call: &Call, channel: &mut Channel) {
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

/// Sleeps until something can go on.
fn sleep(
    call: &Call,
    channels: &[Channel],
    sending: Option<&LegSender<'_>>,
    taking: Option<&LegReceiver<'_>>,
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
    let peer = taking.map(|taking| taking.leg.peer).or(sending.map(|sending| sending.leg.peer)).unwrap_or(0);
    Err(BackendError::new(DistErrorKind::Timeout, format!("timed out waiting for rank {peer}")))
}

struct LegSender<'a> {
    index: usize,
    leg: &'a Leg,
    /// Bytes of head and data that are in records.
    put: usize,
}

impl LegSender<'_> {
    fn whole(&self) -> usize {
        HEAD + self.leg.range.len()
    }

    fn is_done(&self, channels: &[Channel]) -> bool {
        self.put == self.whole() && channels[self.index].is_flushed()
    }

    /// What must not change yet.
    fn unsent(&self) -> Range<usize> {
        self.leg.range.start + self.put.saturating_sub(HEAD)..self.leg.range.end
    }

    fn go_on(&mut self, call: &Call, channels: &mut [Channel], data: &[u8]) -> Result<bool, BackendError> {
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

struct LegReceiver<'a> {
    index: usize,
    leg: &'a Leg,
    take: TakeMode,
    /// Bytes of head and data that have been taken.
    got: usize,
}

impl LegReceiver<'_> {
    fn is_done(&self) -> bool {
        self.got == HEAD + self.leg.range.len()
    }

    fn go_on(
        &mut self,
        call: &Call,
        rank: u32,
        channels: &mut [Channel],
        data: &mut [u8],
        unsent: &Range<usize>,
    ) -> Result<bool, BackendError> {
        let channel = &mut channels[self.index];
        let peer = self.leg.peer;
        let filled = channel.fill()?;
        let Some(record) = channel.record()? else { return Ok(filled) };
        let piece = if self.got == 0 {
            let Some((head, piece)) = record.split_first_chunk::<HEAD>() else {
                return Err(lost(peer, "it speaks another language: another build?"));
            };
            agree(&call.head, head, peer)?;
            piece
        } else {
            record
        };
        let at = self.leg.range.start + self.got.saturating_sub(HEAD);
        let into = at..at + piece.len();
        if into.end > self.leg.range.end || (self.got > 0 && piece.is_empty()) {
            return Err(lost(peer, "it sends another amount of data"));
        }
        if into.start < unsent.end && unsent.start < into.end {
            return Ok(filled);
        }
        match self.take {
            TakeMode::Copy => data[into].copy_from_slice(piece),
            TakeMode::Combine(reduction) => reduction.combine(&mut data[into], piece, rank < peer),
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
    // The watch knows these words (core/watch/facts.rs): a rank that ends with them need not be the one that
    // differs.
    let text = format!(
        "another call came from rank {peer}: this rank is in {}, but rank {peer} in {}",
        describe(mine),
        describe(&words)
    );
    Err(BackendError::new(DistErrorKind::Mismatch, text))
}
