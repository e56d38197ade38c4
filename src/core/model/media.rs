//! Histograms and images that the program has logged, as far as they are kept.
//!
//! - CORE-4: a series of histograms has at most [`COLUMNS`] columns, neighbors are put together as points of
//!   charts are; pictures keep the latest [`EACH`] of a name and [`BYTES`] in all, the oldest go first.

use crate::series::{Place, Series};
use rankdeck_proto::media::{self, Histogram, ImageHeader};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Most columns of one series of histograms.
pub const COLUMNS: usize = 128;
/// Most series of histograms, and most names of pictures.
pub const NAMES: usize = 32;
/// Most pictures of one name.
pub const EACH: usize = 16;
/// Most bytes of all pictures, as base64.
pub const BYTES: usize = 3 << 20;

/// Values at one step, or at neighbors that were put together.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HistogramBucket {
    /// Of the newest histogram behind it.
    pub place: Place,
    /// Their values.
    pub bins: Histogram,
    /// How many histograms they are.
    pub behind: u32,
}

/// Histograms of one name over steps and time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HistogramSeries {
    columns: Vec<HistogramBucket>,
    /// Histograms per column: doubles when neighbors are put together.
    per_column: u32,
    newest: Option<HistogramBucket>,
    summary: Series,
}

impl HistogramSeries {
    /// Adds a histogram of the present line. Within a generation, one with a smaller step than the last is
    /// ignored; a later generation throws away the steps that it repeats.
    pub fn push(&mut self, place: Place, bins: Histogram) {
        if let Some(last) = self.columns.last().map(|last| last.place).filter(|last| place.step < last.step) {
            if place.generation <= last.generation {
                return;
            }
            self.retain(|at| at.generation >= place.generation || at.step < place.step);
        }
        let (low, high) = bins.range();
        self.summary.push_spread(place, bins.mean(), low, high);
        let column = HistogramBucket { place, bins, behind: 1 };
        self.newest = Some(column.clone());
        self.per_column = self.per_column.max(1);
        if let Some(last) = self.columns.last_mut()
            && last.behind < self.per_column
        {
            *last = both(last, &column);
            return;
        }
        if self.columns.len() == COLUMNS {
            self.per_column = self.per_column.saturating_mul(2);
            let halves = self.columns.chunks(2);
            self.columns = halves
                .map(|pair| pair.iter().skip(1).fold(pair[0].clone(), |all, next| both(&all, next)))
                .collect();
        }
        self.columns.push(column);
    }

    /// Throws away the histograms at places that `keeps` does not name.
    pub(crate) fn retain(&mut self, keeps: impl Fn(Place) -> bool) {
        self.columns.retain(|column| keeps(column.place));
        if self.newest.as_ref().is_some_and(|newest| !keeps(newest.place)) {
            self.newest = self.columns.last().cloned();
        }
        self.summary.split(keeps);
    }

    /// It is as [`HistogramSeries::push`] makes one.
    pub(crate) fn is_sound(&self) -> bool {
        let mut all = self.columns.iter().chain(&self.newest);
        self.columns.len() <= COLUMNS
            && all.all(|column| column.bins.check().is_ok())
            && self.summary.is_sound()
    }

    /// The columns, oldest first.
    pub fn columns(&self) -> &[HistogramBucket] {
        &self.columns
    }

    /// The newest histogram, by itself.
    pub fn newest(&self) -> Option<&HistogramBucket> {
        self.newest.as_ref()
    }

    /// The mean of the values with their range, for charts of lines.
    pub fn summary(&self) -> &Series {
        &self.summary
    }
}

fn both(before: &HistogramBucket, next: &HistogramBucket) -> HistogramBucket {
    let behind = before.behind.saturating_add(next.behind);
    HistogramBucket { place: next.place, bins: before.bins.plus(&next.bins), behind }
}

/// A picture that was logged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredImage {
    /// Counts all pictures of the run, from 1.
    pub number: u64,
    pub place: Place,
    /// Format and size.
    pub head: ImageHeader,
    /// Its file in base64.
    pub data: String,
}

/// The latest pictures of each name.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Gallery {
    names: BTreeMap<String, VecDeque<StoredImage>>,
    count: u64,
    bytes: usize,
}

impl Gallery {
    /// Adds a picture; false when there are too many names.
    pub fn push(&mut self, name: String, place: Place, head: ImageHeader, data: String) -> bool {
        if self.names.len() >= NAMES && !self.names.contains_key(&name) {
            return false;
        }
        self.count = self.count.saturating_add(1);
        self.bytes += data.len();
        let all = self.names.entry(name).or_default();
        all.push_back(StoredImage { number: self.count, place, head, data });
        if all.len() > EACH
            && let Some(gone) = all.pop_front()
        {
            self.bytes -= gone.data.len();
        }
        while self.bytes > BYTES && self.drop_oldest() {}
        true
    }

    /// Drops the pictures at places that `keeps` does not name.
    pub(crate) fn retain(&mut self, keeps: impl Fn(Place) -> bool) {
        self.names.values_mut().for_each(|all| all.retain(|picture| keeps(picture.place)));
        self.names.retain(|_, all| !all.is_empty());
        self.bytes = self.names.values().flatten().map(|picture| picture.data.len()).sum();
    }

