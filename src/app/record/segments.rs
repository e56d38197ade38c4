//! Segments of a recording on disk: a ring that is bounded in bytes and keeps the end.
//!
//! `record/000001.seg` holds the state of the console at its first event and every event after it,
//! `record/000001.log` the separate log lines ([`rankdeck_core::trace`]). Both start with the header as a
//! line of text; the rest is compressed (zstd) and flushed every second, so that a killed console loses at
//! most that, and what a slow disk has not accepted yet.
//!
//! Owner: [`super::Recorder`]. The console encodes events and assigns them to segments; a thread compresses
//! and writes them ([`RecordingQueue`], `files`), in order, and [`super::reader`] reads. Invariants:
//! - TRACE-2: segments and log lines have a size limit each; the oldest are deleted first, and the newest
//!   always exists.
//! - A disk that fails, or is slower than the run, costs the recording, never the run: a gap is reported, and
//!   another segment is tried later.
//!
//! The queue to the thread that writes the recording: in order, bounded, never waited for.
//!
//! Owner: [`SegmentRing`]. What does not fit is refused, and the caller reports it: a
//! segment ends in a gap, reports are counted. A console that is killed loses what is queued.

pub(crate) use super::files::{LIMITS, RecordingLimits, path};
use super::files::{ReportJournal, SegmentFiles, SegmentStart};
use rankdeck_core::event::Event;
use rankdeck_core::report::{RankProgress, Report, ReportBody};
use rankdeck_core::trace::{ConsoleSnapshot, SegmentHeader, SegmentWriter};
use rankdeck_core::{Core, PaceHistory};
use rankdeck_types::ids::{Timestamp, WallTime};
use std::io;
use std::mem::size_of;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Delay before the next attempt after a disk failure.
const AGAIN_MS: u64 = 30_000;
/// A thousandth of a core for 32 ranks; a higher level saves nothing more.
const LEVEL: i32 = 6;
/// From this many ranks on, a level with a fifth of the effort: the recording is a tenth larger.
const MANY: (usize, i32) = (256, 1);
/// Bytes that are passed to the thread at once, so that it rarely wakes up.
const BATCH: usize = 128 << 10;

/// The ring of segments that a console writes.
#[derive(Debug)]
pub(crate) struct SegmentRing {
    folder: PathBuf,
    limits: RecordingLimits,
    /// Wall time at a reading of the console's clock.
    wall: (Timestamp, WallTime),
    next: u32,
    open: Option<OpenSegment>,
    /// Entries of the open segment that were not passed to the thread yet.
    batch: EncodedBatch,
    queue: RecordingQueue,
    /// Since when nothing is recorded, and when to try again.
    hole: Option<RecordingGap>,
    notices: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
struct RecordingGap {
    since: Timestamp,
    again: Timestamp,
    /// The segment that was started after it, and when.
    tried: Option<(u32, Timestamp)>,
}

/// The open segment; sizes are those before compression.
#[derive(Debug, Default)]
struct OpenSegment {
    writer: SegmentWriter,
    state: u64,
    events: u64,
    lines: u64,
}

fn level(core: &Core) -> i32 {
    if core.model().ranks.len() < MANY.0 { LEVEL } else { MANY.1 }
}

impl SegmentRing {
    /// A ring in `folder`, which exists and is empty; `time` is the wall time at `now`. The journal gets the
    /// reports.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(crate) fn new(
        journal: Option<ReportJournal>,
        folder: PathBuf,
        limits: RecordingLimits,
        now: Timestamp,
        time: WallTime,
    ) -> io::Result<SegmentRing> {
        let queue = RecordingQueue::new(SegmentFiles::new(folder.clone(), limits), journal)?;
        let (batch, notices) = (EncodedBatch::default(), Vec::new());
        Ok(SegmentRing {
            folder,
            limits,
            wall: (now, time),
            next: 1,
            open: None,
            batch,
            queue,
            hole: None,
            notices,
        })
    }

    /// Records an event before it is passed to `core`.
    pub(crate) fn event(&mut self, now: Timestamp, event: &Event, core: &Core) {
        if let Event::WallClock { time } = event {
            self.wall = (now, *time);
        }
        self.poll_queue();
        if self.hole.is_some_and(|hole| now < hole.again) {
            return;
        }
        if self.open.as_ref().is_some_and(|open| open.is_full(&self.limits)) {
            self.send_batch();
            self.open = None;
        }
        if self.open.is_none() {
            self.begin(now, core);
        }
        let Some(open) = &mut self.open else { return };
        let EncodedBatch { entries, bursts, .. } = &mut self.batch;
        let before = (entries.len(), bursts.len());
        open.writer.event(now, event, entries, bursts);
        open.events += (entries.len() - before.0) as u64;
        open.lines += (bursts.len() - before.1) as u64;
        self.batch.since.get_or_insert(now);
        if self.batch.bytes() >= BATCH {
            self.send_batch();
        }
    }

