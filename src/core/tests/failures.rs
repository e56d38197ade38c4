//! Failed ranks: which failed first, which are secondary failures, which failed alike, and exceptions that end a
//! rank with exit code 0.

use crate::Goal;
use crate::event::{Event, StopSource};
use crate::report::{FirstFailure, ReportBody, RunOutcome};
use crate::testkit::*;
use rankdeck_proto::message::*;
use rankdeck_types::experiment::Restart;
use rankdeck_types::host::Transport;
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
    c.receive(node, AgentMessage::Pong { sent_ms, wall_time: Some(wall_time) });
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
    c.receive(node, AgentMessage::Record(record));
}

#[test]
fn first_failure_is_by_one_clock_with_bound_and_followers() {
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
    insta::assert_snapshot!("first_failure", first.line);
    assert_eq!(c.model().run.first_failure.as_ref(), Some(&first));
}

#[test]
fn failures_within_clock_bounds_are_together() {
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
fn equal_failures_are_reported_as_such() {
    let raises = |c: &mut Cluster, rank: u32, message: &str| {
        let (class, message) = ("ValueError".into(), message.into());
        let exception = Exception { class, message, at: "train.py:7".into(), ..Exception::default() };
        c.rank_event(rank, RankEvent::Exception(exception));
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
        insta::assert_snapshot!("equal_failures_of_all_ranks", reason);
        assert_eq!(first.line, reason);
    }
    let (first, reason) = ends(["no shard", "no shard", "no shard", "bad shape"], false);
    assert_eq!((&first.alike[..], &first.followed[..]), (&others[..2], &others[2..]));
    insta::assert_snapshot!("equal_failures_of_some_ranks", format!("{}\n{reason}", first.line));
}

fn running() -> Cluster {
    let mut c = Cluster::launch(1);
    c.all_ready();
    c.pass(2_000);
    c
}

fn raised(message: &str) -> Exception {
    let (class, message) = ("RuntimeError".into(), message.into());
    Exception { class, message, at: "train.py:7".into(), ..Exception::default() }
}

fn ends(c: &mut Cluster, stopping: bool) {
    (0..2).for_each(|rank| c.exit_of(rank, Exit::Code { code: 0 }, stopping));
    c.proof(0);
}

fn end(c: &Cluster) -> (RunOutcome, u8, bool, Option<FirstFailure>) {
    match &c.finished()[..] {
        [ReportBody::RunFinished { outcome, exit_code, clean, first_failure, .. }] => {
            (*outcome, *exit_code, *clean, first_failure.clone())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn exception_in_main_program_fails_despite_exit_code_0() {
    let mut c = running();
    c.rank_event(1, RankEvent::Exception(raised("simulator lost")));
    ends(&mut c, false);
    let (outcome, code, clean, first) = end(&c);
    assert_eq!((outcome, code, clean), (RunOutcome::Failed, 1, false));
    let first = first.unwrap();
    assert_eq!((first.rank, &first.followed[..]), (Rank(1), &[][..]));
    for part in ["RuntimeError: simulator lost", "train.py:7"] {
        assert!(first.error.contains(part), "{part} in {}", first.error);
    }
    let states = c.reports.iter().filter_map(|(_, _, body)| match body {
        ReportBody::Rank { rank, state, exit_code: Some(0), .. } => Some((rank.0, state.as_str())),
        _ => None,
    });
    assert_eq!(states.collect::<Vec<_>>(), [(0, "exited"), (1, "failed")]);
}

#[test]
fn survived_exception_is_no_failure() {
    let caught = || Exception { survivable: true, ..raised("shown") };
    let thread = || Exception { thread: "loader".into(), ..raised("thread") };
    for message in [
        vec![RankEvent::Exception(caught())],
        vec![RankEvent::Exception(thread())],
        vec![RankEvent::Exception(raised("tried")), RankEvent::Survived],
    ] {
        let mut c = running();
        message.iter().for_each(|message| c.rank_event(1, message.clone()));
        ends(&mut c, false);
        assert_eq!(end(&c), (RunOutcome::Succeeded, 0, true, None), "{message:?}");
    }
    // What comes after it counts again.
    let mut c = running();
    for message in [raised("tried"), raised("again")] {
        c.rank_event(1, RankEvent::Survived);
        c.rank_event(1, RankEvent::Exception(message));
    }
    ends(&mut c, false);
    assert!(end(&c).3.unwrap().error.contains("again"));
    // A launcher's exception follows from that of its child.
    let mut c = running();
    c.rank_event(0, RankEvent::Exception(Exception { survivable: true, ..raised("of the child") }));
    let class = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError".into();
    c.rank_event(0, RankEvent::Exception(Exception { class, ..raised("of the launcher") }));
    ends(&mut c, false);
    assert!(end(&c).3.unwrap().error.contains("of the child"));
}

#[test]
fn stop_effects_are_clean_own_errors_are_not() {
    let lost = "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:1";
    for (message, clean) in [(lost, true), ("no space in the replay", false)] {
        let mut c = running();
        c.event(Event::StopRequested { mode: StopMode::Clean, by: StopSource::Command });
        c.rank_event(1, RankEvent::Exception(raised(message)));
        ends(&mut c, true);
        let (outcome, code, left, _) = end(&c);
        assert_eq!((outcome, code, left), (RunOutcome::Stopped, 130, clean), "{message}");
    }
}

#[test]
fn end_2_victims_before_their_own_order_are_clean() {
    let lost = "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:1";
    for (message, clean) in [(lost, true), ("no space in the replay", false)] {
        let mut c = running();
        c.event(Event::StopRequested { mode: StopMode::Clean, by: StopSource::Command });
        c.rank_event(1, RankEvent::Exception(raised(message)));
        c.exit_of(1, Exit::Code { code: 1 }, false);
        c.exit_of(0, Exit::Signal { signal: 2, out_of_memory: false }, true);
        c.proof(0);
        let (outcome, code, left, first) = end(&c);
        assert_eq!((outcome, code, left, first), (RunOutcome::Stopped, 130, clean, None), "{message}");
        assert_eq!(c.model().run.reason.contains(message), !clean, "{}", c.model().run.reason);
    }
}

#[test]
fn end_2_interrupt_of_a_stop_is_clean() {
    let interrupt = || Exception { class: "KeyboardInterrupt".into(), ..raised("") };
    for stopping in [true, false] {
        let mut c = running();
        if stopping {
            c.event(Event::StopRequested { mode: StopMode::Clean, by: StopSource::Command });
        }
        (0..2).for_each(|rank| {
            c.rank_event(rank, RankEvent::Exception(interrupt()));
            c.exit_of(rank, Exit::Code { code: 1 }, stopping);
        });
        c.proof(0);
        let (outcome, _, clean, _) = end(&c);
        let expected = if stopping { RunOutcome::Stopped } else { RunOutcome::Failed };
        assert_eq!((outcome, clean), (expected, stopping));
    }
}

#[test]
fn end_3_crash_at_exit_succeeds_and_restarts_nothing() {
    let mut draft = draft(1, Transport::Local);
    draft.experiment.restart = Restart { max_restarts: Some(1), ..Restart::default() };
    for returned in [true, false] {
        let mut c = Cluster::with(Goal::Launch(Box::new(draft.clone())), 1, vec![]);
        c.all_ready();
        c.pass(2_000);
        c.exit_of(0, Exit::Code { code: 0 }, false);
        if returned {
            c.rank_event(1, RankEvent::Returned);
        }
        c.exit_of(1, Exit::Signal { signal: 11, out_of_memory: false }, false);
        c.proof(0);
        c.pass(60_000);
        assert_eq!(c.launches(0).len(), if returned { 1 } else { 2 });
        if returned {
            assert_eq!(end(&c), (RunOutcome::Succeeded, 0, true, None));
            assert_eq!((c.model().run.end_warnings.len(), c.model().verdicts.len()), (1, 0));
        }
    }
    // Another program begins in the same process: what it does is not the exit of the first.
    let mut c = running();
    c.exit_of(0, Exit::Code { code: 0 }, false);
    [RankEvent::Returned, RankEvent::Survived].into_iter().for_each(|event| c.rank_event(1, event));
    c.exit_of(1, Exit::Signal { signal: 11, out_of_memory: false }, false);
    c.proof(0);
    assert_eq!(end(&c).0, RunOutcome::Failed);
}

#[test]
fn stuck_rank_stays_the_culprit_of_those_that_waited() {
    let timed_out =
        "[../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation";
    let mut c = Cluster::launch(2);
    c.all_ready();
    c.pass(2_000);
    c.hang(1, |sample| sample.state = 'T');
    c.pass(10_000);
    let verdict = c.model().verdicts[0].clone();
    assert_eq!(verdict.rank, Some(Rank(1)));
    for rank in [2, 0, 3] {
        c.rank_event(rank, RankEvent::Exception(raised(timed_out)));
        c.exit_of(rank, Exit::Code { code: 1 }, false);
    }
    c.pass(3_000);
    c.exit_of(1, Exit::Signal { signal: 9, out_of_memory: false }, true);
    (0..2).for_each(|node| c.proof(node));
    let (outcome, code, _, first) = end(&c);
    let first = first.unwrap();
    assert_eq!((outcome, code, first.rank), (RunOutcome::Failed, 1, Rank(1)));
    assert_eq!((&first.error, &c.model().run.reason), (&verdict.reason, &verdict.reason));
    assert_eq!(first.followed.len(), 3);
}

#[test]
fn exception_logged_before_exit_code_0_is_a_warning() {
    for stopping in [false, true] {
        let mut c = running();
        if stopping {
            c.event(Event::StopRequested { mode: StopMode::Clean, by: StopSource::Command });
        }
        let log =
            "Traceback (most recent call last):\n  File \"/w/t.py\", line 3, in main\nKeyError: 'obs'\ndone";
        c.exit_of(0, Exit::Code { code: 0 }, stopping);
        let event = RecordEvent::RankExited {
            rank: Rank(1),
            pid: 1001,
            exit: Exit::Code { code: 0 },
            last_lines: log.lines().map(str::to_owned).collect(),
            stopping,
            ago_ms: 0,
            with_agent: false,
        };
        c.record(0, event);
        c.proof(0);
        let [ReportBody::RunFinished { clean: true, warnings, .. }] = &c.finished()[..] else { panic!() };
        assert_eq!(warnings.len(), usize::from(!stopping));
        assert!(warnings.iter().all(|text| text.contains("KeyError: 'obs' at /w/t.py:3")), "{warnings:?}");
    }
}

#[test]
fn restart_policy_covers_exception_with_exit_code_0() {
    let mut draft = draft(1, Transport::Local);
    draft.experiment.restart = Restart { max_restarts: Some(1), ..Restart::default() };
    let mut c = Cluster::with(Goal::Launch(Box::new(draft)), 1, vec![]);
    c.all_ready();
    c.pass(2_000);
    c.rank_event(0, RankEvent::Exception(raised("simulator lost")));
    ends(&mut c, false);
    c.pass(60_000);
    assert_eq!(c.launches(0).len(), 2);
}
