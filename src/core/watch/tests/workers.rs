//! One level deeper: what workers, threads, tasks and ranks of a rank's own explain, and what a run waits for.

use super::doubtful::*;
use super::lab::*;
use crate::reason::Reason;
use crate::report::{Proof, ReportBody, Severity};
use crate::testkit::*;
use rankdeck_proto::inspection::{
    Frame, InspectedChild, Inspection, OF_CHILD, OF_TASK, Obstacle, StackMethod, ThreadStack,
};
use rankdeck_proto::message::*;
use rankdeck_types::ids::Rank;

fn stack(tid: u32, name: &str, files: &[&str]) -> ThreadStack {
    let frame = |file: &&str| Frame { function: "f".into(), file: Some((*file).into()), line: Some(9) };
    let frames = files.iter().map(frame).collect();
    ThreadStack { tid, name: name.into(), how: StackMethod::Python, frames }
}

/// The children of the rank in an inspection and in a sample.
fn shows(sample: &mut RankSample, inspection: &mut Inspection, children: &[(u32, char)]) {
    sample.signals.children = children.iter().map(|(pid, state)| child(*pid, *state)).collect();
    let inspected = |(pid, state): &(u32, char)| InspectedChild {
        pid: *pid,
        name: "python".into(),
        state: *state,
        exit: (*state == 'Z').then_some(Exit::Signal { signal: 9, out_of_memory: false }),
        ..InspectedChild::default()
    };
    inspection.children = children.iter().map(inspected).collect();
}

/// All facts of the evidence of the first critical verdict.
fn evidence(c: &Cluster) -> String {
    let verdict = verdicts(c).into_iter().rfind(|verdict| verdict.severity == Severity::Red).unwrap();
    let side = verdict.card.culprit.clone().unwrap_or_default();
    [verdict.card.observations.clone(), side.children, vec![side.at]].concat().join("\n")
}

/// Two workers are there while the rank trains; then the first of them dies, and the rank waits with `files` on its
/// stack, in `wchan`.
fn loses_its_worker(wchan: &str, files: &[&str], ends: &[u32], reaped: bool) -> Cluster {
    loses_its_worker_for(12_000, wchan, files, ends, reaped)
}

fn loses_its_worker_for(ms: u64, wchan: &str, files: &[&str], ends: &[u32], reaped: bool) -> Cluster {
    let mut c = script(FREE, 0, &|_, _, _| {});
    drive(&mut c, 5_000, |rank, now, sample| {
        sample.signals.main.as_mut().unwrap().cpu_us = now * 500;
        sample.page = Some(hooked(now / 250, now / 250, 10));
        if rank == 1 {
            sample.signals.children = vec![child(77, 'S'), child(78, 'S')];
        }
    });
    late(&mut c, ms, &|_, sample, inspection| {
        sample.wchan = wchan.into();
        inspection.threads = python(files);
        let both = [(77, 'Z'), (78, 'S')];
        shows(sample, inspection, if reaped { &both[1..] } else { &both });
        inspection.awaits = ends.to_vec();
        let holders = ends.iter().map(|pid| holder(*pid, "python train.py")).collect();
        inspection.obstacle =
            (wchan == "anon_pipe_read").then_some(Obstacle::Pipe { ends: holders, reads: true });
    });
    c
}

#[test]
fn dead_worker_outside_known_libraries_is_named() {
    let connection = ["/usr/lib/python3.11/multiprocessing/connection.py", "/w/train.py"];
    let pool = ["/usr/lib/python3.11/threading.py", "/usr/lib/python3.11/multiprocessing/pool.py", "/w/t.py"];
    let c = loses_its_worker("anon_pipe_read", &connection, &[], false);
    red(&c, Reason::WorkerDied);
    let verdict = verdicts(&c).into_iter().find(|verdict| verdict.severity == Severity::Red).unwrap();
    insta::assert_snapshot!("dead_worker", verdict.reason);
    assert!(evidence(&c).contains("child process 77 (python) was killed by SIGKILL"), "{}", evidence(&c));
    // No other process has the other end: certain in time. A living worker has inherited it: likely.
    for (ends, proof) in [(&[][..], Some(Proof::Gone)), (&[78][..], None)] {
        let c = loses_its_worker_for(700_000, "anon_pipe_read", &connection, ends, false);
        red(&c, Reason::WorkerDied);
        let proofs: Vec<Proof> = verdicts(&c).iter().filter_map(|verdict| verdict.proof).collect();
        assert_eq!(proofs.first().copied(), proof, "{ends:?}");
    }
    // A pool replaces its worker, and the task is lost.
    red(&loses_its_worker("futex_do_wait", &pool, &[], true), Reason::WorkerDied);
    // A lock of the program, and a child that someone else has reaped.
    red(&loses_its_worker("futex_do_wait", &["/w/train.py"], &[], false), Reason::Lock);
    red(
        &loses_its_worker("anon_pipe_read", &["/usr/lib/python3.11/subprocess.py"], &[78], true),
        Reason::Pipe,
    );
}

