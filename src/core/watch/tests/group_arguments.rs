//! Arguments of `init_process_group` that exclude each other, and groups that only look so.

use super::lab::*;
use crate::reason::{Confidence, Reason};
use crate::report::VerdictKind;
use crate::testkit::*;
use rankdeck_proto::message::*;

/// Two hosts of two ranks whose script still imports.
fn importing() -> Cluster {
    let mut c = Cluster::launch(2);
    c.all_ready();
    for rank in 0..4 {
        sample(&mut c, rank).page = None;
    }
    c.core.model_mut().run.master = "10.0.0.1:29500".into();
    c.pass(1_000);
    c
}

fn calls(c: &mut Cluster, rank: u32, change: impl FnOnce(&mut GroupArguments)) {
    let mut given = GroupArguments {
        calls: 1,
        rank: Some(rank),
        world_size: Some(4),
        address: "10.0.0.1".into(),
        port: Some(29500),
    };
    change(&mut given);
    let waits = PageSample { phase: Phase::Rendezvous, phase_progress: u64::MAX, ..PageSample::default() };
    sample(c, rank).page = Some(PageSample { by_hook: true, group_arguments: Some(given), ..waits });
}

fn found(c: &mut Cluster) -> Option<crate::report::VerdictReport> {
    c.pass(5_000);
    verdicts(c).into_iter().find(|verdict| verdict.reason_code == Reason::RendezvousMismatch)
}

#[test]
fn other_port_or_world_size_is_reported_within_five_seconds() {
    for (field, change) in [
        ("port 29501", (|given| given.port = Some(29501)) as fn(&mut GroupArguments)),
        ("world size 3", |given| given.world_size = Some(3)),
    ] {
        let mut c = importing();
        calls(&mut c, 0, |_| {});
        calls(&mut c, 1, change);
        let verdict = alarm(&mut c, 5_000);
        expect(&verdict, Some(1), Reason::RendezvousMismatch);
        assert_eq!((verdict.verdict, verdict.confidence), (VerdictKind::Desync, Confidence::Certain));
        assert!(verdict.reason.contains(field), "{}", verdict.reason);
    }
}

#[test]
fn same_rank_twice_is_reported_on_the_deviating_one() {
    let mut c = importing();
    calls(&mut c, 0, |_| {});
    calls(&mut c, 2, |given| given.rank = Some(0));
    let verdict = alarm(&mut c, 5_000);
    expect(&verdict, Some(2), Reason::RendezvousMismatch);
    assert_eq!(verdict.card.waiter.map(|waiter| waiter.rank.0), Some(0));
    insta::assert_snapshot!("same_rank", verdict.reason);
}

#[test]
fn other_address_is_reported_and_only_likely() {
    let mut c = importing();
    for rank in 0..4 {
        let other = rank == 3;
        calls(&mut c, rank, |given| {
            if other {
                given.address = "10.9.9.9".into();
            }
        });
    }
    let verdict = found(&mut c).unwrap();
    expect(&verdict, Some(3), Reason::RendezvousMismatch);
    assert_eq!(verdict.confidence, Confidence::Likely, "two names may belong to one machine");
}

#[test]
fn majority_is_right_and_a_tie_follows_the_plan() {
    let mut c = importing();
    for rank in 1..4 {
        calls(&mut c, rank, |given| given.port = Some(7));
    }
    calls(&mut c, 0, |_| {});
    expect(&found(&mut c).unwrap(), Some(0), Reason::RendezvousMismatch);
    let mut c = importing();
    calls(&mut c, 2, |given| given.port = Some(7));
    calls(&mut c, 3, |given| given.port = Some(8));
    let verdict = found(&mut c).unwrap();
    expect(&verdict, None, Reason::RendezvousMismatch);
    insta::assert_snapshot!("tie", verdict.reason);
}

#[test]
fn rank_behind_a_formed_group_is_reported() {
    let mut c = importing();
    for rank in 0..3 {
        calls(&mut c, rank, |given| given.world_size = Some(3));
        page(&mut c, rank).phase = Phase::Learn;
    }
    calls(&mut c, 3, |_| {});
    let verdict = alarm(&mut c, 5_000);
    expect(&verdict, Some(3), Reason::RendezvousMismatch);
}

#[test]
fn equal_groups_are_not_reported() {
    // A group for each host.
    let mut c = importing();
    for rank in 0..4 {
        calls(&mut c, rank, |given| {
            let host = (rank / 2) as u16;
            (given.rank, given.world_size) = (Some(rank % 2), Some(2));
            (given.address, given.port) = ("localhost".into(), Some(29500 + host));
        });
    }
    assert_eq!(found(&mut c), None);
    // Names of rank 0's host.
    let mut c = importing();
    for (rank, address) in ["localhost", "ant", "10.0.0.1", "10.0.0.1"].into_iter().enumerate() {
        calls(&mut c, rank as u32, |given| given.address = address.into());
    }
    assert_eq!(found(&mut c), None);
    // Ranks that start processes of their own, which form a group on each host.
    let mut c = importing();
    for rank in 0..4 {
        calls(&mut c, rank, |given| {
            (given.rank, given.world_size, given.port) = (Some(0), Some(8), Some(29500 + rank as u16));
        });
    }
    assert_eq!(found(&mut c), None);
    // The next group of a rank that is ahead.
    let mut c = importing();
    for rank in 0..4 {
        calls(&mut c, rank, |given| {
            (given.calls, given.port) = if rank == 0 { (2, Some(29501)) } else { (1, Some(29500)) };
        });
        page(&mut c, rank).phase = if rank == 0 { Phase::Rendezvous } else { Phase::Learn };
    }
    assert_eq!(found(&mut c), None);
}

#[test]
fn arrived_ranks_are_counted_while_others_import() {
    let mut c = importing();
    calls(&mut c, 0, |_| {});
    calls(&mut c, 2, |_| {});
    c.pass(1_000);
    assert_eq!(c.model().arrived_ranks(), 2);
    c.pass(40_000);
    let late = verdicts(&c).into_iter().find(|verdict| verdict.reason_code == Reason::RendezvousIncomplete);
    let late = late.expect("the late rank is named");
    assert!(late.reason.contains("2 of 4 ranks arrived"), "{}", late.reason);
}
