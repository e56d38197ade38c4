//! Charts as files: CSV for other programs, SVG and PNG for documents.
//!
//! A chart becomes a list of [`ChartShape`]s, be it of lines or a heat map; SVG and PNG draw these. PNG images
//! have antialiased shapes, and text in a built-in font of 8 x 8 pixels.

use crate::axis::{Axis, Scale};
use crate::heat::heat_grid;
use crate::selection::SeriesList;
use crate::view::ChartView;
use font8x8::UnicodeFonts;
use rankdeck_core::model::{HistogramSeries, Model};
use rankdeck_core::series::Series;
use rankdeck_kit::plot::{Dot, HEAT_RAMP, heat_step};
use rankdeck_kit::text;
use rankdeck_types::words::clean;
use ratatui::style::Style;
use std::borrow::Cow;
use std::fmt::Write as _;
use tiny_skia::{Color, FillRule, Paint, Path, PathBuilder, Pixmap, Rect, Stroke, Transform};

/// Line colors, after Okabe and Ito.
const LINE_COLORS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];
/// The color of curves that a restart has thrown away.
const FAINT: &str = "#bbbbbb";
/// Columns and rows of a heat map.
const HEAT_CELLS: (usize, usize) = (160, 64);
/// The screen's ramp from its bright end, for white backgrounds.
const HEAT_COLORS: [&str; HEAT_RAMP.len()] = [
    "#fde725", "#b5de2b", "#6ece58", "#35b779", "#1f9e89", "#26828e", "#31688e", "#3e4989", "#482878",
    "#440154",
];
/// Width of a chart.
const WIDTH: f64 = 960.0;
/// Height of a chart.
const HEIGHT: f64 = 320.0;
/// Margins for labels: left, top, right, bottom.
const MARGIN: (f64, f64, f64, f64) = (72.0, 34.0, 18.0, 30.0);
/// Number of charts above which the resolution is halved.
const MANY_CHARTS: usize = 12;
/// Maximum number of charts in an image.
const MAX_CHARTS: usize = 48;
/// Size of a letter, in the units of a chart.
const LETTER: f64 = 8.0;

/// A file to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedFile {
    /// The start of its name.
    pub stem: &'static str,
    /// The extension of its name.
    pub ending: &'static str,
    pub content: FileContent,
}

/// What a [`SavedFile`] contains.
#[derive(Debug, Clone, PartialEq)]
pub enum FileContent {
    Bytes(Vec<u8>),
    /// A PNG of these charts, not drawn yet.
    Charts(Vec<Vec<ChartShape>>),
}

impl SavedFile {
    fn text(stem: &'static str, ending: &'static str, text: String) -> SavedFile {
        SavedFile { stem, ending, content: FileContent::Bytes(text.into_bytes()) }
    }

    /// Returns its bytes. Drawing charts can take seconds: do not call it on an event loop.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        match &self.content {
            FileContent::Bytes(bytes) => Cow::Borrowed(bytes),
            FileContent::Charts(drawn) => Cow::Owned(draw_png(drawn, (WIDTH, HEIGHT))),
        }
    }
}

