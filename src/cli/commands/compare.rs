//! `rankdeck compare`: results, configuration and charts of recorded runs.

use crate::app::stderr;
use crate::cli::args::CompareArgs;
use crate::cli::support::{Failure, code, print, recorded_runs, sweep};
use rankdeck_charts::axis::Axis;
use rankdeck_charts::compare::{CompareOptions, csv, curves, letter, png, series_names, svg, text_chart};
use rankdeck_core::compare::{self, ComparedRun};
use rankdeck_types::words::{NONE, clean, count, duration};
use serde_json::{Value, json};
use std::path::Path;

/// Charts drawn by default.
const CHARTS: usize = 2;
/// Width of a chart without a terminal.
const CELLS: usize = 100;
/// Rows of a chart.
const ROWS: usize = 16;
/// Widest value of a key.
const WIDEST: usize = 32;

/// Runs `rankdeck compare`.
pub(crate) fn compare(args: &CompareArgs) -> Result<u8, Failure> {
    let mut named = Vec::new();
    for run in &args.runs {
        match sweep::named(run)? {
            Some((name, runs)) if runs.is_empty() => {
                return Err(
                    Failure::usage(format!("no trial of {name} has started")).hint("`rankdeck queue`")
                );
            }
            Some((name, runs)) => named.extend(recorded(&name, runs)?),
            None => named.push(run.clone()),
        }
    }
    let runs: Vec<ComparedRun> = named.iter().map(|run| load(run)).collect::<Result<_, _>>()?;
    let options = CompareOptions {
        axis: Axis::from_name(&args.x).unwrap_or_default(),
        weight: args.smooth,
        log: args.log,
        ungrouped: args.apart,
    };
    let all = series_names(&runs);
    let shown: Vec<String> = match args.series.is_empty() {
        true => all.iter().take(CHARTS).cloned().collect(),
        false => {
            let missing = args.series.iter().find(|name| !all.contains(name));
            if let Some(name) = missing {
                return Err(Failure::usage(format!("no run has the series `{name}`"))
                    .hint(format!("available: {}", all.join(", "))));
            }
            args.series.clone()
        }
    };
    // Files contain all series unless some were selected.
    let written = if args.series.is_empty() { &all } else { &shown };
    if let Some(path) = &args.svg {
        write(path, svg(&runs, written, &options).as_bytes())?;
    }
    if let Some(path) = &args.png {
        write(path, &png(&runs, written, &options))?;
    }
    if let Some(path) = &args.csv {
        write(path, csv(&runs, written).as_bytes())?;
    }
    if args.json {
        as_json(&runs).iter().for_each(|line| {
            print::stdout(&line.to_string());
        });
    } else {
        tables(&runs).iter().chain(&charts(&runs, &shown, &options)).for_each(|line| {
            print::stdout(line);
        });
    }
    Ok(code::SUCCESS)
}

/// Returns the runs of a sweep that have a recording.
fn recorded(sweep: &str, runs: Vec<String>) -> Result<Vec<String>, Failure> {
    let (kept, gone): (Vec<String>, Vec<String>) =
        runs.into_iter().partition(|run| recorded_runs::find(Some(run)).is_ok());
    if kept.is_empty() {
        return Err(Failure::usage(format!("no recording of sweep {sweep} found"))
            .hint(format!("show its results with `rankdeck queue {sweep}`")));
    }
    if !gone.is_empty() {
        stderr::line(&format!("note: no recording of {}; omitted", gone.join(", ")));
    }
    Ok(kept)
}

/// Loads a run from its local recording.
pub(crate) fn load(run: &str) -> Result<ComparedRun, Failure> {
    let recorded = recorded_runs::find(Some(run)).map_err(|failure| {
        failure.hint("to record a run of another console, attach to it here: `rankdeck attach`")
    })?;
    let (model, at) = recorded_runs::open(&recorded)?.last().map_err(|error| {
        Failure::usage(error.to_string()).hint("it may be from another version of rankdeck: use that one")
    })?;
    Ok(ComparedRun::from_model(&recorded.name, &model, at))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    std::fs::write(path, bytes).map_err(|error| {
        Failure::failed(format!("failed to write {}: {error}", path.display()))
            .hint("choose a writable directory")
    })?;
    stderr::line(&format!("written: {}", path.display()));
    Ok(())
}

