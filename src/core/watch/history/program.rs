//! What the program of a rank does now: whether it makes progress, what its main thread waits in, and whether
//! it gets a core.
//!
//! The program is its main thread and what that waits for. Trackers, writers of event files, loaders and
//! profilers run alongside, as processes or threads: their activity is not progress. They have no common
//! name, so they are distinguished by what they did while the rank still completed collectives: an earlier
//! helper counts only if it does clearly more than then.
//!
//! A program that reports its phase is the built-in trainer, whose children are its environment workers.
//!
//! A rank gets no core if its host is oversubscribed, or if its cgroup has used up its quota. Everything that
//! it does then takes long, and resembles a stuck rank, so its silence means less.

use crate::watch::history::movement::{BULK, ChildDelta, IDLE};
use crate::watch::history::rank_history::CHILDREN;
use crate::watch::history::run_view::RankView;
use crate::watch::history::silence::SUSPECT_MS;
use rankdeck_proto::inspection::{Inspection, Obstacle};
use rankdeck_proto::message::GpuSample;
use std::collections::BTreeMap;

/// CPU share of all helpers together from which they work for the program, whatever they did before.
const HELP: f64 = 0.5;
/// How much more than before, as a factor and a share, helpers must do to work for the program.
const MORE: (f64, f64) = (2.0, 0.1);
/// The same of the bytes per second that children read and write, as one does that uploads what is there.
const MORE_IO: (f64, f64) = (2.0, (128 << 10) as f64);
/// Share of its time that a GPU works, percent, from which its rank does.
const GPU: u32 = 5;
/// Share of the time without a core from which a rank is starved.
pub(crate) const DELAYED: f64 = 0.2;
/// How many times its budget a starved rank may be silent, no longer: an endless loop on a busy host looks the
/// same.
pub(crate) const STARVED: u64 = 4;
/// CPU share from which a rank on a busy host has its fair part.
const FAIR: f64 = 0.5;

/// Bytes of storage that the program moved.
pub(crate) fn storage_bytes(view: &RankView<'_>) -> u64 {
    if is_script_with_main_thread(view) { view.moved().main_io_bytes } else { view.moved().io_bytes }
}

/// Waits for its children, which `Some(true)` work, `Some(false)` do nothing.
pub(crate) fn children_work(view: &RankView<'_>) -> Option<bool> {
    let moved = view.moved();
    if moved.children.is_empty() || moved.over_ms == 0 {
        return None;
    }
    if !is_script_with_main_thread(view) {
        let cpu_ms: u64 = moved.children.iter().map(|child| child.cpu_ms).sum();
        return Some(cpu_ms as f64 / moved.over_ms as f64 >= IDLE);
    }
    if gpu_works(view) {
        return Some(true);
    }
    let awaited = awaited(view);
    let works = |child: &ChildDelta| child.moves(moved.over_ms);
    if awaited.is_empty() { Some(helpers_work(view)) } else { Some(awaited.iter().copied().any(works)) }
}

/// Something of the program moves, or will by itself.
pub(crate) fn moves(view: &RankView<'_>, budget_ms: u64) -> bool {
    let wakes = || is_script_with_main_thread(view) && wakes_by_itself(view, budget_ms);
    view.quiet_ms() < SUSPECT_MS || view.sample.state == 'R' || works(view) || wakes()
}

/// Something of the program works: its main thread, storage, its GPU, or what it waits for. To wake up and sleep
/// again is not work.
pub(crate) fn works(view: &RankView<'_>) -> bool {
    let moved = view.moved();
    if view.cpu_share() > IDLE || view.never_sleeps() {
        return true;
    }
    if !is_script_with_main_thread(view) {
        return moved.io_bytes > 0 || children_work(view) == Some(true);
    }
    moved.io_bytes >= BULK || gpu_works(view) || children_work(view) == Some(true) || helpers_work(view)
}

