//! Other hosts: SSH, runs on several of them, what goes wrong there, Slurm.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that fails should say so loudly"
)]

#[path = "../support/mod.rs"]
mod support;

mod faults;
mod prompts;
mod slurm;
mod ssh;
mod ssh_runs;
