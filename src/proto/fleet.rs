//! What a host tells of itself, again and again, while somebody looks at all hosts: gauges, who uses its
//! GPUs, its runs. No run is needed for that.

use crate::message::HostSample;
use crate::process::GpuUser;
use crate::run_entry::RunEntry;
use serde::{Deserialize, Serialize};

/// The word before each [`HostLook`]; the answer of the command itself follows at its end.
pub const LOOK: &str = "rankdeck-fleet";
/// The most that the command may cost, as a share of one core, for looks and for lists of runs each.
pub const SHARE: f64 = 0.005;

/// A host at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostLook {
    /// Gauges of the host and its GPUs; no ranks.
    pub sample: HostSample,
    /// The GPUs, or instances of MIG, that programs of this user see there, as a plan counts them.
    pub given: Vec<GivenGpu>,
    /// Processes on its GPUs.
    pub users: Vec<GpuUser>,
    /// Its runs; `None`: not asked again since they were last told.
    pub runs: Option<Vec<RunEntry>>,
    /// CPU time that the command has cost so far, milliseconds.
    pub cost_ms: u64,
    /// Milliseconds until the next look.
    pub next_ms: u64,
}

/// What a rank could get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GivenGpu {
    /// Bytes in use.
    pub memory_used: u64,
    /// Bytes in all; 0 where the driver does not tell.
    pub memory_total: u64,
    /// Compute processes on it.
    pub processes: u32,
    /// The driver does not show it, or not any more.
    pub lost: bool,
}
