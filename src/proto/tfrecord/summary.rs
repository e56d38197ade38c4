//! What an event of a TensorBoard file holds (tensorflow's summary.proto, tensor.proto, and the plugins'
//! metadata of TensorBoard).
//!
//! `Summary { value = 1 { tag = 1, simple_value = 2 (float), image = 4 { width = 2, height = 1,
//! encoded_image_string = 4 }, histo = 5 { min = 1, max = 2, bucket_limit = 6, bucket = 7 }, tensor = 8,
//! metadata = 9 { plugin_data = 1 { plugin_name = 1 } } } }`. A tensor of the histograms plugin has a row of
//! left border, right border and count per bin; one of the images plugin has width, height, and a file per
//! picture, all as strings.

use super::{Content, fields};
use crate::media::Histogram;

/// Most bins that are read of one histogram.
const MOST_BUCKETS: usize = 1 << 16;

/// What stands under a tag at one step.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    Scalar(f64),
    /// In as many bins as are kept.
    Histogram(Histogram),
    /// The file of a picture, of the first one where there are several.
    Picture(&'a [u8]),
    /// A histogram that is none, with the reason.
    Wrong(String),
}

/// Step and values of an event; `None` when it holds none, or cannot be read.
pub fn values(event: &[u8]) -> Option<(u64, Vec<(String, Value<'_>)>)> {
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

fn named(value: &[u8]) -> Option<(String, Value<'_>)> {
    let (mut tag, mut plain, mut tensor, mut plugin) = (None, None, None, None);
    for (field, content) in fields(value)? {
        match (field, content) {
            (1, Content::Bytes(text)) => tag = std::str::from_utf8(text).ok().map(str::to_owned),
            (2, Content::Fixed32(bits)) => plain = Some(Value::Scalar(f64::from(f32::from_bits(bits)))),
            (4, Content::Bytes(image)) => plain = picture(image).or(plain),
            (5, Content::Bytes(buckets)) => plain = Some(told(histogram(buckets))),
            (8, Content::Bytes(bytes)) => tensor = Some(bytes),
            (9, Content::Bytes(metadata)) => plugin = plugin_name(metadata),
            _ => {}
        }
    }
    let from_tensor = || match (tensor?, plugin) {
        (tensor, Some(b"histograms")) => Some(told(rows(tensor))),
        (tensor, Some(b"images")) => pictures(tensor),
        (tensor, _) => number(tensor).map(Value::Scalar),
    };
    Some((tag?, plain.or_else(from_tensor)?))
}

fn told(histogram: Result<Histogram, String>) -> Value<'static> {
    match histogram {
        Ok(histogram) => Value::Histogram(histogram),
        Err(reason) => Value::Wrong(reason),
    }
}

fn plugin_name(metadata: &[u8]) -> Option<&[u8]> {
    let inner = |bytes, wanted| {
        let fields: Vec<(u64, Content<'_>)> = fields(bytes)?;
        fields.into_iter().find_map(|(field, content)| match content {
            Content::Bytes(bytes) if field == wanted => Some(bytes),
            _ => None,
        })
    };
    inner(inner(metadata, 1)?, 1)
}

/// The file within an old image.
fn picture(image: &[u8]) -> Option<Value<'_>> {
    fields(image)?.into_iter().find_map(|(field, content)| match content {
        Content::Bytes(file) if field == 4 => Some(Value::Picture(file)),
        _ => None,
    })
}

/// The first file of a tensor of strings: width and height stand before it.
fn pictures(tensor: &[u8]) -> Option<Value<'_>> {
    let strings = fields(tensor)?.into_iter().filter_map(|(field, content)| match content {
        Content::Bytes(bytes) if field == 8 => Some(bytes),
        _ => None,
    });
    strings.skip(2).map(Value::Picture).next()
}

/// An old histogram: the right borders of its buckets, and what is in them.
fn histogram(buckets: &[u8]) -> Result<Histogram, String> {
    let (mut low, mut high, mut limits, mut counts) = (f64::NAN, f64::NAN, Vec::new(), Vec::new());
    for (field, content) in fields(buckets).ok_or("it cannot be read")? {
        match (field, content) {
            (1, Content::Fixed64(bits)) => low = f64::from_bits(bits),
            (2, Content::Fixed64(bits)) => high = f64::from_bits(bits),
            (6, content) => doubles(content, &mut limits)?,
            (7, content) => doubles(content, &mut counts)?,
            _ => {}
        }
    }
    if limits.len() != counts.len() {
        return Err(format!("{} borders and {} counts", limits.len(), counts.len()));
    }
    let filled = |count: &f64| *count > 0.0;
    let (Some(first), Some(last)) = (counts.iter().position(filled), counts.iter().rposition(filled)) else {
        return Err("no value is in it".into());
    };
    // The outermost buckets reach far beyond the values, which `min` and `max` tell.
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
            // Values that are the border itself.
            thin = count;
        }
    }
    if kept.is_empty() {
        return one_value(low, thin);
    }
    Histogram::reduced(edges, kept)
}

