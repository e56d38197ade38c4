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
mod lists;
mod moment;
mod overlay;
mod sort;
mod steering;
mod tab;

pub use crate::log_view::{LogScope, LogView};
pub use crate::pane::Pane;
pub use crate::pane_sizes::{Border, PaneSizes};
pub use action::{Action, SavedFile};
pub use lists::{EventList, HostList, RankTable, SeriesList};
pub use moment::{FrozenMoment, Moment};
pub use overlay::{Ask, Choice, Confirm, ConfirmKind, Overlay, PictureChoice, TypedLine, VerdictId};
pub use sort::Sort;
pub use steering::{Steering, Style};
pub use tab::Tab;

use crate::chart_view::ChartView;
use crate::geometry::Geometry;
use crate::picture_file::DecodedPicture;
use crate::theme::Role;
use rankdeck_core::model::Model;
use rankdeck_types::ids::{NodeRank, Timestamp};
use rankdeck_types::link_state::Prompt;

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
    pub text: String,
    /// How grave.
    pub role: Role,
    /// Until when it is shown.
    pub until: Timestamp,
}

/// Everything that belongs to the screen.
#[derive(Debug, Clone, Default)]
pub struct ViewState {
    /// The page.
    pub tab: Tab,
    /// The pane of the overview that has the focus.
    pub focus: Pane,
    /// The focused pane takes the whole page.
    pub zoom: bool,
    /// The pane whose filter is being typed.
    pub editing: Option<Pane>,
    /// Overlays, the top one last.
    pub overlays: Vec<Overlay>,
    /// The rank table, and the rank that all pages mean.
    pub ranks: RankTable,
    /// Which lines of the log are shown, and how.
    pub log: LogView,
    /// The list of hosts.
    pub hosts: HostList,
    /// First row of the evaluations, newest first.
    pub evals_top: usize,
    /// How far the page of the end is scrolled; `None`: as it comes.
    pub end_top: Option<usize>,
    /// The list of events.
    pub events: EventList,
    /// The list of series beside the charts.
    pub series: SeriesList,
    /// How the charts are looked at.
    pub chart: ChartView,
    /// Messages at the bottom.
    pub toasts: Vec<Toast>,
    /// Questions of links that were answered and not yet taken back by the link.
    pub answered: Vec<(NodeRank, Prompt)>,
    /// Answers about processes that were told.
    pub answers: u64,
    /// How often ctrl-c was pressed without another key between.
    pub interrupts: u8,
    /// Sizes that the user has given to panes.
    pub sizes: PaneSizes,
    /// The border that the mouse has taken, and whether it has moved since.
    pub dragged: Option<(Border, bool)>,
    /// Where everything was at the last layout.
    pub geometry: Geometry,
    /// Lines typed into the palette, newest last, bounded.
    pub typed: Vec<String>,
    /// The look that was asked for.
    pub style: Style,
    /// What this console can do to the run.
    pub steering: Steering,
    /// Which moment of the run is shown.
    pub moment: Moment,
    /// The picture that is looked at, read by the layout.
    pub decoded: Option<DecodedPicture>,
}

impl ViewState {
    /// The overview, following everything.
    pub fn new() -> ViewState {
        ViewState::default()
    }

    /// When the screen must be drawn again though nothing happened: a toast expires. Call
    /// [`ViewState::expire`] then.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        self.toasts.iter().map(|toast| toast.until).filter(|until| *until != UNDATED).min()
    }

    /// Forgets what has expired at `now`; true when the screen changed.
    pub fn expire(&mut self, now: Timestamp) -> bool {
        self.moment.advance(now);
        // In the past the clock stands; see `expire_toasts`.
        self.moment.cursor.is_none() && self.expire_toasts(now)
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
        let until = if self.moment.cursor.is_some() { UNDATED } else { now.plus(TOAST_MS) };
        self.toasts.push(Toast { text, role, until });
    }

    /// The model that the panes show: the frozen moment, or the present one.
    pub fn shown<'a>(&'a self, model: &'a Model) -> &'a Model {
        self.moment.shown(model)
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
