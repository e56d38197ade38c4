//! `rankdeck attach` and `rankdeck restart`: work on a run that somebody launched before.

use super::again;
use super::args::{AttachArgs, HostKeyArgs, RestartArgs};
use super::begin_from;
use super::checkpoint_source::LATEST;
use super::choose::{self, OutputChoice, TerminalInfo};
use super::roster::{FoundRun, Roster, State, roster};
use super::run::{self, LinkOptions, Links};
use super::run_id::RUNS;
use super::{Failure, code, origin, print, prompt};
use crate::shell::changer;
use crate::shell::driver::{End, Session, Why};
use crate::shell::metrics::Endpoint;
use crate::shell::objective::Objective;
use crate::shell::output::Output;
use crate::shell::stderr;
use rankdeck_config::HostsSource;
use rankdeck_core::Goal;
use rankdeck_core::model::{Model, RunState};
use rankdeck_link::Opening;
use rankdeck_proto::clock::wall_time;
use rankdeck_proto::message::LaunchHash;
use rankdeck_tui::restart_draft::ChangedExperiment;
use rankdeck_types::error::HintedError;
use rankdeck_types::experiment::Experiment;
use rankdeck_types::host::Host;
use rankdeck_types::ids::RunId;
use rankdeck_types::plan::Plan;
use rankdeck_types::weights;
use rankdeck_types::words::{count, plural};
use std::path::Path;

/// Runs `rankdeck attach`: shows a run that other consoles may have launched.
pub async fn attach(hosts_from: &HostsSource, args: AttachArgs) -> Result<u8, Failure> {
    let chosen = choose::choose(&args.output, &TerminalInfo::here())?;
    let roster = roster(hosts_from, &args.host_keys).await?;
    let found = match chosen {
        OutputChoice::Screen => roster.pick_or_ask(args.run.as_deref(), true)?,
        OutputChoice::Linear { .. } | OutputChoice::Lines(_) => roster.pick(args.run.as_deref())?,
    };
    let objective = match chosen {
        OutputChoice::Lines(_) if choose::is_read_only(&args.output)? => Objective::Observe,
        _ => run::watching(&args.output),
    };
    if matches!(chosen, OutputChoice::Lines(_)) && objective != Objective::Observe {
        stderr::line("note: ctrl-c stops the run cleanly; to leave it running: `kill -HUP` this process");
    }
    let goal = Target::new(&roster, &found)?;
    let links = goal.open_links(&args.host_keys, chosen)?;
    let spares = roster.hosts.iter().filter(|host| !goal.hosts.contains(host)).cloned().collect();
    let watching = run::ConsoleOptions {
        until: Vec::new(),
        objective,
        spares,
        listed: roster.hosts.clone(),
        warnings: Vec::new(),
        record: Some((Path::new(RUNS), &goal.run)),
        origin: None,
        pace: choose::pace(&args.output),
        simulated: false,
        demo: None,
    };
    again::offer(origin::again(&goal.run));
    let end = run::console(goal.goal(), watching, links, &args.host_keys, chosen).await?;
    Ok(run::finish(&end, &args.output, &goal.run))
}

