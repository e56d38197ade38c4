//! The mouse: the wheel scrolls what is below it, a click picks it.

use crate::commands;
use crate::keys::{self, Command};
use crate::overlays;
use crate::panes;
use crate::state::{Action, LogScope, Overlay, Pane, Tab, ViewState};
use crate::theme::Glyphs;
use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};
use rankdeck_core::model::{Model, RunState};
use rankdeck_types::ids::Timestamp;
use ratatui::layout::Position;

/// The mouse did something.
pub fn on_mouse(model: &Model, view: &mut ViewState, mouse: MouseEvent, now: Timestamp) -> Vec<Action> {
    view.expire(now);
    let at = Position { x: mouse.column, y: mouse.row };
    match mouse.kind {
        MouseEventKind::ScrollDown => wheel(model, view, at, 3),
        MouseEventKind::ScrollUp => wheel(model, view, at, -3),
        MouseEventKind::Down(MouseButton::Left) if view.overlays.is_empty() => {
            return click(model, view, at, now);
        }
        _ => {}
    }
    Vec::new()
}

fn pane_at(view: &ViewState, at: Position) -> Option<Pane> {
    Pane::ALL.into_iter().find(|pane| view.geometry.pane(*pane).contains(at))
}

fn wheel(model: &Model, view: &mut ViewState, at: Position, rows: i64) {
    match view.overlay().cloned() {
        Some(Overlay::Inspect { .. } | Overlay::Evidence { .. } | Overlay::Event { .. }) => {
            overlays::scroll(view, rows)
        }
        Some(Overlay::Help { filter, selected }) => {
            let last = keys::help(view, &filter, Glyphs::Ascii).len().saturating_sub(1);
            let selected = selected.saturating_add_signed(rows as isize).min(last);
            view.open(Overlay::Help { filter, selected });
        }
        Some(_) => {}
        None => {
            if let Some(pane) = pane_at(view, at) {
                commands::scroll(model, view, pane, rows);
            }
        }
    }
}

fn click(model: &Model, view: &mut ViewState, at: Position, now: Timestamp) -> Vec<Action> {
    if let Some(tab) = panes::header::tab_at(view, at) {
        return commands::perform(model, view, Command::Go(tab), now);
    }
    if view.geometry.status.contains(at) && !model.verdicts.is_empty() && model.run.state != RunState::Over {
        return commands::perform(model, view, Command::Explain, now);
    }
    if let Some(chosen) = panes::footer::command_at(model, view, at) {
        return commands::perform(model, view, chosen, now);
    }
    let Some(pane) = pane_at(view, at) else { return Vec::new() };
    if view.tab == Tab::Overview {
        view.focus = pane;
    }
    let frozen = view.moment.frozen.take();
    let shown = frozen.as_ref().map_or(model, |frozen| &frozen.model);
    let rank = match pane {
        Pane::Ranks => panes::ranks::rank_at(shown, view, at),
        _ => None,
    };
    view.moment.frozen = frozen;
    if let Some(rank) = rank {
        if view.ranks.selected == Some(rank) {
            return commands::perform(model, view, Command::Inspect, now);
        }
        view.ranks.selected = Some(rank);
    } else if pane == Pane::Log && view.log.scope == LogScope::Merged {
        view.editing = None;
    }
    Vec::new()
}
