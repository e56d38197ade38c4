//! What a late rank is blocked on, where a close look found a name for it. Pure.

use super::rank_view::RankView;
use crate::reason::Reason;
use rankdeck_proto::inspection::{Holder, How, Inspection, Obstacle, ThreadStack};

/// Libraries whose processes compute environments.
const ENVIRONMENTS: [&str; 6] =
    ["gymnasium/vector", "gym/vector", "common/vec_env", "tianshou/env", "pufferlib/vector", "torchrl/envs"];

/// The rank waits for something that nobody of the run will bring about.
pub(super) fn for_others(view: &RankView<'_>) -> Option<Reason> {
    match view.evidence()?.obstacle.as_ref()? {
        // Of one of its own, such as a rank that loads data for all, more is known from that one.
        Obstacle::FileLock { holders, .. } if holders.iter().any(|holder| holder.ours) => None,
        Obstacle::FileLock { .. } => Some(Reason::FileLock),
        Obstacle::Fifo { .. } => Some(Reason::Fifo),
        Obstacle::NameServer { .. } => Some(Reason::NameLookup),
        Obstacle::Connection { .. }
        | Obstacle::Listener { .. }
        | Obstacle::Pipe { .. }
        | Obstacle::Child { .. } => None,
    }
}

/// The rank waits for something that may well come about, and nothing of it moves.
pub(super) fn for_own(view: &RankView<'_>) -> Option<Reason> {
    match view.evidence()?.obstacle.as_ref()? {
        Obstacle::FileLock { .. } => Some(Reason::FileLock),
        Obstacle::Fifo { .. } => Some(Reason::Fifo),
        Obstacle::NameServer { .. } => Some(Reason::NameLookup),
        Obstacle::Connection { .. } | Obstacle::Listener { .. } => Some(Reason::WaitsForPeer),
        Obstacle::Pipe { .. } => Some(Reason::Pipe),
        Obstacle::Child { .. } => Some(Reason::ChildProcess),
    }
}

/// It tries again and again to take a lock on a file, and sleeps in between. Each try may read the file, so
/// that the rank does something all the time.
pub(super) fn tries_a_lock(view: &RankView<'_>) -> bool {
    let lock = view.look.is_some_and(|look| matches!(look.obstacle, Some(Obstacle::FileLock { .. })));
    lock && view.sample.wchan.contains("nanosleep")
}

/// The stack of the program's main thread.
fn main_stack(look: &Inspection) -> Option<&ThreadStack> {
    let python = || look.threads.iter().filter(|stack| stack.how == How::Python);
    python().find(|stack| Some(stack.tid) == look.pid).or_else(|| python().next())
}

/// What it means when the processes that a rank waits for do nothing: they are its environment's workers, or
/// those of a loader of data. `None` for any other program that it has started.
pub(super) fn workers(view: &RankView<'_>) -> Option<Reason> {
    if view.phase().is_some() {
        // The built-in trainer starts no other processes.
        return Some(Reason::EnvWorkerDeadlocked);
    }
    if view.look_is_old() {
        return None;
    }
    let Some(stack) = view.look.and_then(main_stack) else {
        // Without a stack, the programs that it waits for are taken for workers, unless they are other ones.
        let waited_for: &[Holder] = match view.look.and_then(|look| look.obstacle.as_ref()) {
            Some(Obstacle::Pipe { ends, .. }) => ends,
            Some(Obstacle::Child { process }) => std::slice::from_ref(process),
            Some(Obstacle::Connection { .. } | Obstacle::Listener { .. }) => return None,
            _ => &[],
        };
        let copies = waited_for.iter().all(|process| process.name.contains("python"));
        return copies.then_some(Reason::EnvWorkerDeadlocked);
    };
    let calls = |part: &str| {
        stack.frames.iter().any(|frame| frame.file.as_deref().is_some_and(|file| file.contains(part)))
    };
    if calls("torch/utils/data") {
        Some(Reason::DataLoader)
    } else if calls("multiprocessing/") || ENVIRONMENTS.iter().any(|library| calls(library)) {
        Some(Reason::EnvWorkerDeadlocked)
    } else {
        None
    }
}
