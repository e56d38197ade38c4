//! What lies over a page: help, questions, cards, messages.

pub mod ask;
pub mod confirm;
pub mod environment;
pub mod event;
pub mod evidence;
pub mod help;
pub mod hosts;
pub mod inspect;
pub mod palette;
pub mod pictures;
pub mod policy;
pub mod processes;
pub mod restart;
pub mod time;
pub mod toast;
pub mod too_small;

use crate::state::{Overlay, ViewState};
use crate::text;
use crate::theme::Role;
use crate::widgets::{Ctx, frame, put};
use rankdeck_core::model::Model;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;

/// Draws every overlay, the top one last, and the toasts.
pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer) {
    for overlay in &ctx.view.overlays {
        match overlay {
            Overlay::Help { filter, selected } => help::draw(ctx, buf, filter, *selected),
            Overlay::Palette(typing) => palette::draw(ctx, buf, typing),
            Overlay::Confirm(confirm) => confirm::draw(ctx, buf, confirm),
            Overlay::Ask(ask) => ask::draw(ctx, buf, ask),
            Overlay::Hosts { changed, selected } => hosts::draw(ctx, buf, changed, *selected),
            Overlay::Restart(draft) => restart::draw(ctx, buf, draft),
            Overlay::Inspect { rank, top } => inspect::draw(ctx, buf, *rank, *top),
            Overlay::Evidence { about, top } => evidence::draw(ctx, buf, about, *top),
            Overlay::Event { number, top } => event::draw(ctx, buf, *number, *top),
            Overlay::Processes { node, selected } => processes::draw(ctx, buf, *node, *selected),
            Overlay::Environment { node, process, top } => environment::draw(ctx, buf, *node, *process, *top),
            Overlay::Policy => policy::draw(ctx, buf),
            Overlay::Pictures(choice) => pictures::draw(ctx, buf, choice),
            Overlay::Time { input } => time::draw(ctx, buf, input),
        }
    }
    toast::draw(ctx, buf);
}

/// Scrolls the card on top; down is positive. Its end is found by [`clamp`].
pub fn scroll(view: &mut ViewState, rows: i64) {
    if let Some(
        Overlay::Inspect { top, .. }
        | Overlay::Evidence { top, .. }
        | Overlay::Event { top, .. }
        | Overlay::Environment { top, .. },
    ) = view.overlays.last_mut()
    {
        *top = (*top as i64).saturating_add(rows).clamp(0, LINES as i64) as usize;
    }
}

/// Most lines of a card.
pub const LINES: usize = 8000;

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
        let below = Rect { y: inner.y + inner.height, height: 1, ..inner };
        put(buf, below, 0, Line::from(ctx.s(text, Role::Dim)).right_aligned());
    }
}

/// One fact of a card: label, text, gravity.
pub type Fact = (&'static str, String, Role);
/// Cells of labels on cards.
pub const LABEL: usize = 12;
/// Most cells of an evidence card.
pub const EVIDENCE_CELLS: usize = 124;
/// Most cells of the inspector.
pub const INSPECT_CELLS: usize = 110;

/// Cells that a card's lines may take on this screen.
pub fn card_cells(screen: Rect, most: usize) -> usize {
    usize::from(screen.width.saturating_sub(6)).min(most)
}

/// Facts as lines, long ones wrapped beside their label.
pub fn fact_lines(ctx: &Ctx<'_>, facts: &[Fact], cells: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for (label, text, role) in facts {
        for (i, part) in text::wrap_point(text, cells.saturating_sub(LABEL)).into_iter().enumerate() {
            let label = if i == 0 { label } else { "" };
            lines.push(Line::from(vec![ctx.s(format!("{label:<LABEL$}"), Role::Dim), ctx.s(part, *role)]));
        }
    }
    lines
}

/// Lines that [`fact_lines`] makes.
pub fn fact_rows(facts: &[Fact], cells: usize) -> usize {
    facts.iter().map(|fact| text::wrap_point(&fact.1, cells.saturating_sub(LABEL)).len()).sum()
}

/// Keeps the scroll of cards inside them (evidence is of the present, facts are of the moment shown), so that
/// the first key back already moves.
pub fn clamp(live: &Model, shown: &Model, view: &mut ViewState) {
    let screen = view.geometry.area;
    let height = usize::from(screen.height.saturating_sub(4));
    let keymap = &view.steering.keymap;
    for overlay in &mut view.overlays {
        let (top, rows) = match overlay {
            Overlay::Inspect { rank, top } => {
                let cells = card_cells(screen, INSPECT_CELLS);
                (top, inspect::rows(shown, *rank, cells, view.moment.now, keymap))
            }
            Overlay::Evidence { about, top } => {
                (top, evidence::rows(live, keymap, about, card_cells(screen, EVIDENCE_CELLS)))
            }
            Overlay::Event { number, top } => {
                (top, event::rows(shown, keymap, *number, card_cells(screen, EVIDENCE_CELLS)))
            }
            // Keys that come before the answer count for it.
            Overlay::Environment { node, process, .. }
                if live.reaches.environment(*node, *process).is_none() =>
            {
                continue;
            }
            Overlay::Environment { node, process, top } => {
                let cells = card_cells(screen, environment::CELLS);
                (top, environment::lines(live, *node, *process, cells).len())
            }
            Overlay::Help { .. }
            | Overlay::Palette(_)
            | Overlay::Confirm(_)
            | Overlay::Ask(_)
            | Overlay::Processes { .. }
            | Overlay::Hosts { .. }
            | Overlay::Restart(_)
            | Overlay::Policy
            | Overlay::Pictures(_)
            | Overlay::Time { .. } => continue,
        };
        *top = (*top).min(rows.saturating_sub(height));
    }
}
