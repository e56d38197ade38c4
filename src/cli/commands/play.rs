//! `rankdeck play`: shows a policy playing, or saves it as an animation.
//!
//! The trainer runs the policy, as for `eval`; its frames are drawn here, recorded, or printed as one line
//! per episode.
//! `rankdeck eval` evaluates a checkpoint on this machine, `rankdeck export` writes a policy that PyTorch or an ONNX
//! runtime loads.

use crate::app::play::record::{MAX_BYTES, PlayRecorder, RecordingFormat};
use crate::app::play::{self, NOT_LOADED, PolicyPlayer};
use crate::app::stderr;
use crate::cli::args::{EvalArgs, ExportArgs, OutputArgs, PlayArgs, PolicyFormat, PrintArgs};
use crate::cli::support::output_file::OutputFile;
use crate::cli::support::output_mode::{self, OutputMode, TerminalInfo};
use crate::cli::support::{Failure, code, policy};
use rankdeck_config::HostsSource;
use rankdeck_kit::{ColorDepth, Theme};
use rankdeck_proto::show::{EndKind, ShowLine};
use rankdeck_tui::play::Play;
use rankdeck_types::words::{bytes, plural};
use serde_json::json;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::NamedTempFile;

/// Default number of episodes of a recording.
const RECORDED: u32 = 3;
/// Episodes of a screen that the user closes.
const ENDLESS: u32 = 1_000_000;

/// Runs `rankdeck play`.
pub(crate) async fn play(hosts_from: &HostsSource, args: PlayArgs) -> Result<u8, Failure> {
    let form = args.record.as_deref().map(form).transpose()?;
    let output =
        args.record.as_deref().map(|file| OutputFile::unless_present(file, args.force)).transpose()?;
    let mode = OutputArgs {
        headless: args.output.headless || args.output.quiet,
        json: args.output.json,
        theme: args.theme.clone(),
        glyphs: args.glyphs.clone(),
        ..OutputArgs::default()
    };
    let chosen = output_mode::choose(&mode, &TerminalInfo::here())?;
    let checkpoint = policy::here(hosts_from, &args.policy, "ckpt", &args.host_keys).await?;
    let mut command = policy::trainer(&checkpoint, &args.worker)?;
    command.arg("--show").args(args.actions.flags());
    let endless = form.is_none() && chosen == OutputMode::Screen;
    let episodes = match form {
        Some(_) => Some(args.episodes.unwrap_or(RECORDED)),
        None => args.episodes,
    };
    if let Some(episodes) = episodes.or(endless.then_some(ENDLESS)) {
        command.arg("--episodes").arg(episodes.to_string());
    }
    let play = Play::new(&args.policy, episodes);
    match (form, output) {
        (Some(form), Some(output)) => record(form, &output, &args, command, play).await,
        _ if endless => on_screen(&args, command, play).await,
        _ => as_lines(command, args.output).await,
    }
}

fn started(command: Command) -> Result<PolicyPlayer, Failure> {
    PolicyPlayer::start(command).map_err(|error| {
        Failure::failed(format!("failed to start rankdeck-trainer: {error}"))
            .hint("reinstall rankdeck and rankdeck-trainer together")
    })
}

/// Converts the last output of the player: the error, then the hint.
fn failed(why: &str) -> Failure {
    let (error, hint) = why.split_once('\n').unwrap_or((why, ""));
    Failure::failed(error.to_owned()).hint(hint)
}

async fn on_screen(args: &PlayArgs, command: Command, play: Play) -> Result<u8, Failure> {
    let player = started(command)?;
    let play = play::show(&output_mode::ui(), args.pictures.graphics(), player, play).await;
    let play = play.map_err(|error| {
        Failure::failed(format!("the terminal failed: {error}"))
            .hint("use `--headless` for one line per episode")
    })?;
    if let Some(Err(why)) = &play.end {
        return Err(failed(why));
    }
    sum_up(&play.returns, args.output);
    Ok(code::SUCCESS)
}

fn sum_up(returns: &[(f64, u64)], output: PrintArgs) {
    if !returns.is_empty() {
        let mean = returns.iter().map(|(gained, _)| gained).sum::<f64>() / returns.len() as f64;
        output.outcome(&format!("mean return {mean:.3} over {}", plural(returns.len(), "episode")));
        output.record(|| json!({ "kind": "played", "episodes": returns.len(), "return_mean": mean }));
    }
}

