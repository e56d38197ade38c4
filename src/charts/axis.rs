//! X axes: environment steps, elapsed time or wall clock, with their labels.

use rankdeck_core::series::{Place, Series, SeriesPoint, smooth};
use rankdeck_kit::plot::{Axes, Dot, Trace};
use rankdeck_kit::text;
use rankdeck_types::ids::Generation;
use rankdeck_types::words;
use ratatui::style::Style;
use std::borrow::Cow;

/// What the x axis counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Axis {
    /// Environment steps.
    #[default]
    Steps,
    /// Time since the first value.
    Time,
    /// Time of day.
    Wall,
}

impl Axis {
    /// Returns the next axis of the cycle.
    pub fn next(self) -> Axis {
        match self {
            Axis::Steps => Axis::Time,
            Axis::Time => Axis::Wall,
            Axis::Wall => Axis::Steps,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Steps => "steps",
            Axis::Time => "time",
            Axis::Wall => "wall clock",
        }
    }

    /// Its name over series: `epochs` if all of them count those instead of steps.
    pub fn name_over<'a>(self, series: impl IntoIterator<Item = &'a Series>) -> Cow<'static, str> {
        let mut units = series.into_iter().map(Series::unit);
        match units.next() {
            Some(unit) if self == Axis::Steps && unit != "step" && units.all(|other| other == unit) => {
                format!("{}s", words::clean(unit)).into()
            }
            _ => self.name().into(),
        }
    }

    /// Parses `steps`, `time` or `wall`.
    pub fn from_name(name: &str) -> Option<Axis> {
        match name {
            "steps" => Some(Axis::Steps),
            "time" => Some(Axis::Time),
            "wall" => Some(Axis::Wall),
            _ => None,
        }
    }
}

/// An axis with its origin.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Scale {
    /// What it counts.
    pub axis: Axis,
    /// Time of the first value, in seconds since the epoch.
    pub origin: f64,
    /// Offset of the user's time zone from UTC, in seconds.
    pub utc_offset_s: i64,
}

impl Scale {
    /// Returns the position of a point on the axis.
    pub fn position(&self, place: Place) -> f64 {
        match self.axis {
            Axis::Steps => place.step,
            Axis::Time => place.time - self.origin,
            Axis::Wall => place.time,
        }
    }

    /// Labels positions of one window with as many digits as they need to differ.
    pub fn labels<const N: usize>(&self, at: [f64; N]) -> [String; N] {
        if self.axis == Axis::Steps {
            return text::apart(at);
        }
        let least = at.windows(2).map(|two| two[1] - two[0]).fold(f64::INFINITY, f64::min);
        let digits = match least {
            gap if gap < 0.1 => 2,
            gap if gap < 10.0 => 1,
            _ => 0,
        };
        at.map(|seconds| match self.axis {
            Axis::Wall => clock_time(seconds + self.utc_offset_s as f64, digits, least >= 43_200.0),
            Axis::Steps | Axis::Time => elapsed(seconds, digits),
        })
    }

    /// Labels one position. Wall clock labels have seconds, and the date unless it is the day of the origin.
    pub fn label(&self, at: f64) -> String {
        if self.axis != Axis::Wall {
            let [label] = self.labels([at]);
            return label;
        }
        let local = |seconds: f64| seconds + self.utc_offset_s as f64;
        let day = |seconds: f64| (local(seconds) / 86_400.0).floor();
        let clock = clock_time(local(at), 0, false);
        if day(at) == day(self.origin) {
            return clock;
        }
        let date = clock_time(local(at), 0, true);
        let date = date.split_once(' ').map_or("", |(date, _)| date);
        format!("{date} {clock}").trim_start().to_owned()
    }

    /// Returns linear axes over a window.
    pub fn axes(&self, x: (f64, f64)) -> Axes {
        Axes::new(x, self.labels([x.0, (x.0 + x.1) / 2.0, x.1]))
    }

    /// Returns the points of a series, smoothed by the weight of the past.
    pub fn dots(&self, series: &Series, weight: f64) -> Vec<Dot> {
        let smoothed = smooth(series.points().iter().map(|point| point.mean), weight);
        let points = series.points().iter().zip(smoothed);
        let dot = |(point, y): (&SeriesPoint, f64)| Dot {
            x: self.position(point.place),
            y,
            low: point.low,
            high: point.high,
            count: point.count,
        };
        points.map(dot).collect()
    }

    /// Returns a smoothed series as a line.
    pub fn line(&self, series: &Series, weight: f64, style: Style) -> Trace {
        let broken = series.marks().iter().map(|place| self.position(*place)).collect();
        Trace { dots: self.dots(series, weight), broken, style, single: false, letter: None }
    }

