//! One process that a console asks for: its environment without secrets, a signal to it and to nothing else.

use super::bed::{Bed, Console, answer, until};
use rankdeck_agent::proc;
use rankdeck_proto::message::*;
use rankdeck_proto::process::*;
use rankdeck_types::ids::Rank;
use std::process::{Child, Command, Stdio};

fn ask(console: &mut Console, request: u64, process: ProcessName, action: ProcessAction) -> ReachOutcome {
    console.send(&ConsoleMessage::Reach { request, process, action });
    let told = |console: &Console| {
        console.others.iter().find_map(|message| match message {
            AgentMessage::Reached { request: of, outcome } if *of == request => Some((**outcome).clone()),
            _ => None,
        })
    };
    console.wait("an answer", |console| told(console).is_some());
    told(console).unwrap()
}

fn of_rank(rank: u32, pid: u32) -> ProcessName {
    ProcessName { rank: Some(Rank(rank)), pid, start: 0 }
}

fn refused(outcome: ReachOutcome) -> String {
    match outcome {
        ReachOutcome::Refused(error) => error.error,
        other => panic!("not refused: {other:?}"),
    }
}

const TERM: ProcessAction = ProcessAction::Signal { signal: libc::SIGTERM };

fn stranger() -> Child {
    Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap()
}

#[test]
fn reach_1_the_environment_of_a_rank_comes_without_its_secrets_and_is_written_nowhere() {
    let bed = Bed::new("environment");
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    let mut spec = bed.spec(0, 1, &["sh", "-c", "echo up; exec sleep 1000"]);
    spec.plan.experiment.launch.pass_env = vec!["GIVEN".into()];
    spec.plan.hosts[0].host.env.insert("SEEN".into(), "plainly visible".into());
    spec.plan.hosts[0].host.env.insert("WANDB_API_KEY".into(), "hush hush".into());
    let private =
        Private { variables: toml::from_str("GIVEN = \"also hush hush\"").unwrap(), ..Private::default() };
    console.send(&ConsoleMessage::Launch { spec: Box::new(spec), private });
    console.wait_line(0, "up");
    let pid = console.pid(0);
    let seen = until("the rank's own environment", || {
        let found = ask(&mut console, 1, of_rank(0, pid), ProcessAction::Environment);
        matches!(&found, ReachOutcome::Environment(_)).then_some(found)
    });
    let ReachOutcome::Environment(found) = seen else { panic!("{seen:?}") };
    let value = |name: &str| {
        let found = found.variables.iter().find(|variable| variable.name == name);
        found.unwrap_or_else(|| panic!("{name} is not there")).value.as_deref()
    };
    assert_eq!((value("SEEN"), value("RANK")), (Some("plainly visible"), Some("0")));
    assert_eq!((value("WANDB_API_KEY"), value("GIVEN")), (None, None));
    assert_eq!(value("RANKDECK_HIDDEN"), Some("GIVEN"));
    // What belongs to a rank of this run is hidden for whoever asks about the bare process, too.
    let start = proc::stat(pid).unwrap().start.to_string();
    let bare: ReachOutcome =
        answer(&bed.agent(&["reach", "--process", &format!("{pid}-{start}")]), "RANKDECK-REACHED");
    let ReachOutcome::Environment(bare) = bare else { panic!("{bare:?}") };
    assert!(bare.variables.iter().any(|variable| variable.name == "GIVEN" && variable.value.is_none()));
    assert_eq!(
        refused(ask(&mut console, 2, of_rank(0, pid + 1), ProcessAction::Environment)),
        format!("rank 0 is pid {pid} by now, not {}", pid + 1)
    );
    assert!(
        refused(ask(&mut console, 3, of_rank(7, pid), ProcessAction::Environment)).contains("no process")
    );
    for file in ["records.jsonl", "agent.log", "manifest.json"] {
        let text = std::fs::read_to_string(bed.node_dir(0).join(file)).unwrap_or_default();
        assert!(!text.contains("also hush hush"), "{file}");
        assert!(file == "records.jsonl" || !text.contains("plainly visible"), "{file}");
    }
}

