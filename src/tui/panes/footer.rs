//! The last line: keys that can be used now, from the table of keys, as many as fit; `? help` always.

use crate::keys;
use crate::keys::{Binding, Command};
use crate::overlays::evidence;
use crate::state::{Overlay, Pane, ViewState};
use crate::target::{Target, hinted};
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
    let room = usize::from(width).saturating_sub(HELP.len() + 2);
    let mut x = 1;
    let mut list = Vec::new();
    for binding in keys::footer(model, view) {
        let Some(key) = view.steering.keymap.of(binding).first() else { continue };
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

/// Keys of what lies over the page, or of the line that is typed.
fn hint(ctx: &Ctx<'_>) -> Option<String> {
    let keymap = &ctx.view.steering.keymap;
    let card = |own: &[(Command, &str)]| {
        let own = own.iter().map(|(command, what)| (keymap.shown(*command, ctx.glyphs()), *what));
        let copy = (keymap.shown(Command::Copy, ctx.glyphs()), "copy");
        let keys: String = own.chain([copy]).map(|(key, what)| format!("{key} {what}   ")).collect();
        format!(" j/k scroll   {keys}esc closes")
    };
    let plain = match (ctx.view.overlay(), ctx.view.editing) {
        (Some(Overlay::Palette(_)), _) => "tab completes   enter runs   esc closes",
        (Some(Overlay::Help { .. }), _) => "type to filter   up/down move   enter runs   esc closes",
        (Some(Overlay::Hosts { .. }), _) => {
            "j/k move   space changes   enter restarts   R with other keys   esc closes"
        }
        (Some(Overlay::Processes { .. }), _) => {
            "e environment   T SIGTERM   K SIGKILL   s other signals   esc closes"
        }
        (Some(Overlay::Environment { .. }), _) => "j/k scroll   esc closes",
        (Some(Overlay::Restart(_)), _) => {
            "up/down checkpoint   type key=value   tab completes   enter asks   esc closes"
        }
        (Some(Overlay::Time { .. }), _) => "type a time   enter goes there   esc closes",
        (Some(Overlay::Confirm(_)), _) => "letters or left/right and enter choose   esc goes back",
        (Some(Overlay::Ask(_)), _) => "enter answers   esc refuses   ctrl-c leaves",
        (Some(Overlay::Event { .. }), _) => {
            let own = [(Command::Restart, "restart from a checkpoint"), (Command::RankLog, "log")];
            return Some(card(&own));
        }
        (Some(Overlay::Policy), _) => {
            let key = |command| keymap.shown(command, ctx.glyphs());
            return Some(format!(" {} copy   {} or esc closes", key(Command::Copy), key(Command::Policy)));
        }
        (Some(Overlay::Pictures(_)), _) => {
            let key = |command| keymap.shown(command, ctx.glyphs());
            return Some(format!(
                " {} earlier   {} later   {} next name   {} save   {} copy   {} or esc closes",
                key(Command::Pan(-1)),
                key(Command::Pan(1)),
                key(Command::Move(1)),
                key(Command::ExportCharts),
                key(Command::Copy),
                key(Command::Pictures)
            ));
        }
        (Some(Overlay::Inspect { .. }), _) => {
            let own = [
                (Command::NextPane, "next rank"),
                (Command::Explain, "why"),
                (Command::RankLog, "log"),
                (Command::Stack, "stack"),
            ];
            return Some(card(&own));
        }
        (Some(Overlay::Evidence { about, .. }), _) => {
            let verdict = evidence::find(ctx.live, about);
            let advised = |begin: &str| {
                verdict.is_some_and(|told| {
                    told.card.actions.iter().any(|advice| advice.command.starts_with(begin))
                })
            };
            let own = [
                (Command::Continue, "continue it", advised("kill -CONT")),
                (Command::Shell, "shell there", advised("ssh")),
                (Command::Explain, "next verdict", ctx.live.verdicts.len() > 1),
                (Command::Restart, "restart", true),
                (Command::Stack, "stack", verdict.is_some_and(|told| told.rank.is_some())),
            ];
            let useful = own.into_iter().filter(|(_, _, is_useful)| *is_useful);
            return Some(card(&useful.map(|(command, what, _)| (command, what)).collect::<Vec<_>>()));
        }
        (None, Some(Pane::Log | Pane::Events)) => "type to filter, !text inverts   enter keeps   esc clears",
        (None, Some(_)) => "host: rank: state: phase: or text, !text inverts   enter keeps   esc clears",
        (None, None) => return None,
    };
    Some(format!(" {plain}"))
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
