//! Gauges of a host, its ranks and GPUs.

use super::PageSample;
use super::collective::is_zero;
use crate::inspection::Pressure;
use crate::process::GpuUser;
use rankdeck_types::ids::{Generation, Rank, WallTime};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Ranks of a world from which one console has hundreds of samples to read each second.
const LARGE_WORLD: usize = 256;

/// The least time between two samples of a host whose ranks all get on, in a world of so many ranks.
pub const fn calm_round(world_size: usize) -> Duration {
    Duration::from_millis(if world_size < LARGE_WORLD { 500 } else { 1000 })
}

/// Gauges of one host at one moment.
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
    /// How many cores the host has.
    pub cpu_count: u32,
    /// Memory in use, bytes.
    pub memory_used: u64,
    /// Memory in all, bytes.
    pub memory_total: u64,
    /// The kernel's 1-minute load.
    pub load1: f32,
    /// This host's ranks.
    pub ranks: Vec<RankSample>,
    /// This host's GPUs, empty where there are none.
    pub gpus: Vec<GpuSample>,
    /// Processes on those GPUs that are no ranks and not started by one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<GpuUser>,
    /// Gauges and log lines that this connection has dropped so far. A sample that no connection has sent has
    /// none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped: u64,
    /// Lines on the event socket that were no valid event, so far.
    #[serde(default)]
    pub malformed: u64,
    /// Histograms and pictures of ranks that were not passed on, so far: too many, too large, or none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub withheld: u64,
    /// Signals of the host as a whole that tell why a rank may be stuck or slow.
    #[serde(default)]
    pub signals: HostSignals,
}

/// Why the ranks of a host may be stuck or slow, as far as the host as a whole knows.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostSignals {
    /// Pressure-stall information; `None` on kernels without it.
    pub pressure: Option<Pressure>,
    /// The network interface that the group uses; `None` when unknown or local to the host.
    pub link: Option<LinkSample>,
    /// Milliseconds that the machine was suspended since the agent began (boot-time clock against monotonic
    /// clock).
    pub suspended_ms: u64,
}

/// One network interface.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkSample {
    /// The network interface's name.
    pub name: String,
    /// It is switched on and sees its other end.
    pub up: bool,
    /// How often its carrier came or went since boot.
    pub carrier_changes: u64,
}

/// Most ranks have no reason to be stuck or slow: what is nothing is left out of their many samples.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// One rank as the operating system and its status page show it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankSample {
    /// The rank that was sampled.
    pub rank: Rank,
    /// Process id.
    pub pid: u32,
    /// State letter of `/proc/PID/stat`: `R S D T t Z`; `X` when gone.
    pub state: char,
    /// CPU use of the rank and its children, percent of one core.
    pub cpu_percent: f32,
    /// Resident memory of the rank and its children, bytes.
    pub rss: u64,
    /// Live descendants.
    pub children: u32,
    /// Kernel function it waits in, empty when unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub wchan: String,
    /// Index of its GPU on this host: the one on which its processes are, else that of the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// Its memory on that GPU, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_memory: Option<u64>,
    /// What its own processes use of a GPU that others use as well, percent; `None` where it has the GPU to
    /// itself, or the driver does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_share: Option<u32>,
    /// Its status page, `None` for programs that write none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<PageSample>,
    /// Signals that tell why it may be stuck or slow.
    #[serde(default, skip_serializing_if = "is_default")]
    pub signals: RankSignals,
}

impl RankSample {
    /// Its process has ended: what it used is not measured any more.
    pub fn is_gone(&self) -> bool {
        matches!(self.state, 'X' | 'Z')
    }
}

/// Why a rank may be stuck or slow. Counters only grow while the process lives; readers take differences
/// between samples.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RankSignals {
    /// CPU time of all its own threads so far, ms; children not included.
    #[serde(skip_serializing_if = "is_zero")]
    pub cpu_ms: u64,
    /// Time that its main thread was ready to run and did not get a core, so far, ms; 0 where the kernel does
    /// not tell.
    #[serde(skip_serializing_if = "is_zero")]
    pub delay_ms: u64,
    /// Page faults that needed the disk, so far.
    #[serde(skip_serializing_if = "is_zero")]
    pub major_faults: u64,
    /// Bytes that it and its children have caused to be read from and written to storage so far.
    #[serde(skip_serializing_if = "is_zero")]
    pub io_bytes: u64,
    /// Its descendants, at most 64; `RankSample::children` counts them all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<ChildSample>,
    /// Its cgroup; `None` where that cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<CgroupSample>,
    /// Its main thread: what trackers, writers and loaders beside it do is not in there. `None` where the
    /// kernel does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub main: Option<MainThread>,
}

