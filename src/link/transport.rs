//! The way from a link to its agent.

use super::carry::Pipe;
use super::link_io::LinkIo;
use crate::ssh::SshError;
use rankdeck_types::probe::Probe;

/// Reaches the agent of one link.
pub trait AgentTransport {
    /// Connects, deploys, and finds or starts the agent. `mending`: it has worked before, so a refusal of the
    /// agent counts as passing.
    fn reach_agent(
        &mut self,
        link_io: &mut LinkIo,
        mending: bool,
    ) -> Result<(Probe, Box<dyn Pipe>), SshError>;
}
