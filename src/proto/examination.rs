//! `agent examine`: a console's questions to a host before a launch, and the findings.
//!
//! `agent benchmark`: what a console has the hosts of a run measure between each other, and the results.

use crate::run_entry::RunEntry;
use rankdeck_types::cores::CpuTopology;
use rankdeck_types::error::HintedError;
use rankdeck_types::host::Probe;
use rankdeck_types::setup::Setup;
use rankdeck_types::variables::PassedVariables;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The console's questions.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HostQuestion {
    /// Directory of runs, as typed.
    pub workdir: String,
    /// The run to launch; empty: none.
    #[serde(default)]
    pub run: String,
    /// The ranks' program; empty: the built-in trainer.
    #[serde(default)]
    pub command: Vec<String>,
    /// Setup before each rank.
    #[serde(default, flatten)]
    pub setup: Setup,
    /// Environment of the ranks.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Variables of the ranks whose values come from the console.
    #[serde(default, skip_serializing_if = "PassedVariables::is_empty")]
    pub variables: PassedVariables,
    /// libtorch as in hosts.toml.
    #[serde(default)]
    pub libtorch: Option<String>,
    /// Packages that the ranks' script imports, if the console has the script.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub imports: Vec<String>,
    /// The Python environment that the built-in trainer will make.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvQuestion>,
    /// Hash of the code that ranks will run in; `None`: they run in `folder`.
    #[serde(default)]
    pub code: Option<String>,
    /// Directory on this machine that ranks will run in; `None`: `workdir`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// GPUs are requested on this host.
    #[serde(default)]
    pub gpus: bool,
    /// Indices of the requested GPUs, as a plan counts them; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub planned_gpus: Vec<u32>,
    /// The ranks are to be bound to cores (`launch.bind`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bind: bool,
    /// Address of rank 0's store; `None` if there is only one host.
    #[serde(default)]
    pub master: Option<String>,
    /// Ports to listen on; the first free one is used.
    #[serde(default)]
    pub listen: Vec<u16>,
    /// Ports of a second listener, which stands for the arbitrary ports of Gloo and NCCL where `listen` is one
    /// fixed port; empty: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also_listen: Vec<u16>,
    /// Hosts that will connect to this one.
    #[serde(default)]
    pub expect: u32,
    /// Hosts to connect to.
    #[serde(default)]
    pub peers: Vec<Peer>,
    /// Token that connections to this host must send; different for every preflight.
    #[serde(default)]
    pub token: String,
    /// Time to wait for connections, ms.
    #[serde(default)]
    pub patience_ms: u64,
}

/// An environment that the built-in trainer's Python worker makes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EnvQuestion {
    /// `env.python`.
    pub python: String,
    /// `env.id`.
    pub id: String,
    /// Whether it is a game of ale-py.
    pub atari: bool,
}

/// Findings about such an environment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EnvFindings {
    /// Error of an interpreter that does not run.
    pub no_python: Option<String>,
    /// `sys.executable`.
    pub executable: String,
    /// Missing packages.
    pub missing: Vec<String>,
    /// Gymnasium's error if it cannot make the environment.
    pub error: Option<String>,
    /// Whether its actions are discrete.
    pub discrete: Option<bool>,
    /// Whether its observations are images.
    pub image: Option<bool>,
    /// Versions of the interpreter (`python`) and of the packages that it needs.
    pub versions: BTreeMap<String, String>,
}

/// The host's findings.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HostFindings {
    /// Wall clock when the question was read.
    #[serde(rename = "heard")]
    pub arrived: f64,
    /// Wall clock before the answer was sent.
    pub answered: f64,
    /// Facts about the host, as at a launch.
    pub probe: Probe,
    /// User of the ranks.
    pub user: String,
    /// Release of the kernel, as `uname -r` prints it.
    pub kernel: String,
    /// Runs under the working directory.
    pub runs: Vec<RunEntry>,
    /// Whether the run's name is taken on this host.
    pub run_exists: bool,
    /// Version of the NVIDIA driver.
    pub driver: Option<String>,
    /// GPUs and their processes.
    pub gpus: Vec<GpuFinding>,
    /// Why the GPUs are unknown although the host has a driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "untold_gpus")]
    pub gpus_unknown: Option<HintedError>,
    /// `CUDA_VISIBLE_DEVICES` of the agent, if the user or Slurm has set it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visible_gpus: Option<String>,
    /// File system of the working directory.
    pub disk: Disk,
    /// Space in `/dev/shm`, which data loaders need.
    pub shm: Disk,
    /// Limits of this user's processes.
    pub limits: ProcessLimits,
    /// Network interfaces with an address.
    pub interfaces: Vec<Interface>,
    /// Route to rank 0's store.
    pub route: Option<Route>,
    /// Resolved names.
    pub names: ResolvedNames,
    /// Result of listening.
    pub listened: Option<ListenResult>,
    /// Results of connecting to other hosts.
    pub reached: Vec<ConnectResult>,
    /// Findings about [`Question::environment`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvFindings>,
    /// Identity of this machine.
    #[serde(default)]
    pub machine: String,
    /// Error of the setup: the last output of its shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup: Option<String>,
    /// Findings about the ranks' program.
    pub program: Option<ProgramFinding>,
    /// Path of libtorch for the built-in trainer, or the error.
    pub libtorch: Option<Result<String, HintedError>>,
    /// Version of libtorch, if its directory has it.
    pub libtorch_version: Option<String>,
    /// Whether the built-in trainer can compute on these GPUs: its reply, or the error. `None`: it was not
    /// asked, or does not support the question (an older trainer).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_check: Option<Result<String, HintedError>>,
    /// Whether ranks outlive the login that starts them.
    pub session: LoginSession,
    /// Findings about the ranks' code.
    pub code: CodeFinding,
    /// Cores and NUMA nodes, if the ranks are to be bound to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<CpuTopology>,
}

