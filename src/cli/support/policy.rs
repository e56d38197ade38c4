//! Checkpoints and policies on this machine, for `eval`, `play` and `export`.
//!
//! The file is copied from the host that has it, as `fetch` does. If the hosts of a run do not respond, an
//! earlier copy is used.

use crate::app::stderr;
use crate::cli::args::values::{CheckpointSource, parse_checkpoint};
use crate::cli::args::{FetchArgs, HostKeyArgs, PrintArgs, WorkerArgs};
use crate::cli::support::relaunch::RelaunchSpec;
use crate::cli::support::run_index::{own_binary, trainer_binary};
use crate::cli::support::run_name::{self, NamedRun, RunAction};
use crate::cli::support::run_name::{RUNS, own_folder};
use crate::cli::support::{Failure, contract, copy, locate, provenance};
use rankdeck_config::{ExperimentSource, HostsSource};
use rankdeck_types::experiment::Env;
use rankdeck_types::ids::RunId;
use rankdeck_types::promise::Promise;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the trainer that is installed next to this program, with its libtorch.
pub(crate) fn trainer_program() -> Result<Command, Failure> {
    let trainer = trainer_binary(&own_binary()?).ok_or_else(|| {
        Failure::usage(
            "rankdeck-trainer, which runs checkpoints, is not installed next to rankdeck".to_owned(),
        )
        .hint("install it, or export the policy with `rankdeck export` and run it in Python")
    })?;
    let mut command = Command::new(trainer);
    let here = rankdeck_agent::libtorch().map_err(Failure::from)?;
    if let Some(libtorch) = here.and_then(|folder| std::path::absolute(folder).ok()) {
        let before = std::env::var_os("LD_LIBRARY_PATH").filter(|value| !value.is_empty());
        let paths =
            std::iter::once(libtorch.join("lib")).chain(before.iter().flat_map(std::env::split_paths));
        if let Ok(paths) = std::env::join_paths(paths) {
            command.env("LD_LIBRARY_PATH", paths);
        }
    }
    Ok(command)
}

/// Returns the trainer command that runs a checkpoint.
pub(crate) fn trainer(checkpoint: &PolicyFile, worker: &WorkerArgs) -> Result<Command, Failure> {
    let mut command = trainer_program()?;
    command.arg("--evaluate").arg(&checkpoint.path);
    let own = checkpoint.run.as_ref().and_then(own_env);
    // The interpreter of the hosts may not exist on this machine.
    let is_here = |python: &String| !python.contains('/') || Path::new(python).is_file();
    let python = own.as_ref().map(|env| &env.python).filter(|python| is_here(python));
    if let Some(python) = worker.python.as_ref().or(python) {
        command.arg("--python").arg(python);
    }
    command.args(module_flags(worker, own.as_ref()));
    Ok(command)
}

/// Returns the trainer's flags for the modules that a checkpoint may import: those that the command names, and
/// those of the user's own environment.
fn module_flags(worker: &WorkerArgs, own: Option<&Env>) -> Vec<String> {
    let own = own.into_iter().flat_map(Env::modules);
    let modules = worker.env_module.iter().map(String::as_str).chain(own);
    modules.map(|module| format!("--env-module={module}")).collect()
}

/// Returns the environment of the local experiment file that `run` was launched from: written by the user,
/// unlike that of a checkpoint.
fn own_env(run: &RunId) -> Option<Env> {
    env_of(provenance::relaunch_spec(run)?)
}

/// Returns the environment of an experiment file with the overrides of its launch.
fn env_of(again: RelaunchSpec) -> Option<Env> {
    let source = ExperimentSource::File(again.experiment);
    rankdeck_config::load_experiment(&source, &again.set).ok()?.env
}

/// A checkpoint or a policy on this machine.
pub(crate) struct PolicyFile {
    pub(crate) path: PathBuf,
    /// The run that it was named by.
    run: Option<RunId>,
}

impl PolicyFile {
    /// `RUNS/RUN/hosts/HOST/checkpoints/NAME`.
    fn fetched(path: PathBuf) -> PolicyFile {
        let run = path.ancestors().nth(4).and_then(Path::file_name);
        PolicyFile { run: run.map(|run| RunId(run.to_string_lossy().into_owned())), path }
    }
}

