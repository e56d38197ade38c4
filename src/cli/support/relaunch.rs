//! How to launch a run again: its experiment file and overrides, stored with the recording for later
//! consoles.

use crate::app::overrides;
use crate::cli::args::promises::RequiredPromises;
use crate::cli::support::prompt::NoPrompts;
use crate::cli::support::{Failure, code_record, contract};
use rankdeck_config::ExperimentSource;
use rankdeck_proto::regular;
use rankdeck_tui::restart_draft::{ChangedExperiment, EditedFile, FileAnswer, FileQuestion, OtherHosts};
use rankdeck_types::experiment::Experiment;
use rankdeck_types::hidden;
use rankdeck_types::host::Host;
use rankdeck_types::ids::RunId;
use rankdeck_types::override_key;
use rankdeck_types::promise::Promise;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a run was launched from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RelaunchSpec {
    /// The experiment file.
    pub(crate) experiment: PathBuf,
    /// Its `KEY=VALUE` overrides.
    pub(crate) set: Vec<String>,
    /// All resolved keys at launch, as TOML.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) read: Option<String>,
}

/// Reads the files that the current run was launched from, and uploads its code. Blocks: not for the loop of a
/// run.
pub(crate) fn read_files(question: FileQuestion) -> FileAnswer {
    let OfferedRun { spec, run, hosts, .. } = offered().clone();
    // Overrides need no other promise.
    let needs = RequiredPromises { demanded: [Promise::Seed].into(), ..RequiredPromises::default() };
    let mistakes = question.changed.and_then(|changed| check(spec.as_ref(), &changed, &[], &needs).err());
    let mut mistakes = mistakes.unwrap_or_default();
    let code = question.code.map(|code| code_record::standing(run.as_ref(), &code));
    let uploaded = question.upload.map(|OtherHosts { exclude, add }| {
        let stay = hosts.into_iter().filter(|host| !exclude.contains(&host.name));
        let all: Vec<Host> = stay.chain(add).collect();
        match run.ok_or_else(|| Failure::usage("the run is unknown")).and_then(|run| upload(&run, &all)) {
            Ok(hash) => Some(hash),
            Err(failure) => {
                mistakes.push(failure.cause.with_hint());
                None
            }
        }
    });
    FileAnswer { line: question.line, edited: spec.and_then(|spec| spec.edited()), mistakes, code, uploaded }
}

/// Uploads the code of a run as it is now. The screen has the terminal: nothing is asked.
fn upload(run: &RunId, hosts: &[Host]) -> Result<String, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::failed(format!("cannot upload the code: {error}")))?;
    runtime.block_on(code_record::upload(run, hosts, Arc::new(NoPrompts)))
}

/// Applies overrides to the experiment of the current run, and reads no file for that.
///
/// # Errors
/// All mistakes in the overrides and in the resulting experiment.
pub(crate) fn change(experiment: &Experiment, sets: &[String]) -> Result<ChangedExperiment, Vec<String>> {
    let changed = overrides::change(experiment, sets)?;
    let needs = RequiredPromises::of_sets("restart", sets);
    Ok(ChangedExperiment { unchecked: !needs.demanded.is_empty(), ..changed })
}

/// Applies overrides to the experiment of a run that was launched from `spec` on these hosts.
///
/// # Errors
/// All mistakes, a promise that the program does not keep among them.
pub(crate) fn change_of(
    spec: Option<&RelaunchSpec>,
    experiment: &Experiment,
    sets: &[String],
    hosts: &[Host],
) -> Result<ChangedExperiment, Vec<String>> {
    let changed = overrides::change(experiment, sets)?;
    check(spec, &changed.experiment, hosts, &RequiredPromises::of_sets("restart", sets))?;
    Ok(changed)
}

/// Rejects what the program does not keep.
fn check(
    spec: Option<&RelaunchSpec>,
    experiment: &Experiment,
    hosts: &[Host],
    needs: &RequiredPromises,
) -> Result<(), Vec<String>> {
    let file = spec.map_or_else(|| PathBuf::from("experiment.toml"), |spec| spec.experiment.clone());
    let checked = contract::demand(experiment, &ExperimentSource::File(file), hosts, needs);
    checked.map_err(|failure| vec![format!("{}; hint: {}", failure.cause.error, failure.cause.hint)])
}