/// Runs `rankdeck restart`: asks for a new generation and waits for it.
pub async fn restart(hosts_from: &HostsSource, args: RestartArgs) -> Result<u8, Failure> {
    let roster = roster(hosts_from, &args.host_keys).await?;
    let found = roster.pick(args.run.as_deref())?;
    let over = found.state != State::Running;
    let target = Target::new(&roster, &found)?;
    let add: Vec<Host> = args.add.iter().map(|name| roster.host(name).cloned()).collect::<Result<_, _>>()?;
    let changes = !args.exclude.is_empty() || !add.is_empty() || !args.set.is_empty();
    let mut from = if over {
        from_end(&found, args.from.as_deref(), !args.set.is_empty())?
    } else {
        from_middle(args.from.as_deref(), changes)
    };
    let named = args.from.clone().filter(|from| !["latest", "afresh"].contains(&from.as_str()));
    let looked = match !args.yes || !args.set.is_empty() || named.is_some() {
        true => Some(target.pursue(Objective::Look, &args.host_keys).await?),
        false => None,
    };
    if let (Some(named), Some(end)) = (named, &looked) {
        from = Some(named_checkpoint(&target, &end.model, &named, &args.host_keys).await?);
    }
    let changed = match &looked {
        Some(end) if !args.set.is_empty() => Some(changed(&target, &end.model, &args.set)?),
        _ => None,
    };
    if let (Some(from), Some(end)) = (&from, &looked) {
        let wanted = changed.as_ref().map(|changed| &*changed.experiment);
        fits(&target, &end.model, from, wanted, &args.host_keys).await?;
    }
    tell_edits(&target.run);
    if over {
        stderr::line(&format!(
            "run {} is over; it begins again from {}",
            found.run,
            from.as_deref().unwrap_or("the beginning")
        ));
    }
    for (key, was, is) in changed.iter().flat_map(|changed| &changed.differences) {
        stderr::line(&format!("{key} = {is} (was {was})"));
    }
    let shown = match &looked {
        Some(end) if !args.yes => Some(agreed(&target, end)?),
        _ => None,
    };
    let objective = Objective::restart(from, args.exclude.clone(), add, args.check_collectives, shown, over)
        .with_experiment(changed.map(|changed| changed.experiment));
    let end = target.pursue(objective, &args.host_keys).await?;
    for line in &end.model.run.warnings {
        stderr::line(&format!("warning: {line}"));
    }
    if let Some(refused) = end.model.run.refused.as_ref().filter(|_| end.why != Why::Detached) {
        return Err(Failure::usage(format!("no restart: {refused}")).hint(match over {
            true => format!("`rankdeck ps`, `rankdeck attach {}`", target.run),
            false => format!("run {} goes on as it is", target.run),
        }));
    }
    if end.why != Why::Detached {
        let reason = end.model.run.reason.clone();
        return Err(Failure {
            code: end.code.max(code::FAILED),
            ..Failure::failed(format!("run {} did not come back: {reason}", target.run))
        }
        .hint(format!("`rankdeck logs {}`", target.run)));
    }
    let members = end.model.plan.iter().flat_map(|plan| plan.members());
    let hosts: Vec<&str> = members.map(|planned| planned.host.name.as_str()).collect();
    print::stdout(&format!(
        "restarted: run {} generation {}, {} on {}",
        target.run,
        end.model.run.generation,
        plural(end.model.ranks.len(), "rank"),
        hosts.join(", ")
    ));
    for size in end.model.plan.iter().filter(|_| changes).flat_map(|plan| &plan.sizes) {
        print::stdout(&format!("  per rank: {}", size.text()));
    }
    Ok(code::SUCCESS)
}

/// Says what has changed in the experiment's file since the launch from here.
fn tell_edits(run: &RunId) {
    if let Some(edited) = origin::again(run).and_then(|again| again.edited()) {
        stderr::line(&format!("note: {}; hint: `--set KEY=VALUE` takes one over", edited.told()));
    }
}

/// Where a run that goes on begins again; on other hosts it goes on from where it is unless somebody says
/// otherwise.
fn from_middle(wanted: Option<&str>, changes: bool) -> Option<String> {
    wanted.or(changes.then_some("latest")).filter(|from| *from != "afresh").map(str::to_owned)
}

/// Where a run that is over begins again: where it was, unless somebody says otherwise.
fn from_end(found: &FoundRun, wanted: Option<&str>, changes: bool) -> Result<Option<String>, Failure> {
    let summary = found.summary(wall_time());
    match (wanted, &summary.checkpoint) {
        (Some("afresh"), _) | (None, None) => Ok(None),
        (Some("latest"), None) => Err(Failure::usage(format!("run {} has no checkpoint", found.run))
            .hint("`--from afresh` begins it again from the beginning")),
        (None | Some("latest"), Some(saved))
            if !changes && summary.builtin && summary.total_steps.is_some_and(|goal| saved.env_step >= goal) =>
        {
            Err(Failure::usage(format!("run {} has reached its goal of {} steps", found.run, count(saved.env_step)))
                .hint(format!(
                    "`rankdeck run EXPERIMENT.toml --from {} --set run.total_steps=N` trains longer; `--from afresh` \
                     begins this one again",
                    found.run
                )))
        }
        // A program of the user knows its own files.
        (None | Some("latest"), Some(saved)) if !summary.builtin => Ok(Some(saved.path.clone())),
        (None | Some("latest"), Some(_)) => Ok(Some("latest".to_owned())),
        (Some(path), _) => Ok(Some(path.to_owned())),
    }
}

