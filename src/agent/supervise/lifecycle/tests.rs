//! Traces through the lifecycle: what happens on a host, in which order, and what must come out.

use super::*;
use rankdeck_proto::message::{CollectiveSample, PageSample};
use rankdeck_types::host::Host;
use rankdeck_types::ids::{LocalRank, NodeRank, RunId};
use rankdeck_types::plan::{Plan, PlannedHost, PlannedRank};

/// A plan with `ranks` ranks on one host that run `command`.
fn spec(generation: u32, ranks: u32) -> Box<LaunchSpec> {
    let experiment = toml::from_str(
        "[run]\nname = \"t\"\n[launch]\ncommand = [\"true\"]\nstop_grace_s = 2.0\nstop_limit_s = 5.0",
    )
    .unwrap();
    Box::new(LaunchSpec {
        generation: Generation(generation),
        node_rank: NodeRank(0),
        master_addr: "127.0.0.1".into(),
        master_port: 1,
        resume: None,
        resume_at: None,
        plan: Plan {
            run: RunId("t".into()),
            experiment,
            program: None,
            hosts: vec![PlannedHost::new(NodeRank(0), Host { name: "a".into(), ..Host::default() })],
            ranks: (0..ranks)
                .map(|i| PlannedRank {
                    rank: Rank(i),
                    local_rank: LocalRank(i),
                    node_rank: NodeRank(0),
                    gpu: None,
                })
                .collect(),
            sizes: Vec::new(),
            drill: false,
        },
    })
}

fn ident(rank: u32) -> ProcessKey {
    ProcessKey { pid: 100 + rank, start: 7 }
}

fn running(ranks: u32) -> Lifecycle {
    let mut lifecycle = Lifecycle::default();
    lifecycle.launch(spec(0, ranks)).unwrap();
    for rank in 0..ranks {
        lifecycle.spawned(Rank(rank), Ok(ident(rank)), 0);
    }
    lifecycle
}

fn recorded(action: &LifecycleAction) -> Option<&RecordEvent> {
    match action {
        LifecycleAction::Record(event) => Some(event),
        _ => None,
    }
}

fn stopped(actions: &[LifecycleAction]) -> Option<(Vec<Survivor>, u64)> {
    actions.iter().find_map(|action| match recorded(action)? {
        RecordEvent::Stopped { survivors, took_ms, .. } => Some((survivors.clone(), *took_ms)),
        _ => None,
    })
}

fn scan(survivors: Vec<Survivor>) -> ScanOutcome {
    ScanOutcome { survivors, ..ScanOutcome::default() }
}

/// These ranks are asked to end.
fn ask(ranks: &[u32], stage: AskStage) -> LifecycleAction {
    let asked = |rank: &u32| AskedRank { ident: ident(*rank), blocked: false };
    LifecycleAction::AskRanks(ranks.iter().map(asked).collect(), stage)
}

const SIGKILLED: Exit = Exit::Signal { signal: 9, out_of_memory: false };

fn survivor() -> Survivor {
    Survivor { pid: 5, rank: None, state: 'D', command: "x".into() }
}

#[test]
fn life_1_natural_end_is_verified_too() {
    let mut lifecycle = running(2);
    assert!(
        lifecycle
            .reaped(100, Exit::Code { code: 0 }, 10)
            .contains(&LifecycleAction::CollectExitInfo { rank: Rank(0) })
    );
    lifecycle.exit_info(Rank(0), vec![], 0);
    lifecycle.reaped(101, Exit::Code { code: 0 }, 20);
    assert!(lifecycle.is_running(), "the end of rank 1 is not recorded yet");
    assert!(lifecycle.exit_info(Rank(1), vec![], 0).contains(&LifecycleAction::VerifyStop));
    assert_eq!(stopped(&lifecycle.scanned(scan(vec![]), 50)), Some((vec![], 30)));
    assert!(lifecycle.is_quiet());
}

#[test]
fn resume_continues_stopped_ranks_and_is_recorded() {
    let mut lifecycle = running(2);
    let actions = lifecycle.resume(&[Rank(1), Rank(7)]);
    assert_eq!(actions[1], LifecycleAction::SignalRanks(vec![ident(1)], libc::SIGCONT));
    assert!(matches!(recorded(&actions[0]), Some(RecordEvent::Notice { text }) if text.contains("SIGCONT")));
    lifecycle.reaped(101, Exit::Code { code: 0 }, 10);
    assert_eq!(lifecycle.resume(&[Rank(1)]), [], "it is gone");
}

