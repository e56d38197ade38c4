//! Why a trainer ends without success.

use super::algo::adam::AdamError;
use super::distributed::DistError;
use super::env::EnvError;

/// What failed, what helps, and whether the user has to correct something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TrainerError {
    /// What failed.
    pub message: String,
    /// What helps; may be empty.
    pub hint: String,
    /// A mistake in arguments, environment, configuration or checkpoint (exit code 2) rather than a failure
    /// (1).
    pub usage: bool,
}

impl TrainerError {
    /// An error that ends the rank with exit code 1.
    pub fn failure(message: impl Into<String>, hint: impl Into<String>) -> TrainerError {
        TrainerError { message: message.into(), hint: hint.into(), usage: false }
    }

    /// A mistake in arguments, environment, configuration or checkpoint; exit code 2.
    pub fn usage(message: impl Into<String>, hint: impl Into<String>) -> TrainerError {
        TrainerError { message: message.into(), hint: hint.into(), usage: true }
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        if self.usage { 2 } else { 1 }
    }
}

impl From<DistError> for TrainerError {
    fn from(error: DistError) -> TrainerError {
        TrainerError { message: error.to_string(), hint: error.hint().into(), usage: error.is_usage() }
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
        TrainerError { message: error.to_string(), hint: error.hint(), usage: error.is_usage() }
    }
}
