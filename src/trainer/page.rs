//! The rank's status page, which the loop, the process group, environments and the follower of queued
//! collectives write.

use rankdeck_proto::status_page::Writer;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The status page, shared within the rank. Nobody keeps it while something waits.
#[derive(Clone)]
pub struct Page(Arc<Mutex<Writer>>);

/// Of this process's own rank, for work that knows no rank.
static OWN: OnceLock<Page> = OnceLock::new();

/// Says that something moved, for long work that knows no rank: a clean stop waits for ranks that get on.
pub fn moved() {
    if let Some(page) = OWN.get() {
        page.lock().progress();
    }
}

impl Page {
    /// From now on [`moved`] writes this page. Only the first call counts.
    pub fn own(&self) {
        OWN.get_or_init(|| self.clone());
    }

    /// The page that this writer writes.
    pub fn new(writer: Writer) -> Page {
        Page(Arc::new(Mutex::new(writer)))
    }

    /// To read or write it now.
    pub fn lock(&self) -> MutexGuard<'_, Writer> {
        // A writer that panicked has left a page that is whole, or is marked as torn.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
