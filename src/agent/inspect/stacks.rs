//! The stacks of a process: Python's, those of its children, native ones, the kernel's.
//!
//! Owner: a helper thread of one inspection. Python stacks are read from outside without stopping the process,
//! by py-spy's library in its non-blocking mode, which only reads memory: it works on a process that is stopped,
//! frozen, inside native code or without its interpreter lock. A process that runs may move on while it is read;
//! that shows as an error, and the read is repeated. The library maps the interpreter's files, which may be
//! truncated meanwhile ([`mapping`]).

use super::memory::CodeMapping;
use super::{SharedHelper, syscall};
use crate::proc;
use py_spy::config::{Config, LockingStrategy};
use rankdeck_proto::inspection::{Frame, HOLDS_GIL, Inspection, OF_CHILD, StackMethod, ThreadStack};
use rankdeck_proto::mapping;
use std::time::{Duration, Instant};

/// Samples of the holder of the interpreter lock, and the time between them.
const GIL_SAMPLES: u32 = 4;
const GIL_STEP: Duration = Duration::from_millis(25);
/// Most threads listed of one process, and most native stacks.
#[cfg(target_arch = "x86_64")]
const THREADS: usize = 64;
const NATIVE_STACKS: usize = 6;
/// Most children whose Python stacks are read.
const CHILD_STACKS: usize = 8;

/// Reads all of them, the quickest first.
pub(super) fn read(pid: u32, mappings: &[CodeMapping], shared: &SharedHelper, deadline: Instant) {
    let interpreter = is_interpreter(pid, mappings);
    if interpreter {
        shared.stage("Python stacks");
        match python_stacks(pid) {
            Ok((stacks, holder)) => shared.found(|found| {
                if let Some(holder) = holder {
                    found.notes.push(format!("thread {holder} {HOLDS_GIL}"));
                    let held = held(pid, holder, &stacks);
                    (found.computes_in_c, found.sleeps_in_c) =
                        (held == LockUse::Computes, held == LockUse::Sleeps);
                }
                found.threads.extend(stacks);
            }),
            Err(error) => shared.found(|found| found.notes.push(format!("no Python stacks: {error}"))),
        }
    }
    shared.stage("Python stacks of child processes");
    child_stacks(pid, shared, deadline);
    shared.stage("native stacks");
    native_stacks(pid, mappings, if interpreter { 1 } else { NATIVE_STACKS }, shared, deadline);
    shared.stage("kernel stack");
    if let Some(text) = proc::text(format!("/proc/{pid}/stack")) {
        let frames = kernel_frames(&text);
        if !frames.is_empty() {
            let stack = ThreadStack {
                tid: pid,
                name: super::thread_name(pid, pid),
                how: StackMethod::Kernel,
                frames,
            };
            shared.found(|found| found.threads.push(stack));
        }
    }
}

/// Replaces stacks by those of a later sample of the same process.
pub(super) fn replace(found: &mut Inspection, later: Inspection) {
    if later.threads.is_empty() {
        return;
    }
    found.threads = later.threads;
    (found.computes_in_c, found.sleeps_in_c) = (later.computes_in_c, later.sleeps_in_c);
    found.notes.retain(|note| !note.ends_with(HOLDS_GIL));
    for note in later.notes {
        if !found.notes.contains(&note) {
            found.notes.push(note);
        }
    }
}

/// Stacks of workers and of ranks of its own: what a rank waits for is often in one of them. Those first that its main
/// thread waits for.
fn child_stacks(pid: u32, shared: &SharedHelper, deadline: Instant) {
    let awaits = shared.found(|found| found.awaits.clone());
    let mut below = proc::descendants(pid);
    below.sort_by_key(|child| !awaits.contains(child));
    let readable = |child: &u32| {
        let stat = proc::stat(*child).filter(|stat| !stat.is_gone() && stat.state != 'D')?;
        (is_interpreter(*child, &[]) && !is_servant(*child)).then_some((*child, stat))
    };
    for (child, stat) in below.iter().filter_map(readable).take(CHILD_STACKS) {
        if Instant::now() >= deadline {
            break;
        }
        if let Ok((mut stacks, _)) = python_stacks(child) {
            stacks.truncate(1);
            for stack in &mut stacks {
                stack.name = format!("{OF_CHILD}{child} ({})", stat.comm);
            }
            shared.found(|found| found.threads.extend(stacks));
        }
    }
}

/// A process of Python's own library that runs no code of the program.
fn is_servant(pid: u32) -> bool {
    proc::arguments(pid).iter().any(|argument| argument.contains("multiprocessing.resource_tracker"))
}

#[cfg(target_arch = "x86_64")]
fn native_stacks(pid: u32, mappings: &[CodeMapping], most: usize, shared: &SharedHelper, deadline: Instant) {
    let mut tids: Vec<u32> = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .take(THREADS)
        .collect();
    tids.sort_by_key(|tid| (*tid != pid, *tid));
    let mut modules = super::symbols::Modules::new(pid, mappings);
    let mut notes = Vec::new();
    let mut stacks = |tids: &[u32], most, lines| {
        super::native::stacks(pid, tids, &mut modules, most, lines, deadline, |note| notes.push(note))
    };
    // The quickest first: should time run out, something is there.
    let main = stacks(&tids[..tids.len().min(1)], 1, false);
    let at = shared.found(|found| {
        found.threads.extend(main);
        found.threads.len()
    });
    let main = stacks(&tids[..tids.len().min(1)], 1, true);
    shared.found(|found| {
        if let (Some(stack), Some(slot)) =
            (main.into_iter().next(), found.threads.get_mut(at.wrapping_sub(1)))
            && slot.how == StackMethod::Native
        {
            *slot = stack;
        }
    });
    let others = if most > 1 { stacks(&tids[tids.len().min(1)..], most - 1, true) } else { Vec::new() };
    notes.sort_unstable();
    notes.dedup();
    shared.found(|found| {
        found.threads.extend(others);
        found.notes.extend(notes);
    });
}

