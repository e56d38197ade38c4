//! Why a rank is late: the first rule that matches gives the reason. Pure.
//!
//! A wait is explained by what the late rank does, so its phase and its silence decide how long is too long,
//! not the wait of the others.

use super::draft::Judgement;
use super::pace::SUSPECT_MS;
use super::rank_view::RankView;
use crate::reason::{Reason, Severity};
use crate::report::Confidence;
use crate::session::Limits;
use rankdeck_proto::inspection::{Frame, HOLDS_GIL, How, Inspection};
use rankdeck_proto::message::{Activity, Phase};
use rankdeck_types::words;

/// Wait after which an explained wait is shown.
pub(super) const AMBER_MS: u64 = 30_000;
/// CPU share from which a rank is busy, and below which it is idle.
const BUSY: f64 = 0.8;
const IDLE: f64 = 0.05;
/// Share of the time without a core from which a rank is starved. [`STARVED`] is how many times its budget
/// that may last: an endless loop on a busy host looks the same.
const DELAYED: f64 = 0.2;
/// CPU share from which a rank on a busy host has its part of it.
const FAIR: f64 = 0.5;
pub(super) const STARVED: u64 = 4;
/// Pressure of memory (full) and major faults per second from which a host thrashes.
const MEMORY_FULL: f32 = 20.0;
const FAULTS: f64 = 1_000.0;
/// Milliseconds in state D after which it is not an accident.
const BLOCKED_MS: u64 = 1_000;
/// Wait after which a rank that has not come to the rendezvous and does nothing is named.
pub(super) const RENDEZVOUS_MS: u64 = 10_000;

fn red(confidence: Confidence, reason: Reason) -> Option<Judgement> {
    Some(Judgement { severity: Severity::Red, confidence, reason })
}

fn amber(reason: Reason) -> Option<Judgement> {
    Some(Judgement { severity: Severity::Amber, confidence: Confidence::Possible, reason })
}

/// What a late rank waits in, by the kernel's name for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    Pipe,
    /// On several descriptors at once.
    Poll,
    Lock,
    Sleep,
    Net,
    Child,
    Other,
}

fn wait(view: &RankView<'_>) -> Wait {
    let looked = view.look.and_then(|look| look.os.wchan.as_deref());
    let wchan = looked.unwrap_or(&view.sample.wchan);
    let has = |names: &[&str]| names.iter().any(|name| wchan.contains(name));
    let blocked = view.look.and_then(|look| look.blocked_on.as_deref()).unwrap_or_default();
    if has(&["pipe_read", "unix_stream_read", "pipe_wait"]) || blocked.contains("pipe from pid") {
        Wait::Pipe
    } else if has(&["futex"]) {
        Wait::Lock
    } else if has(&["nanosleep"]) {
        Wait::Sleep
    } else if has(&["wait_woken", "sk_wait_data", "inet_csk", "tcp_"]) {
        Wait::Net
    } else if has(&["poll", "do_select"]) {
        Wait::Poll
    } else if wchan == "do_wait" || has(&["kernel_wait4"]) {
        Wait::Child
    } else {
        Wait::Other
    }
}

/// Own CPU share; the tree's where the agent does not tell a rank's own.
fn cpu(view: &RankView<'_>) -> f64 {
    view.moved.cpu.unwrap_or(f64::from(view.sample.cpu_percent) / 100.0)
}

/// A child has ended and nobody waited for it.
pub(super) fn dead_child(view: &RankView<'_>) -> Option<u32> {
    let seen = view.sample.signals.children.iter().find(|child| matches!(child.state, 'Z' | 'X'));
    let looked = || view.look?.children.iter().find(|child| matches!(child.state, 'Z' | 'X'));
    seen.map(|child| child.pid).or_else(|| looked().map(|child| child.pid))
}

/// A child that cannot answer: stopped by a signal or held by a debugger.
pub(super) fn stopped_child(view: &RankView<'_>) -> Option<u32> {
    view.sample.signals.children.iter().find(|child| matches!(child.state, 'T' | 't')).map(|child| child.pid)
}

/// Waits for its children, which `Some(true)` work, `Some(false)` do nothing.
fn children_work(view: &RankView<'_>) -> Option<bool> {
    let moved = &view.moved;
    match (moved.children, moved.over_ms) {
        (0, _) | (_, 0) => None,
        (_, over) => Some(moved.children_cpu_ms as f64 / over as f64 >= IDLE),
    }
}

/// A thread holds Python's interpreter lock, as the inspection says.
fn gil(look: &Inspection) -> bool {
    let said = look.blocked_on.iter().chain(&look.notes);
    said.into_iter().any(|text| text.contains(HOLDS_GIL))
}

