//! Healthy programs whose evidence looks like trouble: cores are short, what was seen is over, or what a rank
//! waits for will come by itself. Beside each, the same evidence where it means trouble.

use super::lab::*;
use crate::reason::Reason;
use crate::report::{Confidence, Severity};
use crate::testkit::*;
use rankdeck_proto::inspection::{
    Frame, HOLDS_GIL, Holder, How, Inspection, Obstacle, OsState, Pressure, Socket, ThreadStack,
};
use rankdeck_proto::message::*;
use rankdeck_types::ids::Rank;

/// What the late rank of a script does: milliseconds since the others wait, its sample, and what a close look
/// that begins now would show.
type Does<'a> = &'a dyn Fn(u64, &mut RankSample, &mut Inspection);

/// How full the hosts are: pressure of the CPU, and tasks for each core.
type Cores = Option<f32>;
pub(super) const FREE: Cores = None;
pub(super) const FULL: Cores = Some(4.0);

/// A script that trains for ten seconds; then rank 1 is late for `ms`, in a lock unless `does` says more.
pub(super) fn script(cores: Cores, ms: u64, does: Does<'_>) -> Cluster {
    let mut c = trained(2);
    for agent in &mut c.agents {
        agent.signals.pressure = cores.map(|_| Pressure { cpu: 95.0, ..Pressure::default() });
        agent.load1 = 2.0 * cores.unwrap_or(0.1);
    }
    let main = |cpu_us| Some(MainThread { cpu_us, turns: 70, io_bytes: 9, net_bytes: Some(5_000) });
    drive(&mut c, 10_000, |_, now, sample| {
        sample.signals.main = main(now * 500);
        sample.page = Some(hooked(now / 250, now / 250, 10));
    });
    let (seq, since) = (c.now.0 / 250, c.now.0);
    for _ in 0..ms / 250 {
        let (at, mut look) = (c.now.0 + 250 - since, look_at(1, "step", "train.py", 55));
        drive(&mut c, 250, |rank, now, sample| {
            (sample.state, sample.wchan) = ('S', "futex_do_wait".into());
            sample.signals.main = main(since * 500);
            sample.signals.children.clear();
            sample.page = Some(hooked(if rank == 1 { seq } else { seq + 1 }, seq, now - since));
            if rank == 1 {
                does(at, sample, &mut look);
            }
        });
        c.agents[0].inspections.insert(1, look);
    }
    c
}

fn quiet(c: &Cluster) {
    assert_eq!(reds(c), [], "{:?}", verdicts(c).iter().map(|told| &told.reason).collect::<Vec<_>>());
}

pub(super) fn red(c: &Cluster, reason: Reason) {
    assert_eq!(reds(c).first(), Some(&(Some(1), reason)), "{:?}", c.verdicts());
}

pub(super) fn python(files: &[&str]) -> Vec<ThreadStack> {
    let frame = |file: &&str| Frame { function: "f".into(), file: Some((*file).into()), line: Some(9) };
    let frames = files.iter().map(frame).collect();
    vec![ThreadStack { tid: 1001, how: How::Python, frames, ..ThreadStack::default() }]
}

pub(super) fn holder(pid: u32, name: &str) -> Holder {
    Holder { pid, name: name.into(), state: 'S', ours: true, ..Holder::default() }
}

pub(super) fn child(pid: u32, state: char) -> ChildSample {
    ChildSample { pid, name: "python".into(), state, cpu_ms: 5, parent: 1001, ..ChildSample::default() }
}

/// How a wait shows in a sample and in a look.
type Shows = fn(&mut RankSample, &mut Inspection);

