//! `rankdeck restart`: restarts a run from a checkpoint or from scratch.

use crate::app::driver::{ConsoleExit, ExitReason};
use crate::app::exit_condition::{ExitCondition, ranks_not_up, silent};
use crate::app::stderr;
use crate::cli::args::values::{LATEST, checkpoint_stem, copy_limit};
use crate::cli::args::{HostKeyArgs, RestartArgs};
use crate::cli::support::console::ExistingRun;
use crate::cli::support::locate::{LocatedRun, RunLocator};
use crate::cli::support::prompt::ProgressPrompter;
use crate::cli::support::run_index::{FoundRun, RunStatus};
use crate::cli::support::run_name::RunAction;
use crate::cli::support::run_name::{RUNS, own_folder};
use crate::cli::support::{
    Failure, code as exit, code_record, contract, interrupt, prompt, provenance, relaunch, resume_from,
};
use rankdeck_config::HostsSource;
use rankdeck_core::model::{CheckpointModel, Model, RunState};
use rankdeck_core::origin::{self, CodeChoice, CodeStanding, PlannedCode, Standing, StartPoint};
use rankdeck_core::run_summary::RunSummary;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::message::{LaunchHash, end_refusal};
use rankdeck_tui::restart_draft::{ChangedExperiment, OtherHosts};
use rankdeck_types::code::Code;
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::Host;
use rankdeck_types::ids::RunId;
use rankdeck_types::plan::Plan;
use rankdeck_types::weights;
use rankdeck_types::words::{count, plural};
use serde_json::json;
use std::path::Path;

/// The command's name in messages.
const RESTART: &str = "restart";

