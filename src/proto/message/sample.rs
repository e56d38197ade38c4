//! Samples of a host, its ranks with their status pages, and its GPUs.

use crate::inspection::Pressure;
use crate::process::GpuUser;
use crate::status_page::LANES;
use rankdeck_types::ids::{Generation, Rank, WallTime};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// World size from which a console reads hundreds of samples per second.
const LARGE_WORLD: usize = 256;

/// Returns the interval of samples of a host whose ranks all make progress.
pub const fn calm_round(world_size: usize) -> Duration {
    Duration::from_millis(if world_size < LARGE_WORLD { 500 } else { 1000 })
}

/// Values of one host at one time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HostSample {
    /// The agent's monotonic clock, ms.
    pub mono_ms: u64,
    /// The agent's wall clock.
    pub wall_time: WallTime,
    /// Generation that the ranks below belong to.
    pub generation: Generation,
    /// Busy share of all cores, percent 0..=100.
    pub cpu_percent: f32,
    /// Number of cores.
    pub cpu_count: u32,
    /// Memory in use, bytes.
    pub memory_used: u64,
    /// Memory in all, bytes.
    pub memory_total: u64,
    /// The kernel's 1-minute load.
    pub load1: f32,
    /// This host's ranks.
    pub ranks: Vec<RankSample>,
    /// Ranks that this host's ranks have started themselves, of process groups of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inner: Vec<InnerRankSample>,
    /// This host's GPUs; may be empty.
    pub gpus: Vec<GpuSample>,
    /// Processes on those GPUs that are neither ranks nor their children.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<GpuUser>,
    /// Samples and log lines that this connection has dropped so far; 0 in a sample that was not sent yet.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped: u64,
    /// Invalid lines on the event socket so far.
    #[serde(default)]
    pub malformed: u64,
    /// Histograms and images of ranks that were not forwarded so far: too many, too large, or invalid.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub withheld: u64,
    /// Milliseconds until a stop that is under way kills ranks that show no progress; `None` without one, and
    /// in a sample that was not sent yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kills_in_ms: Option<u64>,
    /// Signals of the host that explain a stuck or slow rank.
    #[serde(default)]
    pub signals: HostSignals,
}

/// A rank that a rank of the plan has started itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InnerRankSample {
    /// The rank that has started it.
    pub outer: Rank,
    /// As for ranks of the plan; its number is that in its own group.
    pub sample: RankSample,
}

/// Signals of a host that explain stuck or slow ranks.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostSignals {
    /// Pressure-stall information; `None` on kernels without it.
    pub pressure: Option<Pressure>,
    /// The network interface of the worker group; `None` if unknown or local to the host.
    pub link: Option<LinkSample>,
    /// Milliseconds that the machine was suspended since the start of the agent (boot-time clock minus
    /// monotonic clock).
    pub suspended_ms: u64,
}

/// One network interface.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkSample {
    /// Name of the interface.
    pub name: String,
    /// It is enabled and has a carrier.
    pub up: bool,
    /// Carrier changes since boot.
    pub carrier_changes: u64,
}

/// Returns whether a value is the default, which samples omit: most ranks are neither stuck nor slow.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Values of one rank from the operating system and its status page.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankSample {
    /// The sampled rank.
    pub rank: Rank,
    /// Process id.
    pub pid: u32,
    /// State letter of `/proc/PID/stat`: `R S D T t Z`; `X` if it is gone.
    pub state: char,
    /// CPU use of the rank and its children, percent of one core.
    pub cpu_percent: f32,
    /// Resident memory of the rank and its children, bytes.
    pub rss: u64,
    /// Live descendants.
    pub children: u32,
    /// Kernel function that it waits in; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub wchan: String,
    /// Index of its GPU on this host: that of its processes, else that of the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// Memory on that GPU, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_memory: Option<u64>,
    /// Its share of a GPU that others use as well, percent; `None` if it is alone on the GPU, or the share is
    /// unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_share: Option<u32>,
    /// Its status page; `None` for programs without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<PageSample>,
    /// Signals that explain a stuck or slow rank.
    #[serde(default, skip_serializing_if = "is_default")]
    pub signals: RankSignals,
    /// What it has printed and not finished, such as a progress bar, at most 512 bytes; in no log. Empty if it
    /// has finished its line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub live: String,
}

impl RankSample {
    /// Returns whether its process has exited: its usage is no longer measured.
    pub fn is_gone(&self) -> bool {
        matches!(self.state, 'X' | 'Z')
    }
}

