//! One process: its environment, signals to it, the processes of a host.

use super::*;
use rankdeck_proto::process::*;
use rankdeck_types::error::HintedError;

fn reach(process: ProcessName, node: u32, action: ProcessAction) -> Action {
    Action::Tell(Event::ReachRequested { node: NodeRank(node), process, action })
}

fn of_rank(rank: u32) -> ProcessName {
    ProcessName { rank: Some(Rank(rank)), pid: 4300 + rank, start: 0 }
}

const FOREIGN: u32 = 900;
const OWN: u32 = 901;

/// Two hosts with GPUs; two processes that are no ranks use them, one of them the user's.
fn shared() -> Model {
    let mut model = running(&[gpu("node-a", 2), gpu("node-b", 2)]);
    let sample = model.hosts[1].sample.as_mut().unwrap();
    sample.gpus[0].processes = vec![(4302, 60 << 30), (FOREIGN, 3 << 30), (OWN, 1 << 30)];
    let user = |pid: u32, user: &str, own: bool| GpuUser {
        pid,
        start: 7,
        own,
        user: user.into(),
        command: "python serve.py --port 80".into(),
        run: None,
    };
    sample.users = vec![user(FOREIGN, "eve", false), user(OWN, "me", true)];
    model
}

fn answered(
    model: &mut Model,
    node: u32,
    process: ProcessName,
    action: ProcessAction,
    outcome: ReachOutcome,
) {
    let asked = ReachQuestion::new(NodeRank(node), "node-b", process, action);
    let request = model.reaches.ask(asked);
    model.reaches.settle(|asked| (asked.request == request).then(|| outcome.clone()));
}

fn environment(pairs: &[(&str, Option<&str>)]) -> ReachOutcome {
    let each =
        pairs.iter().map(|(name, value)| Variable { name: (*name).into(), value: value.map(str::to_owned) });
    ReachOutcome::Environment(Environment { variables: each.collect(), left_out: 0 })
}

fn toasts(view: &ViewState) -> String {
    view.toasts.iter().map(|toast| toast.text.as_str()).collect::<Vec<_>>().join("; ")
}

#[test]
fn the_environment_of_a_rank_is_asked_for_by_a_key_or_a_word_and_shown_without_secrets() {
    let (mut model, mut view) = (four(), ViewState::new());
    assert_eq!(press(&model, &mut view, "jje"), [reach(of_rank(2), 1, ProcessAction::Environment)]);
    assert!(screen(&model, &mut view).contains("its agent is asked"), "{}", screen(&model, &mut view));
    let long = format!("/{}", "very/long/".repeat(20));
    let pairs = [("HF_TOKEN", None), ("PATH", Some(long.as_str())), ("RANK", Some("2"))];
    answered(&mut model, 1, of_rank(2), ProcessAction::Environment, environment(&pairs));
    let shown = screen(&model, &mut view);
    for text in
        ["environment of rank 2 (pid 4302) on node-b", "HF_TOKEN=(hidden)", "RANK=2", "PATH=/very/long/"]
    {
        assert!(shown.contains(text), "{text}\n{shown}");
    }
    assert!(press(&model, &mut view, "").is_empty() && ctrl(&model, &mut view, 's').is_empty());
    assert!(toasts(&view).contains("written nowhere"), "{}", toasts(&view));
    press(&model, &mut view, "\x1b");
    assert_eq!(press(&model, &mut view, ":env 2\n"), [reach(of_rank(2), 1, ProcessAction::Environment)]);
    view.overlays.clear();
    // A console that only shows may look; a record has none.
    view.steering.read_only = true;
    assert_eq!(press(&model, &mut view, "e").len(), 1);
    view.overlays.clear();
    view.steering.replay = true;
    assert!(press(&model, &mut view, "e").is_empty() && press(&model, &mut view, ":env 2\n").is_empty());
}