/// The rank waits with `files` on its stack; it has what `shows` writes in the sample that shows its last collective,
/// and in all later ones.
fn falls_silent(wchan: &str, files: &[&str], shows: Does<'_>) -> Cluster {
    let mut c = script(FREE, 0, &|_, _, _| {});
    let both = [(77, 'S'), (78, 'S')];
    drive(&mut c, 5_000, |rank, now, sample| {
        sample.signals.main.as_mut().unwrap().cpu_us = now * 500;
        sample.page = Some(hooked(now / 250, now / 250, 10));
        sample.signals.children =
            both.iter().filter(|_| rank == 1).map(|(pid, state)| child(*pid, *state)).collect();
    });
    // One more collective, and the worker is gone before the next sample.
    drive(&mut c, 250, |rank, now, sample| {
        sample.page = Some(hooked(now / 250, now / 250, 10));
        if rank == 1 {
            shows(0, sample, &mut Inspection::default());
        }
    });
    late(&mut c, 12_000, &|at, sample, inspection| {
        sample.wchan = wchan.into();
        inspection.threads = python(files);
        shows(at, sample, inspection);
    });
    c
}

/// The other end of the pipe that the rank reads.
fn reads_from(inspection: &mut Inspection, ends: &[u32]) {
    inspection.awaits = ends.to_vec();
    let holders = ends.iter().map(|pid| holder(*pid, "python train.py")).collect();
    inspection.obstacle = Some(Obstacle::Pipe { ends: holders, reads: true });
}

const CONNECTION: [&str; 2] = ["/usr/lib/python3.11/multiprocessing/connection.py", "/w/train.py"];

#[test]
fn worker_killed_right_after_a_collective_is_named() {
    for wchan in ["anon_pipe_read", "unix_stream_read_generic", "unix_stream_data_wait", "anon_pipe_write"] {
        let c = falls_silent(wchan, &CONNECTION, &|_, sample, inspection| {
            shows(sample, inspection, &[(77, 'Z'), (78, 'S')]);
            reads_from(inspection, &[78]);
        });
        red(&c, Reason::WorkerDied);
        assert!(evidence(&c).contains("child process 77 (python) was killed by SIGKILL"), "{}", evidence(&c));
    }
}

#[test]
fn worker_that_the_program_reaped_is_named() {
    let reaped = |files: &[&str], ends: &[u32]| {
        falls_silent("unix_stream_read_generic", files, &|_, sample, inspection| {
            shows(sample, inspection, &[(78, 'S')]);
            reads_from(inspection, ends);
        })
    };
    red(&reaped(&CONNECTION, &[78]), Reason::WorkerDied);
    red(&reaped(&["/w/train.py"], &[]), Reason::WorkerDied);
    // A program that was started with `subprocess` answers by itself.
    red(&reaped(&["/usr/lib/python3.11/subprocess.py", "/w/train.py"], &[78]), Reason::Pipe);
}

#[test]
fn worker_that_died_before_it_was_seen_is_named() {
    let queue = ["/usr/lib/python3.11/multiprocessing/queues.py", "/w/train.py"];
    let young = |ends: &'static [u32]| {
        falls_silent("anon_pipe_read", &queue, &move |_, sample, inspection| {
            shows(sample, inspection, &[(77, 'S'), (78, 'S'), (90, 'Z')]);
            reads_from(inspection, ends);
        })
    };
    red(&young(&[]), Reason::WorkerDied);
    red(&young(&[78]), Reason::WorkerDied);
}

