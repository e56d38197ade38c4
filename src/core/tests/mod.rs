//! Scenarios of the whole reducer with fake agents, and properties over arbitrary events.

mod attach;
mod ending;
mod launch;
mod properties;
mod restarting;
