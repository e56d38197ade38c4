//! How this console was started: what it can do to the run, and how it looks.

use crate::keys::Keymap;
use crate::play::Colours;
use crate::restart_draft::{Changer, EditedFile};
use crate::theme::Glyphs;
use rankdeck_types::host::Host;

/// What this console can do to the run.
#[derive(Debug, Clone, Default)]
pub struct Steering {
    /// Hosts of the hosts file that have no part in the run and could join it.
    pub spares: Vec<Host>,
    /// Reads changed keys of an experiment.
    pub changer: Option<Changer>,
    /// Looks whether the experiment's file is as it was at the launch.
    pub edited: Option<fn() -> Option<EditedFile>>,
    /// No key may change the run.
    pub read_only: bool,
    /// Home comes back when this screen is left: nothing is asked then, and runs go on.
    pub at_home: bool,
    /// What the run was launched from is known, so that it can be launched again.
    pub again: bool,
    /// A recorded run is shown: nothing can be ordered.
    pub replay: bool,
    /// The command that writes a report of this run, as it is typed here; `None` where no record stays.
    pub report: Option<String>,
    /// No record is kept: there is no past to go to.
    pub unrecorded: bool,
    /// The hosts are simulated: nothing goes on without this console.
    pub passing: bool,
    /// Runs of which a record lies here, the latest first.
    pub recorded: Vec<String>,
    /// The mouse is left to the terminal.
    pub mouse_off: bool,
    /// The user's own keys.
    pub keymap: Keymap,
}

/// The look that was asked for.
#[derive(Debug, Clone, Default)]
pub struct Style {
    /// The theme, by name; `None`: the one that suits the terminal.
    pub theme: Option<&'static str>,
    /// The glyphs; `None`: those that the terminal has.
    pub glyphs: Option<Glyphs>,
    /// The colours that the terminal has, for pictures.
    pub colours: Colours,
    /// Logged pictures are drawn by somebody else, into [`crate::picture_apart`].
    pub drawn_apart: bool,
}
