//! What the core wants done, as data. The shell carries it out and reports back with events.

use crate::report::Report;
use rankdeck_proto::message::ConsoleMessage;
use rankdeck_types::host::Host;
use rankdeck_types::ids::NodeRank;

/// An order to the shell.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Send a message to an agent.
    Send {
        /// The agent's host.
        node: NodeRank,
        /// The message.
        message: ConsoleMessage,
    },
    /// Hand the user's answer to a link that asked.
    Answer {
        /// The link's host.
        node: NodeRank,
        /// What the user typed; `None` refuses.
        answer: Option<String>,
    },
    /// Open a link to a host that joins the run, in place of its closed link if it has one.
    Connect {
        /// Index of the host from now on.
        node: NodeRank,
        /// How to reach the host.
        host: Box<Host>,
    },
    /// Close a link for good.
    Disconnect {
        /// The link's host.
        node: NodeRank,
    },
    /// Report to the outside: a JSON line, a plain line, a record in the console's run directory.
    Tell(Box<Report>),
    /// End the console.
    Exit {
        /// Its exit code, as README lists them.
        code: u8,
    },
}