/// The GPU of the rank works for it while its main thread waits for that. Where others use it too, only the
/// rank's own share counts. A driver that hides processes from a container also hides other ranks there.
fn gpu_works(view: &RankView<'_>) -> bool {
    let alone = |gpu: &&GpuSample| gpu.processes.len() <= 1 && !view.gpu_is_shared;
    let own = view.sample.gpu_share.or_else(|| view.gpu.filter(alone)?.utilization);
    own.is_some_and(|percent| percent >= GPU)
}

/// It sleeps, and the sleep ends within its budget; or what it waits for does. Where it slept at the latest
/// inspection, has done something since and sleeps again, it wakes. An event loop sleeps in
/// a poll.
pub(crate) fn wakes_by_itself(view: &RankView<'_>, budget_ms: u64) -> bool {
    let left = view.inspection().and_then(|inspection| inspection.os.sleep_left_ms);
    let sleeps = ["nanosleep", "poll"].iter().any(|wait| view.sample.wchan.contains(wait));
    let own = sleeps && left.is_some_and(|left| view.silence_ms().saturating_add(left) < budget_ms);
    own || awaits_a_sleeper(view, budget_ms)
}

/// Whether what it waits for sleeps, and wakes within the budget. The rank continues some time later, or the
/// wake was not for it. A process that is stopped while it sleeps does not wake, but another one may.
pub(crate) fn awaits_a_sleeper(view: &RankView<'_>, budget_ms: u64) -> bool {
    let someone = |inspection: &&Inspection| {
        inspection.awaits.is_empty() || inspection.awaits.iter().any(|pid| !is_stopped(view, *pid))
    };
    let left = view.current_inspection().filter(someone).and_then(|inspection| inspection.awaited_sleep_ms);
    left.is_some_and(|left| {
        let at_inspection_ms = view.silence_ms().saturating_sub(view.inspection_age_ms());
        at_inspection_ms.saturating_add(left) < budget_ms
            && view.inspection_age_ms() < left.saturating_add(view.threshold.stuck)
    })
}

/// A child that cannot answer: stopped by a signal or held by a debugger.
pub(crate) fn stopped_child(view: &RankView<'_>) -> Option<u32> {
    view.sample.signals.children.iter().find(|child| matches!(child.state, 'T' | 't')).map(|child| child.pid)
}

/// Whether what it waits for is stopped by a signal, if known: only an inspection shows it for a script.
pub(crate) fn waits_for_the_stopped(view: &RankView<'_>) -> bool {
    let known = view.phase().is_some() && stopped_child(view).is_some();
    known
        || view
            .current_inspection()
            .is_some_and(|inspection| inspection.awaits.iter().any(|pid| is_stopped(view, *pid)))
}

fn is_stopped(view: &RankView<'_>, pid: u32) -> bool {
    let children = &view.sample.signals.children;
    children.iter().any(|child| child.pid == pid && matches!(child.state, 'T' | 't'))
}

/// A main thread is known by itself, and the program is a script.
fn is_script_with_main_thread(view: &RankView<'_>) -> bool {
    view.phase().is_none() && view.sample.signals.main.is_some()
}

/// The children that the main thread waits for, with their descendants, by the latest inspection.
fn awaited<'a>(view: &'a RankView<'_>) -> Vec<&'a ChildDelta> {
    let awaited =
        view.current_inspection().map(|inspection| inspection.awaits.as_slice()).unwrap_or_default();
    // A shell or another launcher waits for any child: all of the program is below it.
    let any = awaited.is_empty() && view.sample.wchan == "do_wait";
    let parents: BTreeMap<u32, u32> =
        view.moved().children.iter().map(|child| (child.pid, child.parent)).collect();
    let belongs = |child: &&ChildDelta| {
        let mut up = std::iter::successors(Some(child.pid), |pid| parents.get(pid).copied()).take(8);
        any || up.any(|pid| awaited.contains(&pid))
    };
    view.moved().children.iter().filter(belongs).collect()
}

