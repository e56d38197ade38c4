//! `agent examine`: what a console asks a host before a launch, and what was found there.

use crate::run_entry::RunEntry;
use rankdeck_types::error::HintedError;
use rankdeck_types::probe::Probe;
use rankdeck_types::setup::Setup;
use rankdeck_types::variables::Values;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// What the console wants to know.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Question {
    /// Folder of runs, as typed.
    pub workdir: String,
    /// The run that is to be launched; empty: none.
    #[serde(default)]
    pub run: String,
    /// The ranks' program; empty: the built-in trainer.
    #[serde(default)]
    pub command: Vec<String>,
    /// What comes before each rank.
    #[serde(default, flatten)]
    pub setup: Setup,
    /// Environment of the ranks.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Variables of the ranks whose values come from the console.
    #[serde(default, skip_serializing_if = "Values::is_empty")]
    pub variables: Values,
    /// libtorch as in hosts.toml.
    #[serde(default)]
    pub libtorch: Option<String>,
    /// Packages that the ranks' script imports, where the console knows it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub imports: Vec<String>,
    /// An environment in Python that the built-in trainer will make.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvQuestion>,
    /// Hash of the code that ranks will run in; `None`: they run in the working folder.
    #[serde(default)]
    pub code: Option<String>,
    /// GPUs are wanted here.
    #[serde(default)]
    pub gpus: bool,
    /// Those, as a plan counts them; empty: all that are there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub planned_gpus: Vec<u32>,
    /// Address of rank 0's store; `None` when one host is all.
    #[serde(default)]
    pub master: Option<String>,
    /// Ports to listen on: the first that is free.
    #[serde(default)]
    pub listen: Vec<u16>,
    /// Hosts that will connect to this one.
    #[serde(default)]
    pub expect: u32,
    /// Hosts to connect to.
    #[serde(default)]
    pub peers: Vec<Peer>,
    /// What this host answers to, different for every preflight.
    #[serde(default)]
    pub token: String,
    /// How long to wait for each other, ms.
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
    /// It is a game of ale-py.
    pub atari: bool,
}

/// What was found of such an environment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EnvFindings {
    /// Why the interpreter does not run.
    pub no_python: Option<String>,
    /// `sys.executable`.
    pub executable: String,
    /// Packages that are not there.
    pub missing: Vec<String>,
    /// What Gymnasium says when it cannot be made.
    pub error: Option<String>,
    /// Its actions are discrete.
    pub discrete: Option<bool>,
    /// Its observations are images.
    pub image: Option<bool>,
    /// Versions of the interpreter (`python`) and of the packages that it needs.
    pub versions: BTreeMap<String, String>,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Findings {
    /// Wall clock when the question had been read.
    pub heard: f64,
    /// Wall clock just before the answer.
    pub answered: f64,
    /// As every launch learns it.
    pub probe: Probe,
    /// The user that ranks would run as.
    pub user: String,
    /// Release of the kernel, as `uname -r` prints it.
    pub kernel: String,
    /// Runs under the working folder.
    pub runs: Vec<RunEntry>,
    /// The run's name is taken here.
    pub run_exists: bool,
    /// Version of the NVIDIA driver.
    pub driver: Option<String>,
    /// GPUs with what runs on them.
    pub gpus: Vec<GpuFinding>,
    /// Why nobody tells of GPUs though there is a driver, and what helps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub untold_gpus: Option<HintedError>,
    /// The list of GPUs that programs see there, where the user or Slurm has set one: `CUDA_VISIBLE_DEVICES`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visible_gpus: Option<String>,
    /// The working folder.
    pub disk: Disk,
    /// Room on `/dev/shm`, which data loaders need.
    pub shm: Disk,
    /// Limits of this user's processes.
    pub limits: Limits,
    /// Network interfaces with an address.
    pub interfaces: Vec<Interface>,
    /// The way to rank 0's store.
    pub route: Option<Route>,
    /// What names mean here.
    pub names: Names,
    /// The port that was listened on.
    pub listened: Option<ListenResult>,
    /// Hosts that were connected to.
    pub reached: Vec<ConnectResult>,
    /// The environment that was asked about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvFindings>,
    /// What only this machine says of itself.
    #[serde(default)]
    pub machine: String,
    /// Why what comes before each rank fails: the last words of its shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup: Option<String>,
    /// The ranks' program.
    pub program: Option<Program>,
    /// Where libtorch is for the built-in trainer, or why there is none.
    pub libtorch: Option<Result<String, HintedError>>,
    /// Its version, when its folder tells.
    pub libtorch_version: Option<String>,
    /// Whether the built-in trainer can compute on the GPUs here: what it said, or why not. `None`: it was
    /// not asked, or cannot be (an older trainer).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_check: Option<Result<String, HintedError>>,
    /// Will ranks outlive the login that starts them?
    pub session: Session,
    /// What the ranks will run.
    pub code: Code,
}