#[test]
fn lock_that_a_dead_worker_shared_is_explained_by_it() {
    let held = |shared: bool, files: &[&str], left: &'static [(u32, char)]| {
        falls_silent("futex_do_wait", files, &move |_, sample, inspection| {
            shows(sample, inspection, left);
            inspection.os.shared_lock = shared;
        })
    };
    let own = ["/w/train.py"];
    let (zombie, reaped) = (&[(77, 'Z'), (78, 'S')], &[(78, 'S')]);
    red(&held(true, &own, zombie), Reason::WorkerDied);
    red(&held(true, &own, reaped), Reason::WorkerDied);
    red(&held(false, &own, zombie), Reason::Lock);
    red(&held(false, &own, reaped), Reason::Lock);
    red(&held(true, &own, &[(77, 'S'), (78, 'S')]), Reason::Lock);
    // A thread passes on what the worker sends.
    red(&held(false, &["/usr/lib/python3.11/queue.py", "/w/train.py"], zombie), Reason::WorkerDied);
}

#[test]
fn wait_without_a_kernel_function_is_known_by_its_call() {
    let c = falls_silent("", &CONNECTION, &|_, sample, inspection| {
        shows(sample, inspection, &[(77, 'Z'), (78, 'S')]);
        reads_from(inspection, &[78]);
        (inspection.os.state, inspection.os.syscall) = ('S', Some("read(5)".into()));
    });
    red(&c, Reason::WorkerDied);
}

#[test]
fn child_that_came_later_does_not_explain_a_wait() {
    let c = script(FREE, 12_000, &|at, sample, inspection| {
        sample.wchan = "anon_pipe_read".into();
        inspection.threads = python(&["/usr/lib/python3.11/multiprocessing/connection.py", "/w/train.py"]);
        shows(sample, inspection, &[(78, 'S'), (79, if at < 2_000 { 'S' } else { 'Z' })]);
        inspection.awaits = vec![78];
        inspection.obstacle = Some(Obstacle::Pipe { ends: vec![holder(78, "python train.py")], reads: true });
    });
    red(&c, Reason::Pipe);
}

#[test]
fn line_of_the_awaited_worker_is_in_evidence() {
    let c = script(FREE, 12_000, &|_, sample, inspection| {
        sample.wchan = "anon_pipe_read".into();
        inspection.threads = python(&["/site-packages/gymnasium/vector/async_vector_env.py", "/w/train.py"]);
        inspection.threads.push(stack(
            78,
            &format!("{OF_CHILD}78 (python)"),
            &["/w/hangenv.py", "/w/train.py"],
        ));
        shows(sample, inspection, &[(78, 'S')]);
        inspection.awaits = vec![78];
        inspection.obstacle = Some(Obstacle::Pipe { ends: vec![holder(78, "python train.py")], reads: true });
    });
    assert!(evidence(&c).contains("/w/hangenv.py:9 in f"), "{}", evidence(&c));
}

#[test]
fn line_of_the_awaited_thread_is_in_evidence() {
    let with = |main: &[&str]| {
        let c = script(FREE, 12_000, &|_, _, inspection| {
            inspection.threads = python(main);
            inspection.threads.push(stack(
                1_050,
                "collector",
                &["/usr/lib/python3.11/socket.py", "/w/collect.py"],
            ));
            inspection.threads.push(stack(1_051, "rankdeck", &["/r/python/rankdeck_hook.py"]));
            inspection.threads.push(stack(1_052, "tracker", &["/site-packages/wandb/sdk/run.py"]));
        });
        evidence(&c)
    };
    let seen = with(&["/usr/lib/python3.11/threading.py", "/usr/lib/python3.11/queue.py", "/w/train.py"]);
    assert!(seen.contains("its thread collector is at /w/collect.py:9 in f"), "{seen}");
    assert!(!seen.contains("rankdeck") && !seen.contains("tracker"), "{seen}");
    assert!(!with(&["/w/train.py"]).contains("collect.py"), "it waits for no thread");
}

