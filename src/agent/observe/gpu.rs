//! GPUs as NVML shows them, and those that are visible to programs of this user.
//!
//! Owner: one thread that polls once a second and publishes the latest result: a failing driver may block a
//! call for many seconds, and nothing else may wait for that.
//!
//! Invariant: a GPU keeps the index under which it was seen first. A driver that has lost one counts the
//! others again from 0, and the history of a GPU must not pass to another.

use super::nvml::{Shares, Traffic, load, pci_address, sample};
use crate::proc;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::{Device, EventSet, Nvml};
use rankdeck_proto::message::{GpuInstance, GpuSample};
use rankdeck_proto::process::GpuUser;
use rankdeck_proto::trust::{self, own_uid};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Between two rounds of questions.
const ROUND: Duration = Duration::from_millis(1000);
/// An answer older than this is not shown any more.
const STALE: Duration = Duration::from_secs(10);

/// Error reports kept of one GPU.
const XIDS: usize = 8;

/// What is asked of a driver; a test has one of its own.
pub(crate) trait GpuDriver {
    /// Every GPU that it shows now; `None` when it does not respond.
    fn gpus(&mut self) -> Option<Vec<GpuSample>>;

    /// Waits for at most that long and gives the first error report of that time: unique name of the GPU and
    /// Xid number.
    fn error_within(&mut self, time: Duration) -> Option<(String, u64)>;
}

struct Nvidia<'a> {
    nvml: &'a Nvml,
    events: Option<EventSet<'a>>,
    /// Handles with the unique names of their GPUs: the driver has no name for a lost one.
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
                let events = EventTypes::CRITICAL_XID_ERROR;
                if device.supported_event_types().is_ok_and(|types| types.contains(events)) {
                    set = device.register_events(events, set).ok()?;
                }
            }
            Some(set)
        };
        let events = listening();
        Nvidia { nvml, events, names, traffic: Traffic::default(), shares: Shares::default() }
    }
}

impl GpuDriver for Nvidia<'_> {
    fn gpus(&mut self) -> Option<Vec<GpuSample>> {
        self.nvml.device_count().ok()?;
        let mut gpus = sample(self.nvml, &mut self.shares);
        for gpu in &mut gpus {
            self.traffic.complete(self.nvml, gpu);
        }
        Some(gpus)
    }

    fn error_within(&mut self, time: Duration) -> Option<(String, u64)> {
        let begun = Instant::now();
        let event = self.events.as_ref().and_then(|events| events.wait(time.as_millis() as u32).ok());
        let error = event.and_then(|event| {
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
pub(crate) struct GpuHistory {
    known: BTreeMap<u32, GpuSample>,
    /// By unique name.
    xids: BTreeMap<String, VecDeque<u64>>,
}

impl GpuHistory {
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
        // For a lost GPU the driver reports only its index, which may match several.
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
pub(crate) struct GpuWatch {
    seen: Arc<Mutex<GpuReading>>,
}

impl GpuWatch {
    /// Starts the thread; without a driver it ends at once.
    pub fn start() -> GpuWatch {
        let gpus = GpuWatch::default();
        let shared = gpus.clone();
        // Without the thread there are no samples, and nothing else is lost.
        let _ = std::thread::Builder::new().name("gpu".into()).spawn(move || {
            let Some(nvml) = load() else { return };
            shared.watch(&mut Nvidia::new(&nvml));
        });
        gpus
    }

    /// Polls a driver until this is the last reference.
    fn watch(&self, driver: &mut dyn GpuDriver) {
        let mut history = GpuHistory::default();
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

    /// Samples taken after `since`, `None` until there are some.
    pub fn since(&self, since: Instant) -> Option<Vec<GpuSample>> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.at.filter(|at| *at > since + ROUND / 2).map(|_| seen.gpus.clone())
    }
}

/// Most characters of a command line.
const COMMAND: usize = 120;
/// Most processes.
const USERS: usize = 256;

/// The users of the GPUs; each process is read once.
#[derive(Debug, Default)]
pub(crate) struct GpuUsers(BTreeMap<u32, GpuUser>);

impl GpuUsers {
    /// Those that are on a GPU now, but for `ranks`.
    pub fn sample(&mut self, gpus: &[GpuSample], ranks: &BTreeSet<u32>) -> Vec<GpuUser> {
        let all = gpus.iter().flat_map(|gpu| &gpu.processes).map(|(pid, _)| *pid);
        let pids: BTreeSet<u32> = all.filter(|pid| !ranks.contains(pid)).collect();
        // A pid may belong to another process by now.
        self.0.retain(|pid, known| pids.contains(pid) && start_of(*pid) == known.start);
        let listed = pids.into_iter().take(USERS);
        listed.map(|pid| self.0.entry(pid).or_insert_with(|| user(pid)).clone()).collect()
    }
}

fn start_of(pid: u32) -> u64 {
    proc::stat(pid).map_or(0, |stat| stat.start)
}

fn user(pid: u32) -> GpuUser {
    let start = start_of(pid);
    let uid = std::fs::metadata(format!("/proc/{pid}")).ok().map(|facts| facts.uid());
    let environ = proc::environ(pid).unwrap_or_default();
    GpuUser {
        pid,
        start,
        own: start > 0 && uid == Some(own_uid()),
        user: uid.map(trust::user_name).unwrap_or_default(),
        command: proc::command_line(pid, COMMAND),
        run: proc::variable(&environ, "RANKDECK_RUN").map(|run| String::from_utf8_lossy(run).into_owned()),
    }
}

/// A GPU, or an instance of MIG on it, that programs see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VisibleGpu {
    /// As [`GpuSample::index`] counts.
    pub index: u32,
    /// Unique name of the instance.
    pub instance: Option<String>,
}

impl VisibleGpu {
    fn whole(gpu: &GpuSample) -> VisibleGpu {
        // Of a divided GPU that is named as a whole, CUDA takes the first instance.
        VisibleGpu { index: gpu.index, instance: gpu.instances.first().map(|first| first.uuid.clone()) }
    }

    /// The GPU that is meant.
    pub fn gpu<'a>(&self, all: &'a [GpuSample]) -> Option<&'a GpuSample> {
        all.iter().find(|gpu| gpu.index == self.index)
    }

    /// The instance that is meant.
    pub fn instance<'a>(&self, gpu: &'a GpuSample) -> Option<&'a GpuInstance> {
        let uuid = self.instance.as_ref()?;
        gpu.instances.iter().find(|instance| instance.uuid == *uuid)
    }
}

