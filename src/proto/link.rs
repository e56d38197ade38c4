//! What a console tells the link to a host's agent, and what the link reports.

use crate::message::{AgentMessage, ConsoleMessage};
use rankdeck_types::link_state::LinkState;

/// Something that a link reports.
#[derive(Debug, Clone, PartialEq)]
pub enum LinkEvent {
    /// The link changed its state.
    State(LinkState),
    /// The agent sent a message.
    Message(Box<AgentMessage>),
}

/// Something that a link is told to do.
#[derive(Debug, Clone, PartialEq)]
pub enum LinkCommand {
    /// Send this to the agent. A link that is not ready drops it; the core sends again after the next
    /// snapshot.
    Send(ConsoleMessage),
    /// The user's answer to the link's prompt; `None` refuses.
    Answer(Option<String>),
    /// Close for good.
    Close,
}
