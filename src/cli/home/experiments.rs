//! Experiments that can be launched from here, and their plans on the hosts as these tell themselves.

use crate::cli::preflight;
use crate::cli::run_id::new_run_id;
use rankdeck_config::{ExperimentSource, HostsSource, load_draft, load_experiment};
use rankdeck_tui::home::{Draft, Experiment, Home};
use rankdeck_types::probe::Probe;
use rankdeck_types::words::plural;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The folder of experiments.
const FOLDER: &str = "configs";
/// Most that are listed.
const MOST: usize = 500;

/// Experiments of `configs/`, then those of this folder.
pub(super) fn find() -> Vec<Experiment> {
    let mut paths = toml_files(Path::new(FOLDER));
    // Other files of this folder are no experiments unless they look like one.
    paths.extend(toml_files(Path::new("")).into_iter().filter(|path| {
        std::fs::read_to_string(path).is_ok_and(|text| {
            text.lines().any(|line| matches!(line.trim(), "[run]" | "[launch]" | "[learn]"))
        })
    }));
    paths.truncate(MOST);
    paths.into_iter().map(|path| read(&path)).collect()
}

fn toml_files(folder: &Path) -> Vec<PathBuf> {
    let at = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let entries = std::fs::read_dir(at).into_iter().flatten().flatten();
    let names = entries.map(|entry| folder.join(entry.file_name()));
    let mut paths: Vec<PathBuf> =
        names.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
    paths.sort();
    paths
}

fn read(path: &Path) -> Experiment {
    let shown = path.display().to_string();
    match load_experiment(&ExperimentSource::File(path.to_owned()), &[]) {
        Ok(experiment) => {
            let env = experiment.env.as_ref().map_or("", |env| env.id.as_str());
            let what = match (&experiment.learn, experiment.launch.command.is_empty()) {
                (_, false) => experiment.launch.command.join(" "),
                (Some(learn), true) => format!("{env} by {}", learn.name()),
                (None, true) => env.to_owned(),
            };
            Experiment {
                path: shown,
                name: experiment.run.name.clone(),
                what,
                total_steps: experiment.run.total_steps,
                wrong: None,
            }
        }
        Err(error) => {
            let text = error.to_string();
            let wrong = text.lines().next().unwrap_or_default().to_owned();
            Experiment { path: shown, wrong: Some(wrong), ..Experiment::default() }
        }
    }
}

/// What is known of hosts that have told themselves.
pub(super) fn probes(home: &Home) -> BTreeMap<String, Probe> {
    let known = home.hosts.iter().filter_map(|host| {
        let look = host.look.as_ref()?;
        let probe = Probe {
            hostname: host.name.clone(),
            cpu_count: look.sample.cpu_count,
            gpu_count: look.given.len() as u32,
            ..Probe::default()
        };
        Some((host.name.clone(), probe))
    });
    known.collect()
}

/// The plan of a file with typed changes, on the chosen hosts, or on all.
pub(super) fn draft(
    hosts: &HostsSource,
    path: String,
    typed: String,
    chosen: &BTreeSet<String>,
    probes: &BTreeMap<String, Probe>,
) -> Draft {
    let sets: Vec<String> = typed.split_whitespace().map(str::to_owned).collect();
    let told = |lines: Vec<String>, fits| Draft { path: path.clone(), typed: typed.clone(), lines, fits };
    let source = ExperimentSource::File(PathBuf::from(&path));
    let mut draft = match load_draft(hosts, &source, &sets, |experiment| new_run_id(&experiment.run.name)) {
        Ok(draft) => draft,
        Err(error) => return told(error.to_string().lines().map(str::to_owned).collect(), false),
    };
    if !chosen.is_empty() {
        let out = draft.hosts.iter().map(|host| host.name.clone()).filter(|name| !chosen.contains(name));
        draft.excluded = out.collect();
    }
    let known: Option<Vec<Probe>> = draft.hosts.iter().map(|host| probes.get(&host.name).cloned()).collect();
    match draft.resolve(known.as_deref().unwrap_or_default()) {
        Ok(plan) => told(preflight::plan_lines(&plan), true),
        Err(problem) if known.is_some() => {
            let cause = problem.cause;
            told(vec![format!("{}: {}", problem.key, cause.error), format!("hint: {}", cause.hint)], false)
        }
        Err(_) => {
            let missing = draft.hosts.iter().filter(|host| !probes.contains_key(&host.name)).count();
            let text = format!(
                "{} in all; {} has not told its GPUs yet",
                plural(draft.hosts.len(), "host"),
                missing
            );
            told(vec![text], true)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_made_of_what_hosts_tell_and_mistakes_are_told() {
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
            draft(&source, path.clone(), typed.into(), &none, probes)
        };
        let unknown = made("", &BTreeMap::new());
        assert!(unknown.fits && unknown.lines[0].contains("not told"), "{unknown:?}");
        let probe = Probe { gpu_count: 2, cpu_count: 8, ..Probe::default() };
        let probes: BTreeMap<String, Probe> =
            ["a", "b"].into_iter().map(|name| (name.to_owned(), probe.clone())).collect();
        let plan = made("", &probes);
        assert!(plan.fits && plan.lines.join("\n").contains("world_size 3"), "{plan:?}");
        let wrong = made("run.nonsense=1", &probes);
        assert!(!wrong.fits && wrong.lines.join("\n").contains("nonsense"), "{wrong:?}");
        let only = ["b".to_owned()].into();
        let chosen = draft(&source, path.clone(), String::new(), &only, &probes);
        assert!(chosen.lines.join("\n").contains("world_size 1"), "{chosen:?}");
    }
}
