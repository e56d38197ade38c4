//! Borders between the panes of the overview: where they are, and what moving one does.

use crate::geometry::Geometry;
use crate::layout;
use crate::pane_sizes::{Border, PaneSizes, Share};
use crate::state::{Pane, Tab, ViewState};
use rankdeck_core::model::Model;
use ratatui::layout::{Position, Rect};

fn is_overview(view: &ViewState) -> bool {
    view.tab == Tab::Overview && !view.zoom && !view.geometry.connecting && !view.geometry.too_small
}

/// Panes beside each other at the bottom.
fn bottom(geo: &Geometry) -> Rect {
    [Pane::Evals, Pane::Log, Pane::Events]
        .map(|pane| geo.pane(pane))
        .into_iter()
        .filter(|area| !area.is_empty())
        .reduce(|all, one| all.union(one))
        .unwrap_or_default()
}

/// The border at a place of the overview.
pub fn border_at(view: &ViewState, at: Position) -> Option<Border> {
    let geo = &view.geometry;
    if !is_overview(view) || !geo.body.contains(at) {
        return None;
    }
    // Of two boxes, both edges.
    let meets = |upper: u16, place: u16| place == upper || (geo.boxed && place + 1 == upper);
    let (ranks, charts, bottom) = (geo.pane(Pane::Ranks), geo.pane(Pane::Charts), bottom(geo));
    if !ranks.is_empty() && ranks.bottom() < geo.body.bottom() && meets(ranks.bottom(), at.y) {
        return Some(Border::Below(Pane::Ranks));
    }
    if !charts.is_empty() && !bottom.is_empty() && meets(bottom.y, at.y) {
        return Some(Border::Below(Pane::Charts));
    }
    let left = |pane: Pane| {
        let area = geo.pane(pane);
        !area.is_empty() && area.right() < bottom.right() && bottom.contains(at) && meets(area.right(), at.x)
    };
    [Pane::Evals, Pane::Log].into_iter().find(|pane| left(*pane)).map(Border::Behind)
}

/// Moves a border to a place.
pub fn drag(model: &Model, view: &mut ViewState, border: Border, at: Position) {
    let geo = &view.geometry;
    let (body, bottom) = (geo.body, bottom(geo));
    let below = |pane: Pane| Some(Share::new(at.y.saturating_sub(geo.pane(pane).y), body.height));
    let mut sizes = view.sizes;
    match border {
        Border::Below(Pane::Ranks) => sizes.ranks = below(Pane::Ranks),
        Border::Below(pane) => sizes.charts = below(pane),
        Border::Behind(Pane::Log) => {
            sizes.events = Some(Share::new(bottom.right().saturating_sub(at.x), bottom.width));
        }
        Border::Behind(_) => sizes.evals = Some(Share::new(at.x.saturating_sub(bottom.x), bottom.width)),
    }
    set(model, view, sizes);
}

/// Makes the focused pane so many rows higher and cells wider.
pub fn grow(model: &Model, view: &mut ViewState, rows: i16, cells: i16) {
    let geo = &view.geometry;
    let (focus, body, bottom) = (view.focus, geo.body, bottom(geo));
    let high = |pane: Pane, by: i16| {
        let now = geo.pane(pane).height;
        (now > 0).then(|| Share::new(now.saturating_add_signed(by), body.height))
    };
    let wide = |pane: Pane, by: i16| {
        let now = geo.pane(pane).width;
        (now > 0).then(|| Share::new(now.saturating_add_signed(by), bottom.width))
    };
    let mut sizes = view.sizes;
    if rows != 0 {
        match focus {
            Pane::Ranks => sizes.ranks = high(Pane::Ranks, rows),
            Pane::Charts => sizes.charts = high(Pane::Charts, rows),
            // What is below the charts, or the ranks, gets what they lose.
            _ if !geo.pane(Pane::Charts).is_empty() => sizes.charts = high(Pane::Charts, -rows),
            _ => sizes.ranks = high(Pane::Ranks, -rows),
        }
    }
    if cells != 0 {
        match focus {
            Pane::Evals => sizes.evals = wide(Pane::Evals, cells),
            Pane::Events => sizes.events = wide(Pane::Events, cells),
            Pane::Log if !geo.pane(Pane::Events).is_empty() => sizes.events = wide(Pane::Events, -cells),
            Pane::Log => sizes.evals = wide(Pane::Evals, -cells),
            _ => {}
        }
    }
    set(model, view, sizes);
}

/// Takes sizes as far as the page gives them, so that the first step back already shows.
fn set(model: &Model, view: &mut ViewState, sizes: PaneSizes) {
    let before = view.sizes;
    view.sizes = sizes;
    let geo = layout::geometry(model, view, view.geometry.area);
    let (body, bottom) = (geo.body, bottom(&geo));
    let settled = |given: Option<Share>, was: Option<Share>, cells: u16, all: u16| match given {
        Some(share) if given != was && cells > 0 && share.of(all) != cells => Some(Share::new(cells, all)),
        given => given,
    };
    view.sizes = PaneSizes {
        ranks: settled(sizes.ranks, before.ranks, geo.pane(Pane::Ranks).height, body.height),
        charts: settled(sizes.charts, before.charts, geo.pane(Pane::Charts).height, body.height),
        evals: settled(sizes.evals, before.evals, geo.pane(Pane::Evals).width, bottom.width),
        events: settled(sizes.events, before.events, geo.pane(Pane::Events).width, bottom.width),
    };
    view.geometry = geo;
}
