//! The built-in trainer: process group, DDP, environments, algorithms.

pub mod env;
pub mod policy;
pub mod seeds;
