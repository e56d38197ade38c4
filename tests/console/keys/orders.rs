//! Orders to the run and answers to its prompts: confirmed first, harmless by default.

use super::*;

#[test]
fn stop_kill_and_restart_need_confirmation() {
    let (model, mut shown) = (four(), Transcript::default());
    for (key, yes, action) in [
        ("x", "y", ScreenAction::stop(StopMode::Clean)),
        ("X", "y", ScreenAction::stop(StopMode::Kill)),
        ("r", "l", ScreenAction::Send(Event::restart(Some("latest".into())))),
        ("r", "b", ScreenAction::Send(Event::restart(Some("checkpoints/best-300.ckpt".into())))),
        ("r", "s", ScreenAction::Send(Event::restart(None))),
    ] {
        let mut view = ViewState::new();
        assert_eq!(press(&model, &mut view, key), []);
        let asked = question(&view);
        assert!(asked.contains("(node-a, node-b)"), "{asked}");
        shown.add(key, &asked);
        for refusal in ["\n", "\x1b", "n"] {
            let mut view = view.clone();
            assert_eq!(press(&model, &mut view, refusal), [], "{key} then {refusal:?}");
            assert!(view.overlays.is_empty());
        }
        assert_eq!(press(&model, &mut view, yes), [action]);
        assert!(view.overlays.is_empty());
    }
    let mut view = ViewState::new();
    press(&model, &mut view, "x");
    tap(&model, &mut view, KeyCode::Right, KeyModifiers::NONE);
    assert_eq!(press(&model, &mut view, "\n"), [ScreenAction::stop(StopMode::Clean)]);
    insta::assert_snapshot!(shown.0);
}

/// A stop that cannot end as it should is described before it is confirmed.
#[test]
fn stop_question_names_silent_hosts_and_stuck_ranks() {
    let asked = |model: &Model| {
        let mut view = ViewState::new();
        press(model, &mut view, "x");
        question(&view)
    };
    let mut shown = Transcript::default();
    shown.add("all hosts are connected", &asked(&four()));
    let mut model = four();
    model.hosts[1].link = LinkState::Connecting { attempt: 3 };
    let silent = asked(&model);
    assert!(silent.contains("node-b "), "{silent}");
    shown.add("node-b is not connected", &silent);
    let mut stuck = four();
    stuck.verdicts.push(verdict(2, "node-b", VerdictKind::Frozen, "suspended by a signal"));
    let stuck = asked(&stuck);
    assert!(stuck.contains("Rank 2 "), "{stuck}");
    shown.add("rank 2 is stuck", &stuck);
    insta::assert_snapshot!(shown.0);
}

#[test]
fn quit_asks_only_while_ranks_run() {
    let model = four();
    let mut view = ViewState::new();
    assert_eq!(press(&model, &mut view, "q"), []);
    assert_eq!(press(&model, &mut view.clone(), "d"), [ScreenAction::leave()]);
    assert_eq!(press(&model, &mut view.clone(), "s"), [ScreenAction::stop(StopMode::Clean)]);
    assert_eq!(press(&model, &mut view.clone(), "\n"), []);
    assert_eq!(press(&model, &mut view.clone(), "c"), []);
    // The run ends while the question is open: the question closes.
    rankdeck_tui::layout(&over(), &mut view, AREA);
    assert!(view.overlays.is_empty());
    assert_eq!(press(&over(), &mut view, "q"), [], "it was meant for the question");
    view.closed = None;
    assert_eq!(press(&over(), &mut view, "q"), [ScreenAction::leave()]);
    assert_eq!(press(&connecting(&[cpu("a", 1)]), &mut ViewState::new(), "q"), [ScreenAction::leave()]);
}