/// Signals that explain a stuck or slow rank. Counters only grow while the process is alive; readers use
/// differences between samples.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RankSignals {
    /// CPU time of all its threads so far, without children, ms.
    #[serde(skip_serializing_if = "is_zero")]
    pub cpu_ms: u64,
    /// Time that its main thread was ready to run but got no core, so far, ms; 0 if the kernel does not
    /// report it.
    #[serde(skip_serializing_if = "is_zero")]
    pub delay_ms: u64,
    /// Page faults that read from disk, so far.
    #[serde(skip_serializing_if = "is_zero")]
    pub major_faults: u64,
    /// Bytes that it and its children have read from and written to storage so far.
    #[serde(skip_serializing_if = "is_zero")]
    pub io_bytes: u64,
    /// Its descendants, at most 64; [`RankSample::children`] counts all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<ChildSample>,
    /// Its cgroup; `None` if it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<CgroupSample>,
    /// Its main thread, without trackers, writers and loaders in other threads; `None` if the kernel does not
    /// report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub main: Option<MainThread>,
    /// The only core that its main thread may use; `None` if there are more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_core: Option<u32>,
    /// The latest blocks of returns that a script's rank has printed, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub returns: Vec<ReturnBlock>,
}

/// Returns of a few single episodes in a row, as a rank has printed them: those of ranks whose environments have the
/// same seed are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ReturnBlock {
    /// From 0: block `n` has the returns `n * 8` to `n * 8 + 7`.
    pub number: u64,
    /// Hash of the returns.
    pub hash: u32,
    /// They differ among themselves, so that equal blocks are no coincidence.
    pub differs_within: bool,
}

/// Counters of the main thread of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MainThread {
    /// Time on a core, microseconds.
    pub cpu_us: u64,
    /// Number of times that it got a core; a thread that only waits gets none.
    pub turns: u64,
    /// Bytes that it has read and written: files, pipes, the terminal, storage.
    pub io_bytes: u64,
    /// Bytes of the process's TCP connections, open and closed; `None` while other counters change, because
    /// it costs more than the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net_bytes: Option<u64>,
}

/// A descendant of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ChildSample {
    /// Process id on its host.
    pub pid: u32,
    /// Name of its program, at most 15 bytes.
    pub name: String,
    /// State letter; `Z`: it has exited and was not waited for.
    pub state: char,
    /// CPU time so far, ms.
    pub cpu_ms: u64,
    /// Its parent; 0 if unknown.
    pub parent: u32,
    /// Bytes that it has read and written so far.
    #[serde(skip_serializing_if = "is_zero")]
    pub io_bytes: u64,
    /// Bytes of its TCP connections, open and closed, without those shared with its parent; `None` if
    /// [`MainThread::net_bytes`] is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net_bytes: Option<u64>,
}

/// The cgroup of a rank: version 1 or 2.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CgroupSample {
    /// Path below the mount point of the hierarchy.
    pub path: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub frozen: bool,
    /// Elapsed periods of its CPU quota; 0 without a quota.
    #[serde(skip_serializing_if = "is_zero")]
    pub periods: u64,
    /// Periods in which it was throttled.
    #[serde(skip_serializing_if = "is_zero")]
    pub throttled: u64,
    /// Milliseconds for which it was throttled, summed over cores; 0 if unknown.
    #[serde(skip_serializing_if = "is_zero")]
    pub throttled_ms: u64,
    /// Its processes that the out-of-memory killer has killed.
    #[serde(skip_serializing_if = "is_zero")]
    pub oom_kills: u64,
    /// Milliseconds in which all its runnable processes waited for memory; 0 with version 1.
    #[serde(skip_serializing_if = "is_zero")]
    pub memory_stall_ms: u64,
    /// Number of times that it reached its memory limit.
    #[serde(skip_serializing_if = "is_zero")]
    pub limit_hits: u64,
}