/// It never sleeps: time in which it was ready to run and got no core counts.
fn never_sleeps(view: &RankView<'_>) -> bool {
    view.moved.over_ms > 0 && cpu(view) + view.moved.delayed >= BUSY
}

/// Its program works in a phase of known length.
fn progresses(view: &RankView<'_>) -> bool {
    let moved = &view.moved;
    view.silence_ms() < SUSPECT_MS
        || moved.io_bytes > 0
        || children_work(view) == Some(true)
        || never_sleeps(view)
}

/// Two looks one after the other saw it in the same function of its own code.
fn same_function(view: &RankView<'_>) -> bool {
    view.function_before.is_some() && view.look.and_then(user_function).as_deref() == view.function_before
}

/// It has something to do and does not get a core for it. One that only waits uses none at all, however busy
/// its host is.
pub(super) fn starved(view: &RankView<'_>) -> bool {
    let busy = view.host.is_busy();
    let moved = &view.moved;
    let waits =
        view.sample.state == 'R' || moved.delayed >= DELAYED || moved.cpu.is_some_and(|cpu| cpu > IDLE);
    busy && waits && moved.cpu.is_some_and(|cpu| cpu < FAIR)
}

/// Its host has no free core, and the rank and its children get little CPU or wait for it, so that all they
/// do takes long.
fn gets_little(view: &RankView<'_>) -> bool {
    let moved = &view.moved;
    let children = moved.children_cpu_ms as f64 / moved.over_ms.max(1) as f64;
    let share = moved.cpu.unwrap_or(0.0) + children;
    let ready = || view.sample.signals.children.iter().any(|child| child.state == 'R');
    view.host.is_busy() && share < FAIR && (share > 0.0 || ready() || starved(view))
}

/// How bad the lateness of one rank is; `None` while nothing should be said.
pub(super) fn judge(view: &RankView<'_>, waited_ms: u64, limits: &Limits) -> Option<Judgement> {
    let silence = view.silence_ms();
    let threshold = view.threshold;
    let suspicious = silence >= threshold.suspect && waited_ms >= SUSPECT_MS;
    let overdue = silence >= threshold.stuck && waited_ms >= limits.behind.min(threshold.stuck);
    let shown = waited_ms >= AMBER_MS;
    if view.left {
        return red(Confidence::Certain, Reason::LeftEarly);
    }
    if view.halted_ms.is_some() {
        // That has a verdict of its own.
        return None;
    }
    if starved(view) && silence < threshold.stuck.saturating_mul(STARVED) {
        return if overdue { amber(Reason::HostOverloaded) } else { None };
    }
    if view.blocked_ms.is_some_and(|ms| ms >= BLOCKED_MS) && suspicious && view.moved.io_bytes == 0 {
        return red(Confidence::Likely, Reason::Storage);
    }
    let thrashes = view.host.pressure.is_some_and(|(_, memory)| memory > MEMORY_FULL)
        || view.moved.faults_per_s > FAULTS;
    if thrashes {
        return if overdue { amber(Reason::Thrashing) } else { None };
    }
    let phase = view.phase();
    let env = matches!(phase, None | Some(Phase::Rollout | Phase::Eval))
        || matches!(view.page().map(|page| page.activity), Some(Activity::EnvReset | Activity::EnvStep));
    let waits_in = wait(view);
    // A program that reports no phase may poll for anything: one of its workers must be known to be stopped.
    let polls = waits_in == Wait::Poll && (phase.is_some() || stopped_child(view).is_some());
    if env && (polls || matches!(waits_in, Wait::Pipe | Wait::Child)) {
        if dead_child(view).is_some() && silence >= SUSPECT_MS && waited_ms >= SUSPECT_MS {
            return red(Confidence::Certain, Reason::EnvWorkerDied);
        }
        match children_work(view) {
            // The look may be older than the computation.
            Some(false) if overdue && cpu(view) <= IDLE => {
                return red(Confidence::Likely, Reason::EnvWorkerDeadlocked);
            }
            Some(true) => return if overdue || shown { amber(Reason::SlowEnv) } else { None },
            Some(false) | None => {}
        }
    }
    // A thread that computes releases the lock when another one wants it. A thread that sleeps does not.
    if view.look.is_some_and(gil) && overdue && view.sample.state != 'R' && cpu(view) <= IDLE {
        return red(Confidence::Likely, Reason::GilHeld);
    }
    let long = matches!(phase, Some(Phase::Eval | Phase::Checkpoint | Phase::Init | Phase::Rendezvous));
    let compiling = view.page().is_some_and(|page| page.activity == Activity::Compile);
    // Progress of the program always renews the budget, a busy CPU alone three times.
    let silent_budget = threshold.stuck.saturating_mul(if never_sleeps(view) { 4 } else { 1 });
    if (long || compiling) && progresses(view) && silence < silent_budget {
        return if shown { amber(Reason::ExpectedWait) } else { None };
    }
    // A program without phases may work for as long as it likes. Nothing tells an evaluation from an endless
    // loop, but a program that is in the same function at each look is worth a word. The kernel counts a wait
    // for a core only when it is over, so a rank that gets no core at all is merely seen ready to run.
    let works = progresses(view) || cpu(view) > IDLE || view.sample.state == 'R';
    if phase.is_none() && works && silence < limits.rank0 {
        if overdue && never_sleeps(view) && same_function(view) {
            return amber(Reason::Spinning);
        }
        return if shown { amber(Reason::ExpectedWait) } else { None };
    }
    if !overdue {
        return if shown { amber(Reason::ExpectedWait) } else { None };
    }
    let idle = cpu(view) <= IDLE;
    let reason = match (view.sample.state, waits_in) {
        _ if view.waiting().is_some() => Reason::InsideEarlier,
        ('R', _) if never_sleeps(view) => Reason::Spinning,
        (_, Wait::Lock) if idle => Reason::Lock,
        (_, Wait::Sleep) => Reason::Sleeping,
        (_, Wait::Net) => Reason::WaitsForPeer,
        _ => Reason::Unknown,
    };
    red(Confidence::Likely, reason)
}