/// The path of a checkpoint that somebody names by its iteration, as `best` or by its path: it is there, or
/// nothing ends and nothing begins.
async fn named_checkpoint(
    target: &Target,
    model: &Model,
    named: &str,
    host_keys: &HostKeyArgs,
) -> Result<String, Failure> {
    let first = first_host(target, model)?;
    let stem = named.parse::<u64>().map_or_else(|_| named.to_owned(), |number| format!("iter-{number}"));
    if stem != "best" && stem == named {
        return begin_from::there(first, named, host_keys).await;
    }
    if !model.plan.as_ref().is_some_and(Plan::is_builtin) {
        return Err(Failure::usage(format!(
            "run {} runs a program of yours, whose checkpoints have no such names as {named}",
            target.run
        ))
        .hint("`--from PATH` names a file on rank 0's host"));
    }
    begin_from::of_run(first, &target.run.0, &stem, host_keys).await
}

/// The host of rank 0.
fn first_host<'a>(target: &'a Target, model: &Model) -> Result<&'a Host, Failure> {
    let node = model.plan.as_ref().and_then(|plan| plan.ranks.first()).map(|rank| rank.node_rank);
    let name = node.and_then(|node| model.hosts.get(node.index())).map(|host| host.name.as_str());
    target.hosts.iter().find(|host| Some(host.name.as_str()) == name).ok_or_else(|| {
        Failure::host(format!("no host tells where rank 0 of run {} is", target.run))
            .hint("`rankdeck ps` shows which hosts answer")
    })
}

/// Makes sure that the run can begin again from `from`, with its experiment as it is or with another one,
/// before anything ends or begins.
async fn fits(
    target: &Target,
    model: &Model,
    from: &str,
    changed: Option<&Experiment>,
    host_keys: &HostKeyArgs,
) -> Result<(), Failure> {
    let Some(plan) = model.plan.as_ref().filter(|plan| plan.is_builtin()) else { return Ok(()) };
    let wanted = changed.unwrap_or(&plan.experiment);
    let as_it_was = |failure: Failure| failure.hint(format!("run {} is as it was", target.run));
    if from != LATEST {
        let first = first_host(target, model)?;
        return begin_from::fits(first, from, wanted, host_keys).await.map_err(as_it_was);
    }
    // A run that goes on writes it when it stops. The trainer goes back to an older one when it is damaged.
    let mut refused = weights::refusal(LATEST, &weights::misfits(&plan.experiment, wanted));
    if model.run.state == RunState::Over {
        let first = first_host(target, model)?;
        if let Ok(path) = begin_from::of_run(first, &target.run.0, LATEST, host_keys).await
            && let Ok(header) = begin_from::header(first, &path, host_keys).await?
        {
            refused = begin_from::misfit(&path, &header, wanted);
        }
    }
    match refused {
        Some(HintedError { error, hint }) => Err(as_it_was(Failure::usage(error).hint(hint))),
        None => Ok(()),
    }
}

/// The run's experiment with changed keys.
fn changed(target: &Target, model: &Model, sets: &[String]) -> Result<ChangedExperiment, Failure> {
    let plan = model.plan.as_ref().ok_or_else(|| {
        Failure::host(format!("no host tells what run {} runs", target.run)).hint("`rankdeck ps`")
    })?;
    changer::change(&plan.experiment, sets)
        .map_err(|wrong| Failure::usage(wrong.join("\n")).hint(format!("run {} is as it was", target.run)))
}

