//! TensorBoard event files: TFRecord frames around the few protobuf fields that scalars, histograms and
//! images need. Written by the trainer, read by agents.
//!
//! Frame: length (u64), masked CRC-32C of the length, data, masked CRC-32C of the data, all little-endian;
//! the mask is TensorFlow's `((crc >> 15 | crc << 17) + 0xa282ead8)`. Data is an `Event`: wall_time = 1
//! (double), step = 2 (int64), file_version = 3 (string), summary = 5 (tensorflow's event.proto,
//! summary.proto, tensor.proto, and the metadata of TensorBoard's plugins).
//!
//! `Summary { value = 1 { tag = 1, simple_value = 2 (float), image = 4 { width = 2, height = 1,
//! encoded_image_string = 4 }, histo = 5 { min = 1, max = 2, bucket_limit = 6, bucket = 7 }, tensor = 8,
//! metadata = 9 { plugin_data = 1 { plugin_name = 1 } } } }`. A tensor of the histograms plugin has a row of
//! left edge, right edge and count per bin; one of the images plugin has width, height, and a file per image,
//! all as strings.
//!
//! Invariants:
//! - TFRECORD-1: reading never panics and never takes more than [`MOST`] bytes for one record, whatever the
//!   file holds.
//! - An incomplete record is read again later; a wrong checksum ends the file.

use crate::media::Histogram;

/// Longest record that is read, bytes.
pub const MOST: usize = 16 << 20;

/// Returns the bytes of a record in a file.
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

/// The record at the start of some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next<'a> {
    /// A record, and its bytes with the frame.
    Record(&'a [u8], usize),
    /// Incomplete.
    Partial,
    /// A record's length or checksum is wrong.
    Broken,
}

/// Parses the record at the start of `bytes`.
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

/// Returns the length of the record at the start of `bytes`, with its frame; `None` for an incomplete or
/// wrong header.
pub fn length(bytes: &[u8]) -> Option<u64> {
    let head = bytes.first_chunk::<12>()?;
    let [length @ .., _, _, _, _] = *head;
    let sum = u32::from_le_bytes(*head.last_chunk::<4>()?);
    let is_right = masked(crc32c(&length)) == sum;
    is_right.then(|| u64::from_le_bytes(length).saturating_add(16))
}

pub(crate) enum Content<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// Parses the fields of a message; `None` if malformed.
pub(crate) fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, Content<'_>)>> {
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

/// Returns the CRC-32C (Castagnoli, reflected polynomial 0x82f63b78).
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    })
}

/// Most bins of one histogram in a file.
const MOST_BUCKETS: usize = 1 << 16;

/// Value of a tag at one step.
#[derive(Debug, Clone, PartialEq)]
pub enum EventValue<'a> {
    Scalar(f64),
    /// A histogram, reduced to [`MOST_BINS`](crate::media::MOST_BINS).
    Histogram(Histogram),
    /// The file of an image, the first one of several.
    Picture(&'a [u8]),
    /// A malformed histogram, with the reason.
    Wrong(String),
}

/// Returns step and values of an event; `None` without values, or if malformed.
pub fn values(event: &[u8]) -> Option<(u64, Vec<(String, EventValue<'_>)>)> {
    let (mut step, mut found) = (0, Vec::new());
    for (field, content) in fields(event)? {
        match (field, content) {
            (2, Content::Varint(value)) => step = value,
            (5, Content::Bytes(summary)) => {
                for (field, content) in fields(summary)? {
                    if let (1, Content::Bytes(value)) = (field, content) {
                        found.extend(named(value));
                    }
                }
            }
            _ => {}
        }
    }
    (!found.is_empty()).then_some((step, found))
}

fn named(value: &[u8]) -> Option<(String, EventValue<'_>)> {
    let (mut tag, mut plain, mut tensor, mut plugin) = (None, None, None, None);
    for (field, content) in fields(value)? {
        match (field, content) {
            (1, Content::Bytes(text)) => tag = std::str::from_utf8(text).ok().map(str::to_owned),
            (2, Content::Fixed32(bits)) => plain = Some(EventValue::Scalar(f64::from(f32::from_bits(bits)))),
            (4, Content::Bytes(image)) => plain = picture(image).or(plain),
            (5, Content::Bytes(buckets)) => plain = Some(histogram_value(histogram(buckets))),
            (8, Content::Bytes(bytes)) => tensor = Some(bytes),
            (9, Content::Bytes(metadata)) => plugin = plugin_name(metadata),
            _ => {}
        }
    }
    let from_tensor = || match (tensor?, plugin) {
        (tensor, Some(b"histograms")) => Some(histogram_value(rows(tensor))),
        (tensor, Some(b"images")) => pictures(tensor),
        (tensor, _) => number(tensor).map(EventValue::Scalar),
    };
    Some((tag?, plain.or_else(from_tensor)?))
}

fn histogram_value(histogram: Result<Histogram, String>) -> EventValue<'static> {
    match histogram {
        Ok(histogram) => EventValue::Histogram(histogram),
        Err(reason) => EventValue::Wrong(reason),
    }
}

