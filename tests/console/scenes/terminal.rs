//! A scene on a terminal: how it is drawn, and what keys do to it.

use super::NOW;
use crossterm::event::{KeyCode, KeyEvent};
use rankdeck_core::model::Model;
use rankdeck_tui::{Action, Theme, ViewState};
use rankdeck_types::ids::Timestamp;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

/// The cells of a terminal of this size.
pub fn cells(
    model: &Model,
    view: &mut ViewState,
    theme: &Theme,
    (width, height): (u16, u16),
    now: Timestamp,
) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|frame| {
            rankdeck_tui::layout(model, view, frame.area());
            rankdeck_tui::view(model, view, theme, now, frame);
        })
        .unwrap();
    terminal.backend().buffer().clone()
}

/// Their characters, row by row.
pub fn rows(buffer: &Buffer) -> String {
    let row = |y| (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..buffer.area.height).map(row).collect::<Vec<_>>().join("\n")
}

/// The key that stands for a character.
pub fn key_code(c: char) -> KeyCode {
    match c {
        '\n' => KeyCode::Enter,
        '\t' => KeyCode::Tab,
        '\x1b' => KeyCode::Esc,
        '\u{8}' => KeyCode::Backspace,
        '↑' => KeyCode::Up,
        '↓' => KeyCode::Down,
        c => KeyCode::Char(c),
    }
}

/// Presses characters one after the other, with a layout before each as the shell does it, and one at the
/// end.
pub fn press_at(model: &Model, view: &mut ViewState, keys: &str, (width, height): (u16, u16)) -> Vec<Action> {
    let area = Rect::new(0, 0, width, height);
    let mut actions = Vec::new();
    for c in keys.chars() {
        rankdeck_tui::layout(model, view, area);
        actions.extend(rankdeck_tui::on_key(model, view, KeyEvent::from(key_code(c)), NOW));
    }
    rankdeck_tui::layout(model, view, area);
    actions
}