/// Runs `rankdeck restart`: requests a new generation and waits for it.
pub(crate) async fn restart(hosts_from: &HostsSource, mut args: RestartArgs) -> Result<u8, Failure> {
    args.set.extend(copy_limit(args.max_copy_gb));
    if !args.yes && !prompt::can_confirm() {
        return Err(unconfirmed(args.run.as_deref().unwrap_or("the run")));
    }
    let located = answered(hosts_from, &args).await?;
    let (run_index, found) = (&located.run_index, located.found()?);
    let over = found.state != RunStatus::Running;
    let target = ExistingRun::new(run_index, &found)?;
    // As `attach`, before anything is stopped. A restart from another directory stores nothing there.
    if Path::new(RUNS).join(&target.run.0).exists() {
        own_folder(&target.run.0).map_err(Failure::place)?;
    }
    let add: Vec<Host> =
        args.add.iter().map(|name| run_index.host(name).cloned()).collect::<Result<_, _>>()?;
    let changes = !args.exclude.is_empty() || !add.is_empty() || !args.set.is_empty();
    let summary = found.summary(wall_time());
    let silent = run_index.silent.iter().filter_map(|(index, _)| run_index.hosts.get(*index));
    let silent = silent.map(|host| &host.name).any(|name| found.hosts().contains(name));
    let mut standing = summary.standing(found.run, !over, silent);
    let mut start = start_of(&standing, &summary, &args)?;
    if let Some(path) = out_of_reach(&found, &args)? {
        start.from = Some(path);
    }
    let code = NextCode::find(&target.run, &summary, args.code.unwrap_or_default())?;
    let named = args.from.as_ref().filter(|word| *word != LATEST && !origin::is_scratch(word));
    let queried = match !args.yes || !args.set.is_empty() || named.is_some() || code.is_new() {
        true => Some(target.run_until(ExitCondition::query(args.exclude.clone()), &args.host_keys).await?),
        false => None,
    };
    if let Some(failure) = queried.as_ref().and_then(|end| interrupt::unrequested(RESTART, end, &target.run))
    {
        return Err(failure);
    }
    let changed = match &queried {
        Some(end) if !args.set.is_empty() => Some(changed(&target, &end.model, &args.set)?),
        _ => None,
    };
    let next = changed.as_ref().map(|changed| &*changed.experiment);
    if let Some(plan) = queried.as_ref().and_then(|end| end.model.plan.as_ref()) {
        standing = standing.before(plan, next);
    }
    if let (Some(named), Some(end)) = (named, &queried) {
        if let Some(plan) = &end.model.plan
            && let Some(HintedError { error, hint }) = origin::refusal(plan, next, Some(named.as_str()))
        {
            return Err(Failure::usage(error).hint(hint));
        }
        let stay = remaining(&target, &end.model, &args.exclude, &add);
        let found = named_checkpoint((&target, stay.as_slice()), &end.model, named, &args.host_keys);
        let path = interrupt::unless_interrupted(RESTART, Some(end), found).await?;
        // The header of the trainer's own has its step.
        let known = origin::named(&end.model, &path).filter(|_| !is_builtin(&end.model));
        start.env_step = known.and_then(CheckpointModel::step);
        start.from = Some(path);
    }
    if let Some(end) = queried.as_ref().filter(|_| start.from.is_some() && named.is_none()) {
        let stay = remaining(&target, &end.model, &args.exclude, &add);
        let latest = existing_latest(&stay, &end.model, start.from.clone(), &args.host_keys);
        let older = interrupt::unless_interrupted(RESTART, Some(end), latest).await?;
        start = older.unwrap_or(start);
    }
    if let (Some(from), Some(end)) = (&start.from, &queried) {
        let stay = remaining(&target, &end.model, &args.exclude, &add);
        let fits = fits((&target, stay.as_slice()), &end.model, from, next, &args.host_keys);
        let step = interrupt::unless_interrupted(RESTART, Some(end), fits).await?;
        start.env_step = start.env_step.or(step);
    }
    print_edits(&target.run);
    for (key, was, is) in changed.iter().flat_map(|changed| &changed.differences) {
        args.output.progress(&format!("{key} = {is} (was {was})"));
    }
    let others = OtherHosts { exclude: args.exclude.clone(), add: add.clone() }.description();
    if !others.is_empty() {
        args.output.progress(&format!("hosts: {others}"));
    }
    let shown = match &queried {
        Some(end) if !args.yes => {
            standing.fixed = Standing::of(&end.model).fixed;
            let answer = agreed(&target, end, &standing, (&start, &code), next);
            Some(interrupt::unless_interrupted(RESTART, Some(end), answer).await?)
        }
        _ => None,
    };
    args.output.progress(&format!("run {} {}", target.run, standing.effect(&start)));
    code.text().iter().for_each(|text| args.output.progress(text));
    let (from, confirmed) = (start.requested(), shown.is_some());
    let mut experiment = changed.map(|changed| changed.experiment);
    if let Some(end) = queried.as_ref().filter(|_| code.is_new()) {
        let stay = target.hosts.iter().filter(|host| !args.exclude.contains(&host.name));
        let hosts: Vec<Host> = stay.chain(&add).cloned().collect();
        let upload = code_record::upload(&target.run, &hosts, ProgressPrompter::new(&args.host_keys));
        let hash = interrupt::unless_interrupted(RESTART, Some(end), upload).await?;
        let plan = end.model.plan.as_ref().ok_or_else(|| unknown_command(&target.run))?;
        let next = experiment.get_or_insert_with(|| Box::new(plan.experiment.clone()));
        next.launch.code = Some(Code::Pack(hash));
    }
    let exit_condition =
        ExitCondition::restart(from, args.exclude.clone(), add, args.check_collectives, shown, over)
            .with_experiment(experiment);
    let end = target.restart(exit_condition, confirmed, &args.set, &args.host_keys).await?;
    if let Some(line) = contract::caution_of_run(&end.model).filter(|_| start.from.is_some()) {
        args.output.progress(&line);
    }
    report_restart(&end, &target.run, &args, (start, &code), changes)
}

/// The code of the next generation.
struct NextCode {
    choice: CodeChoice,
    /// Against its directory; `None`: the built-in trainer's.
    standing: Option<CodeStanding>,
}

impl NextCode {
    /// Compares the directory with the code of the latest generation (ORIGIN-4).
    ///
    /// Errors: new code is requested and the run has none of its own, or its directory is not on this machine.
    fn find(run: &RunId, summary: &RunSummary, choice: CodeChoice) -> Result<NextCode, Failure> {
        let present = match &summary.code {
            Some(hash) => Some(PlannedCode::Pack(hash.clone())),
            None => (!summary.builtin).then_some(PlannedCode::InPlace),
        };
        let standing = present.map(|present| code_record::standing(Some(run), &present));
        match &standing {
            _ if choice == CodeChoice::Same => {}
            None => {
                return Err(Failure::usage(format!(
                    "run {run} uses the built-in trainer, which has no code"
                ))
                .hint("leave out `--code`"));
            }
            Some(code) if !code.in_place && code.changed.is_none() => return Err(code_record::missing(run)),
            Some(_) => {}
        }
        Ok(NextCode { choice, standing })
    }

