//! Charts of several runs: curves for a screen, text charts, and files.

use crate::axis::{Axis, Scale};
use crate::export::{self, Curve, Panel, csv_field};
pub use crate::view::letter;
use rankdeck_core::compare::{ComparedRun, MeanPoint, SeedGroup, groups, mean_and_band};
use rankdeck_core::series::Series;
use rankdeck_kit::plot::Dot;
use rankdeck_kit::text;
use rankdeck_types::meaning::{Meaning, Meanings};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Series that matter most, in this order.
const FIRST: [Meaning; 5] =
    [Meaning::Return, Meaning::EvalReturn, Meaning::ValueLoss, Meaning::Loss, Meaning::StepsPerSecond];
/// Width of the labels of the y axis.
const GUTTER: usize = 8;

/// How runs are compared.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CompareOptions {
    /// The x axis. Times count from the first value of each run.
    pub axis: Axis,
    /// Weight of the past in smoothed curves.
    pub weight: f64,
    /// The y axis is logarithmic.
    pub log: bool,
    /// Runs that differ only by seed are not grouped.
    pub ungrouped: bool,
}

impl CompareOptions {
    /// Returns the axis, for labels.
    pub fn scale(&self) -> Scale {
        Scale { axis: self.axis, ..Scale::default() }
    }
}

/// Returns the names of all series of the runs, those that matter most first.
pub fn series_names(runs: &[ComparedRun]) -> Vec<String> {
    let has_points = |series: &Series| !series.points().is_empty();
    let has = |run: &ComparedRun, name: &str| run.series.get(name).is_some_and(has_points);
    let all: BTreeSet<&String> = runs.iter().flat_map(|run| run.series.keys()).collect();
    let mut names: Vec<String> =
        all.into_iter().filter(|name| runs.iter().any(|run| has(run, name))).cloned().collect();
    let meanings = Meanings::default();
    let place = |name: &str| {
        let meaning = meanings.of(name)?;
        FIRST.iter().position(|first| *first == meaning)
    };
    names.sort_by_cached_key(|name| place(name).unwrap_or(FIRST.len()));
    names
}

/// Returns a curve per run, or per group its mean with the band over its seeds.
pub fn curves(runs: &[ComparedRun], name: &str, options: &CompareOptions) -> Vec<Curve> {
    let of = |run: &ComparedRun| run.series.get(name).map(|series| dots(series, options)).unwrap_or_default();
    if options.ungrouped {
        return runs.iter().map(|run| Curve { name: run.run.clone(), dots: of(run), faint: false }).collect();
    }
    let grouped = groups(runs);
    let curve = |group: &SeedGroup| {
        let dots = match group.runs.as_slice() {
            [one] => of(&runs[*one]),
            several => {
                let lines =
                    several.iter().map(|at| of(&runs[*at]).iter().map(|dot| (dot.x, dot.y)).collect());
                let points = mean_and_band(&lines.collect::<Vec<Vec<(f64, f64)>>>()).into_iter();
                let dot = |point: MeanPoint| Dot {
                    x: point.x,
                    y: point.mean,
                    low: point.low,
                    high: point.high,
                    count: point.count,
                };
                points.map(dot).collect()
            }
        };
        Curve { name: group.name.clone(), dots, faint: false }
    };
    grouped.iter().map(curve).collect()
}

fn dots(series: &Series, options: &CompareOptions) -> Vec<Dot> {
    let origin = series.points().first().map_or(0.0, |point| point.place.time);
    Scale { origin, ..options.scale() }.dots(series, options.weight)
}

/// Returns the x range of all curves.
pub fn x_range(curves: &[Curve]) -> (f64, f64) {
    let xs = || curves.iter().flat_map(|curve| curve.dots.iter().map(|dot| dot.x));
    let (low, high) = (xs().fold(f64::INFINITY, f64::min), xs().fold(f64::NEG_INFINITY, f64::max));
    if low < high { (low, high) } else { (0.0, 1.0) }
}

