//! The run screen, the home screen and the screen of `rankdeck play`; line mode; reports of runs.
//!
//! Each is a pure function of its model and its own state. Nothing here knows a clock, a terminal or a host.

pub mod home;
pub mod linear;
pub mod play;
mod process_list;
pub mod report;
pub mod run;

pub use rankdeck_kit::{Glyphs, Role, Theme, text, theme};
pub use run::action::ScreenAction;
pub use run::input::{on_key, on_paste, run_line};
pub use run::layout::layout;
pub use run::mouse::on_mouse;
pub use run::overlays::images::{
    DecodedPicture, apart as picture_apart, decode as decode_picture, set_decoded as set_picture,
    undecoded as undecoded_picture,
};
pub use run::overlays::restart::{answer as answer_files, question as file_question};
pub use run::staleness::next_change;
pub use run::{ViewState, geometry, layout, ranks, restart_draft, time, view};

/// Keys: the table of the run screen, and the kit's functions.
pub mod keys {
    pub use crate::run::command::ScreenCommand;
    pub use crate::run::keys::*;
    pub use rankdeck_kit::keys::{name, plain};
}

/// The state of the run screen, and what it is made of.
pub mod state {
    pub use crate::run::action::ScreenAction;
    pub use crate::run::geometry::{Pane, Tab};
    pub use crate::run::layout::PaneSizes;
    pub use crate::run::overlays::confirm::ConfirmKind;
    pub use crate::run::overlays::*;
    pub use crate::run::pages::logs::LogScope;
    pub use crate::run::pages::ranks::Sort;
    pub use crate::run::shared::*;
    pub use rankdeck_kit::input::INPUT_LIMIT;
}
