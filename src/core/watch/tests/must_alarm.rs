//! What must alarm: the cases of the fault matrix that can be decided on paper. Each asserts the guilty rank, the reason and the latency.

use super::lab::*;
use crate::core::ids::Rank;
use crate::core::reason::Reason;
use crate::core::report::{Confidence, ReportBody, Severity, VerdictKind};
use crate::core::testkit::*;
use crate::proto::inspection::{Frame, HOLDS_GIL, Inspection, Pressure, Socket};
use crate::proto::message::*;

fn exits(c: &mut Cluster, rank: u32, exit: Exit, line: &str) {
    c.agents[rank as usize / 2].samples.remove(&rank);
    let event = RecordEvent::RankExited {
        rank: Rank(rank),
        pid: 1000 + rank,
        exit,
        last_lines: vec![line.into()],
        stopping: false,
        ago_ms: 0,
        with_agent: false,
    };
    c.record(rank as usize / 2, event);
}

fn signal(signal: i32, out_of_memory: bool) -> Exit {
    Exit::Signal { signal, out_of_memory }
}

#[test]
fn p1_to_p6_the_ways_to_die_have_reasons_of_their_own() {
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
        let verdict = verdicts(&c).first().cloned().expect("told at once");
        expect(&verdict, Some(1), reason);
        assert_eq!(verdict.confidence, Confidence::Certain);
        c.pass(10_000);
        assert_eq!(reds(&c), [(Some(1), reason)], "waits of the others come from the death");
    }
}