#[test]
fn host_change_is_ordered_only_if_something_changes() {
    let model = pickable();
    let mut view = ViewState::new();
    assert_eq!(press(&model, &mut view, "H"), []);
    assert_eq!(press(&model, &mut view, "\n"), [], "nothing was changed");
    assert!(matches!(view.overlay(), Some(Overlay::Hosts { .. })) && !view.toasts.is_empty());
    // There and back again is not a change either; without any host there is no plan.
    assert_eq!(press(&model, &mut view, "j  \n"), []);
    assert_eq!(press(&model, &mut view.clone(), " k \n"), []);
    let from = Some("latest".to_string());
    assert_eq!(press(&model, &mut view.clone(), " \n"), [], "it is confirmed first");
    assert_eq!(press(&model, &mut view.clone(), " \n\n"), [], "and the default answer is 'no'");
    assert_eq!(
        press(&model, &mut view.clone(), " \ny"),
        [ScreenAction::Send(Event::RestartRequested {
            from: from.clone(),
            exclude: vec!["node-b".into()],
            add: vec![],
            experiment: None,
            shown: None,
        })]
    );
    view.steering.spares = vec![spare("node-c")];
    let with = press(&model, &mut view.clone(), "G \ny");
    assert_eq!(
        with,
        [ScreenAction::Send(Event::RestartRequested {
            from,
            exclude: vec![],
            add: vec![spare("node-c")],
            experiment: None,
            shown: None
        })]
    );
    for leave in ["\x1b", "q", "H"] {
        let mut view = view.clone();
        assert_eq!(press(&model, &mut view, leave), []);
        assert!(view.overlays.is_empty());
    }
}

#[test]
fn detach_needs_no_confirmation() {
    assert_eq!(press(&four(), &mut ViewState::new(), "D"), [ScreenAction::leave()]);
    assert_eq!(press(&over(), &mut ViewState::new(), "D"), []);
}

#[test]
fn repeated_ctrl_c_asks_stops_then_leaves() {
    let model = four();
    let mut view = ViewState::new();
    assert_eq!(ctrl(&model, &mut view, 'c'), []);
    assert!(matches!(view.overlay(), Some(Overlay::Confirm(_))));
    assert_eq!(ctrl(&model, &mut view, 'c'), [ScreenAction::stop(StopMode::Clean)]);
    assert_eq!(ctrl(&model, &mut view, 'c'), [ScreenAction::leave()]);
    // Another key resets it.
    let mut view = ViewState::new();
    ctrl(&model, &mut view, 'c');
    press(&model, &mut view, "\x1b");
    assert_eq!(ctrl(&model, &mut view, 'c'), []);
    // It works inside prompts too.
    let mut view = ViewState::new();
    press(&four(), &mut view, "/");
    assert_eq!(ctrl(&model, &mut view, 'c'), []);
    assert!(matches!(view.overlay(), Some(Overlay::Confirm(_))));
}

#[test]
fn ui_6_stop_and_quit_work_on_a_small_or_frozen_screen() {
    let model = four();
    let small = Rect { width: 20, height: 5, ..AREA };
    let mut view = ViewState::new();
    rankdeck_tui::layout(&model, &mut view, small);
    let tap =
        |view: &mut ViewState, c| rankdeck_tui::on_key(&model, view, KeyEvent::from(KeyCode::Char(c)), NOW);
    assert_eq!(tap(&mut view, 'x'), []);
    assert!(draw(&model, &mut view, &Theme::dark(), small).contains("y yes"));
    assert_eq!(tap(&mut view, 'y'), [ScreenAction::stop(StopMode::Clean)]);
    tap(&mut view, 'f');
    assert!(view.moment.frozen.is_some());
    tap(&mut view, 'x');
    assert_eq!(tap(&mut view, 'y'), [ScreenAction::stop(StopMode::Clean)]);
    tap(&mut view, 'q');
    assert_eq!(tap(&mut view, 'd'), [ScreenAction::leave()]);
}