    fn begin(&mut self, now: Timestamp, core: &Core) {
        if !self.queue.has_room() {
            return self.fail(RecordingError::slow(now));
        }
        let time = self.wall.1 + (now.0 as f64 - self.wall.0.0 as f64) / 1000.0;
        let (number, header) = (self.next, SegmentHeader::new(now, time));
        self.next += 1;
        let state = match ConsoleSnapshot::of(core) {
            Ok(state) => state,
            Err(error) => return self.fail(RecordingError::new(now, &error)),
        };
        let bytes = state.bytes();
        let begin = SegmentStart { number, header, level: level(core), state };
        match self.queue.send(now, Job::Begin(Box::new(begin))) {
            Ok(()) => {
                self.open = Some(OpenSegment { state: bytes, ..OpenSegment::default() });
                self.hole = self.hole.map(|hole| RecordingGap { tried: Some((number, now)), ..hole });
            }
            Err(failure) => self.fail(failure),
        }
    }

    fn send_batch(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        let Some(since) = batch.since else { return };
        if let Err(failure) = self.queue.send(since, Job::Write(batch)) {
            self.fail(failure);
        }
    }

    /// Handles the state of the writer thread.
    fn poll_queue(&mut self) {
        if let Some(failure) = self.queue.take_failure() {
            return self.fail(failure);
        }
        if let Some(RecordingGap { since, tried: Some((number, at)), .. }) = self.hole
            && self.queue.has_begun(number)
        {
            self.hole = None;
            let gone = rankdeck_types::words::duration_ms(at.since(since));
            self.notices.push(format!("recording continues; {gone} are missing"));
        }
    }

    fn fail(&mut self, failure: RecordingError) {
        let RecordingError { at, error } = failure;
        tracing::error!("failed to record: {error}");
        (self.open, self.batch) = (None, EncodedBatch::default());
        if self.hole.is_none() {
            let folder = self.folder.display();
            self.notices.push(format!("recording paused (the run is not affected): {folder}: {error}"));
        }
        let since = self.hole.map_or(at, |hole| hole.since);
        self.hole = Some(RecordingGap { since, again: at.plus(AGAIN_MS), tried: None });
    }

    /// Passes buffered entries to the thread.
    pub(crate) fn flush(&mut self, now: Timestamp) {
        self.send_batch();
        // If the queue is full, much is being written, and the next flush comes soon.
        let _ = self.queue.send(now, Job::Flush(None));
    }

    /// The same; returns what is notified when all of it is in the files.
    pub(crate) fn settle(&mut self, now: Timestamp) -> Option<Receiver<()>> {
        self.send_batch();
        self.queue.settle(now)
    }

    /// Ends the recording when all of it is written.
    pub(crate) fn finish(&mut self) {
        self.send_batch();
        self.queue.finish();
    }

    /// Returns new problems, once.
    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        self.poll_queue();
        std::mem::take(&mut self.notices)
    }

    /// Wall time of the oldest recorded position.
    pub(crate) fn since(&self) -> Option<WallTime> {
        self.queue.status().since
    }

    /// Bytes on disk.
    pub(crate) fn bytes(&self) -> u64 {
        self.queue.status().bytes
    }

    /// Directory of the segments.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The queue of the thread, for other files.
    pub(super) fn queue(&self) -> &RecordingQueue {
        &self.queue
    }
}

impl OpenSegment {
    fn is_full(&self, limits: &RecordingLimits) -> bool {
        self.events >= limits.events.max(limits.states * self.state) || self.lines >= limits.lines
    }
}

/// Bytes that may be queued, besides the state of a console.
const ROOM: u64 = 32 << 20;
const JOBS: usize = 1024;
/// About the bytes of a pace baseline: 24 histograms.
const PACE_WEIGHT: u64 = 64 << 10;
/// How long the end of a console waits for a disk that does not respond.
const PATIENCE_AT_END: Duration = Duration::from_secs(10);

/// A job of the thread.
#[derive(Debug)]
pub(super) enum Job {
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
pub(super) struct EncodedBatch {
    /// Time of the first one.
    pub(crate) since: Option<Timestamp>,
    pub(crate) entries: Vec<u8>,
    /// Separate log lines.
    pub(crate) bursts: Vec<u8>,
}

/// Why something is not recorded.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RecordingError {
    pub(crate) at: Timestamp,
    pub(crate) error: String,
}

