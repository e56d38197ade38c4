//! Faults on purpose, for the fault laboratory: cargo feature `inject`; without it every hook here is an empty function.
//!
//! Owner: the trainer's one thread, which arms itself when it joins its group. `--inject FAULT[=VALUE]@RANK:STEP` (or the variable
//! `TRAINER_INJECT`, several separated by commas) strikes rank RANK (`all` for every rank) once iteration STEP (completed iterations) is under
//! way. The faults and where they strike are listed in `fault::Kind`.
//!
//! Invariants:
//! - INJECT-1: a build without the feature knows no fault: the flag is refused and the variable is not read.
//! - INJECT-2: a fault strikes only the ranks it names, and once, except those that say that they go on.

#[cfg(feature = "inject")]
mod fault;
#[cfg(feature = "inject")]
mod strike;

#[cfg(feature = "inject")]
pub use fault::Fault;
#[cfg(feature = "inject")]
pub use strike::{arm, collective, here, order, writing};

/// Where in the loop a rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Before the environments take a step.
    EnvStep,
    /// Before an optimiser step.
    Learn,
    /// Before rows of what was kept are gathered, in PPG's auxiliary phase.
    Gather,
    /// Before an episode of an evaluation.
    Episode,
    /// Before the group is left.
    Teardown,
}

/// What becomes of a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// It takes its course.
    Go,
    /// It is left out, or something else was called in its place.
    Done,
}

#[cfg(not(feature = "inject"))]
mod nothing {
    use super::super::distributed::error::DistError;
    use super::super::distributed::{Page, ProcessGroup};
    use super::{Flow, Place};
    use rankdeck_proto::status_page::Op;
    use std::io;

    /// Nothing.
    #[inline(always)]
    pub fn arm(_rank: u32, _page: &Page) {}

    /// Nothing.
    #[inline(always)]
    pub fn here(_place: Place) {}

    /// Nothing.
    #[inline(always)]
    pub fn collective(_group: &ProcessGroup, _op: Op, _tag: &str, _count: usize) -> Result<Flow, DistError> {
        Ok(Flow::Go)
    }

    /// Nothing.
    #[inline(always)]
    pub fn writing() -> io::Result<()> {
        Ok(())
    }
}

#[cfg(not(feature = "inject"))]
pub use nothing::{arm, collective, here, writing};
