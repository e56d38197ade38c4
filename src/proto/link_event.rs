//! What the link to a host's agent reports to its console.

use crate::message::AgentMessage;
use rankdeck_types::link_state::LinkState;

/// Something that a link reports.
#[derive(Debug, Clone, PartialEq)]
pub enum LinkEvent {
    /// The link changed its state.
    State(LinkState),
    /// The agent sent a message.
    Message(Box<AgentMessage>),
}
