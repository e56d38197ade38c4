//! GPUs as NVML shows them.
//!
//! Owner: one thread that asks once a second and publishes what it last heard: a driver in trouble may keep a
//! call for many seconds, and nothing else may wait for that.
//!
//! Invariant: a GPU keeps the index under which it was seen first. A driver that has lost one counts the
//! others anew, and what is known of a GPU must not pass to another.

use super::nvml::{load, look};
use super::shares::Shares;
use super::traffic::Traffic;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::{Device, EventSet, Nvml};
use rankdeck_proto::message::GpuSample;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Between two rounds of questions.
const ROUND: Duration = Duration::from_millis(1000);
/// An answer older than this is not shown any more.
const STALE: Duration = Duration::from_secs(10);

/// Error reports kept of one GPU.
const XIDS: usize = 8;

/// What is asked of a driver; a test has one of its own.
pub trait Driver {
    /// Every GPU that it shows now; `None` when it does not answer.
    fn gpus(&mut self) -> Option<Vec<GpuSample>>;

    /// Waits for at most that long and gives the first error report of that time: unique name of the GPU and
    /// Xid number.
    fn error_within(&mut self, time: Duration) -> Option<(String, u64)>;
}

struct Nvidia<'a> {
    nvml: &'a Nvml,
    events: Option<EventSet<'a>>,
    /// Handles with the unique names of their GPUs: of one that is lost, the driver tells no name any more.
    names: Vec<(usize, String)>,
    traffic: Traffic,
    shares: Shares,
}

fn handle(device: &Device<'_>) -> usize {
    // SAFETY: it is compared only.
    unsafe { device.handle() as usize }
}

impl<'a> Nvidia<'a> {
    fn new(nvml: &'a Nvml) -> Nvidia<'a> {
        let mut names = Vec::new();
        let mut listening = || {
            let mut set = nvml.create_event_set().ok()?;
            for index in 0..nvml.device_count().ok()? {
                let Ok(device) = nvml.device_by_index(index) else { continue };
                names.push((handle(&device), device.uuid().unwrap_or_default()));
                let wanted = EventTypes::CRITICAL_XID_ERROR;
                if device.supported_event_types().is_ok_and(|types| types.contains(wanted)) {
                    set = device.register_events(wanted, set).ok()?;
                }
            }
            Some(set)
        };
        let events = listening();
        Nvidia { nvml, events, names, traffic: Traffic::default(), shares: Shares::default() }
    }
}

impl Driver for Nvidia<'_> {
    fn gpus(&mut self) -> Option<Vec<GpuSample>> {
        self.nvml.device_count().ok()?;
        let mut gpus = look(self.nvml, &mut self.shares);
        for gpu in &mut gpus {
            self.traffic.complete(self.nvml, gpu);
        }
        Some(gpus)
    }

    fn error_within(&mut self, time: Duration) -> Option<(String, u64)> {
        let begun = Instant::now();
        let heard = self.events.as_ref().and_then(|events| events.wait(time.as_millis() as u32).ok());
        let error = heard.and_then(|event| {
            let number = match event.event_data? {
                XidError::Value(number) => number,
                XidError::Unknown => 999,
            };
            let of = handle(&event.device);
            let (_, name) = self.names.iter().find(|(known, _)| *known == of)?;
            Some((name.clone(), number))
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
    /// By unique name.
    xids: BTreeMap<String, VecDeque<u64>>,
}

impl History {
    /// Remembers an error report of the GPU with this unique name.
    pub fn report(&mut self, uuid: &str, xid: u64) {
        let kept = self.xids.entry(uuid.to_owned()).or_default();
        kept.push_back(xid);
        if kept.len() > XIDS {
            kept.pop_front();
        }
    }

    /// The index under which this GPU was seen first; of one that is new, its own unless that is another's.
    fn index(&self, gpu: &GpuSample) -> u32 {
        let is_free = |index: &u32| !self.known.contains_key(index);
        let same = |known: &&GpuSample| known.uuid == gpu.uuid;
        match self.known.values().find(|known| !gpu.uuid.is_empty() && same(known)) {
            Some(known) => known.index,
            None if self.known.get(&gpu.index).as_ref().is_none_or(same) => gpu.index,
            None => (0..).find(is_free).unwrap_or(gpu.index),
        }
    }

    /// What the driver shows now, with past errors, and with GPUs that it showed before and has lost.
    pub fn complete(&mut self, seen: Vec<GpuSample>) -> Vec<GpuSample> {
        // Of one that is lost, the driver tells its place only, which may be known by more.
        let (lost, mut seen): (Vec<_>, Vec<_>) = seen.into_iter().partition(|gpu| gpu.lost);
        for gpu in &mut seen {
            gpu.index = self.index(gpu);
            self.known.insert(gpu.index, gpu.clone());
        }
        for (index, known) in &self.known {
            if !seen.iter().any(|gpu| gpu.index == *index) {
                let GpuSample { name, uuid, memory_total, .. } = known.clone();
                seen.push(GpuSample {
                    index: *index,
                    name,
                    uuid,
                    memory_total,
                    lost: true,
                    ..GpuSample::default()
                });
            }
        }
        for gpu in lost {
            if !seen.iter().any(|known| known.index == gpu.index) {
                seen.push(gpu);
            }
        }
        seen.sort_by_key(|gpu| gpu.index);
        for gpu in &mut seen {
            gpu.xids = self.xids.get(&gpu.uuid).into_iter().flatten().copied().collect();
        }
        seen
    }
}

#[derive(Debug, Default)]
struct GpuReading {
    at: Option<Instant>,
    gpus: Vec<GpuSample>,
}

/// What the thread saw last. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Gpus {
    seen: Arc<Mutex<GpuReading>>,
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
                    GpuReading { at: Some(Instant::now()), gpus };
            }
            if let Some((uuid, xid)) = driver.error_within(ROUND) {
                history.report(&uuid, xid);
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

    fn uuid(index: u32) -> String {
        format!("GPU-{index}")
    }

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
                uuid: uuid(*index),
                throttle: throttle.clone(),
                ..GpuSample::default()
            };
            Some(indices.iter().map(gpu).collect())
        }

