//! The console by itself: command line, configuration, keys, screens, a real terminal, and the repository's
//! own rules.

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

mod cache;
mod charts;
mod cli;
mod compare;
mod config;
mod documents;
mod escapes;
mod figures;
mod files;
mod hidden;
mod home_screens;
mod keys;
mod known;
mod linear;
mod log_search;
mod logs;
mod measuring;
mod media;
mod metrics;
mod packages;
mod palette;
mod pty;
mod restart;
mod scenes;
mod schemas;
mod screens;
mod starting;
mod wrong_inputs;