/// Its producer has ended by an assertion: nobody fills the queue.
#[test]
fn exception_that_ended_a_thread_is_in_evidence() {
    let mut c = script(FREE, 0, &|_, _, _| {});
    let exception = Exception {
        class: "AssertionError".into(),
        message: "shapes differ".into(),
        at: "/w/collect.py:12".into(),
        thread: "collector".into(),
        ..Exception::default()
    };
    c.rank_event(1, RankEvent::Exception(exception));
    late(&mut c, 12_000, &|_, _, inspection| {
        inspection.threads = python(&["/usr/lib/python3.11/queue.py", "/w/train.py"]);
    });
    red(&c, Reason::Lock);
    let verdict = verdicts(&c).into_iter().find(|verdict| verdict.reason_code == Reason::Lock).unwrap();
    let fact = "rank 1: its thread collector ended with AssertionError: shapes differ at /w/collect.py:12";
    assert!(verdict.card.facts.iter().any(|line| line == fact), "{:?}", verdict.card.facts);
}

#[test]
fn line_of_the_await_is_that_of_the_rank() {
    let loops =
        ["/usr/lib/python3.11/selectors.py", "/usr/lib/python3.11/asyncio/base_events.py", "/w/train.py"];
    let c = script(FREE, 70_000, &|_, sample, inspection| {
        sample.wchan = "ep_poll".into();
        inspection.threads = python(&loops);
        let task = |name: &str, file| {
            stack(0, &format!("{OF_TASK}{name}"), &["/usr/lib/python3.11/asyncio/queues.py", file])
        };
        inspection.threads.push(task("Task-1", "/w/rollout.py"));
        inspection.threads.push(task("judge", "/w/judge.py"));
        inspection.obstacle = Some(Obstacle::Pipe { ends: Vec::new(), reads: true });
    });
    let seen = evidence(&c);
    assert!(seen.ends_with("/w/rollout.py:9 in f"), "{seen}");
    assert!(seen.contains("its task judge waits at /w/judge.py:9 in f"), "{seen}");
}

// Ranks of a rank's own.

fn inner(rank: u32, world_size: u32) -> RankEvent {
    let backend = "gloo".into();
    RankEvent::InnerRank(InnerRank {
        pid: 70 + rank,
        rank: Some(rank),
        world_size: Some(world_size),
        backend,
        at: "train.py:7".into(),
    })
}

