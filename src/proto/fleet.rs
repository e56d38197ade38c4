//! Snapshots that a host streams for the fleet page: a sample of the host, users of its GPUs, its runs. The
//! host needs no run for that.

use crate::message::HostSample;
use crate::process::GpuUser;
use crate::run_entry::RunList;
use serde::{Deserialize, Serialize};

/// Marker before each [`HostSnapshot`]; the reply of the command follows at its end.
pub const SNAPSHOT_MARKER: &str = "rankdeck-fleet";
/// Largest cost of the command, as a share of one core, for samples and for lists of runs each.
pub const SHARE: f64 = 0.005;

/// State of a host at one time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostSnapshot {
    /// Sample of the host and its GPUs, without ranks.
    pub sample: HostSample,
    /// GPUs or MIG instances that are visible to this user's programs, as a plan counts them.
    pub given: Vec<GivenGpu>,
    /// Processes on its GPUs.
    pub users: Vec<GpuUser>,
    /// Runs; `None`: unchanged since they were last sent.
    pub runs: Option<RunList>,
    /// CPU time of the command so far, milliseconds.
    pub cost_ms: u64,
    /// Milliseconds until the next sample.
    pub next_ms: u64,
}

/// A GPU that a rank could use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GivenGpu {
    /// Bytes in use.
    pub memory_used: u64,
    /// Bytes in all; 0 if unknown.
    pub memory_total: u64,
    /// Compute processes on it.
    pub processes: u32,
    /// The driver does not show it.
    pub lost: bool,
}
