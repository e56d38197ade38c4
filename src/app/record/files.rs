//! The files of a recording, owned by the writer thread: segments, whose encoded entries are compressed,
//! written, and deleted when old (TRACE-2), and the reports of a console in `events.jsonl` (REC-1).

use rankdeck_core::report::Report;
use rankdeck_core::trace::{ConsoleSnapshot, SegmentHeader};
use rankdeck_types::ids::WallTime;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use zstd::stream::write::Encoder;

/// Size limits of a recording.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordingLimits {
    /// Bytes of all segments on disk.
    pub(crate) segments: u64,
    /// Bytes of all separate log lines on disk.
    pub(crate) logs: u64,
    /// Bytes of one segment's events before compression: seeking reads one segment.
    pub(crate) events: u64,
    /// Events of a segment are at least this many times its state, so that states are a small part.
    pub(crate) states: u64,
    /// Bytes of one segment's log lines before compression.
    pub(crate) lines: u64,
}

/// The limits of every recording.
pub(crate) const LIMITS: RecordingLimits =
    RecordingLimits { segments: 512 << 20, logs: 64 << 20, events: 4 << 20, states: 4, lines: 16 << 20 };
/// Most bytes of `events.jsonl`, and of `events-old.jsonl`.
const EVENT_BYTES: u64 = 32 << 20;
/// Where a full `events.jsonl` is moved.
const OLD_EVENTS: &str = "events-old.jsonl";

/// The start of a segment.
#[derive(Debug)]
pub(crate) struct SegmentStart {
    pub(crate) number: u32,
    pub(crate) header: SegmentHeader,
    pub(crate) level: i32,
    pub(crate) state: ConsoleSnapshot,
}

/// The files of one recording.
#[derive(Debug)]
pub(crate) struct SegmentFiles {
    folder: PathBuf,
    limits: RecordingLimits,
    open: Option<SegmentFile>,
    kept: VecDeque<SegmentInfo>,
}

#[derive(Debug)]
struct SegmentInfo {
    number: u32,
    time: WallTime,
    bytes: u64,
    log_bytes: u64,
}

struct SegmentFile {
    number: u32,
    header: SegmentHeader,
    level: i32,
    events: CompressedFile,
    log: Option<CompressedFile>,
}

impl std::fmt::Debug for SegmentFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Segment({})", self.number)
    }
}

/// A file that is compressed while it is written.
struct CompressedFile {
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

impl CompressedFile {
    fn create(path: &Path, header: &SegmentHeader, level: i32) -> io::Result<CompressedFile> {
        let mut file = CountedFile { file: super::create(path)?, bytes: 0 };
        file.write_all(header.line().as_bytes())?;
        Ok(CompressedFile { encoder: Encoder::new(file, level)? })
    }

    fn bytes(&self) -> u64 {
        self.encoder.get_ref().bytes
    }

    fn close(self) -> io::Result<u64> {
        Ok(self.encoder.finish()?.bytes)
    }
}

/// The file of one segment's events, or of its log lines.
pub(crate) fn path(folder: &Path, number: u32, log: bool) -> PathBuf {
    folder.join(format!("{number:06}.{}", if log { "log" } else { "seg" }))
}

impl SegmentFiles {
    /// A recording in `folder`, which exists and is empty.
    pub(crate) fn new(folder: PathBuf, limits: RecordingLimits) -> SegmentFiles {
        SegmentFiles { folder, limits, open: None, kept: VecDeque::new() }
    }

    /// Ends the open segment and starts the next one.
    pub(crate) fn begin(&mut self, begin: SegmentStart) -> io::Result<()> {
        self.close()?;
        let SegmentStart { number, header, level, state } = begin;
        let file = path(&self.folder, number, false);
        let mut events = CompressedFile::create(&file, &header, level)?;
        if let Err(error) = state.write_to(&mut events.encoder).and_then(|()| events.encoder.flush()) {
            // Without a complete state the segment is useless, and a full disk needs the space.
            self.remove(number, false);
            return Err(error);
        }
        self.trim(events.bytes());
        self.open = Some(SegmentFile { number, header, level, events, log: None });
        Ok(())
    }

    /// Writes entries to the open segment. Without one they are lost, after a failure that was reported.
    pub(crate) fn write(&mut self, entries: &[u8], bursts: &[u8]) -> io::Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        open.events.encoder.write_all(entries)?;
        if bursts.is_empty() {
            return Ok(());
        }
        let log = match open.log.take() {
            Some(log) => log,
            None => CompressedFile::create(&path(&self.folder, open.number, true), &open.header, open.level)?,
        };
        open.log.insert(log).encoder.write_all(bursts)
    }

