//! What each command of the table of keys does to the view, and which actions it asks for.

use crate::confirm;
use crate::copy;
use crate::keys;
use crate::keys::Command;
use crate::logs;
use crate::overlays::evidence;
use crate::panes::charts;
use crate::ranks;
use crate::state::{Action, ChartWindow, Frozen, LogScope, Overlay, Pane, Tab, ViewState};
use crate::theme::{Glyphs, Role};
use rankdeck_core::model::{Model, RunState};
use rankdeck_proto::message::StopMode;
use rankdeck_types::ids::Timestamp;
use std::collections::BTreeSet;

/// Carries out a command that is not disabled.
pub fn perform(model: &Model, view: &mut ViewState, command: Command, now: Timestamp) -> Vec<Action> {
    match command {
        Command::Quit if !keys::runs(model) => return vec![Action::leave()],
        Command::Quit => view.open(Overlay::Confirm(confirm::quit(model))),
        // Nothing has been started: there is nothing to lose and nothing to ask.
        Command::Stop | Command::Kill if model.run.state == RunState::Connecting && !keys::runs(model) => {
            return vec![Action::stop(if command == Command::Kill {
                StopMode::Kill
            } else {
                StopMode::Clean
            })];
        }
        Command::Stop => view.open(Overlay::Confirm(confirm::stop(model))),
        Command::Kill => view.open(Overlay::Confirm(confirm::kill(model))),
        Command::Detach => return vec![Action::leave()],
        Command::Restart => view.open(Overlay::Confirm(confirm::restart(model))),
        Command::PickHosts => view.open(Overlay::Hosts { changed: BTreeSet::new(), selected: 0 }),
        Command::Help => view.open(Overlay::Help { filter: String::new(), selected: 0 }),
        Command::Go(tab) => {
            view.tab = tab;
            view.zoom = false;
            view.editing = None;
        }
        Command::NextPane => focus(view, 1),
        Command::PreviousPane => focus(view, -1),
        Command::Zoom => view.zoom = !view.zoom,
        Command::Freeze => freeze(model, view, now),
        Command::Explain => evidence::open(model, view),
        Command::Back => back(view),
        Command::Copy => return vec![Action::Copy(copy::text(view.shown(model), view, now))],
        Command::SaveScreen => return vec![Action::SaveScreen],
        Command::Redraw => return vec![Action::Redraw],
        Command::Suspend => return vec![Action::Suspend],
        Command::Move(rows) => scroll(model, view, view.pane(), i64::from(rows)),
        Command::Page(pages) => {
            let height = view.geometry.inside(area(view)).height;
            scroll(model, view, view.pane(), i64::from(pages) * i64::from((height / 2).max(1)));
        }
        Command::First => scroll(model, view, view.pane(), -i64::from(i32::MAX)),
        Command::Last => scroll(model, view, view.pane(), i64::from(i32::MAX)),
        Command::Inspect => inspect(model, view),
        Command::Filter => {
            view.editing = Some(view.pane());
        }
        Command::Sort => {
            view.sort = view.sort.next();
            view.toast(format!("sorted by {}", view.sort.name()), Role::Dim, now);
        }
        Command::Reverse => view.reverse = !view.reverse,
        Command::Mark => mark(model, view),
        Command::NextTrouble => next_trouble(model, view),
        Command::RankLog => {
            view.log_scope = LogScope::Selected;
            view.log_at = None;
            view.tab = Tab::Logs;
            view.zoom = false;
        }
        Command::Merge => {
            view.log_scope = match view.log_scope {
                LogScope::Merged => LogScope::Selected,
                LogScope::Selected => LogScope::Merged,
            };
            view.log_at = None;
        }
        Command::Follow => view.log_at = None,
        Command::Wrap => view.log_wrap = !view.log_wrap,
        Command::OtherRank(step) => other_rank(model, view, step),
        Command::ToggleSeries => toggle_series(model, view),
        Command::Span(by) => {
            view.window.zoom = view.window.zoom.saturating_add_signed(by).min(10);
            if view.window.zoom == 0 {
                view.window.back = 0;
            }
        }
        Command::Pan(by) => {
            view.window.back = view.window.back.saturating_add_signed(-i16::from(by)).min(4096)
        }
        Command::WholeRun => view.window = ChartWindow::default(),
    }
    Vec::new()
}

fn area(view: &ViewState) -> ratatui::layout::Rect {
    let geo = &view.geometry;
    match view.pane() {
        Pane::Ranks => geo.ranks,
        Pane::Charts => geo.charts,
        Pane::Evals => geo.evals,
        Pane::Log => geo.log,
        Pane::Hosts => geo.hosts,
        Pane::Events => geo.events,
    }
}

fn focus(view: &mut ViewState, step: isize) {
    let panes = view.geometry.panes();
    if let Some(at) = panes.iter().position(|pane| *pane == view.focus) {
        let next = (at as isize + step).rem_euclid(panes.len() as isize) as usize;
        view.focus = panes[next];
    }
}

