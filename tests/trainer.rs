//! The built-in trainer as a program: environments against Gymnasium, learning, groups of ranks, stopping, resuming.
//!
//! Needs libtorch. Comparisons with Python packages run when `python3` (or `RANKDECK_TEST_PYTHON`) has them, and say so
//! when it has not.
// A test fails by panicking.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "trainer/classic.rs"]
mod classic;
#[path = "trainer/equality.rs"]
mod equality;
#[path = "trainer/group.rs"]
mod group;
#[path = "trainer/harness.rs"]
mod harness;
#[cfg(feature = "inject")]
#[path = "trainer/inject.rs"]
mod inject;
#[path = "trainer/learning.rs"]
mod learning;
#[path = "trainer/off_policy.rs"]
mod off_policy;
#[path = "trainer/phases.rs"]
mod phases;
#[path = "trainer/refusals.rs"]
mod refusals;
#[path = "trainer/resuming.rs"]
mod resuming;
#[path = "trainer/weights.rs"]
mod weights;
#[path = "trainer/workers.rs"]
mod workers;
