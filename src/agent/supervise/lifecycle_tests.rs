//! Traces through the machine: what happens on a host, in which order, and what must come out.

use super::*;
use rankdeck_types::host::Host;
use rankdeck_types::ids::{NodeRank, RunId};
use rankdeck_types::plan::{Plan, PlannedHost, PlannedRank};

/// A plan with `ranks` ranks on one host that run `command`.
fn spec(generation: u32, ranks: u32) -> Box<LaunchSpec> {
    let experiment =
        toml::from_str("[run]\nname = \"t\"\n[launch]\ncommand = [\"true\"]\nstop_grace_s = 2.0").unwrap();
    Box::new(LaunchSpec {
        generation: Generation(generation),
        node_rank: NodeRank(0),
        master_addr: "127.0.0.1".into(),
        master_port: 1,
        resume: None,
        plan: Plan {
            run: RunId("t".into()),
            experiment,
            hosts: vec![PlannedHost::new(NodeRank(0), Host { name: "a".into(), ..Host::default() })],
            ranks: (0..ranks)
                .map(|i| PlannedRank {
                    rank: Rank(i),
                    local_rank: LocalRank(i),
                    node_rank: NodeRank(0),
                    gpu: None,
                })
                .collect(),
            backend: "gloo".into(),
            sizes: Vec::new(),
        },
    })
}

fn ident(rank: u32) -> Ident {
    Ident { pid: 100 + rank, start: 7 }
}

fn running(ranks: u32) -> Machine {
    let mut machine = Machine::default();
    machine.launch(spec(0, ranks)).unwrap();
    for rank in 0..ranks {
        machine.spawned(Rank(rank), Ok(ident(rank)), 0);
    }
    machine
}

fn stopped(actions: &[Action]) -> Option<(Vec<Survivor>, u64)> {
    actions.iter().find_map(|action| match action {
        Action::Record(RecordEvent::Stopped { survivors, took_ms, .. }) => {
            Some((survivors.clone(), *took_ms))
        }
        _ => None,
    })
}

const SIGKILLED: Exit = Exit::Signal { signal: 9, out_of_memory: false };

fn survivor() -> Survivor {
    Survivor { pid: 5, rank: None, state: 'D', command: "x".into() }
}

#[test]
fn life_1_a_natural_end_is_proved_too() {
    let mut machine = running(2);
    assert!(machine.reaped(100, Exit::Code { code: 0 }, 10).contains(&Action::Autopsy { rank: Rank(0) }));
    machine.autopsied(Rank(0), vec![], 0);
    machine.reaped(101, Exit::Code { code: 0 }, 20);
    assert!(machine.is_running(), "the end of rank 1 is not recorded yet");
    assert!(machine.autopsied(Rank(1), vec![], 0).contains(&Action::Prove));
    assert_eq!(stopped(&machine.proved(vec![], vec![], 50)), Some((vec![], 30)));
    assert!(machine.is_quiet());
}

#[test]
fn a_clean_stop_asks_the_ranks_and_then_kills() {
    let mut machine = running(2);
    let actions = machine.stop(StopMode::Clean, 1000, "console", 100);
    assert!(actions.contains(&Action::SignalRanks(vec![ident(0), ident(1)], libc::SIGTERM)));
    assert_eq!(machine.tick(1099, true, 0), []);
    assert_eq!(machine.tick(1100, true, 0), [Action::SignalAll(libc::SIGKILL)]);
    assert_eq!(machine.tick(1101, true, 0), [], "not again at once");
    assert_eq!(machine.tick(1600, true, 0), [Action::SignalAll(libc::SIGKILL)]);
}

#[test]
fn life_3_a_stop_gets_harder_never_softer() {
    let mut machine = running(1);
    assert!(!machine.stop(StopMode::Terminate, 5000, "a", 0).is_empty());
    assert_eq!(machine.stop(StopMode::Clean, 0, "b", 1), []);
    assert_eq!(machine.stop(StopMode::Terminate, 9000, "c", 2), []);
    let harder = machine.stop(StopMode::Kill, 9000, "d", 3);
    assert!(harder.contains(&Action::SignalAll(libc::SIGKILL)));
    machine.reaped(100, SIGKILLED, 4);
    let told = machine.autopsied(Rank(0), vec![], 0);
    assert!(matches!(&told[0], Action::Record(RecordEvent::RankExited { stopping: true, .. })));
    assert_eq!(
        stopped(&machine.proved(vec![], vec![], 10)),
        Some((vec![], 10)),
        "counted from the first order"
    );
}

#[test]
fn life_2_nothing_begins_beside_what_is_left() {
    let mut machine = running(1);
    assert_eq!(machine.launch(spec(0, 1)).unwrap(), [], "the same launch again changes nothing");
    assert!(machine.launch(spec(0, 2)).is_err());
    assert!(machine.launch(spec(1, 1)).is_err());
    machine.reaped(100, SIGKILLED, 1);
    machine.autopsied(Rank(0), vec![], 0);
    assert_eq!(stopped(&machine.proved(vec![survivor()], vec![], 2)), Some((vec![survivor()], 1)));
    assert!(machine.launch(spec(1, 1)).is_err());
    assert_eq!(machine.tick(1002, true, 0), [Action::Prove]);
    assert_eq!(machine.proved(vec![survivor()], vec![], 1003), [], "told once");
    assert!(machine.stop(StopMode::Kill, 0, "console", 1500).contains(&Action::Prove));
    assert_eq!(
        stopped(&machine.proved(vec![survivor()], vec![], 1501)).unwrap().0,
        [survivor()],
        "an order is answered"
    );
    assert_eq!(machine.tick(2501, true, 0), [Action::Prove]);
    assert_eq!(stopped(&machine.proved(vec![], vec![], 2502)).unwrap().0, []);
    assert!(machine.launch(spec(1, 1)).is_ok());
}

