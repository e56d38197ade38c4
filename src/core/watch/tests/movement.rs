//! What counts as progress of a script, and what only runs next to it.

use super::lab::*;
use crate::reason::{ConfidenceBounds, OnVerdict, Reason, all_reasons};
use crate::report::{Confidence, Proof, Severity};
use crate::testkit::*;
use crate::watch::history::inspections;
use rankdeck_proto::inspection::{Frame, Inspection, OsState, StackMethod, ThreadStack};
use rankdeck_proto::message::*;
use rankdeck_types::ids::Rank;

/// What the late rank of a script does: a moment in milliseconds since the others wait, and its sample.
type Does<'a> = &'a dyn Fn(u64, &mut RankSample);

/// A script that trains for ten seconds, with a tracker next to every rank that uses a twentieth of a core
/// and writes all the time. Then the others wait for rank `late`, which waits for a lock unless `does`
/// changes that.
fn script(late: u32, ms: u64, inspection: Option<Inspection>, does: Does<'_>) -> Cluster {
    let mut c = trained(2);
    if let Some(inspection) = inspection {
        c.agents[late as usize / 2].inspections.insert(late, inspection);
    }
    let begun = c.now.0;
    let beside = move |now: u64, sample: &mut RankSample| {
        let passed = now - begun;
        sample.signals.cpu_ms = 1_000 + passed / 20;
        sample.signals.io_bytes = passed * 10;
        sample.signals.main =
            Some(MainThread { cpu_us: 500_000, turns: 70, io_bytes: 9, net_bytes: Some(5_000) });
        sample.signals.children = vec![ChildSample {
            pid: 900 + sample.rank.0,
            name: "tracker".into(),
            state: 'S',
            cpu_ms: 40 + passed / 15,
            parent: sample.pid,
            io_bytes: passed * 10,
            net_bytes: None,
        }];
    };
    drive(&mut c, 10_000, |_, now, sample| {
        beside(now, sample);
        let main = sample.signals.main.as_mut().unwrap();
        main.cpu_us += now * 500;
        sample.page = Some(hooked(now / 250, now / 250, 10));
    });
    let (seq, since) = (c.now.0 / 250, c.now.0);
    drive(&mut c, ms, |rank, now, sample| {
        beside(now, sample);
        sample.signals.main.as_mut().unwrap().cpu_us += since * 500;
        sample.wchan = "futex_do_wait".into();
        sample.page = Some(hooked(if rank == late { seq } else { seq + 1 }, seq, now - since));
        if rank == late {
            does(now - since, sample);
        }
    });
    c
}

fn main(sample: &mut RankSample) -> &mut MainThread {
    sample.signals.main.as_mut().unwrap()
}

fn only_expected(c: &Cluster) {
    assert_eq!(reds(c), []);
    let reported = verdicts(c);
    assert!(reported.iter().all(|verdict| verdict.reason_code == Reason::ExpectedWait), "{reported:?}");
    assert_eq!(reported.len(), 1, "reported once, after half a minute: {reported:?}");
}

fn red_in_time(c: &Cluster, rank: u32, reason: Reason) {
    assert_eq!(reds(c), [(Some(rank), reason)], "{:?}", c.verdicts());
    let reported = verdicts(c);
    assert!(reported[0].latency_s <= 7.0, "{reported:?}");
}

#[test]
fn tracker_does_not_hide_lock() {
    for late in [0, 1] {
        red_in_time(&script(late, 12_000, None, &|_, _| {}), late, Reason::Lock);
    }
}

#[test]
fn polling_main_thread_is_no_progress() {
    let c = script(1, 12_000, None, &|at, sample| {
        (main(sample).turns, main(sample).cpu_us) = (70 + at / 100, main(sample).cpu_us + at / 10);
    });
    red_in_time(&c, 1, Reason::Lock);
}