#[test]
fn an_environment_of_many_variables_scrolls_to_its_end() {
    let (mut model, mut view) = (four(), ViewState::new());
    press(&model, &mut view, "e");
    let names: Vec<String> = (0..900).map(|i| format!("V{i:04}")).collect();
    let pairs: Vec<(&str, Option<&str>)> = names.iter().map(|name| (name.as_str(), Some("x"))).collect();
    answered(&mut model, 0, of_rank(0), ProcessAction::Environment, environment(&pairs));
    assert!(screen(&model, &mut view).contains("V0000=x"));
    press(&model, &mut view, "G");
    let end = screen(&model, &mut view);
    assert!(end.contains("V0899=x") && !end.contains("more"), "{end}");
}

#[test]
fn a_key_that_comes_before_the_answer_counts_for_it() {
    let (mut model, mut view) = (four(), ViewState::new());
    press(&model, &mut view, "e");
    assert!(screen(&model, &mut view).contains("its agent is asked"));
    press(&model, &mut view, "G");
    assert!(screen(&model, &mut view).contains("its agent is asked"));
    let names: Vec<String> = (0..300).map(|i| format!("V{i:04}")).collect();
    let pairs: Vec<(&str, Option<&str>)> = names.iter().map(|name| (name.as_str(), Some("x"))).collect();
    answered(&mut model, 0, of_rank(0), ProcessAction::Environment, environment(&pairs));
    assert!(screen(&model, &mut view).contains("V0299=x"), "{}", screen(&model, &mut view));
    press(&model, &mut view, "k");
    assert!(!screen(&model, &mut view).contains("V0299=x"), "the first key back already moves");
}

#[test]
fn a_signal_is_asked_about_where_it_may_end_or_stop_a_rank() {
    let (model, mut view) = (four(), ViewState::new());
    let signal = |signal| ProcessAction::Signal { signal };
    assert_eq!(press(&model, &mut view, ":signal 1 CONT\n"), [reach(of_rank(1), 0, signal(18))]);
    assert!(view.overlays.is_empty(), "nothing can come of it");
    assert!(press(&model, &mut view, ":signal 1 usr1\n").is_empty(), "it is asked first");
    let asked = screen(&model, &mut view);
    for text in [
        "send SIGUSR1?",
        "rank 1 (pid 4301) on node-a",
        "ends a program that has no handler",
        "n no, go back",
    ] {
        assert!(asked.contains(text), "{text}\n{asked}");
    }
    assert!(press(&model, &mut view, "\n").is_empty(), "the default is to do nothing");
    press(&model, &mut view, ":signal 1 15\n");
    assert_eq!(press(&model, &mut view, "y"), [reach(of_rank(1), 0, signal(15))]);
    for (typed, why) in [
        ("signal 1 FOO", "`FOO` is no signal"),
        ("signal 1", "which?"),
        ("signal 77 TERM", "rank 77 has no process"),
        ("signal me TERM", "neither a rank nor pid:PID"),
        ("signal pid:5 TERM", "no process 5"),
    ] {
        view.toasts.clear();
        assert!(press(&model, &mut view, &format!(":{typed}\n")).is_empty());
        assert!(toasts(&view).contains(why), "{typed}: {}", toasts(&view));
    }
    view.steering.read_only = true;
    assert!(press(&model, &mut view, ":signal 1 CONT\n").is_empty());
    assert!(toasts(&view).contains("read-only"), "{}", toasts(&view));
}

#[test]
fn what_agents_answer_to_signals_is_said_once() {
    let (mut model, mut view) = (four(), ViewState::new());
    let term = ProcessAction::Signal { signal: 15 };
    answered(&mut model, 1, of_rank(2), term, ReachOutcome::Signalled { signal: 15 });
    let gone = HintedError::new("pid 4303 is another process by now: `sh`", "look again");
    answered(&mut model, 1, of_rank(3), term, ReachOutcome::Refused(gone));
    screen(&model, &mut view);
    assert!(toasts(&view).contains("rank 2 (pid 4302) was sent SIGTERM"), "{}", toasts(&view));
    assert!(
        toasts(&view).contains("SIGTERM to rank 3 (pid 4303): pid 4303 is another process by now"),
        "{}",
        toasts(&view)
    );
    view.toasts.clear();
    screen(&model, &mut view);
    assert!(view.toasts.is_empty(), "{}", toasts(&view));
}