/// One GPU, as reported by NVML; `None` if unknown.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct GpuSample {
    /// NVML index on the host.
    pub index: u32,
    /// Product name.
    pub name: String,
    /// Unique name, `GPU-...`.
    #[serde(default)]
    pub uuid: String,
    /// Share of time with a kernel running, percent.
    pub utilization: Option<u32>,
    /// Memory in use, bytes.
    pub memory_used: u64,
    /// Bytes.
    pub memory_total: u64,
    /// Watts.
    pub power_w: Option<f32>,
    /// Watts.
    pub power_limit_w: Option<f32>,
    /// Degrees Celsius.
    pub temperature_c: Option<u32>,
    /// Streaming-multiprocessor clock, MHz.
    pub sm_clock_mhz: Option<u32>,
    pub memory_clock_mhz: Option<u32>,
    /// Reasons of throttled clocks as text; may be empty.
    #[serde(default)]
    pub throttle: Vec<String>,
    /// Corrected memory errors since the driver was loaded; `None` without ECC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecc_corrected: Option<u64>,
    /// Uncorrected memory errors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecc_uncorrected: Option<u64>,
    /// Bytes per second received over PCIe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie_rx: Option<u64>,
    /// Bytes per second sent over PCIe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie_tx: Option<u64>,
    /// Bytes per second received over all NVLinks; `None` without them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink_rx: Option<u64>,
    /// Bytes per second sent over all NVLinks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink_tx: Option<u64>,
    /// Recovered errors of its NVLinks since the driver was loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink_errors: Option<u64>,
    /// Processes on it: (pid, bytes).
    #[serde(default)]
    pub processes: Vec<(u32, u64)>,
    /// Recent share of each process, if the driver reports it: (pid, percent).
    #[serde(default)]
    pub shares: Vec<(u32, u32)>,
    /// The driver's latest error reports (Xid numbers), oldest first, at most 8.
    #[serde(default)]
    pub xids: Vec<u64>,
    /// The driver has lost it.
    #[serde(default)]
    pub lost: bool,
    /// Its MIG instances; with any, its utilization is unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<GpuInstance>,
}

/// A MIG instance: a part of a GPU with separate memory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuInstance {
    /// Unique name, `MIG-...`.
    pub uuid: String,
    /// Product name, with the profile.
    pub name: String,
    /// Memory in use, bytes.
    pub memory_used: u64,
    /// Bytes.
    pub memory_total: u64,
    /// Processes on it: (pid, bytes).
    pub processes: Vec<(u32, u64)>,
}

/// The status page of one rank; ages are computed by the agent on the rank's own clock.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PageSample {
    /// Phase of the rank.
    pub phase: Phase,
    /// Milliseconds since the phase began.
    pub phase_age_ms: u64,
    /// Increases while the phase makes progress.
    pub phase_progress: u64,
    /// Milliseconds since anything on the page changed.
    pub heartbeat_age_ms: u64,
    pub train_iter: u64,
    /// Environment steps of this rank.
    pub env_step: u64,
    /// Samples of this rank.
    pub samples: u64,
    /// Finished episodes of this rank.
    pub episodes: u64,
    /// Optimizer updates.
    pub updates: u64,
    /// The latest collective.
    pub collective: CollectiveSample,
    /// The page is written by the hook in a Python rank, which counts collectives and optimizer steps, but
    /// has no phases.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_hook: bool,
    /// Activity within the phase.
    #[serde(default, skip_serializing_if = "Activity::is_none")]
    pub activity: Activity,
    /// Milliseconds since the activity began; 0 without one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub activity_age_ms: u64,
    /// Completed amount of a phase of known length.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub done: u64,
    /// Total amount of the phase; 0 if unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub total: u64,
    /// Groups (communicators), the group of all ranks first; empty for old pages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupSample>,
    /// Starts of some of the latest iterations, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub iterations: Vec<IterationSample>,
    /// Fingerprints of the weights after some of the latest steps of each optimizer, by optimizer and step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fingerprints: Vec<FingerprintSample>,
    /// Milliseconds in each phase so far (indices of [`Phase::ALL`]), without the time inside collectives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own_ms: Vec<u64>,
    /// The latest collectives, oldest first; only while the page does not change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recent: Vec<RecentCollective>,
    /// How a script has called `init_process_group`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_arguments: Option<GroupArguments>,
    /// How long a script's training loop has waited for its input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<InputSample>,
    /// Members of the group of all ranks of the built-in trainer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub membership: Option<GroupMembership>,
}

/// How many ranks are in the group of all ranks, which may shrink and grow again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GroupMembership {
    /// Changes of its members since the launch.
    pub epoch: u32,
    /// Ranks in it.
    pub members: u32,
}

impl PageSample {
    /// Returns the completed training iterations; `None` for a script without optimizer steps, which the hook
    /// counts.
    pub fn iteration(&self) -> Option<u64> {
        (!self.by_hook || self.train_iter > 0).then_some(self.train_iter)
    }
}

/// What a training loop waits for before it can compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputKind {
    /// The next batch of a data loader.
    #[default]
    DataLoader,
    /// A step of the environments in worker processes.
    Environments,
}

/// Time that a script's training loop has spent waiting for its input, as the hook counts it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct InputSample {
    /// Of the latest wait.
    pub kind: InputKind,
    /// All waits so far, ms.
    pub waited_ms: u64,
    /// `FILE:LINE` of the latest wait; empty if unknown.
    pub site: String,
}