fn number(value: Option<f64>) -> String {
    value.map_or(NONE.to_owned(), |value| format!("{value:.2}"))
}

/// Formats results, groups of seeds, and differing keys.
fn tables(runs: &[ComparedRun]) -> Vec<String> {
    let head = ["RUN", "OUTCOME", "STEPS", "STEPS/S", "TIME", "RETURN", "EVAL", "BEST"];
    let row = |run: &ComparedRun| {
        vec![
            clean(&run.run),
            run.outcome.map_or(NONE.to_owned(), |outcome| outcome.name().to_owned()),
            run.env_step.map_or(NONE.to_owned(), count),
            run.steps_per_s.map_or(NONE.to_owned(), |rate| count(rate.max(0.0) as u64)),
            duration(run.duration_s),
            number(run.last_return),
            number(run.last_eval),
            number(run.best_return),
        ]
    };
    let header = std::iter::once(head.map(str::to_owned).to_vec());
    let mut lines = vec![print::table(&header.chain(runs.iter().map(row)).collect::<Vec<_>>())];
    let groups = compare::groups(runs);
    if groups.iter().any(|group| group.runs.len() > 1) {
        let head = ["GROUP", "RUNS", "IQM", "95 % INTERVAL"].map(str::to_owned).to_vec();
        let row = |group: &compare::SeedGroup| {
            let interval = group.interval.map(|(low, high)| format!("{low:.2} to {high:.2}"));
            vec![
                clean(&group.name),
                group.runs.len().to_string(),
                number(group.score),
                interval.unwrap_or_else(|| NONE.to_owned()),
            ]
        };
        lines.push(String::new());
        lines.push(print::table(&std::iter::once(head).chain(groups.iter().map(row)).collect::<Vec<_>>()));
    }
    let changed = compare::changed(runs);
    if !changed.is_empty() {
        let names = runs.iter().map(|run| clean(&run.run));
        let head: Vec<String> = std::iter::once("KEY".to_owned()).chain(names).collect();
        let cell = |value: &Option<String>| {
            let text = value.as_deref().map_or(NONE.to_owned(), clean);
            if text.chars().count() > WIDEST {
                text.chars().take(WIDEST - 1).chain(['…']).collect()
            } else {
                text
            }
        };
        let row = |one: &compare::ChangedKey| {
            std::iter::once(one.key.clone()).chain(one.values.iter().map(cell)).collect::<Vec<String>>()
        };
        lines.push(String::new());
        lines.push(print::table(&std::iter::once(head).chain(changed.iter().map(row)).collect::<Vec<_>>()));
    }
    lines
}

fn charts(runs: &[ComparedRun], names: &[String], options: &CompareOptions) -> Vec<String> {
    let cells = crossterm::terminal::size().map_or(CELLS, |(columns, _)| usize::from(columns)).clamp(40, 200);
    let mut lines = Vec::new();
    for name in names {
        let curves = curves(runs, name, options);
        let legend: Vec<String> = curves
            .iter()
            .enumerate()
            .filter(|(_, curve)| !curve.dots.is_empty())
            .map(|(at, curve)| format!("{} {}", letter(at), clean(&curve.name)))
            .collect();
        lines.push(String::new());
        lines.push(format!("{}  over {}   {}", clean(name), options.axis.name(), legend.join("  ")));
        lines.extend(text_chart(&curves, options, cells, ROWS));
    }
    lines
}

/// One line per run, then one for the comparison.
fn as_json(runs: &[ComparedRun]) -> Vec<Value> {
    let mut lines: Vec<Value> = runs
        .iter()
        .map(|run| {
            let mut line = json!({ "kind": "compared_run" });
            if let (Value::Object(line), Ok(Value::Object(fields))) = (&mut line, serde_json::to_value(run)) {
                line.extend(fields);
            }
            line
        })
        .collect();
    lines.push(json!({
        "kind": "comparison",
        "runs": runs.iter().map(|run| &run.run).collect::<Vec<_>>(),
        "changed": compare::changed(runs),
        "groups": compare::groups(runs),
    }));
    lines
}
