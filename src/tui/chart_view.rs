//! How the charts are looked at: the axis, the window on it, smoothing, cursor. Pure.

use crate::text;
use rankdeck_core::compare::ComparedRun;
use rankdeck_core::model::Model;
use rankdeck_core::series::{Place, Series};
use std::collections::BTreeMap;

/// Weights of the past that `s` goes through.
const SMOOTHING: [f64; 7] = [0.0, 0.3, 0.6, 0.8, 0.9, 0.95, 0.99];
/// Parts of the window that the cursor moves by.
const PARTS: f64 = 100.0;
/// Part of a heat map's height that its cursor moves by.
const ROW: f64 = 1.0 / 24.0;
/// Most other runs that are drawn over the run that is shown.
pub const BESIDE: usize = 4;
/// Letters of curves.
const LETTERS: &[u8; 26] = b"abcdefghijklmnopqrstuvwxyz";
/// Greatest zoom: the span was halved so often.
const MOST_ZOOM: u8 = 12;

/// What the x axis counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Axis {
    /// Environment steps.
    #[default]
    Steps,
    /// Time since the first value.
    Time,
    /// The clock on the wall.
    Wall,
}

impl Axis {
    /// The next one, as `a` goes through them.
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

    /// The axis of this name.
    pub fn named(name: &str) -> Option<Axis> {
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
    /// When the first value came, seconds since the epoch.
    pub origin: f64,
    /// Seconds to add for the user's own time zone.
    pub utc_offset_s: i64,
}

impl Scale {
    /// Where a place is on it.
    pub fn of(&self, place: Place) -> f64 {
        match self.axis {
            Axis::Steps => place.step,
            Axis::Time => place.time - self.origin,
            Axis::Wall => place.time,
        }
    }

    /// Labels that tell positions of one window apart.
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

    /// One position: a time to the second, with its day where that is not the one on which the run began.
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

/// `14:03:11`, or `11-23 14:03` where days matter.
fn clock_time(seconds: f64, digits: usize, days: bool) -> String {
    if !seconds.is_finite() || seconds.abs() > 1e12 {
        return text::si(seconds);
    }
    let whole = seconds.floor() as i64;
    let second = whole.rem_euclid(86_400);
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    if days {
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
    // Years that begin in March have their odd day at the end; 400 years have 146,097 days.
    let shifted = (day + 719_468).rem_euclid(146_097);
    let year = (shifted - shifted / 1460 + shifted / 36_524 - shifted / 146_096) / 365;
    let of_year = shifted - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    (if month < 10 { month + 3 } else { month - 9 }, of_year - (153 * month + 2) / 5 + 1)
}

/// Span and position of the x axis.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ChartWindow {
    /// How often the span was halved.
    pub zoom: u8,
    /// First and last position shown, once the user has moved it; `None` follows the newest.
    pub held: Option<(f64, f64)>,
}

/// Another run whose series are drawn over those of the run that is shown.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ComparedCurves {
    pub name: String,
    pub series: BTreeMap<String, Series>,
    /// When its first value came.
    origin: f64,
}

impl ComparedCurves {
    /// A recorded run.
    pub fn new(run: ComparedRun) -> ComparedCurves {
        let origin = run.series.values().filter_map(first).reduce(f64::min).unwrap_or(0.0);
        ComparedCurves { name: run.run, series: run.series, origin }
    }