    /// A pack is made and uploaded.
    fn is_new(&self) -> bool {
        self.choice == CodeChoice::New && self.standing.as_ref().is_some_and(CodeStanding::is_offered)
    }

    fn text(&self) -> Option<String> {
        let standing = self.standing.as_ref()?;
        let hint = match self.choice {
            CodeChoice::Same if standing.is_offered() => "; `--code new` uses the new code",
            CodeChoice::Same | CodeChoice::New => "",
        };
        Some(format!("{}{hint}", standing.text(self.choice)))
    }

    /// As in `restart` lines.
    fn word(&self) -> Option<&'static str> {
        let standing = self.standing.as_ref()?;
        Some(match (standing.in_place, self.is_new()) {
            (true, _) => "in_place",
            (false, true) => "new",
            (false, false) => "same",
        })
    }
}

/// Queries all hosts of the run except excluded ones. Any of them may have recorded the latest checkpoint.
///
/// Errors: a host does not respond within the time limit of a stop.
async fn answered(hosts_from: &HostsSource, args: &RestartArgs) -> Result<LocatedRun, Failure> {
    let locator = RunLocator::new(hosts_from, &args.host_keys).without(&args.exclude);
    let ask = locator.find(args.run.as_deref(), RunAction::Change);
    let located = interrupt::unless_interrupted(RESTART, None, ask).await?;
    let (run_index, found) = (&located.run_index, located.found()?);
    let mut silent =
        run_index.silent.iter().filter_map(|(index, _)| Some(&run_index.hosts.get(*index)?.name));
    let hosts = found.hosts();
    if !silent.any(|name| hosts.contains(name) && !args.exclude.contains(name)) {
        return Ok(located);
    }
    let target = ExistingRun::new(run_index, &found)?;
    let end = target.run_until(ExitCondition::query(args.exclude.clone()), &args.host_keys).await?;
    match interrupt::unrequested(RESTART, &end, &target.run) {
        Some(failure) => Err(failure),
        None => {
            let ask = locator.pick(Some(&located.run), RunAction::Change);
            interrupt::unless_interrupted(RESTART, Some(&end), ask).await
        }
    }
}

/// Prints the result of a restart.
fn report_restart(
    end: &ConsoleExit,
    run: &RunId,
    args: &RestartArgs,
    (start, code): (StartPoint, &NextCode),
    changes: bool,
) -> Result<u8, Failure> {
    for line in &end.model.run.warnings {
        stderr::line(&format!("warning: {line}"));
    }
    restarted(end, run, args)?;
    let members = end.model.plan.iter().flat_map(|plan| plan.members());
    let hosts: Vec<&str> = members.map(|planned| planned.host.name.as_str()).collect();
    let output = args.output;
    output.outcome(&format!(
        "restarted: run {run} generation {}, {} on {}",
        end.model.run.generation,
        plural(end.model.ranks.len(), "rank"),
        hosts.join(", ")
    ));
    // The checkpoint of the stop is known now.
    let started =
        if start.requested().as_deref() == Some(LATEST) { origin::began(&end.model) } else { start };
    output.detail(&format!("  {}", Standing::of(&end.model).begins(&started)));
    output.record(|| {
        json!({
            "kind": "restarted",
            "run": run,
            "generation": end.model.run.generation,
            "world_size": end.model.ranks.len(),
            "hosts": hosts,
            "from": started.from,
            "env_step": started.env_step,
            "code": code.word(),
            "changed_files": code.standing.as_ref().and_then(|code| Some(code.changed.as_ref()?.count)),
        })
    });
    for size in end.model.plan.iter().filter(|_| changes).flat_map(|plan| &plan.sizes) {
        output.detail(&format!("  per rank: {}", size.text()));
    }
    let left =
        end.model.hosts.iter().filter(|host| host.agent.is_none() && args.exclude.contains(&host.name));
    for host in left {
        stderr::line(&format!(
            "note: no response from {}: ranks may still be running there; once it responds, `rankdeck attach {run}` stops them and nothing else",
            host.name
        ));
    }
    Ok(exit::SUCCESS)
}

