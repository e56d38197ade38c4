//! One rank looked at closely by its agent, on request: what the operating system, its sockets, its stacks
//! and its libraries show.
//!
//! Owner: the wire. Everything is local to the host: ages and durations in milliseconds, so clocks may
//! differ. What could not be read is left empty and named in [`Inspection::notes`]; a missing answer is a
//! finding of its own. Compatibility: fields are only ever added, with `#[serde(default)]`.

use rankdeck_types::ids::Rank;
use serde::{Deserialize, Serialize};

/// In a note: a thread of a Python rank has the interpreter's lock at that moment.
pub const HOLDS_GIL: &str = "holds the interpreter lock";

/// One rank at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Inspection {
    /// The rank.
    pub rank: Rank,
    /// Its process id on the host, `None` before it was spawned or after it ended.
    pub pid: Option<u32>,
    /// What the kernel says about its main thread.
    pub os: OsState,
    /// What the main thread waits for, in words: `read on a pipe from pid 123 (env worker)`; `None` when it
    /// runs or nobody knows.
    pub blocked_on: Option<String>,
    /// Stacks, main thread first.
    pub threads: Vec<ThreadStack>,
    /// Its descendants.
    pub children: Vec<Child>,
    /// Its TCP connections.
    pub sockets: Vec<Socket>,
    /// Pressure-stall information of the host.
    pub pressure: Option<Pressure>,
    /// The last line of its log.
    pub last_line: Option<String>,
    /// Its GPU in words, with anything wrong first.
    pub gpu: Option<String>,
    /// What PyTorch's process groups of a Python rank have done, from the hook's page or the Flight Recorder.
    pub python: Option<PythonView>,
    /// What NCCL's RAS subsystem says about the run, in words; empty where there is none.
    pub ras: Vec<String>,
    /// What could not be read, and why.
    pub notes: Vec<String>,
    /// How long looking took, ms.
    pub took_ms: u64,
}

/// What the kernel says about the main thread.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OsState {
    /// State letter of `/proc/PID/stat`; `X` when it is gone.
    pub state: char,
    /// The same in words, with the cgroup's freezer taken into account: `stopped by a signal`, `frozen by its
    /// cgroup`.
    pub words: String,
    /// Kernel function it waits in.
    pub wchan: Option<String>,
    /// System call it is inside, by name: `futex`, `read(5)`.
    pub syscall: Option<String>,
    /// Its cgroup is frozen.
    pub frozen_cgroup: bool,
    /// Share of CPU periods in which its cgroup was throttled while the agent looked, 0..=1; `None` without a
    /// quota.
    pub throttled_share: Option<f64>,
    /// Processes of its cgroup that the out-of-memory killer has ended so far.
    pub oom_kills: u64,
    /// Process that traces it (a debugger), 0 for none.
    pub tracer: u32,
    /// Threads.
    pub threads: u32,
    /// CPU time that its threads used while the agent looked, ms.
    pub cpu_ms_moved: u64,
}

/// The stack of one thread.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ThreadStack {
    /// Thread id on the host.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// How the stack was read.
    pub how: How,
    /// Innermost first, bounded.
    pub frames: Vec<Frame>,
}

/// How a stack was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// Native frames of a thread of the rank.
    #[default]
    Native,
    /// Interpreter frames, read from outside.
    Python,
    /// Kernel frames (`/proc/PID/stack`, root only).
    Kernel,
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Frame {
    /// Function, demangled.
    pub function: String,
    /// Source file, or the library where no source is known.
    pub file: Option<String>,
    /// Line, from 1.
    pub line: Option<u32>,
}

/// A descendant of the rank.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Child {
    /// Process id on the host.
    pub pid: u32,
    /// Its program or thread name.
    pub name: String,
    /// State letter; `Z` for one that ended and was not waited for.
    pub state: char,
    /// CPU time it used while the agent looked, ms.
    pub cpu_ms_moved: u64,
}

/// One TCP connection.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Socket {
    /// Address and port of the other end.
    pub peer: String,
    /// Own address and port.
    pub local: String,
    /// `ESTABLISHED`, `SYN_SENT`, ...
    pub state: String,
    /// Segments sent and not acknowledged.
    pub unacked: u32,
    /// Bytes written by the rank that the other end has not acknowledged.
    pub send_queue: u32,
    /// Bytes received that the rank has not read.
    pub receive_queue: u32,
    /// Milliseconds since data came in.
    pub last_received_ms: u32,
    /// Milliseconds since data went out.
    pub last_sent_ms: u32,
    /// Retransmissions of the oldest segment in a row; from 2 on the road is in doubt.
    pub retransmits: u32,
    /// Doublings of the retransmission timer.
    pub backoff: u32,
    /// Segments that came in since the connection began, repeated ones included.
    pub segments_in: u32,
}

/// Share of the last 10 s in which some task waited for a resource, percent.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pressure {
    /// CPU, some avg10.
    pub cpu: f32,
    /// Memory, some avg10.
    pub memory: f32,
    /// Memory, full avg10.
    pub memory_full: f32,
    /// I/O, some avg10.
    pub io: f32,
}

/// What a Python rank's process groups have done.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PythonView {
    /// `hook` (the status page that the hook writes) or `flight recorder`.
    pub source: String,
    /// Version of PyTorch, empty when unknown.
    pub torch: String,
    /// One per process group, default group first.
    pub groups: Vec<GroupView>,
    /// Latest collectives, oldest first, bounded.
    pub recent: Vec<RecentCall>,
}

/// One process group of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupView {
    /// Its name in PyTorch; `0` is the default group's.
    pub name: String,
    /// Its member ranks, empty when unknown.
    pub ranks: Vec<u32>,
    /// How many members.
    pub size: u32,
    /// Number of the collective called last, from 1.
    pub enqueued: u64,
    /// Number of the collective completed last; with asynchronous works, the last one waited for.
    pub completed: u64,
    /// Name of the one called last.
    pub op: String,
    /// Its elements on this rank.
    pub count: u64,
    /// Its element type.
    pub dtype: String,
    /// `file:line` of the user's code that called it.
    pub call_site: String,
    /// Milliseconds since it was called (while inside), else since it was completed.
    pub age_ms: u64,
    /// Hash over (op, count, dtype) of all calls so far: equal on all members at equal `enqueued`, or one of
    /// them has left the order.
    pub chain: u64,
}

/// One collective of the past.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RecentCall {
    /// Group.
    pub group: String,
    /// Number in its group.
    pub seq: u64,
    /// Name.
    pub op: String,
    /// Elements on this rank, summed over its inputs.
    pub count: u64,
    /// Element type.
    pub dtype: String,
    /// `scheduled`, `started`, `completed`.
    pub state: String,
    /// `file:line` of the caller, empty when unknown.
    pub call_site: String,
}
