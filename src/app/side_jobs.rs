//! Slow work of a screen: files, charts as images, tmux. It runs on its own threads; the loop of the run is
//! notified when a job is done.
//!
//! Invariants:
//! - JOBS-1: at most [`AT_ONCE`] run at a time; a further one is refused, and the user sees that.

use rankdeck_tui::Role;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Most jobs at a time.
const AT_ONCE: usize = 4;

/// The result of a job.
#[derive(Debug)]
pub(crate) struct JobEnd {
    /// For the user.
    pub(crate) toast: (String, Role),
    /// Bytes to send to the terminal.
    pub(crate) bytes: Vec<u8>,
}

impl JobEnd {
    pub(crate) fn toast(text: impl Into<String>, role: Role) -> JobEnd {
        JobEnd { toast: (text.into(), role), bytes: Vec::new() }
    }
}

/// The jobs of one screen.
pub(crate) struct SideJobs {
    ends: Arc<Mutex<Vec<JobEnd>>>,
    wake: Arc<Notify>,
}

/// Jobs that run in this process.
static RUNNING: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());
/// How long the end of a console waits for files that are being written.
const AT_END: Duration = Duration::from_secs(10);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running job; counted as ended on drop.
struct RunningJob(Arc<Notify>);

impl Drop for RunningJob {
    fn drop(&mut self) {
        *locked(&RUNNING.0) -= 1;
        RUNNING.1.notify_all();
        self.0.notify_one();
    }
}

impl SideJobs {
    /// `wake` is notified when a job is done.
    pub(crate) fn new(wake: Arc<Notify>) -> SideJobs {
        SideJobs { ends: Arc::default(), wake }
    }

    /// Adds a result.
    pub(crate) fn end(&self, end: JobEnd) {
        locked(&self.ends).push(end);
        self.wake.notify_one();
    }

    /// Starts a job.
    pub(crate) fn start(&self, work: impl FnOnce() -> JobEnd + Send + 'static) {
        let mut running = locked(&RUNNING.0);
        if *running >= AT_ONCE {
            return self.end(JobEnd::toast(format!("{AT_ONCE} files are still being written"), Role::Warn));
        }
        *running += 1;
        drop(running);
        let (job, ends) = (RunningJob(Arc::clone(&self.wake)), Arc::clone(&self.ends));
        let started = std::thread::Builder::new().name("side job".to_owned()).spawn(move || {
            let _job = job;
            let end = work();
            locked(&ends).push(end);
        });
        if let Err(error) = started {
            self.end(JobEnd::toast(format!("cannot start a thread: {error}"), Role::Warn));
        }
    }

    /// Returns the results since the last call.
    pub(crate) fn take(&self) -> Vec<JobEnd> {
        std::mem::take(&mut locked(&self.ends))
    }
}

/// Waits for all jobs, for a limited time, before a console ends.
pub(crate) fn finish() {
    let deadline = Instant::now() + AT_END;
    let mut running = locked(&RUNNING.0);
    while *running > 0 {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        running = RUNNING.1.wait_timeout(running, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[tokio::test]
    async fn jobs_1_excess_job_is_refused_with_a_toast() {
        let wake = Arc::new(Notify::new());
        let jobs = SideJobs::new(Arc::clone(&wake));
        let (open, gate) = channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        for _ in 0..=AT_ONCE {
            let gate = Arc::clone(&gate);
            jobs.start(move || {
                let _ = gate.lock().unwrap().recv();
                JobEnd::toast("done", Role::Good)
            });
        }
        wake.notified().await;
        let refused = jobs.take();
        assert!(matches!(&refused[..], [JobEnd { toast: (_, Role::Warn), .. }]), "{refused:?}");
        drop(open);
        finish();
        let done = jobs.take();
        assert_eq!(done.iter().filter(|end| end.toast.1 == Role::Good).count(), AT_ONCE);
    }
}
