//! Plays a policy: evaluations within a run, `--evaluate`, and steps shown to the user.

pub(crate) mod command;
pub mod evaluate;
pub mod show;
