//! Ranks that exit: the reason, secondary failures, and ranks that do not get through the end.

use super::doubtful::{FREE, asks_a_server, polls, script};
use super::lab::*;
use crate::reason::Reason;
use crate::report::{Confidence, ReportBody, Severity};
use crate::testkit::*;
use rankdeck_proto::message::*;
use rankdeck_types::ids::Rank;

#[test]
fn p1_to_p6_each_kind_of_exit_has_its_reason() {
    let code = Exit::Code { code: 1 };
    for (exit, line, reason) in [
        (signal(9, false), "", Reason::Killed),
        (signal(11, false), "", Reason::Crashed),
        (signal(6, false), "", Reason::Crashed),
        (code.clone(), "ValueError: boom", Reason::Failed),
        (signal(9, true), "", Reason::OutOfMemory),
        (code.clone(), "OSError: [Errno 28] No space left on device: '/ckpt/latest'", Reason::DiskFull),
        (
            code,
            "RuntimeError: The server socket has failed to bind: Address already in use",
            Reason::PortTaken,
        ),
    ] {
        let mut c = trained(2);
        c.hang(1, |_| {});
        exits(&mut c, 1, exit, line);
        let verdict = verdicts(&c).first().cloned().expect("reported at once");
        expect(&verdict, Some(1), reason);
        assert_eq!(verdict.confidence, Confidence::Certain);
        c.pass(10_000);
        assert_eq!(reds(&c), [(Some(1), reason)], "waits of the others come from the death");
    }
}

#[test]
fn p2_connection_errors_of_peers_are_secondary() {
    let mut c = trained(2);
    c.hang(1, |_| {});
    exits(&mut c, 1, signal(9, false), "");
    exits(&mut c, 2, Exit::Code { code: 1 }, "Connection reset by peer");
    c.pass(1_000);
    assert_eq!(reds(&c), [(Some(1), Reason::Killed)]);
    let victim = verdicts(&c).into_iter().find(|verdict| verdict.rank == Some(Rank(2))).unwrap();
    assert_eq!((victim.severity, victim.reason_code), (Severity::Amber, Reason::ConnectionLost));
}

#[test]
fn p17_sender_of_wrong_size_is_culprit_not_receiver() {
    let mut c = trained(2);
    stand(&mut c, 101);
    instead(&mut c, 1, 101, |call| call.count = 65);
    c.pass(500);
    exits(&mut c, 0, signal(6, false), "what(): [enforce] op.preamble.length <= op.nbytes. 26668 vs 13336");
    c.pass(1_000);
    assert!(reds(&c).contains(&(Some(1), Reason::SizeMismatch)), "{:?}", reds(&c));
    let last = verdicts(&c).into_iter().rfind(|verdict| verdict.rank == Some(Rank(0))).unwrap();
    assert_eq!((last.severity, last.reason_code), (Severity::Amber, Reason::MismatchAbort));
}

#[test]
fn p17_of_two_dead_ends_the_deviating_rank_is_culprit() {
    let text = |rank: u32| {
        format!(
            "another call came from rank {rank}: this rank is in collective 101, but rank {rank} in collective 101"
        )
    };
    // A verdict on the living comes first where there is time for it.
    for before in [100, 2_000] {
        for first in [0, 1] {
            let mut c = trained(2);
            stand(&mut c, 101);
            instead(&mut c, 1, 101, |call| call.count = 65);
            c.pass(before);
            (0..2).for_each(|node| c.sample(node));
            for (rank, other) in [(first, 1 - first), (1 - first, first)] {
                let failure = Some(FailureKind::Mismatch);
                let (message, hint) = (text(other), String::new());
                c.rank_event(rank, RankEvent::Error { message, hint, usage: false, failure });
                exits(&mut c, rank, Exit::Code { code: 1 }, "");
            }
            [2, 3]
                .into_iter()
                .for_each(|rank| exits(&mut c, rank, Exit::Code { code: 1 }, "Connection reset by peer"));
            (0..2).for_each(|node| c.proof(node));
            let reds = reds(&c);
            assert!(
                !reds.is_empty() && reds.iter().all(|red| *red == (Some(1), Reason::SizeMismatch)),
                "{:?}",
                c.verdicts()
            );
        }
    }
}

#[test]
fn p17_last_calls_count_if_all_died_before_a_tick() {
    let mut c = trained(2);
    stand(&mut c, 101);
    instead(&mut c, 1, 101, |call| call.root = Some(2));
    (0..2).for_each(|node| c.sample(node));
    let code = |code| Exit::Code { code };
    exits(&mut c, 1, code(1), "value cannot be read");
    [0, 2, 3].into_iter().for_each(|rank| exits(&mut c, rank, code(1), "Connection closed by peer"));
    (0..2).for_each(|node| c.proof(node));
    assert!(reds(&c).contains(&(Some(1), Reason::SizeMismatch)), "{:?}", c.verdicts());
    assert!(
        matches!(c.reports.last(), Some((_, _, ReportBody::RunFinished { .. }))),
        "reported before the end"
    );
}

