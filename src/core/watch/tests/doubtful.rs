//! Healthy programs whose evidence resembles a problem: cores are short, the observed state has passed, or a rank's
//! wait will end without help. Next to each, the same evidence of a real problem.

use super::lab::*;
use crate::reason::Reason;
use crate::report::{Confidence, Proof, Severity};
use crate::testkit::*;
use rankdeck_proto::inspection::{
    BlockingProcess, Frame, HOLDS_GIL, Inspection, Obstacle, OsState, Pressure, Socket, StackMethod,
    ThreadStack,
};
use rankdeck_proto::message::*;
use rankdeck_types::ids::Rank;
use std::cell::Cell;

/// What the late rank of a script does: milliseconds since the others wait, its sample, and what an inspection
/// that begins now would show.
pub(super) type Does<'a> = &'a dyn Fn(u64, &mut RankSample, &mut Inspection);

/// How full the hosts are: pressure of the CPU, and tasks for each core.
pub(super) type Cores = Option<f32>;
pub(super) const FREE: Cores = None;
const FULL: Cores = Some(4.0);

/// A script that trains for ten seconds; then rank 1 is late for `ms`, in a lock unless `does` changes that.
pub(super) fn script(cores: Cores, ms: u64, does: Does<'_>) -> Cluster {
    repeated(cores, &[ms], does)
}

fn main_thread(cpu_us: u64) -> Option<MainThread> {
    Some(MainThread { cpu_us, turns: 70, io_bytes: 9, net_bytes: Some(5_000) })
}

pub(super) fn train(c: &mut Cluster, ms: u64) {
    drive(c, ms, |_, now, sample| {
        (sample.state, sample.wchan) = ('S', String::new());
        sample.signals.main = main_thread(now * 500);
        sample.signals.children.clear();
        sample.page = Some(hooked(now / 250, now / 250, 10));
    });
}

/// The same, with one wait after the other; ten seconds of training are before each.
pub(super) fn repeated(cores: Cores, waits: &[u64], does: Does<'_>) -> Cluster {
    let mut c = trained(2);
    for agent in &mut c.agents {
        agent.signals.pressure = cores.map(|_| Pressure { cpu: 95.0, ..Pressure::default() });
        agent.load1 = 2.0 * cores.unwrap_or(0.1);
    }
    for ms in waits {
        train(&mut c, 10_000);
        late(&mut c, *ms, does);
    }
    c
}

pub(super) fn late(c: &mut Cluster, ms: u64, does: Does<'_>) {
    let (seq, since) = (c.now.0 / 250, c.now.0);
    for _ in 0..ms / 250 {
        let (at, mut inspection) = (c.now.0 + 250 - since, inspection_at(1, "step", "train.py", 55));
        drive(c, 250, |rank, now, sample| {
            (sample.state, sample.wchan) = ('S', "futex_do_wait".into());
            sample.signals.main = main_thread(since * 500);
            sample.signals.children.clear();
            sample.page = Some(hooked(if rank == 1 { seq } else { seq + 1 }, seq, now - since));
            if rank == 1 {
                does(at, sample, &mut inspection);
            }
        });
        c.agents[0].inspections.insert(1, inspection);
    }
}

pub(super) fn quiet(c: &Cluster) {
    assert_eq!(reds(c), [], "{:?}", verdicts(c).iter().map(|reported| &reported.reason).collect::<Vec<_>>());
}

pub(super) fn red(c: &Cluster, reason: Reason) {
    assert_eq!(reds(c).first(), Some(&(Some(1), reason)), "{:?}", c.verdicts());
}

pub(super) fn python(files: &[&str]) -> Vec<ThreadStack> {
    let frame = |file: &&str| Frame { function: "f".into(), file: Some((*file).into()), line: Some(9) };
    let frames = files.iter().map(frame).collect();
    vec![ThreadStack { tid: 1001, how: StackMethod::Python, frames, ..ThreadStack::default() }]
}

pub(super) fn holder(pid: u32, name: &str) -> BlockingProcess {
    BlockingProcess { pid, name: name.into(), state: 'S', ours: true, ..BlockingProcess::default() }
}

pub(super) fn child(pid: u32, state: char) -> ChildSample {
    ChildSample { pid, name: "python".into(), state, cpu_ms: 5, parent: 1001, ..ChildSample::default() }
}

/// How a wait shows in a sample and in an inspection.
type Shows = fn(&mut RankSample, &mut Inspection);

