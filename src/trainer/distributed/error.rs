//! Errors of the process group: rank, collective, cause and hint.
//!
//! Invariant: every error names the rank that saw it; one of a collective names its number, operation and
//! tag.

use rankdeck_proto::status_page::CollectiveOp;
use rankdeck_types::words::{GPU_FULL_HINT, GPU_HINT};
use std::fmt;

/// Text for a collective that another rank did not enter in time.
pub(super) const NOT_FINISHED: &str = "not finished within";

/// What kind of failure it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DistErrorKind {
    /// Settings or arguments that cannot work; the same everywhere and always.
    Usage,
    /// The store's port is taken.
    AddressInUse,
    /// A rank did not take part in time.
    Timeout,
    /// A connection to another rank broke or could not be made.
    Connection,
    /// The ranks do not agree on what they do.
    Mismatch,
    /// What answers, or what arrived, is not from a rank of this run.
    Forged,
    /// This host cannot do it (no driver, no library).
    Unsupported,
    /// The GPU does not work any more, or its driver.
    Device,
    /// The GPU has no memory left.
    Memory,
    /// Anything else that libtorch, NCCL or the kernel reported.
    Failed,
}

/// When it went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DistPhase {
    /// Before the group existed.
    Rendezvous,
    Collective,
    /// While leaving.
    Teardown,
}

/// A collective, as errors name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectiveName {
    /// Its number on this rank, from 1; 0 when it was refused before it began.
    pub seq: u64,
    /// The operation.
    pub op: CollectiveOp,
    /// The caller's tag.
    pub tag: String,
}

/// A failure of the process group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DistError {
    /// The kind of failure.
    pub kind: DistErrorKind,
    /// The phase in which it happened.
    pub phase: DistPhase,
    /// The rank that saw it.
    pub rank: u32,
    /// Ranks in the group; 0 when there is none (loading CUDA).
    pub world_size: u32,
    /// The collective, in that phase.
    pub collective: Option<Box<CollectiveName>>,
    /// What failed.
    pub(crate) detail: String,
    hint: Option<String>,
}

impl DistError {
    /// An error without a collective.
    pub(super) fn new(
        kind: DistErrorKind,
        phase: DistPhase,
        (rank, world_size): (u32, u32),
        detail: impl Into<String>,
    ) -> DistError {
        DistError { kind, phase, rank, world_size, collective: None, detail: detail.into(), hint: None }
    }

    #[cfg(test)]
    pub(crate) fn some(kind: DistErrorKind, phase: DistPhase, detail: &str) -> DistError {
        DistError::new(kind, phase, (0, 2), detail)
    }

    /// The same error, of this collective.
    pub(super) fn in_collective(mut self, seq: u64, op: CollectiveOp, tag: &str) -> DistError {
        self.collective = Some(Box::new(CollectiveName { seq, op, tag: tag.into() }));
        self
    }

    /// The same error, seen by this (rank, world size) of the run rather than of a group of some of its
    /// ranks.
    pub(super) fn with_identity(self, (rank, world_size): (u32, u32)) -> DistError {
        DistError { rank, world_size, ..self }
    }

    /// The same error with a hint of its own.
    pub(super) fn with_hint(mut self, hint: impl Into<String>) -> DistError {
        self.hint = Some(hint.into());
        self
    }

    /// A mistake of the user rather than a failure: exit code 2 rather than 1.
    pub(crate) fn is_usage(&self) -> bool {
        matches!(self.kind, DistErrorKind::Usage | DistErrorKind::Unsupported)
    }

