//! `agent fleet`: streams samples and runs of this host for the fleet page. No run
//! is needed, and nothing of a run is touched.
//!
//! Owner: one console, for as long as it reads: a line that cannot be written ends the command. Its cost is
//! bounded by [`SNAPSHOT_SHARE`]: after a sample, and after a list of runs, it pauses in proportion.

use crate::entries;
use crate::observe::gpu::{GpuHistory, GpuUsers, GpuWatch, VisibleGpu, visible_gpus};
use crate::observe::nvml::{self, Shares};
use crate::observe::sample::Sampler;
use nvml_wrapper::Nvml;
use rankdeck_proto::message::GpuSample;
use rankdeck_proto::run_entry::{GivenGpu, HostSnapshot, SNAPSHOT_MARKER, SNAPSHOT_SHARE};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::Generation;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Least interval between two samples.
const INTERVAL: Duration = Duration::from_secs(2);
/// Before the first one.
const FIRST: Duration = Duration::from_millis(200);
/// Between two lists of runs, at least.
const LISTS: Duration = Duration::from_secs(4);
/// Between two of either, at most.
const LONGEST: Duration = Duration::from_secs(30);

/// The answer at the end.
#[derive(Debug, Serialize)]
pub(crate) struct FleetEnd {
    #[serde(rename = "looks")]
    samples: u64,
    cost_ms: u64,
}

/// Streams snapshots of this host and of the runs in `workdir`, for `within` or until the reader is gone.
pub(crate) fn stream_snapshots(workdir: &Path, within: Duration) -> Result<FleetEnd, HintedError> {
    let begun = Instant::now();
    let nvml = nvml::load();
    let mut host = HostSampler::default();
    let (mut samples, mut list_at) = (0, begun);
    // The use of CPUs is a difference.
    host.sampler.start();
    std::thread::sleep(FIRST);
    loop {
        let before = cpu_time();
        let mut snapshot = host.sample(nvml.as_ref());
        let sampled = cpu_time();
        if Instant::now() >= list_at {
            snapshot.runs = Some(entries::list(workdir));
            list_at = Instant::now() + pause(cpu_time().saturating_sub(sampled), LISTS);
        }
        let pause = pause(sampled.saturating_sub(before), INTERVAL);
        (snapshot.cost_ms, snapshot.next_ms) = (cpu_time().as_millis() as u64, pause.as_millis() as u64);
        samples += 1;
        let ending = begun.elapsed() + pause >= within;
        if !write(&snapshot) || ending {
            return Ok(FleetEnd { samples, cost_ms: snapshot.cost_ms });
        }
        std::thread::sleep(pause);
    }
}

/// How long to rest after something that cost so much.
fn pause(cost: Duration, least: Duration) -> Duration {
    cost.div_f64(SNAPSHOT_SHARE).clamp(least, LONGEST)
}

/// Writes a snapshot; `false` when the reader is gone.
fn write(snapshot: &HostSnapshot) -> bool {
    let Ok(json) = serde_json::to_string(snapshot) else { return false };
    let mut output = std::io::stdout().lock();
    writeln!(output, "{SNAPSHOT_MARKER} {json}").and_then(|()| output.flush()).is_ok()
}

/// CPU time of this process so far.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

#[derive(Default)]
struct HostSampler {
    sampler: Sampler,
    gpus: GpuHistory,
    shares: Shares,
    users: GpuUsers,
}

impl HostSampler {
    fn sample(&mut self, nvml: Option<&Nvml>) -> HostSnapshot {
        let mut sample = self.sampler.sample(Generation::default(), &[], &GpuWatch::default());
        let seen = nvml.map(|nvml| nvml::sample(nvml, &mut self.shares)).unwrap_or_default();
        // A plan counts what the driver shows now.
        let given = visible_gpus(&seen).iter().map(|given| offer(given.as_ref(), &seen)).collect();
        sample.gpus = self.gpus.complete(seen);
        let users = self.users.sample(&sample.gpus, &BTreeSet::new());
        HostSnapshot { sample, given, users, ..HostSnapshot::default() }
    }
}

/// What a rank would get; `None` stands for an instance that the driver does not show.
fn offer(given: Option<&VisibleGpu>, all: &[GpuSample]) -> GivenGpu {
    let Some((given, gpu)) = given.and_then(|given| Some((given, given.gpu(all)?))) else {
        return GivenGpu { lost: true, ..GivenGpu::default() };
    };
    let (memory_used, memory_total, processes) = match given.instance(gpu) {
        Some(part) => (part.memory_used, part.memory_total, part.processes.len()),
        None => (gpu.memory_used, gpu.memory_total, gpu.processes.len()),
    };
    GivenGpu { memory_used, memory_total, processes: processes as u32, lost: gpu.lost }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_keeps_the_share_of_a_core() {
        assert_eq!(pause(Duration::from_millis(1), INTERVAL), INTERVAL);
        assert_eq!(pause(Duration::from_millis(20), INTERVAL), Duration::from_secs(4));
        assert_eq!(pause(Duration::from_secs(9), INTERVAL), LONGEST);
    }

    #[test]
    fn first_snapshot_has_cpu_utilization() {
        let mut host = HostSampler::default();
        host.sampler.start();
        let begun = cpu_time();
        while cpu_time().saturating_sub(begun) < Duration::from_millis(100) {
            std::hint::spin_loop();
        }
        assert!(host.sample(None).sample.cpu_percent > 0.0);
    }

    #[test]
    fn snapshot_shows_this_host() {
        let snapshot = HostSampler::default().sample(None);
        assert!(snapshot.sample.memory_total > 0 && snapshot.sample.cpu_count > 0);
        assert!(snapshot.sample.gpus.is_empty() && snapshot.users.is_empty());
    }
}
