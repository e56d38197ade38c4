//! What the user wrote: hosts, experiments; errors with source spans.
//!
//! A file is parsed into a [`document`] that remembers places, overridden (`--set`), compared with the
//! [schema](rankdeck_types::schema), checked key against key,
//! and only then read by serde into [`Host`](rankdeck_types::host::Host) and
//! [`Experiment`](rankdeck_types::experiment::Experiment).
//! Invariants:
//! - Nothing that a user writes makes this module panic; it ends in a value or in [`Diagnostics`].
//! - All mistakes of a file are reported at once, each with its line, except syntax errors, which hide the
//!   rest.
//! - The resolved experiment, written as TOML, loads again and is equal.

mod aliases;
mod bases;
pub mod check;
pub mod diagnostic;
pub mod document;
mod draft;
mod hidden;
pub mod hosts;
mod ids;
mod load;
pub mod locate;
mod mistakes;
mod overrides;
pub mod slurm;
mod source;
mod suggest;
mod syntax;
pub mod ui;

pub use diagnostic::{Diagnostic, Diagnostics};
pub use draft::load_draft;
pub use load::{change_experiment, load_experiment};
pub use source::{ExperimentSource, HostsSource, load_hosts};
