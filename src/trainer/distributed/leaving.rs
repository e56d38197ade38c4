//! Leaving a group: no rank closes a connection while another still reads from it, and the store ends last.
//!
//! Owner: the process group.

use super::bounded::within;
use super::error::{BackendError, DistError, DistErrorKind, DistPhase};
use super::group::ProcessGroup;
use crate::inject;
use std::time::{Duration, Instant};

impl ProcessGroup {
    /// Leaves the group. Ranks wait for each other's last use of the connections, but never longer than
    /// `within`; a group that failed before is abandoned at once.
    pub fn destroy(mut self, within: Duration) -> Result<(), DistError> {
        inject::here(inject::Hook::Teardown);
        self.leave(within)
    }

    fn leave(&mut self, limit: Duration) -> Result<(), DistError> {
        let (Some(transport), store) = (self.transport.take(), self.store.take()) else { return Ok(()) };
        let Some(store) = store else { return Ok(()) };
        let (rank, world_size) = (self.rank(), self.world_size());
        let identity = self.identity;
        let healthy = self.broken.borrow().is_none();
        if healthy {
            // The watch distinguishes ranks that wait here from ranks that have not arrived.
            self.page.lock().amount(1, 1);
        }
        // What is left of the limit is for closing the connections.
        let deadline = Instant::now() + limit.mul_f64(0.75);
        let result = within(
            limit,
            move |_| -> Result<i64, BackendError> {
                let mut left = i64::from(world_size);
                if healthy {
                    // Closing a connection may discard data that the peer has not read yet.
                    store.add("leaving", 1)?;
                    left = store.wait_count("leaving", i64::from(world_size), deadline, || {})?;
                }
                transport.close(healthy);
                if healthy && left == i64::from(world_size) {
                    // The store goes with rank 0, so rank 0 goes last.
                    if rank == 0 {
                        store.wait_count("left", i64::from(world_size) - 1, deadline, || {})?;
                    } else {
                        // Rank 0 may stop waiting at its own deadline, and its store with it.
                        let _ = store.add("left", 1);
                    }
                }
                Ok(left)
            },
            || {},
        );
        let error = |kind, text: String| Err(DistError::new(kind, DistPhase::Teardown, identity, text));
        match result {
            Some(Ok(left)) if left == i64::from(world_size) => Ok(()),
            Some(Ok(left)) => error(
                DistErrorKind::Timeout,
                format!(
                    "only {left} of {world_size} ranks came to leave within {:.1} s",
                    limit.as_secs_f64()
                ),
            ),
            Some(Err(failure)) => error(failure.kind, failure.text),
            None => error(
                DistErrorKind::Timeout,
                format!("connections not closed within {:.1} s", limit.as_secs_f64()),
            ),
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // A rank that drops its group without `destroy` is failing already; a second error would not help.
        let _ = self.leave(Duration::from_secs(2));
    }
}
