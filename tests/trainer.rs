//! The built-in trainer as a program: environments against Gymnasium, learning, groups of ranks, stopping, resuming.
//!
//! Needs `--features trainer` and libtorch. Comparisons with Python packages run when `python3` (or `RANKDECK_TEST_PYTHON`) has them, and say so
//! when it has not.
#![cfg(feature = "trainer")]
// A test fails by panicking.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "trainer/cartpole.rs"]
mod cartpole;
#[path = "trainer/group.rs"]
mod group;
#[path = "trainer/harness.rs"]
mod harness;
#[cfg(feature = "inject")]
#[path = "trainer/inject.rs"]
mod inject;
#[path = "trainer/learning.rs"]
mod learning;
#[path = "trainer/resuming.rs"]
mod resuming;
