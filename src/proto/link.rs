//! Events of the link to a host's agent, and a console's orders to it.

use crate::message::{AgentMessage, ConsoleMessage};
use rankdeck_types::link_state::LinkState;

/// An event of a link.
#[derive(Debug, Clone, PartialEq)]
pub enum LinkEvent {
    /// The link changed its state.
    State(LinkState),
    /// The agent sent a message.
    Message(Box<AgentMessage>),
}

/// An order to a link.
#[derive(Debug, Clone, PartialEq)]
pub enum LinkCommand {
    /// Send this message to the agent. A link that is not ready drops it; the core sends it again after the
    /// next snapshot.
    Send(ConsoleMessage),
    /// The user's answer to the link's prompt; `None` refuses.
    Answer(Option<String>),
    /// The run is to be stopped: resume an agent that was stopped (SIGSTOP). Holds for all later connections.
    Resume,
    /// Close permanently.
    Close,
}