/// The run of the screen: what a restart reads and uploads, and another launch starts from.
#[derive(Clone)]
struct OfferedRun {
    /// What it was launched from.
    spec: Option<RelaunchSpec>,
    /// The user requested another launch.
    requested: bool,
    run: Option<RunId>,
    hosts: Vec<Host>,
}

static OFFERED: Mutex<OfferedRun> =
    Mutex::new(OfferedRun { spec: None, requested: false, run: None, hosts: Vec::new() });

fn offered() -> MutexGuard<'static, OfferedRun> {
    OFFERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Offers a run to the next screen, for restarts and a relaunch.
pub(crate) fn offer(spec: Option<RelaunchSpec>, run: &RunId, hosts: &[Host]) {
    *offered() = OfferedRun { spec, requested: false, run: Some(run.clone()), hosts: hosts.to_vec() };
}

/// Whether a relaunch is offered.
pub(crate) fn is_offered() -> bool {
    offered().spec.is_some()
}

/// Stores whether the user requested a relaunch when the screen closed.
pub(crate) fn set_requested(requested: bool) {
    offered().requested = requested;
}

/// Whether a relaunch was requested.
pub(crate) fn is_requested() -> bool {
    let offered = offered();
    offered.requested && offered.spec.is_some()
}

/// Takes the requested relaunch, once.
pub(crate) fn take() -> Option<RelaunchSpec> {
    let mut offered = offered();
    let requested = std::mem::take(&mut offered.requested);
    offered.spec.take().filter(|_| requested)
}

impl RelaunchSpec {
    /// The spec of a launch; `None` without an experiment file.
    pub(crate) fn new(experiment: Option<&Path>, set: &[String]) -> Option<RelaunchSpec> {
        let experiment = std::path::absolute(experiment?).ok()?;
        let again = RelaunchSpec { experiment, set: set.to_vec(), read: None };
        let read = again.read().and_then(|read| toml::to_string(&read).ok());
        Some(RelaunchSpec { read, ..again })
    }

    /// Reads the current file, without secrets.
    fn read(&self) -> Option<Experiment> {
        let source = ExperimentSource::File(self.experiment.clone());
        let mut read = rankdeck_config::load_experiment(&source, &self.set).ok()?;
        // Values of variables are not stored.
        read.launch.env.clear();
        Some(hidden::experiment(&read))
    }

    /// Hides secrets among the overrides; they are stored in the run's `experiment.toml` only.
    pub(crate) fn redacted(self) -> RelaunchSpec {
        let kept = |set: String| match hidden::word(&set) == set {
            true => set,
            false => format!("{}={}", override_key::key(&set), hidden::STARS),
        };
        RelaunchSpec { set: self.set.into_iter().map(kept).collect(), ..self }
    }

    /// Reverts [`RelaunchSpec::redacted`]; `folder` has the run's `experiment.toml`. A missing key is
    /// dropped.
    pub(crate) fn restored(self, folder: &Path) -> RelaunchSpec {
        let text = regular::read_text(&folder.join("experiment.toml")).unwrap_or_default();
        let table = toml::from_str::<toml::Table>(&text).unwrap_or_default();
        let found = |path: &str| {
            let names = override_key::parts(path)?;
            let (last, above) = names.split_last()?;
            above.iter().try_fold(&table, |table, name| table.get(name)?.as_table())?.get(last).cloned()
        };
        let restored = |set: String| match set.strip_suffix(&format!("={}", hidden::STARS)) {
            Some(key) => found(key).map(|value| format!("{key}={value}")),
            None => Some(set),
        };
        RelaunchSpec { set: self.set.into_iter().filter_map(restored).collect(), ..self }
    }