fn plugin_name(metadata: &[u8]) -> Option<&[u8]> {
    let inner = |bytes, number| {
        let fields: Vec<(u64, Content<'_>)> = fields(bytes)?;
        fields.into_iter().find_map(|(field, content)| match content {
            Content::Bytes(bytes) if field == number => Some(bytes),
            _ => None,
        })
    };
    inner(inner(metadata, 1)?, 1)
}

/// Returns the file of an image in the old format.
fn picture(image: &[u8]) -> Option<EventValue<'_>> {
    fields(image)?.into_iter().find_map(|(field, content)| match content {
        Content::Bytes(file) if field == 4 => Some(EventValue::Picture(file)),
        _ => None,
    })
}

/// Returns the first file of a tensor of strings, which follows width and height.
fn pictures(tensor: &[u8]) -> Option<EventValue<'_>> {
    let strings = fields(tensor)?.into_iter().filter_map(|(field, content)| match content {
        Content::Bytes(bytes) if field == 8 => Some(bytes),
        _ => None,
    });
    strings.skip(2).map(EventValue::Picture).next()
}

/// Converts a histogram in the old format: right edges and counts of buckets.
fn histogram(buckets: &[u8]) -> Result<Histogram, String> {
    let (mut low, mut high, mut limits, mut counts) = (f64::NAN, f64::NAN, Vec::new(), Vec::new());
    for (field, content) in fields(buckets).ok_or("unreadable")? {
        match (field, content) {
            (1, Content::Fixed64(bits)) => low = f64::from_bits(bits),
            (2, Content::Fixed64(bits)) => high = f64::from_bits(bits),
            (6, content) => doubles(content, &mut limits)?,
            (7, content) => doubles(content, &mut counts)?,
            _ => {}
        }
    }
    if limits.len() != counts.len() {
        return Err(format!("{} edges but {} counts", limits.len(), counts.len()));
    }
    let filled = |count: &f64| *count > 0.0;
    let (Some(first), Some(last)) = (counts.iter().position(filled), counts.iter().rposition(filled)) else {
        return Err("empty".into());
    };
    // The outermost buckets reach far beyond the values, which `min` and `max` bound.
    let (mut edges, mut kept, mut thin) = (vec![low], Vec::new(), 0.0);
    for (at, limit) in limits.iter().enumerate().take(last + 1).skip(first) {
        let right = if at == last { limit.min(high) } else { *limit };
        let count = counts[at] + std::mem::take(&mut thin);
        if edges.last().is_none_or(|left| right > *left) {
            edges.push(right);
            kept.push(count);
        } else if let Some(before) = kept.last_mut() {
            *before += count;
        } else {
            // Values equal to the edge.
            thin = count;
        }
    }
    if kept.is_empty() {
        return one_value(low, thin);
    }
    Histogram::reduced(edges, kept)
}

/// Creates the histogram of one repeated value.
fn one_value(value: f64, count: f64) -> Result<Histogram, String> {
    let half = if value == 0.0 { 0.5 } else { value.abs() * 0.05 };
    Histogram::reduced(vec![value - half, value + half], vec![count])
}