/// A rank that has not come to the rendezvous while others wait there.
pub(super) fn judge_start(view: &RankView<'_>, waited_ms: u64, limits: &Limits) -> Option<Judgement> {
    if view.left {
        return red(Confidence::Certain, Reason::LeftEarly);
    }
    if view.halted_ms.is_some() {
        return None;
    }
    let blocked = view.blocked_ms.is_some_and(|ms| ms >= BLOCKED_MS);
    let idle = view.moved.over_ms >= 1_000 && cpu(view) <= IDLE;
    let slowly = gets_little(view);
    let nothing = idle && !slowly && view.moved.io_bytes == 0 && children_work(view) != Some(true);
    let budget = limits.init.saturating_mul(if slowly { STARVED } else { 1 });
    if blocked && waited_ms >= limits.behind {
        return red(Confidence::Likely, Reason::Storage);
    }
    if waited_ms >= budget || (nothing && waited_ms >= RENDEZVOUS_MS) {
        return red(Confidence::Likely, Reason::RendezvousIncomplete);
    }
    if waited_ms >= AMBER_MS { amber(Reason::RendezvousIncomplete) } else { None }
}

/// The frame belongs to the program, not to a library below it.
pub(super) fn is_own(frame: &Frame) -> bool {
    const FOREIGN: [&str; 17] = [
        "/rustc/",
        ".cargo/registry",
        "/usr/lib",
        "/lib/",
        "site-packages",
        "dist-packages",
        "/lib/python",
        "<frozen",
        "threading.py",
        "multiprocessing/",
        "libtorch",
        "libc.so",
        "libpthread",
        "ld-linux",
        "/library/std",
        "/library/core",
        "torch/distributed",
    ];
    frame.file.as_deref().is_some_and(|file| {
        let source =
            [".py", ".rs", ".cc", ".cpp", ".c", ".cu", ".h", ".pyx"].iter().any(|end| file.ends_with(end));
        source && !FOREIGN.iter().any(|part| file.contains(part))
    })
}

/// The innermost frame of the program's own code: its file, and its function with a word before it.
fn own_frame(look: &Inspection) -> Option<(&Frame, &str, String)> {
    let stacks = || look.threads.iter().filter(|thread| thread.how != How::Kernel);
    // A Python program's own lines are in its interpreter frames; native frames below them are the library's.
    let python = stacks().filter(|thread| thread.how == How::Python);
    let native = stacks().filter(|thread| thread.how == How::Native);
    python.chain(native).find_map(|thread| {
        let frame = thread.frames.iter().find(|frame| is_own(frame))?;
        // Parameters of types make names of hundreds of characters.
        let bare = frame.function.find('<').filter(|at| *at > 0);
        let name = bare.and_then(|at| frame.function.get(..at)).unwrap_or(&frame.function);
        let name = words::clip(name, 80);
        let function = if name.is_empty() { String::new() } else { format!(" in {name}") };
        Some((frame, frame.file.as_deref()?, function))
    })
}

/// `FILE:LINE` and function of the innermost frame of the program's own code, from an inspection.
pub(super) fn user_frame(look: &Inspection) -> Option<String> {
    let (frame, file, function) = own_frame(look)?;
    let line = frame.line.map(|line| format!(":{line}")).unwrap_or_default();
    Some(format!("{file}{line}{function}"))
}

/// The same without the line.
pub(super) fn user_function(look: &Inspection) -> Option<String> {
    own_frame(look).map(|(_, file, function)| format!("{file}{function}"))
}
