//! What home knows: data, and how news change it. Pure.

use rankdeck_core::compare::{self, ChangedKey, ComparedRun, Group};
use rankdeck_core::run_summary::RunSummary;
use rankdeck_proto::fleet::{GivenGpu, HostLook};
use rankdeck_proto::message::GpuSample;
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::Timestamp;
use std::collections::VecDeque;

/// Looks kept of each GPU and host, for sparklines.
const HISTORY: usize = 120;
/// Memory of a GPU that a driver takes for itself, at most: a share, and bytes.
const IDLE_MEMORY: (f64, u64) = (0.02, 1 << 30);
/// Use that counts as none, percent.
const IDLE_USE: u32 = 5;
/// Most lines kept of what a command said.
const SAID: usize = 2000;

/// Everything that home shows.
#[derive(Debug, Clone, Default)]
pub struct Home {
    /// Hosts in the order of the hosts file.
    pub hosts: Vec<FleetHost>,
    /// Runs, newest first.
    pub runs: Vec<RunRow>,
    /// Experiments of `configs/`, by path.
    pub experiments: Vec<Experiment>,
    /// The plan of what is typed or selected.
    pub draft: Option<Draft>,
    /// Commands that go on: number and title.
    pub jobs: Vec<(u64, String)>,
    /// What the latest command said.
    pub said: Option<CommandEnd>,
    /// Runs that are compared.
    pub compared: RunComparison,
    /// Why there are no hosts.
    pub trouble: Option<HintedError>,
    /// Grows with every change.
    pub revision: u64,
}

/// Runs beside each other.
#[derive(Debug, Clone, Default)]
pub struct RunComparison {
    pub runs: Vec<ComparedRun>,
    /// Those that differ in nothing but the seed.
    pub groups: Vec<Group>,
    /// Keys that differ.
    pub changed: Vec<ChangedKey>,
    /// Series that any of them has.
    pub series: Vec<String>,
    /// Runs that could not be read, and why.
    pub missing: Vec<String>,
}

/// A host, whatever runs there.
#[derive(Debug, Clone, Default)]
pub struct FleetHost {
    /// Its name in the hosts file.
    pub name: String,
    pub address: String,
    /// The latest look, without its list of runs.
    pub look: Option<HostLook>,
    /// When that came.
    pub heard: Option<Timestamp>,
    /// When its runs were last told.
    pub listed: Option<Timestamp>,
    /// Why it cannot be asked; `None` while it can.
    pub trouble: Option<HintedError>,
    /// CPU use, percent, newest last.
    pub cpu: VecDeque<f32>,
    /// Its GPUs over time.
    pub gpus: Vec<GpuTrack>,
}

/// A GPU over time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuTrack {
    /// NVML index.
    pub index: u32,
    /// Use, percent, newest last.
    pub history: VecDeque<f32>,
    /// Since when nobody uses it.
    pub free: Option<FreeSince>,
}

/// Since when something is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeSince {
    /// When that was first seen.
    pub at: Timestamp,
    /// It was so when it was first looked at: it may have been free for longer.
    pub or_longer: bool,
}

/// What a run is in, over all its hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Life {
    /// Its agents serve it.
    Running,
    /// Processes are left, but no agent.
    Orphaned,
    #[default]
    Over,
    /// Only a record of it lies here.
    Recorded,
}

/// A run in the list.
#[derive(Debug, Clone, Default)]
pub struct RunRow {
    /// Its name.
    pub run: String,
    /// What it is in.
    pub life: Life,
    /// What its hosts say of it.
    pub summary: RunSummary,
    /// Ranks that live.
    pub alive: u32,
    /// Seconds since it began.
    pub age_s: Option<f64>,
    /// A record of it lies here, which can be replayed and compared at once.
    pub recorded: bool,
}

/// An experiment file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Experiment {
    pub path: String,
    /// `run.name`.
    pub name: String,
    /// What it runs: environment and algorithm, or a command.
    pub what: String,
    /// The goal in environment steps, 0 without one.
    pub total_steps: u64,
    /// What is wrong with it.
    pub wrong: Option<String>,
}

/// A plan before a launch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Draft {
    /// Of which file.
    pub path: String,
    /// With which changes.
    pub typed: String,
    /// The plan in lines, or the mistakes.
    pub lines: Vec<String>,
    /// It can be launched, as far as that is known here.
    pub fits: bool,
}

/// What a command said at its end.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CommandEnd {
    /// What was asked for.
    pub title: String,
    /// It ended well.
    pub well: bool,
    /// Its output.
    pub lines: Vec<String>,
}