#[test]
fn clean_stop_asks_the_ranks_and_then_kills() {
    let mut lifecycle = running(2);
    let actions = lifecycle.stop(StopMode::Clean, 1000, "console", 100);
    assert!(actions.contains(&ask(&[0, 1], AskStage::First)));
    assert_eq!(lifecycle.tick(1099, true, 0), []);
    assert_eq!(lifecycle.tick(1100, true, 0), [LifecycleAction::SignalAll(libc::SIGKILL)]);
    assert_eq!(lifecycle.tick(1101, true, 0), [], "not again at once");
    assert_eq!(lifecycle.tick(1600, true, 0), [LifecycleAction::SignalAll(libc::SIGKILL)]);
}

#[test]
fn life_5_clean_stop_waits_for_progress_up_to_the_limit() {
    let mut lifecycle = running(2);
    lifecycle.stop(StopMode::Clean, 1000, "console", 100);
    for now in (200..4_900).step_by(900) {
        lifecycle.progressed(now);
        assert_eq!(lifecycle.tick(now, true, 0), [], "{now}");
    }
    lifecycle.progressed(5_000);
    assert_eq!(lifecycle.tick(5_099, true, 0), []);
    assert_eq!(lifecycle.tick(5_100, true, 0), [LifecycleAction::SignalAll(libc::SIGKILL)], "the limit");
    lifecycle.progressed(5_101);
    assert_eq!(lifecycle.tick(5_600, true, 0), [LifecycleAction::SignalAll(libc::SIGKILL)], "never softer");
    // Without progress the grace counts from the last one; a harder stop does not wait.
    let mut lifecycle = running(1);
    lifecycle.stop(StopMode::Clean, 1000, "console", 0);
    lifecycle.progressed(500);
    assert_eq!(lifecycle.tick(1_499, true, 0), []);
    assert_eq!(lifecycle.tick(1_500, true, 0), [LifecycleAction::SignalAll(libc::SIGKILL)]);
    let mut lifecycle = running(1);
    lifecycle.stop(StopMode::Terminate, 1000, "console", 0);
    lifecycle.progressed(900);
    assert_eq!(lifecycle.tick(1_000, true, 0), [LifecycleAction::SignalAll(libc::SIGKILL)]);
}

#[test]
fn life_6_clean_stop_waits_for_an_iteration() {
    let reported = |actions: &[LifecycleAction]| {
        let mut records = actions.iter().filter_map(recorded);
        records.any(|event| matches!(event, RecordEvent::Notice { text } if text.contains("3 s")))
    };
    let mut lifecycle = running(1);
    lifecycle.iterated(Rank(0), 1, 0);
    lifecycle.iterated(Rank(0), 2, 2_000);
    let actions = lifecycle.stop(StopMode::Clean, 1_000, "console", 2_500);
    assert!(reported(&actions), "{actions:?}");
    assert_eq!(lifecycle.tick(5_499, true, 0), []);
    assert_eq!(
        lifecycle.tick(5_500, true, 0),
        [LifecycleAction::SignalAll(libc::SIGKILL)],
        "one and a half of them"
    );
    // Never beyond the limit; a program without reports has the configured grace; a kill waits for nothing.
    let mut slow = running(1);
    slow.iterated(Rank(0), 1, 0);
    slow.iterated(Rank(0), 2, 60_000);
    slow.stop(StopMode::Clean, 1_000, "console", 60_000);
    assert_eq!(slow.tick(64_999, true, 0), []);
    assert_eq!(slow.tick(65_000, true, 0), [LifecycleAction::SignalAll(libc::SIGKILL)], "stop_limit_s");
    let mut silent = running(1);
    let actions = silent.stop(StopMode::Clean, 1_000, "console", 0);
    assert!(
        !reported(&actions)
            && silent.tick(999, true, 0).is_empty()
            && !silent.tick(1_000, true, 0).is_empty()
    );
    let mut killed = running(1);
    killed.iterated(Rank(0), 1, 0);
    killed.iterated(Rank(0), 2, 2_000);
    assert!(
        killed
            .stop(StopMode::Kill, 1_000, "console", 2_500)
            .contains(&LifecycleAction::SignalAll(libc::SIGKILL))
    );
}

