//! Histograms and pictures that programs log: their form, their bounds, and how histograms are put together.
//! Pure.
//!
//! - MEDIA-1: no histogram that passes [`Histogram::check`] makes a sum, a bin or a row that is no number.

use serde::{Deserialize, Serialize};

/// Most bins of a histogram.
pub const MOST_BINS: usize = 64;
/// Most bytes of the name of a histogram or a picture.
pub const MOST_NAME: usize = 200;
/// Most bytes of a picture's file.
pub const PICTURE_BYTES: usize = 256 << 10;
/// Most pixels of a picture's side.
pub const PICTURE_SIDE: u32 = 4096;
/// Most pixels of a picture.
pub const PICTURE_PIXELS: u64 = 4 << 20;
/// Beyond this, differences of two borders may be no numbers.
const FAR: f64 = 1e300;
/// Most values in a bin: beyond this, one more is not counted.
const MANY: f64 = 9e15;

/// How many values lie in each of a row of bins.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Histogram {
    /// Borders of the bins, rising: one more than there are bins.
    pub edges: Vec<f64>,
    /// How many values are in each bin.
    pub counts: Vec<f64>,
}

impl Histogram {
    /// What is wrong with it.
    ///
    /// # Errors
    /// A sentence for who has sent it.
    pub fn check(&self) -> Result<(), String> {
        let (edges, bins) = (&self.edges, self.counts.len());
        if bins == 0 || bins > MOST_BINS {
            return Err(format!("it has {bins} bins; 1 to {MOST_BINS} are taken"));
        }
        if edges.len() != bins + 1 {
            return Err(format!("{bins} bins have {} borders; `edges` has {}", bins + 1, edges.len()));
        }
        if !edges.iter().all(|edge| edge.abs() <= FAR) {
            return Err("a border is no finite number".into());
        }
        if edges.windows(2).any(|two| two[0] >= two[1]) {
            return Err("its borders do not rise".into());
        }
        if !self.counts.iter().all(|count| (0.0..=MANY).contains(count)) {
            return Err("a count is no number from 0 on".into());
        }
        if self.total() == 0.0 {
            return Err("no value is in it".into());
        }
        Ok(())
    }

    /// Of any number of bins: empty ones at both ends are left out, and more than [`MOST_BINS`] become bins
    /// of one width.
    ///
    /// # Errors
    /// As [`Histogram::check`].
    pub fn reduced(edges: Vec<f64>, counts: Vec<f64>) -> Result<Histogram, String> {
        let first = counts.iter().position(|count| *count > 0.0).ok_or("no value is in it")?;
        let last = counts.iter().rposition(|count| *count > 0.0).unwrap_or(first);
        let inner = |from: usize, to: usize| edges.get(from..=to).map(<[f64]>::to_vec);
        let edges = inner(first, last + 1).ok_or("it has more bins than borders")?;
        let whole = Histogram { edges, counts: counts[first..=last].to_vec() };
        let (Some(low), Some(high)) = (whole.edges.first().copied(), whole.edges.last().copied()) else {
            return Err("it has no borders".into());
        };
        let reduced = match whole.counts.len() > MOST_BINS && low.abs() <= FAR && high.abs() <= FAR {
            // What does not rise has no width, and no share of it lies anywhere.
            true if whole.edges.windows(2).all(|two| two[0] < two[1]) => {
                Histogram::even(low, high, whole.in_rows(low, high, MOST_BINS))
            }
            _ => whole,
        };
        reduced.check().map(|()| reduced)
    }

    /// Of these values, in bins of one width: one for each number where they are whole and near each other.
    /// `None` where none is a finite number.
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

    /// Bins of one width.
    fn even(low: f64, high: f64, counts: Vec<f64>) -> Histogram {
        let bins = counts.len().max(1) as f64;
        let mut edges: Vec<f64> =
            (0..=counts.len()).map(|i| low + (high - low) * (i as f64 / bins)).collect();
        if let Some(last) = edges.last_mut() {
            *last = high;
        }
        match edges.windows(2).all(|two| two[0] < two[1]) {
            true => Histogram { edges, counts },
            // Numbers that are too near each other for borders between them.
            false => Histogram { edges: vec![low, high], counts: vec![counts.iter().sum()] },
        }
    }

    /// How many values are in it.
    pub fn total(&self) -> f64 {
        self.counts.iter().sum()
    }

    /// The lowest border of a bin with a value, and the highest one.
    pub fn range(&self) -> (f64, f64) {
        let mut filled = self.bins().filter(|bin| bin.count > 0.0);
        let first = filled.next();
        let last = filled.last().or(first);
        (first.map_or(0.0, |bin| bin.low), last.map_or(0.0, |bin| bin.high))
    }