#[test]
fn p17_exit_of_deviating_rank_is_one_verdict() {
    let code = |code| Exit::Code { code };
    // Its victims may be reported before it, and after the calls of all have been compared.
    for first in [1, 3] {
        let mut c = trained(2);
        stand(&mut c, 101);
        instead(&mut c, 1, 101, |call| call.root = Some(2));
        (0..2).for_each(|node| c.sample(node));
        let dies = |c: &mut Cluster, rank| match rank {
            1 => exits(c, 1, code(1), "value cannot be read"),
            _ => exits(c, rank, code(1), "Connection closed by peer"),
        };
        dies(&mut c, first);
        c.pass(300);
        [1, 0, 2, 3].into_iter().filter(|rank| *rank != first).for_each(|rank| dies(&mut c, rank));
        c.pass(300);
        let mut present = c.core.model().verdicts.clone();
        present.retain(|verdict| verdict.severity == Severity::Red);
        let present: Vec<_> = present.iter().map(|verdict| (verdict.rank, verdict.reason_code)).collect();
        assert_eq!(present, [(Some(Rank(1)), Reason::SizeMismatch)], "rank {first} first");
        assert_eq!(reds(&c).last(), Some(&(Some(1), Reason::SizeMismatch)), "rank {first} first");
    }
}

#[test]
fn p19_early_exit_names_rank() {
    let mut c = trained(2);
    c.hang(3, |_| {});
    c.exit_of(3, Exit::Code { code: 0 }, false);
    let verdict = alarm(&mut c, 2_000);
    expect(&verdict, Some(3), Reason::LeftEarly);
    insta::assert_snapshot!("early_exit", verdict.reason);
}

#[test]
fn p19_peers_of_early_leaver_are_secondary() {
    let mut c = trained(2);
    c.hang(3, |_| {});
    c.pass(500);
    exits(&mut c, 3, Exit::Code { code: 0 }, "");
    exits(&mut c, 2, Exit::Code { code: 1 }, "Connection closed by peer [127.0.0.1]:26256");
    c.pass(500);
    assert_eq!(reds(&c), [(Some(3), Reason::LeftEarly)]);
    let victim = verdicts(&c).into_iter().find(|verdict| verdict.rank == Some(Rank(2))).unwrap();
    assert_eq!((victim.severity, victim.reason_code), (Severity::Amber, Reason::ConnectionLost));
}

#[test]
fn p19_early_leaver_is_named_whoever_reports_first() {
    // Calls that are made in C++ are on no page: nothing shows which rank was inside which.
    for left_first in [true, false] {
        let mut c = trained(2);
        drive(&mut c, 5_000, |_, now, sample| sample.page = Some(hooked(now / 250, now / 250, 10)));
        let leaves = |c: &mut Cluster| exits(c, 3, Exit::Code { code: 0 }, "");
        let fails = |c: &mut Cluster| exits(c, 0, Exit::Code { code: 1 }, "Connection reset by peer");
        if left_first {
            leaves(&mut c);
            fails(&mut c);
        } else {
            fails(&mut c);
            leaves(&mut c);
        }
        exits(&mut c, 1, Exit::Code { code: 1 }, "Connection reset by peer");
        c.pass(500);
        assert_eq!(reds(&c), [(Some(3), Reason::LeftEarly)], "left first: {left_first}");
    }
}

#[test]
fn p19_failure_after_all_others_ended_is_its_own() {
    let mut c = trained(2);
    for rank in [0, 1, 3] {
        exits(&mut c, rank, Exit::Code { code: 0 }, "");
    }
    exits(&mut c, 2, Exit::Code { code: 1 }, "Connection reset by peer");
    c.pass(500);
    assert_eq!(reds(&c), []);
}

#[test]
fn p25_rank_hanging_in_teardown_is_named() {
    let mut c = trained(2);
    for rank in [0, 2, 3] {
        c.rank_event(rank, RankEvent::Finished { reason: FinishReason::Budget });
        c.exit_of(rank, Exit::Code { code: 0 }, false);
    }
    let page = page(&mut c, 1);
    (page.phase, page.phase_progress, page.phase_age_ms) = (Phase::Teardown, u64::MAX, 0);
    expect(&alarm(&mut c, 7_000), Some(1), Reason::TeardownStall);
}