/// GPUs that programs see here, 0 without a driver.
pub(crate) fn visible_count() -> u32 {
    load().map_or(0, |nvml| visible_gpus(&sample(&nvml, &mut Shares::default())).len() as u32)
}

/// PCI addresses of the GPUs as sysfs has them, by the index that a plan uses.
pub(crate) fn pci_addresses() -> Vec<(u32, String)> {
    let Some(nvml) = load() else { return Vec::new() };
    let all = sample(&nvml, &mut Shares::default());
    let count = visible_gpus(&all).len().max(all.len()) as u32;
    let address = |index| Some((index, pci_address(&nvml, planned_gpu(index, &all)?.index)?));
    (0..count).filter_map(address).collect()
}

/// The GPUs that programs of this user see, in the order in which they count them. `None` stands for an
/// instance that the driver does not show.
pub(crate) fn visible_gpus(all: &[GpuSample]) -> Vec<Option<VisibleGpu>> {
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(list) => listed(&list, all),
        Err(_) => for_one_process(all.iter().map(|gpu| Some(VisibleGpu::whole(gpu))).collect()),
    }
}

/// Those that one process can use: an instance alone, or whole GPUs.
fn for_one_process(mut given: Vec<Option<VisibleGpu>>) -> Vec<Option<VisibleGpu>> {
    let is_whole = |one: &Option<VisibleGpu>| one.as_ref().is_some_and(|given| given.instance.is_none());
    let whole = given.iter().take_while(|one| is_whole(one)).count();
    given.truncate(whole.max(1));
    given
}

/// What the GPU of this index in a plan is here. The agent gives ranks the same: an index beyond the list
/// stays an index of the host.
pub(crate) fn planned_gpu(index: u32, all: &[GpuSample]) -> Option<VisibleGpu> {
    among(index, visible_gpus(all), all)
}