#[test]
fn life_7_ranks_without_a_core_have_four_times_the_grace() {
    let mut lifecycle = running(2);
    lifecycle.stop(StopMode::Clean, 1_000, "console", 100);
    for now in (200..4_000).step_by(900) {
        lifecycle.starved(now);
        assert_eq!(lifecycle.tick(now, true, 0), [], "{now}");
    }
    lifecycle.starved(4_050);
    assert_eq!(lifecycle.tick(4_099, true, 0), []);
    assert_eq!(lifecycle.tick(4_100, true, 0), [LifecycleAction::SignalAll(libc::SIGKILL)]);
    let mut lifecycle = running(1);
    lifecycle.stop(StopMode::Terminate, 1_000, "console", 0);
    lifecycle.starved(900);
    assert_eq!(
        lifecycle.tick(1_000, true, 0),
        [LifecycleAction::SignalAll(libc::SIGKILL)],
        "a harder stop does not wait"
    );
}

#[test]
fn life_8_second_signal_comes_once_within_the_limit() {
    let mut lifecycle = running(2);
    lifecycle.stop(StopMode::Clean, 1_000, "console", 100);
    lifecycle.asked(true);
    assert_eq!(lifecycle.kills_in(100), Some(2_000), "a grace for each signal");
    assert_eq!(lifecycle.tick(1_099, true, 0), []);
    lifecycle.reaped(100, Exit::Code { code: 0 }, 1_099);
    assert_eq!(lifecycle.tick(1_100, true, 0), [ask(&[1], AskStage::Second)]);
    lifecycle.asked(true);
    assert_eq!((lifecycle.tick(2_099, true, 0), lifecycle.kills_in(2_000)), (vec![], Some(100)));
    assert_eq!(lifecycle.tick(2_100, true, 0), [LifecycleAction::SignalAll(libc::SIGKILL)]);
    assert_eq!(lifecycle.kills_in(2_100), None);
    // Progress to the limit: the second signal has its grace anyway.
    let mut lifecycle = running(1);
    lifecycle.stop(StopMode::Clean, 1_000, "console", 0);
    lifecycle.asked(true);
    for now in (100..=4_900).step_by(300) {
        lifecycle.progressed(now);
        let asked = lifecycle.tick(now, true, 0);
        assert_eq!(asked.contains(&ask(&[0], AskStage::Second)), now == 4_000, "{now}");
    }
    assert_eq!(lifecycle.tick(5_000, true, 0), [LifecycleAction::SignalAll(libc::SIGKILL)]);
    // A harder stop sends one signal.
    let mut lifecycle = running(1);
    lifecycle.stop(StopMode::Terminate, 1_000, "console", 0);
    lifecycle.asked(true);
    assert_eq!(lifecycle.tick(1_000, true, 0), [LifecycleAction::SignalAll(libc::SIGKILL)]);
}

#[test]
fn life_3_order_is_repeated_without_another_signal() {
    let mut lifecycle = running(1);
    lifecycle.stop(StopMode::Clean, 4_000, "console", 0);
    let shorter = lifecycle.stop(StopMode::Clean, 500, "lease", 1_000);
    assert!(!shorter.contains(&ask(&[0], AskStage::First)) && !shorter.is_empty(), "{shorter:?}");
    assert_eq!(lifecycle.tick(1_499, true, 0), []);
    assert_eq!(lifecycle.tick(1_500, true, 0), [LifecycleAction::SignalAll(libc::SIGKILL)]);
    // A harder one begins its own grace.
    let mut lifecycle = running(1);
    lifecycle.stop(StopMode::Clean, 4_000, "console", 0);
    assert!(
        lifecycle
            .stop(StopMode::Terminate, 500, "console", 3_900)
            .contains(&LifecycleAction::SignalAll(libc::SIGTERM))
    );
    assert_eq!(lifecycle.tick(4_399, true, 0), []);
    assert_eq!(lifecycle.tick(4_400, true, 0), [LifecycleAction::SignalAll(libc::SIGKILL)]);
}

