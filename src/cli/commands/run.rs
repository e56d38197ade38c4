//! `rankdeck run`: launches a run and shows it. `rankdeck queue`: lists sweeps, or continues one.

use crate::app::driver::{ConsoleSetup, ExitReason};
use crate::app::exit_condition::{ExitCondition, ranks_not_up};
use crate::app::headless::LineFormat;
use crate::app::stderr;
use crate::cli::args::values::copy_limit;
use crate::cli::args::{QueueArgs, RunArgs};
use crate::cli::support::code_record::PendingCodeRecord;
use crate::cli::support::console::{self, LinkOptions, open_links};
use crate::cli::support::launch::{self, LaunchOptions};
use crate::cli::support::output_mode::{self, OutputMode, TerminalInfo};
use crate::cli::support::provenance::Provenance;
use crate::cli::support::provision::{self, PackedCode};
use crate::cli::support::relaunch::{self, RelaunchSpec};
use crate::cli::support::run_index::{own_binary, trainer_binary};
use crate::cli::support::run_name::{RUNS, check_readable, claimed_run_id};
use crate::cli::support::sweep::{self, carry_on, found};
use crate::cli::support::{
    Failure, code, contract, git, interrupt, measure, preflight, resume_from, sources, work_place,
};
use rankdeck_config::HostsSource;
use rankdeck_config::Locator;
use rankdeck_core::Goal;
use rankdeck_link::NoAgentPolicy;
use rankdeck_types::code::Code;
use rankdeck_types::host::Host;
use rankdeck_types::plan::PlanDraft;
use rankdeck_types::words::plural;
use std::path::Path;

