//! The data of the home screen, and how events change it.

use rankdeck_charts::compare::series_names;
use rankdeck_core::compare::{self, ChangedKey, ComparedRun, SeedGroup};
use rankdeck_core::run_summary::RunSummary;
use rankdeck_kit::{Glyphs, Role};
use rankdeck_proto::message::{GpuSample, RunOutcome};
use rankdeck_proto::run_entry::{GivenGpu, HostSnapshot};
use rankdeck_types::error::HintedError;
use rankdeck_types::ids::Timestamp;
use std::collections::VecDeque;

/// Number of samples stored per GPU and host, for sparklines.
const HISTORY: usize = 120;
/// Maximum memory that a driver takes for itself: a share, and bytes.
const IDLE_MEMORY: (f64, u64) = (0.02, 1 << 30);
/// Maximum use of an idle GPU, percent.
const IDLE_USE: u32 = 5;
/// Maximum number of stored output lines.
const OUTPUT_LINES: usize = 2000;

/// Everything that home shows.
#[derive(Debug, Clone, Default)]
pub struct Home {
    /// Hosts in the order of the hosts file.
    pub hosts: Vec<FleetHost>,
    /// Runs, newest first.
    pub runs: Vec<RunRow>,
    /// Experiments of `configs/`, by path.
    pub experiments: Vec<ExperimentFile>,
    /// The plan of the selected experiment or of the launch form.
    pub preview: Option<LaunchPreview>,
    /// Running commands: number and title.
    pub jobs: Vec<(u64, String)>,
    /// Output of the latest command.
    pub last_output: Option<JobOutput>,
    /// Compared runs.
    pub compared: RunComparison,
    /// Why the hosts file cannot be read.
    pub error: Option<HintedError>,
    /// Increases with every change.
    pub revision: u64,
}

/// Compared runs.
#[derive(Debug, Clone, Default)]
pub struct RunComparison {
    pub runs: Vec<ComparedRun>,
    /// Runs that differ only by seed.
    pub groups: Vec<SeedGroup>,
    /// Config keys that differ.
    pub changed: Vec<ChangedKey>,
    /// Names of all series.
    pub series: Vec<String>,
    /// Why other runs cannot be read.
    pub missing: Vec<String>,
}

/// A host of the hosts file.
#[derive(Debug, Clone, Default)]
pub struct FleetHost {
    /// Name in the hosts file.
    pub name: String,
    pub address: String,
    /// The latest snapshot, without its list of runs.
    pub snapshot: Option<HostSnapshot>,
    /// Time of the snapshot.
    pub snapshot_at: Option<Timestamp>,
    /// Time of the latest list of runs.
    pub runs_at: Option<Timestamp>,
    /// Why it is unreachable; `None` if it is reachable.
    pub error: Option<HintedError>,
    /// CPU use in percent, newest last.
    pub cpu: VecDeque<f32>,
    /// Its GPUs.
    pub gpus: Vec<GpuTrack>,
}

/// A GPU over time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuTrack {
    /// NVML index.
    pub index: u32,
    /// Use in percent, newest last.
    pub history: VecDeque<f32>,
    /// Since when it is free; `None` while it is in use.
    pub free: Option<FreeSince>,
}

/// Since when a GPU is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeSince {
    /// When it was first observed as free.
    pub at: Timestamp,
    /// It was free in the first snapshot, so it may have been free for longer.
    pub or_longer: bool,
}

/// Phase of a run over all its hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RunPhase {
    /// Its agents are running.
    Running,
    /// Processes are left over without an agent.
    Orphaned,
    #[default]
    Ended,
    /// No host knows it; a recording exists on this machine.
    Recorded,
}

/// A run in the list.
#[derive(Debug, Clone, Default)]
pub struct RunRow {
    pub run: String,
    pub phase: RunPhase,
    /// Summary by its hosts, or by its recording.
    pub summary: RunSummary,
    /// Number of live ranks.
    pub alive: u32,
    /// Seconds since its start.
    pub age_s: Option<f64>,
    /// A recording exists on this machine, for replay and comparison.
    pub recorded: bool,
}

impl RunRow {
    /// Returns the run's state: sign, word and role.
    pub fn state(&self, glyphs: Glyphs) -> (&'static str, String, Role) {
        match (self.phase, self.summary.outcome) {
            (RunPhase::Running, _) if self.summary.restarting => {
                (glyphs.pick("↻", "@"), "restarting".into(), Role::Warn)
            }
            (RunPhase::Running, _) => (glyphs.pick("●", "o"), "running".into(), Role::Good),
            (RunPhase::Orphaned, _) => (glyphs.tone(Role::Bad), "orphaned".into(), Role::Bad),
            (RunPhase::Recorded, None) => (glyphs.tone(Role::Dim), "recording".into(), Role::Dim),
            (RunPhase::Ended | RunPhase::Recorded, outcome) => {
                let word = self.summary.outcome_text().unwrap_or_else(|| "ended".into());
                let role = match outcome {
                    Some(RunOutcome::Succeeded) => Role::Good,
                    Some(RunOutcome::Failed | RunOutcome::Stuck) => Role::Bad,
                    Some(RunOutcome::Stopped) => Role::Warn,
                    None => Role::Dim,
                };
                (glyphs.tone(role), word, role)
            }
        }
    }
}