#[test]
fn rank_long_inside_a_collective_is_asked_as_blocked() {
    let sample = |age_ms: u64, left: u64| {
        let collective = CollectiveSample { entered: 4, left, age_ms, ..CollectiveSample::default() };
        let rank = RankSample {
            rank: Rank(1),
            pid: 101,
            state: 'S',
            cpu_percent: 0.0,
            rss: 0,
            children: 0,
            wchan: String::new(),
            gpu: None,
            gpu_memory: None,
            gpu_share: None,
            page: Some(PageSample { collective, ..PageSample::default() }),
            signals: Default::default(),
            live: String::new(),
        };
        HostSample { ranks: vec![rank], ..HostSample::default() }
    };
    for (age_ms, left, blocked) in [(60_000, 3, true), (60_000, 4, false), (500, 3, false)] {
        let mut lifecycle = running(2);
        lifecycle.observed(&sample(age_ms, left));
        let actions = lifecycle.stop(StopMode::Clean, 1_000, "console", 0);
        let asked = actions.iter().find_map(|action| match action {
            LifecycleAction::AskRanks(asked, _) => Some(asked.iter().map(|rank| rank.blocked).collect()),
            _ => None,
        });
        assert_eq!(asked, Some(vec![false, blocked]), "{age_ms} {left}");
    }
}

#[test]
fn crash_after_the_program_returned_is_no_failure() {
    let segfault = || Exit::Signal { signal: libc::SIGSEGV, out_of_memory: false };
    for (returned, fails) in [(false, true), (true, false)] {
        let mut lifecycle = running(2);
        lifecycle.returned(Rank(0), returned);
        lifecycle.reaped(100, segfault(), 1_000);
        lifecycle.exit_info(Rank(0), vec![], 1_000);
        assert_eq!(!lifecycle.tick(1_000_000, false, 15_000).is_empty(), fails, "{returned}");
    }
}

#[test]
fn checkpoints_and_results_are_recorded_before_the_end() {
    let mut lifecycle = running(1);
    lifecycle.reaped(100, Exit::Code { code: 0 }, 1);
    lifecycle.exit_info(Rank(0), vec![], 1);
    let file = CheckpointFile { path: "/w/a.pt".into(), ..CheckpointFile::default() };
    let results = RunResults { files: 1, ..RunResults::default() };
    let found = ScanOutcome {
        checkpoints: Some((vec![file.clone()], true)),
        results: Some(results.clone()),
        ..ScanOutcome::default()
    };
    let actions = lifecycle.scanned(found, 2);
    let files = RecordEvent::CheckpointFiles { files: vec![file], complete: true };
    assert_eq!(recorded(&actions[1]), Some(&files));
    assert_eq!(recorded(&actions[2]), Some(&RecordEvent::Results { results: Box::new(results) }));
    assert!(matches!(recorded(&actions[3]), Some(RecordEvent::Stopped { .. })));
}

#[test]
fn life_3_stop_gets_harder_never_softer() {
    let mut lifecycle = running(1);
    assert!(!lifecycle.stop(StopMode::Terminate, 5000, "a", 0).is_empty());
    assert_eq!(lifecycle.stop(StopMode::Clean, 0, "b", 1), []);
    assert_eq!(lifecycle.stop(StopMode::Terminate, 9000, "c", 2), []);
    let harder = lifecycle.stop(StopMode::Kill, 9000, "d", 3);
    assert!(harder.contains(&LifecycleAction::SignalAll(libc::SIGKILL)));
    lifecycle.reaped(100, SIGKILLED, 4);
    let reported = lifecycle.exit_info(Rank(0), vec![], 0);
    assert!(matches!(recorded(&reported[1]), Some(RecordEvent::RankExited { stopping: true, .. })));
    assert_eq!(
        stopped(&lifecycle.scanned(scan(vec![]), 10)),
        Some((vec![], 10)),
        "counted from the first order"
    );
}

#[test]
fn life_2_nothing_begins_beside_what_is_left() {
    let mut lifecycle = running(1);
    assert_eq!(lifecycle.launch(spec(0, 1)).unwrap(), [], "the same launch again changes nothing");
    assert!(lifecycle.launch(spec(0, 2)).is_err());
    assert!(lifecycle.launch(spec(1, 1)).is_err());
    lifecycle.reaped(100, SIGKILLED, 1);
    lifecycle.exit_info(Rank(0), vec![], 0);
    assert_eq!(stopped(&lifecycle.scanned(scan(vec![survivor()]), 2)), Some((vec![survivor()], 1)));
    assert!(lifecycle.launch(spec(1, 1)).is_err());
    assert_eq!(lifecycle.tick(1002, true, 0), [LifecycleAction::VerifyStop]);
    assert_eq!(lifecycle.scanned(scan(vec![survivor()]), 1003), [], "reported once");
    assert!(lifecycle.stop(StopMode::Kill, 0, "console", 1500).contains(&LifecycleAction::VerifyStop));
    assert_eq!(
        stopped(&lifecycle.scanned(scan(vec![survivor()]), 1501)).unwrap().0,
        [survivor()],
        "an order is answered"
    );
    assert_eq!(lifecycle.tick(2501, true, 0), [LifecycleAction::VerifyStop]);
    assert_eq!(stopped(&lifecycle.scanned(scan(vec![]), 2502)).unwrap().0, []);
    assert!(lifecycle.launch(spec(1, 1)).is_ok());
}

