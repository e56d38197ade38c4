//! The last line: keys that are enabled now, from the table of keys, as many as fit; `? help` always.

use crate::run::chrome::Ctx;
use crate::run::command::ScreenCommand;
use crate::run::geometry::Pane;
use crate::run::keys::TABLE;
use crate::run::{RunScreen, Target, ViewState};
use rankdeck_core::model::Model;
use rankdeck_kit::draw::hinted;
use rankdeck_kit::keys::Binding;
use rankdeck_kit::{Component, Glyphs, Role, put, text};
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::text::{Line, Span};

const HELP: &str = "? help ";

/// What fits: first column, key, binding.
fn items(
    model: &Model,
    view: &ViewState,
    width: u16,
    glyphs: Glyphs,
) -> Vec<(u16, String, &'static Binding<RunScreen>)> {
    let cells = usize::from(width).saturating_sub(HELP.len() + 2);
    TABLE.footer_items(model, view, (view.pane(), &view.steering.keymap), cells, glyphs)
}

/// Draws the footer.
pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer) {
    let area = ctx.geo.footer;
    if let Some(hint) = hint(ctx) {
        for (x, width, key) in hinted(&hint) {
            let place = Rect { x: area.x.saturating_add(x), width, ..area };
            ctx.target(place.intersection(area), Target::Key(key));
        }
        put(buf, area, 0, Line::from(ctx.s(hint, Role::Dim)));
        return;
    }
    let mut spans = vec![Span::raw(" ")];
    for (_, key, binding) in items(ctx.live, ctx.view, area.width, ctx.glyphs()) {
        spans.push(ctx.s(key, Role::Accent));
        spans.push(ctx.s(format!(" {}  ", binding.short), Role::Dim));
    }
    put(buf, area, 0, Line::from(spans));
    let x = area.right().saturating_sub(HELP.len() as u16);
    let help = vec![ctx.s("?", Role::Accent), ctx.s(" help ", Role::Dim)];
    put(buf, Rect { x, width: HELP.len() as u16, ..area }, 0, Line::from(help));
}

/// Keys of the top overlay, or of the filter that is typed.
fn hint(ctx: &Ctx<'_>) -> Option<String> {
    if let Some(overlay) = ctx.view.overlay() {
        return Some(format!(" {}", overlay.hint(ctx.live, ctx.view, ctx)));
    }
    let syntax = match ctx.view.editing? {
        Pane::Log | Pane::Events => "type to filter",
        _ => "host: rank: state: phase: or text",
    };
    Some(format!(" {syntax}, !text inverts   enter keeps   esc clears"))
}

/// The command whose hint is at this place.
pub fn command_at(model: &Model, view: &ViewState, at: Position) -> Option<ScreenCommand> {
    let area = view.geometry.footer;
    if !area.contains(at) || view.overlay().is_some() {
        return None;
    }
    if at.x >= area.right().saturating_sub(HELP.len() as u16) {
        return Some(ScreenCommand::Help);
    }
    items(model, view, area.width, Glyphs::Braille)
        .into_iter()
        .find(|(x, key, binding)| {
            let from = area.x + x;
            (from..from + (text::width(key) + 1 + text::width(binding.short)) as u16).contains(&at.x)
        })
        .map(|(_, _, binding)| binding.command)
}
