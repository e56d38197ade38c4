//! Provides the drawing context and the functions that put lines on the screen.

use crate::target::{Target, Targets};
use crate::text;
use crate::theme::{Glyphs, Role, Theme};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::words::clean;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Widget};
use std::borrow::Cow;

/// What drawing needs besides the data: `T` is what a click can mean on this screen, besides keys and rows.
pub struct DrawCtx<'a, T> {
    /// Styles and glyphs.
    pub theme: &'a Theme,
    /// The current time of the clock that toasts and ages count by.
    pub now: Timestamp,
    /// The whole screen, or the part of it that overlays may use.
    pub screen: Rect,
    /// What can be clicked, as far as it was drawn.
    pub targets: Targets<T>,
}

impl<'a, T: Clone> DrawCtx<'a, T> {
    /// A context without click targets yet.
    pub fn new(theme: &'a Theme, now: Timestamp, screen: Rect) -> DrawCtx<'a, T> {
        DrawCtx { theme, now, screen, targets: Targets::default() }
    }

    /// Text in the style of a role.
    pub fn s(&self, text: impl Into<String>, role: Role) -> Span<'static> {
        Span::styled(text.into(), self.theme.style(role))
    }

    /// Makes a place clickable.
    pub fn target(&self, place: Rect, target: Target<T>) {
        self.targets.put(place, target);
    }

    /// Which characters may be used.
    pub fn glyphs(&self) -> Glyphs {
        self.theme.glyphs
    }

    /// A separator between facts of a line.
    pub fn dot(&self) -> Span<'static> {
        self.s(format!(" {} ", self.glyphs().pick("·", "-")), Role::Dim)
    }

    /// A label and its value.
    pub fn fact(&self, label: &str, value: impl Into<String>) -> [Span<'static>; 2] {
        [self.s(format!("{label} "), Role::Dim), self.s(value, Role::Text)]
    }

    /// Untrusted text, cut to `cells`.
    pub fn cut(&self, text: &str, cells: usize) -> String {
        text::cut(&cleaned(text), cells, self.glyphs())
    }

    /// Untrusted text, cut or padded on the right to `cells`.
    pub fn left(&self, text: &str, cells: usize) -> String {
        text::left(&cleaned(text), cells, self.glyphs())
    }

    /// Untrusted text, cut or padded on the left to `cells`.
    pub fn right(&self, text: &str, cells: usize) -> String {
        text::right(&cleaned(text), cells, self.glyphs())
    }

    /// The cursor of a text input.
    pub fn caret(&self) -> Span<'static> {
        self.s(self.glyphs().pick("▏", "_"), Role::Accent)
    }

    /// The two cells in front of a list row: its selection and its mark.
    pub fn cursor(&self, selected: bool, marked: bool) -> Span<'static> {
        let cursor = if selected { self.glyphs().pick("▸", ">") } else { " " };
        let mark = if marked { self.glyphs().pick("◆", "*") } else { " " };
        self.s(format!("{cursor}{mark}"), Role::Accent)
    }

    /// Draws a list row; the selected one is highlighted to its end.
    pub fn row(&self, buf: &mut Buffer, area: Rect, row: usize, line: Line<'static>, selected: bool) {
        put(buf, area, row, line);
        if selected
            && let Ok(row) = u16::try_from(row)
            && row < area.height
        {
            let style = match self.theme.name {
                "mono" => self.theme.strong.add_modifier(Modifier::REVERSED),
                _ => self.theme.strong,
            };
            buf.set_style(Rect { y: area.y + row, height: 1, ..area }, style);
        }
    }

    /// Draws paragraphs of untrusted text, wrapped.
    pub fn paragraphs(&self, buf: &mut Buffer, area: Rect, paragraphs: &[(String, Role)]) {
        let lines = paragraphs.iter().flat_map(|(text, role)| {
            let wrapped = text::wrap(&clean(text), area.width.into()).into_iter();
            wrapped.map(move |line| Line::from(self.s(line, *role)))
        });
        Paragraph::new(lines.collect::<Vec<_>>()).render(area, buf);
    }
}

fn cleaned(text: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| (b' '..=b'~').contains(&byte);
    if text.bytes().all(is_plain) { Cow::Borrowed(text) } else { Cow::Owned(clean(text)) }
}

/// Draws a line in the row `row` of `area`; nothing outside of it.
pub fn put(buf: &mut Buffer, area: Rect, row: usize, line: impl Into<Line<'static>>) {
    let Ok(row) = u16::try_from(row) else { return };
    if row < area.height {
        let line: Line<'static> = line.into();
        line.render(Rect { y: area.y + row, height: 1, ..area }, buf);
    }
}

/// Draws a line at the right end of a row, unless it does not fit next to `taken` cells.
pub fn put_right(buf: &mut Buffer, area: Rect, row: usize, taken: usize, spans: Vec<Span<'static>>) {
    let wide = width(&spans);
    if wide > 0 && taken + wide < usize::from(area.width) {
        let shift = area.width - wide as u16;
        put(buf, Rect { x: area.x + shift, width: wide as u16, ..area }, row, Line::from(spans));
    }
}

/// Cells that spans take.
pub fn width(spans: &[Span<'_>]) -> usize {
    spans.iter().map(Span::width).sum()
}

/// Joins groups of spans as long as they fit in `cells`; the first group always stays.
pub fn fit<T: Clone>(
    cx: &DrawCtx<'_, T>,
    groups: Vec<Vec<Span<'static>>>,
    cells: usize,
) -> Vec<Span<'static>> {
    let mut out: Vec<Span<'static>> = Vec::new();
    for group in groups.into_iter().filter(|group| !group.is_empty()) {
        if out.is_empty() {
            out = group;
        } else if width(&out) + 3 + width(&group) <= cells {
            out.push(cx.dot());
            out.extend(group);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untrusted_text_is_cleaned_where_it_is_drawn() {
        let theme = Theme::dark();
        let cx: DrawCtx<'_, ()> = DrawCtx::new(&theme, Timestamp(0), Rect::new(0, 0, 8, 3));
        assert_eq!(
            [cx.cut("a\x1b[2Jb", 9), cx.left("a\tb", 6), cx.right("é\u{202e}", 2)],
            ["ab", "a   b ", " é"]
        );
        let mut buf = Buffer::empty(cx.screen);
        let texts = [("one \x07two three".to_owned(), Role::Text), ("four".to_owned(), Role::Text)];
        cx.paragraphs(&mut buf, cx.screen, &texts);
        assert_eq!(buf, Buffer::with_lines(["one two ", "three   ", "four    "]));
    }
}
