//! The inspection of one rank by its agent, on request: facts of the operating system, its sockets, its
//! stacks and its libraries.
//!
//! Times are ages and durations on the host, in milliseconds, so that clocks may differ. Facts that cannot be
//! read are empty and explained in [`Inspection::notes`]; a missing reply is itself a finding. Compatibility:
//! fields are only ever added, with `#[serde(default)]`.
//!
//! Whose code the frames of a stack are: the program's, a library's, or what both wait in.

use crate::message::CollectiveCall;
use rankdeck_types::exit::Exit;
use rankdeck_types::ids::Rank;
use serde::{Deserialize, Serialize};

/// Marks a note about the thread of a Python rank that holds the interpreter lock.
pub const HOLDS_GIL: &str = "holds the interpreter lock";
/// How the names of the stacks of child processes begin, before the process id.
pub const OF_CHILD: &str = "child ";
/// How the names of the stacks of asynchronous tasks begin, before the task's name.
pub const OF_TASK: &str = "task ";

/// State of one rank at one time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Inspection {
    /// The inspected rank.
    pub rank: Rank,
    /// Process id on the host; `None` before the rank was spawned or after it ended.
    pub pid: Option<u32>,
    /// It is of a process that this rank has started as a rank of a group of its own: the process id in the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inner_pid: Option<u32>,
    /// State of its main thread in the kernel.
    pub os: OsState,
    /// Obstacle of the main thread as text: `read on a pipe from pid 123 (env worker)`; `None` if it runs or
    /// the obstacle is unknown.
    pub blocked_on: Option<String>,
    /// Named obstacle of the main thread, or of a child that it waits for.
    pub obstacle: Option<Obstacle>,
    /// A thread that computes in C code holds the interpreter lock.
    pub computes_in_c: bool,
    /// A thread that sleeps in C code holds the interpreter lock, and the main thread is that thread or waits
    /// for a lock.
    pub sleeps_in_c: bool,
    /// Processes that the main thread waits for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub awaits: Vec<u32>,
    /// Milliseconds until one of those, or the program's own thread at the other end, wakes from its sleep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub awaited_sleep_ms: Option<u64>,
    /// One of its threads or children was ready to run during most of the inspection, but got no core.
    pub lacks_cores: bool,
    /// Bytes that the main thread's storage has read and written so far, for all processes; `None` if the
    /// main thread does not wait for storage, or the kernel does not count them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_bytes: Option<u64>,
    /// Part of [`Inspection::storage_bytes`] during the inspection.
    pub storage_moved: u64,
    /// Stacks, main thread first.
    pub threads: Vec<ThreadStack>,
    /// Paths and addresses among the variables of the Python functions in which the main thread sleeps, addresses
    /// first: `path = /data/ready.flag`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<String>,
    /// Its live descendants.
    pub children: Vec<InspectedChild>,
    /// Its TCP connections.
    pub sockets: Vec<Socket>,
    /// Pressure-stall information of the host.
    pub pressure: Option<Pressure>,
    /// The last line of its log.
    pub last_line: Option<String>,
    /// Its GPU as text, problems first.
    pub gpu: Option<String>,
    /// PyTorch's process groups of a Python rank, from the hook's page or the Flight Recorder.
    pub python: Option<PythonView>,
    /// NCCL's RAS report about the run as text; empty without one.
    pub ras: Vec<String>,
    /// Facts that could not be read, and the reasons.
    pub notes: Vec<String>,
    /// Duration of the inspection, ms.
    pub took_ms: u64,
    /// Start time, on the clock of the host's samples; 0 if unknown.
    pub began_ms: u64,
}

/// A rank to inspect that a rank of the plan has started itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InnerTarget {
    /// The rank that has started it.
    pub outer: Rank,
    /// Its number in its own group.
    pub number: u32,
    /// Its process.
    pub pid: u32,
}

/// Named obstacle of a thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Obstacle {
    /// A lock on a file (flock, fcntl).
    FileLock {
        /// The file.
        path: String,
        /// Its holders, as far as the kernel reveals them.
        holders: Vec<BlockingProcess>,
    },
    /// A named pipe.
    Fifo {
        path: String,
        /// It waits to read, else to write.
        reads: bool,
        /// The other end is not open.
        opening: bool,
    },
    /// The reply of a name server.
    NameServer {
        /// Its address.
        server: String,
        /// The queried name, empty if unknown.
        name: String,
    },
    /// The other end of a connection.
    Connection {
        /// Its address; the path of a local socket.
        peer: String,
        /// The process that has it, if it is on this host.
        owner: Option<BlockingProcess>,
    },
    /// An incoming connection.
    Listener {
        /// Its address, its port (on all addresses), or the path of a local socket.
        at: String,
    },
    /// The other end of a pipe, or of a pair of local sockets.
    Pipe {
        /// The other processes that have it.
        ends: Vec<BlockingProcess>,
        /// It waits to read, else to write.
        reads: bool,
    },
    /// The exit of a child.
    Child {
        /// The child.
        process: BlockingProcess,
    },
}