/// Children and other threads do clearly more than they did while the rank came to its
/// collectives, or one that is new does anything.
fn helpers_work(view: &RankView<'_>) -> bool {
    let moved = view.moved();
    let new = moved.children.iter().any(|child| child.is_new && child.moves(moved.over_ms));
    let io = moved.helpers_io >= view.history.usual_io() * MORE_IO.0 + MORE_IO.1;
    new || io || moved.helpers >= HELP || moved.helpers >= view.history.usual_helpers() * MORE.0 + MORE.1
}

/// Kernel functions that wait for the other end of a pipe or of a pair of local sockets: for data, or for room.
const PIPES: [&str; 6] =
    ["pipe_read", "pipe_write", "pipe_wait", "unix_stream_read", "unix_stream_data_wait", "sock_alloc_send"];

/// What the main thread of a rank waits in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KernelWait {
    Pipe,
    /// On several descriptors at once.
    Poll,
    Lock,
    Sleep,
    Net,
    Child,
    Other,
}

/// Returns what the main thread waits in.
pub(crate) fn kernel_wait(view: &RankView<'_>) -> KernelWait {
    if view.sample.state == 'R' {
        return KernelWait::Other;
    }
    // The sample is the newer one.
    let inspected = view.current_inspection().and_then(|inspection| inspection.os.wchan.as_deref());
    let seen = Some(view.sample.wchan.as_str()).filter(|wchan| !wchan.is_empty());
    let wchan = seen.or(inspected).unwrap_or_default();
    let has = |names: &[&str]| names.iter().any(|name| wchan.contains(name));
    let blocked =
        view.current_inspection().and_then(|inspection| inspection.blocked_on.as_deref()).unwrap_or_default();
    if has(&PIPES) || blocked.contains("pipe from pid") {
        KernelWait::Pipe
    } else if has(&["futex"]) {
        KernelWait::Lock
    } else if has(&["nanosleep"]) {
        KernelWait::Sleep
    } else if has(&["wait_woken", "sk_wait_data", "inet_csk", "tcp_"]) {
        KernelWait::Net
    } else if has(&["poll", "do_select"]) {
        KernelWait::Poll
    } else if wchan == "do_wait" || has(&["kernel_wait4"]) {
        KernelWait::Child
    } else if wchan.is_empty() {
        by_its_call(view)
    } else {
        KernelWait::Other
    }
}

/// What it waits in by its system call and what that leads to: some kernels show no function.
fn by_its_call(view: &RankView<'_>) -> KernelWait {
    let Some(inspection) = view.current_inspection().filter(|inspection| !inspection.os.is_awake()) else {
        return KernelWait::Other;
    };
    let call = inspection.os.syscall.as_deref().unwrap_or_default();
    match (call.split('(').next().unwrap_or_default(), &inspection.obstacle) {
        ("poll" | "ppoll" | "select" | "pselect6" | "epoll_wait" | "epoll_pwait", _) => KernelWait::Poll,
        ("futex", _) => KernelWait::Lock,
        ("nanosleep" | "clock_nanosleep", _) => KernelWait::Sleep,
        ("wait4" | "waitid", _) => KernelWait::Child,
        ("read" | "readv" | "recvfrom" | "recvmsg" | "write" | "writev" | "sendto" | "sendmsg", found) => {
            match found {
                Some(Obstacle::Pipe { .. }) => KernelWait::Pipe,
                Some(Obstacle::Connection { .. }) => KernelWait::Net,
                _ => KernelWait::Other,
            }
        }
        _ => KernelWait::Other,
    }
}

/// Returns a child that has exited since the rank last made progress and was not reaped, one that was there then
/// first. Earlier ones may remain for any time.
pub(crate) fn dead_child(view: &RankView<'_>) -> Option<u32> {
    let ended =
        |pid: u32, state: char| matches!(state, 'Z' | 'X') && !view.history.ended_before().contains(&pid);
    let sampled = view.sample.signals.children.iter().map(|child| (child.pid, child.state));
    let inspected = view.current_inspection().into_iter().flat_map(|inspection| &inspection.children);
    let all = sampled.chain(inspected.map(|child| (child.pid, child.state)));
    let dead: Vec<u32> = all.filter(|(pid, state)| ended(*pid, *state)).map(|(pid, _)| pid).collect();
    let known = dead.iter().find(|pid| view.history.veterans().contains(pid));
    known.or(dead.first()).copied()
}