#[test]
fn busy_tracker_does_not_hide_idle_worker() {
    let inspection = Inspection {
        rank: Rank(1),
        awaits: vec![77],
        blocked_on: Some("read on a pipe from pid 77 (python)".into()),
        ..Inspection::default()
    };
    let c = script(1, 12_000, Some(inspection), &|_, sample| {
        sample.wchan = "anon_pipe_read".into();
        sample.signals.children.push(ChildSample {
            pid: 77,
            state: 'S',
            cpu_ms: 5,
            ..ChildSample::default()
        });
    });
    red_in_time(&c, 1, Reason::EnvWorkerDeadlocked);
}

/// It receives a little every second, by calls that count as no reading, and hardly runs.
#[test]
fn slow_download_of_worker_is_a_warning() {
    let inspection = Inspection {
        rank: Rank(1),
        awaits: vec![77],
        blocked_on: Some("read on a pipe from pid 77 (python)".into()),
        ..Inspection::default()
    };
    let waits_for = |net_bytes: &dyn Fn(u64) -> Option<u64>, ms| {
        script(1, ms, Some(inspection.clone()), &|at, sample| {
            sample.wchan = "anon_pipe_read".into();
            let worker = ChildSample { pid: 77, state: 'S', cpu_ms: 5, ..ChildSample::default() };
            sample.signals.children.push(ChildSample { net_bytes: net_bytes(at), ..worker });
        })
    };
    let c = waits_for(&|at| Some(9_000 + at / 1_000 * 2_000), 60_000);
    let reported: Vec<_> =
        verdicts(&c).iter().map(|reported| (reported.severity, reported.reason_code)).collect();
    assert_eq!(reported, [(Severity::Amber, Reason::SlowEnv)], "{:?}", c.verdicts());
    for stands in [Some(9_000), None] {
        red_in_time(&waits_for(&|_| stands, 12_000), 1, Reason::EnvWorkerDeadlocked);
    }
}

#[test]
fn printing_evaluation_is_expected() {
    // It sleeps between the answers of a simulator elsewhere and prints each episode.
    let c = script(0, 60_000, None, &|at, sample| {
        sample.wchan = "hrtimer_nanosleep".into();
        main(sample).io_bytes = 9 + at / 4_000 * 30;
    });
    only_expected(&c);
}

#[test]
fn network_replies_count_as_progress_of_reader() {
    let answers = |at: u64, sample: &mut RankSample| {
        sample.wchan = "wait_woken".into();
        (main(sample).net_bytes, main(sample).turns) = (Some(5_000 + at / 2_000 * 300), 70 + at / 2_000);
    };
    only_expected(&script(0, 60_000, None, &answers));
    // Another thread sends to a tracker.
    let beside = |at: u64, sample: &mut RankSample| {
        sample.wchan = "wait_woken".into();
        main(sample).net_bytes = Some(5_000 + at / 2_000 * 300);
    };
    assert_eq!(reds(&script(0, 90_000, None, &beside)), [(Some(0), Reason::WaitsForPeer)]);
    // It downloads in a thread.
    let loads = |at: u64, sample: &mut RankSample| main(sample).net_bytes = Some(at * 5_000);
    only_expected(&script(0, 60_000, None, &loads));
}

/// A library uploads in threads of its own while the main thread waits for them, over a slow line.
#[test]
fn background_stream_counts_as_progress_above_threshold() {
    let carries = |bytes_per_ms: u64| {
        // The agent samples connections twice a second.
        move |at: u64, sample: &mut RankSample| main(sample).net_bytes = Some(at / 500 * 500 * bytes_per_ms)
    };
    only_expected(&script(0, 60_000, None, &carries(300)));
    red_in_time(&script(0, 12_000, None, &carries(20)), 0, Reason::Lock);
    // A tracker sends what it has gathered.
    let gathered = |at: u64, sample: &mut RankSample| main(sample).net_bytes = Some(at / 10_000 * 300_000);
    red_in_time(&script(0, 12_000, None, &gathered), 0, Reason::Lock);
}

/// A tracker's service sends the files of a run; it was there before, and the main thread waits for a lock.
#[test]
fn helper_with_much_more_io_counts_as_progress() {
    let moves = |bytes_per_ms: u64| {
        move |at: u64, sample: &mut RankSample| sample.signals.children[0].io_bytes += at * bytes_per_ms
    };
    only_expected(&script(0, 60_000, None, &moves(500)));
    red_in_time(&script(0, 12_000, None, &moves(15)), 0, Reason::Lock);
}

