//! `rankdeck compare`: compares results, configuration and charts of recorded runs.

use crate::app::stderr;
use crate::cli::args::CompareArgs;
use crate::cli::support::output_file::OutputFile;
use crate::cli::support::run_name::{LAST, RunAction};
use crate::cli::support::{Failure, code, locate, print, sweep};
use rankdeck_charts::axis::Axis;
use rankdeck_charts::compare::{CompareOptions, csv, curves, letter, png, series_names, svg, text_chart};
use rankdeck_core::compare::{self, ComparedRun};
use rankdeck_types::words::{NONE, clean, count, duration, fixed, rate};
use serde_json::{Value, json};
use std::path::PathBuf;

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
    let output = |path: &Option<PathBuf>| {
        path.as_deref().map(|path| OutputFile::unless_present(path, args.force)).transpose()
    };
    let (to_svg, to_png, to_csv) = (output(&args.svg)?, output(&args.png)?, output(&args.csv)?);
    let mut named = Vec::new();
    for run in &args.runs {
        match sweep::named(run, RunAction::Read)? {
            Some((name, runs)) if runs.is_empty() => {
                return Err(
                    Failure::usage(format!("no trial of {name} has started")).hint("`rankdeck queue`")
                );
            }
            Some((name, runs)) => named.extend(recorded(&name, runs)?),
            // A prefix alone stands for all of its runs.
            None if args.runs.len() == 1 && run != LAST => named.extend(locate::matching_recordings(run)?),
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
    if let Some(output) = to_svg {
        output.report(svg(&runs, written, &options).as_bytes(), args.output)?;
    }
    if let Some(output) = to_png {
        output.report(&png(&runs, written, &options), args.output)?;
    }
    if let Some(output) = to_csv {
        output.report(csv(&runs, written).as_bytes(), args.output)?;
    }
    if args.output.json {
        as_json(&runs).iter().for_each(|line| {
            print::json(line);
        });
    } else {
        let (tables, charts) = (tables(&runs), charts(&runs, &shown, &options));
        // The first table has the results.
        let lines = if args.output.quiet { 1 } else { tables.len() + charts.len() };
        tables.iter().chain(&charts).take(lines).for_each(|line| {
            print::text(line);
        });
    }
    Ok(code::SUCCESS)
}

/// Returns the runs of a sweep that have a recording.
fn recorded(sweep: &str, runs: Vec<String>) -> Result<Vec<String>, Failure> {
    let (kept, gone): (Vec<String>, Vec<String>) =
        runs.into_iter().partition(|run| locate::recording(run).is_ok());
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
    let recorded = locate::recording(run).map_err(|failure| {
        failure.hint("to record a run of another console, attach to it here: `rankdeck attach`")
    })?;
    let (model, at) = locate::open_recording(&recorded)?.last().map_err(|error| {
        Failure::usage(error.to_string()).hint("it may be from another version of rankdeck: use that one")
    })?;
    Ok(ComparedRun::from_model(&recorded.name, &model, at))
}

fn number(value: Option<f64>) -> String {
    value.map_or(NONE.to_owned(), |value| fixed(value, 2))
}

/// Formats results, groups of seeds, and differing keys.
fn tables(runs: &[ComparedRun]) -> Vec<String> {
    let head = ["RUN", "OUTCOME", "STEPS", "STEPS/S", "TIME", "RETURN", "EVAL", "BEST EVAL"];
    let row = |run: &ComparedRun| {
        vec![
            clean(&run.run),
            run.outcome.map_or(NONE.to_owned(), |outcome| outcome.name().to_owned()),
            run.env_step.map_or(NONE.to_owned(), count),
            run.steps_per_s.map_or(NONE.to_owned(), rate),
            duration(run.duration_s),
            number(run.last_return),
            number(run.last_eval),
            number(run.best_eval()),
        ]
    };
    let header = std::iter::once(head.map(str::to_owned).to_vec());
    let mut lines = vec![print::table(&header.chain(runs.iter().map(row)).collect::<Vec<_>>())];
    let groups = compare::groups(runs);
    if groups.iter().any(|group| group.runs.len() > 1) {
        let head = ["GROUP", "RUNS", "IQM", "95% INTERVAL"].map(str::to_owned).to_vec();
        let row = |group: &compare::SeedGroup| {
            let interval =
                group.interval.map(|(low, high)| format!("{} to {}", fixed(low, 2), fixed(high, 2)));
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
            let values = distinct_words(&one.values);
            std::iter::once(one.key.clone()).chain(values.iter().map(cell)).collect::<Vec<String>>()
        };
        lines.push(String::new());
        lines.push(print::table(&std::iter::once(head).chain(changed.iter().map(row)).collect::<Vec<_>>()));
    }
    lines
}

/// Of values that are too long for a cell, such as commands, returns the words in which they differ, with the
/// option before them.
fn distinct_words(values: &[Option<String>]) -> Vec<Option<String>> {
    let texts: Option<Vec<&str>> = values.iter().map(Option::as_deref).collect();
    let Some(texts) = texts.filter(|texts| texts.iter().any(|text| text.chars().count() > WIDEST)) else {
        return values.to_vec();
    };
    let words: Vec<Vec<String>> = texts
        .iter()
        .map(|text| {
            let list = serde_json::from_str::<Vec<String>>(text);
            list.unwrap_or_else(|_| text.split_whitespace().map(str::to_owned).collect())
        })
        .collect();
    let shortest = words.iter().map(Vec::len).min().unwrap_or(0);
    let alike =
        |at: &dyn Fn(&Vec<String>) -> Option<&String>| words.iter().all(|list| at(list) == at(&words[0]));
    let before = (0..shortest).take_while(|index| alike(&|list| list.get(*index))).count();
    let after =
        (0..shortest - before).take_while(|index| alike(&|list| list.iter().nth_back(*index))).count();
    let option = |index: usize| words[0].get(index).is_some_and(|word| word.starts_with('-'));
    let first = if before > 0 && option(before - 1) { before - 1 } else { before };
    let text = |list: &Vec<String>| {
        let kept = list[first..list.len() - after].join(" ");
        let (start, end) = (if first > 0 { "… " } else { "" }, if after > 0 { " …" } else { "" });
        Some(format!("{start}{kept}{end}"))
    };
    words.iter().map(text).collect()
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
        let axis = options.axis.name_over(runs.iter().filter_map(|run| run.series.get(name)));
        lines.push(format!("{}  over {axis}   {}", clean(name), legend.join("  ")));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_commands_are_cut_to_the_words_that_differ() {
        let command = |rate: &str| {
            Some(format!(
                r#"["python3","-u","train.py","--total-timesteps","5000","--lr","{rate}","--cuda"]"#
            ))
        };
        let shown = distinct_words(&[command("0.1"), command("0.25")]);
        assert_eq!(shown, [Some("… --lr 0.1 …".to_owned()), Some("… --lr 0.25 …".to_owned())]);
        let longer = Some(r#"["python3","-u","train.py","--total-timesteps","5000"]"#.to_owned());
        let shown = distinct_words(&[longer, command("1")]);
        assert_eq!(shown[1].as_deref(), Some("… --lr 1 --cuda"));
        for short in [vec![Some("1".to_owned()), None], vec![Some("a b".to_owned()), Some("a c".to_owned())]]
        {
            assert_eq!(distinct_words(&short), short);
        }
    }
}
