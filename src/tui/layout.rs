//! Where everything is: pure arithmetic on rectangles, and the one pass that clamps scroll and selection
//! before drawing.
//!
//! Invariants:
//! - UI-8: every rectangle lies inside the area given, whatever its size; a part that does not fit is empty.
//! - After [`layout`], every selection exists (or is `None`) and every scroll offset shows at least one
//!   row.

use crate::fresh;
use crate::geometry::{Geometry, MIN_HEIGHT, MIN_WIDTH};
use crate::overlays;
use crate::pane_sizes::{self, PaneSizes, Share};
use crate::panes;
use crate::ranks;
use crate::reach;
use crate::state::{Ask, ConfirmKind, Overlay, Pane, Tab, ViewState};
use rankdeck_core::model::{Model, RunState};
use ratatui::layout::Rect;

/// Takes rows off the top of a rectangle.
fn take(rest: &mut Rect, rows: u16) -> Rect {
    let rows = rows.min(rest.height);
    let top = Rect { height: rows, ..*rest };
    rest.y += rows;
    rest.height -= rows;
    top
}

/// Splits a rectangle into columns by weights; the last takes what is left.
pub fn columns(area: Rect, weights: &[u16]) -> Vec<Rect> {
    let sum = weights.iter().map(|w| u32::from(*w)).sum::<u32>().max(1);
    let mut x = area.x;
    let mut parts = Vec::with_capacity(weights.len());
    for (i, weight) in weights.iter().enumerate() {
        let width = if i + 1 == weights.len() {
            area.right().saturating_sub(x)
        } else {
            (u32::from(area.width) * u32::from(*weight) / sum) as u16
        };
        parts.push(Rect { x, width, ..area });
        x += width;
    }
    parts
}

/// The way to the hosts is what matters: no rank has been spawned yet.
fn is_connecting(model: &Model) -> bool {
    matches!(model.run.state, RunState::Connecting | RunState::Launching)
        && !model.ranks.iter().any(|rank| rank.pid.is_some())
}

/// Where everything is on a screen of this size.
pub fn geometry(model: &Model, view: &ViewState, area: Rect) -> Geometry {
    let mut geo = Geometry { area, ..Geometry::default() };
    geo.too_small = area.width < MIN_WIDTH || area.height < MIN_HEIGHT;
    if geo.too_small {
        return geo;
    }
    let shown = view.shown(model);
    geo.boxed = area.width >= 96 && area.height >= 28;
    geo.connecting = is_connecting(shown);
    let mut rest = area;
    geo.title = take(&mut rest, 1);
    geo.tabs = take(&mut rest, 1);
    geo.footer = Rect { y: area.bottom() - 1, height: 1, ..area };
    rest.height -= 1;
    let bar = panes::time::height(view, area.height);
    geo.time = Rect { y: geo.footer.y.saturating_sub(bar), height: bar, ..area };
    rest.height = rest.height.saturating_sub(bar);
    let zoomed = view.zoom;
    if !geo.connecting {
        geo.progress = take(&mut rest, 1);
        if !zoomed && (view.tab == Tab::Overview || area.height >= 40) {
            geo.totals = take(&mut rest, 3);
        }
    }
    geo.status = take(&mut rest, panes::status::height(model, &view.steering.keymap, area));
    geo.body = rest;
    match view.tab {
        Tab::Overview if geo.connecting => geo.place(Pane::Hosts, rest),
        Tab::Overview if !zoomed => overview(shown, view.ranks.waits, view.sizes, &mut geo),
        _ => geo.place(view.pane(), rest),
    }
    let inner = geo.inside(geo.pane(Pane::Ranks));
    geo.strip = strip_lines(shown, &geo, inner, view.ranks.waits);
    geo.rank_rows = usize::from(inner.height.saturating_sub(1 + geo.strip));
    geo.log_rows = usize::from(geo.inside(geo.pane(Pane::Log)).height);
    geo
}

