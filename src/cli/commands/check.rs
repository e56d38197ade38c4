//! `rankdeck check`: prints a table of checks and hosts, with a hint for each failure. Starts no ranks,
//! except for `--all-reduce`.

use crate::app::stderr;
use crate::cli::args::CheckArgs;
use crate::cli::support::measure::judge::{self, Anomaly};
use crate::cli::support::measure::{self, Measurement, baseline};
use crate::cli::support::preflight::{
    self, CheckResult, CheckStatus, HostAnswer, PreflightInput, PreflightReport,
};
use crate::cli::support::provision::{self, PackedCode};
use crate::cli::support::run_index::{own_binary, trainer_binary};
use crate::cli::support::run_name::new_run_id;
use crate::cli::support::work_place::{self, WorkPlace};
use crate::cli::support::{Failure, code, contract, git, interrupt, print, sources};
use rankdeck_config::HostsSource;
use rankdeck_config::Locator;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::{folders, trust};
use rankdeck_types::code::Code;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::ids::RunId;
use rankdeck_types::plan::{Plan, PlanDraft};
use rankdeck_types::promise::{Contract, ContractTerm, Kept};
use rankdeck_types::words::{bytes, plural};
use rankdeck_types::{hidden, quote};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Runs `rankdeck check`.
pub(crate) async fn check(hosts_from: &HostsSource, args: CheckArgs) -> Result<u8, Failure> {
    let (hosts_from, experiment) = sources::of(hosts_from, &args.subject);
    if !args.output.quiet
        && let Some(line) = rankdeck_config::translation(&experiment, &args.set)
    {
        stderr::line(&line);
    }
    let needs = args.needs();
    let drafted = || -> Result<(PlanDraft, Option<PackedCode>, Option<&'static str>), Failure> {
        let mut draft = rankdeck_config::load_draft(&hosts_from, &experiment, &args.set, |experiment| {
            new_run_id(&experiment.run.name)
        })?;
        let why = contract::complete(&mut draft, &hosts_from, &experiment, &needs)?;
        let packed = match work_place::decide(&mut draft, &experiment, false, true) {
            WorkPlace::Own => None,
            WorkPlace::Copy => provision::pack_code(&draft, &experiment)?,
        };
        Ok((draft, packed, why))
    };
    let (draft, packed, why) = drafted().inspect_err(|failure| {
        if args.output.json {
            preflight::print_failed_plan("check_finished", failure);
        }
    })?;
    let caution = contract::caution(&draft.experiment, &draft.contract(), &needs);
    if let Some(line) = caution.filter(|_| !args.output.quiet) {
        stderr::line(&line);
    }
    let locator = Locator::new(&hosts_from, &experiment);
    let subject = PreflightInput {
        draft: &draft,
        code: packed.as_ref().map(|packed| &packed.code),
        can_upload: own_binary().ok().as_deref().and_then(trainer_binary).is_some(),
        places: Vec::new(),
    };
    let checked = interrupt::before_start(preflight::preflight(&subject, &args.host_keys)).await;
    let mut report = checked?;
    if args.all_reduce && report.code() == code::SUCCESS {
        let cell = all_reduce(&hosts_from, &draft, &report, &args).await?;
        report.last.push(("all_reduce", cell));
    }
    let measured = match args.measure {
        true => measure_hosts(&draft, &mut report, &args).await?,
        false => None,
    };
    let baseline = if args.measure { None } else { baseline::load(&draft.hosts) };
    let contract = draft.contract();
    if args.output.json {
        for term in contract.terms() {
            print::json(&promise_json(term, &draft.run, wall_time()));
        }
        let mut lines = preflight::as_json(&report, &locator, &draft.run.0, wall_time());
        let last = lines.pop();
        if let Some(MeasuredHosts { now, before, .. }) = &measured {
            lines.extend(measure::output::as_json(now, before.as_ref(), &draft.run.0));
        }
        lines.extend(last.map(|mut line| {
            if let Some(baseline) = &baseline {
                line["baseline_age_s"] = json!((wall_time() - baseline.time).max(0.0));
            }
            line
        }));
        for line in &lines {
            print::json(line);
        }
        preflight::print_problems(&report, &locator);
    } else {
        match args.output.quiet {
            true => preflight::print_problems(&report, &locator),
            false => preflight::print(&report, &locator),
        }
        if !args.output.quiet && report.count(CheckStatus::Failed) == 0 {
            let plan = report.plan.as_ref().and_then(|plan| plan.as_ref().ok());
            let lines = command_lines(&draft, packed.as_ref(), experiment.folder());
            let variables = plan.zip(why).map(|(plan, why)| variables_line(plan, why));
            let promises = promise_lines(&contract);
            lines.iter().chain(&variables).chain(&promises).for_each(|line| {
                print::stdout(line);
            });
        }
        if !args.output.quiet {
            if let Some(MeasuredHosts { now, before, note }) = &measured {
                print::stdout("");
                print::text(&measure::output::text(now, before.as_ref()));
                print::stdout("");
                print::stdout(note);
            }
            if let Some(baseline) = &baseline {
                let age = baseline::age(baseline);
                print::stdout(&format!("  baseline  {age}; `rankdeck check --measure` compares with it"));
            }
        }
        if report.count(CheckStatus::Failed) == 0 {
            args.output.detail("");
            print::stdout(&format!(
                "{} checked in {:.2} s, {}",
                plural(report.hosts.len(), "host"),
                report.took.as_secs_f64(),
                plural(report.count(CheckStatus::Warning), "warning")
            ));
        }
    }
    preflight::ensure_passed(&report, &locator, "")
        .map_err(|failure| preflight::shortened(&report, failure))?;
    Ok(report.code())
}

