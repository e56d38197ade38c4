//! Processes that the agent runs for its user: children of the agent, and none of the run's.

use crate::supervise::groups;
use std::collections::BTreeSet;
use std::io;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Those that run now. A search for processes of the run leaves them alone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Helpers(Arc<Mutex<BTreeSet<u32>>>);

/// A helper that is left alone for as long as this lives.
#[derive(Debug)]
pub(crate) struct SparedHelper<'a> {
    helpers: &'a Helpers,
    pid: u32,
}

impl Drop for SparedHelper<'_> {
    fn drop(&mut self) {
        self.helpers.lock().remove(&self.pid);
    }
}

impl Helpers {
    /// Starts one. It is reaped by whoever reaps this process's children.
    pub fn spawn(&self, command: &mut Command) -> io::Result<(Child, SparedHelper<'_>)> {
        // A search must not see it without knowing whose it is.
        let mut known = self.lock();
        let child = groups::spawn(command)?;
        let pid = child.id();
        known.insert(pid);
        Ok((child, SparedHelper { helpers: self, pid }))
    }

    /// Their process ids, to change.
    pub fn lock(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Their process ids.
    pub fn pids(&self) -> BTreeSet<u32> {
        self.lock().clone()
    }
}
