//! rankdeck: a terminal console for multi-node PyTorch training, built for reinforcement learning.
//!
//! [`cli`] is the command line, [`app`] the event loop around the core. docs/architecture.md describes all
//! crates.

pub mod app;
pub mod cli;
