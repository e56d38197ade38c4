//! `rankdeck eval` and `rankdeck export`: what a run has learnt, played and handed on.
//!
//! Both copy the file that they need from the host that has it, as `fetch` does, and work on the copy. A
//! run whose hosts do not answer is served from what was fetched before.

use super::args::{EvalArgs, ExportArgs, FetchArgs, HostKeyArgs, PolicyFormat};
use super::checkpoint_source::{self, Source};
use super::roster::{own_binary, trainer_binary};
use super::run_id::RUNS;
use super::{Failure, code, fetch, print};
use crate::shell::play::player::NOT_LOADED;
use crate::shell::stderr;
use rankdeck_config::HostsSource;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Makes TorchScript and ONNX out of safetensors.
const EXPORTER: &str = include_str!("export_policy.py");

/// Runs `rankdeck eval`.
pub async fn eval(hosts_from: &HostsSource, args: EvalArgs) -> Result<u8, Failure> {
    let checkpoint = here(hosts_from, &args.policy, "ckpt", &args.host_keys).await?;
    let mut command = trainer(&checkpoint, args.python.as_deref())?;
    if let Some(episodes) = args.episodes {
        command.arg("--episodes").arg(episodes.to_string());
    }
    if args.json {
        command.arg("--json");
    }
    let status = command.stdin(Stdio::null()).status().map_err(|error| {
        Failure::failed(format!("failed to start {}: {error}", command.get_program().display()))
            .hint("reinstall rankdeck: its two programs belong together")
    })?;
    match status.code() {
        Some(NOT_LOADED) => Err(Failure::failed("rankdeck-trainer cannot load libtorch here".to_owned())
            .hint(format!(
                "`{}` in the active Python environment, or set LIBTORCH to the folder of one that is there",
                rankdeck_proto::libtorch::FETCH
            ))),
        Some(code) => Ok(u8::try_from(code).unwrap_or(code::FAILED)),
        None => {
            Err(Failure::failed(format!("rankdeck-trainer was ended: {status}"))
                .hint("is there enough memory?"))
        }
    }
}

/// The trainer, which plays a checkpoint.
pub(super) fn trainer(checkpoint: &Path, python: Option<&str>) -> Result<Command, Failure> {
    let trainer = trainer_binary(&own_binary()?).ok_or_else(|| {
        Failure::usage(
            "rankdeck-trainer is not beside rankdeck, and it is what plays a checkpoint".to_owned(),
        )
        .hint("install both, or `rankdeck export` the policy and play it in Python")
    })?;
    let mut command = Command::new(trainer);
    let here = rankdeck_agent::libtorch(Path::new(".")).map_err(Failure::from)?;
    if let Some(libtorch) = here.and_then(|folder| std::path::absolute(folder).ok()) {
        let before = std::env::var_os("LD_LIBRARY_PATH").filter(|value| !value.is_empty());
        let paths =
            std::iter::once(libtorch.join("lib")).chain(before.iter().flat_map(std::env::split_paths));
        if let Ok(paths) = std::env::join_paths(paths) {
            command.env("LD_LIBRARY_PATH", paths);
        }
    }
    command.arg("--evaluate").arg(checkpoint);
    if let Some(python) = python {
        command.arg("--python").arg(python);
    }
    Ok(command)
}

/// Runs `rankdeck export`.
pub async fn export(hosts_from: &HostsSource, args: ExportArgs) -> Result<u8, Failure> {
    let policy = here(hosts_from, &args.policy, "safetensors", &args.host_keys).await?;
    let stem = policy.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let target =
        args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{stem}.{}", args.format.ending())));
    if target.exists() && !args.force {
        return Err(Failure::usage(format!("{} is there already", target.display()))
            .hint("give another --output, or --force to replace it"));
    }
    match args.format {
        PolicyFormat::Safetensors => {
            std::fs::copy(&policy, &target).map_err(|error| {
                Failure::failed(format!("failed to write {}: {error}", target.display()))
                    .hint("give an --output in a folder that you may write to")
            })?;
        }
        PolicyFormat::Torchscript | PolicyFormat::Onnx => convert(&policy, &target, &args)?,
    }
    print::stdout(&format!(
        "exported {} as {} to {}",
        policy.display(),
        args.format.name(),
        target.display()
    ));
    Ok(code::SUCCESS)
}

