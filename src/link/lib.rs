//! Links to agents over any transport: SSH, a local child, a Slurm step, the simulator.
//!
//! Each link is one thread; the driver holds its [`LinkHandle`]. A link connects, checks the host key, logs
//! in, deploys missing files, starts or finds the agent, and then exchanges frames. It reconnects with
//! backoff; every connection ends in `Ready`, after which the core sends `attach`. Closing a link never
//! affects the run. Invariants:
//! - The last state of a link is `Failed` or `Closed`; its thread then ends.
//! - A refused key or host key ends a link; transient failures are retried, without limit after the first
//!   success.
//! - LINK-3: an agent that is silent for [`SILENCE`] (or the limit of `ServerAlive*` in the ssh
//!   configuration) counts as lost; the run is not affected.
//! - A link never blocks its driver, and a slow driver never keeps a link from closing.

mod agent_command;
mod deploy;
mod dispatch;
mod frame_pump;
mod link_io;
mod local;
mod remote;
pub mod simulator;
mod slurm;
pub mod ssh;

pub use agent_command::{AgentCommand, AgentReply, LineSink, Upload};
pub use frame_pump::SILENCE;
pub use rankdeck_proto::link::{LinkCommand, LinkEvent};
use rankdeck_types::error::HintedError;
use rankdeck_types::host::{Host, Transport};
use rankdeck_types::ids::{NodeRank, RunId};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Action if no agent serves the run on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoAgentPolicy {
    /// Start one: this console launches the run. A run of the same name that another console launched is
    /// rejected.
    Launch,
    /// Start one for a host that is added to a run of any console.
    Join,
    /// Fail the link ([`LinkState::Failed`](rankdeck_types::link_state::LinkState::Failed)).
    Attach,
    /// The same for a console that stops the run: an agent that was stopped (SIGSTOP) is resumed.
    Stop,
}

/// Parameters of a link.
#[derive(Debug, Clone)]
pub struct LinkRequest {
    /// Index of the host.
    pub node: NodeRank,
    pub host: Host,
    /// The run of the agent.
    pub run: RunId,
    /// Action if no agent serves the run on this host.
    pub no_agent: NoAgentPolicy,
    /// The console's binary, which is also the agent.
    pub agent_binary: PathBuf,
    /// `rankdeck-trainer` to deploy, for the built-in trainer.
    pub trainer_binary: Option<PathBuf>,
    /// Prompt the user (host key, passphrase); if false, a prompt is a failure with a hint.
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

/// Answers the prompts of a one-shot connection, on a blocking thread.
pub trait Prompter: Send + Sync {
    /// Returns the user's answer; `None` refuses.
    fn ask(&self, host: &str, prompt: &rankdeck_types::link_state::Prompt) -> Option<String>;
    /// Reports that `done` of `total` bytes of the file `what` were sent to `host`.
    fn progress(&self, host: &str, what: &str, done: u64, total: u64) {
        let _ = (host, what, done, total);
    }
    /// Reports what this process waits for on `host`; `None`: nothing.
    fn waiting(&self, host: &str, why: Option<WaitReason>) {
        let _ = (host, why);
    }
    /// Reports the end of progress: completes a line that is being rewritten.
    fn finished(&self) {}
}

/// Phase of a command on a host that this process waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitReason {
    /// The connection and the login.
    Login,
    /// The start files of the login shell.
    Shell,
    /// The reply of the command.
    Answer,
}

/// Opens links and runs agent commands; one per process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Links {
    /// Another file than `~/.ssh/config`; environment variable `RANKDECK_SSH_CONFIG`.
    pub ssh_config: Option<PathBuf>,
}

impl Links {
    /// Reads the environment.
    pub fn from_environment() -> Links {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Links { ssh_config: set("RANKDECK_SSH_CONFIG") }
    }

    /// Opens a link that reports its states and messages through `events`.
    ///
    /// It ends on [`LinkCommand::Close`], or when all handles or the receiver of `events` are dropped.
    pub fn open(&self, request: LinkRequest, events: mpsc::Sender<(NodeRank, LinkEvent)>) -> LinkHandle {
        let (commands, orders) = mpsc::channel(64);
        let node = request.node;
        dispatch::start(self.clone(), request, orders, events);
        LinkHandle { node, commands }
    }

    /// Returns the address of each host for the other hosts: an alias of the ssh configuration means nothing to
    /// them, but its `HostName` may. Hosts whose configuration cannot be read keep their address.
    pub async fn peer_addresses(&self, hosts: &[Host]) -> Vec<String> {
        let lookups: Vec<_> = hosts
            .iter()
            .map(|host| {
                let (links, host) = (self.clone(), host.clone());
                tokio::task::spawn_blocking(move || match host.transport {
                    Transport::Ssh | Transport::Openssh => {
                        ssh::user_config::outline(&host, links.ssh_config.as_deref())
                            .map_or(host.address, |target| target.address)
                    }
                    Transport::Local | Transport::Slurm => host.address,
                })
            })
            .collect();
        let mut addresses = Vec::with_capacity(hosts.len());
        for (lookup, host) in lookups.into_iter().zip(hosts) {
            addresses.push(lookup.await.unwrap_or_else(|_| host.address.clone()));
        }
        addresses
    }

    /// Runs an agent command on `host`, after deploying the binary and missing files. Dropping the future
    /// cancels it.
    pub async fn call(
        &self,
        host: &Host,
        agent_binary: &Path,
        command: AgentCommand,
        prompter: Arc<dyn Prompter>,
    ) -> Result<AgentReply, HintedError> {
        dispatch::call(self.clone(), host.clone(), agent_binary.to_path_buf(), command, prompter).await
    }

    /// Runs one command per host in parallel; replies are in the order of the hosts.
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

/// Returns a random number in [0, 1).
pub fn random_fraction() -> f64 {
    let bits = RandomState::new().build_hasher().finish();
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fraction_is_below_one() {
        assert!((0..100).all(|_| (0.0..1.0).contains(&random_fraction())));
    }
}