/// The state of the thread.
#[derive(Debug, Clone, Default)]
pub(super) struct RecordingStatus {
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
pub(super) struct RecordingQueue {
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
pub(super) fn weight(report: &Report) -> u64 {
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
    use super::super::reader::Recording;
    use super::*;
    use rankdeck_core::Goal;
    use rankdeck_proto::message::AgentMessage;
    use rankdeck_types::ids::{NodeRank, Rank, RunId};

    const SMALL: RecordingLimits =
        RecordingLimits { segments: 400_000, logs: 100_000, events: 60_000, states: 0, lines: 100_000 };

    fn core() -> Core {
        let goal = Goal::Attach { run: RunId("r".into()), hosts: vec!["a".into()] };
        Core::new(goal, Vec::new(), Timestamp(0))
    }

    fn ring(folder: &Path, limits: RecordingLimits, time: WallTime) -> SegmentRing {
        SegmentRing::new(None, folder.into(), limits, Timestamp(0), time).unwrap()
    }

    /// Text that does not compress.
    fn noise(seed: u64) -> String {
        let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x
        };
        (0..8).map(|_| format!("{:016x}", next())).collect()
    }

    fn size(folder: &Path, log: bool) -> (usize, u64) {
        let kind = if log { "log" } else { "seg" };
        let files = std::fs::read_dir(folder).unwrap().flatten();
        let sizes: Vec<u64> = files
            .filter(|file| file.path().extension().is_some_and(|end| end == kind))
            .map(|file| file.metadata().unwrap().len())
            .collect();
        (sizes.len(), sizes.iter().sum())
    }

    #[test]
    fn trace_2_ring_is_bounded_and_keeps_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let (mut core, mut ring) = (core(), ring(folder.path(), SMALL, 1000.0));
        for n in 0..4000u64 {
            let event = match n % 2 {
                0 => Event::Noticed { text: noise(n) },
                _ => {
                    let lines = (0..3).map(|line| noise(n * 3 + line)).collect();
                    let message = Box::new(AgentMessage::Log {
                        rank: Rank(0),
                        first: n,
                        overwritten: 0,
                        lines,
                        times: Vec::new(),
                    });
                    Event::AgentMessage { node: NodeRank(0), message }
                }
            };
            ring.event(Timestamp(n * 1000), &event, &core);
            core.handle(Timestamp(n * 1000), event);
        }
        ring.settle(Timestamp(4_000_000)).unwrap().recv().unwrap();
        let (segments, bytes) = size(folder.path(), false);
        assert!(segments > 2 && bytes < 2 * SMALL.segments, "{segments} segments, {bytes} bytes");
        let (logs, log_bytes) = size(folder.path(), true);
        assert!(logs >= 1 && log_bytes < 2 * SMALL.logs, "{logs} logs, {log_bytes} bytes");
        ring.finish();
        assert_eq!(ring.take_notices(), Vec::<String>::new());
        let record = Recording::open(folder.path()).unwrap();
        assert_eq!(record.since(), ring.since().unwrap());
        assert!(record.since() > 3000.0, "the oldest are gone");
        let (model, end) = record.last().unwrap();
        assert_eq!(end, Timestamp(3_999_000));
        assert_eq!(model.history, core.model().history);
    }

    #[test]
    fn disk_failure_leaves_a_reported_gap_and_recording_resumes() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("record");
        std::fs::create_dir(&folder).unwrap();
        let limits = RecordingLimits { events: 100, ..SMALL };
        let (mut core, mut ring) = (core(), ring(&folder, limits, 0.0));
        let mut record = |ring: &mut SegmentRing, ms: u64| {
            let event = Event::Noticed { text: noise(ms) };
            ring.event(Timestamp(ms), &event, &core);
            core.handle(Timestamp(ms), event);
            ring.settle(Timestamp(ms)).unwrap().recv().unwrap();
            ring.take_notices()
        };
        assert!(record(&mut ring, 1).is_empty());
        std::fs::remove_dir_all(&folder).unwrap();
        let notices: Vec<String> = (2..60).flat_map(|ms| record(&mut ring, ms * 10)).collect();
        assert_eq!(notices.len(), 1, "{notices:?}");
        assert!(notices[0].contains("recording paused"), "{notices:?}");
        std::fs::create_dir(&folder).unwrap();
        let notices: Vec<String> = (1..5).flat_map(|n| record(&mut ring, n * AGAIN_MS)).collect();
        assert_eq!(notices.len(), 1, "{notices:?}");
        assert!(notices[0].contains("recording continues"), "{notices:?}");
        ring.finish();
        let (model, _) = Recording::open(&folder).unwrap().last().unwrap();
        assert_eq!(model.history, core.model().history, "the next segment holds all that the hole led to");
    }

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
