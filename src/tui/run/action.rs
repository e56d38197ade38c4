//! Results of an input: requests for the screen, actions for the app.

use crate::run::command::ScreenCommand;
use crate::run::geometry::Tab;
use crate::run::time::TimeMove;
use rankdeck_charts::export::SavedFile;
use rankdeck_core::event::{Event, StopSource};
use rankdeck_proto::message::StopMode;
use rankdeck_types::ids::{NodeRank, Rank};
use std::fmt;

/// An action for the app.
#[derive(Clone, PartialEq)]
pub enum ScreenAction {
    /// Send this event to the core.
    Send(Event),
    /// Give the terminal back to the shell that started us (`ctrl-z`).
    Suspend,
    /// Clear and draw everything again.
    Redraw,
    /// Put this on the clipboard (OSC 52).
    Copy(String),
    /// Go to another time.
    Time(TimeMove),
    /// Write the screen as text into the console's run directory.
    SaveScreen,
    /// Quit, and prepare the launch of another run of this experiment.
    Again,
    /// Overlay these recorded runs on the charts; none: no overlay.
    Compare(Vec<String>),
    /// Open a shell on this host in the terminal.
    Shell(NodeRank),
    /// Turn mouse capture on or off.
    Mouse(bool),
    /// Write files into the console's run directory, numbered by stem.
    SaveFiles(Vec<SavedFile>),
}

impl fmt::Debug for ScreenAction {
    // By hand, so that a passphrase cannot reach a log through `{:?}`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScreenAction::Send(Event::PromptAnswered { node, answer }) => {
                write!(f, "Send(PromptAnswered {{ node: {node}, given: {} }})", answer.is_some())
            }
            ScreenAction::Send(event) => write!(f, "Send({event:?})"),
            ScreenAction::Suspend => f.write_str("Suspend"),
            ScreenAction::Redraw => f.write_str("Redraw"),
            ScreenAction::Copy(text) => write!(f, "Copy({text:?})"),
            ScreenAction::Time(to) => write!(f, "Time({to:?})"),
            ScreenAction::Again => f.write_str("Again"),
            ScreenAction::Compare(runs) => write!(f, "Compare({runs:?})"),
            ScreenAction::Shell(node) => write!(f, "Shell({node})"),
            ScreenAction::Mouse(on) => write!(f, "Mouse({on})"),
            ScreenAction::SaveScreen => f.write_str("SaveScreen"),
            ScreenAction::SaveFiles(files) => write!(f, "SaveFiles({} files)", files.len()),
        }
    }
}

impl ScreenAction {
    /// Stop the run at the user's key.
    pub fn stop(mode: StopMode) -> ScreenAction {
        ScreenAction::Send(Event::StopRequested { mode, by: StopSource::Key })
    }

    /// End the console; the run keeps running.
    pub fn leave() -> ScreenAction {
        ScreenAction::Send(Event::DetachRequested)
    }
}

/// What pages and overlays ask of the screen.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// An action for the app.
    Do(ScreenAction),
    /// The same; its result shows live, so a frozen view is left.
    Live(ScreenAction),
    /// What the key of this command does.
    Command(ScreenCommand),
    /// The same about a rank, which is selected first.
    CommandAbout(Option<Rank>, ScreenCommand),
    /// A line of the palette.
    Line(String),
    /// Show a page.
    ShowPage(Tab),
    /// Show the details of a rank.
    Inspect(Rank),
    /// Show the details of an event.
    ShowEvent(u64),
    /// List the processes of a host.
    ListProcesses(NodeRank),
    /// Show the ranks of the host of this name.
    ShowRanksOf(String),
    /// Show the log of a rank, or of the selected one.
    ShowRankLog(Option<Rank>),
    /// Close all overlays.
    CloseOverlays,
    /// Close the forms that an order was typed in.
    CloseForms,
}
