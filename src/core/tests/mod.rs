//! Scenarios of the whole reducer with fake agents, and properties over arbitrary events.

mod attach;
mod ending;
mod failures;
mod launch;
mod metrics;
mod ownership;
mod placing;
mod properties;
mod queries;
mod restarting;
mod shrinking;
mod stopping;