#[test]
fn p2_peers_with_connection_errors_are_victims() {
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
fn p7_a_stopped_rank_clears_when_it_goes_on() {
    let mut c = trained(2);
    c.hang(1, |sample| sample.state = 'T');
    let verdict = alarm(&mut c, 2_000);
    expect(&verdict, Some(1), Reason::Stopped);
    let card = verdict.card.unwrap();
    assert_eq!(card.guilty.as_ref().unwrap().os, "stopped by a signal (T), cpu 0 %");
    assert!(card.actions[0].command.contains("kill -CONT 1001"));
    assert!(card.waiter.unwrap().call.unwrap().inside);
    c.release();
    c.pass(1_000);
    assert_eq!(c.verdicts().last(), Some(&(VerdictKind::Frozen, Some(1), Severity::Cleared)));
}

#[test]
fn p8_a_frozen_cgroup_is_neither_storage_nor_sleep() {
    for state in ['D', 'S'] {
        let mut c = trained(2);
        c.hang(1, |sample| {
            sample.state = state;
            let cgroup = CgroupSample { path: "/pod".into(), frozen: true, ..CgroupSample::default() };
            sample.signals.cgroup = Some(cgroup);
        });
        expect(&alarm(&mut c, 2_500), Some(1), Reason::CgroupFrozen);
        c.pass(10_000);
        assert_eq!(reds(&c).len(), 1);
    }
}

#[test]
fn p9_storage_that_does_not_answer() {
    let mut c = trained(2);
    c.hang(0, |sample| {
        sample.state = 'D';
        sample.wchan = "percpu_rwsem_wait".into();
        sample.page.as_mut().unwrap().phase = Phase::Checkpoint;
    });
    let verdict = alarm(&mut c, 8_000);
    expect(&verdict, Some(0), Reason::Storage);
    assert!(verdict.evidence.join(" ").contains("percpu_rwsem_wait"));
}

/// Everybody inside the same collective; host `bad` hears nothing.
fn partition(c: &mut Cluster, bad: &[(u32, &str)]) {
    stand(c, 100);
    let addresses = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
    for node in 0..c.agents.len() {
        for rank in [2 * node as u32, 2 * node as u32 + 1] {
            let sockets = addresses.iter().filter(|peer| **peer != addresses[node]).map(|peer| {
                let lossy = bad.iter().any(|(from, to)| *from == rank && to == peer);
                Socket {
                    peer: format!("{peer}:4711"),
                    local: format!("{}:5000", addresses[node]),
                    state: "ESTABLISHED".into(),
                    unacked: u32::from(lossy),
                    backoff: if lossy { 4 } else { 0 },
                    ..Socket::default()
                }
            });
            let look = Inspection { rank: Rank(rank), sockets: sockets.collect(), ..Inspection::default() };
            c.agents[node].inspections.insert(rank, look);
        }
    }
}

#[test]
fn p10_a_partition_names_the_hosts_and_no_rank() {
    let mut c = trained(3);
    partition(&mut c, &[(0, "10.0.0.2"), (2, "10.0.0.1"), (2, "10.0.0.3"), (4, "10.0.0.2")]);
    let verdict = alarm(&mut c, 8_000);
    expect(&verdict, None, Reason::NetworkLoss);
    assert_eq!(verdict.host.as_deref(), Some("bee"), "common to all bad pairs: {}", verdict.reason);

    let mut c = trained(2);
    partition(&mut c, &[(0, "10.0.0.2"), (2, "10.0.0.1")]);
    let verdict = alarm(&mut c, 8_000);
    expect(&verdict, None, Reason::NetworkLoss);
    assert!(verdict.reason.contains("between ant and bee"), "{}", verdict.reason);
}

#[test]
fn p10_who_did_not_get_the_last_message_of_a_collective_is_not_to_blame() {
    // Rank 2 is still inside #99, which the others have left.
    for lost in [true, false] {
        let mut c = trained(2);
        partition(&mut c, if lost { &[(0, "10.0.0.2"), (2, "10.0.0.1")] } else { &[] });
        let inside = page(&mut c, 2);
        inside.recent.pop();
        (inside.groups[0].entered, inside.groups[0].left) = (99, 98);
        enter(inside, "world", 99);
        let verdict = alarm(&mut c, 8_000);
        match lost {
            true => expect(&verdict, None, Reason::NetworkLoss),
            false => expect(&verdict, Some(2), Reason::InsideEarlier),
        }
    }
}

#[test]
fn p11_a_link_that_is_down_and_a_loss_in_one_direction() {
    let mut c = trained(2);
    stand(&mut c, 100);
    c.agents[1].signals.link = Some(LinkSample { name: "eth1".into(), up: false, ..LinkSample::default() });
    let verdict = alarm(&mut c, 2_500);
    expect(&verdict, None, Reason::LinkDown);
    assert_eq!(verdict.host.as_deref(), Some("bee"));

    // Unacknowledged data alone does not tell the direction; that it arrives again and again does: acknowledgements from bee to ant are lost.
    for arrives in [false, true] {
        let mut c = trained(2);
        partition(&mut c, &[]);
        let ends = ["10.0.0.1:5000", "10.0.0.2:4711"];
        for (rank, local, peer) in [(0u32, ends[0], ends[1]), (2, ends[1], ends[0])] {
            let (local, peer) = (local.to_string(), peer.to_string());
            let socket = Socket { local, peer, unacked: 1, backoff: 4, ..Socket::default() };
            let node = rank as usize / 2;
            c.agents[node].inspections.get_mut(&rank).unwrap().sockets = vec![socket];
        }
        c.pass(4_000);
        if arrives {
            c.agents[1].inspections.get_mut(&2).unwrap().sockets[0].segments_in = 3;
        }
        c.pass(8_000);
        let told = verdicts(&c).last().cloned().expect("a verdict");
        expect(&told, None, if arrives { Reason::OneWayLoss } else { Reason::NetworkLoss });
        assert_eq!(told.reason.contains("from bee to ant are lost"), arrives, "{}", told.reason);
    }
}

#[test]
fn p12_a_lock_taken_twice_is_named_with_file_and_line() {
    let mut c = trained(1);
    let mut look = look_at(1, "replay::gather", "src/trainer/replay/gather.rs", 88);
    let frames = &mut look.threads[0].frames;
    for line in 1..20 {
        let file = Some("/rustc/5980/library/core/src/iter/adapters/map.rs".into());
        frames.push(Frame { function: "fold".into(), file, line: Some(line) });
    }
    let file = Some("src/trainer/algo/ppg.rs".into());
    frames.push(Frame { function: "aux_phase".into(), file, line: Some(139) });
    c.agents[0].inspections.insert(1, look);
    c.hang(1, |sample| {
        sample.wchan = "futex_do_wait".into();
        let page = sample.page.as_mut().unwrap();
        (page.phase, page.activity) = (Phase::Learn, Activity::Sample);
    });
    let verdict = alarm(&mut c, 7_000);
    expect(&verdict, Some(1), Reason::Lock);
    let at = "src/trainer/replay/gather.rs:88 in replay::gather";
    assert!(verdict.reason.contains(at), "{}", verdict.reason);
    assert!(verdict.reason.contains("learn (sample)"), "{}", verdict.reason);
    let card = verdict.card.unwrap();
    let guilty = card.guilty.unwrap();
    assert_eq!(guilty.at, at);
    // Below what it is blocked in stand the program's own frames, not those of libraries.
    assert!(guilty.stack.iter().any(|frame| frame.contains("ppg.rs:139")), "{:?}", guilty.stack);
    assert!(guilty.stack.len() <= 12);
    assert_eq!(card.waiter.unwrap().rank, Rank(0));
}

#[test]
fn p13_env_workers_that_sleep_or_have_died() {
    let children = |state| vec![ChildSample { pid: 77, name: "env".into(), state, cpu_ms: 500 }];
    let mut c = trained(2);
    c.hang(1, |sample| {
        sample.wchan = "anon_pipe_read".into();
        sample.signals.children = children('S');
    });
    let verdict = alarm(&mut c, 7_000);
    expect(&verdict, Some(1), Reason::EnvWorkerDeadlocked);
    assert_eq!(verdict.verdict, VerdictKind::EnvStuck);

    let mut c = trained(2);
    c.hang(1, |sample| {
        sample.wchan = "unix_stream_read_generic".into();
        sample.signals.children = children('Z');
    });
    let verdict = alarm(&mut c, 2_500);
    expect(&verdict, Some(1), Reason::EnvWorkerDied);
    assert!(verdict.reason.contains("pid 77"), "{}", verdict.reason);
    assert_eq!(verdict.confidence, Confidence::Certain);
}

#[test]
fn p13_a_worker_that_is_stopped_is_named_whatever_its_rank_waits_in() {
    let mut c = trained(2);
    c.hang(1, |sample| {
        sample.wchan = "poll_schedule_timeout.constprop.0".into();
        let child = ChildSample { pid: 77, name: "python".into(), state: 'T', cpu_ms: 500 };
        sample.signals.children = vec![child];
    });
    let verdict = alarm(&mut c, 7_000);
    expect(&verdict, Some(1), Reason::EnvWorkerDeadlocked);
    assert!(verdict.reason.contains("(pid 77 is stopped)"), "{}", verdict.reason);
}

#[test]
fn p14_a_loop_without_end_burns_cpu() {
    let mut c = trained(2);
    c.agents[1].inspections.insert(2, look_at(2, "loss", "src/trainer/algo/ppo.rs", 12));
    c.hang(2, |sample| {
        (sample.state, sample.cpu_percent) = ('R', 100.0);
        sample.page.as_mut().unwrap().phase = Phase::Learn;
        sample.signals.cpu_ms = 0;
    });
    let verdict = alarm(&mut c, 7_000);
    expect(&verdict, Some(2), Reason::Spinning);
    assert!(verdict.reason.contains("ppo.rs:12"), "{}", verdict.reason);
}

#[test]
fn p14_a_loop_without_end_is_told_on_a_busy_host_too_after_a_longer_while() {
    let mut c = trained(2);
    for agent in &mut c.agents {
        agent.signals.pressure = Some(Pressure { cpu: 90.0, ..Pressure::default() });
    }
    c.agents[1].inspections.insert(2, look_at(2, "loss", "src/trainer/algo/ppo.rs", 12));
    c.hang(2, |_| {});
    for step in 0..120u64 {
        let sample = sample(&mut c, 2);
        (sample.state, sample.cpu_percent) = ('R', 20.0);
        sample.page.as_mut().unwrap().phase = Phase::Learn;
        (sample.signals.cpu_ms, sample.signals.delay_ms) = (1_000 + step * 50, step * 190);
        c.pass(250);
    }
    assert_eq!(reds(&c), [(Some(2), Reason::Spinning)]);
}

#[test]
fn p15_the_interpreter_lock_is_held() {
    let mut c = trained(2);
    let look = Inspection {
        rank: Rank(1),
        notes: vec![format!("thread 1001 {HOLDS_GIL}")],
        ..Inspection::default()
    };
    c.agents[0].inspections.insert(1, look);
    c.hang(1, |sample| sample.wchan = "hrtimer_nanosleep".into());
    expect(&alarm(&mut c, 7_000), Some(1), Reason::GilHeld);

    // Python code that computes holds it, too, and gives it away when it is asked.
    let mut c = trained(2);
    let look = Inspection {
        rank: Rank(1),
        notes: vec![format!("thread 1001 {HOLDS_GIL}")],
        ..Inspection::default()
    };
    c.agents[0].inspections.insert(1, look);
    c.hang(1, |sample| {
        (sample.state, sample.cpu_percent) = ('R', 100.0);
        sample.signals.cpu_ms = 0;
    });
    expect(&alarm(&mut c, 7_000), Some(1), Reason::Spinning);
}

#[test]
fn p16_another_operation_is_named_by_majority_and_between_two_by_its_own_history() {
    let broadcast = |call: &mut RecentCollective| {
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
        assert!(verdict.hint.contains("--microscope"), "{}", verdict.hint);
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
    let changes: [fn(&mut RecentCollective); 3] =
        [|call| call.count = 65, |call| call.dtype = "f64".into(), |call| call.root = Some(2)];
    for change in changes {
        let mut c = trained(2);
        stand(&mut c, 101);
        instead(&mut c, 1, 101, change);
        expect(&alarm(&mut c, 2_000), Some(1), Reason::SizeMismatch);
    }
}

#[test]
fn p17_the_one_that_sent_the_wrong_size_is_guilty_not_the_one_that_died_of_it() {
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
fn p17_both_ends_of_a_lane_end_and_the_one_that_differs_is_guilty() {
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
            exits(&mut c, first, Exit::Code { code: 1 }, &text(1 - first));
            exits(&mut c, 1 - first, Exit::Code { code: 1 }, &text(first));
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
fn p17_last_words_count_though_all_are_dead_before_the_next_tick() {
    let mut c = trained(2);
    stand(&mut c, 101);
    instead(&mut c, 1, 101, |call| call.root = Some(2));
    (0..2).for_each(|node| c.sample(node));
    let code = |code| Exit::Code { code };
    exits(&mut c, 1, code(1), "value cannot be read");
    [0, 2, 3].into_iter().for_each(|rank| exits(&mut c, rank, code(1), "Connection closed by peer"));
    (0..2).for_each(|node| c.proof(node));
    assert!(reds(&c).contains(&(Some(1), Reason::SizeMismatch)), "{:?}", c.verdicts());
    assert!(matches!(c.told.last(), Some((_, _, ReportBody::RunFinished { .. }))), "told before the end");
}

const FAST: Pace = Pace { period_ms: 100, collectives: 6 };

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
fn p19_a_rank_that_leaves_the_loop_early() {
    let mut c = trained(2);
    c.hang(3, |_| {});
    c.exit_of(3, Exit::Code { code: 0 }, false);
    let verdict = alarm(&mut c, 2_000);
    expect(&verdict, Some(3), Reason::LeftEarly);
    assert!(verdict.reason.contains("iteration 5"), "{}", verdict.reason);
}

#[test]
fn p19_peers_that_fail_at_once_are_victims_of_the_one_that_left() {
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
fn p19_the_one_that_left_a_script_is_named_whoever_is_heard_first() {
    // Calls that are made in C++ are on no page: nothing tells who was inside what.
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
fn p19_one_that_fails_at_the_end_of_all_others_was_left_by_nobody() {
    let mut c = trained(2);
    for rank in [0, 1, 3] {
        exits(&mut c, rank, Exit::Code { code: 0 }, "");
    }
    exits(&mut c, 2, Exit::Code { code: 1 }, "Connection reset by peer");
    c.pass(500);
    assert_eq!(reds(&c), []);
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
        group: "world".into(),
        seq: 101,
        op: "barrier".into(),
        tag: "save".into(),
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

fn slow(c: &mut Cluster, late: u32, change: impl Fn(u32, u64, &mut RankSample)) {
    drive(c, 12_000, |rank, now, sample| {
        running(sample, now, &FAST, if rank == late { 2 } else { 32 + u64::from(rank) }, None);
        change(rank, now, sample);
    });
}

#[test]
fn p22_a_throttled_rank_is_slow_not_stuck() {
    let mut c = trained(2);
    slow(&mut c, 2, |rank, now, sample| {
        let throttled = if rank == 2 { now / 100 } else { 0 };
        sample.signals.cgroup =
            Some(CgroupSample { periods: now / 100, throttled, ..CgroupSample::default() });
    });
    let verdict = verdicts(&c).first().cloned().expect("a verdict within 50 iterations and more");
    expect(&verdict, Some(2), Reason::Throttled);
    assert_eq!((verdict.severity, verdict.verdict), (Severity::Amber, VerdictKind::Straggler));
    assert_eq!(reds(&c), []);
    c.told.clear();
    drive(&mut c, 30_000, |rank, now, sample| running(sample, now, &FAST, 10 + u64::from(rank) % 2, None));
    assert_eq!(verdicts(&c).last().map(|verdict| verdict.severity), Some(Severity::Cleared));
}

#[test]
fn p22_a_rank_that_its_quota_stops_inside_collectives_too_waits_as_long_as_the_others() {
    for (held, found) in [(1, Some(Rank(2))), (4, None)] {
        let mut c = trained(2);
        drive(&mut c, 12_000, |rank, now, sample| {
            running(sample, now, &FAST, FAST.period_ms * (6 + u64::from(rank) % 2) / 10, None);
            let throttled = if rank == 2 || held == 4 { now / 100 } else { 0 };
            let cgroup = CgroupSample { periods: now / 100, throttled, ..CgroupSample::default() };
            sample.signals.cgroup = Some(cgroup);
        });
        let told = verdicts(&c);
        assert_eq!(told.first().and_then(|verdict| verdict.rank), found, "{held} held: {told:?}");
        assert!(told.iter().all(|verdict| verdict.reason_code == Reason::Throttled), "{told:?}");
    }
}

#[test]
fn p23_a_rank_that_computes_longer() {
    let mut c = trained(2);
    slow(&mut c, 3, |rank, now, sample| {
        let learn = if rank == 3 { now * 7 / 10 } else { now * 4 / 10 };
        sample.page.as_mut().unwrap().own_ms = vec![0, 0, now * 2 / 10, learn, 0, 0, 0, 0, 0];
    });
    let verdict = verdicts(&c).last().cloned().expect("a verdict");
    expect(&verdict, Some(3), Reason::SlowCompute);
}

#[test]
fn p23_a_host_that_is_as_busy_as_the_others_is_no_reason() {
    for all in [true, false] {
        let mut c = trained(2);
        for (host, agent) in c.agents.iter_mut().enumerate() {
            let pressure = Pressure { cpu: if all || host == 1 { 90.0 } else { 3.0 }, ..Pressure::default() };
            agent.signals.pressure = Some(pressure);
        }
        slow(&mut c, 3, |rank, now, sample| {
            let learn = if rank == 3 { now * 7 / 10 } else { now * 4 / 10 };
            sample.page.as_mut().unwrap().own_ms = vec![0, 0, now * 2 / 10, learn, 0, 0, 0, 0, 0];
        });
        let verdict = verdicts(&c).last().cloned().expect("a verdict");
        expect(&verdict, Some(3), if all { Reason::SlowCompute } else { Reason::CpuPressure });
    }
}

#[test]
fn p24_a_rank_that_does_not_come_to_the_rendezvous() {
    let mut c = Cluster::launch(2);
    c.all_ready();
    c.agents[1].samples.remove(&3);
    for rank in 0..3 {
        let page = page(&mut c, rank);
        *page = PageSample { phase: Phase::Rendezvous, phase_progress: u64::MAX, ..PageSample::default() };
    }
    let verdict = alarm(&mut c, 12_000);
    expect(&verdict, Some(3), Reason::RendezvousIncomplete);
    assert_eq!(verdict.verdict, VerdictKind::Behind);
}

#[test]
fn p24_a_rank_whose_program_has_not_even_begun() {
    let mut c = Cluster::launch(2);
    c.all_ready();
    for rank in 0..3 {
        let page = page(&mut c, rank);
        *page = PageSample { phase: Phase::Rendezvous, phase_progress: u64::MAX, ..PageSample::default() };
    }
    // A line of the host that comes before the program sleeps.
    let late = sample(&mut c, 3);
    (late.page, late.state, late.cpu_percent, late.signals.cpu_ms) = (None, 'S', 0.0, 0);
    let verdict = alarm(&mut c, 12_000);
    expect(&verdict, Some(3), Reason::RendezvousIncomplete);
}

#[test]
fn p25_a_rank_that_does_not_get_through_the_end() {
    let mut c = trained(2);
    for rank in [0, 2, 3] {
        c.rank_said(rank, RankEvent::Finished { reason: FinishReason::Budget });
        c.exit_of(rank, Exit::Code { code: 0 }, false);
    }
    let page = page(&mut c, 1);
    (page.phase, page.phase_progress, page.phase_age_ms) = (Phase::Teardown, u64::MAX, 0);
    expect(&alarm(&mut c, 7_000), Some(1), Reason::TeardownStall);
}

#[test]
fn p25_a_rank_that_keeps_the_others_from_leaving_is_told_before_they_give_up() {
    let mut c = trained(2);
    for rank in 0..4 {
        let page = page(&mut c, rank);
        (page.phase, page.phase_progress, page.phase_age_ms) = (Phase::Teardown, u64::MAX, 0);
        (page.done, page.total) = if rank == 1 { (0, 0) } else { (1, 1) };
    }
    expect(&alarm(&mut c, 6_500), Some(1), Reason::TeardownStall);
    // All have come: whatever keeps them, it is none of them.
    let mut c = trained(2);
    for rank in 0..4 {
        let page = page(&mut c, rank);
        (page.phase, page.phase_progress, page.phase_age_ms) = (Phase::Teardown, u64::MAX, 0);
        (page.done, page.total) = (1, 1);
    }
    c.pass(9_000);
    assert_eq!(reds(&c), []);
}

#[test]
fn p26_p27_a_host_that_says_nothing_and_a_link_that_only_the_console_has_lost() {
    let mut c = trained(2);
    c.hang(9, |_| {});
    c.lose(1);
    let verdict = alarm(&mut c, 6_000);
    expect(&verdict, None, Reason::HostSilent);
    assert_eq!(verdict.host.as_deref(), Some("bee"));

    let mut c = trained(2);
    c.lose(1);
    c.pass(11_000);
    let told = verdicts(&c).first().cloned().expect("a verdict");
    expect(&told, None, Reason::LinkLost);
    assert_eq!((told.severity, reds(&c)), (Severity::Amber, vec![]), "the run is well: no rank is blamed");
}

#[test]
fn p28_a_second_failure_is_a_victim_of_the_first() {
    let mut c = trained(2);
    c.hang(1, |sample| sample.state = 'T');
    expect(&alarm(&mut c, 2_000), Some(1), Reason::Stopped);
    exits(&mut c, 2, Exit::Code { code: 1 }, "Timed out waiting 5000ms for recv operation to complete");
    c.pass(500);
    assert_eq!(reds(&c), [(Some(1), Reason::Stopped)]);
    let victim = verdicts(&c).into_iter().find(|verdict| verdict.rank == Some(Rank(2))).unwrap();
    assert_eq!(victim.severity, Severity::Amber);
    assert!(victim.evidence[0].contains("rank 1"), "{:?}", victim.evidence);
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
                op: "all_reduce".into(),
                tag: "x".into(),
                group: if rank == 0 { "a" } else { "b" }.into(),
                group_seq: if rank == 0 { 8 } else { 4 },
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

#[test]
fn blame_goes_through_groups_to_the_one_that_waits_nowhere() {
    // 0 waits for 1 in the group of all; 1 waits for 2 in a group of their own; 2 stands still.
    let mut c = trained(2);
    for rank in 0..4 {
        let page = page(&mut c, rank);
        let world = u64::from(rank == 0 || rank == 3) + 9;
        let inner = if rank == 1 { 6 } else { 5 };
        let group = |name: &str, size, entered, left| GroupSample {
            name: name.into(),
            size,
            entered,
            left,
            chain: 0,
        };
        page.groups = vec![group("world", 4, world, 9)];
        if rank == 1 || rank == 2 {
            page.groups.push(group("inner", 2, inner, 5));
        }
        let (name, seq) = if rank == 1 { ("inner", 6) } else { ("world", world) };
        page.collective = CollectiveSample {
            entered: 40 + u64::from(rank != 2),
            left: 40,
            op: "all_reduce".into(),
            tag: "x".into(),
            group: name.into(),
            group_seq: seq,
            ..CollectiveSample::default()
        };
        if rank == 2 {
            page.phase_progress = u64::MAX;
        }
    }
    let verdict = alarm(&mut c, 8_000);
    assert_eq!(verdict.rank, Some(Rank(2)), "{}", verdict.reason);
    c.pass(10_000);
    assert_eq!(reds(&c).len(), 1, "one incident for both groups: {:?}", reds(&c));
}

#[test]
fn p32_a_gpu_that_reports_an_error_or_is_lost() {
    let gpu = |xids: Vec<u64>, lost| GpuSample {
        index: 0,
        name: "H200".into(),
        xids,
        lost,
        ..GpuSample::default()
    };
    for (broken, reason) in
        [(gpu(vec![31, 79], false), Reason::GpuFault), (gpu(vec![31], true), Reason::GpuLost)]
    {
        let mut c = trained(2);
        for agent in &mut c.agents {
            agent.gpus = vec![gpu(vec![31], false)];
        }
        c.with_gpu(0);
        c.pass(2_000);
        assert_eq!(c.verdicts(), [], "an old error is no news");
        c.agents[0].gpus = vec![broken];
        let verdict = alarm(&mut c, 1_000);
        expect(&verdict, Some(0), reason);
    }
}

#[test]
fn p30_python_ranks_are_named_by_the_counters_of_the_hook() {
    let mut c = trained(2);
    drive(&mut c, 5_000, |_, now, sample| sample.page = Some(hooked(now / 250, now / 250, 10)));
    let (seq, since) = (c.now.0 / 250, c.now.0);
    c.agents[0].inspections.insert(1, look_at(1, "gather", "train/algo.py", 7));
    drive(&mut c, 8_000, |rank, now, sample| {
        sample.page = Some(hooked(if rank == 1 { seq } else { seq + 1 }, seq, now - since));
        sample.wchan = "futex_do_wait".into();
    });
    let verdict = verdicts(&c).first().cloned().expect("a verdict");
    expect(&verdict, Some(1), Reason::Lock);
    for part in ["train/algo.py:7", "all_reduce", "its own code"] {
        assert!(verdict.reason.contains(part), "{}", verdict.reason);
    }
    assert!(verdict.latency_s < 7.5);
}

#[test]
fn a_look_that_comes_late_is_told_once_more() {
    let mut c = trained(2);
    c.hang(1, |sample| sample.state = 'T');
    assert!(alarm(&mut c, 2_000).card.unwrap().guilty.unwrap().at.is_empty());
    c.agents[0].inspections.insert(1, look_at(1, "step", "env.rs", 5));
    c.pass(12_000);
    let told = verdicts(&c);
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(told[1].card.as_ref().unwrap().guilty.as_ref().unwrap().at, "env.rs:5 in step");
    assert_eq!((told[0].first_s, told[1].first_s), (told[0].latency_s, told[0].latency_s));
    assert!(told[1].latency_s > told[0].latency_s, "{told:?}");
    assert!(c.model().verdicts[0].latency_s > 10.0 && c.model().verdicts[0].first_s < 2.0);
}
