//! Shows the output of the latest command, and draws output for other overlays.

use crate::home::model::Home;
use crate::home::{Cx, DrawCtx, Handled, HomeUi, HomeView};
use crossterm::event::{KeyCode, KeyEvent};
use rankdeck_kit::overlay::wheel_as_arrows;
use rankdeck_kit::{Component, Role, text};
use rankdeck_types::words::clean;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Widget};

/// Rows of a page key.
const PAGE: usize = 10;

/// The output of the latest command. Keys that do not scroll close it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OutputView {
    /// The first visible line.
    top: usize,
}

impl Component<HomeUi> for OutputView {
    fn on_key(&mut self, _: &Home, key: KeyEvent, _: &mut Cx<'_>) -> Handled {
        self.top = match key.code {
            KeyCode::Down | KeyCode::Char('j') => self.top + 1,
            KeyCode::Up | KeyCode::Char('k') => self.top.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.top + PAGE,
            KeyCode::PageUp => self.top.saturating_sub(PAGE),
            KeyCode::Home | KeyCode::Char('g') => 0,
            _ => return Handled::Close,
        };
        Handled::Done
    }

    fn on_wheel(&mut self, home: &Home, rows: isize, cx: &mut Cx<'_>) -> Handled {
        wheel_as_arrows(self, home, rows, cx)
    }

    fn draw(&self, home: &Home, _: &HomeView, cx: &DrawCtx<'_>, buf: &mut Buffer) {
        let Some(latest) = &home.last_output else { return };
        let cells = cx.screen.width.saturating_sub(8);
        let wrapped = latest.lines.iter().flat_map(|line| {
            text::wrap(&clean(line), cells.into()).into_iter().map(|part| (part, role_of(line)))
        });
        let lines: Vec<(String, Role)> = wrapped.collect();
        let role = if latest.succeeded { Role::Good } else { Role::Bad };
        let inner = cx.popup(buf, (cells, lines.len().max(1) as u16), role, &latest.title, "");
        let top = self.top.min(lines.len().saturating_sub(inner.height.into()));
        let visible = lines.iter().skip(top).map(|(line, role)| Line::from(cx.s(line, *role)));
        Paragraph::new(visible.collect::<Vec<_>>()).render(inner, buf);
    }

    fn hint(&self, _: &Home, _: &HomeView, _: &DrawCtx<'_>) -> String {
        "j/k scroll   esc closes".into()
    }

    fn closes_on_click_beside(&self) -> bool {
        true
    }
}

/// Draws output without wrapping: lines keep their columns and are cut.
pub(super) fn draw_lines(cx: &DrawCtx<'_>, buf: &mut Buffer, area: Rect, lines: &[String]) {
    let line = |line: &String| Line::from(cx.s(cx.cut(line, area.width.into()), role_of(line)));
    Paragraph::new(lines.iter().map(line).collect::<Vec<_>>()).render(area, buf);
}

/// Returns the role of a line of output.
fn role_of(line: &str) -> Role {
    match line.split(':').next() {
        Some("error") => Role::Bad,
        Some("warning") => Role::Warn,
        Some("hint" | "note") => Role::Dim,
        _ => Role::Text,
    }
}
