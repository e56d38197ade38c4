//! What belongs to the screen and not to the run: focus, selection, scroll, overlays, filters, the frozen
//! view.
//!
//! Owner: the console that shows it; changed by [`crate::on_key`] and friends and clamped by
//! [`crate::layout`]. Invariants:
//! - UI-2: a selection is an id (rank, node, record number), never a row, so that it survives sorting,
//!   filtering and arrivals.
//! - Everything here is bounded: input lines by [`INPUT_LIMIT`], toasts by [`TOASTS`], overlays by
//!   [`OVERLAYS`].

use crate::geometry::Geometry;
pub use crate::pane::Pane;
use crate::theme::Role;
use rankdeck_core::event::Event;
use rankdeck_core::model::Model;
use rankdeck_core::report::VerdictKind;
use rankdeck_proto::message::StopMode;
use rankdeck_types::host::Host;
use rankdeck_types::ids::{NodeRank, Rank, Timestamp};
use rankdeck_types::link_state::Prompt;
use std::collections::BTreeSet;
use std::fmt;

/// Most characters of an input line.
pub const INPUT_LIMIT: usize = 1024;
/// Most toasts at once.
pub const TOASTS: usize = 3;
/// Most overlays on top of each other.
pub const OVERLAYS: usize = 6;
/// How long a toast stays, ms.
pub const TOAST_MS: u64 = 4000;

/// What the shell is to do after an input.
#[derive(Clone, PartialEq)]
pub enum Action {
    /// Tell the core.
    Tell(Event),
    /// Give the terminal back to the shell that started us (`ctrl-z`).
    Suspend,
    /// Clear and draw everything again.
    Redraw,
    /// Put this on the clipboard (OSC 52).
    Copy(String),
    /// Write the screen as text into the console's run directory.
    SaveScreen,
}

impl fmt::Debug for Action {
    // By hand, so that a passphrase cannot reach a log through `{:?}`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Tell(Event::PromptAnswered { node, answer }) => {
                write!(f, "Tell(PromptAnswered {{ node: {node}, given: {} }})", answer.is_some())
            }
            Action::Tell(event) => write!(f, "Tell({event:?})"),
            Action::Suspend => f.write_str("Suspend"),
            Action::Redraw => f.write_str("Redraw"),
            Action::Copy(text) => write!(f, "Copy({text:?})"),
            Action::SaveScreen => f.write_str("SaveScreen"),
        }
    }
}

impl Action {
    /// Stop the run at the user's key.
    pub fn stop(mode: StopMode) -> Action {
        Action::Tell(Event::StopRequested { mode, by: "key".into() })
    }

    /// End the console; a run that is up goes on.
    pub fn leave() -> Action {
        Action::Tell(Event::DetachRequested)
    }
}

/// A page of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tab {
    /// Totals, ranks, charts, log.
    #[default]
    Overview,
    /// Charts, one or many.
    Charts,
    /// Evaluations.
    Evals,
    /// Logs, merged or of one rank.
    Logs,
    /// Links, agents, GPUs.
    Hosts,
    /// What happened.
    Events,
}

impl Tab {
    /// All, in the order of their keys.
    pub const ALL: [Tab; 6] = [Tab::Overview, Tab::Charts, Tab::Evals, Tab::Logs, Tab::Hosts, Tab::Events];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Tab::Overview => "overview",
            Tab::Charts => "charts",
            Tab::Evals => "evals",
            Tab::Logs => "logs",
            Tab::Hosts => "hosts",
            Tab::Events => "events",
        }
    }
}

/// Column that the rank table is sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sort {
    /// Rank.
    #[default]
    Rank,
    /// Host, then rank.
    Host,
    /// GPU or CPU use.
    Use,
    /// Memory.
    Memory,
    /// Own environment steps.
    EnvStep,
    /// Own steps per second.
    Speed,
    /// Number of the latest collective.
    Collective,
    /// Worst first.
    State,
}

impl Sort {
    /// The next column, in the order in which `o` goes through them.
    pub fn next(self) -> Sort {
        match self {
            Sort::Rank => Sort::State,
            Sort::State => Sort::Speed,
            Sort::Speed => Sort::EnvStep,
            Sort::EnvStep => Sort::Use,
            Sort::Use => Sort::Memory,
            Sort::Memory => Sort::Collective,
            Sort::Collective => Sort::Host,
            Sort::Host => Sort::Rank,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Sort::Rank => "rank",
            Sort::Host => "host",
            Sort::Use => "use",
            Sort::Memory => "memory",
            Sort::EnvStep => "env_step",
            Sort::Speed => "steps/s",
            Sort::Collective => "collective",
            Sort::State => "state",
        }
    }
}

