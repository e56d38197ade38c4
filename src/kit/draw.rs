//! Provides the drawing context and the functions that put lines on the screen.
//!
//! Maps places of the screen to the meaning of a click: drawing records each place, and a click finds what
//! was drawn last there.
//!
//! Draws images as characters: two pixels per cell in the terminal's colors, or shades of ASCII.

use crate::text;
pub use crate::theme::indexed;
use crate::theme::{ColorDepth, Glyphs, Role, Theme};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rankdeck_types::ids::Timestamp;
use rankdeck_types::words::clean;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Widget};
use std::borrow::Cow;
use std::cell::RefCell;

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

/// Between two hints of a line.
const BETWEEN: &str = "   ";

/// What a click on a place means; `T` is what only this screen has.
#[derive(Debug, Clone, PartialEq)]
pub enum Target<T> {
    /// Nothing, and nothing of what lies below it either.
    Covered,
    /// The same as this key.
    Key(KeyEvent),
    /// An entry of the list in the top overlay.
    Row(usize),
    /// Something of this screen.
    Own(T),
}

/// Places with what a click on them means, in the order in which they were drawn.
#[derive(Debug)]
pub struct Targets<T>(RefCell<Vec<(Rect, Target<T>)>>);

impl<T> Default for Targets<T> {
    fn default() -> Targets<T> {
        Targets(RefCell::default())
    }
}

impl<T: Clone> Targets<T> {
    /// Records what was drawn at a place.
    pub fn put(&self, place: Rect, target: Target<T>) {
        // Drawing is not re-entrant; were it so, a click would miss, and nothing worse.
        if let Ok(mut all) = self.0.try_borrow_mut() {
            all.push((place, target));
        }
    }

    /// The topmost target at a position, with its whole place.
    pub fn at(&self, at: Position) -> Option<(Rect, Target<T>)> {
        self.0.borrow().iter().rev().find(|(place, _)| place.contains(at)).cloned()
    }
}

/// How far a position is from the left end of a place to its right one, 0 to 1.
pub fn click_share(place: Rect, at: Position) -> f64 {
    let wide = place.width.saturating_sub(1).max(1);
    (f64::from(at.x.saturating_sub(place.x)) / f64::from(wide)).min(1.0)
}

/// The hints of a line that start with a key: first cell, cells, key. `enter runs   esc closes` has two.
pub fn hinted(line: &str) -> Vec<(u16, u16, KeyEvent)> {
    let (mut found, mut x) = (Vec::new(), 0);
    for part in line.split(BETWEEN) {
        let word = part.trim_start();
        let cells = |text: &str| text.chars().count();
        let from = x + cells(part) - cells(word);
        if let Some(key) = word.split_whitespace().next().and_then(key) {
            found.push((from as u16, cells(word) as u16, key));
        }
        x += cells(part) + BETWEEN.len();
    }
    found
}

/// The key of a name in a hint.
fn key(name: &str) -> Option<KeyEvent> {
    let (control, name) = match name.strip_prefix("ctrl-") {
        Some(name) => (KeyModifiers::CONTROL, name),
        None => (KeyModifiers::NONE, name),
    };
    let mut letters = name.chars();
    let code = match (name, letters.next(), letters.next()) {
        ("enter", ..) => KeyCode::Enter,
        ("esc", ..) => KeyCode::Esc,
        ("tab", ..) => KeyCode::Tab,
        ("space", ..) => KeyCode::Char(' '),
        (_, Some(letter), None) => KeyCode::Char(letter),
        _ => return None,
    };
    Some(KeyEvent::new(code, control))
}

/// Dark to light.
const SHADES: &[u8] = b" .:-=+*#%@";