#[test]
fn life_4_neighbours_of_a_failed_rank_do_not_wait_for_ever() {
    let mut lifecycle = running(2);
    lifecycle.reaped(101, Exit::Code { code: 3 }, 1000);
    lifecycle.exit_info(Rank(1), vec![], 0);
    assert_eq!(lifecycle.tick(20_000, true, 15_000), [], "the console decides");
    assert_eq!(lifecycle.tick(34_999, false, 15_000), []);
    let actions = lifecycle.tick(35_000, false, 15_000);
    let by = "rank 1 failed".to_owned();
    let order = RecordEvent::StopOrdered { mode: StopMode::Terminate, by, ends: false };
    assert_eq!(recorded(&actions[0]), Some(&order));
    assert_eq!(
        lifecycle.tick(37_000, false, 15_000),
        [LifecycleAction::SignalAll(libc::SIGKILL)],
        "after stop_grace_s"
    );
}

#[test]
fn rank_that_returned_0_does_not_stop_the_others() {
    let mut lifecycle = running(2);
    lifecycle.reaped(100, Exit::Code { code: 0 }, 0);
    assert_eq!(lifecycle.tick(1_000_000, false, 1), []);
}

#[test]
fn rank_spawned_after_the_order_is_stopped_too() {
    let mut lifecycle = Lifecycle::default();
    lifecycle.launch(spec(0, 1)).unwrap();
    lifecycle.stop(StopMode::Clean, 1000, "console", 0);
    let actions = lifecycle.spawned(Rank(0), Ok(ident(0)), 1);
    assert!(actions.contains(&ask(&[0], AskStage::First)));
}

#[test]
fn program_that_does_not_exist_is_an_end_like_others() {
    let mut lifecycle = Lifecycle::default();
    lifecycle.launch(spec(0, 1)).unwrap();
    assert_eq!(
        lifecycle.spawned(Rank(0), Err("no".into()), 1),
        [LifecycleAction::CollectExitInfo { rank: Rank(0) }]
    );
    assert!(lifecycle.exit_info(Rank(0), vec![], 0).contains(&LifecycleAction::VerifyStop));
}

#[test]
fn order_without_a_run_is_answered() {
    let mut lifecycle = Lifecycle::default();
    assert!(lifecycle.stop(StopMode::Kill, 0, "console", 5).contains(&LifecycleAction::VerifyStop));
    assert_eq!(stopped(&lifecycle.scanned(scan(vec![]), 9)), Some((vec![], 4)));
    assert!(lifecycle.launch(spec(0, 1)).is_ok());
}

#[test]
fn process_that_resists_sigkill_is_reported() {
    let mut lifecycle = running(1);
    lifecycle.stop(StopMode::Kill, 0, "console", 0);
    assert_eq!(lifecycle.tick(KILL_PATIENCE_MS, true, 0), [LifecycleAction::VerifyStop]);
    assert_eq!(stopped(&lifecycle.scanned(scan(vec![survivor()]), 10_001)).unwrap().0, [survivor()]);
    lifecycle.reaped(100, SIGKILLED, 10_500);
    lifecycle.exit_info(Rank(0), vec![], 0);
    lifecycle.tick(12_000, true, 0);
    assert_eq!(stopped(&lifecycle.scanned(scan(vec![]), 12_001)).unwrap().0, []);
}

#[test]
fn leftovers_of_a_dead_agent_are_ended() {
    let record = |event| Record { seq: 1, time: 0.0, generation: Generation(0), event };
    let mut lifecycle = Lifecycle::default();
    lifecycle.replay(&record(RecordEvent::Launched { spec: spec(4, 2) }));
    lifecycle.replay(&record(RecordEvent::RankSpawned { rank: Rank(0), local_rank: LocalRank(0), pid: 9 }));
    let exit = Exit::Code { code: 1 };
    lifecycle.replay(&record(RecordEvent::RankExited {
        rank: Rank(0),
        pid: 9,
        exit: exit.clone(),
        last_lines: vec![],
        stopping: false,
        ago_ms: 0,
        with_agent: false,
    }));
    let events = lifecycle.close_former(vec![]);
    assert!(matches!(events[0], RecordEvent::Notice { .. }));
    assert!(matches!(&events[1], RecordEvent::RankExited { rank: Rank(1), with_agent: true, .. }));
    assert!(matches!(&events[2], RecordEvent::Stopped { survivors, .. } if survivors.is_empty()));
    assert_eq!(events.len(), 3);
    assert_eq!(lifecycle.snapshot()[0].exit, Some(exit));
    assert!(lifecycle.is_quiet() && lifecycle.generation() == Generation(4));
    assert_eq!(lifecycle.close_former(vec![]), []);
}

