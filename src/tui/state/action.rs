//! What an input asks of the shell.

use crate::time::TimeMove;
use rankdeck_core::event::{Event, StopSource};
use rankdeck_proto::message::StopMode;
use rankdeck_types::ids::NodeRank;
use std::fmt;

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
    /// Show another moment.
    Time(TimeMove),
    /// Write the screen as text into the console's run directory.
    SaveScreen,
    /// Leave, and prepare the launch of a run like this one.
    Again,
    /// Draw these recorded runs over the charts; none: only the run itself.
    Compare(Vec<String>),
    /// Give the terminal to a shell on this host.
    Shell(NodeRank),
    /// Take the mouse, or leave it to the terminal.
    Mouse(bool),
    /// Write files into the console's run directory, each under this word and the next free number.
    SaveFiles(Vec<SavedFile>),
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
            Action::Time(to) => write!(f, "Time({to:?})"),
            Action::Again => f.write_str("Again"),
            Action::Compare(runs) => write!(f, "Compare({runs:?})"),
            Action::Shell(node) => write!(f, "Shell({node})"),
            Action::Mouse(on) => write!(f, "Mouse({on})"),
            Action::SaveScreen => f.write_str("SaveScreen"),
            Action::SaveFiles(files) => write!(f, "SaveFiles({} files)", files.len()),
        }
    }
}

impl Action {
    /// Stop the run at the user's key.
    pub fn stop(mode: StopMode) -> Action {
        Action::Tell(Event::StopRequested { mode, by: StopSource::Key })
    }

    /// End the console; a run that is up goes on.
    pub fn leave() -> Action {
        Action::Tell(Event::DetachRequested)
    }
}

/// What becomes a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedFile {
    /// What its name begins with.
    pub stem: &'static str,
    /// What its name ends with.
    pub ending: &'static str,
    /// What is in it.
    pub bytes: Vec<u8>,
}
