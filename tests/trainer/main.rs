//! The built-in trainer as a program: environments against Gymnasium, learning, groups of ranks, stopping,
//! resuming.
//!
//! Needs libtorch. Comparisons with Python packages need an interpreter that has them:
//! `RANKDECK_TEST_PYTHON`, or python3.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_macros,
    reason = "a test that fails should say so loudly"
)]

rankdeck_testkit::end_without_destructors!();

mod between;
mod classic;
mod distributed;
mod double_buffer;
mod equality;
mod gpu;
mod group;
mod harness;
#[cfg(feature = "inject")]
mod inject;
mod learning;
mod leaving;
mod live;
mod measure;
mod off_policy;
mod phases;
mod policies;
mod refusals;
mod resuming;
#[cfg(feature = "inject")]
mod saving;
mod stopping;
mod weights;
mod workers;