/// It talks to a simulator by datagrams or a local socket, of which nothing counts the bytes.
#[test]
fn conversation_counts_as_progress_polling_not() {
    let talks = |turns: u64, cpu_us: u64, wchan: &'static str| {
        move |at: u64, sample: &mut RankSample| {
            sample.wchan = wchan.into();
            main(sample).turns = 70 + at * turns / 1_000;
            main(sample).cpu_us += at * cpu_us / 1_000;
        }
    };
    only_expected(&script(0, 60_000, None, &talks(60, 25_000, "__skb_wait_for_more_packets")));
    for wait in
        [talks(2, 1_000, "do_sys_poll"), talks(60, 1_000, "do_sys_poll"), talks(60, 25_000, "futex_do_wait")]
    {
        assert_eq!(reds(&script(0, 12_000, None, &wait)).len(), 1);
    }
}

/// An evaluation on the GPU whose main thread sleeps until the GPU is ready.
#[test]
fn gpu_work_of_rank_counts_as_progress() {
    let runs_with = |utilization: u32, processes: Vec<(u32, u64)>, share: Option<u32>, ranks: usize| {
        let mut c = trained(2);
        let gpu = GpuSample { utilization: Some(utilization), processes, ..GpuSample::default() };
        c.agents[0].gpus = vec![gpu];
        (0..ranks).for_each(|rank| c.with_gpu(rank));
        drive(&mut c, 10_000, |_, now, sample| {
            let cpu_us = now * 500;
            sample.signals.main = Some(MainThread { cpu_us, turns: 70, io_bytes: 9, net_bytes: None });
            sample.page = Some(hooked(now / 250, now / 250, 10));
        });
        let (seq, since) = (c.now.0 / 250, c.now.0);
        drive(&mut c, 20_000, |rank, now, sample| {
            sample.wchan = "poll_schedule_timeout".into();
            sample.page = Some(hooked(if rank == 0 { seq } else { seq + 1 }, seq, now - since));
            sample.gpu_share = share.filter(|_| rank == 0);
        });
        c
    };
    let runs = |utilization, processes, share| runs_with(utilization, processes, share, 1);
    let (own, both) = (vec![(1000, 1)], vec![(1000, 1), (4000, 1)]);
    for c in [runs(90, own.clone(), None), runs(90, vec![], None), runs(90, both.clone(), Some(30))] {
        assert_eq!(reds(&c), [], "{:?}", c.verdicts());
    }
    // It does nothing, or someone else's works: where a container is reported no processes, another rank's.
    let others = runs_with(90, vec![], None, 2);
    for c in [runs(0, own, None), runs(90, both.clone(), None), runs(90, both, Some(0)), others] {
        assert_eq!(reds(&c).len(), 1, "{:?}", c.verdicts());
    }
}

/// Saved to a file server that takes a minute: the thread is blocked in the kernel, and only the server
/// moves.
#[test]
fn p9_slow_storage_is_expected_dead_storage_is_critical() {
    // Some inspections come between two waits, and see it wait for nothing.
    let saves = |moves: bool, ms: u64, between: Option<u64>| {
        let mut c = trained(2);
        let since = c.now.0;
        let mut samples = 0;
        c.hang(0, |sample| {
            sample.state = 'D';
            sample.wchan = "nfs_wait_bit_killable".into();
            sample.page.as_mut().unwrap().phase = Phase::Checkpoint;
        });
        while c.now.0 < since + ms {
            samples += 1;
            let mut inspection = inspection_at(0, "save", "train.py", 70);
            if between.is_some_and(|shift| (samples / 2 + shift).is_multiple_of(5)) {
                inspection.os.state = 'R';
            } else {
                inspection.storage_bytes = Some(1_000_000 + if moves { samples * 500 } else { 0 });
            }
            c.agents[0].inspections.insert(0, inspection);
            c.pass(250);
        }
        c
    };
    for between in (0..5).map(Some).chain([None]) {
        let c = saves(true, 60_000, between);
        assert_eq!(reds(&c), [], "{between:?} {:?}", c.verdicts());
        let expected = verdicts(&c).iter().all(|reported| reported.reason_code == Reason::ExpectedWait);
        assert!(expected, "{between:?} {:?}", verdicts(&c));
    }
    assert_eq!(reds(&saves(false, 8_000, None)), [(Some(0), Reason::Storage)]);
}

