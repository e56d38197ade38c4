//! Starts a rank: its identity, settings and device, `--spawn`, and what ends it in an emergency.

pub mod identity;
pub(crate) mod last_resort;
pub mod setup;
pub(crate) mod spawn;