/// Something that home is told.
#[derive(Debug, Clone)]
pub enum HomeEvent {
    /// All runs that are known now.
    Runs(Vec<RunRow>),
    /// A host has told itself.
    Looked {
        /// Its index.
        host: usize,
        /// What it told.
        look: Box<HostLook>,
    },
    /// A host cannot be asked.
    Failed {
        /// Its index.
        host: usize,
        /// Why it gave no answer.
        error: HintedError,
    },
    /// Experiments that were found.
    Experiments(Vec<Experiment>),
    /// A plan was made.
    Drafted(Draft),
    /// Records were read: runs, and why others could not be.
    Compared(Vec<ComparedRun>, Vec<String>),
    /// A command has begun.
    Began {
        /// Its number.
        job: u64,
        /// What it is for.
        title: String,
    },
    /// A command has ended.
    Ended {
        /// Its number.
        job: u64,
        said: CommandEnd,
    },
}

impl Home {
    /// With these hosts, of which nothing is known yet: name and address.
    pub fn new(hosts: impl IntoIterator<Item = (String, String)>) -> Home {
        let hosts = hosts.into_iter();
        let hosts = hosts.map(|(name, address)| FleetHost { name, address, ..FleetHost::default() });
        Home { hosts: hosts.collect(), ..Home::default() }
    }

    /// Applies news that came at `now`.
    pub fn update(&mut self, event: HomeEvent, now: Timestamp) {
        self.revision += 1;
        match event {
            HomeEvent::Runs(runs) => self.runs = runs,
            HomeEvent::Looked { host, look } => {
                if let Some(host) = self.hosts.get_mut(host) {
                    host.looked(*look, now);
                }
            }
            HomeEvent::Failed { host, error } => {
                if let Some(host) = self.hosts.get_mut(host) {
                    host.trouble = Some(error);
                }
            }
            HomeEvent::Experiments(found) => self.experiments = found,
            HomeEvent::Drafted(draft) => self.draft = Some(draft),
            HomeEvent::Compared(runs, missing) => {
                let (groups, changed) = (compare::groups(&runs), compare::changed(&runs));
                let series = crate::compare::names(&runs);
                self.compared = RunComparison { runs, groups, changed, series, missing };
            }
            HomeEvent::Began { job, title } => self.jobs.push((job, title)),
            HomeEvent::Ended { job, mut said } => {
                self.jobs.retain(|(number, _)| *number != job);
                let surplus = said.lines.len().saturating_sub(SAID);
                said.lines.drain(..surplus);
                self.said = Some(said);
            }
        }
    }

    /// The run of this name.
    pub fn run(&self, name: &str) -> Option<&RunRow> {
        self.runs.iter().find(|row| row.run == name)
    }

    /// Runs that go on and have ranks on a host.
    pub fn runs_on(&self, host: &str) -> impl Iterator<Item = &RunRow> {
        let here = move |row: &&RunRow| {
            row.life == Life::Running && row.summary.hosts.iter().any(|name| name == host)
        };
        self.runs.iter().filter(here)
    }

    /// Hosts that cannot be asked.
    pub fn silent(&self) -> impl Iterator<Item = &FleetHost> {
        self.hosts.iter().filter(|host| host.trouble.is_some())
    }
}

impl FleetHost {
    fn looked(&mut self, mut look: HostLook, now: Timestamp) {
        if look.runs.take().is_some() {
            self.listed = Some(now);
        }
        keep(&mut self.cpu, look.sample.cpu_percent);
        let first = self.look.is_none();
        self.gpus.retain(|track| look.sample.gpus.iter().any(|gpu| gpu.index == track.index));
        for gpu in &look.sample.gpus {
            let at = match self.gpus.iter().position(|track| track.index == gpu.index) {
                Some(at) => at,
                None => {
                    self.gpus.push(GpuTrack { index: gpu.index, ..GpuTrack::default() });
                    self.gpus.len() - 1
                }
            };
            let track = &mut self.gpus[at];
            keep(&mut track.history, gpu.utilization.map_or(f32::NAN, |percent| percent as f32));
            let since = track.free.unwrap_or(FreeSince { at: now, or_longer: first });
            track.free = is_free(gpu).then_some(since);
        }
        (self.look, self.heard, self.trouble) = (Some(look), Some(now), None);
    }

    /// GPUs that nobody uses, of how many: those that programs of this user are given, as a plan counts them.
    pub fn free(&self) -> (usize, usize) {
        let given = self.look.as_ref().map_or(&[][..], |look| &look.given);
        (given.iter().filter(|gpu| is_free_for_ranks(gpu)).count(), given.len())
    }
}

fn keep(history: &mut VecDeque<f32>, value: f32) {
    if history.len() == HISTORY {
        history.pop_front();
    }
    history.push_back(value);
}

/// Nobody uses it: no process, hardly any memory, no work. In containers processes do not show, memory does.
pub fn is_free(gpu: &GpuSample) -> bool {
    let works = gpu.utilization.is_some_and(|percent| percent > IDLE_USE);
    !gpu.lost && gpu.processes.is_empty() && is_empty(gpu.memory_used, gpu.memory_total) && !works
}

