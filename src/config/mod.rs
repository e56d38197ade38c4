//! What the user wrote: hosts, experiments; errors with source spans.

pub mod experiment;
pub mod hosts;
