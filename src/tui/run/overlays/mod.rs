//! Overlays of the run screen, and the common parts of those that are cards. A new overlay is a file here and a
//! line in [`Overlay`].

pub mod ask;
pub mod confirm;
pub mod environment;
pub mod event;
pub mod evidence;
pub mod help;
pub mod hosts;
pub mod images;
pub mod inspect;
pub mod palette;
pub mod policy;
pub mod processes;
pub mod restart;
pub mod time;

use crate::run::action::Request;
use crate::run::card;
use crate::run::command::ScreenCommand;
use crate::run::geometry::Pane;
use crate::run::keys::{TABLE, names};
use crate::run::{Cx, DrawCtx, Handled, RunScreen, Target, ViewState, history};
use crossterm::event::KeyEvent;
use rankdeck_core::model::{EventSubject, HistoryLine, Model};
use rankdeck_core::report::VerdictReport;
use rankdeck_kit::overlays;
use rankdeck_types::ids::Rank;
use ratatui::layout::Rect;

pub use ask::LinkPrompt;
pub use confirm::Confirm;
pub use environment::EnvironmentCard;
pub use event::EventCard;
pub use evidence::EvidenceCard;
pub use help::RunHelp;
pub use hosts::HostPicker;
pub use images::Images;
pub use inspect::Inspector;
pub use palette::Palette;
pub use policy::LivePolicy;
pub use processes::ProcessList;
pub use restart::RestartForm;
pub use time::TimeInput;

overlays! { RunScreen;
    /// What lies over the page.
    pub enum Overlay {
        /// Key bindings and terms; typing filters, Enter runs.
        Help(RunHelp),
        /// A typed command.
        Palette(Palette),
        /// A question before something that cannot be undone.
        Confirm(Confirm),
        /// A question of a link.
        Ask(LinkPrompt),
        /// The hosts of the next generation.
        Hosts(HostPicker),
        /// A restart with changed keys.
        Restart(RestartForm),
        /// Details of a rank.
        Inspect(Inspector),
        /// The evidence for a verdict.
        Evidence(EvidenceCard),
        /// Details of an event.
        Event(EventCard),
        /// The processes of a host.
        Processes(ProcessList),
        /// The environment of a process.
        Environment(EnvironmentCard),
        /// The policy in rank 0's evaluation.
        Policy(LivePolicy),
        /// Images that the program has logged.
        Images(Images),
        /// A time that is typed.
        Time(TimeInput),
    }
}

impl Overlay {
    /// The event that it shows, or the newest one about its verdict.
    pub fn event<'a>(&self, shown: &'a Model) -> Option<&'a HistoryLine> {
        match self {
            Overlay::Event(card) => history::find(shown, card.number),
            Overlay::Evidence(card) => card.event(shown),
            _ => None,
        }
    }

    /// The verdict that it shows: a live one, or that of an event.
    pub fn verdict<'a>(&'a self, live: &'a Model, shown: &'a Model) -> Option<&'a VerdictReport> {
        match self {
            Overlay::Evidence(card) => Some(card.verdict(live)),
            _ => match &self.event(shown)?.subject {
                Some(EventSubject::Verdict(verdict)) => Some(verdict),
                _ => None,
            },
        }
    }

    /// An order is typed in it, and it is done with once the order is given.
    pub fn is_form(&self) -> bool {
        matches!(self, Overlay::Restart(_) | Overlay::Hosts(_))
    }

    /// What it shows must not be written to a file.
    pub fn has_secrets(&self) -> bool {
        matches!(self, Overlay::Environment(_))
    }
}

/// Rows of a page key on a card.
const PAGE: i64 = 10;

/// The command of a key on a card. A card is about a rank, on whatever page it was opened.
fn card_command(key: KeyEvent, view: &ViewState) -> Option<ScreenCommand> {
    TABLE.find(key, Pane::Ranks, &view.steering.keymap).map(|binding| binding.command)
}

/// Handles a key that a card has no use of its own for; `rank`: whom the card is about.
fn on_card_key(key: KeyEvent, top: &mut usize, rank: Option<Rank>, cx: &Cx<'_>) -> Handled {
    card_command(key, cx.state).map_or(Handled::Ignored, |command| on_card_command(command, top, rank))
}

/// What keys do on every card: it scrolls, closes, and stop, kill, restart and quit still work.
fn on_card_command(command: ScreenCommand, top: &mut usize, rank: Option<Rank>) -> Handled {
    match command {
        ScreenCommand::Back | ScreenCommand::Inspect | ScreenCommand::Policy => return Handled::Close,
        ScreenCommand::Move(rows) => card::scroll(top, i64::from(rows)),
        ScreenCommand::Page(pages) => card::scroll(top, i64::from(pages) * PAGE),
        ScreenCommand::First => card::scroll(top, i64::MIN),
        ScreenCommand::Last => card::scroll(top, i64::from(i32::MAX)),
        ScreenCommand::RankLog => {
            return Handled::Actions(vec![Request::CloseOverlays, Request::ShowRankLog(rank)]);
        }
        ScreenCommand::Stack
        | ScreenCommand::Continue
        | ScreenCommand::Rejoin
        | ScreenCommand::Shell
        | ScreenCommand::Environment => {
            return Handled::Actions(vec![Request::CommandAbout(rank, command)]);
        }
        ScreenCommand::Go(_) => {
            return Handled::Actions(vec![Request::CloseOverlays, Request::Command(command)]);
        }
        ScreenCommand::LogThere
        | ScreenCommand::Quit
        | ScreenCommand::Stop
        | ScreenCommand::Kill
        | ScreenCommand::Detach
        | ScreenCommand::Restart
        | ScreenCommand::RestartWith
        | ScreenCommand::PickHosts
        | ScreenCommand::Help
        | ScreenCommand::Palette
        | ScreenCommand::Copy => return Handled::Actions(vec![Request::Command(command)]),
        _ => return Handled::Ignored,
    }
    Handled::Done
}

/// The footer of a card: its own keys between scrolling and copying.
fn card_hint(cx: &DrawCtx<'_>, view: &ViewState, own: &[(ScreenCommand, &str)]) -> String {
    let names = names(&view.steering.keymap, cx.glyphs());
    let own = own.iter().copied().chain([(ScreenCommand::Copy, "copy")]);
    let keys: String = own.map(|(command, what)| format!("{} {what}   ", names.of(command))).collect();
    format!("j/k scroll   {keys}esc closes")
}

/// Makes the rows of a list clickable, from entry `first` on.
fn target_rows(cx: &DrawCtx<'_>, inner: Rect, first: usize, shown: usize) {
    for row in 0..shown {
        let place = Rect { y: inner.y + row as u16, height: 1, ..inner }.intersection(inner);
        cx.target(place, Target::Row(first + row));
    }
}
