//! GPUs as NVML shows them.
//!
//! Owner: one thread that asks once a second and publishes what it last heard: a driver in trouble may keep a
//! call for many seconds, and nothing else may wait for that. The library is loaded at run time; without it
//! there are no GPUs.

use super::traffic::Traffic;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{EventSet, Nvml};
use rankdeck_proto::message::GpuSample;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Between two rounds of questions.
const ROUND: Duration = Duration::from_millis(1000);
/// An answer older than this is not shown any more.
const STALE: Duration = Duration::from_secs(10);

/// Error reports kept of one GPU.
const XIDS: usize = 8;

const THROTTLES: [(ThrottleReasons, &str); 6] = [
    (ThrottleReasons::SW_POWER_CAP, "power cap"),
    (ThrottleReasons::HW_SLOWDOWN, "hardware slowdown"),
    (ThrottleReasons::SW_THERMAL_SLOWDOWN, "software thermal slowdown"),
    (ThrottleReasons::HW_THERMAL_SLOWDOWN, "hardware thermal slowdown"),
    (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "power brake"),
    (ThrottleReasons::SYNC_BOOST, "sync boost"),
];

/// What is asked of a driver; a test has one of its own.
pub trait Driver {
    /// Every GPU that it shows now; `None` when it does not answer.
    fn gpus(&mut self) -> Option<Vec<GpuSample>>;

    /// Waits for at most that long and gives the first error report of that time: index of the GPU and Xid
    /// number.
    fn error_within(&mut self, time: Duration) -> Option<(u32, u64)>;
}

struct Nvidia<'a> {
    nvml: &'a Nvml,
    events: Option<EventSet<'a>>,
    traffic: Traffic,
}

impl<'a> Nvidia<'a> {
    fn new(nvml: &'a Nvml) -> Nvidia<'a> {
        let listening = || {
            let mut set = nvml.create_event_set().ok()?;
            for index in 0..nvml.device_count().ok()? {
                let Ok(device) = nvml.device_by_index(index) else { continue };
                let wanted = EventTypes::CRITICAL_XID_ERROR;
                if device.supported_event_types().is_ok_and(|types| types.contains(wanted)) {
                    set = device.register_events(wanted, set).ok()?;
                }
            }
            Some(set)
        };
        Nvidia { nvml, events: listening(), traffic: Traffic::default() }
    }
}

impl Driver for Nvidia<'_> {
    fn gpus(&mut self) -> Option<Vec<GpuSample>> {
        self.nvml.device_count().ok()?;
        let mut gpus = look(self.nvml);
        for gpu in &mut gpus {
            self.traffic.complete(self.nvml, gpu);
        }
        Some(gpus)
    }

    fn error_within(&mut self, time: Duration) -> Option<(u32, u64)> {
        let begun = Instant::now();
        let heard = self.events.as_ref().and_then(|events| events.wait(time.as_millis() as u32).ok());
        let error = heard.and_then(|event| {
            let number = match event.event_data? {
                XidError::Value(number) => number,
                XidError::Unknown => 999,
            };
            Some((event.device.index().ok()?, number))
        });
        if error.is_none() {
            // Without events, or woken by something else, the round still takes its time.
            std::thread::sleep(time.saturating_sub(begun.elapsed()));
        }
        error
    }
}

/// GPUs that were there once, and what the driver reported of them.
#[derive(Debug, Default)]
pub struct History {
    known: BTreeMap<u32, GpuSample>,
    xids: BTreeMap<u32, VecDeque<u64>>,
}

impl History {
    /// Remembers an error report.
    pub fn report(&mut self, index: u32, xid: u64) {
        let kept = self.xids.entry(index).or_default();
        kept.push_back(xid);
        if kept.len() > XIDS {
            kept.pop_front();
        }
    }

    /// What the driver shows now, with past errors, and with GPUs that it showed before and has lost.
    pub fn complete(&mut self, mut seen: Vec<GpuSample>) -> Vec<GpuSample> {
        for gpu in &seen {
            self.known.insert(gpu.index, gpu.clone());
        }
        for (index, known) in &self.known {
            if !seen.iter().any(|gpu| gpu.index == *index) {
                let GpuSample { name, memory_total, .. } = known.clone();
                seen.push(GpuSample {
                    index: *index,
                    name,
                    memory_total,
                    lost: true,
                    ..GpuSample::default()
                });
            }
        }
        seen.sort_by_key(|gpu| gpu.index);
        for gpu in &mut seen {
            gpu.xids = self.xids.get(&gpu.index).into_iter().flatten().copied().collect();
        }
        seen
    }
}

/// The driver's library, when there is one that works.
pub fn load() -> Option<Nvml> {
    Nvml::init().ok().or_else(|| Nvml::builder().lib_path(OsStr::new("libnvidia-ml.so.1")).init().ok())
}

/// GPUs that programs see here, 0 without a driver.
pub fn count() -> u32 {
    load().map_or(0, |nvml| visible(&look(&nvml)).len() as u32)
}

/// Indices of the GPUs that programs of this user see, in the order in which they count them: all, or those
/// that `CUDA_VISIBLE_DEVICES` names. An instance of MIG has none.
pub fn visible(all: &[GpuSample]) -> Vec<Option<u32>> {
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(list) => listed(&list, all),
        Err(_) => all.iter().map(|gpu| Some(gpu.index)).collect(),
    }
}

