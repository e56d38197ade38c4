//! The mouse: the wheel scrolls what is below it and zooms charts, a click picks it, a click on what is
//! picked opens it, and dragging moves the cursor of charts, the time that is shown and the borders of
//! panes; the right button pins a place of a chart.

use super::{on_key, perform};
use crate::borders;
use crate::commands;
use crate::keys::Command;
use crate::overlays;
use crate::palette;
use crate::panes;
use crate::reach;
use crate::state::{Action, LogScope, Overlay, Pane, Tab, TypedLine, ViewState};
use crate::target::{Target, share};
use crate::time::{STEP_MS, TimeMove};
use crate::widgets::plain;
use crossterm::event::{KeyCode, KeyEvent, MouseButton, MouseEvent, MouseEventKind};
use rankdeck_core::model::{Model, RunState};
use rankdeck_types::ids::Timestamp;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

/// Rows of a turn of the wheel.
const WHEEL: i64 = 3;

/// The mouse did something.
pub fn on_mouse(model: &Model, view: &mut ViewState, mouse: MouseEvent, now: Timestamp) -> Vec<Action> {
    view.expire(now);
    let at = Position { x: mouse.column, y: mouse.row };
    match mouse.kind {
        MouseEventKind::ScrollDown => return wheel(model, view, at, 1, now),
        MouseEventKind::ScrollUp => return wheel(model, view, at, -1, now),
        MouseEventKind::ScrollLeft if view.overlays.is_empty() && view.pane() == Pane::Log => {
            return perform(model, view, Command::Sideways(-1), now);
        }
        MouseEventKind::ScrollRight if view.overlays.is_empty() && view.pane() == Pane::Log => {
            return perform(model, view, Command::Sideways(1), now);
        }
        MouseEventKind::Down(MouseButton::Left) if view.overlays.is_empty() => {
            view.dragged = borders::border_at(view, at).map(|border| (border, false));
            // A border may be a title, too: what was not dragged is clicked when it is let go.
            if view.dragged.is_none() {
                return click(model, view, at, now);
            }
        }
        MouseEventKind::Down(MouseButton::Left) if !view.geometry.too_small => {
            return click_over(model, view, at, now);
        }
        MouseEventKind::Drag(MouseButton::Left) if view.overlays.is_empty() => {
            if let Some((border, moved)) = &mut view.dragged {
                *moved = true;
                let border = *border;
                borders::drag(model, view, border, at);
                return Vec::new();
            }
            return drag(model, view, at, now);
        }
        MouseEventKind::Up(_) => {
            if let Some((_, false)) = view.dragged.take() {
                return click(model, view, at, now);
            }
        }
        MouseEventKind::Down(MouseButton::Right) if view.overlays.is_empty() => {
            if let Some((place, Target::Plot(from, to))) = under(model, view, at, now) {
                view.chart.put_cursor(from + (to - from) * share(place, at), false);
                view.chart.pin_cursor();
            }
        }
        _ => {}
    }
    Vec::new()
}

fn pane_at(view: &ViewState, at: Position) -> Option<Pane> {
    Pane::ALL.into_iter().find(|pane| view.geometry.pane(*pane).contains(at))
}

fn wheel(model: &Model, view: &mut ViewState, at: Position, turns: i64, now: Timestamp) -> Vec<Action> {
    let rows = turns * WHEEL;
    match view.overlay() {
        Some(
            Overlay::Inspect { .. }
            | Overlay::Evidence { .. }
            | Overlay::Event { .. }
            | Overlay::Environment { .. },
        ) => {
            overlays::scroll(view, rows);
        }
        // Lists without a place of their own: as the arrows do it.
        Some(
            Overlay::Help { .. } | Overlay::Hosts { .. } | Overlay::Processes { .. } | Overlay::Restart(_),
        ) => {
            let key = KeyEvent::from(if rows > 0 { KeyCode::Down } else { KeyCode::Up });
            (0..WHEEL).for_each(|_| drop(on_key(model, view, key, now)));
        }
        Some(_) => {}
        None => match (under(model, view, at, now), pane_at(view, at)) {
            (Some((place, Target::Plot(from, to))), _) => {
                let around = from + (to - from) * share(place, at);
                zoom(model, view, if turns > 0 { -1 } else { 1 }, around);
            }
            (Some((_, Target::Record(..))), _) => {
                return vec![Action::Time(TimeMove::Step(STEP_MS * turns))];
            }
            (_, Some(pane)) => commands::scroll(model, view, pane, rows),
            (_, None) => {}
        },
    }
    Vec::new()
}

fn zoom(model: &Model, view: &mut ViewState, by: i8, around: f64) {
    commands::on_shown(model, view, |shown, view| view.chart.zoom_around(shown, by, Some(around)));
}

/// What lies at a place of the page.
fn under(model: &Model, view: &ViewState, at: Position, now: Timestamp) -> Option<(Rect, Target)> {
    plain(model, view, now, |ctx| {
        let buf = &mut Buffer::empty(ctx.geo.area);
        panes::charts::draw(ctx, buf);
        panes::events::draw(ctx, buf);
        panes::end::draw(ctx, buf);
        panes::time::draw(ctx, buf);
        panes::footer::draw(ctx, buf);
        ctx.targets.at(at)
    })
}