/// A process that another one waits for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BlockingProcess {
    /// Process id on the host.
    pub pid: u32,
    /// Start of its command line.
    pub name: String,
    /// State letter.
    pub state: char,
    /// Its system call, or its state as text; empty if unknown.
    pub does: String,
    /// It belongs to the run.
    pub ours: bool,
}

impl BlockingProcess {
    /// Returns `pid 7 (sleep 1000: clock_nanosleep; not of this run)`.
    pub fn words(&self) -> String {
        let does = if self.does.is_empty() { String::new() } else { format!(": {}", self.does) };
        let whose = if self.ours { "" } else { "; not of this run" };
        format!("pid {} ({}{does}{whose})", self.pid, self.name)
    }
}

impl Obstacle {
    /// Returns its identity: its kind, and its path or address.
    pub fn name(&self) -> String {
        match self {
            Obstacle::FileLock { path, .. } => format!("lock {path}"),
            Obstacle::Fifo { path, .. } => format!("fifo {path}"),
            Obstacle::NameServer { server, .. } => format!("name server {server}"),
            Obstacle::Connection { peer, .. } => format!("connection {peer}"),
            Obstacle::Listener { at } => format!("listener {at}"),
            Obstacle::Pipe { reads, .. } => format!("pipe {reads}"),
            Obstacle::Child { process } => format!("child {}", process.pid),
        }
    }

    /// Describes the obstacle, to follow "waits for".
    pub fn words(&self) -> String {
        let list = |holders: &[BlockingProcess]| {
            holders.iter().map(BlockingProcess::words).collect::<Vec<_>>().join(", ")
        };
        match self {
            Obstacle::FileLock { path, holders } if holders.is_empty() => format!("a lock on {path}"),
            Obstacle::FileLock { path, holders } => format!("a lock on {path}, held by {}", list(holders)),
            Obstacle::Fifo { path, reads: true, opening: true } => {
                format!("a writer to open FIFO {path}")
            }
            Obstacle::Fifo { path, opening: true, .. } => {
                format!("a reader to open FIFO {path}")
            }
            Obstacle::Fifo { path, reads: true, .. } => format!("data from FIFO {path}"),
            Obstacle::Fifo { path, .. } => format!("space in FIFO {path}"),
            Obstacle::NameServer { server, name } if name.is_empty() => {
                format!("a DNS reply from {server}")
            }
            Obstacle::NameServer { server, name } => {
                format!("a DNS reply from {server} for {name}")
            }
            Obstacle::Connection { peer, owner: None } => format!("a reply from {peer}"),
            Obstacle::Connection { peer, owner: Some(owner) } => {
                format!("a reply from {peer}: {}", owner.words())
            }
            Obstacle::Listener { at } => format!("an incoming connection on {at}"),
            Obstacle::Pipe { ends, reads: true } if ends.is_empty() => {
                "data from a pipe with no writer".into()
            }
            Obstacle::Pipe { ends, reads: true } => format!("data from {}", list(ends)),
            Obstacle::Pipe { ends, .. } if ends.is_empty() => "space in a pipe with no reader".into(),
            Obstacle::Pipe { ends, .. } => format!("{} to read from a pipe", list(ends)),
            Obstacle::Child { process } => format!("child process {} to exit", process.words()),
        }
    }
}

/// State of the main thread in the kernel.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OsState {
    /// State letter of `/proc/PID/stat`; `X` if it is gone.
    pub state: char,
    /// The state as text, with the cgroup's freezer: `suspended by a signal`, `frozen by its cgroup`.
    pub words: String,
    /// Kernel function that it waits in.
    pub wchan: Option<String>,
    /// Current system call: `futex`, `read(5)`.
    pub syscall: Option<String>,
    /// Its cgroup is frozen.
    pub frozen_cgroup: bool,
    /// Share of CPU periods in which its cgroup was throttled during the inspection, 0..=1; `None` without a
    /// quota.
    pub throttled_share: Option<f64>,
    /// Processes of its cgroup that the out-of-memory killer has killed so far.
    pub oom_kills: u64,
    /// Process that traces it (a debugger); 0: none.
    pub tracer: u32,
    /// Number of threads of the process.
    pub threads: u32,
    /// CPU time of its threads during the inspection, ms.
    pub cpu_ms_moved: u64,
    /// Milliseconds until its sleep ends; `None` if it does not sleep or the end is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sleep_left_ms: Option<u64>,
    /// The lock that it waits for lies in memory that processes share: a semaphore or a lock of several processes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shared_lock: bool,
}

