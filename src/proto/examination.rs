//! `agent examine`: what a console asks a host before a launch, and what was found there.

use crate::run_entry::RunEntry;
use rankdeck_types::error::HintedError;
use rankdeck_types::probe::Probe;
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
    /// Shell line before each rank.
    #[serde(default)]
    pub prelude: Option<String>,
    /// Environment of the ranks.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// libtorch as in hosts.toml.
    #[serde(default)]
    pub libtorch: Option<String>,
    /// Hash of the code that ranks will run in; `None`: they run in the working folder.
    #[serde(default)]
    pub code: Option<String>,
    /// GPUs are wanted here.
    #[serde(default)]
    pub gpus: bool,
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
    /// Kernel release.
    pub kernel: String,
    /// Runs under the working folder.
    pub runs: Vec<RunEntry>,
    /// The run's name is taken here.
    pub run_exists: bool,
    /// Version of the NVIDIA driver.
    pub driver: Option<String>,
    /// GPUs with what runs on them.
    pub gpus: Vec<GpuFinding>,
    /// The working folder.
    pub disk: Disk,
    /// `/dev/shm`.
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
    pub listened: Option<Listened>,
    /// Hosts that were connected to.
    pub reached: Vec<Reached>,
    /// The ranks' program.
    pub program: Option<Program>,
    /// Where libtorch is for the built-in trainer, or why there is none.
    pub libtorch: Option<Result<String, HintedError>>,
    /// Its version, when its folder tells.
    pub libtorch_version: Option<String>,
    /// Will ranks outlive the login that starts them?
    pub session: Session,
    /// What the ranks will run.
    pub code: Code,
}

/// A GPU and who uses it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GpuFinding {
    /// NVML index.
    pub index: u32,
    /// Product name.
    pub name: String,
    /// Bytes in use.
    pub memory_used: u64,
    /// Bytes in all.
    pub memory_total: u64,
    /// Compute processes on it.
    pub processes: Vec<GpuProcess>,
}

/// A process on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GpuProcess {
    /// Process id.
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
    /// Open files.
    pub open_files: Option<u64>,
    /// Processes.
    pub processes: Option<u64>,
    /// Locked memory, bytes.
    pub locked: Option<u64>,
    /// There is InfiniBand, which locks memory.
    pub infiniband: bool,
}

/// A network interface that is up.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Interface {
    /// Name.
    pub name: String,
    /// Its addresses.
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
pub struct Listened {
    /// The port; 0 when none is free.
    pub port: u16,
    /// Why none is free.
    pub error: Option<String>,
    /// Hosts that came.
    pub heard: u32,
}

/// What came of connecting to one host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Reached {
    /// Index of the host.
    pub node: u32,
    /// The address that was tried, resolved when possible.
    pub address: String,
    /// Why it could not be reached.
    pub error: Option<String>,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Program {
    /// Its path.
    pub path: Option<String>,
    /// Why there is none.
    pub error: Option<String>,
    /// The script that an interpreter is told to run, absolute.
    pub script: Option<String>,
    /// The script is there.
    pub script_exists: bool,
    /// What the interpreter said.
    pub python: Option<Python>,
}

/// A Python interpreter.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Python {
    /// `3.11.2`.
    pub version: String,
    /// Version of its torch package.
    pub torch: Option<String>,
    /// CUDA that torch was built for.
    pub cuda: Option<String>,
}

/// Hashes in hexadecimal, shortened to 16 digits.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Code {
    /// The pushed code that was asked about is here.
    pub pushed: bool,
    /// Of the script.
    pub script: Option<String>,
    /// Of the Python files beside and below it.
    pub folder: Option<String>,
    /// Commit of the git checkout that it lies in.
    pub commit: Option<String>,
}