/// Converts a histogram as a tensor: a row of left edge, right edge and count per bin.
fn rows(tensor: &[u8]) -> Result<Histogram, String> {
    let mut numbers = Vec::new();
    for (field, content) in fields(tensor).ok_or("unreadable")? {
        match (field, content) {
            (4 | 6, content) => doubles(content, &mut numbers)?,
            (5, Content::Bytes(bytes)) => {
                numbers.extend(bytes.chunks_exact(4).filter_map(|four| {
                    four.first_chunk::<4>().map(|four| f64::from(f32::from_le_bytes(*four)))
                }));
            }
            _ => {}
        }
    }
    let rows: Vec<&[f64]> = numbers.chunks_exact(3).collect();
    let Some(last) = rows.last().filter(|_| rows.len() <= MOST_BUCKETS) else {
        return Err(format!("{} rows", rows.len()));
    };
    // In TensorBoard, the bin of a single value has no width.
    if let [only] = rows.iter().filter(|row| row[2] > 0.0).collect::<Vec<_>>()[..]
        && only[0] == only[1]
    {
        return one_value(only[0], only[2]);
    }
    let edges = rows.iter().map(|row| row[0]).chain([last[1]]).collect();
    Histogram::reduced(edges, rows.iter().map(|row| row[2]).collect())
}

/// Appends numbers of eight bytes, packed or single.
fn doubles(content: Content<'_>, into: &mut Vec<f64>) -> Result<(), String> {
    match content {
        Content::Fixed64(bits) => into.push(f64::from_bits(bits)),
        Content::Bytes(bytes) => into.extend(
            bytes
                .chunks_exact(8)
                .filter_map(|eight| eight.first_chunk::<8>().map(|eight| f64::from_le_bytes(*eight))),
        ),
        Content::Varint(_) | Content::Fixed32(_) => {}
    }
    if into.len() > 3 * MOST_BUCKETS { Err(format!("more than {MOST_BUCKETS} bins")) } else { Ok(()) }
}

