//! Consoles come and go: starting, finding, attaching again, several at once, slow ones.

use super::bed::*;
use rankdeck_agent::serve::daemon::ServingAgent;
use rankdeck_proto::frame::encode;
use rankdeck_proto::message::*;
use rankdeck_types::error::HintedError;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn start_finds_the_agent_that_serves_even_when_several_start_at_once() {
    let bed = Bed::new("start");
    let found: Vec<ServingAgent> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| bed.start())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(found.windows(2).all(|pair| pair[0] == pair[1]), "{found:?}");
    assert!(found[0].build.starts_with(env!("CARGO_PKG_VERSION")), "{found:?}");
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &str| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&found[0].socket), 0o600);
    assert_eq!(mode(&found[0].run_dir), 0o700);
    assert_ne!(bed.start_node(1).pid, found[0].pid, "another node has an agent of its own");
}

#[test]
fn starting_returns_although_somebody_waits_for_the_end_of_its_output() {
    let bed = Bed::new("stdio");
    let begun = Instant::now();
    // `output` reads both pipes to their ends: an agent that kept one of them would hold it for a minute.
    let started: ServingAgent = bed.start();
    assert!(begun.elapsed() < Duration::from_secs(40));
    for fd in std::fs::read_dir(format!("/proc/{}/fd", started.pid)).unwrap() {
        let target = std::fs::read_link(fd.unwrap().path()).unwrap_or_default();
        assert!(!target.to_string_lossy().starts_with("/dev/pts"), "{target:?}");
    }
    let stat = rankdeck_agent::proc::stat(started.pid).unwrap();
    assert_ne!(stat.session, rankdeck_agent::proc::stat(std::process::id()).unwrap().session);
    assert_ne!(stat.session, stat.pid, "no session leader: it can never get a terminal");
}

#[test]
fn an_unknown_run_is_not_created_by_looking_for_it() {
    let bed = Bed::new("existing");
    let mut args = bed.start_args("0");
    args.push("--existing");
    let output = bed.agent(&args);
    assert_eq!(output.status.code(), Some(1));
    let failure: serde_json::Value = answer(&output, "RANKDECK-AGENT");
    assert!(failure["error"].as_str().unwrap().contains(&bed.run), "{failure}");
    assert!(failure["hint"].as_str().unwrap().contains("rankdeck ps"));
    assert!(!bed.node_dir(0).exists());
    assert_eq!(bed.list(), []);
}

#[test]
fn attaching_again_gives_exactly_the_missing_records_and_the_run_goes_on() {
    let bed = Bed::new("again");
    let agent = bed.start();
    let mut first = Console::attach(&agent, 0);
    first.launch(bed.spec(0, 2, &["sh", "-c", "echo up; sleep 1000"]));
    let pids = [first.pid(0), first.pid(1)];
    first.wait_line(1, "up");
    let seen = first.records.len() as u64;
    drop(first);
    kill(pids[0], libc::SIGKILL);
    let mut second = Console::attach(&agent, seen);
    let Some(AgentMessage::Snapshot { spec: Some(spec), ranks, .. }) = &second.snapshot else {
        panic!("{:?}", second.snapshot)
    };
    assert_eq!((spec.generation.0, ranks.len(), ranks[1].pid), (0, 2, Some(pids[1])));
    assert_eq!(second.exit(0).0, Exit::Signal { signal: 9, out_of_memory: false });
    assert_eq!(second.seqs(), [seen + 1]);
    second.wait_line(1, "up");
    assert!(bed.marked().iter().any(|stat| stat.pid == pids[1]), "the other rank goes on");
    second.stop(StopMode::Kill, 0);
    assert_eq!(second.stopped(), []);
    let mut third = Console::attach(&agent, 0);
    third.stopped();
    assert_eq!(third.seqs()[..seen as usize], (1..=seen).collect::<Vec<_>>());
    assert_eq!(third.records[seen as usize..], second.records);
}

#[test]
fn two_consoles_see_the_same() {
    let bed = Bed::new("two");
    let agent = bed.start();
    let (mut one, mut two) = (Console::attach(&agent, 0), Console::attach(&agent, 0));
    one.launch(bed.spec(0, 1, &["sh", "-c", "echo up; sleep 1000"]));
    one.wait_line(0, "up");
    two.wait_line(0, "up");
    two.stop(StopMode::Kill, 0);
    assert_eq!((one.stopped(), two.stopped()), (vec![], vec![]));
    assert_eq!(one.records, two.records);
}

#[test]
fn a_slow_console_holds_up_nobody_and_loses_no_record() {
    let bed = Bed::new("slow");
    let agent = bed.start();
    let mut slow = Console::attach(&agent, 0);
    let mut quick = Console::attach(&agent, 0);
    // Megabytes of log lines: far more than a socket buffer and the queue hold.
    let script = "i=0; while [ $i -lt 60000 ]; do echo \"line $i xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"; i=$((i+1)); done; echo done";
    quick.launch(bed.spec(0, 1, &["sh", "-c", script]));
    quick.wait_line(0, "done");
    assert_eq!(quick.stopped(), []);
    let records = quick.records.clone();
    slow.wait("records", |console| console.records.len() >= records.len());
    assert_eq!(slow.records, records);
    slow.wait("the count of dropped lines", |console| {
        console.samples.last().is_some_and(|sample| sample.dropped > 0)
    });
}

