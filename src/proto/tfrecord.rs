//! TensorBoard event files: TFRecord frames around the few protobuf fields that scalars, histograms and
//! pictures need. Written by the trainer, read by agents.
//!
//! ```text
//! summary       what an event holds: scalars, histograms, pictures
//! ```
//!
//! Frame: length (u64), masked CRC-32C of the length, data, masked CRC-32C of the data, all little-endian;
//! the mask is TensorFlow's `((crc >> 15 | crc << 17) + 0xa282ead8)`. Data is an `Event`: wall_time = 1
//! (double), step = 2 (int64), file_version = 3 (string), summary = 5 (tensorflow's event.proto).
//!
//! Invariants:
//! - TFRECORD-1: reading never panics and never takes more than [`MOST`] bytes for one record, whatever the
//!   file holds.
//! - A record that is not whole yet is read again later; one whose checksum is wrong ends the
//!   file.

mod summary;

pub use summary::{Value, values};

/// Longest record that is read, bytes.
pub const MOST: usize = 16 << 20;

/// A record as it stands in the file.
pub fn frame(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut bytes = Vec::with_capacity(data.len() + 16);
    bytes.extend(length);
    bytes.extend(masked(crc32c(&length)).to_le_bytes());
    bytes.extend_from_slice(data);
    bytes.extend(masked(crc32c(data)).to_le_bytes());
    bytes
}

/// Appends a varint.
pub fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Appends a field of bytes.
pub fn field_bytes(bytes: &mut Vec<u8>, field: u64, content: &[u8]) {
    varint(bytes, field << 3 | 2);
    varint(bytes, content.len() as u64);
    bytes.extend_from_slice(content);
}

/// What follows at the start of `bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next<'a> {
    /// A record and how many bytes it took.
    Record(&'a [u8], usize),
    /// Not whole yet.
    Partial,
    /// A record's length or checksum is wrong.
    Broken,
}

/// The record at the start of `bytes`.
pub fn next(bytes: &[u8]) -> Next<'_> {
    let Some(head) = bytes.first_chunk::<12>() else { return Next::Partial };
    let word = |at: usize| head.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let (Some(low), Some(high), Some(sum)) = (word(0), word(4), word(8)) else { return Next::Partial };
    let length = u64::from(low) | u64::from(high) << 32;
    if masked(crc32c(&head[..8])) != sum || length > MOST as u64 {
        return Next::Broken;
    }
    let length = length as usize;
    let Some(rest) = bytes.get(12..12 + length + 4) else { return Next::Partial };
    let (data, sum) = rest.split_at(length);
    match masked(crc32c(data)).to_le_bytes() == *sum {
        true => Next::Record(data, 16 + length),
        false => Next::Broken,
    }
}

/// Bytes of the record that begins here, its frame included; `None` where its head is not whole or wrong.
pub fn length(bytes: &[u8]) -> Option<u64> {
    let head = bytes.first_chunk::<12>()?;
    let [length @ .., _, _, _, _] = *head;
    let sum = u32::from_le_bytes(*head.last_chunk::<4>()?);
    let is_right = masked(crc32c(&length)) == sum;
    is_right.then(|| u64::from_le_bytes(length).saturating_add(16))
}

enum Content<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// The fields of a message; `None` when it is none.
fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, Content<'_>)>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = take_varint(&mut bytes)?;
        let content = match key & 7 {
            0 => Content::Varint(take_varint(&mut bytes)?),
            1 => Content::Fixed64(u64::from_le_bytes(*take(&mut bytes, 8)?.first_chunk()?)),
            2 => {
                let length = usize::try_from(take_varint(&mut bytes)?).ok()?;
                Content::Bytes(take(&mut bytes, length)?)
            }
            5 => Content::Fixed32(u32::from_le_bytes(*take(&mut bytes, 4)?.first_chunk()?)),
            _ => return None,
        };
        found.push((key >> 3, content));
    }
    Some(found)
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(head)
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = *take(bytes, 1)?.first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
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

    fn event(step: u64, tag: &str, value: f32) -> Vec<u8> {
        let mut entry = Vec::new();
        field_bytes(&mut entry, 1, tag.as_bytes());
        varint(&mut entry, 2 << 3 | 5);
        entry.extend(value.to_le_bytes());
        let (mut summary, mut bytes) = (Vec::new(), Vec::new());
        field_bytes(&mut summary, 1, &entry);
        varint(&mut bytes, 1 << 3 | 1);
        bytes.extend(1.5_f64.to_le_bytes());
        varint(&mut bytes, 2 << 3);
        varint(&mut bytes, step);
        field_bytes(&mut bytes, 5, &summary);
        bytes
    }

    #[test]
    fn crc_of_the_check_string() {
        // The check value in the catalogue of CRC algorithms, and RFC 3720 B.4's 32 zero bytes.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn what_is_written_is_read_at_every_cut() {
        let data = event(300, "charts/SPS", 1.5);
        let whole = frame(&data);
        assert_eq!(next(&whole), Next::Record(&data, whole.len()));
        assert!((0..whole.len()).all(|cut| next(&whole[..cut]) == Next::Partial));
        assert_eq!(length(&whole[..12]), Some(whole.len() as u64));
        assert_eq!(values(&data), Some((300, vec![("charts/SPS".to_owned(), Value::Scalar(1.5))])));
        let mut broken = whole.clone();
        broken[20] ^= 1;
        assert_eq!(next(&broken), Next::Broken);
        broken = whole;
        broken[3] = 0x7f;
        assert_eq!(next(&broken), Next::Broken);
    }
}