/// What the main thread of a rank has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MainThread {
    /// Time on a core, microseconds.
    pub cpu_us: u64,
    /// How often it was given a core: a thread that only waits is given none.
    pub turns: u64,
    /// Bytes that it has read and written: files, pipes, the terminal, storage.
    pub io_bytes: u64,
    /// Bytes that the TCP connections of the process carry and have carried; `None` while it moves otherwise,
    /// since finding out costs more than the rest.
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
    /// State letter; `Z` for one that ended and was not waited for.
    pub state: char,
    /// CPU time so far, ms.
    pub cpu_ms: u64,
    /// Its parent, 0 when unknown.
    pub parent: u32,
    /// Bytes that it has read and written so far.
    #[serde(skip_serializing_if = "is_zero")]
    pub io_bytes: u64,
    /// Bytes that TCP connections of its own carry and have carried, without those that its parent has, too;
    /// `None` where [`MainThread::net_bytes`] is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net_bytes: Option<u64>,
}

/// The cgroup of a rank: version 1 or 2.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CgroupSample {
    /// Path below the hierarchy's mount.
    pub path: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub frozen: bool,
    /// Periods of its CPU quota that have passed, 0 without a quota.
    #[serde(skip_serializing_if = "is_zero")]
    pub periods: u64,
    /// Periods in which it was throttled.
    #[serde(skip_serializing_if = "is_zero")]
    pub throttled: u64,
    /// Milliseconds for which it was throttled, on each core by itself; 0 where nobody tells.
    #[serde(skip_serializing_if = "is_zero")]
    pub throttled_ms: u64,
    /// Processes of it that the out-of-memory killer has ended.
    #[serde(skip_serializing_if = "is_zero")]
    pub oom_kills: u64,
    /// Milliseconds in which all that could run in it waited for memory; 0 with version 1.
    #[serde(skip_serializing_if = "is_zero")]
    pub memory_stall_ms: u64,
    /// How often it has met its limit of memory.
    #[serde(skip_serializing_if = "is_zero")]
    pub limit_hits: u64,
}

/// One GPU as NVML shows it; `None` where the driver does not tell.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct GpuSample {
    /// NVML index on the host.
    pub index: u32,
    /// Product name as NVML gives it.
    pub name: String,
    /// Its unique name, `GPU-...`.
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
    /// Reasons why clocks are held down, in words; empty when none.
    #[serde(default)]
    pub throttle: Vec<String>,
    /// Memory errors since the driver was loaded that were corrected; `None` without ECC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecc_corrected: Option<u64>,
    /// The same that could not be corrected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecc_uncorrected: Option<u64>,
    /// Bytes per second that it gets over PCIe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie_rx: Option<u64>,
    /// Bytes per second that it sends over PCIe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie_tx: Option<u64>,
    /// Bytes per second that it gets over all its NVLinks; `None` without them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink_rx: Option<u64>,
    /// Bytes per second that it sends over them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink_tx: Option<u64>,
    /// Errors of its NVLinks from which they recovered, since the driver was loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink_errors: Option<u64>,
    /// Processes on it: (pid, bytes).
    #[serde(default)]
    pub processes: Vec<(u32, u64)>,
    /// What each process used of it lately, as far as the driver tells: (pid, percent).
    #[serde(default)]
    pub shares: Vec<(u32, u32)>,
    /// The driver's latest error reports (Xid numbers), oldest first, at most 8.
    #[serde(default)]
    pub xids: Vec<u64>,
    /// It was there before and the driver has lost it.
    #[serde(default)]
    pub lost: bool,
    /// The instances of MIG into which it is divided; its use is then not told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<GpuInstance>,
}

/// An instance of MIG, a part of a GPU with memory of its own.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuInstance {
    /// Its unique name, `MIG-...`.
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