/// Returns the shown series as CSV, SVG and PNG, and shown histograms as CSV.
pub fn files(model: &Model, list: &SeriesList, view: &ChartView) -> Vec<SavedFile> {
    let charts = model.charts().map(|(name, series)| (name.as_str(), series));
    let shown = list.shown_names(model);
    let is_exported = |name: &str| list.selected.as_deref() == Some(name) || shown.contains(&name);
    let shown: Vec<(&str, &Series)> = charts.filter(|(name, _)| is_exported(name)).collect();
    let (scale, weight) = (view.scale(model), view.weight());
    let curves = |(name, series): &(&str, &Series)| {
        let past = view.past_lines(series, &scale, Style::new()).into_iter().zip(series.past());
        let past = past.map(|(line, (generation, _))| Curve {
            name: format!("{name} (generation {generation})"),
            dots: line.dots,
            faint: true,
        });
        let own = Curve { name: (*name).to_string(), dots: scale.dots(series, weight), faint: false };
        past.chain([own]).collect::<Vec<_>>()
    };
    let is_map = |name: &str| !view.together && model.histograms.contains_key(name);
    let panels: Vec<Panel> = match view.together {
        true => vec![Panel { title: String::new(), curves: shown.iter().flat_map(curves).collect() }],
        false => {
            let lines = shown.iter().filter(|(name, _)| !is_map(name));
            let title = |name: &str, series: &Series| match scale.axis {
                Axis::Steps if series.unit() != "step" => format!("{name} over {}s", series.unit()),
                _ => name.to_string(),
            };
            lines.map(|one| Panel { title: title(one.0, one.1), curves: curves(one) }).collect()
        }
    };
    let (x, log) = (view.window(model), view.log);
    let mut drawn: Vec<Vec<ChartShape>> = panels.iter().map(|panel| draw(panel, &scale, x, log)).collect();
    let maps: Vec<_> =
        shown.iter().filter_map(|(name, _)| Some((*name, model.histograms.get(*name)?))).collect();
    let drawn_maps = maps.iter().filter(|(name, _)| is_map(name));
    drawn.extend(drawn_maps.map(|(name, map)| heat_shapes(name, map, &scale, x, log)));
    let mut files = vec![
        SavedFile::text("charts", "csv", csv(&shown)),
        SavedFile::text("charts", "svg", document(&drawn)),
        SavedFile { stem: "charts", ending: "png", content: FileContent::Charts(drawn) },
    ];
    if !maps.is_empty() {
        files.push(SavedFile::text("histograms", "csv", histogram_csv(&maps)));
    }
    files
}

/// Returns one row per point of the present line. `min` and `max` are the extremes of its `count` values; `unit` is what
/// `env_step` counts.
pub fn csv(series: &[(&str, &Series)]) -> String {
    let mut out = String::from("series,env_step,time,mean,min,max,count,generation,unit\n");
    for (name, series) in series {
        let (name, unit) = (csv_field(name), csv_field(series.unit()));
        for point in series.points() {
            let place = point.place;
            // Writing to a String cannot fail.
            let _ = writeln!(
                out,
                "{name},{},{:.3},{},{},{},{},{},{unit}",
                place.step, place.time, point.mean, point.low, point.high, point.count, place.generation
            );
        }
    }
    out
}

/// Returns one row per bin that is not empty. `histograms` is the number of merged histograms, `generation` that of the
/// newest one.
fn histogram_csv(series: &[(&str, &HistogramSeries)]) -> String {
    let mut out = String::from("series,env_step,time,low,high,count,histograms,generation\n");
    for (name, series) in series {
        let name = csv_field(name);
        for column in series.columns() {
            let (place, behind) = (column.place, column.behind);
            for bin in column.bins.bins().filter(|bin| bin.count > 0.0) {
                // Writing to a String cannot fail.
                let _ = writeln!(
                    out,
                    "{name},{},{:.3},{},{},{},{behind},{}",
                    place.step, place.time, bin.low, bin.high, bin.count, place.generation
                );
            }
        }
    }
    out
}

/// Escapes a CSV field. One that a spreadsheet would read as a formula gets an apostrophe in front.
pub fn csv_field(field: &str) -> String {
    let guard = if field.starts_with(['=', '+', '-', '@']) { "'" } else { "" };
    match field.contains([',', '"', '\n', '\r']) {
        true => format!("\"{guard}{}\"", field.replace('"', "\"\"")),
        false => format!("{guard}{field}"),
    }
}

/// One line of a chart, with the band around it.
#[derive(Debug, Clone)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    pub dots: Vec<Dot>,
    /// A restart has thrown it away.
    pub faint: bool,
}

/// One chart of a file.
#[derive(Debug, Clone)]
pub struct Panel {
    pub title: String,
    pub curves: Vec<Curve>,
}

/// Returns charts, one below the other, as an SVG document.
pub fn svg(panels: &[Panel], scale: &Scale, x: (f64, f64), log: bool) -> String {
    document(&panels.iter().map(|panel| draw(panel, scale, x, log)).collect::<Vec<_>>())
}