    /// About the mean: each value as if it were in the middle of its bin.
    pub fn mean(&self) -> f64 {
        let total = self.total().max(f64::MIN_POSITIVE);
        self.bins().map(|bin| (bin.low / 2.0 + bin.high / 2.0) * (bin.count / total)).sum()
    }

    /// Its bins, rising.
    pub fn bins(&self) -> impl Iterator<Item = Bin> + '_ {
        let borders = self.edges.windows(2);
        borders.zip(&self.counts).map(|(two, count)| Bin { low: two[0], high: two[1], count: *count })
    }

    /// The bin with the most values.
    pub fn fullest(&self) -> Option<Bin> {
        self.bins().reduce(|best, bin| if bin.count > best.count { bin } else { best })
    }

    /// The bin that a value lies in.
    pub fn bin_at(&self, value: f64) -> Option<Bin> {
        let last = self.edges.last().copied();
        self.bins()
            .find(|bin| (bin.low..bin.high).contains(&value) || (Some(bin.high) == last && value == bin.high))
    }

    /// How many values lie in each of `rows` even parts between two values; of a bin that reaches into
    /// several, each gets its share.
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

    /// The values of both: exactly where their bins are the same, else in bins of one width.
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
    /// Its lower border, which belongs to it.
    pub low: f64,
    /// Its upper border, which does not; that of the last one does.
    pub high: f64,
    /// How many values are in it.
    pub count: f64,
}

/// The form of a picture's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PictureFormat {
    Png,
    /// It may move.
    Gif,
}

impl PictureFormat {
    /// As files end.
    pub fn ending(self) -> &'static str {
        match self {
            PictureFormat::Png => "png",
            PictureFormat::Gif => "gif",
        }
    }
}

/// What the head of a picture's file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PictureHead {
    pub format: PictureFormat,
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

impl PictureHead {
    /// Of a whole file.
    ///
    /// # Errors
    /// A sentence for who has sent it: it is no picture, or too large.
    pub fn of(file: &[u8]) -> Result<PictureHead, String> {
        if file.len() > PICTURE_BYTES {
            return Err(format!("it has {} bytes; {PICTURE_BYTES} are taken", file.len()));
        }
        let wide = |at: usize| file.get(at..)?.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes));
        let short =
            |at: usize| file.get(at..)?.first_chunk::<2>().map(|bytes| u16::from_le_bytes(*bytes).into());
        let (format, sides) = match file {
            [0x89, b'P', b'N', b'G', 13, 10, 26, 10, _, _, _, _, b'I', b'H', b'D', b'R', ..] => {
                (PictureFormat::Png, (wide(16), wide(20)))
            }
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => (PictureFormat::Gif, (short(6), short(8))),
            _ => return Err("it is neither PNG nor GIF".into()),
        };
        let (Some(width), Some(height)) = sides else { return Err("it ends within its head".into()) };
        let pixels = u64::from(width) * u64::from(height);
        if pixels == 0 || width.max(height) > PICTURE_SIDE || pixels > PICTURE_PIXELS {
            return Err(format!(
                "it has {width} x {height} pixels; 1 to {PICTURE_SIDE} a side and {PICTURE_PIXELS} in all are taken"
            ));
        }
        Ok(PictureHead { format, width, height })
    }
}

/// The bytes of a picture's file in base64.
pub fn encoded(file: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(file)
}

/// A picture's file, from its base64.
///
/// # Errors
/// As [`PictureHead::of`], and where it is no base64.
pub fn decoded(data: &str) -> Result<(PictureHead, Vec<u8>), String> {
    use base64::Engine;
    if data.len() > PICTURE_BYTES.div_ceil(3) * 4 {
        return Err(format!("it has more than {PICTURE_BYTES} bytes"));
    }
    let file = base64::engine::general_purpose::STANDARD.decode(data);
    let file = file.map_err(|error| format!("`data` is no base64: {error}"))?;
    Ok((PictureHead::of(&file)?, file))
}