/// Returns the path of the latest checkpoint if the run's first host is excluded and does not respond, from
/// the record of another host. Without one, only `--from scratch` restarts from scratch.
fn out_of_reach(found: &FoundRun, args: &RestartArgs) -> Result<Option<String>, Failure> {
    let is_latest = args.from.as_deref().is_none_or(|from| from == LATEST);
    let hosts = found.hosts();
    let is_away = |name: &&String| {
        args.exclude.contains(name) && !found.parts.iter().any(|(_, part)| part.host == **name)
    };
    let Some(first) = hosts.first().filter(is_away).filter(|_| is_latest) else { return Ok(None) };
    match found.summary(wall_time()).checkpoint {
        Some(saved) => Ok(Some(saved.path)),
        None => Err(Failure::host(format!(
            "no response from {first}, which has the checkpoints of run {}",
            found.run
        ))
        .hint("pass `--from PATH` with a file on the new rank 0's host, or `--from scratch`")),
    }
}

/// Fails unless the new generation is up.
fn restarted(end: &ConsoleExit, run: &RunId, args: &RestartArgs) -> Result<(), Failure> {
    if end.why == ExitReason::GaveUp && end.model.run.stopped_elsewhere {
        let HintedError { error, hint } = end_refusal(run);
        return Err(Failure::failed(format!("not restarted: {error}")).hint(hint));
    }
    if let Some(failure) = interrupt::unrequested(RESTART, end, run) {
        return Err(failure);
    }
    let model = &end.model;
    let standing = interrupt::standing(model, run);
    if let Some(refused) = model.run.refused.as_ref().filter(|_| end.why != ExitReason::Detached) {
        let error = format!("not restarted: {refused}");
        let is_reached = silent(model, &args.exclude).next().is_none();
        let failure = if is_reached { Failure::usage(error) } else { Failure::host(error) };
        return Err(failure.hint(standing));
    }
    let (generation, late) = (model.run.generation, ranks_not_up(model));
    if end.why == ExitReason::Detached && !late.is_empty() {
        let error = format!("run {run} generation {generation}: {} not up yet", plural(late.len(), "rank"));
        return Err(Failure::failed(error).hint(standing).hint(format!("`rankdeck attach {run}`")));
    }
    let away: Vec<&str> = silent(model, &[]).map(|host| host.name.as_str()).collect();
    let failure = match end.why {
        ExitReason::Detached => return Ok(()),
        ExitReason::GaveUp => {
            let failure = Failure::host(format!("not restarted: no response from {}", away.join(", ")));
            failure.hint(interrupt::exclusion(model, &away))
        }
        ExitReason::Done | ExitReason::Interrupted | ExitReason::Cut => {
            let failure = Failure::failed(format!("run {run} did not restart: {}", model.run.reason));
            Failure { code: end.code.max(exit::FAILED), ..failure }
        }
    };
    Err(failure.hint(format!("`rankdeck logs {run}`")))
}

/// Prints how the experiment file has changed since the launch.
fn print_edits(run: &RunId) {
    if let Some(edited) = provenance::relaunch_spec(run).and_then(|again| again.edited()) {
        stderr::line(&format!("note: {}; apply a change with `--set KEY=VALUE`", edited.description()));
    }
}

/// Returns where the next generation starts, unless the run has reached its target.
fn start_of(standing: &Standing, summary: &RunSummary, args: &RestartArgs) -> Result<StartPoint, Failure> {
    let refused = |HintedError { error, hint }| Failure::usage(error).hint(hint);
    let start = standing.start(args.from.as_deref()).map_err(refused)?;
    let reached = summary.total_steps.zip(start.env_step).is_some_and(|(goal, step)| step >= goal);
    if reached && !standing.running && standing.builtin && args.set.is_empty() && start.name == LATEST {
        let steps = count(start.env_step.unwrap_or_default());
        return Err(Failure::usage(format!("run {} has reached its target of {steps} steps", standing.run)).hint(
            format!(
                "train longer with `rankdeck run EXPERIMENT.toml --from {} --set run.total_steps=N`, or start over with `--from scratch`",
                standing.run
            ),
        ));
    }
    Ok(start)
}

/// Returns the path of a checkpoint that was named by iteration, as `best` or by path. Fails before anything
/// is stopped if it does not exist.
async fn named_checkpoint(
    (target, stay): (&ExistingRun, &[Host]),
    model: &Model,
    named: &str,
    host_keys: &HostKeyArgs,
) -> Result<String, Failure> {
    let builtin = is_builtin(model);
    let stem = checkpoint_stem(named);
    if !builtin && let Some(known) = origin::named(model, named) {
        return resume_from::resolve_path(stay, &known.path, host_keys).await;
    }
    let first = first_host(target, stay)?;
    match stem {
        Some(stem) if builtin => resume_from::checkpoint_of_run(first, &target.run.0, &stem, host_keys).await,
        Some(_) => Err(Failure::usage(format!("run {} has no known checkpoint `{named}`", target.run))
            .hint("pass `--from PATH` with a file on any of its hosts")),
        None if builtin => resume_from::resolve_path(std::slice::from_ref(first), named, host_keys).await,
        // Any host may have it: the others get a copy.
        None => resume_from::resolve_path(stay, named, host_keys).await,
    }
}

