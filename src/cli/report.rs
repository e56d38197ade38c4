//! `rankdeck report`: a recorded run as one file for people who were not there.

use super::args::ReportArgs;
use super::{Failure, code, origin, past, print};
use crate::shell::clock::utc_offset_s;
use crate::shell::stderr;
use rankdeck_core::model::Model;
use rankdeck_tui::report::{Sources, html, markdown};
use rankdeck_types::experiment::Experiment;
use std::path::{Path, PathBuf};

/// Runs `rankdeck report`: writes a report of a recorded run.
pub fn report(args: &ReportArgs) -> Result<u8, Failure> {
    let past = past::find(args.what.as_deref())?;
    let record = past::open(&past)?;
    let (model, _) = record.last().map_err(|error| {
        Failure::usage(error.to_string()).hint("another rankdeck may have written it: use that one")
    })?;
    // A record lies in the folder of its console, and that in the run's.
    let run = past.record.ancestors().nth(2).map(origin::told).unwrap_or_default();
    let sources = Sources { origin: run, ..sources(&model) };
    let to = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{}.html", past.name)));
    if to == Path::new("-") {
        print::stdout(markdown(&model, &sources).trim_end());
        return Ok(code::SUCCESS);
    }
    let is_markdown = to.extension().is_some_and(|end| end.eq_ignore_ascii_case("md"));
    let text = if is_markdown { markdown(&model, &sources) } else { html(&model, &sources) };
    std::fs::write(&to, text).map_err(|error| {
        Failure::failed(format!("failed to write {}: {error}", to.display()))
            .hint("`--output FILE` writes elsewhere")
    })?;
    stderr::line(&format!("written: {}", to.display()));
    Ok(code::SUCCESS)
}

/// What the plan says beside the model: the experiment and how it differs from the defaults.
fn sources(model: &Model) -> Sources {
    let experiment = model.plan.as_ref().map(|plan| &plan.experiment);
    let text = experiment.and_then(|experiment| toml::to_string(experiment).ok()).unwrap_or_default();
    let differences = experiment.map(differences).unwrap_or_default();
    Sources { utc_offset_s: utc_offset_s(), experiment: text, differences, ..Sources::default() }
}

/// Keys that were set to something else than they are without being set.
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

/// What a key is where nothing sets it, everything else being as it is: defaults depend on the algorithm.
/// None of a key that has to be set.
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
    fn only_what_is_no_default_is_listed_as_set() {
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