async fn as_lines(command: Command, output: PrintArgs) -> Result<u8, Failure> {
    let mut player = started(command)?;
    let mut returns = Vec::new();
    while let Some(line) = player.next().await {
        match line {
            ShowLine::Policy(policy) => {
                output.detail(&format!(
                    "{} on {}, after iteration {}",
                    policy.algorithm, policy.env_id, policy.train_iter
                ));
            }
            ShowLine::End(end) => {
                let how = match end.end {
                    EndKind::Terminated => "",
                    EndKind::Truncated => ", truncated by the time limit",
                    EndKind::Cut => ", truncated by eval.max_steps",
                };
                output.detail(&format!(
                    "episode {}: return {:.3} in {} steps{how}",
                    u64::from(end.episode) + 1,
                    end.episode_return,
                    end.steps
                ));
                output.record(|| {
                    let gained = end.episode_return;
                    json!({ "kind": "episode", "episode": end.episode, "return": gained, "steps": end.steps })
                });
                returns.push((end.episode_return, end.steps));
            }
            ShowLine::Step(_) | ShowLine::Unknown => {}
        }
    }
    player.end().await.map_err(|why| failed(&why))?;
    sum_up(&returns, output);
    Ok(code::SUCCESS)
}

/// Returns the format of a recording by its extension, before anything is played.
fn form(file: &Path) -> Result<RecordingFormat, Failure> {
    match file.extension().and_then(|ending| ending.to_str()) {
        Some("cast") => Ok(RecordingFormat::Cast),
        Some("gif") => Ok(RecordingFormat::Gif),
        _ => Err(Failure::usage(format!("--record {}: unsupported format", file.display()))
            .hint("use FILE.cast for an asciicast or FILE.gif for an animation")),
    }
}

async fn record(
    form: RecordingFormat,
    output: &OutputFile,
    args: &PlayArgs,
    command: Command,
    mut play: Play,
) -> Result<u8, Failure> {
    let theme = args.theme.as_deref().and_then(Theme::named).unwrap_or_else(Theme::dark);
    let glyphs = args.glyphs.as_deref().and_then(rankdeck_kit::Glyphs::named);
    let theme = theme.clone().with_glyphs(glyphs.unwrap_or(theme.glyphs));
    play.colors = if theme.name == "mono" { ColorDepth::None } else { ColorDepth::True };
    let mut player = started(command)?;
    let recorder = PlayRecorder::new(form, theme, args.size);
    let recorded = recorder.record(&mut player, &mut play).await.map_err(|why| failed(&why))?;
    output.write(&recorded.bytes)?;
    if recorded.cut {
        stderr::line(&format!("warning: animation truncated at {}", bytes(MAX_BYTES as u64)));
    }
    args.output.record(|| {
        json!({
            "kind": "recorded",
            "file": output.path(),
            "episodes": play.returns.len(),
            "seconds": recorded.seconds,
            "bytes": recorded.bytes.len(),
        })
    });
    args.output.outcome(&format!(
        "saved {} to {}: {:.1} s, {}",
        plural(play.returns.len(), "episode"),
        output.path().display(),
        recorded.seconds,
        bytes(recorded.bytes.len() as u64)
    ));
    Ok(code::SUCCESS)
}

/// Runs `rankdeck eval`.
pub(crate) async fn eval(hosts_from: &HostsSource, args: EvalArgs) -> Result<u8, Failure> {
    let checkpoint = policy::here(hosts_from, &args.policy, "ckpt", &args.host_keys).await?;
    let mut command = policy::trainer(&checkpoint, &args.worker)?;
    command.args(args.actions.flags());
    if let Some(episodes) = args.episodes {
        command.arg("--episodes").arg(episodes.to_string());
    }
    if args.output.json {
        command.arg("--json");
    }
    let status = command.stdin(Stdio::null()).status().map_err(|error| {
        Failure::failed(format!("failed to start {}: {error}", command.get_program().display()))
            .hint("reinstall rankdeck and rankdeck-trainer together")
    })?;
    match status.code() {
        Some(NOT_LOADED) => {
            Err(Failure::failed("rankdeck-trainer cannot load libtorch".to_owned()).hint(format!(
                "run `{}` in the active Python environment, or set LIBTORCH to an unpacked torch directory",
                rankdeck_proto::libtorch::FETCH
            )))
        }
        Some(code) => Ok(u8::try_from(code).unwrap_or(code::FAILED)),
        None => Err(Failure::failed(format!("rankdeck-trainer was killed: {status}"))
            .hint("it may have run out of memory: check with `free -h`")),
    }
}

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