    /// Returns what restarts have thrown away of a series, one line per generation, oldest first. Each line ends
    /// in the generation's number.
    pub fn past_lines(&self, series: &Series, weight: f64, style: Style) -> Vec<Trace> {
        let line = |(generation, points): (Generation, &[SeriesPoint])| {
            let means = smooth(points.iter().map(|point| point.mean), weight);
            let dots = points.iter().zip(means).map(|(point, y)| (self.position(point.place), y));
            Trace { letter: char::from_digit(generation.0, 10), ..Trace::plain(dots, style, false) }
        };
        series.past().map(line).collect()
    }
}

/// `1h 02m 03s`, with as many parts as it needs.
fn elapsed(seconds: f64, digits: usize) -> String {
    let sign = if seconds < 0.0 { "-" } else { "" };
    let all = seconds.abs();
    if !all.is_finite() || all >= 1e9 {
        return text::si(seconds);
    }
    let whole = if digits == 0 { all.round() } else { all.floor() } as u64;
    let (h, m, s) = (whole / 3600, whole / 60 % 60, whole % 60);
    let s = if digits == 0 { s.to_string() } else { format!("{:.digits$}", s as f64 + all.fract()) };
    match (h, m) {
        (0, 0) => format!("{sign}{s}s"),
        (0, m) => format!("{sign}{m}m {s}s"),
        (h, m) => format!("{sign}{h}h {m:02}m {s}s"),
    }
}

/// `14:03:11`, or `11-23 14:03` with dates.
fn clock_time(seconds: f64, digits: usize, dates: bool) -> String {
    if !seconds.is_finite() || seconds.abs() > 1e12 {
        return text::si(seconds);
    }
    let whole = seconds.floor() as i64;
    let second = whole.rem_euclid(86_400);
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    if dates {
        let (month, day) = month_and_day(whole.div_euclid(86_400));
        return format!("{month:02}-{day:02} {h:02}:{m:02}");
    }
    match digits {
        0 => format!("{h:02}:{m:02}:{s:02}"),
        _ => format!("{h:02}:{m:02}:{:0w$.digits$}", s as f64 + seconds.fract().abs(), w = digits + 3),
    }
}

/// Month and day of a day since 1970-01-01, in the Gregorian calendar.
fn month_and_day(day: i64) -> (i64, i64) {
    // In years that start in March, the leap day is the last one; 400 years have 146,097 days.
    let shifted = (day + 719_468).rem_euclid(146_097);
    let year = (shifted - shifted / 1460 + shifted / 36_524 - shifted / 146_096) / 365;
    let of_year = shifted - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    (if month < 10 { month + 3 } else { month - 9 }, of_year - (153 * month + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_labels_differ_at_any_zoom() {
        let scale = |axis| Scale { axis, ..Scale::default() };
        let [a, b, c] = scale(Axis::Time).labels([0.0, 3723.0, 7446.0]);
        assert_eq!([a.as_str(), &b, &c], ["0s", "1h 02m 3s", "2h 04m 6s"]);
        let [a, b] = scale(Axis::Time).labels([61.25, 61.5]);
        assert_eq!([a.as_str(), &b], ["1m 1.2s", "1m 1.5s"]);
        let [a, b] = scale(Axis::Wall).labels([1_767_268_800.0, 1_767_268_860.0]);
        assert_eq!([a.as_str(), &b], ["12:00:00", "12:01:00"]);
        let [a, b] = scale(Axis::Wall).labels([1_767_268_800.0, 1_767_528_000.0]);
        assert_eq!([a.as_str(), &b], ["01-01 12:00", "01-04 12:00"]);
        let [a, b] = scale(Axis::Steps).labels([1_020_000.0, 1_020_400.0]);
        assert_ne!(a, b);
    }

    #[test]
    fn axis_of_epochs_is_named_by_its_unit() {
        let (mut epochs, steps) = (Series::default(), Series::default());
        epochs.count_in("epoch");
        assert_eq!(Axis::Steps.name_over([&epochs, &epochs]), "epochs");
        assert_eq!(Axis::Steps.name_over([&epochs, &steps]), "steps");
        assert_eq!(Axis::Steps.name_over([&steps]), "steps");
        assert_eq!(Axis::Time.name_over([&epochs]), "time");
    }

    #[test]
    fn single_wall_clock_label_keeps_seconds_and_date() {
        let wall = Scale { axis: Axis::Wall, origin: 1_767_268_800.0, utc_offset_s: 0 };
        assert_eq!(wall.label(1_767_268_803.7), "12:00:03");
        assert_eq!(wall.label(1_767_355_203.0), "01-02 12:00:03");
        let time = Scale { axis: Axis::Time, ..Scale::default() };
        assert_eq!(time.label(63.0), "1m 3s");
    }

    #[test]
    fn month_and_day_are_in_range_for_any_day() {
        for day in 0..200_000 {
            let (month, day) = month_and_day(day);
            assert!((1..=12).contains(&month) && (1..=31).contains(&day));
        }
    }
}
