//! Whole runs with real processes on this machine.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_macros,
    reason = "a test that cannot go on must fail"
)]

rankdeck_testkit::hide_gpus!();

#[path = "../support/mod.rs"]
mod support;

mod agent;
mod binding;
mod diff;
mod drills;
mod e2e;
mod gpu_faults;
mod gpu_kit;
mod gpus;
mod holders;
mod logged;
mod metrics;
mod orphans;
mod promises;
mod push;
mod reaching;
mod restarts;
mod results;
mod screen;
mod sweeps;
mod unread;