    /// What helps: a key, a command, or the log to check.
    pub fn hint(&self) -> &str {
        if let Some(hint) = &self.hint {
            return hint;
        }
        match (self.kind, self.phase) {
            (DistErrorKind::Usage, _) => "correct the settings named in the message",
            (DistErrorKind::AddressInUse, _) => {
                "choose another MASTER_PORT, or stop the process that uses this one (`ss -ltnp`)"
            }
            (DistErrorKind::Timeout, DistPhase::Rendezvous) => {
                "check the logs of the missing ranks, MASTER_ADDR, MASTER_PORT, firewalls, and `interface` in hosts.toml"
            }
            (DistErrorKind::Timeout, DistPhase::Collective) => {
                "find the rank that has not entered this collective with `rankdeck attach`; if it is only slow, raise distributed.timeout_s"
            }
            (DistErrorKind::Timeout, DistPhase::Teardown) => {
                "check the logs of the other ranks: they may have ended already"
            }
            (DistErrorKind::Connection, DistPhase::Rendezvous) => {
                "check that the hosts can reach each other on all ports; set `interface` in hosts.toml to their common network"
            }
            (DistErrorKind::Connection, _) => "check the log of the rank that failed first",
            (DistErrorKind::Mismatch, _) => {
                "run the same build and experiment on all ranks; set RANKDECK_CHECK_COLLECTIVES=1 to find the first difference"
            }
            (DistErrorKind::Forged, DistPhase::Rendezvous) => {
                "set the same RANKDECK_SECRET on all ranks, or on none; if another program listens there, choose another MASTER_PORT"
            }
            (DistErrorKind::Forged, _) => {
                "traffic between the hosts is modified: choose a trusted network with `interface` in hosts.toml"
            }
            (DistErrorKind::Unsupported, _) => "use backend = \"tcp\"",
            (DistErrorKind::Device, _) => GPU_HINT,
            (DistErrorKind::Memory, _) => GPU_FULL_HINT,
            (DistErrorKind::Failed, _) => "check the rank's log: the message comes from the library",
        }
    }
}

impl fmt::Display for DistError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.world_size == 0 {
            return f.write_str(&self.detail);
        }
        write!(f, "rank {} of {}: ", self.rank, self.world_size)?;
        match (&self.collective, self.phase) {
            (Some(name), _) if name.seq > 0 => {
                write!(f, "collective {}, {} \"{}\": ", name.seq, name.op.name(), name.tag)?;
            }
            (Some(name), _) => write!(f, "{} \"{}\": ", name.op.name(), name.tag)?,
            (None, DistPhase::Rendezvous) => f.write_str("rendezvous: ")?,
            (None, DistPhase::Collective) => {}
            (None, DistPhase::Teardown) => f.write_str("teardown: ")?,
        }
        f.write_str(&self.detail)
    }
}

impl std::error::Error for DistError {}

/// A library's failure, before the group adds rank, phase and collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BackendError {
    pub kind: DistErrorKind,
    pub text: String,
    /// Hint that replaces the default of the kind.
    pub hint: Option<String>,
}

impl BackendError {
    pub(super) fn new(kind: DistErrorKind, text: impl Into<String>) -> BackendError {
        BackendError { kind, text: text.into(), hint: None }
    }

    /// The form in the store: one letter for the kind, then the text.
    pub(super) fn to_wire(&self) -> String {
        let letter = match self.kind {
            DistErrorKind::Usage => 'U',
            DistErrorKind::Timeout => 'T',
            DistErrorKind::Unsupported => 'N',
            _ => 'F',
        };
        format!("{letter}{}", self.text)
    }

    pub(super) fn from_wire(value: &str) -> BackendError {
        let mut letters = value.chars();
        let kind = match letters.next() {
            Some('U') => DistErrorKind::Usage,
            Some('T') => DistErrorKind::Timeout,
            Some('N') => DistErrorKind::Unsupported,
            _ => DistErrorKind::Failed,
        };
        BackendError::new(kind, letters.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_rank_collective_and_tag() {
        let error = DistError::new(DistErrorKind::Timeout, DistPhase::Collective, (1, 4), "timed out")
            .in_collective(17, CollectiveOp::AllReduce, "grad");
        assert_eq!(error.to_string(), "rank 1 of 4: collective 17, all_reduce \"grad\": timed out");
        assert!(error.hint().contains("distributed.timeout_s"));
        assert!(!error.is_usage());
    }

    #[test]
    fn own_hint_replaces_the_default() {
        let error =
            DistError::new(DistErrorKind::Unsupported, DistPhase::Rendezvous, (0, 2), "no NVIDIA driver");
        assert_eq!(error.hint(), "use backend = \"tcp\"");
        assert_eq!(error.with_hint("install it").hint(), "install it");
    }
}