fn among(index: u32, mut visible: Vec<Option<VisibleGpu>>, all: &[GpuSample]) -> Option<VisibleGpu> {
    if (index as usize) < visible.len() {
        return visible.swap_remove(index as usize);
    }
    all.iter().find(|gpu| gpu.index == index).map(VisibleGpu::whole)
}

/// Parses the list as CUDA does: an invalid entry hides itself and all that follow. Of instances that are
/// named one by one, the agent gives each rank its own.
fn listed(list: &str, all: &[GpuSample]) -> Vec<Option<VisibleGpu>> {
    let entry = |entry: &str| match entry.parse::<u32>() {
        Ok(index) => all.iter().find(|gpu| gpu.index == index).map(|gpu| Some(VisibleGpu::whole(gpu))),
        Err(_) if entry.starts_with("MIG-") => Some(instance(entry, all)),
        Err(_) if entry.starts_with("GPU-") => {
            all.iter().find(|gpu| gpu.uuid.starts_with(entry)).map(|gpu| Some(VisibleGpu::whole(gpu)))
        }
        Err(_) => None,
    };
    let given = list.split(',').map(str::trim).map_while(entry).collect();
    if list.contains("MIG-") { given } else { for_one_process(given) }
}

/// Returns the instance of this name. Names of old drivers, `MIG-GPU-.../1/0`, contain its GPU only.
fn instance(entry: &str, all: &[GpuSample]) -> Option<VisibleGpu> {
    let named = |gpu: &GpuSample| {
        let uuid = gpu.instances.iter().find(|instance| instance.uuid.starts_with(entry))?.uuid.clone();
        Some(VisibleGpu { index: gpu.index, instance: Some(uuid) })
    };
    let of_gpu = |gpu: &&GpuSample| {
        let on = entry.strip_prefix("MIG-").and_then(|rest| rest.split('/').next());
        on.is_some_and(|on| on == gpu.uuid)
    };
    let old = || all.iter().find(of_gpu).map(|gpu| VisibleGpu { index: gpu.index, instance: None });
    all.iter().find_map(named).or_else(old)
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
        outside: Option<GpuWatch>,
        shown: Vec<Vec<GpuSample>>,
    }

    impl GpuDriver for Fake {
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
            self.shown.extend(self.outside.as_ref().map(GpuWatch::latest));
            let (_, error) = self.moments.pop_front()?;
            if self.moments.is_empty() {
                self.outside = None;
            }
            error.map(|(index, xid)| (uuid(index), xid))
        }
    }

    #[test]
    fn errors_throttling_and_lost_gpus_are_shown() {
        let gpus = GpuWatch::default();
        let moments = [(vec![0, 1], Some((1, 79))), (vec![0, 1], None), (vec![0], None)].into();
        let mut fake = Fake { moments, outside: Some(gpus.clone()), shown: Vec::new() };
        gpus.watch(&mut fake);
        let [before, error, lost] = fake.shown.as_slice() else { panic!("{:?}", fake.shown) };
        assert!(before.iter().all(|gpu| gpu.xids.is_empty() && !gpu.lost));
        assert_eq!(before[0].throttle, ["hardware thermal slowdown"]);
        assert_eq!((error[0].xids.len(), error[1].xids.as_slice()), (0, &[79][..]));
        assert_eq!((lost.len(), lost[0].lost, lost[1].lost, lost[1].name.as_str()), (2, false, true, "fake"));
        let words = crate::inspect::gpu_words(&lost[1]);
        assert!(words.starts_with("GPU 1: lost by the driver, Xid 79"), "{words}");
    }

    #[test]
    fn lost_gpu_does_not_pass_its_index_to_another() {
        let gpu = |index: u32, letter: char, used: u64| GpuSample {
            index,
            uuid: format!("GPU-{letter}"),
            memory_used: used,
            ..GpuSample::default()
        };
        let mut history = GpuHistory::default();
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
    fn gpu_that_is_lost_from_the_beginning_keeps_its_place() {
        let gpu = |index: u32, name: &str| GpuSample { index, uuid: name.into(), ..GpuSample::default() };
        let lost = |index: u32| GpuSample { index, lost: true, ..GpuSample::default() };
        let listed = |gpus: Vec<GpuSample>| -> Vec<(u32, String, bool)> {
            gpus.into_iter().map(|gpu| (gpu.index, gpu.uuid, gpu.lost)).collect()
        };
        let of = |index, name: &str, lost| (index, name.to_owned(), lost);
        let mut history = GpuHistory::default();
        let seen = listed(history.complete(vec![gpu(0, "a"), lost(1), gpu(2, "c")]));
        assert_eq!(seen, [of(0, "a", false), of(1, "", true), of(2, "c", false)]);
        let back = listed(history.complete(vec![gpu(0, "a"), gpu(1, "b"), gpu(2, "c")]));
        assert_eq!(back, [of(0, "a", false), of(1, "b", false), of(2, "c", false)]);
        let again = listed(history.complete(vec![gpu(0, "a"), lost(1), gpu(2, "c")]));
        assert_eq!(again, [of(0, "a", false), of(1, "b", true), of(2, "c", false)]);
    }

    #[test]
    fn old_errors_make_room() {
        let mut history = GpuHistory::default();
        for xid in 0..20 {
            history.report("", xid);
        }
        let seen = history.complete(vec![GpuSample::default()]);
        assert_eq!(seen[0].xids, (12..20).collect::<Vec<u64>>());
    }

    #[test]
    fn process_on_a_gpu_has_a_user_a_command_and_a_start() {
        let own = std::process::id();
        let gpu = GpuSample { processes: vec![(own, 1), (u32::MAX - 1, 1)], ..GpuSample::default() };
        let mut known = GpuUsers::default();
        let users = known.sample(std::slice::from_ref(&gpu), &BTreeSet::new());
        assert_eq!(users.len(), 2);
        assert!(!users[0].user.is_empty() && !users[0].command.is_empty(), "{users:?}");
        assert!(users[0].own && users[0].start == proc::stat(own).unwrap().start);
        assert!(!users[1].own && users[1].start == 0, "of one that is gone nothing is known: {users:?}");
        assert_eq!(known.sample(&[gpu], &BTreeSet::from([own])).len(), 1, "a rank is not another user");
        assert!(
            known.sample(&[], &BTreeSet::new()).is_empty() && known.0.is_empty(),
            "what is gone is forgotten"
        );
    }

    fn four() -> [GpuSample; 4] {
        [0, 1, 2, 3].map(|index: u32| {
            let instance =
                |name: &str| GpuInstance { uuid: format!("MIG-{index}{name}"), ..Default::default() };
            let instances = if index == 3 { vec![instance("a"), instance("b")] } else { Vec::new() };
            GpuSample { index, uuid: format!("GPU-{index}{index}ab"), instances, ..GpuSample::default() }
        })
    }

    fn given(index: u32, instance: Option<&str>) -> Option<VisibleGpu> {
        Some(VisibleGpu { index, instance: instance.map(str::to_owned) })
    }

    #[test]
    fn list_of_visible_devices_is_read_as_cuda_reads_it() {
        let all = four();
        let of = |list| listed(list, &all);
        assert_eq!(of("2,1"), [given(2, None), given(1, None)]);
        assert_eq!(of("GPU-22, 0"), [given(2, None), given(0, None)]);
        assert_eq!(of("1,9,2"), [given(1, None)]);
        assert_eq!(of("MIG-5"), [None]);
        assert_eq!(of("MIG-3b,MIG-3a"), [given(3, Some("MIG-3b")), given(3, Some("MIG-3a"))]);
        assert_eq!(of("3"), [given(3, Some("MIG-3a"))], "CUDA takes the first instance");
        assert_eq!(of("3,1"), [given(3, Some("MIG-3a"))], "and then nothing else");
        assert_eq!(of("1,3,2"), [given(1, None)], "or whole GPUs only");
        assert_eq!(of("MIG-GPU-33ab/2/0"), [given(3, None)]);
        assert!(of("").is_empty() && of("-1").is_empty());
    }

    #[test]
    fn index_of_a_plan_counts_among_them() {
        let all = four();
        let of = |index, list| among(index, listed(list, &all), &all);
        assert_eq!(of(0, "2,1"), given(2, None));
        assert_eq!(of(1, "MIG-3b,MIG-3a"), given(3, Some("MIG-3a")));
        assert_eq!(of(0, "MIG-5"), None, "not that of the host's index 0");
        assert_eq!(of(2, "1,0"), given(2, None), "as the agent gives it");
        assert_eq!(of(9, "1,0"), None);
    }
}