    /// An axis of the run that is shown, with this run's own origin.
    pub fn scale(&self, shown: &Scale) -> Scale {
        Scale { origin: self.origin, ..*shown }
    }
}

/// When the first value of a series came.
fn first(series: &Series) -> Option<f64> {
    let places = series.points().first().map(|point| point.place).into_iter();
    places.chain(series.marks().first().copied()).map(|place| place.time).reduce(f64::min)
}

/// First and last places of a series.
fn outermost(series: &Series) -> impl Iterator<Item = Place> {
    let points = [series.points().first(), series.points().last()].into_iter().flatten();
    let marks = [series.marks().first(), series.marks().last()].into_iter().flatten();
    points.map(|point| point.place).chain(marks.copied())
}

/// How the charts are looked at.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ChartView {
    /// The x axis.
    pub axis: Axis,
    /// The window on it.
    pub window: ChartWindow,
    /// Which of the weights of smoothing.
    smoothing: usize,
    /// The y axis is logarithmic.
    pub log: bool,
    /// All shown series in one chart.
    pub together: bool,
    /// A position whose values are told.
    pub cursor: Option<f64>,
    /// A position that the cursor's values are compared with.
    pub pin: Option<f64>,
    /// The row of heat maps that is looked at, from 0 at the bottom to 1 at the top; `None`: the fullest bin.
    pub height: Option<f64>,
    /// The mouse is dragging the cursor away from the pin.
    pub dragged: bool,
    /// Seconds to add to UTC for the user's own time zone.
    pub utc_offset_s: i64,
    /// Other runs, bounded by [`BESIDE`].
    pub compared: Vec<ComparedCurves>,
    /// Seconds since the newest value, while one is due: a stall has its width on the axes of time.
    pub late_s: f64,
}

impl ChartView {
    /// Weight of the past in what is drawn; 0 draws the values themselves.
    pub fn weight(&self) -> f64 {
        SMOOTHING.get(self.smoothing).copied().unwrap_or(0.0)
    }

    /// More or less smoothing.
    pub fn smoother(&mut self, by: i8) {
        self.smoothing = self.smoothing.saturating_add_signed(isize::from(by)).min(SMOOTHING.len() - 1);
    }

    /// The weight nearest to this one.
    pub fn set_weight(&mut self, weight: f64) {
        let far = |of: f64| (of - weight).abs();
        let nearest = SMOOTHING.iter().enumerate().min_by(|a, b| far(*a.1).total_cmp(&far(*b.1)));
        self.smoothing = nearest.map_or(0, |(i, _)| i);
    }

    /// The axis with the run's origin.
    pub fn scale(&self, model: &Model) -> Scale {
        let origin = model.charts().filter_map(|(_, series)| first(series)).reduce(f64::min);
        Scale { axis: self.axis, origin: origin.unwrap_or(0.0), utc_offset_s: self.utc_offset_s }
    }

    /// First and last position of all series, those of other runs included.
    fn ends(&self, model: &Model) -> Option<(f64, f64)> {
        self.ends_with(model, &self.compared)
    }

