//! Selecting, filtering, scrolling, copying, and the mouse.

use super::*;

#[test]
fn ui_2_selection_follows_the_rank_id() {
    let model = many();
    let mut view = ViewState::new();
    press(&model, &mut view, "jjj");
    assert_eq!(view.selected, Some(Rank(3)));
    press(&model, &mut view, "oO");
    assert_eq!(view.selected, Some(Rank(3)));
    press(&model, &mut view, "G");
    let last = view.selected;
    assert_ne!(last, Some(Rank(3)));
    press(&model, &mut view, "/host:c\n");
    assert_eq!(view.selected, last);
    press(&model, &mut view, "\x1b");
    assert_eq!(view.ranks.filter, "");
}

#[test]
fn ui_3_ranks_with_verdicts_ignore_filters_and_come_first() {
    let mut model = many();
    model.verdicts.push(verdict(61, "h", VerdictKind::Behind, "others wait"));
    let mut view = ViewState::new();
    let drawn = screen(&model, &mut view);
    assert!(drawn.contains(" 61 h"), "{drawn}");
    press(&model, &mut view, "/host:a state:running !rollout\n");
    assert!(screen(&model, &mut view).contains(" 61 h"));
    press(&model, &mut view, "n");
    assert_eq!(view.selected, Some(Rank(61)));
    let cleared = {
        model.verdicts[0].severity = Severity::Cleared;
        screen(&model, &mut view)
    };
    assert!(!cleared.contains(" 61 h"));
}

#[test]
fn help_filters_and_runs_commands() {
    let model = four();
    let mut view = ViewState::new();
    press(&model, &mut view, "?");
    assert!(matches!(view.overlay(), Some(Overlay::Help(_))));
    press(&model, &mut view, "evaluations");
    press(&model, &mut view, "\n");
    assert_eq!((view.tab, view.overlays.len()), (Tab::Evals, 0));
    press(&model, &mut view, "?kill\n");
    assert!(matches!(view.overlay(), Some(Overlay::Confirm(_))));
    press(&model, &mut view, "\x1b?q");
    assert!(matches!(view.overlay(), Some(Overlay::Help(_))), "letters filter, they do not act");
}

#[test]
fn escape_goes_back_one_level_without_quitting() {
    let model = behind();
    let mut view = ViewState::new();
    press(&model, &mut view, "jjj\nd");
    assert_eq!(view.overlays.len(), 2);
    press(&model, &mut view, "\x1b");
    assert!(matches!(view.overlay(), Some(Overlay::Inspect(_))));
    press(&model, &mut view, "\x1bz/a\nf");
    assert!(view.zoom && view.moment.frozen.is_some() && !view.ranks.filter.is_empty());
    press(&model, &mut view, "\x1b\x1b\x1b");
    assert!(!view.zoom && view.moment.frozen.is_none() && view.ranks.filter.is_empty());
    assert_eq!(press(&model, &mut view, "5\x1b\x1b\x1b\x1b"), []);
    assert_eq!(view.tab, Tab::Overview);
}

#[test]
fn cards_scroll_to_their_end_and_back() {
    let model = behind();
    let mut view = ViewState::new();
    press(&model, &mut view, "\n");
    let first = screen(&model, &mut view);
    press(&model, &mut view, &"j".repeat(100));
    let last = screen(&model, &mut view);
    assert!(last.contains("iter 599") && !first.contains("iter 599"));
    press(&model, &mut view, "k");
    assert_ne!(screen(&model, &mut view), last, "the first key back moves");
    press(&model, &mut view, "g");
    assert_eq!(screen(&model, &mut view), first);
    press(&model, &mut view, "\t\t\t");
    assert!(matches!(view.overlay(), Some(Overlay::Inspect(Inspector { rank: Rank(3), .. }))));
}

#[test]
fn logs_follow_until_scrolled_and_stay_where_they_are() {
    let mut model = four();
    let mut view = ViewState::new();
    press(&model, &mut view, "4kk");
    let held = view.log.at;
    assert!(held.is_some());
    let lines = |text: String| text.lines().skip(5).take(18).map(String::from).collect::<Vec<_>>();
    let before = lines(screen(&model, &mut view));
    let next =
        model.ranks.iter().filter_map(|rank| rank.log.lines.back()).map(|line| line.order).max().unwrap() + 1;
    model.ranks[0].log.lines.push_back(HeldLine::new(next, "newest"));
    assert_eq!(lines(screen(&model, &mut view)), before);
    press(&model, &mut view, "G");
    assert_eq!(view.log.at, None);
    assert!(screen(&model, &mut view).contains("newest"));
    press(&model, &mut view, "kjj");
    assert_eq!(view.log.at, None, "scrolling to the end follows again");
    press(&model, &mut view, "g");
    assert!(screen(&model, &mut view).contains("iter 560"), "the first page is full");
    press(&model, &mut view, "m");
    assert_eq!(view.log.scope, LogScope::Selected);
    press(&model, &mut view, "]]");
    assert_eq!(view.selected, Some(Rank(2)));
}

