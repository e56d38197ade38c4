//! The console by itself: command line, configuration, keys, screens, a real terminal, and the repository's own rules.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on must fail"
)]

#[path = "../support/mod.rs"]
mod support;

mod cli;
mod config;
mod documents;
mod files;
mod keys;
mod pty;
mod scenes;
mod screens;