#[test]
fn survivors_of_a_dead_agent_block_the_next_launch() {
    let record = |event| Record { seq: 1, time: 0.0, generation: Generation(0), event };
    let mut lifecycle = Lifecycle::default();
    lifecycle.replay(&record(RecordEvent::Launched { spec: spec(0, 1) }));
    lifecycle.close_former(vec![survivor()]);
    assert!(lifecycle.launch(spec(1, 1)).is_err());
    assert_eq!(lifecycle.tick(SCAN_AGAIN_MS, true, 0), [LifecycleAction::VerifyStop]);
    assert_eq!(stopped(&lifecycle.scanned(scan(vec![]), 1500)).unwrap().0, []);
    assert!(lifecycle.launch(spec(1, 1)).is_ok());
}

/// SPOOL-6: a reader of the record may read the manifest at once.
#[test]
fn spool_6_change_is_saved_before_it_is_recorded() {
    let mut lifecycle = Lifecycle::default();
    let mut changes = vec![lifecycle.launch(spec(0, 1)).unwrap()];
    changes.push(lifecycle.spawned(Rank(0), Ok(ident(0)), 0));
    lifecycle.reaped(100, Exit::Code { code: 0 }, 10);
    changes.push(lifecycle.exit_info(Rank(0), Vec::new(), 10));
    changes.push(lifecycle.scanned(scan(Vec::new()), 20));
    for actions in changes {
        let at = |is_sought: fn(&LifecycleAction) -> bool| actions.iter().position(is_sought).unwrap();
        let (saved, recorded) =
            (at(|it| *it == LifecycleAction::Save), at(|it| matches!(it, LifecycleAction::Record(_))));
        assert!(saved < recorded, "{actions:?}");
    }
}

#[test]
fn iterations_are_timed_per_rank_and_the_longest_counts() {
    let mut rhythm = IterationTimer::default();
    rhythm.record(Rank(0), 7, 1_000);
    rhythm.record(Rank(1), 7, 1_100);
    assert_eq!(rhythm.longest(), None, "nothing is known of the first one");
    rhythm.record(Rank(0), 7, 2_000);
    rhythm.record(Rank(0), 8, 21_000);
    assert_eq!(rhythm.longest(), Some(20_000), "repeated counters begin no iteration");
    rhythm.record(Rank(1), 11, 25_100);
    assert_eq!(rhythm.longest(), Some(20_000), "four in 24 s");
    for iteration in 9..9 + KEPT as u64 {
        rhythm.record(Rank(0), iteration, 21_000 + 10 * iteration);
    }
    assert!(rhythm.longest().is_some_and(|longest| longest < 1_000), "long ago");
}

/// Whether the actions record an order that ends the run.
fn ends(actions: &[LifecycleAction]) -> bool {
    let order = |event: &RecordEvent| matches!(event, RecordEvent::StopOrdered { ends: true, .. });
    actions.iter().filter_map(recorded).any(order)
}

/// A scan finds nothing: the only rank has ended.
fn end_rank(lifecycle: &mut Lifecycle) {
    lifecycle.reaped(100, Exit::Code { code: 0 }, 10);
    lifecycle.exit_info(Rank(0), vec![], 0);
    assert!(stopped(&lifecycle.scanned(scan(vec![]), 20)).is_some());
}