/// Returns the largest centered area with the image's aspect ratio. A cell is twice as tall as wide.
pub fn area_for(width: u32, height: u32, area: Rect) -> Rect {
    let (wide, tall) = (f64::from(width.max(1)), f64::from(height.max(1)) / 2.0);
    let scale = (f64::from(area.width) / wide).min(f64::from(area.height) / tall);
    let cells = |side: f64, most: u16| ((side * scale).round() as u16).clamp(1, most.max(1));
    let (columns, rows) = (cells(wide, area.width), cells(tall, area.height));
    Rect {
        x: area.x + (area.width.saturating_sub(columns)) / 2,
        y: area.y + (area.height.saturating_sub(rows)) / 2,
        width: columns.min(area.width),
        height: rows.min(area.height),
    }
}

/// Resamples an image: each pixel is the mean of those that fall on it.
pub fn scaled(pixels: &[[u8; 3]], from: (usize, usize), to: (usize, usize)) -> Vec<[u8; 3]> {
    let range = |i: usize, from: usize, to: usize| {
        let begin = i * from / to.max(1);
        begin..((i + 1) * from / to.max(1)).max(begin + 1).min(from)
    };
    let mut out = Vec::with_capacity(to.0 * to.1);
    for y in 0..to.1 {
        for x in 0..to.0 {
            let (rows, columns) = (range(y, from.1, to.1), range(x, from.0, to.0));
            let (mut sum, mut count) = ([0u32; 3], 0u32);
            for pixel in rows
                .flat_map(|row| pixels.get(row * from.0..(row + 1) * from.0))
                .flat_map(|row| row.get(columns.clone()).unwrap_or_default())
            {
                sum.iter_mut().zip(pixel).for_each(|(sum, part)| *sum += u32::from(*part));
                count += 1;
            }
            out.push(sum.map(|sum| (sum / count.max(1)) as u8));
        }
    }
    out
}

fn light([red, green, blue]: [u8; 3]) -> usize {
    (299 * usize::from(red) + 587 * usize::from(green) + 114 * usize::from(blue)) / 1000
}

/// Draws an image over the whole area.
pub fn draw_image(
    theme: &Theme,
    depth: ColorDepth,
    buf: &mut Buffer,
    area: Rect,
    pixels: &[[u8; 3]],
    from: (usize, usize),
) {
    let (columns, rows) = (usize::from(area.width), usize::from(area.height));
    let shades = depth == ColorDepth::None || theme.glyphs == Glyphs::Ascii;
    let halves = if shades { 1 } else { 2 };
    let small = scaled(pixels, from, (columns, rows * halves));
    for row in 0..rows {
        for column in 0..columns {
            let Some(cell) = buf.cell_mut((area.x + column as u16, area.y + row as u16)) else { continue };
            let at = |half: usize| small.get((row * halves + half) * columns + column).copied();
            match (at(0), shades) {
                (Some(rgb), true) => {
                    let shade = SHADES[light(rgb) * (SHADES.len() - 1) / 255];
                    cell.set_char(char::from(shade));
                }
                (Some(top), false) => {
                    cell.set_char('▀').set_fg(depth.color(top)).set_bg(depth.color(at(1).unwrap_or(top)));
                }
                (None, _) => {}
            }
        }
    }
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

    #[test]
    fn hinted_line_yields_keys_with_their_cells() {
        let line = " type to filter   up/down move   enter runs   esc closes";
        let keys: Vec<(u16, u16, KeyCode)> =
            hinted(line).into_iter().map(|(x, wide, key)| (x, wide, key.code)).collect();
        assert_eq!(keys, [(33, 10, KeyCode::Enter), (46, 10, KeyCode::Esc)]);
        assert_eq!(hinted("ctrl-c quits")[0].2, KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
    }

    #[test]
    fn targets_at_returns_the_topmost() {
        let targets = Targets::default();
        targets.put(Rect::new(0, 0, 10, 4), Target::Own(1));
        targets.put(Rect::new(2, 1, 3, 1), Target::Own(2));
        let at = |x, y| targets.at(Position { x, y }).map(|(_, target)| target);
        assert_eq!((at(2, 1), at(5, 1), at(0, 4)), (Some(Target::Own(2)), Some(Target::Own(1)), None));
    }
}
