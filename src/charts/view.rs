//! How charts are viewed: axis, window, smoothing, cursor and overlaid runs.

use crate::axis::{Axis, Scale};
use rankdeck_core::compare::ComparedRun;
use rankdeck_core::model::Model;
use rankdeck_core::series::{Place, Series};
use rankdeck_kit::plot::Trace;
use ratatui::style::Style;
use std::collections::BTreeMap;

/// Smoothing weights, in order.
const SMOOTHING: [f64; 7] = [0.0, 0.3, 0.6, 0.8, 0.9, 0.95, 0.99];
/// Cursor positions per window.
const CURSOR_STEPS: f64 = 100.0;
/// Height of one row of a heat map's cursor, as a share of the map.
const ROW: f64 = 1.0 / 24.0;
/// Maximum number of overlaid runs.
pub const MAX_COMPARED: usize = 4;
/// Letters of curves.
const LETTERS: &[u8; 26] = b"abcdefghijklmnopqrstuvwxyz";
/// Maximum zoom: how often the span can be halved.
const MAX_ZOOM: u8 = 12;

/// Span and position of the x axis.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ChartWindow {
    /// How often the span was halved.
    pub zoom: u8,
    /// First and last position, once the user has moved the window; `None` follows the newest value.
    pub held: Option<(f64, f64)>,
}

/// A recorded run that is overlaid on the charts of the shown run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ComparedCurves {
    pub name: String,
    pub series: BTreeMap<String, Series>,
    /// Time of its first value.
    origin: f64,
}

impl ComparedCurves {
    /// Takes the series of a recorded run.
    pub fn new(run: ComparedRun) -> ComparedCurves {
        let origin = run.series.values().filter_map(first_time).reduce(f64::min).unwrap_or(0.0);
        ComparedCurves { name: run.run, series: run.series, origin }
    }

    /// Returns the axis of the shown run with this run's origin.
    pub fn scale(&self, shown: &Scale) -> Scale {
        Scale { origin: self.origin, ..*shown }
    }
}

/// Time of the first value of a series, be it of an abandoned generation.
fn first_time(series: &Series) -> Option<f64> {
    let places = series.points().first().map(|point| point.place).into_iter();
    let places = places.chain(series.marks().first().copied()).chain(abandoned(series));
    places.map(|place| place.time).reduce(f64::min)
}

/// First and last places of each generation's part that a restart has thrown away.
fn abandoned(series: &Series) -> impl Iterator<Item = Place> {
    let ends = series.past().flat_map(|(_, points)| [points.first(), points.last()]);
    ends.flatten().map(|point| point.place)
}

/// First and last places of a series.
fn outermost(series: &Series) -> impl Iterator<Item = Place> {
    let points = [series.points().first(), series.points().last()].into_iter().flatten();
    let marks = [series.marks().first(), series.marks().last()].into_iter().flatten();
    points.map(|point| point.place).chain(marks.copied())
}

/// How charts are viewed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ChartView {
    /// The x axis.
    pub axis: Axis,
    /// The window on it.
    pub window: ChartWindow,
    /// Index of the smoothing weight.
    smoothing: usize,
    /// The y axis is logarithmic.
    pub log: bool,
    /// All shown series share one chart.
    pub together: bool,
    /// What restarts have thrown away is hidden.
    pub present_only: bool,
    /// Position of the cursor.
    pub cursor: Option<f64>,
    /// Position that the cursor is compared with.
    pub pin: Option<f64>,
    /// Height of the cursor in heat maps, from 0 at the bottom to 1 at the top; `None`: the fullest bin.
    pub height: Option<f64>,
    /// The mouse is dragging the cursor away from the pin.
    pub dragged: bool,
    /// Offset of the user's time zone from UTC, in seconds.
    pub utc_offset_s: i64,
    /// Overlaid runs, at most [`MAX_COMPARED`].
    pub compared: Vec<ComparedCurves>,
    /// Seconds since the newest value while another one is due, so that a stall has its width on time axes.
    pub late_s: f64,
}

impl ChartView {
    /// Weight of the past in smoothed lines; 0 draws the values themselves.
    pub fn weight(&self) -> f64 {
        SMOOTHING.get(self.smoothing).copied().unwrap_or(0.0)
    }

