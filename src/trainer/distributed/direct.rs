//! Collectives of bytes on the calling thread, over TCP connections of their own.
//!
//! Owner: the transport for CPU tensors. A library such as Gloo hands each operation to one thread and each
//! message to another. For the gradients of a small network that takes longer than the transfer. Here the
//! caller sends, receives and adds.
//!
//! Small all-reduces, broadcasts and gathers use the edges of a hypercube (recursive doubling, binomial
//! trees). Where the world size is not a power of two, each extra rank has one partner in the cube (R.
//! Thakur, R. Rabenseifner, W. Gropp, Optimization of Collective Communication Operations in MPICH, 2005,
//! section 4.5). Large all-reduces go round a ring, where each rank sends each number about twice, whatever
//! the world size (P. Patarasuk, X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of
//! workstations, 2009).
//!
//! Invariant DIRECT-1: all ranks end an all-reduce with the same bits.

use super::collective::{CollectiveNote, WORDS};
use super::error::BackendError;
use super::exchange::{Call, Exchanges, HEAD_WORDS, Leg, TakeMode};
use super::reduction::Reduction;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Largest all-reduce, in bytes, by recursive doubling among more than two ranks. It takes fewer steps than
/// the ring and sends each number once per step.
const DOUBLING_MAX: usize = 256 << 10;

/// The largest power of two that is not above `world_size`.
fn doubled(world_size: u32) -> u32 {
    1 << world_size.max(1).ilog2()
}

/// The ranks that a rank is connected with.
pub(super) fn partners(rank: u32, world_size: u32) -> Vec<u32> {
    let core = doubled(world_size);
    let mut partners = vec![(rank + 1) % world_size, (rank + world_size - 1) % world_size];
    if rank >= core {
        partners.push(rank - core);
    } else {
        partners.extend((0..core.ilog2()).map(|bit| rank ^ (1 << bit)));
        partners.extend(Some(rank + core).filter(|extra| *extra < world_size));
    }
    partners.sort_unstable();
    partners.dedup();
    partners.retain(|peer| *peer != rank);
    partners
}

/// The connections of one rank, to each of its [`partners`].
pub(super) struct DirectLinks {
    rank: u32,
    world_size: u32,
    /// Ranks in the cube.
    core: u32,
    exchanges: Exchanges,
}

impl DirectLinks {
    pub(super) fn new(rank: u32, world_size: u32, exchanges: Exchanges) -> DirectLinks {
        DirectLinks { rank, world_size, core: doubled(world_size), exchanges }
    }

    /// Reduces `data` in place on all ranks.
    pub(super) fn all_reduce(
        &self,
        note: &CollectiveNote,
        data: &mut [u8],
        reduction: Reduction,
        limit_ms: i64,
    ) -> Result<(), BackendError> {
        let call = call(note, reduction.op as i64, limit_ms);
        if self.world_size > 2 && data.len() > DOUBLING_MAX {
            self.round_the_ring(&call, data, reduction)
        } else {
            self.doubling(&call, data, reduction)
        }
    }

    /// Waits for all ranks.
    pub(super) fn barrier(&self, note: &CollectiveNote, limit_ms: i64) -> Result<(), BackendError> {
        let reduction = Reduction { op: super::ffi::RawReduce::Sum, kind: tch::Kind::Uint8 };
        self.doubling(&call(note, 0, limit_ms), &mut [], reduction)
    }

    /// Copies the bytes of `root` over those of all ranks.
    pub(super) fn broadcast(
        &self,
        note: &CollectiveNote,
        data: &mut [u8],
        root: u32,
        limit_ms: i64,
    ) -> Result<(), BackendError> {
        let call = call(note, i64::from(root), limit_ms);
        let whole = 0..data.len();
        let start = if root >= self.core { root - self.core } else { root };
        if root >= self.core {
            if self.rank == root {
                return self.send(&call, data, start, whole);
            }
            if self.rank == start {
                self.take(&call, data, root, whole.clone())?;
            }
        }
        if self.rank >= self.core {
            return self.take(&call, data, self.rank - self.core, whole);
        }
        let place = self.rank ^ start;
        for bit in 0..self.core.ilog2() {
            let peer = self.rank ^ (1 << bit);
            match place >> bit {
                0 => self.send(&call, data, peer, whole.clone())?,
                1 => self.take(&call, data, peer, whole.clone())?,
                _ => {}
            }
        }
        match self.extra().filter(|extra| *extra != root) {
            Some(extra) => self.send(&call, data, extra, whole),
            None => Ok(()),
        }
    }