/// Draws a text chart: the mean of each column as the curve's letter. Later curves hide earlier ones.
pub fn text_chart(curves: &[Curve], options: &CompareOptions, cells: usize, rows: usize) -> Vec<String> {
    let (wide, high) = (cells.saturating_sub(GUTTER + 2).max(8), rows.max(3));
    let x = x_range(curves);
    let height = |y: f64| if options.log { y.log10() } else { y };
    let means: Vec<Vec<Option<f64>>> = curves.iter().map(|curve| columns(curve, x, wide, &height)).collect();
    let values = || means.iter().flatten().flatten().copied();
    let Some(low) = values().reduce(f64::min) else { return vec!["  no data".into()] };
    let top = values().reduce(f64::max).unwrap_or(low);
    let margin = if low == 0.0 { 1.0 } else { low.abs() * 0.1 };
    let (low, top) = if top > low { (low, top) } else { (low - margin, low + margin) };
    let mut grid = vec![vec![' '; wide]; high];
    for (at, line) in means.iter().enumerate() {
        for (column, y) in line.iter().enumerate() {
            let Some(y) = y else { continue };
            let share = (y / 2.0 - low / 2.0) / (top / 2.0 - low / 2.0);
            let row = ((1.0 - share.clamp(0.0, 1.0)) * (high - 1) as f64).round() as usize;
            grid[row.min(high - 1)][column] = letter(at);
        }
    }
    let back = |y: f64| if options.log { 10f64.powf(y) } else { y };
    let labels = text::apart([back(top), back(low / 2.0 + top / 2.0), back(low)]);
    let mut lines: Vec<String> = grid
        .into_iter()
        .enumerate()
        .map(|(row, cells)| {
            let label = match row {
                0 => labels[0].as_str(),
                row if row == high - 1 => labels[2].as_str(),
                row if row == (high - 1) / 2 => labels[1].as_str(),
                _ => "",
            };
            format!("{label:>GUTTER$} |{}", cells.into_iter().collect::<String>()).trim_end().to_owned()
        })
        .collect();
    let [from, to] = options.scale().labels([x.0, x.1]);
    let gap = wide.saturating_sub(from.len() + to.len()).max(1);
    lines.push(format!("{:GUTTER$}  {from}{}{to}", "", " ".repeat(gap)));
    lines
}

/// The mean of the values in each column, with gaps filled by straight lines.
fn columns(curve: &Curve, x: (f64, f64), wide: usize, height: &dyn Fn(f64) -> f64) -> Vec<Option<f64>> {
    let mut sums = vec![(0.0, 0u32); wide];
    for dot in &curve.dots {
        let y = height(dot.y);
        let at = ((dot.x - x.0) / (x.1 - x.0) * (wide - 1) as f64).round();
        if y.is_finite()
            && let Some(sum) = sums.get_mut(at.max(0.0) as usize)
        {
            *sum = (sum.0 + y, sum.1 + 1);
        }
    }
    let means: Vec<Option<f64>> =
        sums.into_iter().map(|(sum, n)| (n > 0).then(|| sum / f64::from(n))).collect();
    let mut filled = means.clone();
    let mut before: Option<usize> = None;
    for at in 0..wide {
        let Some(here) = means[at] else { continue };
        if let Some((from, start)) = before.and_then(|from| Some((from, means[from]?))) {
            for (gap, cell) in filled.iter_mut().enumerate().take(at).skip(from + 1) {
                *cell = Some(start + (here - start) * (gap - from) as f64 / (at - from) as f64);
            }
        }
        before = Some(at);
    }
    filled
}

/// Returns one chart per series as an SVG document.
pub fn svg(runs: &[ComparedRun], names: &[String], options: &CompareOptions) -> String {
    let panels = panels(runs, names, options);
    export::svg(&panels, &options.scale(), span(&panels), options.log)
}