fn freeze(model: &Model, view: &mut ViewState, now: Timestamp) {
    view.frozen = match view.frozen.take() {
        Some(_) => None,
        None => Some(Frozen { model: Box::new(model.clone()), at: now }),
    };
}

/// Leaves one transient state, the innermost first.
fn back(view: &mut ViewState) {
    if view.overlays.pop().is_some() {
        return;
    }
    let filter = match view.pane() {
        Pane::Ranks => Some(&mut view.rank_filter),
        Pane::Log => Some(&mut view.log_filter),
        Pane::Charts | Pane::Evals | Pane::Hosts | Pane::Events => None,
    };
    if let Some(filter) = filter
        && !filter.is_empty()
    {
        filter.clear();
    } else if view.pane() == Pane::Log && view.log_at.is_some() {
        view.log_at = None;
    } else if view.zoom {
        view.zoom = false;
    } else if view.frozen.is_some() {
        view.frozen = None;
    } else if !view.marked.is_empty() {
        view.marked.clear();
    } else {
        view.tab = Tab::Overview;
    }
}

/// Moves in a pane; down is positive. Selections move in lists, offsets elsewhere.
pub fn scroll(model: &Model, view: &mut ViewState, pane: Pane, rows: i64) {
    let frozen = view.frozen.take();
    let shown = frozen.as_ref().map_or(model, |frozen| &frozen.model);
    let step = |at: usize, len: usize| {
        (at as i64).saturating_add(rows).clamp(0, len.saturating_sub(1) as i64) as usize
    };
    match pane {
        Pane::Ranks => {
            let order = ranks::rows(shown, view, shown.ranks.len() > view.geometry.rank_rows);
            let at = order.iter().position(|i| Some(shown.ranks[*i].rank) == view.rank).unwrap_or(0);
            if let Some(i) = order.get(step(at, order.len())) {
                view.rank = Some(shown.ranks[*i].rank);
            }
        }
        Pane::Hosts => {
            let at = view.host.map_or(0, |node| node.index());
            view.host = shown.hosts.get(step(at, shown.hosts.len())).map(|host| host.node_rank);
        }
        Pane::Charts => {
            let names: Vec<&String> = shown.scalars.keys().collect();
            let at = names.iter().position(|name| Some(*name) == view.series.as_ref()).unwrap_or(0);
            view.series = names.get(step(at, names.len())).map(|name| (*name).clone());
        }
        Pane::Evals => view.evals_top = step(view.evals_top, shown.evals.len()),
        // Counted from the newest, which is the lowest row.
        Pane::Events => {
            let last = shown.history.len().saturating_sub(1) as i64;
            view.events_up = (view.events_up as i64).saturating_sub(rows).clamp(0, last) as usize;
        }
        Pane::Log => logs::scroll(shown, view, rows),
    }
    view.frozen = frozen;
}

fn inspect(model: &Model, view: &mut ViewState) {
    if view.pane() == Pane::Hosts {
        if let Some(host) = view.host.and_then(|node| model.hosts.get(node.index())) {
            view.rank_filter = format!("host:{}", host.name);
            view.tab = Tab::Overview;
            view.focus = Pane::Ranks;
        }
    } else if let Some(rank) = ranks::selected(model, view) {
        view.open(Overlay::Inspect { rank: rank.rank, top: 0 });
    }
}

fn mark(model: &Model, view: &mut ViewState) {
    if let Some(rank) = ranks::selected(model, view).map(|rank| rank.rank) {
        if !view.marked.remove(&rank) {
            view.marked.insert(rank);
        }
        scroll(model, view, Pane::Ranks, 1);
    }
}

fn next_trouble(model: &Model, view: &mut ViewState) {
    let all = model.ranks.len();
    let from = ranks::selected(model, view).map_or(0, |rank| rank.rank.index() + 1);
    let found = (0..all)
        .filter_map(|i| model.ranks.get((from + i) % all))
        .find(|rank| ranks::state(model, rank, Glyphs::Ascii).trouble);
    if let Some(rank) = found {
        view.rank = Some(rank.rank);
    }
}

/// Selects another rank by number, in the inspector too.
pub fn other_rank(model: &Model, view: &mut ViewState, step: i8) {
    let at = ranks::selected(model, view).map_or(0, |rank| rank.rank.index());
    let last = model.ranks.len().saturating_sub(1);
    let Some(rank) = model.ranks.get(at.saturating_add_signed(isize::from(step)).min(last)) else { return };
    view.rank = Some(rank.rank);
    view.log_at = None;
    if let Some(Overlay::Inspect { rank: shown, top }) = view.overlays.last_mut() {
        (*shown, *top) = (rank.rank, 0);
    }
}

fn toggle_series(model: &Model, view: &mut ViewState) {
    let Some(name) = view.series.clone() else { return };
    let usual = || charts::usual(model).into_iter().map(String::from).collect::<BTreeSet<_>>();
    let shown = view.shown_series.get_or_insert_with(usual);
    if !shown.remove(&name) {
        shown.insert(name);
    }
}