    fn ends_with(&self, model: &Model, compared: &[ComparedCurves]) -> Option<(f64, f64)> {
        let scale = self.scale(model);
        let own = model.charts().flat_map(|(_, series)| outermost(series)).map(|place| scale.of(place));
        let others = compared.iter().flat_map(|run| {
            let scale = run.scale(&scale);
            run.series.values().flat_map(outermost).map(move |place| scale.of(place))
        });
        let all = own.chain(others);
        let (low, high) =
            all.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), at| (low.min(at), high.max(at)));
        let low = if self.axis == Axis::Wall { low } else { low.min(0.0) };
        let high = if self.axis == Axis::Steps { high } else { high + self.late_s };
        (low.is_finite() && high.is_finite()).then_some((low, high))
    }

    /// The window: the whole run, or a part of it.
    pub fn window(&self, model: &Model) -> (f64, f64) {
        self.window_of(self.ends(model))
    }

    /// The same of this run alone, where no other is drawn.
    pub fn own_window(&self, model: &Model) -> (f64, f64) {
        self.window_of(self.ends_with(model, &[]))
    }

    fn window_of(&self, ends: Option<(f64, f64)>) -> (f64, f64) {
        if let Some(held) = self.window.held {
            return held;
        }
        let Some((low, high)) = ends else { return (0.0, 1.0) };
        let span = (high - low).max(1.0) / 2f64.powi(i32::from(self.window.zoom));
        let end = high.max(low + span);
        (end - span, end)
    }

    /// Moves the window by quarters of its span; where it reaches the newest value it follows again.
    pub fn pan(&mut self, model: &Model, quarters: i8) {
        let Some((low, high)) = self.ends(model) else { return };
        let (from, to) = self.window(model);
        let span = to - from;
        let end = (to + span / 4.0 * f64::from(quarters)).max(low + span);
        self.window.held = (end < high).then_some((end - span, end));
    }

    /// Halves or doubles the span, around the cursor where it is in the window.
    pub fn zoom(&mut self, model: &Model, by: i8) {
        self.zoom_around(model, by, self.cursor);
    }

    /// Halves or doubles the span, around a position where that is in the window.
    pub fn zoom_around(&mut self, model: &Model, by: i8, around: Option<f64>) {
        let zoom = self.window.zoom.saturating_add_signed(by).min(MOST_ZOOM);
        let Some((low, high)) = self.ends(model).filter(|_| zoom > 0 && zoom != self.window.zoom) else {
            if zoom == 0 {
                self.window = ChartWindow::default();
            }
            return;
        };
        let (from, to) = self.window(model);
        let around = around.filter(|at| (from..=to).contains(at));
        let held = self.window.held.is_some() || around.is_some();
        let held = held.then(|| {
            // What is looked at stays where it is on the screen.
            let (fixed, shrink) = (around.unwrap_or((from + to) / 2.0), 2f64.powi(i32::from(by)));
            let begin = (fixed - (fixed - from) / shrink).max(low);
            (begin, begin + (to - from) / shrink)
        });
        self.window = ChartWindow { zoom, held: held.filter(|held| held.1 < high) };
    }

    /// Goes to another axis; the window, the cursor and the pin stay where they are in the run.
    pub fn turn(&mut self, model: &Model, axis: Axis) {
        let before = self.scale(model);
        self.axis = axis;
        let after = self.scale(model);
        let places: Vec<Place> =
            model.charts().flat_map(|(_, series)| series.points().iter().map(|point| point.place)).collect();
        let moved = |at: f64| {
            let far = |place: &Place| (before.of(*place) - at).abs();
            let nearest = places.iter().min_by(|a, b| far(a).total_cmp(&far(b)));
            nearest.map(|place| after.of(*place))
        };
        (self.cursor, self.pin) = (self.cursor.and_then(moved), self.pin.and_then(moved));
        let held = self.window.held.and_then(|(from, to)| Some((moved(from)?, moved(to)?)));
        self.window.held = held.filter(|(from, to)| from < to);
    }

    /// Moves the cursor, and the window with it where it would leave it.
    pub fn move_cursor(&mut self, model: &Model, by: i8) {
        let Some((low, high)) = self.ends(model) else { return };
        let (from, to) = self.window(model);
        let step = (to - from) / PARTS * f64::from(by);
        let at = self.cursor.map_or(to, |at| at + step).clamp(low, high);
        self.cursor = Some(at);
        if self.window.zoom > 0 && !(from..=to).contains(&at) {
            let shift = if at < from { at - from } else { at - to };
            self.window.held = Some((from + shift, to + shift)).filter(|held| held.1 < high);
        }
    }

    /// Puts the cursor to a position; `dragged` there, the pin stays where the mouse was pressed.
    pub fn put_cursor(&mut self, at: f64, dragged: bool) {
        if dragged && !self.dragged {
            self.pin = self.cursor;
        }
        (self.cursor, self.dragged) = (Some(at), dragged);
    }

    /// Looks at a higher row of heat maps, or a lower one.
    pub fn move_height(&mut self, by: i8) {
        let from = self.height.unwrap_or(if by > 0 { -ROW } else { 1.0 + ROW });
        self.height = Some((from + ROW * f64::from(by)).clamp(0.0, 1.0));
    }

    /// Pins the cursor's position, or lets it go.
    pub fn pin_cursor(&mut self) {
        self.pin = match self.pin {
            Some(pin) if Some(pin) == self.cursor => None,
            _ => self.cursor,
        };
    }
}

/// The letter of a curve among others.
pub fn letter(at: usize) -> char {
    LETTERS[at % LETTERS.len()].into()
}

