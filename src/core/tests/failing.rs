//! Who failed first, who failed for another's sake, and who failed alike.

use crate::event::Event;
use crate::report::{FirstFailure, ReportBody};
use crate::testkit::*;
use rankdeck_proto::message::*;
use rankdeck_types::ids::{Generation, Rank, Timestamp};

fn first_failure(c: &Cluster) -> FirstFailure {
    match &c.finished()[..] {
        [ReportBody::RunFinished { first_failure: Some(first), .. }] => first.clone(),
        other => panic!("{other:?}"),
    }
}

/// Pings are answered after `rtt_ms` by an agent whose clock is `skew_s` ahead of the console's (which shows
/// 5000 at 0).
fn measured(c: &mut Cluster, node: usize, rtt_ms: u64, skew_s: f64) {
    let sent_ms = c.now.0;
    c.now = Timestamp(c.now.0 + rtt_ms);
    let wall_time = 5000.0 + (c.now.0 as f64 - rtt_ms as f64 / 2.0) / 1000.0 + skew_s;
    c.said(node, AgentMessage::Pong { sent_ms, wall_time: Some(wall_time) });
}

/// A record of `node` written `at_s` seconds on a clock that is right, when its own is `skew_s` ahead.
fn exit_at(c: &mut Cluster, rank: u32, at_s: f64, skew_s: f64, exit: Exit) {
    let node = rank as usize / 2;
    c.agents[node].samples.remove(&rank);
    let seq = c.agents[node].records.len() as u64 + 1;
    let event = RecordEvent::RankExited {
        rank: Rank(rank),
        pid: 1000 + rank,
        exit,
        last_lines: vec![format!("the end of rank {rank}")],
        stopping: false,
        ago_ms: 1_000,
        with_agent: false,
    };
    let record = Record { seq, time: at_s + 1.0 + skew_s, generation: Generation(0), event };
    c.agents[node].records.push(record.clone());
    c.said(node, AgentMessage::Record(record));
}

#[test]
fn the_first_failure_is_told_by_one_clock_with_its_bound_and_its_followers() {
    let mut c = Cluster::launch(2);
    c.event(Event::WallClock { time: 5000.0 });
    c.all_ready();
    c.pass(2_000);
    // The second host's clock is 30 s behind.
    measured(&mut c, 0, 20, 0.0);
    measured(&mut c, 1, 10, -30.0);
    let plain = || Exit::Code { code: 1 };
    exit_at(&mut c, 0, 5010.0, 0.0, plain());
    exit_at(&mut c, 3, 5009.0, -30.0, plain());
    exit_at(&mut c, 2, 5009.5, -30.0, plain());
    exit_at(&mut c, 1, 5010.0, 0.0, plain());
    c.proof(0);
    c.proof(1);
    let first = first_failure(&c);
    assert_eq!((first.rank, first.host.as_str()), (Rank(3), "bee"));
    assert!((first.time - 5009.0).abs() <= first.bound_s, "{first:?}");
    assert!(first.bound_s > 0.004 && first.bound_s < 0.02, "{first:?}");
    assert_eq!((first.certain, &first.followed[..]), (true, &[Rank(2), Rank(0), Rank(1)][..]));
    assert_eq!(first.last_lines, ["the end of rank 3"]);
    assert!(first.line.contains("rank 3 on bee") && first.line.contains("followed"), "{}", first.line);
    assert_eq!(c.model().run.first_failure.as_ref(), Some(&first));
}

#[test]
fn failures_within_the_bounds_are_told_as_together() {
    let mut c = Cluster::launch(2);
    c.event(Event::WallClock { time: 5000.0 });
    c.all_ready();
    measured(&mut c, 0, 400, 0.0);
    measured(&mut c, 1, 400, 0.0);
    exit_at(&mut c, 0, 5010.0, 0.0, killed());
    exit_at(&mut c, 2, 5010.1, 0.0, killed());
    exit_at(&mut c, 1, 5012.0, 0.0, killed());
    exit_at(&mut c, 3, 5010.0, 0.0, Exit::Code { code: 1 });
    c.proof(0);
    c.proof(1);
    let first = first_failure(&c);
    assert_eq!((first.rank, first.certain), (Rank(0), false));
    assert_eq!((&first.together[..], &first.followed[..]), (&[Rank(2)][..], &[Rank(3), Rank(1)][..]));
}

#[test]
fn ranks_that_fail_alike_are_told_as_such_and_none_as_a_follower() {
    let raises = |c: &mut Cluster, rank: u32, message: &str| {
        let (class, message) = ("ValueError".into(), message.into());
        let exception = Exception { class, message, at: "train.py:7".into(), ..Exception::default() };
        c.rank_said(rank, RankEvent::Exception(exception));
        c.pass(500);
    };
    let plain = || Exit::Code { code: 1 };
    let ends = |messages: [&str; 4], stopping: bool| {
        let mut c = Cluster::launch(2);
        c.all_ready();
        c.pass(2_000);
        for (rank, message) in (0..).zip(messages) {
            raises(&mut c, rank, message);
            c.exit_of(rank, plain(), stopping && rank > 0);
        }
        c.proof(0);
        c.proof(1);
        (first_failure(&c), c.model().run.reason.clone())
    };
    let others = [Rank(1), Rank(2), Rank(3)];
    for stopping in [false, true] {
        let (first, reason) =
            ends(["no shard 0 of 4", "no shard 1 of 4", "no shard 2 of 4", "no shard 3 of 4"], stopping);
        assert_eq!((&first.alike[..], &first.followed[..]), (&others[..], &[][..]), "{stopping}");
        assert!(reason.starts_with("all 4 ranks failed alike: rank 0 on ant"), "{reason}");
        assert!(reason.contains("ValueError: no shard 0 of 4 at train.py:7"), "{reason}");
        assert_eq!(first.line, reason);
    }
    let (first, reason) = ends(["no shard", "no shard", "no shard", "bad shape"], false);
    assert_eq!((&first.alike[..], &first.followed[..]), (&others[..2], &others[2..]));
    assert!(first.line.ends_with("; ranks 1, 2 failed alike; rank 3 followed"), "{}", first.line);
    assert!(reason.starts_with("rank 0 on ant"), "{reason}");
}