/// Every wait of a script that silence alone makes red: how it shows, and its reason.
fn waits() -> Vec<(&'static str, Reason, Shows)> {
    fn worker(sample: &mut RankSample, inspection: &mut Inspection, file: &str) {
        sample.signals.children = vec![child(77, 'S')];
        inspection.awaits = vec![77];
        inspection.threads = python(&[file, "/w/train.py"]);
        inspection.obstacle = Some(Obstacle::Pipe { ends: vec![holder(77, "python train.py")], reads: true });
    }
    vec![
        ("futex_do_wait", Reason::Lock, |_, _| {}),
        ("hrtimer_nanosleep", Reason::Sleeping, |_, inspection| inspection.os.sleep_left_ms = Some(900_000)),
        ("hrtimer_nanosleep", Reason::GilHeld, |_, inspection| inspection.sleeps_in_c = true),
        ("anon_pipe_read", Reason::DataLoader, |sample, inspection| {
            worker(sample, inspection, "/site-packages/torch/utils/data/dataloader.py");
        }),
        ("anon_pipe_read", Reason::EnvWorkerDeadlocked, |sample, inspection| {
            worker(sample, inspection, "/site-packages/gymnasium/vector/async_vector_env.py");
        }),
        ("anon_pipe_read", Reason::Pipe, |sample, inspection| {
            worker(sample, inspection, "/usr/lib/python3.11/subprocess.py");
        }),
        ("do_wait", Reason::ChildProcess, |sample, inspection| {
            sample.signals.children = vec![child(77, 'S')];
            inspection.awaits = vec![77];
            inspection.threads = python(&["/usr/lib/python3.11/subprocess.py", "/w/train.py"]);
            inspection.obstacle = Some(Obstacle::Child { process: holder(77, "ffmpeg") });
        }),
        ("locks_lock_inode_wait", Reason::FileLock, |_, inspection| {
            inspection.obstacle = Some(Obstacle::FileLock { path: "/data/lock".into(), holders: vec![] });
        }),
        ("wait_for_partner", Reason::Fifo, |_, inspection| {
            inspection.obstacle =
                Some(Obstacle::Fifo { path: "/w/orders".into(), reads: true, opening: true });
        }),
        ("poll_schedule_timeout", Reason::NameLookup, |_, inspection| {
            let (server, name) = ("10.0.0.2:53".into(), "sim".into());
            inspection.obstacle = Some(Obstacle::NameServer { server, name });
        }),
        ("some_driver_wait", Reason::Unknown, |_, _| {}),
    ]
}

/// On a full host nearly everything seems overloaded at first.
#[test]
fn overloaded_host_is_debounced() {
    type Cause = fn(&mut RankSample, &mut Inspection);
    let causes: [(Reason, Cause); 3] = [
        (Reason::Stopped, |sample, _| sample.state = 'T'),
        (Reason::CgroupFrozen, |sample, _| {
            sample.signals.cgroup = Some(CgroupSample { frozen: true, ..CgroupSample::default() });
        }),
        (Reason::EnvWorkerDied, |sample, inspection| {
            inspection.threads =
                python(&["/site-packages/gymnasium/vector/async_vector_env.py", "/w/train.py"]);
            inspection.obstacle = Some(Obstacle::Pipe { ends: Vec::new(), reads: true });
            sample.wchan = "anon_pipe_read".into();
            sample.signals.children = vec![child(77, 'Z')];
        }),
    ];
    for (reason, cause) in causes {
        let c = script(FULL, 12_000, &|_, sample, inspection| {
            cause(sample, inspection);
            inspection.lacks_cores = true;
        });
        let reported: Vec<Reason> = verdicts(&c).iter().map(|reported| reported.reason_code).collect();
        assert_eq!(reported.first(), Some(&reason), "{reported:?}");
        assert!(!reported.contains(&Reason::HostOverloaded), "{reported:?}");
    }
    let c = script(FULL, 19_000, &|_, _, inspection| inspection.lacks_cores = true);
    let reported: Vec<_> =
        verdicts(&c).iter().map(|reported| (reported.reason_code, reported.severity)).collect();
    assert_eq!(reported, [(Reason::HostOverloaded, Severity::Amber)], "once, and it stays");
}

#[test]
fn starved_rank_is_a_warning_at_most() {
    for (wchan, reason, shows) in waits() {
        let does = |lacks: bool| {
            move |_: u64, sample: &mut RankSample, inspection: &mut Inspection| {
                sample.wchan = wchan.into();
                shows(sample, inspection);
                inspection.lacks_cores = lacks;
            }
        };
        let c = script(FULL, 19_000, &does(true));
        quiet(&c);
        assert!(
            verdicts(&c).iter().all(|reported| reported.reason_code == Reason::HostOverloaded),
            "{reason:?}"
        );
        red(&script(FULL, 40_000, &does(true)), reason);
        // The fuller the host, the longer everything takes.
        quiet(&script(Some(40.0), 190_000, &does(true)));
        // The host is as full, and nothing of this rank needs a core; or there are cores for all.
        for cores in [FULL, FREE] {
            let c = script(cores, 12_000, &does(false));
            red(&c, reason);
            assert!(verdicts(&c)[0].latency_s <= 7.0, "{reason:?}");
        }
        red(&script(FREE, 12_000, &does(true)), reason);
    }
}

