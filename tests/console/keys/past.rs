//! Events, playback and the end of a run.

use super::*;

/// Many evaluations after a launch and a verdict that is over.
fn eventful() -> Model {
    let mut model = running(&[cpu("ant", 4)]);
    let verdict = behind().verdicts[0].clone();
    let line = |number: u64, text: &str| {
        HistoryLine::new(number, STARTED.plus(number * 1000), EventTone::Info, text)
    };
    let verdict =
        HistoryLine { subject: Some(EventSubject::Verdict(Box::new(verdict))), ..line(2, "stuck: rank 1") };
    let saved = EventSubject::Checkpoint("/runs/r/ckpt/step-40.ckpt".into());
    model.history = [line(1, "launched"), verdict].into();
    model.history.extend((3..50).map(|n| line(n, "evaluation")));
    model.history.push_back(HistoryLine { subject: Some(saved), ..line(50, "checkpoint (every)") });
    model.verdicts.clear();
    model
}

#[test]
fn event_is_found_opened_and_gone_to() {
    let (model, mut view) = (eventful(), ViewState::new());
    press(&model, &mut view, "6/stuck\n");
    let shown = screen(&model, &mut view);
    assert!(shown.contains("stuck: rank 1") && !shown.contains("evaluation"), "{shown}");
    press(&model, &mut view, "\n");
    assert_eq!(view.overlays[..], [Overlay::Event(EventCard::new(2))]);
    let mut transcript = Transcript::default();
    transcript.add("enter", &screen(&model, &mut view));
    press(&model, &mut view, "\x1b");
    let there = press(&model, &mut view, "o");
    assert_eq!(there, [ScreenAction::Time(TimeMove::To(STARTED.plus(2000)))]);
    // The evidence for a cleared verdict opens from every page.
    press(&model, &mut view, "\x1b1d");
    assert_eq!(view.overlays[..], [Overlay::Event(EventCard::new(2))]);
    insta::assert_snapshot!(transcript.0);
}

#[test]
fn checkpoint_event_offers_a_restart_from_it() {
    let (model, mut view) = (eventful(), ViewState::new());
    press(&model, &mut view, "6k");
    assert_eq!(view.events.selected, Some(49));
    press(&model, &mut view, "j\nr");
    let shown = screen(&model, &mut view);
    assert!(shown.contains("step-40.ckpt"), "{shown}");
    let order = press(&model, &mut view, "p");
    let Some(ScreenAction::Send(Event::RestartRequested { from, .. })) = order.first() else {
        panic!("{order:?}")
    };
    assert_eq!(from.as_deref(), Some("/runs/r/ckpt/step-40.ckpt"));
}

#[test]
fn selected_event_stays_on_the_screen() {
    let (mut model, mut view) = (eventful(), ViewState::new());
    model.history.iter_mut().step_by(3).for_each(|line| line.text = "a long line ".repeat(20));
    press(&model, &mut view, "6");
    for keys in ["k".repeat(49), "j".repeat(20), "k".repeat(5), "g".into(), "jj".into()] {
        for key in keys.chars() {
            press(&model, &mut view, &key.to_string());
            let line = model.history.iter().find(|line| Some(line.number) == view.events.selected);
            let clock = line.map(|line| format!("{}:{:02}", line.number / 60, line.number % 60));
            let shown = screen(&model, &mut view);
            assert!(clock.as_ref().is_none_or(|clock| shown.contains(clock)), "{clock:?}\n{shown}");
        }
    }
    press(&model, &mut view, "G");
    assert_eq!((view.events.selected, view.events.up), (None, 0));
}

#[test]
fn playback_is_shown_on_every_page_without_orders() {
    let (model, mut view) = (running(&[cpu("ant", 4)]), ViewState::new());
    assert_eq!(press(&model, &mut view, ","), [ScreenAction::Time(TimeMove::Step(-1000))]);
    let at = Timestamp(NOW.0 - 5_000);
    let marks = vec![TimelineMark {
        at: Timestamp(at.0 + 2_000),
        tone: EventTone::Bad,
        text: "rank 3 dead".into(),
        routine: false,
    }];
    view.moment.cursor =
        Some(TimeCursor { at, end: NOW, zero: 1000.0, live: true, marks, ..TimeCursor::default() });
    for page in "123456".chars() {
        press(&model, &mut view, &page.to_string());
        let shown = screen(&model, &mut view);
        assert!(shown.contains("2.0s ") && shown.contains("rank 3 dead"), "{page}: {shown}");
        assert!(shown.contains("esc "), "{page}: {shown}");
    }
    let mut transcript = Transcript::default();
    transcript.add("events", &screen(&model, &mut view));
    for order in ["x", "X", "r", "H", "D"] {
        view.toasts.clear();
        assert_eq!(press(&model, &mut view, order), [], "{order}");
        assert!(view.overlays.is_empty(), "{order}");
        transcript.add(order, &toasts(&view));
    }
    assert_eq!(press(&model, &mut view, "q"), [ScreenAction::Time(TimeMove::Present)]);
    assert_eq!(press(&model, &mut view, "1\x1b"), [ScreenAction::Time(TimeMove::Present)]);
    press(&model, &mut view, "T");
    assert_eq!(
        press(&model, &mut view, "-3s\n"),
        [ScreenAction::Time(TimeMove::To(Timestamp(at.0 - 3_000)))]
    );
    assert!(view.overlays.is_empty());
    insta::assert_snapshot!(transcript.0);
}

