//! A scene on a terminal: how it is drawn, and what keys do to it.

use super::NOW;
use crossterm::event::{KeyCode, KeyEvent};
use rankdeck_core::model::Model;
use rankdeck_tui::state::Overlay;
use rankdeck_tui::{ScreenAction, Theme, ViewState};
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

/// The rows of an area.
pub fn rows_in(buffer: &Buffer, area: Rect) -> String {
    let area = area.intersection(buffer.area);
    let row = |y| (area.left()..area.right()).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (area.top()..area.bottom()).map(row).collect::<Vec<_>>().join("\n")
}

/// The rows above the page: title, progress, totals, status.
pub fn head(model: &Model, view: &mut ViewState, size: (u16, u16), now: Timestamp) -> String {
    let buffer = cells(model, view, &Theme::dark(), size, now);
    rows_in(&buffer, Rect { height: view.geometry.body.top(), ..buffer.area })
}

/// The steps of a test and what each shows. Its snapshot has the words, so that the test has none.
#[derive(Default)]
pub struct Transcript(pub String);

impl Transcript {
    /// Adds a step, and what it shows without empty rows.
    pub fn add(&mut self, step: &str, shown: &str) {
        self.0 += &format!("== {step}\n");
        for row in shown.lines().map(str::trim_end).filter(|row| !row.is_empty()) {
            self.0 += &format!("{row}\n");
        }
    }
}

/// The toasts, oldest first, one per line.
pub fn toasts(view: &ViewState) -> String {
    view.toasts.iter().map(|toast| format!("{}\n", toast.text)).collect()
}

/// The open question with its choices.
pub fn question(view: &ViewState) -> String {
    let Some(Overlay::Confirm(question)) = view.overlay() else { panic!("{:?}", view.overlays) };
    let choices = question.choices.iter().map(|choice| format!("[{}] {}", choice.key, choice.label));
    let lines = [question.title.clone()].into_iter().chain(question.text.clone()).chain(choices);
    lines.collect::<Vec<_>>().join("\n")
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
pub fn press_at(
    model: &Model,
    view: &mut ViewState,
    keys: &str,
    (width, height): (u16, u16),
) -> Vec<ScreenAction> {
    let area = Rect::new(0, 0, width, height);
    let mut actions = Vec::new();
    for c in keys.chars() {
        rankdeck_tui::layout(model, view, area);
        actions.extend(rankdeck_tui::on_key(model, view, KeyEvent::from(key_code(c)), NOW));
    }
    rankdeck_tui::layout(model, view, area);
    actions
}