/// Runs `rankdeck run`.
pub(crate) async fn run(hosts_from: &HostsSource, args: RunArgs) -> Result<u8, Failure> {
    if let Some(code) = sweep::run(hosts_from, &args).await? {
        return Ok(code);
    }
    let chosen = output_mode::choose(&args.output, &TerminalInfo::here())?;
    let outlets = console::outlets().await?;
    let mut sets = args.set.clone();
    sets.extend(args.name.as_ref().map(|name| format!("run.name={}", toml::Value::String(name.clone()))));
    sets.extend(copy_limit(args.max_copy_gb));
    sets.extend(args.note.as_ref().map(|note| format!("run.note={}", toml::Value::String(note.clone()))));
    let (hosts_from, experiment) = sources::of(hosts_from, &args.subject);
    if !args.output.quiet
        && let Some(line) = rankdeck_config::translation(&experiment, &sets)
    {
        stderr::line(&line);
    }
    let needs = args.needs();
    let options = LaunchOptions {
        sets: &sets,
        exclude: &args.exclude,
        needs: &needs,
        is_trial: args.trial.is_some(),
        drill: args.drill,
        quiet: args.output.quiet,
    };
    let drafted = launch::drafted(&hosts_from, &experiment, &options, |experiment| {
        claimed_run_id(&experiment.run.name)
    });
    let (mut draft, packed) = drafted.inspect_err(|failure| {
        if args.output.json {
            preflight::print_failed_plan("run_finished", failure);
        }
    })?;
    let caution = contract::caution(&draft.experiment, &draft.contract(), &needs);
    if let Some(line) = caution.filter(|_| !args.output.quiet) {
        stderr::line(&line);
    }
    let locator = Locator::new(&hosts_from, &experiment);
    draft.resume = match &args.from {
        Some(source) => Some(resume_from::find(source, &draft, &hosts_from, &args.host_keys).await?),
        None if args.carry_on => {
            let requeued = resume_from::is_requeued(|name| std::env::var(name).ok());
            resume_from::find_newest(&draft, requeued, &hosts_from, &args.host_keys).await?
        }
        None => None,
    };
    if let Some(path) = &draft.resume {
        let first = resume_from::first_host(&draft)?;
        resume_from::check_fits(first, path, &draft.experiment, &args.host_keys).await?;
        stderr::line(&format!("starting from {path}"));
    }
    let code = draft.experiment.launch.code.as_ref().and_then(Code::path).unwrap_or_default();
    let at = experiment.folder().join(code);
    let ClearedDraft { draft, warnings, origin } =
        cleared(draft, packed, &locator, &args, chosen, &at).await?;
    let exit_condition = if args.detach { ExitCondition::detach() } else { console::watching(&args.output) };
    let builtin = draft.experiment.launch.command.is_empty();
    let (run, hosts) = (draft.run.clone(), draft.hosts.clone());
    if !builtin && !args.output.quiet && chosen == OutputMode::Lines(LineFormat::Plain { logs: false }) {
        stderr::line(&format!(
            "hint: show the output of the ranks with `rankdeck logs {run} -f`, or pass `--logs`"
        ));
    }
    let excluded = draft.excluded.clone();
    let members: Vec<Host> = hosts.iter().filter(|host| !excluded.contains(&host.name)).cloned().collect();
    let slow_links = measure::baseline::slow_links(&members);
    let goal = Goal::Launch(Box::new(draft));
    let options = LinkOptions {
        run: &run,
        opening: NoAgentPolicy::Launch,
        builtin,
        host_keys: &args.host_keys,
        chosen,
    };
    // What can fail here comes before anything happens on a host.
    let (recorder, log) = console::record(&goal, (Path::new(RUNS), &run), Some(&origin))?;
    let links = open_links(&hosts, &options, |host| !excluded.contains(&host.name))?;
    let spares = hosts.iter().filter(|host| excluded.contains(&host.name)).cloned().collect();
    relaunch::offer(relaunch_spec(&args), &run, &members);
    let mut setup = ConsoleSetup::new(goal, exit_condition, links);
    setup.recorder = Some(recorder);
    setup.until = args.until;
    setup.spares = spares;
    setup.listed = hosts;
    setup.warnings = warnings;
    setup.slow_links = slow_links;
    setup.work = args.trial.as_deref().map(|trial| work_place::of_trial(trial, &args.set));
    setup.accept_new_host_keys = args.host_keys.accept_new_host_keys;
    let end = console::console(setup, outlets, chosen, Some(log), output_mode::pace(&args.output)).await?;
    let code = console::finish(&end, &args.output, &run);
    let late = ranks_not_up(&end.model);
    if args.detach && end.why == ExitReason::Detached && !late.is_empty() {
        return Err(Failure::failed(format!("run {run}: {} not up yet", plural(late.len(), "rank")))
            .hint(format!("check it with `rankdeck attach {run}` or `rankdeck logs {run}`")));
    }
    Ok(code)
}

/// A draft that has passed the preflight.
struct ClearedDraft {
    draft: PlanDraft,
    warnings: Vec<String>,
    origin: Provenance,
}