/// Every wait of a script that silence alone makes red: how it looks, and its reason.
pub(super) fn waits() -> Vec<(&'static str, Reason, Shows)> {
    fn worker(sample: &mut RankSample, look: &mut Inspection, file: &str) {
        sample.signals.children = vec![child(77, 'S')];
        look.awaits = vec![77];
        look.threads = python(&[file, "/w/train.py"]);
        look.obstacle = Some(Obstacle::Pipe { ends: vec![holder(77, "python train.py")], reads: true });
    }
    vec![
        ("futex_do_wait", Reason::Lock, |_, _| {}),
        ("hrtimer_nanosleep", Reason::Sleeping, |_, look| look.os.sleep_left_ms = Some(900_000)),
        ("hrtimer_nanosleep", Reason::GilHeld, |_, look| look.sleeps_in_c = true),
        ("wait_woken", Reason::WaitsForPeer, |_, look| {
            look.obstacle = Some(Obstacle::Connection { peer: "10.0.0.9:7000".into(), owner: None });
        }),
        ("anon_pipe_read", Reason::DataLoader, |sample, look| {
            worker(sample, look, "/site-packages/torch/utils/data/dataloader.py");
        }),
        ("anon_pipe_read", Reason::EnvWorkerDeadlocked, |sample, look| {
            worker(sample, look, "/usr/lib/python3.11/multiprocessing/connection.py");
        }),
        ("anon_pipe_read", Reason::Pipe, |sample, look| {
            worker(sample, look, "/usr/lib/python3.11/subprocess.py");
        }),
        ("do_wait", Reason::ChildProcess, |sample, look| {
            sample.signals.children = vec![child(77, 'S')];
            look.awaits = vec![77];
            look.threads = python(&["/usr/lib/python3.11/subprocess.py", "/w/train.py"]);
            look.obstacle = Some(Obstacle::Child { process: holder(77, "ffmpeg") });
        }),
        ("locks_lock_inode_wait", Reason::FileLock, |_, look| {
            look.obstacle = Some(Obstacle::FileLock { path: "/data/lock".into(), holders: vec![] });
        }),
        ("wait_for_partner", Reason::Fifo, |_, look| {
            look.obstacle = Some(Obstacle::Fifo { path: "/w/orders".into(), reads: true, opening: true });
        }),
        ("poll_schedule_timeout", Reason::NameLookup, |_, look| {
            let (server, name) = ("10.0.0.2:53".into(), "sim".into());
            look.obstacle = Some(Obstacle::NameServer { server, name });
        }),
        ("some_driver_wait", Reason::Unknown, |_, _| {}),
    ]
}

/// On a full host nearly everything looks overloaded at first.
#[test]
fn an_overloaded_host_is_told_when_it_has_lasted_and_never_before_a_cause() {
    type Cause = fn(&mut RankSample);
    let causes: [(Reason, Cause); 3] = [
        (Reason::Stopped, |sample| sample.state = 'T'),
        (Reason::CgroupFrozen, |sample| {
            sample.signals.cgroup = Some(CgroupSample { frozen: true, ..CgroupSample::default() });
        }),
        (Reason::EnvWorkerDied, |sample| {
            sample.wchan = "anon_pipe_read".into();
            sample.signals.children = vec![child(77, 'Z')];
        }),
    ];
    for (reason, cause) in causes {
        let c = script(FULL, 12_000, &|_, sample, look| {
            cause(sample);
            look.lacks_cores = true;
        });
        let told: Vec<Reason> = verdicts(&c).iter().map(|told| told.reason_code).collect();
        assert_eq!(told.first(), Some(&reason), "{told:?}");
        assert!(!told.contains(&Reason::HostOverloaded), "{told:?}");
    }
    let c = script(FULL, 19_000, &|_, _, look| look.lacks_cores = true);
    let told: Vec<_> = verdicts(&c).iter().map(|told| (told.reason_code, told.severity)).collect();
    assert_eq!(told, [(Reason::HostOverloaded, Severity::Amber)], "once, and it stays");
}

