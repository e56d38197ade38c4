//! The way from a console to the thread that writes its record: in order, bounded, and never waited for.
//!
//! Owner: [`super::segments::Ring`]. What does not fit is refused, and who wanted it written says so: a
//! segment ends in a hole, reports are counted. A console that is killed loses what is on its way.

use super::files::{Files, SegmentStart};
use super::journal::Journal;
use super::learnt;
use rankdeck_core::PaceHistory;
use rankdeck_core::report::{RankProgress, Report, ReportBody};
use rankdeck_types::ids::{Timestamp, WallTime};
use std::io;
use std::mem::size_of;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes that may be on their way, and the state of a console beside them.
const ROOM: u64 = 32 << 20;
const JOBS: usize = 1024;
/// About the bytes of what the watch has learnt: 24 histograms.
const LEARNT: u64 = 64 << 10;
/// How long a user waits for the thread.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the end of a console waits for a disk that does not answer.
const PATIENCE_AT_END: Duration = Duration::from_secs(10);

/// Something for the thread to do.
#[derive(Debug)]
pub(super) enum Job {
    /// What follows goes into a file of its own.
    Begin(Box<SegmentStart>),
    /// Entries of the segment that was begun last.
    Write(Batch),
    /// Lines of `events.jsonl`.
    Report(Vec<Report>),
    /// What the watch has learnt, into this folder.
    Learnt(PathBuf, PaceHistory),
    /// What is held back goes to the files; then somebody is told.
    Flush(Option<Sender<()>>),
}

/// Encoded entries.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// The moment of the first.
    pub since: Option<Timestamp>,
    pub entries: Vec<u8>,
    /// Log lines that lie apart.
    pub bursts: Vec<u8>,
}

/// Why something is not in the record.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Failure {
    pub at: Timestamp,
    pub error: String,
}

/// How far the thread has come.
#[derive(Debug, Clone, Default)]
pub(super) struct Status {
    /// The first failure since somebody asked.
    failure: Option<Failure>,
    /// The segment that was begun last.
    begun: u32,
    /// Wall time of the oldest moment kept.
    pub since: Option<WallTime>,
    /// Bytes of the record on disk.
    pub bytes: u64,
    /// Reports that are in no file any more.
    pub reports_lost: u64,
}

/// The sending end.
#[derive(Debug)]
pub(super) struct Queue {
    jobs: Option<SyncSender<(Timestamp, Job)>>,
    /// Nobody holds its other end once the thread is over.
    over: Receiver<()>,
    shared: Arc<QueueState>,
}

#[derive(Debug, Default)]
struct QueueState {
    waiting: AtomicU64,
    status: Mutex<Status>,
}

impl QueueState {
    fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Batch {
    pub fn bytes(&self) -> usize {
        self.entries.len() + self.bursts.len()
    }
}

impl Failure {
    pub fn new(at: Timestamp, error: &io::Error) -> Failure {
        Failure { at, error: error.to_string() }
    }

    /// The disk does not follow.
    pub fn slow(at: Timestamp) -> Failure {
        Failure { at, error: "the disk is slower than the run".into() }
    }
}

/// About the bytes of a report in memory.
pub(super) fn weight(report: &Report) -> u64 {
    let more = match &report.body {
        // Names and phases beside them.
        ReportBody::Progress { per_rank, .. } => per_rank.len() * 2 * size_of::<RankProgress>(),
        _ => 0,
    };
    (size_of::<Report>() + more) as u64
}

impl Job {
    fn weight(&self) -> u64 {
        match self {
            Job::Begin(begin) => begin.state.bytes(),
            Job::Write(batch) => batch.bytes() as u64,
            Job::Report(reports) => reports.iter().map(weight).sum(),
            Job::Learnt(..) => LEARNT,
            Job::Flush(_) => 0,
        }
    }
}

impl Queue {
    /// Starts the thread.
    pub fn new(files: Files, journal: Option<Journal>) -> io::Result<Queue> {
        let (jobs, inbox) = sync_channel(JOBS);
        let shared = Arc::<QueueState>::default();
        let worker = Worker { files, journal, shared: shared.clone() };
        let (works, over) = channel();
        std::thread::Builder::new().name("record".to_owned()).spawn(move || {
            worker.work(&inbox);
            drop(works);
        })?;
        Ok(Queue { jobs: Some(jobs), over, shared })
    }

    /// More can be sent.
    pub fn has_room(&self) -> bool {
        self.shared.waiting.load(Ordering::Relaxed) < ROOM
    }

    /// Gives the thread something to do, unless it is too far behind.
    pub fn send(&self, at: Timestamp, job: Job) -> Result<(), Failure> {
        let jobs = self.jobs.as_ref().filter(|_| self.has_room()).ok_or_else(|| Failure::slow(at))?;
        let weight = job.weight();
        self.shared.waiting.fetch_add(weight, Ordering::Relaxed);
        jobs.try_send((at, job)).map_err(|refused| {
            self.shared.waiting.fetch_sub(weight, Ordering::Relaxed);
            match refused {
                TrySendError::Full(_) => Failure::slow(at),
                TrySendError::Disconnected(_) => Failure { at, error: "its thread has ended".into() },
            }
        })
    }

