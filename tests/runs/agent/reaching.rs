//! Requests of a console for one process: its environment without secrets, a signal to it and to nothing else.

use super::bed::{Bed, Console, answer, until};
use rankdeck_agent::proc;
use rankdeck_proto::message::*;
use rankdeck_proto::process::*;
use rankdeck_types::ids::Rank;
use std::process::{Child, Command, Stdio};

fn ask(console: &mut Console, request: u64, process: ProcessName, action: ProcessAction) -> ReachOutcome {
    console.send(&ConsoleMessage::Reach { request, process, action });
    let outcome = |console: &Console| {
        console.others.iter().find_map(|message| match message {
            AgentMessage::Reached { request: of, outcome } if *of == request => Some((**outcome).clone()),
            _ => None,
        })
    };
    console.wait("an answer", |console| outcome(console).is_some());
    outcome(console).unwrap()
}

fn of_rank(rank: u32, pid: u32) -> ProcessName {
    ProcessName { rank: Some(Rank(rank)), pid, start: 0 }
}

/// The error of a refusal, with `PID` for these pids.
fn refused(outcome: ReachOutcome, pids: &[u32]) -> String {
    let ReachOutcome::Refused(refusal) = outcome else { panic!("not refused: {outcome:?}") };
    let word = |word: &str| {
        let is_pid = pids.iter().any(|pid| word.trim_end_matches(',') == pid.to_string());
        if is_pid { "PID".to_owned() + if word.ends_with(',') { "," } else { "" } } else { word.to_owned() }
    };
    refusal.error.split(' ').map(word).collect::<Vec<_>>().join(" ") + "\n"
}

const TERM: ProcessAction = ProcessAction::Signal { signal: libc::SIGTERM };

fn stranger() -> Child {
    Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap()
}

#[test]
fn reach_1_environment_is_redacted_and_not_persisted() {
    let bed = Bed::new("environment");
    let agent = bed.start();
    let mut console = Console::attach(&agent, 0);
    let mut spec = bed.spec(0, 1, &["sh", "-c", "echo up; exec sleep 1000"]);
    spec.plan.experiment.launch.pass_env = vec!["GIVEN".into()];
    spec.plan.hosts[0].host.env.insert("SEEN".into(), "plainly visible".into());
    spec.plan.hosts[0].host.env.insert("WANDB_API_KEY".into(), "hush hush".into());
    let private = LaunchSecrets {
        variables: toml::from_str("GIVEN = \"also hush hush\"").unwrap(),
        ..LaunchSecrets::default()
    };
    console.send(&ConsoleMessage::Launch { spec: Box::new(spec), private, after_end: false });
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
    // Secrets of a rank are also hidden in a request for the bare process.
    let start = proc::stat(pid).unwrap().start.to_string();
    let bare: ReachOutcome =
        answer(&bed.agent(&["reach", "--process", &format!("{pid}-{start}")]), "RANKDECK-REACHED");
    let ReachOutcome::Environment(bare) = bare else { panic!("{bare:?}") };
    assert!(bare.variables.iter().any(|variable| variable.name == "GIVEN" && variable.value.is_none()));
    let other_pid = ask(&mut console, 2, of_rank(0, pid + 1), ProcessAction::Environment);
    let other_rank = ask(&mut console, 3, of_rank(7, pid), ProcessAction::Environment);
    let pids = [pid, pid + 1];
    insta::assert_snapshot!(refused(other_pid, &pids) + &refused(other_rank, &pids));
    for file in ["records.jsonl", "agent.log", "manifest.json"] {
        let text = std::fs::read_to_string(bed.node_dir(0).join(file)).unwrap_or_default();
        assert!(!text.contains("also hush hush"), "{file}");
        assert!(file == "records.jsonl" || !text.contains("plainly visible"), "{file}");
    }
}

#[test]
fn reach_3_signal_reaches_the_exact_process() {
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
    let other_rank = ask(&mut console, 2, of_rank(1, pid), TERM);
    let own = [pid, console.pid(1)];
    let mut refusals = refused(other_rank, &own);

    // Another process of the same user; then the agent and its guard.
    let mut other = stranger();
    let start = proc::stat(other.id()).unwrap().start;
    let named = ProcessName { rank: None, pid: other.id(), start };
    let later = ProcessName { start: start + 1, ..named };
    refusals += &refused(ask(&mut console, 3, later, TERM), &[other.id()]);
    assert!(other.try_wait().unwrap().is_none());
    assert_eq!(ask(&mut console, 4, named, TERM), ReachOutcome::Signalled { signal: libc::SIGTERM });
    assert!(!other.wait().unwrap().success());
    refusals += &refused(ask(&mut console, 5, named, TERM), &[other.id()]);
    for serving in bed.watchers() {
        let own = ProcessName { rank: None, pid: serving.pid, start: serving.start };
        let refusal = refused(ask(&mut console, 6 + u64::from(serving.pid), own, TERM), &[serving.pid]);
        assert!(refusal.contains("rankdeck"), "{refusal}");
    }
    insta::assert_snapshot!(refusals);

    assert_eq!(
        ask(&mut console, 9, of_rank(0, pid), TERM),
        ReachOutcome::Signalled { signal: libc::SIGTERM }
    );
    assert_eq!(console.exit(0).0, Exit::Signal { signal: libc::SIGTERM, out_of_memory: false });
    let outcome: Vec<(Option<Rank>, i32)> = console
        .records
        .iter()
        .filter_map(|record| match &record.event {
            RecordEvent::Signalled { rank, signal, .. } => Some((*rank, *signal)),
            _ => None,
        })
        .collect();
    assert_eq!(
        outcome,
        [(Some(Rank(0)), libc::SIGUSR1), (None, libc::SIGTERM), (Some(Rank(0)), libc::SIGTERM)]
    );
    let place = |expected: fn(&RecordEvent) -> bool| {
        console.records.iter().rposition(|record| expected(&record.event))
    };
    let signal = place(|event| matches!(event, RecordEvent::Signalled { rank: Some(_), .. }));
    let end = place(|event| matches!(event, RecordEvent::RankExited { rank: Rank(0), .. }));
    assert!(signal < end, "the signal is recorded before the end");
}

#[test]
fn reach_3_process_of_another_user_is_refused() {
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
    assert!(alive, "it still runs");
    for outcome in [first, second] {
        let refusal = refused(outcome, &[]);
        assert!(refusal.contains(" root"), "{refusal}");
    }
}
