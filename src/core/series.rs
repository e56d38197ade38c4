//! Bounded series of values over steps and time, for charts. When one is full, neighbors are merged, so that
//! the whole run stays visible at one resolution: each point keeps the mean of its values and their extremes.
//! Values that are NaN or infinite are counted and reported, but are not points.

use rankdeck_types::ids::Generation;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::cmp::Ordering;
use std::fmt;

/// Where a value stands: the step that it belongs to, when it came, and who made it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Place {
    /// Environment steps.
    pub step: f64,
    /// Seconds since the epoch, as the host's agent reported.
    pub time: f64,
    /// The generation that reported it.
    #[serde(default)]
    pub generation: Generation,
}

/// A value, or neighbors that were merged.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
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

/// As snapshots have it: step, time, mean, low, high, count, and the generation unless it is the first.
impl Serialize for SeriesPoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Place { step, time, generation } = self.place;
        let first = (step, time, self.mean, self.low, self.high, self.count);
        match generation {
            Generation(0) => first.serialize(serializer),
            Generation(n) => (first.0, first.1, first.2, first.3, first.4, first.5, n).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for SeriesPoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SeriesPoint, D::Error> {
        deserializer.deserialize_seq(PointVisitor)
    }
}

struct PointVisitor;

impl<'de> Visitor<'de> for PointVisitor {
    type Value = SeriesPoint;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a point: step, time, mean, low, high, count, generation")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<SeriesPoint, A::Error> {
        let mut number = |at: usize| -> Result<f64, A::Error> {
            parts.next_element()?.ok_or_else(|| A::Error::invalid_length(at, &self))
        };
        let (step, time, mean, low, high) = (number(0)?, number(1)?, number(2)?, number(3)?, number(4)?);
        let count = parts.next_element()?.ok_or_else(|| A::Error::invalid_length(5, &self))?;
        let generation = Generation(parts.next_element()?.unwrap_or(0));
        Ok(SeriesPoint { place: Place { step, time, generation }, mean, low, high, count })
    }
}

impl SeriesPoint {
    /// Two neighbors as one.
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

/// A bounded series of the present line of training, whose steps never decrease, and what restarts have thrown
/// away.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Series {
    points: Vec<SeriesPoint>,
    /// Points of generations that went on beyond the step from which another one began, by generation and step.
    #[serde(default)]
    past: Vec<SeriesPoint>,
    /// Values per point: it doubles when neighbors are merged, so that new points are not finer than old
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
    /// What its steps count where they are not steps, such as `epoch`; empty for steps.
    #[serde(default)]
    unit: String,
}

/// A power of two.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Doubling(u32);

impl Default for Doubling {
    fn default() -> Doubling {
        Doubling(1)
    }
}

/// Most points kept, and most of those that were thrown away.
pub const CAPACITY: usize = 1024;
/// Most places kept at which values were not finite.
const MARKS: usize = 256;

impl Series {
    /// It is as [`Series::push`] makes one.
    pub(crate) fn is_sound(&self) -> bool {
        self.points.len() <= CAPACITY && self.past.len() <= CAPACITY && self.marks.len() <= MARKS
    }

    /// Adds a value of the present line. Within a generation, one with a smaller step than the last is ignored;
    /// a later generation throws away the steps that it repeats.
    pub fn push(&mut self, place: Place, y: f64) {
        self.push_spread(place, y, y, y);
    }

    /// Adds what several ranks reported at once: the value in their middle, the least and the greatest.
    pub fn push_spread(&mut self, place: Place, middle: f64, low: f64, high: f64) {
        let is_finite = middle.is_finite() && low.is_finite() && high.is_finite();
        let point = SeriesPoint { place, mean: middle, low, high, count: 1 };
        let last = self.points.last().map(|last| last.place);
        if let Some(last) = last.filter(|last| place.generation != last.generation || place.step < last.step)
        {
            match place.generation.cmp(&last.generation) {
                // The records of another host are read later.
                Ordering::Less if is_finite => return self.insert(point),
                Ordering::Less | Ordering::Equal => return,
                Ordering::Greater if place.step <= last.step => {
                    self.split(|at| at.generation >= place.generation || at.step < place.step);
                }
                Ordering::Greater => {}
            }
        }
        if !is_finite {
            return self.push_not_finite(place, middle, 1);
        }
        (self.newest, self.newest_at) = (Some(middle), place);
        if let Some(last) = self.points.last_mut()
            && last.count < self.per_point.0
        {
            *last = last.merge(point);
            return;
        }
        self.make_room();
        self.points.push(point);
    }