#[test]
fn life_9_launch_after_an_end_needs_its_knowledge() {
    // A restart is under way, and another console ends the run: before the proof, and after it.
    for late in [false, true] {
        let mut lifecycle = running(1);
        assert!(!ends(&lifecycle.stop_by_console(StopMode::Clean, 1_000, false, 0)));
        assert_eq!(lifecycle.check_end(&spec(1, 1), false), Ok(()));
        if late {
            end_rank(&mut lifecycle);
        }
        let actions = lifecycle.stop_by_console(StopMode::Clean, 1_000, true, 5);
        assert!(ends(&actions) && actions.len() == 1, "recorded, and nothing else: {actions:?}");
        let again = lifecycle.stop_by_console(StopMode::Clean, 1_000, true, 6);
        assert_eq!(ends(&again), late, "after the proof, each console's order is an answer");
        if !late {
            end_rank(&mut lifecycle);
        }
        let refused = lifecycle.check_end(&spec(1, 1), false).unwrap_err();
        assert_eq!(refused, end_refusal(&RunId("t".into())));
        assert_eq!(lifecycle.check_end(&spec(0, 1), false), Ok(()), "the present launch, once more");
        assert_eq!(lifecycle.check_end(&spec(1, 1), true), Ok(()));
        lifecycle.launch(spec(1, 1)).unwrap();
        assert_eq!(lifecycle.check_end(&spec(2, 1), false), Ok(()), "a new generation has no end");
    }
}

#[test]
fn life_9_end_outlives_the_agent() {
    let record = |event| Record { seq: 1, time: 0.0, generation: Generation(0), event };
    let order = |ends| record(RecordEvent::StopOrdered { mode: StopMode::Clean, by: "console".into(), ends });
    let mut lifecycle = Lifecycle::default();
    lifecycle.replay(&record(RecordEvent::Launched { spec: spec(0, 1) }));
    lifecycle.replay(&order(false));
    assert_eq!(lifecycle.check_end(&spec(1, 1), false), Ok(()));
    lifecycle.replay(&order(true));
    assert!(lifecycle.check_end(&spec(1, 1), false).is_err());
    lifecycle.replay(&record(RecordEvent::Launched { spec: spec(1, 1) }));
    assert_eq!(lifecycle.check_end(&spec(2, 1), false), Ok(()));
}

fn times() -> StopTimes {
    StopTimes { ordered_at: 100, asked_at: 100, grace: 1_000, limit: 5_000, ..StopTimes::default() }
}

#[test]
fn life_5_grace_counts_from_the_latest_sign() {
    assert_eq!((times().deadline(), times().kill_at()), (1_100, 1_100));
    let signed = |sign_at| StopTimes { sign_at: Some(sign_at), ..times() };
    assert_eq!(signed(600).deadline(), 1_600);
    assert_eq!(signed(50).deadline(), 1_100, "before the order");
    assert_eq!(signed(4_900).deadline(), 5_100, "the limit");
    let short = StopTimes { limit: 10, ..signed(900) };
    assert_eq!(short.deadline(), 1_100, "a grace above the limit is the limit");
    assert_eq!(StopTimes { grace: 0, ..signed(900) }.deadline(), 900);
}

#[test]
fn life_6_and_7_slow_ranks_have_more_time() {
    let slow = |iteration| StopTimes { iteration: Some(iteration), ..times() };
    assert_eq!(slow(2_000).deadline(), 3_100);
    assert_eq!(slow(100).deadline(), 1_100, "the grace is longer");
    assert_eq!(slow(60_000).deadline(), 5_100, "the limit");
    assert_eq!(StopTimes { grace: 0, ..slow(2_000) }.deadline(), 100, "a kill");
    let starved = |at| StopTimes { starved_at: Some(at), ..times() };
    assert_eq!((starved(2_000).deadline(), starved(4_050).deadline()), (3_000, 4_100));
    assert_eq!(StopTimes { limit: 2_000, ..starved(4_050) }.deadline(), 2_100);
}

#[test]
fn life_8_second_signal_has_its_grace() {
    let first = StopTimes { asks_again: true, ..times() };
    assert_eq!((first.deadline(), first.kill_at()), (1_100, 2_100));
    let busy = StopTimes { sign_at: Some(6_000), ..first.clone() };
    assert_eq!((busy.deadline(), busy.kill_at()), (4_100, 5_100), "its grace is within the limit");
    let second = StopTimes { asked_at: 4_100, asks_again: false, ..busy };
    assert_eq!((second.deadline(), second.kill_at()), (5_100, 5_100));
    let tight = StopTimes { limit: 1_500, ..first };
    assert_eq!((tight.deadline(), tight.kill_at()), (1_100, 1_600), "no room for two graces");
}