    /// Fills `data`, one block per rank in rank order, of which this rank has its own.
    pub(super) fn all_gather(
        &self,
        note: &CollectiveNote,
        data: &mut [u8],
        limit_ms: i64,
    ) -> Result<(), BackendError> {
        let call = call(note, 0, limit_ms);
        let block = data.len() / self.world_size as usize;
        let blocks = |from: u32, to: u32| {
            let edge = |rank: u32| rank.min(self.world_size) as usize * block;
            edge(from)..edge(to)
        };
        let (rank, core) = (self.rank, self.core);
        if rank >= core {
            self.send(&call, data, rank - core, blocks(rank, rank + 1))?;
            return self.take(&call, data, rank - core, 0..data.len());
        }
        if let Some(extra) = self.extra() {
            self.take(&call, data, extra, blocks(extra, extra + 1))?;
        }
        for bit in 0..core.ilog2() {
            let (width, peer) = (1 << bit, rank ^ (1 << bit));
            let (mine, theirs) = (rank & !(width - 1), peer & !(width - 1));
            // The blocks of the cube's ranks, then those of their partners outside it.
            for offset in [0, core] {
                let to = Leg { peer, range: blocks(mine + offset, mine + offset + width) };
                let from = Leg { peer, range: blocks(theirs + offset, theirs + offset + width) };
                if offset == 0 || core < self.world_size {
                    self.exchanges.exchange(&call, data, Some(&to), Some((&from, TakeMode::Copy)))?;
                }
            }
        }
        match self.extra() {
            Some(extra) => self.send(&call, data, extra, 0..data.len()),
            None => Ok(()),
        }
    }

    fn doubling(&self, call: &Call, data: &mut [u8], reduction: Reduction) -> Result<(), BackendError> {
        let whole = 0..data.len();
        if self.rank >= self.core {
            self.send(call, data, self.rank - self.core, whole.clone())?;
            return self.take(call, data, self.rank - self.core, whole);
        }
        let combine = TakeMode::Combine(reduction);
        if let Some(peer) = self.extra() {
            let leg = Leg { peer, range: whole.clone() };
            self.exchanges.exchange(call, data, None, Some((&leg, combine)))?;
        }
        for bit in 0..self.core.ilog2() {
            let leg = Leg { peer: self.rank ^ (1 << bit), range: whole.clone() };
            self.exchanges.exchange(call, data, Some(&leg), Some((&leg, combine)))?;
        }
        match self.extra() {
            Some(extra) => self.send(call, data, extra, whole),
            None => Ok(()),
        }
    }

    /// Each rank combines one part with all others' on its way round, then the parts go round once more.
    fn round_the_ring(&self, call: &Call, data: &mut [u8], reduction: Reduction) -> Result<(), BackendError> {
        let n = self.world_size;
        let size = reduction.kind.elt_size_in_bytes();
        let count = data.len() / size;
        let part = |number: u32| {
            let edge = |number: u32| count * number as usize / n as usize * size;
            let number = number % n;
            edge(number)..edge(number + 1)
        };
        let (next, previous) = ((self.rank + 1) % n, (self.rank + n - 1) % n);
        for (first, take) in [(self.rank, TakeMode::Combine(reduction)), (self.rank + 1, TakeMode::Copy)] {
            for step in 0..n - 1 {
                let to = Leg { peer: next, range: part(first + n - step) };
                let from = Leg { peer: previous, range: part(first + n - step + n - 1) };
                self.exchanges.exchange(call, data, Some(&to), Some((&from, take)))?;
            }
        }
        Ok(())
    }

    /// The partner outside the cube.
    fn extra(&self) -> Option<u32> {
        Some(self.rank + self.core).filter(|extra| *extra < self.world_size)
    }

    fn send(&self, call: &Call, data: &mut [u8], peer: u32, range: Range<usize>) -> Result<(), BackendError> {
        self.exchanges.exchange(call, data, Some(&Leg { peer, range }), None)
    }

    fn take(&self, call: &Call, data: &mut [u8], peer: u32, range: Range<usize>) -> Result<(), BackendError> {
        self.exchanges.exchange(call, data, None, Some((&Leg { peer, range }, TakeMode::Copy)))
    }
}

fn call(note: &CollectiveNote, how: i64, limit_ms: i64) -> Call {
    let mut head = [0; HEAD_WORDS];
    head[..WORDS].copy_from_slice(&note.words());
    head[WORDS] = how;
    Call { head, deadline: Instant::now() + Duration::from_millis(limit_ms.max(1).cast_unsigned()) }
}

#[cfg(test)]
#[path = "direct_tests.rs"]
mod tests;
