//! Collectives of bytes on the calling thread, over direct TCP connections.
//!
//! A library such as Gloo hands each operation to one thread and each message to another. For the gradients
//! of a small network that takes longer than the transfer. Here the caller sends, receives and adds.
//!
//! Small all-reduces, broadcasts and gathers use the edges of a hypercube (recursive doubling, binomial
//! trees). Where the world size is not a power of two, each extra rank has one partner in the cube (R.
//! Thakur, R. Rabenseifner, W. Gropp, Optimization of Collective Communication Operations in MPICH, 2005,
//! section 4.5). Large all-reduces go round a ring, where each rank sends each number about twice, whatever
//! the world size (P. Patarasuk, X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of
//! workstations, 2009).
//!
//! Invariant DIRECT-1: all ranks end an all-reduce with the same bits.

use super::exchange::{ActiveExchange, HEAD_WORDS, PeerConnections, ReceiveMode, Reduction, StepTransfer};
use crate::distributed::error::BackendError;
use crate::distributed::transport::{CollectiveNote, WORDS};
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
pub(crate) fn partners(rank: u32, world_size: u32) -> Vec<u32> {
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
pub(crate) struct CpuCollectives {
    rank: u32,
    world_size: u32,
    /// Ranks in the cube.
    core: u32,
    exchanges: PeerConnections,
}

impl CpuCollectives {
    pub(crate) fn new(rank: u32, world_size: u32, exchanges: PeerConnections) -> CpuCollectives {
        CpuCollectives { rank, world_size, core: doubled(world_size), exchanges }
    }

    /// As [`PeerConnections::set_spins`].
    pub(crate) fn set_spins(&mut self, spins: bool) {
        self.exchanges.set_spins(spins);
    }

    /// As [`PeerConnections::counts`].
    pub(crate) fn counts(&self) -> (usize, usize) {
        self.exchanges.counts()
    }

    /// Reduces `data` in place on all ranks.
    pub(crate) fn all_reduce(
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
    pub(crate) fn barrier(&self, note: &CollectiveNote, limit_ms: i64) -> Result<(), BackendError> {
        let reduction = Reduction { op: crate::distributed::ffi::ReduceKernel::Sum, kind: tch::Kind::Uint8 };
        self.doubling(&call(note, 0, limit_ms), &mut [], reduction)
    }

    /// Copies the bytes of `root` over those of all ranks.
    pub(crate) fn broadcast(
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
    pub(crate) fn all_gather(
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
                let to = StepTransfer { peer, range: blocks(mine + offset, mine + offset + width) };
                let from = StepTransfer { peer, range: blocks(theirs + offset, theirs + offset + width) };
                if offset == 0 || core < self.world_size {
                    self.exchanges.exchange(&call, data, Some(&to), Some((&from, ReceiveMode::Copy)))?;
                }
            }
        }
        match self.extra() {
            Some(extra) => self.send(&call, data, extra, 0..data.len()),
            None => Ok(()),
        }
    }

    fn doubling(
        &self,
        call: &ActiveExchange,
        data: &mut [u8],
        reduction: Reduction,
    ) -> Result<(), BackendError> {
        let whole = 0..data.len();
        if self.rank >= self.core {
            self.send(call, data, self.rank - self.core, whole.clone())?;
            return self.take(call, data, self.rank - self.core, whole);
        }
        let combine = ReceiveMode::Combine(reduction);
        if let Some(peer) = self.extra() {
            let leg = StepTransfer { peer, range: whole.clone() };
            self.exchanges.exchange(call, data, None, Some((&leg, combine)))?;
        }
        for bit in 0..self.core.ilog2() {
            let leg = StepTransfer { peer: self.rank ^ (1 << bit), range: whole.clone() };
            self.exchanges.exchange(call, data, Some(&leg), Some((&leg, combine)))?;
        }
        match self.extra() {
            Some(extra) => self.send(call, data, extra, whole),
            None => Ok(()),
        }
    }

    /// Each rank combines one part with all others' on its way round, then the parts go round once more.
    fn round_the_ring(
        &self,
        call: &ActiveExchange,
        data: &mut [u8],
        reduction: Reduction,
    ) -> Result<(), BackendError> {
        let n = self.world_size;
        let size = reduction.kind.elt_size_in_bytes();
        let count = data.len() / size;
        let part = |number: u32| {
            let edge = |number: u32| count * number as usize / n as usize * size;
            let number = number % n;
            edge(number)..edge(number + 1)
        };
        let (next, previous) = ((self.rank + 1) % n, (self.rank + n - 1) % n);
        for (first, take) in
            [(self.rank, ReceiveMode::Combine(reduction)), (self.rank + 1, ReceiveMode::Copy)]
        {
            for step in 0..n - 1 {
                let to = StepTransfer { peer: next, range: part(first + n - step) };
                let from = StepTransfer { peer: previous, range: part(first + n - step + n - 1) };
                self.exchanges.exchange(call, data, Some(&to), Some((&from, take)))?;
            }
        }
        Ok(())
    }

    /// The partner outside the cube.
    fn extra(&self) -> Option<u32> {
        Some(self.rank + self.core).filter(|extra| *extra < self.world_size)
    }

    fn send(
        &self,
        call: &ActiveExchange,
        data: &mut [u8],
        peer: u32,
        range: Range<usize>,
    ) -> Result<(), BackendError> {
        self.exchanges.exchange(call, data, Some(&StepTransfer { peer, range }), None)
    }

    fn take(
        &self,
        call: &ActiveExchange,
        data: &mut [u8],
        peer: u32,
        range: Range<usize>,
    ) -> Result<(), BackendError> {
        self.exchanges.exchange(call, data, None, Some((&StepTransfer { peer, range }, ReceiveMode::Copy)))
    }
}

fn call(note: &CollectiveNote, how: i64, limit_ms: i64) -> ActiveExchange {
    let mut head = [0; HEAD_WORDS];
    head[..WORDS].copy_from_slice(&note.words());
    head[WORDS] = how;
    ActiveExchange { head, deadline: Instant::now() + Duration::from_millis(limit_ms.max(1).cast_unsigned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distributed::channel::{Channel, Seal, SessionKeys};
    use crate::distributed::error::DistErrorKind;
    use crate::distributed::ffi::ReduceKernel;
    use crate::distributed::tcp::exchange::RECORD;
    use crate::distributed::tcp::shared::{self, PeerLink};
    use rankdeck_proto::status_page::{CollectiveOp, Dtype, tag};
    use std::net::{TcpListener, TcpStream};
    use tch::Kind;

    fn note(seq: u64, name: &str, count: usize, dtype: Dtype) -> CollectiveNote {
        CollectiveNote { seq, op: CollectiveOp::AllReduce, tag: tag(name), count, dtype }
    }

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    fn keys(sends: u8, receives: u8, sealed: bool) -> SessionKeys {
        let seal = |byte| sealed.then(|| Seal::new(&[byte; 32]).unwrap());
        SessionKeys { sends: seal(sends), receives: seal(receives) }
    }

    /// How the ranks of a world are connected.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Links {
        Sealed,
        Open,
        Shared,
        /// Two hosts, ranks 0 and 1 on the first.
        TwoHosts,
    }

    const LINKS: [Links; 3] = [Links::Sealed, Links::Shared, Links::TwoHosts];

    fn world(world_size: u32) -> Vec<CpuCollectives> {
        world_of(world_size, Links::Sealed)
    }

    fn world_of(world_size: u32, links: Links) -> Vec<CpuCollectives> {
        let sealed = links != Links::Open;
        let mut channels: Vec<Vec<Channel>> = (0..world_size).map(|_| Vec::new()).collect();
        for rank in 0..world_size {
            for peer in partners(rank, world_size).into_iter().filter(|peer| *peer > rank) {
                let (one, other) = pair();
                channels[rank as usize].push(Channel::new(peer, one, keys(1, 2, sealed), RECORD).unwrap());
                channels[peer as usize].push(Channel::new(rank, other, keys(2, 1, sealed), RECORD).unwrap());
            }
        }
        let place = |rank: u32| match links {
            Links::Sealed | Links::Open => None,
            Links::Shared => shared::place(),
            Links::TwoHosts if rank < 2 => shared::place(),
            Links::TwoHosts => shared::place().map(|mut place| {
                place[0] ^= 1;
                place
            }),
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..world_size)
                .zip(channels)
                .map(|(rank, channels)| {
                    scope.spawn(move || {
                        let links = match links {
                            Links::Sealed | Links::Open => {
                                channels.into_iter().map(PeerLink::Stream).collect()
                            }
                            _ => shared::share(rank, channels, place(rank), deadline).unwrap(),
                        };
                        let mut peers = PeerConnections::new(rank, links);
                        peers.set_spins(rank % 2 == 0);
                        CpuCollectives::new(rank, world_size, peers)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn on_all<T: Send>(
        direct: Vec<CpuCollectives>,
        body: impl Fn(u32, CpuCollectives) -> T + Sync,
    ) -> Vec<T> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(direct)
                .map(|(rank, direct)| {
                    scope.spawn({
                        let body = &body;
                        move || body(rank, direct)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    const SUM: Reduction = Reduction { op: ReduceKernel::Sum, kind: Kind::Float };

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_ne_bytes()).collect()
    }

    fn floats(bytes: &[u8]) -> Vec<f32> {
        bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
    }

    #[test]
    fn partners_are_mutual_and_connect_all() {
        for world_size in 1..=33 {
            for rank in 0..world_size {
                for peer in partners(rank, world_size) {
                    assert!(peer < world_size && peer != rank);
                    assert!(partners(peer, world_size).contains(&rank), "{rank} and {peer} of {world_size}");
                }
            }
        }
        assert!(partners(0, 1).is_empty());
        assert_eq!(partners(5, 6), [0, 1, 4]);
    }

    #[test]
    fn sums_are_exact_and_bit_equal_on_every_world_size() {
        for (world_size, links) in (1..=9).flat_map(|size| LINKS.map(|links| (size, links))) {
            for length in [0, 1, 7, 1000, 300_000] {
                let results = on_all(world_of(world_size, links), |rank, direct| {
                    let mut last = Vec::new();
                    // Several in a row: the next message may arrive while this one is read.
                    for seq in 1..=3 {
                        let mut data =
                            bytes(&(0..length).map(|i| (i % 13) as f32 + rank as f32).collect::<Vec<_>>());
                        direct
                            .all_reduce(&note(seq, "grad", length, Dtype::F32), &mut data, SUM, 60_000)
                            .unwrap();
                        last = data;
                    }
                    last
                });
                let ranks = world_size as f32;
                let expected: Vec<f32> =
                    (0..length).map(|i| (i % 13) as f32 * ranks + ranks * (ranks - 1.0) / 2.0).collect();
                assert!(
                    results.iter().all(|result| floats(result) == expected),
                    "{world_size} ranks, {links:?}, {length} numbers"
                );
            }
        }
    }

    /// DIRECT-1, by recursive doubling and round the ring.
    #[test]
    fn direct_1_rounded_sums_are_bit_equal() {
        for (world_size, length) in [(2, 999), (3, 999), (5, 999), (8, 999), (3, 100_003), (4, 99_999)] {
            let number = |i: usize, rank: u32| ((i * 7919 + rank as usize * 104_729) as f32).sin() / 3.0;
            let results = LINKS.map(|links| {
                on_all(world_of(world_size, links), |rank, direct| {
                    let mut data = bytes(&(0..length).map(|i| number(i, rank)).collect::<Vec<_>>());
                    direct.all_reduce(&note(1, "grad", length, Dtype::F32), &mut data, SUM, 60_000).unwrap();
                    data
                })
            });
            let results = results.concat();
            assert!(results.windows(2).all(|two| two[0] == two[1]), "{world_size}");
        }
    }

    #[test]
    fn smallest_and_largest_of_integers_and_doubles() {
        let reduce = |op, kind, dtype, own: fn(u32) -> [u8; 8]| {
            on_all(world(3), move |rank, direct| {
                let mut data = own(rank).to_vec();
                direct
                    .all_reduce(&note(1, "x", 1, dtype), &mut data, Reduction { op, kind }, 60_000)
                    .unwrap();
                data
            })
        };
        let integers = |rank: u32| (i64::MAX - 5 + i64::from(rank)).to_ne_bytes();
        for (op, expected) in [(ReduceKernel::Min, i64::MAX - 5), (ReduceKernel::Max, i64::MAX - 3)] {
            assert!(
                reduce(op, Kind::Int64, Dtype::I64, integers)
                    .iter()
                    .all(|data| *data == expected.to_ne_bytes())
            );
        }
        let doubles = |rank: u32| (if rank == 1 { f64::NAN } else { f64::from(rank) }).to_ne_bytes();
        for data in reduce(ReduceKernel::Min, Kind::Double, Dtype::F64, doubles) {
            assert!(f64::from_ne_bytes(data.try_into().unwrap()).is_nan(), "what is not a number stays so");
        }
    }

    #[test]
    fn broadcast_from_every_root_reaches_all_ranks() {
        for (world_size, links) in (1..=9).flat_map(|size| LINKS.map(|links| (size, links))) {
            for length in [0, 5, 200_000] {
                let results = on_all(world_of(world_size, links), |rank, direct| {
                    (0..world_size)
                        .map(|root| {
                            let mut data = vec![rank as u8; length];
                            let note = note(u64::from(root), "weights", length, Dtype::U8);
                            direct.broadcast(&note, &mut data, root, 60_000).unwrap();
                            data
                        })
                        .collect::<Vec<_>>()
                });
                for result in results {
                    for (root, data) in result.iter().enumerate() {
                        assert_eq!(*data, vec![root as u8; length], "{world_size} ranks, root {root}");
                    }
                }
            }
        }
    }

    /// The last rank that needs a peer finds what it sent, although that peer is gone.
    #[test]
    fn data_sent_before_a_rank_left_is_received() {
        for links in LINKS {
            let mut ranks = world_of(2, links);
            let (second, first) = (ranks.pop().unwrap(), ranks.pop().unwrap());
            for seq in 0..3 {
                first.broadcast(&note(seq, "weights", 9, Dtype::U8), &mut [7; 9], 0, 60_000).unwrap();
            }
            drop(first);
            for seq in 0..3 {
                let mut data = [0; 9];
                second.broadcast(&note(seq, "weights", 9, Dtype::U8), &mut data, 0, 60_000).unwrap();
                assert_eq!(data, [7; 9]);
            }
        }
    }

    #[test]
    fn gathers_hold_every_ranks_block_in_order() {
        for (world_size, links) in (1..=9).flat_map(|size| LINKS.map(|links| (size, links))) {
            for block in [0, 3, 70_000] {
                let results = on_all(world_of(world_size, links), |rank, direct| {
                    let mut data = vec![0; block * world_size as usize];
                    data[rank as usize * block..][..block].fill(rank as u8 + 1);
                    direct.all_gather(&note(1, "seeds", block, Dtype::U8), &mut data, 60_000).unwrap();
                    direct.barrier(&note(2, "end", 0, Dtype::U8), 60_000).unwrap();
                    data
                });
                let expected: Vec<u8> =
                    (0..world_size).flat_map(|rank| vec![rank as u8 + 1; block]).collect();
                assert!(
                    results.iter().all(|result| *result == expected),
                    "{world_size} ranks of {block} bytes"
                );
            }
        }
    }

    #[test]
    fn bytes_are_reduced_as_numbers_of_one_byte() {
        for (kind, op, expected) in [
            (Kind::Uint8, ReduceKernel::Max, 255),
            (Kind::Int8, ReduceKernel::Max, 1),
            (Kind::Uint8, ReduceKernel::Sum, 0),
        ] {
            let results = on_all(world(2), |rank, direct| {
                let mut data = [if rank == 0 { 255 } else { 1 }; 5];
                let note = note(1, "flags", 5, Dtype::U8);
                direct.all_reduce(&note, &mut data, Reduction { op, kind }, 60_000).unwrap();
                data
            });
            assert_eq!(results, [[expected; 5]; 2], "{kind:?}");
        }
    }

    #[test]
    fn unsealed_collectives_give_the_same_results() {
        for world_size in [2, 3] {
            let results = on_all(world_of(world_size, Links::Open), |rank, direct| {
                let mut data = bytes(&vec![rank as f32; 80_000]);
                direct.all_reduce(&note(1, "grad", 80_000, Dtype::F32), &mut data, SUM, 60_000).unwrap();
                floats(&data)
            });
            let sum = (world_size * (world_size - 1) / 2) as f32;
            assert!(results.iter().all(|result| *result == vec![sum; 80_000]));
        }
    }

    /// EXCHANGE-1.
    #[test]
    fn different_calls_are_named_on_both_sides() {
        for links in LINKS {
            let texts = on_all(world_of(2, links), |rank, direct| {
                let (name, length) = if rank == 0 { ("grad", 17_500) } else { ("values", 3) };
                let mut data = vec![0; length * 4];
                let failure = direct
                    .all_reduce(&note(4, name, length, Dtype::F32), &mut data, SUM, 60_000)
                    .unwrap_err();
                assert_eq!(failure.kind, DistErrorKind::Mismatch);
                failure.text
            });
            assert!(
                texts.iter().all(|text| text.contains("all_reduce \"grad\" of 17500 f32 (sum)")),
                "{texts:?}"
            );
            assert!(
                texts.iter().all(|text| text.contains("all_reduce \"values\" of 3 f32 (sum)")),
                "{texts:?}"
            );
            assert!(texts[0].contains("but rank 1 in") && texts[1].contains("but rank 0 in"), "{texts:?}");
        }
    }

    #[test]
    fn different_reduction_is_a_mismatch() {
        let failed = on_all(world(2), |rank, direct| {
            let op = if rank == 0 { ReduceKernel::Sum } else { ReduceKernel::Max };
            let reduction = Reduction { op, kind: Kind::Float };
            direct.all_reduce(&note(1, "x", 1, Dtype::F32), &mut [0; 4], reduction, 60_000).is_err()
        });
        assert_eq!(failed, [true, true]);
    }

    /// EXCHANGE-1: a rank that only takes lets the other know where it is.
    #[test]
    fn broadcast_receiver_reports_mismatch_to_reducer() {
        let texts = on_all(world(2), |rank, direct| {
            let failure = if rank == 0 {
                direct.all_reduce(&note(2, "grad", 1, Dtype::F32), &mut [0; 4], SUM, 60_000)
            } else {
                direct.broadcast(&note(2, "weights", 4, Dtype::U8), &mut [0; 4], 0, 60_000)
            };
            failure.unwrap_err().text
        });
        for text in texts {
            assert!(text.contains("all_reduce \"grad\" of 1 f32 (sum)"), "{text}");
            assert!(text.contains("\"weights\" of 4 u8"), "{text}");
        }
    }

    /// EXCHANGE-2.
    #[test]
    fn lost_or_silent_peer_is_named() {
        for links in LINKS {
            let mut direct = world_of(2, links);
            drop(direct.pop());
            let all_reduce = |direct: &CpuCollectives, limit_ms| {
                direct
                    .all_reduce(&note(1, "grad", 1000, Dtype::F32), &mut [0; 4000], SUM, limit_ms)
                    .unwrap_err()
            };
            let failure = all_reduce(&direct[0], 60_000);
            assert!(
                failure.kind == DistErrorKind::Connection && failure.text.contains("rank 1"),
                "{failure:?}"
            );
            let direct = world_of(2, links);
            let failure = all_reduce(&direct[0], 30);
            assert!(failure.kind == DistErrorKind::Timeout && failure.text.contains("rank 1"), "{failure:?}");
        }
    }
}
