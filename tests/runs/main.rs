//! Whole runs with real processes on this machine.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that fails should say so loudly"
)]

#[path = "../support/mod.rs"]
mod support;

mod agent;
mod e2e;
mod metrics;
mod orphans;
mod push;
mod restarts;
