//! Segments of a record on disk: a ring that is bounded in bytes and reaches to the end.
//!
//! `record/000001.seg` holds the state of the console at its first moment and every event after it,
//! `record/000001.log` the log lines that lie apart ([`rankdeck_core::trace`]). Both begin with the header as
//! a line of text; what follows is compressed (zstd) and flushed every second, so that a console that is
//! killed loses no more than that, and what a slow disk has not taken yet.
//!
//! Owner: [`super::Recorder`]. The console encodes, and decides what belongs into which segment; a thread
//! compresses and writes (`queue`, `files`), in that order, and [`super::reader`] reads. Invariants:
//! - TRACE-2: segments and log lines have a bound each; the oldest go first, and the newest is always there.
//! - A disk that fails, or is slower than the run, costs the record, never the run: a hole is told, and
//!   another segment is tried later.

pub use super::files::{LIMITS, Limits, path};

use super::files::{Files, SegmentStart};
use super::journal::Journal;
use super::queue::{Batch, Failure, Job, Queue};
use rankdeck_core::Core;
use rankdeck_core::event::Event;
use rankdeck_core::trace::{Header, State, Writer};
use rankdeck_types::ids::{Timestamp, WallTime};
use std::io;
use std::path::{Path, PathBuf};

/// After a failure of the disk, the next try comes after this.
const AGAIN_MS: u64 = 30_000;
/// A thousandth of a core for 32 ranks; more effort saves no more.
const LEVEL: i32 = 6;
/// From so many ranks on, a fifth of that effort does: the record is a tenth larger.
const MANY: (usize, i32) = (256, 1);
/// So many bytes are given to the thread at once, so that it wakes seldom.
const BATCH: usize = 128 << 10;

/// The ring of segments that a console writes.
#[derive(Debug)]
pub struct Ring {
    folder: PathBuf,
    limits: Limits,
    /// Wall time at a moment of the console's clock.
    wall: (Timestamp, WallTime),
    next: u32,
    open: Option<Segment>,
    /// Entries of the open segment that were not given to the thread yet.
    batch: Batch,
    queue: Queue,
    /// Since when nothing is kept, and when to try again.
    hole: Option<Hole>,
    notices: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
struct Hole {
    since: Timestamp,
    again: Timestamp,
    /// The segment that was begun after it, and when.
    tried: Option<(u32, Timestamp)>,
}

/// The segment that events go to; sizes are those before it is compressed.
#[derive(Debug, Default)]
struct Segment {
    writer: Writer,
    state: u64,
    events: u64,
    lines: u64,
}

fn level(core: &Core) -> i32 {
    if core.model().ranks.len() < MANY.0 { LEVEL } else { MANY.1 }
}

impl Ring {
    /// A ring in `folder`, which exists and is empty; `time` is the wall time at `now`.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn new(folder: PathBuf, limits: Limits, now: Timestamp, time: WallTime) -> io::Result<Ring> {
        Ring::beside(None, folder, limits, now, time)
    }

    /// The same with reports beside it.
    pub(super) fn beside(
        journal: Option<Journal>,
        folder: PathBuf,
        limits: Limits,
        now: Timestamp,
        time: WallTime,
    ) -> io::Result<Ring> {
        let queue = Queue::new(Files::new(folder.clone(), limits), journal)?;
        let (batch, notices) = (Batch::default(), Vec::new());
        Ok(Ring { folder, limits, wall: (now, time), next: 1, open: None, batch, queue, hole: None, notices })
    }

