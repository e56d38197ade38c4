//! How a run ended.

use serde::{Deserialize, Serialize};

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Finished, or reached its stop value.
    Succeeded,
    /// A rank or a host failed.
    Failed,
    /// Stopped on request.
    Stopped,
    /// Stuck, and stopped by policy.
    Stuck,
}

impl Outcome {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Succeeded => "succeeded",
            Outcome::Failed => "failed",
            Outcome::Stopped => "stopped",
            Outcome::Stuck => "stuck",
        }
    }
}

/// The end of a run, as the console that launched its last generation called it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// How the run ended.
    pub outcome: Outcome,
    /// The console's exit code.
    pub exit_code: u8,
    /// One sentence: why.
    pub reason: String,
    /// Every rank left by itself; none had to be killed.
    #[serde(default)]
    pub clean: bool,
    /// The failure that began the end, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_failure: Option<String>,
}

impl Ending {
    /// Exit code of a run whose ranks had to be killed: 128 and the number of SIGKILL.
    pub const KILLED: u8 = 137;

    /// An end that is not clean.
    pub fn new(outcome: Outcome, exit_code: u8, reason: impl Into<String>) -> Ending {
        Ending { outcome, exit_code, reason: reason.into(), clean: false, first_failure: None }
    }

    /// One for which no rank had to be killed.
    pub fn clean(outcome: Outcome, exit_code: u8, reason: impl Into<String>) -> Ending {
        Ending { clean: true, ..Ending::new(outcome, exit_code, reason) }
    }
}
