//! Panes that are made larger and smaller, by the mouse and by keys.

use super::*;
use rankdeck_tui::state::PaneSizes;

const WIDE: Rect = Rect { x: 0, y: 0, width: 160, height: 50 };

fn at_size(model: &Model, view: &mut ViewState, area: Rect) {
    rankdeck_tui::layout(model, view, area);
}

fn mouse(model: &Model, view: &mut ViewState, area: Rect, kind: MouseEventKind, at: (u16, u16)) {
    at_size(model, view, area);
    let event = MouseEvent { kind, column: at.0, row: at.1, modifiers: KeyModifiers::NONE };
    rankdeck_tui::on_mouse(model, view, event, NOW);
    at_size(model, view, area);
}

fn drag(model: &Model, view: &mut ViewState, area: Rect, from: (u16, u16), to: (u16, u16)) {
    mouse(model, view, area, MouseEventKind::Down(MouseButton::Left), from);
    mouse(model, view, area, MouseEventKind::Drag(MouseButton::Left), to);
    mouse(model, view, area, MouseEventKind::Up(MouseButton::Left), to);
}

fn height(view: &ViewState, pane: Pane) -> u16 {
    view.geometry.pane(pane).height
}

fn width(view: &ViewState, pane: Pane) -> u16 {
    view.geometry.pane(pane).width
}

/// No pane of the page covers another, and together they fill it.
fn assert_whole(view: &ViewState) {
    let panes: Vec<Rect> = view.geometry.panes().into_iter().map(|pane| view.geometry.pane(pane)).collect();
    for (i, one) in panes.iter().enumerate() {
        assert_eq!(one.intersection(view.geometry.body), *one, "{panes:?}");
        assert!(panes[i + 1..].iter().all(|other| one.intersection(*other).is_empty()), "{panes:?}");
    }
    let cells: u32 = panes.iter().map(|pane| pane.area()).sum();
    let body = view.geometry.body;
    assert!(cells + 2 * u32::from(body.width) >= body.area(), "{panes:?} in {body:?}");
}

#[test]
fn dragged_borders_stay_in_bounds_and_panes_fill_the_page() {
    let (model, mut view) = (four(), ViewState::new());
    for area in [WIDE, AREA] {
        view.sizes = PaneSizes::default();
        at_size(&model, &mut view, area);
        let ranks = view.geometry.pane(Pane::Ranks);
        drag(&model, &mut view, area, (30, ranks.bottom()), (30, ranks.bottom() + 3));
        assert_eq!(height(&view, Pane::Ranks), ranks.height + 3, "{area}");
        assert_whole(&view);
        for to in [0, 200] {
            let border = view.geometry.pane(Pane::Ranks).bottom();
            drag(&model, &mut view, area, (30, border), (30, to));
            assert!(
                height(&view, Pane::Ranks) >= 4 && height(&view, Pane::Charts) >= 3,
                "{:?}",
                view.geometry
            );
            assert_whole(&view);
        }
    }
}

#[test]
fn vertical_borders_can_be_dragged() {
    let (model, mut view) = (four(), ViewState::new());
    at_size(&model, &mut view, WIDE);
    let (evals, events) = (view.geometry.pane(Pane::Evals), view.geometry.pane(Pane::Events));
    let row = evals.y + 2;
    drag(&model, &mut view, WIDE, (evals.right(), row), (evals.right() + 9, row));
    assert_eq!(width(&view, Pane::Evals), evals.width + 9);
    drag(&model, &mut view, WIDE, (events.x, row), (events.x - 11, row));
    assert_eq!(width(&view, Pane::Events), events.width + 11);
    assert_whole(&view);
    let log = view.geometry.pane(Pane::Log).x;
    drag(&model, &mut view, WIDE, (log, row), (159, row));
    assert!(width(&view, Pane::Log) >= 20 && width(&view, Pane::Events) >= 20, "{:?}", view.geometry);
    assert_whole(&view);
    // What is dragged from elsewhere moves no border.
    let before = view.sizes;
    drag(&model, &mut view, WIDE, (evals.x + 5, row), (60, row));
    assert_eq!(view.sizes, before);
}

#[test]
fn keys_resize_the_focused_pane_and_reset_sizes() {
    let (model, mut view) = (four(), ViewState::new());
    let key = |view: &mut ViewState, code| {
        at_size(&model, view, WIDE);
        rankdeck_tui::on_key(&model, view, KeyEvent::new(code, KeyModifiers::CONTROL), NOW);
        at_size(&model, view, WIDE);
    };
    at_size(&model, &mut view, WIDE);
    let usual = view.geometry.clone();
    key(&mut view, KeyCode::Down);
    assert_eq!(height(&view, Pane::Ranks), usual.pane(Pane::Ranks).height + 1);
    key(&mut view, KeyCode::Up);
    assert_eq!(height(&view, Pane::Ranks), usual.pane(Pane::Ranks).height);
    view.focus = Pane::Log;
    let log = usual.pane(Pane::Log);
    key(&mut view, KeyCode::Down);
    assert_eq!(height(&view, Pane::Log), log.height + 1, "the charts give it");
    key(&mut view, KeyCode::Right);
    assert_eq!(width(&view, Pane::Log), log.width + 2);
    // Steps against a bound do not add up: the first step back has an effect.
    view.focus = Pane::Ranks;
    (0..100).for_each(|_| key(&mut view, KeyCode::Down));
    let most = height(&view, Pane::Ranks);
    key(&mut view, KeyCode::Up);
    assert_eq!(height(&view, Pane::Ranks), most - 1);
    assert_whole(&view);
    rankdeck_tui::on_key(&model, &mut view, KeyEvent::from(KeyCode::Char('Z')), NOW);
    at_size(&model, &mut view, WIDE);
    assert_eq!(view.geometry, usual);
}

#[test]
fn pane_sizes_scale_with_the_terminal() {
    let (model, mut view) = (four(), ViewState::new());
    press(&model, &mut view, ":panes ranks=40 evals=30\n");
    assert_eq!(view.sizes.words(), ["ranks=40", "evals=30"]);
    for size in [(160, 50), (200, 60), (100, 30), (80, 24), (60, 16), (20, 5), (160, 50)] {
        let area = Rect::new(0, 0, size.0, size.1);
        draw(&model, &mut view, &Theme::dark(), area);
        if size.1 >= 24 {
            let share = f64::from(height(&view, Pane::Ranks)) / f64::from(view.geometry.body.height);
            assert!((0.34..=0.42).contains(&share), "{size:?}: {share}");
            assert_whole(&view);
        }
    }
    press(&model, &mut view, "41");
    assert_eq!(view.sizes.words(), ["ranks=40", "evals=30"]);
    press(&model, &mut view, "z");
    at_size(&model, &mut view, AREA);
    assert_eq!(view.geometry.panes(), [Pane::Ranks], "one pane has the page");
    press(&model, &mut view, "z:panes ranks=2\n");
    assert!(toasts(&view).contains("5 to 95"), "{:?}", view.toasts);
}
