//! Keys, the mouse and pastes, and that no screen panics. The scenes are in `tests/console/scenes`.

mod mouse;
mod moving;
mod orders;
mod panes;
mod past;
mod processes;
mod random;
mod shrinking;

use crate::scenes::*;
use crossterm::event::{
    KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use proptest::prelude::*;
use rankdeck_core::event::Event;
use rankdeck_core::model::*;
use rankdeck_core::report::{RunOutcome, Severity, VerdictKind};
use rankdeck_proto::message::*;
use rankdeck_tui::keys::{ScreenCommand, TABLE};
use rankdeck_tui::state::{
    EventCard, HostPicker, INPUT_LIMIT, Inspector, LogScope, Overlay, Pane, Sort, Tab,
};
use rankdeck_tui::time::{PresentNews, TimeCursor, TimeMove, TimelineMark};
use rankdeck_tui::{Glyphs, Role, ScreenAction, Theme, ViewState};
use rankdeck_types::ids::{NodeRank, Rank, Timestamp};
use rankdeck_types::link_state::{LinkState, Prompt};
use ratatui::layout::Rect;

pub const AREA: Rect = Rect { x: 0, y: 0, width: 80, height: 24 };

pub fn draw(model: &Model, view: &mut ViewState, theme: &Theme, area: Rect) -> String {
    rows(&cells(model, view, theme, (area.width, area.height), NOW))
}

pub fn screen(model: &Model, view: &mut ViewState) -> String {
    draw(model, view, &Theme::dark(), AREA)
}

pub fn tap(model: &Model, view: &mut ViewState, code: KeyCode, with: KeyModifiers) -> Vec<ScreenAction> {
    rankdeck_tui::layout(model, view, AREA);
    let actions = rankdeck_tui::on_key(model, view, KeyEvent::new(code, with), NOW);
    rankdeck_tui::layout(model, view, AREA);
    actions
}

pub fn press(model: &Model, view: &mut ViewState, keys: &str) -> Vec<ScreenAction> {
    keys.chars().flat_map(|c| tap(model, view, key_code(c), KeyModifiers::NONE)).collect()
}

pub fn ctrl(model: &Model, view: &mut ViewState, c: char) -> Vec<ScreenAction> {
    tap(model, view, KeyCode::Char(c), KeyModifiers::CONTROL)
}

pub fn four() -> Model {
    running(&[cpu("node-a", 2), cpu("node-b", 2)])
}

pub fn many() -> Model {
    running(&["a", "b", "c", "d", "e", "f", "g", "h"].map(|name| gpu(name, 8)))
}