#[test]
fn whatever_a_rank_waits_in_is_amber_at_most_while_something_of_it_wants_a_core() {
    for (wchan, reason, looks) in waits() {
        let does = |lacks: bool| {
            move |_: u64, sample: &mut RankSample, look: &mut Inspection| {
                sample.wchan = wchan.into();
                looks(sample, look);
                look.lacks_cores = lacks;
            }
        };
        let c = script(FULL, 19_000, &does(true));
        quiet(&c);
        assert!(verdicts(&c).iter().all(|told| told.reason_code == Reason::HostOverloaded), "{reason:?}");
        red(&script(FULL, 40_000, &does(true)), reason);
        // The fuller the host, the longer everything takes.
        quiet(&script(Some(40.0), 190_000, &does(true)));
        // The host is as full, and nothing of this rank wants a core; or there are cores for all.
        for cores in [FULL, FREE] {
            let c = script(cores, 12_000, &does(false));
            red(&c, reason);
            assert!(verdicts(&c)[0].latency_s <= 7.0, "{reason:?}");
        }
        red(&script(FREE, 12_000, &does(true)), reason);
    }
}

#[test]
fn p14_an_endless_loop_that_gets_little_of_a_core_is_amber_in_time() {
    for tenths in [9, 5, 3, 1] {
        let c = script(FULL, 30_000, &|at, sample, look| {
            (sample.state, sample.wchan) = ('R', String::new());
            sample.signals.cpu_ms = 1 + at * tenths / 10;
            sample.signals.delay_ms = at * (10 - tenths) / 10;
            sample.signals.main.as_mut().unwrap().cpu_us += at * tenths * 100;
            look.lacks_cores = true;
        });
        quiet(&c);
        let told = verdicts(&c);
        assert!(
            told.iter().any(|told| told.reason_code == Reason::Spinning && told.latency_s < 12.0),
            "{tenths}: {told:?}"
        );
    }
}

#[test]
fn a_group_that_has_used_up_its_share_of_the_cores_is_short_of_them_too() {
    let does = |at: u64, sample: &mut RankSample, look: &mut Inspection| {
        let periods = at / 100;
        let cgroup = CgroupSample { periods, throttled: periods * 9 / 10, ..CgroupSample::default() };
        sample.signals.cgroup = Some(cgroup);
        look.lacks_cores = true;
    };
    let c = script(FREE, 19_000, &does);
    quiet(&c);
    let told = verdicts(&c);
    assert_eq!((told[0].reason_code, told[0].severity), (Reason::Throttled, Severity::Amber));
    assert!(told[0].reason.contains("its CPU quota is used up"), "its host has cores: {}", told[0].reason);
    red(&script(FREE, 40_000, &does), Reason::Lock);
}

/// What an amber that might be red rests on stands on its card.
#[test]
fn a_card_of_a_rank_that_gets_no_core_says_where_it_is_and_that_its_host_has_none() {
    let c = script(FULL, 15_000, &|at, sample, look| {
        (sample.state, sample.wchan) = ('R', String::new());
        sample.signals.cpu_ms = 1 + at * 3 / 100;
        sample.signals.delay_ms = at * 9 / 10;
        // At another line of its own at every look, so that it is not seen to spin.
        look.threads[0].frames[1].function = format!("step_{at}");
        look.lacks_cores = true;
        sample.signals.main.as_mut().unwrap().cpu_us += at * 30;
    });
    quiet(&c);
    let told = c.model().verdicts.iter().find(|told| told.reason_code == Reason::HostOverloaded);
    let told = told.unwrap_or_else(|| panic!("{:?}", c.verdicts()));
    assert!(told.reason.contains("train.py:55"), "{}", told.reason);
    let evidence = told.card.evidence().join("\n");
    for part in [
        "no core is free on its host: 10 % busy, tasks wait for one 95 % of the time, 4.0 tasks for each core",
        "it had a core 3 % of the time, and was ready and had none 90 %",
        "may be silent 4 times as long",
    ] {
        assert!(evidence.contains(part), "{part}: {evidence}");
    }
}

