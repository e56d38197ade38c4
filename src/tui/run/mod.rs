//! The screen of one run: pages, overlays, and what surrounds them.
//!
//! The app calls [`layout::layout`], then [`view`], for each frame, and [`input::on_key`],
//! [`mouse::on_mouse`], [`input::on_paste`] for each input; it executes the [`action::Action`]s.
//!
//! This module knows all pages. A page knows neither the others nor the overlays: it has its own state and
//! [`Shared`], and returns [`action::Request`]s.
//!
//! Invariants:
//! - [`view`] is a pure function of its arguments.
//! - UI-2: a selection is an id (rank, node, record number), never a row, so that it survives sorting,
//!   filtering and arrivals.
//! - UI-3: failed and stuck ranks ignore filters ([`pages::ranks`]).
//! - UI-4: every command has a key, and a reason when it is disabled ([`keys`]).
//! - Nothing animates: without an event, a toast's end or a tick there is nothing to draw.
//! - UI-6: stop and quit work on the "too small" screen and while the view is frozen.
//! - UI-11: neither [`layout::layout`] nor [`view`] panics, whatever the size of the screen and whatever the
//!   model holds.
//! - State is bounded: input lines by [`rankdeck_kit::input::INPUT_LIMIT`], toasts by
//!   [`rankdeck_kit::toast::TOASTS`], overlays by [`rankdeck_kit::overlay::OVERLAYS`].

pub mod action;
pub(crate) mod advice;
pub(crate) mod card;
pub mod chrome;
pub mod command;
pub mod geometry;
pub(crate) mod history;
pub mod input;
pub mod keys;
pub mod layout;
pub mod mouse;
pub(crate) mod outcome;
pub mod overlays;
pub mod pages;
pub mod palette;
pub(crate) mod processes;
pub(crate) mod rank_details;
pub mod ranks;
pub(crate) mod reasons;
pub mod restart_draft;
pub mod shared;
pub mod staleness;
pub(crate) mod text_filter;
pub mod time;
pub mod words;

use crate::run::action::Request;
use crate::run::chrome::Ctx;
use crate::run::command::ScreenCommand;
use crate::run::geometry::{Geometry, Pane, Tab};
use crate::run::layout::{Border, PaneSizes};
use crate::run::overlays::Overlay;
use crate::run::pages::charts::ChartsPage;
use crate::run::pages::evals::EvalsPage;
use crate::run::pages::events::EventsPage;
use crate::run::pages::hosts::HostsPage;
use crate::run::pages::logs::LogsPage;
use crate::run::pages::outcome::OutcomePage;
use crate::run::pages::ranks::RanksPage;
use crate::run::pages::{Page, PageCx, PageDrawCtx, PagePlacement};
use crate::run::shared::Shared;
use rankdeck_core::model::{HistoryLine, Model};
use rankdeck_kit::{Screen, Stack, Theme, overlay};
use rankdeck_types::ids::{NodeRank, Rank, Timestamp};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use std::ops::{Deref, DerefMut};

/// The run screen, as the kit sees it.
#[derive(Debug)]
pub struct RunScreen;

impl Screen for RunScreen {
    type Model = Model;
    type State = ViewState;
    type Action = Request;
    type Command = ScreenCommand;
    type Pane = Pane;
    type Target = RunTarget;
    type Overlay = Overlay;

    fn pane_name(pane: Pane) -> &'static str {
        pane.name()
    }

    fn overlays(state: &mut ViewState) -> &mut Stack<Overlay> {
        &mut state.overlays
    }
}

/// The drawing context of overlays.
pub type DrawCtx<'a> = rankdeck_kit::DrawCtx<'a, RunTarget>;
/// What overlays handle inputs with.
pub type Cx<'a> = rankdeck_kit::Cx<'a, RunScreen>;
/// What became of an input.
pub type Handled = rankdeck_kit::Handled<Request>;
/// What a click means.
pub type Target = rankdeck_kit::Target<RunTarget>;

/// What a click on the run screen can mean, besides keys and rows.
#[derive(Debug, Clone, PartialEq)]
pub enum RunTarget {
    /// The key of this command.
    Command(ScreenCommand),
    /// An event.
    Event(u64),
    /// A series.
    Series(String),
    /// A chart, from the first position of its x axis to the last one.
    Plot(f64, f64),
    /// The recording, from its start to its end.
    Recording(Timestamp, Timestamp),
}

