//! Orders to the run and answers to its questions: asked about first, harmless by default.

use super::*;

#[test]
fn stop_kill_and_restart_ask_first_and_default_to_no() {
    let model = four();
    for (key, yes, action) in [
        ("x", "y", Action::stop(StopMode::Clean)),
        ("X", "y", Action::stop(StopMode::Kill)),
        ("r", "l", Action::Tell(Event::restart(Some("latest".into())))),
        ("r", "b", Action::Tell(Event::restart(Some("checkpoints/best-300.ckpt".into())))),
        ("r", "a", Action::Tell(Event::restart(None))),
    ] {
        let mut view = ViewState::new();
        assert_eq!(press(&model, &mut view, key), []);
        let question = screen(&model, &mut view);
        assert!(question.contains("4 ranks on 2 hosts (node-a, node-b)"), "{question}");
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
    assert_eq!(press(&model, &mut view, "\n"), [Action::stop(StopMode::Clean)]);
}

/// A stop that cannot end as it should says so before it is asked for.
#[test]
fn a_stop_names_hosts_that_do_not_answer_and_ranks_that_no_longer_move() {
    let mut model = four();
    let asked = |model: &Model| {
        let mut view = ViewState::new();
        press(model, &mut view, "x");
        screen(model, &mut view)
    };
    let calm = asked(&model);
    assert!(!calm.contains("NOT VERIFIED") && !calm.contains("no longer"), "{calm}");
    model.hosts[1].link = LinkState::Connecting { attempt: 3 };
    let silent = asked(&model);
    assert!(silent.contains("No answer from node-b: the stop is NOT VERIFIED there until"), "{silent}");
    assert!(silent.contains("Probably no checkpoint can be written."), "{silent}");
    let mut held = four();
    held.verdicts.push(verdict(2, "node-b", VerdictKind::Frozen, "stopped by a signal"));
    let held = asked(&held);
    assert!(held.contains("Rank 2 no longer moves: SIGKILL ends it after its grace."), "{held}");
}

#[test]
fn quit_asks_while_ranks_run_and_leaves_at_once_when_the_run_is_over() {
    let model = four();
    let mut view = ViewState::new();
    assert_eq!(press(&model, &mut view, "q"), []);
    assert_eq!(press(&model, &mut view.clone(), "d"), [Action::leave()]);
    assert_eq!(press(&model, &mut view.clone(), "s"), [Action::stop(StopMode::Clean)]);
    assert_eq!(press(&model, &mut view.clone(), "\n"), []);
    assert_eq!(press(&model, &mut view.clone(), "c"), []);
    // The run ends while the question stands: it makes no sense any more.
    rankdeck_tui::layout(&over(), &mut view, AREA);
    assert!(view.overlays.is_empty());
    assert_eq!(press(&over(), &mut view, "q"), [Action::leave()]);
    assert_eq!(press(&connecting(&[cpu("a", 1)]), &mut ViewState::new(), "q"), [Action::leave()]);
}

#[test]
fn other_hosts_are_ordered_only_when_something_changes() {
    let model = pickable();
    let mut view = ViewState::new();
    assert_eq!(press(&model, &mut view, "H"), []);
    assert_eq!(press(&model, &mut view, "\n"), [], "nothing was changed");
    assert!(matches!(view.overlay(), Some(Overlay::Hosts { .. })) && !view.toasts.is_empty());
    // There and back again is no change either; both hosts left out is no plan.
    assert_eq!(press(&model, &mut view, "j  \n"), []);
    assert_eq!(press(&model, &mut view.clone(), " k \n"), []);
    let from = Some("latest".to_string());
    assert_eq!(
        press(&model, &mut view.clone(), " \n"),
        [Action::Tell(Event::RestartRequested {
            from: from.clone(),
            exclude: vec!["node-b".into()],
            add: vec![],
            experiment: None,
            shown: None,
        })]
    );
    view.steering.spares = vec![spare("node-c")];
    let with = press(&model, &mut view.clone(), "G \n");
    assert_eq!(
        with,
        [Action::Tell(Event::RestartRequested {
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
fn detach_needs_no_question_because_nothing_is_lost() {
    assert_eq!(press(&four(), &mut ViewState::new(), "D"), [Action::leave()]);
    assert_eq!(press(&over(), &mut ViewState::new(), "D"), []);
}

#[test]
fn ctrl_c_is_a_ladder() {
    let model = four();
    let mut view = ViewState::new();
    assert_eq!(ctrl(&model, &mut view, 'c'), []);
    assert!(matches!(view.overlay(), Some(Overlay::Confirm(_))));
    assert_eq!(ctrl(&model, &mut view, 'c'), [Action::stop(StopMode::Clean)]);
    assert_eq!(ctrl(&model, &mut view, 'c'), [Action::leave()]);
    // Another key starts it anew.
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
fn ui_6_stop_and_quit_work_when_the_screen_is_too_small_or_frozen() {
    let model = four();
    let small = Rect { width: 20, height: 5, ..AREA };
    let mut view = ViewState::new();
    rankdeck_tui::layout(&model, &mut view, small);
    let tap =
        |view: &mut ViewState, c| rankdeck_tui::on_key(&model, view, KeyEvent::from(KeyCode::Char(c)), NOW);
    assert_eq!(tap(&mut view, 'x'), []);
    assert!(draw(&model, &mut view, &Theme::dark(), small).contains("y yes, stop"));
    assert_eq!(tap(&mut view, 'y'), [Action::stop(StopMode::Clean)]);
    tap(&mut view, 'f');
    assert!(view.moment.frozen.is_some());
    tap(&mut view, 'x');
    assert_eq!(tap(&mut view, 'y'), [Action::stop(StopMode::Clean)]);
    tap(&mut view, 'q');
    assert_eq!(tap(&mut view, 'd'), [Action::leave()]);
}

#[test]
fn disabled_keys_say_why() {
    let model = over();
    let mut view = ViewState::new();
    assert_eq!(press(&model, &mut view, "x"), []);
    assert!(view.overlays.is_empty());
    assert!(screen(&model, &mut view).contains("stop: the run is over"));
    assert_eq!(view.poll_timeout(), Some(NOW.plus(4000)));
    assert!(!view.expire(NOW.plus(3999)) && view.expire(NOW.plus(4000)));
    assert_eq!(view.poll_timeout(), None);
}

#[test]
fn a_host_key_is_refused_by_default() {
    let model = host_key();
    let node = NodeRank(1);
    let no = Action::Tell(Event::PromptAnswered { node, answer: None });
    let yes = Action::Tell(Event::PromptAnswered { node, answer: Some("yes".into()) });
    for (keys, action) in [("\n", &no), ("\x1b", &no), ("n", &no), ("y", &yes), ("\t\n", &yes)] {
        let mut view = ViewState::new();
        rankdeck_tui::layout(&model, &mut view, AREA);
        assert_eq!(press(&model, &mut view, keys).first(), Some(action), "{keys:?}");
        // Answered: it does not come back while the link still thinks.
        assert!(!screen(&model, &mut view).contains("fingerprint"));
    }
}

#[test]
fn passphrases_are_masked_and_never_in_debug_output() {
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
        [Action::Tell(Event::PromptAnswered { node: NodeRank(1), answer: Some("hunter2".into()) })]
    );
}

#[test]
fn another_run_like_it_is_offered_once_it_is_over_and_its_file_is_known() {
    let mut model = four();
    let mut view = ViewState::new();
    assert_eq!(press(&model, &mut view, "7n"), []);
    assert!(view.toasts.last().unwrap().text.contains("the run is not over"), "{:?}", view.toasts);
    model.run.state = RunState::Over;
    assert_eq!(press(&model, &mut view, "n"), []);
    assert!(view.toasts.last().unwrap().text.contains("no experiment file"), "{:?}", view.toasts);
    view.steering.again = true;
    assert!(screen(&model, &mut view).contains("n new run like this"));
    assert_eq!(press(&model, &mut view, "n"), [Action::Again]);
    view.steering.read_only = true;
    assert_eq!(press(&model, &mut view, "n"), []);
}

#[test]
fn a_run_that_does_not_learn_goes_back_to_the_checkpoint_before_the_trouble() {
    let (mut model, mut view) = (four(), ViewState::new());
    let all = [("good.ckpt", 600_000), ("broken.ckpt", 1_200_000)];
    model.checkpoints = all
        .map(|(path, env_step)| CheckpointModel {
            path: format!("checkpoints/{path}"),
            env_step,
            train_iter: env_step / 2048,
            reason: "interval".into(),
        })
        .into();
    let mut learning =
        verdict(0, "node-a", VerdictKind::Learning, "losses/value_loss is not a number since step 900,000");
    learning.card.actions = vec![rankdeck_core::card::Advice {
        text: "go back to the last checkpoint before it, at step 600,000".into(),
        command: "rankdeck restart ppo --from checkpoints/good.ckpt".into(),
    }];
    model.verdicts = vec![learning];
    assert!(
        screen(&model, &mut view).contains("r: go back to the last checkpoint"),
        "{}",
        screen(&model, &mut view)
    );
    // From the page, and from its card.
    for keys in ["r", "dr"] {
        view.overlays.clear();
        press(&model, &mut view, keys);
        let asked = screen(&model, &mut view);
        for text in
            ["go back: env_step 600,000", "the last one before the trouble", "after the trouble began"]
        {
            let joined = asked.split_whitespace().collect::<Vec<_>>().join(" ").replace("│ │ ", "");
            assert!(joined.contains(text), "{text}\n{asked}");
        }
        let back = press(&model, &mut view, "g");
        assert_eq!(back, [Action::Tell(Event::restart(Some("checkpoints/good.ckpt".into())))]);
    }
    view.overlays.clear();
    press(&model, &mut view, "R");
    let Some(Overlay::Restart(draft)) = view.overlay() else { panic!("{:?}", view.overlay()) };
    let origins = rankdeck_tui::restart_draft::origins(&model);
    assert_eq!(origins[draft.selected].from.as_deref(), Some("checkpoints/good.ckpt"));
    view.overlays.clear();
    model.verdicts.clear();
    press(&model, &mut view, "r");
    assert!(!screen(&model, &mut view).contains("go back:"), "nothing to go back from");
}