#[test]
fn what_nobody_has_seen_yet_is_no_trouble_where_looks_take_long() {
    for (cores, ms) in [(FULL, 19_000), (FREE, 6_000)] {
        let mut c = script(cores, 0, &|_, _, _| {});
        let (seq, since) = (c.now.0 / 250, c.now.0);
        c.agents[0].inspections.clear();
        drive(&mut c, ms, |rank, now, sample| {
            sample.wchan = "hrtimer_nanosleep".into();
            sample.page = Some(hooked(if rank == 1 { seq } else { seq + 1 }, seq, now - since));
        });
        quiet(&c);
    }
}

#[test]
fn an_interpreter_lock_that_another_thread_has_while_the_rank_sleeps_is_no_trouble() {
    let does = |at: u64, sample: &mut RankSample, look: &mut Inspection| {
        sample.wchan = "hrtimer_nanosleep".into();
        look.notes = vec![format!("thread 99 {HOLDS_GIL}")];
        look.os = OsState { sleep_left_ms: Some(60_000 - at), ..OsState::default() };
    };
    for cores in [FREE, FULL] {
        quiet(&script(cores, 55_000, &does));
    }
}

#[test]
fn workers_and_servers_that_wake_by_themselves_are_waited_for() {
    for (wchan, reason, looks) in waits().into_iter().filter(|(_, reason, _)| {
        use Reason::{ChildProcess, DataLoader, EnvWorkerDeadlocked, Pipe, WaitsForPeer};
        matches!(reason, DataLoader | EnvWorkerDeadlocked | Pipe | WaitsForPeer | ChildProcess)
    }) {
        let does = |left: u64| {
            move |at: u64, sample: &mut RankSample, look: &mut Inspection| {
                sample.wchan = wchan.into();
                looks(sample, look);
                look.awaited_sleep_ms = left.checked_sub(at);
            }
        };
        for cores in [FREE, FULL] {
            quiet(&script(cores, 60_000, &does(60_000)));
        }
        // It will not come within the budget, or it has come and nothing happens.
        red(&script(FREE, 12_000, &does(900_000)), reason);
        red(&script(FREE, 40_000, &does(15_000)), reason);
    }
}

/// Who polls wakes now and then to do so again, and on a busy host a look may come between.
#[test]
fn look_3_a_look_between_two_waits_does_not_tell_what_a_rank_waits_for() {
    for (wchan, reason, looks) in waits() {
        use Reason::{ChildProcess, DataLoader, EnvWorkerDeadlocked, Pipe, Sleeping, WaitsForPeer};
        let sleeps = reason == Sleeping;
        if !sleeps && !matches!(reason, DataLoader | EnvWorkerDeadlocked | Pipe | WaitsForPeer | ChildProcess)
        {
            continue;
        }
        let does = |left: u64, shift: u64| {
            move |at: u64, sample: &mut RankSample, look: &mut Inspection| {
                sample.wchan = wchan.into();
                looks(sample, look);
                let left = Some(left.saturating_sub(at));
                (look.os.sleep_left_ms, look.awaited_sleep_ms) =
                    if sleeps { (left, None) } else { (None, left) };
                look.os.state = 'S';
                if (at / 500 + shift).is_multiple_of(5) {
                    let (rank, threads) = (look.rank, std::mem::take(&mut look.threads));
                    let os = OsState { state: 'R', ..OsState::default() };
                    *look = Inspection { rank, pid: look.pid, threads, os, ..Inspection::default() };
                }
            }
        };
        for shift in 0..5 {
            for cores in [FREE, FULL] {
                quiet(&script(cores, 60_000, &does(60_000, shift)));
            }
            // Nothing comes.
            red(&script(FREE, 15_000, &does(900_000, shift)), reason);
        }
    }
}

#[test]
fn a_simulator_that_answers_ever_more_slowly_is_waited_for() {
    let answers = [3_000, 7_000, 14_000, 25_000, 40_000, 58_000];
    let does = |until: u64| {
        move |at: u64, sample: &mut RankSample, look: &mut Inspection| {
            sample.wchan = "wait_woken".into();
            let heard = answers.iter().filter(|answer| **answer <= at.min(until)).count() as u64;
            let main = sample.signals.main.as_mut().unwrap();
            (main.net_bytes, main.turns) = (Some(5_000 + 40 * heard), 70 + heard);
            look.obstacle = Some(Obstacle::Connection { peer: "10.0.0.9:7000".into(), owner: None });
        }
    };
    quiet(&script(FREE, 60_000, &does(60_000)));
    red(&script(FREE, 60_000, &does(25_000)), Reason::WaitsForPeer);
}