/// Two ranks in a process group that one of them may leave.
fn shrinking() -> Lifecycle {
    let mut spec = spec(0, 2);
    spec.plan.experiment.distributed.on_rank_loss = rankdeck_types::experiment::OnRankLoss::Shrink;
    let mut lifecycle = Lifecycle::default();
    lifecycle.launch(spec).unwrap();
    for rank in 0..2 {
        lifecycle.spawned(Rank(rank), Ok(ident(rank)), 0);
        lifecycle.joined(Rank(rank));
    }
    lifecycle
}

#[test]
fn life_10_loss_of_a_member_stops_nobody() {
    for (exit, stops) in
        [(SIGKILLED, false), (Exit::Code { code: 1 }, false), (Exit::Code { code: CANNOT_SHRINK }, true)]
    {
        let mut lifecycle = shrinking();
        lifecycle.reaped(101, exit.clone(), 10);
        lifecycle.exit_info(Rank(1), vec![], 20);
        assert_eq!(!lifecycle.tick(1_000_000, false, 15_000).is_empty(), stops, "{exit:?}");
        assert!(lifecycle.is_running());
    }
}

#[test]
fn life_10_rank_that_never_joined_stops_the_others() {
    let mut spec = spec(0, 2);
    spec.plan.experiment.distributed.on_rank_loss = rankdeck_types::experiment::OnRankLoss::Shrink;
    let mut lifecycle = Lifecycle::default();
    lifecycle.launch(spec).unwrap();
    (0..2).for_each(|rank| drop(lifecycle.spawned(Rank(rank), Ok(ident(rank)), 0)));
    lifecycle.reaped(101, SIGKILLED, 10);
    assert!(!lifecycle.tick(1_000_000, false, 15_000).is_empty());
}

#[test]
fn life_10_rank_starts_again_once_its_end_is_recorded() {
    let mut lifecycle = shrinking();
    assert!(lifecycle.rejoin(Rank(1), Generation(0)).is_err(), "it lives");
    lifecycle.reaped(101, SIGKILLED, 10);
    assert!(lifecycle.rejoin(Rank(1), Generation(0)).is_err(), "its last lines are not known");
    lifecycle.exit_info(Rank(1), vec![], 20);
    assert!(lifecycle.rejoin(Rank(1), Generation(1)).is_err(), "another generation");
    assert!(lifecycle.rejoin(Rank(7), Generation(0)).is_err(), "another host's");
    assert_eq!(lifecycle.rejoin(Rank(1), Generation(0)), Ok(vec![LifecycleAction::Save]));
    let again = ProcessKey { pid: 300, start: 9 };
    let actions = lifecycle.spawned(Rank(1), Ok(again), 30);
    assert!(
        actions
            .iter()
            .any(|action| matches!(recorded(action), Some(RecordEvent::RankSpawned { pid: 300, .. })))
    );
    // A rank ends before it has joined: it is not waited for.
    lifecycle.reaped(300, Exit::Code { code: 1 }, 40);
    lifecycle.exit_info(Rank(1), vec![], 50);
    assert!(lifecycle.tick(1_000_000, false, 15_000).is_empty());
    assert!(lifecycle.rejoin(Rank(1), Generation(0)).is_ok(), "and again");
}

#[test]
fn life_10_host_without_ranks_runs_again() {
    let mut lifecycle = shrinking();
    for (rank, pid) in [(0, 100), (1, 101)] {
        lifecycle.reaped(pid, SIGKILLED, 10);
        lifecycle.exit_info(Rank(rank), vec![], 20);
    }
    assert!(lifecycle.rejoin(Rank(0), Generation(0)).is_err(), "the scan is under way");
    assert!(stopped(&lifecycle.scanned(scan(vec![]), 30)).is_some());
    assert!(lifecycle.is_quiet());
    lifecycle.rejoin(Rank(0), Generation(0)).unwrap();
    assert!(lifecycle.is_running() && !lifecycle.is_stopping());
    lifecycle.spawned(Rank(0), Ok(ident(0)), 40);
    let order = lifecycle.stop(StopMode::Kill, 0, "console", 50);
    assert!(order.contains(&LifecycleAction::SignalAll(libc::SIGKILL)));
}

#[test]
fn life_10_stopped_run_takes_no_rank_back() {
    let mut lifecycle = shrinking();
    lifecycle.reaped(101, SIGKILLED, 10);
    lifecycle.exit_info(Rank(1), vec![], 20);
    lifecycle.stop(StopMode::Clean, 1_000, "console", 30);
    assert!(lifecycle.rejoin(Rank(1), Generation(0)).is_err());
}
