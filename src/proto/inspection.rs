//! One rank looked at closely by its agent, on request: what the operating system, its sockets, its stacks
//! and its libraries show.
//!
//! Owner: the wire. Everything is local to the host: ages and durations in milliseconds, so clocks may
//! differ. What could not be read is left empty and named in [`Inspection::notes`]; a missing answer is a
//! finding of its own. Compatibility: fields are only ever added, with `#[serde(default)]`.

use crate::message::CollectiveCall;
use rankdeck_types::ids::Rank;
use serde::{Deserialize, Serialize};

/// In a note: a thread of a Python rank has the interpreter's lock at that moment.
pub const HOLDS_GIL: &str = "holds the interpreter lock";

/// One rank at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Inspection {
    /// The rank that was looked at.
    pub rank: Rank,
    /// Its process id on the host, `None` before it was spawned or after it ended.
    pub pid: Option<u32>,
    /// What the kernel says about its main thread.
    pub os: OsState,
    /// What the main thread waits for, in words: `read on a pipe from pid 123 (env worker)`; `None` when it
    /// runs or nobody knows.
    pub blocked_on: Option<String>,
    /// The same where it has a name: what its main thread, or a child that it waits for, is blocked on.
    pub obstacle: Option<Obstacle>,
    /// The interpreter lock is held by a thread that is inside C code and computes.
    pub computes_in_c: bool,
    /// The interpreter lock is held by a thread that sleeps in C code, and the main thread is that one or
    /// waits for a lock.
    pub sleeps_in_c: bool,
    /// Processes at the other end of what the main thread waits for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub awaits: Vec<u32>,
    /// One of those sleeps, or the thread of the program itself that is at the other end, and wakes by itself
    /// after so many ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub awaited_sleep_ms: Option<u64>,
    /// One of its threads or of its children wanted a core for most of the look, and got none.
    pub lacks_cores: bool,
    /// Bytes that the storage which the main thread waits for has read and written so far, for whomever;
    /// `None` where it waits for none, or nobody counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_bytes: Option<u64>,
    /// How many of those during the look.
    pub storage_moved: u64,
    /// Stacks, main thread first.
    pub threads: Vec<ThreadStack>,
    /// Its live descendants.
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
    /// When it began, on the clock of the host's samples; 0 when the agent does not tell.
    pub began_ms: u64,
}

/// What a thread is blocked on, where that has a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Obstacle {
    /// A lock on a file (flock, fcntl).
    FileLock {
        /// The file.
        path: String,
        /// Who holds it, as far as the kernel tells.
        holders: Vec<Holder>,
    },
    /// A named pipe.
    Fifo {
        path: String,
        /// It would read; otherwise it would write.
        reads: bool,
        /// Nobody has the other end open.
        opening: bool,
    },
    /// The answer of a name server.
    NameServer {
        /// Its address.
        server: String,
        /// The name that was asked for, empty when unknown.
        name: String,
    },
    /// The other end of a connection.
    Connection {
        /// Its address; the path of a local socket.
        peer: String,
        /// The process that has it, when that is on this host.
        owner: Option<Holder>,
    },
    /// Somebody who connects.
    Listener {
        /// Where it listens: an address, a port of all addresses or the path of a local socket.
        at: String,
    },
    /// The other end of a pipe, or of a pair of local sockets.
    Pipe {
        /// Who has it; empty when nobody else does.
        ends: Vec<Holder>,
        /// It would read; otherwise it would write.
        reads: bool,
    },
    /// The end of a child.
    Child {
        /// The child.
        process: Holder,
    },
}

/// A process that another one waits for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Holder {
    /// Process id on the host.
    pub pid: u32,
    /// Start of its command line.
    pub name: String,
    /// State letter.
    pub state: char,
    /// What it does, in short: a system call, or its state in words; empty when unknown.
    pub does: String,
    /// It belongs to the run.
    pub ours: bool,
}

impl Holder {
    /// `pid 7 (sleep 1000: clock_nanosleep), not of this run`.
    pub fn words(&self) -> String {
        let does = if self.does.is_empty() { String::new() } else { format!(": {}", self.does) };
        let whose = if self.ours { "" } else { ", not of this run" };
        format!("pid {} ({}{does}){whose}", self.pid, self.name)
    }
}

impl Obstacle {
    /// What it is, as the end of "waits for".
    pub fn words(&self) -> String {
        let list = |holders: &[Holder]| holders.iter().map(Holder::words).collect::<Vec<_>>().join(", ");
        match self {
            Obstacle::FileLock { path, holders } if holders.is_empty() => format!("a lock on {path}"),
            Obstacle::FileLock { path, holders } => format!("a lock on {path}, held by {}", list(holders)),
            Obstacle::Fifo { path, reads: true, opening: true } => {
                format!("somebody to open the FIFO {path} for writing")
            }
            Obstacle::Fifo { path, opening: true, .. } => {
                format!("somebody to open the FIFO {path} for reading")
            }
            Obstacle::Fifo { path, reads: true, .. } => format!("data from the FIFO {path}"),
            Obstacle::Fifo { path, .. } => format!("room in the FIFO {path}"),
            Obstacle::NameServer { server, name } if name.is_empty() => {
                format!("an answer of the name server {server}")
            }
            Obstacle::NameServer { server, name } => {
                format!("an answer of the name server {server} about {name}")
            }
            Obstacle::Connection { peer, owner: None } => format!("{peer} to answer"),
            Obstacle::Connection { peer, owner: Some(owner) } => {
                format!("{peer} to answer: {}", owner.words())
            }
            Obstacle::Listener { at } => format!("somebody to connect to {at}"),
            Obstacle::Pipe { ends, reads: true } if ends.is_empty() => {
                "data from a pipe that nobody else has open".into()
            }
            Obstacle::Pipe { ends, reads: true } => format!("data from {}", list(ends)),
            Obstacle::Pipe { ends, .. } if ends.is_empty() => {
                "room in a pipe that nobody else has open".into()
            }
            Obstacle::Pipe { ends, .. } => format!("{} to read from a pipe", list(ends)),
            Obstacle::Child { process } => format!("the end of its child {}", process.words()),
        }
    }
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
    /// How many threads the process has.
    pub threads: u32,
    /// CPU time that its threads used while the agent looked, ms.
    pub cpu_ms_moved: u64,
    /// It sleeps, and wakes by itself after so many ms; `None` when it does not sleep or nobody knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sleep_left_ms: Option<u64>,
}

impl OsState {
    /// Its main thread ran at the moment of the look, or was ready to.
    pub fn is_awake(&self) -> bool {
        self.state == 'R'
    }
}

/// The stack of one thread.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ThreadStack {
    /// Thread id on the host.
    pub tid: u32,
    /// The thread's name as the kernel has it.
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

/// A stack frame of a native or Python stack.
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
    /// Retransmissions of the oldest segment in a row; from 2 on the network is in doubt.
    pub retransmits: u32,
    /// Doublings of the retransmission timer.
    pub backoff: u32,
    /// Segments that came in since the connection began, repeated ones included.
    pub segments_in: u32,
    /// Bytes that have not left, although the other end has room for them.
    pub unsent: u32,
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
    /// The one called last; its site is in the user's code.
    #[serde(flatten)]
    pub call: CollectiveCall,
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
    /// Number in its group.
    pub seq: u64,
    /// `scheduled`, `started`, `completed`.
    pub state: String,
    /// What was passed to it; elements are summed over its inputs.
    #[serde(flatten)]
    pub call: CollectiveCall,
}
