//! Hosts and an experiment together: what cannot work is refused here, with file, line and column, before any host is touched.

use super::diagnostic::{Diagnostic, Diagnostics, Place, Source};
use super::document::{self, Node, Value};
use super::hosts::read_hosts;
use super::load::{nearest, read_experiment};
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::Host;
use rankdeck_types::ids::RunId;
use rankdeck_types::plan::{PlanDraft, PlanError};
use std::path::Path;
use std::sync::Arc;

/// A draft of what was loaded before, checked as far as no host has to be asked.
///
/// The files are read again for their lines only. Errors: everything that cannot work.
pub fn draft(
    hosts_path: &Path,
    hosts: Vec<Host>,
    experiment_path: &Path,
    experiment: Experiment,
    run: RunId,
) -> Result<PlanDraft, Diagnostics> {
    let tree =
        |path: &Path| document::read(path, "file", "").and_then(|source| document::parse(&source)).ok();
    let texts = Texts {
        hosts: tree(hosts_path),
        experiment: tree(experiment_path),
        hosts_name: hosts_path.display().to_string(),
        experiment_name: experiment_path.display().to_string(),
    };
    check(PlanDraft { run, experiment, hosts, excluded: Default::default() }, &texts)
}

/// Loads both files and checks them, together too; reports the mistakes of both at once.
pub fn load_draft(
    hosts_path: &Path,
    experiment_path: &Path,
    sets: &[String],
    run: impl FnOnce(&Experiment) -> RunId,
) -> Result<PlanDraft, Diagnostics> {
    match (read_hosts(hosts_path), read_experiment(experiment_path, sets)) {
        (Ok((hosts, hosts_text)), Ok((experiment, experiment_text))) => {
            let run = run(&experiment);
            let texts = Texts {
                hosts: Some(hosts_text),
                experiment: Some(experiment_text),
                hosts_name: hosts_path.display().to_string(),
                experiment_name: experiment_path.display().to_string(),
            };
            check(PlanDraft { run, experiment, hosts, excluded: Default::default() }, &texts)
        }
        (hosts, experiment) => {
            let mut all = hosts.err().unwrap_or_default();
            all.0.extend(experiment.err().unwrap_or_default().0);
            Err(all)
        }
    }
}

struct Texts {
    hosts: Option<Node>,
    experiment: Option<Node>,
    hosts_name: String,
    experiment_name: String,
}

fn check(draft: PlanDraft, texts: &Texts) -> Result<PlanDraft, Diagnostics> {
    let mut found = Diagnostics::new();
    for problem in draft.problems(&[]) {
        found.push(point(&problem, &draft, texts));
    }
    found.or(draft)
}

/// The problem with the line of its key.
fn point(problem: &PlanError, draft: &PlanDraft, texts: &Texts) -> Diagnostic {
    let is_host = problem.key.starts_with("host");
    let (root, name) = match is_host {
        true => (&texts.hosts, &texts.hosts_name),
        false => (&texts.experiment, &texts.experiment_name),
    };
    let table = problem.key.rsplit_once('.').map_or("", |(table, _)| table);
    let at = match root {
        Some(root) if is_host => {
            let own = problem.key.as_str();
            let default = own.rsplit('.').next().map(|key| format!("defaults.{key}")).unwrap_or_default();
            Some(nearest(root, &[own, &default, table]))
        }
        Some(root) => Some(
            overridden(root, &problem.key, &draft.experiment)
                .unwrap_or_else(|| nearest(root, &[&problem.key, table])),
        ),
        None => None,
    };
    match at {
        Some(at) => Diagnostic::at(&at, &problem.error),
        None => Diagnostic::about_file(name, &problem.error),
    }
    .hint(&problem.hint)
}

/// A value that is not the file's came from the command line: quote that instead.
fn overridden(root: &Node, key: &str, experiment: &Experiment) -> Option<Place> {
    let value = toml::Value::try_from(experiment).ok()?;
    let value = key.split('.').try_fold(&value, |at, part| at.get(part))?;
    let differs = match root.entry(key).map(|found| &found.node.value) {
        Some(Value::Float(written)) => value.as_float() != Some(*written),
        Some(Value::Integer(written)) => {
            value.as_integer().map(i128::from) != Some(*written) && value.as_float() != Some(*written as f64)
        }
        Some(Value::String(written)) => value.as_str() != Some(written),
        // Absent in the file: its default cannot be told from an override, and the table is the better place.
        _ => false,
    };
    differs.then(|| {
        let text = format!("{key}={value}");
        let range = key.len() + 1..text.len();
        Place { source: Arc::new(Source { name: "--set".into(), text }), range }
    })
}
