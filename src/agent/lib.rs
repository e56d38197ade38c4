//! What runs on a host: supervises and observes the ranks, and serves consoles.
//!
//! One agent process per host and run, started by `rankdeck agent start`. It is detached by construction: it
//! has its own session, no terminal, and a unix socket in a private folder. Consoles come and go; the agent
//! and its ranks do not notice. Rooms, each of which uses only those below it:
//!
//! ```text
//! command     the commands after `rankdeck agent`, and the marker lines they answer with
//! serve       the loop of an agent, its consoles, its records on disk
//! examine     `agent examine` and `agent probe`: what a preflight asks about a host
//! reach       one process: its environment, a signal to it
//! fleet       `agent fleet`: gauges and runs of this host, again and again
//! entries     `agent list`, `agent sweep` and `agent traces`
//! files       files of runs: told, read, removed
//! digest      what a node's records say of its run as a whole
//! supervise   starting ranks, watching them end, stopping them and verifying that nothing is left
//! inspect     a close look at ranks on request
//! observe     gauges of the host, its ranks and GPUs, log files, metrics
//! manifest    which agent serves a node, and which processes belong to it
//! hook        Python modules that show the process groups of Python ranks
//! client      the Python module by which a program reports to its agent
//! sockets     what lies beside an agent's sockets, and goes with it
//! paths       names of files and sockets
//! containers  the program of a rank that a container's monitor started
//! proc        readers of /proc
//! timing      how long the agent waits for consoles and between samples
//! identity    which build this is
//! ```
//!
//! Invariants, besides those of the modules:
//! - Every process that an agent starts is reaped by it, and dies with it (parent-death signal,
//!   subreaper and sweep, guard).
//! - Nothing that a console, a rank, a disk or a driver does may block or end the agent's loop.
//! - Every queue is bounded; what is dropped is counted, and records are never dropped for a slow
//!   console.

pub mod client;
mod command;
mod containers;
mod digest;
mod entries;
pub mod examine;
mod files;
mod fleet;
mod hook;
mod identity;
pub mod inspect;
mod manifest;
mod observe;
mod paths;
pub mod proc;
mod reach;
mod search;
pub mod serve;
mod sockets;
mod supervise;
mod timing;
mod trouble;

use rankdeck_types::error::HintedError;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// libtorch on this machine, as its agents find it for runs in `workdir`.
pub fn libtorch(workdir: &Path) -> Result<Option<PathBuf>, HintedError> {
    supervise::libtorch::find(None, workdir)
}

/// Runs `rankdeck agent ARGS...`; `args` is what follows the word `agent`. To be called before the process
/// has a second thread.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    command::run(args)
}