/// All values are one.
fn one_value(value: f64, count: f64) -> Result<Histogram, String> {
    let half = if value == 0.0 { 0.5 } else { value.abs() * 0.05 };
    Histogram::reduced(vec![value - half, value + half], vec![count])
}

/// A histogram as a tensor: a row of left border, right border and count per bin.
fn rows(tensor: &[u8]) -> Result<Histogram, String> {
    let mut numbers = Vec::new();
    for (field, content) in fields(tensor).ok_or("it cannot be read")? {
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
    // TensorBoard gives the bin of a single value no width.
    if let [only] = rows.iter().filter(|row| row[2] > 0.0).collect::<Vec<_>>()[..]
        && only[0] == only[1]
    {
        return one_value(only[0], only[2]);
    }
    let edges = rows.iter().map(|row| row[0]).chain([last[1]]).collect();
    Histogram::reduced(edges, rows.iter().map(|row| row[2]).collect())
}

/// Numbers of eight bytes, packed or alone.
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

/// The number of a tensor with one element.
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
    use crate::tfrecord::{field_bytes, varint};

    /// An event at step 7 with one value, whose fields are these.
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

    fn only(event: &[u8]) -> Value<'_> {
        let (step, values) = values(event).unwrap();
        assert_eq!((step, values.len()), (7, 1));
        values.into_iter().next().unwrap().1
    }

    fn bins(edges: &[f64], counts: &[f64]) -> Value<'static> {
        Value::Histogram(Histogram { edges: edges.to_vec(), counts: counts.to_vec() })
    }

    #[test]
    fn old_histograms_end_where_their_values_do() {
        let event = old(-1.5, 2.5, &[-2.0, -1.0, 1.0, 3.0, 1e308], &[0.0, 2.0, 0.0, 4.0, 0.0]);
        assert_eq!(only(&event), bins(&[-1.5, -1.0, 1.0, 2.5], &[2.0, 0.0, 4.0]));
        let event = old(3.0, 3.0, &[2.0, 4.0], &[0.0, 9.0]);
        let Value::Histogram(one) = only(&event) else { panic!() };
        assert!(one.bin_at(3.0).is_some_and(|bin| bin.count == 9.0), "{one:?}");
        let event = old(0.0, 4.0, &[0.0, 4.0, 9.0], &[1.0, 2.0, 3.0]);
        let Value::Histogram(joined) = only(&event) else { panic!() };
        assert_eq!((joined.total(), joined.range()), (6.0, (0.0, 4.0)), "no value is lost");
        for wrong in [
            old(0.0, 1.0, &[0.0, 1.0], &[1.0]),
            old(0.0, 1.0, &[1.0], &[0.0]),
            old(f64::NAN, 1.0, &[1.0], &[3.0]),
        ] {
            assert!(matches!(only(&wrong), Value::Wrong(_)), "{:?}", only(&wrong));
        }
    }

    #[test]
    fn histograms_and_pictures_of_the_plugins_are_tensors() {
        let mut tensor = Vec::new();
        field_bytes(&mut tensor, 4, &packed(&[0.0, 1.0, 5.0, 1.0, 2.0, 6.0]));
        let event = event("w", &[(8, tensor), (9, plugin("histograms"))]);
        assert_eq!(only(&event), bins(&[0.0, 1.0, 2.0], &[5.0, 6.0]));
        let mut tensor = Vec::new();
        ["3", "2", "file", "other"].iter().for_each(|text| field_bytes(&mut tensor, 8, text.as_bytes()));
        let event = super::tests::event("seen", &[(8, tensor), (9, plugin("images"))]);
        assert_eq!(only(&event), Value::Picture(b"file"));
        let mut image = Vec::new();
        field_bytes(&mut image, 4, b"old");
        assert_eq!(only(&super::tests::event("seen", &[(4, image)])), Value::Picture(b"old"));
    }

    #[test]
    fn tfrecord_1_any_bytes_are_survived() {
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