    /// Writes out buffered data.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        open.events.encoder.flush()?;
        open.log.as_mut().map_or(Ok(()), |log| log.encoder.flush())
    }

    /// Ends the open segment.
    pub(crate) fn close(&mut self) -> io::Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let (number, time) = (open.number, open.header.time);
        let bytes = open.events.close()?;
        let log_bytes = open.log.map(CompressedFile::close).transpose()?.unwrap_or(0);
        self.kept.push_back(SegmentInfo { number, time, bytes, log_bytes });
        self.trim(0);
        Ok(())
    }

    /// Closes the open segment after a failure; the written part stays and counts.
    pub(crate) fn give_up(&mut self) {
        if let Some(open) = self.open.take() {
            let (bytes, log_bytes) =
                (open.events.bytes(), open.log.as_ref().map_or(0, CompressedFile::bytes));
            self.kept.push_back(SegmentInfo {
                number: open.number,
                time: open.header.time,
                bytes,
                log_bytes,
            });
        }
    }

    /// Deletes the oldest segments until the rest fits with `more` bytes.
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

    /// Wall time of the oldest recorded position.
    pub(crate) fn since(&self) -> Option<WallTime> {
        self.kept.front().map(|kept| kept.time).or(self.open.as_ref().map(|open| open.header.time))
    }

    /// Bytes on disk.
    pub(crate) fn bytes(&self) -> u64 {
        let open = self.open.as_ref();
        let open =
            open.map_or(0, |open| open.events.bytes() + open.log.as_ref().map_or(0, CompressedFile::bytes));
        open + self.kept.iter().map(|kept| kept.bytes + kept.log_bytes).sum::<u64>()
    }
}

/// `events.jsonl` and the file before it.
#[derive(Debug)]
pub(crate) struct ReportJournal {
    path: PathBuf,
    file: BufWriter<File>,
    bytes: u64,
    lines: u64,
    /// Lines of the older file.
    old_lines: u64,
    /// Lines that no file contains any more.
    lost: u64,
    failed: Option<String>,
}

impl ReportJournal {
    /// Creates the file.
    pub(crate) fn new(path: &Path) -> io::Result<ReportJournal> {
        Ok(ReportJournal {
            path: path.to_owned(),
            file: BufWriter::new(super::create(path)?),
            bytes: 0,
            lines: 0,
            old_lines: 0,
            lost: 0,
            failed: None,
        })
    }

    /// Writes a report.
    pub(crate) fn report(&mut self, report: &Report) {
        if let Ok(line) = serde_json::to_string(report) {
            self.write(&line, EVENT_BYTES);
        }
    }

    fn write(&mut self, line: &str, most: u64) {
        if self.failed.is_some() {
            self.lost += 1;
            return;
        }
        if self.bytes > 0 && self.bytes + line.len() as u64 >= most {
            let turned = self.turn();
            self.keep(turned);
        }
        self.bytes += line.len() as u64 + 1;
        self.lines += 1;
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.write_all(b"\n"));
        self.keep(written);
    }

    /// Starts a new file; the full one replaces the older one.
    fn turn(&mut self) -> io::Result<()> {
        self.file.flush()?;
        std::fs::rename(&self.path, self.path.with_file_name(OLD_EVENTS))?;
        self.file = BufWriter::new(super::create(&self.path)?);
        self.lost += self.old_lines;
        (self.old_lines, self.lines, self.bytes) = (self.lines, 0, 0);
        Ok(())
    }

    /// Reports that no file contains any more.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Writes out buffered data.
    pub(crate) fn flush(&mut self) {
        let flushed = self.file.flush();
        self.keep(flushed);
    }

    fn keep(&mut self, result: io::Result<()>) {
        if let Err(error) = result
            && self.failed.is_none()
        {
            tracing::error!("recording failed and stopped: {error}");
            self.failed = Some(error.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rec_1_journal_keeps_its_end_and_counts_losses() {
        let runs = tempfile::tempdir().unwrap();
        let path = runs.path().join("events.jsonl");
        let mut journal = ReportJournal::new(&path).unwrap();
        (0..100).for_each(|i| journal.write(&format!("report {i:03}"), 300));
        journal.flush();
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        let (old, new) = (read(&path.with_file_name(OLD_EVENTS)), read(&path));
        assert!(old.len() <= 300 && new.len() <= 300 && !new.is_empty());
        let kept: Vec<&str> = old.lines().chain(new.lines()).collect();
        assert_eq!(kept.last(), Some(&"report 099"));
        let lost = 100 - kept.len();
        assert_eq!(kept[0], format!("report {lost:03}"), "no gap");
        assert_eq!(journal.lost(), lost as u64);
    }
}