    /// Returns what restarts have thrown away of a series, unless it is hidden.
    pub fn past_lines(&self, series: &Series, scale: &Scale, style: Style) -> Vec<Trace> {
        if self.present_only {
            return Vec::new();
        }
        scale.past_lines(series, self.weight(), style)
    }

    /// Smooths more or less.
    pub fn adjust_smoothing(&mut self, by: i8) {
        self.smoothing = self.smoothing.saturating_add_signed(isize::from(by)).min(SMOOTHING.len() - 1);
    }

    /// Sets the weight that is nearest to `weight`.
    pub fn set_weight(&mut self, weight: f64) {
        let distance = |of: f64| (of - weight).abs();
        let nearest = SMOOTHING.iter().enumerate().min_by(|a, b| distance(*a.1).total_cmp(&distance(*b.1)));
        self.smoothing = nearest.map_or(0, |(i, _)| i);
    }

    /// Returns the axis with the run's origin.
    pub fn scale(&self, model: &Model) -> Scale {
        let origin = model.charts().filter_map(|(_, series)| first_time(series)).reduce(f64::min);
        Scale { axis: self.axis, origin: origin.unwrap_or(0.0), utc_offset_s: self.utc_offset_s }
    }

    /// First and last position of all series, overlaid runs included.
    fn ends(&self, model: &Model) -> Option<(f64, f64)> {
        self.ends_with(model, &self.compared)
    }

    fn ends_with(&self, model: &Model, compared: &[ComparedCurves]) -> Option<(f64, f64)> {
        let scale = self.scale(model);
        let own = model.charts().flat_map(|(_, series)| outermost(series)).map(|place| scale.position(place));
        let others = compared.iter().flat_map(|run| {
            let scale = run.scale(&scale);
            run.series.values().flat_map(outermost).map(move |place| scale.position(place))
        });
        let all = own.chain(others);
        let (low, high) =
            all.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), at| (low.min(at), high.max(at)));
        let past = model.charts().filter(|_| !self.present_only).flat_map(|(_, series)| abandoned(series));
        let past = past.map(|at| scale.position(at));
        let past = past.fold((low, f64::NEG_INFINITY), |(low, high), at| (low.min(at), high.max(at)));
        // At least half of the width is that of the present line.
        let most = if self.axis == Axis::Steps && high > 0.0 { 2.0 * high } else { f64::INFINITY };
        let (low, high) = (past.0, high.max(past.1.min(most)));
        let low = if self.axis == Axis::Wall { low } else { low.min(0.0) };
        let high = if self.axis == Axis::Steps { high } else { high + self.late_s };
        (low.is_finite() && high.is_finite()).then_some((low, high))
    }

    /// Returns the visible window: the whole run, or a part of it.
    pub fn window(&self, model: &Model) -> (f64, f64) {
        self.window_within(self.ends(model))
    }

    /// Returns the visible window of this run alone, for charts without overlaid runs.
    pub fn own_window(&self, model: &Model) -> (f64, f64) {
        self.window_within(self.ends_with(model, &[]))
    }

    fn window_within(&self, ends: Option<(f64, f64)>) -> (f64, f64) {
        if let Some(held) = self.window.held {
            return held;
        }
        let Some((low, high)) = ends else { return (0.0, 1.0) };
        let span = (high - low).max(1.0) / 2f64.powi(i32::from(self.window.zoom));
        let end = high.max(low + span);
        (end - span, end)
    }

    /// Moves the window by quarters of its span. A window that reaches the newest value follows again.
    pub fn pan(&mut self, model: &Model, quarters: i8) {
        let Some((low, high)) = self.ends(model) else { return };
        let (from, to) = self.window(model);
        let span = to - from;
        let end = (to + span / 4.0 * f64::from(quarters)).max(low + span);
        self.window.held = (end < high).then_some((end - span, end));
    }

    /// Halves or doubles the span around the cursor, if the window contains it.
    pub fn zoom(&mut self, model: &Model, by: i8) {
        self.zoom_around(model, by, self.cursor);
    }

    /// Halves or doubles the span around a position, if the window contains it.
    pub fn zoom_around(&mut self, model: &Model, by: i8, around: Option<f64>) {
        let zoom = self.window.zoom.saturating_add_signed(by).min(MAX_ZOOM);
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
            // The fixed position stays where it is on the screen.
            let (fixed, shrink) = (around.unwrap_or((from + to) / 2.0), 2f64.powi(i32::from(by)));
            let start = (fixed - (fixed - from) / shrink).max(low);
            (start, start + (to - from) / shrink)
        });
        self.window = ChartWindow { zoom, held: held.filter(|held| held.1 < high) };
    }

    /// Changes the axis. Window, cursor and pin keep their place in the run.
    pub fn set_axis(&mut self, model: &Model, axis: Axis) {
        let before = self.scale(model);
        self.axis = axis;
        let after = self.scale(model);
        let places: Vec<Place> =
            model.charts().flat_map(|(_, series)| series.points().iter().map(|point| point.place)).collect();
        let moved = |at: f64| {
            let distance = |place: &Place| (before.position(*place) - at).abs();
            let nearest = places.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
            nearest.map(|place| after.position(*place))
        };
        (self.cursor, self.pin) = (self.cursor.and_then(moved), self.pin.and_then(moved));
        let held = self.window.held.and_then(|(from, to)| Some((moved(from)?, moved(to)?)));
        self.window.held = held.filter(|(from, to)| from < to);
    }

    /// Moves the cursor, and the window when the cursor leaves it.
    pub fn move_cursor(&mut self, model: &Model, by: i8) {
        let Some((low, high)) = self.ends(model) else { return };
        let (from, to) = self.window(model);
        let step = (to - from) / CURSOR_STEPS * f64::from(by);
        let at = self.cursor.map_or(to, |at| at + step).clamp(low, high);
        self.cursor = Some(at);
        if self.window.zoom > 0 && !(from..=to).contains(&at) {
            let shift = if at < from { at - from } else { at - to };
            self.window.held = Some((from + shift, to + shift)).filter(|held| held.1 < high);
        }
    }

    /// Places the cursor. While it is dragged, the pin stays where the drag started.
    pub fn place_cursor(&mut self, at: f64, dragged: bool) {
        if dragged && !self.dragged {
            self.pin = self.cursor;
        }
        (self.cursor, self.dragged) = (Some(at), dragged);
    }

    /// Moves the cursor of heat maps up or down.
    pub fn move_height(&mut self, by: i8) {
        let from = self.height.unwrap_or(if by > 0 { -ROW } else { 1.0 + ROW });
        self.height = Some((from + ROW * f64::from(by)).clamp(0.0, 1.0));
    }

    /// Pins the cursor's position, or removes the pin.
    pub fn pin_cursor(&mut self) {
        self.pin = match self.pin {
            Some(pin) if Some(pin) == self.cursor => None,
            _ => self.cursor,
        };
    }
}

