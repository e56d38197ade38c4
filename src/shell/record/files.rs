//! The files of a record, as the thread that writes them has them: what is encoded already is compressed,
//! written, and thrown away when it is old (TRACE-2).

use rankdeck_core::trace::{Header, State};
use rankdeck_types::ids::WallTime;
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
/// The beginning of a segment.
#[derive(Debug)]
pub(super) struct SegmentStart {
    pub number: u32,
    pub header: Header,
    pub level: i32,
    pub state: State,
}

/// The files of one record.
#[derive(Debug)]
pub(super) struct Files {
    folder: PathBuf,
    limits: Limits,
    open: Option<Segment>,
    kept: VecDeque<KeptSegment>,
}

#[derive(Debug)]
struct KeptSegment {
    number: u32,
    time: WallTime,
    bytes: u64,
    log_bytes: u64,
}

struct Segment {
    number: u32,
    header: Header,
    level: i32,
    events: PackedFile,
    log: Option<PackedFile>,
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Segment({})", self.number)
    }
}

/// A file that is compressed as it is written.
struct PackedFile {
    encoder: Encoder<'static, CountedFile>,
}

struct CountedFile {
    file: File,
    bytes: u64,
}

impl Write for CountedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl PackedFile {
    fn create(path: &Path, header: &Header, level: i32) -> io::Result<PackedFile> {
        let mut file = CountedFile { file: super::create(path)?, bytes: 0 };
        file.write_all(header.line().as_bytes())?;
        Ok(PackedFile { encoder: Encoder::new(file, level)? })
    }

    fn bytes(&self) -> u64 {
        self.encoder.get_ref().bytes
    }

    fn close(self) -> io::Result<u64> {
        Ok(self.encoder.finish()?.bytes)
    }
}

/// The file of one segment's events, or of its log lines.
pub fn path(folder: &Path, number: u32, log: bool) -> PathBuf {
    folder.join(format!("{number:06}.{}", if log { "log" } else { "seg" }))
}

impl Files {
    /// A record in `folder`, which exists and is empty.
    pub fn new(folder: PathBuf, limits: Limits) -> Files {
        Files { folder, limits, open: None, kept: VecDeque::new() }
    }

    /// Ends the open segment and begins the next one.
    pub fn begin(&mut self, begin: SegmentStart) -> io::Result<()> {
        self.close()?;
        let SegmentStart { number, header, level, state } = begin;
        let file = path(&self.folder, number, false);
        let mut events = PackedFile::create(&file, &header, level)?;
        if let Err(error) = state.write_to(&mut events.encoder).and_then(|()| events.encoder.flush()) {
            // Without a whole state it is of no use, and a full disk needs its room.
            self.remove(number, false);
            return Err(error);
        }
        self.trim(events.bytes());
        self.open = Some(Segment { number, header, level, events, log: None });
        Ok(())
    }

    /// Writes entries to the open segment. Without one they are lost: they follow a failure that was told.
    pub fn write(&mut self, entries: &[u8], bursts: &[u8]) -> io::Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        open.events.encoder.write_all(entries)?;
        if bursts.is_empty() {
            return Ok(());
        }
        let log = match open.log.take() {
            Some(log) => log,
            None => PackedFile::create(&path(&self.folder, open.number, true), &open.header, open.level)?,
        };
        open.log.insert(log).encoder.write_all(bursts)
    }

    /// Writes out what is held back.
    pub fn flush(&mut self) -> io::Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        open.events.encoder.flush()?;
        open.log.as_mut().map_or(Ok(()), |log| log.encoder.flush())
    }

    /// Ends the open segment.
    pub fn close(&mut self) -> io::Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let (number, time) = (open.number, open.header.time);
        let bytes = open.events.close()?;
        let log_bytes = open.log.map(PackedFile::close).transpose()?.unwrap_or(0);
        self.kept.push_back(KeptSegment { number, time, bytes, log_bytes });
        self.trim(0);
        Ok(())
    }

    /// Nothing more goes into the open segment; the part that was written stays, and counts.
    pub fn give_up(&mut self) {
        if let Some(open) = self.open.take() {
            let (bytes, log_bytes) = (open.events.bytes(), open.log.as_ref().map_or(0, PackedFile::bytes));
            self.kept.push_back(KeptSegment {
                number: open.number,
                time: open.header.time,
                bytes,
                log_bytes,
            });
        }
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

    /// Wall time of the oldest moment kept.
    pub fn since(&self) -> Option<WallTime> {
        self.kept.front().map(|kept| kept.time).or(self.open.as_ref().map(|open| open.header.time))
    }

    /// Bytes on disk.
    pub fn bytes(&self) -> u64 {
        let open = self.open.as_ref();
        let open =
            open.map_or(0, |open| open.events.bytes() + open.log.as_ref().map_or(0, PackedFile::bytes));
        open + self.kept.iter().map(|kept| kept.bytes + kept.log_bytes).sum::<u64>()
    }
}
