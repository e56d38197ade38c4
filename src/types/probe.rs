//! Facts about a host before the agent starts.

use serde::{Deserialize, Serialize};

/// Facts about a host.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Probe {
    /// `uname -n`.
    pub hostname: String,
    /// Online cores.
    pub cpu_count: u32,
    /// NVIDIA GPUs that the driver shows.
    pub gpu_count: u32,
    /// Absolute home directory.
    pub home: String,
    /// Absolute path of the deployed `rankdeck-trainer`, if any.
    pub trainer: Option<String>,
    /// Absolute path of a usable libtorch (directory with `lib/libtorch_cpu.so`), if any.
    pub libtorch: Option<String>,
}