/// A measurement of the hosts, the baseline before it, and what became of the baseline.
struct MeasuredHosts {
    now: Measurement,
    before: Option<Measurement>,
    note: String,
}

/// Measures the hosts, and adds what is unusual to the report; `None` if a host has not answered.
async fn measure_hosts(
    draft: &PlanDraft,
    report: &mut PreflightReport,
    args: &CheckArgs,
) -> Result<Option<MeasuredHosts>, Failure> {
    if report.answers.iter().any(Result::is_err) {
        let skipped =
            CheckResult::warning("skipped: a host did not respond", "fix the `reach` check first", "");
        report.last.push(("measure", skipped));
        return Ok(None);
    }
    let disk_bytes = u64::from(args.measure_mb) << 20;
    let work = measure::measure(&draft.hosts, report, disk_bytes, &args.host_keys);
    let now = interrupt::before_start(work).await?;
    let before = baseline::load(&draft.hosts);
    let facts = judge::facts(&now);
    let worse = before.as_ref().map(|before| judge::changes(&now, before)).unwrap_or_default();
    let since = before.as_ref().map(baseline::age).unwrap_or_default();
    if facts.is_empty() && worse.is_empty() {
        let text = format!("{}, {}", plural(now.hosts.len(), "host"), plural(now.pairs.len(), "pair"));
        report.last.push(("measure", CheckResult::passed(text)));
    }
    for Anomaly { text, hint } in facts {
        report.last.push(("measure", CheckResult::warning(text, hint, "")));
    }
    for Anomaly { text, hint } in worse {
        let text = format!("{text} in the baseline ({since})");
        report.last.push(("measure", CheckResult::warning(text, hint, "")));
    }
    let is_whole = now.pairs.iter().all(|pair| pair.error.is_none())
        && now.hosts.iter().all(|host| host.error.is_none());
    let note = match &before {
        _ if args.save || (before.is_none() && is_whole) => {
            let path = baseline::save(&draft.hosts, &now)
                .map_err(|failure| Failure::failed(failure.error).hint(failure.hint))?;
            format!("baseline saved in {}", path.display())
        }
        Some(_) => format!("baseline of {since}; `--save` replaces it"),
        None => "no baseline saved, because of errors; `--save` saves it".to_owned(),
    };
    Ok(Some(MeasuredHosts { now, before, note }))
}

/// Describes which promises the program keeps, and the line to write for the others.
fn promise_lines(contract: &Contract) -> Vec<String> {
    let terms = contract.terms();
    if terms.iter().all(|term| term.kept == Kept::Yes) {
        return vec![format!("  promises all {} are kept: `rankdeck help promises`", terms.len())];
    }
    let mut lines = vec!["promises of this program (`rankdeck help promises`):".to_owned()];
    lines.extend(terms.iter().map(|term| {
        let line = [term.text, term.line.as_str()].into_iter().filter(|text| !text.is_empty());
        let (name, kept) = (term.promise.name(), term.kept.shown());
        format!("  {name:<12} {kept:<9} {}", line.collect::<Vec<_>>().join("; ")).trim_end().to_owned()
    }));
    lines
}

/// A promise as a line of JSON.
fn promise_json(term: &ContractTerm, run: &RunId, time: f64) -> Value {
    json!({
        "kind": "promise",
        "run": run,
        "generation": 0,
        "time": time,
        "promise": term.promise.name(),
        "kept": term.kept.name(),
        "text": term.text,
        "hint": term.line,
    })
}

/// Describes which of torchrun's variables the ranks get. `why`: the reason if there is a single rank.
fn variables_line(plan: &Plan, why: &str) -> String {
    let why = if plan.world_size() > 1 { "there are several ranks" } else { why };
    match plan.is_plain() {
        true => format!(
            "  ranks    an ordinary process without RANK, WORLD_SIZE and the like: {why}; \
             `launch.rank_variables = true` sets them"
        ),
        false => format!("  ranks    RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and the like are set: {why}"),
    }
}

