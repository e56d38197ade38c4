//! Frames: a rounded box on roomy screens, a rule above on small ones; popups are always boxes.

use super::{Ctx, put, width};
use crate::state::{Pane, Tab};
use crate::target::Target;
use crate::text;
use crate::theme::{Role, Theme};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Widget};

/// Draws the frame of a pane with its title and, where it fits, more on the right. Returns what is inside.
pub fn pane(
    ctx: &Ctx<'_>,
    buf: &mut Buffer,
    area: Rect,
    which: Pane,
    title: Vec<Span<'static>>,
    info: Vec<Span<'static>>,
) -> Rect {
    if area.is_empty() {
        return Rect::default();
    }
    let focused = ctx.view.pane() == which && ctx.view.overlays.is_empty();
    let several = ctx.view.tab == Tab::Overview && !ctx.view.zoom && !ctx.geo.connecting;
    let line = if focused && several { ctx.theme.focus } else { ctx.theme.border };
    if ctx.geo.boxed {
        Block::bordered().border_set(ctx.glyphs().border()).border_style(line).render(area, buf);
    } else {
        rule(ctx, buf, area, line);
    }
    captions(ctx, buf, area, title, info);
    ctx.geo.inside(area)
}

/// A horizontal line in the first row of `area`.
pub fn rule(ctx: &Ctx<'_>, buf: &mut Buffer, area: Rect, style: Style) {
    let dash = ctx.glyphs().border().horizontal_top;
    put(buf, area, 0, Line::from(Span::styled(dash.repeat(usize::from(area.width)), style)));
}

/// Cells of a title in the first row of `area`, between its blanks.
pub fn room(area: Rect) -> usize {
    usize::from(area.width.saturating_sub(6))
}

fn captions(
    ctx: &Ctx<'_>,
    buf: &mut Buffer,
    area: Rect,
    title: Vec<Span<'static>>,
    mut info: Vec<Span<'static>>,
) {
    let room = usize::from(area.width.saturating_sub(4));
    let mut left = vec![Span::raw(" ")];
    left.extend(title);
    left.push(Span::raw(" "));
    let taken = width(&left).min(room);
    put(buf, Rect { x: area.x + 1, width: room as u16, ..area }, 0, Line::from(left));
    // What does not fit goes part by part, from the end: the first says most.
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
    let _ = ctx;
}

/// A title: a word, and a number or more after it.
pub fn title(ctx: &Ctx<'_>, which: Pane, word: &str, more: impl Into<String>) -> Vec<Span<'static>> {
    let focused = ctx.view.pane() == which;
    let more = more.into();
    let mut spans = vec![ctx.s(word, if focused { Role::Accent } else { Role::Strong })];
    if !more.is_empty() {
        spans.push(ctx.s(format!(" {more}"), Role::Dim));
    }
    spans
}

/// A [`boxed`] part of the run's screen.
pub fn popup(ctx: &Ctx<'_>, buf: &mut Buffer, size: (u16, u16), role: Role, title: &str, keys: &str) -> Rect {
    let inner = boxed(ctx.theme, ctx.geo.area, buf, size, role, title, keys);
    if !inner.is_empty() {
        let (x, y) = (inner.x.saturating_sub(2), inner.y.saturating_sub(1));
        ctx.target(Rect { x, y, width: inner.width + 4, height: inner.height + 2 }, Target::Nothing);
    }
    inner
}

/// Clears the middle of the screen and draws a box there, as large as asked for and possible. Returns what is
/// inside, with a margin.
pub fn boxed(
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

/// Where a box of this size is.
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

/// What is inside of a box of this size, with a margin.
pub fn popup_inside(screen: Rect, size: (u16, u16)) -> Rect {
    inside(middle(screen, size))
}
