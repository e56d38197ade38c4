//! Weights & Biases' run files (`run-ID.wandb`), which its process writes online and offline. Reads the rows of the
//! history, nothing else.
//!
//! A file has a header of seven bytes, then LevelDB's log format: blocks of 32 KiB, in each records of checksum (u32,
//! CRC-32 of type and data), length (u16) and type (u8: 1 whole, 2 first part, 3 middle part, 4 last part), all
//! little-endian. A record begins nowhere in the last six bytes of a block, which are zero. The data is a protobuf message
//! `Record { history = 2 { item = 1 { key = 1, nested_key = 2 (repeated), value_json = 16 }, step = 2 { num = 1 } } }`.
//!
//! Invariants:
//! - WANDB-1: reading never panics, and keeps at most [`MOST`] bytes of a record, whatever the file holds.
//! - An incomplete record is read again later; a wrong checksum ends the file.

use crate::printed;
use crate::tfrecord::{Content, fields};

/// Longest history record that is read, bytes.
pub const MOST: usize = 4 << 20;
/// Bytes of a block.
const BLOCK: u64 = 32 << 10;
/// Bytes before a record's data.
const HEAD: usize = 7;
/// The first bytes of a file: name, magic number, version 0.
const HEADER: [u8; HEAD] = [b':', b'W', b'&', b'B', 0xe1, 0xbe, 0];
/// Most values of a row.
const VALUES: usize = 1024;

/// A row of the history.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HistoryRow {
    /// W&B's own step: the number of the `log` call, or the `step` that was passed.
    pub step: Option<u64>,
    /// Names and values, W&B's own (`_runtime`, `_timestamp`) left out.
    pub values: Vec<(String, f64)>,
}

/// The place up to which a file has been read, always between two records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFileReader {
    at: u64,
    /// Parts of a record whose rest has not come; `None` if it is too long, or began before the first byte read.
    parts: Option<Vec<u8>>,
}

impl RunFileReader {
    /// A reader that begins at byte `at`; 0 or the length of a file.
    pub fn new(at: u64) -> RunFileReader {
        RunFileReader { at, parts: None }
    }

    /// The next byte to read.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Reads the whole records at the start of `bytes`, which begin at [`RunFileReader::at`]. Returns `false` if this is
    /// not, or no longer, a run file.
    pub fn read(&mut self, bytes: &[u8], mut each: impl FnMut(HistoryRow)) -> bool {
        let mut rest = bytes;
        if self.at == 0 {
            let Some(head) = rest.first_chunk::<HEAD>() else { return true };
            if *head != HEADER {
                return false;
            }
            rest = self.skip(rest, HEAD);
        }
        loop {
            let left = (BLOCK - self.at % BLOCK) as usize;
            if left < HEAD {
                if rest.len() < left {
                    return true;
                }
                rest = self.skip(rest, left);
                continue;
            }
            let Some(head) = rest.first_chunk::<HEAD>() else { return true };
            let [a, b, c, d, low, high, kind] = *head;
            let length = usize::from(u16::from_le_bytes([low, high]));
            if length + HEAD > left || !(1..=4).contains(&kind) {
                return false;
            }
            let Some(data) = rest.get(HEAD..HEAD + length) else { return true };
            if crc32(kind, data) != u32::from_le_bytes([a, b, c, d]) {
                return false;
            }
            match kind {
                1 => {
                    self.parts = None;
                    row(data).into_iter().for_each(&mut each);
                }
                2 => self.parts = Some(data.to_vec()),
                _ => {
                    if let Some(parts) = &mut self.parts {
                        parts.extend_from_slice(data);
                    }
                    self.parts.take_if(|parts| parts.len() > MOST);
                    if kind == 4 {
                        let whole = self.parts.take();
                        whole.and_then(|whole| row(&whole)).into_iter().for_each(&mut each);
                    }
                }
            }
            rest = self.skip(rest, HEAD + length);
        }
    }

    fn skip<'a>(&mut self, bytes: &'a [u8], count: usize) -> &'a [u8] {
        self.at += count as u64;
        bytes.get(count..).unwrap_or_default()
    }
}

