//! Slow work of which only the latest counts, on a thread: the loop of a run hands over a request, and takes the
//! result once it is there.
//!
//! Owner: who makes the requests; the thread ends with it. A thread that hangs in a disk is left to itself.
//!
//! Invariants:
//! - LATEST-1: a request never waits. At most one waits for the thread; a newer one replaces it.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The thread's other end.
pub(crate) struct LatestWorker<Q, A> {
    shared: Arc<WorkerSlots<Q, A>>,
}

struct WorkerSlots<Q, A> {
    state: Mutex<SlotState<Q, A>>,
    /// There is a request, or no more will come.
    more: Condvar,
}

struct SlotState<Q, A> {
    request: Option<Q>,
    /// The latest result that was not taken.
    result: Option<A>,
    closed: bool,
}

impl<Q, A> WorkerSlots<Q, A> {
    fn state(&self) -> MutexGuard<'_, SlotState<Q, A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Q, A> LatestWorker<Q, A> {
    /// Hands over a request.
    pub(crate) fn request(&self, request: Q) {
        self.shared.state().request = Some(request);
        self.shared.more.notify_one();
    }

    /// Takes the latest result, once.
    pub(crate) fn take(&self) -> Option<A> {
        self.shared.state().result.take()
    }
}

impl<Q: Send + 'static, A: Send + 'static> LatestWorker<Q, A> {
    /// Starts the thread; `wake` is notified of results.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(
        name: &str,
        wake: Arc<Notify>,
        mut work: impl FnMut(Q) -> A + Send + 'static,
    ) -> io::Result<LatestWorker<Q, A>> {
        let state = Mutex::new(SlotState { request: None, result: None, closed: false });
        let shared = Arc::new(WorkerSlots { state, more: Condvar::new() });
        let own = Arc::clone(&shared);
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            while let Some(request) = next(&own) {
                let result = work(request);
                own.state().result = Some(result);
                wake.notify_one();
            }
        })?;
        Ok(LatestWorker { shared })
    }
}

impl<Q, A> Drop for LatestWorker<Q, A> {
    fn drop(&mut self) {
        self.shared.state().closed = true;
        self.shared.more.notify_one();
    }
}

/// Waits for a request; `None`: no more will come.
fn next<Q, A>(shared: &WorkerSlots<Q, A>) -> Option<Q> {
    let mut state = shared.state();
    loop {
        if state.closed {
            return None;
        }
        match state.request.take() {
            Some(request) => return Some(request),
            None => state = shared.more.wait(state).unwrap_or_else(PoisonError::into_inner),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// The disk does not respond: requests return at once, and only the last of them is carried out.
    #[tokio::test]
    async fn latest_1_requests_never_wait_and_the_last_one_counts() {
        let ((started, begins), (open, gate)) = (channel(), channel::<()>());
        let wake = Arc::new(Notify::new());
        let work = move |request: u32| {
            started.send(request).unwrap();
            let _ = gate.recv();
            request * 10
        };
        let worker = LatestWorker::start("test", Arc::clone(&wake), work).unwrap();
        worker.request(1);
        assert_eq!(begins.recv(), Ok(1));
        (2..1000).for_each(|request| worker.request(request));
        assert_eq!(worker.take(), None);
        open.send(()).unwrap();
        assert_eq!(begins.recv(), Ok(999));
        wake.notified().await;
        assert_eq!((worker.take(), worker.take()), (Some(10), None));
        open.send(()).unwrap();
        wake.notified().await;
        assert_eq!(worker.take(), Some(9990));
        drop(worker);
        assert!(begins.recv().is_err(), "the thread has ended");
    }
}