/// Returns drawn charts, one below the other, as an SVG document.
pub fn document(drawn: &[Vec<ChartShape>]) -> String {
    let height = HEIGHT * drawn.len().max(1) as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    for (i, shapes) in drawn.iter().enumerate() {
        let _ = writeln!(out, "<g transform=\"translate(0 {})\">", HEIGHT * i as f64);
        for shape in shapes {
            out.push_str(&shape.svg());
        }
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n");
    out
}

/// Returns charts, one below the other, as a PNG image.
pub fn png(panels: &[Panel], scale: &Scale, x: (f64, f64), log: bool) -> Vec<u8> {
    let drawn: Vec<Vec<ChartShape>> = panels.iter().map(|panel| draw(panel, scale, x, log)).collect();
    draw_png(&drawn, (WIDTH, HEIGHT))
}

fn draw(panel: &Panel, scale: &Scale, x: (f64, f64), log: bool) -> Vec<ChartShape> {
    let height = |y: f64| if log { y.log10() } else { y };
    let (left, top, w, h) = canvas();
    let visible = |dot: &&Dot| (x.0..=x.1).contains(&dot.x) && height(dot.y).is_finite();
    let dots = panel.curves.iter().flat_map(|curve| curve.dots.iter().filter(visible));
    let heights = dots.flat_map(|dot| [height(dot.low), height(dot.y), height(dot.high)]);
    let (low, high) = heights
        .filter(|y| y.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), y| (low.min(y), high.max(y)));
    let mut out = frame(&panel.title);
    if low > high {
        return out;
    }
    let (low, high) = match low {
        low if high > low => (low, high),
        // The axis of a constant 0 starts at 0.
        0.0 => (0.0, 1.0),
        low => (low - low.abs() * 0.1, high + low.abs() * 0.1),
    };
    let px = |at: f64| left + (at - x.0) / (x.1 - x.0).max(f64::MIN_POSITIVE) * w;
    // In halves, because the span of the largest numbers overflows.
    let rise = |y: f64| (y / 2.0 - low / 2.0) / (high / 2.0 - low / 2.0);
    let py = |y: f64| top + (1.0 - rise(y).clamp(0.0, 1.0)) * h;
    let value = |y: f64| if log { 10f64.powf(y) } else { y };
    out.extend(axis_labels([low, low / 2.0 + high / 2.0, high].map(value), scale, x));
    for (i, curve) in panel.curves.iter().enumerate() {
        let nth = panel.curves[..i].iter().filter(|curve| !curve.faint).count();
        let color = if curve.faint { FAINT } else { LINE_COLORS[nth % LINE_COLORS.len()] };
        let dots: Vec<&Dot> = curve.dots.iter().filter(visible).collect();
        let edge = |dot: &&Dot, to: f64| {
            let y = height(to);
            (px(dot.x), py(if y.is_finite() { y } else { height(dot.y) }))
        };
        if dots.iter().any(|dot| dot.low < dot.high) {
            let there = dots.iter().map(|dot| edge(dot, dot.high));
            let back = dots.iter().rev().map(|dot| edge(dot, dot.low));
            out.push(ChartShape::Area { path: there.chain(back).collect(), color });
        }
        out.push(ChartShape::Line {
            path: dots.iter().map(|dot| edge(dot, dot.y)).collect(),
            color,
            width: 1.5,
        });
        if panel.curves.len() > 1 {
            let at = (left + 10.0, top + 16.0 + 15.0 * i as f64);
            out.push(label(&curve.name, at, Anchor::Start, color, false));
        }
    }
    out
}

