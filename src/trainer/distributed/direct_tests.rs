//! Direct collectives between threads: exact results on every world size, equal bits, and what goes wrong.

use super::*;
use crate::distributed::channel::Channel;
use crate::distributed::error::DistErrorKind;
use crate::distributed::exchange::RECORD;
use crate::distributed::ffi::RawReduce;
use crate::distributed::greeting::SessionKeys;
use crate::distributed::seal::Seal;
use rankdeck_proto::status_page::{Dtype, Op, tag};
use std::net::{TcpListener, TcpStream};
use tch::Kind;

fn note(seq: u64, name: &str, count: usize, dtype: Dtype) -> CollectiveNote {
    CollectiveNote { seq, op: Op::AllReduce, tag: tag(name), count, dtype }
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

fn world(world_size: u32) -> Vec<DirectLinks> {
    world_of(world_size, true)
}

fn world_of(world_size: u32, sealed: bool) -> Vec<DirectLinks> {
    let mut channels: Vec<Vec<Channel>> = (0..world_size).map(|_| Vec::new()).collect();
    for rank in 0..world_size {
        for peer in partners(rank, world_size).into_iter().filter(|peer| *peer > rank) {
            let (one, other) = pair();
            channels[rank as usize].push(Channel::new(peer, one, keys(1, 2, sealed), RECORD).unwrap());
            channels[peer as usize].push(Channel::new(rank, other, keys(2, 1, sealed), RECORD).unwrap());
        }
    }
    let ranks = (0..world_size).zip(channels);
    ranks.map(|(rank, channels)| DirectLinks::new(rank, world_size, Exchanges::new(rank, channels))).collect()
}

fn on_all<T: Send>(direct: Vec<DirectLinks>, body: impl Fn(u32, DirectLinks) -> T + Sync) -> Vec<T> {
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

const SUM: Reduction = Reduction { op: RawReduce::Sum, kind: Kind::Float };

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
fn sums_are_exact_and_equal_to_the_bit_on_every_world_size() {
    for world_size in 1..=9 {
        for length in [0, 1, 7, 1000, 300_000] {
            let results = on_all(world(world_size), |rank, direct| {
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
                "{world_size} ranks, {length} numbers"
            );
        }
    }
}

/// DIRECT-1, by recursive doubling and round the ring.
#[test]
fn rounded_sums_are_equal_to_the_bit() {
    for (world_size, length) in [(2, 999), (3, 999), (5, 999), (8, 999), (3, 100_003), (4, 99_999)] {
        let number = |i: usize, rank: u32| ((i * 7919 + rank as usize * 104_729) as f32).sin() / 3.0;
        let results = on_all(world(world_size), |rank, direct| {
            let mut data = bytes(&(0..length).map(|i| number(i, rank)).collect::<Vec<_>>());
            direct.all_reduce(&note(1, "grad", length, Dtype::F32), &mut data, SUM, 60_000).unwrap();
            data
        });
        assert!(results.windows(2).all(|two| two[0] == two[1]), "{world_size}");
    }
}

#[test]
fn smallest_and_largest_of_integers_and_doubles() {
    let reduce = |op, kind, dtype, own: fn(u32) -> [u8; 8]| {
        on_all(world(3), move |rank, direct| {
            let mut data = own(rank).to_vec();
            direct.all_reduce(&note(1, "x", 1, dtype), &mut data, Reduction { op, kind }, 60_000).unwrap();
            data
        })
    };
    let integers = |rank: u32| (i64::MAX - 5 + i64::from(rank)).to_ne_bytes();
    for (op, expected) in [(RawReduce::Min, i64::MAX - 5), (RawReduce::Max, i64::MAX - 3)] {
        assert!(
            reduce(op, Kind::Int64, Dtype::I64, integers).iter().all(|data| *data == expected.to_ne_bytes())
        );
    }
    let doubles = |rank: u32| (if rank == 1 { f64::NAN } else { f64::from(rank) }).to_ne_bytes();
    for data in reduce(RawReduce::Min, Kind::Double, Dtype::F64, doubles) {
        assert!(f64::from_ne_bytes(data.try_into().unwrap()).is_nan(), "what is not a number stays so");
    }
}

#[test]
fn every_root_reaches_everybody() {
    for world_size in 1..=9 {
        for length in [0, 5, 200_000] {
            let results = on_all(world(world_size), |rank, direct| {
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
fn what_was_sent_before_a_rank_left_still_counts() {
    let mut ranks = world(2);
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

#[test]
fn gathers_hold_every_ranks_block_in_order() {
    for world_size in 1..=9 {
        for block in [0, 3, 70_000] {
            let results = on_all(world(world_size), |rank, direct| {
                let mut data = vec![0; block * world_size as usize];
                data[rank as usize * block..][..block].fill(rank as u8 + 1);
                direct.all_gather(&note(1, "seeds", block, Dtype::U8), &mut data, 60_000).unwrap();
                direct.barrier(&note(2, "end", 0, Dtype::U8), 60_000).unwrap();
                data
            });
            let expected: Vec<u8> = (0..world_size).flat_map(|rank| vec![rank as u8 + 1; block]).collect();
            assert!(results.iter().all(|result| *result == expected), "{world_size} ranks of {block} bytes");
        }
    }
}

#[test]
fn bytes_are_reduced_as_numbers_of_one_byte() {
    for (kind, op, expected) in [
        (Kind::Uint8, RawReduce::Max, 255),
        (Kind::Int8, RawReduce::Max, 1),
        (Kind::Uint8, RawReduce::Sum, 0),
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
fn without_a_secret_results_are_the_same() {
    for world_size in [2, 3] {
        let results = on_all(world_of(world_size, false), |rank, direct| {
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
    let texts = on_all(world(2), |rank, direct| {
        let (name, length) = if rank == 0 { ("grad", 17_500) } else { ("values", 3) };
        let mut data = vec![0; length * 4];
        let failure =
            direct.all_reduce(&note(4, name, length, Dtype::F32), &mut data, SUM, 60_000).unwrap_err();
        assert_eq!(failure.kind, DistErrorKind::Mismatch);
        failure.text
    });
    assert!(texts.iter().all(|text| text.contains("all_reduce \"grad\" of 17500 f32 (sum)")), "{texts:?}");
    assert!(texts.iter().all(|text| text.contains("all_reduce \"values\" of 3 f32 (sum)")), "{texts:?}");
    assert!(texts[0].contains("but rank 1 in") && texts[1].contains("but rank 0 in"), "{texts:?}");
}

#[test]
fn another_reduction_of_the_same_numbers_is_another_call() {
    let failed = on_all(world(2), |rank, direct| {
        let op = if rank == 0 { RawReduce::Sum } else { RawReduce::Max };
        let reduction = Reduction { op, kind: Kind::Float };
        direct.all_reduce(&note(1, "x", 1, Dtype::F32), &mut [0; 4], reduction, 60_000).is_err()
    });
    assert_eq!(failed, [true, true]);
}

/// EXCHANGE-1: a rank that only takes lets the other know where it is.
#[test]
fn a_rank_that_waits_for_a_broadcast_names_its_call_to_one_that_reduces() {
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
fn a_rank_that_is_gone_or_silent_is_named() {
    let mut direct = world(2);
    drop(direct.pop());
    let all_reduce = |direct: &DirectLinks, limit_ms| {
        direct.all_reduce(&note(1, "grad", 1000, Dtype::F32), &mut [0; 4000], SUM, limit_ms).unwrap_err()
    };
    let failure = all_reduce(&direct[0], 60_000);
    assert!(failure.kind == DistErrorKind::Connection && failure.text.contains("rank 1"), "{failure:?}");
    let direct = world(2);
    let failure = all_reduce(&direct[0], 30);
    assert!(failure.kind == DistErrorKind::Timeout && failure.text.contains("rank 1"), "{failure:?}");
}
