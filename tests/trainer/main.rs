//! The built-in trainer as a program: environments against Gymnasium, learning, groups of ranks, GPUs.
//!
//! Nothing here calls the trainer's library (`tests/library` does), so that these tests start without
//! libtorch, which takes longer to load than most of them take. The program needs libtorch. Comparisons with
//! Python packages need an interpreter that has them: `RANKDECK_TEST_PYTHON`, or python3.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_macros,
    reason = "a failing test should be loud"
)]

rankdeck_testkit::end_without_destructors!();

mod between;
mod classic;
mod gpu;
mod group;
mod harness;
#[cfg(feature = "inject")]
mod inject;
mod learning;
mod measure;
mod policies;
mod refusals;
mod shrink;
mod workers;