/// An experiment file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExperimentFile {
    pub path: String,
    /// `run.name`.
    pub name: String,
    /// Environment and algorithm, or a command.
    pub what: String,
    /// Target in environment steps; 0: none.
    pub total_steps: u64,
    /// Why it cannot be read.
    pub error: Option<String>,
}

/// The plan of a launch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LaunchPreview {
    /// The experiment file.
    pub path: String,
    /// Overrides, as typed.
    pub typed: String,
    /// The plan, or what is wrong.
    pub lines: Vec<String>,
    /// It can be launched, as far as this machine knows.
    pub fits: bool,
}

/// Output of a command that has ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobOutput {
    pub title: String,
    pub succeeded: bool,
    pub lines: Vec<String>,
}

/// A change of what home shows.
#[derive(Debug, Clone)]
pub enum HomeEvent {
    /// All runs.
    Runs(Vec<RunRow>),
    /// A snapshot of the host with this index.
    Snapshot { host: usize, snapshot: Box<HostSnapshot> },
    /// The host with this index is unreachable.
    HostFailed { host: usize, error: HintedError },
    /// All experiments.
    Experiments(Vec<ExperimentFile>),
    /// A launch plan.
    Planned(LaunchPreview),
    /// Runs to compare, and why others cannot be read.
    Compared(Vec<ComparedRun>, Vec<String>),
    /// A command has started.
    JobStarted { job: u64, title: String },
    /// A command has ended.
    JobEnded { job: u64, output: JobOutput },
}

impl Home {
    /// Starts with these hosts: name and address.
    pub fn new(hosts: impl IntoIterator<Item = (String, String)>) -> Home {
        let hosts = hosts.into_iter();
        let hosts = hosts.map(|(name, address)| FleetHost { name, address, ..FleetHost::default() });
        Home { hosts: hosts.collect(), ..Home::default() }
    }

    /// Applies an event at `now`.
    pub fn update(&mut self, event: HomeEvent, now: Timestamp) {
        self.revision += 1;
        match event {
            HomeEvent::Runs(runs) => self.runs = runs,
            HomeEvent::Snapshot { host, snapshot } => {
                if let Some(host) = self.hosts.get_mut(host) {
                    host.update(*snapshot, now);
                }
            }
            HomeEvent::HostFailed { host, error } => {
                if let Some(host) = self.hosts.get_mut(host) {
                    host.error = Some(error);
                }
            }
            HomeEvent::Experiments(found) => self.experiments = found,
            HomeEvent::Planned(preview) => self.preview = Some(preview),
            HomeEvent::Compared(runs, missing) => {
                let (groups, changed) = (compare::groups(&runs), compare::changed(&runs));
                let series = series_names(&runs);
                self.compared = RunComparison { runs, groups, changed, series, missing };
            }
            HomeEvent::JobStarted { job, title } => self.jobs.push((job, title)),
            HomeEvent::JobEnded { job, mut output } => {
                self.jobs.retain(|(number, _)| *number != job);
                let surplus = output.lines.len().saturating_sub(OUTPUT_LINES);
                output.lines.drain(..surplus);
                self.last_output = Some(output);
            }
        }
    }

    /// Returns the run of this name.
    pub fn run(&self, name: &str) -> Option<&RunRow> {
        self.runs.iter().find(|row| row.run == name)
    }

    /// Returns the running runs with ranks on a host.
    pub fn runs_on(&self, host: &str) -> impl Iterator<Item = &RunRow> {
        let here = move |row: &&RunRow| {
            row.phase == RunPhase::Running && row.summary.hosts.iter().any(|name| name == host)
        };
        self.runs.iter().filter(here)
    }

    /// Returns the unreachable hosts.
    pub fn unreachable(&self) -> impl Iterator<Item = &FleetHost> {
        self.hosts.iter().filter(|host| host.error.is_some())
    }
}

impl FleetHost {
    fn update(&mut self, mut snapshot: HostSnapshot, now: Timestamp) {
        if snapshot.runs.take().is_some() {
            self.runs_at = Some(now);
        }
        push_bounded(&mut self.cpu, snapshot.sample.cpu_percent);
        let is_first = self.snapshot.is_none();
        self.gpus.retain(|track| snapshot.sample.gpus.iter().any(|gpu| gpu.index == track.index));
        for gpu in &snapshot.sample.gpus {
            let at = match self.gpus.iter().position(|track| track.index == gpu.index) {
                Some(at) => at,
                None => {
                    self.gpus.push(GpuTrack { index: gpu.index, ..GpuTrack::default() });
                    self.gpus.len() - 1
                }
            };
            let track = &mut self.gpus[at];
            push_bounded(&mut track.history, gpu.utilization.map_or(f32::NAN, |percent| percent as f32));
            let since = track.free.unwrap_or(FreeSince { at: now, or_longer: is_first });
            track.free = is_free(gpu).then_some(since);
        }
        (self.snapshot, self.snapshot_at, self.error) = (Some(snapshot), Some(now), None);
    }

