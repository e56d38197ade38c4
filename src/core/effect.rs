//! What the core wants done, as data. The shell carries it out and reports back with events.

use crate::report::Report;
use rankdeck_proto::link::LinkCommand;
use rankdeck_types::host::Host;
use rankdeck_types::ids::NodeRank;

/// An order to the shell.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Tell a link something.
    Link {
        /// The link's host.
        node: NodeRank,
        /// What to tell it.
        command: LinkCommand,
    },
    /// Open a link to a host that joins the run, in place of its closed link if it has one.
    Connect {
        /// Index of the host from now on.
        node: NodeRank,
        /// How to reach the host.
        host: Box<Host>,
    },
    /// Open a link to a host that another console's plan names, if the user's hosts file lists it. Hosts and
    /// addresses come from the user, never from an agent; a host that is not listed has a failed link.
    Find {
        /// Index of the host.
        node: NodeRank,
        name: String,
    },
    /// Report to the outside: a JSON line, a plain line, a record in the console's run directory.
    Tell(Box<Report>),
    /// End the console.
    Exit {
        /// Its exit code, as README lists them.
        code: u8,
    },
}