/// What is wrong with a name.
///
/// # Errors
/// A sentence for who has sent it.
pub fn check_name(name: &str) -> Result<(), String> {
    match name.len() {
        0 => Err("`name` is empty".into()),
        long if long > MOST_NAME => Err(format!("`name` has {long} bytes; {MOST_NAME} are taken")),
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
    fn wrong_ones_are_refused_with_the_reason() {
        let many = vec![1.0; MOST_BINS + 1];
        for (wrong, reason) in [
            (histogram(&[], &[]), "0 bins"),
            (histogram(&[0.0; 66], &many), "65 bins"),
            (histogram(&[0.0, 1.0], &[1.0, 1.0]), "2 bins have 3 borders"),
            (histogram(&[0.0, f64::NAN], &[1.0]), "no finite number"),
            (histogram(&[-1e308, 1e308], &[1.0]), "no finite number"),
            (histogram(&[0.0, 0.0], &[1.0]), "do not rise"),
            (histogram(&[0.0, 1.0], &[-1.0]), "a count"),
            (histogram(&[0.0, 1.0], &[f64::NAN]), "a count"),
            (histogram(&[0.0, 1.0], &[0.0]), "no value"),
        ] {
            let said = wrong.check().unwrap_err();
            assert!(said.contains(reason), "{said}");
        }
        histogram(&[-1e300, 1e300], &[1.0]).check().unwrap();
    }

    /// MEDIA-1
    #[test]
    fn media_1_many_bins_become_few_and_no_value_is_lost() {
        let edges: Vec<f64> = (0..=1000).map(f64::from).collect();
        let mut counts = vec![1.0; 1000];
        (counts[0], counts[999]) = (0.0, 0.0);
        let few = Histogram::reduced(edges, counts).unwrap();
        assert_eq!(few.counts.len(), MOST_BINS);
        assert!((few.total() - 998.0).abs() < 1e-6 && few.range() == (1.0, 999.0), "{few:?}");
        // TensorBoard's buckets: each a tenth wider than the one before, on both sides of 0.
        let side: Vec<f64> =
            (0..700).map(|i| 1e-12 * 1.1f64.powi(i)).take_while(|edge| *edge < 1e20).collect();
        let edges: Vec<f64> = side.iter().rev().map(|edge| -edge).chain(side.iter().copied()).collect();
        let counts = vec![3.0; edges.len() - 1];
        let few = Histogram::reduced(edges.clone(), counts.clone()).unwrap();
        assert!((few.total() - sum(&counts)).abs() < 1e-6 * sum(&counts), "{}", few.total());
        assert!(Histogram::reduced(edges[..5].to_vec(), counts).is_err(), "more bins than borders");
        assert!(Histogram::reduced(vec![0.0; 100], vec![1.0; 99]).is_err());
    }

    #[test]
    fn values_are_put_into_bins() {
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
    fn sums_keep_every_value_whatever_the_bins() {
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
    fn bins_are_found_by_value_and_by_their_count() {
        let bins = histogram(&[0.0, 1.0, 3.0], &[2.0, 6.0]);
        assert_eq!(bins.bin_at(1.0), Some(Bin { low: 1.0, high: 3.0, count: 6.0 }));
        assert_eq!(bins.bin_at(3.0), bins.fullest());
        assert_eq!((bins.bin_at(3.1), bins.bin_at(-0.1)), (None, None));
        assert_eq!(bins.mean(), (0.5 * 2.0 + 2.0 * 6.0) / 8.0);
        assert_eq!(bins.in_rows(0.0, 3.0, 3), [2.0, 3.0, 3.0]);
        assert_eq!(bins.in_rows(0.0, 3.0, 0), [0.0; 0]);
    }

    #[test]
    fn heads_of_pictures_are_read_and_others_refused() {
        let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        png.extend([0, 0, 0, 3, 0, 0, 0, 2, 8, 2, 0, 0, 0]);
        assert_eq!(
            decoded(&encoded(&png)).unwrap().0,
            PictureHead { format: PictureFormat::Png, width: 3, height: 2 }
        );
        let gif = PictureHead::of(b"GIF89a\x05\0\x04\0").unwrap();
        assert_eq!((gif.format, gif.width, gif.height), (PictureFormat::Gif, 5, 4));
        let mut large = png.clone();
        large[16..20].copy_from_slice(&50_000u32.to_be_bytes());
        for (file, reason) in [
            (&b"\xff\xd8\xff\xe0"[..], "neither PNG nor GIF"),
            (b"", "neither PNG nor GIF"),
            (&png[..18], "ends within its head"),
            (&large, "50000 x 2 pixels"),
            (b"GIF89a\0\0\x04\0", "0 x 4 pixels"),
            (&vec![0; PICTURE_BYTES + 1], "bytes"),
        ] {
            let said = PictureHead::of(file).unwrap_err();
            assert!(said.contains(reason), "{said}");
        }
        assert!(decoded("?").unwrap_err().contains("no base64"));
        assert!(decoded(&"A".repeat(2 * PICTURE_BYTES)).is_err());
        assert!(
            check_name("").is_err() && check_name(&"n".repeat(201)).is_err() && check_name("a/b").is_ok()
        );
    }
}
