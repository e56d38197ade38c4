//! Where everything is: pure arithmetic on rectangles, the one pass that clamps scroll and selection before
//! drawing, and moving the borders between the panes of the overview.
//!
//! Invariants:
//! - UI-8: every rectangle lies inside the area given, whatever its size; a part that does not fit is empty.
//! - After [`layout`], every selection exists (or is `None`) and every scroll offset shows at least one
//!   row.
//!
//! Sizes that the user has given to the panes of the overview are shares of the page ([`PaneSizes`]), so that they
//! suit a terminal of another size.

use crate::run::chrome::{status, timeline};
use crate::run::geometry::{Geometry, MIN_HEIGHT, MIN_WIDTH, Pane, Tab, columns};
use crate::run::overlays::{LinkPrompt, Overlay};
use crate::run::{RunScreen, ViewState, keys, processes};
use rankdeck_core::model::{Model, RunState};
use rankdeck_kit::{Glyphs, Role, overlay};
use rankdeck_types::words;
use ratatui::layout::{Position, Rect};

/// Takes rows off the top of a rectangle.
fn take(rest: &mut Rect, rows: u16) -> Rect {
    let rows = rows.min(rest.height);
    let top = Rect { height: rows, ..*rest };
    rest.y += rows;
    rest.height -= rows;
    top
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
    let bar = timeline::height(view, area.height);
    geo.time = Rect { y: geo.footer.y.saturating_sub(bar), height: bar, ..area };
    rest.height = rest.height.saturating_sub(bar);
    let zoomed = view.zoom;
    if !geo.connecting {
        geo.progress = take(&mut rest, 1);
        if !zoomed && (view.tab == Tab::Overview || area.height >= 40) {
            geo.totals = take(&mut rest, 3);
        }
    }
    geo.status =
        take(&mut rest, status::height(model, keys::names(&view.steering.keymap, Glyphs::Ascii), area));
    geo.body = rest;
    match view.tab {
        Tab::Overview if geo.connecting => geo.place(Pane::Hosts, rest),
        Tab::Overview if !zoomed => overview(shown, view, &mut geo),
        _ => geo.place(view.pane(), rest),
    }
    geo
}

fn overview(model: &Model, view: &ViewState, geo: &mut Geometry) {
    let mut rest = geo.body;
    let (chrome, sizes) = (geo.chrome(), view.sizes);
    let strip = view.ranks.strip_lines(model);
    let full = model.ranks.len().min(1000) as u16 + 1 + chrome + strip;
    let charts_min = if rest.height >= 12 { 5 + chrome } else { 0 };
    let log_min = match rest.height {
        h if h < 14 => 0,
        // Ranks come before logs, which have a page of their own.
        h if h < 30 && full + charts_min + 3 + chrome > h => 0,
        h if h < 30 => 3 + chrome,
        _ => 7 + chrome,
    };
    let most = rest.height.saturating_sub(charts_min + log_min).max(rest.height.min(5));
    // A heading and two ranks, and below them a pane with something in it.
    let (least, below) = ((3 + chrome + strip).min(rest.height), charts_min.max(2 + chrome));
    let given = |share: PaneShare| {
        share.of(geo.body.height).clamp(least, rest.height.saturating_sub(below).max(least))
    };
    let high = sizes.ranks.map_or(full.min(most), given);
    geo.place(Pane::Ranks, take(&mut rest, high));
    // Less space for the ranks is more space for the others.
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
            rows if rows > lowest && log_min == 0 => rest.height,
            rows => rows.clamp(charts_min.min(lowest), lowest.max(charts_min.min(rest.height))),
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
    for (pane, part) in panes.iter().zip(pane_widths(sizes, rest, &parts)) {
        geo.place(*pane, part);
    }
}

