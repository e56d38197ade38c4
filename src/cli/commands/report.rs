//! `rankdeck report`: writes a recorded run as one HTML or Markdown file.

use crate::app::clock::utc_offset_s;
use crate::cli::args::ReportArgs;
use crate::cli::support::output_file::OutputFile;
use crate::cli::support::{Failure, code, code_record, locate, print, provenance};
use rankdeck_core::model::Model;
use rankdeck_tui::report::{Sources, html, markdown};
use rankdeck_types::experiment::Experiment;
use rankdeck_types::hidden;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Runs `rankdeck report`.
pub(crate) fn report(args: &ReportArgs) -> Result<u8, Failure> {
    let recorded = locate::recording(&args.what)?;
    let record = locate::open_recording(&recorded)?;
    let (model, _) = record.last().map_err(|error| {
        Failure::usage(error.to_string()).hint("it may be from another version of rankdeck: use that one")
    })?;
    // The recording is in the console's directory, which is in that of the run.
    let run = recorded.record.ancestors().nth(2);
    let mut origin = run.map(provenance::rows).unwrap_or_default();
    origin.extend(run.map(|run| code_record::rows(run, &model.run.codes)).unwrap_or_default());
    let sources = Sources { origin, ..sources(&model) };
    let to = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{}.html", recorded.name)));
    if to == Path::new("-") {
        let text = markdown(&model, &sources);
        match args.print.json {
            true => {
                print::json(&json!({ "kind": "report", "run": recorded.name, "file": null, "text": text }))
            }
            false => print::text(text.trim_end()),
        };
        return Ok(code::SUCCESS);
    }
    let output = OutputFile::unless_present(&to, args.force)?;
    let is_markdown = to.extension().is_some_and(|end| end.eq_ignore_ascii_case("md"));
    let text = if is_markdown { markdown(&model, &sources) } else { html(&model, &sources) };
    output.report(text.as_bytes(), args.print)?;
    args.print.record(|| json!({ "kind": "report", "run": recorded.name, "file": output.path() }));
    Ok(code::SUCCESS)
}

/// The experiment of the plan, and how it differs from the defaults.
fn sources(model: &Model) -> Sources {
    let experiment = model.plan.as_ref().map(|plan| hidden::experiment(&plan.experiment));
    let text = experiment.as_ref().and_then(|own| toml::to_string(own).ok()).unwrap_or_default();
    let differences = experiment.as_ref().map(differences).unwrap_or_default();
    Sources { utc_offset_s: utc_offset_s(), experiment: text, differences, ..Sources::default() }
}

/// Returns the keys that differ from their defaults.
fn differences(experiment: &Experiment) -> Vec<(String, String, String)> {
    let Ok(own) = toml::Table::try_from(experiment) else { return Vec::new() };
    let mut found = Vec::new();
    for (section, values) in &own {
        let Some(values) = values.as_table() else { continue };
        for (key, value) in values {
            let usual = default_of(&own, section, key);
            if usual.as_ref() != Some(value) {
                let usual = usual.map_or_else(|| "-".to_owned(), |usual| usual.to_string());
                found.push((format!("{section}.{key}"), value.to_string(), usual));
            }
        }
    }
    found
}

/// Returns the default of a key with all other keys unchanged: defaults depend on the algorithm. `None` for a
/// required key.
fn default_of(own: &toml::Table, section: &str, key: &str) -> Option<toml::Value> {
    let mut without = own.clone();
    without.get_mut(section)?.as_table_mut()?.remove(key);
    let read: Experiment = without.try_into().ok()?;
    toml::Table::try_from(&read).ok()?.get(section)?.as_table()?.get(key).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_lists_only_non_default_keys() {
        let text = "[run]\nname = \"x\"\ntotal_steps = 1000\n[env]\nid = \"CartPole-v1\"\n\
                    num_envs = 12\n[learn]\nalgorithm = \"ppo\"\ngamma = 0.5\n";
        let experiment: Experiment = toml::from_str(text).unwrap();
        let found = differences(&experiment);
        let keys: Vec<&str> = found.iter().map(|(key, ..)| key.as_str()).collect();
        for key in ["run.name", "learn.gamma", "env.num_envs"] {
            assert!(keys.contains(&key), "{key}: {found:?}");
        }
        for key in ["learn.learning_rate", "learn.clip_coef", "eval.episodes"] {
            assert!(!keys.contains(&key), "{key}: {found:?}");
        }
    }
}
