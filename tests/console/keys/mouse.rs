//! The mouse: whatever a page or an overlay shows can be clicked, and the wheel scrolls what lies below it.

use super::*;

const WIDE: (u16, u16) = (120, 40);
const LEFT: MouseEventKind = MouseEventKind::Down(MouseButton::Left);

fn shown(model: &Model, view: &mut ViewState, size: (u16, u16)) -> String {
    rows(&cells(model, view, &Theme::dark(), size, NOW))
}

/// Where a text stands, one cell into it.
fn place(drawn: &str, needle: &str) -> (u16, u16) {
    let found = drawn.lines().enumerate().find(|(_, line)| line.contains(needle));
    let (y, line) = found.unwrap_or_else(|| panic!("no {needle} in\n{drawn}"));
    let x = line[..line.find(needle).unwrap()].chars().count();
    (x as u16 + u16::from(needle.chars().count() > 1), y as u16)
}

fn mouse(
    model: &Model,
    view: &mut ViewState,
    kind: MouseEventKind,
    (column, row): (u16, u16),
) -> Vec<ScreenAction> {
    let event = MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE };
    rankdeck_tui::on_mouse(model, view, event, NOW)
}

fn click(model: &Model, view: &mut ViewState, needle: &str, size: (u16, u16)) -> Vec<ScreenAction> {
    let drawn = shown(model, view, size);
    let mut actions = mouse(model, view, LEFT, place(&drawn, needle));
    // A border, which could be dragged, is clicked when it is let go.
    actions.extend(mouse(model, view, MouseEventKind::Up(MouseButton::Left), place(&drawn, needle)));
    actions
}

/// The hints of the last line that begin with a key: where, and the key.
fn hints(drawn: &str) -> Vec<((u16, u16), KeyCode)> {
    let (y, line) = drawn.lines().enumerate().last().unwrap();
    let mut x = 0;
    let mut found = Vec::new();
    for part in line.split("   ") {
        let word = part.trim_start();
        let key = match word.split(' ').next().unwrap_or_default() {
            "enter" => Some(KeyCode::Enter),
            "esc" => Some(KeyCode::Esc),
            "tab" => Some(KeyCode::Tab),
            "space" => Some(KeyCode::Char(' ')),
            one if one.chars().count() == 1 => one.chars().next().map(KeyCode::Char),
            _ => None,
        };
        let at = x + part.chars().count() - word.chars().count() + 1;
        found.extend(key.map(|key| ((at as u16, y as u16), key)));
        x += part.chars().count() + 3;
    }
    found
}

