//! Orders from a console to an agent.

use super::Ending;
use crate::process::{ProcessAction, ProcessName};
use crate::search::LogSearch;
use crate::secret::GroupSecret;
use rankdeck_types::ids::{Generation, NodeRank, Rank};
use rankdeck_types::plan::Plan;
use rankdeck_types::variables::Values;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;

/// Orders from a console to an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ConsoleMessage {
    /// First message of every connection. The agent answers `hello`, `snapshot`, then every record after
    /// `after_seq`.
    Attach {
        /// [`super::PROTOCOL`] of the console.
        protocol: u32,
        /// Build of the console, for the agent's log.
        build: String,
        /// Number of the last record that this console has applied, 0 for none.
        after_seq: u64,
        /// How many lines of each rank's log to send at once.
        log_tail: u32,
    },
    /// Asks for a free TCP port on this host; answered with [`super::AgentMessage::PortReserved`].
    ReservePort {
        /// Echoed in the answer.
        request: u64,
    },
    /// Asks for a close look at some of this host's ranks; answered with [`super::AgentMessage::Inspected`]
    /// within 2 s, or 9 s on a host whose cores are overloaded, whatever state the ranks are in.
    Inspect {
        /// Echoed in the answer.
        request: u64,
        /// Which; ranks of other hosts are left out of the answer. Empty for all of this host.
        ranks: Vec<Rank>,
    },
    /// Continues ranks of this host that a signal has stopped (SIGCONT); others notice nothing.
    Continue {
        /// Which; ranks of other hosts are left out.
        ranks: Vec<Rank>,
    },
    /// Asks something of one process of this host's user; answered with [`super::AgentMessage::Reached`].
    Reach {
        /// Echoed in the answer.
        request: u64,
        process: ProcessName,
        action: ProcessAction,
    },
    /// Starts this host's share of a generation.
    Launch {
        /// Everything that the agent needs, and may tell others.
        spec: Box<LaunchSpec>,
        /// What stands in no record. The driver adds it to the order: the core has none.
        #[serde(default, flatten)]
        private: Private,
    },
    /// Stops this host's ranks; answered by a `Stopped` record once nothing is left or the survivors are
    /// known.
    Stop {
        /// How hard to stop.
        mode: StopMode,
        /// Milliseconds between SIGTERM and SIGKILL in [`StopMode::Terminate`]; bound of [`StopMode::Clean`].
        grace_ms: u64,
    },
    /// This console watches the policy at play, or no longer; answered with [`super::AgentMessage::Frame`]s
    /// by the host of rank 0 while it evaluates.
    Watch {
        /// It does.
        on: bool,
    },
    /// Looks for lines in the logs that this host keeps of the run, in place of any search before; answered
    /// with [`super::AgentMessage::Found`]s until it is over.
    Search {
        /// Echoed in the answers.
        request: u64,
        /// What is looked for; `None`: nothing more.
        wanted: Option<Box<LogSearch>>,
    },
    /// Heartbeat; the agent answers `pong`.
    Ping {
        /// Console's clock, echoed.
        sent_ms: u64,
    },
    /// The console leaves on purpose and the run goes on, whatever `on_disconnect` says.
    Detach,
    /// The console that launched this generation calls its end so; the agent keeps it as a record.
    Ended {
        /// The generation that ended.
        generation: Generation,
        /// Its end.
        ending: Box<Ending>,
    },
    /// The run is over and this console has seen it all: the agent exits when nobody else is attached.
    Close,
    /// A kind this build does not know.
    #[serde(other)]
    Unknown,
}

/// How hard to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopMode {
    /// SIGTERM to the ranks themselves: they agree on an iteration, write a checkpoint and leave; then as
    /// `Kill`.
    Clean,
    /// SIGTERM to the ranks' sessions, the grace, then `Kill`.
    Terminate,
    /// SIGKILL to everything of this run on the host.
    Kill,
}

impl StopMode {
    /// The word that people read.
    pub fn word(self) -> &'static str {
        match self {
            StopMode::Clean => "clean",
            StopMode::Terminate => "terminate",
            StopMode::Kill => "kill",
        }
    }
}

/// What a launch holds beside its [`LaunchSpec`], for the ranks' environment only (SECRET-1).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Private {
    /// The secret of this generation, the same for all of its hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<GroupSecret>,
    /// Variables of this host's ranks whose values come from the console.
    #[serde(skip_serializing_if = "Values::is_empty")]
    pub variables: Values,
    /// How to call the user while no console looks on; for rank 0's host only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub away: Option<AwayNotices>,
}

/// How an agent calls the user. Shown by no `{:?}`: an address may be a secret.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AwayNotices {
    /// What for: `end`, `verdict`, `best`; empty: the first two.
    pub on: Vec<String>,
    /// Where to post, empty: nowhere.
    pub webhook: String,
    /// A program with its arguments, empty: none.
    pub command: Vec<String>,
}

impl fmt::Debug for AwayNotices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Away({:?})", self.on)
    }
}

/// One host's share of one generation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaunchSpec {
    /// Which life of the run.
    pub generation: Generation,
    /// Which host of the plan this agent is.
    pub node_rank: NodeRank,
    /// Where rank 0's store listens.
    pub master_addr: String,
    /// Port of rank 0's store.
    pub master_port: u16,
    /// Checkpoint to start from; `None` starts afresh. A path on the host, or `latest`.
    #[serde(default)]
    pub resume: Option<String>,
    /// The plan, with the environment and prelude of this host only (PLAN-5): any one agent can tell a
    /// console everything else about the run.
    pub plan: Plan,
}

/// What identifies a launch over all of its hosts: SHA-256 of everything in their specs that is equal, in
/// hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LaunchHash(pub String);

impl LaunchSpec {
    /// The hash that all hosts of this launch share.
    pub fn hash(&self) -> LaunchHash {
        let common = LaunchSpec { node_rank: NodeRank(0), plan: self.plan.common(), ..self.clone() };
        // Maps are ordered and all keys are texts, so equal launches have equal JSON, and it cannot fail.
        let json = serde_json::to_vec(&common).unwrap_or_default();
        LaunchHash(rankdeck_types::words::hex(&Sha256::digest(&json)))
    }
}