/// What the first inspection showed was over at the next one: one that sees it wait for the same is needed.
#[test]
fn p9_storage_failure_is_reported_on_next_inspection() {
    let mut c = trained(2);
    let mut inspection = inspection_at(0, "save", "train.py", 70);
    inspection.os.state = 'R';
    c.agents[0].inspections.insert(0, inspection.clone());
    c.hang(0, |sample| {
        sample.state = 'D';
        sample.wchan = "nfs_wait_bit_killable".into();
        sample.page.as_mut().unwrap().phase = Phase::Checkpoint;
    });
    let since = c.now.0;
    c.pass(4_000);
    inspection.os.state = 'D';
    inspection.storage_bytes = Some(1_000_000);
    c.agents[0].inspections.insert(0, inspection);
    c.pass(4_000);
    assert_eq!(reds(&c), [], "{:?}", c.verdicts());
    while reds(&c).is_empty() {
        assert!(c.now.0 < since + 20_000, "{:?}", c.verdicts());
        c.pass(250);
    }
    assert_eq!(reds(&c), [(Some(0), Reason::Storage)]);
}

#[test]
fn sleep_within_budget_is_expected() {
    let inspection = |left| Inspection {
        rank: Rank(0),
        os: OsState { sleep_left_ms: Some(left), ..OsState::default() },
        ..Inspection::default()
    };
    // An event loop that has nothing but timers sleeps in a poll.
    for wait in ["hrtimer_nanosleep", "ep_poll"] {
        let sleeps = |_: u64, sample: &mut RankSample| sample.wchan = wait.into();
        only_expected(&script(0, 40_000, Some(inspection(55_000)), &sleeps));
        red_in_time(&script(0, 12_000, Some(inspection(900_000)), &sleeps), 0, Reason::Sleeping);
    }
}

/// An inspection is stale as soon as the sleeper wakes: until the next one it sleeps again.
#[test]
fn polling_sleeper_is_never_critical_between_inspections() {
    for wait in ["hrtimer_nanosleep", "ep_poll"] {
        let inspection = Inspection {
            rank: Rank(0),
            os: OsState { sleep_left_ms: Some(500), ..OsState::default() },
            ..Inspection::default()
        };
        let c = script(0, 60_000, Some(inspection), &|at, sample| {
            sample.wchan = wait.into();
            // Too little for work, and now and then enough to make the inspection stale.
            main(sample).turns += at / 500;
            main(sample).io_bytes += at / 7_000;
        });
        only_expected(&c);
    }
}

#[test]
fn awaited_program_counts_as_progress() {
    let inspection = Inspection { rank: Rank(0), awaits: vec![77], ..Inspection::default() };
    for new in [true, false] {
        let c = script(0, 60_000, Some(inspection.clone()), &|at, sample| {
            sample.wchan = "do_wait".into();
            let io_bytes = if new { at / 2_000 * 40 } else { at };
            // Its own child does the work.
            let shell = ChildSample { pid: 77, state: 'S', parent: sample.pid, ..ChildSample::default() };
            let work = ChildSample { pid: 78, state: 'S', parent: 77, io_bytes, ..ChildSample::default() };
            sample.signals.children.extend([shell, work]);
        });
        assert_eq!(reds(&c), []);
    }
}

#[test]
fn helper_threads_count_as_progress() {
    let c = script(0, 60_000, None, &|at, sample| sample.signals.cpu_ms += at * 9 / 10);
    only_expected(&c);
}

