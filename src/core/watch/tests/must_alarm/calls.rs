//! Calls that differ, are left out or come too much, and groups that wait for each other.

use super::FAST;
use crate::reason::Reason;
use crate::report::{Confidence, Severity};
use crate::testkit::*;
use crate::watch::tests::lab::*;
use rankdeck_proto::message::*;

#[test]
fn p16_another_operation_is_named_by_majority_and_between_two_by_its_own_history() {
    let broadcast = |call: &mut CollectiveCall| {
        (call.op, call.tag, call.site) = ("broadcast".into(), "weights".into(), "bug.rs:3".into());
    };
    for hosts in [2, 1] {
        let mut c = trained(hosts);
        stand(&mut c, 101);
        instead(&mut c, 1, 101, broadcast);
        let verdict = alarm(&mut c, 2_000);
        expect(&verdict, Some(1), Reason::OpMismatch);
        assert_eq!(verdict.confidence, Confidence::Certain);
        for part in ["#101", "broadcast weights", "bug.rs:3", "all_reduce grad", "ddp.rs:40"] {
            assert!(verdict.reason.contains(part), "{part} in {}", verdict.reason);
        }
        assert!(verdict.card.hint().contains("--check-collectives"), "{}", verdict.card.hint());
        c.pass(10_000);
        assert_eq!(reds(&c).len(), 1);
    }
}

#[test]
fn p16_two_ranks_without_a_history_disagree_and_nobody_is_blamed() {
    let mut c = trained(1);
    stand(&mut c, 101);
    for rank in 0..2 {
        page(&mut c, rank).recent.retain(|call| call.seq == 101);
    }
    instead(&mut c, 1, 101, |call| call.op = "broadcast".into());
    let verdict = alarm(&mut c, 2_000);
    expect(&verdict, None, Reason::OpMismatch);
    assert!(verdict.reason.contains("disagree"), "{}", verdict.reason);
}

#[test]
fn p17_another_count_type_or_root() {
    let changes: [fn(&mut CollectiveCall); 3] =
        [|call| call.count = 65, |call| call.dtype = "f64".into(), |call| call.root = Some(2)];
    for change in changes {
        let mut c = trained(2);
        stand(&mut c, 101);
        instead(&mut c, 1, 101, change);
        expect(&alarm(&mut c, 2_000), Some(1), Reason::SizeMismatch);
    }
}

#[test]
fn p18_a_call_left_out_without_any_error() {
    // Rank 1 of four; then one of two, where its own earlier pattern tells.
    for hosts in [2, 1] {
        let mut c = trained(hosts);
        drive(&mut c, 5_000, |_, now, sample| running(sample, now, &FAST, 10, None));
        assert_eq!(c.verdicts(), []);
        let since = c.now.0 / FAST.period_ms + 3;
        drive(&mut c, 2_000, |rank, now, sample| {
            let shift = (rank == 1).then_some((since, -1));
            running(sample, now, &FAST, 10, shift);
        });
        let verdict = verdicts(&c).first().cloned().expect("a verdict within two seconds");
        expect(&verdict, Some(1), Reason::SilentShift);
        assert_eq!(verdict.severity, Severity::Red);
    }
}

#[test]
fn p18_a_call_left_out_before_another_shape_is_a_skipped_call() {
    // #100 is an exchange of statistics; rank 1 left out the last gradient before it.
    let mut c = trained(2);
    stand(&mut c, 99);
    instead(&mut c, 1, 99, |call| {
        (call.tag, call.count, call.site) = ("collect_stats".into(), 8, "train.rs:90".into());
    });
    expect(&alarm(&mut c, 2_000), Some(1), Reason::SkippedCall);
}

#[test]
fn p20_a_barrier_on_rank_0_only() {
    let mut c = trained(2);
    stand(&mut c, 101);
    instead(&mut c, 0, 101, |call| {
        (call.op, call.tag, call.site) = ("barrier".into(), "save".into(), "checkpoint.rs:9".into());
    });
    let verdict = alarm(&mut c, 2_000);
    expect(&verdict, Some(0), Reason::ExtraCall);
    assert!(verdict.reason.contains("checkpoint.rs:9"), "{}", verdict.reason);
}

#[test]
fn p20_who_waits_alone_in_a_call_that_nobody_else_makes_is_early() {
    // The others have finished their loop and wait for nothing.
    let mut c = trained(2);
    stand(&mut c, 100);
    for rank in 1..4 {
        let page = page(&mut c, rank);
        page.collective.left = 100;
        page.groups[0].left = 100;
        page.phase_progress = u64::MAX;
    }
    let page = page(&mut c, 0);
    page.recent.push(RecentCollective {
        seq: 101,
        call: CollectiveCall {
            group: "world".into(),
            op: "barrier".into(),
            tag: "save".into(),
            ..CollectiveCall::default()
        },
        ..RecentCollective::default()
    });
    page.groups[0].entered = 101;
    enter(page, "world", 101);
    let verdict = alarm(&mut c, 8_000);
    expect(&verdict, Some(0), Reason::ExtraCall);
    assert!(verdict.reason.contains("barrier save #101"), "{}", verdict.reason);
}