/// Playback 5 s before the present, with live news.
fn playback(behind: Option<PresentNews>) -> TimeCursor {
    let at = Timestamp(NOW.0 - 5_000);
    TimeCursor { at, end: NOW, zero: 1000.0, live: true, behind, ..TimeCursor::default() }
}

#[test]
fn live_news_is_shown_in_playback_at_every_width() {
    let (model, mut view) = (running(&[cpu("ant", 4)]), ViewState::new());
    let behind = PresentNews { tone: EventTone::Bad, label: "rank 3 dead".into(), more: 2 };
    view.moment.cursor = Some(playback(Some(behind)));
    let mut transcript = Transcript::default();
    for (width, height) in [(60, 16), (72, 20), (80, 24), (100, 30), (120, 40), (200, 60)] {
        let shown = draw(&model, &mut view, &Theme::dark(), Rect { width, height, ..AREA });
        let bar = shown.lines().find(|line| line.contains("rank 3 dead +2"));
        let bar = bar.unwrap_or_else(|| panic!("{width}\n{shown}"));
        assert!(bar.contains("esc "), "{width}\n{shown}");
        transcript.add(&format!("{width}x{height}"), bar);
    }
    for (width, height) in [(50, 12), (30, 8)] {
        let shown = draw(&model, &mut view, &Theme::dark(), Rect { width, height, ..AREA });
        for part in ["45:49", "rank 3 dead", "esc "] {
            assert!(shown.contains(part), "{part} {width}\n{shown}");
        }
        assert!(!shown.contains(" x "), "no order in playback\n{shown}");
        transcript.add(&format!("{width}x{height}"), &shown);
    }
    insta::assert_snapshot!(transcript.0);
}

/// The bar of the timeline cursor.
fn timeline(model: &Model, view: &mut ViewState, width: u16) -> String {
    let buffer = cells(model, view, &Theme::dark(), (width, AREA.height), NOW);
    rows_in(&buffer, view.geometry.time)
}

#[test]
fn playback_of_an_ended_run_has_no_live_news() {
    let (model, mut view) = (running(&[cpu("ant", 4)]), ViewState::new());
    let behind = PresentNews { tone: EventTone::Bad, label: "failed".into(), more: 0 };
    view.moment.cursor = Some(TimeCursor { over: true, ..playback(Some(behind)) });
    let mut transcript = Transcript::default();
    for width in [80, 120] {
        let shown = draw(&model, &mut view, &Theme::dark(), Rect { width, ..AREA });
        assert!(shown.contains("5.0s ") && shown.contains("failed"), "{width}\n{shown}");
        transcript.add(&format!("{width} columns"), &timeline(&model, &mut view, width));
    }
    insta::assert_snapshot!(transcript.0);
}

#[test]
fn console_without_recording_has_no_playback() {
    let (model, mut view) = (running(&[cpu("ant", 4)]), ViewState::new());
    view.steering.unrecorded = true;
    let mut transcript = Transcript::default();
    for keys in ["T", ",", "<", "(", ":time -5m\n"] {
        view.toasts.clear();
        assert_eq!(press(&model, &mut view, keys), [], "{keys}");
        assert!(!view.overlays.iter().any(|open| matches!(open, Overlay::Time { .. })), "{keys}");
        transcript.add(keys.trim(), &toasts(&view));
        view.overlays.clear();
    }
    insta::assert_snapshot!(transcript.0);
}

/// Every order is listed with the reason why it is disabled.
#[test]
fn replay_disables_every_order() {
    let (model, mut view) = (running(&[cpu("ant", 4)]), ViewState::new());
    view.steering.replay = true;
    view.moment.cursor = Some(TimeCursor { at: NOW, end: NOW, zero: 1000.0, ..TimeCursor::default() });
    for (key, command) in [
        ("x", ScreenCommand::Stop),
        ("X", ScreenCommand::Kill),
        ("r", ScreenCommand::Restart),
        ("R", ScreenCommand::RestartWith),
        ("H", ScreenCommand::PickHosts),
    ] {
        let binding = TABLE.iter().find(|binding| binding.command == command).unwrap();
        assert!((binding.disabled)(&model, &view).is_some(), "{key}");
        assert_eq!(press(&model, &mut view, key), [], "{key}");
        assert!(view.overlays.is_empty(), "{key}");
    }
    press(&model, &mut view, "?stop the run");
    let mut transcript = Transcript::default();
    transcript.add("help", &screen(&model, &mut view));
    insta::assert_snapshot!(transcript.0);
    // Keys of the pages are theirs: charts are zoomed, and a space marks a rank.
    view.overlays.clear();
    press(&model, &mut view, "2+");
    assert_eq!(view.charts.view.window.zoom, 1);
    press(&model, &mut view, "1 ");
    assert_eq!(view.marked.len(), 1);
}

