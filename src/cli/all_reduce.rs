//! `check --all-reduce`: the last gate. All ranks of the plan are launched once, over the links that a run
//! takes, to reduce 1 MB.
//!
//! Owner: one check. A program of the user is replaced by a few lines for its own interpreter; the built-in
//! trainer trains for one iteration.

use super::Failure;
use super::args::CheckArgs;
use super::preflight::{Cell, HostAnswer, Report};
use super::roster::own_binary;
use crate::shell::stderr;
use rankdeck_config::HostsSource;
use rankdeck_proto::folders;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::plan::PlanDraft;
use serde_json::Value;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// What the user's interpreter runs.
const PROGRAM: &str = r#"
import os, sys, datetime
import torch
import torch.distributed as dist
local = int(os.environ["LOCAL_RANK"])
cuda = os.environ.get("RANKDECK_DEVICE", "cpu").startswith("cuda")
if cuda:
    torch.cuda.set_device(local % torch.cuda.device_count())
dist.init_process_group("nccl" if cuda else "gloo", timeout=datetime.timedelta(seconds=60))
x = torch.full((262144,), float(dist.get_rank() + 1), device="cuda" if cuda else "cpu")
dist.all_reduce(x)
world = dist.get_world_size()
wanted = world * (world + 1) / 2
if not bool((x == wanted).all()):
    sys.exit(f"all-reduce gave {x[0].item()}, and {wanted} was expected")
dist.barrier()
dist.destroy_process_group()
"#;

/// How long all of it may take.
const PATIENCE: Duration = Duration::from_secs(180);

/// Launches, waits, and says what came of it.
pub async fn try_it(
    hosts_from: &HostsSource,
    draft: &PlanDraft,
    report: &Report,
    args: &CheckArgs,
) -> Result<Cell, Failure> {
    let Some((experiment, until)) = shortened(draft, report) else {
        return Ok(Cell::warning(
            "not tried: the ranks' program is no Python interpreter",
            "the other checks stand for themselves",
            "launch.command",
        ));
    };
    let text = toml::to_string(&experiment).map_err(|error| fault(&error.to_string()))?;
    let folder = folders::cache().join("experiments");
    folders::create_private(&folder).map_err(|failure| Failure::failed(failure.error).hint(failure.hint))?;
    let file = folder.join(format!("{}.toml", draft.run));
    std::fs::write(&file, text).map_err(|error| fault(&error.to_string()))?;
    let began = Instant::now();
    let mut command = tokio::process::Command::new(own_binary()?);
    command.arg("run").arg(&file).arg("--json").stdin(Stdio::null());
    command.args(hosts_from.options());
    if let Some(until) = until {
        command.args(["--until", until]);
    }
    if args.host_keys.accept_new_host_keys {
        command.arg("--accept-new-host-keys");
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await;
    let _ = std::fs::remove_file(&file);
    let output = match output {
        Ok(output) => output.map_err(|error| fault(&error.to_string()))?,
        Err(_) => {
            return Ok(Cell::failed(
                format!("no result within {} s", PATIENCE.as_secs()),
                format!("`rankdeck stop {}` ends what is left of it", experiment.run.name),
                "",
            ));
        }
    };
    if output.status.success() {
        let world =
            report.plan.as_ref().and_then(|plan| plan.as_ref().ok()).map_or(0, |plan| plan.world_size());
        return Ok(Cell::passed(format!("{world} ranks in {:.1} s", began.elapsed().as_secs_f64())));
    }
    Ok(failed(&output.stdout))
}

fn fault(error: &str) -> Failure {
    Failure::failed(format!("cannot try an all-reduce: {error}"))
        .hint("`rankdeck check` without `--all-reduce` makes all other checks")
}

/// The experiment with a program that only reduces, or the built-in trainer's with an end after one
/// iteration; none where the program cannot be replaced.
fn shortened(draft: &PlanDraft, report: &Report) -> Option<(Experiment, Option<&'static str>)> {
    let mut experiment = draft.experiment.clone();
    experiment.run.name = format!("{}-check", experiment.run.name);
    experiment.launch.code = None;
    experiment.launch.exclude.clear();
    let Some(program) = experiment.launch.command.first().cloned() else {
        // One iteration holds a broadcast and all its kinds of all-reduce.
        experiment.eval.every = 0;
        experiment.eval.stop_value = None;
        experiment.checkpoint.every = 0;
        return Some((experiment, Some("iters=1")));
    };
    let is_python =
        |found: &HostAnswer| found.findings.program.as_ref().is_some_and(|program| program.python.is_some());
    if !report.answers.iter().all(|answer| answer.as_ref().is_ok_and(is_python)) {
        return None;
    }
    experiment.launch.command = vec![program, "-u".into(), "-c".into(), PROGRAM.into()];
    Some((experiment, None))
}

/// Why a launch failed, by its reports; the last words of its ranks go to stderr.
fn failed(reports: &[u8]) -> Cell {
    let lines: Vec<Value> =
        String::from_utf8_lossy(reports).lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let finished = lines.iter().rfind(|line| line["kind"] == "run_finished");
    let reason = finished.and_then(|line| line["reason"].as_str()).unwrap_or("the launch failed");
    let last: Vec<&str> =
        lines.iter().filter(|line| line["kind"] == "log").filter_map(|line| line["line"].as_str()).collect();
    for line in last.iter().rev().take(5).rev() {
        stderr::line(line);
    }
    Cell::failed(reason.to_owned(), "`rankdeck logs` of that run shows what the ranks said", "")
}