impl OsState {
    /// Returns whether the main thread was running or ready.
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
    /// Name of the thread in the kernel.
    pub name: String,
    /// Method by which the stack was read.
    pub how: StackMethod,
    /// Innermost first, bounded.
    pub frames: Vec<Frame>,
}

/// Method by which a stack was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StackMethod {
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
    /// Source file, or the library if the source is unknown.
    pub file: Option<String>,
    /// Line, from 1.
    pub line: Option<u32>,
}

/// A descendant of the rank.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct InspectedChild {
    /// Process id on the host.
    pub pid: u32,
    /// Its program or thread name.
    pub name: String,
    /// State letter; `Z`: it has exited and was not waited for.
    pub state: char,
    /// CPU time during the inspection, ms.
    pub cpu_ms_moved: u64,
    /// How it ended, if it has and the kernel shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
    /// Its RANK and WORLD_SIZE, if these are not those of the rank that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<(u32, u32)>,
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
    /// Bytes that the rank has written and the other end has not acknowledged.
    pub send_queue: u32,
    /// Bytes received that the rank has not read.
    pub receive_queue: u32,
    /// Milliseconds since data was received.
    pub last_received_ms: u32,
    /// Milliseconds since data was sent.
    pub last_sent_ms: u32,
    /// Retransmissions of the oldest segment in a row; 2 or more suggest a network problem.
    pub retransmits: u32,
    /// Doublings of the retransmission timer.
    pub backoff: u32,
    /// Segments received since the connection was opened, with repeated ones.
    pub segments_in: u32,
    /// Bytes that were not sent, although the other end has room for them.
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

/// Process groups of a Python rank.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PythonView {
    /// `hook` (the hook's status page) or `flight recorder`.
    pub source: String,
    /// Version of PyTorch, empty if unknown.
    pub torch: String,
    /// Process groups, the default group first.
    pub groups: Vec<GroupView>,
    /// Latest collectives, oldest first, bounded.
    pub recent: Vec<RecentCall>,
}

/// One process group of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupView {
    /// Its name in PyTorch; `0`: the default group.
    pub name: String,
    /// Its member ranks, empty if unknown.
    pub ranks: Vec<u32>,
    /// Number of members.
    pub size: u32,
    /// Number of the latest collective called, from 1.
    pub enqueued: u64,
    /// Number of the latest collective completed; for asynchronous work, the latest one waited for.
    pub completed: u64,
    /// The latest call; its site is in the user's code.
    #[serde(flatten)]
    pub call: CollectiveCall,
    /// Milliseconds since it was called (while inside), else since it completed.
    pub age_ms: u64,
    /// Hash over (op, count, dtype) of all calls so far. If members differ at equal `enqueued`, their calls
    /// mismatch.
    pub chain: u64,
}

/// A recent collective.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RecentCall {
    /// Number in its group.
    pub seq: u64,
    /// `scheduled`, `started`, `completed`.
    pub state: String,
    /// Its arguments; elements are summed over its inputs.
    #[serde(flatten)]
    pub call: CollectiveCall,
}

/// Whose code a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameOwner {
    /// The program itself.
    Program,
    /// A library that the program uses: its loop may be there.
    Library,
    /// PyTorch, the language's own library, the system, or rankdeck's hook: what the program waits in.
    System,
}

impl FrameOwner {
    fn of(file: Option<&str>) -> FrameOwner {
        match file {
            Some(file) if file.ends_with(".py") => FrameOwner::of_python(file),
            Some(file) if is_source(file) && !NATIVE_SYSTEM.iter().any(|part| file.contains(part)) => {
                FrameOwner::Program
            }
            _ => FrameOwner::System,
        }
    }

