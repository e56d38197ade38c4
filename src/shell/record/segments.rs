//! Segments of a record on disk: a ring that is bounded in bytes and reaches to the end.
//!
//! `record/000001.seg` holds the state of the console at its first moment and every event after it,
//! `record/000001.log` the log lines that lie apart ([`rankdeck_core::trace`]). Both begin with the header as
//! a line of text; what follows is compressed (zstd) and flushed every second, so that a console that is
//! killed loses no more than that.
//!
//! Owner: [`super::Recorder`] writes, [`super::reader`] reads. Invariants:
//! - TRACE-2: segments and log lines have a bound each; the oldest go first, and the newest is always there.
//! - A disk that fails costs the record, never the run: a hole is told, and another segment is tried later.

use rankdeck_core::Core;
use rankdeck_core::event::Event;
use rankdeck_core::trace::{Header, Writer};
use rankdeck_types::ids::{Timestamp, WallTime};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use zstd::stream::write::Encoder;

/// Sizes of a record.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of all segments on disk.
    pub segments: u64,
    /// Bytes of all log lines that lie apart, on disk.
    pub logs: u64,
    /// Bytes of one segment's events before they are compressed: a moment is found by going through one
    /// segment.
    pub events: u64,
    /// They are at least so many times its state, so that states are a small part of the record.
    pub states: u64,
    /// Bytes of one segment's log lines before they are compressed.
    pub lines: u64,
}

/// The bounds of every record.
pub const LIMITS: Limits =
    Limits { segments: 512 << 20, logs: 64 << 20, events: 4 << 20, states: 4, lines: 16 << 20 };
/// After a failure of the disk, the next try comes after this.
const AGAIN_MS: u64 = 30_000;
/// A thousandth of a core for 32 ranks; more effort saves no more.
const LEVEL: i32 = 6;
/// From so many ranks on, a fifth of that effort does: the record is a tenth larger.
const MANY: (usize, i32) = (256, 1);

/// The ring of segments that a console writes.
#[derive(Debug)]
pub struct Ring {
    folder: PathBuf,
    limits: Limits,
    /// Wall time at a moment of the console's clock.
    wall: (Timestamp, WallTime),
    next: u32,
    open: Option<Segment>,
    kept: VecDeque<Kept>,
    /// Since when nothing is kept, and when to try again.
    hole: Option<Hole>,
    notices: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
struct Hole {
    since: Timestamp,
    again: Timestamp,
}

#[derive(Debug)]
struct Kept {
    number: u32,
    time: WallTime,
    bytes: u64,
    log_bytes: u64,
}

struct Segment {
    number: u32,
    time: WallTime,
    header: Header,
    writer: Writer,
    state: u64,
    events: Packed,
    log: Option<Packed>,
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Segment({})", self.number)
    }
}

/// A file that is compressed as it is written.
struct Packed {
    encoder: Encoder<'static, Counted>,
    raw: u64,
}

struct Counted {
    file: File,
    bytes: u64,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Packed {
    fn create(path: &Path, header: &Header, level: i32) -> io::Result<Packed> {
        let mut file = Counted { file: super::create(path)?, bytes: 0 };
        file.write_all(header.line().as_bytes())?;
        Ok(Packed { encoder: Encoder::new(file, level)?, raw: 0 })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.raw += bytes.len() as u64;
        self.encoder.write_all(bytes)
    }

    fn bytes(&self) -> u64 {
        self.encoder.get_ref().bytes
    }

    fn close(self) -> io::Result<u64> {
        Ok(self.encoder.finish()?.bytes)
    }
}

fn level(core: &Core) -> i32 {
    if core.model().ranks.len() < MANY.0 { LEVEL } else { MANY.1 }
}

/// The file of one segment's events, or of its log lines.
pub fn path(folder: &Path, number: u32, log: bool) -> PathBuf {
    folder.join(format!("{number:06}.{}", if log { "log" } else { "seg" }))
}

impl Ring {
    /// A ring in `folder`, which exists and is empty; `time` is the wall time at `now`.
    pub fn new(folder: PathBuf, limits: Limits, now: Timestamp, time: WallTime) -> Ring {
        let (kept, notices) = (VecDeque::new(), Vec::new());
        Ring { folder, limits, wall: (now, time), next: 1, open: None, kept, hole: None, notices }
    }

    /// Keeps an event that `core` is about to be told.
    pub fn event(&mut self, now: Timestamp, event: &Event, core: &Core) {
        if let Event::WallClock { time } = event {
            self.wall = (now, *time);
        }
        if self.hole.is_some_and(|hole| now < hole.again) {
            return;
        }
        if let Err(error) = self.try_event(now, event, core) {
            self.fail(now, &error);
        }
    }

    fn try_event(&mut self, now: Timestamp, event: &Event, core: &Core) -> io::Result<()> {
        if self.open.as_ref().is_some_and(|open| open.is_full(&self.limits)) {
            self.close()?;
        }
        let mut segment = match self.open.take() {
            Some(segment) => segment,
            None => self.begin(now, core)?,
        };
        let (entry, burst) = segment.writer.event(now, event);
        segment.events.write(&entry)?;
        if let Some(burst) = burst {
            let log = match segment.log.take() {
                Some(log) => log,
                None => {
                    Packed::create(&path(&self.folder, segment.number, true), &segment.header, level(core))?
                }
            };
            segment.log.insert(log).write(&burst)?;
        }
        self.open = Some(segment);
        Ok(())
    }