#[cfg(not(target_arch = "x86_64"))]
fn native_stacks(_: u32, _: &[CodeMapping], _: usize, shared: &SharedHelper, _: Instant) {
    shared.found(|found| found.notes.push("native stacks need x86-64".into()));
}

/// What the thread that holds the interpreter lock does with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LockUse {
    /// It is in a call of C code that computes and keeps the lock, such as a regular expression.
    Computes,
    /// It is in a call of C code that waits and keeps the lock, and the main thread waits for that.
    Sleeps,
    /// It may release the lock at any moment, or this is unknown.
    Shortly,
}

/// A thread that runs Python releases the lock every few milliseconds when another one waits for it, and its
/// lines change: only one that holds it at the same line in every sample keeps it. On a busy host it may do so
/// because it gets no core, and threads that do not need the lock are not blocked by it.
fn held(pid: u32, holder: u32, stacks: &[ThreadStack]) -> LockUse {
    let place = |stacks: &[ThreadStack]| {
        let stack = stacks.iter().find(|stack| stack.tid == holder)?;
        let frame = stack.frames.first()?;
        Some((frame.file.clone(), frame.line, stack.frames.len()))
    };
    let cpu = || Some(proc::schedule(pid, holder)?.ran_ns);
    let state = || {
        let text = proc::text(format!("/proc/{pid}/task/{holder}/stat"))?;
        Some(proc::parse_stat(&text)?.state)
    };
    let is_awaited = || {
        let futex = |call: syscall::SyscallWait| call.number == Some(libc::SYS_futex);
        holder == pid || syscall::call(pid, pid).is_some_and(futex)
    };
    let (first, ran) = (place(stacks), cpu());
    let (mut slept, mut is_waited_for) = (state() == Some('S'), is_awaited());
    let mut keeps = |_: u32| {
        std::thread::sleep(GIL_STEP);
        (slept, is_waited_for) = (slept && state() == Some('S'), is_waited_for || is_awaited());
        python_stacks(pid).is_ok_and(|(now, owner)| owner == Some(holder) && place(&now) == first)
    };
    let kept = first.is_some() && (0..GIL_SAMPLES).all(&mut keeps);
    match cpu().zip(ran) {
        Some((now, before)) if kept && now > before => LockUse::Computes,
        Some((now, before)) if kept && now == before && slept && is_waited_for => LockUse::Sleeps,
        Some(_) | None => LockUse::Shortly,
    }
}

/// Lines like `[<0>] futex_do_wait+0x38/0x70`.
fn kernel_frames(text: &str) -> Vec<Frame> {
    text.lines()
        .take(32)
        .filter_map(|line| {
            let function = line.split_once("] ").map_or(line, |(_, rest)| rest).split('+').next()?.trim();
            (!function.is_empty() && !function.starts_with("0x")).then(|| Frame {
                function: function.to_owned(),
                file: Some("kernel".into()),
                line: None,
            })
        })
        .collect()
}

/// Reads of one Python process before giving up.
const PYTHON_READS: usize = 3;
/// Most Python frames of one thread.
const PYTHON_FRAMES: usize = 64;
/// Most Python threads of one process.
const PYTHON_THREADS: usize = 16;

/// The process runs an interpreter.
pub(super) fn is_interpreter(pid: u32, mappings: &[CodeMapping]) -> bool {
    let python = |path: &str| path.rsplit('/').next().is_some_and(|name| name.starts_with("python"));
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|path| python(&path.to_string_lossy()))
        || mappings.iter().any(|mapping| mapping.path.contains("/libpython"))
}

/// The stacks of a Python process, main thread first, and the thread that holds the interpreter lock.
pub(super) fn python_stacks(pid: u32) -> Result<(Vec<ThreadStack>, Option<u32>), String> {
    let config = Config { blocking: LockingStrategy::NonBlocking, native: false, ..Config::default() };
    let mut last = String::new();
    for _ in 0..PYTHON_READS {
        match mapping::reading(|| read_python(pid, &config)) {
            Ok(found) => return Ok(found),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn read_python(pid: u32, config: &Config) -> Result<(Vec<ThreadStack>, Option<u32>), String> {
    let text = |error: &dyn std::fmt::Display| format!("{error:#}");
    let mut spy = py_spy::PythonSpy::new(pid as py_spy::Pid, config).map_err(|error| text(&error))?;
    let traces = spy.get_stack_traces().map_err(|error| text(&error))?;
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
                how: StackMethod::Python,
                frames: trace.frames.into_iter().take(PYTHON_FRAMES).map(frame).collect(),
            }
        })
        .collect();
    stacks.sort_by_key(|stack| (stack.tid != pid, stack.tid));
    stacks.truncate(PYTHON_THREADS);
    Ok((stacks, holder))
}