/// Returns the file on this machine: the given path, or the file of the run, fetched.
pub(crate) async fn here(
    hosts_from: &HostsSource,
    policy: &str,
    ending: &str,
    host_keys: &HostKeyArgs,
) -> Result<PolicyFile, Failure> {
    let wrong = |error: String| Failure::usage(format!("{policy:?}: {error}"));
    let (run, name) = match parse_checkpoint(policy).map_err(|error| {
        wrong(error).hint("use a run (`ppo-2026:best`) or a path (`./checkpoints/best.ckpt`)")
    })? {
        CheckpointSource::Path(path) => {
            let path = PathBuf::from(path).with_extension(ending);
            return match path.is_file() {
                true => Ok(PolicyFile { path, run: None }),
                false => Err(wrong(format!("file not found: {}", path.display()))
                    .hint("paths are on this machine; use RUN:best for a checkpoint of a run")),
            };
        }
        CheckpointSource::Run { run, checkpoint } => (run, checkpoint),
    };
    let file = format!("checkpoints/{name}.{ending}");
    let request = FetchArgs {
        run: run.clone(),
        pattern: Some(file.clone()),
        into: None,
        max_size_gb: 64,
        output: PrintArgs::default(),
        host_keys: host_keys.clone(),
    };
    // The full name is known once a host has listed the run.
    let (run, lost) = match copy::copy(hosts_from, &request).await {
        Ok(copied) => (copied.run, copied.total.lost),
        Err(failure) => (run, Some(failure)),
    };
    let run = match lost {
        None => run,
        Some(failure) => match newest(fetched(&run, &file)) {
            Some(copy) => {
                stderr::line(&format!("warning: {}; using {}", failure.cause.error, copy.display()));
                return Ok(PolicyFile::fetched(copy));
            }
            None => return Err(failure),
        },
    };
    newest(fetched(&run, &file)).map(PolicyFile::fetched).ok_or_else(|| {
        of_other_program(&run).unwrap_or_else(|| {
            Failure::usage(format!("run {run} has no {file}"))
                .hint(format!("copy its checkpoints with `rankdeck fetch {run} 'checkpoints/'`"))
        })
    })
}

/// The error if the recording of a run shows a program whose checkpoints are not playable.
fn of_other_program(run: &str) -> Option<Failure> {
    let found = locate::recording_at(&Path::new(RUNS).join(run).display().to_string())?;
    let (model, _) = locate::open_recording(&found).ok()?.last().ok()?;
    contract::demand_of_run(&model, Promise::Playback).err()
}

/// Returns the local copies of a file of the only run that fits a name and has such a copy. An earlier run never
/// stands in for the newest one.
fn fetched(run: &str, file: &str) -> Vec<PathBuf> {
    let folders = |path: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let copies = |run: &Path| -> Vec<PathBuf> {
        let hosts = folders(&run.join("hosts")).into_iter();
        hosts.map(|host| host.join(file)).filter(|path| path.is_file()).collect()
    };
    let mut runs: Vec<(String, Vec<PathBuf>)> = folders(Path::new(RUNS))
        .iter()
        .filter_map(|run| Some((run.file_name()?.to_str()?.to_owned(), copies(run))))
        .filter(|(name, copies)| !copies.is_empty() && own_folder(name).is_ok())
        .collect();
    if run_name::is_relative(run) {
        return Vec::new();
    }
    let named: Vec<NamedRun> = runs.iter().map(|(name, _)| NamedRun { name, is_active: false }).collect();
    match run_name::resolve(&named, Some(run), RunAction::Change) {
        Ok(selected) => runs.swap_remove(selected.index).1,
        Err(_) => Vec::new(),
    }
}

/// Returns the newest copy: an earlier rank 0 may have left one on another host.
fn newest(files: Vec<PathBuf>) -> Option<PathBuf> {
    files.into_iter().max_by_key(|path| path.metadata().and_then(|data| data.modified()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_env_names_all_modules_of_the_experiment_file() {
        let folder = tempfile::tempdir().unwrap();
        let experiment = folder.path().join("own.toml");
        let text = "[run]\nname = \"own\"\ntotal_steps = 100000\n[env]\nid = \"registers:X-v0\"\nnum_envs = 4\n\
                    wrappers = [\"wraps:One\"]\n[learn]\nalgorithm = \"ppo\"\n";
        std::fs::write(&experiment, text).unwrap();
        let worker = WorkerArgs { env_module: vec!["named".into()], ..WorkerArgs::default() };
        let flags = |experiment: &Path, set: &[&str]| {
            let set = set.iter().map(|set| (*set).to_owned()).collect();
            let own = env_of(RelaunchSpec { experiment: experiment.to_owned(), set, read: None });
            module_flags(&worker, own.as_ref())
        };
        let named = "--env-module=named";
        let own = [named, "--env-module=registers", "--env-module=wraps"];
        assert_eq!(flags(&experiment, &[]), own);
        let changed = [named, "--env-module=registers", "--env-module=other"];
        assert_eq!(flags(&experiment, &["env.wrappers=[\"other:Two\"]"]), changed);
        assert_eq!(flags(&folder.path().join("none.toml"), &[]), [named]);
    }
}