#[test]
fn p14_starved_endless_loop_is_a_warning_in_time() {
    for tenths in [9, 5, 3, 1] {
        let c = script(FULL, 30_000, &|at, sample, inspection| {
            (sample.state, sample.wchan) = ('R', String::new());
            sample.signals.cpu_ms = 1 + at * tenths / 10;
            sample.signals.delay_ms = at * (10 - tenths) / 10;
            sample.signals.main.as_mut().unwrap().cpu_us += at * tenths * 100;
            inspection.lacks_cores = true;
        });
        quiet(&c);
        let reported = verdicts(&c);
        assert!(
            reported
                .iter()
                .any(|reported| reported.reason_code == Reason::Spinning && reported.latency_s < 12.0),
            "{tenths}: {reported:?}"
        );
    }
}

#[test]
fn exhausted_cgroup_quota_counts_as_short_of_cores() {
    let does = |at: u64, sample: &mut RankSample, inspection: &mut Inspection| {
        let periods = at / 100;
        let cgroup = CgroupSample { periods, throttled: periods * 9 / 10, ..CgroupSample::default() };
        sample.signals.cgroup = Some(cgroup);
        inspection.lacks_cores = true;
    };
    let c = script(FREE, 19_000, &does);
    quiet(&c);
    let reported = verdicts(&c);
    assert_eq!((reported[0].reason_code, reported[0].severity), (Reason::Throttled, Severity::Amber));
    insta::assert_snapshot!("throttled_rank", reported[0].reason);
    red(&script(FREE, 40_000, &does), Reason::Lock);
}

/// What an amber that might be red rests on stands on its card.
#[test]
fn rank_without_core_has_host_load_in_evidence() {
    let c = script(FULL, 15_000, &|at, sample, inspection| {
        (sample.state, sample.wchan) = ('R', String::new());
        sample.signals.cpu_ms = 1 + at * 3 / 100;
        sample.signals.delay_ms = at * 9 / 10;
        // At another line of its own at every inspection, so that it is not seen to spin.
        inspection.threads[0].frames[1].function = format!("step_{at}");
        inspection.lacks_cores = true;
        sample.signals.main.as_mut().unwrap().cpu_us += at * 30;
    });
    quiet(&c);
    let reported = c.model().verdicts.iter().find(|reported| reported.reason_code == Reason::HostOverloaded);
    let reported = reported.unwrap_or_else(|| panic!("{:?}", c.verdicts()));
    insta::assert_snapshot!("rank_without_core", verdict_text(reported));
}

