//! Charts as files: CSV for other programs, SVG and PNG for documents. Pure.

use crate::chart_png;
use crate::chart_shape::{Anchor, HEIGHT, Shape, WIDTH, canvas, head, labels, words};
use crate::chart_view::Scale;
use crate::heat_file;
use crate::panes::charts;
use crate::state::{SavedFile, ViewState};
use crate::widgets::plot::Dot;
use rankdeck_core::model::Model;
use rankdeck_core::series::{Series, smooth};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Colours of lines, after Okabe and Ito.
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// The shown series as CSV, as SVG and as PNG.
pub fn files(model: &Model, view: &ViewState) -> Vec<SavedFile> {
    let usual: BTreeSet<String> = charts::usual(model).into_iter().map(String::from).collect();
    let mut names = view.series.shown.clone().unwrap_or(usual);
    names.extend(view.series.selected.clone());
    let shown: Vec<(&String, &Series)> = model.charts().filter(|(name, _)| names.contains(*name)).collect();
    let named: Vec<(&str, &Series)> = shown.iter().map(|(name, series)| (name.as_str(), *series)).collect();
    let (scale, weight) = (view.chart.scale(model), view.chart.weight());
    let line = |(name, series): &(&str, &Series)| Curve {
        name: (*name).to_string(),
        dots: dots(series, &scale, weight),
    };
    let is_map = |name: &str| !view.chart.together && model.histograms.contains_key(name);
    let panels: Vec<Panel> = match view.chart.together {
        true => vec![Panel { title: String::new(), curves: named.iter().map(line).collect() }],
        false => {
            let lines = named.iter().filter(|(name, _)| !is_map(name));
            lines.map(|one| Panel { title: one.0.to_string(), curves: vec![line(one)] }).collect()
        }
    };
    let (x, log) = (view.chart.window(model), view.chart.log);
    let mut drawn: Vec<Vec<Shape>> = panels.iter().map(|panel| draw(panel, &scale, x, log)).collect();
    let maps: Vec<_> =
        shown.iter().filter_map(|(name, _)| Some((name.as_str(), model.histograms.get(*name)?))).collect();
    let drawn_maps = maps.iter().filter(|(name, _)| is_map(name));
    drawn.extend(drawn_maps.map(|(name, map)| heat_file::shapes(name, map, &scale, x, log)));
    let file = |stem, ending, bytes| SavedFile { stem, ending, bytes };
    let mut files = vec![
        file("charts", "csv", csv(&named).into_bytes()),
        file("charts", "svg", document(&drawn).into_bytes()),
        file("charts", "png", chart_png::png(&drawn, (WIDTH, HEIGHT))),
    ];
    if !maps.is_empty() {
        let quoted_maps: Vec<_> = maps.iter().map(|(name, map)| (quoted(name), *map)).collect();
        files.push(file("histograms", "csv", heat_file::csv(&quoted_maps).into_bytes()));
    }
    files
}

fn dots(series: &Series, scale: &Scale, weight: f64) -> Vec<Dot> {
    let lines = smooth(series.points().iter().map(|point| point.mean), weight);
    let points = series.points().iter().zip(lines);
    points
        .map(|(point, y)| Dot {
            x: scale.of(point.place),
            y,
            low: point.low,
            high: point.high,
            count: point.count,
        })
        .collect()
}

/// One row per point: `min` and `max` are the extremes of the `count` values that it stands for.
pub fn csv(series: &[(&str, &Series)]) -> String {
    let mut out = String::from("series,env_step,time,mean,min,max,count\n");
    for (name, series) in series {
        let name = quoted(name);
        for point in series.points() {
            let place = point.place;
            // Writing to a String cannot fail.
            let _ = writeln!(
                out,
                "{name},{},{:.3},{},{},{},{}",
                place.step, place.time, point.mean, point.low, point.high, point.count
            );
        }
    }
    out
}

/// A field of CSV. One that a spreadsheet would take for a formula begins with an apostrophe.
pub fn quoted(field: &str) -> String {
    let guard = if field.starts_with(['=', '+', '-', '@']) { "'" } else { "" };
    match field.contains([',', '"', '\n', '\r']) {
        true => format!("\"{guard}{}\"", field.replace('"', "\"\"")),
        false => format!("{guard}{field}"),
    }
}

/// One line of a chart, with the band around it.
#[derive(Debug, Clone)]
pub struct Curve {
    /// What the legend says.
    pub name: String,
    /// Its points.
    pub dots: Vec<Dot>,
}