/// A click while something lies over the page: on an answer, an entry or a hint it does what that says;
/// beside a card it closes the card. What was typed, and what is asked, stays.
fn click_over(model: &Model, view: &mut ViewState, at: Position, now: Timestamp) -> Vec<Action> {
    let found = plain(model, view, now, |ctx| {
        let buf = &mut Buffer::empty(ctx.geo.area);
        overlays::draw(ctx, buf);
        panes::footer::draw(ctx, buf);
        ctx.targets.at(at).map(|(_, target)| target)
    });
    match (found, view.overlay().cloned()) {
        (
            None,
            Some(
                Overlay::Inspect { .. }
                | Overlay::Evidence { .. }
                | Overlay::Event { .. }
                | Overlay::Environment { .. }
                | Overlay::Policy
                | Overlay::Pictures(_)
                | Overlay::Help { .. },
            ),
        ) => {
            view.overlays.pop();
            Vec::new()
        }
        (Some(Target::Key(key)), _) => on_key(model, view, key, now),
        (Some(Target::Row(row)), Some(overlay)) => pick(model, view, overlay, row, now),
        _ => Vec::new(),
    }
}

/// A click on an entry of a list that lies over the page.
fn pick(model: &Model, view: &mut ViewState, overlay: Overlay, row: usize, now: Timestamp) -> Vec<Action> {
    let key = match overlay {
        Overlay::Help { filter, .. } => {
            view.open(Overlay::Help { filter, selected: row });
            KeyCode::Enter
        }
        Overlay::Hosts { changed, .. } => {
            view.open(Overlay::Hosts { changed, selected: row });
            KeyCode::Char(' ')
        }
        Overlay::Processes { node, .. } => {
            let name = reach::of_host(model, node).get(row).map(|process| process.name);
            view.open(Overlay::Processes { node, selected: name });
            return Vec::new();
        }
        Overlay::Restart(mut draft) => {
            draft.selected = row;
            view.open(Overlay::Restart(draft));
            return Vec::new();
        }
        Overlay::Palette(TypedLine { line, .. }) => {
            let offered = palette::suggestions(view.shown(model), view, &line);
            let Some(chosen) = offered.get(row).map(|suggestion| suggestion.line.clone()) else {
                return Vec::new();
            };
            let again = chosen.trim() == line.trim();
            view.open(Overlay::Palette(TypedLine { line: chosen, recalled: None }));
            match again {
                true => KeyCode::Enter,
                false => return Vec::new(),
            }
        }
        _ => return Vec::new(),
    };
    on_key(model, view, KeyEvent::from(key), now)
}

/// Moves the cursor of the charts, or the time that is shown.
fn drag(model: &Model, view: &mut ViewState, at: Position, now: Timestamp) -> Vec<Action> {
    match under(model, view, at, now) {
        Some((place, Target::Plot(from, to))) => {
            view.chart.put_cursor(from + (to - from) * share(place, at), true);
            Vec::new()
        }
        Some((place, Target::Record(from, to))) => travel(from, to, share(place, at)),
        Some(_) | None => Vec::new(),
    }
}

fn travel(from: Timestamp, to: Timestamp, share: f64) -> Vec<Action> {
    let after = (to.since(from) as f64 * share).round() as u64;
    vec![Action::Time(TimeMove::To(from.plus(after)))]
}

/// A click on something of the page that says what it means, so far from its left end; `focused` had the
/// focus before.
fn follow(
    model: &Model,
    view: &mut ViewState,
    target: Target,
    share: f64,
    focused: Pane,
    now: Timestamp,
) -> Vec<Action> {
    match target {
        Target::Key(key) => return on_key(model, view, key, now),
        Target::Command(command) => return perform(model, view, command, now),
        Target::Record(from, to) => return travel(from, to, share),
        Target::Plot(from, to) => view.chart.put_cursor(from + (to - from) * share, false),
        Target::Series(name) => {
            view.series.selected = Some(name);
            if view.tab == Tab::Overview && focused == Pane::Charts {
                return commands::perform(model, view, Command::Go(Tab::Charts), now);
            }
        }
        Target::Event(number) if view.events.selected == Some(number) => {
            return commands::perform(model, view, Command::Inspect, now);
        }
        Target::Event(number) => view.events.selected = Some(number),
        Target::Nothing | Target::Row(_) => {}
    }
    Vec::new()
}

fn click(model: &Model, view: &mut ViewState, at: Position, now: Timestamp) -> Vec<Action> {
    if let Some(tab) = panes::header::tab_at(view, at) {
        return commands::perform(model, view, Command::Go(tab), now);
    }
    if view.geometry.status.contains(at) {
        match model.run.state {
            RunState::Over => return commands::perform(model, view, Command::Go(Tab::End), now),
            _ if !model.verdicts.is_empty() => return commands::perform(model, view, Command::Explain, now),
            _ => return Vec::new(),
        }
    }
    if let Some(chosen) = panes::footer::command_at(model, view, at) {
        return commands::perform(model, view, chosen, now);
    }
    let (found, pane) = (under(model, view, at, now), pane_at(view, at));
    let focused = view.focus;
    if view.tab == Tab::Overview {
        view.focus = pane.unwrap_or(focused);
    }
    if let Some((place, target)) = found {
        return follow(model, view, target, share(place, at), focused, now);
    }
    let Some(pane) = pane else { return Vec::new() };
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
        Pane::Ranks => plain(model, view, now, |ctx| panes::ranks::heading_at(ctx, at)),
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
