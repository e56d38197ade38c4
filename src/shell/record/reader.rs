//! Records read back: which segments there are, and the state at any moment.
//!
//! Opening reads the first line of each segment. A moment costs one segment, however long the record is.

use super::segments;
use rankdeck_core::Core;
use rankdeck_core::event::Event;
use rankdeck_core::model::Model;
use rankdeck_core::trace::{Header, LONGEST_HEADER, Reader, TraceError};
use rankdeck_types::ids::{Timestamp, WallTime};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use zstd::stream::read::Decoder;

/// Segments that are tried when one cannot be read: of a record of another build, none can.
pub const TRIES: usize = 4;

/// Entries of one segment, as they are unpacked.
pub type Events = Reader<UnpackedReader>;

/// Why a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The folder or a file of it.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What failed.
        error: io::Error,
    },
    /// What stands in it.
    #[error("{}: {error}", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: TraceError,
    },
    /// No segment is there.
    #[error("{}: no segment of a record is here", .0.display())]
    Empty(PathBuf),
}

/// Compressed bytes that may end anywhere.
pub struct UnpackedReader(Decoder<'static, BufReader<BufReader<File>>>);

impl Read for UnpackedReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // A file that is cut or damaged ends at its last whole block.
        Ok(self.0.read(into).unwrap_or(0))
    }
}

/// A record on disk.
#[derive(Debug)]
pub struct Record {
    folder: PathBuf,
    segments: Vec<(u32, Header)>,
}

fn open(path: &Path) -> Result<(Header, BufReader<File>), RecordError> {
    let failed = |error| RecordError::Io { path: path.to_owned(), error };
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
    let mut line = Vec::new();
    (&mut file).take(LONGEST_HEADER as u64).read_until(b'\n', &mut line).map_err(failed)?;
    let header = Header::parse(String::from_utf8_lossy(&line).trim_end());
    let header = header.map_err(|error| RecordError::Form { path: path.to_owned(), error })?;
    Ok((header, file))
}

fn unpack(path: &Path) -> Result<(Header, UnpackedReader), RecordError> {
    let (header, file) = open(path)?;
    let decoder = Decoder::new(file).map_err(|error| RecordError::Io { path: path.to_owned(), error })?;
    Ok((header, UnpackedReader(decoder)))
}

impl Record {
    /// The record in this folder.
    ///
    /// # Errors
    /// No segment can be read; the newest one's reason.
    pub fn open(folder: &Path) -> Result<Record, RecordError> {
        let mut record = Record { folder: folder.to_owned(), segments: Vec::new() };
        record.refresh()?;
        Ok(record)
    }

    /// Looks which segments have come and gone.
    ///
    /// # Errors
    /// As [`Record::open`].
    pub fn refresh(&mut self) -> Result<(), RecordError> {
        let failed = |error| RecordError::Io { path: self.folder.clone(), error };
        let names = std::fs::read_dir(&self.folder).map_err(failed)?.flatten().map(|entry| entry.path());
        let mut numbers: Vec<u32> = names
            .filter(|path| path.extension().is_some_and(|end| end == "seg"))
            .filter_map(|path| path.file_stem()?.to_str()?.parse().ok())
            .collect();
        numbers.sort_unstable();
        let (mut segments, mut wrong) = (Vec::with_capacity(numbers.len()), None);
        for number in numbers {
            // A segment never changes its head.
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

    /// How many segments there are.
    pub fn count(&self) -> usize {
        self.segments.len()
    }

    /// The segment with a moment, or the first.
    pub fn find(&self, at: Timestamp) -> usize {
        self.segments.partition_point(|(_, header)| header.start <= at).saturating_sub(1)
    }

    /// The head of a segment.
    pub fn header(&self, index: usize) -> Option<&Header> {
        self.segments.get(index).map(|(_, header)| header)
    }

    /// Number of a segment, which stays the same while older ones go.
    pub fn number(&self, index: usize) -> Option<u32> {
        self.segments.get(index).map(|(number, _)| *number)
    }

    /// The segment of that number, or the one that comes after it.
    pub fn index_of(&self, number: u32) -> usize {
        self.segments.partition_point(|(known, _)| *known < number)
    }

    /// Wall time at a moment.
    pub fn wall_time(&self, at: Timestamp) -> WallTime {
        self.header(self.find(at)).map_or(0.0, |header| header.wall_time(at))
    }

    /// The first moment.
    pub fn start(&self) -> Timestamp {
        self.header(0).map_or(Timestamp(0), |header| header.start)
    }

    /// Wall time of the first moment.
    pub fn since(&self) -> WallTime {
        self.header(0).map_or(0.0, |header| header.time)
    }

    /// The state at the head of a segment, and its events.
    ///
    /// # Errors
    /// It has gone meanwhile, or its state is not whole.
    pub fn segment(&self, index: usize) -> Result<(Core, Events), RecordError> {
        let Some((number, _)) = self.segments.get(index) else {
            return Err(RecordError::Empty(self.folder.clone()));
        };
        let path = segments::path(&self.folder, *number, false);
        let (header, events) = unpack(&path)?;
        let bursts = unpack(&segments::path(&self.folder, *number, true)).ok().map(|(_, bursts)| bursts);
        Reader::open(&header, events, bursts).map_err(|error| RecordError::Form { path, error })
    }

    /// The state at the end of the record, and when that was.
    ///
    /// # Errors
    /// No segment can be read.
    pub fn last(&self) -> Result<(Model, Timestamp), RecordError> {
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

    /// Every event that is kept, oldest first.
    pub fn events(&self) -> impl Iterator<Item = (Timestamp, Event)> + '_ {
        let segments = (0..self.segments.len()).filter_map(|index| self.segment(index).ok());
        segments.flat_map(|(_, mut events)| std::iter::from_fn(move || events.event()))
    }
}