#[test]
fn p21_updates_without_any_collective() {
    let mut c = trained(2);
    drive(&mut c, 3_000, |_, now, sample| running(sample, now, &FAST, 10, None));
    let frozen = c.now.0 / FAST.period_ms * FAST.collectives;
    drive(&mut c, 1_500, |_, now, sample| {
        running(sample, now, &FAST, 10, None);
        let page = sample.page.as_mut().unwrap();
        (page.collective.entered, page.collective.left) = (frozen, frozen);
        page.iterations.clear();
    });
    let verdict = verdicts(&c).first().cloned().expect("a verdict");
    expect(&verdict, None, Reason::NoCollectives);
}

/// Rank 0 waits in `a`, rank 1 in `b`; both are members of both.
fn crossed(c: &mut Cluster) {
    for rank in 0..4 {
        let page = page(c, rank);
        let group =
            |name: &str, entered, left| GroupSample { name: name.into(), size: 2, entered, left, chain: 0 };
        page.groups = match rank {
            0 => vec![group("a", 8, 7), group("b", 3, 3)],
            1 => vec![group("a", 7, 7), group("b", 4, 3)],
            _ => vec![],
        };
        if rank < 2 {
            page.collective = CollectiveSample {
                entered: 11,
                left: 10,
                group_seq: if rank == 0 { 8 } else { 4 },
                call: CollectiveCall {
                    op: "all_reduce".into(),
                    tag: "x".into(),
                    group: if rank == 0 { "a" } else { "b" }.into(),
                    ..CollectiveCall::default()
                },
                ..CollectiveSample::default()
            };
        }
    }
}

#[test]
fn p29_groups_used_in_opposite_orders() {
    let mut c = trained(2);
    crossed(&mut c);
    let verdict = alarm(&mut c, 7_000);
    expect(&verdict, None, Reason::OrderDeadlock);
    for part in ["rank 0 waits in all_reduce x #8 of a", "rank 1 waits in all_reduce x #4 of b"] {
        assert!(verdict.reason.contains(part), "{}", verdict.reason);
    }
}

/// Scripts: the hook counts calls between two ranks as those of a group of these two.
#[test]
fn a_rank_that_never_sends_is_named_by_the_one_that_receives() {
    let mut c = trained(2);
    drive(&mut c, 5_000, |_, now, sample| sample.page = Some(hooked(now / 250, now / 250, 10)));
    let (seq, since) = (c.now.0 / 250, c.now.0);
    c.agents[1].inspections.insert(2, look_at(2, "prepare", "train/algo.py", 7));
    drive(&mut c, 8_000, |rank, now, sample| {
        sample.wchan = "futex_do_wait".into();
        let mut page = hooked(seq, seq, now - since);
        if rank == 0 {
            page.groups.push(GroupSample { name: "2>0".into(), size: 2, entered: 1, left: 0, chain: 0 });
            (page.collective.entered, page.collective.group_seq) = (seq + 1, 1);
            (page.collective.call.op, page.collective.call.group) = ("send/recv".into(), "2>0".into());
            page.collective.call.count = 0;
        }
        sample.page = Some(page);
    });
    let verdict = verdicts(&c).first().cloned().expect("a verdict");
    expect(&verdict, Some(2), Reason::Lock);
    for part in ["train/algo.py:7", "send/recv"] {
        assert!(verdict.reason.contains(part), "{part} in {}", verdict.reason);
    }
    assert_eq!(reds(&c).len(), 1, "nobody else is named");
}

/// Scripts: exchanges in equal parts are compared, those in unequal parts are not.
#[test]
fn an_exchange_of_another_size_is_named_by_majority_where_the_parts_are_equal() {
    for (count, expected) in [(96, Some(Reason::SizeMismatch)), (0, None)] {
        let mut c = trained(2);
        stand(&mut c, 101);
        for rank in 0..4 {
            page(&mut c, rank).by_hook = true;
            instead(&mut c, rank, 101, |call| {
                (call.op, call.tag, call.count) = ("all_to_all".into(), "all_to_all_singl".into(), 64);
            });
        }
        instead(&mut c, 1, 101, |call| call.count = count);
        match expected {
            Some(reason) => expect(&alarm(&mut c, 2_000), Some(1), reason),
            None => {
                c.pass(4_000);
                assert_eq!(reds(&c), []);
            }
        }
    }
}