#[test]
fn a_console_of_another_protocol_is_refused_with_a_reason() {
    let bed = Bed::new("protocol");
    let agent = bed.start();
    let mut console = Console::over(UnixStream::connect(&agent.socket).unwrap());
    let attach =
        |protocol| ConsoleMessage::Attach { protocol, build: "old".into(), after_seq: 0, log_tail: 0 };
    console.send(&attach(PROTOCOL + 1));
    console.wait("bye", |console| console.others.iter().any(|m| matches!(m, AgentMessage::Bye { .. })));
    assert!(
        matches!(&console.others[0], AgentMessage::Refused(HintedError { error, .. }) if error.contains("protocol"))
    );
    let mut rude = UnixStream::connect(&agent.socket).unwrap();
    rude.write_all(&[0xff; 64]).unwrap();
    let mut rest = Vec::new();
    rude.read_to_end(&mut rest).unwrap();
    let mut polite = Console::attach(&agent, 0);
    polite.send(&ConsoleMessage::Ping { sent_ms: 1 });
    polite.wait("pong", |console| {
        console.others.iter().any(|said| matches!(said, AgentMessage::Pong { sent_ms: 1, .. }))
    });
}

#[test]
fn the_relay_carries_frames_both_ways() {
    let bed = Bed::new("relay");
    let agent = bed.start();
    let mut relay = Command::new(env!("CARGO_BIN_EXE_rankdeck"))
        .args(["agent", "relay", "--socket", &agent.socket])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(relay.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "RANKDECK-RELAY\n");
    let mut input = relay.stdin.take().unwrap();
    let attach = ConsoleMessage::Attach { protocol: PROTOCOL, build: "t".into(), after_seq: 0, log_tail: 0 };
    input.write_all(&encode(&attach).unwrap()).unwrap();
    let mut head = [0; 4];
    output.read_exact(&mut head).unwrap();
    let mut hello = vec![0; u32::from_be_bytes(head) as usize];
    output.read_exact(&mut hello).unwrap();
    let hello: AgentMessage = serde_json::from_slice(&hello).unwrap();
    assert!(matches!(&hello, AgentMessage::Hello { pid, .. } if *pid == agent.pid), "{hello:?}");
    drop(input);
    assert!(relay.wait().unwrap().success());
}

#[test]
fn an_agent_ends_when_the_run_is_over_and_the_console_says_so_and_serves_the_history_later() {
    let bed = Bed::new("history");
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    console.launch(bed.spec(0, 1, &["sh", "-c", "echo once"]));
    assert_eq!(console.stopped(), []);
    console.send(&ConsoleMessage::Close);
    drop(console);
    until("the agent and its guard have ended", || bed.watchers().is_empty().then_some(()));
    assert!(!std::path::Path::new(&agent.socket).exists());
    assert_eq!(serde_json::to_value(&bed.list()[0]).unwrap()["state"], "finished");
    let mut args = bed.start_args("0");
    args.push("--existing");
    let again: ServingAgent = answer(&bed.agent(&args), "RANKDECK-AGENT");
    let mut late = Console::attach(&again, 0);
    assert_eq!(late.stopped(), []);
    assert_eq!(late.exit(0).1, ["once"]);
    late.wait_line(0, "once");
    assert!(!late.records.iter().any(|record| matches!(record.event, RecordEvent::Notice { .. })));
}

#[test]
fn an_agent_that_never_ran_anything_leaves_nothing() {
    let mut bed = Bed::new("unused");
    bed.timing = "linger=0.2".into();
    bed.start();
    until("the agent has ended", || bed.watchers().is_empty().then_some(()));
    assert!(!bed.node_dir(0).exists());
}

#[test]
fn a_detached_run_goes_on_and_a_leased_one_does_not() {
    let mut bed = Bed::new("lease");
    bed.timing = "linger=600".into();
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    let leased = |generation| {
        let mut spec = bed.spec(generation, 1, &["sh", "-c", "echo up; sleep 1000"]);
        spec.plan.experiment.launch.on_disconnect = rankdeck_types::experiment::OnDisconnect::Stop;
        spec.plan.experiment.launch.lease_s = 0.5;
        spec
    };
    console.launch(leased(0));
    let pid = console.pid(0);
    drop(console);
    until("the lease has ended the rank", || bed.marked().is_empty().then_some(()));
    let mut console = Console::attach(&agent, 0);
    assert_eq!(console.stopped(), []);
    assert!(
        console
            .find(|e| matches!(e, RecordEvent::StopOrdered { by, .. } if by == "lease").then_some(()))
            .is_some()
    );
    let seen = console.records.len() as u64;
    console.launch(leased(1));
    console.wait("the second rank", |console| {
        console.records.iter().any(|r| matches!(r.event, RecordEvent::RankSpawned { pid: p, .. } if p != pid))
    });
    console.send(&ConsoleMessage::Detach);
    console.send(&ConsoleMessage::Ping { sent_ms: 9 });
    console.wait("pong", |console| {
        console.others.iter().any(|said| matches!(said, AgentMessage::Pong { sent_ms: 9, .. }))
    });
    drop(console);
    // Longer than the lease: the only way to see that nothing happens.
    std::thread::sleep(Duration::from_millis(1500));
    let mut console = Console::attach(&agent, seen);
    console.send(&ConsoleMessage::Ping { sent_ms: 10 });
    console.wait("pong", |console| {
        console.others.iter().any(|said| matches!(said, AgentMessage::Pong { sent_ms: 10, .. }))
    });
    let records: Vec<_> = console.records.iter().map(|record| &record.event).collect();
    assert!(!records.iter().any(|event| matches!(event, RecordEvent::StopOrdered { .. })), "{records:#?}");
    assert_eq!(bed.marked().len(), 2, "shell and sleep live: {records:#?}");
}
