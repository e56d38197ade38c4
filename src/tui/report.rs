//! Writes a report of a run: Markdown for a message, or one HTML file with charts.

use crate::run::outcome;
use crate::run::time::time_of_day;
use rankdeck_charts::axis::Scale;
use rankdeck_charts::export::{document, escaped, heat_shapes};
use rankdeck_core::model::{EventSubject, EventTone, HistoryLine, Model};
use rankdeck_core::report::VerdictReport;
use rankdeck_core::series::{Series, SeriesPoint};
use rankdeck_kit::text;
use rankdeck_types::words;
use std::fmt::Write as _;

/// Maximum number of charts.
const MAX_CHARTS: usize = 48;
/// Maximum number of evaluations, and of events; the latest are listed.
const MAX_ROWS: usize = 400;
/// Maximum size of all images as base64, in bytes.
const IMAGE_BYTES: usize = 2 << 20;
/// Width of a chart.
const WIDTH: f64 = 560.0;
/// Height of a chart.
const HEIGHT: f64 = 160.0;

/// What a report contains besides the model.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// Offset of local clocks from UTC, in seconds.
    pub utc_offset_s: i64,
    /// The experiment as TOML; empty if unknown.
    pub experiment: String,
    /// Provenance of the run: name and text.
    pub origin: Vec<(String, String)>,
    /// Keys that differ from the defaults: name, value, default.
    pub differences: Vec<(String, String, String)>,
}

