//! The palette, theme and glyphs, and a read-only console.

use crate::scenes::*;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rankdeck_core::event::Event;
use rankdeck_core::model::Model;
use rankdeck_proto::process::ProcessAction;
use rankdeck_tui::keys::TABLE;
use rankdeck_tui::state::{Inspector, LogScope, Overlay, Sort, Tab};
use rankdeck_tui::time::TimeMove;
use rankdeck_tui::{Glyphs, ScreenAction, Theme, ViewState};
use rankdeck_types::ids::Rank;
use ratatui::layout::Rect;

fn draw(model: &Model, view: &mut ViewState, size: (u16, u16)) -> String {
    rows(&cells(model, view, &Theme::dark(), size, NOW))
}

fn press(model: &Model, view: &mut ViewState, keys: &str) -> Vec<ScreenAction> {
    press_at(model, view, keys, (120, 40))
}

fn four() -> Model {
    running(&[gpu("node-a", 2), gpu("node-b", 2)])
}

#[test]
fn commands_do_what_keys_do() {
    let (model, mut view) = (four(), ViewState::new());
    press(&model, &mut view, ":rank 3\n");
    assert_eq!(view.selected, Some(Rank(3)));
    assert!(matches!(view.overlay(), Some(Overlay::Inspect(Inspector { rank: Rank(3), .. }))));
    press(&model, &mut view, "\x1b:log 2\n");
    assert_eq!((view.tab, view.log.scope, view.selected), (Tab::Logs, LogScope::Selected, Some(Rank(2))));
    press(&model, &mut view, ":sort steps/s up\n:host node-b\n");
    assert_eq!(
        (view.ranks.sort, view.ranks.reverse, view.ranks.filter.as_str()),
        (Sort::Speed, true, "host:node-b")
    );
    press(&model, &mut view, ":charts\n:axis wall\n:smooth 0.9\n");
    assert_eq!((view.tab, view.charts.view.weight()), (Tab::Charts, 0.9));
    let actions = press(&model, &mut view, ":export\n");
    assert!(matches!(actions.as_slice(), [ScreenAction::SaveFiles(files)] if files.len() == 3));
    press(&model, &mut view, ":theme cvd\n:glyphs ascii\n");
    assert_eq!((view.style.theme, view.style.glyphs), (Some("cvd"), Some(Glyphs::Ascii)));
}

#[test]
fn commands_take_keys_runs_formats_and_times() {
    let (model, mut view) = (four(), ViewState::new());
    let actions = press(&model, &mut view, ":export csv svg\n");
    let [ScreenAction::SaveFiles(files)] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(files.iter().map(|file| file.ending).collect::<Vec<_>>(), ["csv", "svg"]);
    view.steering.recorded = vec!["ppo-1121".into(), "ppo-1120".into()];
    let actions = press(&model, &mut view, ":compare ppo-112\t1\n");
    assert!(
        matches!(actions.as_slice(), [ScreenAction::Compare(runs)] if runs == &["ppo-1121"]),
        "{actions:?}"
    );
    assert_eq!(view.tab, Tab::Charts);
    assert!(
        matches!(press(&model, &mut view, ":compare\n").as_slice(), [ScreenAction::Compare(runs)] if runs.is_empty())
    );
    press(&model, &mut view, ":set learn.gam\t0.98\n");
    let Some(Overlay::Restart(draft)) = view.overlay() else { panic!("{:?}", view.overlay()) };
    assert_eq!(draft.0.line, "learn.gamma=0.98");
    view.overlays.clear();
    let actions = press(&model, &mut view, ":time -5m\n");
    assert!(matches!(actions.as_slice(), [ScreenAction::Time(TimeMove::Step(0))]));
    assert!(matches!(view.overlay(), Some(Overlay::Time(input)) if input.line == "-5m"));
    view.overlays.clear();
    assert_eq!(press(&model, &mut view, ":time now\n"), [ScreenAction::Time(TimeMove::Present)]);
    let mut shown = Transcript::default();
    for typed in ["export pdf", "compare a b c d e", "set gamma"] {
        view.toasts.clear();
        assert!(press(&model, &mut view, &format!(":{typed}\n")).is_empty(), "{typed}");
        shown.add(typed, &toasts(&view));
    }
    insta::assert_snapshot!(shown.0);
}

