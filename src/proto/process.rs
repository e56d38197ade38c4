//! A console's queries about one process of a host: its environment variables, or a signal to it.
//!
//! - REACH-1: no secret leaves its host: values of secrets are removed where the environment is read.
//! - REACH-2: an environment is only displayed: it is in no record, trace or file, and formatting hides it.

use rankdeck_types::error::HintedError;
use rankdeck_types::ids::Rank;
use rankdeck_types::words::signal_name;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Variable in a rank's environment that lists the variables with hidden values.
pub const HIDDEN: &str = "RANKDECK_HIDDEN";

/// Most variables of an environment.
pub const VARIABLES: usize = 2048;
/// Most bytes of a value, and of all names and values.
pub const VALUE_BYTES: usize = 4 << 10;
pub const ALL_BYTES: usize = 256 << 10;

/// Identifies one process, so that a later one with its pid is not mistaken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessName {
    /// Its rank, whose start time is known to the agent.
    pub rank: Option<Rank>,
    pub pid: u32,
    /// Start time, clock ticks since boot; only for a process that is not a rank.
    pub start: u64,
}

impl ProcessName {
    /// Identifies a process that is not a rank.
    pub fn of(user: &GpuUser) -> ProcessName {
        ProcessName { rank: None, pid: user.pid, start: user.start }
    }
}

impl fmt::Display for ProcessName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rank {
            Some(rank) => write!(f, "rank {rank} (pid {})", self.pid),
            None => write!(f, "pid {}", self.pid),
        }
    }
}

/// An action on a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum ProcessAction {
    /// Read the environment with which it was started.
    Environment,
    /// Send it this signal.
    Signal { signal: i32 },
    /// An action of a later build.
    #[serde(other)]
    Unknown,
}

impl fmt::Display for ProcessAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProcessAction::Environment => f.write_str("environment variables"),
            ProcessAction::Signal { signal } => f.write_str(&signal_name(*signal)),
            ProcessAction::Unknown => f.write_str("something"),
        }
    }
}

/// The result of a [`ProcessAction`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum ReachOutcome {
    /// Its environment variables.
    Environment(Environment),
    /// This signal was sent.
    Signalled { signal: i32 },
    /// Nothing was done, for this reason.
    Refused(HintedError),
    /// A result of a later build.
    #[serde(other)]
    Unknown,
}

/// The environment of a process, without its secrets. `{:?}` hides it.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    /// Variables, sorted by name.
    pub variables: Vec<Variable>,
    /// Variables beyond the limits.
    pub left_out: u64,
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Environment({} variables)", self.variables.len())
    }
}

/// One variable.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Variable {
    pub name: String,
    /// `None`: it may be a secret.
    pub value: Option<String>,
}

/// A process that uses GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuUser {
    /// Process id.
    pub pid: u32,
    /// Start time, clock ticks since boot; 0: unknown.
    pub start: u64,
    /// It belongs to this agent's user.
    pub own: bool,
    /// Its user: a name, or a number without one.
    pub user: String,
    /// Its command line, truncated.
    pub command: String,
    /// Its run, if any.
    pub run: Option<String>,
}
