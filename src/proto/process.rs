//! What a console asks of one process of a host: its environment, or a signal to it.
//!
//! - REACH-1: a secret leaves no host: its value is left out where the environment is read.
//! - REACH-2: an environment is shown and nothing else: it is in no record, no trace, no file, and no text
//!   that formats it.

use rankdeck_types::error::HintedError;
use rankdeck_types::ids::Rank;
use rankdeck_types::words::signal_name;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The variable in a rank's environment that names those whose values are not shown.
pub const HIDDEN: &str = "RANKDECK_HIDDEN";

/// Most variables of an environment.
pub const VARIABLES: usize = 2048;
/// Most bytes of a value, and of all names and values.
pub const VALUE_BYTES: usize = 4 << 10;
pub const ALL_BYTES: usize = 256 << 10;

/// One process, named so that another one of its pid is not mistaken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessName {
    /// The rank that it is; its agent knows when it started.
    pub rank: Option<Rank>,
    pub pid: u32,
    /// When it started, clock ticks since boot; of one that is no rank.
    pub start: u64,
}

impl ProcessName {
    /// A process that is no rank.
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

/// What is wanted of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum ProcessAction {
    /// The environment that it was started with.
    Environment,
    /// That it gets this signal.
    Signal { signal: i32 },
    /// Of a later build.
    #[serde(other)]
    Unknown,
}

impl fmt::Display for ProcessAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProcessAction::Environment => f.write_str("its environment"),
            ProcessAction::Signal { signal } => f.write_str(&signal_name(*signal)),
            ProcessAction::Unknown => f.write_str("something"),
        }
    }
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum ReachOutcome {
    Environment(Environment),
    /// It was given this signal.
    Signalled {
        signal: i32,
    },
    /// Nothing was done, and why.
    Refused(HintedError),
    /// Of a later build.
    #[serde(other)]
    Unknown,
}

/// The environment of a process, without its secrets. Shown by no `{:?}`.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    /// By name.
    pub variables: Vec<Variable>,
    /// Variables that found no room.
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
    /// `None`: it is a secret, or looks like one.
    pub value: Option<String>,
}

/// A process that uses GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuUser {
    /// Process id.
    pub pid: u32,
    /// When it started, clock ticks since boot; 0: not known.
    pub start: u64,
    /// It belongs to the user who is told of it.
    pub own: bool,
    /// Whose it is: a name, or a number where there is none.
    pub user: String,
    /// Its command line, cut.
    pub command: String,
    /// The run that it belongs to.
    pub run: Option<String>,
}