/// A GPU and who uses it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GpuFinding {
    /// Index of the GPU as NVML counts.
    pub index: u32,
    /// Product name.
    pub name: String,
    /// Its unique name, `GPU-...`.
    #[serde(default)]
    pub uuid: String,
    /// Bytes in use.
    pub memory_used: u64,
    /// Bytes in all.
    pub memory_total: u64,
    /// Compute processes on it.
    pub processes: Vec<GpuProcess>,
    /// How its memory is.
    #[serde(default)]
    pub health: GpuHealth,
    /// The driver counts it, and does not reach it any more.
    #[serde(default)]
    pub lost: bool,
}

/// Faults of a GPU's memory that its driver knows of before a run meets them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuHealth {
    /// Errors since the driver was loaded that could not be corrected.
    pub uncorrected: u64,
    /// Rows of memory are replaced, or pages retired, at the next reset only.
    pub reset_pending: bool,
    /// No rows are left to replace bad ones with.
    pub remap_failed: bool,
}

/// A process on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GpuProcess {
    /// Process id on its host.
    pub pid: u32,
    /// Bytes that it holds there.
    pub bytes: u64,
    /// Start of its command line; empty when another container or namespace hides it.
    pub command: String,
    /// The rankdeck run that it belongs to, when it carries a mark.
    pub run: Option<String>,
}

/// A file system.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Disk {
    /// The folder that was asked about.
    pub path: String,
    /// Bytes that this user may still write.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
    /// Files that may still be made.
    pub free_files: u64,
    /// Why nothing can be written there.
    pub error: Option<String>,
}

/// Soft limits; `None`: unlimited.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Limits {
    /// Soft limit of open files (`ulimit -n`).
    pub open_files: Option<u64>,
    pub processes: Option<u64>,
    /// Locked memory, bytes.
    pub locked: Option<u64>,
    /// There is InfiniBand, which locks memory.
    pub infiniband: bool,
}

/// A network interface that is up.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Interface {
    pub name: String,
    pub addresses: Vec<IpAddr>,
}

/// The way to rank 0's store.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Route {
    /// What the store's address means here.
    pub addresses: Vec<IpAddr>,
    /// The interface that leads there, or has that address.
    pub interface: Option<String>,
    /// Why there is no way.
    pub error: Option<String>,
}

/// What names mean here.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Names {
    /// Addresses of the host's own name.
    pub own: Vec<IpAddr>,
}

/// What happens to processes when their login ends.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Session {
    /// The login manager kills them, and lingering is off.
    pub killed_at_logout: bool,
    /// Why processes cannot be supervised: no `/proc`, a kernel without pidfd.
    pub error: Option<String>,
}

/// A host to connect to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Peer {
    /// Index of the host.
    pub node: u32,
    /// Name or address as hosts.toml gives it.
    pub address: String,
    /// Where it may listen.
    pub ports: Vec<u16>,
    /// What it answers to.
    pub token: String,
}

/// What came of listening.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ListenResult {
    /// The port; 0 when none is free.
    pub port: u16,
    /// Why none is free.
    pub error: Option<String>,
    /// Hosts that came.
    pub heard: u32,
}

/// What came of connecting to one host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ConnectResult {
    /// Index of the host.
    pub node: u32,
    /// The address that was tried, resolved when possible.
    pub address: String,
    /// Why it could not be reached.
    pub error: Option<String>,
}

/// The program of `launch.command` as a host sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Program {
    /// The program as an absolute path.
    pub path: Option<String>,
    /// Why there is none that runs, and what helps.
    pub error: Option<HintedError>,
    /// The script that an interpreter is told to run, absolute.
    pub script: Option<String>,
    /// The script is there.
    pub script_exists: bool,
    /// What the interpreter said.
    pub python: Option<Python>,
    /// Why nothing is known of it before the launch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub later: Option<String>,
}

/// A Python interpreter.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Python {
    /// `sys.executable`.
    #[serde(default)]
    pub executable: String,
    /// Packages that the script imports and that are not there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// `sys.prefix`: the environment that it belongs to.
    #[serde(default)]
    pub prefix: String,
    /// Version of the interpreter, such as `3.11.2`.
    pub version: String,
    /// Version of its torch package.
    pub torch: Option<String>,
    /// CUDA that torch was built for.
    pub cuda: Option<String>,
    /// Versions of NumPy, Gymnasium and what the script imports, as far as packages of those names are there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub packages: BTreeMap<String, String>,
}

/// Hashes in hexadecimal, shortened to 16 digits.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Code {
    /// The pushed code that was asked about is here.
    pub pushed: bool,
    pub script: Option<String>,
    /// Of the Python files beside and below it.
    pub folder: Option<String>,
    /// Commit of the git checkout that it lies in.
    pub commit: Option<String>,
}
