//! A close look at ranks on request: what the kernel, sockets, stacks and libraries show of one process.
//!
//! Owner: one helper thread per rank and request, which fills an [`Inspection`] part by part, the parts that
//! cannot block first. Code map:
//!
//! ```text
//! look          the parts in their order
//! syscall       what a thread waits for
//! polled        what a call that waits for several descriptors waits for
//! obstacle      what a thread is blocked on, where that has a name
//! awaited       who is at the other end, and whether that sleeps or lacks a core
//! descriptors   which process is at the other end of a descriptor
//! listeners     sockets that listen
//! locks         who holds the locks of files
//! storage       how much the storage that a thread waits for has moved
//! sockets       TCP_INFO and unix peers by netlink
//! memory        maps and memory of another process
//! stacks        all stacks of a process
//! native        native stacks from outside
//! elf           object files of the process, read by sections
//! symbols       unwinding through them, names
//! python        Python stacks from outside
//! recorder      PyTorch's Flight Recorder
//! ras           NCCL's RAS subsystem
//! ```
//!
//! Invariants:
//! - INSPECT-1: an answer is given within [`PATIENCE`] ([`BUSY_PATIENCE`] on a busy host), whatever state a
//!   rank is in: what a helper has found by then is sent, and what it was still waiting for is named.
//! - INSPECT-2: a helper that is stuck is left alone and counted; a rank with a stuck helper gets no second
//!   one that reads its memory.
//! - Looking changes nothing about the rank: no signal, no interrupted system call, nothing
//!   started in it.

mod awaited;
pub mod descriptors;
#[cfg(target_arch = "x86_64")]
mod elf;
mod listeners;
mod locks;
mod look;
pub mod memory;
#[cfg(target_arch = "x86_64")]
pub mod native;
pub mod obstacle;
mod polled;
pub mod python;
mod question;
pub mod ras;
pub mod recorder;
pub mod sockets;
mod stacks;
mod storage;
#[cfg(target_arch = "x86_64")]
pub mod symbols;
pub mod syscall;
mod wait;

pub use look::gpu_words;

use crate::proc::Ident;
use rankdeck_proto::inspection::Inspection;
use rankdeck_proto::message::GpuSample;
use rankdeck_types::ids::Rank;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// An answer takes no longer than this.
pub const PATIENCE: Duration = Duration::from_millis(1600);
/// The same on a host whose cores have more to do than they can: symbols of a stack take CPU time.
pub const BUSY_PATIENCE: Duration = Duration::from_secs(8);
/// Pressure from which a host counts as that busy: percent of the last 10 s in which some task waited for a
/// core.
const BUSY: f32 = 60.0;
/// Most ranks of one request.
const RANKS: usize = 64;

/// One rank to look at.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Subject {
    pub rank: Rank,
    /// Its process, `None` when there is none (any more).
    pub ident: Option<Ident>,
    /// Its status page.
    pub page: PathBuf,
    /// Its program is no child of that process: a container's monitor starts it.
    pub elsewhere: bool,
    /// The last line of its log.
    pub last_line: Option<String>,
    /// Its GPU, as NVML saw it last.
    pub gpu: Option<GpuSample>,
    /// Where NCCL's RAS subsystem answers in the ranks of this host: the others first, since this one may be
    /// frozen.
    pub ras: Vec<String>,
}

/// What a helper has found so far.
#[derive(Debug, Default)]
struct Progress {
    found: Inspection,
    stage: &'static str,
    done: bool,
}

/// One rank's helper and those who wait for it.
#[derive(Debug, Clone, Default)]
struct SharedHelper {
    progress: Arc<(Mutex<Progress>, Condvar)>,
}

impl SharedHelper {
    fn stage(&self, stage: &'static str) {
        self.change(|progress| progress.stage = stage);
    }

    fn found<T>(&self, change: impl FnOnce(&mut Inspection) -> T) -> T {
        self.change(|progress| change(&mut progress.found))
    }

    fn change<T>(&self, change: impl FnOnce(&mut Progress) -> T) -> T {
        let changed = change(&mut self.progress.0.lock().unwrap_or_else(PoisonError::into_inner));
        self.progress.1.notify_all();
        changed
    }

    /// What there is at the deadline, or as soon as everything is there.
    fn take(&self, deadline: Instant) -> Inspection {
        let mut progress = self.progress.0.lock().unwrap_or_else(PoisonError::into_inner);
        while !progress.done {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.progress.1.wait_timeout(progress, left);
            progress = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let mut found = progress.found.clone();
        if !progress.done {
            found.notes.push(format!(
                "{}: no answer in time, the process may be stuck in the kernel",
                progress.stage
            ));
        }
        found
    }
}

/// Processes whose memory some helper is still waiting for.
static STUCK: Mutex<BTreeSet<Ident>> = Mutex::new(BTreeSet::new());

/// A helper's word that it is about to wait for a process's memory, taken back when it is through.
struct MemoryWait(Ident);

impl MemoryWait {
    fn begin(ident: Ident) -> Option<MemoryWait> {
        let first = STUCK.lock().unwrap_or_else(PoisonError::into_inner).insert(ident);
        // Made only when it is held: dropping one gives the word back.
        first.then(|| MemoryWait(ident))
    }
}

impl Drop for MemoryWait {
    fn drop(&mut self) {
        STUCK.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// Looks at ranks, all at once, and answers in time (INSPECT-1). Blocks for that long: not for the agent's
/// loop.
pub fn inspect(subjects: Vec<Subject>) -> Vec<Inspection> {
    let begun = Instant::now();
    let busy = crate::observe::host_signals::pressure().is_some_and(|pressure| pressure.cpu >= BUSY);
    let deadline = begun + if busy { BUSY_PATIENCE } else { PATIENCE };
    let helpers: Vec<(Rank, SharedHelper)> = subjects
        .into_iter()
        .take(RANKS)
        .map(|subject| {
            let (rank, shared) = (subject.rank, SharedHelper::default());
            let mine = shared.clone();
            shared.found(|found| found.rank = rank);
            let work = move || {
                look::look(&subject, &mine, deadline);
                mine.change(|progress| progress.done = true);
            };
            if let Err(error) = std::thread::Builder::new().name("inspect".into()).spawn(work) {
                shared.found(|found| found.notes.push(format!("no thread to look with: {error}")));
                shared.change(|progress| progress.done = true);
            }
            (rank, shared)
        })
        .collect();
    helpers
        .into_iter()
        .map(|(_, shared)| {
            let mut found = shared.take(deadline);
            if found.took_ms == 0 {
                found.took_ms = begun.elapsed().as_millis() as u64;
            }
            found
        })
        .collect()
}

/// A state letter in words.
pub fn state_words(state: char) -> &'static str {
    match state {
        'R' => "runs",
        'S' | 'I' => "waits",
        'D' => "waits in the kernel and cannot be interrupted (storage or a driver)",
        'T' => "stopped by a signal",
        't' => "stopped by a debugger",
        'Z' => "ended and not yet waited for",
        _ => "gone",
    }
}

fn thread_name(pid: u32, tid: u32) -> String {
    crate::proc::text(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default().trim().to_owned()
}

#[cfg(all(test, target_arch = "x86_64"))]
#[allow(clippy::unwrap_used, reason = "a test")]
mod cut_short_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod victim;
