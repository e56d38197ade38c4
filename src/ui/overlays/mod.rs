//! What lies over a page: help, questions, cards, messages.

pub mod ask;
pub mod confirm;
pub mod evidence;
pub mod help;
pub mod inspect;
pub mod toast;
pub mod too_small;

use crate::ui::state::{Overlay, ViewState};
use crate::ui::theme::Role;
use crate::ui::widgets::{Ctx, frame, put};
use ratatui::buffer::Buffer;
use ratatui::text::Line;

/// Draws every overlay, the top one last, and the toasts.
pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer) {
    for overlay in &ctx.view.overlays {
        match overlay {
            Overlay::Help { filter, selected } => help::draw(ctx, buf, filter, *selected),
            Overlay::Confirm(confirm) => confirm::draw(ctx, buf, confirm),
            Overlay::Ask(ask) => ask::draw(ctx, buf, ask),
            Overlay::Inspect { rank, top } => inspect::draw(ctx, buf, *rank, *top),
            Overlay::Evidence { about, top } => evidence::draw(ctx, buf, about, *top),
        }
    }
    toast::draw(ctx, buf);
}

/// Scrolls the card on top; down is positive. Its end is found when it is drawn.
pub fn scroll(view: &mut ViewState, rows: i64) {
    if let Some(Overlay::Inspect { top, .. } | Overlay::Evidence { top, .. }) = view.overlays.last_mut() {
        *top = (*top as i64).saturating_add(rows).clamp(0, LINES as i64) as usize;
    }
}

/// Most lines of a card.
pub const LINES: usize = 400;

/// A card: lines in a box, scrolled by `top` as far as there is more.
pub fn card(
    ctx: &Ctx<'_>,
    buf: &mut Buffer,
    role: Role,
    title: &str,
    lines: Vec<Line<'static>>,
    top: usize,
    cells: usize,
) {
    let size = (cells as u16, lines.len().min(LINES) as u16);
    let inner = frame::popup(ctx, buf, size, role, title, "");
    let height = usize::from(inner.height);
    let top = top.min(lines.len().saturating_sub(height));
    let more = lines.len().saturating_sub(top + height);
    for (row, line) in lines.into_iter().skip(top).take(height).enumerate() {
        put(buf, inner, row, line);
    }
    if more > 0 && height > 0 {
        let text = format!(" {more} more {} ", ctx.glyphs().pick("↓", "v"));
        let below = ratatui::layout::Rect { y: inner.y + inner.height, height: 1, ..inner };
        put(buf, below, 0, Line::from(ctx.s(text, Role::Dim)).right_aligned());
    }
}

/// Cells that a card's lines may take on this screen.
pub fn card_cells(ctx: &Ctx<'_>, most: usize) -> usize {
    usize::from(ctx.geo.area.width.saturating_sub(6)).min(most)
}
