//! The agent with real processes: every promise about starting, watching, stopping and dying.

mod bed;
mod consoles;
mod containers;
mod inspecting;
mod limits;
mod lives;
mod orphans;
mod reaching;
mod security;
mod shrinking;
mod stopping;