#[test]
fn disabled_key_shows_its_reason() {
    let model = over();
    let mut view = ViewState::new();
    assert_eq!(press(&model, &mut view, "x"), []);
    assert!(view.overlays.is_empty());
    let reason = toasts(&view);
    assert!(screen(&model, &mut view).contains(reason.trim()), "{reason}");
    insta::assert_snapshot!(reason);
    assert_eq!(view.poll_timeout(), Some(NOW.plus(4000)));
    assert!(!view.expire(NOW.plus(3999)) && view.expire(NOW.plus(4000)));
    assert_eq!(view.poll_timeout(), None);
}

#[test]
fn host_key_is_rejected_by_default() {
    let model = host_key();
    let node = NodeRank(1);
    let no = ScreenAction::Send(Event::PromptAnswered { node, answer: None });
    let yes = ScreenAction::Send(Event::PromptAnswered { node, answer: Some("yes".into()) });
    for (keys, action) in [("\n", &no), ("\x1b", &no), ("n", &no), ("y", &yes), ("\t\n", &yes)] {
        let mut view = ViewState::new();
        rankdeck_tui::layout(&model, &mut view, AREA);
        assert_eq!(press(&model, &mut view, keys).first(), Some(action), "{keys:?}");
        // Answered: it does not come back before the link has changed its state.
        screen(&model, &mut view);
        assert!(view.overlays.is_empty(), "{keys:?}");
    }
}

#[test]
fn passphrase_is_masked_on_screen_and_in_debug_output() {
    let mut model = host_key();
    let prompt = Prompt::Passphrase { key: "/data/rl/.ssh/id_ed25519".into() };
    model.hosts[1].link = LinkState::Asking { prompt: prompt.clone() };
    model.hosts[1].prompt = Some(prompt);
    let mut view = ViewState::new();
    rankdeck_tui::layout(&model, &mut view, AREA);
    assert_eq!(press(&model, &mut view, "hun"), []);
    rankdeck_tui::on_paste(&mut view, "ter2\nls", NOW);
    let drawn = screen(&model, &mut view);
    assert!(drawn.contains("•••••••") && !drawn.contains("hunter2"), "{drawn}");
    assert!(!format!("{view:?}").contains("hunter2"));
    let actions = press(&model, &mut view, "\n");
    assert!(!format!("{actions:?}").contains("hunter2"));
    assert_eq!(
        actions,
        [ScreenAction::Send(Event::PromptAnswered { node: NodeRank(1), answer: Some("hunter2".into()) })]
    );
}

#[test]
fn relaunch_needs_an_ended_run_and_its_file() {
    let mut model = four();
    let (mut view, mut shown) = (ViewState::new(), Transcript::default());
    assert_eq!(press(&model, &mut view, "7n"), []);
    shown.add("while it runs", &toasts(&view));
    view.toasts.clear();
    model.run.state = RunState::Over;
    assert_eq!(press(&model, &mut view, "n"), []);
    shown.add("without its file", &toasts(&view));
    view.steering.again = true;
    let offers = screen(&model, &mut view);
    assert!(offers.contains(" n "), "{offers}");
    assert_eq!(press(&model, &mut view, "n"), [ScreenAction::Again]);
    view.steering.read_only = true;
    assert_eq!(press(&model, &mut view, "n"), []);
    insta::assert_snapshot!(shown.0);
}