fn computes(sample: &mut RankSample, at: u64) {
    (sample.state, sample.wchan) = ('R', String::new());
    main(sample).cpu_us += at * 1_000;
}

fn first_amber(c: &Cluster, reason: Reason) {
    assert_eq!(reds(c), [], "{:?}", c.verdicts());
    let reported = verdicts(c);
    let (first, late) =
        (reported.first().expect("a verdict"), reported.iter().any(|reported| reported.latency_s > 10.0));
    assert_eq!((first.rank, first.reason_code), (Some(Rank(1)), reason), "{reported:?}");
    assert!(!late, "{reported:?}");
}

#[test]
fn p15_c_code_holding_the_gil_is_a_warning_in_time() {
    let inspection = Inspection { computes_in_c: true, ..inspection_at(1, "parse", "train.py", 9) };
    first_amber(&script(1, 30_000, Some(inspection), &|at, sample| computes(sample, at)), Reason::GilHeld);
}

#[test]
fn p14_busy_main_thread_in_one_function_is_a_warning() {
    let inspection = inspection_at(1, "parse", "train.py", 9);
    first_amber(&script(1, 30_000, Some(inspection), &|at, sample| computes(sample, at)), Reason::Spinning);
}

#[test]
fn computing_in_many_functions_is_expected() {
    let mut c = script(1, 250, None, &|_, _| {});
    let since = c.now.0 - 250;
    for step in 1..240 {
        let function = format!("step_{step}");
        c.agents[0].inspections.insert(1, inspection_at(1, &function, "train.py", 9));
        drive(&mut c, 250, |rank, now, sample| {
            let seq = since / 250;
            sample.page = Some(hooked(if rank == 1 { seq } else { seq + 1 }, seq, now - since));
            if rank == 1 {
                sample.state = 'R';
                let at = now - since;
                main(sample).cpu_us = 500_000 + since * 500 + at * 1_000;
            }
        });
    }
    only_expected(&c);
}

/// An evaluation in a framework: the program's own frame is the same one all the time.
#[test]
fn library_loop_spins_only_in_the_same_functions() {
    let mut c = script(1, 250, None, &|_, _| {});
    let since = c.now.0 - 250;
    let evaluates = |c: &mut Cluster, steps: std::ops::Range<u64>, changes: bool| {
        for step in steps {
            let function = if changes { format!("step_{step}") } else { "step".to_owned() };
            let packages = "/v/lib/python3.11/site-packages";
            let frame = |function: &str, file: String| Frame {
                function: function.into(),
                file: Some(file),
                line: Some(9),
            };
            let frames = vec![
                frame("forward", format!("{packages}/torch/nn/modules/linear.py")),
                frame(&function, format!("{packages}/ding/worker/policy.py")),
                frame("eval", format!("{packages}/ding/worker/evaluator.py")),
                frame("<module>", "/w/di_run.py".into()),
            ];
            let stack = ThreadStack { tid: 1001, how: StackMethod::Python, frames, ..ThreadStack::default() };
            let inspection =
                Inspection { rank: Rank(1), pid: Some(1001), threads: vec![stack], ..Inspection::default() };
            c.agents[0].inspections.insert(1, inspection);
            drive(c, 250, |rank, now, sample| {
                let seq = since / 250;
                sample.page = Some(hooked(if rank == 1 { seq } else { seq + 1 }, seq, now - since));
                if rank == 1 {
                    sample.state = 'R';
                    main(sample).cpu_us = 500_000 + since * 500 + (now - since) * 1_000;
                }
            });
        }
    };
    evaluates(&mut c, 1..240, true);
    only_expected(&c);
    evaluates(&mut c, 240..820, false);
    let last = verdicts(&c).pop().unwrap();
    assert_eq!((last.reason_code, last.severity), (Reason::Spinning, Severity::Amber));
    assert_eq!(at(&last), "ding/worker/policy.py:9 in step, called at /w/di_run.py:9");
}

#[test]
fn used_up_budget_makes_stuck_rank_critical() {
    let c = script(0, 620_000, None, &|at, sample| main(sample).io_bytes = 9 + at / 3_000 * 30);
    assert_eq!(reds(&c).len(), 1, "{:?}", c.verdicts());
    assert_eq!(verdicts(&c)[0].severity, Severity::Amber);
}

