//! A report of a run for people who were not there: Markdown for a message, or one HTML file with charts.
//! Pure.

use crate::chart_file::document;
use crate::chart_view::Scale;
use crate::heat_file;
use crate::panes::end;
use crate::text;
use crate::time::time_of_day;
use rankdeck_core::model::{HistoryLine, Model, Subject, Tone};
use rankdeck_core::report::VerdictReport;
use rankdeck_core::series::Series;
use rankdeck_types::words;
use std::fmt::Write as _;

/// Most charts of a report.
const CHARTS: usize = 48;
/// Most evaluations and events listed; the latest are.
const ROWS: usize = 400;
/// Most bytes of all pictures, as base64.
const PICTURES: usize = 2 << 20;
/// Size of a chart, in the units of its drawing.
const WIDE: f64 = 560.0;
/// The same, downwards.
const HIGH: f64 = 160.0;

/// What a report is made of, beside the model.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// What local clocks are ahead of UTC, seconds.
    pub utc_offset_s: i64,
    /// The experiment as TOML; empty when unknown.
    pub experiment: String,
    /// Where the run comes from: name and text.
    pub origin: Vec<(String, String)>,
    /// Keys that differ from the defaults: name, value, default.
    pub differences: Vec<(String, String, String)>,
}

/// A piece of a report, in the order of reading.
enum Piece {
    Head(String),
    Text(String),
    List(Vec<String>),
    Table(Vec<&'static str>, Vec<Vec<String>>),
    Code(String),
    Chart(String, Series),
    /// A heat map: its name, the whole drawing, and its newest histogram in words.
    Map(String, String, String),
    /// A logged picture: its name, what is said of it, its kind and its file in base64.
    Picture(String, String, &'static str, String),
}

/// Lines that go on further in, such as a path, belong to the one above.
fn joined(lines: Vec<String>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for line in lines {
        match all.last_mut() {
            Some(last) if line.starts_with(' ') => *last = format!("{last}: {}", line.trim()),
            _ => all.push(line),
        }
    }
    all
}

fn pieces(model: &Model, sources: &Sources) -> Vec<Piece> {
    let mut all = vec![Piece::Text(end::headline(model))];
    all.push(Piece::List(joined(end::totals(model))));
    let minute = end::last_minute(model);
    if !minute.is_empty() {
        all.push(Piece::Head("The last minute".into()));
        all.push(Piece::List(minute.iter().map(|line| told(line, sources.utc_offset_s)).collect()));
    }
    let verdicts = verdicts(model);
    if !verdicts.is_empty() {
        all.push(Piece::Head("Verdicts".into()));
        for (when, verdict) in verdicts {
            let clock =
                when.map_or(String::new(), |time| format!("{} ", time_of_day(time, sources.utc_offset_s)));
            all.push(Piece::Text(format!("{clock}{}: {}", verdict.verdict.name(), verdict.reason)));
            all.push(Piece::List(verdict.card.text()));
        }
    }
    if !model.evals.is_empty() {
        all.push(Piece::Head("Evaluations".into()));
        let skip = model.evals.len().saturating_sub(ROWS);
        let rows = model.evals.iter().skip(skip).map(|eval| {
            vec![
                words::count(eval.env_step),
                eval.episodes.to_string(),
                format!("{:.2}", eval.return_mean),
                format!("{:.2}", eval.return_std),
                format!("{:.2}", eval.return_min),
                format!("{:.2}", eval.return_max),
            ]
        });
        all.push(Piece::Table(vec!["env_step", "episodes", "return", "std", "min", "max"], rows.collect()));
    }
    if !model.scalars.is_empty() {
        all.push(Piece::Head("Charts".into()));
        let shown = model.scalars.iter().filter(|(_, series)| !series.points().is_empty()).take(CHARTS);
        all.extend(shown.map(|(name, series)| Piece::Chart(name.clone(), series.clone())));
    }
    media(model, &mut all);
    all.push(Piece::Head("Events".into()));
    let skip = model.history.len().saturating_sub(ROWS);
    all.push(Piece::List(
        model.history.iter().skip(skip).map(|line| told(line, sources.utc_offset_s)).collect(),
    ));
    if !sources.origin.is_empty() {
        all.push(Piece::Head("Where it comes from".into()));
        let rows = sources.origin.iter().map(|(what, text)| vec![words::clean(what), words::clean(text)]);
        all.push(Piece::Table(vec!["what", "which"], rows.collect()));
    }
    if !sources.differences.is_empty() {
        all.push(Piece::Head("Settings that differ from the defaults".into()));
        let rows = sources
            .differences
            .iter()
            .map(|(key, value, usual)| vec![key.clone(), value.clone(), usual.clone()]);
        all.push(Piece::Table(vec!["key", "value", "default"], rows.collect()));
    }
    if !sources.experiment.is_empty() {
        all.push(Piece::Head("Configuration".into()));
        all.push(Piece::Code(sources.experiment.clone()));
    }
    all
}

/// Heat maps of histograms, and the newest picture of each name.
fn media(model: &Model, all: &mut Vec<Piece>) {
    if !model.histograms.is_empty() {
        all.push(Piece::Head("Histograms".into()));
    }
    for (name, series) in &model.histograms {
        let (scale, last) = (Scale::default(), series.summary().reach().unwrap_or(1.0));
        let drawn = document(&[heat_file::shapes(name, series, &scale, (0.0, last.max(1.0)), false)]);
        // An SVG within HTML needs no name for its kind.
        let drawn = drawn.replacen(" xmlns=\"http://www.w3.org/2000/svg\"", "", 1);
        let newest = series.newest().map_or(String::new(), |column| {
            let (bins, step) = (&column.bins, column.place.step);
            let (low, high) = bins.range();
            let total = words::count(bins.total().round() as u64);
            let [low, high, mean] = [low, high, bins.mean()].map(text::value);
            format!("at step {step:.0} {total} values from {low} to {high}, mean {mean}")
        });
        all.push(Piece::Map(name.clone(), drawn, newest));
    }
    let newest = model.gallery.names().filter_map(|(name, kept)| Some((name, kept.back()?)));
    let (mut room, mut left_out, mut shown) = (PICTURES, 0, Vec::new());
    for (name, picture) in newest {
        if picture.data.len() > room {
            left_out += 1;
            continue;
        }
        room -= picture.data.len();
        let head = picture.head;
        let said = format!("step {:.0}, {} x {} pixels", picture.place.step, head.width, head.height);
        shown.push(Piece::Picture(name.clone(), said, head.format.ending(), picture.data.clone()));
    }
    if !shown.is_empty() {
        all.push(Piece::Head("Pictures".into()));
        all.extend(shown);
    }
    if left_out > 0 {
        let pictures = words::plural(left_out, "picture");
        all.push(Piece::Text(format!(
            "{pictures} more did not fit in here; `:media` on the screen shows them."
        )));
    }
}

fn told(line: &HistoryLine, offset_s: i64) -> String {
    let sign = match line.tone {
        Tone::Info => "",
        Tone::Good => "✓ ",
        Tone::Warn => "▲ ",
        Tone::Bad => "✗ ",
    };
    format!("{}  {sign}{}", time_of_day(line.time, offset_s), words::clean(&line.text))
}

/// Those that stand, and those of the history that are no newer telling of the same.
fn verdicts(model: &Model) -> Vec<(Option<f64>, &VerdictReport)> {
    let mut all: Vec<(Option<f64>, &VerdictReport)> = Vec::new();
    for line in &model.history {
        if let Some(Subject::Verdict(verdict)) = &line.subject {
            all.retain(|(_, known)| {
                (known.verdict, known.rank, &known.host) != (verdict.verdict, verdict.rank, &verdict.host)
            });
            all.push((Some(line.time), verdict));
        }
    }
    let told = |verdict: &VerdictReport| {
        all.iter().any(|(_, known)| known.verdict == verdict.verdict && known.rank == verdict.rank)
    };
    let rest: Vec<_> =
        model.verdicts.iter().filter(|verdict| !told(verdict)).map(|verdict| (None, verdict)).collect();
    all.into_iter().chain(rest).collect()
}

fn name(model: &Model) -> String {
    model.run.id.as_ref().map_or_else(|| "a run".to_owned(), |id| id.0.clone())
}

/// As Markdown. Charts are left out: a message shows no drawings.
pub fn markdown(model: &Model, sources: &Sources) -> String {
    let mut out = format!("# {}\n", name(model));
    // A `|` would end the cell of a table, and a newline any line.
    let plain = |text: &str| words::clean(text).replace('|', "\\|");
    for piece in pieces(model, sources) {
        // Writing to a String cannot fail.
        let _ = match piece {
            Piece::Head(text) => writeln!(out, "\n## {text}"),
            Piece::Text(text) => writeln!(out, "\n{}", words::clean(&text)),
            Piece::List(items) => {
                let items = items.iter().map(|item| format!("- {}\n", words::clean(item)));
                writeln!(out, "\n{}", items.collect::<String>().trim_end())
            }
            Piece::Table(head, rows) => {
                let rule = head.iter().map(|_| "---").collect::<Vec<_>>().join(" | ");
                let _ = writeln!(out, "\n| {} |\n| {rule} |", head.join(" | "));
                for row in rows {
                    let cells: Vec<String> = row.iter().map(|cell| plain(cell)).collect();
                    let _ = writeln!(out, "| {} |", cells.join(" | "));
                }
                Ok(())
            }
            Piece::Code(text) => writeln!(out, "\n```toml\n{}\n```", text.trim_end().replace("```", "'''")),
            Piece::Chart(name, series) => {
                let last = series.last().map_or("-".into(), text::value);
                writeln!(out, "- `{}`: {last}", words::clean(&name))
            }
            Piece::Map(name, _, said) | Piece::Picture(name, said, ..) => {
                writeln!(out, "- `{}`: {said}", words::clean(&name))
            }
        };
    }
    out
}

fn escaped(text: &str) -> String {
    words::clean(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// As one HTML file that needs no other.
pub fn html(model: &Model, sources: &Sources) -> String {
    let title = escaped(&name(model));
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title><style>\n{STYLE}</style>\
         </head><body>\n<h1>{title}</h1>\n"
    );
    for piece in pieces(model, sources) {
        // Writing to a String cannot fail.
        let _ = match piece {
            Piece::Head(text) => writeln!(out, "<h2>{}</h2>", escaped(&text)),
            Piece::Text(text) => writeln!(out, "<p>{}</p>", escaped(&text)),
            Piece::List(items) => {
                let items = items.iter().map(|item| format!("<li>{}</li>", escaped(item)));
                writeln!(out, "<ul>{}</ul>", items.collect::<String>())
            }
            Piece::Table(head, rows) => {
                let head: String = head.iter().map(|cell| format!("<th>{cell}</th>")).collect();
                let row = |row: &Vec<String>| {
                    let cells: String =
                        row.iter().map(|cell| format!("<td>{}</td>", escaped(cell))).collect();
                    format!("<tr>{cells}</tr>")
                };
                writeln!(out, "<table><tr>{head}</tr>{}</table>", rows.iter().map(row).collect::<String>())
            }
            Piece::Code(text) => {
                let lines: Vec<String> = text.lines().map(escaped).collect();
                writeln!(out, "<pre>{}</pre>", lines.join("\n"))
            }
            Piece::Chart(name, series) => writeln!(out, "{}", chart(&name, &series)),
            Piece::Map(name, drawn, said) => {
                let name = escaped(&name);
                writeln!(
                    out,
                    "<figure><figcaption>{name}</figcaption>{drawn}<div>{}</div></figure>",
                    escaped(&said)
                )
            }
            Piece::Picture(name, said, kind, data) => {
                let (name, said) = (escaped(&name), escaped(&said));
                // Base64 has no sign of markup.
                writeln!(
                    out,
                    "<figure><figcaption>{name}</figcaption><img alt=\"{name}\" src=\"data:image/{kind};base64,{data}\">\
                     <div>{said}</div></figure>"
                )
            }
        };
    }
    out.push_str("</body></html>\n");
    out
}

const STYLE: &str = "body{font:14px/1.5 system-ui,sans-serif;max-width:1200px;margin:2em auto;padding:0 1em}\n\
    h2{border-bottom:1px solid #ccc}table{border-collapse:collapse}td,th{padding:2px 10px;text-align:right;\
    border-bottom:1px solid #eee}td:first-child,th:first-child{text-align:left}li{white-space:pre-wrap}\n\
    pre{background:#f6f6f6;padding:1em;overflow:auto}figure{display:inline-block;margin:8px}\n\
    figcaption{font-family:monospace}img{max-width:560px;min-width:120px;image-rendering:pixelated}\n";

/// A chart: the values as a line, and what lies behind means of neighbours as a band.
fn chart(name: &str, series: &Series) -> String {
    let points = series.points();
    let low = points.iter().map(|point| point.low).fold(f64::INFINITY, f64::min);
    let high = points.iter().map(|point| point.high).fold(f64::NEG_INFINITY, f64::max);
    let (first, last) =
        (points.first().map_or(0.0, |p| p.place.step), points.last().map_or(1.0, |p| p.place.step));
    let across = (last - first).max(f64::MIN_POSITIVE);
    let up = if high > low { high - low } else { 1.0 };
    let x = |at: f64| (at - first) / across * WIDE;
    let y = |value: f64| HIGH - (value - low) / up * HIGH;
    let line: String =
        points.iter().map(|point| format!("{:.1},{:.1} ", x(point.place.step), y(point.mean))).collect();
    let band: String = points
        .iter()
        .map(|point| format!("{:.1},{:.1} ", x(point.place.step), y(point.high)))
        .chain(points.iter().rev().map(|point| format!("{:.1},{:.1} ", x(point.place.step), y(point.low))))
        .collect();
    let broken: String = series
        .marks()
        .iter()
        .map(|at| {
            format!(
                "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"0\" y2=\"{HIGH}\" stroke=\"#d00\"/>",
                x(at.step).clamp(0.0, WIDE)
            )
        })
        .collect();
    let newest = series.last().map_or("-".into(), text::value);
    let reach = match (low, high) {
        (low, high) if low < high => format!("{} to {}", text::value(low), text::value(high)),
        (low, _) => format!("always {}", text::value(low)),
    };
    format!(
        "<figure><figcaption>{} <b>{newest}</b> ({reach})</figcaption>\
         <svg viewBox=\"0 0 {WIDE} {HIGH}\" width=\"{WIDE}\" height=\"{HIGH}\" role=\"img\">\
         <rect width=\"{WIDE}\" height=\"{HIGH}\" fill=\"#fafafa\"/><polygon points=\"{band}\" fill=\"#cfe0f5\"/>\
         <polyline points=\"{line}\" fill=\"none\" stroke=\"#1f5fa8\" stroke-width=\"1.5\"/>{broken}</svg>\
         <div>step {first:.0} to {last:.0}</div></figure>",
        escaped(name),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_core::series::Place;
    use rankdeck_proto::media::{Histogram, PictureFormat, PictureHead};
    use rankdeck_types::ids::{RunId, Timestamp};

    fn place(x: i32) -> Place {
        Place { step: f64::from(x), time: 0.0 }
    }

    fn model() -> Model {
        let mut model = Model::default();
        model.run.id = Some(RunId("cart-1".into()));
        model.run.reason = "rank 1 on <b> was | killed".into();
        let mut series = Series::default();
        (0..5000).for_each(|x| series.push(place(x), f64::from(x % 7)));
        series.push(place(5000), f64::NAN);
        model.scalars.insert("charts/<script>".into(), series);
        model.scalars.insert("empty".into(), Series::default());
        let line = |n: u64| HistoryLine::new(n, Timestamp(n), Tone::Bad, "a\u{1b}[2J <i>");
        model.history = (0..2000).map(line).collect();
        let bins = |step: i32| Histogram { edges: vec![0.0, 1.0, 2.0], counts: vec![5.0, f64::from(step)] };
        let map = model.histograms.entry("<script>".into()).or_default();
        (1..200).for_each(|x| map.push(place(x), bins(x)));
        let head = PictureHead { format: PictureFormat::Png, width: 3, height: 2 };
        for i in 0..9 {
            model.gallery.push(format!("p{i} <i>"), place(i), head, "A".repeat(300 << 10));
        }
        model
    }

    #[test]
    fn small_numbers_keep_their_digits_and_a_constant_is_called_one() {
        let mut model = Model::default();
        for (name, value) in [("charts/learning_rate", 2.5e-4), ("losses/clip", 0.0)] {
            let series = model.scalars.entry(name.into()).or_default();
            (0..9).for_each(|x| series.push(place(x), value));
        }
        let (page, text) = (html(&model, &Sources::default()), markdown(&model, &Sources::default()));
        assert!(page.contains("2.5e-4") && page.contains("always 0)"), "{page}");
        assert!(text.contains("`charts/learning_rate`: 2.5e-4"), "{text}");
    }

    #[test]
    fn a_report_is_bounded_and_nothing_in_it_is_markup_of_others() {
        let sources = Sources {
            experiment: "[run]\nname = \"</pre><script>\"".into(),
            origin: vec![("command".into(), "rankdeck run <script> a|b\u{1b}[2J".into())],
            differences: vec![("a|b".into(), "1".into(), "2".into())],
            ..Sources::default()
        };
        let page = html(&model(), &sources);
        assert!(page.contains("<svg") && page.contains("cart-1") && page.ends_with("</html>\n"), "{page}");
        assert!(!page.contains("<script>") && !page.contains("<i>") && !page.contains('\u{1b}'));
        assert!(page.len() < 700_000 + PICTURES, "{} bytes", page.len());
        assert!(page.contains("at step 199 204 values from 0 to 2.000"));
        let pictures = page.matches(" src=\"data:image/png;base64,AAAA").count();
        assert_eq!((pictures, page.matches("src=").count()), (6, 6), "nothing else is loaded");
        assert!(page.contains("3 pictures more did not fit"));
        for outside in ["http:", "https:", "href=", "url(", "@import", "<link", "<script"] {
            assert!(!page.contains(outside), "it is one file: {outside}");
        }
        let text = markdown(&model(), &sources);
        assert!(text.starts_with("# cart-1\n") && text.contains("a\\|b | 1 | 2"), "{text}");
        assert!(text.contains("## Where it comes from") && text.contains("run <script> a\\|b"), "{text}");
        assert!(!text.contains('\u{1b}'));
    }
}
