//! Histograms and images that programs log: their formats, their limits, and sums of histograms. Pure.
//!
//! - MEDIA-1: a histogram that passes [`Histogram::check`] has finite sums, bins and rows.

use serde::{Deserialize, Serialize};

/// Most bins of a histogram.
pub const MOST_BINS: usize = 64;
/// Most bytes of the name of a histogram or an image.
pub const MOST_NAME: usize = 200;
/// Most bytes of an image file.
pub const PICTURE_BYTES: usize = 256 << 10;
/// Most pixels per side of an image.
pub const PICTURE_SIDE: u32 = 4096;
/// Most pixels of an image.
pub const PICTURE_PIXELS: u64 = 4 << 20;
/// Largest magnitude of an edge: differences of larger ones may overflow.
const FAR: f64 = 1e300;
/// Most values in a bin: above this, adding 1 has no effect.
const MANY: f64 = 9e15;

/// Number of values in each of consecutive bins.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Histogram {
    /// Edges of the bins, increasing; one more than bins.
    pub edges: Vec<f64>,
    /// Number of values in each bin.
    pub counts: Vec<f64>,
}

impl Histogram {
    /// Validates the histogram.
    ///
    /// # Errors
    /// A message for the sender.
    pub fn check(&self) -> Result<(), String> {
        let (edges, bins) = (&self.edges, self.counts.len());
        if bins == 0 || bins > MOST_BINS {
            return Err(format!("{bins} bins; expected 1 to {MOST_BINS}"));
        }
        if edges.len() != bins + 1 {
            return Err(format!("{bins} bins need {} edges, found {}", bins + 1, edges.len()));
        }
        if !edges.iter().all(|edge| edge.abs() <= FAR) {
            return Err("an edge is not a finite number".into());
        }
        if edges.windows(2).any(|two| two[0] >= two[1]) {
            return Err("edges are not increasing".into());
        }
        if !self.counts.iter().all(|count| (0.0..=MANY).contains(count)) {
            return Err("a count is negative or not a number".into());
        }
        if self.total() == 0.0 {
            return Err("all counts are 0".into());
        }
        Ok(())
    }

    /// Creates a histogram from any number of bins: drops empty bins at both ends, and converts more than
    /// [`MOST_BINS`] to bins of equal width.
    ///
    /// # Errors
    /// As [`Histogram::check`].
    pub fn reduced(edges: Vec<f64>, counts: Vec<f64>) -> Result<Histogram, String> {
        let first = counts.iter().position(|count| *count > 0.0).ok_or("all counts are 0")?;
        let last = counts.iter().rposition(|count| *count > 0.0).unwrap_or(first);
        let inner = |from: usize, to: usize| edges.get(from..=to).map(<[f64]>::to_vec);
        let edges = inner(first, last + 1).ok_or("more bins than edges")?;
        let whole = Histogram { edges, counts: counts[first..=last].to_vec() };
        let (Some(low), Some(high)) = (whole.edges.first().copied(), whole.edges.last().copied()) else {
            return Err("no edges".into());
        };
        let reduced = match whole.counts.len() > MOST_BINS && low.abs() <= FAR && high.abs() <= FAR {
            // A bin whose edges do not increase has no width, so no part of it can be assigned.
            true if whole.edges.windows(2).all(|two| two[0] < two[1]) => {
                Histogram::even(low, high, whole.in_rows(low, high, MOST_BINS))
            }
            _ => whole,
        };
        reduced.check().map(|()| reduced)
    }

    /// Creates a histogram of values, in bins of equal width: one per integer for integers of a small range.
    /// `None` if no value is finite.
    pub fn of(values: &[f64]) -> Option<Histogram> {
        let values = || values.iter().copied().filter(|value| value.abs() <= FAR / 2.0);
        let (low, high) = (values().reduce(f64::min)?, values().reduce(f64::max)?);
        let apart = high - low;
        let whole =
            apart < MOST_BINS as f64 && low.abs() < MANY && values().all(|value| value.fract() == 0.0);
        let half = match (whole, apart > 0.0, low == 0.0) {
            (true, ..) | (_, false, true) => 0.5,
            (false, true, _) => 0.0,
            (false, false, false) => low.abs() * 0.05,
        };
        let bins = if whole { apart as usize + 1 } else { MOST_BINS };
        let mut all = Histogram::even(low - half, high + half, vec![0.0; bins]);
        let (last, bins) = (all.counts.len() - 1, all.counts.len() as f64);
        let (from, wide) = (low - half, apart + 2.0 * half);
        values().for_each(|value| all.counts[(((value - from) / wide * bins) as usize).min(last)] += 1.0);
        all.check().ok().map(|()| all)
    }

