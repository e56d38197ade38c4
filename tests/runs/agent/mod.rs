//! The agent with real processes: every promise about starting, watching, stopping and dying.

mod bed;
mod consoles;
mod containers;
mod disks;
mod frames;
mod inspecting;
mod lives;
mod orphans;
mod reaching;
mod searching;
mod security;
