//! What charts are drawn of, in files.

use crate::chart_view::Scale;
use crate::text;

/// Size of one chart of an SVG.
pub const WIDTH: f64 = 960.0;
/// The same, downwards.
pub const HEIGHT: f64 = 320.0;
/// Room for labels: left, top, right, bottom.
const MARGIN: (f64, f64, f64, f64) = (72.0, 34.0, 18.0, 30.0);

/// Which end of a text is at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// Its beginning.
    Start,
    Middle,
    End,
}

/// A part of a chart, in units of which a chart is some hundreds wide.
#[derive(Debug, Clone, PartialEq)]
pub enum Shape {
    /// Lines from point to point.
    Line {
        /// The points.
        path: Vec<(f64, f64)>,
        /// `#rrggbb`.
        colour: &'static str,
        /// How thick.
        width: f64,
    },
    /// A straight line.
    Rule {
        /// Its beginning.
        from: (f64, f64),
        /// Its end.
        to: (f64, f64),
        /// `#rrggbb`.
        colour: &'static str,
    },
    /// A filled rectangle.
    Cell {
        /// Its upper left corner.
        at: (f64, f64),
        /// Its sides.
        size: (f64, f64),
        /// `#rrggbb`.
        colour: &'static str,
    },
    /// What lies between points, faint.
    Area {
        /// The points.
        path: Vec<(f64, f64)>,
        /// `#rrggbb`.
        colour: &'static str,
    },
    /// Words.
    Text {
        /// They.
        text: String,
        /// Where their base line begins, has its middle, or ends.
        at: (f64, f64),
        /// Which of these.
        anchor: Anchor,
        /// `#rrggbb`.
        colour: &'static str,
        /// A heading.
        bold: bool,
    },
}

impl Shape {
    /// As an element of SVG.
    pub fn svg(&self) -> String {
        let points = |path: &[(f64, f64)]| {
            path.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ")
        };
        match self {
            Shape::Line { path, colour, width } => {
                let name = if path.first() == path.last() { "polygon" } else { "polyline" };
                format!(
                    "<{name} points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>\n",
                    points(path)
                )
            }
            Shape::Rule { from, to, colour } => format!(
                "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>\n",
                from.0, from.1, to.0, to.1
            ),
            Shape::Cell { at: (x, y), size: (width, height), colour } => format!(
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>\n"
            ),
            Shape::Area { path, colour } => {
                format!("<polygon points=\"{}\" fill=\"{colour}\" fill-opacity=\"0.15\"/>\n", points(path))
            }
            Shape::Text { text, at: (x, y), anchor, colour, bold } => {
                let anchor = match anchor {
                    Anchor::Start => "start",
                    Anchor::Middle => "middle",
                    Anchor::End => "end",
                };
                let weight = if *bold { " font-weight=\"bold\"" } else { "" };
                format!(
                    "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\"{weight}>{}</text>\n",
                    escaped(text)
                )
            }
        }
    }
}

/// Words of a chart.
pub fn words(text: &str, at: (f64, f64), anchor: Anchor, colour: &'static str, bold: bool) -> Shape {
    Shape::Text { text: text.to_owned(), at, anchor, colour, bold }
}

/// Where a chart's values are drawn: left, top, width, height.
pub const fn canvas() -> (f64, f64, f64, f64) {
    let (left, top, right, bottom) = MARGIN;
    (left, top, WIDTH - left - right, HEIGHT - top - bottom)
}

/// The frame of a chart, with its title.
pub fn head(title: &str) -> Vec<Shape> {
    let (left, top, w, h) = canvas();
    let corners = [(left, top), (left + w, top), (left + w, top + h), (left, top + h), (left, top)];
    vec![
        Shape::Line { path: corners.to_vec(), colour: "#bbbbbb", width: 1.0 },
        words(title, (left, 20.0), Anchor::Start, "#000000", true),
    ]
}

/// Labels of both axes: the values at the bottom, in the middle and at the top, with a line each.
pub fn labels(y: [f64; 3], scale: &Scale, x: (f64, f64)) -> Vec<Shape> {
    let (left, top, w, h) = canvas();
    let mut out = Vec::new();
    for (i, label) in text::apart(y).iter().enumerate() {
        let at = top + h * (1.0 - i as f64 / 2.0);
        out.push(Shape::Rule { from: (left, at), to: (left + w, at), colour: "#eeeeee" });
        out.push(words(label, (left - 6.0, at + 4.0), Anchor::End, "#555555", false));
    }
    let places = [x.0, (x.0 + x.1) / 2.0, x.1];
    for (i, label) in scale.labels(places).iter().enumerate() {
        let place = ((left + w * i as f64 / 2.0).clamp(left + 20.0, left + w - 20.0), top + h + 18.0);
        out.push(words(label, place, Anchor::Middle, "#555555", false));
    }
    out
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
