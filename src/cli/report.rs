//! `rankdeck report`: a recorded run as one file for people who were not there.

use super::args::ReportArgs;
use super::{Failure, code, past, print};
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
    let sources = sources(&model);
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
    Sources { utc_offset_s: utc_offset_s(), experiment: text, differences }
}

fn differences(experiment: &Experiment) -> Vec<(String, String, String)> {
    let (Ok(own), Ok(usual)) =
        (toml::Table::try_from(experiment), toml::Table::try_from(Experiment::default()))
    else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (section, values) in &own {
        let Some(values) = values.as_table() else { continue };
        let usual = usual.get(section).and_then(toml::Value::as_table);
        for (key, value) in values {
            let before = usual.and_then(|usual| usual.get(key));
            if before != Some(value) {
                let before = before.map_or_else(|| "-".to_owned(), ToString::to_string);
                found.push((format!("{section}.{key}"), value.to_string(), before));
            }
        }
    }
    found
}
