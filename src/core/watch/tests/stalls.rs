//! Stalls in which no rank waits for another, ranks that stay after the end, and losses that heal.

use super::lab::*;
use crate::reason::Reason;
use crate::report::{Severity, VerdictReport};
use crate::testkit::*;
use rankdeck_proto::inspection::{BlockingProcess, Inspection, Obstacle, Socket};
use rankdeck_proto::message::*;
use rankdeck_types::ids::Rank;

/// A script that has trained for forty seconds, with or without the hook. Returns its collectives so far.
fn script(c: &mut Cluster, hook: bool) -> u64 {
    drive(c, 40_000, |_, now, sample| moving(sample, now, hook));
    c.now.0 / 250
}

fn moving(sample: &mut RankSample, now: u64, hook: bool) {
    sample.signals.main = Some(MainThread { cpu_us: now * 500, turns: now, io_bytes: now, net_bytes: None });
    sample.signals.cpu_ms = 1_000 + now / 2;
    sample.page = hook.then(|| hooked(now / 250, now / 250, 10));
    sample.wchan = String::new();
}

/// Nothing moves on any rank for this long.
fn still(c: &mut Cluster, ms: u64, hook: Option<u64>, wchan: &str) {
    let since = c.now.0;
    drive(c, ms, |_, now, sample| {
        sample.page = hook.map(|seq| hooked(seq, seq, now - since));
        sample.wchan = wchan.into();
    });
}

fn reported(c: &Cluster) -> Vec<(Option<u32>, Severity, Reason)> {
    let of =
        |verdict: VerdictReport| (verdict.rank.map(|rank| rank.0), verdict.severity, verdict.reason_code);
    verdicts(c).into_iter().map(of).collect()
}

#[test]
fn common_lock_is_one_verdict_with_cause() {
    let mut c = trained(2);
    let seq = script(&mut c, true);
    for rank in 0..4 {
        let mut inspection = inspection_at(rank, "save", "train.py", 70);
        inspection.blocked_on = Some(format!("flock of /shared/best.lock held by pid 99{rank}"));
        c.agents[rank as usize / 2].inspections.insert(rank, inspection);
    }
    still(&mut c, 45_000, Some(seq), "flock_lock_inode_wait");
    let amber = (None, Severity::Amber, Reason::Standstill);
    assert_eq!(reported(&c), [amber, (None, Severity::Red, Reason::Standstill)]);
    let verdict = verdicts(&c).remove(1);
    insta::assert_snapshot!("common_lock", verdict_text(&verdict));
    assert!(verdicts(&c)[0].latency_s < 13.0 && verdict.latency_s < 35.0, "{:?}", c.verdicts());
    drive(&mut c, 1_000, |_, now, sample| moving(sample, now, true));
    assert_eq!(reported(&c).last().unwrap().1, Severity::Cleared);
}

#[test]
fn advice_hides_no_stall() {
    let mut c = trained(2);
    let seq = script(&mut c, true);
    let since = c.now.0;
    drive(&mut c, 45_000, |_, now, sample| {
        sample.page = Some(hooked(seq, seq, now - since));
        (sample.wchan, sample.signals.only_core) = ("futex_do_wait".into(), Some(0));
    });
    let reasons: Vec<Reason> = verdicts(&c).iter().map(|verdict| verdict.reason_code).collect();
    assert!(reasons.contains(&Reason::SharedCore) && reasons.contains(&Reason::Standstill), "{reasons:?}");
}

/// Storage that hangs, a name server, an environment server: whatever all of them wait for is named.
#[test]
fn stall_names_common_obstacle() {
    let connection = |owner| Obstacle::Connection { peer: "10.0.0.9:6000".into(), owner };
    let server = BlockingProcess {
        pid: 7,
        name: "env_server".into(),
        state: 'T',
        ours: true,
        ..BlockingProcess::default()
    };
    let asked = Obstacle::NameServer { server: "10.0.0.53".into(), name: "store.lan".into() };
    let poll = "several descriptors at once (poll)";
    let mut sentences = Vec::new();
    for (state, wchan, blocked_on, obstacle) in [
        ('D', "nfs_wait_bit_killable", "write on /shared/a.pt", None),
        ('D', "folio_wait_bit", "", None),
        ('S', "do_sys_poll", poll, Some(asked)),
        ('S', "wait_woken", "read on a socket", Some(connection(None))),
        ('S', "wait_woken", "read on a socket", Some(connection(Some(server)))),
    ] {
        for hook in [true, false] {
            let mut c = trained(2);
            let seq = script(&mut c, hook);
            for rank in 0..4 {
                let mut inspection = inspection_at(rank, "step", "train.py", 70);
                inspection.blocked_on = Some(blocked_on.to_owned()).filter(|words| !words.is_empty());
                inspection.obstacle = obstacle.clone();
                c.agents[rank as usize / 2].inspections.insert(rank, inspection);
            }
            let since = c.now.0;
            drive(&mut c, 45_000, |_, now, sample| {
                sample.page = hook.then(|| hooked(seq, seq, now - since));
                (sample.state, sample.wchan) = (state, wchan.into());
            });
            assert_eq!(reds(&c), [(None, Reason::Standstill)], "{wchan}");
            sentences.push(verdicts(&c).pop().unwrap().reason);
        }
    }
    insta::assert_snapshot!("stalls_by_obstacle", sentences.join("\n"));
}

