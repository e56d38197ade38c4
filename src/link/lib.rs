//! One interface to an agent, whatever the transport: SSH, a local child, a Slurm step, the simulator.
//!
//! Owner: each link is one thread; the driver holds its [`LinkHandle`]. A link connects, checks the host key,
//! logs in, deploys what the host lacks, starts or finds the agent, and then carries frames. It reconnects by
//! itself with backoff; every (re)connection ends in `Ready`, upon which the core sends `attach`. Closing a
//! link never touches the run. Invariants:
//! - The last state that a link reports is `Failed` or `Closed`; after it the link's thread is gone.
//! - A refused key or host key ends a link; whatever may heal is tried again, without end once it has worked.
//! - LINK-3: an agent that is silent for [`carry::SILENCE`] (or what `ServerAlive*` of the ssh configuration
//!   allow) counts as lost; the run is not touched by that.
//! - A link never blocks its driver, and a slow driver never keeps a link from closing.

mod agent_command;
pub mod backoff;
pub mod carry;
mod chunked_upload;
mod deploy;
mod dispatch;
mod elf;
mod image;
mod inbox;
mod line_sink;
mod link_io;
mod local;
pub mod random;
mod remote;
pub mod simulator;
mod slurm;
pub mod ssh;
mod transport;

pub use line_sink::LineSink;
pub use rankdeck_proto::link::{LinkCommand, LinkEvent};

use rankdeck_types::error::HintedError;
use rankdeck_types::host::Host;
use rankdeck_types::ids::{NodeRank, RunId};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// What to do when no agent serves the run on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// Start one: this console launches the run. A run of the same name that another console has launched is
    /// refused.
    Launch,
    /// Start one for a host that is added to a run, whichever console launched it.
    Join,
    /// Nothing: the link is [`LinkState::Failed`].
    Attach,
}

/// What a link is opened for.
#[derive(Debug, Clone)]
pub struct LinkRequest {
    /// Index of the host.
    pub node: NodeRank,
    pub host: Host,
    /// The run to start an agent for, or to find.
    pub run: RunId,
    /// What to do when no agent serves the run on this host.
    pub opening: Opening,
    /// The running console's own binary, which is also the agent.
    pub agent_binary: PathBuf,
    /// `rankdeck-trainer` to deploy, when the built-in trainer is wanted.
    pub trainer_binary: Option<PathBuf>,
    /// The user may be asked (host key, passphrase). Otherwise such a need is a failure with a hint.
    pub interactive: bool,
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
    fn ask(&self, host: &str, prompt: &rankdeck_types::link_state::Prompt) -> Option<String>;
    /// `done` of `total` bytes of the file `what` are on their way to `host`.
    fn progress(&self, host: &str, what: &str, done: u64, total: u64) {
        let _ = (host, what, done, total);
    }
    /// What this process now waits for on `host`; `None`: nothing any more.
    fn waiting(&self, host: &str, why: Option<Wait>) {
        let _ = (host, why);
    }
    /// No more progress follows: a line that is still being written over ends.
    fn finished(&self) {}
}

/// What a host keeps this process waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// The connection and the login.
    Login,
    /// A command was sent: the login shell reads its start files.
    Shell,
    /// The command runs.
    Answer,
}

/// A file that a host is to have in its cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    /// The file on this machine.
    pub path: PathBuf,
    /// Folder on the host, relative to the cache.
    pub folder: String,
    /// Name on the host. It identifies the content, so that a file of the right size is not sent again.
    pub name: String,
}

/// One command for an agent binary, with what it needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentCommand {
    /// What follows `rankdeck agent`.
    pub args: Vec<String>,
    /// Its standard input; short.
    pub input: Vec<u8>,
    /// `rankdeck-trainer`, to be deployed beside the agent.
    pub trainer: Option<PathBuf>,
    /// Files that the host must have first.
    pub uploads: Vec<Upload>,
    /// Who hears what it prints before its answer, line by line.
    pub lines: LineSink,
    /// Bound of the command; `None`: that of a short one.
    pub within: Option<Duration>,
}

/// The result of an [`AgentCommand`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AgentReply {
    /// The JSON text after the marker.
    pub text: String,
    /// This machine's clock when the command was sent, seconds since the epoch.
    pub sent: f64,
    /// This machine's clock when it had answered.
    pub received: f64,
    /// Seconds until the command itself began: what the login shell's start files cost; 0 where there is no
    /// login.
    pub shell: f64,
    /// Bytes of the uploads that the host lacked.
    pub uploaded: u64,
    /// Folder of the cache on the host, absolute.
    pub cache: String,
}

/// Opens links and runs agent commands. The same for all of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Links {
    /// Another file than `~/.ssh/config`; environment variable `RANKDECK_SSH_CONFIG`.
    pub ssh_config: Option<PathBuf>,
}

impl Links {
    /// Set up as the environment says.
    pub fn from_environment() -> Links {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Links { ssh_config: set("RANKDECK_SSH_CONFIG") }
    }

    /// Opens a link. It reports its states and messages through `events`. It ends on [`LinkCommand::Close`],
    /// when every clone of the handle is dropped, or when nobody receives `events` any more.
    pub fn open(&self, request: LinkRequest, events: mpsc::Sender<(NodeRank, LinkEvent)>) -> LinkHandle {
        let (commands, orders) = mpsc::channel(64);
        let node = request.node;
        dispatch::start(self.clone(), request, orders, events);
        LinkHandle { node, commands }
    }

    /// Runs one agent command on `host`, after deploying the binary and the files that the host lacks.
    /// Dropping the future calls it off.
    pub async fn call(
        &self,
        host: &Host,
        agent_binary: &Path,
        command: AgentCommand,
        prompter: Arc<dyn Prompter>,
    ) -> Result<AgentReply, HintedError> {
        dispatch::call(self.clone(), host.clone(), agent_binary.to_path_buf(), command, prompter).await
    }

    /// Runs one command per host at once; the replies are in the order of the hosts.
    pub async fn call_all(
        &self,
        hosts: &[Host],
        agent_binary: &Path,
        prompter: &Arc<dyn Prompter>,
        command: impl Fn(usize, &Host) -> AgentCommand,
    ) -> Vec<Result<AgentReply, HintedError>> {
        let calls: Vec<_> = hosts
            .iter()
            .enumerate()
            .map(|(node, host)| {
                let (links, host, binary) = (self.clone(), host.clone(), agent_binary.to_path_buf());
                let (command, prompter) = (command(node, &host), prompter.clone());
                tokio::spawn(async move { links.call(&host, &binary, command, prompter).await })
            })
            .collect();
        let mut replies = Vec::with_capacity(calls.len());
        for (call, host) in calls.into_iter().zip(hosts) {
            replies.push(
                call.await.unwrap_or_else(|error| {
                    Err(HintedError::new(format!("host {}: {error}", host.name), ""))
                }),
            );
        }
        replies
    }
}
