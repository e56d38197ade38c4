//! rankdeck: a terminal console for multi-node data-parallel reinforcement learning.

pub mod agent;
pub mod cli;
pub mod config;
pub mod core;
pub mod link;
pub mod proto;
pub mod shell;
pub mod ssh;
#[cfg(feature = "trainer")]
pub mod trainer;
pub mod ui;
