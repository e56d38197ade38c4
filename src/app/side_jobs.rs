//! Slow work of a screen: files, charts as images, tmux, recorded runs to overlay on the charts. It runs on threads; the
//! loop of the run is notified when a job is done.
//!
//! [`LatestWorker`] is for work of which only the latest request counts. Its thread belongs to the requester, and ends with
//! it; a thread that hangs in a disk is abandoned.
//!
//! Invariants:
//! - JOBS-1: at most [`AT_ONCE`] run at a time; a further one is refused, and the user sees that.
//! - LATEST-1: a request never waits. At most one waits for the thread; a newer one replaces it.

use super::record::reader::{self, Recording};
use rankdeck_charts::view::ComparedCurves;
use rankdeck_core::compare::ComparedRun;
use rankdeck_tui::Role;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

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

/// Maximum number of suggested names.
const MAX_NAMES: usize = 200;

/// The overlaid runs, or why they cannot be read.
pub(crate) type LoadedRuns = Result<Vec<ComparedCurves>, String>;

/// Handles one request at a time; a newer request replaces an older one.
#[derive(Debug, Default)]
pub(crate) struct CurveReader {
    reading: Option<JoinHandle<LoadedRuns>>,
}

impl CurveReader {
    /// Starts reading runs of a directory.
    pub fn read(&mut self, runs: PathBuf, names: Vec<String>) {
        if let Some(older) = self.reading.take() {
            older.abort();
        }
        let all = move || names.iter().map(|name| load(&runs, name)).collect();
        self.reading = Some(tokio::task::spawn_blocking(all));
    }

    /// Returns the result. Cancel-safe; pending without a request.
    pub async fn next(&mut self) -> LoadedRuns {
        let Some(reading) = &mut self.reading else { return std::future::pending().await };
        let done = reading.await;
        self.reading = None;
        done.unwrap_or_else(|error| Err(error.to_string()))
    }
}

/// Returns the names of recorded runs in a directory, latest first.
pub(crate) fn names(runs: &Path, own: &str) -> Vec<String> {
    let names = reader::list(runs).into_iter().map(|recorded| recorded.name);
    names.filter(|name| name != own).take(MAX_NAMES).collect()
}

/// Loads a run by its name or a prefix; of several, the latest.
fn load(runs: &Path, name: &str) -> Result<ComparedCurves, String> {
    let all = reader::list(runs);
    let exact = all.iter().find(|recorded| recorded.name == name);
    let recorded = exact.or_else(|| all.iter().find(|recorded| recorded.name.starts_with(name)));
    let recorded = recorded.ok_or_else(|| format!("no recording of `{name}` in {}", runs.display()))?;
    let read = Recording::open(&recorded.record).and_then(|record| record.last());
    let (model, at) = read.map_err(|error| format!("{}: {error}", recorded.name))?;
    Ok(ComparedCurves::new(ComparedRun::from_model(&recorded.name, &model, at)))
}

/// The thread's other end.
pub(super) struct LatestWorker<Q, A> {
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

    #[tokio::test]
    async fn run_without_recording_is_an_error_naming_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut curves = CurveReader::default();
        curves.read(folder.path().to_owned(), vec!["older".into()]);
        curves.read(folder.path().to_owned(), vec!["cart".into()]);
        assert!(curves.next().await.unwrap_err().contains("`cart`"));
        assert!(curves.reading.is_none());
        std::fs::create_dir_all(folder.path().join("cart-1/console/record")).unwrap();
        std::fs::write(folder.path().join("cart-1/console/record/000001.seg"), "").unwrap();
        assert_eq!(names(folder.path(), "other"), ["cart-1"]);
        assert!(names(folder.path(), "cart-1").is_empty());
        curves.read(folder.path().to_owned(), vec!["cart".into()]);
        assert!(curves.next().await.unwrap_err().contains("cart-1"), "its recording is empty");
    }

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