#[test]
fn clicked_hint_does_what_its_key_does() {
    let mut model = pickable();
    model.verdicts.push(behind().verdicts[0].clone());
    let mut seen = 0;
    for (open, least) in [
        ("x", 0),
        ("r", 0),
        ("q", 0),
        ("R", 3),
        ("H", 3),
        ("?", 2),
        (":", 3),
        ("\n", 4),
        ("d", 4),
        ("v", 1),
        ("6k\n", 3),
    ] {
        let mut view = ViewState::new();
        press(&model, &mut view, open);
        assert_eq!(view.overlays.len(), 1, "{open:?}");
        let drawn = screen(&model, &mut view);
        let hints = hints(&drawn);
        assert!(hints.len() >= least, "{open:?}: {hints:?} in\n{drawn}");
        for (at, key) in hints {
            let (mut clicked, mut pressed) = (view.clone(), view.clone());
            let by_mouse = mouse(&model, &mut clicked, LEFT, at);
            let by_key = tap(&model, &mut pressed, key, KeyModifiers::NONE);
            assert_eq!(by_mouse, by_key, "{open:?} {key:?}");
            assert_eq!((clicked.overlays, clicked.tab), (pressed.overlays, pressed.tab), "{open:?} {key:?}");
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn overlay_list_entries_can_be_clicked() {
    let model = pickable();
    let mut view = ViewState::new();
    press(&model, &mut view, "?evaluations");
    let evals = TABLE.iter().find(|binding| binding.command == ScreenCommand::Go(Tab::Evals)).unwrap();
    click(&model, &mut view, evals.long, (80, 24));
    assert_eq!((view.tab, view.overlays.len()), (Tab::Evals, 0));
    press(&model, &mut view, "1:ran");
    click(&model, &mut view, "rank", (80, 24));
    press(&model, &mut view, "\x1b:host ");
    assert_eq!(
        click(&model, &mut view, "host node-b", (80, 24)),
        [],
        "the first click takes it into the line"
    );
    assert!(view.ranks.filter.is_empty());
    click(&model, &mut view, "host node-b ", (80, 24));
    press(&model, &mut view, "\x1bH");
    click(&model, &mut view, "[x] node-b", (80, 24));
    let Some(Overlay::Hosts(HostPicker { changed, selected: 1 })) = view.overlay() else {
        panic!("{:?}", view.overlays)
    };
    assert!(changed.contains("node-b"));
    click(&model, &mut view, "[ ] node-b", (80, 24));
    let Some(Overlay::Hosts(HostPicker { changed, .. })) = view.overlay() else {
        panic!("{:?}", view.overlays)
    };
    assert!(changed.is_empty());
    press(&model, &mut view, "\x1bR");
    click(&model, &mut view, "scratch: ", (80, 24));
    let chosen = |view: &ViewState| match view.overlay() {
        Some(Overlay::Restart(form)) => form.0.selected,
        other => panic!("{other:?}"),
    };
    let last = rankdeck_tui::restart_draft::origins(&model).len() - 1;
    assert_eq!((chosen(&view), last), (last, 3));
    mouse(&model, &mut view, MouseEventKind::ScrollUp, (40, 12));
    assert_eq!(chosen(&view), 0, "the wheel scrolls the list");
    assert_eq!(mouse(&model, &mut view, LEFT, (0, 0)), []);
    assert_eq!(view.overlays.len(), 1, "a click outside does not discard what was typed");
}

#[test]
fn host_key_is_answered_by_its_buttons_only() {
    let model = host_key();
    let mut view = ViewState::new();
    for nothing in ["fingerprint", "rankdeck"] {
        assert_eq!(click(&model, &mut view, nothing, (80, 24)), []);
        assert!(matches!(view.overlay(), Some(Overlay::Ask(_))), "{nothing}");
    }
    for (needle, answer) in [("y yes", Some("yes")), ("n no", None)] {
        let answer = answer.map(str::to_owned);
        let sent = click(&model, &mut view.clone(), needle, (80, 24));
        assert_eq!(sent, [ScreenAction::Send(Event::PromptAnswered { node: NodeRank(1), answer })]);
    }
}

#[test]
fn chart_takes_clicks_wheel_and_drags() {
    let model = four();
    let mut view = ViewState::new();
    shown(&model, &mut view, WIDE);
    // At a glance: the first click takes the focus, the next one opens the page with that chart.
    click(&model, &mut view, "value_loss", WIDE);
    assert_eq!((view.tab, view.focus), (Tab::Overview, Pane::Charts));
    click(&model, &mut view, "value_loss", WIDE);
    assert_eq!((view.tab, view.charts.series.selected.as_deref()), (Tab::Charts, Some("losses/value_loss")));
    let axis = place(&shown(&model, &mut view, WIDE), "┤");
    let at = |x: u16| (axis.0 + 1 + x, axis.1 + 3);
    mouse(&model, &mut view, LEFT, at(40));
    let first = view.charts.view.cursor.unwrap();
    assert!(first > 0.0 && view.charts.view.pin.is_none(), "a click puts the cursor there");
    mouse(&model, &mut view, LEFT, at(20));
    let left = view.charts.view.cursor.unwrap();
    assert!(left < first, "{left} {first}");
    for x in 21..50 {
        mouse(&model, &mut view, MouseEventKind::Drag(MouseButton::Left), at(x));
    }
    mouse(&model, &mut view, MouseEventKind::Up(MouseButton::Left), at(49));
    assert_eq!(view.charts.view.pin, Some(left), "a drag measures from where it began");
    assert!(view.charts.view.cursor.unwrap() > first);
    assert!(shown(&model, &mut view, WIDE).contains("Δ "));
    // The wheel zooms around the pointer: what is below it stays there.
    let value = |view: &ViewState, x: u16| {
        let (from, to) = view.charts.view.window(&model);
        let wide =
            shown(&model, &mut view.clone(), WIDE).lines().nth(usize::from(axis.1)).unwrap().chars().count();
        from + (to - from) * f64::from(x) / wide as f64
    };
    let before = value(&view, 40);
    mouse(&model, &mut view, MouseEventKind::ScrollUp, at(40));
    assert_eq!(view.charts.view.window.zoom, 1);
    let (from, to) = view.charts.view.window(&model);
    assert!(((value(&view, 40) - before) / (to - from)).abs() < 0.2, "{before} in {from}..{to}");
    mouse(&model, &mut view, MouseEventKind::ScrollDown, at(40));
    assert_eq!(view.charts.view.window.zoom, 0);
}

#[test]
fn clicked_event_is_selected_then_opened() {
    let mut model = four();
    for number in 1..60 {
        let text = format!("event number {number}.");
        model.history.push_back(HistoryLine::new(100 + number, NOW, EventTone::Info, text));
    }
    let mut view = ViewState::new();
    press(&model, &mut view, "6");
    click(&model, &mut view, "event number 51.", (80, 24));
    assert_eq!(view.events.selected, Some(151));
    let drawn = shown(&model, &mut view, (80, 24));
    assert!(drawn.contains("event number 51."), "{drawn}");
    click(&model, &mut view, "event number 51.", (80, 24));
    assert!(matches!(view.overlay(), Some(Overlay::Event(EventCard { number: 151, .. }))));
}

/// Clicks the offer of the End page with this key.
fn click_offer(model: &Model, view: &mut ViewState, key: &str) -> Vec<ScreenAction> {
    let drawn = shown(model, view, WIDE);
    let row =
        drawn.lines().position(|row| row.trim_start_matches(['│', ' ']).starts_with(&format!("{key}  ")));
    let row = row.unwrap_or_else(|| panic!("no {key} in\n{drawn}"));
    mouse(model, view, LEFT, (6, row as u16))
}

#[test]
fn offers_of_the_end_page_can_be_clicked() {
    let mut model = dead();
    model.run.state = RunState::Over;
    model.run.outcome = Some(RunOutcome::Failed);
    model.run.ended = Some(NOW);
    let mut view = ViewState::new();
    press(&model, &mut view, "7");
    let before = click_offer(&model, &mut view.clone(), "s");
    assert!(matches!(before[..], [ScreenAction::Time(TimeMove::To(_))]), "{before:?}");
    let mut with = view.clone();
    click_offer(&model, &mut with, "R");
    assert!(matches!(with.overlay(), Some(Overlay::Restart(_))), "{:?}", with.overlays);
    assert_eq!(click_offer(&model, &mut view.clone(), "q"), [ScreenAction::leave()]);
    let report = click_offer(&model, &mut view.clone(), "y");
    assert!(matches!(&report[..], [ScreenAction::Copy(text)] if text.starts_with("# ")), "{report:?}");
    let mut log = view.clone();
    click_offer(&model, &mut log, "l");
    assert_eq!((log.tab, log.selected), (Tab::Logs, Some(Rank(1))));
    // The banner leads to the page from anywhere.
    press(&model, &mut view, "5");
    shown(&model, &mut view, WIDE);
    let banner = view.geometry.status;
    mouse(&model, &mut view, LEFT, (banner.x + 4, banner.y));
    assert_eq!(view.tab, Tab::Outcome);
}

#[test]
fn timeline_takes_clicks_drags_and_wheel() {
    let model = four();
    let mut view = ViewState::new();
    let cursor = TimeCursor { at: NOW, end: NOW, zero: 1000.0, live: true, ..TimeCursor::default() };
    view.moment.cursor = Some(cursor);
    let drawn = shown(&model, &mut view, WIDE);
    let begin = place(&drawn, "├");
    let line = drawn.lines().nth(usize::from(begin.1)).unwrap();
    let wide = line.chars().position(|c| c == '┤').unwrap() as u16 - begin.0;
    let middle = (begin.0 + wide / 2, begin.1);
    let went = |actions: Vec<ScreenAction>| match actions[..] {
        [ScreenAction::Time(TimeMove::To(at))] => at.0,
        _ => panic!("{actions:?}"),
    };
    let half = went(mouse(&model, &mut view, LEFT, middle));
    assert!(half.abs_diff(NOW.0 / 2) < NOW.0 / 50, "{half}");
    assert_eq!(went(mouse(&model, &mut view, LEFT, (begin.0 + 1, begin.1))), 0);
    let later =
        went(mouse(&model, &mut view, MouseEventKind::Drag(MouseButton::Left), (middle.0 + 9, begin.1)));
    assert!(later > half);
    let turned = mouse(&model, &mut view, MouseEventKind::ScrollUp, middle);
    assert_eq!(turned, [ScreenAction::Time(TimeMove::Step(-1000))]);
}
