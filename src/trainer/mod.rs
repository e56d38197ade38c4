//! The built-in trainer: process group, DDP, environments, algorithms.

pub mod algo;
pub mod env;
pub mod policy;
pub mod seeds;