#[test]
fn p25_rank_blocking_teardown_is_reported_in_time() {
    let mut c = trained(2);
    for rank in 0..4 {
        let page = page(&mut c, rank);
        (page.phase, page.phase_progress, page.phase_age_ms) = (Phase::Teardown, u64::MAX, 0);
        (page.done, page.total) = if rank == 1 { (0, 0) } else { (1, 1) };
    }
    expect(&alarm(&mut c, 6_500), Some(1), Reason::TeardownStall);
    // All have arrived: whatever delays them is not one of them.
    let mut c = trained(2);
    for rank in 0..4 {
        let page = page(&mut c, rank);
        (page.phase, page.phase_progress, page.phase_age_ms) = (Phase::Teardown, u64::MAX, 0);
        (page.done, page.total) = (1, 1);
    }
    c.pass(9_000);
    assert_eq!(reds(&c), []);
}

/// With Gloo's message in the log, and with the built-in trainer's as a reported error.
#[test]
fn p28_failure_after_stuck_rank_is_secondary() {
    let gloo = "Timed out waiting 5000ms for recv operation to complete";
    let call = "rank 2 of 4: collective 693, all_reduce \"grad\"";
    let late = format!("{call}: not finished within 8.0 s: timed out waiting for rank 1");
    let broken = format!("{call}: lost another rank: rank 1: broken pipe (os error 32)");
    let mut facts = Vec::new();
    for (reported, line) in [("", gloo), (late.as_str(), ""), (broken.as_str(), "")] {
        let mut c = trained(2);
        c.hang(1, |sample| sample.state = 'T');
        expect(&alarm(&mut c, 2_000), Some(1), Reason::Stopped);
        if !reported.is_empty() {
            let failure = Some(FailureKind::Connection);
            let event =
                RankEvent::Error { message: reported.into(), hint: String::new(), usage: false, failure };
            c.rank_event(2, event);
        }
        exits(&mut c, 2, Exit::Code { code: 1 }, line);
        c.pass(500);
        assert_eq!(reds(&c), [(Some(1), Reason::Stopped)], "{reported}");
        let victim = verdicts(&c).into_iter().find(|verdict| verdict.rank == Some(Rank(2))).unwrap();
        assert_eq!(victim.severity, Severity::Amber);
        facts.push(victim.card.facts[0].clone());
    }
    insta::assert_snapshot!("failures_after_stuck_rank", facts.join("\n"));
}

/// The rank that the run's end reports as the first failure, after these ranks have failed and all others were
/// stopped.
fn first_failure(c: &mut Cluster, failed: &[(u32, &str)]) -> Option<u32> {
    for (rank, line) in failed {
        exits(c, *rank, Exit::Code { code: 1 }, line);
    }
    c.pass(2_500);
    for rank in (0..4).filter(|rank| failed.iter().all(|(other, _)| other != rank)) {
        c.exit_of(rank, signal(15, false), true);
    }
    (0..2).for_each(|node| c.proof(node));
    c.core.model().run.first_failure.as_ref().map(|first| first.rank.0)
}

const GLOO: &str = "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting \
     30000ms for recv operation to complete";
const RESET: &str = "Connection closed by peer [10.0.0.1]:26256";

#[test]
fn p28_timeout_while_rank_asks_a_slow_server_names_it() {
    let mut c = script(FREE, 30_000, &asks_a_server);
    assert_eq!(reds(&c), [], "a warning so far");
    assert_eq!(first_failure(&mut c, &[(2, GLOO), (0, RESET), (3, RESET)]), Some(1));
}

#[test]
fn p28_timeout_while_rank_polls_a_file_names_it() {
    let mut c = script(FREE, 60_000, &polls);
    assert_eq!(reds(&c), [], "a warning so far");
    assert_eq!(first_failure(&mut c, &[(3, GLOO)]), Some(1));
}

#[test]
fn p28_barrier_timeout_names_the_late_rank() {
    let mut c = script(FREE, 30_000, &asks_a_server);
    let message = format!("Rank 1 failed to pass monitoredBarrier in 30000 ms\n Original exception:\n{GLOO}");
    let exception = Exception { class: "RuntimeError".into(), message, ..Exception::default() };
    c.rank_event(0, RankEvent::Exception(exception));
    assert_eq!(first_failure(&mut c, &[(0, ""), (2, RESET)]), Some(1));
}

#[test]
fn p28_own_failure_comes_before_a_late_rank() {
    // Over SSH, the ranks that it took along may be reported first.
    for own in [1, 3] {
        let mut c = script(FREE, 30_000, &asks_a_server);
        let failed = [(2, RESET), (own, "error: index 7 is out of range"), (0, RESET)];
        assert_eq!(first_failure(&mut c, &failed), Some(own));
    }
}
