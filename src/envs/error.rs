//! Errors of making, stepping and restoring environments.

use super::classic;
use rankdeck_types::error::HintedError;

/// What failed, in which environment. The caller adds the rank.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// The id is neither built in nor marked as Python's.
    #[error("unknown RL environment {id:?}; built in: {known}")]
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
    /// Options that do not belong to the environment.
    #[error("env.{key} applies to Atari games only, and {id} is not one")]
    Option {
        /// As configured.
        id: String,
        key: &'static str,
    },
    /// An environment returned a number that is not finite.
    #[error("environment {env} ({id}) returned {what} in step {step} of its episode")]
    NotFinite {
        /// As configured.
        id: String,
        /// Its index over all ranks.
        env: u32,
        /// The step, from 1; 1 for a reset.
        step: u64,
        /// The number and where it is.
        what: String,
    },
    /// An environment's mask allows no action.
    #[error("environment {env} ({id}) allows no action{} in step {step} of its episode", of_part(*part))]
    NoAction {
        /// As configured.
        id: String,
        /// Its index over all ranks.
        env: u32,
        /// The step, from 1.
        step: u64,
        /// The part of an action of several parts, from 0.
        part: Option<usize>,
    },
    /// A stop was requested while the Python worker started.
    #[error("environments not started: stop requested")]
    Abandoned,
    /// The Python worker could not do it, died or did not answer.
    #[error("environment {id}: {error}")]
    Worker {
        /// As configured.
        id: String,
        /// What failed, in one line, and what helps.
        error: HintedError,
        /// Python's traceback or the worker's stacks, lines; may be empty. The rank's log has them too.
        traceback: String,
        /// A mistake in the configuration or the host's set-up.
        usage: bool,
    },
}

fn of_part(part: Option<usize>) -> String {
    part.map_or_else(String::new, |part| format!(" of part {part}"))
}

impl EnvError {
    pub(crate) fn unknown(id: &str) -> EnvError {
        EnvError::Unknown { id: id.into(), known: classic::ids().join(", ") }
    }

    /// What helps; may be empty.
    pub fn hint(&self) -> String {
        match self {
            EnvError::Unknown { .. } => {
                "change env.id, or set env.worker = \"python\" for a Gymnasium environment".into()
            }
            EnvError::State { .. } => {
                "start without --resume: the checkpoint belongs to another RL environment".into()
            }
            EnvError::Option { key, .. } => format!("remove env.{key}"),
            EnvError::Abandoned => String::new(),
            EnvError::Worker { error, .. } => error.hint.clone(),
            EnvError::NotFinite { .. } => {
                "check what this environment returns there; other ranks fail only because this one ends"
                    .into()
            }
            EnvError::NoAction { .. } => {
                "return a mask with at least one 1 for each part of the action, or end the episode before"
                    .into()
            }
            EnvError::Actions { .. } => "the policy does not fit the environment's action space".into(),
        }
    }

    /// A mistake in the configuration (exit code 2) rather than a failure (1).
    pub fn is_usage(&self) -> bool {
        match self {
            EnvError::Unknown { .. } | EnvError::State { .. } | EnvError::Option { .. } => true,
            EnvError::Worker { usage, .. } => *usage,
            EnvError::Actions { .. }
            | EnvError::Abandoned
            | EnvError::NotFinite { .. }
            | EnvError::NoAction { .. } => false,
        }
    }
}