#[test]
fn marked_ranks_make_the_merged_log() {
    let model = four();
    let mut view = ViewState::new();
    press(&model, &mut view, "j 4");
    assert_eq!(view.marked.iter().copied().collect::<Vec<_>>(), [Rank(1)]);
    let drawn = screen(&model, &mut view);
    assert!(drawn.contains("1 marked") && drawn.contains(" 1 │ iter") && !drawn.contains(" 2 │ iter"));
}

#[test]
fn copy_takes_the_selection() {
    let model = behind();
    let mut view = ViewState::new();
    let copied = |model: &Model, view: &mut ViewState, keys: &str| match press(model, view, keys).pop() {
        Some(ScreenAction::Copy(text)) => text,
        other => panic!("{other:?}"),
    };
    assert!(copied(&model, &mut view, "jjjy").contains("rank 3 on node-b"));
    assert!(copied(&model, &mut view, "dy").contains("which rank 3 has not entered"));
    assert!(copied(&model, &mut view, "\x1b3y").starts_with("env_step\ttrain_iter"));
    assert!(copied(&model, &mut view, "4y").contains("[ranks 0-3] iter 599"));
    assert_eq!(ctrl(&model, &mut view, 's'), [ScreenAction::SaveScreen]);
    assert_eq!(ctrl(&model, &mut view, 'l'), [ScreenAction::Redraw]);
    assert_eq!(ctrl(&model, &mut view, 'z'), [ScreenAction::Suspend]);
}

#[test]
fn escape_sequences_in_logs_are_removed() {
    let mut model = four();
    model.ranks[0].log.lines.push_back(HeldLine::new(9_999, "\x1b[2J\x1b[31mred\x07\x1b]0;owned\x07 end"));
    let mut view = ViewState::new();
    let drawn = press(&model, &mut view, "4").is_empty().then(|| screen(&model, &mut view)).unwrap();
    assert!(drawn.contains("red end") && !drawn.contains('\x1b') && !drawn.contains("owned"));
}

#[test]
fn mouse_selects_scrolls_and_clicks() {
    let model = four();
    let mut view = ViewState::new();
    let drawn = screen(&model, &mut view);
    let find = |needle: &str| {
        let (y, line) = drawn.lines().enumerate().find(|(_, line)| line.contains(needle)).unwrap();
        let x = line[..line.find(needle).unwrap()].chars().count();
        (x as u16 + 1, y as u16)
    };
    let mouse = |view: &mut ViewState, kind, (column, row)| {
        rankdeck_tui::on_mouse(
            &model,
            view,
            MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE },
            NOW,
        )
    };
    let left = MouseEventKind::Down(MouseButton::Left);
    mouse(&mut view, left, find(" 2 node-b"));
    assert_eq!(view.selected, Some(Rank(2)));
    mouse(&mut view, left, find(" 2 node-b"));
    assert!(matches!(view.overlay(), Some(Overlay::Inspect(Inspector { rank: Rank(2), .. }))));
    view.overlays.clear();
    mouse(&mut view, MouseEventKind::ScrollUp, find("log all ranks"));
    assert!(view.log.at.is_some());
    mouse(&mut view, left, find("log all ranks"));
    mouse(&mut view, MouseEventKind::Up(MouseButton::Left), find("log all ranks"));
    assert_eq!(view.focus, Pane::Log);
    mouse(&mut view, left, find("x stop"));
    assert!(matches!(view.overlay(), Some(Overlay::Confirm(_))));
    view.overlays.clear();
    mouse(&mut view, left, find("5 hosts"));
    assert_eq!(view.tab, Tab::Hosts);
    mouse(&mut view, left, (78, 23));
    assert!(matches!(view.overlay(), Some(Overlay::Help(_))));
}

