//! What an agent serves to consoles: attaching, several consoles at once, live frames, log search.

use super::bed::*;
use crate::support::wait_until;
use rankdeck_agent::serve::daemon::ServingAgent;
use rankdeck_proto::frame::encode;
use rankdeck_proto::message::*;
use rankdeck_proto::search::*;
use rankdeck_proto::show::LiveFrame;
use rankdeck_types::error::HintedError;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn concurrent_starts_find_one_agent() {
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
fn start_returns_while_its_output_is_read() {
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
fn attach_to_an_unknown_run_creates_nothing() {
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

/// LIVE-1: bars below each other, which write over each other ten times a second.
#[test]
fn live_1_unfinished_line_is_in_the_sample_and_in_no_log() {
    let bed = Bed::new("live");
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    let script = "echo ready; printf '\\router'; i=0; while [ $i -lt 30 ]; do i=$((i+1)); \
                  printf '\\n\\rinner %s/30\\033[A' $i; sleep 0.1; done; printf '\\router done\\n        \\nend\\n'; sleep 1000";
    console.launch(bed.spec(0, 1, &["sh", "-c", script]));
    let live = |console: &Console| {
        let newest = console.samples.last().and_then(|sample| sample.ranks.first());
        newest.map(|rank| rank.live.clone()).unwrap_or_default()
    };
    console.wait("a live bar", |console| live(console).starts_with("inner "));
    console.wait_line(0, "end");
    console.wait("no live line", |console| live(console).is_empty());
    let lines: Vec<&str> = console.lines.iter().map(|(.., text)| text.trim()).collect();
    assert!(lines.len() <= 5 && lines.contains(&"outer done"), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("inner")), "{lines:?}");
}

#[test]
fn reattach_sends_exactly_the_missing_records() {
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
    assert!(bed.marked().iter().any(|stat| stat.pid == pids[1]), "the other rank keeps running");
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
fn slow_console_delays_nobody_and_loses_no_record() {
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
fn console_of_another_protocol_is_refused() {
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
        console.others.iter().any(|output_text| matches!(output_text, AgentMessage::Pong { sent_ms: 1, .. }))
    });
}

#[test]
fn relay_carries_frames_both_ways() {
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
fn closed_agent_ends_and_serves_history_later() {
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
fn unused_agent_leaves_nothing() {
    let mut bed = Bed::new("unused");
    bed.timing = "linger=0.2".into();
    bed.start();
    until("the agent has ended", || bed.watchers().is_empty().then_some(()));
    assert!(!bed.node_dir(0).exists());
}

#[test]
fn detached_run_continues_and_leased_run_ends() {
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
        console.others.iter().any(|output_text| matches!(output_text, AgentMessage::Pong { sent_ms: 9, .. }))
    });
    drop(console);
    // Longer than the lease: the only way to see that nothing happens.
    std::thread::sleep(Duration::from_millis(1500));
    let mut console = Console::attach(&agent, seen);
    console.send(&ConsoleMessage::Ping { sent_ms: 10 });
    console.wait("pong", |console| {
        console.others.iter().any(|output_text| matches!(output_text, AgentMessage::Pong { sent_ms: 10, .. }))
    });
    let records: Vec<_> = console.records.iter().map(|record| &record.event).collect();
    assert!(!records.iter().any(|event| matches!(event, RecordEvent::StopOrdered { .. })), "{records:#?}");
    assert_eq!(bed.marked().len(), 2, "shell and sleep live: {records:#?}");
}

/// Not a test: ranks that show one moment after the other. Runs only inside an agent.
#[test]
#[ignore = "not a test: a rank of other tests"]
fn rank_program() {
    let Ok(socket) = std::env::var("RANKDECK_EVENTS") else { return };
    let rank: u32 = std::env::var("RANKDECK_RANK").unwrap().parse().unwrap();
    let mut socket = std::os::unix::net::UnixStream::connect(socket).unwrap();
    let mut send = |text: &str| writeln!(socket, "{text}").unwrap();
    send(&format!(r#"{{"kind":"hello","rank":{rank},"generation":0}}"#));
    let mut step = 0;
    while !std::path::Path::new("go").exists() {
        step += 1;
        let policy = format!(r#"{{"env_id":"of rank {rank}"}}"#);
        send(&format!(r#"{{"kind":"frame","policy":{policy},"step":{{"step":{step}}}}}"#));
        std::thread::sleep(Duration::from_millis(10));
    }
    send(r#"{"kind":"finished","reason":"budget"}"#);
}

/// What a console was shown: its count of missed ones, and the frame.
fn shown(console: &Console) -> Vec<(u64, LiveFrame)> {
    let frames = console.others.iter().filter_map(|message| match message {
        AgentMessage::Frame { generation, age_ms, missed, frame } => {
            assert!(generation.0 == 0 && *age_ms < 60_000, "{message:?}");
            Some((*missed, LiveFrame::clone(frame)))
        }
        _ => None,
    });
    frames.collect()
}

#[test]
fn frames_reach_watching_consoles_and_no_record() {
    let bed = Bed::new("frames");
    let agent = bed.start();
    let mut idle = Console::attach(&agent, 0);
    let own = std::env::current_exe().unwrap().display().to_string();
    let program = [&own, "--exact", "agent::consoles::rank_program", "--ignored", "--nocapture"];
    idle.launch(bed.spec(0, 2, &program));
    let mut watching = Console::attach(&agent, 0);
    watching.send(&ConsoleMessage::Watch { on: true });
    // The first lines of a connection are read as they come, later ones a few times a second: a hundred a
    // second are more than a console is sent then.
    watching.wait("frames that were missed", |console| shown(console).last().is_some_and(|last| last.0 > 9));
    let seen = shown(&watching);
    assert!(seen.iter().all(|(_, frame)| frame.policy.env_id == "of rank 0"), "{seen:?}");
    assert_eq!(seen[0].0, 0, "what came before it watched was not missed");
    for pair in seen.windows(2) {
        let left_out = pair[1].1.step.step - pair[0].1.step.step - 1;
        assert_eq!(pair[1].0 - pair[0].0, left_out, "{pair:?}");
    }
    watching.send(&ConsoleMessage::Watch { on: false });
    watching.send(&ConsoleMessage::Ping { sent_ms: 5 });
    watching.wait("the answer", |console| {
        console.others.iter().any(|output_text| matches!(output_text, AgentMessage::Pong { sent_ms: 5, .. }))
    });
    // One that was being written may still come.
    let (frames, samples) = (shown(&watching).len(), watching.samples.len());
    watching.wait("samples", |console| console.samples.len() >= samples + 3);
    assert!(shown(&watching).len() <= frames + 1);
    std::fs::write(bed.workdir().join("go"), "").unwrap();
    assert_eq!(idle.stopped(), []);
    assert_eq!(shown(&idle), [], "who does not watch is sent none");
    let kept = idle.records.iter().filter(|record| {
        matches!(&record.event, RecordEvent::Rank { event, .. } if !matches!(event, RankEvent::Finished { .. }))
    });
    assert_eq!(kept.count(), 0);
    assert_eq!(idle.samples.last().unwrap().malformed, 0);
}

fn search(console: &mut Console, request: u64, pattern: &str) {
    let query = LogSearch { pattern: pattern.into(), limit: 10, ..LogSearch::default() };
    console.send(&ConsoleMessage::Search { request, search: Some(Box::new(query)) });
}

fn answers(console: &Console, of: u64) -> Vec<LogFindings> {
    let all = console.others.iter().filter_map(|message| match message {
        AgentMessage::Found { request, findings } if *request == of => Some(LogFindings::clone(findings)),
        _ => None,
    });
    all.collect()
}

/// Waits until the whole output of a rank is in its log.
fn logged(bed: &Bed, generation: u32, rank: u32) {
    let log = bed.node_dir(0).join(format!("gen{generation}/rank{rank}.log"));
    wait_until("the whole log", 60, || std::fs::read(&log).is_ok_and(|text| text.ends_with(b"\nend\n")));
}

/// What was found when it was over.
fn found(console: &mut Console, request: u64) -> LogFindings {
    console.wait("the end of the search", |console| answers(console, request).iter().any(|found| found.over));
    answers(console, request).into_iter().find(|found| found.over).unwrap()
}

#[test]
fn newer_search_cancels_the_older_one() {
    let bed = Bed::new("searching");
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    let program = ["/bin/sh", "-c", "echo needle $RANK; seq 1 5000; echo end; sleep 1000"];
    console.launch(bed.spec(0, 2, &program));
    logged(&bed, 0, 0);
    logged(&bed, 0, 1);
    console.stop(StopMode::Kill, 0);
    console.stopped();
    console.records.clear();
    console.launch(bed.spec(1, 1, &program));
    logged(&bed, 1, 0);
    search(&mut console, 7, "NEEDLE");
    let none = found(&mut console, 7);
    assert_eq!((none.hits.len(), none.lines, none.cut.as_str()), (0, 15_006, ""));
    // Times of lines are written from time to time.
    let mut request = 100;
    let mut hits = Vec::new();
    wait_until("the times of all lines", 60, || {
        request += 1;
        search(&mut console, request, "needle");
        hits = found(&mut console, request).hits;
        hits.iter().all(|hit| hit.time.is_some())
    });
    let places: Vec<(u32, u32, u64)> =
        hits.iter().map(|hit| (hit.generation.0, hit.rank.0, hit.line)).collect();
    let mut sorted = places.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [(0, 0, 1), (0, 1, 1), (1, 0, 1)]);
    assert!(hits.is_sorted_by_key(LogHit::place), "{hits:?}");
    search(&mut console, 1009, "(");
    assert_eq!(found(&mut console, 1009).cut, "`(`: unclosed group");
    // Large enough that its search takes longer than the next request.
    let log = bed.node_dir(0).join("gen1/rank0.log");
    std::fs::write(log.with_file_name("rank5.log"), "loss nan\n".repeat(100_000)).unwrap();
    search(&mut console, 1010, "n.n");
    search(&mut console, 1011, "needle");
    assert_eq!(found(&mut console, 1011).hits.len(), 3);
    assert_eq!(answers(&console, 1010).iter().filter(|found| found.over).count(), 0);
    console.stop(StopMode::Kill, 0);
    console.stopped();
}
