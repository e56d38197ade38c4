//! One interface to an agent, whatever the road: SSH, a local child, a Slurm step, the simulator.
//!
//! Owner: each link is one thread; the driver holds its [`LinkHandle`]. A link connects, checks the host key, logs in,
//! deploys what the host lacks, starts or finds the agent, and then carries frames. It reconnects by itself with backoff; every
//! (re)connection ends in [`Ready`](rankdeck_types::link_state::LinkState::Ready), upon which the core sends `attach`. Closing a link never touches the run. Invariants:
//! - LINK-1: the last state a link tells is `Failed` or `Closed`; after it the link's thread is gone.
//! - LINK-2: refused keys and host keys end a link; whatever may heal is tried again, for ever once it has worked.
//! - LINK-3: an agent that is silent for [`carry::SILENCE`] (or what `ServerAlive*` of the ssh configuration allow) counts as lost; the run is not touched by that.
//! - LINK-4: a link never blocks its driver, nor does a driver that is slow keep a link from closing.

pub mod backoff;
pub mod carry;
pub mod deploy;
pub mod desk;
pub mod freight;
pub mod inbox;
pub mod local;
pub mod remote;
mod roads;
pub mod simulator;
pub mod slurm;
pub mod ssh;

pub use rankdeck_proto::link_event::LinkEvent;

use rankdeck_proto::message::ConsoleMessage;
use rankdeck_types::host::Host;
use rankdeck_types::ids::{NodeRank, RunId};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::mpsc;

/// What to do when no agent serves the run on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// Start one: this console launches the run, and a run of the same name that another console has launched is refused.
    Launch,
    /// Start one for a host that a run takes in, whoever has launched it.
    Join,
    /// Nothing: the link is [`LinkState::Failed`].
    Attach,
}

/// What a link is to do.
#[derive(Debug, Clone)]
pub struct LinkRequest {
    /// Index of the host.
    pub node: NodeRank,
    /// The host.
    pub host: Host,
    /// The run to start an agent for, or to find.
    pub run: RunId,
    /// What to do when no agent serves the run on this host.
    pub opening: Opening,
    /// The running console's own binary, which is also the agent.
    pub agent_binary: PathBuf,
    /// `rankdeck-trainer` to deploy, when the built-in trainer is wanted.
    pub trainer_binary: Option<PathBuf>,
    /// May the user be asked (host key, passphrase)? Otherwise such a need is a failure with a hint.
    pub interactive: bool,
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
    fn ask(&self, host: &str, prompt: &rankdeck_types::link_state::Prompt) -> Option<String>;
    /// `done` of `total` bytes of the file `what` are on their way to `host`.
    fn progress(&self, host: &str, what: &str, done: u64, total: u64) {
        let _ = (host, what, done, total);
    }
    /// What `host` is waited for from now on; `None`: nothing any more.
    fn waiting(&self, host: &str, why: Option<Wait>) {
        let _ = (host, why);
    }
}

/// What a host is waited for.
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
pub struct Cargo {
    /// The file here.
    pub path: PathBuf,
    /// Folder there, relative to the cache.
    pub folder: String,
    /// Name there; with the folder, it says what the content is, so that a file of the right size is not sent again.
    pub name: String,
}

/// One command for an agent binary, with what it needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Call {
    /// What follows `rankdeck agent`.
    pub args: Vec<String>,
    /// Its standard input; short.
    pub input: Vec<u8>,
    /// `rankdeck-trainer` to bring along.
    pub trainer: Option<PathBuf>,
    /// Files to bring first.
    pub cargo: Vec<Cargo>,
}

/// What came of a [`Call`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    /// The JSON text after the marker.
    pub text: String,
    /// This machine's clock when the command was sent, seconds since the epoch.
    pub sent: f64,
    /// This machine's clock when it had answered.
    pub received: f64,
    /// Seconds until the command itself began: what the login shell's start files cost; 0 where there is no login.
    pub shell: f64,
    /// Bytes of cargo that the host lacked.
    pub brought: u64,
    /// Folder of the cache there, absolute.
    pub cache: String,
}

/// What the surroundings say about links; the same for all of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Another file than `~/.ssh/config`; environment variable `RANKDECK_SSH_CONFIG`.
    pub ssh_config: Option<PathBuf>,
}

impl Settings {
    /// As the environment says.
    pub fn from_environment() -> Settings {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Settings { ssh_config: set("RANKDECK_SSH_CONFIG") }
    }
}

/// Opens a link. It tells its states and messages through `events` and ends on [`LinkCommand::Close`], when every clone of the handle is
/// dropped, or when nobody receives `events` any more.
pub fn open(request: LinkRequest, events: mpsc::Sender<(NodeRank, LinkEvent)>) -> LinkHandle {
    open_with(Settings::from_environment(), request, events)
}

/// [`open`] with explicit surroundings.
pub fn open_with(
    settings: Settings,
    request: LinkRequest,
    events: mpsc::Sender<(NodeRank, LinkEvent)>,
) -> LinkHandle {
    let (commands, orders) = mpsc::channel(64);
    let node = request.node;
    roads::start(settings, request, orders, events);
    LinkHandle { node, commands }
}

/// Runs `rankdeck agent ARGS` on `host`, deploying the binary when it is missing, and gives back the JSON text after the `RANKDECK-...`
/// marker of its answer. Dropping the future calls it off.
pub async fn exec(
    host: &Host,
    agent_binary: &Path,
    args: &[String],
    prompter: Arc<dyn Prompter>,
) -> Result<String, LinkError> {
    exec_with(Settings::from_environment(), host, agent_binary, args, prompter).await
}

/// [`exec`] with explicit surroundings.
pub async fn exec_with(
    settings: Settings,
    host: &Host,
    agent_binary: &Path,
    args: &[String],
    prompter: Arc<dyn Prompter>,
) -> Result<String, LinkError> {
    let call = Call { args: args.to_vec(), ..Call::default() };
    Ok(call_with(settings, host, agent_binary, call, prompter).await?.text)
}

/// [`exec`] with input, files to bring first, and the times of the exchange.
pub async fn call(
    host: &Host,
    agent_binary: &Path,
    call: Call,
    prompter: Arc<dyn Prompter>,
) -> Result<Answer, LinkError> {
    call_with(Settings::from_environment(), host, agent_binary, call, prompter).await
}

/// [`call`] with explicit surroundings.
pub async fn call_with(
    settings: Settings,
    host: &Host,
    agent_binary: &Path,
    call: Call,
    prompter: Arc<dyn Prompter>,
) -> Result<Answer, LinkError> {
    roads::call(settings, host.clone(), agent_binary.to_path_buf(), call, prompter).await
}

pub use rankdeck_types::error::HintedError as LinkError;
