//! The last line: keys that can be used now, from the table of keys, as many as fit; `? help` always.

use crate::keys;
use crate::keys::{Binding, Command};
use crate::state::{Overlay, Pane, ViewState};
use crate::text;
use crate::theme::{Glyphs, Role};
use crate::widgets::Ctx;
use crate::widgets::put;
use rankdeck_core::model::Model;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::text::{Line, Span};

const HELP: &str = "? help ";

/// What fits: first column, key, text, command.
fn items(
    model: &Model,
    view: &ViewState,
    width: u16,
    glyphs: Glyphs,
) -> Vec<(u16, String, &'static Binding)> {
    let room = usize::from(width).saturating_sub(HELP.len() + 1);
    let mut x = 1;
    let mut list = Vec::new();
    for binding in keys::footer(model, view) {
        let Some(key) = binding.keys.first() else { continue };
        let key = keys::name(*key, glyphs);
        let wide = text::width(&key) + 1 + binding.short.len();
        if x + wide > room {
            continue;
        }
        list.push((x as u16, key, binding));
        x += wide + 2;
    }
    list
}

pub fn draw(ctx: &Ctx<'_>, buf: &mut Buffer) {
    let area = ctx.geo.footer;
    let overlay = ctx.view.overlay();
    let hint = match (overlay, ctx.view.editing) {
        (Some(Overlay::Palette(_)), _) => Some(" tab completes   enter runs   esc closes"),
        (Some(Overlay::Help { .. }), _) => Some(" type to filter   up/down move   enter runs   esc closes"),
        (Some(Overlay::Hosts { .. }), _) => Some(" j/k move   space changes   enter restarts   esc closes"),
        (Some(Overlay::Restart(_)), _) => {
            Some(" up/down checkpoint   type key=value   tab completes   enter asks   esc closes")
        }
        (Some(Overlay::Event { .. }), _) => {
            Some(" j/k scroll   r restart from a checkpoint   l log   y copy   esc closes")
        }
        (Some(Overlay::Time { .. }), _) => Some(" type a time   enter goes there   esc closes"),
        (Some(Overlay::Confirm(_)), _) => Some(" letters or left/right and enter choose   esc goes back"),
        (Some(Overlay::Ask(_)), _) => Some(" enter answers   esc refuses   ctrl-c leaves"),
        (Some(Overlay::Inspect { .. }), _) => {
            Some(" j/k scroll   tab next rank   d why   l log   y copy   esc closes")
        }
        (Some(Overlay::Evidence { .. }), _) => {
            Some(" j/k scroll   d next verdict   r restart   y copy   esc closes")
        }
        (None, Some(Pane::Log | Pane::Events)) => {
            Some(" type to filter, !text inverts   enter keeps   esc clears")
        }
        (None, Some(_)) => {
            Some(" host: rank: state: phase: or text, !text inverts   enter keeps   esc clears")
        }
        (None, None) => None,
    };
    if let Some(hint) = hint {
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

/// The command whose hint is at this place.
pub fn command_at(model: &Model, view: &ViewState, at: Position) -> Option<Command> {
    let area = view.geometry.footer;
    if !area.contains(at) || view.overlay().is_some() {
        return None;
    }
    if at.x >= area.right().saturating_sub(HELP.len() as u16) {
        return Some(Command::Help);
    }
    items(model, view, area.width, Glyphs::Braille)
        .into_iter()
        .find(|(x, key, binding)| {
            let from = area.x + x;
            (from..from + (text::width(key) + 1 + binding.short.len()) as u16).contains(&at.x)
        })
        .map(|(_, _, binding)| binding.command)
}