#[test]
fn stall_names_the_file_that_different_calls_wait_for() {
    let mut c = trained(2);
    let seq = script(&mut c, true);
    for rank in 0..4 {
        let mut inspection = inspection_at(rank, "load", "train.py", 70);
        let call = if rank == 2 { "openat of" } else { "read on" };
        inspection.blocked_on = Some(format!("{call} /mnt/data/part0 (fuse at /mnt/data)"));
        c.agents[rank as usize / 2].inspections.insert(rank, inspection);
    }
    still(&mut c, 45_000, Some(seq), "request_wait_answer");
    let verdict = verdicts(&c).pop().unwrap();
    assert_eq!(verdict.reason_code, Reason::Standstill);
    assert!(verdict.reason.contains("waiting for /mnt/data/part0"), "{}", verdict.reason);
}

#[test]
fn stacks_name_late_rank_without_hook() {
    let mut c = trained(2);
    script(&mut c, false);
    for rank in 0..4 {
        let (file, line) =
            if rank == 2 { ("train.py", 33) } else { ("/venv/torch/distributed/distributed_c10d.py", 2800) };
        c.agents[rank as usize / 2].inspections.insert(rank, inspection_at(rank, "gather", file, line));
    }
    still(&mut c, 45_000, None, "futex_do_wait");
    assert_eq!(reds(&c), [(Some(2), Reason::Standstill)]);
    assert_eq!(at(&verdicts(&c)[0]), "train.py:33 in gather");
}

#[test]
fn repeated_pauses_raise_stall_threshold() {
    let mut c = trained(2);
    for _ in 0..3 {
        let seq = script(&mut c, true);
        still(&mut c, 9_000, Some(seq), "wait_woken");
    }
    assert_eq!(reported(&c), []);
    let seq = script(&mut c, true);
    still(&mut c, 25_000, Some(seq), "wait_woken");
    let reported = verdicts(&c);
    assert!(reported.len() == 1 && reported[0].latency_s >= 14.0, "twice the longest pause: {reported:?}");
}

#[test]
fn partly_moving_run_is_not_stalled() {
    for hook in [true, false] {
        let mut c = trained(2);
        let seq = script(&mut c, hook);
        let since = c.now.0;
        drive(&mut c, 60_000, |rank, now, sample| {
            sample.page = hook.then(|| hooked(seq, seq, now - since));
            sample.wchan = "hrtimer_nanosleep".into();
            if rank == 3 {
                sample.signals.main.as_mut().unwrap().io_bytes = now / 8_000;
            }
        });
        assert_eq!(reported(&c), []);
    }
}

#[test]
fn late_tracker_hides_no_stall_without_pages() {
    let mut c = trained(1);
    drive(&mut c, 40_000, |rank, now, sample| {
        moving(sample, now, false);
        let tracker =
            ChildSample { pid: 900 + rank, cpu_ms: now / 50, io_bytes: now, ..ChildSample::default() };
        sample.signals.children = vec![tracker];
    });
    drive(&mut c, 45_000, |rank, now, sample| {
        sample.wchan = "futex_do_wait".into();
        let tracker = &mut sample.signals.children[0];
        (tracker.pid, tracker.cpu_ms, tracker.io_bytes) = (900 + rank, now / 50, now);
    });
    assert_eq!(reds(&c), [(None, Reason::Standstill)]);
}

#[test]
fn waiting_launcher_is_not_stalled() {
    let mut c = trained(1);
    drive(&mut c, 60_000, |_, now, sample| {
        (sample.page, sample.wchan) = (None, "do_wait".into());
        sample.signals.main = Some(MainThread { cpu_us: 3_000, turns: 9, io_bytes: 70, net_bytes: None });
        sample.signals.children =
            vec![ChildSample { pid: 7, cpu_ms: now / 50, io_bytes: now / 100, ..ChildSample::default() }];
    });
    assert_eq!(reported(&c), []);
}

#[test]
fn young_run_gets_start_budget() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    drive(&mut c, 5_000, |_, now, sample| moving(sample, now, false));
    still(&mut c, 100_000, None, "wait_woken");
    assert_eq!(reds(&c), []);
    still(&mut c, 40_000, None, "wait_woken");
    assert_eq!(reds(&c).len(), 1);
}

