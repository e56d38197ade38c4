//! What lies over a page, and what was typed into it.

use super::action::Action;
use crate::restart_draft::RestartDraft;
use rankdeck_core::report::VerdictKind;
use rankdeck_proto::process::ProcessName;
use rankdeck_types::ids::{NodeRank, Rank};
use rankdeck_types::link_state::Prompt;
use std::collections::BTreeSet;
use std::fmt;

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
    /// A line that is typed: what to do.
    Palette(TypedLine),
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
    /// A restart with changed keys.
    Restart(Box<RestartDraft>),
    /// Everything about one rank.
    Inspect {
        /// The rank that is shown.
        rank: Rank,
        /// First line shown.
        top: usize,
    },
    /// Why the watch says what it says.
    Evidence {
        about: VerdictId,
        /// First line shown.
        top: usize,
    },
    /// One event, whole.
    Event {
        number: u64,
        /// First line shown.
        top: usize,
    },
    /// The processes of a host.
    Processes {
        node: NodeRank,
        /// `None`: the first.
        selected: Option<ProcessName>,
    },
    /// The environment of a process.
    Environment {
        node: NodeRank,
        process: ProcessName,
        /// First line shown.
        top: usize,
    },
    /// The policy at play in rank 0's evaluation.
    Policy,
    /// Pictures that the program has logged.
    Pictures(PictureChoice),
    /// A time is being typed.
    Time {
        /// So far.
        input: String,
    },
}

impl fmt::Debug for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Overlay::Help { filter, selected } => write!(f, "Help({filter:?}, {selected})"),
            Overlay::Palette(typing) => write!(f, "Palette({:?})", typing.line),
            Overlay::Confirm(confirm) => write!(f, "Confirm({:?}, {})", confirm.kind, confirm.selected),
            // The input may be a passphrase.
            Overlay::Ask(ask) => write!(f, "Ask({}, {:?})", ask.node, ask.prompt),
            Overlay::Hosts { changed, selected } => write!(f, "Hosts({changed:?}, {selected})"),
            Overlay::Restart(draft) => write!(f, "Restart({:?}, {})", draft.line, draft.selected),
            Overlay::Inspect { rank, top } => write!(f, "Inspect({rank}, {top})"),
            Overlay::Evidence { about, top } => write!(f, "Evidence({about:?}, {top})"),
            Overlay::Event { number, top } => write!(f, "Event({number}, {top})"),
            Overlay::Processes { node, selected } => write!(f, "Processes({node}, {selected:?})"),
            Overlay::Environment { node, process, top } => write!(f, "Environment({node}, {process}, {top})"),
            Overlay::Policy => f.write_str("Policy"),
            Overlay::Pictures(choice) => write!(f, "Pictures({choice:?})"),
            Overlay::Time { input } => write!(f, "Time({input:?})"),
        }
    }
}

/// Which picture is looked at.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PictureChoice {
    /// Its name; `None`: the first.
    pub name: Option<String>,
    /// Its number; `None`: the newest of the name.
    pub number: Option<u64>,
}

/// A line of the palette.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TypedLine {
    /// What was typed so far.
    pub line: String,
    /// Index of the line of the history that it was taken from.
    pub recalled: Option<usize>,
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
    /// Send a signal to a process.
    Signal,
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
