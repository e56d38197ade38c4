//! The rank's status page, written by the loop, the process group, the environments and the NCCL follower
//! thread.

use rankdeck_proto::status_page::StatusPageWriter;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The status page, shared within the rank. Never locked across a wait.
#[derive(Clone)]
pub struct StatusPage(Arc<Mutex<StatusPageWriter>>);

/// Of this process's own rank, for work that knows no rank.
static OWN: OnceLock<StatusPage> = OnceLock::new();

/// Records progress, for long work that has no access to the rank: a clean stop waits for ranks that make progress.
pub fn moved() {
    if let Some(page) = OWN.get() {
        page.lock().progress();
    }
}

impl StatusPage {
    /// From now on [`moved`] writes this page. Only the first call counts.
    pub fn own(&self) {
        OWN.get_or_init(|| self.clone());
    }

    /// The page that this writer writes.
    pub fn new(writer: StatusPageWriter) -> StatusPage {
        StatusPage(Arc::new(Mutex::new(writer)))
    }

    /// To read or write it now.
    pub fn lock(&self) -> MutexGuard<'_, StatusPageWriter> {
        // A writer that panicked has left a page that is whole, or is marked as torn.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
