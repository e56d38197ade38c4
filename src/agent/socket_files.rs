//! Files of a node in the socket directory: its agent's two sockets, the guard's note, and the lock of
//! `agent start`. All of it is removed with the agent, or after a dead one by its successor.
//!
//! Invariants:
//! - A lock is removed only by who holds it, and is held only while its name leads to it.
//! - SOCKET-2: nothing is removed outside a directory that is this user's alone, and no file that has another
//!   name than an agent gives.

use rankdeck_proto::trust;
use rankdeck_types::error::HintedError;
use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Ends of the names, behind the one that all of a node have in common.
pub(crate) const CONSOLES: &str = "sock";
pub(crate) const EVENTS: &str = "ev";
pub(crate) const NOTE: &str = "below";
const LOCK: &str = "lock";
/// Length of the name that all of a node have in common.
const STEM: usize = 16;

/// Between two tries.
const AGAIN: Duration = Duration::from_millis(20);

/// Puts starts of the same node in order.
#[derive(Debug)]
pub(crate) struct StartLock {
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
                    return Err(failed("another start of the same run is in progress".into()));
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(AGAIN),
            }
        }
    }

    fn attempt(path: &Path) -> Result<File, TryLockError> {
        let file = trust::open(path, OpenOptions::new().write(true).create(true).truncate(false))
            .map_err(TryLockError::Error)?;
        file.try_lock()?;
        // The previous holder may have removed it.
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
pub(crate) fn remove(of: &Path) {
    if !is_ours(of) {
        return;
    }
    let path = of.with_extension(LOCK);
    let Ok(file) = StartLock::attempt(&path) else { return };
    let lock = StartLock { file, path };
    let at = |end: &str| of.with_extension(end);
    if trust::connect(&at(CONSOLES)).is_err() {
        for end in [CONSOLES, EVENTS] {
            let _ = std::fs::remove_file(at(end));
        }
        lock.remove();
    }
}

/// Removes the socket of an agent that ends, and what lies with it.
pub(crate) fn close(socket: &Path) {
    if is_ours(socket) {
        let _ = std::fs::remove_file(socket);
        remove(socket);
    }
}

/// Removes the note of a guard.
pub(crate) fn remove_note(note: &Path) {
    if is_ours(note) && note.extension().is_some_and(|end| end == NOTE) {
        let _ = std::fs::remove_file(note);
    }
}

/// SOCKET-2. A file of a node in a directory of sockets: its name is as [`RunPaths::socket_stem`] makes it.
///
/// [`RunPaths::socket_stem`]: crate::paths::RunPaths::socket_stem
pub(crate) fn is_ours(file: &Path) -> bool {
    let named = file.file_stem().and_then(|stem| stem.to_str()).is_some_and(|stem| {
        stem.len() == STEM && stem.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    });
    let ending = file.extension().and_then(|end| end.to_str());
    named
        && ending.is_some_and(|end| [CONSOLES, EVENTS, NOTE, LOCK].contains(&end))
        && file.parent().is_some_and(trust::is_private)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn names(folder: &Path) -> usize {
        std::fs::read_dir(folder).unwrap().count()
    }

    fn mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    }

    #[test]
    fn files_of_dead_agents_only_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        mode(folder.path(), 0o700);
        let at = |end: &str| folder.path().join("0123456789abcdef").with_extension(end);
        let listener = UnixListener::bind(at(CONSOLES)).unwrap();
        std::fs::write(at(EVENTS), "").unwrap();
        drop(StartLock::take(&at(EVENTS), Duration::ZERO).unwrap());
        remove(&at(EVENTS));
        assert_eq!(names(folder.path()), 3, "it serves");
        drop(listener);
        let starting = StartLock::take(&at(EVENTS), Duration::ZERO).unwrap();
        remove(&at(EVENTS));
        assert_eq!(names(folder.path()), 3, "another one is being started");
        assert!(StartLock::take(&at(EVENTS), Duration::ZERO).is_err(), "and is waited for");
        drop(starting);
        remove(&at(EVENTS));
        assert_eq!(names(folder.path()), 0);
    }

    #[test]
    fn socket_2_nothing_else_is_removed() {
        let base = tempfile::tempdir().unwrap();
        let stem = "0123456789abcdef";
        for (name, open) in [("Cargo", 0o700), ("x.y", 0o700), (stem, 0o755), (stem, 0o777)] {
            let folder = base.path().join(format!("{name}-{open:o}"));
            std::fs::create_dir(&folder).unwrap();
            let ends = [CONSOLES, EVENTS, NOTE, LOCK];
            ends.iter().for_each(|end| std::fs::write(folder.join(format!("{name}.{end}")), "").unwrap());
            mode(&folder, open);
            let of = folder.join(format!("{name}.{CONSOLES}"));
            remove(&of);
            close(&of);
            remove_note(&of.with_extension(NOTE));
            assert_eq!(names(&folder), ends.len(), "{name} in a directory of mode {open:o}");
        }
        let other = base.path().join(format!("{stem}.toml"));
        mode(base.path(), 0o700);
        std::fs::write(&other, "").unwrap();
        remove_note(&other);
        remove(&other);
        assert!(other.exists() && !other.with_extension(LOCK).exists());
    }

    #[test]
    fn lock_removed_during_a_wait_is_recreated() {
        let folder = tempfile::tempdir().unwrap();
        let of = folder.path().join("0123456789abcdef.sock");
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