    /// Returns how the file differs from the launch, since a restart uses the run's own keys. `None` without
    /// a difference.
    pub(crate) fn edited(&self) -> Option<EditedFile> {
        let was: Experiment = toml::from_str(self.read.as_deref()?).ok()?;
        let differences = overrides::differences(&was, &self.read()?);
        (!differences.is_empty()).then(|| EditedFile { file: self.path(), differences })
    }

    /// The path relative to the current directory.
    pub(crate) fn path(&self) -> String {
        let here = std::env::current_dir().unwrap_or_default();
        self.experiment.strip_prefix(&here).unwrap_or(&self.experiment).display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_with_unused_seed_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("plain.py"), "import torch\n").unwrap();
        std::fs::write(folder.path().join("reads.py"), "import os\nos.environ['RANKDECK_SEED']\n").unwrap();
        let spec = RelaunchSpec { experiment: folder.path().join("e.toml"), ..RelaunchSpec::default() };
        let change = |command: &str, set: &str| {
            let text = format!("[run]\nname = \"a\"\n[launch]\ncommand = {command}\n");
            let experiment: Experiment = toml::from_str(&text).unwrap();
            change_of(Some(&spec), &experiment, &[set.to_owned()], &[])
        };
        assert!(change("[\"python3\", \"plain.py\"]", "run.seed=7").is_err());
        assert!(change("[\"python3\", \"plain.py\"]", "launch.stop_grace_s=7").is_ok());
        assert!(change("[\"python3\", \"plain.py\", \"{seed}\"]", "run.seed=7").is_ok());
        let changed = change("[\"python3\", \"reads.py\"]", "run.seed=7").unwrap();
        assert_eq!(changed.experiment.run.seed, 7);
    }

    /// The loop of a run reads no file for it.
    #[test]
    fn seed_of_a_typed_restart_is_checked_by_the_reader() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("plain.py"), "import torch\n").unwrap();
        let file = folder.path().join("e.toml");
        let text = "[run]\nname = \"a\"\n[launch]\ncommand = [\"python3\", \"plain.py\"]\n";
        std::fs::write(&file, text).unwrap();
        let run = RunId("a-1".into());
        offer(RelaunchSpec::new(Some(&file), &[]), &run, &[]);
        std::fs::write(&file, text.replace("\"a\"", "\"b\"")).unwrap();
        let experiment: Experiment = toml::from_str(text).unwrap();
        let seed = change(&experiment, &["run.seed=7".to_owned()]).unwrap();
        let grace = change(&experiment, &["launch.stop_grace_s=7".to_owned()]).unwrap();
        assert_eq!((seed.unchecked, grace.unchecked), (true, false));
        let line = "run.seed=7".to_owned();
        let changed = Some(seed.experiment);
        let answer = read_files(FileQuestion { line: line.clone(), changed, ..FileQuestion::default() });
        assert_eq!((answer.line, answer.mistakes.len()), (line, 1));
        let key = |file: EditedFile| file.differences.into_iter().map(|(key, ..)| key).collect::<Vec<_>>();
        assert_eq!(answer.edited.map(key), Some(vec!["run.name".to_owned()]));
        offer(None, &run, &[]);
        let answer = read_files(FileQuestion::default());
        assert_eq!(answer, FileAnswer::default());
    }

    #[test]
    fn hide_1_secret_overrides_are_in_one_file_only() {
        let folder = tempfile::tempdir().unwrap();
        let text = "[learn]\ngamma = 0.5\n[launch.env]\nAPI_TOKEN = \"hunter2\"\nA = \"1\"\n";
        std::fs::write(folder.path().join("experiment.toml"), text).unwrap();
        let set = ["learn.gamma=0.5", "launch.env.API_TOKEN=\"hunter2\"", "launch.env.GONE_KEY=\"hunter2\""];
        let own = RelaunchSpec { set: set.map(str::to_owned).to_vec(), ..RelaunchSpec::default() };
        let kept = own.redacted();
        let json = serde_json::to_string(&kept).unwrap();
        assert!(!json.contains("hunter2") && json.contains("API_TOKEN"), "{json}");
        assert_eq!(kept.restored(folder.path()).set, set[..2]);
    }
}
