//! Provides the drawing context and the functions that put lines on the screen.

use crate::target::{Target, Targets};
use crate::text;
use crate::theme::{Glyphs, Role, Theme};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::words::clean;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
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
    if is_plain(text) { Cow::Borrowed(text) } else { Cow::Owned(clean(text)) }
}

/// Printable ASCII: each byte is one cell.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

/// Draws a line in the row `row` of `area`; nothing outside of it.
pub fn put(buf: &mut Buffer, area: Rect, row: usize, line: impl Into<Line<'static>>) {
    let Ok(row) = u16::try_from(row) else { return };
    if row < area.height {
        let line: Line<'static> = line.into();
        let area = Rect { y: area.y + row, height: 1, ..area };
        match line.alignment {
            None => put_left(buf, area.intersection(buf.area), &line),
            Some(_) => line.render(area, buf),
        }
    }
}

/// Draws lines from the top of `area` on, as many as fit.
pub fn put_lines(buf: &mut Buffer, area: Rect, lines: impl IntoIterator<Item = Line<'static>>) {
    let rows = usize::from(area.height);
    lines.into_iter().take(rows).enumerate().for_each(|(row, line)| put(buf, area, row, line));
}

/// Draws a line from the left as `Line::render` does. Most texts are plain; ratatui spends half of the time of
/// a frame on graphemes that these do not have.
fn put_left(buf: &mut Buffer, area: Rect, line: &Line<'_>) {
    if area.is_empty() {
        return;
    }
    if line.style != Style::default() && line.width() > 0 {
        buf.set_style(area, line.style);
    }
    let mut rest = area;
    for span in &line.spans {
        let plain = is_plain(&span.content);
        let cells = if plain { span.content.len() } else { span.width() };
        let taken = cells.min(usize::from(rest.width)) as u16;
        if taken == 0 {
            continue;
        }
        if plain {
            let begin = buf.index_of(rest.x, rest.y);
            let row = &mut buf.content[begin..begin + usize::from(taken)];
            for (cell, byte) in row.iter_mut().zip(span.content.bytes()) {
                cell.set_char(char::from(byte)).set_style(span.style);
            }
        } else {
            span.render(rest, buf);
        }
        rest = Rect { x: rest.x + taken, width: rest.width - taken, ..rest };
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
    use ratatui::style::Color;

    #[test]
    fn line_is_put_as_ratatui_renders_it() {
        let (red, bold) = (Style::new().fg(Color::Red), Style::new().add_modifier(Modifier::BOLD));
        let lines = [
            Line::default(),
            Line::from(vec![
                Span::raw("plain "),
                Span::styled("red", red),
                Span::raw(""),
                Span::raw(" tail"),
            ]),
            Line::from(vec![Span::styled("漢字", red), Span::raw("wide"), Span::styled("é●\u{301}", bold)]),
            Line::from(vec![Span::raw("\u{301}"), Span::raw("seven c"), Span::styled("漢 cut in two", red)]),
            Line::from(vec![
                Span::raw("a\tb\u{7f}"),
                Span::raw("longer than the whole area"),
                Span::raw("!"),
            ]),
            Line::from(Span::styled("styled", red)).style(bold),
            Line::from("").style(bold),
            Line::from("middle").centered(),
            Line::from("right, and longer than the area").right_aligned(),
        ];
        for line in lines {
            for area in
                [Rect::new(2, 0, 8, 2), Rect::new(7, 1, 20, 5), Rect::new(0, 2, 9, 3), Rect::new(3, 0, 0, 2)]
            {
                let filled = Buffer::filled(Rect::new(0, 0, 12, 3), ratatui::buffer::Cell::new("~"));
                let (mut put_here, mut rendered) = (filled.clone(), filled);
                put(&mut put_here, area, 1, line.clone());
                line.clone().render(Rect { y: area.y + 1, height: 1, ..area }, &mut rendered);
                assert_eq!(put_here, rendered, "{line:?} in {area}");
            }
        }
    }

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