#[test]
fn missing_inspection_delays_verdict() {
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
fn gil_held_during_sleep_is_not_reported() {
    let does = |at: u64, sample: &mut RankSample, inspection: &mut Inspection| {
        sample.wchan = "hrtimer_nanosleep".into();
        inspection.notes = vec![format!("thread 99 {HOLDS_GIL}")];
        inspection.os = OsState { sleep_left_ms: Some(60_000 - at), ..OsState::default() };
    };
    for cores in [FREE, FULL] {
        quiet(&script(cores, 55_000, &does));
    }
}

#[test]
fn awaited_sleepers_are_expected_to_wake() {
    for (wchan, reason, shows) in waits().into_iter().filter(|(_, reason, _)| {
        use Reason::{ChildProcess, DataLoader, EnvWorkerDeadlocked, Pipe};
        matches!(reason, DataLoader | EnvWorkerDeadlocked | Pipe | ChildProcess)
    }) {
        let does = |left: u64| {
            move |at: u64, sample: &mut RankSample, inspection: &mut Inspection| {
                sample.wchan = wchan.into();
                shows(sample, inspection);
                inspection.awaited_sleep_ms = left.checked_sub(at);
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

/// A rank that polls wakes now and then to do so again, and on a busy host an inspection may come between.
#[test]
fn inspect_3_inspection_between_waits_is_skipped() {
    for (wchan, reason, shows) in waits() {
        use Reason::{ChildProcess, DataLoader, EnvWorkerDeadlocked, Pipe, Sleeping};
        let sleeps = reason == Sleeping;
        if !sleeps && !matches!(reason, DataLoader | EnvWorkerDeadlocked | Pipe | ChildProcess) {
            continue;
        }
        let does = |left: u64, shift: u64| {
            move |at: u64, sample: &mut RankSample, inspection: &mut Inspection| {
                sample.wchan = wchan.into();
                shows(sample, inspection);
                let left = Some(left.saturating_sub(at));
                (inspection.os.sleep_left_ms, inspection.awaited_sleep_ms) =
                    if sleeps { (left, None) } else { (None, left) };
                inspection.os.state = 'S';
                if (at / 500 + shift).is_multiple_of(5) {
                    let (rank, threads) = (inspection.rank, std::mem::take(&mut inspection.threads));
                    let os = OsState { state: 'R', ..OsState::default() };
                    *inspection =
                        Inspection { rank, pid: inspection.pid, threads, os, ..Inspection::default() };
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
fn slowing_simulator_replies_count_as_progress() {
    let answers = [3_000, 7_000, 14_000, 25_000, 40_000, 58_000];
    let does = |until: u64| {
        move |at: u64, sample: &mut RankSample, inspection: &mut Inspection| {
            sample.wchan = "wait_woken".into();
            let received = answers.iter().filter(|answer| **answer <= at.min(until)).count() as u64;
            let main = sample.signals.main.as_mut().unwrap();
            (main.net_bytes, main.turns) = (Some(5_000 + 40 * received), 70 + received);
            inspection.obstacle = Some(Obstacle::Connection { peer: "10.0.0.9:7000".into(), owner: None });
        }
    };
    quiet(&script(FREE, 60_000, &does(60_000)));
    red(&script(FREE, 90_000, &does(25_000)), Reason::WaitsForPeer);
}

#[test]
fn inspect_2_stale_inspection_decides_nothing() {
    // It waits for a file that someone locks, gets it, and sleeps.
    let does = |at: u64, sample: &mut RankSample, inspection: &mut Inspection| {
        let locked = at < 3_000;
        sample.wchan = if locked { "locks_lock_inode_wait" } else { "hrtimer_nanosleep" }.into();
        sample.signals.main.as_mut().unwrap().io_bytes += u64::from(!locked);
        if locked {
            inspection.obstacle = Some(Obstacle::FileLock { path: "/data/lock".into(), holders: vec![] });
            inspection.awaited_sleep_ms = Some(1_000);
        } else {
            inspection.os.sleep_left_ms = Some(63_000_u64.saturating_sub(at));
        }
    };
    quiet(&script(FREE, 60_000, &does));
}

#[test]
fn child_dead_before_wait_is_not_the_cause() {
    let waits = |sample: &mut RankSample, inspection: &mut Inspection, awaits: &[u32]| {
        sample.wchan = "anon_pipe_read".into();
        inspection.awaits = awaits.to_vec();
        inspection.threads = python(&["/site-packages/gymnasium/vector/async_vector_env.py", "/w/train.py"]);
    };
    // A tool that no one has waited for, and a worker that answers within seconds.
    let tool = |at: u64, sample: &mut RankSample, inspection: &mut Inspection| {
        waits(sample, inspection, &[77]);
        sample.signals.children = vec![child(70, 'Z'), ChildSample { cpu_ms: at / 2, ..child(77, 'S') }];
    };
    quiet(&script(FREE, 30_000, &tool));
    // A worker that ended in this wait. No one else is at the other end.
    let dies = |at: u64, sample: &mut RankSample, inspection: &mut Inspection| {
        waits(sample, inspection, if at < 1_000 { &[77] } else { &[] });
        inspection.obstacle = (at >= 1_000).then(|| Obstacle::Pipe { ends: Vec::new(), reads: true });
        sample.signals.children = vec![child(77, if at < 1_000 { 'S' } else { 'Z' })];
    };
    let c = script(FREE, 12_000, &dies);
    red(&c, Reason::EnvWorkerDied);
    assert_eq!(verdicts(&c)[0].confidence, Confidence::Certain);
    // A compiler has ended, and the rank reaps it as soon as it gets a core.
    let ready = |at: u64, sample: &mut RankSample, inspection: &mut Inspection| {
        waits(sample, inspection, &[]);
        sample.state = if at < 1_000 { 'S' } else { 'R' };
        sample.signals.children = vec![child(77, if at < 1_000 { 'S' } else { 'Z' })];
    };
    quiet(&script(FULL, 12_000, &ready));
}

#[test]
fn process_that_ran_between_samples_is_not_halted() {
    // It is stopped briefly from time to time; a starved agent always samples at such a moment.
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
fn starved_teardown_gets_more_time() {
    for (lacks, ms) in [(true, 30_000), (false, 12_000)] {
        let mut c = script(FULL, 0, &|_, _, _| {});
        let (seq, since) = (c.now.0 / 250, c.now.0);
        let inspection = Inspection { lacks_cores: lacks, ..inspection_at(1, "upload", "train.py", 90) };
        c.agents[0].inspections.insert(1, inspection);
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
fn starved_run_is_not_stalled() {
    for (lacks, expected) in [(true, 0), (false, 1)] {
        let mut c = script(FULL, 0, &|_, _, _| {});
        drive(&mut c, 40_000, |_, now, sample| {
            sample.signals.main.as_mut().unwrap().cpu_us = now * 500;
            sample.page = Some(hooked(now / 250, now / 250, 10));
        });
        for rank in 0..4 {
            let inspection = Inspection { lacks_cores: lacks, ..inspection_at(rank, "save", "train.py", 70) };
            c.agents[rank as usize / 2].inspections.insert(rank, inspection);
        }
        let (seq, since) = (c.now.0 / 250, c.now.0);
        drive(&mut c, 60_000, |_, now, sample| {
            sample.wchan = "futex_do_wait".into();
            sample.page = Some(hooked(seq, seq, now - since));
        });
        assert_eq!(reds(&c).len(), expected, "{:?}", c.verdicts());
    }
}

#[test]
fn full_receive_window_is_no_network_loss() {
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
            let inspection = Inspection { rank: Rank(rank), sockets: vec![socket], ..Inspection::default() };
            c.agents[rank as usize / 2].inspections.insert(rank, inspection);
        }
        c.pass(15_000);
        let reported = verdicts(&c).iter().any(|reported| reported.reason_code == Reason::NetworkLoss);
        assert_eq!(reported, lost, "{:?}", c.verdicts());
        assert!(lost || verdicts(&c).iter().all(|reported| reported.severity != Severity::Red));
    }
}

/// Another rank holds it, and lets go by itself; that is worth a word, with its name.
#[test]
fn retried_file_lock_is_a_warning() {
    let reported = |ms, name: &str| {
        let c = script(FREE, ms, &|_, sample, inspection| {
            sample.wchan = "hrtimer_nanosleep".into();
            inspection.os.sleep_left_ms = Some(90);
            inspection.obstacle =
                Some(Obstacle::FileLock { path: "/w/study.db".into(), holders: vec![holder(77, name)] });
        });
        quiet(&c);
        let last = verdicts(&c).into_iter().rfind(|reported| reported.rank == Some(Rank(1)));
        last.map(|reported| (reported.reason_code, reported.severity, reported.reason))
    };
    assert_eq!(reported(20_000, "python train.py"), None);
    let (reason, severity, text) = reported(40_000, "python train.py").unwrap();
    assert_eq!((reason, severity), (Reason::FileLock, Severity::Amber), "{text}");
    insta::assert_snapshot!("retried_file_lock", text);
}

#[test]
fn stopped_worker_is_reported_on_busy_host() {
    let (wchan, reason, shows) =
        waits().into_iter().find(|(_, reason, _)| *reason == Reason::EnvWorkerDeadlocked).unwrap();
    let does = |_: u64, sample: &mut RankSample, inspection: &mut Inspection| {
        sample.wchan = wchan.into();
        shows(sample, inspection);
        sample.signals.children = vec![child(77, 'T')];
        inspection.lacks_cores = true;
    };
    let c = script(FULL, 12_000, &does);
    red(&c, reason);
    assert!(verdicts(&c)[0].latency_s <= 7.0, "{:?}", c.verdicts());
}

/// An inspection of it shows the sleep that it was stopped in, whose end comes and wakes no one.
#[test]
fn worker_stopped_in_sleep_does_not_wake() {
    for (wchan, reason, shows) in waits().into_iter().filter(|(_, reason, _)| {
        use Reason::{ChildProcess, DataLoader, EnvWorkerDeadlocked, Pipe};
        matches!(reason, DataLoader | EnvWorkerDeadlocked | Pipe | ChildProcess)
    }) {
        for left in [0, 40_000] {
            let does = |_: u64, sample: &mut RankSample, inspection: &mut Inspection| {
                sample.wchan = wchan.into();
                shows(sample, inspection);
                let awaited = inspection.awaits.first().copied().unwrap_or(77);
                inspection.awaits = vec![awaited];
                sample.signals.children = vec![child(awaited, 'T')];
                inspection.awaited_sleep_ms = Some(left);
            };
            let c = script(FREE, 12_000, &does);
            red(&c, reason);
            assert!(verdicts(&c)[0].latency_s <= 7.0, "{reason:?}: {:?}", c.verdicts());
        }
    }
}

/// It waits for whichever comes first.
#[test]
fn stopped_child_beside_sleeping_one_is_not_reported() {
    let (wchan, reason, shows) =
        waits().into_iter().find(|(_, reason, _)| *reason == Reason::EnvWorkerDeadlocked).unwrap();
    let does = |other: char| {
        move |at: u64, sample: &mut RankSample, inspection: &mut Inspection| {
            sample.wchan = wchan.into();
            shows(sample, inspection);
            sample.signals.children = vec![child(77, 'T'), child(78, other)];
            inspection.awaits = vec![77, 78];
            inspection.awaited_sleep_ms = 60_000_u64.checked_sub(at);
        }
    };
    let c = script(FREE, 40_000, &does('S'));
    assert_eq!(reds(&c), [], "{:?}", c.verdicts());
    red(&script(FREE, 12_000, &does('T')), reason);
}

/// A signal has stopped the worker: no core would make it answer, and how long it usually takes does not matter.
#[test]
fn stopped_worker_on_busy_host_is_detected_in_time() {
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
        let (mut inspection, known) = (inspection_at(1, "step", "train.py", 55), c.reports.len());
        inspection.awaits = vec![77];
        inspection.lacks_cores = true;
        if shows == "late" {
            // No one could read a stack.
            inspection.threads.clear();
            inspection.obstacle = Some(Obstacle::Pipe { ends: vec![holder(77, "simulator")], reads: true });
        } else {
            inspection.threads =
                python(&["/usr/lib/python3.11/multiprocessing/connection.py", "/w/train.py"]);
        }
        c.agents[0].inspections.insert(1, inspection);
        drive(&mut c, 12_000, |rank, now, sample| {
            sample.page = Some(hooked(if rank == 1 { seq } else { seq + 1 }, seq, now - since));
            if rank == 1 {
                sample.wchan = "anon_pipe_read".into();
                sample.signals.children = vec![child(77, 'T')];
            }
        });
        assert!(c.reports.len() > known, "nothing was reported");
        let reported = verdicts(&c).pop().unwrap();
        assert_eq!(
            (reported.rank, reported.severity),
            (Some(Rank(1)), Severity::Red),
            "{shows}: {:?}",
            c.verdicts()
        );
        assert!(reported.latency_s <= 7.0, "{shows}: {reported:?}");
    }
}

// Waits that an outside party ends, and the patience that a run learns for each line.

/// The main thread reads from a connection, at a line of the program.
pub(super) fn asks_a_server(_: u64, sample: &mut RankSample, inspection: &mut Inspection) {
    sample.wchan = "wait_woken".into();
    inspection.threads = python(&["/usr/lib/python3.11/socket.py", "/w/reward.py"]);
    inspection.obstacle = Some(Obstacle::Connection { peer: "10.0.0.9:7000".into(), owner: None });
}

/// The main thread sleeps for a second, time and again, at a line of the program.
pub(super) fn polls(at: u64, sample: &mut RankSample, inspection: &mut Inspection) {
    sample.wchan = "hrtimer_nanosleep".into();
    sample.signals.main.as_mut().unwrap().turns += at / 1_000;
    inspection.threads = python(&["/w/data.py"]);
    inspection.os.sleep_left_ms = Some(1_000);
}

pub(super) fn reported(c: &Cluster) -> Vec<(Severity, Reason)> {
    verdicts(c).iter().map(|verdict| (verdict.severity, verdict.reason_code)).collect()
}

#[test]
fn remote_wait_is_a_warning_with_peer_and_line() {
    let c = script(FREE, 55_000, &asks_a_server);
    assert_eq!(reported(&c), [(Severity::Amber, Reason::WaitsForPeer)]);
    let verdict = verdicts(&c).remove(0);
    assert!(verdict.latency_s < 7.0 && at(&verdict) == "/w/reward.py:9 in f", "{verdict:?}");
    insta::assert_snapshot!("remote_wait", verdict.reason);
    // No reply arrives.
    let c = script(FREE, 70_000, &asks_a_server);
    assert_eq!(reds(&c), [(Some(1), Reason::WaitsForPeer)]);
}

#[test]
fn remote_waits_raise_the_patience_of_their_line() {
    let c = repeated(FREE, &[20_000, 19_000, 18_000], &asks_a_server);
    let ambers = reported(&c).iter().filter(|(severity, _)| *severity == Severity::Amber).count();
    assert_eq!((reds(&c), ambers), (vec![], 1), "usual from the second one on");
    quiet(&repeated(FREE, &[50_000, 95_000], &asks_a_server));
    red(&repeated(FREE, &[50_000, 110_000], &asks_a_server), Reason::WaitsForPeer);
    // Another line has a patience of its own.
    let waits = Cell::new(0);
    let c = repeated(FREE, &[50_000, 70_000], &|at, sample, inspection| {
        waits.set(waits.get() + u32::from(at == 250));
        asks_a_server(at, sample, inspection);
        inspection.threads[0].frames[1].line = Some(waits.get());
    });
    red(&c, Reason::WaitsForPeer);
}

#[test]
fn patience_2_stopped_time_is_not_learned() {
    let waits = Cell::new(0);
    let c = repeated(FREE, &[50_000, 70_000], &|at, sample, inspection| {
        waits.set(waits.get() + u32::from(at == 250));
        asks_a_server(at, sample, inspection);
        sample.state = if waits.get() == 1 { 'T' } else { 'S' };
    });
    // A verdict is reported again with its stack.
    let mut all = reds(&c);
    all.dedup();
    assert_eq!(all, [(Some(1), Reason::Stopped), (Some(1), Reason::WaitsForPeer)]);
}

/// Healthy programs that wait for an outside party: each was once critical after five seconds.
#[test]
fn wait_for_slow_helpers_is_never_critical() {
    type Helper = fn(u64, &mut RankSample, &mut Inspection);
    let helpers: [(&str, Helper); 4] = [
        ("a future of a thread that asks a reward model", |_, _, inspection| {
            inspection.threads = python(&[
                "/usr/lib/python3.11/threading.py",
                "/usr/lib/python3.11/concurrent/futures/_base.py",
                "/w/t.py",
            ]);
            inspection.obstacle = Some(Obstacle::Connection { peer: "10.0.0.9:7000".into(), owner: None });
        }),
        ("a pool whose tasks sleep", |at, sample, inspection| {
            inspection.threads = python(&["/usr/lib/python3.11/multiprocessing/pool.py", "/w/t.py"]);
            (inspection.awaits, inspection.awaited_sleep_ms) =
                (vec![77], Some(18_000_u64.saturating_sub(at)));
            sample.signals.children = vec![child(77, 'S')];
        }),
        ("a simulator below a vectorized environment", |at, sample, inspection| {
            asks_a_server(at, sample, inspection);
            sample.wchan = "anon_pipe_read".into();
            inspection.threads =
                python(&["/site-packages/stable_baselines3/common/vec_env/subproc_vec_env.py", "/w/t.py"]);
            sample.signals.children = vec![child(77, 'S')];
        }),
        ("a manager's queue, next to an old zombie", |at, sample, inspection| {
            asks_a_server(at, sample, inspection);
            let owner = Some(holder(77, "python"));
            inspection.obstacle = Some(Obstacle::Connection { peer: "/tmp/listener".into(), owner });
            sample.signals.children = vec![child(77, 'S'), child(78, 'Z')];
        }),
    ];
    for (name, helper) in helpers {
        let c = repeated(FREE, &[18_000, 18_000, 18_000], &helper);
        assert_eq!(reds(&c), [], "{name}: {:?}", c.verdicts());
    }
    // A simulator that is asked in every step, and answers in one to nine seconds.
    quiet(&script(FREE, 60_000, &|at, sample, inspection| {
        asks_a_server(at, sample, inspection);
        let answers = [1, 6, 15, 18, 26, 27, 36, 43, 50, 58];
        let received = answers.iter().filter(|answer| **answer * 1_000 <= at).count() as u64;
        let main = sample.signals.main.as_mut().unwrap();
        (main.net_bytes, main.turns) = (Some(5_000 + 40 * received), 70 + received);
    }));
}

#[test]
fn polling_loop_is_a_warning_with_its_line() {
    assert_eq!(reported(&script(FREE, 28_000, &polls)), []);
    let c = script(FREE, 120_000, &polls);
    assert_eq!(reported(&c), [(Severity::Amber, Reason::Polling)]);
    let verdict = verdicts(&c).remove(0);
    assert_eq!(at(&verdict), "/w/data.py:9 in f");
    insta::assert_snapshot!("polling", verdict.reason);
}

#[test]
fn polling_loop_names_the_path_that_it_polls() {
    let c = script(FREE, 60_000, &|at, sample, inspection| {
        polls(at, sample, inspection);
        inspection.variables = vec!["path = /data/ready.flag".into(), "root = /data".into()];
    });
    assert_eq!(reported(&c), [(Severity::Amber, Reason::Polling)]);
    let verdict = verdicts(&c).remove(0);
    assert!(verdict.reason.contains("/w/data.py:9 in f (path = /data/ready.flag)"), "{}", verdict.reason);
    assert!(verdict.card.observations.contains(&"rank 1: variable root = /data".to_owned()));
}

/// An evaluation that sleeps between two calls of a model.
#[test]
fn watch_5_warning_outlives_a_busy_sample() {
    let c = script(FREE, 120_000, &|at, sample, inspection| {
        polls(at, sample, inspection);
        if (at / 250).is_multiple_of(37) {
            (sample.state, sample.wchan) = ('R', String::new());
        }
        sample.signals.main.as_mut().unwrap().cpu_us += at / 9_000 * 200_000;
    });
    assert_eq!(reported(&c), [(Severity::Amber, Reason::Polling)]);
}

#[test]
fn polling_loop_is_critical_after_its_patience() {
    red(&script(FREE, 620_000, &polls), Reason::Polling);
    // Other loops at that line have ended sooner.
    quiet(&repeated(FREE, &[20_000, 50_000], &polls));
    red(&repeated(FREE, &[20_000, 75_000], &polls), Reason::Polling);
    quiet(&repeated(FREE, &[50_000, 80_000], &polls));
}

#[test]
fn polling_event_loop_has_one_verdict() {
    let c = script(FREE, 68_000, &|at, sample, inspection| {
        polls(at, sample, inspection);
        sample.wchan = "ep_poll".into();
        sample.signals.main.as_mut().unwrap().io_bytes += at / 700;
        inspection.threads = python(&[
            "/usr/lib/python3.11/selectors.py",
            "/usr/lib/python3.11/asyncio/base_events.py",
            "/w/t.py",
        ]);
        let is_awake = (at / 500).is_multiple_of(5);
        (inspection.os.state, inspection.os.sleep_left_ms) =
            if is_awake { ('R', None) } else { ('S', Some(200)) };
    });
    assert_eq!(reported(&c), [(Severity::Amber, Reason::Polling)]);
}

/// A lock that stands over night, at a line where no wait was longer than some seconds.
#[test]
fn watch_3_lock_that_outlasts_its_line_is_certain() {
    let locked = |_: u64, _: &mut RankSample, inspection: &mut Inspection| {
        inspection.threads = python(&["/w/train.py"]);
    };
    let c = script(FREE, 3_700_000, &locked);
    let reported = verdicts(&c);
    let first = reported.iter().find(|verdict| verdict.confidence == Confidence::Certain).unwrap();
    assert_eq!((first.reason_code, first.proof), (Reason::Lock, Some(Proof::Outlasted)));
    assert!(first.latency_s >= 3_600.0, "{first:?}");
    assert_eq!(reported.len(), 2, "{reported:?}");
    // Another of its threads waits for a peer: the lock will be released.
    let c = script(FREE, 3_700_000, &|at, sample, inspection| {
        locked(at, sample, inspection);
        inspection.awaits = vec![77];
        sample.signals.children = vec![child(77, 'S')];
    });
    assert!(verdicts(&c).iter().all(|verdict| verdict.proof.is_none()), "{:?}", c.verdicts());
}

// A critical verdict that an inspection has confirmed.

#[test]
fn watch_4_confirmed_verdict_outlives_samples() {
    let c = script(FREE, 30_000, &|at, sample, inspection| {
        inspection.threads = python(&["/w/train.py"]);
        match at {
            10_000..10_500 => sample.wchan = "ep_poll".into(),
            // A new child reads something.
            14_000..15_000 => sample.signals.children = vec![ChildSample { io_bytes: at, ..child(79, 'S') }],
            18_000..18_250 => (sample.state, sample.wchan) = ('R', String::new()),
            _ => {}
        }
    });
    assert_eq!(reported(&c), [(Severity::Red, Reason::Lock)]);
}

#[test]
fn watch_4_confirmed_verdict_ends_with_its_wait() {
    let locked = |_: u64, _: &mut RankSample, inspection: &mut Inspection| {
        inspection.threads = python(&["/w/train.py"]);
    };
    let mut c = script(FREE, 10_000, &locked);
    train(&mut c, 1_000);
    assert_eq!(reported(&c), [(Severity::Red, Reason::Lock), (Severity::Cleared, Reason::Lock)]);
    // Another inspection shows another wait.
    let c = script(FREE, 40_000, &|at, sample, inspection| {
        locked(at, sample, inspection);
        if at > 10_000 {
            asks_a_server(at, sample, inspection);
        }
    });
    assert_eq!(reported(&c)[..2], [(Severity::Red, Reason::Lock), (Severity::Amber, Reason::WaitsForPeer)]);
    // It works for long.
    let c = script(FREE, 30_000, &|at, sample, inspection| {
        locked(at, sample, inspection);
        sample.signals.main.as_mut().unwrap().cpu_us += at.saturating_sub(10_000) * 900;
    });
    let severities: Vec<Severity> = reported(&c).iter().map(|(severity, _)| *severity).collect();
    assert_eq!(severities, [Severity::Red, Severity::Amber]);
}
