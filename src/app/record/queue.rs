//! The queue to the thread that writes the recording: in order, bounded, never waited for.
//!
//! Owner: [`super::segments::SegmentRing`]. What does not fit is refused, and the caller reports it: a
//! segment ends in a gap, reports are counted. A console that is killed loses what is queued.

use super::files::{ReportJournal, SegmentFiles, SegmentStart};
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

/// Bytes that may be queued, besides the state of a console.
const ROOM: u64 = 32 << 20;
const JOBS: usize = 1024;
/// About the bytes of a pace baseline: 24 histograms.
const PACE_WEIGHT: u64 = 64 << 10;
/// How long the end of a console waits for a disk that does not respond.
const PATIENCE_AT_END: Duration = Duration::from_secs(10);

/// A job of the thread.
#[derive(Debug)]
pub(crate) enum Job {
    /// Starts a new segment.
    Begin(Box<SegmentStart>),
    /// Entries of the current segment.
    Write(EncodedBatch),
    /// Lines of `events.jsonl`.
    Report(Vec<Report>),
    /// The pace baseline, for this directory.
    Pace(PathBuf, PaceHistory),
    /// Flushes buffered data, then notifies the sender.
    Flush(Option<Sender<()>>),
}

/// Encoded entries.
#[derive(Debug, Default)]
pub(crate) struct EncodedBatch {
    /// Time of the first one.
    pub(crate) since: Option<Timestamp>,
    pub(crate) entries: Vec<u8>,
    /// Separate log lines.
    pub(crate) bursts: Vec<u8>,
}

/// Why something is not recorded.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RecordingError {
    pub(crate) at: Timestamp,
    pub(crate) error: String,
}

/// The state of the thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct RecordingStatus {
    /// The first failure since the last call.
    failure: Option<RecordingError>,
    /// The segment that was started last.
    started: u32,
    /// Wall time of the oldest recorded position.
    pub(crate) since: Option<WallTime>,
    /// Bytes of the recording on disk.
    pub(crate) bytes: u64,
    /// Reports that no file contains any more.
    pub(crate) reports_lost: u64,
}

/// The sending end.
#[derive(Debug)]
pub(crate) struct RecordingQueue {
    jobs: Option<SyncSender<(Timestamp, Job)>>,
    /// Disconnected once the thread has ended.
    over: Receiver<()>,
    shared: Arc<SharedStatus>,
}

#[derive(Debug, Default)]
struct SharedStatus {
    waiting: AtomicU64,
    status: Mutex<RecordingStatus>,
}

impl SharedStatus {
    fn status(&self) -> MutexGuard<'_, RecordingStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EncodedBatch {
    pub(crate) fn bytes(&self) -> usize {
        self.entries.len() + self.bursts.len()
    }
}

impl RecordingError {
    pub(crate) fn new(at: Timestamp, error: &io::Error) -> RecordingError {
        RecordingError { at, error: error.to_string() }
    }

    /// The disk is too slow.
    pub(crate) fn slow(at: Timestamp) -> RecordingError {
        RecordingError { at, error: "the disk is too slow".into() }
    }
}

/// About the bytes of a report in memory.
pub(crate) fn weight(report: &Report) -> u64 {
    let more = match &report.body {
        // Including names and phases.
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
            Job::Pace(..) => PACE_WEIGHT,
            Job::Flush(_) => 0,
        }
    }
}

impl RecordingQueue {
    /// Starts the thread.
    pub(crate) fn new(files: SegmentFiles, journal: Option<ReportJournal>) -> io::Result<RecordingQueue> {
        let (jobs, inbox) = sync_channel(JOBS);
        let shared = Arc::<SharedStatus>::default();
        let worker = Worker { files, journal, shared: shared.clone() };
        let (works, over) = channel();
        std::thread::Builder::new().name("record".to_owned()).spawn(move || {
            worker.work(&inbox);
            drop(works);
        })?;
        Ok(RecordingQueue { jobs: Some(jobs), over, shared })
    }

    /// Whether more can be queued.
    pub(crate) fn has_room(&self) -> bool {
        self.shared.waiting.load(Ordering::Relaxed) < ROOM
    }

    /// Queues a job, unless the thread is too far behind.
    pub(crate) fn send(&self, at: Timestamp, job: Job) -> Result<(), RecordingError> {
        let jobs = self.jobs.as_ref().filter(|_| self.has_room()).ok_or_else(|| RecordingError::slow(at))?;
        let weight = job.weight();
        self.shared.waiting.fetch_add(weight, Ordering::Relaxed);
        jobs.try_send((at, job)).map_err(|refused| {
            self.shared.waiting.fetch_sub(weight, Ordering::Relaxed);
            match refused {
                TrySendError::Full(_) => RecordingError::slow(at),
                TrySendError::Disconnected(_) => {
                    RecordingError { at, error: "the recording thread has ended".into() }
                }
            }
        })
    }

