//! What happened, in order, newest at the bottom.

use crate::state::Pane;
use crate::text;
use crate::theme::Role;
use crate::widgets::{Ctx, frame, put};
use rankdeck_core::model::Tone;
use rankdeck_types::words;
use ratatui::buffer::Buffer;
use ratatui::text::{Line, Span};

/// How grave a tone is.
pub fn role(tone: Tone) -> Role {
    match tone {
        Tone::Info => Role::Dim,
        Tone::Good => Role::Good,
        Tone::Warn => Role::Warn,
        Tone::Bad => Role::Bad,
    }
}

/// Draws the pane.
pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer) {
    let area = ctx.geo.events;
    if area.is_empty() {
        return;
    }
    let history = &ctx.model.history;
    let bad = history.iter().filter(|line| line.tone == Tone::Bad).count();
    let mut info = Vec::new();
    if bad > 0 {
        info.push(ctx.s(format!("{bad} bad"), Role::Bad));
    }
    if ctx.view.events_up > 0 {
        info.push(ctx.s("  scrolled; G follows", Role::Warn));
    }
    let title = frame::title(ctx, Pane::Events, "events", history.len().to_string());
    let inner = frame::pane(ctx, buf, area, Pane::Events, title, info);
    if history.is_empty() {
        put(buf, inner, 0, Line::from(ctx.s("nothing happened yet", Role::Dim)));
        return;
    }
    let height = usize::from(inner.height);
    let end = history.len().saturating_sub(ctx.view.events_up);
    let start = end.saturating_sub(height);
    // Before the launch there is no zero; then the first event is it.
    let zero = ctx.model.run.started.or(history.front().map(|line| line.at)).unwrap_or_default();
    for (row, line) in history.iter().skip(start).take(end - start).enumerate() {
        let role = role(line.tone);
        let before = line.at < zero;
        let clock = if before {
            format!("-{:>6}", words::duration_ms(zero.since(line.at)))
        } else {
            text::clock(line.at.since(zero))
        };
        let words = if line.tone == Tone::Info { Role::Text } else { role };
        let room = usize::from(inner.width).saturating_sub(text::width(&clock) + 4);
        put(
            buf,
            inner,
            row,
            Line::from(vec![
                ctx.s(format!("{clock}  "), Role::Dim),
                ctx.s(ctx.glyphs().tone(role), role),
                Span::raw(" "),
                ctx.s(ctx.cut(&words::clean(&line.text), room), words),
            ]),
        );
    }
}
