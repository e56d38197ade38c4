//! How a command fails: an error with its hint, and an exit code.

use rankdeck_config::Diagnostics;
use rankdeck_types::error::HintedError;
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
    /// What failed and what helps. The error already begins with `error:` when it comes with a source
    /// excerpt; each line of the hint is a hint of its own.
    pub cause: HintedError,
}

impl Failure {
    /// A failure with [`code::FAILED`].
    pub fn failed(error: impl Into<String>) -> Failure {
        Failure { code: code::FAILED, cause: HintedError::new(error, "") }
    }

    /// A failure with [`code::USAGE`].
    pub fn usage(error: impl Into<String>) -> Failure {
        Failure { code: code::USAGE, cause: HintedError::new(error, "") }
    }

    /// A failure with [`code::HOST`].
    pub fn host(error: impl Into<String>) -> Failure {
        Failure { code: code::HOST, cause: HintedError::new(error, "") }
    }

    /// The system gave the console no thread or no event loop.
    pub fn no_thread(error: std::io::Error) -> Failure {
        Failure::failed(format!("failed to start a thread of the console: {error}"))
            .hint("`ulimit -u` and `ulimit -n` show the limits on processes and open files")
    }

    /// The same with one more hint; an empty one adds nothing.
    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        let hint = hint.into();
        let all = &mut self.cause.hint;
        if !all.is_empty() && !hint.is_empty() {
            all.push('\n');
        }
        all.push_str(&hint);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = self.cause.error.trim_end();
        if error.starts_with("error:") {
            f.write_str(error)?;
        } else {
            write!(f, "error: {error}")?;
        }
        self.cause.hint.lines().try_for_each(|hint| write!(f, "\nhint: {hint}"))
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

impl From<HintedError> for Failure {
    fn from(error: HintedError) -> Failure {
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