/// Arguments of the latest call of `init_process_group`, from its parameters and the environment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GroupArguments {
    /// Number of calls so far.
    pub calls: u32,
    pub rank: Option<u32>,
    pub world_size: Option<u32>,
    /// Address of the store, or path of its file; empty for a store that the program made.
    pub address: String,
    pub port: Option<u16>,
    /// `gloo`, `nccl`, ...; empty for several, and where PyTorch chooses.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub backend: String,
    /// `FILE:LINE` of the call; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub site: String,
    /// Variables with another rank or number of ranks than rankdeck has set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contradicting: Vec<String>,
}

/// Counters of one group of ranks (communicator).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GroupSample {
    /// Name, equal on all members.
    pub name: String,
    /// Members; 0 if unknown.
    pub size: u32,
    /// Number of its latest collective that was entered.
    pub entered: u64,
    /// Number of its latest collective that was left.
    pub left: u64,
    /// Chain hash of all its collectives, equal on all members that entered the same ones.
    pub chain: u64,
}

/// Start of an iteration, in counters of the group of all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct IterationSample {
    /// Number of the training iteration.
    pub train_iter: u64,
    /// Collectives entered before it.
    pub seq: u64,
    /// Chain hash at the start.
    pub chain: u64,
    /// Milliseconds since the start.
    pub age_ms: u64,
    /// Microseconds spent inside collectives before it.
    pub wait_us: u64,
}

/// Where a fingerprint was taken. Ranks that train one model have the same weights at the same position; their
/// numbers of steps may differ there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct FingerprintPosition {
    /// Collectives of the group of all ranks that were entered before it.
    pub seq: u64,
    /// Steps of the optimizer since the latest of them.
    pub steps: u64,
}

/// Number of an "optimizer" whose fingerprints are those of the running statistics of normalizers.
pub const NORMALIZERS: u32 = 8;

/// Fingerprint of the weights of an optimizer between two of its steps, from a few elements of each
/// parameter; or of the running statistics of normalizers ([`NORMALIZERS`]).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct FingerprintSample {
    /// Number of the optimizer, in the order of first steps.
    pub optimizer: u32,
    /// Completed steps; 0 before the first.
    pub step: u64,
    /// Hash of the shapes and element types of its parameters.
    pub shapes: u32,
    /// Hashes of the elements by part; 0 for a part without elements.
    pub lanes: [u32; LANES],
    /// Sum of the elements.
    pub sum: f64,
    /// Sum of their magnitudes.
    pub scale: f64,
    /// Whether all elements are finite; else the sums are 0.
    pub finite: bool,
    /// A collective was called since the previous step. Ranks that average weights only at times are equal
    /// only there.
    #[serde(default)]
    pub synced: bool,
    /// One of the first steps was made without such a collective before it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub local: bool,
    /// Where it was taken; `None` from older hooks, which count only steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<FingerprintPosition>,
}

impl FingerprintSample {
    /// Returns where it was taken; without a position, its step stands for it.
    pub fn place(&self) -> FingerprintPosition {
        self.position.unwrap_or(FingerprintPosition { seq: 0, steps: self.step })
    }
}

/// Activity of a rank within a phase; the numbers are the status page's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u32)]
pub enum Activity {
    /// None.
    #[default]
    None = 0,
    /// An environment is being reset.
    EnvReset = 1,
    /// Environments are being stepped.
    EnvStep = 2,
    /// Actions are being computed.
    Act = 3,
    /// A batch is being sampled from replay.
    Sample = 4,
    /// Forward pass of a loss.
    Forward = 5,
    /// Backward pass.
    Backward = 6,
    /// The optimizer makes a step.
    Optimize = 7,
    /// A file is being written.
    Save = 8,
    /// A file is being read.
    Load = 9,
    /// Code is being compiled.
    Compile = 10,
}

impl Activity {
    /// All activities, in the order of their numbers.
    pub const ALL: [Activity; 11] = [
        Activity::None,
        Activity::EnvReset,
        Activity::EnvStep,
        Activity::Act,
        Activity::Sample,
        Activity::Forward,
        Activity::Backward,
        Activity::Optimize,
        Activity::Save,
        Activity::Load,
        Activity::Compile,
    ];

    fn is_none(&self) -> bool {
        *self == Activity::None
    }

    /// Returns the displayed name; empty for [`Activity::None`].
    pub fn name(self) -> &'static str {
        match self {
            Activity::None => "",
            Activity::EnvReset => "env reset",
            Activity::EnvStep => "env step",
            Activity::Act => "act",
            Activity::Sample => "sample",
            Activity::Forward => "forward",
            Activity::Backward => "backward",
            Activity::Optimize => "optimize",
            Activity::Save => "save",
            Activity::Load => "load",
            Activity::Compile => "compile",
        }
    }
}

