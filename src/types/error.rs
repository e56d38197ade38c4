//! The error for users: cause and hint.

use serde::{Deserialize, Serialize};

/// An error with a hint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{error}")]
pub struct HintedError {
    /// The cause, with its host or rank.
    pub error: String,
    /// The fix: a command, a key, a line to change. May be empty.
    pub hint: String,
}

impl HintedError {
    /// Creates an error from cause and hint.
    pub fn new(error: impl Into<String>, hint: impl Into<String>) -> HintedError {
        HintedError { error: error.into(), hint: hint.into() }
    }

    /// Returns cause and hint in one line.
    pub fn with_hint(&self) -> String {
        let HintedError { error, hint } = self;
        if hint.is_empty() { error.clone() } else { format!("{error}; {hint}") }
    }
}