        fn error_within(&mut self, _: Duration) -> Option<(String, u64)> {
            self.shown.extend(self.outside.as_ref().map(Gpus::latest));
            let (_, error) = self.moments.pop_front()?;
            if self.moments.is_empty() {
                self.outside = None;
            }
            error.map(|(index, xid)| (uuid(index), xid))
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
    fn a_lost_gpu_does_not_pass_its_index_to_another() {
        let gpu = |index: u32, letter: char, used: u64| GpuSample {
            index,
            uuid: format!("GPU-{letter}"),
            memory_used: used,
            ..GpuSample::default()
        };
        let mut history = History::default();
        history.complete(vec![gpu(0, 'a', 1), gpu(1, 'b', 2), gpu(2, 'c', 3)]);
        history.report("GPU-b", 79);
        let figures = |gpus: Vec<GpuSample>| -> Vec<(u32, String, u64, bool, usize)> {
            gpus.into_iter()
                .map(|gpu| (gpu.index, gpu.uuid, gpu.memory_used, gpu.lost, gpu.xids.len()))
                .collect()
        };
        let lost = figures(history.complete(vec![gpu(0, 'a', 10), gpu(1, 'c', 30)]));
        let of = |index, name: &str, used, lost, xids| (index, name.to_owned(), used, lost, xids);
        let others = [of(0, "GPU-a", 10, false, 0), of(1, "GPU-b", 0, true, 1), of(2, "GPU-c", 30, false, 0)];
        assert_eq!(lost, others);
        // One that is put in its place is another one, and the old one may come back.
        let new = history.complete(vec![gpu(0, 'a', 0), gpu(1, 'd', 0), gpu(2, 'c', 0)]);
        assert_eq!(
            new.iter().map(|gpu| gpu.uuid.as_str()).collect::<Vec<_>>(),
            ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]
        );
        assert!(new[1].lost && !new[3].lost);
        let back = history.complete(vec![gpu(0, 'a', 0), gpu(1, 'b', 5), gpu(2, 'c', 0), gpu(3, 'd', 0)]);
        assert!(!back[1].lost && back[1].xids == [79], "{back:?}");
    }

    #[test]
    fn a_gpu_that_is_lost_from_the_beginning_keeps_its_place() {
        let gpu = |index: u32, name: &str| GpuSample { index, uuid: name.into(), ..GpuSample::default() };
        let lost = |index: u32| GpuSample { index, lost: true, ..GpuSample::default() };
        let told = |gpus: Vec<GpuSample>| -> Vec<(u32, String, bool)> {
            gpus.into_iter().map(|gpu| (gpu.index, gpu.uuid, gpu.lost)).collect()
        };
        let of = |index, name: &str, lost| (index, name.to_owned(), lost);
        let mut history = History::default();
        let seen = told(history.complete(vec![gpu(0, "a"), lost(1), gpu(2, "c")]));
        assert_eq!(seen, [of(0, "a", false), of(1, "", true), of(2, "c", false)]);
        let back = told(history.complete(vec![gpu(0, "a"), gpu(1, "b"), gpu(2, "c")]));
        assert_eq!(back, [of(0, "a", false), of(1, "b", false), of(2, "c", false)]);
        let again = told(history.complete(vec![gpu(0, "a"), lost(1), gpu(2, "c")]));
        assert_eq!(again, [of(0, "a", false), of(1, "b", true), of(2, "c", false)]);
    }

    #[test]
    fn old_errors_make_room() {
        let mut history = History::default();
        for xid in 0..20 {
            history.report("", xid);
        }
        let seen = history.complete(vec![GpuSample::default()]);
        assert_eq!(seen[0].xids, (12..20).collect::<Vec<u64>>());
    }
}