#[test]
fn watch_3_policy_acts_on_proof_and_never_on_silence() {
    let bounds = |silence_ms| ConfidenceBounds { budget_ms: 600_000, silent_ms: u64::MAX, silence_ms };
    for row in all_reasons() {
        let after =
            |found, lasted_ms, silence_ms| row.policy.proof(found, lasted_ms, bounds(silence_ms)).is_some();
        let sure = |found, lasted_ms| after(found, lasted_ms, None);
        for hours in 0..100 {
            assert!(!sure(None, hours * 3_600_000), "{}", row.name);
        }
        let proof = Some(Proof::Halted);
        let at_once = sure(proof, 5_000);
        match row.policy {
            OnVerdict::AtOnce => assert!(at_once, "{}", row.name),
            OnVerdict::Held => {
                assert!(!at_once && !sure(proof, 59_999), "{}", row.name);
                assert!(sure(proof, 60_000), "{}", row.name);
                let short = ConfidenceBounds { budget_ms: 8_000, ..bounds(None) };
                assert!(row.policy.proof(proof, 9_000, short).is_some());
            }
            OnVerdict::Lasting => assert!(!at_once && sure(proof, 600_000), "{}", row.name),
            OnVerdict::Never => {}
        }
        // The user's own limit.
        let limited = row.policy != OnVerdict::Never;
        assert!(!after(None, 29_999, Some(30_000)), "{}", row.name);
        assert_eq!(after(None, 30_000, Some(30_000)), limited, "{}", row.name);
        let moved = ConfidenceBounds { silent_ms: 9_000, ..bounds(Some(30_000)) };
        assert_eq!(row.policy.proof(None, 90_000, moved), None, "{}", row.name);
        let mild = row.severity == Severity::Amber && row.reason != Reason::InsideCollective;
        assert!(!mild || row.policy == OnVerdict::Never, "{} must not stop a run", row.name);
    }
}

#[test]
fn watch_3_silence_of_hours_never_becomes_certain_by_itself() {
    let sure =
        |c: &Cluster| c.model().verdicts.iter().any(|verdict| verdict.confidence == Confidence::Certain);
    let mut c = trained(2);
    c.hang(1, |_| {});
    for _ in 0..30 {
        c.pass(500_000);
        assert!(!sure(&c), "{:?}", c.verdicts());
    }
    assert_eq!(reds(&c).len(), 1, "{:?}", c.verdicts());

    let mut c = trained(2);
    c.core.model_mut().plan.as_mut().unwrap().experiment.watch.silence_is_stuck_s = Some(900.0);
    c.hang(1, |_| {});
    c.pass(890_000);
    assert!(!sure(&c) && reds(&c).len() == 1);
    c.pass(15_000);
    assert!(sure(&c));
    assert_eq!(reds(&c).len(), 2, "reported once more: {:?}", c.verdicts());
}

/// What an idle writer of events waits in is not evidence about the rank.
#[test]
fn native_frames_are_of_main_thread() {
    let of = |main: &[(&str, &str)]| {
        let mut inspection = inspection_at(0, "write_lines", "src/trainer/report.rs", 147);
        let frame = |(function, file): &(&str, &str)| Frame {
            function: (*function).into(),
            file: Some((*file).into()),
            line: Some(7),
        };
        let frames = main.iter().map(frame).collect();
        inspection.threads.push(ThreadStack {
            tid: 999,
            name: "main".into(),
            how: StackMethod::Native,
            frames,
        });
        inspection.pid = Some(999);
        inspections::user_frame(&inspection)
    };
    let poll = ("clock_nanosleep", "/usr/lib/libc.so.6");
    assert_eq!(of(&[poll]), None);
    let site = of(&[poll, ("reduce", "src/trainer/algo/on_policy.rs")]);
    assert_eq!(site.as_deref(), Some("src/trainer/algo/on_policy.rs:7 in reduce"));
}
