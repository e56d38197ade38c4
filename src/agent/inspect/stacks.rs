//! The stacks of a process: Python's, those of its children, native ones, the kernel's.

use super::memory::Mapping;
use super::{SharedHelper, python, syscall};
use crate::proc;
use rankdeck_proto::inspection::{Frame, HOLDS_GIL, How, Inspection, ThreadStack};
use std::time::{Duration, Instant};

/// Looks at the holder of the interpreter lock, and the time between them.
const GIL_LOOKS: u32 = 4;
const GIL_STEP: Duration = Duration::from_millis(25);
/// Most threads listed of one process, and most native stacks.
#[cfg(target_arch = "x86_64")]
const THREADS: usize = 64;
const NATIVE_STACKS: usize = 6;
/// Most children whose Python stacks are read.
const CHILD_STACKS: usize = 4;

/// Reads all of them, the quickest first.
pub(super) fn read(pid: u32, mappings: &[Mapping], shared: &SharedHelper, deadline: Instant) {
    let interpreter = python::is_interpreter(pid, mappings);
    if interpreter {
        shared.stage("its Python stacks");
        match python::stacks(pid) {
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
    shared.stage("the Python stacks of its children");
    child_stacks(pid, shared, deadline);
    shared.stage("its native stacks");
    native_stacks(pid, mappings, if interpreter { 1 } else { NATIVE_STACKS }, shared, deadline);
    shared.stage("its kernel stack");
    if let Some(text) = proc::text(format!("/proc/{pid}/stack")) {
        let frames = kernel_frames(&text);
        if !frames.is_empty() {
            let stack =
                ThreadStack { tid: pid, name: super::thread_name(pid, pid), how: How::Kernel, frames };
            shared.found(|found| found.threads.push(stack));
        }
    }
}

/// Takes the stacks of a later look for those of an earlier one; both are of the same process.
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

/// Stacks of the env workers: what a rank waits for is often in one of them.
fn child_stacks(pid: u32, shared: &SharedHelper, deadline: Instant) {
    let below = proc::descendants(pid);
    for child in below.into_iter().take(CHILD_STACKS) {
        let Some(stat) = proc::stat(child).filter(|stat| !stat.is_gone() && stat.state != 'D') else {
            continue;
        };
        if Instant::now() >= deadline || !python::is_interpreter(child, &[]) {
            continue;
        }
        if let Ok((mut stacks, _)) = python::stacks(child) {
            stacks.truncate(1);
            for stack in &mut stacks {
                stack.name = format!("child {child} ({})", stat.comm);
            }
            shared.found(|found| found.threads.extend(stacks));
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn native_stacks(pid: u32, mappings: &[Mapping], most: usize, shared: &SharedHelper, deadline: Instant) {
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
            && slot.how == How::Native
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
fn native_stacks(_: u32, _: &[Mapping], _: usize, shared: &SharedHelper, _: Instant) {
    shared.found(|found| found.notes.push("native stacks are read on x86-64 only".into()));
}

/// What the thread that holds the interpreter lock does with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LockUse {
    /// It is in a call of C code that computes and keeps the lock, such as a regular expression.
    Computes,
    /// It is in a call of C code that waits and keeps the lock, and the main thread wants that.
    Sleeps,
    /// It may give the lock away at any moment, or nobody can tell.
    Shortly,
}

/// A thread that runs Python gives the lock away every few milliseconds when another one wants it, and its
/// lines change: only one that holds it at the same line at every look keeps it. On a busy host it may do so
/// because it gets no core, and whoever does not want the lock is not held up by it.
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
    let wants = || {
        let futex = |call: syscall::Call| call.number == Some(libc::SYS_futex);
        holder == pid || syscall::call(pid, pid).is_some_and(futex)
    };
    let (first, ran) = (place(stacks), cpu());
    let (mut slept, mut wanted) = (state() == Some('S'), wants());
    let mut keeps = |_: u32| {
        std::thread::sleep(GIL_STEP);
        (slept, wanted) = (slept && state() == Some('S'), wanted || wants());
        python::stacks(pid).is_ok_and(|(now, owner)| owner == Some(holder) && place(&now) == first)
    };
    let kept = first.is_some() && (0..GIL_LOOKS).all(&mut keeps);
    match cpu().zip(ran) {
        Some((now, before)) if kept && now > before => LockUse::Computes,
        Some((now, before)) if kept && now == before && slept && wanted => LockUse::Sleeps,
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
