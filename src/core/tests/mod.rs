//! Scenarios of the whole reducer with fake agents, and properties over arbitrary events.

mod allocation;
mod attach;
mod ending;
mod failing;
mod figures;
mod finding;
mod history;
mod launch;
mod media;
mod memory;
mod ownership;
mod properties;
mod reaching;
mod restarting;
mod stopping;
mod watching;