    /// Adds a value of an earlier generation before those of later ones; they have replaced it where they began
    /// before it.
    fn insert(&mut self, point: SeriesPoint) {
        self.make_room();
        let at = self.points.partition_point(|known| known.place.step <= point.place.step);
        match at.checked_sub(1).map(|before| self.points[before].place.generation) {
            Some(before) if before > point.place.generation => self.push_past(point.place, point.mean),
            Some(_) | None => self.points.insert(at, point),
        }
    }

    fn make_room(&mut self) {
        if self.points.len() >= CAPACITY {
            self.per_point.0 = self.per_point.0.saturating_mul(2);
            let halves = self.points.chunks(2);
            self.points =
                halves.map(|pair| pair.iter().skip(1).fold(pair[0], |all, next| all.merge(*next))).collect();
        }
    }

    /// Adds a value that a restart has thrown away.
    pub fn push_past(&mut self, place: Place, y: f64) {
        if y.is_finite() {
            let at = self.past.partition_point(|known| order(known.place, place).is_le());
            self.past.insert(at, SeriesPoint { place, mean: y, low: y, high: y, count: 1 });
            self.thin();
        }
    }

    /// Sorts all points again: those at places that `keeps` names are of the present line, unless a later
    /// generation has repeated their steps.
    pub fn split(&mut self, keeps: impl Fn(Place) -> bool) {
        let all = std::mem::take(&mut self.past).into_iter().chain(std::mem::take(&mut self.points));
        let (mut kept, mut past): (Vec<_>, Vec<_>) = all.partition(|point| keeps(point.place));
        let latest_first =
            |a: Place, b: Place| a.step.total_cmp(&b.step).then(b.generation.cmp(&a.generation));
        // Both sorts are stable.
        kept.sort_by(|a, b| latest_first(a.place, b.place));
        let mut latest = Generation(0);
        kept.retain(|point| {
            latest = latest.max(point.place.generation);
            let is_latest = point.place.generation == latest;
            past.extend((!is_latest).then_some(*point));
            is_latest
        });
        past.sort_by(|a, b| order(a.place, b.place));
        (self.points, self.past) = (kept, past);
        while self.points.len() > CAPACITY {
            self.make_room();
        }
        self.thin();
        if self.points.is_empty() {
            self.per_point = Doubling::default();
        }
        if self.newest.is_none() || !keeps(self.newest_at) {
            let last = self.points.last();
            self.newest = last.map(|last| last.mean);
            self.newest_at = last.map(|last| last.place).unwrap_or_default();
        }
        let marks = self.marks.len();
        self.marks.retain(|mark| keeps(*mark));
        if self.marks.len() < marks {
            // Each mark stands for one value at least.
            self.not_finite = self.marks.len() as u64;
            self.broken_at = self.marks.last().map(|mark| mark.step);
            self.since = self.broken_at.unwrap_or(0.0);
        }
    }