/// A GPU and its processes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GpuFinding {
    /// Index of the GPU as NVML counts.
    pub index: u32,
    /// Product name.
    pub name: String,
    /// Unique name, `GPU-...`.
    #[serde(default)]
    pub uuid: String,
    /// Bytes in use.
    pub memory_used: u64,
    /// Bytes in all.
    pub memory_total: u64,
    /// Compute processes on it.
    pub processes: Vec<GpuProcess>,
    /// Recorded faults of its memory.
    #[serde(default)]
    pub health: GpuHealth,
    /// The driver lists it but no longer reaches it.
    #[serde(default)]
    pub lost: bool,
}

/// Faults of a GPU's memory, as recorded by its driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuHealth {
    /// Uncorrected errors since the driver was loaded.
    pub uncorrected: u64,
    /// The next reset will replace rows of memory, or retire pages.
    pub reset_pending: bool,
    /// No spare rows are left.
    pub remap_failed: bool,
}

/// A process on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GpuProcess {
    /// Process id on its host.
    pub pid: u32,
    /// Bytes of GPU memory.
    pub bytes: u64,
    /// Start of its command line; empty if another container or namespace hides it.
    pub command: String,
    /// Its rankdeck run, if its environment names one.
    pub run: Option<String>,
}

/// A file system.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Disk {
    /// The requested directory.
    pub path: String,
    /// Bytes that this user can write.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
    /// Files that can be created.
    pub free_files: u64,
    /// Error of a test write.
    pub error: Option<String>,
    /// Why runs cannot be stored there: other users could change them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distrust: Option<HintedError>,
}

/// Soft limits; `None`: unlimited.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProcessLimits {
    /// Soft limit of open files (`ulimit -n`).
    pub open_files: Option<u64>,
    pub processes: Option<u64>,
    /// Locked memory, bytes.
    pub locked: Option<u64>,
    /// The host has InfiniBand, which locks memory.
    pub infiniband: bool,
}

/// A network interface that is up.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Interface {
    pub name: String,
    pub addresses: Vec<IpAddr>,
}

/// Route to rank 0's store.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Route {
    /// Resolved addresses of the store.
    pub addresses: Vec<IpAddr>,
    /// The interface of the route, or that has the address.
    pub interface: Option<String>,
    /// Error if there is no route.
    pub error: Option<String>,
}

/// Resolved names.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ResolvedNames {
    /// Addresses of the host's own name.
    pub own: Vec<IpAddr>,
}

/// Effects of the end of a login on its processes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LoginSession {
    /// The login manager kills them, because lingering is off.
    pub killed_at_logout: bool,
    /// Why processes cannot be supervised: no `/proc`, a kernel without pidfd.
    pub error: Option<String>,
}

/// A host to connect to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Peer {
    /// Index of the host.
    pub node: u32,
    /// Name or address, as in hosts.toml.
    pub address: String,
    /// Ports that it may listen on.
    pub ports: Vec<u16>,
    /// Token to send to it.
    pub token: String,
    /// Other addresses, to try if it cannot be reached at `address`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<IpAddr>,
}

/// Result of listening.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ListenResult {
    /// The port; 0 if none is free.
    pub port: u16,
    /// Error if none is free.
    pub error: Option<String>,
    /// Hosts that connected.
    pub heard: u32,
}

/// Result of connecting to one host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ConnectResult {
    /// Index of the host.
    pub node: u32,
    /// The address, resolved if possible.
    pub address: String,
    /// Error of the connection.
    pub error: Option<String>,
    /// The address is one of [`Peer::others`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_other: bool,
    /// Address of this host on the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<IpAddr>,
}

