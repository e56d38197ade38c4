//! GPUs as NVML shows them.
//!
//! Owner: one thread that asks once a second and publishes what it last heard: a driver in trouble may keep a call for many seconds, and
//! nothing else may wait for that. The library is loaded at run time; without it there are no GPUs.

use crate::proto::message::GpuSample;
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use std::ffi::OsStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Between two rounds of questions.
const ROUND: Duration = Duration::from_millis(1000);
/// An answer older than this is not shown any more.
const STALE: Duration = Duration::from_secs(10);

const THROTTLES: [(ThrottleReasons, &str); 6] = [
    (ThrottleReasons::SW_POWER_CAP, "power cap"),
    (ThrottleReasons::HW_SLOWDOWN, "hardware slowdown"),
    (ThrottleReasons::SW_THERMAL_SLOWDOWN, "software thermal slowdown"),
    (ThrottleReasons::HW_THERMAL_SLOWDOWN, "hardware thermal slowdown"),
    (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "power brake"),
    (ThrottleReasons::SYNC_BOOST, "sync boost"),
];

/// The driver's library, when there is one that works.
pub fn load() -> Option<Nvml> {
    Nvml::init().ok().or_else(|| Nvml::builder().lib_path(OsStr::new("libnvidia-ml.so.1")).init().ok())
}

/// GPUs that the driver shows, 0 without a driver.
pub fn count() -> u32 {
    load().and_then(|nvml| nvml.device_count().ok()).unwrap_or(0)
}

/// Asks for everything once.
pub fn look(nvml: &Nvml) -> Vec<GpuSample> {
    let count = nvml.device_count().unwrap_or(0);
    (0..count).filter_map(|index| one(nvml, index)).collect()
}

fn one(nvml: &Nvml, index: u32) -> Option<GpuSample> {
    let device = nvml.device_by_index(index).ok()?;
    let memory = device.memory_info().ok();
    let watts = |milliwatts: u32| milliwatts as f32 / 1000.0;
    let mut processes: Vec<(u32, u64)> = Vec::new();
    for ProcessInfo { pid, used_gpu_memory, .. } in device.running_compute_processes().unwrap_or_default() {
        let bytes = match used_gpu_memory {
            UsedGpuMemory::Used(bytes) => bytes,
            UsedGpuMemory::Unavailable => 0,
        };
        processes.push((pid, bytes));
    }
    let reasons = device.current_throttle_reasons().unwrap_or(ThrottleReasons::NONE);
    Some(GpuSample {
        index,
        name: device.name().unwrap_or_default(),
        utilization: device.utilization_rates().ok().map(|rates| rates.gpu),
        memory_used: memory.as_ref().map_or(0, |memory| memory.used),
        memory_total: memory.as_ref().map_or(0, |memory| memory.total),
        power_w: device.power_usage().ok().map(watts),
        power_limit_w: device.enforced_power_limit().ok().map(watts),
        temperature_c: device.temperature(TemperatureSensor::Gpu).ok(),
        sm_clock_mhz: device.clock_info(Clock::SM).ok(),
        memory_clock_mhz: device.clock_info(Clock::Memory).ok(),
        throttle: THROTTLES
            .iter()
            .filter(|(reason, _)| reasons.contains(*reason))
            .map(|(_, name)| (*name).to_owned())
            .collect(),
        processes,
        ..GpuSample::default()
    })
}

#[derive(Debug, Default)]
struct Seen {
    at: Option<Instant>,
    gpus: Vec<GpuSample>,
}

/// What the thread saw last. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Gpus {
    seen: Arc<Mutex<Seen>>,
}

impl Gpus {
    /// Starts the thread; it ends at once where there is no driver.
    pub fn start() -> Gpus {
        let gpus = Gpus::default();
        let shared = gpus.clone();
        // Without the thread there are no samples, and nothing else is lost.
        let _ = std::thread::Builder::new().name("gpu".into()).spawn(move || {
            let Some(nvml) = load() else { return };
            while Arc::strong_count(&shared.seen) > 1 {
                let gpus = look(&nvml);
                *shared.seen.lock().unwrap_or_else(PoisonError::into_inner) =
                    Seen { at: Some(Instant::now()), gpus };
                std::thread::sleep(ROUND);
            }
        });
        gpus
    }

    /// The latest samples, empty without GPUs or when the driver has not answered for a while.
    pub fn latest(&self) -> Vec<GpuSample> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.at.is_some_and(|at| at.elapsed() < STALE) { seen.gpus.clone() } else { Vec::new() }
    }

    /// Samples taken after `since`, `None` while there are none.
    pub fn since(&self, since: Instant) -> Option<Vec<GpuSample>> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.at.filter(|at| *at > since + ROUND / 2).map(|_| seen.gpus.clone())
    }
}
