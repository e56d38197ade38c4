//! Workers that a signal has stopped: nothing but another signal makes them go on.

use super::doubtful::{FREE, FULL, child, holder, python, red, script, waits};
use super::lab::*;
use crate::reason::Reason;
use crate::report::Severity;
use rankdeck_proto::inspection::{Inspection, Obstacle};
use rankdeck_proto::message::*;
use rankdeck_types::ids::Rank;

#[test]
fn a_worker_that_is_stopped_needs_no_core_to_be_told() {
    let (wchan, reason, looks) =
        waits().into_iter().find(|(_, reason, _)| *reason == Reason::EnvWorkerDeadlocked).unwrap();
    let does = |_: u64, sample: &mut RankSample, look: &mut Inspection| {
        sample.wchan = wchan.into();
        looks(sample, look);
        sample.signals.children = vec![child(77, 'T')];
        look.lacks_cores = true;
    };
    let c = script(FULL, 12_000, &does);
    red(&c, reason);
    assert!(verdicts(&c)[0].latency_s <= 7.0, "{:?}", c.verdicts());
}

/// A look at it shows the sleep that it was stopped in, whose end comes and wakes nobody.
#[test]
fn a_worker_that_is_stopped_within_a_sleep_does_not_wake() {
    for (wchan, reason, looks) in waits().into_iter().filter(|(_, reason, _)| {
        use Reason::{ChildProcess, DataLoader, EnvWorkerDeadlocked, Pipe};
        matches!(reason, DataLoader | EnvWorkerDeadlocked | Pipe | ChildProcess)
    }) {
        for left in [0, 40_000] {
            let does = |_: u64, sample: &mut RankSample, look: &mut Inspection| {
                sample.wchan = wchan.into();
                looks(sample, look);
                let awaited = look.awaits.first().copied().unwrap_or(77);
                look.awaits = vec![awaited];
                sample.signals.children = vec![child(awaited, 'T')];
                look.awaited_sleep_ms = Some(left);
            };
            let c = script(FREE, 12_000, &does);
            red(&c, reason);
            assert!(verdicts(&c)[0].latency_s <= 7.0, "{reason:?}: {:?}", c.verdicts());
        }
    }
}

/// It waits for whichever comes first.
#[test]
fn one_that_is_stopped_beside_one_that_sleeps_is_no_reason_for_an_alarm() {
    let (wchan, reason, looks) =
        waits().into_iter().find(|(_, reason, _)| *reason == Reason::EnvWorkerDeadlocked).unwrap();
    let does = |other: char| {
        move |at: u64, sample: &mut RankSample, look: &mut Inspection| {
            sample.wchan = wchan.into();
            looks(sample, look);
            sample.signals.children = vec![child(77, 'T'), child(78, other)];
            look.awaits = vec![77, 78];
            look.awaited_sleep_ms = 60_000_u64.checked_sub(at);
        }
    };
    let c = script(FREE, 40_000, &does('S'));
    assert_eq!(reds(&c), [], "{:?}", c.verdicts());
    red(&script(FREE, 12_000, &does('T')), reason);
}

/// A signal has stopped the worker: no core would make it answer, and how long it usually takes says nothing.
#[test]
fn a_worker_that_is_stopped_is_told_in_time_where_answers_take_long_and_no_core_is_free() {
    for shows in ["before", "late"] {
        let mut c = script(FULL, 0, &|_, _, _| {});
        // Answers take four seconds.
        let mut seq = c.now.0 / 250;
        for _ in 0..30 {
            let since = c.now.0;
            drive(&mut c, 4_000, |_, now, sample| sample.page = Some(hooked(seq, seq, now - since)));
            seq += 1;
        }
        let since = c.now.0;
        let (mut look, known) = (look_at(1, "step", "train.py", 55), c.told.len());
        look.awaits = vec![77];
        look.lacks_cores = true;
        if shows == "late" {
            // Nobody could read a stack.
            look.threads.clear();
            look.obstacle = Some(Obstacle::Pipe { ends: vec![holder(77, "simulator")], reads: true });
        } else {
            look.threads = python(&["/usr/lib/python3.11/multiprocessing/connection.py", "/w/train.py"]);
        }
        c.agents[0].inspections.insert(1, look);
        drive(&mut c, 12_000, |rank, now, sample| {
            sample.page = Some(hooked(if rank == 1 { seq } else { seq + 1 }, seq, now - since));
            if rank == 1 {
                sample.wchan = "anon_pipe_read".into();
                sample.signals.children = vec![child(77, 'T')];
            }
        });
        assert!(c.told.len() > known, "nothing was told");
        let told = verdicts(&c).pop().unwrap();
        assert_eq!((told.rank, told.severity), (Some(Rank(1)), Severity::Red), "{shows}: {:?}", c.verdicts());
        assert!(told.latency_s <= 7.0, "{shows}: {told:?}");
    }
}
