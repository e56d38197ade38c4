//! Stalls in which no rank waits for another, ranks that stay after the end, and losses that heal.

use super::lab::*;
use crate::reason::Reason;
use crate::report::{Severity, VerdictReport};
use crate::testkit::*;
use rankdeck_proto::inspection::{Holder, Inspection, Obstacle, Socket};
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

/// Nothing moves on any rank for so long.
fn still(c: &mut Cluster, ms: u64, hook: Option<u64>, wchan: &str) {
    let since = c.now.0;
    drive(c, ms, |_, now, sample| {
        sample.page = hook.map(|seq| hooked(seq, seq, now - since));
        sample.wchan = wchan.into();
    });
}

fn told(c: &Cluster) -> Vec<(Option<u32>, Severity, Reason)> {
    let of =
        |verdict: VerdictReport| (verdict.rank.map(|rank| rank.0), verdict.severity, verdict.reason_code);
    verdicts(c).into_iter().map(of).collect()
}

#[test]
fn a_lock_that_all_ranks_want_is_one_verdict_with_its_cause() {
    let mut c = trained(2);
    let seq = script(&mut c, true);
    for rank in 0..4 {
        let mut look = look_at(rank, "save", "train.py", 70);
        look.blocked_on = Some(format!("flock of /shared/best.lock held by pid 99{rank}"));
        c.agents[rank as usize / 2].inspections.insert(rank, look);
    }
    still(&mut c, 45_000, Some(seq), "flock_lock_inode_wait");
    let amber = (None, Severity::Amber, Reason::Standstill);
    assert_eq!(told(&c), [amber, (None, Severity::Red, Reason::Standstill)]);
    let verdict = verdicts(&c).remove(1);
    for part in ["none of the 4 ranks", "flock of /shared/best.lock", "train.py:70 in save"] {
        assert!(verdict.reason.contains(part), "{part}: {}", verdict.reason);
    }
    let evidence = verdict.card.evidence().join("\n");
    assert!(evidence.contains("rank 3 on bee waits for flock"), "{evidence}");
    assert!(verdicts(&c)[0].latency_s < 13.0 && verdict.latency_s < 35.0, "{:?}", c.verdicts());
    drive(&mut c, 1_000, |_, now, sample| moving(sample, now, true));
    assert_eq!(told(&c).last().unwrap().1, Severity::Cleared);
}

/// Storage that hangs, a name server, an environment server: whatever all of them wait for is named.
#[test]
fn a_stall_of_all_ranks_is_named_by_what_all_of_them_wait_for() {
    let connection = |owner| Obstacle::Connection { peer: "10.0.0.9:6000".into(), owner };
    let server = Holder { pid: 7, name: "env_server".into(), state: 'T', ours: true, ..Holder::default() };
    let asked = Obstacle::NameServer { server: "10.0.0.53".into(), name: "store.lan".into() };
    let poll = "several descriptors at once (poll)";
    for (state, wchan, blocked_on, obstacle, words) in [
        ('D', "nfs_wait_bit_killable", "write on /shared/a.pt", None, "the kernel: write on /shared/a.pt"),
        ('D', "folio_wait_bit", "", None, "storage that does not answer"),
        ('S', "do_sys_poll", poll, Some(asked), "the name server 10.0.0.53 about store.lan"),
        ('S', "wait_woken", "read on a socket", Some(connection(None)), "10.0.0.9:6000 to answer"),
        ('S', "wait_woken", "read on a socket", Some(connection(Some(server))), "pid 7 (env_server)"),
    ] {
        for hook in [true, false] {
            let mut c = trained(2);
            let seq = script(&mut c, hook);
            for rank in 0..4 {
                let mut look = look_at(rank, "step", "train.py", 70);
                look.blocked_on = Some(blocked_on.to_owned()).filter(|words| !words.is_empty());
                look.obstacle = obstacle.clone();
                c.agents[rank as usize / 2].inspections.insert(rank, look);
            }
            let since = c.now.0;
            drive(&mut c, 45_000, |_, now, sample| {
                sample.page = hook.then(|| hooked(seq, seq, now - since));
                (sample.state, sample.wchan) = (state, wchan.into());
            });
            assert_eq!(reds(&c), [(None, Reason::Standstill)], "{words}");
            let reason = verdicts(&c).pop().unwrap().reason;
            assert!(reason.contains(words) && reason.contains("train.py:70 in step"), "{words}: {reason}");
        }
    }
}

