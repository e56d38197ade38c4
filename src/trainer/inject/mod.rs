//! Fault injection for the fault laboratory (cargo feature `inject`).
//!
//! Without the feature every hook is an empty function.
//!
//! `--inject FAULT[=VALUE]@RANK:STEP` (or the variable `TRAINER_INJECT`, several separated by commas) hits
//! rank RANK (`all` for every rank) once STEP iterations are complete. `injection::InjectedKind` lists the
//! faults and where they happen.
//!
//! Invariants:
//! - A build without the feature knows no fault: the flag is refused and the variable is not read.
//! - A fault happens only on the ranks it names, and once, except those that repeat by
//!   definition.

#[cfg(feature = "inject")]
mod injection;

use tch::Tensor;

#[cfg(feature = "inject")]
pub(crate) use injection::{arm, collective, here, is_long, order, saving, writing};

/// A place in the trainer where faults happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hook {
    /// Before the environments take a step.
    EnvStep,
    /// Before an optimizer step.
    Learn,
    /// Before rows of stored rollouts are gathered, in PPG's auxiliary phase.
    Gather,
    /// Before an episode of an evaluation.
    Episode,
    /// Before the group is left.
    Teardown,
}

/// A place in the writing of a file of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SavePoint {
    /// Nothing of it is there yet; the files before it are whole.
    BetweenFiles,
    /// The temporary file has its first bytes.
    FirstBytes,
    /// All of it is written, and not yet flushed to disk.
    BeforeSync,
    /// It is flushed, and not yet under its final name.
    BeforeRename,
}

#[cfg(feature = "inject")]
impl SavePoint {
    /// By the name that a fault has for it.
    pub(crate) fn of(name: &str) -> Option<SavePoint> {
        match name {
            "first-bytes" => Some(SavePoint::FirstBytes),
            "before-sync" => Some(SavePoint::BeforeSync),
            "before-rename" => Some(SavePoint::BeforeRename),
            "between-files" => Some(SavePoint::BetweenFiles),
            _ => None,
        }
    }
}

/// What becomes of a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CollectiveFate {
    /// It runs.
    Proceed,
    /// It is skipped, or another one was called in its place.
    Replaced,
}

/// The calls that faults make instead of a collective, or before it.
#[cfg_attr(not(feature = "inject"), allow(dead_code, reason = "only injected faults call them"))]
pub(crate) trait Collectives {
    /// Why a call failed.
    type Error;
    /// Ranks in the group.
    fn world_size(&self) -> u32;
    /// Sums `tensor` over the ranks.
    fn sum(&self, tensor: &mut Tensor, tag: &str) -> Result<(), Self::Error>;
    /// Copies the tensor of `root` to all ranks.
    fn broadcast(&self, tensor: &mut Tensor, root: u32, tag: &str) -> Result<(), Self::Error>;
    /// Waits for all ranks.
    fn barrier(&self, tag: &str) -> Result<(), Self::Error>;
}

#[cfg(not(feature = "inject"))]
mod nothing {
    use super::{CollectiveFate, Collectives, Hook, SavePoint};
    use crate::support::page::StatusPage;
    use rankdeck_proto::status_page::CollectiveOp;
    use std::io;
    use std::time::Duration;

    #[inline(always)]
    pub(crate) fn arm(_rank: u32, _page: &StatusPage) {}

    #[inline(always)]
    pub(crate) fn here(_hook: Hook) {}

    #[inline(always)]
    pub(crate) fn collective<G: Collectives>(
        _group: &G,
        _op: CollectiveOp,
        _tag: &str,
        _count: usize,
    ) -> Result<CollectiveFate, G::Error> {
        Ok(CollectiveFate::Proceed)
    }

    #[inline(always)]
    pub(crate) fn is_long(took: Option<Duration>, shipped: Duration) -> bool {
        took.is_none_or(|took| took >= shipped)
    }

    #[inline(always)]
    pub(crate) fn writing() -> io::Result<()> {
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn saving(_point: SavePoint) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(not(feature = "inject"))]
pub(crate) use nothing::{arm, collective, here, is_long, saving, writing};
