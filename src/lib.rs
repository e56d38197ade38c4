//! rankdeck: a terminal console for multi-node data-parallel reinforcement learning.
//!
//! The console's own rooms: the command line and the shell around the core. docs/ARCHITECTURE.md has the map
//! of all crates.

pub mod cli;
pub mod shell;