#[test]
fn look_2_what_a_look_has_shown_before_the_rank_went_on_decides_nothing() {
    // It waits for a file that somebody locks, gets it, and sleeps.
    let does = |at: u64, sample: &mut RankSample, look: &mut Inspection| {
        let locked = at < 3_000;
        sample.wchan = if locked { "locks_lock_inode_wait" } else { "hrtimer_nanosleep" }.into();
        sample.signals.main.as_mut().unwrap().io_bytes += u64::from(!locked);
        if locked {
            look.obstacle = Some(Obstacle::FileLock { path: "/data/lock".into(), holders: vec![] });
            look.awaited_sleep_ms = Some(1_000);
        } else {
            look.os.sleep_left_ms = Some(63_000_u64.saturating_sub(at));
        }
    };
    quiet(&script(FREE, 60_000, &does));
}

#[test]
fn a_child_that_ended_long_ago_is_not_what_a_rank_waits_for() {
    let waits = |sample: &mut RankSample, look: &mut Inspection, awaits: &[u32]| {
        sample.wchan = "anon_pipe_read".into();
        look.awaits = awaits.to_vec();
        look.threads = python(&["/usr/lib/python3.11/multiprocessing/connection.py", "/w/train.py"]);
    };
    // A tool that nobody has waited for, and a worker that answers within seconds.
    let tool = |at: u64, sample: &mut RankSample, look: &mut Inspection| {
        waits(sample, look, &[77]);
        sample.signals.children = vec![child(70, 'Z'), ChildSample { cpu_ms: at / 2, ..child(77, 'S') }];
    };
    quiet(&script(FREE, 30_000, &tool));
    // A worker that ended in this wait. Nobody else is at the other end.
    let dies = |at: u64, sample: &mut RankSample, look: &mut Inspection| {
        waits(sample, look, if at < 1_000 { &[77] } else { &[] });
        sample.signals.children = vec![child(77, if at < 1_000 { 'S' } else { 'Z' })];
    };
    let c = script(FREE, 12_000, &dies);
    red(&c, Reason::EnvWorkerDied);
    assert_eq!(verdicts(&c)[0].confidence, Confidence::Certain);
    // A compiler has ended, and the rank is about to hear of it as soon as it gets a core.
    let ready = |at: u64, sample: &mut RankSample, look: &mut Inspection| {
        waits(sample, look, &[]);
        sample.state = if at < 1_000 { 'S' } else { 'R' };
        sample.signals.children = vec![child(77, if at < 1_000 { 'S' } else { 'Z' })];
    };
    quiet(&script(FULL, 12_000, &ready));
}

#[test]
fn a_process_that_had_a_core_between_two_samples_has_not_been_stopped_all_the_time() {
    // It is stopped for a moment now and then; a starved agent always comes at such a moment.
    let does = |runs: bool| {
        move |at: u64, sample: &mut RankSample, _: &mut Inspection| {
            sample.state = 'T';
            sample.signals.main.as_mut().unwrap().turns += if runs { at / 500 } else { 0 };
        }
    };
    quiet(&script(FULL, 12_000, &does(true)));
    red(&script(FULL, 3_000, &does(false)), Reason::Stopped);
}