/// Returns the number of a tensor with one element.
fn number(tensor: &[u8]) -> Option<f64> {
    fields(tensor)?.into_iter().find_map(|(field, content)| match (field, content) {
        (5, Content::Fixed32(bits)) => Some(f64::from(f32::from_bits(bits))),
        (6, Content::Fixed64(bits)) => Some(f64::from_bits(bits)),
        (4 | 5, Content::Bytes(bytes)) if bytes.len() == 4 => {
            bytes.first_chunk::<4>().map(|b| f64::from(f32::from_le_bytes(*b)))
        }
        (4 | 6, Content::Bytes(bytes)) if bytes.len() == 8 => {
            bytes.first_chunk::<8>().map(|b| f64::from_le_bytes(*b))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scalar_event(step: u64, tag: &str, value: f32) -> Vec<u8> {
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
    fn crc_matches_the_check_values() {
        // The check value in the catalogue of CRC algorithms, and RFC 3720 B.4's 32 zero bytes.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn record_is_parsed_only_if_complete_and_correct() {
        let data = scalar_event(300, "charts/SPS", 1.5);
        let whole = frame(&data);
        assert_eq!(next(&whole), Next::Record(&data, whole.len()));
        assert!((0..whole.len()).all(|cut| next(&whole[..cut]) == Next::Partial));
        assert_eq!(length(&whole[..12]), Some(whole.len() as u64));
        assert_eq!(values(&data), Some((300, vec![("charts/SPS".to_owned(), EventValue::Scalar(1.5))])));
        let mut broken = whole.clone();
        broken[20] ^= 1;
        assert_eq!(next(&broken), Next::Broken);
        broken = whole;
        broken[3] = 0x7f;
        assert_eq!(next(&broken), Next::Broken);
    }

    /// Returns an event at step 7 with one value of these fields.
    fn event(tag: &str, parts: &[(u64, Vec<u8>)]) -> Vec<u8> {
        let (mut value, mut summary, mut event) = (Vec::new(), Vec::new(), Vec::new());
        field_bytes(&mut value, 1, tag.as_bytes());
        parts.iter().for_each(|(field, bytes)| field_bytes(&mut value, *field, bytes));
        field_bytes(&mut summary, 1, &value);
        varint(&mut event, 2 << 3);
        varint(&mut event, 7);
        field_bytes(&mut event, 5, &summary);
        event
    }

    fn double(into: &mut Vec<u8>, field: u64, value: f64) {
        varint(into, field << 3 | 1);
        into.extend(value.to_le_bytes());
    }

    fn packed(numbers: &[f64]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    fn old(low: f64, high: f64, limits: &[f64], counts: &[f64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        double(&mut bytes, 1, low);
        double(&mut bytes, 2, high);
        field_bytes(&mut bytes, 6, &packed(limits));
        field_bytes(&mut bytes, 7, &packed(counts));
        event("weights", &[(5, bytes)])
    }

    fn plugin(name: &str) -> Vec<u8> {
        let (mut data, mut metadata) = (Vec::new(), Vec::new());
        field_bytes(&mut data, 1, name.as_bytes());
        field_bytes(&mut metadata, 1, &data);
        metadata
    }

    fn only(event: &[u8]) -> EventValue<'_> {
        let (step, values) = values(event).unwrap();
        assert_eq!((step, values.len()), (7, 1));
        values.into_iter().next().unwrap().1
    }

    fn bins(edges: &[f64], counts: &[f64]) -> EventValue<'static> {
        EventValue::Histogram(Histogram { edges: edges.to_vec(), counts: counts.to_vec() })
    }

    #[test]
    fn old_histogram_is_bounded_by_its_values() {
        let event = old(-1.5, 2.5, &[-2.0, -1.0, 1.0, 3.0, 1e308], &[0.0, 2.0, 0.0, 4.0, 0.0]);
        assert_eq!(only(&event), bins(&[-1.5, -1.0, 1.0, 2.5], &[2.0, 0.0, 4.0]));
        let event = old(3.0, 3.0, &[2.0, 4.0], &[0.0, 9.0]);
        let EventValue::Histogram(one) = only(&event) else { panic!() };
        assert!(one.bin_at(3.0).is_some_and(|bin| bin.count == 9.0), "{one:?}");
        let event = old(0.0, 4.0, &[0.0, 4.0, 9.0], &[1.0, 2.0, 3.0]);
        let EventValue::Histogram(joined) = only(&event) else { panic!() };
        assert_eq!((joined.total(), joined.range()), (6.0, (0.0, 4.0)), "no value is lost");
        for wrong in [
            old(0.0, 1.0, &[0.0, 1.0], &[1.0]),
            old(0.0, 1.0, &[1.0], &[0.0]),
            old(f64::NAN, 1.0, &[1.0], &[3.0]),
        ] {
            assert!(matches!(only(&wrong), EventValue::Wrong(_)), "{:?}", only(&wrong));
        }
    }

    #[test]
    fn plugin_histograms_and_images_are_parsed() {
        let mut tensor = Vec::new();
        field_bytes(&mut tensor, 4, &packed(&[0.0, 1.0, 5.0, 1.0, 2.0, 6.0]));
        let event = event("w", &[(8, tensor), (9, plugin("histograms"))]);
        assert_eq!(only(&event), bins(&[0.0, 1.0, 2.0], &[5.0, 6.0]));
        let mut tensor = Vec::new();
        ["3", "2", "file", "other"].iter().for_each(|text| field_bytes(&mut tensor, 8, text.as_bytes()));
        let event = self::event("seen", &[(8, tensor), (9, plugin("images"))]);
        assert_eq!(only(&event), EventValue::Picture(b"file"));
        let mut image = Vec::new();
        field_bytes(&mut image, 4, b"old");
        assert_eq!(only(&self::event("seen", &[(4, image)])), EventValue::Picture(b"old"));
    }

    #[test]
    fn tfrecord_1_malformed_bytes_cause_no_panic() {
        let mut tensor = Vec::new();
        field_bytes(&mut tensor, 4, &packed(&[0.0, 1.0, 5.0]));
        for data in
            [old(0.0, 2.0, &[1.0, 2.0], &[1.0, 1.0]), event("w", &[(8, tensor), (9, plugin("histograms"))])]
        {
            for at in 0..data.len() {
                for value in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut bytes = data.clone();
                    bytes[at] = value;
                    let _ = values(&bytes);
                    let _ = values(&bytes[..at]);
                }
            }
        }
    }
}
