//! Whether the program of a rank moves. Pure.
//!
//! The program is its main thread and what that waits for. Trackers, writers of event files, loaders and
//! profilers run beside it, as processes or threads: what they do is no progress. Nothing names them, so they
//! are told apart by what they did while the rank still came to its collectives: a helper that was there
//! before counts only when it does clearly more than then.
//!
//! A program that tells its phase is the built-in trainer, whose children are its environment workers.

use super::movement::{BULK, ChildMovement, IDLE};
use super::pace::SUSPECT_MS;
use super::rank_view::RankView;
use rankdeck_proto::inspection::Inspection;
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

/// Bytes of storage that the program moved.
pub(super) fn storage_bytes(view: &RankView<'_>) -> u64 {
    if is_told_apart(view) { view.moved().main_io_bytes } else { view.moved().io_bytes }
}

/// Waits for its children, which `Some(true)` work, `Some(false)` do nothing.
pub(super) fn children_work(view: &RankView<'_>) -> Option<bool> {
    let moved = view.moved();
    if moved.children.is_empty() || moved.over_ms == 0 {
        return None;
    }
    if !is_told_apart(view) {
        let cpu_ms: u64 = moved.children.iter().map(|child| child.cpu_ms).sum();
        return Some(cpu_ms as f64 / moved.over_ms as f64 >= IDLE);
    }
    if gpu_works(view) {
        return Some(true);
    }
    let awaited = awaited(view);
    let works = |child: &ChildMovement| child.moves(moved.over_ms);
    if awaited.is_empty() { Some(helpers_work(view)) } else { Some(awaited.iter().copied().any(works)) }
}

/// Something of the program moves, or will by itself.
pub(super) fn moves(view: &RankView<'_>, budget_ms: u64) -> bool {
    let moved = view.moved();
    if view.quiet_ms() < SUSPECT_MS
        || view.sample.state == 'R'
        || view.cpu_share() > IDLE
        || view.never_sleeps()
    {
        return true;
    }
    if !is_told_apart(view) {
        return moved.io_bytes > 0 || children_work(view) == Some(true);
    }
    moved.io_bytes >= BULK
        || gpu_works(view)
        || children_work(view) == Some(true)
        || helpers_work(view)
        || wakes_by_itself(view, budget_ms)
}

/// The GPU of the rank works for it while its main thread waits for that. Where others use it too, only the
/// rank's own share counts. A driver that tells a container no processes tells nothing of other ranks there.
fn gpu_works(view: &RankView<'_>) -> bool {
    let alone = |gpu: &&GpuSample| gpu.processes.len() <= 1 && !view.gpu_is_shared;
    let own = view.sample.gpu_share.or_else(|| view.gpu.filter(alone)?.utilization);
    own.is_some_and(|percent| percent >= GPU)
}

/// It sleeps, and the sleep ends within its budget; or what it waits for does. Where it slept at the latest
/// look, has done something since and sleeps again, it has just shown that it wakes. An event loop sleeps in
/// a poll.
pub(super) fn wakes_by_itself(view: &RankView<'_>, budget_ms: u64) -> bool {
    let left = view.look.and_then(|look| look.os.sleep_left_ms);
    let sleeps = ["nanosleep", "poll"].iter().any(|wait| view.sample.wchan.contains(wait));
    let own = sleeps && left.is_some_and(|left| view.silence_ms().saturating_add(left) < budget_ms);
    own || awaits_a_sleeper(view, budget_ms)
}

/// What it waits for sleeps, and wakes within the budget. Some time later the rank goes on, or there was
/// nothing in it for the rank. Who is stopped within a sleep does not wake, but another one may.
pub(super) fn awaits_a_sleeper(view: &RankView<'_>, budget_ms: u64) -> bool {
    let someone =
        |look: &&Inspection| look.awaits.is_empty() || look.awaits.iter().any(|pid| !is_stopped(view, *pid));
    let left = view.evidence().filter(someone).and_then(|look| look.awaited_sleep_ms);
    left.is_some_and(|left| {
        let at_look_ms = view.silence_ms().saturating_sub(view.look_age_ms);
        at_look_ms.saturating_add(left) < budget_ms
            && view.look_age_ms < left.saturating_add(view.threshold.stuck)
    })
}

/// A child that cannot answer: stopped by a signal or held by a debugger.
pub(super) fn stopped_child(view: &RankView<'_>) -> Option<u32> {
    view.sample.signals.children.iter().find(|child| matches!(child.state, 'T' | 't')).map(|child| child.pid)
}

/// What it waits for is stopped by a signal, as far as anybody knows: of a script only a look tells.
pub(super) fn waits_for_the_stopped(view: &RankView<'_>) -> bool {
    let known = view.phase().is_some() && stopped_child(view).is_some();
    known || view.evidence().is_some_and(|look| look.awaits.iter().any(|pid| is_stopped(view, *pid)))
}

fn is_stopped(view: &RankView<'_>, pid: u32) -> bool {
    let children = &view.sample.signals.children;
    children.iter().any(|child| child.pid == pid && matches!(child.state, 'T' | 't'))
}

/// A main thread is known by itself, and the program is a script.
fn is_told_apart(view: &RankView<'_>) -> bool {
    view.phase().is_none() && view.sample.signals.main.is_some()
}

/// The children that the main thread waits for, with their own, as the latest close look says.
fn awaited<'a>(view: &'a RankView<'_>) -> Vec<&'a ChildMovement> {
    let wanted = view.evidence().map(|look| look.awaits.as_slice()).unwrap_or_default();
    // A shell or another launcher waits for any child: all of the program is below it.
    let any = wanted.is_empty() && view.sample.wchan == "do_wait";
    let parents: BTreeMap<u32, u32> =
        view.moved().children.iter().map(|child| (child.pid, child.parent)).collect();
    let belongs = |child: &&ChildMovement| {
        let mut up = std::iter::successors(Some(child.pid), |pid| parents.get(pid).copied()).take(8);
        any || up.any(|pid| wanted.contains(&pid))
    };
    view.moved().children.iter().filter(belongs).collect()
}

/// Children and threads beside the main thread do clearly more than they did while the rank came to its
/// collectives, or one that is new does anything.
fn helpers_work(view: &RankView<'_>) -> bool {
    let moved = view.moved();
    let new = moved.children.iter().any(|child| child.is_new && child.moves(moved.over_ms));
    let io = moved.helpers_io >= view.usual_io * MORE_IO.0 + MORE_IO.1;
    new || io || moved.helpers >= HELP || moved.helpers >= view.usual_helpers * MORE.0 + MORE.1
}