    /// Waits until all that was sent is in the files, or for as long as a user does.
    pub fn settle(&self, at: Timestamp) {
        let (told, done) = channel();
        if self.send(at, Job::Flush(Some(told))).is_ok() {
            // Nobody tells when the disk hangs: then what is there has to do.
            let _ = done.recv_timeout(PATIENCE);
        }
    }

    /// Waits until everything is written, or a disk has not answered for so long that it may never.
    pub fn finish(&mut self) {
        self.finish_within(PATIENCE_AT_END);
    }

    fn finish_within(&mut self, patience: Duration) {
        if self.jobs.take().is_some() && self.over.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            let bytes = self.shared.waiting.load(Ordering::Relaxed);
            tracing::error!("the record lacks its end: the disk has not taken {bytes} bytes in {patience:?}");
        }
    }

    /// What went wrong since the last call.
    pub fn take_failure(&self) -> Option<Failure> {
        self.shared.status().failure.take()
    }

    /// The segment is on disk, or a later one.
    pub fn has_begun(&self, number: u32) -> bool {
        self.shared.status().begun >= number
    }

    /// How far the thread has come.
    pub fn status(&self) -> Status {
        self.shared.status().clone()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.finish();
    }
}

struct Worker {
    files: Files,
    journal: Option<Journal>,
    shared: Arc<QueueState>,
}

impl Worker {
    fn work(mut self, inbox: &Receiver<(Timestamp, Job)>) {
        while let Ok((at, job)) = inbox.recv() {
            let weight = job.weight();
            let (done, told) = self.perform(job);
            self.tell(at, done);
            self.shared.waiting.fetch_sub(weight, Ordering::Relaxed);
            if let Some(told) = told {
                let _ = told.send(());
            }
        }
        if let Err(error) = self.files.close() {
            tracing::error!("failed to end the record: {error}");
        }
        if let Some(journal) = &mut self.journal {
            journal.flush();
        }
        self.tell(Timestamp(0), Ok(None));
    }

    /// The number of a segment that was begun, and who waits for it.
    fn perform(&mut self, job: Job) -> (io::Result<Option<u32>>, Option<Sender<()>>) {
        match job {
            Job::Begin(begin) => {
                let number = begin.number;
                (self.files.begin(*begin).map(|()| Some(number)), None)
            }
            Job::Write(batch) => (self.files.write(&batch.entries, &batch.bursts).map(|()| None), None),
            Job::Report(reports) => {
                if let Some(journal) = &mut self.journal {
                    reports.iter().for_each(|report| journal.report(report));
                }
                (Ok(None), None)
            }
            Job::Learnt(folder, learnt) => {
                if let Err(error) = learnt::keep(&folder, &learnt) {
                    tracing::warn!("failed to keep what was learnt: {error}");
                }
                (Ok(None), None)
            }
            Job::Flush(told) => {
                if let Some(journal) = &mut self.journal {
                    journal.flush();
                }
                (self.files.flush().map(|()| None), told)
            }
        }
    }

    fn tell(&mut self, at: Timestamp, done: io::Result<Option<u32>>) {
        if done.is_err() {
            self.files.give_up();
        }
        let mut status = self.shared.status();
        match done {
            Ok(begun) => status.begun = begun.unwrap_or(status.begun),
            Err(error) => drop(status.failure.get_or_insert(Failure::new(at, &error))),
        }
        (status.since, status.bytes) = (self.files.since(), self.files.bytes());
        status.reports_lost = self.journal.as_ref().map_or(0, Journal::lost);
    }
}

#[cfg(test)]
mod tests {
    use super::super::files::LIMITS;
    use super::*;

    #[test]
    fn what_a_hanging_disk_does_not_take_is_refused_and_nobody_waits() {
        let folder = tempfile::tempdir().unwrap();
        let mut queue = Queue::new(Files::new(folder.path().into(), LIMITS), None).unwrap();
        // The thread waits for this lock as for a disk.
        let hangs = queue.shared.clone();
        let lock = hangs.status();
        let batch = || Job::Write(Batch { since: None, entries: vec![0; 1 << 20], bursts: Vec::new() });
        let sent = (0..1000).take_while(|_| queue.send(Timestamp(1), batch()).is_ok()).count() as u64;
        assert_eq!(sent, ROOM >> 20);
        assert_eq!(queue.send(Timestamp(7), batch()), Err(Failure::slow(Timestamp(7))));
        queue.finish_within(Duration::from_millis(50));
        drop(lock);
        assert_eq!(queue.over.recv(), Err(std::sync::mpsc::RecvError), "the thread ends by itself");
        assert!(queue.has_room());
    }
}
