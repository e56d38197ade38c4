//! Ranks that differ: in their calls, their groups, their weights, and in the steps of their optimizers, which
//! may differ in a healthy script.

use super::lab::*;
use crate::Goal;
use crate::reason::Reason;
use crate::report::{Confidence, Proof, Severity, VerdictKind};
use crate::testkit::*;
use crate::watch::patterns::mismatch::describe;
use rankdeck_proto::message::*;
use rankdeck_types::experiment::OnStuck;
use rankdeck_types::host::Transport;
use rankdeck_types::ids::Rank;
use std::collections::VecDeque;

#[test]
fn p16_op_mismatch_culprit_is_by_majority_or_own_history() {
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
        insta::assert_snapshot!(format!("op_mismatch_{hosts}_hosts"), verdict.reason);
        let mut commands = verdict.card.actions.iter().map(|advice| &advice.command);
        assert!(commands.any(|command| command.contains("--check-collectives")));
        c.pass(10_000);
        assert_eq!(reds(&c).len(), 1);
    }
}

#[test]
fn p16_two_ranks_without_history_have_no_culprit() {
    let mut c = trained(1);
    stand(&mut c, 101);
    for rank in 0..2 {
        page(&mut c, rank).recent.retain(|call| call.seq == 101);
    }
    instead(&mut c, 1, 101, |call| call.op = "broadcast".into());
    let verdict = alarm(&mut c, 2_000);
    expect(&verdict, None, Reason::OpMismatch);
    insta::assert_snapshot!("op_mismatch_without_history", verdict.reason);
}

#[test]
fn p16_mismatch_without_culprit_has_both_stacks() {
    let mut c = trained(1);
    stand(&mut c, 101);
    for rank in 0..2 {
        page(&mut c, rank).recent.retain(|call| call.seq == 101);
        c.agents[0].inspections.insert(rank, inspection_at(rank, "sync", "train.py", 10 + rank));
    }
    instead(&mut c, 1, 101, |call| call.op = "broadcast".into());
    c.pass(6_000);
    let verdict = verdicts(&c).pop().unwrap();
    expect(&verdict, None, Reason::OpMismatch);
    let mut ranks: Vec<Rank> = verdict.card.stacks().iter().map(|side| side.rank).collect();
    ranks.sort();
    assert_eq!(ranks, [Rank(0), Rank(1)]);
}