#[test]
fn the_processes_of_a_host_are_listed_with_their_users_and_only_ones_own_are_reached() {
    let (model, mut view) = (shared(), ViewState::new());
    press(&model, &mut view, "5j");
    let page = screen(&model, &mut view);
    assert!(page.contains("pid 900 of eve, no rank: 3.0G"), "{page}");
    press(&model, &mut view, "p");
    let list = screen(&model, &mut view);
    for text in ["processes of node-b", "rank 2", "eve", "python serve.py", "e environment", "T SIGTERM"] {
        assert!(list.contains(text), "{text}\n{list}");
    }
    assert_eq!(
        press(&model, &mut view, "e"),
        [reach(of_rank(2), 1, ProcessAction::Environment)],
        "the first is marked"
    );
    press(&model, &mut view, "\x1b");
    assert!(press(&model, &mut view, "jjT").is_empty());
    assert!(toasts(&view).contains("belongs to eve"), "{}", toasts(&view));
    let own = ProcessName { rank: None, pid: OWN, start: 7 };
    press(&model, &mut view, "jK");
    assert!(
        screen(&model, &mut view).contains("pid 901 on node-b: python serve.py"),
        "{}",
        screen(&model, &mut view)
    );
    assert_eq!(press(&model, &mut view, "y"), [reach(own, 1, ProcessAction::Signal { signal: 9 })]);
    press(&model, &mut view, "s");
    assert!(matches!(view.overlay(), Some(Overlay::Palette(typing)) if typing.line == "signal pid:901 "));
    press(&model, &mut view, "WIN\t");
    view.overlays.clear();
    assert_eq!(
        press(&model, &mut view, ":env pid:901@node-b\n"),
        [reach(own, 1, ProcessAction::Environment)]
    );
}

/// As nvitop and htop show them: who has started whom, with the memory of each on GPUs.
#[test]
fn what_a_rank_has_started_is_a_tree_below_it() {
    let mut model = shared();
    let child = |pid: u32, parent: u32, name: &str, state: char| ChildSample {
        pid,
        parent,
        name: name.into(),
        state,
        cpu_ms: 12_000,
        ..ChildSample::default()
    };
    let of_rank_2 = &mut model.ranks[2].sample.as_mut().unwrap().signals.children;
    *of_rank_2 = vec![
        child(4310, 4302, "python3", 'S'),
        child(4311, 4310, "pt_data_worker", 'R'),
        child(4312, 4310, "ffmpeg", 'Z'),
        child(4313, 4302, "wandb-core", 'S'),
        child(4314, 1, "orphan", 'S'),
    ];
    model.hosts[1].sample.as_mut().unwrap().gpus[0].processes.push((4311, 2 << 30));
    let mut view = ViewState::new();
    press(&model, &mut view, "5jp");
    let list = screen(&model, &mut view);
    for row in [
        "├─ python3, sleeping, 12s of CPU time",
        "│  ├─ pt_data_worker, running",
        "│  └─ ffmpeg, zombie",
        "├─ wandb-core",
        "└─ orphan",
    ] {
        assert!(list.contains(row), "{row}\n{list}");
    }
    let worker = list.lines().find(|line| line.contains("pt_data_worker")).unwrap();
    assert!(worker.contains(" 4311 ") && worker.contains("2.0G"), "{worker}");
    // Keys go from one process that can be reached to the next.
    press(&model, &mut view, "j");
    let marked = screen(&model, &mut view);
    assert!(marked.lines().any(|line| line.contains("▸") && line.contains("rank 3")), "{marked}");
}

/// What a host says is not to be trusted: circles and doubles end.
#[test]
fn processes_that_are_no_tree_end() {
    let mut model = shared();
    let children = (0..64).map(|at| ChildSample {
        pid: 5000 + at / 2,
        parent: if at < 2 { 4302 } else { 5000 + at / 2 - 1 },
        name: "double".into(),
        ..ChildSample::default()
    });
    let circle = [(6000, 6001), (6001, 6000), (6002, 6002)].map(|(pid, parent)| ChildSample {
        pid,
        parent,
        name: "circle".into(),
        ..ChildSample::default()
    });
    model.ranks[2].sample.as_mut().unwrap().signals.children = children.chain(circle).collect();
    let mut view = ViewState::new();
    press(&model, &mut view, "5jp");
    assert!(screen(&model, &mut view).contains("double"));
}