#[test]
fn palette_opens_a_log_at_a_time() {
    use rankdeck_core::model::HeldLine;
    let (mut model, mut view) = (four(), ViewState::new());
    view.style.utc_offset_s = 0;
    let day = 20_000 * 86_400_000;
    let at = |hour: u64, minute: u64| day + (hour * 60 + minute) * 60_000;
    for (seq, minute) in (0..60).enumerate() {
        let line =
            HeldLine { time_ms: at(3, minute), merge_ms: at(3, minute), ..HeldLine::new(seq as u64, "line") };
        model.ranks[2].log.lines.push_back(line);
    }
    press(&model, &mut view, ":log 2 03:12\n");
    assert_eq!((view.tab, view.log.scope, view.selected), (Tab::Logs, LogScope::Selected, Some(Rank(2))));
    let shown = |view: &ViewState| view.log.hit.map(|place| place.order);
    assert_eq!(shown(&view), Some(12));
    press(&model, &mut view, ":log -9m\n");
    assert_eq!((view.log.scope, shown(&view)), (LogScope::Merged, Some(50)));
    view.toasts.clear();
    press(&model, &mut view, ":log 2 25:00\n");
    insta::assert_snapshot!(toasts(&view));
}

#[test]
fn invalid_command_shows_the_valid_ones() {
    let (model, mut view) = (four(), ViewState::new());
    let mut shown = Transcript::default();
    for typed in [
        "rank 9",
        "host nowhere",
        "sort up",
        "cols +wings",
        "cols -rank",
        "theme pink",
        "smooth 2",
        "fly",
        "rank",
    ] {
        view.toasts.clear();
        assert_eq!(press(&model, &mut view, &format!(":{typed}\n")), [], "{typed}");
        shown.add(typed, &toasts(&view));
    }
    insta::assert_snapshot!(shown.0);
}

#[test]
fn commands_are_completed_and_remembered() {
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
        for word in ["command", "rank", "search"] {
            assert!(drawn.contains(word) || size.1 < 20, "{size:?} {word}\n{drawn}");
        }
    }
    press(&model, &mut view, "log ");
    assert!(draw(&model, &mut view, (80, 24)).contains("log 3"), "arguments are suggested");
}

#[test]
fn columns_are_chosen_by_command() {
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
fn ctrl_c_in_an_attached_console_only_detaches() {
    let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    let mut view = ViewState::new();
    view.steering.attached = true;
    let actions: Vec<_> =
        (0..3).flat_map(|_| rankdeck_tui::on_key(&four(), &mut view, ctrl_c, NOW)).collect();
    assert_eq!(actions, [rankdeck_tui::ScreenAction::leave(), rankdeck_tui::ScreenAction::leave()]);
}

#[test]
fn read_only_console_sends_no_order() {
    let keys = || TABLE.iter().flat_map(|binding| binding.keys.iter().copied());
    let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    for model in [four(), over(), on_the_way(), behind()] {
        let mut view = ViewState::new();
        view.steering.read_only = true;
        let mut actions = Vec::new();
        for first in keys().chain([ctrl_c]) {
            for second in keys().chain([KeyEvent::from(KeyCode::Enter), KeyEvent::from(KeyCode::Char('y'))]) {
                view.overlays.clear();
                for key in [first, second] {
                    rankdeck_tui::layout(&model, &mut view, Rect::new(0, 0, 120, 40));
                    actions.extend(rankdeck_tui::on_key(&model, &mut view, key, NOW));
                }
            }
        }
        for line in ["restart latest", "restart scratch", "stop", "kill", "restart", "other hosts"] {
            view.overlays.clear();
            view.tab = Tab::Overview;
            actions.extend(press(&model, &mut view, &format!("\x1b:{line}\n\n")));
        }
        let changes = |action: &&ScreenAction| match action {
            ScreenAction::Send(event) => !matches!(
                event,
                Event::DetachRequested
                    | Event::PromptAnswered { .. }
                    | Event::InspectRequested { .. }
                    | Event::ProcessActionRequested { action: ProcessAction::Environment, .. }
            ),
            ScreenAction::Shell(_) => true,
            _ => false,
        };
        assert_eq!(actions.iter().find(changes), None);
        let (mut read_only, mut usual) = (ViewState::new(), ViewState::new());
        read_only.steering.read_only = true;
        let title = |view: &mut ViewState| draw(&model, view, (80, 24)).lines().next().unwrap().to_owned();
        assert_ne!(title(&mut read_only), title(&mut usual), "it is marked");
    }
}
