//! A rank dies and the others of its host live on; it starts again and joins them (LIFE-10).

use super::bed::*;
use rankdeck_agent::proc;
use rankdeck_proto::message::*;
use rankdeck_types::experiment::OnRankLoss;
use rankdeck_types::ids::{Generation, Rank};

/// A rank that is in the process group, shows where it joins, and outlives others.
const PROGRAM: &str = r#"
import json, os, socket, sys, time
events = socket.socket(socket.AF_UNIX)
events.connect(os.environ["RANKDECK_EVENTS"])
def send(**event):
    events.sendall((json.dumps(event) + "\n").encode())
send(kind="hello", rank=int(os.environ["RANK"]), generation=int(os.environ["RANKDECK_GENERATION"]))
send(kind="joined", world_size=2, backend="tcp", device="cpu")
print("joins", os.environ.get("RANKDECK_JOIN"), os.environ.get("RANKDECK_STORE"), flush=True)
while True:
    time.sleep(1000)
"#;

fn shrinking(bed: &Bed, ranks: u32) -> LaunchSpec {
    let script = bed.script("rank.py", PROGRAM);
    let mut spec = bed.spec(0, ranks, &["python3", &script]);
    spec.plan.experiment.distributed.on_rank_loss = OnRankLoss::Shrink;
    spec
}

fn joined(console: &mut Console, rank: u32) {
    let joined = |event: &RecordEvent| matches!(event, RecordEvent::Rank { rank: Rank(r), event: RankEvent::Joined { .. } } if *r == rank);
    console.wait("joined", |console| console.records.iter().any(|record| joined(&record.event)));
}

fn rejoin(rank: u32) -> ConsoleMessage {
    ConsoleMessage::Rejoin {
        rank: Rank(rank),
        generation: Generation(0),
        epoch: 3,
        store: Some("127.0.0.1:4711".into()),
        private: Default::default(),
    }
}

/// Processes of a rank that were recorded, in order.
fn pids(console: &Console, rank: u32) -> Vec<u32> {
    let pid = |record: &Record| match record.event {
        RecordEvent::RankSpawned { rank: Rank(r), pid, .. } if r == rank => Some(pid),
        _ => None,
    };
    console.records.iter().filter_map(pid).collect()
}

fn is_alive(pid: u32) -> bool {
    proc::stat(pid).is_some_and(|stat| !stat.is_gone())
}

#[test]
fn life_10_rank_dies_and_joins_again_while_another_lives() {
    let bed = Bed::new("shrinks");
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    console.launch(shrinking(&bed, 2));
    let (survivor, dead) = (console.pid(0), console.pid(1));
    (0..2).for_each(|rank| joined(&mut console, rank));
    console.wait_line(1, "joins None None");
    kill(dead, libc::SIGKILL);
    assert_eq!(console.exit(1).0, Exit::Signal { signal: libc::SIGKILL, out_of_memory: false });
    assert!(is_alive(survivor));
    console.send(&rejoin(1));
    console.wait("started again", |console| pids(console, 1).len() == 2);
    console.wait_line(1, "joins 3 127.0.0.1:4711");
    let again = *pids(&console, 1).last().unwrap();
    assert!(again != dead && is_alive(again) && is_alive(survivor));
    let log = std::fs::read_to_string(bed.node_dir(0).join("gen0/rank1.log")).unwrap();
    assert_eq!(log, "joins None None\njoins 3 127.0.0.1:4711\n", "the log continues");
    let environ = |pid: u32| proc::environ(pid).unwrap();
    for name in ["RANKDECK_RUN", "RANKDECK_AGENT", "RANKDECK_STATUS_PAGE", "MASTER_PORT", "RANK"] {
        let value = |pid| proc::variable(&environ(pid), name).map(<[u8]>::to_vec);
        let is_own = matches!(name, "RANK" | "RANKDECK_STATUS_PAGE");
        assert!(value(again).is_some() && (is_own || value(again) == value(survivor)), "{name}");
    }
    console.stop(StopMode::Terminate, 1_000);
    assert_eq!(console.stopped(), []);
    assert!(!is_alive(again) && !is_alive(survivor));
    let exits =
        console.records.iter().filter(|record| matches!(record.event, RecordEvent::RankExited { .. }));
    assert_eq!(exits.count(), 3);
}

#[test]
fn life_10_last_rank_of_a_host_joins_again() {
    let bed = Bed::new("alone");
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    console.launch(shrinking(&bed, 1));
    let dead = console.pid(0);
    joined(&mut console, 0);
    kill(dead, libc::SIGKILL);
    assert_eq!(console.stopped(), [], "nothing runs on this host meanwhile");
    console.send(&rejoin(0));
    console.wait_line(0, "joins 3 127.0.0.1:4711");
    // A console that attaches now finds it.
    let late = Console::attach(&agent, 0);
    let Some(AgentMessage::Snapshot { ranks, .. }) = &late.snapshot else { panic!() };
    assert_eq!((ranks.len(), ranks[0].exit.as_ref()), (1, None));
    console.stop(StopMode::Kill, 0);
    console.wait("stopped again", |console| {
        let stopped = |record: &&Record| matches!(record.event, RecordEvent::Stopped { .. });
        console.records.iter().filter(stopped).count() == 2
    });
    assert!(bed.marked().is_empty());
}

#[test]
fn life_10_rank_that_lives_is_not_started_twice() {
    let bed = Bed::new("twice");
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    console.launch(shrinking(&bed, 2));
    let pid = console.pid(1);
    joined(&mut console, 1);
    console.send(&rejoin(1));
    console.wait("refused", |console| {
        console.others.iter().any(|other| matches!(other, AgentMessage::Refused(_)))
    });
    assert!(is_alive(pid) && pids(&console, 1) == [pid]);
}
