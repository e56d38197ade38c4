//! Finds recordings and reads them: their segments, and the state at any position.
//!
//! Opening reads the first line of each segment. Seeking costs one segment, however long the recording is.

use super::{RECORD, segments};
use rankdeck_core::Core;
#[cfg(test)]
use rankdeck_core::event::Event;
use rankdeck_core::model::Model;
use rankdeck_core::trace::{LONGEST_HEADER, SegmentHeader, SegmentReader, TraceError};
use rankdeck_proto::regular;
use rankdeck_types::ids::{Timestamp, WallTime};
use rankdeck_types::quote;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use zstd::stream::read::Decoder;

/// Segments that are tried when one cannot be read: of a recording of another build, none can.
pub(crate) const TRIES: usize = 4;

/// Entries of one segment.
pub(crate) type SegmentEvents = SegmentReader<UnpackedReader>;

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    /// The directory or one of its files.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What failed.
        error: io::Error,
    },
    /// The content of a file.
    #[error("{}: {error}", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: TraceError,
    },
    /// There is no segment.
    #[error("{}: no recording segments", .0.display())]
    Empty(PathBuf),
}

/// Compressed bytes that may end anywhere.
pub(crate) struct UnpackedReader(Decoder<'static, BufReader<BufReader<File>>>);

impl Read for UnpackedReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // A truncated or damaged file ends at its last complete block.
        Ok(self.0.read(into).unwrap_or(0))
    }
}

/// A recording on disk.
#[derive(Debug)]
pub(crate) struct Recording {
    folder: PathBuf,
    segments: Vec<(u32, SegmentHeader)>,
}

fn open(path: &Path) -> Result<(SegmentHeader, BufReader<File>), RecordError> {
    let failed = |error| RecordError::Io { path: path.to_owned(), error };
    let mut file = BufReader::new(regular::open(path).map_err(failed)?);
    let mut line = Vec::new();
    (&mut file).take(LONGEST_HEADER as u64).read_until(b'\n', &mut line).map_err(failed)?;
    let header = SegmentHeader::parse(String::from_utf8_lossy(&line).trim_end());
    let header = header.map_err(|error| RecordError::Form { path: path.to_owned(), error })?;
    Ok((header, file))
}

fn unpack(path: &Path) -> Result<(SegmentHeader, UnpackedReader), RecordError> {
    let (header, file) = open(path)?;
    let decoder = Decoder::new(file).map_err(|error| RecordError::Io { path: path.to_owned(), error })?;
    Ok((header, UnpackedReader(decoder)))
}

impl Recording {
    /// Opens the recording in this directory.
    ///
    /// # Errors
    /// No segment can be read; the reason of the newest one.
    pub(crate) fn open(folder: &Path) -> Result<Recording, RecordError> {
        let mut record = Recording { folder: folder.to_owned(), segments: Vec::new() };
        record.refresh()?;
        Ok(record)
    }

    /// Updates the list of segments.
    ///
    /// # Errors
    /// As [`Recording::open`].
    pub(crate) fn refresh(&mut self) -> Result<(), RecordError> {
        let failed = |error| RecordError::Io { path: self.folder.clone(), error };
        let names = std::fs::read_dir(&self.folder).map_err(failed)?.flatten().map(|entry| entry.path());
        let mut numbers: Vec<u32> = names
            .filter(|path| path.extension().is_some_and(|end| end == "seg"))
            .filter_map(|path| path.file_stem()?.to_str()?.parse().ok())
            .collect();
        numbers.sort_unstable();
        let (mut segments, mut wrong) = (Vec::with_capacity(numbers.len()), None);
        for number in numbers {
            // The header of a segment never changes.
            if let Ok(known) = self.segments.binary_search_by_key(&number, |(number, _)| *number) {
                segments.push(self.segments[known].clone());
                continue;
            }
            match open(&segments::path(&self.folder, number, false)) {
                Ok((header, _)) => segments.push((number, header)),
                Err(error) => wrong = Some(error),
            }
        }
        if segments.is_empty() {
            return Err(wrong.unwrap_or_else(|| RecordError::Empty(self.folder.clone())));
        }
        self.segments = segments;
        Ok(())
    }

    /// The number of segments.
    pub(crate) fn count(&self) -> usize {
        self.segments.len()
    }

    /// Returns the segment of a position, or the first.
    pub(crate) fn find(&self, at: Timestamp) -> usize {
        self.segments.partition_point(|(_, header)| header.start <= at).saturating_sub(1)
    }

    /// The header of a segment.
    pub(crate) fn header(&self, index: usize) -> Option<&SegmentHeader> {
        self.segments.get(index).map(|(_, header)| header)
    }

    /// Number of a segment, which stays the same while older ones are deleted.
    pub(crate) fn number(&self, index: usize) -> Option<u32> {
        self.segments.get(index).map(|(number, _)| *number)
    }

    /// Returns the segment with that number, or the next one.
    pub(crate) fn index_of(&self, number: u32) -> usize {
        self.segments.partition_point(|(known, _)| *known < number)
    }

    /// Wall time at a position.
    pub(crate) fn wall_time(&self, at: Timestamp) -> WallTime {
        self.header(self.find(at)).map_or(0.0, |header| header.wall_time(at))
    }

    /// The first position.
    pub(crate) fn start(&self) -> Timestamp {
        self.header(0).map_or(Timestamp(0), |header| header.start)
    }

