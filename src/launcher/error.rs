//! Why the trainer is not started, or an environment not set up.

use rankdeck_envs::EnvError;
use rankdeck_types::error::HintedError;

/// What failed, what helps, and whether the user has to correct something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchError {
    /// What failed, and what helps.
    pub hinted: HintedError,
    /// A mistake in arguments, configuration or environment (exit code 2) rather than a failure (1).
    pub usage: bool,
}

impl LaunchError {
    /// Exit code 1.
    pub fn failure(error: impl Into<String>, hint: impl Into<String>) -> LaunchError {
        LaunchError { hinted: HintedError::new(error, hint), usage: false }
    }

    /// Exit code 2.
    pub fn usage(error: impl Into<String>, hint: impl Into<String>) -> LaunchError {
        LaunchError { hinted: HintedError::new(error, hint), usage: true }
    }
}

impl From<EnvError> for LaunchError {
    fn from(error: EnvError) -> LaunchError {
        let hinted = HintedError::new(error.to_string(), error.hint());
        LaunchError { hinted, usage: error.is_usage() }
    }
}