/// One chart of a file.
#[derive(Debug, Clone)]
pub struct Panel {
    /// Above it.
    pub title: String,
    /// Its lines.
    pub curves: Vec<Curve>,
}

/// Charts below each other as one SVG document.
pub fn svg(panels: &[Panel], scale: &Scale, x: (f64, f64), log: bool) -> String {
    document(&panels.iter().map(|panel| draw(panel, scale, x, log)).collect::<Vec<_>>())
}

/// Drawn charts below each other as one SVG document.
pub fn document(drawn: &[Vec<Shape>]) -> String {
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

/// The same as a picture.
pub fn png(panels: &[Panel], scale: &Scale, x: (f64, f64), log: bool) -> Vec<u8> {
    let drawn: Vec<Vec<Shape>> = panels.iter().map(|panel| draw(panel, scale, x, log)).collect();
    chart_png::png(&drawn, (WIDTH, HEIGHT))
}

/// A chart as shapes.
fn draw(panel: &Panel, scale: &Scale, x: (f64, f64), log: bool) -> Vec<Shape> {
    let height = |y: f64| if log { y.log10() } else { y };
    let (left, top, w, h) = canvas();
    let seen = |dot: &&Dot| (x.0..=x.1).contains(&dot.x) && height(dot.y).is_finite();
    let reach = panel.curves.iter().flat_map(|curve| curve.dots.iter().filter(seen));
    let reach = reach.flat_map(|dot| [height(dot.low), height(dot.y), height(dot.high)]);
    let (low, high) = reach
        .filter(|y| y.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), y| (low.min(y), high.max(y)));
    let mut out = head(&panel.title);
    if low > high {
        return out;
    }
    let (low, high) = match low {
        low if high > low => (low, high),
        // A constant 0 is no more negative than it is positive: its axis begins at it.
        0.0 => (0.0, 1.0),
        low => (low - low.abs() * 0.1, high + low.abs() * 0.1),
    };
    let px = |at: f64| left + (at - x.0) / (x.1 - x.0).max(f64::MIN_POSITIVE) * w;
    // In halves, since the span of the greatest numbers is none.
    let rise = |y: f64| (y / 2.0 - low / 2.0) / (high / 2.0 - low / 2.0);
    let py = |y: f64| top + (1.0 - rise(y).clamp(0.0, 1.0)) * h;
    let told = |y: f64| if log { 10f64.powf(y) } else { y };
    out.extend(labels([low, low / 2.0 + high / 2.0, high].map(told), scale, x));
    for (i, curve) in panel.curves.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let dots: Vec<&Dot> = curve.dots.iter().filter(seen).collect();
        let edge = |dot: &&Dot, to: f64| {
            let y = height(to);
            (px(dot.x), py(if y.is_finite() { y } else { height(dot.y) }))
        };
        if dots.iter().any(|dot| dot.low < dot.high) {
            let there = dots.iter().map(|dot| edge(dot, dot.high));
            let back = dots.iter().rev().map(|dot| edge(dot, dot.low));
            out.push(Shape::Area { path: there.chain(back).collect(), colour });
        }
        out.push(Shape::Line { path: dots.iter().map(|dot| edge(dot, dot.y)).collect(), colour, width: 1.5 });
        if panel.curves.len() > 1 {
            let at = (left + 10.0, top + 16.0 + 15.0 * i as f64);
            out.push(words(&curve.name, at, Anchor::Start, colour, false));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_core::series::Place;

    fn series() -> Series {
        let mut series = Series::default();
        for i in 0..3000 {
            let y = if i == 1500 { 1e6 } else { f64::from(i) };
            series.push(Place { step: f64::from(i), time: 10.0 + f64::from(i) }, y);
        }
        series
    }

    #[test]
    fn csv_has_every_point_with_its_extremes() {
        let series = series();
        let text = csv(&[("losses/a,b", &series), ("=cmd", &series)]);
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows.len(), 1 + 2 * series.points().len());
        assert!(rows[1].starts_with("\"losses/a,b\","), "{}", rows[1]);
        assert!(text.contains(",1000000,") && rows.last().unwrap().starts_with("'=cmd,"));
    }

    #[test]
    fn svg_is_whole_whatever_the_values() {
        let odd = |ys: &[f64]| {
            let ys = ys.iter().enumerate();
            Curve {
                name: "<a & b>".into(),
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
}
