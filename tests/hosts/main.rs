//! Other hosts: SSH, runs on several of them, what goes wrong there, Slurm.

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

mod beds;
mod drills;
mod examples;
mod faults;
mod fleet;
mod gpu_holders;
mod liar;
mod measuring;
mod prompts;
mod resume;
mod slurm;
mod ssh;
mod ssh_runs;
mod tutorials;
mod variables;