#[test]
fn life_4_neighbours_of_a_failed_rank_do_not_wait_for_ever() {
    let mut machine = running(2);
    machine.reaped(101, Exit::Code { code: 3 }, 1000);
    machine.autopsied(Rank(1), vec![], 0);
    assert_eq!(machine.tick(20_000, true, 15_000), [], "the console decides");
    assert_eq!(machine.tick(34_999, false, 15_000), []);
    let actions = machine.tick(35_000, false, 15_000);
    let by = "rank 1 failed".to_owned();
    assert_eq!(actions[0], Action::Record(RecordEvent::StopOrdered { mode: StopMode::Terminate, by }));
    assert_eq!(machine.tick(37_000, false, 15_000), [Action::SignalAll(libc::SIGKILL)], "after stop_grace_s");
}

#[test]
fn a_rank_that_returned_0_does_not_stop_the_others() {
    let mut machine = running(2);
    machine.reaped(100, Exit::Code { code: 0 }, 0);
    assert_eq!(machine.tick(1_000_000, false, 1), []);
}

#[test]
fn a_rank_spawned_after_the_order_is_stopped_too() {
    let mut machine = Machine::default();
    machine.launch(spec(0, 1)).unwrap();
    machine.stop(StopMode::Clean, 1000, "console", 0);
    let actions = machine.spawned(Rank(0), Ok(ident(0)), 1);
    assert!(actions.contains(&Action::SignalRanks(vec![ident(0)], libc::SIGTERM)));
}

#[test]
fn a_program_that_does_not_exist_is_an_end_like_others() {
    let mut machine = Machine::default();
    machine.launch(spec(0, 1)).unwrap();
    assert_eq!(machine.spawned(Rank(0), Err("no".into()), 1), [Action::Autopsy { rank: Rank(0) }]);
    assert!(machine.autopsied(Rank(0), vec![], 0).contains(&Action::Prove));
}

#[test]
fn an_order_without_a_run_is_answered() {
    let mut machine = Machine::default();
    assert!(machine.stop(StopMode::Kill, 0, "console", 5).contains(&Action::Prove));
    assert_eq!(stopped(&machine.proved(vec![], vec![], 9)), Some((vec![], 4)));
    assert!(machine.launch(spec(0, 1)).is_ok());
}

#[test]
fn a_process_that_resists_sigkill_is_reported() {
    let mut machine = running(1);
    machine.stop(StopMode::Kill, 0, "console", 0);
    assert_eq!(machine.tick(KILL_PATIENCE_MS, true, 0), [Action::Prove]);
    assert_eq!(stopped(&machine.proved(vec![survivor()], vec![], 10_001)).unwrap().0, [survivor()]);
    machine.reaped(100, SIGKILLED, 10_500);
    machine.autopsied(Rank(0), vec![], 0);
    machine.tick(12_000, true, 0);
    assert_eq!(stopped(&machine.proved(vec![], vec![], 12_001)).unwrap().0, []);
}

#[test]
fn what_a_dead_agent_left_is_buried() {
    let record = |event| Record { seq: 1, time: 0.0, generation: Generation(0), event };
    let mut machine = Machine::default();
    machine.replay(&record(RecordEvent::Launched { spec: spec(4, 2) }));
    machine.replay(&record(RecordEvent::RankSpawned { rank: Rank(0), local_rank: LocalRank(0), pid: 9 }));
    let exit = Exit::Code { code: 1 };
    machine.replay(&record(RecordEvent::RankExited {
        rank: Rank(0),
        pid: 9,
        exit: exit.clone(),
        last_lines: vec![],
        stopping: false,
        ago_ms: 0,
        with_agent: false,
    }));
    let events = machine.bury(vec![]);
    assert!(matches!(events[0], RecordEvent::Notice { .. }));
    assert!(matches!(&events[1], RecordEvent::RankExited { rank: Rank(1), with_agent: true, .. }));
    assert!(matches!(&events[2], RecordEvent::Stopped { survivors, .. } if survivors.is_empty()));
    assert_eq!(events.len(), 3);
    assert_eq!(machine.snapshot()[0].exit, Some(exit));
    assert!(machine.is_quiet() && machine.generation() == Generation(4));
    assert_eq!(machine.bury(vec![]), []);
}

#[test]
fn survivors_of_a_dead_agent_block_the_next_generation_until_they_are_gone() {
    let record = |event| Record { seq: 1, time: 0.0, generation: Generation(0), event };
    let mut machine = Machine::default();
    machine.replay(&record(RecordEvent::Launched { spec: spec(0, 1) }));
    machine.bury(vec![survivor()]);
    assert!(machine.launch(spec(1, 1)).is_err());
    assert_eq!(machine.tick(LOOK_AGAIN_MS, true, 0), [Action::Prove]);
    assert_eq!(stopped(&machine.proved(vec![], vec![], 1500)).unwrap().0, []);
    assert!(machine.launch(spec(1, 1)).is_ok());
}
