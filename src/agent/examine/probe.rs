//! What a host offers: cores, GPUs, the built-in trainer, libtorch.

use crate::observe::visible;
use crate::proc;
use crate::supervise::libtorch;
use rankdeck_proto::folders;
use rankdeck_types::probe::Probe;

/// Everything about this host.
pub(crate) fn probe() -> Probe {
    let here = std::env::current_dir().unwrap_or_default();
    Probe {
        hostname: proc::hostname(),
        cpu_count: proc::cpu_count(),
        gpu_count: visible::count(),
        home: folders::home().display().to_string(),
        trainer: libtorch::trainer().map(|path| path.display().to_string()),
        libtorch: libtorch::find(None, &here).ok().flatten().map(|path| path.display().to_string()),
    }
}
