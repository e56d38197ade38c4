//! Ranks that are blocked on something with a name.

use crate::reason::Reason;
use crate::report::{Severity, VerdictReport};
use crate::watch::tests::lab::*;
use rankdeck_proto::inspection::{Frame, Holder, How, Inspection, Obstacle, ThreadStack};
use rankdeck_proto::message::*;

fn holder(name: &str, ours: bool) -> Holder {
    Holder { pid: 77, name: name.into(), state: 'S', does: "clock_nanosleep".into(), ours }
}

/// The stack of a Python rank, innermost file first.
fn stack(rank: u32, files: &[&str]) -> ThreadStack {
    let frame = |file: &&str| Frame { function: "f".into(), file: Some((*file).into()), line: Some(9) };
    ThreadStack {
        tid: 1000 + rank,
        how: How::Python,
        frames: files.iter().map(frame).collect(),
        ..ThreadStack::default()
    }
}

/// What is said of a script's rank 1 that a look found like this; it waits in `wchan` and has one idle child.
fn told(wchan: &str, look: Inspection) -> VerdictReport {
    let mut c = trained(2);
    let look = Inspection { rank: rankdeck_types::ids::Rank(1), pid: Some(1001), ..look };
    c.agents[0].inspections.insert(1, look);
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
    verdict.unwrap_or_else(|| panic!("nothing is said: {:?}", c.verdicts()))
}

#[test]
fn what_a_rank_is_blocked_on_is_named_with_its_line() {
    let at = || vec![stack(1, &["/usr/lib/python3.11/socket.py", "/w/train.py"])];
    let path = || "/data/index.lock".to_owned();
    for (wchan, obstacle, reason, words) in [
        (
            "locks_lock_inode_wait",
            Obstacle::FileLock { path: path(), holders: vec![holder("cp a b", false)] },
            Reason::FileLock,
            "/data/index.lock, held by pid 77 (cp a b: clock_nanosleep), not of this run",
        ),
        (
            "locks_lock_inode_wait",
            Obstacle::FileLock { path: path(), holders: vec![holder("python", true)] },
            Reason::FileLock,
            "/data/index.lock",
        ),
        (
            "wait_for_partner",
            Obstacle::Fifo { path: "/w/orders".into(), reads: true, opening: true },
            Reason::Fifo,
            "FIFO /w/orders",
        ),
        (
            "poll_schedule_timeout",
            Obstacle::NameServer { server: "10.0.0.2:53".into(), name: "sim.local".into() },
            Reason::NameLookup,
            "10.0.0.2:53 about sim.local",
        ),
        (
            "wait_woken",
            Obstacle::Connection { peer: "127.0.0.1:7000".into(), owner: Some(holder("simulator", true)) },
            Reason::WaitsForPeer,
            "127.0.0.1:7000 to answer: pid 77 (simulator",
        ),
        (
            "poll_schedule_timeout",
            Obstacle::Connection { peer: "10.0.0.9:7000".into(), owner: None },
            Reason::WaitsForPeer,
            "10.0.0.9:7000",
        ),
        (
            "unix_stream_read_generic",
            Obstacle::Connection { peer: "/w/sim.sock".into(), owner: Some(holder("simulator", true)) },
            Reason::WaitsForPeer,
            "/w/sim.sock to answer: pid 77 (simulator",
        ),
        (
            "inet_csk_accept",
            Obstacle::Listener { at: "port 7000".into() },
            Reason::WaitsForPeer,
            "somebody to connect to port 7000",
        ),
        (
            "hrtimer_nanosleep",
            Obstacle::FileLock {
                path: "/w/study.db".into(),
                holders: vec![holder("sqlite3 study.db", false)],
            },
            Reason::FileLock,
            "a lock on /w/study.db, held by pid 77 (sqlite3 study.db: clock_nanosleep), not of this run",
        ),
        (
            "do_wait",
            Obstacle::Child { process: holder("ffmpeg in.mp4", true) },
            Reason::ChildProcess,
            "ffmpeg in.mp4",
        ),
        (
            "pipe_write",
            Obstacle::Pipe { ends: vec![holder("gzip", true)], reads: false },
            Reason::Pipe,
            "gzip",
        ),
        (
            "anon_pipe_read",
            Obstacle::Pipe { ends: vec![holder("gzip", true)], reads: true },
            Reason::Pipe,
            "gzip",
        ),
    ] {
        let verdict =
            told(wchan, Inspection { obstacle: Some(obstacle), threads: at(), ..Inspection::default() });
        assert_eq!((verdict.reason_code, verdict.severity), (reason, Severity::Red), "{}", verdict.reason);
        assert!(
            verdict.reason.contains(words) && verdict.reason.contains("/w/train.py:9"),
            "{}",
            verdict.reason
        );
    }
}

#[test]
fn only_workers_of_environments_are_called_so() {
    let pipe = || Some(Obstacle::Pipe { ends: vec![holder("python train.py", true)], reads: true });
    for (files, reason) in [
        (
            vec!["/usr/lib/python3.11/multiprocessing/connection.py", "/w/train.py"],
            Reason::EnvWorkerDeadlocked,
        ),
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
            told("anon_pipe_read", Inspection { obstacle: pipe(), threads, ..Inspection::default() });
        assert_eq!(verdict.reason_code, reason, "{files:?}: {}", verdict.reason);
    }
}

#[test]
fn c_code_that_keeps_the_interpreter_lock_is_named_as_that() {
    let threads = vec![stack(1, &["/usr/lib/python3.11/re/__init__.py", "/w/train.py"])];
    let verdict = told("", Inspection { computes_in_c: true, threads, ..Inspection::default() });
    assert_eq!(
        (verdict.reason_code, verdict.severity),
        (Reason::GilHeld, Severity::Amber),
        "{}",
        verdict.reason
    );
    assert!(
        verdict.reason.contains("C code that holds the Python interpreter lock at /w/train.py:9"),
        "{}",
        verdict.reason
    );
}

#[test]
fn a_group_at_its_limit_of_memory_thrashes_and_does_not_spin() {
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

/// Paths of the machine that built the program help nobody.
#[test]
fn frames_of_rusts_own_library_are_on_no_card() {
    let files =
        ["/rustc/5980/library/core/src/slice/mod.rs", "/rustc/5980/library/core/src/iter.rs", "/w/reduce.rs"];
    let look = Inspection { threads: vec![stack(1, &files)], ..Inspection::default() };
    let verdict = told("poll_schedule_timeout", look);
    let stack = &verdict.card.guilty.as_ref().expect("somebody is blamed").stack;
    assert!(stack.iter().any(|frame| frame.contains("/w/reduce.rs:9")), "{stack:?}");
    assert!(!stack.iter().any(|frame| frame.contains("/rustc/")), "{stack:?}");
}