/// The hosts of the next generation, rank 0's first.
fn remaining(target: &ExistingRun, model: &Model, exclude: &[String], add: &[Host]) -> Vec<Host> {
    let members: Vec<&str> = model
        .plan
        .iter()
        .flat_map(|plan| plan.members())
        .map(|planned| planned.host.name.as_str())
        .filter(|name| !exclude.iter().any(|excluded| excluded == name))
        .collect();
    let names: Vec<&str> = model.hosts.iter().map(|host| host.name.as_str()).collect();
    next_hosts(&names, &members, &target.hosts, add)
}

/// Of the run's hosts, those that stay or come back, in their order, then new ones.
fn next_hosts(names: &[&str], stay: &[&str], hosts: &[Host], add: &[Host]) -> Vec<Host> {
    let is_next = |name: &str| stay.contains(&name) || add.iter().any(|added| added.name == name);
    let of_run = names.iter().filter(|name| is_next(name));
    let of_run = of_run.filter_map(|name| add.iter().chain(hosts).find(|host| host.name == **name));
    let new = add.iter().filter(|added| !names.contains(&added.name.as_str()));
    of_run.chain(new).cloned().collect()
}

/// Returns the host of rank 0.
fn first_host<'a>(target: &ExistingRun, stay: &'a [Host]) -> Result<&'a Host, Failure> {
    stay.first().ok_or_else(|| {
        Failure::host(format!("no host reports rank 0 of run {}", target.run))
            .hint("list the hosts that respond with `rankdeck ps`")
    })
}

/// Most checkpoints that are looked for.
const LOOKED_FOR: usize = 4;

/// Returns the newest known checkpoint of a script that exists, if that is not the latest one: it was deleted since.
/// `None` also if none is found: the start then fails with the reason.
async fn existing_latest(
    stay: &[Host],
    model: &Model,
    from: Option<String>,
    host_keys: &HostKeyArgs,
) -> Result<Option<StartPoint>, Failure> {
    let Some(latest) = model.checkpoints.back() else { return Ok(None) };
    let is_latest = from.is_some_and(|from| from == LATEST || from == latest.path);
    if is_builtin(model) || !is_latest {
        return Ok(None);
    }
    for saved in known_paths(model) {
        match resume_from::resolve_path(stay, &saved.path, host_keys).await {
            Ok(_) if saved.path == latest.path => return Ok(None),
            Ok(_) => {
                stderr::line(&format!("note: checkpoint {} no longer exists", latest.path));
                let name = saved.path.rsplit('/').next().unwrap_or(&saved.path);
                return Ok(Some(StartPoint::at(name, saved.path.as_str(), saved.step())));
            }
            Err(failure) if failure.code == exit::USAGE => {}
            // A host that may have it does not respond.
            Err(_) => return Ok(None),
        }
    }
    Ok(None)
}

fn is_builtin(model: &Model) -> bool {
    model.plan.as_ref().is_some_and(Plan::is_builtin)
}

/// Known checkpoints, the newest of each path, the latest first.
fn known_paths(model: &Model) -> Vec<&CheckpointModel> {
    let mut found: Vec<&CheckpointModel> = Vec::new();
    for saved in model.checkpoints.iter().rev() {
        if found.len() < LOOKED_FOR && found.iter().all(|known| known.path != saved.path) {
            found.push(saved);
        }
    }
    found
}

