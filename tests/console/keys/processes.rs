//! One rank, process or host: stack, SIGCONT, signals, environment, processes, a shell; and wait shares.

use super::*;
use rankdeck_core::card::Advice;
use rankdeck_core::card::RankEvidence;
use rankdeck_proto::process::*;
use rankdeck_types::error::HintedError;
use serde_json::json;

#[test]
fn stack_is_requested_by_a_key_and_shown_with_its_age() {
    let (mut model, mut view) = (four(), ViewState::new());
    let actions = press(&model, &mut view, "jjt");
    assert_eq!(actions, [ScreenAction::Send(Event::InspectRequested { rank: Rank(2) })]);
    assert!(matches!(view.overlay(), Some(Overlay::Inspect(Inspector { rank: Rank(2), .. }))));
    let side = RankEvidence {
        stack: vec!["env.step  envs/wrap.py:88".into(), "collect  train.py:14".into()],
        blocked_on: "read on a pipe from pid 7 (worker)".into(),
        ..RankEvidence::default()
    };
    model.ranks[2].inspection =
        Some(Box::new(RankInspection { at: ago(2000), side, notes: vec!["no kernel stack".into()] }));
    let shown = draw(&model, &mut view, &Theme::dark(), Rect { width: 120, height: 40, ..AREA });
    for text in ["2.0s ago", "read on a pipe", "env.step  envs/wrap.py:88", "no kernel stack"] {
        assert!(shown.contains(text), "{text}\n{shown}");
    }
    // Another inspection from the overlay itself.
    let again = press(&model, &mut view, "t");
    assert_eq!(again, [ScreenAction::Send(Event::InspectRequested { rank: Rank(2) })]);
    let (over, mut view) = (over(), ViewState::new());
    assert!(press(&over, &mut view, "1t").is_empty());
    insta::assert_snapshot!(toasts(&view));
}

#[test]
fn advice_to_continue_a_rank_has_a_key() {
    let (mut model, mut view) = (four(), ViewState::new());
    assert!(press(&model, &mut view, "c").is_empty());
    insta::assert_snapshot!(toasts(&view));
    model.ranks[3].sample.as_mut().unwrap().state = 'T';
    let mut stopped = verdict(3, "node-b", VerdictKind::Frozen, "suspended by a signal");
    stopped.card.actions.push(rankdeck_core::card::Advice {
        text: "continue it, on node-b".into(),
        command: "kill -CONT 4303".into(),
    });
    model.verdicts = vec![stopped];
    assert!(screen(&model, &mut view).contains("d c: "), "{}", screen(&model, &mut view));
    press(&model, &mut view, "d");
    assert!(screen(&model, &mut view).contains("c: "), "{}", screen(&model, &mut view));
    let actions = press(&model, &mut view, "c");
    assert_eq!(actions, [ScreenAction::Send(Event::ContinueRequested { rank: Rank(3) })]);
    view.steering.read_only = true;
    assert!(press(&model, &mut view, "c").is_empty(), "not in a read-only console");
}

#[test]
fn shell_opens_on_the_host_of_the_selection() {
    let (model, mut view) = (four(), ViewState::new());
    assert_eq!(press(&model, &mut view, "jjs"), [ScreenAction::Shell(NodeRank(1))]);
    assert_eq!(press(&model, &mut view, "5s"), [ScreenAction::Shell(NodeRank(0))]);
    assert_eq!(press(&model, &mut view, "js"), [ScreenAction::Shell(NodeRank(1))]);
    view.steering.read_only = true;
    assert!(press(&model, &mut view, "s").is_empty());
}

/// The same run, in which rank 2 is slow: the others wait for a third of their time.
fn uneven() -> Model {
    let mut model = four();
    for rank in &mut model.ranks {
        let share = if rank.rank == Rank(2) { 20 } else { 330 };
        let iterations: Vec<_> = (0..12u64)
            .map(|i| json!({ "train_iter": i, "seq": i, "chain": 0, "at_ms": i * 1000, "wait_us": i * share * 1000 }))
            .collect();
        let mut track = serde_json::to_value(&rank.watch_history).unwrap();
        track["iterations"] = iterations.into();
        rank.watch_history = serde_json::from_value(track).unwrap();
    }
    model
}