/// Returns the letter of a curve by its index.
pub fn letter(index: usize) -> char {
    LETTERS[index % LETTERS.len()].into()
}

/// Returns the position and value of the point nearest to a position.
pub fn value_at(series: &Series, scale: &Scale, at: f64) -> Option<(f64, f64)> {
    let distance = |x: f64| (x - at).abs();
    let points = series.points().iter().map(|point| (scale.position(point.place), point.mean));
    points.min_by(|a, b| distance(a.0).total_cmp(&distance(b.0)))
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
            let (step, time) = (i as f64 * 100.0, 1000.0 + i as f64 * 2.0);
            series.push(Place { step, time, ..Place::default() }, i as f64);
        }
    }

    #[test]
    fn moved_window_stays_while_the_run_grows() {
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
    fn longer_overlaid_run_does_not_stretch_the_own_window() {
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
    fn axis_change_keeps_the_visible_part_of_the_run() {
        let model = model(100);
        let mut view = ChartView { cursor: Some(4000.0), ..ChartView::default() };
        view.zoom(&model, 2);
        let steps = view.window(&model);
        assert!(steps.0 < 4000.0 && 4000.0 < steps.1, "zoom is around the cursor: {steps:?}");
        view.set_axis(&model, Axis::Time);
        assert_eq!(view.cursor, Some(80.0));
        let time = view.window(&model);
        assert!((time.0 - steps.0 / 50.0).abs() <= 2.0 && (time.1 - steps.1 / 50.0).abs() <= 2.0, "{time:?}");
        view.set_axis(&model, Axis::Wall);
        assert_eq!(view.cursor, Some(1080.0));
    }

    #[test]
    fn cursor_moves_the_window() {
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