/// Checks that the run can restart from `from` with its current or changed experiment, before anything is
/// stopped. Returns the step of a named checkpoint.
async fn fits(
    (target, stay): (&ExistingRun, &[Host]),
    model: &Model,
    from: &str,
    changed: Option<&Experiment>,
    host_keys: &HostKeyArgs,
) -> Result<Option<u64>, Failure> {
    let Some(plan) = model.plan.as_ref().filter(|plan| plan.is_builtin()) else { return Ok(None) };
    let experiment = changed.unwrap_or(&plan.experiment);
    let as_it_was = |failure: Failure| failure.hint(interrupt::standing(model, &target.run));
    if from != LATEST {
        let first = first_host(target, stay)?;
        let read = resume_from::header(first, from, host_keys).await?;
        let wrong = read.as_ref().map_or_else(
            |wrong| Some(wrong.clone()),
            |header| resume_from::mismatch(from, header, experiment),
        );
        return match wrong {
            Some(HintedError { error, hint }) => Err(as_it_was(Failure::usage(error).hint(hint))),
            None => Ok(read.ok().and_then(|header| header.env_step)),
        };
    }
    // A running run writes it when it stops. If it is damaged, the trainer uses an older one.
    let mut refused = weights::refusal(LATEST, &weights::mismatches(&plan.experiment, experiment));
    if model.run.state == RunState::Over {
        let first = first_host(target, stay)?;
        if let Ok(path) = resume_from::checkpoint_of_run(first, &target.run.0, LATEST, host_keys).await
            && let Ok(header) = resume_from::header(first, &path, host_keys).await?
        {
            refused = resume_from::mismatch(&path, &header, experiment);
        }
    }
    match refused {
        Some(HintedError { error, hint }) => Err(as_it_was(Failure::usage(error).hint(hint))),
        None => Ok(None),
    }
}

/// Returns the run's experiment with overrides.
fn changed(target: &ExistingRun, model: &Model, sets: &[String]) -> Result<ChangedExperiment, Failure> {
    let plan = model.plan.as_ref().ok_or_else(|| unknown_command(&target.run))?;
    let spec = provenance::relaunch_spec(&target.run);
    relaunch::change_of(spec.as_ref(), &plan.experiment, sets, &target.hosts)
        .map_err(|wrong| Failure::usage(wrong.join("\n")).hint(interrupt::standing(model, &target.run)))
}

fn unknown_command(run: &RunId) -> Failure {
    Failure::host(format!("no host reports the command of run {run}")).hint("`rankdeck ps`")
}

/// The error for a restart that was not confirmed.
fn unconfirmed(run: &str) -> Failure {
    Failure::usage(format!("restarting {run} needs confirmation")).hint("pass `--yes` to skip the prompt")
}

/// Shows what is stopped, where the run restarts and which command its ranks run, and asks for confirmation.
/// Returns the confirmed launch.
async fn agreed(
    target: &ExistingRun,
    end: &ConsoleExit,
    standing: &Standing,
    (start, code): (&StartPoint, &NextCode),
    next: Option<&Experiment>,
) -> Result<LaunchHash, Failure> {
    let (Some(plan), Some(shown)) = (&end.model.plan, origin::shown(&end.model)) else {
        return Err(Failure::host(format!("no host reports the command of run {}", target.run))
            .hint(format!("check it with `rankdeck ps`, or stop it with `rankdeck stop {}`", target.run)));
    };
    for line in standing.question(start, plan, next).into_iter().chain(code.text()) {
        stderr::line(&line);
    }
    match prompt::yes(&format!("restart run {}?", target.run)).await {
        true => Ok(shown),
        false => Err(unconfirmed(&target.run.0).hint(interrupt::standing(&end.model, &target.run))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_hosts_begin_with_rank_0_s_without_excluded_ones() {
        let hosts = ["a", "b", "c", "d"].map(|name| Host { name: name.into(), ..Host::default() });
        let next = |stay: &[&str], add: &[Host]| -> Vec<String> {
            let hosts = next_hosts(&["a", "b", "c"], stay, &hosts[..3], add);
            hosts.into_iter().map(|host| host.name).collect()
        };
        assert_eq!(next(&["b", "c"], &[]), ["b", "c"], "a is excluded, and not asked for the file");
        assert_eq!(next(&["b"], &hosts[..1]), ["a", "b"], "it is back, and has rank 0 again");
        assert_eq!(next(&["a"], &hosts[3..]), ["a", "d"]);
    }

    #[test]
    fn known_paths_are_the_newest_of_each_path() {
        let of = |(path, env_step): (&str, u64)| CheckpointModel {
            path: path.into(),
            env_step,
            ..CheckpointModel::default()
        };
        let all = [("a", 1), ("b", 2), ("a", 3)].map(of);
        let mut model = Model::default();
        model.checkpoints.extend(all);
        let found: Vec<Option<u64>> = known_paths(&model).into_iter().map(CheckpointModel::step).collect();
        assert_eq!(found, [Some(3), Some(2)]);
    }
}
