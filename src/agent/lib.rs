//! What runs on a host: supervises ranks, samples, relays, proves the stop.
//!
//! Owner: one agent process per host and run, started by `rankdeck agent start`, detached by construction: own session, no terminal, a unix socket in a
//! private folder. Consoles come and go; the agent and its ranks do not notice. Code map:
//!
//! ```text
//! command    what was typed after `rankdeck agent`, marker lines        daemon     finds or starts the agent of a run
//! serve      the loop of the agent: wires everything below together     console    one connection of one console
//! duty       orders, launches, the clock, the end of an agent           aftermath  reaping, last words, leftovers, the proof
//! supervise  pure: the life of a generation, stop stages, the proof     spawn      starts ranks from one long-lived thread
//! sweep      finds and ends every process of a run                      groups     sessions, signals, bonds
//! cgroup     a control group of the ranks' own, where one can be made
//! guard      kills the run when its agent dies or is stopped            proc       readers of /proc
//! site       folders, experiment, libtorch of a launch                  spool      durable records, gap-free numbers
//! manifest   who serves what, for others to find
//! events     what ranks say on the event socket                         logs       tails the ranks' log files
//! metrics    values from the output and the event files of programs that know nothing of rankdeck
//! sample     gauges of the host, its ranks and their status pages       gpu        NVML
//! inspect    a close look at ranks on request                       hook       shows the process groups of Python ranks
//! entries    `agent list`, `agent sweep`                                probe      `agent probe`, libtorch on the host
//! examine    `agent examine`: what a preflight asks    pack       folders as one file, by content
//! paths      names of files and sockets                                 relay      `agent relay`
//! family     the processes of one rank between two looks                port       the port where ranks meet
//! ```
//!
//! Invariants, besides those of the modules:
//! - AGENT-1: every process that an agent starts is reaped by it, and dies with it (parent-death signal, subreaper and sweep, guard).
//! - AGENT-2: nothing that a console, a rank, a disk or a driver does may block or end the agent's loop.
//! - AGENT-3: every queue is bounded; what is dropped is counted, and records are never dropped for a slow console.

mod aftermath;
pub mod cgroup;
pub mod command;
pub mod console;
pub mod daemon;
mod duty;
pub mod entries;
pub mod events;
pub mod examine;
pub mod family;
pub mod gpu;
pub mod groups;
pub mod guard;
pub mod hook;
pub mod inspect;
pub mod logs;
pub mod manifest;
pub mod metrics;
mod oom;
pub mod paths;
pub mod port;
pub mod probe;
pub mod proc;
pub mod relay;
pub mod sample;
pub mod serve;
pub mod site;
pub mod spawn;
pub mod spool;
pub mod supervise;
pub mod sweep;
mod wire;

pub use entries::RunEntry;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

pub use rankdeck_types::error::HintedError as Failure;

/// How long the agent waits for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// An idle agent without a console ends after this.
    pub linger: Duration,
    /// Neighbours of a failed rank are stopped after this when no console gives orders.
    pub unattended: Duration,
    /// A console that used to ping and says nothing for this long does not count as attached.
    pub silent: Duration,
    /// Between two samples of the host and its ranks.
    pub sample: Duration,
    /// The same while every rank's status page moves.
    pub calm_sample: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            linger: Duration::from_secs(60),
            unattended: Duration::from_secs(15),
            silent: Duration::from_secs(15),
            sample: Duration::from_millis(250),
            calm_sample: Duration::from_millis(500),
        }
    }
}

impl Timing {
    /// The defaults, changed by `RANKDECK_AGENT_TIMING="linger=2,unattended=1"` (seconds), which is there for tests.
    pub fn from_environment() -> Timing {
        let mut timing = Timing::default();
        let text = std::env::var("RANKDECK_AGENT_TIMING").unwrap_or_default();
        for (name, value) in text.split(',').filter_map(|pair| pair.split_once('=')) {
            let Some(time) = value.trim().parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok())
            else {
                continue;
            };
            match name.trim() {
                "linger" => timing.linger = time,
                "unattended" => timing.unattended = time,
                "silent" => timing.silent = time,
                "sample" => (timing.sample, timing.calm_sample) = (time, time),
                _ => {}
            }
        }
        timing
    }
}

/// Runs `rankdeck agent ARGS...`; `args` is what follows the word `agent`. To be called before the process has a second thread.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    command::run(args)
}

/// Crate version and content hash of the running executable, as `hello` tells it.
pub fn build() -> String {
    use sha2::{Digest, Sha256};
    let mut hash = Sha256::new();
    let hashed =
        std::fs::File::open("/proc/self/exe").and_then(|mut file| std::io::copy(&mut file, &mut hash));
    match hashed {
        Ok(_) => {
            let digest: String = hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
            format!("{}+{digest}", env!("CARGO_PKG_VERSION"))
        }
        Err(_) => env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// Seconds since the Unix epoch.
pub fn wall_time() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}
