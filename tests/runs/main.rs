//! Whole runs with real processes on this machine.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_macros,
    reason = "a test that fails should say so loudly"
)]

rankdeck_testkit::hide_gpus!();

#[path = "../support/mod.rs"]
mod support;

mod again;
mod agent;
mod e2e;
mod gpu_faults;
mod gpu_kit;
mod gpu_preflight;
mod gpus;
mod joining;
mod logged;
mod metrics;
mod orphans;
mod push;
mod reaching;
mod restarts;
mod results;
mod searching;
mod sweeps;
mod watching;