/// Returns one chart per series as a PNG image.
pub fn png(runs: &[ComparedRun], names: &[String], options: &CompareOptions) -> Vec<u8> {
    let panels = panels(runs, names, options);
    export::png(&panels, &options.scale(), span(&panels), options.log)
}

fn panels(runs: &[ComparedRun], names: &[String], options: &CompareOptions) -> Vec<Panel> {
    names.iter().map(|name| Panel { title: name.clone(), curves: curves(runs, name, options) }).collect()
}

fn span(panels: &[Panel]) -> (f64, f64) {
    x_range(&panels.iter().flat_map(|panel| panel.curves.clone()).collect::<Vec<Curve>>())
}

/// Returns one row per run, series and point.
pub fn csv(runs: &[ComparedRun], names: &[String]) -> String {
    let mut out = String::from("run,series,env_step,time,mean,min,max,count,generation,unit\n");
    for run in runs {
        for name in names {
            let Some(series) = run.series.get(name) else { continue };
            let unit = csv_field(series.unit());
            for point in series.points() {
                let place = point.place;
                let (run, name) = (csv_field(&run.run), csv_field(name));
                // Writing to a String cannot fail.
                let _ = writeln!(
                    out,
                    "{run},{name},{},{:.3},{},{},{},{},{},{unit}",
                    place.step, place.time, point.mean, point.low, point.high, point.count, place.generation
                );
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_core::series::Place;

    fn run(name: &str, seed: &str, slope: f64) -> ComparedRun {
        let mut series = Series::default();
        for i in 0..100 {
            let step = f64::from(i) * 1000.0;
            series.push(Place { step, time: 5.0 + f64::from(i), ..Place::default() }, slope * f64::from(i));
        }
        let settings = [("run.name", "x"), ("run.seed", seed)];
        let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        ComparedRun {
            run: name.into(),
            settings: settings.collect(),
            series: [("charts/episodic_return".to_owned(), series)].into(),
            ..ComparedRun::default()
        }
    }

    #[test]
    fn seeds_are_grouped_into_a_mean_with_a_band() {
        let runs = [run("a", "1", 1.0), run("b", "2", 3.0)];
        let grouped = curves(&runs, "charts/episodic_return", &CompareOptions::default());
        assert_eq!(grouped.len(), 1);
        let last = grouped[0].dots.last().unwrap();
        assert_eq!((last.y, last.low, last.high, last.count), (198.0, 99.0, 297.0, 2));
        let ungrouped = curves(
            &runs,
            "charts/episodic_return",
            &CompareOptions { ungrouped: true, ..CompareOptions::default() },
        );
        assert_eq!(ungrouped.iter().map(|curve| curve.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn text_chart_has_every_curve_and_its_axis_labels() {
        let runs = [run("a", "1", 1.0), run("b", "2", 3.0)];
        let options = CompareOptions { ungrouped: true, ..CompareOptions::default() };
        let lines = text_chart(&curves(&runs, "charts/episodic_return", &options), &options, 60, 10);
        assert_eq!(lines.len(), 11);
        // The mean of the last two values.
        assert!(lines[0].starts_with("   295.5") && lines[0].ends_with('b'), "{lines:#?}");
        assert!(lines.iter().any(|line| line.ends_with('a')) && lines[10].ends_with("99.0k"), "{lines:#?}");
        assert_eq!(text_chart(&[], &options, 60, 10).len(), 1);
        let logged = CompareOptions { log: true, ..options };
        text_chart(&curves(&runs, "charts/episodic_return", &logged), &logged, 3, 1);
    }

    #[test]
    fn time_axis_starts_with_each_run() {
        let runs = [run("a", "1", 1.0)];
        let options = CompareOptions { axis: Axis::Time, ..CompareOptions::default() };
        assert_eq!(x_range(&curves(&runs, "charts/episodic_return", &options)), (0.0, 99.0));
        let names = series_names(&runs);
        assert!(
            csv(&runs, &names).lines().count() == 101 && svg(&runs, &names, &options).contains("polyline")
        );
    }
}