/// State of the screen, not of the run: that of each page, what they share, overlays, focus and geometry.
///
/// Changed by [`input::on_key`] and friends, and clamped by [`layout::layout`]. Overlays use only what it
/// shares with them: they get [`Shared`] through it.
#[derive(Debug, Clone, Default)]
pub struct ViewState {
    /// What pages and overlays share.
    pub shared: Shared,
    /// Overlays, the top one last.
    pub overlays: Stack<Overlay>,
    /// The table of ranks.
    pub ranks: RanksPage,
    /// The charts.
    pub charts: ChartsPage,
    /// The evaluations.
    pub evals: EvalsPage,
    /// The log.
    pub log: LogsPage,
    /// The hosts.
    pub hosts: HostsPage,
    /// The events.
    pub events: EventsPage,
    /// The outcome.
    pub outcome: OutcomePage,
    /// The page.
    pub tab: Tab,
    /// The pane of the overview that has the focus.
    pub focus: Pane,
    /// The focused pane takes the whole page.
    pub zoom: bool,
    /// The pane whose filter is being typed.
    pub editing: Option<Pane>,
    /// Sizes that the user has given to panes.
    pub sizes: PaneSizes,
    /// The border that the mouse has taken, and whether it has moved since.
    pub dragged: Option<(Border, bool)>,
    /// Where everything was at the last layout.
    pub geometry: Geometry,
    /// Lines typed into the palette, newest last, bounded.
    pub typed: Vec<String>,
    /// Replies about processes that were shown.
    pub answers: u64,
    /// How often ctrl-c was pressed without another key between.
    pub interrupts: u8,
    /// The refusal of a restart that was shown last.
    pub refused: Option<String>,
    /// Changes of the members that were shown.
    pub changes: u32,
    /// The reason that was shown last why a rank has not joined.
    pub not_joined: Option<String>,
    /// When an overlay closed by itself, or the latest key that was meant for it.
    pub closed: Option<Timestamp>,
}

impl Deref for ViewState {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl DerefMut for ViewState {
    fn deref_mut(&mut self) -> &mut Shared {
        &mut self.shared
    }
}

/// The state of a pane's page.
macro_rules! page_of {
    (& $($access:ident)+, $pane:expr) => {
        match $pane {
            Pane::Ranks => &$($access)+.ranks,
            Pane::Charts => &$($access)+.charts,
            Pane::Evals => &$($access)+.evals,
            Pane::Log => &$($access)+.log,
            Pane::Hosts => &$($access)+.hosts,
            Pane::Events => &$($access)+.events,
            Pane::Outcome => &$($access)+.outcome,
        }
    };
}

impl ViewState {
    /// The overview, following everything.
    pub fn new() -> ViewState {
        ViewState::default()
    }

    /// The pane that takes movement keys.
    pub fn pane(&self) -> Pane {
        match self.tab {
            Tab::Overview => self.focus,
            Tab::Charts => Pane::Charts,
            Tab::Evals => Pane::Evals,
            Tab::Logs => Pane::Log,
            Tab::Hosts => Pane::Hosts,
            Tab::Events => Pane::Events,
            Tab::Outcome => Pane::Outcome,
        }
    }

    /// The top overlay.
    pub fn overlay(&self) -> Option<&Overlay> {
        self.overlays.top()
    }

    /// Puts an overlay on top, in place of another of its kind.
    pub fn open(&mut self, overlay: impl Into<Overlay>) {
        self.overlays.open(overlay);
    }

    /// The page of a pane.
    pub fn page(&self, pane: Pane) -> &dyn Page {
        page_of!(&self, pane)
    }

    /// The page of a pane.
    pub fn page_mut(&mut self, pane: Pane) -> &mut dyn Page {
        page_of!(&mut self, pane)
    }