/// Returns a heat map with its frame and labels.
pub fn heat_shapes(
    title: &str,
    series: &HistogramSeries,
    scale: &Scale,
    x: (f64, f64),
    log: bool,
) -> Vec<ChartShape> {
    let mut out = frame(title);
    let Some(map) = heat_grid(series, scale, x, HEAT_CELLS, log) else { return out };
    let (low, high) = map.y;
    out.extend(axis_labels([low, low / 2.0 + high / 2.0, high], scale, x));
    let (left, top, w, h) = canvas();
    let (wide, tall) = (w / HEAT_CELLS.0 as f64, h / HEAT_CELLS.1 as f64);
    for (x, levels) in map.columns.iter().enumerate() {
        let Some(levels) = levels else { continue };
        let mut row = 0;
        while row < levels.len() {
            let color = heat_step(levels[row], HEAT_COLORS.len());
            let same = levels[row..]
                .iter()
                .take_while(|level| heat_step(**level, HEAT_COLORS.len()) == color)
                .count();
            if let Some(color) = color {
                let at = (left + wide * x as f64, top + h - tall * (row + same) as f64);
                out.push(ChartShape::Cell {
                    at,
                    size: (wide, tall * same as f64),
                    color: HEAT_COLORS[color],
                });
            }
            row += same;
        }
    }
    out
}