/// Phase of a rank; the numbers are the status page's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u32)]
pub enum Phase {
    /// Starting up.
    #[default]
    Init = 0,
    /// Waiting for the other ranks to form the group.
    Rendezvous = 1,
    /// Collecting experience.
    Rollout = 2,
    /// Computing losses, gradients and updates.
    Learn = 3,
    /// Exchanging statistics between iterations.
    Sync = 4,
    /// Evaluating (rank 0).
    Eval = 5,
    /// Writing a checkpoint.
    Checkpoint = 6,
    /// Exiting.
    Teardown = 7,
    /// The loop has ended.
    Done = 8,
}

impl Phase {
    /// All phases, in the order of their numbers.
    pub const ALL: [Phase; 9] = [
        Phase::Init,
        Phase::Rendezvous,
        Phase::Rollout,
        Phase::Learn,
        Phase::Sync,
        Phase::Eval,
        Phase::Checkpoint,
        Phase::Teardown,
        Phase::Done,
    ];

    /// Returns the displayed name, which is also the JSON form.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Init => "init",
            Phase::Rendezvous => "rendezvous",
            Phase::Rollout => "rollout",
            Phase::Learn => "learn",
            Phase::Sync => "sync",
            Phase::Eval => "eval",
            Phase::Checkpoint => "checkpoint",
            Phase::Teardown => "teardown",
            Phase::Done => "done",
        }
    }
}

/// Arguments of a collective. Part of all messages about collectives; in JSON, its fields stand next to
/// theirs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CollectiveCall {
    /// `all_reduce`, `broadcast`, ...
    pub op: String,
    /// Purpose: `grad`, `collect_stats`, `eval`, `fingerprint`, ...
    pub tag: String,
    /// Name of its group; empty if unknown.
    pub group: String,
    /// Elements per rank.
    pub count: u64,
    /// Element type, by its PyTorch name.
    pub dtype: String,
    /// Bytes per rank; 0 if unknown.
    pub bytes: u64,
    /// Source rank of a broadcast.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<u32>,
    /// `FILE:LINE` of the call; empty if unknown.
    #[serde(alias = "call_site")]
    pub site: String,
}

impl CollectiveCall {
    /// Returns ` at FILE:LINE`; empty if unknown.
    pub fn at_site(&self) -> String {
        if self.site.is_empty() { String::new() } else { format!(" at {}", self.site) }
    }

    /// Returns `all_reduce grad`; empty if unknown. The hook's tag is PyTorch's name of the function, which the
    /// operation mostly repeats.
    pub fn title(&self) -> String {
        let op = if self.op == "none" { "" } else { self.op.as_str() };
        let repeats = !op.is_empty() && self.tag.contains(op.get(..op.len() - 1).unwrap_or(op));
        let tag = if repeats { "" } else { self.tag.as_str() };
        [op, tag].iter().filter(|word| !word.is_empty()).copied().collect::<Vec<_>>().join(" ")
    }

    /// Returns `9155 f32 (36620 bytes)`; empty if unknown.
    pub fn size(&self) -> String {
        let root = self.root.map(|root| format!(", from rank {root}")).unwrap_or_default();
        match (self.count, self.bytes) {
            (0, 0) => root.trim_start_matches(", ").to_string(),
            (0, bytes) => format!("{bytes} bytes of {}{root}", self.dtype),
            (count, 0) => format!("{count} {}{root}", self.dtype),
            (count, bytes) => format!("{count} {} ({bytes} bytes){root}", self.dtype),
        }
    }
}

/// The latest collective of a rank.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CollectiveSample {
    /// Number of the latest collective that was entered, from 1; 0 before the first.
    pub entered: u64,
    /// Number of the latest collective that was left.
    pub left: u64,
    /// Its arguments.
    #[serde(flatten)]
    pub call: CollectiveCall,
    /// Milliseconds since it was entered (while inside), else since it was left.
    pub age_ms: u64,
    /// Number within its group; 0 if unknown.
    #[serde(default)]
    pub group_seq: u64,
}

/// A collective of a page's ring, or several in a row that differ only in their numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RecentCollective {
    /// Number within its group, of the first one.
    pub seq: u64,
    /// Number of equal ones that follow.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u64,
    /// Its arguments.
    #[serde(flatten)]
    pub call: CollectiveCall,
    /// Chain hash of the group up to the last one.
    pub chain: u64,
    /// Training iteration in which it was entered.
    pub train_iter: u64,
}

pub(super) fn is_zero(number: &u64) -> bool {
    *number == 0
}
