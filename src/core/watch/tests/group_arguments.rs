//! Arguments of `init_process_group` that exclude each other, and groups that only look so.

use super::lab::*;
use crate::reason::{Confidence, Reason};
use crate::report::{Proof, ReportBody, Severity, VerdictKind, VerdictReport};
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
        backend: "gloo".into(),
        site: "train.py:9".into(),
        contradicting: Vec::new(),
    };
    change(&mut given);
    let waits = PageSample { phase: Phase::Rendezvous, phase_progress: u64::MAX, ..PageSample::default() };
    sample(c, rank).page = Some(PageSample { by_hook: true, group_arguments: Some(given), ..waits });
}

fn found(c: &mut Cluster) -> Option<VerdictReport> {
    c.pass(5_000);
    verdicts(c).into_iter().find(|verdict| verdict.reason_code == Reason::RendezvousMismatch)
}

#[test]
fn other_port_or_world_size_is_reported_within_five_seconds() {
    for (field, change) in [
        ("port 29501", (|given| given.port = Some(29501)) as fn(&mut GroupArguments)),
        ("world size 3", |given| given.world_size = Some(3)),
        ("backend nccl at train.py:9", |given| given.backend = "nccl".into()),
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
    assert_eq!(verdict.card.waiter.as_ref().map(|waiter| waiter.rank.0), Some(0));
    assert_eq!(verdict.proof, Some(Proof::SameRankTwice));
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

/// CleanRL's scripts over two hosts: each host has a local rank 0 and 1.
#[test]
fn local_rank_as_rank_is_named_with_its_line() {
    let mut c = importing();
    for rank in 0..4 {
        calls(&mut c, rank, |given| given.rank = Some(rank % 2));
    }
    let verdict = alarm(&mut c, 5_000);
    expect(&verdict, Some(2), Reason::RendezvousMismatch);
    assert_eq!((verdict.confidence, verdict.proof), (Confidence::Certain, Some(Proof::SameRankTwice)));
    assert!(verdict.card.actions[0].text.contains("LOCAL_RANK"), "{:?}", verdict.card.actions);
    assert_eq!(verdict.card.facts.len(), 3, "both that deviate, and the other: {:?}", verdict.card.facts);
    insta::assert_snapshot!("local_rank", verdict.reason);
}

/// On one machine the second rank 0 cannot have the port.
#[test]
fn death_in_rendezvous_names_the_wrong_rank() {
    let mut c = importing();
    calls(&mut c, 0, |_| {});
    calls(&mut c, 2, |given| given.rank = Some(0));
    (0..2).for_each(|node| c.sample(node));
    exits(&mut c, 2, Exit::Code { code: 1 }, "RuntimeError: address already in use");
    let dead = |verdict: &VerdictReport| verdict.verdict == VerdictKind::Dead;
    c.pass(500);
    let verdict = verdicts(&c).into_iter().find(dead).unwrap();
    insta::assert_snapshot!("death", verdict.reason);
}

#[test]
fn variable_of_a_launcher_is_named_as_origin() {
    let mut c = importing();
    calls(&mut c, 0, |_| {});
    calls(&mut c, 1, |given| {
        (given.rank, given.contradicting) = (Some(0), vec!["SLURM_NTASKS".into(), "SLURM_PROCID".into()]);
    });
    let verdict = alarm(&mut c, 5_000);
    expect(&verdict, Some(1), Reason::RendezvousMismatch);
    assert!(verdict.reason.contains("SLURM_PROCID?"), "{}", verdict.reason);
    // They are named, too, where the group forms in spite of them.
    let mut c = importing();
    for rank in 0..4 {
        calls(&mut c, rank, |given| {
            if rank > 1 {
                given.contradicting = vec!["OMPI_COMM_WORLD_RANK".into()];
            }
        });
        page(&mut c, rank).phase = Phase::Learn;
    }
    c.pass(1_000);
    let verdict = verdicts(&c).remove(0);
    expect(&verdict, None, Reason::RankVariables);
    assert_eq!(verdict.severity, Severity::Amber);
    insta::assert_snapshot!("variables", verdict.reason);
    c.pass(70_000);
    assert_eq!(verdicts(&c).len(), 2, "cleared after a minute: {:?}", c.verdicts());
}

#[test]
fn rank_against_the_plan_is_a_warning_while_others_import() {
    let mut c = importing();
    calls(&mut c, 3, |given| given.rank = Some(1));
    c.pass(9_000);
    let found = |c: &Cluster| {
        let all = verdicts(c);
        all.into_iter()
            .filter(|verdict| verdict.reason_code == Reason::RendezvousMismatch)
            .collect::<Vec<_>>()
    };
    assert_eq!(found(&c), []);
    c.pass(3_000);
    let [verdict] = found(&c).try_into().unwrap();
    expect(&verdict, Some(3), Reason::RendezvousMismatch);
    assert_eq!((verdict.severity, verdict.confidence), (Severity::Amber, Confidence::Likely));
    insta::assert_snapshot!("against_the_plan", verdict.reason);
}

#[test]
fn group_larger_than_the_run_is_reported() {
    for (children, expected) in [(0, true), (1, false)] {
        let mut c = importing();
        for rank in 0..4 {
            calls(&mut c, rank, |given| given.world_size = Some(8));
            sample(&mut c, rank).children = children;
        }
        c.pass(12_000);
        let reported = verdicts(&c);
        let found = reported.iter().find(|verdict| verdict.reason_code == Reason::RendezvousMismatch);
        assert_eq!(found.is_some(), expected, "{:?}", c.verdicts());
        assert!(found.is_none_or(|verdict| verdict.confidence == Confidence::Likely));
    }
}

/// Ranks of a script that step optimizers without a process group, some of them not at all.
fn separately(c: &mut Cluster, ms: u64, steps: impl Fn(u32) -> bool) {
    drive(c, ms, |rank, now, sample| {
        sample.page = steps(rank).then(|| PageSample {
            by_hook: true,
            heartbeat_age_ms: 10,
            train_iter: now / 100,
            updates: now / 100,
            ..PageSample::default()
        });
    });
}

fn separate(c: &Cluster) -> usize {
    verdicts(c).iter().filter(|verdict| verdict.reason_code == Reason::SeparatePrograms).count()
}

fn end(c: &mut Cluster) -> String {
    (0..4).for_each(|rank| exits(c, rank, Exit::Code { code: 0 }, ""));
    (0..2).for_each(|node| c.proof(node));
    match c.finished().pop() {
        Some(ReportBody::RunFinished { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn ranks_without_process_group_are_separate_programs() {
    let mut c = importing();
    separately(&mut c, 55_000, |_| true);
    assert_eq!(separate(&c), 0, "they may still form one");
    separately(&mut c, 20_000, |_| true);
    assert_eq!(separate(&c), 1);
    let verdict = verdicts(&c).pop().unwrap();
    assert_eq!((verdict.severity, verdict.rank), (Severity::Amber, None));
    assert_eq!(verdict.reason, "4 separate programs: no process group");
    assert!(end(&mut c).ends_with(&format!("; {}", verdict.reason)));
    // A shorter run shows it at its end.
    let mut c = importing();
    separately(&mut c, 5_000, |_| true);
    let reason = end(&mut c);
    assert_eq!((separate(&c), reason.ends_with(&verdict.reason)), (0, true), "{reason}");
}

#[test]
fn ranks_that_need_no_group_are_no_separate_programs() {
    // Only some of them train.
    let mut c = importing();
    separately(&mut c, 80_000, |rank| rank < 2);
    assert_eq!(separate(&c), 0);
    assert!(!end(&mut c).contains("separate"));
    // All warm up first, each for itself.
    let mut c = importing();
    separately(&mut c, 20_000, |_| true);
    drive(&mut c, 80_000, |_, now, sample| {
        let given = GroupArguments { calls: 1, world_size: Some(4), ..GroupArguments::default() };
        let steps = now / 100;
        let page = hooked(now / 250, now / 250, 10);
        sample.page =
            Some(PageSample { train_iter: steps, updates: steps, group_arguments: Some(given), ..page });
    });
    assert_eq!(separate(&c), 0, "{:?}", c.verdicts());
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
