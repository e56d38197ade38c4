//! What a link finds on a host before the agent starts.

use serde::{Deserialize, Serialize};

/// What a link learnt about a host.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Probe {
    /// `uname -n`.
    pub hostname: String,
    /// Online cores.
    pub cpu_count: u32,
    /// NVIDIA GPUs the driver shows.
    pub gpu_count: u32,
    /// Absolute home folder.
    pub home: String,
    /// Absolute path of the deployed `rankdeck-trainer`, when there is one.
    pub trainer: Option<String>,
    /// Absolute path of a usable libtorch (folder with `lib/libtorch_cpu.so`), when there is one.
    pub libtorch: Option<String>,
}
