//! Direct all-reduces between threads: exact sums on every world size, equal bits, and what goes wrong.

use super::*;
use rankdeck_proto::status_page::{Dtype, Op, tag};
use std::net::TcpListener;

fn note(seq: u64, name: &str, count: usize, dtype: Dtype) -> CollectiveNote {
    CollectiveNote { seq, op: Op::AllReduce, tag: tag(name), count, dtype }
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

fn world(world_size: u32) -> Vec<DirectAllReduce> {
    let mut streams: Vec<Vec<(u32, TcpStream)>> = (0..world_size).map(|_| Vec::new()).collect();
    for rank in 0..world_size {
        for peer in partners(rank, world_size).into_iter().filter(|peer| *peer > rank) {
            let (one, other) = pair();
            streams[rank as usize].push((peer, one));
            streams[peer as usize].push((rank, other));
        }
    }
    let ranks = (0..world_size).zip(streams);
    ranks.map(|(rank, streams)| DirectAllReduce::over(rank, world_size, streams).unwrap()).collect()
}

fn on_all<T: Send>(direct: Vec<DirectAllReduce>, body: impl Fn(u32, DirectAllReduce) -> T + Sync) -> Vec<T> {
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
    assert_eq!(partners(5, 6), [1]);
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

#[test]
fn rounded_sums_are_equal_to_the_bit() {
    for world_size in [2, 3, 5, 8] {
        let results = on_all(world(world_size), |rank, direct| {
            let mut data = bytes(
                &(0..999)
                    .map(|i| ((i * 7919 + rank as usize * 104_729) as f32).sin() / 3.0)
                    .collect::<Vec<_>>(),
            );
            direct.all_reduce(&note(1, "grad", 999, Dtype::F32), &mut data, SUM, 60_000).unwrap();
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

#[test]
fn a_rank_that_is_gone_or_silent_is_named() {
    let mut direct = world(2);
    drop(direct.pop());
    let all_reduce = |direct: &DirectAllReduce, limit_ms| {
        direct.all_reduce(&note(1, "grad", 1000, Dtype::F32), &mut [0; 4000], SUM, limit_ms).unwrap_err()
    };
    let failure = all_reduce(&direct[0], 60_000);
    assert!(failure.kind == DistErrorKind::Connection && failure.text.contains("rank 1"), "{failure:?}");
    let direct = world(2);
    let failure = all_reduce(&direct[0], 30);
    assert!(failure.kind == DistErrorKind::Timeout && failure.text.contains("rank 1"), "{failure:?}");
}
