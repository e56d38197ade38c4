//! Events, the past and the end of a run.

use super::*;

/// Many evaluations after a launch and a verdict that is over.
fn eventful() -> Model {
    let mut model = running(&[cpu("ant", 4)]);
    let verdict = behind().verdicts[0].clone();
    let line =
        |number: u64, text: &str| HistoryLine::new(number, STARTED.plus(number * 1000), Tone::Info, text);
    let told = HistoryLine { subject: Some(Subject::Verdict(Box::new(verdict))), ..line(2, "stuck: rank 1") };
    let saved = Subject::Checkpoint("/runs/r/ckpt/step-40.ckpt".into());
    model.history = [line(1, "launched"), told].into();
    model.history.extend((3..50).map(|n| line(n, "evaluation")));
    model.history.push_back(HistoryLine { subject: Some(saved), ..line(50, "checkpoint (every)") });
    model.verdicts.clear();
    model
}

#[test]
fn an_event_is_found_opened_whole_and_gone_to() {
    let (model, mut view) = (eventful(), ViewState::new());
    press(&model, &mut view, "6/stuck\n");
    let shown = screen(&model, &mut view);
    assert!(shown.contains("stuck: rank 1") && !shown.contains("evaluation"), "{shown}");
    press(&model, &mut view, "\n");
    let shown = screen(&model, &mut view);
    assert!(shown.contains("evidence") && shown.contains("since the launch"), "{shown}");
    press(&model, &mut view, "\x1b");
    let there = press(&model, &mut view, "o");
    assert_eq!(there, [Action::Time(TimeMove::To(STARTED.plus(2000)))]);
    // The card of a verdict that is over opens from every page.
    press(&model, &mut view, "\x1b1d");
    assert_eq!(view.overlays, [Overlay::Event { number: 2, top: 0 }]);
}

#[test]
fn a_checkpoint_among_the_events_is_one_to_restart_from() {
    let (model, mut view) = (eventful(), ViewState::new());
    press(&model, &mut view, "6k");
    assert_eq!(view.events.selected, Some(49));
    press(&model, &mut view, "j\nr");
    let shown = screen(&model, &mut view);
    assert!(shown.contains("picked") && shown.contains("step-40.ckpt"), "{shown}");
    let order = press(&model, &mut view, "p");
    let Some(Action::Tell(Event::RestartRequested { from, .. })) = order.first() else { panic!("{order:?}") };
    assert_eq!(from.as_deref(), Some("/runs/r/ckpt/step-40.ckpt"));
}

