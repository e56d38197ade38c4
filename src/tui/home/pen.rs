//! What drawing needs besides the data, and the parts that pages share.

use crate::target::Targets;
use crate::text;
use crate::theme::{Role, Theme};
use crate::widgets::frame::boxed;
use crate::widgets::put;
use crossterm::event::KeyEvent;
use rankdeck_types::ids::Timestamp;
use rankdeck_types::words::clean;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// What drawing needs besides the data.
pub(super) struct Pen<'a> {
    pub theme: &'a Theme,
    pub now: Timestamp,
    /// What can be pressed, as far as it was drawn; `None`: nothing, nor what lies below.
    pub targets: Targets<Option<KeyEvent>>,
}

impl Pen<'_> {
    /// Text with a meaning.
    pub fn s(&self, text: impl Into<String>, role: Role) -> Span<'static> {
        Span::styled(text.into(), self.theme.style(role))
    }

    /// `text` cut to `cells`.
    pub fn cut(&self, text: &str, cells: usize) -> String {
        text::cut(&clean(text), cells, self.theme.glyphs)
    }

    /// Text in a column.
    pub fn left(&self, text: &str, cells: usize) -> String {
        text::left(&clean(text), cells, self.theme.glyphs)
    }

    /// A number in a column.
    pub fn right(&self, text: &str, cells: usize) -> String {
        text::right(text, cells, self.theme.glyphs)
    }

    /// What stands before a row.
    pub fn cursor(&self, selected: bool, marked: bool) -> Span<'static> {
        let glyphs = self.theme.glyphs;
        let cursor = if selected { glyphs.pick("▸", ">") } else { " " };
        let mark = if marked { glyphs.pick("◆", "*") } else { " " };
        self.s(format!("{cursor}{mark}"), Role::Accent)
    }

    /// The selected row, to its end.
    pub fn row(&self, buf: &mut Buffer, area: Rect, row: usize, line: Line<'static>, selected: bool) {
        put(buf, area, row, line);
        if selected
            && let Ok(row) = u16::try_from(row)
            && row < area.height
        {
            let style = self.theme.strong.add_modifier(ratatui::style::Modifier::REVERSED);
            let style = if self.theme.name == "mono" { style } else { self.theme.strong };
            buf.set_style(Rect { y: area.y + row, height: 1, ..area }, style);
        }
    }
}

/// A rule with a title.
pub(super) fn rule(pen: &Pen<'_>, buf: &mut Buffer, area: Rect, title: &str) {
    let dash = pen.theme.glyphs.border().horizontal_top;
    let line = format!("{dash} ");
    let rest = usize::from(area.width).saturating_sub(text::width(title) + 3);
    let spans = vec![
        Span::styled(line, pen.theme.border),
        pen.s(title, Role::Strong),
        Span::styled(format!(" {}", dash.repeat(rest)), pen.theme.border),
    ];
    put(buf, area, 0, Line::from(spans));
}

/// Lines of text, wrapped, as many as fit; the first ones are left out.
pub(super) fn paragraph(pen: &Pen<'_>, buf: &mut Buffer, area: Rect, lines: &[(String, Role)], skip: usize) {
    let cells = usize::from(area.width);
    let wrapped = lines
        .iter()
        .flat_map(|(line, role)| text::wrap(&clean(line), cells).into_iter().map(move |part| (part, *role)));
    for (row, (part, role)) in wrapped.skip(skip).take(area.height.into()).enumerate() {
        put(buf, area, row, Line::from(pen.s(part, role)));
    }
}

/// A box in the middle of the screen; returns what is inside.
pub(super) fn popup(
    pen: &Pen<'_>,
    screen: Rect,
    buf: &mut Buffer,
    size: (u16, u16),
    role: Role,
    title: &str,
) -> Rect {
    let inner = boxed(pen.theme, screen, buf, size, role, title, "");
    if !inner.is_empty() {
        let (x, y) = (inner.x.saturating_sub(2), inner.y.saturating_sub(1));
        pen.targets.put(Rect { x, y, width: inner.width + 4, height: inner.height + 2 }, None);
    }
    inner
}
