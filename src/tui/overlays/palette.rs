//! The palette: a line that is typed, and what it may become.

use crate::palette::{SHOWN, Suggestion, suggestions};
use crate::state::TypedLine;
use crate::target::Target;
use crate::text;
use crate::theme::Role;
use crate::widgets::{Ctx, frame, put};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;

pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer, typing: &TypedLine) {
    let glyphs = ctx.glyphs();
    let all = suggestions(ctx.model, ctx.view, &typing.line);
    let cells = usize::from(ctx.geo.area.width.saturating_sub(6)).min(90);
    let title = "type what to do";
    let keys = "tab completes, enter runs, up and down: history, esc closes";
    let inner = frame::popup(ctx, buf, (cells as u16, SHOWN as u16 + 2), Role::Accent, title, keys);
    let line = vec![
        ctx.s(":", Role::Accent),
        ctx.s(typing.line.clone(), Role::Strong),
        ctx.s(glyphs.pick("▏", "_"), Role::Accent),
    ];
    put(buf, inner, 0, Line::from(line));
    if all.is_empty() && !typing.line.contains(' ') {
        put(buf, inner, 1, Line::from(ctx.s("nothing begins so", Role::Dim)));
    }
    let more = all.len().saturating_sub(SHOWN);
    let wide = cells.saturating_sub(2);
    let usage = |suggestion: &Suggestion| {
        let gap = if suggestion.arguments.is_empty() { "" } else { " " };
        text::width(&suggestion.line) + gap.len() + text::width(suggestion.arguments)
    };
    let longest = all.iter().take(SHOWN).map(usage).max().unwrap_or(0).min(wide);
    for (row, suggestion) in all.into_iter().take(SHOWN).enumerate() {
        let name = ctx.cut(&suggestion.line, wide);
        let rest = longest.saturating_sub(text::width(&name));
        let arguments = format!(" {}", suggestion.arguments);
        let room = wide.saturating_sub(longest + 2);
        let spans = vec![
            ctx.s(name, Role::Accent),
            ctx.s(text::left(&arguments, rest, glyphs), Role::Dim),
            ctx.s("  ", Role::Dim),
            ctx.s(ctx.cut(suggestion.about, room), Role::Text),
        ];
        let below = Rect { y: inner.y + row as u16 + 1, height: 1, ..inner };
        ctx.target(below.intersection(inner), Target::Row(row));
        put(buf, inner, row + 1, Line::from(spans));
    }
    if more > 0 {
        put(buf, inner, SHOWN + 1, Line::from(ctx.s(format!("{more} more"), Role::Dim)));
    }
}