/// A part of a report, in order.
enum ReportBlock {
    Head(String),
    Text(String),
    List(Vec<String>),
    Table(Vec<&'static str>, Vec<Vec<String>>),
    Code(String),
    Chart(String, Series),
    /// A heat map: name, drawing, and a summary of its newest histogram.
    HeatMap(String, String, String),
    /// A logged image: name, caption, format, and file in base64.
    Image(String, String, &'static str, String),
}

/// Joins indented lines, such as paths, with the line above.
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

fn blocks(model: &Model, sources: &Sources) -> Vec<ReportBlock> {
    let mut all = vec![ReportBlock::Text(outcome::headline(model))];
    all.push(ReportBlock::List(joined(outcome::totals(model))));
    let minute = outcome::last_minute(model);
    if !minute.is_empty() {
        all.push(ReportBlock::Head("Last minute".into()));
        all.push(ReportBlock::List(
            minute.iter().map(|line| event_line(line, sources.utc_offset_s)).collect(),
        ));
    }
    let verdicts = verdicts(model);
    if !verdicts.is_empty() {
        all.push(ReportBlock::Head("Verdicts".into()));
        for (when, verdict) in verdicts {
            let clock =
                when.map_or(String::new(), |time| format!("{} ", time_of_day(time, sources.utc_offset_s)));
            all.push(ReportBlock::Text(format!("{clock}{}: {}", verdict.verdict.name(), verdict.reason)));
            all.push(ReportBlock::List(verdict.card.text()));
        }
    }
    if !model.evals.is_empty() {
        all.push(ReportBlock::Head("Evaluations".into()));
        let skip = model.evals.len().saturating_sub(MAX_ROWS);
        let rows = model.evals.iter().skip(skip).map(|eval| {
            let reported = |text: String| if eval.is_of_series() { words::NONE.to_owned() } else { text };
            vec![
                words::count(eval.env_step),
                reported(eval.episodes.to_string()),
                reported(if eval.sampled { "sampled" } else { "greedy" }.to_owned()),
                words::fixed(eval.return_mean, 2),
                reported(words::fixed(eval.return_std, 2)),
                reported(words::fixed(eval.return_min, 2)),
                reported(words::fixed(eval.return_max, 2)),
            ]
        });
        all.push(ReportBlock::Table(
            vec!["env_step", "episodes", "actions", "return", "std", "min", "max"],
            rows.collect(),
        ));
    }
    if !model.scalars.is_empty() {
        all.push(ReportBlock::Head("Charts".into()));
        let is_shown = |series: &Series| !series.points().is_empty() || series.past().next().is_some();
        let shown = model.scalars.iter().filter(|(_, series)| is_shown(series)).take(MAX_CHARTS);
        all.extend(shown.map(|(name, series)| ReportBlock::Chart(name.clone(), series.clone())));
    }
    media(model, &mut all);
    all.push(ReportBlock::Head("Events".into()));
    let skip = model.history.len().saturating_sub(MAX_ROWS);
    all.push(ReportBlock::List(
        model.history.iter().skip(skip).map(|line| event_line(line, sources.utc_offset_s)).collect(),
    ));
    if !sources.origin.is_empty() {
        all.push(ReportBlock::Head("Provenance".into()));
        let rows = sources.origin.iter().map(|(what, text)| vec![words::clean(what), words::clean(text)]);
        all.push(ReportBlock::Table(vec!["item", "value"], rows.collect()));
    }
    if !sources.differences.is_empty() {
        all.push(ReportBlock::Head("Config keys that differ from the defaults".into()));
        let rows = sources
            .differences
            .iter()
            .map(|(key, value, default)| vec![key.clone(), value.clone(), default.clone()]);
        all.push(ReportBlock::Table(vec!["key", "value", "default"], rows.collect()));
    }
    if !sources.experiment.is_empty() {
        all.push(ReportBlock::Head("Configuration".into()));
        all.push(ReportBlock::Code(sources.experiment.clone()));
    }
    all
}

/// Adds heat maps of histograms, and the newest image of each name.
fn media(model: &Model, all: &mut Vec<ReportBlock>) {
    if !model.histograms.is_empty() {
        all.push(ReportBlock::Head("Histograms".into()));
    }
    for (name, series) in &model.histograms {
        let (scale, last) = (Scale::default(), series.summary().reach().unwrap_or(1.0));
        let drawn = document(&[heat_shapes(name, series, &scale, (0.0, last.max(1.0)), false)]);
        // An SVG within HTML needs no namespace.
        let drawn = drawn.replacen(" xmlns=\"http://www.w3.org/2000/svg\"", "", 1);
        let newest = series.newest().map_or(String::new(), |column| {
            let (bins, step) = (&column.bins, column.place.step);
            let (low, high) = bins.range();
            let total = words::count(bins.total().round() as u64);
            let [low, high, mean] = [low, high, bins.mean()].map(text::value);
            format!("step {step:.0}: {total} values from {low} to {high}, mean {mean}")
        });
        all.push(ReportBlock::HeatMap(name.clone(), drawn, newest));
    }
    let is_base64 = |data: &str| data.bytes().all(|c| c.is_ascii_alphanumeric() || b"+/=".contains(&c));
    let newest = model.gallery.names().filter_map(|(name, images)| Some((name, images.back()?)));
    let newest = newest.filter(|(_, picture)| is_base64(&picture.data));
    let (mut room, mut omitted, mut shown) = (IMAGE_BYTES, 0, Vec::new());
    for (name, picture) in newest {
        if picture.data.len() > room {
            omitted += 1;
            continue;
        }
        room -= picture.data.len();
        let head = picture.head;
        let caption = format!("step {:.0}, {} x {} pixels", picture.place.step, head.width, head.height);
        shown.push(ReportBlock::Image(name.clone(), caption, head.format.ending(), picture.data.clone()));
    }
    if !shown.is_empty() {
        all.push(ReportBlock::Head("Images".into()));
        all.extend(shown);
    }
    if omitted > 0 {
        let images = words::plural(omitted, "more image");
        all.push(ReportBlock::Text(format!("{images} omitted; `:media` on the screen shows them.")));
    }
}

fn event_line(line: &HistoryLine, offset_s: i64) -> String {
    let sign = match line.tone {
        EventTone::Info => "",
        EventTone::Good => "✓ ",
        EventTone::Warn => "▲ ",
        EventTone::Bad => "✗ ",
    };
    format!("{}  {sign}{}", time_of_day(line.time, offset_s), words::clean(&line.text))
}

/// Returns the latest report of each verdict in the history, and the other current ones.
fn verdicts(model: &Model) -> Vec<(Option<f64>, &VerdictReport)> {
    let mut all: Vec<(Option<f64>, &VerdictReport)> = Vec::new();
    for line in &model.history {
        if let Some(EventSubject::Verdict(verdict)) = &line.subject {
            all.retain(|(_, earlier)| {
                (earlier.verdict, earlier.rank, &earlier.host)
                    != (verdict.verdict, verdict.rank, &verdict.host)
            });
            all.push((Some(line.time), verdict));
        }
    }
    let is_listed = |verdict: &VerdictReport| {
        all.iter().any(|(_, listed)| listed.verdict == verdict.verdict && listed.rank == verdict.rank)
    };
    let others: Vec<_> =
        model.verdicts.iter().filter(|verdict| !is_listed(verdict)).map(|verdict| (None, verdict)).collect();
    all.into_iter().chain(others).collect()
}

fn name(model: &Model) -> String {
    model.run.id.as_ref().map_or_else(|| "run".to_owned(), |id| id.0.clone())
}

/// Escapes untrusted text for Markdown: no HTML, links, images or code.
fn inert(text: &str) -> String {
    let text = words::clean(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('\\', "\\\\").replace('[', "\\[").replace(']', "\\]").replace('`', "\\`")
}

/// Returns the report as Markdown, without charts.
pub fn markdown(model: &Model, sources: &Sources) -> String {
    let mut out = format!("# {}\n", inert(&name(model)));
    // A `|` would end a table cell.
    let plain = |text: &str| inert(text).replace('|', "\\|");
    // Within backquotes only another backquote is special.
    let quoted = |name: &str| format!("`{}`", words::clean(name).replace('`', "'"));
    for block in blocks(model, sources) {
        // Writing to a String cannot fail.
        let _ = match block {
            ReportBlock::Head(text) => writeln!(out, "\n## {text}"),
            ReportBlock::Text(text) => writeln!(out, "\n{}", inert(&text)),
            ReportBlock::List(items) => {
                let items = items.iter().map(|item| format!("- {}\n", inert(item)));
                writeln!(out, "\n{}", items.collect::<String>().trim_end())
            }
            ReportBlock::Table(head, rows) => {
                let rule = head.iter().map(|_| "---").collect::<Vec<_>>().join(" | ");
                let _ = writeln!(out, "\n| {} |\n| {rule} |", head.join(" | "));
                for row in rows {
                    let cells: Vec<String> = row.iter().map(|cell| plain(cell)).collect();
                    let _ = writeln!(out, "| {} |", cells.join(" | "));
                }
                Ok(())
            }
            ReportBlock::Code(text) => {
                let lines: Vec<String> = text.lines().map(words::clean).collect();
                writeln!(out, "\n```toml\n{}\n```", lines.join("\n").trim_end().replace("```", "'''"))
            }
            ReportBlock::Chart(name, series) => {
                let last = series.last().map_or("-".into(), text::value);
                writeln!(out, "- {}: {last}", quoted(&name))
            }
            ReportBlock::HeatMap(name, _, caption) | ReportBlock::Image(name, caption, ..) => {
                writeln!(out, "- {}: {caption}", quoted(&name))
            }
        };
    }
    out
}

/// Returns the report as a self-contained HTML file.
pub fn html(model: &Model, sources: &Sources) -> String {
    let title = escaped(&name(model));
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title><style>\n{STYLE}</style>\
         </head><body>\n<h1>{title}</h1>\n"
    );
    for block in blocks(model, sources) {
        // Writing to a String cannot fail.
        let _ = match block {
            ReportBlock::Head(text) => writeln!(out, "<h2>{}</h2>", escaped(&text)),
            ReportBlock::Text(text) => writeln!(out, "<p>{}</p>", escaped(&text)),
            ReportBlock::List(items) => {
                let items = items.iter().map(|item| format!("<li>{}</li>", escaped(item)));
                writeln!(out, "<ul>{}</ul>", items.collect::<String>())
            }
            ReportBlock::Table(head, rows) => {
                let head: String = head.iter().map(|cell| format!("<th>{cell}</th>")).collect();
                let row = |row: &Vec<String>| {
                    let cells: String =
                        row.iter().map(|cell| format!("<td>{}</td>", escaped(cell))).collect();
                    format!("<tr>{cells}</tr>")
                };
                writeln!(out, "<table><tr>{head}</tr>{}</table>", rows.iter().map(row).collect::<String>())
            }
            ReportBlock::Code(text) => {
                let lines: Vec<String> = text.lines().map(escaped).collect();
                writeln!(out, "<pre>{}</pre>", lines.join("\n"))
            }
            ReportBlock::Chart(name, series) => writeln!(out, "{}", chart(&name, &series)),
            ReportBlock::HeatMap(name, drawn, caption) => {
                let name = escaped(&name);
                writeln!(
                    out,
                    "<figure><figcaption>{name}</figcaption>{drawn}<div>{}</div></figure>",
                    escaped(&caption)
                )
            }
            ReportBlock::Image(name, caption, format, data) => {
                let (name, caption) = (escaped(&name), escaped(&caption));
                let data = escaped(&data);
                writeln!(
                    out,
                    "<figure><figcaption>{name}</figcaption><img alt=\"{name}\" src=\"data:image/{format};base64,{data}\">\
                     <div>{caption}</div></figure>"
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

/// Returns the lowest and the highest value behind points; infinities without points.
fn extremes<'a>(points: impl Iterator<Item = &'a SeriesPoint>) -> (f64, f64) {
    points.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), point| {
        (low.min(point.low), high.max(point.high))
    })
}

/// Draws a chart: the means as a line, their extremes as a band; abandoned generations in gray behind them. The
/// axes cover both; the caption's range is that of the present line.
fn chart(name: &str, series: &Series) -> String {
    let points = series.points();
    let all = || series.past().flat_map(|(_, past)| past).chain(points);
    let (low, high) = extremes(all());
    let first = all().map(|point| point.place.step).reduce(f64::min).unwrap_or(0.0);
    let last = all().map(|point| point.place.step).reduce(f64::max).unwrap_or(1.0);
    let across = (last - first).max(f64::MIN_POSITIVE);
    let up = if high > low { high - low } else { 1.0 };
    let x = |at: f64| (at - first) / across * WIDTH;
    let y = |value: f64| HEIGHT - (value - low) / up * HEIGHT;
    let line = |points: &[SeriesPoint], style: &str| {
        let corners: String =
            points.iter().map(|point| format!("{:.1},{:.1} ", x(point.place.step), y(point.mean))).collect();
        format!("<polyline points=\"{corners}\" fill=\"none\" {style}/>")
    };
    let past: String = series.past().map(|(_, points)| line(points, "stroke=\"#bbb\"")).collect();
    let own = line(points, "stroke=\"#1f5fa8\" stroke-width=\"1.5\"");
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
                "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"0\" y2=\"{HEIGHT}\" stroke=\"#d00\"/>",
                x(at.step).clamp(0.0, WIDTH)
            )
        })
        .collect();
    let note = if past.is_empty() { "" } else { "; abandoned generations in gray" };
    let newest = series.last().map_or("-".into(), text::value);
    let unit = escaped(series.unit());
    // A part of an epoch counts.
    let [first, last] =
        [first, last].map(|at| if unit == "step" { format!("{at:.0}") } else { text::value(at) });
    let range = match extremes(points.iter()) {
        // A restart has discarded all of them.
        _ if points.is_empty() => "no value yet".to_owned(),
        (low, high) if low < high => format!("{} to {}", text::value(low), text::value(high)),
        (low, _) => format!("constant {}", text::value(low)),
    };
    format!(
        "<figure><figcaption>{} <b>{newest}</b> ({range})</figcaption>\
         <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\">\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fafafa\"/>{past}<polygon points=\"{band}\" fill=\"#cfe0f5\"/>\
         {own}{broken}</svg><div>{unit} {first} to {last}{note}</div></figure>",
        escaped(name),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_core::series::Place;
    use rankdeck_proto::media::{Histogram, ImageFormat, ImageHeader};
    use rankdeck_types::ids::{Generation, RunId, Timestamp};

    fn place(x: i32) -> Place {
        Place { step: f64::from(x), time: 0.0, ..Place::default() }
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
        let line = |n: u64| HistoryLine::new(n, Timestamp(n), EventTone::Bad, "a\u{1b}[2J <i>");
        model.history = (0..2000).map(line).collect();
        let bins = |step: i32| Histogram { edges: vec![0.0, 1.0, 2.0], counts: vec![5.0, f64::from(step)] };
        let map = model.histograms.entry("<script>".into()).or_default();
        (1..200).for_each(|x| map.push(place(x), bins(x)));
        let head = ImageHeader { format: ImageFormat::Png, width: 3, height: 2 };
        for i in 0..9 {
            model.gallery.push(format!("p{i} <i>"), place(i), head, "A".repeat(300 << 10));
        }
        model
    }

    #[test]
    fn small_and_constant_values_keep_their_digits() {
        let mut model = Model::default();
        for (name, value) in [("charts/learning_rate", 2.5e-4), ("losses/clip", 0.0)] {
            let series = model.scalars.entry(name.into()).or_default();
            (0..9).for_each(|x| series.push(place(x), value));
        }
        let (page, text) = (html(&model, &Sources::default()), markdown(&model, &Sources::default()));
        assert!(page.contains("2.5e-4") && page.contains("constant 0)"), "{page}");
        assert!(text.contains("`charts/learning_rate`: 2.5e-4"), "{text}");
    }

    #[test]
    fn abandoned_generations_are_gray_behind_the_present_one() {
        let mut series = Series::default();
        let at = |generation, step: i32| Place { generation: Generation(generation), ..place(step) };
        (0..=10).for_each(|step| series.push(at(0, step), f64::from(step)));
        let of = |series: &Series| {
            let mut model = Model::default();
            model.scalars.insert("loss".into(), series.clone());
            html(&model, &Sources::default())
        };
        let gray = "stroke=\"#bbb\"";
        assert_eq!(of(&series).matches(gray).count(), 0);
        (3..=5).for_each(|step| series.push(at(1, step), 5.0));
        let page = of(&series);
        assert_eq!((page.matches(gray).count(), page.matches("<polyline").count()), (1, 2), "{page}");
        let (past, own) = (page.find(gray).unwrap(), page.find("#1f5fa8").unwrap());
        assert!(past < own && page.contains("step 0 to 10; abandoned"), "{page}");
        assert!(page.contains("(0 to 5"), "the range of the present line: {page}");
        assert!(!page.contains(",-"), "the axis covers both: {page}");
    }

    #[test]
    fn report_is_bounded_and_escapes_untrusted_text() {
        let sources = Sources {
            experiment: "[run]\nname = \"</pre><script>\"".into(),
            origin: vec![("command".into(), "rankdeck run <script> a|b\u{1b}[2J".into())],
            differences: vec![("a|b".into(), "1".into(), "2".into())],
            ..Sources::default()
        };
        let page = html(&model(), &sources);
        assert!(page.contains("<svg") && page.contains("cart-1") && page.ends_with("</html>\n"), "{page}");
        assert!(!page.contains("<script>") && !page.contains("<i>") && !page.contains('\u{1b}'));
        assert!(page.len() < 700_000 + IMAGE_BYTES, "{} bytes", page.len());
        assert!(page.contains("step 199: 204 values from 0 to 2.000"));
        let images = page.matches(" src=\"data:image/png;base64,AAAA").count();
        assert_eq!((images, page.matches("src=").count()), (6, 6), "no other resources");
        assert!(page.contains("3 more images"));
        for outside in ["http:", "https:", "href=", "url(", "@import", "<link", "<script"] {
            assert!(!page.contains(outside), "{outside}");
        }
        let text = markdown(&model(), &sources);
        assert!(text.starts_with("# cart-1\n") && text.contains("a\\|b | 1 | 2"), "{text}");
        assert!(text.contains("## Provenance") && text.contains("run &lt;script&gt; a\\|b"), "{text}");
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn recorded_text_is_never_markup() {
        const TEXT: &str = "\"><script>x</script>[a](javascript:x)`";
        let mut model = model();
        let head = ImageHeader { format: ImageFormat::Png, width: 3, height: 2 };
        model.gallery = Default::default();
        model.gallery.push("data".into(), place(1), head, TEXT.into());
        model.gallery.push(TEXT.into(), place(1), head, "AAAA".into());
        model.run.id = Some(RunId(TEXT.into()));
        model.run.reason = TEXT.into();
        model.run.master = TEXT.into();
        model.scalars = model.scalars.into_values().map(|series| (TEXT.to_owned(), series)).collect();
        model.histograms = model.histograms.into_values().map(|series| (TEXT.to_owned(), series)).collect();
        model.history.iter_mut().for_each(|line| line.text = TEXT.into());
        let three = || (TEXT.to_owned(), TEXT.to_owned(), TEXT.to_owned());
        let sources = Sources {
            experiment: format!("name = '{TEXT}'\n```\n{TEXT}"),
            origin: vec![(TEXT.into(), TEXT.into())],
            differences: vec![three()],
            ..Sources::default()
        };
        let page = html(&model, &sources);
        assert!(!page.contains("<script") && !page.contains("\">&lt;script"), "{page}");
        assert_eq!(page.matches("src=").count(), 1, "invalid base64 is omitted");
        let text = markdown(&model, &sources);
        let (before, code) = text.split_once("```toml").unwrap();
        assert_eq!(code.matches("```").count(), 1, "the code block ends once");
        for line in before.lines() {
            // Code spans hold text as it is.
            let outside: String = line.replace("\\`", "").split('`').step_by(2).collect();
            assert!(!outside.contains('<') && !outside.replace("\\[", "").contains('['), "{line}");
        }
    }
}