/// Returns the row of a record; `None` for other records, and for one without numbers.
pub fn row(record: &[u8]) -> Option<HistoryRow> {
    let history = fields(record)?.into_iter().find_map(|(field, content)| match (field, content) {
        (2, Content::Bytes(history)) => Some(history),
        _ => None,
    })?;
    let mut row = HistoryRow::default();
    for (field, content) in fields(history)? {
        match (field, content) {
            (1, Content::Bytes(bytes)) if row.values.len() < VALUES => {
                item(bytes, &mut row);
                row.values.truncate(VALUES);
            }
            (2, Content::Bytes(step)) => {
                // Protobuf leaves out a zero.
                let number = fields(step)?.into_iter().find_map(|(field, content)| match (field, content) {
                    (1, Content::Varint(number)) => Some(number),
                    _ => None,
                });
                row.step = Some(number.unwrap_or_default());
            }
            _ => {}
        }
    }
    (!row.values.is_empty()).then_some(row)
}

/// Adds the numbers of an item: its value, or those inside of it.
fn item(bytes: &[u8], row: &mut HistoryRow) {
    let (mut key, mut nested, mut json) = ("", Vec::new(), "");
    for (field, content) in fields(bytes).unwrap_or_default() {
        let Content::Bytes(text) = content else { continue };
        let text = std::str::from_utf8(text).unwrap_or_default();
        match field {
            1 => key = text,
            2 => nested.push(text),
            16 => json = text,
            _ => {}
        }
    }
    let name = if key.is_empty() { nested.join("/") } else { key.to_owned() };
    if name == "_step" {
        row.step = row.step.or(json.trim().parse().ok());
    }
    if name.is_empty() || name.starts_with('_') {
        return;
    }
    match json.trim() {
        // A chart or a picture: its numbers are sizes.
        object if object.starts_with('{') && object.contains("\"_type\"") => {}
        object if object.starts_with('{') => {
            let inside = printed::object(object).into_iter();
            row.values.extend(inside.map(|(part, value)| (format!("{name}/{part}"), value)));
        }
        number => row.values.extend(value(number).map(|value| (name, value))),
    }
}

/// A number in JSON, or one that W&B writes as a text because JSON lacks it.
fn value(json: &str) -> Option<f64> {
    match json.trim_matches('"') {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ => json.parse().ok(),
    }
}

/// Returns the CRC-32 (reflected polynomial 0xedb88320) of a record's type and data.
fn crc32(kind: u8, data: &[u8]) -> u32 {
    let bytes = std::iter::once(&kind).chain(data);
    !bytes.fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}

/// Writes run files: rows of names and JSON values, with their steps.
#[cfg(test)]
mod testing {
    use super::{BLOCK, HEAD, HEADER, crc32};
    use crate::tfrecord::{field_bytes, varint};

    /// A run file as far as it is written.
    #[derive(Debug, Clone)]
    pub struct RunFile {
        /// Its bytes.
        pub bytes: Vec<u8>,
    }

    impl Default for RunFile {
        fn default() -> RunFile {
            RunFile { bytes: HEADER.to_vec() }
        }
    }

    impl RunFile {
        /// Appends a row of the history.
        pub fn row(&mut self, step: u64, items: &[(&str, &str)]) {
            let (mut history, mut number) = (Vec::new(), Vec::new());
            for (name, json) in items {
                let mut item = Vec::new();
                // A name with dots is a path.
                match name.split('.').collect::<Vec<_>>().as_slice() {
                    [name] => field_bytes(&mut item, 1, name.as_bytes()),
                    parts => parts.iter().for_each(|part| field_bytes(&mut item, 2, part.as_bytes())),
                }
                field_bytes(&mut item, 16, json.as_bytes());
                field_bytes(&mut history, 1, &item);
            }
            if step > 0 {
                varint(&mut number, 1 << 3);
                varint(&mut number, step);
            }
            field_bytes(&mut history, 2, &number);
            self.record(2, &history);
        }

