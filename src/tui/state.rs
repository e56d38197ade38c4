//! What belongs to the screen and not to the run: focus, selection, scroll, overlays, filters, the frozen
//! view.
//!
//! Owner: the console that shows it; changed by [`crate::on_key`] and friends and clamped by
//! [`crate::layout`]. Invariants:
//! - UI-2: a selection is an id (rank, node, record number), never a row, so that it survives sorting,
//!   filtering and arrivals.
//! - Everything here is bounded: input lines by [`INPUT_LIMIT`], toasts by [`TOASTS`], overlays by
//!   [`OVERLAYS`].

mod action;
mod overlay;
mod sort;
mod tab;

pub use crate::pane::Pane;
pub use action::{Action, SavedFile};
pub use overlay::{Ask, Choice, Confirm, ConfirmKind, Overlay, Typing, VerdictId};
pub use sort::Sort;
pub use tab::Tab;

use crate::chart_view::ChartView;
use crate::column::Column;
use crate::geometry::Geometry;
use crate::log_view::LogView;
use crate::restart_draft::Changer;
use crate::theme::{Glyphs, Role};
use crate::time::TimeCursor;
use rankdeck_core::model::{LogPlace, Model};
use rankdeck_types::host::Host;
use rankdeck_types::ids::{NodeRank, Rank, Timestamp};
use rankdeck_types::link_state::Prompt;
use std::collections::{BTreeMap, BTreeSet};

/// Most characters of an input line.
pub const INPUT_LIMIT: usize = 1024;
/// Most toasts at once.
pub const TOASTS: usize = 3;
/// Most overlays on top of each other.
pub const OVERLAYS: usize = 6;
/// How long a toast stays, ms.
pub const TOAST_MS: u64 = 4000;
/// Of a toast that was made in the past: it is dated when it is drawn.
const UNDATED: Timestamp = Timestamp(u64::MAX);

/// A short message at the bottom.
#[derive(Debug, Clone, PartialEq)]
pub struct Toast {
    /// The text.
    pub text: String,
    /// How grave.
    pub role: Role,
    /// Until when it is shown.
    pub until: Timestamp,
}

/// A moment that was held.
#[derive(Debug, Clone)]
pub struct Frozen {
    /// The run as it was.
    pub model: Box<Model>,
    /// When.
    pub at: Timestamp,
}

/// Whose lines the log shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogScope {
    /// All ranks (or the marked ones), in the order of their times.
    #[default]
    Merged,
    /// The selected rank.
    Selected,
}

/// Everything that belongs to the screen.
#[derive(Debug, Clone)]
pub struct ViewState {
    /// The page.
    pub tab: Tab,
    /// The pane of the overview that has the focus.
    pub focus: Pane,
    /// The focused pane takes the whole page.
    pub zoom: bool,
    /// Overlays, the top one last.
    pub overlays: Vec<Overlay>,
    /// The moment that is shown instead of the present.
    pub frozen: Option<Frozen>,
    /// Selected rank.
    pub rank: Option<Rank>,
    /// Ranks marked with the space bar.
    pub marked: BTreeSet<Rank>,
    /// First row of the rank table.
    pub ranks_top: usize,
    /// How the rank table is sorted.
    pub sort: Sort,
    /// The other way round.
    pub reverse: bool,
    /// Filter of the rank table.
    pub rank_filter: String,
    /// Filter of the log.
    pub log_filter: String,
    /// The filter that is being typed.
    pub editing: Option<Pane>,
    /// Whose lines the log shows.
    pub log_scope: LogScope,
    /// The lowest line shown; `None` follows the newest.
    pub log_at: Option<LogPlace>,
    /// How the log is looked at.
    pub log: LogView,
    /// Long lines go on in the next row.
    pub log_wrap: bool,
    /// Selected host.
    pub host: Option<NodeRank>,
    /// First row of the hosts page.
    pub hosts_top: usize,
    /// First row of the evaluations, newest first.
    pub evals_top: usize,
    /// Number of the selected event; `None` follows the newest.
    pub event: Option<u64>,
    /// Events between the newest and the lowest one shown.
    pub events_up: usize,
    /// Filter of the events.
    pub event_filter: String,
    /// Selected series of the charts page.
    pub series: Option<String>,
    /// Series shown besides the selected one; `None`: the usual ones.
    pub shown_series: Option<BTreeSet<String>>,
    /// First row of the list of series.
    pub series_top: usize,
    /// How the charts are looked at.
    pub chart: ChartView,
    /// Hosts of the hosts file that have no part in the run and could join it.
    pub spares: Vec<Host>,
    /// Messages at the bottom.
    pub toasts: Vec<Toast>,
    /// Questions of links that were answered and not yet taken back by the link.
    pub answered: Vec<(NodeRank, Prompt)>,
    /// How often ctrl-c was pressed without another key between.
    pub interrupts: u8,
    /// Where everything was at the last layout.
    pub geometry: Geometry,
    /// Lines typed into the palette, newest last, bounded.
    pub typed: Vec<String>,
    /// The theme that was asked for, by name; `None`: the one that suits the terminal.
    pub theme: Option<&'static str>,
    /// The glyphs that were asked for; `None`: those that the terminal has.
    pub glyphs: Option<Glyphs>,
    /// Columns of the rank table to show before others (true) or never (false).
    pub columns: BTreeMap<Column, bool>,
    /// Reads changed keys of an experiment.
    pub changer: Option<Changer>,
    /// No key may change the run.
    pub read_only: bool,
    /// Home comes back when this screen is left: nothing is asked then, and runs go on.
    pub at_home: bool,
    /// A recorded run is shown: nothing can be ordered.
    pub replay: bool,
    /// The moment of the past that is shown. The model and the time that are drawn belong to it.
    pub time: Option<TimeCursor>,
    /// The run was not over at the last frame of the present.
    pub seen_alive: bool,
    /// The moment that the panes show: that of the latest input or frame, or the frozen one.
    pub now: Timestamp,
}