/// Which part of a text is at its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// A part of a chart of 960 x 320. Colors are `#rrggbb`.
#[derive(Debug, Clone, PartialEq)]
pub enum ChartShape {
    /// A line through points.
    Line { path: Vec<(f64, f64)>, color: &'static str, width: f64 },
    /// A straight line.
    Rule { from: (f64, f64), to: (f64, f64), color: &'static str },
    /// A filled rectangle.
    Cell {
        /// The upper left corner.
        at: (f64, f64),
        size: (f64, f64),
        color: &'static str,
    },
    /// A faint area between points.
    Area { path: Vec<(f64, f64)>, color: &'static str },
    Text {
        text: String,
        /// Position of the anchor on the base line.
        at: (f64, f64),
        anchor: Anchor,
        color: &'static str,
        bold: bool,
    },
}

impl ChartShape {
    /// Returns the SVG element.
    fn svg(&self) -> String {
        let points = |path: &[(f64, f64)]| {
            path.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ")
        };
        match self {
            ChartShape::Line { path, color, width } => {
                let name = if path.first() == path.last() { "polygon" } else { "polyline" };
                format!(
                    "<{name} points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\"/>\n",
                    points(path)
                )
            }
            ChartShape::Rule { from, to, color } => format!(
                "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{color}\"/>\n",
                from.0, from.1, to.0, to.1
            ),
            ChartShape::Cell { at: (x, y), size: (width, height), color } => format!(
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{color}\"/>\n"
            ),
            ChartShape::Area { path, color } => {
                format!("<polygon points=\"{}\" fill=\"{color}\" fill-opacity=\"0.15\"/>\n", points(path))
            }
            ChartShape::Text { text, at: (x, y), anchor, color, bold } => {
                let anchor = match anchor {
                    Anchor::Start => "start",
                    Anchor::Middle => "middle",
                    Anchor::End => "end",
                };
                let weight = if *bold { " font-weight=\"bold\"" } else { "" };
                format!(
                    "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{color}\"{weight}>{}</text>\n",
                    escaped(text)
                )
            }
        }
    }
}

/// Returns a text.
fn label(text: &str, at: (f64, f64), anchor: Anchor, color: &'static str, bold: bool) -> ChartShape {
    ChartShape::Text { text: text.to_owned(), at, anchor, color, bold }
}

/// Returns the plot area: left, top, width, height.
const fn canvas() -> (f64, f64, f64, f64) {
    let (left, top, right, bottom) = MARGIN;
    (left, top, WIDTH - left - right, HEIGHT - top - bottom)
}

/// Returns the frame of a chart with its title.
fn frame(title: &str) -> Vec<ChartShape> {
    let (left, top, w, h) = canvas();
    let corners = [(left, top), (left + w, top), (left + w, top + h), (left, top + h), (left, top)];
    vec![
        ChartShape::Line { path: corners.to_vec(), color: "#bbbbbb", width: 1.0 },
        label(title, (left, 20.0), Anchor::Start, "#000000", true),
    ]
}

/// Returns the labels of both axes. Values are at the bottom, middle and top, with a line each.
fn axis_labels(y: [f64; 3], scale: &Scale, x: (f64, f64)) -> Vec<ChartShape> {
    let (left, top, w, h) = canvas();
    let mut out = Vec::new();
    for (i, label) in text::apart(y).iter().enumerate() {
        let at = top + h * (1.0 - i as f64 / 2.0);
        out.push(ChartShape::Rule { from: (left, at), to: (left + w, at), color: "#eeeeee" });
        out.push(self::label(label, (left - 6.0, at + 4.0), Anchor::End, "#555555", false));
    }
    let places = [x.0, (x.0 + x.1) / 2.0, x.1];
    for (i, label) in scale.labels(places).iter().enumerate() {
        let place = ((left + w * i as f64 / 2.0).clamp(left + 20.0, left + w - 20.0), top + h + 18.0);
        out.push(self::label(label, place, Anchor::Middle, "#555555", false));
    }
    out
}

/// Escapes untrusted text for XML and HTML.
pub fn escaped(text: &str) -> String {
    clean(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Draws charts as a PNG image, one below the other, each of `size`. Without charts the result is empty.
fn draw_png(panels: &[Vec<ChartShape>], size: (f64, f64)) -> Vec<u8> {
    let count = panels.len().min(MAX_CHARTS);
    let scale = if count > MANY_CHARTS { 1.0 } else { 2.0 };
    let sides = ((size.0 * scale) as u32, (size.1 * scale) as u32 * count as u32);
    let Some(mut image) = Pixmap::new(sides.0, sides.1) else { return Vec::new() };
    image.fill(Color::WHITE);
    for (i, shapes) in panels.iter().take(count).enumerate() {
        let mut canvas = PngCanvas { image: &mut image, scale, top: size.1 * i as f64 };
        shapes.iter().for_each(|shape| canvas.draw(shape));
        if i + 1 == count && panels.len() > count {
            let more = ChartShape::Text {
                text: format!("{} more charts in the SVG", panels.len() - count),
                at: (size.0 - 8.0, size.1 - 2.0),
                anchor: Anchor::End,
                color: "#d55e00",
                bold: false,
            };
            canvas.draw(&more);
        }
    }
    image.encode_png().unwrap_or_default()
}

struct PngCanvas<'a> {
    image: &'a mut Pixmap,
    scale: f64,
    /// The chart's upper edge.
    top: f64,
}

impl PngCanvas<'_> {
    fn draw(&mut self, shape: &ChartShape) {
        let at = Transform::from_translate(0.0, (self.top * self.scale) as f32);
        match shape {
            ChartShape::Line { path, color, width } => {
                let Some(path) = self.path(path, false) else { return };
                let stroke = Stroke { width: (width * self.scale) as f32, ..Stroke::default() };
                self.image.stroke_path(&path, &paint(color, 255), &stroke, at, None);
            }
            ChartShape::Rule { from, to, color } => {
                let path = vec![*from, *to];
                self.draw(&ChartShape::Line { path, color, width: 1.0 });
            }
            ChartShape::Cell { at: (x, y), size, color } => {
                let (right, bottom) = (x + size.0, y + size.1);
                let path = [(*x, *y), (right, *y), (right, bottom), (*x, bottom)];
                let Some(path) = self.path(&path, true) else { return };
                self.image.fill_path(&path, &paint(color, 255), FillRule::Winding, at, None);
            }
            ChartShape::Area { path, color } => {
                let Some(path) = self.path(path, true) else { return };
                self.image.fill_path(&path, &paint(color, 38), FillRule::Winding, at, None);
            }
            ChartShape::Text { text, at: place, anchor, color, bold } => {
                let wide = LETTER * text.chars().count() as f64;
                let left = match anchor {
                    Anchor::Start => place.0,
                    Anchor::Middle => place.0 - wide / 2.0,
                    Anchor::End => place.0 - wide,
                };
                for (i, letter) in text.chars().enumerate() {
                    self.letter(
                        letter,
                        left + LETTER * i as f64,
                        place.1 - LETTER,
                        &paint(color, 255),
                        *bold,
                    );
                }
            }
        }
    }

    fn path(&self, points: &[(f64, f64)], closed: bool) -> Option<Path> {
        let mut path = PathBuilder::new();
        for (i, (x, y)) in points.iter().enumerate() {
            let (x, y) = ((x * self.scale) as f32, (y * self.scale) as f32);
            if i == 0 { path.move_to(x, y) } else { path.line_to(x, y) }
        }
        if closed {
            path.close();
        }
        path.finish()
    }

    /// Draws a letter pixel by pixel. A bold one is a pixel wider.
    fn letter(&mut self, letter: char, x: f64, y: f64, paint: &Paint<'_>, bold: bool) {
        let fonts = &font8x8::BASIC_FONTS;
        let rows = fonts.get(letter).or_else(|| fonts.get('?')).unwrap_or_default();
        let side = self.scale as f32;
        // Whole pixels keep letters sharp.
        let (left, top) = ((x * self.scale).round() as f32, ((self.top + y) * self.scale).round() as f32);
        for (row, bits) in rows.into_iter().enumerate() {
            let bits = if bold { u16::from(bits) | u16::from(bits) << 1 } else { u16::from(bits) };
            for column in (0..9).filter(|column| bits >> column & 1 == 1) {
                let place = (left + column as f32 * side, top + row as f32 * side);
                if let Some(point) = Rect::from_xywh(place.0, place.1, side, side) {
                    self.image.fill_rect(point, paint, Transform::identity(), None);
                }
            }
        }
    }
}

/// Parses `#rrggbb`.
fn paint(color: &str, opacity: u8) -> Paint<'static> {
    let part = |at: usize| color.get(at..at + 2).and_then(|part| u8::from_str_radix(part, 16).ok());
    let [red, green, blue] = [1, 3, 5].map(|at| part(at).unwrap_or_default());
    let mut paint = Paint { anti_alias: true, ..Paint::default() };
    paint.set_color_rgba8(red, green, blue, opacity);
    paint
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_core::series::Place;
    use rankdeck_proto::media::Histogram;
    use rankdeck_types::ids::Generation;

    fn series() -> Series {
        let mut series = Series::default();
        for i in 0..3000 {
            let y = if i == 1500 { 1e6 } else { f64::from(i) };
            series.push(Place { step: f64::from(i), time: 10.0 + f64::from(i), ..Place::default() }, y);
        }
        series
    }

    #[test]
    fn csv_has_every_point_with_extremes() {
        let series = series();
        let text = csv(&[("losses/a,b", &series), ("=cmd", &series)]);
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows.len(), 1 + 2 * series.points().len());
        assert!(rows[1].starts_with("\"losses/a,b\","), "{}", rows[1]);
        assert!(text.contains(",1000000,") && rows.last().unwrap().starts_with("'=cmd,"));
        assert!(rows[0].ends_with(",unit") && rows[1].ends_with(",step"));
        let mut epochs = series.clone();
        epochs.count_in("epoch");
        assert!(csv(&[("loss", &epochs)]).lines().nth(1).is_some_and(|row| row.ends_with(",epoch")));
    }

    #[test]
    fn svg_is_well_formed_for_any_values() {
        let odd = |ys: &[f64]| {
            let ys = ys.iter().enumerate();
            Curve {
                name: "<a & b>".into(),
                faint: false,
                dots: ys.map(|(i, y)| Dot { x: i as f64, y: *y, low: *y, high: *y, count: 1 }).collect(),
            }
        };
        let scale = Scale::default();
        for ys in [&[1.0, 2.0, 3.0][..], &[0.0; 4], &[-1.0, 0.0], &[], &[f64::MAX, f64::MIN]] {
            for log in [false, true] {
                let panel = Panel { title: "t".into(), curves: vec![odd(ys), odd(ys)] };
                let text = svg(&[panel.clone(), panel], &scale, (0.0, 3.0), log);
                assert!(text.ends_with("</svg>\n") && !text.contains("<a &"), "{text}");
                assert!(!text.contains("NaN") && !text.contains("inf\""), "{ys:?} {log}\n{text}");
                assert_eq!(text.matches("<g ").count(), text.matches("</g>").count());
            }
        }
    }

    #[test]
    fn histograms_are_exported_as_rows_and_cells() {
        let mut series = HistogramSeries::default();
        for (step, generation) in [(10.0, Generation(0)), (20.0, Generation(1))] {
            let bins = Histogram { edges: vec![0.0, 1.0, 2.0, 3.0], counts: vec![4.0, 0.0, step] };
            series.push(Place { step, time: 1.5, generation }, bins);
        }
        let text = histogram_csv(&[("a,b", &series)]);
        let rows: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(rows[..2], ["\"a,b\",10,1.500,0,1,4,1,0", "\"a,b\",10,1.500,2,3,10,1,0"]);
        assert_eq!(rows.get(2), Some(&"\"a,b\",20,1.500,0,1,4,1,1"));
        assert_eq!(rows.len(), 4, "empty bins are left out");
        let svg = document(&[heat_shapes("<w>", &series, &Scale::default(), (0.0, 20.0), false)]);
        assert!(svg.contains("&lt;w&gt;") && svg.matches("<rect ").count() > 100 && svg.contains("#440154"));
        assert!(!svg.contains("NaN"), "{svg}");
    }

    fn pixels(png: &[u8]) -> (u32, u32, Vec<[u8; 3]>) {
        let image = Pixmap::decode_png(png).unwrap();
        let pixels = image.pixels().iter().map(|pixel| [pixel.red(), pixel.green(), pixel.blue()]);
        (image.width(), image.height(), pixels.collect())
    }

    #[test]
    fn lines_areas_and_text_are_drawn_in_place() {
        let shapes = vec![
            ChartShape::Area {
                path: vec![(0.0, 0.0), (50.0, 0.0), (50.0, 20.0), (0.0, 20.0)],
                color: "#ff0000",
            },
            ChartShape::Line { path: vec![(60.0, 10.0), (90.0, 10.0)], color: "#0000ff", width: 2.0 },
            ChartShape::Text {
                text: "I".into(),
                at: (100.0, 40.0),
                anchor: Anchor::End,
                color: "#000000",
                bold: false,
            },
        ];
        let (width, height, pixels) = pixels(&draw_png(&[shapes.clone(), shapes], (100.0, 50.0)));
        assert_eq!((width, height), (200, 200));
        let at = |x: usize, y: usize| pixels[y * width as usize + x];
        for chart in [0, 100] {
            assert_eq!(at(150, 20 + chart), [0, 0, 255], "the line");
            let [red, green, blue] = at(40, 20 + chart);
            assert!(red == 255 && green == blue && (200..240).contains(&green), "the faint area: {green}");
            let black = |x, y| (x..x + 16).flat_map(move |x| (y..y + 16).map(move |y| (x, y)));
            let ink = black(184, 64 + chart).filter(|(x, y)| at(*x, *y) == [0; 3]).count();
            assert!((40..200).contains(&ink), "a letter: {ink}");
            assert_eq!(at(10, 80 + chart), [255; 3], "white elsewhere");
        }
    }

    #[test]
    fn image_is_bounded_and_empty_without_charts() {
        assert!(draw_png(&[], (960.0, 320.0)).is_empty());
        let (width, height, _) = pixels(&draw_png(&vec![Vec::new(); MAX_CHARTS + 9], (96.0, 32.0)));
        assert_eq!((width, height), (96, 32 * MAX_CHARTS as u32));
        let odd =
            ChartShape::Line { path: vec![(f64::NAN, 1.0), (5.0, f64::INFINITY)], color: "x", width: 1.0 };
        let text = ChartShape::Text {
            text: "µ→é".into(),
            at: (-9.0, 1e9),
            anchor: Anchor::Middle,
            color: "#é",
            bold: true,
        };
        assert!(!draw_png(&[vec![odd, text]], (96.0, 32.0)).is_empty());
    }
}
