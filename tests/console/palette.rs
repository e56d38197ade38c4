//! The palette, the looks, and a console that only shows.

use crate::scenes::*;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rankdeck_core::event::Event;
use rankdeck_core::model::Model;
use rankdeck_proto::process::ProcessAction;
use rankdeck_tui::keys::BINDINGS;
use rankdeck_tui::state::{LogScope, Overlay, Sort, Tab};
use rankdeck_tui::time::TimeMove;
use rankdeck_tui::{Action, Glyphs, Theme, ViewState};
use rankdeck_types::ids::Rank;
use ratatui::layout::Rect;

fn draw(model: &Model, view: &mut ViewState, size: (u16, u16)) -> String {
    rows(&cells(model, view, &Theme::dark(), size, NOW))
}

fn press(model: &Model, view: &mut ViewState, keys: &str) -> Vec<Action> {
    press_at(model, view, keys, (120, 40))
}

fn four() -> Model {
    running(&[gpu("node-a", 2), gpu("node-b", 2)])
}

#[test]
fn words_do_what_keys_do_and_take_arguments() {
    let (model, mut view) = (four(), ViewState::new());
    press(&model, &mut view, ":rank 3\n");
    assert_eq!(view.ranks.selected, Some(Rank(3)));
    assert!(matches!(view.overlay(), Some(Overlay::Inspect { rank: Rank(3), .. })));
    press(&model, &mut view, "\x1b:log 2\n");
    assert_eq!(
        (view.tab, view.log.scope, view.ranks.selected),
        (Tab::Logs, LogScope::Selected, Some(Rank(2)))
    );
    press(&model, &mut view, ":sort steps/s up\n:host node-b\n");
    assert_eq!(
        (view.ranks.sort, view.ranks.reverse, view.ranks.filter.as_str()),
        (Sort::Speed, true, "host:node-b")
    );
    press(&model, &mut view, ":charts\n:axis wall\n:smooth 0.9\n");
    assert_eq!((view.tab, view.chart.weight()), (Tab::Charts, 0.9));
    let actions = press(&model, &mut view, ":export\n");
    assert!(matches!(actions.as_slice(), [Action::SaveFiles(files)] if files.len() == 3));
    let actions = press(&model, &mut view, ":restart latest\n");
    assert_eq!(actions, [Action::Tell(Event::restart(Some("latest".into())))]);
    press(&model, &mut view, ":theme cvd\n:glyphs ascii\n");
    assert_eq!((view.style.theme, view.style.glyphs), (Some("cvd"), Some(Glyphs::Ascii)));
}

#[test]
fn keys_runs_formats_and_moments_are_typed() {
    let (model, mut view) = (four(), ViewState::new());
    let actions = press(&model, &mut view, ":export csv svg\n");
    let [Action::SaveFiles(files)] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(files.iter().map(|file| file.ending).collect::<Vec<_>>(), ["csv", "svg"]);
    view.steering.recorded = vec!["ppo-1121".into(), "ppo-1120".into()];
    let actions = press(&model, &mut view, ":compare ppo-112\t1\n");
    assert!(matches!(actions.as_slice(), [Action::Compare(runs)] if runs == &["ppo-1121"]), "{actions:?}");
    assert_eq!(view.tab, Tab::Charts);
    assert!(
        matches!(press(&model, &mut view, ":compare\n").as_slice(), [Action::Compare(runs)] if runs.is_empty())
    );
    press(&model, &mut view, ":set learn.gam\t0.98\n");
    let Some(Overlay::Restart(draft)) = view.overlay() else { panic!("{:?}", view.overlay()) };
    assert_eq!(draft.line, "learn.gamma=0.98");
    view.overlays.clear();
    let actions = press(&model, &mut view, ":time -5m\n");
    assert!(matches!(actions.as_slice(), [Action::Time(TimeMove::Step(0))]));
    assert!(matches!(view.overlay(), Some(Overlay::Time { input }) if input == "-5m"));
    view.overlays.clear();
    assert_eq!(press(&model, &mut view, ":time now\n"), [Action::Time(TimeMove::Present)]);
    for (typed, said) in [
        ("export pdf", "`pdf` is none of them"),
        ("compare a b c d e", "4 runs at most"),
        ("set gamma", "has no `=`"),
    ] {
        view.toasts.clear();
        assert!(press(&model, &mut view, &format!(":{typed}\n")).is_empty(), "{typed}");
        assert!(
            view.toasts.last().is_some_and(|toast| toast.text.contains(said)),
            "{typed}: {:?}",
            view.toasts
        );
    }
}