/// The value of a series nearest to a position, and where exactly it is.
pub fn value_at(series: &Series, scale: &Scale, at: f64) -> Option<(f64, f64)> {
    let far = |x: f64| (x - at).abs();
    let points = series.points().iter().map(|point| (scale.of(point.place), point.mean));
    points.min_by(|a, b| far(a.0).total_cmp(&far(b.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(values: usize) -> Model {
        let mut model = Model::default();
        grow(&mut model, 0..values);
        model
    }

    fn grow(model: &mut Model, values: std::ops::Range<usize>) {
        let series = model.scalars.entry("loss".into()).or_default();
        for i in values {
            series.push(Place { step: i as f64 * 100.0, time: 1000.0 + i as f64 * 2.0 }, i as f64);
        }
    }

    #[test]
    fn a_window_that_was_moved_stays_where_it_is() {
        let mut model = model(100);
        let mut view = ChartView::default();
        view.zoom(&model, 1);
        view.pan(&model, -1);
        let before = view.window(&model);
        grow(&mut model, 100..900);
        assert_eq!(view.window(&model), before);
        view.zoom(&model, 1);
        let closer = view.window(&model);
        assert_eq!((closer.0 + closer.1) / 2.0, (before.0 + before.1) / 2.0, "zoom keeps the middle");
    }

    #[test]
    fn a_longer_run_beside_does_not_stretch_the_window_of_the_run_alone() {
        let (short, long) = (model(100), model(400));
        let curves = ComparedCurves::new(ComparedRun {
            run: "long".into(),
            series: long.scalars,
            ..Default::default()
        });
        let view = ChartView { compared: vec![curves], ..ChartView::default() };
        assert_eq!((view.window(&short).1, view.own_window(&short).1), (39_900.0, 9_900.0));
    }

    #[test]
    fn another_axis_shows_the_same_part_of_the_run() {
        let model = model(100);
        let mut view = ChartView { cursor: Some(4000.0), ..ChartView::default() };
        view.zoom(&model, 2);
        let steps = view.window(&model);
        assert!(steps.0 < 4000.0 && 4000.0 < steps.1, "zoom is around the cursor: {steps:?}");
        view.turn(&model, Axis::Time);
        assert_eq!(view.cursor, Some(80.0));
        let time = view.window(&model);
        assert!((time.0 - steps.0 / 50.0).abs() <= 2.0 && (time.1 - steps.1 / 50.0).abs() <= 2.0, "{time:?}");
        view.turn(&model, Axis::Wall);
        assert_eq!(view.cursor, Some(1080.0));
    }

    #[test]
    fn labels_of_times_are_apart_at_any_zoom() {
        let scale = |axis| Scale { axis, ..Scale::default() };
        let [a, b, c] = scale(Axis::Time).labels([0.0, 3723.0, 7446.0]);
        assert_eq!([a.as_str(), &b, &c], ["0s", "1h 02m 3s", "2h 04m 6s"]);
        let [a, b] = scale(Axis::Time).labels([61.25, 61.5]);
        assert_eq!([a.as_str(), &b], ["1m 1.2s", "1m 1.5s"]);
        let [a, b] = scale(Axis::Wall).labels([1_767_268_800.0, 1_767_268_860.0]);
        assert_eq!([a.as_str(), &b], ["12:00:00", "12:01:00"]);
        let [a, b] = scale(Axis::Wall).labels([1_767_268_800.0, 1_767_528_000.0]);
        assert_eq!([a.as_str(), &b], ["01-01 12:00", "01-04 12:00"]);
        let wall = Scale { origin: 1_767_268_800.0, ..scale(Axis::Wall) };
        assert_eq!(wall.label(1_767_268_803.7), "12:00:03", "a single one keeps its seconds");
        assert_eq!(wall.label(1_767_355_203.0), "01-02 12:00:03");
        assert_eq!(scale(Axis::Time).label(63.0), "1m 3s");
        let [a, b] = scale(Axis::Steps).labels([1_020_000.0, 1_020_400.0]);
        assert_ne!(a, b);
        for day in 0..200_000 {
            let (month, day) = month_and_day(day);
            assert!((1..=12).contains(&month) && (1..=31).contains(&day));
        }
    }

    #[test]
    fn the_cursor_takes_the_window_with_it() {
        let model = model(100);
        let mut view = ChartView::default();
        view.zoom(&model, 3);
        view.move_cursor(&model, -1);
        let from = view.window(&model).0;
        (0..250).for_each(|_| view.move_cursor(&model, -1));
        let (low, high) = view.window(&model);
        assert!(low < from, "{low} {from}");
        let cursor = view.cursor.unwrap();
        assert!((low..=high).contains(&cursor), "{cursor} {low} {high}");
        view.pin_cursor();
        assert_eq!(view.pin, view.cursor);
        view.pin_cursor();
        assert_eq!(view.pin, None);
    }
}