    /// Drops pictures that no event can have brought, of a gallery that comes out of a file; how many.
    pub(crate) fn check(&mut self) -> usize {
        let pictures =
            |names: &BTreeMap<String, VecDeque<StoredImage>>| names.values().map(VecDeque::len).sum();
        let before: usize = pictures(&self.names);
        let is_sound =
            |picture: &StoredImage| media::decoded(&picture.data).is_ok_and(|(head, _)| head == picture.head);
        self.names.values_mut().for_each(|all| {
            all.retain(is_sound);
            all.drain(..all.len().saturating_sub(EACH));
        });
        self.names.retain(|name, all| media::check_name(name).is_ok() && !all.is_empty());
        while self.names.len() > NAMES {
            self.names.pop_last();
        }
        self.bytes = self.names.values().flatten().map(|picture| picture.data.len()).sum();
        while self.bytes > BYTES && self.drop_oldest() {}
        before - pictures(&self.names)
    }

    /// Lets the oldest picture go; the newest of a name stays as long as another name has several.
    fn drop_oldest(&mut self) -> bool {
        let several = self.names.values().any(|all| all.len() > 1);
        let oldest = self
            .names
            .iter()
            .filter(|(_, all)| !several || all.len() > 1)
            .filter_map(|(name, all)| Some((all.front()?.number, name.clone())))
            .min();
        let Some((_, name)) = oldest else { return false };
        if let Some(all) = self.names.get_mut(&name) {
            self.bytes -= all.pop_front().map_or(0, |gone| gone.data.len());
            if all.is_empty() {
                self.names.remove(&name);
            }
        }
        true
    }

    /// Nothing was logged.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The names in order, with their pictures, oldest first.
    pub fn names(&self) -> impl Iterator<Item = (&String, &VecDeque<StoredImage>)> {
        self.names.iter()
    }

    /// The pictures of a name, oldest first.
    pub fn of(&self, name: &str) -> Option<&VecDeque<StoredImage>> {
        self.names.get(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_proto::media::ImageFormat;
    use rankdeck_types::ids::Generation;

    fn at(step: usize) -> Place {
        Place { step: step as f64, time: step as f64 / 10.0, ..Place::default() }
    }

    /// CORE-4
    #[test]
    fn core_4_merged_histograms_keep_all_values() {
        let mut series = HistogramSeries::default();
        let all = COLUMNS * 8 + 77;
        for step in 0..all {
            let low = (step % 5) as f64;
            series
                .push(at(step), Histogram { edges: vec![low, low + 1.0, low + 2.0], counts: vec![1.0, 2.0] });
        }
        let columns = series.columns();
        assert!(columns.len() <= COLUMNS && columns.iter().all(|column| column.bins.check().is_ok()));
        let values: f64 = columns.iter().map(|column| column.bins.total()).sum();
        assert!((values - 3.0 * all as f64).abs() < 1e-6, "{values}");
        assert_eq!(columns.iter().map(|column| column.behind as usize).sum::<usize>(), all);
        assert!(columns[..columns.len() - 1].iter().all(|column| column.behind == 16), "one resolution");
        let newest = series.newest().unwrap();
        assert_eq!((newest.place, newest.bins.total()), (at(all - 1), 3.0), "the newest stays itself");
        assert_eq!(series.summary().reach(), Some((all - 1) as f64));
        series.push(at(3), Histogram { edges: vec![0.0, 1.0], counts: vec![1.0] });
        assert_eq!(series.newest().unwrap().place, at(all - 1), "steps do not go back");
        let restarted = Place { generation: Generation(1), ..at(3) };
        series.push(restarted, Histogram { edges: vec![0.0, 1.0], counts: vec![1.0] });
        assert_eq!(series.newest().unwrap().place, restarted);
        assert!(series.columns().iter().all(|column| column.place.step <= 3.0), "the others are thrown away");
    }

    /// CORE-4
    #[test]
    fn core_4_latest_images_are_kept() {
        let head = ImageHeader { format: ImageFormat::Png, width: 1, height: 1 };
        let mut gallery = Gallery::default();
        for step in 0..100 {
            assert!(gallery.push("a".into(), at(step), head, "x".repeat(10)));
        }
        let steps: Vec<f64> = gallery.of("a").unwrap().iter().map(|picture| picture.place.step).collect();
        assert_eq!(steps, (84..100).map(f64::from).collect::<Vec<_>>());
        for step in 0..20 {
            gallery.push("b".into(), at(step), head, "x".repeat(BYTES / 8));
        }
        let kept = |name: &str| gallery.of(name).map_or(0, VecDeque::len);
        assert_eq!((kept("a"), kept("b")), (1, 7), "the newest of a name stays");
        assert!(gallery.bytes <= BYTES);
        for name in 0..NAMES + 9 {
            gallery.push(format!("name {name}"), at(0), head, String::new());
        }
        assert_eq!(gallery.names().count(), NAMES);
    }
}