/// What lies over the page.
#[derive(Clone, PartialEq)]
pub enum Overlay {
    /// Every key; typing filters, Enter runs.
    Help {
        /// What was typed.
        filter: String,
        /// Index into the entries that match.
        selected: usize,
    },
    /// Asks before something that cannot be taken back.
    Confirm(Confirm),
    /// A link's question.
    Ask(Ask),
    /// Picks the hosts of the next generation.
    Hosts {
        /// Names of hosts whose part is to change.
        changed: BTreeSet<String>,
        /// Marked row.
        selected: usize,
    },
    /// Everything about one rank.
    Inspect {
        /// Which.
        rank: Rank,
        /// First line shown.
        top: usize,
    },
    /// Why the watch says what it says.
    Evidence {
        /// Which verdict.
        about: VerdictId,
        /// First line shown.
        top: usize,
    },
}

/// What a verdict is about; its wording may change while it stands.
pub type VerdictId = (VerdictKind, Option<Rank>, Option<String>);

/// A question of ours.
#[derive(Debug, Clone, PartialEq)]
pub struct Confirm {
    /// What it is about.
    pub kind: ConfirmKind,
    /// The question.
    pub title: String,
    /// Targets and effect, one paragraph each.
    pub text: Vec<String>,
    /// Answers; the first does nothing and is the default.
    pub choices: Vec<Choice>,
    /// Index of the marked answer.
    pub selected: usize,
}

/// What a [`Confirm`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfirmKind {
    /// Leave the console.
    Quit,
    /// Stop the run.
    Stop,
    /// Kill the run.
    Kill,
    /// Begin a new generation.
    Restart,
}

/// One answer of a [`Confirm`].
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// Key that picks it.
    pub key: char,
    /// Its name.
    pub label: String,
    /// What it does; `None`: go back.
    pub action: Option<Action>,
}

/// A link's question being answered.
#[derive(Clone, PartialEq)]
pub struct Ask {
    /// Which host.
    pub node: NodeRank,
    /// Its question.
    pub prompt: Prompt,
    /// What was typed; shown masked.
    pub input: String,
    /// For host keys: `yes` is marked. The default is no.
    pub yes: bool,
}

impl fmt::Debug for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Overlay::Help { filter, selected } => write!(f, "Help({filter:?}, {selected})"),
            Overlay::Confirm(confirm) => write!(f, "Confirm({:?}, {})", confirm.kind, confirm.selected),
            // The input may be a passphrase.
            Overlay::Ask(ask) => write!(f, "Ask({}, {:?})", ask.node, ask.prompt),
            Overlay::Hosts { changed, selected } => write!(f, "Hosts({changed:?}, {selected})"),
            Overlay::Inspect { rank, top } => write!(f, "Inspect({rank}, {top})"),
            Overlay::Evidence { about, top } => write!(f, "Evidence({about:?}, {top})"),
        }
    }
}

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
    /// All ranks (or the marked ones), in the order of arrival.
    #[default]
    Merged,
    /// The selected rank.
    Selected,
}

/// Span and position of the charts' x axis.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ChartWindow {
    /// How often the span was halved.
    pub zoom: u8,
    /// Where the window ends: quarters of its own span before the newest value.
    pub back: u16,
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
    /// Order number of the lowest line shown; `None` follows the newest.
    pub log_at: Option<u64>,
    /// Long lines go on in the next row.
    pub log_wrap: bool,
    /// Selected host.
    pub host: Option<NodeRank>,
    /// First row of the hosts page.
    pub hosts_top: usize,
    /// First row of the evaluations, newest first.
    pub evals_top: usize,
    /// Rows between the newest event and the lowest one shown.
    pub events_up: usize,
    /// Selected series of the charts page.
    pub series: Option<String>,
    /// Series shown besides the selected one; `None`: the usual ones.
    pub shown_series: Option<BTreeSet<String>>,
    /// First row of the list of series.
    pub series_top: usize,
    /// Window on the charts.
    pub window: ChartWindow,
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
            log_wrap: false,
            host: None,
            hosts_top: 0,
            evals_top: 0,
            events_up: 0,
            series: None,
            shown_series: None,
            series_top: 0,
            window: ChartWindow::default(),
            spares: Vec::new(),
            toasts: Vec::new(),
            answered: Vec::new(),
            interrupts: 0,
            geometry: Geometry::default(),
        }
    }

    /// When the screen must be drawn again though nothing happened: a toast expires. Call
    /// [`ViewState::expire`] then.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        self.toasts.iter().map(|toast| toast.until).min()
    }

    /// Forgets what has expired at `now`; true when the screen changed.
    pub fn expire(&mut self, now: Timestamp) -> bool {
        let before = self.toasts.len();
        self.toasts.retain(|toast| toast.until > now);
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
        self.toasts.push(Toast { text, role, until: now.plus(TOAST_MS) });
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
        }
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