/// The program of `launch.command` as a host sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProgramFinding {
    /// The program as an absolute path.
    pub path: Option<String>,
    /// Error if no program runs.
    pub error: Option<HintedError>,
    /// Absolute path of the script that an interpreter runs.
    pub script: Option<String>,
    /// Whether the script exists.
    pub script_exists: bool,
    /// Facts that the interpreter reported.
    pub python: Option<Python>,
    /// Why it can be examined only at the launch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub later: Option<String>,
}

/// A Python interpreter.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Python {
    /// `sys.executable`.
    #[serde(default)]
    pub executable: String,
    /// Missing packages that the script imports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// Those of them that are in the working directory, where Python does not search.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<String>,
    /// Absolute path of a virtual environment in the working directory that has what is missing, or torch if no
    /// imports are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub venv: Option<String>,
    /// `sys.prefix`: its environment.
    #[serde(default)]
    pub prefix: String,
    /// Version of the interpreter, such as `3.11.2`.
    pub version: String,
    /// Version of its torch package.
    pub torch: Option<String>,
    /// CUDA that torch was built for.
    pub cuda: Option<String>,
    /// Versions of NumPy, Gymnasium and the packages that the script imports, if installed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub packages: BTreeMap<String, String>,
}

/// The ranks' code. Hashes are hexadecimal, shortened to 16 digits.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CodeFinding {
    /// Whether the host has the requested pack.
    pub pushed: bool,
    /// Hash of the script.
    pub script: Option<String>,
    /// Hash of the Python files next to and below it.
    pub folder: Option<String>,
    /// Commit of its git checkout.
    pub commit: Option<String>,
}

/// What one host measures. All hosts of a benchmark get theirs at about the same time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BenchmarkQuestion {
    /// Directory of runs, as typed.
    pub workdir: String,
    /// Index of this host.
    pub node: u32,
    /// Number of hosts.
    pub hosts: u32,
    /// Secret of this benchmark, which all its connections prove to know.
    pub token: String,
    /// Address to listen on; `None`: all.
    pub listen_at: Option<IpAddr>,
    /// Ports to listen on; the first free one is used. Empty: this host is not called.
    pub ports: Vec<u16>,
    /// Hosts that this one calls.
    pub peers: Vec<BenchmarkPeer>,
    /// What this host does, in this order.
    pub turns: Vec<BenchmarkTurn>,
    /// Time of a turn, ms.
    pub turn_ms: u64,
    /// How long hosts may begin apart, ms.
    pub patience_ms: u64,
    /// Whether to measure an all-reduce over all hosts.
    pub whole: bool,
    /// Whether to measure this host's loopback instead of other hosts.
    pub loopback: bool,
    /// Bytes to write into `workdir`; 0: none.
    pub disk_bytes: u64,
}

/// A host that is called.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BenchmarkPeer {
    /// Index of the host.
    pub node: u32,
    /// Name or address.
    pub address: String,
    /// Ports that it may listen on.
    pub ports: Vec<u16>,
}

/// A pair of hosts that measure at a time. A host is in at most one pair at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BenchmarkTurn {
    /// Number of the turn, the same on both hosts.
    pub turn: u32,
    /// The other host.
    pub peer: u32,
    /// Whether this host calls and measures.
    pub calls: bool,
}

/// What one host measured.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BenchmarkFindings {
    /// Why it could not listen.
    pub listen_error: Option<String>,
    /// Pairs that it measured as the caller.
    pub pairs: Vec<PairFinding>,
    /// The all-reduce over all hosts.
    pub whole: Option<WholeFinding>,
    /// The disk of the working directory.
    pub disk: Option<DiskFinding>,
}

/// A pair of hosts, from the caller's side.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PairFinding {
    /// The other host.
    pub node: u32,
    /// The address that was called.
    pub address: String,
    /// Why it was not measured, or not to its end.
    pub error: Option<String>,
    /// Median round trip of 8 bytes, seconds; 0: unknown.
    pub latency_s: f64,
    /// Bits per second to the other host; 0: unknown.
    pub to_bps: f64,
    /// Bits per second from the other host; 0: unknown.
    pub from_bps: f64,
    /// The other host's clock minus this one's, seconds, in the round trip with the least delay.
    pub clock_s: f64,
    /// Half of that round trip, seconds: the bound of `clock_s`.
    pub clock_bound_s: f64,
}

/// An all-reduce over all hosts, in a ring.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WholeFinding {
    /// Why it was not measured, or not to its end.
    pub error: Option<String>,
    /// Median time for 8 bytes per host, seconds; 0: unknown.
    pub latency_s: f64,
    /// Bytes that were reduced at last.
    pub bytes: u64,
    /// Time for them, seconds; 0: unknown.
    pub seconds: f64,
}

/// A file as large as a checkpoint, written and synchronized.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskFinding {
    /// Its directory.
    pub path: String,
    /// Why it was not written.
    pub error: Option<String>,
    /// Bytes written within the time allowed.
    pub bytes: u64,
    /// Time for them, `fsync` included, seconds.
    pub seconds: f64,
}
