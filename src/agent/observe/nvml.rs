//! What NVML tells of each GPU. The library is loaded at run time; without it there are no GPUs.

use super::shares::Shares;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};
use rankdeck_proto::examination::GpuHealth;
use rankdeck_proto::message::{GpuInstance, GpuSample};
use std::ffi::{OsStr, c_uint};

const THROTTLES: [(ThrottleReasons, &str); 6] = [
    (ThrottleReasons::SW_POWER_CAP, "power cap"),
    (ThrottleReasons::HW_SLOWDOWN, "hardware slowdown"),
    (ThrottleReasons::SW_THERMAL_SLOWDOWN, "software thermal slowdown"),
    (ThrottleReasons::HW_THERMAL_SLOWDOWN, "hardware thermal slowdown"),
    (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "power brake"),
    (ThrottleReasons::SYNC_BOOST, "sync boost"),
];

/// `NVML_DEVICE_MIG_ENABLE`.
const MIG_ENABLED: u32 = 1;

/// The driver's library, when there is one that works.
pub fn load() -> Option<Nvml> {
    open().ok()
}

/// The same.
///
/// Errors: why there is none; that it lacks a file says less than anything else.
pub fn open() -> Result<Nvml, NvmlError> {
    Nvml::init().or_else(|first| {
        let versioned = Nvml::builder().lib_path(OsStr::new("libnvidia-ml.so.1")).init();
        versioned.map_err(|second| match second {
            NvmlError::LibloadingError(_) => first,
            _ => second,
        })
    })
}

/// Asks for everything once.
pub fn look(nvml: &Nvml, shares: &mut Shares) -> Vec<GpuSample> {
    let count = nvml.device_count().unwrap_or(0);
    (0..count).filter_map(|index| one(nvml, index, shares)).collect()
}

fn one(nvml: &Nvml, index: u32, shares: &mut Shares) -> Option<GpuSample> {
    // One that has fallen off the bus is counted as long as the driver is not loaded anew, and keeps its
    // place among the others. Of one that this user may not use, nothing is told.
    let lost = || GpuSample { index, lost: true, ..GpuSample::default() };
    let device = match nvml.device_by_index(index) {
        Ok(device) => device,
        Err(NvmlError::GpuLost) => return Some(lost()),
        Err(_) => return None,
    };
    let memory = match device.memory_info() {
        Err(NvmlError::GpuLost) => return Some(lost()),
        memory => memory.ok(),
    };
    let watts = |milliwatts: u32| milliwatts as f32 / 1000.0;
    let divided = device.mig_mode().is_ok_and(|mode| mode.current == MIG_ENABLED);
    let instances = if divided { instances(&device) } else { Vec::new() };
    let mut processes = processes(&device);
    // Of a divided GPU as a whole, users without privileges are told nothing.
    for process in instances.iter().flat_map(|instance| &instance.processes) {
        if !processes.iter().any(|(pid, _)| *pid == process.0) {
            processes.push(*process);
        }
    }
    let uuid = device.uuid().unwrap_or_default();
    let told = if divided { None } else { device.process_utilization_stats(None).ok() };
    let told = told.unwrap_or_default().into_iter().map(|s| (s.pid, s.timestamp, s.sm_util)).collect();
    let errors = |kind| device.total_ecc_errors(kind, EccCounter::Volatile).ok();
    let reasons = device.current_throttle_reasons().unwrap_or(ThrottleReasons::NONE);
    Some(GpuSample {
        index,
        name: device.name().unwrap_or_default(),
        // What some drivers tell of a divided GPU is the use of none of its parts.
        utilization: device.utilization_rates().ok().filter(|_| !divided).map(|rates| rates.gpu),
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
        ecc_corrected: errors(MemoryError::Corrected),
        ecc_uncorrected: errors(MemoryError::Uncorrected),
        processes,
        shares: shares.latest(&uuid, told),
        instances,
        uuid,
        ..GpuSample::default()
    })
}

fn processes(device: &Device<'_>) -> Vec<(u32, u64)> {
    let bytes = |process: &ProcessInfo| match process.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => bytes,
        UsedGpuMemory::Unavailable => 0,
    };
    let all = device.running_compute_processes().unwrap_or_default();
    all.iter().map(|process| (process.pid, bytes(process))).collect()
}

/// The instances of a divided GPU, in the order in which CUDA counts them.
fn instances(device: &Device<'_>) -> Vec<GpuInstance> {
    let most = device.mig_device_count().unwrap_or(0);
    let told = (0..most).filter_map(|place| {
        let instance = device.mig_device_by_index(place).ok()?;
        let memory = instance.memory_info().ok();
        Some(GpuInstance {
            uuid: instance.uuid().ok()?,
            name: instance.name().unwrap_or_default(),
            memory_used: memory.as_ref().map_or(0, |memory| memory.used),
            memory_total: memory.as_ref().map_or(0, |memory| memory.total),
            processes: processes(&instance),
        })
    });
    told.collect()
}

/// Faults of the memory of a GPU that its driver knows of; none where it does not tell.
pub fn health(nvml: &Nvml, gpu: &GpuSample) -> GpuHealth {
    let mut health = GpuHealth { uncorrected: gpu.ecc_uncorrected.unwrap_or(0), ..GpuHealth::default() };
    let Ok(device) = nvml.device_by_index(gpu.index) else { return health };
    health.reset_pending = device.are_pages_pending_retired().unwrap_or(false);
    if let Ok(ask) = nvml.lib().nvmlDeviceGetRemappedRows.as_ref() {
        let (mut corrected, mut uncorrected, mut pending, mut failed): (c_uint, c_uint, c_uint, c_uint) =
            Default::default();
        // SAFETY: the handle is of a living library, and all four numbers are writable during the call.
        let status =
            unsafe { ask(device.handle(), &mut corrected, &mut uncorrected, &mut pending, &mut failed) };
        if status == 0 {
            health.reset_pending |= pending != 0;
            health.remap_failed = failed != 0;
        }
    }
    health
}
