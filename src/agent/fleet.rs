//! `agent fleet`: gauges and runs of this host, line after line, for somebody who looks at all hosts. No run
//! is needed, and nothing of a run is touched.
//!
//! Owner: one console, for as long as it reads: a line that nobody takes ends the command. It costs what it
//! may: after a look, and after a list of runs, it rests as many times as long as [`SHARE`] says.

use crate::entries;
use crate::observe::gpu::{Gpus, History};
use crate::observe::gpu_users::GpuUsers;
use crate::observe::nvml;
use crate::observe::sample::Sampler;
use crate::observe::shares::Shares;
use crate::observe::visible::{VisibleGpu, visible};
use nvml_wrapper::Nvml;
use rankdeck_proto::fleet::{GivenGpu, HostLook, LOOK, SHARE};
use rankdeck_proto::message::GpuSample;
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::Generation;
use serde::Serialize;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Between two looks, at least.
const LOOKS: Duration = Duration::from_secs(2);
/// Before the first one.
const FIRST: Duration = Duration::from_millis(200);
/// Between two lists of runs, at least.
const LISTS: Duration = Duration::from_secs(4);
/// Between two of either, at most.
const LONGEST: Duration = Duration::from_secs(30);

/// The answer at the end.
#[derive(Debug, Serialize)]
pub struct FleetEnd {
    looks: u64,
    cost_ms: u64,
}

/// Tells this host, and the runs under `workdir`, for so long, or until nobody reads.
pub fn tell(workdir: &Path, within: Duration) -> Result<FleetEnd, HintedError> {
    let begun = Instant::now();
    let nvml = nvml::load();
    let mut looker = Looker::default();
    let (mut looks, mut list_at) = (0, begun);
    // The use of CPUs is a difference.
    looker.sampler.begin();
    std::thread::sleep(FIRST);
    loop {
        let before = cpu_time();
        let mut look = looker.look(nvml.as_ref());
        let looked = cpu_time();
        if Instant::now() >= list_at {
            look.runs = Some(entries::list(workdir));
            list_at = Instant::now() + rest(cpu_time().saturating_sub(looked), LISTS);
        }
        let pause = rest(looked.saturating_sub(before), LOOKS);
        (look.cost_ms, look.next_ms) = (cpu_time().as_millis() as u64, pause.as_millis() as u64);
        looks += 1;
        let ending = begun.elapsed() + pause >= within;
        if !write(&look) || ending {
            return Ok(FleetEnd { looks, cost_ms: look.cost_ms });
        }
        std::thread::sleep(pause);
    }
}

/// How long to rest after something that cost so much.
fn rest(cost: Duration, least: Duration) -> Duration {
    cost.div_f64(SHARE).clamp(least, LONGEST)
}

/// False when nobody reads.
fn write(look: &HostLook) -> bool {
    let Ok(json) = serde_json::to_string(look) else { return false };
    let mut output = std::io::stdout().lock();
    writeln!(output, "{LOOK} {json}").and_then(|()| output.flush()).is_ok()
}

/// CPU time of this process so far.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live, writable struct for the length of the call.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

#[derive(Default)]
struct Looker {
    sampler: Sampler,
    gpus: History,
    shares: Shares,
    users: GpuUsers,
}

impl Looker {
    fn look(&mut self, nvml: Option<&Nvml>) -> HostLook {
        let mut sample = self.sampler.look(Generation::default(), &[], &Gpus::default());
        let seen = nvml.map(|nvml| nvml::look(nvml, &mut self.shares)).unwrap_or_default();
        // A plan counts what the driver shows now.
        let given = visible(&seen).iter().map(|given| offer(given.as_ref(), &seen)).collect();
        sample.gpus = self.gpus.complete(seen);
        let users = self.users.look(&sample.gpus, &BTreeSet::new());
        HostLook { sample, given, users, ..HostLook::default() }
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
    fn it_rests_as_long_as_its_share_of_a_core_wants() {
        assert_eq!(rest(Duration::from_millis(1), LOOKS), LOOKS);
        assert_eq!(rest(Duration::from_millis(20), LOOKS), Duration::from_secs(4));
        assert_eq!(rest(Duration::from_secs(9), LOOKS), LONGEST);
    }

    #[test]
    fn the_first_look_tells_how_busy_the_host_is() {
        let mut looker = Looker::default();
        looker.sampler.begin();
        let begun = cpu_time();
        while cpu_time().saturating_sub(begun) < Duration::from_millis(100) {
            std::hint::spin_loop();
        }
        assert!(looker.look(None).sample.cpu_percent > 0.0);
    }

    #[test]
    fn a_look_shows_this_host() {
        let look = Looker::default().look(None);
        assert!(look.sample.memory_total > 0 && look.sample.cpu_count > 0);
        assert!(look.sample.gpus.is_empty() && look.users.is_empty());
    }
}