/// A process below the rank that has exited since the rank last made progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LostWorker {
    pub pid: u32,
    pub loss: Loss,
}

/// What is left of a lost worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// A zombie, which was there when the rank last made progress.
    Unreaped,
    /// A zombie that came later, or lived for too short a time to be seen alive.
    Young,
    /// Nothing: the program, which replaces or forgets it, or whoever inherited it has waited for it.
    Reaped,
}

/// Returns the lost worker: of several, the one whose loss explains most.
pub(crate) fn lost_worker(view: &RankView<'_>) -> Option<LostWorker> {
    let veterans = view.history.veterans();
    let zombie = dead_child(view).map(|pid| LostWorker {
        pid,
        loss: if veterans.contains(&pid) { Loss::Unreaped } else { Loss::Young },
    });
    let children = &view.sample.signals.children;
    let is_there = |pid: &u32| children.iter().any(|child| child.pid == *pid);
    let gone = || {
        let lives = |pid: &&u32| is_there(pid) || view.history.ended_before().contains(*pid);
        // A full list does not show all of them.
        veterans.iter().find(|pid| children.len() < CHILDREN && !lives(pid))
    };
    let gone = || gone().map(|pid| LostWorker { pid: *pid, loss: Loss::Reaped });
    zombie.filter(|lost| lost.loss == Loss::Unreaped).or_else(gone).or(zombie)
}

/// Whether the rank waits for a worker that has exited: no live process is at the other end. Only an
/// inspection shows what a script waits for.
pub(crate) fn waits_for_the_dead(view: &RankView<'_>) -> bool {
    let lives = |pid: &u32| {
        let known = view.sample.signals.children.iter().find(|child| child.pid == *pid);
        known.is_none_or(|child| !matches!(child.state, 'Z' | 'X'))
    };
    let known = view.phase().is_some() || view.current_inspection().is_some();
    known
        && dead_child(view).is_some()
        && !view.current_inspection().is_some_and(|inspection| inspection.awaits.iter().any(lives))
}

/// Whether it is ready to run and gets no core. A rank that only waits uses none, however busy its host is.
pub(crate) fn starved(view: &RankView<'_>) -> bool {
    let busy = cores_are_short(view);
    let moved = view.moved();
    // Other threads than the main thread do not count.
    let own = moved.main_cpu.or(moved.cpu);
    let waits = view.sample.state == 'R' || moved.delayed >= DELAYED || own.is_some_and(|cpu| cpu > IDLE);
    busy && waits && own.is_some_and(|cpu| cpu < FAIR)
}

/// Whether its host is oversubscribed, or its cgroup has used up its quota.
pub(crate) fn cores_are_short(view: &RankView<'_>) -> bool {
    view.host.is_busy() || view.moved().throttled.is_some_and(|share| share >= DELAYED)
}

/// Whether its main thread, another thread or a child is ready to run and gets no core. If cores are short,
/// this is assumed until an inspection.
pub(crate) fn lacks_cores(view: &RankView<'_>) -> bool {
    starved(view)
        || (cores_are_short(view) && view.inspection().is_none_or(|inspection| inspection.lacks_cores))
}

/// How many times longer everything may take if cores are short.
pub(crate) fn stretch(view: &RankView<'_>) -> u64 {
    (view.host.crowd.ceil() as u64).max(STARVED)
}

/// Whether cores are short, and the rank and its children get little CPU or wait for it.
pub(crate) fn gets_little(view: &RankView<'_>) -> bool {
    let moved = view.moved();
    let children_ms: u64 = moved.children.iter().map(|child| child.cpu_ms).sum();
    let children = children_ms as f64 / moved.over_ms.max(1) as f64;
    let share = moved.cpu.unwrap_or(0.0) + children;
    let ready = || view.sample.signals.children.iter().any(|child| child.state == 'R');
    cores_are_short(view) && share < FAIR && (share > 0.0 || ready() || starved(view))
}
