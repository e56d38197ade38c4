//! What charts are drawn of, in files.

/// Which end of a text is at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// Its beginning.
    Start,
    /// Its middle.
    Middle,
    /// Its end.
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

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