#[test]
fn learning_verdict_offers_the_checkpoint_before_it() {
    let (mut model, mut view) = (four(), ViewState::new());
    let mut shown = Transcript::default();
    let all = [("good.ckpt", 600_000), ("broken.ckpt", 1_200_000)];
    model.checkpoints = all
        .map(|(path, env_step)| CheckpointModel {
            path: format!("checkpoints/{path}"),
            env_step,
            train_iter: env_step / 2048,
            reason: "interval".into(),
            ..CheckpointModel::default()
        })
        .into();
    let mut learning =
        verdict(0, "node-a", VerdictKind::Learning, "losses/value_loss is not finite since step 900,000");
    learning.card.actions = vec![rankdeck_core::card::Advice {
        text: "go back to the last checkpoint before it, at step 600,000".into(),
        command: "rankdeck restart ppo --from checkpoints/good.ckpt".into(),
    }];
    model.verdicts = vec![learning];
    assert!(screen(&model, &mut view).contains("r: "), "{}", screen(&model, &mut view));
    // From the page, and from its card.
    for keys in ["r", "dr"] {
        view.overlays.clear();
        press(&model, &mut view, keys);
        let asked = question(&view);
        assert!(asked.contains("600,000 (good.ckpt)"), "{asked}");
        shown.add(keys, &asked);
        let back = press(&model, &mut view, "g");
        assert_eq!(back, [ScreenAction::Send(Event::restart(Some("checkpoints/good.ckpt".into())))]);
    }
    view.overlays.clear();
    press(&model, &mut view, "R");
    let Some(Overlay::Restart(draft)) = view.overlay() else { panic!("{:?}", view.overlay()) };
    let origins = rankdeck_tui::restart_draft::origins(&model);
    assert_eq!(origins[draft.0.selected].from.as_deref(), Some("checkpoints/good.ckpt"));
    view.overlays.clear();
    model.verdicts.clear();
    press(&model, &mut view, "r");
    shown.add("r without a verdict", &question(&view));
    insta::assert_snapshot!(shown.0);
}

/// A key for a card that has just closed by itself does not act on the page below.
#[test]
fn key_for_a_closed_overlay_does_not_reach_the_page() {
    let mut model = four();
    let prompt = Prompt::Password { account: "me@node-b".into(), text: "Password:".into(), jump: None };
    model.hosts[1].prompt = Some(prompt);
    let mut view = ViewState::new();
    press(&model, &mut view, "se");
    assert!(matches!(view.overlay(), Some(Overlay::Ask(_))));
    model.hosts[1].prompt = None;
    // The rest of the password.
    assert_eq!(press(&model, &mut view, "xXq\n"), []);
    assert!(view.overlays.is_empty(), "{:?}", view.overlays);
    let at = |ms: u64, view: &mut ViewState| {
        let key = KeyEvent::from(KeyCode::Char('x'));
        rankdeck_tui::on_key(&model, view, key, NOW.plus(ms));
        view.overlays.len()
    };
    assert_eq!((at(900, &mut view), at(1_800, &mut view)), (0, 0), "still typing");
    assert_eq!(at(2_800, &mut view), 1, "after a pause, a key is the page's");
}

#[test]
fn evidence_stays_when_its_verdict_is_cleared() {
    let mut model = behind();
    let mut view = ViewState::new();
    let selected = Rank(1);
    view.selected = Some(selected);
    view.open(rankdeck_tui::state::EvidenceCard::new(&model.verdicts[0]));
    let reason = model.verdicts[0].reason[..20].to_owned();
    let before = screen(&model, &mut view);
    assert!(before.contains(&reason), "{before}");
    model.verdicts.clear();
    assert_eq!(press(&model, &mut view, "jj"), []);
    assert!(matches!(view.overlay(), Some(Overlay::Evidence(_))));
    assert_eq!(view.selected, Some(selected), "the page below keeps its selection");
    let after = screen(&model, &mut view);
    assert!(after.contains("over") && !before.contains("(over"), "{after}");
    press(&model, &mut view, "\x1b");
    assert!(view.overlays.is_empty());
}

/// Only an explicit stop ends a run that was launched elsewhere.
#[test]
fn ctrl_c_twice_detaches_an_attached_console() {
    let (model, mut view) = (four(), ViewState::new());
    view.steering.attached = true;
    assert_eq!(ctrl(&model, &mut view, 'c'), []);
    assert_eq!(ctrl(&model, &mut view, 'c'), [ScreenAction::leave()]);
    let mut view = ViewState::new();
    assert_eq!(ctrl(&model, &mut view, 'c'), []);
    assert_eq!(ctrl(&model, &mut view, 'c'), [ScreenAction::stop(StopMode::Clean)]);
}