#[test]
fn a_log_is_opened_at_a_time() {
    use rankdeck_core::model::HeldLine;
    let (mut model, mut view) = (four(), ViewState::new());
    view.chart.utc_offset_s = 0;
    let day = 20_000 * 86_400_000;
    let at = |hour: u64, minute: u64| day + (hour * 60 + minute) * 60_000;
    for (seq, minute) in (0..60).enumerate() {
        let line =
            HeldLine { time_ms: at(3, minute), merge_ms: at(3, minute), ..HeldLine::new(seq as u64, "line") };
        model.ranks[2].log.lines.push_back(line);
    }
    press(&model, &mut view, ":log 2 03:12\n");
    assert_eq!(
        (view.tab, view.log.scope, view.ranks.selected),
        (Tab::Logs, LogScope::Selected, Some(Rank(2)))
    );
    let shown = |view: &ViewState| view.log.hit.map(|place| place.order);
    assert_eq!(shown(&view), Some(12));
    press(&model, &mut view, ":log -9m\n");
    assert_eq!((view.log.scope, shown(&view)), (LogScope::Merged, Some(50)));
    view.toasts.clear();
    press(&model, &mut view, ":log 2 25:00\n");
    assert!(view.toasts.last().unwrap().text.contains("no time"), "{:?}", view.toasts);
}

#[test]
fn what_cannot_be_done_is_said_with_what_can() {
    let (model, mut view) = (four(), ViewState::new());
    for (typed, said) in [
        ("rank 9", "`9` is no rank; there are 0 to 3"),
        ("host nowhere", "there is no host `nowhere`"),
        ("sort up", "`up` sorts nothing; there are rank, host"),
        ("cols +wings", "there is no column `wings`; there are rank"),
        ("cols -rank", "stays"),
        ("theme pink", "theme auto, dark, light"),
        ("smooth 2", "0 to 0.99"),
        ("fly", "`fly` is nothing that can be done"),
        ("rank", "which one?"),
    ] {
        view.toasts.clear();
        let actions = press(&model, &mut view, &format!(":{typed}\n"));
        let toast = view.toasts.last().map(|toast| toast.text.clone()).unwrap_or_default();
        assert!(actions.is_empty() && toast.contains(said), "{typed}: {toast}");
    }
}

#[test]
fn lines_are_completed_and_remembered() {
    let (model, mut view) = (four(), ViewState::new());
    press(&model, &mut view, ":the\tli\t\n");
    assert_eq!(view.style.theme, Some("light"));
    press(&model, &mut view, ":host node-\tb\n");
    assert_eq!(view.ranks.filter, "host:node-b");
    press(&model, &mut view, ":theme dark\n:↑↑↑\n");
    assert_eq!(view.style.theme, Some("light"), "the third line back is run again");
    press(&model, &mut view, ":");
    for size in [(60, 16), (80, 24), (200, 60)] {
        let drawn = draw(&model, &mut view, size);
        for word in ["type what to do", "rank", "search"] {
            assert!(drawn.contains(word) || size.1 < 20, "{size:?} {word}\n{drawn}");
        }
    }
    press(&model, &mut view, "log ");
    assert!(draw(&model, &mut view, (80, 24)).contains("log 3"), "arguments are offered");
}

#[test]
fn columns_are_the_users_choice() {
    let (model, mut view) = (four(), ViewState::new());
    let head = |view: &mut ViewState| {
        let drawn = draw(&model, view, (80, 24));
        drawn.lines().find(|line| line.contains("RANK")).unwrap_or_default().to_string()
    };
    assert!(!head(&mut view).contains("PID") && head(&mut view).contains("MEM"));
    press(&model, &mut view, ":cols +pid -memory\n");
    assert!(head(&mut view).contains("PID") && !head(&mut view).contains("MEM"), "{}", head(&mut view));
    press(&model, &mut view, ":cols\n");
    assert!(!head(&mut view).contains("PID") && head(&mut view).contains("MEM"));
}

#[test]
fn a_read_only_console_changes_nothing_whatever_is_pressed() {
    let keys = || BINDINGS.iter().flat_map(|binding| binding.keys.iter().copied());
    let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    for model in [four(), over(), on_the_way(), behind()] {
        let mut view = ViewState::new();
        view.steering.read_only = true;
        let mut told = Vec::new();
        for first in keys().chain([ctrl_c]) {
            for second in keys().chain([KeyEvent::from(KeyCode::Enter), KeyEvent::from(KeyCode::Char('y'))]) {
                view.overlays.clear();
                for key in [first, second] {
                    rankdeck_tui::layout(&model, &mut view, Rect::new(0, 0, 120, 40));
                    told.extend(rankdeck_tui::on_key(&model, &mut view, key, NOW));
                }
            }
        }
        for line in ["restart latest", "restart afresh", "stop", "kill", "restart", "other hosts"] {
            view.overlays.clear();
            view.tab = Tab::Overview;
            told.extend(press(&model, &mut view, &format!("\x1b:{line}\n\n")));
        }
        let changes = |action: &&Action| match action {
            Action::Tell(event) => !matches!(
                event,
                Event::DetachRequested
                    | Event::PromptAnswered { .. }
                    | Event::LookRequested { .. }
                    | Event::ReachRequested { action: ProcessAction::Environment, .. }
            ),
            Action::Shell(_) => true,
            _ => false,
        };
        assert_eq!(told.iter().find(changes), None);
        view.overlays.clear();
        assert!(draw(&model, &mut view, (80, 24)).contains("read-only"));
    }
}