    /// Returns what is notified when everything queued is in the files. A disk that hangs never does so.
    pub(crate) fn settle(&self, at: Timestamp) -> Option<Receiver<()>> {
        let (sender, done) = channel();
        self.send(at, Job::Flush(Some(sender))).is_ok().then_some(done)
    }

    /// Waits until everything is written, or the disk has not responded for too long.
    pub(crate) fn finish(&mut self) {
        self.finish_within(PATIENCE_AT_END);
    }

    fn finish_within(&mut self, patience: Duration) {
        if self.jobs.take().is_some() && self.over.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            let bytes = self.shared.waiting.load(Ordering::Relaxed);
            tracing::error!(
                "the recording is incomplete: {bytes} bytes were not written to disk within {patience:?}"
            );
        }
    }

    /// Returns the failure since the last call.
    pub(crate) fn take_failure(&self) -> Option<RecordingError> {
        self.shared.status().failure.take()
    }

    /// Whether the segment, or a later one, is on disk.
    pub(crate) fn has_begun(&self, number: u32) -> bool {
        self.shared.status().started >= number
    }

    /// The state of the thread.
    pub(crate) fn status(&self) -> RecordingStatus {
        self.shared.status().clone()
    }
}

impl Drop for RecordingQueue {
    fn drop(&mut self) {
        self.finish();
    }
}

struct Worker {
    files: SegmentFiles,
    journal: Option<ReportJournal>,
    shared: Arc<SharedStatus>,
}

impl Worker {
    fn work(mut self, inbox: &Receiver<(Timestamp, Job)>) {
        while let Ok((at, job)) = inbox.recv() {
            let weight = job.weight();
            let (done, sender) = self.perform(job);
            self.publish(at, done);
            self.shared.waiting.fetch_sub(weight, Ordering::Relaxed);
            if let Some(sender) = sender {
                let _ = sender.send(());
            }
        }
        if let Err(error) = self.files.close() {
            tracing::error!("failed to end recording: {error}");
        }
        if let Some(journal) = &mut self.journal {
            journal.flush();
        }
        self.publish(Timestamp(0), Ok(None));
    }

    /// Returns the number of a started segment, and the sender to notify.
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
            Job::Pace(folder, pace) => {
                if let Err(error) = super::write_pace(&folder, &pace) {
                    tracing::warn!("cannot save the pace baseline: {error}");
                }
                (Ok(None), None)
            }
            Job::Flush(done) => {
                if let Some(journal) = &mut self.journal {
                    journal.flush();
                }
                (self.files.flush().map(|()| None), done)
            }
        }
    }

    fn publish(&mut self, at: Timestamp, done: io::Result<Option<u32>>) {
        if done.is_err() {
            self.files.give_up();
        }
        let mut status = self.shared.status();
        match done {
            Ok(started) => status.started = started.unwrap_or(status.started),
            Err(error) => drop(status.failure.get_or_insert(RecordingError::new(at, &error))),
        }
        (status.since, status.bytes) = (self.files.since(), self.files.bytes());
        status.reports_lost = self.journal.as_ref().map_or(0, ReportJournal::lost);
    }
}

#[cfg(test)]
mod tests {
    use super::super::files::LIMITS;
    use super::*;

    #[test]
    fn hanging_disk_refuses_jobs_without_blocking() {
        let folder = tempfile::tempdir().unwrap();
        let mut queue = RecordingQueue::new(SegmentFiles::new(folder.path().into(), LIMITS), None).unwrap();
        // The thread waits for this lock as for a disk.
        let hangs = queue.shared.clone();
        let lock = hangs.status();
        let batch =
            || Job::Write(EncodedBatch { since: None, entries: vec![0; 1 << 20], bursts: Vec::new() });
        let sent = (0..1000).take_while(|_| queue.send(Timestamp(1), batch()).is_ok()).count() as u64;
        assert_eq!(sent, ROOM >> 20);
        assert_eq!(queue.send(Timestamp(7), batch()), Err(RecordingError::slow(Timestamp(7))));
        queue.finish_within(Duration::from_millis(50));
        drop(lock);
        assert_eq!(queue.over.recv(), Err(std::sync::mpsc::RecvError), "the thread ends by itself");
        assert!(queue.has_room());
    }
}