    /// Lets a page handle something, with what it shares and with the model that it shows.
    pub fn with_page<T>(
        &mut self,
        pane: Pane,
        live: &Model,
        now: Timestamp,
        handle: impl FnOnce(&mut dyn Page, &mut PageCx<'_>) -> T,
    ) -> T {
        let frozen = self.moment.frozen_model();
        let model = frozen.as_deref().unwrap_or(live);
        let rank = self.selected_rank(live);
        let geo = self.geometry.clone();
        let place = self.place(pane, &geo);
        let page: &mut dyn Page = page_of!(&mut self, pane);
        handle(page, &mut PageCx { model, live, shared: &mut self.shared, rank, place, now })
    }

    /// Asks the current page, then the others, until one has an answer.
    pub fn ask_pages<T>(
        &mut self,
        live: &Model,
        now: Timestamp,
        mut ask: impl FnMut(&mut dyn Page, &mut PageCx<'_>) -> Option<T>,
    ) -> Option<T> {
        let panes = std::iter::once(self.pane()).chain(Pane::ALL);
        panes.into_iter().find_map(|pane| self.with_page(pane, live, now, &mut ask))
    }

    fn place<'a>(&self, pane: Pane, geo: &'a Geometry) -> PagePlacement<'a> {
        PagePlacement {
            pane,
            geo,
            own_page: self.tab != Tab::Overview,
            zoomed: self.zoom,
            focused: self.pane() == pane,
            typing: self.editing == Some(pane),
            covered: !self.overlays.is_empty(),
            keys: &keys::TABLE,
        }
    }

    /// The rank that keys act on (UI-13).
    pub fn selected_rank(&self, live: &Model) -> Option<Rank> {
        self.ranks.selected(self.shown(live), &self.shared, self.tab == Tab::Overview)
    }

    /// Selects a rank on all pages; the log shows its newest lines.
    pub fn select_rank(&mut self, rank: Rank) {
        self.selected = Some(rank);
        self.log.show_newest();
    }

    /// Selects a rank and a host, as far as they are given.
    pub fn select_place(&mut self, rank: Option<Rank>, node: Option<NodeRank>) {
        self.selected = rank.or(self.selected);
        self.hosts.selected = node.or(self.hosts.selected);
    }

    /// Shows the log of a rank, or of the selected one, on its page.
    pub fn show_rank_log(&mut self, rank: Option<Rank>) {
        self.selected = rank.or(self.selected);
        self.log.show_selected();
        (self.tab, self.zoom) = (Tab::Logs, false);
    }

    /// Shows the log at the time of an event.
    pub fn show_event_log(&mut self, live: &Model, line: &HistoryLine, now: Timestamp) -> Vec<Request> {
        (self.tab, self.zoom) = (Tab::Logs, false);
        let mut log = std::mem::take(&mut self.log);
        let requests = self.with_page(Pane::Log, live, now, |_, cx| log.show_event(line, cx));
        self.log = log;
        requests
    }

    /// Shows the ranks that a filter keeps.
    pub fn filter_ranks(&mut self, filter: String) {
        self.ranks.filter = filter;
        (self.tab, self.focus) = (Tab::Overview, Pane::Ranks);
    }
}

/// Draws one frame: the run as `model` holds it, at `now` on the console's monotonic clock. Pure.
pub fn view(model: &Model, view: &ViewState, theme: &Theme, now: Timestamp, frame: &mut Frame<'_>) {
    // Computed again rather than taken from the last layout: the model may have changed since.
    let geo = layout::geometry(model, view, frame.area());
    let shown_at = view.moment.frozen.as_ref().map_or(now, |frozen| frozen.at);
    let ctx = Ctx {
        live: model,
        model: view.shown(model),
        view,
        live_now: now,
        draw: DrawCtx::new(theme, shown_at, geo.area),
        geo,
    };
    let buf = frame.buffer_mut();
    if ctx.geo.too_small {
        chrome::too_small::draw(&ctx, buf);
        return;
    }
    chrome::draw_above(&ctx, buf);
    draw_pages(&ctx, buf);
    chrome::draw_below(&ctx, buf);
    overlay::draw::<RunScreen>(&view.overlays, model, view, &ctx, buf);
    view.toasts.draw(&DrawCtx::new(theme, now, ctx.geo.area), buf);
}

/// Draws the panes of the current page.
fn draw_pages(ctx: &Ctx<'_>, buf: &mut Buffer) {
    let rank = ctx.view.selected_rank(ctx.live);
    for pane in ctx.geo.panes() {
        let place = ctx.view.place(pane, &ctx.geo);
        let page = PageDrawCtx { model: ctx.model, shared: &ctx.view.shared, rank, place, draw: &ctx.draw };
        ctx.view.page(pane).draw(&page, buf);
    }
}