#[test]
fn ranks_of_its_own_are_reported_once() {
    let mut c = trained(1);
    for rank in 0..4 {
        c.rank_event(0, inner(rank, 4));
        c.rank_event(0, inner(rank, 4));
    }
    let noted: Vec<&str> = c
        .reports
        .iter()
        .filter_map(|(_, _, body)| match body {
            ReportBody::Rank { state, detail, .. } if state == "spawned_ranks" => Some(detail.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(noted, ["4 ranks in its own group: world 4, backend gloo"]);
    assert_eq!(c.model().ranks[0].inner.len(), 4);
    // Another round of them takes the place of the first.
    (0..4).for_each(|rank| c.rank_event(0, inner(rank, 4)));
    (0..500).for_each(|rank| c.rank_event(0, inner(rank, 500)));
    assert!(c.model().ranks[0].inner.len() <= 64);
}

/// Launchers wait for ranks of their own, all of which stand still: in a collective, but for one.
#[test]
fn stall_of_ranks_of_its_own_has_their_lines() {
    let mut c = script(FREE, 0, &|_, _, _| {});
    for rank in 0..4 {
        c.rank_event(1, inner(rank, 4));
    }
    for rank in 0..4 {
        let mut inspection = inspection_at(rank, "join", "train.py", 55);
        inspection.threads = python(&["/usr/lib/python3.11/multiprocessing/popen_fork.py", "/w/train.py"]);
        for inner in 0..4 {
            let name = format!("{OF_CHILD}{} (python)", 70 + inner);
            let hangs = ["/w/hang.py"];
            let waits = ["/site-packages/torch/distributed/distributed_c10d.py", "/w/train.py"];
            inspection.threads.push(stack(
                70 + inner,
                &name,
                if inner == 3 { &hangs[..] } else { &waits[..] },
            ));
            let one = InspectedChild {
                pid: 70 + inner,
                state: 'S',
                name: "python".into(),
                ..InspectedChild::default()
            };
            inspection.children.push(one);
        }
        c.agents[rank as usize / 2].inspections.insert(rank, inspection);
    }
    drive(&mut c, 120_000, |_, _, sample| {
        (sample.wchan, sample.page) = ("do_wait".into(), None);
        sample.signals.children = (70..74).map(|pid| child(pid, 'S')).collect();
    });
    let stalled = c.model().verdicts.iter().find(|verdict| verdict.reason_code == Reason::Standstill);
    let stalled = stalled.unwrap_or_else(|| panic!("{:?}", c.verdicts()));
    let of_one: Vec<&String> =
        stalled.card.observations.iter().filter(|line| line.starts_with("rank 1: pid")).collect();
    assert!(
        of_one[0].contains("rank 3 of 4 in its own group") && of_one[0].contains("/w/hang.py:9"),
        "{of_one:?}"
    );
    assert!(
        stalled.card.observations.iter().any(|line| line.contains("4 ranks in its own group")),
        "{stalled:?}"
    );
}

/// Rank 0 has started a group of two, of which `pages` have joined, and waits for them. They train for 10 s; then, for
/// `ms`, the second one does what `does` says while the first one waits in a collective.
fn inner_group(pages: u32, ms: u64, does: fn(&mut RankSample, &mut Inspection)) -> Cluster {
    let mut c = trained(1);
    let since = c.now.0 + 10_000;
    while c.now.0 < since + ms {
        let (now, mut inspection) = (c.now.0 + 250, inspection_at(1, "step", "/w/hang.py", 9));
        let is_late = now > since;
        let trained_ms = now.min(since);
        let inner = |number: u32| {
            let seq = trained_ms / 250;
            let waits = u64::from(is_late && number == 0);
            let given = GroupArguments {
                calls: 1,
                rank: Some(number),
                world_size: Some(2),
                address: "127.0.0.1".into(),
                port: Some(29_500),
                ..GroupArguments::default()
            };
            let mut page = hooked(seq + waits, seq, if is_late { now - since } else { 10 });
            page.groups[0].size = 2;
            let mut sample = RankSample {
                rank: Rank(number),
                pid: 70 + number,
                page: Some(PageSample { group_arguments: Some(given), ..page }),
                wchan: if is_late { "futex_do_wait".into() } else { String::new() },
                ..rank_sample(number)
            };
            sample.signals.main = Some(MainThread { cpu_us: trained_ms * 500, ..MainThread::default() });
            if is_late && number == 1 {
                does(&mut sample, &mut inspection);
            }
            InnerRankSample { outer: Rank(0), sample }
        };
        c.agents[0].inner = (0..pages).map(inner).collect();
        inspection.pid = Some(71);
        c.agents[0].inner_inspections.insert(71, inspection);
        drive(&mut c, 250, |rank, now, sample| {
            (sample.wchan, sample.page) = ("do_wait".into(), None);
            let cpu_ms = if rank == 0 { trained_ms / 2 } else { now / 2 };
            sample.signals.main = Some(MainThread { cpu_us: 1_000, ..MainThread::default() });
            sample.signals.children = vec![ChildSample { cpu_ms, ..child(70 + rank, 'S') }];
        });
    }
    c
}

#[test]
fn inner_2_stuck_rank_of_a_ranks_own_is_named() {
    let c = inner_group(2, 15_000, |_, inspection| inspection.threads = python(&["/w/hang.py"]));
    let verdict = verdicts(&c).into_iter().find(|verdict| verdict.severity == Severity::Red).unwrap();
    assert_eq!((verdict.rank, verdict.reason_code, verdict.proof), (Some(Rank(0)), Reason::Lock, None));
    assert_eq!(verdict.host.as_deref(), Some("ant"));
    assert!(verdict.latency_s < 8.0, "{verdict:?}");
    assert_eq!(at(&verdict), "/w/hang.py:9 in f");
    insta::assert_snapshot!("inner_rank", verdict.reason);
    let commands = verdict.card.actions.iter().map(|advice| advice.command.as_str());
    assert!(
        commands.clone().any(|command| command.ends_with("--rank 0")),
        "{:?}",
        commands.collect::<Vec<_>>()
    );
}

#[test]
fn inner_2_mismatch_of_a_ranks_own_is_only_likely() {
    let mut c = trained(1);
    let inner = |number: u32, age_ms: u64| {
        let mut sample = RankSample { rank: Rank(number), pid: 70 + number, ..rank_sample(number) };
        let page = sample.page.as_mut().unwrap();
        page.by_hook = true;
        page.recent = calls(81, 21);
        if number == 1 {
            page.recent.iter_mut().filter(|call| call.seq == 101).for_each(|call| {
                (call.call.op, call.chain) = ("broadcast".into(), 7_777);
            });
        }
        page.groups = vec![GroupSample { name: "world".into(), size: 2, entered: 101, left: 100, chain: 0 }];
        enter(page, "world", 101);
        (page.collective.age_ms, page.heartbeat_age_ms, page.phase_age_ms) = (age_ms, age_ms, age_ms);
        page.group_arguments = Some(GroupArguments {
            rank: Some(number),
            world_size: Some(2),
            address: "127.0.0.1".into(),
            port: Some(29_500),
            ..GroupArguments::default()
        });
        InnerRankSample { outer: Rank(0), sample }
    };
    for turn in 0..40 {
        c.agents[0].inner = vec![inner(0, turn * 250), inner(1, turn * 250)];
        drive(&mut c, 250, |_, now, sample| {
            (sample.wchan, sample.page) = ("do_wait".into(), None);
            sample.signals.main = Some(MainThread { cpu_us: now * 500, ..MainThread::default() });
        });
    }
    let verdict = verdicts(&c).into_iter().find(|verdict| verdict.severity == Severity::Red).unwrap();
    assert_eq!((verdict.rank, verdict.reason_code, verdict.proof), (Some(Rank(0)), Reason::OpMismatch, None));
}

#[test]
fn inner_rank_that_asks_a_server_is_a_warning() {
    let c = inner_group(2, 40_000, |sample, inspection| asks_a_server(0, sample, inspection));
    quiet(&c);
    assert!(reported(&c).contains(&(Severity::Amber, Reason::WaitsForPeer)), "{:?}", c.verdicts());
}

#[test]
fn inner_1_group_with_missing_ranks_is_not_assessed() {
    quiet(&inner_group(1, 25_000, |_, _| {}));
}

// Input and normalizers.

/// Ranks that wait for input during these shares of the time, for `ms` ms.
fn loads(shares: [f64; 4], ms: u64) -> Cluster {
    waits(InputKind::DataLoader, shares, ms)
}

fn waits(kind: InputKind, shares: [f64; 4], ms: u64) -> Cluster {
    let mut c = script(FREE, 0, &|_, _, _| {});
    drive(&mut c, ms, |rank, now, sample| {
        sample.signals.main.as_mut().unwrap().cpu_us = now * 500;
        let waited_ms = (now as f64 * shares[rank as usize]) as u64;
        let input = InputSample { kind, waited_ms, site: "train.py:31".into() };
        sample.page = Some(PageSample {
            train_iter: now / 100,
            input: Some(input),
            ..hooked(now / 250, now / 250, 10)
        });
    });
    c
}

#[test]
fn run_bound_by_its_input_is_a_warning() {
    let c = loads([0.9, 0.6, 0.7, 0.8], 200_000);
    assert_eq!(reported(&c), [(Severity::Amber, Reason::InputBound)], "once");
    let verdict = verdicts(&c).remove(0);
    insta::assert_snapshot!("input_bound", verdict.reason);
    assert_eq!(verdict.card.actions.len(), 1, "advice for this kind of input");
    assert!(verdict.latency_s < 70.0, "{verdict:?}");
}

#[test]
fn rank_that_does_not_wait_for_input_explains_the_others() {
    assert_eq!(reported(&loads([0.9, 0.3, 0.9, 0.9], 200_000)), []);
    assert_eq!(reported(&loads([0.9; 4], 40_000)), [], "for less than a minute");
}

#[test]
fn run_is_bound_by_environments_only_at_a_higher_share() {
    let steps = |shares: [f64; 4]| reported(&waits(InputKind::Environments, shares, 200_000));
    assert_eq!(steps([0.9, 0.75, 0.9, 0.9]), [], "stepping environments is its work");
    assert_eq!(steps([0.9, 0.85, 0.9, 0.9]), [(Severity::Amber, Reason::InputBound)]);
}

/// Two scripts' ranks that step ten times a second, with the running statistics that `change` makes.
fn normalizes(ms: u64, change: impl Fn(u32, &mut FingerprintSample)) -> Cluster {
    let mut c = script(FREE, 0, &|_, _, _| {});
    let start = c.now.0;
    drive(&mut c, ms, |rank, now, sample| {
        sample.signals.main.as_mut().unwrap().cpu_us = now * 500;
        let steps = (now - start) / 100;
        let synced = |taken: FingerprintSample| FingerprintSample { synced: true, ..taken };
        let mut page = PageSample { updates: steps, ..hooked(now / 250, now / 250, 10) };
        page.fingerprints = weights(steps).into_iter().map(synced).collect();
        let own = weights(steps).into_iter().map(|mut taken| {
            taken.optimizer = NORMALIZERS;
            change(rank, &mut taken);
            taken
        });
        page.fingerprints.extend(own.collect::<Vec<_>>());
        sample.page = Some(page);
    });
    c
}

#[test]
fn normalizers_that_differ_are_a_warning() {
    let own = |rank: u32, taken: &mut FingerprintSample| {
        taken.lanes = taken.lanes.map(|lane| lane * 8 + rank);
        taken.sum += f64::from(rank);
    };
    let c = normalizes(30_000, own);
    assert_eq!(reported(&c), [(Severity::Amber, Reason::NormalizersDiffer)], "once");
    insta::assert_snapshot!("normalizers_differ", verdicts(&c)[0].reason);
    assert_eq!(reported(&normalizes(30_000, |_, _| {})), []);
    let seldom = |rank: u32, taken: &mut FingerprintSample| {
        if !taken.step.is_multiple_of(20) {
            own(rank, taken);
        }
    };
    assert_eq!(reported(&normalizes(30_000, seldom)), [], "all-reduced now and then");
}

#[test]
fn rank_without_ranks_of_its_own_has_no_line() {
    let c = trained(1);
    assert_eq!(c.model().ranks[Rank(0).index()].inner_ranks(), None);
}

#[test]
fn idle_optimizer_is_a_warning_where_all_others_step() {
    let run = |stops: fn(u32) -> bool, began: u64| {
        let mut c = script(FREE, 0, &|_, _, _| {});
        drive(&mut c, 40_000, |rank, now, sample| {
            sample.signals.main.as_mut().unwrap().cpu_us = now * 500;
            let step = now / 50;
            let own = if stops(rank) { step.min(began) } else { step };
            let mut page = hooked(step * 2, step * 2, 10);
            page.updates = own;
            sample.page = Some(page);
        });
        verdicts(&c)
            .iter()
            .filter(|verdict| verdict.reason_code == Reason::OptimizerIdle)
            .map(|verdict| (verdict.rank.map(|rank| rank.0), verdict.severity))
            .collect::<Vec<_>>()
    };
    assert_eq!(run(|rank| rank == 1, 20), [(Some(1), Severity::Amber)]);
    assert_eq!(run(|_| false, 0), [], "all train");
    assert_eq!(run(|_| true, 20), [], "none does: an evaluation, or the end");
    assert_eq!(run(|rank| rank == 1, 0), [], "it never trained");
}

/// All four ranks of a script print a block of returns each second, as `block` gives it.
fn prints(block: impl Fn(u32, u64) -> ReturnBlock) -> Vec<Reason> {
    let mut c = script(FREE, 0, &|_, _, _| {});
    let start = c.now.0;
    drive(&mut c, 20_000, |rank, now, sample| {
        sample.signals.main.as_mut().unwrap().cpu_us = now * 500;
        sample.page = Some(hooked(now / 250, now / 250, 10));
        // Each rank is at another block.
        let newest = (now - start) / 1_000 + u64::from(rank % 2);
        sample.signals.returns = (newest.saturating_sub(3)..=newest).map(|at| block(rank, at)).collect();
    });
    let mut reasons: Vec<Reason> = verdicts(&c).iter().map(|verdict| verdict.reason_code).collect();
    reasons.dedup();
    reasons
}

#[test]
fn equal_returns_that_ranks_print_are_a_warning() {
    let block = |hash: u64, at: u64| ReturnBlock { number: at, hash: hash as u32, differs_within: true };
    assert_eq!(prints(|_, at| block(at * 7, at)), [Reason::EqualReturns]);
    assert_eq!(prints(|rank, at| block(at * 7 + u64::from(rank), at)), []);
    assert_eq!(prints(|rank, at| block(at * 7 + u64::from(rank == 3), at)), [], "one rank has another seed");
    let best = |_: u32, at: u64| ReturnBlock { differs_within: false, ..block(5, at) };
    assert_eq!(prints(best), [], "as good as can be");
}
