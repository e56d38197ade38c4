//! Launches, exits, stops, and the events of ranks.

use super::bed::*;
use rankdeck_proto::message::*;
use rankdeck_proto::run_entry::HostRunState;
use rankdeck_proto::status_page::{CollectiveOp, Dtype, StatusPageWriter, tag};
use rankdeck_types::ids::Rank;
use std::io::Write;

/// This test binary itself as a rank: `-- --exact agent::lives::rank_program --ignored`.
fn this_program() -> Vec<String> {
    let own = std::env::current_exe().unwrap().display().to_string();
    vec![own, "--exact".into(), "agent::lives::rank_program".into(), "--ignored".into(), "--nocapture".into()]
}

/// Not a test: what a rank of the built-in trainer does towards its agent. Runs only inside an agent.
#[test]
#[ignore = "not a test: a rank of other tests"]
fn rank_program() {
    let Ok(page) = std::env::var("RANKDECK_STATUS_PAGE") else { return };
    let variable = |name: &str| std::env::var(name).unwrap();
    let rank: u32 = variable("RANKDECK_RANK").parse().unwrap();
    let generation = variable("RANKDECK_GENERATION").parse().unwrap();
    let mut page = StatusPageWriter::create(page.as_ref(), rank, generation).unwrap();
    page.phase(Phase::Learn);
    page.update(|body| body.env_step = 640 + u64::from(rank));
    page.enter(CollectiveOp::AllReduce, tag("grad"), 10, 40, Dtype::F32, 0);
    let mut socket = std::os::unix::net::UnixStream::connect(variable("RANKDECK_EVENTS")).unwrap();
    let mut send = |text: &str| writeln!(socket, "{text}").unwrap();
    send(&format!(r#"{{"kind":"hello","rank":{rank},"generation":{generation}}}"#));
    send(r#"{"kind":"joined","world_size":2,"backend":"tcp","device":"cpu"}"#);
    send("not an event");
    send(&format!("{}x", "x".repeat(70_000)));
    for i in 0..100 {
        send(&format!(
            r#"{{"kind":"counters","train_iter":{i},"env_step":1,"samples":1,"episodes":0,"duration_s":0.5}}"#
        ));
    }
    while !std::path::Path::new("go").exists() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    send(r#"{"kind":"finished","reason":"budget"}"#);
}

#[test]
fn exits_are_decoded_and_the_stop_is_verified() {
    let bed = Bed::new("ends");
    let script = bed.script(
        "rank.sh",
        "echo \"hello from $RANKDECK_RANK\"; case $RANKDECK_RANK in 0) exit 0;; 1) echo oops >&2; exit 7;; 2) kill -SEGV $$;; esac\n",
    );
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    console.launch(bed.spec(0, 3, &["sh", &script]));
    assert_eq!(console.exit(0), (Exit::Code { code: 0 }, vec!["hello from 0".into()], false));
    assert_eq!(console.exit(1), (Exit::Code { code: 7 }, vec!["hello from 1".into(), "oops".into()], false));
    assert_eq!(console.exit(2).0, Exit::Signal { signal: libc::SIGSEGV, out_of_memory: false });
    assert_eq!(console.stopped(), []);
    assert!(matches!(console.records[0].event, RecordEvent::Launched { .. }));
    assert!(matches!(console.records.last().unwrap().event, RecordEvent::Stopped { .. }));
    assert_eq!(console.seqs(), (1..=console.records.len() as u64).collect::<Vec<_>>());
    console.wait_line(1, "oops");
    let log = std::fs::read_to_string(bed.node_dir(0).join("gen0/rank1.log")).unwrap();
    assert_eq!(log, "hello from 1\noops\n");
    let experiment = std::fs::read_to_string(bed.node_dir(0).join("gen0/experiment.toml")).unwrap();
    assert!(toml::from_str::<rankdeck_types::experiment::Experiment>(&experiment).is_ok());
    // The manifest follows the record.
    let entry = until("finished", || bed.list().pop().filter(|entry| entry.state == HostRunState::Finished));
    assert_eq!((entry.ranks_alive, entry.world_size, entry.pids.len()), (0, 3, 0));
}

#[test]
fn missing_program_is_reported_with_its_path() {
    let bed = Bed::new("missing");
    let mut console = Console::attach(&bed.start(), 0);
    console.launch(bed.spec(0, 16, &["/no/such/program"]));
    for rank in 0..2 {
        let (exit, _, _) = console.exit(rank);
        assert!(
            matches!(&exit, Exit::NotStarted { error } if error.contains("/no/such/program")),
            "{exit:?}"
        );
    }
    assert_eq!(console.stopped(), []);
}

#[test]
fn rank_gets_its_identity_and_host_settings() {
    let bed = Bed::new("identity");
    let mut console = Console::attach(&bed.start(), 0);
    let mut spec = bed.spec(
        3,
        1,
        &[
            "sh",
            "-c",
            "echo \"$0 $1|$X|$RANKDECK_RUN|$RANKDECK_NODE|$RANKDECK_GENERATION\"; umask; pwd; cat",
            "a b",
            "c",
        ],
    );
    spec.plan.hosts[0].host.env.insert("RANKDECK_RUN".into(), "stolen".into());
    spec.plan.hosts[0].host.setup.prelude = Some("X='from prelude'; export X".into());
    console.launch(spec);
    let (exit, lines, _) = console.exit(0);
    assert_eq!(exit, Exit::Code { code: 0 }, "{lines:?}");
    let run = &bed.run;
    assert_eq!(lines[0], format!("a b c|from prelude|{run}|0|3"));
    assert_ne!(lines[1], "0077", "the agent's own mask is not the rank's");
    assert_eq!(lines[2], bed.workdir().canonicalize().unwrap().display().to_string());
}

#[test]
fn pages_events_and_counters_arrive() {
    let bed = Bed::new("pages");
    let mut console = Console::attach(&bed.start(), 0);
    let program = this_program();
    console.launch(bed.spec(0, 2, &program.iter().map(String::as_str).collect::<Vec<_>>()));
    console.wait("pages in a sample", |console| {
        console.samples.last().is_some_and(|sample| {
            sample.ranks.len() == 2
                && sample.ranks.iter().all(|rank| rank.page.is_some())
                && sample.malformed == 4
        })
    });
    let sample = console.samples.last().unwrap();
    for (i, rank) in sample.ranks.iter().enumerate() {
        let page = rank.page.as_ref().unwrap();
        assert_eq!((rank.rank, page.phase, page.env_step), (Rank(i as u32), Phase::Learn, 640 + i as u64));
        assert_eq!(
            (page.collective.entered, page.collective.left, page.collective.call.tag.as_str()),
            (1, 0, "grad")
        );
        assert!(rank.rss > 0 && "RSD".contains(rank.state), "{rank:?}");
    }
    std::fs::write(bed.workdir().join("go"), "").unwrap();
    assert_eq!(console.stopped(), []);
    for rank in 0..2 {
        let output_text: Vec<&RankEvent> = console
            .records
            .iter()
            .filter_map(|record| match &record.event {
                RecordEvent::Rank { rank: Rank(r), event } if *r == rank => Some(event),
                _ => None,
            })
            .collect();
        assert_eq!(output_text.len(), 102, "joined, 100 counters, finished");
        assert!(matches!(output_text[101], RankEvent::Finished { .. }));
        let position =
            |expected: fn(&RecordEvent) -> bool| console.records.iter().rposition(|r| expected(&r.event));
        let last_word = position(|event| matches!(event, RecordEvent::Rank { .. }));
        let end = position(|event| matches!(event, RecordEvent::RankExited { .. }));
        assert!(last_word < end, "a rank's last words come before its end");
    }
}

#[test]
fn clean_stop_lets_ranks_exit_by_themselves() {
    let bed = Bed::new("clean");
    let script =
        bed.script("rank.sh", "trap 'echo leaving; exit 0' TERM; echo up; while :; do sleep 0.05; done\n");
    let mut console = Console::attach(&bed.start(), 0);
    console.launch(bed.spec(0, 2, &["sh", &script]));
    console.wait_line(0, "up");
    console.wait_line(1, "up");
    console.stop(StopMode::Clean, 30_000);
    for rank in 0..2 {
        let (exit, lines, stopping) = console.exit(rank);
        assert_eq!((exit, stopping), (Exit::Code { code: 0 }, true));
        assert_eq!(lines.last().unwrap(), "leaving");
    }
    assert_eq!(console.stopped(), []);
    assert!(
        console
            .find(|event| {
                matches!(event, RecordEvent::StopOrdered { mode: StopMode::Clean, by, .. } if by == "console")
                    .then_some(())
            })
            .is_some()
    );
    assert_eq!(bed.marked(), []);
}

#[test]
fn rank_ignoring_sigterm_is_killed_after_the_grace() {
    let bed = Bed::new("stubborn");
    let script = bed.script("rank.sh", "trap '' TERM; echo up; while :; do sleep 0.05; done\n");
    let mut console = Console::attach(&bed.start(), 0);
    console.launch(bed.spec(0, 1, &["sh", &script]));
    console.wait_line(0, "up");
    console.stop(StopMode::Terminate, 300);
    assert_eq!(console.exit(0).0, Exit::Signal { signal: 9, out_of_memory: false });
    assert_eq!(console.stopped(), []);
    assert_eq!(bed.marked(), []);
}

#[test]
fn clean_stop_reaches_a_stopped_rank() {
    let bed = Bed::new("frozen");
    let script = bed.script("rank.sh", "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done\n");
    let mut console = Console::attach(&bed.start(), 0);
    console.launch(bed.spec(0, 1, &["sh", &script]));
    console.wait_line(0, "up");
    let pid = console.pid(0);
    kill(pid, libc::SIGSTOP);
    console.wait("state T in a sample", |console| {
        console.samples.last().is_some_and(|s| s.ranks.iter().any(|r| r.state == 'T'))
    });
    console.stop(StopMode::Clean, 30_000);
    assert_eq!(console.exit(0).0, Exit::Code { code: 0 });
    assert_eq!(console.stopped(), []);
}

#[test]
fn generations_never_overlap() {
    let bed = Bed::new("generations");
    let mut console = Console::attach(&bed.start(), 0);
    console.launch(bed.spec(0, 1, &["sleep", "1000"]));
    console.pid(0);
    console.launch(bed.spec(0, 1, &["sleep", "1000"]));
    console.launch(bed.spec(1, 1, &["sleep", "1000"]));
    console.wait("refusal", |console| console.others.iter().any(|m| matches!(m, AgentMessage::Refused(_))));
    console.stop(StopMode::Kill, 0);
    assert_eq!(console.stopped(), []);
    console.launch(bed.spec(1, 2, &["true"]));
    console.wait("second proof", |console| {
        console.records.iter().filter(|r| matches!(r.event, RecordEvent::Stopped { .. })).count() == 2
    });
    let refusals = console.others.iter().filter(|m| matches!(m, AgentMessage::Refused(_))).count();
    assert_eq!(refusals, 1, "the repeated launch is accepted");
    assert_eq!(console.records.last().unwrap().generation.0, 1);
    assert!(bed.node_dir(0).join("gen1/rank1.log").exists());
}

#[test]
fn ports_and_pings_are_answered() {
    let bed = Bed::new("ports");
    let mut console = Console::attach(&bed.start(), 0);
    console.send(&ConsoleMessage::ReservePort { request: 5 });
    console.send(&ConsoleMessage::Ping { sent_ms: 77 });
    console.wait("answers", |console| console.others.len() >= 3);
    assert!(
        console
            .others
            .iter()
            .any(|m| matches!(m, AgentMessage::PortReserved { request: 5, port } if *port > 0))
    );
    assert!(
        console
            .others
            .iter()
            .any(|output_text| matches!(output_text, AgentMessage::Pong { sent_ms: 77, .. }))
    );
}
