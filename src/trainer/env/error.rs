//! Why environments cannot be made, stepped or restored.

use super::classic;

/// What failed, in which environment. The rank is added by whoever tells the user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// No such id.
    #[error("unknown environment {id:?}; known in Rust: {known}")]
    Unknown {
        /// As configured.
        id: String,
        /// What there is.
        known: String,
    },
    /// A saved state of another kind.
    #[error("saved environment state has {found} words instead of {expected}")]
    State {
        /// Words of this environment.
        expected: usize,
        /// Words found.
        found: usize,
    },
    /// Actions that do not belong to the environment.
    #[error("{id}: {what}")]
    Actions {
        /// As configured.
        id: String,
        /// What is wrong with them.
        what: String,
    },
}

impl EnvError {
    pub(crate) fn unknown(id: &str) -> EnvError {
        EnvError::Unknown { id: id.into(), known: classic::KNOWN.join(", ") }
    }

    /// What helps; may be empty.
    pub fn hint(&self) -> String {
        match self {
            EnvError::Unknown { .. } => "change env.id".into(),
            EnvError::State { .. } => {
                "the checkpoint belongs to another environment; start without --resume".into()
            }
            EnvError::Actions { .. } => "the policy does not fit the environment's action space".into(),
        }
    }

    /// A mistake in the configuration (exit code 2) rather than a failure (1).
    pub fn is_usage(&self) -> bool {
        matches!(self, EnvError::Unknown { .. } | EnvError::State { .. })
    }
}
