//! The agent with real processes: every promise about starting, watching, stopping and dying.

// Helpers of tests outside of test functions; inside, clippy.toml allows this anyway.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "agent/bed.rs"]
mod bed;
#[path = "agent/consoles.rs"]
mod consoles;
#[path = "agent/inspecting.rs"]
mod inspecting;
#[path = "agent/lives.rs"]
mod lives;
#[path = "agent/orphans.rs"]
mod orphans;
