//! Bounded series of values over steps and time, for charts. When one is full, neighbours are merged, so that
//! the whole run stays visible at one resolution: each point keeps the mean of its values and their extremes.
//! Values that are NaN or infinite are counted and reported, but are not points.

use serde::{Deserialize, Serialize};

/// Where a value stands: the step that it belongs to, and when it came.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Place {
    /// Environment steps.
    pub step: f64,
    /// Seconds since the epoch, as the host's agent reported.
    pub time: f64,
}

/// A value, or neighbours that were merged.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(from = "PointTuple", into = "PointTuple")]
pub struct SeriesPoint {
    /// Of the newest value behind it.
    pub place: Place,
    /// Mean of all values behind it, however often they were merged.
    pub mean: f64,
    /// The least of them.
    pub low: f64,
    /// The greatest of them.
    pub high: f64,
    /// How many they are.
    pub count: u32,
}

/// A point as snapshots have it: step, time, mean, low, high, count.
type PointTuple = (f64, f64, f64, f64, f64, u32);

impl From<PointTuple> for SeriesPoint {
    fn from((step, time, mean, low, high, count): PointTuple) -> SeriesPoint {
        SeriesPoint { place: Place { step, time }, mean, low, high, count }
    }
}

impl From<SeriesPoint> for PointTuple {
    fn from(point: SeriesPoint) -> PointTuple {
        (point.place.step, point.place.time, point.mean, point.low, point.high, point.count)
    }
}

impl SeriesPoint {
    /// Two neighbours as one.
    pub fn merge(self, next: SeriesPoint) -> SeriesPoint {
        let count = self.count.saturating_add(next.count).max(1);
        let share = f64::from(next.count) / f64::from(count);
        SeriesPoint {
            place: next.place,
            // Without a sum, which might overflow.
            mean: self.mean * (1.0 - share) + next.mean * share,
            low: self.low.min(next.low),
            high: self.high.max(next.high),
            count,
        }
    }
}

/// A bounded series; steps never decrease.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Series {
    points: Vec<SeriesPoint>,
    /// Values per point: it doubles when neighbours are merged, so that new points are no finer than old
    /// ones.
    per_point: Doubling,
    newest: Option<f64>,
    newest_at: Place,
    not_finite: u64,
    /// Where values were not finite: those of the first [`MARKS`].
    marks: Vec<Place>,
    /// Where the latest row of such values began.
    since: f64,
    /// Where the latest of them was.
    broken_at: Option<f64>,
}

/// A power of two.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Doubling(u32);

impl Default for Doubling {
    fn default() -> Doubling {
        Doubling(1)
    }
}

/// Most points kept.
pub const CAPACITY: usize = 1024;
/// Most places kept at which values were not finite.
const MARKS: usize = 256;

impl Series {
    /// It is as [`Series::push`] makes one.
    pub(crate) fn is_sound(&self) -> bool {
        self.points.len() <= CAPACITY && self.marks.len() <= MARKS
    }

    /// Adds a value; one with a smaller step than the last is ignored (a restarted generation repeats steps).
    pub fn push(&mut self, place: Place, y: f64) {
        self.push_spread(place, y, y, y);
    }

    /// Adds what several ranks reported at once: the value in their middle, the least and the greatest.
    pub fn push_spread(&mut self, place: Place, middle: f64, low: f64, high: f64) {
        if self.points.last().is_some_and(|last| place.step < last.place.step) {
            return;
        }
        if !(middle.is_finite() && low.is_finite() && high.is_finite()) {
            return self.push_not_finite(place, middle, 1);
        }
        (self.newest, self.newest_at) = (Some(middle), place);
        let point = SeriesPoint { place, mean: middle, low, high, count: 1 };
        if let Some(last) = self.points.last_mut()
            && last.count < self.per_point.0
        {
            *last = last.merge(point);
            return;
        }
        if self.points.len() == CAPACITY {
            self.per_point.0 = self.per_point.0.saturating_mul(2);
            let halves = self.points.chunks(2);
            self.points =
                halves.map(|pair| pair.iter().skip(1).fold(pair[0], |all, next| all.merge(*next))).collect();
        }
        self.points.push(point);
    }

    /// Counts `count` values that are not finite, the newest of which is `y`.
    pub(crate) fn push_not_finite(&mut self, place: Place, y: f64, count: u64) {
        if self.newest.is_none_or(f64::is_finite) {
            self.since = place.step;
        }
        self.not_finite = self.not_finite.saturating_add(count);
        (self.newest, self.newest_at) = (Some(y), place);
        self.broken_at = Some(place.step);
        if self.marks.len() < MARKS && self.marks.last().map(|last| last.step) != Some(place.step) {
            self.marks.push(place);
        }
    }

    /// The points, oldest first.
    pub fn points(&self) -> &[SeriesPoint] {
        &self.points
    }

