//! The built-in trainer by its library: collectives between ranks, networks compared with PyTorch's, ranks that
//! learn what one learns; and runs of the program whose checkpoints are read: stopping, saving, resuming.
//!
//! Needs libtorch. Comparisons with Python packages need an interpreter that has them:
//! `RANKDECK_TEST_PYTHON`, or python3.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_macros,
    reason = "a failing test should be loud"
)]

rankdeck_testkit::end_without_destructors!();

mod distributed;
mod double_buffer;
mod equality;
mod gpu_faults;
#[path = "../trainer/harness.rs"]
mod harness;
mod invariant;
mod leaving;
mod live;
mod off_policy;
mod phases;
mod resuming;
#[cfg(feature = "inject")]
mod saving;
mod stopping;
mod weights;