impl Default for ViewState {
    fn default() -> ViewState {
        ViewState::new()
    }
}

impl ViewState {
    /// The overview, following everything.
    pub fn new() -> ViewState {
        ViewState {
            tab: Tab::Overview,
            focus: Pane::Ranks,
            zoom: false,
            overlays: Vec::new(),
            frozen: None,
            rank: None,
            marked: BTreeSet::new(),
            ranks_top: 0,
            sort: Sort::Rank,
            reverse: false,
            rank_filter: String::new(),
            log_filter: String::new(),
            editing: None,
            log_scope: LogScope::Merged,
            log_at: None,
            log: LogView::default(),
            log_wrap: false,
            host: None,
            hosts_top: 0,
            evals_top: 0,
            event: None,
            events_up: 0,
            event_filter: String::new(),
            series: None,
            shown_series: None,
            series_top: 0,
            chart: ChartView::default(),
            spares: Vec::new(),
            toasts: Vec::new(),
            answered: Vec::new(),
            interrupts: 0,
            geometry: Geometry::default(),
            typed: Vec::new(),
            theme: None,
            glyphs: None,
            columns: BTreeMap::new(),
            changer: None,
            read_only: false,
            at_home: false,
            replay: false,
            time: None,
            seen_alive: false,
            now: Timestamp::default(),
        }
    }

    /// When the screen must be drawn again though nothing happened: a toast expires. Call
    /// [`ViewState::expire`] then.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        self.toasts.iter().map(|toast| toast.until).filter(|until| *until != UNDATED).min()
    }

    /// Forgets what has expired at `now`; true when the screen changed.
    pub fn expire(&mut self, now: Timestamp) -> bool {
        self.now = self.frozen.as_ref().map_or(now, |frozen| frozen.at);
        // In the past the clock stands; see `expire_toasts`.
        self.time.is_none() && self.expire_toasts(now)
    }

    /// Forgets toasts that have expired at `clock`, which goes on while the past is shown.
    pub fn expire_toasts(&mut self, clock: Timestamp) -> bool {
        let before = self.toasts.len();
        for toast in self.toasts.iter_mut().filter(|toast| toast.until == UNDATED) {
            toast.until = clock.plus(TOAST_MS);
        }
        self.toasts.retain(|toast| toast.until > clock);
        self.toasts.len() != before
    }

    /// Shows a short message, for the shell too (`copied`, `screen saved to ...`).
    pub fn toast(&mut self, text: impl Into<String>, role: Role, now: Timestamp) {
        let text = text.into();
        self.expire(now);
        self.toasts.retain(|toast| toast.text != text);
        if self.toasts.len() == TOASTS {
            self.toasts.remove(0);
        }
        let until = if self.time.is_some() { UNDATED } else { now.plus(TOAST_MS) };
        self.toasts.push(Toast { text, role, until });
    }

    /// The model that the panes show: the frozen moment, or the present one.
    pub fn shown<'a>(&'a self, model: &'a Model) -> &'a Model {
        self.frozen.as_ref().map_or(model, |frozen| &frozen.model)
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
            Tab::End => Pane::End,
        }
    }

    /// Keys go to a line that is being typed, or to a question or list.
    pub fn is_typing(&self) -> bool {
        self.editing.is_some() || !self.overlays.is_empty()
    }

    /// The top overlay.
    pub fn overlay(&self) -> Option<&Overlay> {
        self.overlays.last()
    }

    /// Puts an overlay on top, in place of another of its kind.
    pub fn open(&mut self, overlay: Overlay) {
        let kind = std::mem::discriminant(&overlay);
        self.overlays.retain(|other| std::mem::discriminant(other) != kind);
        self.overlays.truncate(OVERLAYS - 1);
        self.overlays.push(overlay);
    }
}
