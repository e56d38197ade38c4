//! The help page: every key from the table, filterable; Enter runs.

use crate::keys;
use crate::keys::Scope;
use crate::ranks;
use crate::text;
use crate::theme::Role;
use crate::widgets::{Ctx, frame, put};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer, filter: &str, selected: usize) {
    let entries = keys::help(ctx.view, filter, crate::theme::Glyphs::Ascii);
    let selected = selected.min(entries.len().saturating_sub(1));
    let mut rows: Vec<(Option<usize>, Line<'static>)> = Vec::new();
    let mut scope: Option<Scope> = None;
    let wide = usize::from(ctx.geo.area.width.saturating_sub(6)).min(86);
    for (i, binding) in entries.iter().enumerate() {
        if scope != Some(binding.scope) {
            if scope.is_some() {
                rows.push((None, Line::default()));
            }
            scope = Some(binding.scope);
            rows.push((None, Line::from(ctx.s(binding.scope.name(), Role::Accent))));
        }
        let names: Vec<String> =
            ctx.view.steering.keymap.of(binding).iter().map(|key| keys::name(*key, ctx.glyphs())).collect();
        let reason = (binding.disabled)(ctx.live, ctx.view);
        let chosen = i == selected;
        let mark = if chosen { ctx.glyphs().pick("▸ ", "> ") } else { "  " };
        let text = match reason {
            Some(reason) => format!("{} ({reason})", binding.long),
            None => binding.long.to_string(),
        };
        let role = match (reason, chosen) {
            (Some(_), _) => Role::Dim,
            (None, true) => Role::Strong,
            (None, false) => Role::Text,
        };
        // The entry that is chosen says everything, on further lines where it must.
        let room = wide.saturating_sub(15);
        let mut parts = if chosen { text::wrap(&text, room) } else { vec![ctx.cut(&text, room)] }.into_iter();
        rows.push((
            Some(i),
            Line::from(vec![
                ctx.s(mark, Role::Accent),
                ctx.s(
                    text::left(&names.join(" "), 13, ctx.glyphs()),
                    if reason.is_some() { Role::Dim } else { Role::Accent },
                ),
                ctx.s(parts.next().unwrap_or_default(), role),
            ]),
        ));
        rows.extend(parts.map(|part| (None, Line::from(ctx.s(format!("{}{part}", " ".repeat(15)), role)))));
    }
    let size = (wide as u16, (rows.len() + 4).max(16) as u16);
    let inner = frame::popup(ctx, buf, size, Role::Accent, "help", "type to filter, enter runs, esc closes");
    let glyphs = ctx.glyphs();
    let typed = if filter.is_empty() {
        vec![ctx.s("filter: ", Role::Dim), ctx.s(glyphs.pick("▏", "_"), Role::Accent)]
    } else {
        vec![
            ctx.s("filter: ", Role::Dim),
            ctx.s(filter, Role::Strong),
            ctx.s(glyphs.pick("▏", "_"), Role::Accent),
        ]
    };
    put(buf, inner, 0, Line::from(typed));
    let letters = text::wrap(&format!("states: {}", ranks::LETTERS), usize::from(inner.width));
    let below = letters.len().min(3);
    let list = Rect { y: inner.y + 1, height: inner.height.saturating_sub(1 + below as u16), ..inner };
    let height = usize::from(list.height);
    let at = rows.iter().position(|(i, _)| *i == Some(selected)).unwrap_or(0);
    let top = (at + 3).saturating_sub(height).min(rows.len().saturating_sub(height));
    if entries.is_empty() {
        put(buf, list, 0, Line::from(ctx.s("no key does that", Role::Dim)));
    }
    for (row, (_, line)) in rows.into_iter().skip(top).take(height).enumerate() {
        put(buf, list, row, line);
    }
    let start = usize::from(inner.height).saturating_sub(below);
    for (i, line) in letters.into_iter().take(below).enumerate() {
        put(buf, inner, start + i, Line::from(Span::styled(line, ctx.theme.dim)));
    }
}