/// The same of one that a rank could get, which may be a part of a GPU: nobody tells how much that works.
fn is_free_for_ranks(gpu: &GivenGpu) -> bool {
    !gpu.lost && gpu.processes == 0 && is_empty(gpu.memory_used, gpu.memory_total)
}

/// No more is in use than a driver takes for itself.
fn is_empty(used: u64, total: u64) -> bool {
    used <= (total as f64 * IDLE_MEMORY.0) as u64 + IDLE_MEMORY.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::message::HostSample;

    fn look(gpus: &[GpuSample]) -> HomeEvent {
        let sample = HostSample { gpus: gpus.to_vec(), cpu_percent: 10.0, ..HostSample::default() };
        let given = gpus.iter().map(given).collect();
        HomeEvent::Looked { host: 0, look: Box::new(HostLook { sample, given, ..HostLook::default() }) }
    }

    fn given(gpu: &GpuSample) -> GivenGpu {
        let GpuSample { memory_used, memory_total, lost, .. } = *gpu;
        GivenGpu { memory_used, memory_total, lost, processes: gpu.processes.len() as u32 }
    }

    fn gpu(index: u32, busy: bool) -> GpuSample {
        GpuSample {
            index,
            memory_total: 80 << 30,
            utilization: Some(if busy { 97 } else { 0 }),
            processes: if busy { vec![(7, 1 << 30)] } else { Vec::new() },
            ..GpuSample::default()
        }
    }

    #[test]
    fn a_gpu_is_free_since_its_last_process_has_gone() {
        let mut home = Home::new([("a".to_owned(), "a".to_owned())]);
        home.update(look(&[gpu(0, false), gpu(1, true)]), Timestamp(1000));
        let free = |home: &Home, at: usize| home.hosts[0].gpus[at].free;
        assert_eq!(free(&home, 0), Some(FreeSince { at: Timestamp(1000), or_longer: true }));
        assert_eq!((free(&home, 1), home.hosts[0].free()), (None, (1, 2)));
        home.update(look(&[gpu(0, false), gpu(1, false)]), Timestamp(3000));
        assert_eq!(free(&home, 0).map(|free| free.at), Some(Timestamp(1000)));
        assert_eq!(free(&home, 1), Some(FreeSince { at: Timestamp(3000), or_longer: false }));
        home.update(look(&[gpu(1, true)]), Timestamp(5000));
        assert_eq!(
            (home.hosts[0].gpus.len(), free(&home, 0)),
            (1, None),
            "a GPU that is gone is no free one"
        );
    }

    #[test]
    fn only_gpus_that_ranks_are_given_count_as_free() {
        let all = [gpu(0, false), gpu(1, false), gpu(2, true)];
        let free = |given: Vec<GivenGpu>| {
            let mut home = Home::new([("a".to_owned(), "a".to_owned())]);
            let sample = HostSample { gpus: all.to_vec(), ..HostSample::default() };
            let look = Box::new(HostLook { sample, given, ..HostLook::default() });
            home.update(HomeEvent::Looked { host: 0, look }, Timestamp(0));
            home.hosts[0].free()
        };
        assert_eq!(free(vec![given(&all[1]), given(&all[2])]), (1, 2), "CUDA_VISIBLE_DEVICES=1,2");
        assert_eq!(free(Vec::new()), (0, 0), "none is visible");
        let part = GivenGpu { memory_total: 10 << 30, ..GivenGpu::default() };
        let lost = GivenGpu { lost: true, ..part };
        let used = GivenGpu { memory_used: 4 << 30, ..part };
        assert_eq!(free(vec![part, part, used, lost]), (2, 4), "instances of one GPU");
    }

    #[test]
    fn memory_shows_a_process_that_a_container_hides() {
        let hidden = GpuSample { memory_used: 20 << 30, ..gpu(0, false) };
        assert!(is_free(&gpu(0, false)) && !is_free(&hidden));
        assert!(!is_free(&GpuSample { lost: true, ..gpu(0, false) }));
    }

    #[test]
    fn histories_are_bounded_and_a_host_that_answers_again_is_no_trouble() {
        let mut home = Home::new([("a".to_owned(), "a".to_owned())]);
        home.update(HomeEvent::Failed { host: 0, error: HintedError::new("gone", "") }, Timestamp(0));
        assert_eq!(home.silent().count(), 1);
        for at in 0..HISTORY as u64 + 50 {
            home.update(look(&[gpu(0, true)]), Timestamp(at));
        }
        assert_eq!((home.hosts[0].cpu.len(), home.hosts[0].gpus[0].history.len()), (HISTORY, HISTORY));
        assert_eq!(home.silent().count(), 0);
        home.update(HomeEvent::Failed { host: 9, error: HintedError::new("x", "") }, Timestamp(0));
    }
}