fn overview(model: &Model, waits: bool, sizes: PaneSizes, geo: &mut Geometry) {
    let mut rest = geo.body;
    let chrome = geo.chrome();
    let many = model.ranks.len() > 8;
    let strip = if many { 2 } else { u16::from(waits) };
    let wanted = model.ranks.len().min(1000) as u16 + 1 + chrome + strip;
    let charts_min = if rest.height >= 12 { 5 + chrome } else { 0 };
    let log_min = match rest.height {
        h if h < 14 => 0,
        // Ranks come before logs, which have a page of their own.
        h if h < 30 && wanted + charts_min + 3 + chrome > h => 0,
        h if h < 30 => 3 + chrome,
        _ => 7 + chrome,
    };
    let most = rest.height.saturating_sub(charts_min + log_min).max(rest.height.min(5));
    // A heading and two ranks, and below them a pane that says something.
    let (least, below) = ((3 + chrome + strip).min(rest.height), charts_min.max(2 + chrome));
    let given =
        |share: Share| share.of(geo.body.height).clamp(least, rest.height.saturating_sub(below).max(least));
    let high = sizes.ranks.map_or(wanted.min(most), given);
    geo.place(Pane::Ranks, take(&mut rest, high));
    // Who has given the ranks less has given the others more.
    let log_min =
        if sizes.ranks.is_some() && rest.height >= charts_min + 3 + chrome { 3 + chrome } else { log_min };
    if charts_min == 0 || rest.height < charts_min {
        if rest.height > chrome {
            geo.place(Pane::Log, rest);
        }
        return;
    }
    let charts = if let Some(share) = sizes.charts {
        let lowest = rest.height.saturating_sub(3 + chrome);
        match share.of(geo.body.height) {
            // No room is left for anything else: all of it.
            wanted if wanted > lowest && log_min == 0 => rest.height,
            wanted => wanted.clamp(charts_min.min(lowest), lowest.max(charts_min.min(rest.height))),
        }
    } else if log_min == 0 {
        rest.height
    } else {
        let most = rest.height.saturating_sub(log_min).max(charts_min);
        (rest.height * 3 / 5).clamp(charts_min, most).min(16.max(rest.height / 2))
    };
    geo.place(Pane::Charts, take(&mut rest, charts));
    if rest.height <= chrome {
        return;
    }
    let (panes, parts): (&[Pane], _) = match geo.area.width {
        140.. => (&[Pane::Evals, Pane::Log, Pane::Events], columns(rest, &[5, 9, 7])),
        96.. => (&[Pane::Evals, Pane::Log], columns(rest, &[4, 6])),
        _ => (&[Pane::Log], vec![rest]),
    };
    for (pane, part) in panes.iter().zip(pane_sizes::widths(sizes, rest, &parts)) {
        geo.place(*pane, part);
    }
}

/// The strip helps where the table pages, or where there are many ranks.
fn strip_lines(model: &Model, geo: &Geometry, inner: Rect, wanted: bool) -> u16 {
    let ranks = model.ranks.len();
    let fits = ranks < usize::from(inner.height);
    let least = if wanted { 3 } else { 5 };
    if inner.height < least || ranks == 0 || (fits && ranks < 16 && !wanted) {
        return 0;
    }
    let lines = panes::strip::height(model, inner.width);
    let most = if geo.area.height >= 40 { 4 } else { 2 };
    (lines as u16).min(most).min(inner.height / 3).max(u16::from(wanted))
}

/// Clamps scroll and selection, opens and closes what the model asks for, and remembers where everything is.
/// Call before [`crate::view`].
pub fn layout(model: &Model, view: &mut ViewState, area: Rect) {
    overlays_follow(model, view);
    // The end is shown once, to who has seen the run alive and looks at no other page.
    let over = model.run.state == RunState::Over;
    if over && view.moment.seen_alive && view.tab == Tab::Overview && view.moment.cursor.is_none() {
        view.tab = Tab::End;
    }
    view.moment.seen_alive = !over && view.moment.cursor.is_none();
    if view.zoom && view.tab != Tab::Overview {
        view.zoom = false;
    }
    view.geometry = geometry(model, view, area);
    let panes = view.geometry.panes();
    if view.tab == Tab::Overview && !view.zoom && !panes.contains(&view.focus) {
        view.focus = panes.first().copied().unwrap_or_default();
    }
    let frozen = view.moment.frozen.take();
    let shown = frozen.as_ref().map_or(model, |frozen| &frozen.model);
    view.chart.late_s = fresh::charts_late_ms(shown, view.moment.now) as f64 / 1000.0;
    clamp(shown, view);
    overlays::clamp(model, shown, view);
    view.moment.frozen = frozen;
    overlays::pictures::prepare(model, view);
}

