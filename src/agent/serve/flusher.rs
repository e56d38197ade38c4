//! Files that are flushed to disk while nobody waits for it.

use crate::serve::log::say;
use std::fs::File;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// A thread that flushes the newest file that it was given. It ends with its owner, or, where the disk holds
/// it, with the process.
#[derive(Debug)]
pub(crate) struct Flusher {
    slot: Arc<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    /// The file that waits, and whether the owner is gone.
    state: Mutex<(Option<File>, bool)>,
    changed: Condvar,
}

impl Flusher {
    pub(crate) fn start(flush: impl Fn(&File) -> io::Result<()> + Send + 'static) -> io::Result<Flusher> {
        let slot = Arc::new(Slot::default());
        let theirs = slot.clone();
        std::thread::Builder::new().name("flush".into()).spawn(move || {
            while let Some(file) = theirs.next() {
                if let Err(error) = flush(&file) {
                    say(&format!("the manifest is written, and the disk does not confirm it: {error}"));
                }
            }
        })?;
        Ok(Flusher { slot })
    }

    /// Has it flushed; one that still waits for its turn was replaced by this one.
    pub(crate) fn flush(&self, file: File) {
        self.slot.state.lock().unwrap_or_else(PoisonError::into_inner).0 = Some(file);
        self.slot.changed.notify_one();
    }
}

impl Slot {
    fn next(&self) -> Option<File> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match std::mem::take(&mut state.0) {
                Some(file) => return Some(file),
                None if state.1 => return None,
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.slot.state.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.slot.changed.notify_one();
    }
}
