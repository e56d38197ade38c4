//! Why a trainer ends without success.

use super::algo::adam::AdamError;
use super::distributed::DistError;
use super::env::EnvError;
use rankdeck_types::error::HintedError;

/// What failed, what helps, and whether the user has to correct something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{hinted}")]
pub struct TrainerError {
    /// What failed, and what helps.
    pub hinted: HintedError,
    /// A mistake in arguments, environment, configuration or checkpoint (exit code 2) rather than a failure
    /// (1).
    pub usage: bool,
}

impl TrainerError {
    /// An error that ends the rank with exit code 1.
    pub fn failure(error: impl Into<String>, hint: impl Into<String>) -> TrainerError {
        TrainerError { hinted: HintedError::new(error, hint), usage: false }
    }

    /// A mistake in arguments, environment, configuration or checkpoint; exit code 2.
    pub fn usage(error: impl Into<String>, hint: impl Into<String>) -> TrainerError {
        TrainerError { hinted: HintedError::new(error, hint), usage: true }
    }

    /// What helps; may be empty.
    pub fn hint(&self) -> &str {
        &self.hinted.hint
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        if self.usage { 2 } else { 1 }
    }
}

impl From<DistError> for TrainerError {
    fn from(error: DistError) -> TrainerError {
        let hinted = HintedError::new(error.to_string(), error.hint());
        TrainerError { hinted, usage: error.is_usage() }
    }
}

impl From<tch::TchError> for TrainerError {
    fn from(error: tch::TchError) -> TrainerError {
        TrainerError::failure(format!("libtorch refused an operation: {error}"), "")
    }
}

impl From<AdamError> for TrainerError {
    fn from(error: AdamError) -> TrainerError {
        TrainerError::failure(error.to_string(), "")
    }
}

impl From<EnvError> for TrainerError {
    fn from(error: EnvError) -> TrainerError {
        let hinted = HintedError::new(error.to_string(), error.hint());
        TrainerError { hinted, usage: error.is_usage() }
    }
}
