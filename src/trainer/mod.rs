//! The built-in trainer: process group, DDP, environments, algorithms.

pub mod dist;
