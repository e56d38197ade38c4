//! The error that people read: what failed, and what helps.

use serde::{Deserialize, Serialize};

/// Something could not be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{error}")]
pub struct HintedError {
    /// What failed, with the host or rank that it concerns.
    pub error: String,
    /// What helps: a command, a key, a line to change. Empty when nothing is known to help.
    pub hint: String,
}

impl HintedError {
    /// An error from its two sentences.
    pub fn new(error: impl Into<String>, hint: impl Into<String>) -> HintedError {
        HintedError { error: error.into(), hint: hint.into() }
    }

    /// The error, and what to do about it, in one line.
    pub fn with_hint(&self) -> String {
        let HintedError { error, hint } = self;
        if hint.is_empty() { error.clone() } else { format!("{error}; {hint}") }
    }
}
