//! Waits until the driver has given GPUs back after the processes on them have ended.

use crate::observe::gpu::Gpus;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long the driver may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// The GPUs among `used` that hold none of `pids` any more; empty where the driver does not tell. Blocks.
pub(crate) fn wait(gpus: &Gpus, used: &BTreeSet<u32>, pids: &BTreeSet<u32>) -> Vec<u32> {
    let begun = Instant::now();
    if used.is_empty() || gpus.latest().is_empty() {
        return Vec::new();
    }
    loop {
        let seen = gpus.since(begun).unwrap_or_default();
        let free: Vec<u32> = seen
            .iter()
            .filter(|gpu| {
                used.contains(&gpu.index)
                    && !gpu.lost
                    && !gpu.processes.iter().any(|(pid, _)| pids.contains(pid))
            })
            .map(|gpu| gpu.index)
            .collect();
        if free.len() == used.len() || begun.elapsed() >= PATIENCE {
            return free;
        }
        std::thread::sleep(PAUSE);
    }
}
