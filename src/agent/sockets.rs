//! What lies in the folder of sockets for a node: its agent's two sockets, the guard's note, and the lock of
//! `agent start`. All of it goes with the agent, or with the last that looks after a dead one.
//!
//! Invariant: a lock is removed only by who holds it, and is held only while its name leads to it.

use rankdeck_types::error::HintedError;
use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Ends of the names, behind the one that all of a node have in common.
pub const CONSOLES: &str = "sock";
pub const EVENTS: &str = "ev";
pub const NOTE: &str = "below";
const LOCK: &str = "lock";

/// Between two tries.
const AGAIN: Duration = Duration::from_millis(20);

/// Puts starts of the same node in order.
#[derive(Debug)]
pub struct StartLock {
    file: File,
    path: PathBuf,
}

impl StartLock {
    /// Waits for it; `of` is any of the node's files there.
    ///
    /// Errors: it cannot be made, or another start holds it for longer than `patience`.
    pub fn take(of: &Path, patience: Duration) -> Result<StartLock, HintedError> {
        let path = of.with_extension(LOCK);
        let failed = |error: String| {
            HintedError::new(format!("cannot lock {}: {error}", path.display()), "try again in a minute")
        };
        let begun = Instant::now();
        loop {
            match StartLock::attempt(&path) {
                Ok(file) => return Ok(StartLock { file, path }),
                Err(TryLockError::Error(error)) => return Err(failed(error.to_string())),
                Err(TryLockError::WouldBlock) if begun.elapsed() > patience => {
                    return Err(failed("another start of the same run holds it".into()));
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(AGAIN),
            }
        }
    }

    fn attempt(path: &Path) -> Result<File, TryLockError> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(TryLockError::Error)?;
        file.try_lock()?;
        // Who held it before may have removed it.
        let name = |data: std::fs::Metadata| (data.dev(), data.ino());
        let own = file.metadata().map(name).map_err(TryLockError::Error)?;
        match std::fs::metadata(path).map(name) {
            Ok(found) if found == own => Ok(file),
            _ => Err(TryLockError::WouldBlock),
        }
    }

    fn remove(self) {
        let _ = std::fs::remove_file(&self.path);
        drop(self.file);
    }
}

/// Removes sockets and lock of a node whose agent does not serve (any more); `of` is any of its files. Where
/// another agent serves or is being started, they are that one's. The note is its writer's to remove.
pub fn remove(of: &Path) {
    let path = of.with_extension(LOCK);
    let Ok(file) = StartLock::attempt(&path) else { return };
    let lock = StartLock { file, path };
    let at = |end: &str| of.with_extension(end);
    if UnixStream::connect(at(CONSOLES)).is_err() {
        for end in [CONSOLES, EVENTS] {
            let _ = std::fs::remove_file(at(end));
        }
        lock.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn names(folder: &Path) -> usize {
        std::fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn what_a_dead_agent_left_is_removed_and_what_a_living_one_has_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = |end: &str| folder.path().join("0123").with_extension(end);
        let listener = UnixListener::bind(at(CONSOLES)).unwrap();
        std::fs::write(at(EVENTS), "").unwrap();
        drop(StartLock::take(&at(EVENTS), Duration::ZERO).unwrap());
        remove(&at(EVENTS));
        assert_eq!(names(folder.path()), 3, "it serves");
        drop(listener);
        let starting = StartLock::take(&at(EVENTS), Duration::ZERO).unwrap();
        remove(&at(EVENTS));
        assert_eq!(names(folder.path()), 3, "another one is being started");
        let error = StartLock::take(&at(EVENTS), Duration::ZERO).unwrap_err();
        assert!(error.error.contains("another start"), "{error:?}");
        drop(starting);
        remove(&at(EVENTS));
        assert_eq!(names(folder.path()), 0);
    }

    #[test]
    fn a_lock_that_is_removed_while_somebody_waits_for_it_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let of = folder.path().join("0123.sock");
        let held = StartLock::take(&of, Duration::ZERO).unwrap();
        let waiting = std::thread::spawn({
            let of = of.clone();
            move || StartLock::take(&of, Duration::from_secs(60)).unwrap()
        });
        held.remove();
        let second = waiting.join().unwrap();
        assert!(StartLock::take(&of, Duration::ZERO).is_err(), "there is one lock of that name");
        drop(second);
    }
}
