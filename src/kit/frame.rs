//! Draws frames: a rounded box on roomy screens, a rule above on small ones; popups are always boxes.

use crate::draw::Target;
use crate::draw::{DrawCtx, put, width};
use crate::text;
use crate::theme::{Role, Theme};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Widget};

/// Draws the frame of a pane with its title and, where it fits, more on the right.
pub fn pane(
    theme: &Theme,
    buf: &mut Buffer,
    area: Rect,
    (boxed, line): (bool, Style),
    title: Vec<Span<'static>>,
    info: Vec<Span<'static>>,
) {
    if area.is_empty() {
        return;
    }
    if boxed {
        Block::bordered().border_set(theme.glyphs.border()).border_style(line).render(area, buf);
    } else {
        rule(theme, buf, area, line);
    }
    captions(buf, area, title, info);
}

/// Draws a horizontal line in the first row of `area`.
pub fn rule(theme: &Theme, buf: &mut Buffer, area: Rect, style: Style) {
    let dash = theme.glyphs.border().horizontal_top;
    put(buf, area, 0, Line::from(Span::styled(dash.repeat(usize::from(area.width)), style)));
}

/// Draws a horizontal line with a title.
pub fn titled_rule(theme: &Theme, buf: &mut Buffer, area: Rect, title: &str) {
    let dash = theme.glyphs.border().horizontal_top;
    let remaining = usize::from(area.width).saturating_sub(text::width(title) + 3);
    let spans = vec![
        Span::styled(format!("{dash} "), theme.border),
        Span::styled(title.to_owned(), theme.strong),
        Span::styled(format!(" {}", dash.repeat(remaining)), theme.border),
    ];
    put(buf, area, 0, Line::from(spans));
}

/// Cells that a title may take in the first row of `area`.
pub fn title_cells(area: Rect) -> usize {
    usize::from(area.width.saturating_sub(6))
}

fn captions(buf: &mut Buffer, area: Rect, title: Vec<Span<'static>>, mut info: Vec<Span<'static>>) {
    let room = usize::from(area.width.saturating_sub(4));
    let mut left = vec![Span::raw(" ")];
    left.extend(title);
    left.push(Span::raw(" "));
    let taken = width(&left).min(room);
    put(buf, Rect { x: area.x + 1, width: room as u16, ..area }, 0, Line::from(left));
    // What does not fit is dropped from the end: the first parts matter most.
    while width(&info) > 0 && taken + width(&info) + 2 >= room {
        info.pop();
    }
    if width(&info) == 0 {
        return;
    }
    let wide = width(&info) + 2;
    if taken + wide < room {
        let x = area.right().saturating_sub(wide as u16 + 1);
        let mut right = vec![Span::raw(" ")];
        right.extend(info);
        right.push(Span::raw(" "));
        put(buf, Rect { x, width: wide as u16, ..area }, 0, Line::from(right));
    }
}

impl<T: Clone> DrawCtx<'_, T> {
    /// Draws a centered box over everything below it, as large as requested and possible. Returns the area
    /// inside its margin.
    pub fn popup(&self, buf: &mut Buffer, size: (u16, u16), role: Role, title: &str, keys: &str) -> Rect {
        let inner = boxed(self.theme, self.screen, buf, size, role, title, keys);
        if !inner.is_empty() {
            let (x, y) = (inner.x.saturating_sub(2), inner.y.saturating_sub(1));
            let all = Rect { x, y, width: inner.width + 4, height: inner.height + 2 };
            self.target(all, Target::Covered);
        }
        inner
    }
}

/// Clears the middle of the screen and draws a box there. Returns the area inside its margin.
fn boxed(
    theme: &Theme,
    screen: Rect,
    buf: &mut Buffer,
    size: (u16, u16),
    role: Role,
    title: &str,
    keys: &str,
) -> Rect {
    let area = middle(screen, size);
    let (wide, high) = (area.width, area.height);
    if wide < 4 || high < 3 {
        return Rect::default();
    }
    // One column around the box, so that the text below does not touch it; whole rows where only a sliver of
    // it would be left.
    let sliver = screen.width - wide < 24;
    let (x, width) = if sliver { (screen.x, screen.width) } else { (area.x.saturating_sub(1), wide + 2) };
    Clear.render(Rect { x, width, ..area }.intersection(screen), buf);
    let style = match role {
        Role::Text | Role::Dim | Role::Strong => theme.focus,
        other => theme.style(other),
    };
    Block::bordered().border_set(theme.glyphs.border()).border_style(style).render(area, buf);
    let room = usize::from(wide.saturating_sub(4));
    let head = Span::styled(
        format!(" {} ", text::cut(title, room.saturating_sub(2), theme.glyphs)),
        theme.style(Role::Strong),
    );
    put(buf, Rect { x: area.x + 2, width: room as u16, ..area }, 0, Line::from(head));
    if !keys.is_empty() {
        let foot = Span::styled(
            format!(" {} ", text::cut(keys, room.saturating_sub(2), theme.glyphs)),
            theme.style(Role::Dim),
        );
        let row = usize::from(high - 1);
        put(buf, Rect { x: area.x + 2, width: room as u16, ..area }, row, Line::from(foot));
    }
    inside(area)
}

/// The area of a box of this size.
fn middle(screen: Rect, size: (u16, u16)) -> Rect {
    let wide = size.0.saturating_add(4).min(screen.width.saturating_sub(2));
    let high = size.1.saturating_add(2).min(screen.height.saturating_sub(2));
    let (x, y) = (screen.x + (screen.width - wide) / 2, screen.y + (screen.height - high) / 2);
    Rect { x, y, width: wide, height: high }
}

fn inside(area: Rect) -> Rect {
    let (width, height) = (area.width.saturating_sub(4), area.height.saturating_sub(2));
    Rect { x: area.x + 2, y: area.y + 1, width, height }
}

/// The area inside the margin of a box of this size.
pub fn popup_inside(screen: Rect, size: (u16, u16)) -> Rect {
    inside(middle(screen, size))
}
