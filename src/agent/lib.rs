//! The agent of a host: supervises and observes the ranks, and serves consoles.
//!
//! One agent process per host and run, started by `rankdeck agent start`. It is detached by construction: it
//! has its own session, no terminal, and a unix socket in a private directory. Consoles come and go; the agent
//! and its ranks do not notice. Rooms, each of which uses only those below it:
//!
//! ```text
//! command        the commands after `rankdeck agent`, and the marker lines of their replies
//! serve          the loop of an agent, its consoles, its records on disk
//! examine        `agent examine`, `agent probe` and `agent benchmark`: facts of a host for a preflight
//! process_query  one process: its environment, a signal to it
//! drill          `agent drill`: breaks a run that `rankdeck drill` has launched for it
//! fleet          `agent fleet`: streams gauges and runs of this host
//! holders        `agent gpus` and `agent free`: what holds GPUs, and whether it is left over
//! entries        `agent list`, `agent sweep` and `agent traces`
//! files          files of runs: listed, read, removed
//! results        what ranks write into the directory that they work in
//! known_checkpoints  the checkpoints of a run on this host
//! digest         a node's records as a summary of its run
//! placement      checkpoints that a generation resumes from: described, read, copied
//! saved_file     whether a checkpoint is whole
//! known_checkpoints  the checkpoints of a run, as a node's records have them
//! search         searches the logs of ranks
//! supervise      starts ranks, stops them and verifies that nothing is left
//! inspect        inspects ranks on request
//! observe        gauges of the host, its ranks and GPUs, log files, metrics
//! notify         notifications by a command or a webhook; the console uses it, too
//! manifest       the agent that serves a node, and its processes
//! hook           Python modules that report the process groups of Python ranks
//! client         the Python module by which a program reports to its agent
//! paths          names of files and sockets, and the removal of sockets
//! program        the processes of a rank that work, those that only wait for them, and programs in containers
//! proc           readers of /proc
//! open_files     the limit of open files, and the reserve for a stop
//! timing         timeouts and sampling intervals
//! identity       the version and build of this executable
//! transient_failure  reports a repeating failure once
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
mod copied_files;
mod digest;
mod drill;
mod entries;
pub mod examine;
mod files;
mod fleet;
mod holders;
mod hook;
mod identity;
pub mod inspect;
mod known_checkpoints;
mod manifest;
pub mod notify;
mod observe;
mod open_files;
mod other_runs;
mod paths;
mod placement;
pub mod proc;
mod process_query;
mod program;
mod results;
mod saved_file;
mod search;
pub mod serve;
mod supervise;
mod timing;
mod topology;
mod transient_failure;
mod writers;

use rankdeck_types::error::HintedError;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// libtorch on this machine, as its agents find it, but in no directory of a run.
pub fn libtorch() -> Result<Option<PathBuf>, HintedError> {
    supervise::libtorch::search(None)
}

/// Returns the live run of this name whose ranks work in `folder` itself, not in a copy. `workdir`: the directory of
/// its runs on this machine.
pub fn live_run_in(workdir: &Path, name: &str, folder: &Path) -> Option<String> {
    let folder = folder.canonicalize().ok()?;
    let works_here = |paths: &paths::RunPaths| {
        results::work(paths).is_some_and(|work| work.in_place && work.folder == folder)
    };
    let (nodes, _) = entries::nodes(workdir, None);
    let mut live = nodes.into_iter().filter(|(paths, manifest)| {
        manifest.name == name && manifest.running && manifest.agent().is_some() && works_here(paths)
    });
    live.next().map(|(_, manifest)| manifest.run)
}

/// Runs `rankdeck agent ARGS...`; `args` is what follows the word `agent`. To be called before the process
/// has a second thread.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    command::run(args)
}
