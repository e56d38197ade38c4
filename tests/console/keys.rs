//! What keys, the mouse and pastes do to the screen, and that no screen panics. The scenes are in
//! `tests/console/scenes`.

use crate::scenes::*;
use crossterm::event::{
    KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use proptest::prelude::*;
use rankdeck_core::event::Event;
use rankdeck_core::model::*;
use rankdeck_core::report::{Severity, VerdictKind};
use rankdeck_proto::message::*;
use rankdeck_tui::keys::BINDINGS;
use rankdeck_tui::state::{INPUT_LIMIT, LogScope, Overlay, Pane, Tab};
use rankdeck_tui::{Action, Glyphs, Role, Theme, ViewState};
use rankdeck_types::ids::{NodeRank, Rank, Timestamp};
use rankdeck_types::link_state::{LinkState, Prompt};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::layout::Rect;

const AREA: Rect = Rect { x: 0, y: 0, width: 80, height: 24 };

fn draw(model: &Model, view: &mut ViewState, theme: &Theme, area: Rect) -> String {
    let mut terminal = Terminal::new(TestBackend::new(area.width, area.height)).unwrap();
    terminal
        .draw(|frame| {
            rankdeck_tui::layout(model, view, frame.area());
            rankdeck_tui::view(model, view, theme, NOW, frame);
        })
        .unwrap();
    let buffer = terminal.backend().buffer();
    let rows = (0..area.height).map(|y| (0..area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>());
    rows.collect::<Vec<_>>().join("\n")
}

fn screen(model: &Model, view: &mut ViewState) -> String {
    draw(model, view, &Theme::dark(), AREA)
}

fn tap(model: &Model, view: &mut ViewState, code: KeyCode, with: KeyModifiers) -> Vec<Action> {
    rankdeck_tui::layout(model, view, AREA);
    let actions = rankdeck_tui::on_key(model, view, KeyEvent::new(code, with), NOW);
    rankdeck_tui::layout(model, view, AREA);
    actions
}

fn press(model: &Model, view: &mut ViewState, keys: &str) -> Vec<Action> {
    keys.chars()
        .flat_map(|c| {
            let code = match c {
                '\n' => KeyCode::Enter,
                '\t' => KeyCode::Tab,
                '\x1b' => KeyCode::Esc,
                c => KeyCode::Char(c),
            };
            tap(model, view, code, KeyModifiers::NONE)
        })
        .collect()
}

fn ctrl(model: &Model, view: &mut ViewState, c: char) -> Vec<Action> {
    tap(model, view, KeyCode::Char(c), KeyModifiers::CONTROL)
}

fn four() -> Model {
    running(&[cpu("node-a", 2), cpu("node-b", 2)])
}

fn many() -> Model {
    running(&["a", "b", "c", "d", "e", "f", "g", "h"].map(|name| gpu(name, 8)))
}

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
            add: vec![]
        })]
    );
    view.spares = vec![spare("node-c")];
    let with = press(&model, &mut view.clone(), "G \n");
    assert_eq!(
        with,
        [Action::Tell(Event::RestartRequested { from, exclude: vec![], add: vec![spare("node-c")] })]
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
    assert!(view.frozen.is_some());
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
fn ui_2_a_selection_is_an_id() {
    let model = many();
    let mut view = ViewState::new();
    press(&model, &mut view, "jjj");
    assert_eq!(view.rank, Some(Rank(3)));
    press(&model, &mut view, "oO");
    assert_eq!(view.rank, Some(Rank(3)));
    press(&model, &mut view, "G");
    let last = view.rank;
    assert_ne!(last, Some(Rank(3)));
    press(&model, &mut view, "/host:c\n");
    assert_eq!(view.rank, last);
    press(&model, &mut view, "\x1b");
    assert_eq!(view.rank_filter, "");
}

#[test]
fn ui_3_troubled_ranks_ignore_filters_and_come_first_when_rows_do_not_fit() {
    let mut model = many();
    model.verdicts.push(verdict(61, "h", VerdictKind::Behind, "others wait"));
    let mut view = ViewState::new();
    let drawn = screen(&model, &mut view);
    assert!(drawn.contains(" 61 h"), "{drawn}");
    press(&model, &mut view, "/host:a state:running !rollout\n");
    assert!(screen(&model, &mut view).contains(" 61 h"));
    press(&model, &mut view, "n");
    assert_eq!(view.rank, Some(Rank(61)));
    let cleared = {
        model.verdicts[0].severity = Severity::Cleared;
        screen(&model, &mut view)
    };
    assert!(!cleared.contains(" 61 h"));
}

#[test]
fn the_help_page_filters_and_runs() {
    let model = four();
    let mut view = ViewState::new();
    press(&model, &mut view, "?");
    assert!(matches!(view.overlay(), Some(Overlay::Help { .. })));
    press(&model, &mut view, "evaluations");
    press(&model, &mut view, "\n");
    assert_eq!((view.tab, view.overlays.len()), (Tab::Evals, 0));
    press(&model, &mut view, "?kill\n");
    assert!(matches!(view.overlay(), Some(Overlay::Confirm(_))));
    press(&model, &mut view, "\x1b?q");
    assert!(matches!(view.overlay(), Some(Overlay::Help { .. })), "letters filter, they do not act");
}

#[test]
fn escape_goes_back_one_level_and_never_quits() {
    let model = behind();
    let mut view = ViewState::new();
    press(&model, &mut view, "jjj\nd");
    assert_eq!(view.overlays.len(), 2);
    press(&model, &mut view, "\x1b");
    assert!(matches!(view.overlay(), Some(Overlay::Inspect { .. })));
    press(&model, &mut view, "\x1bz/a\nf");
    assert!(view.zoom && view.frozen.is_some() && !view.rank_filter.is_empty());
    press(&model, &mut view, "\x1b\x1b\x1b");
    assert!(!view.zoom && view.frozen.is_none() && view.rank_filter.is_empty());
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
    assert!(matches!(view.overlay(), Some(Overlay::Inspect { rank: Rank(3), .. })));
}

#[test]
fn logs_follow_until_scrolled_and_stay_where_they_are() {
    let mut model = four();
    let mut view = ViewState::new();
    press(&model, &mut view, "4kk");
    let held = view.log_at;
    assert!(held.is_some());
    let lines = |text: String| text.lines().skip(5).take(18).map(String::from).collect::<Vec<_>>();
    let before = lines(screen(&model, &mut view));
    let next =
        model.ranks.iter().filter_map(|rank| rank.log.lines.back()).map(|line| line.0).max().unwrap() + 1;
    model.ranks[0].log.lines.push_back((next, "newest".into()));
    assert_eq!(lines(screen(&model, &mut view)), before);
    press(&model, &mut view, "G");
    assert_eq!(view.log_at, None);
    assert!(screen(&model, &mut view).contains("newest"));
    press(&model, &mut view, "kjj");
    assert_eq!(view.log_at, None, "scrolling to the end follows again");
    press(&model, &mut view, "g");
    assert!(screen(&model, &mut view).contains("iter 560"), "the first page is full");
    press(&model, &mut view, "m");
    assert_eq!(view.log_scope, LogScope::Selected);
    press(&model, &mut view, "]]");
    assert_eq!(view.rank, Some(Rank(2)));
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
fn copying_takes_what_is_selected() {
    let model = behind();
    let mut view = ViewState::new();
    let copied = |model: &Model, view: &mut ViewState, keys: &str| match press(model, view, keys).pop() {
        Some(Action::Copy(text)) => text,
        other => panic!("{other:?}"),
    };
    assert!(copied(&model, &mut view, "jjjy").contains("rank 3 on node-b"));
    assert!(copied(&model, &mut view, "dy").contains("which rank 3 has not entered"));
    assert!(copied(&model, &mut view, "\x1b3y").starts_with("env_step\ttrain_iter"));
    assert!(copied(&model, &mut view, "4y").contains("[rank 0] iter 599"));
    assert_eq!(ctrl(&model, &mut view, 's'), [Action::SaveScreen]);
    assert_eq!(ctrl(&model, &mut view, 'l'), [Action::Redraw]);
    assert_eq!(ctrl(&model, &mut view, 'z'), [Action::Suspend]);
}

#[test]
fn programs_cannot_paint_over_the_screen() {
    let mut model = four();
    model.ranks[0].log.lines.push_back((9_999, "\x1b[2J\x1b[31mred\x07\x1b]0;owned\x07 end".into()));
    let mut view = ViewState::new();
    let drawn = press(&model, &mut view, "4").is_empty().then(|| screen(&model, &mut view)).unwrap();
    assert!(drawn.contains("red end") && !drawn.contains('\x1b') && !drawn.contains("owned"));
}

#[test]
fn the_mouse_selects_scrolls_and_presses() {
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
    assert_eq!(view.rank, Some(Rank(2)));
    mouse(&mut view, left, find(" 2 node-b"));
    assert!(matches!(view.overlay(), Some(Overlay::Inspect { rank: Rank(2), .. })));
    view.overlays.clear();
    mouse(&mut view, MouseEventKind::ScrollUp, find("log all ranks"));
    assert!(view.log_at.is_some());
    mouse(&mut view, left, find("log all ranks"));
    assert_eq!(view.focus, Pane::Log);
    mouse(&mut view, left, find("x stop"));
    assert!(matches!(view.overlay(), Some(Overlay::Confirm(_))));
    view.overlays.clear();
    mouse(&mut view, left, find("5 hosts"));
    assert_eq!(view.tab, Tab::Hosts);
    mouse(&mut view, left, (78, 23));
    assert!(matches!(view.overlay(), Some(Overlay::Help { .. })));
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
    assert_eq!(view.rank_filter.len(), INPUT_LIMIT);
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
fn toasts_of_the_shell_are_shown_and_bounded() {
    let mut view = ViewState::new();
    for i in 0..9 {
        view.toast(format!("saved {i}"), Role::Good, NOW);
    }
    assert_eq!(view.toasts.len(), 3);
    assert!(screen(&four(), &mut view).contains("saved 8"));
}

/// Scenes and mutations of them that the core could produce, however unlikely.
fn models() -> impl Strategy<Value = Model> {
    let base = prop_oneof![
        Just(Model::default()),
        Just(on_the_road()),
        Just(host_key()),
        Just(four()),
        Just(many()),
        Just(behind()),
        Just(dead()),
        Just(over()),
        Just(over_with_survivors()),
        Just(running(&[cpu("big", 200)])),
    ];
    (base, any::<u64>(), any::<u8>(), ".{0,40}", any::<f64>()).prop_map(|(mut model, n, cut, text, x)| {
        let states = [
            RunState::Connecting,
            RunState::Launching,
            RunState::Running,
            RunState::Draining,
            RunState::Restarting,
            RunState::Over,
        ];
        if n & 1 == 1 {
            model.run.state = states[(n >> 8) as usize % 6];
        }
        if n & 2 == 2 {
            model.ranks.truncate(usize::from(cut) % 9);
        }
        if n & 4 == 4 {
            model.hosts.truncate(usize::from(cut) % 3);
        }
        if n & 8 == 8 {
            model.run.reason = text.repeat(1 + usize::from(cut % 9));
            model.run.total_steps = Some(n);
            for rank in &mut model.ranks {
                rank.host.clone_from(&text);
                rank.steps_per_s = x;
                if let Some(page) = rank.sample.as_mut().and_then(|sample| sample.page.as_mut()) {
                    page.env_step = n;
                    page.collective.entered = n;
                    page.phase_age_ms = n;
                }
                rank.log.lines.push_back((n, text.clone()));
            }
        }
        if n & 16 == 16
            && let Some(progress) = &mut model.progress
        {
            progress.totals.env_step = n;
            progress.totals.duration_s = x;
            progress.steps_per_s = x;
            progress.eta_s = Some(x);
        }
        if n & 32 == 32 {
            for eval in &mut model.evals {
                eval.return_mean = x;
            }
            for series in model.scalars.values_mut() {
                series.push(f64::MAX, f64::MAX);
                series.push(f64::INFINITY, f64::MIN);
            }
        }
        if n & 64 == 64 {
            model.verdicts.push(verdict(n as u32, &text, VerdictKind::Desync, &text));
        }
        for host in &mut model.hosts {
            if n & 128 == 128 {
                host.heard = Some(Timestamp(n));
                host.clock_offset_s = x;
                host.name.clone_from(&text);
                if let Some(sample) = &mut host.sample {
                    sample.cpu_percent = x as f32;
                    sample.memory_total = 0;
                }
            }
        }
        model
    })
}

fn inputs() -> impl Strategy<Value = Vec<(u8, u16, u16)>> {
    prop::collection::vec((any::<u8>(), 0u16..300, 0u16..120), 0..14)
}

/// `PROPTEST_CASES` cases, or few enough for every run of the tests.
fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(64);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn ui_11_nothing_panics(
        model in models(), later in models(), keys in inputs(), w in 1u16..300, h in 1u16..120, looks in 0usize..3
    ) {
        let theme = Theme::dark().with_glyphs([Glyphs::Braille, Glyphs::Block, Glyphs::Ascii][looks]);
        let area = Rect::new(0, 0, w, h);
        let mut view = ViewState::new();
        draw(&model, &mut view, &theme, area);
        for (n, x, y) in keys {
            // Keys of the table, in their order, then characters, clicks and wheels.
            let all: Vec<_> = BINDINGS.iter().flat_map(|binding| binding.keys).collect();
            match all.get(usize::from(n)) {
                Some(chord) => {
                    let with = if chord.ctrl { KeyModifiers::CONTROL } else { KeyModifiers::NONE };
                    rankdeck_tui::on_key(&model, &mut view, KeyEvent::new(chord.code, with), NOW);
                }
                None if n % 3 == 0 => {
                    rankdeck_tui::on_key(&model, &mut view, KeyEvent::from(KeyCode::Char(n as char)), NOW);
                }
                None => {
                    let kind = if n % 3 == 1 { MouseEventKind::Down(MouseButton::Left) } else { MouseEventKind::ScrollDown };
                    let mouse = MouseEvent { kind, column: x, row: y, modifiers: KeyModifiers::NONE };
                    rankdeck_tui::on_mouse(&model, &mut view, mouse, NOW);
                }
            }
            rankdeck_tui::on_paste(&mut view, "a\tb", NOW);
            draw(&model, &mut view, &theme, area);
        }
        // The model changes under the view, with and without a layout between.
        let mut terminal = Terminal::new(TestBackend::new(w, h)).unwrap();
        terminal.draw(|frame| rankdeck_tui::view(&later, &view, &theme, NOW, frame)).unwrap();
        draw(&later, &mut view, &theme, Rect::new(0, 0, h, w.min(120)));
    }

    #[test]
    fn ui_8_every_rectangle_lies_on_the_screen(model in models(), w in 1u16..300, h in 1u16..120, tab in 0usize..6) {
        let mut view = ViewState::new();
        view.tab = Tab::ALL[tab];
        let area = Rect::new(0, 0, w, h);
        rankdeck_tui::layout(&model, &mut view, area);
        let geo = &view.geometry;
        let parts = [geo.title, geo.tabs, geo.progress, geo.totals, geo.status, geo.footer, geo.ranks, geo.charts, geo.log,
            geo.evals, geo.hosts, geo.events];
        for (i, part) in parts.iter().enumerate() {
            prop_assert_eq!(part.intersection(area).area(), part.area(), "part {} of {:?}", i, geo);
            for other in &parts[i + 1..] {
                prop_assert!(part.is_empty() || other.is_empty() || part.intersection(*other).is_empty(), "{:?}", geo);
            }
        }
    }
}