#[test]
fn wait_shares_are_drawn_and_named() {
    let (model, mut view) = (uneven(), ViewState::new());
    press(&model, &mut view, "w");
    let shown = screen(&model, &mut view);
    let names =
        |shown: &str| shown.lines().find(|row| row.contains("2%") && row.contains("33%")).map(str::to_owned);
    let mut transcript = Transcript::default();
    transcript.add("w", names(&shown).unwrap_or_else(|| panic!("{shown}")).trim());
    let strip = shown.lines().find(|line| line.contains('▃')).unwrap_or_else(|| panic!("{shown}"));
    assert!(strip.trim_start().starts_with("▃▃ ▁▃"), "rank 2 is low: {strip}");
    press(&model, &mut view, "w");
    assert_eq!(names(&screen(&model, &mut view)), None);
    press(&model, &mut view, "\n");
    let card = draw(&model, &mut view, &Theme::dark(), Rect { width: 120, height: 40, ..AREA });
    let row = card.lines().find(|row| row.contains(" 33%")).unwrap_or_else(|| panic!("{card}"));
    transcript.add("details of rank 0", row.trim());
    let (quiet, mut view) = (four(), ViewState::new());
    press(&quiet, &mut view, "w");
    transcript.add("w without wait times", &toasts(&view));
    insta::assert_snapshot!(transcript.0);
}

#[test]
fn lost_host_evidence_opens_a_shell_there() {
    let mut model = four();
    let mut lost = verdict(0, "node-b", VerdictKind::Lost, "no message from node-b for 20 s");
    lost.rank = None;
    let connect = Advice { text: "connect to it".into(), command: "ssh node-b".into() };
    lost.card.actions.push(connect);
    model.verdicts.push(lost);
    let mut view = ViewState::new();
    press(&model, &mut view, "d");
    assert!(screen(&model, &mut view).contains("s: "));
    assert_eq!(press(&model, &mut view, "s"), [ScreenAction::Shell(NodeRank(1))]);
    // Also from the page of hosts, where another one is selected.
    let mut view = ViewState::new();
    press(&model, &mut view, "5d");
    assert_eq!(press(&model, &mut view, "s"), [ScreenAction::Shell(NodeRank(1))]);
    let behind = behind_closely();
    let mut view = ViewState::new();
    press(&behind, &mut view, "jjj\n");
    let card = draw(&behind, &mut view, &Theme::dark(), Rect { width: 120, height: 50, ..AREA });
    assert!(card.contains("l: ") && !card.contains("rankdeck logs"), "{card}");
}

fn reach(process: ProcessName, node: u32, action: ProcessAction) -> ScreenAction {
    ScreenAction::Send(Event::ProcessActionRequested { node: NodeRank(node), process, action })
}

fn of_rank(rank: u32) -> ProcessName {
    ProcessName { rank: Some(Rank(rank)), pid: 4300 + rank, start: 0 }
}

const FOREIGN: u32 = 900;
const OWN: u32 = 901;

/// Two hosts with GPUs, used by two processes that are not ranks; one of these is the user's.
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

fn settle(model: &mut Model, node: u32, process: ProcessName, action: ProcessAction, outcome: ReachOutcome) {
    let asked = ProcessQuery::new(NodeRank(node), "node-b", process, action);
    let request = model.process_queries.add(asked);
    model.process_queries.settle(|asked| (asked.request == request).then(|| outcome.clone()));
}

fn environment(pairs: &[(&str, Option<&str>)]) -> ReachOutcome {
    let each =
        pairs.iter().map(|(name, value)| Variable { name: (*name).into(), value: value.map(str::to_owned) });
    ReachOutcome::Environment(Environment { variables: each.collect(), left_out: 0 })
}