/// Shows what the agents say that the run's ranks run, and asks whether to start it again; returns the launch
/// that was shown.
fn agreed(target: &Target, end: &End) -> Result<LaunchHash, Failure> {
    let refusal = |text: String| Failure::usage(text).hint("`--yes` starts it without a question");
    if !prompt::can_ask() {
        return Err(refusal(format!("run {} is started again only when somebody says yes", target.run)));
    }
    let (Some(plan), Some(launch)) = (&end.model.plan, &end.model.run.launch) else {
        return Err(Failure::host(format!("no host tells what run {} runs", target.run))
            .hint(format!("`rankdeck ps`, `rankdeck stop {}`", target.run)));
    };
    stderr::line(&format!("on {}:", plural(plan.members().count(), "host")));
    stderr::line(&format!("  {}", plan.command_line()));
    match prompt::yes(&format!("start this again in run {}?", target.run)) {
        true => Ok(launch.clone()),
        false => Err(refusal("no restart: nobody said yes".into())),
    }
}

/// A run and its hosts in node_rank order, as the user's hosts file describes them.
pub struct Target {
    pub run: RunId,
    /// Its hosts. One that the hosts file does not list has a name only, and is not contacted.
    pub hosts: Vec<Host>,
    /// Names of those.
    pub unlisted: Vec<String>,
    /// All hosts of the hosts file.
    listed: Vec<Host>,
}

impl Target {
    /// The run that was found, with all hosts that anybody names.
    pub fn whole(roster: &Roster, found: &FoundRun) -> Result<Target, Failure> {
        let run = RunId::parse(found.run)?;
        let mut unlisted = Vec::new();
        let hosts = found.hosts().into_iter().map(|name| match roster.host(&name) {
            Ok(host) => host.clone(),
            Err(_) => {
                unlisted.push(name.clone());
                Host { name, ..Host::default() }
            }
        });
        let hosts = hosts.collect();
        Ok(Target { run, hosts, unlisted, listed: roster.hosts.clone() })
    }

    /// The run that was found, all of whose hosts are listed.
    pub fn new(roster: &Roster, found: &FoundRun) -> Result<Target, Failure> {
        let hosts = roster.hosts_of(found)?;
        Ok(Target {
            run: RunId::parse(found.run)?,
            hosts,
            unlisted: Vec::new(),
            listed: roster.hosts.clone(),
        })
    }

    /// Looking at it.
    pub fn goal(&self) -> Goal {
        Goal::Attach {
            run: self.run.clone(),
            hosts: self.hosts.iter().map(|host| host.name.clone()).collect(),
        }
    }

    /// Links that find its agents.
    pub fn open_links(&self, host_keys: &HostKeyArgs, chosen: OutputChoice) -> Result<Links, Failure> {
        let options =
            LinkOptions { run: &self.run, opening: Opening::Attach, builtin: false, host_keys, chosen };
        run::open_links(&self.hosts, &options, |host| !self.unlisted.contains(&host.name))
    }

    /// Attaches without showing anything, pursues the objective, and leaves.
    pub async fn pursue(&self, objective: Objective, host_keys: &HostKeyArgs) -> Result<End, Failure> {
        self.work(objective, None, host_keys).await
    }

    /// Attaches without showing anything, and answers who asks for figures, until the run is over or a signal
    /// comes.
    pub async fn measure(&self, asked: Endpoint, host_keys: &HostKeyArgs) -> Result<End, Failure> {
        self.work(Objective::Observe, Some(asked), host_keys).await
    }

    async fn work(
        &self,
        objective: Objective,
        metrics: Option<Endpoint>,
        host_keys: &HostKeyArgs,
    ) -> Result<End, Failure> {
        let Links { links, inbox, connector } = self.open_links(host_keys, run::plain())?;
        let session = Session {
            goal: self.goal(),
            until: Vec::new(),
            objective,
            links,
            inbox,
            connector,
            spares: Vec::new(),
            listed: self.listed.clone(),
            warnings: Vec::new(),
            recorder: None,
            accept_new_host_keys: host_keys.accept_new_host_keys,
            can_ask: prompt::can_ask(),
            simulated: false,
            demo: None,
            notify: None,
            metrics,
        };
        run::drive(session, Output::Quiet).await
    }
}