    /// Creates bins of equal width.
    fn even(low: f64, high: f64, counts: Vec<f64>) -> Histogram {
        let bins = counts.len().max(1) as f64;
        let mut edges: Vec<f64> =
            (0..=counts.len()).map(|i| low + (high - low) * (i as f64 / bins)).collect();
        if let Some(last) = edges.last_mut() {
            *last = high;
        }
        match edges.windows(2).all(|two| two[0] < two[1]) {
            true => Histogram { edges, counts },
            // The values are too close for edges between them.
            false => Histogram { edges: vec![low, high], counts: vec![counts.iter().sum()] },
        }
    }

    /// Returns the number of values.
    pub fn total(&self) -> f64 {
        self.counts.iter().sum()
    }

    /// Returns the lowest and the highest edge of the bins that are not empty.
    pub fn range(&self) -> (f64, f64) {
        let mut filled = self.bins().filter(|bin| bin.count > 0.0);
        let first = filled.next();
        let last = filled.last().or(first);
        (first.map_or(0.0, |bin| bin.low), last.map_or(0.0, |bin| bin.high))
    }

    /// Returns the approximate mean: each value counts as the middle of its bin.
    pub fn mean(&self) -> f64 {
        let total = self.total().max(f64::MIN_POSITIVE);
        self.bins().map(|bin| (bin.low / 2.0 + bin.high / 2.0) * (bin.count / total)).sum()
    }

    /// Returns the bins in increasing order.
    pub fn bins(&self) -> impl Iterator<Item = Bin> + '_ {
        let borders = self.edges.windows(2);
        borders.zip(&self.counts).map(|(two, count)| Bin { low: two[0], high: two[1], count: *count })
    }

    /// Returns the bin with the most values.
    pub fn fullest(&self) -> Option<Bin> {
        self.bins().reduce(|best, bin| if bin.count > best.count { bin } else { best })
    }

    /// Returns the bin of a value.
    pub fn bin_at(&self, value: f64) -> Option<Bin> {
        let last = self.edges.last().copied();
        self.bins()
            .find(|bin| (bin.low..bin.high).contains(&value) || (Some(bin.high) == last && value == bin.high))
    }

    /// Returns the number of values in each of `rows` equal parts between two values; a bin that overlaps
    /// several parts is divided between them.
    pub fn in_rows(&self, low: f64, high: f64, rows: usize) -> Vec<f64> {
        let mut out = vec![0.0; rows];
        let height = (high - low) / rows.max(1) as f64;
        if rows == 0 || !(height > 0.0 && height.is_finite()) {
            return out;
        }
        let last = rows - 1;
        let row = |at: f64| ((at - low) / height).floor().clamp(0.0, last as f64) as usize;
        for bin in self.bins().filter(|bin| bin.count > 0.0 && bin.high > low && bin.low < high) {
            let (first, end) = (row(bin.low), row(bin.high));
            if first == end {
                out[first] += bin.count;
                continue;
            }
            for (at, out) in out.iter_mut().enumerate().take(end + 1).skip(first) {
                let begin = low + at as f64 * height;
                let shared = bin.high.min(begin + height) - bin.low.max(begin);
                *out += bin.count * (shared.max(0.0) / (bin.high - bin.low)).min(1.0);
            }
        }
        out
    }

    /// Returns the sum of both: exact if their bins are equal, else in bins of equal width.
    #[must_use]
    pub fn plus(&self, other: &Histogram) -> Histogram {
        let add = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a + b).min(MANY)).collect::<Vec<_>>();
        if self.edges == other.edges {
            return Histogram { edges: self.edges.clone(), counts: add(&self.counts, &other.counts) };
        }
        let ((low, high), (from, to)) = (self.range(), other.range());
        let (low, high) = (low.min(from), high.max(to));
        let rows = |of: &Histogram| of.in_rows(low, high, MOST_BINS);
        Histogram::even(low, high, add(&rows(self), &rows(other)))
    }
}

/// A bin of a histogram.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bin {
    /// Lower edge, inclusive.
    pub low: f64,
    /// Upper edge, exclusive except for the last bin.
    pub high: f64,
    /// Number of values.
    pub count: f64,
}

/// Format of an image file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageFormat {
    Png,
    /// May be animated.
    Gif,
}

impl ImageFormat {
    /// Returns the file name extension.
    pub fn ending(self) -> &'static str {
        match self {
            ImageFormat::Png => "png",
            ImageFormat::Gif => "gif",
        }
    }
}

/// The header of an image file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageHeader {
    pub format: ImageFormat,
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