#[test]
fn environment_is_requested_and_shown_without_secrets() {
    let (mut model, mut view) = (four(), ViewState::new());
    let mut transcript = Transcript::default();
    assert_eq!(press(&model, &mut view, "jje"), [reach(of_rank(2), 1, ProcessAction::Environment)]);
    let waiting = screen(&model, &mut view);
    transcript.add("e", &waiting);
    let long = format!("/{}", "very/long/".repeat(20));
    let pairs = [("HF_TOKEN", None), ("PATH", Some(long.as_str())), ("RANK", Some("2"))];
    settle(&mut model, 1, of_rank(2), ProcessAction::Environment, environment(&pairs));
    let shown = screen(&model, &mut view);
    for text in ["rank 2 (pid 4302) on node-b", "HF_TOKEN=(hidden)", "RANK=2", "PATH=/very/long/"] {
        assert!(shown.contains(text), "{text}\n{shown}");
    }
    transcript.add("its reply", &shown);
    assert!(press(&model, &mut view, "").is_empty() && ctrl(&model, &mut view, 's').is_empty());
    transcript.add("ctrl-s", &toasts(&view));
    press(&model, &mut view, "\x1b");
    assert_eq!(press(&model, &mut view, ":env 2\n"), [reach(of_rank(2), 1, ProcessAction::Environment)]);
    view.overlays.clear();
    // A read-only console may read it; a recording has none.
    view.steering.read_only = true;
    assert_eq!(press(&model, &mut view, "e").len(), 1);
    view.overlays.clear();
    view.steering.replay = true;
    assert!(press(&model, &mut view, "e").is_empty() && press(&model, &mut view, ":env 2\n").is_empty());
    insta::assert_snapshot!(transcript.0);
}

#[test]
fn long_environment_scrolls_to_its_end() {
    let (mut model, mut view) = (four(), ViewState::new());
    press(&model, &mut view, "e");
    let names: Vec<String> = (0..900).map(|i| format!("V{i:04}")).collect();
    let pairs: Vec<(&str, Option<&str>)> = names.iter().map(|name| (name.as_str(), Some("x"))).collect();
    settle(&mut model, 0, of_rank(0), ProcessAction::Environment, environment(&pairs));
    assert!(screen(&model, &mut view).contains("V0000=x"));
    press(&model, &mut view, "G");
    let end = screen(&model, &mut view);
    assert!(end.contains("V0899=x") && !end.contains('↓'), "{end}");
}

#[test]
fn key_before_the_reply_acts_on_the_reply() {
    let (mut model, mut view) = (four(), ViewState::new());
    press(&model, &mut view, "e");
    let waiting = screen(&model, &mut view);
    press(&model, &mut view, "G");
    assert_eq!(screen(&model, &mut view), waiting);
    let names: Vec<String> = (0..300).map(|i| format!("V{i:04}")).collect();
    let pairs: Vec<(&str, Option<&str>)> = names.iter().map(|name| (name.as_str(), Some("x"))).collect();
    settle(&mut model, 0, of_rank(0), ProcessAction::Environment, environment(&pairs));
    assert!(screen(&model, &mut view).contains("V0299=x"), "{}", screen(&model, &mut view));
    press(&model, &mut view, "k");
    assert!(!screen(&model, &mut view).contains("V0299=x"), "the first key back moves");
}

