//! Stuck ranks: stopped, frozen, blocked on a lock, storage, a worker or another obstacle, in an endless loop, or
//! never at the rendezvous.

use super::lab::*;
use crate::reason::Reason;
use crate::report::{Confidence, Severity, VerdictKind, VerdictReport};
use crate::testkit::*;
use rankdeck_proto::inspection::{
    BlockingProcess, Frame, HOLDS_GIL, Inspection, OF_CHILD, Obstacle, Pressure, StackMethod, ThreadStack,
};
use rankdeck_proto::message::*;
use rankdeck_types::ids::Rank;

#[test]
fn p7_stopped_rank_clears_when_resumed() {
    let mut c = trained(2);
    c.hang(1, |sample| sample.state = 'T');
    let verdict = alarm(&mut c, 2_000);
    expect(&verdict, Some(1), Reason::Stopped);
    insta::assert_snapshot!("stopped_rank", verdict_text(&verdict));
    assert!(verdict.card.actions[0].command.contains("kill -CONT 1001"));
    assert!(verdict.card.waiter.unwrap().call.unwrap().inside);
    c.release();
    c.pass(1_000);
    assert_eq!(c.verdicts().last(), Some(&(VerdictKind::Frozen, Some(1), Severity::Cleared)));
}

#[test]
fn p8_frozen_cgroup_is_named() {
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
fn p9_unresponsive_storage_is_named() {
    let mut c = trained(2);
    c.hang(0, |sample| {
        sample.state = 'D';
        sample.wchan = "percpu_rwsem_wait".into();
        sample.page.as_mut().unwrap().phase = Phase::Checkpoint;
    });
    let verdict = alarm(&mut c, 8_000);
    expect(&verdict, Some(0), Reason::Storage);
    assert!(verdict.card.culprit.unwrap().os.contains("percpu_rwsem_wait"));
}

#[test]
fn p12_lock_is_named_with_file_and_line() {
    let mut c = trained(1);
    let mut inspection = inspection_at(1, "replay::gather", "src/trainer/replay/gather.rs", 88);
    let frames = &mut inspection.threads[0].frames;
    for line in 1..20 {
        let file = Some("/rustc/5980/library/core/src/iter/adapters/map.rs".into());
        frames.push(Frame { function: "fold".into(), file, line: Some(line) });
    }
    let file = Some("src/trainer/algo/ppg.rs".into());
    frames.push(Frame { function: "aux_phase".into(), file, line: Some(139) });
    c.agents[0].inspections.insert(1, inspection);
    c.hang(1, |sample| {
        sample.wchan = "futex_do_wait".into();
        let page = sample.page.as_mut().unwrap();
        (page.phase, page.activity) = (Phase::Learn, Activity::Sample);
    });
    let verdict = alarm(&mut c, 7_000);
    expect(&verdict, Some(1), Reason::Lock);
    insta::assert_snapshot!("lock_with_line", verdict.reason);
    assert_eq!(at(&verdict), "src/trainer/replay/gather.rs:88 in replay::gather");
    let card = verdict.card;
    let culprit = card.culprit.unwrap();
    // Below what it is blocked in stand the program's own frames, not those of libraries.
    assert!(culprit.stack.iter().any(|frame| frame.contains("ppg.rs:139")), "{:?}", culprit.stack);
    assert!(culprit.stack.len() <= 12);
    assert_eq!(card.waiter.unwrap().rank, Rank(0));
}

#[test]
fn p13_sleeping_or_dead_env_workers_are_named() {
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
    insta::assert_snapshot!("dead_env_worker", verdict.reason);
    assert_eq!(verdict.confidence, Confidence::Certain);
}

#[test]
fn p13_stopped_worker_is_named_for_every_wait() {
    let mut c = trained(2);
    c.hang(1, |sample| {
        sample.wchan = "poll_schedule_timeout.constprop.0".into();
        let child =
            ChildSample { pid: 77, name: "python".into(), state: 'T', cpu_ms: 500, ..ChildSample::default() };
        sample.signals.children = vec![child];
    });
    let verdict = alarm(&mut c, 7_000);
    expect(&verdict, Some(1), Reason::EnvWorkerDeadlocked);
    insta::assert_snapshot!("stopped_env_worker", verdict.reason);
}

#[test]
fn p14_endless_loop_is_spinning() {
    let mut c = trained(2);
    c.agents[1].inspections.insert(2, inspection_at(2, "loss", "src/trainer/algo/ppo.rs", 12));
    c.hang(2, |sample| {
        (sample.state, sample.cpu_percent) = ('R', 100.0);
        sample.page.as_mut().unwrap().phase = Phase::Learn;
        sample.signals.cpu_ms = 0;
    });
    let verdict = alarm(&mut c, 7_000);
    expect(&verdict, Some(2), Reason::Spinning);
    assert_eq!(at(&verdict), "src/trainer/algo/ppo.rs:12 in loss");
}

#[test]
fn p14_endless_loop_on_busy_host_is_reported_later() {
    let mut c = trained(2);
    for agent in &mut c.agents {
        agent.signals.pressure = Some(Pressure { cpu: 90.0, ..Pressure::default() });
    }
    c.agents[1].inspections.insert(2, inspection_at(2, "loss", "src/trainer/algo/ppo.rs", 12));
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
fn p15_held_gil_is_named() {
    let mut c = trained(2);
    let inspection = Inspection {
        rank: Rank(1),
        notes: vec![format!("thread 1001 {HOLDS_GIL}")],
        sleeps_in_c: true,
        ..Inspection::default()
    };
    c.agents[0].inspections.insert(1, inspection.clone());
    c.hang(1, |sample| sample.wchan = "hrtimer_nanosleep".into());
    expect(&alarm(&mut c, 7_000), Some(1), Reason::GilHeld);

    // Python code that computes holds it, too, and gives it away when it is asked.
    let mut c = trained(2);
    c.agents[0].inspections.insert(1, inspection);
    c.hang(1, |sample| {
        (sample.state, sample.cpu_percent) = ('R', 100.0);
        sample.signals.cpu_ms = 0;
    });
    expect(&alarm(&mut c, 7_000), Some(1), Reason::Spinning);
}

#[test]
fn p24_rank_missing_at_rendezvous_is_named() {
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
fn p24_rank_without_program_is_named() {
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
fn p24_start_with_a_core_gets_no_extra_time() {
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
fn p24_rank_that_computes_at_start_is_named_with_line() {
    let mut c = Cluster::launch(2);
    c.all_ready();
    for rank in 0..3 {
        let page = page(&mut c, rank);
        *page = PageSample { phase: Phase::Rendezvous, phase_progress: u64::MAX, ..PageSample::default() };
    }
    c.agents[1].inspections.insert(3, inspection_at(3, "build", "/w/train.py", 55));
    for step in 0..180 {
        let late = sample(&mut c, 3);
        (late.page, late.state) = (None, 'R');
        late.signals.main = Some(MainThread { cpu_us: step * 250_000, ..MainThread::default() });
        c.pass(250);
    }
    let verdict = verdicts(&c).remove(0);
    assert_eq!((verdict.rank, verdict.reason_code), (Some(Rank(3)), Reason::RendezvousIncomplete));
    assert!(verdict.reason.contains("is computing at /w/train.py:55 in build"), "{}", verdict.reason);
}

#[test]
fn wait_chain_across_groups_names_its_end() {
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
fn p30_hook_counters_name_python_rank() {
    let mut c = trained(2);
    drive(&mut c, 5_000, |_, now, sample| sample.page = Some(hooked(now / 250, now / 250, 10)));
    let (seq, since) = (c.now.0 / 250, c.now.0);
    c.agents[0].inspections.insert(1, inspection_at(1, "gather", "train/algo.py", 7));
    drive(&mut c, 8_000, |rank, now, sample| {
        sample.page = Some(hooked(if rank == 1 { seq } else { seq + 1 }, seq, now - since));
        sample.wchan = "futex_do_wait".into();
    });
    let verdict = verdicts(&c).first().cloned().expect("a verdict");
    expect(&verdict, Some(1), Reason::Lock);
    insta::assert_snapshot!("python_rank", verdict.reason);
    assert!(verdict.latency_s < 7.5);
}

/// A native program holds a lock below functions with long names; a Python worker of it waits for orders.
#[test]
fn own_line_below_long_names_is_in_evidence() {
    let mut c = trained(1);
    let mut inspection = inspection_at(1, "row", "src/trainer/inject/injection.rs", 489);
    let frame = |function: String, file: &str| Frame { function, file: Some(file.into()), line: Some(165) };
    let generic = format!("<{}>::aux_phase", "rankdeck_trainer[0123456789abcdef]::algo::Generic".repeat(6));
    inspection.threads[0].frames.push(frame(generic, "src/trainer/algo/ppg.rs"));
    inspection.threads.insert(
        0,
        ThreadStack {
            tid: 2001,
            name: format!("{OF_CHILD}2001 (python3)"),
            how: StackMethod::Python,
            frames: vec![frame("serve".into(), "/w/worker.py")],
        },
    );
    c.agents[0].inspections.insert(1, inspection);
    c.hang(1, |sample| {
        sample.wchan = "futex_do_wait".into();
        sample.page.as_mut().unwrap().phase = Phase::Learn;
    });
    let verdict = alarm(&mut c, 7_000);
    expect(&verdict, Some(1), Reason::Lock);
    let side = verdict.card.culprit.clone().unwrap();
    assert_eq!(side.at, "src/trainer/inject/injection.rs:489 in row");
    assert!(side.stack.iter().any(|line| line.ends_with("src/trainer/algo/ppg.rs:165")), "{side:?}");
}

#[test]
fn late_inspection_is_reported_again() {
    let mut c = trained(2);
    c.hang(1, |sample| sample.state = 'T');
    assert!(alarm(&mut c, 2_000).card.culprit.unwrap().at.is_empty());
    c.agents[0].inspections.insert(1, inspection_at(1, "step", "env.rs", 5));
    c.pass(12_000);
    let reported = verdicts(&c);
    assert_eq!(reported.len(), 2, "{reported:?}");
    assert_eq!(reported[1].card.culprit.as_ref().unwrap().at, "env.rs:5 in step");
    assert_eq!((reported[0].first_s, reported[1].first_s), (reported[0].latency_s, reported[0].latency_s));
    assert!(reported[1].latency_s > reported[0].latency_s, "{reported:?}");
    assert!(c.model().verdicts[0].latency_s > 10.0 && c.model().verdicts[0].first_s < 2.0);
}

/// Symbols take a while on a busy host: the first inspection may end before it has read a stack.
#[test]
fn later_stack_is_reported_once() {
    let mut c = trained(2);
    let bare = Inspection {
        rank: Rank(1),
        pid: Some(1001),
        blocked_on: Some("a timer".into()),
        ..Default::default()
    };
    c.agents[0].inspections.insert(1, bare.clone());
    c.hang(1, |sample| sample.state = 'T');
    alarm(&mut c, 2_000);
    c.pass(2_000);
    assert!(verdicts(&c).iter().all(|verdict| verdict.card.culprit.as_ref().unwrap().stack.is_empty()));
    c.agents[0].inspections.insert(1, inspection_at(1, "step", "env.rs", 5));
    c.pass(6_000);
    c.agents[0].inspections.insert(1, bare);
    c.pass(30_000);
    let reported = verdicts(&c);
    let stacks = reported.iter().filter(|verdict| !verdict.card.culprit.as_ref().unwrap().stack.is_empty());
    assert_eq!(stacks.count(), 1, "{reported:?}");
}

fn holder(name: &str, ours: bool) -> BlockingProcess {
    BlockingProcess { pid: 77, name: name.into(), state: 'S', does: "clock_nanosleep".into(), ours }
}

/// The stack of a Python rank, innermost file first.
fn stack(rank: u32, files: &[&str]) -> ThreadStack {
    let frame = |file: &&str| Frame { function: "f".into(), file: Some((*file).into()), line: Some(9) };
    ThreadStack {
        tid: 1000 + rank,
        how: StackMethod::Python,
        frames: files.iter().map(frame).collect(),
        ..ThreadStack::default()
    }
}

/// The verdict about a script's rank 1 with this inspection; it waits in `wchan` and has one idle child.
fn reported(wchan: &str, inspection: Inspection) -> VerdictReport {
    let mut c = trained(2);
    let inspection = Inspection { rank: rankdeck_types::ids::Rank(1), pid: Some(1001), ..inspection };
    c.agents[0].inspections.insert(1, inspection);
    drive(&mut c, 5_000, |_, now, sample| sample.page = Some(hooked(now / 250, now / 250, 10)));
    let (seq, since) = (c.now.0 / 250, c.now.0);
    drive(&mut c, 12_000, |rank, now, sample| {
        sample.wchan = if rank == 1 { wchan.into() } else { "futex_do_wait".into() };
        sample.cpu_percent = 0.0;
        sample.page = Some(hooked(if rank == 1 { seq } else { seq + 1 }, seq, now - since));
        if rank == 1 {
            sample.signals.children = vec![ChildSample {
                pid: 77,
                name: "child".into(),
                state: 'S',
                parent: 1001,
                ..ChildSample::default()
            }];
        }
    });
    let verdict = verdicts(&c).into_iter().rfind(|verdict| verdict.rank.is_some_and(|rank| rank.0 == 1));
    verdict.unwrap_or_else(|| panic!("no verdict: {:?}", c.verdicts()))
}

#[test]
fn obstacle_is_named_with_line() {
    let threads = || vec![stack(1, &["/usr/lib/python3.11/socket.py", "/w/train.py"])];
    let path = || "/data/index.lock".to_owned();
    let mut sentences = Vec::new();
    for (wchan, obstacle, reason) in [
        (
            "locks_lock_inode_wait",
            Obstacle::FileLock { path: path(), holders: vec![holder("cp a b", false)] },
            Reason::FileLock,
        ),
        (
            "locks_lock_inode_wait",
            Obstacle::FileLock { path: path(), holders: vec![holder("python", true)] },
            Reason::FileLock,
        ),
        (
            "wait_for_partner",
            Obstacle::Fifo { path: "/w/orders".into(), reads: true, opening: true },
            Reason::Fifo,
        ),
        (
            "poll_schedule_timeout",
            Obstacle::NameServer { server: "10.0.0.2:53".into(), name: "sim.local".into() },
            Reason::NameLookup,
        ),
        (
            "wait_woken",
            Obstacle::Connection { peer: "127.0.0.1:7000".into(), owner: Some(holder("simulator", true)) },
            Reason::WaitsForPeer,
        ),
        (
            "poll_schedule_timeout",
            Obstacle::Connection { peer: "10.0.0.9:7000".into(), owner: None },
            Reason::WaitsForPeer,
        ),
        (
            "unix_stream_read_generic",
            Obstacle::Connection { peer: "/w/sim.sock".into(), owner: Some(holder("simulator", true)) },
            Reason::WaitsForPeer,
        ),
        ("inet_csk_accept", Obstacle::Listener { at: "port 7000".into() }, Reason::WaitsForPeer),
        (
            "hrtimer_nanosleep",
            Obstacle::FileLock {
                path: "/w/study.db".into(),
                holders: vec![holder("sqlite3 study.db", false)],
            },
            Reason::FileLock,
        ),
        ("do_wait", Obstacle::Child { process: holder("ffmpeg in.mp4", true) }, Reason::ChildProcess),
        ("pipe_write", Obstacle::Pipe { ends: vec![holder("gzip", true)], reads: false }, Reason::Pipe),
        ("anon_pipe_read", Obstacle::Pipe { ends: vec![holder("gzip", true)], reads: true }, Reason::Pipe),
    ] {
        let verdict = reported(
            wchan,
            Inspection { obstacle: Some(obstacle), threads: threads(), ..Inspection::default() },
        );
        // The other end of a connection may be slow.
        let severity = if reason == Reason::WaitsForPeer { Severity::Amber } else { Severity::Red };
        assert_eq!((verdict.reason_code, verdict.severity), (reason, severity), "{}", verdict.reason);
        assert_eq!(at(&verdict), "/w/train.py:9 in f");
        sentences.push(verdict.reason);
    }
    insta::assert_snapshot!("obstacles", sentences.join("\n"));
}

/// The built-in trainer evaluates, and one of its workers waits for a lock that another program holds.
#[test]
fn lock_held_outside_is_named_in_long_phases() {
    let mut c = trained(2);
    let obstacle =
        Obstacle::FileLock { path: "/data/rom.lock".into(), holders: vec![holder("cp a b", false)] };
    let inspection = Inspection { obstacle: Some(obstacle), ..inspection_at(1, "step", "/w/env.py", 52) };
    c.agents[0].inspections.insert(1, inspection);
    c.hang(1, |sample| {
        sample.wchan = "unix_stream_read_generic".into();
        sample.signals.children = vec![ChildSample { pid: 77, state: 'S', ..ChildSample::default() }];
        let page = sample.page.as_mut().unwrap();
        (page.phase, page.activity) = (Phase::Eval, Activity::EnvStep);
    });
    c.pass(45_000);
    let found = verdicts(&c).into_iter().find(|verdict| verdict.rank == Some(Rank(1))).unwrap();
    assert_eq!((found.severity, found.reason_code), (Severity::Amber, Reason::FileLock), "{}", found.reason);
    assert!(found.reason.contains("/data/rom.lock"), "{}", found.reason);
}

#[test]
fn only_environment_workers_are_named_so() {
    let pipe = || Some(Obstacle::Pipe { ends: vec![holder("python train.py", true)], reads: true });
    for (files, reason) in [
        (vec!["/usr/lib/python3.11/multiprocessing/connection.py", "/w/train.py"], Reason::Pipe),
        (
            vec!["/site-packages/gymnasium/vector/async_vector_env.py", "/w/train.py"],
            Reason::EnvWorkerDeadlocked,
        ),
        (
            vec![
                "/usr/lib/python3.11/multiprocessing/queues.py",
                "/site-packages/torch/utils/data/dataloader.py",
                "/w/train.py",
            ],
            Reason::DataLoader,
        ),
        (vec!["/usr/lib/python3.11/subprocess.py", "/w/train.py"], Reason::Pipe),
    ] {
        let threads = vec![stack(1, &files)];
        let verdict =
            reported("anon_pipe_read", Inspection { obstacle: pipe(), threads, ..Inspection::default() });
        assert_eq!(verdict.reason_code, reason, "{files:?}: {}", verdict.reason);
    }
}

#[test]
fn c_code_holding_gil_is_named() {
    let threads = vec![stack(1, &["/usr/lib/python3.11/re/__init__.py", "/w/train.py"])];
    let verdict = reported("", Inspection { computes_in_c: true, threads, ..Inspection::default() });
    assert_eq!(
        (verdict.reason_code, verdict.severity),
        (Reason::GilHeld, Severity::Amber),
        "{}",
        verdict.reason
    );
    assert_eq!(at(&verdict), "/w/train.py:9 in f");
}

#[test]
fn cgroup_at_memory_limit_is_thrashing() {
    for (stall, hits, faults) in [(150, 0, 0), (0, 50, 40)] {
        let mut c = trained(2);
        drive(&mut c, 5_000, |_, now, sample| sample.page = Some(hooked(now / 250, now / 250, 10)));
        let (seq, since) = (c.now.0 / 250, c.now.0);
        drive(&mut c, 12_000, |rank, now, sample| {
            sample.page = Some(hooked(if rank == 1 { seq } else { seq + 1 }, seq, now - since));
            if rank == 1 {
                let turns = (now - since) / 250;
                sample.state = 'R';
                sample.signals.major_faults = turns * faults;
                let cgroup = CgroupSample {
                    memory_stall_ms: turns * stall,
                    limit_hits: turns * hits,
                    ..CgroupSample::default()
                };
                sample.signals.cgroup = Some(cgroup);
            }
        });
        let verdict = verdicts(&c).pop().unwrap();
        assert_eq!(verdict.reason_code, Reason::Thrashing, "{}", verdict.reason);
    }
}

/// Paths of the machine that built the program help no one.
#[test]
fn rust_library_frames_are_not_in_evidence() {
    let files =
        ["/rustc/5980/library/core/src/slice/mod.rs", "/rustc/5980/library/core/src/iter.rs", "/w/reduce.rs"];
    let inspection = Inspection { threads: vec![stack(1, &files)], ..Inspection::default() };
    let verdict = reported("poll_schedule_timeout", inspection);
    let stack = &verdict.card.culprit.as_ref().expect("a culprit").stack;
    assert!(stack.iter().any(|frame| frame.contains("/w/reduce.rs:9")), "{stack:?}");
    assert!(!stack.iter().any(|frame| frame.contains("/rustc/")), "{stack:?}");
}