#[test]
fn reach_3_a_signal_goes_to_the_process_that_is_meant_and_is_recorded() {
    let bed = Bed::new("signals");
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    let script = "trap 'echo got USR1' USR1; echo up; while :; do sleep 0.05; done";
    console.launch(bed.spec(0, 2, &["sh", "-c", script]));
    console.wait_line(0, "up");
    console.wait_line(1, "up");
    let pid = console.pid(0);
    let usr1 = ProcessAction::Signal { signal: libc::SIGUSR1 };
    assert_eq!(
        ask(&mut console, 1, of_rank(0, pid), usr1),
        ReachOutcome::Signalled { signal: libc::SIGUSR1 }
    );
    console.wait_line(0, "got USR1");
    assert!(console.lines.iter().all(|(rank, _, line)| *rank == Rank(0) || line != "got USR1"));
    assert!(
        refused(ask(&mut console, 2, of_rank(1, pid), TERM)).contains("by now"),
        "another rank's process"
    );

    // Another process of the same user; then the agent and what guards it.
    let mut other = stranger();
    let start = proc::stat(other.id()).unwrap().start;
    let named = ProcessName { rank: None, pid: other.id(), start };
    let later = ProcessName { start: start + 1, ..named };
    assert!(refused(ask(&mut console, 3, later, TERM)).contains("another process by now"));
    assert!(other.try_wait().unwrap().is_none());
    assert_eq!(ask(&mut console, 4, named, TERM), ReachOutcome::Signalled { signal: libc::SIGTERM });
    assert!(!other.wait().unwrap().success());
    assert!(refused(ask(&mut console, 5, named, TERM)).contains("has ended"));
    for serving in bed.watchers() {
        let own = ProcessName { rank: None, pid: serving.pid, start: serving.start };
        assert!(refused(ask(&mut console, 6 + u64::from(serving.pid), own, TERM)).contains("rankdeck's own"));
    }

    assert_eq!(
        ask(&mut console, 9, of_rank(0, pid), TERM),
        ReachOutcome::Signalled { signal: libc::SIGTERM }
    );
    assert_eq!(console.exit(0).0, Exit::Signal { signal: libc::SIGTERM, out_of_memory: false });
    let told: Vec<(Option<Rank>, i32)> = console
        .records
        .iter()
        .filter_map(|record| match &record.event {
            RecordEvent::Signalled { rank, signal, .. } => Some((*rank, *signal)),
            _ => None,
        })
        .collect();
    assert_eq!(told, [(Some(Rank(0)), libc::SIGUSR1), (None, libc::SIGTERM), (Some(Rank(0)), libc::SIGTERM)]);
    let place =
        |wanted: fn(&RecordEvent) -> bool| console.records.iter().rposition(|record| wanted(&record.event));
    let signal = place(|event| matches!(event, RecordEvent::Signalled { rank: Some(_), .. }));
    let end = place(|event| matches!(event, RecordEvent::RankExited { rank: Rank(0), .. }));
    assert!(signal < end, "why a rank has ended is known before that it has");
}

#[test]
fn reach_3_a_process_of_another_user_is_refused_with_its_reason() {
    let bed = Bed::new("foreign");
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    let own =
        std::fs::metadata("/proc/self").map(|facts| std::os::unix::fs::MetadataExt::uid(&facts)).unwrap();
    if own != 0 {
        rankdeck_testkit::skip!("only root can start a process of another user");
    }
    use std::os::unix::process::CommandExt;
    let mut other = Command::new("sleep").arg("1000").uid(65534).spawn().unwrap();
    let start = until("the other user's process", || proc::stat(other.id())).start;
    let named = ProcessName { rank: None, pid: other.id(), start };
    let (first, second) =
        (ask(&mut console, 1, named, TERM), ask(&mut console, 2, named, ProcessAction::Environment));
    let alive = other.try_wait().unwrap().is_none();
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(alive, "it was let alone");
    for outcome in [first, second] {
        let why = refused(outcome);
        assert!(why.contains("belongs to") && why.contains("this agent runs as root"), "{why}");
    }
}
