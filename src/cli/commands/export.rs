//! `rankdeck export`: writes a policy that PyTorch or an ONNX runtime loads.

use crate::cli::args::{ExportArgs, PolicyFormat};
use crate::cli::support::{Failure, code, policy, print};
use rankdeck_config::HostsSource;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Converts safetensors to TorchScript and ONNX.
const EXPORTER: &str = include_str!("../export_policy.py");

/// Runs `rankdeck export`.
pub(crate) async fn export(hosts_from: &HostsSource, args: ExportArgs) -> Result<u8, Failure> {
    let policy = policy::here(hosts_from, &args.policy, "safetensors", &args.host_keys).await?.path;
    let stem = policy.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let target =
        args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{stem}.{}", args.format.ending())));
    if target.exists() && !args.force {
        return Err(Failure::usage(format!("{} already exists", target.display()))
            .hint("choose another --output, or pass --force"));
    }
    match args.format {
        PolicyFormat::Safetensors => {
            std::fs::copy(&policy, &target).map_err(|error| {
                Failure::failed(format!("failed to write {}: {error}", target.display()))
                    .hint("choose an --output in a writable directory")
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
    let other = "pass --python an interpreter with PyTorch";
    let hint = format!("{other}, or `{python} -m pip install {needs}`");
    let output = Command::new(python)
        .args(["-c", &format!("import sys\nsys.path[:] = [p for p in sys.path if p]\n{EXPORTER}")])
        .env("PYTHONSAFEPATH", "1")
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
    let stderr = String::from_utf8_lossy(&output.stderr);
    let mut lines = stderr.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    let last = lines.next().unwrap_or("no output");
    let (what, own) = match last.strip_prefix("hint: ") {
        Some(hint) => (lines.next().unwrap_or("no output"), Some(hint.to_owned())),
        None => (last, None),
    };
    Err(Failure::failed(format!("{python} cannot export {}: {what}", args.format.name()))
        .hint(own.unwrap_or(hint)))
}
