//! Runs work that may block inside a library on its own thread, so that the caller returns in time.
//!
//! Invariant: the work owns everything it uses, so a thread that is left behind touches nothing of the
//! caller's.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

enum WorkMessage<T> {
    WorkProgress,
    Done(T),
}

/// Lets the work report progress.
pub(super) struct WorkProgress<T>(Sender<WorkMessage<T>>);

impl<T> WorkProgress<T> {
    pub(super) fn moved(&self) {
        // The caller may have given up and dropped the receiver.
        let _ = self.0.send(WorkMessage::WorkProgress);
    }
}

/// Runs `work` on its own thread; `None` when it is not done within `limit` (or the thread could not be
/// made). `moved` is called on the caller's thread for each sign of progress.
pub(super) fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce(&WorkProgress<T>) -> T + Send + 'static,
    mut moved: impl FnMut(),
) -> Option<T> {
    let (sender, receiver): (_, Receiver<WorkMessage<T>>) = channel();
    let spawned = std::thread::Builder::new().name("dist".into()).spawn(move || {
        let progress = WorkProgress(sender);
        let result = work(&progress);
        let _ = progress.0.send(WorkMessage::Done(result));
    });
    spawned.ok()?;
    let deadline = Instant::now() + limit;
    loop {
        match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(WorkMessage::WorkProgress) => moved(),
            Ok(WorkMessage::Done(result)) => return Some(result),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_in_time_is_returned_with_progress() {
        let mut moved = 0;
        let result = within(
            Duration::from_secs(30),
            |progress| {
                progress.moved();
                progress.moved();
                7
            },
            || moved += 1,
        );
        assert_eq!((result, moved), (Some(7), 2));
    }

    #[test]
    fn blocking_work_is_abandoned() {
        let (release, blocked) = channel::<()>();
        let result = within(Duration::from_millis(20), move |_| blocked.recv(), || {});
        assert!(result.is_none());
        drop(release);
    }
}