fn convert(policy: &Path, target: &Path, args: &ExportArgs) -> Result<(), Failure> {
    let python = args.python.as_deref().unwrap_or("python3");
    let needs = if args.format == PolicyFormat::Onnx { "torch onnx" } else { "torch" };
    let other = "give --python an interpreter with PyTorch";
    let hint = format!("{other}, or `{python} -m pip install {needs}`");
    let output = Command::new(python)
        .args(["-c", EXPORTER])
        .args([policy, target])
        .arg(args.format.name())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .map_err(|error| Failure::failed(format!("failed to start {python:?}: {error}")).hint(other))?;
    if output.status.success() {
        return Ok(());
    }
    // The exception is the last line; warnings come before it.
    let said = String::from_utf8_lossy(&output.stderr);
    let mut lines = said.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    let last = lines.next().unwrap_or("it said nothing");
    let (what, own) = match last.strip_prefix("hint: ") {
        Some(hint) => (lines.next().unwrap_or("it said nothing"), Some(hint.to_owned())),
        None => (last, None),
    };
    Err(Failure::failed(format!("{python} cannot make {}: {what}", args.format.name()))
        .hint(own.unwrap_or(hint)))
}

/// The file on this machine: the given path, or the run's, fetched.
pub(super) async fn here(
    hosts_from: &HostsSource,
    policy: &str,
    ending: &str,
    host_keys: &HostKeyArgs,
) -> Result<PathBuf, Failure> {
    let wrong = |error: String| Failure::usage(format!("{policy:?}: {error}"));
    let (run, name) = match checkpoint_source::parse(policy)
        .map_err(|error| wrong(error).hint("such as `ppo-2026:best`, or `./checkpoints/best.ckpt`"))?
    {
        Source::Path(path) => {
            let path = PathBuf::from(path).with_extension(ending);
            return match path.is_file() {
                true => Ok(path),
                false => Err(wrong(format!("there is no {}", path.display()))
                    .hint("a path is one on this machine; RUN:best names a run's")),
            };
        }
        Source::Run { run, checkpoint } => (run, checkpoint),
    };
    let file = format!("checkpoints/{name}.{ending}");
    let wanted = FetchArgs {
        run: run.clone(),
        pattern: Some(file.clone()),
        into: None,
        max_size_gb: 64,
        host_keys: host_keys.clone(),
    };
    let run = match fetch::copy(hosts_from, &wanted).await {
        Ok(copied) => copied.run,
        Err(failure) => match fetched(&run, &file).as_slice() {
            [only] => {
                stderr::line(&format!("warning: {}; this is what was fetched before", failure.cause.error));
                return Ok(only.clone());
            }
            _ => return Err(failure),
        },
    };
    newest(fetched(&run, &file)).ok_or_else(|| {
        Failure::usage(format!("run {run} has no {file}"))
            .hint(format!("`rankdeck fetch {run} 'checkpoints/'` copies the ones that it has"))
    })
}

/// Copies of a run's file; the run's name may be the beginning of one.
fn fetched(run: &str, file: &str) -> Vec<PathBuf> {
    let folders = |path: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let is_meant =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(run));
    let runs: Vec<PathBuf> = folders(Path::new(RUNS)).into_iter().filter(is_meant).collect();
    let exact: Vec<PathBuf> = runs.iter().filter(|path| path.ends_with(run)).cloned().collect();
    let runs = if exact.is_empty() { runs } else { exact };
    let hosts = runs.iter().flat_map(|run| folders(&run.join("hosts")));
    hosts.map(|host| host.join(file)).filter(|path| path.is_file()).collect()
}

/// Hosts change: an earlier rank 0 may have left one, too.
fn newest(files: Vec<PathBuf>) -> Option<PathBuf> {
    files.into_iter().max_by_key(|path| path.metadata().and_then(|data| data.modified()).ok())
}