    fn of_python(file: &str) -> FrameOwner {
        if let Some(below) = installed(file) {
            let package = below.split(['/', '.']).next().unwrap_or(below);
            return if TORCH.contains(&package) { FrameOwner::System } else { FrameOwner::Library };
        }
        let is_version = |folder: &str| {
            let number = folder.strip_prefix("python").filter(|number| !number.is_empty());
            number.is_some_and(|number| {
                number.starts_with(|c: char| c.is_ascii_digit())
                    && number.chars().all(|c| c.is_ascii_alphanumeric() || c == '.')
            })
        };
        // `lib/python3.11`, also below `lib64`.
        let parts = || file.split('/');
        let is_standard =
            || parts().zip(parts().skip(1)).any(|(lib, folder)| lib.starts_with("lib") && is_version(folder));
        if is_of_hook(file) || is_standard() || file.starts_with('<') {
            FrameOwner::System
        } else {
            FrameOwner::Program
        }
    }
}

/// PyTorch's packages.
const TORCH: [&str; 3] = ["torch", "functorch", "torchgen"];
/// Parts of paths of native code below the program.
const NATIVE_SYSTEM: [&str; 12] = [
    "/rustc/",
    "site-packages",
    "dist-packages",
    ".cargo/registry",
    "/usr/lib",
    "/lib/",
    "libtorch",
    "libc.so",
    "libpthread",
    "ld-linux",
    "/library/std",
    "/library/core",
];

/// A file of source code, not a library of which no source is known.
fn is_source(file: &str) -> bool {
    [".rs", ".cc", ".cpp", ".c", ".cu", ".h", ".pyx"].iter().any(|end| file.ends_with(end))
}

/// A file of the hook that agents put before a program, in the folder of the run.
fn is_of_hook(file: &str) -> bool {
    let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
    folder.ends_with("/python")
        && (name == "sitecustomize.py" || name.starts_with("rankdeck") && name.ends_with(".py"))
}

/// The part of a path below the folder in which a package was installed.
fn installed(file: &str) -> Option<&str> {
    let after = |folder: &str| file.rfind(folder).and_then(|at| file.get(at + folder.len()..));
    after("site-packages/").or_else(|| after("dist-packages/"))
}

impl Frame {
    /// Whose code it is.
    pub fn owner(&self) -> FrameOwner {
        FrameOwner::of(self.file.as_deref())
    }

    /// Whether it belongs to rankdeck's hook.
    pub fn is_of_hook(&self) -> bool {
        self.file.as_deref().is_some_and(is_of_hook)
    }

    /// Returns the path of its file; of a library without the folder in which it was installed.
    pub fn path(&self) -> &str {
        let file = self.file.as_deref().unwrap_or_default();
        installed(file).unwrap_or(file)
    }

    /// Returns `FILE:LINE`.
    pub fn place(&self) -> String {
        let line = self.line.map(|line| format!(":{line}")).unwrap_or_default();
        format!("{}{line}", self.path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_follows_from_the_path() {
        for (file, owner) in [
            ("/home/u/lib/train.py", FrameOwner::Program),
            ("train.py", FrameOwner::Program),
            ("/w/python/train.py", FrameOwner::Program),
            ("/v/lib/python3.11/site-packages/ding/worker/evaluator.py", FrameOwner::Library),
            ("/usr/lib/python3/dist-packages/requests/api.py", FrameOwner::Library),
            ("/v/lib/python3.11/site-packages/torch/nn/modules/linear.py", FrameOwner::System),
            ("/v/lib/python3.11/site-packages/torchrl/envs/vec_envs.py", FrameOwner::Library),
            ("/usr/lib/python3.11/threading.py", FrameOwner::System),
            ("/v/lib64/python3.13t/queue.py", FrameOwner::System),
            ("/w/runs/r/gen0/python/rankdeck_hook.py", FrameOwner::System),
            ("<frozen importlib._bootstrap>", FrameOwner::System),
            ("src/trainer/algo/ppg.rs", FrameOwner::Program),
            ("/usr/lib/libc.so.6", FrameOwner::System),
            ("/rustc/abc/library/core/src/ops.rs", FrameOwner::System),
        ] {
            let frame = Frame { file: Some(file.into()), ..Frame::default() };
            assert_eq!(frame.owner(), owner, "{file}");
            assert_eq!(frame.is_of_hook(), file.ends_with("rankdeck_hook.py"), "{file}");
        }
        assert_eq!(Frame::default().owner(), FrameOwner::System);
    }

    #[test]
    fn place_of_a_library_starts_below_its_installation() {
        let file = Some("/v/lib/python3.11/site-packages/ding/entry.py".into());
        let frame = Frame { file, line: Some(9), ..Frame::default() };
        assert_eq!(frame.place(), "ding/entry.py:9");
    }
}
