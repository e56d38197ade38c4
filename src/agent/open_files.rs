//! How many files the agent may have open, who may keep some open, and what is kept back for a stop.
//!
//! Owner: the process. Invariants:
//! - FILES-1: the agent's own limit is the hard one. Programs that it starts get the limit that it was
//!   started with.
//! - FILES-2: files that observation keeps open, and connections of ranks, each take a quarter of the limit
//!   at most. Beyond that a file of `/proc` is opened for each read.
//! - FILES-3: some descriptors are kept back until a stop is ordered, or a console cannot be accepted.
//! - FILES-4: a scan for processes waits for a free descriptor: what could not be read is not gone.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Descriptors that are kept back, where the limit has room for them.
const RESERVE: u64 = 64;
/// Share of the limit that one kind of user may take; the reserve takes no more either.
const SHARE: u64 = 4;
/// Between two tries to open something.
const AGAIN: Duration = Duration::from_millis(20);

/// The limit that this process was started with, once it has another one.
static INHERITED: OnceLock<Rlimit> = OnceLock::new();
/// Descriptors that are kept back.
static KEPT: Mutex<Vec<File>> = Mutex::new(Vec::new());
/// Files that observation keeps open.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// FILES-1. Where that is refused, the old limit stays.
pub(crate) fn raise() {
    let inherited = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: inherited.maximum, maximum: inherited.maximum };
    if setrlimit(Resource::Nofile, raised).is_ok() {
        let _ = INHERITED.set(inherited);
    }
}

/// FILES-1. Gives a program the limit that this process was started with.
pub(crate) fn give_back(command: &mut Command) {
    let Some(inherited) = INHERITED.get().copied() else { return };
    // SAFETY: the closure runs between fork and exec and makes one async-signal-safe system call.
    unsafe {
        command.pre_exec(move || {
            // A program with a higher limit than intended runs anyway.
            let _ = setrlimit(Resource::Nofile, inherited);
            Ok(())
        });
    }
}

/// Files that may be open at once.
fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// FILES-2. Returns how many of `target` may be open at once.
pub(crate) fn share(target: usize) -> usize {
    target.min(quarter(limit()))
}

fn quarter(limit: u64) -> usize {
    usize::try_from((limit - reserve(limit)) / SHARE).unwrap_or(usize::MAX)
}

fn reserve(limit: u64) -> u64 {
    RESERVE.min(limit / SHARE)
}

/// A file that observation may keep open, until this is dropped.
#[derive(Debug)]
pub(crate) struct OpenFileSlot(());

impl OpenFileSlot {
    /// FILES-2. `None` when all are taken.
    pub fn take() -> Option<OpenFileSlot> {
        let most = quarter(limit());
        let more = |held: usize| (held < most).then_some(held + 1);
        // Made only when it is counted: it counts down when it is dropped.
        HELD.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok().then(|| OpenFileSlot(()))
    }
}

impl Drop for OpenFileSlot {
    fn drop(&mut self) {
        HELD.fetch_sub(1, Ordering::Relaxed);
    }
}

/// FILES-3. Keeps descriptors back, as many as can be had.
pub(crate) fn keep_back() {
    let target = usize::try_from(reserve(limit())).unwrap_or_default();
    let mut kept = kept();
    while kept.len() < target {
        let Ok(file) = File::open("/dev/null") else { return };
        kept.push(file);
    }
}

/// FILES-3. A stop, or what leads to one, needs them now.
pub(crate) fn release() {
    kept().clear();
}

fn kept() -> MutexGuard<'static, Vec<File>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// It failed because too many files are open, here or on the whole host.
pub(crate) fn are_used_up(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// FILES-4. Opens something, as soon as there is a descriptor for it. Blocks.
pub(crate) fn patiently<T>(mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match open() {
            Err(error) if are_used_up(&error) => {
                release();
                std::thread::sleep(AGAIN);
            }
            opened => return opened,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_2_and_3_shares_are_bounded_by_the_limit() {
        for limit in [0, 1, 16, 28, 64, 100, 256, 1024, 4096, 1 << 20, u64::MAX] {
            let (kept, share) = (reserve(limit), quarter(limit) as u64);
            assert!(kept <= 64 && kept <= limit / 4, "{limit}: {kept}");
            assert!(share <= limit / 4, "{limit}: {share}");
            assert!(kept.saturating_add(2 * share) <= limit - limit / 4, "{limit}: a quarter is anybody's");
        }
        assert_eq!((reserve(100), quarter(100)), (25, 18));
        assert_eq!((reserve(1024), quarter(1024)), (64, 240));
    }

    #[test]
    fn files_2_open_file_slots_are_bounded() {
        let most = quarter(limit());
        let taken: Vec<OpenFileSlot> = std::iter::from_fn(OpenFileSlot::take).take(most + 1).collect();
        assert!(taken.len() <= most, "{most}");
        assert!((0..most).all(|_| OpenFileSlot::take().is_none()), "one that is refused makes no room");
        drop(taken);
        assert!(OpenFileSlot::take().is_some());
    }

    #[test]
    fn files_4_failed_open_is_retried() {
        let mut tries = 0;
        let opened = patiently(|| {
            tries += 1;
            match tries {
                1 => Err(io::Error::from_raw_os_error(libc::EMFILE)),
                2 => Err(io::Error::from_raw_os_error(libc::ENFILE)),
                _ => Ok(tries),
            }
        });
        assert_eq!(opened.ok(), Some(3));
        let missing = patiently(|| File::open("/proc/0/stat"));
        assert!(missing.is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
    }
}
