//! Algorithms: what is computed from a rollout, and the optimiser.

pub mod adam;
pub mod gae;
pub mod ppo;
