//! Scenarios of the whole reducer with fake agents, and properties over arbitrary events.

mod allocation;
mod attach;
mod ending;
mod figures;
mod history;
mod launch;
mod ownership;
mod properties;
mod restarting;
mod stopping;
mod watching;
