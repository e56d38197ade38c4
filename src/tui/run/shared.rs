//! State that pages and overlays share: the selected rank, the time that is shown, the style, and what this console
//! can do.

use crate::run::restart_draft::Changer;
use crate::run::time::TimeCursor;
use rankdeck_core::model::Model;
use rankdeck_core::report::VerdictKind;
use rankdeck_kit::keys::Keymap;
use rankdeck_kit::toast::Toasts;
use rankdeck_kit::{ColorDepth, Glyphs, Role};
use rankdeck_types::host::Host;
use rankdeck_types::ids::{NodeRank, Rank, Timestamp};
use rankdeck_types::link_state::Prompt;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a verdict is about; its wording may change while it stands.
pub type VerdictId = (VerdictKind, Option<Rank>, Option<String>);

/// What pages and overlays share.
#[derive(Debug, Clone, Default)]
pub struct Shared {
    /// The rank that is selected on all pages.
    pub selected: Option<Rank>,
    /// Ranks marked with the space bar: for the merged log, and to copy.
    pub marked: BTreeSet<Rank>,
    /// Which moment of the run is shown.
    pub moment: Playback,
    /// How the screen is drawn.
    pub style: ScreenStyle,
    /// What this console can do.
    pub steering: ConsoleCapabilities,
    /// Messages at the bottom.
    pub toasts: Toasts,
    /// Prompts of links that were answered and not yet withdrawn by the link.
    pub answered: Vec<(NodeRank, Prompt)>,
}

impl Shared {
    /// When the screen must be drawn again though nothing happened: a toast expires. Call
    /// [`Shared::expire`] then.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        self.toasts.next_expiry()
    }

    /// Drops what has expired at `now`; true when the screen changed.
    pub fn expire(&mut self, now: Timestamp) -> bool {
        self.moment.advance(now);
        // In playback the clock stands still; see `expire_toasts`.
        self.moment.cursor.is_none() && self.expire_toasts(now)
    }

    /// Drops toasts that have expired at `clock`, which keeps running in playback.
    pub fn expire_toasts(&mut self, clock: Timestamp) -> bool {
        self.toasts.expire(clock)
    }

    /// Shows a short message, for the app too (`copied`, `screen saved to ...`).
    pub fn toast(&mut self, text: impl Into<String>, role: Role, now: Timestamp) {
        self.expire(now);
        self.toasts.push(text, role, self.moment.cursor.is_none().then_some(now));
    }

    /// The model that the pages show: the frozen one, or the live one.
    pub fn shown<'a>(&'a self, model: &'a Model) -> &'a Model {
        self.moment.frozen.as_ref().map_or(model, |frozen| &frozen.model)
    }
}

/// A moment that was frozen.
#[derive(Debug, Clone)]
pub struct FrozenMoment {
    /// The run as it was.
    pub model: Arc<Model>,
    /// When it was frozen.
    pub at: Timestamp,
}

/// Which moment of the run the pages show: live, frozen, or a played back one.
#[derive(Debug, Clone, Default)]
pub struct Playback {
    /// The frozen view.
    pub frozen: Option<FrozenMoment>,
    /// The position in the recording. The model and the time that are drawn belong to it.
    pub cursor: Option<TimeCursor>,
    /// The run had not ended at the last live frame.
    pub seen_alive: bool,
    /// The time that the pages show: that of the latest input or frame, or the frozen one.
    pub now: Timestamp,
    /// The time of the latest input or frame.
    pub clock: Timestamp,
}

impl Playback {
    /// The frozen model, to be held while the state changes.
    pub fn frozen_model(&self) -> Option<Arc<Model>> {
        self.frozen.as_ref().map(|frozen| frozen.model.clone())
    }

    /// A played back moment is shown while the run is live behind it.
    pub fn is_behind_live(&self) -> bool {
        self.cursor.as_ref().is_some_and(|cursor| cursor.live)
    }

    /// Advances to `now`; a frozen view stays.
    fn advance(&mut self, now: Timestamp) {
        self.clock = now;
        self.now = self.frozen.as_ref().map_or(now, |frozen| frozen.at);
    }
}

/// What this console can do, as it was started.
#[derive(Debug, Clone, Default)]
pub struct ConsoleCapabilities {
    /// Hosts of the hosts file that have no part in the run and could join it.
    pub spares: Vec<Host>,
    /// Applies changed keys to an experiment.
    pub changer: Option<Changer>,
    /// The run was launched elsewhere: it may run though no host has reported it yet, and it outlives this
    /// console.
    pub attached: bool,
    /// No key may change the run.
    pub read_only: bool,
    /// Leaving this screen returns to home: without a question, and runs keep running.
    pub at_home: bool,
    /// The run's experiment file is known, so that it can be launched again.
    pub again: bool,
    /// A recorded run is shown: nothing can be changed.
    pub replay: bool,
    /// The command that writes a report of this run, as it is typed; `None` without a recording.
    pub report: Option<String>,
    /// There is no recording: playback is not available.
    pub unrecorded: bool,
    /// The hosts are simulated and end with this console.
    pub passing: bool,
    /// Recorded runs on this machine, the latest first.
    pub recorded: Vec<String>,
    /// The terminal has the mouse.
    pub mouse_off: bool,
    /// The user's own keys.
    pub keymap: Keymap,
}

/// How the screen is drawn.
#[derive(Debug, Clone, Default)]
pub struct ScreenStyle {
    /// The theme, by name; `None`: the one that suits the terminal.
    pub theme: Option<&'static str>,
    /// The glyphs; `None`: those that the terminal has.
    pub glyphs: Option<Glyphs>,
    /// The colors that the terminal has, for images.
    pub colours: ColorDepth,
    /// The terminal draws logged images itself, into [`crate::picture_apart`].
    pub drawn_apart: bool,
    /// Offset of the user's time zone from UTC, in seconds.
    pub utc_offset_s: i64,
}
