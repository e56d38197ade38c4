//! Stacks of Python processes, read from outside without stopping them.
//!
//! Owner: a helper thread of one inspection. Method: py-spy's library in its non-blocking mode, which only
//! reads memory: it works on a process that is stopped, frozen, inside native code or without its interpreter
//! lock. A process that runs may move on while it is read; that shows as an error, and the read is repeated.
//! The library maps the interpreter's files, which somebody may cut short meanwhile ([`super::mapped`]).

use py_spy::config::{Config, LockingStrategy};
use rankdeck_proto::inspection::{Frame, How, ThreadStack};
use rankdeck_proto::mapping;

/// Reads of one process before giving up.
const TRIES: usize = 3;
/// Most frames of one thread.
const FRAMES: usize = 64;
/// Most threads of one process.
const THREADS: usize = 16;

/// The process runs an interpreter.
pub fn is_interpreter(pid: u32, mappings: &[super::memory::Mapping]) -> bool {
    let python = |path: &str| path.rsplit('/').next().is_some_and(|name| name.starts_with("python"));
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|path| python(&path.to_string_lossy()))
        || mappings.iter().any(|mapping| mapping.path.contains("/libpython"))
}

/// The stacks of the interpreter's threads, main thread first, and whether one of them holds the interpreter
/// lock.
pub fn stacks(pid: u32) -> Result<(Vec<ThreadStack>, Option<u32>), String> {
    let config = Config { blocking: LockingStrategy::NonBlocking, native: false, ..Config::default() };
    let mut last = String::new();
    for _ in 0..TRIES {
        match mapping::reading(|| once(pid, &config)) {
            Ok(found) => return Ok(found),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn once(pid: u32, config: &Config) -> Result<(Vec<ThreadStack>, Option<u32>), String> {
    let told = |error: &dyn std::fmt::Display| format!("{error:#}");
    let mut spy = py_spy::PythonSpy::new(pid as py_spy::Pid, config).map_err(|error| told(&error))?;
    let traces = spy.get_stack_traces().map_err(|error| told(&error))?;
    let mut holder = None;
    let mut stacks: Vec<ThreadStack> = traces
        .into_iter()
        .map(|trace| {
            let tid = trace.os_thread_id.unwrap_or(0) as u32;
            if trace.owns_gil {
                holder = Some(tid);
            }
            let frame = |frame: py_spy::Frame| Frame {
                function: frame.name,
                file: Some(frame.filename),
                line: u32::try_from(frame.line).ok().filter(|line| *line > 0),
            };
            ThreadStack {
                tid,
                name: trace.thread_name.unwrap_or_default(),
                how: How::Python,
                frames: trace.frames.into_iter().take(FRAMES).map(frame).collect(),
            }
        })
        .collect();
    stacks.sort_by_key(|stack| (stack.tid != pid, stack.tid));
    stacks.truncate(THREADS);
    Ok((stacks, holder))
}
