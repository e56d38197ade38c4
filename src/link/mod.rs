//! One interface to an agent, whatever the road: SSH, a local child, the simulator.
//!
//! Owner: each link is one task (with an owner thread for SSH); the driver holds its [`LinkHandle`]. A link connects, checks the host key, logs in,
//! deploys what the host lacks, starts or finds the agent, and then carries frames. It reconnects by itself with backoff; every
//! (re)connection ends in [`LinkState::Ready`], upon which the core sends `attach`. Closing a link never touches the run.

pub mod simulator;

use crate::config::hosts::Host;
use crate::core::event::LinkState;
use crate::core::ids::{NodeRank, RunId};
use crate::proto::message::{AgentMessage, ConsoleMessage};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::mpsc;

/// What a link is to do.
#[derive(Debug, Clone)]
pub struct LinkRequest {
    /// Index of the host.
    pub node: NodeRank,
    /// The host.
    pub host: Host,
    /// The run to start an agent for, or to find.
    pub run: RunId,
    /// Start an agent when none serves the run; `false` for `attach`: then a missing agent is [`LinkState::Failed`].
    pub start: bool,
    /// The running console's own binary, which is also the agent.
    pub agent_binary: PathBuf,
    /// `rankdeck-trainer` to deploy, when the built-in trainer is wanted.
    pub trainer_binary: Option<PathBuf>,
    /// May the user be asked (host key, passphrase)? Otherwise such a need is a failure with a hint.
    pub interactive: bool,
}

/// What comes from a link.
#[derive(Debug)]
pub enum LinkEvent {
    /// It changed its state.
    State(LinkState),
    /// The agent said something.
    Message(Box<AgentMessage>),
}

/// What a link can be told.
#[derive(Debug)]
pub enum LinkCommand {
    /// Send this to the agent. Dropped when the link is not ready (the core sends again after the next snapshot).
    Send(ConsoleMessage),
    /// The user's answer to the prompt; `None` refuses.
    Answer(Option<String>),
    /// Close and end.
    Close,
}

/// The driver's end of a link.
#[derive(Debug, Clone)]
pub struct LinkHandle {
    /// Index of the host.
    pub node: NodeRank,
    /// Orders to the link; bounded.
    pub commands: mpsc::Sender<LinkCommand>,
}

/// Answers the questions of a one-shot connection; called on a blocking thread.
pub trait Prompter: Send + Sync {
    /// The user's answer, `None` to refuse.
    fn ask(&self, host: &str, prompt: &crate::core::event::Prompt) -> Option<String>;
}

/// A link could not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct LinkError {
    /// What failed, with the host's name.
    pub error: String,
    /// What helps.
    pub hint: String,
}

// STUB until the `ssh` part is merged: both functions are its own.
/// Opens a link.
pub fn open(request: LinkRequest, events: mpsc::Sender<(NodeRank, LinkEvent)>) -> LinkHandle {
    let (commands, mut orders) = mpsc::channel(64);
    let node = request.node;
    tokio::spawn(async move {
        let error = format!("host {}: this build has no links", request.host.name);
        let failed = LinkState::Failed { error, hint: String::new() };
        let _ = events.send((node, LinkEvent::State(failed))).await;
        while let Some(command) = orders.recv().await {
            if matches!(command, LinkCommand::Close) {
                break;
            }
        }
    });
    LinkHandle { node, commands }
}

/// Runs `rankdeck agent ARGS` on `host`.
pub async fn exec(
    host: &Host,
    _agent_binary: &Path,
    _args: &[String],
    _prompter: Arc<dyn Prompter>,
) -> Result<String, LinkError> {
    Err(LinkError { error: format!("host {}: this build has no links", host.name), hint: String::new() })
}