/// Clamps scroll and selection, opens and closes what the model asks for, and remembers where everything is.
/// Call before [`crate::view`].
pub fn layout(model: &Model, view: &mut ViewState, area: Rect) {
    if overlay::settle::<RunScreen>(model, view, area) && view.moment.cursor.is_none() {
        view.closed = Some(view.moment.clock);
    }
    show_replies(model, view);
    show_refusal(model, view);
    show_membership(model, view);
    show_prompt(model, view);
    // The end is shown once, to who has seen the run alive and is on no other page.
    let over = model.run.state == RunState::Over;
    if over && view.moment.seen_alive && view.tab == Tab::Overview && view.moment.cursor.is_none() {
        view.tab = Tab::Outcome;
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
    let now = view.moment.now;
    for pane in Pane::ALL {
        view.with_page(pane, model, now, |page, cx| page.settle(cx));
    }
}

/// Shows toasts for the replies of agents about processes.
fn show_replies(model: &Model, view: &mut ViewState) {
    for (query, outcome) in model.process_queries.answered(view.answers) {
        view.answers = view.answers.max(query.answer);
        if let Some((text, role)) = processes::reply_text(query.process, query.action, outcome) {
            let now = view.moment.now;
            view.toast(text, role, now);
        }
    }
}

/// Shows why a restart is not made.
fn show_refusal(model: &Model, view: &mut ViewState) {
    if view.refused != model.run.refused {
        view.refused.clone_from(&model.run.refused);
        if let Some(why) = model.run.refused.as_ref().filter(|_| view.moment.cursor.is_none()) {
            let (text, now) = (format!("not restarting: {}", words::clean(why)), view.moment.clock);
            view.toast(text, Role::Bad, now);
        }
    }
}

/// Shows that ranks were lost or have joined, and why one has not. Not in playback.
fn show_membership(model: &Model, view: &mut ViewState) {
    let (membership, now) = (&model.membership, view.moment.clock);
    let is_live = view.moment.cursor.is_none();
    if view.changes != membership.news {
        view.changes = membership.news;
        if let Some(latest) = membership.changes.back().filter(|_| is_live) {
            let role = if latest.change.lost.is_empty() { Role::Good } else { Role::Warn };
            view.toast(model.describe_change(&latest.change), role, now);
        }
    }
    if view.not_joined != membership.refused {
        view.not_joined.clone_from(&membership.refused);
        if let Some(why) = membership.refused.as_ref().filter(|_| is_live) {
            view.toast(words::clean(why), Role::Bad, now);
        }
    }
}

/// Opens the next open question of a link. Not in playback.
fn show_prompt(model: &Model, view: &mut ViewState) {
    let next = LinkPrompt::next(model, &mut view.answered);
    let is_open = view.overlays.iter().any(|overlay| matches!(overlay, Overlay::Ask(_)));
    if let Some(prompt) = next.filter(|_| view.moment.cursor.is_none() && !is_open) {
        // Below a confirmation, which the user is answering right now.
        let at = match view.overlay() {
            Some(Overlay::Confirm(_)) => view.overlays.len() - 1,
            _ => view.overlays.len(),
        };
        view.overlays.insert(at, Overlay::Ask(prompt));
    }
}

fn is_overview(view: &ViewState) -> bool {
    view.tab == Tab::Overview && !view.zoom && !view.geometry.connecting && !view.geometry.too_small
}

/// Panes side by side at the bottom.
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
    let below = |pane: Pane| Some(PaneShare::new(at.y.saturating_sub(geo.pane(pane).y), body.height));
    let mut sizes = view.sizes;
    match border {
        Border::Below(Pane::Ranks) => sizes.ranks = below(Pane::Ranks),
        Border::Below(pane) => sizes.charts = below(pane),
        Border::Behind(Pane::Log) => {
            sizes.events = Some(PaneShare::new(bottom.right().saturating_sub(at.x), bottom.width));
        }
        Border::Behind(_) => sizes.evals = Some(PaneShare::new(at.x.saturating_sub(bottom.x), bottom.width)),
    }
    set(model, view, sizes);
}