#[test]
fn without_the_hook_stacks_tell_which_rank_the_others_wait_for() {
    let mut c = trained(2);
    script(&mut c, false);
    for rank in 0..4 {
        let (file, line) =
            if rank == 2 { ("train.py", 33) } else { ("/venv/torch/distributed/distributed_c10d.py", 2800) };
        c.agents[rank as usize / 2].inspections.insert(rank, look_at(rank, "gather", file, line));
    }
    still(&mut c, 45_000, None, "futex_do_wait");
    assert_eq!(reds(&c), [(Some(2), Reason::Standstill)]);
    assert!(verdicts(&c)[0].reason.contains("train.py:33"), "{:?}", verdicts(&c)[0].reason);
}

#[test]
fn a_run_that_pauses_again_and_again_is_given_its_time() {
    let mut c = trained(2);
    for _ in 0..3 {
        let seq = script(&mut c, true);
        still(&mut c, 9_000, Some(seq), "wait_woken");
    }
    assert_eq!(told(&c), []);
    let seq = script(&mut c, true);
    still(&mut c, 25_000, Some(seq), "wait_woken");
    let told = verdicts(&c);
    assert!(told.len() == 1 && told[0].latency_s >= 14.0, "twice the longest pause: {told:?}");
}

#[test]
fn a_run_of_which_anything_moves_does_not_stand_still() {
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
        assert_eq!(told(&c), []);
    }
}

#[test]
fn a_tracker_that_came_after_the_first_sample_hides_no_stall_of_a_script_without_pages() {
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
fn a_launcher_that_waits_for_the_program_does_not_stand_still() {
    let mut c = trained(1);
    drive(&mut c, 60_000, |_, now, sample| {
        (sample.page, sample.wchan) = (None, "do_wait".into());
        sample.signals.main = Some(MainThread { cpu_us: 3_000, turns: 9, io_bytes: 70, net_bytes: None });
        sample.signals.children =
            vec![ChildSample { pid: 7, cpu_ms: now / 50, io_bytes: now / 100, ..ChildSample::default() }];
    });
    assert_eq!(told(&c), []);
}

#[test]
fn a_young_run_is_given_the_budget_of_a_start() {
    let mut c = Cluster::launch(1);
    c.all_ready();
    drive(&mut c, 5_000, |_, now, sample| moving(sample, now, false));
    still(&mut c, 100_000, None, "wait_woken");
    assert_eq!(reds(&c), []);
    still(&mut c, 40_000, None, "wait_woken");
    assert_eq!(reds(&c).len(), 1);
}

/// It trained from its first seconds on: what a start may take says nothing about it.
#[test]
fn a_young_run_that_trains_is_past_its_start() {
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
fn a_process_that_stays_after_its_training_is_told() {
    for (hook, phase) in [(true, Phase::Teardown), (true, Phase::Learn), (false, Phase::Init)] {
        let mut c = trained(2);
        let seq = script(&mut c, hook);
        let page = |age| PageSample { phase, phase_age_ms: age, ..hooked(seq, seq, age) };
        for rank in [0, 1, 3] {
            c.exit_of(rank, Exit::Code { code: 0 }, false);
        }
        let since = c.now.0;
        // It uploads what it has learnt, and then a thread keeps it.
        drive(&mut c, 30_000, |_, now, sample| {
            sample.page = hook.then(|| page(now - since));
            sample.signals.main.as_mut().unwrap().io_bytes = now;
        });
        assert_eq!(told(&c), []);
        drive(&mut c, 15_000, |_, now, sample| sample.page = hook.then(|| page(now - since)));
        assert_eq!(told(&c), [(Some(2), Severity::Red, Reason::TeardownStall)], "{phase:?}");
    }
}

#[test]
fn losses_that_heal_are_the_networks_and_blame_nobody() {
    let earlier = |flaps: bool, backoff: u32| {
        let mut c = trained(2);
        let seq = script(&mut c, true);
        for (rank, own, other) in [(0u32, "10.0.0.1", "10.0.0.2"), (2, "10.0.0.2", "10.0.0.1")] {
            let backoff = if rank == 0 { backoff } else { 0 };
            let (local, peer) = (format!("{own}:100{rank}"), format!("{other}:200"));
            let socket = Socket { local, peer, backoff, retransmits: backoff, ..Socket::default() };
            let look = Inspection { rank: Rank(rank), sockets: vec![socket], ..Inspection::default() };
            c.agents[rank as usize / 2].inspections.insert(rank, look);
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
        assert_eq!(told(&c), [(None, Severity::Amber, Reason::NetworkLoss)], "flaps {flaps}");
        assert!(verdicts(&c)[0].reason.contains("bee"), "{}", verdicts(&c)[0].reason);
    }
    assert_eq!(reds(&earlier(false, 0)), [(Some(2), Reason::InsideEarlier)]);
}