#[test]
fn p17_other_count_type_or_root_is_size_mismatch() {
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
fn p18_skipped_call_without_error_is_silent_shift() {
    // Rank 1 of four; then one of two, where its own earlier pattern decides.
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
fn p18_skipped_call_of_other_shape_is_named() {
    // #100 is an exchange of statistics; rank 1 left out the last gradient before it.
    let mut c = trained(2);
    stand(&mut c, 99);
    instead(&mut c, 1, 99, |call| {
        (call.tag, call.count, call.site) = ("collect_stats".into(), 8, "train.rs:90".into());
    });
    expect(&alarm(&mut c, 2_000), Some(1), Reason::SkippedCall);
}

#[test]
fn p20_barrier_on_one_rank_is_extra_call() {
    let mut c = trained(2);
    stand(&mut c, 101);
    instead(&mut c, 0, 101, |call| {
        (call.op, call.tag, call.site) = ("barrier".into(), "save".into(), "checkpoint.rs:9".into());
    });
    let verdict = alarm(&mut c, 2_000);
    expect(&verdict, Some(0), Reason::ExtraCall);
    insta::assert_snapshot!("barrier_on_one_rank", verdict.reason);
}

#[test]
fn p20_rank_alone_in_a_call_is_early() {
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
    insta::assert_snapshot!("rank_alone_in_a_call", verdict.reason);
}

#[test]
fn p21_updates_without_collectives_are_reported() {
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
fn p29_opposite_group_orders_are_a_deadlock() {
    let mut c = trained(2);
    crossed(&mut c);
    let verdict = alarm(&mut c, 7_000);
    expect(&verdict, None, Reason::OrderDeadlock);
    assert_eq!(verdict.proof, Some(Proof::Ring));
    insta::assert_snapshot!("order_deadlock", verdict.reason);
}

/// Scripts: the hook counts calls between two ranks as those of a group of these two.
#[test]
fn missing_sender_is_named_by_receiver() {
    let mut c = trained(2);
    drive(&mut c, 5_000, |_, now, sample| sample.page = Some(hooked(now / 250, now / 250, 10)));
    let (seq, since) = (c.now.0 / 250, c.now.0);
    c.agents[1].inspections.insert(2, inspection_at(2, "prepare", "train/algo.py", 7));
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
    insta::assert_snapshot!("missing_sender", verdict.reason);
    assert_eq!(reds(&c).len(), 1, "no one else is named");
}

/// Scripts: exchanges in equal parts are compared, those in unequal parts are not.
#[test]
fn exchange_size_mismatch_culprit_is_by_majority() {
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

/// Runs a script whose ranks step ten times a second; `change` makes of a rank's fingerprint what it has.
fn script(c: &mut Cluster, ms: u64, change: impl Fn(u32, &mut FingerprintSample)) {
    drive(c, ms, |rank, now, sample| {
        let steps = now / 100;
        let mut page = hooked(2 * steps + 2, 2 * steps + 2, 10);
        (page.updates, page.train_iter) = (steps, steps);
        page.fingerprints = weights(steps);
        page.fingerprints.iter_mut().for_each(|taken| change(rank, taken));
        sample.page = Some(page);
    });
}

#[test]
fn drifting_weights_name_rank_and_step() {
    let mut c = trained(2);
    let from = c.now.0 / 100 + 60;
    script(&mut c, 10_000, |rank, taken| {
        if rank == 2 && taken.step >= from {
            (taken.lanes, taken.sum) = ([7; 8], 50.0);
        }
    });
    assert_eq!(reds(&c), [(Some(2), Reason::WeightsDiffer)]);
    let verdict =
        verdicts(&c).into_iter().find(|reported| reported.reason_code == Reason::WeightsDiffer).unwrap();
    assert_eq!(verdict.confidence, Confidence::Certain);
    insta::assert_snapshot!("drifting_weights", verdict.reason);
}

/// From one iteration on, a rank has made a step less than the others at each position.
#[test]
fn skipped_step_names_rank() {
    let mut c = trained(2);
    let from = c.now.0 / 100 + 60;
    script(&mut c, 10_000, |rank, taken| {
        taken.position = Some(FingerprintPosition { seq: 2 * taken.step, steps: 0 });
        if rank == 2 && taken.step >= from {
            (taken.step, taken.lanes, taken.sum) = (taken.step - 1, [7; 8], 50.0);
        }
    });
    assert_eq!(reds(&c), [(Some(2), Reason::WeightsDiffer)]);
    let verdict = verdicts(&c).into_iter().find(|found| found.reason_code == Reason::WeightsDiffer).unwrap();
    assert_eq!(verdict.confidence, Confidence::Certain);
}

#[test]
fn non_finite_weights_name_rank() {
    let mut c = trained(2);
    let from = c.now.0 / 100 + 30;
    script(&mut c, 6_000, |rank, taken| taken.finite = rank != 1 || taken.step < from);
    assert_eq!(reds(&c), [(Some(1), Reason::WeightsNotFinite)]);
}

#[test]
fn partly_differing_weights_are_a_warning_at_most() {
    let mut c = trained(2);
    script(&mut c, 6_000, |_, _| {});
    assert_eq!(c.verdicts(), []);
    let mut c = trained(2);
    script(&mut c, 6_000, |rank, taken| taken.lanes[5] += rank * 1_000_000);
    assert!(verdicts(&c).iter().all(|reported| reported.severity <= Severity::Amber), "{:?}", c.verdicts());
}

/// What a rank does in a quarter of a second: steps of its own, then collectives with all ranks, then steps
/// that all ranks make. The hook may have missed some of its collectives.
#[derive(Debug, Clone, Copy, Default)]
struct Round {
    own: u64,
    calls: u64,
    shared: u64,
    missed: u64,
}

/// The status page of one rank, as its hook counts.
#[derive(Debug, Default)]
struct RankCounter {
    steps: u64,
    calls: u64,
    /// Step, collectives before it, and when it began.
    begun: VecDeque<(u64, u64, u64)>,
}

impl RankCounter {
    fn steps(&mut self, count: u64, now: u64) {
        for _ in 0..count {
            self.steps += 1;
            self.begun.push_back((self.steps, self.calls, now));
            if self.begun.len() > 64 {
                self.begun.pop_front();
            }
        }
    }

    fn page(&self, now: u64) -> PageSample {
        let began = |(step, calls, at): &(u64, u64, u64)| IterationSample {
            train_iter: *step,
            seq: *calls,
            chain: calls * 31,
            age_ms: now - at,
            wait_us: 0,
        };
        PageSample {
            train_iter: self.steps,
            updates: self.steps,
            iterations: self.begun.iter().map(began).collect(),
            ..hooked(self.calls, self.calls, 10)
        }
    }
}

/// Runs a program of four ranks for 40 s under `on_stuck = "stop"`, and asserts that it is left alone.
fn is_left_alone(name: &str, round: impl Fn(u32, u64) -> Round) {
    let mut draft = draft(2, Transport::Local);
    draft.experiment.watch.on_stuck = OnStuck::Stop;
    let mut c = Cluster::with(Goal::Launch(Box::new(draft)), 2, Vec::new());
    c.all_ready();
    c.pass(2_000);
    let mut ranks: [RankCounter; 4] = Default::default();
    let began = c.now.0;
    drive(&mut c, 40_000, |rank, now, sample| {
        let made = round(rank, (now - began) / 250);
        let counted = &mut ranks[rank as usize];
        counted.steps(made.own, now);
        counted.calls += made.calls - made.missed;
        counted.steps(made.shared, now);
        sample.page = Some(counted.page(now));
    });
    let reported = verdicts(&c);
    let worst = reported.iter().map(|verdict| verdict.severity).max().unwrap_or(Severity::Cleared);
    assert!(worst < Severity::Red, "{name}: {:?}", c.verdicts());
    assert!(reported.iter().all(|verdict| verdict.confidence < Confidence::Certain), "{name}: {reported:?}");
    assert!(c.stops(0).is_empty() && c.finished().is_empty(), "{name}: the policy acted");
}

#[test]
fn local_probe_training_is_not_reported() {
    is_left_alone("probe", |rank, round| {
        let own = if rank == 0 && round % 4 == 3 { 5 } else { 0 };
        Round { own, calls: 2, shared: 1, missed: 0 }
    });
}

#[test]
fn uneven_batches_under_join_are_not_reported() {
    // Rank 0 is out of batches: it joins the others' collectives and makes no step.
    is_left_alone("join", |rank, round| Round {
        calls: 3,
        shared: u64::from(rank != 0 || round < 20),
        ..Round::default()
    });
}

#[test]
fn timed_local_steps_are_not_reported() {
    is_left_alone("localsgd_time", |rank, round| Round {
        own: 3 + (u64::from(rank) * 7 + round * 5) % 4,
        calls: 1,
        ..Round::default()
    });
}

#[test]
fn uneven_epochs_by_kl_are_not_reported() {
    is_left_alone("targetkl", |rank, round| Round {
        own: 1 + (u64::from(rank) + round) % 3,
        calls: u64::from(round % 2 == 1) * 5,
        ..Round::default()
    });
}

#[test]
fn uneven_inner_steps_are_not_reported() {
    is_left_alone("finetune_eval", |rank, round| Round {
        own: 1 + (u64::from(rank) * 3 + round) % 4,
        calls: 1,
        shared: 1,
        missed: 0,
    });
}

#[test]
fn missed_collectives_are_not_reported() {
    is_left_alone("bgthread", |rank, round| Round {
        calls: 3,
        shared: 1,
        missed: u64::from(round % 6 == u64::from(rank)),
        ..Round::default()
    });
}

/// Steps are iterations only where all ranks were in step.
#[test]
fn uneven_steps_show_no_straggler() {
    for uneven in [false, true] {
        let mut c = trained(2);
        drive(&mut c, 30_000, |rank, now, sample| {
            let (steps, wait_us) = (now / 250, if rank == 1 { 0 } else { 200_000 });
            // Rank 1 makes each step of its own behind another number of collectives.
            let shift = if uneven && rank == 1 { 3 } else { 0 };
            let began = |step: u64| IterationSample {
                train_iter: step,
                seq: 2 * step + shift,
                chain: 0,
                age_ms: now - step * 250,
                wait_us: step * wait_us,
            };
            let page = hooked(2 * steps, 2 * steps, 10);
            sample.page = Some(PageSample {
                train_iter: steps,
                updates: steps,
                iterations: (steps.saturating_sub(7)..=steps).map(began).collect(),
                ..page
            });
        });
        let late = verdicts(&c).iter().any(|verdict| verdict.verdict == VerdictKind::Straggler);
        assert_eq!(late, !uneven, "{:?}", c.verdicts());
    }
}

/// What is proved stays certain in a script: two ranks called different things.
#[test]
fn op_mismatch_in_script_is_certain() {
    let mut c = trained(2);
    stand(&mut c, 101);
    for rank in 0..4 {
        let page = page(&mut c, rank);
        page.by_hook = true;
        // As many steps as each rank likes.
        page.recent.iter_mut().for_each(|call| call.train_iter += u64::from(rank));
    }
    c.pass(3_000);
    assert_eq!(reds(&c), [], "steps alone are not a difference");
    instead(&mut c, 1, 101, |call| call.op = "broadcast".into());
    let verdict = alarm(&mut c, 3_000);
    expect(&verdict, Some(1), Reason::OpMismatch);
    assert_eq!((verdict.rank, verdict.confidence), (Some(Rank(1)), Confidence::Certain));
    assert_eq!(verdict.proof, Some(Proof::CallsDiffer));
}

#[test]
fn call_without_a_name_is_described_as_a_collective() {
    let call = |op: &str, tag: &str| {
        describe(&CollectiveCall { op: op.into(), tag: tag.into(), ..CollectiveCall::default() })
    };
    assert_eq!(call("none", "collective"), "a collective");
    assert_eq!(call("all_reduce", "grad"), "all_reduce grad");
}

/// The hook may be off by some calls of C++, and remembers calls that all ranks have left.
#[test]
fn mismatch_without_both_calls_inside_is_only_likely() {
    type Change = fn(&mut Cluster);
    let changes: [Change; 2] = [
        |c| instead(c, 1, 101, |call| (call.op, call.tag) = ("none".into(), "collective".into())),
        |c| {
            for call in page(c, 1).recent.iter_mut().filter(|call| call.seq == 99) {
                call.call.op = "broadcast".into();
            }
        },
    ];
    for change in changes {
        let mut c = trained(2);
        stand(&mut c, 101);
        (0..4).for_each(|rank| page(&mut c, rank).by_hook = true);
        change(&mut c);
        let verdict = alarm(&mut c, 3_000);
        assert_eq!((verdict.rank, verdict.verdict), (Some(Rank(1)), VerdictKind::Desync));
        assert_eq!((verdict.confidence, verdict.proof), (Confidence::Likely, None), "{}", verdict.reason);
    }
}

#[test]
fn ring_of_a_script_needs_both_ends_for_proof() {
    for seen in [false, true] {
        let mut c = trained(2);
        crossed(&mut c);
        let file = "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py";
        for rank in 0..2 {
            page(&mut c, rank).by_hook = true;
            if seen || rank == 0 {
                c.agents[0].inspections.insert(rank, inspection_at(rank, "all_reduce", file, 9));
            }
        }
        let verdict = alarm(&mut c, 7_000);
        expect(&verdict, None, Reason::OrderDeadlock);
        assert_eq!(verdict.proof, seen.then_some(Proof::Ring));
    }
}

/// A first barrier is the first call of its kind: the others are on their way to it.
#[test]
fn late_ranks_are_named_at_a_first_barrier() {
    let mut c = trained(2);
    drive(&mut c, 5_000, |_, now, sample| sample.page = Some(hooked(now / 250, now / 250, 10)));
    let (seq, since) = (c.now.0 / 250, c.now.0);
    drive(&mut c, 20_000, |rank, now, sample| {
        sample.wchan = "futex_do_wait".into();
        let mut page = hooked(if rank == 0 { seq + 1 } else { seq }, seq, now - since);
        let call =
            |op: &str| CollectiveCall { op: op.into(), group: "world".into(), ..CollectiveCall::default() };
        let one = |seq, op| RecentCollective { seq, call: call(op), ..RecentCollective::default() };
        page.recent = (seq - 9..=seq).map(|seq| one(seq, "all_reduce")).collect();
        if rank == 0 {
            page.recent.push(one(seq + 1, "barrier"));
            page.collective.call = call("barrier");
        }
        sample.page = Some(page);
    });
    let reported = verdicts(&c);
    assert!(
        !reported.is_empty() && reported.iter().all(|verdict| verdict.rank != Some(Rank(0))),
        "{reported:?}"
    );
    assert!(reported.iter().all(|verdict| verdict.reason_code != Reason::ExtraCall), "{reported:?}");
}