impl ImageHeader {
    /// Parses the header of a whole file.
    ///
    /// # Errors
    /// A message for the sender: the file is not an image, or is too large.
    pub fn of(file: &[u8]) -> Result<ImageHeader, String> {
        if file.len() > PICTURE_BYTES {
            return Err(format!("{} bytes exceed the limit of {PICTURE_BYTES}", file.len()));
        }
        let wide = |at: usize| file.get(at..)?.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes));
        let short =
            |at: usize| file.get(at..)?.first_chunk::<2>().map(|bytes| u16::from_le_bytes(*bytes).into());
        let (format, sides) = match file {
            [0x89, b'P', b'N', b'G', 13, 10, 26, 10, _, _, _, _, b'I', b'H', b'D', b'R', ..] => {
                (ImageFormat::Png, (wide(16), wide(20)))
            }
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => (ImageFormat::Gif, (short(6), short(8))),
            _ => return Err("neither PNG nor GIF".into()),
        };
        let (Some(width), Some(height)) = sides else { return Err("truncated header".into()) };
        let pixels = u64::from(width) * u64::from(height);
        if pixels == 0 || width.max(height) > PICTURE_SIDE || pixels > PICTURE_PIXELS {
            return Err(format!(
                "{width} x {height} pixels; expected 1 to {PICTURE_SIDE} per side and at most {PICTURE_PIXELS} in total"
            ));
        }
        Ok(ImageHeader { format, width, height })
    }
}

/// Encodes an image file in base64.
pub fn encoded(file: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(file)
}

/// Decodes an image file from base64.
///
/// # Errors
/// As [`ImageHeader::of`], and for invalid base64.
pub fn decoded(data: &str) -> Result<(ImageHeader, Vec<u8>), String> {
    use base64::Engine;
    if data.len() > PICTURE_BYTES.div_ceil(3) * 4 {
        return Err(format!("more than {PICTURE_BYTES} bytes"));
    }
    let file = base64::engine::general_purpose::STANDARD.decode(data);
    let file = file.map_err(|error| format!("`data` is not base64: {error}"))?;
    Ok((ImageHeader::of(&file)?, file))
}

