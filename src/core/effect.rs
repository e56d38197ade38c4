//! What the core wants done, as data. The shell carries it out and reports back with events.

use crate::report::Report;
use rankdeck_proto::message::ConsoleMessage;
use rankdeck_types::host::Host;
use rankdeck_types::ids::NodeRank;

/// Do this.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Send to an agent.
    Send {
        /// Which host.
        node: NodeRank,
        /// What.
        message: ConsoleMessage,
    },
    /// Hand the user's answer to a link; `None` refuses.
    Answer {
        /// Which host.
        node: NodeRank,
        /// The answer.
        answer: Option<String>,
    },
    /// Open a link to a host that joins the run, in place of a closed one if there was one.
    Connect {
        /// Which host.
        node: NodeRank,
        /// The host.
        host: Box<Host>,
    },
    /// Close a link for good.
    Disconnect {
        /// Which host.
        node: NodeRank,
    },
    /// Tell the outside: a JSON line, a plain line, a record in the console's run directory.
    Tell(Box<Report>),
    /// The console is done.
    Exit {
        /// Exit code as DESIGN 4.
        code: u8,
    },
}