#[test]
fn the_selected_event_stays_on_the_screen_whichever_way_it_moves() {
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
fn the_past_is_shown_on_every_page_and_nothing_is_ordered_there() {
    let (model, mut view) = (running(&[cpu("ant", 4)]), ViewState::new());
    assert_eq!(press(&model, &mut view, ","), [Action::Time(TimeMove::Step(-1000))]);
    let at = Timestamp(NOW.0 - 5_000);
    let marks = vec![Mark {
        at: Timestamp(at.0 + 2_000),
        tone: Tone::Bad,
        text: "rank 3 dead".into(),
        routine: false,
    }];
    view.moment.cursor =
        Some(TimeCursor { at, end: NOW, zero: 1000.0, live: true, marks, ..TimeCursor::default() });
    for page in "123456".chars() {
        press(&model, &mut view, &page.to_string());
        let shown = screen(&model, &mut view);
        assert!(shown.contains("2.0s before") && shown.contains("rank 3 dead"), "{page}: {shown}");
        assert!(shown.contains("esc live"), "{page}: {shown}");
    }
    for order in ["x", "X", "r", "H", "D"] {
        assert_eq!(press(&model, &mut view, order), [], "{order}");
        assert!(view.toasts.iter().any(|toast| toast.text.contains("only in the present")), "{order}");
        assert!(view.overlays.is_empty(), "{order}");
    }
    assert_eq!(press(&model, &mut view, "q"), [Action::Time(TimeMove::Present)]);
    assert_eq!(press(&model, &mut view, "1\x1b"), [Action::Time(TimeMove::Present)]);
    press(&model, &mut view, "T");
    assert_eq!(press(&model, &mut view, "-3s\n"), [Action::Time(TimeMove::To(Timestamp(at.0 - 3_000)))]);
    assert!(view.overlays.is_empty());
}

/// The present, as a past 5 s before it has it behind it.
fn past_of(behind: Option<PresentNews>) -> TimeCursor {
    let at = Timestamp(NOW.0 - 5_000);
    TimeCursor { at, end: NOW, zero: 1000.0, live: true, behind, ..TimeCursor::default() }
}

#[test]
fn what_is_wrong_now_is_said_beside_the_past_at_every_width() {
    let (model, mut view) = (running(&[cpu("ant", 4)]), ViewState::new());
    let behind = PresentNews { tone: Tone::Bad, label: "rank 3 dead".into(), more: 2 };
    view.moment.cursor = Some(past_of(Some(behind)));
    for (width, height) in [(60, 16), (72, 20), (80, 24), (100, 30), (120, 40), (200, 60)] {
        let shown = draw(&model, &mut view, &Theme::dark(), Rect { width, height, ..AREA });
        let bar = shown.lines().find(|line| line.contains("now ")).unwrap_or_default();
        assert!(bar.contains("rank 3 dead +2") && bar.contains("esc live"), "{width}\n{shown}");
    }
    for (width, height) in [(50, 12), (30, 8)] {
        let shown = draw(&model, &mut view, &Theme::dark(), Rect { width, height, ..AREA });
        for part in ["45:49", "rank 3 dead", "esc live"] {
            assert!(shown.contains(part), "{part} {width}\n{shown}");
        }
        assert!(!shown.contains("stop"), "nothing is ordered in the past\n{shown}");
    }
}

#[test]
fn nothing_goes_on_behind_a_run_that_is_over() {
    let (model, mut view) = (running(&[cpu("ant", 4)]), ViewState::new());
    let behind = PresentNews { tone: Tone::Bad, label: "failed".into(), more: 0 };
    view.moment.cursor = Some(TimeCursor { over: true, ..past_of(Some(behind)) });
    for width in [80, 120] {
        let shown = draw(&model, &mut view, &Theme::dark(), Rect { width, ..AREA });
        assert!(shown.contains("5.0s before the end") && shown.contains("failed"), "{width}\n{shown}");
        assert!(!shown.contains("ahead") && !shown.contains("esc live"), "{width}\n{shown}");
    }
}

#[test]
fn without_a_record_there_is_no_line_for_a_time_and_that_is_said() {
    let (model, mut view) = (running(&[cpu("ant", 4)]), ViewState::new());
    view.steering.unrecorded = true;
    for keys in ["T", ",", "<", "(", ":time -5m\n"] {
        view.toasts.clear();
        assert_eq!(press(&model, &mut view, keys), [], "{keys}");
        assert!(!view.overlays.iter().any(|open| matches!(open, Overlay::Time { .. })), "{keys}");
        let shown = screen(&model, &mut view);
        assert!(shown.contains("keeps no record"), "{keys}\n{shown}");
        view.overlays.clear();
    }
}

/// Whatever orders something is listed with the reason why it cannot be used.
#[test]
fn the_help_page_of_a_replay_offers_no_order() {
    let (model, mut view) = (running(&[cpu("ant", 4)]), ViewState::new());
    view.steering.replay = true;
    view.moment.cursor = Some(TimeCursor { at: NOW, end: NOW, zero: 1000.0, ..TimeCursor::default() });
    for (key, word) in [
        ("x", "stop the run"),
        ("X", "kill every"),
        ("r", "from a checkpoint or afresh"),
        ("R", "from any"),
        ("H", "leave hosts"),
    ] {
        let binding = BINDINGS.iter().find(|binding| binding.long.contains(word)).unwrap();
        assert!((binding.disabled)(&model, &view).is_some(), "{key}");
        assert_eq!(press(&model, &mut view, key), [], "{key}");
        assert!(view.overlays.is_empty(), "{key}");
    }
    press(&model, &mut view, "?stop the run");
    let shown = screen(&model, &mut view);
    assert!(shown.contains("this is a recorded run"), "{shown}");
    // Keys of the pages are theirs: charts are zoomed, and a space marks a rank.
    view.overlays.clear();
    press(&model, &mut view, "2+");
    assert_eq!(view.chart.window.zoom, 1);
    press(&model, &mut view, "1 ");
    assert_eq!(view.ranks.marked.len(), 1);
}

#[test]
fn the_end_is_a_page_with_the_cause_and_what_to_do() {
    let (mut model, mut view) = (dead(), ViewState::new());
    screen(&model, &mut view);
    model.run.state = RunState::Over;
    model.run.outcome = Some(Outcome::Failed);
    model.run.reason = "rank 1 on node-b was killed by SIGKILL (signal 9)".into();
    model.run.ended = Some(NOW);
    let died = HistoryLine::new(9, Timestamp(NOW.0 - 2000), Tone::Bad, "rank 1 on node-b was killed");
    model.history.push_back(died);
    let shown = screen(&model, &mut view);
    assert_eq!(view.tab, Tab::End, "it opens by itself when the run ends under the eyes of its user");
    for part in
        ["failed: rank 1", "totals: 1,228,800 steps", "the last minute", "five minutes before", "report"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let before = press(&model, &mut view, "s");
    assert!(matches!(before[..], [Action::Time(TimeMove::To(at))] if at < NOW), "{before:?}");
    assert_eq!(view.tab, Tab::Overview, "where those minutes are to be seen");
    press(&model, &mut view, "7");
    let report = press(&model, &mut view, "y");
    assert!(matches!(&report[..], [Action::Copy(text)] if text.starts_with("# ppo-")), "{report:?}");
    let Action::Copy(text) = &report[0] else { unreachable!() };
    assert!(text.lines().any(|line| line.ends_with("are lost: checkpoints/latest-550.ckpt")), "{text}");
    // Also on the usual small screen the last minute is told, and all that can be done is offered.
    for n in 0..6 {
        let at = Timestamp(NOW.0 - 1000 + n);
        model.history.push_back(HistoryLine::new(10 + n, at, Tone::Bad, format!("event {n} of the end")));
    }
    let shown = screen(&model, &mut view);
    assert!(shown.matches("of the end").count() >= 4, "{shown}");
    for offer in ["log of rank", "evidence", "restart", "restart with changes", "copy a report", "leave"] {
        assert!(shown.contains(offer), "{offer}: {shown}");
    }
    press(&model, &mut view, "1");
    screen(&model, &mut view);
    assert_eq!(view.tab, Tab::Overview, "once");
    let mut late = ViewState::new();
    screen(&model, &mut late);
    assert_eq!(late.tab, Tab::Overview, "who comes later is not led there");
}

#[test]
fn the_end_scrolls_where_it_is_small_and_says_how_much_more_there_is() {
    let (mut model, mut view) = (dead(), ViewState::new());
    model.run.state = RunState::Over;
    model.run.outcome = Some(Outcome::Failed);
    model.run.reason = "rank 1 on node-b was killed by SIGKILL, which a console sent; rank 0 followed".into();
    model.run.ended = Some(NOW);
    for n in 0..8 {
        let at = Timestamp(NOW.0 - 1000 + n);
        model.history.push_back(HistoryLine::new(90 + n, at, Tone::Bad, format!("event {n} of the end")));
    }
    press(&model, &mut view, "7");
    for (width, height) in [(60, 16), (72, 20), (80, 24)] {
        let area = Rect { x: 0, y: 0, width, height };
        view.end_top = None;
        let mut seen = String::new();
        for _ in 0..40 {
            seen += &draw(&model, &mut view, &Theme::dark(), area);
            rankdeck_tui::on_key(&model, &mut view, KeyEvent::from(KeyCode::Char('k')), NOW);
        }
        let top = draw(&model, &mut view, &Theme::dark(), area);
        assert!(top.contains("failed: rank 1") && !top.contains("more ↑"), "{top}");
        if !top.contains("event 7 of the end") {
            assert!(top.contains("more ↓"), "what is cut is said, and how to see it\n{top}");
        }
        for _ in 0..40 {
            seen += &draw(&model, &mut view, &Theme::dark(), area);
            rankdeck_tui::on_key(&model, &mut view, KeyEvent::from(KeyCode::Char('j')), NOW);
        }
        let end = draw(&model, &mut view, &Theme::dark(), area);
        assert!(end.contains("event 7 of the end") && !end.contains("more ↓"), "{end}");
        for text in ["totals:", "last checkpoint", "event 0 of the end", "leave", "copy a report"] {
            assert!(seen.contains(text), "{text} is never seen at {width}x{height}\n{end}");
        }
    }
    let small = Rect { x: 0, y: 0, width: 60, height: 16 };
    view.end_top = None;
    let first = draw(&model, &mut view, &Theme::dark(), small);
    assert!(first.contains("failed: rank 1"), "the cause comes first where not both have room\n{first}");
}
