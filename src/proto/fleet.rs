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
    /// Processes on its GPUs.
    pub users: Vec<GpuUser>,
    /// Its runs; `None`: not asked again since they were last told.
    pub runs: Option<Vec<RunEntry>>,
    /// CPU time that the command has cost so far, milliseconds.
    pub cost_ms: u64,
    /// Milliseconds until the next look.
    pub next_ms: u64,
}