#[test]
fn mouse_sorts_answers_closes_and_picks() {
    let model = four();
    let mut view = ViewState::new();
    let click = |view: &mut ViewState, needle: &str| {
        let drawn = screen(&model, view);
        let found = drawn.lines().enumerate().find(|(_, line)| line.contains(needle));
        let (y, line) = found.unwrap_or_else(|| panic!("no {needle} in\n{drawn}"));
        let x = line[..line.find(needle).unwrap()].chars().count();
        let at = MouseEvent {
            kind: MouseEventKind::Down(MouseButton::Left),
            column: x as u16 + 1,
            row: y as u16,
            modifiers: KeyModifiers::NONE,
        };
        rankdeck_tui::on_mouse(&model, view, at, NOW)
    };
    click(&mut view, "STEPS/");
    assert_eq!((view.ranks.sort, view.ranks.reverse), (Sort::Speed, false));
    click(&mut view, "STEPS/");
    assert_eq!((view.ranks.sort, view.ranks.reverse), (Sort::Speed, true));
    click(&mut view, "HOST");
    assert_eq!((view.ranks.sort, view.ranks.reverse), (Sort::Host, false));
    press(&model, &mut view, "x");
    assert_eq!(click(&mut view, "4 ranks on 2 hosts"), [], "a click on the question");
    assert_eq!(click(&mut view, "running"), [], "a click on the page below");
    assert!(matches!(view.overlay(), Some(Overlay::Confirm(_))));
    assert_eq!(click(&mut view, "y yes"), [ScreenAction::stop(StopMode::Clean)]);
    press(&model, &mut view, "x");
    assert_eq!(click(&mut view, "[n"), []);
    assert!(view.overlays.is_empty());
    press(&model, &mut view, "\n");
    click(&mut view, "local_rank");
    assert!(matches!(view.overlay(), Some(Overlay::Inspect(_))), "within the card");
    click(&mut view, "rankdeck");
    assert!(view.overlays.is_empty(), "outside");
    press(&model, &mut view, "5");
    click(&mut view, "node-b");
    assert_eq!(view.hosts.selected, Some(NodeRank(1)));
    click(&mut view, "node-b");
    assert_eq!((view.tab, view.ranks.filter.as_str()), (Tab::Overview, "host:node-b"));
    press(&model, &mut view, "2");
    let before = view.charts.series.selected.clone();
    click(&mut view, "approx_kl");
    assert!(
        view.charts.series.selected != before
            && view.charts.series.selected.as_ref().unwrap().ends_with("approx_kl")
    );
    assert!(view.charts.series.shown.is_none());
}

#[test]
fn mouse_capture_is_switched_off_and_on() {
    let model = four();
    let mut view = ViewState::new();
    assert_eq!(press(&model, &mut view, "M"), [ScreenAction::Mouse(false)]);
    insta::assert_snapshot!(toasts(&view));
    assert_eq!(press(&model, &mut view, ":mouse\n"), [ScreenAction::Mouse(true)]);
}

#[test]
fn custom_keys_act_and_are_shown() {
    let model = four();
    let mut view = ViewState::new();
    let line = |name: &str, keys: &str| (name.to_owned(), keys.to_owned());
    let (keymap, wrong) = rankdeck_tui::keys::read_keymap(&[line("stop", "V"), line("hosts", "x")]);
    assert!(wrong.is_empty(), "{wrong:?}");
    view.steering.keymap = keymap;
    let drawn = screen(&model, &mut view);
    let stop = TABLE.iter().find(|binding| binding.command == ScreenCommand::Stop).unwrap().short;
    assert!(drawn.contains(&format!("V {stop}")) && !drawn.contains(&format!("x {stop}")), "{drawn}");
    press(&model, &mut view, "x");
    assert_eq!((view.tab, view.overlays.len()), (Tab::Hosts, 0));
    press(&model, &mut view, "V");
    assert!(matches!(view.overlay(), Some(Overlay::Confirm(_))));
    view.overlays.clear();
    press(&model, &mut view, "?stop");
    let drawn = screen(&model, &mut view);
    assert!(drawn.contains("▸ V "), "{drawn}");
    view.overlays.clear();
    press(&model, &mut view, "7");
    view.steering.keymap = rankdeck_tui::keys::read_keymap(&[line("before", "b"), line("quit", "Q")]).0;
    let mut over = model.clone();
    over.run.state = rankdeck_core::model::RunState::Over;
    let drawn = screen(&over, &mut view);
    assert!(drawn.contains(" b ") && drawn.contains(" Q "), "{drawn}");
}

#[test]
fn key_releases_and_stray_pastes_do_nothing() {
    let model = four();
    let mut view = ViewState::new();
    rankdeck_tui::layout(&model, &mut view, AREA);
    let mut release = KeyEvent::from(KeyCode::Char('x'));
    release.kind = KeyEventKind::Release;
    rankdeck_tui::on_key(&model, &mut view, release, NOW);
    rankdeck_tui::on_paste(&mut view, "xyq", NOW);
    assert!(view.overlays.is_empty());
    press(&model, &mut view, "/");
    rankdeck_tui::on_paste(&mut view, &"z".repeat(10 * INPUT_LIMIT), NOW);
    assert_eq!(view.ranks.filter.len(), INPUT_LIMIT);
}

#[test]
fn differing_totals_are_marked() {
    let mut model = four();
    let progress = model.progress.as_mut().unwrap();
    progress.sum.samples -= 1;
    progress.consistent = false;
    model.fingerprint.as_mut().unwrap().equal = false;
    model.drops.by_agents = 12;
    let drawn = screen(&model, &mut ViewState::new());
    assert!(drawn.contains("≠ 1,228,799") && drawn.contains("= 1,228,800"), "{drawn}");
    assert!(drawn.contains("≠ DRIFT") && drawn.contains("drops 12"));
}

#[test]
fn toasts_are_shown_and_bounded() {
    let mut view = ViewState::new();
    for i in 0..9 {
        view.toast(format!("saved {i}"), Role::Good, NOW);
    }
    assert_eq!(view.toasts.len(), 3);
    assert!(screen(&four(), &mut view).contains("saved 8"));
}
