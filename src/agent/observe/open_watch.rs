//! Detects whether a rank opens the checkpoint that a generation resumes from: the kernel reports it by inode (inotify), so
//! that a load which takes a moment is not missed. A rank that writes over it has not read it.
//!
//! Owner: the thread that prepares a launch makes it, after everything of the agent that reads the checkpoint.

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Bytes of an event before the name: watch, mask, cookie, length of the name.
const HEAD: usize = 16;
/// Most directories of a checkpoint.
const FOLDERS: usize = 64;

/// A checkpoint whose opening is noticed.
#[derive(Debug)]
pub(crate) struct OpenWatch {
    /// The checkpoint.
    pub path: PathBuf,
    events: OwnedFd,
}

impl OpenWatch {
    /// Starts to watch a file, or the files of a directory.
    pub fn start(path: &Path) -> io::Result<OpenWatch> {
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let flags = WatchFlags::OPEN
            | WatchFlags::ACCESS
            | WatchFlags::CLOSE_NOWRITE
            | WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE;
        let mut places = vec![path.to_owned()];
        let mut listed = 0;
        while let Some(place) = places.get(listed).cloned().filter(|_| places.len() < FOLDERS) {
            listed += 1;
            if place.is_dir() {
                let entries = std::fs::read_dir(&place)?.flatten().map(|entry| entry.path());
                places.extend(entries.filter(|path| path.is_dir()));
            }
        }
        for place in places.iter().take(FOLDERS) {
            inotify::add_watch(&events, place, flags)?;
        }
        Ok(OpenWatch { path: path.to_owned(), events })
    }

    /// Returns whether a file of it was opened for reading since, before any was written. Directories are listed by
    /// anybody.
    pub fn was_opened(&self) -> bool {
        let mut events = [0; 4096];
        // What is mapped is opened, and nothing more is reported about it.
        let mut opened = 0;
        while let Ok(read @ 1..) = rustix::io::read(&self.events, &mut events[..]) {
            let mut rest = events.get(..read).unwrap_or_default();
            while let Some((head, after)) = rest.split_at_checked(HEAD) {
                let word = |at: usize| {
                    head.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_ne_bytes)
                };
                let mask = word(4).filter(|mask| mask & libc::IN_ISDIR == 0).unwrap_or(0);
                if mask & (libc::IN_ACCESS | libc::IN_CLOSE_NOWRITE) != 0 {
                    return true;
                }
                // The kernel may report the opening for that before or after the first change.
                if mask & (libc::IN_MODIFY | libc::IN_CLOSE_WRITE) != 0 {
                    return opened > 1;
                }
                opened += u32::from(mask & libc::IN_OPEN != 0);
                rest = after.get(word(12).unwrap_or(0) as usize..).unwrap_or_default();
            }
        }
        opened > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, read, write};

    #[test]
    fn opened_checkpoint_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        create_dir_all(at("ck/deep")).unwrap();
        for name in ["a.pt", "b.pt", "ck/deep/shard"] {
            write(at(name), "1").unwrap();
        }
        for (watched, other, read_by_rank) in [("a.pt", "b.pt", "a.pt"), ("ck", "a.pt", "ck/deep/shard")] {
            let watch = OpenWatch::start(&at(watched)).unwrap();
            read(at(other)).unwrap();
            let _ = std::fs::read_dir(at("ck/deep")).unwrap().count();
            assert!(!watch.was_opened(), "{watched}");
            read(at(read_by_rank)).unwrap();
            assert!(watch.was_opened(), "{watched}");
        }
        assert!(OpenWatch::start(&at("none")).is_err());
    }

    #[test]
    fn checkpoint_that_is_written_over_was_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("last.pt");
        let watched = |acts: &dyn Fn()| {
            write(&path, "1").unwrap();
            let watch = OpenWatch::start(&path).unwrap();
            acts();
            watch.was_opened()
        };
        assert!(!watched(&|| write(&path, "2").unwrap()));
        assert!(!watched(&|| {
            write(&path, "2").unwrap();
            read(&path).unwrap();
        }));
        assert!(watched(&|| {
            read(&path).unwrap();
            write(&path, "2").unwrap();
        }));
        let held = std::cell::RefCell::new(Vec::new());
        assert!(watched(&|| held.borrow_mut().push(std::fs::File::open(&path).unwrap())), "as a mapped file");
    }
}