    fn begin(&mut self, now: Timestamp, core: &Core) -> io::Result<Segment> {
        let time = self.wall.1 + (now.0 as f64 - self.wall.0.0 as f64) / 1000.0;
        let (number, header) = (self.next, Header::new(now, time));
        self.next += 1;
        let mut events = Packed::create(&path(&self.folder, number, false), &header, level(core))?;
        let state = Writer::state(core, &mut events.encoder)?;
        events.raw = state;
        events.encoder.flush()?;
        if let Some(hole) = self.hole.take() {
            let ms = now.since(hole.since);
            let gone = rankdeck_types::words::duration_ms(ms);
            self.notices.push(format!("the record goes on; {gone} are missing from it"));
        }
        let writer = Writer::default();
        let segment = Segment { number, time, header, writer, state, events, log: None };
        self.trim(segment.events.bytes());
        Ok(segment)
    }

    /// Ends the open segment.
    fn close(&mut self) -> io::Result<()> {
        let Some(segment) = self.open.take() else { return Ok(()) };
        let (number, time) = (segment.number, segment.time);
        let bytes = segment.events.close()?;
        let log_bytes = segment.log.map(Packed::close).transpose()?.unwrap_or(0);
        self.kept.push_back(Kept { number, time, bytes, log_bytes });
        self.trim(0);
        Ok(())
    }

    /// Throws the oldest away until the rest fits beside `more` bytes.
    fn trim(&mut self, more: u64) {
        let mut bytes = more + self.kept.iter().map(|kept| kept.bytes).sum::<u64>();
        while bytes > self.limits.segments && self.kept.len() > 1 {
            let Some(oldest) = self.kept.pop_front() else { break };
            bytes -= oldest.bytes;
            self.remove(oldest.number, false);
            self.remove(oldest.number, true);
        }
        let mut lines = self.kept.iter().map(|kept| kept.log_bytes).sum::<u64>();
        let oldest: Vec<u32> = self
            .kept
            .iter_mut()
            .filter(|kept| kept.log_bytes > 0)
            .map_while(|kept| {
                let over = lines > self.limits.logs;
                lines -= if over { std::mem::take(&mut kept.log_bytes) } else { 0 };
                over.then_some(kept.number)
            })
            .collect();
        oldest.into_iter().for_each(|number| self.remove(number, true));
    }

    fn remove(&self, number: u32, log: bool) {
        let path = path(&self.folder, number, log);
        if let Err(error) = std::fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("failed to remove {}: {error}", path.display());
        }
    }

    /// Writes out what is held back.
    pub fn flush(&mut self, now: Timestamp) {
        let Some(open) = &mut self.open else { return };
        let flushed = open.events.encoder.flush();
        let flushed = flushed.and_then(|()| open.log.as_mut().map_or(Ok(()), |log| log.encoder.flush()));
        if let Err(error) = flushed {
            self.fail(now, &error);
        }
    }

    /// Ends the record.
    pub fn finish(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!("failed to end the record: {error}");
        }
    }

    fn fail(&mut self, now: Timestamp, error: &io::Error) {
        tracing::error!("failed to record: {error}");
        if let Some(open) = self.open.take() {
            // It ends here; the part that was written stays, and counts.
            let (bytes, log_bytes) = (open.events.bytes(), open.log.as_ref().map_or(0, Packed::bytes));
            self.kept.push_back(Kept { number: open.number, time: open.time, bytes, log_bytes });
        }
        if self.hole.is_none() {
            let folder = self.folder.display();
            self.notices.push(format!("the record pauses, the run goes on: {folder}: {error}"));
        }
        let since = self.hole.map_or(now, |hole| hole.since);
        self.hole = Some(Hole { since, again: now.plus(AGAIN_MS) });
    }

    /// What the user should know, once.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// Wall time of the oldest moment kept.
    pub fn since(&self) -> Option<WallTime> {
        self.kept.front().map(|kept| kept.time).or(self.open.as_ref().map(|open| open.time))
    }

    /// Bytes on disk.
    pub fn bytes(&self) -> u64 {
        let open = self.open.as_ref();
        let open = open.map_or(0, |open| open.events.bytes() + open.log.as_ref().map_or(0, Packed::bytes));
        open + self.kept.iter().map(|kept| kept.bytes + kept.log_bytes).sum::<u64>()
    }

    /// Where the segments are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Segment {
    fn is_full(&self, limits: &Limits) -> bool {
        let events = self.events.raw - self.state;
        let lines = self.log.as_ref().map_or(0, |log| log.raw);
        events >= limits.events.max(limits.states * self.state) || lines >= limits.lines
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
        let (mut core, mut ring) = (core(), Ring::new(folder.path().into(), SMALL, Timestamp(0), 1000.0));
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
        let (mut core, mut ring) = (core(), Ring::new(folder.clone(), limits, Timestamp(0), 0.0));
        let mut tell = |ring: &mut Ring, ms: u64| {
            let event = Event::Noticed { text: noise(ms) };
            ring.event(Timestamp(ms), &event, &core);
            core.handle(Timestamp(ms), event);
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
