//! GPU samples from NVML. The library is loaded at run time; without it there are no GPUs.

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, PcieUtilCounter, TemperatureSensor,
};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::sys_exports::field_id;
use nvml_wrapper::{Device, Nvml};
use rankdeck_proto::examination::GpuHealth;
use rankdeck_proto::message::{GpuInstance, GpuSample};
use std::collections::BTreeMap;
use std::ffi::{OsStr, c_int, c_uint};
use std::time::Instant;

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
pub(crate) fn load() -> Option<Nvml> {
    open().ok()
}

/// The same.
///
/// Errors: why it is not available; a missing file is the least specific reason.
pub(crate) fn open() -> Result<Nvml, NvmlError> {
    Nvml::init().or_else(|first| {
        let versioned = Nvml::builder().lib_path(OsStr::new("libnvidia-ml.so.1")).init();
        versioned.map_err(|second| match second {
            NvmlError::LibloadingError(_) => first,
            _ => second,
        })
    })
}

/// Asks for everything once.
pub(crate) fn sample(nvml: &Nvml, shares: &mut Shares) -> Vec<GpuSample> {
    let count = nvml.device_count().unwrap_or(0);
    (0..count).filter_map(|index| one(nvml, index, shares)).collect()
}

fn one(nvml: &Nvml, index: u32, shares: &mut Shares) -> Option<GpuSample> {
    // One that has fallen off the bus is counted until the driver is reloaded, and keeps its
    // place among the others. One that this user may not use is left out.
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
    // Users without privileges get no values for a divided GPU as a whole.
    for process in instances.iter().flat_map(|instance| &instance.processes) {
        if !processes.iter().any(|(pid, _)| *pid == process.0) {
            processes.push(*process);
        }
    }
    let uuid = device.uuid().unwrap_or_default();
    let samples = if divided { None } else { device.process_utilization_stats(None).ok() };
    let samples = samples.unwrap_or_default().into_iter().map(|s| (s.pid, s.timestamp, s.sm_util)).collect();
    let errors = |kind| device.total_ecc_errors(kind, EccCounter::Volatile).ok();
    let reasons = device.current_throttle_reasons().unwrap_or(ThrottleReasons::NONE);
    Some(GpuSample {
        index,
        name: device.name().unwrap_or_default(),
        // Some drivers report a utilization of a divided GPU that belongs to none of its instances.
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
        shares: shares.latest(&uuid, samples),
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
    let samples = (0..most).filter_map(|place| {
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
    samples.collect()
}

/// Returns the PCI address of a GPU as sysfs has it: `0000:3b:00.0`.
pub(crate) fn pci_address(nvml: &Nvml, index: u32) -> Option<String> {
    sysfs_address(&nvml.device_by_index(index).ok()?.pci_info().ok()?.bus_id)
}

/// NVML has eight digits of the domain, and capitals.
fn sysfs_address(bus_id: &str) -> Option<String> {
    let (domain, rest) = bus_id.split_once(':')?;
    Some(format!("{:0>4}:{rest}", domain.trim_start_matches('0')).to_lowercase())
}

/// Returns memory faults of a GPU, as far as the driver reports them.
pub(crate) fn health(nvml: &Nvml, gpu: &GpuSample) -> GpuHealth {
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

/// A sample that has been the latest of its process for more rounds than this is of the past.
const ROUNDS: u32 = 2;

/// The latest samples of each GPU, by its unique name. The driver keeps samples of a process that has stopped
/// using the GPU: only new samples count.
#[derive(Debug, Default)]
pub(crate) struct Shares(BTreeMap<String, BTreeMap<u32, ProcessShare>>);

#[derive(Debug, Clone, Copy, PartialEq)]
struct ProcessShare {
    time: u64,
    percent: u32,
    /// Rounds since it was new.
    rounds: u32,
}

impl Shares {
    /// Returns the latest share of each process with new samples, (pid, percent), from the driver's samples
    /// in this round: (pid, time, percent) in any order.
    pub fn latest(&mut self, gpu: &str, mut samples: Vec<(u32, u64, u32)>) -> Vec<(u32, u32)> {
        samples.sort_unstable();
        let samples: BTreeMap<u32, (u64, u32)> =
            samples.into_iter().map(|(pid, time, percent)| (pid, (time, percent))).collect();
        let known = self.0.entry(gpu.to_owned()).or_default();
        // A process without samples is dropped.
        known.retain(|pid, _| samples.contains_key(pid));
        for (pid, (time, percent)) in samples {
            let share = known.entry(pid).or_insert(ProcessShare { time, percent, rounds: 0 });
            share.rounds = if share.time == time { share.rounds + 1 } else { 1 };
            (share.time, share.percent) = (time, percent);
        }
        let fresh = known.iter().filter(|(_, share)| share.rounds <= ROUNDS);
        fresh.map(|(pid, share)| (*pid, share.percent)).collect()
    }
}

/// All links of a GPU together.
const ALL_LINKS: c_uint = c_uint::MAX;
/// Received, sent, recovered from.
const ASKED: [c_uint; 3] = [
    field_id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
    field_id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
    field_id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
];
/// `nvmlValueType_t` of whole numbers without a sign: 32 bits, and 64 bits by two names.
const NUMBERS: [c_uint; 3] = [1, 2, 3];

/// `nvmlFieldValue_t`: the wrapper of this library asks for the first link only.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Field {
    id: c_uint,
    scope: c_uint,
    timestamp: i64,
    latency_us: i64,
    kind: c_uint,
    status: c_uint,
    value: u64,
}

/// Counters of the last round, in KiB, by the GPU's unique name: received and sent. The driver measures PCIe
/// itself, for 20 ms per query; for NVLinks it has counters, and a rate is the difference of two rounds.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    before: BTreeMap<String, (Instant, [u64; 2])>,
}

impl Traffic {
    /// Adds the traffic of a GPU, as far as the driver reports it.
    pub fn complete(&mut self, nvml: &Nvml, gpu: &mut GpuSample) {
        let Ok(device) = nvml.device_by_index(gpu.index) else { return };
        // Kilobytes per second.
        let pcie = |way| device.pcie_throughput(way).ok().map(|rate| u64::from(rate) * 1000);
        (gpu.pcie_rx, gpu.pcie_tx) = (pcie(PcieUtilCounter::Receive), pcie(PcieUtilCounter::Send));
        let Some([received, sent, errors]) = links(nvml, &device) else { return };
        gpu.nvlink_errors = errors;
        if let (Some(received), Some(sent)) = (received, sent) {
            let rates = self.rates(&gpu.uuid, Instant::now(), [received, sent]);
            (gpu.nvlink_rx, gpu.nvlink_tx) = (rates.map(|rates| rates[0]), rates.map(|rates| rates[1]));
        }
    }

    /// Bytes per second since the last round; `None` in the first one, and when counters were reset.
    fn rates(&mut self, gpu: &str, now: Instant, kib: [u64; 2]) -> Option<[u64; 2]> {
        let (then, before) = self.before.insert(gpu.to_owned(), (now, kib))?;
        let seconds = now.saturating_duration_since(then).as_secs_f64();
        let rate = |way: usize| {
            let moved = kib.get(way)?.checked_sub(*before.get(way)?)?;
            (seconds > 0.0).then_some((moved as f64 * 1024.0 / seconds) as u64)
        };
        Some([rate(0)?, rate(1)?])
    }
}

/// Returns the counters of all links of a GPU; `None` where the driver does not support it.
fn links(nvml: &Nvml, device: &nvml_wrapper::Device<'_>) -> Option<[Option<u64>; 3]> {
    let ask = nvml.lib().nvmlDeviceGetFieldValues.as_ref().ok()?;
    let mut fields = ASKED.map(|id| Field { id, scope: ALL_LINKS, ..Field::default() });
    // SAFETY: `Field` has the layout of the C structure, the handle is of a living library, and the fields
    // live during the call.
    let status = unsafe { ask(device.handle(), fields.len() as c_int, fields.as_mut_ptr().cast()) };
    (status == 0).then_some(())?;
    Some(fields.map(|field| {
        match field.kind {
            // A union: of a short number the other half is undefined.
            1 => Some(field.value & u64::from(u32::MAX)),
            _ => Some(field.value),
        }
        .filter(|_| field.status == 0 && NUMBERS.contains(&field.kind))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn pci_address_is_that_of_sysfs() {
        for (bus_id, address) in [
            ("00000000:3B:00.0", "0000:3b:00.0"),
            ("0000:3B:00.0", "0000:3b:00.0"),
            ("00010000:01:00.0", "10000:01:00.0"),
        ] {
            assert_eq!(sysfs_address(bus_id).as_deref(), Some(address));
        }
        assert_eq!(sysfs_address(""), None);
    }

    #[test]
    fn latest_share_of_a_process_counts() {
        let samples = vec![(7, 20, 4), (7, 10, 90), (8, 5, 1)];
        assert_eq!(Shares::default().latest("a", samples), [(7, 4), (8, 1)]);
    }

    #[test]
    fn stale_share_is_dropped_and_comes_back() {
        let mut shares = Shares::default();
        let busy = |time| vec![(7, 10, 90), (8, time, 30)];
        assert_eq!(shares.latest("a", busy(10)), [(7, 90), (8, 30)]);
        assert_eq!(shares.latest("a", busy(20)), [(7, 90), (8, 30)], "a round may come early");
        assert_eq!(shares.latest("a", busy(30)), [(8, 30)], "7 is idle");
        assert_eq!(shares.latest("b", busy(30)), [(7, 90), (8, 30)], "another GPU");
        assert_eq!(shares.latest("a", vec![(7, 40, 50), (8, 40, 30)]), [(7, 50), (8, 30)]);
        assert!(shares.latest("a", vec![]).is_empty());
    }

    #[test]
    fn rate_is_what_came_between_two_rounds() {
        let (mut traffic, start) = (Traffic::default(), Instant::now());
        assert_eq!(traffic.rates("a", start, [100, 200]), None);
        let later = start + Duration::from_secs(2);
        assert_eq!(traffic.rates("a", later, [300, 200]), Some([100 * 1024, 0]));
        assert_eq!(traffic.rates("b", later, [300, 200]), None, "another GPU");
        let last = later + Duration::from_secs(1);
        assert_eq!(traffic.rates("a", last, [10, 0]), None, "the driver was loaded again");
    }
}