    /// Wall time of the first position.
    #[cfg(test)]
    pub(crate) fn since(&self) -> WallTime {
        self.header(0).map_or(0.0, |header| header.time)
    }

    /// Returns the state at the start of a segment, and its events.
    ///
    /// # Errors
    /// The segment was deleted, or its state is incomplete.
    pub(crate) fn segment(&self, index: usize) -> Result<(Core, SegmentEvents), RecordError> {
        let Some((number, _)) = self.segments.get(index) else {
            return Err(RecordError::Empty(self.folder.clone()));
        };
        let path = segments::path(&self.folder, *number, false);
        let (header, events) = unpack(&path)?;
        let bursts = unpack(&segments::path(&self.folder, *number, true)).ok().map(|(_, bursts)| bursts);
        SegmentReader::open(&header, events, bursts).map_err(|error| RecordError::Form { path, error })
    }

    /// Returns the state at the end of the recording, and its time.
    ///
    /// # Errors
    /// No segment can be read.
    pub(crate) fn last(&self) -> Result<(Model, Timestamp), RecordError> {
        let mut wrong = RecordError::Empty(self.folder.clone());
        for index in (0..self.segments.len()).rev().take(TRIES) {
            match self.segment(index) {
                Ok((mut core, mut events)) => {
                    let mut end = self.segments[index].1.start;
                    while let Some((at, event)) = events.event() {
                        core.handle(at, event);
                        end = at;
                    }
                    return Ok((core.model().clone(), end));
                }
                Err(error) => wrong = error,
            }
        }
        Err(wrong)
    }

    /// Iterates over all recorded events, oldest first.
    #[cfg(test)]
    pub(crate) fn events(&self) -> impl Iterator<Item = (Timestamp, Event)> + '_ {
        let segments = (0..self.segments.len()).filter_map(|index| self.segment(index).ok());
        segments.flat_map(|(_, mut events)| std::iter::from_fn(move || events.event()))
    }
}

/// A run with at least one recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordedRun {
    pub(crate) name: String,
    /// Directory of the recording that was written last.
    pub(crate) record: PathBuf,
    /// When it was last written.
    pub(crate) written: SystemTime,
    /// The path by which it was found, if any.
    pub(crate) path: Option<PathBuf>,
}

impl RecordedRun {
    /// How it is named on a command line.
    pub(crate) fn typed(&self) -> String {
        self.path.as_ref().map_or_else(|| self.name.clone(), |path| quote::word(&path.to_string_lossy()))
    }
}

/// Returns the recording of a directory that is a recording, a console's directory or a run's; of several
/// consoles, the one written last.
pub(crate) fn record_of(folder: &Path) -> Option<(PathBuf, SystemTime)> {
    let consoles = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path().join(RECORD));
    let candidates = [folder.to_owned(), folder.join(RECORD)].into_iter().chain(consoles);
    let dated = candidates.filter_map(|record| Some((newest_segment(&record)?, record)));
    dated.max().map(|(written, record)| (record, written))
}

fn newest_segment(folder: &Path) -> Option<SystemTime> {
    let files = std::fs::read_dir(folder).ok()?.flatten();
    let segments = files.filter(|file| file.path().extension().is_some_and(|end| end == "seg"));
    segments.filter_map(|file| file.metadata().ok()?.modified().ok()).max()
}

/// Returns the runs with a recording in `runs`, newest first.
pub(crate) fn list(runs: &Path) -> Vec<RecordedRun> {
    let entries = std::fs::read_dir(runs).into_iter().flatten().flatten();
    let mut found: Vec<RecordedRun> = entries
        .filter_map(|entry| {
            let (record, written) = record_of(&entry.path())?;
            Some(RecordedRun { name: entry.file_name().into_string().ok()?, record, written, path: None })
        })
        .collect();
    found.sort_by(|a, b| b.written.cmp(&a.written).then_with(|| a.name.cmp(&b.name)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recording_is_named_as_it_was_found() {
        let recorded = |path: Option<&str>| RecordedRun {
            name: "cart-1".into(),
            record: PathBuf::new(),
            written: SystemTime::UNIX_EPOCH,
            path: path.map(PathBuf::from),
        };
        assert_eq!(recorded(None).typed(), "cart-1");
        assert_eq!(recorded(Some("/tmp/runs/cart-1")).typed(), "/tmp/runs/cart-1");
        assert_eq!(recorded(Some("my runs/cart-1")).typed(), "'my runs/cart-1'");
    }

    #[test]
    fn newest_recording_of_a_run_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let first = folder.path().join("cart-1/console").join(RECORD);
        std::fs::create_dir_all(&first).unwrap();
        std::fs::write(first.join("000001.seg"), "").unwrap();
        let later = folder.path().join("cart-1/console-2").join(RECORD);
        std::fs::create_dir_all(&later).unwrap();
        let segment = std::fs::File::create(later.join("000001.seg")).unwrap();
        segment.set_modified(SystemTime::now() + std::time::Duration::from_secs(60)).unwrap();
        assert_eq!(list(folder.path())[0].record, later);
        for path in ["cart-1", "cart-1/console-2", "cart-1/console-2/record"] {
            assert_eq!(record_of(&folder.path().join(path)).unwrap().0, later, "{path}");
        }
    }
}
