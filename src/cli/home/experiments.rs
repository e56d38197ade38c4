//! Finds experiment files and plans their launches on the known hosts.

use crate::cli::args::promises::RequiredPromises;
use crate::cli::preflight;
use crate::cli::support::contract;
use crate::cli::support::run_name::new_run_id;
use rankdeck_config::{ExperimentSource, HostsSource, load_draft, load_experiment};
use rankdeck_proto::regular;
use rankdeck_tui::home::{ExperimentFile, Home, LaunchPreview};
use rankdeck_types::hidden;
use rankdeck_types::host::Probe;
use rankdeck_types::words::plural;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The directory of experiments.
const DIRECTORY: &str = "configs";
/// Maximum number of listed experiments.
const MAX_LISTED: usize = 500;

/// Returns the experiments of `configs/`, then those of the current directory.
pub(super) fn find() -> Vec<ExperimentFile> {
    paths().iter().map(|path| read(path)).collect()
}

/// Returns the paths of these experiments.
pub(in crate::cli) fn paths() -> Vec<PathBuf> {
    let mut paths = toml_files(Path::new(DIRECTORY));
    // Other TOML files of the current directory are listed only if they look like experiments.
    paths.extend(toml_files(Path::new("")).into_iter().filter(|path| {
        regular::read_text(path).is_ok_and(|text| {
            text.lines().any(|line| matches!(line.trim(), "[run]" | "[launch]" | "[learn]"))
        })
    }));
    paths.truncate(MAX_LISTED);
    paths
}

fn toml_files(directory: &Path) -> Vec<PathBuf> {
    let at = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let entries = std::fs::read_dir(at).into_iter().flatten().flatten();
    let names = entries.map(|entry| directory.join(entry.file_name()));
    let mut paths: Vec<PathBuf> =
        names.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
    paths.sort();
    paths
}

fn read(path: &Path) -> ExperimentFile {
    let shown = path.display().to_string();
    match load_experiment(&ExperimentSource::File(path.to_owned()), &[]) {
        Ok(experiment) => {
            let env = experiment.env.as_ref().map_or("", |env| env.id.as_str());
            let what = match (&experiment.learn, experiment.launch.command.is_empty()) {
                (_, false) => hidden::words(experiment.launch.command.iter().map(String::as_str)).join(" "),
                (Some(learn), true) => format!("{env} by {}", learn.name()),
                (None, true) => env.to_owned(),
            };
            ExperimentFile {
                path: shown,
                name: experiment.run.name.clone(),
                what,
                total_steps: experiment.run.total_steps,
                error: None,
            }
        }
        Err(error) => {
            let text = error.to_string();
            let error = text.lines().next().unwrap_or_default().to_owned();
            ExperimentFile { path: shown, error: Some(error), ..ExperimentFile::default() }
        }
    }
}

/// Returns probes of the hosts that have sent a snapshot.
pub(super) fn probes(home: &Home) -> BTreeMap<String, Probe> {
    let known = home.hosts.iter().filter_map(|host| {
        let snapshot = host.snapshot.as_ref()?;
        let probe = Probe {
            hostname: host.name.clone(),
            cpu_count: snapshot.sample.cpu_count,
            gpu_count: snapshot.given.len() as u32,
            ..Probe::default()
        };
        Some((host.name.clone(), probe))
    });
    known.collect()
}

/// Plans the launch of a file with typed overrides on the chosen hosts, or on all.
pub(super) fn preview(
    hosts: &HostsSource,
    path: String,
    typed: String,
    chosen: &BTreeSet<String>,
    probes: &BTreeMap<String, Probe>,
) -> LaunchPreview {
    let sets: Vec<String> = typed.split_whitespace().map(str::to_owned).collect();
    let preview =
        |lines: Vec<String>, fits| LaunchPreview { path: path.clone(), typed: typed.clone(), lines, fits };
    let source = ExperimentSource::File(PathBuf::from(&path));
    let mut draft = match load_draft(hosts, &source, &sets, |experiment| new_run_id(&experiment.run.name)) {
        Ok(draft) => draft,
        Err(error) => return preview(error.to_string().lines().map(str::to_owned).collect(), false),
    };
    let needs = RequiredPromises::of_sets("run", &sets);
    if let Err(failure) = contract::demand(&draft.experiment, &source, &draft.hosts, &needs) {
        return preview(failure.lines(), false);
    }
    if !chosen.is_empty() {
        let out = draft.hosts.iter().map(|host| host.name.clone()).filter(|name| !chosen.contains(name));
        draft.excluded = out.collect();
    }
    let known: Option<Vec<Probe>> = draft.hosts.iter().map(|host| probes.get(&host.name).cloned()).collect();
    match draft.resolve(known.as_deref().unwrap_or_default()) {
        Ok(plan) => preview(preflight::plan_lines(&plan), true),
        Err(problem) if known.is_some() => {
            let cause = problem.cause;
            preview(vec![format!("{}: {}", problem.key, cause.error), format!("hint: {}", cause.hint)], false)
        }
        Err(_) => {
            let missing = draft.hosts.iter().filter(|host| !probes.contains_key(&host.name)).count();
            let text =
                format!("waiting for {missing} of {} to report GPUs", plural(draft.hosts.len(), "host"));
            preview(vec![text], true)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preview_plans_known_hosts_and_lists_mistakes() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let hosts = write(
            "hosts.toml",
            "[[host]]\nname = \"a\"\naddress = \"a.lab\"\ngpus = \"all\"\n[[host]]\nname = \"b\"\naddress = \"b.lab\"\n",
        );
        let path = write("x.toml", "[run]\nname = \"x\"\n[launch]\ncommand = [\"python\", \"t.py\"]\n");
        let source = HostsSource::parse(&hosts);
        let none = BTreeSet::new();
        let made = |typed: &str, probes: &BTreeMap<String, Probe>| {
            preview(&source, path.clone(), typed.into(), &none, probes)
        };
        let unknown = made("", &BTreeMap::new());
        assert!(unknown.fits && unknown.lines[0].contains("2 of 2 hosts"), "{unknown:?}");
        let probe = Probe { gpu_count: 2, cpu_count: 8, ..Probe::default() };
        let probes: BTreeMap<String, Probe> =
            ["a", "b"].into_iter().map(|name| (name.to_owned(), probe.clone())).collect();
        let plan = made("", &probes);
        assert!(plan.fits && plan.lines.join("\n").contains("world_size 3"), "{plan:?}");
        let wrong = made("run.nonsense=1", &probes);
        assert!(!wrong.fits && wrong.lines.join("\n").contains("nonsense"), "{wrong:?}");
        let seed = made("run.seed=7", &probes);
        assert!(!seed.fits && seed.lines.join("\n").contains("{seed}"), "{seed:?}");
        let only = ["b".to_owned()].into();
        let chosen = preview(&source, path.clone(), String::new(), &only, &probes);
        assert!(chosen.lines.join("\n").contains("world_size 1"), "{chosen:?}");
    }
}