/// Makes the focused pane higher by rows and wider by cells.
pub fn grow(model: &Model, view: &mut ViewState, rows: i16, cells: i16) {
    let geo = &view.geometry;
    let (focus, body, bottom) = (view.focus, geo.body, bottom(geo));
    let high = |pane: Pane, by: i16| {
        let now = geo.pane(pane).height;
        (now > 0).then(|| PaneShare::new(now.saturating_add_signed(by), body.height))
    };
    let wide = |pane: Pane, by: i16| {
        let now = geo.pane(pane).width;
        (now > 0).then(|| PaneShare::new(now.saturating_add_signed(by), bottom.width))
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
    let geo = geometry(model, view, view.geometry.area);
    let (body, bottom) = (geo.body, bottom(&geo));
    let settled = |given: Option<PaneShare>, was: Option<PaneShare>, cells: u16, all: u16| match given {
        Some(share) if given != was && cells > 0 && share.of(all) != cells => {
            Some(PaneShare::new(cells, all))
        }
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

/// Shares are of this many parts.
const WHOLE: u32 = 1000;
/// Fewest cells of a pane next to another one.
const NARROWEST: u16 = 20;

/// A part of a length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PaneShare(u16);

impl PaneShare {
    /// The share of `cells` in `all`.
    pub fn new(cells: u16, all: u16) -> PaneShare {
        // Rounded up, so that as many cells come out again.
        PaneShare((u32::from(cells) * WHOLE).div_ceil(u32::from(all.max(1))).min(WHOLE) as u16)
    }

    /// The cells of the share in `all`.
    pub fn of(self, all: u16) -> u16 {
        (u32::from(self.0) * u32::from(all) / WHOLE) as u16
    }
}

/// What was given; `None`: as it comes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PaneSizes {
    /// Height of the ranks.
    pub ranks: Option<PaneShare>,
    /// Height of the charts.
    pub charts: Option<PaneShare>,
    /// Width of the evaluations.
    pub evals: Option<PaneShare>,
    /// Width of the events.
    pub events: Option<PaneShare>,
}

const NAMES: [&str; 4] = ["ranks", "charts", "evals", "events"];

impl PaneSizes {
    fn each(&mut self) -> [(&'static str, &mut Option<PaneShare>); 4] {
        let [ranks, charts, evals, events] = NAMES;
        let PaneSizes { ranks: a, charts: b, evals: c, events: d } = self;
        [(ranks, a), (charts, b), (evals, c), (events, d)]
    }

    /// Reads `ranks=40`, percent of the page.
    ///
    /// # Errors
    /// A word is not such a size.
    pub fn read<'a>(words: impl Iterator<Item = &'a str>) -> Result<PaneSizes, String> {
        let mut sizes = PaneSizes::default();
        for word in words {
            let (name, percent) =
                word.split_once('=').ok_or_else(|| format!("expected NAME=PERCENT, found `{word}`"))?;
            let percent = percent.trim_end_matches('%').parse::<u16>().ok();
            let percent = percent.filter(|percent| (5..=95).contains(percent));
            let percent = percent.ok_or_else(|| format!("`{word}` is out of range; use 5 to 95 percent"))?;
            let mut all = sizes.each();
            let place = all.iter_mut().find(|(known, _)| *known == name);
            let (_, size) = place.ok_or_else(|| format!("unknown pane `{name}`; {}", NAMES.join(", ")))?;
            **size = Some(PaneShare(percent * 10));
        }
        Ok(sizes)
    }

    /// As it is read again.
    pub fn words(mut self) -> Vec<String> {
        let word = |(name, size): (&str, &mut Option<PaneShare>)| {
            size.map(|share| format!("{name}={}", (share.0 + 5) / 10))
        };
        self.each().into_iter().filter_map(word).collect()
    }
}

/// A border that can be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Border {
    /// The lower one of a pane.
    Below(Pane),
    /// The right one of a pane.
    Behind(Pane),
}

/// Widths of the panes side by side: evaluations first, then the log, then the events.
pub fn pane_widths(sizes: PaneSizes, row: Rect, usual: &[Rect]) -> Vec<Rect> {
    let least = NARROWEST.min(row.width / usual.len().max(1) as u16);
    let given = |size: Option<PaneShare>, usual: u16, others: u16| match size {
        Some(share) => share.of(row.width).clamp(least, (row.width - others * least).max(least)),
        None => usual,
    };
    let (first, last) = match usual {
        [evals, _, events] => (given(sizes.evals, evals.width, 2), Some((sizes.events, events.width))),
        [evals, _] => (given(sizes.evals, evals.width, 1), None),
        _ => return usual.to_vec(),
    };
    let last = last.map(|(size, usual)| {
        let room = row.width.saturating_sub(first + least);
        size.map_or(usual, |share| share.of(row.width)).clamp(least.min(room), room)
    });
    let middle = row.width.saturating_sub(first + last.unwrap_or(0));
    let mut x = row.x;
    [Some(first), Some(middle), last]
        .into_iter()
        .flatten()
        .map(|width| {
            let part = Rect { x, width, ..row };
            x += width;
            part
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_gives_back_its_cells() {
        for all in 1..=600 {
            for cells in 0..=all {
                assert_eq!(PaneShare::new(cells, all).of(all), cells, "{cells} of {all}");
            }
        }
    }

    #[test]
    fn sizes_are_read_as_typed_and_wrong_ones_are_named() {
        let read = |words: &[&str]| PaneSizes::read(words.iter().copied());
        let words = ["ranks=40", "evals=25"];
        assert_eq!(read(&words).unwrap().words(), words);
        assert_eq!(read(&[]), Ok(PaneSizes::default()));
        for (word, why) in
            [("ranks", "NAME=PERCENT"), ("ranks=3", "5 to 95"), ("log=20", "unknown pane `log`")]
        {
            let error = read(&[word]).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn panes_beside_each_other_keep_their_least_width() {
        let row = Rect::new(0, 0, 150, 10);
        let part = |x, width| Rect { x, width, ..row };
        let usual = [part(0, 35), part(35, 65), part(100, 50)];
        for percent in [5, 50, 95] {
            let sizes = PaneSizes {
                evals: Some(PaneShare(percent * 10)),
                events: Some(PaneShare(percent * 10)),
                ..PaneSizes::default()
            };
            let parts = pane_widths(sizes, row, &usual);
            assert_eq!(parts.iter().map(|part| part.width).sum::<u16>(), row.width);
            assert!(parts.iter().all(|part| part.width >= NARROWEST), "{parts:?}");
        }
    }
}