/// It trained from its first seconds on: the budget of a start does not apply.
#[test]
fn young_training_run_gets_no_start_budget() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    let page = |seq, age| PageSample { train_iter: seq, ..hooked(seq, seq, age) };
    drive(&mut c, 5_000, |_, now, sample| {
        moving(sample, now, true);
        sample.page = Some(page(now / 250, 10));
    });
    let since = c.now.0;
    drive(&mut c, 45_000, |_, now, sample| {
        sample.page = Some(page(since / 250, now - since));
        sample.wchan = "locks_lock_inode_wait".into();
    });
    assert_eq!(reds(&c), [(None, Reason::Standstill)]);
}

#[test]
fn process_left_after_training_is_reported() {
    for (hook, phase) in [(true, Phase::Teardown), (true, Phase::Learn), (false, Phase::Init)] {
        let mut c = trained(2);
        let seq = script(&mut c, hook);
        let page = |age| PageSample { phase, phase_age_ms: age, ..hooked(seq, seq, age) };
        for rank in [0, 1, 3] {
            c.exit_of(rank, Exit::Code { code: 0 }, false);
        }
        let since = c.now.0;
        // It uploads what it has learned, and then a thread keeps it.
        drive(&mut c, 30_000, |_, now, sample| {
            sample.page = hook.then(|| page(now - since));
            sample.signals.main.as_mut().unwrap().io_bytes = now;
        });
        assert_eq!(reported(&c), []);
        drive(&mut c, 15_000, |_, now, sample| sample.page = hook.then(|| page(now - since)));
        assert_eq!(reported(&c), [(Some(2), Severity::Red, Reason::TeardownStall)], "{phase:?}");
    }
}

/// All ranks but 2 have exited, which computes for `slices` of five seconds, each in the function of this name.
fn computes_after_the_others(slices: &[&str]) -> Cluster {
    let mut c = trained(2);
    let seq = script(&mut c, true);
    for rank in [0, 1, 3] {
        c.exit_of(rank, Exit::Code { code: 0 }, false);
    }
    let since = c.now.0;
    for function in slices {
        c.agents[1].inspections.insert(2, inspection_at(2, function, "train.py", 9));
        drive(&mut c, 5_000, |_, now, sample| {
            sample.state = 'R';
            sample.page = Some(hooked(seq, seq, now - since));
            sample.signals.cpu_ms = 1_000 + since / 2 + (now - since);
            sample.signals.main.as_mut().unwrap().cpu_us = since * 500 + (now - since) * 1_000;
        });
    }
    c
}

#[test]
fn loop_in_an_exit_handler_is_a_warning_with_its_line() {
    let c = computes_after_the_others(&["flush"; 12]);
    assert_eq!(reported(&c), [(Some(2), Severity::Amber, Reason::TeardownStall)]);
    assert!(at(&verdicts(&c)[0]).contains("train.py:9"));
}

#[test]
fn last_evaluation_after_the_others_is_no_verdict() {
    let functions =
        ["reset", "step", "act", "forward", "log", "save", "plot", "mean", "copy", "read", "sum", "dump"];
    assert_eq!(reported(&computes_after_the_others(&functions)), []);
}

#[test]
fn retransmissions_blame_network_not_rank() {
    let earlier = |flaps: bool, backoff: u32| {
        let mut c = trained(2);
        let seq = script(&mut c, true);
        for (rank, own, other) in [(0u32, "10.0.0.1", "10.0.0.2"), (2, "10.0.0.2", "10.0.0.1")] {
            let backoff = if rank == 0 { backoff } else { 0 };
            let (local, peer) = (format!("{own}:100{rank}"), format!("{other}:200"));
            let socket = Socket { local, peer, backoff, retransmits: backoff, ..Socket::default() };
            let inspection = Inspection { rank: Rank(rank), sockets: vec![socket], ..Inspection::default() };
            c.agents[rank as usize / 2].inspections.insert(rank, inspection);
        }
        let since = c.now.0;
        for node in 0..2 {
            let changes = if flaps && node == 1 { 4 } else { 2 };
            let link = LinkSample { name: "eth0".into(), up: true, carrier_changes: changes };
            for (at, changes) in [(0, 2), (1, changes)] {
                let link = LinkSample { carrier_changes: changes, ..link.clone() };
                c.agents[node].signals.link = Some(link);
                drive(&mut c, 250, |_, now, sample| {
                    sample.page = Some(hooked(seq, seq - 1, now - since + at))
                });
            }
        }
        drive(&mut c, 12_000, |rank, now, sample| {
            let entered = if rank == 2 { seq } else { seq + 1 };
            sample.page = Some(hooked(entered, entered - 1, now - since));
            sample.wchan = "futex_do_wait".into();
        });
        c
    };
    for (flaps, backoff) in [(true, 0), (false, 1)] {
        let c = earlier(flaps, backoff);
        assert_eq!(reported(&c), [(None, Severity::Amber, Reason::NetworkLoss)], "flaps {flaps}");
        insta::assert_snapshot!(format!("retransmissions_flaps_{flaps}"), verdicts(&c)[0].reason);
    }
    assert_eq!(reds(&earlier(false, 0)), [(Some(2), Reason::InsideEarlier)]);
}