    /// The newest value, which may not be a number.
    pub fn last(&self) -> Option<f64> {
        self.newest
    }

    /// Where that is.
    pub(crate) fn newest_at(&self) -> Place {
        self.newest_at
    }

    /// The greatest step of all values, those that are no points included.
    pub fn reach(&self) -> Option<f64> {
        let (point, mark) = (self.points.last().map(|point| point.place.step), self.broken_at);
        point.into_iter().chain(mark).reduce(f64::max)
    }

    /// How many values were not finite numbers.
    pub fn not_finite(&self) -> u64 {
        self.not_finite
    }

    /// The step at which the latest row of values that are not finite began.
    pub fn not_finite_since(&self) -> f64 {
        self.since
    }

    /// Where values were not finite, oldest first; of many only the first.
    pub fn marks(&self) -> &[Place] {
        &self.marks
    }
}

/// Values smoothed as TensorBoard smooths them: an exponential moving average with this weight of the past,
/// without its bias towards 0 at the beginning. A weight of 0 changes nothing.
pub fn smooth(values: impl IntoIterator<Item = f64>, weight: f64) -> Vec<f64> {
    let weight = if weight.is_finite() { weight.clamp(0.0, 0.999) } else { 0.0 };
    let (mut average, mut left) = (0.0, 1.0);
    values
        .into_iter()
        .map(|value| {
            average = average * weight + value * (1.0 - weight);
            left *= weight;
            average / (1.0 - left)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(step: f64) -> Place {
        Place { step, time: step / 10.0 }
    }

    #[test]
    fn merged_points_keep_mean_and_extremes() {
        let mut series = Series::default();
        let value = |i: usize| match i {
            77 => 1e6,
            78 => -5.0,
            i => (i % 7) as f64,
        };
        let all = CAPACITY * 8 + 333;
        (0..all).for_each(|i| series.push(at(i as f64), value(i)));
        let points = series.points();
        assert!(points.len() <= CAPACITY);
        assert_eq!(points.iter().map(|point| point.high).fold(0.0, f64::max), 1e6);
        assert_eq!(points.iter().map(|point| point.low).fold(0.0, f64::min), -5.0);
        assert!(points.iter().all(|point| point.mean < 1e6), "points are means");
        assert_eq!(points.iter().map(|point| point.count as usize).sum::<usize>(), all);
        let old = &points[..points.len() - 1];
        assert!(old.iter().all(|point| point.count == 16), "one resolution for the whole run");
        let sum: f64 = points.iter().map(|point| point.mean * f64::from(point.count)).sum();
        let truth: f64 = (0..all).map(value).sum();
        assert!((sum - truth).abs() < 1e-6 * truth, "means of values, not of means: {sum} {truth}");
    }

    #[test]
    fn non_finite_value_is_newest_and_counted() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mut series = Series::default();
            series.push(at(1.0), 0.5);
            series.push(at(2.0), bad);
            series.push(at(3.0), bad);
            assert_eq!(series.last().map(f64::to_bits), Some(bad.to_bits()));
            assert_eq!((series.not_finite(), series.not_finite_since()), (2, 2.0));
            assert_eq!((series.points().len(), series.marks()), (1, &[at(2.0), at(3.0)][..]));
            assert_eq!(series.reach(), Some(3.0));
            series.push(at(4.0), 0.25);
            assert_eq!((series.last(), series.not_finite()), (Some(0.25), 2));
        }
        let mut endless = Series::default();
        (0..10_000).for_each(|x| endless.push(at(f64::from(x)), f64::NAN));
        assert_eq!((endless.marks().len(), endless.not_finite()), (MARKS, 10_000));
    }

    #[test]
    fn merged_points_keep_spread_over_ranks() {
        let mut series = Series::default();
        (0..CAPACITY * 4).for_each(|i| series.push_spread(at(i as f64), 5.0, 1.0, 9.0));
        assert!(series.points().iter().all(|point| (point.low, point.mean, point.high) == (1.0, 5.0, 9.0)));
    }

    #[test]
    fn smoothing_matches_tensorboard() {
        // Values of TensorBoard's own debiased average with weight 0.6.
        let smoothed = smooth([1.0, 2.0, 4.0, 8.0], 0.6);
        let truth = [1.0, 1.625, 2.836_734_693_877_551, 5.209_558_823_529_411];
        assert!(smoothed.iter().zip(truth).all(|(a, b)| (a - b).abs() < 1e-9), "{smoothed:?}");
        assert_eq!(smooth([3.0, 7.0], 0.0), [3.0, 7.0]);
        assert!(smooth([5.0; 50], 0.99).iter().all(|value| (value - 5.0).abs() < 1e-9), "no bias");
        assert_eq!(smooth([1.0], f64::NAN), [1.0]);
    }
}