#[test]
fn end_page_shows_the_cause_and_offers() {
    let (mut model, mut view) = (dead(), ViewState::new());
    screen(&model, &mut view);
    model.run.state = RunState::Over;
    model.run.outcome = Some(RunOutcome::Failed);
    model.run.reason = "rank 1 on node-b was killed by SIGKILL (signal 9)".into();
    model.run.ended = Some(NOW);
    let died = HistoryLine::new(9, Timestamp(NOW.0 - 2000), EventTone::Bad, "rank 1 on node-b was killed");
    model.history.push_back(died);
    let shown = screen(&model, &mut view);
    assert_eq!(view.tab, Tab::Outcome, "it opens by itself when the run ends while its screen is open");
    for part in ["rank 1", "1,228,800"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let mut transcript = Transcript::default();
    transcript.add("the end", &shown);
    let before = press(&model, &mut view, "s");
    assert!(matches!(before[..], [ScreenAction::Time(TimeMove::To(at))] if at < NOW), "{before:?}");
    assert_eq!(view.tab, Tab::Overview, "the page that shows those minutes");
    press(&model, &mut view, "7");
    let report = press(&model, &mut view, "y");
    assert!(matches!(&report[..], [ScreenAction::Copy(text)] if text.starts_with("# ppo-")), "{report:?}");
    let ScreenAction::Copy(text) = &report[0] else { unreachable!() };
    assert!(text.lines().any(|line| line.ends_with(": checkpoints/latest-550.ckpt")), "{text}");
    // A small screen also has the last minute and all offers.
    for n in 0..6 {
        let at = Timestamp(NOW.0 - 1000 + n);
        model.history.push_back(HistoryLine::new(
            10 + n,
            at,
            EventTone::Bad,
            format!("event {n} of the end"),
        ));
    }
    let shown = screen(&model, &mut view);
    assert!(shown.matches("of the end").count() >= 4, "{shown}");
    transcript.add("a full last minute", &shown);
    insta::assert_snapshot!(transcript.0);
    press(&model, &mut view, "1");
    screen(&model, &mut view);
    assert_eq!(view.tab, Tab::Overview, "once");
    let mut late = ViewState::new();
    screen(&model, &mut late);
    assert_eq!(late.tab, Tab::Overview, "not for a console that attaches later");
}

#[test]
fn small_end_page_scrolls_and_counts_hidden_rows() {
    let (mut model, mut view) = (dead(), ViewState::new());
    model.run.state = RunState::Over;
    model.run.outcome = Some(RunOutcome::Failed);
    model.run.reason = "rank 1 on node-b was killed by SIGKILL, which a console sent; rank 0 followed".into();
    model.run.ended = Some(NOW);
    for n in 0..8 {
        let at = Timestamp(NOW.0 - 1000 + n);
        model.history.push_back(HistoryLine::new(
            90 + n,
            at,
            EventTone::Bad,
            format!("event {n} of the end"),
        ));
    }
    press(&model, &mut view, "7");
    for (width, height) in [(60, 16), (72, 20), (80, 24)] {
        let area = Rect { x: 0, y: 0, width, height };
        view.outcome.top = None;
        let mut seen = String::new();
        for _ in 0..40 {
            seen += &draw(&model, &mut view, &Theme::dark(), area);
            rankdeck_tui::on_key(&model, &mut view, KeyEvent::from(KeyCode::Char('k')), NOW);
        }
        let top = draw(&model, &mut view, &Theme::dark(), area);
        assert!(top.contains(": rank 1") && !top.contains('↑'), "{top}");
        if !top.contains("event 7 of the end") {
            assert!(top.contains('↓'), "that rows are hidden\n{top}");
        }
        for _ in 0..40 {
            seen += &draw(&model, &mut view, &Theme::dark(), area);
            rankdeck_tui::on_key(&model, &mut view, KeyEvent::from(KeyCode::Char('j')), NOW);
        }
        let end = draw(&model, &mut view, &Theme::dark(), area);
        assert!(end.contains("event 7 of the end") && !end.contains('↓'), "{end}");
        for text in ["1,228,800", "checkpoints/latest-550.ckpt", "event 0 of the end", " q ", " y "] {
            assert!(seen.contains(text), "{text} is never seen at {width}x{height}\n{end}");
        }
    }
    let small = Rect { x: 0, y: 0, width: 60, height: 16 };
    view.outcome.top = None;
    let first = draw(&model, &mut view, &Theme::dark(), small);
    assert!(first.contains(": rank 1"), "the cause comes first where not both have room\n{first}");
}