fn clamp(model: &Model, view: &mut ViewState) {
    if view.ranks.selected.is_none_or(|rank| ranks::find(model, rank).is_none()) {
        view.ranks.selected = model.ranks.first().map(|rank| rank.rank);
    }
    view.ranks.marked.retain(|rank| rank.index() < model.ranks.len());
    if view.hosts.selected.is_none_or(|node| node.index() >= model.hosts.len()) {
        view.hosts.selected = model.hosts.first().map(|host| host.node_rank);
    }
    let rows = view.geometry.rank_rows;
    if rows > 0 {
        let order = ranks::rows(model, view, model.ranks.len() > rows);
        let selected =
            order.iter().position(|i| Some(model.ranks[*i].rank) == view.ranks.selected).unwrap_or(0);
        view.ranks.top = window(view.ranks.top, selected, order.len(), rows);
    }
    let height = |area| usize::from(view.geometry.inside(area).height);
    let evals = height(view.geometry.pane(Pane::Evals)).saturating_sub(1);
    view.evals_top = view.evals_top.min(model.evals.len().saturating_sub(evals.max(1)));
    let hosts = height(view.geometry.pane(Pane::Hosts));
    if hosts > 0 {
        let (first, last, all) = panes::hosts::rows_of(model, view.hosts.selected, view.geometry.area.width);
        // Both ends of the block, the top one last so that it wins when the block is higher than the page.
        let top = window(view.hosts.top, last, all, hosts);
        view.hosts.top = window(top, first, all, hosts);
    }
    if view.series.selected.as_ref().is_none_or(|name| model.chart(name).is_none()) {
        view.series.selected = panes::charts::usual(model).first().map(|name| (*name).to_string());
    }
    let names: Vec<String> = panes::charts::listed(model, view).map(|(name, _)| name.clone()).collect();
    let is_listed = view.series.selected.as_ref().is_some_and(|name| names.contains(name));
    if let Some(first) = names.first().filter(|_| !is_listed) {
        view.series.selected = Some(first.clone());
    }
    let selected = names.iter().position(|name| Some(name) == view.series.selected.as_ref()).unwrap_or(0);
    view.series.top =
        window(view.series.top, selected, names.len(), height(view.geometry.pane(Pane::Charts)).max(1));
    panes::events::clamp(model, view);
}

/// The first row of a list of `len` rows on `height` lines, moved as little as possible so that `selected` is
/// seen.
pub fn window(top: usize, selected: usize, len: usize, height: usize) -> usize {
    let height = height.max(1);
    let top = if selected < top {
        selected
    } else if selected >= top + height {
        selected + 1 - height
    } else {
        top
    };
    top.min(len.saturating_sub(height))
}

/// Says what agents have answered about processes.
fn tell_answers(model: &Model, view: &mut ViewState) {
    for (asked, outcome) in model.reaches.answered(view.answers) {
        view.answers = view.answers.max(asked.answer);
        if let Some((text, role)) = reach::told(asked.process, asked.action, outcome) {
            view.toast(text, role, view.moment.now);
        }
    }
}

/// Questions of links open by themselves and close when they are answered; our own questions close when they
/// no longer make sense.
fn overlays_follow(model: &Model, view: &mut ViewState) {
    let asked = |node: rankdeck_types::ids::NodeRank| {
        model.hosts.get(node.index()).and_then(|host| host.prompt.as_ref())
    };
    view.answered.retain(|(node, prompt)| asked(*node) == Some(prompt));
    view.overlays.retain(|overlay| match overlay {
        Overlay::Ask(ask) => asked(ask.node) == Some(&ask.prompt),
        Overlay::Confirm(confirm) => {
            model.run.state != RunState::Over
                || matches!(confirm.kind, ConfirmKind::Restart | ConfirmKind::Signal)
        }
        Overlay::Inspect { rank, .. } => ranks::find(model, *rank).is_some(),
        Overlay::Evidence { about, .. } => overlays::evidence::find(model, about).is_some(),
        Overlay::Event { number, .. } => overlays::event::find(model, *number).is_some(),
        Overlay::Help { .. }
        | Overlay::Palette(_)
        | Overlay::Hosts { .. }
        | Overlay::Restart(_)
        | Overlay::Processes { .. }
        | Overlay::Environment { .. }
        | Overlay::Policy
        | Overlay::Pictures(_)
        | Overlay::Time { .. } => true,
    });
    tell_answers(model, view);
    // A question of the past needs no answer.
    if view.moment.cursor.is_some() || view.overlays.iter().any(|overlay| matches!(overlay, Overlay::Ask(_)))
    {
        return;
    }
    let question = model.hosts.iter().find_map(|host| {
        let prompt = host.prompt.clone()?;
        let answered = view.answered.iter().any(|(node, old)| *node == host.node_rank && *old == prompt);
        (!answered).then_some((host.node_rank, prompt))
    });
    if let Some((node, prompt)) = question {
        // Below a question of ours, which the user is answering right now.
        let ask = Overlay::Ask(Ask { node, prompt, input: String::new(), yes: false });
        let at = match view.overlays.last() {
            Some(Overlay::Confirm(_)) => view.overlays.len() - 1,
            _ => view.overlays.len(),
        };
        view.overlays.insert(at, ask);
    }
}