/// Validates the name of a histogram or an image.
///
/// # Errors
/// A message for the sender.
pub fn check_name(name: &str) -> Result<(), String> {
    match name.len() {
        0 => Err("`name` is empty".into()),
        long if long > MOST_NAME => Err(format!("`name` has {long} bytes; the limit is {MOST_NAME}")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(edges: &[f64], counts: &[f64]) -> Histogram {
        Histogram { edges: edges.to_vec(), counts: counts.to_vec() }
    }

    fn sum(values: &[f64]) -> f64 {
        values.iter().sum()
    }

    #[test]
    fn invalid_histogram_is_rejected_with_the_reason() {
        let many = vec![1.0; MOST_BINS + 1];
        for (wrong, reason) in [
            (histogram(&[], &[]), "0 bins"),
            (histogram(&[0.0; 66], &many), "65 bins"),
            (histogram(&[0.0, 1.0], &[1.0, 1.0]), "2 bins need 3 edges"),
            (histogram(&[0.0, f64::NAN], &[1.0]), "not a finite number"),
            (histogram(&[-1e308, 1e308], &[1.0]), "not a finite number"),
            (histogram(&[0.0, 0.0], &[1.0]), "not increasing"),
            (histogram(&[0.0, 1.0], &[-1.0]), "a count"),
            (histogram(&[0.0, 1.0], &[f64::NAN]), "a count"),
            (histogram(&[0.0, 1.0], &[0.0]), "all counts"),
        ] {
            let error = wrong.check().unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        histogram(&[-1e300, 1e300], &[1.0]).check().unwrap();
    }

    #[test]
    fn media_1_reducing_bins_keeps_all_values() {
        let edges: Vec<f64> = (0..=1000).map(f64::from).collect();
        let mut counts = vec![1.0; 1000];
        (counts[0], counts[999]) = (0.0, 0.0);
        let few = Histogram::reduced(edges, counts).unwrap();
        assert_eq!(few.counts.len(), MOST_BINS);
        assert!((few.total() - 998.0).abs() < 1e-6 && few.range() == (1.0, 999.0), "{few:?}");
        // TensorBoard's buckets: each a tenth wider than the previous one, on both sides of 0.
        let side: Vec<f64> =
            (0..700).map(|i| 1e-12 * 1.1f64.powi(i)).take_while(|edge| *edge < 1e20).collect();
        let edges: Vec<f64> = side.iter().rev().map(|edge| -edge).chain(side.iter().copied()).collect();
        let counts = vec![3.0; edges.len() - 1];
        let few = Histogram::reduced(edges.clone(), counts.clone()).unwrap();
        assert!((few.total() - sum(&counts)).abs() < 1e-6 * sum(&counts), "{}", few.total());
        assert!(Histogram::reduced(edges[..5].to_vec(), counts).is_err(), "more bins than edges");
        assert!(Histogram::reduced(vec![0.0; 100], vec![1.0; 99]).is_err());
    }

    #[test]
    fn integers_get_one_bin_each() {
        let whole = Histogram::of(&[3.0, 1.0, 3.0]).unwrap();
        assert_eq!(whole, histogram(&[0.5, 1.5, 2.5, 3.5], &[1.0, 0.0, 2.0]));
        let wide = Histogram::of(&[0.0, 500.0, 12.5, f64::NAN]).unwrap();
        assert_eq!((wide.counts.len(), wide.total(), wide.counts[0]), (MOST_BINS, 3.0, 1.0));
        for odd in [&[5.5; 3][..], &[0.0], &[1e300], &[1e20, 1e20 + 16384.0], &[-1e299, 1e299]] {
            let one = Histogram::of(odd).map(|one| one.total());
            assert!(one == Some(odd.len() as f64) || odd == [1e300], "{odd:?}: {one:?}");
        }
        assert_eq!((Histogram::of(&[]), Histogram::of(&[f64::INFINITY])), (None, None));
    }

    #[test]
    fn sum_of_any_bins_keeps_all_values() {
        let (a, b) = (histogram(&[0.0, 1.0, 2.0], &[3.0, 4.0]), histogram(&[0.0, 1.0, 2.0], &[1.0, 1.0]));
        assert_eq!(a.plus(&b), histogram(&[0.0, 1.0, 2.0], &[4.0, 5.0]));
        let mut all = a;
        for i in 1..200 {
            all = all.plus(&histogram(&[f64::from(-i), f64::from(i) * 0.5], &[10.0]));
        }
        all.check().unwrap();
        assert!((all.total() - (7.0 + 1990.0)).abs() < 1e-6, "{}", all.total());
        assert_eq!(all.range(), (-199.0, 99.5));
        let far = histogram(&[-1e300, 1e300], &[1.0]).plus(&histogram(&[0.0, 1e-300], &[1.0]));
        far.check().unwrap();
        assert!(far.mean().is_finite() && far.in_rows(-1e300, 1e300, 7).iter().all(|row| row.is_finite()));
    }

    #[test]
    fn bin_is_found_by_value_and_by_count() {
        let bins = histogram(&[0.0, 1.0, 3.0], &[2.0, 6.0]);
        assert_eq!(bins.bin_at(1.0), Some(Bin { low: 1.0, high: 3.0, count: 6.0 }));
        assert_eq!(bins.bin_at(3.0), bins.fullest());
        assert_eq!((bins.bin_at(3.1), bins.bin_at(-0.1)), (None, None));
        assert_eq!(bins.mean(), (0.5 * 2.0 + 2.0 * 6.0) / 8.0);
        assert_eq!(bins.in_rows(0.0, 3.0, 3), [2.0, 3.0, 3.0]);
        assert_eq!(bins.in_rows(0.0, 3.0, 0), [0.0; 0]);
    }

    #[test]
    fn image_header_is_parsed_or_rejected() {
        let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        png.extend([0, 0, 0, 3, 0, 0, 0, 2, 8, 2, 0, 0, 0]);
        assert_eq!(
            decoded(&encoded(&png)).unwrap().0,
            ImageHeader { format: ImageFormat::Png, width: 3, height: 2 }
        );
        let gif = ImageHeader::of(b"GIF89a\x05\0\x04\0").unwrap();
        assert_eq!((gif.format, gif.width, gif.height), (ImageFormat::Gif, 5, 4));
        let mut large = png.clone();
        large[16..20].copy_from_slice(&50_000u32.to_be_bytes());
        for (file, reason) in [
            (&b"\xff\xd8\xff\xe0"[..], "neither PNG nor GIF"),
            (b"", "neither PNG nor GIF"),
            (&png[..18], "truncated header"),
            (&large, "50000 x 2 pixels"),
            (b"GIF89a\0\0\x04\0", "0 x 4 pixels"),
            (&vec![0; PICTURE_BYTES + 1], "bytes"),
        ] {
            let error = ImageHeader::of(file).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        assert!(decoded("?").unwrap_err().contains("not base64"));
        assert!(decoded(&"A".repeat(2 * PICTURE_BYTES)).is_err());
        assert!(
            check_name("").is_err() && check_name(&"n".repeat(201)).is_err() && check_name("a/b").is_ok()
        );
    }
}
