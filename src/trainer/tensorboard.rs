//! TensorBoard event files: TFRecord frames around the few protobuf fields that a scalar needs.
//!
//! Owner: rank 0. One file per life of the run, in `RUN_DIR/tensorboard`.
//!
//! Frame: length (u64), masked CRC-32C of the length, data, masked CRC-32C of the data, all little-endian; the mask is
//! TensorFlow's `((crc >> 15 | crc << 17) + 0xa282ead8)`. Data is an `Event`: wall_time = 1 (double), step = 2 (int64),
//! file_version = 3 (string), summary = 5 { value = 1 { tag = 1 (string), simple_value = 2 (float) } }.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// An open event file.
pub struct EventFile {
    file: BufWriter<File>,
    path: PathBuf,
}

impl EventFile {
    /// Creates the folder and a file named as TensorBoard expects it, and writes the version record.
    pub fn create(folder: &Path) -> io::Result<EventFile> {
        std::fs::create_dir_all(folder)?;
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { "localhost" } else { host.trim() };
        let now = wall_time();
        // Microseconds keep the files of two quick lives with equal process ids (containers) apart.
        let name = format!(
            "events.out.tfevents.{}.{host}.{}.{:06}",
            now as u64,
            std::process::id(),
            (now.fract() * 1e6) as u64
        );
        let path = folder.join(name);
        let file = BufWriter::new(File::options().write(true).create_new(true).open(&path)?);
        let mut this = EventFile { file, path };
        let mut version = Vec::new();
        field_bytes(&mut version, 3, b"brain.Event:2");
        this.event(0, &version)?;
        this.flush()?;
        Ok(this)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes scalars for one step.
    pub fn scalars<'a>(
        &mut self,
        step: u64,
        values: impl IntoIterator<Item = (&'a str, f64)>,
    ) -> io::Result<()> {
        let mut summary = Vec::new();
        for (tag, value) in values {
            let mut entry = Vec::new();
            field_bytes(&mut entry, 1, tag.as_bytes());
            varint(&mut entry, 2 << 3 | 5);
            entry.extend((value as f32).to_le_bytes());
            field_bytes(&mut summary, 1, &entry);
        }
        let mut body = Vec::new();
        field_bytes(&mut body, 5, &summary);
        self.event(step, &body)
    }

    /// Hands everything to the kernel.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    fn event(&mut self, step: u64, body: &[u8]) -> io::Result<()> {
        let mut event = Vec::with_capacity(body.len() + 20);
        varint(&mut event, 1 << 3 | 1);
        event.extend(wall_time().to_le_bytes());
        varint(&mut event, 2 << 3);
        varint(&mut event, step);
        event.extend_from_slice(body);
        let length = (event.len() as u64).to_le_bytes();
        self.file.write_all(&length)?;
        self.file.write_all(&masked(crc32c(&length)).to_le_bytes())?;
        self.file.write_all(&event)?;
        self.file.write_all(&masked(crc32c(&event)).to_le_bytes())
    }
}

fn wall_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn field_bytes(bytes: &mut Vec<u8>, field: u64, content: &[u8]) {
    varint(bytes, field << 3 | 2);
    varint(bytes, content.len() as u64);
    bytes.extend_from_slice(content);
}

fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78).
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_of_the_check_string() {
        // The check value in the catalogue of CRC algorithms, and RFC 3720 B.4's 32 zero bytes.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn frames_hold_their_length_and_checksums() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = EventFile::create(folder.path()).unwrap();
        file.scalars(300, [("charts/SPS", 1.5), ("losses/entropy", -2.0)]).unwrap();
        file.flush().unwrap();
        let bytes = std::fs::read(file.path()).unwrap();
        let mut rest = bytes.as_slice();
        let mut records = Vec::new();
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            assert_eq!(rest[8..12], masked(crc32c(&rest[..8])).to_le_bytes());
            let data = &rest[12..12 + length];
            assert_eq!(rest[12 + length..16 + length], masked(crc32c(data)).to_le_bytes());
            records.push(data.to_vec());
            rest = &rest[16 + length..];
        }
        assert_eq!(records.len(), 2);
        let contains = |record: &[u8], text: &[u8]| record.windows(text.len()).any(|window| window == text);
        assert!(contains(&records[0], b"brain.Event:2"));
        assert!(contains(&records[1], b"charts/SPS") && contains(&records[1], &1.5_f32.to_le_bytes()));
        // Field 2, 300 as a varint.
        assert!(contains(&records[1], &[0x10, 0xac, 0x02]));
    }
}
