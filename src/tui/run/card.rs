//! Draws cards: labeled values, and lines in a box that are scrolled.

use crate::run::DrawCtx;
use rankdeck_kit::{Role, put, text};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Widget};

/// Most lines of a card.
pub const LINES: usize = 8000;
/// Cells of labels.
pub const LABEL: usize = 12;
/// A labeled value: label, text, severity.
pub type LabeledValue = (&'static str, String, Role);

/// Cells that a card's lines may take on this screen.
pub fn cells(screen: Rect, most: usize) -> usize {
    usize::from(screen.width.saturating_sub(6)).min(most)
}

/// Draws lines in a box, scrolled by `top` as far as there is more.
pub fn draw(
    cx: &DrawCtx<'_>,
    buf: &mut Buffer,
    role: Role,
    title: &str,
    lines: Vec<Line<'static>>,
    (top, cells): (usize, usize),
) {
    let size = (cells as u16, lines.len().min(LINES) as u16);
    let inner = cx.popup(buf, size, role, title, "");
    let height = usize::from(inner.height);
    let top = top.min(lines.len().saturating_sub(height));
    let more = lines.len().saturating_sub(top + height);
    Paragraph::new(lines).scroll((top as u16, 0)).render(inner, buf);
    if more > 0 && height > 0 {
        let text = format!(" {more} more {} ", cx.glyphs().pick("↓", "v"));
        let below = Rect { y: inner.y + inner.height, height: 1, ..inner };
        put(buf, below, 0, Line::from(cx.s(text, Role::Dim)).right_aligned());
    }
}

/// Clamps the scroll position of a card by its number of rows.
pub fn clamp(top: &mut usize, rows: usize, screen: Rect) {
    let height = usize::from(screen.height.saturating_sub(4));
    *top = (*top).min(rows.saturating_sub(height));
}

/// Labeled values as lines, long ones wrapped next to their label.
pub fn value_lines(cx: &DrawCtx<'_>, values: &[LabeledValue], cells: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for (label, text, role) in values {
        for (i, part) in text::wrap_point(text, cells.saturating_sub(LABEL)).into_iter().enumerate() {
            let label = if i == 0 { label } else { "" };
            lines.push(Line::from(vec![cx.s(format!("{label:<LABEL$}"), Role::Dim), cx.s(part, *role)]));
        }
    }
    lines
}

/// Lines that [`value_lines`] makes.
pub fn value_rows(values: &[LabeledValue], cells: usize) -> usize {
    values.iter().map(|value| text::wrap_point(&value.1, cells.saturating_sub(LABEL)).len()).sum()
}

/// Scrolls; down is positive.
pub fn scroll(top: &mut usize, rows: i64) {
    *top = (*top as i64).saturating_add(rows).clamp(0, LINES as i64) as usize;
}