/// Describes the command and the code of the ranks, as part of the plan.
fn command_lines(draft: &PlanDraft, packed: Option<&provision::PackedCode>, folder: PathBuf) -> Vec<String> {
    let launch = &draft.experiment.launch;
    let mut lines = Vec::new();
    if !launch.command.is_empty() {
        let command = hidden::command(&draft.experiment);
        lines.push(format!("  command  {}", quote::words(command.iter().map(String::as_str))));
    }
    lines.push(match (packed, launch.command.is_empty()) {
        (Some(PackedCode { pack, .. }), _) => {
            let folder = launch.code.as_ref().and_then(Code::path).unwrap_or_default();
            format!(
                "  code     `{folder}`, {}, {}, copied to each host",
                plural(pack.files, "file"),
                bytes(pack.bytes)
            )
        }
        (None, false) => {
            let own = launch.code.as_ref().and_then(Code::path);
            let folders: BTreeSet<&str> =
                draft.hosts.iter().map(|host| own.unwrap_or(host.workdir.as_str())).collect();
            let folders: Vec<&str> = folders.into_iter().collect();
            format!("  code     not copied: ranks run in `{}`", folders.join("`, `"))
        }
        (None, true) => return lines,
    });
    let folder = folder.join(launch.code.as_ref().and_then(Code::path).unwrap_or_default());
    lines.extend(git::checkout(&folder).map(|git| format!("  git      {}", git.shown())));
    if !launch.pass_env.is_empty() {
        lines.push(format!("  passed   {}", launch.pass_env.join(" ")));
    }
    lines
}

/// The program that the user's interpreter runs for `--all-reduce`.
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
expected = world * (world + 1) / 2
if not bool((x == expected).all()):
    sys.exit(f"all-reduce gave {x[0].item()}, expected {expected}")
dist.barrier()
dist.destroy_process_group()
"#;

/// Longest time for the all-reduce.
const PATIENCE: Duration = Duration::from_secs(180);

/// Launches all ranks of the plan once, over the links of a run, to reduce 1 MB. A user program is replaced
/// by [`PROGRAM`]; the built-in trainer trains for one iteration.
async fn all_reduce(
    hosts_from: &HostsSource,
    draft: &PlanDraft,
    report: &PreflightReport,
    args: &CheckArgs,
) -> Result<CheckResult, Failure> {
    let Some((experiment, until)) = shortened(draft, report) else {
        return Ok(CheckResult::warning(
            "skipped: the command is not a Python interpreter",
            "the other checks are not affected",
            "launch.command",
        ));
    };
    let text = toml::to_string(&experiment).map_err(|error| fault(&error.to_string()))?;
    let folder = folders::private_cache("experiments")
        .map_err(|failure| Failure::failed(failure.error).hint(failure.hint))?;
    let file = folder.join(format!("{}.toml", draft.run));
    let written = trust::create(&file).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| fault(&error.to_string()))?;
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
            return Ok(CheckResult::failed(
                format!("no result within {} s", PATIENCE.as_secs()),
                format!("stop it with `rankdeck stop {}`", experiment.run.name),
                "",
            ));
        }
    };
    if output.status.success() {
        let world =
            report.plan.as_ref().and_then(|plan| plan.as_ref().ok()).map_or(0, |plan| plan.world_size());
        return Ok(CheckResult::passed(format!("{world} ranks in {:.1} s", began.elapsed().as_secs_f64())));
    }
    Ok(failed(&output.stdout))
}

fn fault(error: &str) -> Failure {
    Failure::failed(format!("cannot run the all-reduce: {error}"))
        .hint("run `rankdeck check` without `--all-reduce`")
}

/// Returns the experiment with a program that only reduces, or the built-in trainer with a limit of one
/// iteration; `None` if the program cannot be replaced.
fn shortened(draft: &PlanDraft, report: &PreflightReport) -> Option<(Experiment, Option<&'static str>)> {
    let mut experiment = draft.experiment.clone();
    experiment.run.name = format!("{}-check", experiment.run.name);
    experiment.launch.code = None;
    experiment.launch.exclude.clear();
    let Some(program) = experiment.launch.command.first().cloned() else {
        // One iteration contains a broadcast and all kinds of all-reduce.
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

/// Returns why a launch failed, from its JSON lines; the last output of its ranks goes to stderr.
fn failed(reports: &[u8]) -> CheckResult {
    let lines: Vec<Value> =
        String::from_utf8_lossy(reports).lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let finished = lines.iter().rfind(|line| line["kind"] == "run_finished");
    let reason = finished.and_then(|line| line["reason"].as_str()).unwrap_or("the launch failed");
    let last: Vec<&str> =
        lines.iter().filter(|line| line["kind"] == "log").filter_map(|line| line["line"].as_str()).collect();
    for line in last.iter().rev().take(5).rev() {
        stderr::line(line);
    }
    CheckResult::failed(reason.to_owned(), "show the logs of that run with `rankdeck logs`", "")
}