        /// Appends a record with one field.
        pub fn record(&mut self, field: u64, content: &[u8]) {
            let mut data = Vec::new();
            varint(&mut data, 1 << 3);
            varint(&mut data, 7);
            field_bytes(&mut data, field, content);
            let mut rest = data.as_slice();
            let mut is_first = true;
            loop {
                let left = (BLOCK - self.bytes.len() as u64 % BLOCK) as usize;
                if left < HEAD {
                    self.bytes.extend(std::iter::repeat_n(0, left));
                    continue;
                }
                let (part, after) = rest.split_at(rest.len().min(left - HEAD));
                let kind = match (is_first, after.is_empty()) {
                    (true, true) => 1,
                    (true, false) => 2,
                    (false, false) => 3,
                    (false, true) => 4,
                };
                self.bytes.extend(crc32(kind, part).to_le_bytes());
                self.bytes.extend((part.len() as u16).to_le_bytes());
                self.bytes.push(kind);
                self.bytes.extend_from_slice(part);
                (rest, is_first) = (after, false);
                if rest.is_empty() {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::RunFile;
    use super::*;

    fn rows(reader: &mut RunFileReader, bytes: &[u8]) -> Vec<HistoryRow> {
        let mut rows = Vec::new();
        assert!(reader.read(&bytes[reader.at() as usize..], |row| rows.push(row)));
        rows
    }

    fn values(row: &HistoryRow) -> Vec<(&str, f64)> {
        row.values.iter().map(|(name, value)| (name.as_str(), *value)).collect()
    }

    #[test]
    fn checksum_is_that_of_zlib() {
        // zlib.crc32(b"123456789")
        assert_eq!(crc32(b'1', b"23456789"), 0xcbf4_3926);
    }

    #[test]
    fn rows_have_their_step_and_numbers() {
        let mut file = RunFile::default();
        file.record(17, b"the run's own record");
        file.row(0, &[("loss", "0.5"), ("_runtime", "1.5"), ("_step", "0"), ("note", "\"text\"")]);
        file.row(7, &[("train.loss", "0.25"), ("eval", "{\"return\": 21.5}"), ("bad", "\"NaN\"")]);
        file.row(8, &[("picture", "{\"_type\": \"image-file\", \"width\": 84}")]);
        let all = rows(&mut RunFileReader::default(), &file.bytes);
        assert_eq!((all[0].step, values(&all[0])), (Some(0), vec![("loss", 0.5)]));
        assert_eq!(all[1].step, Some(7));
        assert_eq!(values(&all[1])[..2], [("train/loss", 0.25), ("eval/return", 21.5)]);
        assert!(values(&all[1])[2].1.is_nan() && all.len() == 2, "{all:?}");
    }

    #[test]
    fn records_across_blocks_are_joined() {
        let mut file = RunFile::default();
        let long = format!("\"{}\"", "x".repeat(100_000));
        for step in 0..40 {
            file.row(step, &[("loss", "1"), ("text", if step % 8 == 3 { &long } else { "0" })]);
        }
        assert!(file.bytes.len() as u64 > 12 * BLOCK);
        let all = rows(&mut RunFileReader::default(), &file.bytes);
        assert_eq!(all.iter().filter_map(|row| row.step).collect::<Vec<_>>(), (0..40).collect::<Vec<_>>());
        // At every length that the file had while it was written.
        let (mut reader, mut steps) = (RunFileReader::default(), Vec::new());
        for end in (0..=file.bytes.len()).step_by(997).chain([file.bytes.len()]) {
            steps.extend(rows(&mut reader, &file.bytes[..end]).iter().filter_map(|row| row.step));
        }
        assert_eq!(steps, (0..40).collect::<Vec<_>>());
    }

    #[test]
    fn record_begins_nowhere_in_the_last_bytes_of_a_block() {
        for room in 0..16_usize {
            let mut file = RunFile::default();
            // Head of the record, its number, and the field's key and length.
            let used = HEAD * 2 + 2 + 4;
            file.record(4, &vec![0; BLOCK as usize - used - room]);
            file.row(3, &[("loss", "0.5")]);
            file.row(4, &[("loss", "0.5")]);
            let all = rows(&mut RunFileReader::default(), &file.bytes);
            assert_eq!(all.iter().filter_map(|row| row.step).collect::<Vec<_>>(), [3, 4], "{room}");
        }
    }

    #[test]
    fn wandb_1_damaged_and_foreign_files_end() {
        let mut file = RunFile::default();
        file.row(1, &[("loss", "0.5")]);
        file.row(2, &[("loss", "0.25")]);
        for at in 0..file.bytes.len() {
            let mut damaged = file.bytes.clone();
            damaged[at] ^= 0x10;
            let mut count = 0;
            RunFileReader::default().read(&damaged, |_| count += 1);
            assert!(count < 2, "byte {at}");
        }
        assert!(!RunFileReader::default().read(b"not a run file", |_| {}));
        assert!(RunFileReader::default().read(b":W&", |_| {}), "not whole yet");
        let mut long = RunFile::default();
        long.row(1, &[("text", &"x".repeat(MOST))]);
        long.row(2, &[("loss", "0.5")]);
        let all = rows(&mut RunFileReader::default(), &long.bytes);
        assert_eq!(all.iter().filter_map(|row| row.step).collect::<Vec<_>>(), [2]);
    }
}
