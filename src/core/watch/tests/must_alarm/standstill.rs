//! Ranks that stand still: stopped, frozen, in a lock, in a loop, waiting for storage or a worker, or never
//! there.

use crate::reason::Reason;
use crate::report::{Confidence, Severity, VerdictKind};
use crate::testkit::*;
use crate::watch::tests::lab::*;
use rankdeck_proto::inspection::{Frame, HOLDS_GIL, Inspection, Pressure};
use rankdeck_proto::message::*;
use rankdeck_types::ids::Rank;

#[test]
fn p7_a_stopped_rank_clears_when_it_goes_on() {
    let mut c = trained(2);
    c.hang(1, |sample| sample.state = 'T');
    let verdict = alarm(&mut c, 2_000);
    expect(&verdict, Some(1), Reason::Stopped);
    let card = verdict.card;
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
    assert!(verdict.card.evidence().join(" ").contains("percpu_rwsem_wait"));
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
    let card = verdict.card;
    let guilty = card.guilty.unwrap();
    assert_eq!(guilty.at, at);
    // Below what it is blocked in stand the program's own frames, not those of libraries.
    assert!(guilty.stack.iter().any(|frame| frame.contains("ppg.rs:139")), "{:?}", guilty.stack);
    assert!(guilty.stack.len() <= 12);
    assert_eq!(card.waiter.unwrap().rank, Rank(0));
}

#[test]
fn p13_env_workers_that_sleep_or_have_died() {
    let children = |state| {
        vec![ChildSample { pid: 77, name: "env".into(), state, cpu_ms: 500, ..ChildSample::default() }]
    };
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
        let child =
            ChildSample { pid: 77, name: "python".into(), state: 'T', cpu_ms: 500, ..ChildSample::default() };
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
        sleeps_in_c: true,
        ..Inspection::default()
    };
    c.agents[0].inspections.insert(1, look.clone());
    c.hang(1, |sample| sample.wchan = "hrtimer_nanosleep".into());
    expect(&alarm(&mut c, 7_000), Some(1), Reason::GilHeld);

    // Python code that computes holds it, too, and gives it away when it is asked.
    let mut c = trained(2);
    c.agents[0].inspections.insert(1, look);
    c.hang(1, |sample| {
        (sample.state, sample.cpu_percent) = ('R', 100.0);
        sample.signals.cpu_ms = 0;
    });
    expect(&alarm(&mut c, 7_000), Some(1), Reason::Spinning);
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
fn p24_a_start_that_has_its_core_gets_no_more_time_on_a_busy_host() {
    let mut c = Cluster::launch(2);
    c.all_ready();
    for agent in &mut c.agents {
        agent.signals.pressure = Some(Pressure { cpu: 90.0, ..Pressure::default() });
    }
    for rank in 0..4 {
        let phase = if rank == 3 { Phase::Init } else { Phase::Rendezvous };
        *page(&mut c, rank) = PageSample { phase, phase_progress: u64::MAX, ..PageSample::default() };
    }
    for step in 0..500 {
        let late = sample(&mut c, 3);
        (late.state, late.cpu_percent, late.signals.cpu_ms) = ('R', 90.0, 1_000 + step * 225);
        c.pass(250);
    }
    assert_eq!(reds(&c), [(Some(3), Reason::RendezvousIncomplete)]);
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
            group_seq: seq,
            call: CollectiveCall {
                op: "all_reduce".into(),
                tag: "x".into(),
                group: name.into(),
                ..CollectiveCall::default()
            },
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
    assert!(alarm(&mut c, 2_000).card.guilty.unwrap().at.is_empty());
    c.agents[0].inspections.insert(1, look_at(1, "step", "env.rs", 5));
    c.pass(12_000);
    let told = verdicts(&c);
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(told[1].card.guilty.as_ref().unwrap().at, "env.rs:5 in step");
    assert_eq!((told[0].first_s, told[1].first_s), (told[0].latency_s, told[0].latency_s));
    assert!(told[1].latency_s > told[0].latency_s, "{told:?}");
    assert!(c.model().verdicts[0].latency_s > 10.0 && c.model().verdicts[0].first_s < 2.0);
}
