//! `rankdeck export`: writes a policy that PyTorch or an ONNX runtime loads.

use crate::cli::args::{ExportArgs, PolicyFormat};
use crate::cli::support::output_file::OutputFile;
use crate::cli::support::{Failure, code, policy};
use rankdeck_config::HostsSource;
use serde_json::json;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::NamedTempFile;

/// Converts safetensors to TorchScript and ONNX.
const EXPORTER: &str = include_str!("../export_policy.py");

/// Runs `rankdeck export`.
pub(crate) async fn export(hosts_from: &HostsSource, args: ExportArgs) -> Result<u8, Failure> {
    // The default name follows from the checkpoint.
    let named =
        args.output.as_deref().map(|path| OutputFile::unless_present(path, args.force)).transpose()?;
    let policy = policy::here(hosts_from, &args.policy, "safetensors", &args.host_keys).await?.path;
    let stem = policy.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let output = match named {
        Some(output) => output,
        None => {
            OutputFile::unless_present(Path::new(&format!("{stem}.{}", args.format.ending())), args.force)?
        }
    };
    let converted = match args.format {
        PolicyFormat::Safetensors => None,
        PolicyFormat::Torchscript | PolicyFormat::Onnx => Some(convert(&policy, &args)?),
    };
    let from = converted.as_ref().map_or(policy.as_path(), tempfile::NamedTempFile::path);
    let bytes = std::fs::read(from).map_err(|error| {
        Failure::failed(format!("failed to read {}: {error}", from.display())).hint("check free disk space")
    })?;
    output.write(&bytes)?;
    let (format, to) = (args.format.name(), output.path());
    args.print.outcome(&format!("exported {} as {format} to {}", policy.display(), to.display()));
    args.print.record(|| json!({ "kind": "exported", "policy": policy, "format": format, "file": to }));
    Ok(code::SUCCESS)
}

/// Converts a policy to a temporary file.
fn convert(policy: &Path, args: &ExportArgs) -> Result<NamedTempFile, Failure> {
    let target = tempfile::Builder::new().suffix(&format!(".{}", args.format.ending())).tempfile();
    let target = target.map_err(|error| {
        Failure::failed(format!("cannot write a temporary file: {error}")).hint("check free disk space")
    })?;
    let python = args.python.as_deref().unwrap_or("python3");
    let needs = if args.format == PolicyFormat::Onnx { "torch onnx" } else { "torch" };
    let other = "pass --python with an interpreter that has PyTorch";
    let hint = format!("{other}, or `{python} -m pip install {needs}`");
    let output = Command::new(python)
        .args(["-c", &format!("import sys\nsys.path[:] = [p for p in sys.path if p]\n{EXPORTER}")])
        .env("PYTHONSAFEPATH", "1")
        .args([policy, target.path()])
        .arg(args.format.name())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .map_err(|error| Failure::failed(format!("failed to start {python:?}: {error}")).hint(other))?;
    if output.status.success() {
        return Ok(target);
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