/// As CUDA reads the list: an entry that is no GPU hides itself and all that follow.
fn listed(list: &str, all: &[GpuSample]) -> Vec<Option<u32>> {
    let index = |entry: &str| match entry.parse::<u32>() {
        Ok(index) => all.iter().find(|gpu| gpu.index == index).map(|gpu| Some(gpu.index)),
        Err(_) if entry.starts_with("MIG-") => Some(None),
        Err(_) if entry.starts_with("GPU-") => {
            all.iter().find(|gpu| gpu.uuid.starts_with(entry)).map(|gpu| Some(gpu.index))
        }
        Err(_) => None,
    };
    list.split(',').map(str::trim).map_while(index).collect()
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
    let shares = device.process_utilization_stats(None).unwrap_or_default();
    let errors = |kind| device.total_ecc_errors(kind, EccCounter::Volatile).ok();
    let reasons = device.current_throttle_reasons().unwrap_or(ThrottleReasons::NONE);
    Some(GpuSample {
        index,
        name: device.name().unwrap_or_default(),
        uuid: device.uuid().unwrap_or_default(),
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
        ecc_corrected: errors(MemoryError::Corrected),
        ecc_uncorrected: errors(MemoryError::Uncorrected),
        processes,
        shares: latest_shares(shares.into_iter().map(|s| (s.pid, s.timestamp, s.sm_util)).collect()),
        ..GpuSample::default()
    })
}

/// The latest share of each process: (pid, time, percent).
fn latest_shares(mut samples: Vec<(u32, u64, u32)>) -> Vec<(u32, u32)> {
    samples.sort_unstable();
    let latest: BTreeMap<u32, u32> = samples.into_iter().map(|(pid, _, percent)| (pid, percent)).collect();
    latest.into_iter().collect()
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
            shared.watch(&mut Nvidia::new(&nvml));
        });
        gpus
    }

    /// Asks a driver until nobody else holds this.
    fn watch(&self, driver: &mut dyn Driver) {
        let mut history = History::default();
        while Arc::strong_count(&self.seen) > 1 {
            if let Some(seen) = driver.gpus() {
                let gpus = history.complete(seen);
                *self.seen.lock().unwrap_or_else(PoisonError::into_inner) =
                    Seen { at: Some(Instant::now()), gpus };
            }
            if let Some((index, xid)) = driver.error_within(ROUND) {
                history.report(index, xid);
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Indices of the GPUs that are there, and the error that follows.
    type Moment = (Vec<u32>, Option<(u32, u64)>);

    /// A driver that plays moments: what it shows, and the error that follows. It lets go of the watcher's
    /// other half at the end.
    struct Fake {
        moments: VecDeque<Moment>,
        outside: Option<Gpus>,
        shown: Vec<Vec<GpuSample>>,
    }

    impl Driver for Fake {
        fn gpus(&mut self) -> Option<Vec<GpuSample>> {
            let (indices, _) = self.moments.front()?;
            let throttle = vec!["hardware thermal slowdown".to_owned()];
            let gpu = |index: &u32| GpuSample {
                index: *index,
                name: "fake".into(),
                throttle: throttle.clone(),
                ..GpuSample::default()
            };
            Some(indices.iter().map(gpu).collect())
        }

        fn error_within(&mut self, _: Duration) -> Option<(u32, u64)> {
            self.shown.extend(self.outside.as_ref().map(Gpus::latest));
            let (_, error) = self.moments.pop_front()?;
            if self.moments.is_empty() {
                self.outside = None;
            }
            error
        }
    }

    #[test]
    fn errors_throttling_and_lost_gpus_are_shown() {
        let gpus = Gpus::default();
        let moments = [(vec![0, 1], Some((1, 79))), (vec![0, 1], None), (vec![0], None)].into();
        let mut fake = Fake { moments, outside: Some(gpus.clone()), shown: Vec::new() };
        gpus.watch(&mut fake);
        let [before, error, lost] = fake.shown.as_slice() else { panic!("{:?}", fake.shown) };
        assert!(before.iter().all(|gpu| gpu.xids.is_empty() && !gpu.lost));
        assert_eq!(before[0].throttle, ["hardware thermal slowdown"]);
        assert_eq!((error[0].xids.len(), error[1].xids.as_slice()), (0, &[79][..]));
        assert_eq!((lost.len(), lost[0].lost, lost[1].lost, lost[1].name.as_str()), (2, false, true, "fake"));
        let words = crate::inspect::gpu_words(&lost[1]);
        assert!(words.starts_with("GPU 1: the driver has lost it, Xid 79"), "{words}");
    }

    #[test]
    fn a_list_of_visible_devices_is_read_as_cuda_reads_it() {
        let gpu =
            |index: u32| GpuSample { index, uuid: format!("GPU-{index}{index}ab"), ..GpuSample::default() };
        let all = [gpu(0), gpu(1), gpu(2), gpu(3)];
        let of = |list| listed(list, &all);
        assert_eq!(of("2,3"), [Some(2), Some(3)]);
        assert_eq!(of("GPU-33, 0"), [Some(3), Some(0)]);
        assert_eq!(of("1,9,2"), [Some(1)]);
        assert_eq!(of("MIG-5"), [None]);
        assert!(of("").is_empty() && of("-1").is_empty());
    }

    #[test]
    fn the_latest_share_of_a_process_counts() {
        assert_eq!(latest_shares(vec![(7, 20, 4), (7, 10, 90), (8, 5, 1)]), [(7, 4), (8, 1)]);
    }

    #[test]
    fn old_errors_make_room() {
        let mut history = History::default();
        for xid in 0..20 {
            history.report(0, xid);
        }
        let seen = history.complete(vec![GpuSample::default()]);
        assert_eq!(seen[0].xids, (12..20).collect::<Vec<u64>>());
    }
}