    /// Keeps an event that `core` is about to be told.
    pub fn event(&mut self, now: Timestamp, event: &Event, core: &Core) {
        if let Event::WallClock { time } = event {
            self.wall = (now, *time);
        }
        self.hear();
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
        let Batch { entries, bursts, .. } = &mut self.batch;
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
            return self.fail(Failure::slow(now));
        }
        let time = self.wall.1 + (now.0 as f64 - self.wall.0.0 as f64) / 1000.0;
        let (number, header) = (self.next, Header::new(now, time));
        self.next += 1;
        let state = match State::of(core) {
            Ok(state) => state,
            Err(error) => return self.fail(Failure::new(now, &error)),
        };
        let bytes = state.bytes();
        let begin = SegmentStart { number, header, level: level(core), state };
        match self.queue.send(now, Job::Begin(Box::new(begin))) {
            Ok(()) => {
                self.open = Some(Segment { state: bytes, ..Segment::default() });
                self.hole = self.hole.map(|hole| Hole { tried: Some((number, now)), ..hole });
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

    /// What the thread has met meanwhile.
    fn hear(&mut self) {
        if let Some(failure) = self.queue.take_failure() {
            return self.fail(failure);
        }
        if let Some(Hole { since, tried: Some((number, at)), .. }) = self.hole
            && self.queue.has_begun(number)
        {
            self.hole = None;
            let gone = rankdeck_types::words::duration_ms(at.since(since));
            self.notices.push(format!("the record goes on; {gone} are missing from it"));
        }
    }

    fn fail(&mut self, failure: Failure) {
        let Failure { at, error } = failure;
        tracing::error!("failed to record: {error}");
        (self.open, self.batch) = (None, Batch::default());
        if self.hole.is_none() {
            let folder = self.folder.display();
            self.notices.push(format!("the record pauses, the run goes on: {folder}: {error}"));
        }
        let since = self.hole.map_or(at, |hole| hole.since);
        self.hole = Some(Hole { since, again: at.plus(AGAIN_MS), tried: None });
    }

    /// Has what is held back written out.
    pub fn flush(&mut self, now: Timestamp) {
        self.send_batch();
        // Where it has no room, much is on its way, and the next time is soon.
        let _ = self.queue.send(now, Job::Flush(None));
    }

    /// The same, and waits for it for as long as a user does.
    pub fn settle(&mut self, now: Timestamp) {
        self.send_batch();
        self.queue.settle(now);
        self.hear();
    }

    /// Ends the record, when all of it is written.
    pub fn finish(&mut self) {
        self.send_batch();
        self.queue.finish();
    }

    /// What the user should know, once.
    pub fn take_notices(&mut self) -> Vec<String> {
        self.hear();
        std::mem::take(&mut self.notices)
    }

    /// Wall time of the oldest moment kept.
    pub fn since(&self) -> Option<WallTime> {
        self.queue.status().since
    }

    /// Bytes on disk.
    pub fn bytes(&self) -> u64 {
        self.queue.status().bytes
    }

    /// Where the segments are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The way to the thread, for what is written beside the segments.
    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }
}

impl Segment {
    fn is_full(&self, limits: &Limits) -> bool {
        self.events >= limits.events.max(limits.states * self.state) || self.lines >= limits.lines
    }
}

#[cfg(test)]
mod tests {
    use super::super::reader::Record;
    use super::*;
    use rankdeck_core::Goal;
    use rankdeck_proto::message::AgentMessage;
    use rankdeck_types::ids::{NodeRank, Rank, RunId};

    const SMALL: Limits =
        Limits { segments: 400_000, logs: 100_000, events: 60_000, states: 0, lines: 100_000 };

    fn core() -> Core {
        let goal = Goal::Attach { run: RunId("r".into()), hosts: vec!["a".into()] };
        Core::new(goal, Vec::new(), Timestamp(0))
    }

    fn ring(folder: &Path, limits: Limits, time: WallTime) -> Ring {
        Ring::new(folder.into(), limits, Timestamp(0), time).unwrap()
    }

    /// Text that no compression makes small.
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
    fn trace_2_the_ring_is_bounded_and_keeps_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let (mut core, mut ring) = (core(), ring(folder.path(), SMALL, 1000.0));
        for n in 0..4000u64 {
            let event = match n % 2 {
                0 => Event::Noticed { text: noise(n) },
                _ => {
                    let lines = (0..3).map(|line| noise(n * 3 + line)).collect();
                    let message =
                        Box::new(AgentMessage::Log { rank: Rank(0), first: n, lines, times: Vec::new() });
                    Event::AgentSaid { node: NodeRank(0), message }
                }
            };
            ring.event(Timestamp(n * 1000), &event, &core);
            core.handle(Timestamp(n * 1000), event);
        }
        ring.settle(Timestamp(4_000_000));
        let (segments, bytes) = size(folder.path(), false);
        assert!(segments > 2 && bytes < 2 * SMALL.segments, "{segments} segments, {bytes} bytes");
        let (logs, log_bytes) = size(folder.path(), true);
        assert!(logs >= 1 && log_bytes < 2 * SMALL.logs, "{logs} logs, {log_bytes} bytes");
        ring.finish();
        assert_eq!(ring.take_notices(), Vec::<String>::new());
        let record = Record::open(folder.path()).unwrap();
        assert_eq!(record.since(), ring.since().unwrap());
        assert!(record.since() > 3000.0, "the oldest are gone");
        let (model, end) = record.last().unwrap();
        assert_eq!(end, Timestamp(3_999_000));
        assert_eq!(model.history, core.model().history);
    }

    #[test]
    fn a_disk_that_fails_costs_a_hole_that_is_told_and_the_record_goes_on() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("record");
        std::fs::create_dir(&folder).unwrap();
        let limits = Limits { events: 100, ..SMALL };
        let (mut core, mut ring) = (core(), ring(&folder, limits, 0.0));
        let mut tell = |ring: &mut Ring, ms: u64| {
            let event = Event::Noticed { text: noise(ms) };
            ring.event(Timestamp(ms), &event, &core);
            core.handle(Timestamp(ms), event);
            ring.settle(Timestamp(ms));
            ring.take_notices()
        };
        assert!(tell(&mut ring, 1).is_empty());
        std::fs::remove_dir_all(&folder).unwrap();
        let told: Vec<String> = (2..60).flat_map(|ms| tell(&mut ring, ms * 10)).collect();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("the record pauses, the run goes on"), "{told:?}");
        std::fs::create_dir(&folder).unwrap();
        let told: Vec<String> = (1..5).flat_map(|n| tell(&mut ring, n * AGAIN_MS)).collect();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("the record goes on"), "{told:?}");
        ring.finish();
        let (model, _) = Record::open(&folder).unwrap().last().unwrap();
        assert_eq!(model.history, core.model().history, "the next segment holds all that the hole led to");
    }
}
