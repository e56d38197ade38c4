//! Loads hosts and experiments, and reports errors with source spans.
//!
//! A file is parsed into a document with spans, overridden (`--set`), compared with the
//! [schema](rankdeck_types::schema), checked key against key, and then read by serde into
//! [`Host`](rankdeck_types::host::Host) and [`Experiment`](rankdeck_types::experiment::Experiment).
//! Invariants:
//! - No input makes this crate panic: loading returns a value or [`Diagnostics`].
//! - All errors of a file are reported at once, each with its line; syntax errors hide the rest.
//! - The resolved experiment, written as TOML, loads again and is equal.

mod arguments;
mod bases;
pub mod check;
mod diagnostic;
mod document;
mod hosts;
mod launchers;
mod load;
mod overrides;
mod slurm;
mod source;
pub mod suggest;
mod syntax;
mod templates;
pub mod ui;

pub use diagnostic::{Diagnostic, Diagnostics};
pub use load::{Locator, change_experiment, load_draft, load_experiment, translation};
pub use slurm::{COMMENT as SLURM_COMMENT, OwnJob as OwnSlurmJob, own_jobs as own_slurm_jobs};
pub use slurm::{SlurmJobs, is_in_allocation};
pub use source::{ExperimentSource, HostsSource, load_hosts};
