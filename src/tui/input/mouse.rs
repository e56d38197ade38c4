//! The mouse: the wheel scrolls what is below it, a click picks it.

use super::overlays::answer_confirm;
use crate::commands;
use crate::keys::{self, Command};
use crate::overlays;
use crate::panes;
use crate::state::{Action, Confirm, LogScope, Overlay, Pane, Tab, ViewState};
use crate::theme::{Glyphs, Theme};
use crate::widgets::Ctx;
use crossterm::event::{KeyCode, KeyEvent, MouseButton, MouseEvent, MouseEventKind};
use rankdeck_core::model::{Model, RunState};
use rankdeck_types::ids::Timestamp;
use ratatui::buffer::{Buffer, Cell};
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
        MouseEventKind::Down(MouseButton::Left) if !view.geometry.too_small => {
            return click_over(model, view, at, now);
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

/// What is drawn at `now`, in no particular colours.
fn with_ctx<T>(model: &Model, view: &ViewState, now: Timestamp, look: impl FnOnce(&Ctx<'_>) -> T) -> T {
    let theme = Theme::mono().with_glyphs(view.style.glyphs.unwrap_or(Glyphs::Braille));
    let shown = view.shown(model);
    let geo = view.geometry.clone();
    look(&Ctx { live: model, model: shown, view, theme: &theme, now, live_now: now, geo })
}

/// A click while something lies over the page: on an answer it answers; beside a card it closes the card.
/// What was typed, and what is asked, stays.
fn click_over(model: &Model, view: &mut ViewState, at: Position, now: Timestamp) -> Vec<Action> {
    const NOTHING: &str = "\u{fffc}";
    let cells = with_ctx(model, view, now, |ctx| {
        let mut buf = Buffer::filled(ctx.geo.area, Cell::new(NOTHING));
        overlays::draw(ctx, &mut buf);
        buf
    });
    let Some(under) = cells.cell(at) else { return Vec::new() };
    match view.overlay().cloned() {
        Some(
            Overlay::Inspect { .. }
            | Overlay::Evidence { .. }
            | Overlay::Event { .. }
            | Overlay::Policy
            | Overlay::Help { .. },
        ) if under.symbol() == NOTHING => {
            view.overlays.pop();
            Vec::new()
        }
        Some(Overlay::Confirm(confirm)) => match answer_at(&confirm, &cells, at) {
            Some(key) => answer_confirm(view, confirm, KeyEvent::from(KeyCode::Char(key))),
            None => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// The key of the answer that is drawn at a place.
fn answer_at(confirm: &Confirm, cells: &Buffer, at: Position) -> Option<char> {
    let shown = |x: u16| cells.cell(Position { x, y: at.y }).map(Cell::symbol);
    let begins = |x: u16, text: &str| {
        text.chars()
            .enumerate()
            .all(|(i, c)| shown(x + i as u16).is_some_and(|symbol| symbol.chars().eq([c])))
    };
    confirm.choices.iter().find_map(|choice| {
        let text = format!("{} {}", choice.key, choice.label);
        let wide = text.chars().count() as u16;
        let mut from = (at.x + 1).saturating_sub(wide)..=at.x;
        from.any(|x| begins(x, &text)).then_some(choice.key)
    })
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
    let host = (pane == Pane::Hosts).then(|| panes::hosts::host_at(shown, view, at)).flatten();
    let series = (pane == Pane::Charts).then(|| panes::charts::series_at(shown, view, at)).flatten();
    view.moment.frozen = frozen;
    let sort = match pane {
        Pane::Ranks => with_ctx(model, view, now, |ctx| panes::ranks::heading_at(ctx, at)),
        _ => None,
    };
    if let Some(sort) = sort {
        // The same heading again turns the order round.
        view.ranks.reverse = view.ranks.sort == sort && !view.ranks.reverse;
        view.ranks.sort = sort;
    } else if let Some(host) = host {
        if view.hosts.selected == Some(host) && view.tab == Tab::Hosts {
            return commands::perform(model, view, Command::Inspect, now);
        }
        view.hosts.selected = Some(host);
    } else if let Some(series) = series {
        if view.series.selected.as_ref() == Some(&series) {
            return commands::perform(model, view, Command::ToggleSeries, now);
        }
        view.series.selected = Some(series);
    } else if let Some(rank) = rank {
        if view.ranks.selected == Some(rank) {
            return commands::perform(model, view, Command::Inspect, now);
        }
        view.ranks.selected = Some(rank);
    } else if pane == Pane::Log && view.log.scope == LogScope::Merged {
        view.editing = None;
    }
    Vec::new()
}