#[test]
fn an_end_of_a_script_that_gets_no_core_takes_its_time() {
    for (lacks, ms) in [(true, 30_000), (false, 12_000)] {
        let mut c = script(FULL, 0, &|_, _, _| {});
        let (seq, since) = (c.now.0 / 250, c.now.0);
        let look = Inspection { lacks_cores: lacks, ..look_at(1, "upload", "train.py", 90) };
        c.agents[0].inspections.insert(1, look);
        for rank in [0, 2, 3] {
            c.exit_of(rank, Exit::Code { code: 0 }, false);
        }
        drive(&mut c, ms, |_, now, sample| {
            sample.wchan = "futex_do_wait".into();
            sample.page = Some(PageSample { phase: Phase::Teardown, ..hooked(seq, seq, now - since) });
        });
        if lacks { quiet(&c) } else { red(&c, Reason::TeardownStall) }
    }
}

#[test]
fn a_run_of_which_something_wants_a_core_does_not_stand_still() {
    for (lacks, reds_told) in [(true, 0), (false, 1)] {
        let mut c = script(FULL, 0, &|_, _, _| {});
        drive(&mut c, 40_000, |_, now, sample| {
            sample.signals.main.as_mut().unwrap().cpu_us = now * 500;
            sample.page = Some(hooked(now / 250, now / 250, 10));
        });
        for rank in 0..4 {
            let look = Inspection { lacks_cores: lacks, ..look_at(rank, "save", "train.py", 70) };
            c.agents[rank as usize / 2].inspections.insert(rank, look);
        }
        let (seq, since) = (c.now.0 / 250, c.now.0);
        drive(&mut c, 60_000, |_, now, sample| {
            sample.wchan = "futex_do_wait".into();
            sample.page = Some(hooked(seq, seq, now - since));
        });
        assert_eq!(reds(&c).len(), reds_told, "{:?}", c.verdicts());
    }
}

#[test]
fn a_peer_that_reads_nothing_is_no_loss_of_the_network() {
    // What has room at the other end and does not leave is dropped by its own host.
    for (unacked, unsent, lost) in [(0, 0, false), (3, 0, true), (0, 90_000, true)] {
        let mut c = trained(2);
        stand(&mut c, 100);
        for (rank, own, other) in [(0u32, "10.0.0.1", "10.0.0.2"), (2, "10.0.0.2", "10.0.0.1")] {
            // Its window is closed: the kernel asks again and again, with growing gaps.
            let stuck = if rank == 0 { (4, unacked, 90_000, unsent) } else { (0, 0, 0, 0) };
            let socket = Socket {
                local: format!("{own}:100{rank}"),
                peer: format!("{other}:200"),
                backoff: stuck.0,
                unacked: stuck.1,
                send_queue: stuck.2,
                unsent: stuck.3,
                ..Socket::default()
            };
            let look = Inspection { rank: Rank(rank), sockets: vec![socket], ..Inspection::default() };
            c.agents[rank as usize / 2].inspections.insert(rank, look);
        }
        c.pass(15_000);
        let told = verdicts(&c).iter().any(|told| told.reason_code == Reason::NetworkLoss);
        assert_eq!(told, lost, "{:?}", c.verdicts());
        assert!(lost || verdicts(&c).iter().all(|told| told.severity != Severity::Red));
    }
}

/// Another rank holds it, and lets go by itself; that is worth a word, with its name.
#[test]
fn a_lock_that_is_tried_again_and_again_is_named_while_it_may_come() {
    let told = |ms, name: &str| {
        let c = script(FREE, ms, &|_, sample, look| {
            sample.wchan = "hrtimer_nanosleep".into();
            look.os.sleep_left_ms = Some(90);
            look.obstacle =
                Some(Obstacle::FileLock { path: "/w/study.db".into(), holders: vec![holder(77, name)] });
        });
        quiet(&c);
        let last = verdicts(&c).into_iter().rfind(|told| told.rank == Some(Rank(1)));
        last.map(|told| (told.reason_code, told.severity, told.reason))
    };
    assert_eq!(told(20_000, "python train.py"), None);
    let (reason, severity, text) = told(40_000, "python train.py").unwrap();
    assert_eq!((reason, severity), (Reason::FileLock, Severity::Amber), "{text}");
    assert!(text.contains("/w/study.db, held by pid 77 (python train.py"), "{text}");
}