#[test]
fn harmful_signal_needs_confirmation() {
    let (model, mut view) = (four(), ViewState::new());
    let signal = |signal| ProcessAction::Signal { signal };
    assert_eq!(press(&model, &mut view, ":signal 1 CONT\n"), [reach(of_rank(1), 0, signal(18))]);
    assert!(view.overlays.is_empty(), "it is harmless");
    assert!(press(&model, &mut view, ":signal 1 usr1\n").is_empty(), "it is confirmed first");
    let asked = question(&view);
    for text in ["SIGUSR1", "rank 1 (pid 4301) on node-a"] {
        assert!(asked.contains(text), "{text}\n{asked}");
    }
    let mut transcript = Transcript::default();
    transcript.add("signal 1 usr1", &asked);
    assert!(press(&model, &mut view, "\n").is_empty(), "the default is to do nothing");
    press(&model, &mut view, ":signal 1 15\n");
    assert_eq!(press(&model, &mut view, "y"), [reach(of_rank(1), 0, signal(15))]);
    for typed in ["signal 1 FOO", "signal 1", "signal 77 TERM", "signal me TERM", "signal pid:5 TERM"] {
        view.toasts.clear();
        assert!(press(&model, &mut view, &format!(":{typed}\n")).is_empty());
        transcript.add(typed, &toasts(&view));
    }
    view.steering.read_only = true;
    assert!(press(&model, &mut view, ":signal 1 CONT\n").is_empty());
    transcript.add("in a read-only console", &toasts(&view));
    insta::assert_snapshot!(transcript.0);
}

#[test]
fn reply_to_a_signal_is_shown_once() {
    let (mut model, mut view) = (four(), ViewState::new());
    let term = ProcessAction::Signal { signal: 15 };
    settle(&mut model, 1, of_rank(2), term, ReachOutcome::Signalled { signal: 15 });
    let gone = HintedError::new("pid 4303 is another process by now: `sh`", "inspect again");
    settle(&mut model, 1, of_rank(3), term, ReachOutcome::Refused(gone));
    screen(&model, &mut view);
    let shown = toasts(&view);
    assert!(shown.contains("rank 2 (pid 4302)") && shown.contains("rank 3 (pid 4303)"), "{shown}");
    insta::assert_snapshot!(shown);
    view.toasts.clear();
    screen(&model, &mut view);
    assert!(view.toasts.is_empty(), "{}", toasts(&view));
}

#[test]
fn host_processes_are_listed_and_only_own_are_signaled() {
    let (model, mut view) = (shared(), ViewState::new());
    press(&model, &mut view, "5j");
    let page = screen(&model, &mut view);
    assert!(page.contains("900 of eve: 3.0G"), "{page}");
    press(&model, &mut view, "p");
    let list = screen(&model, &mut view);
    for text in ["node-b", "rank 2", "eve", "python serve.py", "SIGTERM"] {
        assert!(list.contains(text), "{text}\n{list}");
    }
    assert_eq!(
        press(&model, &mut view, "e"),
        [reach(of_rank(2), 1, ProcessAction::Environment)],
        "the first is marked"
    );
    press(&model, &mut view, "\x1b");
    assert!(press(&model, &mut view, "jjT").is_empty());
    assert!(toasts(&view).contains(" eve"), "{}", toasts(&view));
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

/// As in nvitop and htop: parents and children, with the GPU memory of each.
#[test]
fn child_processes_are_a_tree_below_their_rank() {
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
    for row in ["├─ python3, ", "│  ├─ pt_data_worker, ", "│  └─ ffmpeg, ", "├─ wandb-core", "└─ orphan"]
    {
        assert!(list.contains(row), "{row}\n{list}");
    }
    insta::assert_snapshot!(list.lines().map(|row| format!("{}\n", row.trim_end())).collect::<String>());
    let worker = list.lines().find(|line| line.contains("pt_data_worker")).unwrap();
    assert!(worker.contains(" 4311 ") && worker.contains("2.0G"), "{worker}");
    // Keys go from one process that can be reached to the next.
    press(&model, &mut view, "j");
    let marked = screen(&model, &mut view);
    assert!(marked.lines().any(|line| line.contains("▸") && line.contains("rank 3")), "{marked}");
}

/// Reports of a host are not trusted: cycles and duplicates end.
#[test]
fn cyclic_process_parents_are_drawn_once() {
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
