//! Keys that reach a rank or its host: its stack, SIGCONT, a shell; and who waits for whom.

use super::*;
use rankdeck_core::card::Advice;
use rankdeck_core::card::Side;
use serde_json::json;

#[test]
fn the_stack_of_a_healthy_rank_is_asked_for_by_a_key_and_shown_with_its_age() {
    let (mut model, mut view) = (four(), ViewState::new());
    let actions = press(&model, &mut view, "jjt");
    assert_eq!(actions, [Action::Tell(Event::LookRequested { rank: Rank(2) })]);
    assert!(matches!(view.overlay(), Some(Overlay::Inspect { rank: Rank(2), .. })));
    let side = Side {
        stack: vec!["env.step  envs/wrap.py:88".into(), "collect  train.py:14".into()],
        blocked_on: "read on a pipe from pid 7 (worker)".into(),
        ..Side::default()
    };
    model.ranks[2].look = Some(Box::new(Look { at: ago(2000), side, notes: vec!["no kernel stack".into()] }));
    let shown = draw(&model, &mut view, &Theme::dark(), Rect { width: 120, height: 40, ..AREA });
    for text in ["seen 2.0s ago, blocked on read on a pipe", "env.step  envs/wrap.py:88", "no kernel stack"] {
        assert!(shown.contains(text), "{text}\n{shown}");
    }
    // Another look from the card itself.
    let again = press(&model, &mut view, "t");
    assert_eq!(again, [Action::Tell(Event::LookRequested { rank: Rank(2) })]);
    let (over, mut view) = (over(), ViewState::new());
    assert!(press(&over, &mut view, "1t").is_empty());
    assert!(view.toasts.last().unwrap().text.contains("no process"), "{:?}", view.toasts);
}

#[test]
fn advice_to_continue_a_rank_is_a_key_on_its_card() {
    let (mut model, mut view) = (four(), ViewState::new());
    assert!(press(&model, &mut view, "c").is_empty());
    assert!(view.toasts.last().unwrap().text.contains("no signal has stopped"), "{:?}", view.toasts);
    model.ranks[3].sample.as_mut().unwrap().state = 'T';
    let mut stopped = verdict(3, "node-b", VerdictKind::Frozen, "stopped by a signal");
    stopped.card.actions.push(rankdeck_core::card::Advice {
        text: "continue it, on node-b".into(),
        command: "kill -CONT 4303".into(),
    });
    model.verdicts = vec![stopped];
    assert!(screen(&model, &mut view).contains("d c: continue it"), "{}", screen(&model, &mut view));
    press(&model, &mut view, "d");
    assert!(screen(&model, &mut view).contains("c: continue it, on node-b"), "{}", screen(&model, &mut view));
    let actions = press(&model, &mut view, "c");
    assert_eq!(actions, [Action::Tell(Event::ContinueRequested { rank: Rank(3) })]);
    view.steering.read_only = true;
    assert!(press(&model, &mut view, "c").is_empty(), "a console that only shows continues nothing");
}

#[test]
fn a_shell_is_opened_on_the_host_of_what_is_selected() {
    let (model, mut view) = (four(), ViewState::new());
    assert_eq!(press(&model, &mut view, "jjs"), [Action::Shell(NodeRank(1))]);
    assert_eq!(press(&model, &mut view, "5s"), [Action::Shell(NodeRank(0))]);
    assert_eq!(press(&model, &mut view, "js"), [Action::Shell(NodeRank(1))]);
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
        let mut track = serde_json::to_value(&rank.track).unwrap();
        track["iterations"] = iterations.into();
        rank.track = serde_json::from_value(track).unwrap();
    }
    model
}

#[test]
fn who_waits_for_whom_is_a_picture_and_a_sentence() {
    let (model, mut view) = (uneven(), ViewState::new());
    press(&model, &mut view, "w");
    let shown = screen(&model, &mut view);
    assert!(shown.contains("ranks wait 33 % of the time for rank 2, which waits 2 %"), "{shown}");
    let strip = shown.lines().find(|line| line.contains('▃')).unwrap_or_else(|| panic!("{shown}"));
    assert!(strip.trim_start().starts_with("▃▃ ▁▃"), "rank 2 is the low one: {strip}");
    press(&model, &mut view, "w");
    assert!(!screen(&model, &mut view).contains("ranks wait 33 %"));
    press(&model, &mut view, "\n");
    let card = draw(&model, &mut view, &Theme::dark(), Rect { width: 120, height: 40, ..AREA });
    assert!(card.contains("iterations ") && card.contains("waits ") && card.contains(" 33%"), "{card}");
    let (quiet, mut view) = (four(), ViewState::new());
    press(&quiet, &mut view, "w");
    assert!(view.toasts.last().unwrap().text.contains("how long they wait"), "{:?}", view.toasts);
}

#[test]
fn the_card_of_a_lost_host_reaches_that_host_and_advice_is_told_by_keys() {
    let mut model = four();
    let mut said = verdict(0, "node-b", VerdictKind::Lost, "nothing heard from node-b for 20 s");
    said.rank = None;
    let connect = Advice { text: "connect to it".into(), command: "ssh node-b".into() };
    said.card.actions.push(connect);
    model.verdicts.push(said);
    let mut view = ViewState::new();
    press(&model, &mut view, "d");
    assert!(screen(&model, &mut view).contains("s: connect to it"));
    assert_eq!(press(&model, &mut view, "s"), [Action::Shell(NodeRank(1))]);
    // Also from the page of hosts, where another one is selected.
    let mut view = ViewState::new();
    press(&model, &mut view, "5d");
    assert_eq!(press(&model, &mut view, "s"), [Action::Shell(NodeRank(1))]);
    let behind = behind_closely();
    let mut view = ViewState::new();
    press(&behind, &mut view, "jjj\n");
    let card = draw(&behind, &mut view, &Theme::dark(), Rect { width: 120, height: 50, ..AREA });
    assert!(card.contains("l: look at its log") && !card.contains("rankdeck logs"), "{card}");
}