    /// Keeps the bound of what was thrown away: neighbors of a generation are merged; where that is not
    /// enough, the oldest go.
    fn thin(&mut self) {
        while self.past.len() > CAPACITY {
            let before = self.past.len();
            let of_one = self.past.chunk_by(|a, b| a.place.generation == b.place.generation);
            let merged = of_one.flat_map(|points| points.chunks(2)).map(|pair| {
                let (first, rest) = (pair[0], &pair[1..]);
                rest.iter().fold(first, |all, next| all.merge(*next))
            });
            self.past = merged.collect();
            if self.past.len() == before {
                self.past.drain(..before - CAPACITY);
            }
        }
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

    /// What restarts have thrown away: the points of one generation after another, oldest first.
    pub fn past(&self) -> impl Iterator<Item = (Generation, &[SeriesPoint])> {
        let of_one = self.past.chunk_by(|a, b| a.place.generation == b.place.generation);
        of_one.filter_map(|points| Some((points.first()?.place.generation, points)))
    }

    /// Steps per second over the whole present line: the time between its points, without the pauses between
    /// generations.
    pub fn steps_per_s(&self) -> Option<f64> {
        let pairs = self.points.windows(2).map(|pair| (pair[0].place, pair[1].place));
        let pairs = pairs.filter(|(a, b)| a.generation == b.generation && b.time > a.time);
        let (steps, seconds) =
            pairs.fold((0.0, 0.0), |sum, (a, b)| (sum.0 + b.step - a.step, sum.1 + b.time - a.time));
        (seconds > 0.0).then(|| steps / seconds)
    }

    /// What one step of [`Place::step`] is: `step`, or what the program counts instead, such as `epoch`.
    pub fn unit(&self) -> &str {
        if self.unit.is_empty() { "step" } else { &self.unit }
    }

    /// Sets what its steps count, as of the newest value.
    pub fn count_in(&mut self, unit: &str) {
        if self.unit() != unit {
            unit.clone_into(&mut self.unit);
        }
    }

    /// The points of the present line, oldest first.
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

    /// The greatest step of all values, including those that are not points.
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

/// By generation, then by step.
fn order(a: Place, b: Place) -> Ordering {
    a.generation.cmp(&b.generation).then(a.step.total_cmp(&b.step))
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
        Place { step, time: step / 10.0, generation: Generation(0) }
    }

    fn of(generation: u32, step: f64) -> Place {
        Place { generation: Generation(generation), ..at(step) }
    }

    fn steps(points: &[SeriesPoint]) -> Vec<f64> {
        points.iter().map(|point| point.place.step).collect()
    }

    #[test]
    fn later_generation_replaces_the_steps_it_repeats() {
        let mut series = Series::default();
        (0..10).for_each(|step| series.push(of(0, f64::from(step)), 1.0));
        series.push(of(0, 4.0), 9.0);
        (5..8).for_each(|step| series.push(of(1, f64::from(step)), 2.0));
        assert_eq!(steps(series.points()), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        assert_eq!((series.last(), series.reach()), (Some(2.0), Some(7.0)));
        let past: Vec<_> = series.past().map(|(of, points)| (of.0, steps(points))).collect();
        assert_eq!(past, [(0, vec![5.0, 6.0, 7.0, 8.0, 9.0])]);
        series.push(of(2, 0.0), 3.0);
        let past: Vec<_> = series.past().map(|(of, points)| (of.0, points.len())).collect();
        assert_eq!((series.points().len(), past), (1, vec![(0, 10), (1, 3)]));
    }

    #[test]
    fn split_takes_newest_value_and_marks_along() {
        let mut series = Series::default();
        series.push(of(0, 1.0), 0.5);
        series.push(of(0, 2.0), f64::NAN);
        series.push(of(0, 3.0), f64::NAN);
        series.split(|place| place.step <= 2.0);
        assert_eq!((series.marks().len(), series.not_finite(), series.reach()), (1, 1, Some(2.0)));
        series.split(|_| false);
        assert_eq!((series.last(), series.not_finite(), series.reach()), (None, 0, None));
        assert!(series.points().is_empty() && series.past().count() == 1);
        series.split(|_| true);
        assert_eq!((series.points().len(), series.past().count()), (1, 0), "it counts again");
    }

    #[test]
    fn earlier_generation_read_later_takes_its_place() {
        let mut series = Series::default();
        series.push(of(1, 5.0), 2.0);
        series.push(of(0, 1.0), 1.0);
        series.push(of(0, 2.0), 1.0);
        assert_eq!(steps(series.points()), [1.0, 2.0, 5.0]);
        assert_eq!(series.last(), Some(2.0));
        series.push(of(0, 9.0), 1.0);
        series.push_past(of(0, 8.0), 1.0);
        series.push_past(of(0, 8.5), f64::NAN);
        assert_eq!(series.past().map(|(_, points)| steps(points)).collect::<Vec<_>>(), [[8.0, 9.0]]);
    }

    #[test]
    fn past_is_bounded() {
        let mut series = Series::default();
        for generation in 0..CAPACITY as u32 * 2 {
            (0..3).for_each(|step| series.push(of(generation, f64::from(step)), 1.0));
        }
        assert!(series.is_sound() && series.past().count() > CAPACITY / 2);
        let newest = series.past().last().unwrap().0;
        assert_eq!(newest.0, CAPACITY as u32 * 2 - 2, "the oldest went");
    }

    #[test]
    fn points_of_earlier_recordings_have_generation_0() {
        let old: SeriesPoint = serde_json::from_str("[1.0,2.0,3.0,3.0,3.0,1]").unwrap();
        assert_eq!((old.place, old.count), (Place { time: 2.0, ..of(0, 1.0) }, 1));
        for generation in [0, 7] {
            let point = SeriesPoint { place: of(generation, 3.0), mean: 1.0, ..old };
            let text = serde_json::to_string(&point).unwrap();
            assert_eq!(serde_json::from_str::<SeriesPoint>(&text).unwrap(), point);
        }
        assert!(serde_json::from_str::<SeriesPoint>("[1.0,2.0]").is_err());
    }

    #[test]
    fn average_speed_leaves_out_restarts() {
        let mut series = Series::default();
        let at = |generation, step, time| Place { step, time, generation: Generation(generation) };
        for place in [at(0, 0.0, 0.0), at(0, 100.0, 1.0), at(1, 200.0, 100.0), at(1, 400.0, 102.0)] {
            series.push(place, 1.0);
        }
        assert_eq!(series.steps_per_s(), Some(100.0));
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
