//! How a command fails: a message, a hint, an exit code.

use rankdeck_config::Diagnostics;
use rankdeck_link::LinkError;
use rankdeck_types::plan::PlanError;
use std::fmt;

/// Exit codes; part of the command line's contract.
pub mod code {
    /// Succeeded, or reached its stop value, or detached.
    pub const SUCCESS: u8 = 0;
    /// The run, or the command, failed.
    pub const FAILED: u8 = 1;
    /// Usage or configuration.
    pub const USAGE: u8 = 2;
    /// A host failed preflight or could not be reached.
    pub const HOST: u8 = 3;
    /// Stuck, and stopped by policy.
    pub const STUCK: u8 = 4;
    /// Interrupted, and stopped cleanly.
    pub const INTERRUPTED: u8 = 130;
}

/// Why a command ended without doing its work. Shown as `error: ...` and `hint: ...` lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Exit code.
    pub code: u8,
    /// What failed; already begins with `error:` when it comes with a source excerpt.
    pub error: String,
    /// What helps, one per line.
    pub hints: Vec<String>,
}

impl Failure {
    /// A failure with [`code::FAILED`].
    pub fn failed(error: impl Into<String>) -> Failure {
        Failure { code: code::FAILED, error: error.into(), hints: Vec::new() }
    }

    /// A failure with [`code::USAGE`].
    pub fn usage(error: impl Into<String>) -> Failure {
        Failure { code: code::USAGE, error: error.into(), hints: Vec::new() }
    }

    /// A failure with [`code::HOST`].
    pub fn host(error: impl Into<String>) -> Failure {
        Failure { code: code::HOST, error: error.into(), hints: Vec::new() }
    }

    /// The same with one more hint; an empty one adds nothing.
    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        let hint = hint.into();
        if !hint.is_empty() {
            self.hints.push(hint);
        }
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = self.error.trim_end();
        if error.starts_with("error:") {
            f.write_str(error)?;
        } else {
            write!(f, "error: {error}")?;
        }
        self.hints.iter().try_for_each(|hint| write!(f, "\nhint: {hint}"))
    }
}

impl From<Diagnostics> for Failure {
    fn from(diagnostic: Diagnostics) -> Failure {
        Failure::usage(diagnostic.to_string())
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Failure {
        Failure::usage(error.error).hint(error.hint)
    }
}

impl From<LinkError> for Failure {
    fn from(error: LinkError) -> Failure {
        Failure::host(error.error).hint(error.hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_prints_its_error_once_and_every_hint() {
        let failure = Failure::usage("nothing to stop").hint("`rankdeck ps`").hint("").hint("`--hosts FILE`");
        assert_eq!(failure.to_string(), "error: nothing to stop\nhint: `rankdeck ps`\nhint: `--hosts FILE`");
        assert_eq!(Failure::usage("error: bad key\n --> a:1:2\n").to_string(), "error: bad key\n --> a:1:2");
    }
}