    /// Returns the number of free GPUs and of all GPUs that are visible to this user, as a plan counts them.
    pub fn free(&self) -> (usize, usize) {
        let given = self.snapshot.as_ref().map_or(&[][..], |snapshot| &snapshot.given);
        (given.iter().filter(|gpu| is_free_for_ranks(gpu)).count(), given.len())
    }
}

fn push_bounded(history: &mut VecDeque<f32>, value: f32) {
    if history.len() == HISTORY {
        history.pop_front();
    }
    history.push_back(value);
}

/// Tests whether a GPU is free: no process, hardly any memory, no load. Containers hide processes, but not
/// memory.
pub fn is_free(gpu: &GpuSample) -> bool {
    let is_busy = gpu.utilization.is_some_and(|percent| percent > IDLE_USE);
    !gpu.lost && gpu.processes.is_empty() && is_empty(gpu.memory_used, gpu.memory_total) && !is_busy
}

/// Tests whether what a rank would get is free. It may be a part of a GPU, whose load is unknown.
fn is_free_for_ranks(gpu: &GivenGpu) -> bool {
    !gpu.lost && gpu.processes == 0 && is_empty(gpu.memory_used, gpu.memory_total)
}

/// Tests whether only the driver uses the memory.
fn is_empty(used: u64, total: u64) -> bool {
    used <= (total as f64 * IDLE_MEMORY.0) as u64 + IDLE_MEMORY.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::message::HostSample;

    fn snapshot(gpus: &[GpuSample]) -> HomeEvent {
        let sample = HostSample { gpus: gpus.to_vec(), cpu_percent: 10.0, ..HostSample::default() };
        let given = gpus.iter().map(given).collect();
        let snapshot = Box::new(HostSnapshot { sample, given, ..HostSnapshot::default() });
        HomeEvent::Snapshot { host: 0, snapshot }
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
    fn gpu_is_free_since_its_last_process_ended() {
        let mut home = Home::new([("a".to_owned(), "a".to_owned())]);
        home.update(snapshot(&[gpu(0, false), gpu(1, true)]), Timestamp(1000));
        let free = |home: &Home, at: usize| home.hosts[0].gpus[at].free;
        assert_eq!(free(&home, 0), Some(FreeSince { at: Timestamp(1000), or_longer: true }));
        assert_eq!((free(&home, 1), home.hosts[0].free()), (None, (1, 2)));
        home.update(snapshot(&[gpu(0, false), gpu(1, false)]), Timestamp(3000));
        assert_eq!(free(&home, 0).map(|free| free.at), Some(Timestamp(1000)));
        assert_eq!(free(&home, 1), Some(FreeSince { at: Timestamp(3000), or_longer: false }));
        home.update(snapshot(&[gpu(1, true)]), Timestamp(5000));
        assert_eq!((home.hosts[0].gpus.len(), free(&home, 0)), (1, None), "a removed GPU is not free");
    }

    #[test]
    fn only_visible_gpus_count_as_free() {
        let all = [gpu(0, false), gpu(1, false), gpu(2, true)];
        let free = |given: Vec<GivenGpu>| {
            let mut home = Home::new([("a".to_owned(), "a".to_owned())]);
            let sample = HostSample { gpus: all.to_vec(), ..HostSample::default() };
            let snapshot = Box::new(HostSnapshot { sample, given, ..HostSnapshot::default() });
            home.update(HomeEvent::Snapshot { host: 0, snapshot }, Timestamp(0));
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
    fn gpu_with_used_memory_is_not_free_without_processes() {
        let hidden = GpuSample { memory_used: 20 << 30, ..gpu(0, false) };
        assert!(is_free(&gpu(0, false)) && !is_free(&hidden));
        assert!(!is_free(&GpuSample { lost: true, ..gpu(0, false) }));
    }

    #[test]
    fn histories_are_bounded_and_a_snapshot_clears_the_error() {
        let mut home = Home::new([("a".to_owned(), "a".to_owned())]);
        home.update(HomeEvent::HostFailed { host: 0, error: HintedError::new("gone", "") }, Timestamp(0));
        assert_eq!(home.unreachable().count(), 1);
        for at in 0..HISTORY as u64 + 50 {
            home.update(snapshot(&[gpu(0, true)]), Timestamp(at));
        }
        assert_eq!((home.hosts[0].cpu.len(), home.hosts[0].gpus[0].history.len()), (HISTORY, HISTORY));
        assert_eq!(home.unreachable().count(), 0);
        home.update(HomeEvent::HostFailed { host: 9, error: HintedError::new("x", "") }, Timestamp(0));
    }
}