/// Runs the preflight and uploads the code. Returns the draft completed from the hosts' answers, and the
/// warnings.
async fn cleared(
    mut draft: PlanDraft,
    packed: Option<PackedCode>,
    locator: &Locator,
    args: &RunArgs,
    chosen: OutputMode,
    code_folder: &Path,
) -> Result<ClearedDraft, Failure> {
    let out = |host: &Host| draft.excluded.contains(&host.name);
    let (places, hosts): (Vec<usize>, Vec<Host>) =
        draft.hosts.iter().cloned().enumerate().filter(|(_, host)| !out(host)).unzip();
    // Excluded hosts are often those that do not respond.
    let members = PlanDraft { hosts, excluded: Default::default(), ..draft.clone() };
    let subject = preflight::PreflightInput {
        draft: &members,
        code: packed.as_ref().map(|packed| &packed.code),
        can_upload: own_binary().ok().as_deref().and_then(trainer_binary).is_some(),
        places,
    };
    // The state of the code now, not after the slowest host has answered.
    let asked = git::ask(code_folder);
    let content = PendingCodeRecord::start(&draft.experiment.launch, &members.hosts, packed.as_ref());
    let report = interrupt::before_start(preflight::preflight(&subject, &args.host_keys)).await?;
    preflight::print_problems(&report, locator);
    let repeat = format!("run `rankdeck check {}` to repeat the checks", locator.subject());
    if let Err(failure) = preflight::ensure_passed(&report, locator, &repeat) {
        if chosen == OutputMode::Lines(LineFormat::Json) {
            preflight::print_failed_run(&report, locator, &draft.run, &failure);
        }
        return Err(preflight::shortened(&report, failure));
    }
    if let Some(packed) = &packed {
        let codes =
            report.answers.iter().map(|answer| answer.as_ref().ok().map(|found| found.findings.code.clone()));
        let lacking = provision::lacking(&members.hosts, codes);
        interrupt::before_start(provision::bring_code(&lacking, packed, &args.host_keys)).await?;
        draft.experiment.launch.code = Some(provision::by_hash(packed));
    }
    if members.hosts.len() > 1 {
        let routes = members.hosts.iter().zip(preflight::interfaces(&report));
        for (asked, route) in routes.filter(|(host, _)| host.interface.is_none()) {
            let host = draft.hosts.iter_mut().find(|host| host.name == asked.name);
            host.into_iter().for_each(|host| host.interface = route.clone());
        }
        for (asked, address) in members.hosts.iter().zip(&report.peer_addresses) {
            let host = draft.hosts.iter_mut().find(|host| host.name == asked.name);
            host.into_iter().for_each(|host| host.peer_address.clone_from(address));
        }
    }
    let origin = Provenance::new(&draft, &report, asked.answer(), content.finish(), relaunch_spec(args));
    Ok(ClearedDraft { draft, warnings: preflight::warnings(&report, locator), origin })
}

/// Returns how to launch the same run again.
fn relaunch_spec(args: &RunArgs) -> Option<RelaunchSpec> {
    let name = args.name.iter().map(|name| format!("run.name={}", toml::Value::String(name.clone())));
    let set: Vec<String> = args.set.iter().cloned().chain(name).collect();
    RelaunchSpec::new(args.subject.experiment.as_deref(), &set)
}

/// No sweep matches the name.
fn none_such(name: Option<&str>) -> Failure {
    let error = match name {
        Some(name) => format!("sweep `{name}` not found in runs/"),
        None => "no sweep found in runs/".to_owned(),
    };
    Failure::usage(error).hint("list sweeps with `rankdeck queue`")
}

/// Runs `rankdeck queue`.
pub(crate) async fn queue(args: QueueArgs) -> Result<u8, Failure> {
    check_readable()?;
    let mut sweeps = found(Path::new(RUNS));
    if let Some(name) = &args.sweep {
        sweeps.retain(|sweep| sweep.name.contains(name.as_str()));
    }
    if args.resume {
        return match sweeps.len() {
            1 => {
                let mut sweep = sweeps.remove(0);
                if args.failed {
                    sweep.trials.iter_mut().for_each(|trial| trial.reopen());
                }
                let finder = sweep.finder()?;
                carry_on(sweep, finder).await
            }
            0 => Err(none_such(args.sweep.as_deref())),
            n => Err(Failure::usage(format!("{n} sweeps match"))
                .hint("choose one: `rankdeck queue SWEEP --resume`")),
        };
    }
    if sweeps.is_empty() && args.sweep.is_some() {
        return Err(none_such(args.sweep.as_deref()));
    }
    if sweeps.is_empty() {
        args.output.outcome("no sweeps");
    }
    for sweep in &sweeps {
        args.output.record(|| sweep.as_json());
        if !args.output.json {
            sweep.print();
        }
    }
    Ok(code::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_sweep_is_named() {
        assert!(none_such(Some("nope")).cause.error.contains("`nope`"));
        assert!(!none_such(None).cause.hint.is_empty());
    }
}
